/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the NVIDIA kernel driver's user interface that Wherry uses, declared by ourselves.
 *
 * Calls are ioctls of type 'F' on /dev/nvidiactl. Their number is an "escape", their argument one
 * of these structs; the resource manager (RM) puts its status into the struct. The kernel refuses a
 * struct of another size, so a driver whose structs have changed returns an error.
 */
#ifndef WH_PLATFORM_RM_ABI_H
#define WH_PLATFORM_RM_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>

enum {
	RM_ESCAPE_FREE = 0x29,
	RM_ESCAPE_CONTROL = 0x2a,
	RM_ESCAPE_ALLOC = 0x2b,
	RM_ESCAPE_DUP_OBJECT = 0x34,
	RM_ESCAPE_MAP_MEMORY = 0x4e,
	RM_ESCAPE_CARD_INFO = 200,
	RM_ESCAPE_REGISTER_FD = 201,
	RM_ESCAPE_EXPORT_DMA_BUF = 217,
};

#define RM_REQUEST(escape, type) _IOC(_IOC_READ | _IOC_WRITE, 'F', escape, sizeof(type))

enum {
	RM_CLASS_CLIENT = 0x41,
	RM_CLASS_DEVICE = 0x80,
};

enum {
	RM_CONTROL_GPU_ID_INFO = 0x0205,
	RM_CONTROL_EXPORT_OBJECT = 0x3d05,
	RM_CONTROL_IMPORT_OBJECT = 0x3d06,
	RM_CONTROL_EXPORT_OBJECT_INFO = 0x3d08,
};

enum {
	RM_OK = 0,
	RM_INSUFFICIENT_RESOURCES = 0x1a,
	RM_INSUFFICIENT_PERMISSIONS = 0x1b,
	RM_INVALID_ARGUMENT = 0x1f,
	RM_INVALID_CLASS = 0x22,
	RM_INVALID_CLIENT = 0x23,
	RM_INVALID_COMMAND = 0x24,
	RM_INVALID_DEVICE = 0x26,
	RM_INVALID_LIMIT = 0x2e,
	RM_INVALID_OBJECT = 0x31,
	RM_INVALID_OBJECT_HANDLE = 0x33,
	RM_INVALID_OBJECT_PARENT = 0x36,
	RM_INVALID_OFFSET = 0x37,
	RM_INVALID_PARAM_STRUCT = 0x3a,
	RM_INVALID_STATE = 0x40,
	RM_GPU_IS_LOST = 0x0f,
	RM_NO_MEMORY = 0x51,
	RM_NOT_SUPPORTED = 0x56,
	RM_OBJECT_NOT_FOUND = 0x57,
	RM_GENERIC = 0xffff,
};

struct rm_free { /* NVOS00 */
	uint32_t root, parent, object, status;
};

struct rm_control { /* NVOS54 */
	uint32_t client, object, command, flags;
	uint64_t parameters;
	uint32_t size, status;
};

struct rm_alloc { /* NVOS64 */
	uint32_t root, parent, object, class;
	uint64_t parameters, rights;
	uint32_t size, flags, status, pad;
};

struct rm_device_parameters { /* NV0080_ALLOC_PARAMETERS */
	uint32_t device, client_share, target_client, target_device;
	uint32_t flags, pad;
	uint64_t va_size, va_start, va_limit;
	uint32_t va_mode, pad2;
};

struct rm_dup_object { /* NVOS55 */
	uint32_t client, parent, object, source_client, source_object, flags, status;
};

/* The driver's caching type of a mapping, in `flags` of struct rm_map_memory. */
#define RM_MAP_CACHING_SHIFT 23
enum {
	RM_CACHING_CACHED = 0,
	RM_CACHING_UNCACHED = 1,
	RM_CACHING_WRITE_COMBINED = 2,
	RM_CACHING_WRITE_BACK = 5,
	RM_CACHING_DEFAULT = 6,
	RM_CACHING_UNCACHED_WEAK = 7,
};

struct rm_map_memory { /* NVOS33, and the descriptor to map through */
	uint32_t client, device, memory, pad;
	uint64_t offset, length, address;
	uint32_t status, flags;
	int32_t fd, pad2;
};

struct rm_card_info {
	uint8_t valid, pad[3];
	uint32_t domain;
	uint8_t bus, slot, function, pad2;
	uint16_t vendor, device;
	uint32_t gpu;
	uint16_t interrupt, pad3;
	uint64_t register_address, register_size, memory_address, memory_size;
	uint32_t minor;
	uint8_t name[10], pad4[2];
};

#define RM_CARDS 32

struct rm_cards {
	struct rm_card_info card[RM_CARDS];
};

struct rm_gpu_id_info {
	uint32_t gpu, flags, device, subdevice, sli, board, instance;
	int32_t numa;
};

struct rm_export_object_info {
	int32_t fd;
	uint32_t device, instance;
	uint16_t objects;
	uint8_t metadata[64], pad[2];
};

struct rm_export_object {
	uint32_t type; /* 1: an object of the RM */
	uint32_t device, parent, object;
	int32_t fd; /* of /dev/nvidiactl, freshly opened */
	uint32_t flags;
};

struct rm_import_object {
	int32_t fd;
	uint32_t type; /* 1: an object of the RM */
	uint32_t device, parent, object;
};

#define RM_EXPORT_OBJECTS 128

struct rm_export_dma_buf {
	int32_t fd;
	uint32_t client, total_objects, objects, index, pad;
	uint64_t total_size;
	uint8_t mapping_type, allow_mmap, pad2[2];
	uint32_t handles[RM_EXPORT_OBJECTS];
	uint32_t pad3;
	uint64_t offsets[RM_EXPORT_OBJECTS], sizes[RM_EXPORT_OBJECTS];
	uint32_t status, pad4;
};

_Static_assert(sizeof(struct rm_free) == 16, "NVOS00");
_Static_assert(sizeof(struct rm_control) == 32, "NVOS54");
_Static_assert(sizeof(struct rm_alloc) == 48, "NVOS64");
_Static_assert(sizeof(struct rm_device_parameters) == 56, "NV0080_ALLOC_PARAMETERS");
_Static_assert(sizeof(struct rm_dup_object) == 28, "NVOS55");
_Static_assert(sizeof(struct rm_map_memory) == 56, "NVOS33");
_Static_assert(offsetof(struct rm_map_memory, fd) == 48, "NVOS33");
_Static_assert(sizeof(struct rm_card_info) == 72, "nv_ioctl_card_info");
_Static_assert(offsetof(struct rm_card_info, gpu) == 16, "nv_ioctl_card_info");
_Static_assert(offsetof(struct rm_card_info, minor) == 56, "nv_ioctl_card_info");
_Static_assert(sizeof(struct rm_gpu_id_info) == 32, "GPU_GET_ID_INFO_V2");
_Static_assert(sizeof(struct rm_export_object_info) == 80, "GET_EXPORT_OBJECT_INFO");
_Static_assert(sizeof(struct rm_export_object) == 24, "EXPORT_OBJECT_TO_FD");
_Static_assert(sizeof(struct rm_import_object) == 20, "IMPORT_OBJECT_FROM_FD");
_Static_assert(sizeof(struct rm_export_dma_buf) == 2608, "EXPORT_TO_DMABUF_FD");
_Static_assert(offsetof(struct rm_export_dma_buf, handles) == 36, "EXPORT_TO_DMABUF_FD");
_Static_assert(offsetof(struct rm_export_dma_buf, offsets) == 552, "EXPORT_TO_DMABUF_FD");

#endif
