/* SPDX-License-Identifier: Apache-2.0 */
/* core/file.c: registering files: the public calls of wherry/file.h */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <wherry/file.h>

#include "core/engine.h"
#include "core/file.h"
#include "core/region.h"
#include "gpu/pinned.h"
#include "memory/file-ring.h"
#include "memory/file.h"
#include "memory/memory.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/options.h"

static const char call[] = "wh_file_register";

int wh_engine_check_files(const struct wh_config *config)
{
	const char *cold = config->text[WH_SETTING_FILE_COLD];
	const char *pages = config->text[WH_SETTING_FILE_PAGES];
	const char *writes = config->text[WH_SETTING_FILE_WRITES];

	if (strcmp(cold, "direct") != 0 && strcmp(cold, "ring") != 0 && strcmp(cold, "pread") != 0)
		return wh_fail(EINVAL, "file_cold=%s: known are direct, ring and pread", cold);
	if (strcmp(pages, "auto") != 0 && strcmp(pages, "keep") != 0 &&
	    strcmp(pages, "once") != 0 && strcmp(pages, "off") != 0)
		return wh_fail(EINVAL, "file_pages=%s: known are auto, keep, once and off", pages);
	if (strcmp(writes, "cached") != 0 && strcmp(writes, "direct") != 0)
		return wh_fail(EINVAL, "file_writes=%s: known are cached and direct", writes);
	return 0;
}

/* Under engine.files_lock. It may wait for who drives an engine without threads, and that one for
 * engine.lock. */
static int engine_make_files(struct wh_engine *engine)
{
	const char *cold = engine->config.text[WH_SETTING_FILE_COLD];
	struct wh_memory_domain *domain = &engine->memory;
	struct wh_file_threads *threads;
	int error;

	domain->file_writes_direct = !strcmp(engine->config.text[WH_SETTING_FILE_WRITES], "direct");
	if (strcmp(cold, "pread") != 0) {
		domain->file_rings = malloc(sizeof(*domain->file_rings));
		if (!domain->file_rings)
			return wh_fail(ENOMEM, "%s: no memory", call);
		wh_file_rings_init(domain->file_rings, wh_gpus_file_buffers(engine->gpus));
		domain->file_direct = !strcmp(cold, "direct");
	}
	error = wh_file_threads_open((unsigned)engine->config.number[WH_SETTING_FILE_THREADS],
				     engine->turns, &threads);
	if (!error) {
		atomic_store(&domain->file_threads, threads);
		return 0;
	}
	if (domain->file_rings)
		wh_file_rings_destroy(domain->file_rings);
	free(domain->file_rings);
	domain->file_rings = NULL;
	return error;
}

/* What reads and writes files is made for the first one. */
static int engine_open_files(struct wh_engine *engine)
{
	int error = 0;

	pthread_mutex_lock(&engine->files_lock);
	if (!atomic_load(&engine->memory.file_threads))
		error = engine_make_files(engine);
	pthread_mutex_unlock(&engine->files_lock);
	return error;
}

static int file_try_register(struct wh_engine *engine, const char *path, int fd,
			     const struct wh_file_options *given, struct wh_region **out)
{
	struct wh_registration *registration;
	struct wh_region_request request;
	struct wh_file_options options;
	int64_t begun = wh_now();
	int error = wh_engine_guard(engine, call);

	if (error)
		return error;
	if (!out)
		return wh_fail(EINVAL, "%s: out is NULL", call);
	error = wh_options_copy(&options, sizeof(options), given, sizeof(size_t), call);
	if (!error)
		error = wh_region_request_parse(&request, options.region, call);
	if (error)
		return error;
	if (request.access & WH_ACCESS_WRITE && !(options.flags & WH_FILE_WRITE))
		error = wh_fail(EACCES, "%s: access WRITE takes WH_FILE_WRITE in options.flags",
				call);
	if (!error)
		error = engine_open_files(engine);
	if (!error)
		error = wh_file_registration(&engine->memory, path, fd, &options, &registration);
	if (error) {
		wh_region_request_drop(&request);
		return error;
	}
	return wh_region_add(engine, &request, registration, begun, out);
}

int wh_file_register(struct wh_engine *engine, const char *path,
		     const struct wh_file_options *options, struct wh_region **out)
{
	if (!path)
		return wh_fail(EINVAL, "%s: path is NULL", call);
	wh_fail_begin();
	return wh_fail_end(file_try_register(engine, path, -1, options, out));
}

int wh_file_register_fd(struct wh_engine *engine, int fd, const struct wh_file_options *options,
			struct wh_region **out)
{
	wh_fail_begin();
	return wh_fail_end(file_try_register(engine, NULL, fd, options, out));
}
