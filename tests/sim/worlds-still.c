/* SPDX-License-Identifier: Apache-2.0 */
/* Directed worlds of a peer, and of a connection, that stand still without an error. */
#include <errno.h>
#include <string.h>

#include "scene.h"

#define DATA 1 /* the first data connection; the one before is the control connection */
#define STILL (120 * SIM_SEC)

/* ---- a peer that is silent ------------------------------------------------------------------- */

static void wait_for_peer(struct scene *scene, int status, int64_t limit)
{
	int64_t since = sim_time;

	while (wh_peer_status(scene->peer) != status) {
		if (sim_time - since > limit)
			sim_fail("hang", "the peer is not %s after %lld ms",
				 status ? "lost" : "back", (long long)(limit / SIM_MS));
		scene_pass(scene, 10 * SIM_MS);
	}
}

/* The owner's process stands still, and nobody sends anything but pings. Its kernel confirms all of
 * them, so no connection breaks: only the answers to the pings are missing. It is lost after the
 * setting timeout, and reached again when it goes on. */
static void act_silent_peer(struct scene *scene)
{
	int64_t timeout = sim_options.timeout_ms * SIM_MS, still = 4 * timeout;
	struct wh_batch *batch = scene_write(scene, 64);

	sim_node_stall(scene->owner->node, still);
	wait_for_peer(scene, -ECONNRESET, 2 * timeout);
	wait_for_peer(scene, 0, 2 * still);
	scene_expect("submit", wh_batch_submit(batch), 0);
	scene_expect("a write to a peer that is back", scene_end(batch, timeout), 0);
	wh_batch_free(batch);
}

static void world_silent_peer(void)
{
	scene_play(act_silent_peer);
}

/* ---- a data connection that stands still ----------------------------------------------------- */

/* Of the first data connection alone. */
static int64_t hold_first(const struct sim_packet *packet, void *arg)
{
	(void)arg;
	return packet->connection == DATA && packet->from_initiator ? STILL : 0;
}

/* What is sent on a data connection does not arrive for two minutes, as behind a firewall that has
 * forgotten it. The peer answers on the control connection, so it is not lost, and no connection
 * breaks by itself: the write goes by another one. */
static void act_still_connection(struct scene *scene)
{
	struct wh_batch *batch = scene_write(scene, 64);
	int64_t start;

	memset(scene->local, 'A', SCENE_LOCAL);
	scene_expect("submit", wh_batch_submit(batch), 0);
	scene_expect("the first write", scene_end(batch, SIM_SEC), 0);
	sim_network_watch(hold_first, NULL);
	memset(scene->local, 'B', SCENE_LOCAL);
	start = sim_time;
	scene_expect("submit", wh_batch_submit(batch), 0);
	scene_expect("a write whose connection stands still", scene_end(batch, STILL / 2), 0);
	if (sim_time - start < SIM_SEC)
		sim_fail("directed", "no connection stood still");
	if (scene->target->memory[PROGRAM_GAP] != 'B')
		sim_fail("bytes", "a write that succeeded is not there");
	wh_batch_free(batch);
}

static void world_still_connection(void)
{
	scene_play(act_still_connection);
}

const struct world worlds_still[] = {
	{ "silent-peer", "a peer stands still while nobody has work", world_silent_peer },
	{ "still-connection", "a data connection stands still, and no error says so",
	  world_still_connection },
	{ NULL, NULL, NULL },
};
