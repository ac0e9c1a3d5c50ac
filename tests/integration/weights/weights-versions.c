/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: weights */
/* weights-versions.c: versions of weights reach all targets, whole, and are never seen mixed */
#include "lib/member.h"

static const struct model small = { .sources = 2,
				    .targets = 3,
				    .wants = WANTS_ALL,
				    .rows = 64,
				    .columns = 16 * KIB,
				    .piece = 64 * KIB,
				    .chunk = 256 * KIB };

static void versions__replicas(void **state)
{
	(void)state;
	group_versions(&small);
}

/* Rows to columns: blocks with strides. */
static void versions__resharded(void **state)
{
	struct model model = small;

	(void)state;
	model.wants = WANTS_COLUMNS;
	model.sources = 3;
	model.rows = 61;
	group_versions(&model);
}

static void versions__rows(void **state)
{
	struct model model = small;

	(void)state;
	model.wants = WANTS_ROWS;
	model.rows = 67;
	group_versions(&model);
}

/* Each on a host of its own, by the plan: bytes enter one target and are handed on. */
static void versions__handed_on(void **state)
{
	struct member_answer answer;
	struct model model = small;
	static struct group group;
	uint64_t handed = 0;

	(void)state;
	model.sources = 1;
	model.targets = 4;
	model.separate_hosts = true;
	group_start(&group, &model, true);
	for (uint64_t version = 1; version <= 3; version++)
		group_pass(&group, version);
	for (uint32_t i = 0; i < 4; i++) {
		char *line, *rest = answer.text;

		want(0, member_call(group_target(&group, i), MEMBER_EXPLAIN, 0, 0, &answer));
		want_true(strstr(answer.text, " took ") && strstr(answer.text, " reads of "), "%s",
			  answer.text);
		while ((line = strtok_r(rest, "\n", &rest)))
			handed += !strncmp(line, "target", 6) &&
				  strstr(line, "bytes read from it by shm");
	}
	want_true(handed > 1, "%d targets read from another target", (int)handed);
	group_end(&group);
}

static void versions__tcp(void **state)
{
	struct model model = small;

	(void)state;
	model.wants = WANTS_COLUMNS;
	model.config[0] = "require=tcp";
	group_versions(&model);
}

/* Readers look at every byte all the time, while versions follow each other. */
static void versions__never_mixed(void **state)
{
	enum { VERSIONS = 25 };
	struct model model = small;
	struct member_answer answer;
	static struct group group;

	(void)state;
	model.rows = 16;
	group_start(&group, &model, true);
	for (uint32_t i = 0; i < 3; i++)
		want(0, member_call(group_target(&group, i), MEMBER_READ, 0, 0, NULL));
	for (uint64_t version = 1; version <= VERSIONS; version++) {
		for (uint32_t i = 0; i < 2; i++)
			want(0, member_call(group_source(&group, i), MEMBER_PUBLISH, version, 0,
					    NULL));
		/* Mostly without waiting for anybody: the memory changes while it is read. */
		if (version % 5 == 0)
			for (uint32_t i = 0; i < 2; i++)
				want(0, member_call(group_source(&group, i), MEMBER_WAIT, version,
						    PATIENCE, NULL));
		for (uint32_t i = 0; i < 2; i++)
			want(0, member_call(group_source(&group, i), MEMBER_RETRACT, 1000 + version,
					    0, NULL));
	}
	for (uint32_t i = 0; i < 3; i++) {
		want(0, member_call(group_target(&group, i), MEMBER_READ_END, 0, 0, &answer));
		/* A slow reader sees few of them. */
		want_true(answer.value >= 2, "%s saw %d versions in %d views",
			  group_target(&group, i)->name, (int)answer.value, (int)answer.more);
	}
	group_end(&group);
}

/* A reader keeps a view: it does not change, and one version may come meanwhile. */
static void view__does_not_change(void **state)
{
	struct member_answer answer;
	static struct group group;

	(void)state;
	group_start(&group, &small, true);
	group_pass(&group, 1);
	want(0, member_call(group_target(&group, 0), MEMBER_HOLD, 0, 0, &answer));
	want(1, answer.value);
	group_pass(&group, 2);
	for (uint32_t i = 0; i < 2; i++)
		want(0, member_call(group_source(&group, i), MEMBER_PUBLISH, 3, 0, NULL));
	/* The others have it, and this one when its reader lets go. */
	for (uint32_t i = 1; i < 3; i++)
		want(0, member_call(group_target(&group, i), MEMBER_CHECK, 2, PATIENCE, NULL));
	want(-EAGAIN, member_call(group_target(&group, 0), MEMBER_WAIT, 3, 0, NULL));
	want(0, member_call(group_target(&group, 0), MEMBER_DROP, 0, 0, NULL));
	want(0, member_call(group_target(&group, 0), MEMBER_CHECK, 2, PATIENCE, &answer));
	want(3, answer.value);
	group_end(&group);
}

