/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport cuda: the page cache of files, page-locked for GPUs (pages.h).
 *
 * How stale pages are found out. Truncating, punching holes and writing past the page cache change
 * a file's size or its times, so two equal looks at these, before and after the copies, say that
 * nothing of the kind has begun in between. Where they cannot say it (they differ, or the file was
 * changed so recently that another change could have the same time), the page tables do: the kernel
 * takes a page out of every mapping before it takes it out of the page cache, and nobody maps it
 * again, because nobody loads from the mapping.
 */
#include "transport/cuda/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "memory/file.h"
#include "transport/core.h"
#include "transport/cuda/cuda.h"
#include "util/clock.h"
#include "util/config.h"
#include "util/error.h"

/* A use of fewer bytes page-locks nothing: reading them takes less time. */
#define LEAST ((uint64_t)4 << 20)
/* A use page-locks at most so many times what it reads. */
#define EXCESS 4
/* How much of a use is looked at to see whether it is in the page cache: so many times so much. */
#define SAMPLES 4
#define SAMPLE ((uint64_t)8 << 20)
/* Times of a file advance in ticks of at most 10 ms. */
#define TICKS ((int64_t)50 * 1000000)
/* No write past the page cache that began before the file's last change is still under way. */
#define SETTLED ((int64_t)10 * 1000000000)

/* Entries of /proc/self/pagemap */
#define ENTRY_FILE (UINT64_C(1) << 61) /* a page of a file or of shared memory */
#define ENTRY_PRESENT (UINT64_C(1) << 63)

/* What a file was when it was looked at. */
struct stamp {
	uint64_t size, inode;
	struct timespec modified, changed;
};

struct chunk {
	_Atomic uint64_t address; /* by which GPUs know it; 0: it is not page-locked */
	/* Its pages were locked, or found in the page cache, when no write could be under way any
	 * more. Under the lock. */
	bool settled;
	/* the last use for which it was checked; if it is settled, of no importance */
	_Atomic uint32_t checked;
};

struct wh_file_pages {
	struct wh_device_mappings *mappings;
	struct wh_file *file;
	bool once;
	bool chooses; /* threads read it first where they are faster */
	uint64_t limit; /* bytes that all files of the engine may have page-locked */
	uint64_t base; /* of the mapping in the file; a multiple of the page size */
	uint64_t span; /* bytes of the mapping */
	size_t count;
	struct chunk *chunks;
	dev_t device; /* of the file's system */

	pthread_mutex_t lock; /* of what follows, and page-locking */
	pthread_cond_t left;
	char *map;
	unsigned users;
	uint32_t uses;
	bool stale; /* pages are to be let go as soon as nobody uses them */
	bool refused; /* the driver takes no pages of this file as it is; `why` */
	struct stamp stamp; /* of all chunks; stays while there are users */
	uint64_t read; /* bytes that uses left to threads, because these are faster */
	/* bytes that were page-locked since a use last ended, and ns that this took */
	uint64_t locked;
	int64_t locking;

	/* of the last use: bytes that a GPU has read out of these pages, and threads beside it */
	_Atomic uint64_t by_gpu, by_threads;
	pthread_mutex_t why_lock; /* of what follows; nobody waits for the file system under it */
	char why[WH_REFUSAL];
	/* uses under way that threads read, since when (ns), and bytes of those that have ended */
	unsigned reading;
	int64_t reading_since;
	uint64_t reading_bytes;
	bool reading_cold; /* not all was in the page cache: that teaches nothing */
};

static bool stamp_take(const struct wh_file *file, struct stamp *out)
{
	struct stat is;

	if (fstat(file->fd, &is))
		return false;
	*out = (struct stamp){ .size = (uint64_t)is.st_size,
			       .inode = is.st_ino,
			       .modified = is.st_mtim,
			       .changed = is.st_ctim };
	return true;
}

/* ns since the file's last change; negative: its clock is another one. */
static int64_t stamp_age(const struct stamp *stamp)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (now.tv_sec - stamp->changed.tv_sec) * 1000000000 + now.tv_nsec -
	       stamp->changed.tv_nsec;
}

