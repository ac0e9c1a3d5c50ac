/* SPDX-License-Identifier: Apache-2.0 */
/* peer-connect.c: addresses in turn, what a lost peer does, and pings */
#include "core-peer.h"
#include "frozen-clock.h"

static unsigned lost; /* calls of transports that have learned of it */

static void on_lost(struct wh_peer *peer, void *given, int error, const char *text)
{
	(void)given;
	assert_int_equal(error, -ECONNRESET);
	assert_non_null(strstr(text, "far ("));
	/* What is submitted meanwhile may still be sent by the broken connection. */
	assert_int_equal(atomic_load(&peer->losses) % 2, 1);
	lost++;
}

/* ---- connecting ---------------------------------------------------------------------------- */

/* A connected peer, without a connection, at addresses of which none works. */
static struct wh_peer *peer_at(unsigned addresses)
{
	struct wh_peer *peer = peer_new("far");

	lost = 0;
	for (unsigned i = 0; i < FAKES; i++)
		fake_table(fake_order[i])->peer_lost = on_lost;
	for (unsigned i = 0; i < addresses; i++) {
		struct sockaddr_in *address = (struct sockaddr_in *)&peer->address[i];

		address->sin_family = AF_INET;
		address->sin_addr.s_addr = htonl(0x0a000001 + i);
		address->sin_port = htons(7000);
	}
	peer->address_count = addresses;
	snprintf(peer->address_text, sizeof(peer->address_text), "10.0.0.1:7000");
	return peer;
}

struct end {
	struct wh_peer *peer;
	int error;
	const char *text;
};

static void end_connection(void *argument)
{
	const struct end *end = argument;

	end->peer->control.gone(&end->peer->control, end->error, end->text);
}

static void gone(struct wh_peer *peer, int error, const char *text)
{
	struct end end = { peer, error, text };

	on_loop(end_connection, &end);
}

static void give_up(void *argument)
{
	const struct end *end = argument;

	wh_peer_give_up(end->peer, end->error, end->text);
}

static void connect_first(void *peer)
{
	wh_peer_connect(peer);
}

/* Each address is tried once; the last one's error counts. */
static void connect__addresses_in_turn(void **state)
{
	struct wh_peer *peer = peer_at(3);

	(void)state;
	atomic_store(&peer->state, WH_PEER_CONNECTING);
	peer->listed = false;
	on_loop(connect_first, peer);
	assert_int_equal(peer->address_next, 3);
	assert_string_equal(peer->address_text, "10.0.0.3:7000");
	assert_int_equal(atomic_load(&peer->state), WH_PEER_UNREACHABLE);
	assert_int_equal(peer->connect_error, -ENOKEY);
	assert_null(peer->retry.link.next);
	assert_int_equal(lost, 0);
	peer_drop(peer);
}

/* During the handshake the next address follows; not after an answer that is final. */
static void connect__broken_handshake(void **state)
{
	struct wh_peer *peer = peer_at(3);
	struct end end = { peer, -EPROTONOSUPPORT, "too old" };

	(void)state;
	atomic_store(&peer->state, WH_PEER_CONNECTING);
	peer->listed = false;
	peer->address_next = 1;
	gone(peer, -ECONNRESET, "closed");
	assert_int_equal(peer->address_next, 3);
	assert_int_equal(peer->connect_error, -ENOKEY);
	/* The last one. -ECONNRESET would mean that it is tried again. */
	set_state(peer, WH_PEER_CONNECTING, 0, "");
	gone(peer, -ECONNRESET, "closed");
	assert_int_equal(peer->connect_error, -ECONNABORTED);
	assert_string_equal(peer->text,
			    "10.0.0.3:7000: it closed the connection during the handshake");
	set_state(peer, WH_PEER_CONNECTING, 0, "");
	gone(peer, -EPROTO, "sent nonsense");
	assert_int_equal(peer->connect_error, -EPROTO);
	assert_string_equal(peer->text, "10.0.0.3:7000: sent nonsense");
	/* Neither is a peer lost that was never reached. */
	assert_int_equal(wh_count_get(&peer->lost), 0);
	set_state(peer, WH_PEER_CONNECTING, 0, "");
	peer->address_next = 1;
	on_loop(give_up, &end);
	assert_int_equal(peer->connect_error, -EPROTONOSUPPORT);
	assert_string_equal(peer->text, "too old");
	assert_int_equal(atomic_load(&peer->state), WH_PEER_UNREACHABLE);
	peer_drop(peer);
}

