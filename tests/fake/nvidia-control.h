/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for the NVIDIA kernel driver's nodes and for /dev/gdrdrv, in front of open(), ioctl(),
 * mmap() and munmap(): link a test with the library, and what it and the libraries that it opens do
 * with those nodes comes here. Memory is that of the fake CUDA driver.
 *
 * It is as strict as the kernel where that matters: structs of another size are refused, a client
 * belongs to the process and the descriptor that made it, a node takes one mapping of just the
 * length asked for. What a real driver would let pass and corrupt memory by is counted as a
 * violation: letting go of memory while it is mapped.
 *
 *   FAKE_NVIDIA_VERSION=580.159.04  what /proc/driver/nvidia/version says
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
