/* SPDX-License-Identifier: Apache-2.0 */
/* prepare.c and probe.c: what is prepared and measured, by which transports, and what estimates say
 * afterwards */
#include "allocation.h"
#include "core-fake.h"
#include "core/plan.h"
#include "frozen-clock.h"
#include "util/loop.h"

#define START (1000 * WH_SECOND)
#define LEAST (64 << 10) /* bytes: shorter regions show no bandwidth */

/* ---- preparing ----------------------------------------------------------------------------- */

/* What the transports were given. */
static struct {
	unsigned calls, fragments;
	uint64_t bytes[2]; /* to read, to write */
	int64_t deadline;
} given;

static int on_prepare(struct wh_peer *peer, void *state, const struct wh_batch *batch,
		      int64_t deadline, char why[WH_REFUSAL])
{
	struct fake *fake = state;

	(void)peer;
	given.calls++;
	given.deadline = deadline;
	given.fragments += (unsigned)batch->fragment_count;
	for (size_t i = 0; i < batch->fragment_count; i++)
		given.bytes[batch->fragments[i].op == WH_WRITE] += batch->fragments[i].bytes;
	fake->prepared++;
	snprintf(why, WH_REFUSAL, "%s", fake->why ? fake->why : "");
	return fake->prepare_error;
}

static int prepare_setup(void **state)
{
	int error = fake_setup(state);

	for (unsigned i = 0; !error && i < FAKES; i++)
		fake_table(fake_order[i])->prepare = on_prepare;
	memset(&given, 0, sizeof(given));
	frozen_now = START;
	return error;
}

static int prepare_teardown(void **state)
{
	frozen_now = 0;
	return fake_teardown(state);
}

#define PREPARE_TEST(function)                                                                     \
	cmocka_unit_test_setup_teardown(function, prepare_setup, prepare_teardown)

/* What a call on the engine's loop returns. */
static int within;

static void prepare_within(void *argument)
{
	within = wh_peer_prepare(argument, &here, 1, (uint64_t[]){ 1 }, 1, 0);
}

static void prepare__arguments(void **state)
{
	const uint64_t id = wh_region_id(there);

	(void)state;
	assert_int_equal(wh_peer_prepare(NULL, &here, 1, &id, 1, 0), -EINVAL);
	said("wh_peer_prepare: peer is NULL");
	assert_int_equal(wh_peer_prepare(self, NULL, 1, &id, 1, 0), -EINVAL);
	said("wh_peer_prepare: locals is NULL");
	assert_int_equal(wh_peer_prepare(self, &here, 1, NULL, 1, 0), -EINVAL);
	said("wh_peer_prepare: remotes is NULL");
	assert_int_equal(wh_peer_prepare(self, &here, 1, &id, 1, -1), -EINVAL);
	said("timeout is negative");
	wh_loop_call(&engine->loops[0], prepare_within, self);
	assert_int_equal(within, -EDEADLK);
	atomic_store(&self->state, WH_PEER_STALE);
	assert_int_equal(wh_peer_prepare(self, &here, 1, &id, 1, 0), -ESTALE);
	atomic_store(&self->state, WH_PEER_CONNECTED);
	assert_int_equal(wh_peer_prepare(self, NULL, 0, &id, 1, 0), 0);
	assert_int_equal(wh_peer_prepare(self, &here, 1, &id, 0, 0), 0);
	assert_int_equal(given.calls, 0);
}

/* A byte in each direction, for every pair, by the transports that would move it; nothing moves. */
static void prepare__each_pair(void **state)
{
	const uint64_t ids[] = { wh_region_id(there), wh_region_id(here) };
	struct wh_region *locals[] = { here, there };

	(void)state;
	RDMA->only = wh_region_id(there);
	assert_int_equal(wh_peer_prepare(self, locals, 2, ids, 1, WH_SECOND), 0);
	assert_int_equal(given.calls, 1);
	assert_int_equal(RDMA->prepared, 1);
	assert_int_equal(given.bytes[0], 2);
	assert_int_equal(given.bytes[1], 2);
	assert_int_equal(given.deadline, START + WH_SECOND);
	assert_int_equal(wh_peer_prepare(self, locals, 2, ids, 2, WH_FOREVER), 0);
	assert_int_equal(RDMA->prepared, 2);
	assert_int_equal(SHM->prepared, 1);
	assert_int_equal(TCP->prepared, 0);
	assert_int_equal(given.bytes[0], 6);
	assert_int_equal(given.deadline, INT64_MAX);
	assert_int_equal(RDMA->submitted + SHM->submitted, 0);
	assert_int_equal(WH_BATCHES(atomic_load(&self->batches)), 0);
}

