/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files and GPU memory, on a real driver: file-transfer [--mib N] [--directory DIR] [--first]
 * [DRIVER]. First it checks bytes in both directions; then it measures, and prints one line of JSON
 * for each way, with the simplest code that does the same in the same run: "gbps" and "limit_gbps".
 * The file has N MiB (64) and lies in DIR (/tmp). Warm: all of it is in the page cache. Cold:
 * nothing of it is, as mincore() says; where the kernel keeps some, as on tmpfs, there are no such
 * rows. --first: only the rows of a file that an engine reads first, and again.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <wherry/wherry.h>

#include "gpu.h"

#define MIB ((size_t)1 << 20)
#define PIECE (4 * MIB) /* what the simplest code reads at a time */
#define THREADS 8u
#define RUNS 3

static const char *driver_path, *directory = "/tmp";
static size_t length = 64 * MIB;
static bool first_only;

static const struct wh_file_options writable = { .size = sizeof(writable), .flags = WH_FILE_WRITE };

static struct {
	int fd;
	unsigned char *bytes; /* what the file has */
	struct wh_engine *engine;
	struct wh_peer *peer;
	void *gpu;
	void *pinned; /* `length` bytes */
	struct wh_region *file, *memory, *host;
} all;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- what is measured ------------------------------------------------------------------------ */

/* One call moves less than 2 GiB. */
static bool file_move(bool into, unsigned char *memory)
{
	for (size_t at = 0; at < length;) {
		ssize_t moved = into ? pwrite(all.fd, memory + at, length - at, (off_t)at) :
				       pread(all.fd, memory + at, length - at, (off_t)at);

		if (moved <= 0)
			return false;
		at += (size_t)moved;
	}
	return true;
}

static bool file_make(void)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/wherry-gpu-files-XXXXXX", directory);
	all.fd = mkostemp(path, O_CLOEXEC);
	if (!CHECK(all.fd >= 0))
		return false;
	unlink(path);
	all.bytes = malloc(length);
	if (!CHECK(all.bytes))
		return false;
	for (size_t i = 0; i < length; i += 8) {
		uint64_t random = gpu_random();

		memcpy(all.bytes + i, &random, 8);
	}
	return CHECK(file_move(true, all.bytes)) && CHECK(!fsync(all.fd));
}

static void open_all(void)
{
	struct wh_memory_options device = { .size = sizeof(device), .kind = WH_MEMORY_DEVICE };
	struct wh_memory_options pinned = { .size = sizeof(pinned), .kind = WH_MEMORY_PINNED };
	char cuda[300];
	const char *config[2] = { NULL };
	struct wh_engine_options options = { .size = sizeof(options),
					     .listen = "none",
					     .config = config };

	snprintf(cuda, sizeof(cuda), "cuda=%s", driver_path ? driver_path : "");
	config[0] = driver_path ? cuda : NULL;
	if (!file_make() || !CALL(wh_engine_open(&options, &all.engine)))
		return;
	CALL(wh_peer_open(all.engine, "self", NULL, &all.peer));
	CALL(wh_memory_alloc(all.engine, length, &device, &all.gpu));
	CALL(wh_memory_alloc(all.engine, length, &pinned, &all.pinned));
	CALL(wh_region_register(all.engine, all.gpu, length, NULL, &all.memory));
	CALL(wh_region_register(all.engine, all.pinned, length, NULL, &all.host));
	CALL(wh_file_register_fd(all.engine, all.fd, &writable, &all.file));
}

static void close_all(void)
{
	CALL(wh_region_unregister(all.file));
	CALL(wh_region_unregister(all.memory));
	CALL(wh_region_unregister(all.host));
	CALL(wh_memory_free(all.engine, all.gpu));
	CALL(wh_memory_free(all.engine, all.pinned));
	CALL(wh_peer_close(all.peer));
	CALL(wh_engine_close(all.engine));
	close(all.fd);
	free(all.bytes);
}

