/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.h: the GPU streams of an engine, on which transports run copy engines and the
 * gather-scatter kernel.
 *
 * A GPU stream is a CUDA stream with a ring for address lists and a semaphore in pinned memory,
 * into which the GPU stores the number of the last finished job. There is one stream for each
 * context, direction and urgency, so that directions overlap. A transport submits work in turns:
 * begin, copies and blocks, end. A turn is one job; the job's `done` runs when all its bytes are
 * visible to CPUs, GPUs and NICs, or with an error when nothing of it moves any more.
 *
 * No thread blocks in the CUDA driver for a job: threads that wait for a batch poll the semaphores,
 * and the engine's GPU thread, which starts with the first stream, polls them for everybody else.
 */
#ifndef WH_GPU_STREAM_H
#define WH_GPU_STREAM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpu/lesson.h"
#include "gpu/pinned.h"
#include "kernels/blocks.h"
#include "platform/cuda.h"
#include "util/list.h"

struct wh_config;
struct wh_log;
struct wh_turns;

/* What work on a stream costs: typical values, or measured by wh_gpu_stream_probe(). */
struct wh_gpu_stream_cost {
	double launch; /* ns for each kernel, besides its bytes */
	double copy; /* ns for the first copy by a copy engine, besides its bytes */
	double next_copy; /* ns for each further one of the turn */
	double kernel_rate, copy_rate; /* bytes/ns, GB/s */
	bool measured;
};

/* One CUDA context of a device, with its kernels and streams. Freed by wh_gpus_close(). */
struct wh_gpu_context {
	struct wh_gpu_context *next;
	struct wh_gpus *gpus;
	struct wh_cuda_device *device;
	CUcontext context; /* NULL: the device's primary context */
	struct wh_cuda_kernels kernels;
	/* why the kernels could not be loaded, so that copy engines move everything; "": loaded */
	char no_kernels[WH_TEXT_MAX];
	_Atomic bool no_copy_call; /* the driver has refused cuMemcpyBatchAsync */
	_Atomic bool stands_still; /* a probe was given up: no other stream is probed */
	uint64_t counters; /* device memory: wh_blocks_job.counter of each stream, 4 bytes each */
	struct wh_gpu_stream *stream[WH_BLOCKS_WAYS][2]; /* under gpus.lock */
	struct wh_lesson lessons[WH_BLOCKS_WAYS][WH_LESSONS]; /* of both streams of a way */
};

#define WH_GPU_STREAM_RING ((uint64_t)2 << 20) /* bytes of address lists in flight */

struct wh_gpu_stream {
	struct wh_gpu_stream *_Atomic next; /* gpus.streams */
	struct wh_gpu_context *gpu;
	enum wh_blocks_way way;
	bool urgent;
	CUstream handle;
	uint64_t counter; /* address in gpu->counters */
	struct wh_semaphore *semaphore; /* number of the last finished turn */
	/* The CPU writes lists to pinned memory: `ring`, which the GPU reads at ring_host. Long
	 * lists are copied to the same offset of ring_device first. */
	char *ring;
	uint64_t ring_host, ring_device;

	pthread_mutex_t waiting_lock; /* taken after `lock` */
	struct wh_list
		waiting; /* jobs of wh_gpu_stream_put() that are in no turn yet, oldest first */
	_Atomic uint32_t waiting_count; /* its length; may be read without the lock */
	_Atomic uint64_t waiting_bytes; /* that these move; the same */

	pthread_mutex_t lock; /* guards what follows, and submitting */
	_Atomic uint32_t number; /* of the last submitted turn; may be read without the lock */
	/* of the last turn for which the GPU will store the semaphore; polls see that of later ones
	 * stored: wh_gpu_stream_store() */
	uint32_t stored;
	uint64_t head, tail; /* of the ring, in bytes; never wrapped */
	struct wh_list jobs; /* in flight, oldest first */
	struct wh_list ended; /* jobs that have been seen to have ended; the next poll says so */
	_Atomic uint32_t pending; /* length of both; may be read without the lock */
	int64_t last_progress; /* ns; when a job last ended or the stream was last queried */
	int64_t seen_busy; /* ns; when a poll last found the oldest job unfinished */
	int64_t oldest_since; /* ns; not after the oldest job began to run, as far as is known */
	int error; /* not 0: the context has failed, see `text`; no job is accepted any more */
	char text[WH_TEXT_MAX];
	/* &guessed, then &measured; may be read without the lock. */
	const struct wh_gpu_stream_cost *_Atomic cost;
	struct wh_gpu_stream_cost guessed, measured;
	/* ns; when it last was in flight together with work between the same GPUs the other way */
	int64_t _Atomic opposed_at;
	bool probed;
	void *late_probe; /* one that was given up; its job may never end */
};

