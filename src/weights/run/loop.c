/* SPDX-License-Identifier: Apache-2.0 */
/* The two threads of a member: the loop does the work, the ear takes notifications. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "util/clock.h"
#include "util/ready.h"
#include "util/thread.h"
#include "weights/run/run.h"

#define TICK_BUSY (20 * WH_MS) /* while something is being received */
#define TICK_IDLE (200 * WH_MS)
#define LOOK_RARE (2 * WH_SECOND) /* at sources that the plan does not name */
#define TICK_EAR WH_SECOND /* there may be no memory for the notification that stops it */
#define EAR_PAUSE 20 /* ms, without memory for a notification that is too long */
#define COMPLETIONS 64
#define BYE_MOST WH_SECOND /* for all last hellos together */

void wh_weights_wake(struct wh_weights *weights)
{
	wh_ready_set(weights->wake);
}

void wh_weights_tell(struct wh_weights *weights)
{
	for (uint32_t i = 0; i < weights->plan->cluster.node_count; i++)
		weights->links[i].kick = true;
}

/* ---- the ear
 * ------------------------------------------------------------------------------------- */

static void ear_put(struct wh_weights *weights, const struct wh_notification *note)
{
	struct wh_heard *heard = calloc(1, sizeof(*heard));

	/* Without memory it is as if it had been lost: the tick looks, too. */
	if (!heard || !wh_weights_hello_decode(note->buffer, note->length, &heard->hello)) {
		free(heard);
		return;
	}
	heard->epoch = note->epoch;
	memcpy(heard->sender, note->sender, sizeof(heard->sender));
	pthread_mutex_lock(&weights->lock);
	*weights->heard_end = heard;
	weights->heard_end = &heard->next;
	pthread_mutex_unlock(&weights->lock);
	wh_weights_wake(weights);
}

/* Take one out of the way that is longer than any hello. Returns -EAGAIN: there is no hello. */
static int ear_discard(struct wh_weights *weights, const struct wh_notification_filter *filter,
		       size_t length)
{
	struct wh_notification note = { .size = sizeof(note), .capacity = length };

	note.buffer = malloc(length);
	if (note.buffer)
		wh_engine_notification(weights->engine, filter, &note, 0);
	else
		poll(NULL, 0, EAR_PAUSE);
	free(note.buffer);
	return -EAGAIN;
}

static void *ear_run(void *argument)
{
	struct wh_weights *weights = argument;
	struct wh_notification_filter filter = { .size = sizeof(filter),
						 .tag = weights->tag,
						 .tag_mask = UINT64_MAX };
	uint8_t bytes[WH_HELLO_BYTES];

	for (;;) {
		struct wh_notification note = { .size = sizeof(note),
						.buffer = bytes,
						.capacity = sizeof(bytes) };
		int error = wh_engine_notification(weights->engine, &filter, &note, TICK_EAR);
		bool stop;

		if (error == -EMSGSIZE)
			error = ear_discard(weights, &filter, note.length);
		pthread_mutex_lock(&weights->lock);
		stop = weights->stop;
		pthread_mutex_unlock(&weights->lock);
		if (stop || (error && error != -EAGAIN))
			return NULL;
		if (!error)
			ear_put(weights, &note);
	}
}

/* Wake the ear by a notification of its own, or wait for its tick. A hello wakes it as well; then
 * nobody makes room for this one. */
static void ear_stop(struct wh_weights *weights)
{
	struct wh_batch *batch = NULL;
	int error = wh_batch_new(weights->self, NULL, &batch);

	if (!error)
		error = wh_batch_notify(batch, weights->tag, NULL, 0);
	if (!error)
		error = wh_batch_submit(batch);
	pthread_join(weights->ear, NULL);
	if (!error)
		wh_batch_cancel(batch);
	wh_batch_free(batch);
}

/* ---- the loop
 * ------------------------------------------------------------------------------------ */

