/* SPDX-License-Identifier: Apache-2.0 */
/* Loading libcufile, looking up its functions, and finding out whether it would only copy through
 * bounce buffers, which this library does by itself. */
#include "platform/cufile.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "util/error.h"

_Static_assert(sizeof(struct cufile_properties) == 56, "as in cufile.h");
_Static_assert(sizeof(struct cufile_descriptor) == 24, "as in cufile.h");

static const struct meaning {
	int code, error;
	const char *text;
} meanings[] = {
	{ 5001, ENODEV, "nvidia-fs is not loaded" },
	{ 5004, ELIBBAD, "the versions of nvidia-fs and libcufile do not match" },
	{ 5007, EOPNOTSUPP, "this platform has no GPUDirect Storage" },
	{ 5008, EOPNOTSUPP, "GPUDirect Storage does not support the file" },
	{ 5009, EOPNOTSUPP, "GPUDirect Storage does not support the GPU" },
	{ 5011, EIO, "the CUDA driver reports an error" },
	{ 5012, EFAULT, "invalid device pointer" },
	{ 5014, EFAULT, "the range exceeds the memory's allocation" },
	{ 5018, EOPNOTSUPP, "unsupported type of file" },
	{ 5020, EINVAL, "the descriptor lacks O_DIRECT" },
	{ 5022, EINVAL, "invalid arguments" },
	{ 5025, EACCES, "permission denied" },
	{ 5034, EOPNOTSUPP, "GPUDirect Storage is switched off for the file" },
	{ 5036, ENOMEM, "the GPU's memory cannot be pinned" },
};

int wh_cufile_fail(const char *call, int error, const char *what)
{
	const struct meaning *meaning = NULL;

	for (size_t i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++)
		if (meanings[i].code == error)
			meaning = &meanings[i];
	return wh_fail(meaning ? meaning->error : EIO, "%s%s%s: %s (cuFile %d)", call,
		       *what ? " of " : "", what, meaning ? meaning->text : "an error of cuFile",
		       error);
}

static int cufile_missing(const char *what)
{
	const char *why = dlerror();

	return wh_fail(ELIBACC, "no cuFile: %s: %.110s", what, why ? why : "not found");
}

static bool cufile_bind(struct wh_cufile *cufile, const char *name, void *function)
{
	void *found = dlsym(cufile->library, name);

	memcpy(function, &found, sizeof(found));
	return found;
}

static bool cufile_parameter(const struct wh_cufile *cufile, int parameter)
{
	bool set = false;

	return cufile->cuFileGetParameterBool &&
	       !cufile->cuFileGetParameterBool(parameter, &set).error && set;
}

/* In compatibility mode it reads into host memory and copies from there. Where it is allowed, it
 * may do so for any file, and does not say. */
static int cufile_check_mode(const struct wh_cufile *cufile)
{
	struct cufile_properties is = { 0 };
	struct cufile_status status = cufile->cuFileDriverGetProperties(&is);
	bool p2p = is.features & CUFILE_FEATURE_P2P &&
		   cufile_parameter(cufile, CUFILE_PARAMETER_USE_P2PDMA);

	if (status.error)
		return wh_cufile_fail("cuFileDriverGetProperties", status.error, "");
	if (cufile_parameter(cufile, CUFILE_PARAMETER_FORCE_COMPAT))
		return wh_fail(EOPNOTSUPP, "cuFile is in compatibility mode: force_compat_mode is "
					   "set in cufile.json");
	if (!is.nvfs.major && !is.nvfs.minor && !p2p)
		return wh_fail(EOPNOTSUPP, "cuFile is in compatibility mode: nvidia-fs is not "
					   "loaded, and use_pci_p2pdma is not set");
	if (is.nvfs.control & CUFILE_CONTROL_ALLOW_COMPAT)
		return wh_fail(EOPNOTSUPP, "cuFile may be in compatibility mode for any file: set "
					   "properties.allow_compat_mode to false in cufile.json");
	return 0;
}

static int cufile_open_driver(struct wh_cufile *cufile)
{
	struct cufile_status status;

#define X(result, name, arguments)                                                                 \
	if (!cufile_bind(cufile, #name, &cufile->name))                                            \
		return cufile_missing(#name);
	WH_CUFILE_FUNCTIONS(X)
#undef X
	/* The first version closed the driver for all users. */
	cufile_bind(cufile, "cuFileDriverClose_v2", &cufile->cuFileDriverClose);
	if (!cufile->cuFileDriverClose)
		cufile_bind(cufile, "cuFileDriverClose", &cufile->cuFileDriverClose);
	cufile_bind(cufile, "cuFileGetParameterBool", &cufile->cuFileGetParameterBool);
	status = cufile->cuFileDriverOpen();
	if (status.error)
		return wh_cufile_fail("cuFileDriverOpen", status.error, "");
	cufile->opened = true;
	return cufile_check_mode(cufile);
}

int wh_cufile_open(struct wh_cufile *cufile, const char *path)
{
	const char *name = path ? path : "libcufile.so.0";
	int error;

	memset(cufile, 0, sizeof(*cufile));
	/* NODELETE: it has threads. */
	cufile->library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!cufile->library)
		return cufile_missing("dlopen");
	error = cufile_open_driver(cufile);
	if (error)
		wh_cufile_close(cufile);
	return error;
}

void wh_cufile_close(struct wh_cufile *cufile)
{
	if (cufile->opened)
		cufile->cuFileDriverClose();
	if (cufile->library)
		dlclose(cufile->library);
	memset(cufile, 0, sizeof(*cufile));
}
