/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver, opened at run time. No policy: what memory is used for which path is decided
 * elsewhere.
 *
 * A struct wh_cuda costs nothing until something needs the driver; then libcuda.so.1 is opened and
 * initialised once, and where that fails every later call says the same errno and the same text.
 * What the driver of a machine lacks is NULL in the table and says so through wh_cuda_call().
 *
 * The declarations below are our own, of the ABI that the driver promises: no toolkit is needed.
 * Addresses that a GPU understands are uint64_t. All functions may be called from any thread, save
 * where it is said; none after fork().
 */
#ifndef WH_PLATFORM_CUDA_H
#define WH_PLATFORM_CUDA_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "platform/cuda-abi.h"
#include "util/error.h"

#define WH_CUDA_LIBRARY "libcuda.so.1"
#define WH_CUDA_DEVICES 64 /* more than any machine has; a bit each */
#define WH_CUDA_NAME 64

/* ---- the library and its devices ------------------------------------------------------------- */

/* A device of this process: CUDA_VISIBLE_DEVICES has been at work. */
struct wh_cuda_device {
	int ordinal; /* as CUDA counts, "cuda:0" */
	int handle; /* CUdevice */
	char name[WH_CUDA_NAME]; /* "NVIDIA H200" */
	char uuid[48]; /* "GPU-8-4-4-4-12 hexadecimal digits" */
	char pci[24]; /* "0000:65:00.0", as in sysfs */
	char text[128]; /* "cuda:0 (NVIDIA H200, 0000:65:00.0)", for errors */
	char skipped[256]; /* why it is not used ("": it is): its compute mode */
	uint64_t memory; /* bytes in all */
	int capability; /* 90: compute capability 9.0 */
	int processors; /* multiprocessors */
	int copy_engines;
	int numa_node; /* of the host memory nearest to it; -1: not known */
	int compute_mode; /* enum wh_cuda_compute_mode */
	int writes_ordering; /* GPUDirect RDMA: 0 none, 100 for the owner, 200 for all devices */
	int flush_options; /* GPUDirect RDMA: 1 cuFlushGPUDirectRDMAWrites, 2 memory operations */
	bool unified_addressing;
	bool integrated;
	bool dma_buf;
	bool rdma; /* GPUDirect RDMA */
	bool rdma_vmm; /* with cuMemCreate's memory as well */
	bool vmm;
	bool posix_fd; /* cuMemCreate's memory can become a file descriptor */
	bool fabric;
	bool managed;
	bool concurrent_managed; /* CPU and GPU may use managed memory at the same time */
	bool pageable; /* reads and writes ordinary host memory, */
	bool coherent; /* by the host's own page tables: the CPU reaches it past PCIe */
	bool host_register;
	bool pools;
	uint64_t peers; /* bit n: it can reach the memory of device n */

	pthread_mutex_t lock;
	CUcontext context; /* the primary one, once retained; under lock */
};

#define WH_CUDA_MEMBER(need, since, name, parameters, symbols) int(*name) parameters;

/* What the process knows of CUDA. */
struct wh_cuda {
	WH_CUDA_FUNCTIONS(WH_CUDA_MEMBER) /* cuda->cuMemAlloc; NULL: this driver has it not */
	int version; /* of the driver's CUDA, 13000; 0: not known yet */
	unsigned device_count;
	struct wh_cuda_device *devices;

	char *path;
	_Atomic unsigned references;
	pthread_mutex_t lock; /* below, until they are set */
	void *library;
	_Atomic int state; /* enum in cuda.c */
	bool off; /* wh_cuda_off() */
	/* libraries opened by when there was no driver */
	_Atomic unsigned long long loads_without;
	int error; /* why it cannot be used, with its text */
	char text[WH_TEXT_MAX];
};

/* Remember to use the driver at `path` (NULL: libcuda.so.1, as the loader finds it). Loads nothing.
 * 0 or -ENOMEM. */
int wh_cuda_open(const char *path, struct wh_cuda **out);
/* Use no driver, before the first use: wh_cuda_ready() is -ENODEV with this text, and every address
 * is plain memory, on which the CPU faults where it is not. */
void wh_cuda_off(struct wh_cuda *cuda, const char *text);
/* May there be memory of a GPU in this process? It has a driver, whether or not we use it. */
bool wh_cuda_present(struct wh_cuda *cuda);
/* One more owner. Returns cuda. */
struct wh_cuda *wh_cuda_hold(struct wh_cuda *cuda);
/* The last owner's call gives the primary contexts back; all that was made in them must be gone.
 * The library stays in the process once it was initialised: its threads may be running. */
void wh_cuda_close(struct wh_cuda *cuda);

/* Load and initialise the driver if that has not been tried, and list the devices; blocks for as
 * long as that takes (up to seconds). 0 with at least one device; else, from then on at each
 * call, what was missing: -ENODEV (no library, no device), -EOPNOTSUPP (too old), -ELIBBAD, or
 * what cuInit said. */
int wh_cuda_ready(struct wh_cuda *cuda);