static void heard_handle(struct wh_weights *weights)
{
	while (weights->heard) {
		struct wh_heard *heard = weights->heard;
		size_t length = strlen(heard->sender);
		uint32_t engine;

		weights->heard = heard->next;
		if (!weights->heard)
			weights->heard_end = &weights->heard;
		for (int side = 0; side < 2; side++)
			if (wh_layout_find_engine(weights->layouts[side], heard->sender, length,
						  &engine)) {
				uint32_t node = weights->plan->cluster.of_engine[side][engine];

				if (node != weights->me)
					wh_link_heard(&weights->links[node], &heard->hello,
						      heard->epoch);
				break;
			}
		free(heard);
	}
}

/* Whether there were some. */
static bool completions_take(struct wh_weights *weights)
{
	struct wh_completion done[COMPLETIONS];
	bool some = false;
	int count;

	do {
		count = wh_queue_take(weights->queue, done, COMPLETIONS, 0);
		for (int i = 0; i < count; i++)
			if (done[i].batch)
				wh_link_job_done((struct wh_link_job *)(uintptr_t)done[i].user,
						 done[i].status);
			else
				wh_link_opened(&weights->links[done[i].user], done[i].status);
		some = some || count > 0;
	} while (count == COMPLETIONS);
	return some;
}

/* Look at those that may have something new, though no hello has come; and, as a source, how far
 * the targets are. A source that the plan does not name may have come back without knowing of this
 * member, when its last hello was lost. */
static void links_look(struct wh_weights *weights, int64_t now)
{
	for (uint32_t i = 0; i < weights->plan->cluster.node_count; i++) {
		struct wh_link_to *link = &weights->links[i];
		bool behind = weights->is[0] && weights->node_regions[1][i] &&
			      wh_link_whole(link) < weights->published;
		bool stale = weights->is[1] && weights->node_regions[0][i] &&
			     now - link->look_since >= LOOK_RARE;

		link->look = link->look || link->planned || behind || stale;
	}
}

/* When the loop wakes though nothing has happened, monotonic ns. */
struct clocks {
	int64_t tick, idle; /* to look whether something got lost */
	int64_t due; /* the first timer of those that links and versions have */
};

static void clocks_set(struct clocks *clocks, const struct wh_weights *weights, int64_t now)
{
	clocks->due = wh_weights_due(weights, now);
	for (uint32_t i = 0; i < weights->plan->cluster.node_count; i++)
		clocks->due = wh_time_next(clocks->due, wh_link_due(&weights->links[i], now), now);
}

/* All that can be done now. Returns when the next turn is. */
static int64_t loop_turn(struct wh_weights *weights, struct clocks *clocks, bool woken)
{
	uint32_t nodes = weights->plan->cluster.node_count;
	uint64_t work = weights->work;
	int64_t now, until;

	woken = woken || weights->heard;
	heard_handle(weights);
	woken = completions_take(weights) || woken;
	now = wh_now();
	if (now >= clocks->tick) {
		wh_weights_tick(weights, now);
		clocks->tick = now + TICK_BUSY;
	} else if (weights->stray) {
		wh_weights_elsewhere(weights, now);
	}
	if (now >= clocks->idle) {
		links_look(weights, now);
		clocks->idle = now + TICK_IDLE;
	}
	wh_weights_receive(weights, now);
	for (uint32_t i = 0; i < nodes; i++)
		wh_link_fetch(&weights->links[i]);
	for (uint32_t i = 0; i < nodes; i++)
		wh_link_drive(&weights->links[i], now);
	if (!woken && now < clocks->due) {
		weights->ticks++;
		weights->ticks_found += weights->work != work;
	}
	clocks_set(clocks, weights, now);
	/* What a link's turn has ended or lost comes before that in a turn. */
	if (weights->ended || weights->stray)
		return now;
	until = clocks->due < clocks->idle ? clocks->due : clocks->idle;
	return weights->attempt.version && clocks->tick < until ? clocks->tick : until;
}