static void lost__transports_learn_of_it(void **state)
{
	struct wh_peer *peer = peer_at(1);
	uint64_t all = wh_count_get(&engine->statistics.peers_lost);
	uint32_t version = atomic_load(&peer->plan_version);

	(void)state;
	gone(peer, -ETIMEDOUT, "does not answer");
	assert_int_equal(lost, FAKES);
	assert_int_equal(atomic_load(&peer->losses), 2);
	assert_int_equal(wh_count_get(&peer->lost), 1);
	assert_int_equal(wh_count_get(&engine->statistics.peers_lost), all + 1);
	assert_int_equal(wh_count_get(&engine->statistics.damaged), 0);
	assert_true(atomic_load(&peer->plan_version) > version);
	assert_false(peer->listed);
	assert_int_equal(wh_peer_status(peer), -ECONNRESET);
	said("far (10.0.0.1:7000) does not answer");
	logged("2 peer: lost: far (10.0.0.1:7000) does not answer");
	/* It is reached, and the handshake breaks: it is still lost, and not once more. */
	peer->address_next = 1;
	gone(peer, -EPROTO, "sent nonsense");
	assert_int_equal(lost, FAKES);
	assert_int_equal(atomic_load(&peer->losses), 2);
	assert_int_equal(wh_count_get(&peer->lost), 1);
	assert_int_equal(wh_peer_status(peer), -ECONNRESET);
	said("10.0.0.1:7000: sent nonsense");
	peer_drop(peer);
}

static void lost__damage(void **state)
{
	struct wh_peer *peer = peer_at(1);

	(void)state;
	gone(peer, -EBADMSG, "sent damaged bytes");
	assert_int_equal(wh_count_get(&engine->statistics.damaged), 1);
	logged("1 net: far sent damaged bytes; the connection is cut");
	assert_int_equal(wh_peer_status(peer), -ECONNRESET);
	peer_drop(peer);
}

static void connected(void *peer)
{
	wh_peer_connected(peer);
}

/* After 10 ms, and each time after twice as long, up to a second. */
static void lost__pauses(void **state)
{
	static const int64_t pauses[] = { 10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000 };
	struct wh_peer *peer = peer_at(2);

	(void)state;
	for (unsigned round = 0; round < 2; round++) {
		gone(peer, -ECONNRESET, "closed the connection");
		assert_int_equal(atomic_load(&peer->losses), 2 * round + 2);
		for (unsigned i = 0; i < sizeof(pauses) / sizeof(pauses[0]); i++) {
			peer->address_text[0] = 0;
			frozen_now += pauses[i] * WH_MS - 1;
			settle();
			assert_string_equal(peer->address_text, "");
			frozen_now++;
			settle();
			/* All addresses once more. */
			assert_string_equal(peer->address_text, "10.0.0.2:7000");
			assert_int_equal(peer->address_next, 2);
			assert_int_equal(atomic_load(&peer->state), WH_PEER_LOST);
			assert_int_equal(peer->connect_error, -ENOKEY);
		}
		/* Reached again, it is as new. */
		on_loop(connected, peer);
		assert_int_equal(wh_peer_status(peer), 0);
		assert_true(peer->listed);
	}
	peer_drop(peer);
}

/* Another epoch answers: it does not come back. */
static void lost__stale(void **state)
{
	struct wh_peer *peer = peer_at(1);
	struct end end = { peer, -ESTALE, "it was restarted" };

	(void)state;
	gone(peer, -ECONNRESET, "closed the connection");
	frozen_now += 10 * WH_MS;
	settle();
	assert_non_null(peer->retry.link.next);
	wh_timer_clear(&peer->retry);
	on_loop(give_up, &end);
	assert_int_equal(wh_peer_status(peer), -ESTALE);
	assert_null(peer->retry.link.next);
	logged("2 peer: far was restarted");
	peer_drop(peer);
}

/* The registry knows where the name is now. */
static void lost__moved(void **state)
{
	struct wh_peer *peer = peer_at(1);

	(void)state;
	snprintf(peer->watch.found.address, sizeof(peer->watch.found.address), "10.0.0.9:7000");
	wh_loop_post(&engine->loops[0], &peer->moved);
	settle();
	assert_int_equal(wh_peer_status(peer), 0); /* it has come back before */
	gone(peer, -ECONNRESET, "closed the connection");
	peer->watch.error = -ECANCELED;
	wh_loop_post(&engine->loops[0], &peer->moved);
	settle();
	assert_int_equal(wh_peer_status(peer), -ECONNRESET);
	peer->watch.error = 0;
	wh_loop_post(&engine->loops[0], &peer->moved);
	settle();
	assert_int_equal(wh_peer_status(peer), -ESTALE);
	assert_string_equal(peer->text, "it was restarted; the registry has it at 10.0.0.9:7000");
	logged("2 peer: far was restarted, at 10.0.0.9:7000");
	assert_null(peer->retry.link.next);
	peer_drop(peer);
}

