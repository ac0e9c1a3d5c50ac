/* SPDX-License-Identifier: Apache-2.0 */
/* core-region.c: regions of an engine, and how another engine sees them */
#include "unit.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include <wherry/wherry.h>

#include "core/engine.h"
#include "core/peer.h"
#include "core/region.h"
#include "core/remote.h"
#include "memory/region-table.h"
#include "util/clock.h"
#include "util/loop.h"
#include "wire/wire.h"

#define PATIENCE (10 * WH_SECOND)

/* `owner` has the regions. `other` sees them through `peer`, the owner through `self`. */
static struct wh_engine *owner, *other;
static struct wh_peer *peer, *self;
static char memory[1 << 16] __attribute__((aligned(4096)));

static int setup(void **state)
{
	const char *const config[] = { "timeout=1000", NULL };
	const struct wh_engine_options mine = { .size = sizeof(mine), .config = config };
	const struct wh_engine_options theirs = { .size = sizeof(theirs), .listen = "none" };

	(void)state;
	return wh_engine_open(&mine, &owner) || wh_engine_open(&theirs, &other) ||
	       wh_peer_open(other, wh_engine_url(owner), NULL, &peer) ||
	       wh_peer_open(owner, "self", NULL, &self);
}

static int teardown(void **state)
{
	(void)state;
	return wh_peer_close(peer) || wh_peer_close(self) || wh_engine_close(other) ||
	       wh_engine_close(owner);
}

static struct wh_region *add(size_t offset, size_t length, const char *name, uint32_t access)
{
	const struct wh_region_options options = {
		.size = sizeof(options),
		.name = name,
		.access = access,
	};
	struct wh_region *region;

	assert_int_equal(wh_region_register(owner, memory + offset, length, &options, &region), 0);
	return region;
}

static void drop(struct wh_region *region)
{
	assert_int_equal(wh_region_unregister(region), 0);
}

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
	assert_int_equal(record.access, WH_ACCESS_READ | WH_ACCESS_WRITE);
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
	assert_int_equal(try(memory, 1, (struct wh_region_options){ .access = 5 }), -EINVAL);
	assert_int_equal(try(memory, 1, (struct wh_region_options){ .name = "" }), -EINVAL);
	assert_int_equal(try(memory, 1, (struct wh_region_options){ .name = "a b" }), -EINVAL);
	assert_int_equal(try(memory, 1, (struct wh_region_options){ .name = "a/b" }), -EINVAL);
	memset(longest, 'n', 64);
	longest[64] = 0;
	assert_int_equal(try(memory, 1, (struct wh_region_options){ .name = longest }), -EINVAL);
	longest[63] = 0;
	drop(add(0, 1, longest, 0));
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
	grants[1] = (struct wh_grant){ "b", 0, 0 };
	want_bad_grants(2, grants, "for \"b\"");
	grants[1] = (struct wh_grant){ "b", 5, 0 };
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
		{ "mallory", WH_ACCESS_NONE, 0 },
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
		assert_int_equal(wh_region_access(region, "mallory"), WH_ACCESS_NONE);
		assert_int_equal(wh_region_access(region, "ada"),
				 others ? WH_ACCESS_READ : WH_ACCESS_NONE);
		assert_int_equal(wh_region_access(region, ""),
				 others ? WH_ACCESS_READ : WH_ACCESS_NONE);
		drop(region);
	}
	/* The entry is reused, without grants. */
	region = add(0, 1, NULL, 0);
	assert_int_equal(wh_region_access(region, "mallory"), WH_ACCESS_READ | WH_ACCESS_WRITE);
	drop(region);
	options.grants = &grants[2];
	options.grant_count = 1;
	options.access = 0;
	assert_int_equal(wh_region_register(owner, memory, 1, &options, &region), 0);
	assert_int_equal(region->entry.access, WH_ACCESS_NONE);
	drop(region);
}

