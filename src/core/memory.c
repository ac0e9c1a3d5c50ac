/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls for memory: the engine's memory domain does the work. */
#include "memory/memory.h"
#include "core/engine.h"
#include "util/error.h"

int wh_memory_alloc(struct wh_engine *engine, size_t length,
		    const struct wh_memory_options *options, void **out)
{
	int error;

	wh_fail_begin();
	error = wh_engine_guard(engine, "wh_memory_alloc");
	if (!error)
		error = wh_memory_domain_alloc(&engine->memory, length, options, out);
	return wh_fail_end(error);
}

int wh_memory_free(struct wh_engine *engine, void *address)
{
	int error;

	wh_fail_begin();
	error = wh_engine_guard(engine, "wh_memory_free");
	if (!error && address)
		error = wh_memory_domain_free(&engine->memory, address);
	return wh_fail_end(error);
}

int wh_memory_query(struct wh_engine *engine, const void *address, struct wh_memory_info *info)
{
	int error;

	wh_fail_begin();
	error = wh_engine_guard(engine, "wh_memory_query");
	if (!error)
		error = wh_memory_domain_query(&engine->memory, address, info);
	return wh_fail_end(error);
}
