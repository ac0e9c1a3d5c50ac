/* SPDX-License-Identifier: Apache-2.0 */
/* transport/self/self.c: the transport self, for two regions of this engine
 *
 * The copier moves the bytes; a peer that is this engine itself has no connection. Files have a
 * copier of their own, whose threads may wait for a disk: nobody else waits for them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"
#include "memory/region-table.h"
#include "memory/region.h"
#include "transport/copier-file.h"
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

static const struct wh_copier_ops self_copy_files = {
	.map = self_map,
	.verify = wh_copier_sync_files,
	.files = true,
	.own = true,
};

struct self {
	struct wh_copier memory, files;
};

struct self_peer {
	struct wh_copier_peer memory, files;
};

static int self_engine_open(struct wh_engine *engine, void **state)
{
	struct self *self = malloc(sizeof(*self));

	if (!self)
		return wh_fail(ENOMEM, "self: no memory");
	wh_copier_init(&self->memory, wh_engine_turns(engine),
		       (unsigned)wh_engine_config(engine)->number[WH_SETTING_COPY_THREADS],
		       (uint64_t)wh_engine_config(engine)->number[WH_SETTING_COPY_FROM]);
	wh_copier_init_files(&self->files, wh_engine_turns(engine),
			     (unsigned)wh_engine_config(engine)->number[WH_SETTING_FILE_THREADS]);
	*state = self;
	return 0;
}

static void self_engine_close(struct wh_engine *engine, void *state)
{
	struct self *self = state;

	(void)engine;
	wh_copier_destroy(&self->memory);
	wh_copier_destroy(&self->files);
	free(self);
}

static int self_peer_open(struct wh_peer *peer, void **state, char why[WH_REFUSAL])
{
	struct wh_engine *engine = wh_peer_engine(peer);
	struct self *self = wh_engine_transport(engine, WH_TRANSPORT_SELF);
	struct self_peer *self_peer;

	if (!wh_peer_is_self(peer)) {
		snprintf(why, WH_REFUSAL, "%.63s is another engine than %.63s", wh_peer_name(peer),
			 wh_engine_name(engine));
		return -ENXIO;
	}
	self_peer = calloc(1, sizeof(*self_peer));
	if (!self_peer) {
		snprintf(why, WH_REFUSAL, "no memory");
		return -ENOMEM;
	}
	self_peer->memory.copier = &self->memory;
	self_peer->memory.ops = &self_copy;
	self_peer->memory.at_once = (uint64_t)wh_engine_config(engine)->number[WH_SETTING_INLINE];
	self_peer->files.copier = &self->files;
	self_peer->files.ops = &self_copy_files;
	self_peer->memory.entries = self_peer->files.entries = wh_engine_regions(engine);
	*state = self_peer;
	return 0;
}

static void self_peer_close(struct wh_peer *peer, void *state)
{
	(void)peer;
	free(state);
}

static void self_peer_lost(struct wh_peer *peer, void *state, int error, const char *text)
{
	struct self_peer *self_peer = state;

	(void)peer;
	wh_copier_lost(&self_peer->memory, error, text);
	wh_copier_lost(&self_peer->files, error, text);
}

static int self_peer_again(struct wh_peer *peer, void *state, char why[WH_REFUSAL])
{
	struct self_peer *self_peer = state;

	(void)peer;
	(void)why;
	wh_copier_again(&self_peer->memory);
	wh_copier_again(&self_peer->files);
	return 0;
}

static bool self_can_copy(uint32_t kind)
{
	return wh_kind_on_host(kind) || kind == WH_MEMORY_FILE;
}

static int self_is_reachable(struct wh_peer *peer, void *state, const struct wh_region *local,
			     struct wh_region_entry *remote, uint32_t op, char why[WH_REFUSAL])
{
	(void)peer;
	(void)state;
	(void)op;
	if (self_can_copy(local->entry.kind) && self_can_copy(remote->kind))
		return 0;
	snprintf(why, WH_REFUSAL, "the CPU does not copy GPU memory");
	return -ENXIO;
}

static bool self_has_file(struct wh_peer *peer, const struct wh_fragment *fragment)
{
	struct wh_engine *engine = wh_peer_engine(peer);

	return wh_engine_file_threads(engine) &&
	       wh_fragment_has_file(fragment, wh_engine_regions(engine));
}

static void self_submit(struct wh_peer *peer, void *state, struct wh_fragment *fragment)
{
	struct self_peer *self_peer = state;

	wh_copier_job(fragment)->system =
		wh_engine_file_threads(wh_peer_engine(peer)) ?
			wh_fragment_file_system(fragment, self_peer->memory.entries) :
			NULL;
	wh_copier_submit(wh_copier_job(fragment)->system ? &self_peer->files : &self_peer->memory,
			 fragment);
}

static void self_progress(struct wh_peer *peer, void *state, struct wh_batch *batch,
			  int64_t deadline)
{
	struct self_peer *self_peer = state;

	(void)peer;
	wh_copier_progress(&self_peer->memory, batch, deadline);
}

static void self_cancel(struct wh_peer *peer, void *state, struct wh_fragment *fragment)
{
	struct self_peer *self_peer = state;

	(void)peer;
	wh_copier_cancel(wh_copier_job(fragment)->system ? &self_peer->files : &self_peer->memory,
			 fragment);
}

static void self_describe(struct wh_peer *peer, void *state, const struct wh_batch *batch,
			  struct wh_description *out)
{
	const struct wh_fragment *fragment = NULL;
	struct self_peer *self_peer = state;
	bool files = false;

	while (!files && (fragment = wh_batch_fragment(batch, WH_TRANSPORT_SELF, fragment)))
		files = self_has_file(peer, fragment);
	if (!files) {
		snprintf(out->how, sizeof(out->how), "memory copy");
		return;
	}
	wh_copier_describe_files(self_peer->files.copier, out->how, sizeof(out->how));
	wh_copier_describe_writes(&self_peer->files, fragment, out->memory, sizeof(out->memory));
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
