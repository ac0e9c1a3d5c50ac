/* SPDX-License-Identifier: Apache-2.0 */
/* What etcd answers when it is asked for a key of Mooncake's. */
#include "fuzz.h"

#include <errno.h>

#include <wherry/error.h>

#include "compat/mooncake/store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *value = NULL;
	size_t length;
	int error = wh_mooncake_etcd_value((const char *)data, size, &value, &length);

	if (error) {
		check((error == -EPROTO || error == -ENOENT) && !value && *wh_error_text());
		return 0;
	}
	check(length <= size && !value[length]);
	free(value);
	return 0;
}
