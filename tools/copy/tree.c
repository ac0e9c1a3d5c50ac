/* SPDX-License-Identifier: Apache-2.0 */
/* wherry copy with files by name: what is to be copied, and group after group of files from one
 * end to the other. The engine moves bytes from file to file; no byte passes through a buffer of
 * ours but to be summed. */
#include "copy/tree.h"

#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "command.h"
#include "engine.h"
#include "output.h"
#include "progress.h"
#include "util/clock.h"

#define REDRAW (100 * WH_MS)
#define ROUND_BYTES (UINT64_C(256) << 20) /* of one batch */
#define ROUND_TRANSFERS 1024
#define GROUP_PATHS (40 << 10) /* bytes: their names must fit one request */
#define SUMS ((size_t)(DIR_SUM_MOST / DIR_SUM_BLOCK)) /* blocks of one question */

struct task {
	struct side *source;
	char *from, *to;
	uint64_t length;
};

struct tree {
	const struct arguments *arguments;
	bool recursive, resume, verify, quiet, json;
	struct wh_engine *engine;
	struct side target, *sources;
	size_t source_count;
	struct task *tasks;
	size_t task_count, task_room;
	struct tree_list directories; /* of the target, each before what is in it */
	bool *made; /* which of these were not there */
	bool target_there; /* its base is a directory */
	struct progress progress;
	uint64_t total, done, copied; /* bytes; copied: moved by the engine */
	uint64_t unchanged, skipped; /* files; skipped: no regular ones */
	double seconds;
	/* The group that is being copied, and a round of it. */
	struct tree_file from[TREE_GROUP], to[TREE_GROUP];
	size_t count;
	struct side *source;
	struct wh_transfer round[ROUND_TRANSFERS];
	size_t round_count;
	uint64_t round_bytes;
	struct end routes; /* what the batches say */
};

/* ---- the command line ------------------------------------------------------------------------ */

bool tree_wanted(const struct arguments *arguments)
{
	if (argument(arguments, "recursive") || argument(arguments, "resume") ||
	    arguments->operand_count > 2)
		return true;
	for (int i = 0; i < arguments->operand_count; i++) {
		const char *text = arguments->operands[i];
		const char *slash = url_is(text) ? strchr(text + strlen("wherry://"), '/') : NULL;

		if (slash && strchr(slash + 1, '/'))
			return true;
	}
	return false;
}

static int tree_parse(struct tree *tree)
{
	static const char *const wrong[] = { "length", "offset", "chunk", "mooncake-metadata" };
	const struct arguments *arguments = tree->arguments;
	int last = arguments->operand_count - 1, code;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		if (argument(arguments, wrong[i]))
			return usage_error("--%s is for regions, not for files of a directory",
					   wrong[i]);
	for (int i = 0; i <= last; i++) {
		const char *text = arguments->operands[i];

		if (!url_is(text) && strstr(text, "://"))
			return usage_error("'%s' is no address: files of a directory are "
					   "wherry://HOST:PORT/NAME/PATH",
					   text);
		if (!*text || !strcmp(text, "-"))
			return usage_error("standard input and output have no names of files");
		if (i < last && url_is(text) == url_is(arguments->operands[last]))
			return usage_error("all SRC are files and DST is wherry://HOST:PORT/NAME, "
					   "or the other way round; between files use cp");
	}
	code = engine_parse_stall(arguments);
	if (!code)
		code = check_choice(arguments, "transport");
	tree->recursive = argument(arguments, "recursive");
	tree->resume = argument(arguments, "resume");
	tree->verify = argument(arguments, "verify");
	tree->quiet = argument(arguments, "quiet");
	tree->json = argument(arguments, "json");
	return code;
}

/* ---- what is to be copied -------------------------------------------------------------------- */

/* "a/b" of "a" and "b", either of which may be empty. NULL: no memory. */
static char *join(const char *a, const char *b)
{
	char *out;

	return asprintf(&out, "%s%s%s", a, *a && *b ? "/" : "", b) < 0 ? NULL : out;
}

