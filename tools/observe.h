/* SPDX-License-Identifier: Apache-2.0 */
/* The engines of this user on this machine, asked over their sockets. */
#ifndef TOOLS_OBSERVE_H
#define TOOLS_OBSERVE_H

#include <stddef.h>

#include "command.h"
#include "telemetry/observation.h"

#define OBSERVE_WHY 96

/* One that lives but did not answer in time, or not as expected. */
struct observe_silent {
	int pid; /* as its socket's name says; -1: it does not */
	char why[OBSERVE_WHY];
};

struct observed {
	struct wh_observation *engines; /* by name, then epoch */
	size_t count;
	struct observe_silent *silents;
	size_t silent;
	char why[2 * OBSERVE_WHY]; /* the directory that was named cannot be looked into; "" */
};

#define OBSERVE_OPTION                                                                             \
	{                                                                                          \
		.name = "observe", .argument = "DIR", .complete = "file",                          \
		.help = "engines that have their sockets in DIR; off: none"                        \
	}

/* What the option, else the knob's variable, says; NULL: the usual places. */
const char *observe_directory(const struct arguments *arguments);

/* Ask all of them at once and wait at most `seconds`. `directory` is one place to look in, or
 * "off"; NULL: all that engines choose from. Sockets that dead engines left are removed. 0, or a
 * negative errno (no memory, no descriptors); that there is no engine is no error. */
int observe_all(const char *directory, double seconds, struct observed *out);
void observe_free(struct observed *observed);

/* Peers of the same name and address, of which an engine may have several, become one; so do
 * sessions of the same name. */
void observe_merge(struct wh_observation *observation);
/* Its order of peers, as strcmp() would tell it. */
int observe_order(const struct wh_observed_peer *one, const struct wh_observed_peer *other);

#endif
