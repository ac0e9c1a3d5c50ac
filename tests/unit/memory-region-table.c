/* SPDX-License-Identifier: Apache-2.0 */
/* memory-region-table.c: region entries: ids, closing, lookup by name and address, iteration,
 * threads */
#include "unit.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include <wherry/memory.h>

#include "memory/region-table.h"
#include "util/clock.h"

#define ANY 0

/* An entry as its owner embeds it: larger than the base, with an odd size. */
struct entry {
	struct wh_region_entry entry;
	uint64_t more[5];
};

static struct wh_region_table table;

static int setup(void **state)
{
	(void)state;
	return wh_region_table_init(&table, sizeof(struct entry));
}

static int teardown(void **state)
{
	(void)state;
	wh_region_table_destroy(&table);
	return 0;
}

static uint64_t id_of(const struct wh_region_entry *entry)
{
	return atomic_load(&entry->id);
}

/* Publish an entry; its id, or a negative errno. */
static int64_t add(uint64_t address, uint64_t length, const char *name,
		   struct wh_region_entry **out)
{
	struct wh_region_entry *entry;
	uint64_t id;
	int error;

	entry = wh_region_table_new(&table, &id);
	assert_non_null(entry);
	entry->address = address;
	entry->length = length;
	entry->access = WH_ACCESS_READ | WH_ACCESS_WRITE;
	entry->kind = WH_MEMORY_PAGEABLE;
	entry->name = name ? strdup(name) : NULL;
	error = wh_region_table_publish(&table, entry, id);
	if (out)
		*out = entry;
	return error;
}

static struct wh_region_entry *must_add(uint64_t address, uint64_t length, const char *name)
{
	struct wh_region_entry *entry;

	assert_int_equal(add(address, length, name, &entry), 0);
	return entry;
}

static void drop(struct wh_region_entry *entry)
{
	assert_true(wh_region_table_close(&table, entry, id_of(entry)));
	wh_region_table_free(&table, entry);
}

/* The address of the entry found, or 0. */
static uint64_t find(uint64_t address, uint64_t length)
{
	struct wh_region_entry copy;
	char name[64];

	return wh_region_table_by_address(&table, address, length, ANY, NULL, &copy, name) ?
		       copy.address :
		       0;
}

/* ---- ids --------------------------------------------------------------- */

static void new__id_is_generation_and_index(void **state)
{
	uint64_t first, second;
	struct wh_region_entry *a = wh_region_table_new(&table, &first),
			       *b = wh_region_table_new(&table, &second);

	(void)state;
	assert_int_equal(wh_region_table_index(first), 0);
	assert_int_equal(wh_region_table_index(second), 1);
	assert_int_equal(first >> 22, a->generation);
	assert_int_not_equal(a->generation, 0);
	assert_int_equal(wh_region_entry_id(b), second);
	assert_int_equal(id_of(a), 0); /* not yet published */
	assert_null(wh_region_entry_enter(&table, first));
	wh_region_table_free(&table, a);
	wh_region_table_free(&table, b);
	assert_int_equal(table.count, 0);
}

static int by_value(const void *a, const void *b)
{
	uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;

	return one < other ? -1 : one > other;
}

/* Each bit above the index is set in about half of the ids, and no id occurs twice. */
static void want_random(uint64_t *ids, size_t count)
{
	for (unsigned bit = 22; bit < 64; bit++) {
		size_t set = 0;

		for (size_t i = 0; i < count; i++)
			set += ids[i] >> bit & 1;
		assert_in_range(set, count / 2 - count / 8, count / 2 + count / 8);
	}
	qsort(ids, count, sizeof(*ids), by_value);
	for (size_t i = 1; i < count; i++)
		assert_true(ids[i] != ids[i - 1]);
}

/* A peer that knows all earlier ids of an entry has to guess every bit of the next. */
static void new__ids_do_not_tell_the_next(void **state)
{
	enum { COUNT = 4096 };
	static uint64_t ids[COUNT], steps[COUNT];
	struct wh_region_entry *first = must_add(0x1000, 16, NULL), *entry;

	(void)state;
	ids[0] = id_of(first);
	drop(first);
	for (size_t i = 1; i < COUNT; i++) {
		entry = must_add(0x1000, 16, NULL);
		assert_ptr_equal(entry, first);
		ids[i] = id_of(entry);
		steps[i] = ids[i] - ids[i - 1];
		assert_null(wh_region_entry_enter(&table, ids[i - 1]));
		drop(entry);
	}
	want_random(steps + 1, COUNT - 1);
	want_random(ids, COUNT);
}

