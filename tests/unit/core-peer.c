/* SPDX-License-Identifier: Apache-2.0 */
/* peer.c and peer-open.c: what each state says, the peer's transports, and how opening ends */
#include "core-peer.h"
#include "allocation.h"
#include "frozen-clock.h"

static struct wh_queue *queue;

static int queue_setup(void **state)
{
	int error = peers_setup(state);

	return error ? error : wh_queue_new(engine, &queue);
}

static int queue_teardown(void **state)
{
	return wh_queue_free(queue) || peers_teardown(state);
}

#define QUEUE_TEST(function) cmocka_unit_test_setup_teardown(function, queue_setup, queue_teardown)

/* ---- states -------------------------------------------------------------------------------- */

static void status__each_state(void **state)
{
	struct wh_peer *peer = peer_new("far");

	(void)state;
	snprintf(peer->welcome.name, sizeof(peer->welcome.name), "node7");
	assert_int_equal(wh_peer_status(peer), 0);
	set_state(peer, WH_PEER_CONNECTING, 0, "");
	assert_int_equal(wh_peer_status(peer), -EINPROGRESS);
	said("peer far is not connected yet");
	set_state(peer, WH_PEER_LOST, -EACCES, "it went away");
	assert_int_equal(wh_peer_status(peer), -ECONNRESET);
	said("peer node7 is lost: it went away; reconnecting");
	set_state(peer, WH_PEER_STALE, -ESTALE, "");
	assert_int_equal(wh_peer_status(peer), -ESTALE);
	said("peer node7 was restarted");
	set_state(peer, WH_PEER_UNREACHABLE, -EPROTO, "not Wherry");
	assert_int_equal(wh_peer_status(peer), -EPROTO);
	said("cannot reach far: not Wherry");
	assert_int_equal(wh_peer_status(NULL), -EINVAL);
	said("wh_peer_status: peer is NULL");
	peer_drop(peer);
}

static void state_name__each(void **state)
{
	(void)state;
	assert_string_equal(wh_peer_state_name(WH_PEER_CONNECTING), "connecting");
	assert_string_equal(wh_peer_state_name(WH_PEER_CONNECTED), "connected");
	assert_string_equal(wh_peer_state_name(WH_PEER_LOST), "lost");
	assert_string_equal(wh_peer_state_name(WH_PEER_STALE), "stale");
	assert_string_equal(wh_peer_state_name(WH_PEER_UNREACHABLE), "unreachable");
	assert_string_equal(wh_peer_state_name(WH_PEER_UNREACHABLE + 1), "unknown");
	assert_string_equal(wh_peer_state_name(UINT32_MAX), "unknown");
}

static void info__what_is_known(void **state)
{
	struct wh_peer_info info = { .size = sizeof(info) };
	struct wh_peer *peer = peer_new("far");

	(void)state;
	peer_region(peer, 0, 4096, WH_ACCESS_READ);
	peer_region(peer, 1, 4096, WH_ACCESS_READ);
	peer_region(peer, 2, 4096, WH_ACCESS_READ);
	snprintf(peer->address_text, sizeof(peer->address_text), "10.0.0.7:7000");
	set_state(peer, WH_PEER_LOST, -ECONNRESET, "");
	assert_int_equal(wh_peer_info(peer, &info), 0);
	assert_int_equal(info.epoch, engine->identity.epoch + 1);
	assert_int_equal(info.state, WH_PEER_LOST);
	assert_int_equal(info.regions, 3);
	assert_string_equal(info.name, "far");
	assert_string_equal(info.address, "10.0.0.7:7000");
	assert_int_equal(wh_peer_info(self, &info), 0);
	assert_int_equal(info.epoch, engine->identity.epoch);
	assert_int_equal(info.state, WH_PEER_CONNECTED);
	assert_int_equal(info.regions, 2);
	assert_string_equal(info.name, "alone");
	assert_string_equal(info.address, "self");
	assert_int_equal(wh_peer_info(NULL, &info), -EINVAL);
	said("peer is NULL");
	assert_int_equal(wh_peer_info(self, NULL), -EINVAL);
	said("info is NULL");
	info.size = 4;
	assert_int_equal(wh_peer_info(self, &info), -EINVAL);
	peer_drop(peer);
}

