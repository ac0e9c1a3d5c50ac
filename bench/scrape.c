/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a scrape of wherry exporter takes if an engine has many peers. The peers are engines in
 * processes of their own, and the engine has written to and read from each. For comparison a plain
 * server sends the same number of bytes with write(); the two are measured in turns.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <wherry/wherry.h>

#include "bench/machine.h"

#define PEERS_MOST 8000
#define PROCESSES 20
#define SETS 5 /* the best one counts: other programs may be busy on this machine */
#define SCRAPES 11 /* in a set, whose median counts */
#define BYTES 4096 /* of a transfer */
#define ASKED_MS 50.0
#define ANSWER_MOST ((size_t)64 << 20)

static const char *const settings[] = { "transports=tcp,shm", "connections=1", "threads=1", NULL };

/* Shared by all processes. */
struct shared {
	_Atomic uint32_t ready; /* engines that listen */
	_Atomic bool failed;
	char url[PEERS_MOST][64];
};

struct link {
	struct wh_peer *peer;
	struct wh_batch *batch[4]; /* a write and a read by each transport */
};

struct bench {
	uint32_t peers;
	const char *wherry, *json;
	struct shared *shared;
	pid_t processes[PROCESSES];
	struct wh_engine *engine;
	struct wh_region *region;
	unsigned char *memory;
	struct link *links;
	uint32_t transports; /* that each peer was used by */
	pid_t exporter;
	uint16_t port; /* the exporter's */
	char *answer; /* the last one */
	size_t length;
	_Atomic bool stop;
	_Atomic uint64_t rounds; /* of the thread that moves bytes */
	_Atomic bool broken; /* that thread has ended with an error */
};

static int scrape_fail(const char *what, int error)
{
	fprintf(stderr, "scrape: %s: %s\n", what,
		error < 0 && *wh_error_text() ? wh_error_text() : strerror(abs(error)));
	return 1;
}

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* ---- the other side -------------------------------------------------------------------------- */

static int open_engine(struct shared *shared, uint32_t number)
{
	struct wh_region_options box = { .size = sizeof(box),
					 .name = "box",
					 .access = WH_ACCESS_READ | WH_ACCESS_WRITE };
	struct wh_engine_options options = { .size = sizeof(options) };
	const char *config[8] = { settings[0], settings[1], settings[2], "observe=off" };
	struct wh_engine *engine;
	struct wh_region *region;
	char name[32];
	void *memory = aligned_alloc(BYTES, BYTES);
	int error;

	snprintf(name, sizeof(name), "node-%u", number);
	options.name = name;
	options.config = config;
	error = memory ? wh_engine_open(&options, &engine) : -ENOMEM;
	if (!error)
		error = wh_region_register(engine, memory, BYTES, &box, &region);
	if (!error)
		snprintf(shared->url[number], sizeof(shared->url[0]), "%s", wh_engine_url(engine));
	return error;
}

/* Serve until killed. */
static void peer_serve(struct shared *shared, uint32_t first, uint32_t end)
{
	for (uint32_t i = first; i < end; i++) {
		int error = open_engine(shared, i);

		if (error) {
			scrape_fail("an engine", error);
			atomic_store(&shared->failed, true);
			return;
		}
		atomic_fetch_add(&shared->ready, 1);
	}
	for (;;)
		pause();
}

static int start_processes(struct bench *bench)
{
	for (uint32_t i = 0; i < PROCESSES; i++) {
		bench->processes[i] = fork();
		if (bench->processes[i] < 0)
			return scrape_fail("fork", errno);
		if (!bench->processes[i]) {
			peer_serve(bench->shared, bench->peers * i / PROCESSES,
				   bench->peers * (i + 1) / PROCESSES);
			_exit(1);
		}
	}
	while (atomic_load(&bench->shared->ready) < bench->peers &&
	       !atomic_load(&bench->shared->failed))
		usleep(10000);
	return atomic_load(&bench->shared->failed);
}

/* ---- this side ------------------------------------------------------------------------------- */

static int link_prepare(struct bench *bench, struct link *link, const char *transport, uint32_t op,
			struct wh_batch **out)
{
	struct wh_batch_options options = { .size = sizeof(options), .require = transport };
	struct wh_transfer transfer = { .local = bench->region, .length = BYTES, .op = op };
	struct wh_remote remote;
	int error = wh_peer_find(link->peer, "box", WH_ANSWER, &remote);

