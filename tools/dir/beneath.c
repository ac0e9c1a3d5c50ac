/* SPDX-License-Identifier: Apache-2.0 */
/* Files below a directory. The kernel resolves the names (openat2), so that no renaming or linking
 * by others in between leads elsewhere. */
#include "dir/beneath.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <openssl/evp.h>

/* Without a controlling terminal, and without waiting for the other end of a pipe. */
#define SAFE (O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY)

#define TRIES 1000 /* of an open that others disturb */

/* The errno of an open, negative. EAGAIN: another program, such as a file server, has a lease on
 * the file, for up to a minute. */
static int open_failed(void)
{
	return errno == EAGAIN ? -EBUSY : -errno;
}

static int open_beneath(int root, const char *path, int flags)
{
	struct open_how how = {
		/* A link at the end is found with O_PATH alone, and else refused: ELOOP. */
		.flags = (uint64_t)(flags & O_PATH ? flags | O_CLOEXEC | O_NOFOLLOW :
						     flags | (SAFE & ~O_NOFOLLOW)),
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
	};
	int tries = 0;
	long fd;

	if (*path && !dir_path_valid(path, strlen(path)))
		return -EINVAL;
	do
		fd = syscall(SYS_openat2, root, *path ? path : ".", &how, sizeof(how));
	while (fd < 0 && errno == EAGAIN && ++tries < TRIES); /* something was renamed meanwhile */
	return fd < 0 ? open_failed() : (int)fd;
}

/* Open the directory that holds `path`, and find the last part of it. */
static int open_parent(int root, const char *path, const char **leaf)
{
	const char *slash = strrchr(path, '/');
	char folder[DIR_PATH_MAX + 1];

	if (!dir_path_valid(path, strlen(path)))
		return -EINVAL;
	*leaf = slash ? slash + 1 : path;
	snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(slash - path) : 0, path);
	return open_beneath(root, folder, O_RDONLY | O_DIRECTORY);
}

int beneath_open_root(const char *path, bool nofollow, int *out)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (nofollow ? O_NOFOLLOW : 0));
	int probe;

	if (fd < 0)
		return -errno;
	probe = open_beneath(fd, "", O_RDONLY | O_DIRECTORY);
	if (probe < 0) {
		close(fd);
		/* seccomp answers EPERM where it knows no such call */
		return probe == -EPERM ? -ENOSYS : probe;
	}
	close(probe);
	*out = fd;
	return 0;
}

int beneath_stat(int root, const char *path, struct stat *out)
{
	int fd = open_beneath(root, path, O_PATH), error;

	if (fd < 0)
		return fd;
	error = fstat(fd, out) ? -errno : 0;
	close(fd);
	return error;
}

/* In ns since 1970: of what is beyond the year 2262, or before 1677, the end of that. */
static int64_t time_of(const struct timespec *time)
{
	int64_t ns;

	if (__builtin_mul_overflow((int64_t)time->tv_sec, 1000000000, &ns) ||
	    __builtin_add_overflow(ns, (int64_t)time->tv_nsec, &ns))
		return time->tv_sec < 0 ? INT64_MIN : INT64_MAX;
	return ns;
}

void beneath_describe(const struct stat *status, struct dir_item *out)
{
	out->mode = status->st_mode;
	out->length = S_ISREG(status->st_mode) ? (uint64_t)status->st_size : 0;
	out->mtime = time_of(&status->st_mtim);
}

/* -EISDIR or -EINVAL if it is no regular file; then it is closed. */
static int check_file(int fd, struct stat *status)
{
	int error = fstat(fd, status) ? -errno : 0;

	if (!error && S_ISDIR(status->st_mode))
		error = -EISDIR;
	else if (!error && !S_ISREG(status->st_mode))
		error = -EINVAL;
	if (error)
		close(fd);
	return error;
}

int beneath_open_file(int root, const char *path, int *out, struct stat *status)
{
	int fd = open_beneath(root, path, O_RDONLY), error;

	if (fd < 0)
		return fd;
	error = check_file(fd, status);
	if (!error)
		*out = fd;
	return error;
}

/* Open a directory that was just made, and give it what the umask has taken. It keeps the
 * set-group-ID bit that it has from the one above it. */
