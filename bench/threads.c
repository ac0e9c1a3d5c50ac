/* SPDX-License-Identifier: Apache-2.0 */
/*
 * threads TURNS [FILE]: an engine with threads beside one without (WH_ENGINE_NO_THREADS)
 *
 * Two owners, one of each kind, each in a process of its own; two initiators, one of each kind, in
 * this one. Each reads from each, by shm and by tcp: the four pairs in turns, so that whatever else
 * the machine does meets all of them. memcpy() of the same bytes stands beside them.
 */
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <wherry/wherry.h>

#include "bench/machine.h"
#include "timing.h"

#define BYTES (UINT64_C(16) << 20) /* of the memory on each side */
#define MOST 1000 /* turns */

static const char *const settings[] = { "observe=off", NULL };
static const char *const routes[] = { "shm", "tcp" };
static const char *const kinds[] = { "threads", "none" };

/* Of one batch, which is repeated for one sample. */
static const struct shape {
	uint64_t length;
	unsigned count, repeats;
} shapes[] = {
	{ 8, 1, 200 },
	{ 64 << 10, 1, 50 },
	{ 1 << 20, 16, 2 },
};

#define ROUTES 2
#define KINDS 2
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

struct initiator {
	struct wh_engine *engine;
	char *memory;
	struct wh_region *region;
	struct wh_peer *peer[KINDS]; /* one for each owner */
	struct wh_batch *batch[KINDS][ROUTES][SHAPES];
};

/* ns for one batch */
static double times[KINDS][KINDS][ROUTES][SHAPES][MOST], copies[SHAPES][MOST];

static struct wh_engine *engine_open(unsigned kind, const char *listen)
{
	struct wh_engine_options options = { .size = sizeof(options),
					     .listen = listen,
					     .config = settings,
					     .flags = kind ? WH_ENGINE_NO_THREADS : 0 };
	struct wh_engine *engine;

	if (wh_engine_open(&options, &engine))
		timing_die("threads", "wh_engine_open");
	return engine;
}

/* ---- the owners ----------------------------------------------------------------------------- */

static _Noreturn void owner_run(unsigned kind, int url)
{
	struct wh_engine *engine = engine_open(kind, "127.0.0.1:0");
	struct wh_region_options options = { .size = sizeof(options),
					     .name = "memory",
					     .access = WH_ACCESS_READ | WH_ACCESS_WRITE };
	struct wh_region *region;
	void *memory;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (wh_memory_alloc(engine, BYTES, NULL, &memory))
		timing_die("threads", "the owner's memory");
	memset(memory, 1, BYTES); /* before registering: then the engine's threads may read it */
	if (wh_region_register(engine, memory, BYTES, &options, &region))
		timing_die("threads", "the owner's region");
	if (dprintf(url, "%s\n", wh_engine_url(engine)) < 0)
		timing_die("threads", "pipe");
	for (;;) { /* until it is killed */
		if (kind)
			wh_engine_progress(engine, WH_FOREVER);
		else
			pause();
	}
}

static pid_t owner_start(unsigned kind, char url[256])
{
	int ends[2];
	char *end;
	pid_t pid;
	ssize_t got;

	if (pipe(ends))
		timing_die("threads", "pipe");
	fflush(stdout);
	pid = fork();
	if (!pid)
		owner_run(kind, ends[1]);
	close(ends[1]);
	got = pid < 0 ? -1 : read(ends[0], url, 255);
	if (got <= 0)
		timing_die("threads", "the owner's process");
	url[got] = 0;
	end = strchr(url, '\n');
	if (end)
		*end = 0;
	close(ends[0]);
	return pid;
}

/* ---- the initiators ------------------------------------------------------------------------- */

static struct wh_batch *batch_make(const struct initiator *initiator, struct wh_peer *peer,
				   const char *route, const struct shape *shape)
{
	struct wh_batch_options options = { .size = sizeof(options), .require = route };
	struct wh_transfer transfer = { .local = initiator->region,
					.length = shape->length,
					.op = WH_READ };
	struct wh_remote remote;
	struct wh_batch *batch;

	if (wh_peer_find(peer, "memory", 5000000000, &remote) ||
	    wh_batch_new(peer, &options, &batch))
		timing_die("threads", "a batch");
	transfer.remote = remote.id;
	for (unsigned i = 0; i < shape->count; i++) {
		transfer.local_offset = transfer.remote_offset = i * shape->length;
		if (wh_batch_add(batch, &transfer, 1))
			timing_die("threads", "wh_batch_add");
	}
	return batch;
}

static void initiator_open(struct initiator *initiator, unsigned kind, char urls[KINDS][256])
{
	initiator->engine = engine_open(kind, "none");
	initiator->memory = malloc(BYTES);
	if (!initiator->memory)
		timing_die("threads", "the initiator's memory");
	memset(initiator->memory, 2, BYTES);
	if (wh_region_register(initiator->engine, initiator->memory, BYTES, NULL,
			       &initiator->region))
		timing_die("threads", "the initiator's region");
	for (unsigned owner = 0; owner < KINDS; owner++) {
		struct wh_peer **peer = &initiator->peer[owner];

		if (wh_peer_open(initiator->engine, urls[owner], NULL, peer))
			timing_die("threads", "wh_peer_open");
		for (unsigned route = 0; route < ROUTES; route++)
			for (unsigned shape = 0; shape < SHAPES; shape++)
				initiator->batch[owner][route][shape] =
					batch_make(initiator, *peer, routes[route], &shapes[shape]);
	}
}

