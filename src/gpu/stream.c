/* SPDX-License-Identifier: Apache-2.0 */
/* The GPUs of an engine: contexts, streams, and who looks at what is done. launch.c puts work on
 * them. */
#include "gpu/stream.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "util/clock.h"
#include "util/config.h"
#include "util/error.h"
#include "util/futex.h"
#include "util/list.h"
#include "util/log.h"

/* How often the thread looks while something is under way, and how long it goes on looking after
 * the last job before it sleeps for good. */
#define LOOK_EVERY 20000
#define LOOK_AFTER (2 * WH_MS)
/* With CPUs to spare it does not sleep between jobs that come one behind the other: each nap is
 * time that the next slot waits. */
#define LOOK_HARD (100 * WH_MS / 1000)
/* A word that has not moved for so long: is the GPU still there? */
#define ASK_AFTER (20 * WH_MS)
/* How long a waiter spins at most: about as long as the copies for which a wake-up would count. */
#define SPIN_FOR (2 * WH_MS)
#define SPIN_FOR_FEW_CPUS (50 * WH_MS / 1000)

#define SLOTS_AT_ONCE 8
#define SEMAPHORES 256 /* made at once, 16 bytes of pinned memory each */

/* Pinned memory of the home device's primary context, for words and slots: any other context may be
 * the application's to destroy. */
struct wh_pinned {
	struct wh_pinned *next;
	char *memory;
	uint64_t address; /* for GPUs */
	void *entries; /* what it is cut into */
};

struct pool {
	struct wh_list slots; /* free ones */
	struct wh_list waiters; /* struct wh_slot_wait */
	unsigned count; /* slots that have been made */
	bool giving; /* a thread hands slots out */
};

struct wh_gpus {
	const struct wh_config *config;
	const struct wh_log *log;
	struct wh_cuda *cuda;
	bool many_cpus;
	int64_t spin_for;

	pthread_mutex_t lock; /* below, and the making of contexts and streams */
	struct wh_cuda_device *_Atomic home; /* whose primary context the pinned memory is of */
	struct wh_gpu_context *first;
	struct wh_gpu_stream *_Atomic streams; /* grows at its head only; read without the lock */
	bool started;
	pthread_t thread;

	pthread_mutex_t list_lock; /* below */
	struct wh_list events; /* struct wh_event_wait */
	struct pool pools[WH_SLOT_USES];
	struct wh_list semaphores_free;
	struct wh_pinned *pinned; /* all there is; given back at the end */

	_Atomic unsigned jobs; /* not done, events among them */
	_Atomic unsigned event_count;
	_Atomic bool stop;
	_Atomic uint32_t asleep; /* the thread is; a futex */
};

struct wh_cuda *wh_gpus_cuda(const struct wh_gpus *gpus)
{
	return gpus->cuda;
}

uint32_t wh_gpus_ctas(const struct wh_gpus *gpus)
{
	return (uint32_t)gpus->config->number[WH_SETTING_CTAS];
}

/* ---- what is done ---------------------------------------------------------------------------- */

/* Everything that is under way has ended, or never will. A context that has failed takes no work
 * any more, and the driver makes no other in its place for as long as the process lives. */
void wh_gpu_stream_fail(struct wh_gpu_stream *stream, int error, const char *text)
{
	stream->error = error;
	if (strstr(text, "until the process is started anew"))
		snprintf(stream->text, sizeof(stream->text), "%s", text);
	else
		snprintf(stream->text, sizeof(stream->text),
			 "%.150s; cuda:%d is out of use until the process is started anew", text,
			 stream->gpu->device->ordinal);
}

