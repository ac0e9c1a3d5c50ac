/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory/file-io.c: reads and writes of files, and making them durable
 *
 * What is in the page cache is copied at once. What is not is read by io_uring, many requests at a
 * time, which is what disks want, and past the page cache where memory and file are aligned alike.
 *
 * Writes go through the page cache, or (setting file_writes) past it where that is possible.
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
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <wherry/transfer.h>

#include "memory/file-ring.h"
#include "memory/file.h"
#include "util/error.h"

typedef unsigned long long ull;

#ifndef SYS_cachestat
#define SYS_cachestat 451 /* x86-64 and arm64 */
#endif

/* Extents in one system call: those that follow one another in the file. */
#define VECTOR 64
/* Bytes in one: the kernel moves no more than 2 GiB at a time, and a disk must not keep a thread
 * from noticing that the file has been cut for long. */
#define CALL_BYTES (8u << 20)

/* Past the page cache, and of what is not in it: bytes moved by one request, and requests that are
 * gathered before they are submitted. */
#define COLD_BYTES ((uint64_t)128 << 10)
#define COLD_PARTS 256u

/* Bytes that are read to find out whether a range is in the page cache, if the kernel does not say.
 */
#define SAMPLES 16u

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
	uint32_t extent; /* of vector[0]; each element is a part of the next one */
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
	run->extent += (uint32_t)done;
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

/* ---- past the page cache ----------------------------------------------------------------------
 */

/* Parts of reads or writes, many of which are under way at once. */
struct parts {
	struct wh_file *file;
	uint32_t op;
	struct wh_file_ring *ring; /* NULL: one after the other, which only writes do */
	int direct; /* descriptor; negative: none */
	uint32_t count;
	struct wh_file_part parts[COLD_PARTS];
	uint32_t failed; /* the first extent that cannot be moved; UINT32_MAX: none */
	int error;
};

static void parts_fail(struct parts *parts, uint32_t extent, int error)
{
	if (extent >= parts->failed)
		return;
	parts->failed = extent;
	parts->error = error;
}

/* Write through the page cache. Where others write past it, not at the same time: a page that is
 * dirty again when a direct write wants to drop it makes the kernel report EIO. */
static int run_write(struct wh_file *file, struct run *run)
{
	int error;

	pthread_rwlock_wrlock(&file->cache);
	error = run_move(file, WH_WRITE, run);
	pthread_rwlock_unlock(&file->cache);
	return error;
}

static int part_move(struct wh_file *file, uint32_t op, uint32_t extent, uint64_t at, char *memory,
		     uint64_t length)
{
	struct run run = { .count = 1, .extent = extent, .at = at, .bytes = length };

	run.vector[0] = (struct iovec){ memory, length };
	return op == WH_READ ? run_move(file, op, &run) : run_write(file, &run);
}

static void parts_move(struct parts *parts)
{
	if (parts->ring) {
		wh_file_ring_move(parts->ring, parts->op, parts->parts, parts->count);
		return;
	}
	for (uint32_t i = 0; i < parts->count; i++) {
		struct wh_file_part *part = &parts->parts[i];

		part->done = (int32_t)pwrite(part->fd, part->memory, part->length, (off_t)part->at);
	}
}

/* What is not moved to its end is moved once more, by a plain call: that finds out what is wrong,
 * if anything is. `size`: how long the file is behind a write. */
static int part_end(struct parts *parts, const struct wh_file_part *part, uint64_t size)
{
	uint32_t done = part->done > 0 ? (uint32_t)part->done : 0;

	if (done < part->length)
		return part_move(parts->file, parts->op, part->extent, part->at + done,
				 part->memory + done, part->length - done);
	if (part->at + part->length > size)
		return move_cut(parts->file, parts->op, part->at + part->length);
	return 0;
}

static void parts_flush(struct parts *parts)
{
	uint64_t size = UINT64_MAX;
	struct stat is;
	int error;

	if (parts->count && parts->op == WH_WRITE) {
		pthread_rwlock_rdlock(&parts->file->cache);
		parts_move(parts);
		pthread_rwlock_unlock(&parts->file->cache);
		size = fstat(parts->file->fd, &is) ? 0 : (uint64_t)is.st_size;
	} else if (parts->count) {
		parts_move(parts);
	}
	for (uint32_t i = 0; i < parts->count; i++) {
		error = part_end(parts, &parts->parts[i], size);
		if (error)
			parts_fail(parts, parts->parts[i].extent, error);
	}
	parts->count = 0;
}

