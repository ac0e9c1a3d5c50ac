/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: gpu */
/* gpu-files.c: between files and GPU memory, of one engine and of two processes, in any direction
 */
#include <sys/mman.h>

#include "lib/files.h"
#include "lib/fixture.h"
#include "lib/gpu.h"

#define LENGTH (5 * MIB + 4099)
#define START 777 /* of the file's region */

/* The initiator, with a file and with GPU memory. */
struct ours {
	struct wh_engine *engine;
	struct wh_peer *peer;
	int fd;
	unsigned char *map;
	uint32_t kind;
	void *gpu;
	struct wh_region *file, *memory;
};

static const char *setting; /* of the initiator, or NULL */

static void ours_open(struct ours *ours, uint32_t kind, const char *require, const char *url)
{
	struct wh_memory_options options = { .size = sizeof(options),
					     .kind = kind,
					     .location = "cuda:0" };
	struct wh_region_options file = { .size = sizeof(file), .name = "file" };
	struct wh_region_options memory = { .size = sizeof(memory), .name = "memory" };
	const char *config[] = { setting, NULL };

	*ours = (struct ours){ .kind = kind, .engine = engine_open(require, "none", config) };
	ours->fd = file_new(START + LENGTH + START);
	want_true(ours->fd >= 0, "no file");
	ours->map = file_map(ours->fd, START + LENGTH + START);
	want_true(ours->map, "mmap: %s", strerror(errno));
	want(0, file_region(ours->engine, ours->fd, START, LENGTH, &file, &ours->file));
	want(0, wh_memory_alloc(ours->engine, LENGTH, &options, &ours->gpu));
	want(0, wh_region_register(ours->engine, ours->gpu, LENGTH, &memory, &ours->memory));
	want(0, wh_peer_open(ours->engine, url, NULL, &ours->peer));
}

static void ours_close(struct ours *ours)
{
	want(0, wh_peer_close(ours->peer));
	want(0, wh_region_unregister(ours->file));
	want(0, wh_region_unregister(ours->memory));
	want(0, wh_memory_free(ours->engine, ours->gpu));
	want(0, wh_engine_close(ours->engine));
	munmap(ours->map, START + LENGTH + START);
	close(ours->fd);
}

static void gpu_fill(const struct ours *ours, uint64_t seed)
{
	unsigned char *bytes = malloc(LENGTH);

	assert_non_null(bytes);
	pattern_fill(bytes, LENGTH, 0, seed);
	bytes_put(ours->gpu, bytes, LENGTH, ours->kind);
	free(bytes);
}

static void want_gpu(const struct ours *ours, uint64_t offset, uint64_t length, uint64_t position,
		     uint64_t seed)
{
	unsigned char *bytes = malloc(LENGTH);
	size_t wrong;

	assert_non_null(bytes);
	bytes_get(bytes, ours->gpu, LENGTH, ours->kind);
	wrong = pattern_check(bytes + offset, length, position, seed);
	free(bytes);
	want_true(wrong == PATTERN_GOOD, "byte %zu on the GPU", wrong);
}

static void want_file(const struct ours *ours, uint64_t offset, uint64_t length, uint64_t position,
		      uint64_t seed)
{
	size_t wrong = pattern_check(ours->map + START + offset, length, position, seed);

	want_true(wrong == PATTERN_GOOD, "byte %zu of the file", wrong);
}

static int run(const struct ours *ours, struct wh_region *local, const char *name, uint32_t op,
	       uint64_t offset, uint64_t remote_offset, uint64_t length, char text[4096])
{
	struct wh_transfer transfer = { .op = op,
					.local = local,
					.local_offset = offset,
					.remote_offset = remote_offset,
					.length = length };
	struct wh_remote remote;
	struct wh_batch *batch;
	int status;

	want(0, wh_peer_find(ours->peer, name, PATIENCE, &remote));
	transfer.remote = remote.id;
	want(0, wh_batch_new(ours->peer, NULL, &batch));
	want(0, wh_batch_add(batch, &transfer, 1));
	status = batch_run(batch);
	if (status)
		print_error("%s\n", wh_batch_error_text(batch));
	wh_batch_explain(batch, text, 4096);
	want(0, wh_batch_free(batch));
	return status;
}

