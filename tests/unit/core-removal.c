/* SPDX-License-Identifier: Apache-2.0 */
/* removal.c: regions that a peer takes back: confirmed when nothing uses them, in order */
#include "allocation.h"
#include "core-link.h"
#include "core/removal.h"
#include "frozen-clock.h"

/* A frame that has come, on loop 0. */
struct received {
	struct wh_peer *peer;
	uint8_t bytes[WH_REMOVAL_SIZE];
	unsigned fails; /* as allocation_fails */
	int error;
};

static void receive(void *argument)
{
	struct received *received = argument;

	allocation_fails = received->fails;
	received->error =
		wh_removal_received(received->peer, received->bytes, sizeof(received->bytes));
	allocation_fails = 0;
}

static int remove_failing(struct link *link, uint64_t number, unsigned region, unsigned fails)
{
	const struct wh_removal removal = { number, PEER_REGION(region),
					    (uint64_t)(region + 1) << 32, 4096 };
	struct received received = { .peer = link->peer, .fails = fails };

	wh_removal_encode(received.bytes, &removal);
	wh_loop_call(&engine->loops[0], receive, &received);
	return received.error;
}

static int remove_number(struct link *link, uint64_t number, unsigned region)
{
	return remove_failing(link, number, region, 0);
}

static void removed(struct link *link, uint64_t number)
{
	link_number(link, WH_FRAME_REMOVED, number);
}

/* The timer fires. */
static void fire(void *argument)
{
	struct wh_peer *peer = argument;

	wh_timer_clear(&peer->removing);
	peer->removing.fire(&peer->removing);
}

static void later(struct link *link)
{
	wh_loop_call(&engine->loops[0], fire, link->peer);
}

static void drop_all(void *argument)
{
	wh_removals_drop(argument);
}

static void received__at_once(void **state)
{
	struct link link = peer_link("far");
	uint32_t version = atomic_load(&link.peer->plan_version);
	uint8_t bytes[WH_REMOVAL_SIZE] = { 0 };

	(void)state;
	peer_region(link.peer, 0, 4096, WH_ACCESS_READ);
	assert_int_equal(remove_number(&link, 1, 0), 0);
	removed(&link, 1);
	assert_int_equal(wh_region_table_count(&link.peer->regions), 0);
	assert_int_equal(atomic_load(&link.peer->plan_version), version + 1);
	/* One that was never learned, and one that is gone. */
	assert_int_equal(remove_number(&link, 2, 9), 0);
	removed(&link, 2);
	assert_int_equal(remove_number(&link, 3, 0), 0);
	removed(&link, 3);
	assert_int_equal(wh_removal_received(link.peer, bytes, WH_REMOVAL_SIZE), -EPROTO);
	assert_int_equal(wh_removal_received(link.peer, bytes, WH_REMOVAL_SIZE - 1), -EPROTO);
	link_quiet(&link);
	assert_int_equal(link.peer->removal_count, 0);
	link_close(&link);
}

/* One that is used is confirmed when it is left, and those behind it after it. */
static void received__in_use(void **state)
{
	struct link link = peer_link("far");
	struct wh_region_entry *entry = peer_region(link.peer, 0, 4096, WH_ACCESS_READ);

	(void)state;
	peer_region(link.peer, 1, 4096, WH_ACCESS_READ);
	assert_ptr_equal(wh_region_entry_enter(&link.peer->regions, PEER_REGION(0)), entry);
	assert_int_equal(remove_number(&link, 1, 0), 0);
	assert_null(wh_region_entry_enter(&link.peer->regions, PEER_REGION(0)));
	assert_int_equal(remove_number(&link, 2, 1), 0);
	assert_int_equal(remove_number(&link, 3, 7), 0);
	assert_int_equal(link.peer->removal_count, 3);
	later(&link);
	link_quiet(&link);
	wh_region_entry_leave(entry);
	later(&link);
	removed(&link, 1);
	removed(&link, 2);
	removed(&link, 3);
	assert_int_equal(link.peer->removal_count, 0);
	assert_true(wh_list_empty(&link.peer->removals));
	later(&link);
	link_quiet(&link);
	link_close(&link);
}

static struct {
	int error;
	unsigned count;
} gone;

static void on_gone(struct wh_control *control, int error, const char *text)
{
	(void)control;
	(void)text;
	gone.error = error;
	gone.count++;
}

/* Half of the setting `timeout`: then the connection goes, and with it the copy. */
static void received__in_use_for_too_long(void **state)
{
	struct link link = peer_link("far");
	struct wh_region_entry *entry = peer_region(link.peer, 0, 4096, WH_ACCESS_READ);
	int64_t begun = 1000 * WH_SECOND;

	(void)state;
	memset(&gone, 0, sizeof(gone));
	link.peer->control.gone = on_gone;
	assert_non_null(wh_region_entry_enter(&link.peer->regions, PEER_REGION(0)));
	frozen_now = begun;
	assert_int_equal(remove_number(&link, 1, 0), 0);
	frozen_now = begun + 500 * WH_MS - 1;
	later(&link);
	assert_int_equal(gone.count, 0);
	frozen_now = begun + 500 * WH_MS;
	later(&link);
	assert_int_equal(gone.count, 1);
	assert_int_equal(gone.error, -EBUSY);
	frozen_now = 0;
	link_quiet(&link);
	wh_loop_call(&engine->loops[0], drop_all, link.peer);
	assert_int_equal(link.peer->removal_count, 0);
	assert_true(wh_list_empty(&link.peer->removals));
	wh_loop_call(&engine->loops[0], drop_all, link.peer);
	wh_region_entry_leave(entry);
	link_close(&link);
}

/* However many a peer sends. */
static void received__limits(void **state)
{
	struct link link = peer_link("far");
	struct wh_region_entry *entry = peer_region(link.peer, 0, 4096, WH_ACCESS_READ);

	(void)state;
	assert_non_null(wh_region_entry_enter(&link.peer->regions, PEER_REGION(0)));
	assert_int_equal(remove_failing(&link, 1, 0, 1), -ENOMEM);
	assert_int_equal(link.peer->removal_count, 0);
	assert_int_equal(remove_number(&link, 1, 0), 0);
	link.peer->removal_count = 65535;
	assert_int_equal(remove_number(&link, 2, 1), 0);
	assert_int_equal(remove_number(&link, 3, 1), -ENOMEM);
	link.peer->removal_count = 2;
	wh_region_entry_leave(entry);
	later(&link);
	removed(&link, 1);
	removed(&link, 2);
	link_close(&link);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(received__at_once),
		TEST(received__in_use),
		TEST(received__in_use_for_too_long),
		TEST(received__limits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
