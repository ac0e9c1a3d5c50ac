/* SPDX-License-Identifier: Apache-2.0 */
/* The fake CUDA driver's functions, looked up at run time, and helpers that its tests share. */
#ifndef TESTS_FAKE_TEST_FAKE_H
#define TESTS_FAKE_TEST_FAKE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#undef fail /* a name that the fake has too */

#include "fake-control.h"

struct location {
	int type, id;
};

struct properties {
	int type, handle_types;
	struct location location;
	void *win32;
	unsigned char flags[8];
};

struct access {
	struct location location;
	int flags;
};

struct batch_attributes {
	int order;
	struct location from, to;
	unsigned flags;
};

struct ipc_handle {
	unsigned char bytes[64];
};

#define CALLS(X)                                                                                   \
	X(Init, "cuInit", unsigned)                                                                \
	X(DriverGetVersion, "cuDriverGetVersion", int *)                                           \
	X(DeviceGet, "cuDeviceGet", int *, int)                                                    \
	X(DeviceGetCount, "cuDeviceGetCount", int *)                                               \
	X(DeviceGetName, "cuDeviceGetName", char *, int, int)                                      \
	X(DeviceGetUuid, "cuDeviceGetUuid_v2", unsigned char *, int)                               \
	X(DeviceGetAttribute, "cuDeviceGetAttribute", int *, int, int)                             \
	X(DeviceGetPCIBusId, "cuDeviceGetPCIBusId", char *, int, int)                              \
	X(DeviceGetByPCIBusId, "cuDeviceGetByPCIBusId", int *, const char *)                       \
	X(DeviceTotalMem, "cuDeviceTotalMem_v2", size_t *, int)                                    \
	X(DeviceCanAccessPeer, "cuDeviceCanAccessPeer", int *, int, int)                           \
	X(DeviceGetP2PAttribute, "cuDeviceGetP2PAttribute", int *, int, int, int)                  \
	X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", void **, int)                        \
	X(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", int)                            \
	X(DevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState", int, unsigned *, int *)          \
	X(CtxCreate, "cuCtxCreate_v2", void **, unsigned, int)                                     \
	X(CtxDestroy, "cuCtxDestroy_v2", void *)                                                   \
	X(CtxPushCurrent, "cuCtxPushCurrent_v2", void *)                                           \
	X(CtxPopCurrent, "cuCtxPopCurrent_v2", void **)                                            \
	X(CtxSetCurrent, "cuCtxSetCurrent", void *)                                                \
	X(CtxGetCurrent, "cuCtxGetCurrent", void **)                                               \
	X(CtxGetDevice, "cuCtxGetDevice", int *)                                                   \
	X(CtxSynchronize, "cuCtxSynchronize", void)                                                \
	X(CtxEnablePeerAccess, "cuCtxEnablePeerAccess", void *, unsigned)                          \
	X(CtxDisablePeerAccess, "cuCtxDisablePeerAccess", void *)                                  \
	X(MemAlloc, "cuMemAlloc_v2", uint64_t *, size_t)                                           \
	X(MemFree, "cuMemFree_v2", uint64_t)                                                       \
	X(MemGetInfo, "cuMemGetInfo_v2", size_t *, size_t *)                                       \
	X(MemAllocHost, "cuMemAllocHost_v2", void **, size_t)                                      \
	X(MemHostAlloc, "cuMemHostAlloc", void **, size_t, unsigned)                               \
	X(MemFreeHost, "cuMemFreeHost", void *)                                                    \
	X(MemHostRegister, "cuMemHostRegister_v2", void *, size_t, unsigned)                       \
	X(MemHostUnregister, "cuMemHostUnregister", void *)                                        \
	X(MemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2", uint64_t *, void *, unsigned)   \
	X(MemHostGetFlags, "cuMemHostGetFlags", unsigned *, void *)                                \
	X(MemAllocManaged, "cuMemAllocManaged", uint64_t *, size_t, unsigned)                      \
	X(MemAllocAsync, "cuMemAllocAsync", uint64_t *, size_t, void *)                            \
	X(MemFreeAsync, "cuMemFreeAsync", uint64_t, void *)                                        \
	X(MemGetAddressRange, "cuMemGetAddressRange_v2", uint64_t *, size_t *, uint64_t)           \
	X(PointerGetAttribute, "cuPointerGetAttribute", void *, int, uint64_t)                     \
	X(PointerGetAttributes, "cuPointerGetAttributes", unsigned, const int *, void **,          \
	  uint64_t)                                                                                \
	X(PointerSetAttribute, "cuPointerSetAttribute", const void *, int, uint64_t)               \
	X(MemAddressReserve, "cuMemAddressReserve", uint64_t *, size_t, size_t, uint64_t,          \
	  unsigned long long)                                                                      \
	X(MemAddressFree, "cuMemAddressFree", uint64_t, size_t)                                    \
	X(MemCreate, "cuMemCreate", uint64_t *, size_t, const struct properties *,                 \
	  unsigned long long)                                                                      \
	X(MemRelease, "cuMemRelease", uint64_t)                                                    \
	X(MemMap, "cuMemMap", uint64_t, size_t, size_t, uint64_t, unsigned long long)              \
	X(MemUnmap, "cuMemUnmap", uint64_t, size_t)                                                \
	X(MemSetAccess, "cuMemSetAccess", uint64_t, size_t, const struct access *, size_t)         \
	X(MemGetAccess, "cuMemGetAccess", unsigned long long *, const struct location *, uint64_t) \
	X(MemGetAllocationGranularity, "cuMemGetAllocationGranularity", size_t *,                  \
	  const struct properties *, int)                                                          \
	X(MemGetAllocationPropertiesFromHandle, "cuMemGetAllocationPropertiesFromHandle",          \
	  struct properties *, uint64_t)                                                           \
	X(MemRetainAllocationHandle, "cuMemRetainAllocationHandle", uint64_t *, void *)            \
	X(MemExportToShareableHandle, "cuMemExportToShareableHandle", void *, uint64_t, int,       \
	  unsigned long long)                                                                      \
	X(MemImportFromShareableHandle, "cuMemImportFromShareableHandle", uint64_t *, void *, int) \
	X(IpcGetMemHandle, "cuIpcGetMemHandle", struct ipc_handle *, uint64_t)                     \
	X(IpcOpenMemHandle, "cuIpcOpenMemHandle_v2", uint64_t *, struct ipc_handle, unsigned)      \
	X(IpcCloseMemHandle, "cuIpcCloseMemHandle", uint64_t)                                      \
	X(MemGetHandleForAddressRange, "cuMemGetHandleForAddressRange", void *, uint64_t, size_t,  \
	  int, unsigned long long)                                                                 \
	X(Memcpy, "cuMemcpy", uint64_t, uint64_t, size_t)                                          \
	X(MemcpyHtoD, "cuMemcpyHtoD_v2", uint64_t, const void *, size_t)                           \
	X(MemcpyDtoH, "cuMemcpyDtoH_v2", void *, uint64_t, size_t)                                 \
	X(MemcpyDtoD, "cuMemcpyDtoD_v2", uint64_t, uint64_t, size_t)                               \
	X(MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", uint64_t, const void *, size_t, void *)         \
	X(MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", void *, uint64_t, size_t, void *)               \
	X(MemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", uint64_t, uint64_t, size_t, void *)             \
	X(MemcpyAsync, "cuMemcpyAsync", uint64_t, uint64_t, size_t, void *)                        \
	X(MemcpyPeerAsync, "cuMemcpyPeerAsync", uint64_t, void *, uint64_t, void *, size_t,        \
	  void *)                                                                                  \
	X(MemcpyBatchAsync, "cuMemcpyBatchAsync", uint64_t *, uint64_t *, size_t *, size_t,        \
	  struct batch_attributes *, size_t *, size_t, size_t *, void *)                           \
	X(MemcpyBatchAsync2, "cuMemcpyBatchAsync_v2", uint64_t *, uint64_t *, size_t *, size_t,    \
	  struct batch_attributes *, size_t *, size_t, void *)                                     \
	X(MemsetD8, "cuMemsetD8_v2", uint64_t, unsigned char, size_t)                              \
	X(MemsetD8Async, "cuMemsetD8Async", uint64_t, unsigned char, size_t, void *)               \
	X(StreamCreate, "cuStreamCreate", void **, unsigned)                                       \
	X(StreamCreateWithPriority, "cuStreamCreateWithPriority", void **, unsigned, int)          \
	X(StreamDestroy, "cuStreamDestroy_v2", void *)                                             \
	X(StreamSynchronize, "cuStreamSynchronize", void *)                                        \
	X(StreamQuery, "cuStreamQuery", void *)                                                    \
	X(StreamWaitEvent, "cuStreamWaitEvent", void *, void *, unsigned)                          \
	X(StreamGetCtx, "cuStreamGetCtx", void *, void **)                                         \
	X(StreamWaitValue32, "cuStreamWaitValue32_v2", void *, uint64_t, uint32_t, unsigned)       \
	X(StreamWriteValue32, "cuStreamWriteValue32_v2", void *, uint64_t, uint32_t, unsigned)     \
	X(LaunchHostFunc, "cuLaunchHostFunc", void *, void (*)(void *), void *)                    \
	X(EventCreate, "cuEventCreate", void **, unsigned)                                         \
	X(EventRecord, "cuEventRecord", void *, void *)                                            \
	X(EventQuery, "cuEventQuery", void *)                                                      \
	X(EventSynchronize, "cuEventSynchronize", void *)                                          \
	X(EventDestroy, "cuEventDestroy_v2", void *)                                               \
	X(EventElapsedTime, "cuEventElapsedTime", float *, void *, void *)                         \
	X(ModuleLoadDataEx, "cuModuleLoadDataEx", void **, const void *, unsigned, int *, void **) \
	X(ModuleLoadData, "cuModuleLoadData", void **, const void *)                               \
	X(ModuleUnload, "cuModuleUnload", void *)                                                  \
	X(ModuleGetFunction, "cuModuleGetFunction", void **, void *, const char *)                 \
	X(FuncGetAttribute, "cuFuncGetAttribute", int *, int, void *)                              \
	X(LaunchKernel, "cuLaunchKernel", void *, unsigned, unsigned, unsigned, unsigned,          \
	  unsigned, unsigned, unsigned, void *, void **, void **)                                  \
	X(GetErrorName, "cuGetErrorName", int, const char **)                                      \
	X(GetErrorString, "cuGetErrorString", int, const char **)                                  \
	X(GetProcAddress, "cuGetProcAddress_v2", const char *, void **, int, uint64_t, int *)      \
	X(FlushGPUDirectRDMAWrites, "cuFlushGPUDirectRDMAWrites", int, int)                        \
	X(ThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", int *)

