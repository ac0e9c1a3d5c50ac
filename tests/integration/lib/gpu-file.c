/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/gpu-file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "lib/files.h"
#include "lib/fixture.h"
#include "lib/gpu.h"

/* ---- files whose times stand still -------------------------------------------------------------
 */

static atomic_int frozen = -1; /* the times of this descriptor's file do not change */
static struct timespec frozen_at;

/* The library's calls come here. (And those of any test that calls it, for which nothing is
 * frozen.)
 */
int fstat(int fd, struct stat *out)
{
	int error = fstatat(fd, "", out, AT_EMPTY_PATH), still = atomic_load(&frozen);
	struct stat it;

	if (!error && still >= 0 && !fstatat(still, "", &it, AT_EMPTY_PATH) &&
	    it.st_ino == out->st_ino && it.st_dev == out->st_dev)
		out->st_mtim = out->st_ctim = frozen_at;
	return error;
}

void gpu_file_freeze(const struct gpu_file *ours, long seconds)
{
	want(0, clock_gettime(CLOCK_REALTIME, &frozen_at));
	frozen_at.tv_sec -= seconds;
	atomic_store(&frozen, ours->fd);
}

void gpu_file_thaw(void)
{
	atomic_store(&frozen, -1);
}

/* ---- an engine with a file and a GPU ----------------------------------------------------------
 */

bool gpu_file_counts(void)
{
	return getenv("TEST_CUDA");
}

uint64_t gpu_file_calls(const char *name)
{
	return gpu_file_counts() ? fake_calls(name) : 0;
}

void gpu_file_open(struct gpu_file *ours, const char *setting, const char *url)
{
	struct wh_memory_options options = { .size = sizeof(options),
					     .kind = WH_MEMORY_DEVICE,
					     .location = "cuda:0" };
	struct wh_region_options file = { .size = sizeof(file), .name = "file" };
	const char *config[] = { setting, NULL };

	*ours = (struct gpu_file){ .engine = engine_open(NULL, "none", config) };
	ours->fd = file_new(GPU_FILE_SIZE);
	want_true(ours->fd >= 0, "no file");
	ours->map = file_map(ours->fd, GPU_FILE_SIZE);
	want_true(ours->map, "mmap: %s", strerror(errno));
	pattern_fill(ours->map, GPU_FILE_SIZE, 0, 1);
	want(0, file_region(ours->engine, ours->fd, GPU_FILE_START, GPU_FILE_LENGTH, &file,
			    &ours->file));
	want(0, wh_memory_alloc(ours->engine, GPU_FILE_LENGTH, &options, &ours->gpu));
	want(0, wh_region_register(ours->engine, ours->gpu, GPU_FILE_LENGTH, NULL, &ours->memory));
	want(0, wh_peer_open(ours->engine, url, NULL, &ours->peer));
	ours->locked = gpu_file_calls(GPU_FILE_REGISTER);
	ours->let_go = gpu_file_calls(GPU_FILE_UNREGISTER);
}

void gpu_file_close(struct gpu_file *ours)
{
	want(0, wh_peer_close(ours->peer));
	want(0, wh_region_unregister(ours->file));
	if (!ours->uncounted)
		want(gpu_file_calls(GPU_FILE_REGISTER) - ours->locked,
		     gpu_file_calls(GPU_FILE_UNREGISTER) - ours->let_go);
	want(0, wh_region_unregister(ours->memory));
	want(0, wh_memory_free(ours->engine, ours->gpu));
	want(0, wh_engine_close(ours->engine));
	munmap(ours->map, GPU_FILE_SIZE);
	close(ours->fd);
}

static struct wh_batch *gpu_file_batch(const struct gpu_file *ours, uint64_t length)
{
	struct wh_transfer transfer = { .op = WH_READ,
					.local = ours->memory,
					.remote = wh_region_id(ours->file),
					.length = length };
	struct wh_batch *batch;

	want(0, wh_batch_new(ours->peer, NULL, &batch));
	want(0, wh_batch_add(batch, &transfer, 1));
	return batch;
}

int gpu_file_read(const struct gpu_file *ours, uint64_t length, char text[4096])
{
	struct wh_batch *batch = gpu_file_batch(ours, length);
	int status = batch_run(batch);

	wh_batch_explain(batch, text, 4096);
	want(0, wh_batch_free(batch));
	return status;
}

unsigned char *gpu_file_bytes(const struct gpu_file *ours)
{
	unsigned char *bytes = malloc(GPU_FILE_LENGTH);

	assert_non_null(bytes);
	bytes_get(bytes, ours->gpu, GPU_FILE_LENGTH, WH_MEMORY_DEVICE);
	return bytes;
}

void want_gpu_file(const struct gpu_file *ours, uint64_t length, uint64_t seed)
{
	unsigned char *bytes = gpu_file_bytes(ours);
	size_t wrong = pattern_check(bytes, length, GPU_FILE_START, seed);

	free(bytes);
	want_true(wrong == PATTERN_GOOD, "byte %zu on the GPU", wrong);
}

void want_gpu_file_read(const struct gpu_file *ours, uint64_t length, uint64_t seed)
{
	char text[4096];

	want(0, gpu_file_read(ours, length, text));
	want_true(strstr(text, GPU_FILE_USED), "it says: %s", text);
	want_gpu_file(ours, length, seed);
}

void *gpu_file_cut(void *argument)
{
	const struct gpu_file_mender *mender = argument;

	while (gpu_file_calls(mender->call) == mender->calls)
		usleep(100);
	usleep(20000); /* they are locked by now */
	gpu_file_thaw();
	ftruncate(mender->ours->fd, GPU_FILE_START + MIB);
	if (mender->mend)
		ftruncate(mender->ours->fd, GPU_FILE_SIZE);
	fake_delay(0); /* the copies begin */
	return NULL;
}
