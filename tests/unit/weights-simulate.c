/* SPDX-License-Identifier: Apache-2.0 */
/* Times that can be computed by hand: bytes over GB/s is ns. */
#include "unit.h"

#include <stdio.h>

#include <wherry/error.h>

#include "weights/plan.h"
#include "weights/simulate.h"

#define MB 1000000
#define LATENCY 10e3

/* 1 GB/s in each direction of a NIC, 4 GB/s of a GPU, 8 GB/s within one. */
static const struct wh_host slow = {
	.nics = 2,
	.nic_rate = 1,
	.nic_latency = LATENCY / 1e3,
	.gpu_rate = 4,
	.gpu_latency = 1,
	.copy_rate = 8,
	.memory_rate = 2,
	.engine_rate = 1,
};

/* An engine at host `host`, and the rows [begin, end) of the tensor of 8 rows that it has; its NIC
 * is its GPU's, modulo 2. */
struct place {
	unsigned host;
	int gpu;
	uint64_t begin, end;
};

static struct wh_layout *layout_of(const char *label, const struct place *places, unsigned count,
				   uint64_t row_bytes, double uplink)
{
	struct wh_layout *layout = wh_layout_new(label);
	struct wh_tensor tensor = { .type = "u8", .item = 1, .dims = 2, .shape = { 8, row_bytes } };
	struct wh_host host = slow;
	char name[32];

	host.uplink_rate = uplink;
	assert_int_equal(wh_layout_add_tensor(layout, "w", &tensor, NULL), 0);
	for (uint32_t i = 0; i < 12; i++) {
		snprintf(name, sizeof(name), "h%u", i);
		assert_int_equal(wh_layout_add_host(layout, name, &host, NULL), 0);
	}
	for (uint32_t i = 0; i < count; i++) {
		struct wh_layout_engine engine = { .host = places[i].host, .gpu = places[i].gpu };
		struct wh_slice_desc slice = { .engine = i, .region = i };

		engine.nic = places[i].gpu < 0 ? 0 : (uint32_t)places[i].gpu % 2;
		slice.begin[0] = places[i].begin;
		slice.end[0] = places[i].end;
		slice.end[1] = row_bytes;
		snprintf(name, sizeof(name), "%s%u", label, i);
		assert_int_equal(wh_layout_add_engine(layout, name, &engine, NULL), 0);
		assert_int_equal(wh_layout_add_region(layout, i, "r", 8 * row_bytes, NULL), 0);
		assert_int_equal(wh_layout_add_slice(layout, &slice, NULL), 0);
	}
	return layout;
}

struct outcome {
	double duration, busy;
	char busiest[64];
	uint32_t steps;
};

static struct outcome simulate(const struct place *sources, unsigned source_count,
			       const struct place *targets, unsigned target_count,
			       uint64_t row_bytes, double uplink)
{
	struct wh_layout *a = layout_of("a", sources, source_count, row_bytes, uplink);
	struct wh_layout *b = layout_of("b", targets, target_count, row_bytes, uplink);
	struct wh_plan_options options = { .piece = MB };
	struct wh_simulation simulation;
	struct outcome outcome;
	struct wh_plan *plan;

	if (wh_plan_new(a, b, &options, &plan))
		fail_msg("%s", wh_error_text());
	assert_int_equal(wh_simulate(plan, &simulation), 0);
	outcome.duration = simulation.duration;
	outcome.busy = simulation.busy;
	outcome.steps = plan->step_count;
	wh_link_text(&plan->cluster, simulation.busiest, outcome.busiest, sizeof(outcome.busiest));
	wh_simulation_free(&simulation);
	wh_plan_free(plan);
	wh_layout_free(a);
	wh_layout_free(b);
	return outcome;
}

static void assert_time(double is, double wanted)
{
	if (is < wanted - 0.5 || is > wanted + 0.5)
		fail_msg("%.3f ns, not %.3f", is, wanted);
}

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static void time__one_link(void **state)
{
	static const struct place from[] = { { 0, 0, 0, 8 } }, to[] = { { 1, 0, 0, 8 } };
	struct outcome outcome = simulate(from, 1, to, 1, MB, 0);

	(void)state;
	assert_time(outcome.duration, 8 * MB + LATENCY);
	assert_time(outcome.busy, 8 * MB);
	assert_string_equal(outcome.busiest, "NIC 0 of host 'h0', out");
}

