/* SPDX-License-Identifier: Apache-2.0 */
#include "util/listener.h"

#include <errno.h>

#include "util/clock.h"

/* Accepted in one turn: what else is on the loop has its turn in between. */
#define TURN_MOST 64
/* Until it is tried again. */
#define PAUSE (100 * WH_MS)

static void listener_arm(struct wh_listener *listener)
{
	bool paused = listener->pause.link.next != NULL;

	wh_loop_modify(listener->loop, &listener->source, listener->held || paused ? 0 : EPOLLIN);
}

static void listener_resume(struct wh_timer *timer)
{
	listener_arm(wh_container(timer, struct wh_listener, pause));
}

static void listener_wait(struct wh_listener *listener, int error)
{
	bool told = listener->short_of;

	listener->short_of = true;
	wh_timer_set(listener->loop, &listener->pause, wh_now() + PAUSE);
	listener_arm(listener);
	if (!told && listener->waits)
		listener->waits(listener, error);
}

static void listener_ready(struct wh_source *source, uint32_t events)
{
	struct wh_listener *listener = wh_container(source, struct wh_listener, source);

	(void)events;
	for (int turn = 0; turn < TURN_MOST && !listener->held; turn++) {
		struct sockaddr_storage from = { .ss_family = AF_UNSPEC };
		socklen_t length = sizeof(from);
		int fd = accept4(source->fd, (struct sockaddr *)&from, &length,
				 SOCK_CLOEXEC | listener->flags);

		if (fd >= 0) {
			listener->short_of = false;
			listener->accepted(listener, fd, &from);
			continue;
		}
		if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
			listener_wait(listener, errno);
		return;
	}
}

int wh_listener_open(struct wh_listener *listener, struct wh_loop *loop, int fd)
{
	listener->loop = loop;
	listener->source = (struct wh_source){ .fd = fd, .ready = listener_ready };
	listener->pause.fire = listener_resume;
	return wh_loop_add(loop, &listener->source, EPOLLIN);
}

void wh_listener_hold(struct wh_listener *listener, bool held)
{
	if (listener->held == held)
		return;
	listener->held = held;
	listener_arm(listener);
}

void wh_listener_close(struct wh_listener *listener)
{
	wh_timer_clear(&listener->pause);
	wh_loop_remove(listener->loop, &listener->source);
}
