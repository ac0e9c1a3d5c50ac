/* SPDX-License-Identifier: Apache-2.0 */
/* core-remote.c: how another engine sees the regions of an engine */
#include "core-region.h"

/* ---- as a peer sees them ----------------------------------------------- */

/* Wait until the peer shows `count` regions. */
static void await_regions(uint32_t count)
{
	struct wh_peer_info info = { .size = sizeof(info) };
	int64_t end = wh_now() + PATIENCE;

	do {
		assert_true(wh_now() < end);
		usleep(100);
		assert_int_equal(wh_peer_info(peer, &info), 0);
	} while (info.regions != count);
}

static void find__by_name(void **state)
{
	struct wh_region *region = add(100, 1000, "kv", WH_ACCESS_READ);
	struct wh_peer *const both[] = { peer, self };
	struct wh_remote remote;

	(void)state;
	for (int i = 0; i < 2; i++) {
		memset(&remote, 0xff, sizeof(remote));
		assert_int_equal(wh_peer_find(both[i], "kv", PATIENCE, &remote), 0);
		assert_int_equal(remote.id, wh_region_id(region));
		assert_int_equal(remote.address, (uintptr_t)memory + 100);
		assert_int_equal(remote.length, 1000);
		assert_int_equal(remote.access, i ? ALL : WH_ACCESS_READ);
		assert_int_equal(remote.kind, WH_MEMORY_PAGEABLE);
		assert_string_equal(remote.name, "kv");
		assert_int_equal(wh_peer_find(both[i], "kw", WH_ANSWER, &remote), -ENOENT);
		assert_int_equal(wh_peer_find(both[i], "kw", 5 * WH_MS, &remote), -ENOENT);
		assert_int_equal(wh_peer_find(both[i], "", WH_ANSWER, &remote), -EINVAL);
		assert_int_equal(wh_peer_find(both[i], NULL, WH_ANSWER, &remote), -EINVAL);
		assert_int_equal(wh_peer_find(both[i], "kv", WH_ANSWER, NULL), -EINVAL);
		assert_int_equal(wh_peer_find(both[i], "kv", -2, &remote), -EINVAL);
		assert_int_equal(remote.id, wh_region_id(region));
	}
	drop(region);
	await_regions(0);
	assert_int_equal(wh_peer_find(peer, "kv", WH_ANSWER, &remote), -ENOENT);
	assert_int_equal(wh_peer_find(self, "kv", WH_ANSWER, &remote), -ENOENT);
}

static void find__hidden(void **state)
{
	struct wh_region *hidden = add(0, 100, "hidden", 0), *seen = add(0, 200, "seen", ALL),
			 *listed = add(1000, 200, "listed", ALL | WH_ACCESS_LIST);
	struct wh_peer *const both[] = { peer, self };
	struct wh_peer_info info = { .size = sizeof(info) };
	struct wh_remote remote, list[4];
	uint64_t cursor, offset;
	size_t count;

	(void)state;
	for (int i = 0; i < 2; i++) {
		assert_int_equal(wh_peer_find(both[i], "seen", PATIENCE, &remote), 0);
		assert_int_equal(wh_peer_info(both[i], &info), 0);
		assert_int_equal(info.regions, i ? 3 : 1);
		/* The engine itself sees its own region. */
		assert_int_equal(wh_peer_find(both[i], "hidden", WH_ANSWER, &remote),
				 i ? 0 : -ENOENT);
		assert_int_equal(wh_peer_lookup(both[i], (uintptr_t)memory + 10, 10, WH_ANSWER,
						&remote, &offset),
				 0);
		assert_int_equal(remote.id, wh_region_id(i ? hidden : seen));
		assert_int_equal(remote.access, ALL);
		assert_int_equal(offset, 10);
		assert_int_equal(wh_peer_lookup(both[i], (uintptr_t)memory + 10, 190, WH_ANSWER,
						&remote, &offset),
				 0);
		assert_int_equal(remote.id, wh_region_id(seen));
		assert_int_equal(wh_peer_lookup(both[i], (uintptr_t)memory + 10, 191, WH_ANSWER,
						&remote, &offset),
				 -ENOENT);
		assert_int_equal(
			wh_peer_lookup(both[i], UINT64_MAX, 2, WH_ANSWER, &remote, &offset),
			-ENOENT);
		assert_int_equal(wh_peer_lookup(both[i], 1, 0, WH_ANSWER, &remote, &offset),
				 -EINVAL);
		cursor = 0;
		count = 4;
		assert_int_equal(wh_peer_list(both[i], &cursor, list, &count, WH_ANSWER), 0);
		assert_int_equal(cursor, 0);
		assert_int_equal(count, i ? 3 : 1);
		assert_int_equal(list[0].id, wh_region_id(i ? hidden : listed));
		if (i) {
			assert_int_equal(list[1].id, wh_region_id(seen));
			assert_int_equal(list[2].id, wh_region_id(listed));
		}
	}
	drop(hidden);
	drop(seen);
	drop(listed);
}

