/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libgdrapi: CPU mappings of GPU memory, with the interface of GDRCopy 2.6, by Wherry.
 *
 * Programs built for GDRCopy run on this library unchanged. It is installed in a directory of its
 * own, which they need in LD_LIBRARY_PATH (docs/windows.md). It works with GDRCopy's kernel module
 * or with Wherry's, and, unlike GDRCopy, without a module on the NVIDIA drivers that it supports.
 * New programs get more from <wherry/window.h>.
 *
 * Every function returns 0 or a positive errno, unless its comment says otherwise. All functions
 * are thread-safe; do not use a handle while another thread unpins it. Objects belong to the
 * process that opened them: EACCES in a child of fork().
 *
 * The environment, read at the first gdr_open():
 *   GDRCOPY_ENABLE_LOGGING     set, to any value: log failures and their reasons to stderr
 *   GDRCOPY_LOG_LEVEL=N        from 1, everything, to 4, errors only (the default)
 *   GDRCOPY_USE_DMABUF_MMAP=1  map by dma-bufs only
 *   WHERRY_WINDOW=LIST         else: the backends to try, in order; driver,dmabuf,rm,rm-watch
 */
#ifndef GDRAPI_H
#define GDRAPI_H

#include <stdarg.h> /* not used here; programs made for GDRCopy rely on it */
#include <stddef.h>
#include <stdint.h>

#define MAJOR_VERSION_SHIFT 16
#define MINOR_VERSION_MASK (((uint32_t)1 << MAJOR_VERSION_SHIFT) - 1)

#define GDR_API_MAJOR_VERSION 2
#define GDR_API_MINOR_VERSION 6
#define GDR_API_VERSION ((GDR_API_MAJOR_VERSION << MAJOR_VERSION_SHIFT) | GDR_API_MINOR_VERSION)

#define MINIMUM_GDRDRV_MAJOR_VERSION 2
#define MINIMUM_GDRDRV_MINOR_VERSION 0
#define MINIMUM_GDRDRV_VERSION                                                                     \
	((MINIMUM_GDRDRV_MAJOR_VERSION << MAJOR_VERSION_SHIFT) | MINIMUM_GDRDRV_MINOR_VERSION)

/* Pinned ranges are multiples of this. */
#define GPU_PAGE_SHIFT 16
#define GPU_PAGE_SIZE (1UL << GPU_PAGE_SHIFT)
#define GPU_PAGE_OFFSET (GPU_PAGE_SIZE - 1)
#define GPU_PAGE_MASK (~GPU_PAGE_OFFSET)