/* The name under which a source appears in a directory: its last part. */
static char *last_part(const char *text)
{
	char *copy = url_is(text) ? strdup(text) : realpath(text, NULL), *out;

	out = copy ? strdup(basename(copy)) : NULL;
	free(copy);
	return out;
}

static int task_add(struct tree *tree, struct side *source, const char *from, char *to,
		    uint64_t length)
{
	struct task *task;

	if (tree->task_count == tree->task_room) {
		size_t room = 2 * tree->task_room + 64;
		struct task *grown = realloc(tree->tasks, room * sizeof(*grown));

		if (!grown)
			goto err_free;
		tree->tasks = grown;
		tree->task_room = room;
	}
	task = &tree->tasks[tree->task_count];
	*task = (struct task){ source, strdup(from), to, length };
	if (!to || !task->from)
		goto err_free;
	if (!dir_path_valid(to, strlen(to))) {
		free(task->from);
		free(to);
		return fail(ENAMETOOLONG, "no file can be named %.80s...", from);
	}
	tree->task_count++;
	tree->total += length;
	return 0;
err_free:
	free(to);
	return fail(ENOMEM, "out of memory");
}

/* Mode 0: it is no copy of another one, or it is to be left as it is. */
static int add_directory(struct tree *tree, const char *path, uint32_t mode, int64_t mtime)
{
	struct dir_item about = { .mode = mode, .mtime = mtime };

	if (*path && tree_list_add(&tree->directories, path, strlen(path), &about))
		return fail(ENOMEM, "out of memory");
	return 0;
}

/* The source's base, `about`, and everything below it, under `prefix` in the target. */
static int plan_directory(struct tree *tree, struct side *source, const struct tree_entry *about,
			  const char *prefix)
{
	/* What the command line names is the user's. */
	bool named = tree->target_there && !strcmp(prefix, tree->target.base);
	struct tree_list list;
	int code = side_list(source, true, &list);

	if (!code)
		code = add_directory(tree, prefix, named ? 0 : about->mode, about->mtime);
	for (size_t i = 0; !code && i < list.count; i++) {
		const struct tree_entry *entry = &list.entries[i];
		char *from = join(source->base, entry->path), *to = join(prefix, entry->path);

		if (!from || !to)
			code = fail(ENOMEM, "out of memory");
		else if (S_ISDIR(entry->mode))
			code = add_directory(tree, to, entry->mode, entry->mtime);
		else if (S_ISREG(entry->mode)) {
			code = task_add(tree, source, from, to, entry->length);
			to = NULL;
		} else
			tree->skipped++;
		free(from);
		free(to);
	}
	tree_list_free(&list);
	return code;
}

/* `into`: the source appears in the target under its own name. */
static int plan_source(struct tree *tree, struct side *source, bool into, bool several)
{
	char *name = last_part(source->name), *prefix = NULL;
	struct tree_entry entry;
	int code = side_stat(source, &entry);

	if (code)
		goto end;
	if (!entry.mode)
		code = fail(ENOENT, "%s: there is no such file", source->name);
	else if (S_ISDIR(entry.mode) && !tree->recursive)
		code = fail(EISDIR, "%s is a directory: use --recursive", source->name);
	else if (!S_ISDIR(entry.mode) && !S_ISREG(entry.mode))
		code = fail(EINVAL, "%s is neither a regular file nor a directory", source->name);
	if (code)
		goto end;
	into = S_ISDIR(entry.mode) ? several : into;
	prefix = name ? join(tree->target.base, into ? name : "") : NULL;
	if (!prefix)
		code = fail(ENOMEM, "out of memory");
	else if (S_ISDIR(entry.mode))
		code = plan_directory(tree, source, &entry, prefix);
	else
		code = task_add(tree, source, source->base, strdup(prefix), entry.length);
end:
	free(name);
	free(prefix);
	return code;
}

