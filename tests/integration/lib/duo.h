/* SPDX-License-Identifier: Apache-2.0 */
/* duo.h: two engines in one process, over the fake CUDA driver and the fake NICs, each with one
 * region in GPU or host memory, or of a file */
#ifndef TESTS_INTEGRATION_LIB_DUO_H
#define TESTS_INTEGRATION_LIB_DUO_H

#include "gpu.h"
#include "nics.h"

#define LENGTH (3 * MIB + 4097)
#define DUO_OFFSET 4099 /* of each region in its memory, or file; unaligned */
#define PATIENT "timeout=20000" /* long: these tests have no silent peers */

struct side {
	struct wh_engine *engine;
	uint32_t kind;
	unsigned char *memory, *start; /* start: of the region; unaligned. A file: NULL ... */
	int fd; /* ... which the region is of, from DUO_OFFSET on */
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

/* Open both sides. `ways`: setting rdma_gpu of both engines ("": the default); the rails: setting
 * rdma of each. */
void duo_open_by(struct duo *duo, uint32_t here, uint32_t there, const char *ways,
		 const char *our_rails, const char *their_rails);
/* The same: our engine uses the first NIC of the list, theirs the second. */
void duo_open(struct duo *duo, uint32_t here, uint32_t there, const char *ways);
void duo_connect(struct duo *duo);
/* The same with two rails on each side; ours are fake0 and fake2. */
void rails_open(struct duo *duo, uint32_t here, uint32_t there, const char *ways);
/* Give the fake library four NICs. It reads its list once: call this before any engine opens. */
void nics_four(void);
void duo_close(struct duo *duo);

void fill(const struct side *side, uint64_t seed);
bool holds(const struct side *side, uint64_t seed);
/* Fill the side that the bytes come from; check that both sides hold them. */
void duo_fill(const struct duo *duo, uint32_t op, uint64_t seed);
void want_same(const struct duo *duo, uint64_t seed);

/* A batch that moves the whole region in three transfers. */
struct wh_batch *whole(const struct duo *duo, uint32_t op);
/* All bytes of a completed batch must have gone by `transport`, and its explanation must contain
 * `first` and `second` (NULL: any). */
void want_way(struct wh_batch *batch, const char *transport, const char *first, const char *second);
/* Run the batch until exactly these of our two rails have moved bytes; together they must move
 * all. */
void want_rails(struct wh_batch *batch, bool first, bool second);
/* Run batches until one passes want_way(), at most PATIENCE. On a busy machine the first batches
 * may not wait until the connection exists, and go another way. */
void settle(const struct duo *duo, const char *transport, const char *first);
/* Move the whole region there and back, twice, and check the bytes. */
void exchange(struct duo *duo, const char *transport, const char *first, const char *second);
/* Over rdma, blocks of `each` bytes that lie apart: by 2 * each at the source (op WH_READ: theirs),
 * by `step` at the target: every block arrives, and nothing between them is written. `way`: as in
 * settle().
 */
void expect_blocks(uint32_t here, uint32_t there, const char *ways, uint32_t op, size_t each,
		   size_t step, const char *way);
/* duo_open(), exchange() and duo_close(). */
void expect(uint32_t here, uint32_t there, const char *ways, const char *transport,
	    const char *first, const char *second);

/* Cancel a batch while the NICs are held, in both directions; then exchange(). `way`: in the
 * explanation of what rdma_gpu=staged does. */
void expect_cancelled(uint32_t here, uint32_t there, const char *way);
/* Break the connection while the slots of a batch are on their way: tcp must move all bytes. */
void expect_tcp_after_break(struct duo *duo, uint32_t op, const char *way, uint64_t seed);

/* A test of this kind. duo_end() removes its environment variables, also after a failure. */
#define ON_FAKES(function)                                                                         \
	{                                                                                          \
#function, function, harness_begin, duo_end, (void *)&route_gpu_rdma               \
	}
int duo_end(void **state);

#endif
