/* SPDX-License-Identifier: Apache-2.0 */
/* The plug-in that came with this command, found by where the command lies. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <wherry/error.h>

#include "command.h"
#include "nixl/nixl.h"

/* From the command's folder: where it is installed, and in a build's folder. */
static const char *const folders[] = { NIXL_PLUGIN_FOLDER, "../compat" };

#define FILE_NAME "libplugin_WHERRY.so"

/* Where the plug-in is expected: "PATH or PATH". */
static int plugin_missing(const char *here)
{
	return fail(ENOENT,
		    "the plug-in is not part of this installation: there is no %s/" FILE_NAME
		    " (seen from %s); Wherry was built without it (-Dnixl=), or its package is "
		    "missing",
		    folders[0], here);
}

int nixl_plugin_load(struct nixl_plugin *out)
{
	char here[PATH_MAX], version[WH_NIXL_VERSION], *slash;
	ssize_t length = readlink("/proc/self/exe", here, sizeof(here) - 1);
	int error = -ENOENT;

	here[length > 0 ? length : 0] = 0;
	slash = strrchr(here, '/');
	if (!slash)
		return fail(ENOENT, "/proc/self/exe cannot be read");
	*slash = 0;
	for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]) && error == -ENOENT; i++) {
		bool absolute = folders[i][0] == '/';

		if (snprintf(out->path, sizeof(out->path), "%s%s%s/" FILE_NAME,
			     absolute ? "" : here, absolute ? "" : "/",
			     folders[i]) < (int)sizeof(out->path))
			error = nixl_file_read(AT_FDCWD, out->path, &out->bytes, &out->length);
	}
	if (error == -ENOENT)
		return plugin_missing(here);
	if (error)
		return fail(error, "cannot read %s: %s", out->path, strerror(-error));
	if (!nixl_marker_read(out->bytes, out->length, out->version) &&
	    !strcmp(out->version, wh_version()))
		return 0;
	snprintf(version, sizeof(version), "%s", *out->version ? out->version : "none");
	free(out->bytes);
	out->bytes = NULL;
	return fail(EPROTONOSUPPORT,
		    "%s is not the plug-in of Wherry %s (its version: %s); install Wherry anew",
		    out->path, wh_version(), version);
}
