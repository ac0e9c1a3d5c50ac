/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What batches took: estimates from the durations of an application's own batches.
 *
 * Batches that counters.h times anyway teach it, so that a submission pays nothing more: all large
 * ones, and one in WH_TIMED_EVERY of the small ones. A batch that shared its way with others says
 * too little of the way's speed: it teaches nothing if another large batch to that peer ran at any
 * moment of its own. A small one must also be alone on its local region when it begins and when it
 * ends; other small batches are not seen.
 */
#ifndef WH_CORE_TRAFFIC_H
#define WH_CORE_TRAFFIC_H

#include <stdbool.h>
#include <stdint.h>

struct wh_batch;

#define WH_TRAFFIC_ROUTES 8 /* of a peer; the one that is unused for the longest time goes */
#define WH_TRAFFIC_LENGTHS 4 /* classes of the mean length of a batch's transfers */

/* A way that bytes take: transport, direction, kinds of both memories. None of these: of a batch
 * that has not been planned; of one that takes several ways, or whose transport knows its costs
 * itself. */
#define WH_TRAFFIC_NONE 0u
#define WH_TRAFFIC_MIXED UINT32_MAX

/* Batches of a class: the weighted means of their bytes and durations. */
struct wh_traffic_point {
	double bytes, ns;
	int64_t at; /* of the last one, wh_now(); 0: there was none */
};

struct wh_traffic_route {
	uint32_t way;
	int64_t at; /* of the last batch, wh_now(); 0: the route is free */
	struct wh_traffic_point point[WH_TRAFFIC_LENGTHS][2]; /* small, large */
};

/* A duration that is expected. */
struct wh_expected {
	double ns;
	int64_t at; /* when it was measured, wh_now(); 0: it is not known */
	uint64_t set; /* bytes: the working set in which it was measured; 0: not known */
};

uint32_t wh_traffic_way(uint32_t transport, uint32_t op, uint8_t local_kind, uint8_t remote_kind);

/* A submission that is timed begins; its regions are held. */
void wh_traffic_begin(struct wh_batch *batch, bool large);
/* It has ended without an error, after `ns`; before wh_traffic_end_large(). */
void wh_traffic_learn(struct wh_batch *batch, uint64_t ns, bool large);
/* A large one has ended, with or without an error. */
void wh_traffic_end_large(struct wh_batch *batch);
/* What the batch's fragments of a transport should take. Any thread. */
struct wh_expected wh_traffic_expect(const struct wh_batch *batch, uint32_t transport);

/* The arithmetic: a batch of such a size took so long, and what one should take. */
void wh_traffic_route_learn(struct wh_traffic_route *route, uint64_t bytes, uint64_t transfers,
			    uint64_t ns, int64_t now);
struct wh_expected wh_traffic_route_expect(const struct wh_traffic_route *route, uint64_t bytes,
					   uint64_t transfers);

#endif
