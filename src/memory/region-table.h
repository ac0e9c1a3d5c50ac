/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Region tables: the published ranges of an engine, and those of each peer, found by id, name and
 * address.
 *
 * A table only grows while its owner lives, so that an id can be looked up without a lock, and a
 * pointer to an entry never dangles. An id is a generation (high 42 bits, random, so that nobody
 * can guess the next one) and an index (low 22 bits).
 *
 * A thread enters an entry before it accesses the memory, and leaves it afterwards. Closing an
 * entry keeps new users out; then the closer waits until the current ones have left. A thread that
 * accesses the memory through a mapping that may end before the entry does *pins* the entry
 * instead. Pins are counted apart from users, so that ending a mapping waits for pins only.
 */
#ifndef WH_MEMORY_REGION_TABLE_H
#define WH_MEMORY_REGION_TABLE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct wh_region_entry {
	_Atomic uint64_t id; /* 0: free, not published yet, or closed */
	_Atomic uint32_t users; /* threads inside, except those that pin */
	uint32_t index;
	uint64_t generation; /* of the last id; 0: never used */
	uint8_t access, kind, flags; /* enum wh_access, enum wh_memory_kind, WH_REGION_* */
	uint8_t used; /* enum in region-table.c; 0: free */
	_Atomic uint32_t pins; /* threads that use its mapping */
	uint64_t address, length; /* free: address is 1 + the index of the next free entry */
	char *name; /* owned; NULL: none */
};

/* Which entries a search may find: a member of a larger structure. `passes` runs under the table's
 * lock, and must not block. */
struct wh_region_filter {
	bool (*passes)(const struct wh_region_filter *filter, const struct wh_region_entry *entry);
};

/* A published range, in the order of addresses. */
struct wh_sorted {
	uint64_t start, end;
	uint64_t reach; /* sorted part: the highest `end` of this range and those before it */
	uint64_t id;
	uint8_t access; /* enum wh_access */
	bool alone; /* snapshots: no other range overlaps it */
};

/* A sorted copy of the published ranges, which is searched without the lock: region-reader.h. */
struct wh_region_snapshot {
	_Atomic uint32_t users; /* readers inside */
	uint64_t version; /* the table's when it was made; 0: never made */
	uint32_t count, room;
	struct wh_sorted *ranges;
	/* Addresses from `first` on are cut into `buckets` of 1 << shift bytes, about two for each
	 * range. before[b]: the number of ranges that start before bucket b. */
	uint64_t first;
	uint32_t shift, buckets;
	uint32_t *before; /* buckets + 1 */
};

#define WH_REGION_TABLE_FEW 32u /* entries of the first allocation; most peers have no more */
#define WH_REGION_TABLE_CHUNK 4096u /* entries of a chunk */
#define WH_REGION_TABLE_CHUNKS 1024u
#define WH_REGION_TABLE_INDEX_BITS 22 /* 2^22 entries, at most */

struct wh_region_table {
	size_t entry; /* bytes from one entry to the next; each starts with a wh_region_entry */
	pthread_mutex_t lock; /* of all below */
	uint64_t drawn[32]; /* random numbers; getrandom() of up to 256 bytes is not interrupted */
	uint32_t drawn_left;
	_Atomic(char *) few;
	/* WH_REGION_TABLE_CHUNKS pointers; NULL until the first chunk */
	_Atomic(_Atomic(char *) *) chunks;
	uint32_t high; /* all indexes ever used are lower */
	uint32_t count; /* entries in use */
	uint32_t open; /* open entries that peers may see */
	uint32_t free; /* the free list: 1 + the index of its first entry; 0: empty */
	void *names; /* tsearch() tree of named entries */
	/* Published ranges: a part sorted by address, and an unsorted tail. Both include ranges
	 * that are gone (sorted_gone). */
	struct wh_sorted *sorted;
	uint32_t sorted_count, sorted_used, sorted_room, sorted_gone;
	_Atomic uint64_t version; /* counts published ranges; changed under the lock */
	/* The current snapshot, and one that is made anew when nobody is inside it. */
	struct wh_region_snapshot snapshots[2];
	_Atomic uint32_t snapshot; /* the current one's index; changed under the lock */
	uint32_t searches; /* that found the current snapshot outdated, since it was made */
};

