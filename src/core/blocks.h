/* SPDX-License-Identifier: Apache-2.0 */
/* Prepared block descriptors. */
#ifndef WH_CORE_BLOCKS_H
#define WH_CORE_BLOCKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/list.h"

struct wh_cached_lists;
struct wh_peer;
struct wh_region;

/* One pair of bases of a prepared blocks descriptor. */
struct wh_block_base {
	char *address;
	struct wh_region *local;
	uint64_t local_id;
	uint64_t remote, offset;
};

struct wh_blocks {
	struct wh_list link; /* peer.blocks */
	_Atomic uint32_t references;
	struct wh_peer *peer; /* NULL: closed */
	uint32_t op;
	uint64_t block_length, count, base_count;
	struct wh_block_base *bases;
	uint64_t *local_offsets, *remote_offsets; /* NULL: strides */
	uint64_t local_stride, remote_stride;
	uint64_t local_bits, remote_bits; /* all offsets, or the stride, or-ed */
	_Atomic bool used; /* by the transport cuda, at least once */
	struct wh_cached_lists *_Atomic cached; /* its lists on a GPU; NULL: they are not there */
};

/* The peer goes: what is prepared for it can be freed afterwards, but holds nothing of the
 * engine. */
void wh_blocks_leave(struct wh_peer *peer);

#endif
