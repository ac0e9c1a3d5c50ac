/* SPDX-License-Identifier: Apache-2.0 */
/* resolve.c: batches that are submitted before their regions are known */
#include "allocation.h"
#include "core-link.h"
#include "core/question.h"
#include "core/resolve.h"

/* Of a peer's region: where the helpers below let it lie. */
#define ADDRESS(n) ((uint64_t)((n) + 1) << 20)

static struct wh_batch *batch_to(struct link *link)
{
	struct wh_batch *batch;

	assert_int_equal(wh_batch_new(link->peer, NULL, &batch), 0);
	return batch;
}

static void add_id(struct wh_batch *batch, unsigned region, uint32_t op)
{
	struct wh_transfer transfer = transfer_of(op, 0, 16);

	transfer.remote = PEER_REGION(region);
	assert_int_equal(wh_batch_add(batch, &transfer, 1), 0);
}

static void add_address(struct wh_batch *batch, uint64_t address, uint32_t op)
{
	struct wh_address_transfer transfer = {
		.local = source,
		.remote = address,
		.length = 16,
		.op = op,
	};

	assert_int_equal(wh_batch_add_address(batch, &transfer, 1), 0);
}

static struct wh_question lookup(const struct link *link, uint8_t kind, uint32_t count)
{
	struct wh_question question;
	struct wh_frame frame;

	assert_int_equal(link_frame(link, &frame), WH_FRAME_LOOKUP);
	assert_int_equal(wh_question_decode(frame_bytes, frame.length, &question), 0);
	assert_int_equal(question.kind, kind);
	assert_int_equal(question.count, count);
	return question;
}

/* Answer a question with a region, or with none: region -1. */
static void answer(struct link *link, uint64_t token, int region, uint8_t access)
{
	uint8_t bytes[WH_REGIONS_HEAD + WH_REGION_RECORD_MAX];
	uint8_t *at = wh_put64(wh_put64(bytes, token), 0);
	const struct wh_region_record record = { .id = PEER_REGION((unsigned)region),
						 .address = ADDRESS((unsigned)region),
						 .length = 4096,
						 .access = access,
						 .kind = WH_MEMORY_PAGEABLE };

	if (region >= 0)
		at += wh_region_encode(at, &record);
	assert_int_equal(
		link_give(link, WH_FRAME_REGIONS, WH_FRAME_LAST, bytes, (size_t)(at - bytes)), 0);
	settle();
}

static void submit__asks_once(void **state)
{
	struct link link = peer_link("far");
	struct wh_batch *batch = batch_to(&link);
	struct wh_question ids, ranges;

	(void)state;
	add_id(batch, 0, WH_WRITE);
	add_id(batch, 0, WH_WRITE);
	add_address(batch, ADDRESS(1) + 40, WH_READ);
	assert_true(batch->unresolved);
	assert_int_equal(wh_batch_submit(batch), 0);
	assert_int_equal(atomic_load(&here->batches), 1);
	ids = lookup(&link, WH_ASK_IDS, 1);
	assert_int_equal(wh_question_id(&ids, 0), PEER_REGION(0));
	ranges = lookup(&link, WH_ASK_ADDRESSES, 1);
	assert_int_equal(RDMA->submitted, 0);
	assert_int_equal(wh_batch_test(batch), -EAGAIN);
	answer(&link, ranges.token, 1, WH_ACCESS_READ);
	assert_int_equal(RDMA->submitted, 0);
	answer(&link, ids.token, 0, WH_ACCESS_WRITE);
	assert_int_equal(RDMA->held_count, 2);
	assert_int_equal(batch->items[2].remote, PEER_REGION(1));
	assert_int_equal(batch->items[2].offset, 40);
	fake_end(RDMA, 0);
	assert_int_equal(wh_batch_test(batch), -EAGAIN);
	fake_end(RDMA, 0);
	assert_int_equal(wh_batch_status(batch), 0);
	assert_int_equal(atomic_load(&here->batches), 0);
	/* They are known now. */
	assert_int_equal(wh_batch_submit(batch), 0);
	link_quiet(&link);
	assert_int_equal(RDMA->held_count, 2);
	fake_end(RDMA, 0);
	fake_end(RDMA, 0);
	drop_batch(batch);
	link_close(&link);
}

