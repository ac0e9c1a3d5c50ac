/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What preparing blocks takes, by the form in which the caller has its lists.
 *
 *   blocks-new TURNS [FILE]
 *
 * One engine and its peer "self": the time of wh_blocks_new() for 1,000, 16,384 and 1,000,000
 * blocks whose places on both sides are strides, or in random order offsets, indices or addresses;
 * the same with indices that the caller turns into offsets first; and of wh_batch_submit() with
 * what was prepared. Beside each, in the same turn, memcpy() of as many bytes as the prepared lists
 * have: into new memory, as wh_blocks_new() needs it, and into memory that was used before. Prints
 * the medians over the turns; FILE receives them as JSON, with the machine.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <wherry/wherry.h>

#include "bench/machine.h"
#include "timing.h"

#define BLOCK 16 /* bytes */
#define BLOCKS_MOST 1000000
#define POOL ((size_t)BLOCKS_MOST * BLOCK)
#define TURNS_MOST 1000

enum form { STRIDE, OFFSETS, INDICES, CONVERTED, ADDRESSES, FORMS };
static const char *const form_names[] = { "stride", "offsets", "indices", "converted",
					  "addresses" };

/* One side's blocks in every form. */
struct lists {
	int32_t indices[BLOCKS_MOST];
	uint64_t offsets[BLOCKS_MOST];
	uint64_t converted[BLOCKS_MOST]; /* the caller's work */
	const void *pointers[BLOCKS_MOST];
	uint64_t addresses[BLOCKS_MOST];
};

/* What is measured. */
enum figure { NEW, SUBMIT, COPY_NEW, COPY, FIGURES };

/* Each of `count` blocks once, in random order. */
static void lists_fill(struct lists *lists, const unsigned char *pool, uint32_t count,
		       uint64_t seed)
{
	for (uint32_t i = 0; i < count; i++)
		lists->indices[i] = (int32_t)i;
	for (uint32_t i = count - 1; i > 0; i--) {
		uint32_t other = (uint32_t)((seed >> 33) % (i + 1));
		int32_t kept = lists->indices[i];

		seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		lists->indices[i] = lists->indices[other];
		lists->indices[other] = kept;
	}
	for (uint32_t i = 0; i < count; i++) {
		lists->offsets[i] = (uint64_t)lists->indices[i] * BLOCK;
		lists->pointers[i] = pool + lists->offsets[i];
		lists->addresses[i] = (uintptr_t)lists->pointers[i];
	}
}

static void lists_convert(struct lists *lists, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		lists->converted[i] = (uint64_t)lists->indices[i] * BLOCK;
}

/* ns of wh_blocks_new(), and of the caller's own conversion. */
static double form_prepare(struct wh_peer *peer, const struct wh_base *base, struct lists sides[2],
			   enum form form, uint32_t count, struct wh_blocks **blocks)
{
	struct wh_blocks_desc desc = {
		.size = sizeof(desc),
		.op = WH_WRITE,
		.block_length = BLOCK,
		.count = count,
		.bases = form == ADDRESSES ? NULL : base,
		.base_count = form == ADDRESSES ? 0 : 1,
	};
	double begun = timing_now();

	switch (form) {
	case OFFSETS:
		desc.local_offsets = sides[0].offsets;
		desc.remote_offsets = sides[1].offsets;
		break;
	case INDICES:
		desc.local_indices = sides[0].indices;
		desc.remote_indices = sides[1].indices;
		break;
	case CONVERTED:
		lists_convert(&sides[0], count);
		lists_convert(&sides[1], count);
		desc.local_offsets = sides[0].converted;
		desc.remote_offsets = sides[1].converted;
		break;
	case ADDRESSES:
		desc.local_addresses = sides[0].pointers;
		desc.remote_addresses = sides[1].addresses;
		break;
	default:
		break;
	}
	if (wh_blocks_new(peer, &desc, blocks))
		timing_die("blocks-new", "prepare");
	return timing_now() - begun;
}

/* ns of a submission; it has completed on return. */
static double blocks_submit(struct wh_peer *peer, struct wh_blocks *blocks)
{
	struct wh_batch *batch;
	double begun, ns = 0;

	if (wh_batch_new(peer, NULL, &batch) || wh_batch_add_blocks(batch, blocks))
		timing_die("blocks-new", "batch");
	/* The first one chooses the route. */
	for (int i = 0; i < 2; i++) {
		begun = timing_now();
		if (wh_batch_submit(batch))
			timing_die("blocks-new", "submit");
		ns = timing_now() - begun;
		if (wh_batch_wait_for(batch, WH_FOREVER) || wh_batch_status(batch))
			timing_die("blocks-new", "move");
	}
	if (wh_batch_free(batch))
		timing_die("blocks-new", "batch");
	return ns;
}

