/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that serve a directory as `wherry serve --dir` does, and copy files to and from those of
 * others as `wherry copy --recursive` does, all of it on disks that fail. A file has its name only
 * with all bytes of one of its versions, whatever happens meanwhile. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "copy/tree.h"
#include "program.h"
#include "serve/dir.h"
#include "tools.h"

#define FILES 2 /* names of a copy, in the directory and in one below */
#define PATHS 512
#define SIZE_MOST 20000
#define PAGE 4096
#define HEALED_MOST (240 * SIM_SEC) /* until copies succeed, when all is healed */
#define STEP (20 * SIM_MS)
#define WITHDRAWN_MOST (60 * SIM_SEC) /* peers let go of files, or their sessions end */

struct folder {
	struct program *program;
	struct served_file served;
	struct dir_server *server; /* NULL: it is not served yet */
	uint8_t *bytes; /* of a notification */
	bool copies, stops, done; /* a thread copies; it shall end; it has copied all in the end */
};

/* What a file was at some time. */
struct version {
	uint64_t stamp;
	size_t size;
	unsigned mode;
	int64_t mtime;
};

/* A file of a served directory, in all its versions: the newest of them, and older ones as far as
 * nothing says that they are gone. */
struct path {
	int place;
	char name[64];
	struct version *versions;
	size_t count, first;
	bool present; /* it must be there */
};

static struct path paths[PATHS];
static size_t path_count;
static uint64_t powers_lost[SIM_HOSTS]; /* how often */

/* ---- the model ------------------------------------------------------------------------------- */

static void path_of(char out[64], int place, const char *what)
{
	snprintf(out, 64, "/disk/p%d%s", place, what);
}

/* With a page of zeros, which is a hole. */
static void version_fill(const struct version *version, uint8_t *out)
{
	pattern_fill(out, version->stamp, version->size);
	if (version->stamp % 2 && version->size > 2 * PAGE)
		memset(out + PAGE, 0, PAGE);
}

static bool version_is(const struct version *version, const struct sim_file *file)
{
	uint8_t *bytes;
	bool same;

	if (file->size != version->size || (file->mode & 0777) != version->mode ||
	    file->mtime != version->mtime)
		return false;
	bytes = malloc(version->size + 1);
	version_fill(version, bytes);
	same = !memcmp(bytes, file->bytes, version->size);
	free(bytes);
	return same;
}

static struct path *path_find(int place, const char *name)
{
	struct path *path = paths;

	while (path < paths + path_count && (path->place != place || strcmp(path->name, name) != 0))
		path++;
	if (path < paths + path_count)
		return path;
	if (path_count == PATHS)
		sim_fail("simulation", "more than %d paths", PATHS);
	path_count++;
	path->place = place;
	snprintf(path->name, sizeof(path->name), "%s", name);
	return path;
}

/* A file has a name: with one of its versions, from `first` on. */
static void check_file(const struct path *path, const struct sim_file *file, size_t first,
		       const char *where)
{
	for (size_t i = path->count; i > first; i--)
		if (version_is(&path->versions[i - 1], file))
			return;
	for (size_t i = 0; i < path->count; i++)
		if (path->versions[i].size == file->size)
			fprintf(stderr, "  version %zu has its length, mode %o, time %lld\n", i,
				path->versions[i].mode, (long long)path->versions[i].mtime);
	sim_fail("files",
		 "%s: %s of place %d has %zu bytes, mode %o, time %lld: none of versions "
		 "%zu to %zu",
		 where, path->name, path->place, file->size, file->mode, (long long)file->mtime,
		 first, path->count);
}

static bool is_part(const char *name)
{
	const char *slash = strrchr(name, '/');

	return (slash ? slash[1] : name[0]) == '.';
}

static void check_served(int place)
{
	struct sim_file file = { 0 };
	char root[64];

	path_of(root, place, "");
	while (sim_file_next(place_host(place), root, &file)) {
		const struct path *path;

		if (is_part(file.name))
			continue;
		path = path_find(place, file.name);
		check_file(path, &file, path->first, "a served file");
	}
}

/* What was copied with success is there. */
static void check_present(const struct path *path)
{
	struct sim_file file = { 0 };
	char root[64];

	path_of(root, path->place, "");
	while (sim_file_next(place_host(path->place), root, &file))
		if (strcmp(file.name, path->name) == 0)
			return;
	sim_fail("files", "%s of place %d is gone", path->name, path->place);
}

static void check_all(void)
{
	for (int place = 0; place < place_count(); place++)
		check_served(place);
	for (size_t i = 0; i < path_count; i++)
		if (paths[i].present)
			check_present(&paths[i]);
}

