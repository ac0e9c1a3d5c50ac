/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: command */
/* command-spread.c: wherry spread to a receiver that is older than --link, which the test plays:
 * with --link it is refused before anything is offered, as its plan would be another one. And
 * wherry serve --weights, which is asked to answer where nobody speaks. */
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/command.h"
#include "lib/outcome.h"
#include "wire/bytes.h"

/* See tools/spread/message.h. */
#define TAG UINT64_C(0x6461657270732d79)
#define HEAD 56
#define ITEM 18

enum { ASK = 1, ANSWER = 2, OFFER = 3 };

static struct {
	struct wh_engine *engine;
	struct wh_peer *sender;
	struct wh_batch *batch;
} us;

/* The next message of the sender. */
static void hear(uint8_t *out, size_t size)
{
	struct wh_notification_filter filter = { .size = sizeof(filter),
						 .tag = TAG,
						 .tag_mask = UINT64_MAX };
	struct wh_notification note = { .size = sizeof(note), .buffer = out, .capacity = size };

	memset(out, 0, size);
	want(0, wh_engine_notification(us.engine, &filter, &note, PATIENCE));
}

/* Answer the question: one item without texts, whose `bytes`, what the receiver knows, are 0. */
static void answer(const uint8_t *question)
{
	uint8_t bytes[HEAD + ITEM] = { 0 };
	char url[96] = "";
	/* The item's texts: its name, then its URL. */
	const uint8_t *at = question + HEAD + 8;

	at += 2 + at[0];
	want_true(at[0] < sizeof(url), "a URL of %d bytes", at[0]);
	memcpy(url, at + 2, at[0]);
	memcpy(bytes, question, HEAD);
	bytes[6] = ANSWER;
	want(0, wh_peer_open(us.engine, url, NULL, &us.sender));
	want(0, wh_batch_new(us.sender, NULL, &us.batch));
	want(0, wh_batch_notify(us.batch, TAG, bytes, sizeof(bytes)));
	want(0, wh_batch_submit(us.batch));
	want(0, batch_end(us.batch, PATIENCE));
}

/* Start the command, and answer it as a receiver that knows nothing of this. */
static void spread(struct command *command, const char *link)
{
	struct wh_engine_options options = { .size = sizeof(options), .name = "before" };
	uint8_t question[1024];

	want(0, wh_engine_open(&options, &us.engine));
	command_start(command, NULL, NULL,
		      ARGUMENTS("spread", getenv("TEST_COMMAND"), wh_engine_url(us.engine), link));
	hear(question, sizeof(question));
	want(ASK, question[6]);
	answer(question);
}

static void finish(void)
{
	want(0, wh_batch_free(us.batch));
	want(0, wh_peer_close(us.sender));
	want(0, wh_engine_close(us.engine));
}

static void older__is_refused(void **state)
{
	struct command command;

	(void)state;
	spread(&command, "--link=1Gbit");
	want_true(command_wait(&command) != 0, "it goes on: %s", command.text);
	want_true(strstr(command.text, "its wherry is older than --link"), "%s", command.text);
	finish();
}

/* Without --link an offer is what it was. */
static void older__is_offered(void **state)
{
	uint8_t offer[1024];
	struct command command;

	(void)state;
	spread(&command, NULL);
	hear(offer, sizeof(offer));
	want(OFFER, offer[6]);
	want(2, wh_get32(offer + 52));
	want(0, wh_get64(offer + HEAD));
	want(0, kill(command.pid, SIGTERM));
	want(-SIGTERM, command_wait(&command));
	finish();
}

/* ---- wherry serve --weights ------------------------------------------------------------------ */

/* Ask whether it takes a file of a byte, and want the answer at `url`. */
static void ask(struct wh_engine *engine, struct wh_peer *server, const char *url)
{
	const char *const texts[5] = { wh_engine_name(engine), url, "", "", "" };
	uint8_t bytes[512] = { 0 }, *to = bytes + HEAD + 8;
	struct wh_batch *batch;

	wh_put32(bytes, 0x52505357u);
	wh_put32(bytes + 4, 1 | ASK << 16);
	wh_put64(bytes + 24, 1);
	wh_put32(bytes + 52, 1);
	for (int i = 0; i < 5; i++) {
		size_t length = strlen(texts[i]);

		to[0] = (uint8_t)length;
		memcpy(to + 2, texts[i], length);
		to += 2 + length;
	}
	want(0, wh_batch_new(server, NULL, &batch));
	want(0, wh_batch_notify(batch, TAG, bytes, (uint64_t)(to - bytes)));
	want(0, wh_batch_submit(batch));
	want(0, batch_end(batch, PATIENCE));
	want(0, wh_batch_free(batch));
}

