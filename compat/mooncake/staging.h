/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staging between a socket and memory that the CPU cannot access, such as a GPU's: sockets use a
 * pinned host buffer, and Wherry copies between that buffer and the memory. One thread at a time
 * may use a struct wh_mooncake_staging.
 */
#ifndef WH_COMPAT_MOONCAKE_STAGING_H
#define WH_COMPAT_MOONCAKE_STAGING_H

#include <stdbool.h>

#include <wherry/wherry.h>

struct wh_mooncake_staging {
	struct wh_engine *engine;
	void *memory;
	struct wh_region *region; /* of `memory` */
	struct wh_peer *self;
	struct wh_batch *batch; /* reused by every copy */
};

/* Allocate `size` bytes of staging memory. All functions return 0, or a negative errno with
 * wh_fail_text(). */
int wh_mooncake_staging_open(struct wh_engine *engine, size_t size,
			     struct wh_mooncake_staging *out);
/* Copy `length` bytes between the start of the staging memory and `offset` in `region`, which may
 * be any region of the engine. Blocks until they are copied. */
int wh_mooncake_staging_copy(struct wh_mooncake_staging *staging, struct wh_region *region,
			     uint64_t offset, size_t length, bool to_region);
/* Free everything. A staging that is all zero is allowed. */
int wh_mooncake_staging_close(struct wh_mooncake_staging *staging);

#endif
