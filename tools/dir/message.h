/* SPDX-License-Identifier: Apache-2.0 */
/* dir/message.h: what wherry copy asks a server of directories, and what it answers
 *
 * A request is a notification with the tag DIR_TAG. The server publishes the answer as a region
 * whose name has the request's token (dir_answer_name()), and a file that it opens as a region
 * whose name has the file's handle (dir_file_name()). Both sides speak this format; integers are
 * little-endian:
 *
 *   magic u32, version u16, op u16, directory u64, token 16 bytes, count u32, 0 u32
 *   count times: handle u64, offset u64, length u64, mtime i64 (ns), mode u32, status u32,
 *                size u32, 0 u32, and `size` bytes
 *
 * Every item of an answer has the item of the request in its place, with `status` 0 or an errno;
 * the answer to LIST has an item for each name instead. */
#ifndef TOOLS_DIR_MESSAGE_H
#define TOOLS_DIR_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DIR_TAG UINT64_C(0x7269642d79727265) /* "erry-dir" */
#define DIR_TOKEN 16
#define DIR_NAME_ROOM 48
#define DIR_PATH_MAX 4095 /* bytes of a path */
#define DIR_DIGEST 32 /* SHA-256 */
#define DIR_SUM_BLOCK (UINT64_C(8) << 20) /* bytes of one checksum */
#define DIR_SUM_MOST (UINT64_C(1) << 30) /* bytes to sum in one request */
#define DIR_ANSWER_MAX (UINT64_C(64) << 20)

enum dir_op {
	/* Bytes: a path. What is there: mode, length, mtime. With `handle` and a directory, what is
	 * in it instead, by names relative to it: DIR_ALL_BELOW or DIR_TOP_ONLY. */
	DIR_LIST = 1,
	/* Bytes: a path, to read. Answer: handle, mode, length, mtime; bytes: up to
	 * DIR_EXTENTS_MAX pairs (offset u64, length u64), outside of which the file has holes. */
	DIR_OPEN,
	/* Bytes: a path; length; `offset` 1: keep what an earlier attempt has left. Answer: handle;
	 * `offset` 1: it has been kept. */
	DIR_CREATE,
	/* handle, offset, length. Answer: bytes are the SHA-256 of that part. */
	DIR_SUM,
	/* handle, mode, mtime. The file gets its name, and the handle is closed. */
	DIR_COMMIT,
	/* Bytes: a path; mode, mtime; `offset`: enum dir_mkdir. Mode 0: as the umask says. Answer:
	 * `offset` 1: it was not there. */
	DIR_MKDIR,
	/* handle. No answer. */
	DIR_CLOSE,
	/* handle: still in use. No answer. */
	DIR_KEEP,
	/* Bytes: the token of an answer that has been read. No answer. */
	DIR_FORGET,
	DIR_OP_END,
};

enum dir_mkdir {
	/* Make the directory, with the owner's rights besides, and those above it. */
	DIR_MKDIR_MAKE,
	/* The same; take rights that the mode lacks from one that is there. */
	DIR_MKDIR_NARROW,
	/* All that it holds is there: take those rights, the owner's too, and set the time. */
	DIR_MKDIR_END,
};

#define DIR_EXTENTS_MAX 1024
#define DIR_ALL_BELOW 1
#define DIR_TOP_ONLY 2 /* not what its directories hold */
#define DIR_FLAG_WRITABLE 1

struct dir_item {
	uint64_t handle, offset, length;
	int64_t mtime; /* ns since 1970 */
	uint32_t mode; /* as st_mode */
	uint32_t status; /* an errno */
	uint32_t size;
	const uint8_t *bytes; /* in the message */
};

struct dir_message {
	uint16_t op; /* enum dir_op */
	uint64_t directory;
	uint8_t token[DIR_TOKEN]; /* zeros: no answer is wanted */
	uint32_t count;
	struct dir_item *items; /* free() them */
};

/* 0, -EPROTO (not such a message), -ENOMEM. `data` must live as long as the items. */
int dir_message_decode(const uint8_t *data, size_t size, struct dir_message *out);

/* A message that is being written. `failed`: there was no memory, and `data` is incomplete. */
struct dir_writer {
	uint8_t *data; /* free() it */
	size_t size, room;
	uint32_t count;
	bool failed;
};

void dir_writer_begin(struct dir_writer *writer, const struct dir_message *head);
void dir_writer_add(struct dir_writer *writer, const struct dir_item *item);

/* The region that a directory is found by: magic, version, flags, directory. */
#define DIR_HEAD_SIZE 24
void dir_head_encode(uint8_t out[DIR_HEAD_SIZE], uint32_t flags, uint64_t directory);
/* 0, or -EPROTO. */
int dir_head_decode(const uint8_t in[DIR_HEAD_SIZE], uint32_t *flags, uint64_t *directory);

void dir_answer_name(const uint8_t token[DIR_TOKEN], char out[DIR_NAME_ROOM]);
void dir_file_name(uint64_t handle, char out[DIR_NAME_ROOM]);

/* A range of a file that has bytes. */
struct dir_extent {
	uint64_t offset, length;
};

/* Read the extents of an answer to OPEN. They ascend and lie in a file of `length` bytes; -EPROTO:
 * these do not. *count is at most DIR_EXTENTS_MAX. */
int dir_extents_decode(const struct dir_item *item, struct dir_extent *out, size_t *count);
/* Into `out`, of 16 bytes for each. */
void dir_extents_encode(const struct dir_extent *extents, size_t count, uint8_t *out);

/* A name below a directory: relative, no "." and "..", no empty part, nothing that this protocol
 * keeps for itself. "" is not one. */
bool dir_path_valid(const char *path, size_t size);

#endif
