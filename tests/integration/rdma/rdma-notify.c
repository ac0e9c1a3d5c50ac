/* SPDX-License-Identifier: Apache-2.0 */
/* rdma-notify.c: notifications by RDMA write with immediate
 *
 * Each arrives once and after its bytes, and its bytes are not written again afterwards, even if
 * queue pairs, NICs or peers fail meanwhile. Without a receive ring it goes over the control
 * connection. With the fake libibverbs; in the lab the cases named __rdma also run with real
 * packets. */
#include <pthread.h>
#include <stdatomic.h>

#include "lib/nics.h"
#include "lib/proxy.h"

#define LENGTH (4 * MIB)
#define WINDOW 16 /* at most so many are in flight */
#define BEHIND "notification: by rdma, right behind the bytes\n"
#define AFTER "notification: by rdma\n"
#define CONTROL "notification: over the control connection\n"

static const char *const ways[] = { "transports=rdma,tcp", "timeout=5000", NULL };
static const struct child_options same = { .config = { "transports=rdma,tcp", "timeout=10000" } };
static const struct child_options small = { .config = { "transports=rdma,tcp", "timeout=10000",
							"notifications=2" } };

static struct note got;

static void want_none(struct fixture *f)
{
	want(-EAGAIN, child_notification(f->child, 30 * MS, &got));
}

/* The next notification must carry this number. */
static void want_number(struct fixture *f, uint32_t number)
{
	uint32_t came = 0;

	want(0, child_notification(f->child, PATIENCE, &got));
	want(sizeof(came), got.length);
	memcpy(&came, got.data, sizeof(came));
	want(number, came);
}

static void batch_number(struct wh_batch *batch, uint32_t number)
{
	want(0, wh_batch_notify(batch, 0, &number, sizeof(number)));
}

static struct wh_batch *numbered_at(struct fixture *f, uint32_t op, uint64_t at, uint64_t length,
				    uint32_t which)
{
	struct wh_transfer transfer = transfer_of(f, op, at, at, length);
	struct wh_batch *batch = batch_of(f, &transfer, length ? 1 : 0);

	batch_number(batch, which);
	return batch;
}

static struct wh_batch *batch_numbered(struct fixture *f, uint32_t op, uint64_t length,
				       uint32_t which)
{
	return numbered_at(f, op, 0, length, which);
}

/* Run a small write with a notification until it goes this way. */
static void run_until(struct fixture *f, const char *way)
{
	struct wh_batch *batch = batch_numbered(f, WH_WRITE, 64, 0);
	int64_t end = now() + 2 * PATIENCE;

	do {
		want_true(now() < end, "never:\n%s", explained(batch));
		want(0, batch_run(batch));
		want_number(f, 0);
	} while (!strstr(explained(batch), way));
	want(0, wh_batch_free(batch));
}

static void open_with(struct fixture *f, const struct child_options *options)
{
	fixture_open_with(f, &needs_nics, LENGTH, ways, options);
	run_until(f, BEHIND);
}

static void want_no_underrun(void)
{
	want_true(!nics_underruns(), "%llu notifications found no receive",
		  (unsigned long long)nics_underruns());
}

/* ---- as it should be ------------------------------------------------------------------------- */

/* Bytes and notification take one doorbell and one completion, and nothing goes to the owner over
 * TCP. */
