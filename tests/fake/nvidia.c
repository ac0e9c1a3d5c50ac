/* SPDX-License-Identifier: Apache-2.0 */
/* The NVIDIA kernel driver's device files: opening them, and the calls of the resource manager
 * (RM). See nvidia-control.h. */
/* With _FILE_OFFSET_BITS open() would be an alias of open64(); this file defines both. */
#undef _FILE_OFFSET_BITS

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "nvidia.h"
#include "platform/rm-abi.h"

#define PAGE 4096u
#define FAULTS 16
#define GPUS 8

/* Recursive: a sanitizer may map memory at any time. */
pthread_mutex_t nvidia_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
struct fake_nvidia nvidia_state;

static struct node *nodes;
static struct object *objects;
static struct mapping *mappings;
static uint32_t next_client = 0xc1d00001u;
static char version[32];
static int gdrdrv = -1;

static struct fault {
	uint32_t what;
	unsigned nth;
	int status;
} faults[FAULTS];

/* ---- controls for tests ---------------------------------------------------------------------- */

FAKE_API void fake_nvidia_fail(uint32_t what, unsigned nth, int status)
{
	pthread_mutex_lock(&nvidia_lock);
	for (struct fault *f = faults; f < faults + FAULTS; f++) {
		if (!status && f->what == what)
			f->what = 0;
		if (!status || f->what)
			continue;
		*f = (struct fault){ what, nth, status };
		break;
	}
	pthread_mutex_unlock(&nvidia_lock);
}

/* Add the faults of FAKE_NVIDIA_FAIL, once. */
static void faults_read(void)
{
	static bool done;
	const char *text = done ? NULL : getenv("FAKE_NVIDIA_FAIL");
	int what, status, used;
	unsigned nth;

	done = true;
	/* NOLINTNEXTLINE(cert-err34-c) */
	while (text && sscanf(text, "%i:%u:%i%n", &what, &nth, &status, &used) == 3) {
		fake_nvidia_fail((uint32_t)what, nth, status);
		text += used + (text[used] == ',');
	}
}

int nvidia_strike(uint32_t what)
{
	faults_read();
	for (struct fault *f = faults; f < faults + FAULTS; f++) {
		if (!f->what || f->what != what)
			continue;
		if (f->nth > 1) {
			f->nth--;
			continue;
		}
		if (f->nth == 1)
			f->what = 0;
		return f->status;
	}
	return 0;
}

FAKE_API void fake_nvidia_state(struct fake_nvidia *out)
{
	pthread_mutex_lock(&nvidia_lock);
	*out = nvidia_state;
	pthread_mutex_unlock(&nvidia_lock);
}

FAKE_API void fake_nvidia_version(const char *text)
{
	snprintf(version, sizeof(version), "%s", text);
}

FAKE_API void fake_nvidia_gdrdrv(int kind)
{
	gdrdrv = kind;
}

