/* SPDX-License-Identifier: Apache-2.0 */
/* How functions fail: a negative errno, and a sentence for wh_error_text(). */
#ifndef WH_UTIL_ERROR_H
#define WH_UTIL_ERROR_H

#define WH_TEXT_MAX 256
#define WH_REFUSAL 192 /* bytes of a reason why something is not used, as in struct wh_route */

/* Store the sentence for this thread's wh_error_text() and return -error. The sentence says what
 * failed, on what, and what to try; no newline. Keeps errno. */
int wh_fail(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Enclose a public call that recovers from failures inside it: if wh_fail_end() gets a result of 0
 * or more, it restores the text that this thread had before wh_fail_begin(). Pairs nest; the
 * outermost pair decides. wh_fail_end() returns `result`. */
void wh_fail_begin(void);
int wh_fail_end(int result);

/* The sentence of this thread's last wh_fail(); "" before the first. */
const char *wh_fail_text(void);

#endif
