/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Local regions: registering, publishing and unregistering.
 *
 * When wh_region_unregister() returns, nothing touches the memory any more. Three kinds of users
 * have to end first: batches of this engine (wh_region.batches), transports that copy for a peer
 * right now (wh_region_entry.users), and peers that map the region or hold its keys
 * (session-regions.c).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/counters.h"
#include "core/engine.h"
#include "core/region.h"
#include "core/remote.h"
#include "core/session.h"
#include "gpu/region-window.h"
#include "memory/file.h"
#include "memory/memory.h"
#include "memory/region-table.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/config.h"
#include "util/error.h"
#include "util/list.h"
#include "util/options.h"
#include "util/turns.h"
#include "wire/wire.h"

static int region_guard(const struct wh_region *region, const char *call)
{
	if (!region)
		return wh_fail(EINVAL, "%s: region is NULL", call);
	return wh_engine_guard(region->engine, call);
}

bool wh_region_name_is_valid(const char *name)
{
	size_t length = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
				     "0123456789._-");

	return length && length < WH_NAME_MAX && !name[length];
}

static bool region_access_is_valid(uint32_t access)
{
	return !(access & ~(uint32_t)(WH_ACCESS_BYTES | WH_ACCESS_LIST));
}

/* ---- rights of single peers ----------------------------------------------------------------- */

struct right {
	char name[WH_NAME_MAX];
	uint8_t access;
};

/* Sorted by name. Constant while the region is registered. */
struct wh_rights {
	uint8_t others; /* peers that are not named */
	uint32_t count;
	struct right of[];
};

static int right_compare(const void *a, const void *b)
{
	return strcmp(((const struct right *)a)->name, ((const struct right *)b)->name);
}

/* What at least one peer may do. */
static uint8_t rights_union(const struct wh_rights *rights)
{
	uint8_t access = rights->others;

	for (uint32_t i = 0; i < rights->count; i++)
		access |= rights->of[i].access;
	return access;
}

static int rights_parse_grant(const struct wh_grant *grant, uint32_t index, struct right *right)
{
	size_t length = grant->peer ? strnlen(grant->peer, WH_NAME_MAX) : 0;

	if (!length || length == WH_NAME_MAX)
		return wh_fail(EINVAL, "wh_region_register: options.grants[%u].peer %s", index,
			       !grant->peer ? "is NULL" :
			       length       ? "has more than 63 bytes" :
					      "is empty");
	if (!region_access_is_valid(grant->access) || grant->reserved)
		return wh_fail(EINVAL,
			       "wh_region_register: options.grants[%u], for \"%s\": access is %#x, "
			       "reserved "
			       "%#x; READ, WRITE and LIST, or 0, and 0",
			       index, grant->peer, grant->access, grant->reserved);
	memcpy(right->name, grant->peer, length);
	right->access = (uint8_t)grant->access;
	return 0;
}

/* Check and sort the grants. NULL in *out: all peers have the same rights. */
static int rights_parse(const struct wh_region_options *options, struct wh_rights **out)
{
	uint32_t count = options->grant_count;
	struct wh_rights *rights;
	int error = 0;

	*out = NULL;
	if (!count && !options->grants)
		return 0;
	if (!count || !options->grants || count > WH_GRANTS_MAX)
		return wh_fail(EINVAL,
			       "wh_region_register: options.grant_count is %u, of 1 to %d, and "
			       "options.grants is %s",
			       count, WH_GRANTS_MAX, options->grants ? "not NULL" : "NULL");
	rights = calloc(1, sizeof(*rights) + count * sizeof(rights->of[0]));
	if (!rights)
		return wh_fail(ENOMEM, "wh_region_register: no memory for %u grants", count);
	rights->others = (uint8_t)options->access;
	rights->count = count;
	for (uint32_t i = 0; !error && i < count; i++)
		error = rights_parse_grant(&options->grants[i], i, &rights->of[i]);
	if (!error)
		qsort(rights->of, count, sizeof(rights->of[0]), right_compare);
	for (uint32_t i = 1; !error && i < count; i++)
		if (!right_compare(&rights->of[i - 1], &rights->of[i]))
			error = wh_fail(EINVAL,
					"wh_region_register: options.grants names \"%s\" twice",
					rights->of[i].name);
	if (error)
		free(rights);
	else
		*out = rights;
	return error;
}

