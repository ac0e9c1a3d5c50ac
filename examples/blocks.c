/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hand over a paged KV cache. Both sides have a page table, an array of int32_t as inference
 * engines keep them: token block i is in slot table[i] of each layer of the pool. The tables are
 * given as they are. One descriptor covers all pages of all layers. It is checked and prepared
 * once, and can be submitted many times.
 *
 *   $ wherry serve --memory host:64MiB
 *   wherry://127.0.0.1:40123
 *   $ blocks wherry://127.0.0.1:40123 host
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <wherry/wherry.h>

enum {
	LAYERS = 4,
	PAGES = 1000,
	PAGE = 4096,
	LAYER = PAGES * PAGE,
	POOL = LAYERS * LAYER,
	TIMES = 10,
};

static _Noreturn void die(const char *what, const char *text)
{
	fprintf(stderr, "blocks: %s: %s\n", what, text);
	exit(1);
}

/* The local pool has its pages backwards, the peer's has the odd ones first. */
static void fill_tables(int32_t local[PAGES], int32_t remote[PAGES])
{
	for (int32_t i = 0; i < PAGES; i++) {
		local[i] = PAGES - 1 - i;
		remote[i] = i < PAGES / 2 ? 2 * i + 1 : 2 * (i - PAGES / 2);
	}
}

static struct wh_blocks *prepare(struct wh_peer *peer, uint32_t op, struct wh_region *pool,
				 uint64_t remote)
{
	int32_t local_table[PAGES], remote_table[PAGES];
	struct wh_base bases[LAYERS];
	struct wh_blocks_desc desc = {
		.size = sizeof(desc),
		.op = op,
		.block_length = PAGE, /* also the stride of both tables */
		.count = PAGES,
		.bases = bases,
		.base_count = LAYERS,
		.local_indices = local_table,
		.remote_indices = remote_table,
	};
	struct wh_blocks *blocks;

	fill_tables(local_table, remote_table);
	for (uint64_t layer = 0; layer < LAYERS; layer++)
		bases[layer] = (struct wh_base){
			.local = pool,
			.local_offset = layer * LAYER,
			.remote = remote,
			.remote_offset = layer * LAYER,
		};
	/* Checks all 4,000 pages against both sides, and copies bases and tables. */
	if (wh_blocks_new(peer, &desc, &blocks))
		die("prepare", wh_error_text());
	return blocks;
}

static void run(struct wh_batch *batch, struct wh_blocks *blocks)
{
	if (wh_batch_clear(batch) || wh_batch_add_blocks(batch, blocks) || wh_batch_submit(batch))
		die("submit", wh_error_text());
	if (wh_batch_wait_for(batch, WH_FOREVER) || wh_batch_status(batch))
		die("transfer", wh_batch_error_text(batch));
}

int main(int argc, char **argv)
{
	struct wh_engine_options options = { .size = sizeof(options), .listen = "none" };
	struct wh_blocks *there, *back;
	struct wh_remote remote;
	struct wh_engine *engine;
	struct wh_region *region;
	struct wh_batch *batch;
	struct wh_peer *peer;
	char routes[1024];
	unsigned char *pool;
	void *memory;

	if (argc != 3) {
		fprintf(stderr, "usage: blocks URL REGION\n");
		return 64;
	}
	if (wh_engine_open(&options, &engine) || wh_peer_open(engine, argv[1], NULL, &peer) ||
	    wh_peer_find(peer, argv[2], 1000000000, &remote))
		die(argv[1], wh_error_text());
	if (wh_memory_alloc(engine, POOL, NULL, &memory) ||
	    wh_region_register(engine, memory, POOL, NULL, &region) ||
	    wh_batch_new(peer, NULL, &batch))
		die("memory", wh_error_text());
	pool = memory;
	there = prepare(peer, WH_WRITE, region, remote.id);
	back = prepare(peer, WH_READ, region, remote.id);

	for (unsigned round = 0; round < TIMES; round++) {
		for (size_t at = 0; at < POOL; at++)
			pool[at] = (unsigned char)(at / PAGE * 7 + at + round);
		run(batch, there);
		memset(pool, 0, POOL);
		run(batch, back);
		for (size_t at = 0; at < POOL; at++)
			if (pool[at] != (unsigned char)(at / PAGE * 7 + at + round))
				die("compare", "a page came back wrong");
	}
	wh_batch_explain(batch, routes, sizeof(routes));
	printf("%d times %d pages of %d bytes there and back\n%s", TIMES, LAYERS * PAGES, PAGE,
	       routes);

	if (wh_batch_free(batch))
		die("close", wh_error_text());
	wh_blocks_free(there);
	wh_blocks_free(back);
	if (wh_region_unregister(region) || wh_memory_free(engine, memory) || wh_peer_close(peer) ||
	    wh_engine_close(engine))
		die("close", wh_error_text());
	return 0;
}
