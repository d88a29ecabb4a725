/* What a shared library shows of itself; everything else is hidden. It stands before a C function's
 * declaration, and once per C++ header in `namespace TWOFOUR_API twofour {`. */
#ifndef TWOFOUR_EXPORT_H
#define TWOFOUR_EXPORT_H

#if defined(__cplusplus)
#define TWOFOUR_API [[gnu::visibility("default")]]
#elif defined(__GNUC__)
#define TWOFOUR_API __attribute__((visibility("default")))
#else
#define TWOFOUR_API
#endif

#endif
