/* SPDX-License-Identifier: Apache-2.0 */
/* trust-rotation.c: a cluster key is changed while engines run: files with several keys, and which
 * engines accept each other */
#include <fcntl.h>
#include <sys/stat.h>

#include "lib/fixture.h"
#include "lib/raw.h"

#define OLD "6f6c64206b6579206f6c64206b6579206f6c64206b6579206f6c64206b657920"
#define NEW "6e6577206b6579206e6577206b6579206e6577206b6579206e6577206b657920"

static char path[64];

static struct wh_engine *open_with(const char *keys)
{
	char setting[96];
	const char *const config[] = { setting, NULL };
	struct wh_engine *engine;
	int fd;

	snprintf(path, sizeof(path), "/tmp/wherry-rotation-%d", (int)getpid());
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	want_true(fd >= 0, "%s: %s", path, strerror(errno));
	want(strlen(keys), write(fd, keys, strlen(keys)));
	close(fd);
	snprintf(setting, sizeof(setting), "keyfile=%s", path);
	engine = engine_open("tcp", NULL, config);
	unlink(path);
	return engine;
}

static int peer_open(struct wh_engine *from, struct wh_engine *to)
{
	struct wh_peer *peer;
	int error = wh_peer_open(from, wh_engine_url(to), NULL, &peer);

	if (!error)
		want(0, wh_peer_close(peer));
	return error;
}

/* After each step, engines that have taken it and engines that have not still accept each other. */
static void rotation__every_step(void **state)
{
	static const char *const steps[] = {
		OLD "\n",
		OLD "\n" NEW "\n",
		"# since today\n" NEW "\n\n# until tomorrow\n" OLD "\n",
		NEW "\n",
	};
	struct wh_engine *engines[4];

	(void)state;
	for (int i = 0; i < 4; i++)
		engines[i] = open_with(steps[i]);
	for (int i = 0; i < 3; i++) {
		want(0, peer_open(engines[i], engines[i + 1]));
		want(0, peer_open(engines[i + 1], engines[i]));
	}
	/* If one engine skips the step in between, both sides report it. */
	want_text(-EACCES, "does not hold this engine's key", peer_open(engines[0], engines[3]));
	want_text(-EACCES, "does not hold this engine's key", peer_open(engines[3], engines[0]));
	/* An engine proves the first of its keys only. */
	want_text(-EACCES, "does not hold this engine's key", peer_open(engines[0], engines[2]));
	want(0, peer_open(engines[2], engines[0]));
	for (int i = 0; i < 4; i++)
		want(0, wh_engine_close(engines[i]));
}

/* When the file has changed, connected peers stay connected, and connections opened later move
 * bytes. */
static void rotation__connected_stay(void **state)
{
	struct wh_region_options named = { .size = sizeof(named),
					   .name = "target",
					   .access = ACCESS_BOTH };
	struct wh_engine *owner, *initiator;
	struct wh_region *target, *source;
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct wh_remote remote;
	struct wh_peer *peer;
	unsigned char *pages = pages_new(2 * 4096);

	(void)state;
	owner = open_with(OLD "\n" NEW);
	initiator = open_with(NEW "\n" OLD);
	want(0, wh_region_register(owner, pages, 4096, &named, &target));
	named.name = NULL;
	want(0, wh_region_register(initiator, pages + 4096, 4096, &named, &source));
	want(0, wh_peer_open(initiator, wh_engine_url(owner), NULL, &peer));
	want(0, wh_peer_find(peer, "target", WH_ANSWER, &remote));
	pattern_fill(pages + 4096, 4096, 0, 3);
	want(0, wh_batch_new(peer, NULL, &batch));
	transfer = (struct wh_transfer){
		.local = source, .remote = remote.id, .length = 4096, .op = WH_WRITE
	};
	want(0, wh_batch_add(batch, &transfer, 1));
	want(0, wh_batch_submit(batch));
	want(0, batch_end(batch, PATIENCE));
	hidden_begin();
	want_true(pattern_check(pages, 4096, 0, 3) == PATTERN_GOOD, "other bytes");
	hidden_end();
	want(0, wh_batch_free(batch));
	want(0, wh_peer_close(peer));
	want(0, wh_region_unregister(source));
	want(0, wh_region_unregister(target));
	want(0, wh_engine_close(initiator));
	want(0, wh_engine_close(owner));
	pages_free(pages, 2 * 4096);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(rotation__every_step),
		TEST(rotation__connected_stay),
	};

	return harness_main(argc, argv, "trust-rotation", tests, sizeof(tests) / sizeof(*tests));
}
