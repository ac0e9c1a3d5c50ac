/* SPDX-License-Identifier: Apache-2.0 */
/* For LD_PRELOAD: counts the socket and waiting calls of each thread, with their bytes and time, in
 * the file $WHERE_CALLS/PID, which bench/where/where reads. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define THREADS 1024 /* more of one process share the last place */

/* As KINDS and THREAD in bench/where/where. */
enum kind { SEND, RECV, EPOLL, POLL, YIELD, FUTEX_WAITS, FUTEX_WAKES, KINDS };

struct calls {
	uint64_t count, again, bytes, ns; /* again: EAGAIN */
	uint64_t by_bytes[32]; /* of calls that moved less than 1 << index bytes */
};

struct thread_calls {
	char name[16];
	int64_t tid; /* 0: no thread */
	struct calls calls[KINDS];
};

static struct thread_calls *table;
static int table_pid;
static unsigned used;
static _Thread_local struct thread_calls *mine;
static _Thread_local int mine_pid;

static int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* In its first call, when it has one thread; a fork needs a table of its own. */
static void table_open(int pid)
{
	const char *folder = getenv("WHERE_CALLS");
	char path[4096];
	int fd;

	snprintf(path, sizeof(path), "%s/%d", folder ? folder : ".", pid);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0 || ftruncate(fd, THREADS * sizeof(*table)))
		abort();
	table = mmap(NULL, THREADS * sizeof(*table), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (table == MAP_FAILED)
		abort();
	used = 0;
	table_pid = pid;
}

static struct thread_calls *my_calls(void)
{
	int pid = getpid();
	unsigned at;

	if (mine && mine_pid == pid)
		return mine;
	if (table_pid != pid)
		table_open(pid);
	at = __atomic_fetch_add(&used, 1, __ATOMIC_RELAXED);
	mine = &table[at < THREADS ? at : THREADS - 1];
	mine_pid = pid;
	mine->tid = gettid();
	prctl(PR_GET_NAME, mine->name);
	return mine;
}

static void note(enum kind kind, int64_t result, int64_t ns)
{
	int error = errno;
	struct calls *calls = &my_calls()->calls[kind];

	calls->count++;
	calls->ns += (uint64_t)ns;
	if (result < 0) {
		calls->again += error == EAGAIN;
	} else {
		uint64_t bytes = (uint64_t)result;
		int bits = bytes ? 64 - __builtin_clzll(bytes) : 0;

		calls->bytes += bytes;
		calls->by_bytes[bits < 32 ? bits : 31]++;
	}
	errno = error;
}

/* A function of libc that is called and counted. */
/* NOLINTBEGIN(bugprone-macro-parentheses): types and lists */
#define COUNT(kind, type, name, parameters, arguments)                                             \
	type name parameters                                                                       \
	{                                                                                          \
		static __typeof__(name) *real;                                                     \
		int64_t start;                                                                     \
		type result;                                                                       \
                                                                                                   \
		if (!real)                                                                         \
			*(void **)&real = dlsym(RTLD_NEXT, #name);                                 \
		start = now();                                                                     \
		result = real arguments;                                                           \
		note(kind, result, now() - start);                                                 \
		return result;                                                                     \
	}
/* NOLINTEND(bugprone-macro-parentheses) */

COUNT(SEND, ssize_t, send, (int fd, const void *from, size_t length, int flags),
      (fd, from, length, flags))
COUNT(SEND, ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags),
      (fd, message, flags))
COUNT(RECV, ssize_t, recv, (int fd, void *to, size_t length, int flags), (fd, to, length, flags))
COUNT(RECV, ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags))
COUNT(EPOLL, int, epoll_wait, (int fd, struct epoll_event *events, int most, int ms),
      (fd, events, most, ms))
COUNT(POLL, int, poll, (struct pollfd * pollers, nfds_t count, int ms), (pollers, count, ms))
COUNT(YIELD, int, sched_yield, (void), ())

/* Of system calls without a function of their own, those of a futex are counted. */
long syscall(long number, ...)
{
	static long (*real)(long, ...);
	int64_t start = now();
	long a[6], result;
	va_list list;

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "syscall");
	va_start(list, number);
	for (unsigned i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	result = real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
	if (number == SYS_futex) /* FUTEX_WAKE and FUTEX_WAKE_BITSET */
		note((a[1] & 127) == 1 || (a[1] & 127) == 10 ? FUTEX_WAKES : FUTEX_WAITS, result,
		     now() - start);
	return result;
}
