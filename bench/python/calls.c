/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What bench/python/overhead.py measures, in C, beside it.
 *
 *   calls URL TURNS
 *
 * The peer at URL publishes 64 MiB or more as "m". Prints the machine and the medians over the
 * turns as JSON, in us: submitting 16,384 prepared blocks of 4 KiB, right after 64 MiB have been
 * moved and after a few reads of 8 B, with warm caches; a prepared read of 8 B from its submission
 * to its end; reads of one block of 80,000 B and of 10,000 blocks of 8 B with all that is to be
 * made for them, and the latter's parts: wh_blocks_new(), and moving what is prepared.
 */
#include <stdint.h>
#include <stdlib.h>

#include <wherry/wherry.h>

#include "bench/machine.h"
#include "timing.h"

#define POOL ((size_t)64 << 20) /* bytes */
#define PAGES 16384
#define MANY 10000
#define TURNS_MOST 10000
#define SUBMISSIONS 50 /* of 64 MiB */
#define WARMING 3

static struct wh_engine *engine;
static struct wh_peer *peer;
static struct wh_base base;
static int32_t indices[PAGES];
static double figures[TURNS_MOST];

static void want(int error, const char *what)
{
	if (error)
		timing_die("calls", what);
}

static void connect_to(const char *url)
{
	struct wh_engine_options options = { .size = sizeof(options), .listen = "none" };
	struct wh_remote remote;
	void *memory;

	want(wh_engine_open(&options, &engine), "open");
	want(wh_memory_alloc(engine, POOL, NULL, &memory), "allocate");
	want(wh_region_register(engine, memory, POOL, NULL, &base.local), "register");
	want(wh_peer_open(engine, url, NULL, &peer), "connect");
	want(wh_peer_find(peer, "m", 5 * INT64_C(1000000000), &remote), "find");
	base.remote = remote.id;
	for (int32_t i = 0; i < PAGES; i++)
		indices[i] = i;
}

static void blocks_make(uint64_t length, uint64_t count, struct wh_blocks **blocks)
{
	struct wh_blocks_desc desc = { .size = sizeof(desc),
				       .op = WH_READ,
				       .block_length = length,
				       .count = count,
				       .bases = &base,
				       .base_count = 1,
				       .local_indices = indices,
				       .remote_indices = indices };

	want(wh_blocks_new(peer, &desc, blocks), "prepare");
}

static void batch_end(struct wh_batch *batch)
{
	want(wh_batch_wait_for(batch, WH_FOREVER), "wait");
	want(wh_batch_status(batch), "move");
}

static void batch_run(struct wh_batch *batch)
{
	want(wh_batch_submit(batch), "submit");
	batch_end(batch);
}

static struct wh_batch *batch_make(uint64_t length, uint64_t count)
{
	struct wh_blocks *blocks;
	struct wh_batch *batch;

	blocks_make(length, count, &blocks);
	want(wh_batch_new(peer, NULL, &batch), "batch");
	want(wh_batch_add_blocks(batch, blocks), "add");
	want(wh_blocks_free(blocks), "free");
	batch_run(batch);
	return batch;
}

/* us to submit prepared blocks; `small` is run before each time, if it is not NULL. */
static double submission(struct wh_batch *small)
{
	struct wh_batch *batch = batch_make(4096, PAGES);

	for (unsigned i = 0; i < SUBMISSIONS; i++) {
		double begun;

		for (unsigned j = 0; small && j < WARMING; j++)
			batch_run(small);
		begun = timing_now();
		want(wh_batch_submit(batch), "submit");
		figures[i] = timing_now() - begun;
		batch_end(batch);
	}
	want(wh_batch_free(batch), "free");
	return timing_median(figures, SUBMISSIONS) / 1000;
}

/* us to submit prepared blocks and to wait until they have been moved. */
static double prepared(uint64_t length, uint64_t count, unsigned turns)
{
	struct wh_batch *batch = batch_make(length, count);

	for (unsigned i = 0; i < turns; i++) {
		double begun = timing_now();

		batch_run(batch);
		figures[i] = timing_now() - begun;
	}
	want(wh_batch_free(batch), "free");
	return timing_median(figures, turns) / 1000;
}

/* us to prepare blocks and to move them once. */
static double unprepared(uint64_t length, uint64_t count, unsigned turns)
{
	struct wh_blocks *blocks;
	struct wh_batch *batch;

	want(wh_batch_new(peer, NULL, &batch), "batch");
	for (unsigned i = 0; i < turns; i++) {
		double begun = timing_now();

		blocks_make(length, count, &blocks);
		want(wh_batch_clear(batch), "clear");
		want(wh_batch_add_blocks(batch, blocks), "add");
		want(wh_blocks_free(blocks), "free");
		batch_run(batch);
		figures[i] = timing_now() - begun;
	}
	want(wh_batch_free(batch), "free");
	return timing_median(figures, turns) / 1000;
}

static double preparing(uint64_t length, uint64_t count, unsigned turns)
{
	struct wh_blocks *blocks;

	for (unsigned i = 0; i < turns; i++) {
		double begun = timing_now();

		blocks_make(length, count, &blocks);
		figures[i] = timing_now() - begun;
		want(wh_blocks_free(blocks), "free");
	}
	return timing_median(figures, turns) / 1000;
}

static int report(unsigned turns)
{
	static const char *const none[] = { NULL };
	json_t *about = json_pack("{s:i, s:o?}", "schema", 1, "environment",
				  machine_describe_run(NULL, none));
	struct wh_batch *small = batch_make(8, 1);
	json_t *c = json_object();

	json_object_set_new(c, "submit", json_real(submission(NULL)));
	json_object_set_new(c, "submit_warm", json_real(submission(small)));
	json_object_set_new(c, "read_8B", json_real(prepared(8, 1, turns)));
	json_object_set_new(c, "one_block", json_real(unprepared(8 * MANY, 1, turns)));
	json_object_set_new(c, "many_blocks", json_real(unprepared(8, MANY, turns)));
	json_object_set_new(c, "many_blocks_new", json_real(preparing(8, MANY, turns)));
	json_object_set_new(c, "many_blocks_moved", json_real(prepared(8, MANY, turns)));
	json_object_set_new(about, "c_us", c);
	if (json_dumpf(about, stdout, JSON_REAL_PRECISION(4)))
		return 1;
	json_decref(about);
	want(wh_batch_free(small), "free");
	return 0;
}

int main(int argc, char **argv)
{
	unsigned long turns = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;
	int status;

	if (!turns || turns > TURNS_MOST) {
		fprintf(stderr, "usage: calls URL TURNS\n");
		return 64;
	}
	connect_to(argv[1]);
	status = report((unsigned)turns);
	want(wh_peer_close(peer), "close");
	want(wh_region_unregister(base.local), "unregister");
	return status;
}
