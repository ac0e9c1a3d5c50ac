/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fake of the NVIDIA kernel driver's device files and of /dev/gdrdrv. The library replaces
 * open(), ioctl(), mmap() and munmap(): link a test with it, and all calls on those files by the
 * test and its libraries come here. Memory is that of the fake CUDA driver.
 *
 * It is as strict as the kernel where that matters: a struct of another size is refused, a client
 * belongs to the process and the descriptor that created it, and a device file accepts one mapping
 * of exactly the requested length. Freeing memory while it is mapped, which a real driver would let
 * pass and which corrupts memory, is counted as a violation.
 *
 *   FAKE_NVIDIA_VERSION=580.159.04  the version in /proc/driver/nvidia/version
 *   FAKE_NVIDIA_CUDA=PATH           as fake_nvidia_cuda(), when /dev/gdrdrv is first opened
 *   FAKE_NVIDIA_FAIL=WHAT:NTH:STATUS,...  as fake_nvidia_fail(), in numbers
 *   FAKE_NVIDIA_GDRDRV=1            there is a /dev/gdrdrv; 2: an old one, without the v2 calls
 */
#ifndef TESTS_FAKE_NVIDIA_CONTROL_H
#define TESTS_FAKE_NVIDIA_CONTROL_H

#include <stdint.h>

/* The CUDA driver, which is asked whose memory an address is: for /dev/gdrdrv. Open already. */
void fake_nvidia_cuda(const char *path);

/* What can be made to fail: an escape of the RM, 0x10000 and a command of RM_CONTROL, or the number
 * of an ioctl of /dev/gdrdrv. */
#define FAKE_NVIDIA_OPEN 1u /* /dev/nvidiactl */
#define FAKE_NVIDIA_MMAP 2u /* any node */
#define FAKE_NVIDIA_WRONG 3u /* mappings show other memory */
/* What a driver that is not as it should be does; any status. */
#define FAKE_NVIDIA_INHERIT 4u /* children inherit mappings */
#define FAKE_NVIDIA_KEEP 5u /* munmap() of a mapping does nothing */
#define FAKE_NVIDIA_ANYONE 6u /* pins of /dev/gdrdrv are everybody's */
#define FAKE_NVIDIA_CONTROL(command) (0x10000u + (command))

/* The nth from now on (1: the next, 0: each) fails with this: > 0 a status of the RM, < 0 an errno;
 * 0: well again. */
void fake_nvidia_fail(uint32_t what, unsigned nth, int status);

struct fake_nvidia {
	unsigned clients, objects, mapped, pins; /* there are now */
	unsigned violations;
	unsigned duplicated, imported, exported; /* ever */
	unsigned asked; /* to duplicate, ever, with success or without */
};

void fake_nvidia_state(struct fake_nvidia *out);

/* The memory behind a pin of /dev/gdrdrv is freed: the module's callback. */
void fake_nvidia_revoke(uint64_t handle);

/* Told by the CUDA driver: an object of its client's stands for the memory behind its descriptor;
 * -1: it is gone. */
void fake_nvidia_object(uint32_t client, uint32_t handle, int fd);

void fake_nvidia_version(const char *version);
/* 0: no /dev/gdrdrv, 1: one, 2: an old one. */
void fake_nvidia_gdrdrv(int kind);

#endif
