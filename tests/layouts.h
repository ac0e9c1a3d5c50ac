/* SPDX-License-Identifier: Apache-2.0 */
/* layouts.h: random pairs of layouts, and the plain slicing that they are held against */
#ifndef TESTS_LAYOUTS_H
#define TESTS_LAYOUTS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "weights/layout.h"

#define LAYOUTS_HOSTS 4
#define LAYOUTS_ENGINES 7 /* of each layout; those that are in both have the same name */
#define LAYOUTS_REGION 65536 /* bytes; each engine has one of each layout: "old", "new" */

static inline uint64_t layouts_below(uint64_t *seed, uint64_t limit)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed % limit;
}

static inline void layouts_add_engines(uint64_t *seed, struct wh_layout *layout, bool targets,
				       uint32_t shared)
{
	struct wh_host host = wh_host_typical;
	char name[16];

	for (unsigned i = 0; i < LAYOUTS_HOSTS; i++) {
		snprintf(name, sizeof(name), "h%u", i);
		host.nics = 1 + i;
		host.uplink_rate = i == 2 ? 60 : 0;
		assert_int_equal(wh_layout_add_host(layout, name, &host, NULL), 0);
	}
	for (unsigned i = 0; i < LAYOUTS_ENGINES; i++) {
		/* Those that are shared have the same name in both, and other regions. */
		uint64_t at = i < shared ? 3 * i : layouts_below(seed, 1000);
		struct wh_layout_engine engine = {
			.host = (uint32_t)(at % LAYOUTS_HOSTS),
			.gpu = (int32_t)(at % 3) - 1,
			.nic = (uint32_t)(at % (1 + at % LAYOUTS_HOSTS)),
		};

		snprintf(name, sizeof(name), "%s%u", i < shared ? "e" : targets ? "t" : "s", i);
		assert_int_equal(wh_layout_add_engine(layout, name, &engine, NULL), 0);
		assert_int_equal(wh_layout_add_region(layout, i, targets ? "new" : "old",
						      LAYOUTS_REGION, NULL),
				 0);
	}
}

/* Put a box into an engine's region, behind what is there: in one run, or with gaps, or with its
 * dimensions in another order. False: it has no room, or 8 slices. */
static inline bool layouts_add_box(uint64_t *seed, struct wh_layout *layout, uint32_t tensor,
				   uint32_t engine, const uint64_t *begin, const uint64_t *end,
				   uint64_t *used)
{
	const struct wh_tensor *said = &layout->tensors[tensor];
	struct wh_slice_desc desc = { .tensor = tensor, .engine = engine, .region = engine };
	uint64_t stride = said->item, bytes = stride;
	uint32_t turn = (uint32_t)layouts_below(seed, said->dims + 1);

	desc.strided = layouts_below(seed, 2);
	for (uint32_t i = 0; i < said->dims; i++) {
		uint32_t at = said->dims - 1 - (i + (desc.strided ? turn : 0)) % said->dims;

		desc.begin[at] = begin[at];
		desc.end[at] = end[at];
		desc.stride[at] = stride;
		bytes += (end[at] - begin[at] - 1) * stride;
		stride *= end[at] - begin[at];
		if (desc.strided && !layouts_below(seed, 3))
			stride += said->item * layouts_below(seed, 3) + layouts_below(seed, 2);
	}
	desc.offset = used[engine] + layouts_below(seed, 5);
	if (desc.offset + bytes > LAYOUTS_REGION)
		return false;
	used[engine] = desc.offset + bytes;
	assert_int_equal(wh_layout_add_slice(layout, &desc, NULL), 0);
	return true;
}

/* Cut the box into parts at random, and give each to one to three engines. */
static inline bool layouts_add_parts(uint64_t *seed, struct wh_layout *layout, uint32_t tensor,
				     uint64_t *begin, uint64_t *end, int cuts, uint64_t *used)
{
	uint32_t dims = layout->tensors[tensor].dims;
	uint32_t dim = dims ? (uint32_t)layouts_below(seed, dims) : 0;

	if (cuts && dims && end[dim] - begin[dim] > 1) {
		uint64_t kept = end[dim],
			 at = begin[dim] + 1 + layouts_below(seed, kept - begin[dim] - 1);
		bool fits;

		end[dim] = at;
		fits = layouts_add_parts(seed, layout, tensor, begin, end, cuts - 1, used);
		end[dim] = kept;
		kept = begin[dim];
		begin[dim] = at;
		fits = fits && layouts_add_parts(seed, layout, tensor, begin, end, cuts - 1, used);
		begin[dim] = kept;
		return fits;
	}
	for (uint64_t copies = 1 + layouts_below(seed, 3); copies; copies--)
		if (!layouts_add_box(seed, layout, tensor,
				     (uint32_t)layouts_below(seed, LAYOUTS_ENGINES), begin, end,
				     used))
			return false;
	return true;
}

