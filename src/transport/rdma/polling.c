/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdma: who looks for completions. Whoever waits for a batch, or polls it, sees them without an
 * event; to ask for one costs a system call where the kernel does the NIC's work, and a thread that
 * is woken for nothing. So what is small, and of a batch that says by itself to nobody that it is
 * done, is taken to be watched: its completion queue is not armed for it. It is no more once its
 * waiter goes to sleep. And because nobody is bound to come, a patrol passes from time to time:
 * where nobody has looked since, it has the events.
 */
#include "transport/rdma/rdma.h"
#include "util/clock.h"

/* Bytes are where they belong meanwhile; a patrol takes a processor from those who poll. */
#define ROUND (10 * WH_MS)

static bool is_watched(const struct wh_fragment *fragment)
{
	struct wh_batch *batch = fragment->batch;

	if (batch->callback || batch->queue || batch->dependency)
		return false;
	/* With the knob, whoever waits never sleeps. */
	return batch->peer->engine->config.number[WH_SETTING_SPIN] ||
	       (fragment->bytes <= RDMA_SPLIT && !batch->note && !fragment->whole);
}

void rdma_watch(struct rdma_peer *rdma, struct wh_fragment *fragment)
{
	fragment->watched = is_watched(fragment);
	if (!fragment->watched) {
		rdma->unwatched++;
		return;
	}
	rdma->watched++;
	if (!rdma->timer_polled)
		wh_loop_post(&rdma->rdma->loop, &rdma->timer_due);
	rdma->timer_polled = true;
}

void rdma_unwatch(struct rdma_peer *rdma, struct wh_fragment *fragment)
{
	if (fragment->watched)
		rdma->watched--;
	else
		rdma->unwatched--;
	fragment->watched = false;
}

/* Its completion is to make an event. */
static void give_up(struct rdma_peer *rdma, struct wh_fragment *fragment)
{
	if (!fragment->watched)
		return;
	rdma_unwatch(rdma, fragment);
	rdma->unwatched++;
}

void rdma_sleep(struct rdma_peer *rdma, struct wh_batch *batch)
{
	struct wh_list done, away;

	wh_list_init(&done);
	wh_list_init(&away);
	pthread_mutex_lock(&rdma->lock);
	for (size_t i = 0; i < batch->fragment_count; i++)
		give_up(rdma, &batch->fragments[i]);
	rdma_progress(rdma, &done, &away);
	pthread_mutex_unlock(&rdma->lock);
	rdma_fragments_done(&done);
	rdma_fragments_in_flight(rdma, &away);
}

/* ---- the patrol; on the transport's own loop ------------------------------------------------- */

static void give_up_all(struct rdma_peer *rdma)
{
	struct wh_list *const lists[] = { &rdma->urgent, &rdma->bulk, &rdma->sent };

	for (unsigned i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
		for (struct wh_list *l = lists[i]->next; l != lists[i]; l = l->next)
			give_up(rdma, wh_container(l, struct wh_fragment, link));
}

static void timer(struct wh_timer *timer)
{
	struct rdma_peer *rdma = wh_container(timer, struct rdma_peer, timer);
	struct wh_list done, away;

	wh_list_init(&done);
	wh_list_init(&away);
	pthread_mutex_lock(&rdma->lock);
	if (rdma->looked != rdma->looked_before || !rdma->watched) {
		rdma->timer_polled = rdma->looked != rdma->looked_before;
		rdma->looked_before = rdma->looked;
	} else {
		give_up_all(rdma);
		rdma_progress(rdma, &done, &away);
	}
	if (rdma->timer_polled)
		wh_timer_set(&rdma->rdma->loop, timer, wh_now() + ROUND);
	pthread_mutex_unlock(&rdma->lock);
	rdma_fragments_done(&done);
	rdma_fragments_in_flight(rdma, &away);
}

static void timer_start(struct wh_task *task)
{
	struct rdma_peer *rdma = wh_container(task, struct rdma_peer, timer_due);

	wh_timer_set(&rdma->rdma->loop, &rdma->timer, wh_now() + ROUND);
}

static void timer_fired(void *argument)
{
	struct rdma_peer *rdma = argument;

	wh_loop_cancel(&rdma->rdma->loop, &rdma->timer_due);
	wh_timer_clear(&rdma->timer);
}

void rdma_polling_open(struct rdma_peer *rdma)
{
	rdma->timer_due.run = timer_start;
	rdma->timer.fire = timer;
}

void rdma_polling_close(struct rdma_peer *rdma)
{
	wh_loop_call(&rdma->rdma->loop, timer_fired, rdma);
}
