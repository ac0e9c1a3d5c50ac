/* SPDX-License-Identifier: Apache-2.0 */
/* batch-run.c: from submit to the end: states, errors, reroutes, cancelling, what is held meanwhile
 */
#include "core-fake.h"

#include "allocation.h"
#include "core/notification.h"
#include "core/queue.h"

static uint32_t uses(const struct wh_region *region)
{
	return (uint32_t)atomic_load(&region->batches);
}

/* A batch of a read and a write: two fragments of the first transport. */
static struct wh_batch *batch_of_two(void)
{
	struct wh_batch *batch = batch_of(100);

	add(batch, WH_READ, 200, 50);
	return batch;
}

static int item_status(struct wh_batch *batch, size_t index)
{
	int status = 1;

	assert_int_equal(wh_batch_transfer_status(batch, index, &status), 0);
	return status;
}

static void submit(struct wh_batch *batch)
{
	assert_int_equal(wh_batch_submit(batch), 0);
}

/* ---- states -------------------------------------------------------------------------------- */

static void new__nothing_to_wait_for(void **state)
{
	struct wh_batch *batch = batch_new();

	(void)state;
	for (int i = 0; i < 2; i++) {
		assert_int_equal(wh_batch_status(batch), -EINPROGRESS);
		assert_int_equal(wh_batch_test(batch), -EINVAL);
		said("never submitted");
		assert_int_equal(wh_batch_wait_for(batch, WH_FOREVER), -EINVAL);
		said("never submitted");
		assert_int_equal(wh_batch_wait_for(batch, -1), -EINVAL);
		said("negative");
		assert_int_equal(wh_batch_cancel(batch), -EINVAL);
		said("never submitted");
		add(batch, WH_WRITE, 0, 1);
	}
	assert_int_equal(wh_batch_submit(NULL), -EINVAL);
	assert_int_equal(wh_batch_status(NULL), -EINVAL);
	assert_int_equal(wh_batch_test(NULL), -EINVAL);
	assert_int_equal(wh_batch_wait_for(NULL, 0), -EINVAL);
	assert_int_equal(wh_batch_cancel(NULL), -EINVAL);
	drop_batch(batch);
}

/* It ends with its last fragment, whichever that is. */
static void submit__ends_with_the_last_fragment(void **state)
{
	struct wh_batch *batch = batch_of_two();

	(void)state;
	for (int again = 0; again < 3; again++) {
		submit(batch);
		assert_int_equal(RDMA->held_count, 2);
		assert_int_equal(RDMA->held[0]->op, WH_WRITE);
		assert_int_equal(RDMA->held[0]->bytes, 100);
		assert_int_equal(atomic_load(&RDMA->held[1]->left), 50);
		assert_int_equal(RDMA->held[1]->cursor.outer, 1);
		assert_int_equal(RDMA->held[1]->cursor.left, 50);
		assert_int_equal(wh_batch_wait_for(batch, 0), -EAGAIN);
		assert_int_equal(wh_batch_status(batch), -EINPROGRESS);
		fake_end(RDMA, 0);
		assert_int_equal(wh_batch_test(batch), -EAGAIN);
		fake_end(RDMA, 0);
		assert_int_equal(wh_batch_test(batch), 0);
		assert_int_equal(wh_batch_wait_for(batch, WH_FOREVER), 0);
		assert_int_equal(wh_batch_status(batch), 0);
	}
	drop_batch(batch);
}