static uint8_t rights_of(const struct wh_rights *rights, const char *name)
{
	/* struct right begins with its name. */
	const struct right *found =
		bsearch(name, rights->of, rights->count, sizeof(rights->of[0]), right_compare);

	return found ? found->access : rights->others;
}

uint8_t wh_region_access(const struct wh_region *region, const char *name)
{
	return region->rights ? rights_of(region->rights, name) & WH_ACCESS_BYTES :
				region->entry.access;
}

bool wh_region_is_listed(const struct wh_region *region, const char *name)
{
	return region->rights ? rights_of(region->rights, name) & WH_ACCESS_LIST : region->listed;
}

void wh_region_record(const struct wh_region *region, struct wh_region_record *record)
{
	const struct wh_region_entry *entry = &region->entry;

	memset(record, 0, sizeof(*record));
	record->id = wh_region_entry_id(entry);
	record->address = entry->address;
	record->length = entry->length;
	record->access = entry->access;
	record->kind = entry->kind;
	record->flags = entry->flags;
	if (entry->name)
		memcpy(record->name, entry->name, strlen(entry->name));
}

/* ---- register ------------------------------------------------------------------------------- */

static int region_check_range(const void *address, size_t length)
{
	static const char call[] = "wh_region_register";

	if (!address || !length)
		return wh_fail(EINVAL, "%s: %s", call, address ? "length is 0" : "address is NULL");
	if (length > UINTPTR_MAX - (uintptr_t)address)
		return wh_fail(
			EINVAL,
			"%s: %p and a length of %zu bytes reach past the end of the address space",
			call, address, length);
	return 0;
}

void wh_region_request_drop(struct wh_region_request *request)
{
	free(request->name);
	free(request->rights);
	request->name = NULL;
	request->rights = NULL;
}

int wh_region_request_parse(struct wh_region_request *request,
			    const struct wh_region_options *given, const char *call)
{
	struct wh_region_options *options = &request->options;
	int error = wh_options_copy(options, sizeof(*options), given, sizeof(size_t), call);

	request->rights = NULL;
	request->name = NULL;
	if (error)
		return error;
	if (!region_access_is_valid(options->access))
		return wh_fail(EINVAL, "%s: options.access is %#x; READ, WRITE and LIST, or 0",
			       call, options->access);
	if (options->name && !wh_region_name_is_valid(options->name))
		return wh_fail(EINVAL,
			       "%s: options.name \"%.70s\" is not 1 to %d of A-Z a-z 0-9 . _ -",
			       call, options->name, WH_NAME_MAX - 1);
	error = rights_parse(options, &request->rights);
	if (error)
		return error;
	request->access =
		request->rights ? rights_union(request->rights) : (uint8_t)options->access;
	request->name = options->name ? strdup(options->name) : NULL;
	if (options->name && !request->name) {
		wh_region_request_drop(request);
		return wh_fail(ENOMEM, "%s: no memory", call);
	}
	return 0;
}

/* Fill an entry that is not published yet. Under engine.lock. */
static void region_fill(struct wh_engine *engine, struct wh_region *region,
			struct wh_allocation *memory, struct wh_registration *registration,
			uint32_t access, struct wh_rights *rights)
{
	struct wh_region_entry *entry = &region->entry;

	/* Leave `batches`: a submission that still looks at an earlier region in this entry may be
	 * counting. */
	region->engine = engine;
	region->windows = &engine->region_windows;
	region->memory = memory;
	region->registration = registration;
	region->rights = rights;
	entry->address = registration->address;
	entry->length = registration->length;
	region->listed = access & WH_ACCESS_LIST;
	atomic_store(&region->faulted, false);
	entry->access = (rights ? rights_union(rights) : (uint8_t)access) & WH_ACCESS_BYTES;
	/* CUDA cannot distinguish SHARED memory from other host memory. */
	entry->kind = (uint8_t)(memory ? memory->kind : registration->kind);
	/* Whether a peer may map it depends on what else of the allocation is published to that
	 * peer, and is decided when it asks. */
	entry->flags = memory && memory->fd >= 0 ? WH_REGION_MAPPABLE : 0;
}

