/* SPDX-License-Identifier: Apache-2.0 */
/* The frames that ask another host for fabric handles, and answer. The first byte chooses which. */
#include "fuzz.h"

#include <errno.h>

#include "transport/cuda/wire.h"

static void fuzz_ask(const uint8_t *data, size_t size)
{
	struct wh_fabric_ask ask = { .id = 7 };
	uint8_t bytes[WH_FABRIC_ASK_MAX];
	int rc = wh_fabric_ask_decode(data, size, &ask);

	if (rc) {
		check(rc == -EPROTO && ask.id == 7);
		return;
	}
	check(ask.domain_count && ask.domain_count <= WH_FABRIC_DOMAINS);
	check(wh_fabric_ask_encode(bytes, &ask) == size && !memcmp(bytes, data, size));
}

static void fuzz_answer(const uint8_t *data, size_t size)
{
	struct wh_fabric_answer answer = { .token = 7 };
	uint8_t bytes[WH_FABRIC_ANSWER_MAX];
	int rc = wh_fabric_answer_decode(data, size, &answer);

	if (rc) {
		check(rc == -EPROTO && answer.token == 7);
		return;
	}
	check(answer.domain < WH_FABRIC_DOMAINS);
	check(answer.exported.error || answer.exported.type == WH_HANDLE_FABRIC);
	check_reencoded(bytes, wh_fabric_answer_encode(bytes, &answer), answer.exported.text, data,
			size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (!size)
		return 0;
	if (*data & 1)
		fuzz_ask(data + 1, size - 1);
	else
		fuzz_answer(data + 1, size - 1);
	return 0;
}
