/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of an engine: its own allocations, NUMA and CUDA locations, the mappings of the
 * process, and registrations, which describe the memory that transfers use. docs/memory.md.
 */
#ifndef WH_MEMORY_MEMORY_H
#define WH_MEMORY_MEMORY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <wherry/memory.h>

#include "platform/cuda.h"
#include "util/list.h"

struct wh_cuda;
struct wh_file;
struct wh_file_rings;
struct wh_file_threads;

/* ---- the memory domain ------------------------------------------------- */

/* An engine's allocations, and what it knows about memory that the application has allocated. */
struct wh_memory_domain {
	struct wh_cuda *cuda; /* never NULL; wh_cuda_ready() says why if GPUs cannot be used */
	pthread_mutex_t lock; /* of `allocations` and their `regions`; no lock is taken inside it */
	struct wh_list allocations; /* struct wh_allocation */
	/* the last number given to an allocation or to a version of one */
	_Atomic uint64_t number;
	/* taken with no other lock held; held during calls of the driver */
	pthread_mutex_t registrations_lock;
	void *registrations; /* tsearch() tree; only of memory that CUDA knows */
	/* NULL: no file has been registered. Set once, under engine.lock, behind the next two. */
	struct wh_file_threads *_Atomic file_threads;
	struct wh_file_rings *file_rings; /* NULL: no io_uring; see enum wh_file_cold */
	bool file_direct, file_writes_direct;
};

/* The caller then sets `cuda` before calling anything else, and closes it itself. */
void wh_memory_domain_init(struct wh_memory_domain *domain);
/* All allocations have been freed and all registrations put. */
void wh_memory_domain_destroy(struct wh_memory_domain *domain);

/* ---- allocations ------------------------------------------------------- */

struct wh_allocation {
	struct wh_list link; /* domain.allocations */
	char *base;
	size_t length; /* as mapped: whole pages; on a GPU whole units of the driver */
	size_t asked; /* length that the application asked for */
	uint32_t kind, page_size;
	uint32_t flags; /* enum wh_memory_flag */
	int fd; /* WH_MEMORY_SHARED, WH_MEMORY_PINNED: the memfd; else -1 */
	int node; /* NUMA node asked for; -1: any */
	struct wh_cuda_device *device; /* whose primary context allocated it; NULL: none did */
	unsigned regions; /* registered regions inside; under domain.lock */
	/* What peers that map it may see. Under engine.lock. */
	uint64_t number; /* names the allocation within this engine; never reused */
	struct wh_list members; /* wh_region.member: the published regions inside */
	/* changes when `members` changes; unique among all allocations and their versions */
	uint64_t version;
	/* bytes: total length of the members that any peer may read, and write */
	uint64_t readable, writable;
};

/* The number of allocations. */
unsigned wh_memory_domain_count(struct wh_memory_domain *domain);
/* The public functions of the same names (wherry/memory.h) on a domain instead of an engine. */
int wh_memory_domain_alloc(struct wh_memory_domain *domain, size_t length,
			   const struct wh_memory_options *options, void **out);
int wh_memory_domain_free(struct wh_memory_domain *domain, void *address);
int wh_memory_domain_query(struct wh_memory_domain *domain, const void *address,
			   struct wh_memory_info *info);

/* The allocation that holds the address, or NULL. Under domain.lock. */
struct wh_allocation *wh_allocation_find(struct wh_memory_domain *domain, const void *address);
/* Set *out to the allocation that holds the range; NULL: none holds its start. 0, or -EINVAL: the
 * range reaches past the allocation's end. Under domain.lock. */
int wh_allocation_holds(struct wh_memory_domain *domain, const void *address, size_t length,
			struct wh_allocation **out);

/* The same, not under the lock; also count a region inside, so that the allocation cannot be freed.
 */
int wh_allocation_acquire(struct wh_memory_domain *domain, const void *address, size_t length,
			  struct wh_allocation **out);
/* Count a region less. NULL is allowed. */
void wh_allocation_release(struct wh_memory_domain *domain, struct wh_allocation *allocation);

/* May the CPU access memory of this kind at any time? Not that of a GPU, not managed memory, and no
 * file. */
static inline bool wh_kind_on_host(uint32_t kind)
{
	return kind >= WH_MEMORY_PAGEABLE && kind <= WH_MEMORY_MAPPED;
}

static inline bool wh_kind_on_gpu(uint32_t kind)
{
	return kind >= WH_MEMORY_DEVICE && kind <= WH_MEMORY_POOL;
}

/* Allocate memory->asked bytes, zeroed, of a kind that takes the CUDA driver, except PINNED. The
 * caller has set memory->device. 0 or a negative errno. */
int wh_gpu_alloc(struct wh_memory_domain *domain, struct wh_allocation *memory);
int wh_gpu_free(struct wh_memory_domain *domain, const struct wh_allocation *memory);
/* Page-lock host memory for all GPUs, and undo it. 0 or a negative errno. */
int wh_gpu_pin(struct wh_memory_domain *domain, const struct wh_allocation *memory);
int wh_gpu_unpin(struct wh_memory_domain *domain, const struct wh_allocation *memory);

