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
	/* private; hugetlb pages if some are reserved, else transparent huge pages */
	WH_MEMORY_HUGE = 2,
	WH_MEMORY_SHARED = 3, /* a sealed memfd that engines on the same host can map */
	/* The following kinds need a GPU and the CUDA driver. */
	WH_MEMORY_PINNED = 4, /* a sealed memfd, page-locked and mapped for all GPUs */
	WH_MEMORY_MAPPED = 5, /* the driver's host memory (cuMemHostAlloc), page-locked and mapped
			       * for all GPUs; other processes cannot map it */
	WH_MEMORY_DEVICE = 6, /* GPU memory (cuMemAlloc) */
	WH_MEMORY_VMM = 7, /* GPU memory (cuMemCreate); exportable as a file descriptor */
	WH_MEMORY_MANAGED = 8, /* migrates between host and GPU (cuMemAllocManaged) */
	WH_MEMORY_POOL = 9, /* GPU memory from the GPU's pool (cuMemAllocAsync) */
	WH_MEMORY_FILE = 10, /* a range of a file; wherry/file.h. Not for wh_memory_alloc(). */
};

enum wh_memory_flag {
	/* With WH_MEMORY_MAPPED: stores of the CPU bypass its caches and are combined. Use it for
	 * memory that the CPU only writes: reading it is very slow. */
	WH_MEMORY_WRITE_COMBINED = 1,
};

struct wh_memory_options {
	size_t size;
	uint32_t kind; /* enum wh_memory_kind; 0: WH_MEMORY_SHARED */
	uint32_t flags; /* enum wh_memory_flag, or-ed */
	/* Where to allocate. NULL: anywhere; GPU memory on the first GPU.
	 * "cuda:0", "cuda:GPU-<uuid>" (a unique beginning is enough) or "cuda:0000:65:00.0": GPU
	 * memory on this GPU; host memory on the NUMA node nearest to it.
	 * "numa:1": host memory on this NUMA node only. Not for WH_MEMORY_MAPPED.
	 * "host": host memory, anywhere. */
	const char *location;
};

/* Allocate `length` bytes of zeroed memory. Free it with wh_memory_free(). options may be NULL.
 *
 * Use WH_MEMORY_SHARED (the default) for memory that engines on this host should reach by plain
 * loads and stores, and WH_MEMORY_PINNED for bytes that go to and from a GPU. A peer maps such an
 * allocation as a whole, while every byte of it is published to that peer, by one region or by
 * many.
 *
 * Host memory is page-aligned. Its pages are allocated on first touch; those of PINNED and MAPPED
 * at once. GPU memory is aligned to at least 256 bytes and takes whole blocks of 2 MiB, so that
 * exporting it to another process exposes no other memory. The CPU faults on addresses of the kinds
 * DEVICE, VMM and POOL. The calling thread's CUDA context does not change. May block while pages
 * are locked or a GPU is woken.
 *
 * 0, or -EINVAL (length 0, an unknown kind or flag, a location that does not fit the kind), -ENOMEM
 * (also: the GPU is full), -EMFILE, -ENODEV (no such NUMA node or GPU, or the kind needs a GPU and
 * there is none: the text says what is missing), -EOPNOTSUPP (this GPU or driver does not support
 * it), -EPERM (the process may not bind to NUMA nodes), -EIO (the GPU failed). */
int wh_memory_alloc(struct wh_engine *engine, size_t length,
		    const struct wh_memory_options *options, void **out);

/* Free memory of any kind that wh_memory_alloc() returned. 0, or -EINVAL (not such an address),
 * -EBUSY (a region lies in it). Other errors come from a broken GPU; the address is no longer valid
 * then, either. */
int wh_memory_free(struct wh_engine *engine, void *address);

/* How host and GPU share memory. */
enum wh_memory_stage {
	WH_STAGE_SEPARATE = 1, /* separate; bytes are copied, through pinned memory if needed */
	/* host memory that GPUs access in place, by the same address (UVA) */
	WH_STAGE_MAPPED = 2,
	WH_STAGE_UNIFIED = 3, /* one memory for both; pages migrate, or are accessed in place */
};

/* How the memory can be exported to another process. */
enum wh_memory_export {
	WH_EXPORT_IPC = 1, /* a legacy IPC handle (cuIpcGetMemHandle) */
	WH_EXPORT_FD = 2, /* a file descriptor (cuMemExportToShareableHandle) */
	WH_EXPORT_POOL_FD = 4, /* a file descriptor of its pool */
	WH_EXPORT_DMA_BUF = 8, /* a dma-buf, for network cards and other devices */
	WH_EXPORT_FABRIC = 16, /* a fabric handle, for other machines on the same NVLink */
	WH_EXPORT_MEMFD = 32, /* a memfd: host memory of the kinds SHARED and PINNED */
};

/* Who has page-locked the host memory for GPUs. */
enum wh_memory_pinned {
	WH_PINNED_NOT = 0,
	WH_PINNED_WHERRY = 1, /* wh_memory_alloc() */
	WH_PINNED_APPLICATION = 2, /* the application: cuMemHostAlloc or cuMemHostRegister */
};

