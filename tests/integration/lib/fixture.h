/* SPDX-License-Identifier: Apache-2.0 */
/* fixture.h: an engine of this process, a target over one of the routes, and memory on both
 * sides */
#ifndef TESTS_INTEGRATION_LIB_FIXTURE_H
#define TESTS_INTEGRATION_LIB_FIXTURE_H

#include <pthread.h>

#include "harness.h"

/* Bytes before and after each region that belong to the allocation but not to the region. Odd, so
 * that regions are not page-aligned. (`guard` is 0 where the target is mapped: such a region has to
 * cover its whole allocation.) */
#define GUARD 4099

struct fixture {
	const struct route *route;
	struct wh_engine *engine;
	struct wh_peer *peer;
	uint64_t length; /* of the target's region */
	uint64_t guard; /* bytes around that region: GUARD or 0 */
	/* The target. */
	struct child *child; /* NULL: the target is this process */
	int memory; /* the child's number of the memory */
	unsigned char *target; /* the allocation, or the mapping of `file`, if in this process */
	int file; /* its descriptor, if that is a file */
	struct wh_region *target_region; /* if in this process */
	struct wh_remote remote; /* the target's region, named "target" */
	/* Our side: a region of twice the target's length. The second half receives reads. */
	unsigned char *base; /* the mapping */
	unsigned char *local; /* the region: base + GUARD */
	struct wh_region *region;
};

/* Open an engine restricted to the transport `require` (NULL: any). */
struct wh_engine *engine_open(const char *require, const char *listen, const char *const *config);

/* Private pages of this process, not allocated by the engine. */
void *pages_new(size_t length);
void pages_free(void *pages, size_t length);

void fixture_open(struct fixture *f, const struct route *route, uint64_t length);
/* The same with settings for the initiator and options for the target; either may be NULL. */
void fixture_open_with(struct fixture *f, const struct route *route, uint64_t length,
		       const char *const *config, const struct child_options *options);
/* Connect to the target again, or through another address (a proxy's). */
void fixture_connect(struct fixture *f, const char *url);
/* Close our side only: after a kill of the target, or to use the target otherwise. */
void fixture_close_initiator(struct fixture *f);
void fixture_close(struct fixture *f);

/* Start the target's process, or start it again after a kill, with its memory and region. */
void fixture_start_target(struct fixture *f, const struct child_options *options);

/* Fill, check and copy the target's bytes. Offsets count from the start of its region; the lowest
 * is -guard. */
void target_fill(struct fixture *f, int64_t offset, uint64_t length, uint64_t position,
		 uint64_t seed);
size_t target_check(struct fixture *f, int64_t offset, uint64_t length, uint64_t position,
		    uint64_t seed);
void target_fetch(struct fixture *f, int64_t offset, uint64_t length, void *out);

/* A transfer between the fixture's two regions. */
struct wh_transfer transfer_of(const struct fixture *f, uint32_t op, uint64_t local_offset,
			       uint64_t remote_offset, uint64_t length);

/* A new batch with these transfers. */
struct wh_batch *batch_of(const struct fixture *f, const struct wh_transfer *transfers,
			  size_t count);

/* Submit the batch, wait, and return the status. */
int batch_run(struct wh_batch *batch);

/* Wait for a batch in another thread; wait_end() joins it and returns the status. */
struct waiting {
	pthread_t thread;
	struct wh_batch *batch;
	int status;
};

void wait_begin(struct waiting *waiting, struct wh_batch *batch);
int wait_end(struct waiting *waiting);

/* All `bytes` of the batch must have gone by the fixture's route. */
void want_route(const struct fixture *f, struct wh_batch *batch, uint64_t bytes);

/* The number of shm's mappings of peers' memory in this process. *at and `rights` (may be NULL)
 * receive the last one's address and rights ("r--s"). */
unsigned int peer_mappings(void **at, char rights[5]);

/* Run one transfer in a batch of its own; return the status. */
int move(const struct fixture *f, uint32_t op, uint64_t local_offset, uint64_t remote_offset,
	 uint64_t length);

/* Write `length` bytes and read them back. Checks both sides and the guards around them. */
void round_trip(struct fixture *f, uint64_t local_offset, uint64_t remote_offset, uint64_t length,
		uint64_t seed);

#endif
