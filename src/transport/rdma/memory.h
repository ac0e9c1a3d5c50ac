/* SPDX-License-Identifier: Apache-2.0 */
/* Local regions as NICs know them (memory regions of verbs, MRs), and the keys of a peer's regions.
 *
 * Both hang on the region as lists that only grow until the region is closed: readers need no lock.
 * rdma.register_lock guards the lists, not pinning itself: memory.c has claims for that. Loop 0
 * adds keys. */
#ifndef WH_TRANSPORT_RDMA_MEMORY_H
#define WH_TRANSPORT_RDMA_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/rdma/rail.h"

struct wh_cuda;
struct wh_cuda_device;
struct wh_engine;
struct wh_peer;
struct wh_registration;
struct wh_remote_region;

/* A part of a region that has one key. */
struct rdma_chunk {
	uint64_t end; /* offset in the region where the next chunk begins */
	uint32_t key;
	struct ibv_mr *mr; /* NULL: a chunk of a peer's region */
};

/* The chunk that contains byte `offset` of the region. */
static inline const struct rdma_chunk *rdma_chunk_at(const struct rdma_chunk *all, uint32_t count,
						     uint64_t offset)
{
	uint32_t first = 0, last = count - 1;

	while (first < last) {
		uint32_t middle = first + (last - first) / 2;

		if (all[middle].end > offset)
			last = middle;
		else
			first = middle + 1;
	}
	return &all[first];
}

/* The MRs of one NIC for one range of memory, adjacent and in order. */
struct rdma_mrs {
	struct rdma_mrs *next; /* of the same GPU registration */
	struct rdma_nic *nic;
	unsigned users; /* regions; as rdma_gpu_get() */
	int rights;
	enum wh_rdma_method method;
	uint32_t count, room;
	struct rdma_chunk *chunks;
};

/* A local region and one NIC. */
struct rdma_memory {
	struct rdma_memory *next;
	struct rdma_nic *nic;
	struct rdma_mrs *mrs; /* NULL: the NIC does not reach the memory; it is staged */
	bool writable; /* by our own reads */
	uint8_t distance; /* from the NIC */
	char why[WH_REFUSAL]; /* why no better method is used */
};

/* The keys of a peer's region for one of the peer's NICs, or the refusal. */
struct rdma_keys {
	struct rdma_keys *next;
	uint32_t nic;
	int error; /* negative: refused */
	char why[WH_REFUSAL]; /* the refusal's reason; or why no better method is used */
	int64_t until; /* a refusal: do not ask again before (ns, wh_now()) */
	enum wh_rdma_method method;
	bool flush; /* the peer must flush what NICs write, by FLUSH, before its GPU sees it */
	uint8_t distance; /* from the peer's NIC to its memory */
	uint8_t bounce; /* error -WH_RDMA_STAGED_BY_OWNER: number of the bounce buffer */
	uint32_t count;
	struct rdma_chunk chunks[];
};

/* Register a region with a NIC, if it is not yet. A batch uses the region, or the caller has
 * entered it. May block for long: pages are pinned. 0, -ESTALE (the memory is gone), in plans
 * -EINPROGRESS (another thread registers it) or another negative errno, with the reason. */
int rdma_memory_register(struct rdma_nic *nic, struct wh_region *region, struct rdma_memory **out,
			 char why[WH_REFUSAL]);
/* NULL: not registered with the NIC yet. */
struct rdma_memory *rdma_memory_find(const struct wh_region *region, const struct rdma_nic *nic);
/* The same, but NULL also if the memory is staged. */
struct rdma_memory *rdma_memory_find_reachable(const struct wh_region *region,
					       const struct rdma_nic *nic);
/* The transport's region_closed. */
void rdma_region_closed(struct wh_engine *engine, void *state, struct wh_region *region);

/* The newest answer for that NIC of the peer; NULL: none yet. */
struct rdma_keys *rdma_keys_find(const struct wh_remote_region *region, uint32_t nic);
/* KEYED has arrived; on loop 0. 0 or a negative errno, which ends the connection to the peer. */
int rdma_keys_received(struct wh_peer *peer, const struct wh_rdma_keyed *keyed);
/* The transport's region_gone. */
void rdma_region_gone(struct wh_peer *peer, void *state, struct wh_remote_region *region);

/* Append an MR for the next `length` bytes. `mr` NULL: registering failed with errno. On failure
 * all of `mrs` is deregistered. 0 or a positive errno. */
int rdma_mrs_add(struct rdma_mrs *mrs, struct ibv_mr *mr, uint64_t length);
/* Deregister all. */
void rdma_mrs_clear(struct rdma_mrs *mrs);

/* Register GPU memory by the best method that works; by one thread at a time. 0 and *mrs with one
 * more user (NULL: stage it); `why` says why not by a better method. Or a negative errno with the
 * reason.
 */
int rdma_gpu_get(struct rdma_nic *nic, struct wh_region *region, int rights, struct rdma_mrs **mrs,
		 char why[WH_REFUSAL]);
/* One user less; the last one deregisters. As rdma_gpu_get(). */
void rdma_gpu_put(struct wh_registration *registration, struct rdma_mrs *mrs);
/* Parse the setting `rdma_gpu` into rdma.methods. 0 or -EINVAL. */
int rdma_methods_parse(struct rdma *rdma);
const char *rdma_method_name(enum wh_rdma_method method);

#endif
