/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory/file-io.c: reads and writes of files, and making them durable
 *
 * A file may become shorter at any time. A read past its end returns fewer bytes, and that is an
 * error here. A write past its end would make it longer again, so its length is looked at before
 * and after each.
 */
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <wherry/transfer.h>

#include "memory/file.h"
#include "util/error.h"

typedef unsigned long long ull;

/* Extents in one system call: those that follow one another in the file. */
#define VECTOR 64
/* Bytes in one: the kernel moves no more than 2 GiB at a time, and a disk must not keep a thread
 * from noticing that the file has been cut for long. */
#define CALL_BYTES (8u << 20)

static int move_fail(const struct wh_file *file, uint32_t op, uint64_t at, int error)
{
	return wh_fail(error, "%s %s at offset %llu: %s", op == WH_READ ? "reading" : "writing",
		       file->name, (ull)at, strerror(error));
}

static int move_cut(const struct wh_file *file, uint32_t op, uint64_t end)
{
	return wh_fail(EIO, "%s %s: it has been made shorter than %llu bytes",
		       op == WH_READ ? "reading" : "writing", file->name, (ull)end);
}

/* Does the file reach up to `end`? */
static int file_check_end(const struct wh_file *file, uint32_t op, uint64_t end)
{
	struct stat stat;

	if (fstat(file->fd, &stat))
		return move_fail(file, op, end, errno);
	return (uint64_t)stat.st_size < end ? move_cut(file, op, end) : 0;
}

/* Before a write of the file's bytes up to `end`. The kernel would send SIGXFSZ beyond the
 * process's limit, which ends a program that does not expect it. */
static int file_check_write(const struct wh_file *file, uint64_t end)
{
	struct rlimit limit;

	if (!file->writable)
		return wh_fail(EACCES, "writing %s: it was registered without WH_FILE_WRITE",
			       file->name);
	if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY &&
	    end > limit.rlim_cur)
		return wh_fail(EFBIG, "writing %s up to offset %llu: RLIMIT_FSIZE is %llu",
			       file->name, (ull)end, (ull)limit.rlim_cur);
	return file->grows ? 0 : file_check_end(file, WH_WRITE, end);
}

/* ---- one run of the file --------------------------------------------------------------------- */

/* Memory for bytes that follow one another in the file. */
struct run {
	struct iovec vector[VECTOR];
	int count;
	uint64_t at, bytes; /* in the file */
};

/* Take off what has been moved. */
static void run_advance(struct run *run, uint64_t bytes)
{
	int done = 0;

	run->at += bytes;
	run->bytes -= bytes;
	while (done < run->count && bytes >= run->vector[done].iov_len)
		bytes -= run->vector[done++].iov_len;
	run->count -= done;
	memmove(run->vector, run->vector + done, (size_t)run->count * sizeof(run->vector[0]));
	if (bytes) {
		run->vector[0].iov_base = (char *)run->vector[0].iov_base + bytes;
		run->vector[0].iov_len -= bytes;
	}
}

static int run_move(const struct wh_file *file, uint32_t op, struct run *run)
{
	uint64_t end = run->at + run->bytes;
	int error = op == WH_WRITE ? file_check_write(file, end) : 0;
	ssize_t got;

	while (!error && run->bytes) {
		got = op == WH_READ ? preadv(file->fd, run->vector, run->count, (off_t)run->at) :
				      pwritev(file->fd, run->vector, run->count, (off_t)run->at);
		if (got > 0)
			run_advance(run, (uint64_t)got);
		else if (!got && op == WH_READ)
			error = move_cut(file, op, end);
		else if (!got)
			error = move_fail(file, op, run->at, EIO);
		else if (errno != EINTR)
			error = move_fail(file, op, run->at, errno);
	}
	return !error && op == WH_WRITE ? file_check_end(file, op, end) : error;
}

int wh_file_move(struct wh_file *file, uint32_t op, const struct wh_file_extent *extents,
		 uint32_t count, uint32_t *moved)
{
	uint32_t next = 0;
	uint64_t skip = 0; /* bytes of extent `next` */
	struct run run;
	int error = 0;

	*moved = 0;
	while (!error && next < count) {
		run.at = file->start + extents[next].offset + skip;
		run.bytes = 0;
		run.count = 0;
		while (next < count && run.count < VECTOR && run.bytes < CALL_BYTES &&
		       file->start + extents[next].offset + skip == run.at + run.bytes) {
			uint64_t length = extents[next].length - skip;

			if (length > CALL_BYTES - run.bytes)
				length = CALL_BYTES - run.bytes;
			run.vector[run.count++] =
				(struct iovec){ extents[next].memory + skip, length };
			run.bytes += length;
			skip += length;
			if (skip == extents[next].length) {
				next++;
				skip = 0;
			}
		}
		error = run_move(file, op, &run);
		if (!error)
			*moved = next;
	}
	return error;
}

/* ---- durability ------------------------------------------------------------------------------ */

static int file_sync_now(const struct wh_file *file)
{
	int error;

	do
		error = file->durable == WH_FILE_DURABLE_ALL ? fsync(file->fd) :
							       fdatasync(file->fd);
	while (error && errno == EINTR);
	return error ? -errno : 0;
}

int wh_file_sync(struct wh_file *file)
{
	uint64_t wanted, mine;
	int error;

	if (file->durable == WH_FILE_DURABLE_NONE)
		return 0;
	pthread_mutex_lock(&file->lock);
	/* One that has begun may have missed what this thread has written. */
	wanted = file->sync_next;
	while (file->sync_done < wanted && !file->sync_error) {
		if (file->syncing) {
			pthread_cond_wait(&file->synced, &file->lock);
			continue;
		}
		file->syncing = true;
		mine = file->sync_next++;
		pthread_mutex_unlock(&file->lock);
		error = file_sync_now(file);
		pthread_mutex_lock(&file->lock);
		file->syncing = false;
		file->sync_done = mine;
		if (error)
			file->sync_error = error;
		pthread_cond_broadcast(&file->synced);
	}
	error = file->sync_error;
	pthread_mutex_unlock(&file->lock);
	if (error)
		return wh_fail(-error, "%s of %s: %s; register it anew",
			       file->durable == WH_FILE_DURABLE_ALL ? "fsync" : "fdatasync",
			       file->name, strerror(-error));
	return 0;
}
