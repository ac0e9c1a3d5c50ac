/* SPDX-License-Identifier: Apache-2.0 */
/* question.c: questions in parts, and answers that are late, wrong, withdrawn or never come */
#include "allocation.h"
#include "core-link.h"
#include "core/question.h"

static uint64_t ids[2 * WH_QUESTION_MAX + 1];

static struct {
	struct wh_asked *asked;
	int error;
	unsigned count;
} done;

static void on_done(struct wh_asked *asked, int error)
{
	done.asked = asked;
	done.error = error;
	done.count++;
}

static struct wh_asked asked_ids(size_t count)
{
	memset(&done, 0, sizeof(done));
	for (size_t i = 0; i < count; i++)
		ids[i] = 1000 + i;
	return (struct wh_asked){ .kind = WH_ASK_IDS, .ids = ids, .count = count, .done = on_done };
}

/* The next LOOKUP; its ids begin with `first`. */
static struct wh_question lookup(const struct link *link, uint32_t count, uint64_t first)
{
	struct wh_question question;
	struct wh_frame frame;

	assert_int_equal(link_frame(link, &frame), WH_FRAME_LOOKUP);
	assert_int_equal(wh_question_decode(frame_bytes, frame.length, &question), 0);
	assert_int_equal(question.count, count);
	if (question.kind == WH_ASK_IDS) {
		assert_int_equal(wh_question_id(&question, 0), first);
		assert_int_equal(wh_question_id(&question, count - 1), first + count - 1);
	}
	return question;
}

/* Answer with `count` regions, of ids from PEER_REGION(from) on. */
static int answer(struct link *link, uint64_t token, uint64_t next, unsigned from, unsigned count,
		  uint16_t flags)
{
	uint8_t bytes[WH_REGIONS_HEAD + 8 * WH_REGION_RECORD_MAX];
	uint8_t *at = wh_put64(wh_put64(bytes, token), next);
	const struct wh_frame frame = { .type = WH_FRAME_REGIONS, .flags = flags };
	struct wh_frame whole = frame;

	for (unsigned i = from; i < from + count; i++) {
		const struct wh_region_record record = { .id = PEER_REGION(i),
							 .address = (uint64_t)(i + 1) << 20,
							 .length = 4096,
							 .access = WH_ACCESS_READ,
							 .kind = WH_MEMORY_PAGEABLE };

		at += wh_region_encode(at, &record);
	}
	whole.length = (uint32_t)(at - bytes);
	return wh_question_answered(link->peer, &whole, bytes);
}

/* ---- asking -------------------------------------------------------------------------------- */

/* Parts of WH_QUESTION_MAX, each when the one before is answered. */
static void ask__in_parts(void **state)
{
	static const size_t counts[] = { 1, WH_QUESTION_MAX, WH_QUESTION_MAX + 1,
					 2 * WH_QUESTION_MAX, 2 * WH_QUESTION_MAX + 1 };
	struct link link = peer_link("far");

	(void)state;
	for (unsigned i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		struct wh_asked asked = asked_ids(counts[i]);

		assert_int_equal(wh_question_ask(link.peer, &asked), 0);
		for (size_t at = 0; at < counts[i]; at += WH_QUESTION_MAX) {
			size_t left = counts[i] - at;
			uint32_t part = left < WH_QUESTION_MAX ? (uint32_t)left : WH_QUESTION_MAX;
			struct wh_question question = lookup(&link, part, 1000 + at);

			link_quiet(&link);
			assert_int_equal(done.count, 0);
			assert_false(asked.ended);
			/* The first frame of an answer does not end it. */
			assert_int_equal(answer(&link, question.token, 0, 0, 0, 0), 0);
			link_quiet(&link);
			assert_int_equal(answer(&link, question.token, 0, 0, 0, WH_FRAME_LAST), 0);
		}
		link_quiet(&link);
		assert_int_equal(done.count, 1);
		assert_ptr_equal(done.asked, &asked);
		assert_int_equal(done.error, 0);
		assert_true(asked.ended);
	}
	link_close(&link);
}

static void ask__not_connected(void **state)
{
	struct link link = peer_link("far");
	struct wh_asked asked = asked_ids(1);

	(void)state;
	atomic_store(&link.peer->state, WH_PEER_LOST);
	assert_int_equal(wh_question_ask(link.peer, &asked), -ECONNRESET);
	assert_true(asked.ended);
	assert_int_equal(asked.error, -ECONNRESET);
	assert_int_equal(done.count, 0);
	assert_true(wh_list_empty(&link.peer->questions));
	link_quiet(&link);
	link_close(&link);
}

