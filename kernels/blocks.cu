/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gather-scatter kernel of blocks.h. kernels/build makes the PTX and the cubins of it that are
 * kept beside it.
 *
 * A load from a peer or from the host takes about a microsecond, so speed depends on the number of
 * bytes in flight. Each thread therefore issues several loads before its first store, and looks up
 * the offsets of its next chunk before it moves the current one.
 *
 * Use PTX ISA 7.0 only: no .L1::no_allocate, no cvta.param, no multimem. What is newer stands
 * behind __CUDA_ARCH__.
 */
#include "blocks.h"

typedef const struct wh_blocks_job job_t;

static_assert(WH_BLOCKS_THREADS == 1 << 9, "wh_blocks_shape() assumes 512 threads");

/* Where a chunk is. The offsets are kept apart: adding them up would wait for their loads. */
struct chunk {
	uint64_t source, target; /* offsets of the block */
	uint64_t at;             /* offset of the chunk in the block, bytes */
	uint32_t base;           /* index of the base address */
};

/* Load with the streaming hint: data is read once, and must not evict the lists of offsets. */
template <typename V> static __device__ __forceinline__ V load_once(const V *from)
{
	return __ldcs(from);
}

static __device__ __forceinline__ uint64_t offset_at(uint64_t list, uint64_t stride, uint32_t index)
{
	return list ? __ldg((const unsigned long long *)list + index) : stride * index;
}

static __device__ __forceinline__ chunk chunk_find(job_t &job, uint32_t item)
{
	uint32_t block = item, index;
	chunk c;

	c.at = 0;
	if (job.chunks > 1) {
		block = item / job.chunks;
		c.at = (uint64_t)(item - block * job.chunks) * job.chunk_length;
	}
	index = block;
	c.base = 0;
	if (job.base_count > 1) {
		c.base = block / job.count;
		index = block - c.base * job.count;
	}
	c.source = offset_at(job.source_offsets, job.source_stride, index);
	c.target = offset_at(job.target_offsets, job.target_stride, index);
	return c;
}

static __device__ __forceinline__ uint64_t base_at(uint64_t list, const uint64_t *here,
						   uint32_t base)
{
	return list ? __ldg((const unsigned long long *)list + base) : here[base];
}

/* ---- moving one chunk with `group` threads; this thread has number `lane` among them --------- */

template <typename V, int FLIGHT>
static __device__ __forceinline__ void chunk_move(const char *from, char *to, uint32_t length,
						  uint32_t lane, uint32_t group)
{
	const V *source = (const V *)from;
	V *target = (V *)to;
	uint32_t count = length / sizeof(V), at = lane;
	V value[FLIGHT];

#pragma unroll 1
	for (; at + (FLIGHT - 1) * group < count; at += FLIGHT * group) {
#pragma unroll
		for (int k = 0; k < FLIGHT; k++)
			value[k] = load_once(source + at + k * group);
#pragma unroll
		for (int k = 0; k < FLIGHT; k++)
			target[at + k * group] = value[k];
	}
	if (at >= count)
		return;
#pragma unroll
	for (int k = 0; k < FLIGHT - 1; k++) {
		if (at + k * group < count)
			value[k] = load_once(source + at + k * group);
	}
#pragma unroll
	for (int k = 0; k < FLIGHT - 1; k++) {
		if (at + k * group < count)
			target[at + k * group] = value[k];
	}
}

static __device__ __forceinline__ void chunk_move_bytes(const char *from, char *to, uint32_t length,
							uint32_t lane, uint32_t group)
{
#pragma unroll 1
	for (uint32_t at = lane; at < length; at += group)
		to[at] = from[at];
}

/* Both addresses have the same offset from an aligned V: move single bytes up to the first aligned
 * V, then whole Vs, then the remaining bytes. */
template <typename V, int FLIGHT>
static __device__ __forceinline__ void chunk_move_even(const char *from, char *to, uint32_t length,
						       uint32_t lane, uint32_t group)
{
	uint32_t head = min(length, (uint32_t)(-(uintptr_t)to & (sizeof(V) - 1)));
	uint32_t body = (length - head) & ~(uint32_t)(sizeof(V) - 1);

	chunk_move_bytes(from, to, head, lane, group);
	chunk_move<V, FLIGHT>(from + head, to + head, body, lane, group);
	chunk_move_bytes(from + head + body, to + head + body, length - head - body, lane, group);
}

/* The addresses differ modulo 4: make each aligned word of the target from two aligned words of the
 * source. Only words that lie entirely within the source are read. */
