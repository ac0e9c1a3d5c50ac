/* SPDX-License-Identifier: Apache-2.0 */
/* batch-look.c: threads that look at a batch while another one, or a callback, fills and submits
 * it. Errors of a use after free show by themselves, races under the thread sanitizer. */
#include <pthread.h>
#include <stdatomic.h>

#include "lib/fixture.h"

#define LENGTH (256 * KIB)

/* Two engines of this process. The initiator does not know the owner's region. */
struct strangers {
	struct wh_engine *owner, *initiator;
	struct wh_region *target, *source;
	struct wh_peer *peer;
	unsigned char *there, *here;
	size_t used; /* bytes of both that some transfer moves, each once */
};

static void strangers_open(struct strangers *s)
{
	struct wh_region_options open = { .size = sizeof(open), .access = ACCESS_BOTH };

	s->used = 0;
	s->owner = engine_open(NULL, "127.0.0.1:0", NULL);
	s->initiator = engine_open("tcp", "none", NULL);
	s->there = pages_new(LENGTH);
	s->here = pages_new(LENGTH);
	want(0, wh_region_register(s->owner, s->there, LENGTH, &open, &s->target));
	want(0, wh_region_register(s->initiator, s->here, LENGTH, NULL, &s->source));
	want(0, wh_peer_open(s->initiator, wh_engine_url(s->owner), NULL, &s->peer));
}

static void strangers_close(struct strangers *s)
{
	want(0, wh_peer_close(s->peer));
	want(0, wh_region_unregister(s->source));
	want(0, wh_region_unregister(s->target));
	want(0, wh_engine_close(s->initiator));
	want(0, wh_engine_close(s->owner));
	pages_free(s->here, LENGTH);
	pages_free(s->there, LENGTH);
}

/* Transfers that go to and fro: each is a fragment of its own. */
static int strangers_add(struct strangers *s, struct wh_batch *batch, size_t count)
{
	struct wh_address_transfer *transfers = calloc(count, sizeof(*transfers));
	int error;

	if (!transfers || count > LENGTH - s->used) {
		free(transfers);
		return -ENOMEM;
	}
	for (size_t i = 0; i < count; i++)
		transfers[i] = (struct wh_address_transfer){
			.local = s->here + s->used + i,
			.remote = (uintptr_t)s->there + s->used + i,
			.length = 1,
			.op = i % 2 ? WH_READ : WH_WRITE,
		};
	error = wh_batch_add_address(batch, transfers, count);
	s->used += count;
	free(transfers);
	return error;
}

/* ---- threads that look ------------------------------------------------- */

struct looker {
	struct wh_batch *batch;
	atomic_bool stop;
	atomic_int wrong; /* the first error that no call should give */
	pthread_t threads[3];
};

/* Right are: never submitted, running, nothing to show, and regions that nobody has asked for. */
static void looker_note(struct looker *looker, int error)
{
	int none = 0;

	if (error < 0 && error != -EINVAL && error != -EAGAIN && error != -EOPNOTSUPP &&
	    error != -ENOENT)
		atomic_compare_exchange_strong(&looker->wrong, &none, error);
}

static void *looker_run(void *arg)
{
	struct looker *looker = arg;
	struct wh_estimate estimate;
	struct wh_route routes[8];
	char text[1000];
	uint64_t bytes;
	size_t count;
	int status;

	do {
		count = 8;
		estimate.size = sizeof(estimate);
		looker_note(looker, wh_batch_progress(looker->batch, &bytes));
		looker_note(looker, wh_batch_routes(looker->batch, routes, &count));
		looker_note(looker, wh_batch_estimate(looker->batch, &estimate));
		looker_note(looker, wh_batch_explain(looker->batch, text, sizeof(text)));
		looker_note(looker, wh_batch_transfer_status(looker->batch, 0, &status));
		looker_note(looker, wh_batch_test(looker->batch));
	} while (!atomic_load(&looker->stop));
	return NULL;
}

static void looker_start(struct looker *looker, struct wh_batch *batch)
{
	looker->batch = batch;
	atomic_store(&looker->stop, false);
	atomic_store(&looker->wrong, 0);
	for (unsigned i = 0; i < 3; i++)
		want(0, pthread_create(&looker->threads[i], NULL, looker_run, looker));
}

static void looker_end(struct looker *looker)
{
	atomic_store(&looker->stop, true);
	for (unsigned i = 0; i < 3; i++)
		want(0, pthread_join(looker->threads[i], NULL));
	want(0, atomic_load(&looker->wrong));
}

/* ---- tests ------------------------------------------------------------- */

/* One thread: the plan of a batch that asks for its regions first is made by another. */
static void progress__while_it_asks(void **state)
{
	size_t count = SCALE(200000, 5000);
	struct strangers s;
	struct wh_batch *batch;
	uint64_t bytes = 0;

	(void)state;
	strangers_open(&s);
	want(0, wh_batch_new(s.peer, NULL, &batch));
	want(0, strangers_add(&s, batch, count));
	want(0, wh_batch_submit(batch));
	do {
		want(0, wh_batch_progress(batch, &bytes));
		want_true(bytes <= count, "%llu bytes", (unsigned long long)bytes);
	} while (wh_batch_test(batch) == -EAGAIN);
	want(0, wh_batch_status(batch));
	want(0, wh_batch_progress(batch, &bytes));
	want(count, bytes);
	want(0, wh_batch_free(batch));
	strangers_close(&s);
}

