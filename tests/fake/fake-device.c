/* SPDX-License-Identifier: Apache-2.0 */
/* cuInit(), devices and their attributes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "fake.h"

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;

static struct fake_device devices[FAKE_DEVICES];
static unsigned device_count;
static _Atomic bool initialised;

/* ---- initialisation -------------------------------------------------------------------------- */

static struct fake_uuid make_uuid(int physical)
{
	struct fake_uuid uuid;

	for (unsigned i = 0; i < sizeof(uuid.bytes); i++)
		uuid.bytes[i] = (unsigned char)(0xfa + 17 * i + 101 * (unsigned)physical);
	return uuid;
}

/* As nvidia-smi -L prints it. */
static void print_uuid(const struct fake_uuid *uuid, char out[64])
{
	const unsigned char *b = uuid->bytes;

	snprintf(out, 64,
		 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
		 b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
		 b[14], b[15]);
}

/* The physical device that one entry of CUDA_VISIBLE_DEVICES names; -1: none. A UUID may be cut
 * short. */
static int visible_entry(const char *entry, size_t length)
{
	int total = (int)fake_settings()->devices, found = -1;
	char *end, uuid[64];
	long index;

	if (length > 4 && strncmp(entry, "GPU-", 4) == 0) {
		for (int i = 0; i < total; i++) {
			struct fake_uuid bytes = make_uuid(i);

			print_uuid(&bytes, uuid);
			if (length <= strlen(uuid) && strncasecmp(entry, uuid, length) == 0)
				found = found == -1 ? i : -2;
		}
		return found < 0 ? -1 : found;
	}
	index = strtol(entry, &end, 10);
	if (end == entry || end != entry + length || index < 0 || index >= total)
		return -1;
	return (int)index;
}

static void add_device(int physical)
{
	struct fake_device *d = &devices[device_count];

	d->ordinal = (int)device_count++;
	d->physical = physical;
	d->uuid = make_uuid(physical);
	d->memory = fake_settings()->memory;
	d->lose_after = -1;
}

static void find_devices(void)
{
	const char *at = fake_settings()->visible;
	bool seen[FAKE_DEVICES] = { false };

	for (unsigned i = 0; !at && i < fake_settings()->devices; i++)
		add_device((int)i);
	while (at && *at) {
		size_t length = strcspn(at, ",");
		int physical = visible_entry(at, length);

		if (physical < 0)
			return;
		if (seen[physical]) { /* a real driver then shows no device */
			device_count = 0;
			return;
		}
		seen[physical] = true;
		add_device(physical);
		at += length + (at[length] == ',');
	}
}

/* Does /proc number processes otherwise than getpid()? So it is in a PID namespace with the /proc
 * of another one, where driver 580 does not start. */
static bool proc_is_of_others(void)
{
	char text[16] = "";
	ssize_t length = readlink("/proc/self", text, sizeof(text) - 1);

	return length > 0 && strtol(text, NULL, 10) != getpid();
}

FAKE_API int cuInit(unsigned flags)
{
	FAKE_ENTER_WITH(fake_enter_uninitialised);
	if (flags)
		return FAKE_INVALID_VALUE;
	if (proc_is_of_others())
		return FAKE_OPERATING_SYSTEM;
	sleep(fake_settings()->start);
	pthread_mutex_lock(&fake_lock);
	if (!initialised) {
		device_count = 0;
		find_devices();
		if (device_count) {
			initialised = true;
			fake_lose_from_environment();
		}
	}
	pthread_mutex_unlock(&fake_lock);
	return initialised ? FAKE_OK : FAKE_NO_DEVICE;
}

bool fake_initialised(void)
{
	return initialised;
}

FAKE_API int cuDriverGetVersion(int *version)
{
	FAKE_ENTER_WITH(fake_enter_uninitialised);
	if (!version)
		return FAKE_INVALID_VALUE;
	*version = fake_settings()->driver;
	return FAKE_OK;
}

/* ---- devices --------------------------------------------------------------------------------- */

struct fake_device *fake_device(int ordinal)
{
	if (!initialised || ordinal < 0 || (unsigned)ordinal >= device_count)
		return NULL;
	return &devices[ordinal];
}

struct fake_device *fake_device_physical(int physical)
{
	for (unsigned i = 0; i < device_count; i++)
		if (devices[i].physical == physical)
			return &devices[i];
	return NULL;
}

unsigned fake_device_count(void)
{
	return initialised ? device_count : 0;
}

FAKE_API int cuDeviceGetCount(int *count)
{
	FAKE_ENTER();
	if (!count)
		return FAKE_INVALID_VALUE;
	*count = (int)device_count;
	return FAKE_OK;
}

