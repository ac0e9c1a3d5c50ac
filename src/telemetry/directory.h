/* SPDX-License-Identifier: Apache-2.0 */
/* The directories in which engines create their sockets for observers. Engines and observers share
 * this code, so that both look in the same places. */
#ifndef WH_TELEMETRY_DIRECTORY_H
#define WH_TELEMETRY_DIRECTORY_H

#include <stdbool.h>
#include <stddef.h>

#define WH_OBSERVER_SUFFIX ".observe"
#define WH_OBSERVER_NEW ".new" /* follows the suffix until the socket listens */

/* Directory number `index`, best first: `runtime`/wherry, /run/user/UID/wherry, /tmp/wherry-UID.
 * `runtime` is the value of XDG_RUNTIME_DIR, or NULL. False: past the last one. `out` is "" if this
 * directory cannot be used. */
bool wh_observer_directory(unsigned index, const char *runtime, char *out, size_t size);

/* Does the directory belong to this user, and can nobody else write to it? 0 or a negative errno.
 */
int wh_observer_check(const char *directory);

/* Create the directory if it does not exist, then check it. Its parent must exist. */
int wh_observer_make(const char *directory);

#endif
