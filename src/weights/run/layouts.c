/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts as programs give them, and as text, by which members compare theirs. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/options.h"
#include "util/text.h"
#include "weights/run/run.h"

static int refuse(const struct wh_layout *layout, const char *what, uint32_t index, const char *why)
{
	return wh_fail(EINVAL, "wh_weights_open: %s: %s %" PRIu32 " %s", layout->label, what, index,
		       why);
}

static int tensor_add(struct wh_layout *layout, const struct wh_weights_tensor *desc,
		      uint32_t index)
{
	struct wh_tensor tensor = { .dims = desc->dims };

	if (!desc->name || !desc->type || strlen(desc->type) >= sizeof(tensor.type) ||
	    !wh_text_is_clean(desc->type, strlen(desc->type)))
		return refuse(layout, "tensor", index, "has no name, or no type of 1 to 15 bytes");
	if (desc->reserved[0] || desc->reserved[1] || desc->dims > WH_LAYOUT_DIMS ||
	    (desc->dims && !desc->shape))
		return refuse(layout, "tensor", index,
			      "has no shape, more than 8 dimensions, or a reserved member");
	snprintf(tensor.type, sizeof(tensor.type), "%s", desc->type);
	tensor.item = wh_layout_item_bytes(desc->type);
	if (tensor.item && desc->item_bytes && desc->item_bytes != tensor.item)
		return refuse(layout, "tensor", index, "has item_bytes that its type has not");
	if (!tensor.item)
		tensor.item = desc->item_bytes;
	for (uint32_t i = 0; i < desc->dims; i++)
		tensor.shape[i] = desc->shape[i];
	return wh_layout_add_tensor(layout, desc->name, &tensor, NULL);
}

static double or_typical(double given, double typical)
{
	return given != 0 ? given : typical;
}

static int host_add(struct wh_layout *layout, const struct wh_weights_host *desc, uint32_t index)
{
	const struct wh_host *usual = &wh_host_typical;
	struct wh_host host = {
		.nics = desc->nics ? desc->nics : usual->nics,
		.nic_rate = or_typical(desc->nic_rate, usual->nic_rate),
		.nic_latency = or_typical(desc->nic_latency, usual->nic_latency),
		.uplink_rate = desc->uplink_rate,
		.gpu_rate = or_typical(desc->gpu_rate, usual->gpu_rate),
		.gpu_latency = or_typical(desc->gpu_latency, usual->gpu_latency),
		.copy_rate = or_typical(desc->copy_rate, usual->copy_rate),
		.memory_rate = or_typical(desc->memory_rate, usual->memory_rate),
		.engine_rate = desc->engine_rate,
	};

	if (!desc->name || desc->reserved0 || desc->reserved)
		return refuse(layout, "host", index, "has no name, or a reserved member");
	return wh_layout_add_host(layout, desc->name, &host, NULL);
}

/* The number of "cuda:3" or "cuda:3,..."; none for the host. False: it is neither. */
static bool take_location(const char *location, int32_t *gpu)
{
	char *end;
	long number;

	*gpu = WH_LAYOUT_NO_GPU;
	if (!location || !strcmp(location, "host"))
		return true;
	if (strncmp(location, "cuda:", 5) != 0 || location[5] < '0' || location[5] > '9')
		return false;
	number = strtol(location + 5, &end, 10);
	*gpu = number < 1024 ? (int32_t)number : 1024;
	return !*end || *end == ',';
}

static int engine_add(struct wh_layout *layout, const struct wh_weights_engine *desc,
		      uint32_t index)
{
	struct wh_layout_engine engine = { .gpu = WH_LAYOUT_NO_GPU };
	const char *host = desc->host ? desc->host : desc->name;
	int error = 0;

	if (!desc->name || strlen(desc->name) > 63 || desc->reserved[0] || desc->reserved[1])
		return refuse(layout, "engine", index,
			      "has no name of 1 to 63 bytes, or a reserved member");
	if (desc->url && strlen(desc->url) >= WH_HELLO_URL)
		return refuse(layout, "engine", index, "has a URL of more than 95 bytes");
	if (!take_location(desc->location, &engine.gpu))
		return refuse(layout, "engine", index, "has a location that is not host or cuda:N");
	if (!wh_layout_find_host(layout, host, strlen(host), &engine.host))
		error = wh_layout_add_host(layout, host, &wh_host_typical, &engine.host);
	if (!error && engine.gpu > 0)
		engine.nic = (uint32_t)engine.gpu % layout->hosts[engine.host].nics;
	return error ? error : wh_layout_add_engine(layout, desc->name, &engine, NULL);
}

