/* SPDX-License-Identifier: Apache-2.0 */
/* peer-faults.c: processes that are killed, stopped and restarted; connections that are cut or fall
 * silent */
#include "lib/fixture.h"
#include "lib/proxy.h"

#define LENGTH (16 * MIB)
#define TIMES (HARNESS_TURNS ? 1 : 64)

/* Settings that give up a silent peer soon, but no peer that has to wait for a CPU. */
static const char *const impatient[] = { SCALE("timeout=1000", "timeout=5000"), NULL };

static struct wh_batch *bulk_new(const struct fixture *f, uint32_t op, size_t times)
{
	enum { PARTS = 16 };
	struct wh_transfer transfers[PARTS * TIMES];

	for (uint64_t i = 0; i < PARTS * times; i++)
		transfers[i] = transfer_of(f, op, i % PARTS * (LENGTH / PARTS),
					   i % PARTS * (LENGTH / PARTS), LENGTH / PARTS);
	return batch_of(f, transfers, PARTS * times);
}

static uint32_t state_of(struct wh_peer *peer)
{
	struct wh_peer_info info = { .size = sizeof(info) };

	want(0, wh_peer_info(peer, &info));
	return info.state;
}

static void want_state(struct wh_peer *peer, uint32_t state)
{
	int64_t end = now() + PATIENCE;

	while (state_of(peer) != state && now() < end)
		sleep_ms(5);
	want(state, state_of(peer));
}

/* Wait for the end of a batch. Its status, never -EINPROGRESS. */
static int end_of(struct wh_batch *batch)
{
	batch_end(batch, PATIENCE);
	want_true(batch_now(batch) != -EAGAIN, "it does not end");
	return batch_now(batch);
}

/* Submit until a batch succeeds again. */
static void want_works_again(struct fixture *f)
{
	int64_t end = now() + PATIENCE;
	struct wh_transfer transfer = transfer_of(f, WH_WRITE, 0, 0, 5000);
	struct wh_batch *batch = batch_of(f, &transfer, 1);
	int status;

	while ((status = batch_run(batch)) != 0 && now() < end)
		sleep_ms(20);
	if (status)
		print_error("the last word: %s; %s\n", wh_error_text(), wh_batch_error_text(batch));
	want(0, status);
	want(0, wh_batch_free(batch));
	round_trip(f, 64, 64, 70000, (uint64_t)now());
}

/* ---- kill -9 ----------------------------------------------------------- */

static void kill_target(const struct route *route, uint32_t op)
{
	bool in_flight = false;
	struct fixture f;

	/* A batch may be done before the kill; not each of them. */
	for (unsigned int round = 0; round < SCALE(4, 2) || !in_flight; round++) {
		struct wh_batch *batch;
		int status, cancelled;

		want_true(round < 50, "each batch had been moved already");
		fixture_open(&f, route, LENGTH);
		want(0, move(&f, op, 0, 0, 8)); /* the next one need not ask the peer first */
		batch = bulk_new(&f, op, TIMES);
		want(0, wh_batch_submit(batch));
		if (round % 4)
			sleep_ms(10 * (round % 4));
		child_kill(f.child);
		f.child = NULL;
		status = end_of(batch);
		in_flight |= status < 0;
		want_true(status == 0 || wh_batch_error_text(batch)[0], "there is no text");
		/* Nobody can say whether bytes of it are on their way. If this process moves them,
		 * it may see the end of the other before its connection does, and none are. */
		cancelled = wh_batch_cancel(batch);
		if (cancelled || (route != &route_shm && route != &route_vm))
			want(status ? -ETIMEDOUT : 0, cancelled);
		want_state(f.peer, WH_PEER_LOST);
		want(-ECONNRESET, wh_batch_submit(batch));
		want_true(wh_error_text()[0], "there is no text");
		want(0, wh_batch_free(batch));
		fixture_close_initiator(&f);
	}
}

static void kill__target_of_write(void **state)
{
	kill_target(*state, WH_WRITE);
}

static void kill__target_of_read(void **state)
{
	kill_target(*state, WH_READ);
}

