/* SPDX-License-Identifier: Apache-2.0 */
/* Which versions of NIXL the plug-in is for, and the mark by which its file is known. For the
 * plug-in, and for `wherry nixl`, which installs it. Any thread may call the functions. */
#ifndef WH_COMPAT_NIXL_VERSION_H
#define WH_COMPAT_NIXL_VERSION_H

#include <stdbool.h>
#include <stdint.h>

#define WH_NIXL_VERSION 32 /* room for a version as text, with its NUL */

/* Is `version`, such as "1.5.1", one whose interface the plug-in has? */
bool wh_nixl_version_is_known(const char *version);

/* Write those versions as text, "1.0.0 to 1.5.1". Returns `out`. */
const char *wh_nixl_versions(char out[WH_NIXL_VERSION]);

/* The version of the wheel whose libraries lie in `site`/`libraries`, ".NAME.mesonpy.libs": beside
 * them is NAME-VERSION.dist-info. "" if there is none, or if `libraries` has another form. Reads
 * the folder `site`. */
void wh_nixl_version_of_wheel(const char *site, const char *libraries, char out[WH_NIXL_VERSION]);

/* The ELF note in the file of the plug-in (marker.c): name and type, then the version of Wherry
 * that it belongs to, with a NUL. */
#define WH_NIXL_MARKER "Wherry"
#define WH_NIXL_MARKER_TYPE 0x6c78696e /* "nixl" */

struct wh_nixl_marker {
	uint32_t name_size, version_size, type; /* as in Elf64_Nhdr */
	char name[8];
	char version[WH_NIXL_VERSION];
};

#endif
