/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries that are opened at run time: the world has a libibverbs and a registry's module. */
#include <dlfcn.h>

#include "calls.h"
#include "world.h"

static void *worlds_library(const char *path)
{
	void *found = nic_library(path);

	return found ? found : registry_library(path);
}

void *sim_dlopen(const char *path, int flags)
{
	void *found = path ? worlds_library(path) : NULL;

	return found ? found : dlopen(path, flags);
}

static bool is_worlds(const void *handle)
{
	return handle == nic_library("libibverbs.so.1") ||
	       handle == registry_library("libwherry-registry.so.0");
}

void *sim_dlsym(void *handle, const char *name)
{
	void *found;

	if (!is_worlds(handle))
		return dlsym(handle, name);
	found = nic_function(handle, name);
	return found ? found : registry_function(handle, name);
}

int sim_dlclose(void *handle)
{
	return is_worlds(handle) ? 0 : dlclose(handle);
}
