/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport/copier-file.h: copies between files of this engine and memory, by reads and writes of
 * the copier's threads for files, for the transports self and shm
 */
#ifndef WH_TRANSPORT_COPIER_FILE_H
#define WH_TRANSPORT_COPIER_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/file.h"
#include "memory/region-table.h"
#include "transport/copier.h"
#include "transport/fragment.h"

#define WH_FILE_MOVER_EXTENTS 256u

/* Extents that wait to be moved by one call. They are all of one file. */
struct wh_file_mover {
	struct wh_copier_peer *peer;
	struct wh_fragment *fragment;
	struct wh_file *file;
	uint32_t op; /* of the file */
	uint32_t count;
	struct wh_file_extent extents[WH_FILE_MOVER_EXTENTS];
	uint64_t index[WH_FILE_MOVER_EXTENTS]; /* for wh_fragment_fail() */
};

void wh_file_mover_init(struct wh_file_mover *mover, struct wh_copier_peer *peer,
			struct wh_fragment *fragment);
/* Add an extent pair, or move it if it cannot wait. The caller has entered the remote region and
 * stays in it until the next flush; `remote` is the address of the pair's first byte there. Waits
 * for the file system; failures go to wh_fragment_fail(). */
void wh_file_mover_add(struct wh_file_mover *mover, const struct wh_extent_pair *pair,
		       const struct wh_region_entry *entry, char *remote);
/* Move what waits. */
void wh_file_mover_flush(struct wh_file_mover *mover);

/* For `verify`: make what the fragment has written as durable as its files are to be. Waits. */
void wh_copier_sync_files(struct wh_copier_peer *peer, struct wh_fragment *fragment);

/* The file system of the fragment's files; that for several if they are of more than one; NULL: no
 * region is a file. `entries` as below. */
struct wh_file_system *wh_fragment_file_system(const struct wh_fragment *fragment,
					       struct wh_region_table *entries);
/* Is a region of the fragment a file? `entries`: of the remote regions; NULL: only local ones are
 * looked at. */
bool wh_fragment_has_file(const struct wh_fragment *fragment, struct wh_region_table *entries);

/* For wh_description.memory: how the fragment's first file is written, if it writes to one. False:
 * there is nothing to say. */
bool wh_copier_describe_writes(struct wh_copier_peer *peer, const struct wh_fragment *fragment,
			       char *out, size_t size);
/* For wh_description.how: how files are moved by the copier. */
void wh_copier_describe_files(const struct wh_copier *copier, char *out, size_t size);

#endif