/* A write through a mapping of a dead process's memory succeeds; its batch must not. */
static void kill__before_a_small_write(void **state)
{
	struct fixture f;

	for (unsigned int round = 0; round < SCALE(10, 3); round++) {
		struct wh_transfer transfer;
		struct wh_batch *batch;
		int status;

		fixture_open(&f, *state, MIB);
		want(0, move(&f, WH_WRITE, 0, 0, 8));
		transfer = transfer_of(&f, WH_WRITE, 0, 0, 8);
		batch = batch_of(&f, &transfer, 1);
		child_kill(f.child);
		f.child = NULL;
		status = wh_batch_submit(batch);
		if (!status)
			status = end_of(batch);
		want_true(status < 0, "8 bytes for a dead process were said to have arrived");
		want(0, wh_batch_free(batch));
		fixture_close_initiator(&f);
	}
}

/* ---- the target closes its engine -------------------------------------- */

/* The target unregisters its regions first; the caller must nevertheless learn that it has left. */
static void leave__then_add(void **state)
{
	struct wh_transfer transfer;
	struct wh_blocks *blocks;
	struct wh_batch *batch;
	struct wh_base base;
	struct wh_blocks_desc desc = { .size = sizeof(desc),
				       .op = WH_WRITE,
				       .block_length = 8,
				       .count = 4,
				       .bases = &base,
				       .base_count = 1 };
	struct fixture f;

	fixture_open(&f, *state, MIB);
	want(0, move(&f, WH_WRITE, 0, 0, 8));
	transfer = transfer_of(&f, WH_WRITE, 0, 0, 8);
	base = (struct wh_base){ .local = transfer.local, .remote = transfer.remote };
	want(0, wh_batch_new(f.peer, NULL, &batch));
	child_exit(f.child);
	f.child = NULL;
	want_state(f.peer, WH_PEER_LOST);
	want_text(-ECONNRESET, "is lost", wh_batch_add(batch, &transfer, 1));
	want_text(-ECONNRESET, "is lost", wh_blocks_new(f.peer, &desc, &blocks));
	want(0, wh_batch_free(batch));
	fixture_close_initiator(&f);
}

/* ---- the initiator dies ------------------------------------------------ */

struct owner {
	struct wh_engine *engine;
	struct wh_region *region;
	void *memory;
	bool foreign;
};

/* Open this process's engine as the target. */
static void owner_open(struct owner *owner, const struct route *route)
{
	struct wh_memory_options kind = { .size = sizeof(kind), .kind = route->kind };
	struct wh_region_options named = { .size = sizeof(named),
					   .name = "target",
					   .access = ACCESS_BOTH };

	owner->engine = engine_open(NULL, route->listen, NULL);
	owner->foreign = route->kind == CHILD_FOREIGN;
	if (owner->foreign)
		owner->memory = pages_new(LENGTH);
	else
		want(0, wh_memory_alloc(owner->engine, LENGTH, &kind, &owner->memory));
	want(0, wh_region_register(owner->engine, owner->memory, LENGTH, &named, &owner->region));
}

static void owner_close(struct owner *owner)
{
	want(0, wh_region_unregister(owner->region));
	if (owner->foreign)
		pages_free(owner->memory, LENGTH);
	else
		want(0, wh_memory_free(owner->engine, owner->memory));
	want(0, wh_engine_close(owner->engine));
}

static struct child *initiator_start(const struct owner *owner, struct child_transfer *transfer)
{
	struct child *child = child_start(NULL);
	int memory = child_memory(child, CHILD_FOREIGN, LENGTH);

	transfer->peer = child_peer(child, wh_engine_url(owner->engine), NULL);
	want_true(transfer->peer >= 0, "it cannot connect: %d", transfer->peer);
	transfer->region = child_region(child, memory, 0, LENGTH, NULL, ACCESS_BOTH, NULL);
	transfer->remote = "target";
	transfer->length = LENGTH;
	child_fill(child, memory, 0, LENGTH, 0, 1);
	return child;
}

