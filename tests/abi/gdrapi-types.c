/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The types of GDRCopy 2.6's interface, written down from what is known of it and not from our
 * header: that has to fit them, with no warning of a C or of a C++ compiler. A program linked with
 * the library.
 */
#include "gdrapi.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

typedef gdr_t gdr_open_type(void);
typedef int gdr_close_type(gdr_t);
typedef int gdr_pin_buffer_type(gdr_t, unsigned long, size_t, uint64_t, uint32_t, gdr_mh_t *);
typedef int gdr_pin_buffer_v2_type(gdr_t, unsigned long, size_t, uint32_t, gdr_mh_t *);
typedef int gdr_unpin_buffer_type(gdr_t, gdr_mh_t);
typedef int gdr_get_callback_flag_type(gdr_t, gdr_mh_t, int *);
typedef int gdr_get_info_v2_type(gdr_t, gdr_mh_t, gdr_info_v2_t *);
typedef int gdr_map_type(gdr_t, gdr_mh_t, void **, size_t);
typedef int gdr_map_v2_type(gdr_t, gdr_mh_t, void **, size_t, int);
typedef int gdr_unmap_type(gdr_t, gdr_mh_t, void *, size_t);
typedef int gdr_copy_to_mapping_type(gdr_mh_t, void *, const void *, size_t);
typedef int gdr_copy_from_mapping_type(gdr_mh_t, void *, const void *, size_t);
typedef void gdr_runtime_get_version_type(int *, int *);
typedef int gdr_driver_get_version_type(gdr_t, int *, int *);
typedef int gdr_get_attribute_type(gdr_t, gdr_attr_t, int *);
typedef int gdr_get_mapping_type_string_type(gdr_mapping_type_t, const char **);

/* New code gets version 2 of it; the symbol of old programs is declared nowhere, and is the 17th.
 */
static gdr_get_info_v2_type *const get_info = gdr_get_info;
#undef gdr_get_info

#ifdef __cplusplus
extern "C"
#endif
	int
	gdr_get_info(gdr_t, gdr_mh_t, void *);

static gdr_open_type *const open_it = gdr_open;
static gdr_close_type *const close_it = gdr_close;
static gdr_pin_buffer_type *const pin_buffer = gdr_pin_buffer;
static gdr_pin_buffer_v2_type *const pin_buffer_v2 = gdr_pin_buffer_v2;
static gdr_unpin_buffer_type *const unpin_buffer = gdr_unpin_buffer;
static gdr_get_callback_flag_type *const get_callback_flag = gdr_get_callback_flag;
static gdr_get_info_v2_type *const get_info_v2 = gdr_get_info_v2;
static gdr_map_type *const map = gdr_map;
static gdr_map_v2_type *const map_v2 = gdr_map_v2;
static gdr_unmap_type *const unmap = gdr_unmap;
static gdr_copy_to_mapping_type *const copy_to_mapping = gdr_copy_to_mapping;
static gdr_copy_from_mapping_type *const copy_from_mapping = gdr_copy_from_mapping;
static gdr_runtime_get_version_type *const runtime_get_version = gdr_runtime_get_version;
static gdr_driver_get_version_type *const driver_get_version = gdr_driver_get_version;
static gdr_get_attribute_type *const get_attribute = gdr_get_attribute;
static gdr_get_mapping_type_string_type *const get_mapping_type_string =
	gdr_get_mapping_type_string;

static_assert(sizeof(gdr_mh_t) == 8 && sizeof(((gdr_mh_t *)0)->h) == sizeof(unsigned long),
	      "gdr_mh_t");
