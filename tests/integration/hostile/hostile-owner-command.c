/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: command waits hostile */
/* hostile-owner-command.c: the command copies from an impostor that answers nothing, or too much
 *
 * The command must give up, say why, and leave no partial file. */
#include <fcntl.h>
#include <signal.h>

#include "lib/command.h"
#include "lib/impostor.h"

/* The impostor answers pings and moves nothing: the command gives up, says so, and leaves no
 * file. */
static void want_stall(struct impostor *me, const char *directory, int status, const char *text,
		       const char *const *arguments)
{
	int64_t before = now();
	struct command command;
	int got = command_run(&command, directory, NULL, arguments);

	want_true(got == status && strstr(command.text, text), "%s ends with %d: %s", arguments[0],
		  got, command.text);
	want_true(now() - before < SCALE(20, 60) * SECOND, "it took %lld ms",
		  (long long)((now() - before) / MS));
	want_true(!me->stop, "the owner has ended");
}

static void command__nothing_moves(void **state)
{
	struct impostor me = { .answer = ANSWER_NEVER };
	char directory[64], region[80], file[96];
	FILE *bytes;

	(void)state;
	harness_limit(SCALE(90, 300));
	impostor_start(&me);
	directory_make(directory);
	snprintf(region, sizeof(region), "%s/target", me.url);
	snprintf(file, sizeof(file), "%s/bytes", directory);
	bytes = fopen(file, "w");
	want_true(bytes && fputs("bytes", bytes) >= 0 && !fclose(bytes), "%s: %s", file,
		  strerror(errno));
	want_stall(&me, directory, 69, "nothing has moved for 1 s, although the engine answers",
		   ARGUMENTS("copy", region, "file", "--stall-timeout", "1"));
	want_stall(&me, directory, 69, "nothing has moved for 1 s",
		   ARGUMENTS("copy", "bytes", region, "--stall-timeout=1"));
	want_stall(&me, directory, 69, "nothing has moved for 1 s",
		   ARGUMENTS("copy", region, region, "--stall-timeout", "1", "--chunk", "4KiB"));
	want_stall(&me, directory, 2, "nothing has moved for 1 s",
		   ARGUMENTS("bench", "--peer", region, "--size", "4KiB", "--working-set", "16KiB",
			     "--seconds", "0.1", "--stall-timeout", "1"));
	want_stall(&me, directory, 0, "target", ARGUMENTS("explain", region));
	want(1, directory_count(directory));
	directory_remove(directory);
	impostor_stop(&me);
}

/* An owner that answers pings and no look-up, or look-ups without an end, has broken the protocol:
 * whoever waits for its answer ends. */
static void command__looks_up(void **state)
{
	(void)state;
	harness_limit(SCALE(90, 300));
	for (enum looked_up how = LOOKED_UP_NEVER; how <= LOOKED_UP_EMPTY; how++) {
		struct impostor me = { .answer = ANSWER_NEVER, .looked_up = how };
		char region[80];

		impostor_start(&me);
		snprintf(region, sizeof(region), "%s/other", me.url);
		want_stall(&me, NULL, 69, "broke the protocol", ARGUMENTS("ls", me.url));
		if (how == LOOKED_UP_NEVER)
			want_stall(&me, NULL, 69, "broke the protocol",
				   ARGUMENTS("copy", region, "/dev/null"));
		impostor_stop(&me);
	}
}

/* A region too large for any file is refused before a byte is written. */
static void command__region_too_large(void **state)
{
	struct impostor me = { .length = UINT64_C(1) << 63 };
	char directory[64], region[80];
	struct command command;

	(void)state;
	impostor_start(&me);
	directory_make(directory);
	snprintf(region, sizeof(region), "%s/target", me.url);
	for (unsigned i = 0; i < 2; i++) {
		int status = command_run(&command, directory, NULL,
					 i ? ARGUMENTS("copy", region, "file", "--offset", "1") :
					     ARGUMENTS("copy", region, "file"));

		want_true(status == 2 && strstr(command.text, "cannot write file: File too large"),
			  "it ends with %d: %s", status, command.text);
		want(0, directory_count(directory));
	}
	directory_remove(directory);
	impostor_stop(&me);
}

/* However a waiting copy is ended, no partial file stays. */
static void want_no_file_after(int number, void (*before)(void))
{
	struct impostor me = { .answer = ANSWER_NEVER };
	char directory[64], region[80];
	struct command command;

	impostor_start(&me);
	directory_make(directory);
	snprintf(region, sizeof(region), "%s/target", me.url);
	command_start(&command, directory, before, ARGUMENTS("copy", region, "file"));
	command_opens(&command, directory);
	want(0, kill(command.pid, number));
	want(-number, command_wait(&command));
	want(0, directory_count(directory));
	directory_remove(directory);
	impostor_stop(&me);
}

static void command__interrupted(void **state)
{
	(void)state;
	want_no_file_after(SIGTERM, NULL);
}

static void command__interrupted_named(void **state)
{
	(void)state;
	command_refused = (struct command_refused){ .unnamed = EOPNOTSUPP };
	want_no_file_after(SIGTERM, command_refuse);
}

static void command__killed(void **state)
{
	(void)state;
	want_no_file_after(SIGKILL, NULL);
}

static const char *unnamed_missing(void)
{
	char path[64];
	int fd;

	directory_make(path);
	fd = open(path, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	directory_remove(path);
	if (fd < 0)
		return "the file system of temporary files has none without a name";
	close(fd);
	return needs_command.missing();
}

static const struct route needs_unnamed = { .name = "unnamed", .missing = unnamed_missing };

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(command__nothing_moves, needs_command),
	TEST_NEEDS(command__looks_up, needs_command),
	TEST_NEEDS(command__region_too_large, needs_command),
	TEST_NEEDS(command__interrupted, needs_command),
	TEST_NEEDS(command__interrupted_named, needs_refusals),
	TEST_NEEDS(command__killed, needs_unnamed),
};

HARNESS_MAIN("hostile-owner-command", tests)
