/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: no-threads */
/* shm-arena.c: one shared allocation with many regions: when it is mapped, when it is not and why,
 * and what ends the mapping */
#include "lib/fixture.h"

#include <pthread.h>
#include <stdatomic.h>

#define PART (64 * KIB)
#define PARTS 4u
#define LENGTH (PARTS * PART - 100) /* the last one is shorter */

static const char *const no_vm[] = { "cma=0", NULL };

/* The owner is a child whose arena has the regions p0 to p3. */
struct arena {
	struct wh_engine *engine;
	struct child *child;
	struct wh_peer *peer;
	unsigned char *local;
	struct wh_region *region;
	int memory, parts[PARTS];
};

static uint64_t part_length(unsigned int part)
{
	return part == PARTS - 1 ? LENGTH - part * PART : PART;
}

static void part_open(struct arena *arena, unsigned int part, uint32_t access)
{
	char name[8];

	snprintf(name, sizeof(name), "p%u", part);
	arena->parts[part] = child_region(arena->child, arena->memory, part * PART,
					  part_length(part), name, access, NULL);
}

/* `owner`, or NULL: how the child runs. */
static void arena_open_with(struct arena *arena, const char *const *config,
			    const struct child_options *owner)
{
	memset(arena, 0, sizeof(*arena));
	arena->child = child_start(owner);
	arena->memory = child_memory(arena->child, WH_MEMORY_SHARED, LENGTH);
	arena->engine = engine_open(NULL, "none", config);
	arena->local = pages_new(LENGTH);
	want(0, wh_region_register(arena->engine, arena->local, LENGTH, NULL, &arena->region));
	want(0, wh_peer_open(arena->engine, arena->child->url, NULL, &arena->peer));
}

static void arena_open(struct arena *arena, const char *const *config)
{
	arena_open_with(arena, config, NULL);
}

static void arena_close(struct arena *arena)
{
	want(0, wh_peer_close(arena->peer));
	want(0, peer_mappings(NULL, NULL));
	want(0, wh_region_unregister(arena->region));
	want(0, wh_engine_close(arena->engine));
	pages_free(arena->local, LENGTH);
	child_exit(arena->child);
}

static struct wh_batch *part_batch(struct arena *arena, unsigned int part, uint32_t op)
{
	struct wh_transfer one = { .local = arena->region, .length = part_length(part), .op = op };
	struct wh_remote remote;
	struct wh_batch *batch;
	char name[8];

	snprintf(name, sizeof(name), "p%u", part);
	want(0, wh_peer_find(arena->peer, name, PATIENCE, &remote));
	one.remote = remote.id;
	want(0, wh_batch_new(arena->peer, NULL, &batch));
	want(0, wh_batch_add(batch, &one, 1));
	return batch;
}

/* The batch's explanation must contain `way` (the detail of its route) and `word` ("": any). */
static void want_way(struct wh_batch *batch, const char *way, const char *word)
{
	char text[2048];

	want_true(wh_batch_explain(batch, text, sizeof(text)) > 0, "no explanation");
	want_true(strstr(text, way) && strstr(text, word), "\"%s\" and \"%s\" are not in: %s", way,
		  word, text);
}

/* Move a whole part, and check the bytes and their route. */
static void part_move(struct arena *arena, unsigned int part, uint32_t op, uint64_t seed,
		      const char *way, const char *word)
{
	struct wh_batch *batch = part_batch(arena, part, op);
	uint64_t length = part_length(part);

	if (op == WH_WRITE)
		pattern_fill(arena->local, length, 0, seed);
	else
		child_fill(arena->child, arena->memory, part * PART, length, 0, seed);
	want(0, batch_run(batch));
	if (op == WH_WRITE)
		want(PATTERN_GOOD,
		     child_check(arena->child, arena->memory, part * PART, length, 0, seed));
	else
		want(PATTERN_GOOD, pattern_check(arena->local, length, 0, seed));
	want_way(batch, way, word);
	want(0, wh_batch_free(batch));
}

/* ---- what is mapped ---------------------------------------------------- */