/* ---- locations and mappings -------------------------------------------- */

/* Set memory->device and memory->node from options.location (NULL: the default of the kind). 0, or
 * -EINVAL, -ENODEV, ... */
int wh_location_find(struct wh_memory_domain *domain, const char *location,
		     struct wh_allocation *memory);
/* Allocate the pages of [base, base+length) that nothing has touched yet on this node only. */
int wh_numa_bind(void *base, size_t length, int node);
/* The NUMA node of the address's page, without touching it. -1: unknown, or no page yet. */
int wh_numa_node(const void *address);

/* A virtual memory area (VMA) of this process, as the kernel reports it. */
struct wh_vma {
	uint64_t start, end;
	bool readable;
	uint64_t page_size; /* 0: unknown */
	bool huge; /* hugetlb pages */
};

/* Call `each` with the VMAs that overlap [start, end), in order, until it returns non-zero. 0, what
 * `each` returned, or -ENOSYS: /proc is not available. */
int wh_vmas_walk(uint64_t start, uint64_t end, int (*each)(void *arg, const struct wh_vma *vma),
		 void *arg);
/* The same from the text of /proc/self/maps, for kernels before 6.11. */
int wh_vmas_walk_text(uint64_t start, uint64_t end,
		      int (*each)(void *arg, const struct wh_vma *vma), void *arg);
/* Is the whole range mapped? One system call, which touches no page; true if it fails otherwise. */
bool wh_memory_mapped(uint64_t start, uint64_t length);
/* The same; if false, *bad is the first address that is not mapped, which takes longer to find. */
bool wh_vmas_mapped(uint64_t start, uint64_t length, uint64_t *bad);
/* Can each page be read? A system call for each. */
bool wh_memory_readable(uint64_t start, uint64_t length);
/* Copy to memory of the application's, or from it, by one system call, where a load or store might
 * raise a signal. The vector, which changes, has room for `length` bytes at least, in 1,024 parts
 * at most. The other side is the library's own, and `self` this process: asking the kernel each
 * time costs a fifth of the call. Returns the bytes copied; fewer than `length`: what follows them
 * cannot be accessed. Where a seccomp filter refuses the call, or the kernel lacks it, the CPU
 * copies to memory that is mapped, and from memory that can be read. */
size_t wh_memory_put(pid_t self, struct iovec *to, int count, const void *from, size_t length);
size_t wh_memory_take(pid_t self, void *to, struct iovec *from, int count, size_t length);
/* Can the CPU read the whole range? 0; -EFAULT: not at *bad. 0 also without /proc: accesses then
 * fail with a fault. */
int wh_vmas_readable(uint64_t start, uint64_t length, uint64_t *bad);

/* ---- registrations ----------------------------------------------------- */

/* A part of a registered range in one allocation, or in one mapping of cuMemCreate. */
struct wh_segment {
	uint64_t start, length; /* of this part */
	enum wh_cuda_memory memory;
	struct wh_cuda_device *device; /* NULL: host memory */
	CUcontext context; /* its owner; NULL: none */
	uint64_t base, size; /* of the allocation; PLAIN: 0 */
	uint64_t device_address; /* of `start`, for kernels; 0: GPUs cannot access it */
	uint64_t host_address; /* of `start`, for the CPU; 0: it cannot access it */
	uint64_t buffer_id; /* 0: PLAIN */
	uint64_t memory_id;
	uint32_t exports; /* enum wh_cuda_export */
	bool vmm, pool, imported, rdma;
	/* synchronous copies wait for their bytes; without it (VMM memory) a NIC or window may read
	 * old bytes after a copy has returned */
	bool sync_memops;
};

/*
 * What is known about a range of memory that transfers use. For memory that CUDA knows,
 * registrations are shared: one for each range of the same allocations, which their BUFFER_IDs
 * identify; CUDA never reuses these.
 */
struct wh_registration {
	struct wh_memory_domain *domain;
	uint64_t address, length;
	uint32_t kind; /* enum wh_memory_kind, as far as CUDA knows it */
	struct wh_cuda_device *device; /* of the whole range; MANAGED: its owner; NULL: the host */
	struct wh_file *file; /* WH_MEMORY_FILE: without segments. NULL: memory */
	struct wh_segment *segments; /* in order; they cover the range */
	size_t segment_count;
	uint32_t references; /* under domain.registrations_lock, like `known` */
	bool known; /* in domain.registrations */
	struct rdma_gpu *rdma; /* of the transport rdma, under its register_lock; NULL: none yet */
};

/* Get the registration of a range, and count a user. May block on the driver; not in callbacks of a
 * stream. 0, or an error of wh_region_register(). */
int wh_registration_get(struct wh_memory_domain *domain, void *address, size_t length,
			struct wh_registration **out);
/* Count a user less; the last one frees it. NULL is allowed. */
void wh_registration_put(struct wh_registration *registration);
/* Is the memory still the same as when it was registered? 0; -ESTALE: it was freed, and perhaps
 * allocated again; or an error of the driver. One call of the driver per segment; none for plain
 * host memory. */
int wh_registration_check(const struct wh_registration *registration);

#endif
