/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: command */
/* command-file.c: the file that `wherry copy` creates
 *
 * On file systems with unnamed files, and where those are refused: the file is complete, has the
 * right mode, and nothing else is left beside it. */
#include <signal.h>
#include <sys/stat.h>

#include "lib/command.h"

#define LENGTH (3 * MIB + 17)

/* ---- a server -------------------------------------------------------------------------------- */

struct server_of_bytes {
	struct command command;
	char directory[64], region[160];
};

static void want_content(const struct server_of_bytes *s, const char *name, uint64_t length)
{
	static unsigned char bytes[LENGTH + 1];
	char path[128];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", s->directory, name);
	file = fopen(path, "r");
	want_true(file != NULL, "%s: %s", path, strerror(errno));
	want((long long)length, (long long)fread(bytes, 1, sizeof(bytes), file));
	fclose(file);
	want_true(pattern_check(bytes, length, 0, 7) == PATTERN_GOOD, "%s has other bytes", name);
}

static void make_file(const struct server_of_bytes *s, const char *name, uint64_t length,
		      mode_t mode)
{
	static unsigned char bytes[LENGTH];
	char path[128];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", s->directory, name);
	pattern_fill(bytes, LENGTH, 0, 7);
	file = fopen(path, "w");
	want_true(file != NULL, "%s: %s", path, strerror(errno));
	want((long long)length, (long long)fwrite(bytes, 1, length, file));
	want(0, fclose(file));
	want(0, chmod(path, mode));
}

/* Start a server with LENGTH bytes of memory that have this content, and make an empty directory.
 */
static void server_open(struct server_of_bytes *s)
{
	struct command copy;
	char line[128];

	directory_make(s->directory);
	command_start(&s->command, NULL, NULL, ARGUMENTS("serve", "-m", "host:4MiB"));
	command_line(&s->command, line, sizeof(line));
	snprintf(s->region, sizeof(s->region), "%s/host", line);
	make_file(s, "bytes", LENGTH, 0644);
	want(0,
	     command_run(&copy, s->directory, NULL, ARGUMENTS("copy", "-q", "bytes", s->region)));
	snprintf(line, sizeof(line), "%s/bytes", s->directory);
	want(0, unlink(line));
}

static void server_close(struct server_of_bytes *s)
{
	want(0, kill(s->command.pid, SIGTERM));
	want(0, command_wait(&s->command));
	directory_remove(s->directory);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static mode_t mode_of(const struct server_of_bytes *s, const char *name)
{
	struct stat status;
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", s->directory, name);
	want(0, stat(path, &status));
	return status.st_mode & 07777;
}

/* Copy into a new file, over an old one, and into a part of one. */
static void file__made_on(struct server_of_bytes *s, unsigned unnamed, unsigned linked)
{
	static const char length[] = "3145745";
	void (*refusal)(void) = unnamed || linked ? command_refuse : NULL;
	struct command copy;
	char rest[192];

	command_refused = (struct command_refused){ unnamed, linked };
	want_true(strtoull(length, NULL, 10) == LENGTH, "the length as text");
	want(0, command_run(&copy, s->directory, refusal,
			    ARGUMENTS("copy", s->region, "new", "--length", length)));
	want_content(s, "new", LENGTH);
	want(0644, mode_of(s, "new"));
	make_file(s, "old", 5, 0640);
	want(0, command_run(&copy, s->directory, refusal,
			    ARGUMENTS("copy", s->region, "old", "--length", length, "--verify")));
	want_content(s, "old", LENGTH);
	want(0640, mode_of(s, "old"));
	make_file(s, "part", 4096, 0600);
	want(0, command_run(&copy, s->directory, refusal, ARGUMENTS("copy", "new", s->region)));
	snprintf(rest, sizeof(rest), "%s+4096", s->region);
	want(0, command_run(&copy, s->directory, refusal,
			    ARGUMENTS("copy", rest, "part", "--offset", "4096", "--length",
				      "3141649")));
	want_content(s, "part", LENGTH);
	want(3, directory_count(s->directory));
}

static void file__made_with(unsigned unnamed, unsigned linked)
{
	mode_t mask = umask(022);
	struct server_of_bytes s;

	server_open(&s);
	file__made_on(&s, unnamed, linked);
	server_close(&s);
	umask(mask);
}

static void file__made(void **state)
{
	(void)state;
	harness_limit(SCALE(60, 300));
	file__made_with(0, 0);
}

static void file__made_without(void **state)
{
	(void)state;
	harness_limit(SCALE(60, 300));
	file__made_with(EOPNOTSUPP, 0);
	file__made_with(EISDIR, 0);
	file__made_with(ENOENT, 0);
	file__made_with(0, EPERM);
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(file__made, needs_command),
	TEST_NEEDS(file__made_without, needs_refusals),
};

HARNESS_MAIN("command-file", tests)