	transfer.remote = remote.id;
	if (!error)
		error = wh_batch_new(link->peer, &options, out);
	if (!error)
		error = wh_batch_add(*out, &transfer, 1);
	return error;
}

static int batch_run(struct wh_batch *batch)
{
	int error = wh_batch_submit(batch);

	if (!error)
		error = wh_batch_wait_for(batch, WH_FOREVER);
	return error ? error : wh_batch_status(batch);
}

static int connect_one(struct bench *bench, uint32_t number)
{
	static const char *const transports[] = { "tcp", "shm" };
	struct link *link = &bench->links[number];
	int error = wh_peer_open(bench->engine, bench->shared->url[number], NULL, &link->peer);

	for (uint32_t i = 0; i < 4 && !error; i++) {
		error = link_prepare(bench, link, transports[i / 2], i % 2 ? WH_READ : WH_WRITE,
				     &link->batch[i]);
		for (uint32_t k = 0; k < 3 && !error; k++)
			error = batch_run(link->batch[i]);
	}
	return error;
}

static int connect_all(struct bench *bench, const char *directory)
{
	struct wh_engine_options options = { .size = sizeof(options),
					     .name = "scraped",
					     .listen = "none" };
	const char *config[8] = { settings[0], settings[1], settings[2] };
	char observe[128];
	int error;

	snprintf(observe, sizeof(observe), "observe=%s", directory);
	config[3] = observe;
	options.config = config;
	bench->links = calloc(bench->peers, sizeof(*bench->links));
	bench->memory = aligned_alloc(BYTES, BYTES);
	if (!bench->links || !bench->memory)
		return scrape_fail("memory", ENOMEM);
	error = wh_engine_open(&options, &bench->engine);
	if (!error)
		error = wh_region_register(bench->engine, bench->memory, BYTES, NULL,
					   &bench->region);
	for (uint32_t i = 0; i < bench->peers && !error; i++)
		error = connect_one(bench, i);
	return error ? scrape_fail("a peer", error) : 0;
}

/* Move bytes during the scrapes. */
static void *keep_moving(void *arg)
{
	struct bench *bench = arg;

	for (uint32_t i = 0; !atomic_load(&bench->stop); i++) {
		const struct link *link = &bench->links[i / 4 % bench->peers];

		int error = batch_run(link->batch[i % 4]);

		if (error) {
			scrape_fail("a batch", error);
			atomic_store(&bench->broken, true);
			break;
		}
		atomic_fetch_add(&bench->rounds, 1);
	}
	return NULL;
}

/* ---- scraping -------------------------------------------------------------------------------- */

static int start_exporter(struct bench *bench, const char *directory)
{
	char line[160] = "", *colon;
	int out[2];
	FILE *said;

	if (pipe(out))
		return scrape_fail("pipe", errno);
	bench->exporter = fork();
	if (bench->exporter < 0)
		return scrape_fail("fork", errno);
	if (!bench->exporter) {
		dup2(out[1], STDOUT_FILENO);
		close(out[0]);
		close(out[1]);
		execl(bench->wherry, bench->wherry, "exporter", "--metrics", "127.0.0.1:0",
		      "--observe", directory, NULL);
		_exit(127);
	}
	close(out[1]);
	said = fdopen(out[0], "r");
	if (!said || !fgets(line, sizeof(line), said) || !(colon = strrchr(line, ':'))) {
		fprintf(stderr, "scrape: %s exporter did not say where it listens\n",
			bench->wherry);
		return 1;
	}
	bench->port = (uint16_t)strtoul(colon + 1, NULL, 10);
	fclose(said);
	return 0;
}

/* Send a request and read the whole answer. Returns ms, or a negative number on error. */
static double scrape_fetch(struct bench *bench, uint16_t port)
{
	static const char question[] =
		"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_port = htons(port),
				       .sin_addr = { htonl(INADDR_LOOPBACK) } };
	double begun = now_ms();
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ssize_t got = -1;

	bench->length = 0;
	if (fd >= 0 && !connect(fd, (struct sockaddr *)&address, sizeof(address)) &&
	    write(fd, question, sizeof(question) - 1) == (ssize_t)sizeof(question) - 1)
		while ((got = read(fd, bench->answer + bench->length,
				   ANSWER_MOST - bench->length)) > 0)
			bench->length += (size_t)got;
	close(fd);
	return got ? -1 : now_ms() - begun;
}

/* The limit: a server that sends the same bytes to every client. */
struct plain {
	int fd;
	const char *bytes;
	size_t length;
};

