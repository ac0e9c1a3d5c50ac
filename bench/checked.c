/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checked TURNS [FILE]: what it costs that memory of the application's may vanish, over TCP
 *
 * Bytes that come with a header are copied once more: to memory that the engine has allocated by
 * memcpy, to the application's by a system call that answers EFAULT. Two processes have both, of
 * the same kind of pages: the application's is another engine's. Each turn measures both, in
 * alternating order.
 */
#include <jansson.h>
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

#define BYTES (UINT64_C(4) << 20) /* of each region */
#define MOST 5000 /* turns */
#define FLIGHT 16 /* batches, at most */

static const char *const settings[] = { "observe=off", "require=tcp", NULL };
static const char *const kinds[] = { "engine", "application" };
static const char *const ops[] = { [WH_READ] = "read", [WH_WRITE] = "write" };

static const struct shape {
	uint64_t length;
	unsigned flight; /* batches ... */
	unsigned count; /* ... of so many transfers, which lie apart */
	unsigned repeats;
} shapes[] = {
	{ 8, 1, 1, 20 },        { 1 << 10, 1, 1, 20 },     { 4 << 10, 1, 1, 20 },
	{ 8 << 10, 1, 1, 20 },  { 4 << 10, FLIGHT, 1, 4 }, { 64, 1, 256, 4 },
	{ 1 << 10, 1, 256, 4 }, { 4 << 10, 1, 256, 2 },
};

#define KINDS 2
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

/* One process: the engine, and its two regions. */
struct side {
	struct wh_engine *engine, *other;
	struct wh_region *regions[KINDS];
	void *memory[KINDS];
};

static struct wh_batch *batches[KINDS][WH_WRITE + 1][SHAPES][FLIGHT];
static double times[KINDS][WH_WRITE + 1][SHAPES][MOST]; /* ns for one transfer */
static double ratios[MOST];

static struct wh_engine *engine_open(const char *listen)
{
	struct wh_engine_options options = { .size = sizeof(options),
					     .listen = listen,
					     .config = settings };
	struct wh_engine *engine;

	if (wh_engine_open(&options, &engine))
		timing_die("checked", "wh_engine_open");
	return engine;
}

static void side_open(struct side *side, const char *listen)
{
	struct wh_memory_options pages = { .size = sizeof(pages), .kind = WH_MEMORY_PAGEABLE };

	side->engine = engine_open(listen);
	side->other = engine_open("none");
	for (unsigned kind = 0; kind < KINDS; kind++) {
		struct wh_region_options options = { .size = sizeof(options),
						     .name = kinds[kind],
						     .access = WH_ACCESS_READ | WH_ACCESS_WRITE };

		if (wh_memory_alloc(kind ? side->other : side->engine, BYTES, &pages,
				    &side->memory[kind]))
			timing_die("checked", "wh_memory_alloc");
		memset(side->memory[kind], 1, BYTES);
		if (wh_region_register(side->engine, side->memory[kind], BYTES, &options,
				       &side->regions[kind]))
			timing_die("checked", "wh_region_register");
	}
}

static pid_t owner_start(char url[256])
{
	struct side side;
	int ends[2];
	pid_t pid;
	ssize_t got;

	if (pipe(ends))
		timing_die("checked", "pipe");
	fflush(stdout);
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		side_open(&side, "127.0.0.1:0");
		if (dprintf(ends[1], "%s", wh_engine_url(side.engine)) < 0)
			timing_die("checked", "pipe");
		for (;;) /* until it is killed */
			pause();
	}
	close(ends[1]);
	got = pid < 0 ? -1 : read(ends[0], url, 255);
	if (got <= 0)
		timing_die("checked", "the owner's process");
	url[got] = 0;
	close(ends[0]);
	return pid;
}

static void batches_make(const struct side *side, struct wh_peer *peer, unsigned kind)
{
	struct wh_remote remote;

	if (wh_peer_find(peer, kinds[kind], WH_FOREVER, &remote))
		timing_die("checked", "wh_peer_find");
	for (unsigned i = 0; i < 2 * SHAPES * FLIGHT; i++) {
		unsigned op = i & 1 ? WH_READ : WH_WRITE, shape = i / 2 / FLIGHT;
		struct wh_batch **batch = &batches[kind][op][shape][i / 2 % FLIGHT];
		struct wh_transfer transfer = { .local = side->regions[kind],
						.remote = remote.id,
						.length = shapes[shape].length,
						.op = op };

		if (wh_batch_new(peer, NULL, batch))
			timing_die("checked", "wh_batch_new");
		for (unsigned k = 0; k < shapes[shape].count; k++) {
			transfer.local_offset = transfer.remote_offset =
				(i / 2 % FLIGHT + 2 * k) * shapes[shape].length;
			if (wh_batch_add(*batch, &transfer, 1))
				timing_die("checked", "wh_batch_add");
		}
	}
}

