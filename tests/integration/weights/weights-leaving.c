/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: weights */
/* weights-leaving.c: a member whose control block cannot be read: has it left, or does it refuse?
 *
 * The test itself is the only target, under that target's name: it says by hand what a member
 * would, so that each order of events is certain. */
#include "lib/member.h"

#include "weights/run/message.h"

static const struct model pair = {
	.sources = 1, .targets = 1, .wants = WANTS_ALL, .rows = 16, .columns = 16
};

/* Of "target0", with its two steps and one region: see run.h. */
#define CONTROL_BYTES (WH_HEAD_BYTES + 2 * 8 + 2 * 8)

static struct {
	struct group group;
	struct wh_engine *engine;
	struct wh_peer *peer;
	struct wh_region *region; /* that nobody may read */
	uint64_t tag;
	unsigned char bytes[CONTROL_BYTES];
	const char *url; /* to say; NULL: the engine's */
	uint64_t question; /* of the source's: its number */
} us;

/* What the source says, until a hello has one of these flags; 0: any. */
static struct wh_weights_hello hear(uint64_t flags)
{
	struct wh_notification_filter any = { .size = sizeof(any) };
	struct wh_weights_hello hello;
	uint8_t bytes[WH_HELLO_BYTES];

	do {
		struct wh_notification note = { .size = sizeof(note),
						.buffer = bytes,
						.capacity = sizeof(bytes) };

		want(0, wh_engine_notification(us.engine, &any, &note, PATIENCE));
		want_true(wh_weights_hello_decode(bytes, note.length, &hello), "no hello");
		us.tag = note.tag;
	} while (flags && !(hello.flags & flags));
	return hello;
}

static void say(struct wh_weights_hello hello, uint64_t flags)
{
	uint8_t bytes[WH_HELLO_BYTES];
	struct wh_batch *batch;

	hello.control = wh_region_id(us.region);
	hello.control_bytes = CONTROL_BYTES;
	hello.flags = flags;
	snprintf(hello.url, sizeof(hello.url), "%s", us.url ? us.url : wh_engine_url(us.engine));
	wh_weights_hello_encode(&hello, bytes);
	want(0, wh_batch_new(us.peer, NULL, &batch));
	want(0, wh_batch_notify(batch, us.tag, bytes, sizeof(bytes)));
	want(0, wh_batch_submit(batch));
	want(0, wh_batch_wait_for(batch, PATIENCE));
	want(0, wh_batch_status(batch));
	want(0, wh_batch_free(batch));
}

/* The source has published; its hello comes back, with another digest if `changes`. */
static struct wh_weights_hello start(uint64_t changes)
{
	struct wh_engine_options options = { .size = sizeof(options), .name = "target0" };
	struct wh_weights_hello hello;

	group_start(&us.group, &pair, false);
	member_kill(group_target(&us.group, 0));
	want(0, wh_engine_open(&options, &us.engine));
	want(0, wh_region_register(us.engine, us.bytes, sizeof(us.bytes), NULL, &us.region));
	snprintf(us.group.members[1].url, sizeof(us.group.members[1].url), "%s",
		 wh_engine_url(us.engine));
	want(0, member_open(&us.group, group_source(&us.group, 0), 0, NULL));
	want(0, member_call(group_source(&us.group, 0), MEMBER_PUBLISH, 1, 0, NULL));
	want(0, wh_peer_open(us.engine, group_source(&us.group, 0)->url, NULL, &us.peer));
	hello = hear(0);
	hello.digest[0] ^= changes;
	say(hello, 0);
	/* It has tried to read, and asks. */
	us.question = hear(WH_HELLO_ASKS).flags >> WH_HELLO_QUESTION & UINT16_MAX;
	return hello;
}

static void answer_it(struct wh_weights_hello hello)
{
	say(hello, WH_HELLO_ANSWERS | us.question << WH_HELLO_ANSWER);
}

static void finish(void)
{
	want(0, wh_peer_close(us.peer));
	want(0, wh_region_unregister(us.region));
	want(0, wh_engine_close(us.engine));
	us.engine = NULL;
	group_end(&us.group);
}

