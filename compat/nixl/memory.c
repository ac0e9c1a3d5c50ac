/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory, and memory of other agents. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compat/nixl/internal.h"

static const char *kind_name(uint32_t kind)
{
	switch (kind) {
	case WH_MEMORY_PAGEABLE:
		return "pageable";
	case WH_MEMORY_HUGE:
		return "huge pages";
	case WH_MEMORY_SHARED:
		return "shared";
	case WH_MEMORY_PINNED:
		return "pinned";
	case WH_MEMORY_MAPPED:
		return "mapped";
	case WH_MEMORY_DEVICE:
		return "device";
	case WH_MEMORY_VMM:
		return "vmm";
	case WH_MEMORY_MANAGED:
		return "managed";
	case WH_MEMORY_POOL:
		return "pool";
	default:
		return "other";
	}
}

/* ---- this agent's
 * --------------------------------------------------------------------------------- */

static bool memory_fits(const struct wh_nixl_agent *agent, const struct wh_memory_info *found,
			uintptr_t address, int gpu)
{
	bool on_gpu = found->device >= 0;

	if (gpu < 0 ? !on_gpu || found->kind == WH_MEMORY_MANAGED :
		      found->device == gpu || found->kind == WH_MEMORY_MANAGED)
		return true;
	if (gpu < 0)
		wh_nixl_say(agent,
			    "memory at %#llx is registered as DRAM, but it is %s memory of GPU %d",
			    (unsigned long long)address, kind_name(found->kind), found->device);
	else if (!on_gpu)
		wh_nixl_say(
			agent,
			"memory at %#llx is registered as VRAM of GPU %d, but it is %s memory of "
			"the host",
			(unsigned long long)address, gpu, kind_name(found->kind));
	else
		wh_nixl_say(agent,
			    "memory at %#llx is registered as VRAM of GPU %d, but it is on GPU %d",
			    (unsigned long long)address, gpu, found->device);
	return false;
}

/* Register the very same memory once more: it shares the region, because NIXL refuses an agent's
 * metadata in which a range has two keys. NULL: it is not registered, or another allocation has
 * taken its place. */
static struct wh_nixl_memory *memory_share(struct wh_nixl_agent *agent, uintptr_t address,
					   size_t length, const struct wh_memory_info *found)
{
	struct wh_nixl_memory *same = NULL;

	pthread_mutex_lock(&agent->lock);
	for (struct wh_list *link = agent->memories.next; link != &agent->memories && !same;
	     link = link->next) {
		struct wh_nixl_memory *memory = wh_container(link, struct wh_nixl_memory, link);

		if (memory->registrations && memory->address == address &&
		    memory->length == length && memory->kind == found->kind &&
		    memory->base == found->base && memory->base_length == found->length)
			same = memory;
	}
	if (same)
		same->registrations++;
	pthread_mutex_unlock(&agent->lock);
	return same;
}

int wh_nixl_memory_register(struct wh_nixl_agent *agent, uintptr_t address, size_t length, int gpu,
			    struct wh_nixl_memory **out)
{
	struct wh_region_options options = { .size = sizeof(options),
					     .access = WH_ACCESS_READ | WH_ACCESS_WRITE };
	struct wh_memory_info found = { .size = sizeof(found) };
	struct wh_nixl_memory *memory;
	int error = wh_memory_query(agent->engine, (const void *)address, &found);

	if (error)
		return wh_nixl_fail(agent, error, "cannot register memory");
	if (!memory_fits(agent, &found, address, gpu))
		return WH_NIXL_INVALID;
	*out = memory_share(agent, address, length, &found);
	if (*out)
		return WH_NIXL_OK;
	memory = calloc(1, sizeof(*memory));
	if (!memory)
		return WH_NIXL_BACKEND;
	error = wh_region_register(agent->engine, (void *)address, length, &options,
				   &memory->region);
	if (error) {
		free(memory);
		return wh_nixl_fail(agent, error, "cannot register memory");
	}
	memory->agent = agent;
	memory->address = address;
	memory->length = length;
	memory->kind = found.kind;
	memory->registrations = 1;
	memory->base = found.base;
	memory->base_length = found.length;
	pthread_mutex_lock(&agent->lock);
	wh_list_append(&agent->memories, &memory->link);
	pthread_mutex_unlock(&agent->lock);
	*out = memory;
	return WH_NIXL_OK;
}

