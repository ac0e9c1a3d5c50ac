/* SPDX-License-Identifier: Apache-2.0 */
/* The messages between wherry spread and a server of weights, to bytes and back. */
#include "spread/message.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/text.h"
#include "wire/bytes.h"

#define MAGIC 0x52505357u /* "WSPR" */
#define VERSION 1
#define HEAD 56
#define TEXTS 5
#define ITEM (8 + 2 * TEXTS) /* and its texts */

/* A text of an item, and its room with the NUL. */
static char *item_text(struct spread_item *item, int index, size_t *room)
{
	char *const texts[TEXTS] = { item->name, item->url, item->host, item->location,
				     item->text };
	static const size_t rooms[TEXTS] = { sizeof(item->name), sizeof(item->url),
					     sizeof(item->host), sizeof(item->location),
					     sizeof(item->text) };

	*room = rooms[index];
	return texts[index];
}

/* Take a text at *at. False: it does not fit, or must not be shown. */
static bool take_text(const uint8_t *data, size_t size, size_t *at, char *out, size_t room)
{
	size_t length;

	if (size - *at < 2)
		return false;
	length = data[*at] | (size_t)data[*at + 1] << 8;
	*at += 2;
	if (length >= room || length > size - *at ||
	    !wh_text_is_clean((const char *)data + *at, length))
		return false;
	memcpy(out, data + *at, length);
	*at += length;
	return true;
}

static bool take_item(const uint8_t *data, size_t size, size_t *at, struct spread_item *item)
{
	if (size - *at < 8)
		return false;
	item->bytes = wh_get64(data + *at);
	*at += 8;
	for (int i = 0; i < TEXTS; i++) {
		size_t room;
		char *text = item_text(item, i, &room);

		if (!take_text(data, size, at, text, room))
			return false;
	}
	return true;
}

int spread_message_decode(const uint8_t *data, size_t size, struct spread_message *out)
{
	struct spread_message message = { 0 };
	size_t at = HEAD;

	if (size < HEAD || wh_get32(data) != MAGIC || (wh_get32(data + 4) & 0xffff) != VERSION)
		return -EPROTO;
	message.op = (uint16_t)(wh_get32(data + 4) >> 16);
	memcpy(message.token, data + 8, SPREAD_TOKEN);
	message.size = wh_get64(data + 24);
	message.chunk = wh_get64(data + 32);
	message.piece = wh_get64(data + 40);
	message.status = wh_get32(data + 48);
	message.count = wh_get32(data + 52);
	if (!message.op || message.op >= SPREAD_OP_END || message.count > (size - HEAD) / ITEM)
		return -EPROTO;
	message.items = calloc((size_t)message.count + 1, sizeof(*message.items));
	if (!message.items)
		return -ENOMEM;
	for (uint32_t i = 0; i < message.count; i++)
		if (!take_item(data, size, &at, &message.items[i]))
			goto err_free;
	if (at != size)
		goto err_free;
	*out = message;
	return 0;
err_free:
	free(message.items);
	return -EPROTO;
}

size_t spread_message_encode(const struct spread_message *message, uint8_t *out, size_t room)
{
	uint8_t *to = out;

	if (room < HEAD)
		return 0;
	to = wh_put32(to, MAGIC);
	to = wh_put16(to, VERSION);
	to = wh_put16(to, message->op);
	to = wh_put_bytes(to, message->token, SPREAD_TOKEN);
	to = wh_put64(to, message->size);
	to = wh_put64(to, message->chunk);
	to = wh_put64(to, message->piece);
	to = wh_put32(to, message->status);
	to = wh_put32(to, message->count);
	for (uint32_t i = 0; i < message->count; i++) {
		struct spread_item item = message->items[i];

		if (room - (size_t)(to - out) < ITEM + sizeof(item))
			return 0;
		to = wh_put64(to, item.bytes);
		for (int k = 0; k < TEXTS; k++) {
			size_t most;
			char *text = item_text(&item, k, &most);

			wh_text_clean(text);
			to = wh_put16(to, (uint16_t)strlen(text));
			to = wh_put_bytes(to, text, strlen(text));
		}
	}
	return (size_t)(to - out);
}

#define DEFAULT_PART (UINT64_C(64) << 20)
#define DEFAULT_PIECE (UINT64_C(4) << 20)

const char *spread_sizes_wrong(const struct spread_message *offer, uint64_t receivers)
{
	if (offer->chunk && offer->chunk < DEFAULT_PART &&
	    offer->size / offer->chunk >= SPREAD_PARTS / (receivers ? receivers : 1))
		return "the chunks are too small for so large a file and so many receivers";
	if (offer->piece && offer->piece < DEFAULT_PIECE &&
	    offer->size / offer->piece >= SPREAD_PIECES)
		return "the pieces are too small for so large a file";
	return NULL;
}