static void initiator_close(struct initiator *initiator)
{
	for (unsigned owner = 0; owner < KINDS; owner++) {
		for (unsigned i = 0; i < ROUTES * SHAPES; i++)
			wh_batch_free(initiator->batch[owner][i / SHAPES][i % SHAPES]);
		wh_peer_close(initiator->peer[owner]);
	}
	wh_region_unregister(initiator->region);
	if (wh_engine_close(initiator->engine))
		timing_die("threads", "wh_engine_close");
	free(initiator->memory);
}

static double batch_time(struct wh_batch *batch, unsigned repeats)
{
	double begun = timing_now();

	for (unsigned i = 0; i < repeats; i++)
		if (wh_batch_submit(batch) || wh_batch_wait_for(batch, WH_FOREVER) ||
		    wh_batch_status(batch))
			timing_die("threads", "a transfer");
	return (timing_now() - begun) / repeats;
}

static double copy_time(char *to, const char *from, const struct shape *shape)
{
	double begun = timing_now();

	for (unsigned i = 0; i < shape->repeats; i++) {
		memcpy(to, from, shape->length * shape->count);
		__asm__ volatile("" : : "r"(to) : "memory");
	}
	return (timing_now() - begun) / shape->repeats;
}

/* ---- the run -------------------------------------------------------------------------------- */

static void measure(struct initiator initiators[KINDS], unsigned turn)
{
	for (unsigned shape = 0; shape < SHAPES; shape++) {
		for (unsigned i = 0; i < KINDS * KINDS * ROUTES; i++) {
			unsigned from = i / KINDS % KINDS, to = i % KINDS;
			unsigned route = i / (KINDS * KINDS);

			times[from][to][route][shape][turn] = batch_time(
				initiators[from].batch[to][route][shape], shapes[shape].repeats);
		}
		copies[shape][turn] =
			copy_time(initiators[0].memory, initiators[1].memory, &shapes[shape]);
	}
}

static json_t *report(unsigned turns)
{
	json_t *rows = json_array();

	printf("%-5s %-10s %-8s %10s %6s %10s %9s %12s\n", "route", "initiator", "owner", "bytes",
	       "count", "us", "GB/s", "memcpy us");
	for (unsigned i = 0; i < ROUTES * SHAPES * KINDS * KINDS; i++) {
		unsigned route = i / (SHAPES * KINDS * KINDS), shape = i / (KINDS * KINDS) % SHAPES;
		unsigned from = i / KINDS % KINDS, to = i % KINDS;
		double ns = timing_median(times[from][to][route][shape], turns);
		double copy = timing_median(copies[shape], turns);
		double bytes = (double)shapes[shape].length * shapes[shape].count;

		printf("%-5s %-10s %-8s %10llu %6u %10.2f %9.3f %12.2f\n", routes[route],
		       kinds[from], kinds[to], (unsigned long long)shapes[shape].length,
		       shapes[shape].count, ns / 1e3, bytes / ns, copy / 1e3);
		json_array_append_new(
			rows, json_pack("{s:s, s:s, s:s, s:I, s:i, s:f, s:f, s:f, s:f}", "route",
					routes[route], "initiator", kinds[from], "owner", kinds[to],
					"bytes", (json_int_t)shapes[shape].length, "count",
					(int)shapes[shape].count, "median_us", ns / 1e3, "least_us",
					times[from][to][route][shape][0] / 1e3, "gb_s", bytes / ns,
					"memcpy_us", copy / 1e3));
	}
	return rows;
}

int main(int argc, char **argv)
{
	unsigned turns = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
	struct initiator initiators[KINDS];
	char urls[KINDS][256];
	pid_t owners[KINDS];
	int status = 0;
	json_t *all;

	if (!turns || turns > MOST || argc > 3) {
		fprintf(stderr, "usage: threads TURNS [FILE]\n");
		return 2;
	}
	for (unsigned kind = 0; kind < KINDS; kind++)
		owners[kind] = owner_start(kind, urls[kind]);
	for (unsigned kind = 0; kind < KINDS; kind++)
		initiator_open(&initiators[kind], kind, urls);
	measure(initiators, 0); /* opens connections, maps memory; overwritten */
	for (unsigned turn = 0; turn < turns; turn++)
		measure(initiators, turn);
	all = json_pack("{s:i, s:o, s:i, s:o}", "schema", 1, "environment",
			machine_describe_run(NULL, settings), "turns", (int)turns, "rows",
			report(turns));
	if (argc > 2 && json_dump_file(all, argv[2], JSON_INDENT(1) | JSON_REAL_PRECISION(6))) {
		fprintf(stderr, "threads: cannot write %s\n", argv[2]);
		status = 1;
	}
	json_decref(all);
	for (unsigned kind = 0; kind < KINDS; kind++)
		initiator_close(&initiators[kind]);
	for (unsigned kind = 0; kind < KINDS; kind++) {
		kill(owners[kind], SIGKILL);
		waitpid(owners[kind], NULL, 0);
	}
	return status;
}
