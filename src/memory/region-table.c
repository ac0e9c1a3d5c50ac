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

int wh_region_table_init(struct wh_region_table *places, size_t entry)
{
	memset(places, 0, sizeof(*places));
	places->entry = (entry + ENTRY_ALIGN - 1) & ~(size_t)(ENTRY_ALIGN - 1);
	return -pthread_mutex_init(&places->lock, NULL);
}

static void keep(void *node)
{
	(void)node;
}

void wh_region_table_destroy(struct wh_region_table *places)
{
	tdestroy(places->names, keep);
	for (uint32_t i = 0; i < places->high; i++) {
		struct wh_region_entry *place = wh_region_table_at(places, i);

		if (place)
			free(place->name);
		else
			i = wh_region_table_gap(i);
	}
	for (uint32_t i = 0; places->chunks && i < WH_REGION_TABLE_CHUNKS; i++)
		free(places->chunks[i]);
	free(places->chunks);
	free(places->few);
	free(places->sorted);
	pthread_mutex_destroy(&places->lock);
}

/* ---- entries ------------------------------------------------------------------------------ */

/* The entry with this index, made if there was none. Under the lock. */
static struct wh_region_entry *entry_at(struct wh_region_table *places, uint32_t index)
{
	struct wh_region_entry *place = wh_region_table_at(places, index);
	_Atomic(char *) *chunks = places->chunks;
	char *chunk;

	if (place || index >= WH_REGION_TABLE_CHUNK * WH_REGION_TABLE_CHUNKS)
		return place;
	if (index >= WH_REGION_TABLE_FEW && !chunks) {
		chunks = calloc(WH_REGION_TABLE_CHUNKS, sizeof(*chunks));
		if (!chunks)
			return NULL;
		atomic_store_explicit(&places->chunks, chunks, memory_order_release);
	}
	/* A chunk is so large that it comes straight from the kernel: what is not used is never
	 * touched. */
	chunk = calloc(index < WH_REGION_TABLE_FEW ? WH_REGION_TABLE_FEW : WH_REGION_TABLE_CHUNK,
		       places->entry);
	if (!chunk)
		return NULL;
	atomic_store_explicit(index < WH_REGION_TABLE_FEW ? &places->few :
							    &chunks[index / WH_REGION_TABLE_CHUNK],
			      chunk, memory_order_release);
	return wh_region_table_at(places, index);
}

/* A generation that nobody can guess, also who has had others. False: the kernel gives no random
 * numbers. */
static bool draw(struct wh_region_table *places, uint64_t *generation)
{
	uint64_t before = *generation;

	do {
		if (!places->drawn_left) {
			if (getrandom(places->drawn, sizeof(places->drawn), 0) !=
			    sizeof(places->drawn))
				return false;
			places->drawn_left = sizeof(places->drawn) / sizeof(places->drawn[0]);
		}
		*generation = places->drawn[--places->drawn_left] >> WH_REGION_TABLE_INDEX_BITS;
	} while (!*generation || *generation == before);
	return true;
}

struct wh_region_entry *wh_region_table_new(struct wh_region_table *places, uint64_t *id)
{
	struct wh_region_entry *place;

	pthread_mutex_lock(&places->lock);
	place = places->free ? wh_region_table_at(places, places->free - 1) :
			       entry_at(places, places->high);
	if (place && !draw(places, &place->generation))
		place = NULL;
	if (place) {
		if (places->free)
			places->free = (uint32_t)place->address;
		else
			place->index = places->high++;
		place->used = USED;
		places->count++;
		*id = wh_region_entry_id(place);
	}
	pthread_mutex_unlock(&places->lock);
	return place;
}

struct wh_region_entry *wh_region_table_claim(struct wh_region_table *places, uint64_t id)
{
	uint32_t index = wh_region_table_index(id);
	uint64_t generation = id >> WH_REGION_TABLE_INDEX_BITS;
	struct wh_region_entry *place = NULL;

	if (!generation)
		return NULL;
	pthread_mutex_lock(&places->lock);
	place = entry_at(places, index);
	/* Ids are random: the last one comes again only from a peer that does not draw them. */
	if (place && (place->used || place->generation == generation))
		place = NULL;
	if (place) {
		place->index = index;
		place->generation = generation;
		place->used = USED | CLAIMED;
		places->count++;
		if (places->high <= index)
			places->high = index + 1;
	}
	pthread_mutex_unlock(&places->lock);
	return place;
}

/* Under the lock; the name is out of the tree. */
static void release(struct wh_region_table *places, struct wh_region_entry *place)
{
	bool claimed = place->used & CLAIMED;

	free(place->name);
	place->name = NULL;
	if (place->used & LISTED)
		places->sorted_gone++;
	place->used = 0;
	places->count--;
	if (claimed)
		return;
	place->address = places->free;
	places->free = place->index + 1;
}

