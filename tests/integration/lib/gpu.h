/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the GPU tests share: the CUDA driver as an application has it, the fake driver's controls,
 * and an engine with memory on both sides.
 */
#ifndef TESTS_INTEGRATION_LIB_GPU_H
#define TESTS_INTEGRATION_LIB_GPU_H

#include "harness.h"

/* A function of the driver by its exported name; aborts if there is none. */
void *gpu_symbol(const char *name);
/* Call one: error = CU(cuMemFree_v2, (uint64_t), address) */
#define CU(name, types, ...) (((int(*) types)gpu_symbol(#name))(__VA_ARGS__))

/* Tests that ask the fake driver for faults. */
extern const struct route needs_fake;
extern const struct route needs_two_gpus;

void fake_fail(const char *function, unsigned int nth, int error);
void fake_heal(void);
uint64_t fake_calls(const char *function);

/* Wait until a process (0: this one) has made ready what its peers may ask its GPUs for, so that
 * nothing of that falls into what comes next. */
void gpu_settled(pid_t process);

/* Make the device's primary context current for the application, and leave it. */
void gpu_enter(int device);
void gpu_leave(void);
/* Bytes of the device that are free. */
size_t gpu_free_memory(int device);

/* A stream whose work is held up: nothing behind gpu_block() is done before gpu_unblock(). In a
 * context of its own, so that others can be waited for. */
struct gpu_block {
	void *context, *stream;
	_Atomic int open;
	_Atomic int passed;
};
void gpu_block(struct gpu_block *block, int device);
/* Let it go on, wait for it and hold it up once more: a context of its own takes long to make. */
void gpu_block_again(struct gpu_block *block);
/* Let the stream go on, wait for it and destroy both. */
void gpu_unblock(struct gpu_block *block);
/* Put something on the stream that sets *flag. */
void gpu_flag(void *stream, _Atomic int *flag);
/* Is it set within the time? */
bool gpu_flagged(_Atomic int *flag, int64_t patience);

/* Two regions, one of ours and one of a peer. */
struct gpu_pair {
	struct wh_engine *engine;
	struct child *child; /* NULL: the peer is this engine itself */
	struct wh_peer *peer;
	uint32_t here, there; /* kinds of memory */
	size_t length;
	unsigned char *local, *target; /* target: in this process */
	int memory, child_region; /* the child's numbers */
	struct wh_region *region, *target_region;
	struct wh_remote remote;
};
/* `where`, `elsewhere`: "cuda:1", NULL: anywhere. A child is started if `apart`. */
void gpu_pair_open(struct gpu_pair *p, uint32_t here, const char *where, uint32_t there,
		   const char *elsewhere, size_t length, bool apart);
/* The same with a child that has been started already; NULL: in this process. */
void gpu_pair_open_with(struct gpu_pair *p, uint32_t here, const char *where, uint32_t there,
			const char *elsewhere, size_t length, struct child *child);
void gpu_pair_close(struct gpu_pair *p);
/* The whole length, one transfer. */
struct wh_batch *gpu_pair_batch(struct gpu_pair *p, uint32_t op);
/* Submit and wait. */
int gpu_run(struct wh_batch *batch);
/* Fill both sides with patterns of a seed of their own; is the target the local side's copy? */
void gpu_pair_fill(struct gpu_pair *p, uint64_t seed);
bool gpu_pair_copied(struct gpu_pair *p, uint64_t seed);
bool gpu_pair_untouched(struct gpu_pair *p, uint64_t seed);

#endif