static int open_made(int folder, const char *name, uint32_t mode)
{
	int fd = open_beneath(folder, name, O_RDONLY | O_DIRECTORY);
	struct stat status;

	if (fd < 0 || !S_ISDIR(mode))
		return fd;
	mode = (mode & 01777) | 0700;
	if (!fstat(fd, &status) && status.st_uid == geteuid() &&
	    ((status.st_mode & 01777) == mode || !fchmod(fd, mode | (status.st_mode & S_ISGID))))
		return fd;
	close(fd);
	return -EACCES; /* another one has its name by now */
}

/* Open a directory of an open one; make it if it is missing. */
static int enter_directory(int folder, const char *name, uint32_t mode, bool *made)
{
	int fd = open_beneath(folder, name, O_RDONLY | O_DIRECTORY);

	if (fd != -ENOENT)
		return fd;
	if (!mkdirat(folder, name, S_ISDIR(mode) ? (mode & 0777) | 0700 : 0777)) {
		*made = true;
		return open_made(folder, name, mode);
	}
	return errno == EEXIST ? open_beneath(folder, name, O_RDONLY | O_DIRECTORY) : -errno;
}

/* From one directory to the next: from the root to each of them would take the square of the depth,
 * and a request may have thousands. */
int beneath_make_directory(int root, const char *path, uint32_t mode, bool *made)
{
	char part[NAME_MAX + 1];
	struct stat status;
	int folder = root, next, error = beneath_stat(root, path, &status);
	size_t length;

	*made = false;
	if (error != -ENOENT)
		return !error && !S_ISDIR(status.st_mode) ? -ENOTDIR : error;
	do {
		length = strcspn(path, "/");
		snprintf(part, sizeof(part), "%.*s", (int)length, path);
		*made = false;
		next = enter_directory(folder, part, path[length] ? 0 : mode, made);
		if (folder != root)
			close(folder);
		folder = next;
		path += length + 1;
	} while (next >= 0 && path[-1]);
	if (next < 0)
		return next;
	close(next);
	return 0;
}

/* A time in ns since 1970 for futimens(). */
static void times_of(int64_t mtime, struct timespec times[2])
{
	times[0] = (struct timespec){ .tv_nsec = UTIME_OMIT };
	times[1] = (struct timespec){ mtime / 1000000000, mtime % 1000000000 };
	if (times[1].tv_nsec < 0) {
		times[1].tv_sec--;
		times[1].tv_nsec += 1000000000;
	}
}

int beneath_narrow_directory(int root, const char *path, uint32_t mode, bool ends, int64_t mtime)
{
	int fd = open_beneath(root, path, O_RDONLY | O_DIRECTORY), error;
	mode_t rights = (mode & 0777) | (ends ? 0 : 0700);
	struct timespec times[2];
	struct stat status;

	if (fd < 0)
		return fd;
	times_of(mtime, times);
	error = fstat(fd, &status) ? -errno : 0;
	if (!error && status.st_mode & 0777 & ~rights &&
	    fchmod(fd, status.st_mode & (07000 | rights)))
		error = -errno;
	if (!error && ends && futimens(fd, times))
		error = -errno;
	close(fd);
	return error;
}

/* ---- files that are written ------------------------------------------------------------------ */

static int part_name(const char *leaf, char out[NAME_MAX + 1])
{
	return snprintf(out, NAME_MAX + 1, ".%s" BENEATH_PART_SUFFIX, leaf) > NAME_MAX ?
		       -ENAMETOOLONG :
		       0;
}

/* Only a regular file is replaced. */
static int check_target(int folder, const char *leaf)
{
	struct stat status;

	if (fstatat(folder, leaf, &status, AT_SYMLINK_NOFOLLOW))
		return errno == ENOENT ? 0 : -errno;
	if (S_ISREG(status.st_mode))
		return 0;
	return S_ISDIR(status.st_mode) ? -EISDIR : S_ISLNK(status.st_mode) ? -ELOOP : -EINVAL;
}

/* Nobody else reads or writes it: no other name leads to it, which a crash amid a renaming leaves
 * on some file systems, and it is this user's. */
static bool part_is_ours(const struct stat *status)
{
	return S_ISREG(status->st_mode) && status->st_nlink == 1 && status->st_uid == geteuid();
}

/* Is it still the file of that name? -EBUSY: another copy has replaced it. */
static int check_part(int folder, const char *name, int fd)
{
	struct stat named, own;

	if (fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) || fstat(fd, &own))
		return -errno;
	return named.st_dev == own.st_dev && named.st_ino == own.st_ino ? 0 : -EBUSY;
}

/* Keep others from going on with it, as long as it is open, on file systems that have locks. */
static int lock_part(int fd)
{
	return flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK ? -EBUSY : 0;
}