/* 32 ids need no memory. */
static void ask__no_memory(void **state)
{
	struct link link = peer_link("far");
	struct wh_asked asked = asked_ids(33);

	(void)state;
	allocation_fails = 1;
	assert_int_equal(wh_question_ask(link.peer, &asked), -ENOMEM);
	assert_true(asked.ended);
	assert_true(wh_list_empty(&link.peer->questions));
	link_quiet(&link);
	asked = asked_ids(32);
	allocation_fails = 1;
	assert_int_equal(wh_question_ask(link.peer, &asked), 0);
	allocation_fails = 0;
	lookup(&link, 32, 1000);
	wh_questions_fail(link.peer, -ECONNRESET);
	assert_int_equal(done.count, 1);
	link_close(&link);
}

static void ask__name_and_ranges(void **state)
{
	const struct wh_range ranges[] = { { 4096, 5, WH_ACCESS_READ }, { 1, 2, WH_ACCESS_WRITE } };
	struct wh_asked name = { .kind = WH_ASK_NAME, .name = "weights", .done = on_done };
	struct wh_asked addresses = {
		.kind = WH_ASK_ADDRESSES, .ranges = ranges, .count = 2, .done = on_done
	};
	struct link link = peer_link("far");
	struct wh_question question;
	struct wh_range range;

	(void)state;
	memset(&done, 0, sizeof(done));
	assert_int_equal(wh_question_ask(link.peer, &name), 0);
	question = lookup(&link, 7, 0);
	assert_string_equal(question.name, "weights");
	assert_int_equal(answer(&link, question.token, 0, 0, 1, WH_FRAME_LAST), 0);
	assert_int_equal(done.count, 1);
	assert_int_equal(wh_region_table_count(&link.peer->regions), 1);
	assert_int_equal(wh_question_ask(link.peer, &addresses), 0);
	question = lookup(&link, 2, 0);
	assert_true(wh_question_range(&question, 1, &range));
	assert_memory_equal(&range.address, &ranges[1].address, 8);
	assert_int_equal(range.length, 2);
	assert_int_equal(range.access, WH_ACCESS_WRITE);
	assert_int_equal(answer(&link, question.token, 0, 0, 0, WH_FRAME_LAST), 0);
	assert_int_equal(done.count, 2);
	link_close(&link);
}

/* A page of a list, in two frames, and the cursor of its end. */
static void ask__list(void **state)
{
	struct wh_remote out[3] = { { 0 } };
	struct wh_asked asked = { .kind = WH_ASK_LIST, .count = 2, .out = out, .done = on_done };
	struct link link = peer_link("far");
	struct wh_question question;

	(void)state;
	memset(&done, 0, sizeof(done));
	asked.cursor = 17;
	assert_int_equal(wh_question_ask(link.peer, &asked), 0);
	question = lookup(&link, 2, 0);
	assert_int_equal(question.cursor, 17);
	assert_int_equal(answer(&link, question.token, 0, 0, 1, 0), 0);
	assert_int_equal(asked.found, 1);
	assert_int_equal(answer(&link, question.token, 23, 1, 1, WH_FRAME_LAST), 0);
	assert_int_equal(asked.found, 2);
	assert_int_equal(out[1].id, PEER_REGION(1));
	assert_int_equal(out[2].id, 0);
	assert_int_equal(asked.cursor, 23);
	assert_int_equal(done.count, 1);
	link_quiet(&link);
	link_close(&link);
}

/* A list has an end: its cursor grows by what is on the page, which is full, and has a bound. */
static void ask__list_without_end(void **state)
{
	static const struct {
		uint64_t next;
		unsigned regions;
	} wrong[] = { { 1, 2 },          { 16, 2 },  { 17, 2 }, { UINT64_C(1) << 22, 2 },
		      { UINT64_MAX, 2 }, { 18, 0 },  { 18, 1 }, { 18, 2 },
		      { 1000, 0 },       { 1000, 1 } };

	(void)state;
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct wh_remote out[2] = { { 0 } };
		struct wh_asked asked = {
			.kind = WH_ASK_LIST, .count = 2, .out = out, .cursor = 17
		};
		struct link link = peer_link("far");
		struct wh_question question;

		assert_int_equal(wh_question_ask(link.peer, &asked), 0);
		question = lookup(&link, 2, 0);
		assert_int_equal(answer(&link, question.token, wrong[i].next, 0, wrong[i].regions,
					WH_FRAME_LAST),
				 -EPROTO);
		assert_false(asked.ended);
		wh_questions_fail(link.peer, -ECONNRESET);
		assert_int_equal(asked.cursor, 17);
		link_close(&link);
	}
}

