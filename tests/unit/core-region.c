/* SPDX-License-Identifier: Apache-2.0 */
/* core-region.c: regions of an engine: registering, looking up, unregistering */
#include "core-region.h"

/* ---- register ---------------------------------------------------------- */

static void register__defaults(void **state)
{
	struct wh_region_record record;
	struct wh_region *region;

	(void)state;
	assert_int_equal(wh_region_register(owner, memory, 100, NULL, &region), 0);
	assert_true(wh_region_id(region) != 0);
	wh_region_record(region, &record);
	assert_int_equal(record.id, wh_region_id(region));
	assert_int_equal(record.address, (uintptr_t)memory);
	assert_int_equal(record.length, 100);
	assert_int_equal(record.access, 0);
	assert_int_equal(record.kind, WH_MEMORY_PAGEABLE);
	assert_int_equal(record.flags, 0);
	assert_string_equal(record.name, "");
	drop(region);
}

static int try(void *address, size_t length, struct wh_region_options options)
{
	struct wh_region *region = (struct wh_region *)memory;
	int error;

	options.size = sizeof(options);
	error = wh_region_register(owner, address, length, &options, &region);
	assert_ptr_equal(region, memory); /* unchanged: all calls fail */
	return error;
}

static void register__misuse(void **state)
{
	struct wh_region_options none = { 0 };
	struct wh_region *region;
	char longest[65];

	(void)state;
	assert_int_equal(wh_region_register(NULL, memory, 1, NULL, &region), -EINVAL);
	assert_int_equal(wh_region_register(owner, memory, 1, NULL, NULL), -EINVAL);
	assert_int_equal(try(memory, 0, none), -EINVAL);
	assert_non_null(strstr(wh_error_text(), "length"));
	assert_int_equal(try(NULL, 1, none), -EINVAL);
	assert_int_equal(try(memory, SIZE_MAX, none), -EINVAL);
	assert_int_equal(try(memory, SIZE_MAX - (uintptr_t)memory + 1, none), -EINVAL);
	assert_non_null(strstr(wh_error_text(), "end of the address space"));
	assert_int_equal(try(memory, 1, (struct wh_region_options){ .access = 8 }), -EINVAL);
	assert_int_equal(try(memory, 1, (struct wh_region_options){ .access = 9 }), -EINVAL);
	assert_int_equal(try(memory, 1, (struct wh_region_options){ .name = "" }), -EINVAL);
	assert_int_equal(try(memory, 1, (struct wh_region_options){ .name = "a b" }), -EINVAL);
	assert_int_equal(try(memory, 1, (struct wh_region_options){ .name = "a/b" }), -EINVAL);
	memset(longest, 'n', 64);
	longest[64] = 0;
	assert_int_equal(try(memory, 1, (struct wh_region_options){ .name = longest }), -EINVAL);
	longest[63] = 0;
	drop(add(0, 1, longest, ALL));
	assert_int_equal(owner->regions.count, 0);
}

static void want_bad_grants(uint32_t count, const struct wh_grant *grants, const char *word)
{
	struct wh_region_options options = { .grants = grants, .grant_count = count };

	assert_int_equal(try(memory, 1, options), -EINVAL);
	if (!strstr(wh_error_text(), word))
		fail_msg("it says: %s", wh_error_text());
}

static void register__bad_grants(void **state)
{
	char longest[65];
	struct wh_grant grants[] = { { "a", WH_ACCESS_READ, 0 }, { "b", WH_ACCESS_WRITE, 0 } };

	(void)state;
	memset(longest, 'n', 64);
	longest[64] = 0;
	want_bad_grants(0, grants, "grant_count is 0");
	want_bad_grants(1, NULL, "is NULL");
	want_bad_grants(WH_GRANTS_MAX + 1, grants, "4097");
	grants[1].peer = NULL;
	want_bad_grants(2, grants, "grants[1].peer is NULL");
	grants[1].peer = "";
	want_bad_grants(2, grants, "grants[1].peer is empty");
	grants[1].peer = longest;
	want_bad_grants(2, grants, "grants[1].peer has more");
	grants[1].peer = "a";
	want_bad_grants(2, grants, "names \"a\" twice");
	grants[1] = (struct wh_grant){ "b", 9, 0 };
	want_bad_grants(2, grants, "for \"b\"");
	grants[1] = (struct wh_grant){ "b", 1, 1 };
	want_bad_grants(2, grants, "for \"b\"");
	assert_int_equal(owner->regions.count, 0);
}

