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
/* A descriptor by which another process imports an object of ours, as by wh_rm_import(): it holds
 * the memory for as long as it is open. Closed by the caller. */
int wh_rm_export(struct wh_rm *rm, unsigned gpu, uint32_t object, int *fd);
/* Give an object back. Nothing of it may be mapped any more: the driver does not take mappings
 * away. */
void wh_rm_release(struct wh_rm *rm, unsigned gpu, uint32_t object);

/* Map [offset, offset+length) of the memory, whole pages, at `at`, in place of what is there. The
 * mapping is not inherited by children. *caching: enum in rm-abi.h. Undone by munmap(). */
int wh_rm_map(struct wh_rm *rm, unsigned gpu, uint32_t object, uint64_t offset, uint64_t length,
	      void *at, unsigned *caching);

/* ---- which objects CUDA has ------------------------------------------------------------------ */

#define WH_RM_HANDLE 64 /* bytes of an IPC handle */

/* Where an allocation of this process lies: in an object of CUDA's own client. */
struct wh_rm_location {
	uint32_t client, object;
	uint64_t offset, length; /* of the allocation, in the object */
	uint64_t object_length; /* a multiple of 4 KiB; small allocations share an object */
};

/* Read an IPC handle that CUDA has made in the process `pid`, for the allocation at `base`,
 * `length` bytes long. Never one that somebody else has sent: its numbers would be the sender's
 * choice.
 * 0, or -EOPNOTSUPP: it is not as it is on the drivers that are known; the text says in what. */
int wh_rm_locate(const unsigned char handle[WH_RM_HANDLE], int32_t pid, uint64_t base,
		 uint64_t length, struct wh_rm_location *out);
/* Ask CUDA for the handle of this process's allocation at `base`, and read it. Inside a scope of
 * its owner. Does not wait for a GPU. Trust what comes of it on a driver on which a trial has
 * agreed.
 * 0, or what wh_rm_locate() says, or CUDA's error. */
int wh_rm_location(struct wh_cuda *cuda, uint64_t base, uint64_t length,
		   struct wh_rm_location *out);

#endif