/* `entry`: bytes of the structure that starts with the wh_region_entry. 0 or a negative errno. */
int wh_region_table_init(struct wh_region_table *table, size_t entry);
void wh_region_table_destroy(struct wh_region_table *table);

/* Take a free entry of this engine's table and draw an id. entry->id stays 0 until
 * wh_region_table_publish(). The bytes behind the wh_region_entry are those of the last use. NULL:
 * no memory, or no random numbers. */
struct wh_region_entry *wh_region_table_new(struct wh_region_table *table, uint64_t *id);
/* Take the entry of a peer's table for an id that the peer chose. NULL with errno EPROTO: the id
 * has no generation, or repeats the last one that was published; or the entry is in use. With
 * ENOMEM: no memory. */
struct wh_region_entry *wh_region_table_claim(struct wh_region_table *table, uint64_t id);
/* Open a taken entry, whose members the caller has set, so that it can be found and entered. 0;
 * -EEXIST: an open entry has the name; -ENOMEM. On error the entry is free and its name freed. */
int wh_region_table_publish(struct wh_region_table *table, struct wh_region_entry *entry,
			    uint64_t id);
/* Keep new users out. False: the entry does not have this id any more. */
bool wh_region_table_close(struct wh_region_table *table, struct wh_region_entry *entry,
			   uint64_t id);
/* Wait until nobody is inside a closed entry. Blocks. False: the deadline passed first. */
bool wh_region_entry_left(const struct wh_region_entry *entry, int64_t deadline);
/* Wait until nobody pins the entry, after its mapping was withdrawn, so that new pins do not find
 * it; the entry may be open. Blocks. False: the deadline passed first. */
bool wh_region_entry_unpinned(const struct wh_region_entry *entry, int64_t deadline);
/* Undo a close, if no entry was published since. */
void wh_region_table_reopen(struct wh_region_table *table, struct wh_region_entry *entry,
			    uint64_t id);
/* Free a closed entry for another use. Nobody may be inside. */
void wh_region_table_free(struct wh_region_table *table, struct wh_region_entry *entry);

/* The next four search open entries and copy one, under the lock. copy->name is `name` or NULL.
 * False: none found. */
bool wh_region_table_by_name(struct wh_region_table *table, const char *text,
			     struct wh_region_entry *copy, char name[64]);
bool wh_region_table_by_id(struct wh_region_table *table, uint64_t id, struct wh_region_entry *copy,
			   char name[64]);
/* The smallest entry that holds the whole range and whose access has one of the bits; 0: of any
 * access. With a filter: of those that it lets pass. */
bool wh_region_table_by_address(struct wh_region_table *table, uint64_t address, uint64_t length,
				uint8_t access, const struct wh_region_filter *filter,
				struct wh_region_entry *copy, char name[64]);
/* The next entry from *cursor on, an index, which is then behind it. Start at 0. */
bool wh_region_table_next(struct wh_region_table *table, uint64_t *cursor,
			  struct wh_region_entry *copy, char name[64]);

/* Sort the published ranges, without those that are gone. Under the lock. */
void wh_region_table_sort(struct wh_region_table *table);

/* Of ranges sorted by their starts, the number of those that start at or before the address, if it
 * is between `low` and `high`. */