/* ---- one engine ------------------------------------------------------------------------------ */

static void within_engine(uint32_t kind)
{
	char text[4096];
	struct ours ours;

	ours_open(&ours, kind, NULL, "self");
	/* File to GPU, named either way; then GPU to file. */
	for (uint64_t i = 0; i < 4; i++) {
		bool file_local = i & 1, to_gpu = i < 2;
		uint32_t op = file_local == to_gpu ? WH_WRITE : WH_READ;

		pattern_fill(ours.map, START + LENGTH + START, 0, 10 + i);
		gpu_fill(&ours, 20 + i);
		want(0, run(&ours, file_local ? ours.file : ours.memory,
			    file_local ? "memory" : "file", op, 0, 0, LENGTH, text));
		want_true(strstr(text, "cuda") && strstr(text, "file"), "it says: %s", text);
		if (to_gpu)
			want_gpu(&ours, 0, LENGTH, START, 10 + i);
		else
			want_file(&ours, 0, LENGTH, 0, 20 + i);
		want_true(pattern_check(ours.map, START, 0, 10 + i) == PATTERN_GOOD &&
				  pattern_check(ours.map + START + LENGTH, START, START + LENGTH,
						10 + i) == PATTERN_GOOD,
			  "bytes outside of the region have changed");
	}
	/* A few odd bytes. */
	pattern_fill(ours.map, START + LENGTH + START, 0, 3);
	want(0, run(&ours, ours.memory, "file", WH_READ, 11, 101, 13, text));
	want_gpu(&ours, 11, 13, START + 101, 3);
	ours_close(&ours);
}

static void self__device(void **state)
{
	(void)state;
	within_engine(WH_MEMORY_DEVICE);
}

static void self__vmm(void **state)
{
	(void)state;
	within_engine(WH_MEMORY_VMM);
}

static void self__managed(void **state)
{
	(void)state;
	within_engine(WH_MEMORY_MANAGED);
}

/* The region begins at byte 777: what lies between whole pages goes past the page cache, although
 * this process has mapped them, the rest through it. */
static void self__written_directly(void **state)
{
	char text[4096];
	struct ours ours;

	(void)state;
	setting = "file_writes=direct";
	within_engine(WH_MEMORY_DEVICE);
	ours_open(&ours, WH_MEMORY_DEVICE, NULL, "self");
	setting = NULL;
	pattern_fill(ours.map, START + LENGTH + START, 0, 5);
	gpu_fill(&ours, 6);
	want(0, run(&ours, ours.file, "memory", WH_READ, 4096, 4096, 3 * MIB, text));
	want_true(strstr(text, "file: writes go "), "it says: %s", text);
	want_file(&ours, 4096, 3 * MIB, 4096, 6);
	want_true(pattern_check(ours.map, START + 4096, 0, 5) == PATTERN_GOOD,
		  "bytes before it have changed");
	ours_close(&ours);
}

/* Pages of a file into pages on the GPU, one descriptor. */
static void self__pages(void **state)
{
	enum { PAGES = LENGTH / 4096 };
	static uint64_t here[PAGES], there[PAGES];
	struct wh_base base = { 0 };
	struct wh_blocks_desc desc = { .size = sizeof(desc),
				       .op = WH_READ,
				       .block_length = 4096,
				       .count = PAGES,
				       .bases = &base,
				       .base_count = 1,
				       .local_offsets = here,
				       .remote_offsets = there };
	struct wh_blocks *blocks;
	struct wh_remote remote;
	struct wh_batch *batch;
	struct ours ours;

	(void)state;
	ours_open(&ours, WH_MEMORY_DEVICE, NULL, "self");
	pattern_fill(ours.map, START + LENGTH + START, 0, 8);
	pattern_shuffle(here, PAGES, 4096, 1);
	pattern_shuffle(there, PAGES, 4096, 2);
	want(0, wh_peer_find(ours.peer, "file", 0, &remote));
	base = (struct wh_base){ .local = ours.memory, .remote = remote.id };
	want(0, wh_blocks_new(ours.peer, &desc, &blocks));
	want(0, wh_batch_new(ours.peer, NULL, &batch));
	want(0, wh_batch_add_blocks(batch, blocks));
	wh_blocks_free(blocks);
	want(0, batch_run(batch));
	want(0, wh_batch_free(batch));
	for (size_t i = 0; i < PAGES; i += 37)
		want_gpu(&ours, here[i], 4096, START + there[i], 8);
	ours_close(&ours);
}