/* What a target gives up does not come, even if it is there; the next version does. */
static void cancel__then_the_next(void **state)
{
	struct member_answer answer;
	static struct group group;

	(void)state;
	group_start(&group, &small, true);
	group_pass(&group, 1);
	want(0, member_call(group_target(&group, 0), MEMBER_CANCEL, 2, 0, NULL));
	for (uint32_t i = 0; i < 2; i++)
		want(0, member_call(group_source(&group, i), MEMBER_PUBLISH, 2, 0, NULL));
	/* In its middle, or before, or behind it: then it has version 2 whole. */
	want(0, member_call(group_target(&group, 1), MEMBER_CANCEL, 2, 0, NULL));
	want(0, member_call(group_target(&group, 2), MEMBER_CHECK, 1, PATIENCE, NULL));
	want(0, member_call(group_target(&group, 0), MEMBER_CHECK, 0, 0, &answer));
	want(1, answer.value);
	want(-EAGAIN, member_call(group_target(&group, 0), MEMBER_CHECK, 1, SECOND / 4, NULL));
	for (uint32_t i = 0; i < 2; i++)
		want(0, member_call(group_source(&group, i), MEMBER_RETRACT, 2, 0, NULL));
	group_pass(&group, 3);
	want(-EACCES, member_call(group_source(&group, 0), MEMBER_CANCEL, 3, 0, NULL));
	group_end(&group);
}

/* One engine that holds the old weights and wants the new ones, and no other: the columns 10 to 30
 * of 100 rows of 40. */
static struct own {
	struct wh_weights_engine engine;
	uint64_t shape[2], begin[2], end[2];
	struct wh_weights_tensor tensor;
	struct wh_weights_region regions[2];
	struct wh_weights_slice slices[2];
	struct wh_weights_layout layouts[2];
	struct wh_weights_memory memory[2];
	struct wh_weights_options options;
	struct wh_engine *opened;
	unsigned char old[8000];
} own;

static void own_start(void)
{
	struct wh_engine_options named = { .size = sizeof(named), .name = "both" };

	own = (struct own){
		.engine = { .name = "both" },
		.shape = { 100, 40 },
		.begin = { 0, 10 },
		.end = { 100, 30 },
		.tensor = { .name = "w", .type = "u16", .shape = own.shape, .dims = 2 },
		.regions = { { .name = "old", .bytes = 8000 }, { .name = "new", .bytes = 4000 } },
		.slices = { { 0 }, { .begin = own.begin, .end = own.end } },
		.memory = { { .region = "old", .address = { own.old } }, { .region = "new" } },
		.options = { .size = sizeof(own.options),
			     .sources = &own.layouts[0],
			     .targets = &own.layouts[1],
			     .memory = own.memory,
			     .memory_count = 1 }
	};
	for (int side = 0; side < 2; side++)
		own.layouts[side] = (struct wh_weights_layout){ .size = sizeof(own.layouts[side]),
								.tensors = &own.tensor,
								.engines = &own.engine,
								.regions = &own.regions[side],
								.slices = &own.slices[side],
								.tensor_count = 1,
								.engine_count = 1,
								.region_count = 1,
								.slice_count = 1 };
	want(0, wh_engine_open(&named, &own.opened));
}

static void own_check(const struct wh_weights_view *view, uint64_t version)
{
	for (uint64_t row = 0; row < 100; row++)
		want(PATTERN_GOOD, pattern_check((unsigned char *)view->addresses[0] + row * 40, 40,
						 row * 80 + 20, version));
}

static void versions__own_part(void **state)
{
	struct wh_weights_view view = { .size = sizeof(view) };
	struct wh_weights *weights, *twice;

	(void)state;
	own_start();
	want(0, wh_weights_open(own.opened, &own.options, &weights));
	want(-EEXIST, wh_weights_open(own.opened, &own.options, &twice));
	pattern_fill(own.old, sizeof(own.old), 0, 1);
	want(0, wh_weights_publish(weights, 1));
	want(0, wh_weights_acquire(weights, 0, PATIENCE, &view));
	own_check(&view, 1);
	want(-EBUSY, wh_weights_close(weights));
	want(0, wh_weights_release(weights, &view));
	want(0, wh_weights_wait(weights, 1, 0));
	want(0, wh_weights_close(weights));
	own.memory[0].region = "older";
	want_text(-ENOENT, "older", wh_weights_open(own.opened, &own.options, &weights));
	own.engine.name = "neither";
	want_text(-ENOENT, "both", wh_weights_open(own.opened, &own.options, &weights));
	want(0, wh_engine_close(own.opened));
}

/* A target with one buffer receives one version; the next one cannot come, as readers would see it
 * half-done. */
