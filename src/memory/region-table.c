/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The region table. Entries are in chunks that never move. Names are in a search tree. Addresses
 * are in an array that is sorted when it is searched: publishing a region is cheap, and the cost of
 * sorting is shared by many.
 */
#include "memory/region-table.h"

#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include <wherry/memory.h>

#include "util/clock.h"

/* bytes; two entries never share a cache line, as different threads count their users */
#define ENTRY_ALIGN 64

/* An unsorted tail of up to so many ranges is searched without sorting it. */
#define TAIL_LEAST 64

#define SORTED_FIRST 64 /* ranges in the first array */

/* wh_region_entry.used */
enum {
	USED = 1,
	CLAIMED = 2, /* a peer chose its index: never on the free list */
	LISTED = 4, /* published: in `sorted` */
};

_Static_assert(WH_REGION_TABLE_CHUNK *WH_REGION_TABLE_CHUNKS == 1u << WH_REGION_TABLE_INDEX_BITS,
	       "the index fits its bits of the id");

int wh_region_table_init(struct wh_region_table *table, size_t entry)
{
	memset(table, 0, sizeof(*table));
	table->entry = (entry + ENTRY_ALIGN - 1) & ~(size_t)(ENTRY_ALIGN - 1);
	return -pthread_mutex_init(&table->lock, NULL);
}

static void node_keep(void *node)
{
	(void)node;
}

void wh_region_table_destroy(struct wh_region_table *table)
{
	tdestroy(table->names, node_keep);
	for (uint32_t i = 0; i < table->high; i++) {
		struct wh_region_entry *entry = wh_region_table_at(table, i);

		if (entry)
			free(entry->name);
		else
			i = wh_region_table_gap(i);
	}
	for (uint32_t i = 0; table->chunks && i < WH_REGION_TABLE_CHUNKS; i++)
		free(table->chunks[i]);
	free(table->chunks);
	free(table->few);
	free(table->sorted);
	for (unsigned i = 0; i < 2; i++) {
		free(table->snapshots[i].before);
		free(table->snapshots[i].ranges);
	}
	pthread_mutex_destroy(&table->lock);
}

/* ---- entries ----------------------------------------------------------- */

/* The entry with this index, allocated if needed. NULL: no memory, or too large. Under the lock. */
static struct wh_region_entry *table_make_entry(struct wh_region_table *table, uint32_t index)
{
	struct wh_region_entry *entry = wh_region_table_at(table, index);
	_Atomic(char *) *chunks = table->chunks;
	char *chunk;

	if (entry || index >= WH_REGION_TABLE_CHUNK * WH_REGION_TABLE_CHUNKS)
		return entry;
	if (index >= WH_REGION_TABLE_FEW && !chunks) {
		chunks = calloc(WH_REGION_TABLE_CHUNKS, sizeof(*chunks));
		if (!chunks)
			return NULL;
		atomic_store_explicit(&table->chunks, chunks, memory_order_release);
	}
	/* calloc() gets so large a chunk fresh from the kernel: unused pages take no memory. */
	chunk = calloc(index < WH_REGION_TABLE_FEW ? WH_REGION_TABLE_FEW : WH_REGION_TABLE_CHUNK,
		       table->entry);
	if (!chunk)
		return NULL;
	atomic_store_explicit(index < WH_REGION_TABLE_FEW ? &table->few :
							    &chunks[index / WH_REGION_TABLE_CHUNK],
			      chunk, memory_order_release);
	return wh_region_table_at(table, index);
}

/* Draw a generation that cannot be guessed, not even from others. Under the lock. False:
 * getrandom() failed. */
static bool table_draw(struct wh_region_table *table, uint64_t *generation)
{
	uint64_t before = *generation;

	do {
		if (!table->drawn_left) {
			if (getrandom(table->drawn, sizeof(table->drawn), 0) !=
			    sizeof(table->drawn))
				return false;
			table->drawn_left = sizeof(table->drawn) / sizeof(table->drawn[0]);
		}
		*generation = table->drawn[--table->drawn_left] >> WH_REGION_TABLE_INDEX_BITS;
	} while (!*generation || *generation == before);
	return true;
}

struct wh_region_entry *wh_region_table_new(struct wh_region_table *table, uint64_t *id)
{
	struct wh_region_entry *entry;

	pthread_mutex_lock(&table->lock);
	entry = table->free ? wh_region_table_at(table, table->free - 1) :
			      table_make_entry(table, table->high);
	if (entry && !table_draw(table, &entry->generation))
		entry = NULL;
	if (entry) {
		if (table->free)
			table->free = (uint32_t)entry->address;
		else
			entry->index = table->high++;
		entry->used = USED;
		table->count++;
		*id = wh_region_entry_id(entry);
	}
	pthread_mutex_unlock(&table->lock);
	return entry;
}

