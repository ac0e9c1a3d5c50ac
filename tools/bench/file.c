/* SPDX-License-Identifier: Apache-2.0 */
/* wherry bench --source file:PATH: a file that is in the page cache, and the same file when it is
 * not, into memory of this process; beside each the plainest code that does it, threads that
 * read. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/bench.h"
#include "engine.h"

#define ROUNDS 5
#define PIECE (UINT64_C(4) << 20) /* bytes of one pread */
#define THREADS_MOST 64
#define WINDOW (UINT64_C(1) << 30) /* bytes that are mapped at once to ask about pages */

struct file_bench {
	const char *path;
	int fd;
	uint64_t length; /* bytes that are read */
	unsigned threads;
	struct memory memory;
	struct wh_engine *engine;
	void *target; /* of the engine's memory */
	unsigned char *plain; /* where the limit reads to: the target, if the CPU may */
	struct wh_region *file, *region;
	struct wh_peer *peer;
	struct wh_batch *batch;
	_Atomic uint64_t next; /* piece that no thread has taken */
	_Atomic int failed; /* errno of a thread */
};

bool bench_file_wanted(const struct arguments *arguments)
{
	const char *source = argument(arguments, "source");

	return source && !strncmp(source, "file:", 5);
}

/* ---- the command line ------------------------------------------------------------------------ */

static int file_options(const struct arguments *arguments)
{
	static const char *const fitting[] = { "source", "target",  "working-set", "limits",
					       "verify", "verbose", "config",      "json" };

	for (const struct command_option *option = arguments->command->options; option->name;
	     option++) {
		bool fits = false;

		for (size_t i = 0; i < sizeof(fitting) / sizeof(fitting[0]); i++)
			fits = fits || !strcmp(option->name, fitting[i]);
		if (!fits && argument(arguments, option->name))
			return usage_error("--source file:PATH measures reads of the whole file: "
					   "leave out --%s",
					   option->name);
	}
	return 0;
}

static int file_parse(struct file_bench *bench, const struct arguments *arguments)
{
	const char *target = argument(arguments, "target"), *rest, *wrong;
	const char *most = argument(arguments, "working-set");
	uint64_t limit = UINT64_MAX;
	struct stat status;
	char text[MEMORY_TEXT];
	int code = file_options(arguments);

	if (code)
		return code;
	wrong = memory_parse(target ? target : "host", &bench->memory, &rest);
	if (wrong || *rest)
		return usage_error("--target: '%s' %s", target,
				   wrong ? wrong : "is more than one memory");
	if (most && parse_size(most, "--working-set", &limit))
		return EXIT_USAGE;
	bench->path = argument(arguments, "source") + 5;
	bench->fd = open(bench->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (bench->fd < 0 || fstat(bench->fd, &status))
		return fail(EIO, "cannot open %s: %s", bench->path, strerror(errno));
	if (!S_ISREG(status.st_mode) || !status.st_size || !limit)
		return fail(EINVAL, "%s is no regular file with bytes in it", bench->path);
	bench->length = (uint64_t)status.st_size < limit ? (uint64_t)status.st_size : limit;
	bench->threads = (unsigned)strtoul(bench_setting(arguments, "file_threads"), NULL, 10);
	if (!bench->threads || bench->threads > THREADS_MOST)
		bench->threads = 8; /* the engine refuses the value */
	return memory_fits("", bench->length, false, text) ?
		       0 :
		       fail(ENOMEM, "%s: %s; --working-set takes less of it", bench->path, text);
}

/* ---- the page cache -------------------------------------------------------------------------- */

/* Count the file's pages, and those that are in the page cache. 0 or a negative errno. */
static int count_pages(const struct file_bench *bench, uint64_t *pages, uint64_t *resident)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	unsigned char *state = malloc(WINDOW / page + 1);
	int error = state ? 0 : -ENOMEM;

	*pages = *resident = 0;
	for (uint64_t at = 0; !error && at < bench->length; at += WINDOW) {
		uint64_t part = bench->length - at < WINDOW ? bench->length - at : WINDOW;
		void *map = mmap(NULL, part, PROT_READ, MAP_SHARED, bench->fd, (off_t)at);

		if (map == MAP_FAILED) {
			error = -errno;
			break;
		}
		if (mincore(map, part, state))
			error = -errno;
		munmap(map, part);
		for (uint64_t i = 0; !error && i < (part + page - 1) / page; i++)
			*resident += state[i] & 1;
		*pages += (part + page - 1) / page;
	}
	free(state);
	return error;
}

