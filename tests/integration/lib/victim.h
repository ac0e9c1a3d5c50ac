/* SPDX-License-Identifier: Apache-2.0 */
/* The engine that hostile-*.c attack, and a good peer that it has to serve all the while. */
#ifndef TESTS_INTEGRATION_LIB_VICTIM_H
#define TESTS_INTEGRATION_LIB_VICTIM_H

#include "fixture.h"
#include "raw.h"

#define VICTIM_REGION 4096 /* bytes in each region */

struct victim {
	struct fixture f; /* a process, and this one's peer of it over tcp */
	int memory; /* of the process: the regions below and what lies around them */
	uint64_t rw, ro, wo;
	uint64_t none; /* not published */
	uint64_t dead; /* not registered any more */
	int rw_region, ro_region;
	/* A session by hand. */
	int control, data;
	struct wh_hello welcome;
};

/* With a handshake time-out of `timeout_ms`. */
void victim_open(struct victim *v, unsigned int timeout_ms);
void victim_close(struct victim *v);

/* Where a region's bytes are in v->memory. */
uint64_t victim_offset(const struct victim *v, uint64_t region);

/* Not a byte of it has changed, it lives, and it serves the good peer. */
void victim_want_well(struct victim *v);

/* A fresh session, and a data connection that belongs to it. */
void victim_greet(struct victim *v);
void victim_greet_data(struct victim *v);

#endif
