/* SPDX-License-Identifier: Apache-2.0 */
/* session-regions.c: what a session is told of our regions, and when it has let go of them */
#include "allocation.h"
#include "core-link.h"

#define ALL (WH_ACCESS_READ | WH_ACCESS_WRITE)

static struct wh_region *region_new(size_t at, size_t length, const char *name, uint32_t access)
{
	const struct wh_region_options options = {
		.size = sizeof(options),
		.name = name,
		.access = access,
	};
	struct wh_region *region;

	assert_int_equal(wh_region_register(engine, source + at, length, &options, &region), 0);
	return region;
}

static void drop(struct wh_region *region)
{
	assert_int_equal(wh_region_unregister(region), 0);
}

static int ask(struct link *link, struct wh_question question, const void *entries, size_t length)
{
	uint8_t bytes[WH_QUESTION_HEAD + WH_NAME_MAX + WH_QUESTION_MAX * WH_RANGE_SIZE];
	size_t used = wh_question_encode(bytes, &question);

	if (length)
		memcpy(bytes + used, entries, length);
	return wh_session_lookup(link->session, bytes, used + length);
}

static int ask_ids(struct link *link, uint64_t token, const uint64_t *ids, uint32_t count)
{
	return ask(link, (struct wh_question){ .token = token, .kind = WH_ASK_IDS, .count = count },
		   ids, 8 * count);
}

static int ask_name(struct link *link, const char *name)
{
	struct wh_question question = { .token = 3, .kind = WH_ASK_NAME };

	snprintf(question.name, sizeof(question.name), "%s", name);
	question.count = (uint32_t)strlen(name);
	return ask(link, question, NULL, 0);
}

static int ask_range(struct link *link, uint64_t at, uint64_t length, uint8_t access)
{
	const struct wh_range range = { (uintptr_t)source + at, length, access };
	uint8_t bytes[WH_RANGE_SIZE];

	wh_range_encode(bytes, &range);
	return ask(link, (struct wh_question){ .token = 4, .kind = WH_ASK_ADDRESSES, .count = 1 },
		   bytes, sizeof(bytes));
}

/* A whole answer in one frame: its token, how many records, the id of the last one, `next`. */
static void answer(const struct link *link, uint64_t token, unsigned count, uint64_t id,
		   uint64_t next)
{
	const uint8_t *at = frame_bytes + WH_REGIONS_HEAD;
	struct wh_region_record record = { 0 };
	struct wh_frame frame;
	unsigned got = 0;

	assert_int_equal(link_frame(link, &frame), WH_FRAME_REGIONS);
	assert_int_equal(frame.flags, WH_FRAME_LAST);
	assert_int_equal(wh_get64(frame_bytes), token);
	assert_int_equal(wh_get64(frame_bytes + 8), next);
	while (wh_region_decode(&at, frame_bytes + frame.length, &record) == 1)
		got++;
	assert_int_equal(got, count);
	if (count)
		assert_int_equal(record.id, id);
	link_quiet(link);
}

/* ---- what it knows ------------------------------------------------------------------------- */

static void learn__each_index(void **state)
{
	static const uint32_t indexes[] = { 0, 63, 64, 127, 128, 5000, 129 };
	struct link link = session_link();
	struct wh_region_entry entry = { .kind = WH_MEMORY_PAGEABLE };

	(void)state;
	assert_false(wh_session_knows(link.session, &entry));
	for (unsigned i = 0; i < sizeof(indexes) / sizeof(indexes[0]); i++) {
		entry.index = indexes[i];
		assert_false(wh_session_knows(link.session, &entry));
		assert_int_equal(wh_session_learn(link.session, &entry), 0);
		for (uint32_t index = 0; index < 6000; index++) {
			bool known = false;

			for (unsigned k = 0; k <= i; k++)
				known |= indexes[k] == index;
			entry.index = index;
			assert_int_equal(wh_session_knows(link.session, &entry), known);
		}
	}
	entry.index = 1 << 20;
	allocation_fails = 1;
	assert_int_equal(wh_session_learn(link.session, &entry), -ENOMEM);
	assert_false(wh_session_knows(link.session, &entry));
	entry.index = 5000;
	assert_true(wh_session_knows(link.session, &entry));
	link_close(&link);
}

/* ---- questions ----------------------------------------------------------------------------- */