static bool stamps_equal(const struct stamp *a, const struct stamp *b)
{
	return a->size == b->size && a->inode == b->inode &&
	       a->modified.tv_sec == b->modified.tv_sec &&
	       a->modified.tv_nsec == b->modified.tv_nsec &&
	       a->changed.tv_sec == b->changed.tv_sec && a->changed.tv_nsec == b->changed.tv_nsec;
}

static __attribute__((format(printf, 2, 3))) bool pages_refuse(struct wh_file_pages *pages,
							       const char *format, ...)
{
	va_list list;

	pthread_mutex_lock(&pages->why_lock);
	va_start(list, format);
	vsnprintf(pages->why, sizeof(pages->why), format, list);
	va_end(list);
	pthread_mutex_unlock(&pages->why_lock);
	return false;
}

/* Has each page been mapped since it was page-locked? */
static bool pages_are_mapped(const char *at, uint64_t length)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), wanted = ENTRY_PRESENT | ENTRY_FILE;
	uint64_t next = (uint64_t)(uintptr_t)at / page, end = next + (length + page - 1) / page;
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	uint64_t entries[512];
	bool good = fd >= 0;

	while (good && next < end) {
		size_t count = end - next < 512 ? end - next : 512;
		ssize_t got = pread(fd, entries, 8 * count, (off_t)(8 * next));

		good = got >= 8;
		for (size_t i = 0; good && i < (size_t)got / 8; i++)
			good = (entries[i] & wanted) == wanted;
		next += good ? (size_t)got / 8 : 0;
	}
	if (fd >= 0)
		close(fd);
	return good;
}

/* ---- chunks, under the lock ------------------------------------------------------------------ */

/* Bytes of the chunk that the file has, in whole pages. */
static uint64_t chunk_length(const struct wh_file_pages *pages, size_t index)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t start = index * WH_FILE_CHUNK, end = start + WH_FILE_CHUNK, have;

	have = pages->stamp.size > pages->base ? pages->stamp.size - pages->base : 0;
	have = (have + page - 1) / page * page;
	end = end < pages->span ? end : pages->span;
	end = end < have ? end : have;
	return end > start ? end - start : 0;
}

static bool pages_enter_context(struct wh_file_pages *pages, struct wh_cuda_scope *scope)
{
	struct wh_gpus *gpus = pages->mappings->gpus;
	struct wh_cuda_device *device;

	return !wh_gpus_pinning_device(gpus, NULL, &device) &&
	       !wh_cuda_enter(wh_gpus_cuda(gpus), device, scope);
}

static void chunk_unlock(struct wh_file_pages *pages, size_t index)
{
	struct wh_cuda *cuda = wh_gpus_cuda(pages->mappings->gpus);

	cuda->cuMemHostUnregister(pages->map + index * WH_FILE_CHUNK);
	atomic_store(&pages->chunks[index].address, 0);
	atomic_fetch_sub(&pages->mappings->file_pages, chunk_length(pages, index));
}

/* Nobody uses them. What the driver does not know any more (its context is gone) is gone, too. */
static void pages_let_go(struct wh_file_pages *pages)
{
	struct wh_cuda_scope scope;
	bool entered = false;

	for (size_t i = 0; pages->map && i < pages->count; i++) {
		if (!atomic_load(&pages->chunks[i].address))
			continue;
		entered = entered || pages_enter_context(pages, &scope);
		if (!entered)
			break;
		chunk_unlock(pages, i);
	}
	if (entered)
		wh_cuda_leave(&scope);
	pages->stale = false;
}

static bool pages_map(struct wh_file_pages *pages)
{
	void *map;

	if (pages->map)
		return true;
	map = mmap(NULL, pages->span, PROT_READ, MAP_SHARED | MAP_NORESERVE, pages->file->fd,
		   (off_t)pages->base);
	if (map == MAP_FAILED) {
		pages->refused = true;
		return pages_refuse(pages, "mmap: %s", strerror(errno));
	}
	/* A child would have the pages, and no context of CUDA's. */
	madvise(map, pages->span, MADV_DONTFORK);
	pages->map = map;
	return true;
}

