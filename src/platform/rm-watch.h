/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Learning which objects of the resource manager CUDA's memory is made of by watching libcuda's own
 * request to the kernel: for memory that has neither an IPC handle nor a descriptor.
 *
 * That changes a table of libcuda's for the length of a call, so it is in a module of its own,
 * libwherry-rm-watch.so, which stays in the process once it was opened. Whoever names the backend
 * rm-watch opens it; nobody else does.
 */
#ifndef WH_PLATFORM_RM_WATCH_H
#define WH_PLATFORM_RM_WATCH_H

#include <stddef.h>
#include <stdint.h>

struct wh_cuda;

#define WH_RM_PARTS 128

/* Memory of a range, as CUDA's own client knows it. */
struct wh_rm_parts {
	uint32_t client;
	unsigned count;
	struct wh_rm_part {
		uint32_t object;
		uint64_t offset, length; /* in it */
	} part[WH_RM_PARTS];
};

/* ---- the module ------------------------------------------------------------------------------ */

#define WH_RM_WATCH_MODULE 1 /* changes with what is below, and with struct wh_rm_parts */

struct wh_rm_watch_module {
	uint32_t version;
	/* Run export(arg) on this thread, and read the request to export memory that `libcuda` (a
	 * handle of dlopen()) makes meanwhile. 0: *out is what it said, with count 0 if there was
	 * none; else a positive errno with its sentence in `why`. Any thread; one at a time, others
	 * wait. */
	int (*watch)(void *libcuda, void (*export)(void *arg), void *arg, struct wh_rm_parts *out,
		     char *why, size_t size);
};

/* wh_rm_watch_module(), the module's only symbol. */
typedef const struct wh_rm_watch_module *wh_rm_watch_module_fn(void);

/* ---- the library's side ---------------------------------------------------------------------- */

/* Open the module: beside this library, in the directory above, or where the loader looks. It stays
 * for good. 0, or -ELIBACC (not there, or of another version). */
int wh_rm_watch_open(const struct wh_rm_watch_module **out);

/* Learn which objects make up [address, address+length), whole pages of one allocation: CUDA is
 * asked to export them as a dma-buf (dropped at once; an export that fails will do as well), and
 * its request to the kernel is read on the way. Inside a scope of the memory's owner.
 * 0, or -EOPNOTSUPP (the driver has no such export, or it looks different), -EFBIG (too many
 * objects), or CUDA's error. */
int wh_rm_watch(const struct wh_rm_watch_module *module, struct wh_cuda *cuda, uint64_t address,
		uint64_t length, struct wh_rm_parts *out);

#endif
