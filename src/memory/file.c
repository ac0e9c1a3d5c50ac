/* SPDX-License-Identifier: Apache-2.0 */
/* memory/file.c: opening a range of a file as memory, and the errors of that */
#include "memory/file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <wherry/memory.h>
#include <wherry/transfer.h>

#include "memory/file-ring.h"
#include "memory/memory.h"
#include "util/error.h"

typedef unsigned long long ull;

static const char call[] = "wh_file_register";

/* Past the page cache, where the kernel (before 6.1) or the file system does not say. */
#define DIRECT_ALIGNMENT 4096

#define FLAGS ((uint32_t)(WH_FILE_WRITE | WH_FILE_CREATE | WH_FILE_GROW))

static int options_check(const struct wh_file_options *options, bool path)
{
	bool writes = options->flags & WH_FILE_WRITE;

	if (options->flags & ~FLAGS)
		return wh_fail(EINVAL, "%s: options.flags is %#x; WRITE, CREATE and GROW", call,
			       options->flags);
	if (options->flags & ~(uint32_t)WH_FILE_WRITE && !writes)
		return wh_fail(EINVAL, "%s: CREATE and GROW take WH_FILE_WRITE", call);
	if (options->flags & WH_FILE_CREATE && !path)
		return wh_fail(EINVAL, "%s: an open file cannot be created", call);
	if (options->durable > WH_FILE_DURABLE_ALL)
		return wh_fail(EINVAL, "%s: options.durable is %u; NONE, DATA or ALL", call,
			       options->durable);
	if (options->flags & WH_FILE_GROW && !options->length)
		return wh_fail(EINVAL,
			       "%s: options.length is 0; with WH_FILE_GROW it says how long the "
			       "range may become",
			       call);
	if (options->offset > INT64_MAX || options->length > INT64_MAX - options->offset)
		return wh_fail(EINVAL, "%s: no file has offset %llu and %llu bytes behind it", call,
			       (ull)options->offset, (ull)options->length);
	return 0;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* A file that was created survives a crash only if its directory is written, too. */
static int created_sync(const char *path)
{
	char *copy = strdup(path);
	int fd = copy ? open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	int error = !copy ? ENOMEM : fd < 0 || fsync(fd) ? errno : 0;

	if (fd >= 0)
		close(fd);
	free(copy);
	return error ? wh_fail(error, "%s: fsync of the directory of %.120s: %s", call, path,
			       strerror(error)) :
		       0;
}

/* O_NONBLOCK: of a FIFO without a writer, open() would wait; it is refused below. */
static int file_open_path(struct wh_file *file, const char *path,
			  const struct wh_file_options *options)
{
	int how = (file->writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
	bool create = options->flags & WH_FILE_CREATE;

	file->fd = open(path, how);
	if (file->fd < 0 && errno == ENOENT && create) {
		file->fd = open(path, how | O_CREAT | O_EXCL, 0666);
		if (file->fd < 0 && errno == EEXIST)
			file->fd = open(path, how);
		else if (file->fd >= 0 && file->durable == WH_FILE_DURABLE_ALL)
			return created_sync(path);
	}
	if (file->fd < 0)
		return wh_fail(errno, "%s: open %.150s: %s", call, path, strerror(errno));
	return 0;
}

static int file_duplicate(struct wh_file *file, int fd)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0 || flags & O_PATH)
		return wh_fail(EBADF, "%s: descriptor %d is not an open file", call, fd);
	if (flags & O_APPEND)
		return wh_fail(EINVAL,
			       "%s: descriptor %d is open with O_APPEND, which ignores offsets",
			       call, fd);
	if ((flags & O_ACCMODE) == O_WRONLY || (file->writable && (flags & O_ACCMODE) == O_RDONLY))
		return wh_fail(EACCES, "%s: descriptor %d is not open for %s", call, fd,
			       file->writable && (flags & O_ACCMODE) == O_RDONLY ? "writing" :
										   "reading");
	file->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	return file->fd < 0 ? wh_fail(errno, "%s: descriptor %d: %s", call, fd, strerror(errno)) :
			      0;
}

/* FUSE asks its server for the file's length even when the bytes are there. Others that may do such
 * things refuse reads that must not wait. */
static bool file_may_wait(int fd)
{
	struct statfs system;

	return fstatfs(fd, &system) || system.f_type == FUSE_SUPER_MAGIC;
}

