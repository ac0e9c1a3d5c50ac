/* SPDX-License-Identifier: Apache-2.0 */
/* transport/self/self.c: the transport self, for two regions of this engine
 *
 * The copier moves the bytes; a peer that is this engine itself has no connection. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"
#include "memory/region-table.h"
#include "memory/region.h"
#include "transport/copier.h"
#include "transport/core.h"
#include "transport/fragment.h"
#include "transport/transport.h"
#include "util/config.h"
#include "util/error.h"

static char *self_map(const struct wh_region_entry *entry, uint32_t op)
{
	(void)op;
	return (char *)(uintptr_t)entry->address;
}

static const struct wh_copier_ops self_copy = {
	.map = self_map,
	.overlaps = true,
	.own = true,
};

static int self_engine_open(struct wh_engine *engine, void **state)
{
	struct wh_copier *copier = malloc(sizeof(*copier));

	if (!copier)
		return wh_fail(ENOMEM, "self: no memory");
	wh_copier_init(copier, wh_engine_turns(engine));
	*state = copier;
	return 0;
}

static void self_engine_close(struct wh_engine *engine, void *state)
{
	(void)engine;
	wh_copier_destroy(state);
	free(state);
}

static int self_peer_open(struct wh_peer *peer, void **state, char why[WH_REFUSAL])
{
	struct wh_engine *engine = wh_peer_engine(peer);
	struct wh_copier_peer *copier_peer;

	if (!wh_peer_is_self(peer)) {
		snprintf(why, WH_REFUSAL, "%.63s is another engine than %.63s", wh_peer_name(peer),
			 wh_engine_name(engine));
		return -ENXIO;
	}
	copier_peer = calloc(1, sizeof(*copier_peer));
	if (!copier_peer) {
		snprintf(why, WH_REFUSAL, "no memory");
		return -ENOMEM;
	}
	copier_peer->copier = wh_engine_transport(engine, WH_TRANSPORT_SELF);
	copier_peer->entries = wh_engine_regions(engine);
	copier_peer->ops = &self_copy;
	copier_peer->at_once = (uint64_t)wh_engine_config(engine)->number[WH_SETTING_INLINE];
	*state = copier_peer;
	return 0;
}

static void self_peer_close(struct wh_peer *peer, void *state)
{
	(void)peer;
	free(state);
}

static void self_peer_lost(struct wh_peer *peer, void *state, int error, const char *text)
{
	(void)peer;
	wh_copier_lost(state, error, text);
}

static int self_peer_again(struct wh_peer *peer, void *state, char why[WH_REFUSAL])
{
	(void)peer;
	(void)why;
	wh_copier_again(state);
	return 0;
}

static int self_is_reachable(struct wh_peer *peer, void *state, const struct wh_region *local,
			     struct wh_region_entry *remote, uint32_t op, char why[WH_REFUSAL])
{
	(void)peer;
	(void)state;
	(void)op;
	if (wh_kind_on_host(local->entry.kind) && wh_kind_on_host(remote->kind))
		return 0;
	snprintf(why, WH_REFUSAL, "the CPU does not copy GPU memory");
	return -ENXIO;
}

static void self_submit(struct wh_peer *peer, void *state, struct wh_fragment *fragment)
{
	(void)peer;
	wh_copier_submit(state, fragment);
}

static void self_progress(struct wh_peer *peer, void *state, struct wh_batch *batch,
			  int64_t deadline)
{
	(void)peer;
	wh_copier_progress(state, batch, deadline);
}

static void self_cancel(struct wh_peer *peer, void *state, struct wh_fragment *fragment)
{
	(void)peer;
	wh_copier_cancel(state, fragment);
}

static void self_describe(struct wh_peer *peer, void *state, const struct wh_batch *batch,
			  struct wh_description *out)
{
	(void)peer;
	(void)batch;
	(void)state;
	snprintf(out->how, sizeof(out->how), "memory copy");
}

const struct wh_transport wh_transport_self = {
	.name = "self",
	.capabilities = WH_CAN_READ | WH_CAN_WRITE | WH_CAN_PROGRESS,
	.engine_open = self_engine_open,
	.engine_close = self_engine_close,
	.peer_open = self_peer_open,
	.peer_close = self_peer_close,
	.peer_lost = self_peer_lost,
	.peer_again = self_peer_again,
	.is_reachable = self_is_reachable,
	.submit = self_submit,
	.progress = self_progress,
	.cancel = self_cancel,
	.describe = self_describe,
};