/* Nor do ids of other entries or engines reveal it. */
static void new__entries_and_engines_differ(void **state)
{
	enum { COUNT = 1024 };
	static uint64_t ids[COUNT];
	static struct wh_region_entry *many[COUNT];
	struct wh_region_table other;
	struct wh_region_entry *entry;
	uint64_t id;

	(void)state;
	for (size_t i = 0; i < COUNT; i++) {
		many[i] = must_add(0x1000, 16, NULL);
		ids[i] = id_of(many[i]);
	}
	assert_int_equal(wh_region_table_init(&other, sizeof(struct entry)), 0);
	entry = wh_region_table_new(&other, &id);
	assert_true(id != ids[0]);
	wh_region_table_free(&other, entry);
	wh_region_table_destroy(&other);
	want_random(ids, COUNT);
	for (size_t i = 0; i < COUNT; i++)
		drop(many[i]);
}

static void new__ends_at_the_tables_bound(void **state)
{
	uint64_t id;

	(void)state;
	table.high = WH_REGION_TABLE_CHUNK * WH_REGION_TABLE_CHUNKS;
	assert_null(wh_region_table_new(&table, &id));
	assert_int_equal(table.count, 0);
	table.high = 0;
}

static void at__never_used_is_null(void **state)
{
	struct wh_region_entry *entry = must_add(0x1000, 16, NULL);

	(void)state;
	assert_ptr_equal(wh_region_table_at(&table, 0), entry);
	assert_null(wh_region_table_at(&table, WH_REGION_TABLE_CHUNK));
	assert_null(wh_region_table_at(&table, WH_REGION_TABLE_CHUNK * WH_REGION_TABLE_CHUNKS));
	assert_null(wh_region_table_at(&table, UINT32_MAX));
	assert_null(wh_region_entry_enter(&table, UINT64_MAX));
	assert_null(wh_region_entry_enter(&table, 0));
	/* An unused entry of an allocated chunk: its id is 0. */
	assert_null(wh_region_entry_enter(&table, 5));
	assert_null(wh_region_entry_enter(&table, 5ull | 1ull << 22));
	drop(entry);
}

/* ---- entering and closing ---------------------------------------------- */

static void close__keeps_out_and_waits(void **state)
{
	struct wh_region_entry *entry = must_add(0x1000, 16, NULL);
	uint64_t id = id_of(entry);

	(void)state;
	assert_ptr_equal(wh_region_entry_enter(&table, id), entry);
	assert_null(wh_region_entry_enter(&table, id + 1));
	assert_null(wh_region_entry_enter(&table, id + (1ull << 22)));
	assert_false(wh_region_table_close(&table, entry, id + (1ull << 22)));
	assert_true(wh_region_table_close(&table, entry, id));
	assert_false(wh_region_table_close(&table, entry, id));
	assert_null(wh_region_entry_enter(&table, id));
	assert_int_equal(atomic_load(&entry->users), 1);
	assert_false(wh_region_entry_left(entry, wh_deadline(WH_MS)));
	wh_region_entry_leave(entry);
	assert_true(wh_region_entry_left(entry, wh_deadline(WH_MS)));
	assert_int_equal(wh_region_table_count(&table), 0);
	assert_int_equal(table.count, 1);
	wh_region_table_free(&table, entry);
	assert_int_equal(table.count, 0);
	assert_null(wh_region_entry_enter(&table, id));
}

static void close__reopen(void **state)
{
	struct wh_region_entry *entry = must_add(0x1000, 16, "again");
	uint64_t id = id_of(entry);
	struct wh_region_entry copy;
	char name[64];

	(void)state;
	assert_true(wh_region_table_close(&table, entry, id));
	assert_int_equal(find(0x1000, 16), 0);
	assert_false(wh_region_table_by_name(&table, "again", &copy, name));
	wh_region_table_reopen(&table, entry, id);
	assert_int_equal(wh_region_table_count(&table), 1);
	assert_int_equal(find(0x1000, 16), 0x1000);
	assert_true(wh_region_table_by_name(&table, "again", &copy, name));
	assert_non_null(wh_region_entry_enter(&table, id));
	wh_region_entry_leave(entry);
	drop(entry);
}

