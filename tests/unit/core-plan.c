/* SPDX-License-Identifier: Apache-2.0 */
/* plan.c: which transport moves what, how a batch is split, and the reasons that it keeps */
#include "core-fake.h"

#include "allocation.h"
#include "core/plan.h"
#include "core/traffic.h"
#include "memory/region-table.h"

static const char *refused(const struct wh_batch *batch, unsigned id)
{
	return batch->share[id].refused;
}

static void refuse(struct fake *fake, int reach, const char *why)
{
	fake->reach = reach;
	fake->why = why;
}

static uint64_t bytes_of(const struct wh_batch *batch, unsigned id)
{
	return batch->share[id].bytes;
}

/* ---- which one ----------------------------------------------------------------------------- */

static void plan__the_first_that_reaches(void **state)
{
	struct wh_batch *batch = batch_of(100);

	(void)state;
	refuse(RDMA, -EOPNOTSUPP, "no rail");
	assert_int_equal(wh_plan(batch, WH_PLAN_ASKS), 0);
	assert_int_equal(bytes_of(batch, WH_TRANSPORT_SHM), 100);
	assert_string_equal(refused(batch, WH_TRANSPORT_RDMA), "no rail");
	assert_int_equal(TCP->asked, 0);
	assert_string_equal(refused(batch, WH_TRANSPORT_TCP), "");
	assert_int_equal(batch->planned, atomic_load(&self->plan_version));
	/* The next plan forgets what the last one has found. */
	refuse(RDMA, 0, NULL);
	assert_int_equal(wh_plan(batch, WH_PLAN_ASKS), 0);
	assert_int_equal(bytes_of(batch, WH_TRANSPORT_RDMA), 100);
	assert_int_equal(bytes_of(batch, WH_TRANSPORT_SHM), 0);
	assert_string_equal(refused(batch, WH_TRANSPORT_RDMA), "");
	drop_batch(batch);
}

/* One that reaches only as the last is taken if no other one does; its reason stays if one does. */
static void plan__the_last_resort(void **state)
{
	struct wh_batch *batch = batch_of(100);

	(void)state;
	refuse(RDMA, WH_REACHED_LAST, "by staging");
	refuse(SHM, -EOPNOTSUPP, "not mapped");
	assert_int_equal(wh_plan(batch, WH_PLAN_ASKS), 0);
	assert_int_equal(bytes_of(batch, WH_TRANSPORT_TCP), 100);
	assert_string_equal(refused(batch, WH_TRANSPORT_RDMA), "by staging");
	refuse(TCP, -EOPNOTSUPP, "no socket");
	assert_int_equal(wh_plan(batch, WH_PLAN_ASKS), 0);
	assert_int_equal(bytes_of(batch, WH_TRANSPORT_RDMA), 100);
	assert_string_equal(refused(batch, WH_TRANSPORT_RDMA), "");
	assert_string_equal(refused(batch, WH_TRANSPORT_SHM), "not mapped");
	/* Of two such, the better one. */
	refuse(TCP, WH_REACHED_LAST, "slowly");
	assert_int_equal(wh_plan(batch, WH_PLAN_ASKS), 0);
	assert_int_equal(bytes_of(batch, WH_TRANSPORT_RDMA), 100);
	drop_batch(batch);
}

/* While a better one is being set up there is no plan, unless it has to be made now. */
static void plan__one_that_is_being_set_up(void **state)
{
	struct wh_batch *batch = batch_of(100);

	(void)state;
	refuse(RDMA, -EINPROGRESS, "connecting");
	assert_int_equal(wh_plan(batch, WH_PLAN_ASKS), -EINPROGRESS);
	assert_int_equal(wh_plan(batch, WH_PLAN_LINGERS), -EINPROGRESS);
	assert_int_equal(batch->planned, 0);
	assert_int_equal(wh_plan(batch, WH_PLAN_DECIDES), 0);
	assert_int_equal(bytes_of(batch, WH_TRANSPORT_SHM), 100);
	assert_string_equal(refused(batch, WH_TRANSPORT_RDMA), "connecting");
	/* Also if nothing else reaches. */
	refuse(SHM, -EOPNOTSUPP, "not mapped");
	refuse(TCP, -EOPNOTSUPP, "no socket");
	assert_int_equal(wh_plan(batch, WH_PLAN_ASKS), -EINPROGRESS);
	assert_int_equal(wh_plan(batch, WH_PLAN_DECIDES), -EOPNOTSUPP);
	drop_batch(batch);
}

