/* SPDX-License-Identifier: Apache-2.0 */
/* Text from outside: from peers, registries, certificates, drivers. It ends up on terminals, in
 * logs and in errors, where control characters move the cursor, start a line of their own or turn
 * the text round. */
#ifndef WH_UTIL_TEXT_H
#define WH_UTIL_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* How many bytes the character at `text` takes, 1 to 4; it ends before `length`. 0: it is not to be
 * shown, which is said of control characters (C0, DEL, U+0080 to U+009F, U+2028, U+2029), of those
 * that change the direction of writing, and of bytes that are not UTF-8. */
size_t wh_text_character(const char *text, size_t length);

/* The same where that is 0, for what stands in its place: how many bytes one character that is not
 * shown takes, or 1, a byte that is not UTF-8. `length` is not 0. */
size_t wh_text_hidden(const char *text, size_t length);

/* Whether all of it may be shown. A text in a message is: what has a cut character at its end is
 * not. */
bool wh_text_is_clean(const char *text, size_t length);

/* Write '?' for each character and each byte that is not to be shown. In place; the text may become
 * shorter. */
void wh_text_clean(char *text);

#endif
