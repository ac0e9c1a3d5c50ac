/* SPDX-License-Identifier: Apache-2.0 */
/* wherry serve --dir: answer what wherry copy asks. One thread does it, in the order of the
 * requests, as it waits for disks: the bytes of files are moved by the engine's threads. It does
 * not wait for peers: what they have not let go of goes when they have, and so do requests for it.
 */
#include "serve/dir.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "command.h"
#include "dir/beneath.h"
#include "dir/message.h"
#include "engine.h"
#include "serve/answers.h"
#include "serve/requests.h"
#include "serve/room.h"
#include "serve/withdraw.h"
#include "util/clock.h"

#define REQUESTS_MAX 256
/* What a client that was killed has left open is closed after so long without a sign of it. */
#define HANDLE_IDLE (900 * WH_SECOND)
#define TICK (5 * WH_SECOND)

/* A file that is open for a client. */
struct handle {
	struct handle *next;
	const struct directory *directory;
	uint64_t client, source; /* request.epoch and source */
	uint64_t number;
	int fd;
	struct wh_region *region; /* NULL: an empty file */
	char *path; /* of a file that is written; else NULL */
	int64_t used;
	struct leaving leaving;
};

struct directory {
	const struct served_file *served;
	uint64_t number;
	int root;
	uint8_t *head;
	struct wh_region *region;
};

struct dir_server {
	struct wh_engine *engine;
	struct directory *directories;
	size_t count;
	struct handle *handles;
	struct handle *closing; /* those of `handles` before that a peer has not let go of */
	size_t handle_count; /* of both */
	struct room room; /* for handles */
	struct answers answers;
	struct requests requests;
};

int served_dir_parse(const char *text, bool read_only, struct served_file *out)
{
	int code = served_file_parse("--dir", text, read_only, out);

	if (!code && (out->grow || out->durable))
		return usage_error("--dir: '%s': a directory takes :rw and :name=NAME", text);
	return code;
}

static uint64_t random_number(void)
{
	uint64_t number = 0;

	while (!number && getrandom(&number, sizeof(number), 0) != sizeof(number))
		number = 0;
	return number;
}

/* ---- files that are open --------------------------------------------------------------------- */

/* `until`: as of region_leave(). False: it stays where it is. */
static bool handle_free(struct dir_server *server, struct handle **link, int64_t until)
{
	struct handle *handle = *link;

	if (!region_leave(&handle->region, &handle->leaving, until))
		return false;
	*link = handle->next;
	server->handle_count--;
	close(handle->fd);
	free(handle->path);
	free(handle);
	return true;
}

/* Nobody finds it any more. */
static void handle_close(struct dir_server *server, struct handle **link)
{
	struct handle *handle = *link;

	if (handle_free(server, link, 0))
		return;
	*link = handle->next;
	handle->next = server->closing;
	server->closing = handle;
}

/* Close those that nobody has mentioned for so long. */
static void close_idle(struct dir_server *server, int64_t idle)
{
	struct handle **link = &server->handles;
	int64_t now = wh_now();

	while (*link)
		if (now - (*link)->used < idle)
			link = &(*link)->next;
		else
			handle_close(server, link);
}

/* What one request works with. */
struct work {
	struct dir_server *server;
	const struct directory *directory;
	uint64_t client, source;
	const struct dir_message *request;
	struct dir_writer *answer;
	uint64_t summed; /* bytes */
	int unmade; /* the error of the first directory that could not be made; 0: none */
};

static struct handle **handle_find(const struct work *work, uint64_t number)
{
	struct handle **link = &work->server->handles;

	while (*link && ((*link)->number != number || (*link)->directory != work->directory ||
			 (*link)->client != work->client))
		link = &(*link)->next;
	if (*link)
		(*link)->used = wh_now();
	return link;
}

static struct room handles_count(const struct work *work)
{
	const struct handle *const lists[] = { work->server->handles, work->server->closing };
	struct room open = { .all = work->server->handle_count };

