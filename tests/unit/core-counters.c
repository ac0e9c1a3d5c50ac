/* SPDX-License-Identifier: Apache-2.0 */
/* counters.c: each submission is counted once, whichever way it is counted; durations by bounds */
#include "core-fake.h"

#include "allocation.h"
#include "core/counters.h"
#include "frozen-clock.h"

#define START (1000 * WH_SECOND)

static struct wh_counters counters(void)
{
	struct wh_counters out = { .size = sizeof(out) };

	assert_int_equal(wh_peer_counters(self, &out), 0);
	return out;
}

static struct wh_transport_counters by(unsigned id)
{
	return counters().transport[id];
}

static void run(struct wh_batch *batch, int error)
{
	assert_int_equal(wh_batch_submit(batch), 0);
	while (RDMA->held_count)
		fake_end(RDMA, error);
	assert_int_equal(wh_batch_status(batch), error);
}

/* The first submission is counted at once, the second one lists the batch, further ones count in
 * the batch; a change of the plan, and the end of the batch, add them up. */
static void count__every_submission_once(void **state)
{
	struct wh_batch *batch = batch_of(100);

	(void)state;
	for (unsigned i = 1; i < 10; i++) {
		run(batch, 0);
		assert_int_equal(counters().batches, i);
		assert_int_equal(by(WH_TRANSPORT_RDMA).written_bytes, 100 * i);
		assert_int_equal(by(WH_TRANSPORT_RDMA).writes, i);
		assert_int_equal(by(WH_TRANSPORT_RDMA).attempts, i);
	}
	assert_true(batch->listed);
	add(batch, WH_READ, 300, 7);
	run(batch, 0);
	assert_int_equal(counters().batches, 10);
	assert_int_equal(by(WH_TRANSPORT_RDMA).written_bytes, 1000);
	assert_int_equal(by(WH_TRANSPORT_RDMA).read_bytes, 7);
	assert_int_equal(by(WH_TRANSPORT_RDMA).attempts, 11); /* one for each fragment */
	run(batch, 0);
	run(batch, 0);
	drop_batch(batch);
	assert_int_equal(counters().batches, 12);
	assert_int_equal(by(WH_TRANSPORT_RDMA).reads, 3);
	assert_int_equal(by(WH_TRANSPORT_RDMA).read_bytes, 21);
	assert_int_equal(by(WH_TRANSPORT_RDMA).written_bytes, 1200);
}

/* A batch that is cleared and filled again is not counted by its old plan. */
static void count__cleared_batches(void **state)
{
	struct wh_batch *batch = batch_of(100);

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		for (unsigned k = 0; k <= i; k++)
			run(batch, 0);
		assert_int_equal(wh_batch_clear(batch), 0);
		add(batch, WH_WRITE, 0, 1);
	}
	assert_int_equal(counters().batches, 10);
	assert_int_equal(by(WH_TRANSPORT_RDMA).written_bytes, 100 + 2 + 3 + 4);
	drop_batch(batch);
}

static void count__notifications_without_bytes(void **state)
{
	struct wh_batch *batch = batch_new();
	struct wh_notification got = { .size = sizeof(got) };

	(void)state;
	assert_int_equal(wh_batch_notify(batch, 1, NULL, 0), 0);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(wh_batch_submit(batch), 0);
		assert_int_equal(wh_batch_wait_for(batch, WH_FOREVER), 0);
		assert_int_equal(wh_engine_notification(engine, NULL, &got, 0), 0);
	}
	assert_int_equal(counters().batches, 4);
	assert_int_equal(by(WH_TRANSPORT_RDMA).attempts, 0);
	drop_batch(batch);
	assert_int_equal(counters().batches, 4);
}

