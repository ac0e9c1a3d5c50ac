/* SPDX-License-Identifier: Apache-2.0 */
/* transport-copier.c: copies by the CPU. This file stands in for the core. */
#include "unit.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include "core/batch.h"
#include "core/deferred.h"
#include "core/region.h"
#include "memory/region-table.h"
#include "transport/blocks.h"
#include "transport/copier.h"
#include "transport/fragment.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/list.h"

#define PATIENCE (20 * WH_SECOND)

/* ---- stand-in for the core --------------------------------------------- */

/* A batch and its results. */
struct job {
	struct wh_batch batch;
	struct wh_fragment fragment;
	_Atomic int done, rerouted, failures, error;
	uint64_t failed_index;
	char why[WH_REFUSAL];
};

static struct job *job_of(struct wh_fragment *fragment)
{
	return wh_container(fragment, struct job, fragment);
}

void wh_fragment_done(struct wh_fragment *fragment)
{
	struct job *job = job_of(fragment);

	atomic_fetch_add(&job->done, 1);
	atomic_store(&job->batch.state, WH_BATCH_DONE);
}

void wh_fragment_done_at_once(struct wh_fragment *fragment)
{
	wh_fragment_done(fragment);
}

void wh_fragment_fail(struct wh_fragment *fragment, uint64_t index, int error, const char *format,
		      ...)
{
	struct job *job = job_of(fragment);

	(void)format;
	if (!atomic_fetch_add(&job->failures, 1)) {
		job->failed_index = index;
		atomic_store(&job->error, error);
	}
}

void wh_fragment_reroute(struct wh_fragment *fragment, int error, const char *why)
{
	struct job *job = job_of(fragment);

	atomic_store(&job->error, error);
	snprintf(job->why, sizeof(job->why), "%s", why);
	atomic_fetch_add(&job->rerouted, 1);
	atomic_store(&job->batch.state, WH_BATCH_DONE);
}

/* What is linked for wh_batch_fragment() names it; nobody calls it here. */
void wh_deferred_look(struct wh_engine *engine)
{
	(void)engine;
}

static _Atomic uint32_t unseen;

uint32_t wh_batch_unseen(const struct wh_batch *batch)
{
	(void)batch;
	return atomic_load(&unseen);
}

/* ---- local and remote memory ------------------------------------------- */

#define REGIONS 4
#define REGION_SIZE (8u << 20)
#define GUARD 4096u

struct test {
	struct wh_copier copier;
	struct wh_region_table entries;
	struct wh_copier_peer copy;
	uint64_t id[REGIONS];
	char *remote[REGIONS], *local; /* local: as long as all regions together */
	struct wh_item *items;
};

static bool far_regions[REGIONS + 1]; /* and that of copy__very_large() */
static _Atomic int far_error; /* result of move_unmapped() from call number far_after on */
static _Atomic int far_after, far_calls;
static _Atomic int verified;
static _Atomic bool held; /* no chunk is copied until it is false */

static char *map(const struct wh_region_entry *entry, uint32_t op)
{
	(void)op;
	while (atomic_load(&held))
		sched_yield();
	return far_regions[entry->index] ? NULL : (char *)(uintptr_t)entry->address;
}

static int move_unmapped(struct wh_copier_peer *copy, struct wh_unmapped *unmapped)
{
	int call = atomic_fetch_add(&far_calls, 1);

	(void)copy;
	if (atomic_load(&far_error) && call >= atomic_load(&far_after))
		return atomic_load(&far_error);
	for (unsigned i = 0; i < unmapped->count; i++) {
		bool read = unmapped->fragment->op == WH_READ;

		assert_int_equal(unmapped->local[i].iov_len, unmapped->remote[i].iov_len);
		assert_true(atomic_load(&unmapped->entry[i]->users) > 0);
		memcpy(read ? unmapped->local[i].iov_base : unmapped->remote[i].iov_base,
		       read ? unmapped->remote[i].iov_base : unmapped->local[i].iov_base,
		       unmapped->local[i].iov_len);
	}
	return 0;
}

static void refusal(struct wh_copier_peer *copy, char why[WH_REFUSAL])
{
	(void)copy;
	snprintf(why, WH_REFUSAL, "a good reason");
}

static void verify(struct wh_copier_peer *copy, struct wh_fragment *fragment)
{
	(void)copy;
	(void)fragment;
	atomic_fetch_add(&verified, 1);
}

