/* SPDX-License-Identifier: Apache-2.0 */
/* Which lines of rdma carry what, which of them are near, and when staging helps. */
#include "unit.h"

#include <errno.h>

#include "transport/rdma/rdma.h"

#define LINES 3

/* Lines, a region at each end, and how the NICs at both ends of each line know them. */
struct scene {
	struct rdma_peer rdma;
	struct rdma_endpoint endpoints[LINES];
	struct rdma_nic nics[LINES];
	struct rdma_mrs mrs;
	struct rdma_memory memory[LINES];
	struct rdma_keys *keys[LINES];
	struct wh_region local;
	struct wh_remote_region remote;
};

static void scene_open(struct scene *s)
{
	*s = (struct scene){ .rdma.endpoint_count = LINES };
	s->local.entry.kind = WH_MEMORY_DEVICE;
	for (unsigned i = 0; i < LINES; i++) {
		struct rdma_endpoint *endpoint = &s->endpoints[i];

		s->keys[i] = calloc(1, sizeof(*s->keys[i]));
		assert_non_null(s->keys[i]);
		s->keys[i]->nic = endpoint->nic = 10 + i;
		s->keys[i]->next = atomic_load(&s->remote.rdma);
		atomic_store(&s->remote.rdma, s->keys[i]);
		s->memory[i] = (struct rdma_memory){ .nic = &s->nics[i],
						     .mrs = &s->mrs,
						     .writable = true,
						     .next = atomic_load(&s->local.rdma) };
		atomic_store(&s->local.rdma, &s->memory[i]);
		endpoint->here.nic = &s->nics[i];
		endpoint->rail = &endpoint->here;
		endpoint->state = RDMA_READY;
		endpoint->index = i;
		s->rdma.endpoints[i] = endpoint;
	}
}

static void scene_close(struct scene *s)
{
	for (unsigned i = 0; i < LINES; i++)
		free(s->keys[i]);
}

static void want_carriers(struct scene *s, uint32_t op, uint32_t able, uint32_t near)
{
	uint32_t seen;

	assert_int_equal(rdma_carriers(&s->rdma, &s->local, &s->remote, op, &seen), able);
	assert_int_equal(seen, near);
}

static void carriers__near_at_both_ends(void **state)
{
	static const struct {
		uint8_t ours[LINES], theirs[LINES];
		uint32_t near;
	} cases[] = {
		{ { 0, 0, 0 }, { 0, 0, 0 }, 7 },
		{ { 2, 3, 6 }, { 0, 0, 0 }, 1 },
		{ { 0, 0, 0 }, { 6, 2, 2 }, 6 }, /* the owner's end alone */
		{ { 2, 6, 6 }, { 6, 2, 6 }, 3 }, /* near at one end each */
		{ { 2, 2, 6 }, { 6, 2, 2 }, 2 }, /* near at both */
		{ { 255, 255, 254 }, { 255, 255, 255 }, 4 },
	};
	struct scene s;

	(void)state;
	scene_open(&s);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		for (unsigned n = 0; n < LINES; n++) {
			s.memory[n].distance = cases[i].ours[n];
			s.keys[n]->distance = cases[i].theirs[n];
		}
		want_carriers(&s, WH_WRITE, 7, cases[i].near);
	}
	scene_close(&s);
}

static void carriers__that_reach(void **state)
{
	struct scene s;

	(void)state;
	scene_open(&s);
	s.keys[0]->distance = s.keys[1]->distance = 3;
	s.endpoints[2].state = RDMA_BREAKING; /* the nearest is not there: the next ones */
	want_carriers(&s, WH_WRITE, 3, 3);
	s.endpoints[2].state = RDMA_READY;
	s.keys[2]->error = -EPERM;
	want_carriers(&s, WH_WRITE, 3, 3);
	s.keys[2]->error = 0;
	s.memory[2].writable = false;
	want_carriers(&s, WH_WRITE, 7, 4);
	want_carriers(&s, WH_READ, 3, 3);
	s.memory[2].mrs = NULL;
	want_carriers(&s, WH_WRITE, 3, 3);
	scene_close(&s);
}

