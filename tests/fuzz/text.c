/* SPDX-License-Identifier: Apache-2.0 */
/* What is made of a text from outside before it is shown. */
#include "fuzz.h"

#include "util/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1), *before = malloc(size + 1);
	size_t length;

	check(text && before);
	memcpy(text, data, size);
	text[size] = '\0';
	length = strlen(text);
	memcpy(before, text, length + 1);
	wh_text_clean(text);
	check(strlen(text) <= length && !text[0] == !length);
	check(wh_text_is_clean(text, strlen(text)));
	/* What may be shown stays as it is, and nothing else does. */
	check(wh_text_is_clean(before, length) == !strcmp(before, text));
	for (const unsigned char *c = (unsigned char *)text; *c; c++) {
		check(*c >= ' ' && *c != 0x7f);
		/* No U+0080 to U+009F, in no place; and these bytes are in no UTF-8. */
		check(*c != 0xc2 || c[1] >= 0xa0);
		check(*c != 0xc0 && *c != 0xc1 && *c < 0xf5);
	}
	/* A NUL is no character to be shown, and nothing is read behind the end. */
	memcpy(text, data, size);
	if (memchr(text, 0, size))
		check(!wh_text_is_clean(text, size));
	free(before);
	free(text);
	return 0;
}
