/* SPDX-License-Identifier: Apache-2.0 */
/* metrics-counters.c: an engine counts exactly what it has done, and reports the same to observers
 */
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "lib/fixture.h"
#include "telemetry/observation.h"

static struct wh_counters counters_of(struct wh_peer *peer)
{
	struct wh_counters counters = { .size = sizeof(counters) };

	want(0, wh_peer_counters(peer, &counters));
	return counters;
}

static const struct wh_transport_counters *counters_by(const struct wh_counters *counters,
						       const char *name)
{
	for (unsigned i = 0; i < counters->transports; i++)
		if (strcmp(counters->transport[i].transport, name) == 0)
			return &counters->transport[i];
	want_true(false, "no such transport");
	return NULL;
}

/* The number of parts that the transport was given. */
static uint64_t attempts(const struct wh_counters *counters, const char *name)
{
	return counters_by(counters, name)->attempts;
}

static struct wh_engine_counters engine_counters(struct wh_engine *engine,
						 struct wh_counters *total)
{
	struct wh_engine_counters counters = { .size = sizeof(counters) };

	if (total)
		total->size = sizeof(*total);
	want(0, wh_engine_counters(engine, &counters, total));
	return counters;
}

/* ---- counting ------------------------------------------------------------------------------- */

/* Run one batch again and again and check the counters after each run; then change it, and free it.
 */
static void rounds__every_one_counts(void **state)
{
	struct wh_transfer transfers[3];
	const struct wh_transport_counters *t;
	struct wh_counters counters;
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, 64 * KIB);
	transfers[0] = transfer_of(&f, WH_WRITE, 0, 0, 1000);
	transfers[1] = transfer_of(&f, WH_WRITE, 1000, 1000, 24);
	transfers[2] = transfer_of(&f, WH_READ, 2048, 2048, 512);
	batch = batch_of(&f, transfers, 3);
	for (uint64_t round = 1; round <= 300; round++) {
		want(0, batch_run(batch));
		counters = counters_of(f.peer);
		t = counters_by(&counters, f.route->require);
		want(round, counters.batches);
		want(round * 1024, t->written_bytes);
		want(round * 2, t->writes);
		want(round * 512, t->read_bytes);
		want(round, t->reads);
		want(2 * round, attempts(&counters, f.route->require));
		want(0, t->errors + t->reroutes + counters.failed + counters.cancelled);
	}
	/* One in 128 is measured, and the first is one of them. */
	want(3, counters.small.count);
	want(0, counters.large.count);
	want_true(counters.small.sum > 0, "no time has passed");
	/* With another plan, the bytes counted for the first one stay. */
	want(0, wh_batch_clear(batch));
	want(0, wh_batch_add(batch, &transfers[2], 1));
	for (int round = 0; round < 5; round++)
		want(0, batch_run(batch));
	want(0, wh_batch_free(batch));
	counters = counters_of(f.peer);
	t = counters_by(&counters, f.route->require);
	want(305, counters.batches);
	want(300 * 1024, t->written_bytes);
	want(305 * 512, t->read_bytes);
	fixture_close(&f);
}

static void fresh__batches_and_large_ones(void **state)
{
	struct wh_counters counters;
	uint64_t all = 0;
	struct fixture f;

	fixture_open(&f, *state, 256 * KIB);
	for (int i = 0; i < 200; i++)
		want(0, move(&f, WH_WRITE, 0, 0, 4096));
	for (int i = 0; i < 7; i++)
		want(0, move(&f, WH_READ, 0, 0, 128 * KIB));
	counters = counters_of(f.peer);
	want(207, counters.batches);
	want(207, attempts(&counters, f.route->require));
	want(0, counters.large_in_flight);
	want(200 * 4096, counters_by(&counters, f.route->require)->written_bytes);
	want(7 * 128 * KIB, counters_by(&counters, f.route->require)->read_bytes);
	want(2, counters.small.count);
	want(7, counters.large.count);
	for (int i = 0; i < WH_LATENCY_BUCKETS; i++)
		all += counters.large.bucket[i];
	want(7, all);
	fixture_close(&f);
}