int nvidia_gdrdrv_kind(void)
{
	const char *text = getenv("FAKE_NVIDIA_GDRDRV");

	return gdrdrv >= 0 ? gdrdrv : text ? (int)strtol(text, NULL, 10) : 0;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static struct node *node_find(int fd)
{
	struct stat is;

	if (fd < 0 || fstat(fd, &is))
		return NULL;
	for (struct node *n = nodes; n; n = n->next) {
		if (n->inode == is.st_ino && n->device == is.st_dev)
			return n;
	}
	return NULL;
}

static int node_new(enum node_kind kind, unsigned minor)
{
	struct node *node = calloc(1, sizeof(*node));
	int fd = memfd_create("fake-nvidia", MFD_CLOEXEC);
	struct stat is;

	if (!node || fd < 0 || fstat(fd, &is)) {
		errno = ENOMEM;
		return -1;
	}
	*node = (struct node){ .next = nodes,
			       .kind = kind,
			       .minor = minor,
			       .owner = getpid(),
			       .inode = is.st_ino,
			       .device = is.st_dev,
			       .memory = -1 };
	nodes = node;
	return fd;
}

static int version_file(void)
{
	const char *text = getenv("FAKE_NVIDIA_VERSION");
	int fd = memfd_create("fake-version", MFD_CLOEXEC);

	dprintf(fd,
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build\n"
		"GCC version:  gcc version 12.2.0\n",
		*version      ? version :
		text && *text ? text :
				"580.159.04");
	lseek(fd, 0, SEEK_SET);
	return fd;
}

/* Open one of the faked files. A descriptor, -1 with errno, or -2: not a faked file. */
static int node_open(const char *path)
{
	unsigned minor;
	int struck;

	if (!strcmp(path, "/proc/driver/nvidia/version"))
		return version_file();
	if (strncmp(path, "/dev/", 5) != 0)
		return -2;
	if (!strcmp(path, "/dev/gdrdrv")) {
		if (nvidia_gdrdrv_kind())
			return node_new(NODE_GDRDRV, 0);
		errno = ENOENT;
		return -1;
	}
	if (!strcmp(path, "/dev/nvidiactl")) {
		struck = nvidia_strike(FAKE_NVIDIA_OPEN);
		if (!struck)
			return node_new(NODE_CONTROL, 0);
		errno = -struck;
		return -1;
	}
	/* NOLINTNEXTLINE(cert-err34-c) */
	if (sscanf(path, "/dev/nvidia%u", &minor) != 1)
		return -2;
	if (minor < GPUS)
		return node_new(NODE_GPU, minor);
	errno = ENOENT;
	return -1;
}

/* ---- objects --------------------------------------------------------------------------------- */

static struct object *object_find(uint32_t client, uint32_t handle)
{
	for (struct object *o = objects; o; o = o->next) {
		if (o->client == client && o->handle == handle)
			return o;
	}
	return NULL;
}

static struct object *object_add(uint32_t client, uint32_t parent, uint32_t handle, int fd)
{
	struct object *o = calloc(1, sizeof(*o));

	if (!o)
		abort();
	*o = (struct object){ objects, client, parent, handle, fd, 0 };
	objects = o;
	if (client != FAKE_CLIENT) {
		nvidia_state.objects += fd >= 0;
		nvidia_state.clients += client == handle;
	}
	return o;
}

static void object_drop(struct object *o)
{
	struct object **at = &objects;

	for (struct mapping *m = mappings; m; m = m->next)
		nvidia_state.violations += m->client == o->client && m->handle == o->handle;
	while (*at != o)
		at = &(*at)->next;
	*at = o->next;
	nvidia_state.objects -= o->fd >= 0;
	nvidia_state.clients -= o->client == o->handle;
	if (o->fd >= 0)
		close(o->fd);
	free(o);
}

/* The descriptor stays CUDA's. */
FAKE_API void fake_nvidia_object(uint32_t client, uint32_t handle, int fd)
{
	struct object *known;

	pthread_mutex_lock(&nvidia_lock);
	known = object_find(client, handle);
	if (known)
		known->fd = fd;
	else if (fd >= 0)
		object_add(client, client, handle, fd);
	pthread_mutex_unlock(&nvidia_lock);
}

/* Is `client` the client that this process created through this descriptor? */
static bool node_owns(const struct node *node, uint32_t client)
{
	return node->kind == NODE_CONTROL && node->owner == getpid() && node->client == client &&
	       client;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static uint32_t rm_alloc_object(struct node *node, struct rm_alloc *a)
{
	const struct rm_device_parameters *p = (void *)(uintptr_t)a->parameters;

	if (a->class == RM_CLASS_CLIENT) {
		if (node->client)
			return RM_INVALID_STATE;
		node->client = next_client++;
		object_add(node->client, 0, node->client, -1);
		a->object = node->client;
		return RM_OK;
	}
	if (!node_owns(node, a->root) || a->parent != a->root)
		return RM_INVALID_CLIENT;
	if (a->class != RM_CLASS_DEVICE)
		return RM_INVALID_CLASS;
	if (a->size != sizeof(*p) || p->client_share != a->root || p->device >= GPUS)
		return RM_INVALID_ARGUMENT;
	if (object_find(a->root, a->object))
		return RM_INVALID_OBJECT;
	object_add(a->root, a->root, a->object, -1)->instance = p->device;
	return RM_OK;
}

static uint32_t rm_free_object(struct node *node, const struct rm_free *f)
{
	struct object *o = object_find(f->root, f->object), *next;

	if (!node_owns(node, f->root))
		return RM_INVALID_CLIENT;
	if (!o)
		return RM_INVALID_OBJECT;
	if (f->object == f->root) {
		for (o = objects; o; o = next) {
			next = o->next;
			if (o->client == f->root)
				object_drop(o);
		}
		node->client = 0;
		return RM_OK;
	}
	object_drop(o);
	return RM_OK;
}

/* Duplicate a descriptor of the fake CUDA driver's memory; -1: it is not one. */
static int memory_duplicate_fd(int fd)
{
	char path[64], name[256];
	ssize_t length;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	length = readlink(path, name, sizeof(name) - 1);
	if (length < 0)
		return -1;
	name[length] = 0;
	return strstr(name, "memfd:fake-cuda") ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
}

static uint32_t rm_import(const struct rm_import_object *i, uint32_t client)
{
	int fd = memory_duplicate_fd(i->fd);

	if (fd < 0 || i->type != 1 || !object_find(client, i->parent) ||
	    object_find(client, i->object))
		return RM_INVALID_OBJECT;
	object_add(client, i->parent, i->object, fd);
	nvidia_state.imported++;
	return RM_OK;
}

/* Make the descriptor `e->fd` stand for the memory, in every process that gets it. */
static uint32_t rm_export_object(const struct rm_export_object *e, uint32_t client)
{
	const struct object *o = object_find(client, e->object);
	const struct node *into = node_find(e->fd);

	if (!o || o->fd < 0 || e->type != 1 || !object_find(client, e->device) ||
	    o->parent != e->parent)
		return RM_INVALID_OBJECT;
	if (!into || into->kind != NODE_CONTROL || into->client || e->flags)
		return RM_INVALID_ARGUMENT;
	if (dup3(o->fd, e->fd, O_CLOEXEC) < 0)
		return RM_NO_MEMORY;
	nvidia_state.exported++;
	return RM_OK;
}

static uint32_t rm_run_control(struct node *node, const struct rm_control *c)
{
	void *parameters = (void *)(uintptr_t)c->parameters;
	struct rm_gpu_id_info *id = parameters;
	struct rm_export_object_info *info = parameters;
	int struck = nvidia_strike(FAKE_NVIDIA_CONTROL(c->command));

	if (struck)
		return (uint32_t)struck;
	if (!node_owns(node, c->client) || c->object != c->client)
		return RM_INVALID_CLIENT;
	switch (c->command) {
	case RM_CONTROL_GPU_ID_INFO:
		if (c->size != sizeof(*id))
			return RM_INVALID_PARAM_STRUCT;
		id->device = id->gpu >> 8;
		return RM_OK;
	case RM_CONTROL_EXPORT_OBJECT_INFO:
		if (c->size != sizeof(*info))
			return RM_INVALID_PARAM_STRUCT;
		info->objects = 1;
		return RM_OK;
	case RM_CONTROL_EXPORT_OBJECT:
		return c->size == sizeof(struct rm_export_object) ?
			       rm_export_object(parameters, c->client) :
			       RM_INVALID_PARAM_STRUCT;
	case RM_CONTROL_IMPORT_OBJECT:
		return c->size == sizeof(struct rm_import_object) ?
			       rm_import(parameters, c->client) :
			       RM_INVALID_PARAM_STRUCT;
	default:
		return RM_INVALID_COMMAND;
	}
}

static uint32_t rm_duplicate(struct node *node, const struct rm_dup_object *d)
{
	const struct object *source = object_find(d->source_client, d->source_object);
	int fd;

	nvidia_state.asked++;
	if (!node_owns(node, d->client))
		return RM_INVALID_CLIENT;
	if (!object_find(d->client, d->parent))
		return RM_INVALID_OBJECT_PARENT;
	if (!source || source->fd < 0)
		return RM_INVALID_OBJECT_HANDLE;
	if (object_find(d->client, d->object))
		return RM_INVALID_OBJECT;
	fd = memory_duplicate_fd(source->fd);
	if (fd < 0)
		return RM_INVALID_OBJECT_HANDLE;
	object_add(d->client, d->parent, d->object, fd);
	nvidia_state.duplicated++;
	return RM_OK;
}

static uint32_t rm_map(struct node *node, const struct rm_map_memory *m)
{
	const struct object *o = object_find(m->client, m->memory);
	struct node *through = node_find(m->fd);
	struct stat is;

	if (!node_owns(node, m->client))
		return RM_INVALID_CLIENT;
	if (!o || o->fd < 0 || fstat(o->fd, &is))
		return RM_INVALID_OBJECT_HANDLE;
	if (!object_find(m->client, m->device))
		return RM_INVALID_DEVICE;
	if (!through || through->kind != NODE_GPU || through->control != node || through->length)
		return RM_INVALID_ARGUMENT;
	if (m->offset % PAGE || m->length % PAGE || !m->length)
		return RM_INVALID_OFFSET;
	if (m->offset > (uint64_t)is.st_size || m->length > (uint64_t)is.st_size - m->offset)
		return RM_INVALID_LIMIT;
	through->memory = o->fd;
	through->offset = m->offset;
	through->length = m->length;
	through->map_client = o->client;
	through->map_handle = o->handle;
	return RM_OK;
}

/* Check the request with which the CUDA driver exports a range: it lists CUDA's own objects. */
static uint32_t rm_export_range(const struct rm_export_dma_buf *e)
{
	for (unsigned i = 0; i < e->objects; i++) {
		if (!object_find(e->client, e->handles[i]))
			return RM_INVALID_OBJECT_HANDLE;
	}
	return RM_OK;
}

static void rm_list_cards(struct rm_cards *out)
{
	memset(out, 0, sizeof(*out));
	for (unsigned i = 0; i < GPUS; i++)
		out->card[i] = (struct rm_card_info){
			.valid = 1, .bus = (uint8_t)(0x1b + 0x10 * i), .gpu = i << 8, .minor = i
		};
}

static int node_register(struct node *node, int fd)
{
	struct node *ctl = node_find(fd);

	if (!ctl || ctl->kind != NODE_CONTROL || node->kind != NODE_GPU || node->control) {
		errno = EINVAL;
		return -1;
	}
	node->control = ctl;
	return 0;
}

/* The request encodes the size of its struct, so another size matches no case, as in the kernel. */
#define CASE(escape, type, status_of)                                                              \
	case RM_REQUEST(escape, type):                                                             \
		((type *)arg)->status = struck ? (uint32_t)struck : (status_of);                   \
		return 0

static int node_call(struct node *node, unsigned long request, void *arg)
{
	int struck = nvidia_strike(_IOC_NR(request));

	if (struck < 0) {
		errno = -struck;
		return -1;
	}
	switch (request) {
		CASE(RM_ESCAPE_ALLOC, struct rm_alloc, rm_alloc_object(node, arg));
		CASE(RM_ESCAPE_FREE, struct rm_free, rm_free_object(node, arg));
		CASE(RM_ESCAPE_CONTROL, struct rm_control, rm_run_control(node, arg));
		CASE(RM_ESCAPE_DUP_OBJECT, struct rm_dup_object, rm_duplicate(node, arg));
		CASE(RM_ESCAPE_MAP_MEMORY, struct rm_map_memory, rm_map(node, arg));
		CASE(RM_ESCAPE_EXPORT_DMA_BUF, struct rm_export_dma_buf, rm_export_range(arg));
	case RM_REQUEST(RM_ESCAPE_CARD_INFO, struct rm_cards):
		rm_list_cards(arg);
		return 0;
	case RM_REQUEST(RM_ESCAPE_REGISTER_FD, int):
		return node_register(node, *(int *)arg);
	default:
		errno = EINVAL;
		return -1;
	}
}

/* ---- mappings -------------------------------------------------------------------------------- */

static void *node_map(struct node *node, void *at, size_t length, int protection, int flags,
		      off_t offset)
{
	struct mapping *m = calloc(1, sizeof(*m));
	int struck = nvidia_strike(FAKE_NVIDIA_MMAP), fd = node->memory;
	off_t where = (off_t)node->offset;
	void *got;

	if (node->kind == NODE_GDRDRV && !struck)
		struck = -nvidia_gdrdrv_map(offset, length, &fd, &where);
	else if (!struck && (node->kind != NODE_GPU || offset || length != node->length))
		struck = -EINVAL;
	if (struck || !m) {
		free(m);
		errno = struck ? -struck : ENOMEM;
		return MAP_FAILED;
	}
	if (nvidia_strike(FAKE_NVIDIA_WRONG)) {
		flags |= MAP_ANONYMOUS;
		fd = -1;
	}
	got = (void *)syscall(SYS_mmap, at, length, protection, flags, fd, where);
	if (got == MAP_FAILED) {
		free(m);
		return got;
	}
	*m = (struct mapping){ mappings, got, length, node->map_client, node->map_handle };
	if (node->kind == NODE_GDRDRV) {
		m->client = 0;
		m->handle = (uint32_t)(offset / PAGE);
	}
	mappings = m;
	nvidia_state.mapped++;
	return got;
}

bool nvidia_pin_mapped(uint64_t handle)
{
	for (struct mapping *m = mappings; m; m = m->next) {
		if (!m->client && m->handle == handle)
			return true;
	}
	return false;
}

void nvidia_pin_zap(uint64_t handle)
{
	for (struct mapping *m = mappings; m; m = m->next) {
		if (!m->client && m->handle == handle)
			mprotect(m->at, m->length, PROT_NONE);
	}
}

/* Forget the mappings that overlap these addresses. True: there was one. */
static bool mappings_remove(const char *from, size_t length)
{
	struct mapping **at = &mappings;
	bool found = false;

	while (*at) {
		struct mapping *m = *at;

		if (m->at + m->length <= from || m->at >= from + length) {
			at = &m->next;
			continue;
		}
		*at = m->next;
		nvidia_state.mapped--;
		free(m);
		found = true;
	}
	return found;
}

/* ---- replacements of libc's functions -------------------------------------------------------- */

static int open_any(const char *path, int flags, mode_t mode)
{
	const char *cuda = getenv("FAKE_NVIDIA_CUDA");
	int fd;

	/* Before the lock: loading the library calls mmap(). */
	if (cuda && !strcmp(path, "/dev/gdrdrv"))
		fake_nvidia_cuda(cuda);
	pthread_mutex_lock(&nvidia_lock);
	fd = node_open(path);
	pthread_mutex_unlock(&nvidia_lock);
	return fd != -2 ? fd : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

#define WITH_MODE(name)                                                                            \
	FAKE_API int name(const char *path, int flags, ...)                                        \
	{                                                                                          \
		va_list arguments;                                                                 \
		mode_t mode;                                                                       \
		va_start(arguments, flags);                                                        \
		mode = va_arg(arguments, mode_t);                                                  \
		va_end(arguments);                                                                 \
		return open_any(path, flags, mode);                                                \
	}

WITH_MODE(open)
WITH_MODE(open64)

FAKE_API int ioctl(int fd, unsigned long request, ...)
{
	struct node *node = NULL;
	struct found found;
	va_list arguments;
	int rc = -1;
	void *arg;

	va_start(arguments, request);
	arg = va_arg(arguments, void *);
	va_end(arguments);
	found = nvidia_gdrdrv_find(request, arg);
	pthread_mutex_lock(&nvidia_lock);
	if (_IOC_TYPE(request) == 'F' || _IOC_TYPE(request) == 0xda)
		node = node_find(fd);
	if (node)
		rc = node->kind == NODE_GDRDRV ? nvidia_gdrdrv_call(node, request, arg, found) :
						 node_call(node, request, arg);
	pthread_mutex_unlock(&nvidia_lock);
	return node ? rc : (int)syscall(SYS_ioctl, fd, request, arg);
}

/* A dma-buf is mapped from its start. The memfd that stands for one contains the whole allocation,
 * and its file position is the dma-buf's start. */
static off_t dma_buf_offset(int fd, off_t offset)
{
	int memory = memory_duplicate_fd(fd);

	if (memory >= 0)
		close(memory);
	return memory >= 0 && !offset ? lseek(fd, 0, SEEK_CUR) : offset;
}

static void *map_any(void *at, size_t length, int protection, int flags, int fd, off_t offset)
{
	struct node *node;
	void *got = NULL;

	if (fd < 0)
		return (void *)syscall(SYS_mmap, at, length, protection, flags, fd, offset);
	pthread_mutex_lock(&nvidia_lock);
	node = node_find(fd);
	if (node)
		got = node_map(node, at, length, protection, flags, offset);
	pthread_mutex_unlock(&nvidia_lock);
	return node ? got :
		      (void *)syscall(SYS_mmap, at, length, protection, flags, fd,
				      dma_buf_offset(fd, offset));
}

FAKE_API void *mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset)
{
	return map_any(at, length, protection, flags, fd, offset);
}

FAKE_API void *mmap64(void *at, size_t length, int protection, int flags, int fd, off64_t offset)
{
	return map_any(at, length, protection, flags, fd, offset);
}

FAKE_API int munmap(void *at, size_t length)
{
	bool kept;

	pthread_mutex_lock(&nvidia_lock);
	kept = mappings_remove(at, length) && nvidia_strike(FAKE_NVIDIA_KEEP);
	pthread_mutex_unlock(&nvidia_lock);
	return kept ? 0 : (int)syscall(SYS_munmap, at, length);
}

FAKE_API int madvise(void *at, size_t length, int advice)
{
	bool inherited = false;

	if (advice == MADV_DONTFORK) {
		pthread_mutex_lock(&nvidia_lock);
		inherited = nvidia_strike(FAKE_NVIDIA_INHERIT);
		pthread_mutex_unlock(&nvidia_lock);
	}
	return inherited ? 0 : (int)syscall(SYS_madvise, at, length, advice);
}
