/* SPDX-License-Identifier: Apache-2.0 */
/* The routes of a batch, its estimate and its refusals, as explain.c and memory.c print them. */
#ifndef TOOLS_EXPLAIN_ROUTES_H
#define TOOLS_EXPLAIN_ROUTES_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/wherry.h>

#define EXPLAIN_ROUTES_MAX 8
#define EXPLAIN_ROUTE_TEXT 80 /* bytes for explain_route_text() */

struct explain_routes {
	struct wh_route list[EXPLAIN_ROUTES_MAX];
	size_t count;
	struct wh_estimate estimate; /* duration 0: unknown */
};

/* The first route that takes bytes; it may be refused for others. NULL: there is none. */
const struct wh_route *explain_route(const struct explain_routes *routes);

/* "shm", "cuda (kernel)"; "none" for NULL. */
void explain_route_text(const struct wh_route *route, char out[EXPLAIN_ROUTE_TEXT]);

/* Add to a JSON object the route taken: `transport` and `detail`; null: there is none. */
void explain_route_json(json_t *object, const struct explain_routes *routes);

/* Add `refused`: each refused transport with its reason. */
void explain_refused_json(json_t *object, const struct explain_routes *routes);

/* Add the estimate: `expected_us`, `expected_GBps`, `measured`, `source` ("measurement",
 * "traffic", "typical values"), `working_set_bytes`, `from_cache`; null: unknown. */
void explain_estimate_json(json_t *object, const struct explain_routes *routes);

/* The estimated speed; 0: unknown. */
double explain_speed(const struct wh_estimate *estimate);

/* A duration of an estimate in us; null if unknown (0). */
json_t *explain_us_json(uint64_t ns);

/* The estimate measured so little memory that the CPU's last cache holds it, on both sides. Then
 * larger memory is slower. */
bool explain_from_cache(const struct wh_estimate *estimate);

/* The warnings of explanations, each once. */
struct explain_warnings {
	char list[4][512];
	size_t count;
};

/* Add those of the batch's explanation that are not there yet. */
void explain_collect_warnings(struct wh_batch *batch, struct explain_warnings *out);
void explain_print_warnings(const struct explain_warnings *warnings);
/* An array, without the word "warning: ". */
json_t *explain_warnings_json(const struct explain_warnings *warnings);

/* What the explanation says of the CPU window onto the batch's memory; "": nothing. */
void explain_window(struct wh_batch *batch, char *line, size_t size);

#endif
