/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Explaining a batch: the routes it took or would take, why better ones were refused, how far it
 * is, and how long it should take.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/batch.h"
#include "core/engine.h"
#include "core/notification.h"
#include "core/peer.h"
#include "core/plan.h"
#include "core/region.h"
#include "core/remote.h"
#include "core/warning.h"
#include "gpu/region-window.h"
#include "memory/region-table.h"
#include "transport/blocks.h"
#include "transport/fragment.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/list.h"
#include "util/options.h"

/* Ask transport `id` how it moves the batch. */
static void explain_describe(const struct wh_batch *batch, unsigned id, bool briefly,
			     struct wh_description *out)
{
	struct wh_peer *peer = batch->peer;

	out->briefly = briefly;
	out->how[0] = out->parts[0] = out->memory[0] = out->sharing[0] = 0;
	if (peer->opened[id])
		wh_transport(id)->describe(peer, peer->transport[id], batch, out);
}

/* The routes, and what their transports say; `said` may be NULL. */
static unsigned explain_collect(struct wh_batch *batch, struct wh_route out[WH_TRANSPORT_COUNT],
				struct wh_description *said)
{
	struct wh_description description;
	struct wh_peer *peer = batch->peer;
	struct wh_engine *engine = peer->engine;
	bool taken[WH_TRANSPORT_COUNT] = { false };
	struct wh_share shares[WH_TRANSPORT_COUNT];
	unsigned count = 0;

	if (!wh_plan_hold(batch))
		return 0;
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
		if (share->bytes || said)
			explain_describe(batch, id, !said, &description);
		if (share->bytes)
			memcpy(route->detail, description.how, sizeof(route->detail));
		if (said)
			said[count] = description;
		count++;
	}
	wh_plan_release(batch);
	return count;
}

/* Find what to show: the batch, or, of one that was never submitted, a copy that is planned.
 * Another thread may submit the batch itself meanwhile, or fill it. */
static int explain_begin(struct wh_batch *batch, const char *call, struct wh_batch **out)
{
	struct wh_batch *copy;
	int error;

	if (!batch)
		return wh_fail(EINVAL, "%s: batch is NULL", call);
	error = wh_engine_guard(batch->peer->engine, call);
	if (error)
		return error;
	*out = batch;
	if (atomic_load(&batch->state) != WH_BATCH_NEW)
		return 0;
	error = wh_peer_check(batch->peer);
	if (!error)
		error = wh_batch_copy(batch, &copy);
	if (error)
		return error;
	error = wh_plan_within(copy, INT64_MAX);
	/* A batch that no transport takes still has reasons to show. */
	if (error && error != -EOPNOTSUPP) {
		wh_batch_free(copy);
		return error;
	}
	*out = copy;
	return 0;
}

static void explain_end(const struct wh_batch *batch, struct wh_batch *shown)
{
	if (shown != batch)
		wh_batch_free(shown);
}

static int explain_routes(struct wh_batch *batch, struct wh_route *out, size_t *count)
{
	struct wh_route routes[WH_TRANSPORT_COUNT];
	unsigned found = 0;
	struct wh_batch *shown = batch;
	size_t room;
	int error = explain_begin(batch, "wh_batch_routes", &shown);

	if (error)
		return error;
	found = explain_collect(shown, routes, NULL);
	explain_end(batch, shown);
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
	*out = 0;
	if (!wh_plan_hold(batch))
		return 0;
	for (size_t i = 0; i < batch->fragment_count; i++) {
		const struct wh_fragment *fragment = &batch->fragments[i];
		/* Some transports do not maintain `left`: then only the end of a fragment counts.
		 */
		uint64_t left = atomic_load_explicit(&fragment->done, memory_order_acquire) ?
					0 :
					atomic_load_explicit(&fragment->left, memory_order_relaxed);

		bytes += left < fragment->bytes ? fragment->bytes - left : 0;
	}
	wh_plan_release(batch);
	*out = bytes;
	return 0;
}