/* No answer has more regions than were asked for, in however many frames. */
static void answered__too_many(void **state)
{
	const struct wh_range range = { 4096, 5, WH_ACCESS_READ };
	struct wh_remote out[3] = { { 0 } };
	struct wh_asked asked[] = { { .kind = WH_ASK_LIST, .count = 2, .out = out },
				    { .kind = WH_ASK_NAME, .name = "weights" },
				    { .kind = WH_ASK_ADDRESSES, .ranges = &range, .count = 1 },
				    asked_ids(2) };

	(void)state;
	for (unsigned i = 0; i < sizeof(asked) / sizeof(asked[0]); i++) {
		unsigned most = i == 0 || i == 3 ? 2 : 1;
		struct link link = peer_link("far");
		uint64_t token;

		assert_int_equal(wh_question_ask(link.peer, &asked[i]), 0);
		token = asked[i].token;
		assert_int_equal(answer(&link, token, 0, 0, most, 0), 0);
		assert_int_equal(answer(&link, token, 0, most, 1, WH_FRAME_LAST), -EPROTO);
		assert_int_equal(wh_region_table_count(&link.peer->regions), most);
		assert_false(asked[i].ended);
		wh_questions_fail(link.peer, -ECONNRESET);
		assert_int_equal(out[2].id, 0);
		link_close(&link);
	}
}

/* The PONG comes behind the answers to what was asked before its PING. */
static void pong__before_the_answer(void **state)
{
	struct wh_asked first = asked_ids(1), second = asked_ids(1);
	struct link link = peer_link("far");

	(void)state;
	assert_int_equal(wh_question_ponged(link.peer, 0), 0);
	wh_question_pinged(link.peer, 10);
	assert_int_equal(wh_question_ask(link.peer, &first), 0);
	wh_question_pinged(link.peer, 20);
	assert_false(wh_question_is_late(link.peer, 100));
	assert_int_equal(wh_question_ponged(link.peer, 10), 0);
	wh_question_pinged(link.peer, 30);
	assert_int_equal(wh_question_ask(link.peer, &second), 0);
	assert_false(wh_question_is_late(link.peer, 30));
	assert_true(wh_question_is_late(link.peer, 31));
	assert_int_equal(wh_question_ponged(link.peer, 20), 0);
	assert_int_equal(wh_question_ponged(link.peer, 30), -EPROTO);
	wh_question_pinged(link.peer, 40);
	assert_int_equal(answer(&link, first.token, 0, 0, 1, WH_FRAME_LAST), 0);
	assert_true(wh_question_is_late(link.peer, 41));
	assert_int_equal(answer(&link, second.token, 0, 1, 1, WH_FRAME_LAST), 0);
	assert_false(wh_question_is_late(link.peer, 41));
	assert_int_equal(wh_question_ponged(link.peer, 40), 0);
	link_close(&link);
}

/* ---- answers ------------------------------------------------------------------------------- */

static void answered__wrong(void **state)
{
	struct link link = peer_link("far");
	const struct wh_frame shorter = { .length = WH_REGIONS_HEAD - 1 };
	uint8_t bytes[WH_REGIONS_HEAD + 5] = { 0 };
	const struct wh_frame cut = { .length = sizeof(bytes), .flags = WH_FRAME_LAST };
	struct wh_asked asked = asked_ids(1);
	struct wh_question question;

	(void)state;
	assert_int_equal(wh_question_ask(link.peer, &asked), 0);
	question = lookup(&link, 1, 1000);
	assert_int_equal(wh_question_answered(link.peer, &shorter, bytes), -EPROTO);
	/* Nothing was asked with such a token; and what was known is known again. */
	assert_int_equal(answer(&link, question.token + 1, 0, 0, 0, WH_FRAME_LAST), -EPROTO);
	assert_int_equal(answer(&link, 0, 0, 0, 0, WH_FRAME_LAST), -EPROTO);
	wh_put64(bytes, question.token);
	assert_int_equal(wh_question_answered(link.peer, &cut, bytes), -EPROTO);
	assert_int_equal(done.count, 0);
	assert_int_equal(answer(&link, question.token, 0, 0, 0, WH_FRAME_LAST), 0);
	assert_int_equal(done.count, 1);
	/* Twice. */
	assert_int_equal(answer(&link, question.token, 0, 0, 0, WH_FRAME_LAST), 0);
	assert_int_equal(done.count, 1);
	link_close(&link);
}

