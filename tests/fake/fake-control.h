/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control interface of the fake CUDA driver: a libcuda.so.1 over host memory. Tests call these
 * functions, besides CUDA's own, to cause errors and to see what the driver has done. The library
 * exports all of them; look them up with dlsym().
 *
 * The environment, read once at the first call:
 *   FAKE_CUDA_DEVICES=2          the number of devices, 0 to 8
 *   CUDA_VISIBLE_DEVICES         as for the real driver: indexes or UUIDs, up to the first bad one
 *   FAKE_CUDA_MEMORY=BYTES       memory of each device, for each process; more is out of memory
 *   FAKE_CUDA_START=N            cuInit() takes N seconds
 *   FAKE_CUDA_DELAY_US=N         every operation in a stream starts N us later
 *   FAKE_CUDA_REUSE=1            the next allocation of the same size gets a freed address
 *   FAKE_CUDA_SHARE=1            small allocations share objects of 2 MiB, as on a real driver
 *   FAKE_CUDA_PEER=0             no device can access another device's memory
 *   FAKE_CUDA_DRIVER=13000       the result of cuDriverGetVersion()
 *   FAKE_CUDA_ATTRIBUTES=N=V,... attributes by number that all devices have instead of the default
 *   FAKE_CUDA_BAR=/dev/lab-gpu   in the lab: memory of cuMemAlloc(), cuMemAllocAsync() and of the
 *                                first cuMemMap() is on that PCI BAR, visible to kernel modules
 *                                but not to other processes
 *   FAKE_CUDA_FAIL=NAME:NTH:ERROR,...  as fake_cuda_fail()
 *   FAKE_CUDA_LOSE=DEVICE:ERROR:AFTER  as fake_cuda_lose()
 *
 * It is stricter than a real driver where that one is lenient by luck:
 * - The CPU cannot access device memory: it is PROT_NONE, and a load or store is a SIGSEGV.
 * - Copies within device memory, fills of it, and copies of up to 64 KiB from pageable memory
 *   return before they are done, unless SYNC_MEMOPS is set on the memory.
 * - Destroying a context drops the operations that its streams have not begun.
 * - A kernel that touches memory which its context cannot access makes the context return 700 from
 *   then on.
 * - After fork() every call returns 3 if the parent had called cuInit().
 *
 * Page-locked memory of a file that the file has lost meanwhile reads as bytes 0xee to streams,
 * where a real GPU would still read what was there.
 *
 * Exporting a dma-buf works within one mapping only (else 801; a real driver allows several). The
 * descriptor is a memfd of the whole allocation; its file position is the start of the range.
 */
#ifndef TESTS_FAKE_FAKE_CONTROL_H
#define TESTS_FAKE_FAKE_CONTROL_H

#include <stddef.h>
#include <stdint.h>

/* Make the nth call from now on (1: the next; 0: every one) of a function return `error` and do
 * nothing. `function` is its exported name, with suffix, or several names separated by '|' that
 * count together. Error 0 cancels the fault of that name. 0, or 2: too many faults. */
int fake_cuda_fail(const char *function, unsigned nth, int error);

/* The device (by ordinal) is lost once it has begun `after` more operations in streams: its work is
 * dropped, and each call that concerns it returns `error`. */
void fake_cuda_lose(int device, int error, unsigned after);

/* Cancel all faults: devices and contexts work again; the delay is that of the environment. */
void fake_cuda_heal(void);

/* From now on each operation in a stream takes that much longer: until it is set anew or healed,
 * which ends the wait of those that have begun, too. */
void fake_cuda_delay(unsigned microseconds);

/* From now until fake_cuda_heal() each launch of a kernel takes `kernel` us longer and each copy
 * `copy` us; and of two of them one takes up to `noise` us more, the next one by chance. */
void fake_cuda_slow(unsigned kernel, unsigned copy, unsigned noise);

/* From now until fake_cuda_heal() page-locking takes so many us longer. */
void fake_cuda_slow_locking(unsigned microseconds);

/* cuStreamIsCapturing() returns true for this stream; NULL: for none. */
void fake_cuda_capture(void *stream);

/* Begin (`on`) or end a capture in global mode by another thread. Meanwhile calls that might
 * invalidate it return 900 to every thread whose mode is not relaxed (2): all calls except queries
 * and those that only put work into a stream. Returns the number of calls refused since it began.
 */
unsigned fake_cuda_capture_elsewhere(int on);

/* Set an attribute, by number, of all devices from now until fake_cuda_heal(); it overrides the
 * environment. 75 and 76 are the compute capability, which decides what machine code and PTX a
 * device accepts. 0, or 2: too many. */
int fake_cuda_attribute(int attribute, int value);

/* Set the size of the device's memory, in bytes. */
void fake_cuda_memory(int device, size_t bytes);

/* Bytes of page-locked host memory of cuMemHostAlloc() that this process has now. */
uint64_t fake_cuda_host_bytes(void);

/* How often the exported function was called since the process began, failures included. */
uint64_t fake_cuda_calls(const char *function);

/* The fake's client of the resource manager. */
#define FAKE_CLIENT 0xc1d0ffffu

/* The contents of IPC handles from now on, in the layout of driver 580. */
enum fake_ipc_layout {
	FAKE_IPC_TRUE,
	FAKE_IPC_OTHER_OFFSET, /* one GPU page too far */
	FAKE_IPC_OTHER_PROCESS,
	FAKE_IPC_OTHER_OBJECT, /* an object that does not exist */
	FAKE_IPC_SHORT_OBJECT, /* an object too small for the memory */
};

void fake_cuda_ipc_layout(int layout);

/* The descriptor of the memory at an address, which the driver keeps, and the offset of the address
 * in it. -1: no memory, or less than `size` bytes in one piece. */
int fake_cuda_memory_fd(uint64_t address, size_t size, size_t *offset);

/* The host address through which the driver accesses memory at a device address; NULL: none. */
void *fake_cuda_alias(uint64_t address);

#endif