static int tree_plan(struct tree *tree)
{
	const char **operands = tree->arguments->operands;
	int last = tree->arguments->operand_count - 1, code;
	size_t length = strlen(operands[last]);
	struct tree_entry target;
	bool into;

	code = side_open(&tree->target, tree->engine, operands[last], true, tree->quiet);
	if (!code)
		code = side_stat(&tree->target, &target);
	if (code)
		return code;
	tree->target_there = S_ISDIR(target.mode);
	into = S_ISDIR(target.mode) || last > 1 || operands[last][length - 1] == '/';
	if (last > 1 || (into && !S_ISDIR(target.mode)))
		code = add_directory(tree, tree->target.base, 0, 0);
	tree->sources = calloc((size_t)last, sizeof(*tree->sources));
	if (!tree->sources)
		return fail(ENOMEM, "out of memory");
	for (int i = 0; !code && i < last; i++) {
		struct side *source = &tree->sources[tree->source_count++];

		code = side_open(source, tree->engine, operands[i], false, tree->quiet);
		if (!code)
			code = plan_source(tree, source, into, last > 1);
	}
	return code;
}

/* With --resume those that are there may be of an earlier attempt. */
static int make_directories(struct tree *tree)
{
	const struct tree_list *list = &tree->directories;
	int code = 0;

	tree->made = calloc(list->count + 1, sizeof(*tree->made));
	if (!tree->made)
		return fail(ENOMEM, "out of memory");
	for (size_t i = 0, next; !code && i < list->count; i = next) {
		bool narrow = tree->resume && list->entries[i].mode;

		next = i + 1;
		while (next < list->count && narrow == (tree->resume && list->entries[next].mode))
			next++;
		code = side_make_directories(&tree->target, list->entries + i, next - i,
					     narrow ? DIR_MKDIR_NARROW : DIR_MKDIR_MAKE,
					     tree->made + i);
	}
	return code;
}

/* Give directories their modes and times: only now, as files came into them. Each after what is in
 * it. */
static int end_directories(struct tree *tree)
{
	const struct tree_list *list = &tree->directories;
	struct tree_entry *entries = calloc(list->count + 1, sizeof(*entries));
	bool *made = calloc(list->count + 1, sizeof(*made));
	size_t count = 0;
	int code;

	for (size_t i = list->count; i-- && entries;)
		if (list->entries[i].mode && (tree->made[i] || tree->resume))
			entries[count++] = list->entries[i];
	code = entries && made ?
		       side_make_directories(&tree->target, entries, count, DIR_MKDIR_END, made) :
		       fail(ENOMEM, "out of memory");
	free(entries);
	free(made);
	return code;
}

/* ---- a round: transfers of one batch --------------------------------------------------------- */

static struct side *remote_side(struct tree *tree)
{
	return tree->target.remote ? &tree->target : tree->source;
}

/* Wait for the batch. 0 or a negative errno. */
static int round_wait(struct tree *tree, struct wh_batch *batch)
{
	int64_t since = wh_now();
	uint64_t moved = 0, before = 0;
	int error;

	while ((error = wh_batch_wait_for(batch, REDRAW)) == -EAGAIN) {
		if (!wh_batch_progress(batch, &moved) && moved != before) {
			before = moved;
			since = wh_now();
		}
		progress_move(&tree->progress, tree->done + moved);
		side_keep_files(remote_side(tree), tree->target.remote ? tree->to : tree->from,
				tree->count);
		if (wh_now() - since >= engine_stall()) {
			wh_batch_cancel(batch);
			return -ETIMEDOUT;
		}
	}
	return error ? error : wh_batch_status(batch);
}

static int round_run(struct tree *tree)
{
	struct side *remote = remote_side(tree);
	struct wh_batch *batch;
	int error, code = 0;

	if (!tree->round_count)
		return 0;
	error = wh_batch_new(remote->client.peer, NULL, &batch);
	if (error)
		return engine_fail(error, "cannot create a batch");
	error = wh_batch_add(batch, tree->round, tree->round_count);
	if (!error)
		error = wh_batch_submit(batch);
	if (!error)
		error = round_wait(tree, batch);
	if (error == -ETIMEDOUT)
		code = fail(error, "%s: " STALL_TEXT, remote->name, (double)engine_stall() / 1e9);
	else if (error)
		code = fail(error, "%s: %s", remote->name, wh_error_text());
	else
		remote_count(&tree->routes, batch);
	code = engine_undo(code, wh_batch_free(batch), "cannot free a batch");
	tree->done += tree->round_bytes;
	tree->copied += code ? 0 : tree->round_bytes;
	tree->round_count = 0;
	tree->round_bytes = 0;
	progress_move(&tree->progress, tree->done);
	return code;
}

