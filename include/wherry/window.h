/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WHERRY_WINDOW_H
#define WHERRY_WINDOW_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct wh_engine;
struct wh_window;

/* A window is a range of addresses in this process through which the CPU reads and writes a GPU's
 * memory, by plain loads and stores over PCIe. It is the fastest way for a few bytes: a write of up
 * to 64 bytes takes 0.13 us and a read 1 us, where a copy by the CUDA driver takes 6 us. System
 * calls such as recv() and read() can fill it. Large copies reach about 20 GB/s into the GPU, but
 * only 1 GB/s out of it.
 *
 * Stores into a window are posted. wh_window_copy_to() returns when they are issued; they are
 * ordered before later stores of the same thread. wh_window_flush() returns when they have arrived.
 * The next read sees what the GPU has written. Aligned accesses of up to 8 bytes are atomic between
 * CPU and GPU. Windows do not wait for copies of the CUDA driver: make sure that such copies into
 * the memory have ended. */

/* How the CPU sees the memory behind a window. */
enum wh_window_mapping {
	WH_WINDOW_STAGED = 0, /* not mapped: copies use the GPU's copy engine */
	WH_WINDOW_WC = 1, /* write-combining */
	WH_WINDOW_CACHED = 2, /* coherent with the GPU */
	WH_WINDOW_DEVICE = 3, /* device memory (Arm): aligned accesses only */
};

struct wh_window_options {
	size_t size;
	/* The backends to try, in this order, separated by commas; NULL: the setting `window`.
	 *   driver    the kernel module behind /dev/gdrdrv
	 *   dmabuf    mmap() of a dma-buf; needs a driver of CUDA 13.3
	 *   rm        the NVIDIA driver's user interface; for memory of cuMemAlloc, and of
	 *             cuMemCreate for POSIX file descriptors
	 *   rm-watch  the same for any memory, by redirecting libcuda's ioctl() during one call
	 *   staged    no mapping: wh_window_copy_to() and _from() use the copy engine
	 * `rm-watch` and `staged` are used only if they are listed. */
	const char *backends;
	uint32_t mapping; /* the enum wh_window_mapping required; 0: any */
	uint32_t reserved;
};

/* Open a window onto [address, address+length) of a GPU's memory. options may be NULL. The range
 * may start at any address and span adjacent mappings; its memory comes from cuMemAlloc,
 * cuMemAllocAsync or cuMemMap in this process, as far as a backend supports it.
 *
 * The window keeps the memory allocated until it is closed, even after cuMemFree (driver: if the
 * module is configured so). Windows onto the same memory share their mapping where possible. In a
 * child of fork(), accesses fault. Takes 30 to 60 us with `rm`; 1 us if this engine already has a
 * window onto that memory.
 *
 * 0, or -EINVAL (length 0, a range that wraps, an unknown backend), -EFAULT (not all of the range
 * is memory of one GPU: host memory, freed, or past the end), -EOPNOTSUPP (managed memory, another
 * process's memory, the required mapping is not possible, or the setting `window` is off), -ENOMEM
 * (the GPU's BAR1 is full), -EPERM (in a child of fork()); else the last backend's error: -ENOENT,
 * -EACCES (/dev/nvidiactl), -EIO ... The text has the error of each backend. */
int wh_window_open(struct wh_engine *engine, const void *address, size_t length,
		   const struct wh_window_options *options, struct wh_window **out);

/* Close the window. No thread may use it or its pointer any more. Windows may be closed in any
 * order. */
int wh_window_close(struct wh_window *window);

/* Copy `length` bytes from ordinary memory to `offset` in the window. When it returns, the stores
 * are issued, and ordered before this thread's later stores, also through other windows. With
 * `staged`, the bytes have arrived. Several threads may copy at the same time.
 * 0, or -EINVAL (past the window's end); with `staged` also -EFAULT (the GPU memory is gone), -EIO.
 */
int wh_window_copy_to(struct wh_window *window, uint64_t offset, const void *from, size_t length);

/* Copy `length` bytes from `offset` in the window to ordinary memory, as they are during the call.
 * Above a measured limit of some KiB (wh_window_info.engine_from) the GPU's copy engine copies,
 * after everything that was written through the window. 0, or as wh_window_copy_to(). */
int wh_window_copy_from(struct wh_window *window, uint64_t offset, void *to, size_t length);

/* Wait until all bytes that this thread has written through the window have arrived in the GPU's
 * memory. Reads back once, about 1 us. 0, or -EPERM (in a child of fork()). */
int wh_window_flush(struct wh_window *window);

struct wh_window_info {
	size_t size; /* set by the caller */
	void *pointer; /* the window's first byte for the CPU; NULL: staged */
	uint64_t address; /* the same byte for the GPU */
	uint64_t length;
	uint64_t engine_from; /* reads of at least this many bytes use the copy engine; UINT64_MAX:
				 none do; 0: not measured yet */
	uint32_t mapping; /* enum wh_window_mapping */
	uint32_t reserved;
	char backend[16]; /* "rm" */
	char writes[16]; /* instruction set of copies into the window: "avx512" */
	char reads[16]; /* and out of it */
	char said[640]; /* each tried backend's message, "driver: ...; rm: chosen" */
};

/* Describe the window. 0, or -EINVAL, -E2BIG. */
int wh_window_info(struct wh_window *window, struct wh_window_info *info);

#ifdef __cplusplus
}
#endif
#endif
