/* SPDX-License-Identifier: Apache-2.0 */
/* A region of a peer as an end of wherry copy. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "copy/copy.h"
#include "copy/tree.h"
#include "engine.h"

/* List "host, host1, cache", cut off where it gets long. */
static void list_regions(struct wh_peer *peer, char *out, size_t size)
{
	struct wh_remote page[32];
	uint64_t cursor = 0;
	size_t used = 0, count;

	out[0] = '\0';
	do {
		count = sizeof(page) / sizeof(page[0]);
		if (wh_peer_list(peer, &cursor, page, &count, WH_ANSWER))
			return;
		for (size_t i = 0; i < count; i++) {
			if (!page[i].name[0])
				continue;
			if (used + strlen(page[i].name) + 8 > size) {
				snprintf(out + used, size - used, ", ...");
				return;
			}
			used += (size_t)snprintf(out + used, size - used, "%s%s", used ? ", " : "",
						 page[i].name);
		}
	} while (cursor);
}

static int no_region(struct end *end)
{
	char names[256];

	list_regions(end->peer, names, sizeof(names));
	if (!*names)
		return fail(ENOENT, "%s: no region '%s', and the peer lists none with a name",
			    end->url.engine, end->url.region);
	return fail(ENOENT, "%s: no region '%s'; the peer lists %s", end->url.engine,
		    end->url.region, names);
}

int remote_open(struct end *end, struct wh_engine *engine, uint32_t access, bool quiet)
{
	uint64_t directory;
	uint32_t flags;
	int error;

	error = engine_connect(engine, end->url.engine, quiet, &end->peer);
	if (error)
		return fail(error, "%s", wh_error_text());
	error = wh_peer_find(end->peer, end->url.region, WH_ANSWER, &end->remote);
	if (error == -ENOENT)
		return no_region(end);
	if (error)
		return fail(error, "%s: %s", end->url.engine, wh_error_text());
	if (dir_head_is(engine, end->peer, &end->remote, &flags, &directory))
		return fail(EISDIR, "%s is a directory: name a file in it, or use --recursive",
			    end->name);
	if ((end->remote.access & access) != access)
		return fail(EACCES, "%s: the region may not be %s", end->name,
			    access & ~end->remote.access & WH_ACCESS_WRITE ? "written" : "read");
	if (end->url.offset >= end->remote.length)
		return fail(ERANGE, "%s: the region has %llu bytes", end->name,
			    (unsigned long long)end->remote.length);
	end->offset = end->url.offset;
	end->length = end->remote.length - end->url.offset;
	return 0;
}

int remote_close(struct end *end, int code)
{
	int error = end->peer ? wh_peer_close(end->peer) : 0;

	end->peer = NULL;
	return engine_undo(code, error, "cannot close the connection");
}

static struct wh_route *find_route(struct end *end, const struct wh_route *route)
{
	for (size_t i = 0; i < end->route_count; i++)
		if (strcmp(end->routes[i].transport, route->transport) == 0)
			return &end->routes[i];
	if (end->route_count == COPY_ROUTES)
		return NULL;
	end->routes[end->route_count] = *route;
	end->routes[end->route_count].bytes = 0;
	end->routes[end->route_count].transfers = 0;
	return &end->routes[end->route_count++];
}

void remote_count(struct end *end, struct wh_batch *batch)
{
	struct wh_route routes[COPY_ROUTES];
	size_t count = COPY_ROUTES;

	if (wh_batch_routes(batch, routes, &count))
		return;
	for (size_t i = 0; i < count; i++) {
		struct wh_route *sum = find_route(end, &routes[i]);

		if (!sum)
			continue;
		if (routes[i].bytes) /* "4 connections" may have been one at the start */
			memcpy(sum->detail, routes[i].detail, sizeof(sum->detail));
		sum->bytes += routes[i].bytes;
		sum->transfers += routes[i].transfers;
		if (routes[i].refused[0]) {
			memcpy(sum->refused, routes[i].refused, sizeof(sum->refused));
			sum->inapplicable = routes[i].inapplicable;
		}
	}
}
