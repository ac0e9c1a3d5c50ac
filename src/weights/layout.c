/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts: lists that grow, names, and the checks of what is added. */
#include "weights/layout.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/error.h"
#include "util/text.h"

const struct wh_host wh_host_typical = {
	.nics = 8,
	.nic_rate = 48,
	.nic_latency = 10,
	.gpu_rate = 380,
	.gpu_latency = 5,
	.copy_rate = 1200,
	.memory_rate = 10,
};

/* ---- names ----------------------------------------------------------------------------------- */

/* FNV-1a. Who chooses names can make look-ups of a file of his own slow, and nobody else's. */
static uint64_t name_hash(uint32_t owner, const char *text, size_t length)
{
	uint64_t hash = 0xcbf29ce484222325u ^ owner;

	for (size_t i = 0; i < length; i++)
		hash = (hash ^ (uint8_t)text[i]) * 0x100000001b3u;
	return hash * 0x9e3779b97f4a7c15u >> 32;
}

/* `rows`: the list, whose elements of `size` bytes begin with a struct wh_name. */
static bool name_find(const struct wh_list_of_names *names, const void *rows, size_t size,
		      uint32_t owner, const char *text, size_t length, uint32_t *out)
{
	if (!names->room)
		return false;
	for (uint64_t at = name_hash(owner, text, length);; at++) {
		uint32_t slot = names->slots[at & (names->room - 1)];
		const struct wh_name *name;

		if (!slot)
			return false;
		name = (const void *)((const char *)rows + (slot - 1) * size);
		if (name->owner == owner && strlen(name->text) == length &&
		    !memcmp(name->text, text, length)) {
			*out = slot - 1;
			return true;
		}
	}
}

static void name_put(struct wh_list_of_names *names, const struct wh_name *name, uint32_t index)
{
	uint64_t at = name_hash(name->owner, name->text, strlen(name->text));

	while (names->slots[at & (names->room - 1)])
		at++;
	names->slots[at & (names->room - 1)] = index + 1;
	names->count++;
}

/* Add the name of rows[index]. */
static int name_add(struct wh_list_of_names *names, const void *rows, size_t size, uint32_t index)
{
	if (2 * (uint64_t)(names->count + 1) > names->room) {
		struct wh_list_of_names grown = { .room = names->room ? 2 * names->room : 16 };

		grown.slots = calloc(grown.room, sizeof(*grown.slots));
		if (!grown.slots)
			return -ENOMEM;
		for (uint32_t i = 0; i < index; i++)
			name_put(&grown, (const void *)((const char *)rows + i * size), i);
		free(names->slots);
		*names = grown;
	}
	name_put(names, (const void *)((const char *)rows + index * size), index);
	return 0;
}

static int no_memory(const struct wh_layout *layout)
{
	return wh_fail(ENOMEM, "%s: no memory for the layout", layout->label);
}

/* Append a zeroed element of `size` bytes with a copy of `name` to the list. */
static int list_add(struct wh_layout *layout, void **rows, uint32_t *count, uint32_t *room,
		    size_t size, struct wh_list_of_names *names, const char *what, uint32_t owner,
		    const char *name, void **out)
{
	size_t length = strlen(name);
	struct wh_name *row;
	uint32_t taken;

	if (!length || length > WH_LAYOUT_NAME || !wh_text_is_clean(name, length))
		return wh_fail(EINVAL,
			       "%s: a %s's name is not 1 to %d bytes of UTF-8 without control "
			       "characters",
			       layout->label, what, WH_LAYOUT_NAME);
	if (name_find(names, *rows, size, owner, name, length, &taken))
		return wh_fail(EEXIST, "%s: %s '%.99s' is there twice", layout->label, what, name);
	if (*count == *room) {
		uint32_t more = *room ? 2 * *room : 16;
		void *grown = *count < WH_LAYOUT_MOST / 2 ? realloc(*rows, more * size) : NULL;

		if (!grown)
			return no_memory(layout);
		*rows = grown;
		*room = more;
	}
	row = (void *)((char *)*rows + *count * size);
	memset(row, 0, size);
	row->owner = owner;
	row->text = strdup(name);
	if (!row->text || name_add(names, *rows, size, *count)) {
		free(row->text);
		return no_memory(layout);
	}
	++*count;
	*out = row;
	return 0;
}