FAKE_API int cuDeviceGet(int *device, int ordinal)
{
	FAKE_ENTER();
	if (!device)
		return FAKE_INVALID_VALUE;
	if (!fake_device(ordinal))
		return FAKE_INVALID_DEVICE;
	*device = ordinal;
	return FAKE_OK;
}

FAKE_API int cuDeviceGetName(char *name, int length, int device)
{
	FAKE_ENTER();
	if (!name || length <= 0)
		return FAKE_INVALID_VALUE;
	if (!fake_device(device))
		return FAKE_INVALID_DEVICE;
	snprintf(name, (size_t)length, "Fake GPU %d", devices[device].physical);
	return FAKE_OK;
}

FAKE_API int cuDeviceGetUuid_v2(struct fake_uuid *uuid, int device)
{
	FAKE_ENTER();
	if (!uuid)
		return FAKE_INVALID_VALUE;
	if (!fake_device(device))
		return FAKE_INVALID_DEVICE;
	*uuid = devices[device].uuid;
	return FAKE_OK;
}

FAKE_API int cuDeviceGetUuid(struct fake_uuid *uuid, int device)
{
	FAKE_ENTER();
	return cuDeviceGetUuid_v2(uuid, device);
}

static int device_bus(const struct fake_device *device)
{
	return 0x1b + 0x10 * device->physical;
}

FAKE_API int cuDeviceGetPCIBusId(char *id, int length, int device)
{
	char text[16];

	FAKE_ENTER();
	if (!id || length <= 0)
		return FAKE_INVALID_VALUE;
	if (!fake_device(device))
		return FAKE_INVALID_DEVICE;
	snprintf(text, sizeof(text), "%04X:%02X:%02X.0", 0, device_bus(&devices[device]), 0);
	if ((size_t)length <= strlen(text))
		return FAKE_INVALID_VALUE;
	strcpy(id, text);
	return FAKE_OK;
}

FAKE_API int cuDeviceGetByPCIBusId(int *device, const char *id)
{
	unsigned domain = 0, number, slot, function = 0;

	FAKE_ENTER();
	if (!device || !id)
		return FAKE_INVALID_VALUE;
	/* NOLINTNEXTLINE(cert-err34-c) */
	if (sscanf(id, "%x:%x:%x.%x", &domain, &number, &slot, &function) < 3)
		return FAKE_INVALID_VALUE;
	for (unsigned i = 0; i < device_count; i++) {
		if (domain || slot || function || (int)number != device_bus(&devices[i]))
			continue;
		*device = (int)i;
		return FAKE_OK;
	}
	return FAKE_INVALID_DEVICE;
}

FAKE_API int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
	FAKE_ENTER();
	if (!bytes)
		return FAKE_INVALID_VALUE;
	if (!fake_device(device))
		return FAKE_INVALID_DEVICE;
	*bytes = devices[device].memory;
	return FAKE_OK;
}

/* As recorded from an H200. Attributes that are not listed are 0. */
static const struct {
	int attribute, value;
} attributes[] = {
	{ 1, 1024 }, /* MAX_THREADS_PER_BLOCK */
	{ 2, 1024 }, /* MAX_BLOCK_DIM_X, Y, Z */
	{ 3, 1024 },    { 4, 64 },    { 5, INT32_MAX }, /* MAX_GRID_DIM_X, Y, Z */
	{ 6, 65535 },   { 7, 65535 }, { 8, 49152 }, /* MAX_SHARED_MEMORY_PER_BLOCK */
	{ 10, 32 }, /* WARP_SIZE */
	{ 15, 1 }, /* GPU_OVERLAP */
	{ 16, 132 }, /* MULTIPROCESSOR_COUNT */
	{ 19, 1 }, /* CAN_MAP_HOST_MEMORY */
	{ 31, 1 }, /* CONCURRENT_KERNELS */
	{ 32, 1 }, /* ECC_ENABLED */
	{ 39, 2048 }, /* MAX_THREADS_PER_MULTIPROCESSOR */
	{ 40, 3 }, /* ASYNC_ENGINE_COUNT */
	{ 41, 1 }, /* UNIFIED_ADDRESSING */
	{ 75, 9 }, /* COMPUTE_CAPABILITY_MAJOR */
	{ 78, 1 }, /* STREAM_PRIORITIES_SUPPORTED */
	{ 83, 1 }, /* MANAGED_MEMORY */
	{ 89, 1 }, /* CONCURRENT_MANAGED_ACCESS */
	{ 90, 1 }, /* COMPUTE_PREEMPTION_SUPPORTED */
	{ 91, 1 }, /* CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM */
	{ 92, 1 }, /* CAN_USE_STREAM_MEM_OPS_V1 and its like */
	{ 93, 1 },      { 94, 1 },    { 95, 1 }, /* COOPERATIVE_LAUNCH */
	{ 97, 232448 }, /* MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
	{ 98, 1 }, /* CAN_FLUSH_REMOTE_WRITES */
	{ 99, 1 }, /* HOST_REGISTER_SUPPORTED */
	{ 102, 1 }, /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
	{ 103, 1 }, /* HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED */
	{ 106, 32 }, /* MAX_BLOCKS_PER_MULTIPROCESSOR */
	{ 110, 1 }, /* GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED */
	{ 113, 1 }, /* READ_ONLY_HOST_REGISTER_SUPPORTED */
	{ 115, 1 }, /* MEMORY_POOLS_SUPPORTED */
	{ 116, 1 }, /* GPU_DIRECT_RDMA_SUPPORTED */
	{ 117, 1 }, /* GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS */
	{ 118, 100 }, /* GPU_DIRECT_RDMA_WRITES_ORDERING */
	{ 119, 9 }, /* MEMPOOL_SUPPORTED_HANDLE_TYPES */
	{ 122, 1 }, /* CAN_USE_64_BIT_STREAM_MEM_OPS */
	{ 123, 1 }, /* CAN_USE_STREAM_WAIT_VALUE_NOR */
	{ 124, 1 }, /* DMA_BUF_SUPPORTED */
	{ 125, 1 }, /* IPC_EVENT_SUPPORTED */
	{ 128, 1 }, /* HANDLE_TYPE_FABRIC_SUPPORTED; cuMemCreate() refuses them all the same */
	{ 131, -1 }, /* NUMA_ID */
	{ 134, 0 }, /* HOST_NUMA_ID */
};

