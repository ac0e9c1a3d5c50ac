/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: command */
/* command-serve-killed.c: wherry serve --file and an initiator that lends it memory, one of which
 * is killed in the middle: the other goes on, and nothing is left behind */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/command.h"
#include "lib/fixture.h"

#define LENGTH (16 * MIB)
#define BATCHES 6

static char directory[64], path[96];

struct us {
	struct wh_engine *engine;
	struct wh_peer *peer;
	struct wh_region *region;
	struct wh_remote remote;
	unsigned char *memory;
};

static void serve(struct command *command, char url[256])
{
	char option[128], line[256] = "", *at = NULL;

	snprintf(option, sizeof(option), "--file=%s:rw", path);
	command_start(command, NULL, NULL, ARGUMENTS("serve", option));
	while (!(at = strstr(line, "wherry://")))
		command_line(command, line, sizeof(line));
	at[strcspn(at, " ,")] = 0;
	snprintf(url, 256, "%s", at);
	if (strrchr(url, '/') > url + strlen("wherry://"))
		*strrchr(url, '/') = 0; /* the region's name */
}

/* Connect to the server. Not by want(): it runs in a child, too. 0 or a negative errno. */
static int us_open(struct us *us, const char *url)
{
	struct wh_engine_options options = { .size = sizeof(options), .listen = "none" };
	int error = wh_engine_open(&options, &us->engine);

	us->memory = pages_new(LENGTH);
	if (!error)
		error = wh_region_register(us->engine, us->memory, LENGTH, NULL, &us->region);
	if (!error)
		error = wh_peer_open(us->engine, url, NULL, &us->peer);
	return error ? error : wh_peer_find(us->peer, "file", PATIENCE, &us->remote);
}

static void us_close(struct us *us)
{
	want(0, wh_peer_close(us->peer));
	want(0, wh_region_unregister(us->region));
	want(0, wh_engine_close(us->engine));
	pages_free(us->memory, LENGTH);
}

static int us_batch(const struct us *us, uint32_t op, struct wh_batch **batch)
{
	struct wh_transfer transfer = {
		.op = op, .local = us->region, .remote = us->remote.id, .length = LENGTH
	};
	int error = wh_batch_new(us->peer, NULL, batch);

	return error ? error : wh_batch_add(*batch, &transfer, 1);
}

/* Write the memory into the file and read it back, through lent memory. */
static void us_move(struct us *us, int seed)
{
	struct wh_batch *batch;
	char text[4096];

	pattern_fill(us->memory, LENGTH, 0, seed);
	want(0, us_batch(us, WH_WRITE, &batch));
	want(0, batch_run(batch));
	want_true(wh_batch_explain(batch, text, sizeof(text)) > 0 && strstr(text, "shared memory"),
		  "it says: %s", text);
	want(0, wh_batch_free(batch));
	memset(us->memory, 0, LENGTH);
	want(0, us_batch(us, WH_READ, &batch));
	want(0, batch_run(batch));
	want(0, wh_batch_free(batch));
	want_true(pattern_check(us->memory, LENGTH, 0, seed) == PATTERN_GOOD, "wrong bytes");
}

/* The server dies while batches of `op` are under way, after some of them: all end, the next one
 * fails, and another server of the same file serves. */
static void owner_dies(uint32_t op, unsigned before)
{
	struct wh_batch *batch[BATCHES];
	struct command command;
	char url[256];
	struct us us;

	serve(&command, url);
	want(0, us_open(&us, url));
	us_move(&us, 1);
	for (int i = 0; i < BATCHES; i++) {
		want(0, us_batch(&us, op, &batch[i]));
		want(0, wh_batch_submit(batch[i]));
	}
	for (unsigned i = 0; i < before; i++)
		want(0, batch_end(batch[i], PATIENCE));
	want(0, kill(command.pid, SIGKILL));
	want(-SIGKILL, command_wait(&command));
	for (unsigned i = before; i < BATCHES; i++) {
		int status = batch_end(batch[i], PATIENCE);

		want_true(status <= 0 && status != -EAGAIN, "it ends with %d", status);
	}
	for (int i = 0; i < BATCHES; i++)
		want(0, wh_batch_free(batch[i]));
	want(0, us_batch(&us, op, &batch[0]));
	want_true(batch_run(batch[0]) < 0, "the server is dead");
	want(0, wh_batch_free(batch[0]));
	us_close(&us);

	serve(&command, url);
	want(0, us_open(&us, url));
	us_move(&us, 2);
	us_close(&us);
	want(0, kill(command.pid, SIGTERM));
	want(0, command_wait(&command));
}