/* The region joins or leaves the published part of its allocation: what peers may map of that has
 * to be decided again. Under engine.lock. */
static void region_change_memory(struct wh_region *region, bool joins)
{
	struct wh_allocation *memory = region->memory;
	uint64_t length = joins ? region->entry.length : -region->entry.length;

	if (!memory)
		return;
	memory->version = atomic_fetch_add(&region->engine->memory.number, 1) + 1;
	if (region->entry.access & WH_ACCESS_READ)
		memory->readable += length;
	if (region->entry.access & WH_ACCESS_WRITE)
		memory->writable += length;
	if (joins)
		wh_list_append(&memory->members, &region->member);
	else
		wh_list_remove(&region->member);
}

static void region_publish(struct wh_engine *engine, struct wh_region *region)
{
	if (region->entry.access) {
		region_change_memory(region, true);
		wh_sessions_publish(engine, region);
	}
	wh_remote_wake(engine);
}

/* Under engine.lock, so that a LOOKUP answered meanwhile either finds the region or is hinted at
 * it.
 */
static int region_add(struct wh_engine *engine, struct wh_registration *registration,
		      const struct wh_region_options *options, struct wh_rights *rights, char *name,
		      struct wh_region **out)
{
	struct wh_allocation *memory;
	struct wh_region *region;
	uint64_t id;
	int error = wh_allocation_acquire(&engine->memory, (void *)(uintptr_t)registration->address,
					  registration->length, &memory);

	if (error) {
		free(name);
		return error;
	}
	region = (struct wh_region *)wh_region_table_new(&engine->regions, &id);
	if (!region) {
		free(name);
		wh_allocation_release(&engine->memory, memory);
		return wh_fail(ENOMEM, "wh_region_register: no memory for another region");
	}
	region_fill(engine, region, memory, registration, options->access, rights);
	region->entry.name = name;
	error = wh_region_table_publish(&engine->regions, &region->entry, id);
	if (error)
		wh_allocation_release(&engine->memory, memory);
	if (error == -EEXIST)
		return wh_fail(EEXIST,
			       "wh_region_register: there is a region of the name \"%s\" already",
			       options->name);
	if (error)
		return wh_fail(-error, "wh_region_register: no memory for another region");
	region_publish(engine, region);
	*out = region;
	return 0;
}

int wh_region_add(struct wh_engine *engine, struct wh_region_request *request,
		  struct wh_registration *registration, int64_t begun, struct wh_region **out)
{
	int error;

	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++) {
		if (!engine->transport_off[id][0])
			wh_transport(id)->region_coming(engine, engine->transport[id],
							registration);
	}
	pthread_mutex_lock(&engine->lock);
	error = region_add(engine, registration, &request->options, request->rights, request->name,
			   out);
	pthread_mutex_unlock(&engine->lock);
	request->name = NULL; /* region_add() has taken it, or freed it */
	if (error) {
		wh_registration_put(registration);
		wh_region_request_drop(request);
		return error;
	}
	wh_count_add(&engine->statistics.region_bytes, registration->length);
	wh_count_add(&engine->statistics.registrations, 1);
	wh_count_add(&engine->statistics.registration_time, (uint64_t)(wh_now() - begun));
	return 0;
}

static int region_try_register(struct wh_engine *engine, void *address, size_t length,
			       const struct wh_region_options *given, struct wh_region **out)
{
	struct wh_registration *registration;
	struct wh_region_request request;
	int64_t begun = wh_now();
	int error = wh_engine_guard(engine, "wh_region_register");

	if (error)
		return error;
	if (!out)
		return wh_fail(EINVAL, "wh_region_register: out is NULL");
	error = wh_region_request_parse(&request, given, "wh_region_register");
	if (error)
		return error;
	error = region_check_range(address, length);
	if (!error)
		error = wh_registration_get(&engine->memory, address, length, &registration);
	if (error) {
		wh_region_request_drop(&request);
		return error;
	}
	return wh_region_add(engine, &request, registration, begun, out);
}

int wh_region_register(struct wh_engine *engine, void *address, size_t length,
		       const struct wh_region_options *given, struct wh_region **out)
{
	wh_fail_begin();
	return wh_fail_end(region_try_register(engine, address, length, given, out));
}

