/* SPDX-License-Identifier: Apache-2.0 */
/* Many engines on one machine: the command line, the order of the measurements, the watching
 * process. */
#include "many.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct watch {
	struct many many;
	struct many_worker *workers;
	struct many_results results;
};

/* ---- the command line ------------------------------------------------------------------------ */

static void many_usage(FILE *out)
{
	fprintf(out,
		"usage: many --registry URL [OPTION...]\n"
		"\n"
		"Opens many engines that find each other in a registry, connects each to others at "
		"random, moves\n"
		"and verifies bytes, and restarts all engines, one process after the other, while "
		"all others go on.\n"
		"Every second process is killed. Reports what an engine and a peer cost.\n"
		"\n"
		"  --engines N     engines (1000)\n"
		"  --processes N   processes with these engines (40)\n"
		"  --degree N      peers that each engine opens (16)\n"
		"  --bytes N       bytes of a transfer (1024)\n"
		"  --rounds N      writes and reads of each peer before the restart (4)\n"
		"  --rate N        transfers a second, all together, during the restart (5000)\n"
		"  --peers N       peers that one engine opens of another, to measure a peer "
		"(1000); 0: none\n"
		"  --idle S        seconds without transfers, to measure idle engines (5); 0: "
		"none\n"
		"  --no-restart    leave out the restart\n"
		"  --config K=V    a setting of the engines; by default transports, connections, "
		"threads and\n"
		"                  lease are tcp, 1, 1 and 2 s\n"
		"  --json FILE     write all results\n"
		"  --verbose       print the engines' logs\n"
		"\n"
		"Exit status: 0; 1 if a transfer had wrong bytes or anything failed; 64 for a "
		"wrong command line.\n");
}

static bool parse_number(const char *text, uint32_t least, uint32_t most, uint32_t *out)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	if (*text < '0' || *text > '9' || *end || value < least || value > most)
		return false;
	*out = (uint32_t)value;
	return true;
}

/* False: the value is not valid. */
static bool option_set(struct many_options *options, int which, const char *value)
{
	size_t n = 0;

	switch (which) {
	case 'e':
		return parse_number(value, 2, 100000, &options->engines);
	case 'p':
		return parse_number(value, 2, 1000, &options->processes);
	case 'd':
		return parse_number(value, 1, 255, &options->degree);
	case 'b':
		return parse_number(value, 8, 1 << 20, &options->bytes) && options->bytes % 8 == 0;
	case 'r':
		return parse_number(value, 1, 1000000, &options->rounds);
	case 'R':
		return parse_number(value, 1, 1000000, &options->rate);
	case 'P':
		return parse_number(value, 0, 15000, &options->peers);
	case 'i':
		return parse_number(value, 0, 3600, &options->idle);
	case 'c':
		while (options->config[n])
			n++;
		if (n == MANY_CONFIG || !strchr(value, '='))
			return false;
		options->config[n] = value;
		return true;
	case 'g':
		options->registry = value;
		return true;
	case 'j':
		options->json = value;
		return true;
	default:
		return false;
	}
}

