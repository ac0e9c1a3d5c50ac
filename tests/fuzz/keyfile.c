/* SPDX-License-Identifier: Apache-2.0 */
/* The text of a key file. */
#include "fuzz.h"

#include <errno.h>

#include "net/keyfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1);
	struct wh_keys keys;
	uint8_t again[WH_KEY_SIZE];
	int error;

	if (!text)
		return 0;
	memcpy(text, data, size);
	text[size] = '\0';
	error = wh_keys_parse(text, "the file", &keys);
	check(!error || error == -EINVAL);
	check(error || (keys.count >= 1 && keys.count <= WH_KEYS_MAX));
	/* What is in a line is in a setting as well. */
	memcpy(text, data, size);
	if (!strchr(text, '\n') && *text != '#' && wh_key_parse(text, again))
		check(!error && keys.count == 1 && !memcmp(again, keys.key[0], sizeof(again)));
	free(text);
	return 0;
}
