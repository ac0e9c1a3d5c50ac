/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pages.h: the page cache of a file, page-locked for GPUs, so that they read a file without a copy
 * by a CPU.
 *
 * The file is mapped read-only and page-locked in chunks, ahead of the copies that read them. The
 * CPU never loads from the mapping, so that a file that becomes shorter raises no SIGBUS. A
 * page-locked page outlives its place in the file: after a truncation, a hole or a write past the
 * page cache it has bytes that the file has no more. So a use is checked when its copies have
 * ended, and if it may have read such pages, the caller reads the file again.
 */
#ifndef WH_TRANSPORT_CUDA_PAGES_H
#define WH_TRANSPORT_CUDA_PAGES_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct wh_device_mappings;
struct wh_file;
struct wh_file_pages;

#define WH_FILE_CHUNK ((uint64_t)32 << 20) /* bytes that are page-locked by one call */

/* What one part of a batch reads. Zeroed by the caller. */
struct wh_file_use {
	struct wh_file_pages *pages;
	uint32_t number; /* of this use; never 0 */
	int64_t age; /* ns since the file was changed last, when the use began */
	_Atomic int64_t budget; /* bytes that it may still page-lock */
	/* the bytes of the file that it reads are in [first, end); UINT64_MAX, 0: none */
	_Atomic uint64_t first, end;
	bool by_threads; /* wh_file_pages_enter() has chosen these */
};

/* The pages of a file that is registered. Nothing is mapped before the first use. NULL: no memory.
 */
struct wh_file_pages *wh_file_pages_new(struct wh_device_mappings *mappings, struct wh_file *file);
/* Let all pages go. Waits for uses that are about to leave. NULL is allowed. */
void wh_file_pages_close(struct wh_file_pages *pages);

/* The calls below may wait for the file system: from threads for files only. */

/* Begin a use that reads `bytes`, the first of them at `offset` of the region. Kept pages of a file
 * that has changed are let go. False: this use cannot be, or threads are faster;
 * wh_file_pages_describe() says why. */
bool wh_file_pages_enter(struct wh_file_pages *pages, uint64_t offset, uint64_t bytes,
			 struct wh_file_use *use);
/* Threads have read all of a use that has `by_threads`, or have failed. Any thread. */
void wh_file_pages_read(struct wh_file_pages *pages, uint64_t bytes, bool failed);
/* The address by which GPUs read the byte at `offset` of the region; the next *length bytes follow
 * it (*length is made smaller if need be). Page-locks the chunk if it is in the page cache. False:
 * it is not, or cannot be locked. Thread-safe. */
bool wh_file_pages_get(struct wh_file_use *use, uint64_t offset, uint64_t *length,
		       uint64_t *address);
/* Can a GPU read all of [offset, offset + length) of the region, which is not empty, without more
 * looks at pages? Then *address is that of the region's first byte, whether that is page-locked or
 * not. False: not all is page-locked; or the file was changed so recently that the page tables have
 * to be asked, which wh_file_pages_get() does; or GPUs do not see the chunks side by side.
 * Thread-safe. */
bool wh_file_pages_whole(struct wh_file_use *use, uint64_t offset, uint64_t length,
			 uint64_t *address);
/* Is the chunk of the byte at `offset` of the region page-locked already? Any thread. */
bool wh_file_pages_locked(const struct wh_file_use *use, uint64_t offset);
/* Bytes from `offset` of the region to the end of its chunk. Any thread. */
uint64_t wh_file_pages_room(const struct wh_file_pages *pages, uint64_t offset);
/* For explanations: so many bytes more have been read by a GPU, or by threads. Any thread. */
void wh_file_pages_count(struct wh_file_use *use, uint64_t by_gpu, uint64_t by_threads);
/* All copies of the use have ended. False: they may have read bytes that the file did not have. */
bool wh_file_pages_check(struct wh_file_use *use);
/* End a use. No copy may be under way. With file_pages=once the last one lets all pages go. */
void wh_file_pages_leave(struct wh_file_use *use);
/* Are pages let go with the last use? */
bool wh_file_pages_once(const struct wh_file_pages *pages);

/* For explanations: why the last use did not read page-locked pages; "": it did, or there was none.
 * Any thread. */
void wh_file_pages_describe(struct wh_file_pages *pages, char *why, size_t size);
/* The same: bytes that the last use has read by a GPU and by threads. Any thread. */
void wh_file_pages_shares(const struct wh_file_pages *pages, uint64_t *by_gpu,
			  uint64_t *by_threads);

#endif
