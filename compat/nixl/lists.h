/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From NIXL's lists of descriptors to few descriptors of blocks.
 *
 * NIXL gives a pair of lists with one element for each piece of memory, in any order, of any
 * lengths. wh_blocks_desc wants pieces of one length between the same two regions. The pieces are
 * sorted by their regions, then by length; a length that is a small multiple of another one, which
 * comes from neighbours that NIXL has merged, is divided again. Regions with the same pieces, such
 * as the layers of a model, become bases of one descriptor. Lengths that occur a few times are left
 * over, as single transfers.
 */
#ifndef WH_COMPAT_NIXL_LISTS_H
#define WH_COMPAT_NIXL_LISTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/wherry.h>

#include "compat/nixl/adapter.h"

/* Pieces of one length between one or several pairs of regions, at the same offsets in each. */
struct wh_nixl_blocks {
	uint64_t length;
	uint64_t count;
	const uint64_t *local_offsets;
	const uint64_t *remote_offsets;
	struct wh_base *bases;
	size_t base_count;
};

/* A pair of regions that occurs in the lists. */
struct wh_nixl_pair {
	struct wh_nixl_memory *local;
	struct wh_nixl_memory *remote;
};

struct wh_nixl_lists {
	struct wh_nixl_blocks *blocks;
	size_t block_count;
	struct wh_transfer *singles;
	size_t single_count;
	const struct wh_nixl_pair *pairs;
	size_t pair_count;
	struct wh_nixl_sorter *sorter; /* owns all of it */
};

/* Sort the two lists, which are equally long; pieces of length 0 are left out. 0, or -ENOMEM, or
 * -EINVAL: the lists have different lengths, or an element is memory of neither side; *wrong is its
 * index. Free the result with wh_nixl_lists_free(). */
int wh_nixl_lists_sort(const struct wh_nixl_list *local, const struct wh_nixl_list *remote,
		       bool write, struct wh_nixl_lists *out, size_t *wrong);

void wh_nixl_lists_free(struct wh_nixl_lists *lists);

#endif
