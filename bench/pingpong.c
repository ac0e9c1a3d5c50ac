/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one-way latency of an 8-byte RDMA write, as perftest's ib_write_lat measures it: two
 * processes write to each other's memory in turns, and each polls its own memory for the other's
 * bytes. The latency is half of a round trip.
 *
 *   pingpong OURS THEIRS ROUNDS    OURS, THEIRS: the setting `rdma` of either process
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
#define WARM 200u /* rounds at the start that are not counted */
#define PAGE 4096u
#define APART 1024u /* offset of the bytes to send; bytes arrive at offset 0 */

struct side {
	struct wh_engine *engine;
	struct wh_region *region;
	struct wh_peer *peer;
	struct wh_batch *batch;
	char *memory;
	int other; /* a socket to the other process */
};

static int64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * SECOND + t.tv_nsec;
}

static _Noreturn void pingpong_die(const char *what, const char *text)
{
	fprintf(stderr, "pingpong: %s: %s\n", what, text);
	exit(1);
}

static void side_open(struct side *side, const char *rail)
{
	struct wh_region_options named = { .size = sizeof(named),
					   .name = "table",
					   .access = WH_ACCESS_READ | WH_ACCESS_WRITE };
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
		pingpong_die("engine", wh_error_text());
	side->memory = memory;
	snprintf(url, sizeof(url), "%s", wh_engine_url(side->engine));
	if (send(side->other, url, sizeof(url), 0) != sizeof(url) ||
	    recv(side->other, url, sizeof(url), MSG_WAITALL) != sizeof(url))
		pingpong_die("the other process", "it has ended");
	url[sizeof(url) - 1] = 0;
	if (wh_peer_open(side->engine, url, &patient, &side->peer) ||
	    wh_peer_find(side->peer, "table", PATIENCE, &remote) ||
	    wh_batch_new(side->peer, &only, &side->batch))
		pingpong_die(url, wh_error_text());
	ball.local = side->region;
	ball.remote = remote.id;
	if (wh_batch_add(side->batch, &ball, 1))
		pingpong_die("batch", wh_error_text());
}

static void ball_send(struct side *side, uint64_t number)
{
	int64_t end = clock_ns() + PATIENCE;

	memcpy(side->memory + APART, &number, sizeof(number));
	/* The first submissions may fail until the connection is open and the owner has registered
	 * its memory. */
	while (wh_batch_submit(side->batch))
		if (number || clock_ns() > end)
			pingpong_die("submit", wh_error_text());
}

static void ball_confirm(struct side *side)
{
	if (wh_batch_wait_for(side->batch, PATIENCE) || wh_batch_status(side->batch))
		pingpong_die("write", wh_batch_error_text(side->batch));
}

static void ball_receive(const struct side *side, uint64_t number)
{
	const volatile uint64_t *ball = (const volatile uint64_t *)(const void *)side->memory;
	int64_t end = clock_ns() + PATIENCE;
	uint32_t reads = 0;

	while (*ball != number)
		if (!(++reads % (1u << 20)) && clock_ns() > end)
			pingpong_die("the other process", "it does not answer");
}

/* Write once each way, so that the connection is open. Number 0 is not used by any round. */
static void side_warm(struct side *side)
{
	char ready = 1;

	ball_send(side, 0);
	ball_confirm(side);
	if (send(side->other, &ready, 1, 0) != 1 || recv(side->other, &ready, 1, 0) != 1)
		pingpong_die("the other process", "it has ended");
}

static void side_close(struct side *side)
{
	if (wh_batch_free(side->batch) || wh_peer_close(side->peer) ||
	    wh_region_unregister(side->region) || wh_memory_free(side->engine, side->memory) ||
	    wh_engine_close(side->engine))
		pingpong_die("close", wh_error_text());
}

static void side_answer(struct side *side, uint32_t rounds)
{
	for (uint64_t i = 1; i <= rounds; i++) {
		ball_receive(side, i);
		ball_send(side, i);
		ball_confirm(side);
	}
}

static int sample_compare(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return x < y ? -1 : x > y;
}

static void side_measure(struct side *side, uint32_t rounds)
{
	int64_t *took = malloc(rounds * sizeof(*took)), begun, half, most;
	uint32_t count = rounds - WARM;
	char route[512] = "";

	if (!took)
		pingpong_die("samples", strerror(ENOMEM));
	for (uint64_t i = 1; i <= rounds; i++) {
		begun = clock_ns();
		ball_send(side, i);
		ball_receive(side, i);
		took[i - 1] = clock_ns() - begun;
		ball_confirm(side);
	}
	qsort(took + WARM, count, sizeof(*took), sample_compare);
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
		pingpong_die("socketpair", strerror(errno));
	child = fork();
	if (child < 0)
		pingpong_die("fork", strerror(errno));
	if (!child)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(ends[!child]);
	side.other = ends[!!child];
	side_open(&side, argv[child ? 1 : 2]);
	side_warm(&side);
	if (child)
		side_measure(&side, (uint32_t)rounds);
	else
		side_answer(&side, (uint32_t)rounds);
	/* Wait for the other process: neither may close while the other still measures. */
	if (send(side.other, "", 1, 0) != 1 || recv(side.other, &(char){ 0 }, 1, 0) != 1)
		pingpong_die("the other process", "it has ended");
	side_close(&side);
	return 0;
}
