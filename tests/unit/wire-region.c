/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>

#include <wherry/memory.h>

#include "wire/bytes.h"
#include "wire/wire.h"

enum {
	AT_ACCESS = 24,
	AT_KIND = 25,
	AT_NAME_LENGTH = 27,
	AT_NAME = 28,
	KEY_HEADER = 12,
};

static struct wh_region_record sample(void)
{
	struct wh_region_record record = {
		.id = 5,
		.address = UINT64_C(0x7f0011223000),
		.length = 1 << 20,
		.access = WH_ACCESS_READ,
		.kind = WH_MEMORY_SHARED,
		.flags = WH_REGION_MAPPABLE,
		.name = "kv-cache.0_A",
	};

	return record;
}

static void assert_record_equal(const struct wh_region_record *a, const struct wh_region_record *b)
{
	assert_true(a->id == b->id && a->address == b->address && a->length == b->length);
	assert_int_equal(a->access, b->access);
	assert_int_equal(a->kind, b->kind);
	assert_int_equal(a->flags, b->flags);
	assert_string_equal(a->name, b->name);
}

/* Decode one record from a copy of just that size; it must use all of the bytes. */
static int decode(const uint8_t *bytes, size_t length, struct wh_region_record *record)
{
	uint8_t *copy = exact_copy(bytes, length);
	const uint8_t *at = copy;
	int rc = wh_region_decode(&at, copy + length, record);

	assert_ptr_equal(at, rc == 1 ? copy + length : copy);
	free(copy);
	return rc;
}

static void encode__layout(void **state)
{
	const struct wh_region_record record = sample();
	uint8_t bytes[WH_REGION_RECORD_MAX];

	(void)state;
	assert_int_equal(wh_region_encode(bytes, &record), 28 + 12);
	assert_memory_equal(bytes, "\5\0\0\0\0\0\0\0\0\x30\x22\x11\0\x7f\0\0\0\0\x10\0\0\0\0\0",
			    24);
	assert_memory_equal(bytes + AT_ACCESS, "\1\3\1\14kv-cache.0_A", 16);
}

static void decode__round_trip(void **state)
{
	struct wh_region_record record = sample(), got;
	uint8_t bytes[WH_REGION_RECORD_MAX];

	(void)state;
	assert_int_equal(decode(bytes, wh_region_encode(bytes, &record), &got), 1);
	assert_record_equal(&record, &got);
	memset(record.name, 'z', WH_NAME_MAX - 1);
	assert_int_equal(wh_region_encode(bytes, &record), 91);
	assert_int_equal(decode(bytes, 91, &got), 1);
	assert_record_equal(&record, &got);
	/* 100,000 of them, of 64 bytes at most. */
	record.name[36] = '\0';
	assert_int_equal(wh_region_encode(bytes, &record), 64);
	memset(record.name, 0, WH_NAME_MAX);
	assert_int_equal(wh_region_encode(bytes, &record), 28);
	assert_int_equal(decode(bytes, 28, &got), 1);
	assert_record_equal(&record, &got);
}

static void decode__a_list(void **state)
{
	uint8_t bytes[8 * WH_REGION_RECORD_MAX];
	const uint8_t *at = bytes;
	struct wh_region_record record = sample(), got;
	size_t length = 0;

	(void)state;
	for (uint64_t i = 0; i < 8; i++) {
		record.id = i;
		record.name[i] = '\0';
		length += wh_region_encode(bytes + length, &record);
	}
	for (uint64_t i = 0; i < 8; i++) {
		assert_int_equal(wh_region_decode(&at, bytes + length, &got), 1);
		assert_true(got.id == i);
	}
	assert_int_equal(wh_region_decode(&at, bytes + length, &got), 0);
	assert_ptr_equal(at, bytes + length);
}

static void decode__cut_off(void **state)
{
	const struct wh_region_record record = sample();
	struct wh_region_record got;
	uint8_t bytes[WH_REGION_RECORD_MAX];
	size_t length = wh_region_encode(bytes, &record);

	(void)state;
	assert_int_equal(decode(bytes, 0, &got), 0);
	for (size_t i = 1; i < length; i++)
		assert_int_equal(decode(bytes, i, &got), -EPROTO);
}

