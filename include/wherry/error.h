/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WHERRY_ERROR_H
#define WHERRY_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

#define WH_VERSION_MAJOR 0
#define WH_VERSION_MINOR 1
#define WH_VERSION_PATCH 0

/* The version of the library that runs, "0.1.0". A constant string; never fails. */
const char *wh_version(void);

/* What the last failed call on this thread said: the call, the argument or address, the real
 * errno and what to try. One line, no newline; "" if nothing has failed on this thread yet. A call
 * that succeeds leaves it as it was, whatever it had to get over. The string belongs to the library
 * and is good until this thread's next failing call. An error that comes later, while a batch runs,
 * belongs to the batch: wh_batch_error_text(). */
const char *wh_error_text(void);

#ifdef __cplusplus
}
#endif
#endif
