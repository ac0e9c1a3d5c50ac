/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The snapshots of a region table, and searching them.
 *
 * A reader counts itself into the current snapshot and then looks whether it is still the current
 * one. Whoever makes a snapshot writes the other one, if nobody is inside, and then makes it the
 * current one. So a reader that came too late has read nothing of it.
 */
#include "memory/region-reader.h"

#include <stdlib.h>

/* A new snapshot costs about as much per range as this share of a search under the lock. */
#define RANGES_PER_SEARCH 16

#define BUCKETS_PER_RANGE 2

/* ---- making snapshots ------------------------------------------------------------------------ */

/* Make room for `count` ranges. False: no memory; there is room for none then. */
static bool snapshot_reserve(struct wh_region_snapshot *snapshot, uint32_t count)
{
	if (count <= snapshot->room)
		return true;
	free(snapshot->ranges);
	free(snapshot->before);
	snapshot->ranges = malloc(count * sizeof(*snapshot->ranges));
	snapshot->before =
		malloc((BUCKETS_PER_RANGE * (size_t)count + 1) * sizeof(*snapshot->before));
	snapshot->room = snapshot->ranges && snapshot->before ? count : 0;
	if (snapshot->room)
		return true;
	free(snapshot->ranges);
	free(snapshot->before);
	snapshot->ranges = NULL;
	snapshot->before = NULL;
	return false;
}

/* Divide the addresses between the first and the last start into buckets. */
static void snapshot_fill_buckets(struct wh_region_snapshot *snapshot)
{
	uint32_t most = BUCKETS_PER_RANGE * snapshot->count, bucket = 0;
	uint64_t spread;

	snapshot->first = snapshot->ranges[0].start;
	spread = snapshot->ranges[snapshot->count - 1].start - snapshot->first;
	for (snapshot->shift = 0; spread >> snapshot->shift >= most;)
		snapshot->shift++;
	snapshot->buckets = (uint32_t)(spread >> snapshot->shift) + 1;
	for (uint32_t i = 0; i < snapshot->count; i++) {
		uint64_t of = (snapshot->ranges[i].start - snapshot->first) >> snapshot->shift;

		while (bucket <= of)
			snapshot->before[bucket++] = i;
	}
	snapshot->before[bucket] = snapshot->count;
}

/* Make a new snapshot the current one, if that is due. Under the table's lock. */
static void table_make_snapshot(struct wh_region_table *table)
{
	uint32_t current = atomic_load(&table->snapshot);
	struct wh_region_snapshot *made = &table->snapshots[!current];
	uint64_t version = atomic_load(&table->version);

	if (table->snapshots[current].version == version ||
	    ++table->searches <= table->sorted_used / RANGES_PER_SEARCH ||
	    atomic_load(&made->users))
		return;
	wh_region_table_sort(table);
	if (!snapshot_reserve(made, table->sorted_used))
		return;
	made->count = table->sorted_used;
	for (uint32_t i = 0; i < made->count; i++) {
		const struct wh_sorted *range = &table->sorted[i];

		made->ranges[i] = *range;
		made->ranges[i].alone = (!i || range[-1].reach <= range->start) &&
					(i + 1 == made->count || range[1].start >= range->end);
	}
	if (made->count)
		snapshot_fill_buckets(made);
	made->version = version;
	table->searches = 0;
	atomic_store(&table->snapshot, !current);
}

/* ---- reading them ---------------------------------------------------------------------------- */

static void reader_leave(struct wh_region_reader *reader)
{
	if (reader->snapshot)
		atomic_fetch_sub_explicit(&reader->snapshot->users, 1, memory_order_release);
	reader->snapshot = NULL;
	reader->last = NULL;
}

