/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers in Prometheus' text format, and telling them over HTTP. */
#ifndef TOOLS_EXPORTER_METRICS_H
#define TOOLS_EXPORTER_METRICS_H

#include <stdbool.h>
#include <stddef.h>

#include "observe.h"
#include "top/top.h"

struct metrics {
	char *text; /* NUL-terminated; to be freed */
	size_t length, room;
	bool failed; /* out of memory */
};

/* Engines whose peers have been merged. */
void metrics_engines(struct metrics *metrics, const struct wh_observation *engines, size_t count);
/* How many there were to ask. */
void metrics_observed(struct metrics *metrics, const struct observed *observed);
/* GPUs and NICs. What is not known is left out. */
void metrics_machine(struct metrics *metrics, const struct top_sample *sample);

/* For the two above. */
void metrics_family(struct metrics *metrics, const char *name, const char *type, const char *help);
void metrics_put(struct metrics *metrics, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Text as the value of a label, between quotes. */
void metrics_escape(const char *text, char *out, size_t size);

/* ---- HTTP ------------------------------------------------------------------------------------ */

struct metrics_server;

/* Answer GET /metrics at "127.0.0.1:9411" or "[::1]:9411" (port 0: a free one) with what `make`
 * makes, on a thread of its own. 0, or an exit code after a line on stderr. `address` gets where it
 * listens, "http://127.0.0.1:9411/metrics". */
int metrics_serve(const char *where, void (*make)(void *arg, struct metrics *metrics), void *arg,
		  char *address, size_t size, struct metrics_server **out);
void metrics_stop(struct metrics_server *server); /* NULL is allowed */

#endif