/* It is submitted all the same, and planned when the transport says so. */
static void plan__is_made_later(void **state)
{
	struct wh_batch *batch = batch_of(100);

	(void)state;
	RDMA->on_submit = SHM->on_submit = FAKE_ENDS;
	refuse(RDMA, -EINPROGRESS, "connecting");
	assert_int_equal(wh_batch_submit(batch), 0);
	assert_int_equal(wh_batch_status(batch), -EINPROGRESS);
	assert_true(wh_engine_progress(engine, 0) >= 0);
	assert_int_equal(wh_batch_status(batch), -EINPROGRESS);
	assert_int_equal(SHM->submitted, 0);
	refuse(RDMA, 0, NULL);
	wh_peer_reach_again(self);
	assert_int_equal(wh_batch_wait_for(batch, WH_FOREVER), 0);
	assert_int_equal(wh_batch_status(batch), 0);
	assert_int_equal(RDMA->submitted, 1);
	/* Nobody says anything: it takes what there is. */
	wh_peer_replan(self);
	refuse(RDMA, -EINPROGRESS, "connecting");
	assert_int_equal(wh_batch_submit(batch), 0);
	assert_int_equal(wh_batch_wait_for(batch, WH_FOREVER), 0);
	assert_int_equal(SHM->submitted, 1);
	/* It is cancelled meanwhile. */
	wh_peer_replan(self);
	assert_int_equal(wh_batch_submit(batch), 0);
	assert_int_equal(wh_batch_cancel(batch), 0);
	assert_int_equal(wh_batch_status(batch), -ECANCELED);
	/* No transport serves it. */
	wh_peer_replan(self);
	refuse(RDMA, -EINPROGRESS, "connecting");
	refuse(SHM, -EOPNOTSUPP, "not mapped");
	refuse(TCP, -EOPNOTSUPP, "no socket");
	assert_int_equal(wh_batch_submit(batch), 0);
	refuse(RDMA, -EOPNOTSUPP, "no rail");
	assert_int_equal(wh_batch_wait_for(batch, WH_FOREVER), 0);
	assert_int_equal(wh_batch_status(batch), -EOPNOTSUPP);
	said("rdma: no rail; shm: not mapped; tcp: no socket");
	drop_batch(batch);
}

static void plan__a_peer_that_refused(void **state)
{
	struct wh_batch *batch = batch_of(100);

	(void)state;
	wh_peer_refuse(self, WH_TRANSPORT_RDMA, "broke twice");
	assert_int_equal(wh_plan(batch, WH_PLAN_ASKS), 0);
	assert_int_equal(RDMA->asked, 0);
	assert_int_equal(bytes_of(batch, WH_TRANSPORT_SHM), 100);
	assert_string_equal(refused(batch, WH_TRANSPORT_RDMA), "broke twice");
	assert_false(batch->share[WH_TRANSPORT_RDMA].inapplicable);
	self->not_for[WH_TRANSPORT_RDMA] = true;
	assert_int_equal(wh_plan(batch, WH_PLAN_ASKS), 0);
	assert_true(batch->share[WH_TRANSPORT_RDMA].inapplicable);
	drop_batch(batch);
}

