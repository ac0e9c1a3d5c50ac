/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: command waits */
/* command-directory.c: a client of `wherry serve --dir` that opens files without end, as the
 * protocol of tools/dir/message.h lets it, keeps no other client from opening one; and one that
 * never lets go of a region keeps the server from nothing */
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/command.h"
#include "lib/handles.h"
#include "lib/outcome.h"
#include "wire/bytes.h"

enum { OPEN = 2, CREATE = 3, COMMIT = 5, CLOSE = 7, KEEP = 8 };

#define TAG UINT64_C(0x7269642d79727265)
#define HEAD 40
#define ITEM 48
#define MOST 64 /* items of a request */
#define OF_ONE 256 /* files that one client may have open */
#define CLIENTS 1 /* that hold, with the first, what one address may: half of the 1,024 of all */

struct client {
	struct wh_engine *engine;
	struct wh_peer *peer;
	struct wh_batch *batch;
	uint64_t directory;
	uint64_t tokens;
};

struct item {
	uint64_t handle;
	uint32_t status;
};

static void client_read(struct client *c, const struct wh_remote *remote, void *out)
{
	struct wh_transfer transfer = { .remote = remote->id,
					.length = remote->length,
					.op = WH_READ };

	want(0, wh_region_register(c->engine, out, remote->length, NULL, &transfer.local));
	want(0, wh_batch_clear(c->batch));
	want(0, wh_batch_add(c->batch, &transfer, 1));
	want(0, wh_batch_submit(c->batch));
	want(0, batch_end(c->batch, PATIENCE));
	want(0, wh_batch_clear(c->batch));
	want(0, wh_region_unregister(transfer.local));
}

static void client_open(struct client *c, const char *url, const char *name)
{
	struct wh_engine_options options = { .size = sizeof(options), .listen = "none" };
	struct wh_remote remote;
	uint8_t head[24];

	*c = (struct client){ 0 };
	want(0, wh_engine_open(&options, &c->engine));
	want(0, wh_peer_open(c->engine, url, NULL, &c->peer));
	want(0, wh_batch_new(c->peer, NULL, &c->batch));
	want(0, wh_peer_find(c->peer, name, PATIENCE, &remote));
	want(sizeof(head), remote.length);
	client_read(c, &remote, head);
	want_true(wh_get64(head) == TAG, "the region is no directory's");
	c->directory = wh_get64(head + 16);
}

static void client_close(struct client *c)
{
	want(0, wh_batch_free(c->batch));
	want(0, wh_peer_close(c->peer));
	want(0, wh_engine_close(c->engine));
}

/* Send `count` items, each with a handle or, of OPEN, the file's name; read what came of them. */
static void client_ask(struct client *c, uint32_t op, struct item *items, uint32_t count)
{
	static const char file[] = "file";
	uint32_t path = op == OPEN || op == CREATE ? sizeof(file) - 1 : 0;
	uint8_t request[HEAD + MOST * (ITEM + sizeof(file))] = { 0 }, *at = request + HEAD;
	char name[64] = "dir.";
	struct wh_remote remote;
	uint8_t *answer;

	wh_put32(request, 0x52494457);
	wh_put32(request + 4, 1 | op << 16);
	wh_put64(request + 8, c->directory);
	wh_put64(request + 16, (uint64_t)getpid());
	wh_put64(request + 24, (uintptr_t)c + ++c->tokens);
	wh_put32(request + 32, count);
	for (uint32_t i = 0; i < count; i++, at += ITEM + path) {
		wh_put64(at, items[i].handle);
		wh_put64(at + 16, op == CREATE ? 5 : 0);
		wh_put32(at + 32, 0644);
		wh_put32(at + 40, path);
		memcpy(at + ITEM, file, path);
	}
	for (int i = 0; i < 16; i++)
		sprintf(name + 4 + 2 * i, "%02x", request[16 + i]);
	want(0, wh_batch_clear(c->batch));
	want(0, wh_batch_notify(c->batch, TAG, request, (uint64_t)(at - request)));
	want(0, wh_batch_submit(c->batch));
	want(0, batch_end(c->batch, PATIENCE));
	want(0, wh_peer_find(c->peer, name, PATIENCE, &remote));
	answer = malloc(remote.length);
	assert_non_null(answer);
	client_read(c, &remote, answer);
	want(count, wh_get32(answer + 32));
	at = answer + HEAD;
	for (uint32_t i = 0; i < count; i++, at += ITEM + wh_get32(at + 40))
		items[i] = (struct item){ wh_get64(at), wh_get32(at + 36) };
	free(answer);
}

