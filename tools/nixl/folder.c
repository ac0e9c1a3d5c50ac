/* SPDX-License-Identifier: Apache-2.0 */
/* Folders that nobody else can write to, and files that are replaced whole. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nixl/nixl.h"

#define LINKS_MOST 40 /* symbolic links on the way, as the kernel */
#define FILE_MOST (64 << 20)

/* ---- folders --------------------------------------------------------------------------------- */

/* The path of an open folder, for messages. */
static const char *folder_name(int folder, char out[PATH_MAX])
{
	char link[40];
	ssize_t length;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", folder);
	length = readlink(link, out, PATH_MAX - 1);
	snprintf(out + (length > 0 ? length : 0), 2, "%s", length > 0 ? "" : "?");
	return out;
}

/* May nobody but root and the caller change what is in it? In one `on_the_way` others may add
 * files, but not rename (the sticky bit). */
static int folder_check(int folder, bool on_the_way, char why[NIXL_WHY])
{
	char name[PATH_MAX];
	struct stat status;
	bool sticky;

	if (fstat(folder, &status))
		return -errno;
	if (status.st_uid && status.st_uid != geteuid()) {
		snprintf(why, NIXL_WHY, "%.300s belongs to user %u, and not to root or to you",
			 folder_name(folder, name), status.st_uid);
		return -EPERM;
	}
	sticky = on_the_way && (status.st_mode & S_ISVTX);
	if ((status.st_mode & (S_IWGRP | S_IWOTH)) && !sticky) {
		snprintf(why, NIXL_WHY,
			 "others may write to %.300s (mode %03o); chmod go-w changes that",
			 folder_name(folder, name), status.st_mode & 0777);
		return -EPERM;
	}
	return 0;
}

/* The walk along a path: `at` is where it is. */
struct walk {
	int at;
	bool create;
	unsigned links;
	char *why;
};

static int walk_path(struct walk *walk, const char *path);

/* From where the walk is, follow the symbolic link `name`. What it says can be trusted: its folder
 * was checked, and here its owner is. */
static int walk_link(struct walk *walk, const char *name, int link)
{
	char target[PATH_MAX];
	struct stat status;
	ssize_t length;

	if (fstat(link, &status))
		return -errno;
	if (status.st_uid && status.st_uid != geteuid()) {
		snprintf(walk->why, NIXL_WHY,
			 "the symbolic link %.200s belongs to user %u, and not to root or to you",
			 name, status.st_uid);
		return -EPERM;
	}
	length = readlinkat(link, "", target, sizeof(target) - 1);
	if (length < 0)
		return -errno;
	target[length] = 0;
	if (++walk->links > LINKS_MOST)
		return -ELOOP;
	return walk_path(walk, target);
}

/* One step of the walk, to a folder or along a link. */
static int walk_step(struct walk *walk, const char *name)
{
	int next, error = folder_check(walk->at, true, walk->why);
	struct stat status;

	if (error)
		return error;
	next = openat(walk->at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (next < 0 && errno == ENOENT && walk->create) {
		if (mkdirat(walk->at, name, 0755)) {
			if (errno != EEXIST)
				return -errno;
		} else if (!geteuid() && fchmodat(walk->at, name, 0755, 0)) {
			return -errno; /* root makes it for everybody, whatever the umask */
		}
		next = openat(walk->at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	}
	if (next < 0)
		return -errno;
	if (fstat(next, &status))
		error = -errno;
	else if (S_ISLNK(status.st_mode))
		error = walk_link(walk, name, next);
	else if (!S_ISDIR(status.st_mode))
		error = -ENOTDIR;
	if (error || S_ISLNK(status.st_mode)) {
		close(next);
		return error;
	}
	close(walk->at);
	walk->at = next;
	return 0;
}

static int walk_path(struct walk *walk, const char *path)
{
	char name[NAME_MAX + 1];
	int error = 0;

	if (*path == '/') {
		int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);

		if (root < 0)
			return -errno;
		close(walk->at);
		walk->at = root;
	}
	while (!error && *(path += strspn(path, "/"))) {
		size_t length = strcspn(path, "/");

		if (length > NAME_MAX)
			return -ENAMETOOLONG;
		memcpy(name, path, length);
		name[length] = 0;
		path += length;
		error = walk_step(walk, name);
	}
	return error;
}

/* A descriptor that also reads, in place of `at`, which is closed. */
static int folder_finish(int at, char why[NIXL_WHY])
{
	int error = folder_check(at, false, why), folder = -1;

	if (!error) {
		folder = openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		error = folder < 0 ? -errno : 0;
	}
	close(at);
	return error ? error : folder;
}

static int folder_failed(int error, const char *path, char why[NIXL_WHY])
{
	if (error < 0 && !*why)
		snprintf(why, NIXL_WHY, "%.300s: %s", path, strerror(-error));
	return error;
}

int nixl_folder_open(const char *path, bool create, char why[NIXL_WHY])
{
	struct walk walk = { .at = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC),
			     .create = create,
			     .why = why };
	char here[PATH_MAX];
	int error = walk.at < 0 ? -errno : 0;

	*why = 0;
	/* A relative path begins where the caller is: the way to there counts, too. */
	if (!error && *path != '/')
		error = getcwd(here, sizeof(here)) ? walk_path(&walk, here) : -errno;
	if (!error)
		error = walk_path(&walk, path);
	if (!error)
		return folder_failed(folder_finish(walk.at, why), path, why);
	if (walk.at >= 0)
		close(walk.at);
	return folder_failed(error, path, why);
}