/* That a transport is not for such memory is told to those who insist on it. */
static void plan__does_not_apply(void **state)
{
	struct wh_batch_options options = { .size = sizeof(options), .require = "rdma" };
	struct wh_transfer transfer = transfer_of(WH_WRITE, 0, 1);
	struct wh_batch *batch = batch_of(100), *insists;

	(void)state;
	refuse(RDMA, -ENXIO, "not for such memory");
	assert_int_equal(wh_plan(batch, WH_PLAN_ASKS), 0);
	assert_string_equal(refused(batch, WH_TRANSPORT_RDMA), "");
	assert_int_equal(wh_batch_new(self, &options, &insists), 0);
	assert_int_equal(wh_batch_add(insists, &transfer, 1), 0);
	assert_int_equal(wh_plan(insists, WH_PLAN_ASKS), -EOPNOTSUPP);
	said("transfer 0: rdma is required and cannot be used: not for such memory");
	assert_int_equal(SHM->asked, 1);
	assert_string_equal(refused(insists, WH_TRANSPORT_SHM), "another transport is required");
	assert_true(insists->share[WH_TRANSPORT_SHM].inapplicable);
	/* Off: that is the reason. */
	engine->order[0] = WH_TRANSPORT_SHM;
	engine->order[1] = WH_TRANSPORT_TCP;
	engine->order_count = 2;
	snprintf(engine->transport_off[WH_TRANSPORT_RDMA], WH_REFUSAL, "there is no device");
	assert_int_equal(wh_plan(insists, WH_PLAN_ASKS), -EOPNOTSUPP);
	said("rdma is required and cannot be used: there is no device");
	drop_batch(batch);
	drop_batch(insists);
}

static void plan__nobody_reaches(void **state)
{
	struct wh_batch *batch = batch_of(100);
	char why[WH_REFUSAL];

	(void)state;
	refuse(RDMA, -EOPNOTSUPP, "no rail");
	wh_peer_refuse(self, WH_TRANSPORT_SHM, "another host");
	self->not_for[WH_TRANSPORT_SHM] = true;
	refuse(TCP, -EOPNOTSUPP, "no socket");
	assert_int_equal(wh_batch_submit(batch), -EOPNOTSUPP);
	said("transfer 0: no transport reaches alone: rdma: no rail; tcp: no socket");
	assert_null(strstr(wh_error_text(), "another host"));
	assert_int_equal(batch->planned, 0);
	/* What does not apply is named when there is nothing else. */
	refuse(RDMA, -ENXIO, "");
	refuse(TCP, -ENXIO, "");
	assert_int_equal(wh_batch_submit(batch), -EOPNOTSUPP);
	said("no transport reaches alone: shm: another host");
	/* As long as the reasons may be. */
	memset(why, 'z', sizeof(why) - 1);
	why[sizeof(why) - 1] = 0;
	refuse(RDMA, -EOPNOTSUPP, why);
	refuse(TCP, -EOPNOTSUPP, why);
	assert_int_equal(wh_batch_submit(batch), -EOPNOTSUPP);
	assert_true(strlen(wh_error_text()) < WH_TEXT_MAX);
	drop_batch(batch);
}

/* ---- regions that go ----------------------------------------------------------------------- */

static void plan__a_region_that_is_gone(void **state)
{
	struct wh_batch *batch = batch_new();
	struct wh_transfer transfer = transfer_of(WH_WRITE, 0, 8);
	struct wh_region *gone;

	(void)state;
	assert_int_equal(wh_region_register(engine, target, 64, NULL, &gone), 0);
	add(batch, WH_WRITE, 0, 8);
	transfer.remote = wh_region_id(gone);
	assert_int_equal(wh_batch_add(batch, &transfer, 1), 0);
	assert_int_equal(wh_region_unregister(gone), 0);
	assert_int_equal(wh_batch_submit(batch), -ESTALE);
	said("transfer 1: region");
	said("no longer published");
	assert_int_equal(batch->planned, 0);
	assert_int_equal(RDMA->submitted, 0);
	/* A batch that runs already counts its fragments when it ends. Those of a plan that failed
	 * may have no transport. */
	refuse(RDMA, -EINPROGRESS, "connecting");
	refuse(SHM, -EOPNOTSUPP, "not mapped");
	refuse(TCP, -EOPNOTSUPP, "no socket");
	assert_int_equal(wh_plan(batch, WH_PLAN_ASKS), -ESTALE);
	assert_int_equal(batch->fragment_count, 0);
	drop_batch(batch);
	/* A transport finds the memory gone: that, and not what the others say, is the reason. */
	batch = batch_of(8);
	refuse(RDMA, -ESTALE, "the memory was freed");
	refuse(SHM, -EOPNOTSUPP, "not mapped");
	refuse(TCP, -EOPNOTSUPP, "no socket");
	assert_int_equal(wh_batch_submit(batch), -ESTALE);
	said("transfer 0: the memory was freed");
	drop_batch(batch);
}

