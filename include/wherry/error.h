/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WHERRY_ERROR_H
#define WHERRY_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

#define WH_VERSION_MAJOR 0
#define WH_VERSION_MINOR 1
#define WH_VERSION_PATCH 0

/* The version of the loaded library, "0.1.0". A constant string; never fails. */
const char *wh_version(void);

/* Describe this thread's last failed call: the call, the argument or address, the real errno, and
 * what to try. One line without a newline; "" if no call has failed on this thread. A call that
 * succeeds leaves the text unchanged, even if it had to recover from errors. The library owns the
 * string; it is valid until this thread's next failing call. Errors that occur while a batch runs
 * belong to the batch: wh_batch_error_text(). */
const char *wh_error_text(void);

/* The name of a status, or of what a function returned: "OK" for 0, "ECONNRESET" for -ECONNRESET;
 * "UNKNOWN" for any other number. A constant string; never fails. */
const char *wh_status_name(int status);

#ifdef __cplusplus
}
#endif
#endif
