/* SPDX-License-Identifier: Apache-2.0 */
/* One end of a copy of files by name: a directory of this host, or of a server. */
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "copy/tree.h"
#include "dir/beneath.h"
#include "engine.h"
#include "util/clock.h"

#define KEEP (60 * WH_SECOND)
/* Bytes of the paths of one request: it must fit a notification. */
#define PATHS_MAX (48 << 10)

static int side_fail(const struct side *side, const char *verb, const char *path, int error)
{
	const char *text =
		side->remote && (error == EMFILE || error == -EMFILE) ?
			"the server has as many files open as it may, for all clients or "
			"for this one: try again in a minute" :
			beneath_text(error);

	/* Whatever a file's errno is, its exit code must not be one that is about peers. */
	return fail(EIO, "cannot %s %s%s%s: %s", verb, side->remote ? side->name : "",
		    side->remote && *path ? ": " : "", *path || side->remote ? path : side->name,
		    text);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* wherry://HOST:PORT/NAME[/PATH] */
static int parse_address(const char *text, struct url *url, char path[DIR_PATH_MAX + 1])
{
	size_t scheme = strlen("wherry://");
	const char *slash = strchr(text + scheme, '/');
	const char *rest = slash ? strchr(slash + 1, '/') : NULL, *wrong;
	char head[512];
	size_t length;

	if ((size_t)snprintf(head, sizeof(head), "%.*s", rest ? (int)(rest - text) : INT_MAX,
			     text) >= sizeof(head))
		return usage_error("'%.80s...' is too long", text);
	wrong = url_parse(head, url);
	if (wrong)
		return usage_error("'%s' %s", text, wrong);
	if (!url->region[0] || url->offset)
		return usage_error("'%s' names no directory: write wherry://HOST:PORT/NAME/PATH",
				   text);
	rest = rest ? rest + 1 : "";
	length = strlen(rest);
	while (length && rest[length - 1] == '/')
		length--;
	if (length && !dir_path_valid(rest, length))
		return usage_error("'%s': a path in a directory is relative, without . and .., "
				   "and no .NAME" BENEATH_PART_SUFFIX,
				   text);
	snprintf(path, DIR_PATH_MAX + 1, "%.*s", (int)length, rest);
	return 0;
}

/* A source is found wherever links lead; below it none is followed. A file's root is the directory
 * that it lies in. */
static int open_local(struct side *side, const char *text, bool create)
{
	char *real = realpath(text, NULL), *copy;
	struct stat status;
	int error, code = 0;

	if (!real && !(create && errno == ENOENT))
		return side_fail(side, "open", "", errno);
	copy = real ? real : strdup(text);
	if (!copy)
		return fail(ENOMEM, "out of memory");
	if (real && !stat(real, &status) && S_ISDIR(status.st_mode)) {
		error = beneath_open_root(real, false, &side->root);
	} else {
		char *other = strdup(copy);

		error = other ? beneath_open_root(dirname(other), false, &side->root) : -ENOMEM;
		free(other);
		snprintf(side->base, sizeof(side->base), "%s", basename(copy));
		if (!error && !dir_path_valid(side->base, strlen(side->base)))
			error = -EINVAL;
	}
	if (error)
		code = side_fail(side, "open", "", error);
	free(copy);
	return code;
}

int side_open(struct side *side, struct wh_engine *engine, const char *text, bool create,
	      bool quiet)
{
	struct url url;
	int code;

	*side = (struct side){ .engine = engine, .name = text, .root = -1 };
	if (!url_is(text))
		return open_local(side, text, create);
	side->remote = true;
	side->client.name = text;
	code = parse_address(text, &url, side->base);
	if (!code)
		code = dir_client_open(&side->client, engine, &url, quiet);
	if (!code && create && !side->client.writable)
		code = fail(EACCES, "%s: the directory may not be written: serve it with :rw",
			    text);
	return code;
}

int side_close(struct side *side, int code)
{
	if (side->remote)
		return dir_client_close(&side->client, code);
	if (side->root >= 0)
		close(side->root);
	side->root = -1;
	return code;
}

/* ---- listing --------------------------------------------------------------------------------- */

int tree_list_add(struct tree_list *list, const char *path, size_t length,
		  const struct dir_item *about)
{
	struct tree_entry *entry;

	if (list->count == list->room) {
		size_t room = 2 * list->room + 64;
		struct tree_entry *grown = realloc(list->entries, room * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		list->entries = grown;
		list->room = room;
	}
	entry = &list->entries[list->count];
	*entry = (struct tree_entry){
		.path = strndup(path, length),
		.mode = about->mode,
		.length = about->length,
		.mtime = about->mtime,
	};
	if (!entry->path)
		return -ENOMEM;
	list->count++;
	return 0;
}

void tree_list_free(struct tree_list *list)
{
	for (size_t i = 0; i < list->count; i++)
		free(list->entries[i].path);
	free(list->entries);
	*list = (struct tree_list){ 0 };
}

static int add_found(void *arg, const char *name, const struct stat *status)
{
	struct dir_item about = { 0 };

	beneath_describe(status, &about);
	return tree_list_add(arg, name, strlen(name), &about);
}

static int compare_entries(const void *a, const void *b)
{
	const struct tree_entry *one = a, *other = b;

	return strcmp(one->path, other->path);
}

/* The names come from outside: they must not lead out of the target. */
static int take_list(struct side *side, const struct dir_answer *answer, struct tree_list *out)
{
	for (uint32_t i = 0; i < answer->message.count; i++) {
		const struct dir_item *item = &answer->message.items[i];
		const char *path = (const char *)item->bytes;

		if (item->status)
			return side_fail(side, "list", side->base, (int)item->status);
		if (!item->size) /* the directory itself, which is empty */
			continue;
		if (!dir_path_valid(path, item->size))
			return fail(EPROTO, "%s: the server lists a name that is none", side->name);
		if (tree_list_add(out, path, item->size, item))
			return fail(ENOMEM, "out of memory");
	}
	return 0;
}

int side_list(struct side *side, bool all, struct tree_list *out)
{
	struct dir_item item = {
		.handle = all ? DIR_ALL_BELOW : DIR_TOP_ONLY,
		.bytes = (const uint8_t *)side->base,
		.size = (uint32_t)strlen(side->base),
	};
	struct dir_answer answer;
	int code = 0, error;

	*out = (struct tree_list){ 0 };
	if (!side->remote) {
		error = beneath_list(side->root, side->base, all, add_found, out);
		if (error)
			code = side_fail(side, "list", side->base, error);
	} else {
		code = dir_ask(&side->client, DIR_LIST, &item, 1, &answer);
		if (!code)
			code = take_list(side, &answer, out);
		dir_answer_free(&answer);
	}
	if (!code && out->count)
		qsort(out->entries, out->count, sizeof(*out->entries), compare_entries);
	return code;
}

int side_stat(struct side *side, struct tree_entry *out)
{
	struct dir_item item = {
		.bytes = (const uint8_t *)side->base,
		.size = (uint32_t)strlen(side->base),
	};
	struct dir_item about = { 0 };
	struct dir_answer answer = { 0 };
	struct stat status;
	int code = 0, error = 0;

	if (side->remote) {
		code = dir_ask(&side->client, DIR_LIST, &item, 1, &answer);
		if (!code && answer.message.count == 1) {
			about = answer.message.items[0];
			error = -(int)about.status;
		}
		dir_answer_free(&answer);
	} else {
		error = beneath_stat(side->root, side->base, &status);
		if (!error)
			beneath_describe(&status, &about);
	}
	if (code || (error && error != -ENOENT))
		return code ? code : side_fail(side, "find", side->base, error);
	*out = (struct tree_entry){
		.path = side->base,
		.mode = error ? 0 : about.mode,
		.length = about.length,
		.mtime = about.mtime,
	};
	return 0;
}

/* ---- many at once ---------------------------------------------------------------------------- */

/* How many of the entries, from the first one, fit one request. */
static size_t fits(const struct tree_entry *entries, size_t count)
{
	size_t bytes = 0, number = 0;

	while (number < count && number < TREE_GROUP) {
		bytes += strlen(entries[number].path) + 48;
		if (bytes > PATHS_MAX && number)
			break;
		number++;
	}
	return number;
}

static int make_remote(struct side *side, const struct tree_entry *entries, size_t count,
		       enum dir_mkdir how, bool *made)
{
	struct dir_item items[TREE_GROUP] = { 0 };
	struct dir_answer answer;
	int code;

	for (size_t i = 0; i < count; i++)
		items[i] = (struct dir_item){ .bytes = (const uint8_t *)entries[i].path,
					      .size = (uint32_t)strlen(entries[i].path),
					      .mode = entries[i].mode,
					      .mtime = entries[i].mtime,
					      .offset = how };
	code = dir_ask(&side->client, DIR_MKDIR, items, count, &answer);
	for (size_t i = 0; !code && i < count; i++) {
		made[i] = answer.message.items[i].offset == 1;
		if (answer.message.items[i].status)
			code = side_fail(side, "make the directory", entries[i].path,
					 (int)answer.message.items[i].status);
	}
	dir_answer_free(&answer);
	return code;
}

static int make_local(struct side *side, const struct tree_entry *entry, enum dir_mkdir how,
		      bool *made)
{
	int error = 0;

	*made = false;
	if (how != DIR_MKDIR_END)
		error = beneath_make_directory(side->root, entry->path, entry->mode, made);
	if (!error && (how == DIR_MKDIR_END || (how == DIR_MKDIR_NARROW && !*made)))
		error = beneath_narrow_directory(side->root, entry->path, entry->mode,
						 how == DIR_MKDIR_END, entry->mtime);
	return error ? side_fail(side, "make the directory", entry->path, error) : 0;
}

int side_make_directories(struct side *side, const struct tree_entry *entries, size_t count,
			  enum dir_mkdir how, bool *made)
{
	int code = 0;

	for (size_t i = 0; !code && i < count && !side->remote; i++)
		code = make_local(side, &entries[i], how, &made[i]);
	for (size_t i = 0, number; !code && i < count && side->remote; i += number) {
		number = fits(entries + i, count - i);
		code = make_remote(side, entries + i, number, how, made + i);
	}
	return code;
}

/* ---- files ----------------------------------------------------------------------------------- */

static int register_file(struct side *side, struct tree_file *file, bool write)
{
	struct wh_file_options options = {
		.size = sizeof(options),
		.length = file->length,
		.flags = write ? WH_FILE_WRITE : 0,
	};

	if (!file->length)
		return 0;
	return wh_file_register_fd(side->engine, file->fd, &options, &file->region);
}

static int open_one(struct side *side, struct tree_file *file)
{
	struct dir_item about = { 0 };
	struct stat status;
	int error = beneath_open_file(side->root, file->path, &file->fd, &status);

	if (error) {
		file->fd = -1;
		return error;
	}
	beneath_describe(&status, &about);
	file->mode = about.mode;
	file->length = about.length;
	file->mtime = about.mtime;
	file->extents = malloc(DIR_EXTENTS_MAX * sizeof(*file->extents));
	if (!file->extents)
		return -ENOMEM;
	beneath_extents(file->fd, file->length, file->extents, &file->extent_count);
	return register_file(side, file, false);
}

static int find_region(struct side *side, struct tree_file *file)
{
	char name[DIR_NAME_ROOM];

	if (!file->length)
		return 0;
	dir_file_name(file->handle, name);
	return wh_peer_find(side->client.peer, name, engine_stall(), &file->remote);
}

static int take_opened(struct side *side, const struct dir_item *item, struct tree_file *file)
{
	int error = 0;

	if (item->status)
		return -(int)item->status;
	file->handle = item->handle;
	file->mode = item->mode;
	file->length = item->length;
	file->mtime = item->mtime;
	file->extents = malloc(DIR_EXTENTS_MAX * sizeof(*file->extents));
	if (!file->extents)
		return -ENOMEM;
	error = dir_extents_decode(item, file->extents, &file->extent_count);
	return error ? error : find_region(side, file);
}

int side_open_files(struct side *side, struct tree_file *files, size_t count, bool may_lack)
{
	struct dir_item items[TREE_GROUP] = { 0 };
	struct dir_answer answer = { 0 };
	int code = 0;

	for (size_t i = 0; i < count; i++)
		items[i] = (struct dir_item){ .bytes = (const uint8_t *)files[i].path,
					      .size = (uint32_t)strlen(files[i].path) };
	if (side->remote)
		code = dir_ask(&side->client, DIR_OPEN, items, count, &answer);
	for (size_t i = 0; !code && i < count; i++) {
		files[i].error = side->remote ?
					 take_opened(side, &answer.message.items[i], &files[i]) :
					 open_one(side, &files[i]);
		if (files[i].error && !may_lack)
			code = side_fail(side, "read", files[i].path, files[i].error);
	}
	dir_answer_free(&answer);
	return code;
}

static int create_one(struct side *side, struct tree_file *file, bool keep)
{
	int error = beneath_open_part(side->root, file->path, file->length, keep, &file->fd,
				      &file->kept);

	if (!error)
		return register_file(side, file, true);
	file->fd = -1;
	return error;
}

static int take_created(struct side *side, const struct dir_item *item, struct tree_file *file)
{
	if (item->status)
		return -(int)item->status;
	file->handle = item->handle;
	file->kept = item->offset == 1;
	return find_region(side, file);
}

int side_create_files(struct side *side, struct tree_file *files, size_t count, bool keep)
{
	struct dir_item items[TREE_GROUP] = { 0 };
	struct dir_answer answer = { 0 };
	int code = 0, error;

	for (size_t i = 0; i < count; i++)
		items[i] = (struct dir_item){ .bytes = (const uint8_t *)files[i].path,
					      .size = (uint32_t)strlen(files[i].path),
					      .length = files[i].length,
					      .offset = keep };
	if (side->remote)
		code = dir_ask(&side->client, DIR_CREATE, items, count, &answer);
	for (size_t i = 0; !code && i < count; i++) {
		error = side->remote ? take_created(side, &answer.message.items[i], &files[i]) :
				       create_one(side, &files[i], keep);
		if (error)
			code = side_fail(side, "write", files[i].path, error);
	}
	dir_answer_free(&answer);
	return code;
}

static void close_local(struct tree_file *file)
{
	if (file->region)
		wh_region_unregister(file->region);
	if (file->fd >= 0)
		close(file->fd);
	file->region = NULL;
	file->fd = -1;
}

void side_close_files(struct side *side, struct tree_file *files, size_t count)
{
	struct dir_item items[TREE_GROUP] = { 0 };
	size_t open = 0;

	for (size_t i = 0; i < count; i++) {
		close_local(&files[i]);
		free(files[i].extents);
		files[i].extents = NULL;
		if (files[i].handle)
			items[open++].handle = files[i].handle;
		files[i].handle = 0;
	}
	if (open)
		dir_tell(&side->client, DIR_CLOSE, items, open);
}

int side_commit_files(struct side *side, struct tree_file *files, size_t count)
{
	struct dir_item items[TREE_GROUP] = { 0 };
	struct dir_answer answer = { 0 };
	int code = 0, error;

	for (size_t i = 0; i < count; i++)
		items[i] = (struct dir_item){ .handle = files[i].handle,
					      .mode = files[i].mode,
					      .mtime = files[i].mtime };
	if (side->remote)
		code = dir_ask(&side->client, DIR_COMMIT, items, count, &answer);
	for (size_t i = 0; !code && i < count; i++) {
		error = side->remote ? (int)answer.message.items[i].status :
				       beneath_commit(side->root, files[i].path, files[i].fd,
						      files[i].mode, files[i].mtime);
		if (error)
			code = side_fail(side, "finish", files[i].path, error);
		else
			files[i].handle = 0;
	}
	dir_answer_free(&answer);
	return code;
}

void side_keep_files(struct side *side, const struct tree_file *files, size_t count)
{
	struct dir_item items[TREE_GROUP] = { 0 };
	static int64_t last;

	if (!side->remote || wh_now() - last < KEEP)
		return;
	last = wh_now();
	for (size_t i = 0; i < count; i++)
		items[i].handle = files[i].handle;
	dir_tell(&side->client, DIR_KEEP, items, count);
}

int side_sum(struct side *side, const struct tree_file *file, uint64_t first, size_t count,
	     uint8_t (*out)[DIR_DIGEST])
{
	struct dir_item items[DIR_SUM_MOST / DIR_SUM_BLOCK] = { 0 };
	struct dir_answer answer = { 0 };
	int code = 0, error = 0;

	for (size_t i = 0; i < count; i++) {
		struct dir_item *item = &items[i];

		item->handle = file->handle;
		item->offset = (first + i) * DIR_SUM_BLOCK;
		item->length = file->length - item->offset;
		if (item->length > DIR_SUM_BLOCK)
			item->length = DIR_SUM_BLOCK;
		if (!side->remote && !error)
			error = beneath_sum(file->fd, item->offset, item->length, out[i]);
	}
	if (side->remote)
		code = dir_ask(&side->client, DIR_SUM, items, count, &answer);
	for (size_t i = 0; side->remote && !code && !error && i < count; i++) {
		const struct dir_item *item = &answer.message.items[i];

		error = item->size == DIR_DIGEST ? (int)item->status :
			item->status             ? (int)item->status :
						   -EPROTO;
		if (!error)
			memcpy(out[i], item->bytes, DIR_DIGEST);
	}
	dir_answer_free(&answer);
	return !code && error ? side_fail(side, "read", file->path, error) : code;
}
