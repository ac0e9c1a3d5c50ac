/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport cuda: a few bytes to or from GPU memory of this process, or of another one on this
 * host. The CPU moves them through the region's window in less time than a copy engine takes to
 * start, so the fragment is done when submit returns. It can set flags, too: 8 aligned bytes are
 * one store, and bytes that an earlier batch has moved are visible before them. Where many are in
 * flight and the window is slow, as it is to read, they go by the GPU all the same.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "gpu/region-window.h"
#include "memory/memory.h"
#include "memory/region-table.h"
#include "memory/region.h"
#include "transport/blocks.h"
#include "transport/core.h"
#include "transport/cuda/cuda.h"
#include "transport/fragment.h"
#include "transport/transport.h"
#include "util/config.h"
#include "util/error.h"
#include "util/list.h"

#define EXTENTS (WH_REGION_WINDOW_FEW / WH_REGION_WINDOW_LEAST)

/* One side of an extent pair; its region is entered. */
struct end {
	struct wh_region_entry *entry;
	const struct wh_region_window *window; /* NULL: host memory */
	char *at; /* for the CPU */
};

struct crossing {
	struct end from, to;
	uint64_t length;
};

struct crossings {
	unsigned count;
	struct crossing of[EXTENTS];
};

static void crossings_leave(struct crossings *crossings)
{
	while (crossings->count--) {
		wh_region_entry_leave(crossings->of[crossings->count].from.entry);
		wh_region_entry_leave(crossings->of[crossings->count].to.entry);
	}
}

/* ---- where the CPU reaches both sides -------------------------------------------------------- */

/* A region of this engine; `address` lies in it. */
static bool end_find_local(struct end *end, uint64_t address, bool open)
{
	struct wh_region *region = wh_container(end->entry, struct wh_region, entry);

	end->at = (char *)(uintptr_t)address;
	if (wh_kind_on_host(end->entry->kind))
		return true;
	end->window = open ? wh_region_window_get(region) : wh_region_window_peek(region);
	if (!end->window || wh_registration_check(region->registration))
		return false;
	end->at = wh_region_window_at(end->window, address);
	return true;
}

int wh_cuda_object(struct wh_engine *engine, const struct wh_segment *segment, int *fd,
		   uint64_t *offset)
{
	const char *order = wh_engine_config(engine)->text[WH_SETTING_WINDOW];
	struct wh_view_object object;
	int error;

	if (!wh_window_order_has(order, "rm"))
		return wh_fail(EOPNOTSUPP, "its setting window is %s", order);
	error = wh_windows_export(wh_engine_region_windows(engine)->windows, segment->start,
				  segment->length, &object);
	if (error)
		return error;
	*fd = object.fd;
	*offset = object.offset;
	return 0;
}

/* Ask the owner for descriptors, where the import by CUDA is not enough for a window. */
struct question {
	struct wh_cuda_peer *cuda;
	struct wh_region_entry *entry;
};

static int window_ask_owner(void *arg, struct wh_window_objects *out)
{
	const struct question *question = arg;

	return wh_cuda_objects(question->cuda, question->entry, out);
}

/* Find where a region of another process is mapped here. */
static bool end_find_remote(struct wh_cuda_peer *cuda, struct end *end, uint64_t offset, bool open)
{
	struct wh_remote_region *region = wh_container(end->entry, struct wh_remote_region, entry);
	struct wh_device_mapping *mapping =
		atomic_load_explicit(&region->transport[WH_TRANSPORT_CUDA], memory_order_acquire);
	struct question question = { cuda, end->entry };
	char why[WH_REFUSAL];
	uint64_t address;

	/* The owner has to know, in this session, that its region is used. */
	if (open && wh_cuda_remote(cuda, end->entry, &mapping, why))
		return false;
	if (!mapping)
		return false;
	if (mapping->fabric)
		return false;
	if (mapping->host) {
		end->at = mapping->host + offset;
		return true;
	}
	end->window = wh_region_window_peek_remote(region);
	if (!end->window && open) {
		address = wh_device_mapping_own(cuda->mappings, mapping);
		if (address)
			end->window = wh_region_window_get_remote(
				wh_engine_region_windows(wh_peer_engine(cuda->peer)), region,
				address, window_ask_owner, &question);
	}
	if (end->window)
		end->at = wh_region_window_at(end->window, end->entry->address + offset);
	return end->window;
}

