/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that wherry serve offers to programs made for Mooncake's transfer engine; and the stores
 * of their metadata. */
#ifndef TOOLS_SERVE_MOONCAKE_H
#define TOOLS_SERVE_MOONCAKE_H

#include <wherry/wherry.h>

#include "command.h"

/* One memory to offer. */
struct mooncake_offer {
	const char *name;
	void *address;
	uint64_t size;
	struct wh_region *region;
	bool on_gpu;
};

struct mooncake_setup {
	const struct arguments *arguments; /* of wherry serve */
	struct wh_engine *engine;
	const struct mooncake_offer *offers;
	size_t count;
	bool writable;
	/* Called on another thread for each notification of a peer; NULL: notifications are not
	 * shown. */
	void (*notified)(void *arg, const char *name, const char *message);
	void *arg;
};

struct mooncake;

/* --mooncake or an option that implies it is given. */
bool mooncake_wanted(const struct arguments *arguments);

/* Check the options for Mooncake. 0, or an exit code. */
int mooncake_check(const struct arguments *arguments);

/* Start to serve, and print a line for each memory. 0, or an exit code. */
int mooncake_start(const struct mooncake_setup *setup, struct mooncake **out);
/* Stop. Takes the exit code so far and returns it, or its own if that is 0. NULL is allowed. */
int mooncake_stop(struct mooncake *mooncake, int code);

/* A store of metadata, for compat/mooncake/store.h. */
struct mooncake_store {
	const struct wh_mooncake_store_ops *ops; /* NULL: not open */
	void *store;
};

/* Open the store at `url`, or at the URL in a file that nobody else may read: "@FILE". 0, or an
 * exit code after a line on stderr. */
int mooncake_store_open(const char *url, struct mooncake_store *store);
/* A store that is not open is left alone. */
void mooncake_store_close(struct mooncake_store *store);

#endif
