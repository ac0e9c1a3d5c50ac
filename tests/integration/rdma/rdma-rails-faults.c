/* SPDX-License-Identifier: Apache-2.0 */
/* rdma-rails-faults.c: rails that fail in mid-batch
 *
 * The other rails take over the share of one that fails, tcp takes over from the last one, and the
 * explanation says why. With the fake libibverbs. */
#include "lib/rails.h"

#define FORGOTTEN 1100 /* ms: after this time the speed of a rail is unknown again */

enum fault { STATUS, SILENCE, PORT };

static void rail_broken(enum fault fault, uint32_t op)
{
	struct wh_batch *batch;
	struct fixture f;

	rails_fixture(&f, "fake0,fake1", "fake4,fake5");
	batch = rails_batch(&f, op);
	rails_fill(&f, op, 4);
	want_rails_used(batch, 2);
	rails_fill(&f, op, 5);
	/* After this time a rail that was slow, because its thread waited for a CPU, gets a share
	 * again. */
	sleep_ms(FORGOTTEN);
	if (fault == STATUS)
		nic_fail(1, 12, 0); /* each rail gets some of it at once */
	else
		nic_hold(1, true);
	want(0, wh_batch_submit(batch));
	if (fault == PORT)
		nic_port(1, false);
	want(0, batch_end(batch, 3 * PATIENCE));
	if (fault == PORT)
		nic_port(1, true);
	nic_hold(1, false);
	want_rails_bytes(&f, op, 5);
	want_all_by(batch, "rdma");
	want_explained(batch, "fake1:1 to fake");
	want_explained(batch, fault == STATUS ?
				      "it broke: from fake1:1 to fake5:1: no acknowledgement" :
			      fault == PORT ? "it broke: fake1:1 has gone down" :
					      "nothing has completed for 2000 ms");
	want_rails_used(batch, 2);
	want_rails_bytes(&f, op, 5);
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

static void broken__status_of_write(void **state)
{
	(void)state;
	rail_broken(STATUS, WH_WRITE);
}

static void broken__status_of_read(void **state)
{
	(void)state;
	rail_broken(STATUS, WH_READ);
}

static void broken__silence(void **state)
{
	(void)state;
	rail_broken(SILENCE, WH_WRITE);
}

static void broken__port(void **state)
{
	(void)state;
	rail_broken(PORT, WH_READ);
}

/* The rails break one after the other: the second takes over from the first, and tcp from the
 * second. */
static void broken__all(void **state)
{
	struct wh_batch *batch;
	struct fixture f;

	(void)state;
	rails_fixture(&f, "fake0,fake1,fake2", "fake4,fake5,fake6");
	batch = rails_batch(&f, WH_WRITE);
	want_rails_used(batch, 3);
	rails_fill(&f, WH_WRITE, 6);
	for (unsigned i = 0; i < 3; i++)
		nic_fail(i, 12, 0);
	want(0, batch_run(batch));
	want_rails_bytes(&f, WH_WRITE, 6);
	want_all_by(batch, "tcp");
	want_explained(batch, "no acknowledgement");
	want_rails_used(batch, 3);
	rails_run(&f, batch, WH_WRITE, 7);
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* A refused key concerns its own fragment only: the others continue by rdma. */
static void broken__remote_access(void **state)
{
	struct wh_transfer transfer;
	struct wh_batch *batch, *other;
	struct fixture f;

	(void)state;
	rails_fixture(&f, "fake0,fake1", "fake4,fake5");
	batch = rails_batch(&f, WH_WRITE);
	transfer = transfer_of(&f, WH_READ, RAILS_LENGTH, 0, RAILS_LENGTH);
	other = batch_of(&f, &transfer, 1);
	want_rails_used(batch, 2);
	rails_fill(&f, WH_WRITE, 8);
	/* After this time a rail that was slow, because its thread waited for a CPU, gets a share
	 * again. */
	sleep_ms(FORGOTTEN);
	nic_fail(0, 10, 0);
	want(0, wh_batch_submit(batch));
	want(0, wh_batch_submit(other));
	want(0, batch_end(batch, PATIENCE));
	want(0, batch_end(other, PATIENCE));
	want_rails_bytes(&f, WH_WRITE, 8);
	want_all_by(batch, "tcp");
	want_explained(batch, "refuses the key");
	want_all_by(other, "rdma");
	want(0, wh_batch_free(batch));
	want(0, wh_batch_free(other));
	fixture_close(&f);
}

/* Both rails are silent: cancelling ends both connections, and the next batch uses both again. */
static void broken__cancel(void **state)
{
	struct wh_batch *batch;
	struct fixture f;

	(void)state;
	rails_fixture(&f, "fake0,fake1", "fake4,fake5");
	batch = rails_batch(&f, WH_WRITE);
	want_rails_used(batch, 2);
	nic_hold(0, true);
	nic_hold(1, true);
	want(0, wh_batch_submit(batch));
	want(0, wh_batch_cancel(batch));
	nic_hold(0, false);
	nic_hold(1, false);
	want(-ECANCELED, batch_now(batch));
	want_rails_used(batch, 2);
	rails_run(&f, batch, WH_WRITE, 10);
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* The owner's port goes down as well: our rail then connects to another port of the owner. */
static void broken__other_end(void **state)
{
	struct wh_batch *batch;
	struct fixture f;

	(void)state;
	rails_fixture(&f, "fake0", "fake4,fake5");
	batch = rails_batch(&f, WH_WRITE);
	want_rails_used(batch, 1);
	want_explained(batch, "fake0:1 to fake4:1");
	nic_fail(0, 12, 1); /* how our side sees it */
	want(0, batch_run(batch));
	want_rails_used(batch, 1);
	want_explained(batch, "fake0:1 to fake5:1");
	rails_run(&f, batch, WH_WRITE, 11);
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* Rails break again and again, while one batch writes, one reads and one is cancelled, each in a
 * third of the memory. When a batch succeeds, its bytes have arrived; nothing else is written. */
static void broken__often(void **state)
{
	enum { PART = 2 * MIB, ROUNDS_BROKEN = 40 };
	struct wh_transfer transfers[3];
	struct wh_batch *batches[3];
	struct fixture f;
	int status;

	(void)state;
	rails_fixture(&f, "fake0,fake1,fake2", "fake4,fake5,fake6");
	for (unsigned i = 0; i < 3; i++) {
		transfers[i] =
			transfer_of(&f, i == 1 ? WH_READ : WH_WRITE, i * PART, i * PART, PART);
		batches[i] = batch_of(&f, &transfers[i], 1);
	}
	want_rails_used(batches[0], 3);
	target_fill(&f, 3 * PART, PART, 0, 1);
	for (unsigned i = 0; i < ROUNDS_BROKEN; i++) {
		pattern_fill(f.local, PART, 0, i);
		target_fill(&f, PART, PART, 0, i + 1);
		nic_fail(i % 3, i % 5 ? 12 : 10, i * 7 % 11);
		if (i % 4 == 3)
			nic_hold((i / 4) % 3, true);
		for (unsigned n = 0; n < 3; n++)
			want(0, wh_batch_submit(batches[n]));
		want(0, wh_batch_cancel(batches[2]));
		status = batch_now(batches[2]);
		want_true(!status || status == -ECANCELED, "round %u: %d", i, status);
		nic_hold((i / 4) % 3, false);
		want(0, batch_end(batches[0], 2 * PATIENCE));
		want(0, batch_end(batches[1], 2 * PATIENCE));
		want_true(target_check(&f, 0, PART, 0, i) == PATTERN_GOOD,
			  "round %u: written wrongly", i);
		want_true(pattern_check(f.local + PART, PART, 0, i + 1) == PATTERN_GOOD,
			  "round %u: read wrongly", i);
	}
	want_true(target_check(&f, 3 * PART, PART, 0, 1) == PATTERN_GOOD,
		  "bytes of nobody are written");
	for (unsigned i = 0; i < 3; i++) {
		nic_fail(i, 0, 0);
		want(0, wh_batch_free(batches[i]));
	}
	fixture_close(&f);
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(broken__status_of_write, needs_nics),
	TEST_NEEDS(broken__status_of_read, needs_nics),
	TEST_NEEDS(broken__silence, needs_nics),
	TEST_NEEDS(broken__port, needs_nics),
	TEST_NEEDS(broken__all, needs_nics),
	TEST_NEEDS(broken__remote_access, needs_nics),
	TEST_NEEDS(broken__cancel, needs_nics),
	TEST_NEEDS(broken__other_end, needs_nics),
	TEST_NEEDS(broken__often, needs_nics),
};

HARNESS_MAIN("rdma-rails-faults", tests)