struct later {
	struct wh_region *region;
	const char *name;
};

static void *add_later(void *arg)
{
	struct later *later = arg;

	usleep(20000);
	later->region = add(0, 100, later->name, ALL);
	return NULL;
}

static void find__waits(void **state)
{
	struct wh_peer *const both[] = { peer, self };
	static const char *const names[] = { "late", "later" };
	struct wh_remote remote;
	pthread_t thread;

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct later later = { .name = names[i] };

		assert_int_equal(pthread_create(&thread, NULL, add_later, &later), 0);
		assert_int_equal(
			wh_peer_find(both[i], names[i], i ? WH_FOREVER : PATIENCE, &remote), 0);
		pthread_join(thread, NULL);
		assert_int_equal(remote.id, wh_region_id(later.region));
		drop(later.region);
	}
}

static void lookup__waits(void **state)
{
	struct wh_peer *const both[] = { peer, self };
	struct wh_remote remote;
	pthread_t thread;
	uint64_t offset;

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct later later = { .name = "late" };

		assert_int_equal(wh_peer_lookup(both[i], (uintptr_t)memory + 7, 5, WH_ANSWER,
						&remote, &offset),
				 -ENOENT);
		assert_int_equal(pthread_create(&thread, NULL, add_later, &later), 0);
		assert_int_equal(wh_peer_lookup(both[i], (uintptr_t)memory + 7, 5, PATIENCE,
						&remote, &offset),
				 0);
		pthread_join(thread, NULL);
		assert_int_equal(remote.id, wh_region_id(later.region));
		assert_int_equal(offset, 7);
		drop(later.region);
		await_regions(0);
	}
}

static void find_inside(void *arg)
{
	struct wh_remote remote;
	int *result = arg;

	result[0] = wh_peer_find(peer, "x", WH_MS, &remote);
	result[1] = wh_peer_find(peer, "x", 0, &remote);
}

static void find__in_a_callback(void **state)
{
	int result[2];

	(void)state;
	wh_loop_call(&other->loops[0], find_inside, result);
	assert_int_equal(result[0], -EDEADLK);
	assert_int_equal(result[1], -ENOENT);
}

static void find__the_peer_is_lost(void **state)
{
	struct wh_remote remote;
	int64_t end = wh_now() + PATIENCE;
	int error;

	(void)state;
	assert_int_equal(wh_peer_close(self), 0);
	assert_int_equal(wh_engine_close(owner), 0);
	do {
		error = wh_peer_find(peer, "x", WH_ANSWER, &remote);
		assert_true(wh_now() < end);
	} while (error == -ENOENT);
	assert_int_equal(error, -ECONNRESET);
	/* The peer may return within that time; it does not. */
	assert_int_equal(wh_peer_find(peer, "x", 20 * WH_MS, &remote), -ECONNRESET);
	assert_int_equal(wh_peer_close(peer), 0);
	assert_int_equal(wh_engine_close(other), 0);
	assert_int_equal(setup(NULL), 0); /* for the teardown */
}

