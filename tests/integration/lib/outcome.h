/* SPDX-License-Identifier: Apache-2.0 */
/* outcome.h: the outcome of a batch in one call, for tests in which no other call fails */
#ifndef TESTS_INTEGRATION_LIB_OUTCOME_H
#define TESTS_INTEGRATION_LIB_OUTCOME_H

#include <errno.h>
#include <stdint.h>
#include <time.h>

#include <wherry/wherry.h>

static inline int64_t outcome_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* Wait up to `timeout` ns. The batch's status; -EAGAIN: it has not ended in that time; -ETIME: it
 * has ended, but this thread slept until a long time-out: nobody woke it. */
static inline int batch_end(struct wh_batch *batch, int64_t timeout)
{
	int64_t begun = outcome_now();
	int error = wh_batch_wait_for(batch, timeout);

	if (!error && timeout >= INT64_C(10000000000) && outcome_now() - begun >= timeout)
		return -ETIME;
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
