/* SPDX-License-Identifier: Apache-2.0 */
/* wherry ls: the regions that a peer lists, or the files in a directory that it serves. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <wherry/wherry.h>

#include "copy/tree.h"
#include "engine.h"
#include "memory.h"
#include "output.h"
#include "program.h"
#include "url.h"
#include "util/clock.h"
#include "util/text.h"

/* ---- regions --------------------------------------------------------------------------------- */

struct listing {
	struct wh_engine *engine;
	struct wh_peer *peer;
	struct wh_remote *regions;
	size_t count, room;
};

/* A served directory is found by a region, too. */
static const char *kind_name(const struct listing *listing, const struct wh_remote *region)
{
	uint64_t directory;
	uint32_t flags;

	return dir_head_is(listing->engine, listing->peer, region, &flags, &directory) ?
		       "directory" :
		       memory_kind_name(region->kind);
}

/* All pages. 0, or a negative errno with the library's text. */
static int listing_fetch(struct listing *listing)
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
		error = wh_peer_list(listing->peer, &cursor, listing->regions + listing->count,
				     &count, WH_ANSWER);
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
		       region->address, size, kind_name(listing, region),
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
						kind_name(listing, region), "read",
						(region->access & WH_ACCESS_READ) != 0, "write",
						(region->access & WH_ACCESS_WRITE) != 0));
	}
	json_object_set_new(object, "regions", regions);
	return output_print(object);
}

static int list_peer(struct wh_engine *engine, const struct url *url, bool json)
{
	struct listing listing = { .engine = engine };
	int code = EXIT_PASS, error = engine_connect(engine, url->engine, false, &listing.peer);

	if (error)
		return fail(error, "%s", wh_error_text());
	error = listing_fetch(&listing);
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
	return engine_undo(code, wh_peer_close(listing.peer), "cannot close the connection");
}

/* ---- files ----------------------------------------------------------------------------------- */

static void format_entry(const struct tree_entry *entry, char mode[8], char modified[32])
{
	time_t seconds = (time_t)(entry->mtime / WH_SECOND);
	struct tm utc;

	snprintf(mode, 8, "%04o", entry->mode & 07777);
	modified[0] = 0;
	if (gmtime_r(&seconds, &utc))
		strftime(modified, 32, "%Y-%m-%dT%H:%M:%SZ", &utc);
}

static void print_files(const struct tree_list *list)
{
	if (list->count)
		printf("%-4s %-14s %-20s %s\n", "MODE", "SIZE", "MODIFIED", "NAME");
	for (size_t i = 0; i < list->count; i++) {
		const struct tree_entry *entry = &list->entries[i];
		char mode[8], modified[32], size[32] = "-";

		format_entry(entry, mode, modified);
		if (!S_ISDIR(entry->mode))
			format_size(size, sizeof(size), entry->length);
		printf("%s %-14s %-20s ", mode, size, modified);
		wh_text_clean(entry->path); /* a name may hold any byte */
		printf("%s%s\n", entry->path, S_ISDIR(entry->mode) ? "/" : "");
	}
}

static int print_files_json(const struct tree_list *list)
{
	json_t *object = output_new(), *files = json_array();

	for (size_t i = 0; i < list->count; i++) {
		const struct tree_entry *entry = &list->entries[i];
		char mode[8], modified[32];

		format_entry(entry, mode, modified);
		json_array_append_new(files, json_pack("{s:o, s:s, s:I, s:s, s:s}", "name",
						       output_text(entry->path), "kind",
						       S_ISDIR(entry->mode) ? "directory" : "file",
						       "size_bytes", (json_int_t)entry->length,
						       "mode", mode, "modified", modified));
	}
	json_object_set_new(object, "files", files);
	return output_print(object);
}

/* What is at a path: a directory's content, or the file itself, by its last name. */
static int files_fetch(struct side *side, bool all, struct tree_list *list)
{
	struct tree_entry at;
	const char *name;
	int code = side_stat(side, &at);

	if (code)
		return code;
	if (!at.mode)
		return fail(ENOENT, "%s: there is no such file", side->name);
	if (!S_ISDIR(at.mode)) {
		struct dir_item about = { .mode = at.mode, .length = at.length, .mtime = at.mtime };

		name = strrchr(side->base, '/');
		name = name ? name + 1 : side->base;
		return tree_list_add(list, name, strlen(name), &about) ?
			       fail(ENOMEM, "out of memory") :
			       0;
	}
	return side_list(side, all, list);
}

static int list_files(struct wh_engine *engine, const struct arguments *arguments)
{
	struct tree_list list = { 0 };
	struct side side;
	int code = side_open(&side, engine, arguments->operands[0], false, false);

	if (!code)
		code = files_fetch(&side, argument(arguments, "recursive"), &list);
	if (!code && argument(arguments, "json"))
		code = print_files_json(&list);
	else if (!code)
		print_files(&list);
	tree_list_free(&list);
	return side_close(&side, code);
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Does the address go on behind HOST:PORT/? */
static bool names_directory(const char *text)
{
	const char *slash = url_is(text) ? strchr(text + strlen("wherry://"), '/') : NULL;

	return slash && slash[1];
}

static int ls_run(const struct arguments *arguments)
{
	static const struct engine_setup setup = { .listen = "none" };
	const char *address = arguments->operands[0], *wrong;
	bool files = names_directory(address);
	struct wh_engine *engine;
	struct url url;
	int code;

	wrong = files ? NULL : url_parse(address, &url);
	if (wrong)
		return usage_error("'%s' %s", address, wrong);
	if (!files && argument(arguments, "recursive"))
		return usage_error("--recursive is for directories: write wherry://HOST:PORT/NAME");
	code = engine_open(arguments, &setup, &engine);
	if (code)
		return code;
	return engine_close(engine, files ? list_files(engine, arguments) :
					    list_peer(engine, &url, argument(arguments, "json")));
}

static const struct command_option options[] = {
	{ .name = "json", .letter = 'j', .help = "as JSON" },
	{ .name = "recursive",
	  .letter = 'r',
	  .help = "all below a directory, not only what it holds" },
	ENGINE_OPTIONS,
	{ 0 },
};

const struct command command_ls = {
	.name = "ls",
	.usage = "wherry://HOST:PORT[/NAME[/PATH]]",
	.summary = "List the regions of a peer, or the files that it serves",
	.details = "Prints the id, address, size and kind of memory of each region that the peer "
		   "lists, what this engine may do with it (r: read, w: write), and its name. An "
		   "engine lists only regions that grant it (WH_ACCESS_LIST): those of wherry "
		   "serve do. Others can be used by who knows their name, id, key or address.\n"
		   "\n"
		   "With the NAME of a directory (wherry serve --dir) it prints what the directory "
		   "holds, or the one file at PATH: permission bits, size, when it was last "
		   "changed, and name.",
	.examples = "wherry ls wherry://127.0.0.1:7000\n"
		    "wherry ls wherry://node7:7000 --json | jq -r '.regions[].name'\n"
		    "wherry ls wherry://node7:7000/models/llama\n",
	.options = options,
	.least = 1,
	.most = 1,
	.run = ls_run,
};
