/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removals. REMOVED promises that nothing here touches the region any more, so it waits for copies
 * in progress. Loop 0 does not: it looks again by a timer, and serves the peer meanwhile. In an
 * engine without threads, the thread that would wait may be the one that has to end the copy.
 */
#include "core/removal.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "core/engine.h"
#include "core/peer.h"
#include "core/remote.h"
#include "net/control.h"
#include "util/clock.h"
#include "util/config.h"
#include "util/list.h"
#include "util/loop.h"
#include "wire/bytes.h"
#include "wire/wire.h"

/* How long to wait for copies before going on by the timer, which only looks; most end sooner. */
#define WAIT WH_MS
#define PAUSE WH_MS
/* More removals than this do not wait, whatever the peer sends. */
#define MOST 65536u

struct pending {
	struct wh_list link; /* peer.removals, in the order in which they came */
	struct wh_removal removal;
	int64_t deadline;
};

/* 0; -EBUSY: the region is still used. */
static int removal_try(struct wh_peer *peer, const struct wh_removal *removal, int64_t deadline)
{
	uint8_t number[8];
	int error =
		wh_remote_remove(peer, removal->id, removal->address, removal->length, deadline);

	if (error)
		return error;
	atomic_fetch_add(&peer->plan_version, 1);
	pthread_mutex_lock(&peer->lock);
	pthread_cond_broadcast(&peer->changed);
	pthread_mutex_unlock(&peer->lock);
	wh_put64(number, removal->number);
	return wh_control_send(&peer->control, WH_FRAME_REMOVED, 0, number, sizeof(number));
}

static void removals_give_up(struct wh_peer *peer)
{
	wh_control_close(&peer->control);
	peer->control.gone(&peer->control, -EBUSY,
			   "has unregistered memory that is still being copied");
}

static void removals_go_on(struct wh_timer *timer)
{
	struct wh_peer *peer = wh_container(timer, struct wh_peer, removing);
	int error = 0;

	while (!error && !wh_list_empty(&peer->removals)) {
		struct pending *pending = wh_container(peer->removals.next, struct pending, link);

		error = removal_try(peer, &pending->removal, 0);
		if (error == -EBUSY && wh_now() < pending->deadline)
			break;
		if (error)
			continue;
		wh_list_remove(&pending->link);
		peer->removal_count--;
		free(pending);
	}
	if (error && error != -EBUSY)
		return; /* wh_control_send() gives the connection up */
	if (error && wh_now() >= wh_container(peer->removals.next, struct pending, link)->deadline)
		removals_give_up(peer);
	else if (error)
		wh_timer_set(&peer->engine->loops[0], timer, wh_now() + PAUSE);
}

static int removal_defer(struct wh_peer *peer, const struct wh_removal *removal)
{
	int64_t patience = peer->engine->config.number[WH_SETTING_TIMEOUT] * WH_MS / 2;
	struct pending *pending = malloc(sizeof(*pending));

	if (!pending || peer->removal_count >= MOST) {
		free(pending);
		return -ENOMEM;
	}
	pending->removal = *removal;
	pending->deadline = wh_deadline(patience);
	if (!peer->removal_count++)
		wh_timer_set(&peer->engine->loops[0], &peer->removing, wh_now() + PAUSE);
	wh_list_append(&peer->removals, &pending->link);
	return 0;
}

int wh_removal_received(struct wh_peer *peer, const uint8_t *payload, size_t length)
{
	int64_t deadline = peer->engine->turns ? 0 : wh_deadline(WAIT);
	struct wh_removal removal;
	int error = wh_removal_decode(payload, length, &removal);

	if (!error)
		error = wh_list_empty(&peer->removals) ? removal_try(peer, &removal, deadline) :
							 -EBUSY;
	return error == -EBUSY ? removal_defer(peer, &removal) : error;
}

void wh_removals_init(struct wh_peer *peer)
{
	wh_list_init(&peer->removals);
	peer->removing.fire = removals_go_on;
}

void wh_removals_drop(struct wh_peer *peer)
{
	struct wh_list *link;

	wh_timer_clear(&peer->removing);
	while ((link = wh_list_take(&peer->removals)))
		free(wh_container(link, struct pending, link));
	peer->removal_count = 0;
}
