/* SPDX-License-Identifier: Apache-2.0 */
/* The engines of this user on this machine, asked over their sockets. */
#ifndef TOOLS_OBSERVE_H
#define TOOLS_OBSERVE_H

#include <stddef.h>

#include "telemetry/observation.h"

struct observed {
	struct wh_observation *engines; /* by name, then epoch */
	size_t count;
	size_t silent; /* that live but did not answer in time, or not as expected */
};

/* Ask all of them at once and wait at most `seconds`. `directory` is one place to look in; NULL: all
 * that engines choose from. Sockets that dead engines left are removed. 0, or a negative errno (no
 * memory, no descriptors); that there is no engine is no error. */
int observe_all(const char *directory, double seconds, struct observed *out);
void observe_free(struct observed *observed);

/* Peers of the same name and address, of which an engine may have several, become one; so do sessions
 * of the same name. */
void observe_merge(struct wh_observation *observation);

#endif