/* Make all of the file's pages resident, or none of them. False with a text: it could not be. */
static bool prepare(struct file_bench *bench, bool cold, char text[BENCH_TEXT])
{
	uint64_t pages, resident;
	int error = 0;

	if (cold) {
		/* Pages that are not on the disk yet would stay. */
		if (fdatasync(bench->fd) || posix_fadvise(bench->fd, 0, 0, POSIX_FADV_DONTNEED))
			error = -errno;
	} else {
		unsigned char *buffer = malloc(PIECE);
		uint64_t at = 0;
		ssize_t got = 1;

		for (; buffer && got > 0 && at < bench->length; at += (uint64_t)got)
			got = pread(bench->fd, buffer, PIECE, (off_t)at);
		free(buffer);
	}
	if (!error)
		error = count_pages(bench, &pages, &resident);
	if (error) {
		snprintf(text, BENCH_TEXT, "the page cache of %.200s: %s", bench->path,
			 strerror(-error));
		return false;
	}
	if (cold ? !resident : resident == pages)
		return true;
	snprintf(text, BENCH_TEXT,
		 cold ? "%.120s: %llu of %llu pages stay in memory: it is on tmpfs, or in use, or "
			"belongs to another user, which the system does not tell" :
			"%.120s: only %llu of %llu pages fit the page cache",
		 bench->path, (unsigned long long)resident, (unsigned long long)pages);
	return false;
}

/* ---- one reading ----------------------------------------------------------------------------- */

static void *read_pieces(void *arg)
{
	struct file_bench *bench = arg;
	uint64_t at;

	while ((at = atomic_fetch_add(&bench->next, PIECE)) < bench->length) {
		uint64_t left = bench->length - at < PIECE ? bench->length - at : PIECE;

		while (left) {
			ssize_t got = pread(bench->fd, bench->plain + at, left, (off_t)at);

			if (got <= 0) {
				atomic_store(&bench->failed, got ? errno : EIO);
				return NULL;
			}
			at += (uint64_t)got;
			left -= (uint64_t)got;
		}
	}
	return NULL;
}