static void enter__a_stale_id_does_not_open_the_next_use(void **state)
{
	struct wh_region_entry *entry = must_add(0x1000, 16, NULL), *again;
	uint64_t id = id_of(entry);

	(void)state;
	drop(entry);
	again = must_add(0x2000, 16, NULL);
	assert_ptr_equal(again, entry);
	assert_null(wh_region_entry_enter(&table, id));
	assert_int_equal(atomic_load(&entry->users), 0);
	drop(again);
}

static void holds__never_wraps(void **state)
{
	struct wh_region_entry entry = { .address = 0x1000, .length = 100 };

	(void)state;
	assert_true(wh_region_entry_holds(&entry, 0, 100));
	assert_true(wh_region_entry_holds(&entry, 100, 0));
	assert_true(wh_region_entry_holds(&entry, 99, 1));
	assert_false(wh_region_entry_holds(&entry, 99, 2));
	assert_false(wh_region_entry_holds(&entry, 101, 0));
	assert_false(wh_region_entry_holds(&entry, UINT64_MAX, 2));
	assert_false(wh_region_entry_holds(&entry, 2, UINT64_MAX));
	assert_false(wh_region_entry_holds(&entry, UINT64_MAX, UINT64_MAX));
}

static atomic_bool stop;
static _Atomic uint64_t current;

/* Enter the current id; the entry must not change while in use. */
static void *visit(void *arg)
{
	_Atomic uint64_t *visits = arg;

	while (!atomic_load(&stop)) {
		uint64_t id = atomic_load(&current);
		struct wh_region_entry *entry = wh_region_entry_enter(&table, id);

		if (!entry)
			continue;
		/* The owner sets the address of each use to its id. */
		if (entry->address != id || entry->length != (id >> 32))
			abort();
		wh_region_entry_leave(entry);
		atomic_fetch_add(visits, 1);
	}
	return NULL;
}

static void close__races_with_entering(void **state)
{
	_Atomic uint64_t visits[2] = { 0 };
	pthread_t threads[2];
	int64_t end = wh_now() + 200 * WH_MS;
	unsigned submissions = 0;

	(void)state;
	atomic_store(&stop, false);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, visit, &visits[i]), 0);
	while (wh_now() < end || !atomic_load(&visits[0]) || !atomic_load(&visits[1])) {
		uint64_t id;
		struct wh_region_entry *entry = wh_region_table_new(&table, &id);

		entry->address = id;
		entry->length = id >> 32;
		assert_int_equal(wh_region_table_publish(&table, entry, id), 0);
		atomic_store(&current, id);
		if (++submissions % 16 == 0)
			usleep(100);
		assert_true(wh_region_table_close(&table, entry, id));
		assert_true(wh_region_entry_left(entry, wh_deadline(5 * WH_SECOND)));
		entry->address = entry->length = 0;
		wh_region_table_free(&table, entry);
	}
	atomic_store(&stop, true);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	/* Every use left a stale element in the address index; these do not accumulate. */
	assert_true(table.sorted_room <= 128);
}

/* ---- names ------------------------------------------------------------- */

static void name__finds_a_copy(void **state)
{
	struct wh_region_entry *entry = must_add(0x1000, 16, "kv.cache-0"), copy;
	char name[64];

	(void)state;
	must_add(0x1000, 16, NULL);
	assert_true(wh_region_table_by_name(&table, "kv.cache-0", &copy, name));
	assert_int_equal(id_of(&copy), id_of(entry));
	assert_int_equal(copy.address, 0x1000);
	assert_int_equal(copy.length, 16);
	assert_string_equal(name, "kv.cache-0");
	assert_ptr_equal(copy.name, name);
	assert_false(wh_region_table_by_name(&table, "kv.cache", &copy, name));
	assert_false(wh_region_table_by_name(&table, "", &copy, name));
	drop(entry);
	assert_false(wh_region_table_by_name(&table, "kv.cache-0", &copy, name));
}

static void name__taken(void **state)
{
	struct wh_region_entry *entry = must_add(0x1000, 16, "a"), *other;

	(void)state;
	assert_int_equal(add(0x2000, 16, "a", &other), -EEXIST);
	assert_int_equal(table.count, 1); /* the entry is free again, with its name */
	assert_null(other->name);
	assert_int_equal(find(0x2000, 16), 0);
	drop(entry);
	drop(must_add(0x2000, 16, "a"));
}

