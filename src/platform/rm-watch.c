/* SPDX-License-Identifier: Apache-2.0 */
/* Opening libwherry-rm-watch.so, and the export that it watches. */
#include "platform/rm-watch.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <wherry/error.h>

#include "platform/cuda.h"
#include "platform/rm.h"
#include "util/error.h"

#define MODULE "libwherry-rm-watch.so.0"

/* Is it beside the library at `library`, or, if that is in a directory of its own, further up? */
static bool watch_path_beside(const char *library, char *path, size_t size)
{
	static const char *const where[] = { "", "../../../" };
	const char *slash = strrchr(library, '/');

	for (size_t i = 0; slash && i < sizeof(where) / sizeof(where[0]); i++) {
		snprintf(path, size, "%.*s/%s" MODULE, (int)(slash - library), library, where[i]);
		if (!access(path, F_OK))
			return true;
	}
	return false;
}

/* The module's path: beside this library, or beside the file that its name links to; else the bare
 * name, for the loader to search. */
static void watch_path(char *path, size_t size)
{
	char *real;
	Dl_info here;
	bool found = false;

	if (dladdr((const void *)wh_rm_watch_open, &here)) {
		real = realpath(here.dli_fname, NULL);
		found = watch_path_beside(here.dli_fname, path, size) ||
			(real && watch_path_beside(real, path, size));
		free(real);
	}
	if (!found)
		snprintf(path, size, MODULE);
}

int wh_rm_watch_open(const struct wh_rm_watch_module **out)
{
	const struct wh_rm_watch_module *module;
	wh_rm_watch_module_fn *entry;
	char path[512];
	void *handle;

	watch_path(path, sizeof(path));
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle)
		return wh_fail(ELIBACC,
			       "cannot open " MODULE ", which the backend rm-watch needs: %.120s",
			       dlerror());
	/* ISO C cannot convert a data pointer to a function pointer. */
	*(void **)&entry = dlsym(handle, "wh_rm_watch_module");
	module = entry ? entry() : NULL;
	if (!module || module->version != WH_RM_WATCH_MODULE)
		return wh_fail(ELIBACC, MODULE " belongs to another version of Wherry");
	*out = module;
	return 0;
}

/* ---- learning -------------------------------------------------------------------------------- */

struct export_request {
	struct wh_cuda *cuda;
	uint64_t address, length;
	int result;
};

/* The result does not matter if the module has seen the request. */
static void watch_export(void *arg)
{
	struct export_request *asked = arg;
	int fd = -1;

	asked->result = asked->cuda->cuMemGetHandleForAddressRange(
		&fd, asked->address, asked->length, CUDA_RANGE_DMA_BUF, 0);
	if (!asked->result && fd >= 0)
		close(fd);
}

int wh_rm_watch(const struct wh_rm_watch_module *module, struct wh_cuda *cuda, uint64_t address,
		uint64_t length, struct wh_rm_parts *out)
{
	struct export_request asked = { .cuda = cuda, .address = address, .length = length };
	char why[200] = "";
	int error;

	if (!cuda->cuMemGetHandleForAddressRange)
		return wh_cuda_missing(cuda, "cuMemGetHandleForAddressRange");
	memset(out, 0, sizeof(*out));
	error = module->watch(cuda->library, watch_export, &asked, out, why, sizeof(why));
	if (error)
		return wh_fail(error, "0x%llx bytes at 0x%llx: %s", (unsigned long long)length,
			       (unsigned long long)address, why);
	if (out->count)
		return 0;
	if (asked.result)
		return wh_cuda_check(cuda, asked.result, "cuMemGetHandleForAddressRange",
				     "0x%llx bytes at 0x%llx", (unsigned long long)length,
				     (unsigned long long)address);
	return wh_fail(EOPNOTSUPP,
		       "libcuda exported memory without a visible request; use another backend");
}
