/* SPDX-License-Identifier: Apache-2.0 */
/* transfer-estimate.c: the estimated duration of a batch that the CPU or a network moves, from a
 * measurement that the program asks for or from its batches */
#include "lib/fixture.h"

static struct wh_estimate estimate_of(struct wh_batch *batch)
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

/* An estimate measures nothing by itself. After a measurement, more bytes and more transfers take
 * longer; neither moves any of the batch's bytes. */
static void estimate__measured_on_request(void **state)
{
	struct wh_estimate unknown, few, many, fragments, again;
	struct wh_transfer transfers[2];
	struct wh_batch *batch, *large;
	uint64_t probed;
	struct fixture f;

	fixture_open(&f, *state, 1024 * KIB);
	transfers[0] = transfer_of(&f, WH_WRITE, 0, 0, 1);
	transfers[1] = transfer_of(&f, WH_WRITE, 4096, 4096, 512 * KIB);
	batch = batch_of(&f, transfers, 1);
	probed = batches_done(&f);
	unknown = estimate_of(batch);
	want(1, unknown.bytes);
	want(0, unknown.duration);
	want(0, unknown.measured);
	want(probed, batches_done(&f));
	want(0, wh_peer_measure(f.peer, f.region, f.remote.id));
	few = estimate_of(batch);
	want(1, few.bytes);
	want(1, few.transfers);
	want(1, few.measured);
	want(0, few.kernel + few.copies + few.ctas);
	want_true(few.duration > 0, "nothing takes no time");
	want(-EINVAL, batch_now(batch));
	want_true(batches_done(&f) > probed, "nothing was measured");
	probed = batches_done(&f);
	large = batch_of(&f, &transfers[1], 1);
	many = estimate_of(large);
	want_true(many.duration >= few.duration, "512 KiB take less than a byte");
	want(0, wh_batch_add(large, transfers, 1));
	fragments = estimate_of(large);
	want(512 * KIB + 1, fragments.bytes);
	want(2, fragments.transfers);
	want_true(fragments.duration >= many.duration, "one more takes less");
	again = estimate_of(batch);
	want(few.duration, again.duration);
	want(probed, batches_done(&f));
	/* Afterwards the batch works as any other. */
	want(0, batch_run(batch));
	want(0, wh_batch_free(batch));
	want(0, wh_batch_free(large));
	fixture_close(&f);
}

/* The shortest and the longest of some submissions. */
static void run_often(struct wh_batch *batch, uint64_t *shortest, uint64_t *longest)
{
	*shortest = UINT64_MAX;
	*longest = 0;
	for (int i = 0; i < 20; i++) {
		int64_t start = now();
		uint64_t took;

		want(0, batch_run(batch));
		took = (uint64_t)(now() - start);
		*shortest = took < *shortest ? took : *shortest;
		*longest = took > *longest ? took : *longest;
	}
}

/* Without a measurement, the program's own batches show what a batch takes, and nothing shows what
 * batches of another kind take. An estimate moves no bytes. */
static void estimate__from_traffic(void **state)
{
	struct wh_estimate estimate;
	struct wh_transfer transfers[3];
	struct wh_batch *large, *small, *back;
	uint64_t shortest, longest, before;
	char text[2048];
	struct fixture f;

	fixture_open(&f, *state, 1024 * KIB);
	transfers[0] = transfer_of(&f, WH_WRITE, 0, 0, 1024 * KIB);
	transfers[1] = transfer_of(&f, WH_WRITE, 0, 0, 64);
	transfers[2] = transfer_of(&f, WH_READ, 1024 * KIB, 0, 1024 * KIB);
	large = batch_of(&f, &transfers[0], 1);
	small = batch_of(&f, &transfers[1], 1);
	back = batch_of(&f, &transfers[2], 1);
	want(0, estimate_of(large).duration);
	/* The first one opens connections. */
	want(0, batch_run(large));
	want(0, estimate_of(large).duration);
	run_often(large, &shortest, &longest);
	before = batches_done(&f);
	estimate = estimate_of(large);
	want(WH_ESTIMATE_TRAFFIC, estimate.measured);
	want(0, estimate.working_set);
	want_true(estimate.age > 0, "no age");
	want_true(estimate.duration > shortest / 10 && estimate.duration <= longest,
		  "estimated %llu ns, took %llu to %llu", (unsigned long long)estimate.duration,
		  (unsigned long long)shortest, (unsigned long long)longest);
	want_true(wh_batch_explain(large, text, sizeof(text)) > 0, "no explanation");
	want_true(strstr(text, "us, measured by traffic ") && strstr(text, " s ago"), "%s", text);
	/* Of small ones only one in 128 is timed, of reads there were none. */
	want(0, estimate_of(small).duration);
	want(0, estimate_of(back).duration);
	want(before, batches_done(&f));
	for (int i = 0; i < 128 * 2; i++)
		want(0, batch_run(small));
	want(WH_ESTIMATE_TRAFFIC, estimate_of(small).measured);
	want_true(estimate_of(small).duration > 0, "a small one takes no time");
	want(0, estimate_of(back).duration);
	/* What the program asks for counts, until there is newer traffic. */
	want(0, wh_peer_measure(f.peer, f.region, f.remote.id));
	want(WH_ESTIMATE_MEASURED, estimate_of(large).measured);
	want(1024 * KIB, estimate_of(large).working_set);
	want(WH_ESTIMATE_MEASURED, estimate_of(back).measured);
	want(0, batch_run(large));
	want(WH_ESTIMATE_TRAFFIC, estimate_of(large).measured);
	want(WH_ESTIMATE_MEASURED, estimate_of(back).measured);
	want(0, wh_batch_free(large));
	want(0, wh_batch_free(small));
	want(0, wh_batch_free(back));
	fixture_close(&f);
}