static void name__a_closed_place_gives_it_up(void **state)
{
	struct wh_region_entry *entry = must_add(0x1000, 16, "a"), *next, copy;
	char name[64];

	(void)state;
	assert_true(wh_region_table_close(&table, entry, id_of(entry)));
	next = must_add(0x2000, 16, "a");
	assert_true(wh_region_table_by_name(&table, "a", &copy, name));
	assert_int_equal(copy.address, 0x2000);
	/* Freeing the first does not release the second's name. */
	wh_region_table_free(&table, entry);
	assert_true(wh_region_table_by_name(&table, "a", &copy, name));
	assert_int_equal(add(0x3000, 16, "a", NULL), -EEXIST);
	drop(next);
	assert_false(wh_region_table_by_name(&table, "a", &copy, name));
}

/* ---- addresses --------------------------------------------------------- */

static void address__bounds(void **state)
{
	(void)state;
	assert_int_equal(find(0x1000, 1), 0);
	must_add(0x1000, 0x100, NULL);
	assert_int_equal(find(0x1000, 0x100), 0x1000);
	assert_int_equal(find(0x10ff, 1), 0x1000);
	assert_int_equal(find(0x1100, 1), 0);
	assert_int_equal(find(0xfff, 1), 0);
	assert_int_equal(find(0xfff, 2), 0);
	assert_int_equal(find(0x1001, 0x100), 0);
	assert_int_equal(find(0x1001, UINT64_MAX), 0);
	assert_int_equal(find(UINT64_MAX, 2), 0);
}

static void address__the_top_of_the_address_space(void **state)
{
	(void)state;
	must_add(UINT64_MAX - 0x100, 0x100, NULL);
	assert_int_equal(find(UINT64_MAX - 1, 1), UINT64_MAX - 0x100);
	assert_int_equal(find(UINT64_MAX - 1, 2), 0);
	assert_int_equal(find(UINT64_MAX, 1), 0);
}

static void address__the_smallest_that_holds(void **state)
{
	struct wh_region_entry *inner;

	(void)state;
	must_add(0x1000, 0x10000, NULL);
	must_add(0x2000, 0x1000, NULL);
	inner = must_add(0x2100, 0x100, NULL);
	must_add(0x1f00, 0x280, NULL);
	assert_int_equal(find(0x2100, 0x10), 0x2100);
	assert_int_equal(find(0x2100, 0x81), 0x2100);
	assert_int_equal(find(0x20f0, 0x20), 0x1f00);
	assert_int_equal(find(0x2100, 0x101), 0x2000);
	assert_int_equal(find(0x2fff, 2), 0x1000);
	assert_true(wh_region_table_close(&table, inner, id_of(inner)));
	assert_int_equal(find(0x2100, 0x10), 0x1f00);
	wh_region_table_free(&table, inner);
	assert_int_equal(find(0x2100, 0x100), 0x2000);
}

static void address__access(void **state)
{
	struct wh_region_entry *hidden, copy;
	uint64_t id;
	char name[64];

	(void)state;
	must_add(0x1000, 0x1000, NULL);
	hidden = wh_region_table_new(&table, &id);
	hidden->address = 0x1000;
	hidden->length = 0x10;
	hidden->access = 0;
	assert_int_equal(wh_region_table_publish(&table, hidden, id), 0);
	assert_true(wh_region_table_by_address(&table, 0x1000, 4, ANY, NULL, &copy, name));
	assert_int_equal(copy.length, 0x10);
	assert_true(wh_region_table_by_address(&table, 0x1000, 4, WH_ACCESS_READ | WH_ACCESS_WRITE,
					       NULL, &copy, name));
	assert_int_equal(copy.length, 0x1000);
	/* Peers see one. */
	assert_int_equal(wh_region_table_count(&table), 1);
	assert_int_equal(table.count, 2);
}

#define CROWD 400

/* Against a linear search, while entries come and go. */
static void address__equals_brute_force(void **state)
{
	struct wh_region_entry *crowd[CROWD] = { 0 };
	uint64_t seed = 42;

	(void)state;
	for (int turn = 0; turn < 20000; turn++) {
		uint64_t r = next_random(&seed);
		struct wh_region_entry **slot = &crowd[r % CROWD], copy;
		uint64_t address = (r >> 16) % 4000 + 1, length = (r >> 32) % 64 + 1,
			 best = UINT64_MAX;
		char name[64];
		bool found;

		if (r >> 62 == 0) {
			if (*slot)
				drop(*slot);
			*slot = *slot ? NULL : must_add(address, (r >> 40) % 300 + 1, NULL);
			continue;
		}
		for (int i = 0; i < CROWD; i++) {
			const struct wh_region_entry *p = crowd[i];

			if (p && p->address <= address && p->length < best &&
			    address + length <= p->address + p->length)
				best = p->length;
		}
		found = wh_region_table_by_address(&table, address, length, ANY, NULL, &copy, name);
		assert_int_equal(found, best != UINT64_MAX);
		if (found) {
			assert_int_equal(copy.length, best);
			assert_true(copy.address <= address &&
				    address + length <= copy.address + copy.length);
		}
	}
}

