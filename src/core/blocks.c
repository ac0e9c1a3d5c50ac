/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preparing blocks: checking a descriptor once, so that submitting it checks nothing again.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/batch.h"
#include "core/engine.h"
#include "core/peer.h"
#include "core/region.h"
#include "gpu/stream.h"
#include "memory/memory.h"
#include "memory/region-table.h"
#include "transport/blocks.h"
#include "util/error.h"
#include "util/list.h"
#include "util/options.h"

/* The largest offset, and all offsets or-ed. Simple enough for the compiler to vectorise. */
static uint64_t offsets_largest(const uint64_t *offsets, uint64_t count, uint64_t *bits)
{
	uint64_t most = 0, all = 0;

	for (uint64_t i = 0; i < count; i++) {
		most = offsets[i] > most ? offsets[i] : most;
		all |= offsets[i];
	}
	*bits = all;
	return most;
}

/* How many bytes the blocks of one side span from a base. False: more than 64 bits hold. */
static bool blocks_span(const uint64_t *offsets, uint64_t stride, const struct wh_blocks *blocks,
			uint64_t *span, uint64_t *bits)
{
	uint64_t last;

	*bits = stride;
	if (offsets)
		last = offsets_largest(offsets, blocks->count, bits);
	else if (__builtin_mul_overflow(blocks->count - 1, stride, &last))
		return false;
	return !__builtin_add_overflow(last, blocks->block_length, span);
}

/* The first block that is not within `room` bytes from the base. */
static uint64_t blocks_first_outside(const uint64_t *offsets, uint64_t stride,
				     const struct wh_blocks *blocks, uint64_t room)
{
	uint64_t i, offset;

	for (i = 0; i + 1 < blocks->count; i++) {
		if (offsets)
			offset = offsets[i];
		else if (__builtin_mul_overflow(i, stride, &offset))
			break;
		if (offset > room || blocks->block_length > room - offset)
			break;
	}
	return i;
}

static int blocks_check_overlap(const struct wh_blocks *blocks, const struct wh_base *base)
{
	const uint64_t *local = blocks->local_offsets, *remote = blocks->remote_offsets;
	int error = 0;

	if (!blocks->peer->self || wh_kind_on_host(base->local->entry.kind))
		return 0;
	for (uint64_t i = 0; i < blocks->count && !error; i++)
		error = wh_batch_check_overlap(
			blocks->peer, "block", i, base->local,
			base->local_offset + (local ? local[i] : i * blocks->local_stride),
			base->remote,
			base->remote_offset + (remote ? remote[i] : i * blocks->remote_stride),
			blocks->block_length);
	return error;
}

static int blocks_check_base(const struct wh_blocks *blocks, const struct wh_base *base,
			     uint64_t index, uint64_t local_span, uint64_t remote_span)
{
	struct wh_region_table *table =
		blocks->peer->self ? &blocks->peer->engine->regions : &blocks->peer->regions;
	struct wh_region_entry *entry;
	uint64_t room = 0;
	int error;

	/* First one byte at the base: this reports all errors that are not about the blocks. */
	error = wh_batch_check_local(blocks->peer, "base", index, base->local, base->local_offset,
				     1);
	if (error)
		return error;
	error = wh_batch_check_remote(blocks->peer, "base", index, blocks->op, base->remote,
				      base->remote_offset, 1);
	if (error)
		return error;
	room = base->local->entry.length - base->local_offset;
	if (local_span > room)
		return wh_fail(ERANGE,
			       "base %llu: block %llu is outside the local region of %llu bytes",
			       (unsigned long long)index,
			       (unsigned long long)blocks_first_outside(
				       blocks->local_offsets, blocks->local_stride, blocks, room),
			       (unsigned long long)base->local->entry.length);
	entry = wh_region_entry_enter(table, base->remote);
	if (entry) {
		room = entry->length > base->remote_offset ? entry->length - base->remote_offset :
							     0;
		wh_region_entry_leave(entry);
	}
	if (remote_span > room)
		return wh_fail(ERANGE, "base %llu: block %llu is outside remote region %#llx",
			       (unsigned long long)index,
			       (unsigned long long)blocks_first_outside(
				       blocks->remote_offsets, blocks->remote_stride, blocks, room),
			       (unsigned long long)base->remote);
	return blocks_check_overlap(blocks, base);
}

static int blocks_copy_offsets(uint64_t **to, const uint64_t *from, uint64_t count)
{
	if (!from)
		return 0;
	*to = count <= SIZE_MAX / sizeof(**to) ? malloc(count * sizeof(**to)) : NULL;
	if (!*to)
		return wh_fail(ENOMEM, "wh_blocks_new: no memory for %llu offsets",
			       (unsigned long long)count);
	memcpy(*to, from, count * sizeof(**to));
	return 0;
}

static int blocks_check_desc(const struct wh_blocks_desc *desc)
{
	const char *wrong = NULL;
	uint64_t total;

	if (desc->op != WH_READ && desc->op != WH_WRITE)
		wrong = "op is neither WH_READ nor WH_WRITE";
	else if (desc->reserved)
		wrong = "reserved is not 0";
	else if (!desc->block_length)
		wrong = "block_length is 0";
	else if (!desc->count)
		wrong = "count is 0";
	else if (!desc->bases || !desc->base_count)
		wrong = desc->bases ? "base_count is 0" : "bases is NULL";
	else if (desc->count > SIZE_MAX / 64 || desc->base_count > SIZE_MAX / 64 ||
		 __builtin_mul_overflow(desc->count, desc->block_length, &total) ||
		 __builtin_mul_overflow(total, desc->base_count, &total))
		return wh_fail(ERANGE, "wh_blocks_new: desc: block_length, count and base_count "
				       "together make more than 2^64 bytes");
	return wrong ? wh_fail(EINVAL, "wh_blocks_new: desc: %s", wrong) : 0;
}

