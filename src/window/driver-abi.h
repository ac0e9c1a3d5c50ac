/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ioctls of /dev/gdrdrv. Most numbers encode the size of a pointer instead of that of the
 * struct, for historical reasons, so they are written out. A pinned range is mapped by mmap() at
 * the offset of its handle, in pages.
 */
#ifndef WH_WINDOW_DRIVER_ABI_H
#define WH_WINDOW_DRIVER_ABI_H

#include <stddef.h>
#include <stdint.h>

#define GDRDRV_NODE "/dev/gdrdrv"
#define GDRDRV_API 0x20000u
#define GDRDRV_GPU_PAGE 65536u /* pinned ranges are multiples of this */

#define GDRDRV_PIN 0xC028DA01ul
#define GDRDRV_UNPIN 0xC008DA02ul
#define GDRDRV_CALLBACK_FLAG 0xC008DA03ul
#define GDRDRV_INFO 0xC008DA04ul
#define GDRDRV_INFO_V2 0xC008DA05ul
#define GDRDRV_ATTRIBUTE 0xC008DA06ul
#define GDRDRV_PIN_V2 0xC020DA07ul
#define GDRDRV_REQUEST_TYPE 0xC008DA08ul
#define GDRDRV_VERSION 0xC008DAFFul

enum { GDRDRV_ATTRIBUTE_PERSISTENT = 1, GDRDRV_ATTRIBUTE_FORCE_PCIE = 2 };

struct gdrdrv_pin {
	uint64_t address, size, token;
	uint32_t va_space, pad;
	uint64_t handle;
};

struct gdrdrv_pin_v2 {
	uint64_t address, size;
	uint32_t flags, pad;
	uint64_t handle;
};

struct gdrdrv_unpin {
	uint64_t handle;
};

struct gdrdrv_callback_flag {
	uint64_t handle;
	uint32_t flag, pad;
};

/* INFO ends in two flags; INFO_V2 has the mapping type in place of the first flag. */
struct gdrdrv_info {
	uint64_t handle, va, mapped_size;
	uint32_t page_size, tsc_khz;
	uint64_t tm_cycles;
	uint32_t mapping_type, wc;
};

struct gdrdrv_attribute {
	uint32_t attribute, value;
};

struct gdrdrv_request {
	uint64_t handle;
	uint32_t type, pad;
};

struct gdrdrv_version {
	uint32_t version, minimum;
};

_Static_assert(sizeof(struct gdrdrv_pin) == 40, "PIN");
_Static_assert(offsetof(struct gdrdrv_pin, va_space) == 24, "PIN");
_Static_assert(offsetof(struct gdrdrv_pin, handle) == 32, "PIN");
_Static_assert(sizeof(struct gdrdrv_pin_v2) == 32, "PIN_V2");
_Static_assert(offsetof(struct gdrdrv_pin_v2, handle) == 24, "PIN_V2");
_Static_assert(sizeof(struct gdrdrv_callback_flag) == 16, "CB_FLAG");
_Static_assert(sizeof(struct gdrdrv_info) == 48, "INFO");
_Static_assert(offsetof(struct gdrdrv_info, tm_cycles) == 32, "INFO");
_Static_assert(offsetof(struct gdrdrv_info, mapping_type) == 40, "INFO_V2");
_Static_assert(sizeof(struct gdrdrv_attribute) == 8, "ATTR");
_Static_assert(sizeof(struct gdrdrv_request) == 16, "REQ_MAPPING_TYPE");
_Static_assert(sizeof(struct gdrdrv_version) == 8, "VERSION");

#endif