static void parts_put(struct parts *parts, int fd, uint32_t extent, uint64_t at, char *memory,
		      uint64_t length)
{
	for (uint64_t done = 0; done < length; done += COLD_BYTES) {
		uint64_t part = length - done < COLD_BYTES ? length - done : COLD_BYTES;

		if (parts->count == COLD_PARTS)
			parts_flush(parts);
		parts->parts[parts->count++] = (struct wh_file_part){ .fd = fd,
								      .extent = extent,
								      .at = at + done,
								      .memory = memory + done,
								      .length = (uint32_t)part };
	}
}

/* Bytes that are contiguous on both sides: `head` and `tail` of them go through the page cache,
 * what is between past it. */
struct edges {
	uint64_t head, middle, tail;
};

static struct edges edges_of(uint64_t align, uint64_t at, const char *memory, uint64_t length)
{
	struct edges edges = { .head = length };

	if (!align || (at ^ (uintptr_t)memory) & (align - 1))
		return edges;
	edges.head = -at & (align - 1);
	edges.head = edges.head < length ? edges.head : length;
	edges.middle = (length - edges.head) & ~(align - 1);
	edges.tail = length - edges.head - edges.middle;
	return edges;
}

/* Add bytes of a read that are contiguous on both sides. */
static void parts_add(struct parts *parts, uint32_t extent, uint64_t at, char *memory,
		      uint64_t length)
{
	uint64_t align = parts->direct >= 0 ? parts->file->alignment : 0;
	struct edges edges = edges_of(align, at, memory, length);
	uint64_t behind = edges.head + edges.middle;

	parts_put(parts, parts->file->fd, extent, at, memory, edges.head);
	parts_put(parts, parts->direct, extent, at + edges.head, memory + edges.head, edges.middle);
	parts_put(parts, parts->file->fd, extent, at + behind, memory + behind, edges.tail);
}

/* ---- what is in the page cache ----------------------------------------------------------------
 */

enum residency { RESIDENT, COLD, UNKNOWN };

/* Is most of it in the page cache? The kernel knows from Linux 6.5 on; of files that belong to
 * others it may not tell. */
static enum residency file_residency(const struct wh_file *file, uint64_t at, uint64_t bytes)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct {
		uint64_t offset, length;
	} range = { at, bytes };
	struct {
		uint64_t cached, dirty, writeback, evicted, recently_evicted;
	} found;
	uint64_t pages = (at + bytes - 1) / page - at / page + 1;

	if (syscall(SYS_cachestat, file->fd, &range, &found, 0))
		return UNKNOWN;
	return found.cached >= pages - pages / 8 ? RESIDENT : COLD;
}

bool wh_file_is_resident(const struct wh_file *file, uint64_t at, uint64_t length)
{
	enum residency residency = file_residency(file, at, length);
	struct iovec byte = { &(char){ 0 }, 1 };
	unsigned there = 0;

	if (residency != UNKNOWN)
		return residency == RESIDENT;
	for (unsigned i = 0; i < SAMPLES; i++)
		there += preadv2(file->fd, &byte, 1, (off_t)(at + i * (length / SAMPLES)),
				 RWF_NOWAIT) == 1;
	return there >= SAMPLES - SAMPLES / 8;
}

/* Read what is in the page cache, from the start of the run; the run is the rest then. 0: the rest
 * is not in it; else why the kernel does not say, a positive errno; ENODATA: the file ends. */
static int run_read_cached(const struct wh_file *file, struct run *run)
{
	ssize_t got;

	while (run->bytes) {
		got = preadv2(file->fd, run->vector, run->count, (off_t)run->at, RWF_NOWAIT);
		if (got > 0)
			run_advance(run, (uint64_t)got);
		else if (!got)
			return ENODATA;
		else if (errno != EINTR)
			return errno == EAGAIN ? 0 : errno;
	}
	return 0;
}

