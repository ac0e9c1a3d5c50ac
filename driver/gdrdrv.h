/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The ioctls of /dev/gdrdrv: the interface of GDRCopy's kernel module, version 2.6.
 *
 * A process opens the device, pins a range of GPU memory of its own (PIN or PIN_V2) and gets a
 * handle; mmap() at the offset `handle << PAGE_SHIFT` then gives it a window onto that memory. Only
 * the process that opened the device may use the descriptor, until it calls exec().
 *
 * Most numbers encode the size of a pointer instead of that of the structure, for compatibility. */
#ifndef WHERRY_GDRDRV_H
#define WHERRY_GDRDRV_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define GDRDRV_IOCTL 0xDA
#define GDRDRV_VERSION_MAJOR 2
#define GDRDRV_VERSION_MINOR 6
/* The oldest libgdrapi that fits, as major << 16 | minor. */
#define GDRDRV_MINIMUM_LIBRARY 0x20000

enum gdrdrv_mapping {
	GDRDRV_MAPPING_NONE, /* not mapped; as a request: let the driver choose */
	GDRDRV_MAPPING_WC,
	GDRDRV_MAPPING_CACHING,
	GDRDRV_MAPPING_DEVICE,
};

enum gdrdrv_attribute {
	GDRDRV_ATTR_USE_PERSISTENT_MAPPING = 1,
	GDRDRV_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE,
};

#define GDRDRV_PIN_FLAG_FORCE_PCIE 1u

struct gdrdrv_pin {
	/* Of any alignment: the module pins whole GPU pages of 64 KiB. The pin can be mapped only
	 * if the address is a multiple of that. */
	__u64 addr;
	__u64 size;
	__u64 p2p_token; /* both 0 where pages are persistent */
	__u32 va_space;
	__u32 padding;
	__u64 handle; /* out */
};

struct gdrdrv_pin_v2 {
	__u64 addr;
	__u64 size;
	__u32 flags;
	__u32 padding;
	__u64 handle; /* out */
};

struct gdrdrv_unpin {
	__u64 handle;
};

struct gdrdrv_callback_flag {
	__u64 handle;
	__u32 flag; /* out: 1 if the memory was freed under the pin */
	__u32 padding;
};

struct gdrdrv_info {
	__u64 handle;
	__u64 va; /* from here on out: the first byte that is pinned */
	__u64 mapped_size;
	__u32 page_size;
	__u32 tsc_khz;
	__u64 tm_cycles; /* CPU cycles that pinning took */
	__u32 mapped;
	__u32 wc_mapping;
};

struct gdrdrv_info_v2 {
	__u64 handle;
	__u64 va;
	__u64 mapped_size;
	__u32 page_size;
	__u32 tsc_khz;
	__u64 tm_cycles;
	__u32 mapping_type; /* enum gdrdrv_mapping */
	__u32 padding;
};

struct gdrdrv_attr {
	__u32 attr; /* enum gdrdrv_attribute */
	__u32 val; /* out */
};

struct gdrdrv_req_mapping_type {
	__u64 handle;
	__u32 mapping_type; /* enum gdrdrv_mapping; for the next mmap() */
	__u32 padding;
};

struct gdrdrv_version {
	__u32 driver; /* major << 16 | minor */
	__u32 minimum_library;
};

#define GDRDRV_IOC_PIN _IOWR(GDRDRV_IOCTL, 1, struct gdrdrv_pin)
#define GDRDRV_IOC_UNPIN _IOWR(GDRDRV_IOCTL, 2, void *)
#define GDRDRV_IOC_CALLBACK_FLAG _IOWR(GDRDRV_IOCTL, 3, void *)
#define GDRDRV_IOC_INFO _IOWR(GDRDRV_IOCTL, 4, void *)
#define GDRDRV_IOC_INFO_V2 _IOWR(GDRDRV_IOCTL, 5, void *)
#define GDRDRV_IOC_ATTR _IOWR(GDRDRV_IOCTL, 6, void *)
#define GDRDRV_IOC_PIN_V2 _IOWR(GDRDRV_IOCTL, 7, struct gdrdrv_pin_v2)
#define GDRDRV_IOC_REQ_MAPPING_TYPE _IOWR(GDRDRV_IOCTL, 8, void *)
#define GDRDRV_IOC_VERSION _IOWR(GDRDRV_IOCTL, 255, void *)

#endif
