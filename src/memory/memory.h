/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of memory/ ask of each other, and the core and the transports of them. */
#ifndef WH_MEMORY_MEMORY_H
#define WH_MEMORY_MEMORY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/memory.h>

#include "platform/cuda.h"
#include "util/list.h"

struct wh_cuda;

/* ---- the memory domain -------------------------------------------------------------------- */

/* The memory of an engine: what it has allocated, and what it knows of memory that others have
 * allocated and it uses. */
struct wh_memory_domain {
	struct wh_cuda *cuda; /* never NULL; wh_cuda_ready() says why if GPUs cannot be used */
	pthread_mutex_t lock; /* `allocations`, and their `regions`; no other is taken under it */
	struct wh_list allocations; /* struct wh_allocation */
	/* the last one given to an allocation, or to a version of one */
	_Atomic uint64_t number;
	/* taken with no other lock held, and held while the driver is asked */
	pthread_mutex_t registrations_lock;
	void *registrations; /* tsearch() tree of those of memory that CUDA knows */
};

/* The caller sets `cuda` afterwards, before anything else is called, and closes it. */
void wh_memory_domain_init(struct wh_memory_domain *domain);
/* Nothing may be allocated or registered any more. */
void wh_memory_domain_destroy(struct wh_memory_domain *domain);

/* ---- allocations ------------------------------------------------------------------------- */

struct wh_allocation {
	struct wh_list link; /* domain.allocations */
	char *base;
	size_t length; /* as mapped: whole pages, of a GPU whole blocks */
	size_t asked;
	uint32_t kind, page_size;
	uint32_t flags; /* enum wh_memory_flag */
	int fd; /* WH_MEMORY_SHARED, WH_MEMORY_PINNED: the memfd; else -1 */
	int node; /* NUMA node that was asked for; -1: any */
	struct wh_cuda_device *device; /* in whose primary context it was made; NULL: no GPU's */
	unsigned regions; /* how many lie in it; under domain.lock */
	/* What peers may see of it, for those that want to map it. Under engine.lock. */
	uint64_t number; /* of the allocation in this engine; never given again */
	struct wh_list members; /* wh_region.member: the published ones that lie in it */
	/* changes when one of those comes or goes; no other allocation has it */
	uint64_t version;
	/* the sum of the lengths of those that any peer may read, write */
	uint64_t readable, writable;
};

/* How many allocations there are. */
unsigned wh_memory_domain_count(struct wh_memory_domain *domain);
/* The public calls, whose contracts hold, without the engine around the domain. */
int wh_memory_domain_alloc(struct wh_memory_domain *domain, size_t length,
			   const struct wh_memory_options *options, void **out);
int wh_memory_domain_free(struct wh_memory_domain *domain, void *address);
int wh_memory_domain_query(struct wh_memory_domain *domain, const void *address,
			   struct wh_memory_info *info);

/* The allocation that holds the address, or NULL. Under domain.lock. */
struct wh_allocation *wh_allocation_find(struct wh_memory_domain *domain, const void *address);
/* Find the allocation that holds all of the range, NULL: none that holds its start. -EINVAL: the
 * range reaches past its end. Under domain.lock. */
int wh_allocation_holds(struct wh_memory_domain *domain, const void *address, size_t length,
			struct wh_allocation **out);

/* The same without the lock, and count a region that lies in it, so that it is not freed. */
int wh_allocation_acquire(struct wh_memory_domain *domain, const void *address, size_t length,
			  struct wh_allocation **out);
/* A region less lies in it; NULL is allowed. */
void wh_allocation_release(struct wh_memory_domain *domain, struct wh_allocation *allocation);

/* Memory that the CPU may touch at any time: not a GPU's, and not managed. */
static inline bool wh_kind_on_host(uint32_t kind)
{
	return kind >= WH_MEMORY_PAGEABLE && kind <= WH_MEMORY_MAPPED;
}

/* The kinds that take a driver, save PINNED: allocate memory->asked bytes, zeroed. memory->device
 * is set. */
int wh_gpu_alloc(struct wh_memory_domain *domain, struct wh_allocation *memory);
int wh_gpu_free(struct wh_memory_domain *domain, const struct wh_allocation *memory);
/* Page-lock host memory for all GPUs, and undo it. */
int wh_gpu_pin(struct wh_memory_domain *domain, const struct wh_allocation *memory);
int wh_gpu_unpin(struct wh_memory_domain *domain, const struct wh_allocation *memory);

