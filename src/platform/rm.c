/* SPDX-License-Identifier: Apache-2.0 */
/* A client of the NVIDIA driver's resource manager: its objects, and CPU mappings of them. */
#include "platform/rm.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <wherry/error.h>

#include "platform/rm-abi.h"
#include "util/error.h"

#define CONTROL_NODE "/dev/nvidiactl"
#define VERSION_FILE "/proc/driver/nvidia/version"
/* Handles that we choose start here, away from those that the driver chooses. */
#define FIRST_HANDLE 0x57480001u

/* Drivers with which windows are known to work. */
static const char *const known[] = { "580.159.04" };

struct gpu {
	char pci[24];
	uint32_t minor, device; /* object */
	int fd;
};

struct wh_rm {
	int fd;
	uint32_t client;
	_Atomic uint32_t next_handle;
	char version[32];
	pthread_mutex_t lock; /* the list of GPUs */
	unsigned gpu_count;
	struct gpu gpus[RM_CARDS];
};

/* ---- calling --------------------------------------------------------------------------------- */

static const struct {
	uint32_t status;
	int error;
	const char *name, *hint;
} statuses[] = {
	{ RM_GPU_IS_LOST, ENODEV, "GPU_IS_LOST", "the GPU fell off the bus; see the kernel's log" },
	{ RM_INSUFFICIENT_RESOURCES, ENOMEM, "INSUFFICIENT_RESOURCES",
	  "the GPU's BAR1 may be full: close windows, or enable resizable BAR" },
	{ RM_INSUFFICIENT_PERMISSIONS, EPERM, "INSUFFICIENT_PERMISSIONS",
	  "confidential computing and some containers forbid it: use another backend" },
	{ RM_INVALID_ARGUMENT, EINVAL, "INVALID_ARGUMENT", NULL },
	{ RM_INVALID_CLASS, EOPNOTSUPP, "INVALID_CLASS", NULL },
	{ RM_INVALID_CLIENT, EINVAL, "INVALID_CLIENT", "does the client belong to this process?" },
	{ RM_INVALID_COMMAND, EOPNOTSUPP, "INVALID_COMMAND", NULL },
	{ RM_INVALID_DEVICE, ENODEV, "INVALID_DEVICE", NULL },
	{ RM_INVALID_LIMIT, EINVAL, "INVALID_LIMIT", NULL },
	{ RM_INVALID_OBJECT, EINVAL, "INVALID_OBJECT", NULL },
	{ RM_INVALID_OBJECT_HANDLE, EINVAL, "INVALID_OBJECT_HANDLE", "was the memory freed?" },
	{ RM_INVALID_OBJECT_PARENT, EINVAL, "INVALID_OBJECT_PARENT", NULL },
	{ RM_INVALID_OFFSET, EINVAL, "INVALID_OFFSET", NULL },
	{ RM_INVALID_PARAM_STRUCT, EOPNOTSUPP, "INVALID_PARAM_STRUCT",
	  "this driver has another interface: use another backend" },
	{ RM_INVALID_STATE, EBUSY, "INVALID_STATE", NULL },
	{ RM_NO_MEMORY, ENOMEM, "NO_MEMORY",
	  "the GPU's BAR1 may be full: close windows, or enable resizable BAR" },
	{ RM_NOT_SUPPORTED, EOPNOTSUPP, "NOT_SUPPORTED", NULL },
	{ RM_OBJECT_NOT_FOUND, ENOENT, "OBJECT_NOT_FOUND", "was the memory freed?" },
	{ RM_GENERIC, EIO, "GENERIC", "see the kernel's log" },
};

static int rm_check(uint32_t status, const char *call)
{
	if (status == RM_OK)
		return 0;
	for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
		if (statuses[i].status == status)
			return wh_fail(statuses[i].error, CONTROL_NODE ": %s: NV_ERR_%s (0x%x)%s%s",
				       call, statuses[i].name, status, statuses[i].hint ? "; " : "",
				       statuses[i].hint ? statuses[i].hint : "");
	}
	return wh_fail(EIO, CONTROL_NODE ": %s: status 0x%x; see nvstatuscodes.h of the driver",
		       call, status);
}

