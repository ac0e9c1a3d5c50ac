/* SPDX-License-Identifier: Apache-2.0 */
/* batch.c: transfers by address */
#include "core-region.h"

#include "core/batch.h"

/* `other` has local memory, as `memory` is that of `owner`. */
static char local[1 << 16] __attribute__((aligned(4096)));

static struct wh_region *add_local(struct wh_engine *engine, size_t offset, size_t length)
{
	struct wh_region *region;

	assert_int_equal(wh_region_register(engine, local + offset, length, NULL, &region), 0);
	return region;
}

static struct wh_batch *batch_new(struct wh_peer *to)
{
	struct wh_batch *batch;

	assert_int_equal(wh_batch_new(to, NULL, &batch), 0);
	return batch;
}

/* Wait until the peer shows a region with these bytes, or none. A wider region that holds them
 * counts, too: with one, use await_id(). */
static void await_region(size_t offset, size_t length, bool shown)
{
	int64_t end = wh_now() + PATIENCE;
	struct wh_remote remote;
	uint64_t at;

	while (!wh_peer_lookup(peer, (uintptr_t)memory + offset, length, WH_ANSWER, &remote, &at) !=
	       shown) {
		assert_true(wh_now() < end);
		usleep(100);
	}
}

/* Wait until the peer finds this region, the smallest one with these bytes. */
static void await_id(size_t offset, size_t length, struct wh_region *region)
{
	int64_t end = wh_now() + PATIENCE;
	struct wh_remote remote;
	uint64_t at;

	while (wh_peer_lookup(peer, (uintptr_t)memory + offset, length, WH_ANSWER, &remote, &at) ||
	       remote.id != wh_region_id(region)) {
		assert_true(wh_now() < end);
		usleep(100);
	}
}

static struct wh_address_transfer transfer(size_t from, size_t to, uint64_t length, uint32_t op)
{
	return (struct wh_address_transfer){
		.local = local + from,
		.remote = (uintptr_t)memory + to,
		.length = length,
		.op = op,
	};
}

static void run(struct wh_batch *batch)
{
	assert_int_equal(wh_batch_submit(batch), 0);
	assert_int_equal(wh_batch_wait_for(batch, PATIENCE), 0);
	assert_int_equal(wh_batch_status(batch), 0);
}

static void want(int error, const char *text, struct wh_batch *batch,
		 const struct wh_address_transfer *transfers, size_t count)
{
	size_t before = batch->item_count;

	assert_int_equal(wh_batch_add_address(batch, transfers, count), error);
	if (!strstr(wh_error_text(), text))
		fail_msg("\"%s\" is not in \"%s\"", text, wh_error_text());
	assert_int_equal(batch->item_count, before);
}

/* The peer has to be asked about one: the batch fails. Nothing of it is moved. */
static void want_late(int error, const char *text, const struct wh_address_transfer *transfers,
		      size_t count)
{
	struct wh_batch *batch = batch_new(peer);
	int status;

	assert_int_equal(wh_batch_add_address(batch, transfers, count), 0);
	assert_int_equal(wh_batch_submit(batch), 0);
	assert_int_equal(wh_batch_wait_for(batch, PATIENCE), 0);
	assert_int_equal(wh_batch_status(batch), error);
	if (!strstr(wh_error_text(), text))
		fail_msg("\"%s\" is not in \"%s\"", text, wh_error_text());
	for (size_t i = 0; i < count; i++) {
		assert_int_equal(wh_batch_transfer_status(batch, i, &status), 0);
		assert_int_equal(status, error);
	}
	assert_int_equal(wh_batch_free(batch), 0);
}