/* Under stream.lock: the word has not moved for long. */
static void ask_stream(struct wh_gpu_stream *stream, int64_t now)
{
	struct wh_cuda *cuda = stream->gpu->gpus->cuda;
	struct wh_cuda_scope scope;
	int result, error;

	stream->looked = now;
	error = wh_cuda_enter_context(cuda, stream->gpu->device, stream->gpu->context, &scope);
	if (!error) {
		result = cuda->cuStreamQuery(stream->handle);
		if (result != CUDA_NOT_READY)
			error = wh_cuda_check(cuda, result, "cuStreamQuery", "%s",
					      stream->gpu->device->text);
		wh_cuda_leave(&scope);
	}
	if (error)
		wh_gpu_stream_fail(stream, error, wh_error_text());
}

/* Take the jobs that are done off the stream, to `ended`. */
static void collect(struct wh_gpu_stream *stream, struct wh_list *ended)
{
	uint32_t word;
	int64_t now;

	if (pthread_mutex_trylock(
		    &stream->lock)) /* somebody puts work on it; a moment later then */
		return;
	word = atomic_load_explicit(stream->word->value, memory_order_acquire);
	while (!wh_list_empty(&stream->jobs)) {
		struct wh_gpu_stream_job *job =
			wh_container(stream->jobs.next, struct wh_gpu_stream_job, link);

		if (!stream->error && (int32_t)(word - job->number) < 0)
			break;
		wh_list_remove(&job->link);
		atomic_fetch_sub_explicit(&stream->waiting, 1, memory_order_relaxed);
		if ((int64_t)(job->ring - stream->tail) > 0)
			stream->tail = job->ring;
		if (stream->error && !job->error) {
			job->error = stream->error;
			memcpy(job->text, stream->text, sizeof(job->text));
		}
		wh_list_append(ended, &job->link);
	}
	if (!wh_list_empty(&stream->jobs)) {
		now = wh_now();
		if (!wh_list_empty(ended))
			stream->looked = now;
		else if (now - stream->looked > ASK_AFTER)
			ask_stream(stream, now);
	}
	pthread_mutex_unlock(&stream->lock);
}

/* Has it happened? 0: not yet, 1, or why it never will. */
static int look_at(struct wh_gpus *gpus, const struct wh_event_wait *wait)
{
	struct wh_cuda *cuda = gpus->cuda;
	struct wh_cuda_scope scope;
	int error = wh_cuda_enter_context(cuda, wait->device, wait->context, &scope), result;

	if (error)
		return error;
	result = cuda->cuEventQuery(wait->event);
	error = result == CUDA_NOT_READY ?
			0 :
			wh_cuda_check(cuda, result, "cuEventQuery", "%s", wait->device->text);
	wh_cuda_leave(&scope);
	return error || result ? error : 1;
}

static bool poll_events(struct wh_gpus *gpus)
{
	struct wh_event_wait *wait = NULL;
	int state = 0;

	pthread_mutex_lock(&gpus->list_lock);
	for (struct wh_list *l = gpus->events.next; l != &gpus->events && !state; l = l->next) {
		wait = wh_container(l, struct wh_event_wait, link);
		state = look_at(gpus, wait);
	}
	if (state)
		wh_list_remove(&wait->link);
	pthread_mutex_unlock(&gpus->list_lock);
	if (!state)
		return false;
	atomic_fetch_sub(&gpus->event_count, 1);
	wait->ready(wait, state < 0 ? state : 0, state < 0 ? wh_error_text() : "");
	atomic_fetch_sub_explicit(&gpus->jobs, 1, memory_order_release);
	return true;
}

bool wh_gpus_poll(struct wh_gpus *gpus)
{
	struct wh_gpu_stream *stream = atomic_load_explicit(&gpus->streams, memory_order_acquire);
	struct wh_list ended, *link;
	bool any = false;

	if (!atomic_load_explicit(&gpus->jobs, memory_order_relaxed))
		return false;
	if (atomic_load_explicit(&gpus->event_count, memory_order_relaxed))
		any = poll_events(gpus);
	wh_list_init(&ended);
	for (; stream; stream = atomic_load_explicit(&stream->next, memory_order_acquire)) {
		if (atomic_load_explicit(&stream->waiting, memory_order_relaxed))
			collect(stream, &ended);
	}
	while ((link = wh_list_take(&ended))) {
		struct wh_gpu_stream_job *job = wh_container(link, struct wh_gpu_stream_job, link);

		any = true;
		job->done(job, job->error, job->text);
		atomic_fetch_sub_explicit(&gpus->jobs, 1, memory_order_release);
	}
	return any;
}

