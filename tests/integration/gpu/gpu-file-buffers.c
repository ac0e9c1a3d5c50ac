/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: gpu */
/* gpu-file-buffers.c: the slots through which files are read and written are registered with
 * io_uring, of host memory and pinned ones, and a system that refuses that is no obstacle. With
 * TEST_FILES=DIRECTORY on the file system of that directory. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "lib/files.h"
#include "lib/fixture.h"
#include "lib/gpu.h"

#define LENGTH (3 * MIB + 4099)
#define SLOTS (8 * MIB) /* bytes of slots that are made at once */

/* ---- what the kernel knows --------------------------------------------------------------------
 */

struct registered {
	unsigned int rings; /* rings of this process */
	unsigned int buffers; /* registered with them, and those of SLOTS bytes */
	unsigned int slots;
};

/* Count what one ring has. The lines are "UserBufs:	2", and "    0: 0x7f00/8388608" for each. */
static void count_in(FILE *info, struct registered *out)
{
	unsigned long long address, length;
	unsigned int number, left = 0;
	char line[256];

	while (fgets(line, sizeof(line), info)) {
		if (sscanf(line, "UserBufs: %u", &number) == 1) {
			left = number;
			out->rings++;
			out->buffers += number;
		} else if (left &&
			   sscanf(line, "%u: 0x%llx/%llu", &number, &address, &length) == 3) {
			out->slots += length == SLOTS;
			left--;
		}
	}
}

/* No ring is in use: the kernel leaves this out for those that are. */
static struct registered count_registered(void)
{
	DIR *directory = opendir("/proc/self/fd");
	struct registered out = { 0 };
	const struct dirent *entry;

	assert_non_null(directory);
	while ((entry = readdir(directory))) {
		char link[64], path[64], target[64] = "";
		FILE *info;

		snprintf(link, sizeof(link), "/proc/self/fd/%.20s", entry->d_name);
		snprintf(path, sizeof(path), "/proc/self/fdinfo/%.20s", entry->d_name);
		if (readlink(link, target, sizeof(target) - 1) < 0 || !strstr(target, "[io_uring]"))
			continue;
		info = fopen(path, "re");
		if (!info)
			continue;
		count_in(info, &out);
		fclose(info);
	}
	closedir(directory);
	return out;
}

/* ---- an engine with a file, and a peer --------------------------------------------------------
 */

struct ours {
	struct wh_engine *engine;
	struct child *child;
	struct wh_peer *peer, *self;
	struct wh_remote target; /* host memory of the child */
	int memory, fd;
	void *gpu;
	struct wh_region *file, *on_gpu;
};

static const char *missing_cold(void)
{
	static unsigned char pages[LENGTH / 4096 + 1];
	int fd = file_new(LENGTH);
	unsigned char *map = file_map(fd, LENGTH);
	size_t resident = 0;

	memset(map, 1, LENGTH);
	munmap(map, LENGTH);
	fsync(fd);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	map = file_map(fd, LENGTH);
	mincore(map, LENGTH, pages);
	for (size_t i = 0; i < sizeof(pages); i++)
		resident += pages[i] & 1;
	munmap(map, LENGTH);
	close(fd);
	if (resident)
		return "this file system keeps its files in memory";
	return file_ring_is_allowed() ? NULL : "io_uring is not allowed here";
}

static const struct route needs_cold = { .name = "a file that is not in memory",
					 .missing = missing_cold };

static const char *missing_cold_root(void)
{
	return geteuid() ? "only root can become another user" : missing_cold();
}

static const struct route needs_cold_root = { .name = "root, and a file that is not in memory",
					      .missing = missing_cold_root };