static void lookup__ids(void **state)
{
	struct link link = session_link();
	struct wh_region *open = region_new(0, 64, "open", ALL);
	const uint64_t ids[] = { wh_region_id(open) + 1, wh_region_id(open), wh_region_id(here) };

	(void)state;
	assert_int_equal(ask_ids(&link, 9, ids, 2), 0);
	answer(&link, 9, 1, ids[1], 0);
	assert_true(wh_session_knows(link.session, &open->entry));
	/* One without rights for it is not there. */
	assert_int_equal(ask_ids(&link, 10, ids + 2, 1), 0);
	answer(&link, 10, 0, 0, 0);
	assert_false(wh_session_knows(link.session, &here->entry));
	assert_int_equal(wh_session_lookup(link.session, (const uint8_t *)"", 0), -EPROTO);
	allocation_fails = 1;
	assert_int_equal(ask_ids(&link, 11, ids, 2), -ENOMEM);
	link_quiet(&link);
	link_close(&link);
	drop(open);
}

/* Records are sent in frames that a reader takes whole: none is cut, and the last one is marked. */
static void lookup__a_long_answer(void **state)
{
	static uint64_t ids[WH_QUESTION_MAX];
	struct link link = session_link();
	char name[WH_NAME_MAX] = { 0 };
	struct wh_region_record record;
	unsigned got = 0, frames = 0;
	struct wh_region *open;
	struct wh_frame frame;

	(void)state;
	memset(name, 'n', 60); /* so that no number of records fills a frame */
	open = region_new(0, 64, name, ALL);
	for (unsigned i = 0; i < WH_QUESTION_MAX; i++)
		ids[i] = wh_region_id(open);
	assert_int_equal(ask_ids(&link, 5, ids, WH_QUESTION_MAX), 0);
	do {
		const uint8_t *at = frame_bytes + WH_REGIONS_HEAD;

		assert_int_equal(link_frame(&link, &frame), WH_FRAME_REGIONS);
		assert_true(frame.length <= 64 << 10);
		assert_int_equal(wh_get64(frame_bytes), 5);
		while (wh_region_decode(&at, frame_bytes + frame.length, &record) == 1)
			got++;
		assert_ptr_equal(at, frame_bytes + frame.length);
		frames++;
	} while (frame.flags != WH_FRAME_LAST);
	assert_int_equal(frames, 2);
	assert_int_equal(got, WH_QUESTION_MAX);
	link_quiet(&link);
	link_close(&link);
	drop(open);
}

/* A name that is not there is remembered, and its region hinted at once. */
static void lookup__a_name_that_comes_later(void **state)
{
	struct link link = session_link(), other = session_link();
	struct wh_region *wrong, *shut, *open;
	struct wh_frame frame;

	(void)state;
	assert_int_equal(ask_name(&link, "weights"), 0);
	answer(&link, 3, 0, 0, 0);
	wrong = region_new(0, 64, "kv", ALL);
	link_quiet(&link);
	drop(wrong);
	shut = region_new(0, 64, "weights", 0);
	link_quiet(&link); /* it may not use that one */
	drop(shut);
	open = region_new(0, 64, "weights", ALL);
	assert_int_equal(link_frame(&link, &frame), WH_FRAME_REGISTERED);
	assert_int_equal(frame.length, 0);
	link_quiet(&other);
	assert_int_equal(ask_name(&link, "weights"), 0);
	answer(&link, 3, 1, wh_region_id(open), 0);
	drop(open);
	assert_int_equal(link_frame(&link, &frame), WH_FRAME_REMOVE);
	link_quiet(&other);
	link_close(&link);
	link_close(&other);
}

/* The smallest region that grants one of the rights. */
static void lookup__addresses(void **state)
{
	struct link link = session_link();
	struct wh_region *large = region_new(0, 4096, NULL, ALL);
	struct wh_region *small = region_new(64, 64, NULL, WH_ACCESS_READ);
	struct wh_frame frame;

	(void)state;
	assert_int_equal(ask_range(&link, 64, 64, WH_ACCESS_READ), 0);
	answer(&link, 4, 1, wh_region_id(small), 0);
	assert_int_equal(ask_range(&link, 64, 65, WH_ACCESS_READ), 0);
	answer(&link, 4, 1, wh_region_id(large), 0);
	assert_int_equal(ask_range(&link, 64, 64, WH_ACCESS_WRITE), 0);
	answer(&link, 4, 1, wh_region_id(large), 0);
	assert_int_equal(ask_range(&link, 64, 64, ALL), 0);
	answer(&link, 4, 1, wh_region_id(small), 0);
	assert_int_equal(link.session->missed, 0);
	assert_int_equal(ask_range(&link, 4090, 7, WH_ACCESS_READ), 0);
	answer(&link, 4, 0, 0, 0);
	assert_int_not_equal(link.session->missed, 0);
	assert_int_equal(ask_range(&link, 0, 0, WH_ACCESS_READ), -EPROTO);
	assert_int_equal(ask_range(&link, 0, 1, 0), -EPROTO);
	link_quiet(&link);
	drop(large);
	drop(small);
	while (link_frame(&link, &frame))
		assert_int_equal(frame.type, WH_FRAME_REMOVE);
	large = region_new(0, 64, NULL, ALL);
	assert_int_equal(link_frame(&link, &frame), WH_FRAME_REGISTERED);
	link_close(&link);
	drop(large);
}