/* Retries like the driver's own libraries. */
static int rm_request(int fd, unsigned long number, void *arg, const char *call)
{
	int rc;

	do {
		rc = ioctl(fd, number, arg);
	} while (rc < 0 && (errno == EINTR || errno == EAGAIN));
	return rc < 0 ? wh_fail(errno, CONTROL_NODE ": %s: ioctl 0x%lx: %s", call, number,
				strerror(errno)) :
			0;
}

#define REQUEST(fd, escape, arg, call) rm_request(fd, RM_REQUEST(escape, *(arg)), arg, call)

static int rm_control(struct wh_rm *rm, uint32_t command, void *parameters, size_t size,
		      const char *call)
{
	struct rm_control c = {
		.client = rm->client,
		.object = rm->client,
		.command = command,
		.parameters = (uintptr_t)parameters,
		.size = (uint32_t)size,
	};
	int error = REQUEST(rm->fd, RM_ESCAPE_CONTROL, &c, call);

	return error ? error : rm_check(c.status, call);
}

static uint32_t new_handle(struct wh_rm *rm)
{
	return rm->next_handle++;
}

static int rm_allocate(struct wh_rm *rm, uint32_t parent, uint32_t *object, uint32_t class,
		       void *parameters, size_t size, const char *call)
{
	struct rm_alloc a = {
		.root = rm->client,
		.parent = parent,
		.object = *object,
		.class = class,
		.parameters = (uintptr_t)parameters,
		.size = (uint32_t)size,
	};
	int error = REQUEST(rm->fd, RM_ESCAPE_ALLOC, &a, call);

	if (!error)
		error = rm_check(a.status, call);
	if (!error)
		*object = a.object;
	return error;
}

static void rm_release(struct wh_rm *rm, uint32_t parent, uint32_t object)
{
	struct rm_free f = { .root = rm->client, .parent = parent, .object = object };

	/* Ignore errors: closing the client frees all its objects. */
	ioctl(rm->fd, RM_REQUEST(RM_ESCAPE_FREE, f), &f);
}

/* ---- the client ------------------------------------------------------------------------------ */

static int open_node(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	return fd >= 0 ? fd :
			 wh_fail(errno,
				 "%s: open: %s; is the NVIDIA driver loaded, and may this user "
				 "(and container) use the device?",
				 path, strerror(errno));
}

/* The first word of the first line that begins with a digit and contains a dot: "NVRM version:
 * NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build ...". */
static void read_version(char *out, size_t size)
{
	char line[256] = "", *at, *save = NULL;
	int fd = open(VERSION_FILE, O_RDONLY | O_CLOEXEC);
	ssize_t got = fd >= 0 ? read(fd, line, sizeof(line) - 1) : -1;

	if (fd >= 0)
		close(fd);
	line[got > 0 ? got : 0] = 0;
	line[strcspn(line, "\n")] = 0;
	*out = 0;
	for (at = strtok_r(line, " \t", &save); at; at = strtok_r(NULL, " \t", &save)) {
		if (*at >= '0' && *at <= '9' && strchr(at, '.')) {
			snprintf(out, size, "%s", at);
			return;
		}
	}
}

int wh_rm_open(struct wh_rm **out)
{
	struct wh_rm *rm = calloc(1, sizeof(*rm));
	int error;

	if (!rm)
		return wh_fail(ENOMEM, "no memory for a client of the NVIDIA driver");
	rm->next_handle = FIRST_HANDLE;
	read_version(rm->version, sizeof(rm->version));
	rm->fd = open_node(CONTROL_NODE);
	if (rm->fd < 0) {
		error = rm->fd;
		goto err_free;
	}
	error = rm_allocate(rm, 0, &rm->client, RM_CLASS_CLIENT, NULL, 0, "RM_ALLOC of a client");
	if (error)
		goto err_close;
	pthread_mutex_init(&rm->lock, NULL);
	*out = rm;
	return 0;

err_close:
	close(rm->fd);
err_free:
	free(rm);
	return error;
}