static void kill__initiator(void **state)
{
	const struct route *route = *state;
	struct child_transfer transfer = { .require = route->require };
	unsigned int fds;
	struct owner owner;
	struct child *child;
	size_t bad;

	owner_open(&owner, route);
	/* The first connection may open descriptors that the engine keeps. */
	child = initiator_start(&owner, &transfer);
	transfer.op = WH_WRITE;
	want(0, child_transfer(child, &transfer, NULL));
	child_exit(child);
	sleep_ms(50);
	fds = count_fds();
	for (unsigned int round = 0; round < SCALE(6, 3); round++) {
		child = initiator_start(&owner, &transfer);
		transfer.op = round % 2 ? WH_READ : WH_WRITE;
		transfer.times = TIMES;
		transfer.go = true;
		want(0, child_transfer(child, &transfer, NULL));
		transfer.go = false;
		transfer.times = 1;
		sleep_ms(3 * round);
		child_kill(child);
		want_true(fds_back_to(fds, PATIENCE), "round %u: %u descriptors, before: %u", round,
			  count_fds(), fds);
		hidden_begin();
		pattern_fill(owner.memory, LENGTH, 0, 2);
		sleep_ms(30);
		bad = pattern_check(owner.memory, LENGTH, 0, 2);
		hidden_end();
		want_true(bad == PATTERN_GOOD, "bytes of a dead process still arrive");
	}
	child = initiator_start(&owner, &transfer);
	transfer.op = WH_WRITE;
	want(0, child_transfer(child, &transfer, NULL));
	hidden_begin();
	bad = pattern_check(owner.memory, LENGTH, 0, 1);
	hidden_end();
	want_true(bad == PATTERN_GOOD, "wrong bytes");
	child_exit(child);
	owner_close(&owner);
}

/* The dead initiator had notifications waiting for space. */
static void kill__initiator_with_notifications(void **state)
{
	static const char *const config[] = { "notifications=2", NULL };
	struct wh_engine *engine = engine_open(NULL, NULL, config);
	struct note *got = calloc(1, sizeof(*got));
	struct child *child = child_start(NULL);
	struct child_transfer transfer = { .notify = "hello", .go = true };
	int taken = 0;

	(void)state;
	transfer.peer = child_peer(child, wh_engine_url(engine), NULL);
	for (int i = 0; i < 8; i++)
		want(0, child_transfer(child, &transfer, NULL));
	for (; taken < 2; taken++)
		want(0, note_take(engine, got, PATIENCE));
	child_kill(child);
	while (note_take(engine, got, 50 * MS) == 0)
		taken++;
	want_true(taken <= 8, "%d were taken", taken);
	want(0, wh_engine_close(engine));
	free(got);
}

/* ---- restart on the same port ------------------------------------------ */

/* Fill all its memory with a pattern, which must stay. */
static void start_again(struct fixture *f, const char *address)
{
	struct child_options options = { .listen = address };

	fixture_start_target(f, &options);
	target_fill(f, -(int64_t)f->guard, f->length + 2 * f->guard, 0, 99);
}

