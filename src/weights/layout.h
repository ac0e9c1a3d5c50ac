/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layout: which part of each tensor lies where.
 *
 * Tensors have a name, a type and a shape. Engines are on hosts, at a GPU or in host memory, and
 * have regions. A slice is a box of a tensor (a range for each dimension) that an engine holds in a
 * region, from an offset on, with a stride for each dimension. Replicas are slices with the same
 * box; nothing needs to be even, or complete.
 *
 * Everything that is added is checked and copied. Indexes start at 0, in the order of adding. No
 * locks: one thread fills a layout; afterwards any number may read it.
 */
#ifndef WH_WEIGHTS_LAYOUT_H
#define WH_WEIGHTS_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WH_LAYOUT_DIMS 8 /* of a tensor, at most */
#define WH_LAYOUT_NAME 255 /* bytes of a name, at most */
#define WH_LAYOUT_MOST 0x7fffffffu /* elements of a list, at most */
#define WH_LAYOUT_NO_GPU (-1) /* an engine whose regions are host memory */

/* Names have an owner: regions their engine, all others 0. */
struct wh_name {
	char *text;
	uint32_t owner;
};

struct wh_tensor {
	struct wh_name name;
	char type[16]; /* "bf16"; or what the program calls it */
	uint32_t item; /* bytes of an element */
	uint32_t dims; /* 0: a scalar */
	uint64_t shape[WH_LAYOUT_DIMS];
	uint64_t bytes;
};

/* Rates are GB/s (10^9) in each direction, latencies us from the last byte sent to its use. */
struct wh_host {
	struct wh_name name;
	uint32_t nics; /* at least 1 */
	double nic_rate, nic_latency; /* of one NIC */
	double uplink_rate; /* of the host's NICs together; 0: no limit */
	double gpu_rate, gpu_latency; /* of one GPU to others of its host */
	double copy_rate; /* within one GPU's memory */
	double memory_rate; /* of the host's memory, by all engines without a GPU together */
	double engine_rate; /* that one of them copies within it; 0: no limit */
};

struct wh_layout_engine {
	struct wh_name name;
	uint32_t host;
	int32_t gpu; /* or WH_LAYOUT_NO_GPU */
	uint32_t nic; /* below the host's `nics` */
};

struct wh_layout_region {
	struct wh_name name; /* owner: the engine */
	uint64_t bytes;
};

struct wh_slice {
	uint64_t offset; /* of its first element in the region */
	uint32_t tensor, engine, region;
	bool strided;
	size_t numbers; /* in layout.numbers: dims begins, dims ends; if strided, dims strides */
};

struct wh_list_of_names {
	uint32_t *slots; /* an index + 1; 0: free */
	uint32_t room, count;
};

struct wh_layout {
	char *label; /* for messages: the file's name */
	struct wh_tensor *tensors;
	struct wh_host *hosts;
	struct wh_layout_engine *engines;
	struct wh_layout_region *regions;
	struct wh_slice *slices;
	uint64_t *numbers;
	size_t number_count;
	uint32_t tensor_count, host_count, engine_count, region_count, slice_count;
	uint32_t tensor_room, host_room, engine_room, region_room, slice_room;
	size_t number_room;
	struct wh_list_of_names tensor_names, host_names, engine_names, region_names;
};

/* A box of a tensor, as it is added: begin <= x < end for each dimension. */
struct wh_slice_desc {
	uint32_t tensor, engine, region;
	uint64_t offset; /* bytes, of its first element in the region */
	uint64_t begin[WH_LAYOUT_DIMS], end[WH_LAYOUT_DIMS];
	bool strided; /* false: the box lies in one run, the last dimension fastest */
	uint64_t stride[WH_LAYOUT_DIMS]; /* bytes; at least an element, and no overlap */
};

/* Typical values: one NIC of 400 Gbit/s for each of 8 GPUs, NVLink 4 (docs/weights.md). */
extern const struct wh_host wh_host_typical;

/* NULL: no memory. */
struct wh_layout *wh_layout_new(const char *label);
void wh_layout_free(struct wh_layout *layout);

/* Add to the layout; *out, unless `out` is NULL, is the index. `name` of a desc is ignored.
 * 0, or -EINVAL, -EEXIST (the name is taken), -ERANGE (outside its tensor or region), -E2BIG,
 * -ENOMEM; the text names what was added, and both sides of what does not fit. */
int wh_layout_add_tensor(struct wh_layout *layout, const char *name, const struct wh_tensor *desc,
			 uint32_t *out);
int wh_layout_add_host(struct wh_layout *layout, const char *name, const struct wh_host *desc,
		       uint32_t *out);
int wh_layout_add_engine(struct wh_layout *layout, const char *name,
			 const struct wh_layout_engine *desc, uint32_t *out);
int wh_layout_add_region(struct wh_layout *layout, uint32_t engine, const char *name,
			 uint64_t bytes, uint32_t *out);
int wh_layout_add_slice(struct wh_layout *layout, const struct wh_slice_desc *desc, uint32_t *out);

/* Find by name, of `length` bytes. False: there is none. */
bool wh_layout_find_tensor(const struct wh_layout *layout, const char *name, size_t length,
			   uint32_t *out);
bool wh_layout_find_host(const struct wh_layout *layout, const char *name, size_t length,
			 uint32_t *out);
bool wh_layout_find_engine(const struct wh_layout *layout, const char *name, size_t length,
			   uint32_t *out);
bool wh_layout_find_region(const struct wh_layout *layout, uint32_t engine, const char *name,
			   size_t length, uint32_t *out);

/* The bytes of an element of "bf16", "f32", "i8", ...; 0: unknown. */
uint32_t wh_layout_item_bytes(const char *type);

/* The slice's box: `dims` begins, then `dims` ends. */
static inline const uint64_t *wh_slice_box(const struct wh_layout *layout,
					   const struct wh_slice *slice)
{
	return layout->numbers + slice->numbers;
}

/* Fill in the stride of each dimension in bytes. */
void wh_slice_strides(const struct wh_layout *layout, const struct wh_slice *slice,
		      uint64_t out[WH_LAYOUT_DIMS]);

/* Write a box as "[0:4, 16:32]"; returns `out`. One that does not fit ends with "...". */
const char *wh_box_text(const uint64_t *box, uint32_t dims, char *out, size_t size);

#endif
