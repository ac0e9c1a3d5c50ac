/* SPDX-License-Identifier: Apache-2.0 */
/* gds.c: files and GPU memory by GPUDirect Storage */
#include "transport/cuda/gds.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <wherry/transfer.h>

#include "memory/file.h"
#include "platform/cufile.h"
#include "transport/core.h"
#include "transport/cuda/cuda.h"
#include "util/config.h"
#include "util/error.h"

enum state { UNTRIED, READY, REFUSED };

struct wh_gds {
	struct wh_device_mappings *mappings;
	pthread_mutex_t lock; /* of what follows */
	enum state state;
	struct wh_cufile cufile;
	char why[WH_REFUSAL];
};

struct wh_file_gds {
	struct wh_gds *gds;
	struct wh_file *file;
	pthread_mutex_t lock; /* of what follows */
	enum state state;
	cufile_handle handle; /* NULL: not registered */
	char why[WH_REFUSAL]; /* of the last use, if it moved nothing */
};

/* ---- the engine's part ----------------------------------------------------------------------- */

struct wh_gds *wh_gds_new(struct wh_device_mappings *mappings)
{
	const char *path = wh_engine_config(mappings->engine)->text[WH_SETTING_CUFILE];
	struct wh_gds *gds;

	if (!strcmp(path, "off") || !strcmp(path, "no"))
		return NULL;
	gds = calloc(1, sizeof(*gds));
	if (!gds)
		return NULL;
	gds->mappings = mappings;
	pthread_mutex_init(&gds->lock, NULL);
	return gds;
}

void wh_gds_free(struct wh_gds *gds)
{
	if (!gds)
		return;
	wh_cufile_close(&gds->cufile);
	pthread_mutex_destroy(&gds->lock);
	free(gds);
}

/* Open the library, once. */
static bool gds_ready(struct wh_gds *gds, char why[WH_REFUSAL])
{
	const char *path = wh_engine_config(gds->mappings->engine)->text[WH_SETTING_CUFILE];
	bool ready;

	pthread_mutex_lock(&gds->lock);
	if (gds->state == UNTRIED) {
		gds->state = wh_cufile_open(&gds->cufile, strcmp(path, "auto") ? path : NULL) ?
				     REFUSED :
				     READY;
		if (gds->state == REFUSED)
			snprintf(gds->why, sizeof(gds->why), "%.*s", WH_REFUSAL - 1,
				 wh_error_text());
	}
	ready = gds->state == READY;
	if (!ready)
		memcpy(why, gds->why, WH_REFUSAL);
	pthread_mutex_unlock(&gds->lock);
	return ready;
}

/* ---- files ----------------------------------------------------------------------------------- */

struct wh_file_gds *wh_file_gds_new(struct wh_gds *gds, struct wh_file *file)
{
	struct wh_file_gds *new = gds ? calloc(1, sizeof(*new)) : NULL;

	if (!new)
		return NULL;
	new->gds = gds;
	new->file = file;
	pthread_mutex_init(&new->lock, NULL);
	return new;
}

void wh_file_gds_close(struct wh_file_gds *gds)
{
	if (!gds)
		return;
	if (gds->handle)
		gds->gds->cufile.cuFileHandleDeregister(gds->handle);
	pthread_mutex_destroy(&gds->lock);
	free(gds);
}

/* Register the file with the library. Under the lock. */
static enum state file_register(struct wh_file_gds *gds)
{
	struct cufile_descriptor descriptor = { .type = CUFILE_TYPE_FD };
	struct cufile_status status;

	if (!gds_ready(gds->gds, gds->why))
		return REFUSED;
	descriptor.handle.fd = wh_file_open_direct(gds->file);
	if (descriptor.handle.fd < 0) {
		snprintf(gds->why, sizeof(gds->why), "the file system refuses O_DIRECT");
		return REFUSED;
	}
	status = gds->gds->cufile.cuFileHandleRegister(&gds->handle, &descriptor);
	if (!status.error)
		return READY;
	gds->handle = NULL;
	wh_cufile_fail("cuFileHandleRegister", status.error, gds->file->name);
	snprintf(gds->why, sizeof(gds->why), "%.*s", WH_REFUSAL - 1, wh_error_text());
	return REFUSED;
}