/* *out: the new element of the list `kind`. */
#define LIST_ADD(layout, kind, what, owner, name, out)                                             \
	({                                                                                         \
		void *rows_ = (layout)->kind##s, *row_ = NULL;                                     \
		int error_ = list_add(layout, &rows_, &(layout)->kind##_count,                     \
				      &(layout)->kind##_room, sizeof(*(layout)->kind##s),          \
				      &(layout)->kind##_names, what, owner, name, &row_);          \
                                                                                                   \
		(layout)->kind##s = rows_;                                                         \
		*(out) = row_;                                                                     \
		error_;                                                                            \
	})

#define LIST_FIND(layout, kind, owner, name, length, out)                                          \
	name_find(&(layout)->kind##_names, (layout)->kind##s, sizeof(*(layout)->kind##s), owner,   \
		  name, length, out)

bool wh_layout_find_tensor(const struct wh_layout *layout, const char *name, size_t length,
			   uint32_t *out)
{
	return LIST_FIND(layout, tensor, 0, name, length, out);
}

bool wh_layout_find_host(const struct wh_layout *layout, const char *name, size_t length,
			 uint32_t *out)
{
	return LIST_FIND(layout, host, 0, name, length, out);
}

bool wh_layout_find_engine(const struct wh_layout *layout, const char *name, size_t length,
			   uint32_t *out)
{
	return LIST_FIND(layout, engine, 0, name, length, out);
}

bool wh_layout_find_region(const struct wh_layout *layout, uint32_t engine, const char *name,
			   size_t length, uint32_t *out)
{
	return LIST_FIND(layout, region, engine, name, length, out);
}

/* ---- adding ---------------------------------------------------------------------------------- */

struct wh_layout *wh_layout_new(const char *label)
{
	struct wh_layout *layout = calloc(1, sizeof(*layout));

	if (!layout)
		return NULL;
	layout->label = strdup(label);
	/* So that boxes of scalars, which have no numbers, are somewhere. */
	layout->number_room = 64;
	layout->numbers = calloc(layout->number_room, sizeof(*layout->numbers));
	if (!layout->label || !layout->numbers) {
		wh_layout_free(layout);
		return NULL;
	}
	return layout;
}

#define LIST_FREE(layout, kind)                                                                    \
	do {                                                                                       \
		for (uint32_t i = 0; i < (layout)->kind##_count; i++)                              \
			free((layout)->kind##s[i].name.text);                                      \
		free((layout)->kind##s);                                                           \
		free((layout)->kind##_names.slots);                                                \
	} while (0)

void wh_layout_free(struct wh_layout *layout)
{
	if (!layout)
		return;
	LIST_FREE(layout, tensor);
	LIST_FREE(layout, host);
	LIST_FREE(layout, engine);
	LIST_FREE(layout, region);
	free(layout->slices);
	free(layout->numbers);
	free(layout->label);
	free(layout);
}

uint32_t wh_layout_item_bytes(const char *type)
{
	static const struct {
		const char *type;
		uint32_t bytes;
	} rows[] = {
		{ "bool", 1 }, { "u8", 1 },    { "i8", 1 },  { "f8e4m3", 1 }, { "f8e5m2", 1 },
		{ "u16", 2 },  { "i16", 2 },   { "f16", 2 }, { "bf16", 2 },   { "u32", 4 },
		{ "i32", 4 },  { "f32", 4 },   { "u64", 8 }, { "i64", 8 },    { "f64", 8 },
		{ "c64", 8 },  { "c128", 16 },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (!strcmp(rows[i].type, type))
			return rows[i].bytes;
	return 0;
}

int wh_layout_add_tensor(struct wh_layout *layout, const char *name, const struct wh_tensor *desc,
			 uint32_t *out)
{
	uint64_t bytes = desc->item;
	struct wh_tensor *tensor;
	int error;

	if (!desc->item || desc->item > 1024)
		return wh_fail(EINVAL,
			       "%s: tensor '%.99s': an element has %" PRIu32
			       " bytes, not 1 to 1024",
			       layout->label, name, desc->item);
	if (desc->dims > WH_LAYOUT_DIMS)
		return wh_fail(E2BIG, "%s: tensor '%.99s' has %" PRIu32 " dimensions, more than %d",
			       layout->label, name, desc->dims, WH_LAYOUT_DIMS);
	for (uint32_t i = 0; i < desc->dims; i++)
		if (!desc->shape[i] || __builtin_mul_overflow(bytes, desc->shape[i], &bytes) ||
		    bytes > INT64_MAX)
			return wh_fail(EINVAL,
				       "%s: tensor '%.99s': a dimension of its shape is 0, or it "
				       "has more than 2^63 bytes",
				       layout->label, name);
	error = LIST_ADD(layout, tensor, "tensor", 0, name, &tensor);
	if (error)
		return error;
	tensor->item = desc->item;
	tensor->dims = desc->dims;
	tensor->bytes = bytes;
	memcpy(tensor->type, desc->type, sizeof(tensor->type) - 1);
	memcpy(tensor->shape, desc->shape, sizeof(tensor->shape));
	if (out)
		*out = layout->tensor_count - 1;
	return 0;
}

static bool is_rate(double rate)
{
	return isfinite(rate) && rate >= 1e-6 && rate <= 1e6;
}

static bool is_latency(double latency)
{
	return isfinite(latency) && latency >= 0 && latency <= 1e6;
}

int wh_layout_add_host(struct wh_layout *layout, const char *name, const struct wh_host *desc,
		       uint32_t *out)
{
	struct wh_host *host;
	struct wh_name kept;
	int error;

	if (!desc->nics || desc->nics > 1024)
		return wh_fail(EINVAL, "%s: host '%.99s' has %" PRIu32 " NICs, not 1 to 1024",
			       layout->label, name, desc->nics);
	if (!is_rate(desc->nic_rate) || !is_rate(desc->gpu_rate) || !is_rate(desc->copy_rate) ||
	    !is_rate(desc->memory_rate) ||
	    (desc->uplink_rate != 0 && !is_rate(desc->uplink_rate)) ||
	    (desc->engine_rate != 0 && !is_rate(desc->engine_rate)))
		return wh_fail(EINVAL, "%s: host '%.99s': a rate is not 1e-6 to 1e6 GB/s",
			       layout->label, name);
	if (!is_latency(desc->nic_latency) || !is_latency(desc->gpu_latency))
		return wh_fail(EINVAL, "%s: host '%.99s': a latency is not 0 to 1e6 us",
			       layout->label, name);
	error = LIST_ADD(layout, host, "host", 0, name, &host);
	if (error)
		return error;
	kept = host->name;
	*host = *desc;
	host->name = kept;
	if (out)
		*out = layout->host_count - 1;
	return 0;
}

int wh_layout_add_engine(struct wh_layout *layout, const char *name,
			 const struct wh_layout_engine *desc, uint32_t *out)
{
	struct wh_layout_engine *engine;
	const struct wh_host *host;
	int error;

	if (desc->host >= layout->host_count)
		return wh_fail(EINVAL, "%s: engine '%.99s' is on no host", layout->label, name);
	host = &layout->hosts[desc->host];
	if (desc->gpu < WH_LAYOUT_NO_GPU || desc->gpu >= 1024)
		return wh_fail(EINVAL, "%s: engine '%.99s': GPU %" PRId32 " is not 0 to 1023",
			       layout->label, name, desc->gpu);
	if (desc->nic >= host->nics)
		return wh_fail(EINVAL,
			       "%s: engine '%.99s' uses NIC %" PRIu32 ", host '%.99s' has %" PRIu32,
			       layout->label, name, desc->nic, host->name.text, host->nics);
	error = LIST_ADD(layout, engine, "engine", 0, name, &engine);
	if (error)
		return error;
	engine->host = desc->host;
	engine->gpu = desc->gpu;
	engine->nic = desc->nic;
	if (out)
		*out = layout->engine_count - 1;
	return 0;
}

int wh_layout_add_region(struct wh_layout *layout, uint32_t engine, const char *name,
			 uint64_t bytes, uint32_t *out)
{
	struct wh_layout_region *region;
	int error;

	if (engine >= layout->engine_count)
		return wh_fail(EINVAL, "%s: region '%.99s' is of no engine", layout->label, name);
	if (!bytes || bytes > INT64_MAX)
		return wh_fail(EINVAL,
			       "%s: region '%.99s' of engine '%.99s' is empty, or larger "
			       "than 2^63 bytes",
			       layout->label, name, layout->engines[engine].name.text);
	error = LIST_ADD(layout, region, "region", engine, name, &region);
	if (error)
		return error;
	region->bytes = bytes;
	if (out)
		*out = layout->region_count - 1;
	return 0;
}

/* ---- slices ---------------------------------------------------------------------------------- */

const char *wh_box_text(const uint64_t *box, uint32_t dims, char *out, size_t size)
{
	size_t length = (size_t)snprintf(out, size, "[");

	for (uint32_t i = 0; i < dims && length < size; i++)
		length += (size_t)snprintf(out + length, size - length, "%s%" PRIu64 ":%" PRIu64,
					   i ? ", " : "", box[i], box[dims + i]);
	if (length + 2 > size)
		snprintf(out + size - 4, 4, "...");
	else
		memcpy(out + length, "]", 2);
	return out;
}

static void strides_in_one_run(const struct wh_tensor *tensor, const uint64_t *begin,
			       const uint64_t *end, uint64_t *out)
{
	uint64_t stride = tensor->item;

	for (uint32_t i = tensor->dims; i-- > 0;) {
		out[i] = stride;
		stride *= end[i] - begin[i];
	}
}

void wh_slice_strides(const struct wh_layout *layout, const struct wh_slice *slice,
		      uint64_t out[WH_LAYOUT_DIMS])
{
	const struct wh_tensor *tensor = &layout->tensors[slice->tensor];
	const uint64_t *box = wh_slice_box(layout, slice);

	if (slice->strided)
		memcpy(out, box + 2 * tensor->dims, tensor->dims * sizeof(*out));
	else
		strides_in_one_run(tensor, box, box + tensor->dims, out);
}

/* The bytes from the slice's first to its last one. False: more than 2^64. */
static bool slice_extent(const struct wh_tensor *tensor, const struct wh_slice_desc *desc,
			 uint64_t *out)
{
	uint64_t extent = tensor->item, part;

	for (uint32_t i = 0; i < tensor->dims; i++)
		if (__builtin_mul_overflow(desc->end[i] - desc->begin[i] - 1, desc->stride[i],
					   &part) ||
		    __builtin_add_overflow(extent, part, &extent))
			return false;
	*out = extent;
	return true;
}

/* Of the dimensions in the order of their strides, each strides over all of the former ones. Then
 * no two elements share a byte. */
static bool strides_are_apart(const struct wh_tensor *tensor, const struct wh_slice_desc *desc)
{
	uint32_t order[WH_LAYOUT_DIMS] = { 0 };
	uint64_t extent = tensor->item;

	for (uint32_t i = 0; i < tensor->dims; i++) {
		uint32_t at = i;

		for (; at && desc->stride[order[at - 1]] > desc->stride[i]; at--)
			order[at] = order[at - 1];
		order[at] = i;
	}
	for (uint32_t i = 0; i < tensor->dims; i++) {
		uint64_t more = desc->end[order[i]] - desc->begin[order[i]] - 1;

		if (more && desc->stride[order[i]] < extent)
			return false;
		extent += more * desc->stride[order[i]];
	}
	return true;
}

static int slice_check(const struct wh_layout *layout, struct wh_slice_desc *desc)
{
	const struct wh_tensor *tensor = &layout->tensors[desc->tensor];
	const char *engine = layout->engines[desc->engine].name.text, *name = tensor->name.text;
	const struct wh_layout_region *region = &layout->regions[desc->region];
	uint64_t extent;

	for (uint32_t i = 0; i < tensor->dims; i++)
		if (desc->begin[i] >= desc->end[i] || desc->end[i] > tensor->shape[i])
			return wh_fail(ERANGE,
				       "%s: tensor '%.60s' of engine '%.60s': range %" PRIu64
				       ":%" PRIu64 " of dimension %" PRIu32
				       ", whose size is %" PRIu64,
				       layout->label, name, engine, desc->begin[i], desc->end[i], i,
				       tensor->shape[i]);
	if (!desc->strided)
		strides_in_one_run(tensor, desc->begin, desc->end, desc->stride);
	if (!slice_extent(tensor, desc, &extent) || extent > region->bytes ||
	    desc->offset > region->bytes - extent)
		return wh_fail(ERANGE,
			       "%s: tensor '%.60s' of engine '%.60s' ends beyond region "
			       "'%.40s': offset %" PRIu64 ", region %" PRIu64 " bytes",
			       layout->label, name, engine, region->name.text, desc->offset,
			       region->bytes);
	if (desc->strided && !strides_are_apart(tensor, desc))
		return wh_fail(EINVAL,
			       "%s: tensor '%.60s' of engine '%.60s': its strides let "
			       "elements overlap",
			       layout->label, name, engine);
	return 0;
}

static int numbers_add(struct wh_layout *layout, const uint64_t *numbers, uint32_t count)
{
	if (layout->number_count + count > layout->number_room) {
		size_t room = 2 * layout->number_room;
		uint64_t *grown = realloc(layout->numbers, room * sizeof(*grown));

		if (!grown)
			return no_memory(layout);
		layout->numbers = grown;
		layout->number_room = room;
	}
	if (count)
		memcpy(layout->numbers + layout->number_count, numbers, count * sizeof(*numbers));
	layout->number_count += count;
	return 0;
}

int wh_layout_add_slice(struct wh_layout *layout, const struct wh_slice_desc *desc, uint32_t *out)
{
	struct wh_slice_desc checked = *desc;
	size_t numbers = layout->number_count;
	uint32_t dims;
	int error;

	if (desc->tensor >= layout->tensor_count || desc->engine >= layout->engine_count ||
	    desc->region >= layout->region_count ||
	    layout->regions[desc->region].name.owner != desc->engine)
		return wh_fail(EINVAL, "%s: a slice is of no tensor, engine or region of it",
			       layout->label);
	error = slice_check(layout, &checked);
	if (error)
		return error;
	if (layout->slice_count == layout->slice_room) {
		uint32_t room = layout->slice_room ? 2 * layout->slice_room : 64;
		struct wh_slice *grown = layout->slice_count < WH_LAYOUT_MOST / 2 ?
						 realloc(layout->slices, room * sizeof(*grown)) :
						 NULL;

		if (!grown)
			return no_memory(layout);
		layout->slices = grown;
		layout->slice_room = room;
	}
	dims = layout->tensors[desc->tensor].dims;
	error = numbers_add(layout, desc->begin, dims);
	if (!error)
		error = numbers_add(layout, desc->end, dims);
	if (!error && desc->strided)
		error = numbers_add(layout, desc->stride, dims);
	if (error) {
		layout->number_count = numbers;
		return error;
	}
	layout->slices[layout->slice_count] = (struct wh_slice){
		.offset = desc->offset,
		.tensor = desc->tensor,
		.engine = desc->engine,
		.region = desc->region,
		.strided = desc->strided,
		.numbers = numbers,
	};
	if (out)
		*out = layout->slice_count;
	layout->slice_count++;
	return 0;
}
