/* SPDX-License-Identifier: Apache-2.0 */
/* children.c: the test's side of child processes
 *
 * Starts and ends them, sends a command over the child's socket and waits for its answer. child.c
 * is the other side. */
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "../../self.h"
#include "container.h"
#include "driven.h"
#include "harness.h"

#define CHILDREN_MAX 64

static struct child *children[CHILDREN_MAX];

/* ---- start and end ----------------------------------------------------------- */

static void child_text(char *out, size_t size, const char *text)
{
	if (text && (size_t)snprintf(out, size, "%s", text) >= size)
		fail_msg("too long: %s", text);
}

static void child_lost(struct child *child)
{
	int status = 0;

	/* It is ending, or its socket were open. */
	waitpid(child->pid, &status, 0);
	child->pid = -1;
	tell_crash(child->name, status);
	fail_msg("child %s has gone: status %#x", child->name, (unsigned int)status);
}

static void child_send(struct child *child, const struct child_command *command)
{
	if (send_all(child->fd, command, sizeof(*command)) != 0)
		child_lost(child);
}

/* Receive the answer and at most `room` bytes of data after it. */
static int child_receive(struct child *child, struct child_answer *answer, void *data, size_t room)
{
	driven_wait(child->fd, WH_FOREVER);
	if (read_all(child->fd, answer, sizeof(*answer)) != 0)
		child_lost(child);
	if (answer->length > room)
		fail_msg("child %s sent too much", child->name);
	if (answer->length && read_all(child->fd, data, answer->length) != 0)
		child_lost(child);
	return answer->status;
}

static int child_call(struct child *child, const struct child_command *command,
		      struct child_answer *answer, void *data, size_t room)
{
	child_send(child, command);
	return child_receive(child, answer, data, room);
}

/* Execute a command that must succeed. */
static uint64_t child_require(struct child *child, const struct child_command *command, void *data,
			      size_t room)
{
	struct child_answer answer;
	int error = child_call(child, command, &answer, data, room);

	if (error < 0)
		fail_msg("child %s: command %u: %s: %s", child->name, command->op,
			 strerrorname_np(-error), answer.text);
	return answer.value;
}

static void child_open_engine(struct child *child, const struct child_options *options)
{
	struct child_command command = { .op = CHILD_START };
	struct child_answer answer;
	int error;

	if (options) {
		command.user = options->user;
		command.yama = options->yama;
		child_text(command.text, sizeof(command.text), options->listen);
		child_text(command.other, sizeof(command.other), options->name);
		for (size_t i = 0; i < 6; i++)
			child_text(command.config[i], sizeof(command.config[i]),
				   options->config[i]);
	}
	error = child_call(child, &command, &answer, NULL, 0);
	if (error)
		fail_msg("a child could not open its engine: %s: %s", strerrorname_np(-error),
			 answer.text);
	memcpy(child->url, answer.url, sizeof(child->url));
	memcpy(child->name, answer.name, sizeof(child->name));
	child->epoch = answer.value;
}

/* This process's environment with the child's NICs. To be freed; `setting` must live as long. */
static char **child_environment(char *setting, size_t size)
{
	size_t count = 0;
	char **copy;

	while (environ[count])
		count++;
	copy = calloc(count + 2, sizeof(*copy));
	if (!copy)
		fail_msg("no memory for a child's environment");
	snprintf(setting, size, "WHERRY_RDMA=%s",
		 strcmp(getenv("WHERRY_RDMA"), "off") != 0 ? getenv("HARNESS_RDMA") : "off");
	copy[0] = setting;
	for (size_t i = 0, at = 1; i < count; i++)
		if (strncmp(environ[i], "WHERRY_RDMA=", strlen("WHERRY_RDMA=")) != 0)
			copy[at++] = environ[i];
	return copy;
}

struct child *child_start(const struct child_options *options)
{
	struct child *child = calloc(1, sizeof(*child));
	char number[16], setting[512], **environment;
	char *argv[] = { (char *)"child", (char *)"--child", number, NULL };
	int pair[2], slot = 0;

