/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tests ask of the fake CUDA driver (libcuda.so.1 over host memory) besides CUDA's own calls.
 * All of it is exported by the library; look it up with dlsym().
 *
 * The environment, read once at the first call:
 *   FAKE_CUDA_DEVICES=2          how many devices there are, 0 to 8
 *   CUDA_VISIBLE_DEVICES         as for the real driver: indexes or UUIDs, ends at the first bad
 * one FAKE_CUDA_MEMORY=BYTES       memory of each device; more is out of memory (each process has
 * it all) FAKE_CUDA_START=N            cuInit() takes so many seconds FAKE_CUDA_DELAY_US=N every
 * operation in a stream starts that much later FAKE_CUDA_REUSE=1            a freed address is what
 * the next allocation of its size gets FAKE_CUDA_SHARE=1            small allocations are cut from
 * memory of 2 MiB, one behind the other, as a real driver's are; else each has memory of its own
 *   FAKE_CUDA_PEER=0             no device reaches another one's memory
 *   FAKE_CUDA_DRIVER=13000       what cuDriverGetVersion() says
 *   FAKE_CUDA_ATTRIBUTES=N=V,... device attributes that differ, by number, of all devices
 *   FAKE_CUDA_BAR=/dev/lab-gpu   in the lab: what cuMemAlloc() and cuMemAllocAsync() give, and what
 *                                cuMemMap() maps for the first time, is on that PCI BAR, where
 * kernel modules find it; other processes cannot open it FAKE_CUDA_FAIL=NAME:NTH:ERROR,...  as
 * fake_cuda_fail() FAKE_CUDA_LOSE=DEVICE:ERROR:AFTER  as fake_cuda_lose()
 *
 * It is stricter than a real driver where that one is lenient by luck:
 * - Device memory is PROT_NONE for everyone else: a load or a store by the CPU is a SIGSEGV.
 * - Copies between device memory, fills of it, and copies of up to 64 KiB from pageable memory
 *   return before they are done, unless SYNC_MEMOPS is set on the memory.
 * - Destroying a context drops what its streams have not begun.
 * - A kernel that touches what its context does not reach makes the context answer 700 from then
 *   on.
 * - After fork() every call answers 3 if the parent had called cuInit().
 *
 * The dma-buf stand-in takes ranges within one mapping only (else 801; a real driver takes
 * several). It is a memfd of the whole allocation; the range that was asked for starts at the
 * descriptor's file position.
 */
#ifndef TESTS_FAKE_FAKE_CONTROL_H
#define TESTS_FAKE_FAKE_CONTROL_H

#include <stddef.h>
#include <stdint.h>

/* The nth call from now on of the function (its exported name, with suffix, or several with '|'
 * between, which count together; 1: the next one; 0: every one) returns `error` and does nothing.
 * Error 0 forgets what was asked for that name. 0, or 2: too many. */
int fake_cuda_fail(const char *function, unsigned nth, int error);

/* The device (its ordinal) is lost once it has begun `after` more operations in streams: work is
 * dropped, each call that has to do with it returns `error`. */
void fake_cuda_lose(int device, int error, unsigned after);

/* No faults any more: devices and contexts are as good as new, the delay as in the environment. */
void fake_cuda_heal(void);

void fake_cuda_delay(unsigned microseconds);

/* cuStreamIsCapturing() says yes of this stream; NULL: of none. */
void fake_cuda_capture(void *stream);

/* Another thread captures a stream in the global mode, or has ended that: until then calls that
 * might spoil it return 900 to every thread whose mode is not the relaxed one (2). Those are all
 * but the ones that only look, and those that only put work in a stream. Returns how many have been
 * refused since it began. */
unsigned fake_cuda_capture_elsewhere(int on);

/* What every device says of an attribute, by its number, to those who ask from now on, before the
 * environment; until fake_cuda_heal(). 75 and 76 are the compute capability, which decides what
 * machine code, and what PTX, a device takes. 0, or 2: too many. */
int fake_cuda_attribute(int attribute, int value);

/* The device's memory in bytes from now on. */
void fake_cuda_memory(int device, size_t bytes);

/* Bytes of page-locked host memory that this process has now by cuMemHostAlloc(). */
uint64_t fake_cuda_host_bytes(void);

/* How often the exported function was called since the process began, failures included. */
uint64_t fake_cuda_calls(const char *function);

/* The client of the NVIDIA kernel driver that the fake says it is. */
#define FAKE_CLIENT 0xc1d0ffffu

/* What IPC handles say from now on, whose numbers are laid out as driver 580 does it. */
enum fake_ipc_layout {
	FAKE_IPC_TRUE,
	FAKE_IPC_OTHER_OFFSET, /* one GPU page further than the memory is */
	FAKE_IPC_OTHER_PROCESS,
	FAKE_IPC_OTHER_OBJECT, /* one that there is not */
	FAKE_IPC_SHORT_OBJECT, /* that the memory does not fit into */
};

void fake_cuda_ipc_layout(int layout);

/* The descriptor of the memory at an address, which stays the driver's, and where in it the address
 * is; -1: there is none, or not so much in one piece. */
int fake_cuda_memory_fd(uint64_t address, size_t size, size_t *offset);

/* Where the driver itself reads and writes the memory at a device's address; NULL: nowhere. */
void *fake_cuda_alias(uint64_t address);

#endif