/* Batches that are used once: with one part, with two, with a notification, with nothing else. */
static void fresh__of_every_kind(void **state)
{
	const struct wh_transport_counters *t;
	struct wh_transfer transfers[2];
	struct wh_counters counters;
	struct wh_batch *batch;
	struct fixture f;

	(void)state;
	fixture_open(&f, &route_self, 64 * KIB);
	transfers[0] = transfer_of(&f, WH_WRITE, 0, 0, 1000);
	transfers[1] = transfer_of(&f, WH_READ, 2048, 2048, 512);
	for (uint64_t round = 1; round <= 3; round++) {
		for (size_t count = 0; count <= 2; count++) {
			if (count) {
				batch = batch_of(&f, transfers, count);
				want(0, batch_run(batch));
				want(0, wh_batch_free(batch));
			}
			want(0, wh_batch_new(f.peer, NULL, &batch));
			if (count)
				want(0, wh_batch_add(batch, transfers, count));
			want(0, wh_batch_notify(batch, 0, "done", 4));
			want(0, batch_run(batch));
			want(0, wh_batch_free(batch));
		}
		/* Cleared and filled again, before its first run and after it. */
		batch = batch_of(&f, transfers, 2);
		want(0, wh_batch_clear(batch));
		for (uint64_t again = 0; again < 3; again++) {
			want(0, wh_batch_add(batch, transfers, 1));
			want(0, batch_run(batch));
			want(0, wh_batch_clear(batch));
		}
		want(0, wh_batch_free(batch));
		counters = counters_of(f.peer);
		t = counters_by(&counters, "self");
		want(8 * round, counters.batches);
		want(9 * round, attempts(&counters, "self"));
		want(7 * 1000 * round, t->written_bytes);
		want(7 * round, t->writes);
		want(2 * 512 * round, t->read_bytes);
		want(2 * round, t->reads);
	}
	fixture_close(&f);
}

static void engine__closed_peers_stay_in_the_total(void **state)
{
	struct wh_engine_counters engine;
	struct wh_counters total;
	struct wh_peer *second;
	struct fixture f;

	(void)state;
	fixture_open(&f, &route_self, 64 * KIB);
	want(0, wh_peer_open(f.engine, "self", NULL, &second));
	want(0, move(&f, WH_WRITE, 0, 0, 100));
	engine = engine_counters(f.engine, &total);
	want(2, engine.peers);
	want(2, engine.peers_opened);
	want(2, engine.regions);
	want(3 * 64 * KIB, engine.region_bytes);
	want(2, engine.registrations);
	want(100, counters_by(&total, "self")->written_bytes);
	want(0, wh_peer_close(second));
	want(0, wh_peer_close(f.peer));
	engine = engine_counters(f.engine, &total);
	want(0, engine.peers);
	want(2, engine.peers_opened);
	want(100, counters_by(&total, "self")->written_bytes);
	want(1, total.batches);
	want(0, wh_peer_open(f.engine, "self", NULL, &f.peer));
	fixture_close(&f);
}

/* The peer is killed in the middle: one failed batch, and one lost peer. */
static void failure__is_counted_once(void **state)
{
	struct wh_engine_counters engine;
	struct wh_counters counters;
	struct wh_transfer transfers[2];
	struct wh_batch *batch, *large;
	const char *const hurry[] = { SCALE("timeout=1000", "timeout=5000"), NULL };
	struct fixture f;

	fixture_open_with(&f, *state, 256 * KIB, hurry, NULL);
	transfers[0] = transfer_of(&f, WH_WRITE, 0, 0, 4096);
	transfers[1] = transfer_of(&f, WH_WRITE, 64 * KIB, 64 * KIB, 128 * KIB);
	batch = batch_of(&f, &transfers[0], 1);
	large = batch_of(&f, &transfers[1], 1);
	want(0, batch_run(batch));
	for (int round = 0; round < 3; round++)
		want(0, batch_run(large));
	want(0, counters_of(f.peer).large_in_flight);
	child_stop(f.child);
	want(0, engine_counters(f.engine, NULL).unfinished);
	want(0, wh_batch_submit(batch));
	want(1, engine_counters(f.engine, NULL).unfinished);
	want(0, counters_of(f.peer).large_in_flight);
	want(0, wh_batch_submit(large));
	want(2, engine_counters(f.engine, &counters).unfinished);
	want(128 * KIB, counters.large_in_flight);
	want(128 * KIB, counters_of(f.peer).large_in_flight);
	want_true(batch_end(batch, PATIENCE) < 0, "the peer cannot have answered");
	want_true(batch_end(large, PATIENCE) < 0, "the peer cannot have answered");
	counters = counters_of(f.peer);
	want(4, counters.batches);
	want(2, counters.failed);
	want(6, attempts(&counters, f.route->require));
	want(0, counters.large_in_flight);
	want(2, counters_by(&counters, f.route->require)->errors);
	want(4096 + 3 * 128 * KIB, counters_by(&counters, f.route->require)->written_bytes);
	engine = engine_counters(f.engine, NULL);
	want(1, engine.peers_lost);
	want(1, engine.connections);
	want(0, wh_batch_free(batch));
	want(0, wh_batch_free(large));
	want(0, engine_counters(f.engine, NULL).unfinished);
	fixture_close_initiator(&f);
	child_kill(f.child);
}