static_assert(sizeof(gdr_info_v2_t) == 48 && sizeof(gdr_info_t) == 48, "gdr_info_v2_t");
static_assert(offsetof(gdr_info_v2_t, va) == 0, "va");
static_assert(offsetof(gdr_info_v2_t, mapped_size) == 8, "mapped_size");
static_assert(offsetof(gdr_info_v2_t, page_size) == 16, "page_size");
static_assert(sizeof(((gdr_info_v2_t *)0)->page_size) == 4, "page_size");
static_assert(offsetof(gdr_info_v2_t, tm_cycles) == 24, "tm_cycles");
static_assert(offsetof(gdr_info_v2_t, cycles_per_ms) == 32, "cycles_per_ms");
static_assert(offsetof(gdr_info_v2_t, mapping_type) == 40, "mapping_type");
static_assert(sizeof(gdr_mapping_type_t) == 4 && sizeof(gdr_attr_t) == 4, "enumerations");
static_assert(sizeof(gdr_pin_flags_t) == 4, "gdr_pin_flags_t");
static_assert(GDR_PIN_FLAG_DEFAULT == 0 && GDR_PIN_FLAG_FORCE_PCIE == 1, "pin flags");
static_assert(GDR_MAPPING_TYPE_NONE == 0 && GDR_MAPPING_TYPE_WC == 1 &&
		      GDR_MAPPING_TYPE_CACHING == 2 && GDR_MAPPING_TYPE_DEVICE == 3 &&
		      GDR_MAPPING_TYPE_MAX == 4,
	      "mapping types");
static_assert(GDR_MAP_FLAG_DEFAULT == 0 && GDR_MAP_FLAG_REQ_WC_MAPPING == 1 &&
		      GDR_MAP_FLAG_REQ_CACHE_MAPPING == 2 && GDR_MAP_FLAG_REQ_DEVICE_MAPPING == 3,
	      "map flags");
static_assert(GDR_ATTR_USE_PERSISTENT_MAPPING == 1 && GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE == 2 &&
		      GDR_ATTR_USING_DMA_BUF_MMAP == 3,
	      "attributes");
static_assert(GPU_PAGE_SIZE == 65536, "GPU_PAGE_SIZE");

/* stdarg.h, by gdrapi.h alone: programs log by such functions. */
static int first_of(int count, ...)
{
	va_list arguments;
	int first;

	va_start(arguments, count);
	first = va_arg(arguments, int);
	va_end(arguments);
	return first;
}

/* Two bits of the byte at 36. */
static int bits_fit(void)
{
	unsigned char bytes[48];
	gdr_info_v2_t info;

	memset(&info, 0, sizeof(info));
	info.mapped = 1;
	memcpy(bytes, &info, sizeof(bytes));
	if (bytes[36] != 1)
		return 0;
	info.mapped = 0;
	info.wc_mapping = 1;
	memcpy(bytes, &info, sizeof(bytes));
	return bytes[36] == 2;
}

int main(void)
{
	const gdr_mh_t none = { 0 };
	gdr_t g = open_it();
	const char *name = NULL;
	int major = 0, minor = 0, failures = 0;
	void *va = NULL;
	gdr_mh_t mh;
	char byte = 0;

	/* Each is there, and refuses what is nothing. */
	failures += g && close_it(g) != 0; /* where there is a GPU */
	failures += close_it(NULL) != EINVAL;
	failures += pin_buffer(NULL, 0, 1, 0, 0, &mh) != EINVAL;
	failures += pin_buffer_v2(NULL, 0, 1, GDR_PIN_FLAG_DEFAULT, &mh) != EINVAL;
	failures += unpin_buffer(NULL, none) != EINVAL;
	failures += get_callback_flag(NULL, none, &major) != EINVAL;
	failures += get_info(NULL, none, NULL) != EINVAL || get_info_v2(NULL, none, NULL) != EINVAL;
	failures += gdr_get_info(NULL, none, NULL) != EINVAL;
	failures += map(NULL, none, &va, 1) != EINVAL;
	failures += map_v2(NULL, none, &va, 1, GDR_MAP_FLAG_DEFAULT) != EINVAL;
	failures += unmap(NULL, none, &byte, 1) != EINVAL;
	failures += copy_to_mapping(none, &byte, &byte, 1) != EINVAL;
	failures += copy_from_mapping(none, &byte, &byte, 1) != EINVAL;
	runtime_get_version(&major, &minor);
	failures += major != 2 || minor != 6;
	failures += driver_get_version(NULL, &major, &minor) != EINVAL;
	failures += get_attribute(NULL, GDR_ATTR_USE_PERSISTENT_MAPPING, &major) != EINVAL;
	failures += get_mapping_type_string(GDR_MAPPING_TYPE_WC, &name) != 0 ||
		    strcmp(name, "Write Combining") != 0;
	failures += first_of(2, 7, 8) != 7;
	failures += !bits_fit();
	return failures;
}
