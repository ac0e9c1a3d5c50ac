/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries that are opened at run time: the world has a libibverbs, a libcuda and a registry's
 * module, and no other one that has to do with GPUs. */
#include <dlfcn.h>
#include <string.h>

#include "calls.h"
#include "world.h"

#define NONE "libwherry-none.so" /* no machine has it */

/* Libraries of the world: whose they are, and how a function is found. */
static const struct {
	void *(*library)(const char *path);
	void *(*function)(const void *handle, const char *name);
	const char *name;
} libraries[] = {
	{ nic_library, nic_function, "libibverbs.so.1" },
	{ gpu_library, gpu_function, "libcuda.so.1" },
	{ registry_library, registry_function, "libwherry-registry.so.0" },
};

#define LIBRARIES (sizeof(libraries) / sizeof(*libraries))

void *sim_dlopen(const char *path, int flags)
{
	for (size_t i = 0; path && i < LIBRARIES; i++) {
		void *found = libraries[i].library(path);

		if (found)
			return found;
	}
	if (path && (strncmp(path, "libnvidia", 9) == 0 || strncmp(path, "libcu", 5) == 0))
		path = NONE;
	return dlopen(path, flags);
}

/* The library of a handle; LIBRARIES: not one of the world's. */
static size_t library_of(const void *handle)
{
	size_t i = 0;

	while (i < LIBRARIES && handle != libraries[i].library(libraries[i].name))
		i++;
	return i;
}

void *sim_dlsym(void *handle, const char *name)
{
	size_t i = library_of(handle);

	return i < LIBRARIES ? libraries[i].function(handle, name) : dlsym(handle, name);
}

int sim_dlclose(void *handle)
{
	return library_of(handle) < LIBRARIES ? 0 : dlclose(handle);
}
