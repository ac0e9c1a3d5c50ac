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

/* One side of a descriptor: how it says where its blocks lie, and what comes of that. */
struct side {
	bool remote;
	/* The form; at most one list is not NULL. */
	const uint64_t *offsets;
	const int32_t *indices;
	const void *addresses; /* count * 64 bits */
	uint64_t stride;
	/* The region of the addresses. */
	uint64_t id; /* 0: not known yet */
	struct wh_region *local; /* NULL: the remote side, or not known yet */
	uint64_t origin, room; /* its address, and its bytes */
	/* The result. */
	uint64_t *list; /* offsets from the base; NULL: strides. Owned by the blocks. */
	uint64_t span; /* bytes from the base; UINT64_MAX: outside of every region */
	uint64_t bits; /* all offsets or-ed, or the stride */
};

_Static_assert(sizeof(void *) == sizeof(uint64_t), "lists of pointers are read as 64-bit numbers");

/* ---- lists of offsets ------------------------------------------------------------------------ */

/* Clang vectorises the two loops below at -O2, GCC at -O3 only. Inlined, they would be compiled as
 * the caller is. */
#if defined(__GNUC__) && !defined(__clang__)
#define VECTORISED __attribute__((noinline, optimize("O3")))
#else
#define VECTORISED
#endif

/* An offset, an address or a pointer. */
typedef uint64_t __attribute__((may_alias)) side_number;

/* Copy numbers, less `origin`. Returns the largest result; *bits is all or-ed. The list is read
 * once, without a branch for each number. */
VECTORISED
static uint64_t offsets_copy(uint64_t *restrict to, const void *restrict list, uint64_t origin,
			     uint64_t count, uint64_t *bits)
{
	const side_number *from = list;
	uint64_t most = 0, all = 0;

	for (uint64_t i = 0; i < count; i++) {
		uint64_t offset = from[i] - origin;

		to[i] = offset;
		most = offset > most ? offset : most;
		all |= offset;
	}
	*bits = all;
	return most;
}

/* Multiply indices by a stride of 32 bits, which is one instruction for several. Returns the
 * largest index as if they were unsigned: a negative one is more than INT32_MAX. */
VECTORISED
static uint32_t indices_multiply(uint64_t *restrict to, const int32_t *restrict indices,
				 uint32_t stride, uint64_t count, uint64_t *bits)
{
	uint64_t all = 0;
	uint32_t most = 0;

	for (uint64_t i = 0; i < count; i++) {
		uint32_t index = (uint32_t)indices[i];
		uint64_t offset = (uint64_t)index * stride;

		to[i] = offset;
		most = index > most ? index : most;
		all |= offset;
	}
	*bits = all;
	return most;
}

/* The same by a longer stride. Offsets of more than 64 bits become UINT64_MAX, which is outside of
 * every region. Returns all or-ed. */
static uint64_t indices_multiply_wide(uint64_t *to, const int32_t *indices, uint64_t stride,
				      uint64_t count)
{
	uint64_t all = 0;

	for (uint64_t i = 0; i < count; i++) {
		if (__builtin_mul_overflow((uint64_t)(uint32_t)indices[i], stride, &to[i]))
			to[i] = UINT64_MAX;
		all |= to[i];
	}
	return all;
}

static int indices_fail_negative(const struct side *side, uint64_t count)
{
	uint64_t i = 0;

	while (i + 1 < count && side->indices[i] >= 0)
		i++;
	return wh_fail(EINVAL, "wh_blocks_new: desc: %s_indices[%llu] is %d",
		       side->remote ? "remote" : "local", (unsigned long long)i, side->indices[i]);
}

static void side_set_span(struct side *side, uint64_t last, uint64_t block_length)
{
	if (__builtin_add_overflow(last, block_length, &side->span))
		side->span = UINT64_MAX;
}

static int side_set_indices(struct side *side, const struct wh_blocks *blocks)
{
	uint64_t last;
	uint32_t most = indices_multiply(side->list, side->indices, (uint32_t)side->stride,
					 blocks->count, &side->bits);

	if (most > INT32_MAX)
		return indices_fail_negative(side, blocks->count);
	if (side->stride > UINT32_MAX)
		side->bits = indices_multiply_wide(side->list, side->indices, side->stride,
						   blocks->count);
	if (__builtin_mul_overflow((uint64_t)most, side->stride, &last))
		last = UINT64_MAX;
	side_set_span(side, last, blocks->block_length);
	return 0;
}

