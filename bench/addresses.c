/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engine takes to find the regions of addresses, beside regions that the caller names.
 *
 *   addresses TURNS [FILE]
 *
 * Two engines of this process, each with 1, 16 or 1,000 regions: the time of wh_batch_add() and
 * wh_batch_add_address() for 4,096 transfers in one call, and one in each call, which run through
 * one region after the other or choose regions at random. Prints the medians over the turns; FILE
 * receives them as JSON, with the machine.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <wherry/wherry.h>

#include "bench/machine.h"
#include "timing.h"

#define REGION 65536 /* bytes */
#define REGIONS_MOST 1000
#define TRANSFERS 4096
#define LENGTH 512 /* bytes of a transfer */
#define TURNS_MOST 1000

/* Memory of one engine, and its regions side by side. */
struct side {
	struct wh_engine *engine;
	unsigned char *memory; /* REGIONS_MOST * REGION */
	struct wh_region *regions[REGIONS_MOST];
};

/* The same transfers in both forms. */
struct lists {
	struct wh_transfer by_region[TRANSFERS];
	struct wh_address_transfer by_address[TRANSFERS];
};

/* ---- engines --------------------------------------------------------------------------------- */

static void side_open(struct side *side, const char *listen)
{
	struct wh_engine_options options = { .size = sizeof(options), .listen = listen };
	void *memory;

	if (wh_engine_open(&options, &side->engine) ||
	    wh_memory_alloc(side->engine, (size_t)REGIONS_MOST * REGION, NULL, &memory))
		timing_die("addresses", "engine");
	side->memory = memory;
	memset(memory, 1, (size_t)REGIONS_MOST * REGION);
}

static void side_register(struct side *side, unsigned count)
{
	struct wh_region_options options = { .size = sizeof(options),
					     .access = WH_ACCESS_READ | WH_ACCESS_WRITE };

	for (unsigned i = 0; i < count; i++)
		if (wh_region_register(side->engine, side->memory + (size_t)i * REGION, REGION,
				       &options, &side->regions[i]))
			timing_die("addresses", "register");
}

static void side_unregister(struct side *side, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (wh_region_unregister(side->regions[i]))
			timing_die("addresses", "unregister");
}

