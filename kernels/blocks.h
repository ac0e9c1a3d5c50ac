/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gather-scatter kernel: many blocks of one length, from anywhere a GPU can read to anywhere it
 * can write, in one launch. Included by the kernel (CUDA) and by the code that launches it (C).
 *
 * Block i of base b goes from source_base[b] + source_offset[i] to target_base[b] +
 * target_offset[i]. The same kernel packs, unpacks and scatters: either side has a list of offsets
 * or a stride.
 *
 * A block is one or more chunks. A group of 2^group_shift neighbouring threads moves one chunk
 * after the other: several small blocks share a warp, and a large block is spread over the whole
 * grid. wh_blocks_shape() chooses these numbers.
 */
#ifndef WH_KERNELS_BLOCKS_H
#define WH_KERNELS_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

/* Threads of a CTA, in every launch. */
#define WH_BLOCKS_THREADS 512
/* The most chunks of one launch: the kernel numbers them in 32 bits. */
#define WH_BLOCKS_ITEMS (UINT32_C(1) << 30)
/* The most bases that fit into the kernel's parameter; more are read from memory. */
#define WH_BLOCKS_INLINE 32

/* One kernel for each alignment in bytes, which all addresses, offsets, strides and the length of
 * blocks must have. */
enum wh_blocks_variant {
	WH_BLOCKS_16, /* 8 loads in flight for each thread; the others have 4 */
	WH_BLOCKS_8,
	WH_BLOCKS_4,
	WH_BLOCKS_1, /* any alignment; checks each block's */
	WH_BLOCKS_VARIANTS,
};

#define WH_BLOCKS_NAMES                                                                            \
	{                                                                                          \
		"wh_blocks_16", "wh_blocks_8", "wh_blocks_4", "wh_blocks_1"                        \
	}

/* The direction of the copy, as seen by the GPU that runs the kernel. */
enum wh_blocks_way {
	WH_BLOCKS_PUSH, /* from its own memory to a peer's */
	WH_BLOCKS_PULL, /* from a peer's memory to its own */
	WH_BLOCKS_TO_HOST,
	WH_BLOCKS_FROM_HOST,
	WH_BLOCKS_WITHIN, /* within its own memory */
	WH_BLOCKS_WAYS,
};

/* The kernel's only parameter, passed by value. Addresses must be valid on the GPU that runs the
 * kernel. Sources and targets must not overlap. */
struct wh_blocks_job {
	/* Addresses of arrays of base_count addresses, in memory that the GPU can read; 0:
	 * source_base and target_base below. */
	uint64_t source_bases, target_bases;
	/* Addresses of arrays of `count` offsets, in memory that the GPU can read and that does
	 * not change before the kernel ends; 0: offset i is i times the stride. */
	uint64_t source_offsets, target_offsets;
	uint64_t source_stride, target_stride;
	uint64_t block_length; /* bytes; at least 1 */
	uint32_t count; /* blocks of each base; at least 1 */
	uint32_t base_count; /* at least 1 */
	/* Once all bytes are visible to this GPU, its peers and the host, the kernel stores
	 * `flag_value` at the address `flag`, 4-byte aligned, usually in mapped host memory; 0:
	 * no flag. With a flag, `counter` is the address of a 32-bit word in this GPU's memory
	 * that is 0 before and after each launch; the launches of one stream may share it. */
	uint64_t flag, counter;
	uint32_t flag_value;

	/* Set by wh_blocks_shape(). */
	uint32_t group_shift;
	uint32_t chunk_length; /* bytes; the last chunk of a block may be shorter */
	uint32_t chunks; /* of a block */
	uint32_t items; /* chunks in all; at most WH_BLOCKS_ITEMS */
	/* From which chunk on the next launch in the stream may begin; see wh_blocks_let_next(). */
	uint32_t let_next;

	uint64_t source_base[WH_BLOCKS_INLINE];
	uint64_t target_base[WH_BLOCKS_INLINE];
};

/* The widest variant that is possible. `bits`: all addresses, offsets and strides in use and the
 * block length, combined by bitwise or. */
static inline enum wh_blocks_variant wh_blocks_widest(uint64_t bits)
{
	return !(bits & 15) ? WH_BLOCKS_16 :
	       !(bits & 7)  ? WH_BLOCKS_8 :
	       !(bits & 3)  ? WH_BLOCKS_4 :
			      WH_BLOCKS_1;
}

/* Bytes that a thread has in flight. */
static inline uint32_t wh_blocks_flight(enum wh_blocks_variant variant)
{
	switch (variant) {
	case WH_BLOCKS_16:
		return 128;
	case WH_BLOCKS_4:
		return 16;
	default:
		return 32;
	}
}

