/* SPDX-License-Identifier: Apache-2.0 */
/* A plan's steps, added up for each pair of engines. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"
#include "util/error.h"

const char *plan_way_text(enum plan_way way)
{
	static const char *const texts[] = { "copy", "host", "network" };

	return texts[way];
}

static enum plan_way way_between(const struct wh_cluster *cluster, uint32_t from, uint32_t to)
{
	if (cluster->nodes[from].device == cluster->nodes[to].device)
		return PLAN_COPY;
	return cluster->nodes[from].host == cluster->nodes[to].host ? PLAN_HOST : PLAN_NETWORK;
}

static int order_by_ends(const void *left, const void *right)
{
	const struct plan_pair *a = left, *b = right;

	if (a->from != b->from)
		return a->from < b->from ? -1 : 1;
	return (a->to > b->to) - (a->to < b->to);
}

static int order_by_bytes(const void *left, const void *right)
{
	const struct plan_pair *a = left, *b = right;

	if (a->bytes != b->bytes)
		return a->bytes > b->bytes ? -1 : 1;
	return order_by_ends(left, right);
}

static uint64_t step_block_count(const struct wh_plan *plan, const struct wh_step *step)
{
	struct wh_strided strided;
	uint64_t blocks = 0;

	for (uint32_t piece = 0; piece < plan->cells[step->cell].pieces; piece++) {
		wh_step_blocks(plan, step, piece, 1, &strided);
		blocks += wh_strided_blocks(&strided);
	}
	return blocks;
}

int plan_summarize(const struct wh_plan *plan, const struct wh_simulation *simulation,
		   struct plan_summary *out)
{
	struct plan_pair *pairs = calloc((size_t)plan->step_count + 1, sizeof(*pairs));
	size_t count = 0;

	if (!pairs)
		return wh_fail(ENOMEM, "no memory to add up the plan");
	memset(out, 0, sizeof(*out));
	for (uint32_t i = 0; i < plan->step_count; i++) {
		const struct wh_step *step = &plan->steps[i];
		struct plan_pair *pair = &pairs[i];

		pair->from = wh_step_sender(plan, step);
		pair->to = wh_step_receiver(plan, step);
		pair->way = way_between(&plan->cluster, pair->from, pair->to);
		pair->bytes = plan->cells[step->cell].bytes;
		pair->steps = 1;
		pair->blocks = step_block_count(plan, step);
		pair->done = simulation->step_done[i];
		out->bytes[pair->way] += pair->bytes;
	}
	qsort(pairs, plan->step_count, sizeof(*pairs), order_by_ends);
	for (uint32_t i = 0; i < plan->step_count; i++) {
		struct plan_pair *last = count ? &pairs[count - 1] : NULL;

		if (!last || order_by_ends(last, &pairs[i])) {
			pairs[count++] = pairs[i];
			continue;
		}
		last->bytes += pairs[i].bytes;
		last->steps++;
		last->blocks += pairs[i].blocks;
		if (pairs[i].done > last->done)
			last->done = pairs[i].done;
	}
	qsort(pairs, count, sizeof(*pairs), order_by_bytes);
	out->pairs = pairs;
	out->count = count;
	return 0;
}
