/* SPDX-License-Identifier: Apache-2.0 */
/* Random pairs of layouts: the plan is executed on bytes, and every byte is held against what
 * slicing gives. */
#include "unit.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include <wherry/error.h>

#include "../layouts.h"
#include "weights/plan.h"
#include "weights/simulate.h"

#define PAIRS 10000

static uint64_t seed = 0x2545f4914f6cdd1d;

static uint64_t below(uint64_t limit)
{
	return next_random(&seed) % limit;
}

/* ---- executing --------------------------------------------------------------------------------
 */

/* `written`: 0 no slice has it, 1 is to be written, 2 is there; sources are 2 from the start. */
struct memory {
	uint8_t bytes[LAYOUTS_ENGINES][LAYOUTS_REGION], state[LAYOUTS_ENGINES][LAYOUTS_REGION];
};
static struct memory memories[2];

struct element_call {
	const struct wh_layout *layout;
	const struct wh_slice *slice;
	uint8_t *bytes, *state;
};

static void fill(void *arg, uint64_t element, uint64_t offset)
{
	struct element_call *call = arg;

	for (uint32_t i = 0; i < call->layout->tensors[call->slice->tensor].item; i++) {
		call->bytes[offset + i] = layouts_value(call->slice->tensor, element, i, 0);
		call->state[offset + i] = 2;
	}
}

static void expect(void *arg, uint64_t element, uint64_t offset)
{
	struct element_call *call = arg;

	(void)element;
	for (uint32_t i = 0; i < call->layout->tensors[call->slice->tensor].item; i++) {
		assert_int_equal(call->state[offset + i], 0);
		call->state[offset + i] = 1;
	}
}

static void compare(void *arg, uint64_t element, uint64_t offset)
{
	struct element_call *call = arg;

	for (uint32_t i = 0; i < call->layout->tensors[call->slice->tensor].item; i++) {
		assert_int_equal(call->state[offset + i], 2);
		assert_int_equal(call->bytes[offset + i],
				 layouts_value(call->slice->tensor, element, i, 0));
	}
}

static void each_slice(const struct wh_layout *layout, struct memory *memory,
		       void (*call)(void *arg, uint64_t element, uint64_t offset))
{
	for (uint32_t i = 0; i < layout->slice_count; i++) {
		const struct wh_slice *slice = &layout->slices[i];
		struct element_call arg = { layout, slice, memory->bytes[slice->engine],
					    memory->state[slice->engine] };

		layouts_each_element(layout, slice, call, &arg);
	}
}

static void run_step(const struct wh_plan *plan, const struct wh_step *step)
{
	const struct wh_layout *layout;
	const struct wh_slice *from = wh_step_from(plan, step, &layout);
	struct memory *source = &memories[layout == plan->targets];
	uint32_t to = plan->targets->slices[step->to].engine;
	uint64_t from_at, to_at, moved = 0;
	uint32_t pieces = plan->cells[step->cell].pieces, count;
	struct wh_strided strided;

	/* Some pieces at a time, as members read them. */
	for (uint32_t piece = 0; piece < pieces; piece += count) {
		count = 1 + (uint32_t)below(pieces - piece);
		wh_step_blocks(plan, step, piece, count, &strided);
		for (uint64_t i = 0; i < wh_strided_blocks(&strided); i++) {
			wh_strided_block(&strided, i, &from_at, &to_at);
			assert_true(from_at + strided.block_length <= LAYOUTS_REGION);
			assert_true(to_at + strided.block_length <= LAYOUTS_REGION);
			for (uint64_t j = 0; j < strided.block_length; j++) {
				/* It has the byte, and writes it for the first time. */
				assert_int_equal(source->state[from->engine][from_at + j], 2);
				assert_int_equal(memories[1].state[to][to_at + j], 1);
				memories[1].state[to][to_at + j] = 2;
				memories[1].bytes[to][to_at + j] =
					source->bytes[from->engine][from_at + j];
			}
			moved += strided.block_length;
		}
	}
	assert_int_equal(moved, plan->cells[step->cell].bytes);
}

static bool box_has(const uint64_t *outer, const uint64_t *inner, uint32_t dims)
{
	for (uint32_t i = 0; i < dims; i++)
		if (inner[i] < outer[i] || inner[dims + i] > outer[dims + i])
			return false;
	return true;
}

/* Cells do not overlap, so that a byte crosses once if its cell does: once for each host that wants
 * it, and never to a host that holds it. */
