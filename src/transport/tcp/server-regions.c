/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The regions that requests name: checks extents against the region table, and enters regions for
 * one system call at a time.
 */
#include <errno.h>

#include "gpu/region-window.h"
#include "memory/memory.h"
#include "transport/lent.h"
#include "transport/tcp/server.h"

/* ---- entering ---------------------------------------------------------- */

void tcp_regions_leave(struct tcp_entered *entered)
{
	if (entered->windowed)
		wh_region_window_fence();
	entered->windowed = false;
	while (entered->count)
		wh_region_entry_leave(entered->entries[--entered->count]);
}

char *tcp_region_enter(struct tcp_server *server, struct tcp_entered *entered,
		       const struct tcp_extent *extent, int *error)
{
	const struct wh_region_window *window;
	struct wh_region_entry *entry;

	*error = 0;
	if (!entered->count || entered->last != extent->region) {
		if (entered->count == TCP_ENTERED_MAX)
			return NULL;
		entry = wh_region_entry_enter(wh_engine_regions(server->engine), extent->region);
		if (!entry) {
			*error = ESTALE;
			return NULL;
		}
		window =
			wh_kind_on_host(entry->kind) || !server->windowed ?
				NULL :
				wh_region_window_peek(wh_container(entry, struct wh_region, entry));
		/* The window was skipped when the write began, because the region was being
		 * unregistered, which then did not happen. */
		if (!window && !wh_kind_on_host(entry->kind)) {
			wh_region_entry_leave(entry);
			*error = ESTALE;
			return NULL;
		}
		entered->entries[entered->count++] = entry;
		entered->last = extent->region;
		entered->window = window;
		entered->memory = window ? (char *)window->base : (char *)(uintptr_t)entry->address;
		entered->windowed |= window != NULL;
	}
	return entered->memory + extent->offset;
}

/* ---- checking ---------------------------------------------------------- */

/* Is some of a region's memory no longer mapped? Checked before any byte moves, because the
 * response to a read announces all its bytes before they are sent, and because a channel writes by
 * the CPU, which would raise a signal. */
static bool entry_has_holes(const struct wh_region_entry *entry)
{
	const struct wh_region *region = wh_container(entry, struct wh_region, entry);

	return wh_region_may_vanish(region) &&
	       (atomic_load(&region->faulted) || !wh_memory_mapped(entry->address, entry->length));
}

/* Does an extent of a region with holes have one? Where a read has failed before, each page is
 * looked at. */
static bool extent_has_hole(const struct wh_region_entry *entry, const struct tcp_extent *extent,
			    uint8_t op)
{
	const struct wh_region *region = wh_container(entry, struct wh_region, entry);
	uint64_t at = entry->address + extent->offset;

	return !wh_memory_mapped(at, extent->length) ||
	       (op == WH_READ && atomic_load(&region->faulted) &&
		!wh_memory_readable(at, extent->length));
}

int tcp_extent_probe(struct tcp_server *server, const struct tcp_extent *extent)
{
	struct wh_region_entry *entry =
		wh_region_entry_enter(wh_engine_regions(server->engine), extent->region);
	bool readable;

	if (!entry)
		return ESTALE;
	readable = wh_memory_readable(entry->address + extent->offset, extent->length);
	if (!readable)
		atomic_store(&wh_container(entry, struct wh_region, entry)->faulted, true);
	wh_region_entry_leave(entry);
	return readable ? 0 : EFAULT;
}

int tcp_extent_check(struct tcp_server *server, struct tcp_checked *last,
		     const struct tcp_extent *extent, uint8_t op)
{
	if (!last->looked_up || last->id != extent->region) {
		if (last->entry)
			wh_region_entry_leave(last->entry);
		last->entry =
			wh_region_entry_enter(wh_engine_regions(server->engine), extent->region);
		last->id = extent->region;
		last->looked_up = true;
		/* The session outlives this connection. */
		if (last->entry) {
			last->access = wh_session_access(server->session, last->entry);
			last->holes =
				(op == WH_READ || server->channel) && entry_has_holes(last->entry);
		}
	}
	if (!last->entry)
		return ESTALE;
	if (!(last->access & (op == WH_READ ? WH_ACCESS_READ : WH_ACCESS_WRITE)))
		return EACCES;
	if (!wh_region_entry_holds(last->entry, extent->offset, extent->length))
		return ERANGE;
	return last->holes && extent_has_hole(last->entry, extent, op) ? EFAULT : 0;
}

/* ---- positions and kinds ----------------------------------------------- */

void tcp_extents_advance(const struct tcp_extent *extents, uint32_t *at, uint64_t *skip,
			 uint64_t bytes)
{
	while (bytes) {
		uint64_t length = extents[*at].length - *skip;

		if (bytes < length) {
			*skip += bytes;
			return;
		}
		bytes -= length;
		*skip = 0;
		++*at;
	}
}

bool tcp_lent_check(struct tcp_server *server)
{
	const struct wh_request *request = &server->request;
	const struct wh_lent *lent = wh_session_lent(server->session);
	int error = 0;
	uint64_t last = 0;

	if (!lent || request->slot > lent->count || request->bytes > WH_SLOT)
		return false;
	for (uint32_t i = 0; i < request->count; i++) {
		struct tcp_extent *extent = &server->extents[i];
		struct wh_region_entry *entry;

		if (extent->error)
			continue;
		if (extent->region != last) {
			last = extent->region;
			entry = wh_region_entry_enter(wh_engine_regions(server->engine), last);
			error = !entry ? ESTALE : entry->kind == WH_MEMORY_FILE ? 0 : EOPNOTSUPP;
			if (entry)
				wh_region_entry_leave(entry);
		}
		extent->error = error;
	}
	return true;
}

enum wh_slot_use tcp_request_slots(struct tcp_server *server, struct wh_file_system **system)
{
	const struct tcp_extent *extents = server->extents;
	enum wh_slot_use slots = WH_SLOT_USES;
	uint64_t last = 0;

	*system = NULL;
	for (uint32_t i = 0; i < server->request.count && slots != WH_SLOT_OWNER; i++) {
		struct wh_region_entry *entry;

		if (extents[i].error || extents[i].region == last)
			continue;
		if (server->request.slot) /* tcp_lent_check(); it may be gone since */
			slots = WH_SLOT_FILE_OWNER;
		last = extents[i].region;
		entry = wh_region_entry_enter(wh_engine_regions(server->engine), last);
		if (!entry)
			continue;
		if (wh_kind_on_gpu(entry->kind))
			slots = WH_SLOT_OWNER;
		else if (entry->kind == WH_MEMORY_FILE)
			slots = WH_SLOT_FILE_OWNER;
		if (entry->kind == WH_MEMORY_FILE)
			wh_file_system_add(
				system,
				wh_container(entry, struct wh_region, entry)->registration->file);
		wh_region_entry_leave(entry);
	}
	return slots;
}
