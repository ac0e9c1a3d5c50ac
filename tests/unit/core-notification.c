/* SPDX-License-Identifier: Apache-2.0 */
/* core-notification.c: notifications between two engines: delivery, a full inbox, cancellation,
 * invalid frames */
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

static int open_all(const char *spin)
{
	const char *const config[] = { "notifications=2", spin, NULL };
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

static int setup(void **state)
{
	(void)state;
	return open_all("spin=no");
}

static int setup_spinning(void **state)
{
	(void)state;
	return open_all("spin=yes");
}

static int teardown(void **state)
{
	(void)state;
	return wh_peer_close(peer) || wh_peer_close(self) || wh_engine_close(there) ||
	       wh_engine_close(here);
}

static struct wh_batch *submit(struct wh_peer *to, unsigned number)
{
	struct wh_batch *batch;
	char text[20];

	snprintf(text, sizeof(text), "%u", number);
	assert_int_equal(wh_batch_new(to, NULL, &batch), 0);
	assert_int_equal(wh_batch_notify(batch, text, strlen(text) + 1), 0);
	assert_int_equal(wh_batch_submit(batch), 0);
	return batch;
}

/* Receive a notification from the engine `from`; return the number in it. */
static unsigned receive(const char *from, int64_t timeout)
{
	struct wh_notification note;

	assert_int_equal(wh_engine_notification(here, &note, timeout), 0);
	assert_string_equal(note.sender, from);
	assert_int_equal(note.epoch, wh_engine_epoch(strcmp(from, "sender") ? here : there));
	assert_int_equal(note.length, strlen((char *)note.data) + 1);
	return (unsigned)atoi((char *)note.data);
}

static bool readable(void)
{
	struct pollfd poll_fd = { .fd = wh_engine_notification_fd(here), .events = POLLIN };

	return poll(&poll_fd, 1, 0) == 1;
}

static void finish(struct wh_batch *batch)
{
	assert_int_equal(wh_batch_wait(batch, PATIENCE), 0);
	assert_int_equal(wh_batch_free(batch), 0);
}

/* ---- delivery ---------------------------------------------------------- */

static void notify__itself(void **state)
{
	(void)state;
	assert_false(readable());
	finish(submit(self, 5));
	assert_true(readable());
	assert_int_equal(receive("receiver", 0), 5);
	assert_false(readable());
}

static void notify__a_peer(void **state)
{
	struct wh_batch *batch = submit(peer, 7);

	(void)state;
	assert_int_equal(receive("sender", PATIENCE), 7);
	finish(batch);
	/* Submit the same batch again. */
	batch = submit(peer, 8);
	assert_int_equal(receive("sender", PATIENCE), 8);
	assert_int_equal(wh_batch_wait(batch, PATIENCE), 0);
	assert_int_equal(wh_batch_submit(batch), 0);
	assert_int_equal(receive("sender", PATIENCE), 8);
	finish(batch);
}

static void notify__the_most_bytes(void **state)
{
	static unsigned char bytes[WH_NOTIFICATION_MAX];
	static struct wh_notification note;
	struct wh_peer *const both[] = { peer, self };
	struct wh_batch *batch;

	(void)state;
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char)(i * 31);
	for (int i = 0; i < 2; i++) {
		memset(&note, 0, sizeof(note));
		assert_int_equal(wh_batch_new(both[i], NULL, &batch), 0);
		assert_int_equal(wh_batch_notify(batch, bytes, sizeof(bytes)), 0);
		assert_int_equal(wh_batch_submit(batch), 0);
		assert_int_equal(wh_engine_notification(here, &note, PATIENCE), 0);
		assert_int_equal(note.length, sizeof(bytes));
		assert_memory_equal(note.data, bytes, sizeof(bytes));
		finish(batch);
	}
}

static void take__none(void **state)
{
	struct wh_notification note;
	int64_t start = wh_now();

	(void)state;
	assert_int_equal(wh_engine_notification(here, &note, 0), -EAGAIN);
	assert_int_equal(wh_engine_notification(here, &note, 20 * WH_MS), -EAGAIN);
	assert_in_range(wh_now() - start, 20 * WH_MS, PATIENCE);
}