static void reader_enter(struct wh_region_reader *reader)
{
	struct wh_region_table *table = reader->table;
	uint32_t current = atomic_load(&table->snapshot);

	reader->snapshot = &table->snapshots[current];
	/* Sequentially consistent, like the maker's load of `users` before its store to
	 * `snapshot`. */
	atomic_fetch_add(&reader->snapshot->users, 1);
	if (atomic_load(&table->snapshot) != current ||
	    reader->snapshot->version != atomic_load(&table->version))
		reader_leave(reader);
}

void wh_region_reader_begin(struct wh_region_reader *reader, struct wh_region_table *table)
{
	*reader = (struct wh_region_reader){ .table = table };
	reader_enter(reader);
}

void wh_region_reader_end(struct wh_region_reader *reader)
{
	reader_leave(reader);
}

/* The number of ranges that start at or before the address. The buckets leave few of them to search
 * where regions are about equally large; where they are not, this is a binary search. */
static uint32_t snapshot_count_before(const struct wh_region_snapshot *snapshot, uint64_t address)
{
	uint64_t bucket = (address - snapshot->first) >> snapshot->shift;

	if (!snapshot->count || address < snapshot->first)
		return 0;
	if (bucket >= snapshot->buckets)
		return snapshot->count;
	return wh_sorted_before(snapshot->ranges, snapshot->before[bucket],
				snapshot->before[bucket + 1], address);
}

/* Is the range open, does it hold [start, end), and does it have one of the rights? */
static bool range_fits(struct wh_region_table *table, const struct wh_sorted *range, uint64_t start,
		       uint64_t end, uint8_t access)
{
	const struct wh_region_entry *entry;

	if (range->start > start || range->end < end || (access && !(range->access & access)))
		return false;
	entry = wh_region_table_at(table, wh_region_table_index(range->id));
	return atomic_load_explicit(&entry->id, memory_order_acquire) == range->id;
}

static const struct wh_sorted *snapshot_find(struct wh_region_table *table,
					     const struct wh_region_snapshot *snapshot,
					     uint64_t start, uint64_t end, uint8_t access)
{
	const struct wh_sorted *best = NULL;

	/* As wh_region_table_by_address() does. */
	for (uint32_t i = snapshot_count_before(snapshot, start); i > 0; i--) {
		const struct wh_sorted *range = &snapshot->ranges[i - 1];

		if (range->reach < end || (best && end - range->start >= best->end - best->start))
			break;
		if (range_fits(table, range, start, end, access) &&
		    (!best || range->end - range->start < best->end - best->start))
			best = range;
	}
	return best;
}

/* Search under the lock, and make a snapshot for the next search if that is due. */
static bool reader_find_locked(struct wh_region_reader *reader, uint64_t address, uint64_t length,
			       uint8_t access, uint64_t *id, uint64_t *offset)
{
	struct wh_region_table *table = reader->table;
	struct wh_region_entry copy;
	char name[64];

	reader_leave(reader);
	pthread_mutex_lock(&table->lock);
	table_make_snapshot(table);
	pthread_mutex_unlock(&table->lock);
	reader_enter(reader);
	if (!wh_region_table_by_address(table, address, length, access, NULL, &copy, name))
		return false;
	*id = wh_region_entry_id(&copy);
	*offset = address - copy.address;
	return true;
}

bool wh_region_reader_find(struct wh_region_reader *reader, uint64_t address, uint64_t length,
			   uint8_t access, uint64_t *id, uint64_t *offset)
{
	const struct wh_sorted *range = reader->last;
	uint64_t end = address + length;

	if (end < address)
		return false;
	if (!range || !range_fits(reader->table, range, address, end, access)) {
		range = reader->snapshot ? snapshot_find(reader->table, reader->snapshot, address,
							 end, access) :
					   NULL;
		/* What is not in the snapshot may have been published since. */
		if (!range)
			return reader_find_locked(reader, address, length, access, id, offset);
		reader->last = range->alone ? range : NULL;
	}
	*id = range->id;
	*offset = address - range->start;
	return true;
}
