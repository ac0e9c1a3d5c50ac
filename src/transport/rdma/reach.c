/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdma: can bytes be moved between two regions? Asked while a batch is planned, on the submitter's
 * thread, which waits for what is not there yet: connections, registrations, the owner's keys.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "gpu/staging.h"
#include "memory/memory.h"
#include "transport/rdma/rdma.h"
#include "util/clock.h"
#include "wire/bytes.h"

/* How often somebody who waits looks whether what he waits for has gone. */
#define GLANCE (20 * WH_MS)
/* How long the first line waits for the others: one that goes nowhere would take the knob
 * `timeout`. */
#define OTHERS (200 * WH_MS)

static void glance(struct rdma_peer *rdma)
{
	int64_t at = wh_now() + GLANCE;
	struct timespec until = { at / WH_SECOND, at % WH_SECOND };

	pthread_cond_timedwait(&rdma->changed, &rdma->lock, &until);
}

/* Have lines. Under the lock. */
static int await_endpoints(struct rdma_peer *rdma, int64_t deadline, char why[WH_REFUSAL])
{
	int64_t others = deadline - RDMA_PATIENCE + OTHERS;

	while (!rdma_ready(rdma) || (rdma_pending(rdma) && wh_now() < others)) {
		/* Each time: one that is being given back can be wanted only afterwards. */
		if (!rdma_ready(rdma))
			rdma_want(rdma);
		if (rdma_hopeless(rdma)) {
			snprintf(why, WH_REFUSAL, "%s", rdma->why);
			return -EIO;
		}
		if (wh_now() >= deadline) {
			snprintf(why, WH_REFUSAL, "%.63s is still being connected to",
				 rdma->peer->welcome.name);
			return -EAGAIN;
		}
		glance(rdma);
	}
	return 0;
}

/* What is known of the region's keys: 0, -EAGAIN: nothing yet, or a refusal. */
static int known(const struct wh_remote_region *region, uint32_t nic, char why[WH_REFUSAL])
{
	const struct rdma_keys *keys = rdma_keys_of(region, nic);

	if (!keys || (keys->error && wh_now() > keys->until))
		return -EAGAIN;
	if (keys->error == -WH_RDMA_STAGED_BY_OWNER)
		snprintf(why, WH_REFUSAL, "its GPU's memory is staged there: %.150s", keys->why);
	else if (keys->error)
		memcpy(why, keys->why, WH_REFUSAL);
	return keys->error;
}

/* Register a region of ours with the NICs of all lines that are ready. One that cannot is not used.
 */
static void register_all(struct rdma_peer *rdma, struct wh_region *local, char why[WH_REFUSAL])
{
	uint32_t ready = rdma_ready(rdma);

	for (unsigned i = 0; i < rdma->endpoint_count; i++) {
		struct rdma_memory *memory;
		struct rdma_nic *nic = rdma->endpoints[i]->rail->nic;

		if (!(ready & 1u << i) || rdma_memory_of(local, nic))
			continue;
		pthread_mutex_unlock(&rdma->lock);
		rdma_register(nic, local, &memory, why);
		pthread_mutex_lock(&rdma->lock);
	}
}

/* Ask for the keys of a region for the NICs at the other ends of `lines`, of which nothing is
 * known. */
static int ask(struct rdma_peer *rdma, const struct wh_remote_region *region, uint32_t endpoints,
	       char why[WH_REFUSAL])
{
	uint8_t bytes[WH_RDMA_KEYS_SIZE];

	for (unsigned i = 0; i < rdma->endpoint_count; i++) {
		uint32_t nic = rdma->endpoints[i]->nic;
		bool asked = false;

		for (unsigned n = 0; n < i; n++)
			asked |= endpoints & 1u << n && rdma->endpoints[n]->nic == nic;
		if (!(endpoints & 1u << i) || asked || known(region, nic, why) != -EAGAIN)
			continue;
		wh_put64(wh_put32(bytes, nic), wh_region_entry_id(&region->entry));
		if (wh_control_send(&rdma->peer->control, WH_FRAME_RDMA_KEYS, 0, bytes,
				    sizeof(bytes))) {
			snprintf(why, WH_REFUSAL, "the peer is lost");
			return -ECONNRESET;
		}
	}
	return 0;
}