static void register__a_name_twice(void **state)
{
	struct wh_region *region = add(0, 100, "kv.0_A-z", 0), *second;
	const struct wh_region_options options = { .size = sizeof(options), .name = "kv.0_A-z" };

	(void)state;
	assert_int_equal(wh_region_register(owner, memory, 1, &options, &second), -EEXIST);
	assert_non_null(strstr(wh_error_text(), "kv.0_A-z"));
	drop(region);
	drop(add(0, 100, "kv.0_A-z", 0));
}

static void register__ids_do_not_come_again(void **state)
{
	uint64_t before[100];

	(void)state;
	for (int i = 0; i < 100; i++) {
		struct wh_region *region = add(0, 100, NULL, 0);

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
	char *shared, *huge;

	(void)state;
	assert_int_equal(wh_memory_alloc(owner, 10000, NULL, (void **)&shared), 0);
	assert_int_equal(wh_memory_alloc(owner, 10000, &private, (void **)&huge), 0);
	assert_int_equal(flags_of(shared, 10000), WH_REGION_MAPPABLE);
	/* A part, too: whether a peer may map it depends on what else that peer sees. */
	assert_int_equal(flags_of(shared, 9999), WH_REGION_MAPPABLE);
	assert_int_equal(flags_of(shared + 1, 9999), WH_REGION_MAPPABLE);
	assert_int_equal(flags_of(shared, 12288), WH_REGION_MAPPABLE);
	assert_int_equal(flags_of(huge, 10000), 0);
	assert_int_equal(try(shared, 12289, (struct wh_region_options){ 0 }), -EINVAL);
	assert_int_equal(try(shared + 12287, 2, (struct wh_region_options){ 0 }), -EINVAL);
	assert_non_null(strstr(wh_error_text(), "allocation"));
	assert_int_equal(wh_memory_free(owner, shared), 0);
	assert_int_equal(wh_memory_free(owner, huge), 0);
}

/* ---- lookup of own regions --------------------------------------------- */

static void lookup__the_smallest(void **state)
{
	struct wh_region *outer = add(0, 1000, NULL, 0),
			 *inner = add(100, 100, NULL, WH_ACCESS_NONE);
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
	struct wh_region *region = add(0, 1000, "named", 0),
			 *hidden = add(0, 1, NULL, WH_ACCESS_NONE);
	struct wh_region_record record;
	unsigned char key[WH_KEY_MAX];
	size_t length = sizeof(key), less;
	uint64_t epoch;

	(void)state;
	assert_int_equal(wh_region_key(region, key, &length), 0);
	assert_int_equal(wh_key_decode(key, length, &epoch, &record), 0);
	assert_int_equal(epoch, wh_engine_epoch(owner));
	assert_int_equal(record.id, wh_region_id(region));
	assert_string_equal(record.name, "named");
	less = length - 1;
	assert_int_equal(wh_region_key(region, key, &less), -ENOSPC);
	assert_int_equal(less, length - 1);
	assert_int_equal(wh_region_key(region, key, NULL), -EINVAL);
	assert_int_equal(wh_region_key(region, NULL, &length), -EINVAL);
	assert_int_equal(wh_region_key(NULL, key, &length), -EINVAL);
	assert_int_equal(wh_region_key(hidden, key, &length), -EINVAL);
	drop(region);
	drop(hidden);
}

/* ---- unregister -------------------------------------------------------- */

static void unregister__used_by_a_batch(void **state)
{
	struct wh_region *region = add(0, 100, "busy", 0);
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

static void *leave_later(void *entry)
{
	usleep(30000);
	wh_region_entry_leave(entry);
	return NULL;
}

static void unregister__waits_for_a_copy(void **state)
{
	struct wh_region *region = add(0, 100, "copied", 0);
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
	assert_int_equal(wh_peer_find(self, "copied", 0, &remote), -ENOENT);
	/* The name is free during the wait. */
	drop(add(200, 100, "copied", 0));
	assert_int_equal(pthread_create(&thread, NULL, leave_later, entry), 0);
	while (wh_region_unregister(region) == -EBUSY)
		assert_true(wh_now() - start < PATIENCE);
	pthread_join(thread, NULL);
	assert_int_equal(owner->regions.count, 0);
}

static void unregister_inside(void *arg)
{
	*(int *)arg =
		wh_region_unregister((struct wh_region *)wh_region_table_at(&owner->regions, 0));
}

static void unregister__misuse(void **state)
{
	struct wh_region *region = add(0, 100, NULL, 0);
	int error = 0;

	(void)state;
	assert_int_equal(wh_region_unregister(NULL), -EINVAL);
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
	struct wh_region *first = add(0, 100, NULL, 0), *region = first;
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
		region = add(0, 100, NULL, 0);
		assert_ptr_equal(region, first); /* the entry is reused */
	}
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	drop(region);
	assert_int_equal(atomic_load(&first->batches), 0);
}

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
		assert_int_equal(remote.access, WH_ACCESS_READ);
		assert_int_equal(remote.kind, WH_MEMORY_PAGEABLE);
		assert_string_equal(remote.name, "kv");
		assert_int_equal(wh_peer_find(both[i], "kw", 0, &remote), -ENOENT);
		assert_int_equal(wh_peer_find(both[i], "kw", 5 * WH_MS, &remote), -ENOENT);
		assert_int_equal(wh_peer_find(both[i], "", 0, &remote), -EINVAL);
		assert_int_equal(wh_peer_find(both[i], NULL, 0, &remote), -EINVAL);
		assert_int_equal(wh_peer_find(both[i], "kv", 0, NULL), -EINVAL);
		assert_int_equal(wh_peer_find(both[i], "kv", -1, &remote), -EINVAL);
		assert_int_equal(remote.id, wh_region_id(region));
	}
	drop(region);
	await_regions(0);
	assert_int_equal(wh_peer_find(peer, "kv", 0, &remote), -ENOENT);
	assert_int_equal(wh_peer_find(self, "kv", 0, &remote), -ENOENT);
}

