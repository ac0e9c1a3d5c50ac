/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: registry command bench-many slow */
/* registry-partition.c: a network that is cut in the middle, silently for both sides, and restored.
 * Hosts are network namespaces with a router between them. */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "lib/fixture.h"
#include "lib/network.h"

#define LENGTH (4 * MIB)
#define LEASE "lease=800"
#define REGISTRY "http://" NETWORK_RIGHT ":7077"
/* ns: for what happens some time after the network is restored */
#define LONG (SCALE(20, 40) * SECOND)

static uint32_t state_of(struct wh_peer *peer)
{
	struct wh_peer_info info = { .size = sizeof(info) };

	want(0, wh_peer_info(peer, &info));
	return info.state;
}

static void want_state(struct wh_peer *peer, uint32_t state)
{
	int64_t end = now() + LONG;

	while (state_of(peer) != state && now() < end)
		sleep_ms(5);
	want(state, state_of(peer));
}

/* Open an engine with a region in a process on the right, and one of this process on the left. */
static void open_pair(struct network_pair *pair, struct fixture *f, const char *timeout)
{
	static const struct route route = { .name = "tcp",
					    .require = "tcp",
					    .listen = NETWORK_RIGHT ":0",
					    .detail = "connection",
					    .kind = WH_MEMORY_PAGEABLE };
	const char *const config[] = { SHARED_KEY, timeout, NULL };
	const struct child_options options = { .listen = NETWORK_RIGHT ":0",
					       .config = { SHARED_KEY, timeout } };

	network_pair_open(pair);
	memset(f, 0, sizeof(*f));
	f->route = &route;
	f->length = LENGTH;
	f->guard = GUARD;
	f->engine = engine_open("tcp", "none", config);
	network_enter(pair->right);
	fixture_start_target(f, &options);
	network_enter(pair->left);
	f->base = pages_new(2 * LENGTH + 2 * GUARD);
	f->local = f->base + GUARD;
	want(0, wh_region_register(f->engine, f->local, 2 * LENGTH, NULL, &f->region));
	fixture_connect(f, f->child->url);
}

static void close_pair(struct network_pair *pair, struct fixture *f)
{
	fixture_close(f);
	network_pair_close(pair);
}

/* Cut for ten seconds with a timeout of one: transfers in flight fail in time and say why, nothing
 * hangs, and what was complete before is there. The same peer is connected again by itself when the
 * network is restored. */
static void partition__longer_than_the_timeout(void **state)
{
	struct wh_peer_info before = { .size = sizeof(before) }, after = before;
	struct network_pair pair;
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct fixture f;
	int64_t cut, ended;
	int status;

	(void)state;
	open_pair(&pair, &f, "timeout=1000");
	want(0, wh_peer_info(f.peer, &before));
	round_trip(&f, 64, 64, LENGTH - 128, 1);
	pattern_fill(f.local, LENGTH, 0, 2);
	want(0, move(&f, WH_WRITE, 0, 0, LENGTH));
	transfer = transfer_of(&f, WH_READ, LENGTH, 0, LENGTH);
	batch = batch_of(&f, &transfer, 1);
	network_pair_cut(&pair, true);
	cut = now();
	want(0, wh_batch_submit(batch));
	status = batch_end(batch, LONG);
	ended = now();
	want_true(status == -ECONNRESET || status == -ETIMEDOUT, "it ended with %s",
		  strerrorname_np(-status));
	want_true(ended - cut < LONG, "it took %lld ms", (long long)((ended - cut) / MS));
	want_true(*wh_batch_error_text(batch), "without a word");
	want_state(f.peer, WH_PEER_LOST);
	want_text(-ECONNRESET, "lost", wh_batch_submit(batch));
	while (now() - cut < 10 * SECOND)
		sleep_ms(100);
	want(WH_PEER_LOST, state_of(f.peer));
	want_true(target_check(&f, 0, LENGTH, 0, 2) == PATTERN_GOOD,
		  "what was complete is not there");
	network_pair_cut(&pair, false);
	want_state(f.peer, WH_PEER_CONNECTED);
	want(0, wh_peer_info(f.peer, &after));
	want_true(before.epoch == after.epoch, "another engine");
	want(0, batch_run(batch));
	want_true(pattern_check(f.local + LENGTH, LENGTH, 0, 2) == PATTERN_GOOD,
		  "it is not what was written");
	want(0, wh_batch_free(batch));
	round_trip(&f, 64, 64, LENGTH - 128, 3);
	close_pair(&pair, &f);
}

/* Cut for a second with a timeout of twenty: nothing fails. */
static void partition__shorter_than_the_timeout(void **state)
{
	struct network_pair pair;
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct fixture f;

	(void)state;
	open_pair(&pair, &f, "timeout=20000");
	pattern_fill(f.local, LENGTH, 0, 4);
	transfer = transfer_of(&f, WH_WRITE, 0, 0, LENGTH);
	batch = batch_of(&f, &transfer, 1);
	want(0, batch_run(batch));
	pattern_fill(f.local, LENGTH, 0, 5);
	network_pair_cut(&pair, true);
	want(0, wh_batch_submit(batch));
	want(-EAGAIN, batch_end(batch, SECOND));
	network_pair_cut(&pair, false);
	want(0, batch_end(batch, WH_FOREVER));
	want(WH_PEER_CONNECTED, state_of(f.peer));
	want_true(target_check(&f, 0, LENGTH, 0, 5) == PATTERN_GOOD, "it is not what was written");
	want(0, wh_batch_free(batch));
	close_pair(&pair, &f);
}

