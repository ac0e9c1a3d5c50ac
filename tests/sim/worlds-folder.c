/* SPDX-License-Identifier: Apache-2.0 */
/* Directed worlds of served directories: the owner serves one as `wherry serve --dir` does, and
 * copies run on the initiator's host as `wherry copy --recursive` does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "copy/tree.h"
#include "scene.h"
#include "serve/dir.h"
#include "tools.h"

#define SERVED "/disk/served"
#define FILE_BYTES 60000
#define QUESTION 1000 /* bytes: longer is what a file has */
#define MODE 0640
#define DESCRIPTORS 1024

/* ---- the server ------------------------------------------------------------------------------ */

struct server {
	const struct scene *scene;
	bool serves, leave, left;
};

static void *serve_main(void *arg)
{
	struct server *server = arg;
	struct wh_engine *engine = server->scene->owner->engine;
	struct served_file served = { .name = "files", .path = SERVED, .writable = true };
	const struct wh_notification_filter filter = { .size = sizeof(filter),
						       .tag = DIR_TAG,
						       .tag_mask = UINT64_MAX };
	uint8_t *bytes = malloc(WH_NOTIFICATION_MAX);
	struct wh_notification got = { .size = sizeof(got),
				       .buffer = bytes,
				       .capacity = WH_NOTIFICATION_MAX };
	struct dir_server *served_by;

	sim_folder_new(SCENE_OWNER, SERVED);
	scene_expect("dir_server_start",
		     dir_server_start(engine, &served, 1, DESCRIPTORS, &served_by), 0);
	server->serves = true;
	while (!server->leave)
		if (!wh_engine_notification(engine, &filter, &got, 10 * SIM_MS))
			dir_server_take(served_by, &got);
	dir_server_end(served_by);
	scene_expect("dir_server_stop", dir_server_stop(served_by, sim_time + 10 * SIM_SEC, 0), 0);
	free(bytes);
	server->left = true;
	return NULL;
}

static void serve(struct server *server, struct scene *scene)
{
	server->scene = scene;
	sim_spawn(scene->owner->node, "serve", serve_main, server);
	while (!server->serves)
		scene_pass(scene, SIM_MS);
}

static void serve_no_more(struct server *server, struct scene *scene)
{
	server->leave = true;
	while (!server->left)
		scene_pass(scene, SIM_MS);
}

/* ---- copies ---------------------------------------------------------------------------------- */

struct copy {
	const char *source;
	uint8_t byte; /* that its file consists of */
	bool resume;
	int code;
	bool done;
};

static int64_t copy_mtime(const struct copy *copy)
{
	return copy->byte * SIM_SEC;
}

static void *copy_main(void *arg)
{
	struct copy *copy = arg;
	struct program_settings settings = { 0 };
	char url[80];
	const char *operands[] = { copy->source, url };
	const struct tools_copy command = {
		.arguments = { .operands = operands,
			       .operand_count = 2,
			       .all_count = sizeof(settings.rows) / sizeof(*settings.rows) },
		.resume = copy->resume,
		.config = settings.rows,
	};

	program_settings(&settings);
	program_url(SCENE_OWNER, url, sizeof(url));
	strcat(url, "/files");
	copy->code = tree_run(&command.arguments);
	copy->done = true;
	return NULL;
}

/* Copy a directory with one file, f. */
static void copy_start(struct scene *scene, struct copy *copy)
{
	static uint8_t bytes[FILE_BYTES];
	char path[64];

	memset(bytes, copy->byte, sizeof(bytes));
	sim_folder_new(0, copy->source);
	snprintf(path, sizeof(path), "%s/f", copy->source);
	sim_file_put(0, path, bytes, sizeof(bytes), MODE, copy_mtime(copy));
	sim_spawn(scene->initiator->node, copy->source, copy_main, copy);
}

static int copy_end(struct scene *scene, const struct copy *copy)
{
	for (int64_t since = sim_time; !copy->done; scene_pass(scene, SIM_MS))
		if (sim_time - since > 60 * SIM_SEC)
			sim_fail("hang", "the copy of %s has not ended", copy->source);
	return copy->code;
}

/* Everything under the name f is that copy's. */
static void expect_file_of(const struct copy *copy)
{
	struct sim_file file = { 0 };
	size_t same = 0;

	while (sim_file_next(SCENE_OWNER, SERVED, &file) && strcmp(file.name, "f") != 0)
		;
	if (!file.at)
		sim_fail("files", "there is no file f");
	while (same < file.size && file.bytes[same] == copy->byte)
		same++;
	if (file.size != FILE_BYTES || same < file.size || file.mtime != copy_mtime(copy))
		sim_fail("files", "f has %zu bytes, of which only %zu are those of %s", file.size,
			 same, copy->source);
}

/* ---- a writer that another one replaces ------------------------------------------------------ */

/* What the first copy writes is late, on all of its connections. */
struct first {
	int newest; /* connection */
	bool alone; /* no other one has begun */
	int64_t until;
};

static int64_t delay_first(const struct sim_packet *packet, void *arg)
{
	struct first *first = arg;

	if (packet->from_host != 0 || !packet->from_initiator)
		return 0;
	if (first->alone && packet->connection > first->newest)
		first->newest = packet->connection;
	return packet->connection <= first->newest && packet->length > QUESTION &&
			       sim_time < first->until ?
		       first->until - sim_time :
		       0;
}

/* A copy has begun a file, and its bytes are on their way. Another one goes on with what it has
 * left there (--resume), and gives the file its name. Then the bytes of the first one come: they
 * must not be found under that name. */
static void act_taken_over(struct scene *scene)
{
	struct first first = { .alone = true, .until = sim_time + 3 * SIM_SEC };
	struct copy before = { .source = "/disk/before", .byte = 1 };
	struct copy after = { .source = "/disk/after", .byte = 2, .resume = true };
	struct server server = { .scene = NULL };

	serve(&server, scene);
	sim_network_watch(delay_first, &first);
	copy_start(scene, &before);
	scene_pass(scene, SIM_SEC);
	first.alone = false;
	copy_start(scene, &after);
	scene_expect("the later copy", copy_end(scene, &after), 0);
	if (before.done || sim_time > first.until)
		sim_fail("directed", "the bytes of the first copy were not late");
	expect_file_of(&after);
	if (!copy_end(scene, &before))
		sim_fail("directed", "a copy succeeds that another one has replaced");
	if (sim_time < first.until)
		scene_pass(scene, first.until - sim_time);
	scene_pass(scene, SIM_SEC);
	expect_file_of(&after);
	serve_no_more(&server, scene);
}

static void world_taken_over(void)
{
	scene_play(act_taken_over);
}

const struct world worlds_folder[] = {
	{ "taken-over", "a copy goes on with a file whose bytes of another copy are late",
	  world_taken_over },
	{ NULL, NULL, NULL },
};