/* A named peer has the rights granted to it, more or less than others have. The entry's access is
 * the union of all rights. */
static void register__grants(void **state)
{
	const struct wh_grant grants[] = {
		{ "zoe", WH_ACCESS_WRITE, 0 },
		{ "adam", WH_ACCESS_READ | WH_ACCESS_WRITE, 0 },
		{ "mallory", 0, 0 },
	};
	struct wh_region_options options = { .size = sizeof(options),
					     .grants = grants,
					     .grant_count = 3 };
	struct wh_region *region;

	(void)state;
	for (int others = 0; others < 2; others++) {
		options.access = others ? WH_ACCESS_READ : 0;
		assert_int_equal(wh_region_register(owner, memory, 1, &options, &region), 0);
		assert_int_equal(region->entry.access, WH_ACCESS_READ | WH_ACCESS_WRITE);
		assert_int_equal(wh_region_access(region, "zoe"), WH_ACCESS_WRITE);
		assert_int_equal(wh_region_access(region, "adam"),
				 WH_ACCESS_READ | WH_ACCESS_WRITE);
		assert_int_equal(wh_region_access(region, "mallory"), 0);
		assert_int_equal(wh_region_access(region, "ada"), others ? WH_ACCESS_READ : 0);
		assert_int_equal(wh_region_access(region, ""), others ? WH_ACCESS_READ : 0);
		drop(region);
	}
	/* The entry is reused, without grants. */
	region = add(0, 1, NULL, WH_ACCESS_READ);
	assert_int_equal(wh_region_access(region, "mallory"), WH_ACCESS_READ);
	drop(region);
	options.grants = &grants[2];
	options.grant_count = 1;
	options.access = 0;
	assert_int_equal(wh_region_register(owner, memory, 1, &options, &region), 0);
	assert_int_equal(region->entry.access, 0);
	drop(region);
}

static void register__a_name_twice(void **state)
{
	struct wh_region *region = add(0, 100, "kv.0_A-z", ALL), *second;
	const struct wh_region_options options = { .size = sizeof(options), .name = "kv.0_A-z" };

	(void)state;
	assert_int_equal(wh_region_register(owner, memory, 1, &options, &second), -EEXIST);
	assert_non_null(strstr(wh_error_text(), "kv.0_A-z"));
	drop(region);
	drop(add(0, 100, "kv.0_A-z", ALL));
}

static void register__ids_do_not_come_again(void **state)
{
	uint64_t before[100];

	(void)state;
	for (int i = 0; i < 100; i++) {
		struct wh_region *region = add(0, 100, NULL, ALL);

		before[i] = wh_region_id(region);
		for (int j = 0; j < i; j++)
			assert_true(before[i] != before[j]);
		drop(region);
	}
}

static uint8_t flags_of(void *address, size_t length)
{
	struct wh_region_record record;
	struct wh_region *region;

	assert_int_equal(wh_region_register(owner, address, length, NULL, &region), 0);
	wh_region_record(region, &record);
	drop(region);
	return record.flags;
}

static void register__in_an_allocation(void **state)
{
	const struct wh_memory_options private = { .size = sizeof(private),
						   .kind = WH_MEMORY_HUGE };
	/* 10000 bytes in whole pages. */
	size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (9999 / page + 1) * page;
	char *shared, *huge;

	(void)state;
	assert_int_equal(wh_memory_alloc(owner, 10000, NULL, (void **)&shared), 0);
	assert_int_equal(wh_memory_alloc(owner, 10000, &private, (void **)&huge), 0);
	assert_int_equal(flags_of(shared, 10000), WH_REGION_MAPPABLE);
	/* A part, too: whether a peer may map it depends on what else that peer sees. */
	assert_int_equal(flags_of(shared, 9999), WH_REGION_MAPPABLE);
	assert_int_equal(flags_of(shared + 1, 9999), WH_REGION_MAPPABLE);
	assert_int_equal(flags_of(shared, whole), WH_REGION_MAPPABLE);
	assert_int_equal(flags_of(huge, 10000), 0);
	assert_int_equal(try(shared, whole + 1, (struct wh_region_options){ 0 }), -EINVAL);
	assert_int_equal(try(shared + whole - 1, 2, (struct wh_region_options){ 0 }), -EINVAL);
	assert_non_null(strstr(wh_error_text(), "allocation"));
	assert_int_equal(wh_memory_free(owner, shared), 0);
	assert_int_equal(wh_memory_free(owner, huge), 0);
}