/* Copy a range of file `i` of the group, now or with what follows. */
static int round_add(struct tree *tree, size_t i, uint64_t offset, uint64_t length)
{
	struct tree_file *from = &tree->from[i], *to = &tree->to[i];
	bool write = tree->target.remote;
	int code = 0;

	while (!code && length) {
		uint64_t room = ROUND_BYTES - tree->round_bytes;
		uint64_t part = length < room ? length : room;

		tree->round[tree->round_count++] = (struct wh_transfer){
			.local = write ? from->region : to->region,
			.local_offset = offset,
			.remote = write ? to->remote.id : from->remote.id,
			.remote_offset = offset,
			.length = part,
			.op = write ? WH_WRITE : WH_READ,
		};
		tree->round_bytes += part;
		offset += part;
		length -= part;
		if (tree->round_bytes == ROUND_BYTES || tree->round_count == ROUND_TRANSFERS)
			code = round_run(tree);
	}
	return code;
}

/* ---- checksums ------------------------------------------------------------------------------- */

/* Call `differs` for each block of the two files that is not the same; it returns 0 or an exit
 * code. The files have one length. */
static int compare(struct tree *tree, size_t i,
		   int (*differs)(struct tree *tree, size_t i, uint64_t block))
{
	uint64_t length = tree->from[i].length;
	uint64_t blocks = length / DIR_SUM_BLOCK + (length % DIR_SUM_BLOCK != 0);
	uint8_t ours[SUMS][DIR_DIGEST], theirs[SUMS][DIR_DIGEST];
	int code = 0;

	for (uint64_t first = 0; !code && first < blocks; first += SUMS) {
		size_t count = blocks - first < SUMS ? (size_t)(blocks - first) : SUMS;

		code = side_sum(tree->source, &tree->from[i], first, count, ours);
		if (!code)
			code = side_sum(&tree->target, &tree->to[i], first, count, theirs);
		for (size_t k = 0; !code && k < count; k++)
			if (memcmp(ours[k], theirs[k], DIR_DIGEST) != 0)
				code = differs(tree, i, first + k);
	}
	return code;
}

static int copy_block(struct tree *tree, size_t i, uint64_t block)
{
	uint64_t offset = block * DIR_SUM_BLOCK, left = tree->from[i].length - offset;

	return round_add(tree, i, offset, left < DIR_SUM_BLOCK ? left : DIR_SUM_BLOCK);
}

static int report_block(struct tree *tree, size_t i, uint64_t block)
{
	return fail(EIO, "the copy of %s is wrong: its SHA-256 from byte %llu on differs",
		    tree->from[i].path, (unsigned long long)block * DIR_SUM_BLOCK);
}

#define DIFFERS (-1) /* no exit code */

static int note_block(struct tree *tree, size_t i, uint64_t block)
{
	(void)tree;
	(void)i;
	(void)block;
	return DIFFERS;
}

/* Take the files out of the group that the target has already: of the same length, with the same
 * checksums. */
static int leave_unchanged(struct tree *tree)
{
	size_t left = 0;
	int code = side_open_files(&tree->target, tree->to, tree->count, true);

	for (size_t i = 0; i < tree->count; i++) {
		bool same =
			!code && !tree->to[i].error && tree->to[i].length == tree->from[i].length;

		if (same) {
			int answer = compare(tree, i, note_block);

			same = !answer;
			code = answer == DIFFERS ? 0 : answer;
		}
		side_close_files(&tree->target, &tree->to[i], 1);
		if (same) {
			tree->unchanged++;
			tree->done += tree->from[i].length;
			side_close_files(tree->source, &tree->from[i], 1);
			continue;
		}
		tree->to[left] = (struct tree_file){ .path = tree->to[i].path, .fd = -1 };
		if (left != i) {
			tree->from[left] = tree->from[i];
			tree->from[i] = (struct tree_file){ .fd = -1 };
		}
		left++;
	}
	tree->count = left;
	return code;
}

