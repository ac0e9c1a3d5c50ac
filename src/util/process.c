/* SPDX-License-Identifier: Apache-2.0 */
/* Processes by boot, namespaces, pid and start. */
#include "util/process.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What /proc/PID/stat says. */
struct process_state {
	char state;
	long threads;
	uint64_t start;
};

/* Bytes read into `out`, which gets a NUL; 0: none. */
static size_t process_read_file(const char *path, char *out, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got = fd >= 0 ? read(fd, out, size - 1) : -1;

	if (fd >= 0)
		close(fd);
	out[got > 0 ? got : 0] = '\0';
	return got > 0 ? (size_t)got : 0;
}

static bool process_read_state(int64_t pid, struct process_state *out)
{
	char path[48], text[1024];
	const char *end;

	snprintf(path, sizeof(path), "/proc/%" PRId64 "/stat", pid);
	if (!process_read_file(path, text, sizeof(text)))
		return false;
	/* The name of the program before it may contain anything. */
	end = strrchr(text, ')');
	return end && sscanf(end + 1,
			     " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d "
			     "%ld %*d %" SCNu64,
			     &out->state, &out->threads, &out->start) == 3;
}

static uint64_t space_mix(uint64_t space, uint64_t number)
{
	return (space ^ number) * 0x9e3779b97f4a7c15u;
}

/* 0: /proc does not say, or is another pid namespace's. */
static uint64_t process_space(void)
{
	struct stat pids, times = { .st_ino = 0 };
	char text[64];
	ssize_t length = readlink("/proc/self", text, sizeof(text) - 1);
	uint64_t space = 0;

	if (length <= 0)
		return 0;
	text[length] = '\0';
	if (strtol(text, NULL, 10) != getpid() || stat("/proc/thread-self/ns/pid", &pids))
		return 0;
	/* Linux 5.6; without them all processes have one time. Those of the thread: a first thread
	 * that has ended has none. */
	if (stat("/proc/thread-self/ns/time", &times) && errno != ENOENT)
		return 0;
	if (process_read_file("/proc/sys/kernel/random/boot_id", text, sizeof(text)) < 36)
		return 0;
	for (const char *c = text; *c; c++)
		space = space_mix(space, (uint64_t)(unsigned char)*c);
	return space_mix(space_mix(space, pids.st_ino), times.st_ino);
}

void wh_process_identify(struct wh_process *out)
{
	struct process_state own;
	uint64_t space = process_space();

	*out = (struct wh_process){ .pid = 0 };
	if (space && process_read_state(getpid(), &own))
		*out = (struct wh_process){ space, getpid(), own.start };
}

bool wh_process_has_ended(const struct wh_process *process)
{
	struct process_state now;

	if (process->pid <= 0 || process->pid > INT32_MAX || !process->start ||
	    process->space != process_space())
		return false;
	/* Not by /proc alone: hidepid= hides the processes of other users. */
	if (kill((pid_t)process->pid, 0) && errno == ESRCH)
		return true;
	if (!process_read_state(process->pid, &now))
		return false;
	/* A first thread that has ended looks the same while others still run. */
	return now.start != process->start || (now.state == 'Z' && now.threads == 1);
}
