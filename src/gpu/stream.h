/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the GPUs do for an engine: copies by their copy engines and the gather-scatter kernel, on
 * streams of the engine's own. The transports that move GPU memory use it.
 *
 * A struct wh_gpu_stream is a CUDA stream with what its work needs: a ring for lists, and a word in
 * pinned memory that says how many of its jobs are done. There is one for each context, direction
 * and urgency, so that directions overlap. Work is put on a stream in turns; a turn ends with a
 * job. The job's `done` is called when all bytes of the turn are visible to everybody, or with an
 * error when nothing of it moves any more.
 *
 * Nobody sleeps in the driver: the GPU stores the number of the last finished job into the stream's
 * word. Whoever waits for a batch polls the words; without a waiter the engine's GPU thread does,
 * which starts with the first job.
 */
#ifndef WH_GPU_STREAM_H
#define WH_GPU_STREAM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpu/pinned.h"
#include "kernels/blocks.h"
#include "platform/cuda.h"
#include "util/list.h"

struct wh_config;
struct wh_log;

/* What work on a stream costs: measured with the stream's first use, by wh_gpu_stream_probe(). */
struct wh_gpu_stream_cost {
	double launch; /* ns that a kernel takes besides its bytes */
	double copy; /* ns that each copy of a copy engine takes besides its bytes */
	double kernel_rate, copy_rate; /* bytes/ns, GB/s */
	bool measured;
};

/* One context of a device. */
struct wh_gpu_context {
	struct wh_gpu_context *next;
	struct wh_gpus *gpus;
	struct wh_cuda_device *device;
	CUcontext context; /* NULL: the primary one */
	struct wh_cuda_kernels kernels;
	/* why there are none, so that copy engines do everything; "": there are */
	char no_kernels[WH_TEXT_MAX];
	uint64_t counters; /* device memory: a 32-bit word that is 0, for each stream */
	struct wh_gpu_stream *stream[WH_BLOCKS_WAYS][2]; /* under gpus.lock */
};

#define WH_GPU_STREAM_RING ((uint64_t)2 << 20) /* bytes of lists under way */

struct wh_gpu_stream {
	struct wh_gpu_stream *_Atomic next; /* all of an engine's */
	struct wh_gpu_context *gpu;
	enum wh_blocks_way way;
	bool urgent;
	CUstream handle;
	uint64_t counter;
	struct wh_semaphore *semaphore; /* the number of the last job that is done */
	/* lists as the CPU writes them, pinned; as kernels read them; copied to the GPU */
	char *ring;
	uint64_t ring_host, ring_device;

	pthread_mutex_t lock; /* below, and putting work on the stream */
	uint32_t number; /* of the last job */
	uint64_t head, tail; /* of the ring; counted on and on */
	struct wh_list jobs; /* not done, oldest first */
	_Atomic uint32_t pending; /* how many those are; read without the lock */
	int64_t last_progress; /* when the stream itself was last asked, or a job ended */
	int error; /* not 0: the context is lost, with its text */
	char text[WH_TEXT_MAX];
	/* The one it is chosen by, which readers take without the lock: the guess, then what was
	 * measured. */
	const struct wh_gpu_stream_cost *_Atomic cost;
	struct wh_gpu_stream_cost guessed, measured;
	bool probed;
};

/* A turn's end. Zeroed by the caller, who keeps it until `done` is called, on any thread, with no
 * lock held. */
struct wh_gpu_stream_job {
	struct wh_list link;
	uint32_t number;
	uint64_t ring;
	int error;
	char text[WH_TEXT_MAX];
	void (*done)(struct wh_gpu_stream_job *job, int error, const char *text);
};

/* Contiguous bytes. The addresses are those of the stream's GPU. */
struct wh_pair {
	uint64_t from, to, length;
};

/* Many blocks, as kernels/blocks.h has them. */
struct wh_gpu_stream_blocks {
	struct wh_blocks_job job; /* strides, block_length, base_count and the bases */
	/* offsets, to be taken to the GPU; NULL: none */
	const uint64_t *source_list, *target_list;
	uint64_t source_cached, target_cached; /* the same if it has them already; 0: it has not */
	uint64_t bits; /* all addresses, offsets and strides in use and the block length, or-ed */
};

struct wh_gpu_stream_turn {
	struct wh_gpu_stream *stream;
	struct wh_cuda_scope scope;
	int error;
	char text[WH_TEXT_MAX];
	/* A launch that is put off, so that the last one of a turn can store the stream's word. */
	struct wh_blocks_job job;
	int variant;
	uint32_t grid; /* 0: none */
};

/* ---- an engine's GPUs ------------------------------------------------------------------------ */

/* Loads nothing and starts nothing. `config` and `log` stay the caller's and outlive it. 0 or
 * -ENOMEM. */
int wh_gpus_open(struct wh_cuda *cuda, const struct wh_config *config, const struct wh_log *log,
		 struct wh_gpus **out);
/* End the GPU thread: from here on nobody but the caller's threads ends jobs. No job may be left.
 * NULL is allowed. */
void wh_gpus_stop(struct wh_gpus *gpus);
/* No job may be left. NULL is allowed. */
void wh_gpus_close(struct wh_gpus *gpus);
struct wh_cuda *wh_gpus_cuda(const struct wh_gpus *gpus);

/* The stream of a context (NULL: the device's primary one). The first time in a context it may take
 * seconds. 0, or what the driver said. */
int wh_gpus_stream(struct wh_gpus *gpus, struct wh_cuda_device *device, CUcontext context,
		   enum wh_blocks_way way, bool urgent, struct wh_gpu_stream **out);