/* Through GPUs' links, at 4 GB/s; and within a GPU, at 8 GB/s; from the host's memory to a GPU by
 * the slower of the two links. */
static void time__within_a_host(void **state)
{
	static const struct place from[] = { { 0, 0, 0, 8 } }, memory[] = { { 0, -1, 0, 8 } };
	static const struct place other[] = { { 0, 1, 0, 8 } }, same[] = { { 0, 0, 0, 8 } };

	(void)state;
	assert_time(simulate(from, 1, other, 1, MB, 0).duration, 2 * MB + 1000);
	assert_time(simulate(from, 1, same, 1, MB, 0).duration, MB + 1000);
	assert_time(simulate(memory, 1, same, 1, MB, 0).duration, 4 * MB + 1000);
}

/* Three hosts want all: a chain, in which each forwards what it has. Two pieces more than one. */
static void time__chain(void **state)
{
	static const struct place from[] = { { 0, 0, 0, 8 } };
	static const struct place to[] = { { 1, 0, 0, 8 }, { 2, 0, 0, 8 }, { 3, 0, 0, 8 } };
	struct outcome outcome = simulate(from, 1, to, COUNT(to), MB, 0);

	(void)state;
	assert_time(outcome.duration, (8 + 2) * MB + 3 * LATENCY);
	assert_time(outcome.busy, 8 * MB);
	assert_int_equal(outcome.steps, 3);
}

/* Few bytes: the source sends to everybody, one after the other, because forwarding would wait. */
static void time__star(void **state)
{
	static const struct place from[] = { { 0, 0, 0, 8 } };
	static const struct place to[] = { { 1, 0, 0, 8 }, { 2, 0, 0, 8 }, { 3, 0, 0, 8 },
					   { 4, 0, 0, 8 }, { 5, 0, 0, 8 }, { 6, 0, 0, 8 } };

	(void)state;
	assert_time(simulate(from, 1, to, COUNT(to), 1, 0).duration, 6 * 8 + LATENCY);
}

/* Each takes the halves of two hosts, by one NIC: its direction in is shared. */
static void time__shared_receiver(void **state)
{
	static const struct place from[] = { { 0, 0, 0, 4 }, { 1, 0, 4, 8 } };
	static const struct place to[] = { { 2, 0, 0, 8 } };
	struct outcome outcome = simulate(from, 2, to, 1, MB, 0);

	(void)state;
	assert_time(outcome.duration, 8 * MB + LATENCY);
	assert_string_equal(outcome.busiest, "NIC 0 of host 'h2', in");
}

/* Two GPUs with a NIC each, and then an uplink that lets no more through than one NIC. */
static void time__uplink(void **state)
{
	static const struct place from[] = { { 0, 0, 0, 4 }, { 0, 1, 4, 8 } };
	static const struct place to[] = { { 1, 0, 0, 4 }, { 2, 0, 4, 8 } };
	struct outcome outcome;

	(void)state;
	assert_time(simulate(from, 2, to, 2, MB, 0).duration, 4 * MB + LATENCY);
	outcome = simulate(from, 2, to, 2, MB, 1);
	assert_time(outcome.duration, 8 * MB + LATENCY);
	assert_string_equal(outcome.busiest, "uplink of host 'h0', out");
}

/* Two replicas hold all, and two hosts want all: each replica serves one. */
static void time__two_holders(void **state)
{
	static const struct place from[] = { { 0, 0, 0, 8 }, { 1, 0, 0, 8 } };
	static const struct place to[] = { { 2, 0, 0, 8 }, { 3, 0, 0, 8 } };

	(void)state;
	assert_time(simulate(from, 2, to, 2, MB, 0).duration, 8 * MB + LATENCY);
}

/* Two GPUs of a host want all: it crosses once, and goes on over the GPUs' links, a piece behind.
 */
