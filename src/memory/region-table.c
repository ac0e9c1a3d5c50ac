/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The entries lie in chunks that are never moved. Names are in a search tree. Addresses are in an
 * array that is put in order when somebody looks: a change costs nothing at first, and then a share
 * of one merge.
 */
#include "memory/region-table.h"

#include <errno.h>
#include <sched.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include <wherry/memory.h>

#include "util/clock.h"

/* The users of two entries are counted by different threads: not in one cache line. */
#define ENTRY_ALIGN 64

/* A tail so long is looked through as it is. */
#define TAIL_LEAST 64

#define SORTED_FIRST 64

/* wh_region_entry.used */
enum {
	USED = 1,
	CLAIMED = 2, /* its index was chosen by a peer: it is not ours to give out again */
	LISTED = 4, /* it has been published: it is in `sorted` */
};

struct wh_sorted {
	uint64_t start, end;
	uint64_t reach; /* sorted part: the highest end up to and including this one */
	uint64_t id;
};

_Static_assert(WH_REGION_TABLE_CHUNK *WH_REGION_TABLE_CHUNKS == 1u << WH_REGION_TABLE_INDEX_BITS,
	       "an id has room for all");

int wh_region_table_init(struct wh_region_table *table, size_t entry)
{
	memset(table, 0, sizeof(*table));
	table->entry = (entry + ENTRY_ALIGN - 1) & ~(size_t)(ENTRY_ALIGN - 1);
	return -pthread_mutex_init(&table->lock, NULL);
}

static void keep(void *node)
{
	(void)node;
}

void wh_region_table_destroy(struct wh_region_table *table)
{
	tdestroy(table->names, keep);
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
	pthread_mutex_destroy(&table->lock);
}

/* ---- entries ------------------------------------------------------------------------------ */

/* The entry with this index, made if there was none. Under the lock. */
static struct wh_region_entry *entry_at(struct wh_region_table *table, uint32_t index)
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
	/* A chunk is so large that it comes straight from the kernel: what is not used is never
	 * touched. */
	chunk = calloc(index < WH_REGION_TABLE_FEW ? WH_REGION_TABLE_FEW : WH_REGION_TABLE_CHUNK,
		       table->entry);
	if (!chunk)
		return NULL;
	atomic_store_explicit(index < WH_REGION_TABLE_FEW ? &table->few :
							    &chunks[index / WH_REGION_TABLE_CHUNK],
			      chunk, memory_order_release);
	return wh_region_table_at(table, index);
}

/* A generation that nobody can guess, also who has had others. False: the kernel gives no random
 * numbers. */
static bool draw(struct wh_region_table *table, uint64_t *generation)
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
			      entry_at(table, table->high);
	if (entry && !draw(table, &entry->generation))
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

	if (!generation)
		return NULL;
	pthread_mutex_lock(&table->lock);
	entry = entry_at(table, index);
	/* Ids are random: the last one comes again only from a peer that does not draw them. */
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

/* Under the lock; the name is out of the tree. */
static void release(struct wh_region_table *table, struct wh_region_entry *entry)
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

static bool is_public(const struct wh_region_entry *entry)
{
	return !(entry->access & WH_ACCESS_NONE);
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
		table->open -= is_public(entry);
	}
	pthread_mutex_unlock(&table->lock);
	return open;
}

/* Whoever is in the mapping may stay inside without it, but not the other way round. */
static bool is_entered(const struct wh_region_entry *entry)
{
	return atomic_load(&entry->pins) || atomic_load(&entry->users);
}

static bool is_pinned(const struct wh_region_entry *entry)
{
	return atomic_load(&entry->pins);
}

static bool wait_while(bool (*holds)(const struct wh_region_entry *entry),
		       const struct wh_region_entry *entry, int64_t deadline)
{
	struct timespec pause = { 0, 2000 };

	for (unsigned turn = 0; holds(entry); turn++) {
		if (turn < 64) {
			sched_yield();
			continue;
		}
		if (wh_now() > deadline)
			return false;
		nanosleep(&pause, NULL);
		if (pause.tv_nsec < WH_MS)
			pause.tv_nsec *= 2;
	}
	return true;
}

bool wh_region_entry_left(const struct wh_region_entry *entry, int64_t deadline)
{
	return wait_while(is_entered, entry, deadline);
}

bool wh_region_entry_unpinned(const struct wh_region_entry *entry, int64_t deadline)
{
	return wait_while(is_pinned, entry, deadline);
}

void wh_region_table_reopen(struct wh_region_table *table, struct wh_region_entry *entry,
			    uint64_t id)
{
	pthread_mutex_lock(&table->lock);
	atomic_store(&entry->id, id);
	table->open += is_public(entry);
	pthread_mutex_unlock(&table->lock);
}

uint32_t wh_region_table_count(struct wh_region_table *table)
{
	uint32_t count;

	pthread_mutex_lock(&table->lock);
	count = table->open;
	pthread_mutex_unlock(&table->lock);
	return count;
}

/* ---- names -------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct wh_region_entry *)a)->name,
		      ((const struct wh_region_entry *)b)->name);
}

/* Under the lock. -EEXIST, -ENOMEM. */
static int enter_name(struct wh_region_table *table, struct wh_region_entry *entry)
{
	struct wh_region_entry **node = tsearch(entry, &table->names, by_name);

	if (!node)
		return -ENOMEM;
	/* A closed place, whose users are still being waited for, gives up its name. */
	if (*node != entry && atomic_load(&(*node)->id))
		return -EEXIST;
	*node = entry;
	return 0;
}

static void drop_name(struct wh_region_table *table, struct wh_region_entry *entry)
{
	struct wh_region_entry **node = entry->name ? tfind(entry, &table->names, by_name) : NULL;

	if (node && *node == entry)
		tdelete(entry, &table->names, by_name);
}

