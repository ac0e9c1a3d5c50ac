/* SPDX-License-Identifier: Apache-2.0 */
/* Cleaning text from outside: control characters, writing direction, broken UTF-8. */
#include "unit.h"

#include <string.h>

#include "util/text.h"

static const struct {
	const char *given, *shown;
} texts[] = {
	{ "", "" },
	{ "node7 (rack 3)", "node7 (rack 3)" },
	{ "a\nb\r\33[2Jc\177\td", "a?b??[2Jc??d" },
	/* CSI in one character, as a terminal in UTF-8 takes it, and as a byte */
	{ "a\302\2332Jb\302\200\302\237\302\240", "a?2Jb??\302\240" },
	{ "a\2332Jb", "a?2Jb" },
	{ "caf\303\251 \344\270\255 \360\237\232\242",
	  "caf\303\251 \344\270\255 \360\237\232\242" },
	/* overlong encodings of '\33' and U+009B, surrogates, and beyond the last code point */
	{ "\300\233[2J", "??[2J" },
	{ "\340\202\233\360\200\202\233", "???????" },
	{ "\355\240\200\364\220\200\200\365", "????????" },
	/* cut */
	{ "a\342\202", "a??" },
	{ "\342\202a", "??a" },
	/* a line separator, and marks that change the direction of writing */
	{ "a\342\200\250b\342\200\217c\330\234", "a?b?c?" },
};

static void clean__shows_what_may_be_shown(void **state)
{
	char text[64];

	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		strcpy(text, texts[i].given);
		wh_text_clean(text);
		assert_string_equal(text, texts[i].shown);
		assert_int_equal(wh_text_is_clean(texts[i].given, strlen(texts[i].given)),
				 !strcmp(texts[i].given, texts[i].shown));
	}
}

/* U+202A to U+202E, U+2066 to U+2069, none of which a string literal should have. */
static void clean__turns_nothing_round(void **state)
{
	char text[] = { 'a', '\342', '\200', 0, 'b', 0 };

	(void)state;
	for (unsigned i = 0; i < 9; i++) {
		strcpy(text + 1, "\342\200xb");
		text[2] = i < 5 ? '\200' : '\201';
		text[3] = (char)(i < 5 ? 0xaa + i : 0xa6 + i - 5);
		assert_false(wh_text_is_clean(text, 5));
		wh_text_clean(text);
		assert_string_equal(text, "a?b");
	}
}

static void is_clean__of_so_many_bytes(void **state)
{
	(void)state;
	assert_true(wh_text_is_clean("caf\303\251", 5));
	assert_false(wh_text_is_clean("caf\303\251", 4));
	assert_false(wh_text_is_clean("a\0b", 3));
	assert_true(wh_text_is_clean("a\33", 1));
	assert_int_equal(wh_text_character("\303\251", 2), 2);
	assert_int_equal(wh_text_character("\303\251", 0), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(clean__shows_what_may_be_shown),
		cmocka_unit_test(clean__turns_nothing_round),
		cmocka_unit_test(is_clean__of_so_many_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