/* ---- unregister ----------------------------------------------------------------------------- */

static int region_busy(const struct wh_region *region)
{
	return wh_fail(EBUSY,
		       "wh_region_unregister: %u unfinished batches use region %#llx; wait for "
		       "them or cancel them",
		       atomic_load(&region->batches),
		       (unsigned long long)wh_region_entry_id(&region->entry));
}

/* Keep everybody from starting anything new with the region, and tell the peers. Under engine.lock.
 */
static int region_withdraw(struct wh_engine *engine, struct wh_region *region)
{
	struct wh_region_entry *entry = &region->entry;
	uint64_t id = wh_region_entry_id(entry);

	if (!atomic_load(&entry->id))
		return 0; /* an earlier call came here, but timed out later */
	if (atomic_load(&region->batches))
		return region_busy(region);
	wh_region_table_close(&engine->regions, entry, id);
	/* A submission counts first and reads the id then: one that was missed above is seen here.
	 * No peer has been told yet, so the region can be reopened. */
	if (atomic_load(&region->batches)) {
		wh_region_table_reopen(&engine->regions, entry, id);
		return region_busy(region);
	}
	region->withdrawn = wh_now();
	if (entry->access) {
		/* Before the peers are told: from now on no peer gets a mapping that shows it. */
		region_change_memory(region, false);
		region->removal = wh_sessions_remove(engine, region);
	}
	return 0;
}

/* Wait until no peer's request uses the region any more. False: the deadline has passed. */
static bool region_left(struct wh_engine *engine, struct wh_region_entry *entry, int64_t deadline)
{
	/* Without threads, requests end in turns. */
	while (engine->turns && !wh_region_entry_left(entry, 0) && wh_now() < deadline)
		wh_turns_pause(engine->turns, WH_MS);
	return wh_region_entry_left(entry, deadline);
}

static void region_leave_transports(struct wh_engine *engine, struct wh_region *region)
{
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++) {
		if (!engine->transport_off[id][0])
			wh_transport(id)->region_closed(engine, engine->transport[id], region);
	}
}

/* Nobody uses the region any more, and no transport knows it. */
static void region_free(struct wh_engine *engine, struct wh_region *region)
{
	struct wh_registration *registration;

	pthread_mutex_lock(&engine->lock);
	wh_allocation_release(&engine->memory, region->memory);
	registration = region->registration;
	free(region->rights);
	region->rights = NULL;
	wh_count_add(&engine->statistics.region_bytes, -region->entry.length);
	wh_region_table_free(&engine->regions, &region->entry);
	pthread_mutex_unlock(&engine->lock);
	wh_registration_put(registration);
}

/* `timeout` < 0: the setting. Whoever has keys only gets half of the setting, from when it was
 * told.
 */
static int region_try_unregister(struct wh_region *region, int64_t timeout)
{
	int error = region_guard(region, "wh_region_unregister");
	struct wh_engine *engine;
	struct wh_region_entry *entry;
	int64_t patience, deadline;

	if (error)
		return error;
	engine = region->engine;
	entry = &region->entry;
	if (wh_engine_inside(engine))
		return wh_fail(EDEADLK,
			       "wh_region_unregister: called from one of the engine's own threads");
	patience = engine->config.number[WH_SETTING_TIMEOUT] * WH_MS;
	deadline = wh_deadline(timeout < 0 ? patience : timeout);
	pthread_mutex_lock(&engine->lock);
	if (!entry->used)
		error = wh_fail(EINVAL,
				"wh_region_unregister: the region has been unregistered already");
	else
		error = region_withdraw(engine, region);
	pthread_mutex_unlock(&engine->lock);
	if (!error && !region_left(engine, entry, deadline))
		error = wh_fail(EBUSY,
				"wh_region_unregister: region %#llx is still being copied for a "
				"peer; it is unpublished, try again",
				(unsigned long long)wh_region_entry_id(entry));
	if (!error && entry->access)
		error = wh_sessions_released(engine, wh_region_entry_id(entry), region->removal,
					     region->withdrawn + patience / 2, deadline);
	if (error)
		return error;
	region_leave_transports(engine, region);
	wh_region_window_close(region);
	region_free(engine, region);
	return 0;
}

