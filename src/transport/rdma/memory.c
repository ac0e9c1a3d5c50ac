/* SPDX-License-Identifier: Apache-2.0 */
/* rdma: MRs of local regions, and the keys of a peer's regions.
 *
 * A region is registered with a NIC when it is first used with it, by us or for a peer, until it is
 * unregistered. All connections of all peers reach it by the same keys, which only peers with a
 * session receive; removing the region invalidates the keys. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"
#include "transport/rdma/rdma.h"
#include "util/clock.h"
#include "wire/bytes.h"

#define ASK_AGAIN (5 * WH_SECOND) /* after a refusal */

/* ---- MRs ------------------------------------------------------------------------------------- */

void rdma_mrs_clear(struct rdma_mrs *mrs)
{
	while (mrs->count)
		mrs->nic->rdma->verbs->dereg_mr(mrs->chunks[--mrs->count].mr);
}

int rdma_mrs_add(struct rdma_mrs *mrs, struct ibv_mr *mr, uint64_t length)
{
	uint32_t room = mrs->room ? 2 * mrs->room : 1;
	int error = mr ? 0 : errno ? errno : EIO;
	struct rdma_chunk *grown;

	if (mr && mrs->count == WH_RDMA_KEYS_MAX) {
		error = EFBIG;
	} else if (mr && mrs->count == mrs->room) {
		grown = realloc(mrs->chunks, room * sizeof(*grown));
		if (grown) {
			mrs->chunks = grown;
			mrs->room = room;
		} else {
			error = ENOMEM;
		}
	}
	if (error) {
		if (mr)
			mrs->nic->rdma->verbs->dereg_mr(mr);
		rdma_mrs_clear(mrs);
		return error;
	}
	mrs->chunks[mrs->count] = (struct rdma_chunk){
		.end = (mrs->count ? mrs->chunks[mrs->count - 1].end : 0) + length,
		.key = mr->lkey,
		.mr = mr,
	};
	mrs->count++;
	return 0;
}

/* ---- registering ----------------------------------------------------------------------------- */

struct rdma_memory *rdma_memory_find(const struct wh_region *region, const struct rdma_nic *nic)
{
	struct rdma_memory *memory =
		atomic_load_explicit(&region->transport[WH_TRANSPORT_RDMA], memory_order_acquire);

	while (memory && memory->nic != nic)
		memory = memory->next;
	return memory;
}

struct rdma_memory *rdma_memory_find_reachable(const struct wh_region *region,
					       const struct rdma_nic *nic)
{
	struct rdma_memory *memory = rdma_memory_find(region, nic);

	return memory && memory->mrs ? memory : NULL;
}

static int memory_refuse(const struct rdma_nic *nic, const struct wh_region *region, int error,
			 char why[WH_REFUSAL])
{
	const char *hint = error == ENOMEM ? "; raise ulimit -l (memlock)" :
			   error == EFAULT ? "; it is not mapped, or not all of it" :
					     "";

	snprintf(why, WH_REFUSAL, "%.40s cannot register region %#llx (%llu bytes at %#llx): %s%s",
		 nic->name, (unsigned long long)wh_region_entry_id(&region->entry),
		 (unsigned long long)region->entry.length,
		 (unsigned long long)region->entry.address, strerror(error), hint);
	return -error;
}

static int memory_rights(const struct rdma_nic *nic, const struct wh_region *region)
{
	int rights = IBV_ACCESS_LOCAL_WRITE;

	if (region->entry.access & WH_ACCESS_READ)
		rights |= IBV_ACCESS_REMOTE_READ;
	if (region->entry.access & WH_ACCESS_WRITE)
		rights |= IBV_ACCESS_REMOTE_WRITE;
	/* Nobody reads received bytes before their completion, or before a frame or notification
	 * that follows them over the network, which NICs write in order. */
	if (wh_engine_config(nic->rdma->engine)->number[WH_SETTING_RDMA_RELAXED])
		rights |= IBV_ACCESS_RELAXED_ORDERING;
	return rights;
}

/* Register all chunks. 0 or an errno. */
static int mrs_fill(struct rdma_mrs *mrs, const struct wh_region *region, int rights)
{
	const struct rdma_nic *nic = mrs->nic;
	uint64_t left = region->entry.length, length;
	char *at = (char *)(uintptr_t)region->entry.address;
	int error = 0;

	for (; left && !error; at += length, left -= length) {
		length = left < nic->chunk ? left : nic->chunk;
		errno = 0;
		error = rdma_mrs_add(
			mrs, wh_verbs_register(nic->rdma->verbs, nic->pd, at, length, rights),
			length);
	}
	return error;
}

