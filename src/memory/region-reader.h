/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding many regions by address. A reader enters the region table once and then searches a
 * snapshot of its ranges without a lock, from any number of threads. It remembers what it found
 * last, because neighbouring transfers mostly use the same region.
 *
 * A snapshot is outdated once a range has been published. Searches then take the table's lock,
 * until they have cost about as much as a new snapshot does. Ranges that go do not outdate it: a
 * reader checks the id of each range that it finds.
 *
 * One thread uses a reader, for one call. It keeps no region open: whoever uses what it found must
 * enter the entry.
 */
#ifndef WH_MEMORY_REGION_READER_H
#define WH_MEMORY_REGION_READER_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/region-table.h"

struct wh_region_reader {
	struct wh_region_table *table;
	struct wh_region_snapshot *snapshot; /* entered; NULL: outdated */
	const struct wh_sorted *last; /* found last, if no other range overlaps it; NULL: none */
};

void wh_region_reader_begin(struct wh_region_reader *reader, struct wh_region_table *table);
void wh_region_reader_end(struct wh_region_reader *reader);

/* The smallest open entry that holds the whole range and whose access has one of the bits (0: of
 * any access): its id, and the offset of `address` in it. False: there is none. `length` is not
 * 0. */
bool wh_region_reader_find(struct wh_region_reader *reader, uint64_t address, uint64_t length,
			   uint8_t access, uint64_t *id, uint64_t *offset);

#endif
