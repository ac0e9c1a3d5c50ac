/* SPDX-License-Identifier: Apache-2.0 */
/* wherry serve --mooncake. Peers' requests read and write host memory in place; GPU memory goes
 * through a few hundred KiB of host memory, which the engine copies. */
#include "serve/mooncake.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compat/mooncake/mooncake.h"
#include "compat/mooncake/staging.h"
#include "compat/mooncake/store.h"
#include "engine.h"

#define STAGING (512 << 10)

struct mooncake {
	const struct mooncake_offer *offers;
	struct wh_mooncake_memory *memories; /* one for each offer */
	size_t count;
	void (*notified)(void *arg, const char *name, const char *message);
	void *arg;
	struct wh_mooncake_server *server;
	struct wh_engine *engine;
	struct mooncake_store store;
	char name[WH_MOONCAKE_NAME_MAX]; /* in the metadata store */
	bool published;
	struct wh_mooncake_endpoint control;
	struct wh_mooncake_keeper *keeper; /* NULL: there is no store */
	pthread_mutex_t store_lock;
	/* for GPU memory; all zero: none is offered */
	struct wh_mooncake_staging staging;
};

bool mooncake_wanted(const struct arguments *arguments)
{
	return argument(arguments, "mooncake") || argument(arguments, "mooncake-listen") ||
	       argument(arguments, "mooncake-metadata");
}

int mooncake_check(const struct arguments *arguments)
{
	const char *name = argument(arguments, "mooncake-name");

	if (name && !argument(arguments, "mooncake-metadata"))
		return usage_error(
			"--mooncake-name needs --mooncake-metadata: without it the name is the "
			"address");
	if (name && (!*name || strlen(name) >= WH_MOONCAKE_NAME_MAX))
		return usage_error("--mooncake-name: a name must have 1 to %d bytes",
				   WH_MOONCAKE_NAME_MAX - 1);
	for (const char *c = name; c && *c; c++)
		if (*c <= ' ' || *c >= 0x7f)
			return usage_error("--mooncake-name: '%s' is not one word of ASCII", name);
	return 0;
}

/* ---- GPU memory ------------------------------------------------------------------------------ */

static int staging_copy(void *arg, const struct wh_mooncake_memory *memory, uint64_t offset,
			size_t length, bool to_memory)
{
	struct mooncake *mooncake = arg;

	return wh_mooncake_staging_copy(&mooncake->staging, memory->arg, offset, length, to_memory);
}

static int open_staging(struct mooncake *mooncake)
{
	int error = wh_mooncake_staging_open(mooncake->engine, STAGING, &mooncake->staging);

	return error ? fail(error, "cannot get memory between Mooncake and the GPU: %s",
			    wh_fail_text()) :
		       0;
}

static int close_staging(struct mooncake *mooncake, int code)
{
	int error = wh_mooncake_staging_close(&mooncake->staging);

	if (error && !code)
		code = fail(error, "cannot free the memory between Mooncake and the GPU: %s",
			    wh_fail_text());
	return code;
}

/* ---- the server ---------------------------------------------------------------------------- */

static void print_log(void *arg, const char *line)
{
	(void)arg;
	note("mooncake: %s", line);
}

static int print_notified(void *arg, const char *name, const char *message)
{
	const struct mooncake *mooncake = arg;

	mooncake->notified(mooncake->arg, name, message);
	return 0;
}

static int mooncake_describe(struct mooncake *mooncake, bool writable)
{
	bool gpu = false;

	mooncake->memories = calloc(mooncake->count, sizeof(*mooncake->memories));
	if (!mooncake->memories)
		return fail(ENOMEM, "out of memory");
	for (size_t i = 0; i < mooncake->count; i++) {
		const struct mooncake_offer *offer = &mooncake->offers[i];
		struct wh_mooncake_memory *memory = &mooncake->memories[i];

		memory->address = (uintptr_t)offer->address;
		memory->length = offer->size;
		memory->writable = writable;
		memory->staged = offer->on_gpu;
		memory->arg = offer->region;
		snprintf(memory->name, sizeof(memory->name), "%s", offer->name);
		gpu = gpu || offer->on_gpu;
	}
	return gpu ? open_staging(mooncake) : 0;
}

static int mooncake_write(void *arg)
{
	struct mooncake *mooncake = arg;
	char *segment = wh_mooncake_describe(mooncake->server, mooncake->control.host);
	int error;

	if (!segment)
		return wh_fail(ENOMEM, "out of memory");
	pthread_mutex_lock(&mooncake->store_lock);
	error = wh_mooncake_publish(mooncake->store.ops, mooncake->store.store, mooncake->name,
				    segment, &mooncake->control);
	pthread_mutex_unlock(&mooncake->store_lock);
	free(segment);
	return error;
}

