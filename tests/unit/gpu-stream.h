/* SPDX-License-Identifier: Apache-2.0 */
/* For the tests gpu-stream and gpu-stream-costs: a GPU stream with memory on both sides. */
#ifndef TEST_GPU_STREAM_H
#define TEST_GPU_STREAM_H

#include <sched.h>
#include <unistd.h>

#include "fake-cuda.h"

#include "gpu/gpus.h"
#include "gpu/stream.h"
#include "util/clock.h"

/* Bytes on each side. Fewer under the thread sanitizer, which checks every 16 bytes that the fake
 * GPU moves. */
#ifdef __SANITIZE_THREAD__
#define ROOM ((uint64_t)10 << 20)
#else
#define ROOM ((uint64_t)24 << 20)
#endif
#define PAIRS 4096
#define COPY_CALL "cuMemcpyBatchAsync_v2" /* of many copies */

struct bench {
	struct wh_engine *engine;
	struct wh_gpu_stream *stream;
	void *from, *to;
	uint8_t *source, *expected; /* bytes at `from`; bytes expected at `to` */
	uint8_t *seen; /* bytes read from `to` */
	struct wh_pair pairs[PAIRS];
};

static inline void set_up(struct bench *b, enum wh_blocks_way way)
{
	struct wh_memory_options options = { .size = sizeof(options),
					     .kind = WH_MEMORY_DEVICE,
					     .location = "cuda:0" };
	uint64_t state = 7;

	memset(b, 0, sizeof(*b));
	b->engine = engine_with(getenv("TEST_CUDA"));
	/* A busy machine is slow, and tests slow copies down. */
	b->engine->gpus->probe_patience = 600 * WH_SECOND;
	assert_int_equal(wh_memory_alloc(b->engine, ROOM, &options, &b->from), 0);
	assert_int_equal(wh_memory_alloc(b->engine, ROOM, &options, &b->to), 0);
	b->source = malloc(ROOM);
	b->expected = calloc(1, ROOM);
	b->seen = calloc(1, ROOM); /* calloc: valgrind does not see a GPU's writes */
	assert_true(b->source && b->expected && b->seen);
	for (uint64_t i = 0; i < ROOM; i += 8)
		memcpy(b->source + i, &(uint64_t){ next_random(&state) }, 8);
	AS_APPLICATION(b->engine, 0,
		       CU(b->engine, cuMemcpyHtoD, (uintptr_t)b->from, b->source, ROOM);
		       CU(b->engine, cuCtxSynchronize));
	assert_int_equal(wh_gpus_stream(b->engine->gpus, &b->engine->cuda->devices[0], NULL, way,
					false, &b->stream),
			 0);
}

static inline void tear_down(struct bench *b)
{
	assert_int_equal(wh_memory_free(b->engine, b->from), 0);
	assert_int_equal(wh_memory_free(b->engine, b->to), 0);
	assert_int_equal(wh_engine_close(b->engine), 0);
	free(b->source);
	free(b->expected);
	free(b->seen);
}

static inline void compare(struct bench *b)
{
	AS_APPLICATION(b->engine, 0, CU(b->engine, cuMemcpyDtoH, b->seen, (uintptr_t)b->to, ROOM));
	assert_true(!memcmp(b->seen, b->expected, ROOM));
}

struct turn {
	struct wh_gpu_stream_job job;
	_Atomic int done;
	int error;
};

static inline void ended(struct wh_gpu_stream_job *job, int error, const char *text)
{
	struct turn *turn = wh_container(job, struct turn, job);

	(void)text;
	turn->error = error;
	atomic_store(&turn->done, 1);
}

static inline void wait_for(struct bench *b, struct turn *turn)
{
	while (!atomic_load(&turn->done)) {
		wh_gpus_poll(b->engine->gpus);
		usleep(20); /* the fake GPU needs the processor, and its delays are ms */
	}
	assert_int_equal(turn->error, 0);
}

/* Costs that make the kernel move everything, nothing, or the shorter fragments. */
enum costs { ALL_KERNEL, ALL_COPIES, MIXED, COSTS };

static inline void set_costs(struct wh_gpu_stream *stream, enum costs costs)
{
	static const struct wh_gpu_stream_cost all[COSTS] = {
		[ALL_KERNEL] = { 1, 1e6, 1e6, 100, 100, true },
		[ALL_COPIES] = { 1e12, 1, 1, 100, 100, true },
		[MIXED] = { 10, 1000, 1000, 50, 100, true }, /* copy engine from 100,000 bytes on */
	};

	stream->measured = all[costs];
	atomic_store(&stream->cost, &stream->measured);
	memset(stream->gpu->lessons, 0, sizeof(stream->gpu->lessons));
}

#endif