static void map__every_byte_published(void **state)
{
	struct arena arena;
	char rights[5];

	(void)state;
	arena_open(&arena, NULL);
	for (unsigned int i = 0; i < PARTS; i++)
		part_open(&arena, i, ACCESS_BOTH);
	for (unsigned int i = 0; i < PARTS; i++) {
		part_move(&arena, i, WH_WRITE, 10 + i, "mapped memfd", "");
		part_move(&arena, i, WH_READ, 20 + i, "mapped memfd", "");
	}
	want(1, peer_mappings(NULL, rights));
	assert_string_equal(rights, "rw-s");
	arena_close(&arena);
}

/* Regions may overlap and come in any order. */
static void map__overlapping(void **state)
{
	struct wh_remote remote;
	struct arena arena;

	(void)state;
	arena_open(&arena, NULL);
	child_region(arena.child, arena.memory, 3 * PART - 5, LENGTH - 3 * PART + 5, NULL,
		     ACCESS_BOTH, NULL);
	part_open(&arena, 1, ACCESS_BOTH);
	child_region(arena.child, arena.memory, 7, 3 * PART - 7, NULL, ACCESS_BOTH, NULL);
	part_move(&arena, 1, WH_WRITE, 1, "process_vm", "byte 0 is not published");
	child_region(arena.child, arena.memory, 0, 8, "head", ACCESS_BOTH, NULL);
	want(0, wh_peer_find(arena.peer, "head", PATIENCE, &remote));
	part_move(&arena, 1, WH_WRITE, 2, "mapped memfd", "");
	arena_close(&arena);
}

/* A gap is not published, so the arena is not mapped. The region that closes the gap is noticed,
 * also by a batch planned before. */
static void map__gap(void **state)
{
	struct wh_batch *batch;
	struct wh_remote remote;
	struct arena arena;

	(void)state;
	arena_open(&arena, NULL);
	part_open(&arena, 0, ACCESS_BOTH);
	part_open(&arena, 1, ACCESS_BOTH);
	part_open(&arena, 3, ACCESS_BOTH);
	part_move(&arena, 1, WH_WRITE, 1, "process_vm", "covers only a part of its allocation");
	batch = part_batch(&arena, 3, WH_READ);
	want(0, batch_run(batch));
	want_way(batch, "process_vm", "not all published to this peer");
	want(0, peer_mappings(NULL, NULL));
	/* All bytes but one, and an overlap that makes up for it in the sum of the lengths. */
	child_region(arena.child, arena.memory, PART, PART, NULL, ACCESS_BOTH, NULL);
	child_region(arena.child, arena.memory, 2 * PART + 1, PART - 1, "almost", ACCESS_BOTH,
		     NULL);
	want(0, wh_peer_find(arena.peer, "almost", PATIENCE, &remote));
	part_move(&arena, 1, WH_READ, 2, "process_vm", "byte 131072 is not published");
	want(0, peer_mappings(NULL, NULL));
	part_open(&arena, 2, ACCESS_BOTH);
	want(0, wh_peer_find(arena.peer, "p2", PATIENCE, &remote));
	want(0, batch_run(batch));
	want_way(batch, "mapped memfd", "");
	want(1, peer_mappings(NULL, NULL));
	want(0, wh_batch_free(batch));
	arena_close(&arena);
}

/* Without process_vm, the explanation also gives the reason against the mapping. */
static void map__gap_over_tcp(void **state)
{
	struct arena arena;

	(void)state;
	arena_open(&arena, no_vm);
	part_open(&arena, 0, ACCESS_BOTH);
	part_move(&arena, 0, WH_WRITE, 1, "tcp: ", "covers only a part of its allocation");
	part_move(&arena, 0, WH_READ, 2, "tcp: ", "setting cma");
	want(0, peer_mappings(NULL, NULL));
	arena_close(&arena);
}