/* Nothing to move has succeeded at once, whatever there is of it; no transport hears of it. */
static void submit__nothing(void **state)
{
	struct wh_transfer none = { .op = WH_READ };
	struct wh_batch *batch = batch_new();
	uint64_t bytes = 1;

	(void)state;
	for (int more = 0; more < 3; more++) {
		for (int again = 0; again < 3; again++) {
			submit(batch);
			assert_int_equal(wh_batch_status(batch), 0);
			assert_int_equal(wh_batch_test(batch), 0);
			assert_int_equal(wh_batch_progress(batch, &bytes), 0);
			assert_int_equal(bytes, 0);
			assert_int_equal(wh_batch_cancel(batch), 0);
		}
		assert_int_equal(wh_batch_add(batch, &none, 1), 0);
		assert_int_equal(wh_batch_add_address(
					 batch, &(struct wh_address_transfer){ .op = WH_WRITE }, 1),
				 0);
	}
	assert_int_equal(RDMA->held_count, 0);
	assert_int_equal(item_status(batch, 3), 0);
	assert_int_equal(wh_batch_clear(batch), 0);
	submit(batch);
	assert_int_equal(wh_batch_status(batch), 0);
	drop_batch(batch);
}

/* Transfers of length 0 keep their numbers beside others, and their regions free. */
static void submit__nothing_beside_others(void **state)
{
	struct wh_transfer none = { .op = WH_WRITE };
	struct wh_batch *batch = batch_new();

	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(wh_batch_add(batch, &none, 1), 0);
		add(batch, WH_WRITE, 10 * i, 1 + i);
	}
	none = transfer_of(WH_WRITE, 0, 0);
	assert_int_equal(wh_batch_add(batch, &none, 1), 0);
	for (int again = 0; again < 2; again++) {
		submit(batch);
		assert_int_equal(RDMA->held_count, 3);
		assert_int_equal(RDMA->held[2]->bytes, 3);
		assert_int_equal(uses(here), 3);
		fake_end(RDMA, 0);
		fake_end(RDMA, 0);
		assert_int_equal(wh_batch_status(batch), -EINPROGRESS);
		fake_end(RDMA, 0);
		assert_int_equal(wh_batch_status(batch), 0);
		for (size_t i = 0; i < 7; i++)
			assert_int_equal(item_status(batch, i), 0);
		assert_int_equal(uses(here), 0);
	}
	drop_batch(batch);
}

/* A transport may end what it is given before it returns, in both ways. */
static void submit__ended_within(void **state)
{
	static const enum fake_submit ways[] = { FAKE_ENDS, FAKE_ENDS_AT_ONCE };
	struct wh_batch *one = batch_of(8), *two = batch_of_two();

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		RDMA->on_submit = ways[i % 2];
		submit(one);
		assert_int_equal(wh_batch_status(one), 0);
		submit(two);
		assert_int_equal(wh_batch_status(two), 0);
		assert_int_equal(atomic_load(&two->left), 1);
	}
	/* One that is held counts, whatever the other one does. */
	RDMA->on_submit = FAKE_ENDS_AT_ONCE;
	SHM->only = 0;
	RDMA->only = wh_region_id(there);
	add(two, WH_READ, 300, 1);
	two->items[2].remote = wh_region_id(here);
	submit(two);
	assert_int_equal(SHM->held_count, 1);
	assert_int_equal(wh_batch_status(two), -EINPROGRESS);
	fake_end(SHM, 0);
	assert_int_equal(wh_batch_status(two), 0);
	drop_batch(one);
	drop_batch(two);
}

/* ---- regions ------------------------------------------------------------------------------- */

static void submit__holds_regions(void **state)
{
	struct wh_region *other, *gone;
	struct wh_batch *batch = batch_new();
	struct wh_transfer transfer;

	(void)state;
	assert_int_equal(wh_region_register(engine, source, 64, NULL, &other), 0);
	assert_int_equal(wh_region_register(engine, source, 32, NULL, &gone), 0);
	/* here, here, other, here: once for each run of neighbours. */
	add(batch, WH_WRITE, 0, 1);
	add(batch, WH_WRITE, 1, 1);
	transfer = transfer_of(WH_WRITE, 0, 1);
	transfer.local = other;
	assert_int_equal(wh_batch_add(batch, &transfer, 1), 0);
	add(batch, WH_WRITE, 2, 1);
	submit(batch);
	assert_int_equal(uses(here), 2);
	assert_int_equal(uses(other), 1);
	assert_int_equal(wh_region_unregister(other), -EBUSY);
	fake_end(RDMA, 0);
	assert_int_equal(uses(here), 0);
	assert_int_equal(uses(other), 0);
	/* The last one is gone: nothing is held, and the batch is as it was. */
	transfer.local = gone;
	assert_int_equal(wh_batch_add(batch, &transfer, 1), 0);
	assert_int_equal(wh_region_unregister(gone), 0);
	assert_int_equal(wh_batch_submit(batch), -ESTALE);
	said("transfer 4");
	assert_int_equal(uses(here), 0);
	assert_int_equal(uses(other), 0);
	assert_int_equal(wh_batch_status(batch), 0); /* of the time before */
	assert_int_equal(wh_region_unregister(other), 0);
	drop_batch(batch);
}

