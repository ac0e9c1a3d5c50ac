/* SPDX-License-Identifier: Apache-2.0 */
/* Our own declarations of the part of the CUDA driver's ABI that Wherry uses. */
#ifndef WH_PLATFORM_CUDA_ABI_H
#define WH_PLATFORM_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef struct wh_cuda_context_ *CUcontext;
typedef struct wh_cuda_stream_ *CUstream;
typedef struct wh_cuda_event_ *CUevent;
typedef struct wh_cuda_module_ *CUmodule;
typedef struct wh_cuda_function_ *CUfunction;
typedef struct wh_cuda_pool_ *CUmemoryPool;
typedef uint64_t CUdeviceptr;
typedef unsigned long long CUallocation; /* CUmemGenericAllocationHandle */

enum wh_cuda_result {
	CUDA_SUCCESS = 0,
	CUDA_INVALID_VALUE = 1,
	CUDA_OUT_OF_MEMORY = 2,
	CUDA_NOT_INITIALIZED = 3,
	CUDA_DEINITIALIZED = 4,
	CUDA_STUB_LIBRARY = 34,
	CUDA_DEVICE_UNAVAILABLE = 46,
	CUDA_NO_DEVICE = 100,
	CUDA_INVALID_DEVICE = 101,
	CUDA_INVALID_IMAGE = 200,
	CUDA_INVALID_CONTEXT = 201,
	CUDA_ALREADY_MAPPED = 208,
	CUDA_NO_BINARY_FOR_GPU = 209,
	CUDA_ECC_UNCORRECTABLE = 214,
	CUDA_PEER_ACCESS_UNSUPPORTED = 217,
	CUDA_INVALID_PTX = 218,
	CUDA_NVLINK_UNCORRECTABLE = 220,
	CUDA_JIT_COMPILER_NOT_FOUND = 221,
	CUDA_UNSUPPORTED_PTX_VERSION = 222,
	CUDA_JIT_COMPILATION_DISABLED = 223,
	CUDA_OPERATING_SYSTEM = 304,
	CUDA_INVALID_HANDLE = 400,
	CUDA_NOT_FOUND = 500,
	CUDA_NOT_READY = 600,
	CUDA_ILLEGAL_ADDRESS = 700,
	CUDA_LAUNCH_OUT_OF_RESOURCES = 701,
	CUDA_LAUNCH_TIMEOUT = 702,
	CUDA_PEER_ACCESS_ALREADY_ENABLED = 704,
	CUDA_CONTEXT_IS_DESTROYED = 709,
	CUDA_TOO_MANY_PEERS = 711,
	CUDA_HOST_MEMORY_ALREADY_REGISTERED = 712,
	CUDA_HOST_MEMORY_NOT_REGISTERED = 713,
	CUDA_MISALIGNED_ADDRESS = 716,
	CUDA_LAUNCH_FAILED = 719,
	CUDA_NOT_PERMITTED = 800,
	CUDA_NOT_SUPPORTED = 801,
	CUDA_SYSTEM_NOT_READY = 802,
	CUDA_SYSTEM_DRIVER_MISMATCH = 803,
	CUDA_STREAM_CAPTURE_UNSUPPORTED = 900,
	CUDA_STREAM_CAPTURE_LAST = 908,
	CUDA_UNKNOWN = 999,
};