	for (size_t i = 0; i < 2; i++)
		for (const struct handle *handle = lists[i]; handle; handle = handle->next) {
			if (handle->source != work->source)
				continue;
			open.of_source++;
			open.of_client += handle->client == work->client;
		}
	return open;
}

/* May this client open one more? 0 or -EMFILE. */
static int handle_room(const struct work *work)
{
	const struct room *most = &work->server->room;
	struct room open = handles_count(work);

	if (open.all >= most->all || open.of_source >= most->of_source) {
		close_idle(work->server, 60 * WH_SECOND);
		open = handles_count(work);
	}
	return room_check(most, &open);
}

/* Who writes to that file? `link` is the list's. NULL in it: nobody there. */
static struct handle **find_writer(struct handle **link, const struct directory *directory,
				   const char *path)
{
	while (*link && (!(*link)->path || (*link)->directory != directory ||
			 strcmp((*link)->path, path) != 0))
		link = &(*link)->next;
	return link;
}

/* The newer writer of a file takes it over: the other one may be a client that was killed. 0, or
 * -EBUSY: a client may still write to it. */
static int close_writer(struct dir_server *server, const struct directory *directory,
			const char *path)
{
	struct handle **link = find_writer(&server->handles, directory, path);

	if (*link)
		handle_close(server, link);
	return *find_writer(&server->closing, directory, path) ? -EBUSY : 0;
}

/* Publish an open file under a new handle; `path` NULL: to read. Takes the descriptor only on
 * success. */
static int handle_open(const struct work *work, int fd, uint64_t length, const char *path,
		       uint64_t *number)
{
	struct dir_server *server = work->server;
	char name[DIR_NAME_ROOM];
	struct wh_region_options region = {
		.size = sizeof(region),
		.name = name,
		.access = WH_ACCESS_READ | (path ? WH_ACCESS_WRITE : 0),
	};
	struct wh_file_options options = {
		.size = sizeof(options),
		.length = length,
		.flags = path ? WH_FILE_WRITE : 0,
		.region = &region,
	};
	struct handle *handle;
	int error = handle_room(work);

	if (error)
		return error;
	handle = calloc(1, sizeof(*handle));
	if (!handle)
		return -ENOMEM;
	handle->number = random_number();
	dir_file_name(handle->number, name);
	if (path && !(handle->path = strdup(path)))
		error = -ENOMEM;
	if (!error && length)
		error = wh_file_register_fd(server->engine, fd, &options, &handle->region);
	if (error) {
		free(handle->path);
		free(handle);
		return error;
	}
	handle->directory = work->directory;
	handle->client = work->client;
	handle->source = work->source;
	handle->fd = fd;
	handle->used = wh_now();
	handle->next = server->handles;
	server->handles = handle;
	server->handle_count++;
	*number = handle->number;
	return 0;
}

/* ---- what is asked --------------------------------------------------------------------------- */

/* The path of an item; false: it is none. */
static bool item_path(const struct dir_item *item, bool root, char out[DIR_PATH_MAX + 1])
{
	if (item->size > DIR_PATH_MAX || (!item->size && !root) ||
	    (item->size && !dir_path_valid((const char *)item->bytes, item->size)))
		return false;
	memcpy(out, item->bytes, item->size);
	out[item->size] = 0;
	return true;
}

static int add_found(void *arg, const char *name, const struct stat *status)
{
	struct dir_writer *answer = arg;
	struct dir_item item = { .bytes = (const uint8_t *)name, .size = (uint32_t)strlen(name) };

	beneath_describe(status, &item);
	dir_writer_add(answer, &item);
	return answer->failed ? -ENOMEM : answer->size > DIR_ANSWER_MAX ? -E2BIG : 0;
}

static int do_list(struct work *work, const struct dir_item *item, struct dir_item *out)
{
	char path[DIR_PATH_MAX + 1];
	struct stat status;
	int error;

	if (!item_path(item, true, path))
		return -EINVAL;
	error = beneath_stat(work->directory->root, path, &status);
	if (error)
		return error;
	beneath_describe(&status, out);
	if (!item->handle || !S_ISDIR(status.st_mode))
		return 0;
	return beneath_list(work->directory->root, path, item->handle != DIR_TOP_ONLY, add_found,
			    work->answer);
}

