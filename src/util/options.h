/* SPDX-License-Identifier: Apache-2.0 */
/* Public structs that start with their own size, so that callers built with older and newer headers
 * work. */
#ifndef WH_UTIL_OPTIONS_H
#define WH_UTIL_OPTIONS_H

#include <stddef.h>

/* Copy the caller's struct `from` (NULL: all defaults) to `into`, a struct of `into_size` bytes
 * that starts with a size_t. Members that an older header lacks become zero; the size becomes
 * into_size. `least` is the smallest valid size, mostly sizeof(size_t). `what`, the name of the
 * call, begins the error text.
 * 0, or -EINVAL (the size is less than `least`), -E2BIG (a newer header's member, unknown here, is
 * not zero); `into` is unchanged on error. */
int wh_options_copy(void *into, size_t into_size, const void *from, size_t least, const char *what);

/* The other way: fill the caller's struct `into`, up to the size that the caller has set, from our
 * struct `from`. The caller's size stays. 0, or -EINVAL, -E2BIG as above. */
int wh_options_return(void *into, const void *from, size_t from_size, const char *what);

#endif
