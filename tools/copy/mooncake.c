/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a Mooncake engine as an end of wherry copy: one connection for each slot. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "compat/mooncake/mooncake.h"
#include "compat/mooncake/store.h"
#include "copy/copy.h"
#include "engine.h"
#include "progress.h"
#include "serve/mooncake.h"
#include "util/clock.h"

#define CONNECT (5 * WH_SECOND)

struct mooncake_end {
	struct wh_mooncake_segment segment;
	struct wh_mooncake_connection lanes[COPY_SLOTS];
	uint64_t asked[COPY_SLOTS]; /* bytes of the request on each connection */
};

/* List "0x7f2a40000000 (65536 bytes, host), ...", cut off where it gets long. */
static void list_buffers(const struct wh_mooncake_segment *segment, char *out, size_t size)
{
	size_t used = 0;

	out[0] = '\0';
	for (size_t i = 0; i < segment->count; i++) {
		const struct wh_mooncake_buffer *buffer = &segment->buffers[i];

		if (used + sizeof(buffer->name) + 64 > size) {
			snprintf(out + used, size - used, ", ...");
			return;
		}
		used += (size_t)snprintf(
			out + used, size - used, "%s0x%" PRIx64 " (%" PRIu64 " bytes, %s)",
			used ? ", " : "", buffer->address, buffer->length, buffer->name);
	}
}

static int find_buffer(struct end *end)
{
	const struct wh_mooncake_segment *segment = &end->mooncake->segment;
	uint64_t address = end->mooncake_url.address;
	const struct wh_mooncake_buffer *buffer = wh_mooncake_segment_find(segment, address, 1);
	char list[512];

	if (buffer) {
		end->offset = address;
		end->length = buffer->length - (address - buffer->address);
		return 0;
	}
	list_buffers(segment, list, sizeof(list));
	if (!segment->count)
		return fail(ENOENT, "%s: this engine publishes nothing", end->name);
	if (!address)
		return fail(ENOENT, "%s: no address; it has %s", end->name, list);
	return fail(ENOENT, "%s: no memory that it publishes holds 0x%" PRIx64 "; it has %s",
		    end->name, address, list);
}

/* Ask what the engine publishes, and the host of its data port if that is not part of the
 * answer. */
static int mooncake_ask(struct end *end, const char *metadata, char *host, size_t size)
{
	struct wh_mooncake_segment *segment = &end->mooncake->segment;
	const char *engine = end->mooncake_url.engine;
	struct mooncake_store store = { .ops = NULL };
	struct wh_mooncake_endpoint endpoint;
	int code, error;

	if (!metadata) {
		error = wh_mooncake_endpoint_read(engine, &endpoint);
		if (!error)
			error = wh_mooncake_fetch(engine, CONNECT, segment);
		snprintf(host, size, "%s", endpoint.host);
		return error ? fail(error, "%s", wh_fail_text()) : 0;
	}
	code = mooncake_store_open(metadata, &store);
	if (code)
		return code;
	error = wh_mooncake_find(store.ops, store.store, engine, segment);
	mooncake_store_close(&store);
	snprintf(host, size, "%s", error ? "" : segment->host);
	return error ? fail(reach_error(error), "%s: %s", end->name, wh_fail_text()) : 0;
}

int mooncake_open(struct end *end, const char *metadata, bool quiet)
{
	struct mooncake_end *mooncake = calloc(1, sizeof(*mooncake));
	char label[80], host[WH_MOONCAKE_NAME_MAX] = "";
	struct progress progress;
	int code, error = 0;

	if (!mooncake)
		return fail(ENOMEM, "out of memory");
	end->mooncake = mooncake;
	snprintf(label, sizeof(label), "asking %.70s", end->mooncake_url.engine);
	progress_start_steps(&progress, label, 0, quiet);
	progress_watch(&progress);
	code = mooncake_ask(end, metadata, host, sizeof(host));
	progress_end(&progress);
	if (!code)
		code = find_buffer(end);
	if (code)
		return code;
	for (size_t i = 0; !error && i < COPY_SLOTS; i++)
		error = wh_mooncake_connection_open(&mooncake->lanes[i], &mooncake->segment, host,
						    engine_stall());
	if (error)
		return fail(error, "%s", wh_fail_text());
	end->route_count = 1;
	snprintf(end->routes[0].transport, sizeof(end->routes[0].transport), "mooncake");
	snprintf(end->routes[0].detail, sizeof(end->routes[0].detail), "tcp version %u",
		 mooncake->segment.version >= 2 ? 2 : 1);
	return 0;
}

void mooncake_close(struct end *end)
{
	if (!end->mooncake)
		return;
	for (size_t i = 0; i < COPY_SLOTS; i++)
		wh_mooncake_connection_close(&end->mooncake->lanes[i]);
	wh_mooncake_segment_free(&end->mooncake->segment);
	free(end->mooncake);
	end->mooncake = NULL;
}

void mooncake_submit(struct end *end, size_t slot, bool write, void *buffer, uint64_t position,
		     uint64_t length)
{
	end->mooncake->asked[slot] = length;
	wh_mooncake_connection_start(&end->mooncake->lanes[slot], write, buffer,
				     end->offset + position, length);
}

int mooncake_wait(struct end *end, size_t slot, int64_t timeout, bool count, bool *ended)
{
	struct wh_mooncake_connection *lane = &end->mooncake->lanes[slot];
	int error = wh_mooncake_connection_wait(lane, timeout, ended);

	if (!*ended)
		return 0;
	if (error)
		return fail(error, "%s: %s", end->name, lane->text);
	if (count) {
		end->routes[0].bytes += end->mooncake->asked[slot];
		end->routes[0].transfers++;
	}
	return 0;
}
