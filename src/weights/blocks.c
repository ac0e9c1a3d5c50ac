/* SPDX-License-Identifier: Apache-2.0 */
/* Steps as blocks of both regions: pieces of boxes, and boxes as nested strides. */
#include <string.h>

#include "weights/plan.h"

static uint32_t box_long_dimension(const uint64_t *box, uint32_t dims)
{
	uint32_t at = 0;

	while (at < dims && box[dims + at] - box[at] == 1)
		at++;
	return at;
}

uint64_t wh_box_pieces_most(const uint64_t *box, uint32_t dims)
{
	uint32_t at = box_long_dimension(box, dims);

	return at < dims ? box[dims + at] - box[at] : 1;
}

void wh_box_piece(const uint64_t *box, uint32_t dims, uint32_t piece, uint32_t pieces,
		  uint64_t out[2 * WH_LAYOUT_DIMS])
{
	uint32_t at = box_long_dimension(box, dims);
	uint64_t each, more;

	memcpy(out, box, 2 * dims * sizeof(*box));
	if (at == dims)
		return;
	each = (box[dims + at] - box[at]) / pieces;
	more = (box[dims + at] - box[at]) % pieces;
	out[at] = box[at] + piece * each + (piece < more ? piece : more);
	out[dims + at] = out[at] + each + (piece < more);
}

/* Where the box begins in the slice's region. */
static uint64_t box_offset(const struct wh_layout *layout, const struct wh_slice *slice,
			   const uint64_t *box, const uint64_t *strides)
{
	const uint64_t *begin = wh_slice_box(layout, slice);
	uint64_t offset = slice->offset;

	for (uint32_t i = 0; i < layout->tensors[slice->tensor].dims; i++)
		offset += (box[i] - begin[i]) * strides[i];
	return offset;
}

/* Take dimension `extent` with these strides into the blocks: the innermost comes first. */
static void strided_take(struct wh_strided *out, uint64_t extent, uint64_t from, uint64_t to)
{
	uint32_t last = out->dims - 1;

	if (extent == 1)
		return;
	if (!out->dims && from == out->block_length && to == out->block_length) {
		out->block_length *= extent;
	} else if (out->dims && from == out->from_stride[last] * out->count[last] &&
		   to == out->to_stride[last] * out->count[last]) {
		out->count[last] *= extent;
	} else {
		out->count[out->dims] = extent;
		out->from_stride[out->dims] = from;
		out->to_stride[out->dims] = to;
		out->dims++;
	}
}

static void swap(uint64_t *a, uint64_t *b)
{
	uint64_t kept = *a;

	*a = *b;
	*b = kept;
}

/* Pieces are cut along one dimension: those side by side have the first one's begin and the last
 * one's end. */
static void box_pieces(const uint64_t *box, uint32_t dims, const struct wh_cell *cell,
		       uint32_t piece, uint32_t count, uint64_t out[2 * WH_LAYOUT_DIMS])
{
	uint64_t last[2 * WH_LAYOUT_DIMS];

	wh_box_piece(box, dims, piece, cell->pieces, out);
	wh_box_piece(box, dims, piece + count - 1, cell->pieces, last);
	memcpy(out + dims, last + dims, dims * sizeof(*out));
}

void wh_step_blocks(const struct wh_plan *plan, const struct wh_step *step, uint32_t piece,
		    uint32_t count, struct wh_strided *out)
{
	const struct wh_cell *cell = &plan->cells[step->cell];
	const struct wh_tensor *tensor = &plan->targets->tensors[cell->tensor];
	const struct wh_slice *to = &plan->targets->slices[step->to], *from;
	uint64_t from_strides[WH_LAYOUT_DIMS], to_strides[WH_LAYOUT_DIMS];
	uint64_t box[2 * WH_LAYOUT_DIMS];
	const struct wh_layout *layout;

	from = wh_step_from(plan, step, &layout);
	wh_slice_strides(layout, from, from_strides);
	wh_slice_strides(plan->targets, to, to_strides);
	box_pieces(plan->numbers + cell->box, tensor->dims, cell, piece, count, box);
	out->block_length = tensor->item;
	out->dims = 0;
	out->from_offset = box_offset(layout, from, box, from_strides);
	out->to_offset = box_offset(plan->targets, to, box, to_strides);
	for (uint32_t i = tensor->dims; i-- > 0;)
		strided_take(out, box[tensor->dims + i] - box[i], from_strides[i], to_strides[i]);
	for (uint32_t i = 0, j = out->dims; j > i + 1; i++) {
		j--;
		swap(&out->count[i], &out->count[j]);
		swap(&out->from_stride[i], &out->from_stride[j]);
		swap(&out->to_stride[i], &out->to_stride[j]);
	}
}

uint64_t wh_strided_blocks(const struct wh_strided *strided)
{
	uint64_t blocks = 1;

	for (uint32_t i = 0; i < strided->dims; i++)
		blocks *= strided->count[i];
	return blocks;
}

void wh_strided_block(const struct wh_strided *strided, uint64_t index, uint64_t *from,
		      uint64_t *to)
{
	*from = strided->from_offset;
	*to = strided->to_offset;
	for (uint32_t i = strided->dims; i-- > 0;) {
		*from += index % strided->count[i] * strided->from_stride[i];
		*to += index % strided->count[i] * strided->to_stride[i];
		index /= strided->count[i];
	}
}
