/* SPDX-License-Identifier: Apache-2.0 */
/* Connections of wherry serve --weights to engines that have sent it a message, which is put off
 * until it can be answered. On one thread. */
#ifndef TOOLS_SERVE_SENDERS_H
#define TOOLS_SERVE_SENDERS_H

#include <wherry/wherry.h>

#include "command.h"
#include "serve/requests.h"

struct sender;

struct senders {
	/* Set by the caller. */
	struct wh_engine *engine;
	const struct arguments *arguments;
	struct requests *requests; /* for request_may_note() */
	/* NULL at first. */
	struct wh_queue *queue; /* so that they are connected to without waiting; else unused */
	struct sender *first;
};

/* Connect to the engine that sent a message, at the URL that the message says. 0; -EAGAIN: it is
 * not connected yet; another errno: it never will be. */
int sender_open(struct senders *senders, const struct request *request, const char *url,
		struct wh_peer **out);
/* Let go of those whose request is gone. */
void senders_tick(struct senders *senders);
/* Close all; then, when no peer of sender_open() is open any more, free the rest. */
void senders_end(struct senders *senders);
void senders_free(struct senders *senders);

#endif