void wh_gpus_progress(struct wh_gpus *gpus, bool (*is_running)(const void *arg), const void *arg,
		      int64_t deadline)
{
	int64_t until;

	wh_gpus_poll(gpus);
	if (!deadline || !is_running(arg))
		return;
	until = wh_now() + gpus->spin_for;
	if (deadline > until)
		deadline = until;
	do {
		for (int i = 0; i < 16 && is_running(arg); i++) {
			if (!wh_gpus_poll(gpus))
				wh_cpu_relax();
		}
	} while (is_running(arg) && wh_now() < deadline);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void sleep_until_work(struct wh_gpus *gpus)
{
	for (;;) {
		atomic_store(&gpus->asleep, 1);
		if (atomic_load(&gpus->jobs) || atomic_load(&gpus->stop))
			break;
		wh_futex_wait(&gpus->asleep, 1, INT64_MAX);
	}
	atomic_store(&gpus->asleep, 0);
}

static void *look_after(void *argument)
{
	const struct timespec pause = { .tv_nsec = LOOK_EVERY };
	struct wh_gpus *gpus = argument;
	int64_t worked = wh_now(), found = worked, now;
	bool busy = false, was;

	prctl(PR_SET_TIMERSLACK, 1);
	while (!atomic_load(&gpus->stop)) {
		now = wh_now();
		was = busy;
		busy = atomic_load_explicit(&gpus->jobs, memory_order_relaxed);
		if (busy)
			worked = now;
		else if (now - worked > LOOK_AFTER)
			sleep_until_work(gpus);
		if (wh_gpus_poll(gpus) || (busy && !was))
			found = now;
		else if (busy && gpus->many_cpus && now - found < LOOK_HARD)
			wh_cpu_relax();
		else
			nanosleep(&pause, NULL);
	}
	return NULL;
}

static int start_thread(struct wh_gpus *gpus)
{
	sigset_t all, before;
	int error;

	if (gpus->started)
		return 0;
	sigfillset(&all);
	sigdelset(&all, SIGBUS);
	sigdelset(&all, SIGSEGV);
	sigdelset(&all, SIGABRT);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&gpus->thread, NULL, look_after, gpus);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error)
		return wh_fail(error, "the GPU thread: pthread_create: %s", strerror(error));
	pthread_setname_np(gpus->thread, "wherry/gpu");
	gpus->started = true;
	return 0;
}

void wh_gpus_job_added(struct wh_gpus *gpus)
{
	/* Sequentially consistent, as the thread's two are: one of the two sees the other. */
	atomic_fetch_add(&gpus->jobs, 1);
	if (!atomic_load(&gpus->asleep))
		return;
	atomic_store(&gpus->asleep, 0);
	wh_futex_wake(&gpus->asleep);
}

/* ---- pinned memory --------------------------------------------------------------------------- */

int wh_gpus_pinning_device(struct wh_gpus *gpus, struct wh_cuda_device *device,
			   struct wh_cuda_device **out)
{
	struct wh_cuda_device *none = NULL;
	int error = 0;

	if (!atomic_load(&gpus->home) && !device)
		error = wh_cuda_device_at(gpus->cuda, 0, &device);
	if (!error)
		atomic_compare_exchange_strong(&gpus->home, &none, device);
	if (!error && out)
		*out = atomic_load(&gpus->home);
	return error;
}