static int memory_register_host(struct rdma_memory *memory, const struct wh_region *region,
				int rights)
{
	struct rdma_mrs *mrs = calloc(1, sizeof(*mrs));
	int error;

	if (!mrs)
		return ENOMEM;
	mrs->nic = memory->nic;
	mrs->users = 1;
	mrs->rights = rights;
	mrs->method = WH_RDMA_HOST;
	error = mrs_fill(mrs, region, rights);
	if (error && error != ENOMEM && !(rights & IBV_ACCESS_REMOTE_WRITE)) {
		/* Read-only memory can still be sent from. */
		memory->writable = false;
		error = mrs_fill(mrs, region, rights & ~IBV_ACCESS_LOCAL_WRITE);
	}
	if (!error) {
		memory->mrs = mrs;
		return 0;
	}
	free(mrs->chunks);
	free(mrs);
	return error;
}

/* Under rdma.register_lock. */
static int memory_register_now(struct rdma_nic *nic, struct wh_region *region,
			       struct rdma_memory **out, char why[WH_REFUSAL])
{
	struct rdma_memory *memory = calloc(1, sizeof(*memory));
	int rights = memory_rights(nic, region), error = 0;

	if (!memory)
		return memory_refuse(nic, region, ENOMEM, why);
	memory->nic = nic;
	memory->writable = true;
	if (region->entry.kind == WH_MEMORY_FILE) {
		snprintf(memory->why, sizeof(memory->why), "no NIC reads or writes a file");
	} else if (wh_kind_on_host(region->entry.kind)) {
		error = memory_register_host(memory, region, rights);
		if (error)
			error = memory_refuse(nic, region, error, why);
	} else {
		error = rdma_gpu_get(nic, region, rights, &memory->mrs, memory->why);
		if (error)
			memcpy(why, memory->why, WH_REFUSAL);
	}
	if (error) {
		free(memory);
		return error;
	}
	memory->distance = rdma_distance(nic, region); /* its pages exist now */
	memory->next =
		atomic_load_explicit(&region->transport[WH_TRANSPORT_RDMA], memory_order_relaxed);
	atomic_store_explicit(&region->transport[WH_TRANSPORT_RDMA], memory, memory_order_release);
	*out = memory;
	return 0;
}

int rdma_memory_register(struct rdma_nic *nic, struct wh_region *region, struct rdma_memory **out,
			 char why[WH_REFUSAL])
{
	struct rdma_memory *memory = rdma_memory_find(region, nic);
	int error = 0;

	/* The memory may have been freed, and reused, since it was registered. */
	if (!wh_kind_on_host(region->entry.kind))
		error = wh_registration_check(region->registration);
	if (error) {
		snprintf(why, WH_REFUSAL, "%s", wh_error_text());
		return error;
	}
	if (!memory) {
		pthread_mutex_lock(&nic->rdma->register_lock);
		memory = rdma_memory_find(region, nic);
		if (!memory)
			error = memory_register_now(nic, region, &memory, why);
		pthread_mutex_unlock(&nic->rdma->register_lock);
	}
	if (!error)
		*out = memory;
	return error;
}

/* The region is closed: no batch uses it, and no thread registers it. */
void rdma_region_closed(struct wh_engine *engine, void *state, struct wh_region *region)
{
	struct rdma_memory *memory = atomic_exchange(&region->transport[WH_TRANSPORT_RDMA], NULL),
			   *next;
	struct rdma *rdma = state;

	(void)engine;
	if (memory)
		pthread_mutex_lock(&rdma->register_lock);
	for (struct rdma_memory *at = memory; at; at = next) {
		next = at->next;
		if (at->mrs && at->mrs->method != WH_RDMA_HOST) {
			rdma_gpu_put(region->registration, at->mrs);
		} else if (at->mrs) {
			rdma_mrs_clear(at->mrs);
			free(at->mrs->chunks);
			free(at->mrs);
		}
		free(at);
	}
	if (memory)
		pthread_mutex_unlock(&rdma->register_lock);
}

/* ---- keys of a peer's regions ---------------------------------------------------------------- */

