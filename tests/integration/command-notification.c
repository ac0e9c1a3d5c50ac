/* SPDX-License-Identifier: Apache-2.0 */
/* What `wherry serve --notifications` prints of engines whose names are meant to deceive: each line is
 * SENDER LENGTH BYTES, whatever the sender calls itself and sends. */
#include <sys/prctl.h>
#include <sys/wait.h>

#include "harness.h"

struct command {
	pid_t pid;
	FILE *out;
	char url[128];
};

static void command_line(struct command *command, char *line, int size)
{
	want_true(fgets(line, size, command->out) != NULL, "the command has ended");
	line[strcspn(line, "\n")] = '\0';
}

static void command_start(struct command *command)
{
	const char *program = getenv("TEST_COMMAND");
	pid_t parent = getpid();
	int out[2];

	want_true(program != NULL, "TEST_COMMAND is not set");
	want(0, pipe(out));
	command->pid = fork();
	if (command->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		unsetenv("LD_PRELOAD");
		dup2(out[1], STDOUT_FILENO);
		close(out[0]);
		close(out[1]);
		if (getppid() == parent)
			execl(program, "wherry", "serve", "-m", "host:64KiB", "--notifications", (char *)NULL);
		_exit(1);
	}
	want_true(command->pid > 0, "cannot fork");
	close(out[1]);
	command->out = fdopen(out[0], "r");
	command_line(command, command->url, sizeof(command->url));
}

static void command_stop(struct command *command)
{
	int status;

	want(0, kill(command->pid, SIGTERM));
	want(command->pid, waitpid(command->pid, &status, 0));
	want_true(WIFEXITED(status) && !WEXITSTATUS(status), "it ends with %#x", (unsigned)status);
	fclose(command->out);
}

static void notify(const char *url, const char *name, const char *text)
{
	struct wh_engine_options options = { .size = sizeof(options), .listen = "none", .name = name };
	struct wh_engine *engine;
	struct wh_batch *batch;
	struct wh_peer *peer;

	want(0, wh_engine_open(&options, &engine));
	want(0, wh_peer_open(engine, url, NULL, &peer));
	want(0, wh_batch_new(peer, NULL, &batch));
	want(0, wh_batch_notify(batch, text, strlen(text)));
	want(0, wh_batch_submit(batch));
	want(0, wh_batch_wait(batch, PATIENCE));
	want(0, wh_batch_free(batch));
	want(0, wh_peer_close(peer));
	want(0, wh_engine_close(engine));
}

static void notification__of_deceivers(void **state)
{
	static const struct {
		const char *name, *text, *line;
	} cases[] = {
		{ "node7", "ready", "node7 5 ready" },
		{ "node7 5 ready", "x", "node7\\x205\\x20ready 1 x" },
		{ "node7", "5 ready", "node7 7 5 ready" },
		{ "node7\\x20", "\\", "node7\\\\x20 1 \\\\" },
		{ "-", "no name", "\\x2d 7 no name" },
		{ "caf\303\251", "\302\2332J\n\33[2J", "caf\\xc3\\xa9 9 \\xc2\\x9b2J\\x0a\\x1b[2J" },
		{ "a\302\240b", "\200", "a\\xc2\\xa0b 1 \\x80" },
	};
	struct command command;
	char line[256];

	(void)state;
	command_start(&command);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		notify(command.url, cases[i].name, cases[i].text);
		command_line(&command, line, sizeof(line));
		want_true(!strcmp(line, cases[i].line), "it prints \"%s\", not \"%s\"", line, cases[i].line);
	}
	command_stop(&command);
}

/* A name that moves a terminal's cursor is none. */
static void name__not_to_be_shown(void **state)
{
	static const char *const names[] = { "a\33[2J", "a\nb", "a\302\2332J", "a\2332J", "cut\303",
					     "a\342\200\256b" };
	struct wh_engine *engine;

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		struct wh_engine_options options = { .size = sizeof(options), .listen = "none",
						     .name = names[i] };

		want(-EINVAL, wh_engine_open(&options, &engine));
		want_true(strstr(wh_error_text(), "options.name"), "it says: %s", wh_error_text());
	}
}

static const struct CMUnitTest tests[] = {
	TEST(notification__of_deceivers),
	TEST(name__not_to_be_shown),
};

HARNESS_MAIN("command-notification", tests)
