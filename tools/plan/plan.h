/* SPDX-License-Identifier: Apache-2.0 */
/* wherry plan: layouts as JSON, and plans as text and as JSON. */
#ifndef TOOLS_PLAN_PLAN_H
#define TOOLS_PLAN_PLAN_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "weights/plan.h"
#include "weights/simulate.h"

/* ---- read.c ------------------------------------------------------------------------------------
 */

/* Read a layout (docs/weights.md has the format). `label` is for messages. 0, or a negative errno
 * with wh_fail_text(): one line, which names the tensor and the engine. */
int plan_layout_from_json(json_t *object, const char *label, struct wh_layout **out);
int plan_layout_read(const char *path, struct wh_layout **out);

/* Parse one slice, "w[0:4, :] @ region + 4096 / 512, 2", of an engine. 0, or a negative errno. */
int plan_slice_parse(const struct wh_layout *layout, uint32_t engine, const char *text,
		     struct wh_slice_desc *out);

/* ---- pairs.c -----------------------------------------------------------------------------------
 */

enum plan_way { PLAN_COPY, PLAN_HOST, PLAN_NETWORK }; /* within a device, a host; between hosts */

/* What one engine sends to another. */
struct plan_pair {
	uint32_t from, to; /* nodes */
	enum plan_way way;
	uint64_t bytes, steps, blocks;
	double done; /* ns, when the last step is done */
};

struct plan_summary {
	struct plan_pair *pairs; /* those with the most bytes first */
	size_t count;
	uint64_t bytes[PLAN_NETWORK + 1]; /* by way */
};

const char *plan_way_text(enum plan_way way);

/* 0 or -ENOMEM. Free `pairs`. */
int plan_summarize(const struct wh_plan *plan, const struct wh_simulation *simulation,
		   struct plan_summary *out);

/* ---- print.c -----------------------------------------------------------------------------------
 */

struct plan_view {
	const struct wh_plan *plan;
	const struct wh_simulation *simulation;
	const struct plan_summary *summary;
	size_t most; /* pairs to print */
	bool steps; /* and each step */
};

void plan_print_text(const struct plan_view *view);
/* Returns an exit code. */
int plan_print_json(const struct plan_view *view);

#endif