/* ---- a peer's ids ------------------------------------------------------ */

static void claim__bounds(void **state)
{
	const uint64_t generation = 7ull << 22;
	const uint32_t last = WH_REGION_TABLE_CHUNK * WH_REGION_TABLE_CHUNKS - 1;
	struct wh_region_entry *entry;

	(void)state;
	assert_null(wh_region_table_claim(&table, 0));
	assert_null(wh_region_table_claim(&table, 3)); /* no generation */
	assert_null(wh_region_table_claim(&table, last));
	assert_int_equal(table.count, 0);
	entry = wh_region_table_claim(&table, generation | last);
	assert_non_null(entry);
	entry->length = 1;
	assert_int_equal(wh_region_table_publish(&table, entry, generation | last), 0);
	assert_ptr_equal(wh_region_entry_enter(&table, generation | last), entry);
	wh_region_entry_leave(entry);
	drop(entry);
	entry = wh_region_table_claim(&table, UINT64_MAX);
	assert_non_null(entry);
	assert_int_equal(entry->index, last);
	assert_int_equal(wh_region_entry_id(entry), UINT64_MAX);
	wh_region_table_free(&table, entry);
}

static void claim__taken_or_old(void **state)
{
	const uint64_t id = 7ull << 22 | 5;
	struct wh_region_entry *entry = wh_region_table_claim(&table, id);

	(void)state;
	assert_non_null(entry);
	assert_null(wh_region_table_claim(&table, id));
	assert_null(wh_region_table_claim(&table, id + (1ull << 22)));
	entry->length = 1;
	assert_int_equal(wh_region_table_publish(&table, entry, id), 0);
	assert_null(wh_region_table_claim(&table, id + (1ull << 22)));
	drop(entry);
	/* An id is not reused; another id, larger or smaller, is another region. */
	assert_null(wh_region_table_claim(&table, id));
	entry = wh_region_table_claim(&table, id - (1ull << 22));
	assert_non_null(entry);
	wh_region_table_free(&table, entry);
	entry = wh_region_table_claim(&table, id + (1ull << 22));
	assert_non_null(entry);
	wh_region_table_free(&table, entry);
}

/* A region that could not be published may come again: after a reconnection, when there is memory.
 */
static void claim__not_published(void **state)
{
	const uint64_t id = 9ull << 22 | 6;
	struct wh_region_entry *other = must_add(0x1000, 16, "taken"), *entry;

	(void)state;
	entry = wh_region_table_claim(&table, id);
	assert_non_null(entry);
	entry->length = 1;
	entry->name = strdup("taken");
	assert_int_equal(wh_region_table_publish(&table, entry, id), -EEXIST);
	drop(other);
	entry = wh_region_table_claim(&table, id);
	assert_non_null(entry);
	entry->name = NULL;
	assert_int_equal(wh_region_table_publish(&table, entry, id), 0);
	drop(entry);
	assert_null(wh_region_table_claim(&table, id));
	assert_int_equal(errno, EPROTO);
}

/* ---- iteration --------------------------------------------------------- */

static void next__open_ones_only(void **state)
{
	struct wh_region_entry *entry[4], copy;
	uint64_t cursor = 0, id;
	char name[64];

	(void)state;
	for (int i = 0; i < 4; i++)
		entry[i] = must_add(0x1000 * (uint64_t)(i + 1), 16, i == 2 ? "third" : NULL);
	drop(entry[0]);
	assert_true(wh_region_table_close(&table, entry[1], id_of(entry[1])));
	assert_true(wh_region_table_next(&table, &cursor, &copy, name));
	assert_int_equal(copy.address, 0x3000);
	assert_int_equal(id_of(&copy), id_of(entry[2]));
	assert_string_equal(name, "third");
	assert_true(wh_region_table_next(&table, &cursor, &copy, name));
	assert_int_equal(copy.address, 0x4000);
	assert_string_equal(name, "");
	assert_null(copy.name);
	assert_false(wh_region_table_next(&table, &cursor, &copy, name));
	assert_false(wh_region_table_next(&table, &cursor, &copy, name));
	/* Across missing chunks. */
	id = 1ull << 22 | (WH_REGION_TABLE_CHUNK * 40 + 3);
	entry[0] = wh_region_table_claim(&table, id);
	entry[0]->address = 0x9000;
	entry[0]->length = 1;
	assert_int_equal(wh_region_table_publish(&table, entry[0], id), 0);
	assert_true(wh_region_table_next(&table, &cursor, &copy, name));
	assert_int_equal(copy.address, 0x9000);
	assert_false(wh_region_table_next(&table, &cursor, &copy, name));
}