/* The version of CUDA that the driver has, 13030 for 13.3. Loads the library and initialises
 * nothing, so that a child forked later can use CUDA. 0, or -ENODEV and others: the library cannot
 * be used, or does not say. */
int wh_cuda_driver_version(struct wh_cuda *cuda, int *out);

/* The device that `name` means: "cuda:0", "cuda:GPU-<uuid>" (or "MIG-"; the start will do if it is
 * unique), "cuda:0000:65:00.0". 0, or -EINVAL (not such a name), -ENODEV (no such device; or it is
 * skipped for its compute mode), or what wh_cuda_ready() says. */
int wh_cuda_device_find(struct wh_cuda *cuda, const char *name, struct wh_cuda_device **out);
/* The device with this number. -ENODEV. Also those that are skipped. */
int wh_cuda_device_at(struct wh_cuda *cuda, int ordinal, struct wh_cuda_device **out);
/* Can `from` reach memory of `to` itself, by NVLink or PCIe? */
bool wh_cuda_device_peers(const struct wh_cuda_device *from, const struct wh_cuda_device *to);
/* Let kernels and copies in from's primary context reach what is allocated in to's, for good. 0
 * if it was so already; -EOPNOTSUPP. */
int wh_cuda_peer_enable(struct wh_cuda *cuda, struct wh_cuda_device *from,
			struct wh_cuda_device *to);

/* ---- calling --------------------------------------------------------------------------------- */

/* cuMemAlloc and the like: 0 or a negative errno, with a text that names the call, CUDA's error and
 * what to try. A function that the driver lacks is -EOPNOTSUPP. cuda is ready. */
