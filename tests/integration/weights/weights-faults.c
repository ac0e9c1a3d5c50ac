/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: weights */
/* weights-faults.c: members that die, come late, stop, differ or have no right */
#include "lib/member.h"
#include "lib/proxy.h"

/* Two sources hold everything each; the plan spreads it over chains of targets. */
static const struct model twice = { .sources = 2,
				    .targets = 3,
				    .copies = 2,
				    .wants = WANTS_ALL,
				    .separate_hosts = true,
				    .rows = 64,
				    .columns = 16 * KIB,
				    .piece = 32 * KIB,
				    .chunk = 64 * KIB };

static void publish(struct group *group, uint64_t version)
{
	for (uint32_t i = 0; i < group->model.sources; i++)
		if (group_source(group, i)->running)
			want(0,
			     member_call(group_source(group, i), MEMBER_PUBLISH, version, 0, NULL));
}

static void retract(struct group *group)
{
	for (uint32_t i = 0; i < group->model.sources; i++)
		if (group_source(group, i)->running)
			want(0, member_call(group_source(group, i), MEMBER_RETRACT, 99, 0, NULL));
}

/* A target gets the version, or a later one, and each byte of it. */
static void want_version(struct member *target, uint64_t version)
{
	struct member_answer answer;

	want(0, member_call(target, MEMBER_CHECK, version - 1, PATIENCE, &answer));
	want_true(answer.value >= version, "version %d", (int)answer.value);
}

/* A source dies before, while and after others read from it: the other one has everything. */
static void source__dies(void **state)
{
	static struct group group;

	(void)state;
	for (unsigned int delay = 0; delay <= 10; delay += 10) {
		group_start(&group, &twice, true);
		publish(&group, 1);
		sleep_ms(delay);
		member_kill(group_source(&group, 0));
		for (uint32_t i = 0; i < 3; i++)
			want_version(group_target(&group, i), 1);
		/* Back again, it takes part in the next version. */
		retract(&group);
		member_again(&group, group_source(&group, 0));
		publish(&group, 2);
		for (uint32_t i = 0; i < 3; i++)
			want_version(group_target(&group, i), 2);
		group_end(&group);
	}
}

/* A target that others read from dies: they take the rest elsewhere, and nobody waits for it. */
static void target__dies(void **state)
{
	static struct group group;

	(void)state;
	for (unsigned int delay = 0; delay <= 10; delay += 10) {
		group_start(&group, &twice, true);
		publish(&group, 1);
		sleep_ms(delay);
		member_kill(group_target(&group, 1));
		want_version(group_target(&group, 0), 1);
		want_version(group_target(&group, 2), 1);
		retract(&group);
		publish(&group, 2);
		want_version(group_target(&group, 0), 2);
		want_version(group_target(&group, 2), 2);
		/* The sources' bytes have gone; it catches up from the other targets. */
		retract(&group);
		member_again(&group, group_target(&group, 1));
		want_version(group_target(&group, 1), 2);
		group_end(&group);
	}
}

/* The only holder of a part dies. The version never gets whole; the one before stays, and the next
 * one comes when the source is back. */
static void source__dies_alone(void **state)
{
	int64_t end = now() + 2 * PATIENCE;
	struct model model = twice;
	static struct group group;
	struct member_answer answer;

	(void)state;
	model.copies = 1;
	group_start(&group, &model, true);
	publish(&group, 1);
	for (uint32_t i = 0; i < 3; i++)
		want_version(group_target(&group, i), 1);
	retract(&group);
	member_kill(group_source(&group, 0));
	want(0, member_call(group_source(&group, 1), MEMBER_PUBLISH, 2, 0, NULL));
	want(-EAGAIN, member_call(group_target(&group, 0), MEMBER_WAIT, 2, SECOND / 2, NULL));
	want(0, member_call(group_target(&group, 0), MEMBER_CHECK, 0, 0, &answer));
	want(1, answer.value);
	do {
		want(0, member_call(group_target(&group, 0), MEMBER_EXPLAIN, 0, 0, &answer));
		want_true(strstr(answer.text, "source0: lost") || now() < end, "%s", answer.text);
	} while (!strstr(answer.text, "source0: lost"));
	want(0, member_call(group_source(&group, 1), MEMBER_RETRACT, 2, 0, NULL));
	member_again(&group, group_source(&group, 0));
	publish(&group, 3);
	for (uint32_t i = 0; i < 3; i++)
		want_version(group_target(&group, i), 3);
	group_end(&group);
}

