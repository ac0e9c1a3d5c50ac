/* SPDX-License-Identifier: Apache-2.0 */
/* transfer-estimate.c: the estimated duration of a batch that the CPU or a network moves, measured
 * once, by reads */
#include "lib/fixture.h"

static struct wh_estimate estimate(struct wh_batch *batch)
{
	struct wh_estimate out = { .size = sizeof(out) };

	want(0, wh_batch_estimate(batch, &out));
	return out;
}

static uint64_t batches_done(struct fixture *f)
{
	struct wh_counters counters = { .size = sizeof(counters) };

	want(0, wh_peer_counters(f->peer, &counters));
	return counters.batches;
}

/* More bytes and more transfers take longer; the estimate moves none of the batch's bytes. */
static void estimate__measured_once(void **state)
{
	struct wh_estimate few, many, fragments, again;
	struct wh_transfer transfers[2];
	struct wh_batch *batch, *large;
	uint64_t probed;
	struct fixture f;

	fixture_open(&f, *state, 1024 * KIB);
	transfers[0] = fragment(&f, WH_WRITE, 0, 0, 1);
	transfers[1] = fragment(&f, WH_WRITE, 4096, 4096, 512 * KIB);
	batch = batch_of(&f, transfers, 1);
	few = estimate(batch);
	want(1, few.bytes);
	want(1, few.transfers);
	want(1, few.measured);
	want(0, few.kernel + few.copies + few.ctas);
	want_true(few.duration > 0, "nothing takes no time");
	want(-EINVAL, wh_batch_poll(batch));
	probed = batches_done(&f);
	want_true(probed > 0, "nothing was measured");
	large = batch_of(&f, &transfers[1], 1);
	many = estimate(large);
	want_true(many.duration >= few.duration, "512 KiB take less than a byte");
	want(0, wh_batch_add(large, transfers, 1));
	fragments = estimate(large);
	want(512 * KIB + 1, fragments.bytes);
	want(2, fragments.transfers);
	want_true(fragments.duration >= many.duration, "one more takes less");
	again = estimate(batch);
	want(few.duration, again.duration);
	want(probed, batches_done(&f));
	/* Afterwards the batch works as any other. */
	want(0, batch_run(batch));
	want(0, wh_batch_free(batch));
	want(0, wh_batch_free(large));
	fixture_close(&f);
}

/* The estimate measures reads, and no region is long enough for them. */
static void estimate__nothing_to_measure_with(void **state)
{
	struct wh_transfer transfer;
	struct wh_estimate out;
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, 4 * KIB);
	transfer = fragment(&f, WH_WRITE, 0, 0, 100);
	batch = batch_of(&f, &transfer, 1);
	out = estimate(batch);
	want(100, out.bytes);
	want(0, out.duration);
	want(0, out.measured);
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

static struct wh_batch *asked;
static struct wh_estimate told;
static _Atomic int answer;

static void ask(struct wh_batch *batch, int status, void *arg)
{
	(void)batch;
	(void)arg;
	told = (struct wh_estimate){ .size = sizeof(told) };
	answer = status ? status : wh_batch_estimate(asked, &told) + 1;
}

/* An estimate in a callback does not wait for the answers to a measurement: this very thread would
 * have to receive them. */
static void estimate__in_a_callback(void **state)
{
	struct wh_batch_options options = { .size = sizeof(options), .callback = ask };
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, 128 * KIB);
	transfer = fragment(&f, WH_WRITE, 0, 0, 100);
	asked = batch_of(&f, &transfer, 1);
	for (int round = 0; round < 2; round++) {
		answer = 0;
		want(0, wh_batch_new(f.peer, &options, &batch));
		want(0, wh_batch_add(batch, &transfer, 1));
		want(0, batch_run(batch));
		want(0, wh_batch_free(batch)); /* waits for the callback */
		want(1, answer);
		want(100, told.bytes);
		want_true(round ? told.duration > 0 : !told.duration, "duration in a callback");
		estimate(asked);
	}
	want(0, wh_batch_free(asked));
	fixture_close(&f);
}

static void estimate__nonsense(void **state)
{
	struct wh_estimate out = { .size = sizeof(out) };
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct fixture f;

	(void)state;
	fixture_open(&f, &route_self, 4 * KIB);
	transfer = fragment(&f, WH_WRITE, 0, 0, 100);
	batch = batch_of(&f, &transfer, 1);
	want(-EINVAL, wh_batch_estimate(NULL, &out));
	want(-EINVAL, wh_batch_estimate(batch, NULL));
	want(0, wh_batch_clear(batch));
	want(-EOPNOTSUPP, wh_batch_estimate(batch, &out));
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

static const struct CMUnitTest tests[] = {
	TEST_EVERY_ROUTE(estimate__measured_once),
	TEST_EVERY_ROUTE(estimate__nothing_to_measure_with),
	TEST_EVERY_ROUTE(estimate__in_a_callback),
	TEST(estimate__nonsense),
};

HARNESS_MAIN("transfer-estimate", tests)
