/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What NICs have written to a GPU's memory becomes visible to the GPU before the piece is done. A
 * NIC acknowledges a write once it is on its way over PCIe; some GPUs take what came that way in
 * order with what tells them of it, others have to be made to (cuFlushGPUDirectRDMAWrites). After a
 * read of ours that is our GPU's affair, and done here and now; after a write it is the owner's,
 * who is asked to.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"
#include "transport/rdma/rdma.h"
#include "wire/bytes.h"

#define OPTION_HOST 1 /* of the attribute: cuFlushGPUDirectRDMAWrites() does it */

/* A piece that is done when the owner has answered. */
struct flush {
	struct wh_list link; /* rdma_peer.flushes */
	struct wh_fragment *fragment;
	uint32_t first, last; /* numbers of what was asked */
	uint32_t left;
};

int rdma_flush_policy(const struct wh_cuda *cuda, const struct wh_cuda_device *device)
{
	if (device->writes_ordering >= CUDA_FLUSH_OWNER)
		return 0;
	return device->flush_options & OPTION_HOST && cuda->cuFlushGPUDirectRDMAWrites ?
		       1 :
		       -EOPNOTSUPP;
}

int rdma_flush(const struct wh_region *region)
{
	const struct wh_segment *first = &region->registration->segments[0];
	struct wh_cuda *cuda = region->engine->cuda;
	struct wh_cuda_scope scope;
	int error = wh_cuda_enter_context(cuda, first->device, first->context, &scope);

	if (error)
		return error;
	error = wh_cuda_check(
		cuda, cuda->cuFlushGPUDirectRDMAWrites(CUDA_FLUSH_TARGET_CONTEXT, CUDA_FLUSH_OWNER),
		"cuFlushGPUDirectRDMAWrites", "%s", first->device->text);
	wh_cuda_leave(&scope);
	return error;
}

/* ---- our own --------------------------------------------------------------------------------- */

static bool needs_flush(const struct wh_region *region)
{
	return !wh_kind_on_host(region->entry.kind) && region->registration->device &&
	       rdma_flush_policy(region->engine->cuda, region->registration->device) > 0;
}

static void flush_ours(struct wh_fragment *fragment)
{
	const struct wh_cuda_device *before = NULL;
	const struct wh_region *region, *last = NULL;
	uint64_t remote;

	for (uint64_t i = fragment->first; i < fragment->first + fragment->count; i++) {
		region = rdma_local_of(fragment, i, &remote);
		if (region == last || !needs_flush(region) ||
		    region->registration->device == before)
			continue;
		last = region;
		before = region->registration->device;
		if (rdma_flush(region)) {
			wh_fragment_fail(fragment, UINT64_MAX, -EIO, "%s", wh_error_text());
			return;
		}
	}
}

/* ---- the owner's ----------------------------------------------------------------------------- */

/* Does the owner have to flush this region? */
static bool theirs(struct wh_peer *peer, uint64_t id)
{
	struct wh_region_entry *entry = wh_region_entry_enter(&peer->regions, id);
	bool flush = false;

	if (!entry)
		return false;
	/* Whichever of its NICs wrote: it is the GPU's property. */
	for (const struct rdma_keys *keys = atomic_load_explicit(
		     &wh_container(entry, struct wh_remote_region, entry)->rdma,
		     memory_order_acquire);
	     keys && !flush; keys = keys->next)
		flush = !keys->error && keys->flush;
	wh_region_entry_leave(entry);
	return flush;
}

static int ask(struct rdma_peer *rdma, uint32_t number, uint64_t id)
{
	uint8_t bytes[WH_RDMA_FLUSH_SIZE];

	wh_put64(wh_put32(bytes, number), id);
	return wh_control_send(&rdma->peer->control, WH_FRAME_RDMA_FLUSH, 0, bytes, sizeof(bytes));
}

/* Ask for all regions of the piece. True: it is done when the answers have come. */
static bool flush_theirs(struct rdma_peer *rdma, struct wh_fragment *fragment)
{
	struct flush *flush = NULL;
	uint64_t id, last = 0;
	bool sent = true;

	pthread_mutex_lock(&rdma->lock);
	for (uint64_t i = fragment->first; sent && i < fragment->first + fragment->count;
	     i++, last = id) {
		rdma_local_of(fragment, i, &id);
		if (id == last || !theirs(rdma->peer, id))
			continue;
		if (!flush) {
			flush = calloc(1, sizeof(*flush));
			sent = flush && !rdma_lost(rdma);
			if (flush)
				flush->first = rdma->flush_number;
		}
		sent = sent && !ask(rdma, rdma->flush_number, id);
		if (!sent)
			break;
		flush->last = rdma->flush_number++;
		flush->left++;
	}
	if (sent && flush) {
		flush->fragment = fragment;
		wh_list_append(&rdma->flushes, &flush->link);
	}
	pthread_mutex_unlock(&rdma->lock);
	if (!sent) {
		wh_fragment_fail(
			fragment, UINT64_MAX, flush ? -ECONNRESET : -ENOMEM,
			"the owner could not be asked to flush what was written to its GPU: %s",
			flush ? "the peer is lost" : "no memory");
		free(flush);
	}
	return sent && flush;
}

