/* SPDX-License-Identifier: Apache-2.0 */
/* Directed worlds of weights. */
#include <errno.h>

#include "scene.h"
#include "weights/run/message.h"

#define STILL (3 * SIM_SEC)

/* ---- weights that hear what is no hello ------------------------------------------------------ */

#define LONG_NOTE 1000 /* bytes, longer than any hello */

#define ALONE 64 /* bytes of weights */

/* Open weights of one tensor between this engine and one that is not there. */
static int weights_try_alone(const struct program *program, void *memory, struct wh_weights **out)
{
	uint64_t shape = ALONE, begin = 0;
	struct wh_weights_tensor tensor = { .name = "t", .type = "u8", .shape = &shape, .dims = 1 };
	struct wh_weights_region region = { .name = "all", .bytes = ALONE };
	struct wh_weights_slice slice = { .begin = &begin, .end = &shape };
	struct wh_weights_engine here = { .name = wh_engine_name(program->engine) };
	struct wh_weights_engine there = { .name = "nobody" };
	struct wh_weights_layout sides[2] = { {
		.size = sizeof(sides[0]),
		.tensors = &tensor,
		.engines = &here,
		.regions = &region,
		.slices = &slice,
		.tensor_count = 1,
		.engine_count = 1,
		.region_count = 1,
		.slice_count = 1,
	} };
	struct wh_weights_memory given = { .region = "all", .address = { memory } };
	struct wh_weights_options options = { .size = sizeof(options),
					      .sources = &sides[0],
					      .targets = &sides[1],
					      .memory = &given,
					      .memory_count = 1,
					      .name = "w" };

	sides[1] = sides[0];
	sides[1].engines = &there;
	return wh_weights_open(program->engine, &options, out);
}

static struct wh_weights *weights_open_alone(struct scene *scene)
{
	static uint8_t memory[ALONE];
	struct wh_weights *weights;

	scene_expect("wh_weights_open", weights_try_alone(scene->initiator, memory, &weights), 0);
	return weights;
}

/* A notification with the tag of the weights waits when they are opened, and there is no memory to
 * take it out of the way: their thread sleeps, and they can be closed. */
static void act_long_note(struct scene *scene)
{
	struct wh_engine *engine = scene->initiator->engine;
	uint64_t tag = WH_WEIGHTS_TAG | (('w' ^ 0x811c9dc5u) * 0x01000193u);
	struct wh_notification note = { .size = sizeof(note) };
	struct wh_notification_filter filter = { .size = sizeof(filter),
						 .tag = tag,
						 .tag_mask = UINT64_MAX };
	struct wh_weights *weights;
	struct wh_batch *batch;
	struct wh_peer *self;
	int64_t since;

	scene_expect("wh_peer_open", wh_peer_open(engine, "self", NULL, &self), 0);
	scene_expect("wh_batch_new", wh_batch_new(self, NULL, &batch), 0);
	scene_expect("wh_batch_notify", wh_batch_notify(batch, tag, scene->local, LONG_NOTE), 0);
	scene_expect("submit", wh_batch_submit(batch), 0);
	scene_expect("the notification", scene_end(batch, SIM_SEC), 0);
	wh_batch_free(batch);
	scene_expect("wh_peer_close", wh_peer_close(self), 0);
	sim_node_fail_size(scene->initiator->node, LONG_NOTE);
	weights = weights_open_alone(scene);
	scene_pass(scene, SIM_SEC);
	since = sim_time;
	scene_expect("wh_weights_close", wh_weights_close(weights), 0);
	if (sim_time - since > 2 * SIM_SEC)
		sim_fail("hang", "wh_weights_close() took %lld ms",
			 (long long)((sim_time - since) / SIM_MS));
	scene_expect("the notification", wh_engine_notification(engine, &filter, &note, 0),
		     -EMSGSIZE);
	/* With memory it goes. */
	sim_node_fail_size(scene->initiator->node, 0);
	weights = weights_open_alone(scene);
	scene_pass(scene, SIM_SEC);
	scene_expect("no notification", wh_engine_notification(engine, &filter, &note, 0), -EAGAIN);
	/* Neither is there memory for what wakes the thread that takes notifications. */
	sim_options.malloc_fails = 100000;
	sim_node_short_memory(scene->initiator->node, 60 * SIM_SEC);
	since = sim_time;
	scene_expect("wh_weights_close", wh_weights_close(weights), 0);
	if (sim_time - since > 3 * SIM_SEC)
		sim_fail("hang", "wh_weights_close() took %lld ms without memory",
			 (long long)((sim_time - since) / SIM_MS));
	sim_node_short_memory(scene->initiator->node, 0);
}

static void world_long_note(void)
{
	scene_play(act_long_note);
}

/* The initiator stands still, and has not let go of the owner's memory: the owner's weights cannot
 * be opened, and their memory is his again when that call returns. */
static void *fail_opening(void *arg)
{
	struct scene *scene = arg;
	struct wh_engine *engine = scene->owner->engine;
	struct wh_region_options named = { .size = sizeof(named), .name = "w.control" };
	struct wh_weights *weights;
	struct wh_region *region;
	uint8_t taken[ALONE];
	void *memory;

	scene_expect("wh_memory_alloc", wh_memory_alloc(engine, ALONE, NULL, &memory), 0);
	scene_expect("wh_region_register",
		     wh_region_register(engine, taken, sizeof(taken), &named, &region), 0);
	sim_node_stall(scene->initiator->node, STILL);
	if (target_close(scene->owner, 0, false))
		sim_fail("directed", "a peer that stands still has let go of memory");
	scene_expect("wh_weights_open", weights_try_alone(scene->owner, memory, &weights), -EEXIST);
	scene_expect("wh_memory_free", wh_memory_free(engine, memory), 0);
	scene_expect("wh_region_unregister", wh_region_unregister(region), 0);
	while (!target_close(scene->owner, 0, true))
		sim_sleep(SIM_MS);
	scene->target = NULL;
	return NULL;
}

static void act_failed_opening(struct scene *scene)
{
	struct wh_batch *batch = scene_write(scene, 64);

	scene_expect("submit", wh_batch_submit(batch), 0);
	scene_expect("a write", scene_end(batch, SIM_SEC), 0);
	wh_batch_free(batch);
	sim_spawn(scene->owner->node, "opening", fail_opening, scene);
	while (scene->target)
		scene_pass(scene, SIM_MS);
}

static void world_failed_opening(void)
{
	sim_options.programs = 2;
	sim_options.transports = 2;
	sim_options.shared = 2;
	scene_play(act_failed_opening);
}

const struct world worlds_weights[] = {
	{ "long-note", "weights hear what is no hello, without memory", world_long_note },
	{ "failed-opening", "weights cannot be opened while a peer stands still",
	  world_failed_opening },
	{ NULL, NULL, NULL },
};
