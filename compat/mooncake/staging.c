/* SPDX-License-Identifier: Apache-2.0 */
/* A pinned host buffer, and a batch that copies between it and memory that the CPU cannot access:
 * see staging.h. */
#include <stdio.h>

#include "compat/mooncake/staging.h"
#include "util/error.h"

int wh_mooncake_staging_open(struct wh_engine *engine, size_t size, struct wh_mooncake_staging *out)
{
	struct wh_memory_options pinned = { .size = sizeof(pinned), .kind = WH_MEMORY_PINNED };
	struct wh_mooncake_staging staging = { .engine = engine };
	int error = wh_memory_alloc(engine, size, &pinned, &staging.memory);

	if (!error)
		error = wh_region_register(engine, staging.memory, size, NULL, &staging.region);
	if (!error)
		error = wh_peer_open(engine, "self", NULL, &staging.self);
	if (!error)
		error = wh_batch_new(staging.self, NULL, &staging.batch);
	if (error) {
		char text[WH_TEXT_MAX];

		snprintf(text, sizeof(text), "%s", wh_error_text());
		wh_mooncake_staging_close(&staging);
		return wh_fail(-error, "%s", text);
	}
	*out = staging;
	return 0;
}

int wh_mooncake_staging_copy(struct wh_mooncake_staging *staging, struct wh_region *region,
			     uint64_t offset, size_t length, bool to_region)
{
	struct wh_transfer transfer = {
		.local = region,
		.local_offset = offset,
		.remote = wh_region_id(staging->region),
		.length = length,
		.op = to_region ? WH_READ : WH_WRITE,
	};
	int error = wh_batch_clear(staging->batch);

	if (!error)
		error = wh_batch_add(staging->batch, &transfer, 1);
	if (!error)
		error = wh_batch_submit(staging->batch);
	if (error)
		return wh_fail(-error, "%s", wh_error_text());
	error = wh_batch_wait_for(staging->batch, WH_FOREVER);
	if (!error)
		error = wh_batch_status(staging->batch);
	return error ? wh_fail(-error, "%s", wh_error_text()) : 0;
}

int wh_mooncake_staging_close(struct wh_mooncake_staging *staging)
{
	int error = wh_batch_free(staging->batch);

	if (!error && staging->self)
		error = wh_peer_close(staging->self);
	if (!error && staging->region)
		error = wh_region_unregister(staging->region);
	if (!error && staging->memory)
		error = wh_memory_free(staging->engine, staging->memory);
	*staging = (struct wh_mooncake_staging){ .engine = NULL };
	return error ? wh_fail(-error, "%s", wh_error_text()) : 0;
}
