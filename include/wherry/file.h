/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files as memory: a range of a file is a region (docs/files.md). Batches read and write it like
 * any other region, of this engine or of a peer. Only the engine that registered the file reads and
 * writes it: no peer ever gets a descriptor, a path or a mapping of it.
 */
#ifndef WHERRY_FILE_H
#define WHERRY_FILE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct wh_engine;
struct wh_region;
struct wh_region_options;

enum wh_file_flag {
	/* Transfers may write to the range. Without it, they fail with -EACCES. */
	WH_FILE_WRITE = 1,
	/* With WRITE, of a path: create the file, with mode 0666 less the umask, if there is none.
	 */
	WH_FILE_CREATE = 2,
	/* With WRITE: the range may reach past the file's end, and a write there makes the file
	 * longer, up to the end of the range. Without it, a file never changes its length. */
	WH_FILE_GROW = 4,
};

/* What a crash of the machine cannot undo once a batch that wrote to the file has completed with
 * success. */
enum wh_file_durable {
	WH_FILE_DURABLE_NONE = 0, /* nothing: the kernel writes the bytes when it likes */
	/* the bytes, and the file's length: fdatasync(2) before the batch completes */
	WH_FILE_DURABLE_DATA = 1,
	/* the file's times as well: fsync(2); and the name of a file that was created */
	WH_FILE_DURABLE_ALL = 2,
};

struct wh_file_options {
	size_t size; /* set by the caller */
	uint64_t offset; /* of the region's first byte in the file */
	uint64_t
		length; /* of the region; 0: up to the file's end, which is not allowed with GROW */
	uint32_t flags; /* enum wh_file_flag, or-ed */
	uint32_t durable; /* enum wh_file_durable */
	/* Its name, and what peers may do. NULL: a region for this engine's own use. Access WRITE
	 * takes WH_FILE_WRITE. Copied. */
	const struct wh_region_options *region;
};

/* Register [offset, offset+length) of a regular file for transfers. options may be NULL: all of the
 * file, for reading. The region is of the kind WH_MEMORY_FILE, and all calls for regions take it.
 * Its address is a reserved range of this process's address space that belongs to no other region;
 * nothing is mapped there, and the CPU faults on it.
 *
 * Bytes go through the page cache, so others that read or write the file meanwhile see them as
 * usual. A transfer fails, and its batch with it, with the errno of the system call: -ENOSPC,
 * -EDQUOT or -EFBIG if there is no room, -EIO from the device. It fails with -EIO as well if the
 * file has become shorter than the transfer's end: bytes that are not there are never reported as
 * read or written. The bytes of a batch that fails are undefined within its targets, as for memory,
 * and unchanged elsewhere. If an fdatasync or fsync fails, the kernel may have dropped bytes, so
 * all later writes with `durable` to this region fail, too: register the file anew.
 *
 * A batch whose file system does not answer waits for it, however long that takes;
 * wh_batch_wait_for() returns in time. Of a file of this engine wh_batch_cancel() returns
 * -ETIMEDOUT then, and wh_batch_free() -EBUSY: until the file system answers, the kernel may read
 * and write the batch's memory, which has to stay.
 *
 * The engine keeps a descriptor of its own until wh_region_unregister(): the path may be renamed or
 * removed. May block on the file system. Symbolic links in the path are followed.
 *
 * 0, or -EINVAL (no regular file, an empty file or range, bad options), -ERANGE (the range reaches
 * past the file's end, without WH_FILE_GROW), -EACCES (access WRITE without WH_FILE_WRITE), -E2BIG,
 * -ENOMEM, the errors of open(2) and fstat(2), and those of wh_region_register(). */
int wh_file_register(struct wh_engine *engine, const char *path,
		     const struct wh_file_options *options, struct wh_region **out);

/* The same for an open file. The engine duplicates the descriptor; its position is neither used nor
 * changed. It must be readable, and writable for WH_FILE_WRITE (-EACCES), and without O_APPEND and
 * O_PATH (-EINVAL, -EBADF). WH_FILE_CREATE is -EINVAL. */
int wh_file_register_fd(struct wh_engine *engine, int fd, const struct wh_file_options *options,
			struct wh_region **out);

#ifdef __cplusplus
}
#endif
#endif
