/* SPDX-License-Identifier: Apache-2.0 */
/* Opening libwherry-registry.so: the registries and Mooncake's metadata stores are in it. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "rendezvous/registry.h"

#define MODULE "libwherry-registry.so.0"

int wh_registry_module_load(const void *beside, const char *name, void **out)
{
	char path[512] = MODULE;
	const char *slash;
	Dl_info library;
	void *handle;

	if (dladdr(beside, &library) && (slash = strrchr(library.dli_fname, '/'))) {
		snprintf(path, sizeof(path), "%.*s/" MODULE, (int)(slash - library.dli_fname),
			 library.dli_fname);
		if (access(path, F_OK))
			snprintf(path, sizeof(path), MODULE);
	}
	/* Never closed: the libraries that it needs register exit handlers. */
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle)
		return wh_fail(ELIBACC,
			       "cannot open " MODULE ": %.100s; install libwherry0-registry, or "
			       "what it needs: libcurl4, libjansson4 and libhiredis0.14",
			       dlerror());
	*out = dlsym(handle, name);
	return *out ? 0 : wh_fail(ELIBACC, MODULE " is from another version of Wherry");
}
