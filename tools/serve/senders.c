/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/senders.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "serve/reply.h"
#include "spread/message.h"
#include "util/clock.h"

#define SENDERS_MOST 16 /* that are being connected to */
#define SENDERS_OF_ONE 4 /* address, whatever their names and epochs */
#define SENDERS_FOR (20 * WH_SECOND) /* nobody has taken the connection: its request is gone */

struct sender {
	struct sender *next;
	uint64_t epoch, source; /* of its request */
	char url[sizeof(((struct spread_item *)NULL)->url)];
	struct wh_peer *peer;
	int64_t until;
};

static void sender_free(struct sender **link)
{
	struct sender *sender = *link;

	*link = sender->next;
	if (sender->peer)
		wh_peer_close(sender->peer);
	free(sender);
}

void senders_tick(struct senders *senders)
{
	struct sender **link = &senders->first;
	struct wh_completion done[4];

	while (senders->queue && wh_queue_take(senders->queue, done, 4, 0) > 0)
		;
	while (*link)
		if (wh_now() >= (*link)->until)
			sender_free(link);
		else
			link = &(*link)->next;
}

/* May a message make this engine connect there? A negative errno: -EINVAL, -EACCES: see
 * sender_refusal(). With the setting connect_to the engine itself refuses what is elsewhere. */
static int sender_check(const struct senders *senders, const struct request *request,
			const char *url)
{
	struct sockaddr_storage address;

	if (!reply_address(url, &address))
		return -EINVAL;
	if (reply_is_back(&address, request->source) ||
	    *engine_setting(senders->arguments, "WHERRY_CONNECT_TO", "connect_to"))
		return 0;
	return -EACCES;
}

static const char *sender_refusal(int error)
{
	return error == -EINVAL ? "it is no address" :
	       error == -EACCES ? "it is another address than that from which it asks; name the "
				  "networks to connect to in the setting connect_to" :
				  strerror(-error);
}

/* Begin to connect. A negative errno: -EAGAIN: it has begun, or there are too many. */
static int sender_begin(struct senders *senders, const struct request *request, const char *url)
{
	struct wh_peer_options options = { .size = sizeof(options) };
	struct sender *sender;
	unsigned all = 0, own = 0;
	int error;

	for (sender = senders->first; sender; sender = sender->next) {
		all++;
		own += sender->source == request->source;
	}
	if (all >= SENDERS_MOST || own >= SENDERS_OF_ONE)
		return -EAGAIN;
	if (!senders->queue && wh_queue_new(senders->engine, &senders->queue))
		return -ENOMEM;
	sender = calloc(1, sizeof(*sender));
	if (!sender)
		return -ENOMEM;
	options.queue = senders->queue;
	error = wh_peer_open(senders->engine, url, &options, &sender->peer);
	if (error) {
		free(sender);
		return error;
	}
	sender->epoch = request->epoch;
	sender->source = request->source;
	snprintf(sender->url, sizeof(sender->url), "%s", url);
	sender->until = wh_now() + SENDERS_FOR;
	sender->next = senders->first;
	senders->first = sender;
	return -EAGAIN;
}

int sender_open(struct senders *senders, const struct request *request, const char *url,
		struct wh_peer **out)
{
	struct wh_peer_info info = { .size = sizeof(info) };
	struct sender **link = &senders->first;
	int error;

	while (*link && ((*link)->epoch != request->epoch || strcmp((*link)->url, url) != 0))
		link = &(*link)->next;
	if (*link)
		error = wh_peer_status((*link)->peer);
	else
		error = sender_check(senders, request, url);
	if (!error && !*link)
		error = sender_begin(senders, request, url);
	if (error == -EINPROGRESS)
		error = -EAGAIN;
	if (error == -EAGAIN)
		return error;
	if (!error && !wh_peer_info((*link)->peer, &info) && info.epoch == request->epoch) {
		*out = (*link)->peer;
		(*link)->peer = NULL;
		sender_free(link);
		return 0;
	}
	if (request_may_note(senders->requests, request)) {
		if (error)
			note("cannot answer '%s', which spreads a file, at %s: %s", request->sender,
			     url, *link ? wh_error_text() : sender_refusal(error));
		else
			note("'%s', which spreads a file, is not at %s: '%s' is", request->sender,
			     url, info.name);
	}
	if (*link)
		sender_free(link);
	return error ? error : -ESTALE;
}

void senders_end(struct senders *senders)
{
	while (senders->first)
		sender_free(&senders->first);
}

void senders_free(struct senders *senders)
{
	struct wh_completion done;

	while (senders->queue && wh_queue_take(senders->queue, &done, 1, 0) > 0)
		;
	if (senders->queue)
		wh_queue_free(senders->queue);
}