static void costs__of_a_small_write(void **state)
{
	enum { ROUNDS = 50 };
	struct nics_counts before, after;
	struct proxy *proxy;
	struct wh_batch *batch;
	struct fixture f;
	uint64_t passed;

	(void)state;
	open_with(&f, &same);
	want(0, wh_peer_close(f.peer));
	proxy = proxy_start(f.child->url);
	assert_non_null(proxy);
	fixture_connect(&f, proxy_url(proxy));
	run_until(&f, BEHIND);
	batch = batch_numbered(&f, WH_WRITE, 64, 1);
	passed = proxy_bytes(proxy);
	before = nics_counts();
	for (unsigned i = 0; i < ROUNDS; i++) {
		want(0, batch_run(batch));
		want_number(&f, 1);
	}
	after = nics_counts();
	passed = proxy_bytes(proxy) - passed;
	want_explained(batch, BEHIND);
	want(2 * ROUNDS, after.requests - before.requests);
	want(ROUNDS, after.doorbells - before.doorbells);
	want(ROUNDS, after.completions - before.completions);
	/* Confirmations, and pings there and back. NOTIFY frames would more than double it. */
	want_true(passed >= ROUNDS * 16ULL && passed < ROUNDS * 24ULL, "%llu bytes by TCP",
		  (unsigned long long)passed);
	want(0, wh_batch_free(batch));
	fixture_close(&f);
	proxy_stop(proxy);
	want_no_underrun();
}

/* More notifications than may be in flight, each after bytes that nobody has waited for. */
static void many__at_once(void **state)
{
	enum { BATCHES = 3 * WINDOW, EACH = 64 * KIB };
	struct wh_batch *batches[BATCHES];
	bool came[BATCHES];
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	for (uint32_t i = 0; i < BATCHES; i++) {
		struct wh_transfer transfer = transfer_of(&f, WH_WRITE, i * EACH, i * EACH, EACH);

		batches[i] = batch_of(&f, &transfer, 1);
		batch_number(batches[i], i);
	}
	for (uint64_t round = 1; round <= SCALE(6, 3); round++) {
		memset(came, 0, sizeof(came));
		for (uint32_t i = 0; i < BATCHES; i++) {
			pattern_fill(f.local + i * EACH, EACH, 0, round + i);
			want(0, wh_batch_submit(batches[i]));
		}
		for (uint32_t i = 0; i < BATCHES; i++) {
			uint32_t which = BATCHES;

			want(0, child_notification(f.child, PATIENCE, &got));
			memcpy(&which, got.data, sizeof(which));
			want_true(which < BATCHES && !came[which], "number %u came again", which);
			came[which] = true;
			want_true(target_check(&f, which * EACH, EACH, 0, round + which) ==
					  PATTERN_GOOD,
				  "number %u came before its bytes", which);
		}
		for (uint32_t i = 0; i < BATCHES; i++)
			want(0, batch_end(batches[i], PATIENCE));
	}
	want_none(&f);
	want_explained(batches[0], "notification: by rdma");
	for (uint32_t i = 0; i < BATCHES; i++)
		want(0, wh_batch_free(batches[i]));
	fixture_close(&f);
	if (!getenv("TEST_RDMA"))
		want_no_underrun();
}

/* Notifications without bytes arrive in the order of submission, even if most have to wait. */
static void many__in_order(void **state)
{
	enum { BATCHES = 5 * WINDOW };
	struct wh_batch *batches[BATCHES];
	unsigned by_nic = 0;
	struct fixture f;

	fixture_open_with(&f, *state, LENGTH, ways, &small);
	run_until(&f, "notification: by rdma");
	for (uint32_t i = 0; i < BATCHES; i++)
		batches[i] = batch_numbered(&f, WH_WRITE, 0, i);
	for (uint32_t i = 0; i < BATCHES; i++)
		want(0, wh_batch_submit(batches[i]));
	for (uint32_t i = 0; i < BATCHES; i++)
		want_number(&f, i);
	for (uint32_t i = 0; i < BATCHES; i++) {
		want(0, batch_end(batches[i], PATIENCE));
		by_nic += strstr(explained(batches[i]), AFTER) != NULL;
		want(0, wh_batch_free(batches[i]));
	}
	/* While our NIC reports completions late, the next notification finds no free slot: how
	 * many go by the NIC is luck, but for the first ones. */
	want_true(by_nic > 0, "none of %u went by NIC", (unsigned)BATCHES);
	want_none(&f);
	fixture_close(&f);
	if (!getenv("TEST_RDMA"))
		want_no_underrun();
}

