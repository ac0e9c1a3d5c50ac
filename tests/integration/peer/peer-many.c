/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: no-threads */
/* peer-many.c: many processes, threads and regions, and the lookup of a peer's regions */
#include <pthread.h>
#include <stdatomic.h>

#include "lib/fixture.h"
#include "lib/proxy.h"

/* ---- all to all -------------------------------------------------------- */

#define MESH_MAX 8
#define SLOT (256 * KIB)

struct mesh {
	int size;
	struct child *child[MESH_MAX];
	/* memories; one slot for each other child */
	int inbox[MESH_MAX], outbox[MESH_MAX];
	int inbox_region[MESH_MAX], outbox_region[MESH_MAX];
	int peer[MESH_MAX][MESH_MAX];
};

static void mesh_open(struct mesh *mesh, const struct route *route, int size)
{
	struct child_options options = { .listen = route->listen };

	mesh->size = size;
	for (int i = 0; i < size; i++) {
		struct child *child = mesh->child[i] = child_start(&options);
		size_t length = (size_t)size * SLOT;

		mesh->inbox[i] = child_memory(child, route->kind, length);
		mesh->outbox[i] = child_memory(child, route->kind, length);
		mesh->inbox_region[i] =
			child_region(child, mesh->inbox[i], 0, length, "inbox", ACCESS_BOTH, NULL);
		mesh->outbox_region[i] = child_region(child, mesh->outbox[i], 0, length, "outbox",
						      WH_ACCESS_READ, NULL);
	}
	for (int i = 0; i < size; i++)
		for (int j = 0; j < size; j++) {
			mesh->peer[i][j] =
				i == j ? -1 : child_peer(mesh->child[i], mesh->child[j]->url, NULL);
			want_true(i == j || mesh->peer[i][j] >= 0, "from %d to %d: %d", i, j,
				  mesh->peer[i][j]);
		}
}

/* All pairs at the same time: each i writes slot j of its outbox into slot i of j's inbox, or reads
 * slot i of j's outbox into slot j of its own inbox. In turn t child s works with (s + t) mod size,
 * so that every child is initiator and target at once. */
static void mesh_round(struct mesh *mesh, const struct route *route, uint32_t op, uint64_t seed)
{
	int n = mesh->size;

	for (int i = 0; i < n; i++) {
		child_fill(mesh->child[i], mesh->outbox[i], 0, (uint64_t)n * SLOT, 0,
			   seed + (uint64_t)i);
		child_fill(mesh->child[i], mesh->inbox[i], 0, (uint64_t)n * SLOT, 0, 0);
	}
	for (int t = 1; t < n; t++) {
		for (int i = 0; i < n; i++) {
			int j = (i + t) % n;
			uint64_t mine = (uint64_t)i * SLOT, theirs = (uint64_t)j * SLOT;
			struct child_transfer transfer = {
				.peer = mesh->peer[i][j],
				.op = op,
				.region = op == WH_READ ? mesh->inbox_region[i] :
							  mesh->outbox_region[i],
				.remote = op == WH_READ ? "outbox" : "inbox",
				.local_offset = theirs,
				.remote_offset = mine,
				.length = SLOT,
				.require = route->require,
			};

			child_transfer_send(mesh->child[i], &transfer);
		}
		for (int i = 0; i < n; i++) {
			struct child_result result;

			child_transfer_receive(mesh->child[i], &result);
			want_true(result.status == 0, "child %d: %s", i, result.text);
			assert_string_equal(result.transport, route->name);
		}
	}
	/* In either direction, slot j of i's inbox now holds slot i of j's outbox. */
	for (int i = 0; i < n; i++)
		for (int j = 0; j < n; j++) {
			uint64_t from = i == j ? 0 : (uint64_t)i * SLOT, at = (uint64_t)j * SLOT;

			want_true(child_check(mesh->child[i], mesh->inbox[i], at, SLOT,
					      i == j ? at : from,
					      i == j ? 0 : seed + (uint64_t)j) == PATTERN_GOOD,
				  "slot %d of child %d", j, i);
		}
}

