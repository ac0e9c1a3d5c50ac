/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prepared block descriptors: many blocks of one length, checked once and submitted many times. The
 * core makes and frees them (src/core/blocks.c); all but the atomics is constant.
 */
#ifndef WH_TRANSPORT_BLOCKS_H
#define WH_TRANSPORT_BLOCKS_H

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
	_Atomic uint32_t references; /* the application's, and one for each batch */
	struct wh_peer *peer; /* NULL once it is closed */
	uint32_t op;
	uint64_t block_length, count, base_count;
	struct wh_block_base *bases;
	uint64_t *local_offsets, *remote_offsets; /* NULL: strides */
	uint64_t local_stride, remote_stride;
	uint64_t remote_span; /* bytes from a base to the end of the last block */
	_Atomic bool unresolved; /* the region of a base was not known: submitting asks for it */
	uint64_t local_bits, remote_bits; /* all offsets or-ed, or the stride: shows alignment */
	/* For src/transport/cuda: the source's blocks lie in [source_first, source_end) from each
	 * base; 0: not looked for yet, so source_end is written last */
	_Atomic uint64_t source_first, source_end;
	/* For src/gpu: */
	_Atomic bool gpu_moved; /* a GPU has moved it before */
	struct wh_cached_lists *_Atomic gpu_lists; /* its offsets on a GPU; NULL: not there */
};

#endif