static int slice_add(struct wh_layout *layout, const struct wh_weights_slice *desc, uint32_t index)
{
	struct wh_slice_desc slice = { .tensor = desc->tensor,
				       .region = desc->region,
				       .offset = desc->offset,
				       .strided = desc->stride };
	const struct wh_tensor *tensor;

	if (desc->tensor >= layout->tensor_count || desc->region >= layout->region_count)
		return refuse(layout, "slice", index, "is of no tensor, or in no region");
	if (!desc->begin != !desc->end || desc->reserved[0] || desc->reserved[1])
		return refuse(layout, "slice", index,
			      "has a begin without an end, or a reserved member");
	tensor = &layout->tensors[desc->tensor];
	slice.engine = layout->regions[desc->region].name.owner;
	for (uint32_t i = 0; i < tensor->dims; i++) {
		slice.begin[i] = desc->begin ? desc->begin[i] : 0;
		slice.end[i] = desc->end ? desc->end[i] : tensor->shape[i];
		slice.stride[i] = desc->stride ? desc->stride[i] : 0;
	}
	return wh_layout_add_slice(layout, &slice, NULL);
}

static int layout_fill(struct wh_layout *layout, const struct wh_weights_layout *desc)
{
	int error = 0;

	if (desc->reserved || (desc->host_count && !desc->hosts) ||
	    (desc->tensor_count && !desc->tensors) || (desc->engine_count && !desc->engines) ||
	    (desc->region_count && !desc->regions) || (desc->slice_count && !desc->slices))
		return wh_fail(EINVAL,
			       "wh_weights_open: %s: a list is NULL, or a reserved member not 0",
			       layout->label);
	for (uint32_t i = 0; !error && i < desc->host_count; i++)
		error = host_add(layout, &desc->hosts[i], i);
	for (uint32_t i = 0; !error && i < desc->tensor_count; i++)
		error = tensor_add(layout, &desc->tensors[i], i);
	for (uint32_t i = 0; !error && i < desc->engine_count; i++)
		error = engine_add(layout, &desc->engines[i], i);
	for (uint32_t i = 0; !error && i < desc->region_count; i++) {
		const struct wh_weights_region *region = &desc->regions[i];

		if (!region->name || region->engine >= layout->engine_count || region->reserved0 ||
		    region->reserved[0] || region->reserved[1])
			return refuse(layout, "region", i,
				      "has no name, is of no engine, or has a reserved member");
		error = wh_layout_add_region(layout, region->engine, region->name, region->bytes,
					     NULL);
	}
	for (uint32_t i = 0; !error && i < desc->slice_count; i++)
		error = slice_add(layout, &desc->slices[i], i);
	return error;
}

int wh_weights_layout_make(const struct wh_weights_layout *desc, const char *label,
			   struct wh_layout **out)
{
	struct wh_weights_layout copy;
	struct wh_layout *layout;
	int error;

	if (!desc)
		return wh_fail(EINVAL, "wh_weights_open: options: %s is NULL", label);
	error = wh_options_copy(&copy, sizeof(copy), desc, sizeof(size_t), "wh_weights_open");
	if (error)
		return error;
	layout = wh_layout_new(copy.label ? copy.label : label);
	if (!layout)
		return wh_fail(ENOMEM, "wh_weights_open: no memory for a layout");
	wh_text_clean(layout->label);
	error = layout_fill(layout, &copy);
	if (error)
		wh_layout_free(layout);
	else
		*out = layout;
	return error;
}

/* ---- as text ----------------------------------------------------------------------------------
 */

struct describer {
	struct wh_weights *weights;
	uint64_t room;
};

/* FNV-1a, twice with different beginnings. It finds mistakes; it stops no attacker, who would need
 * the rights of a source anyway. */
static void digest_add(uint64_t digest[2], const char *text, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		digest[0] = (digest[0] ^ (uint8_t)text[i]) * 0x100000001b3u;
		digest[1] = (digest[1] ^ (uint8_t)text[i]) * 0x9e3779b97f4a7c15u;
	}
}

static int line_add(struct describer *out, const char *line)
{
	struct wh_weights *weights = out->weights;
	size_t length = strlen(line);

	digest_add(weights->digest, line, length);
	digest_add(weights->digest, "\n", 1);
	if (weights->text_bytes + length + 1 > WH_TEXT_KEPT)
		return 0;
	while (weights->text_bytes + length + 1 > out->room) {
		char *grown = realloc(weights->text, 2 * out->room);

		if (!grown)
			return wh_fail(ENOMEM, "wh_weights_open: no memory");
		weights->text = grown;
		out->room *= 2;
	}
	memcpy(weights->text + weights->text_bytes, line, length);
	weights->text[weights->text_bytes + length] = '\n';
	weights->text_bytes += length + 1;
	return 0;
}

static int tensors_describe(struct describer *out, const struct wh_layout *layout, const char *side)
{
	char line[1024];
	int error = 0;

	for (uint32_t i = 0; !error && i < layout->tensor_count; i++) {
		const struct wh_tensor *tensor = &layout->tensors[i];
		uint64_t box[2 * WH_LAYOUT_DIMS] = { 0 };
		char shape[256];

		memcpy(box + tensor->dims, tensor->shape, tensor->dims * sizeof(*box));
		snprintf(line, sizeof(line), "%s: tensor '%s': %s of %" PRIu32 " bytes %s", side,
			 tensor->name.text, tensor->type, tensor->item,
			 wh_box_text(box, tensor->dims, shape, sizeof(shape)));
		error = line_add(out, line);
	}
	return error;
}