/* Under list_lock. */
static int pinned_new(struct wh_gpus *gpus, size_t bytes, size_t entries, struct wh_pinned **out)
{
	struct wh_pinned *block = calloc(1, sizeof(*block));
	struct wh_cuda *cuda = gpus->cuda;
	struct wh_cuda_device *device;
	struct wh_cuda_scope scope;
	void *memory = NULL;
	int error;

	if (block)
		block->entries = calloc(1, entries);
	if (!block || !block->entries) {
		free(block);
		return wh_fail(ENOMEM, "no memory for staging");
	}
	error = wh_gpus_pinning_device(gpus, NULL, &device);
	if (!error)
		error = wh_cuda_enter(cuda, device, &scope);
	if (error)
		goto err_free;
	error = wh_cuda_call_on(cuda, device, cuMemHostAlloc, &memory, bytes,
				CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP);
	if (!error)
		error = wh_cuda_call_on(cuda, device, cuMemHostGetDevicePointer, &block->address,
					memory, 0);
	if (error && memory)
		cuda->cuMemFreeHost(memory);
	wh_cuda_leave(&scope);
	if (error)
		goto err_free;
	block->memory = memory;
	block->next = gpus->pinned;
	gpus->pinned = block;
	*out = block;
	return 0;

err_free:
	free(block->entries);
	free(block);
	return error;
}

/* ---- contexts and streams; under gpus.lock --------------------------------------------------- */

/* Inside a scope of its context. The GPU may be one that there are no kernels for, or the driver
 * may have no compiler for it: copies go all the same. */
static int load_kernels(struct wh_gpu_context *gpu)
{
	int error = wh_cuda_kernels_load(gpu->gpus->cuda, gpu->device, &gpu->kernels);

	if (error != -ENOEXEC && error != -ENOENT)
		return error ? wh_fail(-error, "%s: %s", gpu->device->text, wh_error_text()) : 0;
	snprintf(gpu->without, sizeof(gpu->without), "%s", wh_error_text());
	wh_log_line(gpu->gpus->log, "cuda:%d copies by its copy engines alone: %s",
		    gpu->device->ordinal, gpu->without);
	return 0;
}

static int find_gpu(struct wh_gpus *gpus, struct wh_cuda_device *device, CUcontext context,
		    struct wh_gpu_context **out)
{
	struct wh_cuda *cuda = gpus->cuda;
	struct wh_cuda_scope scope;
	struct wh_gpu_context *gpu;
	int error;

	for (gpu = gpus->first; gpu; gpu = gpu->next) {
		if (gpu->device == device && gpu->context == context) {
			*out = gpu;
			return 0;
		}
	}
	gpu = calloc(1, sizeof(*gpu));
	if (!gpu)
		return wh_fail(ENOMEM, "no memory for %s", device->text);
	gpu->gpus = gpus;
	gpu->device = device;
	gpu->context = context;
	error = wh_cuda_enter_context(cuda, device, context, &scope);
	if (error)
		goto err_free;
	error = load_kernels(gpu);
	if (error)
		goto err_leave;
	error = wh_cuda_call_on(cuda, device, cuMemAlloc, &gpu->counters, WH_BLOCKS_WAYS * 2 * 4);
	if (error)
		goto err_unload;
	wh_cuda_leave(&scope);
	gpu->next = gpus->first;
	gpus->first = gpu;
	*out = gpu;
	return 0;

err_unload:
	wh_cuda_kernels_unload(cuda, &gpu->kernels);
err_leave:
	wh_cuda_leave(&scope);
err_free:
	free(gpu);
	return error;
}

static int stream_create_handle(struct wh_cuda *cuda, const struct wh_gpu_stream *stream,
				CUstream *out)
{
	const struct wh_cuda_device *device = stream->gpu->device;
	int least = 0, greatest = 0;

	if (!cuda->cuStreamCreateWithPriority || !cuda->cuCtxGetStreamPriorityRange)
		return wh_cuda_call_on(cuda, device, cuStreamCreate, out, CUDA_STREAM_NON_BLOCKING);
	cuda->cuCtxGetStreamPriorityRange(&least, &greatest);
	return wh_cuda_call_on(cuda, device, cuStreamCreateWithPriority, out,
			       CUDA_STREAM_NON_BLOCKING, stream->urgent ? greatest : least);
}

