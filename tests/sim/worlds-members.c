/* SPDX-License-Identifier: Apache-2.0 */
/* Directed worlds of weights with several members: two sources and two targets at most, each on a
 * host of its own. A director says what each does, one after the other. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scene.h"
#include "weights/run/run.h"

#define PART 64 /* bytes of a tensor */
#define TENSORS 2
#define A 1u /* bits of the tensors that a member has */
#define B 2u
#define MEMBERS 4
#define LONG (20 * SIM_SEC) /* enough for whatever has to come */

struct member {
	const char *name;
	bool source;
	unsigned parts;
	bool unlisted; /* the layouts do not say its URL */
	const char *host; /* bytes enter it once; NULL: its own */
	int node;
	struct wh_engine *engine;
	struct wh_weights *weights;
	uint8_t memory[TENSORS * PART];
	/* what it does for the director */
	void (*act)(struct member *member);
	uint64_t version;
	bool done;
};

static struct member *cast; /* sources first; ended by one without a name */
static void (*play)(void);

/* ---- layouts --------------------------------------------------------------------------------- */

struct side {
	struct wh_weights_engine engines[MEMBERS];
	struct wh_weights_region regions[MEMBERS];
	struct wh_weights_slice slices[MEMBERS * TENSORS];
	char urls[MEMBERS][64];
	struct wh_weights_layout layout;
};

static void side_add(struct side *side, const struct member *member)
{
	uint32_t i = side->layout.engine_count++;

	side->layout.region_count++;
	program_url((int)(member - cast), side->urls[i], sizeof(side->urls[i]));
	side->engines[i] = (struct wh_weights_engine){
		.name = member->name,
		.host = member->host,
		.url = member->unlisted ? NULL : side->urls[i],
	};
	side->regions[i] = (struct wh_weights_region){ .name = "all",
						       .bytes = sizeof(member->memory),
						       .engine = i };
	for (uint32_t t = 0; t < TENSORS; t++)
		if (member->parts & 1u << t)
			side->slices[side->layout.slice_count++] = (struct wh_weights_slice){
				.tensor = t, .region = i, .offset = (uint64_t)t * PART
			};
}

static void side_make(struct side *side, bool source)
{
	static const uint64_t shape = PART;
	static const struct wh_weights_tensor tensors[TENSORS] = {
		{ .name = "a", .type = "u8", .shape = &shape, .dims = 1 },
		{ .name = "b", .type = "u8", .shape = &shape, .dims = 1 },
	};

	side->layout = (struct wh_weights_layout){ .size = sizeof(side->layout),
						   .tensors = tensors,
						   .tensor_count = TENSORS,
						   .engines = side->engines,
						   .regions = side->regions,
						   .slices = side->slices };
	for (const struct member *member = cast; member->name; member++)
		if (member->source == source)
			side_add(side, member);
}

/* ---- what a member does ---------------------------------------------------------------------- */

static void do_open_engine(struct member *member)
{
	struct program_settings settings = { 0 };
	char url[64];
	const struct wh_engine_options options = { .size = sizeof(options),
						   .name = member->name,
						   .listen = url + strlen("wherry://"),
						   .config = settings.rows };

	program_settings(&settings);
	program_url((int)(member - cast), url, sizeof(url));
	scene_expect("wh_engine_open", wh_engine_open(&options, &member->engine), 0);
}

static void do_open(struct member *member)
{
	struct side sides[2] = { 0 };
	struct wh_weights_memory memory = { .region = "all", .address = { member->memory } };
	const struct wh_weights_options options = { .size = sizeof(options),
						    .sources = &sides[0].layout,
						    .targets = &sides[1].layout,
						    .memory = &memory,
						    .memory_count = member->source };

	side_make(&sides[0], true);
	side_make(&sides[1], false);
	scene_expect("wh_weights_open", wh_weights_open(member->engine, &options, &member->weights),
		     0);
}

/* All bytes of a version are its number. */
static void do_publish(struct member *member)
{
	memset(member->memory, (int)member->version, sizeof(member->memory));
	scene_expect("wh_weights_publish", wh_weights_publish(member->weights, member->version), 0);
}

static void do_retract(struct member *member)
{
	scene_expect("wh_weights_retract", wh_weights_retract(member->weights), 0);
	memset(member->memory, 0, sizeof(member->memory));
}

static void do_acquire(struct member *member)
{
	struct wh_weights_view view = { .size = sizeof(view) };
	static char text[4000];

	if (wh_weights_acquire(member->weights, member->version - 1, LONG, &view)) {
		wh_weights_explain(member->weights, text, sizeof(text));
		sim_fail("hang", "%s gets no version %d in %lld s: %s", member->name,
			 (int)member->version, LONG / SIM_SEC, text);
	}
	scene_expect("the version", (int)view.version, (int)member->version);
	for (size_t i = 0; i < sizeof(member->memory); i++)
		if (member->parts & 1u << i / PART &&
		    ((uint8_t *)view.addresses[0])[i] != member->version)
			sim_fail("bytes", "byte %zu of version %d is another one's", i,
				 (int)member->version);
	scene_expect("wh_weights_release", wh_weights_release(member->weights, &view), 0);
}

static void do_cancel(struct member *member)
{
	scene_expect("wh_weights_cancel", wh_weights_cancel(member->weights, member->version), 0);
}

static void do_close(struct member *member)
{
	scene_expect("wh_weights_close", wh_weights_close(member->weights), 0);
	member->weights = NULL;
}

static void do_close_engine(struct member *member)
{
	if (member->weights)
		do_close(member);
	scene_expect("wh_engine_close", wh_engine_close(member->engine), 0);
}