static void *serve_plainly(void *arg)
{
	const struct plain *plain = arg;
	char question[512];
	int fd;

	while ((fd = accept(plain->fd, NULL, NULL)) >= 0) {
		size_t sent = 0;
		ssize_t more = read(fd, question, sizeof(question));

		while (more > 0 && sent < plain->length) {
			more = write(fd, plain->bytes + sent, plain->length - sent);
			sent += more > 0 ? (size_t)more : 0;
		}
		close(fd);
	}
	return NULL;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double scrape_median(double *values, size_t count)
{
	qsort(values, count, sizeof(*values), by_value);
	return values[count / 2];
}

struct figures {
	double scrape[SETS], limit[SETS]; /* medians, ms */
	double worst; /* of all scrapes */
};

static int scrape_measure(struct bench *bench, uint16_t plain, struct figures *out)
{
	for (int set = 0; set < SETS; set++) {
		double scrapes[SCRAPES], limits[SCRAPES];

		for (int i = 0; i < SCRAPES; i++) {
			limits[i] = scrape_fetch(bench, plain);
			scrapes[i] = scrape_fetch(bench, bench->port);
			if (limits[i] < 0 || scrapes[i] < 0)
				return scrape_fail("a scrape", EIO);
			out->worst = scrapes[i] > out->worst ? scrapes[i] : out->worst;
		}
		out->scrape[set] = scrape_median(scrapes, SCRAPES);
		out->limit[set] = scrape_median(limits, SCRAPES);
	}
	qsort(out->scrape, SETS, sizeof(double), by_value);
	qsort(out->limit, SETS, sizeof(double), by_value);
	return 0;
}

/* Check that the answer is complete: each peer once, with each transport. */
static int answer_check(const struct bench *bench, uint32_t *lines)
{
	uint32_t connected = 0, ways = 0;
	char *end, *at = bench->answer;

	bench->answer[bench->length] = '\0';
	for (*lines = 0; (end = strchr(at, '\n')); at = end + 1) {
		++*lines;
		connected += !strncmp(at, "wherry_peer_connected{", 22) && end[-1] == '1';
		ways += !strncmp(at, "wherry_peer_attempts_total{", 27);
	}
	if (strncmp(bench->answer, "HTTP/1.1 200", 12) == 0 && connected == bench->peers &&
	    ways == 2 * bench->peers)
		return 0;
	fprintf(stderr, "scrape: the answer has %u peers and %u transports of them\n", connected,
		ways);
	return 1;
}

/* ---- the whole run --------------------------------------------------------------------------- */

static json_t *figures_to_json(const struct figures *figures, bool moving, double seconds,
			       uint64_t moved)
{
	json_t *object = json_pack("{s:b, s:f, s:f, s:f, s:f, s:f, s:b}", "while_moving", moving,
				   "scrape_ms", figures->scrape[0], "scrape_worst_set_ms",
				   figures->scrape[SETS - 1], "scrape_most_ms", figures->worst,
				   "limit_ms", figures->limit[0], "asked_ms", ASKED_MS, "within",
				   figures->scrape[0] < ASKED_MS);

	if (moving)
		json_object_set_new(object, "batches_per_second",
				    json_real((double)moved / seconds));
	return object;
}

static int scrape_report(const struct bench *bench, json_t *rows, uint32_t lines, size_t bytes)
{
	json_t *all = json_pack("{s:i, s:o, s:i, s:i, s:i, s:i, s:s, s:s, s:i, s:i, s:o}", "schema",
				1, "environment", machine_describe_run(NULL, settings), "peers",
				(int)bench->peers, "peer_processes", PROCESSES, "answer_bytes",
				(int)bytes, "answer_lines", (int)lines, "what",
				"wherry exporter, from connect() to the last byte", "limit_name",
				"the same bytes by write() of a thread", "sets", SETS,
				"scrapes_in_a_set", SCRAPES, "rows", rows);
	int error = bench->json ? json_dump_file(all, bench->json,
						 JSON_INDENT(2) | JSON_REAL_PRECISION(6)) :
				  0;

	json_decref(all);
	return error ? scrape_fail(bench->json, errno) : 0;
}

static int scrape_run(struct bench *bench, const char *directory)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t size = sizeof(address);
	struct plain plain = { .fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) };
	json_t *rows = json_array();
	pthread_t thread, mover;
	uint32_t lines = 0;
	int code = connect_all(bench, directory) || start_exporter(bench, directory);

	if (code)
		return code;
	if (scrape_fetch(bench, bench->port) < 0 || answer_check(bench, &lines))
		return 1;
	plain.length = bench->length;
	plain.bytes = strndup(bench->answer, bench->length);
	if (!plain.bytes || plain.fd < 0 || bind(plain.fd, (struct sockaddr *)&address, size) ||
	    listen(plain.fd, 16) || getsockname(plain.fd, (struct sockaddr *)&address, &size) ||
	    pthread_create(&thread, NULL, serve_plainly, &plain))
		return scrape_fail("the limit's server", errno);
	for (int moving = 0; moving < 2 && !code; moving++) {
		struct figures figures = { .worst = 0 };
		double begun, seconds;

		if (moving && pthread_create(&mover, NULL, keep_moving, bench))
			return scrape_fail("a thread", EAGAIN);
		/* On a busy machine the thread may be scheduled late: bytes move from the first
		 * scrape on. */
		while (moving && !atomic_load(&bench->rounds) && !atomic_load(&bench->broken))
			usleep(100);
		begun = now_ms();
		code = scrape_measure(bench, ntohs(address.sin_port), &figures);
		seconds = (now_ms() - begun) / 1e3;
		atomic_store(&bench->stop, true);
		if (moving)
			pthread_join(mover, NULL);
		atomic_store(&bench->stop, false);
		code = code || atomic_load(&bench->broken) || answer_check(bench, &lines);
		printf("%s %u peers, %zu bytes: %.1f ms (%.1f in the worst of %d sets, at most "
		       "%.1f), limit %.1f ms, "
		       "asked are %.0f\n",
		       moving ? "moving" : "idle  ", bench->peers, plain.length, figures.scrape[0],
		       figures.scrape[SETS - 1], SETS, figures.worst, figures.limit[0], ASKED_MS);
		code = code || figures.scrape[0] >= ASKED_MS ? 1 : 0;
		json_array_append_new(rows, figures_to_json(&figures, moving, seconds,
							    atomic_load(&bench->rounds)));
	}
	return scrape_report(bench, rows, lines, plain.length) || code;
}

