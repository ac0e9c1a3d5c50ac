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

/* An open file, known by the inode of the memfd that stands for it. Kept for good. */
struct node {
	struct node *next;
	enum node_kind kind;
	unsigned minor;
	pid_t owner;
	ino_t inode;
	dev_t device;
	uint32_t client; /* CONTROL: the one made through it */
	struct node *control; /* GPU: that it is registered with */
	int memory; /* GPU: to be mapped */
	uint64_t offset, length;
	uint32_t map_client, map_handle;
};

struct object {
	struct object *next;
	uint32_t client, parent, handle;
	int fd; /* memory; -1: something else */
	unsigned instance;
};

struct mapping {
	struct mapping *next;
	char *at;
	size_t length;
	uint32_t client, handle; /* client 0: a pin of gdrdrv */
};

extern pthread_mutex_t nvidia_lock;
extern struct fake_nvidia nvidia_state;

/* What a call has to fail with: a status (> 0), an errno (< 0), or not (0). */
int nvidia_strike(uint32_t what);

int nvidia_gdrdrv_kind(void);
/* The memory that a call is about; before the lock is taken. */
struct found {
	int fd; /* CUDA's; -1: none */
	size_t offset;
};

struct found nvidia_gdrdrv_find(unsigned long request, const void *arg);
int nvidia_gdrdrv_call(struct node *node, unsigned long request, void *arg, struct found found);
/* What is mapped at an offset; 0 or an errno. */
int nvidia_gdrdrv_map(off_t offset, size_t length, int *fd, off_t *where);
bool nvidia_pin_mapped(uint64_t handle);
/* Take the pages away from its mappings. */
void nvidia_pin_zap(uint64_t handle);

#endif
