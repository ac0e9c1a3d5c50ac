/* SPDX-License-Identifier: Apache-2.0 */
/* Stores of Mooncake's metadata are in the module of the registries, which lies beside libwherry.so. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine.h"
#include "mooncake.h"
#include "mooncake/store.h"

#define MODULE "libwherry-registry.so.0"
#define TIMEOUT 5000 /* ms */

static int load(const struct wh_mooncake_store_ops **out)
{
	wh_mooncake_store_fn *entry;
	char path[512] = MODULE;
	const char *slash;
	Dl_info library;
	void *handle;

	if (dladdr((const void *)wh_engine_open, &library) && (slash = strrchr(library.dli_fname, '/'))) {
		snprintf(path, sizeof(path), "%.*s/" MODULE, (int)(slash - library.dli_fname),
			 library.dli_fname);
		if (access(path, F_OK))
			snprintf(path, sizeof(path), MODULE);
	}
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle)
		return fail(ENODEV, "--mooncake-metadata: cannot open " MODULE ": %s; it needs the packages "
			    "libcurl4, libjansson4 and libhiredis0.14", dlerror());
	/* ISO C has no way from a data pointer to a function's. */
	*(void **)&entry = dlsym(handle, "wh_mooncake_store");
	*out = entry ? entry() : NULL;
	if (!*out || (*out)->version != WH_MOONCAKE_STORE)
		return fail(ENODEV, "--mooncake-metadata: " MODULE " is of another version of Wherry");
	return 0;
}

int mooncake_store_open(const char *url, struct mooncake_store *store)
{
	const struct wh_mooncake_store_ops *ops;
	int code = load(&ops);

	if (code)
		return code;
	if (ops->open(url, TIMEOUT, &store->store))
		return usage_error("--mooncake-metadata: %s", ops->text());
	store->ops = ops;
	return 0;
}

void mooncake_store_close(struct mooncake_store *store)
{
	if (store->ops)
		store->ops->close(store->store);
	store->ops = NULL;
}