/* Check that it is a regular file that holds the range; the length of the range, if it is 0. */
static int file_measure(struct wh_file *file, uint64_t *device)
{
	struct stat stat;
	uint64_t size;

	if (fstat(file->fd, &stat))
		return wh_fail(errno, "%s: fstat of %s: %s", call, file->name, strerror(errno));
	if (!S_ISREG(stat.st_mode))
		return wh_fail(EINVAL, "%s: %s is not a regular file", call, file->name);
	*device = stat.st_dev;
	size = (uint64_t)stat.st_size;
	if (!file->length && size > file->start)
		file->length = size - file->start;
	if (!file->length)
		return wh_fail(EINVAL, "%s: %s has %llu bytes: none from offset %llu on", call,
			       file->name, (ull)size, (ull)file->start);
	if (!file->grows && file->start + file->length > size)
		return wh_fail(ERANGE,
			       "%s: offset %llu + length %llu is behind the end of %s, which has "
			       "%llu bytes; WH_FILE_GROW allows that",
			       call, (ull)file->start, (ull)file->length, file->name, (ull)size);
	return 0;
}

static size_t file_pages(const struct wh_file *file)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	return (file->length + page - 1) / page * page;
}

static int file_reserve(struct wh_file *file)
{
	void *at = mmap(NULL, file_pages(file), PROT_NONE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		return wh_fail(ENOMEM, "%s: no %llu bytes of address space for %s: %s", call,
			       (ull)file->length, file->name, strerror(errno));
	file->addresses = at;
	return 0;
}

/* Texts show the end of a long path, which says more than its beginning. */
static void file_name(struct wh_file *file, const char *path, int fd)
{
	size_t length = path ? strlen(path) : 0, most = sizeof(file->name) - 1;

	if (!path)
		snprintf(file->name, sizeof(file->name), "descriptor %d", fd);
	else if (length <= most)
		snprintf(file->name, sizeof(file->name), "%s", path);
	else
		snprintf(file->name, sizeof(file->name), "...%s", path + length - (most - 3));
}

static int file_open(struct wh_file_threads *threads, const char *path, int fd,
		     const struct wh_file_options *options, struct wh_file **out)
{
	struct wh_file *file = calloc(1, sizeof(*file));
	pthread_rwlockattr_t fair;
	uint64_t device = 0;
	int error;

	if (!file)
		return wh_fail(ENOMEM, "%s: no memory", call);
	file->fd = -1;
	file->start = options->offset;
	file->length = options->length;
	file->writable = options->flags & WH_FILE_WRITE;
	file->grows = options->flags & WH_FILE_GROW;
	file->durable = options->durable;
	file->sync_next = 1;
	file->direct = WH_FILE_DIRECT_UNKNOWN;
	pthread_mutex_init(&file->lock, NULL);
	pthread_cond_init(&file->synced, NULL);
	pthread_rwlockattr_init(&fair);
	/* Otherwise writes past the cache could keep those through it waiting for ever. */
	pthread_rwlockattr_setkind_np(&fair, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&file->cache, &fair);
	pthread_rwlockattr_destroy(&fair);
	file_name(file, path, fd);
	error = path ? file_open_path(file, path, options) : file_duplicate(file, fd);
	if (!error)
		error = file_measure(file, &device);
	if (!error)
		error = wh_file_threads_system(threads, device, &file->system);
	if (!error)
		error = file_reserve(file);
	file->waits = error || file_may_wait(file->fd);
	if (error)
		wh_file_close(file);
	else
		*out = file;
	return error;
}

/* An open file of its own, of the same file. */
static int direct_open(struct wh_file *file)
{
	struct statx is = { 0 };
	char path[40];
	int fd;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", file->fd);
	/* Without O_NONBLOCK, with which io_uring of Linux before 5.12 ends what has to wait. */
	fd = open(path, (file->writes_direct ? O_RDWR : O_RDONLY) | O_DIRECT | O_CLOEXEC);
	if (fd < 0)
		return WH_FILE_DIRECT_NONE;
	file->alignment = DIRECT_ALIGNMENT;
#ifdef STATX_DIOALIGN
	if (!statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &is) && is.stx_mask & STATX_DIOALIGN) {
		file->alignment = is.stx_dio_mem_align > is.stx_dio_offset_align ?
					  is.stx_dio_mem_align :
					  is.stx_dio_offset_align;
		if (!file->alignment || file->alignment & (file->alignment - 1)) {
			close(fd);
			return WH_FILE_DIRECT_NONE;
		}
	}
#endif
	(void)is;
	return fd;
}

