/* SPDX-License-Identifier: Apache-2.0 */
/* Preparing a peer for transfers: what the first submission between two regions would do otherwise.
 */
#include <errno.h>

#include "core/batch.h"
#include "core/engine.h"
#include "core/peer.h"
#include "core/plan.h"
#include "core/remote.h"
#include "memory/region-table.h"
#include "transport/core.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/error.h"

struct preparation {
	struct wh_peer *peer;
	struct wh_batch *batch; /* planned, and never submitted */
	int64_t deadline;
};

/* Add a byte in each direction that the peer allows. */
static int preparation_add_pair(struct preparation *p, struct wh_region *local, uint64_t remote)
{
	struct wh_region_table *table =
		p->peer->self ? &p->peer->engine->regions : &p->peer->regions;
	struct wh_region_entry *entry = wh_region_entry_enter(table, remote);
	uint8_t access = entry ? wh_remote_access(p->peer, entry) : WH_ACCESS_READ;
	struct wh_transfer transfer = { .local = local, .remote = remote, .length = 1 };
	int error = 0;

	if (entry)
		wh_region_entry_leave(entry);
	for (transfer.op = WH_READ; !error && transfer.op <= WH_WRITE; transfer.op++)
		if (access & (transfer.op == WH_READ ? WH_ACCESS_READ : WH_ACCESS_WRITE))
			error = wh_batch_add(p->batch, &transfer, 1);
	return error;
}

/* Let each transport that the plan has chosen do its part. */
static int preparation_run(const struct preparation *p)
{
	uint32_t chosen = 0;
	char why[WH_REFUSAL];
	int error = 0;

	for (size_t i = 0; i < p->batch->fragment_count; i++)
		chosen |= 1u << p->batch->fragments[i].transport;
	for (unsigned id = 0; !error && id < WH_TRANSPORT_COUNT; id++) {
		if (!(chosen & 1u << id))
			continue;
		error = wh_transport(id)->prepare(p->peer, p->peer->transport[id], p->batch,
						  p->deadline, why);
		if (error)
			error = wh_fail(-error, "wh_peer_prepare: %s to %s: %s",
					wh_transport(id)->name, p->peer->welcome.name, why);
	}
	return error;
}

static int preparation_make(struct preparation *p, struct wh_region *const *locals,
			    size_t local_count, uint64_t remote)
{
	int error = wh_batch_clear(p->batch);

	for (size_t i = 0; !error && i < local_count; i++)
		error = preparation_add_pair(p, locals[i], remote);
	if (!error)
		error = wh_peer_check(p->peer);
	if (!error)
		error = wh_plan_within(p->batch, p->deadline);
	return error ? error : preparation_run(p);
}

static int prepare_check(struct wh_peer *peer, struct wh_region *const *locals, size_t local_count,
			 const uint64_t *remotes, int64_t timeout)
{
	int error;

	if (!peer || (!locals && local_count) || !remotes)
		return wh_fail(EINVAL, "wh_peer_prepare: %s is NULL",
			       !peer    ? "peer" :
			       !remotes ? "remotes" :
					  "locals");
	error = wh_engine_guard(peer->engine, "wh_peer_prepare");
	if (error)
		return error;
	if (timeout < 0)
		return wh_fail(EINVAL,
			       "wh_peer_prepare: timeout is negative; WH_FOREVER waits for ever");
	if (wh_engine_inside(peer->engine))
		return wh_fail(EDEADLK,
			       "wh_peer_prepare: called from one of the engine's own threads");
	return 0;
}

static int peer_try_prepare(struct wh_peer *peer, struct wh_region *const *locals,
			    size_t local_count, const uint64_t *remotes, size_t remote_count,
			    int64_t timeout)
{
	struct preparation p = { .peer = peer, .deadline = wh_deadline(timeout) };
	int error = prepare_check(peer, locals, local_count, remotes, timeout);

	if (!error)
		error = wh_peer_check(peer);
	if (!error)
		error = wh_remote_learn(peer, remotes, remote_count, p.deadline, "wh_peer_prepare");
	if (error || !local_count)
		return error;
	error = wh_batch_new(peer, NULL, &p.batch);
	if (error)
		return error;
	for (size_t i = 0; !error && i < remote_count; i++)
		error = preparation_make(&p, locals, local_count, remotes[i]);
	wh_batch_free(p.batch);
	return error;
}

int wh_peer_prepare(struct wh_peer *peer, struct wh_region *const *locals, size_t local_count,
		    const uint64_t *remotes, size_t remote_count, int64_t timeout)
{
	wh_fail_begin();
	return wh_fail_end(
		peer_try_prepare(peer, locals, local_count, remotes, remote_count, timeout));
}
