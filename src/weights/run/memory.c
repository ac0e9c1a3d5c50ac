/* SPDX-License-Identifier: Apache-2.0 */
/* A member's regions: what the layouts give to it, its control block, and room for copies of the
 * others' control blocks. Only the members may read them, by the names in the layouts. */
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weights/run/run.h"

/* Who may read: the targets; of control blocks the sources, too. */
struct readers {
	struct wh_grant *grants;
	uint32_t targets, all;
};

static int readers_list(const struct wh_weights *weights, struct readers *out)
{
	const struct wh_layout *sources = weights->layouts[0], *targets = weights->layouts[1];
	uint32_t found;

	*out = (struct readers){ 0 };
	out->grants = calloc((size_t)sources->engine_count + targets->engine_count + 1,
			     sizeof(*out->grants));
	if (!out->grants)
		return wh_fail(ENOMEM, "wh_weights_open: no memory");
	for (uint32_t i = 0; i < targets->engine_count; i++)
		out->grants[out->targets++] =
			(struct wh_grant){ .peer = targets->engines[i].name.text,
					   .access = WH_ACCESS_READ };
	out->all = out->targets;
	for (uint32_t i = 0; i < sources->engine_count; i++) {
		const char *name = sources->engines[i].name.text;

		if (!wh_layout_find_engine(targets, name, strlen(name), &found))
			out->grants[out->all++] =
				(struct wh_grant){ .peer = name, .access = WH_ACCESS_READ };
	}
	if (out->all > WH_GRANTS_MAX) {
		free(out->grants);
		return wh_fail(E2BIG, "wh_weights_open: %" PRIu32 " engines, more than %d",
			       out->all, WH_GRANTS_MAX);
	}
	return 0;
}

static int region_new(struct wh_weights *weights, const struct readers *readers, uint32_t grants,
		      const char *what, void *address, uint64_t bytes, struct wh_region **out)
{
	char name[64];
	struct wh_region_options options = { .size = sizeof(options),
					     .name = name,
					     .grants = readers->grants,
					     .grant_count = grants };

	snprintf(name, sizeof(name), "%s.%s", weights->name, what);
	return wh_region_register(weights->engine, address, bytes, &options, out);
}

static int own_region_new(struct wh_weights *weights, int side, struct wh_own_region *own,
			  const struct readers *readers, const struct wh_memory_options *allocate)
{
	uint64_t bytes = weights->layouts[side]->regions[own->index].bytes;
	bool given = own->address[0] || own->address[1];
	int error = 0;

	if (given && (!own->address[0] || (side && !own->address[1])))
		return wh_fail(EINVAL,
			       "wh_weights_open: region '%.99s': a source has one address, a "
			       "target two",
			       weights->layouts[side]->regions[own->index].name.text);
	own->allocated = !given;
	weights->single = weights->single || (side && given && own->address[0] == own->address[1]);
	for (int i = 0; !error && i <= side; i++) {
		char what[32];

		if (!given)
			error = wh_memory_alloc(weights->engine, bytes, allocate, &own->address[i]);
		snprintf(what, sizeof(what), "%c%" PRIu32 ".%d", side ? 't' : 's', own->index, i);
		if (!error)
			error = region_new(weights, readers, readers->targets, what,
					   own->address[i], bytes, &own->region[i]);
	}
	return error;
}

/* The memory that the program gives for a region of either side. */
static int memory_take(struct wh_weights *weights, const struct wh_weights_memory *given)
{
	bool found = false;

	if (!given->region || given->reserved[0] || given->reserved[1])
		return wh_fail(EINVAL,
			       "wh_weights_open: memory has no region's name, or a reserved "
			       "member");
	for (int side = 0; side < 2; side++)
		for (uint32_t i = 0; i < weights->region_count[side]; i++) {
			struct wh_own_region *own = &weights->regions[side][i];
			const char *name = weights->layouts[side]->regions[own->index].name.text;

			if (strcmp(name, given->region) != 0)
				continue;
			memcpy(own->address, given->address, sizeof(own->address));
			found = true;
		}
	return found ? 0 :
		       wh_fail(ENOENT, "wh_weights_open: engine '%.63s' has no region '%.99s'",
			       wh_engine_name(weights->engine), given->region);
}

static int own_regions_list(struct wh_weights *weights, int side)
{
	const struct wh_layout *layout = weights->layouts[side];
	uint32_t count = weights->node_regions[side][weights->me];

	weights->regions[side] = calloc((size_t)count + 1, sizeof(**weights->regions));
	if (!weights->regions[side])
		return wh_fail(ENOMEM, "wh_weights_open: no memory");
	for (uint32_t i = 0; i < layout->region_count; i++)
		if (weights->plan->cluster.of_engine[side][layout->regions[i].name.owner] ==
		    weights->me)
			weights->regions[side][weights->region_count[side]++].index = i;
	return 0;
}