/* The answer to what was withdrawn is nobody's, but its regions are known. */
static void answered__withdrawn(void **state)
{
	struct link link = peer_link("far");
	struct wh_asked asked = asked_ids(WH_QUESTION_MAX + 1), other = asked_ids(1);
	struct wh_question question, second;

	(void)state;
	assert_int_equal(wh_question_ask(link.peer, &asked), 0);
	question = lookup(&link, WH_QUESTION_MAX, 1000);
	assert_int_equal(wh_question_ask(link.peer, &other), 0);
	second = lookup(&link, 1, 1000);
	pthread_mutex_lock(&link.peer->lock);
	wh_question_withdraw(&asked);
	pthread_mutex_unlock(&link.peer->lock);
	assert_int_equal(asked.error, -ECANCELED);
	assert_int_equal(answer(&link, question.token, 0, 0, 1, WH_FRAME_LAST), 0);
	link_quiet(&link);
	assert_int_equal(done.count, 0);
	assert_int_equal(wh_region_table_count(&link.peer->regions), 1);
	assert_int_equal(answer(&link, second.token, 0, 0, 0, WH_FRAME_LAST), 0);
	assert_ptr_equal(done.asked, &other);
	link_close(&link);
}

static void fail__all(void **state)
{
	struct link link = peer_link("far");
	struct wh_asked one = asked_ids(1), other = asked_ids(1), silent = asked_ids(1);

	(void)state;
	silent.done = NULL;
	assert_int_equal(wh_question_ask(link.peer, &one), 0);
	assert_int_equal(wh_question_ask(link.peer, &silent), 0);
	assert_int_equal(wh_question_ask(link.peer, &other), 0);
	wh_questions_fail(link.peer, -ECONNRESET);
	assert_int_equal(done.count, 2);
	assert_ptr_equal(done.asked, &other);
	assert_int_equal(done.error, -ECONNRESET);
	assert_true(silent.ended);
	assert_int_equal(silent.error, -ECONNRESET);
	wh_questions_fail(link.peer, -ECONNRESET);
	assert_int_equal(done.count, 2);
	link_close(&link);
}

/* Regions known before are asked for again in parts; a full part is followed by another one. */
static void relearn__in_parts(void **state)
{
	static const unsigned counts[] = { 0, 1, WH_QUESTION_MAX - 1, WH_QUESTION_MAX,
					   WH_QUESTION_MAX + 3 };
	unsigned known = 0;
	struct link link = peer_link("far");

	(void)state;
	link.peer->listed = false;
	for (unsigned i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		struct wh_frame frame;
		unsigned total = 0;
		int got = 0;

		while (known < counts[i])
			peer_region(link.peer, known++, 4096, WH_ACCESS_READ);
		link.peer->relearned = 0;
		assert_int_equal(wh_question_relearn(link.peer), 0);
		while (!got) {
			assert_int_equal(link_frame(&link, &frame), WH_FRAME_LOOKUP);
			assert_int_equal(wh_get64(frame_bytes), 0);
			total += wh_get32(frame_bytes + 12);
			assert_int_equal(frame.length,
					 WH_QUESTION_HEAD + 8 * wh_get32(frame_bytes + 12));
			got = answer(&link, 0, 0, 0, 0, WH_FRAME_LAST);
		}
		assert_int_equal(got, 1);
		assert_int_equal(total, counts[i]);
		link_quiet(&link);
	}
	link_close(&link);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(ask__in_parts),      TEST(ask__not_connected),
		TEST(ask__no_memory),     TEST(ask__name_and_ranges),
		TEST(ask__list),          TEST(ask__list_without_end),
		TEST(answered__too_many), TEST(pong__before_the_answer),
		TEST(answered__wrong),    TEST(answered__withdrawn),
		TEST(fail__all),          TEST(relearn__in_parts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