/*
 * The default number of CTAs on a GPU with `processors` multiprocessors. It is small, because other
 * kernels may run at the same time. best[] has the smallest of 8, 16, 32, 64, 132 and 264 with
 * which blocks of every size from 1 to 64 KiB reach 95 % of their best speed, with and without the
 * upload of the lists; 0 means one for each multiprocessor. Measured on an H200 with 132
 * multiprocessors: bench/results/2026-11-20-h200x2-blocks-kernel.json. The narrower variants were
 * measured with 132 CTAs only. Pushes of blocks of 64 KiB and more get twice as many CTAs, which is
 * 3 % faster.
 *
 * `yield`: another kernel, of a model say, goes first. On one H100, blocks of 4 KiB to the host
 * reached 51.7 GB/s with 2 CTAs and 50 to 52 with 8, and a matrix product beside them kept 96 % of
 * its speed with 2 and 76 % with 8. To the GPU the product kept 99 % with 8. Blocks shorter than
 * 4 KiB were not measured with fewer than 8.
 */
static inline uint32_t wh_blocks_ctas(enum wh_blocks_variant variant, enum wh_blocks_way way,
				      uint64_t block_length, uint32_t processors, bool yield)
{
	static const uint32_t best[WH_BLOCKS_WAYS] = {
		32, /* PUSH */
		16, /* PULL */
		8, /* TO_HOST */
		8, /* FROM_HOST */
		0, /* WITHIN */
	};
	uint32_t ctas = variant == WH_BLOCKS_16 ? best[way] : 0;

	if (way == WH_BLOCKS_PUSH && block_length >= 65536)
		ctas *= 2;
	if (yield && way == WH_BLOCKS_TO_HOST && block_length >= 4096)
		ctas = ctas < 2 ? ctas : 2;
	if (!processors)
		processors = 1;
	return ctas && ctas < processors ? ctas : processors;
}

/*
 * From which chunk on the next launch in the stream may begin, where launches may overlap: from the
 * last quarter, or from the half where `many` are in flight. Two launches that share the GPU also
 * end together, and if there is no third one, nothing is in flight then. On one H100, blocks of
 * 4 KiB within it had 1,276 GB/s at the last quarter and 1,229 at the half with two batches in
 * flight, 1,337 and 1,389 with four: bench/results/2026-11-26-h100-16cpu-launch-early.json.
 */
static inline uint32_t wh_blocks_let_next(uint32_t items, bool many)
{
	return many ? items / 2 : items / 4 * 3;
}

/* Divide the work among at most `ctas` CTAs (1 to 65,536) and set the fields above. Returns how
 * many to launch, at least 1; 0: too much for one launch, so use fewer or smaller blocks, or fewer
 * bases. */
static inline uint32_t wh_blocks_shape(struct wh_blocks_job *job, enum wh_blocks_variant variant,
				       uint32_t ctas)
{
	uint64_t flight = wh_blocks_flight(variant), length = job->block_length;
	uint64_t blocks, groups, items;
	/* Eight threads of 16 bytes fill a cache line of 128; smaller accesses waste the links. */
	uint64_t width = variant == WH_BLOCKS_16 ? 16 : variant == WH_BLOCKS_8 ? 8 : 4;
	uint64_t least = length < 128 ? length : 128, chunk;
	uint32_t shift = 0;

	blocks = (uint64_t)job->count * job->base_count;
	if (!ctas || ctas > 65536 || blocks > WH_BLOCKS_ITEMS)
		return 0;
	while ((1U << shift) < WH_BLOCKS_THREADS &&
	       (flight << shift < length || width << shift < least))
		shift++;
	groups = (uint64_t)ctas * (WH_BLOCKS_THREADS >> shift);
	/* Longer chunks need fewer look-ups, shorter ones balance the load better. */
	chunk = flight << shift;
	for (int i = 0; i < 3 && length / chunk / 2 * blocks >= 8 * groups; i++)
		chunk *= 2;
	items = (length - 1) / chunk + 1;
	if (items > WH_BLOCKS_ITEMS || items * blocks > WH_BLOCKS_ITEMS)
		return 0;
	job->group_shift = shift;
	job->chunk_length = (uint32_t)chunk;
	job->chunks = (uint32_t)items;
	job->items = (uint32_t)(items * blocks);
	job->let_next = wh_blocks_let_next(job->items, false);
	groups = ((job->items - 1) >> (9 - shift)) + 1; /* CTAs that get any chunk */
	return groups < ctas ? (uint32_t)groups : ctas;
}

#endif