static void refuse__later_plans(void **state)
{
	struct wh_peer *peer = peer_new("far");
	uint32_t version = atomic_load(&peer->plan_version);

	(void)state;
	peer->not_for[WH_TRANSPORT_SHM] = true;
	wh_peer_refuse(peer, WH_TRANSPORT_SHM, "its mapping is gone");
	assert_false(atomic_load(&peer->usable[WH_TRANSPORT_SHM]));
	assert_true(atomic_load(&peer->usable[WH_TRANSPORT_RDMA]));
	assert_false(peer->not_for[WH_TRANSPORT_SHM]);
	assert_string_equal(peer->refused[WH_TRANSPORT_SHM], "its mapping is gone");
	assert_int_equal(atomic_load(&peer->plan_version), version + 1);
	logged("1 peer: shm to far is not used any more: its mapping is gone");
	peer_drop(peer);
}

static void close__what_is_left(void **state)
{
	struct wh_batch *batch = batch_new();

	(void)state;
	assert_int_equal(wh_peer_close(NULL), 0);
	assert_int_equal(wh_peer_close(self), -EBUSY);
	said("1 batches of alone have not been freed");
	drop_batch(batch);
	batch = batch_new();
	assert_int_equal(wh_peer_close(self), -EBUSY);
	drop_batch(batch);
}

/* What a call on loop 0 returns, and the text there. */
static int within;
static char within_text[WH_TEXT_MAX];

static void close_within(void *argument)
{
	within = wh_peer_close(argument);
	snprintf(within_text, sizeof(within_text), "%s", wh_error_text());
}

static void close__within_the_engine(void **state)
{
	(void)state;
	on_loop(close_within, self);
	assert_int_equal(within, -EDEADLK);
	assert_string_equal(within_text,
			    "wh_peer_close: called from one of the engine's own threads");
}

static int new_and_free(void)
{
	struct wh_peer *peer = NULL;
	int error = wh_peer_new(engine, "far", &peer);

	if (!error)
		wh_peer_free(peer);
	else
		assert_null(peer);
	return error;
}

static void new__no_memory(void **state)
{
	(void)state;
	assert_int_equal(WITHOUT_MEMORY(1, new_and_free()), 0);
}

/* ---- its transports ------------------------------------------------------------------------ */

static struct {
	int error;
	const char *why;
	unsigned opened, again, closed;
} calls;

static int on_open(struct wh_peer *peer, void **out, char why[WH_REFUSAL])
{
	(void)peer;
	*out = &calls;
	snprintf(why, WH_REFUSAL, "%s", calls.why);
	calls.opened++;
	return calls.error;
}

static int on_again(struct wh_peer *peer, void *given, char why[WH_REFUSAL])
{
	(void)peer;
	assert_ptr_equal(given, &calls);
	snprintf(why, WH_REFUSAL, "%s", calls.why);
	calls.again++;
	return calls.error;
}

static void on_close(struct wh_peer *peer, void *given)
{
	(void)peer;
	assert_ptr_equal(given, &calls);
	calls.closed++;
}

static void open_transports(void *peer)
{
	wh_peer_open_transports(peer);
}

static void transports__opened_once(void **state)
{
	struct wh_transport *shm = fake_table(WH_TRANSPORT_SHM);
	struct wh_peer *peer;
	uint32_t version;

	(void)state;
	memset(&calls, 0, sizeof(calls));
	shm->peer_open = on_open;
	shm->peer_again = on_again;
	shm->peer_close = on_close;
	assert_int_equal(wh_peer_new(engine, "far", &peer), 0);
	version = atomic_load(&peer->plan_version);
	/* It does not apply. */
	calls.error = -ENXIO;
	calls.why = "another host";
	on_loop(open_transports, peer);
	assert_true(peer->not_for[WH_TRANSPORT_SHM]);
	assert_false(atomic_load(&peer->usable[WH_TRANSPORT_SHM]));
	assert_null(strstr(fake_log, "another host"));
	/* It cannot be used. */
	calls.error = -EACCES;
	calls.why = "another user";
	on_loop(open_transports, peer);
	assert_false(peer->not_for[WH_TRANSPORT_SHM]);
	assert_string_equal(peer->refused[WH_TRANSPORT_SHM], "another user");
	assert_false(atomic_load(&peer->opened[WH_TRANSPORT_SHM]));
	logged("shm does not reach it, so that bytes take a slower path: another user");
	/* It can. */
	calls.error = 0;
	calls.why = "";
	on_loop(open_transports, peer);
	assert_true(atomic_load(&peer->usable[WH_TRANSPORT_SHM]));
	assert_string_equal(peer->refused[WH_TRANSPORT_SHM], "");
	assert_int_equal(calls.opened, 3);
	assert_int_equal(calls.again, 0);
	/* Its state stays, also while it is not usable. */
	calls.error = -EIO;
	calls.why = "for now";
	on_loop(open_transports, peer);
	assert_false(atomic_load(&peer->usable[WH_TRANSPORT_SHM]));
	assert_true(atomic_load(&peer->opened[WH_TRANSPORT_SHM]));
	calls.error = 0;
	on_loop(open_transports, peer);
	assert_true(atomic_load(&peer->usable[WH_TRANSPORT_SHM]));
	assert_int_equal(calls.opened, 3);
	assert_int_equal(calls.again, 2);
	assert_int_equal(atomic_load(&peer->plan_version), version + 5);
	wh_peer_free(peer);
	assert_int_equal(calls.closed, 1);
}