/* Pages of a list: those that may be listed alone, and a cursor that ends. */
static void lookup__pages(void **state)
{
	struct link link = session_link();
	struct wh_question question = { .token = 6, .kind = WH_ASK_LIST, .count = 2 };
	struct wh_region *listed[3], *hidden;
	struct wh_frame frame;

	(void)state;
	listed[0] = region_new(0, 64, NULL, ALL | WH_ACCESS_LIST);
	hidden = region_new(64, 64, NULL, ALL);
	listed[1] = region_new(128, 64, NULL, ALL | WH_ACCESS_LIST);
	listed[2] = region_new(192, 64, NULL, ALL | WH_ACCESS_LIST);
	assert_int_equal(ask(&link, question, NULL, 0), 0);
	assert_int_equal(link_frame(&link, &frame), WH_FRAME_REGIONS);
	question.cursor = wh_get64(frame_bytes + 8);
	assert_int_equal(question.cursor, listed[1]->entry.index + 1);
	assert_int_equal(ask(&link, question, NULL, 0), 0);
	answer(&link, 6, 1, wh_region_id(listed[2]), 0);
	question.cursor = 1000;
	assert_int_equal(ask(&link, question, NULL, 0), 0);
	answer(&link, 6, 0, 0, 0);
	assert_false(wh_session_knows(link.session, &hidden->entry));
	link_close(&link);
	drop(hidden);
	for (unsigned i = 0; i < 3; i++)
		drop(listed[i]);
}

/* ---- regions that go ----------------------------------------------------------------------- */

static void removed(struct link *link, const struct wh_region *region, uint64_t number)
{
	struct wh_removal removal;
	struct wh_frame frame;

	assert_int_equal(link_frame(link, &frame), WH_FRAME_REMOVE);
	assert_int_equal(wh_removal_decode(frame_bytes, frame.length, &removal), 0);
	assert_int_equal(removal.number, number);
	assert_int_equal(removal.address, region->entry.address);
	assert_int_equal(removal.length, region->entry.length);
	assert_int_equal(atomic_load(&link->session->removes), number);
}

static uint64_t withdraw(const struct wh_region *region)
{
	uint64_t number;

	pthread_mutex_lock(&engine->lock);
	number = wh_sessions_remove(engine, region);
	pthread_mutex_unlock(&engine->lock);
	return number;
}

/* Told are those that know it, and those that may map its memory. */
static void remove__who_is_told(void **state)
{
	struct link knows = session_link(), maps = session_link(), other = session_link();
	uint64_t before = engine->removes;

	(void)state;
	assert_int_equal(wh_session_learn(knows.session, &here->entry), 0);
	wh_session_touches(maps.session);
	withdraw(here);
	removed(&knows, here, before + 1);
	link_quiet(&maps); /* this memory is nobody's to map */
	assert_false(wh_session_knows(knows.session, &here->entry));
	withdraw(here);
	link_quiet(&knows);
	here->entry.flags |= WH_REGION_MAPPABLE;
	withdraw(here);
	here->entry.flags &= (uint8_t)~WH_REGION_MAPPABLE;
	removed(&maps, here, before + 3);
	link_quiet(&knows);
	link_quiet(&other);
	link_close(&knows);
	link_close(&maps);
	link_close(&other);
}

static int confirm(struct link *link, uint64_t number, size_t length)
{
	uint8_t bytes[16];

	wh_put64(bytes, number);
	return wh_session_removed(link->session, bytes, length);
}

