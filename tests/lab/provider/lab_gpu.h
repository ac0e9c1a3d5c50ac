/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* /dev/lab-gpu: GPU memory for tests, which is a PCI device's BAR. What a program allocates here,
 * kernel modules can ask for by the NVIDIA driver's functions. */
#ifndef TESTS_LAB_PROVIDER_LAB_GPU_H
#define TESTS_LAB_PROVIDER_LAB_GPU_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define LAB_GPU_PAGE 65536ull
/* Successive pages of the memory do not lie behind each other in the BAR. */
#define LAB_GPU_SCATTERED 1u

struct lab_gpu_alloc {
	__u64 address; /* 0: choose one; a multiple of 64 KiB */
	__u64 size; /* a multiple of 64 KiB */
	__u32 flags;
	__u32 pages; /* out: what mmap() gives has struct pages, which other drivers can pin */
	__u64 offset; /* out: of the first byte in the BAR; for mmap() of this device, too */
};

struct lab_gpu_state {
	__u32 allocations;
	__u32 tables; /* that modules hold */
	__u32 calls; /* of get and put so far */
	__u32 callbacks;
};

/* The memory is the caller's, until it frees it or the descriptor is closed. */
#define LAB_GPU_ALLOC _IOWR('L', 1, struct lab_gpu_alloc)
#define LAB_GPU_FREE _IOW('L', 2, __u64)
#define LAB_GPU_STATE _IOR('L', 3, struct lab_gpu_state)
/* Get a page of that address and put it back, N times, without any other module: what it costs. */
#define LAB_GPU_LOOP _IOW('L', 4, struct lab_gpu_alloc)

#endif