static void check_crossings(const struct wh_plan *plan)
{
	uint8_t *crossed = calloc((size_t)plan->cell_count * LAYOUTS_HOSTS + 1, 1);

	assert_non_null(crossed);
	for (uint32_t i = 0; i < plan->step_count; i++) {
		const struct wh_step *step = &plan->steps[i];
		const struct wh_node *from = &plan->cluster.nodes[wh_step_sender(plan, step)];
		const struct wh_node *to = &plan->cluster.nodes[wh_step_receiver(plan, step)];

		if (from->host != to->host)
			assert_int_equal(crossed[step->cell * LAYOUTS_HOSTS + to->host]++, 0);
		if (step->before == WH_PLAN_FIRST)
			continue;
		assert_true(step->before < i);
		assert_int_equal(plan->steps[step->before].cell, step->cell);
		assert_int_equal(plan->steps[step->before].to, step->from);
	}
	for (uint32_t i = 0; i < plan->cell_count; i++) {
		const struct wh_cell *cell = &plan->cells[i];
		const struct wh_tensor *tensor = &plan->targets->tensors[cell->tensor];

		for (uint32_t j = 0; j < plan->sources->slice_count; j++) {
			const struct wh_slice *slice = &plan->sources->slices[j];
			uint32_t node = plan->cluster.of_engine[0][slice->engine];

			if (!strcmp(plan->sources->tensors[slice->tensor].name.text,
				    tensor->name.text) &&
			    box_has(wh_slice_box(plan->sources, slice), plan->numbers + cell->box,
				    tensor->dims))
				assert_int_equal(
					crossed[i * LAYOUTS_HOSTS + plan->cluster.nodes[node].host],
					0);
		}
		for (uint32_t j = 0; j < i; j++) {
			const uint64_t *a = plan->numbers + cell->box;
			const uint64_t *b = plan->numbers + plan->cells[j].box;
			bool apart = plan->cells[j].tensor != cell->tensor;

			for (uint32_t k = 0; k < tensor->dims && !apart; k++)
				apart = a[k] >= b[tensor->dims + k] || b[k] >= a[tensor->dims + k];
			assert_true(apart);
		}
	}
	free(crossed);
}

static void check_simulation(const struct wh_plan *plan)
{
	struct wh_simulation simulation;

	assert_int_equal(wh_simulate(plan, &simulation), 0);
	for (uint32_t i = 0; i < plan->step_count; i++) {
		assert_true(simulation.step_done[i] > 0);
		assert_true(simulation.step_done[i] <= simulation.duration);
		if (plan->steps[i].before != WH_PLAN_FIRST)
			assert_true(simulation.step_done[i] >
				    simulation.step_done[plan->steps[i].before]);
	}
	assert_true(simulation.duration >= simulation.busy);
	wh_simulation_free(&simulation);
}

static void check_plan(struct wh_layout *const layouts[2], const struct wh_plan_options *options)
{
	struct wh_plan *plan;
	int error = wh_plan_new(layouts[0], layouts[1], options, &plan);

	if (error)
		fail_msg("%s", wh_error_text());
	memset(memories, 0, sizeof(memories));
	each_slice(layouts[0], &memories[0], fill);
	each_slice(layouts[1], &memories[1], expect);
	for (uint32_t i = 0; i < plan->step_count; i++)
		run_step(plan, &plan->steps[i]);
	each_slice(layouts[1], &memories[1], compare);
	check_crossings(plan);
	check_simulation(plan);
	wh_plan_free(plan);
}

static void plan__random_pairs(void **state)
{
	unsigned done = 0, large = 0;

	(void)state;
	while (done < PAIRS) {
		struct wh_plan_options options = { .chunk = 1 + below(4000),
						   .piece = 1 + below(500) };
		struct wh_layout *layouts[2];

		layouts_random_pair(&seed, layouts);
		if (!layouts[0])
			continue;
		check_plan(layouts, done % 4 ? &options : NULL);
		large += layouts[1]->slice_count > 8;
		done++;
		wh_layout_free(layouts[0]);
		wh_layout_free(layouts[1]);
	}
	/* They are not all trivial. */
	assert_true(large > PAIRS / 4);
}

/* ---- what does not fit --------------------------------------------------------------------------
 */