#define OVERRIDES 8

/* Set by fake_cuda_attribute(): the attribute in the upper half, its value in the lower; 0: free.
 */
static _Atomic uint64_t overrides[OVERRIDES];

FAKE_API int fake_cuda_attribute(int attribute, int value)
{
	uint64_t both = (uint64_t)attribute << 32 | (uint32_t)value;

	for (unsigned i = 0; i < OVERRIDES; i++) {
		uint64_t before = overrides[i];

		if (before && (int)(before >> 32) != attribute)
			continue;
		overrides[i] = both;
		return FAKE_OK;
	}
	return FAKE_OUT_OF_MEMORY;
}

void fake_attributes_forget(void)
{
	for (unsigned i = 0; i < OVERRIDES; i++)
		overrides[i] = 0;
}

/* Does fake_cuda_attribute() or FAKE_CUDA_ATTRIBUTES set this attribute? */
static bool attribute_overridden(int attribute, int *value)
{
	const char *at = fake_settings()->attributes;

	for (unsigned i = 0; i < OVERRIDES; i++) {
		uint64_t both = overrides[i];

		if (both && (int)(both >> 32) == attribute) {
			*value = (int)(uint32_t)both;
			return true;
		}
	}
	while (at && *at) {
		char *end;
		long number = strtol(at, &end, 0), is = *end == '=' ? strtol(end + 1, &end, 0) : 0;

		if (number == attribute) {
			*value = (int)is;
			return true;
		}
		at = *end == ',' ? end + 1 : NULL;
	}
	return false;
}

/* An attribute that has the same value on all devices. */
int fake_attribute(int attribute)
{
	int value;

	if (attribute_overridden(attribute, &value))
		return value;
	for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++)
		if (attributes[i].attribute == attribute)
			return attributes[i].value;
	return 0;
}

int fake_capability(void)
{
	return 10 * fake_attribute(75) + fake_attribute(76);
}

FAKE_API int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	FAKE_ENTER();
	if (!value || attribute <= 0 || attribute > 150)
		return FAKE_INVALID_VALUE;
	if (!fake_device(device))
		return FAKE_INVALID_DEVICE;
	*value = attribute == 33 ? device_bus(&devices[device]) : fake_attribute(attribute);
	return FAKE_OK;
}

bool fake_peers(const struct fake_device *a, const struct fake_device *b)
{
	return a == b || fake_settings()->peer;
}

FAKE_API int cuDeviceCanAccessPeer(int *can, int device, int peer)
{
	FAKE_ENTER();
	if (!can)
		return FAKE_INVALID_VALUE;
	if (!fake_device(device) || !fake_device(peer))
		return FAKE_INVALID_DEVICE;
	*can = device != peer && fake_peers(&devices[device], &devices[peer]);
	return FAKE_OK;
}

FAKE_API int cuDeviceGetP2PAttribute(int *value, int attribute, int from, int to)
{
	FAKE_ENTER();
	if (!value || attribute < 1 || attribute > 5)
		return FAKE_INVALID_VALUE;
	if (!fake_device(from) || !fake_device(to) || from == to)
		return FAKE_INVALID_DEVICE;
	/* PERFORMANCE_RANK is best at 0; ONLY_PARTIAL_NATIVE_ATOMIC is 0 too. */
	*value = attribute >= 2 && attribute <= 4 && fake_settings()->peer;
	return FAKE_OK;
}