/* ---- a group --------------------------------------------------------------------------------- */

static int copy_file(struct tree *tree, size_t i)
{
	const struct tree_file *from = &tree->from[i];
	int code = 0;

	if (tree->to[i].kept)
		return compare(tree, i, copy_block);
	for (size_t k = 0; !code && k < from->extent_count; k++)
		code = round_add(tree, i, from->extents[k].offset, from->extents[k].length);
	return code;
}

static int copy_opened(struct tree *tree)
{
	uint64_t end;
	int code = tree->resume ? leave_unchanged(tree) : 0;

	if (code || !tree->count)
		return code;
	end = tree->done;
	for (size_t i = 0; i < tree->count; i++) {
		tree->to[i].length = tree->from[i].length;
		tree->to[i].mode = tree->from[i].mode;
		tree->to[i].mtime = tree->from[i].mtime;
		end += tree->from[i].length;
	}
	code = side_create_files(&tree->target, tree->to, tree->count, tree->resume);
	for (size_t i = 0; !code && i < tree->count; i++)
		code = copy_file(tree, i);
	if (!code)
		code = round_run(tree);
	for (size_t i = 0; !code && tree->verify && i < tree->count; i++)
		code = compare(tree, i, report_block);
	if (!code)
		code = side_commit_files(&tree->target, tree->to, tree->count);
	if (!code)
		tree->done = end; /* holes, and what was there, are done as well */
	return code;
}

/* Copy tasks from `first` on: as many as may be open at once, of one source. *next: the rest. */
static int copy_group(struct tree *tree, size_t first, size_t *next)
{
	size_t bytes = 0, opened, i = first;
	int code;

	tree->source = tree->tasks[first].source;
	for (tree->count = 0; i < tree->task_count && tree->count < TREE_GROUP; i++) {
		const struct task *task = &tree->tasks[i];

		bytes += strlen(task->from) + strlen(task->to) + 96;
		if (task->source != tree->source || (tree->count && bytes > GROUP_PATHS))
			break;
		tree->from[tree->count] = (struct tree_file){ .path = task->from, .fd = -1 };
		tree->to[tree->count++] = (struct tree_file){ .path = task->to, .fd = -1 };
	}
	*next = i;
	opened = tree->count;
	code = side_open_files(tree->source, tree->from, tree->count, false);
	if (!code)
		code = copy_opened(tree);
	side_close_files(&tree->target, tree->to, opened);
	side_close_files(tree->source, tree->from, opened);
	tree->round_count = 0;
	tree->round_bytes = 0;
	progress_move(&tree->progress, tree->done);
	return code;
}

static int tree_copy(struct tree *tree)
{
	int64_t start = wh_now();
	int code = make_directories(tree);

	progress_start(&tree->progress, "copying", tree->total, tree->quiet);
	for (size_t next = 0; !code && next < tree->task_count;)
		code = copy_group(tree, next, &next);
	if (!code)
		code = end_directories(tree);
	progress_end(&tree->progress);
	tree->seconds = (double)(wh_now() - start) / 1e9;
	return code;
}

/* ---- the result ------------------------------------------------------------------------------ */

static double tree_rate(const struct tree *tree)
{
	return tree->seconds > 0 ? (double)tree->copied / tree->seconds / 1e9 : 0;
}