#ifdef __cplusplus
extern "C" {
#endif

struct gdr;
typedef struct gdr *gdr_t;

/* Open the library. NULL: no backend can map GPU memory here; the log says why. Neither this
 * function nor a query initializes CUDA, so a child forked later can still use it. */
gdr_t gdr_open(void);

/* Close: unmap and unpin everything. EINVAL, as of all functions that take a gdr_t: not open. */
int gdr_close(gdr_t g);

/* A handle of pinned memory; never 0, and never given out twice. */
typedef struct gdr_mh_s {
	unsigned long h;
} gdr_mh_t;

typedef enum gdr_pin_flags {
	GDR_PIN_FLAG_DEFAULT = 0,
	GDR_PIN_FLAG_FORCE_PCIE =
		1, /* do not use a coherent link; see GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE */
} gdr_pin_flags_t;

/* Pin [addr, addr+size) of a GPU's memory, rounded out to GPU pages; addr needs no alignment. A
 * page is pinned whole, with all that CUDA keeps in it. The memory stays until it is unpinned,
 * unless a kernel module is configured otherwise (gdr_get_callback_flag()). EINVAL (a page in which
 * no requested byte is GPU memory, a range that wraps, size 0), ENOMEM (the GPU's BAR1 is full),
 * EOPNOTSUPP (an unsupported flag or kind of memory). p2p_token and va_space are ignored. */
int gdr_pin_buffer(gdr_t g, unsigned long addr, size_t size, uint64_t p2p_token, uint32_t va_space,
		   gdr_mh_t *handle);
int gdr_pin_buffer_v2(gdr_t g, unsigned long addr, size_t size, uint32_t flags, gdr_mh_t *handle);

/* Unpin, and unmap if still mapped. EINVAL: no such handle. */
int gdr_unpin_buffer(gdr_t g, gdr_mh_t handle);

/* *flag: not 0 once the memory was freed and its mapping revoked. */
int gdr_get_callback_flag(gdr_t g, gdr_mh_t handle, int *flag);

typedef enum gdr_mapping_type {
	GDR_MAPPING_TYPE_NONE = 0,
	GDR_MAPPING_TYPE_WC = 1,
	GDR_MAPPING_TYPE_CACHING = 2,
	GDR_MAPPING_TYPE_DEVICE = 3,
	GDR_MAPPING_TYPE_MAX,
} gdr_mapping_type_t;

/* *pstr: "None", "Write Combining", "Caching" or "Device"; static. EINVAL: any other type, NULL. */
int gdr_get_mapping_type_string(gdr_mapping_type_t type, const char **pstr);

typedef struct gdr_info_v2 {
	uint64_t va; /* GPU address of the start of the pinned range */
	uint64_t mapped_size; /* of the pinned range */
	uint32_t page_size;
	uint64_t tm_cycles; /* from the kernel module; 0: no module */
	uint32_t cycles_per_ms;
	unsigned mapped : 1;
	unsigned wc_mapping : 1;
	gdr_mapping_type_t mapping_type;
} gdr_info_v2_t;
typedef gdr_info_v2_t gdr_info_t;

int gdr_get_info_v2(gdr_t g, gdr_mh_t handle, gdr_info_v2_t *info);
/* Programs built before 2.4 call a symbol gdr_get_info() that fills all but the last field; the
 * library still has it. */
#define gdr_get_info gdr_get_info_v2

typedef enum gdr_map_flags {
	GDR_MAP_FLAG_DEFAULT = 0,
	GDR_MAP_FLAG_REQ_WC_MAPPING = 1,
	GDR_MAP_FLAG_REQ_CACHE_MAPPING = 2,
	GDR_MAP_FLAG_REQ_DEVICE_MAPPING = 3,
} gdr_map_flags_t;

/* Map all of a pinned range. *va: CPU address of info.va. The pinned address must be a multiple of
 * 64 KiB. EAGAIN: already mapped; EINVAL: no such handle, an unaligned address, a size of 0 or
 * beyond the pinned range; EOPNOTSUPP: this type of mapping is not possible. */
int gdr_map(gdr_t g, gdr_mh_t handle, void **va, size_t size);
int gdr_map_v2(gdr_t g, gdr_mh_t handle, void **va, size_t size, int flags);

/* Unmap; va as gdr_map() returned it. EINVAL: not mapped, or mapped elsewhere. */
int gdr_unmap(gdr_t g, gdr_mh_t handle, void *va, size_t size);

/* Copy into and out of a mapping; any address in it, any length. The writes are ordered before this
 * thread's later stores. EINVAL: not mapped, or the range is not within the mapping. */
int gdr_copy_to_mapping(gdr_mh_t handle, void *map_d_ptr, const void *h_ptr, size_t size);
int gdr_copy_from_mapping(gdr_mh_t handle, void *h_ptr, const void *map_d_ptr, size_t size);

/* The version of GDRCopy's interface that this library has. */
void gdr_runtime_get_version(int *major, int *minor);

/* The kernel module's version; without a module, the library's. */
int gdr_driver_get_version(gdr_t g, int *major, int *minor);

typedef enum gdr_attr {
	GDR_ATTR_USE_PERSISTENT_MAPPING = 1, /* pinned memory stays after it was freed */
	GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE = 2,
	GDR_ATTR_USING_DMA_BUF_MMAP = 3,
	GDR_ATTR_MAX,
} gdr_attr_t;

/* An attribute of all later pins. EINVAL: no such attribute. */
int gdr_get_attribute(gdr_t g, gdr_attr_t attr, int *v);

#ifdef __cplusplus
}
#endif
#endif