enum wh_cuda_attribute {
	CUDA_DEVICE_MULTIPROCESSORS = 16,
	CUDA_DEVICE_INTEGRATED = 18,
	CUDA_DEVICE_COMPUTE_MODE = 20,
	CUDA_DEVICE_PCI_BUS = 33,
	CUDA_DEVICE_PCI_DEVICE = 34,
	CUDA_DEVICE_COPY_ENGINES = 40,
	CUDA_DEVICE_UNIFIED_ADDRESSING = 41,
	CUDA_DEVICE_PCI_DOMAIN = 50,
	CUDA_DEVICE_CAPABILITY_MAJOR = 75,
	CUDA_DEVICE_CAPABILITY_MINOR = 76,
	CUDA_DEVICE_MANAGED_MEMORY = 83,
	CUDA_DEVICE_PAGEABLE_ACCESS = 88,
	CUDA_DEVICE_CONCURRENT_MANAGED = 89,
	CUDA_DEVICE_HOST_REGISTER = 99,
	CUDA_DEVICE_PAGEABLE_HOST_TABLES = 100,
	CUDA_DEVICE_VMM = 102,
	CUDA_DEVICE_POSIX_FD = 103,
	CUDA_DEVICE_RDMA_VMM = 110,
	CUDA_DEVICE_READ_ONLY_REGISTER = 113,
	CUDA_DEVICE_MEMORY_POOLS = 115,
	CUDA_DEVICE_RDMA = 116,
	CUDA_DEVICE_RDMA_FLUSH_OPTIONS = 117,
	CUDA_DEVICE_RDMA_WRITES_ORDERING = 118,
	CUDA_DEVICE_DMA_BUF = 124,
	CUDA_DEVICE_FABRIC = 128,
	CUDA_DEVICE_HOST_NUMA_ID = 134,
};

enum wh_cuda_compute_mode {
	CUDA_COMPUTE_DEFAULT = 0,
	CUDA_COMPUTE_PROHIBITED = 2,
	CUDA_COMPUTE_EXCLUSIVE = 3,
};

enum wh_cuda_pointer_attribute {
	CUDA_POINTER_CONTEXT = 1,
	CUDA_POINTER_MEMORY_TYPE = 2,
	CUDA_POINTER_DEVICE_ADDRESS = 3,
	CUDA_POINTER_HOST_ADDRESS = 4,
	CUDA_POINTER_SYNC_MEMOPS = 6,
	CUDA_POINTER_BUFFER_ID = 7,
	CUDA_POINTER_IS_MANAGED = 8,
	CUDA_POINTER_DEVICE_ORDINAL = 9,
	CUDA_POINTER_IPC_CAPABLE = 10,
	CUDA_POINTER_RANGE_START = 11,
	CUDA_POINTER_RANGE_SIZE = 12,
	CUDA_POINTER_MAPPED = 13,
	CUDA_POINTER_HANDLE_TYPES = 14,
	CUDA_POINTER_RDMA_CAPABLE = 15,
	CUDA_POINTER_POOL = 17,
	CUDA_POINTER_MAPPING_SIZE = 18,
	CUDA_POINTER_MAPPING_BASE = 19,
	CUDA_POINTER_MEMORY_ID = 20,
};

enum wh_cuda_memory_type {
	CUDA_MEMORY_HOST = 1,
	CUDA_MEMORY_DEVICE = 2,
	CUDA_MEMORY_ARRAY = 3,
	CUDA_MEMORY_UNIFIED = 4,
};

enum wh_cuda_flag {
	CUDA_STREAM_NON_BLOCKING = 1,
	CUDA_EVENT_DISABLE_TIMING = 2,
	CUDA_EVENT_INTERPROCESS = 4,
	CUDA_HOST_PORTABLE = 1, /* cuMemHostAlloc and cuMemHostRegister alike */
	CUDA_HOST_DEVICE_MAP = 2,
	CUDA_HOST_WRITE_COMBINED = 4, /* cuMemHostAlloc */
	CUDA_HOST_IO_MEMORY = 4, /* cuMemHostRegister */
	CUDA_HOST_READ_ONLY = 8, /* cuMemHostRegister */
	CUDA_MANAGED_GLOBAL = 1,
	CUDA_IPC_LAZY_PEER = 1,
	CUDA_CAPTURE_GLOBAL = 0,
	CUDA_CAPTURE_THREAD = 1,
	CUDA_CAPTURE_RELAXED = 2,
	CUDA_RANGE_DMA_BUF = 1, /* cuMemGetHandleForAddressRange: kind of handle */
	CUDA_RANGE_FLAG_PCIE = 1, /* cuMemGetHandleForAddressRange: access over PCIe */
	CUDA_FLUSH_TARGET_CONTEXT = 0, /* cuFlushGPUDirectRDMAWrites */
	CUDA_FLUSH_OWNER = 100,
	CUDA_FLUSH_ALL_DEVICES = 200,
	CUDA_STREAM_WAIT_GEQ = 0,
	CUDA_STREAM_WAIT_EQ = 1,
};

