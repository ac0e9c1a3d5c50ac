/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding the resource manager's objects behind CUDA memory by watching libcuda's own request to
 * the kernel. It serves memory that has neither an IPC handle nor a file descriptor.
 *
 * Watching changes a table of libcuda for the duration of a call. The code is therefore in a module
 * of its own, libwherry-rm-watch.so, which is opened only if the setting `window` names the backend
 * rm-watch. Once opened it stays in the process.
 */
#ifndef WH_PLATFORM_RM_WATCH_H
#define WH_PLATFORM_RM_WATCH_H

#include <stddef.h>
#include <stdint.h>

struct wh_cuda;

#define WH_RM_PARTS 128

/* The objects behind a range of memory, in CUDA's own client. */
struct wh_rm_parts {
	uint32_t client;
	unsigned count;
	struct wh_rm_part {
		uint32_t object;
		uint64_t offset, length; /* bytes in the object */
	} part[WH_RM_PARTS];
};

/* ---- the module ------------------------------------------------------------------------------ */

#define WH_RM_WATCH_MODULE 1 /* increase on any change below or in struct wh_rm_parts */

struct wh_rm_watch_module {
	uint32_t version;
	/* Run export(arg) on this thread, and read the request to export memory that `libcuda` (a
	 * handle of dlopen()) makes meanwhile. 0, with *out from the request, or with out->count 0
	 * if there was none; or a positive errno with its text in `why`. Thread-safe; concurrent
	 * calls wait for each other. */
	int (*watch)(void *libcuda, void (*export)(void *arg), void *arg, struct wh_rm_parts *out,
		     char *why, size_t size);
};

/* wh_rm_watch_module(), the module's only symbol. */
typedef const struct wh_rm_watch_module *wh_rm_watch_module_fn(void);

/* ---- the library's side ---------------------------------------------------------------------- */

/* Open the module: in the directory of this library, further up, or where the loader finds it. It
 * stays loaded for good. 0, or -ELIBACC (not found, or another version). */
int wh_rm_watch_open(const struct wh_rm_watch_module **out);

/* Find the objects behind [address, address+length), whole pages of one allocation. Makes CUDA
 * export the range as a dma-buf, which is closed at once, and reads the request; an export that
 * fails after the request does as well. Call it inside a scope of the memory's owner.
 * 0, or -EOPNOTSUPP (the driver has no such export, or an unknown one), -EFBIG (too many objects),
 * or CUDA's error. */
int wh_rm_watch(const struct wh_rm_watch_module *module, struct wh_cuda *cuda, uint64_t address,
		uint64_t length, struct wh_rm_parts *out);

#endif
