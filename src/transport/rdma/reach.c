/* SPDX-License-Identifier: Apache-2.0 */
/* rdma: is_reachable, can bytes move between two regions? Called while a batch is planned: it
 * registers local memory, and begins to connect and asks for the owner's keys without waiting.
 * "Under the lock" means rdma_peer.lock. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "gpu/staging.h"
#include "memory/memory.h"
#include "transport/rdma/flow.h"
#include "transport/rdma/rdma.h"
#include "util/clock.h"
#include "wire/bytes.h"

/* How long the first endpoint waits for the others. An endpoint without a path would need the
 * setting `timeout` to fail. */
#define OTHERS (200 * WH_MS)
/* Until a question for keys is asked again, which may have been lost with the connection. */
#define ASK_AGAIN (500 * WH_MS)

/* 0; -EINPROGRESS: endpoints are being connected. Under the lock. */
static int reach_endpoints(struct rdma_peer *rdma, char why[WH_REFUSAL])
{
	uint32_t ready = rdma_endpoints_ready(rdma);

	/* Each time: an endpoint that is being given back can be connected only afterwards. */
	if (!ready)
		rdma_endpoints_connect(rdma);
	if (rdma_endpoints_failed(rdma)) {
		snprintf(why, WH_REFUSAL, "%s", rdma->why);
		return -EIO;
	}
	if (ready && (!rdma_endpoints_pending(rdma) || wh_now() >= rdma->ready_at + OTHERS))
		return 0;
	snprintf(why, WH_REFUSAL, "%.63s is still being connected to", wh_peer_name(rdma->peer));
	return -EINPROGRESS;
}

/* The state of the region's keys: 0, -EAGAIN (not answered yet) or the refusal. */
static int keys_state(const struct wh_remote_region *region, uint32_t nic, char why[WH_REFUSAL])
{
	const struct rdma_keys *keys = rdma_keys_find(region, nic);

	if (!keys || (keys->error && wh_now() > keys->until))
		return -EAGAIN;
	if (keys->error == -WH_RDMA_STAGED_BY_OWNER)
		snprintf(why, WH_REFUSAL, "the owner stages its %s: %.150s",
			 region->entry.kind == WH_MEMORY_FILE ? "file" : "GPU memory", keys->why);
	else if (keys->error)
		memcpy(why, keys->why, WH_REFUSAL);
	return keys->error;
}

/* Register a local region with the NICs of all ready endpoints. A NIC that cannot is not used. 0;
 * -EINPROGRESS: that may take long, so the planner does it, or another thread does it now. */
static int reach_register(struct rdma_peer *rdma, struct wh_region *local, char why[WH_REFUSAL])
{
	uint32_t ready = rdma_endpoints_ready(rdma);
	int error = 0;

	for (unsigned i = 0; i < rdma->endpoint_count; i++) {
		struct rdma_memory *memory;
		struct rdma_nic *nic = rdma->endpoints[i]->rail->nic;

		if (!(ready & 1u << i) || rdma_memory_find(local, nic))
			continue;
		if (wh_plan_how() == WH_PLAN_ASKS) {
			snprintf(why, WH_REFUSAL, "local region %#llx is still to be registered",
				 (unsigned long long)wh_region_entry_id(&local->entry));
			return -EINPROGRESS;
		}
		pthread_mutex_unlock(&rdma->lock);
		if (rdma_memory_register(nic, local, &memory, why) == -EINPROGRESS)
			error = -EINPROGRESS;
		pthread_mutex_lock(&rdma->lock);
	}
	return error;
}

/* May the peer be asked for these keys now? Then note that it is. False: it has been, or has to
 * answer others first. */
static bool reach_note_asked(struct rdma_peer *rdma, uint64_t id, uint32_t nic)
{
	struct rdma_asked *place = NULL;
	int64_t now = wh_now();

	for (unsigned i = 0; i < RDMA_ASKED; i++) {
		struct rdma_asked *asked = &rdma->asked[i];

		if (now >= asked->until)
			place = asked;
		else if (asked->id == id && asked->nic == nic)
			return false;
	}
	if (place)
		*place = (struct rdma_asked){ id, nic, now + ASK_AGAIN };
	return place;
}