static void *submit_later(void *arg)
{
	usleep(20000);
	finish(submit(arg, 3));
	return NULL;
}

static void take__wakes_up(void **state)
{
	pthread_t thread;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, submit_later, peer), 0);
	assert_int_equal(receive("sender", WH_FOREVER), 3);
	pthread_join(thread, NULL);
}

/* ---- a full inbox ------------------------------------------------------ */

#define CROWD 40 /* more than the window of 16 and the two in the inbox */

static void full__all_arrive_in_turn(void **state)
{
	struct wh_batch *batches[CROWD];

	(void)state;
	for (unsigned i = 0; i < CROWD; i++)
		batches[i] = submit(peer, i);
	finish(batches[0]);
	finish(batches[1]);
	usleep(20000);
	assert_int_equal(wh_batch_poll(batches[2]), -EINPROGRESS);
	for (unsigned i = 0; i < CROWD; i++)
		assert_int_equal(receive("sender", PATIENCE), i);
	for (unsigned i = 2; i < CROWD; i++)
		finish(batches[i]);
	assert_false(readable());
}

static void full__own_ones_wait_too(void **state)
{
	struct wh_batch *batches[CROWD];

	(void)state;
	for (unsigned i = 0; i < CROWD; i++)
		batches[i] = submit(self, i);
	assert_int_equal(wh_batch_poll(batches[1]), 0);
	assert_int_equal(wh_batch_poll(batches[2]), -EINPROGRESS);
	for (unsigned i = 0; i < CROWD; i++)
		assert_int_equal(receive("receiver", PATIENCE), i);
	for (unsigned i = 0; i < CROWD; i++)
		finish(batches[i]);
}

static void count_waiting(void *arg)
{
	unsigned *count = arg;

	*count = 0;
	for (struct wh_list *link = here->sessions.next; link != &here->sessions; link = link->next)
		*count += wh_container(link, struct wh_session, link)->notify_count;
}

static void await_waiting(unsigned want)
{
	int64_t end = wh_now() + PATIENCE;
	unsigned count;

	do {
		assert_true(wh_now() < end);
		wh_loop_call(&here->loops[0], count_waiting, &count);
	} while (count != want);
}

static void full__own_and_others_take_turns(void **state)
{
	struct wh_batch *mine[6], *theirs[6];
	struct wh_notification note;
	int own = 0, early = 0;

	(void)state;
	finish(submit(self, 100));
	finish(submit(self, 101));
	for (unsigned i = 0; i < 6; i++) {
		mine[i] = submit(self, i);
		theirs[i] = submit(peer, i);
	}
	await_waiting(6);
	for (int i = 0; i < 14; i++) {
		assert_int_equal(wh_engine_notification(here, &note, PATIENCE), 0);
		if (i >= 2 && i < 10)
			early += !strcmp(note.sender, "receiver");
		own += !strcmp(note.sender, "receiver");
		usleep(1000);
	}
	assert_int_equal(own, 8);
	assert_in_range(early, 2, 6);
	for (unsigned i = 0; i < 6; i++) {
		finish(mine[i]);
		finish(theirs[i]);
	}
}

static void count_sessions(void *arg)
{
	unsigned *count = arg;

	*count = here->session_count;
}

static void await_no_session(void)
{
	int64_t end = wh_now() + PATIENCE;
	unsigned count;

	do {
		assert_true(wh_now() < end);
		wh_loop_call(&here->loops[0], count_sessions, &count);
	} while (count);
}

static void full__the_sender_leaves(void **state)
{
	struct wh_batch *batches[8];

	(void)state;
	for (unsigned i = 0; i < 8; i++)
		batches[i] = submit(peer, i);
	finish(batches[0]);
	finish(batches[1]);
	for (unsigned i = 2; i < 8; i++) {
		assert_int_equal(wh_batch_cancel(batches[i]), 0);
		assert_int_equal(wh_batch_poll(batches[i]), -ECANCELED);
		assert_int_equal(wh_batch_free(batches[i]), 0);
	}
	assert_int_equal(wh_peer_close(peer), 0);
	await_no_session(); /* drops what the session held */
	assert_int_equal(receive("sender", 0), 0);
	assert_int_equal(receive("sender", 0), 1);
	assert_int_equal(wh_peer_open(there, wh_engine_url(here), NULL, &peer), 0);
	finish(submit(peer, 9));
	assert_int_equal(receive("sender", PATIENCE), 9);
}