static bool options_parse(int argc, char **argv, struct many_options *options)
{
	static const struct option table[] = {
		{ "engines", 1, NULL, 'e' }, { "processes", 1, NULL, 'p' },
		{ "degree", 1, NULL, 'd' },  { "bytes", 1, NULL, 'b' },
		{ "rounds", 1, NULL, 'r' },  { "rate", 1, NULL, 'R' },
		{ "peers", 1, NULL, 'P' },   { "idle", 1, NULL, 'i' },
		{ "config", 1, NULL, 'c' },  { "registry", 1, NULL, 'g' },
		{ "json", 1, NULL, 'j' },    { "no-restart", 0, NULL, 'n' },
		{ "verbose", 0, NULL, 'v' }, { "help", 0, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	int which, at = 0;

	/* Options on the command line come later in the list and win. */
	*options = (struct many_options){
		.engines = 1000,
		.processes = 40,
		.degree = 16,
		.bytes = 1024,
		.rounds = 4,
		.rate = 5000,
		.peers = 1000,
		.idle = 5,
		.restart = true,
		.config = { "transports=tcp", "connections=1", "threads=1", "lease=2s" },
	};
	while ((which = getopt_long(argc, argv, "h", table, &at)) >= 0) {
		if (which == 'h') {
			many_usage(stdout);
			exit(0);
		}
		if (which == 'n')
			options->restart = false;
		else if (which == 'v')
			options->verbose = true;
		else if (which == '?')
			return false;
		else if (!option_set(options, which, optarg)) {
			fprintf(stderr, "many: --%s cannot be \"%s\"\n", table[at].name, optarg);
			return false;
		}
	}
	if (optind < argc || !options->registry || options->processes > options->engines ||
	    options->degree >= options->engines) {
		fprintf(stderr, "many: %s\n",
			optind < argc      ? "it takes options only" :
			!options->registry ? "--registry is missing" :
					     "more processes, or peers of each, than engines");
		return false;
	}
	return true;
}

/* ---- shared memory --------------------------------------------------------------------------- */

/* Repeatable, so that a run can be repeated. */
static uint32_t random_below(uint64_t *state, uint32_t bound)
{
	*state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
	return (uint32_t)((*state >> 33) % bound);
}

/* In every permutation each engine opens its successor on one cycle through all, so none opens
 * itself. */
static bool draw_mesh(struct many *many)
{
	const struct many_options *options = &many->options;
	uint32_t *cycle = calloc(options->engines, sizeof(*cycle));
	uint64_t state = 7;

	if (!cycle)
		return false;
	for (uint32_t e = 0; e < options->engines; e++)
		cycle[e] = e;
	for (uint32_t k = 0; k < options->degree; k++) {
		for (uint32_t e = options->engines - 1; e; e--) {
			uint32_t other = random_below(&state, e + 1), kept = cycle[e];

			cycle[e] = cycle[other];
			cycle[other] = kept;
		}
		for (uint32_t e = 0; e < options->engines; e++)
			many_link(many, cycle[e], k)->target = cycle[(e + 1) % options->engines];
	}
	free(cycle);
	return true;
}

static void *memory_share(size_t length)
{
	void *memory =
		mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

static bool watch_prepare(struct watch *watch)
{
	struct many *many = &watch->many, *all;
	const struct many_options *options = &many->options;
	size_t lives = (size_t)options->engines * MANY_LIVES;

	many->lives = memory_share(lives * sizeof(*many->lives));
	many->links =
		memory_share((size_t)options->engines * options->degree * sizeof(*many->links));
	many->errors = memory_share(MANY_ERRNO * sizeof(*many->errors));
	many->bytes = memory_share(lives * many_region(options));
	all = memory_share(sizeof(*all) + MANY_TEXT);
	watch->workers = calloc(options->processes, sizeof(*watch->workers));
	return many->lives && many->links && many->errors && many->bytes && watch->workers && all &&
	       (many->text = (char *)(all + 1)) && draw_mesh(many);
}

/* ---- workers --------------------------------------------------------------------------------- */

static bool worker_start(struct watch *watch, uint32_t number, uint32_t life)
{
	const struct many_options *options = &watch->many.options;
	struct many_worker *worker = &watch->workers[number];
	int pair[2];

	worker->number = number;
	worker->life = life;
	worker->first = (uint32_t)((uint64_t)options->engines * number / options->processes);
	worker->count = (uint32_t)((uint64_t)options->engines * (number + 1) / options->processes) -
			worker->first;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return false;
	worker->fd = pair[1];
	fflush(NULL);
	worker->pid = fork();
	if (!worker->pid) {
		/* The other workers' sockets would hide from them that this process has ended. */
		for (uint32_t i = 0; i < options->processes; i++)
			if (i != number && watch->workers[i].pid)
				close(watch->workers[i].fd);
		close(pair[0]);
		_exit(many_worker(&watch->many, worker));
	}
	close(pair[1]);
	worker->fd = pair[0];
	return worker->pid > 0;
}

static bool worker_ask(struct many_worker *worker, uint32_t what, uint32_t count)
{
	struct many_order order = { .what = what, .count = count };

	return send(worker->fd, &order, sizeof(order), MSG_NOSIGNAL) == sizeof(order);
}

static bool worker_hear(struct many_worker *worker, struct many_answer *answer)
{
	if (recv(worker->fd, answer, sizeof(*answer), 0) != sizeof(*answer)) {
		fprintf(stderr, "many: process %u has died\n", worker->number);
		return false;
	}
	if (answer->error)
		fprintf(stderr, "many: %s: %s\n", strerrorname_np(-answer->error), answer->text);
	return !answer->error;
}

/* Give all workers the same order at the same time. */
static bool workers_order(struct watch *watch, uint32_t what, uint32_t count)
{
	struct many_answer answer;
	bool good = true;

	for (uint32_t i = 0; i < watch->many.options.processes; i++)
		good &= worker_ask(&watch->workers[i], what, count);
	for (uint32_t i = 0; i < watch->many.options.processes && what != MANY_RUN; i++)
		good &= worker_hear(&watch->workers[i], &answer);
	return good;
}

static void worker_end(struct many_worker *worker)
{
	waitpid(worker->pid, NULL, 0);
	close(worker->fd);
	worker->pid = 0;
}

/* ---- what the kernel counts ------------------------------------------------------------------ */

/* The number after a word in a file of /proc. */
static double proc_number(const char *path, const char *word)
{
	FILE *file = fopen(path, "re");
	char line[256];
	double value = 0;

	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, word, strlen(word)))
			value = strtod(line + strlen(word), NULL);
	if (file)
		fclose(file);
	return value;
}

/* Memory that this process shares with no other. */
static double worker_resident(const struct many_worker *worker)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)worker->pid);
	return proc_number(path, "Anonymous:") * 1024;
}

