/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include "weights/run/message.h"

static const struct wh_weights_hello sample = {
	.digest = { UINT64_C(0x1122334455667788), 2 },
	.control = 3,
	.control_bytes = 4,
	.text = 5,
	.text_bytes = 6,
	.url = "wherry://127.0.0.1:7000",
	.flags = 7,
};

static void hello__there_and_back(void **state)
{
	uint8_t bytes[WH_HELLO_BYTES];
	struct wh_weights_hello hello;

	(void)state;
	wh_weights_hello_encode(&sample, bytes);
	assert_true(wh_weights_hello_decode(bytes, sizeof(bytes), &hello));
	assert_memory_equal(&hello, &sample, sizeof(hello));
	/* Its bytes are what other versions will read. */
	assert_int_equal(bytes[8], 0x88);
	assert_int_equal(bytes[24], 3);
	assert_memory_equal(bytes + 56, sample.url, strlen(sample.url));
	assert_int_equal(bytes[152], 7);
}

static void hello__others_are_refused(void **state)
{
	uint8_t bytes[WH_HELLO_BYTES];
	struct wh_weights_hello hello;

	(void)state;
	wh_weights_hello_encode(&sample, bytes);
	assert_false(wh_weights_hello_decode(bytes, sizeof(bytes) - 1, &hello));
	assert_false(wh_weights_hello_decode(bytes, 0, &hello));
	bytes[0]++; /* the format */
	assert_false(wh_weights_hello_decode(bytes, sizeof(bytes), &hello));
	bytes[0]--;
	bytes[58] = '\n';
	assert_false(wh_weights_hello_decode(bytes, sizeof(bytes), &hello));
	memset(bytes + 56, 'x', WH_HELLO_URL);
	assert_false(wh_weights_hello_decode(bytes, sizeof(bytes), &hello));
}

static void head__says_what_slots_have(void **state)
{
	uint64_t words[WH_HEAD_WORDS] = { 0 };
	struct wh_weights_head head;

	(void)state;
	wh_weights_head_init(words, sample.digest, 7, 9);
	assert_true(wh_weights_head_decode(words, 7, 9, &head));
	assert_false(wh_weights_head_decode(words, 7, 8, &head));
	assert_false(wh_weights_head_decode(words, 6, 9, &head));
	for (int i = 0; i < WH_COPY_SLOTS; i++)
		assert_int_equal(head.slots[i].state, WH_COPY_EMPTY);
	wh_weights_head_published(words, 12);
	wh_weights_head_received(words, 34);
	wh_weights_head_begin(words);
	wh_weights_head_begin(words);
	wh_weights_head_set(words, WH_COPY_SECOND, 5, WH_COPY_FILLING);
	assert_true(wh_weights_head_decode(words, 7, 9, &head));
	assert_true(head.published == 12 && head.received == 34 && head.begun == 2 &&
		    head.digest[0] == sample.digest[0] && head.digest[1] == sample.digest[1]);
	assert_true(head.slots[WH_COPY_SECOND].version == 5 &&
		    head.slots[WH_COPY_SECOND].state == WH_COPY_FILLING);
	assert_int_equal(head.slots[WH_COPY_FIRST].state, WH_COPY_EMPTY);
	wh_weights_head_set(words, WH_COPY_SECOND, 5, WH_COPY_WHOLE);
	assert_true(wh_weights_head_decode(words, 7, 9, &head));
	assert_int_equal(head.slots[WH_COPY_SECOND].state, WH_COPY_WHOLE);
	wh_weights_head_clear(words, WH_COPY_SECOND);
	assert_true(wh_weights_head_decode(words, 7, 9, &head));
	assert_true(!head.slots[WH_COPY_SECOND].version && !head.slots[WH_COPY_SECOND].state);
}

/* One of a slot's two words is older than the other: it has no version. */
static void head__torn(void **state)
{
	uint64_t before[WH_HEAD_WORDS] = { 0 }, after[WH_HEAD_WORDS], torn[WH_HEAD_WORDS];
	struct wh_weights_head head;

	(void)state;
	wh_weights_head_init(before, sample.digest, 1, 1);
	wh_weights_head_set(before, WH_COPY_SOURCE, 255, WH_COPY_WHOLE);
	memcpy(after, before, sizeof(after));
	wh_weights_head_set(after, WH_COPY_SOURCE, 256, WH_COPY_FILLING);
	for (size_t i = 0; i < WH_HEAD_WORDS; i++) {
		if (before[i] == after[i])
			continue;
		memcpy(torn, before, sizeof(torn));
		torn[i] = after[i];
		assert_true(wh_weights_head_decode(torn, 1, 1, &head));
		assert_int_equal(head.slots[WH_COPY_SOURCE].state, WH_COPY_EMPTY);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hello__there_and_back),
		cmocka_unit_test(hello__others_are_refused),
		cmocka_unit_test(head__says_what_slots_have),
		cmocka_unit_test(head__torn),
	};

	return cmocka_run_group_tests_name("weights-message", tests, NULL, NULL);
}
