/* SPDX-License-Identifier: Apache-2.0 */
/* core-link.h: sessions and peers of the engine without threads whose other end is the test: it
 * reads the frames that they send, and hands them frames itself */
#ifndef TESTS_UNIT_CORE_LINK_H
#define TESTS_UNIT_CORE_LINK_H

#include "core-fake.h"

#include <sys/socket.h>
#include <unistd.h>

#include "core/session.h"
#include "net/control.h"
#include "util/loop.h"
#include "wire/bytes.h"
#include "wire/wire.h"

struct link {
	struct wh_session *session; /* or */
	struct wh_peer *peer;
	int here, there; /* the library's socket, and ours */
};

static uint8_t frame_bytes[WH_FRAME_MAX];

static inline void link_sockets(struct link *link)
{
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
	link->here = fds[0];
	link->there = fds[1];
}

static inline void link_accept(void *argument)
{
	static uint64_t next = 100;
	const uint8_t key[WH_KEY_SIZE] = { 0 };
	struct link *link = argument;
	struct wh_hello hello = { .epoch = 77, .role = WH_ROLE_CONTROL };

	snprintf(hello.name, sizeof(hello.name), "guest%d", (int)(next % 100));
	assert_int_equal(wh_session_new(engine, link->here, NULL, 1, &hello, next, key), 0);
	link->session = wh_session_find(engine, next++);
	assert_non_null(link->session);
}

/* An engine has connected to ours. */
static inline struct link session_link(void)
{
	struct link link = { 0 };

	link_sockets(&link);
	wh_loop_call(&engine->loops[0], link_accept, &link);
	return link;
}

static inline void link_gone(struct wh_control *control, int error, const char *text)
{
	(void)control;
	(void)text;
	fail_msg("the connection broke: %d", error);
}

static inline void link_connect(void *argument)
{
	struct link *link = argument;

	link->peer->control.gone = link_gone;
	assert_int_equal(wh_control_start(&link->peer->control, link->here, NULL), 0);
	link->peer->proved = true;
}

/* Ours has connected to another one. */
static inline struct link peer_link(const char *name)
{
	struct link link = { .peer = peer_new(name) };

	link_sockets(&link);
	wh_loop_call(&engine->loops[0], link_connect, &link);
	return link;
}

static inline void link_end(void *argument)
{
	struct link *link = argument;

	wh_session_end(link->session, -ECONNRESET, "the test ends it");
}

static inline void link_close(struct link *link)
{
	if (link->session)
		wh_loop_call(&engine->loops[0], link_end, link);
	if (link->peer)
		peer_drop(link->peer);
	close(link->there);
}

/* The next frame that was sent, its payload in frame_bytes; its type; 0: there is none. */
static inline uint16_t link_frame(const struct link *link, struct wh_frame *frame)
{
	uint8_t head[WH_FRAME_HEADER];
	size_t at = 0;

	if (recv(link->there, head, sizeof(head), MSG_DONTWAIT) != sizeof(head))
		return 0;
	assert_int_equal(wh_frame_decode(head, frame), 0);
	while (at < frame->length) {
		ssize_t got = recv(link->there, frame_bytes + at, frame->length - at, MSG_DONTWAIT);

		if (got <= 0) /* the rest is queued */
			assert_true(wh_engine_progress(engine, 0) >= 0);
		else
			at += (size_t)got;
	}
	return frame->type;
}

/* Nothing was sent. */
static inline void link_quiet(const struct link *link)
{
	struct wh_frame frame;

	assert_int_equal(link_frame(link, &frame), 0);
}

/* The next frame is of this type and has this number alone. */
static inline void link_number(const struct link *link, uint16_t type, uint64_t number)
{
	struct wh_frame frame;

	assert_int_equal(link_frame(link, &frame), type);
	assert_int_equal(frame.length, 8);
	assert_int_equal(wh_get64(frame_bytes), number);
}

/* The peer gets a frame from the other engine. */
static inline int link_give(struct link *link, uint16_t type, uint16_t flags, const void *bytes,
			    size_t length)
{
	const struct wh_frame frame = { .length = (uint32_t)length, .type = type, .flags = flags };
	uint8_t *exact = exact_copy(bytes, length);
	int error = wh_peer_frame(&link->peer->control, &frame, exact);

	free(exact);
	return error;
}

static inline void settle(void)
{
	while (wh_engine_progress(engine, 0) > 0)
		;
}

#endif