static __device__ __forceinline__ void chunk_move_odd(const char *from, char *to, uint32_t length,
						      uint32_t lane, uint32_t group)
{
	const int flight = 4;
	uint32_t head = -(uintptr_t)to & 3, skew = (uintptr_t)(from + head) & 3, count, at;
	const uint32_t *source;
	uint32_t *target;

	if (head < skew)
		head += 4;
	if (length < head + 8) {
		chunk_move_bytes(from, to, length, lane, group);
		return;
	}
	source = (const uint32_t *)(from + head - skew);
	target = (uint32_t *)(to + head);
	count = (length - head + skew) / 4 - 1;
	chunk_move_bytes(from, to, head, lane, group);
#pragma unroll 1
	for (at = lane; at < count; at += flight * group) {
		uint32_t low[flight], high[flight];

#pragma unroll
		for (int k = 0; k < flight; k++) {
			if (at + k * group < count) {
				low[k] = source[at + k * group];
				high[k] = source[at + k * group + 1];
			}
		}
#pragma unroll
		for (int k = 0; k < flight; k++) {
			if (at + k * group < count)
				target[at + k * group] = __funnelshift_r(low[k], high[k], 8 * skew);
		}
	}
	head += 4 * count;
	chunk_move_bytes(from + head, to + head, length - head, lane, group);
}

/* How a kernel moves a chunk: the parameter of blocks_run(). */
template <typename V, int FLIGHT> struct aligned {
	static __device__ __forceinline__ void move(const char *from, char *to, uint32_t length,
						    uint32_t lane, uint32_t group)
	{
		chunk_move<V, FLIGHT>(from, to, length, lane, group);
	}
};

struct unaligned {
	static __device__ __forceinline__ void move(const char *from, char *to, uint32_t length,
						    uint32_t lane, uint32_t group)
	{
		uint32_t skew = (uint32_t)((uintptr_t)from ^ (uintptr_t)to);

		if (!(skew & 15))
			chunk_move_even<uint4, 4>(from, to, length, lane, group);
		else if (!(skew & 7))
			chunk_move_even<uint2, 4>(from, to, length, lane, group);
		else if (!(skew & 3))
			chunk_move_even<uint32_t, 4>(from, to, length, lane, group);
		else
			chunk_move_odd(from, to, length, lane, group);
	}
};

/* ---- the kernels ----------------------------------------------------------------------------- */

/* A launch may begin before the one in front of it in the stream has ended: when all CTAs of that
 * have come to chunk `let_next`. Before it ends it waits until the one in front has ended, so that
 * launches end in order and share a counter. */
static __device__ __forceinline__ void blocks_let_next_begin(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;");
#endif
}

static __device__ __forceinline__ void blocks_wait_for_last(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The last CTA to finish stores the flag. Each CTA's fence follows its barrier, so it orders the
 * writes of all its threads, to peers and to the host as well, before its increment of the counter.
 * The last CTA sees all increments, and its own fence orders them before the flag. */
static __device__ __forceinline__ void blocks_finish(job_t &job)
{
	unsigned *counter = (unsigned *)job.counter;

	blocks_wait_for_last();
	if (!job.flag)
		return;
	__syncthreads();
	if (threadIdx.x)
		return;
	__threadfence_system();
	if (atomicAdd(counter, 1) != gridDim.x - 1)
		return;
	atomicExch(counter, 0);
	__threadfence_system();
	asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(job.flag), "r"(job.flag_value)
		     : "memory");
}

template <typename HOW> static __device__ __forceinline__ void blocks_run(job_t &job)
{
	uint32_t group = 1U << job.group_shift, lane = threadIdx.x & (group - 1);
	uint32_t step = gridDim.x * (WH_BLOCKS_THREADS >> job.group_shift);
	uint32_t item = (blockIdx.x * WH_BLOCKS_THREADS + threadIdx.x) >> job.group_shift;
	uint32_t let_next = job.let_next;
	bool found = false, find_one;
	chunk now, next = {};

	do {
		now = next;
		find_one = item < job.items;
		if (find_one)
			next = chunk_find(job, item);
		if (item >= let_next) {
			blocks_let_next_begin();
			let_next = UINT32_MAX;
		}
		item += step;
		if (found) {
			uint64_t left = job.block_length - now.at;

			now.source += now.at + base_at(job.source_bases, job.source_base, now.base);
			now.target += now.at + base_at(job.target_bases, job.target_base, now.base);
			HOW::move((const char *)now.source, (char *)now.target,
				   left < job.chunk_length ? (uint32_t)left : job.chunk_length,
				   lane, group);
		}
		found = find_one;
	} while (found);
	blocks_finish(job);
}

/* Registers are limited so that two CTAs fit on a multiprocessor. */
#define KERNEL(name, ...)                                                                         \
	extern "C" __global__ void __launch_bounds__(WH_BLOCKS_THREADS, 2)                       \
		name(const struct wh_blocks_job job)                                             \
	{                                                                                        \
		blocks_run<__VA_ARGS__>(job);                                                    \
	}

KERNEL(wh_blocks_16, aligned<uint4, 8>)
KERNEL(wh_blocks_8, aligned<uint2, 4>)
KERNEL(wh_blocks_4, aligned<uint32_t, 4>)
KERNEL(wh_blocks_1, unaligned)
