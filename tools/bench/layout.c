/* SPDX-License-Identifier: Apache-2.0 */
/* The offsets of a benchmark's blocks, the order in which they are walked, and the check that they
 * arrived. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "pattern.h"

/* With very many batches a walk would measure access to the batches, not to memory: batches below a
 * page stay within a page, as a user's hot ones do, and no walk has more slots than this. */
#define BATCHES_MAX 1024
#define BATCHES_SMALL 64
#define SLOTS_MAX (1u << 20)

int bench_layout_plan(struct bench_layout *layout, uint64_t size, uint64_t blocks,
		      uint64_t working_set, bool guarded)
{
	uint64_t bytes, batches, most, slots, stride, guard = guarded ? PATTERN_GUARD : 0;

	if (size > UINT64_C(1) << 40 || blocks > UINT64_C(1) << 40 ||
	    __builtin_mul_overflow(size, blocks, &bytes) || bytes > UINT64_C(1) << 44)
		return -1;
	most = bytes < 4096 ? BATCHES_SMALL : BATCHES_MAX;
	if (most > SLOTS_MAX / blocks)
		most = SLOTS_MAX / blocks ? SLOTS_MAX / blocks : 1;
	batches = working_set / bytes;
	if (batches > most)
		batches = most;
	if (!batches)
		batches = 1;
	slots = batches * blocks;
	stride = (size + BENCH_ALIGN - 1) / BENCH_ALIGN * BENCH_ALIGN;
	*layout = (struct bench_layout){
		.size = size,
		.blocks = blocks,
		.batches = batches,
		.source_stride = stride,
		.target_stride = stride + guard,
		.guard = guard,
		.source_length = slots * stride,
		.target_length = slots * (stride + guard) + guard,
	};
	return 0;
}

int bench_layout_shrink(struct bench_layout *layout, bool target, uint64_t length)
{
	uint64_t stride = target ? layout->target_stride : layout->source_stride;
	uint64_t guard = target ? layout->guard : 0, slots;

	slots = length < guard ? 0 : (length - guard) / stride;
	if (slots < layout->blocks)
		return -1;
	if (layout->batches > slots / layout->blocks)
		layout->batches = slots / layout->blocks;
	slots = bench_layout_slots(layout);
	layout->source_length = slots * layout->source_stride;
	layout->target_length = slots * layout->target_stride + layout->guard;
	return 0;
}

/* Both processes draw the same numbers. */
static uint64_t random_draw(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* Shuffle the slots in an order that `seed` decides. */
static void slots_scatter(uint64_t *slots, uint64_t count, uint64_t seed)
{
	for (uint64_t i = 0; i < count; i++)
		slots[i] = i;
	for (uint64_t i = count; i > 1; i--) {
		uint64_t other = random_draw(&seed) % i, slot = slots[i - 1];

		slots[i - 1] = slots[other];
		slots[other] = slot;
	}
}

int bench_walk_new(const struct bench_layout *layout, struct bench_walk *walk)
{
	uint64_t slots = bench_layout_slots(layout);

	walk->source = calloc(slots, sizeof(*walk->source));
	walk->target = calloc(slots, sizeof(*walk->target));
	if (!walk->source || !walk->target) {
		bench_walk_free(walk);
		return -ENOMEM;
	}
	if (layout->blocks > 1) {
		slots_scatter(walk->source, slots, UINT64_C(0x9e3779b97f4a7c15));
		slots_scatter(walk->target, slots, UINT64_C(0xd1b54a32d192ed03));
	} else {
		for (uint64_t i = 0; i < slots; i++)
			walk->source[i] = walk->target[i] = i;
	}
	for (uint64_t i = 0; i < slots; i++) {
		walk->source[i] *= layout->source_stride;
		walk->target[i] = layout->guard + walk->target[i] * layout->target_stride;
	}
	return 0;
}

void bench_walk_free(struct bench_walk *walk)
{
	free(walk->source);
	free(walk->target);
	*walk = (struct bench_walk){ 0 };
}

void bench_layout_fill(const struct bench_layout *layout, void *source, uint64_t iteration)
{
	pattern_fill(source, layout->source_length, 0, iteration);
}

void bench_layout_guard(const struct bench_layout *layout, void *target)
{
	pattern_guard_fill(target, layout->target_length, 0);
}

/* The guard bytes around the blocks are unchanged. */
static bool check_guards(const struct bench_layout *layout, const char *target, char *text,
			 size_t size)
{
	uint64_t slots = bench_layout_slots(layout), start = 0, end, wrong;

	for (uint64_t slot = 0; slot <= slots; slot++) {
		end = slot < slots ? layout->guard + slot * layout->target_stride :
				     layout->target_length;
		wrong = pattern_guard_check(target + start, end - start, start);
		if (wrong != PATTERN_RIGHT) {
			snprintf(text, size,
				 "the byte at offset %" PRIu64
				 " of the target, outside of every block, was written",
				 start + wrong);
			return false;
		}
		start = end + layout->size;
	}
	return true;
}

bool bench_layout_check(const struct bench_layout *layout, const void *target, uint64_t iteration,
			char *text, size_t size)
{
	uint64_t slots = bench_layout_slots(layout), wrong;
	const char *memory = target;
	struct bench_walk walk;
	bool right = true;

	if (bench_walk_new(layout, &walk)) {
		snprintf(text, size, "no memory to check with");
		return false;
	}
	for (uint64_t i = 0; right && i < slots; i++) {
		wrong = pattern_check(memory + walk.target[i], layout->size, walk.source[i],
				      iteration);
		if (wrong == PATTERN_RIGHT)
			continue;
		snprintf(text, size,
			 "byte %" PRIu64 " of block %" PRIu64 " of batch %" PRIu64
			 " (offset %" PRIu64 " of the target) is wrong in iteration %" PRIu64,
			 wrong, i % layout->blocks, i / layout->blocks, walk.target[i] + wrong,
			 iteration);
		right = false;
	}
	bench_walk_free(&walk);
	return right && check_guards(layout, memory, text, size);
}
