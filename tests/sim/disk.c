/* SPDX-License-Identifier: Apache-2.0 */
/* Files on the disks of hosts, which survive the processes: reads and writes that are slow, short,
 * or fail, and a disk that does not answer for a while. Two disks for each host. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "calls.h"
#include "world.h"

#define DISKS 2
#define DEVICE_FIRST 1000
#define EXT4 0xef53
#define SECTOR 512 /* what a disk writes as a whole */
#define PAGE 4096 /* what is a hole, or is not */

static struct file *files;
static uint64_t file_count;
static int64_t hangs_until[SIM_HOSTS][DISKS];

uint8_t *sim_file_new(int host, const char *path, size_t size)
{
	struct file *file = calloc(1, sizeof(*file));

	file->number = ++file_count;
	file->next = files;
	files = file;
	file->host = host;
	file->disk = (int)sim_draw_world(DISKS);
	snprintf(file->path, sizeof(file->path), "%s", path);
	file->bytes = calloc(1, size);
	file->size = size;
	return file->bytes;
}

/* ---- files that have names (names.c) --------------------------------------------------------- */

struct file *file_new_named(int host)
{
	struct file *file = calloc(1, sizeof(*file));

	file->number = ++file_count;
	file->next = files;
	files = file;
	file->host = host;
	file->disk = (int)sim_draw_world(DISKS);
	file->named = true;
	return file;
}

void file_resize(struct file *file, size_t size)
{
	file->bytes = sim_grow(file->bytes, size + 1, 1);
	if (size > file->size)
		memset(file->bytes + file->size, 0, size - file->size);
	file->size = size;
}

void file_synced(struct file *file)
{
	file->synced = sim_grow(file->synced, file->size + 1, 1);
	memcpy(file->synced, file->bytes, file->size);
	file->synced_size = file->size;
}

/* Of what was not synced, any sectors are there. */
static void file_lose_power(struct file *file)
{
	size_t size = sim_draw_world(2) ? file->size : file->synced_size;

	file_resize(file, size);
	for (size_t at = 0; at < size; at += SECTOR) {
		size_t length = size - at < SECTOR ? size - at : SECTOR;
		size_t old = at >= file->synced_size         ? 0 :
			     file->synced_size - at < length ? file->synced_size - at :
							       length;

		if (sim_draw_world(2))
			continue;
		memset(file->bytes + at, 0, length);
		if (old)
			memcpy(file->bytes + at, file->synced + at, old);
	}
	file_synced(file);
}

void disk_lose_power(int host)
{
	for (struct file *file = files; file; file = file->next)
		if (file->named && file->host == host &&
		    (file->size != file->synced_size ||
		     (file->size && memcmp(file->bytes, file->synced, file->size) != 0)))
			file_lose_power(file);
	names_lose_power(host);
}

/* ---- disks that hang ------------------------------------------------------------------------- */

void sim_disk_hang(int host, int64_t ns)
{
	hangs_until[host][sim_draw_chaos(DISKS)] = sim_time + ns;
}

bool sim_disk_hung(int host, int64_t since)
{
	return hangs_until[host][0] > since || hangs_until[host][1] > since;
}

void disk_heal(void)
{
	for (int i = 0; i < SIM_HOSTS; i++)
		for (int j = 0; j < DISKS; j++)
			if (hangs_until[i][j] > sim_time)
				hangs_until[i][j] = sim_time;
}

static uint32_t file_events(const struct descriptor *descriptor)
{
	(void)descriptor;
	return EPOLLIN | EPOLLOUT;
}

static const struct descriptor_kind kind_file = {
	.name = "file",
	.events = file_events,
};

struct descriptor *disk_descriptor(struct file *file)
{
	struct descriptor *descriptor = descriptor_new(&kind_file);

	descriptor->file = file;
	return descriptor;
}