void wh_rm_close(struct wh_rm *rm)
{
	if (!rm)
		return;
	for (unsigned i = 0; i < rm->gpu_count; i++) {
		rm_release(rm, rm->client, rm->gpus[i].device);
		close(rm->gpus[i].fd);
	}
	rm_release(rm, 0, rm->client);
	close(rm->fd);
	pthread_mutex_destroy(&rm->lock);
	free(rm);
}

const char *wh_rm_version(const struct wh_rm *rm)
{
	return rm->version;
}

bool wh_rm_known(const struct wh_rm *rm)
{
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		if (!strcmp(rm->version, known[i]))
			return true;
	}
	return false;
}

/* ---- GPUs ------------------------------------------------------------------------------------ */

/* Open a GPU's device file and attach it to our client: once for the device, once for each
 * mapping. */
static int open_gpu(struct wh_rm *rm, uint32_t minor)
{
	char path[32];
	int fd, error, ctl = rm->fd;

	snprintf(path, sizeof(path), "/dev/nvidia%u", minor);
	fd = open_node(path);
	if (fd < 0)
		return fd;
	error = REQUEST(fd, RM_ESCAPE_REGISTER_FD, &ctl, "REGISTER_FD");
	if (error) {
		close(fd);
		return error;
	}
	return fd;
}

static int find_card(struct wh_rm *rm, const char *pci, struct rm_card_info *out)
{
	struct rm_cards cards = { 0 };
	int error = REQUEST(rm->fd, RM_ESCAPE_CARD_INFO, &cards, "CARD_INFO");
	char name[24];

	if (error)
		return error;
	for (unsigned i = 0; i < RM_CARDS; i++) {
		const struct rm_card_info *card = &cards.card[i];

		if (!card->valid)
			continue;
		snprintf(name, sizeof(name), "%04x:%02x:%02x.0", card->domain, card->bus,
			 card->slot);
		if (!strcmp(name, pci)) {
			*out = *card;
			return 0;
		}
	}
	return wh_fail(ENODEV, CONTROL_NODE ": CARD_INFO: the driver lists no GPU at %s", pci);
}

/* Under rm->lock. */
static int add_gpu(struct wh_rm *rm, const char *pci, struct gpu *gpu)
{
	struct rm_gpu_id_info info = { 0 };
	struct rm_device_parameters parameters = { .client_share = rm->client };
	struct rm_card_info card = { 0 };
	int error = find_card(rm, pci, &card);

	if (error)
		return error;
	info.gpu = card.gpu;
	error = rm_control(rm, RM_CONTROL_GPU_ID_INFO, &info, sizeof(info), "GPU_GET_ID_INFO_V2");
	if (error)
		return error;
	snprintf(gpu->pci, sizeof(gpu->pci), "%s", pci);
	gpu->minor = card.minor;
	gpu->fd = open_gpu(rm, card.minor);
	if (gpu->fd < 0)
		return gpu->fd;
	parameters.device = info.device;
	gpu->device = new_handle(rm);
	error = rm_allocate(rm, rm->client, &gpu->device, RM_CLASS_DEVICE, &parameters,
			    sizeof(parameters), "RM_ALLOC of the device");
	if (error)
		close(gpu->fd);
	return error;
}

int wh_rm_gpu(struct wh_rm *rm, const char *pci, unsigned *out)
{
	unsigned i = 0;
	int error = 0;

	pthread_mutex_lock(&rm->lock);
	while (i < rm->gpu_count && strcmp(rm->gpus[i].pci, pci) != 0)
		i++;
	if (i == RM_CARDS)
		error = wh_fail(ENODEV, "%s: over %d GPUs in one process", pci, RM_CARDS);
	else if (i == rm->gpu_count)
		error = add_gpu(rm, pci, &rm->gpus[i]);
	if (!error && i == rm->gpu_count)
		rm->gpu_count++;
	pthread_mutex_unlock(&rm->lock);
	if (!error)
		*out = i;
	return error;
}

/* ---- objects --------------------------------------------------------------------------------- */