static int slices_describe(struct describer *out, const struct wh_layout *layout, const char *side)
{
	char line[2048];
	int error = 0;

	for (uint32_t i = 0; !error && i < layout->host_count; i++) {
		const struct wh_host *host = &layout->hosts[i];

		snprintf(line, sizeof(line),
			 "%s: host '%s': %" PRIu32 " NICs, %g %g %g %g %g %g %g %g", side,
			 host->name.text, host->nics, host->nic_rate, host->nic_latency,
			 host->uplink_rate, host->gpu_rate, host->gpu_latency, host->copy_rate,
			 host->memory_rate, host->engine_rate);
		error = line_add(out, line);
	}
	for (uint32_t i = 0; !error && i < layout->engine_count; i++) {
		const struct wh_layout_engine *engine = &layout->engines[i];

		snprintf(line, sizeof(line), "%s: engine '%s': host '%s', GPU %" PRId32, side,
			 engine->name.text, layout->hosts[engine->host].name.text, engine->gpu);
		error = line_add(out, line);
	}
	for (uint32_t i = 0; !error && i < layout->region_count; i++) {
		snprintf(line, sizeof(line), "%s: engine '%s': region '%s' of %" PRIu64 " bytes",
			 side, layout->engines[layout->regions[i].name.owner].name.text,
			 layout->regions[i].name.text, layout->regions[i].bytes);
		error = line_add(out, line);
	}
	for (uint32_t i = 0; !error && i < layout->slice_count; i++) {
		const struct wh_slice *slice = &layout->slices[i];
		const struct wh_tensor *tensor = &layout->tensors[slice->tensor];
		uint64_t strides[WH_LAYOUT_DIMS] = { 0 };
		char box[256];
		int length;

		wh_slice_strides(layout, slice, strides);
		length = snprintf(
			line, sizeof(line), "%s: engine '%s': '%s' %s at %" PRIu64 " of '%s'", side,
			layout->engines[slice->engine].name.text, tensor->name.text,
			wh_box_text(wh_slice_box(layout, slice), tensor->dims, box, sizeof(box)),
			slice->offset, layout->regions[slice->region].name.text);
		for (uint32_t j = 0; j < tensor->dims; j++)
			length += snprintf(line + length, sizeof(line) - (size_t)length,
					   "%s%" PRIu64, j ? ", " : " / ", strides[j]);
		error = line_add(out, line);
	}
	return error;
}

int wh_weights_describe(struct wh_weights *weights, uint64_t chunk, uint64_t piece)
{
	static const char *const sides[] = { "sources", "targets" };
	struct describer out = { weights, 4096 };
	char line[80];
	int error;

	weights->digest[0] = 0xcbf29ce484222325u;
	weights->digest[1] = 0x6c62272e07bb0142u;
	weights->text = malloc(out.room);
	if (!weights->text)
		return wh_fail(ENOMEM, "wh_weights_open: no memory");
	snprintf(line, sizeof(line), "options: chunk %" PRIu64 ", piece %" PRIu64, chunk, piece);
	error = line_add(&out, line);
	/* What is most often wrong comes first. */
	for (int i = 0; !error && i < 2; i++)
		error = tensors_describe(&out, weights->layouts[i], sides[i]);
	for (int i = 0; !error && i < 2; i++)
		error = slices_describe(&out, weights->layouts[i], sides[i]);
	return error;
}

static size_t line_length(const char *text, uint64_t length)
{
	const char *end = memchr(text, '\n', length);

	return end ? (size_t)(end - text) : length;
}

/* The first line that differs: *length and *left are what is left of both, from it on. */
static void texts_compare(const char **ours, uint64_t *left, const char **theirs, uint64_t *length)
{
	while (*left && *length) {
		size_t a = line_length(*ours, *left), b = line_length(*theirs, *length);

		if (a != b || memcmp(*ours, *theirs, a) != 0)
			break;
		/* Each line has its newline. */
		*ours += a < *left ? a + 1 : a;
		*left -= a < *left ? a + 1 : a;
		*theirs += b < *length ? b + 1 : b;
		*length -= b < *length ? b + 1 : b;
	}
}

void wh_weights_differ(struct wh_link_to *link, const char *theirs, uint64_t length)
{
	const struct wh_weights *weights = link->weights;
	const char *us = wh_engine_name(weights->engine), *ours = weights->text;
	const char *them = weights->plan->cluster.nodes[link->node].name;
	uint64_t left = weights->text_bytes;
	char text[WH_TEXT_MAX];

	if (theirs)
		texts_compare(&ours, &left, &theirs, &length);
	if (theirs && left && length)
		snprintf(text, sizeof(text), "'%.20s' has %.*s, '%.20s' has %.*s", us,
			 (int)(line_length(ours, left) < 96 ? line_length(ours, left) : 96), ours,
			 them,
			 (int)(line_length(theirs, length) < 96 ? line_length(theirs, length) : 96),
			 theirs);
	else
		snprintf(text, sizeof(text), "engine '%.60s' has other layouts than '%.60s'", them,
			 us);
	wh_text_clean(text);
	wh_link_fail(link, text);
}
