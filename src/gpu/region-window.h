/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Region windows: the CPU windows that an engine keeps for its regions of GPU memory. Through them
 * transports receive straight into that memory, and move a few bytes without asking the GPU.
 *
 * A region window is opened when something first profits from it, or refused then, once, with the
 * reason. It lives as long as its region and no longer, since it keeps the memory allocated:
 * whoever uses one is inside the region, or has a batch that uses it.
 *
 * A region of another process of this host has one as well, onto its memory as CUDA has imported it
 * here. It is closed before that import is, and so before the owner is told that the region has
 * been released.
 *
 * The thread that writes through a region window fences its writes (wh_region_window_fence())
 * before it leaves the region or unlocks what guards it, and flushes them before it reports them as
 * done.
 */
#ifndef WH_GPU_REGION_WINDOW_H
#define WH_GPU_REGION_WINDOW_H

#include <pthread.h>

#include "gpu/stream.h"
#include "memory/region.h"
#include "util/error.h"
#include "window/view.h"

#define WH_REGION_WINDOW_FEW                                                                       \
	((uint64_t)16 << 10) /* more than that no read, and no small write, is */
#define WH_REGION_WINDOW_RUN                                                                       \
	((uint64_t)1024) /* what a run costs at least, as if it had so many bytes */

struct wh_log;

/* The region windows of an engine. */
struct wh_region_windows {
	pthread_mutex_t lock; /* opening and closing one; comes before engine.lock */
	const char *order; /* setting `window` */
	struct wh_windows *windows;
	struct wh_gpus *gpus;
	const struct wh_log *log;
	_Atomic uint64_t opened, open; /* ever; now */
};

/* What the owner of another process's memory has sent, so that a window can be opened onto it. */
#define WH_WINDOW_OBJECTS 64
struct wh_window_objects {
	unsigned count;
	int fd[WH_WINDOW_OBJECTS]; /* for the caller to close */
	uint64_t offset[WH_WINDOW_OBJECTS];
};

struct wh_region_window {
	struct wh_view *view; /* NULL: there is no window */
	unsigned char *base; /* of the region's first byte */
	uint64_t address; /* the same as the region's owner calls it */
	/* up to so many bytes are received faster through it than by way of slots */
	uint64_t receive_most;
	uint64_t put_most; /* ... written by the CPU sooner than by a copy engine */
	uint64_t get_most; /* ... read */
	struct wh_window_cost cost; /* by which that was decided */
	bool measured; /* on this GPU; else of what is usual */
	char refused[WH_REFUSAL]; /* why there is no window */
};

/* `order`, `gpus` and `log` outlive it. 0 or -ENOMEM. */
int wh_region_windows_open(struct wh_region_windows *windows, struct wh_gpus *gpus,
			   const char *order, const struct wh_log *log);
/* All of them have been closed. Also after an open that failed, or on zeroes. */
void wh_region_windows_close(struct wh_region_windows *windows);

/* The region's window, opened if it has none yet: some 100 us, on a GPU's first one a ms more. The
 * region is a GPU's memory and is entered, or has a batch. NULL: refused, now or before. */
const struct wh_region_window *wh_region_window_get(struct wh_region *region);
/* The same if it has been opened already. Who is neither inside the region nor has a batch under
 * way holds wh_region_windows.lock. */
const struct wh_region_window *wh_region_window_peek(const struct wh_region *region);
/* What it is used for, or why there is none. False: nobody has asked for it. */
bool wh_region_window_describe(const struct wh_region *region, char *line, size_t size);
/* The region goes: nobody is inside any more. */
void wh_region_window_close(struct wh_region *region);

/* The same for a GPU's memory of another process, which CUDA knows in this one as memory at
 * `address`. `ask`s its owner where no window opens without: 0, or a negative errno with its text.
 */
const struct wh_region_window *
wh_region_window_get_remote(struct wh_region_windows *windows, struct wh_remote_region *region,
			    uint64_t address, int (*ask)(void *arg, struct wh_window_objects *out),
			    void *arg);
const struct wh_region_window *wh_region_window_peek_remote(const struct wh_remote_region *region);
bool wh_region_window_describe_remote(const struct wh_remote_region *region, char *line,
				      size_t size);
void wh_region_window_close_remote(struct wh_region_windows *windows,
				   struct wh_remote_region *region);

/* Where an address of the region is. */
static inline char *wh_region_window_at(const struct wh_region_window *window, uint64_t address)
{
	return (char *)window->base + (address - window->address);
}

/* Write, and read: the window's side first given by where it is mapped. */
static inline void wh_region_window_put(const struct wh_region_window *window, void *at,
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

/* What has been fenced has arrived when this returns, and so has all that was before it, on the
 * whole device. */
static inline void wh_region_window_flush(const struct wh_region_window *window)
{
	unsigned char byte;

	wh_copy_from(window->view->copy, &byte, window->base, 1);
}

/* The same, once for each device. */
struct wh_region_window_flushed {
	uint64_t devices; /* a bit each */
};

static inline void wh_region_window_flush_once(struct wh_region_window_flushed *flushed,
					       const struct wh_region_window *window)
{
	uint64_t bit = UINT64_C(1) << window->view->device->ordinal % 64;

	if (!(flushed->devices & bit))
		wh_region_window_flush(window);
	flushed->devices |= bit;
}

/* A run's part of the least costs by which put_most and get_most are compared. */
static inline uint64_t wh_region_window_run(uint64_t length)
{
	return length > WH_REGION_WINDOW_RUN ? length : WH_REGION_WINDOW_RUN;
}

#endif
