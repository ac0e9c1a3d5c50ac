/* SPDX-License-Identifier: Apache-2.0 */
/* The devices that the CUDA driver shows this process: listing, finding by name, peers. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "platform/cuda.h"
#include "util/error.h"

/* ---- listing --------------------------------------------------------------------------------- */

/* An attribute, or `fallback` if this driver does not know it. */
static int device_attribute(struct wh_cuda *cuda, const struct wh_cuda_device *device, int which,
			    int fallback)
{
	int value;

	return cuda->cuDeviceGetAttribute(&value, which, device->handle) ? fallback : value;
}

static void read_attributes(struct wh_cuda *cuda, struct wh_cuda_device *device)
{
	const struct {
		int which;
		bool *out;
	} flags[] = {
		{ CUDA_DEVICE_INTEGRATED, &device->integrated },
		{ CUDA_DEVICE_UNIFIED_ADDRESSING, &device->unified_addressing },
		{ CUDA_DEVICE_MANAGED_MEMORY, &device->managed },
		{ CUDA_DEVICE_PAGEABLE_ACCESS, &device->pageable },
		{ CUDA_DEVICE_PAGEABLE_HOST_TABLES, &device->coherent },
		{ CUDA_DEVICE_CONCURRENT_MANAGED, &device->concurrent_managed },
		{ CUDA_DEVICE_HOST_REGISTER, &device->host_register },
		{ CUDA_DEVICE_READ_ONLY_REGISTER, &device->read_only_register },
		{ CUDA_DEVICE_VMM, &device->vmm },
		{ CUDA_DEVICE_POSIX_FD, &device->posix_fd },
		{ CUDA_DEVICE_RDMA_VMM, &device->rdma_vmm },
		{ CUDA_DEVICE_MEMORY_POOLS, &device->pools },
		{ CUDA_DEVICE_RDMA, &device->rdma },
		{ CUDA_DEVICE_DMA_BUF, &device->dma_buf },
		{ CUDA_DEVICE_FABRIC, &device->fabric },
	};

	for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
		*flags[i].out = device_attribute(cuda, device, flags[i].which, 0) != 0;
	device->capability = device_attribute(cuda, device, CUDA_DEVICE_CAPABILITY_MAJOR, 0) * 10 +
			     device_attribute(cuda, device, CUDA_DEVICE_CAPABILITY_MINOR, 0);
	device->processors = device_attribute(cuda, device, CUDA_DEVICE_MULTIPROCESSORS, 1);
	device->copy_engines = device_attribute(cuda, device, CUDA_DEVICE_COPY_ENGINES, 0);
	device->numa_node = device_attribute(cuda, device, CUDA_DEVICE_HOST_NUMA_ID, -1);
	device->compute_mode =
		device_attribute(cuda, device, CUDA_DEVICE_COMPUTE_MODE, CUDA_COMPUTE_DEFAULT);
	device->writes_ordering =
		device_attribute(cuda, device, CUDA_DEVICE_RDMA_WRITES_ORDERING, 0);
	device->flush_options = device_attribute(cuda, device, CUDA_DEVICE_RDMA_FLUSH_OPTIONS, 0);
}

static void write_uuid(const unsigned char *bytes, char *out, size_t size)
{
	size_t at = (size_t)snprintf(out, size, "GPU");

	for (int i = 0; i < 16; i++)
		at += (size_t)snprintf(out + at, size - at, "%s%02x",
				       i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
				       bytes[i]);
}

static void name_device(struct wh_cuda *cuda, struct wh_cuda_device *device)
{
	snprintf(device->pci, sizeof(device->pci), "%04x:%02x:%02x.0",
		 (unsigned)device_attribute(cuda, device, CUDA_DEVICE_PCI_DOMAIN, 0),
		 (unsigned)device_attribute(cuda, device, CUDA_DEVICE_PCI_BUS, 0),
		 (unsigned)device_attribute(cuda, device, CUDA_DEVICE_PCI_DEVICE, 0));
	snprintf(device->text, sizeof(device->text), "cuda:%d (%s, %s)", device->ordinal,
		 device->name, device->pci);
	if (device->compute_mode == CUDA_COMPUTE_PROHIBITED ||
	    device->compute_mode == CUDA_COMPUTE_EXCLUSIVE)
		snprintf(device->skipped, sizeof(device->skipped),
			 "%s is in compute mode %s and not used; "
			 "nvidia-smi -i %s -c 0 sets the default mode",
			 device->text,
			 device->compute_mode == CUDA_COMPUTE_PROHIBITED ? "prohibited" :
									   "exclusive",
			 device->pci);
}