static void add__moves_the_bytes(void **state)
{
	struct wh_region *there = add(4096, 8192, NULL, ALL), *here, *mine;
	struct wh_peer *const both[] = { peer, self };

	(void)state;
	await_region(4096, 8192, true);
	here = add_local(other, 100, 5000);
	mine = add_local(owner, 100, 5000);
	for (int i = 0; i < 2; i++) {
		struct wh_batch *batch = batch_new(both[i]);
		struct wh_address_transfer list[] = {
			transfer(100, 4096, 1000, WH_WRITE), /* both at the start */
			transfer(5000, 12188, 100, WH_WRITE), /* both at the end */
			transfer(2000, 64, 10, WH_WRITE), /* an offset in a region */
		};

		list[2].remote_region = wh_region_id(there);
		list[2].remote = 6000;
		memset(memory, 0, sizeof(memory));
		for (size_t at = 0; at < sizeof(local); at++)
			local[at] = (char)(at * 7 + at / 256 + 1);
		assert_int_equal(wh_batch_add_address(batch, list, 3), 0);
		run(batch);
		assert_memory_equal(memory + 4096, local + 100, 1000);
		assert_memory_equal(memory + 12188, local + 5000, 100);
		assert_memory_equal(memory + 4096 + 6000, local + 2000, 10);
		assert_int_equal(memory[4096 + 1000], 0);
		assert_int_equal(memory[12187], 0);
		assert_int_equal(memory[12288], 0);
		/* Back, into other places, together with the region form. */
		assert_int_equal(wh_batch_clear(batch), 0);
		list[0] = transfer(4000, 4096, 1000, WH_READ);
		assert_int_equal(wh_batch_add_address(batch, list, 1), 0);
		assert_int_equal(wh_batch_add(batch,
					      &(struct wh_transfer){ .local = i ? mine : here,
								     .local_offset = 3000,
								     .remote = wh_region_id(there),
								     .remote_offset = 8092,
								     .length = 100,
								     .op = WH_READ },
					      1),
				 0);
		memset(local + 3000, 0, 2000);
		run(batch);
		assert_memory_equal(local + 4000, memory + 4096, 1000);
		assert_memory_equal(local + 3100, memory + 12188, 100);
		assert_int_equal(wh_batch_free(batch), 0);
	}
	drop(here);
	drop(mine);
	drop(there);
}

static void add__wrong(void **state)
{
	struct wh_region *there = add(0, 4096, NULL, ALL), *next = add(4096, 4096, NULL, ALL),
			 *readable = add(16384, 4096, NULL, WH_ACCESS_READ),
			 *here = add_local(other, 4096, 4096), *beside = add_local(other, 8192, 64);
	struct wh_address_transfer list[2], good = transfer(4096, 0, 16, WH_WRITE);
	struct wh_batch *batch = batch_new(peer);

	(void)state;
	await_region(16384, 4096, true);
	await_region(4096, 1, true);
	await_region(0, 1, true);
	list[0] = good;
	assert_int_equal(wh_batch_add_address(batch, &good, 1), 0);
#define WRONG(error, text, change)                                                                 \
	do {                                                                                       \
		list[1] = good;                                                                    \
		change;                                                                            \
		want(error, text, batch, list, 2);                                                 \
	} while (0)
#define LATE(error, text, change)                                                                  \
	do {                                                                                       \
		list[1] = good;                                                                    \
		change;                                                                            \
		want_late(error, text, list, 2);                                                   \
	} while (0)
	WRONG(-EINVAL, "transfer 1: op", list[1].op = 0);
	WRONG(-EINVAL, "transfer 1: op", list[1].op = 3);
	WRONG(-EINVAL, "transfer 1: reserved", list[1].reserved = 1);
	WRONG(-ENOENT, "transfer 1: local", list[1].local = NULL);
	WRONG(-ENOENT, "transfer 1: local", list[1].local = local + 4095);
	WRONG(-ENOENT, "transfer 1: local", list[1].local = local + 8192 - 15);
	WRONG(-ENOENT, "transfer 1: local", list[1].local = local + 8192 + 64);
	WRONG(-ENOENT, "transfer 1: local", list[1].length = UINT64_MAX);
	WRONG(-ENOENT, "transfer 1: remote", list[1].remote = UINT64_MAX - 8);
	/* What the peer has to be asked about is refused by it. */
	LATE(-ENOENT, "transfer 1: remote", list[1].remote = 0);
	LATE(-ENOENT, "transfer 1: remote", list[1].remote = (uintptr_t)memory + 4081);
	LATE(-ENOENT, "transfer 1: remote", list[1].remote = (uintptr_t)memory + 8192);
	LATE(-EACCES, "transfer 1: region", list[1].remote = (uintptr_t)memory + 16384);
	LATE(-ENOENT, "transfer 1: ", list[1].remote_region = 1);
	/* With a region, `remote` is an offset. */
	WRONG(-ERANGE, "transfer 1: remote offset", list[1].remote_region = wh_region_id(there));
	WRONG(-ERANGE, "transfer 1: remote offset",
	      (list[1].remote_region = wh_region_id(there), list[1].remote = 4081));
#undef WRONG
#undef LATE
	want(-EINVAL, "transfers", batch, NULL, 1);
	assert_int_equal(wh_batch_add_address(NULL, list, 1), -EINVAL);
	list[1] = transfer(4096, 16384, 16, WH_READ);
	assert_int_equal(wh_batch_add_address(batch, &list[1], 1), 0);
	assert_int_equal(wh_batch_free(batch), 0);
	drop(here);
	drop(beside);
	drop(there);
	drop(next);
	drop(readable);
}