/* Inside a scope of the stream's context. */
static int equip(struct wh_gpus *gpus, struct wh_gpu_stream *stream)
{
	const struct wh_cuda_device *device = stream->gpu->device;
	struct wh_cuda *cuda = gpus->cuda;
	void *ring;
	int error;

	if (!cuda->cuStreamWriteValue32)
		return wh_cuda_missing(cuda, "cuStreamWriteValue32");
	error = stream_create_handle(cuda, stream, &stream->handle);
	if (error)
		return error;
	error = wh_cuda_call_on(cuda, device, cuMemHostAlloc, &ring, WH_GPU_STREAM_RING,
				CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP);
	if (error)
		goto err_stream;
	stream->ring = ring;
	error = wh_cuda_call_on(cuda, device, cuMemHostGetDevicePointer, &stream->ring_host, ring,
				0);
	if (error)
		goto err_ring;
	error = wh_cuda_call_on(cuda, device, cuMemAlloc, &stream->ring_device, WH_GPU_STREAM_RING);
	if (error)
		goto err_ring;
	stream->counter = stream->gpu->counters + 4 * (2 * (uint64_t)stream->way + stream->urgent);
	/* On the stream, so that it is done before the first kernel counts. */
	error = wh_cuda_call_on(cuda, device, cuMemsetD8Async, stream->counter, 0, 4,
				stream->handle);
	if (error)
		goto err_lists;
	error = wh_semaphore_acquire(gpus, &stream->word);
	if (error)
		goto err_lists;
	stream->number = atomic_load(stream->word->value);
	return 0;

err_lists:
	cuda->cuStreamSynchronize(stream->handle);
	cuda->cuMemFree(stream->ring_device);
err_ring:
	cuda->cuMemFreeHost(ring);
err_stream:
	cuda->cuStreamDestroy(stream->handle);
	return error;
}

static int stream_new(struct wh_gpu_context *gpu, enum wh_blocks_way way, bool urgent,
		      struct wh_gpu_stream **out)
{
	struct wh_gpus *gpus = gpu->gpus;
	struct wh_gpu_stream *stream = calloc(1, sizeof(*stream));
	struct wh_cuda_scope scope;
	int error;

	if (!stream)
		return wh_fail(ENOMEM, "no memory for a stream of %s", gpu->device->text);
	stream->gpu = gpu;
	stream->way = way;
	stream->urgent = urgent;
	pthread_mutex_init(&stream->lock, NULL);
	wh_list_init(&stream->jobs);
	error = start_thread(gpus);
	if (!error)
		error = wh_cuda_enter_context(gpus->cuda, gpu->device, gpu->context, &scope);
	if (!error) {
		error = equip(gpus, stream);
		wh_cuda_leave(&scope);
	}
	if (error) {
		pthread_mutex_destroy(&stream->lock);
		free(stream);
		return error;
	}
	wh_gpu_stream_guess_cost(stream);
	gpu->stream[way][urgent] = stream;
	atomic_store_explicit(&stream->next, atomic_load(&gpus->streams), memory_order_relaxed);
	atomic_store_explicit(&gpus->streams, stream, memory_order_release);
	*out = stream;
	return 0;
}

int wh_gpus_stream(struct wh_gpus *gpus, struct wh_cuda_device *device, CUcontext context,
		   enum wh_blocks_way way, bool urgent, struct wh_gpu_stream **out)
{
	struct wh_gpu_context *gpu = NULL;
	int error;

	pthread_mutex_lock(&gpus->lock);
	error = find_gpu(gpus, device, context, &gpu);
	if (!error && gpu->stream[way][urgent])
		*out = gpu->stream[way][urgent];
	else if (!error)
		error = stream_new(gpu, way, urgent, out);
	pthread_mutex_unlock(&gpus->lock);
	return error;
}

