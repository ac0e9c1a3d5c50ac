/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places: published ranges of memory, ours and a peer's, found by id, by name and by address.
 *
 * The entries live in a table that only grows while its owner lives, so that an id can be looked
 * up without a lock, and a pointer to an entry never dangles. An id is a generation (high 42 bits,
 * random: nobody can guess the next one) and an index (low 22 bits). Whoever touches the memory
 * enters the place first and leaves it after; closing a place keeps new ones out and then waits for
 * those inside.
 *
 * Who touches the memory by way of a mapping that may end before the place does *pins* the place
 * instead: that is entering it, counted apart, so that whoever ends the mapping waits for those
 * alone.
 */
#ifndef WH_MEMORY_REGION_TABLE_H
#define WH_MEMORY_REGION_TABLE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct wh_region_entry {
	_Atomic uint64_t id; /* 0: free, or being closed */
	_Atomic uint32_t users;
	uint32_t index;
	uint64_t generation; /* not 0 once it has been used */
	uint8_t access, kind, flags; /* enum wh_access, enum wh_memory_kind, WH_REGION_* */
	uint8_t used; /* bits in region-table.c: taken and how; 0: free */
	_Atomic uint32_t pins; /* users who are in its mapping */
	uint64_t address, length; /* a free one's address: 1 + the index of the next free one */
	char *name; /* owned; NULL: none */
};

#define WH_REGION_TABLE_FEW 32u /* entries that are allocated singly; most peers have no more */
#define WH_REGION_TABLE_CHUNK 4096u
#define WH_REGION_TABLE_CHUNKS 1024u
#define WH_REGION_TABLE_INDEX_BITS 22 /* so many entries at most */

struct wh_region_table {
	size_t entry; /* bytes from one entry to the next; each starts with a wh_region_entry */
	pthread_mutex_t lock; /* all below */
	uint64_t drawn[32]; /* random numbers; getrandom() is never interrupted for so few */
	uint32_t drawn_left;
	_Atomic(char *) few;
	_Atomic(_Atomic(char *) *)
		chunks; /* WH_REGION_TABLE_CHUNKS of them, once there is one; NULL */
	uint32_t high; /* entries ever used */
	uint32_t count; /* entries in use */
	uint32_t open; /* those that can be entered and are published to peers */
	uint32_t free; /* 1 + the index of one to use again, a chain; 0: none */
	void *names; /* tsearch() tree of named entries */
	/* What has been published, by address: a sorted part, behind it a tail of late-comers, and
	 * in both some that are gone by now. */
	struct wh_sorted *sorted;
	uint32_t sorted_count, sorted_used, sorted_room, sorted_gone;
};

/* 0 or a negative errno. */
int wh_region_table_init(struct wh_region_table *table, size_t entry);
void wh_region_table_destroy(struct wh_region_table *table);

/* Ours: take a free entry and give it a new id. The entry's `id` stays 0 until
 * wh_region_table_publish(), and what lies behind the wh_region_entry is left over from the entry's
 * last use. NULL: no memory, or no random numbers. */
struct wh_region_entry *wh_region_table_new(struct wh_region_table *table, uint64_t *id);
/* A peer's: the entry for an id chosen by the peer. NULL: no generation, or the last one once more;
 * an entry in use; or no memory. */
struct wh_region_entry *wh_region_table_claim(struct wh_region_table *table, uint64_t id);
/* Make it findable. -EEXIST if an open place has the name, -ENOMEM; the entry is then free again,
 * and its name freed. */
int wh_region_table_publish(struct wh_region_table *table, struct wh_region_entry *entry,
			    uint64_t id);
/* Keep new ones out. False if it is not (or no longer) `id`. */
bool wh_region_table_close(struct wh_region_table *table, struct wh_region_entry *entry,
			   uint64_t id);
/* Wait until nobody is inside a closed place. False when `deadline` comes first. */
bool wh_region_entry_left(const struct wh_region_entry *entry, int64_t deadline);
/* Wait until nobody is in the place's mapping, which newcomers do not find any more; the place may
 * be open. False when `deadline` comes first. */
bool wh_region_entry_unpinned(const struct wh_region_entry *entry, int64_t deadline);
/* Undo a close. Nothing may have been published in between. */
void wh_region_table_reopen(struct wh_region_table *table, struct wh_region_entry *entry,
			    uint64_t id);
/* Give a closed entry back for another use. Nobody may be inside. */
void wh_region_table_free(struct wh_region_table *table, struct wh_region_entry *entry);

/* These look for an open place and copy it, under the lock; copy->name is `name` or NULL. */
bool wh_region_table_by_name(struct wh_region_table *table, const char *text,
			     struct wh_region_entry *copy, char name[64]);
/* The smallest place that holds the whole range and whose access has one of the bits. */
bool wh_region_table_by_address(struct wh_region_table *table, uint64_t address, uint64_t length,
				uint8_t access, struct wh_region_entry *copy, char name[64]);
/* The next one at or after *cursor, which is moved on. */
bool wh_region_table_next(struct wh_region_table *table, uint64_t *cursor,
			  struct wh_region_entry *copy, char name[64]);

/* How many a peer can see: open ones whose access is not WH_ACCESS_NONE. */
uint32_t wh_region_table_count(struct wh_region_table *table);

/* The id of an entry in use, be it open, closed or not yet published. */
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

/* Enter the place with this id, or NULL: there is none, or it is being closed. */
static inline struct wh_region_entry *wh_region_entry_enter(struct wh_region_table *table,
							    uint64_t id)
{
	struct wh_region_entry *entry = wh_region_table_at(table, wh_region_table_index(id));

	if (!entry || !id)
		return NULL;
	/* Sequentially consistent, as is the closer's store to id before it reads users: one of the
	 * two sees the other. */
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

/* As wh_region_entry_enter(). The mapping is looked for afterwards, by a sequentially consistent
 * load, as is the store of who takes it away before he looks at `pins`. */
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

/* There is no mapping: stay inside without. */
static inline void wh_region_entry_unpin_enter(struct wh_region_entry *entry)
{
	/* In this order: wh_region_entry_left() looks at the pins first. */
	atomic_fetch_add(&entry->users, 1);
	wh_region_entry_unpin(entry);
}

/* Does [offset, offset+length) lie inside? Never wraps. */
static inline bool wh_region_entry_holds(const struct wh_region_entry *entry, uint64_t offset,
					 uint64_t length)
{
	return offset <= entry->length && length <= entry->length - offset;
}

#endif
