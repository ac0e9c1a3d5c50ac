/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan's time, by a simulation of its links.
 *
 * Each link is a queue: it moves one piece after the other, at its rate, in the order in which they
 * arrive; of those that arrive at once, the earlier step's first. A piece begins to enter the next
 * link of its path when it begins to leave the former one, and leaves no earlier than it has left
 * that. At the end of its path its latency passes; then the piece is there, and steps that wait for
 * it may send it on. Sources have all their pieces at the start. Each receiver reads from each
 * source in the plan's order, one piece after the other; so receivers share a source's links
 * evenly.
 *
 * What this leaves out: time to post and complete transfers, blocks that are too small for a link's
 * rate, what a network does when senders collide (it is taken to queue without loss), and other
 * traffic.
 */
#ifndef WH_WEIGHTS_SIMULATE_H
#define WH_WEIGHTS_SIMULATE_H

#include "weights/plan.h"

struct wh_simulation {
	double duration; /* ns, until the last piece is there */
	uint32_t busiest; /* the link that is busy longest; of no use if there are no steps */
	double busy; /* ns of that link */
	double *link_busy; /* ns of each link of the plan's cluster */
	uint64_t *link_bytes;
	double *step_done; /* ns, when all of the step's bytes are there */
};

/* Simulate. 0, or -ENOMEM. Free it with wh_simulation_free(). */
int wh_simulate(const struct wh_plan *plan, struct wh_simulation *out);
void wh_simulation_free(struct wh_simulation *simulation);

#endif
