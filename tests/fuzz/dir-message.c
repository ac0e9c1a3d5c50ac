/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between wherry copy and a server of directories. What is taken has items in the message,
 * extents in their file, and paths that lead nowhere else; written again it is the same. */
#include "../../tools/dir/message.c"

#include "fuzz.h"

static void check_path(const char *path, size_t size)
{
	char text[DIR_PATH_MAX + 3];

	if (!dir_path_valid(path, size))
		return;
	check(size && size <= DIR_PATH_MAX && !memchr(path, 0, size));
	snprintf(text, sizeof(text), "/%.*s/", (int)size, path);
	check(!strstr(text, "//") && !strstr(text, "/../") && !strstr(text, "/./"));
}

static void check_extents(const struct dir_item *item)
{
	struct dir_extent extents[DIR_EXTENTS_MAX];
	uint8_t again[DIR_EXTENTS_MAX * 16];
	uint64_t end = 0;
	size_t count;

	if (dir_extents_decode(item, extents, &count))
		return;
	for (size_t i = 0; i < count; i++) {
		check(extents[i].offset >= end && extents[i].length);
		check(!__builtin_add_overflow(extents[i].offset, extents[i].length, &end));
		check(end <= item->length);
	}
	dir_extents_encode(extents, count, again);
	check(item->size == count * 16 && !memcmp(again, item->bytes, count * 16));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct dir_message message;
	struct dir_writer writer;
	uint64_t directory;
	uint32_t flags;

	if (size >= DIR_HEAD_SIZE && !dir_head_decode(data, &flags, &directory)) {
		uint8_t again[DIR_HEAD_SIZE];

		dir_head_encode(again, flags, directory);
		check(!memcmp(again, data, sizeof(again)));
	}
	check_path((const char *)data, size);
	if (dir_message_decode(data, size, &message))
		return 0;
	dir_writer_begin(&writer, &message);
	for (uint32_t i = 0; i < message.count; i++) {
		const struct dir_item *item = &message.items[i];

		check(item->bytes >= data && item->bytes + item->size <= data + size);
		check_path((const char *)item->bytes, item->size);
		check_extents(item);
		dir_writer_add(&writer, item);
	}
	check(!writer.failed && writer.size == size && !memcmp(writer.data, data, size));
	free(writer.data);
	free(message.items);
	return 0;
}
