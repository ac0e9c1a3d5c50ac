/* SPDX-License-Identifier: Apache-2.0 */
/* victim.c: start, use and check the engine that hostile-*.c attack */
#include "victim.h"

#define STEP (2 * VICTIM_REGION)
#define SEED 1
#define TOTAL (GUARD + 6 * STEP)

static uint64_t entry(unsigned int slot)
{
	return GUARD + (uint64_t)slot * STEP;
}

uint64_t victim_offset(const struct victim *v, uint64_t region)
{
	const uint64_t ids[] = { v->rw, v->ro, v->wo, v->none, v->dead };

	for (unsigned int slot = 0; slot < 5; slot++)
		if (ids[slot] == region)
			return entry(slot);
	fail_msg("no such region");
	return 0;
}

void victim_open(struct victim *v, unsigned int timeout_ms)
{
	static char setting[32];
	/* Other tests' observers (wherry top) would hold descriptors, which tests count. */
	struct child_options options = { .config = { setting, "observe=off" } };
	struct child *child;
	int gone;

	memset(v, 0, sizeof(*v));
	v->control = v->data = -1;
	snprintf(setting, sizeof(setting), "timeout=%u", timeout_ms * SCALE(1, 4));
	fixture_open_with(&v->f, &route_tcp4, 256 * KIB, NULL, &options);
	child = v->f.child;
	v->memory = child_memory(child, WH_MEMORY_SHARED, TOTAL);
	child_fill(child, v->memory, 0, TOTAL, 0, SEED);
	v->rw_region =
		child_region(child, v->memory, entry(0), VICTIM_REGION, "rw", ACCESS_BOTH, &v->rw);
	v->ro_region = child_region(child, v->memory, entry(1), VICTIM_REGION, "ro",
				    WH_ACCESS_READ | WH_ACCESS_LIST, &v->ro);
	child_region(child, v->memory, entry(2), VICTIM_REGION, "wo",
		     WH_ACCESS_WRITE | WH_ACCESS_LIST, &v->wo);
	child_region(child, v->memory, entry(3), VICTIM_REGION, "none", 0, &v->none);
	gone = child_region(child, v->memory, entry(4), VICTIM_REGION, "dead", ACCESS_BOTH,
			    &v->dead);
	want(0, child_unregister(child, gone));
	victim_greet(v);
}

void victim_greet(struct victim *v)
{
	if (v->control >= 0)
		close(v->control);
	v->control = raw_control(v->f.child->url, &v->welcome);
	want_true(v->control >= 0, "it does not take a new session");
	/* The well-behaved peer's "target", and the victim's published regions. */
	want(4, raw_count_regions(v->control));
}

void victim_greet_data(struct victim *v)
{
	if (v->data >= 0)
		close(v->data);
	v->data = raw_data(v->f.child->url, &v->welcome);
	want_true(v->data >= 0, "it does not take a data connection");
}

void victim_want_well(struct victim *v)
{
	size_t bad;

	want_true(child_alive(v->f.child), "it has died");
	bad = child_check(v->f.child, v->memory, 0, TOTAL, 0, SEED);
	want_true(bad == PATTERN_GOOD, "byte %zu of its memory has changed", bad);
	round_trip(&v->f, 64, 64, 100000, (uint64_t)now());
}

void victim_close(struct victim *v)
{
	victim_want_well(v);
	if (v->data >= 0)
		close(v->data);
	if (v->control >= 0)
		close(v->control);
	fixture_close(&v->f);
}