static void ours_open(struct ours *ours)
{
	/* One thread for files, and so one ring. */
	const char *config[] = { "file_threads=1", "file_writes=direct", SHARED_KEY, NULL };
	struct wh_memory_options device = { .size = sizeof(device),
					    .kind = WH_MEMORY_DEVICE,
					    .location = "cuda:0" };
	struct wh_region_options named = { .size = sizeof(named), .name = "file" };
	struct child_options options = { .listen = "127.0.0.1:0", .config = { SHARED_KEY } };

	*ours = (struct ours){ .child = child_start(&options), .fd = file_new(LENGTH) };
	want_true(ours->fd >= 0, "no file: %s", strerror(-ours->fd));
	ours->memory = child_memory(ours->child, CHILD_FOREIGN, LENGTH);
	child_region(ours->child, ours->memory, 0, LENGTH, "target", ACCESS_BOTH, NULL);
	ours->engine = engine_open(NULL, "none", config);
	want(0, file_region(ours->engine, ours->fd, 0, LENGTH, &named, &ours->file));
	want(0, wh_memory_alloc(ours->engine, LENGTH, &device, &ours->gpu));
	want(0, wh_region_register(ours->engine, ours->gpu, LENGTH, NULL, &ours->on_gpu));
	want(0, wh_peer_open(ours->engine, ours->child->url, NULL, &ours->peer));
	want(0, wh_peer_open(ours->engine, "self", NULL, &ours->self));
	want(0, wh_peer_find(ours->peer, "target", PATIENCE, &ours->target));
}

static void ours_close(struct ours *ours)
{
	want(0, wh_peer_close(ours->peer));
	want(0, wh_peer_close(ours->self));
	want(0, wh_region_unregister(ours->file));
	want(0, wh_region_unregister(ours->on_gpu));
	want(0, wh_memory_free(ours->engine, ours->gpu));
	want(0, wh_engine_close(ours->engine));
	child_exit(ours->child);
	close(ours->fd);
}

/* Give the file these bytes; none of them is in the page cache. */
static void file_fill(const struct ours *ours, uint64_t seed)
{
	unsigned char *map = file_map(ours->fd, LENGTH);

	pattern_fill(map, LENGTH, 0, seed);
	munmap(map, LENGTH);
	want(0, fsync(ours->fd));
	want(0, posix_fadvise(ours->fd, 0, 0, POSIX_FADV_DONTNEED));
}

static void want_file(const struct ours *ours, uint64_t seed)
{
	unsigned char *map = file_map(ours->fd, LENGTH);
	size_t wrong = pattern_check(map, LENGTH, 0, seed);

	munmap(map, LENGTH);
	want_true(wrong == PATTERN_GOOD, "byte %zu of the file", wrong);
}

static void run(struct wh_peer *peer, struct wh_region *local, uint64_t remote, uint32_t op,
		char text[4096])
{
	struct wh_transfer transfer = {
		.op = op, .local = local, .remote = remote, .length = LENGTH
	};
	struct wh_batch *batch;

	want(0, wh_batch_new(peer, NULL, &batch));
	want(0, wh_batch_add(batch, &transfer, 1));
	want(0, batch_run(batch));
	wh_batch_explain(batch, text, 4096);
	want(0, wh_batch_free(batch));
}

/* All four ways through slots: between the file and the peer's memory, and between it and a GPU. */
static void run_to_peer(struct ours *ours, char text[4096])
{
	file_fill(ours, 3);
	run(ours->peer, ours->file, ours->target.id, WH_WRITE, text);
	want_true(child_check(ours->child, ours->memory, 0, LENGTH, 0, 3) == PATTERN_GOOD,
		  "the peer's bytes");
}

static void run_from_peer(struct ours *ours, char text[4096])
{
	child_fill(ours->child, ours->memory, 0, LENGTH, 0, 4);
	run(ours->peer, ours->file, ours->target.id, WH_READ, text);
	want_file(ours, 4);
}

static void run_to_gpu(struct ours *ours, char text[4096])
{
	unsigned char *bytes = malloc(LENGTH);
	size_t wrong;

	assert_non_null(bytes);
	file_fill(ours, 5);
	run(ours->self, ours->on_gpu, wh_region_id(ours->file), WH_READ, text);
	bytes_get(bytes, ours->gpu, LENGTH, WH_MEMORY_DEVICE);
	wrong = pattern_check(bytes, LENGTH, 0, 5);
	free(bytes);
	want_true(wrong == PATTERN_GOOD, "byte %zu on the GPU", wrong);
}