static void time__one_copy_for_a_host(void **state)
{
	static const struct place from[] = { { 0, 0, 0, 8 } };
	static const struct place to[] = { { 1, 0, 0, 8 }, { 1, 1, 0, 8 } };
	struct outcome outcome = simulate(from, 1, to, 2, MB, 0);

	(void)state;
	assert_time(outcome.duration, 8 * MB + LATENCY + MB / 4 + 1000);
	assert_time(outcome.busy, 8 * MB);
}

/* 16 tensors of 16 MiB, all on each of `count` hosts behind a NIC of 1 Gbit/s. */
static struct wh_layout *layers_of(const char *label, uint32_t count)
{
	struct wh_layout *layout = wh_layout_new(label);
	struct wh_tensor tensor = { .type = "u8", .item = 1, .dims = 1, .shape = { 1 << 24 } };
	struct wh_host host = slow;
	char name[32];

	host.nics = 1;
	host.nic_rate = 0.125;
	for (uint32_t i = 0; i < 16; i++) {
		snprintf(name, sizeof(name), "w%u", i);
		assert_int_equal(wh_layout_add_tensor(layout, name, &tensor, NULL), 0);
	}
	for (uint32_t i = 0; i < count; i++) {
		snprintf(name, sizeof(name), "%s%u", label, i);
		assert_int_equal(wh_layout_add_host(layout, name, &host, NULL), 0);
		assert_int_equal(wh_layout_add_engine(layout, name,
						      &(struct wh_layout_engine){ .host = i },
						      NULL),
				 0);
		assert_int_equal(wh_layout_add_region(layout, i, "r", 16 << 24, NULL), 0);
		for (uint32_t j = 0; j < 16; j++) {
			struct wh_slice_desc slice = { .tensor = j, .engine = i, .region = i };

			slice.offset = (uint64_t)j << 24;
			slice.end[0] = 1 << 24;
			assert_int_equal(wh_layout_add_slice(layout, &slice, NULL), 0);
		}
	}
	return layout;
}

static double layers_time(uint32_t targets)
{
	struct wh_layout *a = layers_of("a", 1), *b = layers_of("b", targets);
	struct wh_simulation simulation;
	struct wh_plan *plan;
	double time;

	assert_int_equal(wh_plan_new(a, b, NULL, &plan), 0);
	assert_int_equal(wh_simulate(plan, &simulation), 0);
	time = simulation.duration;
	wh_simulation_free(&simulation);
	wh_plan_free(plan);
	wh_layout_free(a);
	wh_layout_free(b);
	return time;
}

/* Over slow links pieces are small, so that filling the chains takes a small part of the time. */
static void time__slow_chains(void **state)
{
	(void)state;
	assert_true(layers_time(8) < 1.1 * layers_time(1));
}

/* Within a host's memory one copies 1 GB/s, as many as want 2 GB/s together. */
static void time__within_memory(void **state)
{
	static const struct place from[] = { { 0, -1, 0, 8 } };
	static const struct place to[] = {
		{ 0, -1, 0, 8 }, { 0, -1, 0, 8 }, { 0, -1, 0, 8 }, { 0, -1, 0, 8 }
	};
	struct outcome outcome = simulate(from, 1, to, 1, MB, 0);

	(void)state;
	assert_time(outcome.duration, 8 * MB + 1000);
	assert_string_equal(outcome.busiest, "engine 'b0', copies");
	outcome = simulate(from, 1, to, 4, MB, 0);
	/* The last one's last piece has 1 GB/s for itself alone. */
	assert_time(outcome.duration, 16.5 * MB + 1000);
	assert_string_equal(outcome.busiest, "memory of host 'h0', copies");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(time__one_link),
		cmocka_unit_test(time__within_a_host),
		cmocka_unit_test(time__chain),
		cmocka_unit_test(time__star),
		cmocka_unit_test(time__shared_receiver),
		cmocka_unit_test(time__uplink),
		cmocka_unit_test(time__two_holders),
		cmocka_unit_test(time__one_copy_for_a_host),
		cmocka_unit_test(time__slow_chains),
		cmocka_unit_test(time__within_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
