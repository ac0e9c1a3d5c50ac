/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: command */
/* command-notification.c: what `wherry serve --notifications` prints of senders with deceptive
 * names
 *
 * Each line is SENDER TAG LENGTH BYTES, whatever the sender's name and bytes. */
#include <signal.h>

#include "lib/command.h"

static void send_notification(const char *url, const char *name, const char *text)
{
	struct wh_engine_options options = { .size = sizeof(options),
					     .listen = "none",
					     .name = name };
	struct wh_engine *engine;
	struct wh_batch *batch;
	struct wh_peer *peer;

	want(0, wh_engine_open(&options, &engine));
	want(0, wh_peer_open(engine, url, NULL, &peer));
	want(0, wh_batch_new(peer, NULL, &batch));
	want(0, wh_batch_notify(batch, 7, text, strlen(text)));
	want(0, wh_batch_submit(batch));
	want(0, batch_end(batch, PATIENCE));
	want(0, wh_batch_free(batch));
	want(0, wh_peer_close(peer));
	want(0, wh_engine_close(engine));
}

static void notification__of_deceivers(void **state)
{
	static const struct {
		const char *name, *text, *line;
	} cases[] = {
		{ "node7", "ready", "node7 0x7 5 ready" },
		{ "node7 5 ready", "x", "node7\\x205\\x20ready 0x7 1 x" },
		{ "node7", "5 ready", "node7 0x7 7 5 ready" },
		{ "node7\\x20", "\\", "node7\\\\x20 0x7 1 \\\\" },
		{ "-", "no name", "\\x2d 0x7 7 no name" },
		{ "caf\303\251", "\302\2332J\n\33[2J",
		  "caf\\xc3\\xa9 0x7 9 \\xc2\\x9b2J\\x0a\\x1b[2J" },
		{ "a\302\240b", "\200", "a\\xc2\\xa0b 0x7 1 \\x80" },
	};
	struct command command;
	char url[128], line[256];

	(void)state;
	command_start(&command, NULL, NULL,
		      ARGUMENTS("serve", "-m", "host:64KiB", "--notifications"));
	command_line(&command, url, sizeof(url));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		send_notification(url, cases[i].name, cases[i].text);
		command_line(&command, line, sizeof(line));
		want_true(!strcmp(line, cases[i].line), "it prints \"%s\", not \"%s\"", line,
			  cases[i].line);
	}
	want(0, kill(command.pid, SIGTERM));
	want(0, command_wait(&command));
}

/* A name with control characters, which could move a terminal's cursor, is refused. */
static void name__not_to_be_shown(void **state)
{
	static const char *const names[] = { "a\33[2J", "a\nb",    "a\302\2332J",
					     "a\2332J", "cut\303", "a\342\200\250b" };
	struct wh_engine *engine;

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		struct wh_engine_options options = { .size = sizeof(options),
						     .listen = "none",
						     .name = names[i] };

		want(-EINVAL, wh_engine_open(&options, &engine));
		want_true(strstr(wh_error_text(), "options.name"), "it says: %s", wh_error_text());
	}
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(notification__of_deceivers, needs_command),
	TEST(name__not_to_be_shown),
};

HARNESS_MAIN("command-notification", tests)