/* ---- fragments ----------------------------------------------------------------------------- */

static void add_to(struct wh_batch *batch, uint32_t op, const struct wh_region *remote)
{
	struct wh_transfer transfer = transfer_of(op, 64 * batch->item_count, 10);

	transfer.remote = wh_region_id(remote);
	assert_int_equal(wh_batch_add(batch, &transfer, 1), 0);
}

/* Neighbours of one direction and one transport make a fragment; each pair is asked about once. */
static void plan__splits_where_the_choice_changes(void **state)
{
	static const struct {
		uint32_t op, transport;
		uint64_t first, count;
	} wanted[] = {
		{ WH_WRITE, WH_TRANSPORT_RDMA, 0, 2 }, { WH_WRITE, WH_TRANSPORT_SHM, 2, 1 },
		{ WH_READ, WH_TRANSPORT_SHM, 3, 2 },   { WH_READ, WH_TRANSPORT_RDMA, 5, 1 },
		{ WH_WRITE, WH_TRANSPORT_RDMA, 6, 1 },
	};
	struct wh_batch *batch = batch_new();
	uint64_t at = 0;

	(void)state;
	RDMA->only = wh_region_id(there);
	add_to(batch, WH_WRITE, there);
	add_to(batch, WH_WRITE, there);
	add_to(batch, WH_WRITE, here);
	add_to(batch, WH_READ, here);
	add_to(batch, WH_READ, here);
	add_to(batch, WH_READ, there);
	add_to(batch, WH_WRITE, there);
	assert_int_equal(wh_plan(batch, WH_PLAN_ASKS), 0);
	assert_int_equal(batch->fragment_count, 5);
	for (unsigned i = 0; i < 5; i++) {
		const struct wh_fragment *fragment = &batch->fragments[i];

		assert_int_equal(fragment->op, wanted[i].op);
		assert_int_equal(fragment->transport, wanted[i].transport);
		assert_int_equal(fragment->first, wanted[i].first);
		assert_int_equal(fragment->count, wanted[i].count);
		assert_int_equal(fragment->transfers, wanted[i].count);
		assert_int_equal(fragment->bytes, 10 * wanted[i].count);
		at += fragment->count;
	}
	assert_int_equal(at, 7);
	assert_int_equal(RDMA->asked, 5); /* the sixth pair is the second one again: not kept */
	assert_int_equal(SHM->asked, 2);
	assert_int_equal(bytes_of(batch, WH_TRANSPORT_RDMA), 40);
	assert_int_equal(batch->share[WH_TRANSPORT_SHM].transfers, 3);
	assert_string_equal(refused(batch, WH_TRANSPORT_RDMA), "not this region");
	/* No transport is partly refused once its own region is left. */
	assert_int_equal(batch->way, WH_TRAFFIC_MIXED);
	drop_batch(batch);
}

static struct wh_blocks *blocks_new(const struct wh_base *bases, size_t count)
{
	struct wh_blocks_desc desc = {
		.size = sizeof(desc),
		.op = WH_READ,
		.block_length = 8,
		.count = 5,
		.bases = bases,
		.base_count = count,
	};
	struct wh_blocks *blocks;

	assert_int_equal(wh_blocks_new(self, &desc, &blocks), 0);
	return blocks;
}

/* Blocks are split between bases; two descriptors never share a fragment. */
static void plan__splits_blocks_between_bases(void **state)
{
	const struct wh_base bases[] = {
		{ .local = here, .remote = wh_region_id(there) },
		{ .local = here, .remote = wh_region_id(there), .remote_offset = 64 },
		{ .local = here, .remote = wh_region_id(here), .remote_offset = 4096 },
	};
	struct wh_batch *batch = batch_of(100);
	struct wh_blocks *blocks = blocks_new(bases, 3);

	(void)state;
	RDMA->only = wh_region_id(there);
	assert_int_equal(wh_batch_add_blocks(batch, blocks), 0);
	assert_int_equal(wh_batch_add_blocks(batch, blocks), 0);
	assert_int_equal(wh_plan(batch, WH_PLAN_ASKS), 0);
	assert_int_equal(batch->fragment_count, 5);
	for (unsigned i = 1; i < 5; i++) {
		const struct wh_fragment *fragment = &batch->fragments[i];
		bool two = i % 2;

		assert_ptr_equal(fragment->blocks, blocks);
		assert_int_equal(fragment->transport, two ? WH_TRANSPORT_RDMA : WH_TRANSPORT_SHM);
		assert_int_equal(fragment->first, two ? 0 : 2);
		assert_int_equal(fragment->count, two ? 2 : 1);
		assert_int_equal(fragment->bytes, two ? 80 : 40);
		assert_int_equal(fragment->transfers, two ? 10 : 5);
	}
	assert_int_equal(bytes_of(batch, WH_TRANSPORT_RDMA), 260);
	assert_int_equal(bytes_of(batch, WH_TRANSPORT_SHM), 80);
	drop_batch(batch);
	assert_int_equal(wh_blocks_free(blocks), 0);
}