/* ---- places in the machine --------------------------------------------------------------- */

/* Set memory->device and memory->node from options.location. -EINVAL, -ENODEV, ... */
int wh_location_find(struct wh_memory_domain *domain, const char *location,
		     struct wh_allocation *memory);
/* Pages of [base, base+length) that have not been touched yet come from this node only. */
int wh_numa_bind(void *base, size_t length, int node);
/* The node that the address's page lies on; -1: not known, or none yet. Does not touch it. */
int wh_numa_node(const void *address);

/* A virtual memory area (VMA) of this process, as the kernel reports it. */
struct wh_vma {
	uint64_t start, end;
	bool readable;
	uint64_t page_size; /* 0: not known */
	bool huge; /* hugetlb pages */
};

/* Call `each` with the areas that overlap [start, end), in order; not 0 from it ends that. 0,
 * or what `each` returned, or -ENOSYS: /proc does not tell. */
int wh_vmas_walk(uint64_t start, uint64_t end, int (*each)(void *arg, const struct wh_vma *vma),
		 void *arg);
/* The same from the text of /proc/self/maps, for kernels before 6.11. */
int wh_vmas_walk_text(uint64_t start, uint64_t end,
		      int (*each)(void *arg, const struct wh_vma *vma), void *arg);
/* Is something mapped in all of the range? One system call, which touches nothing; where it cannot
 * tell: yes. */
bool wh_memory_mapped(uint64_t start, uint64_t length);
/* The same; false: not at *bad, which takes longer to find. */
bool wh_vmas_mapped(uint64_t start, uint64_t length, uint64_t *bad);
/* Can the CPU read all of the range? 0; -EFAULT: not at *bad. Where /proc does not tell: 0, for
 * the CPU faults on what it cannot read. */
int wh_vmas_readable(uint64_t start, uint64_t length, uint64_t *bad);

/* ---- registrations ----------------------------------------------------------------------- */

/* A part of a registered range that lies in one allocation, or in one mapping of cuMemCreate. */
struct wh_segment {
	uint64_t start, length; /* of the range */
	enum wh_cuda_memory memory;
	struct wh_cuda_device *device; /* where it lies; NULL: host memory */
	CUcontext context; /* that owns it; NULL: none */
	uint64_t base, size; /* of the allocation; PLAIN: 0 */
	uint64_t device_address; /* of `start`, for kernels; 0: GPUs do not reach it */
	uint64_t host_address; /* of `start`, for the CPU; 0: it does not reach it */
	uint64_t buffer_id; /* 0: PLAIN */
	uint64_t memory_id;
	uint32_t exports; /* enum wh_cuda_export */
	bool vmm, pool, imported, rdma;
	/* set; where it is not (vmm), a NIC may see memory before a copy ends */
	bool sync_memops;
};

/*
 * What is known of a range of memory that transfers use. Those of memory that CUDA knows are
 * shared: the same range of the same allocations (their BUFFER_IDs, which never recur) has one
 * registration.
 */
struct wh_registration {
	struct wh_memory_domain *domain;
	uint64_t address, length;
	uint32_t kind; /* enum wh_memory_kind, as far as it can be told without the allocation */
	struct wh_cuda_device *device; /* where it all lies, MANAGED: belongs; NULL: the host */
	struct wh_segment *segments; /* in order; they cover the range */
	size_t segment_count;
	uint32_t references; /* under domain.registrations_lock, as is `known` */
	bool known; /* in domain.registrations */
	struct rdma_gpu *rdma; /* the transport rdma's, under its register_lock; NULL: none yet */
};

/* Look at a range and count a user. May block on the driver; not in callbacks of a stream. 0 or
 * what wh_region_register() says. */
int wh_registration_get(struct wh_memory_domain *domain, void *address, size_t length,
			struct wh_registration **out);
void wh_registration_put(struct wh_registration *registration);
/* Is it still the same memory? -ESTALE: it was freed, or freed and allocated again; other errors
 * are the driver's. One question to the driver for each segment; none for plain host memory. */
int wh_registration_check(const struct wh_registration *registration);

#endif