static void restart__stale(void **state)
{
	struct wh_blocks_desc desc = { .size = sizeof(desc),
				       .op = WH_WRITE,
				       .block_length = 100,
				       .count = 100,
				       .base_count = 1 };
	struct wh_transfer transfer;
	struct wh_blocks *blocks;
	struct wh_batch *batch, *with_blocks;
	struct wh_remote remote;
	struct wh_base base;
	struct wh_peer *old;
	struct fixture f;
	char address[96];
	int status;
	int64_t end;

	fixture_open(&f, *state, MIB);
	old = f.peer;
	snprintf(address, sizeof(address), "%s", f.child->url + strlen("wherry://"));
	want(0, move(&f, WH_WRITE, 0, 0, MIB));
	transfer = transfer_of(&f, WH_WRITE, 0, 0, MIB);
	batch = batch_of(&f, &transfer, 1);
	base = (struct wh_base){ .local = f.region, .remote = f.remote.id };
	desc.bases = &base;
	want(0, wh_blocks_new(old, &desc, &blocks));
	with_blocks = batch_of(&f, NULL, 0);
	want(0, wh_batch_add_blocks(with_blocks, blocks));
	child_kill(f.child);
	start_again(&f, address);
	end = now() + PATIENCE;
	do {
		status = batch_run(batch);
		want_true(status < 0, "the batch for the dead peer came to an end");
		status = status == -ESTALE ? batch_run(with_blocks) : 0;
		sleep_ms(2);
	} while (status != -ESTALE && now() < end);
	want(-ESTALE, status);
	want(WH_PEER_STALE, state_of(old));
	want_text(-ESTALE, "restart", wh_batch_submit(batch));
	want(-ESTALE, wh_peer_find(old, "target", SECOND, &remote));
	want_true(target_check(&f, -(int64_t)f.guard, f.length + 2 * f.guard, 0, 99) ==
			  PATTERN_GOOD,
		  "bytes for the dead one went into its successor");

	fixture_connect(&f, f.child->url);
	want_true(state_of(f.peer) == WH_PEER_CONNECTED, "the new one is not connected");
	round_trip(&f, 64, 64, MIB - 128, 5);
	want(-ESTALE, wh_batch_submit(batch));
	want(0, wh_batch_free(batch));
	want(0, wh_batch_free(with_blocks));
	wh_blocks_free(blocks);
	want(0, wh_peer_close(old));
	fixture_close(&f);
}

/* After each of several restarts the old peer is stale and does no harm. */
static void restart__again_and_again(void **state)
{
	struct fixture f;
	char address[96];

	fixture_open(&f, *state, MIB);
	snprintf(address, sizeof(address), "%s", f.child->url + strlen("wherry://"));
	for (int i = 0; i < 5; i++) {
		struct wh_peer *old = f.peer;

		round_trip(&f, 64, 64, 100000, (uint64_t)i);
		child_kill(f.child);
		start_again(&f, address);
		fixture_connect(&f, f.child->url);
		want_state(old, WH_PEER_STALE);
		want(0, wh_peer_close(old));
	}
	fixture_close(&f);
}

/* A region key of the dead process does not give access to the new process's memory. */
static void restart__key(void **state)
{
	unsigned char key[WH_KEY_MAX];
	size_t length = sizeof(key);
	struct wh_remote remote;
	struct wh_peer *old;
	struct fixture f;
	char address[96];
	int region;

	fixture_open(&f, *state, MIB);
	old = f.peer;
	snprintf(address, sizeof(address), "%s", f.child->url + strlen("wherry://"));
	region = child_region(f.child, f.memory, f.guard, 1000, NULL, ACCESS_BOTH, NULL);
	want(0, child_key(f.child, region, key, &length));
	want(0, wh_peer_unpack_key(old, key, length, PATIENCE, &remote));
	child_kill(f.child);
	start_again(&f, address);
	fixture_connect(&f, f.child->url);
	want(-ESTALE, wh_peer_unpack_key(f.peer, key, length, SECOND, &remote));
	want(0, wh_peer_close(old));
	fixture_close(&f);
}

/* ---- half-open connections --------------------------------------------- */

static struct proxy *through_proxy(struct fixture *f, const char *const *config,
				   const struct child_options *options)
{
	struct proxy *proxy;

	fixture_open_with(f, &route_tcp4, LENGTH, config, options);
	want(0, wh_peer_close(f->peer));
	proxy = proxy_start(f->child->url);
	assert_non_null(proxy);
	fixture_connect(f, proxy_url(proxy));
	round_trip(f, 64, 64, 70000, 1);
	return proxy;
}