bool wh_gpus_describe(struct wh_gpus *gpus, const struct wh_cuda_device *device, char *line,
		      size_t size)
{
	const struct wh_gpu_context *gpu;

	pthread_mutex_lock(&gpus->lock);
	for (gpu = gpus->first; gpu; gpu = gpu->next)
		if (gpu->device == device && *gpu->without)
			break;
	pthread_mutex_unlock(&gpus->lock);
	if (gpu)
		snprintf(line, size, "cuda:%d: no kernels, its copy engines do everything: %s",
			 device->ordinal, gpu->without);
	return gpu;
}

/* ---- events and words ------------------------------------------------------------------------ */

int wh_gpus_wait_event(struct wh_gpus *gpus, struct wh_event_wait *wait)
{
	bool unwanted;
	int error;

	pthread_mutex_lock(&gpus->lock);
	error = start_thread(gpus);
	pthread_mutex_unlock(&gpus->lock);
	if (error)
		return error;
	wh_gpus_job_added(gpus);
	atomic_fetch_add(&gpus->event_count, 1);
	pthread_mutex_lock(&gpus->list_lock);
	unwanted = wait->unwanted;
	if (!unwanted)
		wh_list_append(&gpus->events, &wait->link);
	pthread_mutex_unlock(&gpus->list_lock);
	if (!unwanted)
		return 0;
	atomic_fetch_sub(&gpus->event_count, 1);
	atomic_fetch_sub_explicit(&gpus->jobs, 1, memory_order_release);
	return wh_fail(ECANCELED, "cancelled before it was started");
}

bool wh_gpus_cancel_event(struct wh_gpus *gpus, struct wh_event_wait *wait)
{
	bool waits;

	pthread_mutex_lock(&gpus->list_lock);
	waits = wait->link.next;
	wait->unwanted = !waits;
	wh_list_remove(&wait->link);
	pthread_mutex_unlock(&gpus->list_lock);
	if (waits) {
		atomic_fetch_sub(&gpus->event_count, 1);
		atomic_fetch_sub_explicit(&gpus->jobs, 1, memory_order_release);
	}
	return waits;
}

/* Under list_lock. */
static int make_semaphores(struct wh_gpus *gpus)
{
	struct wh_pinned *block;
	int error =
		pinned_new(gpus, SEMAPHORES * 16, SEMAPHORES * sizeof(struct wh_semaphore), &block);
	struct wh_semaphore *semaphores;

	if (error)
		return error;
	semaphores = block->entries;
	memset(block->memory, 0, SEMAPHORES * 16);
	for (unsigned i = 0; i < SEMAPHORES; i++) {
		semaphores[i].value = (_Atomic uint32_t *)(block->memory + 16 * i);
		semaphores[i].address = block->address + 16 * i;
		wh_list_append(&gpus->semaphores_free, &semaphores[i].link);
	}
	return 0;
}

int wh_semaphore_acquire(struct wh_gpus *gpus, struct wh_semaphore **out)
{
	struct wh_list *link;
	int error = 0;

	pthread_mutex_lock(&gpus->list_lock);
	if (wh_list_empty(&gpus->semaphores_free))
		error = make_semaphores(gpus);
	link = wh_list_take(&gpus->semaphores_free);
	pthread_mutex_unlock(&gpus->list_lock);
	if (link)
		*out = wh_container(link, struct wh_semaphore, link);
	return link ? 0 : error;
}

void wh_semaphore_release(struct wh_gpus *gpus, struct wh_semaphore *word)
{
	pthread_mutex_lock(&gpus->list_lock);
	wh_list_append(&gpus->semaphores_free, &word->link);
	pthread_mutex_unlock(&gpus->list_lock);
}

/* ---- slots ----------------------------------------------------------------------------------- */

