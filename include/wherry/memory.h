/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WHERRY_MEMORY_H
#define WHERRY_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct wh_engine;
struct wh_peer;
struct wh_region;

/* ---- memory ------------------------------------------------------------------------------- */

enum wh_memory_kind {
	WH_MEMORY_PAGEABLE = 1, /* private anonymous pages */
	/* private; hugetlb pages if reserved, else transparent huge pages */
	WH_MEMORY_HUGE = 2,
	WH_MEMORY_SHARED = 3, /* a sealed memfd that engines on the same host can map */
	/* These take a GPU and its driver (CUDA). */
	WH_MEMORY_PINNED = 4, /* a sealed memfd as well; page-locked, and mapped for all GPUs */
	WH_MEMORY_MAPPED = 5, /* host memory of the driver (cuMemHostAlloc), page-locked, mapped
			       * for all GPUs; other processes cannot map it */
	WH_MEMORY_DEVICE = 6, /* of a GPU (cuMemAlloc) */
	WH_MEMORY_VMM = 7, /* of a GPU (cuMemCreate); can be handed on as a file descriptor */
	WH_MEMORY_MANAGED = 8, /* moves between host and GPU as it is used (cuMemAllocManaged) */
	WH_MEMORY_POOL = 9, /* of a GPU, from its pool (cuMemAllocAsync) */
};

enum wh_memory_flag {
	/* WH_MEMORY_MAPPED: the CPU's stores are gathered and its caches left alone. Good for what
	 * the CPU only writes; it reads such memory very slowly. */
	WH_MEMORY_WRITE_COMBINED = 1,
};

struct wh_memory_options {
	size_t size;
	uint32_t kind; /* enum wh_memory_kind; 0: WH_MEMORY_SHARED */
	uint32_t flags; /* enum wh_memory_flag, or-ed */
	/* Where it shall lie. NULL: anywhere; what lies on a GPU, on the first one.
	 * "cuda:0", "cuda:GPU-<uuid>" (its start will do) or "cuda:0000:65:00.0": on this GPU; host
	 * memory, on the NUMA node nearest to it.
	 * "numa:1": host memory on this NUMA node and no other. Not WH_MEMORY_MAPPED.
	 * "host": host memory, anywhere. */
	const char *location;
};

/* Allocate `length` bytes, zeroed, of which the engine knows the kind. Choose WH_MEMORY_SHARED (the
 * default) for memory that engines on this host should reach by plain loads and stores, and
 * WH_MEMORY_PINNED for what goes to and from a GPU. A peer maps such an allocation, whole, for as
 * long as every byte of it is published to that peer, by one region or by many. options may be
 * NULL.
 *
 * Host memory is page-aligned; its pages are taken on first touch, those of PINNED and MAPPED at
 * once. Memory of a GPU starts at a multiple of 256 bytes at least, and takes whole blocks of
 * 2 MiB, so that nothing else comes with it where it is handed to another process; of the kinds
 * DEVICE, VMM and POOL the address means nothing to the CPU, which faults on it. The calling
 * thread's CUDA context is left as it was. May block while pages are locked or a GPU is woken.
 *
 * 0, or -EINVAL (length 0, an unknown kind or flag, a location that makes no sense for the kind),
 * -ENOMEM (also: the GPU is full), -EMFILE, -ENODEV (no such NUMA node or GPU; or the kind takes a
 * GPU and there is none: the text says what is missing), -EOPNOTSUPP (this GPU or driver lacks it),
 * -EPERM (the process may not bind to NUMA nodes), -EIO (the GPU failed). */
int wh_memory_alloc(struct wh_engine *engine, size_t length,
		    const struct wh_memory_options *options, void **out);

/* Free what wh_memory_alloc() gave, of any kind. -EINVAL (not such an address), -EBUSY (a region
 * lies in it). Other errors are what a broken GPU says; the memory is given up all the same. */
int wh_memory_free(struct wh_engine *engine, void *address);

/* How host and GPU share memory, as the field counts. */
enum wh_memory_stage {
	WH_STAGE_SEPARATE = 1, /* each its own; bytes are copied, if need be by pinned memory */
	/* host memory that GPUs reach in place, by the same address (UVA) */
	WH_STAGE_MAPPED = 2,
	WH_STAGE_UNIFIED = 3, /* one memory for both, moved or reached as it is used */
};

