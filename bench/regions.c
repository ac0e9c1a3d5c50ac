/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What peers cost an owner of many regions.
 *
 *   regions REGIONS PEERS [FILE]
 *
 * A process registers REGIONS regions; another one opens PEERS peers to it by TCP, one after the
 * other, finds one region by each, and moves 8 bytes. Then the owner registers and unregisters
 * another region 100 times, while all peers are connected. For each step: the median time, and the
 * bytes that went over the loopback interface, which nobody else may use: run it in a network
 * namespace of its own (unshare --net, ip link set lo up). Prints the figures; FILE receives them
 * as JSON, with the machine.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <wherry/wherry.h>

#include "bench/machine.h"
#include "timing.h"

#define LENGTH 4096 /* bytes of a region */
#define CHANGES 100
#define MOST 100000

/* Times of one step in ns, and the bytes of all. */
struct step {
	const char *name;
	double ns[MOST];
	unsigned count;
	unsigned long long bytes;
};

static const char *const settings[] = { "observe=off", "transports=tcp", NULL };

static unsigned long long loopback_bytes(void)
{
	/* Not /sys/class/net, which shows the namespace in which it was mounted. */
	FILE *file = fopen("/proc/self/net/dev", "r");
	unsigned long long bytes = 0;
	char line[512];

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, " lo: %llu", &bytes) == 1)
			break;
	if (!file)
		timing_die("regions", "/proc/self/net/dev");
	fclose(file);
	return bytes;
}

/* The bytes so far, when none have come for 50 ms, or after a second. */
static unsigned long long loopback_settled(void)
{
	unsigned long long before, now = loopback_bytes();
	unsigned waits = 0;

	do {
		before = now;
		nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
		now = loopback_bytes();
	} while (now != before && ++waits < 20);
	return now;
}

static json_t *step_report(struct step *step)
{
	double each = (double)step->bytes / step->count, median;

	median = timing_median(step->ns, step->count);
	printf("%-24s %12.1f us %14llu bytes %12.0f each\n", step->name, median / 1e3, step->bytes,
	       each);
	return json_pack("{s:s, s:i, s:f, s:f, s:I}", "step", step->name, "count", (int)step->count,
			 "median_us", median / 1e3, "longest_us", step->ns[step->count - 1] / 1e3,
			 "bytes", (json_int_t)step->bytes);
}

/* ---- the peers' process --------------------------------------------------------------------- */

static void peers_open(struct wh_engine *engine, const char *url, struct wh_peer **peers,
		       struct step *step)
{
	unsigned long long before = loopback_settled();

	for (unsigned i = 0; i < step->count; i++) {
		double begun = timing_now();

		if (wh_peer_open(engine, url, NULL, &peers[i]))
			timing_die("regions", "wh_peer_open");
		step->ns[i] = timing_now() - begun;
	}
	step->bytes = loopback_settled() - before;
}

static void peers_find(struct wh_peer **peers, struct step *step, uint64_t *id)
{
	unsigned long long before = loopback_settled();
	struct wh_remote remote;

	for (unsigned i = 0; i < step->count; i++) {
		double begun = timing_now();

		if (wh_peer_find(peers[i], "wanted", 10000000000, &remote))
			timing_die("regions", "wh_peer_find");
		step->ns[i] = timing_now() - begun;
	}
	*id = remote.id;
	step->bytes = loopback_settled() - before;
}

/* What the peers' process tells the owner's, and back: a byte each. */
static void say(int fd)
{
	if (write(fd, "x", 1) != 1)
		timing_die("regions", "write");
}

static void hear(int fd)
{
	char byte;

	if (read(fd, &byte, 1) != 1)
		timing_die("regions", "read");
}

static json_t *peers_run(const char *url, unsigned count, int in, int out)
{
	struct wh_engine_options options = { .size = sizeof(options),
					     .listen = "none",
					     .config = settings };
	static struct step open = { .name = "open a peer" }, find = { .name = "find a region" };
	struct wh_peer **peers = calloc(count, sizeof(struct wh_peer *));
	json_t *steps = json_array();
	struct wh_engine *engine;
	uint64_t id;

	open.count = find.count = count;
	if (!peers || wh_engine_open(&options, &engine))
		timing_die("regions", "engine");
	peers_open(engine, url, peers, &open);
	peers_find(peers, &find, &id);
	json_array_append_new(steps, step_report(&open));
	json_array_append_new(steps, step_report(&find));
	say(out);
	hear(in);
	for (unsigned i = 0; i < count; i++)
		if (wh_peer_close(peers[i]))
			timing_die("regions", "wh_peer_close");
	if (wh_engine_close(engine))
		timing_die("regions", "wh_engine_close");
	free(peers);
	return steps;
}