static void *loop_run(void *argument)
{
	struct wh_weights *weights = argument;
	struct pollfd fds[2] = { { .fd = weights->wake, .events = POLLIN },
				 { .fd = wh_queue_fd(weights->queue), .events = POLLIN } };
	struct clocks clocks = { 0 };
	bool woken = true;

	pthread_mutex_lock(&weights->lock);
	while (!weights->stop) {
		int64_t until = loop_turn(weights, &clocks, woken), left;
		struct timespec time;
		int count;

		pthread_mutex_unlock(&weights->lock);
		left = until - wh_now();
		woken = left <= 0;
		left = left > 0 ? left : 0;
		time = (struct timespec){ left / WH_SECOND, left % WH_SECOND };
		count = ppoll(fds, 2, &time, NULL);
		woken = woken || count != 0;
		if (count > 0 && fds[0].revents)
			wh_ready_clear(weights->wake);
		pthread_mutex_lock(&weights->lock);
	}
	pthread_mutex_unlock(&weights->lock);
	return NULL;
}

/* ---- start and end
 * ------------------------------------------------------------------------------- */

/* Whom this member connects to: who holds what it wants, and who may want what it holds. Others
 * come by themselves. */
static void links_want(struct wh_weights *weights)
{
	for (uint32_t i = 0; i < weights->plan->cluster.node_count; i++) {
		struct wh_link_to *link = &weights->links[i];
		bool source = weights->node_regions[0][i] != 0;
		bool target = weights->node_regions[1][i] != 0;

		link->wanted =
			link->planned || (weights->is[1] && source) || (weights->is[0] && target);
	}
}

int wh_weights_start(struct wh_weights *weights)
{
	int error = wh_peer_open(weights->engine, "self", NULL, &weights->self);

	if (!error)
		error = wh_queue_new(weights->engine, &weights->queue);
	if (error)
		return error;
	links_want(weights);
	if (wh_thread_start(&weights->ear, "wh-weights-ear", ear_run, weights))
		return wh_fail(EAGAIN, "wh_weights_open: cannot start a thread");
	weights->ear_started = true;
	if (wh_thread_start(&weights->loop, "wh-weights", loop_run, weights))
		return wh_fail(EAGAIN, "wh_weights_open: cannot start a thread");
	weights->loop_started = true;
	return 0;
}

/* Before the regions go, so that who finds them no more knows why. */
static void links_bye(struct wh_weights *weights)
{
	int64_t deadline = wh_now() + BYE_MOST;

	for (uint32_t i = 0; i < weights->plan->cluster.node_count; i++)
		wh_link_bye(&weights->links[i], deadline);
	for (uint32_t i = 0; i < weights->plan->cluster.node_count; i++)
		wh_link_bye_wait(&weights->links[i], deadline);
}

void wh_weights_stop(struct wh_weights *weights)
{
	struct wh_completion done;

	pthread_mutex_lock(&weights->lock);
	weights->stop = true;
	pthread_mutex_unlock(&weights->lock);
	if (weights->loop_started) {
		wh_weights_wake(weights);
		pthread_join(weights->loop, NULL);
		links_bye(weights);
	}
	if (weights->ear_started)
		ear_stop(weights);
	weights->loop_started = weights->ear_started = false;
	while (weights->heard) {
		struct wh_heard *next = weights->heard->next;

		free(weights->heard);
		weights->heard = next;
	}
	for (uint32_t i = 0; weights->links && i < weights->plan->cluster.node_count; i++)
		wh_link_close(&weights->links[i]);
	while (weights->queue && wh_queue_take(weights->queue, &done, 1, 0) > 0)
		;
	wh_queue_free(weights->queue);
	wh_peer_close(weights->self);
	weights->queue = NULL;
	weights->self = NULL;
}