/* A layout of one host, one engine and one tensor, of which it has rows [begin, end). */
static struct wh_layout *small(const char *label, const char *engine, const char *region,
			       const char *type, uint64_t rows, uint64_t begin, uint64_t end)
{
	struct wh_layout *layout = wh_layout_new(label);
	struct wh_tensor tensor = { .item = wh_layout_item_bytes(type), .dims = 1 };
	struct wh_slice_desc slice = { .begin = { begin }, .end = { end } };
	struct wh_layout_engine desc = { .gpu = 0 };

	snprintf(tensor.type, sizeof(tensor.type), "%s", type);
	tensor.shape[0] = rows;
	assert_int_equal(wh_layout_add_host(layout, engine, &wh_host_typical, NULL), 0);
	assert_int_equal(wh_layout_add_engine(layout, engine, &desc, NULL), 0);
	assert_int_equal(wh_layout_add_region(layout, 0, region, 1 << 20, NULL), 0);
	assert_int_equal(wh_layout_add_tensor(layout, "w", &tensor, NULL), 0);
	assert_int_equal(wh_layout_add_slice(layout, &slice, NULL), 0);
	return layout;
}

static void check_refused(struct wh_layout *a, struct wh_layout *b, int error, const char *text)
{
	struct wh_plan *plan = NULL;

	assert_int_equal(wh_plan_new(a, b, NULL, &plan), error);
	assert_null(plan);
	assert_string_equal(wh_error_text(), text);
	wh_layout_free(a);
	wh_layout_free(b);
}

static void plan__refused(void **state)
{
	struct wh_slice_desc again = { .offset = 8, .begin = { 0 }, .end = { 2 } };
	struct wh_host host = wh_host_typical;
	struct wh_layout *other;

	(void)state;
	check_refused(small("A", "x", "r", "f32", 8, 0, 8), small("B", "y", "r", "bf16", 8, 0, 8),
		      -EINVAL, "tensor 'w': A has f32 of 4 bytes [8], B has bf16 of 2 bytes [8]");
	check_refused(small("A", "x", "r", "f32", 8, 0, 8), small("B", "y", "r", "f32", 9, 0, 8),
		      -EINVAL, "tensor 'w': A has f32 of 4 bytes [8], B has f32 of 4 bytes [9]");
	check_refused(small("A", "x", "r", "f32", 8, 0, 5), small("B", "y", "r", "f32", 8, 3, 8),
		      -ENOENT,
		      "tensor 'w' [5:8]: engine 'y' of B wants it, no engine of A holds it");
	check_refused(small("A", "x", "r", "f32", 8, 0, 8), small("B", "x", "r", "f32", 8, 0, 8),
		      -EINVAL,
		      "region 'r' of engine 'x' is in A and in B: it cannot be read and written at "
		      "once");
	other = small("B", "y", "r", "f32", 8, 0, 8);
	assert_int_equal(wh_layout_add_slice(other, &again, NULL), 0);
	check_refused(small("A", "x", "r", "f32", 8, 0, 8), other, -EINVAL,
		      "B: engine 'y': tensors 'w' at 0 and 'w' at 8 of region 'r' overlap");
	other = wh_layout_new("B");
	host.nic_rate = 1;
	assert_int_equal(wh_layout_add_host(other, "x", &host, NULL), 0);
	check_refused(
		small("A", "x", "r", "f32", 8, 0, 8), other, -EINVAL,
		"host 'x': A and B say different things of its NICs, rates or latencies (8 NICs "
		"of 48 GB/s, 8 of 1)");
	other = small("B", "y", "new", "f32", 8, 0, 8);
	assert_int_equal(
		wh_layout_add_engine(other, "x", &(struct wh_layout_engine){ .gpu = 3 }, NULL), 0);
	check_refused(small("A", "x", "r", "f32", 8, 0, 8), other, -EINVAL,
		      "engine 'x' is at host 'x', GPU 0, NIC 0 in A, at 'y', 3, 0 in B");
}

/* Nothing is wanted: there is a plan, without steps. */
static void plan__nothing(void **state)
{
	struct wh_layout *a = small("A", "x", "r", "f32", 8, 0, 8), *b = wh_layout_new("B");
	struct wh_simulation simulation;
	struct wh_plan *plan;

	(void)state;
	assert_int_equal(wh_plan_new(a, b, NULL, &plan), 0);
	assert_int_equal(plan->step_count, 0);
	assert_int_equal(wh_simulate(plan, &simulation), 0);
	assert_true(simulation.duration == 0);
	wh_simulation_free(&simulation);
	wh_plan_free(plan);
	wh_layout_free(a);
	wh_layout_free(b);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(plan__random_pairs),
		cmocka_unit_test(plan__refused),
		cmocka_unit_test(plan__nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