static void mesh_run(const struct route *route, int size)
{
	struct mesh mesh;

	mesh_open(&mesh, route, size);
	for (uint64_t round = 0; round < SCALE(3, 1); round++) {
		mesh_round(&mesh, route, WH_WRITE, 100 * round + 10);
		mesh_round(&mesh, route, WH_READ, 100 * round + 60);
	}
	/* Peers leave one by one, with the others still connected to them. */
	for (int i = 0; i < size; i++) {
		for (int j = 0; j < size; j++)
			if (i != j)
				want(0, child_peer_close(mesh.child[i], mesh.peer[i][j]));
		child_exit(mesh.child[i]);
	}
}

static void mesh__two_processes(void **state)
{
	mesh_run(*state, 2);
}

static void mesh__eight_processes(void **state)
{
	mesh_run(*state, 8);
}

/* ---- threads ----------------------------------------------------------- */

#define THREADS 8
#define PART (64 * KIB)

struct worker {
	pthread_t thread;
	const struct fixture *f;
	uint64_t number;
	const char *wrong; /* failure, or NULL */
};

static const char *run_random_batch(const struct fixture *f, struct wh_batch *batch,
				    uint64_t number, uint64_t round)
{
	uint64_t seed = number * 1000 + round, length = 1 + pattern_random(&seed) % (PART - 64);
	uint64_t at = number * PART + seed % (PART - length), cut = length / 2;
	unsigned char *source = f->local + at, *sink = source + f->length;
	struct wh_transfer out[2] = {
		transfer_of(f, WH_WRITE, at, at, cut ? cut : 1),
		transfer_of(f, WH_WRITE, at + cut, at + cut, length - cut),
	};
	struct wh_transfer back = transfer_of(f, WH_READ, f->length + at, at, length);

	pattern_fill(source, length, at, round);
	memset(sink, 0, length);
	if (wh_batch_clear(batch) || wh_batch_add(batch, out + !cut, cut ? 2 : 1) ||
	    batch_run(batch))
		return "write";
	if (wh_batch_clear(batch) || wh_batch_add(batch, &back, 1) || batch_run(batch))
		return "read";
	return pattern_check(sink, length, at, round) == PATTERN_GOOD ? NULL : "wrong bytes";
}

static void *worker_thread(void *arg)
{
	struct worker *me = arg;
	struct wh_batch_options options = { .size = sizeof(options),
					    .priority = (uint32_t)me->number % 2 };
	struct wh_batch *batch;

	if (wh_batch_new(me->f->peer, &options, &batch)) {
		me->wrong = "new";
		return NULL;
	}
	for (uint64_t round = 0; !me->wrong && round < SCALE(200, 30); round++)
		me->wrong = run_random_batch(me->f, batch, me->number, round);
	if (wh_batch_free(batch))
		me->wrong = "free";
	return NULL;
}

