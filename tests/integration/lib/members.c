/* SPDX-License-Identifier: Apache-2.0 */
/* members.c: the test's side of members of a set of weights; member.c is the other side */
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "../../self.h"
#include "member.h"

static struct group *running; /* the group of the running test */

static void process_start(struct member *member)
{
	char number[16];
	char *argv[] = { (char *)"member", (char *)"--member", number, NULL };
	int pair[2];

	want_true(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), "no socket");
	member->pid = fork();
	if (member->pid == 0) {
		snprintf(number, sizeof(number), "%d", dup(pair[1]));
		execv(self_path(), argv);
		_exit(127);
	}
	close(pair[1]);
	want_true(member->pid > 0, "cannot fork");
	member->fd = pair[0];
	member->running = true;
}

static void command_send(struct group *group, struct member *member, uint32_t op, uint64_t value,
			 int64_t timeout)
{
	static struct member_command command;

	memset(&command, 0, sizeof(command));
	command.op = op;
	command.value = value;
	command.timeout = timeout;
	command.index = (uint32_t)(member - group->members);
	command.model = group->model;
	for (uint32_t i = 0; i < group->count; i++) {
		memcpy(command.names[i], group->members[i].name, sizeof(command.names[i]));
		memcpy(command.urls[i], group->members[i].url, sizeof(command.urls[i]));
	}
	for (int i = 0; i < 4; i++)
		snprintf(command.config[i], sizeof(command.config[i]), "%s",
			 group->model.config[i] ? group->model.config[i] : "");
	if (send_all(member->fd, &command, sizeof(command)) != 0)
		fail_msg("%s has gone", member->name);
}

void member_send(struct member *member, uint32_t op, uint64_t value, int64_t timeout)
{
	command_send(running, member, op, value, timeout);
}

int member_receive(struct member *member, struct member_answer *answer)
{
	static struct member_answer none;

	answer = answer ? answer : &none;
	if (read_all(member->fd, answer, sizeof(*answer)) != 0)
		fail_msg("%s has gone", member->name);
	if (answer->status < 0 && answer->status != -EAGAIN)
		print_message("%s: %s: %s\n", member->name, strerrorname_np(-answer->status),
			      answer->text);
	return answer->status;
}

int member_call(struct member *member, uint32_t op, uint64_t value, int64_t timeout,
		struct member_answer *answer)
{
	member_send(member, op, value, timeout);
	return member_receive(member, answer);
}

static void member_start(struct member *member)
{
	struct member_answer answer;

	process_start(member);
	want(0, member_call(member, MEMBER_ENGINE, 0, 0, &answer));
	snprintf(member->url, sizeof(member->url), "%.95s", answer.text);
}

int member_open(struct group *group, struct member *member, uint64_t how,
		struct member_answer *answer)
{
	command_send(group, member, MEMBER_OPEN, how, 0);
	return member_receive(member, answer);
}

void group_start(struct group *group, const struct model *model, bool open)
{
	memset(group, 0, sizeof(*group));
	group->model = *model;
	group->count = model->sources + model->targets;
	running = group;
	for (uint32_t i = 0; i < group->count; i++) {
		struct member *member = &group->members[i];

		snprintf(member->name, sizeof(member->name), "%s%u",
			 i < model->sources ? "source" : "target",
			 i < model->sources ? i : i - model->sources);
		member_start(member);
	}
	for (uint32_t i = 0; open && i < group->count; i++)
		want(0, member_open(group, &group->members[i], 0, NULL));
}

static void member_reap(struct member *member)
{
	int status = 0;

	waitpid(member->pid, &status, 0);
	tell_crash(member->name, status);
	close(member->fd);
	member->running = false;
}

void member_kill(struct member *member)
{
	kill(member->pid, SIGKILL);
	member_reap(member);
}

void member_again(struct group *group, struct member *member)
{
	member_start(member);
	want(0, member_open(group, member, 0, NULL));
}

void member_pause(struct member *member)
{
	int status;

	kill(member->pid, SIGSTOP);
	waitpid(member->pid, &status, WUNTRACED);
}

void member_continue(struct member *member)
{
	kill(member->pid, SIGCONT);
}

/* All close their weights before any closes its engine. */
void group_end(struct group *group)
{
	for (int step = 0; step < 2; step++) {
		for (uint32_t i = 0; i < group->count; i++)
			if (group->members[i].running)
				member_send(&group->members[i], step ? MEMBER_EXIT : MEMBER_CLOSE,
					    0, 0);
		for (uint32_t i = 0; i < group->count; i++)
			if (group->members[i].running)
				want(0, member_receive(&group->members[i], NULL));
	}
	for (uint32_t i = 0; i < group->count; i++)
		if (group->members[i].running)
			member_reap(&group->members[i]);
	running = NULL;
}

void group_kill(void)
{
	for (uint32_t i = 0; running && i < running->count; i++)
		if (running->members[i].running) {
			kill(running->members[i].pid, SIGCONT);
			member_kill(&running->members[i]);
		}
	running = NULL;
}

int member_end(void **state)
{
	group_kill();
	return harness_end(state);
}

struct member *group_source(struct group *group, uint32_t index)
{
	return &group->members[index];
}

struct member *group_target(struct group *group, uint32_t index)
{
	return &group->members[group->model.sources + index];
}

/* ---- versions ---------------------------------------------------------- */

void group_pass(struct group *group, uint64_t version)
{
	struct member_answer answer;

	for (uint32_t i = 0; i < group->model.sources; i++)
		want(0, member_call(group_source(group, i), MEMBER_PUBLISH, version, 0, NULL));
	for (uint32_t i = 0; i < group->model.sources; i++)
		want(0, member_call(group_source(group, i), MEMBER_WAIT, version, PATIENCE, NULL));
	for (uint32_t i = 0; i < group->model.targets; i++) {
		want(0, member_call(group_target(group, i), MEMBER_CHECK, version - 1, 0, &answer));
		want(version, answer.value);
	}
	for (uint32_t i = 0; i < group->model.sources; i++)
		want(0, member_call(group_source(group, i), MEMBER_RETRACT, 99, 0, NULL));
}

void group_versions(const struct model *model)
{
	static struct group group;

	group_start(&group, model, true);
	for (uint64_t version = 1; version <= 4; version++)
		group_pass(&group, version);
	group_end(&group);
}