static int do_open(struct work *work, const struct dir_item *item, struct dir_item *out,
		   uint8_t *extra)
{
	struct dir_extent extents[DIR_EXTENTS_MAX];
	char path[DIR_PATH_MAX + 1];
	struct stat status;
	size_t count;
	int fd, error;

	if (!item_path(item, false, path))
		return -EINVAL;
	error = beneath_open_file(work->directory->root, path, &fd, &status);
	if (error)
		return error;
	beneath_describe(&status, out);
	error = handle_open(work, fd, out->length, NULL, &out->handle);
	if (error) {
		close(fd);
		return error;
	}
	beneath_extents(fd, out->length, extents, &count);
	dir_extents_encode(extents, count, extra);
	out->bytes = extra;
	out->size = (uint32_t)(count * 16);
	return 0;
}

static int do_create(struct work *work, const struct dir_item *item, struct dir_item *out)
{
	char path[DIR_PATH_MAX + 1];
	bool kept = false;
	int fd, error;

	if (!work->directory->served->writable)
		return -EROFS;
	if (!item_path(item, false, path))
		return -EINVAL;
	error = close_writer(work->server, work->directory, path);
	if (!error)
		error = beneath_open_part(work->directory->root, path, item->length,
					  item->offset == 1, &fd, &kept);
	if (error)
		return error;
	error = handle_open(work, fd, item->length, path, &out->handle);
	if (error)
		close(fd);
	out->offset = kept;
	return error;
}

static int do_sum(struct work *work, const struct dir_item *item, struct dir_item *out,
		  uint8_t *extra)
{
	struct handle *handle = *handle_find(work, item->handle);
	int error;

	if (!handle)
		return -EBADF;
	if (item->length > DIR_SUM_MOST - work->summed || item->offset > INT64_MAX)
		return -EINVAL;
	work->summed += item->length;
	error = beneath_sum(handle->fd, item->offset, item->length, extra);
	out->bytes = extra;
	out->size = error ? 0 : DIR_DIGEST;
	return error;
}

static int do_commit(struct work *work, const struct dir_item *item)
{
	struct handle **link = handle_find(work, item->handle);
	struct handle *handle = *link;
	int error;

	if (!handle || !handle->path)
		return -EBADF;
	/* Nobody may write to it once it has its name. */
	if (!region_leave(&handle->region, &handle->leaving, 0))
		return -EBUSY;
	error = beneath_commit(work->directory->root, handle->path, handle->fd, item->mode,
			       item->mtime);
	handle_close(work->server, link);
	return error;
}

static int make_one(const struct work *work, const struct dir_item *item, struct dir_item *out)
{
	char path[DIR_PATH_MAX + 1];
	int root = work->directory->root, error;
	bool made = false;

	if (!work->directory->served->writable)
		return -EROFS;
	if (!item_path(item, false, path))
		return -EINVAL;
	if (item->offset != DIR_MKDIR_END) {
		error = beneath_make_directory(root, path, item->mode, &made);
		out->offset = made;
		if (error || made || item->offset != DIR_MKDIR_NARROW)
			return error;
	}
	return beneath_narrow_directory(root, path, item->mode, item->offset == DIR_MKDIR_END,
					item->mtime);
}

/* What is in one that could not be made would have it made on the way, with the rights of any. */
static int do_make_directory(struct work *work, const struct dir_item *item, struct dir_item *out)
{
	if (!work->unmade)
		work->unmade = make_one(work, item, out);
	return work->unmade;
}

