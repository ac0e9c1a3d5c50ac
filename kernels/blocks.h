/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gather-scatter kernel: many blocks of one length, from anywhere a GPU can read to anywhere it
 * can write, in one launch. Shared by the kernel (CUDA) and by those who launch it (C).
 *
 * Block i of base b goes from source_base[b] + source_offset[i] to target_base[b] +
 * target_offset[i]. Packing, unpacking and scattering are the same kernel, with a list on one side,
 * on the other, or on both.
 *
 * How the work is cut: a block is one or more chunks; a group of 2^group_shift neighbouring threads
 * moves one chunk after the other, so that small blocks take a part of a warp each and large ones
 * are spread over the whole grid. wh_blocks_shape() fills that in.
 */
#ifndef WH_KERNELS_BLOCKS_H
#define WH_KERNELS_BLOCKS_H

#include <stdint.h>

/* Threads of a CTA. Every launch has just so many. */
#define WH_BLOCKS_THREADS 512
/* The most chunks of a launch: they are counted in 32 bits. */
#define WH_BLOCKS_ITEMS (UINT32_C(1) << 30)
/* Bases that travel in the parameter itself. */
#define WH_BLOCKS_INLINE 32

/* One for each alignment that holds for all addresses, offsets, strides and for the length. */
enum wh_blocks_variant {
	WH_BLOCKS_16, /* 8 loads in flight a thread; the others have 4 */
	WH_BLOCKS_8,
	WH_BLOCKS_4,
	WH_BLOCKS_1, /* any alignment; looks at each block */
	WH_BLOCKS_VARIANTS,
};

#define WH_BLOCKS_NAMES                                                                            \
	{                                                                                          \
		"wh_blocks_16", "wh_blocks_8", "wh_blocks_4", "wh_blocks_1"                        \
	}

/* Between which memories, as the GPU that runs the kernel sees it. */
enum wh_blocks_way {
	WH_BLOCKS_PUSH, /* from its own to a peer's */
	WH_BLOCKS_PULL, /* from a peer's to its own */
	WH_BLOCKS_TO_HOST,
	WH_BLOCKS_FROM_HOST,
	WH_BLOCKS_WITHIN, /* both sides are its own */
	WH_BLOCKS_WAYS,
};

/* The kernel's only parameter, by value. Addresses are such as the GPU that runs it understands.
 * Sources and targets do not overlap. */
struct wh_blocks_job {
	/* base_count addresses each, in memory the GPU reads; 0: they are below. */
	uint64_t source_bases, target_bases;
	/* count offsets each, in memory the GPU reads and nobody changes meanwhile; 0: the
	 * stride. */
	uint64_t source_offsets, target_offsets;
	uint64_t source_stride, target_stride;
	uint64_t block_length; /* bytes; at least 1 */
	uint32_t count; /* blocks of each base; at least 1 */
	uint32_t base_count; /* at least 1 */
	/* When all bytes are visible to everybody (this GPU, its peers, the host), `flag_value`
	 * is stored at `flag`, 4-byte aligned, as a rule in mapped host memory; 0: not wanted.
	 * `counter` is then a 32-bit word in this GPU's memory that is 0 before and after each
	 * launch, and serves one launch at a time. */
	uint64_t flag, counter;
	uint32_t flag_value;

	/* By wh_blocks_shape(). */
	uint32_t group_shift;
	uint32_t chunk_length; /* bytes; the last chunk of a block may be shorter */
	uint32_t chunks; /* of a block */
	uint32_t items; /* chunks in all; at most WH_BLOCKS_ITEMS */
	uint32_t reserved;

	uint64_t source_base[WH_BLOCKS_INLINE];
	uint64_t target_base[WH_BLOCKS_INLINE];
};

/* The widest variant for these bits: all addresses, offsets and strides in use and the block
 * length, or-ed. */
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
 * How many CTAs to use if nobody says otherwise, on a GPU of so many multiprocessors: few, since
 * others want to compute meanwhile. Of 8, 16, 32, 64, 132 and 264 the fewest with which every size
 * of block, 1 to 64 KiB, comes within 5 % of its best, for the bare kernel and with the lists'
 * upload alike; 0: one for each multiprocessor. From
 * bench/results/2026-11-20-h200x2-blocks-kernel.json, an H200 of 132 multiprocessors. The narrower
 * variants were measured with 132 only. Large blocks that are pushed get twice as many: 3 % more
 * bytes, for a kernel that runs the longer the larger they are.
 */
static inline uint32_t wh_blocks_ctas(enum wh_blocks_variant variant, enum wh_blocks_way way,
				      uint64_t block_length, uint32_t processors)
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
	if (!processors)
		processors = 1;
	return ctas && ctas < processors ? ctas : processors;
}

/* Cut the work for at most `ctas` CTAs (at most 65,536). Returns how many to launch, at least 1; 0:
 * too much for one launch, take fewer bases, blocks or bytes of a block at a time. */
static inline uint32_t wh_blocks_shape(struct wh_blocks_job *job, enum wh_blocks_variant variant,
				       uint32_t ctas)
{
	uint64_t flight = wh_blocks_flight(variant), length = job->block_length;
	uint64_t blocks, groups, items;
	/* Eight lanes of 16 bytes fill a cache line; fewer would waste the links. */
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
	/* Longer chunks cost less to find, shorter ones spread better. */
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
	groups = ((job->items - 1) >> (9 - shift)) + 1; /* CTAs that have something to do */
	return groups < ctas ? (uint32_t)groups : ctas;
}

#endif