/* `local` to the file (WH_WRITE) or from it; in blocks of so many bytes at random places of the
 * file, or as one; 0: one page. Returns the batch. */
static struct wh_batch *batch_make(struct wh_region *local, uint32_t op, size_t block)
{
	struct wh_base base = { .local = local, .remote = wh_region_id(all.file) };
	size_t each = block ? block : 4096;
	struct wh_blocks_desc desc = { .size = sizeof(desc),
				       .op = op,
				       .block_length = each,
				       .count = block ? length / block : 1,
				       .bases = &base,
				       .base_count = 1 };
	uint64_t *offsets = calloc(desc.count, sizeof(*offsets)), swap;
	struct wh_blocks *blocks = NULL;
	struct wh_batch *batch = NULL;

	if (!CHECK(offsets))
		return NULL;
	for (size_t i = 0; i < desc.count; i++)
		offsets[i] = i * each;
	for (size_t i = desc.count - 1; i > 0; i--) {
		size_t k = gpu_random() % (i + 1);

		swap = offsets[i];
		offsets[i] = offsets[k];
		offsets[k] = swap;
	}
	desc.remote_offsets = desc.count > 1 ? offsets : NULL;
	CALL(wh_blocks_new(all.peer, &desc, &blocks));
	CALL(wh_batch_new(all.peer, NULL, &batch));
	CALL(wh_batch_add_blocks(batch, blocks));
	wh_blocks_free(blocks);
	free(offsets);
	return batch;
}

static double batch_seconds(struct wh_batch *batch)
{
	double begin = now();

	CALL(wh_batch_submit(batch));
	CALL(wh_batch_wait_for(batch, WH_FOREVER));
	CALL(wh_batch_status(batch));
	return now() - begin;
}

/* How its bytes went, and by which ways in which shares. */
static void explain_print(struct wh_batch *batch)
{
	char text[4096] = "";

	wh_batch_explain(batch, text, sizeof(text));
	printf("%s", text);
}

/* ---- bytes ------------------------------------------------------------------------------------
 */

static void into_gpu(void)
{
	struct wh_batch *batch = batch_make(all.memory, WH_READ, length);
	unsigned char *back = calloc(1, length);

	if (!CHECK(back))
		return;
	batch_seconds(batch);
	explain_print(batch);
	INSIDE(CU(cuMemcpyDtoH, back, (uintptr_t)all.gpu, length));
	CHECK(!memcmp(back, all.bytes, length));
	CALL(wh_batch_free(batch));
	free(back);
}

static void out_of_gpu(void)
{
	struct wh_batch *batch = batch_make(all.memory, WH_WRITE, length);
	unsigned char *back = calloc(1, length);

	if (!CHECK(back))
		return;
	for (size_t i = 0; i < length; i += 4096)
		all.bytes[i] ^= 0x55;
	INSIDE(CU(cuMemcpyHtoD, (uintptr_t)all.gpu, all.bytes, length); CU(cuCtxSynchronize));
	batch_seconds(batch);
	CHECK(file_move(false, back));
	CHECK(!memcmp(back, all.bytes, length));
	CALL(wh_batch_free(batch));
	free(back);
}

/* ---- speeds -----------------------------------------------------------------------------------
 */

static void limit_pieces(size_t index, bool into)
{
	for (size_t at = index * PIECE; at < length; at += THREADS * PIECE) {
		size_t part = length - at < PIECE ? length - at : PIECE;
		char *memory = (char *)all.pinned + at;

		if ((into ? pwrite(all.fd, memory, part, (off_t)at) :
			    pread(all.fd, memory, part, (off_t)at)) != (ssize_t)part)
			abort();
	}
}

static void *limit_read_thread(void *index)
{
	limit_pieces((size_t)(uintptr_t)index, false);
	return NULL;
}

static void *limit_write_thread(void *index)
{
	limit_pieces((size_t)(uintptr_t)index, true);
	return NULL;
}

static double limit_threads(void *(*thread)(void *))
{
	pthread_t threads[THREADS];
	double begin = now();

	for (size_t i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, thread, (void *)(uintptr_t)i))
			abort();
	for (size_t i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	return now() - begin;
}

