/* SPDX-License-Identifier: Apache-2.0 */
/* A directed world of memory that peers map, which is unregistered while bytes are being written
 * there, again and again, at another step of the write each time. */
#include <string.h>

#include "scene.h"

#define ROUNDS 40
#define ALWAYS 1000 /* per mille */
#define PAGE 4096
#define BYTES (48 * PAGE)
#define STEPS (60 * 1000) /* ns: longer than the bytes of a write come for */

_Static_assert(BYTES <= SCENE_LOCAL, "a write has all its bytes");

/* Memory of the owner. */
struct withdrawn {
	const struct scene *scene;
	uint8_t *memory;
	struct wh_region *region, *neighbour; /* of the same memory */
	uint64_t remote; /* 0: there is none now */
	bool left;
};

static void memory_register(struct withdrawn *withdrawn)
{
	const struct wh_region_options options = { .size = sizeof(options),
						   .access = WH_ACCESS_WRITE };
	struct wh_engine *engine = withdrawn->scene->owner->engine;
	void *memory;

	scene_expect("wh_memory_alloc", wh_memory_alloc(engine, BYTES + PAGE, NULL, &memory), 0);
	withdrawn->memory = memory;
	scene_expect("wh_region_register",
		     wh_region_register(engine, withdrawn->memory + BYTES, PAGE, &options,
					&withdrawn->neighbour),
		     0);
	scene_expect("wh_region_register",
		     wh_region_register(engine, memory, BYTES, &options, &withdrawn->region), 0);
	withdrawn->remote = wh_region_id(withdrawn->region);
}

/* Threads that receive stand still first, wherever they are. The peer's answer comes to another
 * one. A peer that maps the memory ends its mapping already for the neighbour. */
static void memory_unregister(struct withdrawn *withdrawn)
{
	scene_expect("wh_region_unregister", wh_region_unregister(withdrawn->neighbour), 0);
	scene_expect("wh_region_unregister", wh_region_unregister(withdrawn->region), 0);
	scene_expect("wh_memory_free",
		     wh_memory_free(withdrawn->scene->owner->engine, withdrawn->memory), 0);
	withdrawn->remote = 0;
}

static void *withdraw_main(void *arg)
{
	struct withdrawn *withdrawn = arg;

	for (int round = 0; round < ROUNDS; round++) {
		memory_register(withdrawn);
		while (!withdrawn->memory[0])
			sim_sleep(300);
		sim_sleep((int64_t)sim_draw_world(STEPS));
		memory_unregister(withdrawn);
		/* What the write has left on its way comes now. */
		sim_sleep(10 * SIM_MS);
	}
	withdrawn->left = true;
	return NULL;
}

static void write_there(struct scene *scene, uint64_t remote)
{
	const struct wh_transfer transfer = {
		.local = scene->region, .remote = remote, .length = BYTES, .op = WH_WRITE
	};
	struct wh_batch *batch;

	scene_expect("wh_batch_new", wh_batch_new(scene->peer, NULL, &batch), 0);
	scene_expect("wh_batch_add", wh_batch_add(batch, &transfer, 1), 0);
	if (!wh_batch_submit(batch))
		scene_end(batch, 20 * SIM_SEC);
	wh_batch_free(batch);
}

static void act_withdrawn(struct scene *scene)
{
	struct withdrawn withdrawn = { .scene = scene };
	uint64_t written = 0;

	memset(scene->local, 'A', SCENE_LOCAL);
	sim_spawn(scene->owner->node, "withdraw", withdraw_main, &withdrawn);
	while (!withdrawn.left) {
		uint64_t remote = withdrawn.remote;

		if (remote && remote != written)
			write_there(scene, written = remote);
		else
			scene_pass(scene, 100000);
	}
}

/* The peer copies the bytes, and other threads run in the midst of that. */
static void world_withdrawn_mapped(void)
{
	sim_options.programs = 2;
	sim_options.transports = 2;
	sim_options.copy_pauses = ALWAYS;
	sim_options.latency_us = 1;
	scene_play(act_withdrawn);
}

const struct world worlds_withdrawn[] = {
	{ "withdrawn-mapped", "mapped memory is unregistered in the midst of writes",
	  world_withdrawn_mapped },
	{ NULL, NULL, NULL },
};