struct wh_region_entry *wh_region_table_claim(struct wh_region_table *table, uint64_t id)
{
	uint32_t index = wh_region_table_index(id);
	uint64_t generation = id >> WH_REGION_TABLE_INDEX_BITS;
	struct wh_region_entry *entry = NULL;

	errno = EPROTO;
	if (!generation)
		return NULL;
	pthread_mutex_lock(&table->lock);
	entry = table_make_entry(table, index);
	/* Generations are random: only a peer that breaks the protocol repeats the last one. */
	if (entry && (entry->used || entry->generation == generation))
		entry = NULL;
	if (entry) {
		entry->index = index;
		entry->generation = generation;
		entry->used = USED | CLAIMED;
		table->count++;
		if (table->high <= index)
			table->high = index + 1;
	}
	pthread_mutex_unlock(&table->lock);
	return entry;
}

/* Make an entry free. Under the lock; its name is out of the tree. */
static void table_release(struct wh_region_table *table, struct wh_region_entry *entry)
{
	bool claimed = entry->used & CLAIMED;

	free(entry->name);
	entry->name = NULL;
	if (entry->used & LISTED)
		table->sorted_gone++;
	entry->used = 0;
	table->count--;
	if (claimed)
		return;
	entry->address = table->free;
	table->free = entry->index + 1;
}

/* May peers see it? */
static bool entry_is_public(const struct wh_region_entry *entry)
{
	return entry->access;
}

bool wh_region_table_close(struct wh_region_table *table, struct wh_region_entry *entry,
			   uint64_t id)
{
	bool open;

	pthread_mutex_lock(&table->lock);
	open = id && atomic_load(&entry->id) == id;
	if (open) {
		/* Sequentially consistent: see wh_region_entry_enter(). */
		atomic_store(&entry->id, 0);
		table->open -= entry_is_public(entry);
	}
	pthread_mutex_unlock(&table->lock);
	return open;
}

/* Pins first: a pin may become a user (wh_region_entry_unpin_enter()), never the reverse. */
static bool entry_is_entered(const struct wh_region_entry *entry)
{
	return atomic_load(&entry->pins) || atomic_load(&entry->users);
}

static bool entry_is_pinned(const struct wh_region_entry *entry)
{
	return atomic_load(&entry->pins);
}

/* Wait until a condition is over. False: the deadline (0: look once) passed. */
static bool entry_wait_while(bool (*holds)(const struct wh_region_entry *entry),
			     const struct wh_region_entry *entry, int64_t deadline)
{
	unsigned round = 0;

	while (holds(entry)) {
		if (!deadline || (round >= 64 && wh_now() > deadline))
			return false;
		wh_pause(&round);
	}
	return true;
}

bool wh_region_entry_left(const struct wh_region_entry *entry, int64_t deadline)
{
	return entry_wait_while(entry_is_entered, entry, deadline);
}

bool wh_region_entry_unpinned(const struct wh_region_entry *entry, int64_t deadline)
{
	return entry_wait_while(entry_is_pinned, entry, deadline);
}

void wh_region_table_reopen(struct wh_region_table *table, struct wh_region_entry *entry,
			    uint64_t id)
{
	pthread_mutex_lock(&table->lock);
	atomic_store(&entry->id, id);
	table->open += entry_is_public(entry);
	pthread_mutex_unlock(&table->lock);
}

static uint32_t table_read(struct wh_region_table *table, const uint32_t *count)
{
	uint32_t value;

	pthread_mutex_lock(&table->lock);
	value = *count;
	pthread_mutex_unlock(&table->lock);
	return value;
}

uint32_t wh_region_table_count(struct wh_region_table *table)
{
	return table_read(table, &table->open);
}

uint32_t wh_region_table_used(struct wh_region_table *table)
{
	return table_read(table, &table->count);
}

/* ---- names ------------------------------------------------------------- */

static int entry_compare_names(const void *a, const void *b)
{
	return strcmp(((const struct wh_region_entry *)a)->name,
		      ((const struct wh_region_entry *)b)->name);
}

/* Add a name to the tree. Under the lock. 0, -EEXIST or -ENOMEM. */
static int table_add_name(struct wh_region_table *table, struct wh_region_entry *entry)
{
	struct wh_region_entry **node = tsearch(entry, &table->names, entry_compare_names);

	if (!node)
		return -ENOMEM;
	/* A closed entry, whose users have not all left yet, gives up its name. */
	if (*node != entry && atomic_load(&(*node)->id))
		return -EEXIST;
	*node = entry;
	return 0;
}