static const struct wh_copier_ops ops = {
	.map = map,
	.move_unmapped = move_unmapped,
	.refusal = refusal,
	.verify = verify,
};
static const struct wh_copier_ops overlapping = { .map = map, .overlaps = true };

static void fill(char *at, size_t length, uint64_t seed)
{
	for (size_t i = 0; i + 8 <= length; i += 8) {
		uint64_t value = next_random(&seed);

		memcpy(at + i, &value, 8);
	}
}

static int setup(void **state)
{
	struct test *test = calloc(1, sizeof(*test));

	assert_non_null(test);
	wh_copier_init(&test->copier, NULL, 3, 40000);
	assert_int_equal(wh_region_table_init(&test->entries, sizeof(struct wh_region)), 0);
	test->local = malloc(REGIONS * REGION_SIZE);
	assert_non_null(test->local);
	fill(test->local, REGIONS * REGION_SIZE, 1);
	for (unsigned i = 0; i < REGIONS; i++) {
		struct wh_region_entry *entry = wh_region_table_new(&test->entries, &test->id[i]);

		assert_non_null(entry);
		test->remote[i] = malloc(REGION_SIZE);
		assert_non_null(test->remote[i]);
		fill(test->remote[i], REGION_SIZE, 100 + i);
		entry->access = WH_ACCESS_READ | WH_ACCESS_WRITE;
		entry->address = (uint64_t)(uintptr_t)test->remote[i];
		entry->length = REGION_SIZE;
		assert_int_equal(wh_region_table_publish(&test->entries, entry, test->id[i]), 0);
	}
	test->copy.copier = &test->copier;
	test->copy.entries = &test->entries;
	test->copy.ops = &ops;
	test->copy.at_once = 1u << 20;
	memset(far_regions, 0, sizeof(far_regions));
	far_error = far_after = far_calls = verified = 0;
	held = false;
	unseen = 1;
	*state = test;
	return 0;
}

static int teardown(void **state)
{
	struct test *test = *state;

	wh_copier_destroy(&test->copier);
	for (unsigned i = 0; i < REGIONS; i++) {
		/* No user has stayed in an entry. */
		assert_int_equal(atomic_load(&wh_region_table_at(&test->entries, i)->users), 0);
		free(test->remote[i]);
	}
	wh_region_table_destroy(&test->entries);
	free(test->local);
	free(test->items);
	free(test);
	return 0;
}

/* A running batch of one fragment. */
static void job_batch(struct job *job)
{
	memset(job, 0, sizeof(*job));
	job->batch.fragments = &job->fragment;
	job->batch.fragment_count = 1;
	job->fragment.batch = &job->batch;
	atomic_store(&job->batch.state, WH_BATCH_RUNNING);
}

static void job_items(struct job *job, struct wh_item *items, size_t count, uint32_t op)
{
	job_batch(job);
	job->batch.items = items;
	job->batch.item_count = count;
	job->fragment.items = items;
	job->fragment.op = op;
	job->fragment.count = job->fragment.transfers = count;
	for (size_t i = 0; i < count; i++)
		job->fragment.bytes += items[i].length;
}

static void job_blocks(struct job *job, struct wh_blocks *blocks)
{
	job_batch(job);
	job->fragment.blocks = blocks;
	job->fragment.op = blocks->op;
	job->fragment.count = blocks->base_count;
	job->fragment.transfers = blocks->base_count * blocks->count;
	job->fragment.bytes = job->fragment.transfers * blocks->block_length;
}

static void await(struct job *job)
{
	int64_t end = wh_now() + PATIENCE;

	while (!atomic_load(&job->done) && !atomic_load(&job->rerouted)) {
		assert_true(wh_now() < end);
		usleep(100);
	}
}

static void go(struct test *test, struct job *job)
{
	wh_copier_submit(&test->copy, &job->fragment);
	wh_copier_progress(&test->copy, &job->batch, INT64_MAX);
	await(job);
	assert_int_equal(atomic_load(&job->done), 1);
}

/* ---- transfers --------------------------------------------------------- */

