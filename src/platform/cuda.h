/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver, opened at run time. No policy: other code decides which memory goes by which
 * route.
 *
 * A struct wh_cuda costs nothing until something needs the driver. Then libcuda.so.1 is opened and
 * initialised once; if that fails, every later call returns the same errno and text. A function
 * that this driver lacks is NULL in the table; wh_cuda_call() turns that into an error.
 *
 * The declarations are our own, of the driver's stable ABI: no toolkit is needed. Addresses for a
 * GPU are uint64_t. Functions may be called from any thread, unless their comment says otherwise;
 * none after fork().
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
#define WH_CUDA_DEVICES 64 /* more than any machine has; one bit each */
#define WH_CUDA_NAME 64

/* ---- the library and its devices ------------------------------------------------------------- */

/* A device that this process sees, after CUDA_VISIBLE_DEVICES. */
struct wh_cuda_device {
	int ordinal; /* as CUDA counts, "cuda:0" */
	int handle; /* CUdevice */
	char name[WH_CUDA_NAME]; /* "NVIDIA H200" */
	char uuid[48]; /* "GPU-8-4-4-4-12 hexadecimal digits" */
	char pci[24]; /* "0000:65:00.0", as in sysfs */
	char text[128]; /* "cuda:0 (NVIDIA H200, 0000:65:00.0)", for errors */
	char skipped[256]; /* why it is not used, such as its compute mode; "": it is used */
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
	bool rdma_vmm; /* GPUDirect RDMA for memory of cuMemCreate, too */
	bool vmm;
	bool posix_fd; /* cuMemCreate's memory can become a file descriptor */
	bool fabric; /* ... or be shared over NVLink's fabric, as far as the GPU is concerned */
	/* the driver has refused memory for the fabric, as it does without an IMEX channel; its
	 * error, written before */
	_Atomic bool fabric_refused;
	char fabric_why[160];
	bool managed;
	bool concurrent_managed; /* CPU and GPU may use managed memory at the same time */
	bool pageable; /* the GPU can access ordinary host memory */
	bool coherent; /* ... through the host's page tables: the link to the CPU is not PCIe */
	bool host_register;
	bool read_only_register; /* cuMemHostRegister takes memory that is mapped read-only */
	bool pools;
	uint64_t peers; /* bit n: this device can access the memory of device n */

	pthread_mutex_t lock;
	CUcontext context; /* the primary one, once retained; under lock */
};

#define WH_CUDA_MEMBER(need, since, name, parameters, symbols) int(*name) parameters;

/* The CUDA driver in this process. */
struct wh_cuda {
	WH_CUDA_FUNCTIONS(WH_CUDA_MEMBER) /* cuda->cuMemAlloc; NULL: this driver lacks it */
	int version; /* of the driver's CUDA, 13000; 0: not known yet */
	unsigned device_count;
	struct wh_cuda_device *devices;

	char *path;
	_Atomic unsigned references;
	pthread_mutex_t lock; /* below, until they are set */
	void *library;
	_Atomic int state; /* enum in cuda.c */
	bool off; /* wh_cuda_off() */
	/* the loader's count of opened libraries when the process last had no driver */
	_Atomic unsigned long long loads_without;
	int error; /* why the driver cannot be used, with its text */
	char text[WH_TEXT_MAX];
};

/* Create a binding to the driver at `path` (NULL: libcuda.so.1, as the loader finds it). Loads
 * nothing yet. 0 or -ENOMEM. */
int wh_cuda_open(const char *path, struct wh_cuda **out);
/* Never use a driver: wh_cuda_ready() fails with -ENODEV and this text, and every address counts as
 * plain host memory; the CPU faults if it is not. Call it before the first use. */
void wh_cuda_off(struct wh_cuda *cuda, const char *text);
/* May this process have GPU memory? True if it has a driver, even one that Wherry does not use. */
bool wh_cuda_present(struct wh_cuda *cuda);
/* Add an owner. Returns cuda. */
struct wh_cuda *wh_cuda_hold(struct wh_cuda *cuda);
/* Remove an owner. The last call releases the primary contexts; everything created in them must be
 * gone. An initialised library stays loaded: its threads may be running. */
void wh_cuda_close(struct wh_cuda *cuda);

/* Load and initialise the driver and list the devices, unless that has been tried. May block for
 * seconds. 0, with at least one device; else, now and at every later call, -ENODEV (no library, no
 * device), -EOPNOTSUPP (too old), -ELIBBAD, or the error of cuInit. */
int wh_cuda_ready(struct wh_cuda *cuda);

/* The driver's version of CUDA, 13030 for 13.3. Loads the library without initialising it, so that
 * a child forked later can use CUDA. 0, or -ENODEV and others: the library cannot be used, or does
 * not answer. */
int wh_cuda_driver_version(struct wh_cuda *cuda, int *out);

