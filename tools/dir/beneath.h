/* SPDX-License-Identifier: Apache-2.0 */
/* Files below a directory, by names from outside: nothing that a name says leads out of it. */
#ifndef TOOLS_DIR_BENEATH_H
#define TOOLS_DIR_BENEATH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "dir/message.h"

/* A file that is not complete is .NAME.wherry-part, in the folder of NAME. Such names are neither
 * listed nor opened. */
#define BENEATH_PART_SUFFIX ".wherry-part"

/* Each of these returns 0 or a negative errno. Paths are relative to `root`; "" is the root itself
 * where that makes sense. -ELOOP or -EXDEV: the path has a symbolic link or leaves the root;
 * -EINVAL: not a name (dir_path_valid()). */

/* Open the root; its path may have symbolic links unless `nofollow`. -ENOSYS: this system has no
 * openat2(2), without which none of this is safe. */
int beneath_open_root(const char *path, bool nofollow, int *out);

/* What is there: symbolic links are not followed. */
int beneath_stat(int root, const char *path, struct stat *out);

/* Mode, length (of a regular file) and time of change, as messages have them. */
void beneath_describe(const struct stat *status, struct dir_item *out);

/* Open a regular file to read. -EISDIR, or -EINVAL: neither a file nor a directory. */
int beneath_open_file(int root, const char *path, int *out, struct stat *status);

/* Make a directory with this mode (st_mode), and all rights for its owner, so that files can come
 * into it. Mode 0, and directories above it that are missing: 0777 less the umask. *made: it was
 * not there. */
int beneath_make_directory(int root, const char *path, uint32_t mode, bool *made);

/* Take the rights from a directory that `mode` lacks; with `ends` those of its owner, too, and set
 * its time. It never gains any. */
int beneath_narrow_directory(int root, const char *path, uint32_t mode, bool ends, int64_t mtime);

/* Open the unfinished file of this name, of this length, to write, which nobody else may read. With
 * `keep` one that is there already stays as it is, if its length is right: *kept. One that has
 * another name as well, or belongs to somebody else, is replaced. -EBUSY: another process goes on
 * with it. */
int beneath_open_part(int root, const char *path, uint64_t length, bool keep, int *out, bool *kept);

/* Give the finished file its name, once its bytes are on the disk; a regular file of that name is
 * replaced. -EBUSY: somebody has begun it anew, and it gets no name. */
int beneath_commit(int root, const char *path, int fd, uint32_t mode, int64_t mtime);

/* Call `found` for what the directory holds, or with `all` for everything below it, by names
 * relative to it; it returns 0 or an error that ends the listing. Symbolic links are reported, not
 * followed; names that dir_path_valid() refuses are left out. */
int beneath_list(int root, const char *path, bool all,
		 int (*found)(void *arg, const char *name, const struct stat *status), void *arg);

/* Where a file of `length` bytes has bytes; the rest are holes. At most DIR_EXTENTS_MAX: from the
 * last of them on there are no holes then. */
void beneath_extents(int fd, uint64_t length, struct dir_extent *out, size_t *count);

/* The SHA-256 of a range. -EIO: it reaches past the file's end. */
int beneath_sum(int fd, uint64_t offset, uint64_t length, uint8_t out[DIR_DIGEST]);

/* The sentence for an errno of these functions. */
const char *beneath_text(int error);

#endif
