/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver as the benchmark uses it: to look at GPUs' memory without the library that is
 * being measured, and for the limits that it is measured against. Opened at run time, with
 * declarations of our own. Not thread-safe.
 */
#ifndef TOOLS_GPU_H
#define TOOLS_GPU_H

#include <stddef.h>
#include <stdint.h>

#define GPU_MOST 64
#define GPU_TEXT 160

/* Addresses are uint64_t, handles are void *. */
#define GPU_FUNCTIONS(X)                                                                           \
	X(cuInit, (unsigned flags), "cuInit")                                                      \
	X(cuGetErrorName, (int result, const char **out), "cuGetErrorName")                        \
	X(cuDriverGetVersion, (int *version), "cuDriverGetVersion")                                \
	X(cuDeviceGetCount, (int *count), "cuDeviceGetCount")                                      \
	X(cuDeviceGet, (int *device, int ordinal), "cuDeviceGet")                                  \
	X(cuDeviceGetName, (char *out, int length, int device), "cuDeviceGetName")                 \
	X(cuDeviceGetUuid, (void *out, int device), "cuDeviceGetUuid")                             \
	X(cuDeviceGetPCIBusId, (char *out, int length, int device), "cuDeviceGetPCIBusId")         \
	X(cuDeviceGetAttribute, (int *value, int attribute, int device), "cuDeviceGetAttribute")   \
	X(cuDevicePrimaryCtxRetain, (void **out, int device), "cuDevicePrimaryCtxRetain")          \
	X(cuDevicePrimaryCtxRelease, (int device), "cuDevicePrimaryCtxRelease_v2")                 \
	X(cuCtxPushCurrent, (void *context), "cuCtxPushCurrent_v2")                                \
	X(cuCtxPopCurrent, (void **out), "cuCtxPopCurrent_v2")                                     \
	X(cuCtxEnablePeerAccess, (void *peer, unsigned flags), "cuCtxEnablePeerAccess")            \
	X(cuPointerGetAttribute, (void *out, int attribute, uint64_t address),                     \
	  "cuPointerGetAttribute")                                                                 \
	X(cuMemAlloc, (uint64_t * out, size_t length), "cuMemAlloc_v2")                            \
	X(cuMemFree, (uint64_t address), "cuMemFree_v2")                                           \
	X(cuMemcpy, (uint64_t to, uint64_t from, size_t length), "cuMemcpy")                       \
	X(cuMemcpyAsync, (uint64_t to, uint64_t from, size_t length, void *stream),                \
	  "cuMemcpyAsync")                                                                         \
	X(cuStreamCreate, (void **out, unsigned flags), "cuStreamCreate")                          \
	X(cuStreamSynchronize, (void *stream), "cuStreamSynchronize")                              \
	X(cuStreamDestroy, (void *stream), "cuStreamDestroy_v2")                                   \
	X(cuEventCreate, (void **out, unsigned flags), "cuEventCreate")                            \
	X(cuEventRecord, (void *event, void *stream), "cuEventRecord")                             \
	X(cuEventSynchronize, (void *event), "cuEventSynchronize")                                 \
	X(cuEventDestroy, (void *event), "cuEventDestroy_v2")                                      \
	X(cuModuleLoadData, (void **out, const void *image), "cuModuleLoadData")                   \
	X(cuModuleGetFunction, (void **out, void *module, const char *name),                       \
	  "cuModuleGetFunction")                                                                   \
	X(cuModuleUnload, (void *module), "cuModuleUnload")                                        \
	X(cuLaunchKernel,                                                                          \
	  (void *function, unsigned x, unsigned y, unsigned z, unsigned threads_x,                 \
	   unsigned threads_y, unsigned threads_z, unsigned shared, void *stream,                  \
	   void **parameters, void **extra),                                                       \
	  "cuLaunchKernel")

#define GPU_MEMBER(name, parameters, symbol) int(*name) parameters;

struct gpu {
	GPU_FUNCTIONS(GPU_MEMBER)
	void *context[GPU_MOST]; /* primary contexts, once retained */
	char text[GPU_TEXT]; /* the last failure */
};

/* Open the driver at `path` (NULL or "": libcuda.so.1) and initialise it. NULL with a text: there
 * is no driver. */
struct gpu *gpu_open(const char *path, char text[GPU_TEXT]);
/* NULL is allowed. */
void gpu_close(struct gpu *gpu);

/* 0 if `result` is success, or -EIO with a text that names the call and CUDA's error. */
int gpu_check(struct gpu *gpu, int result, const char *call);
#define gpu_call(gpu, name, ...) gpu_check((gpu), (gpu)->name(__VA_ARGS__), #name)

/* Make the GPU's primary context current; gpu_leave() undoes that. 0 or -EIO with a text. */
int gpu_enter(struct gpu *gpu, int ordinal);
void gpu_leave(struct gpu *gpu);

/* The number of the GPU that holds the memory. 0 or -EIO. */
int gpu_of(struct gpu *gpu, const void *address, int *ordinal);

/* Copy, with GPU memory on either side or both. The copy is complete on return. 0 or -EIO with a
 * text. */
int gpu_copy(struct gpu *gpu, void *to, const void *from, size_t length);

/* How one GPU is identified. */
struct gpu_name {
	int ordinal;
	char name[64]; /* "NVIDIA H200" */
	char uuid[48]; /* "GPU-..." */
	char pci[24]; /* "0000:65:00.0" */
};

/* All GPUs that this process sees, at most GPU_MOST; *driver is the CUDA version, such as 13000. */
int gpu_list(struct gpu *gpu, struct gpu_name *out, size_t *count, int *driver);

#endif
