/* SPDX-License-Identifier: Apache-2.0 */
/* Stores of metadata are in the module of the registries, which lies beside libwherry.so. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <wherry/engine.h>

#include "compat/mooncake/store.h"

#define MODULE "libwherry-registry.so.0"

int wh_mooncake_store_load(const struct wh_mooncake_store_ops **out)
{
	const struct wh_mooncake_store_ops *ops;
	wh_mooncake_store_fn *entry;
	char path[512] = MODULE;
	const char *slash;
	Dl_info library;
	void *handle;

	if (dladdr((const void *)wh_engine_open, &library) &&
	    (slash = strrchr(library.dli_fname, '/'))) {
		snprintf(path, sizeof(path), "%.*s/" MODULE, (int)(slash - library.dli_fname),
			 library.dli_fname);
		if (access(path, F_OK))
			snprintf(path, sizeof(path), MODULE);
	}
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle)
		return wh_fail(ELIBACC,
			       "cannot open " MODULE ": %.100s; it needs the packages libcurl4, "
			       "libjansson4 and libhiredis0.14",
			       dlerror());
	/* ISO C has no way from a data pointer to a function's. */
	*(void **)&entry = dlsym(handle, "wh_mooncake_store");
	ops = entry ? entry() : NULL;
	if (!ops || ops->version != WH_MOONCAKE_STORE)
		return wh_fail(ELIBACC, MODULE " is of another version of Wherry");
	*out = ops;
	return 0;
}
