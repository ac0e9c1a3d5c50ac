/* SPDX-License-Identifier: Apache-2.0 */
/* What `wherry nixl` reads of files that may be anybody's: the note of a file that may be the
 * plug-in, and pyvenv.cfg. */
#include "fuzz.h"

#include "nixl/find.c"
#include "nixl/marker.c"

/* find.c reports to people; here nobody reads it. */
int fail(int error, const char *format, ...)
{
	(void)format;
	return error;
}

int usage_error(const char *format, ...)
{
	(void)format;
	return EXIT_USAGE;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char version[WH_NIXL_VERSION] = "";
	struct nixl_venv venv;
	char *text = malloc(size + 1);

	if (nixl_marker_read(data, size, version))
		check(!*version);
	else
		check(*version && memchr(version, 0, sizeof(version)) &&
		      wh_text_is_clean(version, strlen(version)));
	check(text);
	memcpy(text, data, size);
	text[size] = 0;
	nixl_venv_parse(text, &venv);
	check(strlen(venv.home) < sizeof(venv.home));
	free(text);
	return 0;
}