#define wh_cuda_call(cuda, name, ...)                                                              \
	((cuda)->name ? wh_cuda_check((cuda), (cuda)->name(__VA_ARGS__), #name, NULL) :            \
			wh_cuda_missing((cuda), #name))
/* The same, and the text names the device as well. */
#define wh_cuda_call_on(cuda, device, name, ...)                                                   \
	((cuda)->name ?                                                                            \
		 wh_cuda_check((cuda), (cuda)->name(__VA_ARGS__), #name, "%s", (device)->text) :   \
		 wh_cuda_missing((cuda), #name))

/* Turn a CUresult into 0 or a negative errno with its text. `format` (NULL: none) says what it was
 * done to: "%zu bytes on %s". */
int wh_cuda_check(const struct wh_cuda *cuda, int result, const char *call, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
/* -EOPNOTSUPP: the driver lacks this function. Names its version and the one that has it. */
int wh_cuda_missing(const struct wh_cuda *cuda, const char *name);
/* The errno that stands for a CUresult, positive; 0 for success. */
int wh_cuda_errno(int result);
/* Another function of the library, by its symbol; NULL: not there. */
void *wh_cuda_symbol(const struct wh_cuda *cuda, const char *symbol);

/* ---- contexts -------------------------------------------------------------------------------- */

/* A stretch of calls in one context, on one thread. */
struct wh_cuda_scope {
	struct wh_cuda *cuda;
	CUcontext context; /* the one that is current inside */
	int capture; /* the thread's capture mode before */
	bool exchanged;
};

/* Make the device's primary context the current one of this thread, on top of what is there. Until
 * wh_cuda_leave() calls that would disturb a stream capture of the application are allowed. Scopes
 * nest. -ENODEV for a device that is skipped. */
int wh_cuda_enter(struct wh_cuda *cuda, struct wh_cuda_device *device, struct wh_cuda_scope *scope);
/* The same with a context of the device's that the application has made; NULL: the primary one. */
int wh_cuda_enter_context(struct wh_cuda *cuda, struct wh_cuda_device *device, CUcontext context,
			  struct wh_cuda_scope *scope);
/* The same with the context that owns the address, or, where none does (cuMemCreate, pools), the
 * primary one of its device. -EINVAL: not an address that CUDA knows. */
int wh_cuda_enter_owner(struct wh_cuda *cuda, uint64_t address, struct wh_cuda_scope *scope);
/* Only allow those calls, for what needs no context. Ended as the others are. cuda is ready. */
void wh_cuda_relax(struct wh_cuda *cuda, struct wh_cuda_scope *scope);
/* Leave things as they were found. Call it once for each enter that succeeded, on the same thread,
 * innermost first. Keeps wh_error_text(). */
void wh_cuda_leave(struct wh_cuda_scope *scope);

/* ---- memory ---------------------------------------------------------------------------------- */

enum wh_cuda_memory {
	WH_CUDA_PLAIN = 1, /* host memory that CUDA knows nothing of */
	WH_CUDA_HOST = 2, /* pinned: cuMemHostAlloc, cuMemHostRegister */
	WH_CUDA_DEVICE = 3,
	WH_CUDA_MANAGED = 4,
};

enum wh_cuda_export {
	WH_CUDA_EXPORT_IPC = 1, /* cuIpcGetMemHandle */
	WH_CUDA_EXPORT_FD = 2, /* cuMemExportToShareableHandle to a file descriptor */
	WH_CUDA_EXPORT_POOL_FD = 4, /* of a pool: cuMemPoolExportPointer */
	WH_CUDA_EXPORT_DMA_BUF = 8, /* cuMemGetHandleForAddressRange */
	WH_CUDA_EXPORT_FABRIC = 16,
};

/* What an address is. For WH_CUDA_PLAIN all but `memory` is 0. */
struct wh_cuda_pointer {
	enum wh_cuda_memory memory;
	/* DEVICE: where it lies; HOST, MANAGED: of the context, may be NULL. */
	struct wh_cuda_device *device;
	CUcontext context; /* that owns it; NULL: none (cuMemCreate, pools) */
	uint64_t base; /* of the allocation; VMM: of the mapping the address lies in */
	uint64_t length; /* bytes from there */
	/* Of the address asked about: for kernels (HOST: 0 if it is not mapped), and for the CPU
	 * (DEVICE: 0). */
	uint64_t device_address;
	uint64_t host_address;
	uint64_t buffer_id; /* never recurs in this process */
	uint64_t memory_id; /* of the physical memory; 0: the driver does not say */
	uint32_t exports; /* enum wh_cuda_export, or-ed */
	bool mapped; /* HOST: GPUs can reach it */
	bool vmm; /* cuMemCreate and cuMemMap */
	bool pool; /* cuMemAllocAsync */
	/* by legacy IPC from another process. Imported descriptors look like vmm */
	bool imported;
	bool rdma; /* NICs can be given it */
	bool sync_memops; /* DEVICE: CU_POINTER_ATTRIBUTE_SYNC_MEMOPS is set */
};

/* What the address is. Plain host memory if the process has no CUDA driver, has not initialised
 * it, or the driver does not know the address; never because of any other error. Does not load,
 * initialise or make a context of anything that the process has not. 0, or -EIO and others of
 * wh_cuda_check().
 *
 * Addresses that are set aside for a GPU (cuMemAddressReserve) with no memory behind them are
 * plain too: of them the driver answers as of memory that it has never heard of. Nothing is
 * misread for that: the CPU faults on them, also after memory of a GPU was mapped there, and a
 * system call gets EFAULT. */
int wh_cuda_query(struct wh_cuda *cuda, const void *address, struct wh_cuda_pointer *out);

/* What all of [address, address+length) is, allocation by allocation: calls `each` with what
 * lies at `start` (as wh_cuda_query()) and the bytes [start, start+count) of the range that lie
 * in it. For PLAIN the rest of the range, if its last byte is plain as well. -EFAULT: the range
 * runs from a GPU's memory into that of the host, or into addresses without memory, or back. Not
 * 0 from `each` ends it. */
int wh_cuda_walk(struct wh_cuda *cuda, const void *address, size_t length,
		 int (*each)(void *arg, const struct wh_cuda_pointer *pointer, uint64_t start,
			     uint64_t count),
		 void *arg);

/* Make synchronous copies wait until they are done, also where the driver would not: a NIC or a CPU
 * window then never sees the memory before the copy. For DEVICE memory that is registered.
 * -EOPNOTSUPP: vmm memory, for which drivers have no such thing. */
int wh_cuda_sync_memops(struct wh_cuda *cuda, uint64_t address);

/* ---- kernels --------------------------------------------------------------------------------- */

struct wh_blocks_job;

/* The kernels of kernels/, loaded in one context. */
struct wh_cuda_kernels {
	CUmodule module;
	CUfunction blocks[8]; /* by enum wh_blocks_variant */
	const char *image; /* "sm_90" or "ptx": which was taken */
};

/* Load the kernels into the current context, inside a scope of the device, all the way: nothing is
 * left for the first launch. May take seconds if the driver has to compile. 0; -ENOEXEC and others:
 * the text carries what CUDA's compiler said. */
int wh_cuda_kernels_load(struct wh_cuda *cuda, struct wh_cuda_device *device,
			 struct wh_cuda_kernels *out);
/* In the same context. */
void wh_cuda_kernels_unload(struct wh_cuda *cuda, struct wh_cuda_kernels *kernels);
/* Load one image, a cubin or PTX that ends with a 0, into the current context, inside a scope.
 * `name` is for the error, which carries what CUDA's compiler said. */
int wh_cuda_image_load(struct wh_cuda *cuda, const void *image, const char *name, CUmodule *out);
/* Start a job that wh_blocks_shape() has cut for `ctas` CTAs. Inside a scope of the device. Does
 * not wait. */
int wh_cuda_blocks_launch(struct wh_cuda *cuda, const struct wh_cuda_kernels *kernels, int variant,
			  const struct wh_blocks_job *job, uint32_t ctas, CUstream stream);

/* ---- between the parts of the binding -------------------------------------------------------- */

/* Use the driver for asking about addresses only if the process has it already. 0: it can be
 * asked; *initialised: by us. -ENOENT without a text: the process has none. Else the error that
 * is kept. */
int wh_cuda_attach(struct wh_cuda *cuda, bool *initialised);
/* Under the lock, after cuInit. */
int wh_cuda_devices_list(struct wh_cuda *cuda);
void wh_cuda_devices_free(struct wh_cuda *cuda);

#endif
