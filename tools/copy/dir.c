/* SPDX-License-Identifier: Apache-2.0 */
/* Ask a server of directories: a notification there, a region with the answer back. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "command.h"
#include "copy/tree.h"
#include "engine.h"
#include "util/clock.h"

#define SLICE (200 * WH_MS)

/* Read all of a region. 0 or a negative errno with the library's text. */
static int read_region(struct wh_engine *engine, struct wh_batch *batch,
		       const struct wh_remote *remote, uint8_t *out)
{
	struct wh_transfer transfer = {
		.remote = remote->id,
		.length = remote->length,
		.op = WH_READ,
	};
	struct wh_region *region;
	int error, undone;

	error = wh_region_register(engine, out, remote->length, NULL, &region);
	if (error)
		return error;
	transfer.local = region;
	error = wh_batch_clear(batch);
	if (!error)
		error = wh_batch_add(batch, &transfer, 1);
	if (!error)
		error = wh_batch_submit(batch);
	if (!error)
		error = engine_wait(batch);
	wh_batch_clear(batch);
	undone = wh_region_unregister(region);
	return error ? error : undone;
}

bool dir_head_is(struct wh_engine *engine, struct wh_peer *peer, const struct wh_remote *remote,
		 uint32_t *flags, uint64_t *directory)
{
	uint8_t head[DIR_HEAD_SIZE];
	struct wh_batch *batch;
	bool is;

	if (remote->length != DIR_HEAD_SIZE || !(remote->access & WH_ACCESS_READ) ||
	    wh_batch_new(peer, NULL, &batch))
		return false;
	is = !read_region(engine, batch, remote, head) && !dir_head_decode(head, flags, directory);
	wh_batch_free(batch);
	return is;
}

int dir_client_open(struct dir_client *client, struct wh_engine *engine, const struct url *url,
		    bool quiet)
{
	struct wh_remote remote;
	uint32_t flags;
	int error;

	client->engine = engine;
	error = engine_connect(engine, url->engine, quiet, &client->peer);
	if (error)
		return fail(error, "%s", wh_error_text());
	error = wh_peer_find(client->peer, url->region, WH_ANSWER, &remote);
	if (error == -ENOENT)
		return fail(ENOENT, "%s offers no directory '%s'", url->engine, url->region);
	if (error)
		return fail(error, "%s: %s", url->engine, wh_error_text());
	if (!dir_head_is(engine, client->peer, &remote, &flags, &client->directory))
		return fail(ENOTDIR, "%s/%s is a region, not a directory of wherry serve --dir",
			    url->engine, url->region);
	client->writable = flags & DIR_FLAG_WRITABLE;
	error = wh_batch_new(client->peer, NULL, &client->batch);
	return error ? engine_fail(error, "cannot create a batch") : 0;
}

int dir_client_close(struct dir_client *client, int code)
{
	int error = client->batch ? wh_batch_free(client->batch) : 0;

	code = engine_undo(code, error, "cannot free a batch");
	error = client->peer ? wh_peer_close(client->peer) : 0;
	*client = (struct dir_client){ 0 };
	return engine_undo(code, error, "cannot close the connection");
}

/* Send one request; a token of zeros wants no answer. 0 or a negative errno. */
static int send_request(struct dir_client *client, enum dir_op op, const uint8_t token[DIR_TOKEN],
			const struct dir_item *items, size_t count)
{
	struct dir_message head = { .op = (uint16_t)op, .directory = client->directory };
	struct dir_writer writer;
	int error;

	memcpy(head.token, token, DIR_TOKEN);
	dir_writer_begin(&writer, &head);
	for (size_t i = 0; i < count; i++)
		dir_writer_add(&writer, &items[i]);
	error = writer.failed ? -ENOMEM : wh_batch_clear(client->batch);
	if (!error)
		error = wh_batch_notify(client->batch, DIR_TAG, writer.data, writer.size);
	if (!error)
		error = wh_batch_submit(client->batch);
	if (!error)
		error = engine_wait(client->batch);
	wh_batch_clear(client->batch);
	free(writer.data);
	return error;
}

/* Wait for the region of the answer. 0 or a negative errno. */
static int find_answer(struct dir_client *client, const uint8_t token[DIR_TOKEN],
		       struct wh_remote *out)
{
	int64_t since = wh_now();
	char name[DIR_NAME_ROOM];
	int error;

	dir_answer_name(token, name);
	do
		error = wh_peer_find(client->peer, name, SLICE, out);
	while (error == -ENOENT && wh_now() - since < engine_stall());
	return error == -ENOENT ? -ETIMEDOUT : error;
}

static int fetch_answer(struct dir_client *client, const uint8_t token[DIR_TOKEN],
			struct dir_answer *out)
{
	struct dir_item forget = { .bytes = token, .size = DIR_TOKEN };
	struct wh_remote remote;
	int error = find_answer(client, token, &remote);

	if (error)
		return error;
	if (remote.length > 2 * DIR_ANSWER_MAX)
		return -EPROTO;
	out->data = malloc(remote.length);
	error = out->data ? read_region(client->engine, client->batch, &remote, out->data) :
			    -ENOMEM;
	if (!error)
		error = dir_message_decode(out->data, remote.length, &out->message);
	if (error) {
		free(out->data);
		out->data = NULL;
		return error;
	}
	dir_tell(client, DIR_FORGET, &forget, 1);
	return 0;
}

int dir_ask(struct dir_client *client, enum dir_op op, const struct dir_item *items, size_t count,
	    struct dir_answer *out)
{
	uint8_t token[DIR_TOKEN];
	int error;

	*out = (struct dir_answer){ 0 };
	if (getrandom(token, sizeof(token), 0) != sizeof(token))
		return fail(EIO, "the system gives no random numbers");
	error = send_request(client, op, token, items, count);
	if (!error)
		error = fetch_answer(client, token, out);
	if (!error &&
	    (out->message.op != op || memcmp(out->message.token, token, sizeof(token)) != 0 ||
	     (op != DIR_LIST && out->message.count != count))) {
		dir_answer_free(out);
		error = -EPROTO;
	}
	if (error == -ETIMEDOUT)
		return fail(error, "%s: the server does not answer", client->name);
	return error ? fail(error, "%s: %s", client->name, strerror(-error)) : 0;
}

void dir_answer_free(struct dir_answer *answer)
{
	free(answer->message.items);
	free(answer->data);
	*answer = (struct dir_answer){ 0 };
}

void dir_tell(struct dir_client *client, enum dir_op op, const struct dir_item *items, size_t count)
{
	static const uint8_t none[DIR_TOKEN];

	send_request(client, op, none, items, count);
}