static void decode__ranges(void **state)
{
	static const struct {
		uint64_t address, length;
		int rc;
	} cases[] = {
		{ 0, 1, 1 },
		{ 0, UINT64_MAX, 1 },
		{ UINT64_MAX - 1, 1, 1 },
		{ 1, UINT64_MAX - 1, 1 },
		{ 0, 0, -EPROTO },
		{ 4096, 0, -EPROTO },
		{ UINT64_MAX, 1, -EPROTO },
		{ 1, UINT64_MAX, -EPROTO },
		{ UINT64_C(1) << 63, UINT64_C(1) << 63, -EPROTO },
		{ UINT64_MAX, UINT64_MAX, -EPROTO },
	};
	struct wh_region_record record = sample(), got;
	uint8_t bytes[WH_REGION_RECORD_MAX];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		record.address = cases[i].address;
		record.length = cases[i].length;
		assert_int_equal(decode(bytes, wh_region_encode(bytes, &record), &got),
				 cases[i].rc);
	}
}

static void decode__every_byte_value(void **state)
{
	const struct wh_region_record record = sample();
	struct wh_region_record got;
	uint8_t bytes[WH_REGION_RECORD_MAX];
	size_t length = wh_region_encode(bytes, &record);

	(void)state;
	for (int value = 0; value < 256; value++) {
		bool access = value >= 1 && value <= 3;
		bool kind = value >= WH_MEMORY_PAGEABLE && value <= WH_MEMORY_FILE;
		bool name = (value >= 'a' && value <= 'z') || (value >= 'A' && value <= 'Z') ||
			    (value >= '0' && value <= '9') || value == '.' || value == '_' ||
			    value == '-';

		bytes[AT_ACCESS] = (uint8_t)value;
		assert_int_equal(decode(bytes, length, &got), access ? 1 : -EPROTO);
		bytes[AT_ACCESS] = WH_ACCESS_READ;
		bytes[AT_KIND] = (uint8_t)value;
		assert_int_equal(decode(bytes, length, &got), kind ? 1 : -EPROTO);
		bytes[AT_KIND] = WH_MEMORY_SHARED;
		for (size_t at = AT_NAME; at < length; at++) {
			uint8_t saved = bytes[at];

			bytes[at] = (uint8_t)value;
			assert_int_equal(decode(bytes, length, &got), name ? 1 : -EPROTO);
			bytes[at] = saved;
		}
		if (value > 12) {
			bytes[AT_NAME_LENGTH] = (uint8_t)value;
			assert_int_equal(decode(bytes, length, &got), -EPROTO);
			bytes[AT_NAME_LENGTH] = 12;
		}
	}
}

static void decode__name_too_long(void **state)
{
	struct wh_region_record record = sample(), got = { .id = 99 };
	uint8_t bytes[28 + 255];

	(void)state;
	memset(bytes, 'a', sizeof(bytes));
	wh_region_encode(bytes, &record);
	for (unsigned length = WH_NAME_MAX; length < 256; length++) {
		bytes[AT_NAME_LENGTH] = (uint8_t)length;
		assert_int_equal(decode(bytes, 28 + length, &got), -EPROTO);
	}
	assert_true(got.id == 99);
}

static int decode_key(const uint8_t *bytes, size_t length, uint64_t *epoch,
		      struct wh_region_record *record)
{
	uint8_t *copy = exact_copy(bytes, length);
	int rc = wh_key_decode(copy, length, epoch, record);

	free(copy);
	return rc;
}

static void key__round_trip(void **state)
{
	struct wh_region_record record = sample(), got;
	uint8_t bytes[WH_KEY_MAX];
	uint64_t epoch = 0;
	size_t length = wh_key_encode(bytes, 77, &record);

	(void)state;
	assert_int_equal(length, KEY_HEADER + 28 + 12);
	assert_memory_equal(bytes, "\1\0\x34\0\x4d\0\0\0\0\0\0\0", KEY_HEADER);
	assert_int_equal(decode_key(bytes, length, &epoch, &got), 0);
	assert_true(epoch == 77);
	assert_record_equal(&record, &got);
	memset(record.name, 'k', WH_NAME_MAX - 1);
	length = wh_key_encode(bytes, UINT64_MAX, &record);
	assert_int_equal(decode_key(bytes, length, &epoch, &got), 0);
	assert_true(epoch == UINT64_MAX);
	assert_record_equal(&record, &got);
}

