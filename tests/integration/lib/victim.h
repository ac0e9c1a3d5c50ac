/* SPDX-License-Identifier: Apache-2.0 */
/* victim.h: the engine that hostile-*.c attack, and a well-behaved peer that it must keep
 * serving */
#ifndef TESTS_INTEGRATION_LIB_VICTIM_H
#define TESTS_INTEGRATION_LIB_VICTIM_H

#include "fixture.h"
#include "raw.h"

#define VICTIM_REGION 4096 /* bytes in each region */

struct victim {
	struct fixture f; /* the victim's process, and our well-behaved engine, its peer over tcp */
	int memory; /* the process's number of the memory that holds the regions below */
	uint64_t rw, ro, wo;
	uint64_t none; /* registered, not published */
	uint64_t dead; /* unregistered */
	int rw_region, ro_region;
	/* A session by hand, with raw.h. */
	int control, data;
	struct wh_hello welcome;
};

/* Start a victim with this handshake time-out. */
void victim_open(struct victim *v, unsigned int timeout_ms);
void victim_close(struct victim *v);

/* The offset of a region's bytes in v->memory. */
uint64_t victim_offset(const struct victim *v, uint64_t region);

/* No byte has changed, the victim lives, and it serves the well-behaved peer. */
void victim_want_well(struct victim *v);

/* Open a new session by hand; then a data connection of that session. */
void victim_greet(struct victim *v);
void victim_greet_data(struct victim *v);

#endif
