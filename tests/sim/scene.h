/* SPDX-License-Identifier: Apache-2.0 */
/* What directed worlds share: two hosts, an owner that serves, and an initiator with a peer, a
 * local region and a target. The network has a latency of 50 us and no faults, but for those of the
 * world. */
#ifndef SIM_SCENE_H
#define SIM_SCENE_H

#include "program.h"

#define SCENE_OWNER 1 /* its place, on a host of its own; the initiator is at place 0 */
#define SCENE_LOCAL 200000 /* bytes of local memory */
#define SCENE_DATA 1 /* the first data connection; the one before is the control connection */

struct scene {
	struct program *initiator, *owner;
	struct wh_peer *peer;
	struct wh_region *region;
	uint8_t *local; /* SCENE_LOCAL bytes */
	struct target *target; /* of the owner */
};

/* The setting `timeout` of the owner, in ms; 0: as the initiator's. */
extern int scene_owner_timeout;

/* Have `act` play on host 0, with everything open; it is closed afterwards. */
void scene_play(void (*act)(struct scene *scene));
/* Open a peer at the owner; the world closes it. */
struct wh_peer *scene_open(struct scene *scene);
/* Make a batch of one write of `length` bytes from the start of the local memory to the first
 * block of the target, PROGRAM_GAP bytes from its start. */
struct wh_batch *scene_write(struct scene *scene, size_t length);
/* Wait until it has ended; fails after `ns`. Returns its status. */
int scene_end(struct wh_batch *batch, int64_t ns);
/* Make progress for so long: sleep, or drive the engine. */
void scene_pass(struct scene *scene, int64_t ns);
/* Fail unless a call returned what it must. */
void scene_expect(const char *what, int rc, int expected);
/* Fail if the initiator has lost a peer. */
void scene_expect_never_lost(const struct scene *scene);

/* The worlds of a subject, in a file of its own each; the last one has no name. */
extern const struct world worlds_connection[], worlds_still[], worlds_note[], worlds_disk[],
	worlds_shared[], worlds_weights[], worlds_members[], worlds_folder[], worlds_withdrawn[],
	worlds_dropin[];

#endif
