/* SPDX-License-Identifier: Apache-2.0 */
/* What the test and the benchmark of the gather-scatter kernel share. */
#ifndef TESTS_GPU_BLOCKS_H
#define TESTS_GPU_BLOCKS_H

#include "../../kernels/blocks.h"
#include "gpu.h"

/* Memory that the GPU which runs the kernel reaches at `address`. */
struct arena {
	uint64_t address;
	uint64_t size;
	struct wh_cuda_device *device; /* NULL: pinned host memory */
	void *host;
};

extern struct wh_cuda_kernels kernels[WH_CUDA_DEVICES]; /* by device */

/* On `device`, NULL: pinned. False: failed and told. */
bool arena_new(struct arena *arena, struct wh_cuda_device *device, uint64_t size);
void arena_free(struct arena *arena);

/* Measure with so many bytes a run and print one JSON object. */
void bench(uint64_t bytes);

#endif
