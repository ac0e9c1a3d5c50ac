/* SPDX-License-Identifier: Apache-2.0 */
/* transport/copier-file.c: copies between files of this engine and memory */
#include "transport/copier-file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"
#include "memory/region.h"
#include "util/error.h"

/* Bytes on their way from one file to another. */
#define BETWEEN_FILES ((uint64_t)256 << 10)

static struct wh_file *region_file(const struct wh_region *region)
{
	return region->entry.kind == WH_MEMORY_FILE ? region->registration->file : NULL;
}

/* The remote side's file, if that is this engine. */
static struct wh_file *entry_file(const struct wh_copier_peer *peer,
				  const struct wh_region_entry *entry)
{
	return peer->ops->own ? region_file(wh_container(entry, struct wh_region, entry)) : NULL;
}

/* What a transfer does to the file on one side of it. */
static uint32_t file_op(const struct wh_fragment *fragment, bool local)
{
	return local == (fragment->op == WH_READ) ? WH_WRITE : WH_READ;
}

/* ---- moving ---------------------------------------------------------------------------------- */

void wh_file_mover_init(struct wh_file_mover *mover, struct wh_copier_peer *peer,
			struct wh_fragment *fragment)
{
	mover->peer = peer;
	mover->fragment = fragment;
	mover->count = 0;
}

/* One that fails does not keep the others from being moved: each transfer has a status. */
void wh_file_mover_flush(struct wh_file_mover *mover)
{
	uint32_t next = 0, moved;

	while (next < mover->count) {
		int error = wh_file_move(mover->file, mover->op, mover->extents + next,
					 mover->count - next, &moved);

		next += moved;
		if (error) {
			wh_fragment_fail(mover->fragment, mover->index[next], error, "%s",
					 wh_error_text());
			next++;
		}
	}
	mover->count = 0;
}

/* Through a buffer, a part at a time. */
static int move_between(struct wh_file *from, uint64_t from_offset, struct wh_file *to,
			uint64_t to_offset, uint64_t length)
{
	char *buffer = malloc(BETWEEN_FILES);
	int error = buffer ? 0 : wh_fail(ENOMEM, "no memory to copy between files");
	uint32_t moved;

	for (uint64_t at = 0; at < length && !error; at += BETWEEN_FILES) {
		uint64_t part = length - at < BETWEEN_FILES ? length - at : BETWEEN_FILES;
		struct wh_file_extent extent = { from_offset + at, buffer, part };

		error = wh_file_move(from, WH_READ, &extent, 1, &moved);
		extent.offset = to_offset + at;
		if (!error)
			error = wh_file_move(to, WH_WRITE, &extent, 1, &moved);
	}
	free(buffer);
	return error;
}

void wh_file_mover_add(struct wh_file_mover *mover, const struct wh_extent_pair *pair,
		       const struct wh_region_entry *entry, char *remote)
{
	struct wh_fragment *fragment = mover->fragment;
	const struct wh_region *region = wh_fragment_local(fragment, pair->index);
	struct wh_file *local = region_file(region), *there = entry_file(mover->peer, entry), *file;
	uint64_t offset = (uint64_t)(uintptr_t)pair->local - region->entry.address;
	uint64_t index = fragment->blocks ? UINT64_MAX : pair->index;
	bool reads = fragment->op == WH_READ;
	int error;

	if (!local && !there) {
		wh_copy_bytes(reads ? pair->local : remote, reads ? remote : pair->local,
			      pair->length, false);
		return;
	}
	if (local && there) {
		wh_file_mover_flush(mover); /* in the order of the transfers, as all copies */
		error = reads ? move_between(there, pair->offset, local, offset, pair->length) :
				move_between(local, offset, there, pair->offset, pair->length);
		if (error)
			wh_fragment_fail(fragment, index, error, "%s", wh_error_text());
		return;
	}
	file = local ? local : there;
	if (mover->count == WH_FILE_MOVER_EXTENTS || (mover->count && mover->file != file))
		wh_file_mover_flush(mover);
	mover->file = file;
	mover->op = file_op(fragment, local);
	mover->index[mover->count] = index;
	mover->extents[mover->count++] = (struct wh_file_extent){
		.offset = local ? offset : pair->offset,
		.memory = local ? remote : pair->local,
		.length = pair->length,
	};
}

/* ---- durability ------------------------------------------------------------------------------ */