/* What another process can be given of the memory. */
enum wh_memory_export {
	WH_EXPORT_IPC = 1, /* a legacy IPC handle (cuIpcGetMemHandle) */
	WH_EXPORT_FD = 2, /* a file descriptor (cuMemExportToShareableHandle) */
	WH_EXPORT_POOL_FD = 4, /* a file descriptor of the pool that it is from */
	WH_EXPORT_DMA_BUF = 8, /* a dma-buf, for network cards and other devices */
	WH_EXPORT_FABRIC = 16, /* a fabric handle, for other machines on the same NVLink */
	WH_EXPORT_MEMFD = 32, /* a memfd: host memory of the kinds SHARED and PINNED */
};

/* Who has locked host memory for GPUs. */
enum wh_memory_pinned {
	WH_PINNED_NOT = 0,
	WH_PINNED_WHERRY = 1, /* wh_memory_alloc() */
	WH_PINNED_APPLICATION = 2, /* cuMemHostAlloc or cuMemHostRegister of somebody else */
};

struct wh_memory_info {
	size_t size; /* set by the caller */
	uint32_t kind; /* enum wh_memory_kind */
	uint32_t page_size; /* bytes; WH_MEMORY_HUGE: what was really got; 0: not known */
	/* Of the allocation. Of memory that the engine did not allocate: as CUDA knows it (VMM: the
	 * one mapping that the address lies in), else the address asked for, and length 0. */
	void *base;
	uint64_t length;

	uint32_t stage; /* enum wh_memory_stage */
	uint32_t pinned; /* enum wh_memory_pinned */
	uint32_t exports; /* enum wh_memory_export, or-ed */
	uint32_t mappings; /* VMM: how many lie one after the other here, on one GPU; else 1 */
	/* the GPU that it lies on, or (MANAGED) belongs to: n of "cuda:n"; -1 */
	int32_t device;
	int32_t numa_node; /* of the page, or of the host memory nearest the GPU; -1: not known */
	uint32_t imported; /* 1: another process's memory, opened by legacy IPC */
	uint32_t reserved;
	uint64_t buffer_id; /* CUDA's number for the allocation, never used again; 0: none */
	uint64_t device_address; /* of the address asked for, as GPUs call it; 0: they do not */
	uint64_t host_address; /* and as the CPU does; 0: it cannot touch it */
	char uuid[48]; /* of the GPU, "GPU-..."; "": none */
	char pci[24]; /* "0000:65:00.0" */
	char refusal[128]; /* why it is not used in place but copied first; "": it is */
};

/* What an address is, no matter who allocated it. Nothing is guessed: memory of a GPU is never
 * taken for the host's. Initialises no driver that the process has not initialised. Does not touch
 * the memory. (That small pages were made transparent huge ones is not told.)
 * 0, or -EINVAL, -E2BIG, -EFAULT (no memory there that the CPU or a GPU can read), -EIO and others
 * that the driver gives. */
int wh_memory_query(struct wh_engine *engine, const void *address, struct wh_memory_info *info);

/* ---- regions ------------------------------------------------------------------------------ */

/* What peers may do with a region. */
enum wh_access {
	WH_ACCESS_READ = 1,
	WH_ACCESS_WRITE = 2,
	WH_ACCESS_NONE = 4, /* nothing: the region is for this engine's own use, not published */
};

/* What one peer may do with a region. */
struct wh_grant {
	/* the name that it has proved, at most 63 bytes: docs/security.md says what that is */
	const char *peer;
	uint32_t access; /* enum wh_access, or-ed, or NONE */
	uint32_t reserved;
};

/* The most grants of one region. */
#define WH_GRANTS_MAX 4096

struct wh_region_options {
	size_t size;
	/* A name by which peers can find the region, at most 63 bytes, unique in the engine, of
	 * the characters A-Z a-z 0-9 . _ -; NULL: none. */
	const char *name;
	/* What every peer may do: enum wh_access, or-ed; 0: READ | WRITE, or, with grants, NONE. */
	uint32_t access;
	/* What the peers named here may do in place of that. Others do not see the region if
	 * `access` is NONE. Copied; each peer once. */
	uint32_t grant_count;
	const struct wh_grant *grants;
};