static void find__hidden(void **state)
{
	struct wh_region *hidden = add(0, 100, "hidden", WH_ACCESS_NONE),
			 *seen = add(0, 200, "seen", 0);
	struct wh_peer *const both[] = { peer, self };
	struct wh_remote remote;
	uint64_t cursor, offset;

	(void)state;
	for (int i = 0; i < 2; i++) {
		assert_int_equal(wh_peer_find(both[i], "seen", PATIENCE, &remote), 0);
		assert_int_equal(wh_peer_find(both[i], "hidden", 0, &remote), -ENOENT);
		assert_int_equal(
			wh_peer_lookup(both[i], (uintptr_t)memory + 10, 10, &remote, &offset), 0);
		assert_int_equal(remote.id, wh_region_id(seen));
		assert_int_equal(offset, 10);
		assert_int_equal(
			wh_peer_lookup(both[i], (uintptr_t)memory + 10, 191, &remote, &offset),
			-ENOENT);
		assert_int_equal(wh_peer_lookup(both[i], UINT64_MAX, 2, &remote, &offset), -ENOENT);
		assert_int_equal(wh_peer_lookup(both[i], 1, 0, &remote, &offset), -EINVAL);
		cursor = 0;
		assert_int_equal(wh_peer_next(both[i], &cursor, &remote), 0);
		assert_int_equal(remote.id, wh_region_id(seen));
		assert_int_equal(wh_peer_next(both[i], &cursor, &remote), -ENOENT);
		assert_int_equal(wh_peer_next(both[i], NULL, &remote), -EINVAL);
	}
	drop(hidden);
	drop(seen);
}

struct later {
	struct wh_region *region;
	const char *name;
};

