/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which NIXL has loaded the plug-in. NIXL's library does not say its version, and nothing checks
 * that both sides mean the same by the interface. The wheel's folder says it: beside
 * `.nixl_cu12.mesonpy.libs` lies `nixl_cu12-1.5.1.dist-info`.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <wherry/wherry.h>

#include "compat/nixl/adapter.h"
#include "compat/nixl/version.h"

/* The versions of generation-1.h, in thousands: 1.5.1 is 1,005,001. */
#define OLDEST 1000000
#define NEWEST 1005001

/* "1.5.1" as above; 0: it is none. */
static unsigned long version_number(const char *text)
{
	unsigned long number = 0;

	for (int part = 0; part < 3; part++) {
		char *end;
		unsigned long value = strtoul(text, &end, 10);

		if (end == text || value > 999)
			return 0;
		number = number * 1000 + value;
		if (part < 2 && *end != '.')
			return 0;
		text = end + 1;
	}
	return number;
}

bool wh_nixl_version_is_known(const char *version)
{
	unsigned long number = version_number(version);

	return number >= OLDEST && number <= NEWEST;
}

const char *wh_nixl_versions(char out[WH_NIXL_VERSION])
{
	snprintf(out, WH_NIXL_VERSION, "%d.%d.%d to %d.%d.%d", OLDEST / 1000000,
		 OLDEST / 1000 % 1000, OLDEST % 1000, NEWEST / 1000000, NEWEST / 1000 % 1000,
		 NEWEST % 1000);
	return out;
}

void wh_nixl_version_of_wheel(const char *site, const char *libraries, char out[WH_NIXL_VERSION])
{
	const char *end = strstr(libraries, ".mesonpy.libs");
	struct dirent *entry;
	size_t length;
	DIR *folder;

	*out = 0;
	if (libraries[0] != '.' || !end)
		return;
	libraries++;
	length = (size_t)(end - libraries);
	folder = opendir(*site ? site : "/");
	while (folder && (entry = readdir(folder))) {
		const char *name = entry->d_name;
		const char *tail = strstr(name, ".dist-info");

		/* NAME-VERSION.dist-info */
		if (!strncmp(name, libraries, length) && name[length] == '-' && tail)
			snprintf(out, WH_NIXL_VERSION, "%.*s", (int)(tail - name - length - 1),
				 name + length + 1);
	}
	if (folder)
		closedir(folder);
}

bool wh_nixl_is_known(const void *caller)
{
	const char *given = getenv("WHERRY_NIXL_VERSION"), *file = "unknown";
	char folder[PATH_MAX], version[WH_NIXL_VERSION] = "", known[WH_NIXL_VERSION];
	Dl_info found;
	char *slash;

	if (given) {
		snprintf(version, sizeof(version), "%s", given);
	} else if (dladdr(caller, &found) && found.dli_fname && realpath(found.dli_fname, folder)) {
		file = found.dli_fname;
		slash = strrchr(folder, '/');
		if (slash)
			*slash = 0;
		slash = strrchr(folder, '/');
		if (slash) {
			*slash = 0;
			wh_nixl_version_of_wheel(folder, slash + 1, version);
		}
	}
	if (wh_nixl_version_is_known(version))
		return true;
	fprintf(stderr,
		"wherry: the plug-in of Wherry %s is for NIXL %s, and this is %s%s (%s); %s\n",
		wh_version(), wh_nixl_versions(known), *version ? "NIXL " : "no wheel of NIXL",
		version, given ? "WHERRY_NIXL_VERSION" : file,
		*version ?
			"update Wherry, or take one of these" :
			"if it was built from the source of one of these, set WHERRY_NIXL_VERSION");
	return false;
}

const char *wh_nixl_plugin_name(const void *inside)
{
	static char name[64];
	const char *base;
	Dl_info found;
	size_t length;

	if (dladdr(inside, &found) && found.dli_fname) {
		base = strrchr(found.dli_fname, '/');
		base = base ? base + 1 : found.dli_fname;
		length = strlen(base);
		if (!strncmp(base, "libplugin_", 10) && length > 13 && length < sizeof(name) + 13 &&
		    !strcmp(base + length - 3, ".so")) {
			snprintf(name, sizeof(name), "%.*s", (int)length - 13, base + 10);
			return name;
		}
	}
	return "WHERRY";
}