/* As the arena of a KV cache: one descriptor, one mapping, and no quadratic time. */
static void map__ten_thousand_regions(void **state)
{
	const uint64_t count = SCALE(10000, 1000), length = 512;
	struct wh_transfer *transfers = calloc(count, sizeof(*transfers));
	struct wh_remote remote;
	struct wh_region *all;
	struct wh_batch *batch;
	struct arena arena;
	unsigned char *local;
	struct wh_remote page[1000];
	uint64_t cursor = 0;
	size_t found = 0, listed;
	int memory;

	(void)state;
	want_true(transfers != NULL, "no memory");
	arena_open(&arena, NULL);
	local = pages_new(count * length);
	want(0, wh_region_register(arena.engine, local, count * length, NULL, &all));
	memory = child_memory(arena.child, WH_MEMORY_SHARED, count * length);
	child_regions(arena.child, memory, length, count, "last");
	want(0, wh_peer_find(arena.peer, "last", PATIENCE, &remote));
	do {
		listed = sizeof(page) / sizeof(page[0]);
		want(0, wh_peer_list(arena.peer, &cursor, page, &listed, WH_ANSWER));
		for (size_t i = 0; i < listed && found < count; i++, found++)
			transfers[found] = (struct wh_transfer){ .local = all,
								 .remote = page[i].id,
								 .local_offset = found * length,
								 .length = length,
								 .op = WH_READ };
	} while (cursor);
	want(count, found);
	want(0, wh_batch_new(arena.peer, NULL, &batch));
	want(0, wh_batch_add(batch, transfers, found));
	child_fill(arena.child, memory, 0, count * length, 0, 77);
	want(0, batch_run(batch));
	want_way(batch, "mapped memfd)", "");
	want(1, peer_mappings(NULL, NULL));
	want(PATTERN_GOOD, pattern_check(local, count * length, 0, 77));
	want(0, wh_batch_free(batch));
	want(0, wh_region_unregister(all));
	pages_free(local, count * length);
	free(transfers);
	arena_close(&arena);
}

/* ---- rights ------------------------------------------------------------ */

static void rights__read_only(void **state)
{
	struct wh_transfer write = { .length = 8, .op = WH_WRITE };
	struct wh_remote remote;
	struct wh_batch *batch;
	struct arena arena;
	char rights[5];

	(void)state;
	arena_open(&arena, NULL);
	for (unsigned int i = 0; i < PARTS; i++)
		part_open(&arena, i, WH_ACCESS_READ);
	part_move(&arena, 2, WH_READ, 3, "mapped memfd", "");
	want(1, peer_mappings(NULL, rights));
	assert_string_equal(rights, "r--s");
	want(0, wh_peer_find(arena.peer, "p2", WH_ANSWER, &remote));
	write.local = arena.region;
	write.remote = remote.id;
	want(0, wh_batch_new(arena.peer, NULL, &batch));
	want(-EACCES, wh_batch_add(batch, &write, 1));
	want(0, wh_batch_free(batch));
	arena_close(&arena);
}

/* Reads use the mapping. Writes to the writable part go another way, and the explanation says
 * why. */
static void move_with_mixed_rights(const char *const *config, const char *other)
{
	struct arena arena;
	char rights[5];

	arena_open(&arena, config);
	for (unsigned int i = 0; i < PARTS; i++)
		part_open(&arena, i, i == 1 ? WH_ACCESS_READ : ACCESS_BOTH);
	part_move(&arena, 0, WH_WRITE, 1, other, "may not write byte 65536");
	part_move(&arena, 0, WH_READ, 2, "mapped memfd", "");
	part_move(&arena, 1, WH_READ, 3, "mapped memfd", "");
	part_move(&arena, 3, WH_WRITE, 4, other, "for reading only");
	want(1, peer_mappings(NULL, rights));
	assert_string_equal(rights, "r--s");
	arena_close(&arena);
}

static void rights__mixed(void **state)
{
	(void)state;
	move_with_mixed_rights(NULL, "process_vm");
}

static void rights__mixed_over_tcp(void **state)
{
	(void)state;
	move_with_mixed_rights(no_vm, "tcp: ");
}

/* A write-only part must stay hidden from readers of the other parts. */
static void rights__write_only_part(void **state)
{
	struct arena arena;

	(void)state;
	arena_open(&arena, NULL);
	for (unsigned int i = 0; i < PARTS; i++)
		part_open(&arena, i, i == 1 ? WH_ACCESS_WRITE : ACCESS_BOTH);
	part_move(&arena, 0, WH_WRITE, 1, "process_vm", "byte 65536 is not published");
	part_move(&arena, 1, WH_WRITE, 2, "process_vm", "byte 65536 is not published");
	want(0, peer_mappings(NULL, NULL));
	arena_close(&arena);
}