void rdma_reach_answered(struct rdma_peer *rdma, uint64_t id, uint32_t nic)
{
	for (unsigned i = 0; i < RDMA_ASKED; i++)
		if (rdma->asked[i].id == id && rdma->asked[i].nic == nic)
			rdma->asked[i].until = 0;
}

/* Send KEYS for the NICs at the other ends of `endpoints`, unless they are known or asked for. */
static int reach_ask_keys(struct rdma_peer *rdma, const struct wh_remote_region *region,
			  uint32_t endpoints, char why[WH_REFUSAL])
{
	uint64_t id = wh_region_entry_id(&region->entry);
	uint8_t bytes[WH_RDMA_KEYS_SIZE];

	for (unsigned i = 0; i < rdma->endpoint_count; i++) {
		uint32_t nic = rdma->endpoints[i]->remote_nic;
		bool asked = false;

		for (unsigned n = 0; n < i; n++)
			asked |= endpoints & 1u << n && rdma->endpoints[n]->remote_nic == nic;
		if (!(endpoints & 1u << i) || asked || keys_state(region, nic, why) != -EAGAIN ||
		    !reach_note_asked(rdma, id, nic))
			continue;
		wh_put64(wh_put32(bytes, nic), id);
		if (wh_control_send(wh_peer_control(rdma->peer), WH_FRAME_RDMA_KEYS, 0, bytes,
				    sizeof(bytes))) {
			snprintf(why, WH_REFUSAL, "the peer is lost");
			return -ECONNRESET;
		}
	}
	return 0;
}

/* An answer is outstanding for one of `endpoints` that is still ready. */
static bool reach_keys_missing(const struct rdma_peer *rdma, const struct wh_remote_region *region,
			       uint32_t endpoints, char why[WH_REFUSAL])
{
	bool wait = false;

	endpoints &= rdma_endpoints_ready(rdma);
	for (unsigned i = 0; i < rdma->endpoint_count; i++)
		wait |= endpoints & 1u << i &&
			keys_state(region, rdma->endpoints[i]->remote_nic, why) == -EAGAIN;
	return wait;
}

/* Ask for the keys of a region, for all ready endpoints. Under the lock. */
static int reach_keys(struct rdma_peer *rdma, const struct wh_remote_region *region,
		      char why[WH_REFUSAL])
{
	uint32_t endpoints = rdma_endpoints_ready(rdma);
	int error = reach_ask_keys(rdma, region, endpoints, why);

	if (error || !reach_keys_missing(rdma, region, endpoints, why))
		return error;
	snprintf(why, WH_REFUSAL, "%.63s is still registering region %#llx",
		 wh_peer_name(rdma->peer), (unsigned long long)wh_region_entry_id(&region->entry));
	return -EINPROGRESS;
}

static int reach_prepare(struct rdma_peer *rdma, struct wh_region *local,
			 const struct wh_remote_region *remote, char why[WH_REFUSAL])
{
	int error = reach_endpoints(rdma, why);

	if (error)
		return error;
	/* The peer registers its own meanwhile. */
	error = reach_keys(rdma, remote, why);
	if (!error || error == -EINPROGRESS)
		error = reach_register(rdma, local, why) ? -EINPROGRESS : error;
	if (!error && !rdma_endpoints_ready(rdma))
		snprintf(why, WH_REFUSAL, "%s", rdma->why);
	return error;
}

/* For each ready endpoint it is known whether it can move the bytes. */
static bool reach_is_known(const struct rdma_peer *rdma, const struct wh_region *local,
			   const struct wh_remote_region *remote, char why[WH_REFUSAL])
{
	uint32_t ready = rdma_endpoints_ready(rdma);

	for (unsigned i = 0; i < rdma->endpoint_count; i++)
		if (ready & 1u << i &&
		    (!rdma_memory_find(local, rdma->endpoints[i]->snapshot.nic) ||
		     keys_state(remote, rdma->endpoints[i]->remote_nic, why) == -EAGAIN))
			return false;
	return ready;
}