/* Of overlapping regions the smallest that holds the range; of the peer's one that allows it. */
static void add__overlapping(void **state)
{
	struct wh_region *wide = add(0, 8192, NULL, ALL),
			 *narrow = add(4096, 1024, NULL, WH_ACCESS_READ),
			 *large = add_local(other, 0, 8192), *small = add_local(other, 100, 100);
	struct wh_address_transfer list[] = {
		transfer(100, 4096, 100, WH_READ),
		transfer(100, 4096, 100, WH_WRITE),
		transfer(101, 4100, 100, WH_READ),
		transfer(99, 5100, 50, WH_READ),
	};
	struct wh_batch *batch = batch_new(peer);

	(void)state;
	/* The smallest of those that are known, or else the peer's smallest. */
	await_id(4096, 1024, narrow);
	await_region(0, 8192, true);
	await_id(4096, 1024, narrow);
	for (int again = 0; again < 3; again++) {
		assert_int_equal(wh_batch_clear(batch), 0);
		assert_int_equal(wh_batch_add_address(batch, list, 4), 0);
		assert_ptr_equal(batch->items[0].local, small);
		assert_int_equal(batch->items[0].remote, wh_region_id(narrow));
		assert_int_equal(batch->items[0].offset, 0);
		assert_ptr_equal(batch->items[1].local, small);
		assert_int_equal(batch->items[1].remote, wh_region_id(wide));
		assert_int_equal(batch->items[1].offset, 4096);
		assert_ptr_equal(batch->items[2].local, large);
		assert_int_equal(batch->items[2].remote, wh_region_id(narrow));
		assert_ptr_equal(batch->items[3].local, large);
		assert_int_equal(batch->items[3].remote, wh_region_id(wide));
		assert_int_equal(batch->items[3].offset, 5100);
	}
	run(batch);
	assert_int_equal(wh_batch_free(batch), 0);
	drop(large);
	drop(small);
	drop(wide);
	drop(narrow);
}