/* A notification follows a read. */
static void after__a_read(void **state)
{
	struct wh_batch *batch;
	struct fixture f;

	(void)state;
	open_with(&f, &same);
	target_fill(&f, 0, LENGTH, 0, 5);
	batch = batch_numbered(&f, WH_READ, LENGTH, 7);
	want(0, wh_batch_submit(batch));
	want_number(&f, 7);
	target_fill(&f, 0, LENGTH, 0, 6);
	want(0, batch_end(batch, PATIENCE));
	want_true(pattern_check(f.local, LENGTH, 0, 5) == PATTERN_GOOD,
		  "it came before the bytes were read");
	want_explained(batch, AFTER);
	want(0, wh_batch_free(batch));
	fixture_close(&f);
	want_no_underrun();
}

/* Bytes that have to be flushed are flushed before the notification. */
static void after__a_flush(void **state)
{
	struct wh_batch *batch;
	struct fixture f;

	setenv("FAKE_CUDA_ATTRIBUTES", "118=0", 1); /* GPUs that do not order what NICs write */
	fixture_open_with(&f, *state, LENGTH, ways, &same);
	unsetenv("FAKE_CUDA_ATTRIBUTES");
	run_until(&f, AFTER);
	batch = batch_numbered(&f, WH_WRITE, 64, 9);
	for (uint64_t round = 1; round <= 10; round++) {
		pattern_fill(f.local, 64, 0, round);
		want(0, wh_batch_submit(batch));
		want_number(&f, 9);
		want_true(target_check(&f, 0, 64, 0, round) == PATTERN_GOOD,
			  "it came before the bytes");
		want(0, batch_end(batch, PATIENCE));
		want_explained(batch, "flushed");
		want_explained(batch, AFTER);
	}
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* A slot has room for 4,096 bytes; what is longer goes over the control connection. */
static void length__of_a_slot(void **state)
{
	static const size_t lengths[] = { 4096, 4097, 0, WH_NOTIFICATION_MAX, 1 };
	static unsigned char bytes[WH_NOTIFICATION_MAX];
	struct wh_batch *batch;
	struct fixture f;

	(void)state;
	fixture_open_with(&f, &needs_nics, LENGTH, ways, &same);
	run_until(&f, BEHIND);
	batch = batch_numbered(&f, WH_WRITE, 64, 0);
	for (unsigned i = 0; i < 5; i++) {
		pattern_fill(bytes, sizeof(bytes), 0, i);
		want(0, wh_batch_notify(batch, ~(uint64_t)i, bytes, lengths[i]));
		want(0, batch_run(batch));
		want_explained(batch, lengths[i] > 4096 ? CONTROL : BEHIND);
		want(0, child_notification(f.child, PATIENCE, &got));
		want(lengths[i], got.length);
		want(~(uint64_t)i, got.tag);
		assert_memory_equal(got.data, bytes, lengths[i]);
	}
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* ---- without a receive ring ------------------------------------------------------------------ */

static void without(const char *memlock)
{
	struct wh_batch *batch;
	struct fixture f;

	setenv("FAKE_VERBS_MEMLOCK", memlock, 1);
	fixture_open_with(&f, &needs_nics, LENGTH, ways, &same);
	unsetenv("FAKE_VERBS_MEMLOCK"); /* the target's region */
	batch = batch_numbered(&f, WH_WRITE, 64, 3);
	for (unsigned i = 0; i < 20; i++) {
		want(0, batch_run(batch));
		want_number(&f, 3);
		want_by(batch, "rdma", 64);
		want_explained(batch, CONTROL);
	}
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* The owner can pin the region but not the receive ring. */
static void refused__by_the_owner(void **state)
{
	char most[32];

	(void)state;
	snprintf(most, sizeof(most), "%llu", LENGTH + 65536);
	without(most);
}

/* Our NIC refuses the memory that notifications are sent from: inlined ones need none. */
static void refused__by_our_nic(void **state)
{
	unsigned char most[4096];
	struct wh_batch *batch;
	struct fixture f;

	(void)state;
	fixture_open_with(&f, &needs_nics, LENGTH, ways, &same);
	want(0, move(&f, WH_WRITE, 0, 0, 64)); /* the region is registered */
	nics_refuse(ENOMEM, 0);
	run_until(&f, BEHIND);
	pattern_fill(most, sizeof(most), 0, 1);
	batch = batch_numbered(&f, WH_WRITE, 64, 0);
	want(0, wh_batch_notify(batch, 0, most, sizeof(most)));
	want(0, batch_run(batch));
	want_explained(batch, CONTROL);
	want(0, child_notification(f.child, PATIENCE, &got));
	want(sizeof(most), got.length);
	assert_memory_equal(got.data, most, sizeof(most));
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* No notification by NIC overtakes one over the control connection. */
static void refused__in_order(void **state)
{
	static unsigned char most[4096];
	struct wh_batch *long_one, *short_one;
	struct proxy *proxy;
	struct fixture f;

	(void)state;
	fixture_open_with(&f, &needs_nics, LENGTH, ways, &same);
	want(0, wh_peer_close(f.peer));
	proxy = proxy_start(f.child->url);
	assert_non_null(proxy);
	fixture_connect(&f, proxy_url(proxy));
	want(0, move(&f, WH_WRITE, 0, 0, 64)); /* the region is registered */
	nics_refuse(ENOMEM, 0);
	run_until(&f, BEHIND);
	long_one = batch_of(&f, NULL, 0);
	want(0, wh_batch_notify(long_one, 0, most, sizeof(most)));
	short_one = batch_numbered(&f, WH_WRITE, 64, 5);
	proxy_freeze(proxy, true);
	want(0, wh_batch_submit(long_one));
	want(0, wh_batch_submit(short_one));
	want_none(&f);
	proxy_freeze(proxy, false);
	want(0, child_notification(f.child, PATIENCE, &got));
	want(sizeof(most), got.length);
	want_number(&f, 5);
	want(0, batch_end(long_one, PATIENCE));
	want(0, batch_end(short_one, PATIENCE));
	want_explained(long_one, CONTROL);
	want_explained(short_one, AFTER);
	want(0, wh_batch_free(long_one));
	want(0, wh_batch_free(short_one));
	fixture_close(&f);
	proxy_stop(proxy);
}

/* ---- what breaks ----------------------------------------------------------------------------- */

/* The queue pair breaks after `passed` of write and notification. `done`: the owner got the one
 * that our side sees fail. When the notification has arrived, the bytes have, and nobody writes
 * them again. */
static void notify_broken(bool done, unsigned passed)
{
	struct wh_batch *batch;
	struct fixture f;

	open_with(&f, &same);
	batch = batch_numbered(&f, WH_WRITE, 64 * KIB, 0);
	for (uint32_t round = 1; round <= 4; round++) {
		run_until(&f, BEHIND);
		batch_number(batch, round);
		pattern_fill(f.local, 64 * KIB, 0, round);
		if (done)
			nics_fail(12, passed);
		else
			nics_lose(12, passed);
		want(0, wh_batch_submit(batch));
		want_number(&f, round);
		want_true(target_check(&f, 0, 64 * KIB, 0, round) == PATTERN_GOOD,
			  "it came before the bytes");
		target_fill(&f, 0, 64 * KIB, 0, 1000 + round);
		want(0, batch_end(batch, PATIENCE));
		want_none(&f);
		want_true(target_check(&f, 0, 64 * KIB, 0, 1000 + round) == PATTERN_GOOD,
			  "bytes were written after the notification:\n%s", explained(batch));
	}
	want(0, wh_batch_free(batch));
	fixture_close(&f);
	want_no_underrun();
}

static void broken__before_the_bytes(void **state)
{
	(void)state;
	notify_broken(false, 0);
}

static void broken__between(void **state)
{
	(void)state;
	notify_broken(false, 1);
}

static void broken__unacknowledged_bytes(void **state)
{
	(void)state;
	notify_broken(true, 0);
}

static void broken__unacknowledged_notification(void **state)
{
	(void)state;
	notify_broken(true, 1);
}

/* The owner's receive ring is full, so that some notifications wait there, when the queue pair
 * breaks. */
static void broken__while_they_wait(void **state)
{
	enum { BATCHES = WINDOW + 4 };
	struct wh_batch *batches[BATCHES], *breaks;
	struct wh_transfer transfer;
	bool came[BATCHES];
	struct fixture f;

	(void)state;
	open_with(&f, &small);
	transfer = transfer_of(&f, WH_WRITE, 4096, 4096, 64);
	breaks = batch_of(&f, &transfer, 1);
	for (unsigned round = 0; round < 3; round++) {
		run_until(&f, BEHIND);
		for (uint32_t i = 0; i < BATCHES; i++) {
			batches[i] = batch_numbered(&f, WH_WRITE, i % 2 ? 64 : 0, i);
			want(0, wh_batch_submit(batches[i]));
			batch_end(batches[i], MS);
		}
		nics_fail(12, 0);
		want(0, batch_run(breaks));
		want_by(breaks, "tcp", 64);
		/* Each arrives once, and those without bytes in order. One whose bytes have to be
		 * written again may come after others. */
		memset(came, 0, sizeof(came));
		for (uint32_t i = 0, even = 0; i < BATCHES; i++) {
			uint32_t which = BATCHES;

			want(0, child_notification(f.child, PATIENCE, &got));
			memcpy(&which, got.data, sizeof(which));
			want_true(which < BATCHES && !came[which], "number %u came again", which);
			came[which] = true;
			if (which % 2)
				continue;
			want(even, which);
			even += 2;
		}
		for (uint32_t i = 0; i < BATCHES; i++) {
			want(0, batch_end(batches[i], PATIENCE));
			want(0, wh_batch_free(batches[i]));
		}
		want_none(&f);
	}
	want(0, wh_batch_free(breaks));
	fixture_close(&f);
	want_no_underrun();
}

/* A port goes down while nothing moves: nothing has arrived, and tcp moves everything. */
static void broken__by_its_port(void **state)
{
	struct wh_batch *batches[WINDOW + 4];
	struct fixture f;

	(void)state;
	open_with(&f, &same);
	for (uint32_t i = 0; i < WINDOW + 4; i++)
		/* over several connections in the end */
		batches[i] = numbered_at(&f, WH_WRITE, i * 64, 64, i);
	nics_hold(true);
	for (uint32_t i = 0; i < WINDOW + 4; i++)
		want(0, wh_batch_submit(batches[i]));
	want_none(&f);
	nic_port(0, false);
	nics_hold(false);
	for (uint32_t i = 0; i < WINDOW + 4; i++)
		want(0, child_notification(f.child, PATIENCE, &got));
	for (uint32_t i = 0; i < WINDOW + 4; i++) {
		want(0, batch_end(batches[i], PATIENCE));
		want_explained(batches[i], CONTROL);
		want_by(batches[i], "tcp", 64);
		want(0, wh_batch_free(batches[i]));
	}
	want_none(&f);
	nic_port(0, true);
	run_until(&f, BEHIND);
	fixture_close(&f);
}

/* A cancelled batch frees its slot, whether its notification arrives or not. */
static void cancelled__with_a_notification(void **state)
{
	struct wh_batch *batch, *last;
	struct fixture f;

	(void)state;
	open_with(&f, &same);
	batch = batch_numbered(&f, WH_WRITE, 64, 1);
	last = batch_numbered(&f, WH_WRITE, 64, 2);
	for (unsigned i = 0; i < WINDOW + 4; i++) {
		bool cut = i % 8 == 0;

		nics_hold(true);
		want(0, wh_batch_submit(batch));
		want(-EAGAIN, batch_end(batch, MS));
		if (!cut)
			nics_hold(false);
		want(0, wh_batch_cancel(batch));
		nics_hold(false);
		if (cut)
			want(-ECANCELED, batch_now(batch));
		/* What was sent before the cancel comes before what is sent now. */
		want(0, batch_run(last));
		do {
			want(0, child_notification(f.child, PATIENCE, &got));
			want_true(got.length == 4 && (got.data[0] == 1 || got.data[0] == 2),
				  "something else came");
		} while (got.data[0] != 2);
		run_until(&f, BEHIND);
	}
	want(0, wh_batch_free(batch));
	want(0, wh_batch_free(last));
	fixture_close(&f);
	want_no_underrun();
}

/* ---- who goes -------------------------------------------------------------------------------- */

static void lost__owner_killed(void **state)
{
	struct wh_batch *batches[WINDOW + 4];
	struct fixture f;

	(void)state;
	open_with(&f, &small);
	/* Some notifications wait in the owner's queue, some for room there, some here; the NIC has
	 * the rest. */
	for (uint32_t i = 0; i < WINDOW + 4; i++) {
		batches[i] = batch_numbered(&f, WH_WRITE, 64, i);
		if (i == WINDOW / 2)
			nics_hold(true);
		want(0, wh_batch_submit(batches[i]));
		if (i < WINDOW / 2)
			batch_end(batches[i], MS);
	}
	child_kill(f.child);
	f.child = NULL;
	nics_hold(false);
	for (uint32_t i = 0; i < WINDOW + 4; i++) {
		int status = batch_end(batches[i], 2 * PATIENCE);

		want_true(i < 2 ? status <= 0 : status < 0 && status != -EAGAIN, "number %u: %d", i,
			  status);
		want(0, wh_batch_free(batches[i]));
	}
	fixture_close_initiator(&f);
}

/* The control connection breaks and is restored, with a new receive ring. */
static void lost__and_again(void **state)
{
	struct wh_batch *batch, *waiting;
	struct proxy *proxy;
	struct fixture f;

	(void)state;
	open_with(&f, &small);
	want(0, wh_peer_close(f.peer));
	proxy = proxy_start(f.child->url);
	assert_non_null(proxy);
	fixture_connect(&f, proxy_url(proxy));
	run_until(&f, BEHIND);
	batch = batch_numbered(&f, WH_WRITE, 64, 1);
	waiting = batch_numbered(&f, WH_WRITE, 0, 2);
	want(0, batch_run(batch));
	want(0, batch_run(batch));
	/* it waits for room at the owner, as does another one */
	want(0, wh_batch_submit(waiting));
	want(-EAGAIN, batch_end(waiting, 20 * MS));
	want(0, wh_batch_submit(batch));
	want(-EAGAIN, batch_end(batch, 20 * MS));
	want(1, proxy_cut(proxy, PROXY_CONTROL));
	want_true(batch_end(waiting, PATIENCE) < 0, "it was confirmed by nobody");
	want_true(batch_end(batch, PATIENCE) < 0, "it was confirmed by nobody");
	want_number(&f, 1);
	want_number(&f, 1);
	want_none(&f); /* those that waited are gone with their session */
	for (unsigned i = 0; wh_batch_submit(batch); i++) {
		want_true(i < 500, "it is not connected again: %s", wh_error_text());
		sleep_ms(20);
	}
	want(0, batch_end(batch, PATIENCE));
	want_number(&f, 1);
	run_until(&f, BEHIND);
	want(0, wh_batch_free(waiting));
	want(0, wh_batch_free(batch));
	fixture_close(&f);
	proxy_stop(proxy);
	want_no_underrun();
}

/* ---- several at work ------------------------------------------------------------------------- */

enum { THREADS = 4, EACH = 3, ROUNDS = 40 };

static _Atomic bool stopped;

struct sender {
	pthread_t thread;
	struct fixture *f;
	uint32_t first;
};

/* Send many batches at once, each with a new number every time. */
static void *send_many(void *argument)
{
	struct sender *sender = argument;
	struct wh_batch *batches[EACH];

	for (uint32_t i = 0; i < EACH; i++) {
		/* Bytes that no other thread writes. */
		uint64_t at = (sender->first * EACH + i) * 256;
		struct wh_transfer transfer =
			transfer_of(sender->f, i % 2 ? WH_READ : WH_WRITE, at, at, 256);

		batches[i] = batch_of(sender->f, &transfer, i != 2);
	}
	for (uint32_t round = 0; round < SCALE(ROUNDS, ROUNDS / 3); round++) {
		for (uint32_t i = 0; i < EACH; i++) {
			batch_number(batches[i], sender->first + round * EACH + i);
			want(0, wh_batch_submit(batches[i]));
		}
		for (uint32_t i = 0; i < EACH; i++)
			want(0, batch_end(batches[i], 2 * PATIENCE));
	}
	for (uint32_t i = 0; i < EACH; i++)
		want(0, wh_batch_free(batches[i]));
	return NULL;
}

static void *break_often(void *argument)
{
	(void)argument;
	for (unsigned i = 0; !atomic_load(&stopped); i++) {
		if (i % 2)
			nics_fail(12, i % 5);
		else
			nics_lose(12, i % 5);
		sleep_ms(30);
	}
	nics_fail(0, 0);
	return NULL;
}

/* Queue pairs break all the time: each notification arrives, and arrives once. */
static void stress__threads(void **state)
{
	uint32_t all = THREADS * EACH * SCALE(ROUNDS, ROUNDS / 3), which;
	struct sender senders[THREADS];
	bool *came = calloc(all, 1);
	pthread_t breaker;
	struct fixture f;

	(void)state;
	assert_non_null(came);
	atomic_store(&stopped, false);
	open_with(&f, &same);
	want(0, pthread_create(&breaker, NULL, break_often, NULL));
	for (uint32_t i = 0; i < THREADS; i++) {
		senders[i] = (struct sender){ .f = &f, .first = i * all / THREADS };
		want(0, pthread_create(&senders[i].thread, NULL, send_many, &senders[i]));
	}
	for (uint32_t i = 0; i < all; i++) {
		want(0, child_notification(f.child, 2 * PATIENCE, &got));
		memcpy(&which, got.data, sizeof(which));
		want_true(which < all && !came[which], "number %u came again", which);
		came[which] = true;
	}
	for (uint32_t i = 0; i < THREADS; i++)
		want(0, pthread_join(senders[i].thread, NULL));
	atomic_store(&stopped, true);
	want(0, pthread_join(breaker, NULL));
	want_none(&f);
	run_until(&f, BEHIND);
	fixture_close(&f);
	free(came);
	want_no_underrun();
}

static const struct CMUnitTest tests[] = {
	TEST_OVER(many__at_once, rdma),
	TEST_OVER(many__in_order, rdma),
	TEST_NEEDS(costs__of_a_small_write, needs_nics),
	TEST_NEEDS(after__a_read, needs_nics),
	TEST_OVER(after__a_flush, gpu_rdma),
	TEST_NEEDS(refused__by_the_owner, needs_nics),
	TEST_NEEDS(length__of_a_slot, needs_nics),
	TEST_NEEDS(refused__by_our_nic, needs_nics),
	TEST_NEEDS(refused__in_order, needs_nics),
	TEST_NEEDS(broken__before_the_bytes, needs_nics),
	TEST_NEEDS(broken__between, needs_nics),
	TEST_NEEDS(broken__unacknowledged_bytes, needs_nics),
	TEST_NEEDS(broken__unacknowledged_notification, needs_nics),
	TEST_NEEDS(broken__while_they_wait, needs_nics),
	TEST_NEEDS(broken__by_its_port, needs_nics),
	TEST_NEEDS(cancelled__with_a_notification, needs_nics),
	TEST_NEEDS(lost__owner_killed, needs_nics),
	TEST_NEEDS(lost__and_again, needs_nics),
	TEST_NEEDS(stress__threads, needs_nics),
};

HARNESS_MAIN("rdma-notify", tests)