#define CONTROLS(X)                                                                                \
	X(unsigned, capture_elsewhere, int)                                                        \
	X(int, fail, const char *, unsigned, int)                                                  \
	X(void, lose, int, int, unsigned)                                                          \
	X(void, heal, void)                                                                        \
	X(void, delay, unsigned)                                                                   \
	X(int, attribute, int, int)                                                                \
	X(void, memory, int, size_t)                                                               \
	X(uint64_t, calls, const char *)                                                           \
	X(void *, alias, uint64_t)

#define CALL_FIELD(field, symbol, ...) int (*field)(__VA_ARGS__);
#define CONTROL_FIELD(type, field, ...) type (*field)(__VA_ARGS__);

extern struct calls {
	CALLS(CALL_FIELD)
} cu;

extern struct controls {
	CONTROLS(CONTROL_FIELD)
} fake;

/* The primary contexts of devices 0 and 1; each test starts with the first as its current one. */
extern void *contexts[2];

#define MIB ((size_t)1 << 20)
#define ok(call) assert_int_equal(call, 0)

/* Groups of tests. Each returns the number of failed tests. */
int test_devices(void);
int test_memory(void);
int test_streams(void);
int test_kernels(void);
int test_faults(void);
int test_processes(void);
/* The main function of a child process of test_processes(); `what` names the case. */
int be_child(const char *what);

int test_setup(void **state);
/* Open the driver. */
void load(void);
extern const char *driver_path;

/* Block a stream: operations submitted after close_gate() begin after open_gate(). */
struct gate;
struct gate *close_gate(void *stream);
void open_gate(struct gate *gate);

#endif