/* Call `done` of the jobs that are done. True: there were some. */
bool wh_gpus_poll(struct wh_gpus *gpus);
/* Do so for as long as is_running(arg) says so and polling is worth it, at most until `deadline`;
 * 0: once. */
void wh_gpus_progress(struct wh_gpus *gpus, bool (*is_running)(const void *arg), const void *arg,
		      int64_t deadline);

/* ---- putting work on a stream ---------------------------------------------------------------- */

/* Between begin and end the calling thread has the stream's context and its lock. A call that fails
 * makes the turn fail: what follows does nothing, and the job is done with that error once what had
 * been put on the stream has ended. */

void wh_gpu_stream_begin(struct wh_gpu_stream *stream, struct wh_gpu_stream_turn *turn);
/* One contiguous copy, by the copy engine. */
void wh_gpu_stream_copy(struct wh_gpu_stream_turn *turn, uint64_t to, uint64_t from,
			uint64_t length);
/* Copy pairs, each by the copy engine or the kernel, whichever there is and is faster. Returns how
 * many of the first were put on the stream: fewer than `count` if its ring is full; more can be had
 * when a job of the stream is done. The pairs may go afterwards. */
uint64_t wh_gpu_stream_pairs(struct wh_gpu_stream_turn *turn, const struct wh_pair *pairs,
			     uint64_t count);
/* Blocks [first, first + count) of all bases, by the kernel, which there has to be. Returns how
 * many of them were put on the stream; as above. The lists may go afterwards. */
uint64_t wh_gpu_stream_blocks(struct wh_gpu_stream_turn *turn,
			      const struct wh_gpu_stream_blocks *blocks, uint64_t first,
			      uint64_t count);
/* Lists that stay on the GPU until wh_cached_lists_free(). Uploads them in this turn; NULL: not
 * worth it, or not possible. `wh_cached_lists_ready()` when the turn's job is done: from then on
 * other streams of the GPU can use them, too. */
struct wh_cached_lists;
struct wh_cached_lists *wh_cached_lists_make(struct wh_gpu_stream_turn *turn,
					     const uint64_t *source, const uint64_t *target,
					     uint64_t count);
void wh_cached_lists_ready(struct wh_cached_lists *cached);
/* Let the blocks use them. False: not on this stream, or not yet. */
bool wh_cached_lists_use(const struct wh_cached_lists *cached, const struct wh_gpu_stream *stream,
			 struct wh_gpu_stream_blocks *blocks);
/* No job uses them any more. NULL is allowed. */
void wh_cached_lists_free(struct wh_cached_lists *cached);

/* The job may be done, and gone, when it returns: but its `done` is called by a poll, never from
 * here. */
void wh_gpu_stream_end(struct wh_gpu_stream_turn *turn, struct wh_gpu_stream_job *job);
/* The stream takes nothing any more, and what is on it has failed. Under stream.lock. */
void wh_gpu_stream_fail(struct wh_gpu_stream *stream, int error, const char *text);

/* Why the stream's GPU has no kernels, with what CUDA's compiler said; NULL: it has. */
const char *wh_gpu_stream_no_kernels(const struct wh_gpu_stream *stream);
/* A line for the explanation that says so, of whichever of the device's contexts is in use. False:
 * it has them, or nobody knows yet; or it is NULL. */
bool wh_gpus_describe(struct wh_gpus *gpus, const struct wh_cuda_device *device, char *line,
		      size_t size);
/* Is the kernel the better way for `count` copies of `length` bytes each? */
bool wh_gpu_stream_prefers_kernel(const struct wh_gpu_stream *stream, uint64_t count,
				  uint64_t length);
/* How long that would take by either, ns, on a stream that is busy already; *kernel 0: there is
 * none.
 */
void wh_gpu_stream_times(const struct wh_gpu_stream *stream, uint64_t count, uint64_t length,
			 double *kernel, double *copies);
/* With how many CTAs the kernel would run, if the addresses are aligned as the length is; 0: there
 * is none. */
uint32_t wh_gpu_stream_ctas(const struct wh_gpu_stream *stream, uint64_t count, uint64_t length);

/* What a stream's work costs as long as nobody has measured it. */
void wh_gpu_stream_guess_cost(struct wh_gpu_stream *stream);
/* Measure what work on the stream costs, once, before it is used: some ms. For ways between GPUs
 * `from` is memory of the other one of which `length` bytes may be read (64 KiB at least); 0: none,
 * so that a guess has to do. */
void wh_gpu_stream_probe(struct wh_gpu_stream *stream, uint64_t from, uint64_t length);

/* ---- events ---------------------------------------------------------------------------------- */

/* Who waits for an event of the application's streams. Zeroed by the caller. */
struct wh_event_wait {
	struct wh_list link;
	struct wh_cuda_device *device;
	CUcontext context; /* NULL: the primary one */
	CUevent event;
	_Atomic bool unwanted; /* it was given up before it was waited for */
	/* Called by a poll, with no lock held: it has happened, or, with an error, never will. */
	void (*ready)(struct wh_event_wait *wait, int error, const char *text);
};

/* 0, or why the thread that looks cannot be started, or -ECANCELED: it is unwanted. */
int wh_gpus_wait_event(struct wh_gpus *gpus, struct wh_event_wait *wait);
/* Wait no longer. False: too late, `ready` has been called or is about to be; or too early, and
 * then wh_gpus_wait_event() will say so. */
bool wh_gpus_cancel_event(struct wh_gpus *gpus, struct wh_event_wait *wait);

#endif