/* What a peer does in our memory over TCP is counted by session. */
static void served__is_counted_by_session(void **state)
{
	const char *const tcp[] = { "transports=tcp", NULL };
	struct wh_engine *owner = engine_open(NULL, NULL, NULL),
			 *other = engine_open(NULL, "none", tcp);
	struct wh_region *mine, *theirs;
	struct wh_engine_counters engine;
	struct wh_transfer transfer;
	struct wh_remote remote;
	struct wh_batch *batch;
	struct wh_peer *peer;
	unsigned char *memory = pages_new(64 * KIB);

	(void)state;
	want(0, wh_region_register(
			owner, memory, 32 * KIB,
			&(struct wh_region_options){ .size = sizeof(struct wh_region_options),
						     .name = "mine",
						     .access = ACCESS_BOTH },
			&mine));
	want(0, wh_region_register(other, memory + 32 * KIB, 32 * KIB, NULL, &theirs));
	want(0, wh_peer_open(other, wh_engine_url(owner), NULL, &peer));
	want(0, wh_peer_find(peer, "mine", WH_ANSWER, &remote));
	transfer = (struct wh_transfer){
		.local = theirs, .remote = remote.id, .length = 5000, .op = WH_WRITE
	};
	want(0, wh_batch_new(peer, NULL, &batch));
	want(0, wh_batch_add(batch, &transfer, 1));
	/* At other offsets: transfers of one batch have no order. */
	transfer = (struct wh_transfer){ .local = theirs,
					 .local_offset = 8 * KIB,
					 .remote = remote.id,
					 .remote_offset = 8 * KIB,
					 .length = 300,
					 .op = WH_READ };
	want(0, wh_batch_add(batch, &transfer, 1));
	want(0, batch_run(batch));
	engine = engine_counters(owner, NULL);
	want(1, engine.sessions);
	want(300, engine.served_read_bytes);
	want(5000, engine.served_written_bytes);
	want(2, engine.served_requests);
	want_true(engine.connections >= 1, "no data connection");
	want(0, wh_batch_free(batch));
	want(0, wh_peer_close(peer));
	for (int i = 0; i < 1000 && engine.sessions; i++) {
		usleep(10000);
		engine = engine_counters(owner, NULL);
	}
	want(0, engine.sessions);
	want(5000, engine.served_written_bytes);
	want(1, engine.sessions_opened);
	want(0, wh_region_unregister(mine));
	want(0, wh_region_unregister(theirs));
	want(0, wh_engine_close(other));
	want(0, wh_engine_close(owner));
	pages_free(memory, 64 * KIB);
}

static void arguments__nonsense(void **state)
{
	struct wh_engine_counters engine = { .size = sizeof(engine) };
	struct wh_counters counters = { .size = 3 };
	struct fixture f;
	size_t length = 10;
	char bytes[10];

	(void)state;
	fixture_open(&f, &route_self, 4096);
	want(-EINVAL, wh_peer_counters(NULL, &counters));
	want(-EINVAL, wh_peer_counters(f.peer, NULL));
	want(-EINVAL, wh_peer_counters(f.peer, &counters));
	counters.size = 5000;
	want(-E2BIG, wh_peer_counters(f.peer, &counters));
	want(-EINVAL, wh_engine_counters(NULL, &engine, NULL));
	want(-EINVAL, wh_engine_counters(f.engine, NULL, NULL));
	want(-EINVAL, wh_engine_observe(f.engine, bytes, NULL));
	want(-EINVAL, wh_engine_observe(f.engine, NULL, &length));
	want(-ENOSPC, wh_engine_observe(f.engine, bytes, &length));
	want_true(length > 10, "how much is needed");
	fixture_close(&f);
}

/* ---- observing ------------------------------------------------------------------------------ */

static int observer_dial(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	want(0, connect(fd, (struct sockaddr *)&address, sizeof(address)));
	return fd;
}