	while (slot < CHILDREN_MAX && children[slot])
		slot++;
	if (!child || slot == CHILDREN_MAX ||
	    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
		fail_msg("no room for a child");
	environment = child_environment(setting, sizeof(setting));
	/* Another thread may hold the allocator's lock at this moment, for ever in the child: so it
	 * allocates nothing before it is another program. */
	child->pid = options && options->container ? container_fork(options->container) : fork();
	if (child->pid < 0)
		fail_msg("fork: %s", strerror(errno));
	if (child->pid == 0) {
		snprintf(number, sizeof(number), "%d", dup(pair[1]));
		execve(self_path(), argv, environment);
		_exit(127);
	}
	close(pair[1]);
	free(environment);
	child->fd = pair[0];
	children[slot] = child;
	child_open_engine(child, options);
	return child;
}

static void child_forget(struct child *child)
{
	for (int i = 0; i < CHILDREN_MAX; i++)
		if (children[i] == child)
			children[i] = NULL;
	close(child->fd);
	free(child);
}

void child_exit(struct child *child)
{
	struct child_command command = { .op = CHILD_EXIT };
	struct child_answer answer;
	int error = child_call(child, &command, &answer, NULL, 0), status = 0;

	if (error)
		fail_msg("child %s could not close its engine: %s: %s", child->name,
			 strerrorname_np(-error), answer.text);
	if (waitpid(child->pid, &status, 0) != child->pid || !WIFEXITED(status) ||
	    WEXITSTATUS(status) != 0) {
		child->pid = -1;
		tell_crash(child->name, status);
		fail_msg("child %s ended badly: status %#x", child->name, (unsigned int)status);
	}
	child_forget(child);
}

void child_kill(struct child *child)
{
	int status = 0;

	if (child->pid > 0) {
		kill(child->pid, SIGKILL);
		waitpid(child->pid, &status, 0);
		tell_crash(child->name, status); /* it may have ended before, of something else */
	}
	child_forget(child);
}

void children_kill(void)
{
	for (int i = 0; i < CHILDREN_MAX; i++)
		if (children[i])
			child_kill(children[i]);
}

void child_stop(struct child *child)
{
	int status;

	kill(child->pid, SIGSTOP);
	waitpid(child->pid, &status, WUNTRACED);
}

void child_continue(struct child *child)
{
	kill(child->pid, SIGCONT);
}

bool child_alive(struct child *child)
{
	int status;

	return waitpid(child->pid, &status, WNOHANG) == 0;
}

/* ---- commands ---------------------------------------------------------------- */

int child_memory_at(struct child *child, uint32_t kind, size_t length, const char *location)
{
	struct child_command command = { .op = CHILD_MEMORY, .kind = kind, .length = length };

	snprintf(command.text, sizeof(command.text), "%s", location ? location : "");
	return (int)child_require(child, &command, NULL, 0);
}

int child_memory(struct child *child, uint32_t kind, size_t length)
{
	return child_memory_at(child, kind, length, NULL);
}

int child_free(struct child *child, int memory)
{
	struct child_command command = { .op = CHILD_FREE, .index = memory };
	struct child_answer answer;

	return child_call(child, &command, &answer, NULL, 0);
}

int child_region(struct child *child, int memory, uint64_t offset, uint64_t length,
		 const char *name, uint32_t access, uint64_t *id)
{
	struct child_command command = { .op = CHILD_REGION,
					 .index = memory,
					 .offset = offset,
					 .length = length,
					 .access = access };
	struct child_answer answer;
	int region;

	child_text(command.text, sizeof(command.text), name);
	region = child_call(child, &command, &answer, NULL, 0);
	if (region < 0)
		fail_msg("child %s: no region: %s: %s", child->name, strerrorname_np(-region),
			 answer.text);
	if (id)
		*id = answer.value;
	return region;
}

void child_regions(struct child *child, int memory, uint64_t length, uint64_t count,
		   const char *last)
{
	struct child_command command = { .op = CHILD_REGIONS,
					 .index = memory,
					 .length = length,
					 .count = count,
					 .access = ACCESS_BOTH };

	child_text(command.text, sizeof(command.text), last);
	child_require(child, &command, NULL, 0);
}

int child_unregister(struct child *child, int region)
{
	struct child_command command = { .op = CHILD_UNREGISTER, .index = region };
	struct child_answer answer;

	return child_call(child, &command, &answer, NULL, 0);
}

int child_key(struct child *child, int region, void *key, size_t *length)
{
	struct child_command command = { .op = CHILD_KEY, .index = region };
	struct child_answer answer;
	int error = child_call(child, &command, &answer, key, *length);

	if (!error)
		*length = answer.length;
	return error;
}

uint64_t child_address(struct child *child, int memory)
{
	struct child_command command = { .op = CHILD_ADDRESS, .index = memory };

	return child_require(child, &command, NULL, 0);
}

void child_fill(struct child *child, int memory, uint64_t offset, uint64_t length,
		uint64_t position, uint64_t seed)
{
	struct child_command command = { .op = CHILD_FILL,
					 .index = memory,
					 .offset = offset,
					 .length = length,
					 .position = position,
					 .seed = seed };

	child_require(child, &command, NULL, 0);
}

size_t child_check(struct child *child, int memory, uint64_t offset, uint64_t length,
		   uint64_t position, uint64_t seed)
{
	struct child_command command = { .op = CHILD_CHECK,
					 .index = memory,
					 .offset = offset,
					 .length = length,
					 .position = position,
					 .seed = seed };

	return child_require(child, &command, NULL, 0);
}

uint64_t child_sum(struct child *child, int memory, uint64_t offset, uint64_t length)
{
	struct child_command command = {
		.op = CHILD_SUM, .index = memory, .offset = offset, .length = length
	};

	return child_require(child, &command, NULL, 0);
}

void child_fetch(struct child *child, int memory, uint64_t offset, uint64_t length, void *out)
{
	struct child_command command = {
		.op = CHILD_FETCH, .index = memory, .offset = offset, .length = length
	};

	child_require(child, &command, out, length);
}

int child_notification(struct child *child, int64_t timeout, struct note *out)
{
	struct child_command command = { .op = CHILD_NOTIFICATION, .timeout = timeout };
	struct child_answer answer;

	return child_call(child, &command, &answer, out, sizeof(*out));
}

unsigned int child_fds(struct child *child)
{
	struct child_command command = { .op = CHILD_FDS };

	return (unsigned int)child_require(child, &command, NULL, 0);
}

uint64_t child_resident(struct child *child)
{
	struct child_command command = { .op = CHILD_RESIDENT };

	return child_require(child, &command, NULL, 0);
}

int child_peer(struct child *child, const char *url, char text[256])
{
	struct child_command command = { .op = CHILD_PEER };
	struct child_answer answer;
	int peer;

	child_text(command.text, sizeof(command.text), url);
	peer = child_call(child, &command, &answer, NULL, 0);
	if (text)
		memcpy(text, answer.text, sizeof(answer.text));
	return peer;
}

int child_peer_close(struct child *child, int peer)
{
	struct child_command command = { .op = CHILD_PEER_CLOSE, .peer = peer };
	struct child_answer answer;

	return child_call(child, &command, &answer, NULL, 0);
}

void child_transfer_send(struct child *child, const struct child_transfer *transfer)
{
	struct child_command command = {
		.op = CHILD_TRANSFER,
		.peer = transfer->peer,
		.index = transfer->region,
		.offset = transfer->local_offset,
		.remote_offset = transfer->remote_offset,
		.length = transfer->length,
		.count = transfer->times ? transfer->times : 1,
		.direction = transfer->op,
		.go = transfer->go,
	};

	child_text(command.text, sizeof(command.text), transfer->remote);
	child_text(command.other, sizeof(command.other), transfer->notify);
	child_text(command.require, sizeof(command.require), transfer->require);
	child_send(child, &command);
}

int child_transfer_receive(struct child *child, struct child_result *result)
{
	struct child_answer answer;
	int status = child_receive(child, &answer, NULL, 0);

	if (result) {
		result->status = status;
		memcpy(result->text, answer.text, sizeof(result->text));
		memcpy(result->transport, answer.transport, sizeof(result->transport));
		memcpy(result->explain, answer.explain, sizeof(result->explain));
	}
	return status;
}

int child_transfer(struct child *child, const struct child_transfer *transfer,
		   struct child_result *result)
{
	child_transfer_send(child, transfer);
	return child_transfer_receive(child, result);
}