/* Threads that read the file into memory, or write it, piece by piece: what the page cache gives.
 */
static double limit_pread(void)
{
	return limit_threads(limit_read_thread);
}

static double limit_pwrite(void)
{
	return limit_threads(limit_write_thread);
}

/* One copy of pinned memory: what PCIe gives. */
static double limit_copy(bool into)
{
	double begin = now();

	if (into)
		INSIDE(CU(cuMemcpyHtoD, (uintptr_t)all.gpu, all.pinned, length);
		       CU(cuCtxSynchronize));
	else
		INSIDE(CU(cuMemcpyDtoH, all.pinned, (uintptr_t)all.gpu, length);
		       CU(cuCtxSynchronize));
	return now() - begin;
}

static double limit_slower(void)
{
	double read = limit_pread(), copy = limit_copy(true);

	return read > copy ? read : copy;
}

static double limit_back(void)
{
	double write = limit_pwrite(), copy = limit_copy(false);

	return write > copy ? write : copy;
}

static void row_print(const char *what, bool cold, size_t block, double seconds, double limit)
{
	printf("{\"what\": \"%s\", \"cache\": \"%s\", \"bytes\": %zu, \"block_bytes\": %zu, "
	       "\"gbps\": %.2f, \"limit_gbps\": %.2f}\n",
	       what, cold ? "cold" : "warm", length, block, 1e-9 * (double)length / seconds,
	       1e-9 * (double)length / limit);
	fflush(stdout);
}

/* Drop the file's pages, those that the engine keeps included. False: some are still there. */
static bool file_drop(void)
{
	size_t pages = (length + 4095) / 4096, resident = 0;
	unsigned char *there = malloc(pages);
	void *map;

	CALL(wh_region_unregister(all.file));
	CHECK(!fsync(all.fd));
	CHECK(!posix_fadvise(all.fd, 0, 0, POSIX_FADV_DONTNEED));
	CALL(wh_file_register_fd(all.engine, all.fd, &writable, &all.file));
	map = mmap(NULL, length, PROT_READ, MAP_SHARED, all.fd, 0);
	if (!CHECK(there && map != MAP_FAILED && !mincore(map, length, there)))
		abort();
	for (size_t i = 0; i < pages; i++)
		resident += there[i] & 1;
	munmap(map, length);
	free(there);
	if (resident)
		printf("%zu of %zu pages stay in memory\n", resident, pages);
	return !resident;
}

static void row(const char *what, struct wh_region *local, uint32_t op, size_t block, bool cold,
		double (*limit)(void))
{
	double best = 0, best_limit = 0;

	for (int run = 0; run < RUNS; run++) {
		struct wh_batch *batch;
		double seconds;

		if (cold && !file_drop())
			return;
		seconds = limit();
		best_limit = !best_limit || seconds < best_limit ? seconds : best_limit;
		if (cold && !file_drop())
			return;
		batch = batch_make(local, op, block);
		if (!batch)
			return;
		seconds = batch_seconds(batch);
		best = !best || seconds < best ? seconds : best;
		CALL(wh_batch_free(batch));
	}
	row_print(what, cold, block, best, best_limit);
}

/* The whole file into the GPU by an engine and a registration of its own, page-locking included,
 * and twice more by the same one. `threads`: file_threads. */
