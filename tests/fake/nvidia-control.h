/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fake of the NVIDIA kernel driver's device files and of /dev/gdrdrv. The library replaces
 * open(), ioctl(), mmap(), munmap() and madvise(): in a test that links with it, it handles all
 * calls on those files by the test and its libraries. Memory is that of the fake CUDA driver.
 *
 * It is as strict as the kernel where that matters: a struct of another size is refused, a client
 * belongs to the process and the descriptor that created it, and a device file accepts one mapping
 * of exactly the requested length. Freeing memory while it is mapped counts as a violation: a real
 * driver allows it, and it corrupts memory.
 *
 *   FAKE_NVIDIA_VERSION=580.159.04  the version in /proc/driver/nvidia/version
 *   FAKE_NVIDIA_CUDA=PATH           as fake_nvidia_cuda(), when /dev/gdrdrv is first opened
 *   FAKE_NVIDIA_FAIL=WHAT:NTH:STATUS,...  as fake_nvidia_fail(), in numbers
 *   FAKE_NVIDIA_GDRDRV=1            there is a /dev/gdrdrv; 2: an old one, without the v2 calls
 */
#ifndef TESTS_FAKE_NVIDIA_CONTROL_H
#define TESTS_FAKE_NVIDIA_CONTROL_H

#include <stdint.h>

/* Set the path of the fake CUDA driver, in which pins of /dev/gdrdrv look addresses up. */
void fake_nvidia_cuda(const char *path);

/* Faults: the number of an RM escape, FAKE_NVIDIA_CONTROL() of a command of RM_CONTROL, the number
 * of an ioctl of /dev/gdrdrv, or one of these. */
#define FAKE_NVIDIA_OPEN 1u /* /dev/nvidiactl */
#define FAKE_NVIDIA_MMAP 2u /* any node */
#define FAKE_NVIDIA_WRONG 3u /* mappings show other memory */
/* Defects of a driver; the status can be any but 0. */
#define FAKE_NVIDIA_INHERIT 4u /* children inherit mappings */
#define FAKE_NVIDIA_KEEP 5u /* munmap() of a mapping does nothing */
#define FAKE_NVIDIA_ANYONE 6u /* any process can use any pin of /dev/gdrdrv */
#define FAKE_NVIDIA_CONTROL(command) (0x10000u + (command))

/* Make the nth call from now on (1: the next; 0: every one) fail with a status of the RM (> 0) or
 * an errno (< 0). Status 0 cancels the fault. */
void fake_nvidia_fail(uint32_t what, unsigned nth, int status);

struct fake_nvidia {
	unsigned clients, objects, mapped, pins; /* that exist now */
	unsigned violations;
	unsigned duplicated, imported, exported; /* since the start */
	unsigned asked; /* calls to duplicate since the start, failures included */
};

void fake_nvidia_state(struct fake_nvidia *out);

/* Free the memory behind a pin of /dev/gdrdrv, as the driver's callback to the module does. */
void fake_nvidia_revoke(uint64_t handle);

/* The fake CUDA driver calls this: `handle`, an object of `client`, stands for the memory of `fd`;
 * -1: the memory has been freed. */
void fake_nvidia_object(uint32_t client, uint32_t handle, int fd);

void fake_nvidia_version(const char *version);
/* 0: no /dev/gdrdrv, 1: one, 2: an old one. */
void fake_nvidia_gdrdrv(int kind);

#endif