/* ---- lookup of own regions --------------------------------------------- */

static void lookup__the_smallest(void **state)
{
	struct wh_region *outer = add(0, 1000, NULL, 0), *inner = add(100, 100, NULL, 0);
	struct wh_region *found = NULL;
	uint64_t offset = 0;

	(void)state;
	assert_int_equal(wh_region_lookup(owner, memory + 150, 50, &found, &offset), 0);
	assert_ptr_equal(found, inner);
	assert_int_equal(offset, 50);
	assert_int_equal(wh_region_lookup(owner, memory + 150, 51, &found, &offset), 0);
	assert_ptr_equal(found, outer);
	assert_int_equal(offset, 150);
	assert_int_equal(wh_region_lookup(owner, memory + 999, 2, &found, &offset), -ENOENT);
	assert_int_equal(wh_region_lookup(owner, memory, SIZE_MAX, &found, &offset), -ENOENT);
	assert_int_equal(wh_region_lookup(owner, NULL, 1, &found, &offset), -ENOENT);
	assert_int_equal(wh_region_lookup(owner, memory, 0, &found, &offset), -EINVAL);
	assert_int_equal(wh_region_lookup(owner, memory, 1, NULL, &offset), -EINVAL);
	assert_int_equal(wh_region_lookup(owner, memory, 1, &found, NULL), -EINVAL);
	assert_int_equal(wh_region_lookup(NULL, memory, 1, &found, &offset), -EINVAL);
	drop(inner);
	drop(outer);
	assert_int_equal(wh_region_lookup(owner, memory, 1, &found, &offset), -ENOENT);
}

static void key__room(void **state)
{
	struct wh_region *region = add(0, 1000, "named", ALL), *hidden = add(0, 1, NULL, 0);
	struct wh_region_record record;
	unsigned char key[WH_KEY_MAX];
	size_t length = sizeof(key), less;
	uint64_t epoch;

	(void)state;
	assert_int_equal(wh_region_pack_key(region, key, &length), 0);
	assert_int_equal(wh_key_decode(key, length, &epoch, &record), 0);
	assert_int_equal(epoch, wh_engine_epoch(owner));
	assert_int_equal(record.id, wh_region_id(region));
	assert_string_equal(record.name, "named");
	less = length - 1;
	assert_int_equal(wh_region_pack_key(region, key, &less), -ENOSPC);
	assert_int_equal(less, length - 1);
	assert_int_equal(wh_region_pack_key(region, key, NULL), -EINVAL);
	assert_int_equal(wh_region_pack_key(region, NULL, &length), -EINVAL);
	assert_int_equal(wh_region_pack_key(NULL, key, &length), -EINVAL);
	assert_int_equal(wh_region_pack_key(hidden, key, &length), -EINVAL);
	drop(region);
	drop(hidden);
}

/* ---- unregister -------------------------------------------------------- */

static void unregister__used_by_a_batch(void **state)
{
	struct wh_region *region = add(0, 100, "busy", ALL);
	uint64_t id = wh_region_id(region);
	struct wh_region_entry *entry;
	struct wh_remote remote;

	(void)state;
	atomic_fetch_add(&region->batches, 1);
	assert_int_equal(wh_region_unregister(region), -EBUSY);
	assert_non_null(strstr(wh_error_text(), "1 unfinished batches"));
	/* The refused call has changed nothing. */
	entry = wh_region_entry_enter(&owner->regions, id);
	assert_non_null(entry);
	wh_region_entry_leave(entry);
	assert_int_equal(wh_peer_find(peer, "busy", PATIENCE, &remote), 0);
	atomic_fetch_sub(&region->batches, 1);
	drop(region);
}

static void unregister__waits_for_a_copy(void **state)
{
	struct wh_region *region = add(0, 100, "copied", ALL);
	uint64_t id = wh_region_id(region);
	struct wh_region_entry *entry = wh_region_entry_enter(&owner->regions, id);
	struct wh_remote remote;
	pthread_t thread;
	int64_t start = wh_now();

	(void)state;
	/* The copy first takes longer than the timeout. */
	assert_int_equal(wh_region_unregister(region), -EBUSY);
	assert_true(wh_now() - start >= 1000 * WH_MS);
	assert_int_equal(wh_region_id(region), id);
	assert_null(wh_region_entry_enter(&owner->regions, id));
	assert_int_equal(wh_peer_find(self, "copied", WH_ANSWER, &remote), -ENOENT);
	/* The name is free during the wait. */
	drop(add(200, 100, "copied", ALL));
	assert_int_equal(pthread_create(&thread, NULL, leave_later, entry), 0);
	while (wh_region_unregister(region) == -EBUSY)
		assert_true(wh_now() - start < PATIENCE);
	pthread_join(thread, NULL);
	assert_int_equal(owner->regions.count, 0);
}