/* Only what the peer allows. */
static void prepare__rights(void **state)
{
	static const uint8_t access[] = { WH_ACCESS_READ, WH_ACCESS_WRITE,
					  WH_ACCESS_READ | WH_ACCESS_WRITE };
	struct wh_peer *peer = peer_new("far");

	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		const uint64_t id = PEER_REGION(i);

		peer_region(peer, i, 4096, access[i]);
		memset(&given, 0, sizeof(given));
		assert_int_equal(wh_peer_prepare(peer, &here, 1, &id, 1, 0), 0);
		assert_int_equal(given.bytes[0], !!(access[i] & WH_ACCESS_READ));
		assert_int_equal(given.bytes[1], !!(access[i] & WH_ACCESS_WRITE));
	}
	peer_drop(peer);
}

/* It reaches one of our regions alone. */
static int reaches_here(struct wh_peer *peer, void *state, const struct wh_region *local,
			struct wh_region_entry *remote, uint32_t op, char why[WH_REFUSAL])
{
	(void)peer;
	(void)state;
	(void)remote;
	(void)op;
	snprintf(why, WH_REFUSAL, "not this region");
	return local == here ? 0 : -EOPNOTSUPP;
}

/* The first error ends it, and says whose it is. */
static void prepare__fails(void **state)
{
	const uint64_t ids[] = { wh_region_id(there), wh_region_id(here) };
	const uint64_t none = wh_region_id(there) + 1;
	struct wh_region *locals[] = { here, there };

	(void)state;
	RDMA->prepare_error = -ETIMEDOUT;
	RDMA->why = "its queue pairs take long";
	assert_int_equal(wh_peer_prepare(self, &here, 1, ids, 2, 0), -ETIMEDOUT);
	said("wh_peer_prepare: rdma to alone: its queue pairs take long");
	assert_int_equal(given.calls, 1);
	/* Two transports for one region of the peer. */
	RDMA->prepare_error = 0;
	RDMA->prepared = 0;
	SHM->prepare_error = -EIO;
	fake_table(WH_TRANSPORT_RDMA)->is_reachable = reaches_here;
	assert_int_equal(wh_peer_prepare(self, locals, 2, ids, 1, 0), -EIO);
	assert_int_equal(RDMA->prepared, 0);
	SHM->prepare_error = 0;
	assert_int_equal(wh_peer_prepare(self, locals, 2, ids, 1, 0), 0);
	assert_int_equal(RDMA->prepared, 1);
	assert_int_equal(SHM->prepared, 2);
	fake_table(WH_TRANSPORT_RDMA)->is_reachable = fake_is_reachable;
	given.calls = 1;
	assert_int_equal(wh_peer_prepare(self, &here, 1, &none, 1, 0), -ENOENT);
	for (unsigned i = 0; i < FAKES; i++)
		fakes[fake_order[i]].reach = -EOPNOTSUPP;
	assert_int_equal(wh_peer_prepare(self, &here, 1, ids, 1, 0), -EOPNOTSUPP);
	said("no transport reaches");
	assert_int_equal(given.calls, 1);
	assert_int_equal(WH_BATCHES(atomic_load(&self->batches)), 0);
}

static void prepare__no_memory(void **state)
{
	const uint64_t id = wh_region_id(there);

	(void)state;
	assert_int_equal(WITHOUT_MEMORY(1, wh_peer_prepare(self, &here, 1, &id, 1, 0)), 0);
	assert_int_equal(WH_BATCHES(atomic_load(&self->batches)), 0);
}

/* ---- measuring ----------------------------------------------------------------------------- */

/* ns: of a batch, of each transfer, of each byte */
#define BATCH 5000
#define TRANSFER 70
#define BYTE 2

static uint64_t bytes_read, transfers_most;

/* Takes its time by the frozen clock, and moves nothing. */
static void on_submit(struct wh_peer *peer, void *state, struct wh_fragment *fragment)
{
	struct fake *fake = state;

	(void)peer;
	assert_int_equal(fragment->op, WH_READ);
	frozen_now +=
		BATCH + TRANSFER * (int64_t)fragment->transfers + BYTE * (int64_t)fragment->bytes;
	bytes_read += fragment->bytes;
	if (fragment->transfers > transfers_most)
		transfers_most = fragment->transfers;
	fake->submitted++;
	if (fake->error)
		wh_fragment_fail(fragment, UINT64_MAX, fake->error, "unreadable");
	wh_fragment_done(fragment);
}

static void can_be_measured(unsigned id)
{
	fake_table(id)->submit = on_submit;
	fake_table(id)->estimate = wh_probe_estimate;
}

static void measure_within(void *argument)
{
	within = wh_peer_measure(argument, here, 1);
}