struct rdma_keys *rdma_keys_find(const struct wh_remote_region *region, uint32_t nic)
{
	struct rdma_keys *keys =
		atomic_load_explicit(&region->transport[WH_TRANSPORT_RDMA], memory_order_acquire);

	while (keys && keys->nic != nic)
		keys = keys->next;
	return keys;
}

/* No thread is inside. Must work without the transport's state for the peer. */
void rdma_region_gone(struct wh_peer *peer, void *state, struct wh_remote_region *region)
{
	struct rdma_keys *keys = atomic_exchange(&region->transport[WH_TRANSPORT_RDMA], NULL),
			 *next;

	(void)peer;
	(void)state;
	for (; keys; keys = next) {
		next = keys->next;
		free(keys);
	}
}

/* The caller has entered the region. Answers stay until the region goes, because others may be
 * reading them; a later answer is found first. */
static int keys_add(struct wh_remote_region *region, const struct wh_rdma_keyed *keyed)
{
	struct rdma_keys *keys = calloc(1, sizeof(*keys) + keyed->count * sizeof(keys->chunks[0]));
	uint64_t end = 0;

	if (!keys)
		return -ENOMEM;
	keys->nic = keyed->nic;
	keys->error = keyed->error;
	memcpy(keys->why, keyed->text, strnlen(keyed->text, sizeof(keys->why) - 1));
	/* A staged region stays staged. */
	keys->until = keys->error == -WH_RDMA_STAGED_BY_OWNER ? INT64_MAX : wh_now() + ASK_AGAIN;
	keys->bounce = keyed->bounce;
	keys->method = keyed->method;
	keys->flush = keyed->flush;
	keys->distance = keyed->distance;
	keys->count = keyed->count;
	for (uint32_t i = 0; i < keyed->count; i++) {
		const uint8_t *key = keyed->keys + (size_t)i * WH_RDMA_KEY_SIZE;

		end += wh_get64(key);
		keys->chunks[i] = (struct rdma_chunk){ .end = end, .key = wh_get32(key + 8) };
	}
	keys->next =
		atomic_load_explicit(&region->transport[WH_TRANSPORT_RDMA], memory_order_relaxed);
	atomic_store_explicit(&region->transport[WH_TRANSPORT_RDMA], keys, memory_order_release);
	return 0;
}

/* The bytes that the keys are for. */
static uint64_t keyed_length(const struct wh_rdma_keyed *keyed)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < keyed->count; i++)
		sum += wh_get64(keyed->keys + (size_t)i * WH_RDMA_KEY_SIZE);
	return sum;
}

/* The keys of the bounce buffer that a file goes through. */
static int keys_add_staged(struct rdma_peer *rdma, struct wh_remote_region *file,
			   const struct wh_rdma_keyed *keyed)
{
	struct wh_remote_region *bounce = &rdma->bounces[keyed->bounce].region;
	struct wh_rdma_keyed keys = *keyed, none = *keyed;
	int error = rdma_bounce_opened_for_files(rdma, keyed->bounce, keyed->address,
						 keyed_length(keyed));

	keys.method = WH_RDMA_HOST;
	keys.bounce = 0;
	if (!error && !rdma_keys_find(bounce, keyed->nic))
		error = keys_add(bounce, &keys);
	none.error = -WH_RDMA_STAGED_BY_OWNER;
	none.count = 0;
	return error ? error : keys_add(file, &none);
}

int rdma_keys_received(struct wh_peer *peer, const struct wh_rdma_keyed *keyed)
{
	struct rdma_peer *rdma = wh_peer_transport(peer, WH_TRANSPORT_RDMA);
	struct wh_remote_region *region = rdma_remote_enter(rdma, keyed->id);
	bool staged = !keyed->error && keyed->method == WH_RDMA_STAGED;
	struct rdma_keys *known;
	int error = 0;

	if (!region)
		return 0; /* it is gone */
	known = rdma_keys_find(region, keyed->nic);
	if (!keyed->error && (staged != (region->entry.kind == WH_MEMORY_FILE) ||
			      (!staged && keyed_length(keyed) != region->entry.length)))
		error = -EPROTO;
	/* Several KEYS may have been sent. */
	else if (!known || (known->error && wh_now() > known->until))
		error = staged ? keys_add_staged(rdma, region, keyed) : keys_add(region, keyed);
	wh_region_entry_leave(&region->entry);
	return error;
}