int wh_nixl_memory_unregister(struct wh_nixl_memory *memory)
{
	struct wh_nixl_agent *agent = memory->agent;
	unsigned left;
	int error;

	if (wh_nixl_agent_is_inherited(agent))
		return WH_NIXL_OK;
	pthread_mutex_lock(&agent->lock);
	left = --memory->registrations; /* with none it is not shared any more */
	pthread_mutex_unlock(&agent->lock);
	if (left)
		return WH_NIXL_OK;
	error = wh_region_unregister(memory->region);
	/* NIXL takes no "not yet" here, and never calls again. */
	if (error)
		return wh_nixl_fail(
			agent, error,
			"memory is still in use while its agent takes it back; it is taken "
			"back when the agent ends");
	pthread_mutex_lock(&agent->lock);
	wh_list_remove(&memory->link);
	pthread_mutex_unlock(&agent->lock);
	free(memory);
	return WH_NIXL_OK;
}

void wh_nixl_memories_free(struct wh_nixl_agent *agent)
{
	struct wh_list *link;

	while ((link = wh_list_take(&agent->memories))) {
		struct wh_nixl_memory *memory = wh_container(link, struct wh_nixl_memory, link);
		int error = wh_region_unregister(memory->region);

		if (error)
			wh_nixl_fail(agent, error, "memory is still in use while its agent ends");
		free(memory);
	}
}

int wh_nixl_memory_key(const struct wh_nixl_memory *memory, void *out, size_t *length)
{
	int error;

	*length = WH_KEY_MAX;
	error = wh_region_pack_key(memory->region, out, length);
	return error ? wh_nixl_fail(memory->agent, error, "cannot make a key of memory") :
		       WH_NIXL_OK;
}

int wh_nixl_memory_query(struct wh_nixl_agent *agent, uintptr_t address, struct wh_nixl_found *out)
{
	struct wh_memory_info found = { .size = sizeof(found) };

	if (wh_memory_query(agent->engine, (const void *)address, &found))
		return 0;
	out->kind = kind_name(found.kind);
	out->gpu = found.device;
	out->base = (uintptr_t)found.base;
	out->length = found.length;
	return 1;
}

/* ---- other agents'
 * -------------------------------------------------------------------------------- */

/* `peer` is held, and is given to the memory. */
static int memory_new(struct wh_nixl_peer *peer, const void *key, size_t key_length,
		      struct wh_nixl_memory **out)
{
	struct wh_nixl_agent *agent = peer->agent;
	struct wh_nixl_memory *memory = NULL;
	struct wh_remote remote;
	/* The peer is asked about all memory of a request at once, when that is prepared. */
	int error = wh_peer_unpack_key(peer->peer, key, key_length, 0, &remote);

	if (error || key_length > WH_KEY_MAX) {
		error = wh_nixl_fail(agent, error, "cannot load the memory of an agent");
	} else {
		memory = calloc(1, sizeof(*memory));
		error = memory ? WH_NIXL_OK : WH_NIXL_BACKEND;
	}
	if (error) {
		wh_nixl_peer_put(peer);
		return error;
	}
	memory->agent = agent;
	memory->peer = peer;
	memory->id = remote.id;
	memory->address = remote.address;
	memory->length = remote.length;
	memory->kind = remote.kind;
	memcpy(memory->key, key, key_length);
	memory->key_length = key_length;
	*out = memory;
	return WH_NIXL_OK;
}

int wh_nixl_memory_load(struct wh_nixl_agent *agent, const char *name, size_t name_length,
			const void *key, size_t key_length, struct wh_nixl_memory **out)
{
	struct wh_nixl_peer *peer = wh_nixl_peer_get(agent, name, name_length);

	return peer ? memory_new(peer, key, key_length, out) : WH_NIXL_NOT_FOUND;
}

int wh_nixl_memory_load_local(const struct wh_nixl_memory *memory, struct wh_nixl_memory **out)
{
	struct wh_nixl_agent *agent = memory->agent;
	struct wh_nixl_peer *self = wh_nixl_peer_get(agent, agent->name, agent->name_length);
	unsigned char key[WH_KEY_MAX];
	size_t length;
	int status;

	if (!self)
		return WH_NIXL_BACKEND;
	status = wh_nixl_memory_key(memory, key, &length);
	if (status) {
		wh_nixl_peer_put(self);
		return status;
	}
	return memory_new(self, key, length, out);
}

void wh_nixl_memory_unload(struct wh_nixl_memory *memory)
{
	wh_nixl_peer_put(memory->peer);
	free(memory);
}