/* In a scope of the pinning device. */
static int chunk_register(struct wh_file_pages *pages, size_t index, uint64_t length, int64_t age)
{
	const unsigned flags = CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP | CUDA_HOST_READ_ONLY;
	struct wh_cuda *cuda = wh_gpus_cuda(pages->mappings->gpus);
	char *at = pages->map + index * WH_FILE_CHUNK;
	uint64_t address = 0;
	int error = wh_cuda_check(cuda, cuda->cuMemHostRegister(at, length, flags),
				  "cuMemHostRegister", "%llu bytes of %s, read-only",
				  (unsigned long long)length, pages->file->name);

	if (error)
		return error;
	error = wh_cuda_check(cuda, cuda->cuMemHostGetDevicePointer(&address, at, 0),
			      "cuMemHostGetDevicePointer", "%p", (void *)at);
	if (error) {
		cuda->cuMemHostUnregister(at);
		return error;
	}
	pages->chunks[index].settled = age >= SETTLED;
	atomic_store(&pages->chunks[index].address, address);
	return 0;
}

static bool chunk_lock(struct wh_file_pages *pages, size_t index, struct wh_file_use *use)
{
	uint64_t length = chunk_length(pages, index);
	int64_t start = wh_now();
	struct wh_cuda_scope scope;
	int error;

	if (!length)
		return pages_refuse(pages, "the file is shorter");
	if ((int64_t)length > atomic_load(&use->budget))
		return pages_refuse(pages, "few bytes of much of the file are read");
	if (!wh_file_is_resident(pages->file, pages->base + index * WH_FILE_CHUNK, length))
		return pages_refuse(pages, "not in the page cache");
	if (atomic_fetch_add(&pages->mappings->file_pages, length) + length > pages->limit) {
		atomic_fetch_sub(&pages->mappings->file_pages, length);
		return pages_refuse(pages, "a quarter of this machine's memory is page-locked for "
					   "files already");
	}
	error = pages_map(pages) ? 0 : -ENOMEM;
	if (!error && !pages_enter_context(pages, &scope)) {
		error = -ENODEV;
		pages_refuse(pages, "%s", wh_error_text());
	} else if (!error) {
		error = chunk_register(pages, index, length, use->age);
		wh_cuda_leave(&scope);
		if (error) {
			pages->refused = true;
			pages_refuse(pages, "%s", wh_error_text());
		}
	}
	if (error) {
		atomic_fetch_sub(&pages->mappings->file_pages, length);
		return false;
	}
	atomic_fetch_sub(&use->budget, (int64_t)length);
	pages->locked += length;
	pages->locking += wh_now() - start;
	return true;
}

/* Of a chunk that an earlier use has locked: is it the page cache's still? */
static bool chunk_check(struct wh_file_pages *pages, size_t index, const struct wh_file_use *use)
{
	struct chunk *chunk = &pages->chunks[index];

	if (chunk->settled)
		return true;
	if (pages_are_mapped(pages->map + index * WH_FILE_CHUNK, chunk_length(pages, index))) {
		chunk->settled = use->age >= SETTLED;
		return true;
	}
	pages->stale = true;
	return pages_refuse(pages, "pages have been taken out of the page cache");
}

/* ---- uses ------------------------------------------------------------------------------------ */

static void atomic_least(_Atomic uint64_t *value, uint64_t other)
{
	uint64_t now = atomic_load(value);

	while (other < now && !atomic_compare_exchange_weak(value, &now, other))
		;
}

static void atomic_most(_Atomic uint64_t *value, uint64_t other)
{
	uint64_t now = atomic_load(value);

	while (other > now && !atomic_compare_exchange_weak(value, &now, other))
		;
}

/* The chunk of a byte of the region. */
static size_t chunk_of(const struct wh_file_pages *pages, uint64_t offset)
{
	return (size_t)((pages->file->start + offset - pages->base) / WH_FILE_CHUNK);
}

