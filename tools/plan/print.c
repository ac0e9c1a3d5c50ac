/* SPDX-License-Identifier: Apache-2.0 */
/* A plan as text and as JSON. */
#include <inttypes.h>
#include <stdio.h>

#include "command.h"
#include "output.h"
#include "plan/plan.h"

#define TEXT 32

static const char *bytes_text(char out[TEXT], uint64_t bytes)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	double value = (double)bytes;
	char number[16];
	size_t unit = 0;

	if (bytes < 1024) {
		snprintf(out, TEXT, "%" PRIu64 " B", bytes);
		return out;
	}
	for (; value >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0]); unit++)
		value /= 1024;
	snprintf(out, TEXT, "%s %s", format_number(number, sizeof(number), value), units[unit]);
	return out;
}

static const char *time_text(char out[TEXT], double ns)
{
	char number[16];

	if (ns >= 1e9)
		snprintf(out, TEXT, "%s s", format_number(number, sizeof(number), ns / 1e9));
	else if (ns >= 1e6)
		snprintf(out, TEXT, "%s ms", format_number(number, sizeof(number), ns / 1e6));
	else
		snprintf(out, TEXT, "%s us", format_number(number, sizeof(number), ns / 1e3));
	return out;
}

/* The most bytes of a piece: cells are cut into rows. */
static uint64_t piece_most(const struct wh_plan *plan)
{
	uint64_t most = 0;

	for (uint32_t i = 0; i < plan->cell_count; i++) {
		const struct wh_cell *cell = &plan->cells[i];
		uint64_t rows = wh_box_pieces_most(plan->numbers + cell->box,
						   plan->targets->tensors[cell->tensor].dims);
		uint64_t bytes = cell->bytes / rows * ((rows + cell->pieces - 1) / cell->pieces);

		most = bytes > most ? bytes : most;
	}
	return most;
}

static double share_busy(const struct plan_view *view)
{
	return view->simulation->busy / view->simulation->duration;
}

static double rate_of(const struct plan_view *view)
{
	return (double)view->plan->bytes / view->simulation->duration;
}

static void print_totals(const struct plan_view *view)
{
	const struct wh_plan *plan = view->plan;
	const struct wh_simulation *simulation = view->simulation;
	char text[3][TEXT], number[16], link[WH_LAYOUT_NAME + 64];

	printf("%s -> %s: %" PRIu32 " -> %" PRIu32 " engines, %" PRIu32 " -> %" PRIu32
	       " slices of %" PRIu32 " tensors\n",
	       plan->sources->label, plan->targets->label, plan->sources->engine_count,
	       plan->targets->engine_count, plan->sources->slice_count, plan->targets->slice_count,
	       plan->targets->tensor_count);
	printf("moves       %s: between hosts %s, ", bytes_text(text[0], plan->bytes),
	       bytes_text(text[1], view->summary->bytes[PLAN_NETWORK]));
	printf("within hosts %s, within a GPU or memory %s\n",
	       bytes_text(text[0], view->summary->bytes[PLAN_HOST]),
	       bytes_text(text[1], view->summary->bytes[PLAN_COPY]));
	printf("in          %" PRIu32 " steps of %" PRIu32 " cells, between %zu pairs of engines; "
	       "pieces of up to %s\n",
	       plan->step_count, plan->cell_count, view->summary->count,
	       bytes_text(text[0], piece_most(plan)));
	if (!plan->step_count)
		return;
	printf("expected    %s, %s GB/s over all (simulated, not measured)\n",
	       time_text(text[0], simulation->duration),
	       format_number(number, sizeof(number), rate_of(view)));
	printf("bottleneck  %s: ",
	       wh_link_text(&plan->cluster, simulation->busiest, link, sizeof(link)));
	printf("%s at %s GB/s take %s, ",
	       bytes_text(text[0], simulation->link_bytes[simulation->busiest]),
	       format_number(number, sizeof(number), plan->cluster.links[simulation->busiest].rate),
	       time_text(text[2], simulation->busy));
	printf("%.0f %% of the time\n", 100 * share_busy(view));
}

