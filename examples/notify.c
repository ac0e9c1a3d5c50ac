/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two programs: one writes into the other's memory and attaches a notification. When the receiver
 * gets the notification, all bytes are visible: it need not poll the memory.
 *
 *   $ notify receive
 *   wherry://127.0.0.1:40123
 *   $ notify send wherry://127.0.0.1:40123
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <wherry/wherry.h>

enum {
	LENGTH = 8 << 20,
	FILLED = 1, /* tag: the memory has been filled */
};

static const int64_t second = 1000000000;

static _Noreturn void die(const char *what, const char *text)
{
	fprintf(stderr, "notify: %s: %s\n", what, text);
	exit(1);
}

static unsigned char expected(size_t at)
{
	return (unsigned char)(at * 31 + at / 4096);
}

static void receive(void)
{
	struct wh_region_options named = { .size = sizeof(named),
					   .name = "mailbox",
					   .access = WH_ACCESS_READ | WH_ACCESS_WRITE };
	char text[64];
	struct wh_notification notification = { .size = sizeof(notification),
						.buffer = text,
						.capacity = sizeof(text) };
	struct wh_notification_filter filled = { .size = sizeof(filled),
						 .tag = FILLED,
						 .tag_mask = UINT64_MAX };
	struct wh_engine *engine;
	struct wh_region *region;
	unsigned char *bytes;
	void *memory;

	if (wh_engine_open(NULL, &engine) || wh_memory_alloc(engine, LENGTH, NULL, &memory) ||
	    wh_region_register(engine, memory, LENGTH, &named, &region))
		die("engine", wh_error_text());
	printf("%s\n", wh_engine_url(engine));
	fflush(stdout);

	if (wh_engine_notification(engine, &filled, &notification, 60 * second))
		die("nothing came", wh_error_text());
	bytes = memory;
	for (size_t at = 0; at < LENGTH; at++)
		if (bytes[at] != expected(at))
			die("compare", "the notification was here before the bytes");
	printf("from %s: %.*s\n", notification.sender, (int)notification.length, text);
	if (wh_region_unregister(region) || wh_memory_free(engine, memory) ||
	    wh_engine_close(engine))
		die("close", wh_error_text());
}

static void deliver(const char *url)
{
	struct wh_engine_options options = { .size = sizeof(options),
					     .name = "sender",
					     .listen = "none" };
	struct wh_transfer transfer = { .op = WH_WRITE, .length = LENGTH };
	static const char message[] = "8 MiB for you";
	struct wh_remote remote;
	struct wh_engine *engine;
	struct wh_batch *batch;
	struct wh_peer *peer;
	unsigned char *bytes;
	void *memory;

	if (wh_engine_open(&options, &engine) || wh_peer_open(engine, url, NULL, &peer) ||
	    wh_peer_find(peer, "mailbox", second, &remote))
		die(url, wh_error_text());
	if (wh_memory_alloc(engine, LENGTH, NULL, &memory) ||
	    wh_region_register(engine, memory, LENGTH, NULL, &transfer.local) ||
	    wh_batch_new(peer, NULL, &batch))
		die("memory", wh_error_text());
	bytes = memory;
	for (size_t at = 0; at < LENGTH; at++)
		bytes[at] = expected(at);

	transfer.remote = remote.id;
	if (wh_batch_add(batch, &transfer, 1) ||
	    wh_batch_notify(batch, FILLED, message, sizeof(message) - 1) || wh_batch_submit(batch))
		die("submit", wh_error_text());
	if (wh_batch_wait_for(batch, WH_FOREVER) || wh_batch_status(batch))
		die("transfer", wh_batch_error_text(batch));
	if (wh_batch_free(batch) || wh_region_unregister(transfer.local) ||
	    wh_memory_free(engine, memory) || wh_peer_close(peer) || wh_engine_close(engine))
		die("close", wh_error_text());
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "receive") == 0) {
		receive();
		return 0;
	}
	if (argc == 3 && strcmp(argv[1], "send") == 0) {
		deliver(argv[2]);
		return 0;
	}
	fprintf(stderr, "usage: notify receive | notify send URL\n");
	return 64;
}