static void full__the_receiver_leaves(void **state)
{
	struct wh_batch *batches[CROWD];
	int status;

	(void)state;
	for (unsigned i = 0; i < CROWD; i++)
		batches[i] = submit(peer, i);
	finish(batches[0]);
	finish(batches[1]);
	assert_int_equal(wh_peer_close(self), 0);
	assert_int_equal(wh_engine_close(here), 0);
	for (unsigned i = 2; i < CROWD; i++) {
		status = wh_batch_wait(batches[i], PATIENCE);
		assert_int_equal(status, -ECONNRESET);
		assert_true(*wh_batch_error_text(batches[i]));
		assert_int_equal(wh_batch_free(batches[i]), 0);
	}
	assert_int_equal(wh_peer_close(peer), 0);
	assert_int_equal(wh_engine_close(there), 0);
	assert_int_equal(open_all("spin=no"), 0); /* for the teardown */
}

/* ---- cancellation ------------------------------------------------------ */

static void cancel__waiting_and_sent(void **state)
{
	struct wh_batch *batches[CROWD];

	(void)state;
	for (unsigned i = 0; i < CROWD; i++)
		batches[i] = submit(peer, i);
	/* The last one has not been sent. */
	assert_int_equal(wh_batch_cancel(batches[CROWD - 1]), 0);
	assert_int_equal(wh_batch_wait(batches[CROWD - 1], 0), -ECANCELED);
	/* The fifth has been sent but not confirmed: it arrives all the same. */
	assert_int_equal(wh_batch_cancel(batches[4]), 0);
	assert_int_equal(wh_batch_wait(batches[4], 0), -ECANCELED);
	for (unsigned i = 0; i < CROWD - 1; i++)
		assert_int_equal(receive("sender", PATIENCE), i);
	for (unsigned i = 0; i < CROWD; i++) {
		if (i == 4 || i == CROWD - 1)
			assert_int_equal(wh_batch_free(batches[i]), 0);
		else
			finish(batches[i]);
	}
	assert_false(readable());
	/* The window has not shrunk. */
	pthread_mutex_lock(&peer->notify_lock);
	assert_int_equal(peer->notify_count, 0);
	pthread_mutex_unlock(&peer->notify_lock);
}

static void cancel__own(void **state)
{
	struct wh_batch *batches[4];

	(void)state;
	for (unsigned i = 0; i < 4; i++)
		batches[i] = submit(self, i);
	assert_int_equal(wh_batch_cancel(batches[2]), 0);
	assert_int_equal(wh_batch_poll(batches[2]), -ECANCELED);
	assert_int_equal(wh_batch_cancel(batches[0]), 0);
	assert_int_equal(wh_batch_poll(batches[0]), 0); /* had completed */
	assert_int_equal(receive("receiver", PATIENCE), 0);
	assert_int_equal(receive("receiver", PATIENCE), 1);
	assert_int_equal(receive("receiver", PATIENCE), 3);
	finish(batches[1]);
	finish(batches[3]);
	assert_int_equal(wh_batch_free(batches[0]), 0);
	assert_int_equal(wh_batch_free(batches[2]), 0);
}

/* ---- concurrency ------------------------------------------------------- */

#define EACH 50

static atomic_int sending;

static void *send_many(void *to)
{
	struct wh_batch *batch;

	for (unsigned i = 0; i < EACH; i++) {
		batch = submit(to, i);
		if (i % 8 == 7) {
			wh_batch_cancel(batch);
			wh_batch_free(batch);
		} else {
			finish(batch);
		}
	}
	atomic_fetch_sub(&sending, 1);
	return NULL;
}