/* ---- virtual memory management --------------------------------------------------------------- */

enum wh_cuda_handle_type {
	CUDA_HANDLE_NONE = 0,
	CUDA_HANDLE_FD = 1,
	CUDA_HANDLE_FABRIC = 8,
};

enum wh_cuda_location_type {
	CUDA_LOCATION_DEVICE = 1,
	CUDA_LOCATION_HOST = 2,
	CUDA_LOCATION_HOST_NUMA = 3,
};

struct wh_cuda_location {
	int type, id;
};

struct wh_cuda_properties { /* CUmemAllocationProp */
	int type; /* 1: pinned */
	int handle_types;
	struct wh_cuda_location location;
	void *win32;
	struct {
		unsigned char compression, rdma;
		unsigned short usage;
		unsigned char reserved[4];
	} flags;
};

struct wh_cuda_access { /* CUmemAccessDesc */
	struct wh_cuda_location location;
	int flags; /* 0 none, 1 read, 3 read and write */
};

enum { CUDA_ALLOCATION_PINNED = 1, CUDA_GRANULARITY_MINIMUM = 0, CUDA_GRANULARITY_RECOMMENDED = 1 };

struct wh_cuda_uuid {
	unsigned char bytes[16];
};

struct wh_cuda_ipc_handle { /* CUipcMemHandle and CUipcEventHandle */
	unsigned char bytes[64];
};

struct wh_cuda_copy_attributes { /* CUmemcpyAttributes */
	/* when the source is read: CUDA_COPY_IN_STREAM_ORDER, 2 during the call, 3 at any time */
	int order;
	struct wh_cuda_location from, to;
	unsigned flags;
};

enum { CUDA_COPY_IN_STREAM_ORDER = 1 };

struct wh_cuda_launch_attribute { /* CUlaunchAttribute */
	int id;
	int unused;
	union {
		int number;
		char bytes[64];
	} value;
};

enum { CUDA_LAUNCH_PROGRAMMATIC_SERIALIZATION = 6 };

struct wh_cuda_launch { /* CUlaunchConfig */
	unsigned grid[3], block[3];
	unsigned shared; /* bytes */
	CUstream stream;
	struct wh_cuda_launch_attribute *attributes;
	unsigned count;
};

_Static_assert(sizeof(struct wh_cuda_launch_attribute) == 72, "CUlaunchAttribute");
_Static_assert(sizeof(struct wh_cuda_launch) == 56, "CUlaunchConfig");
_Static_assert(sizeof(struct wh_cuda_properties) == 32, "CUmemAllocationProp");
_Static_assert(sizeof(struct wh_cuda_access) == 12, "CUmemAccessDesc");
_Static_assert(sizeof(struct wh_cuda_copy_attributes) == 24, "CUmemcpyAttributes");

enum wh_cuda_jit {
	CUDA_JIT_INFO_LOG = 3,
	CUDA_JIT_INFO_LOG_SIZE = 4,
	CUDA_JIT_ERROR_LOG = 5,
	CUDA_JIT_ERROR_LOG_SIZE = 6,
};

enum { CUDA_FUNCTION_BINARY_VERSION = 6 };

/* ---- functions ------------------------------------------------------------------------------ */

/* X(NEEDED or OPTIONAL, the first CUDA version with it, name, (parameters), "symbols"): the
 * symbols, newest first, all have these parameters. */