static void file_make(const char *name)
{
	int fd = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	want(5, write(fd, "bytes", 5));
	want(0, close(fd));
}

static void directory__a_client_that_opens_without_end(void **state)
{
	static struct item items[MOST], all[OF_ONE];
	struct client greedy, other, more[CLIENTS];
	struct command command, copy;
	char url[128], path[64], name[160];

	(void)state;
	directory_make(path);
	snprintf(name, sizeof(name), "%s/file", path);
	file_make(name);
	snprintf(name, sizeof(name), "%s:name=d", path);
	command_start(&command, NULL, NULL, ARGUMENTS("serve", "--dir", name));
	command_line(&command, url, sizeof(url));
	client_open(&greedy, url, "d");
	client_open(&other, url, "d");
	for (uint32_t i = 0; i < OF_ONE + 2 * MOST; i += MOST) {
		memset(items, 0, sizeof(items));
		client_ask(&greedy, OPEN, items, MOST);
		for (uint32_t k = 0; k < MOST; k++)
			want(i < OF_ONE ? 0 : EMFILE, items[k].status);
		if (i < OF_ONE)
			memcpy(all + i, items, sizeof(items));
	}
	items[0].handle = 0;
	client_ask(&other, OPEN, items, 1);
	want(0, items[0].status);
	want_true(items[0].handle != 0, "an open file has no handle");

	/* A handle is its client's alone; closing one makes room. */
	items[0] = all[7];
	client_ask(&other, KEEP, items, 1);
	want(EBADF, items[0].status);
	items[0] = all[7];
	client_ask(&other, CLOSE, items, 1);
	items[0] = all[7];
	client_ask(&greedy, KEEP, items, 1);
	want(0, items[0].status);
	client_ask(&greedy, CLOSE, items, 1);
	items[0].handle = 0;
	client_ask(&greedy, OPEN, items, 1);
	want(0, items[0].status);

	/* Several such clients hold all of their address; who comes from there then reads why. */
	for (int i = 0; i < CLIENTS; i++) {
		client_open(&more[i], url, "d");
		for (uint32_t k = 0; k < OF_ONE; k += MOST) {
			memset(items, 0, sizeof(items));
			client_ask(&more[i], OPEN, items, MOST);
		}
	}
	want(EMFILE, items[MOST - 1].status);
	snprintf(name, sizeof(name), "%s/d/file", url);
	want(2, command_run(&copy, path, NULL, ARGUMENTS("copy", name, "copied")));
	want_true(strstr(copy.text, "as many files open as it may"), "it says: %s", copy.text);

	for (int i = 0; i < CLIENTS; i++)
		client_close(&more[i]);
	client_close(&greedy);
	client_close(&other);
	want(0, kill(command.pid, SIGTERM));
	want(0, command_wait(&command));
	directory_remove(path);
}

/* More files than the soft limit of descriptors allows: the server has the descriptors that its
 * files need, and still accepts connections. */
static void directory__more_files_than_descriptors(void **state)
{
	static struct item items[MOST];
	struct rlimit limit, few;
	struct client greedy, other;
	struct command command;
	char url[128], path[64], name[160];

	(void)state;
	want(0, getrlimit(RLIMIT_NOFILE, &limit));
	few = limit;
	few.rlim_cur = OF_ONE;
	want_true(limit.rlim_max >= 4 * OF_ONE, "the hard limit is %llu",
		  (unsigned long long)limit.rlim_max);
	directory_make(path);
	snprintf(name, sizeof(name), "%s/file", path);
	file_make(name);
	snprintf(name, sizeof(name), "%s:name=d", path);
	want(0, setrlimit(RLIMIT_NOFILE, &few));
	command_start(&command, NULL, NULL, ARGUMENTS("serve", "--dir", name));
	want(0, setrlimit(RLIMIT_NOFILE, &limit));
	command_line(&command, url, sizeof(url));
	client_open(&greedy, url, "d");
	for (uint32_t i = 0; i < OF_ONE; i += MOST) {
		memset(items, 0, sizeof(items));
		client_ask(&greedy, OPEN, items, MOST);
	}
	client_open(&other, url, "d");
	memset(items, 0, sizeof(items));
	client_ask(&other, OPEN, items, 1);
	want(0, items[0].status);
	client_close(&greedy);
	client_close(&other);
	want(0, kill(command.pid, SIGTERM));
	want(0, command_wait(&command));
	directory_remove(path);
}

