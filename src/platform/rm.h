/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NVIDIA kernel driver's own user interface, as much of it as it takes to map memory of a GPU
 * into this process: a client of our own, objects in it that stand for memory which CUDA allocated,
 * and CPU mappings of them. No policy.
 *
 * This interface is no promised ABI: it is that of the open kernel modules, and may change with any
 * driver. wh_rm_known() says on which it was seen working; elsewhere the caller has to prove a
 * mapping before it trusts one.
 *
 * All functions may be called from any thread. A client belongs to the process that made it.
 */
#ifndef WH_PLATFORM_RM_H
#define WH_PLATFORM_RM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct wh_cuda;

struct wh_rm; /* a client */

/* Open /dev/nvidiactl and make a client. 0, or -ENOENT, -EACCES (no such device, no right to it),
 * or what the driver said. */
int wh_rm_open(struct wh_rm **out);
/* All objects and mappings in it must be gone. */
void wh_rm_close(struct wh_rm *rm);

/* The driver's version, "580.159.04"; "" if it does not say. Good as long as the client. */
const char *wh_rm_version(const struct wh_rm *rm);
/* Was this interface seen working with it? */
bool wh_rm_known(const struct wh_rm *rm);

/* The GPU at a PCI address ("0000:65:00.0"), as a number for the functions below; opened when first
 * asked for. 0, or -ENODEV, or what the driver said. */
int wh_rm_gpu(struct wh_rm *rm, const char *pci, unsigned *out);

/* An object of our client for the memory behind a descriptor of cuMemExportToShareableHandle() or
 * wh_rm_export(), of this process or another one. -EOPNOTSUPP: it has several objects. */
int wh_rm_import(struct wh_rm *rm, unsigned gpu, int fd, uint32_t *object);
/* An object for the memory that another client of this process has. */
int wh_rm_duplicate(struct wh_rm *rm, unsigned gpu, uint32_t client, uint32_t object,
		    uint32_t *out);
/* A descriptor by which another process imports an object of ours, as by wh_rm_import(): it holds the memory
 * for as long as it is open. Closed by the caller. */
int wh_rm_export(struct wh_rm *rm, unsigned gpu, uint32_t object, int *fd);
/* Give an object back. Nothing of it may be mapped any more: the driver does not take mappings
 * away. */
void wh_rm_release(struct wh_rm *rm, unsigned gpu, uint32_t object);

/* Map [offset, offset+length) of the memory, whole pages, at `at`, in place of what is there. The
 * mapping is not inherited by children. *caching: enum in rm-abi.h. Undone by munmap(). */
int wh_rm_map(struct wh_rm *rm, unsigned gpu, uint32_t object, uint64_t offset, uint64_t length,
	      void *at, unsigned *caching);

/* ---- which objects CUDA has ------------------------------------------------------------------ */

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

/* Learn which objects make up [address, address+length), whole pages of one allocation: CUDA is
 * asked to export them as a dma-buf (dropped at once; an export that fails will do as well), and its
 * request to the kernel is read on the way. For the time of this call, on this thread, libcuda's
 * ioctl is redirected. Inside a scope of the memory's owner.
 * 0, or -EOPNOTSUPP (the driver has no such export, or it looks different), or CUDA's error. */
int wh_rm_learn(struct wh_cuda *cuda, uint64_t address, uint64_t length, struct wh_rm_parts *out);

#endif