/* Numbers are confirmed upwards, and none that was not sent. */
static void removed__numbers(void **state)
{
	struct link link = session_link();

	(void)state;
	atomic_store(&link.session->removes, 5);
	assert_int_equal(confirm(&link, 0, 8), -EPROTO);
	assert_int_equal(confirm(&link, 6, 8), -EPROTO);
	assert_int_equal(confirm(&link, 3, 7), -EPROTO);
	assert_int_equal(confirm(&link, 3, 9), -EPROTO);
	assert_int_equal(confirm(&link, 3, 8), 0);
	assert_int_equal(confirm(&link, 3, 8), -EPROTO);
	assert_int_equal(confirm(&link, 2, 8), -EPROTO);
	assert_int_equal(confirm(&link, 5, 8), 0);
	assert_int_equal(atomic_load(&link.session->removed), 5);
	link_close(&link);
}

/* Who accesses memory directly is waited for; who has keys alone, as a courtesy. */
static void released__who_is_waited_for(void **state)
{
	struct link link = session_link();
	uint64_t number;

	(void)state;
	assert_int_equal(wh_session_learn(link.session, &here->entry), 0);
	number = withdraw(here);
	assert_int_equal(number, engine->removes);
	assert_int_equal(wh_sessions_released(engine, 1, number, 0, 0), 0);
	wh_session_keyed(link.session);
	assert_int_equal(wh_sessions_released(engine, 1, number, wh_now(), 0), 0);
	assert_int_equal(wh_sessions_released(engine, 1, number, INT64_MAX, 0), -EBUSY);
	wh_session_touches(link.session);
	assert_int_equal(wh_sessions_released(engine, 0x123, number, 0, wh_now()), -EBUSY);
	said("region 0x123: guest");
	assert_int_equal(confirm(&link, number, 8), 0);
	assert_int_equal(wh_sessions_released(engine, 1, number, 0, 0), 0);
	link_close(&link);
}

/* A region that went before is no reason to wait for one that goes later: not in a session that has
 * confirmed it, nor in one that began since. */
static void released__what_went_before(void **state)
{
	struct link link = session_link(), later;
	uint64_t first, second, third;

	(void)state;
	wh_session_touches(link.session);
	assert_int_equal(wh_session_learn(link.session, &here->entry), 0);
	first = withdraw(here);
	assert_int_equal(wh_session_learn(link.session, &here->entry), 0);
	second = withdraw(here);
	later = session_link();
	wh_session_touches(later.session);
	assert_int_equal(wh_session_learn(later.session, &here->entry), 0);
	third = withdraw(here);
	assert_int_equal(third, second + 1);
	assert_int_equal(wh_sessions_released(engine, 1, first, 0, 0), -EBUSY);
	assert_int_equal(confirm(&link, first, 8), 0);
	assert_int_equal(wh_sessions_released(engine, 1, first, 0, 0), 0);
	assert_int_equal(wh_sessions_released(engine, 1, second, 0, 0), -EBUSY);
	link_close(&link);
	assert_int_equal(wh_sessions_released(engine, 1, second, 0, 0), 0);
	assert_int_equal(wh_sessions_released(engine, 1, third, 0, 0), -EBUSY);
	link_close(&later);
	assert_int_equal(wh_sessions_released(engine, 1, third, 0, 0), 0);
}

/* The time for a REMOVE begins when it is sent, and anew only when all have been confirmed that
 * were sent by when it last began: who confirms one of many from time to time is late. */
static void owes__since_when(void **state)
{
	struct link link = session_link();
	uint64_t number;
	int64_t since;

	(void)state;
	assert_int_equal(wh_session_learn(link.session, &here->entry), 0);
	number = withdraw(here);
	assert_int_equal(wh_session_owes(link.session), 0); /* it cannot touch memory */
	wh_session_touches(link.session);
	since = wh_session_owes(link.session);
	assert_true(since);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(wh_session_learn(link.session, &here->entry), 0);
		withdraw(here);
	}
	assert_int_equal(wh_session_owes(link.session), since);
	link.session->due_since = 1;
	assert_int_equal(confirm(&link, number, 8), 0);
	assert_true(wh_session_owes(link.session) >= since);
	link.session->due_since = 1;
	assert_int_equal(confirm(&link, number + 1, 8), 0);
	assert_int_equal(wh_session_owes(link.session), 1);
	assert_int_equal(confirm(&link, number + 2, 8), 0);
	assert_int_equal(wh_session_owes(link.session), 0);
	link_close(&link);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(learn__each_index),
		TEST(lookup__ids),
		TEST(lookup__a_long_answer),
		TEST(lookup__a_name_that_comes_later),
		TEST(lookup__addresses),
		TEST(lookup__pages),
		TEST(remove__who_is_told),
		TEST(removed__numbers),
		TEST(released__who_is_waited_for),
		TEST(released__what_went_before),
		TEST(owes__since_when),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