/* Batches that share the path show how fast it is for several, not for one. */
static void estimate__not_from_several_at_once(void **state)
{
	struct wh_transfer transfers[2];
	struct wh_batch *batch[2];
	struct fixture f;

	fixture_open(&f, *state, 1024 * KIB);
	for (int i = 0; i < 2; i++) {
		transfers[i] = transfer_of(&f, WH_WRITE, 0, i * 512 * KIB, 512 * KIB);
		batch[i] = batch_of(&f, &transfers[i], 1);
	}
	for (int round = 0; round < 10; round++) {
		/* Neither ends before the other one has begun. */
		child_stop(f.child);
		want(0, wh_batch_submit(batch[0]));
		want(0, wh_batch_submit(batch[1]));
		child_continue(f.child);
		for (int i = 0; i < 2; i++)
			want(0, batch_end(batch[i], WH_FOREVER));
	}
	want(0, estimate_of(batch[0]).duration);
	/* One after the other they do. */
	for (int i = 0; i < 2; i++)
		want(0, batch_run(batch[i]));
	want(WH_ESTIMATE_TRAFFIC, estimate_of(batch[0]).measured);
	for (int i = 0; i < 2; i++)
		want(0, wh_batch_free(batch[i]));
	fixture_close(&f);
}

/* What is measured are reads, and no region is long enough for them. */
static void estimate__nothing_to_measure_with(void **state)
{
	struct wh_transfer transfer;
	struct wh_estimate out;
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, 4 * KIB);
	transfer = transfer_of(&f, WH_WRITE, 0, 0, 100);
	batch = batch_of(&f, &transfer, 1);
	want_text(-ENODATA, "64 KiB", wh_peer_measure(f.peer, f.region, f.remote.id));
	out = estimate_of(batch);
	want(100, out.bytes);
	want(0, out.duration);
	want(0, out.measured);
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

static struct wh_batch *asked;
static struct wh_estimate callback_estimate;
static struct fixture *callback_fixture;
static _Atomic int measured;
static _Atomic int answer;

static void estimate_in_callback(struct wh_batch *batch, int status, void *arg)
{
	(void)batch;
	(void)arg;
	measured = wh_peer_measure(callback_fixture->peer, callback_fixture->region,
				   callback_fixture->remote.id);
	callback_estimate = (struct wh_estimate){ .size = sizeof(callback_estimate) };
	answer = status ? status : wh_batch_estimate(asked, &callback_estimate) + 1;
}

/* An estimate works in a callback. A measurement does not: this very thread would have to receive
 * the answers. */
static void estimate__in_a_callback(void **state)
{
	struct wh_batch_options options = { .size = sizeof(options),
					    .callback = estimate_in_callback };
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, 128 * KIB);
	transfer = transfer_of(&f, WH_WRITE, 0, 0, 100);
	asked = batch_of(&f, &transfer, 1);
	callback_fixture = &f;
	for (int round = 0; round < 2; round++) {
		answer = 0;
		want(0, wh_batch_new(f.peer, &options, &batch));
		want(0, wh_batch_add(batch, &transfer, 1));
		want(0, batch_run(batch));
		want(0, wh_batch_free(batch)); /* waits for the callback */
		want(1, answer);
		want(-EDEADLK, measured);
		want(100, callback_estimate.bytes);
		want_true(round ? callback_estimate.duration > 0 : !callback_estimate.duration,
			  "duration in a callback");
		want(0, wh_peer_measure(f.peer, f.region, f.remote.id));
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
	transfer = transfer_of(&f, WH_WRITE, 0, 0, 100);
	batch = batch_of(&f, &transfer, 1);
	want(-EINVAL, wh_batch_estimate(NULL, &out));
	want(-EINVAL, wh_batch_estimate(batch, NULL));
	want_text(-EINVAL, "peer", wh_peer_measure(NULL, f.region, f.remote.id));
	want_text(-EINVAL, "local", wh_peer_measure(f.peer, NULL, f.remote.id));
	want(-ENOENT, wh_peer_measure(f.peer, f.region, 12345));
	want(0, wh_batch_clear(batch));
	want(-EOPNOTSUPP, wh_batch_estimate(batch, &out));
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

static const struct CMUnitTest tests[] = {
	TEST_EVERY_ROUTE(estimate__measured_on_request),
	TEST_EVERY_ROUTE(estimate__from_traffic),
	TEST_OVER(estimate__not_from_several_at_once, tcp4),
	TEST_EVERY_ROUTE(estimate__nothing_to_measure_with),
	TEST_EVERY_ROUTE(estimate__in_a_callback),
	TEST(estimate__nonsense),
};

HARNESS_MAIN("transfer-estimate", tests)