/* What an earlier attempt has left. -ENOENT: nothing to go on with. */
static int open_kept(int folder, const char *name)
{
	int fd = openat(folder, name, O_RDWR | SAFE), error;
	struct stat status;

	if (fd < 0)
		return errno == EACCES ? -ENOENT : open_failed();
	error = fstat(fd, &status) ? -errno : part_is_ours(&status) ? lock_part(fd) : -ENOENT;
	if (!error)
		error = check_part(folder, name, fd); /* until then another one could end it */
	/* It had its last mode when it was to get its name. */
	if (!error && (status.st_mode & 07777) != 0600 && fchmod(fd, 0600))
		error = -errno;
	if (!error)
		return fd;
	close(fd);
	return error;
}

static int open_part(int folder, const char *name, bool keep)
{
	int fd = keep ? open_kept(folder, name) : -ENOENT, error;

	if (fd != -ENOENT)
		return fd;
	if (unlinkat(folder, name, 0) && errno != ENOENT)
		return -errno;
	fd = openat(folder, name, O_RDWR | O_CREAT | O_EXCL | SAFE, 0600);
	if (fd < 0)
		return open_failed();
	error = lock_part(fd);
	if (!error)
		return fd;
	close(fd);
	return error;
}

int beneath_open_part(int root, const char *path, uint64_t length, bool keep, int *out, bool *kept)
{
	char name[NAME_MAX + 1];
	const char *leaf;
	struct stat status;
	int folder, fd = -1, error;

	if (length > INT64_MAX)
		return -EFBIG;
	folder = open_parent(root, path, &leaf);
	if (folder < 0)
		return folder;
	error = part_name(leaf, name);
	if (!error)
		error = check_target(folder, leaf);
	if (!error) {
		fd = open_part(folder, name, keep);
		error = fd < 0 ? fd : check_file(fd, &status);
	}
	close(folder);
	if (error)
		return error;
	*kept = keep && length && (uint64_t)status.st_size == length;
	/* As one hole: what is not written costs nothing and reads as zeros. */
	if (!*kept && (ftruncate(fd, 0) || ftruncate(fd, (off_t)length))) {
		error = -errno;
		close(fd);
		return error;
	}
	*out = fd;
	return 0;
}

int beneath_commit(int root, const char *path, int fd, uint32_t mode, int64_t mtime)
{
	struct timespec times[2];
	char name[NAME_MAX + 1];
	const char *leaf;
	int folder, error;

	times_of(mtime, times);
	folder = open_parent(root, path, &leaf);
	if (folder < 0)
		return folder;
	error = part_name(leaf, name);
	if (!error)
		error = check_part(folder, name, fd);
	if (!error)
		error = check_target(folder, leaf);
	/* On the disk before it has its name: a crash must not leave a name with half a file. */
	if (!error && (fchmod(fd, mode & 0777) || futimens(fd, times) || fsync(fd) ||
		       renameat(folder, name, folder, leaf)))
		error = -errno;
	close(folder);
	return error;
}

/* ---- listing --------------------------------------------------------------------------------- */

struct walk {
	int root;
	bool all;
	char path[2 * DIR_PATH_MAX + 2]; /* from the root */
	size_t base; /* where the name that is reported begins in it */
	char **waiting; /* paths of directories that are still to be read */
	size_t count, room;
	int (*found)(void *arg, const char *name, const struct stat *status);
	void *arg;
};