static void print_step(const struct plan_view *view, uint32_t index)
{
	const struct wh_plan *plan = view->plan;
	const struct wh_step *step = &plan->steps[index];
	const struct wh_cell *cell = &plan->cells[step->cell];
	const struct wh_tensor *tensor = &plan->targets->tensors[cell->tensor];
	char box[256], text[TEXT], before[16] = "-";

	if (step->before != WH_PLAN_FIRST)
		snprintf(before, sizeof(before), "%" PRIu32, step->before);
	printf("%-6" PRIu32 " %-6s %-16s %-16s %-10s %6" PRIu32 "  %s%s\n", index, before,
	       plan->cluster.nodes[wh_step_sender(plan, step)].name,
	       plan->cluster.nodes[wh_step_receiver(plan, step)].name,
	       bytes_text(text, cell->bytes), cell->pieces, tensor->name.text,
	       wh_box_text(plan->numbers + cell->box, tensor->dims, box, sizeof(box)));
}

void plan_print_text(const struct plan_view *view)
{
	const struct plan_summary *summary = view->summary;
	size_t most = summary->count < view->most ? summary->count : view->most;
	char text[2][TEXT];

	print_totals(view);
	if (most)
		printf("\n%-16s %-16s %-8s %-10s %8s %10s  %s\n", "FROM", "TO", "BY", "SIZE",
		       "STEPS", "BLOCKS", "DONE");
	for (size_t i = 0; i < most; i++) {
		const struct plan_pair *pair = &summary->pairs[i];

		printf("%-16s %-16s %-8s %-10s %8" PRIu64 " %10" PRIu64 "  %s\n",
		       view->plan->cluster.nodes[pair->from].name,
		       view->plan->cluster.nodes[pair->to].name, plan_way_text(pair->way),
		       bytes_text(text[0], pair->bytes), pair->steps, pair->blocks,
		       time_text(text[1], pair->done));
	}
	if (most < summary->count)
		printf("... and %zu pairs more (--all)\n", summary->count - most);
	if (!view->steps)
		return;
	printf("\n%-6s %-6s %-16s %-16s %-10s %6s  %s\n", "STEP", "AFTER", "FROM", "TO", "SIZE",
	       "PIECES", "PART");
	for (uint32_t i = 0; i < view->plan->step_count; i++)
		print_step(view, i);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *numbers_json(const uint64_t *numbers, uint32_t count)
{
	json_t *array = json_array();

	for (uint32_t i = 0; i < count; i++)
		json_array_append_new(array, json_integer((json_int_t)numbers[i]));
	return array;
}

/* One piece as blocks: what a struct wh_blocks_desc would say. */
static json_t *piece_json(const struct wh_plan *plan, const struct wh_step *step, uint32_t piece)
{
	struct wh_strided strided;

	wh_step_blocks(plan, step, piece, 1, &strided);
	return json_pack(
		"{s:I, s:I, s:I, s:o, s:o, s:o}", "block_bytes", (json_int_t)strided.block_length,
		"from_offset", (json_int_t)strided.from_offset, "to_offset",
		(json_int_t)strided.to_offset, "counts", numbers_json(strided.count, strided.dims),
		"from_strides", numbers_json(strided.from_stride, strided.dims), "to_strides",
		numbers_json(strided.to_stride, strided.dims));
}

static json_t *step_json(const struct plan_view *view, uint32_t index)
{
	const struct wh_plan *plan = view->plan;
	const struct wh_step *step = &plan->steps[index];
	const struct wh_cell *cell = &plan->cells[step->cell];
	const struct wh_tensor *tensor = &plan->targets->tensors[cell->tensor];
	const struct wh_slice *to = &plan->targets->slices[step->to], *from;
	const uint64_t *box = plan->numbers + cell->box;
	const struct wh_layout *layout;
	json_t *pieces = json_array();

	from = wh_step_from(plan, step, &layout);
	for (uint32_t piece = 0; piece < cell->pieces; piece++)
		json_array_append_new(pieces, piece_json(plan, step, piece));
	return json_pack("{s:o, s:s, s:o, s:o, s:s, s:s, s:b, s:s, s:s, s:I, s:f, s:o}", "after",
			 step->before == WH_PLAN_FIRST ? json_null() :
							 json_integer((json_int_t)step->before),
			 "tensor", tensor->name.text, "begin", numbers_json(box, tensor->dims),
			 "end", numbers_json(box + tensor->dims, tensor->dims), "from",
			 layout->engines[from->engine].name.text, "from_region",
			 layout->regions[from->region].name.text, "from_target",
			 step->before != WH_PLAN_FIRST, "to",
			 plan->targets->engines[to->engine].name.text, "to_region",
			 plan->targets->regions[to->region].name.text, "size_bytes",
			 (json_int_t)cell->bytes, "done_us",
			 view->simulation->step_done[index] / 1e3, "pieces", pieces);
}

static json_t *pair_json(const struct plan_view *view, const struct plan_pair *pair)
{
	return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:f}", "from",
			 view->plan->cluster.nodes[pair->from].name, "to",
			 view->plan->cluster.nodes[pair->to].name, "by", plan_way_text(pair->way),
			 "size_bytes", (json_int_t)pair->bytes, "steps", (json_int_t)pair->steps,
			 "blocks", (json_int_t)pair->blocks, "done_us", pair->done / 1e3);
}