void folder_lose_power(int host)
{
	powers_lost[host]++;
	/* The bytes of a file are on the disk, its name need not be. */
	for (size_t i = 0; i < path_count; i++)
		if (place_host(paths[i].place) == host) {
			paths[i].first = 0;
			paths[i].present = false;
		}
}

/* ---- copies ---------------------------------------------------------------------------------- */

static void url_of(int place, const char *path, char out[160])
{
	char url[64];

	program_url(place, url, sizeof(url));
	snprintf(out, 160, "%s/files%s", url, path);
}

int folder_copy(struct program *program, const char *from, const char *to, bool resume)
{
	struct program_settings settings = { 0 };
	const char *operands[] = { from, to };
	struct tools_copy command = {
		.arguments = { .operands = operands,
			       .operand_count = 2,
			       .all_count = sizeof(settings.rows) / sizeof(*settings.rows) },
		.resume = resume,
		.verify = !sim_draw_work(3),
		.config = settings.rows,
	};
	int code;

	program_settings(&settings);
	sim_trace("copy %s %s", from, to);
	code = tree_run(&command.arguments);
	sim_trace("copy %s %s: %d %s", from, to, code, code ? tools_text() : "");
	if (code && strstr(tools_text(), "is wrong"))
		sim_fail("files", "%s", tools_text());
	program_counts.copies += !code;
	return program->crashed ? -1 : code;
}

/* No two have the same bytes, but empty ones: --resume leaves what is there as it is. */
static struct version version_new(void)
{
	uint64_t most = (uint64_t)sim_options.block * 3;

	if (!sim_draw_work(6))
		return (struct version){ .mode = 0600 };
	return (struct version){
		.stamp = sim_draw_work(UINT64_MAX),
		.size = 8 + sim_draw_work(most < SIZE_MOST ? most : SIZE_MOST),
		.mode = 0400 | (unsigned)sim_draw_work(0400),
		.mtime = (int64_t)sim_draw_work(1700000000) * SIM_SEC + 5,
	};
}

static void path_add(struct path *path, const struct version *version)
{
	path->versions = sim_grow(path->versions, path->count + 1, sizeof(*version));
	path->versions[path->count++] = *version;
}

static void source_put(int host, const char *path, const struct version *version)
{
	uint8_t *bytes = malloc(version->size + 1);

	version_fill(version, bytes);
	sim_file_put(host, path, bytes, version->size, version->mode, version->mtime);
	free(bytes);
}

/* New versions of files, in a directory of their own. Returns how many; `out`: which. */
static int sources_make(int host, const char *source, int target, const char *prefix,
			struct path *out[2 * FILES])
{
	char path[96], name[64];
	int count = 0;

	sim_folder_empty(host, source);
	sim_folder_new(host, source);
	snprintf(path, sizeof(path), "%s/sub", source);
	sim_folder_new(host, path);
	for (int i = 0; i < 2 * FILES; i++) {
		const char *folder = i < FILES ? "" : "sub/";
		struct version version = version_new();

		if (!sim_draw_work(3))
			continue;
		snprintf(path, sizeof(path), "%s/%sf%d", source, folder, i % FILES);
		source_put(host, path, &version);
		snprintf(name, sizeof(name), "%s/%sf%d", prefix, folder, i % FILES);
		out[count] = path_find(target, name);
		path_add(out[count++], &version);
	}
	return count;
}

/* To another one's directory: below a name of its own, or one of all. `resume`: once more what a
 * copy there has begun. */
static bool put(struct program *program, int target)
{
	bool shared = !sim_draw_work(3), done = false;
	uint64_t powers = powers_lost[place_host(target)];
	char source[64], prefix[24], below[32], url[160];
	struct path *written[2 * FILES];
	int count, tries = 1 + (int)sim_draw_work(3);

	path_of(source, program->place, ".from");
	snprintf(prefix, sizeof(prefix), shared ? "all" : "of%d", program->place);
	snprintf(below, sizeof(below), "/%s", prefix);
	url_of(target, below, url);
	count = sources_make(place_host(program->place), source, target, prefix, written);
	for (int i = 0; i < tries && !done && !program->crashed; i++)
		done = !folder_copy(program, source, url, i || !sim_draw_work(3));
	for (int i = 0; i < count && done && !shared && powers == powers_lost[place_host(target)];
	     i++) {
		written[i]->first = written[i]->count - 1;
		written[i]->present = true;
	}
	check_all();
	return done;
}