/* ---- the director ---------------------------------------------------------------------------- */

static void *member_main(void *arg)
{
	struct member *member = arg;

	member->act(member);
	member->done = true;
	return NULL;
}

/* Have a member do something, and wait until it is done. */
static void direct(struct member *member, void (*act)(struct member *), uint64_t version)
{
	member->act = act;
	member->version = version;
	member->done = false;
	sim_spawn(member->node, member->name, member_main, member);
	while (!member->done)
		sim_sleep(SIM_MS);
}

static void *director_main(void *arg)
{
	struct member *member;

	for (member = cast; member->name; member++) {
		member->node = sim_node_new(place_host((int)(member - cast)));
		direct(member, do_open_engine, 0);
	}
	play();
	for (member = cast; member->name; member++)
		direct(member, do_close_engine, 0);
	return arg;
}

static void stage(struct member *members, void (*act)(void))
{
	cast = members;
	play = act;
	sim_spawn(-1, "director", director_main, NULL);
}

/* ---- a source that the plan does not name ---------------------------------------------------- */

/* Bytes that `target` has read from the n-th source. */
static uint64_t bytes_from(const struct member *target, uint32_t source)
{
	struct wh_weights_member other = { .size = sizeof(other) };

	scene_expect("wh_weights_member", wh_weights_member(target->weights, source, &other), 0);
	return other.sent;
}

/* Both sources have all, so the plan reads from one of them. That one leaves; the other one opens
 * its weights anew, while the target has no memory for what it hears. So the target does not know
 * of the new weights, and they know no URL of the target: it has to look by itself. */
static void act_unplanned_source(void)
{
	struct member *sources = cast, *target = &cast[2], *planned, *other;

	for (int i = 0; i < 3; i++)
		direct(&cast[i], do_open, 0);
	for (int i = 0; i < 2; i++)
		direct(&sources[i], do_publish, 1);
	direct(target, do_acquire, 1);
	planned = &sources[bytes_from(target, 0) ? 0 : 1];
	other = &sources[planned == sources ? 1 : 0];
	if (bytes_from(target, (uint32_t)(other - sources)))
		sim_fail("directed", "the plan names both sources");
	sim_sleep(3 * SIM_SEC);
	direct(planned, do_close, 0);
	sim_sleep(SIM_SEC);
	sim_node_fail_size(target->node, sizeof(struct wh_heard));
	direct(other, do_close, 0);
	direct(other, do_open, 0);
	sim_sleep(100 * SIM_MS);
	sim_node_fail_size(target->node, 0);
	direct(other, do_publish, 2);
	direct(target, do_acquire, 2);
}

static void world_unplanned_source(void)
{
	static struct member members[MEMBERS] = {
		{ .name = "s0", .source = true, .parts = A },
		{ .name = "s1", .source = true, .parts = A },
		{ .name = "t0", .parts = A, .unlisted = true },
	};

	stage(members, act_unplanned_source);
}

/* ---- two versions that are stuck ------------------------------------------------------------- */

#define WATCHED (3 * SIM_SEC)

/* Which versions does it begin in a while? A bit for each. */
static unsigned watch_attempts(const struct member *member)
{
	struct wh_weights_info info = { .size = sizeof(info) };
	unsigned tried = 0;

	for (int64_t end = sim_time + WATCHED; sim_time < end; sim_sleep(10 * SIM_MS)) {
		scene_expect("wh_weights_info", wh_weights_info(member->weights, &info), 0);
		tried |= 1u << info.receiving;
	}
	return tried;
}

/* `half`, who wants A alone, has version 1 whole. `all` comes when no source has B: neither of
 * version 1, which is preferred as somebody has it whole, nor of version 2, which s1 has published
 * and retracted. Each has its turn of half a second or longer, and its thread sleeps meanwhile: the
 * world fails if it does not. */
static void act_stuck_versions(void)
{
	struct member *s0 = &cast[0], *s1 = &cast[1], *all = &cast[2], *half = &cast[3];
	unsigned tried;

	for (int i = 0; i < MEMBERS; i++)
		if (&cast[i] != all)
			direct(&cast[i], do_open, 0);
	direct(s0, do_publish, 1);
	direct(s1, do_publish, 1);
	direct(half, do_acquire, 1);
	direct(half, do_cancel, 2);
	direct(s0, do_retract, 0);
	direct(s1, do_retract, 0);
	direct(s0, do_publish, 2);
	direct(s1, do_publish, 2);
	direct(s1, do_retract, 0);
	direct(all, do_open, 0);
	sim_sleep(SIM_SEC);
	tried = watch_attempts(all);
	if (tried != (1u << 1 | 1u << 2))
		sim_fail("directed", "not both versions were stuck: %x", tried);
	direct(s0, do_retract, 0);
	direct(s0, do_publish, 3);
	direct(s1, do_publish, 3);
	direct(all, do_acquire, 3);
	direct(half, do_acquire, 3);
}

static void world_stuck_versions(void)
{
	static struct member members[MEMBERS + 1] = {
		{ .name = "s0", .source = true, .parts = A },
		{ .name = "s1", .source = true, .parts = B },
		{ .name = "all", .parts = A | B, .host = "host" },
		{ .name = "half", .parts = A, .host = "host" },
	};

	stage(members, act_stuck_versions);
}

const struct world worlds_members[] = {
	{ "unplanned-source", "a source that the plan does not name is opened anew, unheard",
	  world_unplanned_source },
	{ "stuck-versions", "two versions of weights are stuck in turn", world_stuck_versions },
	{ NULL, NULL, NULL },
};