int wh_region_unregister(struct wh_region *region)
{
	if (!region)
		return 0;
	wh_fail_begin();
	return wh_fail_end(region_try_unregister(region, -1));
}

int wh_region_unregister_for(struct wh_region *region, int64_t timeout)
{
	if (!region)
		return 0;
	wh_fail_begin();
	if (timeout < 0)
		return wh_fail_end(wh_fail(EINVAL, "wh_region_unregister_for: the timeout is %lld",
					   (long long)timeout));
	return wh_fail_end(region_try_unregister(region, timeout));
}

/* ---- files that hang ------------------------------------------------------------------------ */

/* The next one that is leaving, from *at on. NULL: no more. */
static struct wh_region *next_leaving(struct wh_engine *engine, uint32_t *at)
{
	struct wh_region_table *table = &engine->regions;
	uint32_t high;

	pthread_mutex_lock(&table->lock);
	high = table->high;
	pthread_mutex_unlock(&table->lock);
	while (*at < high) {
		struct wh_region_entry *entry = wh_region_table_at(table, (*at)++);

		if (entry && entry->used && !atomic_load(&entry->id) &&
		    entry->kind == WH_MEMORY_FILE)
			return wh_container(entry, struct wh_region, entry);
	}
	return NULL;
}

uint32_t wh_regions_leaving(struct wh_engine *engine, const char **name)
{
	const struct wh_region *region;
	uint32_t at = 0, count = 0;

	while ((region = next_leaving(engine, &at))) {
		if (name && !count)
			*name = region->registration->file->name;
		count++;
	}
	return count;
}

void wh_regions_leave_transports(struct wh_engine *engine)
{
	struct wh_region *region;
	uint32_t at = 0;

	while ((region = next_leaving(engine, &at)))
		region_leave_transports(engine, region);
}

void wh_regions_free_leaving(struct wh_engine *engine)
{
	struct wh_region *region;
	uint32_t at = 0;

	while ((region = next_leaving(engine, &at)))
		region_free(engine, region);
}

/* ---- looking at them ------------------------------------------------------------------------ */

uint64_t wh_region_id(const struct wh_region *region)
{
	return region ? wh_region_entry_id(&region->entry) : 0;
}

int wh_region_lookup(struct wh_engine *engine, const void *address, size_t length,
		     struct wh_region **out, uint64_t *offset)
{
	int error = wh_engine_guard(engine, "wh_region_lookup");
	struct wh_region_entry copy;
	char name[WH_NAME_MAX];

	if (error)
		return error;
	if (!out || !offset || !length)
		return wh_fail(EINVAL, "wh_region_lookup: %s",
			       !length ? "length is 0" :
			       out     ? "offset is NULL" :
					 "out is NULL");
	if (!wh_region_table_by_address(&engine->regions, (uintptr_t)address, length, 0, NULL,
					&copy, name))
		return wh_fail(ENOENT, "wh_region_lookup: no region holds %p and %zu bytes",
			       address, length);
	*out = (struct wh_region *)wh_region_table_at(&engine->regions, copy.index);
	*offset = (uintptr_t)address - copy.address;
	return 0;
}

int wh_region_pack_key(const struct wh_region *region, void *buffer, size_t *length)
{
	int error = region_guard(region, "wh_region_pack_key");
	struct wh_region_record record;
	uint8_t bytes[WH_KEY_MAX];
	size_t used;

	if (error)
		return error;
	if (!buffer || !length)
		return wh_fail(EINVAL, "wh_region_pack_key: %s is NULL",
			       buffer ? "length" : "buffer");
	if (!region->entry.access)
		return wh_fail(EINVAL,
			       "wh_region_pack_key: region %#llx has access 0: no peer may use it",
			       (unsigned long long)wh_region_entry_id(&region->entry));
	wh_region_record(region, &record);
	used = wh_key_encode(bytes, region->engine->identity.epoch, &record);
	if (used > *length)
		return wh_fail(
			ENOSPC,
			"wh_region_pack_key: the key has %zu bytes, the buffer %zu; WH_KEY_MAX "
			"is always enough",
			used, *length);
	memcpy(buffer, bytes, used);
	*length = used;
	return 0;
}