/* Besides: boxes at any place, which overlap others in the tensor. */
static inline bool layouts_add_boxes(uint64_t *seed, struct wh_layout *layout, uint32_t tensor,
				     uint64_t *used)
{
	const struct wh_tensor *said = &layout->tensors[tensor];
	uint64_t begin[WH_LAYOUT_DIMS], end[WH_LAYOUT_DIMS];

	for (uint64_t count = layouts_below(seed, 4); count; count--) {
		for (uint32_t i = 0; i < said->dims; i++) {
			begin[i] = layouts_below(seed, said->shape[i]);
			end[i] = begin[i] + 1 + layouts_below(seed, said->shape[i] - begin[i]);
		}
		if (!layouts_add_box(seed, layout, tensor,
				     (uint32_t)layouts_below(seed, LAYOUTS_ENGINES), begin, end,
				     used))
			return false;
	}
	return true;
}

static inline void layouts_random_tensor(uint64_t *seed, struct wh_tensor *out)
{
	static const uint32_t items[] = { 1, 2, 4, 8, 3 };
	uint64_t elements = 1;

	memset(out, 0, sizeof(*out));
	out->item = items[layouts_below(seed, 5)];
	snprintf(out->type, sizeof(out->type), "x%u", out->item);
	out->dims = (uint32_t)layouts_below(seed, WH_LAYOUT_DIMS + 1);
	for (uint32_t i = 0; i < out->dims; i++) {
		out->shape[i] = 1 + layouts_below(seed, out->dims < 3 ? 40 : 5);
		if (elements * out->shape[i] > 1500)
			out->shape[i] = 1;
		elements *= out->shape[i];
	}
}

/* *out[0] and [1]; both NULL if the slices found no room. */
static inline void layouts_random_pair(uint64_t *seed, struct wh_layout *out[2])
{
	uint32_t shared = (uint32_t)layouts_below(seed, LAYOUTS_ENGINES + 1);
	uint64_t tensors = 1 + layouts_below(seed, 3), used[2][LAYOUTS_ENGINES] = { 0 };
	bool fits = true;

	for (int side = 0; side < 2; side++) {
		out[side] = wh_layout_new(side ? "B" : "A");
		layouts_add_engines(seed, out[side], side, shared);
	}
	for (uint32_t i = 0; i < tensors; i++) {
		uint64_t begin[WH_LAYOUT_DIMS] = { 0 }, end[WH_LAYOUT_DIMS];
		struct wh_tensor tensor;
		char name[8];

		layouts_random_tensor(seed, &tensor);
		snprintf(name, sizeof(name), "w%u", i);
		memcpy(end, tensor.shape, sizeof(end));
		for (int side = 0; side < 2; side++) {
			uint32_t index;

			assert_int_equal(wh_layout_add_tensor(out[side], name, &tensor, &index), 0);
			/* Sources hold everything; targets may want parts only. */
			if (!side || layouts_below(seed, 3))
				fits = fits &&
				       layouts_add_parts(seed, out[side], index, begin, end,
							 (int)layouts_below(seed, 5), used[side]);
			fits = fits && layouts_add_boxes(seed, out[side], index, used[side]);
		}
	}
	if (!fits)
		for (int side = 0; side < 2; side++) {
			wh_layout_free(out[side]);
			out[side] = NULL;
		}
}

/* A byte of an element of a version, never 0. */
static inline uint8_t layouts_value(uint32_t tensor, uint64_t element, uint32_t byte,
				    uint64_t version)
{
	return (uint8_t)((tensor * 7919 + element * 31 + byte * 101 + element / 251 +
			  version * 57) %
				 255 +
			 1);
}

/* Call for each element of the box: its index in the tensor, and its offset in the region. */
static inline void layouts_each_element(const struct wh_layout *layout,
					const struct wh_slice *slice,
					void (*call)(void *arg, uint64_t element, uint64_t offset),
					void *arg)
{
	const struct wh_tensor *tensor = &layout->tensors[slice->tensor];
	const uint64_t *box = wh_slice_box(layout, slice);
	uint64_t at[WH_LAYOUT_DIMS], strides[WH_LAYOUT_DIMS];
	uint32_t dims = tensor->dims, dim;

	wh_slice_strides(layout, slice, strides);
	memcpy(at, box, dims * sizeof(*at));
	do {
		uint64_t element = 0, offset = slice->offset;

		for (uint32_t i = 0; i < dims; i++) {
			element = element * tensor->shape[i] + at[i];
			offset += (at[i] - box[i]) * strides[i];
		}
		call(arg, element, offset);
		for (dim = dims; dim-- > 0;) {
			if (++at[dim] < box[dims + dim])
				break;
			at[dim] = box[dim];
		}
	} while (dim != UINT32_MAX);
}

#endif