bool wh_file_pages_get(struct wh_file_use *use, uint64_t offset, uint64_t *length,
		       uint64_t *address)
{
	struct wh_file_pages *pages = use->pages;
	uint64_t at = pages->file->start + offset - pages->base, room;
	size_t index = chunk_of(pages, offset);
	struct chunk *chunk = &pages->chunks[index];
	bool good = true;

	if (!atomic_load(&chunk->address) || atomic_load(&chunk->checked) != use->number) {
		pthread_mutex_lock(&pages->lock);
		good = !pages->refused && !pages->stale &&
		       (atomic_load(&chunk->address) ? chunk_check(pages, index, use) :
						       chunk_lock(pages, index, use));
		if (good)
			atomic_store(&chunk->checked, use->number);
		pthread_mutex_unlock(&pages->lock);
	}
	if (!good)
		return false;
	room = index * WH_FILE_CHUNK + chunk_length(pages, index);
	if (at >= room)
		return false; /* behind the file's end */
	*length = *length < room - at ? *length : room - at;
	*address = atomic_load(&chunk->address) + at % WH_FILE_CHUNK;
	atomic_least(&use->first, at);
	atomic_most(&use->end, at + *length);
	return true;
}

bool wh_file_pages_whole(struct wh_file_use *use, uint64_t offset, uint64_t length,
			 uint64_t *address)
{
	struct wh_file_pages *pages = use->pages;
	uint64_t skip = pages->file->start - pages->base, start = skip + offset, found = 0;
	bool good;

	pthread_mutex_lock(&pages->lock);
	good = !pages->stale && pages->base + start + length <= pages->stamp.size;
	for (size_t i = chunk_of(pages, offset); good && i * WH_FILE_CHUNK < start + length; i++) {
		uint64_t at = atomic_load(&pages->chunks[i].address), map = at - i * WH_FILE_CHUNK;

		good = at && pages->chunks[i].settled && (!found || map == found);
		found = map;
	}
	pthread_mutex_unlock(&pages->lock);
	if (!good)
		return false;
	*address = found + skip;
	atomic_least(&use->first, start);
	atomic_most(&use->end, start + length);
	return true;
}

bool wh_file_pages_locked(const struct wh_file_use *use, uint64_t offset)
{
	const struct wh_file_pages *pages = use->pages;

	return atomic_load(&pages->chunks[chunk_of(pages, offset)].address);
}

uint64_t wh_file_pages_room(const struct wh_file_pages *pages, uint64_t offset)
{
	return WH_FILE_CHUNK - (pages->file->start + offset - pages->base) % WH_FILE_CHUNK;
}

/* Why this machine has no such pages, if so. */
static bool pages_find_device(struct wh_file_pages *pages)
{
	struct wh_cuda_device *device;

	if (wh_gpus_pinning_device(pages->mappings->gpus, NULL, &device))
		return pages_refuse(pages, "%s", wh_error_text());
	if (!device->read_only_register)
		return pages_refuse(pages,
				    "%s cannot page-lock memory read-only "
				    "(READ_ONLY_HOST_REGISTER_SUPPORTED is 0)",
				    device->name);
	return true;
}

/* Is it in the page cache, by the look of some of it? */
static bool pages_are_warm(const struct wh_file_pages *pages, uint64_t offset, uint64_t bytes)
{
	uint64_t part = bytes < SAMPLE ? bytes : SAMPLE;

	for (uint64_t i = 0; i < SAMPLES; i++) {
		uint64_t at = offset + (bytes - part) / (SAMPLES - 1) * i;

		if (!wh_file_is_resident(pages->file, pages->file->start + at, part))
			return false;
	}
	return true;
}

static void pages_begin_reading(struct wh_file_pages *pages, uint64_t offset, uint64_t bytes)
{
	bool warm = pages_are_warm(pages, offset, bytes);

	pthread_mutex_lock(&pages->why_lock);
	if (!pages->reading++) {
		pages->reading_since = wh_now();
		pages->reading_bytes = 0;
		pages->reading_cold = false;
	}
	pages->reading_cold = pages->reading_cold || !warm;
	pthread_mutex_unlock(&pages->why_lock);
}