/* It left as soon as it had said hello: nobody waits for it, and nobody calls it a refusal. */
static void target__has_left(void **state)
{
	struct wh_weights_hello hello;
	struct member_answer answer;

	(void)state;
	hello = start(0);
	want(-EAGAIN, member_call(group_source(&us.group, 0), MEMBER_WAIT, 1, 0, NULL));
	say(hello, WH_HELLO_LEAVES);
	want(0, member_call(group_source(&us.group, 0), MEMBER_WAIT, 1, PATIENCE, NULL));
	want(0, member_call(group_source(&us.group, 0), MEMBER_EXPLAIN, 0, 0, &answer));
	want_true(strstr(answer.text, "target0: lost (it has left)"), "%s", answer.text);
	finish();
}

/* It dies before it could say so. */
static void target__is_lost(void **state)
{
	(void)state;
	start(0);
	want(0, wh_peer_close(us.peer));
	want(0, wh_region_unregister(us.region));
	want(0, wh_engine_close(us.engine));
	us.engine = NULL;
	want(0, member_call(group_source(&us.group, 0), MEMBER_WAIT, 1, PATIENCE, NULL));
	group_end(&us.group);
}

/* Its weights are closed, and its last word got lost. */
static void target__does_not_answer(void **state)
{
	(void)state;
	start(0);
	want(0, member_call(group_source(&us.group, 0), MEMBER_WAIT, 1, PATIENCE, NULL));
	finish();
}

/* It is there, and does not let the source read. */
static void target__refuses(void **state)
{
	struct member_answer answer;

	(void)state;
	answer_it(start(0));
	want(-EACCES, member_call(group_source(&us.group, 0), MEMBER_WAIT, 1, PATIENCE, &answer));
	want_true(strstr(answer.text, "engine 'target0' does not let 'source0' read its control "
				      "block"),
		  "%s", answer.text);
	finish();
}

/* A hello with other layouts, whose text has gone, is one to the weights that this engine had open
 * before: it does not differ, it has gone. */
static void target__said_so_before(void **state)
{
	struct wh_weights_hello hello;

	(void)state;
	hello = start(1);
	want(-EAGAIN, member_call(group_source(&us.group, 0), MEMBER_WAIT, 1, 0, NULL));
	say(hello, WH_HELLO_LEAVES);
	want(-EAGAIN, member_call(group_source(&us.group, 0), MEMBER_WAIT, 1, SECOND / 2, NULL));
	finish();
}

/* The same, and it cannot be reached: so nobody knows yet whether it differs. */
static void target__cannot_be_asked(void **state)
{
	struct wh_weights_hello hello;

	(void)state;
	hello = start(0);
	want(0, member_call(group_source(&us.group, 0), MEMBER_CLOSE, 0, 0, NULL));
	us.url = "wherry://127.0.0.1:1";
	snprintf(us.group.members[1].url, sizeof(us.group.members[1].url), "%s", us.url);
	want(0, member_open(&us.group, group_source(&us.group, 0), 0, NULL));
	hello.digest[0] ^= 1;
	say(hello, 0);
	want(-EAGAIN, member_call(group_source(&us.group, 0), MEMBER_WAIT, 1, SECOND / 2, NULL));
	us.url = NULL;
	finish();
}

/* The same, and it is still there. */
static void target__has_other_layouts(void **state)
{
	struct member_answer answer;

	(void)state;
	answer_it(start(1));
	want(-EINVAL, member_call(group_source(&us.group, 0), MEMBER_WAIT, 1, PATIENCE, &answer));
	want_true(strstr(answer.text, "engine 'target0' has other layouts than 'source0'"), "%s",
		  answer.text);
	finish();
}

/* A member that is asked answers; one that closes its weights says so. */
static void target__is_asked(void **state)
{
	struct wh_weights_hello hello;

	(void)state;
	hello = start(0);
	say(hello, WH_HELLO_ASKS | 7ull << WH_HELLO_QUESTION);
	want_true(hear(WH_HELLO_ANSWERS).flags >> WH_HELLO_ANSWER == 7, "another answer");
	want(0, member_call(group_source(&us.group, 0), MEMBER_CLOSE, 0, 0, NULL));
	hear(WH_HELLO_LEAVES);
	want(0, member_open(&us.group, group_source(&us.group, 0), 0, NULL));
	finish();
}

static const struct CMUnitTest tests[] = {
	MEMBER_TEST(target__has_left),        MEMBER_TEST(target__is_lost),
	MEMBER_TEST(target__does_not_answer), MEMBER_TEST(target__refuses),
	MEMBER_TEST(target__said_so_before),  MEMBER_TEST(target__has_other_layouts),
	MEMBER_TEST(target__cannot_be_asked), MEMBER_TEST(target__is_asked),
};

MEMBER_MAIN("weights-leaving", tests)