static int plan_anew(void)
{
	struct wh_batch *batch = batch_new();
	int error;

	for (unsigned i = 0; i < 6; i++)
		add_to(batch, i % 2 ? WH_READ : WH_WRITE, there);
	error = wh_plan(batch, WH_PLAN_ASKS);
	assert_int_equal(!batch->planned, !!error);
	assert_int_equal(error ? 6 : batch->fragment_count, 6);
	drop_batch(batch);
	return error;
}

static void plan__no_memory(void **state)
{
	struct wh_batch *batch = batch_new();

	(void)state;
	for (unsigned i = 0; i < 6; i++)
		add_to(batch, i % 2 ? WH_READ : WH_WRITE, there);
	/* Room for 1, 4 and 16 fragments. */
	for (unsigned n = 1; n <= 3; n++) {
		allocation_fails = 1;
		assert_int_equal(wh_plan(batch, WH_PLAN_ASKS), -ENOMEM);
		assert_int_equal(batch->planned, 0);
		assert_int_equal(batch->fragment_room, n == 1 ? 0 : n == 2 ? 1 : 4);
		allocation_fails = 2;
		assert_int_equal(wh_plan(batch, WH_PLAN_ASKS), n == 3 ? 0 : -ENOMEM);
		allocation_fails = 0;
	}
	drop_batch(batch);
	assert_int_equal(plan_anew(), 0);
}

/* Every batch of more than 64 KiB by one transport is timed. */
static void plan__times_large_ones(void **state)
{
	struct wh_batch *small = batch_of(WH_SMALL_BATCH), *large = batch_of(WH_SMALL_BATCH + 1);

	(void)state;
	small->timed_in = large->timed_in = 50;
	assert_int_equal(wh_plan(small, WH_PLAN_ASKS), 0);
	assert_int_equal(small->timed_in, 50);
	assert_int_equal(wh_plan(large, WH_PLAN_ASKS), 0);
	assert_int_equal(large->timed_in, 1);
	drop_batch(small);
	drop_batch(large);
}

/* ---- what is off --------------------------------------------------------------------------- */

/* That a transport is off matters only if it is better than what was taken. */
static void plan__explains_what_is_off(void **state)
{
	struct wh_batch *batch = batch_of(8);

	(void)state;
	engine->order[0] = WH_TRANSPORT_SHM;
	engine->order_count = 1;
	snprintf(engine->transport_off[WH_TRANSPORT_RDMA], WH_REFUSAL, "off");
	snprintf(engine->transport_off[WH_TRANSPORT_TCP], WH_REFUSAL, "off");
	snprintf(engine->transport_off[WH_TRANSPORT_CUDA], WH_REFUSAL, "not in the setting");
	engine->not_here[WH_TRANSPORT_RDMA] = true;
	assert_int_equal(wh_plan(batch, WH_PLAN_ASKS), 0);
	assert_string_equal(refused(batch, WH_TRANSPORT_RDMA), "off");
	assert_true(batch->share[WH_TRANSPORT_RDMA].inapplicable);
	assert_string_equal(refused(batch, WH_TRANSPORT_TCP), "");
	assert_string_equal(refused(batch, WH_TRANSPORT_CUDA), "not in the setting");
	assert_false(batch->share[WH_TRANSPORT_CUDA].inapplicable);
	drop_batch(batch);
}