static void end_processes(const struct bench *bench)
{
	for (uint32_t i = 0; i <= PROCESSES; i++) {
		pid_t pid = i < PROCESSES ? bench->processes[i] : bench->exporter;

		if (pid <= 0)
			continue;
		kill(pid, i < PROCESSES ? SIGKILL : SIGTERM);
		waitpid(pid, NULL, 0);
	}
}

static bool options_parse(int argc, char **argv, struct bench *bench)
{
	static const struct option table[] = {
		{ "peers", 1, NULL, 'p' },
		{ "wherry", 1, NULL, 'w' },
		{ "json", 1, NULL, 'j' },
		{ NULL, 0, NULL, 0 },
	};
	int which;

	*bench = (struct bench){ .peers = 1000 };
	while ((which = getopt_long(argc, argv, "", table, NULL)) >= 0) {
		if (which == 'p')
			bench->peers = (uint32_t)strtoul(optarg, NULL, 10);
		else if (which == 'w')
			bench->wherry = optarg;
		else if (which == 'j')
			bench->json = optarg;
		else
			return false;
	}
	return optind == argc && bench->wherry && bench->peers >= 1 && bench->peers <= PEERS_MOST;
}

int main(int argc, char **argv)
{
	char directory[] = "/tmp/wherry-scrape-XXXXXX";
	struct rlimit files;
	struct bench bench;
	int code;

	if (!options_parse(argc, argv, &bench)) {
		fprintf(stderr,
			"usage: scrape --wherry FILE [--peers N] [--json FILE]\n"
			"\n"
			"Measures a scrape of an engine with N (1000) peers, and its limit.\n"
			"Exit status: 0; 1 if a scrape took longer than 50 ms, or anything failed; "
			"64 for a "
			"wrong command line.\n");
		return 64;
	}
	signal(SIGPIPE, SIG_IGN);
	if (!getrlimit(RLIMIT_NOFILE, &files)) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	bench.shared = mmap(NULL, sizeof(*bench.shared), PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	bench.answer = malloc(ANSWER_MOST + 1);
	if (bench.shared == MAP_FAILED || !bench.answer || !mkdtemp(directory))
		return scrape_fail("memory", ENOMEM);
	code = start_processes(&bench) || scrape_run(&bench, directory);
	end_processes(&bench);
	if (bench.engine)
		unlink(wh_engine_observer_path(bench.engine));
	rmdir(directory);
	return code;
}
