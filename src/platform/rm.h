/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the NVIDIA kernel driver's user interface that maps GPU memory into this process: a
 * client of our own, objects in it for memory that CUDA has allocated, and CPU mappings of these
 * objects. No policy.
 *
 * The interface is no stable ABI: it is that of the open kernel modules, and may change with any
 * driver. wh_rm_known() tells whether it is known to work with this one; on other drivers the
 * caller must test a mapping before it relies on it.
 *
 * All functions may be called from any thread. A client belongs to the process that opened it.
 */
#ifndef WH_PLATFORM_RM_H
#define WH_PLATFORM_RM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct wh_cuda;

struct wh_rm; /* a client */

/* Open /dev/nvidiactl and create a client. 0, or -ENOENT (no such device), -EACCES (no permission),
 * or the driver's error. */
int wh_rm_open(struct wh_rm **out);
/* Its objects must have been released, and their mappings unmapped. */
void wh_rm_close(struct wh_rm *rm);

/* The driver's version, "580.159.04"; "": not known. Valid until wh_rm_close(). */
const char *wh_rm_version(const struct wh_rm *rm);
/* Is the interface known to work with this driver? */
bool wh_rm_known(const struct wh_rm *rm);

/* The number, for the functions below, of the GPU at a PCI address ("0000:65:00.0"). Opens the GPU
 * on first use. 0, or -ENODEV, or the driver's error. */
int wh_rm_gpu(struct wh_rm *rm, const char *pci, unsigned *out);

/* Create an object for the memory behind a descriptor of cuMemExportToShareableHandle() or
 * wh_rm_export(), of this process or another. -EOPNOTSUPP: the memory has several objects. */
int wh_rm_import(struct wh_rm *rm, unsigned gpu, int fd, uint32_t *object);
/* Create an object for the memory of an object in another client of this process. */
int wh_rm_duplicate(struct wh_rm *rm, unsigned gpu, uint32_t client, uint32_t object,
		    uint32_t *out);
/* Create a descriptor with which another process can wh_rm_import() the object. The memory stays
 * allocated while the descriptor is open. The caller closes it. */
int wh_rm_export(struct wh_rm *rm, unsigned gpu, uint32_t object, int *fd);
/* Free an object. The caller must have unmapped it: the driver does not remove mappings. */
void wh_rm_release(struct wh_rm *rm, unsigned gpu, uint32_t object);

/* Map [offset, offset+length) of the memory, whole pages, at the address `at`, replacing what is
 * mapped there. Children do not inherit the mapping. *caching: an enum in rm-abi.h. Undo it with
 * munmap(). */
int wh_rm_map(struct wh_rm *rm, unsigned gpu, uint32_t object, uint64_t offset, uint64_t length,
	      void *at, unsigned *caching);

/* ---- CUDA's objects -------------------------------------------------------------------------- */

#define WH_RM_HANDLE 64 /* bytes of an IPC handle */

/* The place of an allocation of this process: in an object of CUDA's own client. */
struct wh_rm_location {
	uint32_t client, object;
	uint64_t offset, length; /* of the allocation in the object, bytes */
	uint64_t object_length; /* a multiple of 4 KiB; small allocations share an object */
};

/* Read an IPC handle that CUDA has created in this process, `pid`, for the allocation of `length`
 * bytes at `base`. Never pass a handle from another process: the sender could choose its numbers.
 * 0, or -EOPNOTSUPP: the layout is unknown; the text says which number differs. */
int wh_rm_locate(const unsigned char handle[WH_RM_HANDLE], int32_t pid, uint64_t base,
		 uint64_t length, struct wh_rm_location *out);
/* Get CUDA's IPC handle of this process's allocation at `base`, and read it. Call it inside a scope
 * of the memory's owner. Does not wait for a GPU. Rely on the result only on a known driver, or
 * after a test mapping has shown the right memory.
 * 0, or an error of wh_rm_locate(), or CUDA's error. */
int wh_rm_location(struct wh_cuda *cuda, uint64_t base, uint64_t length,
		   struct wh_rm_location *out);

#endif