static bool local_is_writable(const struct rdma_peer *rdma, const struct wh_region *local)
{
	const struct rdma_memory *memory;
	bool known_not = false;

	for (unsigned i = 0; i < rdma->endpoint_count; i++) {
		memory = rdma_memory_find_reachable(local, rdma->endpoints[i]->rail->nic);
		if (memory && memory->writable)
			return true;
		known_not |= memory != NULL;
	}
	return !known_not;
}

/* ---- staging --------------------------------------------------------------------------------- */

void rdma_sides_add(const struct rdma_peer *rdma, uint32_t endpoints, const struct wh_region *local,
		    const struct wh_remote_region *remote, uint32_t op, struct rdma_sides *sides)
{
	for (unsigned i = 0; i < rdma->endpoint_count; i++) {
		const struct rdma_endpoint *endpoint = rdma->endpoints[i];
		const struct rdma_memory *memory = rdma_memory_find(local, endpoint->rail->nic);
		const struct rdma_keys *keys = rdma_keys_find(remote, endpoint->remote_nic);
		bool ready = endpoint->state == RDMA_READY;

		if (!(endpoints & 1u << i))
			continue;
		/* For endpoints that are not ready yet, host memory will be registered and keys
		 * will arrive. */
		if (memory ? !memory->mrs || (op == WH_READ && !memory->writable) :
			     ready || !wh_kind_on_host(local->entry.kind))
			sides->local &= ~(1u << i);
		if (keys ? keys->error != 0 : ready)
			sides->remote &= ~(1u << i);
		sides->can_stage_local |= memory && !memory->mrs;
		sides->can_stage_remote |= keys && keys->error == -WH_RDMA_STAGED_BY_OWNER;
	}
}

unsigned rdma_sides_to_stage(const struct rdma_sides *sides)
{
	if (sides->local & sides->remote)
		return 0;
	/* Staging the local side takes fewer messages. */
	if (sides->can_stage_local && sides->remote)
		return RDMA_STAGE_LOCAL;
	if (sides->can_stage_remote && sides->local)
		return RDMA_STAGE_REMOTE;
	return sides->can_stage_local && sides->can_stage_remote ?
		       RDMA_STAGE_LOCAL | RDMA_STAGE_REMOTE :
		       0;
}

/* Prepare local slots of pinned memory and the GPU's stream. Under the lock, which is dropped
 * meanwhile. */
static int reach_prepare_local(struct rdma_peer *rdma, const struct wh_region *local, uint32_t op,
			       char why[WH_REFUSAL])
{
	int error;

	pthread_mutex_unlock(&rdma->lock);
	error = wh_staging_prepare_region(wh_engine_regions(rdma->rdma->engine),
					  wh_engine_gpus(rdma->rdma->engine), local, op);
	if (error)
		snprintf(why, WH_REFUSAL, "staging: %.180s", wh_error_text());
	pthread_mutex_lock(&rdma->lock);
	return error ? -ENOMEM : 0;
}

bool rdma_bounce_is_reachable(const struct rdma_peer *rdma, unsigned number)
{
	const struct wh_remote_region *bounce = &rdma->bounces[number].region;
	uint32_t ready = rdma_endpoints_ready(rdma);
	bool has_keys = false;

	for (unsigned i = 0; i < rdma->endpoint_count; i++) {
		const struct rdma_keys *keys =
			rdma_keys_find(bounce, rdma->endpoints[i]->remote_nic);

		has_keys |= ready & 1u << i && keys && !keys->error;
	}
	return bounce->entry.length && has_keys;
}

