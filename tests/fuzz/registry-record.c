/* SPDX-License-Identifier: Apache-2.0 */
/* An engine's record, as a registry gives it. */
#include "fuzz.h"

#include <errno.h>

#include <wherry/error.h>

#include "rendezvous/registry.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct wh_registry_record record, again;
	char json[WH_REGISTRY_RECORD_MAX];
	size_t length;
	int error = wh_registry_record_parse((const char *)data, size, NULL, &record);

	if (error) {
		check(error == -EINVAL);
		check(*wh_error_text() && !strchr(wh_error_text(), '\n'));
		return 0;
	}
	check(wh_registry_name_valid(record.name) && record.epoch && record.lease > 0);
	length = wh_registry_record_format(&record, json);
	check(length < sizeof(json));
	check(!wh_registry_record_parse(json, length, record.name, &again));
	check(!strcmp(record.address, again.address) && record.epoch == again.epoch &&
	      record.lease == again.lease && record.beat == again.beat);
	check(!memcmp(&record.process, &again.process, sizeof(again.process)));
	return 0;
}
