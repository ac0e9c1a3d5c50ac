/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between wherry spread and its receivers. What is taken can be shown, and written again
 * it is the same. */
#include "../../tools/spread/message.c"

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t room = size + HEAD + ITEM + sizeof(struct spread_item);
	struct spread_message message;
	uint8_t *again;

	if (spread_message_decode(data, size, &message))
		return 0;
	again = malloc(room);
	check(again);
	for (uint32_t i = 0; i < message.count; i++)
		for (int k = 0; k < TEXTS; k++) {
			size_t most;
			const char *text = item_text(&message.items[i], k, &most);

			check(strlen(text) < most && wh_text_is_clean(text, strlen(text)));
		}
	check(spread_message_encode(&message, again, room) == size && !memcmp(again, data, size));
	free(again);
	free(message.items);
	return 0;
}