void wh_file_pages_read(struct wh_file_pages *pages, uint64_t bytes, bool failed)
{
	uint64_t all = 0;
	int64_t since;

	pthread_mutex_lock(&pages->why_lock);
	pages->reading_bytes += bytes;
	pages->reading_cold = pages->reading_cold || failed;
	since = pages->reading_since;
	if (!--pages->reading && !pages->reading_cold)
		all = pages->reading_bytes;
	pthread_mutex_unlock(&pages->why_lock);
	wh_page_rates_learn(&pages->mappings->page_rates, pages->device, WH_PAGE_BY_THREADS, all,
			    wh_now() - since);
}

/* Do threads read these bytes faster than they could be page-locked? Not what is read a second
 * time: from the third time on, page-locked pages are the fastest, and take no CPU. */
static bool pages_prefer_threads(struct wh_file_pages *pages, uint64_t offset, uint64_t bytes,
				 struct wh_file_use *use)
{
	struct wh_device_mappings *mappings = pages->mappings;
	char why[WH_REFUSAL];

	if (!pages->chooses || pages->map || pages->read >= pages->file->length)
		return false;
	if (!wh_page_rates_prefer_threads(&mappings->page_rates, pages->device,
					  mappings->file_threads, why, sizeof(why)))
		return false;
	pages->read += bytes;
	pages_refuse(pages, "%s", why);
	use->by_threads = true;
	pages_begin_reading(pages, offset, bytes);
	return true;
}

static bool pages_prepare(struct wh_file_pages *pages, uint64_t offset, uint64_t bytes,
			  struct wh_file_use *use)
{
	struct stamp stamp;

	if (!wh_engine_config(pages->mappings->engine)->number[WH_SETTING_PIN])
		return pages_refuse(pages, "the setting pin is off");
	if (!pages_find_device(pages))
		return false;
	if (!stamp_take(pages->file, &stamp))
		return pages_refuse(pages, "fstat fails");
	if (!stamps_equal(&stamp, &pages->stamp) || pages->stale) {
		if (pages->users)
			return pages_refuse(pages, "the file has changed");
		pages_let_go(pages);
		pages->refused = false;
		pages->stamp = stamp;
	}
	if (pages->refused)
		return false;
	if (bytes < LEAST && !pages->map)
		return pages_refuse(pages, "few bytes");
	if (pages_prefer_threads(pages, offset, bytes, use))
		return false;
	use->age = stamp_age(&stamp);
	pages_refuse(pages, "%s", "");
	return true;
}

bool wh_file_pages_enter(struct wh_file_pages *pages, uint64_t offset, uint64_t bytes,
			 struct wh_file_use *use)
{
	bool good;

	pthread_mutex_lock(&pages->lock);
	good = pages_prepare(pages, offset, bytes, use);
	if (good) {
		if (!pages->users) {
			atomic_store(&pages->by_gpu, 0);
			atomic_store(&pages->by_threads, 0);
		}
		pages->users++;
		use->pages = pages;
		use->number = ++pages->uses ? pages->uses : ++pages->uses;
		atomic_store(&use->budget,
			     bytes < LEAST ? 0 : (int64_t)(EXCESS * bytes + WH_FILE_CHUNK));
		atomic_store(&use->first, UINT64_MAX);
		atomic_store(&use->end, 0);
	}
	pthread_mutex_unlock(&pages->lock);
	return good;
}

/* Under the lock. */
static bool use_check_mapped(struct wh_file_use *use)
{
	struct wh_file_pages *pages = use->pages;
	uint64_t first = atomic_load(&use->first) / WH_FILE_CHUNK;
	uint64_t end = (atomic_load(&use->end) + WH_FILE_CHUNK - 1) / WH_FILE_CHUNK;

	for (uint64_t i = first; i < end; i++)
		if (atomic_load(&pages->chunks[i].address) &&
		    !pages_are_mapped(pages->map + i * WH_FILE_CHUNK, chunk_length(pages, i)))
			return false;
	return true;
}

