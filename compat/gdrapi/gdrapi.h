/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libgdrapi: CPU mappings of GPU memory, with the interface of GDRCopy 2.6, by Wherry.
 *
 * Programs made for GDRCopy run on this library as they are; it is installed in a directory of its
 * own, where they have to be told to look (docs/windows.md). It works with GDRCopy's kernel module
 * or with Wherry's, and, unlike GDRCopy, without any on the NVIDIA drivers that it knows how to
 * ask. New programs have more from <wherry/window.h>.
 *
 * Every function returns 0 or an errno, positive, unless its comment says otherwise. All may be
 * called from any thread, on any object; using a handle while another thread gives it back is the
 * caller's bug. What was opened belongs to the process that opened it: EACCES in a child of fork().
 *
 * The environment, read at the first gdr_open():
 *   GDRCOPY_ENABLE_LOGGING     set, to any value: say on stderr what went wrong, and why
 *   GDRCOPY_LOG_LEVEL=N        from 1, everything, to 4, errors only (the default)
 *   GDRCOPY_USE_DMABUF_MMAP=1  map by dma-bufs and in no other way
 *   WHERRY_WINDOW=LIST         else: who is asked, in order, of driver, dmabuf and rm
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

/* Begin. NULL: nobody here can map GPU memory (the log says why). Starts no CUDA, nor do the
 * functions that only ask: a child forked after them can. */
gdr_t gdr_open(void);

/* End: everything pinned is unmapped and unpinned. EINVAL: NULL. */
int gdr_close(gdr_t g);

/* Pinned memory. Never 0. */
typedef struct gdr_mh_s {
	unsigned long h;
} gdr_mh_t;

typedef enum gdr_pin_flags {
	GDR_PIN_FLAG_DEFAULT = 0,
	GDR_PIN_FLAG_FORCE_PCIE = 1, /* never by a coherent link: GDR_ATTR_SUPPORT_... */
} gdr_pin_flags_t;

/* Pin [addr, addr+size) of a GPU's memory, wherever it begins, rounded out to GPU pages. A page
 * that is allocated in part is pinned whole, with what else CUDA keeps in it. It is held until it
 * is unpinned, except with a kernel module that is set not to (gdr_get_callback_flag()). EINVAL (a
 * page of which nothing that was asked for is memory of a GPU, a range that wraps, size 0), ENOMEM
 * (the GPU's BAR1 is full), EOPNOTSUPP (a flag, or a sort of memory). p2p_token and va_space are
 * not used any more. */
int gdr_pin_buffer(gdr_t g, unsigned long addr, size_t size, uint64_t p2p_token, uint32_t va_space,
		   gdr_mh_t *handle);
int gdr_pin_buffer_v2(gdr_t g, unsigned long addr, size_t size, uint32_t flags, gdr_mh_t *handle);

/* Unpin, and unmap if that was not done. EINVAL: no such handle. */
int gdr_unpin_buffer(gdr_t g, gdr_mh_t handle);

/* *flag is not 0 once the memory has been freed and its mapping taken away. */
int gdr_get_callback_flag(gdr_t g, gdr_mh_t handle, int *flag);

typedef enum gdr_mapping_type {
	GDR_MAPPING_TYPE_NONE = 0,
	GDR_MAPPING_TYPE_WC = 1,
	GDR_MAPPING_TYPE_CACHING = 2,
	GDR_MAPPING_TYPE_DEVICE = 3,
	GDR_MAPPING_TYPE_MAX,
} gdr_mapping_type_t;

/* *pstr: "None", "Write Combining", "Caching" or "Device", good for ever. EINVAL: any other type,
 * NULL. */
int gdr_get_mapping_type_string(gdr_mapping_type_t type, const char **pstr);

typedef struct gdr_info_v2 {
	uint64_t va; /* of the GPU: where the pinned range begins */
	uint64_t mapped_size; /* of the pinned range */
	uint32_t page_size;
	uint64_t tm_cycles; /* of the kernel module; 0: there is none */
	uint32_t cycles_per_ms;
	unsigned mapped : 1;
	unsigned wc_mapping : 1;
	gdr_mapping_type_t mapping_type;
} gdr_info_v2_t;
typedef gdr_info_v2_t gdr_info_t;

int gdr_get_info_v2(gdr_t g, gdr_mh_t handle, gdr_info_v2_t *info);
/* Programs compiled before 2.4 call a gdr_get_info() that fills all but the last field; it is still
 * there for them. */
#define gdr_get_info gdr_get_info_v2

typedef enum gdr_map_flags {
	GDR_MAP_FLAG_DEFAULT = 0,
	GDR_MAP_FLAG_REQ_WC_MAPPING = 1,
	GDR_MAP_FLAG_REQ_CACHE_MAPPING = 2,
	GDR_MAP_FLAG_REQ_DEVICE_MAPPING = 3,
} gdr_map_flags_t;

/* Map pinned memory, all of it. *va is the CPU's address of info.va, which is what was pinned: only
 * what was pinned from a multiple of 64 KiB on can be mapped. EAGAIN: it is mapped already; EINVAL:
 * no such handle, an address that is no such multiple, more than is pinned, size 0; EOPNOTSUPP: not
 * a mapping of that type. */
int gdr_map(gdr_t g, gdr_mh_t handle, void **va, size_t size);
int gdr_map_v2(gdr_t g, gdr_mh_t handle, void **va, size_t size, int flags);

/* Unmap what gdr_map() gave. EINVAL: it is not mapped, or not there. */
int gdr_unmap(gdr_t g, gdr_mh_t handle, void *va, size_t size);

/* Copy into and out of a mapping, any address in it, any length. Writes are issued in order before
 * what this thread stores afterwards. EINVAL: not mapped, or not all of it in the mapping. */
int gdr_copy_to_mapping(gdr_mh_t handle, void *map_d_ptr, const void *h_ptr, size_t size);
int gdr_copy_from_mapping(gdr_mh_t handle, void *h_ptr, const void *map_d_ptr, size_t size);

/* The version of GDRCopy that this library's interface is of. */
void gdr_runtime_get_version(int *major, int *minor);

/* The kernel module's version; where there is none, that of the library. */
int gdr_driver_get_version(gdr_t g, int *major, int *minor);

typedef enum gdr_attr {
	GDR_ATTR_USE_PERSISTENT_MAPPING = 1, /* what is pinned is held after it was freed */
	GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE = 2,
	GDR_ATTR_USING_DMA_BUF_MMAP = 3,
	GDR_ATTR_MAX,
} gdr_attr_t;

/* What holds for all that is pinned from now on. EINVAL: no such attribute. */
int gdr_get_attribute(gdr_t g, gdr_attr_t attr, int *v);

#ifdef __cplusplus
}
#endif
#endif
