/* SPDX-License-Identifier: Apache-2.0 */
/* gpu-file.h: an engine with a file and memory of a GPU, which reads the file out of the page
 * cache; and what happens to the file meanwhile */
#ifndef TESTS_INTEGRATION_LIB_GPU_FILE_H
#define TESTS_INTEGRATION_LIB_GPU_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include <wherry/wherry.h>

#include "harness.h"

/* Of the region, more than one chunk of 32 MiB, and of the file, with odd ends around it. */
#define GPU_FILE_LENGTH (34 * MIB + 4099)
#define GPU_FILE_START 777
#define GPU_FILE_SIZE (GPU_FILE_START + GPU_FILE_LENGTH + GPU_FILE_START)

/* What the explanation says of a file that a GPU reads. */
#define GPU_FILE_USED "out of the page cache"

/* The driver's calls that page-lock a chunk, and let it go. */
#define GPU_FILE_REGISTER "cuMemHostRegister_v2"
#define GPU_FILE_UNREGISTER "cuMemHostUnregister"

struct gpu_file {
	struct wh_engine *engine;
	struct wh_peer *peer;
	int fd;
	unsigned char *map; /* of the whole file, with the pattern of seed 1 */
	void *gpu;
	struct wh_region *file, *memory;
	uint64_t locked, let_go; /* calls before it was opened */
	bool uncounted; /* some that locked have failed */
};

/* Only the fake driver counts its calls. */
bool gpu_file_counts(void);
/* How often the driver has been called so; 0: it does not count. */
uint64_t gpu_file_calls(const char *name);

/* `setting`: of the engine; `url`: of its peer. */
void gpu_file_open(struct gpu_file *ours, const char *setting, const char *url);
/* All that was page-locked has been let go. */
void gpu_file_close(struct gpu_file *ours);

/* Read the file's first `length` bytes into the GPU. Returns the batch's status. */
int gpu_file_read(const struct gpu_file *ours, uint64_t length, char text[4096]);
/* The same, out of the page cache, and the right bytes. */
void want_gpu_file_read(const struct gpu_file *ours, uint64_t length, uint64_t seed);
/* The GPU has the file's first `length` bytes. */
void want_gpu_file(const struct gpu_file *ours, uint64_t length, uint64_t seed);
/* All that the GPU has. The caller frees it. */
unsigned char *gpu_file_bytes(const struct gpu_file *ours);

/* From now on the library sees the times of the file stand still, so many seconds ago; until
 * thawed. One file at a time. */
void gpu_file_freeze(const struct gpu_file *ours, long seconds);
void gpu_file_thaw(void);

/* A thread that cuts the file behind its first MiB. With fake_delay() before, the GPU reads after
 * that. */
struct gpu_file_mender {
	const struct gpu_file *ours;
	const char *call;
	uint64_t calls; /* it begins when the driver has been called once more */
	bool mend; /* it makes the file as long again, by zeroes */
};

void *gpu_file_cut(void *mender);

#endif