static size_t read_to_end(int fd, uint8_t *bytes, size_t room)
{
	size_t got = 0;
	ssize_t more;

	while ((more = read(fd, bytes + got, room - got)) > 0)
		got += (size_t)more;
	return got;
}

static void observe(const char *path, struct wh_observation *out)
{
	static uint8_t bytes[WH_OBSERVED_MAX];
	int fd = observer_dial(path);
	size_t length;

	want(WH_OBSERVE_REQUEST_SIZE, write(fd, WH_OBSERVE_REQUEST, WH_OBSERVE_REQUEST_SIZE));
	length = read_to_end(fd, bytes, sizeof(bytes));
	close(fd);
	want(0, wh_observation_parse(bytes, length, out));
}

static void observer__receives_the_same(void **state)
{
	char directory[] = "/tmp/wherry-test-XXXXXX", setting[64];
	const char *const config[] = { setting, NULL };
	struct wh_observation observed;
	struct stat status;
	struct fixture f;
	char path[128];

	(void)state;
	want_true(mkdtemp(directory) != NULL, "mkdtemp");
	snprintf(setting, sizeof(setting), "observe=%s", directory);
	fixture_open_with(&f, &route_self, 64 * KIB, config, NULL);
	snprintf(path, sizeof(path), "%s", wh_engine_observer_path(f.engine));
	want_true(strncmp(path, directory, strlen(directory)) == 0,
		  "not in the directory of the setting observe");
	want(0, stat(path, &status));
	want(0600, status.st_mode & 0777);
	want(0, move(&f, WH_WRITE, 0, 0, 4096));
	observe(path, &observed);
	want(1, observed.peer_count);
	want(0, observed.session_count);
	want(getpid(), observed.engine.pid);
	want(1, observed.engine.total.batches);
	want(4096, counters_by(&observed.peers[0].counters, "self")->written_bytes);
	want_true(strcmp(observed.peers[0].address, "self") == 0, "the peer's address");
	want_true(strcmp(observed.engine.name, wh_engine_name(f.engine)) == 0, "the engine's name");
	wh_observation_free(&observed);
	fixture_close(&f);
	want(-1, stat(path, &status));
	want(0, rmdir(directory));
}

/* More observers than are served at a time, none of which sends a request or reads: others are
 * still served, transfers take no longer, and the engine can be closed. */
static void observer__that_hangs(void **state)
{
	char directory[] = "/tmp/wherry-test-XXXXXX", setting[64];
	const char *const config[] = { setting, NULL };
	struct wh_observation observed;
	uint8_t header[WH_OBSERVED_HEADER];
	struct fixture f;
	int silent[12];
	int64_t start;

	(void)state;
	want_true(mkdtemp(directory) != NULL, "mkdtemp");
	snprintf(setting, sizeof(setting), "observe=%s", directory);
	fixture_open_with(&f, &route_self, 64 * KIB, config, NULL);
	for (int i = 0; i < 12; i++)
		silent[i] = observer_dial(wh_engine_observer_path(f.engine));
	start = quiet_now();
	for (int i = 0; i < 100; i++)
		want(0, move(&f, WH_WRITE, 0, 0, 4096));
	want_true(quiet_now() - start < SECOND, "transfers wait for observers");
	/* Eight silent observers at a time are dropped, after 2 s each. */
	observe(wh_engine_observer_path(f.engine), &observed);
	want(100, observed.engine.total.batches);
	wh_observation_free(&observed);
	for (int i = 0; i < 12; i++)
		close(silent[i]);
	silent[0] = observer_dial(wh_engine_observer_path(f.engine));
	/* A request of another version is answered in the engine's version. */
	want(8, write(silent[0], "wherry?\377", 8));
	want(WH_OBSERVED_HEADER, read_to_end(silent[0], header, sizeof(header)));
	want(WH_OBSERVED_VERSION, header[4]);
	close(silent[0]);
	silent[0] = observer_dial(wh_engine_observer_path(f.engine));
	/* Anything but a request closes the connection at once. */
	want(8, write(silent[0], "GET / HT", 8));
	want(0, read(silent[0], setting, 1));
	close(silent[0]);
	fixture_close(&f);
	want(0, rmdir(directory));
}

static int64_t cpu_time(void)
{
	struct timespec used;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	return used.tv_sec * SECOND + used.tv_nsec;
}

/* An observer that connects when the process has no descriptors left costs no CPU time, and is
 * answered when there are some again. */
