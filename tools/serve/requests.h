/* SPDX-License-Identifier: Apache-2.0 */
/* A thread of wherry serve that answers what others ask by notifications: it may wait for disks,
 * while the thread that receives notifications goes on. What one address asks is answered in its
 * order, and addresses in turn. */
#ifndef TOOLS_SERVE_REQUESTS_H
#define TOOLS_SERVE_REQUESTS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/wherry.h>

/* What one notification holds. */
struct request {
	struct request *next;
	int64_t until; /* it can be put off until then */
	bool last; /* it cannot be put off any more */
	uint64_t epoch; /* the sender's engine, as it claims */
	uint64_t source; /* wh_notification.source */
	char sender[64]; /* its name, fit to be printed */
	size_t size;
	uint8_t data[];
};

#define REQUESTS_NOTED 16 /* addresses */

struct requests {
	/* Both on the thread, which serves all: neither waits for a peer. `handle` answers a
	 * request; false: something has to end first, and the request comes again, behind others.
	 * `tick` does what is due without one: at the start, after each request, and after as many
	 * ns without one as it returned. */
	bool (*handle)(void *owner, const struct request *request);
	int64_t (*tick)(void *owner);
	void *owner;
	/* That wait for the thread. One address has at most half, so that others have room, and
	 * half of those that were put off. */
	size_t most;

	/* The thread's own. */
	struct request *later; /* were put off, the oldest first */
	size_t later_count;
	int64_t again, pause; /* when they come again; ns between */
	struct {
		uint64_t source;
		int64_t until; /* no other line about it */
	} noted[REQUESTS_NOTED];
	pthread_t thread;
	bool started;
	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t changed;
	struct request *first, **last;
	size_t count;
	bool ending;
};

/* Prepare; the caller has set the first four members. requests_stop() undoes it. */
void requests_init(struct requests *requests);

/* Start the thread. 0, or an exit code. */
int requests_start(struct requests *requests);

/* Copy a notification for the thread. Does not block; one too many, of all or of its address, is
 * dropped, and its sender hears nothing. */
void requests_take(struct requests *requests, const struct wh_notification *note);

/* May the thread say something about this request? One line in 10 s for each address, whatever
 * names its senders give themselves, and for no more than REQUESTS_NOTED of them, so that nobody
 * fills the log. */
bool request_may_note(struct requests *requests, const struct request *request);

/* Return when the thread has ended. Requests that wait are dropped. */
void requests_stop(struct requests *requests);

#endif