/* ---- local --------------------------------------------------------------------------------- */

static void plan__local_takes_no_network(void **state)
{
	struct wh_batch_options options = { .size = sizeof(options), .require = "local" };
	struct wh_transfer transfer = transfer_of(WH_WRITE, 0, 8);
	struct wh_peer *peer = peer_new("near");
	struct wh_batch *batch;

	(void)state;
	peer_region(peer, 0, 4096, WH_ACCESS_READ | WH_ACCESS_WRITE);
	transfer.remote = PEER_REGION(0);
	assert_int_equal(wh_batch_new(peer, &options, &batch), 0);
	assert_int_equal(wh_batch_add(batch, &transfer, 1), 0);
	assert_int_equal(wh_plan(batch, WH_PLAN_ASKS), 0);
	assert_int_equal(bytes_of(batch, WH_TRANSPORT_SHM), 8);
	assert_int_equal(RDMA->asked, 0);
	assert_string_equal(refused(batch, WH_TRANSPORT_RDMA),
			    "local is required, and it takes the network");
	refuse(SHM, -EOPNOTSUPP, "no memfd");
	assert_int_equal(wh_plan(batch, WH_PLAN_ASKS), -EOPNOTSUPP);
	said("local is required, and no transport reaches near: shm: no memfd");
	/* Another machine is not concerned. */
	peer->welcome.host[15] ^= 1;
	assert_int_equal(wh_plan(batch, WH_PLAN_ASKS), 0);
	assert_int_equal(bytes_of(batch, WH_TRANSPORT_RDMA), 8);
	drop_batch(batch);
	peer_drop(peer);
}

/* ---- again --------------------------------------------------------------------------------- */

/* The next transport has to reach all pairs of the fragment. */
static void again__the_lowest_serves_all(void **state)
{
	struct wh_batch *batch = batch_new();

	(void)state;
	add_to(batch, WH_WRITE, there);
	add_to(batch, WH_WRITE, there);
	add_to(batch, WH_WRITE, here);
	assert_int_equal(wh_plan(batch, WH_PLAN_ASKS), 0);
	assert_int_equal(batch->fragment_count, 1);
	assert_int_equal(wh_plan_again(&batch->fragments[0]), WH_TRANSPORT_SHM);
	assert_int_equal(SHM->asked, 2);
	SHM->only = wh_region_id(there);
	assert_int_equal(wh_plan_again(&batch->fragments[0]), WH_TRANSPORT_TCP);
	TCP->only = wh_region_id(there);
	assert_int_equal(wh_plan_again(&batch->fragments[0]), WH_TRANSPORT_COUNT);
	/* Never one that is better than the present one. */
	TCP->only = SHM->only = 0;
	atomic_store(&batch->fragments[0].transport, WH_TRANSPORT_SHM);
	assert_int_equal(wh_plan_again(&batch->fragments[0]), WH_TRANSPORT_TCP);
	atomic_store(&batch->fragments[0].transport, WH_TRANSPORT_TCP);
	assert_int_equal(wh_plan_again(&batch->fragments[0]), WH_TRANSPORT_COUNT);
	drop_batch(batch);
}

static void require__names(void **state)
{
	(void)state;
	assert_true(wh_require_is_known(""));
	assert_true(wh_require_is_known("local"));
	assert_true(wh_require_is_known("tcp"));
	assert_false(wh_require_is_known("loca"));
	assert_false(wh_require_is_known("local "));
	assert_false(wh_require_is_known("tcp,shm"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(plan__the_first_that_reaches),
		TEST(plan__the_last_resort),
		TEST(plan__one_that_is_being_set_up),
		TEST(plan__is_made_later),
		TEST(plan__a_peer_that_refused),
		TEST(plan__does_not_apply),
		TEST(plan__nobody_reaches),
		TEST(plan__a_region_that_is_gone),
		TEST(plan__splits_where_the_choice_changes),
		TEST(plan__splits_blocks_between_bases),
		TEST(plan__no_memory),
		TEST(plan__times_large_ones),
		TEST(plan__explains_what_is_off),
		TEST(plan__local_takes_no_network),
		TEST(again__the_lowest_serves_all),
		TEST(require__names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
