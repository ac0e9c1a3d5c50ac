/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where memory is allocated: options.location ("host", "numa:0", "cuda:0"), and NUMA nodes, with
 * plain system calls instead of libnuma.
 */
#include <ctype.h>
#include <errno.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "memory/memory.h"
#include "util/error.h"

#define NODES 1024 /* of a kernel, at most */
#define WORD (8 * sizeof(unsigned long))

struct nodes {
	unsigned long bits[NODES / WORD];
};

/* ---- NUMA -------------------------------------------------------------- */

/* List nodes: "0, 1, 4". */
static void nodes_list(const struct nodes *nodes, char *out, size_t size)
{
	size_t at = 0;

	*out = 0;
	for (unsigned node = 0; node < NODES && at + 8 < size; node++) {
		if (nodes->bits[node / WORD] >> node % WORD & 1)
			at += (size_t)snprintf(out + at, size - at, "%s%u", at ? ", " : "", node);
	}
}

/* May this process allocate on the node? 0, or -ENODEV, -EPERM, -EOPNOTSUPP. */
static int node_check(int node)
{
	struct nodes nodes = { 0 };
	char list[96];

	if (syscall(SYS_get_mempolicy, NULL, &nodes, (unsigned long)NODES, NULL,
		    MPOL_F_MEMS_ALLOWED))
		return wh_fail(
			errno == EPERM ? EPERM : EOPNOTSUPP,
			"wh_memory_alloc: options.location is numa:%d, but this system does not "
			"let a process choose NUMA nodes: get_mempolicy: %s%s",
			node, strerror(errno),
			errno == EPERM ? "; does a container's seccomp profile forbid it?" : "");
	if (nodes.bits[node / (int)WORD] >> node % (int)WORD & 1)
		return 0;
	nodes_list(&nodes, list, sizeof(list));
	return wh_fail(ENODEV,
		       "wh_memory_alloc: options.location is numa:%d, but this process may not use "
		       "memory of that node; it may use nodes %s",
		       node, list);
}

int wh_numa_bind(void *base, size_t length, int node)
{
	struct nodes nodes = { 0 };

	nodes.bits[node / (int)WORD] = 1UL << node % (int)WORD;
	if (!syscall(SYS_mbind, base, length, MPOL_BIND, &nodes, (unsigned long)NODES, 0))
		return 0;
	/* A kernel without NUMA has one node, which is also the nearest to a GPU. It has already
	 * refused numa:N, which names one. */
	if (errno == ENOSYS)
		return 0;
	return wh_fail(errno, "wh_memory_alloc: mbind of %zu bytes to NUMA node %d: %s", length,
		       node, strerror(errno));
}

int wh_numa_node(const void *address)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	void *start = (void *)((uintptr_t)address / page * page);
	int node = -1;

	/* Without target nodes move_pages() only reports: a negative status means no page yet. */
	if (syscall(SYS_move_pages, 0, 1UL, &start, NULL, &node, 0) || node < 0)
		return -1;
	return node;
}

/* ---- options.location -------------------------------------------------- */

static bool node_parse(const char *text, int *out)
{
	int value = 0;
	const char *at = text;

	for (; isdigit((unsigned char)*at) && value < NODES; at++)
		value = value * 10 + (*at - '0');
	if (at == text || *at || value >= NODES)
		return false;
	*out = value;
	return true;
}

/* The first GPU that is not skipped. */
static int location_first_device(struct wh_memory_domain *domain, struct wh_cuda_device **out)
{
	struct wh_cuda *cuda = domain->cuda;
	int error = wh_cuda_ready(cuda);

	if (error)
		return error;
	for (unsigned i = 0; i < cuda->device_count; i++) {
		if (!*cuda->devices[i].skipped) {
			*out = &cuda->devices[i];
			return 0;
		}
	}
	return wh_fail(ENODEV, "%s", cuda->devices[0].skipped);
}

static int location_fail(const char *location, const char *why)
{
	return wh_fail(EINVAL, "wh_memory_alloc: options.location is \"%.64s\"%s", location, why);
}

static int location_on_host(struct wh_memory_domain *domain, const char *location,
			    struct wh_allocation *memory)
{
	struct wh_cuda_device *device;
	int error;

	if (!strncmp(location, "numa:", 5)) {
		if (!node_parse(location + 5, &memory->node))
			return location_fail(location, "; expected a node number, as in numa:0");
		return node_check(memory->node);
	}
	if (strncmp(location, "cuda:", 5))
		return location_fail(location,
				     "; expected host, numa:0, or cuda:0 for memory near that GPU");
	error = wh_cuda_device_find(domain->cuda, location, &device);
	if (error)
		return error;
	memory->node = device->numa_node;
	if (memory->kind == WH_MEMORY_PINNED)
		memory->device = device;
	return 0;
}

int wh_location_find(struct wh_memory_domain *domain, const char *location,
		     struct wh_allocation *memory)
{
	bool host = wh_kind_on_host(memory->kind);
	bool cuda = memory->kind >= WH_MEMORY_PINNED;
	int error = 0;

	memory->node = -1;
	if (location && host && memory->kind != WH_MEMORY_MAPPED) {
		error = strcmp(location, "host") ? location_on_host(domain, location, memory) : 0;
	} else if (location && !(host && !strcmp(location, "host"))) {
		if (strncmp(location, "cuda:", 5))
			return location_fail(location,
					     host ? "; the driver chooses the NUMA node of kind "
						    "MAPPED: use PINNED to choose it yourself" :
						    "; memory of a GPU needs one, as in cuda:0");
		error = wh_cuda_device_find(domain->cuda, location, &memory->device);
	}
	if (!error && cuda && !memory->device)
		error = location_first_device(domain, &memory->device);
	return error;
}
