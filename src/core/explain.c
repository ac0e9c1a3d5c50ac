/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Explaining a batch: the routes it took or would take, why better ones were refused, how far it
 * is, and how long it should take.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/batch.h"
#include "core/engine.h"
#include "core/notification.h"
#include "core/peer.h"
#include "core/plan.h"
#include "core/region.h"
#include "core/remote.h"
#include "gpu/region-window.h"
#include "memory/region-table.h"
#include "transport/blocks.h"
#include "transport/fragment.h"
#include "transport/transport.h"
#include "util/error.h"
#include "util/list.h"
#include "util/options.h"

static unsigned explain_collect(struct wh_batch *batch, struct wh_route out[WH_TRANSPORT_COUNT])
{
	struct wh_peer *peer = batch->peer;
	struct wh_engine *engine = peer->engine;
	bool taken[WH_TRANSPORT_COUNT] = { false };
	struct wh_share shares[WH_TRANSPORT_COUNT];
	unsigned count = 0;

	pthread_mutex_lock(&batch->text_lock);
	memcpy(shares, batch->share, sizeof(shares));
	pthread_mutex_unlock(&batch->text_lock);
	/* Transports that are on, in the order of the setting; then the others. */
	for (unsigned i = 0; i < engine->order_count + WH_TRANSPORT_COUNT; i++) {
		uint32_t id = i < engine->order_count ? engine->order[i] : i - engine->order_count;
		const struct wh_share *share = &shares[id];
		struct wh_route *route = &out[count];

		if (taken[id] || (!share->bytes && !share->refused[0]))
			continue;
		taken[id] = true;
		memset(route, 0, sizeof(*route));
		snprintf(route->transport, sizeof(route->transport), "%s", wh_transport(id)->name);
		route->bytes = share->bytes;
		route->transfers = share->transfers;
		memcpy(route->refused, share->refused, sizeof(route->refused));
		route->inapplicable = share->refused[0] && share->inapplicable;
		if (share->bytes && peer->opened[id])
			wh_transport(id)->detail(peer, peer->transport[id], batch, route->detail,
						 sizeof(route->detail));
		count++;
	}
	return count;
}

/* Collect the routes; a batch that was never submitted is planned first. */
static int explain_look(struct wh_batch *batch, const char *call,
			struct wh_route out[WH_TRANSPORT_COUNT], unsigned *count)
{
	int error;

	if (!batch)
		return wh_fail(EINVAL, "%s: batch is NULL", call);
	error = wh_engine_guard(batch->peer->engine, call);
	if (error)
		return error;
	if (atomic_load(&batch->state) == WH_BATCH_NEW && !batch->planned) {
		error = wh_peer_check(batch->peer);
		if (!error)
			error = wh_plan(batch);
		/* A batch that no transport takes still has reasons to show. */
		if (error && error != -EOPNOTSUPP)
			return error;
	}
	*count = explain_collect(batch, out);
	return 0;
}

static int explain_routes(struct wh_batch *batch, struct wh_route *out, size_t *count)
{
	struct wh_route routes[WH_TRANSPORT_COUNT];
	unsigned found = 0;
	size_t room;
	int error = explain_look(batch, "wh_batch_routes", routes, &found);

	if (error)
		return error;
	if (!count || (!out && *count))
		return wh_fail(EINVAL, "wh_batch_routes: %s is NULL", count ? "out" : "count");
	room = *count;
	*count = found;
	if (room < found)
		return wh_fail(ENOSPC, "wh_batch_routes: room for %zu routes, there are %u", room,
			       found);
	if (found)
		memcpy(out, routes, found * sizeof(*out));
	return 0;
}

int wh_batch_routes(struct wh_batch *batch, struct wh_route *out, size_t *count)
{
	wh_fail_begin();
	return wh_fail_end(explain_routes(batch, out, count));
}