/* ---- the owner's process -------------------------------------------------------------------- */

static void owner_register(struct wh_engine *engine, char *memory, size_t index, const char *name,
			   struct wh_region **region)
{
	struct wh_region_options options = { .size = sizeof(options),
					     .name = name,
					     .access = WH_ACCESS_READ | WH_ACCESS_WRITE };

	if (wh_region_register(engine, memory + index * LENGTH, LENGTH, &options, region))
		timing_die("regions", "wh_region_register");
}

static json_t *owner_changes(struct wh_engine *engine, char *memory, size_t index)
{
	static struct step step = { .name = "register, unregister", .count = CHANGES };
	unsigned long long before = loopback_settled();
	struct wh_region *region;

	for (unsigned i = 0; i < CHANGES; i++) {
		double begun = timing_now();

		owner_register(engine, memory, index, NULL, &region);
		if (wh_region_unregister(region))
			timing_die("regions", "wh_region_unregister");
		step.ns[i] = timing_now() - begun;
	}
	step.bytes = loopback_settled() - before;
	return step_report(&step);
}

static void owner_run(unsigned count, int urls, int in, int out, int results)
{
	struct wh_engine_options options = { .size = sizeof(options),
					     .listen = "127.0.0.1:0",
					     .config = settings };
	struct wh_region **regions = calloc(count, sizeof(struct wh_region *));
	char *memory = calloc(count + 1, LENGTH), *text;
	struct wh_engine *engine;
	json_t *row;

	if (!regions || !memory || wh_engine_open(&options, &engine))
		timing_die("regions", "engine");
	for (unsigned i = 0; i < count; i++)
		owner_register(engine, memory, i, i ? NULL : "wanted", &regions[i]);
	if (dprintf(urls, "%s\n", wh_engine_url(engine)) < 0)
		timing_die("regions", "pipe");
	hear(in);
	row = owner_changes(engine, memory, count);
	text = json_dumps(row, 0);
	if (!text || dprintf(results, "%s", text) < 0)
		timing_die("regions", "pipe");
	close(results);
	free(text);
	json_decref(row);
	say(out);
	hear(in);
	for (unsigned i = 0; i < count; i++)
		wh_region_unregister(regions[i]);
	wh_engine_close(engine);
	free(regions);
	free(memory);
}

int main(int argc, char **argv)
{
	unsigned regions = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
	unsigned peers = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;
	int to[2], from[2], urls[2], results[2], status = 0;
	json_t *steps, *row, *all;
	char url[256] = "", *end;
	FILE *file;
	pid_t owner;

	if (!regions || !peers || regions > MOST || peers > MOST || argc > 4) {
		fprintf(stderr, "usage: regions REGIONS PEERS [FILE]\n");
		return 2;
	}
	if (pipe(to) || pipe(from) || pipe(urls) || pipe(results))
		timing_die("regions", "pipe");
	fflush(stdout);
	owner = fork();
	if (!owner) {
		close(results[0]);
		owner_run(regions, urls[1], to[0], from[1], results[1]);
		return 0;
	}
	/* So that reading ends if the owner does. */
	close(results[1]);
	close(urls[1]);
	close(from[1]);
	if (owner < 0 || read(urls[0], url, sizeof(url) - 1) <= 0)
		timing_die("regions", "the owner's process");
	end = strchr(url, '\n');
	if (end)
		*end = 0;
	steps = peers_run(url, peers, from[0], to[1]);
	file = fdopen(results[0], "r");
	row = file ? json_loadf(file, 0, NULL) : NULL;
	if (!row)
		timing_die("regions", "the owner's figures");
	fclose(file);
	json_array_append_new(steps, row);
	say(to[1]);
	waitpid(owner, &status, 0);
	all = json_pack("{s:i, s:o, s:i, s:i, s:o}", "schema", 1, "environment",
			machine_describe_run(NULL, settings), "regions", (int)regions, "peers",
			(int)peers, "steps", steps);
	if (argc > 3 && json_dump_file(all, argv[3], JSON_INDENT(1) | JSON_REAL_PRECISION(6))) {
		fprintf(stderr, "regions: cannot write %s\n", argv[3]);
		status = 1;
	}
	json_decref(all);
	return status ? 1 : 0;
}