/* What the time of a turn will teach. */
struct wh_gpu_stream_lesson {
	struct wh_lesson *lesson; /* NULL: nothing */
	enum wh_mover mover;
	double typical; /* ns; its time by typical costs */
	int64_t submitted; /* ns that submitting it took: it counts as at least that */
};

/* The completion of a turn, or of what one of several has in it. The caller zeroes it, sets `done`
 * and keeps it until `done` is called, on any thread, with no lock held. */
struct wh_gpu_stream_job {
	struct wh_list link;
	/* for wh_gpu_stream_put(); the caller keeps the pairs, too */
	const struct wh_pair *pairs;
	uint64_t count;
	const void *owner; /* for wh_gpus_withdraw() */
	uint32_t number; /* of its turn */
	bool follows; /* its turn is also that of the job before it, which has the lesson */
	uint64_t ring; /* the stream's `head` at the end of the turn */
	int64_t begun; /* ns; when the turn began */
	struct wh_gpu_stream_lesson lesson;
	int error;
	char text[WH_TEXT_MAX];
	void (*done)(struct wh_gpu_stream_job *job, int error, const char *text);
};

/* One contiguous copy. The addresses are those by which the stream's GPU knows the memory. */
struct wh_pair {
	uint64_t from, to, length;
};

/* Many blocks of one length, see kernels/blocks.h. */
struct wh_gpu_stream_blocks {
	struct wh_blocks_job job; /* strides, block_length, base_count and the bases */
	/* offsets, in host memory; NULL: none */
	const uint64_t *source_list, *target_list;
	uint64_t source_cached, target_cached; /* their copies on the GPU; 0: no copy */
	uint64_t bits; /* all addresses, offsets and strides in use and the block length, or-ed */
};

/* What a turn has submitted so far, as far as a lesson can come of it. */
struct wh_gpu_stream_work {
	uint64_t count[WH_MOVERS], bytes[WH_MOVERS]; /* copies of each mover */
	unsigned class; /* of the copies chosen for last, plus 1; 0: none */
	enum wh_mover mover; /* chosen for that class */
	bool other; /* some work is of no class: it teaches nothing */
};

struct wh_gpu_stream_turn {
	struct wh_gpu_stream *stream;
	int64_t begun; /* ns */
	struct wh_gpu_stream_work work;
	bool by_copies; /* set after begin: pairs go by the copy engine, as was chosen before */
	struct wh_cuda_scope scope;
	int error;
	char text[WH_TEXT_MAX];
	/* The last launch of the turn is deferred until the end, to store the semaphore as well. */
	struct wh_blocks_job job;
	int variant;
	uint32_t grid; /* CTAs of the deferred launch; 0: none */
};

/* ---- an engine's GPUs ------------------------------------------------------------------------ */

/* Does not load CUDA and does not start the GPU thread. With `turns` there is no such thread: these
 * poll. The caller keeps all of them until wh_gpus_close(). 0 or -ENOMEM. */
int wh_gpus_open(struct wh_cuda *cuda, const struct wh_config *config, const struct wh_log *log,
		 struct wh_turns *turns, struct wh_gpus **out);
/* End the GPU thread and wait for it. No job may be in flight. NULL is allowed. */
void wh_gpus_stop(struct wh_gpus *gpus);
/* Stop, and free all contexts, streams and pinned memory. No job may be in flight. NULL is allowed.
 */
void wh_gpus_close(struct wh_gpus *gpus);
struct wh_cuda *wh_gpus_cuda(const struct wh_gpus *gpus);

/* Find or make the stream of a context (NULL: the device's primary context). The first call for a
 * context loads the kernels, which may take seconds. 0, or the driver's error. The stream lives
 * until wh_gpus_close(). */