static int read_device(struct wh_cuda *cuda, int ordinal, struct wh_cuda_device *device)
{
	struct wh_cuda_uuid uuid;
	size_t memory;
	int error;

	device->ordinal = ordinal;
	error = wh_cuda_check(cuda, cuda->cuDeviceGet(&device->handle, ordinal), "cuDeviceGet",
			      "cuda:%d", ordinal);
	if (!error)
		error = wh_cuda_check(
			cuda,
			cuda->cuDeviceGetName(device->name, sizeof(device->name), device->handle),
			"cuDeviceGetName", "cuda:%d", ordinal);
	if (!error)
		error = wh_cuda_check(cuda, cuda->cuDeviceGetUuid(&uuid, device->handle),
				      "cuDeviceGetUuid", "cuda:%d", ordinal);
	if (!error)
		error = wh_cuda_check(cuda, cuda->cuDeviceTotalMem(&memory, device->handle),
				      "cuDeviceTotalMem", "cuda:%d", ordinal);
	if (error)
		return error;
	device->memory = memory;
	write_uuid(uuid.bytes, device->uuid, sizeof(device->uuid));
	read_attributes(cuda, device);
	name_device(cuda, device);
	return 0;
}

/* A pair for which the driver returns an error counts as no peers. */
static void read_peers(struct wh_cuda *cuda, struct wh_cuda_device *device)
{
	for (unsigned i = 0; i < cuda->device_count; i++) {
		const struct wh_cuda_device *other = &cuda->devices[i];
		int can = 0;

		if (other == device ||
		    (!cuda->cuDeviceCanAccessPeer(&can, device->handle, other->handle) && can))
			device->peers |= UINT64_C(1) << i;
	}
}

/* After cuInit, under cuda->lock. */
int wh_cuda_devices_list(struct wh_cuda *cuda)
{
	int count, error = wh_cuda_check(cuda, cuda->cuDeviceGetCount(&count), "cuDeviceGetCount",
					 NULL);

	if (error)
		return error;
	if (count < 0 || count > WH_CUDA_DEVICES)
		return wh_fail(EOPNOTSUPP,
			       "cuDeviceGetCount: %d devices; Wherry supports %d: choose some "
			       "with CUDA_VISIBLE_DEVICES",
			       count, WH_CUDA_DEVICES);
	cuda->devices = calloc((size_t)count + 1, sizeof(*cuda->devices));
	if (!cuda->devices)
		return wh_fail(ENOMEM, "no memory for %d CUDA devices", count);
	for (int i = 0; i < count; i++) {
		error = read_device(cuda, i, &cuda->devices[i]);
		if (error)
			return error;
		pthread_mutex_init(&cuda->devices[i].lock, NULL);
		cuda->device_count++;
	}
	for (int i = 0; i < count; i++)
		read_peers(cuda, &cuda->devices[i]);
	return 0;
}

void wh_cuda_devices_free(struct wh_cuda *cuda)
{
	for (unsigned i = 0; i < cuda->device_count; i++) {
		struct wh_cuda_device *device = &cuda->devices[i];

		/* Ignore the result: at process exit the driver may have shut down. */
		if (device->context)
			cuda->cuDevicePrimaryCtxRelease(device->handle);
		pthread_mutex_destroy(&device->lock);
	}
	free(cuda->devices);
	cuda->devices = NULL;
	cuda->device_count = 0;
}

/* ---- finding --------------------------------------------------------------------------------- */

/* Read 1 to 8 hexadecimal digits and move *text behind them. */
static bool parse_hex(const char **text, unsigned *out)
{
	const char *at = *text;
	unsigned value = 0;

	for (; isxdigit((unsigned char)*at) && at - *text < 8; at++)
		value = value * 16 + (unsigned)(isdigit((unsigned char)*at) ?
							*at - '0' :
							(*at | 0x20) - 'a' + 10);
	if (at == *text)
		return false;
	*text = at;
	*out = value;
	return true;
}

/* Convert "0000:65:00.0" or "65:00.0", with or without leading zeros, to sysfs's form. */
static bool parse_pci(const char *text, char *out, size_t size)
{
	unsigned part[3] = { 0 }, count = 0, function;

	for (;;) {
		if (count == 3 || !parse_hex(&text, &part[count++]))
			return false;
		if (*text != ':')
			break;
		text++;
	}
	if (count < 2 || *text++ != '.' || !parse_hex(&text, &function) || *text || function)
		return false;
	snprintf(out, size, "%04x:%02x:%02x.0", count == 3 ? part[0] : 0, part[count - 2],
		 part[count - 1]);
	return true;
}