static struct wh_blocks *blocks_of(struct wh_region *first, struct wh_region *second)
{
	struct wh_base bases[] = { { .local = first, .remote = wh_region_id(there) },
				   { .local = second, .remote = wh_region_id(there) } };
	struct wh_blocks_desc desc = {
		.size = sizeof(desc),
		.op = WH_WRITE,
		.block_length = 4,
		.count = 2,
		.bases = bases,
		.base_count = 2,
	};
	struct wh_blocks *blocks;

	assert_int_equal(wh_blocks_new(self, &desc, &blocks), 0);
	return blocks;
}

static void submit__holds_regions_of_blocks(void **state)
{
	struct wh_region *gone;
	struct wh_blocks *good, *bad;
	struct wh_batch *batch = batch_of(8);

	(void)state;
	assert_int_equal(wh_region_register(engine, source, 64, NULL, &gone), 0);
	good = blocks_of(here, here);
	bad = blocks_of(here, gone);
	assert_int_equal(wh_batch_add_blocks(batch, good), 0);
	submit(batch);
	assert_int_equal(uses(here), 3);
	fake_end(RDMA, 0);
	assert_int_equal(wh_batch_status(batch), -EINPROGRESS);
	fake_end(RDMA, 0);
	assert_int_equal(wh_batch_status(batch), 0);
	assert_int_equal(uses(here), 0);
	assert_int_equal(wh_batch_add_blocks(batch, bad), 0);
	assert_int_equal(wh_region_unregister(gone), 0);
	assert_int_equal(wh_batch_submit(batch), -ESTALE);
	said("of a base");
	assert_int_equal(uses(here), 0);
	drop_batch(batch);
	assert_int_equal(wh_blocks_free(good), 0);
	assert_int_equal(wh_blocks_free(bad), 0);
}

static int submit_new(void)
{
	struct wh_batch *batch = batch_of_two();
	int error = wh_batch_submit(batch);

	assert_int_equal(uses(here), error ? 0 : 1);
	while (RDMA->held_count)
		fake_end(RDMA, 0);
	drop_batch(batch);
	return error;
}

/* The plan needs memory: for the first fragment, and for more than one. */
static void submit__no_memory(void **state)
{
	struct wh_batch *batch = batch_of_two();

	(void)state;
	for (unsigned n = 1; n < 3; n++) {
		allocation_fails = n;
		assert_int_equal(wh_batch_submit(batch), -ENOMEM);
		assert_int_equal(allocation_fails, 0);
		assert_int_equal(uses(here), 0);
		assert_int_equal(batch->planned, 0);
	}
	assert_int_equal(RDMA->submitted, 0);
	drop_batch(batch);
	assert_int_equal(submit_new(), 0);
}

/* ---- errors -------------------------------------------------------------------------------- */

static void fail__the_first_error_stays(void **state)
{
	struct wh_batch *batch = batch_of_two();

	(void)state;
	submit(batch);
	wh_fragment_fail(RDMA->held[1], UINT64_MAX, -EIO, "disk %d", 7);
	fake_end(RDMA, -ERANGE);
	fake_end(RDMA, 0);
	assert_int_equal(wh_batch_status(batch), -EIO);
	said("disk 7");
	assert_string_equal(wh_batch_error_text(batch), "disk 7");
	assert_int_equal(item_status(batch, 0), -ERANGE);
	assert_int_equal(item_status(batch, 1), -EIO);
	/* The next submission begins anew. */
	submit(batch);
	assert_string_equal(wh_batch_error_text(batch), "");
	fake_end(RDMA, 0);
	fake_end(RDMA, 0);
	assert_int_equal(wh_batch_status(batch), 0);
	assert_int_equal(item_status(batch, 0), 0);
	assert_int_equal(item_status(batch, 1), 0);
	drop_batch(batch);
}

