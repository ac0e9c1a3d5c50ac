/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/requests.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "command.h"
#include "util/clock.h"
#include "util/text.h"

#define NOTE_EVERY (10 * WH_SECOND)
#define LATER_MOST 64 /* requests; one more cannot be put off */
#define LATER_FOR (30 * WH_SECOND) /* a request is put off */
/* Between two times that they come again, at first and at most. */
#define PAUSE_FIRST (WH_MS / 10)
#define PAUSE_MOST (10 * WH_MS)

/* Take the first request, and put the others of its address behind those of all others: each
 * address gets one turn after the other, however many requests it has. */
static struct request *queue_take(struct requests *requests)
{
	struct request *taken = requests->first, *own = NULL;
	struct request **link, **own_last = &own;

	requests->first = taken->next;
	for (link = &requests->first; *link;) {
		if ((*link)->source != taken->source) {
			link = &(*link)->next;
			continue;
		}
		*own_last = *link;
		own_last = &(*link)->next;
		*link = (*link)->next;
	}
	*own_last = NULL;
	*link = own;
	requests->last = own ? own_last : link;
	requests->count--;
	return taken;
}

/* The next request, or NULL after `wait` ns. False: the thread ends. */
static bool request_next(struct requests *requests, int64_t wait, struct request **out)
{
	int64_t until = wh_now() + wait;
	struct timespec time = { until / WH_SECOND, until % WH_SECOND };
	bool ending;

	*out = NULL;
	pthread_mutex_lock(&requests->lock);
	if (!requests->first && !requests->ending)
		pthread_cond_timedwait(&requests->changed, &requests->lock, &time);
	ending = requests->ending;
	if (requests->first && !ending)
		*out = queue_take(requests);
	pthread_mutex_unlock(&requests->lock);
	return !ending;
}

/* How many of a list are from that address? */
static size_t requests_from(const struct request *request, uint64_t source)
{
	size_t count = 0;

	for (; request; request = request->next)
		count += request->source == source;
	return count;
}

/* Handle the request, which goes to `link`, the end of those that were put off, if it is not its
 * turn yet. True: it is put off. */
static bool request_try(struct requests *requests, struct request *request, struct request **link)
{
	request->last = wh_now() >= request->until || requests->later_count >= LATER_MOST ||
			requests_from(requests->later, request->source) >= LATER_MOST / 2;
	request->next = NULL;
	if (requests->handle(requests->owner, request) || request->last) {
		free(request);
		return false;
	}
	*link = request;
	requests->later_count++;
	return true;
}

/* Those that were put off, in their order. */
static void requests_try_again(struct requests *requests)
{
	struct request *request = requests->later, **link = &requests->later;

	if (!request || wh_now() < requests->again)
		return;
	requests->later = NULL;
	while (request) {
		struct request *next = request->next;

		requests->later_count--;
		if (request_try(requests, request, link))
			link = &request->next;
		request = next;
	}
	if (requests->pause < PAUSE_MOST)
		requests->pause *= 2;
	requests->again = wh_now() + requests->pause;
}

static void request_first(struct requests *requests, struct request *request)
{
	struct request **link = &requests->later;

	while (*link)
		link = &(*link)->next;
	if (!request_try(requests, request, link))
		return;
	requests->pause = PAUSE_FIRST;
	requests->again = wh_now() + PAUSE_FIRST;
}

static void *requests_run(void *argument)
{
	struct requests *requests = argument;
	struct request *request;
	int64_t wait, later;

	do {
		wait = requests->tick(requests->owner);
		requests_try_again(requests);
		later = requests->again - wh_now();
		if (requests->later && later < wait)
			wait = later > 0 ? later : 0;
		if (!request_next(requests, wait, &request))
			return NULL;
		if (request)
			request_first(requests, request);
	} while (true);
}

void requests_init(struct requests *requests)
{
	pthread_condattr_t attributes;

	requests->last = &requests->first;
	pthread_mutex_init(&requests->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&requests->changed, &attributes);
	pthread_condattr_destroy(&attributes);
}

int requests_start(struct requests *requests)
{
	if (pthread_create(&requests->thread, NULL, requests_run, requests))
		return fail(EAGAIN, "cannot start a thread");
	requests->started = true;
	return 0;
}

void requests_take(struct requests *requests, const struct wh_notification *note)
{
	struct request *request = malloc(sizeof(*request) + note->length);

	if (!request)
		return;
	*request = (struct request){ .until = wh_now() + LATER_FOR,
				     .epoch = note->epoch,
				     .source = note->source,
				     .size = note->length };
	memcpy(request->sender, note->sender, sizeof(request->sender));
	wh_text_clean(request->sender);
	if (note->length)
		memcpy(request->data, note->buffer, note->length);
	pthread_mutex_lock(&requests->lock);
	if (requests->count < requests->most &&
	    requests_from(requests->first, request->source) < (requests->most + 1) / 2) {
		*requests->last = request;
		requests->last = &request->next;
		requests->count++;
		request = NULL;
		pthread_cond_signal(&requests->changed);
	}
	pthread_mutex_unlock(&requests->lock);
	free(request);
}

bool request_may_note(struct requests *requests, const struct request *request)
{
	size_t slot = REQUESTS_NOTED;
	int64_t now = wh_now();

	for (size_t i = 0; i < REQUESTS_NOTED; i++) {
		if (requests->noted[i].until <= now)
			slot = i;
		else if (requests->noted[i].source == request->source)
			return false;
	}
	if (slot == REQUESTS_NOTED)
		return false;
	requests->noted[slot].source = request->source;
	requests->noted[slot].until = now + NOTE_EVERY;
	return true;
}

static void requests_free(struct request *request)
{
	while (request) {
		struct request *next = request->next;

		free(request);
		request = next;
	}
}

void requests_stop(struct requests *requests)
{
	pthread_mutex_lock(&requests->lock);
	requests->ending = true;
	pthread_cond_signal(&requests->changed);
	pthread_mutex_unlock(&requests->lock);
	if (requests->started)
		pthread_join(requests->thread, NULL);
	requests_free(requests->first);
	requests_free(requests->later);
	pthread_cond_destroy(&requests->changed);
	pthread_mutex_destroy(&requests->lock);
}