static void observer__without_descriptors(void **state)
{
	char directory[] = "/tmp/wherry-test-XXXXXX", setting[64];
	const char *const config[] = { setting, NULL };
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	uint8_t header[WH_OBSERVED_HEADER];
	struct rlimit limit, none;
	struct fixture f;
	int64_t used;
	int fd;

	(void)state;
	want_true(mkdtemp(directory) != NULL, "mkdtemp");
	snprintf(setting, sizeof(setting), "observe=%s", directory);
	fixture_open_with(&f, &route_self, 64 * KIB, config, NULL);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s",
		 wh_engine_observer_path(f.engine));
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	want(0, getrlimit(RLIMIT_NOFILE, &limit));
	none = limit;
	none.rlim_cur = 0;
	want(0, setrlimit(RLIMIT_NOFILE, &none));
	want(0, connect(fd, (struct sockaddr *)&address, sizeof(address)));
	want(8, write(fd, WH_OBSERVE_REQUEST, 8));
	used = cpu_time();
	sleep_ms(500);
	used = cpu_time() - used;
	want(0, setrlimit(RLIMIT_NOFILE, &limit));
	want_true(used < 100 * MS, "%lld ms of processor in half a second", (long long)(used / MS));
	want(WH_OBSERVED_HEADER, read_to_end(fd, header, sizeof(header)));
	close(fd);
	fixture_close(&f);
	want(0, rmdir(directory));
}

static void observer__knob(void **state)
{
	struct wh_engine_options options = { .size = sizeof(options) };
	const char *const off[] = { "observe=off", NULL };
	const char *const wrong[] = { "observe=/nonexistent/here", NULL };
	struct wh_engine *engine;

	(void)state;
	options.config = off;
	want(0, wh_engine_open(&options, &engine));
	want_true(!*wh_engine_observer_path(engine), "there is a socket");
	want(0, wh_engine_close(engine));
	options.config = wrong;
	want(-ENOENT, wh_engine_open(&options, &engine));
	want_true(strstr(wh_error_text(), "/nonexistent/here") != NULL, "the text names it");
}

/* ---- counting and looking at once ------------------------------------------------------------ */

static struct fixture shared;
static _Atomic bool stop;

static void *look(void *arg)
{
	struct wh_counters before = { .size = sizeof(before) }, counters;

	(void)arg;
	while (!stop) {
		counters = counters_of(shared.peer);
		want_true(counters.batches >= before.batches &&
				  counters_by(&counters, "self")->written_bytes >=
					  (before.transports ?
						   counters_by(&before, "self")->written_bytes :
						   0),
			  "a counter has gone back");
		before = counters;
	}
	return NULL;
}

static void *work(void *arg)
{
	struct wh_transfer transfer =
		transfer_of(&shared, WH_WRITE, (uintptr_t)arg * 4096, (uintptr_t)arg * 4096, 4096);
	struct wh_batch *batch = batch_of(&shared, &transfer, 1);

	for (int i = 0; i < 1000; i++) {
		want(0, batch_run(batch));
		if (i % 100 == 99) {
			want(0, wh_batch_free(batch));
			batch = batch_of(&shared, &transfer, 1);
		}
	}
	want(0, wh_batch_free(batch));
	return NULL;
}

static void threads__nothing_is_lost(void **state)
{
	struct wh_counters counters;
	pthread_t threads[5];

	(void)state;
	fixture_open(&shared, &route_self, 64 * KIB);
	stop = false;
	want(0, pthread_create(&threads[4], NULL, look, NULL));
	for (uintptr_t i = 0; i < 4; i++)
		want(0, pthread_create(&threads[i], NULL, work, (void *)i));
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	stop = true;
	pthread_join(threads[4], NULL);
	counters = counters_of(shared.peer);
	want(4000, counters.batches);
	want(4000 * 4096, counters_by(&counters, "self")->written_bytes);
	fixture_close(&shared);
}

static const struct CMUnitTest tests[] = {
	TEST_EVERY_ROUTE(rounds__every_one_counts),
	TEST_EVERY_ROUTE(fresh__batches_and_large_ones),
	TEST(fresh__of_every_kind),
	TEST(engine__closed_peers_stay_in_the_total),
	TEST_OVER(failure__is_counted_once, tcp4),
	TEST(served__is_counted_by_session),
	TEST(arguments__nonsense),
	TEST(observer__receives_the_same),
	TEST(observer__that_hangs),
	TEST(observer__without_descriptors),
	TEST(observer__knob),
	TEST(threads__nothing_is_lost),
};

HARNESS_MAIN("metrics-counters", tests)
