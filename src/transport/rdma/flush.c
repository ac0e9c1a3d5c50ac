/* SPDX-License-Identifier: Apache-2.0 */
/* rdma: make what NICs have written to GPU memory visible to the GPU before a fragment is done.
 *
 * A NIC acknowledges a write once it is in flight over PCIe. Some GPUs order such writes before
 * what signals them; others need a flush (cuFlushGPUDirectRDMAWrites). After a read of ours, we
 * flush our GPU; after a write, the owner is asked to, by FLUSH. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"
#include "transport/rdma/flow.h"
#include "transport/rdma/rdma.h"
#include "wire/bytes.h"

#define OPTION_HOST 1 /* bit of flush_options: cuFlushGPUDirectRDMAWrites() is available */

/* A fragment that waits for FLUSHED. */
struct flush {
	struct wh_list link; /* rdma_peer.flushes */
	struct wh_fragment *fragment;
	uint32_t first, last; /* numbers of its FLUSH frames */
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

int rdma_flush_region(const struct wh_region *region)
{
	const struct wh_segment *first = &region->registration->segments[0];
	struct wh_cuda *cuda = wh_engine_cuda(region->engine);
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

/* ---- local memory ---------------------------------------------------------------------------- */

bool rdma_region_needs_flush(const struct wh_region *region)
{
	return !wh_kind_on_host(region->entry.kind) && region->registration->device &&
	       rdma_flush_policy(wh_engine_cuda(region->engine), region->registration->device) > 0;
}

static void flush_local(struct wh_fragment *fragment)
{
	const struct wh_cuda_device *before = NULL;
	const struct wh_region *region, *last = NULL;
	uint64_t remote;

	for (uint64_t i = fragment->first; i < fragment->first + fragment->count; i++) {
		region = rdma_fragment_regions(fragment, i, &remote);
		if (region == last || !rdma_region_needs_flush(region) ||
		    region->registration->device == before)
			continue;
		last = region;
		before = region->registration->device;
		if (rdma_flush_region(region)) {
			wh_fragment_fail(fragment, UINT64_MAX, -EIO, "%s", wh_error_text());
			return;
		}
	}
}

/* ---- remote memory --------------------------------------------------------------------------- */

/* The owner has to flush this region. */
static bool remote_needs_flush(struct wh_peer *peer, uint64_t id)
{
	struct wh_region_entry *entry = wh_region_entry_enter(wh_peer_regions(peer), id);
	bool flush = false;

	if (!entry)
		return false;
	/* Any NIC's keys say so: it is a property of the GPU. */
	for (const struct rdma_keys *keys =
		     atomic_load_explicit(&wh_container(entry, struct wh_remote_region, entry)
						   ->transport[WH_TRANSPORT_RDMA],
					  memory_order_acquire);
	     keys && !flush; keys = keys->next)
		flush = !keys->error && keys->flush;
	wh_region_entry_leave(entry);
	return flush;
}

static int flush_ask(struct rdma_peer *rdma, uint32_t number, uint64_t id)
{
	uint8_t bytes[WH_RDMA_FLUSH_SIZE];

	wh_put64(wh_put32(bytes, number), id);
	return wh_control_send(wh_peer_control(rdma->peer), WH_FRAME_RDMA_FLUSH, 0, bytes,
			       sizeof(bytes));
}

/* Send FLUSH for all regions of the fragment. True: it is done when the answers have come. */
static bool flush_remote(struct rdma_peer *rdma, struct wh_fragment *fragment)
{
	struct flush *flush = NULL;
	uint64_t id, last = 0;
	bool sent = true;

	pthread_mutex_lock(&rdma->lock);
	for (uint64_t i = fragment->first; sent && i < fragment->first + fragment->count;
	     i++, last = id) {
		rdma_fragment_regions(fragment, i, &id);
		if (id == last || !remote_needs_flush(rdma->peer, id))
			continue;
		if (!flush) {
			flush = calloc(1, sizeof(*flush));
			sent = flush && !rdma_endpoints_lost(rdma);
			if (flush)
				flush->first = rdma->flush_number;
		}
		sent = sent && !flush_ask(rdma, rdma->flush_number, id);
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
	struct wh_peer *peer = fragment->peer;
	struct rdma_peer *rdma = wh_peer_transport(peer, WH_TRANSPORT_RDMA);

	/* A part of a staged fragment has only pinned memory on our side; on the owner's side the
	 * whole waits. */
	if (!fragment->whole && !atomic_load(&fragment->failed)) {
		if (fragment->op == WH_READ && atomic_load(&rdma->rdma->flushes))
			flush_local(fragment);
		else if (fragment->op == WH_WRITE && atomic_load(&rdma->flushing) &&
			 flush_remote(rdma, fragment))
			return;
	}
	wh_fragment_done(fragment);
}

int rdma_flush_answered(struct rdma_peer *rdma, const struct wh_rdma_flushed *flushed)
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
				wh_peer_name(rdma->peer), flushed->text);
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

/* Take a waiting fragment of the batch (NULL: of any) out of the list. */
static struct flush *flush_take(struct rdma_peer *rdma, const struct wh_batch *batch)
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

void rdma_flush_abort(struct rdma_peer *rdma, const struct wh_batch *batch, int error,
		      const char *text)
{
	struct flush *flush;

	while ((flush = flush_take(rdma, batch))) {
		wh_fragment_fail(flush->fragment, UINT64_MAX, error, "%s", text);
		wh_fragment_done(flush->fragment);
		free(flush);
	}
}