/* A listener that takes connections and says nothing. */
static int silent_listen(char url[64])
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	want(0, bind(fd, (struct sockaddr *)&address, length));
	want(0, listen(fd, 64));
	want(0, getsockname(fd, (struct sockaddr *)&address, &length));
	snprintf(url, 64, "wherry://127.0.0.1:%d", ntohs(address.sin_port));
	return fd;
}

/* Who wants answers where nobody speaks waits alone, for five minutes each; a name is not looked
 * up. */
static void silent__others_are_answered(void **state)
{
	struct wh_engine_options options = { .size = sizeof(options), .name = "spreads" };
	struct wh_engine *other;
	struct wh_peer *from_other;
	struct command command;
	char url[128], silent[64];
	uint8_t answered[1024];
	int fd = silent_listen(silent);

	(void)state;
	command_start(&command, NULL, NULL,
		      ARGUMENTS("serve", "--weights", "host:1MiB", "--config", "timeout=300000"));
	command_line(&command, url, sizeof(url));
	want(0, wh_engine_open(&options, &us.engine));
	want(0, wh_peer_open(us.engine, url, NULL, &us.sender));
	options.name = "hostile";
	want(0, wh_engine_open(&options, &other));
	want(0, wh_peer_open(other, url, NULL, &from_other));
	for (int i = 0; i < 8; i++)
		ask(other, from_other, silent);
	ask(other, from_other, "wherry://localhost:1");
	for (int i = 0; i < 3; i++) {
		ask(us.engine, us.sender, wh_engine_url(us.engine));
		hear(answered, sizeof(answered));
		want(ANSWER, answered[6]);
		want(0, wh_get32(answered + 48));
	}
	want(0, wh_peer_close(from_other));
	want(0, wh_engine_close(other));
	want(0, wh_peer_close(us.sender));
	want(0, wh_engine_close(us.engine));
	want(0, kill(command.pid, SIGTERM));
	want(0, command_wait(&command));
	want_true(strstr(command.text, "it is no address"), "it says: %s", command.text);
	close(fd);
}

/* What the server says of a question that wants its answer at `url`. */
static void want_no_answer(const char *url, const char *setting, const char *text)
{
	struct wh_engine_options options = { .size = sizeof(options), .name = "hostile" };
	struct command command;
	char server[128], line[512] = "";

	command_start(
		&command, NULL, NULL,
		ARGUMENTS("serve", "--weights", "host:1MiB", setting ? "--config" : NULL, setting));
	command_line(&command, server, sizeof(server));
	want(0, wh_engine_open(&options, &us.engine));
	want(0, wh_peer_open(us.engine, server, NULL, &us.sender));
	ask(us.engine, us.sender, url ? url : wh_engine_url(us.engine));
	while (!strstr(line, text))
		command_line(&command, line, sizeof(line));
	want(0, wh_peer_close(us.sender));
	want(0, wh_engine_close(us.engine));
	want(0, kill(command.pid, SIGTERM));
	want(0, command_wait(&command));
}

/* Nobody makes the server connect to others. */
static void elsewhere__is_no_answer(void **state)
{
	(void)state;
	want_no_answer("wherry://240.0.0.1:7000", NULL,
		       "it is another address than that from which it asks");
	want_no_answer(NULL, "connect_to=10.0.0.0/8,fd00::/8",
		       "it is in no network of the setting connect_to");
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(older__is_refused, needs_command),
	TEST_NEEDS(older__is_offered, needs_command),
	TEST_NEEDS(silent__others_are_answered, needs_command),
	TEST_NEEDS(elsewhere__is_no_answer, needs_command),
};

HARNESS_MAIN("command-spread", tests)