/* `count` transfers of about `length` bytes at random offsets, without overlap. */
static void make_items(struct test *test, size_t count, size_t length, uint32_t op)
{
	uint64_t seed = count * 31 + length;

	free(test->items);
	test->items = calloc(count, sizeof(*test->items));
	assert_non_null(test->items);
	assert_true((count - 1) / ((REGION_SIZE - 2 * GUARD) / length) < REGIONS);
	for (size_t i = 0; i < count; i++) {
		size_t entry = (i * 7919) % count; /* prime: each offset once */
		size_t per_region = (REGION_SIZE - 2 * GUARD) / length;
		struct wh_item *item = &test->items[i];

		item->length = length - next_random(&seed) % (length / 2 + 1);
		item->address = test->local + i * length;
		item->remote = test->id[entry / per_region];
		item->offset = GUARD + (entry % per_region) * length;
		item->op = op;
	}
}

static void check_items(const struct test *test, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		const struct wh_item *item = &test->items[i];

		assert_memory_equal(item->address,
				    test->remote[wh_region_table_index(item->remote)] +
					    item->offset,
				    item->length);
	}
	for (unsigned i = 0; i < REGIONS; i++) { /* no other byte has changed */
		char *guard = malloc(REGION_SIZE);

		fill(guard, REGION_SIZE, 100 + i);
		assert_memory_equal(guard, test->remote[i], GUARD);
		assert_memory_equal(guard + REGION_SIZE - GUARD,
				    test->remote[i] + REGION_SIZE - GUARD, GUARD);
		free(guard);
	}
}

static void move_all(struct test *test, size_t count, size_t length, uint32_t op)
{
	struct job job;

	make_items(test, count, length, op);
	job_items(&job, test->items, count, op);
	go(test, &job);
	assert_int_equal(job.error, 0);
	check_items(test, count);
}

static void copy__at_once(void **state)
{
	move_all(*state, 1, 8, WH_WRITE);
	move_all(*state, 1, 8, WH_READ);
	move_all(*state, 1, 1u << 20, WH_WRITE);
	move_all(*state, 100, 100, WH_READ);
	move_all(*state, 37, 20000, WH_WRITE);
	assert_int_equal(((struct test *)*state)->copier.threads, 0);
	assert_int_equal(verified, 5);
}

static void copy__queued(void **state)
{
	move_all(*state, 3, 3u << 20, WH_WRITE);
	move_all(*state, 3, 4000000, WH_READ);
	move_all(*state, 1024, 4096, WH_WRITE);
	move_all(*state, 5000, 5000, WH_READ);
	move_all(*state, 100000, 64, WH_WRITE);
	assert_true(((struct test *)*state)->copier.threads > 0);
	assert_int_equal(verified, 5);
}

/* Middling fragments go to the threads if the program has several in flight; short ones never. */
static void copy__many_in_flight(void **state)
{
	struct test *test = *state;

	unseen = 2;
	move_all(test, 1, 100000, WH_WRITE);
	unseen = 100;
	move_all(test, 1, 30000, WH_READ);
	assert_int_equal(test->copier.threads, 0);
	move_all(test, 1, 100000, WH_WRITE);
	assert_int_equal(test->copier.threads, 3);
	move_all(test, 7, 140000, WH_READ);
	unseen = 1;
	assert_int_equal(verified, 4);
}

/* As many fragments as there are threads, while each thread is held by the first that it takes: all
 * are called, those that still poll and those that sleep by then, and none is forgotten. */
static void call__every_thread(void **state)
{
	struct test *test = *state;
	struct job jobs[3];

	make_items(test, 3, 100000, WH_WRITE);
	unseen = 100;
	for (int round = 0; round < 200; round++) {
		int64_t end = wh_now() + PATIENCE;

		atomic_store(&held, true);
		for (int i = 0; i < 3; i++) {
			job_items(&jobs[i], &test->items[i], 1, WH_WRITE);
			wh_copier_submit(&test->copy, &jobs[i].fragment);
		}
		/* The third has no waiter and no thread that has finished another fragment. */
		for (int i = 0; i < 3; i++) {
			while (atomic_load(&jobs[i].fragment.copier)) {
				assert_true(wh_now() < end);
				sched_yield();
			}
		}
		assert_int_equal(atomic_load(&test->copier.busy), 3);
		atomic_store(&held, false);
		for (int i = 0; i < 3; i++)
			await(&jobs[i]);
		if (round % 2)
			usleep((useconds_t)round);
	}
	unseen = 1;
	check_items(test, 3);
}

static void copy__queued_without_a_waiter(void **state)
{
	struct test *test = *state;
	struct job job;

	make_items(test, 100, 100000, WH_WRITE);
	job_items(&job, test->items, 100, WH_WRITE);
	wh_copier_submit(&test->copy, &job.fragment);
	await(&job);
	check_items(test, 100);
}