static void table_drop_name(struct wh_region_table *table, struct wh_region_entry *entry)
{
	struct wh_region_entry **node =
		entry->name ? tfind(entry, &table->names, entry_compare_names) : NULL;

	if (node && *node == entry)
		tdelete(entry, &table->names, entry_compare_names);
}

void wh_region_table_free(struct wh_region_table *table, struct wh_region_entry *entry)
{
	pthread_mutex_lock(&table->lock);
	table_drop_name(table, entry);
	table_release(table, entry);
	pthread_mutex_unlock(&table->lock);
}

/* ---- addresses --------------------------------------------------------- */

static int sorted_compare(const void *a, const void *b)
{
	const struct wh_sorted *x = a, *y = b;

	return (x->start > y->start) - (x->start < y->start);
}

/* Move the ranges in [from, to) that are still used to `into`. Returns the end of these. */
static uint32_t sorted_drop_gone(struct wh_region_table *table, uint32_t into, uint32_t from,
				 uint32_t to)
{
	struct wh_sorted *sorted = table->sorted;

	for (; from < to; from++) {
		struct wh_region_entry *entry =
			wh_region_table_at(table, wh_region_table_index(sorted[from].id));

		/* A closed entry stays: it may be reopened. */
		if ((entry->used & LISTED) && wh_region_entry_id(entry) == sorted[from].id)
			sorted[into++] = sorted[from];
	}
	return into;
}

/* Merge the tail, which is sorted, into the sorted part, from the back. */
static void sorted_merge(struct wh_sorted *sorted, uint32_t count, uint32_t used)
{
	uint32_t left = used - count, into = used;
	struct wh_sorted *tail;

	if (!count || !left || sorted[count - 1].start <= sorted[count].start)
		return;
	tail = malloc(left * sizeof(*tail));
	if (!tail) {
		qsort(sorted, used, sizeof(*sorted), sorted_compare);
		return;
	}
	memcpy(tail, sorted + count, left * sizeof(*tail));
	while (left) {
		if (count && sorted[count - 1].start > tail[left - 1].start)
			sorted[--into] = sorted[--count];
		else
			sorted[--into] = tail[--left];
	}
	free(tail);
}

void wh_region_table_sort(struct wh_region_table *table)
{
	struct wh_sorted *sorted = table->sorted;
	uint32_t count = table->sorted_count, used = table->sorted_used;
	uint64_t reach = 0;

	if (table->sorted_gone) {
		uint32_t tail = count;

		count = sorted_drop_gone(table, 0, 0, count);
		used = sorted_drop_gone(table, count, tail, used);
	}
	if (used > count)
		qsort(sorted + count, used - count, sizeof(*sorted), sorted_compare);
	sorted_merge(sorted, count, used);
	for (uint32_t i = 0; i < used; i++) {
		if (sorted[i].end > reach)
			reach = sorted[i].end;
		sorted[i].reach = reach;
	}
	table->sorted_count = table->sorted_used = used;
	table->sorted_gone = 0;
}

/* Make room for one more range. Under the lock. False: no memory. */
static bool table_reserve(struct wh_region_table *table)
{
	struct wh_sorted *grown;
	uint32_t room = table->sorted_room ? table->sorted_room * 2 : SORTED_FIRST;

	if (table->sorted_used < table->sorted_room)
		return true;
	if (table->sorted_gone > table->sorted_used / 2) {
		wh_region_table_sort(table);
		return true;
	}
	grown = realloc(table->sorted, room * sizeof(*grown));
	if (!grown)
		return false;
	table->sorted = grown;
	table->sorted_room = room;
	return true;
}

int wh_region_table_publish(struct wh_region_table *table, struct wh_region_entry *entry,
			    uint64_t id)
{
	int error = 0;

	pthread_mutex_lock(&table->lock);
	if (!table_reserve(table))
		error = -ENOMEM;
	else if (entry->name)
		error = table_add_name(table, entry);
	if (error) {
		/* Nobody has seen the id: a peer that chose it says it again. */
		if (entry->used & CLAIMED)
			entry->generation = 0;
		table_release(table, entry);
	} else {
		table->sorted[table->sorted_used++] = (struct wh_sorted){
			.start = entry->address,
			.end = entry->address + entry->length,
			.id = id,
			.access = entry->access,
		};
		atomic_fetch_add(&table->version, 1);
		entry->used |= LISTED;
		table->open += entry_is_public(entry);
		atomic_store(&entry->id, id);
	}
	pthread_mutex_unlock(&table->lock);
	return error;
}