int wh_batch_progress(struct wh_batch *batch, uint64_t *out)
{
	uint64_t bytes = 0;
	int error;

	if (!batch || !out)
		return wh_fail(EINVAL, "wh_batch_progress: %s is NULL", batch ? "out" : "batch");
	error = wh_engine_guard(batch->peer->engine, "wh_batch_progress");
	if (error)
		return error;
	if (atomic_load_explicit(&batch->state, memory_order_acquire) == WH_BATCH_NEW)
		return wh_fail(EINVAL, "wh_batch_progress: the batch was never submitted");
	for (size_t i = 0; i < batch->fragment_count; i++) {
		const struct wh_fragment *fragment = &batch->fragments[i];
		/* Some transports do not maintain `left`: then only the end of a fragment counts.
		 */
		uint64_t left = atomic_load_explicit(&fragment->done, memory_order_acquire) ?
					0 :
					atomic_load_explicit(&fragment->left, memory_order_relaxed);

		bytes += left < fragment->bytes ? fragment->bytes - left : 0;
	}
	*out = bytes;
	return 0;
}

static int explain_estimate(struct wh_batch *batch, struct wh_estimate *out)
{
	struct wh_route routes[WH_TRANSPORT_COUNT];
	struct wh_estimate estimate = { .measured = 1 };
	struct wh_share shares[WH_TRANSPORT_COUNT];
	unsigned count;
	bool known = true;
	int error = explain_look(batch, "wh_batch_estimate", routes, &count);

	if (!error && !out)
		error = wh_fail(EINVAL, "wh_batch_estimate: out is NULL");
	if (error)
		return error;
	pthread_mutex_lock(&batch->text_lock);
	memcpy(shares, batch->share, sizeof(shares));
	pthread_mutex_unlock(&batch->text_lock);
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++) {
		if (!shares[id].bytes)
			continue;
		estimate.bytes += shares[id].bytes;
		estimate.transfers += shares[id].transfers;
		known = batch->peer->opened[id] &&
			wh_transport(id)->estimate(batch->peer, id, batch, &estimate) && known;
	}
	if (!estimate.bytes)
		return wh_fail(EOPNOTSUPP, "wh_batch_estimate: the batch moves no bytes, or no "
					   "transport takes it; see wh_batch_routes()");
	if (!known) {
		estimate.duration = 0;
		estimate.measured = 0;
	}
	return wh_options_return(out, &estimate, sizeof(estimate), "wh_batch_estimate");
}

int wh_batch_estimate(struct wh_batch *batch, struct wh_estimate *out)
{
	wh_fail_begin();
	return wh_fail_end(explain_estimate(batch, out));
}

/* Describe the region window of a transfer's or base's memory: the local one, else the remote one.
 * Under region_windows.lock. */
static bool explain_region_window(struct wh_peer *peer, const struct wh_region *local,
				  uint64_t remote, char *line, size_t size)
{
	struct wh_region_entry *entry;
	bool found = wh_region_window_describe(local, line, size);

	if (found)
		return found;
	entry = wh_region_entry_enter(peer->self ? &peer->engine->regions : &peer->regions, remote);
	if (!entry)
		return false;
	found = peer->self ?
			wh_region_window_describe(wh_container(entry, struct wh_region, entry),
						  line, size) :
			wh_region_window_describe_remote(
				wh_container(entry, struct wh_remote_region, entry), line, size);
	wh_region_entry_leave(entry);
	return found;
}

/* Describe the first region window that the batch's memory has. */
static bool explain_window(const struct wh_batch *batch, char *line, size_t size)
{
	struct wh_engine *engine = batch->peer->engine;
	bool found = false;

	/* The lock keeps windows from being closed with their regions. */
	pthread_mutex_lock(&engine->region_windows.lock);
	for (size_t i = 0; i < batch->item_count && !found; i++)
		found = explain_region_window(batch->peer, batch->items[i].local,
					      batch->items[i].remote, line, size);
	for (size_t i = 0; i < batch->blocks_count && !found; i++) {
		const struct wh_blocks *blocks = batch->blocks[i];

		for (uint64_t b = 0; b < blocks->base_count && !found; b++)
			found = explain_region_window(batch->peer, blocks->bases[b].local,
						      blocks->bases[b].remote, line, size);
	}
	pthread_mutex_unlock(&engine->region_windows.lock);
	return found;
}

