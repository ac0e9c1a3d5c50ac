/* SPDX-License-Identifier: Apache-2.0 */
/* How long the first byte of a batch takes to arrive. */
#include <errno.h>

#include "bench/bench.h"
#include "engine.h"

#define UNSEEN INT64_C(1000000000) /* ns */
#define ALONE                                                                                      \
	INT64_C(1000000) /* ns in which the byte may arrive while this thread only watches         \
			  */

int bench_first_byte(struct wh_batch *batch, uint8_t *byte, int64_t start, uint64_t *ns)
{
	volatile uint8_t *watched = byte;
	uint8_t arrived = *watched;
	int64_t now;
	int error, seen = 0;

	*watched = (uint8_t)~arrived;
	error = wh_batch_submit(batch);
	if (error)
		return error;
	do {
		seen = *watched == arrived;
		now = bench_now();
		if (!seen && now - start > ALONE)
			wh_batch_test(batch);
	} while (!seen && now - start < UNSEEN);
	*ns = (uint64_t)(now - start);
	error = engine_wait(batch);
	return error ? error : seen ? 0 : -ETIMEDOUT;
}
