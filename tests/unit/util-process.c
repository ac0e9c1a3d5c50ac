/* SPDX-License-Identifier: Apache-2.0 */
/* util-process.c: whether a process has ended, said only where it is proved */
#include "unit.h"
#include "util/process.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Fork a process that says who it is, `count` times, and then sleeps. `act`: what it does before
 * each time but the first. */
static pid_t start(struct wh_process *out, int count, void (*act)(void))
{
	int ends[2];
	pid_t pid;

	assert_int_equal(pipe(ends), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		for (int i = 0; i < count; i++) {
			struct wh_process own;

			if (i)
				act();
			wh_process_identify(&own);
			if (write(ends[1], &own, sizeof(own)) != sizeof(own))
				_exit(1);
		}
		for (;;)
			pause();
	}
	for (int i = 0; i < count; i++)
		assert_int_equal(read(ends[0], &out[i], sizeof(*out)), sizeof(*out));
	close(ends[0]);
	close(ends[1]);
	return pid;
}

static void ended__killed(void **state)
{
	struct wh_process process;
	pid_t pid = start(&process, 1, NULL);
	siginfo_t info;

	(void)state;
	assert_int_equal(process.pid, pid);
	assert_false(wh_process_has_ended(&process));
	kill(pid, SIGSTOP);
	assert_int_equal(waitid(P_PID, (id_t)pid, &info, WSTOPPED | WNOWAIT), 0);
	assert_false(wh_process_has_ended(&process));
	kill(pid, SIGKILL);
	assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
	/* Nobody has reaped it yet. */
	assert_true(wh_process_has_ended(&process));
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_true(wh_process_has_ended(&process));
}

/* Who has a pid now is the one that had it only if it started at that time. */
static void ended__pid_used_again(void **state)
{
	struct wh_process process;

	(void)state;
	wh_process_identify(&process);
	assert_int_equal(process.pid, getpid());
	assert_false(wh_process_has_ended(&process));
	process.start++;
	assert_true(wh_process_has_ended(&process));
}

/* On another host, or before this one booted, the pid may be anybody's. */
static void ended__elsewhere(void **state)
{
	struct wh_process process;

	(void)state;
	wh_process_identify(&process);
	process.space++;
	assert_false(wh_process_has_ended(&process));
	process.start++;
	assert_false(wh_process_has_ended(&process));
	process.pid = INT32_MAX; /* more than the kernel gives */
	assert_false(wh_process_has_ended(&process));
	process.space--;
	assert_true(wh_process_has_ended(&process));
	assert_false(wh_process_has_ended(&(struct wh_process){ .pid = 0 }));
}

static void *sleep_on(void *unused)
{
	for (;;)
		pause();
	return unused;
}

static void *identify_later(void *ends)
{
	struct wh_process own;
	char path[32], text[256], *end;
	FILE *file;

	do {
		snprintf(path, sizeof(path), "/proc/%d/stat", getpid());
		file = fopen(path, "re");
		if (!file || !fgets(text, sizeof(text), file))
			_exit(1);
		fclose(file);
		end = strrchr(text, ')');
		sched_yield();
	} while (!end || end[2] != 'Z');
	wh_process_identify(&own);
	if (write(((int *)ends)[1], &own, sizeof(own)) != sizeof(own))
		_exit(1);
	return sleep_on(NULL);
}

/* main() has ended by pthread_exit(), which looks like a process that waits to be reaped. */
static void ended__threads_go_on(void **state)
{
	static int ends[2];
	struct wh_process process;
	pthread_t thread;
	pid_t pid;

	(void)state;
	assert_int_equal(pipe(ends), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		if (pthread_create(&thread, NULL, identify_later, ends))
			_exit(1);
		pthread_exit(NULL);
	}
	assert_int_equal(read(ends[0], &process, sizeof(process)), sizeof(process));
	assert_int_equal(process.pid, pid);
	assert_false(wh_process_has_ended(&process));
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_true(wh_process_has_ended(&process));
	close(ends[0]);
	close(ends[1]);
}

/* A container: its pids are others, and so are those of a /proc that came from outside. */
static void enter_namespace(void)
{
	static bool inside;
	int status;
	pid_t pid;

	if (inside) {
		if (mount("proc", "/proc", "proc", 0, NULL))
			_exit(3);
		return;
	}
	inside = true;
	if (unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS))
		_exit(3);
	pid = fork();
	if (pid) {
		waitpid(pid, &status, 0);
		_exit(3);
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static void ended__another_namespace(void **state)
{
	struct wh_process own, seen[3];
	int status;
	pid_t pid = fork();

	(void)state;
	/* Where it is not allowed there is nothing to see. */
	if (!pid)
		_exit(unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS) ? 1 : 0);
	waitpid(pid, &status, 0);
	if (status) {
		print_message("no namespaces\n");
		return;
	}
	wh_process_identify(&own);
	pid = start(seen, 3, enter_namespace);
	assert_true(seen[0].space == own.space);
	assert_int_equal(seen[1].pid, 0);
	assert_int_equal(seen[2].pid, 1);
	assert_true(seen[2].space && seen[2].space != own.space);
	seen[2].start++; /* it is not process 1 here either */
	assert_false(wh_process_has_ended(&seen[2]));
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ended__killed),
		cmocka_unit_test(ended__pid_used_again),
		cmocka_unit_test(ended__elsewhere),
		cmocka_unit_test(ended__threads_go_on),
		cmocka_unit_test(ended__another_namespace),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
