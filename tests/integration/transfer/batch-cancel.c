/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: long */
/* batch-cancel.c: cancelling beside other threads and batches, and batches that overtake others
 *
 * What a cancel promises about bytes, statuses and queues the simulation checks. */

#include "lib/fixture.h"

#define LENGTH (SCALE(32, 16) * MIB)
#define CHUNK MIB

/* A batch of chunks that covers the region `times` times. */
static struct wh_batch *bulk_new(const struct fixture *f, uint32_t op, unsigned int times,
				 const struct wh_batch_options *options)
{
	size_t chunks = f->length / CHUNK, count = HARNESS_TURNS ? chunks : chunks * times;
	struct wh_transfer *transfers = calloc(count, sizeof(*transfers));
	struct wh_batch *batch;

	assert_non_null(transfers);
	for (size_t i = 0; i < count; i++) {
		uint64_t at = i % chunks * CHUNK;

		transfers[i] = transfer_of(f, op, at, at, CHUNK);
	}
	want(0, wh_batch_new(f->peer, options, &batch));
	want(0, wh_batch_add(batch, transfers, count));
	free(transfers);
	return batch;
}

static void pause_us(unsigned int us)
{
	struct timespec t = { .tv_nsec = us * 1000L };

	nanosleep(&t, NULL);
}

/* A cancel wakes a thread that waits for the batch. */
static void cancel__while_another_waits(void **state)
{
	struct waiting waiting;
	struct wh_batch *batch;
	struct fixture f;
	int status;

	fixture_open(&f, *state, LENGTH);
	batch = bulk_new(&f, WH_READ, 64, NULL);
	for (int i = 0; i < 5; i++) {
		want(0, wh_batch_submit(batch));
		wait_begin(&waiting, batch);
		pause_us(1500);
		want(0, wh_batch_cancel(batch));
		status = wait_end(&waiting);
		want(batch_now(batch), status);
		want_true(status == 0 || status == -ECANCELED, "it is %d", status);
	}
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* Other batches of the same peer are not affected. */
static void cancel__others_go_on(void **state)
{
	enum { OTHERS = 8 };
	struct wh_batch *bulk, *others[OTHERS];
	uint64_t length, half = LENGTH / 2;
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	length = half / OTHERS;
	f.length = half; /* the bulk uses the first half */
	bulk = bulk_new(&f, WH_WRITE, 32, NULL);
	f.length = LENGTH;
	for (uint64_t i = 0; i < OTHERS; i++) {
		struct wh_transfer transfer =
			transfer_of(&f, i % 2 ? WH_READ : WH_WRITE, LENGTH + half + i * length,
				    half + i * length, length);

		others[i] = batch_of(&f, &transfer, 1);
	}
	for (uint64_t round = 0; round < SCALE(5, 2); round++) {
		pattern_fill(f.local + LENGTH + half, half, 0, 2 * round);
		target_fill(&f, (int64_t)half, half, 0, 2 * round + 1);
		want(0, wh_batch_submit(bulk));
		for (int i = 0; i < OTHERS; i++)
			want(0, wh_batch_submit(others[i]));
		pause_us(1000);
		want(0, wh_batch_cancel(bulk));
		for (uint64_t i = 0; i < OTHERS; i++) {
			uint64_t seed = 2 * round + i % 2, at = half + i * length;

			want(0, batch_end(others[i], PATIENCE));
			want_true(target_check(&f, (int64_t)at, length, i * length, seed) ==
						  PATTERN_GOOD &&
					  pattern_check(f.local + LENGTH + at, length, i * length,
							seed) == PATTERN_GOOD,
				  "batch %d has wrong bytes", (int)i);
		}
	}
	want(0, wh_batch_free(bulk));
	for (int i = 0; i < OTHERS; i++)
		want(0, wh_batch_free(others[i]));
	fixture_close(&f);
}

/* Cancel after growing delays, very often, to hit every stage of a submission. */
static void cancel__at_once_and_often(void **state)
{
	struct wh_transfer transfers[64];
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, MIB);
	for (uint64_t i = 0; i < 64; i++)
		transfers[i] =
			transfer_of(&f, i % 2 ? WH_READ : WH_WRITE, i * 4096, i * 4096, 4096);
	batch = batch_of(&f, transfers, 64);
	for (int i = 0; i < SCALE(300, 40); i++) {
		int status;

		want(0, wh_batch_submit(batch));
		pause_us((unsigned int)i % 50);
		want(0, wh_batch_cancel(batch));
		status = batch_now(batch);
		want_true(status == 0 || status == -ECANCELED, "time %d: %d", i, status);
	}
	want(0, batch_run(batch));
	want(0, wh_batch_free(batch));
	want(0, move(&f, WH_WRITE, 0, 0, 1000));
	fixture_close(&f);
}

/* Eight bytes with a higher priority do not wait for the gigabytes queued before them. */
static void priority__overtakes_bulk(void **state)
{
	struct wh_batch_options urgent = { .size = sizeof(urgent),
					   .priority = WH_PRIORITY_LATENCY };
	struct wh_transfer transfer;
	struct wh_batch *bulk, *small;
	struct fixture f, less;
	int overtaken = 0, early = 0;

	/* If the bytes can be moved only once, more of them are needed to take some time. */
	fixture_open(&f, *state, HARNESS_TURNS ? 128 * MIB : LENGTH);
	less = f; /* concurrent reads and writes do not overlap */
	less.length -= CHUNK;
	bulk = bulk_new(&less, WH_WRITE, 64, NULL);
	transfer = transfer_of(&f, WH_READ, f.length, less.length, 8);
	want(0, wh_batch_new(f.peer, &urgent, &small));
	want(0, wh_batch_add(small, &transfer, 1));
	want(0, batch_run(small));
	/* The bulk may end while this thread has no CPU; then once more. Of those that were
	 * submitted before its end, the last may end after it. */
	for (int round = 0; round < 20 && !overtaken; round++) {
		early = 0;
		want(0, wh_batch_submit(bulk));
		for (int i = 0; i < 5; i++) {
			pause_us(2000);
			early += batch_now(bulk) == -EAGAIN;
			want(0, wh_batch_submit(small));
			want(0, batch_end(small, PATIENCE));
			overtaken += batch_now(bulk) == -EAGAIN;
		}
		want(0, batch_end(bulk, 3 * PATIENCE));
	}
	want_true(overtaken && overtaken >= early - 1, "the bulk was overtaken %d times of %d",
		  overtaken, early);
	want(0, wh_batch_free(bulk));
	want(0, wh_batch_free(small));
	fixture_close(&f);
}

static const struct CMUnitTest tests[] = {
	TEST_EVERY_ROUTE(cancel__while_another_waits),
	TEST_EVERY_ROUTE(cancel__others_go_on),
	TEST_OVER(cancel__others_go_on, file_lent),
	TEST_EVERY_ROUTE(cancel__at_once_and_often),
	TEST_OVER(cancel__at_once_and_often, file_lent),
	TEST_EVERY_ROUTE(priority__overtakes_bulk),
};

HARNESS_MAIN("batch-cancel", tests)
