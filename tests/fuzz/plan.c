/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts of `wherry plan`: a list of two is planned and simulated as well. What is taken lies in
 * its tensors and regions. */
#include "../../tools/plan/read.c"

#include "fuzz.h"
#include "weights/simulate.h"

/* So that cells are not cut further: shapes may be large. */
#define LARGE (UINT64_C(1) << 62)

static void check_layout(const struct wh_layout *layout)
{
	for (uint32_t i = 0; i < layout->slice_count; i++) {
		const struct wh_slice *slice = &layout->slices[i];
		const struct wh_tensor *tensor = &layout->tensors[slice->tensor];
		const uint64_t *box = wh_slice_box(layout, slice);
		uint64_t strides[WH_LAYOUT_DIMS], last = slice->offset + tensor->item;

		wh_slice_strides(layout, slice, strides);
		for (uint32_t j = 0; j < tensor->dims; j++) {
			check(box[j] < box[tensor->dims + j]);
			check(box[tensor->dims + j] <= tensor->shape[j]);
			last += (box[tensor->dims + j] - box[j] - 1) * strides[j];
		}
		check(last <= layout->regions[slice->region].bytes);
		check(layout->regions[slice->region].name.owner == slice->engine);
	}
}

static void check_step(const struct wh_plan *plan, const struct wh_step *step)
{
	const struct wh_layout *layout;
	const struct wh_slice *from = wh_step_from(plan, step, &layout);
	const struct wh_slice *to = &plan->targets->slices[step->to];
	uint64_t from_at, to_at, blocks;
	struct wh_strided strided;

	wh_step_blocks(plan, step, plan->cells[step->cell].pieces - 1, 1, &strided);
	blocks = wh_strided_blocks(&strided);
	wh_strided_block(&strided, blocks - 1, &from_at, &to_at);
	check(blocks * strided.block_length <= plan->cells[step->cell].bytes);
	check(from_at + strided.block_length <= layout->regions[from->region].bytes);
	check(to_at + strided.block_length <= plan->targets->regions[to->region].bytes);
}

static struct wh_layout *read_layout(json_t *object, const char *label)
{
	struct wh_layout *layout = NULL;
	int error = plan_layout_from_json(object, label, &layout);

	check(!error == (layout != NULL));
	check(!error || *wh_fail_text());
	check(!strchr(wh_fail_text(), '\n'));
	if (layout)
		check_layout(layout);
	return layout;
}

static void try_plan(const struct wh_layout *a, const struct wh_layout *b)
{
	struct wh_plan_options options = { .chunk = LARGE, .piece = LARGE / 4 };
	struct wh_simulation simulation;
	struct wh_plan *plan;

	if (a->slice_count + b->slice_count > 60 || wh_plan_new(a, b, &options, &plan))
		return;
	for (uint32_t i = 0; i < plan->step_count; i++)
		check_step(plan, &plan->steps[i]);
	check(!wh_simulate(plan, &simulation));
	check(simulation.duration >= simulation.busy);
	wh_simulation_free(&simulation);
	wh_plan_free(plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	json_t *object = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL);
	bool pair = json_is_array(object) && json_array_size(object) == 2;
	struct wh_layout *a =
		object ? read_layout(pair ? json_array_get(object, 0) : object, "A") : NULL;
	struct wh_layout *b = pair ? read_layout(json_array_get(object, 1), "B") : NULL;

	if (a && b)
		try_plan(a, b);
	wh_layout_free(a);
	wh_layout_free(b);
	json_decref(object);
	return 0;
}