/* A peer may use any indices: missing first chunks hide nothing. */
static void next__without_the_first_few(void **state)
{
	uint64_t id = 1ull << 22 | (WH_REGION_TABLE_FEW + 1), cursor = 0;
	struct wh_region_entry copy, *entry;
	char name[64];

	(void)state;
	assert_null(wh_region_table_at(&table, WH_REGION_TABLE_FEW - 1));
	entry = wh_region_table_claim(&table, id);
	entry->address = 0x9000;
	entry->length = 1;
	entry->name = strdup("far"); /* freed with the table: the leak sanitizer checks it */
	assert_int_equal(wh_region_table_publish(&table, entry, id), 0);
	assert_null(wh_region_table_at(&table, WH_REGION_TABLE_FEW - 1));
	assert_non_null(wh_region_table_at(&table, WH_REGION_TABLE_FEW));
	assert_true(wh_region_table_next(&table, &cursor, &copy, name));
	assert_int_equal(copy.address, 0x9000);
	assert_int_equal(cursor, WH_REGION_TABLE_FEW + 2);
	assert_false(wh_region_table_next(&table, &cursor, &copy, name));
}

#define MANY 100000

static void publish__a_hundred_thousand(void **state)
{
	struct wh_region_entry copy;
	char name[64];
	int64_t start = wh_now(), published, looked;

	(void)state;
	for (uint64_t i = 0; i < MANY; i++) {
		/* In random order. */
		uint64_t slot = i * 7919 % MANY;

		snprintf(name, sizeof(name), "layer.%u", (unsigned)slot);
		must_add((slot + 1) * 4096, 4096, i % 16 ? NULL : name);
	}
	published = wh_now();
	for (uint64_t i = 0; i < MANY; i++)
		assert_int_equal(find((i + 1) * 4096 + 8, 16), (i + 1) * 4096);
	looked = wh_now();
	printf("%d published in %.1f ms, looked up in %.1f ms\n", MANY,
	       (double)(published - start) / WH_MS, (double)(looked - published) / WH_MS);
	assert_true(wh_region_table_by_name(&table, "layer.0", &copy, name));
	assert_int_equal(wh_region_table_count(&table), MANY);
	/* And alternately: remove one, add one, look one up. */
	start = wh_now();
	for (uint64_t i = 0; i < MANY / 10; i++) {
		uint64_t slot = i * 7919 % MANY;

		drop(wh_region_table_at(&table, (uint32_t)i));
		must_add((slot + 1) * 4096, 4096, NULL);
		assert_int_equal(find((i + 1) * 4096 + 8, 16), (i + 1) * 4096);
	}
	printf("%d changes, each followed by a look, in %.1f ms\n", MANY / 10,
	       (double)(wh_now() - start) / WH_MS);
	assert_true(wh_now() - start < 10 * WH_SECOND);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(new__id_is_generation_and_index),
		TEST(new__ids_do_not_tell_the_next),
		TEST(new__entries_and_engines_differ),
		TEST(new__ends_at_the_tables_bound),
		TEST(at__never_used_is_null),
		TEST(close__keeps_out_and_waits),
		TEST(close__reopen),
		TEST(enter__a_stale_id_does_not_open_the_next_use),
		TEST(holds__never_wraps),
		TEST(close__races_with_entering),
		TEST(name__finds_a_copy),
		TEST(name__taken),
		TEST(name__a_closed_place_gives_it_up),
		TEST(address__bounds),
		TEST(address__the_top_of_the_address_space),
		TEST(address__the_smallest_that_holds),
		TEST(address__access),
		TEST(address__equals_brute_force),
		TEST(claim__bounds),
		TEST(claim__taken_or_old),
		TEST(claim__not_published),
		TEST(next__open_ones_only),
		TEST(next__without_the_first_few),
		TEST(publish__a_hundred_thousand),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