/* Lines of the transport's own; "" if there are none. */
static void explain_transport(const struct wh_batch *batch, enum wh_transport_id id, char *out,
			      size_t size)
{
	struct wh_peer *peer = batch->peer;

	*out = 0;
	if (peer->opened[id])
		wh_transport(id)->story(peer, peer->transport[id], batch, out, size);
}

static bool explain_memory(struct wh_batch *batch, unsigned id, char *line, size_t size)
{
	struct wh_peer *peer = batch->peer;
	bool used;

	pthread_mutex_lock(&batch->text_lock);
	used = batch->share[id].bytes && peer->opened[id];
	pthread_mutex_unlock(&batch->text_lock);
	return used && wh_transport(id)->tell(peer, peer->transport[id], batch, line, size);
}

static bool explain_notification(struct wh_batch *batch, char *line, size_t size)
{
	static const char *const paths[] = {
		[WH_NOTIFY_CONTROL] = "over the control connection",
		[WH_NOTIFY_TRANSPORT] = "by rdma",
		[WH_NOTIFY_TRANSPORT_EARLY] = "by rdma, right behind the bytes",
	};
	unsigned path = atomic_load(&batch->notify_path);

	if (path == WH_NOTIFY_UNSENT)
		return false;
	snprintf(line, size, "notification: %s", paths[path]);
	return true;
}

static int explain_text(struct wh_batch *batch, char *text, size_t length)
{
	struct wh_route routes[WH_TRANSPORT_COUNT];
	unsigned count;
	size_t at = 0;
	char line[1200], story[4096];
	int error = explain_look(batch, "wh_batch_explain", routes, &count);

	if (error)
		return error;
	if (!text && length)
		return wh_fail(EINVAL, "wh_batch_explain: text is NULL");
	if (length)
		text[0] = 0;
	for (unsigned i = 0; i < count; i++) {
		const struct wh_route *route = &routes[i];
		size_t used = 0;

		used += (size_t)snprintf(line, sizeof(line), "%s:", route->transport);
		if (route->bytes)
			used += (size_t)snprintf(
				line + used, sizeof(line) - used,
				" %" PRIu64 " bytes in %" PRIu64 " transfers%s%s%s", route->bytes,
				route->transfers, route->detail[0] ? " (" : "", route->detail,
				route->detail[0] ? ")" : "");
		if (route->refused[0])
			used += (size_t)snprintf(line + used, sizeof(line) - used, "%s refused: %s",
						 route->bytes ? ", partly" : "", route->refused);
		used += (size_t)snprintf(line + used, sizeof(line) - used, "\n");
		if (at < length)
			snprintf(text + at, length - at, "%s", line);
		at += used;
		explain_transport(batch, wh_transport_by_name(route->transport), story,
				  sizeof(story));
		if (at < length)
			snprintf(text + at, length - at, "%s", story);
		at += strlen(story);
	}
	for (unsigned id = 0; id <= WH_TRANSPORT_COUNT; id++) {
		if (id == WH_TRANSPORT_COUNT ? !explain_window(batch, line, sizeof(line)) :
					       !explain_memory(batch, id, line, sizeof(line)))
			continue;
		if (at < length)
			snprintf(text + at, length - at, "%s\n", line);
		at += strlen(line) + 1;
	}
	if (explain_notification(batch, line, sizeof(line))) {
		if (at < length)
			snprintf(text + at, length - at, "%s\n", line);
		at += strlen(line) + 1;
	}
	return (int)at;
}

int wh_batch_explain(struct wh_batch *batch, char *text, size_t length)
{
	wh_fail_begin();
	return wh_fail_end(explain_text(batch, text, length));
}
