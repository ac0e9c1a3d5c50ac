/* SPDX-License-Identifier: Apache-2.0 */
/* Two layouts side by side: what differs is one line with both sides. */
#include "weights/match.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/error.h"

static const char *tensor_text(const struct wh_tensor *tensor, char *out, size_t size)
{
	int length = snprintf(out, size, "%s of %" PRIu32 " bytes [", tensor->type, tensor->item);

	for (uint32_t i = 0; i < tensor->dims && length > 0 && (size_t)length < size; i++)
		length += snprintf(out + length, size - (size_t)length, "%s%" PRIu64, i ? ", " : "",
				   tensor->shape[i]);
	if (length > 0 && (size_t)length < size)
		snprintf(out + length, size - (size_t)length, "]");
	return out;
}

static bool tensor_same(const struct wh_tensor *a, const struct wh_tensor *b)
{
	return !strcmp(a->type, b->type) && a->item == b->item && a->dims == b->dims &&
	       !memcmp(a->shape, b->shape, a->dims * sizeof(*a->shape));
}

static int match_tensors(const struct wh_layout *sources, const struct wh_layout *targets,
			 uint32_t *of_source)
{
	char ours[80], theirs[80];
	uint32_t found;

	for (uint32_t i = 0; i < targets->tensor_count; i++) {
		const struct wh_tensor *tensor = &targets->tensors[i];

		if (!wh_layout_find_tensor(sources, tensor->name.text, strlen(tensor->name.text),
					   &found))
			return wh_fail(ENOENT, "tensor '%.99s' is in %.60s, not in %.60s",
				       tensor->name.text, targets->label, sources->label);
		if (!tensor_same(&sources->tensors[found], tensor))
			return wh_fail(EINVAL, "tensor '%.50s': %.30s has %s, %.30s has %s",
				       tensor->name.text, sources->label,
				       tensor_text(&sources->tensors[found], ours, sizeof(ours)),
				       targets->label, tensor_text(tensor, theirs, sizeof(theirs)));
		of_source[found] = i;
	}
	return 0;
}

static int match_regions(const struct wh_layout *sources, const struct wh_layout *targets)
{
	uint32_t engine, found;

	for (uint32_t i = 0; i < targets->region_count; i++) {
		const char *region = targets->regions[i].name.text;
		const char *name = targets->engines[targets->regions[i].name.owner].name.text;

		if (wh_layout_find_engine(sources, name, strlen(name), &engine) &&
		    wh_layout_find_region(sources, engine, region, strlen(region), &found))
			return wh_fail(EINVAL,
				       "region '%.50s' of engine '%.50s' is in %.40s and in %.40s: "
				       "it cannot be read and written at once",
				       region, name, sources->label, targets->label);
	}
	return 0;
}

struct run {
	uint64_t begin, end;
	uint32_t region, slice;
};

static int run_order(const void *left, const void *right)
{
	const struct run *a = left, *b = right;

	if (a->region != b->region)
		return a->region < b->region ? -1 : 1;
	return (a->begin > b->begin) - (a->begin < b->begin);
}

static uint64_t slice_bytes(const struct wh_layout *layout, const struct wh_slice *slice)
{
	const struct wh_tensor *tensor = &layout->tensors[slice->tensor];
	const uint64_t *box = wh_slice_box(layout, slice);
	uint64_t bytes = tensor->item;

	for (uint32_t i = 0; i < tensor->dims; i++)
		bytes *= box[tensor->dims + i] - box[i];
	return bytes;
}

static int match_runs(const struct wh_layout *targets, struct run *runs)
{
	const struct wh_slice *slices = targets->slices;
	size_t count = 0;

	for (uint32_t i = 0; i < targets->slice_count; i++)
		if (!slices[i].strided)
			runs[count++] = (struct run){
				.begin = slices[i].offset,
				.end = slices[i].offset + slice_bytes(targets, &slices[i]),
				.region = slices[i].region,
				.slice = i,
			};
	qsort(runs, count, sizeof(*runs), run_order);
	for (size_t i = 1; i < count; i++) {
		const struct run *a = &runs[i - 1], *b = &runs[i];

		if (a->region == b->region && b->begin < a->end)
			return wh_fail(
				EINVAL,
				"%.40s: engine '%.40s': tensors '%.50s' at %" PRIu64
				" and '%.50s' at %" PRIu64 " of region '%.30s' overlap",
				targets->label, targets->engines[slices[a->slice].engine].name.text,
				targets->tensors[slices[a->slice].tensor].name.text, a->begin,
				targets->tensors[slices[b->slice].tensor].name.text, b->begin,
				targets->regions[a->region].name.text);
	}
	return 0;
}

int wh_match(const struct wh_layout *sources, const struct wh_layout *targets, uint32_t **of_source)
{
	uint32_t *map = calloc((size_t)sources->tensor_count + 1, sizeof(*map));
	struct run *runs = calloc((size_t)targets->slice_count + 1, sizeof(*runs));
	int error;

	if (!map || !runs) {
		error = wh_fail(ENOMEM, "no memory to compare two layouts");
	} else {
		memset(map, 0xff, sources->tensor_count * sizeof(*map));
		error = match_tensors(sources, targets, map);
		if (!error)
			error = match_regions(sources, targets);
		if (!error)
			error = match_runs(targets, runs);
	}
	free(runs);
	if (error)
		free(map);
	else
		*of_source = map;
	return error;
}