static double resident_all(const struct watch *watch)
{
	double sum = 0;

	for (uint32_t i = 0; i < watch->many.options.processes; i++)
		sum += worker_resident(&watch->workers[i]);
	return sum;
}

/* Of the whole machine, other programs included. */
static double kernel_bytes(void)
{
	return proc_number("/proc/meminfo", "Slab:") * 1024;
}

static double cpu_seconds(const struct watch *watch)
{
	double ticks = 0;

	for (uint32_t i = 0; i < watch->many.options.processes; i++) {
		char path[64], text[512] = "", *at;
		unsigned long user = 0, system = 0;
		FILE *file;

		snprintf(path, sizeof(path), "/proc/%d/stat", (int)watch->workers[i].pid);
		file = fopen(path, "re");
		if (file && fgets(text, sizeof(text), file) && (at = strrchr(text, ')')) &&
		    sscanf(at + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
			   &system) == 2)
			ticks += (double)(user + system);
		if (file)
			fclose(file);
	}
	return ticks / (double)sysconf(_SC_CLK_TCK);
}

static double seconds_since(int64_t begun)
{
	return (double)(many_now() - begun) / MANY_SECOND;
}

/* ---- the steps ------------------------------------------------------------------------------- */

static bool open_engines(struct watch *watch)
{
	struct many_results *results = &watch->results;
	const struct many_options *options = &watch->many.options;
	char path[64];
	double before = resident_all(watch);
	int64_t begun = many_now();

	results->process_before_bytes = before / options->processes;
	if (!workers_order(watch, MANY_OPEN, 0))
		return false;
	results->open_seconds = seconds_since(begun);
	/* An engine's page with the badge and its memory for transfers belong to the benchmark;
	 * nothing has touched the latter. */
	results->engine_bytes = (resident_all(watch) - before) / options->engines;
	snprintf(path, sizeof(path), "/proc/%d/status", (int)watch->workers[0].pid);
	results->engine_threads = (proc_number(path, "Threads:") - 1) / watch->workers[0].count;
	printf("engines       %u in %u processes, opened and registered in %.1f s: %.0f KiB and "
	       "%.0f threads "
	       "each\n",
	       options->engines, options->processes, results->open_seconds,
	       results->engine_bytes / 1024, results->engine_threads);
	return true;
}