static json_t *bottleneck_json(const struct plan_view *view)
{
	const struct wh_simulation *simulation = view->simulation;
	char link[WH_LAYOUT_NAME + 64];

	if (!view->plan->step_count)
		return json_null();
	wh_link_text(&view->plan->cluster, simulation->busiest, link, sizeof(link));
	return json_pack("{s:s, s:I, s:f, s:f, s:f}", "link", link, "size_bytes",
			 (json_int_t)simulation->link_bytes[simulation->busiest], "GBps",
			 view->plan->cluster.links[simulation->busiest].rate, "busy_us",
			 simulation->busy / 1e3, "share", share_busy(view));
}

int plan_print_json(const struct plan_view *view)
{
	const struct plan_summary *summary = view->summary;
	size_t most = summary->count < view->most ? summary->count : view->most;
	const struct wh_plan *plan = view->plan;
	json_t *object = output_new(), *pairs = json_array(), *steps;

	json_object_set_new(object, "measured", json_false());
	json_object_set_new(object, "expected_us", json_real(view->simulation->duration / 1e3));
	json_object_set_new(object, "bottleneck", bottleneck_json(view));
	json_object_set_new(object, "size_bytes", json_integer((json_int_t)plan->bytes));
	for (int way = PLAN_COPY; way <= PLAN_NETWORK; way++) {
		char key[32];

		snprintf(key, sizeof(key), "%s_bytes", plan_way_text((enum plan_way)way));
		json_object_set_new(object, key, json_integer((json_int_t)summary->bytes[way]));
	}
	json_object_set_new(object, "cells", json_integer(plan->cell_count));
	json_object_set_new(object, "piece_bytes", json_integer((json_int_t)piece_most(plan)));
	json_object_set_new(object, "step_count", json_integer(plan->step_count));
	json_object_set_new(object, "pair_count", json_integer((json_int_t)summary->count));
	for (size_t i = 0; i < most; i++)
		json_array_append_new(pairs, pair_json(view, &summary->pairs[i]));
	json_object_set_new(object, "pairs", pairs);
	if (view->steps) {
		steps = json_array();
		for (uint32_t i = 0; i < plan->step_count; i++)
			json_array_append_new(steps, step_json(view, i));
		json_object_set_new(object, "steps", steps);
	}
	return output_print(object);
}