/* 0, or a negative errno; the answer is in `out`. */
static int do_item(struct work *work, const struct dir_item *item, struct dir_item *out,
		   uint8_t *extra)
{
	struct handle **link;

	switch (work->request->op) {
	case DIR_LIST:
		return do_list(work, item, out);
	case DIR_OPEN:
		return do_open(work, item, out, extra);
	case DIR_CREATE:
		return do_create(work, item, out);
	case DIR_SUM:
		return do_sum(work, item, out, extra);
	case DIR_COMMIT:
		return do_commit(work, item);
	case DIR_MKDIR:
		return do_make_directory(work, item, out);
	case DIR_CLOSE:
		link = handle_find(work, item->handle);
		if (*link)
			handle_close(work->server, link);
		return 0;
	case DIR_KEEP:
		return *handle_find(work, item->handle) ? 0 : -EBADF;
	default:
		if (item->size == DIR_TOKEN)
			answers_forget(&work->server->answers, item->bytes);
		return 0;
	}
}

/* ---- requests -------------------------------------------------------------------------------- */

static const struct directory *find_directory(const struct dir_server *server, uint64_t number)
{
	for (size_t i = 0; i < server->count; i++)
		if (server->directories[i].number == number)
			return &server->directories[i];
	return NULL;
}

/* Do all items, and write what came of each. */
static void fill(struct work *work)
{
	static uint8_t extra[DIR_EXTENTS_MAX * 16]; /* of this thread alone */
	const struct dir_message *request = work->request;

	dir_writer_begin(work->answer, request);
	for (uint32_t i = 0; i < request->count; i++) {
		struct dir_item out = { .handle = request->items[i].handle };
		int error = do_item(work, &request->items[i], &out, extra);

		if (request->op == DIR_LIST && work->answer->count && !error)
			return; /* the names in it are the answer */
		if (request->op == DIR_LIST && work->answer->count) {
			free(work->answer->data);
			dir_writer_begin(work->answer, request);
		}
		/* What can be listed, and is empty, is told apart by its mode. */
		out.status = (uint32_t)-error;
		dir_writer_add(work->answer, &out);
		if (request->op == DIR_LIST)
			return;
	}
}

/* Has everybody let go of what the request is about? What is to be committed, or whose writer is
 * replaced, is withdrawn from now on. */
static bool is_its_turn(struct work *work)
{
	const struct dir_message *request = work->request;
	char path[DIR_PATH_MAX + 1];
	bool ready = true;

	for (uint32_t i = 0; i < request->count; i++) {
		const struct dir_item *item = &request->items[i];
		struct handle *handle;

		if (request->op == DIR_COMMIT && (handle = *handle_find(work, item->handle)) &&
		    handle->path)
			ready &= region_leave(&handle->region, &handle->leaving, 0);
		if (request->op == DIR_CREATE && work->directory->served->writable &&
		    item_path(item, false, path))
			ready &= !close_writer(work->server, work->directory, path);
	}
	return ready;
}

