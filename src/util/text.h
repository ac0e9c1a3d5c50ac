/* SPDX-License-Identifier: Apache-2.0 */
/* Cleaning text from outside: from peers, registries, certificates, drivers. Such text reaches
 * terminals, logs and errors, where control characters would move the cursor, begin a new line or
 * reverse the text. */
#ifndef WH_UTIL_TEXT_H
#define WH_UTIL_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* The number of bytes, 1 to 4, of the character at `text`, which has `length` bytes. 0: it must not
 * be shown. That holds for control characters (C0, DEL, U+0080 to U+009F, U+2028, U+2029), for
 * characters that change the direction of writing, and for bytes that are not UTF-8. */
size_t wh_text_character(const char *text, size_t length);

/* Where wh_text_character() is 0: the number of bytes to replace. That is one whole character, or
 * one byte that is not UTF-8. `length` is not 0. */
size_t wh_text_hidden(const char *text, size_t length);

/* May all of the text be shown? A text that ends in the middle of a character may not. */
bool wh_text_is_clean(const char *text, size_t length);

/* Replace each character and byte that must not be shown by '?'. In place; the text may become
 * shorter. */
void wh_text_clean(char *text);

#endif
