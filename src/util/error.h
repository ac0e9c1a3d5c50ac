/* SPDX-License-Identifier: Apache-2.0 */
/* Failing: an errno and a sentence for wh_error_text(). */
#ifndef WH_UTIL_ERROR_H
#define WH_UTIL_ERROR_H

#define WH_TEXT_MAX 256

/* Keep the sentence for this thread's wh_error_text() and return -error. The sentence names what
 * failed, on what, and what to try; no newline. */
int wh_fail(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The sentence of this thread's last wh_fail(); "" before the first one. */
const char *wh_fail_text(void);

#endif