int nixl_folder_enter(int folder, const char *name, char why[NIXL_WHY])
{
	int at = openat(folder, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	int error = at < 0 ? -errno : 0;
	struct stat status;

	*why = 0;
	if (error == -ENOTDIR && !fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) &&
	    S_ISLNK(status.st_mode)) {
		error = -ELOOP;
		snprintf(why, NIXL_WHY, "%.300s is a symbolic link", name);
	}
	return folder_failed(error ? error : folder_finish(at, why), name, why);
}

/* ---- files ----------------------------------------------------------------------------------- */

int nixl_file_read(int folder, const char *name, unsigned char **out, size_t *length)
{
	int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC), error = 0;
	unsigned char *bytes = NULL;
	struct stat status;
	size_t have = 0;
	ssize_t n = 1;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &status))
		error = -errno;
	else if (!S_ISREG(status.st_mode))
		error = -ELOOP;
	else if (status.st_size > FILE_MOST)
		error = -EFBIG;
	else if (!(bytes = malloc((size_t)status.st_size + 1)))
		error = -ENOMEM;
	while (!error && n && have < (size_t)status.st_size) {
		n = read(fd, bytes + have, (size_t)status.st_size - have);
		if (n > 0)
			have += (size_t)n;
		else if (n < 0 && errno != EINTR)
			error = -errno;
	}
	close(fd);
	if (error) {
		free(bytes);
		return error;
	}
	bytes[have] = 0; /* so that text is a string */
	*out = bytes;
	*length = have;
	return 0;
}

static int file_write(int folder, const char *name, const char *bytes, size_t length)
{
	int fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	int error = 0;

	if (fd < 0)
		return -errno;
	while (!error && length) {
		ssize_t n = write(fd, bytes, length);

		if (n >= 0) {
			bytes += n;
			length -= (size_t)n;
		} else if (errno != EINTR) {
			error = -errno;
		}
	}
	/* As packages have it, whatever the umask: NIXL may run as somebody else. */
	if (!error && fchmod(fd, 0644))
		error = -errno;
	if (!error && fsync(fd))
		error = -errno;
	if (close(fd) && !error)
		error = -errno;
	return error;
}

/* Rename, never over another file. */
static int file_rename_new(int folder, const char *from, const char *to)
{
	if (!renameat2(folder, from, folder, to, RENAME_NOREPLACE))
		return 0;
	if (errno != EINVAL && errno != ENOSYS)
		return -errno;
	/* A file system that cannot. A link does not replace either. */
	if (linkat(folder, from, folder, to, 0))
		return -errno;
	return unlinkat(folder, from, 0) ? -errno : 0;
}

int nixl_file_put(int folder, const char *name, const void *bytes, size_t length, bool replace)
{
	char aside[NAME_MAX + 1];
	int error;

	/* NIXL takes for plug-ins what begins with "libplugin_". */
	snprintf(aside, sizeof(aside), ".%s.wherry-new", name);
	if (unlinkat(folder, aside, 0) && errno != ENOENT)
		return -errno;
	error = file_write(folder, aside, bytes, length);
	if (!error && replace)
		error = renameat(folder, aside, folder, name) ? -errno : 0;
	else if (!error)
		error = file_rename_new(folder, aside, name);
	if (error)
		unlinkat(folder, aside, 0);
	else if (fsync(folder) && errno != EINVAL)
		error = -errno;
	return error;
}