int wh_file_open_direct(struct wh_file *file)
{
	int fd = atomic_load_explicit(&file->direct, memory_order_acquire);

	if (fd != WH_FILE_DIRECT_UNKNOWN)
		return fd;
	pthread_mutex_lock(&file->lock);
	fd = atomic_load(&file->direct);
	if (fd == WH_FILE_DIRECT_UNKNOWN) {
		fd = direct_open(file);
		atomic_store_explicit(&file->direct, fd, memory_order_release);
	}
	pthread_mutex_unlock(&file->lock);
	return fd;
}

/* Of an error of io_uring: which limit that may be. */
static const char *ring_limit(int error, char out[48])
{
	struct rlimit limit;

	*out = 0;
	if (error == -ENOMEM && !getrlimit(RLIMIT_MEMLOCK, &limit) &&
	    limit.rlim_cur != RLIM_INFINITY)
		snprintf(out, 48, " (RLIMIT_MEMLOCK is %llu KiB)",
			 (unsigned long long)limit.rlim_cur >> 10);
	return out;
}

bool wh_file_describe_writes(struct wh_file *file, char *out, size_t size)
{
	int error = file->rings ? wh_file_rings_error(file->rings) : 0;
	char limit[48];

	if (!file->writes_direct)
		return false;
	if (atomic_load(&file->direct) == WH_FILE_DIRECT_NONE)
		snprintf(out, size,
			 "file: writes go through the page cache: its file system refuses O_DIRECT "
			 "for reading and writing");
	else if (!file->rings)
		snprintf(out, size,
			 "file: writes go past the page cache where they are aligned, "
			 "by threads (file_cold=pread)");
	else if (error)
		snprintf(out, size,
			 "file: writes go past the page cache where they are aligned, by threads "
			 "(no io_uring: %s%s)",
			 strerror(-error), ring_limit(error, limit));
	else
		snprintf(out, size,
			 "file: writes go past the page cache where they are aligned, "
			 "by io_uring");
	return true;
}

bool wh_file_describe_staged(struct wh_file *file, uint32_t op, char *line, size_t size)
{
	int none = file->rings ? wh_file_rings_error(file->rings) : 0, error;
	char limit[48];
	size_t used;

	if (op == WH_WRITE && !wh_file_describe_writes(file, line, size))
		return *line;
	error = none || !file->rings ? none : wh_file_rings_buffers_error(file->rings);
	if (!error || (none && op == WH_WRITE))
		return *line;
	used = strlen(line);
	snprintf(line + used, size - used, "%s %s: %s%s", used ? ";" : "file:",
		 none ? "no io_uring" : "io_uring goes without registered buffers",
		 strerror(-error), ring_limit(error, limit));
	return true;
}

void wh_file_close(struct wh_file *file)
{
	if (!file)
		return;
	if (file->addresses)
		munmap(file->addresses, file_pages(file));
	if (file->fd >= 0)
		close(file->fd);
	if (atomic_load(&file->direct) >= 0)
		close(atomic_load(&file->direct));
	pthread_rwlock_destroy(&file->cache);
	pthread_cond_destroy(&file->synced);
	pthread_mutex_destroy(&file->lock);
	free(file);
}

int wh_file_registration(struct wh_memory_domain *domain, const char *path, int fd,
			 const struct wh_file_options *options, struct wh_registration **out)
{
	struct wh_registration *registration;
	int error = options_check(options, path);

	if (error)
		return error;
	registration = calloc(1, sizeof(*registration));
	if (!registration)
		return wh_fail(ENOMEM, "%s: no memory", call);
	error = file_open(atomic_load(&domain->file_threads), path, fd, options,
			  &registration->file);
	if (error) {
		free(registration);
		return error;
	}
	registration->file->rings = domain->file_rings;
	registration->file->wants_direct = domain->file_direct;
	registration->file->writes_direct =
		domain->file_writes_direct && registration->file->writable;
	registration->domain = domain;
	registration->address = (uintptr_t)registration->file->addresses;
	registration->length = registration->file->length;
	registration->kind = WH_MEMORY_FILE;
	registration->references = 1;
	*out = registration;
	return 0;
}