static void cut__a_connected_peer(void **state)
{
	struct wh_peer *peer = peer_at(1);

	(void)state;
	peer->listed = false; /* the handshake has a limit of its own */
	wh_peer_cut(peer);
	assert_int_equal(peer->address_next, 0);
	assert_int_equal(wh_peer_status(peer), 0);
	peer->listed = true;
	wh_peer_cut(peer);
	assert_int_equal(wh_peer_status(peer), -ECONNRESET);
	said("does not answer");
	wh_peer_cut(peer);
	assert_int_equal(atomic_load(&peer->losses), 2);
	peer_drop(peer);
}

/* ---- pings --------------------------------------------------------------------------------- */

/* A connection whose end the peer learns of. */
static struct link connected_link(void)
{
	struct link link = { .peer = peer_at(1) };
	void (*ends)(struct wh_control * control, int error, const char *text) =
		link.peer->control.gone;

	link_sockets(&link);
	on_loop(link_connect, &link);
	link.peer->control.gone = ends;
	link.peer->heard = START;
	on_loop(connected, link.peer);
	return link;
}

/* Every third of the timeout, and every second at least. */
static void beat__interval(void **state)
{
	static const struct {
		int64_t timeout, interval;
	} rows[] = { { 300, 100 * WH_MS }, { 3000, WH_SECOND }, { 60000, WH_SECOND } };

	(void)state;
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct link link;

		frozen_now = START;
		engine->config.number[WH_SETTING_TIMEOUT] = rows[i].timeout;
		link = connected_link();
		settle();
		link_quiet(&link);
		for (unsigned beats = 0; beats < 3; beats++) {
			frozen_now += rows[i].interval - 1;
			settle();
			link_quiet(&link);
			frozen_now++;
			settle();
			link_number(&link, WH_FRAME_PING, (uint64_t)frozen_now);
			link_quiet(&link);
		}
		link_close(&link);
	}
}

/* Silent for longer than the timeout; whatever it sends counts. */
static void beat__silence(void **state)
{
	struct link link = connected_link();
	uint8_t bytes[8] = { 0 };
	struct wh_frame frame;

	(void)state;
	frozen_now = START + WH_SECOND;
	settle();
	assert_int_equal(wh_peer_status(link.peer), 0);
	assert_int_equal(link_give(&link, WH_FRAME_PONG, 0, bytes, 8), 0);
	assert_int_equal(link.peer->heard, frozen_now);
	frozen_now = START + 2 * WH_SECOND;
	settle();
	assert_int_equal(wh_peer_status(link.peer), 0);
	frozen_now += WH_SECOND;
	settle();
	assert_int_equal(wh_peer_status(link.peer), -ECONNRESET);
	said("far (10.0.0.1:7000) does not answer");
	while (link_frame(&link, &frame))
		assert_int_equal(frame.type, WH_FRAME_PING);
	assert_int_equal(recv(link.there, bytes, 1, MSG_DONTWAIT), 0);
	assert_null(link.peer->heartbeat.link.next);
	link_close(&link);
}

/* No pings while the handshake lasts, whose silence has the same limit. */
static void beat__handshake(void **state)
{
	struct link link = connected_link();

	(void)state;
	atomic_store(&link.peer->state, WH_PEER_CONNECTING);
	link.peer->listed = false;
	link.peer->address_next = 1;
	frozen_now = START + WH_SECOND;
	settle();
	link_quiet(&link);
	assert_int_equal(wh_peer_status(link.peer), -EINPROGRESS);
	frozen_now += WH_SECOND;
	settle();
	assert_int_equal(wh_peer_status(link.peer), -ETIMEDOUT);
	said("10.0.0.1:7000: does not answer");
	link_close(&link);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		PEERS_TEST(connect__addresses_in_turn),
		PEERS_TEST(connect__broken_handshake),
		PEERS_TEST(lost__transports_learn_of_it),
		PEERS_TEST(lost__damage),
		PEERS_TEST(lost__pauses),
		PEERS_TEST(lost__stale),
		PEERS_TEST(lost__moved),
		PEERS_TEST(cut__a_connected_peer),
		PEERS_TEST(beat__interval),
		PEERS_TEST(beat__silence),
		PEERS_TEST(beat__handshake),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