static bool is_public(const struct wh_region_entry *place)
{
	return !(place->access & WH_ACCESS_NONE);
}

bool wh_region_table_close(struct wh_region_table *places, struct wh_region_entry *place,
			   uint64_t id)
{
	bool open;

	pthread_mutex_lock(&places->lock);
	open = id && atomic_load(&place->id) == id;
	if (open) {
		/* Sequentially consistent: see wh_region_entry_enter(). */
		atomic_store(&place->id, 0);
		places->open -= is_public(place);
	}
	pthread_mutex_unlock(&places->lock);
	return open;
}

/* Whoever is in the mapping may stay inside without it, but not the other way round. */
static bool is_entered(const struct wh_region_entry *place)
{
	return atomic_load(&place->pins) || atomic_load(&place->users);
}

static bool is_pinned(const struct wh_region_entry *place)
{
	return atomic_load(&place->pins);
}

static bool wait_while(bool (*holds)(const struct wh_region_entry *place),
		       const struct wh_region_entry *place, int64_t deadline)
{
	struct timespec pause = { 0, 2000 };

	for (unsigned turn = 0; holds(place); turn++) {
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

bool wh_region_entry_left(const struct wh_region_entry *place, int64_t deadline)
{
	return wait_while(is_entered, place, deadline);
}

bool wh_region_entry_unpinned(const struct wh_region_entry *place, int64_t deadline)
{
	return wait_while(is_pinned, place, deadline);
}

void wh_region_table_reopen(struct wh_region_table *places, struct wh_region_entry *place,
			    uint64_t id)
{
	pthread_mutex_lock(&places->lock);
	atomic_store(&place->id, id);
	places->open += is_public(place);
	pthread_mutex_unlock(&places->lock);
}

uint32_t wh_region_table_count(struct wh_region_table *places)
{
	uint32_t count;

	pthread_mutex_lock(&places->lock);
	count = places->open;
	pthread_mutex_unlock(&places->lock);
	return count;
}

/* ---- names -------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct wh_region_entry *)a)->name,
		      ((const struct wh_region_entry *)b)->name);
}

/* Under the lock. -EEXIST, -ENOMEM. */
static int enter_name(struct wh_region_table *places, struct wh_region_entry *place)
{
	struct wh_region_entry **node = tsearch(place, &places->names, by_name);

	if (!node)
		return -ENOMEM;
	/* A closed place, whose users are still being waited for, gives up its name. */
	if (*node != place && atomic_load(&(*node)->id))
		return -EEXIST;
	*node = place;
	return 0;
}

static void drop_name(struct wh_region_table *places, struct wh_region_entry *place)
{
	struct wh_region_entry **node = place->name ? tfind(place, &places->names, by_name) : NULL;

	if (node && *node == place)
		tdelete(place, &places->names, by_name);
}

void wh_region_table_free(struct wh_region_table *places, struct wh_region_entry *place)
{
	pthread_mutex_lock(&places->lock);
	drop_name(places, place);
	release(places, place);
	pthread_mutex_unlock(&places->lock);
}

/* ---- addresses ---------------------------------------------------------------------------- */

static int by_start(const void *a, const void *b)
{
	const struct wh_sorted *x = a, *y = b;

	return (x->start > y->start) - (x->start < y->start);
}

/* Take out what is gone between `from` and `to`; returns where the rest ends. */
static uint32_t drop_gone(struct wh_region_table *places, uint32_t into, uint32_t from, uint32_t to)
{
	struct wh_sorted *sorted = places->sorted;

	for (; from < to; from++) {
		struct wh_region_entry *place =
			wh_region_table_at(places, wh_region_table_index(sorted[from].id));

		/* A closed one stays: it may be opened again. */
		if ((place->used & LISTED) && wh_region_entry_id(place) == sorted[from].id)
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
static void settle(struct wh_region_table *places)
{
	struct wh_sorted *sorted = places->sorted;
	uint32_t count = places->sorted_count, used = places->sorted_used;
	uint64_t reach = 0;

	if (places->sorted_gone) {
		uint32_t tail = count;

		count = drop_gone(places, 0, 0, count);
		used = drop_gone(places, count, tail, used);
	}
	if (used > count)
		qsort(sorted + count, used - count, sizeof(*sorted), by_start);
	merge(sorted, count, used);
	for (uint32_t i = 0; i < used; i++) {
		if (sorted[i].end > reach)
			reach = sorted[i].end;
		sorted[i].reach = reach;
	}
	places->sorted_count = places->sorted_used = used;
	places->sorted_gone = 0;
}

/* Room for one more. Under the lock. */
static bool reserve(struct wh_region_table *places)
{
	struct wh_sorted *grown;
	uint32_t room = places->sorted_room ? places->sorted_room * 2 : SORTED_FIRST;

	if (places->sorted_used < places->sorted_room)
		return true;
	if (places->sorted_gone > places->sorted_used / 2) {
		settle(places);
		return true;
	}
	grown = realloc(places->sorted, room * sizeof(*grown));
	if (!grown)
		return false;
	places->sorted = grown;
	places->sorted_room = room;
	return true;
}

int wh_region_table_publish(struct wh_region_table *places, struct wh_region_entry *place,
			    uint64_t id)
{
	int error = 0;

	pthread_mutex_lock(&places->lock);
	if (!reserve(places))
		error = -ENOMEM;
	else if (place->name)
		error = enter_name(places, place);
	if (error) {
		release(places, place);
	} else {
		places->sorted[places->sorted_used++] = (struct wh_sorted){
			.start = place->address,
			.end = place->address + place->length,
			.id = id,
		};
		place->used |= LISTED;
		places->open += is_public(place);
		atomic_store(&place->id, id);
	}
	pthread_mutex_unlock(&places->lock);
	return error;
}

/* ---- looking ------------------------------------------------------------------------------ */

/* Under the lock. */
static void copy_place(const struct wh_region_entry *place, struct wh_region_entry *copy,
		       char name[64])
{
	memset(copy, 0, sizeof(*copy));
	atomic_store_explicit(&copy->id, wh_region_entry_id(place), memory_order_relaxed);
	copy->index = place->index;
	copy->generation = place->generation;
	copy->access = place->access;
	copy->kind = place->kind;
	copy->flags = place->flags;
	copy->address = place->address;
	copy->length = place->length;
	memset(name, 0, 64);
	if (place->name) {
		memcpy(name, place->name, strnlen(place->name, 63));
		copy->name = name;
	}
}

bool wh_region_table_by_name(struct wh_region_table *places, const char *text,
			     struct wh_region_entry *copy, char name[64])
{
	const struct wh_region_entry key = { .name = (char *)text };
	struct wh_region_entry **node;
	bool found;

	pthread_mutex_lock(&places->lock);
	node = tfind(&key, &places->names, by_name);
	found = node && atomic_load(&(*node)->id);
	if (found)
		copy_place(*node, copy, name);
	pthread_mutex_unlock(&places->lock);
	return found;
}

/* How many of the sorted part start at or before the address. */
static uint32_t starting_by(const struct wh_region_table *places, uint64_t address)
{
	uint32_t low = 0, high = places->sorted_count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (places->sorted[middle].start <= address)
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

static void consider(struct wh_region_table *places, const struct wh_sorted *entry,
		     struct search *search)
{
	struct wh_region_entry *place;

	if (entry->start > search->start || entry->end < search->end)
		return;
	place = wh_region_table_at(places, wh_region_table_index(entry->id));
	if (atomic_load(&place->id) != entry->id || !(place->access & search->access))
		return;
	if (!search->best || place->length < search->best->length)
		search->best = place;
}

bool wh_region_table_by_address(struct wh_region_table *places, uint64_t address, uint64_t length,
				uint8_t access, struct wh_region_entry *copy, char name[64])
{
	struct search search = { .start = address, .end = address + length, .access = access };
	uint32_t tail;

	if (search.end < address)
		return false;
	pthread_mutex_lock(&places->lock);
	tail = places->sorted_used - places->sorted_count;
	if (tail > TAIL_LEAST && tail > places->sorted_count / 64)
		settle(places);
	for (uint32_t i = places->sorted_count; i < places->sorted_used; i++)
		consider(places, &places->sorted[i], &search);
	/* From the nearest start backwards, for as long as something can reach far enough and be
	 * smaller than what has been found. */
	for (uint32_t i = starting_by(places, address); i > 0; i--) {
		const struct wh_sorted *entry = &places->sorted[i - 1];

		if (entry->reach < search.end ||
		    (search.best && search.end - entry->start >= search.best->length))
			break;
		consider(places, entry, &search);
	}
	if (search.best)
		copy_place(search.best, copy, name);
	pthread_mutex_unlock(&places->lock);
	return search.best;
}

bool wh_region_table_next(struct wh_region_table *places, uint64_t *cursor,
			  struct wh_region_entry *copy, char name[64])
{
	bool found = false;

	pthread_mutex_lock(&places->lock);
	while (!found && *cursor < places->high) {
		struct wh_region_entry *place = wh_region_table_at(places, (uint32_t)*cursor);

		if (!place) {
			*cursor = wh_region_table_gap((uint32_t)*cursor);
		} else if (atomic_load(&place->id)) {
			copy_place(place, copy, name);
			found = true;
		}
		++*cursor;
	}
	pthread_mutex_unlock(&places->lock);
	return found;
}
