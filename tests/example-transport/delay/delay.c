/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport delay, an example: it copies within this engine, 20 ms after the submission. With
 * one line in the list of transports it is complete; docs/adding-a-transport.md goes through it.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/region-table.h"
#include "memory/region.h"
#include "transport/core.h"
#include "transport/fragment.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/list.h"
#include "util/loop.h"

#define DELAY (20 * WH_MS)

struct delay_peer {
	struct wh_engine *engine;
	pthread_mutex_t lock;
	struct wh_list waiting; /* fragments, the oldest first; under the lock */
	struct wh_task task; /* sets the timer, which only the loop's thread may do */
	struct wh_timer timer;
};

/* In wh_fragment.state. */
struct delay_fragment {
	int64_t due; /* ns of wh_now() */
};

static struct delay_fragment *delay_of(const struct wh_fragment *fragment)
{
	_Static_assert(sizeof(struct delay_fragment) <= WH_FRAGMENT_STATE, "it fits");
	return (struct delay_fragment *)(uintptr_t)fragment->state;
}

static void fragment_move(const struct delay_peer *delay, struct wh_fragment *fragment)
{
	struct wh_region_table *regions = wh_engine_regions(delay->engine);
	struct wh_extent_pair pair;
	struct wh_cursor at;
	char *remote;

	wh_fragment_start(fragment, &at);
	while (wh_fragment_next(fragment, &at, UINT64_MAX, &pair)) {
		struct wh_region_entry *entry = wh_region_entry_enter(regions, pair.remote);

		if (!entry) {
			wh_fragment_fail(fragment, pair.index, -ESTALE,
					 "region %#llx was unregistered before its bytes were due",
					 (unsigned long long)pair.remote);
			continue;
		}
		remote = (char *)(uintptr_t)entry->address + pair.offset;
		if (fragment->op == WH_READ)
			memmove(pair.local, remote, pair.length);
		else
			memmove(remote, pair.local, pair.length);
		wh_region_entry_leave(entry);
	}
}

/* End the fragments that are due, with `error` all of them. On the first loop. */
static void peer_run(struct delay_peer *delay, int error, const char *text)
{
	struct wh_fragment *fragment;
	struct wh_list *link;

	pthread_mutex_lock(&delay->lock);
	while ((link = wh_list_take(&delay->waiting))) {
		fragment = wh_container(link, struct wh_fragment, link);
		if (!error && delay_of(fragment)->due > wh_now()) {
			wh_list_push(&delay->waiting, link);
			wh_timer_set(wh_engine_first_loop(delay->engine), &delay->timer,
				     delay_of(fragment)->due);
			break;
		}
		/* The end of a batch may call back into the transport. */
		pthread_mutex_unlock(&delay->lock);
		if (error)
			wh_fragment_fail(fragment, UINT64_MAX, error, "%s", text);
		else
			fragment_move(delay, fragment);
		wh_fragment_done(fragment);
		pthread_mutex_lock(&delay->lock);
	}
	pthread_mutex_unlock(&delay->lock);
}

static void peer_task(struct wh_task *task)
{
	peer_run(wh_container(task, struct delay_peer, task), 0, "");
}

static void peer_timer(struct wh_timer *timer)
{
	peer_run(wh_container(timer, struct delay_peer, timer), 0, "");
}

static int delay_peer_open(struct wh_peer *peer, void **state, char why[WH_REFUSAL])
{
	struct delay_peer *delay;

	if (!wh_peer_is_self(peer)) {
		snprintf(why, WH_REFUSAL, "%.63s is another engine", wh_peer_name(peer));
		return -ENXIO;
	}
	delay = calloc(1, sizeof(*delay));
	if (!delay) {
		snprintf(why, WH_REFUSAL, "no memory");
		return -ENOMEM;
	}
	delay->engine = wh_peer_engine(peer);
	delay->task.run = peer_task;
	delay->timer.fire = peer_timer;
	pthread_mutex_init(&delay->lock, NULL);
	wh_list_init(&delay->waiting);
	*state = delay;
	return 0;
}

static void delay_peer_close(struct wh_peer *peer, void *state)
{
	struct delay_peer *delay = state;

	(void)peer;
	wh_loop_cancel(wh_engine_first_loop(delay->engine), &delay->task);
	wh_timer_clear(&delay->timer);
	pthread_mutex_destroy(&delay->lock);
	free(delay);
}

static void delay_peer_lost(struct wh_peer *peer, void *state, int error, const char *text)
{
	(void)peer;
	peer_run(state, error, text);
}

static int delay_is_reachable(struct wh_peer *peer, void *state, const struct wh_region *local,
			      struct wh_region_entry *remote, uint32_t op, char why[WH_REFUSAL])
{
	(void)peer;
	(void)state;
	(void)op;
	if (wh_kind_on_host(local->entry.kind) && wh_kind_on_host(remote->kind))
		return 0;
	snprintf(why, WH_REFUSAL, "it copies host memory only");
	return -ENXIO;
}

static void delay_submit(struct wh_peer *peer, void *state, struct wh_fragment *fragment)
{
	struct delay_peer *delay = state;

	(void)peer;
	delay_of(fragment)->due = wh_now() + DELAY;
	pthread_mutex_lock(&delay->lock);
	wh_list_append(&delay->waiting, &fragment->link);
	pthread_mutex_unlock(&delay->lock);
	wh_loop_post(wh_engine_first_loop(delay->engine), &delay->task);
}

static void delay_cancel(struct wh_peer *peer, void *state, struct wh_fragment *fragment)
{
	struct delay_peer *delay = state;
	bool waits;

	(void)peer;
	pthread_mutex_lock(&delay->lock);
	waits = fragment->link.next;
	wh_list_remove(&fragment->link);
	pthread_mutex_unlock(&delay->lock);
	if (!waits) /* it is being moved, and ends by itself */
		return;
	wh_fragment_fail(fragment, UINT64_MAX, -ECANCELED, "cancelled");
	wh_fragment_done(fragment);
}

static void delay_describe(struct wh_peer *peer, void *state, const struct wh_batch *batch,
			   struct wh_description *out)
{
	(void)peer;
	(void)state;
	(void)batch;
	snprintf(out->how, sizeof(out->how), "memory copy after %d ms", (int)(DELAY / WH_MS));
}

const struct wh_transport wh_transport_delay = {
	.name = "delay",
	.capabilities = WH_CAN_READ | WH_CAN_WRITE,
	.peer_open = delay_peer_open,
	.peer_close = delay_peer_close,
	.peer_lost = delay_peer_lost,
	.is_reachable = delay_is_reachable,
	.submit = delay_submit,
	.cancel = delay_cancel,
	.describe = delay_describe,
};