static double batches_time(struct wh_batch **batch, const struct shape *shape)
{
	double begun = timing_now();

	for (unsigned repeat = 0; repeat < shape->repeats; repeat++) {
		for (unsigned i = 0; i < shape->flight; i++)
			if (wh_batch_submit(batch[i]))
				timing_die("checked", "wh_batch_submit");
		for (unsigned i = 0; i < shape->flight; i++)
			if (wh_batch_wait_for(batch[i], WH_FOREVER) || wh_batch_status(batch[i]))
				timing_die("checked", "a transfer");
	}
	return (timing_now() - begun) / shape->repeats / shape->flight / shape->count;
}

static void measure(unsigned turn)
{
	for (unsigned i = 0; i < 2 * SHAPES * KINDS; i++) {
		unsigned kind = (i + turn) % KINDS, shape = i / KINDS % SHAPES;
		unsigned op = i / KINDS / SHAPES ? WH_READ : WH_WRITE;

		times[kind][op][shape][turn] =
			batches_time(batches[kind][op][shape], &shapes[shape]);
	}
}

static void report(json_t *rows, unsigned turns)
{
	for (unsigned i = 0; i < 2 * SHAPES; i++) {
		unsigned op = i / SHAPES ? WH_READ : WH_WRITE, shape = i % SHAPES;
		double engine, application, middle;

		for (unsigned turn = 0; turn < turns; turn++)
			ratios[turn] = times[1][op][shape][turn] / times[0][op][shape][turn];
		middle = timing_median(ratios, turns);
		engine = timing_median(times[0][op][shape], turns);
		application = timing_median(times[1][op][shape], turns);
		printf("%-5s %4llu bytes, %2u x %3u in flight: engine's %6.3f us, "
		       "application's %6.3f us, ratio %.3f (%.3f to %.3f)\n",
		       ops[op], (unsigned long long)shapes[shape].length, shapes[shape].flight,
		       shapes[shape].count, engine / 1e3, application / 1e3, middle,
		       ratios[turns / 4], ratios[3 * turns / 4]);
		json_array_append_new(
			rows,
			json_pack("{s:s, s:I, s:i, s:i, s:f, s:f, s:f, s:f, s:f}", "op", ops[op],
				  "bytes", (json_int_t)shapes[shape].length, "in_flight",
				  (int)shapes[shape].flight, "transfers", (int)shapes[shape].count,
				  "engine_us", engine / 1e3, "application_us", application / 1e3,
				  "ratio", middle, "ratio_lower_quartile", ratios[turns / 4],
				  "ratio_upper_quartile", ratios[3 * turns / 4]));
	}
}

static void run(json_t *rows, unsigned turns)
{
	struct wh_peer *peer;
	struct side side;
	char url[256];
	pid_t owner = owner_start(url);

	side_open(&side, "none");
	if (wh_peer_open(side.engine, url, NULL, &peer))
		timing_die("checked", "wh_peer_open");
	for (unsigned kind = 0; kind < KINDS; kind++)
		batches_make(&side, peer, kind);
	measure(0); /* opens connections; overwritten */
	for (unsigned turn = 0; turn < turns; turn++)
		measure(turn);
	report(rows, turns);
	for (unsigned i = 0; i < 2 * SHAPES * FLIGHT * KINDS; i++)
		wh_batch_free(batches[i % KINDS][i / KINDS & 1 ? WH_READ : WH_WRITE]
				     [i / KINDS / 2 / FLIGHT][i / KINDS / 2 % FLIGHT]);
	wh_peer_close(peer);
	kill(owner, SIGKILL);
	waitpid(owner, NULL, 0);
	for (unsigned kind = 0; kind < KINDS; kind++) {
		wh_region_unregister(side.regions[kind]);
		wh_memory_free(kind ? side.other : side.engine, side.memory[kind]);
	}
	if (wh_engine_close(side.engine) || wh_engine_close(side.other))
		timing_die("checked", "wh_engine_close");
}

int main(int argc, char **argv)
{
	unsigned turns = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
	json_t *rows, *all;
	int status = 0;

	if (!turns || turns > MOST || argc > 3) {
		fprintf(stderr, "usage: checked TURNS [FILE]\n");
		return 2;
	}
	rows = json_array();
	run(rows, turns);
	all = json_pack("{s:i, s:o, s:i, s:o}", "schema", 1, "environment",
			machine_describe_run(NULL, settings), "turns", (int)turns, "rows", rows);
	if (argc > 2 && json_dump_file(all, argv[2], JSON_INDENT(1) | JSON_REAL_PRECISION(6))) {
		fprintf(stderr, "checked: cannot write %s\n", argv[2]);
		status = 1;
	}
	json_decref(all);
	return status;
}