static void threads__one_peer(void **state)
{
	/* One connection reads back what another has written. The order is known to the test, not
	 * to the target's threads: see hidden_begin(). */
	struct child_options options = { .config = { HARNESS_TURNS ? "threads=1" : NULL } };
	struct worker workers[THREADS];
	struct fixture f;

	fixture_open_with(&f, *state, THREADS * PART, NULL, &options);
	for (uint64_t i = 0; i < THREADS; i++) {
		workers[i] = (struct worker){ .f = &f, .number = i };
		pthread_create(&workers[i].thread, NULL, worker_thread, &workers[i]);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(workers[i].thread, NULL);
	for (int i = 0; i < THREADS; i++)
		want_true(!workers[i].wrong, "thread %d: %s", i, workers[i].wrong);
	fixture_close(&f);
}

struct timed {
	pthread_t thread;
	const struct fixture *f;
	uint64_t number;
	int error, slow;
};

static void *timed_waiter(void *arg)
{
	struct timed *me = arg;
	struct wh_batch_options options = { .size = sizeof(options),
					    .priority = (uint32_t)me->number % 2 };
	struct wh_transfer transfer =
		transfer_of(me->f, WH_READ, me->number * PART, me->number * PART, PART / 2);
	struct wh_batch *batch;

	me->error = wh_batch_new(me->f->peer, &options, &batch);
	if (!me->error)
		me->error = wh_batch_add(batch, &transfer, 1);
	for (int i = 0; i < 100 && !me->error; i++) {
		int64_t before = now();

		me->error = batch_run(batch);
		me->slow += now() - before > 40 * MS;
	}
	wh_batch_free(batch);
	return NULL;
}

/* A waiter learns of its completion at once, even if another thread has received the answer: of 800
 * small reads hardly any takes as long as a time-out. */
static void threads__nobody_overlooked(void **state)
{
	struct timed timers[THREADS];
	struct fixture f;
	int slow = THREADS * 100;

	fixture_open(&f, *state, THREADS * PART);
	/* On a busy machine the scheduler alone may take so long, but not three times in a row. */
	for (int attempt = 0; attempt < 3 && slow > SCALE(16, 100); attempt++) {
		slow = 0;
		for (uint64_t i = 0; i < THREADS; i++) {
			timers[i] = (struct timed){ .f = &f, .number = i };
			pthread_create(&timers[i].thread, NULL, timed_waiter, &timers[i]);
		}
		for (int i = 0; i < THREADS; i++) {
			pthread_join(timers[i].thread, NULL);
			want(0, timers[i].error);
			slow += timers[i].slow;
		}
	}
	want_true(slow <= SCALE(16, 100), "%d of %d took more than 40 ms", slow, THREADS * 100);
	fixture_close(&f);
}

struct poller {
	pthread_t thread;
	const struct fixture *f;
	atomic_bool stop;
	int error;
};

static void *poller_thread(void *arg)
{
	struct poller *me = arg;
	struct wh_transfer transfer = transfer_of(me->f, WH_READ, 0, 0, 8);
	struct wh_batch *batch = NULL;

	me->error = wh_batch_new(me->f->peer, NULL, &batch);
	if (!me->error)
		me->error = wh_batch_add(batch, &transfer, 1);
	while (!me->stop && !me->error) {
		me->error = wh_batch_submit(batch);
		while (!me->error && batch_now(batch) == -EAGAIN)
			;
	}
	wh_batch_free(batch);
	return NULL;
}

/* One thread polls and another waits on the same connection. The poller may receive the waiter's
 * answers, and must wake it. */
static void threads__poller_beside_waiter(void **state)
{
	static const char *const config[] = { "connections=1", NULL };
	struct poller other = { .error = 0 };
	struct timed me = { .number = 2 };
	struct fixture f;
	int slow = 100;

	fixture_open_with(&f, *state, THREADS * PART, config, NULL);
	other.f = me.f = &f;
	pthread_create(&other.thread, NULL, poller_thread, &other);
	for (int attempt = 0; attempt < 3 && slow > SCALE(4, 30); attempt++) {
		me.slow = 0;
		timed_waiter(&me);
		slow = me.slow;
	}
	other.stop = true;
	pthread_join(other.thread, NULL);
	want(0, me.error);
	want(0, other.error);
	want_true(slow <= SCALE(4, 30), "%d of 100 took more than 40 ms", slow);
	fixture_close(&f);
}

struct opener {
	pthread_t thread;
	struct wh_engine *engine;
	const char *url;
	int error;
};

static void *open_and_close(void *arg)
{
	struct opener *me = arg;

	for (int i = 0; !me->error && i < SCALE(10, 3); i++) {
		struct wh_peer *peer;
		struct wh_remote remote;

		me->error = wh_peer_open(me->engine, me->url, NULL, &peer);
		if (me->error)
			break;
		me->error = wh_peer_find(peer, "target", WH_ANSWER, &remote);
		if (!me->error)
			me->error = wh_peer_close(peer);
	}
	return NULL;
}

/* Several threads open and close peers of one engine. */
static void threads__open_peers(void **state)
{
	struct opener openers[THREADS];
	struct fixture f;

	fixture_open(&f, *state, MIB);
	for (int i = 0; i < THREADS; i++) {
		openers[i] = (struct opener){ .engine = f.engine, .url = f.child->url };
		pthread_create(&openers[i].thread, NULL, open_and_close, &openers[i]);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(openers[i].thread, NULL);
	for (int i = 0; i < THREADS; i++)
		want(0, openers[i].error);
	want(0, move(&f, WH_WRITE, 0, 0, MIB));
	fixture_close(&f);
}

/* ---- very many regions ------------------------------------------------- */

static void regions__hundred_thousand(void **state)
{
	const uint64_t count = 100000, length = 16;
	struct wh_engine *engine = engine_open("tcp", "none", NULL);
	struct child *child = child_start(NULL);
	struct wh_peer_info info = { .size = sizeof(info) };
	struct wh_remote remote;
	struct proxy *proxy;
	struct wh_peer *peer;
	uint64_t cursor = 0, seen = 0, sum = 0, address, offset;
	struct wh_remote page[1000];
	size_t listed;
	int memory = child_memory(child, WH_MEMORY_SHARED, count * length);
	int64_t start;

	(void)state;
	child_regions(child, memory, length, count, "the.last-one");
	address = child_address(child, memory);
	proxy = proxy_start(child->url);
	assert_non_null(proxy);
	start = quiet_now();
	want(0, wh_peer_open(engine, proxy_url(proxy), NULL, &peer));
	want_true(quiet_now() - start < SCALE(1, 10) * SECOND, "it took %lld ms to connect",
		  (long long)((quiet_now() - start) / MS));
	want(0, wh_peer_info(peer, &info));
	want(0, info.regions);
	want_true(proxy_bytes(proxy) <= 4096, "%llu bytes on the wire",
		  (unsigned long long)proxy_bytes(proxy));
	want(0, wh_peer_find(peer, "the.last-one", WH_ANSWER, &remote));
	want(address + (count - 1) * length, remote.address);
	do {
		listed = sizeof(page) / sizeof(page[0]);
		want(0, wh_peer_list(peer, &cursor, page, &listed, WH_ANSWER));
		for (size_t i = 0; i < listed; i++) {
			want(length, page[i].length);
			sum += (page[i].address - address) / length;
		}
		seen += listed;
	} while (cursor);
	want(count, seen);
	want_true(proxy_bytes(proxy) <= count * 64, "%llu bytes on the wire",
		  (unsigned long long)proxy_bytes(proxy));
	want(0, wh_peer_info(peer, &info));
	want(count, info.regions);
	want(count * (count - 1) / 2, sum);
	start = quiet_now();
	for (uint64_t i = 0; i < 1000; i++) {
		uint64_t at = address + i * 97 * length;

		want(0, wh_peer_lookup(peer, at + 3, length - 3, WH_ANSWER, &remote, &offset));
		want(at, remote.address);
		want(3, offset);
	}
	want_true(quiet_now() - start < SCALE(1, 10) * SECOND, "1,000 look-ups took %lld ms",
		  (long long)((quiet_now() - start) / MS));
	want(-ENOENT, wh_peer_lookup(peer, address + 1, length, WH_ANSWER, &remote, &offset));
	want(0, wh_peer_close(peer));
	proxy_stop(proxy);
	child_exit(child);
	want(0, wh_engine_close(engine));
}

/* ---- registering and unregistering ------------------------------------- */

static void want_gone(struct fixture *f, const char *name)
{
	struct wh_remote remote;
	int64_t end = now() + PATIENCE;
	int error;

	while ((error = wh_peer_find(f->peer, name, WH_ANSWER, &remote)) == 0 && now() < end)
		sleep_ms(1);
	want(-ENOENT, error);
}

static void regions__come_and_go(void **state)
{
	uint64_t id, before[SCALE(30, 10)];
	struct wh_remote remote;
	struct fixture f;
	char name[32];

	fixture_open(&f, *state, MIB);
	want(-ENOENT, wh_peer_find(f.peer, "coming", WH_ANSWER, &remote));
	want(-ENOENT, wh_peer_find(f.peer, "coming", 20 * MS, &remote));
	for (int i = 0; i < SCALE(30, 10); i++) {
		struct wh_transfer transfer = transfer_of(&f, WH_WRITE, 0, 0, 4096);
		struct wh_batch *batch;
		int region;

		snprintf(name, sizeof(name), "coming.%d", i % 2);
		region = child_region(f.child, f.memory, f.guard + 8192, 4096, name, ACCESS_BOTH,
				      &id);
		before[i] = id;
		for (int j = 0; j < i; j++)
			want_true(id != before[j], "the id %llu was used before",
				  (unsigned long long)id);
		want(0, wh_peer_find(f.peer, name, PATIENCE, &remote));
		want(id, remote.id);
		want(4096, remote.length);
		assert_string_equal(remote.name, name);
		pattern_fill(f.local, 4096, 0, (uint64_t)i);
		transfer.remote = id;
		batch = batch_of(&f, &transfer, 1);
		want(0, batch_run(batch));
		want(0, wh_batch_free(batch));
		want_true(target_check(&f, 8192, 4096, 0, (uint64_t)i) == PATTERN_GOOD, "bytes");
		want(0, child_unregister(f.child, region));
		want_gone(&f, name);
	}
	want(0, wh_peer_find(f.peer, "target", WH_ANSWER, &remote));
	fixture_close(&f);
}

/* Unregister during a large transfer: afterwards no peer touches the region, and the transfer fails
 * cleanly. */
static void regions__gone_in_mid_transfer(void **state)
{
	enum { TIMES = HARNESS_TURNS ? 1 : 64 };
	struct wh_transfer transfers[TIMES];
	struct wh_remote remote;
	struct wh_batch *batch;
	struct fixture f;
	const uint64_t length = 16 * MIB;

	fixture_open(&f, *state, length);
	for (int round = 0; round < 4; round++) {
		int status, region;

		region = child_region(f.child, f.memory, f.guard, length, "going", ACCESS_BOTH,
				      NULL);
		want(0, wh_peer_find(f.peer, "going", PATIENCE, &remote));
		for (int i = 0; i < TIMES; i++) {
			transfers[i] = transfer_of(&f, WH_WRITE, 0, 0, length);
			transfers[i].remote = remote.id;
		}
		batch = batch_of(&f, transfers, TIMES);
		want(0, wh_batch_submit(batch));
		sleep_ms(5);
		want(0, child_unregister(f.child, region));
		target_fill(&f, 0, length, 0, 77);
		sleep_ms(50);
		want_true(target_check(&f, 0, length, 0, 77) == PATTERN_GOOD,
			  "round %d: it was written after it was unregistered", round);
		status = batch_end(batch, PATIENCE);
		want_true(status == 0 || status == -ESTALE || status == -ENOENT,
			  "round %d: it is %d: %s", round, status, wh_batch_error_text(batch));
		want(0, wh_batch_free(batch));
	}
	want(0, move(&f, WH_WRITE, 0, 0, 4096));
	fixture_close(&f);
}

static void lookup__smallest(void **state)
{
	struct wh_remote remote;
	struct fixture f;
	uint64_t id, address, offset;

	fixture_open(&f, *state, MIB);
	child_region(f.child, f.memory, f.guard + 1000, 1000, "inner", ACCESS_BOTH, &id);
	want(0, wh_peer_find(f.peer, "inner", PATIENCE, &remote));
	address = remote.address;
	want(child_address(f.child, f.memory) + f.guard + 1000, address);
	want(0, wh_peer_lookup(f.peer, address, 1000, WH_ANSWER, &remote, &offset));
	want(id, remote.id);
	want(0, offset);
	want(0, wh_peer_lookup(f.peer, address + 999, 1, WH_ANSWER, &remote, &offset));
	want(id, remote.id);
	want(999, offset);
	want(0, wh_peer_lookup(f.peer, address, 1001, WH_ANSWER, &remote, &offset));
	want(f.remote.id, remote.id);
	want(1000, offset);
	want(-ENOENT, wh_peer_lookup(f.peer, address - 1001, 1, WH_ANSWER, &remote, &offset));
	want(-ENOENT, wh_peer_lookup(f.peer, address, MIB, WH_ANSWER, &remote, &offset));
	want(-ENOENT, wh_peer_lookup(f.peer, address, UINT64_MAX, WH_ANSWER, &remote, &offset));
	fixture_close(&f);
}

static void lookup__our_own(void **state)
{
	struct wh_region *inner, *region;
	struct fixture f;
	uint64_t offset;

	fixture_open(&f, *state, MIB);
	want(0, wh_region_register(f.engine, f.local + 100, 50, NULL, &inner));
	want_true(wh_region_id(inner) != wh_region_id(f.region), "the same id");
	want(0, wh_region_lookup(f.engine, f.local + 120, 30, &region, &offset));
	want_true(region == inner, "not the smallest");
	want(20, offset);
	want(0, wh_region_lookup(f.engine, f.local + 120, 31, &region, &offset));
	want_true(region == f.region, "not the one that holds it");
	want(120, offset);
	want(-ENOENT, wh_region_lookup(f.engine, f.local - 1, 2, &region, &offset));
	want(0, wh_region_unregister(inner));
	want(0, wh_region_lookup(f.engine, f.local + 120, 30, &region, &offset));
	want_true(region == f.region, "one that has been unregistered");
	fixture_close(&f);
}

/* ---- keys -------------------------------------------------------------- */

static void key__import(void **state)
{
	unsigned char key[WH_KEY_MAX], other[WH_KEY_MAX];
	size_t length = sizeof(key), other_length = sizeof(other), small = 3;
	struct wh_remote remote;
	struct wh_region_options open = { .size = sizeof(open), .access = ACCESS_BOTH };
	struct wh_region *ours;
	struct fixture f;
	int region, memory;
	uint64_t id;

	fixture_open(&f, *state, MIB);
	region = child_region(f.child, f.memory, f.guard, 5000, "exported", WH_ACCESS_READ, &id);
	want(0, child_key(f.child, region, key, &length));
	want_true(length > 0 && length <= WH_KEY_MAX, "%zu bytes", length);
	want(0, wh_peer_unpack_key(f.peer, key, length, PATIENCE, &remote));
	want(id, remote.id);
	want(5000, remote.length);
	want(WH_ACCESS_READ, remote.access);
	assert_string_equal(remote.name, "exported");

	for (size_t cut = 0; cut < length; cut++)
		want(-EINVAL, wh_peer_unpack_key(f.peer, key, cut, WH_ANSWER, &remote));
	memset(other, 0xff, sizeof(other));
	want_true(wh_peer_unpack_key(f.peer, other, sizeof(other), WH_ANSWER, &remote) < 0,
		  "garbage");
	memset(other, 0, sizeof(other));
	want(-EINVAL, wh_peer_unpack_key(f.peer, other, sizeof(other), WH_ANSWER, &remote));
	/* The first byte is the key's version. */
	memcpy(other, key, length);
	other[0]++;
	want(-EPROTONOSUPPORT, wh_peer_unpack_key(f.peer, other, length, WH_ANSWER, &remote));

	/* A key of another engine (ours). */
	want_text(-EINVAL, "access 0", wh_region_pack_key(f.region, other, &other_length));
	want(0, wh_region_register(f.engine, f.local, 1, &open, &ours));
	want(-ENOSPC, wh_region_pack_key(ours, other, &small));
	want(0, wh_region_pack_key(ours, other, &other_length));
	want(0, wh_region_unregister(ours));
	want(-ESTALE, wh_peer_unpack_key(f.peer, other, other_length, WH_ANSWER, &remote));

	/* A region that is gone, and one that is published only during the wait. */
	want(0, child_unregister(f.child, region));
	want_gone(&f, "exported");
	want(-ENOENT, wh_peer_unpack_key(f.peer, key, length, WH_ANSWER, &remote));
	memory = child_memory(f.child, WH_MEMORY_SHARED, 5000);
	length = sizeof(key);
	region = child_region(f.child, memory, 0, 5000, NULL, ACCESS_BOTH, &id);
	want(0, child_key(f.child, region, key, &length));
	want(0, wh_peer_unpack_key(f.peer, key, length, PATIENCE, &remote));
	want(id, remote.id);
	assert_string_equal(remote.name, "");
	fixture_close(&f);
}

static const struct CMUnitTest tests[] = {
	TEST_REMOTE_ROUTES(mesh__two_processes),
	TEST_REMOTE_ROUTES(mesh__eight_processes),
	TEST_EVERY_ROUTE(threads__one_peer),
	TEST_EVERY_ROUTE(threads__nobody_overlooked),
	TEST_EVERY_ROUTE(threads__poller_beside_waiter),
	TEST_OVER(threads__open_peers, shm),
	TEST_OVER(threads__open_peers, tcp4),
	TEST(regions__hundred_thousand),
	TEST_REMOTE_ROUTES(regions__come_and_go),
	TEST_REMOTE_ROUTES(regions__gone_in_mid_transfer),
	TEST_OVER(lookup__smallest, tcp4),
	TEST_OVER(lookup__our_own, tcp4),
	TEST_OVER(key__import, tcp4),
};

HARNESS_MAIN("peer-many", tests)