static void measure__arguments(void **state)
{
	(void)state;
	assert_int_equal(wh_peer_measure(NULL, here, 1), -EINVAL);
	said("wh_peer_measure: peer is NULL");
	assert_int_equal(wh_peer_measure(self, NULL, 1), -EINVAL);
	said("wh_peer_measure: local is NULL");
	wh_loop_call(&engine->loops[0], measure_within, self);
	assert_int_equal(within, -EDEADLK);
	atomic_store(&self->state, WH_PEER_STALE);
	assert_int_equal(wh_peer_measure(self, here, wh_region_id(there)), -ESTALE);
	atomic_store(&self->state, WH_PEER_CONNECTED);
	assert_int_equal(wh_peer_measure(self, here, wh_region_id(there) + 1), -ENOENT);
	/* A transport that knows its costs is not disturbed. */
	assert_int_equal(wh_peer_measure(self, here, wh_region_id(there)), 0);
	assert_int_equal(RDMA->submitted, 0);
	assert_int_equal(self->probed[WH_TRANSPORT_RDMA].epoch, 0);
}

static void near(double is, double should)
{
	assert_true(is > should * 0.999999 && is < should * 1.000001);
}

static void measure__costs(void **state)
{
	const struct wh_probed *found = &self->probed[WH_TRANSPORT_RDMA];
	uint32_t regions = wh_region_table_used(&engine->regions);

	(void)state;
	can_be_measured(WH_TRANSPORT_RDMA);
	assert_int_equal(wh_peer_measure(self, here, wh_region_id(there)), 0);
	assert_int_equal(found->epoch, engine->identity.epoch);
	assert_int_equal(found->remote, wh_region_id(there));
	assert_int_equal(found->kind, here->entry.kind);
	assert_int_equal(found->at, frozen_now);
	assert_int_equal(found->set, sizeof(target));
	near(found->batch, BATCH + TRANSFER + 8 * BYTE);
	near(found->byte, BYTE);
	near(found->transfer, TRANSFER);
	/* Nine samples and the first one: of 8 bytes, of all, and of all in blocks. */
	assert_int_equal(bytes_read, 10 * (8 + 2 * sizeof(target)));
	assert_int_equal(transfers_most, sizeof(target) / 4096);
	assert_int_equal(wh_region_table_used(&engine->regions), regions);
	assert_int_equal(wh_memory_domain_count(&engine->memory), 0);
	assert_int_equal(WH_BATCHES(atomic_load(&self->batches)), 0);
}

/* A failed one keeps nothing, not even what was known. */
static void measure__fails(void **state)
{
	const struct wh_probed *found = &self->probed[WH_TRANSPORT_RDMA];
	struct wh_probed before;

	(void)state;
	can_be_measured(WH_TRANSPORT_RDMA);
	assert_int_equal(wh_peer_measure(self, here, wh_region_id(there)), 0);
	before = *found;
	RDMA->error = -EIO;
	assert_int_equal(wh_peer_measure(self, here, wh_region_id(there)), -EIO);
	said("wh_peer_measure: reading from this engine by rdma: ");
	said("unreadable");
	assert_memory_equal(found, &before, sizeof(before));
	assert_int_equal(wh_memory_domain_count(&engine->memory), 0);
	assert_int_equal(WH_BATCHES(atomic_load(&self->batches)), 0);
}

#define STUCK 5 /* the first wait, three of the cancel, and the one for what it could not end */

/* Each time that somebody waits, more time passes than he has. */
static void progress_stuck(struct wh_peer *peer, void *state, struct wh_batch *batch,
			   int64_t deadline)
{
	struct fake *fake = state;

	(void)peer;
	(void)batch;
	(void)deadline;
	frozen_now += 100 * WH_SECOND;
	if (++fake->progressed == STUCK)
		fake_end(fake, 0);
}

static void lost(struct wh_peer *peer, void *state, int error, const char *text)
{
	(void)peer;
	(void)state;
	(void)error;
	(void)text;
}

/* A read that does not end when it is cancelled is waited for: the peer can be closed afterwards,
 * and nothing writes into memory that is gone. */
static void measure__stuck(void **state)
{
	(void)state;
	can_be_measured(WH_TRANSPORT_RDMA);
	fake_table(WH_TRANSPORT_RDMA)->submit = fake_submit;
	fake_table(WH_TRANSPORT_RDMA)->progress = progress_stuck;
	for (unsigned i = 0; i < FAKES; i++)
		fake_table(fake_order[i])->peer_lost = lost;
	RDMA->abort_error = -ETIMEDOUT;
	assert_int_equal(wh_peer_measure(self, here, wh_region_id(there)), -ETIMEDOUT);
	said("no answer within 2 s");
	assert_int_equal(RDMA->progressed, STUCK);
	assert_int_equal(RDMA->held_count, 0);
	assert_int_equal(wh_memory_domain_count(&engine->memory), 0);
	assert_int_equal(WH_BATCHES(atomic_load(&self->batches)), 0);
}

