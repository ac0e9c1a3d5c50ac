/* SPDX-License-Identifier: Apache-2.0 */
/* What Mooncake's sockets cannot receive into and send from where it lies goes by way of host
 * memory, which an engine of Wherry's copies to and from it. One at a time. */
#ifndef WH_COMPAT_MOONCAKE_STAGING_H
#define WH_COMPAT_MOONCAKE_STAGING_H

#include <stdbool.h>

#include <wherry/wherry.h>

struct wh_mooncake_staging {
	struct wh_engine *engine;
	void *memory;
	struct wh_region *region;
	struct wh_peer *self;
	struct wh_batch *batch;
};

/* 0, or a negative errno with its text (util/error.h), as from the rest. */
int wh_mooncake_staging_open(struct wh_engine *engine, size_t size,
			     struct wh_mooncake_staging *out);
/* Copy `length` bytes between the start of the staging memory and `offset` in the region, any one
 * of the engine's. */
int wh_mooncake_staging_copy(struct wh_mooncake_staging *staging, struct wh_region *region,
			     uint64_t offset, size_t length, bool to_region);
/* One that is all zero is left alone. */
int wh_mooncake_staging_close(struct wh_mooncake_staging *staging);

#endif