bool wh_file_pages_check(struct wh_file_use *use)
{
	struct wh_file_pages *pages = use->pages;
	uint64_t end = atomic_load(&use->end);
	struct stamp stamp;
	bool good;

	if (!end)
		return true;
	pthread_mutex_lock(&pages->lock);
	good = stamp_take(pages->file, &stamp) && stamp.size >= pages->base + end;
	if (good && (!stamps_equal(&stamp, &pages->stamp) || use->age < TICKS))
		good = use_check_mapped(use);
	if (!good) {
		pages->stale = true;
		pages_refuse(pages, "the file has been cut while it was read");
	}
	pthread_mutex_unlock(&pages->lock);
	return good;
}

void wh_file_pages_leave(struct wh_file_use *use)
{
	struct wh_file_pages *pages = use->pages;

	pthread_mutex_lock(&pages->lock);
	wh_page_rates_learn(&pages->mappings->page_rates, pages->device, WH_PAGE_BY_LOCKING,
			    pages->locked, pages->locking);
	pages->locked = 0;
	pages->locking = 0;
	if (!--pages->users && (pages->once || pages->stale))
		pages_let_go(pages);
	pthread_cond_broadcast(&pages->left);
	pthread_mutex_unlock(&pages->lock);
	use->pages = NULL;
}

void wh_file_pages_count(struct wh_file_use *use, uint64_t by_gpu, uint64_t by_threads)
{
	atomic_fetch_add(&use->pages->by_gpu, by_gpu);
	atomic_fetch_add(&use->pages->by_threads, by_threads);
}

void wh_file_pages_shares(const struct wh_file_pages *pages, uint64_t *by_gpu, uint64_t *by_threads)
{
	*by_gpu = atomic_load(&pages->by_gpu);
	*by_threads = atomic_load(&pages->by_threads);
}

bool wh_file_pages_once(const struct wh_file_pages *pages)
{
	return pages->once;
}

void wh_file_pages_describe(struct wh_file_pages *pages, char *why, size_t size)
{
	pthread_mutex_lock(&pages->why_lock);
	snprintf(why, size, "%s", pages->why);
	pthread_mutex_unlock(&pages->why_lock);
}

/* ---- opening and closing --------------------------------------------------------------------- */

struct wh_file_pages *wh_file_pages_new(struct wh_device_mappings *mappings, struct wh_file *file)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	const char *how = wh_engine_config(mappings->engine)->text[WH_SETTING_FILE_PAGES];
	struct wh_file_pages *pages = calloc(1, sizeof(*pages));
	struct stat is;

	if (!pages)
		return NULL;
	pages->device = fstat(file->fd, &is) ? 0 : is.st_dev;
	pages->mappings = mappings;
	pages->file = file;
	pages->once = !strcmp(how, "once");
	pages->chooses = !strcmp(how, "auto");
	pages->limit = (uint64_t)sysconf(_SC_PHYS_PAGES) / 4 * page;
	pages->base = file->start / page * page;
	pages->span = file->start - pages->base + file->length;
	pages->count = (size_t)((pages->span + WH_FILE_CHUNK - 1) / WH_FILE_CHUNK);
	pages->chunks = calloc(pages->count, sizeof(pages->chunks[0]));
	if (!pages->chunks) {
		free(pages);
		return NULL;
	}
	pthread_mutex_init(&pages->lock, NULL);
	pthread_mutex_init(&pages->why_lock, NULL);
	pthread_cond_init(&pages->left, NULL);
	return pages;
}

void wh_file_pages_close(struct wh_file_pages *pages)
{
	if (!pages)
		return;
	pthread_mutex_lock(&pages->lock);
	while (pages->users)
		pthread_cond_wait(&pages->left, &pages->lock);
	pages_let_go(pages);
	pthread_mutex_unlock(&pages->lock);
	if (pages->map)
		munmap(pages->map, pages->span);
	pthread_cond_destroy(&pages->left);
	pthread_mutex_destroy(&pages->lock);
	pthread_mutex_destroy(&pages->why_lock);
	free(pages->chunks);
	free(pages);
}
