/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the first submission to a peer takes beside the tenth, with and without wh_peer_prepare().
 *
 *   first URL REGION SIZE TURNS [FILE]
 *
 * URL is that of an engine on this host (wherry serve), REGION a region of it with at least SIZE
 * bytes. For each transport that reaches it, each turn opens a new engine, once with and once
 * without preparing, and times ten writes of SIZE bytes from submission to completion. Prints the
 * medians over the turns; FILE receives them as JSON, with the machine.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <wherry/wherry.h>

#include "bench/machine.h"
#include "timing.h"

#define WRITES 10
#define TURNS_MOST 1000
#define FIND_TIME 10000000000 /* ns */

struct run {
	const char *url, *name;
	uint64_t size;
	void *memory; /* `size` bytes, touched */
};

/* ns of one turn */
struct turn {
	double prepare, write[WRITES];
};

/* False: no transport takes it. */
static bool turn_write(struct wh_batch *batch, double ns[WRITES])
{
	for (unsigned i = 0; i < WRITES; i++) {
		double begun = timing_now();
		int error = wh_batch_submit(batch);

		if (error == -EOPNOTSUPP)
			return false;
		if (error || wh_batch_wait_for(batch, WH_FOREVER) || wh_batch_status(batch))
			timing_die("first", "write");
		ns[i] = timing_now() - begun;
	}
	return true;
}

/* False: the transport that the settings require cannot do it here. */
static bool turn_run(const struct run *run, const char *const *config, bool prepares,
		     struct turn *turn)
{
	struct wh_engine_options options = { .size = sizeof(options),
					     .listen = "none",
					     .config = config };
	struct wh_transfer transfer = { .op = WH_WRITE, .length = run->size };
	struct wh_engine *engine;
	struct wh_remote remote;
	struct wh_batch *batch;
	struct wh_peer *peer;
	double begun;
	bool works;

	if (wh_engine_open(&options, &engine) || wh_peer_open(engine, run->url, NULL, &peer) ||
	    wh_peer_find(peer, run->name, FIND_TIME, &remote) ||
	    wh_region_register(engine, run->memory, run->size, NULL, &transfer.local) ||
	    wh_batch_new(peer, NULL, &batch))
		timing_die("first", "engine");
	transfer.remote = remote.id;
	begun = timing_now();
	if (prepares && wh_peer_prepare(peer, &transfer.local, 1, &remote.id, 1, WH_FOREVER))
		timing_die("first", "prepare");
	turn->prepare = timing_now() - begun;
	if (wh_batch_add(batch, &transfer, 1))
		timing_die("first", "batch");
	works = turn_write(batch, turn->write);
	if (wh_batch_free(batch) || wh_region_unregister(transfer.local) || wh_peer_close(peer) ||
	    wh_engine_close(engine))
		timing_die("first", "close");
	return works;
}

/* The median over the turns of the double at `offset` in a turn; us. */
static double turns_median(const struct turn *turns, unsigned count, size_t offset)
{
	double values[TURNS_MOST];

	for (unsigned i = 0; i < count; i++)
		memcpy(&values[i], (const char *)&turns[i] + offset, sizeof(values[i]));
	return timing_median(values, count) / 1e3;
}

static json_t *turns_report(const char *route, bool prepared, const struct turn *turns,
			    unsigned count)
{
	double prepare = prepared ? turns_median(turns, count, offsetof(struct turn, prepare)) : 0;
	double first = turns_median(turns, count, offsetof(struct turn, write[0]));
	double tenth = turns_median(turns, count, offsetof(struct turn, write[WRITES - 1]));

	printf("%-16s %-12s %10.1f %10.1f %10.1f %8.2f\n", route, prepared ? "prepared" : "-",
	       prepare, first, tenth, first / tenth);
	return json_pack("{s:s, s:b, s:f, s:f, s:f}", "route", route, "prepared", prepared,
			 "prepare_us", prepare, "first_us", first, "tenth_us", tenth);
}

int main(int argc, char **argv)
{
	static const char *const self[] = { "observe=0", NULL };
	static const struct {
		const char *name, *config[2];
	} routes[] = {
		{ "shm", { "require=shm" } },
		{ "tcp", { "require=tcp" } },
		{ "cuda", { "require=cuda" } },
		{ "rdma", { "require=rdma" } },
	};
	static struct turn turns[2][TURNS_MOST];
	struct run run = { .url = argc > 1 ? argv[1] : "", .name = argc > 2 ? argv[2] : "" };
	unsigned count = argc > 4 ? (unsigned)strtoul(argv[4], NULL, 10) : 0;
	json_t *rows, *all;
	int status = 0;

	run.size = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
	if (!run.size || !count || count > TURNS_MOST || argc > 6) {
		fprintf(stderr, "usage: first URL REGION SIZE TURNS [FILE]\n");
		return 2;
	}
	run.memory = malloc(run.size);
	if (!run.memory) {
		fprintf(stderr, "first: no memory for %llu bytes\n", (unsigned long long)run.size);
		return 1;
	}
	memset(run.memory, 1, run.size);
	rows = json_array();
	printf("%-16s %-12s %10s %10s %10s %8s\n", "route", "", "prepare/us", "first/us",
	       "tenth/us", "ratio");
	for (size_t r = 0; r < sizeof(routes) / sizeof(routes[0]); r++) {
		if (!turn_run(&run, routes[r].config, false, &turns[0][0]))
			continue;
		for (unsigned t = 0; t < 2 * count; t++)
			turn_run(&run, routes[r].config, t % 2, &turns[t % 2][t / 2]);
		for (unsigned prepared = 0; prepared < 2; prepared++)
			json_array_append_new(rows, turns_report(routes[r].name, prepared,
								 turns[prepared], count));
	}
	all = json_pack("{s:i, s:o, s:I, s:s, s:i, s:o}", "schema", 1, "environment",
			machine_describe_run(NULL, self), "bytes", (json_int_t)run.size, "region",
			run.name, "turns", (int)count, "rows", rows);
	if (argc > 5 && json_dump_file(all, argv[5], JSON_INDENT(1) | JSON_REAL_PRECISION(6))) {
		fprintf(stderr, "first: cannot write %s\n", argv[5]);
		status = 1;
	}
	json_decref(all);
	free(run.memory);
	return status;
}