static void versions__one_buffer(void **state)
{
	struct wh_weights_view view = { .size = sizeof(view) };
	struct wh_weights_member member = { .size = sizeof(member) };
	static unsigned char only[4000];
	struct wh_weights *weights;

	(void)state;
	own_start();
	own.memory[1].address[0] = own.memory[1].address[1] = only;
	own.options.memory_count = 2;
	want(0, wh_weights_open(own.opened, &own.options, &weights));
	pattern_fill(own.old, sizeof(own.old), 0, 1);
	want(0, wh_weights_publish(weights, 1));
	want(0, wh_weights_acquire(weights, 0, PATIENCE, &view));
	own_check(&view, 1);
	want_true(view.addresses[0] == only, "another buffer");
	want(0, wh_weights_release(weights, &view));
	want(0, wh_weights_member(weights, 0, &member));
	want(4000, member.sent);
	want_true(!strncmp(member.route, "self", 4), "by %s", member.route);
	want(0, wh_weights_retract(weights));
	pattern_fill(own.old, sizeof(own.old), 0, 2);
	want(0, wh_weights_publish(weights, 2));
	want(-EAGAIN, wh_weights_acquire(weights, 1, SECOND / 2, &view));
	want(0, wh_weights_acquire(weights, 0, 0, &view));
	want(1, view.version);
	own_check(&view, 1);
	want(0, wh_weights_release(weights, &view));
	want(0, wh_weights_close(weights));
	want(0, wh_engine_close(own.opened));
}

/* What the loop's tick, which is for what gets lost, had to do: see run.h. */
static uint64_t ticks_count(struct member *member, bool found)
{
	static const char *const before[] = { "woken ", "found something to do " };
	struct member_answer answer;
	const char *at;

	want(0, member_call(member, MEMBER_EXPLAIN, 0, 0, &answer));
	at = strstr(answer.text, before[found]);
	want_true(at, "%s", answer.text);
	return strtoull(at + strlen(before[found]), NULL, 10);
}

/* Nobody listens where the source was: each attempt to connect has its time, and the version comes
 * when the source is back. The tick has nothing to do with it. */
static void ticks__retries(void **state)
{
	int64_t end = now() + PATIENCE;
	struct model model = small;
	static struct group group;
	struct member *target;

	(void)state;
	model.sources = model.targets = 1;
	group_start(&group, &model, false);
	target = group_target(&group, 0);
	member_kill(group_source(&group, 0));
	want(0, member_open(&group, target, 0, NULL));
	while (ticks_count(target, false) < 4)
		want_true(now() < end, "it does not tick");
	member_again(&group, group_source(&group, 0));
	want(0, member_call(group_source(&group, 0), MEMBER_PUBLISH, 1, 0, NULL));
	want(0, member_call(target, MEMBER_CHECK, 0, PATIENCE, NULL));
	want(0, ticks_count(target, true));
	group_end(&group);
}

/* Versions that their sources take back while they are read: the target gives each up when it sees
 * that, and begins the next. */
static void ticks__taken_back(void **state)
{
	enum { VERSIONS = 20 };
	struct model model = small;
	static struct group group;

	(void)state;
	model.targets = 1;
	group_start(&group, &model, true);
	for (uint64_t version = 1; version <= VERSIONS; version++)
		for (uint32_t op = MEMBER_PUBLISH; op <= MEMBER_RETRACT; op++)
			for (uint32_t i = 0; (op == MEMBER_PUBLISH || version < VERSIONS) && i < 2;
			     i++)
				want(0, member_call(group_source(&group, i), op, version, 0, NULL));
	want(0, member_call(group_target(&group, 0), MEMBER_CHECK, VERSIONS - 1, PATIENCE, NULL));
	want(0, ticks_count(group_target(&group, 0), true));
	group_end(&group);
}

static void calls__wrong(void **state)
{
	struct member_answer answer;
	static struct group group;

	(void)state;
	group_start(&group, &small, true);
	for (uint32_t i = 0; i < group.count; i++) {
		want(0, member_call(&group.members[i], MEMBER_BAD, 0, 0, &answer));
		want(0, answer.value);
	}
	want(0, member_call(group_source(&group, 0), MEMBER_PUBLISH, 7, 0, NULL));
	want(-EALREADY, member_call(group_source(&group, 0), MEMBER_PUBLISH, 8, 0, NULL));
	want(0, member_call(group_source(&group, 0), MEMBER_RETRACT, 7, 0, NULL));
	want(-EINVAL, member_call(group_source(&group, 0), MEMBER_PUBLISH, 7, 0, NULL));
	want(-EACCES, member_call(group_target(&group, 0), MEMBER_RETRACT, 0, 0, NULL));
	group_end(&group);
}

static const struct CMUnitTest tests[] = {
	MEMBER_TEST(versions__replicas),    MEMBER_TEST(versions__resharded),
	MEMBER_TEST(versions__rows),        MEMBER_TEST(versions__handed_on),
	MEMBER_TEST(versions__tcp),         MEMBER_TEST(versions__never_mixed),
	MEMBER_TEST(view__does_not_change), MEMBER_TEST(cancel__then_the_next),
	MEMBER_TEST(versions__own_part),    MEMBER_TEST(versions__one_buffer),
	MEMBER_TEST(ticks__retries),        MEMBER_TEST(ticks__taken_back),
	MEMBER_TEST(calls__wrong),
};

MEMBER_MAIN("weights-versions", tests)