int disk_open(const char *path, int flags)
{
	struct descriptor *descriptor;
	struct file *file = files;

	call_point("open", (uint64_t)flags);
	while (file && (strcmp(file->path, path) != 0))
		file = file->next;
	if (!file || file->host != node_of(node_self())->host)
		return (int)call_failed("open", -1, ENOENT);
	if (flags & O_DIRECT)
		return (int)call_failed("open", -1, EINVAL);
	if (node_lacks_descriptors())
		return (int)call_failed("open", -1, EMFILE);
	descriptor = disk_descriptor(file);
	descriptor->flags = flags;
	return (int)call_result("open", -1, descriptor->fd);
}

int disk_stat(const struct file *file, struct stat *out)
{
	*out = (struct stat){ .st_mode = S_IFREG | (file->named ? file->mode : 0600),
			      .st_size = (off_t)file->size,
			      .st_mtim = { file->mtime / SIM_SEC, file->mtime % SIM_SEC },
			      .st_dev = (dev_t)(DEVICE_FIRST + file->host * DISKS + file->disk),
			      .st_ino = file->number,
			      .st_nlink = file->named ? file_links(file) : 1,
			      .st_uid = geteuid(),
			      .st_blksize = 4096 };
	return 0;
}

int sim_fstatfs(int fd, struct statfs *out)
{
	const struct descriptor *descriptor = descriptor_of(fd);

	if (!descriptor)
		return fstatfs(fd, out);
	*out = (struct statfs){ .f_type = EXT4, .f_bsize = 4096 };
	return 0;
}

static bool disk_answers(const struct fiber *fiber)
{
	const struct file *file = fiber->on;

	return hangs_until[file->host][file->disk] <= sim_time;
}

int disk_wait(const struct file *file, bool writes)
{
	if (sim_options.disk_us)
		sim_sleep((int64_t)sim_draw_world((uint64_t)sim_options.disk_us * 1000));
	while (file && hangs_until[file->host][file->disk] > sim_time)
		fiber_block(disk_answers, file, 0, hangs_until[file->host][file->disk], "a disk");
	if (!node_of(node_self())->alive || sim_chance(sim_options.disk_fails))
		return EIO;
	return writes && sim_chance(sim_options.disk_full) ? ENOSPC : 0;
}

static ssize_t disk_move(const char *call, int fd, const struct iovec *parts, int count, off_t at,
			 bool writes)
{
	const struct descriptor *descriptor = descriptor_of(fd);
	struct file *file = descriptor ? descriptor->file : NULL;
	size_t total = 0, done = 0;
	int error;

	call_point(call, (uint64_t)at);
	if (!file)
		return call_failed(call, fd, EBADF);
	error = disk_wait(file, writes);
	if (error)
		return call_failed(call, fd, error);
	for (int i = 0; i < count; i++)
		total += parts[i].iov_len;
	if ((size_t)at >= file->size)
		return writes ? call_failed(call, fd, ENOSPC) : call_result(call, fd, 0);
	total = total < file->size - (size_t)at ? total : file->size - (size_t)at;
	if (total > 1 && sim_chance(writes ? sim_options.short_write : sim_options.short_read))
		total = 1 + sim_draw_world(total - 1);
	for (int i = 0; i < count && done < total; i++) {
		size_t part = parts[i].iov_len < total - done ? parts[i].iov_len : total - done;

		if (writes)
			memcpy(file->bytes + at + done, parts[i].iov_base, part);
		else
			memcpy(parts[i].iov_base, file->bytes + at + done, part);
		done += part;
	}
	if (writes)
		file->mtime = sim_time;
	/* A turn of an engine without threads may consist of this. */
	if (done)
		sim_worked();
	return call_result(call, fd, (long)done);
}

ssize_t sim_preadv(int fd, const struct iovec *parts, int count, off_t at)
{
	return disk_move("preadv", fd, parts, count, at, false);
}

ssize_t sim_pread(int fd, void *bytes, size_t length, off_t at)
{
	struct iovec part = { bytes, length };

	return descriptor_of(fd) ? disk_move("pread", fd, &part, 1, at, false) :
				   pread(fd, bytes, length, at);
}