static void side_set_strides(struct side *side, const struct wh_blocks *blocks)
{
	uint64_t last;

	side->bits = side->stride;
	if (__builtin_mul_overflow(blocks->count - 1, side->stride, &last))
		last = UINT64_MAX;
	side_set_span(side, last, blocks->block_length);
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

/* ---- lists of addresses ---------------------------------------------------------------------- */

static uint64_t side_address(const struct side *side, uint64_t i)
{
	uint64_t address;

	memcpy(&address, (const char *)side->addresses + i * sizeof(address), sizeof(address));
	return address;
}

/* Find the region of block `index` of so many bytes. 0, -ENOENT, or wh_peer_check()'s error. */
static int side_find(const struct side *side, const struct wh_blocks *blocks, uint64_t index,
		     uint64_t address, uint64_t length, struct wh_region **local, uint64_t *id)
{
	struct wh_batch_addresses addresses;
	uint64_t offset;
	int error;

	wh_batch_addresses_begin(&addresses, blocks->peer);
	if (side->remote)
		error = wh_batch_find_remote(&addresses, "block", index, blocks->op, address,
					     length, true, id, &offset);
	else
		error = wh_batch_find_local(&addresses, "block", index, address, length, local, id,
					    &offset);
	wh_batch_addresses_end(&addresses);
	return error;
}

/* Turn the addresses into offsets in the region `side->id`. An address below the region wraps,
 * which puts it outside as well. */
static int side_place(struct side *side, const struct wh_blocks *blocks)
{
	struct wh_peer *peer = blocks->peer;
	struct wh_region_table *table =
		side->remote && !peer->self ? &peer->regions : &peer->engine->regions;
	struct wh_region_entry *entry = wh_region_entry_enter(table, side->id);

	if (!entry && side->remote)
		return wh_batch_check_remote(peer, "base", 0, blocks->op, side->id, 0, 1);
	if (!entry)
		return wh_fail(ENOENT, "block 0: local: the region has just been unregistered");
	side->origin = entry->address;
	side->room = entry->length;
	wh_region_entry_leave(entry);
	side_set_span(
		side,
		offsets_copy(side->list, side->addresses, side->origin, blocks->count, &side->bits),
		blocks->block_length);
	return 0;
}

/* The region that block 0 was found in does not hold all blocks. Look for a larger one that does.
 * If there is none, -ENOENT if no region holds the first block outside; else 0, and
 * blocks_check_base() says that it is outside. */
static int side_widen(struct side *side, const struct wh_blocks *blocks)
{
	uint64_t low = side_address(side, 0), high = low, outside, id;
	struct wh_region *local = NULL;

	for (uint64_t i = 1; i < blocks->count; i++) {
		uint64_t address = side_address(side, i);

		low = address < low ? address : low;
		high = address > high ? address : high;
	}
	if (high - low <= UINT64_MAX - blocks->block_length &&
	    !side_find(side, blocks, 0, low, high - low + blocks->block_length, &local, &id)) {
		side->local = local;
		side->id = id;
		return side_place(side, blocks);
	}
	outside = blocks_first_outside(side->list, 0, blocks, side->room);
	return side_find(side, blocks, outside, side_address(side, outside), blocks->block_length,
			 &local, &id);
}

static int side_set_addresses(struct side *side, const struct wh_blocks *blocks)
{
	bool given = side->id;
	int error = 0;

	if (!given)
		error = side_find(side, blocks, 0, side_address(side, 0), blocks->block_length,
				  &side->local, &side->id);
	if (!error)
		error = side_place(side, blocks);
	if (!error && !given && side->span > side->room)
		error = side_widen(side, blocks);
	return error;
}

/* Make the offsets of one side, whatever their form: *list is the blocks' own. */
static int side_set(struct side *side, const struct wh_blocks *blocks, uint64_t **list)
{
	uint64_t count = blocks->count;

	if (!side->offsets && !side->indices && !side->addresses) {
		side_set_strides(side, blocks);
		return 0;
	}
	*list = count <= SIZE_MAX / sizeof(**list) ? malloc(count * sizeof(**list)) : NULL;
	if (!*list)
		return wh_fail(ENOMEM, "wh_blocks_new: no memory for %llu offsets",
			       (unsigned long long)count);
	side->list = *list;
	if (side->indices)
		return side_set_indices(side, blocks);
	if (side->addresses)
		return side_set_addresses(side, blocks);
	side_set_span(side, offsets_copy(side->list, side->offsets, 0, count, &side->bits),
		      blocks->block_length);
	return 0;
}

/* ---- checking -------------------------------------------------------------------------------- */

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

/* Check the remote side of a base. 0, an error of wh_batch_check_remote(), or -ERANGE. */
static int blocks_check_remote(const struct wh_blocks *blocks, uint64_t remote, uint64_t offset,
			       uint64_t index)
{
	struct wh_region_table *table =
		blocks->peer->self ? &blocks->peer->engine->regions : &blocks->peer->regions;
	struct wh_region_entry *entry;
	uint64_t room = 0;
	/* First one byte at the base: this reports all errors that are not about the blocks. */
	int error =
		wh_batch_check_remote(blocks->peer, "base", index, blocks->op, remote, offset, 1);

	if (error)
		return error;
	entry = wh_region_entry_enter(table, remote);
	if (entry) {
		room = entry->length > offset ? entry->length - offset : 0;
		wh_region_entry_leave(entry);
	}
	if (blocks->remote_span > room)
		return wh_fail(ERANGE, "base %llu: block %llu is outside remote region %#llx",
			       (unsigned long long)index,
			       (unsigned long long)blocks_first_outside(
				       blocks->remote_offsets, blocks->remote_stride, blocks, room),
			       (unsigned long long)remote);
	return 0;
}

static int blocks_check_base(struct wh_blocks *blocks, const struct wh_base *base, uint64_t index,
			     uint64_t local_span)
{
	uint64_t room;
	int error;

	/* First one byte, as above. */
	error = wh_batch_check_local(blocks->peer, "base", index, base->local, base->local_offset,
				     1);
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
	error = blocks_check_remote(blocks, base->remote, base->remote_offset, index);
	if (error == -ENOENT && base->remote && !blocks->peer->self) {
		/* Submitting asks for it. */
		atomic_store(&blocks->unresolved, true);
		return 0;
	}
	return error ? error : blocks_check_overlap(blocks, base);
}

int wh_blocks_resolve(struct wh_blocks *blocks)
{
	int error = 0;

	for (uint64_t i = 0; !error && i < blocks->base_count; i++)
		error = blocks_check_remote(blocks, blocks->bases[i].remote,
					    blocks->bases[i].offset, i);
	if (!error)
		atomic_store(&blocks->unresolved, false);
	return error;
}

/* The lists and bases that exclude each other. NULL: right. */
static const char *desc_check_forms(const struct wh_blocks_desc *desc)
{
	bool local = desc->local_addresses, remote = desc->remote_addresses;

	if (!!desc->local_offsets + !!desc->local_indices + local > 1)
		return "more than one of local_offsets, local_indices and local_addresses is set";
	if (!!desc->remote_offsets + !!desc->remote_indices + remote > 1)
		return "more than one of remote_offsets, remote_indices and remote_addresses is "
		       "set";
	if (local && desc->local_stride)
		return "both local_addresses and local_stride are set";
	if (remote && desc->remote_stride)
		return "both remote_addresses and remote_stride are set";
	if (!desc->bases && !desc->base_count && local && remote)
		return NULL;
	if (!desc->bases || !desc->base_count)
		return desc->bases ? "base_count is 0" : "bases is NULL";
	if ((local || remote) && desc->base_count > 1)
		return "base_count is more than 1, and addresses have one base at most";
	if (local && desc->bases->local_offset)
		return "base 0 has a local_offset, which local_addresses do not count from";
	if (remote && desc->bases->remote_offset)
		return "base 0 has a remote_offset, which remote_addresses do not count from";
	return NULL;
}

static int blocks_check_desc(const struct wh_blocks_desc *desc)
{
	const char *wrong = NULL;
	uint64_t total;

	if (desc->op != WH_READ && desc->op != WH_WRITE)
		wrong = "op is neither WH_READ nor WH_WRITE";
	else if (desc->reserved)
		wrong = "reserved is not 0";
	else if ((wrong = desc_check_forms(desc)))
		;
	else if (desc->count > SIZE_MAX / 64 || desc->base_count > SIZE_MAX / 64 ||
		 __builtin_mul_overflow(desc->count, desc->block_length, &total) ||
		 __builtin_mul_overflow(total, desc->base_count, &total))
		return wh_fail(ERANGE, "wh_blocks_new: desc: block_length, count and base_count "
				       "together make more than 2^64 bytes");
	return wrong ? wh_fail(EINVAL, "wh_blocks_new: desc: %s", wrong) : 0;
}

/* Check all blocks of all bases, and keep the bases. */
static int blocks_set_bases(struct wh_blocks *blocks, const struct wh_base *bases,
			    const struct side *local)
{
	int error;

	for (uint64_t i = 0; i < blocks->base_count; i++) {
		const struct wh_base *base = &bases[i];

		error = blocks_check_base(blocks, base, i, local->span);
		if (error)
			return error;
		/* Other threads may unregister a region that was found by address. */
		blocks->bases[i] = (struct wh_block_base){
			.address =
				(char *)(uintptr_t)(local->addresses ? local->origin :
								       base->local->entry.address) +
				base->local_offset,
			.local = base->local,
			.local_id =
				local->addresses ? local->id : atomic_load(&base->local->entry.id),
			.remote = base->remote,
			.offset = base->remote_offset,
		};
	}
	return 0;
}

/* Make the offsets of both sides, find the regions of addresses, and check all blocks. */
static int blocks_fill(struct wh_blocks *blocks, const struct wh_blocks_desc *desc)
{
	struct wh_base only = { 0 };
	const struct wh_base *bases = desc->bases;
	struct side local = {
		.offsets = desc->local_offsets,
		.indices = desc->local_indices,
		.addresses = desc->local_addresses,
		.stride = blocks->local_stride,
	};
	struct side remote = {
		.remote = true,
		.offsets = desc->remote_offsets,
		.indices = desc->remote_indices,
		.addresses = desc->remote_addresses,
		.stride = blocks->remote_stride,
	};
	int error = 0;

	for (uint64_t i = 0; i < desc->base_count; i++)
		if (bases[i].reserved[0] || bases[i].reserved[1])
			return wh_fail(EINVAL, "base %llu: reserved is not 0",
				       (unsigned long long)i);
	if (local.addresses || remote.addresses) {
		only = desc->bases ? *desc->bases : only;
		bases = &only;
	}
	if (local.addresses && only.local) {
		error = wh_batch_check_local(blocks->peer, "base", 0, only.local, 0, 1);
		local.local = only.local;
		local.id = error ? 0 : atomic_load(&only.local->entry.id);
	}
	remote.id = remote.addresses ? only.remote : 0;
	if (!error)
		error = side_set(&local, blocks, &blocks->local_offsets);
	if (!error)
		error = side_set(&remote, blocks, &blocks->remote_offsets);
	if (error)
		return error;
	if (local.addresses)
		only.local = local.local;
	if (remote.addresses)
		only.remote = remote.id;
	blocks->local_bits = local.bits;
	blocks->remote_bits = remote.bits;
	blocks->remote_span = remote.span;
	return blocks_set_bases(blocks, bases, &local);
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
	/* No bytes are in no region, and no batch ever has such blocks. */
	blocks->base_count = !desc.count || !desc.block_length ? 0 :
			     desc.base_count                   ? desc.base_count :
								 1;
	blocks->local_stride = desc.local_stride ? desc.local_stride : desc.block_length;
	blocks->remote_stride = desc.remote_stride ? desc.remote_stride : desc.block_length;
	blocks->bases = calloc(blocks->base_count + 1, sizeof(*blocks->bases));
	if (!blocks->bases)
		error = wh_fail(ENOMEM, "wh_blocks_new: no memory for %llu bases",
				(unsigned long long)blocks->base_count);
	if (!error && blocks->base_count)
		error = blocks_fill(blocks, &desc);
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