static bool end_find(struct wh_cuda_peer *cuda, struct end *end, uint64_t offset, bool open)
{
	return wh_peer_is_self(cuda->peer) ?
		       end_find_local(end, end->entry->address + offset, open) :
		       end_find_remote(cuda, end, offset, open);
}

/* Enter both regions of an extent pair. False: one is gone, or the CPU does not reach it. */
static bool crossings_enter(struct wh_cuda_peer *cuda, const struct wh_fragment *fragment,
			    const struct wh_extent_pair *extent, bool open,
			    struct crossings *crossings)
{
	struct wh_peer *peer = cuda->peer;
	struct end local = { .entry = wh_region_entry_enter(
				     wh_engine_regions(wh_peer_engine(peer)),
				     wh_fragment_local_id(fragment, extent->index)) };
	struct end remote = { .entry = wh_region_entry_enter(
				      wh_peer_is_self(peer) ?
					      wh_engine_regions(wh_peer_engine(peer)) :
					      wh_peer_regions(peer),
				      extent->remote) };
	bool write = fragment->op == WH_WRITE;

	if (!local.entry || !remote.entry ||
	    !end_find_local(&local, (uint64_t)(uintptr_t)extent->local, open) ||
	    !end_find(cuda, &remote, extent->offset, open)) {
		if (local.entry)
			wh_region_entry_leave(local.entry);
		if (remote.entry)
			wh_region_entry_leave(remote.entry);
		return false;
	}
	crossings->of[crossings->count++] = (struct crossing){ .from = write ? local : remote,
							       .to = write ? remote : local,
							       .length = extent->length };
	return true;
}

/* ---- CPU or GPU ------------------------------------------------------------------------------ */

/* ns per byte of loads. At get_most bytes they take as long as the copy engine. */
static double window_byte_time(const struct wh_region_window *window)
{
	const struct wh_window_cost *cost = &window->cost;

	return window->get_most ? cost->engine / (double)window->get_most + cost->engine_byte : 0;
}

/* The most bytes that the CPU moves faster than the GPU. Between the memories of two GPUs it reads,
 * then writes. */
static uint64_t crossings_limit(const struct crossing *crossing)
{
	const struct wh_region_window *from = crossing->from.window, *to = crossing->to.window;
	double least;

	if (!from && !to)
		return 0;
	if (!from)
		return to->put_most;
	if (!to)
		return from->get_most;
	if (!from->get_most || to->cost.engine <= to->cost.window)
		return 0;
	least = (to->cost.engine - to->cost.window) /
		(window_byte_time(from) + to->cost.window_byte);
	return least < (double)from->get_most ? (uint64_t)least : from->get_most;
}

static void crossings_add_time(const struct crossing *crossing, struct wh_cuda_time *total)
{
	const struct wh_region_window *from = crossing->from.window, *to = crossing->to.window;
	double bytes = (double)wh_region_window_weight(crossing->length);

	if (from) {
		total->ns += window_byte_time(from) * bytes;
		total->measured = total->measured && from->measured;
	}
	if (to) {
		/* Once, until the first one has been shown to have arrived. */
		total->ns += (total->ns > 0 ? 0 : to->cost.window) + to->cost.window_byte * bytes;
		total->measured = total->measured && to->measured;
	}
}

/* Many in flight, as the program sees it: the CPU would move one after the other, while by the GPU
 * they share turns, and each takes the CPU no longer than this (ns). */
#define MANY 2
#define SHARED_NS 1700

static double crossings_time(const struct crossings *crossings, bool *measured)
{
	struct wh_cuda_time time = { .measured = true };

	for (unsigned i = 0; i < crossings->count; i++)
		crossings_add_time(&crossings->of[i], &time);
	*measured = time.measured;
	return time.ns;
}

/* Would the CPU hold up many others for longer than the GPU needs for all? */
static bool crossings_hold_up(const struct wh_fragment *fragment, const struct crossings *crossings)
{
	bool measured;

	return fragment->priority != WH_PRIORITY_LATENCY &&
	       wh_batch_unseen(fragment->batch) > MANY &&
	       crossings_time(crossings, &measured) > SHARED_NS;
}

/* What moved the fragment last, in its state: for describing it. */
struct moved {
	_Atomic bool by_gpu; /* although the CPU reaches both sides */
};