/* The same; where the kernel does not say, read all. 0, or an error. */
static int run_read_resident(const struct wh_file *file, struct run *run)
{
	return run_read_cached(file, run) ? run_move(file, WH_READ, run) : 0;
}

static void run_put_cold(struct parts *parts, const struct run *run)
{
	uint64_t at = run->at;

	for (int i = 0; i < run->count; i++) {
		parts_add(parts, run->extent + (uint32_t)i, at, run->vector[i].iov_base,
			  run->vector[i].iov_len);
		at += run->vector[i].iov_len;
	}
}

/* ---- extents ----------------------------------------------------------------------------------
 */

/* A position in a list of extents. */
struct walk {
	const struct wh_file_extent *extents;
	uint32_t count, next;
	uint64_t skip; /* bytes of extent `next` */
};

/* Take the extents that follow one another in the file. */
static void walk_take(const struct wh_file *file, struct walk *walk, struct run *run)
{
	const struct wh_file_extent *extents = walk->extents;

	run->at = file->start + extents[walk->next].offset + walk->skip;
	run->extent = walk->next;
	run->bytes = 0;
	run->count = 0;
	while (walk->next < walk->count && run->count < VECTOR && run->bytes < CALL_BYTES &&
	       file->start + extents[walk->next].offset + walk->skip == run->at + run->bytes) {
		uint64_t length = extents[walk->next].length - walk->skip;

		if (length > CALL_BYTES - run->bytes)
			length = CALL_BYTES - run->bytes;
		run->vector[run->count++] =
			(struct iovec){ extents[walk->next].memory + walk->skip, length };
		run->bytes += length;
		walk->skip += length;
		if (walk->skip == extents[walk->next].length) {
			walk->next++;
			walk->skip = 0;
		}
	}
}

static int move_plain(struct wh_file *file, uint32_t op, struct walk *walk, uint32_t *moved)
{
	struct run run;
	int error = 0;

	while (!error && walk->next < walk->count) {
		walk_take(file, walk, &run);
		error = run_move(file, op, &run);
		if (!error)
			*moved = walk->next;
	}
	return error;
}

static int parts_end(struct parts *parts, const struct walk *walk, uint32_t *moved)
{
	parts_flush(parts);
	*moved = parts->failed == UINT32_MAX ? walk->count : parts->failed;
	return parts->failed == UINT32_MAX ? 0 : parts->error;
}

/* Write heads and tails of the run, behind what went past the page cache. */
static void run_write_edges(struct parts *parts, const struct run *run, uint64_t align)
{
	uint64_t at = run->at;

	for (int i = 0; i < run->count; at += run->vector[i++].iov_len) {
		char *memory = run->vector[i].iov_base;
		struct edges edges = edges_of(align, at, memory, run->vector[i].iov_len);
		uint64_t behind = edges.head + edges.middle;
		uint32_t extent = run->extent + (uint32_t)i;
		int error = edges.head ? part_move(parts->file, WH_WRITE, extent, at, memory,
						   edges.head) :
					 0;

		if (!error && edges.tail)
			error = part_move(parts->file, WH_WRITE, extent, at + behind,
					  memory + behind, edges.tail);
		if (error)
			parts_fail(parts, extent, error);
	}
}

/* Put what can go past the page cache. Returns how many bytes that are. */
static uint64_t run_put_direct(struct parts *parts, const struct run *run, uint64_t align)
{
	uint64_t at = run->at, bytes = 0;

	for (int i = 0; i < run->count; at += run->vector[i++].iov_len) {
		char *memory = run->vector[i].iov_base;
		struct edges edges = edges_of(align, at, memory, run->vector[i].iov_len);

		parts_put(parts, parts->direct, run->extent + (uint32_t)i, at + edges.head,
			  memory + edges.head, edges.middle);
		bytes += edges.middle;
	}
	return bytes;
}

/* Write past the page cache what is aligned alike in memory and in the file, the rest through it:
 * whole pages of both, because direct writes drop pages of the cache. A function of its own because
 * of its large stack frame. */