/* Register [address, address+length) for transfers. The caller keeps it mapped, readable and (for
 * access WRITE, or as the target of a read) writable until wh_region_unregister(). Where it is not,
 * transfers fail with -EFAULT if a system call moves the bytes (tcp without tls, process_vm); where
 * the CPU does (self, a mapping, tls) it faults. Regions may overlap. A region with access READ or
 * WRITE is published: connected peers learn of it in a moment. options may be NULL. Does not touch
 * the memory and does not block on peers.
 *
 * The memory may be a GPU's: all of one GPU, in one allocation or in several mappings of
 * cuMemCreate that lie one after the other. Synchronous copies that the application does to it wait
 * for their end from then on (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS).
 * 0, or -EINVAL (length 0, a range that wraps or that reaches past its allocation, a bad name or
 * grant), -EEXIST (the name), -ENOMEM, -EXDEV (the range lies on two GPUs, or on a GPU and the
 * host), -EFAULT (no memory in a part of it: freed, or never mapped), or what the driver says. */
int wh_region_register(struct wh_engine *engine, void *address, size_t length,
		       const struct wh_region_options *options, struct wh_region **out);

/* Take the region back. After it returns no peer reads or writes it. Blocks until transfers of
 * peers that are in the middle of a copy have let go, and until peers that map it have unmapped.
 * 0, or -EBUSY (a batch of this engine that uses it is unfinished, or a peer on this host has not
 * let go of it within the knob `timeout`; unpublished all the same, call again), -EDEADLK (from a
 * callback). */
int wh_region_unregister(struct wh_region *region);

/* The region's id, unique among the engine's regions. 42 bits of it are random: other ids do not
 * tell it, and an old one names no other region but by a chance of 1 in 2^42. */
uint64_t wh_region_id(const struct wh_region *region);

/* Which region of this engine holds all of [address, address+length), and at which offset; the
 * smallest one if several do. 0, or -ENOENT. */
int wh_region_lookup(struct wh_engine *engine, const void *address, size_t length,
		     struct wh_region **out, uint64_t *offset);

/* ---- the regions of a peer ---------------------------------------------------------------- */

/* A region that a peer publishes. */
struct wh_remote {
	uint64_t id;
	uint64_t address; /* where it lies in the peer's address space */
	uint64_t length;
	uint32_t access; /* enum wh_access */
	uint32_t kind; /* enum wh_memory_kind */
	char name[64]; /* "": none */
};

/* Find a published region of the peer by name. Waits up to `timeout` ns (0: does not wait) for it
 * to be published, and for a peer that is lost to be reached again. 0, or -ENOENT, -ECONNRESET (the
 * peer is still lost), -ESTALE (it was restarted), -EDEADLK (in a callback). */
int wh_peer_find(struct wh_peer *peer, const char *name, int64_t timeout, struct wh_remote *out);

/* The peer's regions one after the other: *cursor starts at 0 and is moved on. 0, or -ENOENT at
 * the end. Regions that come or go meanwhile may or may not be seen. */
int wh_peer_next(struct wh_peer *peer, uint64_t *cursor, struct wh_remote *out);

/* Which region of the peer holds all of [address, address+length) of the peer's address space,
 * and at which offset; the smallest one if several do. 0, or -ENOENT. */
int wh_peer_lookup(struct wh_peer *peer, uint64_t address, uint64_t length, struct wh_remote *out,
		   uint64_t *offset);

/* ---- keys, for users with a control plane of their own ------------------------------------ */

/* The most bytes in a key. */
#define WH_KEY_MAX 128

/* Write the region's key, versioned bytes that name its engine, epoch, id, place and rights, to
 * `buffer`. *length is its size on entry and the bytes used on return. 0, or -ENOSPC. */
int wh_region_key(const struct wh_region *region, void *buffer, size_t *length);

/* Turn a key of one of the peer's regions into a remote region. Waits up to `timeout` ns until
 * the peer has published it. 0, or -EINVAL (not a key), -EPROTONOSUPPORT (a newer version),
 * -ESTALE (made by an earlier epoch of the peer or by another engine), -ENOENT. */
int wh_peer_import(struct wh_peer *peer, const void *key, size_t length, int64_t timeout,
		   struct wh_remote *out);

#ifdef __cplusplus
}
#endif
#endif