static struct moved *fragment_moved(const struct wh_fragment *fragment)
{
	static_assert(sizeof(struct moved) <= WH_FRAGMENT_STATE, "the state is too small");
	return (struct moved *)(uintptr_t)fragment->state;
}

/* Does the CPU move all of the fragment? If so, all its regions are entered. */
static bool crossings_decide(struct wh_cuda_peer *cuda, const struct wh_fragment *fragment,
			     bool open, struct crossings *crossings)
{
	const struct wh_engine *engine = wh_peer_engine(cuda->peer);
	uint64_t sum = 0, most = WH_REGION_WINDOW_FEW, limit;
	struct wh_cursor at;
	struct wh_extent_pair extent;
	bool good = true;

	crossings->count = 0;
	if (fragment->transfers > EXTENTS || fragment->bytes > WH_REGION_WINDOW_FEW ||
	    fragment->bytes > (uint64_t)wh_engine_config(engine)->number[WH_SETTING_INLINE])
		return false;
	wh_fragment_start(fragment, &at);
	while (good && wh_fragment_next(fragment, &at, UINT64_MAX, &extent)) {
		good = crossings_enter(cuda, fragment, &extent, open, crossings);
		if (!good)
			break;
		limit = crossings_limit(&crossings->of[crossings->count - 1]);
		most = limit < most ? limit : most;
		sum += wh_region_window_weight(extent.length);
		good = sum <= most;
	}
	if (!good)
		crossings_leave(crossings);
	return good;
}

bool wh_cuda_few_describe(struct wh_cuda_peer *cuda, const struct wh_fragment *fragment, bool open,
			  const char **backend, struct wh_cuda_time *time)
{
	struct crossings crossings;
	const struct crossing *first = &crossings.of[0];

	if (atomic_load_explicit(&fragment_moved(fragment)->by_gpu, memory_order_relaxed) ||
	    !crossings_decide(cuda, fragment, open, &crossings))
		return false;
	*backend = (first->to.window ? first->to.window : first->from.window)->view->backend->name;
	if (time)
		time->ns = crossings_time(&crossings, &time->measured);
	crossings_leave(&crossings);
	return true;
}

void wh_cuda_few_prepare(struct wh_cuda_peer *cuda, const struct wh_fragment *fragment)
{
	struct wh_extent_pair extent;
	struct wh_cursor at;

	wh_fragment_start(fragment, &at);
	while (wh_fragment_next(fragment, &at, UINT64_MAX, &extent)) {
		struct crossings crossings = { .count = 0 };

		if (crossings_enter(cuda, fragment, &extent, true, &crossings))
			crossings_leave(&crossings);
	}
}

/* ---- moving ---------------------------------------------------------------------------------- */

static void crossings_move(const struct crossing *c)
{
	char bytes[WH_REGION_WINDOW_FEW];

	if (!c->from.window) {
		wh_region_window_write(c->to.window, c->to.at, c->from.at, c->length);
	} else if (!c->to.window) {
		wh_region_window_read(c->from.window, c->to.at, c->from.at, c->length);
	} else {
		wh_region_window_read(c->from.window, bytes, c->from.at, c->length);
		wh_region_window_write(c->to.window, c->to.at, bytes, c->length);
	}
}

bool wh_cuda_few(struct wh_cuda_peer *cuda, struct wh_fragment *fragment)
{
	struct wh_region_window_flushed flushed = { 0 };
	unsigned changes = wh_cuda_changes(cuda);
	struct crossings crossings;
	bool by_gpu;

	if (atomic_load(&fragment->cancelled) || wh_cuda_lost(cuda) ||
	    !crossings_decide(cuda, fragment, true, &crossings))
		return false;
	by_gpu = crossings_hold_up(fragment, &crossings);
	atomic_store_explicit(&fragment_moved(fragment)->by_gpu, by_gpu, memory_order_relaxed);
	if (by_gpu) {
		crossings_leave(&crossings);
		return false;
	}
	for (unsigned i = 0; i < crossings.count; i++)
		crossings_move(&crossings.of[i]);
	wh_region_window_fence();
	for (unsigned i = 0; i < crossings.count; i++) {
		if (crossings.of[i].to.window)
			wh_region_window_flush_once(&flushed, crossings.of[i].to.window);
	}
	wh_cuda_verify(cuda, fragment, changes);
	crossings_leave(&crossings);
	wh_fragment_done(fragment);
	return true;
}
