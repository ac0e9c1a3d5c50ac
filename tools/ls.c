/* SPDX-License-Identifier: Apache-2.0 */
/* wherry ls: the regions that a peer lists. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <wherry/wherry.h>

#include "engine.h"
#include "memory.h"
#include "output.h"
#include "program.h"
#include "url.h"

struct listing {
	struct wh_remote *regions;
	size_t count, room;
};

/* All pages. 0, or a negative errno with the library's text. */
static int listing_fetch(struct listing *listing, struct wh_peer *peer)
{
	uint64_t cursor = 0;
	size_t count;
	int error;

	do {
		if (listing->room - listing->count < 256) {
			size_t room = 2 * listing->room + 256;
			struct wh_remote *grown = realloc(listing->regions, room * sizeof(*grown));

			if (!grown)
				return -ENOMEM;
			listing->regions = grown;
			listing->room = room;
		}
		count = listing->room - listing->count;
		error = wh_peer_list(peer, &cursor, listing->regions + listing->count, &count,
				     WH_ANSWER);
		if (!error)
			listing->count += count;
	} while (!error && cursor);
	return error;
}

static void print_text(const struct listing *listing)
{
	if (listing->count)
		printf("%-18s %-18s %-14s %-9s %-5s %s\n", "ID", "ADDRESS", "SIZE", "MEMORY", "MAY",
		       "NAME");
	for (size_t i = 0; i < listing->count; i++) {
		const struct wh_remote *region = &listing->regions[i];
		char size[32];

		format_size(size, sizeof(size), region->length);
		printf("0x%016" PRIx64 " 0x%016" PRIx64 " %-14s %-9s %c%-4c %s\n", region->id,
		       region->address, size, memory_kind_name(region->kind),
		       region->access & WH_ACCESS_READ ? 'r' : '-',
		       region->access & WH_ACCESS_WRITE ? 'w' : '-', region->name);
	}
}

static int print_json(const struct listing *listing)
{
	json_t *object = output_new(), *regions = json_array();

	for (size_t i = 0; i < listing->count; i++) {
		const struct wh_remote *region = &listing->regions[i];
		char id[24], address[24];

		/* Ids use all 64 bits, which a JSON number may not preserve. */
		snprintf(id, sizeof(id), "0x%016" PRIx64, region->id);
		snprintf(address, sizeof(address), "0x%016" PRIx64, region->address);
		json_array_append_new(regions,
				      json_pack("{s:s, s:s, s:s, s:I, s:s, s:b, s:b}", "id", id,
						"name", region->name, "address", address,
						"size_bytes", (json_int_t)region->length, "kind",
						memory_kind_name(region->kind), "read",
						(region->access & WH_ACCESS_READ) != 0, "write",
						(region->access & WH_ACCESS_WRITE) != 0));
	}
	json_object_set_new(object, "regions", regions);
	return output_print(object);
}

static int list_peer(struct wh_engine *engine, const struct url *url, bool json)
{
	struct listing listing = { 0 };
	struct wh_peer *peer = NULL;
	int code = EXIT_PASS, error = engine_connect(engine, url->engine, false, &peer);

	if (error)
		return fail(error, "%s", wh_error_text());
	error = listing_fetch(&listing, peer);
	if (error)
		code = engine_fail(error, url->engine);
	else if (json)
		code = print_json(&listing);
	else if (!listing.count)
		code = fail(ENOENT,
			    "%s lists no regions: it has none, or does not grant their "
			    "listing (WH_ACCESS_LIST)",
			    url->engine);
	else
		print_text(&listing);
	free(listing.regions);
	return engine_undo(code, wh_peer_close(peer), "cannot close the connection");
}

static int ls_run(const struct arguments *arguments)
{
	static const struct engine_setup setup = { .listen = "none" };
	bool json = argument(arguments, "json");
	struct wh_engine *engine;
	const char *wrong;
	struct url url;
	int code;

	wrong = url_parse(arguments->operands[0], &url);
	if (wrong)
		return usage_error("'%s' %s", arguments->operands[0], wrong);
	if (url.region[0] || url.offset)
		return usage_error("'%s': names a region; ls lists those of an engine",
				   arguments->operands[0]);
	code = engine_open(arguments, &setup, &engine);
	if (code)
		return code;
	return engine_close(engine, list_peer(engine, &url, json));
}

static const struct command_option options[] = {
	{ .name = "json", .letter = 'j', .help = "as JSON" },
	ENGINE_OPTIONS,
	{ 0 },
};

const struct command command_ls = {
	.name = "ls",
	.usage = "wherry://HOST:PORT",
	.summary = "List the regions of a peer",
	.details = "Prints the id, address, size and kind of memory of each region that the peer "
		   "lists, what this engine may do with it (r: read, w: write), and its name. An "
		   "engine lists only regions that grant it (WH_ACCESS_LIST): those of wherry "
		   "serve do. Others can be used by who knows their name, id, key or address.",
	.examples = "wherry ls wherry://127.0.0.1:7000\n"
		    "wherry ls wherry://node7:7000 --json | jq -r '.regions[].name'\n",
	.options = options,
	.least = 1,
	.most = 1,
	.run = ls_run,
};