int wh_gpus_stream(struct wh_gpus *gpus, struct wh_cuda_device *device, CUcontext context,
		   enum wh_blocks_way way, bool urgent, struct wh_gpu_stream **out);

/* Call `done` of each finished job and `ready` of one event that has occurred. True: any was
 * called. Thread-safe; no lock may be held. */
bool wh_gpus_poll(struct wh_gpus *gpus);
/* Poll while is_running(arg) is true, for at most some milliseconds and not past `deadline` (ns, as
 * wh_now()); deadline 0: poll once. */
void wh_gpus_progress(struct wh_gpus *gpus, bool (*is_running)(const void *arg), const void *arg,
		      int64_t deadline);

/* ---- submitting work to a stream ------------------------------------------------------------- */

/* Between begin and end the calling thread holds the stream's lock, and the stream's context is
 * current. If a call fails, the rest of the turn does nothing, and the job ends with that error as
 * soon as everything submitted before has ended. */

void wh_gpu_stream_begin(struct wh_gpu_stream *stream, struct wh_gpu_stream_turn *turn);
/* Submit one contiguous copy, by the copy engine. */
void wh_gpu_stream_copy(struct wh_gpu_stream_turn *turn, uint64_t to, uint64_t from,
			uint64_t length);
/* Submit pairs, each by copy engine or kernel, whichever is available and faster; the copies of one
 * call of this go to the driver together where it can take them so. Returns how many
 * of the first pairs were submitted: fewer than `count` if the ring is full; submit the rest when a
 * job of the stream has ended. `pairs` may be freed when it returns. */
uint64_t wh_gpu_stream_pairs(struct wh_gpu_stream_turn *turn, const struct wh_pair *pairs,
			     uint64_t count);
/* Submit blocks [first, first + count) of all bases, by the kernel; the GPU must have kernels.
 * Returns how many of the first blocks were submitted, as above. The lists may be freed when it
 * returns. */
uint64_t wh_gpu_stream_blocks(struct wh_gpu_stream_turn *turn,
			      const struct wh_gpu_stream_blocks *blocks, uint64_t first,
			      uint64_t count);
/* Offset lists that stay on the GPU until wh_cached_lists_free(). wh_cached_lists_make() uploads
 * them in this turn; NULL: too short, too long or impossible. Call wh_cached_lists_ready() when the
 * turn's job has ended: from then on other streams of the context can use them, too. */
struct wh_cached_lists;
struct wh_cached_lists *wh_cached_lists_make(struct wh_gpu_stream_turn *turn,
					     const uint64_t *source, const uint64_t *target,
					     uint64_t count);
void wh_cached_lists_ready(struct wh_cached_lists *cached);
/* Set source_cached and target_cached of `blocks`. False: another context's, or not yet uploaded.
 */
bool wh_cached_lists_use(const struct wh_cached_lists *cached, const struct wh_gpu_stream *stream,
			 struct wh_gpu_stream_blocks *blocks);
/* No job may use them any more. NULL is allowed. */
void wh_cached_lists_free(struct wh_cached_lists *cached);

/* End the turn. `done` is called by a poll, never from here, but possibly before this returns, on
 * another thread: `job` may be freed by then. */
void wh_gpu_stream_end(struct wh_gpu_stream_turn *turn, struct wh_gpu_stream_job *job);
/* Fail all jobs of the stream, and all later turns. Under stream.lock. */
void wh_gpu_stream_fail(struct wh_gpu_stream *stream, int error, const char *text);

#define WH_GPU_SHARED_PAIRS 16u /* the most pairs of such a job */
/* May jobs of so many pairs and bytes wait for a turn that they share? */
bool wh_gpu_stream_shares(const struct wh_gpu_stream *stream, uint64_t count, uint64_t bytes);
/* Submit the pairs of a job for which wh_gpu_stream_shares(). If few turns are in flight it starts
 * at once; else it waits behind these, and goes in one turn with all that wait then. Its error is
 * its own. Any thread; no lock may be held. `done` is called by a poll, as of other jobs. */
void wh_gpu_stream_put(struct wh_gpu_stream *stream, struct wh_gpu_stream_job *job);
/* End the jobs of this owner that still wait, with this error: `done` is called from here. */
void wh_gpus_withdraw(struct wh_gpus *gpus, const void *owner, int error, const char *text);

