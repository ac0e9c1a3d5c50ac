/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine without threads in a program with an event loop: poll() waits for lines on standard
 * input and for the engine, and nothing else of the program blocks. Each line is written into
 * another process's memory.
 *
 *   $ wherry serve --memory host:1MiB
 *   wherry://127.0.0.1:40123
 *   $ printf 'one\ntwo\n' | event-loop wherry://127.0.0.1:40123 host
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <wherry/wherry.h>

static _Noreturn void die(const char *what, const char *text)
{
	fprintf(stderr, "event-loop: %s: %s\n", what, text);
	exit(1);
}

/* Submit a line. The batch runs on while the program returns to poll(). */
static void submit(struct wh_batch *batch, struct wh_region *region, const struct wh_remote *remote,
		   char *memory, const char *line)
{
	struct wh_transfer transfer = {
		.local = region,
		.remote = remote->id,
		.length = strlen(line) + 1,
		.op = WH_WRITE,
	};

	memcpy(memory, line, transfer.length);
	if (wh_batch_clear(batch) || wh_batch_add(batch, &transfer, 1) || wh_batch_submit(batch))
		die("submit", wh_error_text());
}

int main(int argc, char **argv)
{
	struct wh_engine_options options = { .size = sizeof(options),
					     .listen = "none",
					     .flags = WH_ENGINE_NO_THREADS };
	char line[1024], routes[1024];
	struct wh_remote remote;
	struct wh_engine *engine;
	struct wh_region *region;
	struct wh_batch *batch;
	struct wh_peer *peer;
	int running = 0, lines = 0, ended = 0;
	void *memory;

	if (argc != 3) {
		fprintf(stderr, "usage: event-loop URL REGION\n");
		return 64;
	}
	setvbuf(stdin, NULL, _IONBF, 0); /* poll() does not see what stdio has read ahead */
	/* Calls that wait, as these do, drive the engine meanwhile. */
	if (wh_engine_open(&options, &engine) || wh_peer_open(engine, argv[1], NULL, &peer) ||
	    wh_peer_find(peer, argv[2], 1000000000, &remote))
		die(argv[1], wh_error_text());
	if (wh_memory_alloc(engine, sizeof(line), NULL, &memory) ||
	    wh_region_register(engine, memory, sizeof(line), NULL, &region) ||
	    wh_batch_new(peer, NULL, &batch))
		die("memory", wh_error_text());

	while (running || !ended) {
		struct pollfd look[] = {
			{ .fd = wh_engine_fd(engine), .events = POLLIN },
			{ .fd = running || ended ? -1 : STDIN_FILENO, .events = POLLIN },
		};

		/* A batch that ended inside wh_batch_submit() needs no event. */
		if (!running || wh_batch_status(batch) == -EINPROGRESS)
			poll(look, 2, -1);
		if (look[0].revents && wh_engine_progress(engine, 0) < 0)
			die("progress", wh_error_text());
		if (running && wh_batch_status(batch) != -EINPROGRESS) {
			if (wh_batch_status(batch))
				die("transfer", wh_batch_error_text(batch));
			printf("%d: %s", ++lines, (char *)memory);
			running = 0;
		}
		if (look[1].revents) {
			ended = !fgets(line, sizeof(line), stdin);
			running = !ended;
			if (running)
				submit(batch, region, &remote, memory, line);
		}
	}
	if (lines) {
		wh_batch_explain(batch, routes, sizeof(routes));
		printf("%s", routes);
	}
	if (wh_batch_free(batch) || wh_region_unregister(region) ||
	    wh_memory_free(engine, memory) || wh_peer_close(peer) || wh_engine_close(engine))
		die("close", wh_error_text());
	return 0;
}
