/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The time of one way of 8 bytes, as perftest's ib_write_lat measures it: two processes write to
 * each other's memory in turns, and each polls its own for the other's bytes. Half of a round is
 * one way.
 *
 *   pingpong OURS THEIRS ROUNDS    the setting `rdma` of either side
 *
 * Prints the median and the 99th percentile in us, and the route.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <wherry/wherry.h>

#define SECOND INT64_C(1000000000)
#define PATIENCE (60 * SECOND)
#define WARM 200u /* rounds before it counts */
#define PAGE 4096u
#define APART 1024u /* distance between what is sent and what is received */

struct side {
	struct wh_engine *engine;
	struct wh_region *region;
	struct wh_peer *peer;
	struct wh_batch *batch;
	char *memory;
	int other; /* a socket to the other process */
};

static int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * SECOND + t.tv_nsec;
}

static _Noreturn void die(const char *what, const char *text)
{
	fprintf(stderr, "pingpong: %s: %s\n", what, text);
	exit(1);
}

static void open_side(struct side *side, const char *rail)
{
	struct wh_region_options named = { .size = sizeof(named), .name = "table" };
	char setting[128], url[128] = "";
	const char *const config[] = { setting, "timeout=60000", NULL };
	struct wh_engine_options options = { .size = sizeof(options), .config = config };
	struct wh_peer_options patient = { .size = sizeof(patient), .timeout = PATIENCE };
	struct wh_batch_options only = { .size = sizeof(only), .require = "rdma" };
	struct wh_transfer ball = { .op = WH_WRITE, .local_offset = APART, .length = 8 };
	struct wh_remote remote;
	void *memory;

	snprintf(setting, sizeof(setting), "rdma=%s", rail);
	if (wh_engine_open(&options, &side->engine) ||
	    wh_memory_alloc(side->engine, PAGE, NULL, &memory) ||
	    wh_region_register(side->engine, memory, PAGE, &named, &side->region))
		die("engine", wh_error_text());
	side->memory = memory;
	snprintf(url, sizeof(url), "%s", wh_engine_url(side->engine));
	if (send(side->other, url, sizeof(url), 0) != sizeof(url) ||
	    recv(side->other, url, sizeof(url), MSG_WAITALL) != sizeof(url))
		die("the other process", "it has ended");
	url[sizeof(url) - 1] = 0;
	if (wh_peer_open(side->engine, url, &patient, &side->peer) ||
	    wh_peer_find(side->peer, "table", PATIENCE, &remote) ||
	    wh_batch_new(side->peer, &only, &side->batch))
		die(url, wh_error_text());
	ball.local = side->region;
	ball.remote = remote.id;
	if (wh_batch_add(side->batch, &ball, 1))
		die("batch", wh_error_text());
}

static void ball_send(struct side *side, uint64_t number)
{
	int64_t end = now() + PATIENCE;

	memcpy(side->memory + APART, &number, sizeof(number));
	/* The first submissions may fail until the connection is open and the owner has registered
	 * its memory. */
	while (wh_batch_submit(side->batch))
		if (number || now() > end)
			die("submit", wh_error_text());
}

static void ball_confirm(struct side *side)
{
	if (wh_batch_wait(side->batch, PATIENCE))
		die("write", wh_batch_error_text(side->batch));
}

static void ball_receive(const struct side *side, uint64_t number)
{
	const volatile uint64_t *ball = (const volatile uint64_t *)(const void *)side->memory;
	int64_t end = now() + PATIENCE;
	uint32_t looks = 0;

	while (*ball != number)
		if (!(++looks % (1u << 20)) && now() > end)
			die("the other process", "it does not answer");
}

/* Write once each way, to connect. The ball is number 0, which no round uses. */
static void side_warm(struct side *side)
{
	char ready = 1;

	ball_send(side, 0);
	ball_confirm(side);
	if (send(side->other, &ready, 1, 0) != 1 || recv(side->other, &ready, 1, 0) != 1)
		die("the other process", "it has ended");
}

static void close_side(struct side *side)
{
	if (wh_batch_free(side->batch) || wh_peer_close(side->peer) ||
	    wh_region_unregister(side->region) || wh_memory_free(side->engine, side->memory) ||
	    wh_engine_close(side->engine))
		die("close", wh_error_text());
}

static void side_answer(struct side *side, uint32_t rounds)
{
	for (uint64_t i = 1; i <= rounds; i++) {
		ball_receive(side, i);
		ball_send(side, i);
		ball_confirm(side);
	}
}

static int compare(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return x < y ? -1 : x > y;
}

static void serve_and_measure(struct side *side, uint32_t rounds)
{
	int64_t *took = malloc(rounds * sizeof(*took)), begun, half, most;
	uint32_t count = rounds - WARM;
	char route[512] = "";

	if (!took)
		die("samples", strerror(ENOMEM));
	for (uint64_t i = 1; i <= rounds; i++) {
		begun = now();
		ball_send(side, i);
		ball_receive(side, i);
		took[i - 1] = now() - begun;
		ball_confirm(side);
	}
	qsort(took + WARM, count, sizeof(*took), compare);
	wh_batch_explain(side->batch, route, sizeof(route));
	route[strcspn(route, "\n")] = 0;
	half = took[WARM + count / 2];
	most = took[WARM + count - 1 - count / 100];
	printf("%.3f %.3f %s\n", (double)half / 2e3, (double)most / 2e3, route);
	free(took);
}

int main(int argc, char **argv)
{
	unsigned long rounds = argc == 4 ? strtoul(argv[3], NULL, 10) : 0;
	struct side side = { 0 };
	int ends[2];
	pid_t child;

	if (rounds < 2 * WARM || rounds > 10000000) {
		fprintf(stderr, "usage: pingpong OURS THEIRS ROUNDS (%u to 10000000)\n", 2 * WARM);
		return 64;
	}
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
		die("socketpair", strerror(errno));
	child = fork();
	if (child < 0)
		die("fork", strerror(errno));
	if (!child)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(ends[!child]);
	side.other = ends[!!child];
	open_side(&side, argv[child ? 1 : 2]);
	side_warm(&side);
	if (child)
		serve_and_measure(&side, (uint32_t)rounds);
	else
		side_answer(&side, (uint32_t)rounds);
	/* Both processes end together. */
	if (send(side.other, "", 1, 0) != 1 || recv(side.other, &(char){ 0 }, 1, 0) != 1)
		die("the other process", "it has ended");
	close_side(&side);
	return 0;
}
