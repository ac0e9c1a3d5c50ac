/* SPDX-License-Identifier: Apache-2.0 */
/* A listening socket on a loop: accepts in turns, and pauses while descriptors or memory are short.
 */
#include "util/listener.h"

#include <errno.h>
#include <string.h>

#include "util/clock.h"
#include "util/log.h"

/* Connections accepted in one turn, by default. */
#define TURN_MAX 64
/* Until it is tried again. */
#define PAUSE (100 * WH_MS)

static uint32_t listener_events(const struct wh_listener *listener)
{
	return listener->edge_triggered ? EPOLLIN | EPOLLET : EPOLLIN;
}

static void listener_arm(struct wh_listener *listener)
{
	bool paused = listener->pause.link.next != NULL;

	wh_loop_modify(listener->loop, &listener->source,
		       listener->held || paused ? 0 : listener_events(listener));
}

static void listener_resume(struct wh_timer *timer)
{
	listener_arm(wh_container(timer, struct wh_listener, pause));
}

static void listener_wait(struct wh_listener *listener, int error)
{
	bool told = listener->starved;

	listener->starved = true;
	wh_timer_set(listener->loop, &listener->pause, wh_now() + PAUSE);
	listener_arm(listener);
	if (!told && listener->waits)
		listener->waits(listener, error);
}

static bool error_of_descriptors(int error)
{
	return error == EMFILE || error == ENFILE;
}

/* accept4() failed. True: another try may succeed. */
static bool listener_failed(struct wh_listener *listener, int error)
{
	bool descriptors = error_of_descriptors(error);

	if (error == EAGAIN)
		return false;
	if (!descriptors && error != ENOMEM && error != ENOBUFS)
		return true; /* the connection is gone */
	if (descriptors && listener->evict && listener->evict(listener))
		return true;
	listener_wait(listener, error);
	return false;
}

static void listener_ready(struct wh_source *source, uint32_t events)
{
	struct wh_listener *listener = wh_container(source, struct wh_listener, source);
	unsigned max = listener->turn_max ? listener->turn_max : TURN_MAX;

	(void)events;
	listener->turn = 0;
	listener->turn_ended = false;
	for (unsigned i = 0; i < max && !listener->held && !listener->turn_ended; i++) {
		struct sockaddr_storage from = { .ss_family = AF_UNSPEC };
		socklen_t length = sizeof(from);
		int fd = accept4(source->fd, (struct sockaddr *)&from, &length,
				 SOCK_CLOEXEC | listener->flags);

		if (fd >= 0) {
			listener->starved = false;
			listener->turn++;
			listener->accepted(listener, fd, &from);
		} else if (!listener_failed(listener, errno)) {
			return;
		}
	}
	/* Connections that still wait cause no edge of their own. */
	if (listener->edge_triggered && !listener->held)
		listener_arm(listener);
}

int wh_listener_open(struct wh_listener *listener, struct wh_loop *loop, int fd)
{
	listener->loop = loop;
	listener->source = (struct wh_source){ .fd = fd, .ready = listener_ready };
	listener->pause.fire = listener_resume;
	return wh_loop_add(loop, &listener->source, listener_events(listener));
}

void wh_listener_hold(struct wh_listener *listener, bool held)
{
	if (listener->held == held)
		return;
	listener->held = held;
	listener_arm(listener);
}

void wh_listener_end_turn(struct wh_listener *listener)
{
	listener->turn_ended = true;
}

void wh_listener_log(const struct wh_log *log, const char *area, const char *what, int error)
{
	const char *remedy = error == EMFILE ? "; raise this process's limit (RLIMIT_NOFILE)" :
			     error == ENFILE ? "; raise fs.file-max" :
					       "";

	wh_log_line(log, error_of_descriptors(error) ? WH_LOG_WARN : WH_LOG_INFO, area,
		    "%s wait and are not accepted: %s%s", what, strerror(error), remedy);
}

void wh_listener_close(struct wh_listener *listener)
{
	wh_timer_clear(&listener->pause);
	wh_loop_remove(listener->loop, &listener->source);
}