static inline uint32_t wh_sorted_before(const struct wh_sorted *ranges, uint32_t low, uint32_t high,
					uint64_t address)
{
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (ranges[middle].start <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The number of open entries that peers may see: those with an access. */
uint32_t wh_region_table_count(struct wh_region_table *table);
/* The number of entries in use. */
uint32_t wh_region_table_used(struct wh_region_table *table);

/* The id of an entry in use, also if it is closed or not published yet. */
static inline uint64_t wh_region_entry_id(const struct wh_region_entry *entry)
{
	return entry->generation << WH_REGION_TABLE_INDEX_BITS | entry->index;
}

static inline uint32_t wh_region_table_index(uint64_t id)
{
	return (uint32_t)id & ((1u << WH_REGION_TABLE_INDEX_BITS) - 1);
}

/* The entry with this index, or NULL if there never was one. */
static inline struct wh_region_entry *wh_region_table_at(struct wh_region_table *table,
							 uint32_t index)
{
	_Atomic(char *) *chunks;
	char *chunk = NULL;

	if (index < WH_REGION_TABLE_FEW) {
		chunk = atomic_load_explicit(&table->few, memory_order_acquire);
	} else if (index < WH_REGION_TABLE_CHUNK * WH_REGION_TABLE_CHUNKS) {
		chunks = atomic_load_explicit(&table->chunks, memory_order_acquire);
		if (chunks)
			chunk = atomic_load_explicit(&chunks[index / WH_REGION_TABLE_CHUNK],
						     memory_order_acquire);
	}
	return chunk ? (struct wh_region_entry *)(chunk +
						  (index % WH_REGION_TABLE_CHUNK) * table->entry) :
		       NULL;
}

/* The last index that has no entry if this one has none. */
static inline uint32_t wh_region_table_gap(uint32_t index)
{
	return index < WH_REGION_TABLE_FEW ? WH_REGION_TABLE_FEW - 1 :
					     index | (WH_REGION_TABLE_CHUNK - 1);
}

static inline void wh_region_entry_leave(struct wh_region_entry *entry)
{
	atomic_fetch_sub_explicit(&entry->users, 1, memory_order_release);
}

/* Enter the entry with this id. NULL: there is none, or it is closed. */
static inline struct wh_region_entry *wh_region_entry_enter(struct wh_region_table *table,
							    uint64_t id)
{
	struct wh_region_entry *entry = wh_region_table_at(table, wh_region_table_index(id));

	if (!entry || !id)
		return NULL;
	/* Sequentially consistent, like the closer's store to `id` before its load of `users`:
	 * either this thread sees the close, or the closer sees this thread. */
	atomic_fetch_add(&entry->users, 1);
	if (atomic_load(&entry->id) == id)
		return entry;
	wh_region_entry_leave(entry);
	return NULL;
}

static inline void wh_region_entry_unpin(struct wh_region_entry *entry)
{
	atomic_fetch_sub_explicit(&entry->pins, 1, memory_order_release);
}

/* Enter the entry with this id, counted as a pin. The caller then loads the mapping's pointer
 * sequentially consistently, as the thread that withdraws the mapping stores it before it loads
 * `pins`. NULL: as wh_region_entry_enter(). */
static inline struct wh_region_entry *wh_region_entry_pin(struct wh_region_table *table,
							  uint64_t id)
{
	struct wh_region_entry *entry = wh_region_table_at(table, wh_region_table_index(id));

	if (!entry || !id)
		return NULL;
	atomic_fetch_add(&entry->pins, 1);
	if (atomic_load(&entry->id) == id)
		return entry;
	wh_region_entry_unpin(entry);
	return NULL;
}

/* There is no mapping: turn a pin into a user. */
static inline void wh_region_entry_unpin_enter(struct wh_region_entry *entry)
{
	/* In this order: wh_region_entry_left() loads `pins` first. */
	atomic_fetch_add(&entry->users, 1);
	wh_region_entry_unpin(entry);
}

/* Is [offset, offset+length) inside? The sum does not wrap. */
static inline bool wh_region_entry_holds(const struct wh_region_entry *entry, uint64_t offset,
					 uint64_t length)
{
	return offset <= entry->length && length <= entry->length - offset;
}

#endif