/* One engine opens many peers of another: the cost of a peer on either side. */
static bool measure_peers(struct watch *watch)
{
	struct many_worker *near = &watch->workers[0], *far = &watch->workers[1];
	struct many_results *results = &watch->results;
	uint32_t count = watch->many.options.peers;
	struct many_order order = { MANY_OPEN_PEERS, near->first, far->first, count };
	struct many_answer answer;
	double near_before = worker_resident(near), far_before = worker_resident(far),
	       kernel = kernel_bytes();

	if (!count)
		return true;
	if (send(near->fd, &order, sizeof(order), MSG_NOSIGNAL) != sizeof(order) ||
	    !worker_hear(near, &answer))
		return false;
	results->initiator_bytes = (worker_resident(near) - near_before) / count;
	results->owner_bytes = (worker_resident(far) - far_before) / count;
	results->kernel_bytes = (kernel_bytes() - kernel) / count;
	results->alone_us =
		(struct many_series){ (double)answer.value[0], (double)answer.value[1],
				      (double)answer.value[2], (double)answer.value[3] };
	printf("a peer        connected in %.2f ms (half of them less than %.2f, 99 %% than %.2f); "
	       "%.1f KiB "
	       "here, %.1f KiB there, %.1f KiB in the kernel\n",
	       results->alone_us.mean / 1e3, results->alone_us.p50 / 1e3,
	       results->alone_us.p99 / 1e3, results->initiator_bytes / 1024,
	       results->owner_bytes / 1024, results->kernel_bytes / 1024);
	return worker_ask(near, MANY_CLOSE_PEERS, 0) && worker_hear(near, &answer);
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static bool connect_mesh(struct watch *watch)
{
	struct many_results *results = &watch->results;
	const struct many_options *options = &watch->many.options;
	size_t links = (size_t)options->engines * options->degree;
	double before = resident_all(watch), sum = 0, *us = calloc(links, sizeof(*us));
	int64_t begun = many_now();

	if (!us || !workers_order(watch, MANY_CONNECT, 0)) {
		free(us);
		return false;
	}
	results->mesh_seconds = seconds_since(begun);
	results->mesh_peer_bytes = (resident_all(watch) - before) / (double)links;
	for (size_t i = 0; i < links; i++)
		sum += us[i] = atomic_load(&watch->many.links[i].connect_us);
	qsort(us, links, sizeof(*us), by_size);
	results->mesh_us = (struct many_series){ sum / (double)links, us[links / 2],
						 us[links * 99 / 100], us[links - 1] };
	free(us);
	printf("mesh          %zu peers in %.1f s, %u at a time: %.2f ms of the machine each; %.1f "
	       "KiB on both "
	       "sides together\n",
	       links, results->mesh_seconds, options->processes,
	       results->mesh_seconds * 1e3 / (double)links, results->mesh_peer_bytes / 1024);
	return true;
}

static void measure_idle(struct watch *watch)
{
	double before = cpu_seconds(watch);
	int64_t begun = many_now();

	if (!watch->many.options.idle)
		return;
	sleep(watch->many.options.idle);
	watch->results.idle_cpus = (cpu_seconds(watch) - before) / seconds_since(begun);
	printf("idle          %.2f CPUs, all together\n", watch->results.idle_cpus);
}

static bool measure_move(struct watch *watch)
{
	struct many_results *results = &watch->results;
	const struct many_options *options = &watch->many.options;
	double links = (double)options->engines * options->degree, before = resident_all(watch);
	int64_t begun = many_now();

	if (!workers_order(watch, MANY_MOVE, options->rounds))
		return false;
	results->move_seconds = seconds_since(begun);
	results->moved_transfers = 2 * links * options->rounds;
	results->moved_bytes = results->moved_transfers * options->bytes;
	results->active_peer_bytes = (resident_all(watch) - before) / links;
	printf("data          %.0f transfers of %u bytes in %.1f s, verified; a peer with a data "
	       "connection takes "
	       "%.1f KiB more on both sides\n",
	       results->moved_transfers, options->bytes, results->move_seconds,
	       results->active_peer_bytes / 1024);
	return true;
}

/* ---- the restart ----------------------------------------------------------------------------- */

static uint32_t life_now(const struct watch *watch, uint32_t engine)
{
	const struct many_worker *worker = watch->workers;

	while (engine >= worker->first + worker->count)
		worker++;
	return worker->life;
}

/* Every link from and to these engines has moved something since they restarted. */
static bool links_recovered(struct watch *watch, const struct many_worker *worker)
{
	struct many *many = &watch->many;

	for (uint32_t e = 0; e < many->options.engines; e++)
		for (uint32_t k = 0; k < many->options.degree; k++) {
			struct many_link *link = many_link(many, e, k);

			if ((e - worker->first < worker->count ||
			     link->target - worker->first < worker->count) &&
			    !atomic_load(
				    &link->ledger[life_now(watch, e)][life_now(watch, link->target)]
					     .completed))
				return false;
		}
	return true;
}

static bool restart_one(struct watch *watch, struct many_worker *worker, bool kills)
{
	struct many_answer answer;
	int64_t begun;
	double ms;

	if (kills) {
		for (uint32_t e = worker->first; e < worker->first + worker->count; e++)
			atomic_store(&many_life(&watch->many, e, worker->life)->killed, true);
		kill(worker->pid, SIGKILL);
	} else if (!worker_ask(worker, MANY_STOP, 0) || !worker_hear(worker, &answer) ||
		   !worker_ask(worker, MANY_CLOSE, 0) || !worker_hear(worker, &answer)) {
		return false;
	}
	worker_end(worker);
	if (!worker_start(watch, worker->number, worker->life + 1) ||
	    !worker_ask(worker, MANY_OPEN, 0) || !worker_hear(worker, &answer) ||
	    !worker_ask(worker, MANY_RUN, 0))
		return false;
	begun = many_now();
	while (!links_recovered(watch, worker)) {
		if (many_now() - begun > 2 * MANY_PATIENCE) {
			fprintf(stderr,
				"many: process %u was restarted, and not all of its engines' peers "
				"have "
				"found each other again\n",
				worker->number);
			return false;
		}
		nanosleep(&(struct timespec){ 0, 20 * MANY_MS }, NULL);
	}
	ms = (double)(many_now() - begun) / MANY_MS;
	if (ms > watch->results.recover_most_ms)
		watch->results.recover_most_ms = ms;
	watch->results.restarted += worker->count;
	return true;
}

static bool restart_all(struct watch *watch)
{
	struct many_results *results = &watch->results;
	struct many *many = &watch->many;
	int64_t begun = many_now();
	bool good = workers_order(watch, MANY_RUN, 0);

	for (uint32_t i = 0; i < many->options.processes && good; i++)
		good = restart_one(watch, &watch->workers[i], i % 2);
	good = good && workers_order(watch, MANY_STOP, 0);
	results->restart_seconds = seconds_since(begun);
	return good;
}

/* Sum up all transfers ever submitted. */
static void sum_up(struct watch *watch, bool good)
{
	struct many_results *results = &watch->results;
	struct many *many = &watch->many;

	if (good) /* otherwise some are still in flight */
		many_audit(many);
	for (uint32_t e = 0; e < many->options.engines; e++)
		for (uint32_t life = 0; life < MANY_LIVES; life++) {
			struct many_life *at = many_life(many, e, life);

			results->submitted += (double)atomic_load(&at->submitted);
			results->completed += (double)atomic_load(&at->completed);
			results->failed += (double)atomic_load(&at->failed);
			results->hung += (double)atomic_load(&at->hung);
			results->wrong += (double)atomic_load(&at->wrong);
		}
	results->unreported = results->submitted - results->completed - results->failed;
	if (results->restarted > 0)
		printf("restart       %.0f engines in %.1f s, every second process by kill -9; all "
		       "peers were "
		       "together again %.1f s after the last was open, at most\n",
		       results->restarted, results->restart_seconds,
		       results->recover_most_ms / 1e3);
	printf("transfers     %.0f submitted: %.0f complete, %.0f failed with an error, "
	       "%.0f of killed engines; %.0f without an end, %.0f with wrong bytes\n",
	       results->submitted, results->completed, results->failed, results->unreported,
	       results->hung, results->wrong);
	if (results->wrong > 0)
		printf("first wrong   %s\n", many->text);
	for (int i = 0; i < MANY_ERRNO; i++)
		if (atomic_load(&many->errors[i]))
			printf("failed        %llu with %s\n",
			       (unsigned long long)atomic_load(&many->errors[i]),
			       i ? strerrorname_np(i) : "another error");
}

static bool all_steps(struct watch *watch)
{
	bool good = true;

	for (uint32_t i = 0; i < watch->many.options.processes && good; i++)
		good = worker_start(watch, i, 0);
	good = good && open_engines(watch) && measure_peers(watch) && connect_mesh(watch);
	if (good)
		measure_idle(watch);
	good = good && measure_move(watch) && (!watch->many.options.restart || restart_all(watch));
	sum_up(watch, good);
	return (good && workers_order(watch, MANY_CLOSE, 0)) && watch->results.hung <= 0 &&
	       watch->results.wrong <= 0;
}

int main(int argc, char **argv)
{
	struct watch watch = { .results = { 0 } };
	struct rlimit files;
	bool good;

	if (!options_parse(argc, argv, &watch.many.options)) {
		many_usage(stderr);
		return 64;
	}
	if (!getrlimit(RLIMIT_NOFILE, &files)) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!watch_prepare(&watch)) {
		fprintf(stderr, "many: no memory\n");
		return 1;
	}
	good = all_steps(&watch);
	for (uint32_t i = 0; i < watch.many.options.processes; i++)
		if (watch.workers[i].pid > 0) {
			if (!good)
				kill(watch.workers[i].pid, SIGKILL);
			worker_end(&watch.workers[i]);
		}
	if (watch.many.options.json && many_report(&watch.many, &watch.results))
		good = false;
	free(watch.workers);
	return good ? 0 : 1;
}