/* Find a device by name: "cuda:0", "cuda:GPU-<uuid>" (or "MIG-"; a unique prefix is enough),
 * "cuda:0000:65:00.0". 0, or -EINVAL (not a device's name), -ENODEV (no such device, or it is
 * skipped), or an error of wh_cuda_ready(). */
int wh_cuda_device_find(struct wh_cuda *cuda, const char *name, struct wh_cuda_device **out);
/* The device with this number, skipped or not. 0, or -ENODEV, or an error of wh_cuda_ready(). */
int wh_cuda_device_at(struct wh_cuda *cuda, int ordinal, struct wh_cuda_device **out);
/* Can `from` access memory of `to` directly, over NVLink or PCIe? */
bool wh_cuda_device_peers(const struct wh_cuda_device *from, const struct wh_cuda_device *to);
/* Let kernels and copies in the primary context of `from` access the memory of `to`, for good. 0,
 * also if they could before; -EOPNOTSUPP: the devices are no peers; or CUDA's error. */
int wh_cuda_peer_enable(struct wh_cuda *cuda, struct wh_cuda_device *from,
			struct wh_cuda_device *to);

/* ---- calling --------------------------------------------------------------------------------- */

/* Call a function of CUDA, such as cuMemAlloc: 0 or a negative errno, with a text that names the
 * call, CUDA's error and what to try. -EOPNOTSUPP: this driver lacks the function. cuda must be
 * ready. */