struct wh_memory_info {
	size_t size; /* set by the caller */
	uint32_t kind; /* enum wh_memory_kind */
	uint32_t page_size; /* bytes; WH_MEMORY_HUGE: of the pages obtained; 0: not known */
	/* The allocation's base and length. If the engine did not allocate the memory: as CUDA
	 * knows them (VMM: of the one mapping that contains the address), else the queried address
	 * and length 0. */
	void *base;
	uint64_t length;

	uint32_t stage; /* enum wh_memory_stage */
	uint32_t pinned; /* enum wh_memory_pinned */
	uint32_t exports; /* enum wh_memory_export, or-ed */
	uint32_t mappings; /* VMM: number of adjacent mappings here, on one GPU; else 1 */
	/* the GPU of the memory, or (MANAGED) its preferred one: n of "cuda:n"; -1: none */
	int32_t device;
	int32_t numa_node; /* of the page, or nearest to the GPU; -1: not known */
	uint32_t imported; /* 1: another process's memory, opened by legacy IPC */
	uint32_t reserved;
	uint64_t buffer_id; /* CUDA's number for the allocation, never reused; 0: none */
	uint64_t device_address; /* the queried address for GPUs; 0: they cannot access it */
	uint64_t host_address; /* the queried address for the CPU; 0: it cannot access it */
	char uuid[48]; /* of the GPU, "GPU-..."; "": none */
	char pci[24]; /* "0000:65:00.0" */
	char refusal[128]; /* why it is staged rather than used in place; "": used in place */
};

/* Find out what memory an address is, no matter who allocated it. The answer is never a guess: GPU
 * memory is never reported as host memory. Does not initialise a driver that the process has not
 * initialised, and does not touch the memory. Transparent huge pages are not reported.
 * 0, or -EINVAL, -E2BIG, -EFAULT (neither the CPU nor a GPU can read memory there), -EIO and other
 * errors of the driver. */
int wh_memory_query(struct wh_engine *engine, const void *address, struct wh_memory_info *info);

/* ---- regions ------------------------------------------------------------------------------ */

/* What peers may do with a region. 0: nothing, and they do not see it. The engine itself may do
 * everything with its own regions, also by its peer "self". */
enum wh_access {
	WH_ACCESS_READ = 1,
	WH_ACCESS_WRITE = 2,
	/* With READ or WRITE: wh_peer_list() shows it, too. Without LIST a peer must know the
	 * region's name, key, id or address. */
	WH_ACCESS_LIST = 4,
};

/* What one peer may do with a region. */
struct wh_grant {
	/* the name that the peer has proved (docs/security.md), at most 63 bytes */
	const char *peer;
	uint32_t access; /* enum wh_access, or-ed */
	uint32_t reserved;
};

/* The largest number of grants of one region. */
#define WH_GRANTS_MAX 4096

struct wh_region_options {
	size_t size;
	/* A name by which peers can find the region: at most 63 of the characters A-Z a-z 0-9 . _
	 * -, unique in the engine. NULL: none. */
	const char *name;
	/* What every peer may do: enum wh_access, or-ed. 0: nothing. */
	uint32_t access;
	/* For the peers named here, their rights instead of `access`. Copied. Each peer may be
	 * named once. */
	uint32_t grant_count;
	const struct wh_grant *grants;
};

/* Register [address, address+length) for transfers. options may be NULL: a region for this engine's
 * own use, which no peer sees. Regions may overlap. A peer learns of a region with access READ or
 * WRITE when it asks for it. Does not touch the memory, does not block on peers.
 *
 * The caller keeps the memory mapped, readable and (for access WRITE, or as the target of a read)
 * writable until wh_region_unregister(). Otherwise, on either side, by the path of the bytes:
 *
 *   path                    not mapped    not accessible, or past its file's end
 *   tcp, plain              -EFAULT       -EFAULT
 *   the same, process_vm    -EFAULT       -EFAULT; where it is written, a signal
 *     refused by seccomp
 *   process_vm (shm)        -EFAULT       -EFAULT
 *   self, a mapping, tcp    a signal      a signal
 *     with tls, integrity
 *
 * GPU memory must lie on one GPU, in one allocation or in adjacent mappings of cuMemCreate. From
 * then on, synchronous copies by the application to it return only when they have ended
 * (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS).
 *
 * 0, or -EINVAL (length 0, a range that wraps or exceeds its allocation, a bad name or grant),
 * -EEXIST (the name is taken), -ENOMEM, -EXDEV (the range spans two GPUs, or a GPU and the host),
 * -EFAULT (a part is not memory: freed, or never mapped), or an error of the driver. */
int wh_region_register(struct wh_engine *engine, void *address, size_t length,
		       const struct wh_region_options *options, struct wh_region **out);