/* Check all blocks of all bases, and keep the bases. */
static int blocks_set_bases(struct wh_blocks *blocks, const struct wh_base *bases)
{
	uint64_t local_span, remote_span;
	int error;

	/* A span of more than 64 bits is outside of every region. */
	if (!blocks_span(blocks->local_offsets, blocks->local_stride, blocks, &local_span,
			 &blocks->local_bits))
		local_span = UINT64_MAX;
	if (!blocks_span(blocks->remote_offsets, blocks->remote_stride, blocks, &remote_span,
			 &blocks->remote_bits))
		remote_span = UINT64_MAX;
	for (uint64_t i = 0; i < blocks->base_count; i++) {
		const struct wh_base *base = &bases[i];

		if (base->reserved[0] || base->reserved[1])
			return wh_fail(EINVAL, "base %llu: reserved is not 0",
				       (unsigned long long)i);
		error = blocks_check_base(blocks, base, i, local_span, remote_span);
		if (error)
			return error;
		blocks->bases[i] = (struct wh_block_base){
			.address =
				(char *)(uintptr_t)base->local->entry.address + base->local_offset,
			.local = base->local,
			.local_id = atomic_load(&base->local->entry.id),
			.remote = base->remote,
			.offset = base->remote_offset,
		};
	}
	return 0;
}

int wh_blocks_new(struct wh_peer *peer, const struct wh_blocks_desc *given, struct wh_blocks **out)
{
	struct wh_blocks_desc desc;
	struct wh_blocks *blocks;
	int error;

	if (!peer || !given || !out)
		return wh_fail(EINVAL, "wh_blocks_new: %s is NULL",
			       !peer  ? "peer" :
			       !given ? "desc" :
					"out");
	error = wh_engine_guard(peer->engine, "wh_blocks_new");
	if (error)
		return error;
	error = wh_options_copy(&desc, sizeof(desc), given, sizeof(size_t), "wh_blocks_new");
	if (!error)
		error = blocks_check_desc(&desc);
	if (!error)
		error = wh_peer_check(peer);
	if (error)
		return error;
	blocks = calloc(1, sizeof(*blocks));
	if (!blocks)
		return wh_fail(ENOMEM, "wh_blocks_new: no memory");
	atomic_init(&blocks->references, 1);
	blocks->peer = peer;
	blocks->op = desc.op;
	blocks->block_length = desc.block_length;
	blocks->count = desc.count;
	blocks->base_count = desc.base_count;
	blocks->local_stride = desc.local_stride ? desc.local_stride : desc.block_length;
	blocks->remote_stride = desc.remote_stride ? desc.remote_stride : desc.block_length;
	error = blocks_copy_offsets(&blocks->local_offsets, desc.local_offsets, desc.count);
	if (!error)
		error = blocks_copy_offsets(&blocks->remote_offsets, desc.remote_offsets,
					    desc.count);
	blocks->bases = calloc(desc.base_count, sizeof(*blocks->bases));
	if (!error && !blocks->bases)
		error = wh_fail(ENOMEM, "wh_blocks_new: no memory for %llu bases",
				(unsigned long long)desc.base_count);
	if (!error)
		error = blocks_set_bases(blocks, desc.bases);
	if (error) {
		wh_blocks_release(blocks);
		return error;
	}
	pthread_mutex_lock(&peer->lock);
	wh_list_append(&peer->blocks, &blocks->link);
	pthread_mutex_unlock(&peer->lock);
	*out = blocks;
	return 0;
}

void wh_blocks_leave(struct wh_peer *peer)
{
	struct wh_list *link;

	while ((link = wh_list_take(&peer->blocks))) {
		struct wh_blocks *blocks = wh_container(link, struct wh_blocks, link);

		wh_cached_lists_free(atomic_exchange(&blocks->gpu_lists, NULL));
		blocks->peer = NULL;
	}
}

void wh_blocks_release(struct wh_blocks *blocks)
{
	struct wh_peer *peer;

	if (atomic_fetch_sub(&blocks->references, 1) != 1)
		return;
	peer = blocks->peer;
	if (peer) {
		pthread_mutex_lock(&peer->lock);
		wh_list_remove(&blocks->link);
		pthread_mutex_unlock(&peer->lock);
	}
	wh_cached_lists_free(atomic_load(&blocks->gpu_lists));
	free(blocks->bases);
	free(blocks->local_offsets);
	free(blocks->remote_offsets);
	free(blocks);
}

int wh_blocks_free(struct wh_blocks *blocks)
{
	struct wh_peer *peer;
	int error;

	if (!blocks)
		return 0;
	/* Without a peer it is memory alone. */
	peer = blocks->peer;
	error = peer ? wh_engine_guard(peer->engine, "wh_blocks_free") : 0;
	if (!error)
		wh_blocks_release(blocks);
	return error;
}