static void fail__one_transfer_or_all(void **state)
{
	struct wh_batch *batch = batch_of(8);
	struct wh_fragment *fragment;

	(void)state;
	add(batch, WH_READ, 100, 1);
	add(batch, WH_READ, 102, 1);
	add(batch, WH_READ, 104, 1);
	submit(batch);
	fragment = RDMA->held[1];
	assert_int_equal(fragment->first, 1);
	assert_int_equal(fragment->count, 3);
	wh_fragment_fail(fragment, 2, -EIO, "one");
	wh_fragment_fail(fragment, 2, -ERANGE, "the same");
	fake_end(RDMA, 0);
	fake_end(RDMA, 0);
	assert_int_equal(item_status(batch, 0), 0);
	assert_int_equal(item_status(batch, 1), 0);
	assert_int_equal(item_status(batch, 2), -EIO);
	assert_int_equal(item_status(batch, 3), 0);
	submit(batch);
	wh_fragment_fail(RDMA->held[1], 3, -EIO, "one");
	wh_fragment_fail(RDMA->held[1], UINT64_MAX, -EBUSY, "all");
	fake_end(RDMA, 0);
	fake_end(RDMA, 0);
	assert_int_equal(item_status(batch, 0), 0);
	assert_int_equal(item_status(batch, 1), -EBUSY);
	assert_int_equal(item_status(batch, 2), -EBUSY);
	assert_int_equal(item_status(batch, 3), -EIO);
	drop_batch(batch);
}

/* ---- parts of a fragment ------------------------------------------------------------------- */

static struct {
	struct wh_fragment *part;
	int error;
	const char *why;
	unsigned count;
} ended;

static void part_ended(struct wh_fragment *part, int error, const char *why)
{
	ended.part = part;
	ended.error = error;
	ended.why = why;
	ended.count++;
}

/* What happens to a part is told to whoever made it, and its failures are the whole's. */
static void part__belongs_to_the_whole(void **state)
{
	struct wh_batch *batch = batch_of(8);
	struct wh_item items[2] = { { .local_id = 2 }, { .local_id = 1 } };
	struct wh_fragment part = { .items = items, .count = 2, .ended = part_ended };

	(void)state;
	memset(&ended, 0, sizeof(ended));
	add(batch, WH_WRITE, 100, 1);
	add(batch, WH_WRITE, 102, 1);
	submit(batch);
	part.batch = batch;
	part.whole = RDMA->held[0];
	wh_fragment_fail(&part, 0, -EIO, "of a part");
	wh_fragment_done(&part);
	assert_ptr_equal(ended.part, &part);
	assert_int_equal(ended.error, 0);
	wh_fragment_reroute(&part, -EOPNOTSUPP, "why not");
	assert_int_equal(ended.error, -EOPNOTSUPP);
	assert_string_equal(ended.why, "why not");
	wh_fragment_done_at_once(&part);
	assert_int_equal(ended.count, 3);
	assert_int_equal(wh_batch_test(batch), -EAGAIN);
	fake_end(RDMA, 0);
	assert_int_equal(wh_batch_status(batch), -EIO);
	assert_int_equal(item_status(batch, 0), 0);
	assert_int_equal(item_status(batch, 1), 0);
	assert_int_equal(item_status(batch, 2), -EIO);
	drop_batch(batch);
}

/* ---- reroutes ------------------------------------------------------------------------------ */

