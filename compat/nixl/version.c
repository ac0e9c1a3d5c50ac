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

/* The version of the wheel whose library lies in `folder`, "SITE/.NAME.mesonpy.libs", as text. */
static void version_of_wheel(char *folder, char out[32])
{
	char *base = strrchr(folder, '/'), *end;
	struct dirent *entry;
	size_t length;
	DIR *site;

	*out = 0;
	if (!base || base[1] != '.' || !(end = strstr(base, ".mesonpy.libs")))
		return;
	*base = 0;
	base += 2;
	length = (size_t)(end - base);
	site = opendir(*folder ? folder : "/");
	while (site && (entry = readdir(site))) {
		const char *name = entry->d_name;
		const char *tail = strstr(name, ".dist-info");

		/* NAME-VERSION.dist-info */
		if (!strncmp(name, base, length) && name[length] == '-' && tail)
			snprintf(out, 32, "%.*s", (int)(tail - name - length - 1),
				 name + length + 1);
	}
	if (site)
		closedir(site);
}

bool wh_nixl_is_known(const void *caller)
{
	const char *given = getenv("WHERRY_NIXL_VERSION"), *file = "unknown";
	char folder[PATH_MAX], version[32] = "";
	unsigned long number;
	Dl_info found;
	char *slash;

	if (given) {
		snprintf(version, sizeof(version), "%s", given);
	} else if (dladdr(caller, &found) && found.dli_fname && realpath(found.dli_fname, folder)) {
		file = found.dli_fname;
		slash = strrchr(folder, '/');
		if (slash)
			*slash = 0;
		version_of_wheel(folder, version);
	}
	number = version_number(version);
	if (number >= OLDEST && number <= NEWEST)
		return true;
	fprintf(stderr,
		"wherry: the plug-in of Wherry %s is for NIXL 1.0.0 to 1.5.1, and this is %s%s "
		"(%s); "
		"%s\n",
		wh_version(), *version ? "NIXL " : "no wheel of NIXL", version,
		given ? "WHERRY_NIXL_VERSION" : file,
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