bool wh_file_gds_ready(struct wh_file_gds *gds)
{
	bool ready;

	pthread_mutex_lock(&gds->lock);
	if (gds->state == UNTRIED)
		gds->state = file_register(gds);
	ready = gds->state == READY;
	pthread_mutex_unlock(&gds->lock);
	return ready;
}

/* ---- moving ---------------------------------------------------------------------------------- */

/* Move all bytes; the library may move fewer at a time. *refused: it is not the file system that
 * has failed. */
static int file_move(struct wh_file_gds *gds, uint32_t op, uint64_t at, uint64_t address,
		     uint64_t length, bool *refused)
{
	const struct wh_cufile *cufile = &gds->gds->cufile;
	const char *call = op == WH_READ ? "cuFileRead" : "cuFileWrite";
	unsigned long long next, end = at + length;

	for (uint64_t done = 0; done < length;) {
		void *memory = (void *)(uintptr_t)(address + done);
		ssize_t got = op == WH_READ ?
				      cufile->cuFileRead(gds->handle, memory, length - done,
							 (off_t)(at + done), 0) :
				      cufile->cuFileWrite(gds->handle, memory, length - done,
							  (off_t)(at + done), 0);

		if (got > 0) {
			done += (uint64_t)got;
		} else if (!got) {
			return wh_fail(EIO, "%s %s: it has been made shorter than %llu bytes", call,
				       gds->file->name, end);
		} else if (got < -1) {
			*refused = true;
			return wh_cufile_fail(call, (int)-got, gds->file->name);
		} else if (errno != EINTR) {
			next = at + done;
			return wh_fail(errno ? errno : EIO, "%s of %s at offset %llu: %s", call,
				       gds->file->name, next, strerror(errno));
		}
	}
	return 0;
}

/* `why`: NULL if it has moved bytes. `ends`: it will not be tried again. */
static void file_note(struct wh_file_gds *gds, const char *why, bool ends)
{
	pthread_mutex_lock(&gds->lock);
	snprintf(gds->why, sizeof(gds->why), "%.*s", WH_REFUSAL - 1, why ? why : "");
	if (ends)
		gds->state = REFUSED;
	pthread_mutex_unlock(&gds->lock);
}

int wh_file_gds_move(struct wh_file_gds *gds, uint32_t op, uint64_t offset,
		     const struct wh_device_mapping *mapping, uint64_t address, uint64_t length)
{
	struct wh_cuda *cuda = wh_gpus_cuda(gds->gds->mappings->gpus);
	uint64_t at = gds->file->start + offset;
	struct wh_cuda_scope scope;
	bool refused = false;
	int error = wh_cuda_enter_context(cuda, mapping->device, mapping->context, &scope);

	if (error)
		return error;
	if (op == WH_WRITE)
		error = wh_file_begin_direct(gds->file, at + length);
	if (!error) {
		error = file_move(gds, op, at, address, length, &refused);
		if (op == WH_WRITE)
			error = wh_file_end_direct(gds->file, at + length, error);
	}
	wh_cuda_leave(&scope);
	file_note(gds, error ? wh_error_text() : NULL, refused);
	return error;
}

void wh_file_gds_skip(struct wh_file_gds *gds, const char *why)
{
	file_note(gds, why, false);
}

bool wh_file_gds_describe(struct wh_file_gds *gds, char *why, size_t size)
{
	bool used;

	pthread_mutex_lock(&gds->lock);
	snprintf(why, size, "%s", gds->why);
	used = gds->state == READY && !*gds->why;
	pthread_mutex_unlock(&gds->lock);
	return used;
}