static void lay_out(struct wh_slot *slots, unsigned count, const struct wh_pinned *block)
{
	for (unsigned i = 0; i < count; i++) {
		slots[i].host = block->memory + i * WH_SLOT;
		slots[i].address = block->address + i * WH_SLOT;
	}
}

int wh_slots_row(struct wh_gpus *gpus, unsigned count, struct wh_slot *out)
{
	struct wh_pinned *block = NULL;
	int error;

	pthread_mutex_lock(&gpus->list_lock);
	error = pinned_new(gpus, count * WH_SLOT, 1, &block);
	if (!error)
		lay_out(out, count, block);
	pthread_mutex_unlock(&gpus->list_lock);
	return error;
}

/* Under list_lock: some more, if there are not too many. */
static int make_slots(struct wh_gpus *gpus, enum wh_slot_use use)
{
	struct wh_pinned *block;
	int error = pinned_new(gpus, SLOTS_AT_ONCE * WH_SLOT,
			       SLOTS_AT_ONCE * sizeof(struct wh_slot), &block);
	struct wh_slot *slots;

	if (error)
		return error;
	slots = block->entries;
	lay_out(slots, SLOTS_AT_ONCE, block);
	for (unsigned i = 0; i < SLOTS_AT_ONCE; i++) {
		slots[i].use = use;
		wh_list_append(&gpus->pools[use].slots, &slots[i].link);
	}
	gpus->pools[use].count += SLOTS_AT_ONCE;
	return 0;
}

int wh_slots_prepare(struct wh_gpus *gpus, enum wh_slot_use use)
{
	int error = 0;

	pthread_mutex_lock(&gpus->list_lock);
	if (!gpus->pools[use].count)
		error = make_slots(gpus, use);
	pthread_mutex_unlock(&gpus->list_lock);
	return error;
}

struct wh_slot *wh_slot_take(struct wh_gpus *gpus, enum wh_slot_use use, struct wh_slot_wait *wait)
{
	struct pool *pool = &gpus->pools[use];
	struct wh_list *link;

	pthread_mutex_lock(&gpus->list_lock);
	if (wh_list_empty(&pool->slots) && pool->count < WH_SLOTS)
		make_slots(gpus, use); /* if not, then one that is given back has to do */
	link = wh_list_take(&pool->slots);
	if (!link && wait)
		wh_list_append(&pool->waiters, &wait->link);
	pthread_mutex_unlock(&gpus->list_lock);
	return link ? wh_container(link, struct wh_slot, link) : NULL;
}

bool wh_slot_unwait(struct wh_gpus *gpus, struct wh_slot_wait *wait)
{
	bool waits;

	pthread_mutex_lock(&gpus->list_lock);
	waits = wait->link.next;
	wh_list_remove(&wait->link);
	pthread_mutex_unlock(&gpus->list_lock);
	return waits;
}

/* A waiter may give its slot back at once, from inside `ready`; if that called the next one,
 * thousands of them would be stacked up. So one thread at a time hands slots out, and goes on until
 * there is nobody left to give one to. */
void wh_slot_give(struct wh_gpus *gpus, struct wh_slot *slot)
{
	struct pool *pool = &gpus->pools[slot->use];
	struct wh_slot_wait *wait;

	pthread_mutex_lock(&gpus->list_lock);
	/* The last one first: its memory is in a cache. */
	wh_list_push(&pool->slots, &slot->link);
	if (pool->giving) {
		pthread_mutex_unlock(&gpus->list_lock);
		return;
	}
	pool->giving = true;
	while (!wh_list_empty(&pool->waiters) && !wh_list_empty(&pool->slots)) {
		wait = wh_container(wh_list_take(&pool->waiters), struct wh_slot_wait, link);
		slot = wh_container(wh_list_take(&pool->slots), struct wh_slot, link);
		pthread_mutex_unlock(&gpus->list_lock);
		wait->ready(wait, slot);
		pthread_mutex_lock(&gpus->list_lock);
	}
	pool->giving = false;
	pthread_mutex_unlock(&gpus->list_lock);
}