/* ---- what ends a mapping ----------------------------------------------- */

static void end__unregistered(void **state)
{
	struct wh_batch *batch;
	struct arena arena;

	(void)state;
	arena_open(&arena, NULL);
	for (unsigned int i = 0; i < PARTS; i++)
		part_open(&arena, i, ACCESS_BOTH);
	batch = part_batch(&arena, 0, WH_WRITE);
	for (unsigned int i = 0; i < 5; i++) {
		unsigned int gone = 1 + i % (PARTS - 1);

		part_move(&arena, 0, WH_WRITE, 30 + i, "mapped memfd", "");
		want(0, batch_run(batch));
		want_way(batch, "mapped memfd", "");
		want(1, peer_mappings(NULL, NULL));
		/* Unregistering returns once this process has unmapped everything, and not before.
		 * The first part has never been used here. */
		want(0, child_unregister(arena.child, arena.parts[gone]));
		want(0, peer_mappings(NULL, NULL));
		part_move(&arena, 0, WH_READ, 40 + i, "process_vm", "covers only a part");
		want(0, batch_run(batch));
		want_way(batch, "process_vm", "covers only a part");
		want(0, peer_mappings(NULL, NULL));
		part_open(&arena, gone, ACCESS_BOTH);
		part_move(&arena, gone, WH_WRITE, 50 + i, "mapped memfd", "");
	}
	want(0, wh_batch_free(batch));
	arena_close(&arena);
}

/* The same bytes again with fewer rights: the old mapping goes, and no new mapping gives more
 * rights. */
static void end__narrowed(void **state)
{
	struct wh_remote remote;
	struct arena arena;

	(void)state;
	arena_open(&arena, NULL);
	for (unsigned int i = 0; i < PARTS; i++)
		part_open(&arena, i, ACCESS_BOTH);
	part_move(&arena, 0, WH_WRITE, 1, "mapped memfd", "");
	want(0, child_unregister(arena.child, arena.parts[1]));
	want(0, peer_mappings(NULL, NULL));
	part_open(&arena, 1, WH_ACCESS_READ);
	part_move(&arena, 1, WH_READ, 2, "process_vm", "mapped for writing before");
	part_move(&arena, 0, WH_WRITE, 3, "process_vm", "mapped for writing before");
	want(0, peer_mappings(NULL, NULL));
	/* Another region makes all bytes writable again, whatever the narrower region allows. */
	child_region(arena.child, arena.memory, PART, PART, "more", ACCESS_BOTH, NULL);
	want(0, wh_peer_find(arena.peer, "more", PATIENCE, &remote));
	part_move(&arena, 0, WH_WRITE, 4, "mapped memfd", "");
	part_move(&arena, 1, WH_READ, 5, "mapped memfd", "");
	want(1, peer_mappings(NULL, NULL));
	arena_close(&arena);
}

/* A new region withdraws nothing that is published. */
static void end__not_by_one_that_comes(void **state)
{
	struct arena arena;

	(void)state;
	arena_open(&arena, NULL);
	for (unsigned int i = 0; i < PARTS; i++)
		part_open(&arena, i, ACCESS_BOTH);
	part_move(&arena, 0, WH_WRITE, 1, "mapped memfd", "");
	child_region(arena.child, arena.memory, PART, PART, "less", WH_ACCESS_READ, NULL);
	part_move(&arena, 1, WH_WRITE, 2, "mapped memfd", "");
	want(1, peer_mappings(NULL, NULL));
	arena_close(&arena);
}

/* ---- grants ------------------------------------------------------------ */

/* This process is the owner; alice and bob are children. */
struct granted {
	struct wh_engine *engine;
	unsigned char *memory;
	struct wh_region *parts[2];
};

static void half_open(struct granted *owner, unsigned int half, uint32_t alice, uint32_t bob)
{
	const struct wh_grant grants[] = { { "alice", alice, 0 }, { "bob", bob, 0 } };
	struct wh_region_options options = { .size = sizeof(options),
					     .name = half ? "p1" : "p0",
					     .grants = grants,
					     .grant_count = 2 };

	want(0, wh_region_register(owner->engine, owner->memory + half * PART, PART, &options,
				   &owner->parts[half]));
}