static void reroute__to_the_next(void **state)
{
	struct wh_batch *batch = batch_of_two();

	(void)state;
	RDMA->on_submit = FAKE_REROUTES;
	RDMA->error = -EIO;
	RDMA->why = "the rail died";
	submit(batch);
	assert_int_equal(SHM->held_count, 2);
	assert_true(SHM->held[0]->rerouted);
	assert_int_equal(SHM->held[0]->cursor.left, 100);
	assert_int_equal(batch->share[WH_TRANSPORT_RDMA].bytes, 0);
	assert_int_equal(batch->share[WH_TRANSPORT_RDMA].transfers, 0);
	assert_string_equal(batch->share[WH_TRANSPORT_RDMA].refused, "the rail died");
	assert_int_equal(batch->share[WH_TRANSPORT_SHM].bytes, 150);
	assert_int_equal(batch->share[WH_TRANSPORT_SHM].transfers, 2);
	assert_int_equal(wh_count_get(&self->statistics.reroutes[WH_TRANSPORT_RDMA]), 2);
	/* A rerouted fragment never takes the short way: others may end parts now. */
	wh_fragment_done_at_once(SHM->held[0]);
	SHM->held[0] = SHM->held[1];
	SHM->held_count = 1;
	assert_int_equal(wh_batch_test(batch), -EAGAIN);
	fake_end(SHM, 0);
	assert_int_equal(wh_batch_status(batch), 0);
	/* The plan is made anew, and the first transport asked again. */
	RDMA->on_submit = FAKE_ENDS;
	submit(batch);
	assert_int_equal(wh_batch_status(batch), 0);
	assert_int_equal(batch->share[WH_TRANSPORT_RDMA].bytes, 150);
	assert_int_equal(SHM->submitted, 2);
	drop_batch(batch);
}

static void reroute__nobody_is_left(void **state)
{
	struct wh_batch *batch = batch_of_two();

	(void)state;
	for (unsigned i = 0; i < FAKES; i++) {
		fakes[fake_order[i]].on_submit = FAKE_REROUTES;
		fakes[fake_order[i]].error = -EIO - (int)i;
		fakes[fake_order[i]].why = "cannot";
	}
	submit(batch);
	assert_int_equal(wh_batch_status(batch), -EIO - 2);
	said("tcp: cannot");
	assert_int_equal(TCP->submitted, 2);
	assert_int_equal(item_status(batch, 0), -EIO - 2);
	assert_int_equal(item_status(batch, 1), -EIO - 2);
	drop_batch(batch);
}

/* The text of a reason lies in what the next plan overwrites. */
static void reroute__for_a_long_reason(void **state)
{
	struct wh_batch *batch = batch_of(8);
	char why[2 * WH_REFUSAL];

	(void)state;
	memset(why, 'y', sizeof(why) - 1);
	why[sizeof(why) - 1] = 0;
	RDMA->on_submit = FAKE_REROUTES;
	RDMA->error = -EIO;
	RDMA->why = why;
	SHM->on_submit = FAKE_ENDS;
	submit(batch);
	assert_int_equal(wh_batch_status(batch), 0);
	assert_int_equal(strlen(batch->share[WH_TRANSPORT_RDMA].refused), WH_REFUSAL - 1);
	drop_batch(batch);
}

/* ---- cancelling ---------------------------------------------------------------------------- */

static void cancel__what_ends(void **state)
{
	struct wh_batch *batch = batch_of_two();

	(void)state;
	RDMA->ends_on_cancel = true;
	submit(batch);
	assert_int_equal(wh_batch_cancel(batch), 0);
	assert_int_equal(wh_batch_status(batch), -ECANCELED);
	assert_int_equal(RDMA->cancelled, 2);
	assert_int_equal(RDMA->aborted, 0);
	assert_int_equal(wh_batch_cancel(batch), 0);
	assert_int_equal(RDMA->cancelled, 2);
	/* One that was cancelled can be submitted again, and is not cancelled then. */
	submit(batch);
	fake_end(RDMA, 0);
	fake_end(RDMA, 0);
	assert_int_equal(wh_batch_status(batch), 0);
	/* One that has ended stays as it is. */
	assert_int_equal(wh_batch_cancel(batch), 0);
	assert_int_equal(wh_batch_status(batch), 0);
	assert_int_equal(RDMA->cancelled, 2);
	drop_batch(batch);
}