/* All of another one's directory. */
static bool get(struct program *program, int source)
{
	char target[64], what[32], url[160];
	struct sim_file file = { 0 };
	size_t *first = malloc(PATHS * sizeof(*first));
	bool done, resume = sim_draw_work(2);

	for (size_t i = 0; i < PATHS; i++)
		first[i] = paths[i].first;
	snprintf(what, sizeof(what), ".to/p%d", source);
	path_of(target, program->place, ".to");
	sim_folder_new(place_host(program->place), target);
	path_of(target, program->place, what);
	if (!resume)
		sim_folder_empty(place_host(program->place), target);
	url_of(source, "", url);
	done = !folder_copy(program, url, target, resume);
	while (sim_file_next(place_host(program->place), target, &file)) {
		const struct path *path;

		if (is_part(file.name))
			continue;
		path = path_find(source, file.name);
		/* With --resume there are older ones, too. */
		check_file(path, &file,
			   resume || powers_lost[place_host(source)] ? 0 : first[path - paths],
			   "a copy");
	}
	free(first);
	return done;
}

static int other_place(const struct program *program)
{
	int other = (int)sim_draw_work((uint64_t)place_count() - 1);

	return other + (other >= program->place);
}

/* All is healed: each copy has to succeed. */
static void copies_drain(struct program *program)
{
	for (int place = 0; place < place_count(); place++) {
		if (place == program->place)
			continue;
		while (!put(program, place) || !get(program, place)) {
			if (program->crashed)
				return;
			if (sim_time - program_healed_at > HEALED_MOST)
				sim_fail("hang", "%lld s after all was healed a copy fails: %s",
					 HEALED_MOST / SIM_SEC, tools_text());
			sim_sleep(100 * SIM_MS);
		}
	}
}

static void *copies_main(void *arg)
{
	struct folder *folder = arg;
	struct program *program = folder->program;

	while (!folder->stops && program_phase == PHASE_FAULTS) {
		sim_sleep((int64_t)sim_draw_work(100 * SIM_MS));
		if (program->crashed)
			break; /* its next incarnation has its directories by now */
		if (sim_draw_work(3))
			put(program, other_place(program));
		else
			get(program, other_place(program));
	}
	if (!folder->stops && !program->crashed)
		copies_drain(program);
	folder->done = true;
	folder->copies = false;
	return NULL;
}

/* ---- serving --------------------------------------------------------------------------------- */

void folder_open(struct program *program)
{
	struct folder *folder = calloc(1, sizeof(*folder));

	folder->program = program;
	folder->bytes = malloc(WH_NOTIFICATION_MAX);
	folder->served.writable = true;
	snprintf(folder->served.name, sizeof(folder->served.name), "files");
	path_of(folder->served.path, program->place, "");
	sim_folder_new(place_host(program->place), folder->served.path);
	program->folder = folder;
}

static void folder_begin(struct program *program)
{
	char name[32];

	folder_open(program);
	program->folder->copies = true;
	snprintf(name, sizeof(name), "p%d/n%d'", program->place, program->node);
	sim_spawn(program->node, name, copies_main, program->folder);
}

static void server_open(struct folder *folder)
{
	int code = dir_server_start(folder->program->engine, &folder->served, 1, 1024,
				    &folder->server);

	if (!code)
		return;
	dir_server_end(folder->server);
	dir_server_stop(folder->server, 0, code);
	folder->server = NULL;
}

void folder_serve(struct program *program)
{
	struct folder *folder = program->folder;
	const struct wh_notification_filter filter = { .size = sizeof(filter),
						       .tag = DIR_TAG,
						       .tag_mask = UINT64_MAX };
	struct wh_notification got = { .size = sizeof(got),
				       .buffer = folder->bytes,
				       .capacity = WH_NOTIFICATION_MAX };
	int rc;

	if (!folder->server)
		server_open(folder);
	rc = wh_engine_notification(program->engine, &filter, &got, STEP);
	if (rc && rc != -EAGAIN)
		sim_fail("call", "wh_engine_notification = %d: %s", rc, wh_error_text());
	if (!rc && folder->server)
		dir_server_take(folder->server, &got);
}

void folder_work(struct program *program)
{
	if (!program->folder)
		folder_begin(program);
	folder_serve(program);
	if (!sim_draw_work(50))
		check_all();
}

void folder_drain(struct program *program)
{
	if (!program->folder)
		folder_begin(program);
	while (!program->folder->done)
		folder_serve(program);
}

void folder_leave(struct program *program)
{
	struct folder *folder = program->folder;
	int code;

	if (!folder)
		return;
	folder->stops = true;
	while (folder->copies)
		folder_serve(program);
	dir_server_end(folder->server);
	code = dir_server_stop(folder->server, sim_time + WITHDRAWN_MOST, 0);
	if (code && !program->crashed)
		sim_fail("call", "dir_server_stop = %d: %s", code, tools_text());
	free(folder->bytes);
	free(folder);
	program->folder = NULL;
}