/* The file has become shorter: an error, and the rest of the engine goes on. */
static void self__cut(void **state)
{
	char text[4096];
	struct ours ours;

	(void)state;
	ours_open(&ours, WH_MEMORY_DEVICE, NULL, "self");
	want(0, ftruncate(ours.fd, START + MIB));
	want(-EIO, run(&ours, ours.memory, "file", WH_READ, 0, 0, LENGTH, text));
	want(-EIO, run(&ours, ours.memory, "file", WH_WRITE, 0, 0, LENGTH, text));
	pattern_fill(ours.map, START + MIB, 0, 5);
	want(0, run(&ours, ours.memory, "file", WH_READ, 0, 0, MIB, text));
	want_gpu(&ours, 0, MIB, START, 5);
	ours_close(&ours);
}

/* ---- two processes --------------------------------------------------------------------------- */

static void between_processes(uint32_t there, const char *require, bool file_local,
			      const char *transport)
{
	struct child *child = child_start(&(struct child_options){ .listen = "127.0.0.1:0" });
	int memory = child_memory_at(child, there, LENGTH,
				     there == CHILD_FILE || there == WH_MEMORY_PAGEABLE ? NULL :
											  "cuda:0");
	struct wh_region *local;
	char text[4096];
	struct ours ours;

	child_region(child, memory, 0, LENGTH, "target", ACCESS_BOTH, NULL);
	ours_open(&ours, WH_MEMORY_DEVICE, require, child->url);
	local = file_local ? ours.file : ours.memory;
	pattern_fill(ours.map, START + LENGTH + START, 0, 31);
	gpu_fill(&ours, 32);
	want(0, run(&ours, local, "target", WH_WRITE, 0, 0, LENGTH, text));
	want_true(strstr(text, transport), "it says: %s", text);
	want_true(child_check(child, memory, 0, LENGTH, file_local ? START : 0,
			      file_local ? 31 : 32) == PATTERN_GOOD,
		  "written bytes");
	child_fill(child, memory, 0, LENGTH, 0, 33);
	want(0, run(&ours, local, "target", WH_READ, 0, 0, LENGTH, text));
	if (file_local)
		want_file(&ours, 0, LENGTH, 0, 33);
	else
		want_gpu(&ours, 0, LENGTH, 0, 33);
	ours_close(&ours);
	child_exit(child);
}

static void peer__their_file_our_gpu(void **state)
{
	(void)state;
	between_processes(CHILD_FILE, NULL, false, "tcp");
}

static void peer__our_file_their_gpu(void **state)
{
	(void)state;
	between_processes(WH_MEMORY_DEVICE, NULL, true, "cuda");
}

static void peer__our_file_their_gpu_by_tcp(void **state)
{
	(void)state;
	between_processes(WH_MEMORY_DEVICE, "tcp", true, "tcp");
}

static const struct CMUnitTest tests[] = {
	TEST(self__device),
	TEST(self__vmm),
	TEST(self__managed),
	TEST(self__written_directly),
	TEST(self__pages),
	TEST(self__cut),
	TEST(peer__their_file_our_gpu),
	TEST(peer__our_file_their_gpu),
	TEST(peer__our_file_their_gpu_by_tcp),
};

HARNESS_MAIN("gpu-files", tests)
