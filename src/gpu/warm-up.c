/* SPDX-License-Identifier: Apache-2.0 */
/*
 * warm-up.c: prepares the staging of a GPU's memory before its first use: the kernels, which may
 * take seconds to load, the streams to and from host memory with their measured costs, the first
 * slots.
 *
 * The initiator prepares while it plans a batch. For regions that peers may transfer, the owner's
 * warm-up thread prepares, so that publishing a region and accepting a peer do not wait. The thread
 * ends when its list is empty.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/staging.h"
#include "memory/memory.h"
#include "memory/region-table.h"
#include "memory/region.h"
#include "util/error.h"
#include "util/list.h"
#include "util/log.h"
#include "util/thread.h"

struct wh_warm_up {
	struct wh_region_table *table;
	struct wh_gpus *gpus;
	const struct wh_log *log;
	pthread_mutex_t lock; /* guards what follows */
	uint64_t *regions; /* ids, still to be prepared */
	uint32_t count, room; /* of `regions`: used, allocated */
	bool running, stop;
	bool started; /* the thread has to be joined */
	pthread_t thread;
};

int wh_staging_prepare(struct wh_gpus *gpus, const struct wh_registration *registration,
		       enum wh_slot_use use, bool into, bool out_of, bool urgent)
{
	struct wh_gpu_stream *stream;
	int error = wh_slots_prepare(gpus, use);

	for (int i = 0; i < 4 && !error; i++) {
		if (!(i & 1 ? out_of : into) || (i & 2 && !urgent))
			continue;
		error = wh_gpus_stream(gpus, registration->device, wh_staging_context(registration),
				       i & 1 ? WH_BLOCKS_FROM_HOST : WH_BLOCKS_TO_HOST, i & 2,
				       &stream);
		if (!error)
			wh_gpu_stream_probe(stream, 0, 0);
	}
	return error;
}

int wh_staging_prepare_region(struct wh_region_table *regions, struct wh_gpus *gpus,
			      const struct wh_region *region, uint32_t op)
{
	struct wh_region_entry *entry =
		wh_region_entry_enter(regions, wh_region_entry_id(&region->entry));
	int error;

	if (entry && entry->kind == WH_MEMORY_FILE)
		error = wh_slots_prepare_file(gpus, WH_SLOT_FILE_INITIATOR,
					      region->registration->file->system);
	/* The fragment reports that the region is going, or that its memory has been freed, but
	 * only when it has a slot: if there is none at all, it would wait for ever. */
	else if (!entry || wh_kind_on_host(entry->kind) ||
		 wh_registration_check(region->registration))
		error = wh_slots_prepare(gpus, WH_SLOT_INITIATOR);
	else
		error = wh_staging_prepare(gpus, region->registration, WH_SLOT_INITIATOR,
					   op == WH_WRITE, op == WH_READ, true);
	if (entry)
		wh_region_entry_leave(entry);
	return error;
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Inside the region, so that the memory's context exists meanwhile. */
static void warm_up_prepare(const struct wh_warm_up *warm_up, uint64_t id)
{
	struct wh_region_entry *entry = wh_region_entry_enter(warm_up->table, id);
	const struct wh_registration *registration;
	int error;

	if (!entry)
		return;
	registration = wh_container(entry, struct wh_region, entry)->registration;
	error = wh_registration_check(registration);
	if (!error)
		error = wh_staging_prepare(warm_up->gpus, registration, WH_SLOT_OWNER, true, true,
					   false);
	/* The first transfer tries again and reports the error. */
	if (error)
		wh_log_line(
			warm_up->log, WH_LOG_INFO, "gpu",
			"cuda:%d: preparing staging for peers failed, their first transfer tries "
			"again: %s",
			registration->device->ordinal, wh_error_text());
	wh_region_entry_leave(entry);
}

static void *warm_up_thread(void *argument)
{
	struct wh_warm_up *warm_up = argument;
	uint64_t id;

	pthread_mutex_lock(&warm_up->lock);
	while (warm_up->count && !warm_up->stop) {
		id = warm_up->regions[--warm_up->count];
		pthread_mutex_unlock(&warm_up->lock);
		warm_up_prepare(warm_up, id);
		pthread_mutex_lock(&warm_up->lock);
	}
	warm_up->running = false;
	pthread_mutex_unlock(&warm_up->lock);
	return NULL;
}

/* Under the lock. If no thread can be started, the first transfer prepares. */
static void warm_up_start(struct wh_warm_up *warm_up)
{
	if (warm_up->started) /* it has ended or is about to */
		pthread_join(warm_up->thread, NULL);
	warm_up->started = warm_up->running =
		!wh_thread_start(&warm_up->thread, "wherry/warm-up", warm_up_thread, warm_up);
	if (!warm_up->started)
		warm_up->count = 0;
}

void wh_warm_up_region(struct wh_warm_up *warm_up, uint64_t region)
{
	uint32_t room = warm_up && warm_up->room ? 2 * warm_up->room : 16;
	uint64_t *grown;

	if (!warm_up)
		return;
	pthread_mutex_lock(&warm_up->lock);
	if (warm_up->count == warm_up->room && !warm_up->stop) {
		grown = realloc(warm_up->regions, room * sizeof(*grown));
		if (grown) {
			warm_up->regions = grown;
			warm_up->room = room;
		}
	}
	if (warm_up->count < warm_up->room && !warm_up->stop) {
		warm_up->regions[warm_up->count++] = region;
		if (!warm_up->running)
			warm_up_start(warm_up);
	}
	pthread_mutex_unlock(&warm_up->lock);
}

/* ---- opening and closing --------------------------------------------------------------------- */

int wh_warm_up_open(struct wh_region_table *regions, struct wh_gpus *gpus, const struct wh_log *log,
		    struct wh_warm_up **out)
{
	struct wh_warm_up *warm_up = calloc(1, sizeof(*warm_up));

	if (!warm_up)
		return wh_fail(ENOMEM, "no memory for the warm-up of staging");
	warm_up->table = regions;
	warm_up->gpus = gpus;
	warm_up->log = log;
	pthread_mutex_init(&warm_up->lock, NULL);
	*out = warm_up;
	return 0;
}

void wh_warm_up_stop(struct wh_warm_up *warm_up)
{
	bool started;

	if (!warm_up)
		return;
	pthread_mutex_lock(&warm_up->lock);
	warm_up->stop = true;
	started = warm_up->started;
	warm_up->started = false;
	pthread_mutex_unlock(&warm_up->lock);
	if (started)
		pthread_join(warm_up->thread, NULL);
}

void wh_warm_up_close(struct wh_warm_up *warm_up)
{
	if (!warm_up)
		return;
	wh_warm_up_stop(warm_up);
	pthread_mutex_destroy(&warm_up->lock);
	free(warm_up->regions);
	free(warm_up);
}