static void row_once(const char *pages, const char *threads)
{
	char cuda[300], file_pages[40], file_threads[40], what[100];
	const char *config[] = { file_pages, file_threads, driver_path ? cuda : NULL, NULL };
	struct wh_engine_options options = { .size = sizeof(options),
					     .listen = "none",
					     .config = config };
	struct wh_engine *engine = all.engine;
	struct wh_peer *peer = all.peer;
	struct wh_region *file = all.file, *memory = all.memory;
	static const char *const times[] = { "first", "again", "a third time" };
	double best[3] = { 0 }, limit = 0;

	snprintf(cuda, sizeof(cuda), "cuda=%s", driver_path ? driver_path : "");
	snprintf(file_pages, sizeof(file_pages), "file_pages=%s", pages);
	snprintf(file_threads, sizeof(file_threads), "file_threads=%s", threads);
	for (int run = 0; run < RUNS; run++) {
		struct wh_batch *batch;
		double seconds = limit_copy(true);

		limit = !limit || seconds < limit ? seconds : limit;
		if (!CALL(wh_engine_open(&options, &all.engine)))
			break;
		CALL(wh_peer_open(all.engine, "self", NULL, &all.peer));
		CALL(wh_region_register(all.engine, all.gpu, length, NULL, &all.memory));
		CALL(wh_file_register_fd(all.engine, all.fd, NULL, &all.file));
		/* A GPU's streams, which are measured once, are not the file's: a few bytes first.
		 */
		batch = batch_make(all.memory, WH_READ, 0);
		batch_seconds(batch);
		CALL(wh_batch_free(batch));
		batch = batch_make(all.memory, WH_READ, length);
		for (int i = 0; i < 3; i++) {
			seconds = batch_seconds(batch);
			best[i] = !best[i] || seconds < best[i] ? seconds : best[i];
			if (!i)
				explain_print(batch);
		}
		CALL(wh_batch_free(batch));
		CALL(wh_region_unregister(all.file));
		CALL(wh_region_unregister(all.memory));
		CALL(wh_peer_close(all.peer));
		CALL(wh_engine_close(all.engine));
	}
	all.engine = engine;
	all.peer = peer;
	all.file = file;
	all.memory = memory;
	for (int i = 0; i < 3; i++) {
		snprintf(what, sizeof(what), "file to gpu, %s, file_pages=%s, file_threads=%s",
			 times[i], pages, threads);
		row_print(what, false, length, best[i], limit);
	}
}

static void speeds(void)
{
	limit_pread(); /* it is in the page cache now */
	for (int i = 0; i < 2; i++) {
		row_once("auto", i ? "8" : "1");
		row_once("keep", i ? "8" : "1");
		row_once("once", i ? "8" : "1");
		row_once("off", i ? "8" : "1");
	}
	if (first_only)
		return;
	row("file to gpu", all.memory, WH_READ, length, false, limit_slower);
	row("file to gpu", all.memory, WH_READ, 16384, false, limit_slower);
	row("file to gpu", all.memory, WH_READ, 4096, false, limit_slower);
	row("file to host", all.host, WH_READ, length, false, limit_pread);
	row("file to host", all.host, WH_READ, 4096, false, limit_pread);
	row("gpu to file", all.memory, WH_WRITE, length, false, limit_back);
	CHECK(!fsync(all.fd));
	row("file to gpu", all.memory, WH_READ, length, true, limit_slower);
	row("file to gpu", all.memory, WH_READ, 4096, true, limit_slower);
	row("file to host", all.host, WH_READ, length, true, limit_pread);
	row("file to host", all.host, WH_READ, 4096, true, limit_pread);
}

static size_t take_number(const char *text)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	if (*end || !value || value > 1 << 20) {
		fprintf(stderr, "--mib: '%s' is not a number of MiB\n", text);
		exit(64);
	}
	return value;
}

int main(int count, char **arguments)
{
	for (int i = 1; i < count; i++) {
		if (!strcmp(arguments[i], "--mib") && i + 1 < count)
			length = take_number(arguments[++i]) * MIB;
		else if (!strcmp(arguments[i], "--directory") && i + 1 < count)
			directory = arguments[++i];
		else if (!strcmp(arguments[i], "--first"))
			first_only = true;
		else
			driver_path = arguments[i];
	}
	gpu_open(driver_path);
	gpu_case("open", open_all);
	if (gpu_failures)
		return 1;
	gpu_case("into_gpu", into_gpu);
	gpu_case("out_of_gpu", out_of_gpu);
	gpu_case("speeds", speeds);
	gpu_case("close", close_all);
	return gpu_close();
}
