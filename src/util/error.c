/* SPDX-License-Identifier: Apache-2.0 */
/* The public wh_error_text() and wh_version(). */
#include "util/error.h"

#include <wherry/error.h>

#define TEXT(x) #x
#define VERSION(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)

const char *wh_error_text(void)
{
	return wh_fail_text();
}

const char *wh_version(void)
{
	return VERSION(WH_VERSION_MAJOR, WH_VERSION_MINOR, WH_VERSION_PATCH);
}
