/* SPDX-License-Identifier: Apache-2.0 */
/* transport-rdma.c: the choice of endpoints by state, reach and distance, and when staging helps */
#include "unit.h"

#include <errno.h>

#include "transport/rdma/flow.h"
#include "transport/rdma/rdma.h"

#define ENDPOINTS 3

/* Endpoints, a region on each side, and what the NICs of both sides know of it. */
struct scene {
	struct rdma_peer rdma;
	struct rdma_endpoint endpoints[ENDPOINTS];
	struct rdma_nic nics[ENDPOINTS];
	struct rdma_mrs mrs;
	struct rdma_memory memory[ENDPOINTS];
	struct rdma_keys *keys[ENDPOINTS];
	struct wh_region local;
	struct wh_remote_region remote;
};

static void scene_open(struct scene *s)
{
	*s = (struct scene){ .rdma.endpoint_count = ENDPOINTS };
	s->local.entry.kind = WH_MEMORY_DEVICE;
	for (unsigned i = 0; i < ENDPOINTS; i++) {
		struct rdma_endpoint *endpoint = &s->endpoints[i];

		s->keys[i] = calloc(1, sizeof(*s->keys[i]));
		assert_non_null(s->keys[i]);
		s->keys[i]->nic = endpoint->remote_nic = 10 + i;
		s->keys[i]->next = atomic_load(&s->remote.transport[WH_TRANSPORT_RDMA]);
		atomic_store(&s->remote.transport[WH_TRANSPORT_RDMA], s->keys[i]);
		s->memory[i] = (struct rdma_memory){
			.nic = &s->nics[i],
			.mrs = &s->mrs,
			.writable = true,
			.next = atomic_load(&s->local.transport[WH_TRANSPORT_RDMA])
		};
		atomic_store(&s->local.transport[WH_TRANSPORT_RDMA], &s->memory[i]);
		endpoint->snapshot.nic = &s->nics[i];
		endpoint->rail = &endpoint->snapshot;
		endpoint->state = RDMA_READY;
		endpoint->index = i;
		s->rdma.endpoints[i] = endpoint;
	}
}

static void scene_close(struct scene *s)
{
	for (unsigned i = 0; i < ENDPOINTS; i++)
		free(s->keys[i]);
}

static void want_able(struct scene *s, uint32_t op, uint32_t able, uint32_t near)
{
	uint32_t seen;

	assert_int_equal(rdma_striping_able(&s->rdma, &s->local, &s->remote, op, &seen), able);
	assert_int_equal(seen, near);
}

static void carriers__near_at_both_ends(void **state)
{
	static const struct {
		uint8_t local[ENDPOINTS], remote[ENDPOINTS];
		uint32_t near;
	} cases[] = {
		{ { 0, 0, 0 }, { 0, 0, 0 }, 7 },
		{ { 2, 3, 6 }, { 0, 0, 0 }, 1 },
		{ { 0, 0, 0 }, { 6, 2, 2 }, 6 }, /* only the remote distance differs */
		{ { 2, 6, 6 }, { 6, 2, 6 }, 3 }, /* each near on one side */
		{ { 2, 2, 6 }, { 6, 2, 2 }, 2 }, /* near on both sides */
		{ { 255, 255, 254 }, { 255, 255, 255 }, 4 },
	};
	struct scene s;

	(void)state;
	scene_open(&s);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		for (unsigned n = 0; n < ENDPOINTS; n++) {
			s.memory[n].distance = cases[i].local[n];
			s.keys[n]->distance = cases[i].remote[n];
		}
		want_able(&s, WH_WRITE, 7, cases[i].near);
	}
	scene_close(&s);
}

static void carriers__that_reach(void **state)
{
	struct scene s;

	(void)state;
	scene_open(&s);
	s.keys[0]->distance = s.keys[1]->distance = 3;
	s.endpoints[2].state = RDMA_BREAKING; /* the nearest is not ready */
	want_able(&s, WH_WRITE, 3, 3);
	s.endpoints[2].state = RDMA_READY;
	s.keys[2]->error = -EPERM;
	want_able(&s, WH_WRITE, 3, 3);
	s.keys[2]->error = 0;
	s.memory[2].writable = false;
	want_able(&s, WH_WRITE, 7, 4);
	want_able(&s, WH_READ, 3, 3);
	s.memory[2].mrs = NULL;
	want_able(&s, WH_WRITE, 3, 3);
	scene_close(&s);
}

