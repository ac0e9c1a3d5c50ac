/* SPDX-License-Identifier: Apache-2.0 */
/* peer-frame.c: which frames a peer may send when, and the answers to aborts */
#include "core-link.h"

static struct {
	struct wh_abort *abort;
	int error;
	unsigned count;
} done;

static void on_done(struct wh_abort *abort, int error)
{
	done.abort = abort;
	done.error = error;
	done.count++;
}

static struct wh_abort abort_of(uint32_t number)
{
	return (struct wh_abort){ .number = number, .done = on_done };
}

static int give_number(struct link *link, uint16_t type, uint64_t number, size_t length)
{
	uint8_t bytes[16] = { 0 };

	wh_put64(bytes, number);
	return link_give(link, type, 0, bytes, length);
}

/* Before its proof a peer says WELCOME or REFUSED, and WELCOME never again. */
static void frame__before_the_proof(void **state)
{
	struct link link = peer_link("far");

	(void)state;
	link.peer->proved = link.peer->listed = false;
	for (uint16_t type = 1; type < WH_FRAME_TYPE_END; type++)
		if (type != WH_FRAME_WELCOME && type != WH_FRAME_REFUSED)
			assert_int_equal(give_number(&link, type, 1, 8), -EPROTO);
	assert_int_equal(give_number(&link, WH_FRAME_WELCOME, 1, 8), -EPROTO);
	assert_int_equal(give_number(&link, WH_FRAME_REFUSED, 1, 0), -EPROTO);
	assert_false(link.peer->proved);
	link.peer->proved = link.peer->listed = true;
	assert_int_equal(give_number(&link, WH_FRAME_WELCOME, 1, 8), -EPROTO);
	assert_int_equal(give_number(&link, WH_FRAME_REFUSED, 1, 8), -EPROTO);
	link_quiet(&link);
	link_close(&link);
}

static void frame__lengths(void **state)
{
	static const uint16_t numbers[] = { WH_FRAME_NOTIFIED, WH_FRAME_ABORTED };
	struct link link = peer_link("far");

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(give_number(&link, numbers[i], 1, 7), -EPROTO);
		assert_int_equal(give_number(&link, numbers[i], 1, 9), -EPROTO);
		assert_int_equal(give_number(&link, numbers[i], 1, 8), 0);
	}
	assert_int_equal(give_number(&link, WH_FRAME_REGISTERED, 0, 1), -EPROTO);
	assert_int_equal(link.peer->registered, 0);
	assert_int_equal(give_number(&link, WH_FRAME_REGISTERED, 0, 0), 0);
	assert_int_equal(link.peer->registered, 1);
	assert_int_equal(give_number(&link, WH_FRAME_PONG, 1, 8), 0);
	/* Frames that only an initiator sends, and such of no transport. */
	assert_int_equal(give_number(&link, WH_FRAME_HELLO, 1, 8), -EPROTO);
	assert_int_equal(give_number(&link, WH_FRAME_LOOKUP, 1, 8), -EPROTO);
	assert_int_equal(give_number(&link, WH_FRAME_PING, 1, 8), -EPROTO);
	assert_int_equal(give_number(&link, WH_FRAME_ABORT, 1, 8), -EPROTO);
	assert_int_equal(give_number(&link, WH_FRAME_TYPE_END - 1, 1, 8), -EPROTO);
	link_quiet(&link);
	link_close(&link);
}

/* Each answer ends the oldest abort of its number. */
static void abort__by_number(void **state)
{
	struct link link = peer_link("far");
	struct wh_abort aborts[] = { abort_of(1), abort_of(2), abort_of(1) };

	(void)state;
	memset(&done, 0, sizeof(done));
	for (unsigned i = 0; i < 3; i++) {
		wh_peer_abort(link.peer, &aborts[i]);
		link_number(&link, WH_FRAME_ABORT, aborts[i].number);
	}
	assert_int_equal(give_number(&link, WH_FRAME_ABORTED, 3, 8), 0);
	/* None that has such a number, and no other in its place. */
	assert_int_equal(give_number(&link, WH_FRAME_ABORTED, UINT64_C(1) << 32 | 1, 8), -EPROTO);
	assert_int_equal(give_number(&link, WH_FRAME_ABORTED, UINT32_MAX, 8), -EPROTO);
	assert_int_equal(done.count, 0);
	assert_int_equal(give_number(&link, WH_FRAME_ABORTED, 1, 8), 0);
	assert_ptr_equal(done.abort, &aborts[0]);
	assert_int_equal(done.error, 0);
	assert_int_equal(give_number(&link, WH_FRAME_ABORTED, 1, 8), 0);
	assert_ptr_equal(done.abort, &aborts[2]);
	assert_int_equal(give_number(&link, WH_FRAME_ABORTED, 1, 8), 0);
	assert_int_equal(done.count, 2);
	wh_peer_forget_abort(link.peer, &aborts[1]);
	assert_int_equal(give_number(&link, WH_FRAME_ABORTED, 2, 8), 0);
	assert_int_equal(done.count, 2);
	link_close(&link);
}

static void abort__of_a_lost_peer(void **state)
{
	struct link link = peer_link("far");
	struct wh_abort one = abort_of(1), other = abort_of(2), late = abort_of(3);

	(void)state;
	memset(&done, 0, sizeof(done));
	wh_peer_abort(link.peer, &one);
	wh_peer_abort(link.peer, &other);
	wh_peer_aborts_fail(link.peer, -ECONNRESET);
	assert_int_equal(done.count, 2);
	assert_ptr_equal(done.abort, &other);
	assert_int_equal(done.error, -ECONNRESET);
	atomic_store(&link.peer->state, WH_PEER_LOST);
	wh_peer_abort(link.peer, &late);
	assert_int_equal(done.count, 3);
	assert_ptr_equal(done.abort, &late);
	assert_int_equal(done.error, -ECONNRESET);
	wh_peer_aborts_fail(link.peer, -ECONNRESET);
	assert_int_equal(done.count, 3);
	link_close(&link);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(frame__before_the_proof),
		TEST(frame__lengths),
		TEST(abort__by_number),
		TEST(abort__of_a_lost_peer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
