/* SPDX-License-Identifier: Apache-2.0 */
/* A listening socket on a loop.
 *
 * epoll reports a connection until it is accepted. If the process or the system has no descriptors
 * or memory left, the loop cannot accept it and would spin. So the listener then stops polling the
 * socket and tries again by a timer; meanwhile the connection waits in the backlog. */
#ifndef WH_UTIL_LISTENER_H
#define WH_UTIL_LISTENER_H

#include <sys/socket.h>

#include "util/loop.h"

struct wh_log;

struct wh_listener {
	struct wh_source source; /* its descriptor belongs to the code that opened the listener */
	struct wh_loop *loop;
	struct wh_timer pause;
	bool held; /* by wh_listener_hold() */
	bool starved; /* no descriptors or memory since the last accepted connection */
	/* A connection was accepted. `fd` (close-on-exec, with `flags` of accept4()) belongs to the
	 * callee. On the loop's thread; the callee may hold the listener. */
	void (*accepted)(struct wh_listener *listener, int fd, const struct sockaddr_storage *from);
	int flags; /* SOCK_NONBLOCK, or 0 */
	unsigned turn_max; /* connections accepted before other sources have their turn; 0: 64 */
	unsigned turn; /* accepted in this turn, including the current one */
	bool turn_ended; /* by wh_listener_end_turn() */
	bool edge_triggered; /* take part in epoll's order of arrival: EPOLLET */
	/* No descriptor is left: close one of this listener's connections. True: one was closed,
	 * and the listener tries again at once. NULL: there is none to close. */
	bool (*evict)(struct wh_listener *listener);
	/* Connections wait because of this errno. Called once until a connection is accepted again.
	 * NULL: not called. */
	void (*waits)(struct wh_listener *listener, int error);
};

/* Accept the connections of `fd`, a listening socket that does not block. The caller sets
 * `accepted` and, as wanted, `flags`, `turn_max`, `edge_triggered`, `evict` and `waits`; all else
 * is zero. From any thread; 0, or a negative errno of epoll_ctl(). */
int wh_listener_open(struct wh_listener *listener, struct wh_loop *loop, int fd);
/* Stop accepting (`held`), or continue. Meanwhile connections wait in the backlog. On the loop's
 * thread only. */
void wh_listener_hold(struct wh_listener *listener, bool held);
/* Accept nothing more in this turn; the next one follows after other sources had theirs. From
 * `accepted` only. */
void wh_listener_end_turn(struct wh_listener *listener);
/* Log that connections to `what` wait, for `waits`: a warning if the process or the system has no
 * descriptors left, which somebody has to mend. */
void wh_listener_log(const struct wh_log *log, const char *area, const char *what, int error);
/* Stop for good. On the loop's thread only; the caller closes the descriptor.
 */
void wh_listener_close(struct wh_listener *listener);

#endif
