/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory through region windows, on both sides: the socket receives the bytes of a write
 * (owner) or a read (initiator) directly into the window, unless the request is so long that slots
 * and a copy engine are faster. The CPU also reads small writes through the window (initiator).
 */
#include <errno.h>
#include <string.h>

#include "gpu/region-window.h"
#include "memory/memory.h"
#include "transport/tcp/server.h"

/* ---- the owner's side -------------------------------------------------- */

bool tcp_window_can_receive(struct tcp_server *server)
{
	const struct wh_request *request = &server->request;
	uint64_t last = 0;
	bool can = true;

	for (uint32_t i = 0; i < request->count && can; i++) {
		const struct tcp_extent *extent = &server->extents[i];
		const struct wh_region_window *window;
		struct wh_region *region;
		struct wh_region_entry *entry;

		if (extent->error || extent->region == last)
			continue;
		last = extent->region;
		entry = wh_region_entry_enter(wh_engine_regions(server->engine), last);
		if (!entry) /* its bytes are discarded, and the response has the error */
			continue;
		region = wh_container(entry, struct wh_region, entry);
		if (!wh_kind_on_host(entry->kind)) {
			window = wh_region_window_get(region);
			can = window && request->bytes <= window->receive_most &&
			      !wh_registration_check(region->registration);
		}
		wh_region_entry_leave(entry);
	}
	return can;
}

/* Flush a region's window: on return all received bytes are visible in its memory. 0, or a positive
 * errno. */
static int window_end_region(struct tcp_server *server, uint64_t id,
			     struct wh_region_window_flushed *flushed)
{
	struct wh_region_entry *entry =
		wh_region_entry_enter(wh_engine_regions(server->engine), id);
	const struct wh_region *region;
	const struct wh_region_window *window;
	int error = 0;

	/* Unregistered since: the bytes may not have arrived, and need not. */
	if (!entry)
		return ESTALE;
	region = wh_container(entry, struct wh_region, entry);
	if (!wh_kind_on_host(entry->kind)) {
		window = wh_region_window_peek(region);
		if (window)
			wh_region_window_flush_once(flushed, window);
		error = window ? -wh_registration_check(region->registration) : ESTALE;
	}
	wh_region_entry_leave(entry);
	return error;
}

void tcp_window_end(struct tcp_server *server)
{
	struct wh_region_window_flushed flushed = { 0 };
	uint64_t last = 0;
	int error = 0;

	server->windowed = false;
	for (uint32_t i = 0; i < server->request.count; i++) {
		struct tcp_extent *extent = &server->extents[i];

		if (extent->error)
			continue;
		if (extent->region != last) {
			last = extent->region;
			error = window_end_region(server, last, &flushed);
		}
		extent->error = error;
	}
}

/* ---- the initiator ----------------------------------------------------- */

void tcp_window_open(const struct wh_fragment *fragment)
{
	const struct wh_region *last = NULL, *local;

	for (uint64_t i = fragment->first; i < fragment->first + fragment->count; i++) {
		local = wh_fragment_local(fragment, i);
		if (local != last && !wh_kind_on_host(local->entry.kind) &&
		    !wh_region_window_get((struct wh_region *)(uintptr_t)local))
			return;
		last = local;
	}
}

const struct wh_region_window *tcp_window_of(const struct wh_fragment *fragment, uint64_t request)
{
	const struct wh_region *last = NULL, *local;
	const struct wh_region_window *window = NULL;

	if (fragment->op != WH_READ)
		return NULL;
	request = fragment->bytes < request ? fragment->bytes : request;
	for (uint64_t i = fragment->first; i < fragment->first + fragment->count; i++) {
		local = wh_fragment_local(fragment, i);
		if (local == last || wh_kind_on_host(local->entry.kind))
			continue;
		last = local;
		window = wh_region_window_peek(local);
		if (!window || request > window->receive_most)
			return NULL;
	}
	return window;
}

const struct wh_region_window *tcp_window_few(const struct wh_fragment *fragment)
{
	const struct wh_region_window *window, *found = NULL;
	uint64_t sum = 0, most = WH_REGION_WINDOW_FEW;
	struct wh_cursor at;
	struct wh_extent_pair pair;

	wh_fragment_start(fragment, &at);
	while (sum <= most && wh_fragment_next(fragment, &at, UINT64_MAX, &pair)) {
		const struct wh_region *local = wh_fragment_local(fragment, pair.index);

		if (wh_kind_on_host(local->entry.kind))
			continue;
		window = wh_region_window_peek(local);
		if (!window)
			return NULL;
		found = window;
		sum += wh_region_window_weight(pair.length);
		most = window->get_most < most ? window->get_most : most;
	}
	return sum <= most && fragment->bytes <= WH_REGION_WINDOW_FEW ? found : NULL;
}

bool tcp_window_current(const struct wh_fragment *fragment)
{
	const struct wh_region *last = NULL, *local;

	for (uint64_t i = fragment->first; i < fragment->first + fragment->count; i++) {
		local = wh_fragment_local(fragment, i);
		if (local != last && wh_registration_check(local->registration))
			return false;
		last = local;
	}
	return true;
}

static const struct wh_region_window *pair_window(const struct wh_fragment *fragment,
						  const struct wh_extent_pair *pair)
{
	const struct wh_region *local = wh_fragment_local(fragment, pair->index);

	return wh_kind_on_host(local->entry.kind) ? NULL : wh_region_window_peek(local);
}

char *tcp_window_at(const struct wh_fragment *fragment, const struct wh_extent_pair *pair)
{
	const struct wh_region_window *window = pair_window(fragment, pair);

	return window ? wh_region_window_at(window, (uint64_t)(uintptr_t)pair->local) : pair->local;
}

void tcp_window_put(const struct wh_fragment *fragment, const struct wh_extent_pair *pair, char *at,
		    const uint8_t *from, size_t length)
{
	const struct wh_region_window *window = pair_window(fragment, pair);

	if (window)
		wh_region_window_write(window, at, from, length);
	else
		memcpy(at, from, length);
}

void tcp_window_request_end(const struct tcp_request *request)
{
	struct wh_fragment *fragment = request->fragment;
	struct wh_cursor at = request->start;
	struct wh_region_window_flushed flushed = { 0 };
	const struct wh_region *last = NULL;
	int error = 0;
	struct wh_extent_pair pair;

	while (wh_fragment_next(fragment, &at, at.left, &pair)) {
		const struct wh_region *local = wh_fragment_local(fragment, pair.index);

		if (local != last) {
			last = local;
			error = 0;
			if (pair_window(fragment, &pair)) {
				wh_region_window_flush_once(&flushed, pair_window(fragment, &pair));
				error = wh_registration_check(local->registration);
			}
		}
		if (error)
			wh_fragment_fail(fragment, pair.index, -ESTALE, "%s", wh_error_text());
	}
}
