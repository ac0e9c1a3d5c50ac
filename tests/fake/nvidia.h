/* SPDX-License-Identifier: Apache-2.0 */
/* Shared declarations of the fake kernel driver's files. nvidia_lock guards everything. */
#ifndef TESTS_FAKE_NVIDIA_H
#define TESTS_FAKE_NVIDIA_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "fake-control.h"
#include "nvidia-control.h"

#define FAKE_API __attribute__((visibility("default")))

enum node_kind { NODE_CONTROL, NODE_GPU, NODE_GDRDRV };

/* An open device file. A memfd stands for it, and the memfd's inode identifies it. Never freed. */
struct node {
	struct node *next;
	enum node_kind kind;
	unsigned minor;
	pid_t owner;
	ino_t inode;
	dev_t device;
	uint32_t client; /* CONTROL: the client created through it; 0: none */
	struct node *control; /* GPU: the control file that it is registered with */
	int memory; /* GPU: the memory that the next mmap() maps; -1: none */
	uint64_t offset, length;
	uint32_t map_client, map_handle;
};

struct object {
	struct object *next;
	uint32_t client, parent, handle;
	int fd; /* of memory; -1: the object is not memory */
	unsigned instance;
};

struct mapping {
	struct mapping *next;
	char *at;
	size_t length;
	uint32_t client, handle; /* of the mapped object; client 0: the handle is a pin of gdrdrv */
};

extern pthread_mutex_t nvidia_lock;
extern struct fake_nvidia nvidia_state;

/* The fault that a call has to return: a status of the RM (> 0), an errno (< 0), or none (0). */
int nvidia_strike(uint32_t what);

int nvidia_gdrdrv_kind(void);
/* The memory that a pin call names. Call nvidia_gdrdrv_find() before you take the lock. */
struct found {
	int fd; /* CUDA's; -1: none */
	size_t offset;
};

struct found nvidia_gdrdrv_find(unsigned long request, const void *arg);
int nvidia_gdrdrv_call(struct node *node, unsigned long request, void *arg, struct found found);
/* Find what mmap() of /dev/gdrdrv maps at an offset. 0 or an errno. */
int nvidia_gdrdrv_map(off_t offset, size_t length, int *fd, off_t *where);
bool nvidia_pin_mapped(uint64_t handle);
/* Make all mappings of the pin inaccessible. */
void nvidia_pin_zap(uint64_t handle);

#endif