static int control_new(struct wh_weights *weights, const struct readers *readers)
{
	uint32_t sources = weights->region_count[0], targets = weights->region_count[1];
	uint64_t mirrors = 0;
	void *memory;
	int error;

	weights->control_bytes = wh_weights_control_bytes(weights, weights->me);
	error = wh_memory_alloc(weights->engine, weights->control_bytes, NULL, &memory);
	if (error)
		return error;
	weights->control = memory;
	weights->control_ids = weights->control + WH_HEAD_WORDS;
	weights->control_pieces[0] = (void *)(weights->control_ids + sources + 2 * targets);
	weights->control_pieces[1] = weights->control_pieces[0] + weights->own_count;
	for (uint32_t i = 0; i < sources; i++)
		weights->control_ids[i] = htole64(wh_region_id(weights->regions[0][i].region[0]));
	for (uint32_t i = 0; i < 2 * targets; i++)
		weights->control_ids[sources + i] =
			htole64(wh_region_id(weights->regions[1][i % targets].region[i / targets]));
	wh_weights_head_init(weights->control, weights->digest, sources + 2 * targets,
			     weights->own_count);
	error = region_new(weights, readers, readers->all, "control", memory,
			   weights->control_bytes, &weights->control_region);
	if (!error)
		error = region_new(weights, readers, readers->all, "layouts", weights->text,
				   weights->text_bytes, &weights->text_region);
	/* Behind each copy there is a byte for each region of the other: see link.c. */
	for (uint32_t i = 0; i < weights->plan->cluster.node_count; i++) {
		weights->links[i].mirror_offset = mirrors;
		mirrors += (wh_weights_control_bytes(weights, i) + weights->node_regions[0][i] +
			    2 * (uint64_t)weights->node_regions[1][i] + 63) /
			   64 * 64;
	}
	weights->mirror = error ? NULL : aligned_alloc(64, mirrors);
	if (!error && !weights->mirror)
		error = wh_fail(ENOMEM, "wh_weights_open: no memory");
	if (error)
		return error;
	memset(weights->mirror, 0, mirrors);
	for (uint32_t i = 0; i < weights->plan->cluster.node_count; i++)
		weights->links[i].mirror = weights->mirror + weights->links[i].mirror_offset;
	return wh_region_register(weights->engine, weights->mirror, mirrors, NULL,
				  &weights->mirror_region);
}

int wh_weights_memory(struct wh_weights *weights, const struct wh_weights_options *options)
{
	struct readers readers;
	int error = readers_list(weights, &readers);

	if (error)
		return error;
	for (int side = 0; !error && side < 2; side++)
		error = own_regions_list(weights, side);
	for (uint32_t i = 0; !error && i < options->memory_count; i++)
		error = memory_take(weights, &options->memory[i]);
	for (int side = 0; side < 2; side++)
		for (uint32_t i = 0; !error && i < weights->region_count[side]; i++)
			error = own_region_new(weights, side, &weights->regions[side][i], &readers,
					       options->allocate);
	if (!error)
		error = control_new(weights, &readers);
	for (int buffer = 0; !error && buffer < 2; buffer++) {
		void **list = (void **)calloc((size_t)weights->region_count[1] + 1, sizeof(*list));

		if (!list) {
			error = wh_fail(ENOMEM, "wh_weights_open: no memory");
			break;
		}
		for (uint32_t i = 0; i < weights->region_count[1]; i++)
			list[i] = weights->regions[1][i].address[buffer];
		weights->addresses[buffer] = list;
	}
	free(readers.grants);
	return error;
}

static int region_drop(struct wh_region **region)
{
	int error = *region ? wh_region_unregister(*region) : 0;

	if (!error)
		*region = NULL;
	return error;
}

int wh_weights_memory_free(struct wh_weights *weights)
{
	int error = region_drop(&weights->mirror_region);

	if (!error)
		error = region_drop(&weights->text_region);
	if (!error)
		error = region_drop(&weights->control_region);
	for (int side = 0; side < 2; side++)
		for (uint32_t i = 0; i < weights->region_count[side]; i++)
			for (int j = 0; !error && j < 2; j++) {
				struct wh_own_region *own = &weights->regions[side][i];

				error = region_drop(&own->region[j]);
				if (!error && own->allocated && own->address[j])
					error = wh_memory_free(weights->engine, own->address[j]);
				if (!error)
					own->address[j] = NULL;
			}
	if (!error && weights->control)
		error = wh_memory_free(weights->engine, weights->control);
	if (error)
		return error;
	weights->control = NULL;
	for (int i = 0; i < 2; i++) {
		free(weights->regions[i]);
		free((void *)weights->addresses[i]);
	}
	free(weights->mirror);
	return 0;
}
