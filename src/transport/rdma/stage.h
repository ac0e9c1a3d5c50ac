/* SPDX-License-Identifier: Apache-2.0 */
/* Staging: GPU memory that no NIC reaches, and files, are copied through memory of ours, of the
 * peer's (bounce.h), or both. And flushing: what NICs have written is made visible to GPUs. */
#ifndef WH_TRANSPORT_RDMA_STAGE_H
#define WH_TRANSPORT_RDMA_STAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/rdma/wire.h"

struct rdma;
struct rdma_peer;
struct wh_batch;
struct wh_cuda;
struct wh_cuda_device;
struct wh_fragment;
struct wh_list;
struct wh_peer;
struct wh_region;
struct wh_remote_region;

/* How endpoints reach the memory of a fragment at both sides. */
struct rdma_sides {
	/* Endpoints that reach it, a bit each. The caller starts with all endpoints that it asks
	 * about; each rdma_sides_add() removes those that do not reach its pair of regions. */
	uint32_t local, remote;
	bool can_stage_local, can_stage_remote; /* for some endpoint, some memory can be staged */
};

enum rdma_stage_side { RDMA_STAGE_LOCAL = 1, RDMA_STAGE_REMOTE = 2 };

/* Account for one more pair of regions. Under rdma_peer.lock, as the next two. */
void rdma_sides_add(const struct rdma_peer *rdma, uint32_t endpoints, const struct wh_region *local,
		    const struct wh_remote_region *remote, uint32_t op, struct rdma_sides *sides);
/* The sides that must be staged (enum rdma_stage_side), so that an endpoint can move the bytes; 0:
 * none, or staging does not help. */
unsigned rdma_sides_to_stage(const struct rdma_sides *sides);
unsigned rdma_stage_sides(struct rdma_peer *rdma, struct wh_fragment *fragment);
/* Make the slots that staging these sides needs, if there are none yet. 0 or a negative errno. May
 * allocate; without the lock. */
int rdma_stage_prepare(struct rdma_peer *rdma, const struct wh_fragment *fragment, unsigned sides);
/* Move the fragment by staging these sides. Without the lock. */
void rdma_stage_start(struct rdma_peer *rdma, struct wh_fragment *fragment, unsigned sides);
/* Start nothing more of the fragment, if it is staged; false if not. Parts that have ended go to
 * `done`. Under rdma_peer.lock. */
bool rdma_stage_cancel(struct rdma_peer *rdma, const struct wh_fragment *fragment,
		       struct wh_list *done);
/* The cancelled batch does not end: wait no more for what the owner's file systems answer. 0, or
 * -ETIMEDOUT: they may still write bytes of it. Under rdma_peer.lock. */
int rdma_stage_abort(struct rdma_peer *rdma, const struct wh_batch *batch);
/* Deregister the slots. */
void rdma_stage_close(struct rdma *rdma);

/* ---- flush.c --------------------------------------------------------------------------------- */

/* A NIC may complete a write before the GPU can see the bytes. Where CUDA says that it orders such
 * writes, nothing is needed; elsewhere the side that owns the memory flushes. */

/* 0: the GPU needs no flush; 1: it needs one; -EOPNOTSUPP: it needs one, and has none. */
int rdma_flush_policy(const struct wh_cuda *cuda, const struct wh_cuda_device *device);
/* What NICs write to this local region must be flushed. */
bool rdma_region_needs_flush(const struct wh_region *region);
/* Flush what NICs have written to a local region. 0 or a negative errno with wh_error_text(). */
int rdma_flush_region(const struct wh_region *region);
/* All bytes of a fragment have moved: finish it, after a flush if one is needed. Without a lock. */
void rdma_fragment_moved(struct wh_fragment *fragment);
/* FLUSHED has arrived; on loop 0. */
int rdma_flush_answered(struct rdma_peer *rdma, const struct wh_rdma_flushed *flushed);
/* Fail the fragments that wait for FLUSHED: all (`batch` NULL: the peer is lost), or those of a
 * cancelled batch. Without a lock. */
void rdma_flush_abort(struct rdma_peer *rdma, const struct wh_batch *batch, int error,
		      const char *text);

/* ---- describe.c ------------------------------------------------------------------------------ */

/* For the explanation: how NICs reach the batch's GPU memory; `line` stays as it is where there is
 * nothing to say. */
void rdma_describe_memory(struct rdma_peer *rdma, const struct wh_batch *batch, char *line,
			  size_t size);
/* The same, short: ", dmabuf", ", staged+dmabuf" (local and remote), or "". */
void rdma_describe_methods(struct rdma_peer *rdma, const struct wh_batch *batch, char *out,
			   size_t size);

#endif
