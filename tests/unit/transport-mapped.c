/* SPDX-License-Identifier: Apache-2.0 */
/* The answer to MAP. */
#include "unit.h"

#include <errno.h>
#include <stdio.h>

#include "transport/shm.h"

static void mapped__there_and_back(void **state)
{
	struct wh_mapped in = { .id = 0x1234567890abcdef, .offset = 4096, .length = 1ull << 40 }, out;
	uint8_t bytes[WH_MAPPED_MAX];
	size_t length;

	(void)state;
	length = wh_mapped_encode(bytes, &in);
	assert_int_equal(length, WH_MAPPED_HEAD);
	assert_int_equal(bytes[0], 0xef);
	assert_int_equal(wh_mapped_decode(bytes, length, &out), 0);
	assert_int_equal(out.id, in.id);
	assert_int_equal(out.error, 0);
	assert_int_equal(out.offset, in.offset);
	assert_int_equal(out.length, in.length);
	assert_string_equal(out.text, "");

	in.error = -EOPNOTSUPP;
	memset(in.text, 'x', sizeof(in.text) - 1);
	length = wh_mapped_encode(bytes, &in);
	assert_true(length <= WH_MAPPED_MAX);
	assert_int_equal(wh_mapped_decode(bytes, length, &out), 0);
	assert_int_equal(out.error, -EOPNOTSUPP);
	assert_string_equal(out.text, in.text);
}

static void mapped__malformed(void **state)
{
	struct wh_mapped in = { .id = 7, .error = -ENOENT, .text = "gone" }, out = { .id = 99 };
	uint8_t bytes[WH_MAPPED_MAX + 1] = { 0 };
	size_t length = wh_mapped_encode(bytes, &in);

	(void)state;
	for (size_t i = 0; i < WH_MAPPED_HEAD; i++) {
		uint8_t *cut = exact_copy(bytes, i);

		assert_int_equal(wh_mapped_decode(cut, i, &out), -EPROTO);
		free(cut);
	}
	/* No room for the text and its NUL. */
	memset(bytes + WH_MAPPED_HEAD, 'x', WH_REFUSAL + 1);
	assert_int_equal(wh_mapped_decode(bytes, WH_MAPPED_HEAD + WH_REFUSAL, &out), -EPROTO);
	assert_int_equal(wh_mapped_decode(bytes, WH_MAPPED_HEAD + WH_REFUSAL - 1, &out), 0);
	out.id = 99;
	bytes[WH_MAPPED_HEAD + 2] = 27; /* an escape sequence */
	assert_int_equal(wh_mapped_decode(bytes, length, &out), -EPROTO);
	/* U+009B is one as well, and a text may have been cut in a character. */
	memcpy(bytes + WH_MAPPED_HEAD, "\302\233J\303", length - WH_MAPPED_HEAD);
	assert_int_equal(wh_mapped_decode(bytes, length, &out), 0);
	assert_string_equal(out.text, "?J?");
	out.id = 99;
	bytes[11] = 0x80; /* no errno */
	assert_int_equal(wh_mapped_decode(bytes, length, &out), -EPROTO);
	assert_int_equal(out.id, 99);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mapped__there_and_back),
		cmocka_unit_test(mapped__malformed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