/* Packets are delayed, reordered, duplicated or lost: transfers take longer, and nothing else
 * changes. */
static void network__bad(void **state)
{
	static const char *const ways[] = { "delay 10ms 5ms", "loss 2%",
					    "delay 5ms 4ms loss 1% duplicate 1% reorder 10%" };
	struct network_pair pair;
	struct fixture f;

	(void)state;
	open_pair(&pair, &f, "timeout=20000");
	for (unsigned i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		network_pair_disturb(&pair, ways[i]);
		round_trip(&f, 64, 64, MIB, 10 + i);
		for (uint64_t j = 0; j < 8; j++)
			round_trip(&f, 64, 64, 1 + 1111 * j, 20 + 8 * i + j);
		want(WH_PEER_CONNECTED, state_of(f.peer));
	}
	close_pair(&pair, &f);
}

/* ---- the registry is on the other side ------------------------------------------------------- */

static pid_t start_registry(void)
{
	const char *command = getenv("TEST_COMMAND");
	pid_t parent = getpid(), pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		unsetenv("LD_PRELOAD");
		if (getppid() == parent && command)
			execl(command, "wherry", "registry", "--listen", NETWORK_RIGHT ":7077",
			      (char *)NULL);
		_exit(1);
	}
	want_true(pid > 0, "cannot fork");
	return pid;
}

static struct wh_engine *open_engine(const char *name)
{
	const char *const config[] = { LEASE, "timeout=2000", SHARED_KEY, NULL };
	struct wh_engine_options options = {
		.size = sizeof(options),
		.name = name,
		.registry = REGISTRY,
		.config = config,
		.listen = name ? NETWORK_LEFT ":0" : "none",
	};
	int64_t end = now() + LONG;
	struct wh_engine *engine;
	int error;

	while ((error = wh_engine_open(&options, &engine)) != 0 && now() < end)
		sleep_ms(20);
	want(0, error);
	return engine;
}

static struct wh_peer *peer_open(struct wh_engine *engine, const char *url)
{
	int64_t end = now() + LONG;
	struct wh_peer *peer;
	int error;

	while ((error = wh_peer_open(engine, url, NULL, &peer)) != 0 && now() < end)
		sleep_ms(20);
	want(0, error);
	return peer;
}

/* The registry is unreachable for thirty seconds, far longer than a lease, and refuses no
 * connection. Connected peers work on; look-ups of names fail in time; afterwards all names are
 * found again. TEST_SECONDS sets another duration. */
static void registry__cut_off(void **state)
{
	const char *seconds = getenv("TEST_SECONDS");
	int64_t length = (seconds ? atoi(seconds) : SCALE(30, 4)) * SECOND, begun, asked;
	struct wh_engine *east, *west, *other;
	struct wh_peer *peer, *none, *again;
	struct network_pair pair;
	pid_t registry;

	(void)state;
	harness_limit(100 + (unsigned int)(length / SECOND));
	network_pair_open(&pair);
	network_enter(pair.right);
	registry = start_registry();
	network_enter(pair.left);
	east = open_engine("east");
	west = open_engine("west");
	peer = peer_open(east, "wherry://west");
	network_pair_cut(&pair, true);
	begun = now();
	while (now() - begun < length) {
		asked = now();
		want_true(wh_peer_open(east, "wherry://west", NULL, &none) < 0, "who has said so?");
		want_true(now() - asked < LONG, "it took %lld ms",
			  (long long)((now() - asked) / MS));
		want_true(strstr(wh_error_text(), "registry"), "it says: %s", wh_error_text());
		want(WH_PEER_CONNECTED, state_of(peer));
		sleep_ms(200);
	}
	network_pair_cut(&pair, false);
	again = peer_open(east, "wherry://west");
	want(0, wh_peer_close(again));
	again = peer_open(west, "wherry://east");
	want(0, wh_peer_close(again));
	want(WH_PEER_CONNECTED, state_of(peer));
	/* A third engine finds them by the registry only. */
	other = open_engine(NULL);
	again = peer_open(other, "wherry://east");
	want(0, wh_peer_close(again));
	want(0, wh_engine_close(other));
	want(0, wh_peer_close(peer));
	want(0, wh_engine_close(west));
	want(0, wh_engine_close(east));
	kill(registry, SIGKILL);
	waitpid(registry, NULL, 0);
	network_pair_close(&pair);
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(partition__longer_than_the_timeout, needs_network),
	TEST_NEEDS(partition__shorter_than_the_timeout, needs_network),
	TEST_NEEDS(network__bad, needs_netem),
	TEST_NEEDS(registry__cut_off, needs_network),
};

HARNESS_MAIN("registry-partition", tests)