static void key__hostile(void **state)
{
	const struct wh_region_record record = sample();
	struct wh_region_record got = { .id = 99 };
	uint8_t bytes[WH_KEY_MAX] = { 0 };
	uint64_t epoch = 1234;
	size_t length = wh_key_encode(bytes, 77, &record);

	(void)state;
	for (size_t i = 0; i < length; i++)
		assert_int_equal(decode_key(bytes, i, &epoch, &got), -EINVAL);
	/* Cut off, and honest about it. */
	for (size_t i = 4; i < length; i++) {
		bytes[2] = (uint8_t)i;
		assert_int_equal(decode_key(bytes, i, &epoch, &got), -EINVAL);
	}
	for (size_t i = length + 1; i <= sizeof(bytes); i++) {
		bytes[2] = (uint8_t)i;
		assert_int_equal(decode_key(bytes, i, &epoch, &got), -EINVAL);
	}
	bytes[2] = (uint8_t)length;
	for (int version = 0; version < 256; version++) {
		bytes[0] = (uint8_t)version;
		if (version != 1)
			assert_int_equal(decode_key(bytes, length, &epoch, &got),
					 version ? -EPROTONOSUPPORT : -EINVAL);
	}
	bytes[0] = 1;
	bytes[1] = 1;
	assert_int_equal(decode_key(bytes, length, &epoch, &got), -EINVAL);
	bytes[1] = 0;
	bytes[4] = 0; /* the epoch */
	assert_int_equal(decode_key(bytes, length, &epoch, &got), -EINVAL);
	bytes[4] = 77;
	bytes[KEY_HEADER + AT_ACCESS] = 0;
	assert_int_equal(decode_key(bytes, length, &epoch, &got), -EINVAL);
	assert_true(got.id == 99 && epoch == 1234);
}

/* ---- questions and removals -------------------------------------------- */

static int decode_question(const uint8_t *bytes, size_t length, struct wh_question *out)
{
	uint8_t *exact = malloc(length ? length : 1);
	int error;

	/* In a block of its own, so that sanitizers see reads past its end. */
	memcpy(exact, bytes, length);
	error = wh_question_decode(exact, length, out);
	free(exact);
	return error;
}

static void question__round_trip(void **state)
{
	struct wh_question by_name = {
		.token = 9, .kind = WH_ASK_NAME, .count = 5, .name = "kv-01"
	};
	struct wh_question list = { .kind = WH_ASK_LIST, .count = 1024, .cursor = 1 << 20 };
	struct wh_question by_id = { .token = 7, .kind = WH_ASK_IDS, .count = 2 }, got;
	struct wh_question by_range = { .token = 8, .kind = WH_ASK_ADDRESSES, .count = 1 };
	const struct wh_range range = { 4096, 100, WH_ACCESS_WRITE };
	uint8_t bytes[WH_QUESTION_HEAD + WH_NAME_MAX];
	struct wh_range back;
	size_t length;

	(void)state;
	length = wh_question_encode(bytes, &by_name);
	assert_int_equal(length, WH_QUESTION_HEAD + 5);
	assert_int_equal(wh_question_decode(bytes, length, &got), 0);
	assert_int_equal(got.token, 9);
	assert_string_equal(got.name, "kv-01");
	length = wh_question_encode(bytes, &list);
	assert_int_equal(wh_question_decode(bytes, length, &got), 0);
	assert_int_equal(got.cursor, 1 << 20);
	assert_int_equal(got.count, 1024);
	length = wh_question_encode(bytes, &by_id);
	wh_put64(wh_put64(bytes + length, 11), UINT64_MAX);
	assert_int_equal(wh_question_decode(bytes, length + 16, &got), 0);
	assert_int_equal(wh_question_id(&got, 0), 11);
	assert_true(wh_question_id(&got, 1) == UINT64_MAX);
	length = wh_question_encode(bytes, &by_range);
	wh_range_encode(bytes + length, &range);
	assert_int_equal(wh_question_decode(bytes, length + WH_RANGE_SIZE, &got), 0);
	assert_true(wh_question_range(&got, 0, &back));
	assert_true(back.address == range.address && back.length == range.length &&
		    back.access == range.access);
	/* It wraps, is empty, or asks for nothing. */
	wh_range_encode(bytes + length, &(struct wh_range){ UINT64_MAX, 1, WH_ACCESS_READ });
	assert_false(wh_question_range(&got, 0, &back));
	wh_range_encode(bytes + length, &(struct wh_range){ 4096, 0, WH_ACCESS_READ });
	assert_false(wh_question_range(&got, 0, &back));
	wh_range_encode(bytes + length, &(struct wh_range){ 4096, 1, WH_ACCESS_LIST });
	assert_false(wh_question_range(&got, 0, &back));
}

