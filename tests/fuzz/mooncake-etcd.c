/* SPDX-License-Identifier: Apache-2.0 */
/* etcd's answer to a request for one of Mooncake's keys: the value, or why there is none. */
#include "fuzz.h"

#include <errno.h>

#include <wherry/error.h>

#include "rendezvous/etcd.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *value = NULL;
	size_t length;
	int error = wh_etcd_parse_value((const char *)data, size, &value, &length);

	if (error) {
		check((error == -EPROTO || error == -ENOENT) && !value && *wh_error_text());
		return 0;
	}
	check(length <= size && !value[length]);
	free(value);
	return 0;
}