void rdma_fragment_moved(struct wh_fragment *fragment)
{
	struct wh_peer *peer = fragment->batch->peer;
	struct rdma_peer *rdma = peer->transport[WH_TRANSPORT_RDMA];

	/* A part of a piece that is staged has only pinned memory on our side, and waits for the
	 * whole on the other. */
	if (!fragment->whole && !atomic_load(&fragment->failed)) {
		if (fragment->op == WH_READ && atomic_load(&rdma->rdma->flushes))
			flush_ours(fragment);
		else if (fragment->op == WH_WRITE && atomic_load(&rdma->flushing) &&
			 flush_theirs(rdma, fragment))
			return;
	}
	wh_fragment_done(fragment);
}

int rdma_flushed(struct rdma_peer *rdma, const struct wh_rdma_flushed *flushed)
{
	struct wh_fragment *done = NULL;

	pthread_mutex_lock(&rdma->lock);
	for (struct wh_list *l = rdma->flushes.next; l != &rdma->flushes; l = l->next) {
		struct flush *flush = wh_container(l, struct flush, link);

		if (flushed->number - flush->first > flush->last - flush->first)
			continue;
		if (flushed->error)
			wh_fragment_fail(
				flush->fragment, UINT64_MAX, flushed->error,
				"%.60s could not flush what was written to its GPU: %.160s",
				rdma->peer->welcome.name, flushed->text);
		if (!--flush->left) {
			done = flush->fragment;
			wh_list_remove(&flush->link);
			free(flush);
		}
		break;
	}
	pthread_mutex_unlock(&rdma->lock);
	if (done)
		wh_fragment_done(done);
	return 0;
}

/* The next one of the batch, or of any. */
static struct flush *take(struct rdma_peer *rdma, const struct wh_batch *batch)
{
	struct flush *found = NULL;

	pthread_mutex_lock(&rdma->lock);
	for (struct wh_list *l = rdma->flushes.next; !found && l != &rdma->flushes; l = l->next) {
		struct flush *flush = wh_container(l, struct flush, link);

		if (!batch || flush->fragment->batch == batch)
			found = flush;
	}
	if (found)
		wh_list_remove(&found->link);
	pthread_mutex_unlock(&rdma->lock);
	return found;
}

void rdma_flushes_end(struct rdma_peer *rdma, const struct wh_batch *batch, int error,
		      const char *text)
{
	struct flush *flush;

	while ((flush = take(rdma, batch))) {
		wh_fragment_fail(flush->fragment, UINT64_MAX, error, "%s", text);
		wh_fragment_done(flush->fragment);
		free(flush);
	}
}

/* ---- telling --------------------------------------------------------------------------------- */

/* How the NICs of the lines reach the first GPU memory of a side, ours or theirs. */
struct told {
	bool known;
	unsigned count;
	struct {
		bool used; /* for some of this batch */
		enum wh_rdma_method method; /* WH_RDMA_STAGED also: not at all */
		const char *writes;
		char nic[WH_NAME_MAX];
		char why[WH_REFUSAL]; /* the way is not a better one */
	} nics[RDMA_ENDPOINTS];
};

/* The next one, unless it has been told of another line. */
static void note(struct told *told, const char *rail, bool used, enum wh_rdma_method method,
		 const char *writes, const char *why)
{
	size_t length = strcspn(rail, ":");
	unsigned i = 0;

	while (i < told->count &&
	       (strncmp(told->nics[i].nic, rail, length) || told->nics[i].nic[length]))
		i++;
	if (i < told->count)
		told->nics[i].used |= used;
	if (i < told->count || i == RDMA_ENDPOINTS)
		return;
	told->known = true;
	told->nics[i].used = used;
	told->nics[i].method = method;
	told->nics[i].writes = writes;
	snprintf(told->nics[i].nic, sizeof(told->nics[i].nic), "%.*s", (int)length, rail);
	memcpy(told->nics[i].why, why, sizeof(told->nics[i].why));
	told->count++;
}

/* The one that is told of first: one that has been used, or would be. */
static unsigned best_of(const struct told *told)
{
	for (unsigned i = 0; i < told->count; i++)
		if (told->nics[i].used)
			return i;
	for (unsigned i = 0; i < told->count; i++)
		if (told->nics[i].method != WH_RDMA_STAGED)
			return i;
	return 0;
}

