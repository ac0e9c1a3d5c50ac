/* SPDX-License-Identifier: Apache-2.0 */
/* core-region.h: two engines, of which one sees the other's regions, for core-region.c and
 * core-remote.c */
#ifndef TESTS_UNIT_CORE_REGION_H
#define TESTS_UNIT_CORE_REGION_H

#include "unit.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include <wherry/wherry.h>

#include "core/engine.h"
#include "core/peer.h"
#include "core/region.h"
#include "core/remote.h"
#include "memory/region-table.h"
#include "util/clock.h"
#include "util/loop.h"
#include "wire/wire.h"

#define PATIENCE (10 * WH_SECOND)

/* `owner` has the regions. `other` sees them through `peer`, the owner through `self`. */
static struct wh_engine *owner, *other;
static struct wh_peer *peer, *self;
static char memory[1 << 16] __attribute__((aligned(4096)));

static int setup(void **state)
{
	const char *const config[] = { "timeout=1000", NULL };
	const struct wh_engine_options mine = { .size = sizeof(mine), .config = config };
	const struct wh_engine_options theirs = { .size = sizeof(theirs), .listen = "none" };

	(void)state;
	return wh_engine_open(&mine, &owner) || wh_engine_open(&theirs, &other) ||
	       wh_peer_open(other, wh_engine_url(owner), NULL, &peer) ||
	       wh_peer_open(owner, "self", NULL, &self);
}

static int teardown(void **state)
{
	(void)state;
	return wh_peer_close(peer) || wh_peer_close(self) || wh_engine_close(other) ||
	       wh_engine_close(owner);
}

#define ALL (WH_ACCESS_READ | WH_ACCESS_WRITE)

static inline struct wh_region *add(size_t offset, size_t length, const char *name, uint32_t access)
{
	const struct wh_region_options options = {
		.size = sizeof(options),
		.name = name,
		.access = access,
	};
	struct wh_region *region;

	assert_int_equal(wh_region_register(owner, memory + offset, length, &options, &region), 0);
	return region;
}

static inline void drop(struct wh_region *region)
{
	assert_int_equal(wh_region_unregister(region), 0);
}

/* A thread that leaves an entry after 30 ms. */
static inline void *leave_later(void *entry)
{
	usleep(30000);
	wh_region_entry_leave(entry);
	return NULL;
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

#endif
