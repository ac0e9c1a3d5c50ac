/* SPDX-License-Identifier: Apache-2.0 */
/* What members of one set of weights tell each other: a hello, and the head of a control block. */
#include "fuzz.h"

#include "util/text.h"
#include "weights/run/message.h"

static void try_hello(const uint8_t *data, size_t size)
{
	struct wh_weights_hello hello, again;
	uint8_t bytes[WH_HELLO_BYTES];

	if (!wh_weights_hello_decode(data, size, &hello))
		return;
	check(size == WH_HELLO_BYTES);
	check(strnlen(hello.url, sizeof(hello.url)) < sizeof(hello.url));
	check(wh_text_is_clean(hello.url, strlen(hello.url)));
	wh_weights_hello_encode(&hello, bytes);
	check(wh_weights_hello_decode(bytes, sizeof(bytes), &again));
	check(!memcmp(&hello, &again, sizeof(hello)));
}

static void try_head(const uint8_t *data, size_t size)
{
	uint64_t words[WH_HEAD_WORDS];
	struct wh_weights_head head;

	if (size != WH_HEAD_BYTES)
		return;
	memcpy(words, data, sizeof(words));
	if (!wh_weights_head_decode(words, 2, 5, &head))
		return;
	for (int i = 0; i < WH_COPY_SLOTS; i++)
		check(!head.slots[i].version == !head.slots[i].state &&
		      head.slots[i].state <= WH_COPY_WHOLE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	try_hello(data, size);
	try_head(data, size);
	return 0;
}