/* Inside the region, which may be going meanwhile. Under rdma_peer.lock, as the next. */
static void look_at_ours(struct told *told, const struct rdma_peer *rdma,
			 const struct wh_batch *batch, uint64_t id)
{
	struct wh_region_entry *entry =
		told->known ? NULL : wh_region_entry_enter(&rdma->peer->engine->regions, id);
	const struct wh_region *local = wh_container(entry, struct wh_region, entry);

	for (unsigned i = 0; entry && !wh_kind_on_host(entry->kind) && i < rdma->endpoint_count;
	     i++) {
		const struct rdma_endpoint *endpoint = rdma->endpoints[i];
		const struct rdma_memory *memory = rdma_memory_of(local, endpoint->rail->nic);

		if (memory && endpoint->path[0])
			note(told, endpoint->rail->name, atomic_load(&batch->railed[i]),
			     memory->mrs ? memory->mrs->method : WH_RDMA_STAGED,
			     !memory->mrs       ? "" :
			     needs_flush(local) ? ", flushed" :
						  ", ordered",
			     memory->why);
	}
	if (entry)
		wh_region_entry_leave(entry);
}

static void look_at_theirs(struct told *told, const struct rdma_peer *rdma,
			   const struct wh_batch *batch, uint64_t id)
{
	struct wh_region_entry *entry =
		told->known ? NULL : wh_region_entry_enter(&rdma->peer->regions, id);

	for (unsigned i = 0; entry && !wh_kind_on_host(entry->kind) && i < rdma->endpoint_count;
	     i++) {
		const struct rdma_endpoint *endpoint = rdma->endpoints[i];
		const struct rdma_keys *keys = rdma_keys_of(
			wh_container(entry, struct wh_remote_region, entry), endpoint->nic);

		if (keys && endpoint->path[0])
			note(told, endpoint->theirs.name, atomic_load(&batch->railed[i]),
			     keys->error ? WH_RDMA_STAGED : keys->method,
			     keys->error ? "" :
			     keys->flush ? ", flushed" :
					   ", ordered",
			     keys->why);
	}
	/* What none of them reaches, and is not staged, has gone another way. */
	if (told->known && told->nics[best_of(told)].method == WH_RDMA_STAGED &&
	    !told->nics[best_of(told)].used)
		*told = (struct told){ 0 };
	if (entry)
		wh_region_entry_leave(entry);
}

static void look(struct rdma_peer *rdma, const struct wh_batch *batch, struct told *ours,
		 struct told *theirs)
{
	*ours = *theirs = (struct told){ 0 };
	pthread_mutex_lock(&rdma->lock);
	for (size_t i = 0; i < batch->item_count && !(ours->known && theirs->known); i++) {
		look_at_ours(ours, rdma, batch, batch->items[i].local_id);
		look_at_theirs(theirs, rdma, batch, batch->items[i].remote);
	}
	for (size_t i = 0; i < batch->blocks_count; i++) {
		const struct wh_blocks *blocks = batch->blocks[i];

		for (uint64_t b = 0; b < blocks->base_count && !(ours->known && theirs->known);
		     b++) {
			look_at_ours(ours, rdma, batch, blocks->bases[b].local_id);
			look_at_theirs(theirs, rdma, batch, blocks->bases[b].remote);
		}
	}
	pthread_mutex_unlock(&rdma->lock);
}

static size_t add(const struct told *told, const char *whose, char *line, size_t size)
{
	unsigned best = best_of(told);
	size_t used;

	if (!told->known)
		return 0;
	used = (size_t)snprintf(line, size, "%s GPU memory: %s%s%s%s%s", whose,
				rdma_method_name(told->nics[best].method), told->nics[best].writes,
				*told->nics[best].why ? " (" : "", told->nics[best].why,
				*told->nics[best].why ? ")" : "");
	/* Others, where they differ. */
	for (unsigned i = 0; i < told->count && used < size; i++) {
		if (told->nics[i].method == told->nics[best].method)
			continue;
		used += (size_t)snprintf(line + used, size - used, ", %s: %s%s%s%s",
					 told->nics[i].nic,
					 told->nics[i].method == WH_RDMA_STAGED ?
						 "not used" :
						 rdma_method_name(told->nics[i].method),
					 *told->nics[i].why ? " (" : "", told->nics[i].why,
					 *told->nics[i].why ? ")" : "");
	}
	return used < size ? used : size - 1;
}

bool rdma_describe(struct wh_peer *peer, void *state, const struct wh_batch *batch, char *line,
		   size_t size)
{
	struct told ours, theirs;
	size_t at;

	(void)peer;
	look(state, batch, &ours, &theirs);
	at = add(&ours, "rdma, our", line, size);
	add(&theirs, at ? "; their" : "rdma, their", line + at, size - at);
	return ours.known || theirs.known;
}

void rdma_describe_methods(struct rdma_peer *rdma, const struct wh_batch *batch, char *out,
			   size_t size)
{
	enum wh_rdma_method here, there;
	struct told ours, theirs;
	bool both;

	look(rdma, batch, &ours, &theirs);
	here = ours.nics[best_of(&ours)].method;
	there = theirs.nics[best_of(&theirs)].method;
	both = ours.known && theirs.known && here != there;
	if (ours.known || theirs.known)
		snprintf(out, size, ", %s%s%s", rdma_method_name(ours.known ? here : there),
			 both ? "+" : "", both ? rdma_method_name(there) : "");
	else
		*out = 0;
}