enum known { REACHED, STAGED, REFUSED };

static unsigned staged(struct scene *s, const enum known local[ENDPOINTS],
		       const enum known remote[ENDPOINTS])
{
	struct rdma_sides sides = { .local = 7, .remote = 7 };

	for (unsigned i = 0; i < ENDPOINTS; i++) {
		s->memory[i].mrs = local[i] == REACHED ? &s->mrs : NULL;
		s->memory[i].nic = local[i] == REFUSED ? NULL : &s->nics[i];
		s->keys[i]->error = remote[i] == REACHED ? 0 :
				    remote[i] == STAGED  ? -WH_RDMA_STAGED_BY_OWNER :
							   -EOPNOTSUPP;
	}
	rdma_sides_add(&s->rdma, 7, &s->local, &s->remote, WH_WRITE, &sides);
	return rdma_sides_to_stage(&sides);
}

static void sides__staged(void **state)
{
	static const struct {
		enum known local[ENDPOINTS], remote[ENDPOINTS];
		unsigned wanted;
	} cases[] = {
		{ { REACHED, REACHED, REACHED }, { REACHED, REACHED, REACHED }, 0 },
		/* one endpoint is enough */
		{ { REACHED, STAGED, STAGED }, { REACHED, STAGED, STAGED }, 0 },
		{ { STAGED, STAGED, STAGED }, { REFUSED, REACHED, REFUSED }, RDMA_STAGE_LOCAL },
		{ { REACHED, REACHED, REACHED }, { STAGED, STAGED, STAGED }, RDMA_STAGE_REMOTE },
		{ { STAGED, STAGED, STAGED },
		  { STAGED, STAGED, REFUSED },
		  RDMA_STAGE_LOCAL | RDMA_STAGE_REMOTE },
		/* No endpoint reaches both: staging the local side takes fewer messages. */
		{ { REACHED, STAGED, STAGED }, { STAGED, REACHED, STAGED }, RDMA_STAGE_LOCAL },
		{ { REACHED, REFUSED, REFUSED }, { STAGED, REACHED, STAGED }, RDMA_STAGE_REMOTE },
		{ { REFUSED, REFUSED, REFUSED }, { STAGED, STAGED, STAGED }, 0 },
		{ { STAGED, STAGED, STAGED }, { REFUSED, REFUSED, REFUSED }, 0 },
	};
	struct scene s;

	(void)state;
	scene_open(&s);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(staged(&s, cases[i].local, cases[i].remote), cases[i].wanted);
	scene_close(&s);
}

/* Several regions in one fragment: the requirements of any of them. */
static void sides__of_several(void **state)
{
	struct rdma_sides sides = { .local = 7, .remote = 7 };
	struct wh_region host = { .entry.kind = WH_MEMORY_PAGEABLE };
	struct scene s;

	(void)state;
	scene_open(&s);
	for (unsigned i = 0; i < ENDPOINTS; i++)
		s.keys[i]->error = -WH_RDMA_STAGED_BY_OWNER;
	rdma_sides_add(&s.rdma, 7, &s.local, &s.remote, WH_WRITE, &sides);
	assert_int_equal(rdma_sides_to_stage(&sides), RDMA_STAGE_REMOTE);
	for (unsigned i = 0; i < ENDPOINTS; i++) {
		s.keys[i]->error = 0;
		s.memory[i].mrs = NULL;
	}
	rdma_sides_add(&s.rdma, 7, &s.local, &s.remote, WH_WRITE, &sides);
	assert_int_equal(rdma_sides_to_stage(&sides), RDMA_STAGE_LOCAL | RDMA_STAGE_REMOTE);
	/* Host memory that no NIC knows yet counts for an endpoint that still connects, not for
	 * others. */
	s.endpoints[1].state = RDMA_CONNECTING;
	sides = (struct rdma_sides){ .local = 7, .remote = 7 };
	rdma_sides_add(&s.rdma, 7, &host, &s.remote, WH_WRITE, &sides);
	assert_int_equal(sides.local, 2);
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