static void threads__lose_nothing(void **state)
{
	pthread_t threads[6];
	struct wh_notification note;
	int got = 0;

	(void)state;
	atomic_store(&sending, 6);
	for (int i = 0; i < 6; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, send_many, i % 2 ? peer : self),
				 0);
	while (atomic_load(&sending))
		got += !wh_engine_notification(here, &note, 5 * WH_MS);
	for (int i = 0; i < 6; i++)
		pthread_join(threads[i], NULL);
	/* Some cancelled ones had been sent before. */
	while (!wh_engine_notification(here, &note, 50 * WH_MS))
		got++;
	assert_in_range(got, 6 * (EACH - EACH / 8), 6 * EACH);
}

/* ---- misuse and hostile peers ------------------------------------------ */

static void misuse(void **state)
{
	struct wh_notification note;

	(void)state;
	assert_int_equal(wh_engine_notification(NULL, &note, 0), -EINVAL);
	assert_int_equal(wh_engine_notification(here, NULL, 0), -EINVAL);
	assert_int_equal(wh_engine_notification(here, &note, -1), -EINVAL);
	assert_int_equal(wh_engine_notification_fd(NULL), -EINVAL);
}

static void take_inside(void *arg)
{
	struct wh_notification note;
	int *result = arg;

	result[0] = wh_engine_notification(here, &note, WH_MS);
	result[1] = wh_engine_notification(here, &note, 0);
}

static void take__in_a_callback(void **state)
{
	int result[2];

	(void)state;
	wh_loop_call(&here->loops[0], take_inside, result);
	assert_int_equal(result[0], -EDEADLK);
	assert_int_equal(result[1], -EAGAIN);
}

static struct wh_session *session(void)
{
	assert_false(wh_list_empty(&here->sessions));
	return wh_container(here->sessions.next, struct wh_session, link);
}

static void notified_hostile(void *arg)
{
	static uint8_t payload[9 + WH_NOTIFICATION_MAX];
	int *result = arg;

	*result++ = wh_session_notified(session(), payload, 0);
	*result++ = wh_session_notified(session(), payload, 8);
	*result++ = wh_session_notified(session(), payload, 9 + WH_NOTIFICATION_MAX);
	/* Two in the inbox, 16 held, one too many. */
	for (int i = 0; i < 19; i++) {
		wh_put64(payload, 1000000 + (uint64_t)i); /* never sent by the other side */
		*result++ = wh_session_notified(session(), payload, 9);
	}
}

static void notified__hostile(void **state)
{
	struct wh_notification note;
	int result[22];

	(void)state;
	wh_loop_call(&here->loops[0], notified_hostile, result);
	for (int i = 0; i < 3; i++)
		assert_int_equal(result[i], -EPROTO);
	for (int i = 3; i < 21; i++)
		assert_int_equal(result[i], 0);
	assert_int_equal(result[21], -EPROTO);
	for (int i = 0; i < 18; i++)
		assert_int_equal(wh_engine_notification(here, &note, PATIENCE), 0);
	/* Confirmations of unsent notifications do no harm. */
	finish(submit(peer, 1));
	assert_int_equal(receive("sender", PATIENCE), 1);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)
#define TEST_SPINNING(function)                                                                    \
	{                                                                                          \
#function "__spinning", function, setup_spinning, teardown, NULL                   \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(notify__itself),
		TEST(notify__a_peer),
		TEST_SPINNING(notify__a_peer),
		TEST(notify__the_most_bytes),
		TEST(take__none),
		TEST_SPINNING(take__none),
		TEST(take__wakes_up),
		TEST_SPINNING(take__wakes_up),
		TEST(full__all_arrive_in_turn),
		TEST(full__own_ones_wait_too),
		TEST(full__own_and_others_take_turns),
		TEST(full__the_sender_leaves),
		TEST(full__the_receiver_leaves),
		TEST(cancel__waiting_and_sent),
		TEST(cancel__own),
		TEST(threads__lose_nothing),
		TEST(misuse),
		TEST(take__in_a_callback),
		TEST(notified__hostile),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
