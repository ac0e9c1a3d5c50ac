/* SPDX-License-Identifier: Apache-2.0 */
/* An engine of this process, a target over one of the routes, and memory on both sides. */
#ifndef TESTS_INTEGRATION_LIB_FIXTURE_H
#define TESTS_INTEGRATION_LIB_FIXTURE_H

#include <pthread.h>

#include "harness.h"

/* Bytes before and behind each region that belong to the allocation but not to the region. The
 * number is odd so that regions lie anywhere but on a page. (A region that is to be mapped has to
 * cover all of its allocation, so there are none around that.) */
#define GUARD 4099

struct fixture {
	const struct route *route;
	struct wh_engine *engine;
	struct wh_peer *peer;
	uint64_t length; /* of the target's region */
	uint64_t guard; /* bytes around it: GUARD or 0 */
	/* The target. */
	struct child *child; /* NULL: this process */
	int memory; /* the child's number for it */
	unsigned char *target; /* this process: its allocation */
	struct wh_region *target_region; /* this process */
	struct wh_remote remote; /* its region, "target" */
	/* Our side: a region of twice the target's length, the second half as a sink. */
	unsigned char *base; /* the mapping */
	unsigned char *local; /* the region: base + GUARD */
	struct wh_region *region;
};

/* An engine that may take only that transport (NULL: any). */
struct wh_engine *engine_open(const char *require, const char *listen, const char *const *config);

/* Private pages of this process, not the engine's. */
void *pages_new(size_t length);
void pages_free(void *pages, size_t length);

void fixture_open(struct fixture *f, const struct route *route, uint64_t length);
/* With settings for the initiator and options for the target (either may be NULL). */
void fixture_open_with(struct fixture *f, const struct route *route, uint64_t length,
		       const char *const *config, const struct child_options *options);
/* Connect to the target through another address (a proxy's), or again. */
void fixture_connect(struct fixture *f, const char *url);
/* Close our side only: after the target was killed, or before it is used otherwise. */
void fixture_close_initiator(struct fixture *f);
void fixture_close(struct fixture *f);

/* Bring up the target's process, memory and region (again, once it has been killed). */
void fixture_start_target(struct fixture *f, const struct child_options *options);

/* The target's bytes; offsets count from the start of its region, and from -guard on. */
void target_fill(struct fixture *f, int64_t offset, uint64_t length, uint64_t position,
		 uint64_t seed);
size_t target_check(struct fixture *f, int64_t offset, uint64_t length, uint64_t position,
		    uint64_t seed);
void target_fetch(struct fixture *f, int64_t offset, uint64_t length, void *out);

/* One transfer between the fixture's two regions. */
struct wh_transfer fragment(const struct fixture *f, uint32_t op, uint64_t local_offset,
			    uint64_t remote_offset, uint64_t length);

/* A new batch with `count` transfers in it. */
struct wh_batch *batch_of(const struct fixture *f, const struct wh_transfer *transfers,
			  size_t count);

/* Submit and wait; the status. */
int batch_run(struct wh_batch *batch);

/* Wait for a batch in a thread of its own; the end gives the status. */
struct waiting {
	pthread_t thread;
	struct wh_batch *batch;
	int status;
};

void wait_begin(struct waiting *waiting, struct wh_batch *batch);
int wait_end(struct waiting *waiting);

/* All its bytes must have gone by the fixture's route. */
void want_route(const struct fixture *f, struct wh_batch *batch, uint64_t bytes);

/* One transfer from new to free; the status. */
int move(const struct fixture *f, uint32_t op, uint64_t local_offset, uint64_t remote_offset,
	 uint64_t length);

/* Write and read back `length` bytes, verified on both sides with guards around them. */
void round_trip(struct fixture *f, uint64_t local_offset, uint64_t remote_offset, uint64_t length,
		uint64_t seed);

#endif