/* What is not there, may not be used, or is too short fails the batch, and all of its transfers. */
static void submit__what_cannot_be(void **state)
{
	struct link link = peer_link("far");
	struct wh_batch *batch = batch_to(&link);
	struct wh_question question;
	int status = 0;

	(void)state;
	add_id(batch, 0, WH_WRITE);
	for (int again = 0; again < 2; again++) {
		assert_int_equal(wh_batch_submit(batch), 0);
		question = lookup(&link, WH_ASK_IDS, 1);
		answer(&link, question.token, -1, 0);
		assert_int_equal(wh_batch_status(batch), -ENOENT);
		said("publishes no region");
		assert_int_equal(wh_batch_transfer_status(batch, 0, &status), 0);
		assert_int_equal(status, -ENOENT);
		assert_int_equal(atomic_load(&here->batches), 0);
	}
	assert_int_equal(wh_batch_submit(batch), 0);
	question = lookup(&link, WH_ASK_IDS, 1);
	answer(&link, question.token, 0, WH_ACCESS_READ);
	assert_int_equal(wh_batch_status(batch), -EACCES);
	/* Now that it is known, submitting says so itself. */
	assert_int_equal(wh_batch_submit(batch), -EACCES);
	assert_int_equal(RDMA->submitted, 0);
	link_quiet(&link);
	drop_batch(batch);
	link_close(&link);
}

/* A region at its address that may not be used leaves the item its address. */
static void submit__keeps_the_address(void **state)
{
	struct link link = peer_link("far");
	struct wh_batch *batch = batch_to(&link);
	struct wh_question question;

	(void)state;
	add_address(batch, ADDRESS(1) + 40, WH_WRITE);
	assert_int_equal(wh_batch_submit(batch), 0);
	question = lookup(&link, WH_ASK_ADDRESSES, 1);
	answer(&link, question.token, 1, WH_ACCESS_READ);
	assert_int_equal(wh_batch_status(batch), -EACCES);
	assert_int_equal(batch->items[0].remote, 0);
	assert_int_equal(batch->items[0].offset, ADDRESS(1) + 40);
	assert_int_equal(wh_batch_submit(batch), 0);
	question = lookup(&link, WH_ASK_ADDRESSES, 1);
	answer(&link, question.token, -1, 0);
	assert_int_equal(wh_batch_status(batch), -EACCES);
	drop_batch(batch);
	link_close(&link);
}

static void submit__lost_meanwhile(void **state)
{
	struct link link = peer_link("far");
	struct wh_batch *batch = batch_to(&link);

	(void)state;
	add_id(batch, 0, WH_WRITE);
	add_address(batch, ADDRESS(1), WH_READ);
	assert_int_equal(wh_batch_submit(batch), 0);
	atomic_store(&link.peer->state, WH_PEER_LOST);
	wh_questions_fail(link.peer, -ECONNRESET);
	settle();
	assert_int_equal(wh_batch_status(batch), -ECONNRESET);
	said("is lost");
	assert_int_equal(wh_batch_submit(batch), -ECONNRESET);
	/* Lost and back: the batch does not know what became of its questions. */
	atomic_store(&link.peer->state, WH_PEER_CONNECTED);
	assert_int_equal(wh_batch_submit(batch), 0);
	wh_questions_fail(link.peer, -ECONNRESET);
	settle();
	assert_int_equal(wh_batch_status(batch), -ECONNRESET);
	said("and is back; submit again");
	drop_batch(batch);
	link_close(&link);
}

