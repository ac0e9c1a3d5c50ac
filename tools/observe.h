/* SPDX-License-Identifier: Apache-2.0 */
/* Ask the engines of this user on this machine over their sockets, and merge their answers. */
#ifndef TOOLS_OBSERVE_H
#define TOOLS_OBSERVE_H

#include <stddef.h>

#include "command.h"
#include "telemetry/observation.h"

#define OBSERVE_WHY 96

/* A live engine that did not answer in time, or answered something unexpected. */
struct observe_silent {
	int pid; /* from its socket's name; -1: unknown */
	char why[OBSERVE_WHY];
};

struct observed {
	struct wh_observation *engines; /* by name, then by epoch */
	size_t count;
	struct observe_silent *silents;
	size_t silent;
	char why[2 * OBSERVE_WHY]; /* why the named directory could not be read; "": it could */
};

#define OBSERVE_OPTION                                                                             \
	{                                                                                          \
		.name = "observe", .argument = "DIR", .complete = "file",                          \
		.help = "engines whose sockets are in DIR; off: none"                              \
	}

/* The directory that the option names, or the setting's variable; NULL: the usual ones. */
const char *observe_directory(const struct arguments *arguments);

/* Ask all engines at once and wait at most `seconds`. `directory` is the one to look in, or "off";
 * NULL: all that engines choose from. Removes sockets that dead engines left. 0, also if there is
 * no engine, or a negative errno (no memory, no descriptors). */
int observe_all(const char *directory, double seconds, struct observed *out);
void observe_free(struct observed *observed);

/* Merge peers of the same name and address, of which an engine may have several, and sessions of
 * the same name. */
void observe_merge(struct wh_observation *observation);
/* The order of peers, with results as strcmp(). */
int observe_order(const struct wh_observed_peer *one, const struct wh_observed_peer *other);

#endif
