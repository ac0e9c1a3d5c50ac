/* SPDX-License-Identifier: Apache-2.0 */
/* The name of a unix socket, as a peer sends it in WELCOME. */
#include "fuzz.h"

#include <errno.h>
#include <stdlib.h>

#include "net/meet.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct wh_meet_folders none = { 0 };
	char why[WH_REFUSAL], *name = malloc(size + 1);
	bool valid;

	if (!name)
		return 0;
	memcpy(name, data, size);
	name[size] = 0;
	valid = wh_meet_name_valid(name);
	if (valid) {
		check(strlen(name) == WH_MEET_NAME - 1);
		check(!strchr(name, '/') && !strchr(name, '.'));
	}
	/* What is not a name is looked for nowhere. */
	check(wh_meet_find(&none, name, why) == (valid ? -ENOENT : -EPROTO));
	free(name);
	return 0;
}
