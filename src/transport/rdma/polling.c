/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdma: who polls. A thread that waits for a batch, or polls it, sees completions without an event.
 * Asking for an event costs a system call where the kernel does the NIC's work, and wakes a thread
 * for nothing. So a small fragment, of a batch that signals nobody by itself, counts as polled: its
 * completion queue is not armed. It counts as unpolled once its waiter goes to sleep. Because no
 * thread is obliged to poll, a timer checks from time to time and asks for events where nobody has
 * polled.
 */
#include "transport/rdma/flow.h"
#include "transport/rdma/rdma.h"
#include "util/clock.h"

/* Long enough not to take a processor from threads that poll; the bytes arrive meanwhile anyway. */
#define ROUND (10 * WH_MS)

static bool fragment_is_polled(const struct wh_fragment *fragment)
{
	const struct wh_config *config = wh_engine_config(wh_peer_engine(fragment->peer));
	size_t length;

	if (!wh_batch_has_waiter(fragment->batch))
		return false;
	/* With the setting `spin`, a waiter never sleeps. */
	return config->number[WH_SETTING_SPIN] ||
	       (fragment->bytes <= RDMA_SPLIT && !fragment->whole &&
		!wh_batch_note(fragment->batch, &length));
}

void rdma_polling_add(struct rdma_peer *rdma, struct wh_fragment *fragment)
{
	rdma_of(fragment)->watched = fragment_is_polled(fragment);
	if (!rdma_of(fragment)->watched) {
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
	if (rdma_of(fragment)->watched)
		rdma->polled--;
	else
		rdma->unpolled--;
	rdma_of(fragment)->watched = false;
}

/* Its completion must make an event. */
static void polling_need_event(struct rdma_peer *rdma, struct wh_fragment *fragment)
{
	if (!rdma_of(fragment)->watched)
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