static void import__a_key(void **state)
{
	struct wh_region *region = add(0, 1000, "keyed", ALL);
	struct wh_peer *const both[] = { peer, self };
	unsigned char key[WH_KEY_MAX], broken[WH_KEY_MAX];
	size_t length = sizeof(key);
	struct wh_remote remote;

	(void)state;
	assert_int_equal(wh_region_pack_key(region, key, &length), 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(wh_peer_unpack_key(both[i], key, length, PATIENCE, &remote), 0);
		assert_int_equal(remote.id, wh_region_id(region));
		assert_int_equal(remote.length, 1000);
		assert_string_equal(remote.name, "keyed");
		assert_int_equal(wh_peer_unpack_key(both[i], key, length - 1, WH_ANSWER, &remote),
				 -EINVAL);
		assert_int_equal(wh_peer_unpack_key(both[i], key, 0, WH_ANSWER, &remote), -EINVAL);
		assert_int_equal(wh_peer_unpack_key(both[i], NULL, length, WH_ANSWER, &remote),
				 -EINVAL);
		assert_int_equal(wh_peer_unpack_key(both[i], key, length, WH_ANSWER, NULL),
				 -EINVAL);
		memcpy(broken, key, length);
		broken[0]++; /* the version */
		assert_int_equal(wh_peer_unpack_key(both[i], broken, length, WH_ANSWER, &remote),
				 -EPROTONOSUPPORT);
		memcpy(broken, key, length);
		broken[4] ^= 1; /* the epoch */
		assert_int_equal(wh_peer_unpack_key(both[i], broken, length, WH_ANSWER, &remote),
				 -ESTALE);
		memcpy(broken, key, length);
		broken[28] ^= 1; /* the region's length */
		assert_int_equal(wh_peer_unpack_key(both[i], broken, length, WH_ANSWER, &remote),
				 -EINVAL);
		assert_non_null(strstr(wh_error_text(), "does not match"));
	}
	drop(region);
	await_regions(0);
	assert_int_equal(wh_peer_unpack_key(peer, key, length, WH_MS, &remote), -ENOENT);
	assert_int_equal(wh_peer_unpack_key(self, key, length, WH_ANSWER, &remote), -ENOENT);
}

#define MANY 20000

static void list__many(void **state)
{
	static struct wh_region *regions[MANY];
	struct wh_remote remote;
	struct wh_peer *second;
	uint64_t cursor = 0, offset;
	struct wh_remote page[777];
	unsigned seen = 0;
	size_t count;

	(void)state;
	for (size_t i = 0; i < MANY; i++)
		regions[i] = add(i, i % 50 + 1, NULL, ALL | WH_ACCESS_LIST);
	assert_int_equal(wh_peer_open(other, wh_engine_url(owner), NULL, &second), 0);
	do {
		count = sizeof(page) / sizeof(page[0]);
		assert_int_equal(wh_peer_list(second, &cursor, page, &count, WH_ANSWER), 0);
		seen += (unsigned)count;
	} while (cursor);
	assert_int_equal(seen, MANY);
	assert_int_equal(
		wh_peer_lookup(second, (uintptr_t)memory + 149, 50, WH_ANSWER, &remote, &offset),
		0);
	assert_int_equal(remote.id, wh_region_id(regions[149]));
	for (size_t i = 0; i < MANY; i++)
		drop(regions[i]);
	await_regions(0);
	assert_int_equal(wh_peer_close(second), 0);
}

/* ---- announcements of a peer, without a connection, as on loop 0 ------- */

static struct wh_peer fake;

static int setup_fake(void **state)
{
	if (setup(state))
		return -1;
	memset(&fake, 0, sizeof(fake));
	fake.engine = other;
	fake.list_round = 1;
	wh_list_init(&fake.questions);
	pthread_mutex_init(&fake.lock, NULL);
	atomic_store(&fake.state, WH_PEER_CONNECTED);
	return wh_region_table_init(&fake.regions, sizeof(struct wh_remote_region));
}

static int teardown_fake(void **state)
{
	wh_remote_clear(&fake);
	if (fake.regions.count)
		return -1;
	wh_region_table_destroy(&fake.regions);
	pthread_mutex_destroy(&fake.lock);
	return teardown(state);
}

static int says(uint64_t id, uint64_t address, const char *name)
{
	struct wh_region_record record = {
		.id = id,
		.address = address,
		.length = 16,
		.access = WH_ACCESS_READ,
		.kind = WH_MEMORY_PAGEABLE,
	};

	snprintf(record.name, sizeof(record.name), "%s", name);
	return wh_remote_add(&fake, &record);
}

#define ID(generation, index) ((uint64_t)(generation) << 22 | (index))

static void add__again_or_another(void **state)
{
	(void)state;
	assert_int_equal(says(ID(5, 0), 0x1000, "a"), 0);
	assert_int_equal(says(ID(5, 0), 0x1000, "a"), 0);
	assert_int_equal(wh_region_table_count(&fake.regions), 1);
	assert_int_equal(says(ID(5, 0), 0x1001, "a"), -EPROTO);
	assert_int_equal(says(ID(5, 0), 0x1000, "b"), -EPROTO);
	assert_int_equal(says(ID(5, 0), 0x1000, ""), -EPROTO);
	assert_int_equal(says(ID(6, 0), 0x1000, "c"), -EPROTO); /* the entry is in use */
	assert_int_equal(says(ID(5, 1), 0x1000, "a"), -EPROTO); /* the name is taken */
	assert_int_equal(says(ID(0, 1), 0x1000, "d"), -EPROTO);
	assert_int_equal(says(0, 0x1000, "d"), -EPROTO);
	assert_int_equal(says(ID(0, (1 << 22) - 1), 0x1000, "d"), -EPROTO);
	assert_int_equal(wh_region_table_count(&fake.regions), 1);
}