/* A fragment that has ended is not cancelled. */
static void cancel__half_of_it(void **state)
{
	struct wh_batch *batch = batch_of_two();

	(void)state;
	RDMA->ends_on_cancel = true;
	submit(batch);
	fake_end(RDMA, 0);
	assert_int_equal(wh_batch_cancel(batch), 0);
	assert_int_equal(RDMA->cancelled, 1);
	assert_int_equal(wh_batch_status(batch), -ECANCELED);
	assert_int_equal(item_status(batch, 0), 0);
	assert_int_equal(item_status(batch, 1), -ECANCELED);
	drop_batch(batch);
}

/* What a transport gives back while it is cancelled goes to no other one. */
static void cancel__instead_of_a_reroute(void **state)
{
	struct wh_batch *batch = batch_of(8);

	(void)state;
	RDMA->reroutes_on_cancel = true;
	submit(batch);
	assert_int_equal(wh_batch_cancel(batch), 0);
	assert_int_equal(wh_batch_status(batch), -ECANCELED);
	assert_int_equal(SHM->submitted, 0);
	drop_batch(batch);
}

/* What does not end is aborted by every transport; one that cannot confirm makes it an error. */
static void cancel__what_does_not_end(void **state)
{
	struct wh_batch *batch = batch_of(8);

	(void)state;
	RDMA->ends_on_abort = true;
	submit(batch);
	assert_int_equal(wh_batch_cancel(batch), 0);
	assert_int_equal(RDMA->aborted, 1);
	assert_int_equal(SHM->aborted, 1);
	assert_int_equal(TCP->aborted, 1);
	assert_int_equal(wh_batch_status(batch), -ECANCELED);
	RDMA->abort_error = -ETIMEDOUT;
	submit(batch);
	assert_int_equal(wh_batch_cancel(batch), -ETIMEDOUT);
	said("alone does not answer");
	assert_int_equal(RDMA->aborted, 2);
	assert_int_equal(wh_batch_status(batch), -ECANCELED);
	drop_batch(batch);
}

/* ---- notifications ------------------------------------------------------------------------- */

static int take_notification(void)
{
	struct wh_notification got = { .size = sizeof(got) };

	return wh_engine_notification(engine, NULL, &got, 0);
}

/* It arrives after the bytes of a batch that succeeds, and never of another one. */
static void notify__only_behind_the_bytes(void **state)
{
	struct wh_batch *batch = batch_of_two();

	(void)state;
	assert_int_equal(wh_batch_notify(batch, 5, "", 0), 0);
	submit(batch);
	fake_end(RDMA, 0);
	assert_int_equal(take_notification(), -EAGAIN);
	fake_end(RDMA, 0);
	assert_int_equal(wh_batch_wait_for(batch, WH_FOREVER), 0);
	assert_int_equal(wh_batch_status(batch), 0);
	assert_int_equal(take_notification(), 0);
	submit(batch);
	fake_end(RDMA, 0);
	fake_end(RDMA, -EIO);
	assert_int_equal(wh_batch_wait_for(batch, WH_FOREVER), 0);
	assert_int_equal(wh_batch_status(batch), -EIO);
	assert_int_equal(take_notification(), -EAGAIN);
	/* All bytes arrive, but the batch is cancelled meanwhile. */
	submit(batch);
	fake_end(RDMA, 0);
	atomic_store(&batch->cancelled, true);
	fake_end(RDMA, 0);
	assert_int_equal(wh_batch_status(batch), -ECANCELED);
	said("cancelled before its notification was sent");
	assert_int_equal(take_notification(), -EAGAIN);
	drop_batch(batch);
}

/* ---- waiting ------------------------------------------------------------------------------- */

