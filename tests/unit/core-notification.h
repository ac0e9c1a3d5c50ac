/* SPDX-License-Identifier: Apache-2.0 */
/* core-notification.h: an engine that receives notifications and one that sends them, for
 * core-notification.c and core-notification-filter.c */
#ifndef TESTS_UNIT_CORE_NOTIFICATION_H
#define TESTS_UNIT_CORE_NOTIFICATION_H

#include "../integration/lib/note.h"
#include "../integration/lib/outcome.h"
#include "unit.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include <wherry/wherry.h>

#include "core/batch.h"
#include "core/engine.h"
#include "core/notification.h"
#include "core/peer.h"
#include "core/session.h"
#include "util/clock.h"
#include "util/list.h"
#include "util/loop.h"
#include "wire/bytes.h"

#define PATIENCE (10 * WH_SECOND)

/* `here` receives, with an inbox for two notifications; `there` sends. */
static struct wh_engine *here, *there;
static struct wh_peer *peer; /* `here`, as a peer of `there` */
static struct wh_peer *self; /* `here`, as its own peer */

static inline int open_all(const char *spin, const char *room)
{
	const char *const config[] = { room, spin, NULL };
	const struct wh_engine_options receiver = {
		.size = sizeof(receiver),
		.name = "receiver",
		.config = config,
	};
	const struct wh_engine_options sender = {
		.size = sizeof(sender),
		.name = "sender",
		.listen = "none",
		.config = config + 1,
	};

	return wh_engine_open(&receiver, &here) || wh_engine_open(&sender, &there) ||
	       wh_peer_open(there, wh_engine_url(here), NULL, &peer) ||
	       wh_peer_open(here, "self", NULL, &self);
}

static inline int setup(void **state)
{
	(void)state;
	return open_all("spin=no", "notifications=2");
}

static inline int setup_spinning(void **state)
{
	(void)state;
	return open_all("spin=yes", "notifications=2");
}

static inline int setup_roomy(void **state)
{
	(void)state;
	return open_all("spin=no", "notifications=1000");
}

static inline int setup_roomy_spinning(void **state)
{
	(void)state;
	return open_all("spin=yes", "notifications=1000");
}

static inline int teardown(void **state)
{
	(void)state;
	return wh_peer_close(peer) || wh_peer_close(self) || wh_engine_close(there) ||
	       wh_engine_close(here);
}

static inline struct wh_batch *submit(struct wh_peer *to, unsigned number)
{
	struct wh_batch *batch;
	char text[20];

	snprintf(text, sizeof(text), "%u", number);
	assert_int_equal(wh_batch_new(to, NULL, &batch), 0);
	assert_int_equal(wh_batch_notify(batch, 0, text, strlen(text) + 1), 0);
	assert_int_equal(wh_batch_submit(batch), 0);
	return batch;
}

/* Receive a notification from the engine `from`; return the number in it. */
static inline unsigned receive(const char *from, int64_t timeout)
{
	struct note note;

	assert_int_equal(note_take(here, &note, timeout), 0);
	assert_string_equal(note.sender, from);
	assert_int_equal(note.epoch, wh_engine_epoch(strcmp(from, "sender") ? here : there));
	assert_int_equal(note.length, strlen((char *)note.data) + 1);
	return (unsigned)atoi((char *)note.data);
}

static inline bool readable(void)
{
	struct pollfd poll_fd = { .fd = wh_engine_notification_fd(here), .events = POLLIN };

	return poll(&poll_fd, 1, 0) == 1;
}

static inline void finish(struct wh_batch *batch)
{
	assert_int_equal(batch_end(batch, PATIENCE), 0);
	assert_int_equal(wh_batch_free(batch), 0);
}
static inline void notify(struct wh_peer *to, uint64_t tag, const void *data, size_t length)
{
	struct wh_batch *batch;

	assert_int_equal(wh_batch_new(to, NULL, &batch), 0);
	assert_int_equal(wh_batch_notify(batch, tag, data, length), 0);
	assert_int_equal(wh_batch_submit(batch), 0);
	finish(batch);
}

/* Take one that the filter matches; its tag. */
static inline uint64_t take(const char *sender, uint64_t tag, uint64_t mask, int64_t timeout)
{
	const struct wh_notification_filter filter = {
		.size = sizeof(filter), .sender = sender, .tag = tag, .tag_mask = mask
	};
	struct wh_notification got = { .size = sizeof(got) };

	assert_int_equal(wh_engine_notification(here, &filter, &got, timeout), 0);
	assert_false((got.tag ^ tag) & mask);
	assert_int_equal(got.length, 0);
	if (sender)
		assert_string_equal(got.sender, sender);
	return got.tag;
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)
#define TEST_SPINNING(function)                                                                    \
	{                                                                                          \
#function "__spinning", function, setup_spinning, teardown, NULL                   \
	}

#endif