static bool parse_ordinal(const char *text, int *out)
{
	int value = 0;
	const char *at = text;

	for (; isdigit((unsigned char)*at) && at - text < 4; at++)
		value = value * 10 + (*at - '0');
	if (at == text || *at)
		return false;
	*out = value;
	return true;
}

/* Find a device by a prefix of its UUID or by its PCI address, which the MIG instances of a GPU
 * share. -1: none; -2: several. */
static int find_device_text(const struct wh_cuda *cuda, const char *uuid, const char *pci)
{
	int found = -1;

	for (unsigned i = 0; i < cuda->device_count; i++) {
		const struct wh_cuda_device *device = &cuda->devices[i];

		if ((uuid && !strncasecmp(device->uuid + 4, uuid, strlen(uuid))) ||
		    (pci && !strcmp(device->pci, pci)))
			found = found == -1 ? (int)i : -2;
	}
	return found;
}

static int no_such_device(const struct wh_cuda *cuda, const char *name, bool several)
{
	char list[160] = "";
	size_t at = 0;

	for (unsigned i = 0; i < cuda->device_count && at < sizeof(list); i++)
		at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%s", i ? ", " : "",
				       cuda->devices[i].text);
	return wh_fail(ENODEV, "%s '%s'; there are: %s",
		       several ? "several CUDA devices are" : "no CUDA device is", name, list);
}

int wh_cuda_device_find(struct wh_cuda *cuda, const char *name, struct wh_cuda_device **out)
{
	char pci[32] = "";
	int found = -1, error;

	if (!name || strncmp(name, "cuda:", 5) ||
	    !(parse_ordinal(name + 5, &found) || parse_pci(name + 5, pci, sizeof(pci)) ||
	      !strncasecmp(name + 5, "GPU-", 4) || !strncasecmp(name + 5, "MIG-", 4)))
		return wh_fail(EINVAL,
			       "'%s' is not a device's name; try cuda:0, cuda:GPU-<uuid> or "
			       "cuda:0000:65:00.0",
			       name ? name : "");
	error = wh_cuda_ready(cuda);
	if (error)
		return error;
	if (*pci)
		found = find_device_text(cuda, NULL, pci);
	else if (found < 0)
		found = find_device_text(cuda, name + 9, NULL);
	if (found < 0 || (unsigned)found >= cuda->device_count)
		return no_such_device(cuda, name, found == -2);
	if (*cuda->devices[found].skipped)
		return wh_fail(ENODEV, "%s", cuda->devices[found].skipped);
	*out = &cuda->devices[found];
	return 0;
}

int wh_cuda_device_at(struct wh_cuda *cuda, int ordinal, struct wh_cuda_device **out)
{
	int error = wh_cuda_ready(cuda);

	if (error)
		return error;
	if (ordinal < 0 || (unsigned)ordinal >= cuda->device_count)
		return wh_fail(ENODEV, "there is no cuda:%d; CUDA shows this process %u devices",
			       ordinal, cuda->device_count);
	*out = &cuda->devices[ordinal];
	return 0;
}

/* ---- peers ----------------------------------------------------------------------------------- */

bool wh_cuda_device_peers(const struct wh_cuda_device *from, const struct wh_cuda_device *to)
{
	return from->peers >> to->ordinal & 1;
}

int wh_cuda_peer_enable(struct wh_cuda *cuda, struct wh_cuda_device *from,
			struct wh_cuda_device *to)
{
	struct wh_cuda_scope scope;
	CUcontext peer;
	int error, result;

	if (from == to)
		return 0;
	if (!wh_cuda_device_peers(from, to))
		return wh_fail(EOPNOTSUPP,
			       "%s cannot access the memory of %s: there is no NVLink between "
			       "them, and PCIe peer access is not possible or off",
			       from->text, to->text);
	/* Entering creates the other device's context. */
	error = wh_cuda_enter(cuda, to, &scope);
	if (error)
		return error;
	peer = scope.context;
	wh_cuda_leave(&scope);
	error = wh_cuda_enter(cuda, from, &scope);
	if (error)
		return error;
	result = cuda->cuCtxEnablePeerAccess(peer, 0);
	if (result == CUDA_PEER_ACCESS_ALREADY_ENABLED)
		result = CUDA_SUCCESS;
	error = wh_cuda_check(cuda, result, "cuCtxEnablePeerAccess", "cuda:%d to cuda:%d",
			      from->ordinal, to->ordinal);
	wh_cuda_leave(&scope);
	return error;
}