/* The limit: as many threads as the engine may have. 0 or a negative errno. */
static int read_plainly(struct file_bench *bench)
{
	pthread_t threads[THREADS_MOST];
	unsigned started = 0;

	atomic_store(&bench->next, 0);
	atomic_store(&bench->failed, 0);
	while (started < bench->threads &&
	       !pthread_create(&threads[started], NULL, read_pieces, bench))
		started++;
	for (unsigned i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
	return started ? -atomic_load(&bench->failed) : -EAGAIN;
}

static int read_by_engine(struct file_bench *bench)
{
	int error = wh_batch_submit(bench->batch);

	return error ? error : engine_wait(bench->batch);
}

/* GB/s of one reading; NAN after a text. */
static double reading(struct file_bench *bench, bool cold, bool limit, char text[BENCH_TEXT])
{
	int64_t start;
	int error;

	if (!prepare(bench, cold, text))
		return NAN;
	start = bench_now();
	error = limit ? read_plainly(bench) : read_by_engine(bench);
	start = bench_now() - start;
	if (!error)
		return (double)bench->length / (double)start;
	snprintf(text, BENCH_TEXT, "%.280s",
		 limit ? strerror(-error) : engine_wait_text(bench->batch));
	return NAN;
}

/* ---- the two rows ---------------------------------------------------------------------------- */

/* What the engine has read is what the file has; -1: the CPU cannot look. */
static int compare(struct file_bench *bench)
{
	unsigned char *buffer = malloc(PIECE);
	int same = bench->plain == bench->target && buffer ? 1 : -1;

	for (uint64_t at = 0; same == 1 && at < bench->length; at += PIECE) {
		uint64_t part = bench->length - at < PIECE ? bench->length - at : PIECE;

		same = pread(bench->fd, buffer, part, (off_t)at) == (ssize_t)part &&
		       !memcmp(buffer, bench->plain + at, part);
	}
	free(buffer);
	return same;
}

static void take_route(struct file_bench *bench, struct bench_result *result)
{
	struct wh_route routes[8];
	size_t count = sizeof(routes) / sizeof(*routes);

	if (wh_batch_routes(bench->batch, routes, &count))
		return;
	for (size_t i = 0; i < count; i++)
		if (routes[i].bytes) {
			memcpy(result->transport, routes[i].transport, sizeof(result->transport));
			memcpy(result->detail, routes[i].detail, sizeof(result->detail));
		}
}

static void result_start(const struct file_bench *bench, bool cold, struct bench_result *result)
{
	*result = (struct bench_result){
		.row = { .op = WH_READ,
			 .form = BENCH_FORM_SINGLE,
			 .one_process = true,
			 .source = { .kind = WH_MEMORY_FILE },
			 .target = bench->memory,
			 .depth = 1,
			 .layout = { .size = bench->length, .blocks = 1, .batches = 1 } },
		.bandwidth = NAN,
		.p50 = NAN,
		.p99 = NAN,
		.p999 = NAN,
		.submit = NAN,
		.first = { NAN, NAN },
		.verified = -1,
		.limit_call = PIECE,
		.limit_bandwidth = NAN,
		.limit_latency = NAN,
		.ratio = NAN,
		.latency_ratio = NAN,
		.cache_line = NAN,
	};
	snprintf(result->row.source.name, sizeof(result->row.source.name), "file %s",
		 cold ? "cold" : "warm");
	snprintf(result->limit_name, sizeof(result->limit_name), "pread, %u threads",
		 bench->threads);
}

/* Rounds of both, the limit first in every other one. False: result->text says why not. */
static bool measure(struct file_bench *bench, bool cold, struct bench_result *result)
{
	struct bench_pairs pairs = { .count = 0 };
	double us = (double)bench->length / 1000; /* at 1 GB/s */

	result_start(bench, cold, result);
	for (int round = 0; round < ROUNDS; round++) {
		double gbps[2];

		for (int i = 0; i < 2; i++) {
			bool limit = (round + i) % 2;

			gbps[limit] = reading(bench, cold, limit, result->text);
			if (isnan(gbps[limit]))
				return false;
			if (!limit && !round)
				result->verified = compare(bench);
			if (!limit)
				take_route(bench, result);
		}
		bench_pairs_add(&pairs, gbps[0], gbps[1]);
	}
	result->rounds = result->samples = ROUNDS;
	result->bandwidth = bench_pairs_test(&pairs);
	result->limit_bandwidth = bench_pairs_limit(&pairs);
	result->ratio = bench_pairs_ratio(&pairs);
	result->p50 = us / result->bandwidth;
	result->limit_latency = us / result->limit_bandwidth;
	result->latency_ratio = 1 / result->ratio;
	return true;
}

/* ---- the engine ------------------------------------------------------------------------------ */

static int file_open(struct file_bench *bench, const struct arguments *arguments)
{
	struct wh_file_options options = { .size = sizeof(options), .length = bench->length };
	struct engine_setup setup = { .listen = "none" };
	struct wh_transfer transfer = { .op = WH_READ, .length = bench->length };
	int code = engine_open(arguments, &setup, &bench->engine), error;

	if (code)
		return code;
	error = memory_alloc(bench->engine, &bench->memory, bench->length, &bench->target);
	if (!error)
		error = wh_region_register(bench->engine, bench->target, bench->length, NULL,
					   &bench->region);
	if (!error)
		error = wh_file_register_fd(bench->engine, bench->fd, &options, &bench->file);
	if (!error)
		error = wh_peer_open(bench->engine, "self", NULL, &bench->peer);
	if (!error)
		error = wh_batch_new(bench->peer, NULL, &bench->batch);
	if (error)
		return engine_fail(error, "cannot prepare the transfer");
	transfer.local = bench->region;
	transfer.remote = wh_region_id(bench->file);
	error = wh_batch_add(bench->batch, &transfer, 1);
	if (error)
		return engine_fail(error, "cannot prepare the transfer");
	bench->plain = memory_on_gpu(bench->memory.kind) ? malloc(bench->length) : bench->target;
	return bench->plain ? 0 : fail(ENOMEM, "out of memory");
}

static int file_close(struct file_bench *bench, int code)
{
	if (bench->plain != bench->target)
		free(bench->plain);
	code = engine_undo(code, bench->batch ? wh_batch_free(bench->batch) : 0,
			   "cannot free a batch");
	code = engine_undo(code, bench->peer ? wh_peer_close(bench->peer) : 0,
			   "cannot close the connection");
	code = engine_undo(code, bench->file ? wh_region_unregister(bench->file) : 0,
			   "cannot let go of the file");
	code = engine_undo(code, bench->region ? wh_region_unregister(bench->region) : 0,
			   "cannot unregister the memory");
	code = engine_undo(code, bench->target ? wh_memory_free(bench->engine, bench->target) : 0,
			   "cannot free the memory");
	if (bench->engine)
		code = engine_close(bench->engine, code);
	if (bench->fd >= 0)
		close(bench->fd);
	return code;
}

int bench_file_measure(const struct arguments *arguments, FILE *table, struct bench_result *results,
		       size_t *count)
{
	struct file_bench bench = { .fd = -1 };
	int code = file_parse(&bench, arguments);

	if (!code)
		code = file_open(&bench, arguments);
	if (!code)
		bench_table_start(table, true);
	for (int cold = 0; !code && cold < 2; cold++) {
		struct bench_result *result = &results[(*count)++];

		if (measure(&bench, cold, result)) {
			bench_table_row(table, result, true);
			if (!result->verified)
				code = fail(EIO, "the bytes are not those of the file");
		} else {
			result->skipped = true;
			note("%s was not measured: %s", result->row.source.name, result->text);
		}
	}
	if (!code && *count == 2 && results[0].skipped && results[1].skipped)
		code = EXIT_UNAVAILABLE;
	return file_close(&bench, code);
}
