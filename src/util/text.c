/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding UTF-8, and finding the characters that must not reach a terminal. */
#include "util/text.h"

#include <stdint.h>
#include <string.h>

/* The least code point of a character of 0 to 4 bytes. A smaller one is an overlong encoding. */
static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };

/* The number of bytes of the UTF-8 character at `at`, and its code point. 0: not UTF-8. */
static size_t text_decode(const unsigned char *at, size_t length, uint32_t *code)
{
	size_t bytes = *at < 0x80 ? 1 :
		       *at < 0xc0 ? 0 :
		       *at < 0xe0 ? 2 :
		       *at < 0xf0 ? 3 :
		       *at < 0xf8 ? 4 :
				    0;

	if (!bytes || bytes > length)
		return 0;
	*code = bytes == 1 ? *at : *at & (0xffu >> (bytes + 1));
	for (size_t i = 1; i < bytes; i++) {
		if ((at[i] & 0xc0) != 0x80)
			return 0;
		*code = *code << 6 | (at[i] & 0x3f);
	}
	if (*code < least[bytes] || *code > 0x10ffff || (*code >= 0xd800 && *code < 0xe000))
		return 0;
	return bytes;
}

static bool text_hides(uint32_t code)
{
	return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x61c || code == 0x200e ||
	       code == 0x200f || (code >= 0x2028 && code <= 0x202e) ||
	       (code >= 0x2066 && code <= 0x2069);
}

size_t wh_text_character(const char *text, size_t length)
{
	uint32_t code = 0;
	size_t bytes = length ? text_decode((const unsigned char *)text, length, &code) : 0;

	return text_hides(code) ? 0 : bytes;
}

size_t wh_text_hidden(const char *text, size_t length)
{
	uint32_t code;
	size_t bytes = text_decode((const unsigned char *)text, length, &code);

	return bytes ? bytes : 1;
}

bool wh_text_is_clean(const char *text, size_t length)
{
	for (size_t at = 0, bytes; at < length; at += bytes) {
		bytes = wh_text_character(text + at, length - at);
		if (!bytes)
			return false;
	}
	return true;
}

void wh_text_clean(char *text)
{
	size_t length = strlen(text), in = 0;
	char *out = text;

	while (in < length) {
		const char *at = text + in;
		size_t bytes = wh_text_character(at, length - in);

		if (bytes) {
			memmove(out, at, bytes);
			out += bytes;
		} else {
			bytes = wh_text_hidden(at, length - in);
			*out++ = '?';
		}
		in += bytes;
	}
	*out = '\0';
}