/* Sync the file to which transfer (or base) `index` writes, if it writes to one. */
static int sync_target(struct wh_copier_peer *peer, const struct wh_fragment *fragment,
		       uint64_t index)
{
	const struct wh_region *local = wh_fragment_local(fragment, index);
	struct wh_region_entry *entry;
	struct wh_file *file;
	int error = 0;

	if (fragment->op == WH_READ)
		return region_file(local) ? wh_file_sync(region_file(local)) : 0;
	if (!peer->ops->own)
		return 0;
	entry = wh_region_entry_enter(peer->entries, wh_fragment_remote(fragment, index));
	if (!entry)
		return wh_fail(ESTALE, "a file was unregistered before its bytes were durable");
	file = entry_file(peer, entry);
	if (file)
		error = wh_file_sync(file);
	wh_region_entry_leave(entry);
	return error;
}

static uint64_t target_id(const struct wh_fragment *fragment, uint64_t index)
{
	return fragment->op == WH_READ ? wh_fragment_local_id(fragment, index) :
					 wh_fragment_remote(fragment, index);
}

void wh_copier_sync_files(struct wh_copier_peer *peer, struct wh_fragment *fragment)
{
	uint64_t last = 0;
	int error = 0;

	for (uint64_t i = 0; i < fragment->count && !error; i++) {
		uint64_t id = target_id(fragment, fragment->first + i);

		if (id != last)
			error = sync_target(peer, fragment, fragment->first + i);
		last = id;
	}
	if (error)
		wh_fragment_fail(fragment, UINT64_MAX, error, "%s", wh_error_text());
}

/* ---- looking at fragments -------------------------------------------------------------------- */

struct wh_file_system *wh_fragment_file_system(const struct wh_fragment *fragment,
					       struct wh_region_table *entries)
{
	const struct wh_region *last = NULL, *local;
	struct wh_file_system *system = NULL;
	struct wh_region_entry *entry;
	uint64_t last_id = 0, id;

	for (uint64_t i = fragment->first; i < fragment->first + fragment->count; i++) {
		local = wh_fragment_local(fragment, i);
		if (local != last)
			wh_file_system_add(&system, region_file(local));
		last = local;
		id = wh_fragment_remote(fragment, i);
		if (!entries || id == last_id)
			continue;
		last_id = id;
		entry = wh_region_entry_enter(entries, id);
		if (!entry)
			continue;
		wh_file_system_add(&system,
				   region_file(wh_container(entry, struct wh_region, entry)));
		wh_region_entry_leave(entry);
	}
	return system;
}

static bool remote_is_file(struct wh_region_table *entries, uint64_t id)
{
	struct wh_region_entry *entry = wh_region_entry_enter(entries, id);
	bool file = entry && entry->kind == WH_MEMORY_FILE;

	if (entry)
		wh_region_entry_leave(entry);
	return file;
}

bool wh_fragment_has_file(const struct wh_fragment *fragment, struct wh_region_table *entries)
{
	uint64_t last = 0;

	for (uint64_t i = fragment->first; i < fragment->first + fragment->count; i++) {
		uint64_t remote = wh_fragment_remote(fragment, i);

		if (wh_fragment_local(fragment, i)->entry.kind == WH_MEMORY_FILE ||
		    (entries && remote != last && remote_is_file(entries, remote)))
			return true;
		last = remote;
	}
	return false;
}

bool wh_copier_describe_writes(struct wh_copier_peer *peer, const struct wh_fragment *fragment,
			       char *out, size_t size)
{
	const struct wh_region *local = wh_fragment_local(fragment, fragment->first);
	struct wh_region_entry *entry;
	struct wh_file *file;
	bool said;

	if (fragment->op == WH_READ)
		return region_file(local) && wh_file_describe_writes(region_file(local), out, size);
	entry = wh_region_entry_enter(peer->entries, wh_fragment_remote(fragment, fragment->first));
	file = entry ? entry_file(peer, entry) : NULL;
	said = file && wh_file_describe_writes(file, out, size);
	if (entry)
		wh_region_entry_leave(entry);
	return said;
}

void wh_copier_describe_files(const struct wh_copier *copier, char *out, size_t size)
{
	if (copier->turns)
		snprintf(out, size, "file, no threads");
	else
		snprintf(out, size, "file, up to %u threads", copier->most);
}