/* The target drops an initiator that vanishes without closing its connections. */
static void silence__target_notices(void **state)
{
	struct child_options options = { .config = { SCALE("timeout=300", "timeout=2000") } };
	unsigned int before, after = 0;
	struct proxy *proxy;
	struct fixture f;
	int64_t end;

	(void)state;
	fixture_open_with(&f, &route_tcp4, LENGTH, impatient, &options);
	want(0, move(&f, WH_READ, 0, 0, 1000));
	want(0, wh_peer_close(f.peer));
	sleep_ms(100);
	before = child_fds(f.child);
	proxy = proxy_start(f.child->url);
	assert_non_null(proxy);
	fixture_connect(&f, proxy_url(proxy));
	want(0, move(&f, WH_READ, 0, 0, 1000));
	want_true(child_fds(f.child) > before, "there is no connection");
	proxy_freeze(proxy, true);
	/* An engine waits at least 10 s. */
	end = now() + 10 * SECOND + PATIENCE;
	while ((after = child_fds(f.child)) > before && now() < end)
		sleep_ms(50);
	want_true(after <= before, "%u descriptors, before: %u", after, before);
	proxy_freeze(proxy, false);
	want_works_again(&f);
	fixture_close(&f);
	proxy_stop(proxy);
}

/* Very different timeouts on the two sides lose no peer. */
static void timeouts__differ(void **state)
{
	static const char *const patient[] = { "timeout=20000", NULL };
	struct child_options options = { .config = { SCALE("timeout=100", "timeout=500") } };
	struct wh_peer_info info = { .size = sizeof(info) };
	struct fixture f;
	int64_t end = now() + SCALE(1, 5) * SECOND;

	(void)state;
	fixture_open_with(&f, &route_tcp4, MIB, patient, &options);
	while (now() < end) {
		want(0, wh_peer_info(f.peer, &info));
		want(WH_PEER_CONNECTED, info.state);
		sleep_ms(5);
	}
	round_trip(&f, 64, 64, 70000, 1);
	fixture_close(&f);
}

/* ---- cut connections --------------------------------------------------- */

static void cut_connections(unsigned int role, uint32_t op)
{
	struct wh_batch *batch;
	struct proxy *proxy;
	struct fixture f;

	proxy = through_proxy(&f, NULL, NULL);
	batch = bulk_new(&f, op, TIMES > 8 ? 8 : TIMES);
	for (uint64_t round = 0; round < SCALE(5, 2); round++) {
		int status;

		if (op == WH_WRITE)
			pattern_fill(f.local, LENGTH, 0, round);
		else
			target_fill(&f, 0, LENGTH, 0, round);
		want(0, wh_batch_submit(batch));
		sleep_ms(5);
		want_true(proxy_cut(proxy, role) > 0, "there was nothing to cut");
		status = end_of(batch);
		want_true(status == 0 || wh_batch_error_text(batch)[0], "there is no text");
		if (status == 0)
			want_true((op == WH_WRITE ? target_check(&f, 0, LENGTH, 0, round) :
						    pattern_check(f.local, LENGTH, 0, round)) ==
					  PATTERN_GOOD,
				  "said to be done, with wrong bytes");
		want_works_again(&f);
		if (role == PROXY_DATA)
			want(WH_PEER_CONNECTED, state_of(f.peer));
	}
	want(0, wh_batch_free(batch));
	fixture_close(&f);
	proxy_stop(proxy);
}

static void cut__data_of_writes(void **state)
{
	(void)state;
	cut_connections(PROXY_DATA, WH_WRITE);
}

static void cut__data_of_reads(void **state)
{
	(void)state;
	cut_connections(PROXY_DATA, WH_READ);
}

static void cut__control(void **state)
{
	(void)state;
	cut_connections(PROXY_CONTROL, WH_WRITE);
}

static void cut__everything(void **state)
{
	(void)state;
	cut_connections(0, WH_READ);
}

/* Regions registered and unregistered while the control connection was cut are known afterwards. */
static void cut__regions_meanwhile(void **state)
{
	struct wh_remote remote;
	struct proxy *proxy;
	struct fixture f;
	int64_t end = now() + PATIENCE;
	int region, error;

	(void)state;
	proxy = through_proxy(&f, NULL, NULL);
	region = child_region(f.child, f.memory, f.guard, 1000, "old", ACCESS_BOTH, NULL);
	want(0, wh_peer_find(f.peer, "old", PATIENCE, &remote));
	proxy_freeze(proxy, true);
	want(0, child_unregister(f.child, region));
	child_region(f.child, f.memory, f.guard, 1000, "new", ACCESS_BOTH, NULL);
	proxy_cut(proxy, 0);
	proxy_freeze(proxy, false);
	/* -ECONNRESET until the connection is restored. */
	while ((error = wh_peer_find(f.peer, "new", WH_ANSWER, &remote)) != 0 && now() < end)
		sleep_ms(5);
	want(0, error);
	want(-ENOENT, wh_peer_find(f.peer, "old", WH_ANSWER, &remote));
	want(0, wh_peer_find(f.peer, "target", WH_ANSWER, &remote));
	want_works_again(&f);
	fixture_close(&f);
	proxy_stop(proxy);
}