#define WH_CUDA_FUNCTIONS(X)                                                                       \
	X(NEEDED, 2000, cuInit, (unsigned flags), "cuInit")                                        \
	X(NEEDED, 2020, cuDriverGetVersion, (int *version), "cuDriverGetVersion")                  \
	X(NEEDED, 6000, cuGetErrorName, (int result, const char **out), "cuGetErrorName")          \
	X(NEEDED, 6000, cuGetErrorString, (int result, const char **out), "cuGetErrorString")      \
	X(NEEDED, 2000, cuDeviceGetCount, (int *count), "cuDeviceGetCount")                        \
	X(NEEDED, 2000, cuDeviceGet, (int *device, int ordinal), "cuDeviceGet")                    \
	X(NEEDED, 2000, cuDeviceGetName, (char *out, int length, int device), "cuDeviceGetName")   \
	X(NEEDED, 9020, cuDeviceGetUuid, (struct wh_cuda_uuid * out, int device),                  \
	  "cuDeviceGetUuid_v2 cuDeviceGetUuid")                                                    \
	X(NEEDED, 2000, cuDeviceGetAttribute, (int *value, int attribute, int device),             \
	  "cuDeviceGetAttribute")                                                                  \
	X(NEEDED, 3020, cuDeviceTotalMem, (size_t * bytes, int device), "cuDeviceTotalMem_v2")     \
	X(NEEDED, 4000, cuDeviceCanAccessPeer, (int *can, int device, int peer),                   \
	  "cuDeviceCanAccessPeer")                                                                 \
	X(OPTIONAL, 8000, cuDeviceGetP2PAttribute, (int *value, int attribute, int from, int to),  \
	  "cuDeviceGetP2PAttribute")                                                               \
	X(NEEDED, 7000, cuDevicePrimaryCtxRetain, (CUcontext * out, int device),                   \
	  "cuDevicePrimaryCtxRetain")                                                              \
	X(NEEDED, 7000, cuDevicePrimaryCtxRelease, (int device),                                   \
	  "cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxRelease")                                \
	X(NEEDED, 7000, cuDevicePrimaryCtxGetState, (int device, unsigned *flags, int *active),    \
	  "cuDevicePrimaryCtxGetState")                                                            \
	X(NEEDED, 4000, cuCtxGetCurrent, (CUcontext * out), "cuCtxGetCurrent")                     \
	X(NEEDED, 4000, cuCtxSetCurrent, (CUcontext context), "cuCtxSetCurrent")                   \
	X(NEEDED, 4000, cuCtxPushCurrent, (CUcontext context), "cuCtxPushCurrent_v2")              \
	X(NEEDED, 4000, cuCtxPopCurrent, (CUcontext * out), "cuCtxPopCurrent_v2")                  \
	X(NEEDED, 2000, cuCtxGetDevice, (int *device), "cuCtxGetDevice")                           \
	X(NEEDED, 2000, cuCtxSynchronize, (void), "cuCtxSynchronize")                              \
	X(NEEDED, 4000, cuCtxEnablePeerAccess, (CUcontext peer, unsigned flags),                   \
	  "cuCtxEnablePeerAccess")                                                                 \
	X(OPTIONAL, 4000, cuCtxDisablePeerAccess, (CUcontext peer), "cuCtxDisablePeerAccess")      \
	X(OPTIONAL, 3020, cuCtxCreate, (CUcontext * out, unsigned flags, int device),              \
	  "cuCtxCreate_v2")                                                                        \
	X(OPTIONAL, 4000, cuCtxDestroy, (CUcontext context), "cuCtxDestroy_v2")                    \
	X(OPTIONAL, 5050, cuCtxGetStreamPriorityRange, (int *least, int *greatest),                \
	  "cuCtxGetStreamPriorityRange")                                                           \
	X(OPTIONAL, 10010, cuThreadExchangeStreamCaptureMode, (int *mode),                         \
	  "cuThreadExchangeStreamCaptureMode")                                                     \
	X(NEEDED, 3020, cuMemGetInfo, (size_t * free, size_t * total), "cuMemGetInfo_v2")          \
	X(NEEDED, 3020, cuMemAlloc, (CUdeviceptr * out, size_t bytes), "cuMemAlloc_v2")            \
	X(NEEDED, 3020, cuMemFree, (CUdeviceptr address), "cuMemFree_v2")                          \
	X(NEEDED, 3020, cuMemGetAddressRange,                                                      \
	  (CUdeviceptr * base, size_t * size, CUdeviceptr address), "cuMemGetAddressRange_v2")     \
	X(NEEDED, 2020, cuMemHostAlloc, (void **out, size_t bytes, unsigned flags),                \
	  "cuMemHostAlloc")                                                                        \
	X(NEEDED, 2000, cuMemFreeHost, (void *address), "cuMemFreeHost")                           \
	X(NEEDED, 4000, cuMemHostRegister, (void *address, size_t bytes, unsigned flags),          \
	  "cuMemHostRegister_v2 cuMemHostRegister")                                                \
	X(NEEDED, 4000, cuMemHostUnregister, (void *address), "cuMemHostUnregister")               \
	X(NEEDED, 3020, cuMemHostGetDevicePointer,                                                 \
	  (CUdeviceptr * out, void *address, unsigned flags), "cuMemHostGetDevicePointer_v2")      \
	X(OPTIONAL, 2030, cuMemHostGetFlags, (unsigned *flags, void *address),                     \
	  "cuMemHostGetFlags")                                                                     \
	X(OPTIONAL, 6000, cuMemAllocManaged, (CUdeviceptr * out, size_t bytes, unsigned flags),    \
	  "cuMemAllocManaged")                                                                     \
	X(OPTIONAL, 11020, cuMemAllocAsync, (CUdeviceptr * out, size_t bytes, CUstream stream),    \
	  "cuMemAllocAsync")                                                                       \
	X(OPTIONAL, 11020, cuMemFreeAsync, (CUdeviceptr address, CUstream stream),                 \
	  "cuMemFreeAsync")                                                                        \
	X(OPTIONAL, 4010, cuIpcGetMemHandle,                                                       \
	  (struct wh_cuda_ipc_handle * out, CUdeviceptr address), "cuIpcGetMemHandle")             \
	X(OPTIONAL, 4010, cuIpcOpenMemHandle,                                                      \
	  (CUdeviceptr * out, struct wh_cuda_ipc_handle handle, unsigned flags),                   \
	  "cuIpcOpenMemHandle_v2 cuIpcOpenMemHandle")                                              \
	X(OPTIONAL, 4010, cuIpcCloseMemHandle, (CUdeviceptr address), "cuIpcCloseMemHandle")       \
	X(OPTIONAL, 4010, cuIpcGetEventHandle, (struct wh_cuda_ipc_handle * out, CUevent event),   \
	  "cuIpcGetEventHandle")                                                                   \
	X(OPTIONAL, 4010, cuIpcOpenEventHandle, (CUevent * out, struct wh_cuda_ipc_handle handle), \
	  "cuIpcOpenEventHandle")                                                                  \
	X(OPTIONAL, 10020, cuMemAddressReserve,                                                    \
	  (CUdeviceptr * out, size_t size, size_t alignment, CUdeviceptr hint,                     \
	   unsigned long long flags),                                                              \
	  "cuMemAddressReserve")                                                                   \
	X(OPTIONAL, 10020, cuMemAddressFree, (CUdeviceptr address, size_t size),                   \
	  "cuMemAddressFree")                                                                      \
	X(OPTIONAL, 10020, cuMemCreate,                                                            \
	  (CUallocation * out, size_t size, const struct wh_cuda_properties *properties,           \
	   unsigned long long flags),                                                              \
	  "cuMemCreate")                                                                           \
	X(OPTIONAL, 10020, cuMemRelease, (CUallocation memory), "cuMemRelease")                    \
	X(OPTIONAL, 10020, cuMemMap,                                                               \
	  (CUdeviceptr address, size_t size, size_t offset, CUallocation memory,                   \
	   unsigned long long flags),                                                              \
	  "cuMemMap")                                                                              \
	X(OPTIONAL, 10020, cuMemUnmap, (CUdeviceptr address, size_t size), "cuMemUnmap")           \
	X(OPTIONAL, 10020, cuMemSetAccess,                                                         \
	  (CUdeviceptr address, size_t size, const struct wh_cuda_access *access, size_t count),   \
	  "cuMemSetAccess")                                                                        \
	X(OPTIONAL, 10020, cuMemGetAccess,                                                         \
	  (unsigned long long *flags, const struct wh_cuda_location *location,                     \
	   CUdeviceptr address),                                                                   \
	  "cuMemGetAccess")                                                                        \
	X(OPTIONAL, 10020, cuMemExportToShareableHandle,                                           \
	  (void *out, CUallocation memory, int type, unsigned long long flags),                    \
	  "cuMemExportToShareableHandle")                                                          \
	X(OPTIONAL, 10020, cuMemImportFromShareableHandle,                                         \
	  (CUallocation * out, void *handle, int type), "cuMemImportFromShareableHandle")          \
	X(OPTIONAL, 10020, cuMemGetAllocationGranularity,                                          \
	  (size_t * out, const struct wh_cuda_properties *properties, int option),                 \
	  "cuMemGetAllocationGranularity")                                                         \
	X(OPTIONAL, 10020, cuMemGetAllocationPropertiesFromHandle,                                 \
	  (struct wh_cuda_properties * out, CUallocation memory),                                  \
	  "cuMemGetAllocationPropertiesFromHandle")                                                \
	X(OPTIONAL, 11000, cuMemRetainAllocationHandle, (CUallocation * out, void *address),       \
	  "cuMemRetainAllocationHandle")                                                           \
	X(OPTIONAL, 11070, cuMemGetHandleForAddressRange,                                          \
	  (void *out, CUdeviceptr address, size_t size, int type, unsigned long long flags),       \
	  "cuMemGetHandleForAddressRange")                                                         \
	X(NEEDED, 4000, cuPointerGetAttribute, (void *out, int attribute, CUdeviceptr address),    \
	  "cuPointerGetAttribute")                                                                 \
	X(OPTIONAL, 6000, cuPointerSetAttribute,                                                   \
	  (const void *value, int attribute, CUdeviceptr address), "cuPointerSetAttribute")        \
	X(OPTIONAL, 11030, cuFlushGPUDirectRDMAWrites, (int target, int scope),                    \
	  "cuFlushGPUDirectRDMAWrites")                                                            \
	X(NEEDED, 4000, cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes), "cuMemcpy")    \
	X(NEEDED, 4000, cuMemcpyAsync,                                                             \
	  (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), "cuMemcpyAsync")      \
	X(NEEDED, 3020, cuMemcpyHtoD, (CUdeviceptr to, const void *from, size_t bytes),            \
	  "cuMemcpyHtoD_v2")                                                                       \
	X(NEEDED, 3020, cuMemcpyDtoH, (void *to, CUdeviceptr from, size_t bytes),                  \
	  "cuMemcpyDtoH_v2")                                                                       \
	X(NEEDED, 3020, cuMemcpyDtoD, (CUdeviceptr to, CUdeviceptr from, size_t bytes),            \
	  "cuMemcpyDtoD_v2")                                                                       \
	X(NEEDED, 3020, cuMemcpyHtoDAsync,                                                         \
	  (CUdeviceptr to, const void *from, size_t bytes, CUstream stream),                       \
	  "cuMemcpyHtoDAsync_v2")                                                                  \
	X(NEEDED, 3020, cuMemcpyDtoHAsync,                                                         \
	  (void *to, CUdeviceptr from, size_t bytes, CUstream stream), "cuMemcpyDtoHAsync_v2")     \
	X(NEEDED, 3020, cuMemcpyDtoDAsync,                                                         \
	  (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),                       \
	  "cuMemcpyDtoDAsync_v2")                                                                  \
	X(OPTIONAL, 4000, cuMemcpyPeerAsync,                                                       \
	  (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,         \
	   size_t bytes, CUstream stream),                                                         \
	  "cuMemcpyPeerAsync")                                                                     \
	X(OPTIONAL, 13000, cuMemcpyBatchAsync,                                                     \
	  (CUdeviceptr * to, CUdeviceptr * from, size_t * bytes, size_t count,                     \
	   struct wh_cuda_copy_attributes * attributes, size_t * first, size_t attribute_count,    \
	   CUstream stream),                                                                       \
	  "cuMemcpyBatchAsync_v2")                                                                 \
	X(NEEDED, 3020, cuMemsetD8, (CUdeviceptr to, unsigned char value, size_t count),           \
	  "cuMemsetD8_v2")                                                                         \
	X(NEEDED, 3020, cuMemsetD8Async,                                                           \
	  (CUdeviceptr to, unsigned char value, size_t count, CUstream stream), "cuMemsetD8Async") \
	X(NEEDED, 2000, cuStreamCreate, (CUstream * out, unsigned flags), "cuStreamCreate")        \
	X(OPTIONAL, 5050, cuStreamCreateWithPriority,                                              \
	  (CUstream * out, unsigned flags, int priority), "cuStreamCreateWithPriority")            \
	X(NEEDED, 4000, cuStreamDestroy, (CUstream stream), "cuStreamDestroy_v2")                  \
	X(NEEDED, 2000, cuStreamQuery, (CUstream stream), "cuStreamQuery")                         \
	X(NEEDED, 2000, cuStreamSynchronize, (CUstream stream), "cuStreamSynchronize")             \
	X(NEEDED, 3020, cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags),       \
	  "cuStreamWaitEvent")                                                                     \
	X(OPTIONAL, 9020, cuStreamGetCtx, (CUstream stream, CUcontext * out), "cuStreamGetCtx")    \
	X(OPTIONAL, 10000, cuStreamIsCapturing, (CUstream stream, int *status),                    \
	  "cuStreamIsCapturing")                                                                   \
	X(OPTIONAL, 8000, cuStreamWriteValue32,                                                    \
	  (CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags),                  \
	  "cuStreamWriteValue32_v2 cuStreamWriteValue32")                                          \
	X(OPTIONAL, 8000, cuStreamWaitValue32,                                                     \
	  (CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags),                  \
	  "cuStreamWaitValue32_v2 cuStreamWaitValue32")                                            \
	X(OPTIONAL, 10000, cuLaunchHostFunc,                                                       \
	  (CUstream stream, void (*function)(void *), void *arg), "cuLaunchHostFunc")              \
	X(NEEDED, 2000, cuEventCreate, (CUevent * out, unsigned flags), "cuEventCreate")           \
	X(NEEDED, 2000, cuEventRecord, (CUevent event, CUstream stream), "cuEventRecord")          \
	X(NEEDED, 2000, cuEventQuery, (CUevent event), "cuEventQuery")                             \
	X(NEEDED, 2000, cuEventSynchronize, (CUevent event), "cuEventSynchronize")                 \
	X(NEEDED, 4000, cuEventDestroy, (CUevent event), "cuEventDestroy_v2")                      \
	X(OPTIONAL, 2000, cuEventElapsedTime, (float *ms, CUevent start, CUevent end),             \
	  "cuEventElapsedTime_v2 cuEventElapsedTime")                                              \
	X(NEEDED, 2010, cuModuleLoadDataEx,                                                        \
	  (CUmodule * out, const void *image, unsigned count, int *options, void **values),        \
	  "cuModuleLoadDataEx")                                                                    \
	X(NEEDED, 2000, cuModuleUnload, (CUmodule module), "cuModuleUnload")                       \
	X(NEEDED, 2000, cuModuleGetFunction,                                                       \
	  (CUfunction * out, CUmodule module, const char *name), "cuModuleGetFunction")            \
	X(OPTIONAL, 12040, cuFuncLoad, (CUfunction function), "cuFuncLoad")                        \
	X(NEEDED, 2020, cuFuncGetAttribute, (int *value, int attribute, CUfunction function),      \
	  "cuFuncGetAttribute")                                                                    \
	X(NEEDED, 4000, cuLaunchKernel,                                                            \
	  (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,                 \
	   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, \
	   void **parameters, void **extra),                                                       \
	  "cuLaunchKernel")                                                                        \
	X(OPTIONAL, 11060, cuLaunchKernelEx,                                                       \
	  (const struct wh_cuda_launch *launch, CUfunction function, void **parameters,            \
	   void **extra),                                                                          \
	  "cuLaunchKernelEx")

#endif
