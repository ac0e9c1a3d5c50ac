/* SPDX-License-Identifier: Apache-2.0 */
/* The mark in the plug-in's file by which `wherry nixl` knows it and its version. */
#include <wherry/error.h>

#include "compat/nixl/version.h"

#define TEXT(number) TEXT_OF(number)
#define TEXT_OF(number) #number

/* Strip keeps it, and a section of this name is a note for every linker. */
extern const struct wh_nixl_marker wh_nixl_marker;
__attribute__((section(".note.wherry.nixl"), used, aligned(4)))
const struct wh_nixl_marker wh_nixl_marker = {
	.name_size = sizeof(WH_NIXL_MARKER),
	.version_size = WH_NIXL_VERSION,
	.type = WH_NIXL_MARKER_TYPE,
	.name = WH_NIXL_MARKER,
	.version = TEXT(WH_VERSION_MAJOR) "." TEXT(WH_VERSION_MINOR) "." TEXT(WH_VERSION_PATCH),
};
