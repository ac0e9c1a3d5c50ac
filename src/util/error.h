/* SPDX-License-Identifier: Apache-2.0 */
/* Failing: an errno and a sentence for wh_error_text(). */
#ifndef WH_UTIL_ERROR_H
#define WH_UTIL_ERROR_H

#define WH_TEXT_MAX 256
#define WH_REFUSAL 192 /* bytes of a reason why something is not used, as in struct wh_route */

/* Keep the sentence for this thread's wh_error_text() and return -error. The sentence names what
 * failed, on what, and what to try; no newline. */
int wh_fail(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Around what may fail inside and go on all the same: if the result is no error, the thread's text
 * is what it was before. Everything that a program calls and that can get over a failure does so
 * between these two; they nest, and the outermost pair counts. wh_fail_end() returns what it is
 * given. */
void wh_fail_begin(void);
int wh_fail_end(int result);

/* The sentence of this thread's last wh_fail(); "" before the first one. */
const char *wh_fail_text(void);

#endif