/* Unregister the region. After it returns 0, no peer reads or writes the memory, and no batch that
 * starts then succeeds with it. Blocks until copies by peers that have begun are over, and until
 * peers that map the memory have unmapped it. Nobody can ask a peer whose connection is lost: on
 * this host it may read and write the memory until it has noticed that, within a second as a rule,
 * but its batches fail. One on another host of an NVLink fabric may even succeed until then.
 * 0, or -EBUSY (a batch of this engine uses it, or within the setting `timeout` a peer on this host
 * has not let go of it, or a GPU has not ended a copy; the region is unpublished in either case:
 * call again), -EDEADLK (called from a callback). Closing a file may wait for its file system, as
 * close(2) does. If that does not answer a peer's request, this is -EBUSY, and wh_engine_close()
 * may follow. Memory that was locked for a GPU is released when that GPU has ended its work. */
int wh_region_unregister(struct wh_region *region);

/* The same, but wait for peers up to `timeout` ns (0: do not wait) instead of the setting. -EBUSY:
 * the region is unpublished, and a peer has not let go of it; call again. A peer that never does is
 * disconnected after twice the setting, and 10 s at least. Many regions are withdrawn in the time
 * of one if each is asked for once with 0, and then again. Also -EINVAL (timeout < 0). */
int wh_region_unregister_for(struct wh_region *region, int64_t timeout);

/* The region's id, unique among the engine's regions. 42 bits of it are random: it cannot be
 * derived from other ids, and recurs with a chance of 1 in 2^42. */
uint64_t wh_region_id(const struct wh_region *region);

/* Find the region of this engine that contains all of [address, address+length), the smallest if
 * several do, and the offset in it. 0, or -ENOENT. */
int wh_region_lookup(struct wh_engine *engine, const void *address, size_t length,
		     struct wh_region **out, uint64_t *offset);

/* ---- the regions of a peer ---------------------------------------------------------------- */

/* The calls below find regions that the engine knows already, and ask the peer for others. A peer
 * tells of a region only if the region grants this engine READ or WRITE. What is known stays known
 * until the peer unregisters it, which waits for this engine where it can access the memory itself;
 * after a lost connection it is asked for again.
 *
 * `timeout`, in ns, is how long to wait for the region to be registered and, if the peer is lost or
 * being opened, until it is reached. 0: only what is known already. WH_ANSWER: the peer's answer,
 * and nothing else. Errors of all calls: -ENOENT, -ECONNRESET (the peer is still lost), -ESTALE (it
 * was restarted), -EINPROGRESS (it is still being opened) or the error with which that failed,
 * -EDEADLK (a timeout other than 0, in a callback). Any thread. */
#define WH_ANSWER (-1)

/* A region of a peer. */
struct wh_remote {
	uint64_t id;
	uint64_t address; /* in the peer's address space */
	uint64_t length;
	uint32_t access; /* enum wh_access */
	uint32_t kind; /* enum wh_memory_kind */
	char name[64]; /* "": none */
	uint64_t reserved[4]; /* 0 */
};

/* Find a region of the peer by its name. */
int wh_peer_find(struct wh_peer *peer, const char *name, int64_t timeout, struct wh_remote *out);

/* Find a region of the peer that contains all of [address, address+length) of the peer's address
 * space, and the offset in it: the smallest of those that are known, or else the peer's smallest.
 */
int wh_peer_lookup(struct wh_peer *peer, uint64_t address, uint64_t length, int64_t timeout,
		   struct wh_remote *out, uint64_t *offset);

/* List the peer's regions that grant WH_ACCESS_LIST; of a peer that is this engine, all. Set
 * *cursor to 0 before the first call; each call advances it, to 0 at the end. *count is the room in
 * `out`, and on return how many regions there are in it: maybe none before the end, at most 1,024.
 * No region at all: the peer has none, or grants no listing. Regions that come or go meanwhile may
 * or may not be listed. `timeout` is not 0; -ETIMEDOUT. */
int wh_peer_list(struct wh_peer *peer, uint64_t *cursor, struct wh_remote *out, size_t *count,
		 int64_t timeout);

/* ---- keys, for users with a control plane of their own ------------------------------------ */

/* The largest key, in bytes. */
#define WH_KEY_MAX 128

/* Write the region's key to `buffer`: versioned bytes with the engine's epoch and the region's id,
 * address, length and rights. *length is the size of `buffer` on entry and the bytes used on
 * return. 0, or -ENOSPC. */
int wh_region_pack_key(const struct wh_region *region, void *buffer, size_t *length);

/* Turn a key of one of the peer's regions into a remote region. A key is a name, not a right: the
 * peer is asked, and says what this engine may do. With a timeout of 0 a key of a region that is
 * not known is believed, and the first submission asks. 0, or -EINVAL (not a key), -EPROTONOSUPPORT
 * (a newer version), -ESTALE (made by an earlier epoch of the peer, or by another engine), or the
 * errors above. */
int wh_peer_unpack_key(struct wh_peer *peer, const void *key, size_t length, int64_t timeout,
		       struct wh_remote *out);

#ifdef __cplusplus
}
#endif
#endif