/* A thread that waits lets each transport work, once for all of its fragments. */
static void wait__works(void **state)
{
	struct wh_batch *batch = batch_of_two();

	(void)state;
	submit(batch);
	assert_int_equal(wh_batch_test(batch), -EAGAIN);
	assert_int_equal(RDMA->progressed, 1);
	assert_int_equal(SHM->progressed, 0);
	RDMA->ends_on_progress = true;
	assert_int_equal(wh_batch_wait_for(batch, WH_FOREVER), 0);
	assert_int_equal(RDMA->progressed, 2);
	assert_int_equal(wh_batch_status(batch), 0);
	/* A transport whose fragments have ended has nothing to do. */
	RDMA->ends_on_progress = false;
	RDMA->only = wh_region_id(there);
	add(batch, WH_READ, 300, 1);
	batch->items[2].remote = wh_region_id(here);
	submit(batch);
	fake_end(RDMA, 0);
	fake_end(RDMA, 0);
	assert_int_equal(wh_batch_test(batch), -EAGAIN);
	assert_int_equal(RDMA->progressed, 2);
	assert_int_equal(SHM->progressed, 1);
	fake_end(SHM, 0);
	drop_batch(batch);
}

/* Batches of 4 KiB in flight, as the program sees it. */
static void unseen__from_four_kib(void **state)
{
	struct wh_batch *small = batch_of(WH_UNSEEN_LEAST - 1), *large = batch_of(WH_UNSEEN_LEAST);
	int status;

	(void)state;
	RDMA->on_submit = FAKE_ENDS;
	submit(small);
	assert_int_equal(wh_batch_unseen(small), 0);
	submit(large);
	assert_int_equal(wh_batch_unseen(large), 1);
	submit(large);
	assert_int_equal(wh_batch_unseen(large), 1);
	assert_int_equal(wh_batch_status(large), 0);
	assert_int_equal(wh_batch_unseen(large), 0);
	submit(large);
	assert_int_equal(wh_batch_test(large), 0);
	assert_int_equal(wh_batch_unseen(large), 0);
	submit(large);
	assert_int_equal(wh_batch_transfer_status(large, 0, &status), 0);
	assert_int_equal(wh_batch_unseen(large), 0);
	submit(large);
	drop_batch(large);
	assert_int_equal(wh_batch_unseen(small), 0);
	drop_batch(small);
}

/* ---- queue and callback -------------------------------------------------------------------- */

static struct {
	struct wh_batch *batch;
	int status, waits, cancels, frees, tests;
	unsigned count;
} called;

static void callback(struct wh_batch *batch, int status, void *arg)
{
	assert_ptr_equal(arg, &called);
	called.batch = batch;
	called.status = status;
	called.waits = wh_batch_wait_for(batch, 0);
	called.cancels = wh_batch_cancel(batch);
	called.frees = wh_batch_free(batch);
	called.tests = wh_batch_test(batch);
	called.count++;
}

static void end__by_queue_and_callback(void **state)
{
	struct wh_batch_options options = {
		.size = sizeof(options), .callback = callback, .callback_arg = &called, .user = 9
	};
	struct wh_transfer transfer = transfer_of(WH_WRITE, 0, 1);
	struct wh_completion completion;
	struct wh_batch *batch;

	(void)state;
	memset(&called, 0, sizeof(called));
	assert_int_equal(wh_queue_new(engine, &options.queue), 0);
	assert_int_equal(wh_batch_new(self, &options, &batch), 0);
	assert_int_equal(wh_batch_add(batch, &transfer, 1), 0);
	submit(batch);
	fake_end(RDMA, -EIO);
	assert_int_equal(called.count, 0); /* not on the thread that ends it */
	assert_int_equal(wh_engine_progress(engine, 0), 1);
	assert_int_equal(called.count, 1);
	assert_ptr_equal(called.batch, batch);
	assert_int_equal(called.status, -EIO);
	assert_int_equal(called.waits, -EDEADLK);
	assert_int_equal(called.cancels, -EDEADLK);
	assert_int_equal(called.frees, -EDEADLK);
	assert_int_equal(called.tests, 0);
	assert_int_equal(wh_queue_take(options.queue, &completion, 1, 0), 1);
	assert_int_equal(completion.status, -EIO);
	assert_int_equal(completion.user, 9);
	/* A completion that nobody has taken is withdrawn by the next submission. */
	submit(batch);
	fake_end(RDMA, 0);
	submit(batch);
	assert_int_equal(wh_queue_take(options.queue, &completion, 1, 0), 0);
	fake_end(RDMA, -EIO);
	/* Freeing waits for the callbacks that are due. */
	drop_batch(batch);
	assert_int_equal(called.count, 3);
	assert_int_equal(wh_queue_take(options.queue, &completion, 1, 0), 0);
	assert_int_equal(wh_queue_free(options.queue), 0);
}