void wh_region_table_free(struct wh_region_table *table, struct wh_region_entry *entry)
{
	pthread_mutex_lock(&table->lock);
	drop_name(table, entry);
	release(table, entry);
	pthread_mutex_unlock(&table->lock);
}

/* ---- addresses ---------------------------------------------------------------------------- */

static int by_start(const void *a, const void *b)
{
	const struct wh_sorted *x = a, *y = b;

	return (x->start > y->start) - (x->start < y->start);
}

/* Take out what is gone between `from` and `to`; returns where the rest ends. */
static uint32_t drop_gone(struct wh_region_table *table, uint32_t into, uint32_t from, uint32_t to)
{
	struct wh_sorted *sorted = table->sorted;

	for (; from < to; from++) {
		struct wh_region_entry *entry =
			wh_region_table_at(table, wh_region_table_index(sorted[from].id));

		/* A closed one stays: it may be opened again. */
		if ((entry->used & LISTED) && wh_region_entry_id(entry) == sorted[from].id)
			sorted[into++] = sorted[from];
	}
	return into;
}

/* Merge the tail, in order itself, into the sorted part, from the back. */
static void merge(struct wh_sorted *sorted, uint32_t count, uint32_t used)
{
	uint32_t left = used - count, into = used;
	struct wh_sorted *tail;

	if (!count || !left || sorted[count - 1].start <= sorted[count].start)
		return;
	tail = malloc(left * sizeof(*tail));
	if (!tail) {
		qsort(sorted, used, sizeof(*sorted), by_start);
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

/* Put everything in order. Under the lock. */
static void settle(struct wh_region_table *table)
{
	struct wh_sorted *sorted = table->sorted;
	uint32_t count = table->sorted_count, used = table->sorted_used;
	uint64_t reach = 0;

	if (table->sorted_gone) {
		uint32_t tail = count;

		count = drop_gone(table, 0, 0, count);
		used = drop_gone(table, count, tail, used);
	}
	if (used > count)
		qsort(sorted + count, used - count, sizeof(*sorted), by_start);
	merge(sorted, count, used);
	for (uint32_t i = 0; i < used; i++) {
		if (sorted[i].end > reach)
			reach = sorted[i].end;
		sorted[i].reach = reach;
	}
	table->sorted_count = table->sorted_used = used;
	table->sorted_gone = 0;
}

/* Room for one more. Under the lock. */
static bool reserve(struct wh_region_table *table)
{
	struct wh_sorted *grown;
	uint32_t room = table->sorted_room ? table->sorted_room * 2 : SORTED_FIRST;

	if (table->sorted_used < table->sorted_room)
		return true;
	if (table->sorted_gone > table->sorted_used / 2) {
		settle(table);
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
	if (!reserve(table))
		error = -ENOMEM;
	else if (entry->name)
		error = enter_name(table, entry);
	if (error) {
		release(table, entry);
	} else {
		table->sorted[table->sorted_used++] = (struct wh_sorted){
			.start = entry->address,
			.end = entry->address + entry->length,
			.id = id,
		};
		entry->used |= LISTED;
		table->open += is_public(entry);
		atomic_store(&entry->id, id);
	}
	pthread_mutex_unlock(&table->lock);
	return error;
}

/* ---- looking ------------------------------------------------------------------------------ */

/* Under the lock. */
static void copy_entry(const struct wh_region_entry *entry, struct wh_region_entry *copy,
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
	node = tfind(&key, &table->names, by_name);
	found = node && atomic_load(&(*node)->id);
	if (found)
		copy_entry(*node, copy, name);
	pthread_mutex_unlock(&table->lock);
	return found;
}

/* How many of the sorted part start at or before the address. */
static uint32_t starting_by(const struct wh_region_table *table, uint64_t address)
{
	uint32_t low = 0, high = table->sorted_count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (table->sorted[middle].start <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct search {
	uint64_t start, end;
	uint8_t access;
	struct wh_region_entry *best;
};

static void consider(struct wh_region_table *table, const struct wh_sorted *sorted,
		     struct search *search)
{
	struct wh_region_entry *entry;

	if (sorted->start > search->start || sorted->end < search->end)
		return;
	entry = wh_region_table_at(table, wh_region_table_index(sorted->id));
	if (atomic_load(&entry->id) != sorted->id || !(entry->access & search->access))
		return;
	if (!search->best || entry->length < search->best->length)
		search->best = entry;
}

bool wh_region_table_by_address(struct wh_region_table *table, uint64_t address, uint64_t length,
				uint8_t access, struct wh_region_entry *copy, char name[64])
{
	struct search search = { .start = address, .end = address + length, .access = access };
	uint32_t tail;

	if (search.end < address)
		return false;
	pthread_mutex_lock(&table->lock);
	tail = table->sorted_used - table->sorted_count;
	if (tail > TAIL_LEAST && tail > table->sorted_count / 64)
		settle(table);
	for (uint32_t i = table->sorted_count; i < table->sorted_used; i++)
		consider(table, &table->sorted[i], &search);
	/* From the nearest start backwards, for as long as something can reach far enough and be
	 * smaller than what has been found. */
	for (uint32_t i = starting_by(table, address); i > 0; i--) {
		const struct wh_sorted *entry = &table->sorted[i - 1];

		if (entry->reach < search.end ||
		    (search.best && search.end - entry->start >= search.best->length))
			break;
		consider(table, entry, &search);
	}
	if (search.best)
		copy_entry(search.best, copy, name);
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
			copy_entry(entry, copy, name);
			found = true;
		}
		++*cursor;
	}
	pthread_mutex_unlock(&table->lock);
	return found;
}