struct grantee {
	struct child *child;
	struct child_transfer transfer;
	struct child_result result;
};

static void grantee_open(struct grantee *grantee, const struct granted *owner, const char *name)
{
	struct child_options options = { .name = name, .config = { "cma=0" } };
	int memory;

	memset(grantee, 0, sizeof(*grantee));
	grantee->child = child_start(&options);
	memory = child_memory(grantee->child, CHILD_FOREIGN, PART);
	grantee->transfer.region = child_region(grantee->child, memory, 0, PART, NULL, 0, NULL);
	grantee->transfer.peer = child_peer(grantee->child, wh_engine_url(owner->engine), NULL);
	want_true(grantee->transfer.peer >= 0, "it cannot connect");
	grantee->transfer.length = PART;
}

static void want_grantee(struct grantee *grantee, const char *part, uint32_t op,
			 const char *transport, const char *word)
{
	grantee->transfer.remote = part;
	grantee->transfer.op = op;
	want_true(child_transfer(grantee->child, &grantee->transfer, &grantee->result) == 0, "%s",
		  grantee->result.text);
	want_true(!strcmp(grantee->result.transport, transport) &&
			  strstr(grantee->result.explain, word),
		  "\"%s\" and \"%s\" are not in: %s", transport, word, grantee->result.explain);
}

/* Each peer's mapping depends on its own rights. A new grant on a part ends older mappings. */
static void grants__anew(void **state)
{
	const uint32_t both = WH_ACCESS_READ | WH_ACCESS_WRITE;
	struct grantee alice, bob;
	struct granted owner;

	(void)state;
	owner.engine = engine_open(NULL, NULL, NULL);
	want(0, wh_memory_alloc(owner.engine, 2 * PART, NULL, (void **)&owner.memory));
	half_open(&owner, 0, both, both);
	half_open(&owner, 1, both, 0);
	grantee_open(&alice, &owner, "alice");
	grantee_open(&bob, &owner, "bob");
	want_grantee(&alice, "p0", WH_WRITE, "shm", "mapped memfd");
	want_grantee(&bob, "p0", WH_WRITE, "tcp", "byte 65536 is not published to this peer");
	/* The same with the roles exchanged. */
	want(0, wh_region_unregister(owner.parts[1]));
	half_open(&owner, 1, 0, both);
	want_grantee(&bob, "p1", WH_WRITE, "shm", "mapped memfd");
	want_grantee(&bob, "p0", WH_WRITE, "shm", "mapped memfd");
	want_grantee(&alice, "p0", WH_WRITE, "tcp", "byte 65536 is not published to this peer");
	/* One of them may only read: both would receive the same descriptor. */
	want(0, wh_region_unregister(owner.parts[1]));
	half_open(&owner, 1, WH_ACCESS_READ, both);
	want_grantee(&alice, "p1", WH_READ, "tcp", "other peers have more rights");
	want_grantee(&bob, "p1", WH_READ, "shm", "mapped memfd");
	child_exit(alice.child);
	child_exit(bob.child);
	for (unsigned int i = 0; i < 2; i++)
		want(0, wh_region_unregister(owner.parts[i]));
	want(0, wh_memory_free(owner.engine, owner.memory));
	want(0, wh_engine_close(owner.engine));
}

/* ---- concurrency ------------------------------------------------------- */

struct copier {
	pthread_t thread;
	struct arena *arena;
	unsigned int part;
	unsigned char *local;
	struct wh_region *region;
	atomic_bool *stop;
	unsigned int submissions;
	atomic_uint failures; /* read while the thread runs */
	char text[256];
};

