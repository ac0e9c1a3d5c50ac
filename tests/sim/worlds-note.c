/* SPDX-License-Identifier: Apache-2.0 */
/* Directed worlds of notifications. */
#include <errno.h>

#include "scene.h"

/* ---- notifications that nobody takes ----------------------------------------------------------
 */

#define NOTES 40 /* more than the owner keeps and may be on their way together */
#define LOST_TAG 1000 /* of those before a loss */

struct taker {
	const struct scene *scene;
	int taken; /* in order */
	bool leave, left;
};

/* The owner takes what has come. */
static void *take_main(void *arg)
{
	struct taker *taker = arg;
	struct wh_notification got = { .size = sizeof(got) };
	struct wh_engine *engine = taker->scene->owner->engine;

	while (!taker->leave) {
		int rc = wh_engine_notification(engine, NULL, &got, 10 * SIM_MS);

		if (rc != -EAGAIN) {
			scene_expect("wh_engine_notification", rc, 0);
			if (got.tag < LOST_TAG)
				scene_expect("the tag", (int)got.tag, taker->taken++);
		}
	}
	taker->left = true;
	return NULL;
}

static void notes_submit(struct scene *scene, struct wh_batch *batches[NOTES], uint64_t tag)
{
	for (int i = 0; i < NOTES; i++) {
		scene_expect("wh_batch_new", wh_batch_new(scene->peer, NULL, &batches[i]), 0);
		scene_expect("wh_batch_notify",
			     wh_batch_notify(batches[i], tag + (uint64_t)i, NULL, 0), 0);
		scene_expect("submit", wh_batch_submit(batches[i]), 0);
	}
	scene_pass(scene, 100 * SIM_MS);
}

static void notes_take(struct scene *scene, struct wh_batch *batches[NOTES])
{
	struct taker taker = { .scene = scene };

	sim_spawn(scene->owner->node, "take", take_main, &taker);
	for (int i = 0; i < NOTES; i++) {
		scene_expect("a notification", scene_end(batches[i], 20 * SIM_SEC), 0);
		wh_batch_free(batches[i]);
	}
	scene_pass(scene, 100 * SIM_MS);
	taker.leave = true;
	while (!taker.left)
		scene_pass(scene, SIM_MS);
	scene_expect("notifications", taker.taken, NOTES);
}

static void act_untaken(struct scene *scene)
{
	struct wh_batch *batches[NOTES];

	notes_submit(scene, batches, 0);
	notes_take(scene, batches);
	scene_expect_never_lost(scene);
}

/* What a lost peer has not confirmed takes no room from the next ones. */
static void act_untaken_lost(struct scene *scene)
{
	struct wh_batch *batches[NOTES];

	notes_submit(scene, batches, LOST_TAG);
	sim_network_reset(0, SCENE_OWNER, 0);
	for (int i = 0; i < NOTES; i++) {
		scene_end(batches[i], SIM_SEC);
		wh_batch_free(batches[i]);
	}
	while (wh_peer_status(scene->peer))
		scene_pass(scene, SIM_MS);
	notes_submit(scene, batches, 0);
	notes_take(scene, batches);
}

static void world_untaken_lost(void)
{
	sim_options.notifications = 1;
	scene_play(act_untaken_lost);
}

static void world_untaken(void)
{
	sim_options.notifications = 1;
	scene_play(act_untaken);
}

const struct world worlds_note[] = {
	{ "untaken", "more notifications than the owner keeps, in order", world_untaken },
	{ "untaken-lost", "the same, and the peer is lost before", world_untaken_lost },
	{ NULL, NULL, NULL },
};
