/* SPDX-License-Identifier: Apache-2.0 */
/* Public structs that start with their own size. */
#ifndef WH_UTIL_OPTIONS_H
#define WH_UTIL_OPTIONS_H

#include <stddef.h>

/* Copy the caller's struct `from` (NULL: all defaults) to ours, `into_size` bytes that start with
 * a size_t; what the caller's, from an older header, lacks is zero, and the size becomes
 * into_size. `least` is the smallest size that makes sense, sizeof(size_t) as a rule; `what` begins
 * the text: the call.
 * 0, or -EINVAL (the size is less than `least`), -E2BIG (from a newer header, and a field that we
 * do not know is not zero); `into` is unchanged on error. */
int wh_options_copy(void *into, size_t into_size, const void *from, size_t least, const char *what);

/* The other way: give the caller's struct `into`, whose size it has set, what `from`, all of ours,
 * says, as far as it has room. Its size stays. 0, or -EINVAL, -E2BIG as above. */
int wh_options_return(void *into, const void *from, size_t from_size, const char *what);

#endif
