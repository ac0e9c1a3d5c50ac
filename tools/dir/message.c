/* SPDX-License-Identifier: Apache-2.0 */
/* The messages between wherry copy and a server of directories, to bytes and back. */
#include "dir/message.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dir/beneath.h"
#include "wire/bytes.h"

#define MAGIC 0x52494457u /* "WDIR" */
#define VERSION 1
#define HEAD 40
#define ITEM 48

int dir_message_decode(const uint8_t *data, size_t size, struct dir_message *out)
{
	struct dir_message message = { 0 };
	size_t at = HEAD;

	if (size < HEAD || wh_get32(data) != MAGIC || (wh_get32(data + 4) & 0xffff) != VERSION ||
	    wh_get32(data + 36))
		return -EPROTO;
	message.op = (uint16_t)(wh_get32(data + 4) >> 16);
	message.directory = wh_get64(data + 8);
	memcpy(message.token, data + 16, DIR_TOKEN);
	message.count = wh_get32(data + 32);
	if (!message.op || message.op >= DIR_OP_END || message.count > (size - HEAD) / ITEM)
		return -EPROTO;
	message.items = calloc((size_t)message.count + 1, sizeof(*message.items));
	if (!message.items)
		return -ENOMEM;
	for (uint32_t i = 0; i < message.count; i++) {
		const uint8_t *from = data + at;
		struct dir_item *item = &message.items[i];

		if (size - at < ITEM || wh_get32(from + 44) ||
		    wh_get32(from + 40) > size - at - ITEM)
			goto err_free;
		item->handle = wh_get64(from);
		item->offset = wh_get64(from + 8);
		item->length = wh_get64(from + 16);
		item->mtime = (int64_t)wh_get64(from + 24);
		item->mode = wh_get32(from + 32);
		item->status = wh_get32(from + 36);
		item->size = wh_get32(from + 40);
		item->bytes = from + ITEM;
		at += ITEM + (size_t)item->size;
	}
	if (at != size)
		goto err_free;
	*out = message;
	return 0;
err_free:
	free(message.items);
	return -EPROTO;
}

/* Room for `more` bytes, or NULL. */
static uint8_t *writer_room(struct dir_writer *writer, size_t more)
{
	size_t room = writer->room;
	uint8_t *data;

	if (writer->failed)
		return NULL;
	while (room - writer->size < more)
		room = 2 * room + 1024;
	if (room > writer->room) {
		data = realloc(writer->data, room);
		if (!data) {
			writer->failed = true;
			return NULL;
		}
		writer->data = data;
		writer->room = room;
	}
	data = writer->data + writer->size;
	writer->size += more;
	return data;
}

void dir_writer_begin(struct dir_writer *writer, const struct dir_message *head)
{
	uint8_t *to;

	*writer = (struct dir_writer){ 0 };
	to = writer_room(writer, HEAD);
	if (!to)
		return;
	wh_put32(to, MAGIC);
	wh_put16(to + 4, VERSION);
	wh_put16(to + 6, head->op);
	wh_put64(to + 8, head->directory);
	memcpy(to + 16, head->token, DIR_TOKEN);
	wh_put32(to + 32, 0);
	wh_put32(to + 36, 0);
}

void dir_writer_add(struct dir_writer *writer, const struct dir_item *item)
{
	uint8_t *to = writer_room(writer, ITEM + (size_t)item->size);

	if (!to)
		return;
	wh_put64(to, item->handle);
	wh_put64(to + 8, item->offset);
	wh_put64(to + 16, item->length);
	wh_put64(to + 24, (uint64_t)item->mtime);
	wh_put32(to + 32, item->mode);
	wh_put32(to + 36, item->status);
	wh_put32(to + 40, item->size);
	wh_put32(to + 44, 0);
	if (item->size)
		memcpy(to + ITEM, item->bytes, item->size);
	wh_put32(writer->data + 32, ++writer->count);
}

void dir_head_encode(uint8_t out[DIR_HEAD_SIZE], uint32_t flags, uint64_t directory)
{
	wh_put64(out, DIR_TAG);
	wh_put32(out + 8, VERSION);
	wh_put32(out + 12, flags);
	wh_put64(out + 16, directory);
}

int dir_head_decode(const uint8_t in[DIR_HEAD_SIZE], uint32_t *flags, uint64_t *directory)
{
	if (wh_get64(in) != DIR_TAG || wh_get32(in + 8) != VERSION)
		return -EPROTO;
	*flags = wh_get32(in + 12);
	*directory = wh_get64(in + 16);
	return 0;
}

void dir_answer_name(const uint8_t token[DIR_TOKEN], char out[DIR_NAME_ROOM])
{
	int used = snprintf(out, DIR_NAME_ROOM, "dir.");

	for (int i = 0; i < DIR_TOKEN; i++)
		used += snprintf(out + used, DIR_NAME_ROOM - (size_t)used, "%02x", token[i]);
}

void dir_file_name(uint64_t handle, char out[DIR_NAME_ROOM])
{
	snprintf(out, DIR_NAME_ROOM, "dir.%016llx", (unsigned long long)handle);
}

int dir_extents_decode(const struct dir_item *item, struct dir_extent *out, size_t *count)
{
	uint64_t end = 0;
	size_t number = item->size / 16;

	if (item->size % 16 || number > DIR_EXTENTS_MAX)
		return -EPROTO;
	for (size_t i = 0; i < number; i++) {
		struct dir_extent extent = { wh_get64(item->bytes + 16 * i),
					     wh_get64(item->bytes + 16 * i + 8) };

		if (extent.offset < end || extent.offset > item->length || !extent.length ||
		    extent.length > item->length - extent.offset)
			return -EPROTO;
		end = extent.offset + extent.length;
		out[i] = extent;
	}
	*count = number;
	return 0;
}

void dir_extents_encode(const struct dir_extent *extents, size_t count, uint8_t *out)
{
	for (size_t i = 0; i < count; i++) {
		wh_put64(out + 16 * i, extents[i].offset);
		wh_put64(out + 16 * i + 8, extents[i].length);
	}
}

static bool part_valid(const char *part, size_t size)
{
	static const char suffix[] = BENEATH_PART_SUFFIX;
	size_t tail = sizeof(suffix) - 1;

	if (!size || size > 255 || (part[0] == '.' && size == 1) ||
	    (size == 2 && part[0] == '.' && part[1] == '.'))
		return false;
	return !(part[0] == '.' && size > tail && !memcmp(part + size - tail, suffix, tail));
}

bool dir_path_valid(const char *path, size_t size)
{
	const char *end = path + size, *slash;

	if (!size || size > DIR_PATH_MAX || memchr(path, 0, size))
		return false;
	for (; (slash = memchr(path, '/', (size_t)(end - path))); path = slash + 1)
		if (!part_valid(path, (size_t)(slash - path)))
			return false;
	return part_valid(path, (size_t)(end - path));
}