enum known { REACHED, STAGED, REFUSED };

static unsigned staged(struct scene *s, const enum known ours[LINES],
		       const enum known theirs[LINES])
{
	struct rdma_sides sides = { .ours = 7, .theirs = 7 };

	for (unsigned i = 0; i < LINES; i++) {
		s->memory[i].mrs = ours[i] == REACHED ? &s->mrs : NULL;
		s->memory[i].nic = ours[i] == REFUSED ? NULL : &s->nics[i];
		s->keys[i]->error = theirs[i] == REACHED ? 0 :
				    theirs[i] == STAGED  ? -WH_RDMA_STAGED_BY_OWNER :
							   -EOPNOTSUPP;
	}
	rdma_sides_add(&s->rdma, 7, &s->local, &s->remote, WH_WRITE, &sides);
	return rdma_sides_staged(&sides);
}

static void sides__staged(void **state)
{
	static const struct {
		enum known ours[LINES], theirs[LINES];
		unsigned wanted;
	} cases[] = {
		{ { REACHED, REACHED, REACHED }, { REACHED, REACHED, REACHED }, 0 },
		/* one is enough */
		{ { REACHED, STAGED, STAGED }, { REACHED, STAGED, STAGED }, 0 },
		{ { STAGED, STAGED, STAGED }, { REFUSED, REACHED, REFUSED }, RDMA_STAGE_OURS },
		{ { REACHED, REACHED, REACHED }, { STAGED, STAGED, STAGED }, RDMA_STAGE_THEIRS },
		{ { STAGED, STAGED, STAGED },
		  { STAGED, STAGED, REFUSED },
		  RDMA_STAGE_OURS | RDMA_STAGE_THEIRS },
		/* No line for both: ours takes the fewer messages. */
		{ { REACHED, STAGED, STAGED }, { STAGED, REACHED, STAGED }, RDMA_STAGE_OURS },
		{ { REACHED, REFUSED, REFUSED }, { STAGED, REACHED, STAGED }, RDMA_STAGE_THEIRS },
		{ { REFUSED, REFUSED, REFUSED }, { STAGED, STAGED, STAGED }, 0 },
		{ { STAGED, STAGED, STAGED }, { REFUSED, REFUSED, REFUSED }, 0 },
	};
	struct scene s;

	(void)state;
	scene_open(&s);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(staged(&s, cases[i].ours, cases[i].theirs), cases[i].wanted);
	scene_close(&s);
}

/* Several regions in one piece: what any of them wants. */
static void sides__of_several(void **state)
{
	struct rdma_sides sides = { .ours = 7, .theirs = 7 };
	struct wh_region host = { .entry.kind = WH_MEMORY_PAGEABLE };
	struct scene s;

	(void)state;
	scene_open(&s);
	for (unsigned i = 0; i < LINES; i++)
		s.keys[i]->error = -WH_RDMA_STAGED_BY_OWNER;
	rdma_sides_add(&s.rdma, 7, &s.local, &s.remote, WH_WRITE, &sides);
	assert_int_equal(rdma_sides_staged(&sides), RDMA_STAGE_THEIRS);
	for (unsigned i = 0; i < LINES; i++) {
		s.keys[i]->error = 0;
		s.memory[i].mrs = NULL;
	}
	rdma_sides_add(&s.rdma, 7, &s.local, &s.remote, WH_WRITE, &sides);
	assert_int_equal(rdma_sides_staged(&sides), RDMA_STAGE_OURS | RDMA_STAGE_THEIRS);
	/* Host memory of which nothing is known is good for a line that is yet to come, no other.
	 */
	s.endpoints[1].state = RDMA_CONNECTING;
	sides = (struct rdma_sides){ .ours = 7, .theirs = 7 };
	rdma_sides_add(&s.rdma, 7, &host, &s.remote, WH_WRITE, &sides);
	assert_int_equal(sides.ours, 2);
	scene_close(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(carriers__near_at_both_ends),
		cmocka_unit_test(carriers__that_reach),
		cmocka_unit_test(sides__staged),
		cmocka_unit_test(sides__of_several),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
