/* SPDX-License-Identifier: Apache-2.0 */
/* core-peer.h: peers that can connect to no address, since a key is missing; the clock stands */
#ifndef TESTS_UNIT_CORE_PEER_H
#define TESTS_UNIT_CORE_PEER_H

#include "core-link.h"
#include "frozen-clock.h"

#define START (1000 * WH_SECOND)
#define NO_KEY "there is no key for the test"

static inline void on_loop(void (*function)(void *), void *argument)
{
	wh_loop_call(&engine->loops[0], function, argument);
}

static inline int peers_setup(void **state)
{
	int error = fake_setup(state);

	if (error)
		return error;
	engine->trust.error = -ENOKEY;
	snprintf(engine->trust.text, sizeof(engine->trust.text), NO_KEY);
	frozen_now = START;
	fake_logs();
	return 0;
}

static inline int peers_teardown(void **state)
{
	frozen_now = 0;
	return fake_teardown(state);
}

#define PEERS_TEST(function) cmocka_unit_test_setup_teardown(function, peers_setup, peers_teardown)

static inline void set_state(struct wh_peer *peer, uint32_t state, int error, const char *text)
{
	atomic_store(&peer->state, state);
	peer->connect_error = error;
	snprintf(peer->text, sizeof(peer->text), "%s", text);
}

#endif
