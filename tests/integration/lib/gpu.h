/* SPDX-License-Identifier: Apache-2.0 */
/* gpu.h: what the GPU tests share
 *
 * The CUDA driver as an application uses it, the controls of the fake driver, blocked streams, and
 * a pair of regions with a choice of memory on either side. */
#ifndef TESTS_INTEGRATION_LIB_GPU_H
#define TESTS_INTEGRATION_LIB_GPU_H

#include "harness.h"

/* The driver's function by its exported name. Aborts if it does not exist. */
void *gpu_symbol(const char *name);
/* Call one: error = CU(cuMemFree_v2, (uint64_t), address) */
#define CU(name, types, ...) (((int(*) types)gpu_symbol(#name))(__VA_ARGS__))

/* Conditions of tests: the fake driver, which injects faults; two GPUs. */
extern const struct route needs_fake;
extern const struct route needs_two_gpus;

void fake_fail(const char *function, unsigned int nth, int error);
void fake_heal(void);
/* What each operation of this process's GPUs takes longer. A new delay ends those under way. */
void fake_delay(unsigned int microseconds);
/* What page-locking takes longer from now on. */
void fake_slow_locking(unsigned int microseconds);
uint64_t fake_calls(const char *function);

/* Wait until the process (0: this one) has finished preparing its GPUs for its peers' requests, so
 * that the preparation does not disturb what the test does next. */
void gpu_settled(pid_t process);

/* Make the device's primary context current in this thread; release it. */
void gpu_enter(int device);
void gpu_leave(void);
/* Free memory of the device, in bytes. */
size_t gpu_free_memory(int device);

/* A blocked stream: work queued behind gpu_block() waits for gpu_unblock(). The stream has a
 * context of its own, so that the test can still synchronize with other contexts. */
struct gpu_block {
	void *context, *stream;
	_Atomic int open;
	_Atomic int passed;
};
void gpu_block(struct gpu_block *block, int device);
/* Unblock the stream, wait for it, and block it again: cheaper than a new context. */
void gpu_block_again(struct gpu_block *block);
/* Unblock the stream, wait for it, and destroy stream and context. */
void gpu_unblock(struct gpu_block *block);
/* Queue a callback on the stream that sets *flag. */
void gpu_flag(void *stream, _Atomic int *flag);
/* Wait for the flag. False: `patience` (ns) has passed. */
bool gpu_flagged(_Atomic int *flag, int64_t patience);

/* Two regions, ours and a peer's. */
struct gpu_pair {
	struct wh_engine *engine;
	struct child *child; /* NULL: this engine is its own peer */
	struct wh_peer *peer;
	uint32_t here, there; /* memory kinds of `local` and of the target */
	size_t length;
	unsigned char *local, *target; /* target: if in this process */
	int memory, child_region; /* the child's numbers of the two */
	struct wh_region *region, *target_region;
	struct wh_remote remote;
};
/* Open a pair. `where`, `elsewhere`: location of each side's memory ("cuda:1"; NULL: any). `apart`:
 * the target is a new child. */
void gpu_pair_open(struct gpu_pair *p, uint32_t here, const char *where, uint32_t there,
		   const char *elsewhere, size_t length, bool apart);
/* The same with a running child, which the pair then owns; NULL: in this process. */
void gpu_pair_open_with(struct gpu_pair *p, uint32_t here, const char *where, uint32_t there,
			const char *elsewhere, size_t length, struct child *child);
void gpu_pair_close(struct gpu_pair *p);
/* A batch with one transfer of the whole length. */
struct wh_batch *gpu_pair_batch(struct gpu_pair *p, uint32_t op);
/* Submit the batch, wait, and return the status. */
int gpu_run(struct wh_batch *batch);
/* Fill both sides, each with its own pattern of the seed; then check that the target equals our
 * side, or is unchanged. */
void gpu_pair_fill(struct gpu_pair *p, uint64_t seed);
bool gpu_pair_copied(struct gpu_pair *p, uint64_t seed);
bool gpu_pair_untouched(struct gpu_pair *p, uint64_t seed);

#endif
