/* The version of these headers, for C and C++. The library says its own: twofour_version(). */
#ifndef TWOFOUR_VERSION_H
#define TWOFOUR_VERSION_H

#define TWOFOUR_VERSION_MAJOR 0
#define TWOFOUR_VERSION_MINOR 1
#define TWOFOUR_VERSION_PATCH 0

/* 10203 for version 1.2.3. */
#define TWOFOUR_VERSION_NUMBER \
  (TWOFOUR_VERSION_MAJOR * 10000 + TWOFOUR_VERSION_MINOR * 100 + TWOFOUR_VERSION_PATCH)

#endif