/* Why the stream's context has no kernels, with the output of CUDA's compiler; NULL: it has. */
const char *wh_gpu_stream_no_kernels(const struct wh_gpu_stream *stream);
/* Write to `line` why the device has no kernels, if loading them has failed in any of its contexts.
 * False: it has not, or no context has loaded them yet. `device` may be NULL. */
bool wh_gpus_describe(struct wh_gpus *gpus, const struct wh_cuda_device *device, char *line,
		      size_t size);
/* Is the kernel faster than the copy engine for `count` copies of `length` bytes each, by what
 * turns have taught, else by the stream's cost? */
bool wh_gpu_stream_prefers_kernel(const struct wh_gpu_stream *stream, uint64_t count,
				  uint64_t length);
/* The mover for such copies, which are about to be submitted: mostly the faster one. The other is
 * tried now and then (lesson.h), by work that is not urgent and is long or has to wait anyway. */
enum wh_mover wh_gpu_stream_choose(struct wh_gpu_stream *stream, uint64_t count, uint64_t length);
/* What the choice is made by. The kernel's time is 0 without kernels. */
void wh_gpu_stream_look(const struct wh_gpu_stream *stream, uint64_t count, uint64_t length,
			struct wh_lesson_view view[WH_MOVERS]);
/* Are two GPUs' links busy the other way, or were they until some ms ago, as far as this engine has
 * work on its streams? */
bool wh_gpu_stream_is_opposed(struct wh_gpu_stream *stream);
/* What a kernel takes from other work on the GPU by setting `model_first`, as a share of its time.
 */
double wh_gpu_stream_burden(const struct wh_gpu_stream *stream);
/* Other processes compute on the device, or do not. Thread-safe. */
void wh_gpus_share(struct wh_gpus *gpus, const struct wh_cuda_device *device, bool shared);
/* What a turn's work teaches; for launch.c. */
void wh_gpu_stream_teaches(struct wh_gpu_stream *stream, const struct wh_gpu_stream_work *work,
			   struct wh_gpu_stream_lesson *out);
/* Estimate both, in ns: by what turns have taught, else by the stream's cost without the latency of
 * an idle stream. *kernel is 0 without kernels. */
void wh_gpu_stream_times(const struct wh_gpu_stream *stream, uint64_t count, uint64_t length,
			 double *kernel, double *copies);
/* How many CTAs a launch of the kernel would use if all addresses are aligned as the length is; 0:
 * no kernels. */
uint32_t wh_gpu_stream_ctas(struct wh_gpu_stream *stream, uint64_t count, uint64_t length);

/* Set the cost to typical values. */
void wh_gpu_stream_guess_cost(struct wh_gpu_stream *stream);
/* Measure the stream's cost. Takes some ms, and only the first call measures, if the stream has not
 * been used yet. A GPU that stands still is waited for for a second, once; typical values stay. For
 * directions between GPUs, [from, from + length) is readable memory of the other GPU, at least 64
 * KiB; `from` 0: nothing is measured and typical values stay. */
void wh_gpu_stream_probe(struct wh_gpu_stream *stream, uint64_t from, uint64_t length);

/* ---- events ---------------------------------------------------------------------------------- */

/* A wait for a CUDA event of the application. The caller zeroes it and keeps it until `ready` is
 * called or the wait is cancelled. */
struct wh_event_wait {
	struct wh_list link;
	struct wh_cuda_device *device;
	CUcontext context; /* NULL: the device's primary context */
	CUevent event;
	_Atomic bool cancelled; /* cancelled before wh_gpus_wait_event() */
	/* Called by a poll, with no lock held: the event has occurred, or, with an error, it never
	 * will. */
	void (*ready)(struct wh_event_wait *wait, int error, const char *text);
};

/* 0: `ready` will be called. -ECANCELED: cancelled before. Else the GPU thread cannot be started.
 */
int wh_gpus_wait_event(struct wh_gpus *gpus, struct wh_event_wait *wait);
/* Cancel a wait; `ready` will not be called. False: `ready` has been called or is about to be, or
 * wh_gpus_wait_event() has not been called yet and will return -ECANCELED. */
bool wh_gpus_cancel_event(struct wh_gpus *gpus, struct wh_event_wait *wait);

#endif
