/* SPDX-License-Identifier: Apache-2.0 */
/*
 * region-window.h: the CPU windows that an engine opens for regions of GPU memory. Through them
 * transports receive directly into GPU memory, and copy a few bytes without the GPU's copy engines.
 *
 * A region window is opened on first use; if that fails, the reason is kept and nobody tries again.
 * It is closed with its region, because it keeps the memory allocated: a thread that uses one has
 * entered the region, or has a batch that uses the region.
 *
 * Remote regions of processes on this host can have one, too, onto the memory as CUDA has imported
 * it into this process. It is closed before the import, and so before the owner learns that the
 * region has been released.
 *
 * A thread that writes through a region window calls wh_region_window_fence() before it leaves the
 * region or unlocks its lock, and flushes before it reports its writes as done.
 */
#ifndef WH_GPU_REGION_WINDOW_H
#define WH_GPU_REGION_WINDOW_H

#include <pthread.h>

#include "gpu/stream.h"
#include "memory/region.h"
#include "util/error.h"
#include "window/view.h"

/* The most bytes of a small read or write, which the CPU may do instead of a copy engine. */
#define WH_REGION_WINDOW_FEW ((uint64_t)16 << 10)
/* A shorter extent costs as much as one of so many bytes. */
#define WH_REGION_WINDOW_LEAST ((uint64_t)1024)

struct wh_log;

/* The region windows of an engine. */
struct wh_region_windows {
	pthread_mutex_t lock; /* held while one is opened or closed; the first of all locks */
	const char *order; /* setting `window` */
	struct wh_windows *windows;
	struct wh_gpus *gpus;
	const struct wh_log *log;
	atomic_bool warned; /* that there is no window: said once */
	_Atomic uint64_t opened, open; /* how many: in all; now */
};

/* File descriptors of another process's memory, sent by its owner, from which a window can be
 * opened. */
#define WH_WINDOW_OBJECTS 64
struct wh_window_objects {
	unsigned count;
	int fd[WH_WINDOW_OBJECTS]; /* for the caller to close */
	uint64_t offset[WH_WINDOW_OBJECTS];
};

struct wh_region_window {
	struct wh_view *view; /* NULL: opening has failed, see `refused` */
	unsigned char *base; /* where the region's first byte is mapped */
	uint64_t address; /* of the same byte in the owner's process */
	uint64_t receive_most; /* bytes; longer requests are received faster through slots */
	uint64_t put_most; /* bytes; beyond them a copy engine writes faster than the CPU */
	uint64_t get_most; /* bytes; beyond them a copy engine reads faster than the CPU */
	struct wh_window_cost cost; /* from which the three limits follow */
	bool measured; /* `cost` was measured on this GPU; else typical values */
	char refused[WH_REFUSAL]; /* why there is no window */
	bool missed; /* there is none, although the settings ask for one */
};

/* `order`, `gpus` and `log` must outlive the region windows. 0 or -ENOMEM. */
int wh_region_windows_open(struct wh_region_windows *windows, struct wh_gpus *gpus,
			   const char *order, const struct wh_log *log);
/* All region windows must be closed. Allowed after an open that failed, and on a zeroed struct. */
void wh_region_windows_close(struct wh_region_windows *windows);

/* Get the region's window; open it on first use, which takes about 100 us, and a ms more for the
 * first one of a GPU. The region is GPU memory; the caller has entered it or has a batch that uses
 * it. NULL: no window can be opened. */
const struct wh_region_window *wh_region_window_get(struct wh_region *region);
/* The region's window if it is open, else NULL. A caller that has neither entered the region nor a
 * batch that uses it holds wh_region_windows.lock. */
const struct wh_region_window *wh_region_window_peek(const struct wh_region *region);
/* Write to `line` what the window is used for, or why there is none; behind "warning: ", if there
 * should be one. False: never opened. */
bool wh_region_window_describe(const struct wh_region *region, char *line, size_t size);
/* The region is being unregistered, and no thread is inside it. */
void wh_region_window_close(struct wh_region *region);

/* The same for a remote region: GPU memory of another process, which CUDA has imported at
 * `address`. If no window opens without the owner's file descriptors, ask(arg, out) requests them;
 * it returns 0, or a negative errno with an error text. It may block; wh_region_windows.lock is not
 * held. */
const struct wh_region_window *
wh_region_window_get_remote(struct wh_region_windows *windows, struct wh_remote_region *region,
			    uint64_t address, int (*ask)(void *arg, struct wh_window_objects *out),
			    void *arg);
const struct wh_region_window *wh_region_window_peek_remote(const struct wh_remote_region *region);
bool wh_region_window_describe_remote(const struct wh_remote_region *region, char *line,
				      size_t size);
void wh_region_window_close_remote(struct wh_region_windows *windows,
				   struct wh_remote_region *region);

/* Where an address of the region is mapped. */
static inline char *wh_region_window_at(const struct wh_region_window *window, uint64_t address)
{
	return (char *)window->base + (address - window->address);
}

/* Write `length` bytes to `at`, a mapped address of the window. wh_region_window_read() reads. */
static inline void wh_region_window_write(const struct wh_region_window *window, void *at,
					  const void *from, size_t length)
{
	window->view->copy.put->put(at, from, length);
}

static inline void wh_region_window_read(const struct wh_region_window *window, void *to,
					 const void *at, size_t length)
{
	wh_copy_from(window->view->copy, to, at, length);
}

static inline void wh_region_window_fence(void)
{
	wh_copy_issued();
}

/* When this returns, all writes that were fenced before have reached the memory of the device, of
 * whichever region. */
static inline void wh_region_window_flush(const struct wh_region_window *window)
{
	unsigned char byte;

	wh_copy_from(window->view->copy, &byte, window->base, 1);
}

/* The same, but only once for each device. */
struct wh_region_window_flushed {
	uint64_t devices; /* a bit for each device that has been flushed */
};

static inline void wh_region_window_flush_once(struct wh_region_window_flushed *flushed,
					       const struct wh_region_window *window)
{
	uint64_t bit = UINT64_C(1) << window->view->device->ordinal % 64;

	if (!(flushed->devices & bit))
		wh_region_window_flush(window);
	flushed->devices |= bit;
}

/* What an extent counts when the sum over all extents is compared with put_most and get_most. */
static inline uint64_t wh_region_window_weight(uint64_t length)
{
	return length > WH_REGION_WINDOW_LEAST ? length : WH_REGION_WINDOW_LEAST;
}

#endif