static void question__hostile(void **state)
{
	struct wh_question question = { .token = 7, .kind = WH_ASK_IDS, .count = 2 }, got;
	uint8_t bytes[WH_QUESTION_HEAD + 16 + 1] = { 0 };

	(void)state;
	wh_question_encode(bytes, &question);
	for (size_t i = 0; i < sizeof(bytes); i++)
		assert_int_equal(decode_question(bytes, i, &got),
				 i == WH_QUESTION_HEAD + 16 ? 0 : -EPROTO);
	for (int kind = 0; kind < 256; kind++) {
		bytes[8] = (uint8_t)kind;
		if (kind != WH_ASK_IDS)
			assert_int_equal(decode_question(bytes, sizeof(bytes) - 1, &got), -EPROTO);
	}
	bytes[8] = WH_ASK_IDS;
	for (int i = 9; i < 12; i++) {
		bytes[i] = 1;
		assert_int_equal(decode_question(bytes, sizeof(bytes) - 1, &got), -EPROTO);
		bytes[i] = 0;
	}
	/* Counts: none is right only in the first question of a connection. */
	question.count = 0;
	wh_question_encode(bytes, &question);
	assert_int_equal(decode_question(bytes, WH_QUESTION_HEAD, &got), -EPROTO);
	question.token = 0;
	wh_question_encode(bytes, &question);
	assert_int_equal(decode_question(bytes, WH_QUESTION_HEAD, &got), 0);
	question.count = UINT32_MAX;
	wh_question_encode(bytes, &question);
	assert_int_equal(decode_question(bytes, WH_QUESTION_HEAD, &got), -EPROTO);
	question =
		(struct wh_question){ .token = 1, .kind = WH_ASK_NAME, .count = 3, .name = "a/b" };
	wh_question_encode(bytes, &question);
	assert_int_equal(decode_question(bytes, WH_QUESTION_HEAD + 3, &got), -EPROTO);
}

static void removal__both_ways(void **state)
{
	const struct wh_removal removal = { 5, 6, 4096, 64 };
	uint8_t bytes[WH_REMOVAL_SIZE];
	struct wh_removal got;

	(void)state;
	wh_removal_encode(bytes, &removal);
	assert_int_equal(wh_removal_decode(bytes, sizeof(bytes), &got), 0);
	assert_memory_equal(&got, &removal, sizeof(got));
	assert_int_equal(wh_removal_decode(bytes, sizeof(bytes) - 1, &got), -EPROTO);
	wh_removal_encode(bytes, &(struct wh_removal){ 0, 6, 4096, 64 });
	assert_int_equal(wh_removal_decode(bytes, sizeof(bytes), &got), -EPROTO);
	wh_removal_encode(bytes, &(struct wh_removal){ 5, 6, 4096, 0 });
	assert_int_equal(wh_removal_decode(bytes, sizeof(bytes), &got), -EPROTO);
	wh_removal_encode(bytes, &(struct wh_removal){ 5, 6, UINT64_MAX, 1 });
	assert_int_equal(wh_removal_decode(bytes, sizeof(bytes), &got), -EPROTO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(encode__layout),        cmocka_unit_test(decode__round_trip),
		cmocka_unit_test(decode__a_list),        cmocka_unit_test(decode__cut_off),
		cmocka_unit_test(decode__ranges),        cmocka_unit_test(decode__every_byte_value),
		cmocka_unit_test(decode__name_too_long), cmocka_unit_test(key__round_trip),
		cmocka_unit_test(key__hostile),          cmocka_unit_test(question__round_trip),
		cmocka_unit_test(question__hostile),     cmocka_unit_test(removal__both_ways),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