static bool handle_request(void *owner, const struct request *bytes)
{
	struct dir_server *server = owner;
	static const uint8_t none[DIR_TOKEN];
	struct dir_writer answer = { 0 };
	struct dir_message request;
	struct work work = {
		.server = server,
		.client = bytes->epoch,
		.source = bytes->source,
		.request = &request,
		.answer = &answer,
	};
	bool done = true;
	int error;

	if (dir_message_decode(bytes->data, bytes->size, &request))
		return true;
	work.directory = find_directory(server, request.directory);
	if (work.directory && !is_its_turn(&work) && !bytes->last) {
		done = false;
	} else if (work.directory) {
		fill(&work);
		error = answer.failed ? -ENOMEM : 0;
		if (!error && memcmp(request.token, none, DIR_TOKEN) != 0)
			error = answers_publish(&server->answers, server->engine, bytes->source,
						request.token, &answer);
		if (error && request_may_note(&server->requests, bytes))
			note("cannot answer a request for %s: %s", work.directory->served->path,
			     strerror(-error));
	}
	free(answer.data);
	free(request.items);
	return done;
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Look again at what is held. `all`: whether it is due or not. Returns ns until the next is due. */
static int64_t retry(struct dir_server *server, bool all, int64_t until)
{
	struct handle **handle = &server->closing;
	int64_t now = wh_now(), next = now + TICK;

	while (*handle) {
		const struct leaving *leaving = &(*handle)->leaving;

		if ((all || leaving->again <= now) && handle_free(server, handle, until))
			continue;
		if (leaving->again < next)
			next = leaving->again;
		handle = &(*handle)->next;
	}
	next = answers_retry(&server->answers, all, until, next);
	now = wh_now();
	return next > now ? next - now : 0;
}

static int64_t server_tick(void *owner)
{
	struct dir_server *server = owner;

	close_idle(server, HANDLE_IDLE);
	answers_drop_old(&server->answers);
	return retry(server, false, 0);
}

void dir_server_take(struct dir_server *server, const struct wh_notification *note)
{
	requests_take(&server->requests, note);
}

/* ---- start and stop -------------------------------------------------------------------------- */

static int publish_directory(struct dir_server *server, struct served_file *served,
			     struct directory *directory)
{
	struct wh_region_options region = {
		.size = sizeof(region),
		.name = served->name,
		.access = WH_ACCESS_READ | WH_ACCESS_LIST,
	};
	char what[160];
	int error;

	directory->served = served;
	error = beneath_open_root(served->path, true, &directory->root);
	if (error)
		return fail(error, "cannot serve %s: %s", served->path,
			    error == -ENOTDIR ? "it is no directory, or a symbolic link" :
						beneath_text(error));
	directory->number = random_number();
	directory->head = malloc(DIR_HEAD_SIZE);
	if (!directory->head)
		return fail(ENOMEM, "out of memory");
	dir_head_encode(directory->head, served->writable ? DIR_FLAG_WRITABLE : 0,
			directory->number);
	snprintf(what, sizeof(what), "cannot serve %.128s", served->path);
	error = wh_region_register(server->engine, directory->head, DIR_HEAD_SIZE, &region,
				   &directory->region);
	return error ? engine_fail(error, what) : 0;
}

int dir_server_start(struct wh_engine *engine, struct served_file *dirs, size_t count,
		     uint64_t descriptors, struct dir_server **out)
{
	struct dir_server *server;
	int code = 0;

	if (!count)
		return 0;
	server = calloc(1, sizeof(*server));
	if (!server)
		return fail(ENOMEM, "out of memory");
	server->engine = engine;
	room_fit(descriptors, &server->room);
	server->requests = (struct requests){
		.handle = handle_request, .tick = server_tick, .owner = server, .most = REQUESTS_MAX
	};
	requests_init(&server->requests);
	*out = server;
	server->directories = calloc(count, sizeof(*server->directories));
	if (!server->directories)
		return fail(ENOMEM, "out of memory");
	for (; !code && server->count < count; server->count++) {
		server->directories[server->count].root = -1;
		code = publish_directory(server, &dirs[server->count],
					 &server->directories[server->count]);
	}
	if (code)
		return code;
	return requests_start(&server->requests);
}

void dir_server_end(struct dir_server *server)
{
	if (!server)
		return;
	requests_stop(&server->requests);
	close_idle(server, 0);
	answers_end(&server->answers);
	for (size_t i = 0; i < server->count; i++)
		if (!region_withdraw(server->directories[i].region, 0))
			server->directories[i].region = NULL;
}

static int withdraw(struct dir_server *server, int64_t until, int code)
{
	int error;

	retry(server, true, until);
	if (server->closing || server->answers.leaving.first)
		code = engine_undo(code, -EBUSY, "cannot withdraw the files of a directory");
	for (size_t i = 0; i < server->count; i++) {
		struct directory *directory = &server->directories[i];

		error = region_withdraw(directory->region, until);
		code = engine_undo(code, error, "cannot withdraw a directory");
		if (directory->root >= 0)
			close(directory->root);
		free(directory->head);
	}
	return code;
}

int dir_server_stop(struct dir_server *server, int64_t until, int code)
{
	if (!server)
		return code;
	code = withdraw(server, until, code);
	free(server->directories);
	free(server);
	return code;
}
