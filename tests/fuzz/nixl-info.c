/* SPDX-License-Identifier: Apache-2.0 */
/* Connection info of an agent, as NIXL delivers it. */
#include "fuzz.h"

#include <errno.h>

#include "compat/nixl/info.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char text[WH_NIXL_INFO_MAX], again[WH_NIXL_INFO_MAX];
	struct wh_nixl_info info, twice;
	size_t length;
	int rc = wh_nixl_info_decode((const char *)data, size, &info);

	if (rc) {
		check(rc == -EPROTO || rc == -EPROTONOSUPPORT || rc == -EBADMSG);
		return 0;
	}
	check(*info.name && info.epoch && *info.host && info.url_count <= WH_NIXL_INFO_URLS);
	check(wh_text_is_clean(info.name, strlen(info.name)));
	check(wh_text_is_clean(info.host, strlen(info.host)));
	for (unsigned i = 0; i < info.url_count; i++)
		check(!strncmp(info.url[i], "wherry://", 9) &&
		      wh_text_is_clean(info.url[i], strlen(info.url[i])));
	/* What was understood is what is written. */
	length = wh_nixl_info_encode(&info, text);
	check(length < sizeof(text) && length == strlen(text));
	check(!wh_nixl_info_decode(text, length, &twice));
	check(wh_nixl_info_encode(&twice, again) == length && !memcmp(text, again, length));
	return 0;
}