/* A target that stands still delays nobody; when it goes on, it gets the newest version. */
static void target__stands_still(void **state)
{
	static struct group group;
	struct model model = twice;

	(void)state;
	model.config[0] = SCALE("timeout=500", "timeout=3000");
	group_start(&group, &model, true);
	publish(&group, 1);
	for (uint32_t i = 0; i < 3; i++)
		want_version(group_target(&group, i), 1);
	member_pause(group_target(&group, 1));
	for (uint64_t version = 2; version < 5; version++) {
		retract(&group);
		publish(&group, version);
		want_version(group_target(&group, 0), version);
		want_version(group_target(&group, 2), version);
	}
	member_continue(group_target(&group, 1));
	want_version(group_target(&group, 1), 4);
	group_end(&group);
}

/* One that comes late, when the sources have gone altogether. */
static void target__comes_late(void **state)
{
	static struct group group;

	(void)state;
	group_start(&group, &twice, false);
	for (uint32_t i = 0; i < 4; i++)
		want(0, member_open(&group, &group.members[i], 0, NULL));
	publish(&group, 1);
	want_version(group_target(&group, 0), 1);
	want_version(group_target(&group, 1), 1);
	member_kill(group_source(&group, 0));
	member_kill(group_source(&group, 1));
	want(0, member_open(&group, group_target(&group, 2), 0, NULL));
	want_version(group_target(&group, 2), 1);
	group_end(&group);
}

/* One that leaves, while its engine lives on, is as one that died: nobody waits for it. */
static void target__leaves(void **state)
{
	static struct group group;

	(void)state;
	group_start(&group, &twice, true);
	publish(&group, 1);
	for (uint32_t i = 0; i < 3; i++)
		want_version(group_target(&group, i), 1);
	want(0, member_call(group_target(&group, 1), MEMBER_CLOSE, 0, 0, NULL));
	retract(&group);
	publish(&group, 2);
	for (uint32_t i = 0; i < 2; i++)
		want(0, member_call(group_source(&group, i), MEMBER_WAIT, 2, PATIENCE, NULL));
	want_version(group_target(&group, 0), 2);
	want_version(group_target(&group, 2), 2);
	want(0, member_open(&group, group_target(&group, 1), 0, NULL));
	want_version(group_target(&group, 1), 2);
	group_end(&group);
}

/* By the plan all targets read from the source. One that is back when the source has retracted the
 * version, or has gone, takes it from a target that it has never heard of. */
static void target__catches_up_from_a_stranger(void **state)
{
	struct model model = twice;
	static struct group group;

	(void)state;
	model.sources = model.copies = 1;
	model.separate_hosts = 0;
	group_start(&group, &model, true);
	group_pass(&group, 1);
	member_kill(group_target(&group, 0));
	member_again(&group, group_target(&group, 0));
	want_version(group_target(&group, 0), 1);
	member_kill(group_source(&group, 0));
	member_kill(group_target(&group, 1));
	member_again(&group, group_target(&group, 1));
	want_version(group_target(&group, 1), 1);
	group_end(&group);
}

/* Both sides in one line, before a byte moves. */
static void layouts__differ(void **state)
{
	static struct group group;
	struct member_answer answer;

	(void)state;
	group_start(&group, &twice, false);
	for (uint32_t i = 0; i < 4; i++)
		want(0, member_open(&group, &group.members[i], 0, NULL));
	want(0, member_open(&group, group_target(&group, 2), 1, NULL));
	publish(&group, 1);
	want(-EINVAL, member_call(group_target(&group, 2), MEMBER_WAIT, 1, PATIENCE, &answer));
	want_true(strstr(answer.text, "f16 of 2 bytes [0:128]") &&
			  strstr(answer.text, "u8 of 1 bytes [0:256]") &&
			  strstr(answer.text, "target2"),
		  "%s", answer.text);
	want(-EINVAL, member_call(group_source(&group, 0), MEMBER_WAIT, 1, PATIENCE, &answer));
	want_true(strstr(answer.text, "f16 of 2 bytes [0:128]") &&
			  strstr(answer.text, "u8 of 1 bytes [0:256]") &&
			  strstr(answer.text, "target2"),
		  "%s", answer.text);
	/* The others are not concerned. */
	want_version(group_target(&group, 0), 1);
	want_version(group_target(&group, 1), 1);
	want(0, member_call(group_target(&group, 2), MEMBER_INFO, 0, 0, &answer));
	want(0, answer.more);
	/* With the right ones it takes part. */
	want(0, member_call(group_target(&group, 2), MEMBER_CLOSE, 0, 0, NULL));
	want(0, member_open(&group, group_target(&group, 2), 0, NULL));
	want_version(group_target(&group, 2), 1);
	group_end(&group);
}