static void copy__part_of_a_batch(void **state)
{
	struct test *test = *state;
	char before[64];
	struct job job;

	make_items(test, 4, 64, WH_READ);
	memcpy(before, test->items[0].address, 32);
	job_items(&job, test->items, 4, WH_READ);
	job.fragment.first = 1;
	job.fragment.count = 2;
	job.fragment.bytes = test->items[1].length + test->items[2].length;
	go(test, &job);
	assert_memory_equal(before, test->items[0].address, 32);
	assert_memory_equal(test->items[2].address, test->remote[0] + test->items[2].offset,
			    test->items[2].length);
}

/* ---- blocks ------------------------------------------------------------ */

static void blocks_move(struct test *test, uint32_t op, uint64_t length, uint64_t count, bool lists)
{
	struct wh_block_base bases[2];
	struct wh_blocks blocks = {
		.op = op,
		.block_length = length,
		.count = count,
		.base_count = 2,
		.bases = bases,
		.local_stride = length,
		.remote_stride = length + 16,
	};
	uint64_t *local = malloc(count * sizeof(*local)), *remote = malloc(count * sizeof(*remote));
	struct job job;

	for (uint64_t i = 0; i < count; i++) {
		local[i] = (count - 1 - i) * length;
		remote[i] = (i * 7919 % count) * (length + 16);
	}
	for (unsigned b = 0; b < 2; b++) {
		bases[b].address = test->local + b * REGION_SIZE;
		bases[b].remote = test->id[b + 1];
		bases[b].offset = GUARD;
	}
	if (lists) {
		blocks.local_offsets = local;
		blocks.remote_offsets = remote;
	}
	job_blocks(&job, &blocks);
	go(test, &job);
	assert_int_equal(job.error, 0);
	for (unsigned b = 0; b < 2; b++)
		for (uint64_t i = 0; i < count; i++)
			assert_memory_equal(bases[b].address + (lists ? local[i] : i * length),
					    test->remote[b + 1] + GUARD +
						    (lists ? remote[i] : i * (length + 16)),
					    length);
	free(local);
	free(remote);
}

static void blocks__lists_and_strides(void **state)
{
	static const uint64_t lengths[] = { 1, 8, 64, 300, 4096, 40000 };

	for (unsigned i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		uint64_t most = (REGION_SIZE - 2 * GUARD) / (lengths[i] + 16);

		blocks_move(*state, WH_WRITE, lengths[i], most < 3 ? most : 3, true);
		blocks_move(*state, WH_READ, lengths[i], most < 20000 ? most : 20000, true);
		blocks_move(*state, WH_WRITE, lengths[i], most < 20000 ? most : 20000, false);
	}
}

/* ---- overlaps ---------------------------------------------------------- */

static void overlap(struct test *test, int64_t distance, uint64_t length)
{
	char *expected = malloc(REGION_SIZE);
	struct wh_item item = {
		.address = test->remote[0] + (2u << 20),
		.remote = test->id[0],
		.offset = (uint64_t)((2 << 20) + distance),
		.length = length,
	};
	struct job job;

	test->copy.ops = &overlapping;
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		char *here = expected + (2u << 20), *there = expected + item.offset;

		memcpy(expected, test->remote[0], REGION_SIZE);
		memmove(op == WH_READ ? here : there, op == WH_READ ? there : here, length);
		job_items(&job, &item, 1, op);
		go(test, &job);
		assert_memory_equal(expected, test->remote[0], REGION_SIZE);
	}
	free(expected);
}

static void copy__overlapping(void **state)
{
	overlap(*state, 100, 1000);
	overlap(*state, -100, 1000);
	overlap(*state, 4096, 3u << 20);
	overlap(*state, -4096, 3u << 20);
	overlap(*state, -(1 << 20), 5u << 20);
	overlap(*state, 0, 2u << 20);
	overlap(*state, 2 << 20, 2u << 20); /* just not overlapping */
}

/* ---- failures ---------------------------------------------------------- */

static void close_region(struct test *test, unsigned i)
{
	assert_true(wh_region_table_close(&test->entries, wh_region_table_at(&test->entries, i),
					  test->id[i]));
}

