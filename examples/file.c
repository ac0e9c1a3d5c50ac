/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Save a region of another process to a file, and read it back. The bytes go from the network into
 * the file without a buffer in this program, and are on the disk when the batch has completed.
 *
 *   $ wherry serve --memory host:1MiB
 *   wherry://127.0.0.1:40123
 *   $ file wherry://127.0.0.1:40123 host saved.bin
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <wherry/wherry.h>

static _Noreturn void die(const char *what, const char *text)
{
	fprintf(stderr, "file: %s: %s\n", what, text);
	exit(1);
}

/* Move all of the remote region from or to the file, and print the route. */
static void move(struct wh_peer *peer, uint32_t op, struct wh_region *file,
		 const struct wh_remote *remote)
{
	struct wh_transfer transfer = {
		.local = file,
		.remote = remote->id,
		.length = remote->length,
		.op = op,
	};
	struct wh_batch *batch;
	char routes[1024];

	if (wh_batch_new(peer, NULL, &batch) || wh_batch_add(batch, &transfer, 1) ||
	    wh_batch_submit(batch))
		die("submit", wh_error_text());
	/* A full disk, a file that became shorter: the batch has the errno and the sentence. */
	if (wh_batch_wait_for(batch, WH_FOREVER) || wh_batch_status(batch))
		die("transfer", wh_batch_error_text(batch));
	wh_batch_explain(batch, routes, sizeof(routes));
	fputs(routes, stdout);
	wh_batch_free(batch);
}

int main(int argc, char **argv)
{
	struct wh_engine_options options = { .size = sizeof(options), .listen = "none" };
	struct wh_file_options file_options = {
		.size = sizeof(file_options),
		.flags = WH_FILE_WRITE | WH_FILE_CREATE | WH_FILE_GROW,
		.durable = WH_FILE_DURABLE_DATA, /* fdatasync before a batch completes */
	};
	struct wh_remote remote;
	struct wh_engine *engine;
	struct wh_region *file;
	struct wh_peer *peer;

	if (argc != 4) {
		fprintf(stderr, "usage: file URL REGION PATH\n");
		return 64;
	}
	if (wh_engine_open(&options, &engine))
		die("engine", wh_error_text());
	if (wh_peer_open(engine, argv[1], NULL, &peer))
		die(argv[1], wh_error_text());
	if (wh_peer_find(peer, argv[2], 1000000000, &remote))
		die(argv[2], wh_error_text());

	/* The region may grow to this length; the file is as long as what is written. */
	file_options.length = remote.length;
	if (wh_file_register(engine, argv[3], &file_options, &file))
		die(argv[3], wh_error_text());
	move(peer, WH_READ, file, &remote);
	printf("%s: %" PRIu64 " bytes\n", argv[3], remote.length);
	if (remote.access & WH_ACCESS_WRITE)
		move(peer, WH_WRITE, file, &remote);

	if (wh_region_unregister(file) || wh_peer_close(peer) || wh_engine_close(engine))
		die("close", wh_error_text());
	return 0;
}
