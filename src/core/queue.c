/* SPDX-License-Identifier: Apache-2.0 */
/* Completion queues: taking the completions of many batches, and a descriptor to wait for them. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "core/batch.h"
#include "core/engine.h"
#include "core/progress.h"
#include "core/queue.h"
#include "util/clock.h"
#include "util/config.h"
#include "util/error.h"
#include "util/list.h"
#include "util/ready.h"
#include "util/turns.h"

struct wh_queue {
	struct wh_engine *engine;
	pthread_mutex_t lock;
	struct wh_list done; /* struct wh_queue_entry */
	_Atomic uint32_t count; /* of them; also read without the lock */
	_Atomic uint32_t held; /* batches and peers that report here */
	int fd; /* readable while count is not 0 */
};

static int queue_guard(const struct wh_queue *queue, const char *call)
{
	if (!queue)
		return wh_fail(EINVAL, "%s: queue is NULL", call);
	return wh_engine_guard(queue->engine, call);
}

int wh_queue_new(struct wh_engine *engine, struct wh_queue **out)
{
	int error = wh_engine_guard(engine, "wh_queue_new");
	struct wh_queue *queue;

	if (error)
		return error;
	if (!out)
		return wh_fail(EINVAL, "wh_queue_new: out is NULL");
	queue = calloc(1, sizeof(*queue));
	if (!queue)
		return wh_fail(ENOMEM, "wh_queue_new: no memory");
	queue->fd = wh_ready_open("wh_queue_new");
	if (queue->fd < 0) {
		error = queue->fd;
		free(queue);
		return error;
	}
	queue->engine = engine;
	wh_list_init(&queue->done);
	pthread_mutex_init(&queue->lock, NULL);
	pthread_mutex_lock(&engine->lock);
	engine->queue_count++;
	pthread_mutex_unlock(&engine->lock);
	*out = queue;
	return 0;
}

int wh_queue_free(struct wh_queue *queue)
{
	struct wh_engine *engine;
	uint32_t held;
	int error;

	if (!queue)
		return 0;
	error = queue_guard(queue, "wh_queue_free");
	if (error)
		return error;
	held = atomic_load(&queue->held);
	if (held)
		return wh_fail(
			EBUSY,
			"wh_queue_free: %u batches or peers report here; free or close them first",
			held);
	engine = queue->engine;
	pthread_mutex_lock(&engine->lock);
	engine->queue_count--;
	pthread_mutex_unlock(&engine->lock);
	close(queue->fd);
	pthread_mutex_destroy(&queue->lock);
	free(queue);
	return 0;
}

int wh_queue_fd(const struct wh_queue *queue)
{
	int error = queue_guard(queue, "wh_queue_fd");

	return error ? error : queue->fd;
}

struct wh_engine *wh_queue_engine(const struct wh_queue *queue)
{
	return queue->engine;
}

void wh_queue_hold(struct wh_queue *queue, int by)
{
	atomic_fetch_add(&queue->held, (uint32_t)by);
}

/* ---- completions ---------------------------------------------------------------------------- */

/* These two run under the lock. The descriptor costs a system call only when the queue stops or
 * starts being empty. */
static void queue_link(struct wh_queue *queue, struct wh_queue_entry *entry)
{
	wh_list_append(&queue->done, &entry->link);
	if (!atomic_fetch_add(&queue->count, 1))
		wh_ready_set(queue->fd);
}

static void queue_unlink(struct wh_queue *queue, struct wh_queue_entry *entry)
{
	wh_list_remove(&entry->link);
	if (atomic_fetch_sub(&queue->count, 1) == 1)
		wh_ready_clear(queue->fd);
}

void wh_queue_put(struct wh_queue *queue, struct wh_queue_entry *entry)
{
	/* The queue may be freed once the entry has been taken. */
	struct wh_turns *turns = queue->engine->turns;

	pthread_mutex_lock(&queue->lock);
	if (!entry->link.next)
		queue_link(queue, entry);
	pthread_mutex_unlock(&queue->lock);
	wh_turns_wake(turns);
}

void wh_queue_forget(struct wh_queue *queue, struct wh_queue_entry *entry)
{
	pthread_mutex_lock(&queue->lock);
	if (entry->link.next)
		queue_unlink(queue, entry);
	pthread_mutex_unlock(&queue->lock);
}

/* Take what is there now. */
static int queue_take_now(struct wh_queue *queue, struct wh_completion *out, size_t max)
{
	int taken = 0;

	if (!atomic_load_explicit(&queue->count, memory_order_acquire))
		return 0;
	pthread_mutex_lock(&queue->lock);
	while ((size_t)taken < max && !wh_list_empty(&queue->done)) {
		struct wh_queue_entry *entry =
			wh_container(queue->done.next, struct wh_queue_entry, link);

		queue_unlink(queue, entry);
		if (entry->batch)
			wh_batch_is_seen(entry->batch);
		out[taken++] = (struct wh_completion){
			.batch = entry->batch,
			.peer = entry->peer,
			.user = entry->user,
			.status = entry->status,
		};
	}
	pthread_mutex_unlock(&queue->lock);
	return taken;
}

/* Wait until there is something to take. False: the deadline has passed. */
static bool queue_wait(struct wh_queue *queue, int64_t deadline)
{
	struct wh_engine *engine = queue->engine;
	bool spin = engine->config.number[WH_SETTING_SPIN];
	uint64_t seen;

	if (!engine->turns)
		return spin ? wh_ready_spin(&queue->count, deadline) :
			      wh_ready_wait(queue->fd, deadline);
	for (;;) {
		seen = wh_turns_seen(engine->turns);
		if (atomic_load(&queue->count))
			return true;
		if (deadline != INT64_MAX && wh_now() >= deadline)
			return false;
		wh_engine_turn(engine, seen, spin ? 0 : deadline);
	}
}

int wh_queue_take(struct wh_queue *queue, struct wh_completion *out, size_t max, int64_t timeout)
{
	int error = queue_guard(queue, "wh_queue_take");
	int64_t deadline;
	int taken;

	if (error)
		return error;
	if (!out || !max)
		return wh_fail(EINVAL, "wh_queue_take: %s", out ? "max is 0" : "out is NULL");
	if (timeout < 0)
		return wh_fail(EINVAL,
			       "wh_queue_take: timeout is negative; WH_FOREVER waits for ever");
	if (timeout && wh_engine_inside(queue->engine))
		return wh_fail(EDEADLK,
			       "wh_queue_take: waiting in one of the engine's own threads");
	if (max > INT_MAX)
		max = INT_MAX;
	taken = queue_take_now(queue, out, max);
	if (!taken && !timeout && queue->engine->turns && !wh_engine_inside(queue->engine)) {
		wh_engine_turn(queue->engine, wh_turns_seen(queue->engine->turns), 0);
		taken = queue_take_now(queue, out, max);
	}
	if (taken || !timeout)
		return taken;
	deadline = wh_deadline(timeout);
	/* Another waiter may have taken the completion that woke this one. */
	while (queue_wait(queue, deadline)) {
		taken = queue_take_now(queue, out, max);
		if (taken)
			return taken;
	}
	return 0;
}