/* Publish the metadata, so that engines that use this store find the server. */
static int mooncake_publish(struct mooncake *mooncake, const char *url, const char *name)
{
	struct wh_mooncake_keeper_setup keeper = {
		.store_lock = &mooncake->store_lock,
		.name = mooncake->name,
		.endpoint = &mooncake->control,
		.publish = mooncake_write,
		.log = print_log,
		.arg = mooncake,
	};
	int code, error;

	if (!url)
		return 0;
	/* The server has formatted this address itself. */
	wh_mooncake_endpoint_read(wh_mooncake_control(mooncake->server), &mooncake->control);
	if (!strcmp(mooncake->control.host, "0.0.0.0") || !strcmp(mooncake->control.host, "::"))
		return usage_error(
			"--mooncake-listen: with --mooncake-metadata it must be an address that "
			"other hosts reach, not %s",
			mooncake->control.host);
	snprintf(mooncake->name, sizeof(mooncake->name), "%s",
		 name ? name : wh_mooncake_control(mooncake->server));
	code = mooncake_store_open(url, &mooncake->store);
	if (code)
		return code;
	error = mooncake_write(mooncake);
	mooncake->published = !error;
	keeper.ops = mooncake->store.ops;
	keeper.store = mooncake->store.store;
	if (!error)
		error = wh_mooncake_keeper_start(&keeper, &mooncake->keeper);
	return error ? fail(error, "--mooncake-metadata: %s", wh_fail_text()) : 0;
}

static int mooncake_withdraw(struct mooncake *mooncake, int code)
{
	int error = 0;

	wh_mooncake_keeper_stop(mooncake->keeper);
	if (mooncake->published)
		error = wh_mooncake_withdraw(mooncake->store.ops, mooncake->store.store,
					     mooncake->name);
	if (error && !code)
		code = fail(error, "--mooncake-metadata: cannot remove %s from the store: %s",
			    mooncake->name, wh_fail_text());
	mooncake_store_close(&mooncake->store);
	return code;
}

static int mooncake_announce(const struct mooncake *mooncake, bool writable)
{
	const char *control = wh_mooncake_control(mooncake->server);

	for (size_t i = 0; i < mooncake->count; i++)
		printf("mooncake://%s/0x%" PRIx64 " %" PRIu64 " %s\n", control,
		       mooncake->memories[i].address, mooncake->memories[i].length,
		       mooncake->memories[i].name);
	if (fflush(stdout))
		return fail(errno, "cannot write to standard output: %s", strerror(errno));
	note("anybody who reaches %s and %s can %s the memory served: Mooncake's protocol "
	     "has no keys",
	     control, wh_mooncake_data(mooncake->server), writable ? "read and write" : "read");
	return 0;
}

int mooncake_start(const struct mooncake_setup *setup, struct mooncake **out)
{
	const char *listen = argument(setup->arguments, "mooncake-listen");
	struct mooncake *mooncake = calloc(1, sizeof(*mooncake));
	const char *metadata = argument(setup->arguments, "mooncake-metadata");
	const char *name = argument(setup->arguments, "mooncake-name");
	struct wh_mooncake_server_options options = {
		.listen = listen ? listen : "127.0.0.1:0",
		.name = name,
	};
	int code, error;

	if (!mooncake)
		return fail(ENOMEM, "out of memory");
	*out = mooncake;
	mooncake->offers = setup->offers;
	mooncake->count = setup->count;
	mooncake->engine = setup->engine;
	mooncake->notified = setup->notified;
	mooncake->arg = setup->arg;
	pthread_mutex_init(&mooncake->store_lock, NULL);
	code = mooncake_describe(mooncake, setup->writable);
	if (code)
		return code;
	options.memories = mooncake->memories;
	options.count = mooncake->count;
	options.staging = mooncake->staging.memory;
	options.staging_size = STAGING;
	options.copy = staging_copy;
	options.notified = setup->notified ? print_notified : NULL;
	options.log = argument(setup->arguments, "verbose") ? print_log : NULL;
	options.arg = mooncake;
	error = wh_mooncake_serve(&options, &mooncake->server);
	if (error == -EINVAL)
		return usage_error("--mooncake-listen: %s", wh_fail_text());
	if (error)
		return fail(error, "%s", wh_fail_text());
	code = mooncake_publish(mooncake, metadata, name);
	return code ? code : mooncake_announce(mooncake, setup->writable);
}

int mooncake_stop(struct mooncake *mooncake, int code)
{
	if (!mooncake)
		return code;
	code = mooncake_withdraw(mooncake, code);
	wh_mooncake_stop(mooncake->server);
	code = close_staging(mooncake, code);
	pthread_mutex_destroy(&mooncake->store_lock);
	free(mooncake->memories);
	free(mooncake);
	return code;
}