/* Ask for the owner's bounce buffer for this region, and its keys. Under the lock. */
static int reach_prepare_remote(struct rdma_peer *rdma, const struct wh_remote_region *remote,
				char why[WH_REFUSAL])
{
	int number = rdma_bounce_of(remote);
	int error;

	/* What is needed for files came with the answer that they are staged. */
	if (number > 0)
		return rdma_bounce_is_reachable(rdma, (unsigned)number) ? 0 : -EIO;
	error = rdma_bounce_request(rdma, why);
	if (error == -EAGAIN) {
		snprintf(why, WH_REFUSAL, "%.63s is still pinning memory for staging",
			 wh_peer_name(rdma->peer));
		return -EINPROGRESS;
	}
	if (!error)
		error = reach_keys(rdma, &rdma->bounces[0].region, why);
	return !error && !rdma_bounce_is_reachable(rdma, 0) ? -EIO : error;
}

/* Stage what no endpoint moves directly. Under the lock. */
static int reach_stage(struct rdma_peer *rdma, const struct wh_region *local,
		       const struct wh_remote_region *remote, uint32_t op, bool *staged,
		       char why[WH_REFUSAL])
{
	uint32_t ready = rdma_endpoints_ready(rdma);
	struct rdma_sides sides = { .local = ready, .remote = ready };
	unsigned wanted;
	int error = 0;

	rdma_sides_add(rdma, ready, local, remote, op, &sides);
	wanted = rdma_sides_to_stage(&sides);
	*staged = wanted != 0;
	if (wanted & RDMA_STAGE_LOCAL)
		error = reach_prepare_local(rdma, local, op, why);
	if (!error && wanted & RDMA_STAGE_REMOTE)
		error = reach_prepare_remote(rdma, remote, why);
	return error;
}

/* ---- is_reachable ---------------------------------------------------------------------------- */

/* Does the transport tcp lend the peer memory for the bytes of its files? Then they pass neither a
 * NIC nor a socket. */
static bool peer_borrows(struct wh_peer *peer)
{
	return wh_peer_transport(peer, WH_TRANSPORT_SHM) &&
	       wh_peer_transport(peer, WH_TRANSPORT_TCP) &&
	       wh_peer_welcome(peer)->capabilities & WH_CAPABLE_LEND;
}

int rdma_is_reachable(struct wh_peer *peer, void *state, const struct wh_region *local,
		      struct wh_region_entry *entry, uint32_t op, char why[WH_REFUSAL])
{
	struct wh_remote_region *remote = wh_container(entry, struct wh_remote_region, entry);
	struct rdma_peer *rdma = state;
	bool staged = false;
	uint32_t near;
	int error = 0, trouble;

	if (!wh_kind_on_host(local->entry.kind) && wh_registration_check(local->registration)) {
		snprintf(why, WH_REFUSAL, "%s", wh_error_text());
		return -ESTALE;
	}
	pthread_mutex_lock(&rdma->lock);
	if (!reach_is_known(rdma, local, remote, why))
		error = reach_prepare(rdma, (struct wh_region *)local, remote, why);
	/* What all can do is known soon. */
	if (error == -EINPROGRESS && wh_plan_how() != WH_PLAN_DECIDES)
		goto out;
	/* One endpoint is enough; the refusals of others are not reported then. */
	if (error != -ESTALE && rdma_striping_able(rdma, local, remote, op, &near)) {
		error = 0;
	} else if (error != -ESTALE) {
		trouble = reach_stage(rdma, local, remote, op, &staged, why);
		error = staged ? trouble : error ? error : -EIO;
		if (!staged && error == -EIO && op == WH_READ && !local_is_writable(rdma, local)) {
			snprintf(why, WH_REFUSAL, "local region %#llx is not writable",
				 (unsigned long long)wh_region_entry_id(&local->entry));
			error = -EACCES;
		}
	}
out:
	pthread_mutex_unlock(&rdma->lock);
	if (!error && entry->kind == WH_MEMORY_FILE && wh_kind_on_host(local->entry.kind) &&
	    peer_borrows(peer)) {
		snprintf(why, WH_REFUSAL,
			 "on this host the bytes of a file go through memory that is lent");
		error = WH_REACHED_LAST;
	}
	return error;
}