/* Ask the batch's transports what it takes. */
static void explain_expect(struct wh_batch *batch, struct wh_estimate *out)
{
	struct wh_share shares[WH_TRANSPORT_COUNT];
	uint32_t measured = WH_ESTIMATE_MEASURED;
	bool known = true;

	*out = (struct wh_estimate){ .size = sizeof(*out) };
	if (!wh_plan_hold(batch))
		return;
	pthread_mutex_lock(&batch->text_lock);
	memcpy(shares, batch->share, sizeof(shares));
	pthread_mutex_unlock(&batch->text_lock);
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++) {
		if (!shares[id].bytes)
			continue;
		out->bytes += shares[id].bytes;
		out->transfers += shares[id].transfers;
		out->measured = WH_ESTIMATE_MEASURED;
		known = batch->peer->opened[id] &&
			wh_transport(id)->estimate(batch->peer, id, batch, out) && known;
		if (!out->measured || !measured)
			measured = WH_ESTIMATE_TYPICAL;
		else if (out->measured > measured)
			measured = out->measured;
	}
	wh_plan_release(batch);
	out->measured = known ? measured : WH_ESTIMATE_TYPICAL;
	if (!known)
		out->duration = out->age = 0;
}

static int explain_estimate(struct wh_batch *batch, struct wh_estimate *out)
{
	struct wh_estimate estimate;
	struct wh_batch *shown = batch;
	int error = explain_begin(batch, "wh_batch_estimate", &shown);

	if (error)
		return error;
	explain_expect(shown, &estimate);
	explain_end(batch, shown);
	if (!out)
		return wh_fail(EINVAL, "wh_batch_estimate: out is NULL");
	if (!estimate.bytes)
		return wh_fail(EOPNOTSUPP, "wh_batch_estimate: the batch moves no bytes, or no "
					   "transport takes it; see wh_batch_routes()");
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
static bool explain_window(struct wh_batch *batch, char *line, size_t size)
{
	struct wh_engine *engine = batch->peer->engine;
	bool found = false;

	if (!wh_plan_hold(batch))
		return false;
	/* The lock keeps windows from being closed with their regions. */
	pthread_mutex_lock(&engine->region_windows.lock);
	for (size_t i = 0; i < batch->item_count && !found; i++)
		found = batch->items[i].length &&
			explain_region_window(batch->peer, batch->items[i].local,
					      batch->items[i].remote, line, size);
	for (size_t i = 0; i < batch->blocks_count && !found; i++) {
		const struct wh_blocks *blocks = batch->blocks[i];

		for (uint64_t b = 0; b < blocks->base_count && !found; b++)
			found = explain_region_window(batch->peer, blocks->bases[b].local,
						      blocks->bases[b].remote, line, size);
	}
	pthread_mutex_unlock(&engine->region_windows.lock);
	wh_plan_release(batch);
	return found;
}

static bool explain_notification(struct wh_batch *batch, char *line, size_t size)
{
	unsigned path = atomic_load(&batch->notify_path), by = atomic_load(&batch->notify_by);

	if (path == WH_NOTIFY_CONTROL)
		snprintf(line, size, "notification: over the control connection");
	else if (path != WH_NOTIFY_UNSENT)
		snprintf(line, size, "notification: by %s%s", wh_transport(by)->name,
			 path == WH_NOTIFY_TRANSPORT_EARLY ? ", right behind the bytes" : "");
	return path != WH_NOTIFY_UNSENT;
}

/* Say what the batch should take by CPU or network, if that is known, and how. */
static bool explain_duration(struct wh_batch *batch, char *line, size_t size)
{
	struct wh_estimate estimate;

	explain_expect(batch, &estimate);
	if (!estimate.age)
		return false;
	snprintf(line, size, "expected: %.1f us, %s %" PRIu64 " s ago",
		 (double)estimate.duration / 1e3,
		 estimate.measured == WH_ESTIMATE_TRAFFIC  ? "measured by traffic" :
		 estimate.measured == WH_ESTIMATE_MEASURED ? "measured by wh_peer_measure()" :
							     "measured in part",
		 estimate.age / (uint64_t)WH_SECOND);
	return true;
}

/* A text of the caller's, and how long it would be if it had room for all. */
struct explanation {
	char *text;
	size_t length, used;
};

static void explain_add(struct explanation *to, const char *more)
{
	if (to->used < to->length)
		snprintf(to->text + to->used, to->length - to->used, "%s", more);
	to->used += strlen(more);
}

static void explain_add_line(struct explanation *to, const char *line)
{
	explain_add(to, line);
	explain_add(to, "\n");
}

static void explain_add_route(struct explanation *to, const struct wh_route *route)
{
	char line[512];
	size_t used = (size_t)snprintf(line, sizeof(line), "%s:", route->transport);

	if (route->bytes)
		used += (size_t)snprintf(line + used, sizeof(line) - used,
					 " %" PRIu64 " bytes in %" PRIu64 " transfers%s%s%s",
					 route->bytes, route->transfers,
					 route->detail[0] ? " (" : "", route->detail,
					 route->detail[0] ? ")" : "");
	if (route->refused[0])
		snprintf(line + used, sizeof(line) - used, "%s refused: %s",
			 route->bytes ? ", partly" : "", route->refused);
	explain_add_line(to, line);
}

/* What a transport with these routes makes slower than it could be. */
static void explain_add_warnings(struct explanation *to, struct wh_batch *batch,
				 const struct wh_route *routes, unsigned count)
{
	struct wh_peer *peer = batch->peer;
	char warning[WH_WARNING_MAX];
	bool networked = false;

	for (unsigned i = 0; i < count; i++)
		networked |= routes[i].bytes &&
			     wh_transport(wh_transport_by_name(routes[i].transport))->role ==
				     WH_ROLE_DATA;
	for (unsigned i = 0; i < count; i++) {
		if (routes[i].bytes || !routes[i].refused[0] || routes[i].inapplicable ||
		    !wh_warning_of(peer, wh_transport_by_name(routes[i].transport), networked,
				   warning))
			continue;
		explain_add(to, "warning: ");
		explain_add_line(to, warning);
	}
	if (!wh_plan_hold(batch))
		return;
	if (wh_warning_of_batch(batch, warning)) {
		explain_add(to, "warning: ");
		explain_add_line(to, warning);
	}
	wh_plan_release(batch);
}

static int explain_text(struct wh_batch *batch, char *text, size_t length)
{
	struct explanation to = { .text = text, .length = length };
	struct wh_description *said = calloc(WH_TRANSPORT_COUNT, sizeof(*said));
	struct wh_route routes[WH_TRANSPORT_COUNT];
	struct wh_batch *shown = batch;
	char line[1200];
	unsigned count;
	int error = said ? 0 : wh_fail(ENOMEM, "wh_batch_explain: no memory");

	if (!error && !text && length)
		error = wh_fail(EINVAL, "wh_batch_explain: text is NULL");
	if (!error)
		error = explain_begin(batch, "wh_batch_explain", &shown);
	if (error) {
		free(said);
		return error;
	}
	if (length)
		text[0] = 0;
	count = explain_collect(shown, routes, said);
	for (unsigned i = 0; i < count; i++) {
		explain_add_route(&to, &routes[i]);
		explain_add(&to, said[i].parts);
	}
	for (unsigned i = 0; i < count; i++)
		if (routes[i].bytes && *said[i].memory)
			explain_add_line(&to, said[i].memory);
	explain_add_warnings(&to, shown, routes, count);
	for (unsigned i = 0; i < count; i++) {
		if (!routes[i].bytes || !*said[i].sharing)
			continue;
		explain_add(&to, "warning: ");
		explain_add_line(&to, said[i].sharing);
	}
	free(said);
	if (explain_window(shown, line, sizeof(line)))
		explain_add_line(&to, line);
	if (explain_notification(batch, line, sizeof(line)))
		explain_add_line(&to, line);
	if (explain_duration(shown, line, sizeof(line)))
		explain_add_line(&to, line);
	explain_end(batch, shown);
	return (int)to.used;
}

int wh_batch_explain(struct wh_batch *batch, char *text, size_t length)
{
	wh_fail_begin();
	return wh_fail_end(explain_text(batch, text, length));
}