static void fail__region_gone(void **state)
{
	struct test *test = *state;
	size_t gone = 0, counts[] = { 100, 4000 };
	struct job job;

	for (unsigned c = 0; c < 2; c++) {
		make_items(test, counts[c], 4000, WH_WRITE);
		if (!c)
			close_region(test, 1);
		gone = 0;
		for (size_t i = 0; i < counts[c]; i++) {
			if (i % 10 == 3)
				test->items[i].remote = test->id[1];
			gone += test->items[i].remote == test->id[1];
		}
		job_items(&job, test->items, counts[c], WH_WRITE);
		go(test, &job);
		assert_int_equal(job.error, -ESTALE);
		assert_int_equal(job.failures, gone);
		for (size_t i = 0; i < counts[c]; i++)
			if (test->items[i].remote != test->id[1])
				assert_memory_equal(
					test->items[i].address,
					test->remote[wh_region_table_index(test->items[i].remote)] +
						test->items[i].offset,
					test->items[i].length);
	}
}

static void fail__not_granted(void **state)
{
	struct test *test = *state;
	struct job job;

	wh_region_table_at(&test->entries, 0)->access = WH_ACCESS_READ;
	make_items(test, 2, 4000, WH_WRITE);
	job_items(&job, test->items, 2, WH_WRITE);
	job.fragment.op = WH_WRITE;
	go(test, &job);
	assert_int_equal(job.error, -EACCES);
	assert_int_equal(job.failures, 2);
	job_items(&job, test->items, 2, WH_READ);
	go(test, &job);
	assert_int_equal(job.error, 0);
}

static void fail__outside(void **state)
{
	static const struct {
		uint64_t offset, length;
	} wrong[] = {
		{ REGION_SIZE, 1 },
		{ REGION_SIZE - 7, 8 },
		{ UINT64_MAX - 3, 8 },
		{ UINT64_MAX, 1 },
	};
	struct test *test = *state;
	struct wh_item items[3];
	struct job job;

	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		memset(items, 0, sizeof(items));
		for (int k = 0; k < 3; k++) {
			items[k].address = test->local + 64 * k;
			items[k].remote = test->id[0];
			items[k].length = 8;
		}
		items[1].offset = wrong[i].offset;
		items[1].length = wrong[i].length;
		job_items(&job, items, 3, WH_READ);
		go(test, &job);
		assert_int_equal(job.error, -ERANGE);
		assert_int_equal(job.failures, 1);
		assert_int_equal(job.failed_index, 1);
		assert_memory_equal(items[2].address, test->remote[0], 8);
	}
}

/* ---- memory that is not mapped ----------------------------------------- */

static void far__mixed(void **state)
{
	far_regions[1] = far_regions[3] = true;
	move_all(*state, 1000, 1000, WH_WRITE);
	move_all(*state, 1000, 30000, WH_READ);
	move_all(*state, 8, 3u << 20, WH_WRITE);
	move_all(*state, 100000, 200, WH_WRITE);
	assert_true(far_calls > 0);
}

static void far__many_in_one_call(void **state)
{
	struct test *test = *state;
	struct job job;

	far_regions[0] = true;
	make_items(test, 1000, 100, WH_WRITE);
	job_items(&job, test->items, 1000, WH_WRITE);
	go(test, &job);
	assert_int_equal(far_calls, (1000 + WH_UNMAPPED_EXTENTS - 1) / WH_UNMAPPED_EXTENTS);
	check_items(test, 1000);
}

static void far__given_up(void **state)
{
	struct test *test = *state;
	struct job job;

	far_regions[2] = true;
	far_error = -EPERM;
	for (int after = 0; after < 4; after++) {
		for (int large = 0; large < 2; large++) {
			far_after = after;
			far_calls = 0;
			make_items(test, large ? 1000 : 30, 30000, WH_WRITE);
			/* The few are all in one region; of the many, which threads share, no two
			 * may get the same place. */
			for (int i = 0; i < 30 && !large; i++)
				test->items[i].remote = test->id[i % 4];
			job_items(&job, test->items, large ? 1000 : 30, WH_WRITE);
			wh_copier_submit(&test->copy, &job.fragment);
			wh_copier_progress(&test->copy, &job.batch, INT64_MAX);
			await(&job);
			assert_int_equal(job.rerouted, 1);
			assert_int_equal(job.done, 0);
			assert_int_equal(job.error, -EPERM);
			assert_string_equal(job.why, "a good reason");
			for (unsigned i = 0; i < REGIONS; i++)
				assert_int_equal(
					atomic_load(&wh_region_table_at(&test->entries, i)->users),
					0);
		}
	}
	assert_int_equal(verified, 0);
}