/* Another region of the same kind is read instead of one that is too short or unreadable. */
static void measure__another_region(void **state)
{
	struct wh_peer *peer = peer_new("far");

	(void)state;
	can_be_measured(WH_TRANSPORT_RDMA);
	peer_region(peer, 0, LEAST - 1, WH_ACCESS_READ);
	peer_region(peer, 1, LEAST, WH_ACCESS_WRITE);
	peer_region(peer, 2, LEAST, WH_ACCESS_READ)->kind = WH_MEMORY_SHARED;
	assert_int_equal(wh_peer_measure(peer, here, PEER_REGION(0)), -ENODATA);
	said("far publishes no readable region of this kind with at least 64 KiB");
	assert_int_equal(wh_peer_measure(peer, here, PEER_REGION(1)), -ENODATA);
	assert_int_equal(RDMA->submitted, 0);
	assert_int_equal(wh_peer_measure(peer, here, PEER_REGION(2)), 0);
	assert_int_equal(peer->probed[WH_TRANSPORT_RDMA].set, LEAST);
	/* It counts for the region that was meant. */
	peer_region(peer, 3, 2 * LEAST, WH_ACCESS_READ);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(wh_peer_measure(peer, here, PEER_REGION(i)), 0);
		assert_int_equal(peer->probed[WH_TRANSPORT_RDMA].remote, PEER_REGION(i));
		assert_int_equal(peer->probed[WH_TRANSPORT_RDMA].set, 2 * LEAST);
	}
	peer_drop(peer);
}

/* ---- estimating ---------------------------------------------------------------------------- */

static bool estimate(struct wh_batch *batch, struct wh_estimate *out)
{
	assert_int_equal(wh_plan(batch, WH_PLAN_ASKS), 0);
	return wh_probe_estimate(self, WH_TRANSPORT_RDMA, batch, out);
}

static void estimate__by_a_probe(void **state)
{
	struct wh_probed *probed = &self->probed[WH_TRANSPORT_RDMA];
	const struct wh_probed found = {
		.epoch = engine->identity.epoch,
		.remote = wh_region_id(there),
		.kind = here->entry.kind,
		.batch = 1000,
		.transfer = 100,
		.byte = 2,
		.set = 4096,
		.at = START,
	};
	struct wh_batch *batch = batch_of(100);
	struct wh_estimate out = { 0 };

	(void)state;
	assert_false(estimate(batch, &out));
	*probed = found;
	frozen_now = START + 50;
	assert_true(estimate(batch, &out));
	assert_int_equal(out.duration, 1000 + 200);
	assert_int_equal(out.measured, WH_ESTIMATE_MEASURED);
	assert_int_equal(out.age, 50);
	assert_int_equal(out.working_set, 4096);
	/* It is added to what other transports take; the smaller set, and the older one, count. */
	out = (struct wh_estimate){ .duration = 7, .age = 60, .working_set = 1024 };
	add(batch, WH_WRITE, 1000, 10);
	assert_true(estimate(batch, &out));
	assert_int_equal(out.duration, 7 + 1000 + 220 + 100);
	assert_int_equal(out.age, 60);
	assert_int_equal(out.working_set, 1024);
	/* Two fragments run at the same time. */
	out = (struct wh_estimate){ .working_set = 8192 };
	add(batch, WH_READ, 2000, 10);
	assert_true(estimate(batch, &out));
	assert_int_equal(out.duration, 1000 + 240 + 100);
	assert_int_equal(out.working_set, 4096);
	/* Of another incarnation, another region, another kind. */
	out.duration = 3;
	probed->epoch++;
	assert_false(estimate(batch, &out));
	*probed = found;
	probed->remote++;
	assert_false(estimate(batch, &out));
	*probed = found;
	probed->kind++;
	assert_false(estimate(batch, &out));
	assert_int_equal(out.duration, 3);
	drop_batch(batch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		PREPARE_TEST(prepare__arguments),   PREPARE_TEST(prepare__each_pair),
		PREPARE_TEST(prepare__rights),      PREPARE_TEST(prepare__fails),
		PREPARE_TEST(prepare__no_memory),   PREPARE_TEST(measure__arguments),
		PREPARE_TEST(measure__costs),       PREPARE_TEST(measure__fails),
		PREPARE_TEST(measure__stuck),       PREPARE_TEST(measure__another_region),
		PREPARE_TEST(estimate__by_a_probe),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