static struct {
	struct wh_batch *batch;
	int status;
} turns[8];
static unsigned turn_count;

static void callback_turn(struct wh_batch *batch, int status, void *arg)
{
	(void)arg;
	turns[turn_count].batch = batch;
	turns[turn_count++].status = status;
}

static void turn(struct wh_batch *batch, int status)
{
	submit(batch);
	fake_end(RDMA, status);
}

/* A batch that completes again before its callback keeps its place in the order, and the status of
 * each submission. Who submits it needs memory for that; who completes it does not. */
static void end__callbacks_in_order(void **state)
{
	const struct wh_batch_options options = { .size = sizeof(options),
						  .callback = callback_turn };
	struct wh_transfer transfer = transfer_of(WH_WRITE, 0, 1);
	struct wh_batch *first, *second;

	(void)state;
	turn_count = 0;
	assert_int_equal(wh_batch_new(self, &options, &first), 0);
	assert_int_equal(wh_batch_new(self, &options, &second), 0);
	assert_int_equal(wh_batch_add(first, &transfer, 1), 0);
	assert_int_equal(wh_batch_add(second, &transfer, 1), 0);
	turn(first, 0);
	turn(second, 0);
	turn(first, -EIO);
	assert_int_equal(WITHOUT_MEMORY(1, wh_batch_submit(first)), 0);
	fake_end(RDMA, 0);
	turn(second, -EIO);
	while (wh_engine_progress(engine, 0) > 0)
		;
	assert_int_equal(turn_count, 5);
	for (unsigned i = 0; i < turn_count; i++) {
		assert_ptr_equal(turns[i].batch, i == 1 || i == 4 ? second : first);
		assert_int_equal(turns[i].status, i == 2 || i == 4 ? -EIO : 0);
	}
	/* A submission that fails leaves room for the next one, or for nobody. */
	turn(first, 0);
	for (unsigned i = 0; i < FAKES; i++)
		fakes[fake_order[i]].reach = -EOPNOTSUPP;
	first->planned = 0;
	for (int again = 0; again < 2; again++)
		assert_int_equal(wh_batch_submit(first), -EOPNOTSUPP);
	drop_batch(first);
	drop_batch(second);
	assert_int_equal(turn_count, 6);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(new__nothing_to_wait_for),
		TEST(submit__ends_with_the_last_fragment),
		TEST(submit__nothing),
		TEST(submit__nothing_beside_others),
		TEST(submit__ended_within),
		TEST(submit__holds_regions),
		TEST(submit__holds_regions_of_blocks),
		TEST(submit__no_memory),
		TEST(fail__the_first_error_stays),
		TEST(fail__one_transfer_or_all),
		TEST(part__belongs_to_the_whole),
		TEST(reroute__to_the_next),
		TEST(reroute__nobody_is_left),
		TEST(reroute__for_a_long_reason),
		TEST(cancel__what_ends),
		TEST(cancel__half_of_it),
		TEST(cancel__instead_of_a_reroute),
		TEST(cancel__what_does_not_end),
		TEST(notify__only_behind_the_bytes),
		TEST(wait__works),
		TEST(unseen__from_four_kib),
		TEST(end__by_queue_and_callback),
		TEST(end__callbacks_in_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