/* ---- completion and cancellation --------------------------------------- */

static void cancel__queued(void **state)
{
	struct test *test = *state;
	struct job jobs[8];
	int cut = 0;

	/* Each job has memory of its own: several of them can be in flight at once. */
	make_items(test, 8, 4000000, WH_WRITE);
	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < 8; i++) {
			job_items(&jobs[i], &test->items[i], 1, WH_WRITE);
			wh_copier_submit(&test->copy, &jobs[i].fragment);
		}
		for (int i = 7; i >= 0; i--) {
			atomic_store(&jobs[i].fragment.cancelled, true);
			wh_copier_cancel(&test->copy, &jobs[i].fragment);
		}
		for (int i = 0; i < 8; i++) {
			await(&jobs[i]);
			assert_int_equal(jobs[i].done, 1);
			assert_true(!jobs[i].error || jobs[i].error == -ECANCELED);
			cut += jobs[i].error == -ECANCELED;
		}
	}
	assert_true(cut > 20);
	/* A cancel after the end does nothing. */
	wh_copier_cancel(&test->copy, &jobs[0].fragment);
	assert_int_equal(jobs[0].done, 1);
}

static void cancel__before_it_is_queued(void **state)
{
	struct test *test = *state;
	struct job job;

	make_items(test, 2, 4000000, WH_WRITE);
	job_items(&job, test->items, 2, WH_WRITE);
	atomic_store(&job.fragment.cancelled, true);
	go(test, &job);
	assert_int_equal(job.error, -ECANCELED);
}

static void lost__and_again(void **state)
{
	struct test *test = *state;
	struct wh_copier_peer other = test->copy; /* another peer */
	struct job jobs[4], others, late;

	/* Each job has memory of its own: several of them can be in flight at once. */
	make_items(test, 8, 4000000, WH_WRITE);
	atomic_store(&held, true);
	for (int i = 0; i < 4; i++) {
		job_items(&jobs[i], &test->items[i], 1, WH_WRITE);
		wh_copier_submit(&test->copy, &jobs[i].fragment);
	}
	job_items(&others, &test->items[4], 4, WH_WRITE);
	others.batch.priority = others.fragment.priority = WH_PRIORITY_LATENCY;
	wh_copier_submit(&other, &others.fragment);
	wh_copier_lost(&test->copy, -ECONNRESET, "it is gone");
	atomic_store(&held, false);
	for (int i = 0; i < 4; i++) {
		await(&jobs[i]);
		assert_int_equal(jobs[i].done, 1);
	}
	assert_int_equal(jobs[3].error, -ECONNRESET);
	await(&others);
	assert_int_equal(others.error, 0);
	job_items(&late, test->items, 8, WH_WRITE);
	go(test, &late);
	assert_int_equal(late.error, -ECONNRESET);
	wh_copier_again(&test->copy);
	job_items(&late, test->items, 8, WH_WRITE);
	go(test, &late);
	assert_int_equal(late.error, 0);
}

static void help__only_its_own(void **state)
{
	struct test *test = *state;
	struct job job;

	/* Nothing to do and nothing to wait for. */
	job_items(&job, NULL, 0, WH_WRITE);
	wh_copier_progress(&test->copy, &job.batch, INT64_MAX);
	wh_copier_progress(&test->copy, &job.batch, 0);
	/* One call moves at most one chunk, and returns. */
	make_items(test, 8, 4000000, WH_WRITE);
	job_items(&job, test->items, 8, WH_WRITE);
	wh_copier_submit(&test->copy, &job.fragment);
	while (!atomic_load(&job.done))
		wh_copier_progress(&test->copy, &job.batch, 0);
	assert_int_equal(job.done, 1);
	check_items(test, 8);
}

struct crowd {
	struct test *test;
	unsigned number;
};