/* Without waiting: the region is unpublished, and goes when it is asked for again. */
static void unregister__for_no_time(void **state)
{
	struct wh_region *region = add(0, 100, "copied", ALL);
	uint64_t id = wh_region_id(region);
	struct wh_region_entry *entry = wh_region_entry_enter(&owner->regions, id);

	(void)state;
	assert_int_equal(wh_region_unregister_for(NULL, 0), 0);
	assert_int_equal(wh_region_unregister_for(region, -1), -EINVAL);
	assert_ptr_equal(wh_region_entry_enter(&owner->regions, id), entry);
	wh_region_entry_leave(entry);
	for (int i = 0; i < 100; i++)
		assert_int_equal(wh_region_unregister_for(region, 0), -EBUSY);
	assert_null(wh_region_entry_enter(&owner->regions, id));
	drop(add(200, 100, "copied", ALL));
	wh_region_entry_leave(entry);
	assert_int_equal(wh_region_unregister_for(region, 0), 0);
	assert_int_equal(wh_region_unregister_for(region, 0), -EINVAL);
	assert_int_equal(owner->regions.count, 0);
}

static void unregister_inside(void *arg)
{
	*(int *)arg =
		wh_region_unregister((struct wh_region *)wh_region_table_at(&owner->regions, 0));
}

static void unregister__misuse(void **state)
{
	struct wh_region *region = add(0, 100, NULL, ALL);
	int error = 0;

	(void)state;
	assert_int_equal(wh_region_unregister(NULL), 0);
	wh_loop_call(&owner->loops[0], unregister_inside, &error);
	assert_int_equal(error, -EDEADLK);
	assert_int_equal(wh_engine_close(owner), -EBUSY);
	drop(region);
	assert_int_equal(wh_region_unregister(region), -EINVAL);
	assert_int_equal(wh_region_id(NULL), 0);
}

static atomic_bool stop;

/* As a submission: count, then check that the region is still the same. */
static void *hold_often(void *arg)
{
	struct wh_region *region = arg;
	uint64_t id;

	for (unsigned turn = 0; !atomic_load(&stop); turn++) {
		if (turn % 64 == 0)
			usleep(50); /* else never idle where threads run one at a time */
		id = atomic_load(&region->entry.id);
		atomic_fetch_add(&region->batches, 1);
		if (id && atomic_load(&region->entry.id) == id && region->entry.length != 100)
			abort();
		atomic_fetch_sub(&region->batches, 1);
	}
	return NULL;
}

static void unregister__races_with_submissions(void **state)
{
	struct wh_region *first = add(0, 100, NULL, ALL), *region = first;
	int64_t end = wh_now() + 100 * WH_MS;
	unsigned busy = 0, gone = 0;
	pthread_t thread;

	(void)state;
	atomic_store(&stop, false);
	assert_int_equal(pthread_create(&thread, NULL, hold_often, region), 0);
	while (wh_now() < end || !gone) {
		int error = wh_region_unregister(region);

		if (error == -EBUSY) {
			busy++;
			sched_yield();
			continue;
		}
		assert_int_equal(error, 0);
		gone++;
		region = add(0, 100, NULL, ALL);
		assert_ptr_equal(region, first); /* the entry is reused */
	}
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	drop(region);
	assert_int_equal(atomic_load(&first->batches), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(register__defaults),
		TEST(register__bad_grants),
		TEST(register__grants),
		TEST(register__misuse),
		TEST(register__a_name_twice),
		TEST(register__ids_do_not_come_again),
		TEST(register__in_an_allocation),
		TEST(lookup__the_smallest),
		TEST(key__room),
		TEST(unregister__used_by_a_batch),
		TEST(unregister__waits_for_a_copy),
		TEST(unregister__for_no_time),
		TEST(unregister__misuse),
		TEST(unregister__races_with_submissions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
