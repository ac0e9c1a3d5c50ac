/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: command */
/* command-notification.c: what `wherry serve --notifications` prints of senders with deceptive
 * names, and what it leaves to the library
 *
 * Each line is SENDER TAG LENGTH BYTES, whatever the sender's name and bytes. */
#include <signal.h>

#include "lib/command.h"

static void send_notification(const char *url, const char *name, uint64_t tag, const char *text)
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
	want(0, wh_batch_notify(batch, tag, text, strlen(text)));
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
		send_notification(url, cases[i].name, 7, cases[i].text);
		command_line(&command, line, sizeof(line));
		want_true(!strcmp(line, cases[i].line), "it prints \"%s\", not \"%s\"", line,
			  cases[i].line);
	}
	want(0, kill(command.pid, SIGTERM));
	want(0, command_wait(&command));
}

/* How often the process has waited for something. */
static unsigned long waits_of(pid_t process)
{
	char path[64], line[256];
	unsigned long waits = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)process);
	file = fopen(path, "r");
	assert_non_null(file);
	while (fgets(line, sizeof(line), file))
		sscanf(line, "voluntary_ctxt_switches: %lu", &waits);
	fclose(file);
	return waits;
}

/* The hello of a spread stays in the inbox until the weights of that name are open. Meanwhile the
 * server waits, rather than look again and again, and takes what else comes. */
static void notification__of_weights_that_nobody_has(void **state)
{
	int64_t deadline = now() + PATIENCE;
	struct command command;
	unsigned long waits;
	char url[128], line[256];

	(void)state;
	command_start(&command, NULL, NULL,
		      ARGUMENTS("serve", "--weights", "host:64KiB", "--notifications"));
	command_line(&command, url, sizeof(url));
	send_notification(url, "early", WH_WEIGHTS_TAG | 1, "hello");
	send_notification(url, "other", 7, "ready");
	command_line(&command, line, sizeof(line));
	want_true(!strcmp(line, "other 0x7 5 ready"), "it prints \"%s\"", line);
	waits = waits_of(command.pid);
	while (waits_of(command.pid) < waits + 20) {
		want_true(now() < deadline, "it looks again and again");
		sleep_ms(10);
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
	TEST_NEEDS(notification__of_weights_that_nobody_has, needs_command),
	TEST(name__not_to_be_shown),
};

HARNESS_MAIN("command-notification", tests)