/* ---- a stopped peer ---------------------------------------------------- */

/* Within this time a wait for a peer that never answers ends. */
#define BOUND (30 * SECOND)

/* The peer was last heard `after` ns after the connection was made, and stops. */
static void stop_and_cancel(void *route, int64_t after)
{
	struct wh_remote remote;
	struct wh_batch *batch;
	struct fixture f;
	int64_t before;
	int error;

	fixture_open_with(&f, route, LENGTH, impatient, NULL);
	before = now();
	round_trip(&f, 64, 64, 70000, 1);
	batch = bulk_new(&f, WH_READ, TIMES);
	if (now() - before < after)
		sleep_ms((int)((after - (now() - before)) / MS));
	want(-ENOENT, wh_peer_find(f.peer, "none", WH_ANSWER, &remote));
	child_stop(f.child);
	want(0, wh_batch_submit(batch));
	sleep_ms(20);
	before = quiet_now();
	error = wh_batch_cancel(batch);
	want_true(error == 0 || error == -ETIMEDOUT, "it is %d", error);
	want_true(quiet_now() - before < BOUND, "it took %lld ms",
		  (long long)((quiet_now() - before) / MS));
	want_true(batch_now(batch) != -EAGAIN, "it is still running");
	want(0, wh_batch_free(batch));
	pattern_fill(f.local, LENGTH, 0, 9);
	child_continue(f.child);
	sleep_ms(100);
	want_true(pattern_check(f.local, LENGTH, 0, 9) == PATTERN_GOOD,
		  "our memory changed after the cancel");
	want_works_again(&f);
	fixture_close(&f);
}

/* The silence of a peer is noticed after the timeout and up to a third more, by when it was last
 * heard. What a cancel promises must not depend on that. */
static void stopped__cancel(void **state)
{
	const int64_t third = SCALE(333, 1667) * MS;

	for (int64_t after = 0; after <= third; after += third / 5)
		stop_and_cancel(*state, after);
}

static void stopped__peer_close(void **state)
{
	struct fixture f;
	int64_t before;

	fixture_open_with(&f, *state, LENGTH, impatient, NULL);
	round_trip(&f, 64, 64, 70000, 1);
	child_stop(f.child);
	before = quiet_now();
	fixture_close_initiator(&f);
	want_true(quiet_now() - before < BOUND, "it took %lld ms",
		  (long long)((quiet_now() - before) / MS));
	child_continue(f.child);
	child_exit(f.child);
}

static const struct CMUnitTest tests[] = {
	TEST_REMOTE_ROUTES(kill__target_of_write),
	TEST_REMOTE_ROUTES(kill__target_of_read),
	TEST_REMOTE_ROUTES(kill__before_a_small_write),
	TEST_REMOTE_ROUTES(leave__then_add),
	TEST_REMOTE_ROUTES(kill__initiator),
	TEST(kill__initiator_with_notifications),
	TEST_REMOTE_ROUTES(restart__stale),
	TEST_REMOTE_ROUTES(restart__again_and_again),
	TEST_OVER(restart__key, tcp4),
	TEST(silence__target_notices),
	TEST(timeouts__differ),
	TEST(cut__data_of_writes),
	TEST(cut__data_of_reads),
	TEST(cut__control),
	TEST(cut__everything),
	TEST(cut__regions_meanwhile),
	TEST_OVER(stopped__cancel, tcp4),
	TEST_REMOTE_ROUTES(stopped__peer_close),
};

HARNESS_MAIN("peer-faults", tests)
