/* SPDX-License-Identifier: Apache-2.0 */
#include "scene.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int scene_owner_timeout;
static void (*play)(struct scene *scene);
static struct scene *stage;
static bool over;

void scene_expect(const char *what, int rc, int expected)
{
	if (rc != expected)
		sim_fail("directed", "%s: %d, should be %d; %s", what, rc, expected,
			 wh_error_text());
}

void scene_pass(struct scene *scene, int64_t ns)
{
	for (int64_t end = sim_time + ns; sim_time < end;)
		program_progress(scene->initiator, end - sim_time);
}

struct wh_batch *scene_write(struct scene *scene, size_t length)
{
	struct wh_transfer transfer = { .local = scene->region,
					.remote = scene->target->remote,
					.remote_offset = PROGRAM_GAP,
					.length = length,
					.op = WH_WRITE };
	struct wh_batch *batch;

	scene_expect("wh_batch_new", wh_batch_new(scene->peer, NULL, &batch), 0);
	scene_expect("wh_batch_add", wh_batch_add(batch, &transfer, 1), 0);
	return batch;
}

int scene_end(struct wh_batch *batch, int64_t ns)
{
	if (wh_batch_wait_for(batch, ns))
		sim_fail("hang", "a batch has not ended after %lld ms", (long long)(ns / SIM_MS));
	return wh_batch_status(batch);
}

void scene_expect_never_lost(const struct scene *scene)
{
	struct wh_engine_counters counters = { .size = sizeof(counters) };

	scene_expect("wh_engine_counters",
		     wh_engine_counters(scene->initiator->engine, &counters, NULL), 0);
	scene_expect("peers that were lost", (int)counters.peers_lost, 0);
}

static struct program *place_new(int place)
{
	struct program *program = calloc(1, sizeof(*program));

	program->place = place;
	program->node = sim_node_new(place_host(place));
	program->measured = true; /* nobody counts the batches of a scene */
	snprintf(program->name, sizeof(program->name), "host%d", place);
	return program;
}

static void *owner_main(void *arg)
{
	struct scene *scene = arg;
	int timeout = sim_options.timeout_ms;
	bool opened;

	/* No other thread reads it: the initiator waits for the owner. */
	if (scene_owner_timeout)
		sim_options.timeout_ms = scene_owner_timeout;
	opened = program_engine_open(scene->owner);
	sim_options.timeout_ms = timeout;
	if (!opened)
		sim_fail("directed", "the owner cannot open its engine: %s", wh_error_text());
	while (!over)
		program_progress(scene->owner, 10 * SIM_MS);
	program_engine_close(scene->owner);
	return NULL;
}

struct wh_peer *scene_open(struct scene *scene)
{
	struct wh_peer *peer;
	char url[64];

	program_url(SCENE_OWNER, url, sizeof(url));
	scene_expect("wh_peer_open", wh_peer_open(scene->initiator->engine, url, NULL, &peer), 0);
	return peer;
}

static void stage_open(struct scene *scene)
{
	while (!scene->owner->epoch)
		sim_sleep(SIM_MS);
	if (!program_engine_open(scene->initiator))
		sim_fail("directed", "the initiator cannot open its engine: %s", wh_error_text());
	scene->peer = scene_open(scene);
	scene->local = calloc(1, SCENE_LOCAL);
	scene_expect("wh_region_register",
		     wh_region_register(scene->initiator->engine, scene->local, SCENE_LOCAL, NULL,
					&scene->region),
		     0);
	scene->target = scene->owner->targets[0];
	scene->target->block[0].tainted = true; /* the world looks at it itself */
}

static void *initiator_main(void *arg)
{
	struct scene *scene = arg;

	stage_open(scene);
	play(scene);
	sim_network_watch(NULL, NULL);
	scene_expect("wh_peer_close", wh_peer_close(scene->peer), 0);
	scene_expect("wh_region_unregister", wh_region_unregister(scene->region), 0);
	program_engine_close(scene->initiator);
	free(scene->local);
	over = true;
	return NULL;
}

void scene_play(void (*act)(struct scene *scene))
{
	play = act;
	stage = calloc(1, sizeof(*stage));
	sim_options.block = SCENE_LOCAL;
	stage->owner = place_new(SCENE_OWNER);
	stage->initiator = place_new(0);
	sim_spawn(stage->owner->node, "owner", owner_main, stage);
	sim_spawn(stage->initiator->node, "initiator", initiator_main, stage);
}