/* Is an answer for one of `lines`, that are ready still, to come? */
static bool missing(const struct rdma_peer *rdma, const struct wh_remote_region *region,
		    uint32_t endpoints, char why[WH_REFUSAL])
{
	bool wait = false;

	endpoints &= rdma_ready(rdma);
	for (unsigned i = 0; i < rdma->endpoint_count; i++)
		wait |= endpoints & 1u << i &&
			known(region, rdma->endpoints[i]->nic, why) == -EAGAIN;
	return wait;
}

/* Have the keys of a region, for all lines that are ready. Under the lock. */
static int await_keys(struct rdma_peer *rdma, struct wh_remote_region *region, int64_t deadline,
		      char why[WH_REFUSAL])
{
	uint64_t id = wh_region_entry_id(&region->entry);
	uint32_t endpoints = rdma_ready(rdma);
	int error = ask(rdma, region, endpoints, why);

	while (!error && missing(rdma, region, endpoints, why)) {
		/* The peer takes it back, and waits for us to leave it. */
		if (atomic_load(&region->entry.id) != id) {
			snprintf(why, WH_REFUSAL, "region %#llx is gone", (unsigned long long)id);
			return -ESTALE;
		}
		if (wh_now() >= deadline) {
			snprintf(why, WH_REFUSAL, "%.63s is still registering region %#llx",
				 rdma->peer->welcome.name, (unsigned long long)id);
			return -EAGAIN;
		}
		glance(rdma);
	}
	return error;
}

static int reach_slowly(struct rdma_peer *rdma, struct wh_region *local,
			struct wh_remote_region *remote, char why[WH_REFUSAL])
{
	int64_t deadline = wh_now() + RDMA_PATIENCE;
	int error;

	if (wh_engine_inside(rdma->peer->engine) || wh_loop_here(&rdma->rdma->loop)) {
		/* The answers come on the engine's own threads. */
		rdma_want(rdma);
		snprintf(why, WH_REFUSAL, "it is being set up, for which a callback does not wait");
		return -EAGAIN;
	}
	error = await_endpoints(rdma, deadline, why);
	if (error)
		return error;
	register_all(rdma, local, why);
	error = await_keys(rdma, remote, deadline, why);
	if (!error && !rdma_ready(rdma))
		snprintf(why, WH_REFUSAL, "%s", rdma->why);
	return error;
}

/* Could all lines that are ready carry it, or be known not to? */
static bool reached(const struct rdma_peer *rdma, const struct wh_region *local,
		    const struct wh_remote_region *remote, char why[WH_REFUSAL])
{
	uint32_t ready = rdma_ready(rdma);

	for (unsigned i = 0; i < rdma->endpoint_count; i++)
		if (ready & 1u << i && (!rdma_memory_of(local, rdma->endpoints[i]->here.nic) ||
					known(remote, rdma->endpoints[i]->nic, why) == -EAGAIN))
			return false;
	return ready;
}

static bool can_be_written(const struct rdma_peer *rdma, const struct wh_region *local)
{
	const struct rdma_memory *memory;
	bool known_not = false;

	for (unsigned i = 0; i < rdma->endpoint_count; i++) {
		memory = rdma_registered(local, rdma->endpoints[i]->rail->nic);
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
		const struct rdma_memory *memory = rdma_memory_of(local, endpoint->rail->nic);
		const struct rdma_keys *keys = rdma_keys_of(remote, endpoint->nic);
		bool ready = endpoint->state == RDMA_READY;

		if (!(endpoints & 1u << i))
			continue;
		/* Host memory will be registered, and keys will be told, for those that are yet to
		 * come. */
		if (memory ? !memory->mrs || (op == WH_READ && !memory->writable) :
			     ready || !wh_kind_on_host(local->entry.kind))
			sides->ours &= ~(1u << i);
		if (keys ? keys->error != 0 : ready)
			sides->theirs &= ~(1u << i);
		sides->stage_ours |= memory && !memory->mrs;
		sides->stage_theirs |= keys && keys->error == -WH_RDMA_STAGED_BY_OWNER;
	}
}

unsigned rdma_sides_staged(const struct rdma_sides *sides)
{
	if (sides->ours & sides->theirs)
		return 0;
	/* Our own takes the fewer messages. */
	if (sides->stage_ours && sides->theirs)
		return RDMA_STAGE_OURS;
	if (sides->stage_theirs && sides->ours)
		return RDMA_STAGE_THEIRS;
	return sides->stage_ours && sides->stage_theirs ? RDMA_STAGE_OURS | RDMA_STAGE_THEIRS : 0;
}