/* Off: by its setting or for lack of a device, which is no news, or for another reason. */
static void transports__off(void **state)
{
	struct wh_peer *peer;

	(void)state;
	memset(&calls, 0, sizeof(calls));
	fake_table(WH_TRANSPORT_SHM)->peer_open = on_open;
	fake_table(WH_TRANSPORT_RDMA)->peer_open = on_open;
	snprintf(engine->transport_off[WH_TRANSPORT_SHM], WH_REFUSAL, "no shared memory");
	snprintf(engine->transport_off[WH_TRANSPORT_RDMA], WH_REFUSAL, "no NIC");
	engine->not_here[WH_TRANSPORT_RDMA] = true;
	assert_int_equal(wh_peer_new(engine, "far", &peer), 0);
	on_loop(open_transports, peer);
	assert_int_equal(calls.opened, 0);
	assert_string_equal(peer->refused[WH_TRANSPORT_SHM], "no shared memory");
	assert_string_equal(peer->refused[WH_TRANSPORT_RDMA], "no NIC");
	assert_false(peer->not_for[WH_TRANSPORT_SHM]);
	assert_true(peer->not_for[WH_TRANSPORT_RDMA]);
	logged("shm does not reach it, so that bytes take a slower path: no shared memory");
	assert_null(strstr(fake_log, "no NIC"));
	wh_peer_free(peer);
}

/* ---- opening ------------------------------------------------------------------------------- */

static struct wh_peer_options by_queue(void)
{
	return (struct wh_peer_options){
		.size = sizeof(struct wh_peer_options),
		.queue = queue,
		.user = 42,
	};
}

static void open__arguments(void **state)
{
	const char *const config[] = { "observe=off", NULL };
	const struct wh_engine_options options = {
		.size = sizeof(options),
		.listen = "none",
		.flags = WH_ENGINE_NO_THREADS,
		.config = config,
	};
	struct wh_peer_options given = by_queue();
	uint64_t opened = wh_count_get(&engine->statistics.peers_opened);
	struct wh_peer *peer = NULL;
	struct wh_engine *other;

	(void)state;
	assert_int_equal(wh_peer_open(NULL, "self", NULL, &peer), -EINVAL);
	said("engine is NULL");
	assert_int_equal(wh_peer_open(engine, NULL, NULL, &peer), -EINVAL);
	said("url is NULL");
	assert_int_equal(wh_peer_open(engine, "self", NULL, NULL), -EINVAL);
	said("out is NULL");
	given.timeout = -1;
	assert_int_equal(wh_peer_open(engine, "self", &given, &peer), -EINVAL);
	said("options.timeout is negative");
	given = by_queue();
	for (unsigned i = 0; i < FAKES; i++) {
		struct wh_transport *table = fake_table(fake_order[i]);

		table->engine_open = wh_transport(WH_TRANSPORT_SELF)->engine_open;
		table->engine_close = wh_transport(WH_TRANSPORT_SELF)->engine_close;
	}
	assert_int_equal(wh_engine_open(&options, &other), 0);
	assert_int_equal(wh_peer_open(other, "self", &given, &peer), -EINVAL);
	said("options.queue belongs to another engine");
	assert_int_equal(wh_engine_close(other), 0);
	/* A URL that cannot be one is refused at once, with and without a queue. */
	assert_int_equal(wh_peer_open(engine, "127.0.0.1", &given, &peer), -EINVAL);
	said("the port is missing");
	assert_int_equal(wh_peer_open(engine, "127.0.0.1", NULL, &peer), -EINVAL);
	said("cannot reach \"127.0.0.1\": ");
	said("the port is missing");
	assert_null(peer);
	assert_int_equal(wh_count_get(&engine->statistics.peers_opened), opened);
}

