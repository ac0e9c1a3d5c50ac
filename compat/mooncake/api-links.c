/* SPDX-License-Identifier: Apache-2.0 */
/* showLinks(): how each segment is reached, and the bytes that each transport moved. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "compat/mooncake/api.h"

static void links_put_route(json_t *routes, const char *name, uint64_t read, uint64_t written)
{
	if (read || written)
		json_array_append_new(routes, json_pack("{s:s, s:I, s:I}", "transport", name,
							"read_bytes", (json_int_t)read,
							"written_bytes", (json_int_t)written));
}

/* Describe a link as JSON, which links_text() also prints from. */
static json_t *links_describe(struct te_link *link, size_t id)
{
	json_t *routes = json_array(), *object;
	struct wh_counters counters = { .size = sizeof(counters) };
	uint64_t read, written;
	char why[WH_TEXT_MAX];

	pthread_mutex_lock(&link->engine->lock);
	read = link->read;
	written = link->written;
	snprintf(why, sizeof(why), "%s", link->why);
	pthread_mutex_unlock(&link->engine->lock);
	links_put_route(routes, "mooncake", read, written);
	if (link->peer && !wh_peer_counters(link->peer, &counters))
		for (uint32_t i = 0; i < counters.transports; i++)
			links_put_route(routes, counters.transport[i].transport,
					counters.transport[i].read_bytes,
					counters.transport[i].written_bytes);
	object = json_pack("{s:s, s:I, s:s, s:o}", "name", link->name, "id", (json_int_t)id, "by",
			   link->peer ? "wherry" : "mooncake", "routes", routes);
	if (*why)
		json_object_set_new(object, "why", json_string(why));
	return object;
}

static json_t *links_describe_all(struct te_engine *engine)
{
	json_t *links = json_array();

	for (size_t i = 0;; i++) {
		struct te_link *link = NULL;
		bool more;

		pthread_mutex_lock(&engine->lock);
		more = i < engine->segment_count;
		if (more)
			link = engine->segments[i]->link;
		if (link)
			link->references++;
		pthread_mutex_unlock(&engine->lock);
		if (!more)
			return links;
		if (link)
			json_array_append_new(links, links_describe(link, i));
		te_link_put(link);
	}
}

static const char *json_text(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text ? text : "";
}

static json_int_t json_number(const json_t *object, const char *key)
{
	return json_integer_value(json_object_get(object, key));
}

static void links_put_text(FILE *stream, const json_t *route, bool first)
{
	fprintf(stream,
		"%s %s: %" JSON_INTEGER_FORMAT " bytes read, %" JSON_INTEGER_FORMAT " written",
		first ? ";" : ",", json_text(route, "transport"), json_number(route, "read_bytes"),
		json_number(route, "written_bytes"));
}

/* One line of text for each link. */
static char *links_text(const json_t *links)
{
	const json_t *link, *routes;
	char *text = NULL;
	size_t size, i;
	FILE *stream = open_memstream(&text, &size);

	if (!stream)
		return NULL;
	json_array_foreach(links, i, link)
	{
		fprintf(stream, "%" JSON_INTEGER_FORMAT " %s by %s", json_number(link, "id"),
			json_text(link, "name"),
			!strcmp(json_text(link, "by"), "wherry") ? "Wherry's routes" :
								   "Mooncake's TCP");
		routes = json_object_get(link, "routes");
		for (size_t j = 0; j < json_array_size(routes); j++)
			links_put_text(stream, json_array_get(routes, j), j == 0);
		fprintf(stream, "%s%s%s\n", *json_text(link, "why") ? " (" : "",
			json_text(link, "why"), *json_text(link, "why") ? ")" : "");
	}
	return fclose(stream) ? NULL : text;
}

int showLinks(transfer_engine_t handle, char *buf_out, size_t buf_len, int json)
{
	struct te_engine *engine = handle;
	json_t *links, *object;
	char *text;

	if (!engine || !buf_out || !buf_len)
		return te_fail(TE_ARGUMENT, "showLinks: %s",
			       !engine  ? "engine is NULL" :
			       !buf_out ? "buf_out is NULL" :
					  "buf_len is 0");
	if (te_forked(engine, "showLinks"))
		return TE_ARGUMENT;
	links = links_describe_all(engine);
	if (json) {
		object = json_pack("{s:i, s:s, s:O}", "schema", 1, "name", engine->name, "segments",
				   links);
		text = json_dumps(object, JSON_COMPACT);
		json_decref(object);
	} else {
		text = links_text(links);
	}
	json_decref(links);
	if (!text)
		return te_fail(TE_MEMORY, "showLinks: no memory, or a name that is not UTF-8");
	snprintf(buf_out, buf_len, "%s", text);
	free(text);
	return 0;
}