static __attribute__((noinline)) int write_direct(struct wh_file *file, struct wh_file_ring *ring,
						  struct walk *walk, uint32_t *moved)
{
	struct parts parts = { .file = file,
			       .op = WH_WRITE,
			       .ring = ring,
			       .direct = wh_file_open_direct(file),
			       .failed = UINT32_MAX };
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), align, direct;
	struct run run;
	int error;

	align = file->alignment > page ? file->alignment : page;
	while (walk->next < walk->count && parts.failed == UINT32_MAX) {
		walk_take(file, walk, &run);
		error = file_check_write(file, run.at + run.bytes);
		direct = error ? 0 : run_put_direct(&parts, &run, align);
		if (!error && direct < run.bytes) {
			parts_flush(&parts);
			if (direct)
				run_write_edges(&parts, &run, align);
			else
				error = run_write(file, &run);
		}
		/* run.extent is the first one that is not whole. */
		if (error)
			parts_fail(&parts, run.extent, error);
	}
	return parts_end(&parts, walk, moved);
}

int wh_file_begin_direct(struct wh_file *file, uint64_t end)
{
	int error = file_check_write(file, end);

	if (!error)
		pthread_rwlock_rdlock(&file->cache);
	return error;
}

int wh_file_end_direct(struct wh_file *file, uint64_t end, int error)
{
	pthread_rwlock_unlock(&file->cache);
	return error ? error : file_check_end(file, WH_WRITE, end);
}

/* Read what is in the page cache, and then the rest, as many parts at once as the ring takes. A
 * function of its own because of its large stack frame. */
static __attribute__((noinline)) int read_by_ring(struct wh_file *file, struct wh_file_ring *ring,
						  struct walk *walk, uint32_t *moved)
{
	struct parts parts = { .file = file, .op = WH_READ, .ring = ring, .failed = UINT32_MAX };
	enum residency residency;
	struct run run;
	int error;

	parts.direct = file->wants_direct ? wh_file_open_direct(file) : WH_FILE_DIRECT_NONE;
	while (walk->next < walk->count && parts.failed == UINT32_MAX) {
		walk_take(file, walk, &run);
		/* A read that does not wait is one call less, but where it finds nothing it makes
		 * the kernel read ahead, and then the disk reads twice. */
		residency = atomic_load_explicit(&file->warm, memory_order_relaxed) ?
				    UNKNOWN :
				    file_residency(file, run.at, run.bytes);
		error = residency == RESIDENT ? run_move(file, WH_READ, &run) :
			residency == UNKNOWN  ? run_read_resident(file, &run) :
						0;
		/* run.extent is the first one that is not whole. */
		if (error)
			parts_fail(&parts, run.extent, error);
		else if (run.bytes)
			run_put_cold(&parts, &run);
		atomic_store_explicit(&file->warm, !run.bytes, memory_order_relaxed);
	}
	return parts_end(&parts, walk, moved);
}

int wh_file_move(struct wh_file *file, uint32_t op, const struct wh_file_extent *extents,
		 uint32_t count, uint32_t *moved)
{
	struct walk walk = { .extents = extents, .count = count };
	bool direct = op == WH_WRITE && file->writes_direct && wh_file_open_direct(file) >= 0;
	struct wh_file_ring *ring =
		(op == WH_READ || direct) && file->rings ? wh_file_ring_take(file->rings) : NULL;
	int error;

	*moved = 0;
	if (direct)
		error = write_direct(file, ring, &walk, moved);
	else if (ring)
		error = read_by_ring(file, ring, &walk, moved);
	else
		error = move_plain(file, op, &walk, moved);
	if (ring)
		wh_file_ring_give(file->rings, ring);
	return error;
}

bool wh_file_read_cached(struct wh_file *file, const struct wh_file_extent *extents, uint32_t count)
{
	bool warm = atomic_load_explicit(&file->warm, memory_order_relaxed), whole = !file->waits;
	struct walk walk = { .extents = extents, .count = count };
	struct run run;

	while (whole && walk.next < count) {
		walk_take(file, &walk, &run);
		whole = (warm || file_residency(file, run.at, run.bytes) == RESIDENT) &&
			!run_read_cached(file, &run) && !run.bytes;
	}
	if (!whole)
		atomic_store_explicit(&file->warm, false, memory_order_relaxed);
	return whole;
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
