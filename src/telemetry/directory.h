/* SPDX-License-Identifier: Apache-2.0 */
/* Where engines put the sockets that observers ask: the same for those who make them and those who
 * look for them. */
#ifndef WH_TELEMETRY_DIRECTORY_H
#define WH_TELEMETRY_DIRECTORY_H

#include <stdbool.h>
#include <stddef.h>

#define WH_OBSERVER_SUFFIX ".observe"
#define WH_OBSERVER_NEW ".new" /* behind it until the socket listens */

/* Place number `index`, best first: in `runtime` (what XDG_RUNTIME_DIR says, or NULL), in
 * /run/user/UID, /tmp/wherry-UID. False past the end. `out` is "" where there is no such place. */
bool wh_observer_directory(unsigned index, const char *runtime, char *out, size_t size);

/* Is it a directory of this user, in which nobody else can put anything? 0 or a negative errno. */
int wh_observer_check(const char *directory);

/* Make it unless it is there; then the same. What it is in has to be there. */
int wh_observer_make(const char *directory);

#endif