/* ---- opening and closing --------------------------------------------------------------------- */

int wh_gpus_open(struct wh_cuda *cuda, const struct wh_config *config, const struct wh_log *log,
		 struct wh_gpus **out)
{
	struct wh_gpus *gpus = calloc(1, sizeof(*gpus));
	cpu_set_t cpus;

	if (!gpus)
		return wh_fail(ENOMEM, "no memory for the list of GPUs");
	gpus->config = config;
	gpus->log = log;
	gpus->cuda = cuda;
	pthread_mutex_init(&gpus->lock, NULL);
	pthread_mutex_init(&gpus->list_lock, NULL);
	wh_list_init(&gpus->events);
	wh_list_init(&gpus->semaphores_free);
	for (int i = 0; i < WH_SLOT_USES; i++) {
		wh_list_init(&gpus->pools[i].slots);
		wh_list_init(&gpus->pools[i].waiters);
	}
	gpus->many_cpus = sched_getaffinity(0, sizeof(cpus), &cpus) || CPU_COUNT(&cpus) > 4;
	gpus->spin_for = gpus->many_cpus ? SPIN_FOR : SPIN_FOR_FEW_CPUS;
	*out = gpus;
	return 0;
}

static void close_gpu(struct wh_gpu_context *gpu)
{
	struct wh_cuda *cuda = gpu->gpus->cuda;
	struct wh_cuda_scope scope;
	/* A context of the application's may be gone by now, and all that was in it. */
	bool in = !wh_cuda_enter_context(cuda, gpu->device, gpu->context, &scope);

	for (unsigned i = 0; i < 2 * WH_BLOCKS_WAYS; i++) {
		struct wh_gpu_stream *stream = gpu->stream[i / 2][i % 2];

		if (!stream)
			continue;
		if (in) {
			cuda->cuStreamSynchronize(stream->handle);
			cuda->cuStreamDestroy(stream->handle);
			cuda->cuMemFree(stream->ring_device);
			cuda->cuMemFreeHost(stream->ring);
		}
		pthread_mutex_destroy(&stream->lock);
		free(stream);
	}
	if (in) {
		cuda->cuMemFree(gpu->counters);
		wh_cuda_kernels_unload(cuda, &gpu->kernels);
		wh_cuda_leave(&scope);
	}
	free(gpu);
}

static void close_pinned(struct wh_gpus *gpus)
{
	struct wh_cuda *cuda = gpus->cuda;
	struct wh_cuda_device *device;
	struct wh_pinned *block, *next;
	struct wh_cuda_scope scope;
	bool in;

	if (!gpus->pinned)
		return;
	in = !wh_gpus_pinning_device(gpus, NULL, &device) && !wh_cuda_enter(cuda, device, &scope);
	for (block = gpus->pinned; block; block = next) {
		next = block->next;
		if (in)
			cuda->cuMemFreeHost(block->memory);
		free(block->entries);
		free(block);
	}
	if (in)
		wh_cuda_leave(&scope);
}

void wh_gpus_stop(struct wh_gpus *gpus)
{
	if (!gpus || !gpus->started)
		return;
	atomic_store(&gpus->stop, true);
	atomic_store(&gpus->asleep, 0);
	wh_futex_wake(&gpus->asleep);
	pthread_join(gpus->thread, NULL);
	gpus->started = false;
}

void wh_gpus_close(struct wh_gpus *gpus)
{
	struct wh_gpu_context *gpu, *next;

	if (!gpus)
		return;
	wh_gpus_stop(gpus);
	for (gpu = gpus->first; gpu; gpu = next) {
		next = gpu->next;
		close_gpu(gpu);
	}
	close_pinned(gpus);
	pthread_mutex_destroy(&gpus->list_lock);
	pthread_mutex_destroy(&gpus->lock);
	free(gpus);
}
