/* SPDX-License-Identifier: Apache-2.0 */
/* A listening socket on a loop.
 *
 * epoll reports a connection for as long as it waits, so a loop that cannot accept one, because the
 * process or the system has no descriptors or memory left, would spin on it. A listener stops
 * asking then, and tries again by a timer; the connection waits in the backlog. */
#ifndef WH_UTIL_LISTENER_H
#define WH_UTIL_LISTENER_H

#include <sys/socket.h>

#include "util/loop.h"

struct wh_listener {
	struct wh_source source; /* its descriptor belongs to who opened the listener */
	struct wh_loop *loop;
	struct wh_timer pause;
	bool held; /* by wh_listener_hold() */
	bool short_of; /* of descriptors or memory, since the last connection that was accepted */
	/* A connection, whose descriptor (close-on-exec, with `flags` of accept4()) now belongs to
	 * the callee. On the loop's thread, where it may hold the listener. */
	void (*accepted)(struct wh_listener *listener, int fd, const struct sockaddr_storage *from);
	int flags; /* SOCK_NONBLOCK, or 0 */
	unsigned turn_max; /* connections accepted before other sources have their turn; 0: 64 */
	unsigned turn; /* accepted in this turn, the one that `accepted` is called for included */
	bool turn_ended; /* by wh_listener_end_turn() */
	bool edge_triggered; /* take part in epoll's order of arrival: EPOLLET */
	/* No descriptor is left: close one of this listener's connections. True: one was closed,
	 * and the listener tries again at once. NULL: there is none to close. */
	bool (*evict)(struct wh_listener *listener);
	/* Connections have to wait for this errno; told once, until one is accepted again. NULL:
	 * nobody is told. */
	void (*waits)(struct wh_listener *listener, int error);
};

/* Accept what comes to `fd`, which listens and does not block. The caller sets `accepted` and, as
 * wanted, `flags`, `turn_max`, `edge_triggered`, `evict` and `waits`; all else is zero. From any
 * thread; 0, or a negative errno of epoll_ctl(). */
int wh_listener_open(struct wh_listener *listener, struct wh_loop *loop, int fd);
/* Accept nothing more until it is let go of: connections wait in the backlog. On the loop's thread
 * only. */
void wh_listener_hold(struct wh_listener *listener, bool held);
/* Accept nothing more in this turn; the next one follows once other sources had theirs. From
 * `accepted` only. */
void wh_listener_end_turn(struct wh_listener *listener);
/* No connection is accepted any more. On the loop's thread only; the caller closes the descriptor.
 */
void wh_listener_close(struct wh_listener *listener);

#endif
