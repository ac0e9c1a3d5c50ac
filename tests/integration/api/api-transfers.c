/* SPDX-License-Identifier: Apache-2.0 */
/* api-transfers.c: every misuse of batches and blocks returns an errno, with a text that names the
 * argument; nothing is added and nothing moves */
#include "lib/fixture.h"

#define LENGTH (64 * KIB)

static void want_add(struct wh_batch *batch, int error, const char *word,
		     const struct wh_transfer *wrong, const struct wh_transfer *good)
{
	struct wh_transfer list[3] = { *good, *good, *wrong };
	int status;

	want_text(error, word, wh_batch_add(batch, wrong, 1));
	want(error, wh_batch_add(batch, list, 3));
	want_true(strstr(wh_error_text(), "2"), "it does not say which: %s", wh_error_text());
	/* The valid transfers of the call were not added either. */
	want(-EINVAL, wh_batch_transfer_status(batch, 0, &status));
}

static void add__every_field(void **state)
{
	struct wh_transfer good, t;
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	batch = batch_of(&f, NULL, 0);
	t = good = transfer_of(&f, WH_WRITE, 0, 0, 100);
	want_text(-EINVAL, "batch", wh_batch_add(NULL, &good, 1));
	want_text(-EINVAL, "transfers", wh_batch_add(batch, NULL, 1));
#define WRONG(error, word, ...)                                                                    \
	do {                                                                                       \
		t = good;                                                                          \
		__VA_ARGS__;                                                                       \
		want_add(batch, error, word, &t, &good);                                           \
	} while (0)
	WRONG(-EINVAL, "local", t.local = NULL);
	WRONG(-EINVAL, "op", t.op = 0);
	WRONG(-EINVAL, "op", t.op = 3);
	WRONG(-EINVAL, "op", t.op = UINT32_MAX);
	WRONG(-EINVAL, "reserved", t.reserved = 1);
	WRONG(-ERANGE, "local", t.length = 2 * LENGTH + 1);
	WRONG(-ERANGE, "local", t.local_offset = 2 * LENGTH);
	WRONG(-ERANGE, "local", t.local_offset = 2 * LENGTH - 99);
	WRONG(-ERANGE, "local", t.local_offset = UINT64_MAX);
	WRONG(-ERANGE, "local", t.local_offset = UINT64_MAX - 50);
	WRONG(-ERANGE, "local", t.length = UINT64_MAX);
	WRONG(-ERANGE, "remote", t.length = LENGTH + 1);
	WRONG(-ERANGE, "remote", t.remote_offset = LENGTH);
	WRONG(-ERANGE, "remote", t.remote_offset = LENGTH - 99);
	WRONG(-ERANGE, "remote", t.remote_offset = UINT64_MAX);
	WRONG(-ERANGE, "remote", t.remote_offset = UINT64_MAX - 50);
	WRONG(-ENOENT, "region", t.remote = 0);
#undef WRONG
	/* The peer is asked for a region that is not known. */
	for (int i = 0; i < 2; i++) {
		int error;

		t = good;
		t.remote = i ? UINT64_MAX : t.remote + 1000;
		error = wh_batch_add(batch, &t, 1);
		want(f.child ? 0 : -ENOENT, error);
		if (!error)
			want(-ENOENT, batch_run(batch));
		want(0, wh_batch_clear(batch));
	}
	want(0, wh_batch_add(batch, &good, 1));
	want(0, batch_run(batch));
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* Another engine's region is refused as the local side, our own unpublished one as the remote
 * side. */
static void add__foreign_regions(void **state)
{
	struct wh_engine *other = engine_open(NULL, "none", NULL);
	static char memory[4096];
	struct wh_transfer t;
	struct wh_region *theirs, *hidden;
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	batch = batch_of(&f, NULL, 0);
	want(0, wh_region_register(other, memory, sizeof(memory), NULL, &theirs));
	t = transfer_of(&f, WH_WRITE, 0, 0, 100);
	t.local = theirs;
	want_text(-EINVAL, "engine", wh_batch_add(batch, &t, 1));
	want(0, wh_region_unregister(theirs));
	want(0, wh_region_register(f.engine, memory, sizeof(memory), NULL, &hidden));
	/* As the local side it is valid. */
	t = transfer_of(&f, WH_READ, 0, 0, 100);
	t.local = hidden;
	want(0, wh_batch_add(batch, &t, 1));
	want(0, batch_run(batch));
	want(0, wh_batch_clear(batch));
	/* As the remote side as well, but only by the engine itself. */
	t = transfer_of(&f, WH_READ, 0, 0, 100);
	t.remote = wh_region_id(hidden);
	want(0, wh_batch_add(batch, &t, 1));
	want(f.child ? -ENOENT : 0, batch_run(batch));
	want(0, wh_batch_free(batch));
	want(0, wh_region_unregister(hidden));
	want(0, wh_engine_close(other));
	fixture_close(&f);
}

static uint64_t extra_region(struct fixture *f, const char *name, uint32_t access)
{
	struct wh_remote remote;

	child_region(f->child, f->memory, f->guard, f->length, name, access, NULL);
	want(0, wh_peer_find(f->peer, name, PATIENCE, &remote));
	want(access, remote.access);
	return remote.id;
}

static void add__rights(void **state)
{
	struct wh_transfer t;
	struct wh_batch *batch;
	struct fixture f;
	uint64_t ro, wo;

	fixture_open(&f, *state, LENGTH);
	batch = batch_of(&f, NULL, 0);
	ro = extra_region(&f, "ro", WH_ACCESS_READ);
	wo = extra_region(&f, "wo", WH_ACCESS_WRITE);
	t = transfer_of(&f, WH_WRITE, 0, 0, 100);
	t.remote = ro;
	want_text(-EACCES, "writ", wh_batch_add(batch, &t, 1));
	t.op = WH_READ;
	want(0, wh_batch_add(batch, &t, 1));
	t.remote = wo;
	want_text(-EACCES, "read", wh_batch_add(batch, &t, 1));
	/* Not the bytes that are read: transfers of one batch run in any order. */
	t = transfer_of(&f, WH_WRITE, 200, 200, 100);
	t.remote = wo;
	want(0, wh_batch_add(batch, &t, 1));
	want(0, batch_run(batch));
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

static void batch__arguments(void **state)
{
	struct {
		struct wh_batch_options options;
		uint64_t tail;
	} grown = { .options = { .size = sizeof(grown) }, .tail = 1 };
	struct wh_batch_options o = { .size = 1 };
	struct wh_engine *other = engine_open(NULL, "none", NULL);
	struct wh_batch *batch = NULL;
	struct wh_route route;
	struct fixture f;
	size_t count = 1;
	char text[64];
	int status;

	fixture_open(&f, *state, LENGTH);
	want_text(-EINVAL, "peer", wh_batch_new(NULL, NULL, &batch));
	want_text(-EINVAL, "out", wh_batch_new(f.peer, NULL, NULL));
	want_text(-EINVAL, "size", wh_batch_new(f.peer, &o, &batch));
	want_text(-E2BIG, "field", wh_batch_new(f.peer, &grown.options, &batch));
	o = (struct wh_batch_options){ .size = sizeof(o), .priority = 2 };
	want_text(-EINVAL, "priority", wh_batch_new(f.peer, &o, &batch));
	o = (struct wh_batch_options){ .size = sizeof(o), .require = "pigeon" };
	want_text(-EINVAL, "pigeon", wh_batch_new(f.peer, &o, &batch));
	o = (struct wh_batch_options){ .size = sizeof(o) };
	want(0, wh_queue_new(other, &o.queue));
	want_text(-EINVAL, "queue", wh_batch_new(f.peer, &o, &batch));
	want(0, wh_queue_free(o.queue));
	want(0, wh_engine_close(other));
	assert_null(batch);
	batch = batch_of(&f, NULL, 0);
	want_text(-EINVAL, "batch", wh_batch_notify(NULL, 0, "x", 1));
	want_text(-EINVAL, "data", wh_batch_notify(batch, 0, NULL, 1));
	want_text(-EINVAL, "length", wh_batch_notify(batch, 0, "x", WH_NOTIFICATION_MAX + 1));
	want(0, wh_batch_notify(batch, 0, NULL, 0));
	want(0, wh_batch_clear(batch));
	want_text(-EINVAL, "batch", wh_batch_clear(NULL));
	want_text(-EINVAL, "batch", wh_batch_submit(NULL));
	want_text(-EINVAL, "batch", wh_batch_test(NULL));
	want_text(-EINVAL, "never submitted", wh_batch_test(batch));
	want_text(-EINVAL, "batch", wh_batch_progress(NULL, &(uint64_t){ 0 }));
	want_text(-EINVAL, "out", wh_batch_progress(batch, NULL));
	want_text(-EINVAL, "never submitted", wh_batch_progress(batch, &(uint64_t){ 0 }));
	want_text(-EINVAL, "batch", wh_batch_wait_for(NULL, 0));
	want_text(-EINVAL, "never submitted", wh_batch_wait_for(batch, 0));
	want_text(-EINVAL, "batch", wh_batch_status(NULL));
	want(-EINPROGRESS, wh_batch_status(batch));
	want_text(-EINVAL, "batch", wh_batch_cancel(NULL));
	want_text(-EINVAL, "batch", wh_batch_transfer_status(NULL, 0, &status));
	want_text(-EINVAL, "index", wh_batch_transfer_status(batch, 0, &status));
	want_text(-EINVAL, "status", wh_batch_transfer_status(batch, 0, NULL));
	want_text(-EINVAL, "batch", wh_batch_routes(NULL, &route, &count));
	want_text(-EINVAL, "count", wh_batch_routes(batch, &route, NULL));
	want_text(-EINVAL, "out", wh_batch_routes(batch, NULL, &count));
	want_text(-EINVAL, "batch", wh_batch_explain(NULL, text, sizeof(text)));
	want_text(-EINVAL, "text", wh_batch_explain(batch, NULL, sizeof(text)));
	want_text(-EINVAL, "batch", wh_batch_add_blocks(NULL, NULL));
	want_text(-EINVAL, "blocks", wh_batch_add_blocks(batch, NULL));
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* ---- blocks ------------------------------------------------------------ */

static void blocks__every_field(void **state)
{
	struct {
		struct wh_blocks_desc desc;
		uint64_t tail;
	} grown = { .tail = 1 };
	static const uint64_t outside[3] = { 0, 1, LENGTH }, wraps[3] = { 0, UINT64_MAX - 5, 1 };
	struct wh_blocks_desc good = { .size = sizeof(good),
				       .op = WH_READ,
				       .block_length = 100,
				       .count = 3,
				       .base_count = 2 },
			      d;
	struct wh_base bases[2], wrong[2];
	struct wh_blocks *blocks = NULL;
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	bases[0] = bases[1] = (struct wh_base){ .local = f.region, .remote = f.remote.id };
	good.bases = bases;
	want_text(-EINVAL, "peer", wh_blocks_new(NULL, &good, &blocks));
	want_text(-EINVAL, "desc", wh_blocks_new(f.peer, NULL, &blocks));
	want_text(-EINVAL, "out", wh_blocks_new(f.peer, &good, NULL));
	grown.desc = good;
	grown.desc.size = sizeof(grown);
	want_text(-E2BIG, "field", wh_blocks_new(f.peer, &grown.desc, &blocks));
#define WRONG(error, word, change)                                                                 \
	do {                                                                                       \
		d = good;                                                                          \
		wrong[0] = bases[0];                                                               \
		wrong[1] = bases[1];                                                               \
		change;                                                                            \
		want_text(error, word, wh_blocks_new(f.peer, &d, &blocks));                        \
	} while (0)
#define WRONG_BASE(error, word, change) WRONG(error, word, (d.bases = wrong, wrong[1].change))
	WRONG(-EINVAL, "size", d.size = 7);
	WRONG(-EINVAL, "op", d.op = 0);
	WRONG(-EINVAL, "op", d.op = 3);
	WRONG(-EINVAL, "reserved", d.reserved = 1);
	WRONG(-EINVAL, "base_count", d.base_count = 0);
	WRONG(-EINVAL, "bases", d.bases = NULL);
	WRONG_BASE(-EINVAL, "base 1: reserved", reserved[0] = 1);
	WRONG_BASE(-EINVAL, "base 1: reserved", reserved[1] = 1);
	WRONG(-ERANGE, "block", d.block_length = 2 * LENGTH + 1);
	WRONG(-ERANGE, "block", d.block_length = UINT64_MAX);
	WRONG(-ERANGE, "block", d.count = LENGTH / 100 + 1);
	WRONG(-ERANGE, "block", d.count = UINT64_MAX);
	WRONG(-ERANGE, "block", d.count = UINT64_MAX / 100 + 2);
	WRONG(-ERANGE, "block", d.local_stride = 2 * LENGTH);
	WRONG(-ERANGE, "block", d.local_stride = UINT64_MAX);
	WRONG(-ERANGE, "block", d.local_stride = UINT64_C(1) << 63);
	WRONG(-ERANGE, "block", d.remote_stride = LENGTH);
	WRONG(-ERANGE, "block", d.remote_stride = UINT64_MAX);
	WRONG(-ERANGE, "block", d.remote_stride = UINT64_C(1) << 63);
	WRONG(-ERANGE, "block 2", d.remote_offsets = outside);
	WRONG(-ERANGE, "block 1", d.remote_offsets = wraps);
	WRONG(-ERANGE, "block 1", d.local_offsets = wraps);
	WRONG_BASE(-EINVAL, "local", local = NULL);
	WRONG_BASE(-ERANGE, "base 1", local_offset = 2 * LENGTH);
	WRONG_BASE(-ERANGE, "base 1", local_offset = UINT64_MAX);
	WRONG_BASE(-ERANGE, "base 1", remote_offset = LENGTH - 299);
	WRONG_BASE(-ERANGE, "base 1", remote_offset = UINT64_MAX - 100);
	WRONG_BASE(-ENOENT, "base 1", remote = 0);
#undef WRONG_BASE
#undef WRONG
	assert_null(blocks);
	want(0, wh_blocks_new(f.peer, &good, &blocks));
	wh_blocks_free(blocks);
	want(0, wh_blocks_free(NULL));
	fixture_close(&f);
}

static void blocks__rights(void **state)
{
	struct wh_blocks_desc d = {
		.size = sizeof(d), .op = WH_WRITE, .block_length = 10, .count = 3, .base_count = 1
	};
	struct wh_blocks *blocks;
	struct wh_base base;
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	base = (struct wh_base){ .local = f.region,
				 .remote = extra_region(&f, "ro", WH_ACCESS_READ) };
	d.bases = &base;
	want(-EACCES, wh_blocks_new(f.peer, &d, &blocks));
	d.op = WH_READ;
	want(0, wh_blocks_new(f.peer, &d, &blocks));
	wh_blocks_free(blocks);
	fixture_close(&f);
}

static void blocks__of_another_peer(void **state)
{
	struct wh_blocks_desc d = {
		.size = sizeof(d), .op = WH_WRITE, .block_length = 10, .count = 3, .base_count = 1
	};
	struct wh_blocks *blocks;
	struct wh_batch *batch;
	struct wh_base base;
	struct wh_peer *first;
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	base = (struct wh_base){ .local = f.region, .remote = f.remote.id };
	d.bases = &base;
	first = f.peer;
	want(0, wh_blocks_new(first, &d, &blocks));
	fixture_connect(&f, f.child ? f.child->url : "self");
	batch = batch_of(&f, NULL, 0);
	want_text(-EINVAL, "peer", wh_batch_add_blocks(batch, blocks));
	want(0, wh_batch_free(batch));
	wh_blocks_free(blocks);
	want(0, wh_peer_close(first));
	fixture_close(&f);
}

/* ---- required transports ----------------------------------------------- */

/* Batches of one peer may require different transports. */
static void require__of_a_batch(void **state)
{
	static const char *const names[] = { "tcp", "shm", "tcp" };
	struct wh_engine *engine = engine_open(NULL, "none", NULL);
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	want(0, wh_peer_close(f.peer));
	want(0, wh_region_unregister(f.region));
	want(0, wh_engine_close(f.engine));
	f.engine = engine;
	want(0, wh_region_register(engine, f.local, 2 * LENGTH, NULL, &f.region));
	fixture_connect(&f, f.child->url);
	for (int i = 0; i < 3; i++) {
		struct wh_batch_options o = { .size = sizeof(o), .require = names[i] };
		struct wh_transfer t = transfer_of(&f, WH_WRITE, 0, 0, 5000);
		struct wh_batch *batch;
		struct wh_route routes[8];
		size_t count = 8;

		want(0, wh_batch_new(f.peer, &o, &batch));
		want(0, wh_batch_add(batch, &t, 1));
		want(0, batch_run(batch));
		want(0, wh_batch_routes(batch, routes, &count));
		for (size_t r = 0; r < count; r++)
			want_true((strcmp(routes[r].transport, names[i]) == 0) ==
					  (routes[r].bytes == 5000),
				  "%s moved %llu bytes", routes[r].transport,
				  (unsigned long long)routes[r].bytes);
		want(0, wh_batch_free(batch));
	}
	fixture_close(&f);
}

/* Transport "self" cannot reach another process. */
static void require__impossible(void **state)
{
	struct wh_batch_options o = { .size = sizeof(o), .require = "self" };
	struct wh_transfer t;
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	t = transfer_of(&f, WH_WRITE, 0, 0, 5000);
	want(0, wh_batch_new(f.peer, &o, &batch));
	want(0, wh_batch_add(batch, &t, 1));
	want_text(-EOPNOTSUPP, "self", wh_batch_submit(batch));
	want(-EINVAL, wh_batch_test(batch));
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

static const struct CMUnitTest tests[] = {
	TEST_EVERY_ROUTE(add__every_field),  TEST_EVERY_ROUTE(add__foreign_regions),
	TEST_REMOTE_ROUTES(add__rights),     TEST_OVER(batch__arguments, self),
	TEST_OVER(batch__arguments, tcp4),   TEST_EVERY_ROUTE(blocks__every_field),
	TEST_REMOTE_ROUTES(blocks__rights),  TEST_EVERY_ROUTE(blocks__of_another_peer),
	TEST_OVER(require__of_a_batch, shm), TEST_OVER(require__impossible, tcp4),
};

HARNESS_MAIN("api-transfers", tests)
