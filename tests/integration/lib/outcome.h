/* SPDX-License-Identifier: Apache-2.0 */
/* outcome.h: the outcome of a batch in one call, for tests in which no other call fails */
#ifndef TESTS_INTEGRATION_LIB_OUTCOME_H
#define TESTS_INTEGRATION_LIB_OUTCOME_H

#include <errno.h>
#include <stdint.h>

#include <wherry/wherry.h>

/* Wait up to `timeout` ns. The batch's status; -EAGAIN: it has not ended in that time. */
static inline int batch_end(struct wh_batch *batch, int64_t timeout)
{
	int error = wh_batch_wait_for(batch, timeout);

	return error ? error : wh_batch_status(batch);
}

/* The batch's status now; -EAGAIN: it has not ended. */
static inline int batch_now(struct wh_batch *batch)
{
	int error = wh_batch_test(batch);

	return error ? error : wh_batch_status(batch);
}

/* The status of transfer `index`; -EAGAIN: the batch has not ended; -EINVAL: no such transfer. */
static inline int batch_item(struct wh_batch *batch, size_t index)
{
	int status = 0;
	int error = wh_batch_transfer_status(batch, index, &status);

	return error ? error : status;
}

#endif
