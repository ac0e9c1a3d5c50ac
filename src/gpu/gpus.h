/* SPDX-License-Identifier: Apache-2.0 */
/* gpus.h: the state of an engine's GPUs, and what the files of this folder call of each other. */
#ifndef WH_GPU_GPUS_H
#define WH_GPU_GPUS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpu/stream.h"
#include "util/list.h"

/* Pinned memory of the home device's primary context, for words and slots: any other context may be
 * the application's to destroy. */
struct wh_pinned {
	struct wh_pinned *next;
	char *memory;
	uint64_t address; /* for GPUs */
	void *entries; /* what it is cut into */
};

struct wh_slot_pool {
	struct wh_list slots; /* free ones */
	struct wh_list waiters; /* struct wh_slot_wait */
	unsigned count; /* slots that have been made */
	bool handing_out; /* a thread hands slots out */
};

struct wh_gpus {
	const struct wh_config *config;
	const struct wh_log *log;
	struct wh_cuda *cuda;
	bool many_cpus;
	int64_t spin_for;

	pthread_mutex_t lock; /* below, and the making of contexts and streams */
	struct wh_cuda_device
		*_Atomic pinning_device; /* whose primary context the pinned memory is of */
	struct wh_gpu_context *contexts;
	struct wh_gpu_stream *_Atomic streams; /* grows at its head only; read without the lock */
	bool started;
	pthread_t thread;

	pthread_mutex_t list_lock; /* below */
	struct wh_list events; /* struct wh_event_wait */
	struct wh_slot_pool pools[WH_SLOT_USES];
	struct wh_list semaphores_free;
	struct wh_pinned *pinned; /* all there is; given back at the end */

	_Atomic unsigned jobs; /* not done, events among them */
	_Atomic unsigned event_count;
	_Atomic bool stop;
	_Atomic uint32_t sleeping; /* the thread is; a futex */
};

/* Start the GPU thread, unless it runs. Under gpus.lock. 0 or a negative errno. */
int wh_gpus_thread_start(struct wh_gpus *gpus);
/* No slot and no semaphore is in use any more. */
void wh_gpus_pinned_free(struct wh_gpus *gpus);

/* There is one more job: somebody has to look. */
void wh_gpus_job_added(struct wh_gpus *gpus);
/* The setting ctas: 0: each stream's own choice. */
uint32_t wh_gpus_ctas(const struct wh_gpus *gpus);
/* Bytes at *at of the ring, on both of its sides, that are nobody else's until the turn's job is
 * done. False: there is no room. */
bool wh_gpu_stream_reserve(struct wh_gpu_stream_turn *turn, uint64_t bytes, uint64_t *at);

#endif
