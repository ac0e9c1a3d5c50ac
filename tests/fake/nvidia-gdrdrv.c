/* SPDX-License-Identifier: Apache-2.0 */
/* /dev/gdrdrv, whose pins hold memory of the fake CUDA driver. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nvidia.h"
#include "window/driver-abi.h"

#define PAGE 4096u

struct pin {
	struct pin *next;
	struct node *node;
	pid_t owner;
	uint64_t handle, address, size;
	size_t offset;
	int fd; /* -1: revoked */
	uint32_t type;
};

static struct pin *pins;
static uint64_t next_handle = 1;
static int (*memory_fd)(uint64_t address, size_t size, size_t *offset);
static pid_t memory_owner; /* the process that uses CUDA; a child of fork() has no memory */

FAKE_API void fake_nvidia_cuda(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	void *found = library ? dlsym(library, "fake_cuda_memory_fd") : NULL;

	if (!found) {
		fprintf(stderr, "%s: %s\n", path, dlerror());
		exit(1);
	}
	memcpy(&memory_fd, &found, sizeof(found));
	memory_owner = getpid();
}

/* Takes CUDA's locks. CUDA calls mmap() while it holds them, so the caller must not hold
 * nvidia_lock. */
struct found nvidia_gdrdrv_find(unsigned long request, const void *arg)
{
	const struct gdrdrv_pin *p = arg; /* the start of both versions of the struct */
	struct found found = { -1, 0 };

	if ((request == GDRDRV_PIN || request == GDRDRV_PIN_V2) && memory_owner == getpid())
		found.fd = memory_fd(p->address, p->size, &found.offset);
	return found;
}

static struct pin *pin_find(const struct node *node, uint64_t handle)
{
	for (struct pin *p = pins; p; p = p->next) {
		if (p->handle == handle && p->node == node)
			return p;
	}
	return NULL;
}

static int pin_add(struct node *node, struct found found, uint64_t address, uint64_t size,
		   uint64_t *handle)
{
	struct pin *p;

	if (!size || address % GDRDRV_GPU_PAGE || size % GDRDRV_GPU_PAGE)
		return EINVAL;
	if (found.fd < 0)
		return EINVAL;
	p = calloc(1, sizeof(*p));
	if (!p)
		return ENOMEM;
	*p = (struct pin){ pins,         node,          getpid(), next_handle++, address, size,
			   found.offset, dup(found.fd), 0 };
	pins = p;
	nvidia_state.pins++;
	*handle = p->handle;
	return 0;
}

static int pin_remove(struct pin *p)
{
	struct pin **at = &pins;

	/* The kernel zaps the mappings, so nothing is corrupted; Wherry unmaps first all the same.
	 */
	nvidia_state.violations += nvidia_pin_mapped(p->handle) && p->fd >= 0;
	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	if (p->fd >= 0)
		close(p->fd);
	nvidia_state.pins--;
	free(p);
	return 0;
}

static int pin_info(const struct pin *p, struct gdrdrv_info *i, bool second)
{
	bool mapped = nvidia_pin_mapped(p->handle);

	i->va = p->address;
	i->mapped_size = p->size;
	i->page_size = GDRDRV_GPU_PAGE;
	i->tsc_khz = 2000000;
	i->tm_cycles = 4711;
	if (second) {
		i->mapping_type = mapped ? 1 : 0;
	} else {
		i->mapping_type = mapped;
		i->wc = mapped;
	}
	return 0;
}

/* Calls on a pin, which has to belong to this process. */
static int pin_call(struct node *node, unsigned long request, void *arg)
{
	struct pin *p = pin_find(node, *(uint64_t *)arg);

	if (!p)
		return EINVAL;
	if (p->owner != getpid() && !nvidia_strike(FAKE_NVIDIA_ANYONE))
		return EACCES;
	switch (request) {
	case GDRDRV_UNPIN:
		return pin_remove(p);
	case GDRDRV_CALLBACK_FLAG:
		((struct gdrdrv_callback_flag *)arg)->flag = p->fd < 0;
		return 0;
	case GDRDRV_INFO:
		return pin_info(p, arg, false);
	case GDRDRV_INFO_V2:
		return pin_info(p, arg, true);
	default: /* GDRDRV_REQUEST_TYPE */
		if (nvidia_pin_mapped(p->handle))
			return EBUSY;
		p->type = ((struct gdrdrv_request *)arg)->type;
		return p->type > 1 ? EOPNOTSUPP : 0;
	}
}

static int gdrdrv_get_attribute(struct gdrdrv_attribute *a)
{
	if (a->attribute != GDRDRV_ATTRIBUTE_PERSISTENT &&
	    a->attribute != GDRDRV_ATTRIBUTE_FORCE_PCIE)
		return EINVAL;
	a->value = a->attribute == GDRDRV_ATTRIBUTE_PERSISTENT;
	return 0;
}

static int gdrdrv_call(struct node *node, unsigned long request, void *arg, struct found found)
{
	bool old = nvidia_gdrdrv_kind() == 2;
	struct gdrdrv_pin *p = arg;
	struct gdrdrv_pin_v2 *p2 = arg;

	switch (request) {
	case GDRDRV_PIN:
		return pin_add(node, found, p->address, p->size, &p->handle);
	case GDRDRV_PIN_V2:
		if (old)
			return ENOTTY;
		return p2->flags > 1 ? EINVAL :
				       pin_add(node, found, p2->address, p2->size, &p2->handle);
	case GDRDRV_INFO_V2:
	case GDRDRV_REQUEST_TYPE:
		return old ? ENOTTY : pin_call(node, request, arg);
	case GDRDRV_UNPIN:
	case GDRDRV_CALLBACK_FLAG:
	case GDRDRV_INFO:
		return pin_call(node, request, arg);
	case GDRDRV_ATTRIBUTE:
		return old ? ENOTTY : gdrdrv_get_attribute(arg);
	case GDRDRV_VERSION:
		*(struct gdrdrv_version *)arg =
			(struct gdrdrv_version){ 2 << 16 | (old ? 0 : 6), GDRDRV_API };
		return 0;
	default:
		return ENOTTY;
	}
}

int nvidia_gdrdrv_call(struct node *node, unsigned long request, void *arg, struct found found)
{
	int struck = nvidia_strike((uint32_t)request), error;

	error = struck ? -struck : gdrdrv_call(node, request, arg, found);
	if (!error)
		return 0;
	errno = error;
	return -1;
}

int nvidia_gdrdrv_map(off_t offset, size_t length, int *fd, off_t *where)
{
	for (struct pin *p = pins; p; p = p->next) {
		if (p->handle != (uint64_t)offset / PAGE || p->owner != getpid())
			continue;
		if (length > p->size || p->fd < 0)
			return EINVAL;
		*fd = p->fd;
		*where = (off_t)p->offset;
		return 0;
	}
	return EINVAL;
}

FAKE_API void fake_nvidia_revoke(uint64_t handle)
{
	pthread_mutex_lock(&nvidia_lock);
	for (struct pin *p = pins; p; p = p->next) {
		if (p->handle != handle || p->fd < 0)
			continue;
		nvidia_pin_zap(handle);
		close(p->fd);
		p->fd = -1;
	}
	pthread_mutex_unlock(&nvidia_lock);
}
