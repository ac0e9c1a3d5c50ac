/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics in Prometheus' text format, and an HTTP server for them. */
#ifndef TOOLS_EXPORTER_METRICS_H
#define TOOLS_EXPORTER_METRICS_H

#include <stdbool.h>
#include <stddef.h>

#include "observe.h"
#include "top/top.h"

struct metrics {
	char *text; /* NUL-terminated; the caller frees it */
	size_t length, room;
	bool failed; /* out of memory */
};

/* Add engines, whose peers are merged (observe_merge()). */
void metrics_engines(struct metrics *metrics, const struct wh_observation *engines, size_t count);
/* Add how many engines answered and did not. */
void metrics_observed(struct metrics *metrics, const struct observed *observed);
/* Add GPUs and NICs, without unknown values. */
void metrics_machine(struct metrics *metrics, const struct top_sample *sample);

/* Add HELP and TYPE of a family; add text. */
void metrics_family(struct metrics *metrics, const char *name, const char *type, const char *help);
void metrics_put(struct metrics *metrics, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Escape a text for the value of a label. */
void metrics_escape(const char *text, char *out, size_t size);

/* ---- HTTP ------------------------------------------------------------------------------------ */

struct metrics_server;

/* Answer GET /metrics at "127.0.0.1:9411" or "[::1]:9411" (port 0: a free one) with the metrics
 * that `make` adds, on a thread of its own. 0, or an exit code after a line on stderr. `address`:
 * where it listens, such as "http://127.0.0.1:9411/metrics". */
int metrics_serve(const char *where, void (*make)(void *arg, struct metrics *metrics), void *arg,
		  char *address, size_t size, struct metrics_server **out);
void metrics_stop(struct metrics_server *server); /* NULL is allowed */

#endif