static void killed__owner(void **state)
{
	(void)state;
	harness_limit(SCALE(120, 400));
	for (unsigned before = 0; before < BATCHES; before += 2) {
		owner_dies(WH_READ, before);
		owner_dies(WH_WRITE, before + 1);
	}
}

/* Memory of unnamed files that the process has mapped. */
static unsigned mapped(pid_t pid)
{
	char name[64], line[512];
	unsigned count = 0;
	FILE *maps;

	snprintf(name, sizeof(name), "/proc/%d/maps", (int)pid);
	maps = fopen(name, "re");
	want_true(maps, "%s: %s", name, strerror(errno));
	while (fgets(line, sizeof(line), maps))
		count += strstr(line, "memfd:wherry-lent") != NULL;
	fclose(maps);
	return count;
}

/* A process that writes the file over and over. */
static pid_t writer_start(const char *url)
{
	pid_t pid = fork();
	struct wh_batch *batch;
	struct us us;

	want_true(pid >= 0, "fork: %s", strerror(errno));
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (us_open(&us, url) || us_batch(&us, WH_WRITE, &batch))
		_exit(1);
	for (unsigned i = 0;; i++) {
		memset(us.memory, 'w' + (int)(i & 1), LENGTH);
		if (wh_batch_submit(batch) || wh_batch_wait_for(batch, PATIENCE))
			_exit(2);
	}
}

static void await(bool (*is)(const void *), const void *what, const char *text)
{
	int64_t until = now() + PATIENCE;

	while (!is(what)) {
		want_true(now() < until, "%s", text);
		sleep_ms(1);
	}
}

static bool file_is_written(const void *unused)
{
	char byte = 0;
	FILE *file = fopen(path, "re");

	(void)unused;
	want_true(file, "%s: %s", path, strerror(errno));
	want(1, fread(&byte, 1, 1, file));
	fclose(file);
	return byte == 'w' || byte == 'x';
}

static bool nothing_is_mapped(const void *command)
{
	return !mapped(((const struct command *)command)->pid);
}

/* The initiator dies while it writes: the server lets its memory go, and serves others. */
static void killed__initiator(void **state)
{
	struct command command;
	char url[256];
	struct us us;

	(void)state;
	harness_limit(SCALE(120, 400));
	serve(&command, url);
	want(0, mapped(command.pid));
	for (int i = 0; i < 5; i++) {
		pid_t writer = writer_start(url);
		int status;

		await(file_is_written, NULL, "nobody writes the file");
		want_true(mapped(command.pid), "nothing is lent");
		want(0, kill(writer, SIGKILL));
		want(writer, waitpid(writer, &status, 0));
		want_true(WIFSIGNALED(status), "it ended before: %d", status);
		await(nothing_is_mapped, &command, "its memory is still mapped");
		want(0, us_open(&us, url));
		us_move(&us, 3 + i);
		us_close(&us);
		await(nothing_is_mapped, &command, "memory of one that has closed is still mapped");
	}
	want(0, kill(command.pid, SIGTERM));
	want(0, command_wait(&command));
}

static int begin(void **state)
{
	FILE *file;

	directory_make(directory);
	snprintf(path, sizeof(path), "%s/file", directory);
	file = fopen(path, "we");
	if (!file || ftruncate(fileno(file), LENGTH) || fclose(file))
		return -1;
	return harness_begin(state);
}

static int end(void **state)
{
	directory_remove(directory);
	return harness_end(state);
}

static const struct CMUnitTest tests[] = {
	{ "killed__owner", killed__owner, begin, end, (void *)&needs_command },
	{ "killed__initiator", killed__initiator, begin, end, (void *)&needs_command },
};

HARNESS_MAIN("command-serve-killed", tests)
