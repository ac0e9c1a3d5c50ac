/* SPDX-License-Identifier: Apache-2.0 */
/* The processes of a benchmark, and the socket pairs by which they receive orders. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/bench.h"

/* How long an answer may take beyond the duration that the order names. */
#define PATIENCE_MS 120000

void bench_pin(enum bench_half half, cpu_set_t *before)
{
	int seen = 0, count;
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(*before), before))
		CPU_ZERO(before);
	count = CPU_COUNT(before);
	if (count < 2 || half == BENCH_ANY_CPU)
		return;
	CPU_ZERO(&set);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, before) && (seen++ < count / 2) == (half == BENCH_NEAR_CPUS))
			CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

void bench_unpin(const cpu_set_t *before)
{
	if (CPU_COUNT(before))
		sched_setaffinity(0, sizeof(*before), before);
}

int bench_process_start(struct bench_process *process, const char *name, enum bench_half half,
			void (*serve)(int fd, void *arg), void *arg)
{
	pid_t parent = getpid();
	cpu_set_t before;
	int pair[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return -errno;
	fflush(NULL); /* or the child would write the buffer once more */
	pid = fork();
	if (pid < 0) {
		int error = -errno;

		close(pair[0]);
		close(pair[1]);
		return error;
	}
	if (!pid) {
		close(pair[0]);
		/* Die with the command, even while stopped. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
		bench_pin(half, &before);
		serve(pair[1], arg);
		fflush(NULL);
		_exit(0);
	}
	close(pair[1]);
	*process = (struct bench_process){ .pid = pid, .fd = pair[0] };
	snprintf(process->name, sizeof(process->name), "%s", name);
	return 0;
}

/* Write into the answer how the process ended. */
static void describe_end(struct bench_process *process, struct bench_answer *answer)
{
	int status;

	if (process->pid > 0 && waitpid(process->pid, &status, 0) == process->pid) {
		if (WIFSIGNALED(status))
			snprintf(answer->text, sizeof(answer->text),
				 "the %s process was killed by signal %d (%s)", process->name,
				 WTERMSIG(status), strsignal(WTERMSIG(status)));
		else
			snprintf(answer->text, sizeof(answer->text),
				 "the %s process ended with status %d", process->name,
				 WEXITSTATUS(status));
	} else {
		snprintf(answer->text, sizeof(answer->text), "the %s process is gone",
			 process->name);
	}
	if (process->pid > 0)
		close(process->fd);
	process->pid = 0;
	answer->error = -EPIPE;
}

int bench_ask(struct bench_process *process, const struct bench_order *order,
	      struct bench_answer *answer)
{
	struct pollfd poller = { .fd = process->fd, .events = POLLIN };
	int64_t patience = PATIENCE_MS + 2 * order->duration / 1000000;
	ssize_t n;
	int ready;

	memset(answer, 0, sizeof(*answer));
	if (process->pid <= 0 ||
	    send(process->fd, order, sizeof(*order), MSG_NOSIGNAL) != (ssize_t)sizeof(*order)) {
		describe_end(process, answer);
		return answer->error;
	}
	do
		ready = poll(&poller, 1, patience > INT32_MAX ? INT32_MAX : (int)patience);
	while (ready < 0 && errno == EINTR);
	if (!ready) {
		snprintf(answer->text, sizeof(answer->text),
			 "the %s process has not answered for %d s", process->name,
			 (int)(patience / 1000));
		kill(process->pid, SIGKILL);
		waitpid(process->pid, NULL, 0);
		close(process->fd);
		process->pid = 0;
		return answer->error = -ETIMEDOUT;
	}
	do
		n = recv(process->fd, answer, sizeof(*answer), 0);
	while (n < 0 && errno == EINTR);
	if (n != (ssize_t)sizeof(*answer))
		describe_end(process, answer);
	return answer->error;
}

void bench_process_end(struct bench_process *process)
{
	struct bench_order order = { .what = BENCH_QUIT };
	struct bench_answer answer;

	if (process->pid <= 0)
		return;
	bench_process_continue(process);
	/* It answers when its engine is closed. */
	bench_ask(process, &order, &answer);
	if (process->pid <= 0)
		return;
	close(process->fd);
	waitpid(process->pid, NULL, 0);
	process->pid = 0;
}

int bench_reported_error(int code)
{
	return code == EXIT_USAGE ? -EINVAL : code == EXIT_UNAVAILABLE ? -ENODEV : -EIO;
}

int bench_reported_code(int error)
{
	return error == -EINVAL ? EXIT_USAGE : exit_code_of(error);
}

void bench_process_stop(struct bench_process *process)
{
	int status;

	if (process->pid <= 0 || process->stopped || kill(process->pid, SIGSTOP))
		return;
	/* Wait until it has really left its CPU. */
	if (waitpid(process->pid, &status, WUNTRACED) == process->pid && WIFSTOPPED(status)) {
		process->stopped = true;
		return;
	}
	close(process->fd); /* it ended instead: the next order will report that */
	process->pid = 0;
}

void bench_process_continue(struct bench_process *process)
{
	if (process->pid > 0 && process->stopped)
		kill(process->pid, SIGCONT);
	process->stopped = false;
}

bool bench_next_order(int fd, struct bench_order *order)
{
	ssize_t n;

	do
		n = recv(fd, order, sizeof(*order), 0);
	while (n < 0 && errno == EINTR);
	return n == (ssize_t)sizeof(*order);
}

void bench_reply(int fd, const struct bench_answer *answer)
{
	/* If the command is gone, this process will soon be gone as well. */
	(void)!send(fd, answer, sizeof(*answer), MSG_NOSIGNAL);
}
