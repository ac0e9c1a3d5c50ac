/* SPDX-License-Identifier: Apache-2.0 */
/* rdma: which completions need an event. A thread that waits for a batch, or polls it, finds
 * completions without an event. An event wakes another thread for nothing, and where the kernel
 * does the NIC's work, asking for it costs a system call.
 *
 * So a small fragment counts as polled if a thread is expected to wait for its batch or to poll it,
 * and no notification follows: completion queues are not armed for it. Once that thread goes to
 * sleep, the batch's fragments count as unpolled, and their completions make events. A thread may
 * also stop polling without sleeping. So every ROUND a timer checks whether anyone has polled; if
 * not, it counts all fragments as unpolled. */
#include "transport/rdma/flow.h"
#include "transport/rdma/rdma.h"
#include "util/clock.h"

/* Long, so that the timer takes little time from threads that poll. Bytes arrive meanwhile; only
 * the end of a batch that nobody polls is noticed late. */
#define ROUND (10 * WH_MS)

static bool fragment_is_polled(const struct wh_fragment *fragment)
{
	const struct wh_config *config = wh_engine_config(wh_peer_engine(fragment->peer));
	size_t length;

	/* In an engine without threads a waiter serves everything, and sleeps until an event. */
	if (!wh_batch_has_waiter(fragment->batch) ||
	    wh_engine_turns(wh_peer_engine(fragment->peer)))
		return false;
	/* With the setting `spin`, a waiter never sleeps. */
	return config->number[WH_SETTING_SPIN] ||
	       (fragment->bytes <= RDMA_SPLIT && !fragment->whole &&
		!wh_batch_note(fragment->batch, &length));
}

void rdma_polling_add(struct rdma_peer *rdma, struct wh_fragment *fragment)
{
	rdma_of(fragment)->polled = fragment_is_polled(fragment);
	if (!rdma_of(fragment)->polled) {
		rdma->unpolled++;
		return;
	}
	rdma->polled++;
	if (!rdma->timer_active)
		wh_loop_post(&rdma->rdma->loop, &rdma->timer_task);
	rdma->timer_active = true;
}

void rdma_polling_remove(struct rdma_peer *rdma, struct wh_fragment *fragment)
{
	if (rdma_of(fragment)->polled)
		rdma->polled--;
	else
		rdma->unpolled--;
	rdma_of(fragment)->polled = false;
}

/* Count the fragment as unpolled: its completion must make an event. */
static void polling_need_event(struct rdma_peer *rdma, struct wh_fragment *fragment)
{
	if (!rdma_of(fragment)->polled)
		return;
	rdma_polling_remove(rdma, fragment);
	rdma->unpolled++;
}

void rdma_polling_sleep(struct rdma_peer *rdma, struct wh_batch *batch)
{
	struct wh_list done, reroute;
	struct wh_fragment *fragment = NULL;

	wh_list_init(&done);
	wh_list_init(&reroute);
	pthread_mutex_lock(&rdma->lock);
	while ((fragment = wh_batch_fragment(batch, WH_TRANSPORT_RDMA, fragment)))
		polling_need_event(rdma, fragment);
	rdma_progress(rdma, &done, &reroute);
	pthread_mutex_unlock(&rdma->lock);
	rdma_fragments_done(&done);
	rdma_fragments_reroute(rdma, &reroute);
}

/* ---- the timer; on rdma.loop ----------------------------------------------------------------- */

static void polling_need_events(struct rdma_peer *rdma)
{
	struct wh_list *const lists[] = { &rdma->urgent, &rdma->bulk, &rdma->sent };

	for (unsigned i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
		for (struct wh_list *l = lists[i]->next; l != lists[i]; l = l->next)
			polling_need_event(rdma, wh_container(l, struct wh_fragment, link));
}

static void polling_timer_fired(struct wh_timer *timer)
{
	struct rdma_peer *rdma = wh_container(timer, struct rdma_peer, timer);
	struct wh_list done, reroute;

	wh_list_init(&done);
	wh_list_init(&reroute);
	pthread_mutex_lock(&rdma->lock);
	if (rdma->polls != rdma->polls_before || !rdma->polled) {
		rdma->timer_active = rdma->polls != rdma->polls_before;
		rdma->polls_before = rdma->polls;
	} else {
		polling_need_events(rdma);
		rdma_progress(rdma, &done, &reroute);
	}
	if (rdma->timer_active)
		wh_timer_set(&rdma->rdma->loop, timer, wh_now() + ROUND);
	pthread_mutex_unlock(&rdma->lock);
	rdma_fragments_done(&done);
	rdma_fragments_reroute(rdma, &reroute);
}

static void polling_timer_start(struct wh_task *task)
{
	struct rdma_peer *rdma = wh_container(task, struct rdma_peer, timer_task);

	wh_timer_set(&rdma->rdma->loop, &rdma->timer, wh_now() + ROUND);
}

static void polling_timer_stop(void *argument)
{
	struct rdma_peer *rdma = argument;

	wh_loop_cancel(&rdma->rdma->loop, &rdma->timer_task);
	wh_timer_clear(&rdma->timer);
}

void rdma_polling_open(struct rdma_peer *rdma)
{
	rdma->timer_task.run = polling_timer_start;
	rdma->timer.fire = polling_timer_fired;
}

void rdma_polling_close(struct rdma_peer *rdma)
{
	wh_loop_call(&rdma->rdma->loop, polling_timer_stop, rdma);
}