/* Serve a directory with a file of 5 bytes. */
static void server_start(struct command *command, char path[64], char url[128], const char *timeout)
{
	char name[96];
	int fd;

	directory_make(path);
	snprintf(name, sizeof(name), "%s/file", path);
	fd = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	want(5, write(fd, "bytes", 5));
	want(0, close(fd));
	snprintf(name, sizeof(name), "%s:rw:name=d", path);
	command_start(command, NULL, NULL, ARGUMENTS("serve", "--dir", name, "--config", timeout));
	command_line(command, url, 128);
}

/* A peer that can map memory and answers nothing. */
struct holder {
	int control, local;
};

static void holder_open(struct holder *h, const char *url)
{
	struct wh_hello welcome;

	h->control = raw_control(url, &welcome);
	want_true(h->control >= 0, "no session");
	h->local = handles_connect(&welcome);
}

/* Learn of the region of a file that is open. */
static void holder_hold(struct holder *h, struct client *c, uint64_t handle)
{
	struct wh_remote remote;
	char name[64];

	snprintf(name, sizeof(name), "dir.%016llx", (unsigned long long)handle);
	want(0, wh_peer_find(c->peer, name, PATIENCE, &remote));
	want(1, raw_lookup(h->control, remote.id));
}

/* False: the session has ended. */
static bool holder_ping(struct holder *h)
{
	static const uint8_t ping[8];

	return !raw_send_frame(h->control, WH_FRAME_PING, 0, ping, sizeof(ping)) &&
	       !raw_closes(h->control, 100);
}

static void holder_close(struct holder *h)
{
	close(h->local);
	close(h->control);
}

/* The server would have to wait for five minutes. */
static void directory__others_do_not_wait(void **state)
{
	struct item read = { 0 }, written = { 0 };
	struct command command;
	struct client client;
	struct holder holder;
	char url[128], path[64];

	(void)state;
	server_start(&command, path, url, "timeout=300000");
	client_open(&client, url, "d");
	holder_open(&holder, url);
	client_ask(&client, OPEN, &read, 1);
	want(0, read.status);
	client_ask(&client, CREATE, &written, 1);
	want(0, written.status);
	holder_hold(&holder, &client, read.handle);
	holder_hold(&holder, &client, written.handle);
	client_ask(&client, CLOSE, &read, 1);
	want(0, read.status);
	client_ask(&client, KEEP, &read, 1);
	want(EBADF, read.status);
	client_ask(&client, KEEP, &written, 1);
	want(0, written.status);
	holder_close(&holder);
	client_ask(&client, COMMIT, &written, 1);
	want(0, written.status);
	client_close(&client);
	want(0, kill(command.pid, SIGTERM));
	want(0, command_wait(&command));
	directory_remove(path);
}

/* It is disconnected, and then the file gets its name. */
static void directory__a_commit_waits(void **state)
{
	struct item written = { 0 };
	struct command command;
	struct client client;
	struct holder holder;
	char url[128], path[64];
	pid_t pid;
	int status;

	(void)state;
	server_start(&command, path, url, "timeout=200");
	client_open(&client, url, "d");
	holder_open(&holder, url);
	client_ask(&client, CREATE, &written, 1);
	holder_hold(&holder, &client, written.handle);
	pid = fork();
	want_true(pid >= 0, "fork: %s", strerror(errno));
	if (!pid) {
		while (holder_ping(&holder))
			;
		_exit(0);
	}
	client_ask(&client, COMMIT, &written, 1);
	want(0, written.status);
	want(pid, waitpid(pid, &status, 0));
	want(0, status);
	holder_close(&holder);
	client_close(&client);
	want(0, kill(command.pid, SIGTERM));
	want(0, command_wait(&command));
	directory_remove(path);
}

/* What is held by one that pings is withdrawn in the time of one region, and with success. */
static void directory__the_end_does_not_wait(void **state)
{
	struct item items[8] = { 0 };
	struct command command;
	struct client client;
	struct holder holder;
	char url[128], path[64];

	(void)state;
	server_start(&command, path, url, "timeout=200");
	client_open(&client, url, "d");
	holder_open(&holder, url);
	client_ask(&client, OPEN, items, 8);
	for (int i = 0; i < 8; i++)
		holder_hold(&holder, &client, items[i].handle);
	want(0, kill(command.pid, SIGTERM));
	while (holder_ping(&holder))
		;
	want(0, command_wait(&command));
	holder_close(&holder);
	client_close(&client);
	directory_remove(path);
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(directory__more_files_than_descriptors, needs_command),
	TEST_NEEDS(directory__a_client_that_opens_without_end, needs_command),
	TEST_NEEDS(directory__others_do_not_wait, needs_command),
	TEST_NEEDS(directory__a_commit_waits, needs_command),
	TEST_NEEDS(directory__the_end_does_not_wait, needs_command),
};

HARNESS_MAIN("command-directory", tests)