/* Have slots of pinned memory here, and the GPU's lanes. Under the lock, which is let go meanwhile.
 */
static int prepare_ours(struct rdma_peer *rdma, const struct wh_region *local, uint32_t op,
			char why[WH_REFUSAL])
{
	int error;

	pthread_mutex_unlock(&rdma->lock);
	error = wh_staging_prepare_region(&rdma->rdma->engine->regions, rdma->rdma->engine->gpus,
					  local, op);
	if (error)
		snprintf(why, WH_REFUSAL, "staging: %.180s", wh_error_text());
	pthread_mutex_lock(&rdma->lock);
	return error ? -ENOMEM : 0;
}

bool rdma_bounce_reached(const struct rdma_peer *rdma)
{
	uint32_t ready = rdma_ready(rdma);
	bool reached = false;

	for (unsigned i = 0; i < rdma->endpoint_count; i++) {
		const struct rdma_keys *keys = rdma_keys_of(&rdma->bounce, rdma->endpoints[i]->nic);

		reached |= ready & 1u << i && keys && !keys->error;
	}
	return rdma->bounce.entry.length && reached;
}

/* Have some at the owner's end, and its keys. Under the lock. */
static int prepare_theirs(struct rdma_peer *rdma, char why[WH_REFUSAL])
{
	bool waits = !wh_engine_inside(rdma->peer->engine) && !wh_loop_here(&rdma->rdma->loop);
	int64_t deadline = waits ? wh_now() + RDMA_PATIENCE : 0;
	int error;

	while ((error = rdma_bounce_known(rdma, why)) == -EAGAIN && wh_now() < deadline)
		glance(rdma);
	if (error == -EAGAIN)
		snprintf(why, WH_REFUSAL, "%.63s is still pinning memory for staging",
			 rdma->peer->welcome.name);
	if (!error)
		error = await_keys(rdma, &rdma->bounce, deadline, why);
	return !error && !rdma_bounce_reached(rdma) ? -EIO : error;
}

/* What no line carries as it is may be staged. Under the lock. */
static int stage(struct rdma_peer *rdma, const struct wh_region *local,
		 const struct wh_remote_region *remote, uint32_t op, bool *staged,
		 char why[WH_REFUSAL])
{
	uint32_t ready = rdma_ready(rdma);
	struct rdma_sides sides = { .ours = ready, .theirs = ready };
	unsigned wanted;
	int error = 0;

	rdma_sides_add(rdma, ready, local, remote, op, &sides);
	wanted = rdma_sides_staged(&sides);
	*staged = wanted != 0;
	if (wanted & RDMA_STAGE_OURS)
		error = prepare_ours(rdma, local, op, why);
	if (!error && wanted & RDMA_STAGE_THEIRS)
		error = prepare_theirs(rdma, why);
	return error;
}

/* ---- the transport's function ---------------------------------------------------------------- */

int rdma_is_reachable(struct wh_peer *peer, void *state, const struct wh_region *local,
		      struct wh_region_entry *entry, uint32_t op, char why[WH_REFUSAL])
{
	struct wh_remote_region *remote = wh_container(entry, struct wh_remote_region, entry);
	struct rdma_peer *rdma = state;
	bool staged = false;
	uint32_t near;
	int error = 0, trouble;

	(void)peer;
	if (!wh_kind_on_host(local->entry.kind) && wh_registration_check(local->registration)) {
		snprintf(why, WH_REFUSAL, "%s", wh_error_text());
		return -ESTALE;
	}
	pthread_mutex_lock(&rdma->lock);
	if (!reached(rdma, local, remote, why))
		error = reach_slowly(rdma, (struct wh_region *)local, remote, why);
	/* One line is enough; what the others refuse is not worth telling then. */
	if (error != -ESTALE && rdma_carriers(rdma, local, remote, op, &near)) {
		error = 0;
	} else if (error != -ESTALE) {
		trouble = stage(rdma, local, remote, op, &staged, why);
		error = staged ? trouble : error ? error : -EIO;
		if (!staged && error == -EIO && op == WH_READ && !can_be_written(rdma, local)) {
			snprintf(why, WH_REFUSAL, "region %#llx of ours cannot be written to",
				 (unsigned long long)wh_region_entry_id(&local->entry));
			error = -EACCES;
		}
	}
	pthread_mutex_unlock(&rdma->lock);
	return error;
}
