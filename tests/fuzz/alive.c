/* SPDX-License-Identifier: Apache-2.0 */
/* A session's word in its owner's alive page. */
#include "fuzz.h"

#include <errno.h>

#include "transport/shm/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct wh_alive_word word = { 0, 0 };
	uint8_t bytes[WH_ALIVE_SIZE];
	int rc = wh_alive_decode(data, size, &word);

	check(rc ? rc == -EPROTO && !word.index :
		   word.index && word.index < WH_ALIVE_WORDS && word.value);
	if (!rc) {
		wh_alive_encode(bytes, word);
		check(!memcmp(bytes, data, WH_ALIVE_SIZE));
	}
	return 0;
}
