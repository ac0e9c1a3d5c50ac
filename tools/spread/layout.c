/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts of an offer: for running it, and for showing its plan. */
#include "spread/layout.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/error.h"

#define TENSOR "bytes"
#define REGION "file"

/* Several spreads do not take each other's hellos. */
static void offer_name(const struct spread_message *offer, char out[32])
{
	int used = snprintf(out, 32, "spread-");

	for (int i = 0; i < 8; i++)
		used += snprintf(out + used, 32 - (size_t)used, "%02x", offer->token[i]);
}

/* Bytes per second, of each host; 0: typical NICs. */
static uint64_t offer_link(const struct spread_message *offer)
{
	return offer->items[0].bytes;
}

/* The hosts of an offer that says what their links carry. Returns how many. */
static uint32_t hosts_list(const struct spread_message *offer, struct wh_weights_host *hosts)
{
	uint32_t count = 0;

	for (uint32_t i = 0; offer_link(offer) && i < offer->count; i++) {
		const char *name = offer->items[i].host;
		uint32_t at = 0;

		while (at < count && strcmp(hosts[at].name, name) != 0)
			at++;
		if (at == count)
			hosts[count++] = (struct wh_weights_host){
				.name = name,
				.nics = 1,
				.nic_rate = (double)offer_link(offer) / 1e9,
			};
	}
	return count;
}

int spread_weights_open(struct wh_engine *engine, const struct spread_message *offer, void *address,
			struct wh_weights **out)
{
	struct wh_weights_tensor tensor = {
		.name = TENSOR, .type = "u8", .shape = &offer->size, .dims = 1
	};
	struct wh_weights_engine *engines = calloc(offer->count, sizeof(*engines));
	struct wh_weights_region *regions = calloc(offer->count, sizeof(*regions));
	struct wh_weights_slice *slices = calloc(offer->count, sizeof(*slices));
	struct wh_weights_host *hosts = calloc(offer->count, sizeof(*hosts));
	bool room = engines && regions && slices && hosts;
	/* One buffer: a member has this one version, and no other. */
	struct wh_weights_memory memory = { .region = REGION, .address = { address, address } };
	struct wh_weights_layout layouts[2];
	uint32_t host_count = room ? hosts_list(offer, hosts) : 0;
	char name[32];
	struct wh_weights_options options = { .size = sizeof(options),
					      .sources = &layouts[0],
					      .targets = &layouts[1],
					      .memory = &memory,
					      .memory_count = 1,
					      .name = name,
					      .chunk = offer->chunk,
					      .piece = offer->piece };
	int error = -ENOMEM;

	offer_name(offer, name);
	for (uint32_t i = 0; room && i < offer->count; i++) {
		const struct spread_item *item = &offer->items[i];
		uint32_t at = i ? i - 1 : 0;

		engines[i] = (struct wh_weights_engine){
			.name = item->name,
			.url = item->url,
			.host = item->host,
			.location = item->location[0] ? item->location : NULL,
		};
		regions[i] = (struct wh_weights_region){ .name = REGION,
							 .bytes = offer->size,
							 .engine = at };
		slices[i] = (struct wh_weights_slice){ .region = at };
	}
	for (uint32_t side = 0; room && side < 2; side++) {
		uint32_t count = side ? offer->count - 1 : 1;

		layouts[side] = (struct wh_weights_layout){ .size = sizeof(layouts[side]),
							    .hosts = hosts,
							    .tensors = &tensor,
							    .engines = engines + side,
							    .regions = regions + side,
							    .slices = slices + side,
							    .host_count = host_count,
							    .tensor_count = 1,
							    .engine_count = count,
							    .region_count = count,
							    .slice_count = count };
		error = 0;
	}
	if (!error)
		error = wh_weights_open(engine, &options, out);
	free(engines);
	free(regions);
	free(slices);
	free(hosts);
	return error;
}

/* "cuda:3" and "cuda:3,..." are GPU 3. */
static int32_t location_gpu(const char *location)
{
	return strncmp(location, "cuda:", 5) ? WH_LAYOUT_NO_GPU :
					       (int32_t)strtol(location + 5, NULL, 10);
}

static int member_add(struct wh_layout *layout, const struct spread_message *offer, uint32_t index)
{
	const struct spread_item *item = &offer->items[index];
	struct wh_layout_engine engine = { .gpu = location_gpu(item->location) };
	struct wh_slice_desc slice = { .end = { offer->size } };
	struct wh_host host = wh_host_typical;
	int error = 0;

	if (offer_link(offer)) {
		host.nics = 1;
		host.nic_rate = (double)offer_link(offer) / 1e9;
	}
	if (!wh_layout_find_host(layout, item->host, strlen(item->host), &engine.host))
		error = wh_layout_add_host(layout, item->host, &host, &engine.host);
	if (!error && engine.gpu > 0)
		engine.nic = (uint32_t)engine.gpu % layout->hosts[engine.host].nics;
	if (!error)
		error = wh_layout_add_engine(layout, item->name, &engine, &slice.engine);
	if (!error)
		error = wh_layout_add_region(layout, slice.engine, REGION, offer->size,
					     &slice.region);
	return error ? error : wh_layout_add_slice(layout, &slice, NULL);
}

int spread_plan(const struct spread_message *offer, struct wh_layout *layouts[2],
		struct wh_plan **out)
{
	struct wh_plan_options options = { .chunk = offer->chunk, .piece = offer->piece };
	struct wh_tensor tensor = { .type = "u8", .item = 1, .dims = 1, .shape = { offer->size } };
	int error = 0;

	layouts[0] = wh_layout_new("sender");
	layouts[1] = wh_layout_new("receivers");
	if (!layouts[0] || !layouts[1])
		return wh_fail(ENOMEM, "no memory for the plan");
	for (int side = 0; !error && side < 2; side++)
		error = wh_layout_add_tensor(layouts[side], TENSOR, &tensor, NULL);
	for (uint32_t i = 0; !error && i < offer->count; i++)
		error = member_add(layouts[i > 0], offer, i);
	return error ? error : wh_plan_new(layouts[0], layouts[1], &options, out);
}