/* Failures count what arrived, and errors where they happened; cancels are no errors. */
static void count__failures(void **state)
{
	struct wh_batch *batch = batch_of(100);

	(void)state;
	add(batch, WH_READ, 200, 50);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(wh_batch_submit(batch), 0);
		fake_end(RDMA, -EIO);
		fake_end(RDMA, 0);
		assert_int_equal(counters().failed, i + 1);
		assert_int_equal(counters().batches, 0);
		assert_int_equal(by(WH_TRANSPORT_RDMA).errors, i + 1);
		assert_int_equal(by(WH_TRANSPORT_RDMA).written_bytes, 0);
		assert_int_equal(by(WH_TRANSPORT_RDMA).read_bytes, 50 * (i + 1));
		assert_int_equal(by(WH_TRANSPORT_RDMA).attempts, 2 * (i + 1));
	}
	RDMA->ends_on_cancel = true;
	assert_int_equal(wh_batch_submit(batch), 0);
	assert_int_equal(wh_batch_cancel(batch), 0);
	assert_int_equal(counters().cancelled, 1);
	assert_int_equal(counters().failed, 3);
	assert_int_equal(by(WH_TRANSPORT_RDMA).errors, 3);
	assert_int_equal(by(WH_TRANSPORT_RDMA).read_bytes, 150);
	/* An error of before is not counted again. */
	run(batch, 0);
	run(batch, 0);
	assert_int_equal(counters().batches, 2);
	assert_int_equal(by(WH_TRANSPORT_RDMA).errors, 3);
	assert_int_equal(by(WH_TRANSPORT_RDMA).attempts, 12);
	assert_int_equal(counters().large_in_flight, 0);
	drop_batch(batch);
}

static void count__reroutes(void **state)
{
	struct wh_batch *batch = batch_of(100);

	(void)state;
	run(batch, 0);
	run(batch, 0);
	RDMA->on_submit = FAKE_REROUTES;
	RDMA->error = -EIO;
	RDMA->why = "broke";
	SHM->on_submit = FAKE_ENDS;
	run(batch, 0);
	assert_int_equal(by(WH_TRANSPORT_RDMA).written_bytes, 200);
	assert_int_equal(by(WH_TRANSPORT_SHM).written_bytes, 100);
	assert_int_equal(by(WH_TRANSPORT_RDMA).reroutes, 1);
	assert_int_equal(by(WH_TRANSPORT_RDMA).attempts, 3);
	assert_int_equal(by(WH_TRANSPORT_SHM).attempts, 1);
	assert_int_equal(counters().batches, 3);
	drop_batch(batch);
}

/* ---- durations ----------------------------------------------------------------------------- */

static void run_for(struct wh_batch *batch, int64_t ns)
{
	frozen_now = START;
	assert_int_equal(wh_batch_submit(batch), 0);
	frozen_now = START + ns;
	fake_end(RDMA, 0);
	frozen_now = 0;
}

/* Buckets hold what is up to their bound; the last one all that is longer. */
static void latency__bounds(void **state)
{
	struct wh_batch *batch = batch_of(WH_SMALL_BATCH + 1);
	uint64_t sum = 0, before = 0;

	(void)state;
	for (unsigned i = 0; i < WH_LATENCY_BUCKETS; i++) {
		uint64_t bound = WH_LATENCY_BOUND(i);
		uint64_t times[] = { before + 1, bound, bound + 1 };

		for (unsigned k = 0; k < 3; k++) {
			struct wh_latency old = counters().large, now;
			unsigned bucket = i + (k == 2 && i + 1 < WH_LATENCY_BUCKETS);

			run_for(batch, (int64_t)times[k]);
			now = counters().large;
			sum += times[k];
			assert_int_equal(now.bucket[bucket], old.bucket[bucket] + 1);
			assert_int_equal(now.count, old.count + 1);
			assert_int_equal(now.sum, sum);
		}
		before = bound;
	}
	run_for(batch, 0);
	assert_int_equal(counters().large.bucket[0], 3);
	assert_int_equal(counters().small.count, 0);
	drop_batch(batch);
}

/* Bytes in flight are those of large batches that run, also when they fail. */
static void in_flight__large_ones(void **state)
{
	struct wh_batch *small = batch_of(WH_SMALL_BATCH), *large = batch_of(WH_SMALL_BATCH + 1);

	(void)state;
	assert_int_equal(wh_batch_submit(small), 0);
	assert_int_equal(counters().large_in_flight, 0);
	assert_int_equal(wh_batch_submit(large), 0);
	assert_int_equal(counters().large_in_flight, WH_SMALL_BATCH + 1);
	fake_end(RDMA, 0);
	assert_int_equal(counters().large_in_flight, WH_SMALL_BATCH + 1);
	fake_end(RDMA, -EIO);
	assert_int_equal(counters().large_in_flight, 0);
	/* One that failed is not timed. */
	assert_int_equal(counters().large.count, 0);
	assert_int_equal(wh_batch_submit(large), 0);
	fake_end(RDMA, 0);
	assert_int_equal(counters().large.count, 1);
	drop_batch(small);
	drop_batch(large);
}