static void *crowd_main(void *argument)
{
	const struct crowd *crowd = argument;
	struct test *test = crowd->test;
	struct job job;

	for (int round = 0; round < 30; round++) {
		struct wh_item item = {
			.address = test->local + crowd->number * (4u << 20),
			.remote = test->id[crowd->number / 2],
			.offset = (crowd->number % 2) * (4u << 20),
			.length = round % 3 ? (3u << 20) + 17 : 1000,
		};

		job_items(&job, &item, 1, round % 2 ? WH_READ : WH_WRITE);
		job.batch.priority = crowd->number % 2 ? WH_PRIORITY_LATENCY : WH_PRIORITY_BULK;
		job.fragment.priority = job.batch.priority;
		go(test, &job);
		assert_int_equal(job.error, 0);
		assert_memory_equal(item.address, test->remote[crowd->number / 2] + item.offset,
				    item.length);
	}
	return NULL;
}

static void copy__from_eight_threads(void **state)
{
	pthread_t threads[8];
	struct crowd crowd[8];

	for (unsigned i = 0; i < 8; i++) {
		crowd[i] = (struct crowd){ *state, i };
		assert_int_equal(pthread_create(&threads[i], NULL, crowd_main, &crowd[i]), 0);
	}
	for (unsigned i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
}

/* ---- bytes ------------------------------------------------------------- */

static void bytes__past_the_caches(void **state)
{
	size_t room = 1u << 20;
	char *from = malloc(room), *to = malloc(room), *expected = malloc(room);
	uint64_t seed = 5;

	(void)state;
	fill(from, room, 9);
	for (int i = 0; i < 60; i++) {
		size_t a = next_random(&seed) % 5000, b = next_random(&seed) % 5000;
		size_t length = next_random(&seed) % (room - 5000);

		if (i % 4 == 0)
			length = (32u << 10) + (size_t)i % 3 - 1;
		memset(to, 0x55, room);
		memset(expected, 0x55, room);
		memcpy(expected + a, from + b, length);
		wh_copy_bytes(to + a, from + b, length, true);
		assert_memory_equal(expected, to, room);
	}
	/* Overlapping, in both directions. */
	for (int i = 0; i < 2; i++) {
		memcpy(to, from, room);
		memcpy(expected, from, room);
		memmove(expected + (i ? 100 : 0), expected + (i ? 0 : 100), 500000);
		wh_copy_bytes(to + (i ? 100 : 0), to + (i ? 0 : 100), 500000, true);
		assert_memory_equal(expected, to, room);
	}
	free(from);
	free(to);
	free(expected);
}

/* A copy so large that it bypasses the caches. */
static void copy__very_large(void **state)
{
	enum { ITEMS = 12 };
	const size_t length = (size_t)ITEMS * REGION_SIZE;
	struct test *test = *state;
	struct wh_item items[ITEMS];
	struct wh_region_entry *entry;
	char *from = malloc(length), *to = calloc(1, length);
	struct job job;
	uint64_t id;

	assert_true(from && to);
	fill(from, length, 7);
	entry = wh_region_table_new(&test->entries, &id);
	assert_non_null(entry);
	entry->access = WH_ACCESS_WRITE;
	entry->address = (uint64_t)(uintptr_t)to;
	entry->length = length;
	assert_int_equal(wh_region_table_publish(&test->entries, entry, id), 0);
	memset(items, 0, sizeof(items));
	for (unsigned i = 0; i < ITEMS; i++) {
		items[i].address = from + i * (size_t)REGION_SIZE + 5;
		items[i].remote = id;
		items[i].offset = i * (size_t)REGION_SIZE + 77;
		items[i].length = REGION_SIZE - 100;
	}
	job_items(&job, items, ITEMS, WH_WRITE);
	go(test, &job);
	assert_int_equal(job.error, 0);
	for (unsigned i = 0; i < ITEMS; i++)
		assert_memory_equal(items[i].address, to + items[i].offset, items[i].length);
	free(from);
	free(to);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(copy__at_once),
		TEST(copy__many_in_flight),
		TEST(copy__queued),
		TEST(call__every_thread),
		TEST(copy__queued_without_a_waiter),
		TEST(copy__part_of_a_batch),
		TEST(blocks__lists_and_strides),
		TEST(copy__overlapping),
		TEST(fail__region_gone),
		TEST(fail__not_granted),
		TEST(fail__outside),
		TEST(far__mixed),
		TEST(far__many_in_one_call),
		TEST(far__given_up),
		TEST(cancel__queued),
		TEST(cancel__before_it_is_queued),
		TEST(lost__and_again),
		TEST(help__only_its_own),
		TEST(copy__from_eight_threads),
		cmocka_unit_test(bytes__past_the_caches),
		TEST(copy__very_large),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