static void run_from_gpu(struct ours *ours, char text[4096])
{
	unsigned char *bytes = malloc(LENGTH);

	assert_non_null(bytes);
	pattern_fill(bytes, LENGTH, 0, 6);
	bytes_put(ours->gpu, bytes, LENGTH, WH_MEMORY_DEVICE);
	free(bytes);
	run(ours->self, ours->on_gpu, wh_region_id(ours->file), WH_WRITE, text);
	want_file(ours, 6);
}

/* ---- tests ------------------------------------------------------------------------------------
 */

#define WITHOUT                                                                                    \
	"io_uring goes without registered buffers: Cannot allocate memory (RLIMIT_MEMLOCK is "     \
	"1024 KiB)"

static void want_registered(unsigned int slots)
{
	struct registered found = count_registered();

	want(1, found.rings);
	want(slots, found.buffers);
	want(slots, found.slots);
}

/* Each kind of slots is registered when it is first used. */
static void registered__as_used(void **state)
{
	struct ours ours;
	char text[4096];

	(void)state;
	harness_limit(120);
	ours_open(&ours);
	run_to_peer(&ours, text);
	want_true(!strstr(text, "registered buffers"), "it says: %s", text);
	want_registered(1);
	run_from_peer(&ours, text);
	want_registered(1);
	run_to_gpu(&ours, text);
	want_true(!strstr(text, "registered buffers"), "it says: %s", text);
	want_registered(2);
	run_from_gpu(&ours, text);
	run_to_peer(&ours, text);
	want_registered(2);
	ours_close(&ours);
	want(0, count_registered().rings);
}

/* A user who may lock so many bytes, of which `why` is said. */
static void as_nobody(rlim_t most, const char *why, const char *of_writes)
{
	const uid_t nobody = 65534;
	struct rlimit limit, less;
	struct ours ours;
	char text[4096];

	harness_limit(120);
	want(0, getrlimit(RLIMIT_MEMLOCK, &limit));
	less = (struct rlimit){ .rlim_cur = most, .rlim_max = limit.rlim_max };
	ours_open(&ours);
	want(0, setrlimit(RLIMIT_MEMLOCK, &less));
	/* Threads that start from here on are this user's: those for files are not there yet. */
	want(0, fchown(ours.fd, nobody, (gid_t)-1));
	want(0, seteuid(nobody));
	want(0, prctl(PR_SET_DUMPABLE, 1)); /* or its own /proc is closed to it */
	run_to_peer(&ours, text);
	want_true(strstr(text, why), "it says: %s", text);
	run_from_peer(&ours, text);
	want_true(strstr(text, of_writes), "it says: %s", text);
	run_to_gpu(&ours, text);
	want_true(strstr(text, why), "it says: %s", text);
	run_from_gpu(&ours, text);
	want_true(strstr(text, of_writes), "it says: %s", text);
	want(0, count_registered().buffers);
	want(0, seteuid(0));
	want(0, setrlimit(RLIMIT_MEMLOCK, &limit));
	ours_close(&ours);
}

/* The kernel counts rings themselves, too. */
static void locked__nothing(void **state)
{
	(void)state;
	as_nobody(0, "no io_uring: Cannot allocate memory (RLIMIT_MEMLOCK is 0 KiB)",
		  "by threads (no io_uring: Cannot allocate memory (RLIMIT_MEMLOCK is 0 KiB)");
}

/* Enough for rings, not for slots. */
static void locked__less_than_slots(void **state)
{
	(void)state;
	as_nobody(MIB, WITHOUT,
		  "past the page cache where they are aligned, by io_uring; " WITHOUT);
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(registered__as_used, needs_cold),
	TEST_NEEDS(locked__nothing, needs_cold_root),
	TEST_NEEDS(locked__less_than_slots, needs_cold_root),
};

HARNESS_MAIN("gpu-file-buffers", tests)