/* What was found is not used again once its region is gone, even if another one has its place. */
static void add__after_a_region_has_gone(void **state)
{
	struct wh_region *there = add(0, 4096, NULL, ALL), *here = add_local(other, 0, 4096);
	struct wh_address_transfer one = transfer(0, 0, 100, WH_WRITE);
	struct wh_batch *batch = batch_new(peer);
	uint64_t id;

	(void)state;
	await_region(0, 4096, true);
	for (int i = 0; i < 3; i++)
		assert_int_equal(wh_batch_add_address(batch, &one, 1), 0);
	run(batch);
	drop(here);
	want(-ENOENT, "transfer 0: local", batch, &one, 1);
	assert_int_equal(wh_batch_submit(batch), -ESTALE);
	/* Another one at the same addresses, and in the same entry of the table. */
	here = add_local(other, 0, 4096);
	assert_int_equal(wh_batch_submit(batch), -ESTALE);
	assert_int_equal(wh_batch_clear(batch), 0);
	assert_int_equal(wh_batch_add_address(batch, &one, 1), 0);
	assert_int_equal(batch->items[0].local_id, wh_region_id(here));
	run(batch);

	id = batch->items[0].remote;
	drop(there);
	await_region(0, 4096, false);
	want_late(-ENOENT, "transfer 0: remote", &one, 1);
	there = add(0, 4096, NULL, ALL);
	await_region(0, 4096, true);
	assert_int_equal(wh_batch_clear(batch), 0);
	assert_int_equal(wh_batch_add_address(batch, &one, 1), 0);
	assert_int_not_equal(batch->items[0].remote, id);
	assert_int_equal(batch->items[0].remote, wh_region_id(there));
	run(batch);
	assert_int_equal(wh_batch_free(batch), 0);
	drop(here);
	drop(there);
}

static void add__to_a_lost_peer(void **state)
{
	struct wh_region *here = add_local(other, 0, 4096);
	struct wh_address_transfer one = transfer(0, 0, 100, WH_WRITE);
	struct wh_batch *batch = batch_new(peer);
	int64_t end = wh_now() + PATIENCE;
	int error;

	(void)state;
	want_late(-ENOENT, "transfer 0: remote", &one, 1);
	assert_int_equal(wh_peer_close(self), 0);
	assert_int_equal(wh_engine_close(owner), 0);
	do {
		assert_int_equal(wh_batch_clear(batch), 0);
		error = wh_batch_add_address(batch, &one, 1);
		assert_true(wh_now() < end);
	} while (!error);
	assert_int_equal(error, -ECONNRESET);
	assert_int_equal(wh_batch_free(batch), 0);
	drop(here);
	assert_int_equal(wh_peer_close(peer), 0);
	assert_int_equal(wh_engine_close(other), 0);
	assert_int_equal(setup(NULL), 0); /* for the teardown */
}

/* Threads that add while regions of both sides come and go. */
static _Atomic bool stop;

static void *add_always(void *to)
{
	struct wh_batch *batch = batch_new(to);
	struct wh_address_transfer list[] = { transfer(0, 0, 100, WH_WRITE),
					      transfer(8192, 8192, 100, WH_WRITE) };

	const char *wrong = NULL;

	while (!atomic_load(&stop) && !wrong) {
		int error = wh_batch_add_address(batch, list, 2);

		if (error && error != -ENOENT)
			wrong = "two transfers";
		if (wh_batch_add_address(batch, list, 1))
			wrong = "a transfer between regions that stay";
		if (wh_batch_clear(batch))
			wrong = "clearing";
	}
	wh_batch_free(batch);
	return (void *)wrong;
}

static void add__while_regions_come_and_go(void **state)
{
	struct wh_region *kept[] = { add(0, 4096, NULL, ALL), add_local(other, 0, 4096),
				     add_local(owner, 0, 4096) };
	pthread_t threads[2];
	void *wrong;

	(void)state;
	await_region(0, 4096, true);
	atomic_store(&stop, false);
	assert_int_equal(pthread_create(&threads[0], NULL, add_always, peer), 0);
	assert_int_equal(pthread_create(&threads[1], NULL, add_always, self), 0);
	for (int i = 0; i < 300; i++) {
		struct wh_region *there = add(8192, 4096, NULL, ALL),
				 *here = add_local(other, 8192, 4096),
				 *mine = add_local(owner, 8192, 4096);

		drop(mine);
		drop(here);
		drop(there);
	}
	atomic_store(&stop, true);
	for (int i = 0; i < 2; i++) {
		pthread_join(threads[i], &wrong);
		if (wrong)
			fail_msg("%s", (const char *)wrong);
	}
	for (int i = 0; i < 3; i++)
		drop(kept[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(add__moves_the_bytes), TEST(add__wrong),
		TEST(add__overlapping),     TEST(add__after_a_region_has_gone),
		TEST(add__to_a_lost_peer),  TEST(add__while_regions_come_and_go),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