/* ns of copying both lists of the prepared form into new memory. */
static double lists_copy_new(const struct lists sides[2], uint32_t count)
{
	double begun = timing_now(), ns;
	void *copies[2];

	for (int i = 0; i < 2; i++) {
		copies[i] = malloc(count * sizeof(uint64_t));
		if (!copies[i])
			timing_die("blocks-new", "memory");
		memcpy(copies[i], sides[i].offsets, count * sizeof(uint64_t));
		/* The copy is used. */
		__asm__ volatile("" : : "r"(copies[i]) : "memory");
	}
	ns = timing_now() - begun;
	free(copies[0]);
	free(copies[1]);
	return ns;
}

static double lists_copy(struct lists sides[2], uint32_t count)
{
	double begun = timing_now();

	for (int i = 0; i < 2; i++) {
		memcpy(sides[i].converted, sides[i].offsets, count * sizeof(uint64_t));
		__asm__ volatile("" : : "r"(sides[i].converted) : "memory");
	}
	return timing_now() - begun;
}

static void count_measure(struct wh_peer *peer, const struct wh_base *base, struct lists sides[2],
			  uint32_t count, unsigned turns, json_t *rows)
{
	static double ns[FORMS][FIGURES][TURNS_MOST];
	double figures[FIGURES], least;
	struct wh_blocks *blocks;

	/* The first turn touches everything, and is overwritten. */
	for (unsigned turn = 0; turn <= turns; turn++) {
		unsigned at = turn ? turn - 1 : 0;

		for (enum form form = STRIDE; form < FORMS; form++) {
			ns[form][NEW][at] = form_prepare(peer, base, sides, form, count, &blocks);
			ns[form][SUBMIT][at] = blocks_submit(peer, blocks);
			wh_blocks_free(blocks);
			ns[form][COPY_NEW][at] = lists_copy_new(sides, count);
			ns[form][COPY][at] = lists_copy(sides, count);
		}
	}
	for (enum form form = STRIDE; form < FORMS; form++) {
		for (enum figure i = NEW; i < FIGURES; i++)
			figures[i] = timing_median(ns[form][i], turns) / count;
		least = ns[form][SUBMIT][0] / count; /* timing_median() has sorted them */
		printf("%8u %-10s %10.3f %10.3f %10.3f %12.3f %10.3f\n", count, form_names[form],
		       figures[NEW], figures[SUBMIT], least, figures[COPY_NEW], figures[COPY]);
		json_array_append_new(rows,
				      json_pack("{s:i, s:s, s:f, s:f, s:f, s:f, s:f}", "blocks",
						(int)count, "form", form_names[form], "new_ns",
						figures[NEW], "submit_ns", figures[SUBMIT],
						"submit_least_ns", least, "memcpy_new_ns",
						figures[COPY_NEW], "memcpy_ns", figures[COPY]));
	}
}

int main(int argc, char **argv)
{
	static const char *const config[] = { "observe=off", "inline=0", NULL };
	static const uint32_t counts[] = { 1000, 16384, BLOCKS_MOST };
	unsigned turns = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
	struct wh_engine_options options = { .size = sizeof(options),
					     .listen = "none",
					     .config = config };
	json_t *rows, *all;
	static struct lists sides[2];
	struct wh_region *regions[2];
	struct wh_engine *engine;
	struct wh_peer *peer;
	struct wh_base base;
	void *pools[2];
	int status = 0;

	if (!turns || turns > TURNS_MOST || argc > 3) {
		fprintf(stderr, "usage: blocks-new TURNS [FILE]\n");
		return 2;
	}
	rows = json_array();
	if (wh_engine_open(&options, &engine) || wh_peer_open(engine, "self", NULL, &peer))
		timing_die("blocks-new", "engine");
	for (int i = 0; i < 2; i++) {
		if (wh_memory_alloc(engine, POOL, NULL, &pools[i]) ||
		    wh_region_register(engine, pools[i], POOL, NULL, &regions[i]))
			timing_die("blocks-new", "memory");
		memset(pools[i], 1, POOL);
	}
	base = (struct wh_base){ .local = regions[0], .remote = wh_region_id(regions[1]) };
	printf("%8s %-10s %10s %10s %10s %12s %10s\n", "blocks", "form", "new/ns", "submit/ns",
	       "least/ns", "memcpy new", "memcpy");
	for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
		for (int i = 0; i < 2; i++)
			lists_fill(&sides[i], pools[i], counts[c], (uint64_t)i + 1);
		count_measure(peer, &base, sides, counts[c], turns, rows);
	}
	for (int i = 0; i < 2; i++)
		if (wh_region_unregister(regions[i]) || wh_memory_free(engine, pools[i]))
			timing_die("blocks-new", "close");
	if (wh_peer_close(peer) || wh_engine_close(engine))
		timing_die("blocks-new", "close");
	all = json_pack("{s:i, s:o, s:i, s:i, s:o}", "schema", 1, "environment",
			machine_describe_run(NULL, config), "turns", (int)turns, "block_bytes",
			BLOCK, "rows", rows);
	if (argc > 2 && json_dump_file(all, argv[2], JSON_INDENT(1) | JSON_REAL_PRECISION(6))) {
		fprintf(stderr, "blocks-new: cannot write %s\n", argv[2]);
		status = 1;
	}
	json_decref(all);
	return status;
}