static void side_close(struct side *side)
{
	if (wh_memory_free(side->engine, side->memory) || wh_engine_close(side->engine))
		timing_die("addresses", "close");
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* Fill both lists: transfer i in region i, or in a random one on each side. */
static void lists_fill(struct lists *lists, const struct side *local, const struct side *remote,
		       unsigned regions, bool random)
{
	uint32_t drawn = 1;

	for (unsigned i = 0; i < TRANSFERS; i++) {
		unsigned from = i / (TRANSFERS / regions + 1), to = from;
		uint64_t offset = i % (REGION / LENGTH) * LENGTH;

		if (random) {
			from = (drawn = drawn * 1664525 + 1013904223) % 65521 % regions;
			to = (drawn = drawn * 1664525 + 1013904223) % 65521 % regions;
		}
		lists->by_region[i] = (struct wh_transfer){
			.local = local->regions[from],
			.local_offset = offset,
			.remote = wh_region_id(remote->regions[to]),
			.remote_offset = offset,
			.length = LENGTH,
			.op = WH_WRITE,
		};
		lists->by_address[i] = (struct wh_address_transfer){
			.local = local->memory + (size_t)from * REGION + offset,
			.remote = (uintptr_t)remote->memory + (size_t)to * REGION + offset,
			.length = LENGTH,
			.op = WH_WRITE,
		};
	}
}

/* ns for each transfer; `each`: of one call. */
static double lists_add(struct wh_batch *batch, const struct lists *lists, bool by_address,
			unsigned each)
{
	double begun, ns;
	int error = 0;

	if (wh_batch_clear(batch))
		timing_die("addresses", "clear");
	begun = timing_now();
	for (unsigned i = 0; i < TRANSFERS && !error; i += each)
		error = by_address ? wh_batch_add_address(batch, &lists->by_address[i], each) :
				     wh_batch_add(batch, &lists->by_region[i], each);
	ns = timing_now() - begun;
	if (error)
		timing_die("addresses", "add");
	return ns / TRANSFERS;
}

static json_t *lists_measure(struct wh_peer *peer, const struct lists *lists, unsigned regions,
			     bool random, unsigned each, unsigned turns)
{
	double ns[2][TURNS_MOST], named, found;
	struct wh_batch *batch;

	if (wh_batch_new(peer, NULL, &batch))
		timing_die("addresses", "batch");
	lists_add(batch, lists, true, TRANSFERS); /* makes room, and touches all */
	for (unsigned i = 0; i < 2 * turns; i++)
		ns[i % 2][i / 2] = lists_add(batch, lists, i % 2, each);
	if (wh_batch_free(batch))
		timing_die("addresses", "batch");
	named = timing_median(ns[0], turns);
	found = timing_median(ns[1], turns);
	printf("%8u %-10s %6u %10.1f %10.1f %+10.1f\n", regions, random ? "random" : "in turn",
	       each, named, found, found - named);
	return json_pack("{s:i, s:s, s:i, s:f, s:f}", "regions", (int)regions, "order",
			 random ? "random" : "in turn", "transfers_per_call", (int)each,
			 "region_ns", named, "address_ns", found);
}

static json_t *lists_rows(struct side *local, struct side *remote, struct wh_peer *peer,
			  unsigned turns)
{
	static const unsigned counts[] = { 1, 16, REGIONS_MOST };
	static struct lists lists;
	json_t *rows = json_array();
	static uint64_t ids[REGIONS_MOST];

	printf("%8s %-10s %6s %10s %10s %10s\n", "regions", "order", "a call", "region/ns",
	       "address/ns", "more/ns");
	for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
		unsigned count = counts[c];

		side_register(local, count);
		side_register(remote, count);
		for (unsigned i = 0; i < count; i++)
			ids[i] = wh_region_id(remote->regions[i]);
		if (wh_peer_prepare(peer, NULL, 0, ids, count, WH_FOREVER))
			timing_die("addresses", "prepare");
		for (unsigned random = 0; random < 2; random++) {
			lists_fill(&lists, local, remote, count, random);
			json_array_append_new(
				rows, lists_measure(peer, &lists, count, random, TRANSFERS, turns));
			json_array_append_new(rows,
					      lists_measure(peer, &lists, count, random, 1, turns));
		}
		side_unregister(local, count);
		side_unregister(remote, count);
	}
	return rows;
}

int main(int argc, char **argv)
{
	static const char *const self[] = { "observe=0", NULL };
	unsigned turns = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
	static struct side local, remote;
	struct wh_peer *peer;
	json_t *lists, *all;
	int status = 0;

	if (!turns || turns > TURNS_MOST || argc > 3) {
		fprintf(stderr, "usage: addresses TURNS [FILE]\n");
		return 2;
	}
	side_open(&remote, "127.0.0.1:0");
	side_open(&local, "none");
	if (wh_peer_open(local.engine, wh_engine_url(remote.engine), NULL, &peer))
		timing_die("addresses", "peer");
	lists = lists_rows(&local, &remote, peer, turns);
	if (wh_peer_close(peer))
		timing_die("addresses", "peer");
	side_close(&local);
	side_close(&remote);
	all = json_pack("{s:i, s:o, s:i, s:o}", "schema", 1, "environment",
			machine_describe_run(NULL, self), "turns", (int)turns, "lists", lists);
	if (argc > 2 && json_dump_file(all, argv[2], JSON_INDENT(1) | JSON_REAL_PRECISION(6))) {
		fprintf(stderr, "addresses: cannot write %s\n", argv[2]);
		status = 1;
	}
	json_decref(all);
	return status;
}