/* Of small submissions one in WH_TIMED_EVERY is timed, once the batch has begun to be. */
static void latency__one_in_many(void **state)
{
	struct wh_batch *batch = batch_of(8);
	uint64_t before;

	(void)state;
	batch->timed_in = 1;
	run(batch, 0);
	assert_int_equal(counters().small.count, 1);
	before = counters().small.count;
	for (unsigned i = 1; i < WH_TIMED_EVERY; i++)
		run(batch, 0);
	assert_int_equal(counters().small.count, before);
	run(batch, 0);
	assert_int_equal(counters().small.count, before + 1);
	drop_batch(batch);
}

/* ---- adding up ----------------------------------------------------------------------------- */

static void total__keeps_closed_peers(void **state)
{
	struct wh_engine_counters out = { .size = sizeof(out) };
	struct wh_counters total = { .size = sizeof(total) };
	struct wh_batch *batch;
	struct wh_peer *kept = self;

	(void)state;
	assert_int_equal(wh_peer_open(engine, "self", NULL, &self), 0);
	fakes_give(self);
	batch = batch_of(100);
	run(batch, 0);
	run(batch, 0);
	run(batch, 0);
	assert_int_equal(wh_engine_counters(engine, &out, &total), 0);
	assert_int_equal(total.batches, 3);
	assert_int_equal(out.peers, 2);
	drop_batch(batch);
	fakes_take(self);
	assert_int_equal(wh_peer_close(self), 0);
	self = kept;
	assert_int_equal(wh_engine_counters(engine, &out, &total), 0);
	assert_int_equal(total.batches, 3);
	assert_int_equal(total.transport[WH_TRANSPORT_RDMA].written_bytes, 300);
	assert_int_equal(out.peers, 1);
	assert_int_equal(out.regions, 2);
	assert_int_equal(counters().batches, 0);
}

static void unfinished__uses_of_regions(void **state)
{
	struct wh_engine_counters out = { .size = sizeof(out) };
	struct wh_batch *batch = batch_of(100);

	(void)state;
	assert_int_equal(wh_batch_submit(batch), 0);
	assert_int_equal(wh_engine_counters(engine, &out, NULL), 0);
	assert_int_equal(out.unfinished, 1);
	fake_end(RDMA, 0);
	assert_int_equal(wh_engine_counters(engine, &out, NULL), 0);
	assert_int_equal(out.unfinished, 0);
	drop_batch(batch);
}

static void arguments(void **state)
{
	struct wh_counters out = { .size = sizeof(out) };

	(void)state;
	assert_int_equal(wh_peer_counters(NULL, &out), -EINVAL);
	assert_int_equal(wh_peer_counters(self, NULL), -EINVAL);
	said("out is NULL");
	assert_int_equal(wh_engine_counters(engine, NULL, &out), -EINVAL);
	assert_int_equal(wh_engine_counters(NULL, NULL, NULL), -EINVAL);
}

/* ---- for observers ------------------------------------------------------------------------- */

static uint8_t observed[1 << 16];

static int observe(size_t room, size_t *length)
{
	*length = room;
	memset(observed, 0xa5, sizeof(observed));
	return wh_engine_observe(engine, observed, length);
}

static void observe__room(void **state)
{
	size_t length = 0, wanted;

	(void)state;
	assert_int_equal(wh_engine_observe(engine, NULL, NULL), -EINVAL);
	length = 1;
	assert_int_equal(wh_engine_observe(engine, NULL, &length), -EINVAL);
	said("buffer is NULL");
	length = 0;
	assert_int_equal(wh_engine_observe(engine, NULL, &length), -ENOSPC);
	wanted = length;
	assert_true(wanted);
	assert_int_equal(observe(wanted - 1, &length), -ENOSPC);
	assert_int_equal(length, wanted);
	assert_int_equal(observed[0], 0xa5);
	assert_int_equal(observe(wanted, &length), 0);
	assert_int_not_equal(observed[0], 0xa5);
	assert_int_equal(observed[wanted], 0xa5);
	assert_int_equal(observe(wanted + 1, &length), 0);
	assert_int_equal(length, wanted);
	assert_int_equal(WITHOUT_MEMORY(1, observe(wanted, &length)), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(count__every_submission_once),
		TEST(count__cleared_batches),
		TEST(count__notifications_without_bytes),
		TEST(count__failures),
		TEST(count__reroutes),
		TEST(latency__bounds),
		TEST(in_flight__large_ones),
		TEST(latency__one_in_many),
		TEST(total__keeps_closed_peers),
		TEST(unfinished__uses_of_regions),
		TEST(arguments),
		TEST(observe__room),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
