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

/* A window is a place in this process's addresses through which the CPU reads and writes memory of
 * a GPU, by plain loads and stores over PCIe. It is the fastest way for a few bytes (a write of up
 * to 64 bytes takes 0.13 us, a read 1 us, where a copy by the CUDA driver takes 6), and system
 * calls work on it: recv() or read() into it. Many bytes go in at some 20 GB/s, but come out at 1
 * GB/s.
 *
 * Stores into a window are posted: wh_window_copy_to() returns when they are issued, in order
 * before whatever this thread stores afterwards, and wh_window_flush() when they have arrived. What
 * the GPU writes is seen by the next read. CPU and GPU see aligned accesses of up to 8 bytes whole.
 * Copies of the CUDA driver are not waited for: see to it that those into the memory are done. */

/* How the CPU sees the memory behind a window. */
enum wh_window_mapping {
	WH_WINDOW_STAGED = 0, /* not at all: copies go by the GPU's copy engine */
	WH_WINDOW_WC = 1, /* write-combining */
	WH_WINDOW_CACHED = 2, /* coherent with the GPU */
	WH_WINDOW_DEVICE = 3, /* device memory (Arm): aligned accesses only */
};

struct wh_window_options {
	size_t size;
	/* Who may open it, first choice first, comma between; NULL: the knob `window`.
	 *   driver  the kernel module behind /dev/gdrdrv
	 *   dmabuf  mmap() of a dma-buf; needs a driver of CUDA 13.3
	 *   rm      the NVIDIA driver's own user interface: memory of cuMemAlloc, and of
	 * cuMemCreate for POSIX file descriptors rm-watch  the same for any memory, by redirecting
	 * libcuda's ioctl() for the length of one call staged  no mapping: wh_window_copy_to() and
	 * _from() go by copy engine The last two are never tried unless they are named. */
	const char *backends;
	uint32_t mapping; /* enum wh_window_mapping that it has to be; 0: any */
	uint32_t reserved;
};

/* Open a window onto [address, address+length) of a GPU's memory: what cuMemAlloc, cuMemAllocAsync
 * or cuMemMap of this process gave (as far as a backend takes it), any address in it, and as many
 * mappings in a row as there are. The window holds on to the memory (driver: if the module is set
 * so): until it is closed the GPU has less free, even after cuMemFree. Several windows onto the
 * same memory share what they can. A child of fork() has none of it: its accesses fault. options
 * may be NULL. Takes 30 to 60 us by `rm`; when a window of this engine onto that memory is open
 * already, 1 us.
 * 0, or -EINVAL (length 0, a range that wraps, a backend that there is not), -EFAULT (not all of it
 * is one GPU's memory: host memory, freed, over the end), -EOPNOTSUPP (managed memory, or another
 * process's; the mapping asked for; the knob `window` is off), -ENOMEM (the GPU's BAR1 is full),
 * -EPERM (in a child of fork()); else what the last of the backends failed with: -ENOENT, -EACCES
 * (/dev/nvidiactl), -EIO ... The text has what each of them said. */
int wh_window_open(struct wh_engine *engine, const void *address, size_t length,
		   const struct wh_window_options *options, struct wh_window **out);

/* Close the window. Nobody may be using it or its pointer. Any order. */
int wh_window_close(struct wh_window *window);

/* Copy `length` bytes from ordinary memory to `offset` in the window. When it returns they are
 * issued, and come before what this thread stores afterwards, also through other windows; staged:
 * they have arrived. Threads may copy at the same time.
 * 0, or -EINVAL (over the window's end), and staged -EFAULT (the GPU's memory is gone), -EIO. */
int wh_window_copy_to(struct wh_window *window, uint64_t offset, const void *from, size_t length);

/* Copy `length` bytes from `offset` in the window to ordinary memory, as they are during the call.
 * From some KiB on (wh_window_info.engine_from, measured) this goes by the copy engine, behind
 * everything that was written through the window. 0, or as wh_window_copy_to(). */
int wh_window_copy_from(struct wh_window *window, uint64_t offset, void *to, size_t length);

/* Wait until everything that this thread has written through the window has arrived in the GPU's
 * memory: reads back once, about 1 us. 0, or -EPERM in a child of fork(). */
int wh_window_flush(struct wh_window *window);

struct wh_window_info {
	size_t size; /* set by the caller */
	void *pointer; /* the CPU's address of the window's first byte; NULL: staged */
	uint64_t address; /* the GPU's */
	uint64_t length;
	uint64_t engine_from; /* reads of so many bytes go by copy engine; UINT64_MAX: none, and 0:
				 not measured yet */
	uint32_t mapping; /* enum wh_window_mapping */
	uint32_t reserved;
	char backend[16]; /* "rm" */
	char writes[16]; /* how copies are done: "avx512" */
	char reads[16];
	char said[640]; /* what each backend tried had to say, "driver: ...; rm: chosen" */
};

/* What is known of the window. 0, -EINVAL, -E2BIG. */
int wh_window_info(struct wh_window *window, struct wh_window_info *info);

#ifdef __cplusplus
}
#endif
#endif