static struct wh_peer *opened_within;

static void open_within(void *options)
{
	opened_within = NULL;
	within = wh_peer_open(engine, "self", options, &opened_within);
	snprintf(within_text, sizeof(within_text), "%s", wh_error_text());
}

/* Who opens without a queue would wait for itself. */
static void open__within_the_engine(void **state)
{
	struct wh_peer_options given = by_queue();

	(void)state;
	on_loop(open_within, NULL);
	assert_int_equal(within, -EDEADLK);
	assert_null(opened_within);
	assert_non_null(strstr(within_text, "without a queue"));
	on_loop(open_within, &given);
	assert_int_equal(within, 0);
	assert_int_equal(wh_peer_close(opened_within), 0);
}

static struct wh_completion take_one(void)
{
	struct wh_completion done[2];

	settle();
	assert_int_equal(wh_queue_take(queue, done, 2, 0), 1);
	assert_null(done[0].batch);
	assert_int_equal(done[0].user, 42);
	return done[0];
}

static void take_none(void)
{
	struct wh_completion done;

	settle();
	assert_int_equal(wh_queue_take(queue, &done, 1, 0), 0);
}

static void fire_opening(void *argument)
{
	struct wh_peer *peer = argument;

	peer->opening.fire(&peer->opening);
}

static void open__self_by_a_queue(void **state)
{
	struct wh_peer_options given = by_queue();
	uint64_t opened = wh_count_get(&engine->statistics.peers_opened);
	struct wh_completion done;
	struct wh_peer *peer;

	(void)state;
	assert_int_equal(wh_peer_open(engine, "self", &given, &peer), 0);
	assert_int_equal(wh_count_get(&engine->statistics.peers_opened), opened + 1);
	assert_int_equal(wh_peer_status(peer), -EINPROGRESS);
	assert_int_equal(wh_queue_free(queue), -EBUSY);
	done = take_one();
	assert_ptr_equal(done.peer, peer);
	assert_int_equal(done.status, 0);
	assert_int_equal(wh_peer_status(peer), 0);
	assert_true(peer->self);
	assert_true(peer->listed);
	/* Neither its deadline nor being connected once more reports it again. */
	on_loop(wh_peer_be_self, peer);
	on_loop(fire_opening, peer);
	take_none();
	assert_int_equal(wh_peer_status(peer), 0);
	assert_int_equal(wh_peer_close(peer), 0);
	/* Closed before the completion was taken, and before it was there. */
	assert_int_equal(wh_peer_open(engine, "self", &given, &peer), 0);
	settle();
	assert_int_equal(wh_peer_close(peer), 0);
	take_none();
	assert_int_equal(wh_peer_open(engine, "self", &given, &peer), 0);
	assert_int_equal(wh_peer_close(peer), 0);
	take_none();
}

/* With the address in its text; and only once. */
static void open__no_address_works(void **state)
{
	struct wh_peer_options given = by_queue();
	struct wh_completion done;
	struct wh_peer *peer;

	(void)state;
	assert_int_equal(wh_peer_open(engine, "wherry://10.0.0.7:7000", &given, &peer), 0);
	done = take_one();
	assert_ptr_equal(done.peer, peer);
	assert_int_equal(done.status, -ENOKEY);
	assert_int_equal(wh_peer_status(peer), -ENOKEY);
	said("cannot reach wherry://10.0.0.7:7000: " NO_KEY);
	assert_string_equal(peer->address_text, "10.0.0.7:7000");
	/* It is not tried again, neither by its deadline. */
	assert_null(peer->opening.link.next);
	frozen_now += 100 * WH_SECOND;
	take_none();
	assert_int_equal(atomic_load(&peer->state), WH_PEER_UNREACHABLE);
	assert_int_equal(wh_peer_close(peer), 0);
	peer = NULL;
	assert_int_equal(wh_peer_open(engine, "10.0.0.7:7000", NULL, &peer), -ENOKEY);
	said("cannot reach 10.0.0.7:7000: " NO_KEY);
	assert_null(peer);
}