static int walk_later(struct walk *walk, const char *path)
{
	if (walk->count == walk->room) {
		size_t room = 2 * walk->room + 16;
		char **grown = realloc(walk->waiting, room * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		walk->waiting = grown;
		walk->room = room;
	}
	walk->waiting[walk->count] = strdup(path);
	if (!walk->waiting[walk->count])
		return -ENOMEM;
	walk->count++;
	return 0;
}

static int walk_entry(struct walk *walk, int folder, const char *leaf)
{
	size_t length = strlen(walk->path), more = strlen(leaf);
	struct stat status;
	int error;

	if (length + 1 + more > DIR_PATH_MAX)
		return -ENAMETOOLONG;
	snprintf(walk->path + length, sizeof(walk->path) - length, "%s%s", length ? "/" : "", leaf);
	if (!dir_path_valid(leaf, more) || fstatat(folder, leaf, &status, AT_SYMLINK_NOFOLLOW)) {
		walk->path[length] = 0; /* not ours to give, or gone by now */
		return 0;
	}
	error = walk->found(walk->arg, walk->path + walk->base, &status);
	if (!error && walk->all && S_ISDIR(status.st_mode))
		error = walk_later(walk, walk->path);
	walk->path[length] = 0;
	return error;
}

static int walk_directory(struct walk *walk)
{
	int fd = open_beneath(walk->root, walk->path, O_RDONLY | O_DIRECTORY), error = 0;
	struct dirent *entry;
	DIR *folder;

	if (fd < 0)
		return fd;
	folder = fdopendir(fd);
	if (!folder) {
		close(fd);
		return -ENOMEM;
	}
	while (!error && (errno = 0, entry = readdir(folder)))
		error = walk_entry(walk, fd, entry->d_name);
	if (!error)
		error = -errno;
	closedir(folder);
	return error;
}

/* One directory is open at a time, however deep the tree is. */
static int walk_waiting(struct walk *walk)
{
	int error = 0;

	while (!error && walk->count) {
		char *path = walk->waiting[--walk->count];

		snprintf(walk->path, sizeof(walk->path), "%s", path);
		free(path);
		error = walk_directory(walk);
		/* Gone by now, or something else. */
		if (error == -ENOENT || error == -ENOTDIR || error == -ELOOP)
			error = 0;
	}
	return error;
}

int beneath_list(int root, const char *path, bool all,
		 int (*found)(void *arg, const char *name, const struct stat *status), void *arg)
{
	struct walk *walk;
	int error;

	if (*path && !dir_path_valid(path, strlen(path)))
		return -EINVAL;
	walk = calloc(1, sizeof(*walk));
	if (!walk)
		return -ENOMEM;
	walk->root = root;
	walk->all = all;
	walk->found = found;
	walk->arg = arg;
	walk->base = *path ? strlen(path) + 1 : 0;
	snprintf(walk->path, sizeof(walk->path), "%s", path);
	error = walk_directory(walk);
	if (!error)
		error = walk_waiting(walk);
	while (walk->count)
		free(walk->waiting[--walk->count]);
	free(walk->waiting);
	free(walk);
	return error;
}

/* ---- content --------------------------------------------------------------------------------- */

void beneath_extents(int fd, uint64_t length, struct dir_extent *out, size_t *count)
{
	uint64_t at = 0;
	size_t number = 0;

	while (at < length) {
		off_t data = lseek(fd, (off_t)at, SEEK_DATA), hole;

		if (data < 0 && errno == ENXIO) /* the rest is a hole */
			break;
		hole = data < 0 ? -1 : lseek(fd, data, SEEK_HOLE);
		/* A file system that does not know, or too many: all of the rest. */
		if (data < 0 || hole <= data || number == DIR_EXTENTS_MAX - 1) {
			data = data < 0 ? (off_t)at : data;
			hole = (off_t)length;
		}
		if ((uint64_t)data >= length)
			break;
		at = (uint64_t)hole < length ? (uint64_t)hole : length;
		out[number++] = (struct dir_extent){ (uint64_t)data, at - (uint64_t)data };
	}
	*count = number;
}

int beneath_sum(int fd, uint64_t offset, uint64_t length, uint8_t out[DIR_DIGEST])
{
	EVP_MD_CTX *context = EVP_MD_CTX_new();
	size_t room = 1 << 20;
	uint8_t *buffer = malloc(room);
	int error = -ENOMEM;

	if (!context || !buffer || !EVP_DigestInit_ex(context, EVP_sha256(), NULL))
		goto end;
	for (error = 0; length && !error;) {
		ssize_t got = pread(fd, buffer, length < room ? length : room, (off_t)offset);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			error = got ? -errno : -EIO;
		else if (!EVP_DigestUpdate(context, buffer, (size_t)got))
			error = -ENOMEM;
		else {
			offset += (uint64_t)got;
			length -= (uint64_t)got;
		}
	}
	if (!error && !EVP_DigestFinal_ex(context, out, NULL))
		error = -ENOMEM;
end:
	EVP_MD_CTX_free(context);
	free(buffer);
	return error;
}

const char *beneath_text(int error)
{
	switch (error < 0 ? -error : error) {
	case ELOOP:
	case EXDEV:
		return "a symbolic link, or a way out of the directory: neither is followed";
	case ENOSYS:
		return "directories need openat2(2), which this system lacks or forbids (Linux "
		       "5.6)";
	case EBUSY:
		return "it is in use, or another program has a lease on it: try again";
	case EINVAL:
		return "neither a regular file nor a directory, or not a relative name without ..";
	default:
		return strerror(error < 0 ? -error : error);
	}
}
