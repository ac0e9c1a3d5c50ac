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

/* ---- registering, by several threads -------------------------------------------------------- */

/* Pinning takes long, so no lock is held meanwhile, or a plan would wait for memory that is not its
 * own. A claim keeps others from the same pair of region and NIC; what GPUs' memory has in common
 * is for one thread at a time. */
struct claim {
	struct wh_list link; /* rdma.claims */
	const struct rdma_nic *nic;
	const struct wh_region *region;
	bool gpu;
};

/* Under rdma.register_lock. */
static bool claim_is_taken(struct rdma *rdma, const struct claim *claim)
{
	for (struct wh_list *l = rdma->claims.next; l != &rdma->claims; l = l->next) {
		const struct claim *other = wh_container(l, struct claim, link);

		if ((claim->gpu && other->gpu) ||
		    (claim->nic == other->nic && claim->region == other->region))
			return true;
	}
	return false;
}

/* Under rdma.register_lock, which a wait gives up. */
static void claim_take(struct rdma *rdma, struct claim *claim)
{
	while (claim_is_taken(rdma, claim))
		pthread_cond_wait(&rdma->registered, &rdma->register_lock);
	wh_list_append(&rdma->claims, &claim->link);
}

static void claim_drop(struct rdma *rdma, struct claim *claim)
{
	wh_list_remove(&claim->link);
	pthread_cond_broadcast(&rdma->registered);
}

/* NULL: it cannot be registered; *error is negative then, and the reason in `why`. */
static struct rdma_memory *memory_register_now(struct rdma_nic *nic, struct wh_region *region,
					       int *error, char why[WH_REFUSAL])
{
	struct rdma_memory *memory = calloc(1, sizeof(*memory));
	int rights = memory_rights(nic, region);

	*error = 0;
	if (!memory) {
		*error = memory_refuse(nic, region, ENOMEM, why);
		return NULL;
	}
	memory->nic = nic;
	memory->writable = true;
	if (region->entry.kind == WH_MEMORY_FILE) {
		snprintf(memory->why, sizeof(memory->why), "no NIC reads or writes a file");
	} else if (wh_kind_on_host(region->entry.kind)) {
		*error = memory_register_host(memory, region, rights);
		if (*error)
			*error = memory_refuse(nic, region, *error, why);
	} else {
		*error = rdma_gpu_get(nic, region, rights, &memory->mrs, memory->why);
		if (*error)
			memcpy(why, memory->why, WH_REFUSAL);
	}
	if (*error) {
		free(memory);
		return NULL;
	}
	memory->distance = rdma_distance(nic, region); /* its pages exist now */
	return memory;
}

/* Under rdma.register_lock. */
static void memory_publish(struct rdma_memory *memory, struct wh_region *region)
{
	memory->next =
		atomic_load_explicit(&region->transport[WH_TRANSPORT_RDMA], memory_order_relaxed);
	atomic_store_explicit(&region->transport[WH_TRANSPORT_RDMA], memory, memory_order_release);
}

/* The memory was not found without the lock. */
static int memory_claim(struct rdma_nic *nic, struct wh_region *region, struct rdma_memory **out,
			char why[WH_REFUSAL])
{
	struct claim claim = { .nic = nic,
			       .region = region,
			       .gpu = wh_kind_on_gpu(region->entry.kind) };
	struct rdma *rdma = nic->rdma;
	int error = 0;

	pthread_mutex_lock(&rdma->register_lock);
	if (wh_plan_how() != WH_PLAN_WAITS && claim_is_taken(rdma, &claim)) {
		pthread_mutex_unlock(&rdma->register_lock);
		snprintf(why, WH_REFUSAL, "local region %#llx is still being registered",
			 (unsigned long long)wh_region_entry_id(&region->entry));
		return -EINPROGRESS;
	}
	claim_take(rdma, &claim);
	*out = rdma_memory_find(region, nic);
	if (!*out) {
		pthread_mutex_unlock(&rdma->register_lock);
		*out = memory_register_now(nic, region, &error, why);
		pthread_mutex_lock(&rdma->register_lock);
		if (*out)
			memory_publish(*out, region);
	}
	claim_drop(rdma, &claim);
	pthread_mutex_unlock(&rdma->register_lock);
	return error;
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
	if (!memory)
		error = memory_claim(nic, region, &memory, why);
	if (!error)
		*out = memory;
	return error;
}

static void memory_free(struct rdma_memory *memory, const struct wh_region *region)
{
	if (memory->mrs && memory->mrs->method != WH_RDMA_HOST) {
		rdma_gpu_put(region->registration, memory->mrs);
	} else if (memory->mrs) {
		rdma_mrs_clear(memory->mrs);
		free(memory->mrs->chunks);
		free(memory->mrs);
	}
	free(memory);
}

/* The region is closed: no batch uses it, and no thread registers it. */
void rdma_region_closed(struct wh_engine *engine, void *state, struct wh_region *region)
{
	struct rdma_memory *memory = atomic_exchange(&region->transport[WH_TRANSPORT_RDMA], NULL),
			   *next;
	struct claim claim = { .region = region, .gpu = wh_kind_on_gpu(region->entry.kind) };
	struct rdma *rdma = state;

	(void)engine;
	if (!memory)
		return;
	pthread_mutex_lock(&rdma->register_lock);
	claim_take(rdma, &claim);
	pthread_mutex_unlock(&rdma->register_lock);
	for (; memory; memory = next) {
		next = memory->next;
		memory_free(memory, region);
	}
	pthread_mutex_lock(&rdma->register_lock);
	claim_drop(rdma, &claim);
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
