/* SPDX-License-Identifier: Apache-2.0 */
/* Directed worlds of weights. */
#include <errno.h>

#include "core/batch.h"
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

/* ---- weights whose other half never comes ---------------------------------------------------- */

#define HALF (ALONE / 2)

/* A source that is not there has the first half of a tensor, the owner the second. The initiator
 * wants all of it, and the owner what it has not. */
static struct wh_weights *weights_open_halves(const struct scene *scene,
					      const struct program *program)
{
	uint64_t zero = 0, half = HALF, all = ALONE;
	struct wh_weights_tensor tensor = { .name = "t", .type = "u8", .shape = &all, .dims = 1 };
	char urls[2][64];
	struct wh_weights_engine engines[] = {
		{ .name = "nobody" },
		{ .name = wh_engine_name(scene->owner->engine), .url = urls[0] },
		{ .name = wh_engine_name(scene->initiator->engine), .url = urls[1] },
	};
	struct wh_weights_region held[] = { { .name = "held", .bytes = HALF },
					    { .name = "held", .bytes = HALF, .engine = 1 } };
	struct wh_weights_region wanted[] = { { .name = "wanted", .bytes = ALONE, .engine = 2 },
					      { .name = "wanted", .bytes = HALF, .engine = 1 } };
	struct wh_weights_slice holds[] = { { .begin = &zero, .end = &half },
					    { .region = 1, .begin = &half, .end = &all } };
	struct wh_weights_slice wants[] = { { .begin = &zero, .end = &all },
					    { .region = 1, .begin = &zero, .end = &half } };
	struct wh_weights_layout sources = {
		.size = sizeof(sources),
		.tensors = &tensor,
		.engines = engines,
		.regions = held,
		.slices = holds,
		.tensor_count = 1,
		.engine_count = 3,
		.region_count = 2,
		.slice_count = 2,
	};
	struct wh_weights_layout targets = sources;
	struct wh_weights_options options = { .size = sizeof(options),
					      .sources = &sources,
					      .targets = &targets };
	struct wh_weights *weights;

	targets.regions = wanted;
	targets.slices = wants;
	program_url(SCENE_OWNER, urls[0], sizeof(urls[0]));
	program_url(0, urls[1], sizeof(urls[1]));
	scene_expect("wh_weights_open", wh_weights_open(program->engine, &options, &weights), 0);
	return weights;
}

struct publisher {
	const struct scene *scene;
	bool again, leave, left;
};

/* The owner publishes what it holds, and does so again in another engine of that name. */
static void *publish_half(void *arg)
{
	struct publisher *publisher = arg;
	struct program *owner = publisher->scene->owner;
	struct wh_weights *weights;

	for (int run = 0; run < 2; run++) {
		weights = weights_open_halves(publisher->scene, owner);
		scene_expect("wh_weights_publish", wh_weights_publish(weights, 1), 0);
		while (!(run ? publisher->leave : publisher->again))
			sim_sleep(SIM_MS);
		scene_expect("wh_weights_close", wh_weights_close(weights), 0);
		if (run)
			break;
		program_engine_close(owner);
		if (!program_engine_open(owner))
			sim_fail("directed", "the owner is not there again: %s", wh_error_text());
	}
	publisher->left = true;
	return NULL;
}

/* The initiator has what there is, and waits for the other half, when the owner is started anew.
 * There is no memory for a batch that looks at the new one: a look fails at once, and the next one
 * is not begun at once. */
static void act_look_short(struct scene *scene)
{
	struct publisher publisher = { .scene = scene };
	struct wh_weights_info info = { .size = sizeof(info) };
	struct wh_weights *weights = weights_open_halves(scene, scene->initiator);

	sim_spawn(scene->owner->node, "publisher", publish_half, &publisher);
	scene_pass(scene, 10 * SIM_SEC);
	scene_expect("wh_weights_info", wh_weights_info(weights, &info), 0);
	scene_expect("bytes of a version that has not come whole", (int)info.received, HALF);
	sim_node_fail_size(scene->initiator->node, sizeof(struct wh_batch));
	publisher.again = true;
	scene_pass(scene, 10 * SIM_SEC);
	sim_node_fail_size(scene->initiator->node, 0);
	publisher.leave = true;
	while (!publisher.left)
		scene_pass(scene, SIM_MS);
	scene_expect("wh_weights_close", wh_weights_close(weights), 0);
}

static void world_look_short(void)
{
	scene_play(act_look_short);
}

const struct world worlds_weights[] = {
	{ "long-note", "weights hear what is no hello, without memory", world_long_note },
	{ "failed-opening", "weights cannot be opened while a peer stands still",
	  world_failed_opening },
	{ "look-short", "weights look for what nobody has, without memory", world_look_short },
	{ NULL, NULL, NULL },
};