/* One thread: what was added last is not in the last plan, which may be shown. */
static void explain__after_adding(void **state)
{
	struct strangers s;
	struct wh_batch *batch;
	char text[1000];

	(void)state;
	strangers_open(&s);
	want(0, wh_batch_new(s.peer, NULL, &batch));
	want(0, strangers_add(&s, batch, 16 * KIB));
	want(0, wh_batch_submit(batch));
	want(0, batch_end(batch, PATIENCE));
	want(0, strangers_add(&s, batch, 64 * KIB));
	want_true(wh_batch_explain(batch, text, sizeof(text)) > 0, "nothing to say");
	want_true(strstr(text, "tcp: 16384 bytes"), "it says: %s", text);
	want(0, wh_batch_free(batch));
	strangers_close(&s);
}

/* Other threads look while this one submits, and adds more each time. */
static void look__while_it_grows(void **state)
{
	struct looker looker;
	struct strangers s;

	(void)state;
	strangers_open(&s);
	for (int round = 0; round < SCALE(20, 4); round++) {
		struct wh_batch *batch;

		s.used = 0;
		want(0, wh_batch_new(s.peer, NULL, &batch));
		want(0, strangers_add(&s, batch, 1));
		looker_start(&looker, batch);
		for (int i = 0; i < 8; i++) {
			want(0, wh_batch_submit(batch));
			want(0, batch_end(batch, PATIENCE));
			if (i == 5)
				want(0, wh_batch_clear(batch));
			want(0, strangers_add(&s, batch, (size_t)1 << i));
		}
		looker_end(&looker);
		want(0, wh_batch_free(batch));
	}
	strangers_close(&s);
}

#define FILLED 512 /* transfers: often there is room for the next one without growing */

/* One transfer after the other is added while others copy the batch to explain it. */
static void look__while_it_is_filled(void **state)
{
	struct wh_transfer transfer = { .op = WH_WRITE, .length = 1 };
	struct looker looker;
	struct wh_batch *batch;
	struct strangers s;

	(void)state;
	strangers_open(&s);
	transfer.local = s.source;
	transfer.remote = wh_region_id(s.target);
	want(0, wh_batch_new(s.peer, NULL, &batch));
	looker_start(&looker, batch);
	for (int round = 0; round < SCALE(2000, 100); round++) {
		want(0, wh_batch_clear(batch));
		for (unsigned int i = 0; i < FILLED; i++) {
			transfer.local_offset = transfer.remote_offset = i;
			want(0, wh_batch_add(batch, &transfer, 1));
		}
	}
	looker_end(&looker);
	want(0, batch_run(batch));
	want(0, wh_batch_free(batch));
	strangers_close(&s);
}

/* Threads explain a batch that was never submitted, while this one submits it. */
static void look__at_the_first_submission(void **state)
{
	struct looker looker;
	struct strangers s;

	(void)state;
	strangers_open(&s);
	for (int round = 0; round < SCALE(100, 20); round++) {
		struct wh_batch *batch;

		s.used = 0;
		want(0, wh_batch_new(s.peer, NULL, &batch));
		want(0, strangers_add(&s, batch, 16));
		looker_start(&looker, batch);
		want(0, strangers_add(&s, batch, 16));
		want(0, wh_batch_submit(batch));
		want(0, batch_end(batch, PATIENCE));
		looker_end(&looker);
		want(0, wh_batch_free(batch));
	}
	strangers_close(&s);
}

struct again {
	struct strangers *s;
	atomic_int left, error;
};

static void submit_more(struct wh_batch *batch, int status, void *arg)
{
	struct again *again = arg;
	int left = atomic_fetch_sub(&again->left, 1);

	if (!status && left > 0)
		status = strangers_add(again->s, batch, 64);
	if (!status && left > 0)
		status = wh_batch_submit(batch);
	if (!status && left > 0)
		return;
	atomic_store(&again->error, status ? status : 1);
}

/* A callback adds more and submits again. */
static void look__beside_a_callback(void **state)
{
	struct looker looker;
	struct strangers s;

	(void)state;
	strangers_open(&s);
	for (int round = 0; round < SCALE(10, 3); round++) {
		struct again again = { .s = &s, .left = 20 };
		struct wh_batch_options options = { .size = sizeof(options),
						    .callback = submit_more,
						    .callback_arg = &again };
		int64_t end = now() + PATIENCE;
		struct wh_batch *batch;

		s.used = 0;
		want(0, wh_batch_new(s.peer, &options, &batch));
		want(0, strangers_add(&s, batch, 1));
		looker_start(&looker, batch);
		want(0, wh_batch_submit(batch));
		while (!atomic_load(&again.error) && now() < end)
			sleep_ms(1);
		want(1, atomic_load(&again.error));
		looker_end(&looker);
		want(0, wh_batch_free(batch));
	}
	strangers_close(&s);
}

static const struct CMUnitTest tests[] = {
	TEST(progress__while_it_asks),       TEST(explain__after_adding),
	TEST(look__while_it_grows),          TEST(look__while_it_is_filled),
	TEST(look__at_the_first_submission), TEST(look__beside_a_callback),
};

HARNESS_MAIN("batch-look", tests)