#define wh_cuda_call(cuda, name, ...)                                                              \
	((cuda)->name ? wh_cuda_check((cuda), (cuda)->name(__VA_ARGS__), #name, NULL) :            \
			wh_cuda_missing((cuda), #name))
/* The same, and the text names the device as well. */
#define wh_cuda_call_on(cuda, device, name, ...)                                                   \
	((cuda)->name ?                                                                            \
		 wh_cuda_check((cuda), (cuda)->name(__VA_ARGS__), #name, "%s", (device)->text) :   \
		 wh_cuda_missing((cuda), #name))

/* Turn a CUresult into 0 or a negative errno with its text. `format` (NULL: none) names the object
 * of the call: "%zu bytes on %s". */
int wh_cuda_check(const struct wh_cuda *cuda, int result, const char *call, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
/* Fail with -EOPNOTSUPP: the driver lacks this function. The text has the driver's version and the
 * first version with the function. */
int wh_cuda_missing(const struct wh_cuda *cuda, const char *name);
/* The errno that stands for a CUresult, positive; 0 for success. */
int wh_cuda_errno(int result);
/* A function of the library outside the table; NULL: the library has no such symbol. */
void *wh_cuda_symbol(const struct wh_cuda *cuda, const char *symbol);

/* ---- contexts -------------------------------------------------------------------------------- */

/* Calls in one context, on one thread, between wh_cuda_enter() and wh_cuda_leave(). */
struct wh_cuda_scope {
	struct wh_cuda *cuda;
	CUcontext context; /* the one that is current inside */
	int capture; /* the thread's capture mode before */
	bool exchanged;
};

/* Push the device's primary context onto this thread's stack of contexts. Until wh_cuda_leave(),
 * CUDA also allows calls that it would refuse during a stream capture of the application. Scopes
 * nest. -ENODEV: the device is skipped. */
int wh_cuda_enter(struct wh_cuda *cuda, struct wh_cuda_device *device, struct wh_cuda_scope *scope);
/* The same with a context that the application has created on the device; NULL: the primary one. */
int wh_cuda_enter_context(struct wh_cuda *cuda, struct wh_cuda_device *device, CUcontext context,
			  struct wh_cuda_scope *scope);
/* Is it the device's primary context? Retains that one if it is active, so that the answer stays
 * true; creates none. Keeps wh_error_text(). cuda must be ready. */
bool wh_cuda_is_primary(struct wh_cuda *cuda, struct wh_cuda_device *device, CUcontext context);
/* The same with the context that owns the address. Memory of cuMemCreate and of pools has no owner:
 * its device's primary context is used. -EINVAL: CUDA does not know the address. */
int wh_cuda_enter_owner(struct wh_cuda *cuda, uint64_t address, struct wh_cuda_scope *scope);
/* Only allow calls during a capture; for calls that need no context. End it with wh_cuda_leave().
 * cuda must be ready. */
void wh_cuda_relax(struct wh_cuda *cuda, struct wh_cuda_scope *scope);
/* Restore the thread's context and capture mode. Call it once for each successful enter, on the
 * same thread, innermost first. Keeps wh_error_text(). */
void wh_cuda_leave(struct wh_cuda_scope *scope);

/* ---- memory ---------------------------------------------------------------------------------- */

enum wh_cuda_memory {
	WH_CUDA_PLAIN = 1, /* host memory unknown to CUDA */
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

/* The memory at an address. For WH_CUDA_PLAIN all members but `memory` are 0. */
struct wh_cuda_pointer {
	enum wh_cuda_memory memory;
	/* DEVICE: where the memory is; HOST, MANAGED: the context's device, may be NULL */
	struct wh_cuda_device *device;
	CUcontext context; /* that owns it; NULL: none (cuMemCreate, pools) */
	uint64_t base; /* start of the allocation; VMM: of the mapping */
	uint64_t length; /* bytes from `base` */
	/* The queried address as kernels use it (HOST: 0 if not mapped), and as the CPU uses it
	 * (DEVICE: 0). */
	uint64_t device_address;
	uint64_t host_address;
	uint64_t buffer_id; /* never recurs in this process */
	uint64_t memory_id; /* of the physical memory; 0: not known */
	uint32_t exports; /* enum wh_cuda_export, or-ed */
	bool mapped; /* HOST: GPUs can reach it */
	bool vmm; /* cuMemCreate and cuMemMap */
	bool pool; /* cuMemAllocAsync */
	bool imported; /* by legacy IPC; memory imported from descriptors counts as vmm */
	bool rdma; /* NICs can register it */
	bool sync_memops; /* DEVICE: CU_POINTER_ATTRIBUTE_SYNC_MEMOPS is set */
};

/* Find out what memory is at an address. It is plain host memory if the process has no CUDA driver,
 * if nobody has initialised the driver, or if the driver does not know the address; every other
 * error is returned. Loads and initialises nothing, and creates no context. 0, or -EIO and others
 * of wh_cuda_check().
 *
 * Reserved addresses (cuMemAddressReserve) without memory count as plain, because the driver
 * answers as if it did not know them. That does no harm: the CPU faults on them, also after GPU
 * memory was mapped there, and a system call returns EFAULT. */
int wh_cuda_query(struct wh_cuda *cuda, const void *address, struct wh_cuda_pointer *out);

/* Query all of [address, address+length), allocation by allocation. Calls `each` with the memory at
 * `start` (as wh_cuda_query()) and the bytes [start, start+count) of the range that are in it. For
 * PLAIN that is the rest of the range, if its last byte is plain, too. A result other than 0 from
 * `each` ends the walk and is returned. -EFAULT: the range mixes CUDA memory with host memory or
 * with addresses without memory. */
int wh_cuda_walk(struct wh_cuda *cuda, const void *address, size_t length,
		 int (*each)(void *arg, const struct wh_cuda_pointer *pointer, uint64_t start,
			     uint64_t count),
		 void *arg);

/* Make synchronous copies to and from this memory always wait until they are done, so that a NIC or
 * a CPU window never sees the state before the copy. For registered DEVICE memory. -EOPNOTSUPP: vmm
 * memory, for which drivers lack this. */
int wh_cuda_sync_memops(struct wh_cuda *cuda, uint64_t address);

/* ---- kernels --------------------------------------------------------------------------------- */

struct wh_blocks_job;

/* The CUDA kernels of kernels/, loaded into one context. */
struct wh_cuda_kernels {
	CUmodule module;
	CUfunction blocks[8]; /* by enum wh_blocks_variant */
	const char *image; /* which image was loaded: "sm_90" or "ptx" */
	bool overlap; /* a launch can begin before the last one of its stream has ended */
};

/* Load the kernels into the current context, inside a scope of the device, completely: the first
 * launch loads nothing. May take seconds if the driver has to compile. 0, or -ENOEXEC and others:
 * the text contains the output of CUDA's compiler. */
int wh_cuda_kernels_load(struct wh_cuda *cuda, struct wh_cuda_device *device,
			 struct wh_cuda_kernels *out);
/* Call it in the same context. */
void wh_cuda_kernels_unload(struct wh_cuda *cuda, struct wh_cuda_kernels *kernels);
/* Load one image, a cubin or PTX with a NUL at its end, into the current context, inside a scope.
 * The error text contains `name` and the output of CUDA's compiler. */
int wh_cuda_image_load(struct wh_cuda *cuda, const void *image, const char *name, CUmodule *out);
/* Launch a job that wh_blocks_shape() has divided among `ctas` CTAs. Inside a scope of the device.
 * Does not wait. `overlap`: it may begin before the last one of the stream has ended, if the
 * kernels can; it ends after it. */
int wh_cuda_blocks_launch(struct wh_cuda *cuda, const struct wh_cuda_kernels *kernels, int variant,
			  const struct wh_blocks_job *job, uint32_t ctas, bool overlap,
			  CUstream stream);

/* ---- between the parts of the binding -------------------------------------------------------- */

/* Bind to the driver for address queries, but only if the process has loaded it. 0: queries work;
 * *initialised: whether we have initialised it. -ENOENT, without a text: the process has no driver.
 * Else the stored error. */
int wh_cuda_attach(struct wh_cuda *cuda, bool *initialised);
/* Under cuda->lock, after cuInit. */
int wh_cuda_devices_list(struct wh_cuda *cuda);
void wh_cuda_devices_free(struct wh_cuda *cuda);

#endif