/* Nothing is in the page cache. */
ssize_t sim_preadv2(int fd, const struct iovec *parts, int count, off_t at, int flags)
{
	(void)parts;
	(void)count;
	(void)flags;
	call_point("preadv2", (uint64_t)at);
	return call_failed("preadv2", fd, EAGAIN);
}

ssize_t sim_pwritev(int fd, const struct iovec *parts, int count, off_t at)
{
	return disk_move("pwritev", fd, parts, count, at, true);
}

ssize_t sim_pwrite(int fd, const void *bytes, size_t length, off_t at)
{
	struct iovec part = { (void *)bytes, length };

	return disk_move("pwrite", fd, &part, 1, at, true);
}

static int disk_sync(const char *call, int fd)
{
	const struct descriptor *descriptor = descriptor_of(fd);
	int error;

	call_point(call, (uint64_t)fd);
	if (!descriptor || !descriptor->file)
		return (int)call_failed(call, fd, EBADF);
	error = disk_wait(descriptor->file, false);
	if (error)
		return (int)call_failed(call, fd, error);
	if (descriptor->file->named)
		file_synced(descriptor->file);
	return (int)call_result(call, fd, 0);
}

int sim_fdatasync(int fd)
{
	return disk_sync("fdatasync", fd);
}

int sim_fsync(int fd)
{
	return disk_sync("fsync", fd);
}

/* ---- what a file is besides its bytes -------------------------------------------------------- */

/* The file that a call changes. NULL: errno is set. */
static struct file *change_begin(const char *call, int fd, bool writes)
{
	struct file *file = descriptor_of(fd)->file;
	int error;

	call_point(call, (uint64_t)fd);
	error = disk_wait(file, writes);
	if (!error)
		return file;
	call_failed(call, fd, error);
	return NULL;
}

int disk_truncate(int fd, off_t length)
{
	struct file *file = change_begin("ftruncate", fd, true);

	if (!file)
		return -1;
	file_resize(file, (size_t)length);
	return (int)call_result("ftruncate", fd, 0);
}

/* Programs have directories of their own, so nobody else has the lock. */
int sim_flock(int fd, int operation)
{
	call_point("flock", (uint64_t)operation);
	return (int)call_result("flock", fd, 0);
}

int disk_chmod(int fd, mode_t mode)
{
	struct file *file = change_begin("fchmod", fd, false);

	if (!file)
		return -1;
	file->mode = mode;
	return (int)call_result("fchmod", fd, 0);
}

int sim_futimens(int fd, const struct timespec times[2])
{
	int64_t mtime = times[1].tv_sec * SIM_SEC + times[1].tv_nsec;
	struct file *file;

	if (folder_has(fd))
		return folder_set_time(fd, mtime);
	file = change_begin("futimens", fd, false);
	if (!file)
		return -1;
	file->mtime = mtime;
	return (int)call_result("futimens", fd, 0);
}

static bool is_hole(const struct file *file, size_t at)
{
	size_t length = file->size - at < PAGE ? file->size - at : PAGE;

	for (size_t i = 0; i < length; i++)
		if (file->bytes[at + i])
			return false;
	return true;
}

/* Pages of zeros are holes. */
off_t sim_lseek(int fd, off_t at, int whence)
{
	const struct descriptor *descriptor = descriptor_of(fd);
	const struct file *file = descriptor ? descriptor->file : NULL;
	bool hole = whence == SEEK_HOLE;

	if (!file)
		return lseek(fd, at, whence);
	call_point("lseek", (uint64_t)at);
	if (whence != SEEK_DATA && whence != SEEK_HOLE)
		return call_failed("lseek", fd, EINVAL);
	if ((size_t)at >= file->size)
		return call_failed("lseek", fd, ENXIO);
	while ((size_t)at < file->size && is_hole(file, (size_t)at / PAGE * PAGE) != hole)
		at = (at / PAGE + 1) * PAGE;
	if ((size_t)at < file->size)
		return call_result("lseek", fd, at);
	return hole ? call_result("lseek", fd, (long)file->size) : call_failed("lseek", fd, ENXIO);
}