/* Write to a part of its own and read it back, by any transport. */
static void *copier_run(void *argument)
{
	struct copier *c = argument;
	struct wh_remote remote;
	struct wh_batch *batch;
	char name[8];

	snprintf(name, sizeof(name), "p%u", c->part);
	while (!atomic_load(c->stop) && !c->failures) {
		for (unsigned int i = 0; i < 2; i++) {
			struct wh_transfer one = { .local = c->region,
						   .length = part_length(c->part),
						   .op = i ? WH_READ : WH_WRITE };
			int error = wh_peer_find(c->arena->peer, name, PATIENCE, &remote);

			if (i)
				memset(c->local, 0, PART);
			else
				pattern_fill(c->local, PART, 0, c->submissions);
			one.remote = remote.id;
			if (!error)
				error = wh_batch_new(c->arena->peer, NULL, &batch);
			if (!error) {
				error = wh_batch_add(batch, &one, 1);
				if (!error)
					error = batch_run(batch);
				if (error)
					snprintf(c->text, sizeof(c->text), "%s", wh_error_text());
				wh_batch_free(batch);
			}
			c->failures += error != 0;
		}
		if (pattern_check(c->local, part_length(c->part), 0, c->submissions) !=
		    PATTERN_GOOD) {
			snprintf(c->text, sizeof(c->text), "wrong bytes in round %u",
				 c->submissions);
			c->failures++;
		}
		c->submissions++;
	}
	return NULL;
}

/* Two parts are copied all the time while a third is registered and unregistered. No copy fails,
 * and after each unregistration nothing is mapped. */
static void copy_while_unregistering(const char *const *config)
{
	/* A write and the read behind it may arrive on two connections. This process orders them,
	 * which the thread sanitizer of the owner cannot see: under it, one thread serves both. */
	struct child_options owner = { .config = { HARNESS_TURNS ? "threads=1" : NULL } };
	struct copier copiers[2];
	struct arena arena;
	atomic_bool stop = false;
	unsigned int seen = 0;

	arena_open_with(&arena, config, &owner);
	for (unsigned int i = 0; i < PARTS; i++)
		part_open(&arena, i, ACCESS_BOTH);
	for (unsigned int i = 0; i < 2; i++) {
		struct copier *c = &copiers[i];

		*c = (struct copier){
			.arena = &arena, .part = i, .stop = &stop, .local = pages_new(PART)
		};
		want(0, wh_region_register(arena.engine, c->local, PART, NULL, &c->region));
		want(0, pthread_create(&c->thread, NULL, copier_run, c));
	}
	for (unsigned int i = 0; i < SCALE(200, 30); i++) {
		int64_t end = now() + PATIENCE;

		/* Wait for the next mapping, if the last unregistration left time for one. */
		while (!peer_mappings(NULL, NULL) && now() < end && !copiers[0].failures &&
		       !copiers[1].failures)
			sched_yield();
		seen += peer_mappings(NULL, NULL);
		want(0, child_unregister(arena.child, arena.parts[2 + i % 2]));
		want(0, peer_mappings(NULL, NULL));
		part_open(&arena, 2 + i % 2, ACCESS_BOTH);
	}
	atomic_store(&stop, true);
	for (unsigned int i = 0; i < 2; i++) {
		struct copier *c = &copiers[i];

		want(0, pthread_join(c->thread, NULL));
		want_true(!c->failures && c->submissions, "%u failures, %u rounds: %s", c->failures,
			  c->submissions, c->text);
		want(0, wh_region_unregister(c->region));
		pages_free(c->local, PART);
	}
	want(SCALE(200, 30), seen);
	arena_close(&arena);
}

static void race__comes_and_goes(void **state)
{
	(void)state;
	copy_while_unregistering(NULL);
}

static void race__comes_and_goes_over_tcp(void **state)
{
	(void)state;
	copy_while_unregistering(no_vm);
}

static const struct CMUnitTest tests[] = {
	TEST(map__every_byte_published),
	TEST_NEEDS(map__overlapping, route_vm),
	TEST_NEEDS(map__gap, route_vm),
	TEST(map__gap_over_tcp),
	TEST(map__ten_thousand_regions),
	TEST(rights__read_only),
	TEST_NEEDS(rights__mixed, route_vm),
	TEST(rights__mixed_over_tcp),
	TEST_NEEDS(rights__write_only_part, route_vm),
	TEST_NEEDS(end__unregistered, route_vm),
	TEST_NEEDS(end__narrowed, route_vm),
	TEST(end__not_by_one_that_comes),
	TEST(grants__anew),
	TEST_NEEDS(race__comes_and_goes, route_vm),
	TEST(race__comes_and_goes_over_tcp),
};

HARNESS_MAIN("shm-arena", tests)
