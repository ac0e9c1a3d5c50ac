/* SPDX-License-Identifier: Apache-2.0 */
/* test-delay.c: the library with one transport more, through its public interface */
#include "../integration/lib/outcome.h"
#include "../unit/unit.h"

#include <errno.h>
#include <stdio.h>

#include <wherry/wherry.h>

#include "transport/transport.h"
#include "util/clock.h"

#define LENGTH 65536
#define PATIENCE (10 * WH_SECOND)

static struct wh_engine *engine;
static struct wh_peer *peer;
static struct wh_region *local, *published;
static char ours[LENGTH], theirs[LENGTH];

static int setup(void **state)
{
	static const char *const config[] = { "transports=delay,self", NULL };
	const struct wh_engine_options options = { .size = sizeof(options), .config = config };
	const struct wh_region_options name = { .size = sizeof(name),
						.name = "theirs",
						.access = WH_ACCESS_READ | WH_ACCESS_WRITE };

	(void)state;
	assert_int_equal(wh_engine_open(&options, &engine), 0);
	assert_int_equal(wh_region_register(engine, ours, LENGTH, NULL, &local), 0);
	assert_int_equal(wh_region_register(engine, theirs, LENGTH, &name, &published), 0);
	assert_int_equal(wh_peer_open(engine, "self", NULL, &peer), 0);
	memset(ours, 'o', LENGTH);
	memset(theirs, 't', LENGTH);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	return wh_peer_close(peer) || wh_region_unregister(local) ||
	       wh_region_unregister(published) || wh_engine_close(engine);
}

static struct wh_batch *submit(uint32_t op, uint64_t length)
{
	struct wh_transfer one = { .local = local, .length = length, .op = op };
	struct wh_remote remote;
	struct wh_batch *batch;

	assert_int_equal(wh_peer_find(peer, "theirs", PATIENCE, &remote), 0);
	one.remote = remote.id;
	assert_int_equal(wh_batch_new(peer, NULL, &batch), 0);
	assert_int_equal(wh_batch_add(batch, &one, 1), 0);
	assert_int_equal(wh_batch_submit(batch), 0);
	return batch;
}

/* The names, the number and the order come from the list. */
static void list__names_it(void **state)
{
	(void)state;
	assert_string_equal(wh_transport_names(), "self, cuda, shm, rdma, tcp, delay");
	assert_int_equal(wh_transport_by_name("delay"), WH_TRANSPORT_DELAY);
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		assert_true(wh_transport_is_valid(wh_transport(id)));
}

static void move__reads_and_writes(void **state)
{
	struct wh_batch *batch;
	int64_t begin;

	(void)state;
	begin = wh_now();
	batch = submit(WH_WRITE, 1000);
	assert_int_equal(batch_end(batch, PATIENCE), 0);
	assert_true(wh_now() - begin >= 20 * WH_MS);
	for (unsigned i = 0; i < LENGTH; i++)
		assert_int_equal(theirs[i], i < 1000 ? 'o' : 't');
	assert_int_equal(wh_batch_free(batch), 0);
	memset(theirs, 'x', LENGTH);
	batch = submit(WH_READ, LENGTH);
	assert_int_equal(batch_end(batch, PATIENCE), 0);
	assert_memory_equal(ours, theirs, LENGTH);
	/* The same batch again. */
	memset(theirs, 'y', LENGTH);
	assert_int_equal(wh_batch_submit(batch), 0);
	assert_int_equal(batch_end(batch, PATIENCE), 0);
	assert_memory_equal(ours, theirs, LENGTH);
	assert_int_equal(wh_batch_free(batch), 0);
}

static void explain__names_it(void **state)
{
	struct wh_batch *batch = submit(WH_READ, 8);
	char text[2000];

	(void)state;
	assert_int_equal(batch_end(batch, PATIENCE), 0);
	assert_true(wh_batch_explain(batch, text, sizeof(text)) > 0);
	assert_non_null(strstr(text, "delay: 8 bytes in 1 transfers (memory copy after 20 ms)\n"));
	assert_int_equal(wh_batch_free(batch), 0);
}

static void cancel__before_it_is_due(void **state)
{
	struct wh_batch *batch = submit(WH_WRITE, LENGTH);

	(void)state;
	assert_int_equal(wh_batch_cancel(batch), 0);
	assert_int_equal(batch_end(batch, PATIENCE), -ECANCELED);
	assert_int_equal(wh_batch_free(batch), 0);
	for (unsigned i = 0; i < LENGTH; i++)
		assert_int_equal(theirs[i], 't');
}

static void region__gone_while_it_waits(void **state)
{
	struct wh_batch *batch = submit(WH_WRITE, 8);
	const struct wh_region_options name = { .size = sizeof(name),
						.name = "theirs",
						.access = WH_ACCESS_READ | WH_ACCESS_WRITE };

	(void)state;
	assert_int_equal(wh_region_unregister(published), 0);
	assert_int_equal(batch_end(batch, PATIENCE), -ESTALE);
	assert_non_null(
		strstr(wh_batch_error_text(batch), "was unregistered before its bytes were due"));
	assert_int_equal(wh_batch_free(batch), 0);
	assert_int_equal(theirs[0], 't');
	assert_int_equal(wh_region_register(engine, theirs, LENGTH, &name, &published), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(list__names_it),
		TEST(move__reads_and_writes),
		TEST(explain__names_it),
		TEST(cancel__before_it_is_due),
		TEST(region__gone_while_it_waits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