static void remove__unknown_and_known(void **state)
{
	(void)state;
	assert_int_equal(wh_remote_remove(&fake, 0, 0x1000, 16, wh_remote_patience(&fake)), 0);
	assert_int_equal(wh_remote_remove(&fake, ID(5, 0), 0x1000, 16, wh_remote_patience(&fake)),
			 0);
	assert_int_equal(wh_remote_remove(&fake, UINT64_MAX, 0x1000, 16, wh_remote_patience(&fake)),
			 0);
	assert_int_equal(says(ID(5, 0), 0x1000, "a"), 0);
	assert_int_equal(wh_remote_remove(&fake, ID(6, 0), 0x1000, 16, wh_remote_patience(&fake)),
			 0);
	assert_int_equal(wh_remote_remove(&fake, ID(5, 1), 0x1000, 16, wh_remote_patience(&fake)),
			 0);
	assert_int_equal(wh_region_table_count(&fake.regions), 1);
	assert_int_equal(wh_remote_remove(&fake, ID(5, 0), 0x1000, 16, wh_remote_patience(&fake)),
			 0);
	assert_int_equal(wh_remote_remove(&fake, ID(5, 0), 0x1000, 16, wh_remote_patience(&fake)),
			 0);
	assert_int_equal(wh_region_table_count(&fake.regions), 0);
	assert_int_equal(says(ID(5, 0), 0x1000, "a"), -EPROTO); /* it never comes again */
	assert_int_equal(says(ID(6, 0), 0x1000, "a"), 0);
}

/* In the list of a new connection: removals before it were not announced. */
static void add__makes_way_in_a_new_list(void **state)
{
	(void)state;
	assert_int_equal(says(ID(5, 0), 0x1000, "a"), 0);
	assert_int_equal(says(ID(5, 1), 0x2000, "b"), 0);
	assert_int_equal(says(ID(5, 2), 0x3000, ""), 0);
	fake.list_round++;
	assert_int_equal(says(ID(6, 0), 0x4000, "b"), 0); /* replaces entries 0 and 1 */
	assert_int_equal(says(ID(5, 2), 0x3000, ""), 0);
	assert_int_equal(wh_region_table_count(&fake.regions), 2);
	assert_null(wh_region_entry_enter(&fake.regions, ID(5, 0)));
	assert_null(wh_region_entry_enter(&fake.regions, ID(5, 1)));
	/* Within one list, duplicates are a protocol error. */
	assert_int_equal(says(ID(7, 0), 0x4000, ""), -EPROTO);
	assert_int_equal(says(ID(7, 1), 0x4000, "b"), -EPROTO);
}

static void remove__while_it_is_copied(void **state)
{
	int64_t end = wh_now() + PATIENCE;
	struct wh_region_entry *entry;
	pthread_t thread;

	(void)state;
	fake.engine = owner; /* its timeout is short */
	assert_int_equal(says(ID(5, 0), 0x1000, "a"), 0);
	entry = wh_region_entry_enter(&fake.regions, ID(5, 0));
	assert_int_equal(wh_remote_remove(&fake, ID(5, 0), 0x1000, 16, wh_remote_patience(&fake)),
			 -EBUSY);
	assert_null(wh_region_entry_enter(&fake.regions, ID(5, 0)));
	assert_int_equal(pthread_create(&thread, NULL, leave_later, entry), 0);
	while (wh_remote_remove(&fake, ID(5, 0), 0x1000, 16, wh_remote_patience(&fake)) == -EBUSY)
		assert_true(wh_now() < end);
	pthread_join(thread, NULL);
	assert_int_equal(wh_region_table_count(&fake.regions), 0);
}

#define TEST_FAKE(function) cmocka_unit_test_setup_teardown(function, setup_fake, teardown_fake)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(find__by_name),
		TEST(find__hidden),
		TEST(find__waits),
		TEST(lookup__waits),
		TEST(find__in_a_callback),
		TEST(find__the_peer_is_lost),
		TEST(import__a_key),
		TEST(list__many),
		TEST_FAKE(add__again_or_another),
		TEST_FAKE(remove__unknown_and_known),
		TEST_FAKE(add__makes_way_in_a_new_list),
		TEST_FAKE(remove__while_it_is_copied),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
