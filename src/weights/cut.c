/* SPDX-License-Identifier: Apache-2.0 */
/* Cells by a sweep along each dimension, in turn, over the boxes that are open. */
#include "weights/cut.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/error.h"

struct sweep {
	const struct wh_cut *cut;
	uint64_t box[2 * WH_LAYOUT_DIMS];
};

static int order_by_dimension(const void *left, const void *right, void *arg)
{
	const struct wh_same_box *const *a = left, *const *b = right;
	uint32_t dim = *(const uint32_t *)arg;

	if ((*a)->box[dim] != (*b)->box[dim])
		return (*a)->box[dim] < (*b)->box[dim] ? -1 : 1;
	/* The same order in every run. */
	return (*a)->first < (*b)->first ? -1 : (*a)->first > (*b)->first;
}

static bool is_sorted(const struct wh_same_box *const *boxes, size_t count, uint32_t dim)
{
	for (size_t i = 1; i < count; i++)
		if (boxes[i - 1]->box[dim] > boxes[i]->box[dim])
			return false;
	return true;
}

static bool are_equal(const struct wh_same_box *const *boxes, size_t count, uint32_t dim,
		      uint32_t dims)
{
	for (size_t i = 1; i < count; i++)
		if (boxes[i]->box[dim] != boxes[0]->box[dim] ||
		    boxes[i]->box[dims + dim] != boxes[0]->box[dims + dim])
			return false;
	return true;
}

static bool is_wanted(const struct wh_same_box *const *boxes, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (boxes[i]->targets)
			return true;
	return false;
}

/* Where the open boxes' set changes next, behind `at`. */
static uint64_t next_change(const struct wh_same_box *const *open, size_t count,
			    const struct wh_same_box *next, uint32_t dim, uint32_t dims)
{
	uint64_t change = next ? next->box[dim] : UINT64_MAX;

	for (size_t i = 0; i < count; i++)
		if (open[i]->box[dims + dim] < change)
			change = open[i]->box[dims + dim];
	return change;
}

/* Leave out the boxes that end at `at` or before. */
static size_t open_close(const struct wh_same_box **open, size_t count, uint64_t at, uint32_t end)
{
	size_t kept = 0;

	for (size_t i = 0; i < count; i++)
		if (open[i]->box[end] > at)
			open[kept++] = open[i];
	return kept;
}

/* Of boxes that share the cells cut so far: cut along `dim` and all behind it. `boxes` is in the
 * caller's memory and is sorted here. Recurses once for each dimension, of which there are 8. */
/* NOLINTNEXTLINE(misc-no-recursion) */
static int sweep_along(struct sweep *sweep, uint32_t dim, const struct wh_same_box **boxes,
		       size_t count)
{
	uint32_t dims = sweep->cut->dims;
	const struct wh_same_box **open;
	size_t opened = 0, next = 0;
	int error = 0;

	if (!is_wanted(boxes, count))
		return 0;
	if (dim == dims)
		return sweep->cut->cell(sweep->cut->arg, sweep->box, boxes, count);
	if (are_equal(boxes, count, dim, dims)) {
		sweep->box[dim] = boxes[0]->box[dim];
		sweep->box[dims + dim] = boxes[0]->box[dims + dim];
		return sweep_along(sweep, dim + 1, boxes, count);
	}
	if (!is_sorted(boxes, count, dim))
		qsort_r((void *)boxes, count, sizeof(*boxes), order_by_dimension, &dim);
	/* The open ones, and a copy of them that deeper levels may sort. */
	open = (const struct wh_same_box **)calloc(2 * count + 1, sizeof(*open));
	if (!open)
		return wh_fail(ENOMEM, "no memory to cut a tensor");
	for (uint64_t at = boxes[0]->box[dim]; !error && (opened || next < count);) {
		uint64_t change;

		if (!opened)
			at = boxes[next]->box[dim];
		while (next < count && boxes[next]->box[dim] == at)
			open[opened++] = boxes[next++];
		change = next_change(open, opened, next < count ? boxes[next] : NULL, dim, dims);
		sweep->box[dim] = at;
		sweep->box[dims + dim] = change;
		memcpy((void *)(open + count), (const void *)open, opened * sizeof(*open));
		error = sweep_along(sweep, dim + 1, open + count, opened);
		at = change;
		opened = open_close(open, opened, at, dims + dim);
	}
	free((void *)open);
	return error;
}

int wh_cut(const struct wh_cut *cut, const struct wh_same_box *boxes, size_t count)
{
	const struct wh_same_box **all =
		(const struct wh_same_box **)calloc(count + 1, sizeof(*all));
	struct sweep sweep = { .cut = cut };
	int error;

	if (!all)
		return wh_fail(ENOMEM, "no memory to cut a tensor");
	for (size_t i = 0; i < count; i++)
		all[i] = &boxes[i];
	error = sweep_along(&sweep, 0, all, count);
	free((void *)all);
	return error;
}