static void cancel__before_the_answer(void **state)
{
	struct link link = peer_link("far");
	struct wh_batch *batch = batch_to(&link);
	struct wh_question ids, ranges;

	(void)state;
	for (unsigned answered = 0; answered < 2; answered++) {
		assert_int_equal(wh_batch_clear(batch), 0);
		add_id(batch, answered, WH_WRITE);
		add_address(batch, ADDRESS(9), WH_READ);
		assert_int_equal(wh_batch_submit(batch), 0);
		ids = lookup(&link, WH_ASK_IDS, 1);
		ranges = lookup(&link, WH_ASK_ADDRESSES, 1);
		if (answered)
			answer(&link, ids.token, 1, WH_ACCESS_WRITE);
		assert_int_equal(wh_batch_cancel(batch), 0);
		assert_int_equal(wh_batch_status(batch), -ECANCELED);
		assert_int_equal(atomic_load(&here->batches), 0);
		assert_true(wh_list_empty(&link.peer->questions));
		/* Late answers find nobody. */
		if (!answered)
			answer(&link, ids.token, -1, 0);
		answer(&link, ranges.token, -1, 0);
		assert_int_equal(wh_batch_status(batch), -ECANCELED);
	}
	assert_int_equal(RDMA->submitted, 0);
	drop_batch(batch);
	link_close(&link);
}

/* Who looks at a batch that has no plan yet sees nothing of its last one. */
static void progress__before_the_plan(void **state)
{
	struct link link = peer_link("far");
	struct wh_batch *batch = batch_to(&link);
	struct wh_estimate estimate = { .size = sizeof(estimate) };
	struct wh_route routes[WH_TRANSPORT_COUNT];
	size_t count = WH_TRANSPORT_COUNT;
	struct wh_question ids;
	uint64_t bytes = 7;

	(void)state;
	add_id(batch, 0, WH_WRITE);
	assert_int_equal(wh_batch_submit(batch), 0);
	ids = lookup(&link, WH_ASK_IDS, 1);
	/* As while the planner fills the fragments: they are its own. */
	batch->fragments = (struct wh_fragment *)(uintptr_t)8;
	batch->fragment_count = 1;
	batch->share[WH_TRANSPORT_RDMA].bytes = 1;
	assert_int_equal(wh_batch_progress(batch, &bytes), 0);
	assert_int_equal(bytes, 0);
	assert_int_equal(wh_batch_routes(batch, routes, &count), 0);
	assert_int_equal(count, 0);
	assert_int_equal(wh_batch_estimate(batch, &estimate), -EOPNOTSUPP);
	batch->fragments = NULL;
	batch->fragment_count = 0;
	batch->share[WH_TRANSPORT_RDMA].bytes = 0;
	answer(&link, ids.token, 0, WH_ACCESS_WRITE);
	count = WH_TRANSPORT_COUNT;
	assert_int_equal(wh_batch_routes(batch, routes, &count), 0);
	assert_int_equal(count, 1);
	fake_end(RDMA, 0);
	assert_int_equal(wh_batch_progress(batch, &bytes), 0);
	assert_int_equal(bytes, 16);
	drop_batch(batch);
	link_close(&link);
}

static int resolve(struct wh_batch *batch)
{
	struct wh_resolution *asked = NULL;
	int error = wh_batch_resolve(batch, &asked);

	assert_int_equal(!asked, !!error);
	wh_resolution_free(asked);
	return error;
}

/* More ids and ranges than the first room has. */
static void resolve__no_memory(void **state)
{
	struct link link = peer_link("far");
	struct wh_batch *batch = batch_to(&link);

	(void)state;
	for (unsigned i = 0; i < 17; i++) {
		add_id(batch, i, WH_WRITE);
		add_address(batch, ADDRESS(i), WH_READ);
	}
	assert_int_equal(WITHOUT_MEMORY(5, resolve(batch)), 0);
	wh_resolution_free(NULL);
	/* Who does not ask is told. */
	assert_int_equal(wh_batch_resolve(batch, NULL), -ENOENT);
	assert_true(batch->unresolved);
	drop_batch(batch);
	link_close(&link);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(submit__asks_once),         TEST(submit__what_cannot_be),
		TEST(submit__lost_meanwhile),    TEST(submit__keeps_the_address),
		TEST(resolve__no_memory),        TEST(cancel__before_the_answer),
		TEST(progress__before_the_plan),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
