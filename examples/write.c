/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Write a line of text into another process's memory, read it back, and print the route that was
 * taken.
 *
 *   $ wherry serve --memory host:1MiB
 *   wherry://127.0.0.1:40123
 *   $ write wherry://127.0.0.1:40123 host "across the river"
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <wherry/wherry.h>

static _Noreturn void die(const char *what, const char *text)
{
	fprintf(stderr, "write: %s: %s\n", what, text);
	exit(1);
}

/* Move `length` bytes between the local and the remote region, and wait until they have arrived. */
static void move(struct wh_batch *batch, uint32_t op, struct wh_region *local,
		 uint64_t local_offset, const struct wh_remote *remote, uint64_t length)
{
	struct wh_transfer transfer = {
		.local = local,
		.local_offset = local_offset,
		.remote = remote->id,
		.remote_offset = 0,
		.length = length,
		.op = op,
	};

	if (wh_batch_clear(batch) || wh_batch_add(batch, &transfer, 1) || wh_batch_submit(batch))
		die("submit", wh_error_text());
	/* Errors from here on belong to the batch. */
	if (wh_batch_wait_for(batch, WH_FOREVER) || wh_batch_status(batch))
		die("transfer", wh_batch_error_text(batch));
}

int main(int argc, char **argv)
{
	struct wh_engine_options options = { .size = sizeof(options), .listen = "none" };
	struct wh_remote remote;
	struct wh_engine *engine;
	struct wh_region *region;
	struct wh_batch *batch;
	struct wh_peer *peer;
	char routes[1024];
	size_t length;
	void *memory;
	char *text;

	if (argc != 4) {
		fprintf(stderr, "usage: write URL REGION TEXT\n");
		return 64;
	}
	length = strlen(argv[3]) + 1;

	/* This engine only connects to others: it needs no listener. */
	if (wh_engine_open(&options, &engine))
		die("engine", wh_error_text());
	if (wh_peer_open(engine, argv[1], NULL, &peer))
		die(argv[1], wh_error_text());
	if (wh_peer_find(peer, argv[2], 1000000000, &remote))
		die(argv[2], wh_error_text());
	printf("%s: %" PRIu64 " bytes\n", remote.name, remote.length);

	/* Room for the text, and then for the text that is read back. */
	if (wh_memory_alloc(engine, 2 * length, NULL, &memory) ||
	    wh_region_register(engine, memory, 2 * length, NULL, &region) ||
	    wh_batch_new(peer, NULL, &batch))
		die("memory", wh_error_text());
	text = memory;
	memcpy(text, argv[3], length);

	move(batch, WH_WRITE, region, 0, &remote, length);
	move(batch, WH_READ, region, length, &remote, length);
	if (strcmp(text, text + length) != 0)
		die("compare", "something else came back");

	wh_batch_explain(batch, routes, sizeof(routes));
	printf("%s\n%s", text + length, routes);

	if (wh_batch_free(batch) || wh_region_unregister(region) ||
	    wh_memory_free(engine, memory) || wh_peer_close(peer) || wh_engine_close(engine))
		die("close", wh_error_text());
	return 0;
}
