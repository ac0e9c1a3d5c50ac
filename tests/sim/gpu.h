/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated GPUs: what the driver's parts share: libcuda's calls (gpu-driver.c), memory
 * (gpu-memory.c), streams and what runs on them (gpu-stream.c).
 *
 * The CPU faults at a device address: the bytes are elsewhere, where the world moves them and the
 * model of programs looks at them. Work of a stream runs in its order, that of different streams in
 * any. It reads and writes when its time has come, in two steps, and not when it is submitted. */
#ifndef SIM_GPU_H
#define SIM_GPU_H

#include "platform/cuda.h"
#include "world.h"

#define GPUS 2 /* of a host, at most */

/* A GPU of a host. It outlives the host's processes. */
struct gpu {
	int64_t stalled_until;
};

/* The primary context of a process on one of its host's GPUs; others are not simulated. */
struct gpu_context {
	int node, device;
	unsigned references;
	unsigned peers; /* GPUs whose memory its kernels reach, a bit each */
	int error; /* all work has ended, and every call fails so */
	struct gpu_stream *streams;
	struct gpu_stream *null; /* of copies that wait */
};

/* The driver in one process. */
struct gpu_process {
	int node;
	bool initialised;
	bool program; /* the program itself has contexts */
	int64_t peer_left; /* when it last lost a session */
	int objects; /* of libwherry's: streams, events, modules */
	struct gpu_context contexts[GPUS];
};

/* Bytes on a GPU. Who has imported them keeps them. */
struct gpu_memory {
	uint64_t id;
	int host, device;
	uint8_t *bytes;
	size_t size;
	int references;
	bool withdrawn; /* by the program that had it: nobody has any business there */
};

enum gpu_kind { GPU_ALLOCATED, GPU_IMPORTED, GPU_PINNED, GPU_REGISTERED };

/* Addresses that the driver of a process knows. */
struct gpu_range {
	struct gpu_range *next;
	uint64_t base;
	size_t size;
	enum gpu_kind kind;
	struct gpu_context *context;
	struct gpu_memory *memory; /* NULL: the host's own */
	uint64_t number; /* never recurs */
	bool program; /* the program's, not libwherry's */
	int sync; /* CUDA_POINTER_SYNC_MEMOPS */
	unsigned opened; /* GPU_IMPORTED */
};

/* ---- gpu-driver.c ---------------------------------------------------------------------------- */

struct gpu *gpu_of(int host, int device);
struct gpu_process *gpu_process(int node);
/* A call of the running thread: some time passes. Its context, or NULL and the error that the call
 * returns. */
struct gpu_context *gpu_enter(const char *call, int *error);
/* Does a call fail for lack of memory? */
bool gpu_lacks_memory(const char *call);
/* Ends all work of the context. */
void gpu_context_fail(struct gpu_context *context, int error);

/* ---- gpu-memory.c ---------------------------------------------------------------------------- */

struct gpu_range *gpu_range_find(int node, uint64_t address);
/* Where the bytes at an address are. Reduces *length to those that follow each other. NULL: the
 * context does not reach that address. */
uint8_t *gpu_translate(const struct gpu_context *context, uint64_t address, size_t *length,
		       bool by_kernel);
int gpu_live_ranges(int node); /* of libwherry's */
void gpu_ranges_drop(int node);

int gpu_mem_get_info(size_t *available, size_t *total);
int gpu_mem_alloc(CUdeviceptr *out, size_t bytes);
int gpu_mem_free(CUdeviceptr address);
int gpu_mem_get_address_range(CUdeviceptr *base, size_t *size, CUdeviceptr address);
int gpu_mem_host_alloc(void **out, size_t bytes, unsigned flags);
int gpu_mem_free_host(void *address);
int gpu_mem_host_register(void *address, size_t bytes, unsigned flags);
int gpu_mem_host_unregister(void *address);
int gpu_mem_host_get_device_pointer(CUdeviceptr *out, void *address, unsigned flags);
int gpu_ipc_get_mem_handle(struct wh_cuda_ipc_handle *out, CUdeviceptr address);
int gpu_ipc_open_mem_handle(CUdeviceptr *out, struct wh_cuda_ipc_handle handle, unsigned flags);
int gpu_ipc_close_mem_handle(CUdeviceptr address);
int gpu_pointer_get_attribute(void *out, int attribute, CUdeviceptr address);
int gpu_pointer_set_attribute(const void *value, int attribute, CUdeviceptr address);

/* ---- gpu-stream.c ---------------------------------------------------------------------------- */

/* Wait for all that was submitted to streams of the context before. */
void gpu_context_wait(struct gpu_context *context);
/* End what its streams still have, undone. */
void gpu_streams_drop(struct gpu_context *context);

int gpu_ctx_synchronize(void);
int gpu_memcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes);
int gpu_memcpy_to_device(CUdeviceptr to, const void *from, size_t bytes);
int gpu_memcpy_to_host(void *to, CUdeviceptr from, size_t bytes);
int gpu_memcpy_async(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
int gpu_memcpy_to_device_async(CUdeviceptr to, const void *from, size_t bytes, CUstream stream);
int gpu_memcpy_to_host_async(void *to, CUdeviceptr from, size_t bytes, CUstream stream);
int gpu_memcpy_peer_async(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
			  CUcontext from_context, size_t bytes, CUstream stream);
int gpu_memcpy_batch_async(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
			   struct wh_cuda_copy_attributes *attributes, size_t *first,
			   size_t attribute_count, CUstream stream);
int gpu_memset(CUdeviceptr to, unsigned char value, size_t count);
int gpu_memset_async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream);
int gpu_stream_create(CUstream *out, unsigned flags);
int gpu_stream_create_with_priority(CUstream *out, unsigned flags, int priority);
int gpu_stream_destroy(CUstream stream);
int gpu_stream_query(CUstream stream);
int gpu_stream_synchronize(CUstream stream);
int gpu_stream_wait_event(CUstream stream, CUevent event, unsigned flags);
int gpu_stream_get_ctx(CUstream stream, CUcontext *out);
int gpu_stream_write_value(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags);
int gpu_stream_wait_value(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags);
int gpu_event_create(CUevent *out, unsigned flags);
int gpu_event_record(CUevent event, CUstream stream);
int gpu_event_query(CUevent event);
int gpu_event_synchronize(CUevent event);
int gpu_event_destroy(CUevent event);
int gpu_launch_kernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
		      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
		      CUstream stream, void **parameters, void **extra);
int gpu_launch_kernel_ex(const struct wh_cuda_launch *launch, CUfunction function,
			 void **parameters, void **extra);

#endif
