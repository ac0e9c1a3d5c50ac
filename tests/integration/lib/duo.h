/* SPDX-License-Identifier: Apache-2.0 */
/* Two engines of this process with a GPU's memory, or other, on the fake CUDA driver and the fake
 * NICs. */
#ifndef TESTS_INTEGRATION_LIB_DUO_H
#define TESTS_INTEGRATION_LIB_DUO_H

#include "gpu.h"
#include "nics.h"

#define LENGTH (3 * MIB + 4097)
#define PATIENT "timeout=20000" /* nothing here waits for silence */

struct side {
	struct wh_engine *engine;
	uint32_t kind;
	unsigned char *memory, *start; /* start: of the region, on no boundary */
	struct wh_region *region; /* LENGTH bytes */
};

struct duo {
	struct side ours, theirs;
	struct wh_peer *peer;
	struct wh_remote remote;
};

void side_open(struct side *side, uint32_t kind, const char *name, const char *listen,
	       const char *const *config);
void side_close(struct side *side);

/* `ways`: the setting rdma_gpu of both ("": as it is by itself). Rails: the setting rdma of each.
 */
void duo_open_by(struct duo *duo, uint32_t here, uint32_t there, const char *ways,
		 const char *our_rails, const char *their_rails);
/* By the first NIC of the list, and the second. */
void duo_open(struct duo *duo, uint32_t here, uint32_t there, const char *ways);
void duo_connect(struct duo *duo);
/* By two rails of ours, fake0 and fake2, and two of theirs. */
void rails_open(struct duo *duo, uint32_t here, uint32_t there, const char *ways);
/* The fake library reads its list of NICs once: before any engine is opened. */
void nics_four(void);
void duo_close(struct duo *duo);

void fill(const struct side *side, uint64_t seed);
bool holds(const struct side *side, uint64_t seed);
/* Fill the side that the bytes come from; are they on both? */
void duo_fill(const struct duo *duo, uint32_t op, uint64_t seed);
void want_same(const struct duo *duo, uint64_t seed);

/* All of the region, in three transfers. */
struct wh_batch *whole(const struct duo *duo, uint32_t op);
/* All of it has gone by the transport, and explain has these words (NULL: any). */
void want_way(struct wh_batch *batch, const char *transport, const char *first, const char *second);
/* Run it until these of our two rails have moved some of it, and between them all. */
void want_rails(struct wh_batch *batch, bool first, bool second);
/* Run batches until that is so: on a busy machine the first do not wait for a connection as long as
 * it takes. */
void settle(const struct duo *duo, const char *transport, const char *first);
/* All of it there and back, twice. */
void exchange(struct duo *duo, const char *transport, const char *first, const char *second);
/* The same from open to close. */
void expect(uint32_t here, uint32_t there, const char *ways, const char *transport,
	    const char *first, const char *second);

/* A test of these; what it has set in the environment is gone for the next, also if it has failed.
 */
#define ON_FAKES(function)                                                                         \
	{                                                                                          \
#function, function, harness_begin, duo_end, (void *)&route_gpu_rdma               \
	}
int duo_end(void **state);

#endif
