/* What a shared library shows of itself: everything else is hidden. On a C function it stands
 * before the declaration; `namespace twofour TWOFOUR_API {` marks all that a C++ header declares.
 */
#ifndef TWOFOUR_EXPORT_H
#define TWOFOUR_EXPORT_H

#if defined(__GNUC__)
#define TWOFOUR_API __attribute__((visibility("default")))
#else
#define TWOFOUR_API
#endif

#endif
