/* SPDX-License-Identifier: Apache-2.0 */
/* Directed worlds of memory that peers reach without its owner: mapped, or of GPUs. */
#include <errno.h>

#include "scene.h"

/* ---- an owner of shared memory that stands still --------------------------------------------- */

#define STILL (3 * SIM_SEC)
#define SOON (200 * SIM_MS) /* a cancel gives what is in flight half of it to end */

/* Fails unless it is soon after `start`. */
static void expect_soon(const char *what, int64_t start)
{
	if (sim_time - start > SOON)
		sim_fail("bound", "%s took %.3f s", what, (double)(sim_time - start) / 1e9);
}

/* A batch has to ask the owner for its memory, who does not answer. Nothing waits for him but the
 * batch; it can be cancelled, and the next one succeeds. */
static void act_still_owner(struct scene *scene)
{
	struct wh_batch *batch;
	int64_t start;

	/* The region is known, and its memory has not been asked for. */
	scene_expect("wh_peer_prepare",
		     wh_peer_prepare(scene->peer, NULL, 0, &scene->target->remote, 1, SIM_SEC), 0);
	batch = scene_write(scene, 64);
	sim_node_stall(scene->owner->node, STILL);
	for (int i = 0; i < 2; i++) {
		start = sim_time;
		scene_expect("submit", wh_batch_submit(batch), 0);
		expect_soon("wh_batch_submit", start);
		start = sim_time;
		scene_expect("a test", wh_batch_test(batch), -EAGAIN);
		expect_soon("wh_batch_test", start);
		scene_pass(scene, 300 * SIM_MS);
		start = sim_time;
		scene_expect("cancel", wh_batch_cancel(batch), 0);
		expect_soon("wh_batch_cancel", start);
	}
	scene_expect("submit", wh_batch_submit(batch), 0);
	scene_expect("a write", scene_end(batch, 20 * SIM_SEC), 0);
	wh_batch_free(batch);
}

static void world_still_owner(void)
{
	sim_options.programs = 2;
	sim_options.transports = 2;
	sim_options.timeout_ms = 20000;
	scene_play(act_still_owner);
}

static void world_still_owner_driven(void)
{
	sim_options.threads = 0;
	world_still_owner();
}

/* ---- a session that has ended at its owner alone --------------------------------------------- */

static void *withdraw_target(void *arg)
{
	struct scene *scene = arg;

	while (!target_close(scene->owner, 0, true))
		sim_sleep(SIM_MS);
	scene->target = NULL;
	return NULL;
}

/* The control connection breaks at the owner, who unregisters his memory then: there is nobody to
 * ask. The initiator does not know yet, and still has the memory mapped. */
static void act_ended_session(struct scene *scene)
{
	struct wh_batch *batch = scene_write(scene, 64);

	scene_expect("submit", wh_batch_submit(batch), 0);
	scene_expect("a write", scene_end(batch, SIM_SEC), 0);
	sim_network_reset_there(0, 0, 0);
	sim_spawn(scene->owner->node, "withdraw", withdraw_target, scene);
	while (scene->target)
		sim_sleep(100000);
	scene_expect("the peer, of whose loss nobody knows", wh_peer_status(scene->peer), 0);
	scene_expect("submit", wh_batch_submit(batch), 0);
	scene_expect("a write to what is gone", scene_end(batch, SIM_SEC), -ECONNRESET);
	wh_batch_free(batch);
}

static void world_ended_session(void)
{
	sim_options.programs = 2;
	sim_options.transports = 2;
	scene_play(act_ended_session);
}

static void world_ended_session_mapped(void)
{
	sim_options.shared = 2;
	world_ended_session();
}

static void world_ended_session_gpu(void)
{
	sim_options.gpus = 1;
	sim_options.gpu_regions = 100;
	world_ended_session();
}

/* A GPU still moves a batch's bytes when the peer is lost, and when it is reached again and another
 * batch goes there. */
static void act_outlived_session(struct scene *scene)
{
	struct wh_batch *batch = scene_write(scene, 64), *next = scene_write(scene, 64);

	scene_expect("submit", wh_batch_submit(batch), 0);
	scene_expect("a write", scene_end(batch, SIM_SEC), 0);
	sim_gpu_stall(0, 0, 2 * SIM_SEC);
	scene_expect("submit", wh_batch_submit(batch), 0);
	sim_network_reset(0, 0, 0);
	while (!wh_peer_status(scene->peer))
		scene_pass(scene, 100000);
	while (wh_peer_status(scene->peer))
		scene_pass(scene, SIM_MS);
	scene_expect("submit", wh_batch_submit(next), 0);
	scene_pass(scene, 100 * SIM_MS);
	scene_expect("the batch of a GPU that stands still", wh_batch_status(batch), -EINPROGRESS);
	scene_expect("a write in a session that is over", scene_end(batch, 10 * SIM_SEC),
		     -ECONNRESET);
	scene_expect("a write in the next session", scene_end(next, 10 * SIM_SEC), 0);
	wh_batch_free(batch);
	wh_batch_free(next);
}

static void world_outlived_session(void)
{
	sim_options.programs = 2;
	sim_options.transports = 2;
	sim_options.gpus = 1;
	sim_options.gpu_regions = 100;
	scene_play(act_outlived_session);
}

const struct world worlds_shared[] = {
	{ "still-owner", "an owner of shared memory stands still", world_still_owner },
	{ "still-owner-driven", "the same, without threads", world_still_owner_driven },
	{ "ended-session", "memory is unregistered whose peer does not know of its loss",
	  world_ended_session },
	{ "ended-session-mapped", "the same, where the peer maps the memory",
	  world_ended_session_mapped },
	{ "ended-session-gpu", "the same, with a GPU's memory", world_ended_session_gpu },
	{ "outlived-session", "a GPU ends its work after the peer was lost and reached again",
	  world_outlived_session },
	{ NULL, NULL, NULL },
};