static void print_text(const struct tree *tree)
{
	printf("copied %llu bytes", (unsigned long long)tree->copied);
	if (tree->copied >= 1 << 20)
		printf(" (%.1f MiB)", (double)tree->copied / 0x1p20);
	printf(" in %.3f s, %.2f GB/s, %llu files of %llu bytes", tree->seconds, tree_rate(tree),
	       (unsigned long long)tree->task_count, (unsigned long long)tree->total);
	if (tree->unchanged)
		printf(", %llu were there already", (unsigned long long)tree->unchanged);
	putchar('\n');
	end_print_routes(stdout, &tree->routes, tree->target.remote ? "written" : "read",
			 argument(tree->arguments, "verbose"));
	if (tree->verify)
		printf("verified: the checksums of source and copy are the same\n");
}

static int print_json(const struct tree *tree)
{
	const struct arguments *arguments = tree->arguments;
	json_t *object = output_new(), *routes = json_array(), *sources = json_array();
	bool write = url_is(arguments->operands[arguments->operand_count - 1]);

	for (int i = 0; i + 1 < arguments->operand_count; i++)
		json_array_append_new(sources, output_text(arguments->operands[i]));
	json_object_set_new(object, "sources", sources);
	json_object_set_new(object, "target",
			    output_text(arguments->operands[arguments->operand_count - 1]));
	json_object_set_new(object, "files", json_integer((json_int_t)tree->task_count));
	json_object_set_new(object, "unchanged_files", json_integer((json_int_t)tree->unchanged));
	json_object_set_new(object, "skipped_names", json_integer((json_int_t)tree->skipped));
	json_object_set_new(object, "size_bytes", json_integer((json_int_t)tree->total));
	json_object_set_new(object, "copied_bytes", json_integer((json_int_t)tree->copied));
	json_object_set_new(object, "duration_seconds", json_real(tree->seconds));
	json_object_set_new(object, "bandwidth_GBps", json_real(tree_rate(tree)));
	end_add_routes(routes, &tree->routes, write ? "write" : "read");
	json_object_set_new(object, "routes", routes);
	json_object_set_new(object, "verified", tree->verify ? json_true() : json_null());
	return output_print(object);
}

static int tree_close(struct tree *tree, int code)
{
	for (size_t i = 0; i < tree->source_count; i++)
		code = side_close(&tree->sources[i], code);
	code = side_close(&tree->target, code);
	for (size_t i = 0; i < tree->task_count; i++) {
		free(tree->tasks[i].from);
		free(tree->tasks[i].to);
	}
	free(tree->tasks);
	free(tree->sources);
	tree_list_free(&tree->directories);
	free(tree->made);
	return code;
}

/* `tree` is zeroed. */
static int tree_do(struct tree *tree)
{
	struct engine_setup setup = {
		.listen = "none",
		.require = argument(tree->arguments, "transport"),
	};
	const char *text = argument(tree->arguments, "connections");
	char connections[48];
	const char *config[] = { connections, NULL };
	uint64_t number;
	bool remote_target;
	int code = tree_parse(tree);

	if (code)
		return code;
	if (text && parse_count(text, "--connections", 1, 64, &number))
		return EXIT_USAGE;
	snprintf(connections, sizeof(connections), "connections=%.32s", text ? text : "");
	if (text)
		setup.config = config;
	code = engine_open(tree->arguments, &setup, &tree->engine);
	if (code)
		return code;
	tree->target.root = -1;
	code = tree_plan(tree);
	if (!code)
		code = tree_copy(tree);
	remote_target = tree->target.remote;
	code = tree_close(tree, code);
	code = engine_close(tree->engine, code);
	tree->target.remote = remote_target;
	return code;
}

int tree_run(const struct arguments *arguments)
{
	struct tree *tree = calloc(1, sizeof(*tree));
	int code;

	if (!tree)
		return fail(ENOMEM, "out of memory");
	tree->arguments = arguments;
	code = tree_do(tree);
	if (!code && tree->json)
		code = print_json(tree);
	else if (!code && !tree->quiet)
		print_text(tree);
	if (!code && tree->skipped) {
		note("%llu symbolic links and special files were left out",
		     (unsigned long long)tree->skipped);
		code = EXIT_WARNING;
	}
	free(tree);
	return code;
}