/* ---- searching --------------------------------------------------------- */

/* Copy the public members of an entry. Under the lock. */
static void entry_copy(const struct wh_region_entry *entry, struct wh_region_entry *copy,
		       char name[64])
{
	memset(copy, 0, sizeof(*copy));
	atomic_store_explicit(&copy->id, wh_region_entry_id(entry), memory_order_relaxed);
	copy->index = entry->index;
	copy->generation = entry->generation;
	copy->access = entry->access;
	copy->kind = entry->kind;
	copy->flags = entry->flags;
	copy->address = entry->address;
	copy->length = entry->length;
	memset(name, 0, 64);
	if (entry->name) {
		memcpy(name, entry->name, strnlen(entry->name, 63));
		copy->name = name;
	}
}

bool wh_region_table_by_name(struct wh_region_table *table, const char *text,
			     struct wh_region_entry *copy, char name[64])
{
	const struct wh_region_entry key = { .name = (char *)text };
	struct wh_region_entry **node;
	bool found;

	pthread_mutex_lock(&table->lock);
	node = tfind(&key, &table->names, entry_compare_names);
	found = node && atomic_load(&(*node)->id);
	if (found)
		entry_copy(*node, copy, name);
	pthread_mutex_unlock(&table->lock);
	return found;
}

bool wh_region_table_by_id(struct wh_region_table *table, uint64_t id, struct wh_region_entry *copy,
			   char name[64])
{
	const struct wh_region_entry *entry;
	bool found;

	pthread_mutex_lock(&table->lock);
	entry = wh_region_table_at(table, wh_region_table_index(id));
	found = entry && id && atomic_load(&entry->id) == id;
	if (found)
		entry_copy(entry, copy, name);
	pthread_mutex_unlock(&table->lock);
	return found;
}

struct region_search {
	uint64_t start, end;
	uint8_t access;
	const struct wh_region_filter *filter;
	struct wh_region_entry *best;
};

/* Take a range as the best match if it holds the searched one and is smaller than the best so far.
 */
static void search_consider(struct wh_region_table *table, const struct wh_sorted *sorted,
			    struct region_search *search)
{
	struct wh_region_entry *entry;

	if (sorted->start > search->start || sorted->end < search->end)
		return;
	entry = wh_region_table_at(table, wh_region_table_index(sorted->id));
	if (atomic_load(&entry->id) != sorted->id ||
	    (search->access && !(entry->access & search->access)) ||
	    (search->filter && !search->filter->passes(search->filter, entry)))
		return;
	if (!search->best || entry->length < search->best->length)
		search->best = entry;
}

bool wh_region_table_by_address(struct wh_region_table *table, uint64_t address, uint64_t length,
				uint8_t access, const struct wh_region_filter *filter,
				struct wh_region_entry *copy, char name[64])
{
	struct region_search search = {
		.start = address, .end = address + length, .access = access, .filter = filter
	};
	uint32_t tail;

	if (search.end < address)
		return false;
	pthread_mutex_lock(&table->lock);
	tail = table->sorted_used - table->sorted_count;
	if (tail > TAIL_LEAST && tail > table->sorted_count / 64)
		wh_region_table_sort(table);
	for (uint32_t i = table->sorted_count; i < table->sorted_used; i++)
		search_consider(table, &table->sorted[i], &search);
	/* From the nearest start backwards, while a range can reach far enough and be smaller than
	 * the best one. */
	for (uint32_t i = wh_sorted_before(table->sorted, 0, table->sorted_count, address); i > 0;
	     i--) {
		const struct wh_sorted *entry = &table->sorted[i - 1];

		if (entry->reach < search.end ||
		    (search.best && search.end - entry->start >= search.best->length))
			break;
		search_consider(table, entry, &search);
	}
	if (search.best)
		entry_copy(search.best, copy, name);
	pthread_mutex_unlock(&table->lock);
	return search.best;
}

bool wh_region_table_next(struct wh_region_table *table, uint64_t *cursor,
			  struct wh_region_entry *copy, char name[64])
{
	bool found = false;

	pthread_mutex_lock(&table->lock);
	while (!found && *cursor < table->high) {
		struct wh_region_entry *entry = wh_region_table_at(table, (uint32_t)*cursor);

		if (!entry) {
			*cursor = wh_region_table_gap((uint32_t)*cursor);
		} else if (atomic_load(&entry->id)) {
			entry_copy(entry, copy, name);
			found = true;
		}
		++*cursor;
	}
	pthread_mutex_unlock(&table->lock);
	return found;
}