static void *add_later(void *arg)
{
	struct later *later = arg;

	usleep(20000);
	later->region = add(0, 100, later->name, 0);
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
		error = wh_peer_find(peer, "x", 0, &remote);
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
	struct wh_region *region = add(0, 1000, "keyed", 0);
	struct wh_peer *const both[] = { peer, self };
	unsigned char key[WH_KEY_MAX], broken[WH_KEY_MAX];
	size_t length = sizeof(key);
	struct wh_remote remote;

	(void)state;
	assert_int_equal(wh_region_key(region, key, &length), 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(wh_peer_import(both[i], key, length, PATIENCE, &remote), 0);
		assert_int_equal(remote.id, wh_region_id(region));
		assert_int_equal(remote.length, 1000);
		assert_string_equal(remote.name, "keyed");
		assert_int_equal(wh_peer_import(both[i], key, length - 1, 0, &remote), -EINVAL);
		assert_int_equal(wh_peer_import(both[i], key, 0, 0, &remote), -EINVAL);
		assert_int_equal(wh_peer_import(both[i], NULL, length, 0, &remote), -EINVAL);
		assert_int_equal(wh_peer_import(both[i], key, length, 0, NULL), -EINVAL);
		memcpy(broken, key, length);
		broken[0]++; /* the version */
		assert_int_equal(wh_peer_import(both[i], broken, length, 0, &remote),
				 -EPROTONOSUPPORT);
		memcpy(broken, key, length);
		broken[4] ^= 1; /* the epoch */
		assert_int_equal(wh_peer_import(both[i], broken, length, 0, &remote), -ESTALE);
		memcpy(broken, key, length);
		broken[28] ^= 1; /* the region's length */
		assert_int_equal(wh_peer_import(both[i], broken, length, 0, &remote), -EINVAL);
		assert_non_null(strstr(wh_error_text(), "does not match"));
	}
	drop(region);
	await_regions(0);
	assert_int_equal(wh_peer_import(peer, key, length, WH_MS, &remote), -ENOENT);
	assert_int_equal(wh_peer_import(self, key, length, 0, &remote), -ENOENT);
}

#define MANY 20000

static void connect__to_many(void **state)
{
	static struct wh_region *regions[MANY];
	struct wh_remote remote;
	struct wh_peer *second;
	uint64_t cursor = 0, offset;
	unsigned seen = 0;

	(void)state;
	for (size_t i = 0; i < MANY; i++)
		regions[i] = add(i, i % 50 + 1, NULL, 0);
	assert_int_equal(wh_peer_open(other, wh_engine_url(owner), NULL, &second), 0);
	while (!wh_peer_next(second, &cursor, &remote))
		seen++;
	assert_int_equal(seen, MANY);
	assert_int_equal(wh_peer_lookup(second, (uintptr_t)memory + 149, 50, &remote, &offset), 0);
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
	assert_int_equal(wh_remote_remove(&fake, 0), 0);
	assert_int_equal(wh_remote_remove(&fake, ID(5, 0)), 0);
	assert_int_equal(wh_remote_remove(&fake, UINT64_MAX), 0);
	assert_int_equal(says(ID(5, 0), 0x1000, "a"), 0);
	assert_int_equal(wh_remote_remove(&fake, ID(6, 0)), 0);
	assert_int_equal(wh_remote_remove(&fake, ID(5, 1)), 0);
	assert_int_equal(wh_region_table_count(&fake.regions), 1);
	assert_int_equal(wh_remote_remove(&fake, ID(5, 0)), 0);
	assert_int_equal(wh_remote_remove(&fake, ID(5, 0)), 0);
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
	assert_int_equal(wh_remote_remove(&fake, ID(5, 0)), -EBUSY);
	assert_null(wh_region_entry_enter(&fake.regions, ID(5, 0)));
	assert_int_equal(pthread_create(&thread, NULL, leave_later, entry), 0);
	while (wh_remote_remove(&fake, ID(5, 0)) == -EBUSY)
		assert_true(wh_now() < end);
	pthread_join(thread, NULL);
	assert_int_equal(wh_region_table_count(&fake.regions), 0);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)
#define TEST_FAKE(function) cmocka_unit_test_setup_teardown(function, setup_fake, teardown_fake)

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
		TEST(unregister__misuse),
		TEST(unregister__races_with_submissions),
		TEST(find__by_name),
		TEST(find__hidden),
		TEST(find__waits),
		TEST(find__in_a_callback),
		TEST(find__the_peer_is_lost),
		TEST(import__a_key),
		TEST(connect__to_many),
		TEST_FAKE(add__again_or_another),
		TEST_FAKE(remove__unknown_and_known),
		TEST_FAKE(add__makes_way_in_a_new_list),
		TEST_FAKE(remove__while_it_is_copied),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