/* The longer one of 5 s and the setting `timeout`; what the program says counts. */
static void open__patience(void **state)
{
	struct wh_peer_options given = by_queue();
	static const struct {
		int64_t setting, timeout, patience;
	} rows[] = {
		{ 1000, 0, 5 * WH_SECOND },
		{ 4999, 0, 5 * WH_SECOND },
		{ 7000, 0, 7 * WH_SECOND },
		{ 7000, WH_MS, WH_MS },
		{ 1000, 60 * WH_SECOND, 60 * WH_SECOND },
	};
	struct wh_peer *peer;

	(void)state;
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		engine->config.number[WH_SETTING_TIMEOUT] = rows[i].setting;
		given.timeout = rows[i].timeout;
		assert_int_equal(wh_peer_open(engine, "self", &given, &peer), 0);
		assert_int_equal(peer->connect_deadline, START + rows[i].patience);
		assert_int_equal(wh_peer_close(peer), 0);
	}
	given.timeout = WH_FOREVER;
	assert_int_equal(wh_peer_open(engine, "self", &given, &peer), 0);
	assert_int_equal(peer->connect_deadline, INT64_MAX);
	assert_int_equal(wh_peer_close(peer), 0);
}

/* A peer that is being opened by the queue, and whose addresses take long. */
static struct wh_peer *peer_opening(void)
{
	struct wh_peer_options given = by_queue();
	struct wh_peer *peer;

	assert_int_equal(wh_peer_open(engine, "10.0.0.7:7000", &given, &peer), 0);
	wh_list_remove(&peer->resolved.link);
	peer->resolved.link = (struct wh_list){ 0 };
	return peer;
}

static void open__too_late(void **state)
{
	struct wh_peer *peer = peer_opening();

	(void)state;
	settle();
	assert_int_equal(wh_peer_status(peer), -EINPROGRESS);
	snprintf(peer->address_text, sizeof(peer->address_text), "10.0.0.7:7000");
	on_loop(fire_opening, peer);
	assert_int_equal(take_one().status, -ETIMEDOUT);
	assert_int_equal(wh_peer_status(peer), -ETIMEDOUT);
	said("10.0.0.7:7000 does not answer");
	/* What comes after that changes nothing. */
	wh_loop_post(&engine->loops[0], &peer->resolved);
	take_none();
	on_loop(fire_opening, peer);
	take_none();
	assert_int_equal(wh_peer_status(peer), -ETIMEDOUT);
	assert_int_equal(wh_peer_close(peer), 0);
}

/* The name is not known. */
static void open__not_resolved(void **state)
{
	struct wh_peer *peer = peer_opening();

	(void)state;
	peer->resolve_error = -EHOSTUNREACH;
	snprintf(peer->text, sizeof(peer->text), "no such host");
	wh_loop_post(&engine->loops[0], &peer->resolved);
	assert_int_equal(take_one().status, -EHOSTUNREACH);
	assert_int_equal(wh_peer_status(peer), -EHOSTUNREACH);
	said("no such host");
	assert_int_equal(wh_peer_close(peer), 0);
}

/* The allocation `nth` of opening fails. Transports may do without what they did not get. */
static int open_without(unsigned nth, const struct wh_peer_options *options)
{
	struct wh_peer *peer = NULL;
	int error;

	allocation_fails = nth;
	error = wh_peer_open(engine, "self", options, &peer);
	if (allocation_fails)
		error = 1; /* none was left to fail */
	allocation_fails = 0;
	assert_int_equal(!peer, error == -ENOMEM);
	assert_int_equal(wh_peer_close(peer), 0);
	take_none();
	assert_ptr_equal(engine->peers.next, &self->link);
	assert_ptr_equal(engine->peers.prev, &self->link);
	return error;
}

static void open__no_memory(void **state)
{
	struct wh_peer_options given = by_queue();

	(void)state;
	for (int by = 0; by < 2; by++) {
		unsigned nth = 1;

		assert_int_equal(open_without(nth, by ? &given : NULL), -ENOMEM);
		said("wh_peer_open: no memory");
		while (open_without(++nth, by ? &given : NULL) < 1)
			;
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		QUEUE_TEST(status__each_state),      QUEUE_TEST(state_name__each),
		QUEUE_TEST(info__what_is_known),     QUEUE_TEST(refuse__later_plans),
		QUEUE_TEST(close__what_is_left),     QUEUE_TEST(close__within_the_engine),
		QUEUE_TEST(new__no_memory),          QUEUE_TEST(transports__opened_once),
		QUEUE_TEST(transports__off),         QUEUE_TEST(open__arguments),
		QUEUE_TEST(open__within_the_engine), QUEUE_TEST(open__self_by_a_queue),
		QUEUE_TEST(open__no_address_works),  QUEUE_TEST(open__patience),
		QUEUE_TEST(open__too_late),          QUEUE_TEST(open__not_resolved),
		QUEUE_TEST(open__no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
