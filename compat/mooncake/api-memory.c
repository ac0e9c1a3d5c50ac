/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory: a region of the Wherry engine, and a buffer of the segment that Mooncake's
 * engines see. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compat/mooncake/api.h"

/* ---- the table ----------------------------------------------------------------------------- */

/* The number of memories that start at `address` or below. */
static size_t memory_upper_bound(const struct te_engine *engine, uint64_t address)
{
	size_t low = 0, high = engine->memory_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (engine->memories[middle]->address <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct te_memory *te_memory_find(struct te_engine *engine, uint64_t address, uint64_t length)
{
	size_t index = memory_upper_bound(engine, address);
	struct te_memory *memory = index ? engine->memories[index - 1] : NULL;

	if (!memory || memory->leaving || length > memory->length ||
	    address - memory->address > memory->length - length)
		return NULL;
	return memory;
}

/* Insert it in the table, unless it overlaps another. Under the lock. */
static int memory_insert(struct te_engine *engine, struct te_memory *memory, const char *call)
{
	size_t index = memory_upper_bound(engine, memory->address);
	const struct te_memory *before = index ? engine->memories[index - 1] : NULL;
	const struct te_memory *behind =
		index < engine->memory_count ? engine->memories[index] : NULL;
	struct te_memory **more;

	if (before && memory->address - before->address >= before->length)
		before = NULL;
	if (behind && behind->address - memory->address >= memory->length)
		behind = NULL;
	if (before || behind)
		return te_fail(TE_OVERLAP,
			       "%s: 0x%" PRIx64 " of %" PRIu64 " bytes overlaps with 0x%" PRIx64
			       " of %" PRIu64 " bytes, which is registered",
			       call, memory->address, memory->length,
			       (before ? before : behind)->address,
			       (before ? before : behind)->length);
	more = realloc(engine->memories, (engine->memory_count + 1) * sizeof(struct te_memory *));
	if (!more)
		return te_fail(TE_MEMORY, "%s: no memory", call);
	engine->memories = more;
	memmove(more + index + 1, more + index, (engine->memory_count - index) * sizeof(*more));
	more[index] = memory;
	engine->memory_count++;
	return 0;
}

/* Under the lock. */
static void memory_remove(struct te_engine *engine, const struct te_memory *memory)
{
	size_t index = memory_upper_bound(engine, memory->address) - 1;

	engine->memory_count--;
	memmove(engine->memories + index, engine->memories + index + 1,
		(engine->memory_count - index) * sizeof(*engine->memories));
}

/* ---- memory of 0 bytes --------------------------------------------------------------------- */

static int empty_enter(struct te_engine *engine, uint64_t address, const char *call)
{
	uint64_t *more;

	pthread_mutex_lock(&engine->lock);
	more = realloc(engine->empty, (engine->empty_count + 1) * sizeof(*more));
	if (more) {
		more[engine->empty_count++] = address;
		engine->empty = more;
	}
	pthread_mutex_unlock(&engine->lock);
	return more ? 0 : te_fail(TE_MEMORY, "%s: no memory", call);
}

/* False: there is none. */
static bool empty_leave(struct te_engine *engine, uint64_t address)
{
	size_t i = 0;
	bool found;

	pthread_mutex_lock(&engine->lock);
	while (i < engine->empty_count && engine->empty[i] != address)
		i++;
	found = i < engine->empty_count;
	if (found)
		engine->empty[i] = engine->empty[--engine->empty_count];
	pthread_mutex_unlock(&engine->lock);
	return found;
}

/* ---- publishing ---------------------------------------------------------------------------- */

int te_memory_copy(void *arg, const struct wh_mooncake_memory *memory, uint64_t offset,
		   size_t length, bool to_memory)
{
	struct te_engine *engine = arg;

	return wh_mooncake_staging_copy(&engine->staging, memory->arg, offset, length, to_memory);
}

static int memory_publish_in_store(struct te_engine *engine)
{
	char *segment = wh_mooncake_describe(engine->server, engine->endpoint.host);
	int error;

	if (!segment)
		return te_fail(TE_MEMORY, "no memory");
	pthread_mutex_lock(&engine->store_lock);
	error = wh_mooncake_publish(engine->store_ops, engine->store, engine->name, segment,
				    &engine->endpoint);
	pthread_mutex_unlock(&engine->store_lock);
	free(segment);
	return error ? te_fail(TE_METADATA, "%s", wh_fail_text()) : 0;
}

int te_memory_publish_again(struct te_engine *engine)
{
	int error = 0;

	pthread_mutex_lock(&engine->publishing);
	if (engine->in_store)
		error = memory_publish_in_store(engine);
	pthread_mutex_unlock(&engine->publishing);
	return error;
}

/* Make room for `more` memories in the lists that are published: in the next one, and in the one
 * after it, so that what is registered can always be withdrawn. With `publishing` held. */
static int memory_reserve(struct te_engine *engine, size_t more, const char *call)
{
	size_t room = engine->memory_count + more;
	struct wh_mooncake_memory *next = calloc(room, sizeof(*next));
	struct wh_mooncake_memory *then = calloc(room, sizeof(*then));

	if (!next || !then) {
		free(next);
		free(then);
		return te_fail(TE_MEMORY, "%s: no memory", call);
	}
	free(engine->spare[0]);
	free(engine->spare[1]);
	engine->spare[0] = next;
	engine->spare[1] = then;
	return 0;
}

/* Publish the table's memory to Mooncake's engines; `store`: in the store, too. Without the store
 * it cannot fail. With `publishing` held. */
static int memory_publish(struct te_engine *engine, bool store)
{
	struct wh_mooncake_memory *served = engine->spare[0];
	size_t count = 0;

	pthread_mutex_lock(&engine->lock);
	for (size_t i = 0; i < engine->memory_count; i++) {
		const struct te_memory *memory = engine->memories[i];

		if (!memory->published || memory->leaving)
			continue;
		served[count] = (struct wh_mooncake_memory){
			.address = memory->address,
			.length = memory->length,
			.writable = true,
			.staged = memory->staged,
			.arg = memory->region,
		};
		memcpy(served[count++].name, memory->name, sizeof(memory->name));
	}
	pthread_mutex_unlock(&engine->lock);
	wh_mooncake_update(engine->server, served, count, engine->staging.memory);
	/* The list before has room enough, unless some was made for more. */
	engine->spare[0] = engine->spare[1] ? engine->spare[1] : engine->served;
	if (engine->spare[1])
		free(engine->served);
	engine->spare[1] = NULL;
	engine->served = served;
	return store && engine->in_store ? memory_publish_in_store(engine) : 0;
}

/* ---- registering --------------------------------------------------------------------------- */

void te_region_name(uint64_t address, char out[32])
{
	snprintf(out, 32, "mooncake-%" PRIx64, address);
}

/* Can the CPU access it in place? If not, it is staged. */
static int memory_learn_location(struct te_engine *engine, struct te_memory *memory,
				 const char *call)
{
	struct wh_memory_info info = { .size = sizeof(info) };
	int error = wh_memory_query(engine->wherry, (void *)(uintptr_t)memory->address, &info);

	if (error)
		return te_fail_wherry(error, call);
	memory->staged = info.host_address != memory->address;
	if (!memory->staged || engine->staging.memory)
		return 0;
	error = wh_mooncake_staging_open(engine->wherry, TE_STAGING, &engine->staging);
	return error ? te_fail_mooncake(error, call) : 0;
}

static int memory_enter(struct te_engine *engine, void *address, size_t length, bool published,
			const char *call)
{
	struct wh_region_options options = {
		.size = sizeof(options),
		.access = published ? WH_ACCESS_READ | WH_ACCESS_WRITE : 0,
	};
	struct te_memory *memory;
	int error;

	if (!length)
		return empty_enter(engine, (uintptr_t)address, call);
	memory = calloc(1, sizeof(*memory));
	if (!memory)
		return te_fail(TE_MEMORY, "%s: no memory", call);
	*memory = (struct te_memory){
		.address = (uintptr_t)address,
		.length = length,
		.published = published,
		.leaving = true,
	};
	/* `leaving` keeps requests away until the registration is complete. */
	pthread_mutex_lock(&engine->lock);
	error = memory_insert(engine, memory, call);
	pthread_mutex_unlock(&engine->lock);
	if (error) {
		free(memory);
		return error;
	}
	te_region_name(memory->address, memory->name);
	options.name = memory->name;
	error = memory_learn_location(engine, memory, call);
	if (!error) {
		error = wh_region_register(engine->wherry, address, length, &options,
					   &memory->region);
		if (error)
			error = te_fail_wherry(error, call);
	}
	pthread_mutex_lock(&engine->lock);
	memory->leaving = false;
	if (error)
		memory_remove(engine, memory);
	pthread_mutex_unlock(&engine->lock);
	if (error)
		free(memory);
	return error;
}

static int memory_check(const void *address, size_t length, const char *call)
{
	if (!address && length)
		return te_fail(TE_ARGUMENT, "%s: the address is NULL", call);
	if (length > UINTPTR_MAX - (uintptr_t)address)
		return te_fail(TE_ARGUMENT, "%s: %p and %zu bytes go past the end of all addresses",
			       call, address, length);
	return 0;
}

/* Unregister it, unless a request uses it. With `publishing` held. */
static int memory_leave(struct te_engine *engine, uint64_t address, const char *call)
{
	struct te_memory *memory;
	size_t index;
	bool used;
	int error;

	pthread_mutex_lock(&engine->lock);
	index = memory_upper_bound(engine, address);
	memory = index ? engine->memories[index - 1] : NULL;
	if (!memory || memory->address != address) {
		pthread_mutex_unlock(&engine->lock);
		if (empty_leave(engine, address))
			return 0;
		return te_fail(TE_NOT_REGISTERED,
			       "%s: no memory is registered that starts at 0x%" PRIx64, call,
			       address);
	}
	memory->leaving = true;
	used = memory->uses;
	pthread_mutex_unlock(&engine->lock);
	memory_publish(engine, false);
	if (used)
		return te_fail(TE_BUSY,
			       "%s: requests of this engine use 0x%" PRIx64
			       "; wait for them and call again",
			       call, address);
	error = wh_region_unregister(memory->region);
	if (error)
		return te_fail_wherry(error, call);
	pthread_mutex_lock(&engine->lock);
	memory_remove(engine, memory);
	pthread_mutex_unlock(&engine->lock);
	free(memory);
	return 0;
}

static int memory_register_all(struct te_engine *engine, const struct buffer_entry *entries,
			       size_t count, bool published, const char *call)
{
	size_t done = 0;
	int error = 0;

	for (size_t i = 0; !error && i < count; i++)
		error = memory_check(entries[i].addr, entries[i].length, call);
	if (error)
		return error;
	pthread_mutex_lock(&engine->publishing);
	error = count ? memory_reserve(engine, count, call) : 0;
	for (; !error && done < count; done += !error)
		error = memory_enter(engine, entries[done].addr, entries[done].length, published,
				     call);
	if (!error)
		error = memory_publish(engine, true);
	if (error) {
		char text[WH_TEXT_MAX];

		snprintf(text, sizeof(text), "%s", wh_fail_text());
		while (done--)
			if (entries[done].length)
				memory_leave(engine, (uintptr_t)entries[done].addr, call);
			else
				empty_leave(engine, (uintptr_t)entries[done].addr);
		te_fail(error, "%s", text);
	}
	pthread_mutex_unlock(&engine->publishing);
	return error;
}

static int memory_unregister_all(struct te_engine *engine, void *const *addresses, size_t count,
				 const char *call)
{
	char text[WH_TEXT_MAX] = "";
	int error = 0;

	pthread_mutex_lock(&engine->publishing);
	for (size_t i = 0; i < count; i++) {
		int each = memory_leave(engine, (uintptr_t)addresses[i], call);

		if (each && !error) {
			error = each;
			snprintf(text, sizeof(text), "%s", wh_fail_text());
		}
	}
	if (!error) {
		error = memory_publish(engine, true);
	} else {
		memory_publish(engine, true);
		te_fail(error, "%s", text);
	}
	pthread_mutex_unlock(&engine->publishing);
	return error;
}

int registerLocalMemory(transfer_engine_t engine, void *addr, size_t length, const char *location,
			int remote_accessible)
{
	struct buffer_entry entry = { .addr = addr, .length = length };

	(void)location;
	if (!engine)
		return te_fail(TE_ARGUMENT, "registerLocalMemory: engine is NULL");
	if (te_forked(engine, "registerLocalMemory"))
		return TE_ARGUMENT;
	return memory_register_all(engine, &entry, 1, remote_accessible, "registerLocalMemory");
}

int unregisterLocalMemory(transfer_engine_t engine, void *addr)
{
	if (!engine)
		return te_fail(TE_ARGUMENT, "unregisterLocalMemory: engine is NULL");
	if (te_forked(engine, "unregisterLocalMemory"))
		return TE_ARGUMENT;
	return memory_unregister_all(engine, &addr, 1, "unregisterLocalMemory");
}

int registerLocalMemoryBatch(transfer_engine_t engine, buffer_entry_t *buffer_list,
			     size_t buffer_len, const char *location)
{
	(void)location;
	if (!engine || (!buffer_list && buffer_len))
		return te_fail(TE_ARGUMENT, "registerLocalMemoryBatch: %s is NULL",
			       engine ? "buffer_list" : "engine");
	if (te_forked(engine, "registerLocalMemoryBatch"))
		return TE_ARGUMENT;
	return memory_register_all(engine, buffer_list, buffer_len, true,
				   "registerLocalMemoryBatch");
}

int unregisterLocalMemoryBatch(transfer_engine_t engine, void **addr_list, size_t addr_len)
{
	if (!engine || (!addr_list && addr_len))
		return te_fail(TE_ARGUMENT, "unregisterLocalMemoryBatch: %s is NULL",
			       engine ? "addr_list" : "engine");
	if (te_forked(engine, "unregisterLocalMemoryBatch"))
		return TE_ARGUMENT;
	return memory_unregister_all(engine, addr_list, addr_len, "unregisterLocalMemoryBatch");
}

void te_memory_free(struct te_engine *engine)
{
	for (size_t i = 0; i < engine->memory_count; i++) {
		wh_region_unregister(engine->memories[i]->region);
		free(engine->memories[i]);
	}
	free(engine->memories);
	free(engine->empty);
	free(engine->served);
	free(engine->spare[0]);
	free(engine->spare[1]);
	wh_mooncake_staging_close(&engine->staging);
}