int wh_rm_import(struct wh_rm *rm, unsigned gpu, int fd, uint32_t *object)
{
	struct rm_export_object_info info = { .fd = fd };
	struct rm_import_object import = {
		.fd = fd,
		.type = 1,
		.device = rm->gpus[gpu].device,
		.parent = rm->gpus[gpu].device,
		.object = new_handle(rm),
	};
	int error = rm_control(rm, RM_CONTROL_EXPORT_OBJECT_INFO, &info, sizeof(info),
			       "GET_EXPORT_OBJECT_INFO");

	if (error)
		return error;
	if (info.objects != 1)
		return wh_fail(EOPNOTSUPP,
			       CONTROL_NODE ": GET_EXPORT_OBJECT_INFO: the memory has %u objects, "
					    "not one",
			       info.objects);
	error = rm_control(rm, RM_CONTROL_IMPORT_OBJECT, &import, sizeof(import),
			   "IMPORT_OBJECT_FROM_FD");
	if (!error)
		*object = import.object;
	return error;
}

int wh_rm_duplicate(struct wh_rm *rm, unsigned gpu, uint32_t client, uint32_t object, uint32_t *out)
{
	struct rm_dup_object d = {
		.client = rm->client,
		.parent = rm->gpus[gpu].device,
		.object = new_handle(rm),
		.source_client = client,
		.source_object = object,
	};
	int error = REQUEST(rm->fd, RM_ESCAPE_DUP_OBJECT, &d, "RM_DUP_OBJECT");

	if (!error)
		error = rm_check(d.status, "RM_DUP_OBJECT");
	if (!error)
		*out = d.object;
	return error;
}

int wh_rm_export(struct wh_rm *rm, unsigned gpu, uint32_t object, int *fd)
{
	struct rm_export_object e = {
		.type = 1,
		.device = rm->gpus[gpu].device,
		.parent = rm->gpus[gpu].device,
		.object = object,
		.fd = open_node(CONTROL_NODE),
	};
	int error;

	if (e.fd < 0)
		return e.fd;
	error = rm_control(rm, RM_CONTROL_EXPORT_OBJECT, &e, sizeof(e), "EXPORT_OBJECT_TO_FD");
	if (error)
		close(e.fd);
	else
		*fd = e.fd;
	return error;
}

void wh_rm_release(struct wh_rm *rm, unsigned gpu, uint32_t object)
{
	rm_release(rm, rm->gpus[gpu].device, object);
}

/* ---- mappings -------------------------------------------------------------------------------- */

/* The caller may close `fd`: the mapping keeps the file open. */
static int map_through(int fd, void *at, uint64_t length)
{
	void *got = mmap(at, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);

	if (got == MAP_FAILED)
		return wh_fail(errno, "/dev/nvidia*: mmap of %llu bytes: %s",
			       (unsigned long long)length, strerror(errno));
	/* A child would inherit the mapping without the client. */
	if (madvise(at, length, MADV_DONTFORK))
		return wh_fail(errno, "/dev/nvidia*: madvise(MADV_DONTFORK): %s", strerror(errno));
	return 0;
}

int wh_rm_map(struct wh_rm *rm, unsigned gpu, uint32_t object, uint64_t offset, uint64_t length,
	      void *at, unsigned *caching)
{
	int fd = open_gpu(rm, rm->gpus[gpu].minor), error;
	struct rm_map_memory m = {
		.client = rm->client,
		.device = rm->gpus[gpu].device,
		.memory = object,
		.offset = offset,
		.length = length,
		.flags = RM_CACHING_WRITE_COMBINED << RM_MAP_CACHING_SHIFT,
		.fd = fd,
	};

	if (fd < 0)
		return fd;
	error = REQUEST(rm->fd, RM_ESCAPE_MAP_MEMORY, &m, "RM_MAP_MEMORY");
	if (!error)
		error = rm_check(m.status, "RM_MAP_MEMORY");
	if (!error)
		error = map_through(fd, at, length);
	close(fd);
	if (!error)
		*caching = m.flags >> RM_MAP_CACHING_SHIFT & 7;
	return error;
}