/* An engine that the layouts do not name, and one that answers under another name. */
static void rights__strangers(void **state)
{
	static struct group group;
	struct member_answer answer;
	struct wh_engine_options options = { .size = sizeof(options), .name = "stranger" };
	struct wh_engine *engine;
	struct wh_remote remote;
	struct wh_peer *peer;

	(void)state;
	group_start(&group, &twice, true);
	publish(&group, 1);
	want(0, wh_engine_open(&options, &engine));
	want(0, wh_peer_open(engine, group_source(&group, 0)->url, NULL, &peer));
	want(-ENOENT, wh_peer_find(peer, "weights.control", WH_ANSWER, &remote));
	want(-ENOENT, wh_peer_find(peer, "weights.s0.0", WH_ANSWER, &remote));
	want(0, wh_peer_close(peer));
	/* source0's place is taken by somebody else: nothing comes from there. */
	member_kill(group_source(&group, 1));
	for (uint32_t i = 0; i < 3; i++)
		want_version(group_target(&group, i), 1);
	member_kill(group_target(&group, 2));
	snprintf(group_source(&group, 1)->url, sizeof(group.members[1].url), "%s",
		 wh_engine_url(engine));
	member_again(&group, group_target(&group, 2));
	want_version(group_target(&group, 2), 1);
	want(0, member_call(group_target(&group, 2), MEMBER_EXPLAIN, 0, 0, &answer));
	want_true(strstr(answer.text, "engine 'stranger' answers at"), "%s", answer.text);
	group_end(&group);
	want(0, wh_engine_close(engine));
}

/* One request behind a slow link: how much has come is known while it runs, to the target and to
 * the source, so that who waits sees that bytes come. */
static void link__slow(void **state)
{
	const struct model model = { .sources = 1,
				     .targets = 1,
				     .rows = 1,
				     .columns = 64 * MIB,
				     .piece = 64 * MIB,
				     .chunk = 64 * MIB,
				     .config = { "require=tcp" } };
	struct member *source, *target;
	struct member_answer answer;
	static struct group group;
	struct proxy *proxy;
	int64_t end;

	(void)state;
	group_start(&group, &model, false);
	source = group_source(&group, 0);
	target = group_target(&group, 0);
	proxy = proxy_start(source->url);
	want_true(proxy != NULL, "no proxy");
	proxy_slow(proxy, 2 * MIB);
	snprintf(source->url, sizeof(source->url), "%s", proxy_url(proxy));
	want(0, member_open(&group, source, 0, NULL));
	want(0, member_open(&group, target, 0, NULL));
	publish(&group, 1);
	for (int side = 0; side < 2; side++) {
		end = now() + PATIENCE;
		do {
			want_true(now() < end, "nothing is seen to come");
			want(0,
			     member_call(side ? source : target, MEMBER_RECEIVED, 0, 0, &answer));
		} while (!answer.value);
		want(0, member_call(target, MEMBER_RECEIVED, 0, 0, &answer));
		want(0, answer.more); /* no request has ended */
	}
	proxy_slow(proxy, 0);
	want_version(target, 1);
	group_end(&group);
	proxy_stop(proxy);
}

static const struct CMUnitTest tests[] = {
	MEMBER_TEST(source__dies),
	MEMBER_TEST(target__dies),
	MEMBER_TEST(source__dies_alone),
	MEMBER_TEST(target__stands_still),
	MEMBER_TEST(target__comes_late),
	MEMBER_TEST(target__leaves),
	MEMBER_TEST(layouts__differ),
	MEMBER_TEST(rights__strangers),
	MEMBER_TEST(target__catches_up_from_a_stranger),
	MEMBER_TEST(link__slow),
};

MEMBER_MAIN("weights-faults", tests)
