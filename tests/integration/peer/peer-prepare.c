/* SPDX-License-Identifier: Apache-2.0 */
/* peer-prepare.c: wh_peer_prepare() does what the first submission would do otherwise */
#include <sys/resource.h>
#include <unistd.h>

#include "lib/fixture.h"

#define LENGTH (1 << 20)

static uint64_t connections(struct wh_engine *engine)
{
	struct wh_engine_counters counters = { .size = sizeof(counters) };

	want(0, wh_engine_counters(engine, &counters, NULL));
	return counters.connections;
}

static int prepare(struct fixture *f)
{
	return wh_peer_prepare(f->peer, &f->region, 1, &f->remote.id, 1, PATIENCE);
}

/* After it, no data connection is opened any more: neither for many bytes, nor for urgent ones. */
static void prepare__connections(void **state)
{
	struct wh_batch_options urgent = { .size = sizeof(urgent),
					   .priority = WH_PRIORITY_LATENCY };
	struct wh_batch *batch;
	struct fixture f;
	uint64_t opened;

	fixture_open(&f, *state, LENGTH);
	want(0, connections(f.engine));
	want(0, prepare(&f));
	opened = connections(f.engine);
	want_true(opened >= 2, "%llu connections", (unsigned long long)opened);
	want(0, prepare(&f));
	want(0, move(&f, WH_WRITE, 0, 0, LENGTH));
	want(0, move(&f, WH_READ, 0, 0, LENGTH));
	want(0, wh_batch_new(f.peer, &urgent, &batch));
	want(0, wh_batch_add(batch,
			     &(struct wh_transfer){ .local = f.region,
						    .remote = f.remote.id,
						    .length = 8,
						    .op = WH_WRITE },
			     1));
	want(0, batch_run(batch));
	want(0, wh_batch_free(batch));
	want(opened, connections(f.engine));
	fixture_close(&f);
}

/* It moves nothing: neither memory changes. */
static void prepare__moves_nothing(void **state)
{
	struct wh_counters counters = { .size = sizeof(counters) };
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	want(0, prepare(&f));
	want(0, wh_peer_counters(f.peer, &counters));
	want(0, counters.batches);
	for (unsigned int i = 0; i < counters.transports; i++)
		want(0, counters.transport[i].attempts);
	want(0, move(&f, WH_WRITE, 0, 0, 100));
	fixture_close(&f);
}

/* Page faults of this process while the first batch to a peer writes the whole region. */
static long faults_of_first(struct fixture *f)
{
	struct wh_transfer transfer = { .local = f->region, .length = 8 * MIB, .op = WH_WRITE };
	struct rusage before, after;
	struct wh_batch *batch;

	transfer.remote = f->remote.id;
	want(0, wh_batch_new(f->peer, NULL, &batch));
	want(0, wh_batch_add(batch, &transfer, 1));
	getrusage(RUSAGE_SELF, &before);
	want(0, batch_run(batch));
	getrusage(RUSAGE_SELF, &after);
	want(0, wh_batch_free(batch));
	return after.ru_minflt - before.ru_minflt;
}

/* A mapping's page table is filled beforehand. The kernel maps 16 pages with a fault, so that 8 MiB
 * take 128 faults; other memory and the sanitizers' have some in either case. */
static void prepare__page_table(void **state)
{
	struct fixture f;
	long faults, prepared;

	fixture_open(&f, *state, 8 * MIB);
	memset(f.local, 1, 8 * MIB);
	faults = faults_of_first(&f);
	want(0, wh_peer_close(f.peer));
	fixture_connect(&f, f.child->url);
	want(0, prepare(&f));
	prepared = faults_of_first(&f);
	want_true(prepared + 64 <= faults, "%ld page faults, %ld without preparing", prepared,
		  faults);
	fixture_close(&f);
}

/* A peer that does not answer: an error in time, and success later. */
static void prepare__stopped(void **state)
{
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	child_stop(f.child);
	want_text(-ETIMEDOUT, "does not answer in time",
		  wh_peer_prepare(f.peer, &f.region, 1, &f.remote.id, 1, 200 * MS));
	child_continue(f.child);
	want(0, prepare(&f));
	fixture_close(&f);
}

/* Connections that cannot be opened: the error says how many there are, and why no more. */
static void prepare__no_descriptors(void **state)
{
	const char *const few[] = { "connections=8", "timeout=2000", NULL };
	struct rlimit limit, lower;
	struct fixture f;
	int fd;

	fixture_open_with(&f, *state, LENGTH, few, NULL);
	want(0, getrlimit(RLIMIT_NOFILE, &limit));
	fd = dup(0);
	close(fd);
	lower = limit;
	lower.rlim_cur = (rlim_t)fd + 2;
	want(0, setrlimit(RLIMIT_NOFILE, &lower));
	want_text(-EHOSTUNREACH,
		  "2 of 9 data connections are open; another one cannot be opened: Too many open",
		  prepare(&f));
	want(0, setrlimit(RLIMIT_NOFILE, &limit));
	want(0, prepare(&f));
	fixture_close(&f);
}

static void prepare__arguments(void **state)
{
	uint64_t nobody = 12345;
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	want_text(-EINVAL, "peer", wh_peer_prepare(NULL, &f.region, 1, &f.remote.id, 1, 0));
	want_text(-EINVAL, "locals", wh_peer_prepare(f.peer, NULL, 1, &f.remote.id, 1, 0));
	want_text(-EINVAL, "remotes", wh_peer_prepare(f.peer, &f.region, 1, NULL, 1, 0));
	want_text(-EINVAL, "timeout", wh_peer_prepare(f.peer, &f.region, 1, &f.remote.id, 1, -1));
	want(-ENOENT, wh_peer_prepare(f.peer, &f.region, 1, &nobody, 1, PATIENCE));
	want(0, wh_peer_prepare(f.peer, &f.region, 0, &f.remote.id, 0, PATIENCE));
	child_exit(f.child);
	f.child = NULL;
	for (int64_t until = now() + PATIENCE; !wh_peer_status(f.peer) && now() < until;)
		sleep_ms(1);
	want(-ECONNRESET, prepare(&f));
	fixture_close(&f);
}

static const struct CMUnitTest tests[] = {
	TEST_OVER(prepare__connections, tcp4),      TEST_OVER(prepare__page_table, shm),
	TEST_REMOTE_ROUTES(prepare__moves_nothing), TEST_OVER(prepare__stopped, tcp4),
	TEST_OVER(prepare__no_descriptors, tcp4),   TEST_OVER(prepare__arguments, tcp4),
};

HARNESS_MAIN("peer-prepare", tests)
