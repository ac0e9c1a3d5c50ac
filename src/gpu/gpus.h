/* SPDX-License-Identifier: Apache-2.0 */
/* gpus.h: the state of an engine's GPUs and the functions that the files of this folder share. For
 * src/gpu only. */
#ifndef WH_GPU_GPUS_H
#define WH_GPU_GPUS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpu/stream.h"
#include "memory/file-ring.h"
#include "util/list.h"
#include "util/turns.h"

/* One allocation of pinned memory, for semaphores or slots. It belongs to the primary context of
 * the pinning device: the application could destroy any other context. */
struct wh_pinned {
	struct wh_pinned *next;
	char *memory;
	uint64_t address; /* by which GPUs know it; 0: it is plain memory */
	size_t length; /* of plain memory */
	void *entries; /* array of struct wh_semaphore or struct wh_slot */
};

struct wh_slot_pool {
	struct wh_list link; /* gpus.file_pools */
	enum wh_slot_use use;
	const struct wh_file_system *system; /* NULL: for no file in particular */
	struct wh_list slots; /* the free ones */
	struct wh_list waiters; /* struct wh_slot_wait */
	unsigned count; /* slots that have been made */
	bool handing_out; /* a thread is in wh_slot_release()'s loop */
};

struct wh_gpus {
	const struct wh_config *config;
	const struct wh_log *log;
	struct wh_cuda *cuda;
	bool many_cpus; /* the GPU thread may spin; threads of their own read files */
	int64_t spin_for; /* ns; the most that wh_gpus_progress() polls */
	/* ns; so long a probe waits for all of its jobs, and half of that for the first, a short
	 * copy: plans probe, and a GPU may stand still */
	int64_t probe_patience;

	pthread_mutex_t lock; /* guards what follows, and creating contexts and streams */
	struct wh_cuda_device *_Atomic pinning_device; /* see wh_gpus_pinning_device() */
	struct wh_gpu_context *contexts;
	struct wh_gpu_stream
		*_Atomic streams; /* grows at its head only; may be read without the lock */
	struct wh_turns *turns; /* that poll instead of the GPU thread; NULL: there is one */
	struct wh_poller poller;
	bool started; /* the GPU thread runs */
	pthread_t thread;

	pthread_mutex_t list_lock; /* guards what follows; taken after `lock` */
	struct wh_list events; /* struct wh_event_wait */
	struct wh_slot_pool pools[WH_SLOT_USES];
	struct wh_list file_pools; /* one for each use and file system */
	struct wh_list semaphores_free;
	/* all allocations, and those of plain memory; freed by wh_gpus_pinned_free() */
	struct wh_pinned *pinned, *plain;
	struct wh_file_buffers file_buffers; /* slots of the uses that files have */

	_Atomic uint64_t shared; /* bits of the devices on which other processes compute */
	_Atomic unsigned jobs; /* jobs in flight and events waited for */
	_Atomic unsigned event_count;
	_Atomic bool stop;
	_Atomic int64_t polled_at; /* ns; when a thread that waits last polled */
	_Atomic int64_t put_at; /* ns; when a small job was last put */
	_Atomic uint32_t sleeping; /* futex; 1: the GPU thread sleeps, or is about to */
};

/* Start the GPU thread unless it runs, or turns poll instead. Under gpus.lock. 0 or a negative
 * errno. */
int wh_gpus_thread_start(struct wh_gpus *gpus);
/* gpus.poller */
bool wh_gpus_poll_turn(struct wh_poller *poller);
int64_t wh_gpus_next_turn(struct wh_poller *poller);
/* Free all semaphores and slots. None may be in use. */
void wh_gpus_pinned_free(struct wh_gpus *gpus);

/* Count one job or event more, and wake the GPU thread if it sleeps. */
void wh_gpus_job_added(struct wh_gpus *gpus);
/* Setting `ctas`: CTAs of each launch; 0: chosen for each launch. */
uint32_t wh_gpus_ctas(const struct wh_gpus *gpus);
/* Setting `model_first`: do transfers yield to other kernels? */
bool wh_gpus_yield(const struct wh_gpus *gpus);
/* Have the GPU store the semaphore when it has done all jobs submitted so far. Under stream.lock,
 * inside a scope of its context. If the driver refuses, the stream has failed. */
void wh_gpu_stream_store(struct wh_gpu_stream *stream);
/* Does the driver take many copies of this stream in one call, at less cost than one by one? */
bool wh_gpu_stream_batches_copies(const struct wh_gpu_stream *stream);
/* Turns of the stream that have been submitted and that the GPU has not reported ended. */
static inline uint32_t wh_gpu_stream_in_flight(const struct wh_gpu_stream *stream)
{
	return atomic_load_explicit(&stream->number, memory_order_relaxed) -
	       atomic_load_explicit(stream->semaphore->value, memory_order_relaxed);
}
/* The most turns in flight while small jobs start turns of their own; 0: they always do. */
uint32_t wh_gpus_turns(const struct wh_gpus *gpus);
/* Begin a turn, submit what it has left and count it, end it for a job (`follows`: not its first
 * one). wh_gpu_stream_end() does the last two. Under stream.lock. */
void wh_gpu_stream_open(struct wh_gpu_stream *stream, struct wh_gpu_stream_turn *turn);
void wh_gpu_stream_close(struct wh_gpu_stream_turn *turn);
void wh_gpu_stream_attach(struct wh_gpu_stream_turn *turn, struct wh_gpu_stream_job *job,
			  bool follows);
/* See which jobs have ended, so that what they took does not count the time until the next poll:
 * for who holds the lock for long. Under stream.lock. */
void wh_gpu_stream_glance(struct wh_gpu_stream *stream);
/* Submit the jobs that wait, as long as few turns are in flight. No lock may be held. */
void wh_gpu_stream_pump(struct wh_gpu_stream *stream);
/* Submit all that wait, however many turns are in flight. Under stream.lock. */
void wh_gpu_stream_flush(struct wh_gpu_stream *stream);
/* Can the ring take the lists of a shared turn? Under stream.lock. */
bool wh_gpu_stream_ring_has(const struct wh_gpu_stream *stream, uint64_t bytes);
/* Reserve contiguous bytes of the ring for the turn's job, at offset *at of `ring`, ring_host and
 * ring_device. False: the ring has no room, or the turn has failed. */
bool wh_gpu_stream_reserve(struct wh_gpu_stream_turn *turn, uint64_t bytes, uint64_t *at);

#endif
