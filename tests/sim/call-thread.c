/* SPDX-License-Identifier: Apache-2.0 */
/* Threads and what they wait on: pthread_create() makes a thread of the world. */
#include <errno.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>

#include "calls.h"
#include "world.h"

struct mutex {
	int owner, depth, recursive;
};

struct rwlock {
	int writer, readers;
};

_Static_assert(sizeof(struct mutex) <= sizeof(pthread_mutex_t), "a mutex fits");
_Static_assert(sizeof(struct rwlock) <= sizeof(pthread_rwlock_t), "a lock fits");

int sim_pthread_mutexattr_init(pthread_mutexattr_t *attr)
{
	memset(attr, 0, sizeof(pthread_mutexattr_t));
	return 0;
}

int sim_pthread_mutexattr_settype(pthread_mutexattr_t *attr, int type)
{
	*(int *)attr = type == PTHREAD_MUTEX_RECURSIVE;
	return 0;
}

int sim_pthread_mutexattr_destroy(pthread_mutexattr_t *attr)
{
	(void)attr;
	return 0;
}

int sim_pthread_mutex_init(pthread_mutex_t *lock, const pthread_mutexattr_t *attr)
{
	memset(lock, 0, sizeof(pthread_mutex_t));
	((struct mutex *)lock)->recursive = attr ? *(const int *)attr : 0;
	return 0;
}

int sim_pthread_mutex_destroy(pthread_mutex_t *lock)
{
	if (((struct mutex *)lock)->owner)
		sim_fail("lock", "a mutex is destroyed that thread %d holds",
			 ((struct mutex *)lock)->owner);
	return 0;
}

static bool mutex_is_free(const struct fiber *fiber)
{
	return !((const struct mutex *)fiber->on)->owner;
}

int sim_pthread_mutex_lock(pthread_mutex_t *lock)
{
	struct mutex *mutex = (struct mutex *)lock;

	if (mutex->owner == fiber_self()) {
		if (!mutex->recursive)
			sim_fail("lock", "a thread locks a mutex that it holds");
		mutex->depth++;
		return 0;
	}
	while (mutex->owner)
		fiber_block(mutex_is_free, mutex, 0, INT64_MAX, "a mutex");
	mutex->owner = fiber_self();
	mutex->depth = 1;
	return 0;
}

int sim_pthread_mutex_trylock(pthread_mutex_t *lock)
{
	struct mutex *mutex = (struct mutex *)lock;

	if (mutex->owner && !(mutex->recursive && mutex->owner == fiber_self()))
		return EBUSY;
	mutex->depth = mutex->owner ? mutex->depth + 1 : 1;
	mutex->owner = fiber_self();
	return 0;
}

int sim_pthread_mutex_unlock(pthread_mutex_t *lock)
{
	struct mutex *mutex = (struct mutex *)lock;

	if (mutex->owner != fiber_self())
		sim_fail("lock", "a thread unlocks a mutex of thread %d", mutex->owner);
	if (!--mutex->depth)
		mutex->owner = 0;
	/* Other threads may run here. */
	if (sim_current && sim_chance(sim_options.preempt / 4))
		fiber_yield();
	return 0;
}

int sim_pthread_rwlock_init(pthread_rwlock_t *lock, const pthread_rwlockattr_t *attr)
{
	(void)attr;
	memset(lock, 0, sizeof(pthread_rwlock_t));
	return 0;
}

int sim_pthread_rwlock_destroy(pthread_rwlock_t *lock)
{
	(void)lock;
	return 0;
}

static bool rwlock_has_no_writer(const struct fiber *fiber)
{
	return !((const struct rwlock *)fiber->on)->writer;
}

static bool rwlock_is_free(const struct fiber *fiber)
{
	return rwlock_has_no_writer(fiber) && !((const struct rwlock *)fiber->on)->readers;
}

int sim_pthread_rwlock_rdlock(pthread_rwlock_t *lock)
{
	struct rwlock *rwlock = (struct rwlock *)lock;

	while (rwlock->writer)
		fiber_block(rwlock_has_no_writer, rwlock, 0, INT64_MAX, "a lock, to read");
	rwlock->readers++;
	return 0;
}

int sim_pthread_rwlock_wrlock(pthread_rwlock_t *lock)
{
	struct rwlock *rwlock = (struct rwlock *)lock;

	while (rwlock->writer || rwlock->readers)
		fiber_block(rwlock_is_free, rwlock, 0, INT64_MAX, "a lock, to write");
	rwlock->writer = fiber_self();
	return 0;
}

int sim_pthread_rwlock_unlock(pthread_rwlock_t *lock)
{
	struct rwlock *rwlock = (struct rwlock *)lock;

	if (rwlock->writer)
		rwlock->writer = 0;
	else
		rwlock->readers--;
	return 0;
}

int sim_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attr)
{
	(void)attr;
	memset(cond, 0, sizeof(pthread_cond_t));
	return 0;
}

int sim_pthread_cond_destroy(pthread_cond_t *cond)
{
	(void)cond;
	return 0;
}

static int cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline)
{
	struct mutex *mutex = (struct mutex *)lock;
	bool in_time = true;

	if (mutex->owner != fiber_self() || mutex->depth != 1)
		sim_fail("lock", "a wait on a condition without its mutex");
	/* At once with the wait: nobody runs in between. */
	mutex->depth = mutex->owner = 0;
	sim_current->woken = false;
	if (sim_chance(sim_options.spurious))
		fiber_yield();
	else
		in_time = fiber_block(fiber_woken, cond, 0, deadline, "a condition");
	sim_pthread_mutex_lock(lock);
	return in_time ? 0 : ETIMEDOUT;
}

int sim_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock)
{
	return cond_wait(cond, lock, INT64_MAX);
}

int sim_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock,
			       const struct timespec *until)
{
	return cond_wait(cond, lock, until->tv_sec * SIM_SEC + until->tv_nsec);
}

int sim_pthread_cond_signal(pthread_cond_t *cond)
{
	fiber_wake(cond, false);
	return 0;
}

int sim_pthread_cond_broadcast(pthread_cond_t *cond)
{
	fiber_wake(cond, true);
	return 0;
}

int sim_pthread_once(pthread_once_t *once, void (*run)(void))
{
	if (!*once) {
		*once = 2;
		run();
	}
	return 0;
}

int sim_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
		       void *arg)
{
	(void)attr;
	*thread = (pthread_t)sim_spawn(node_self(), sim_thread_name(), run, arg);
	sim_trace("# thread %d", (int)*thread);
	return 0;
}

int sim_pthread_join(pthread_t thread, void **out)
{
	void *result = fiber_join((int)thread);

	if (out)
		*out = result;
	return 0;
}

int sim_pthread_detach(pthread_t thread)
{
	(void)thread;
	return 0;
}

pthread_t sim_pthread_self(void)
{
	return (pthread_t)fiber_self();
}

int sim_pthread_setname_np(pthread_t thread, const char *name)
{
	fiber_rename((int)thread, name);
	return 0;
}

int sim_pthread_sigmask(int how, const sigset_t *set, sigset_t *old)
{
	(void)how;
	(void)set;
	if (old)
		sigemptyset(old);
	return 0;
}

static long futex(const long *a)
{
	const struct timespec *until = (const struct timespec *)a[3];

	call_point("futex", (uint64_t)a[1]);
	if ((a[1] & FUTEX_CMD_MASK) == FUTEX_WAKE) {
		fiber_wake((void *)a[0], true);
		return 0;
	}
	if (*(volatile uint32_t *)a[0] != (uint32_t)a[2])
		return call_failed("futex", -1, EAGAIN);
	if (sim_chance(sim_options.spurious))
		return 0;
	sim_current->woken = false;
	if (!fiber_block(fiber_woken, (void *)a[0], 0,
			 until ? until->tv_sec * SIM_SEC + until->tv_nsec : INT64_MAX, "a futex"))
		return call_failed("futex", -1, ETIMEDOUT);
	return 0;
}

/* ---- robust futexes -------------------------------------------------------------------------- */

static long robust_list(long number, const long *a)
{
	if (number == SYS_set_robust_list) {
		sim_current->robust = (void *)a[0];
	} else {
		*(void **)a[1] = sim_current->robust;
		*(size_t *)a[2] = sizeof(struct robust_list_head);
	}
	return 0;
}

/* As the kernel does when a thread ends, however it ends. */
static void robust_mark(const struct fiber *fiber)
{
	const struct robust_list_head *head = fiber->robust;

	if (!head)
		return;
	for (struct robust_list *entry = head->list.next; entry != &head->list;
	     entry = entry->next) {
		uint32_t *word = (uint32_t *)((char *)entry + head->futex_offset);

		if ((*word & FUTEX_TID_MASK) != (uint32_t)fiber->id)
			continue;
		*word = (*word & FUTEX_WAITERS) | FUTEX_OWNER_DIED;
		fiber_wake(word, true);
	}
}

void threads_crash(int node)
{
	for (struct fiber *fiber = NULL; (fiber = fiber_next(node, fiber));)
		robust_mark(fiber);
}

long sim_syscall(long number, ...)
{
	long a[6];
	va_list arguments;

	va_start(arguments, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(arguments, long);
	va_end(arguments);
	switch (number) {
	case SYS_gettid:
		return fiber_self();
	case SYS_set_robust_list:
	case SYS_get_robust_list:
		return robust_list(number, a);
	case SYS_pidfd_open:
		return process_open_pid((pid_t)a[0]);
	case SYS_futex:
		return futex(a);
	case SYS_rt_sigprocmask: /* of wh_memory_readable(), which changes nothing */
		return syscall(number, a[0], a[1], a[2], a[3]);
	case SYS_openat2:
		return names_openat2((int)a[0], (const char *)a[1], (const void *)a[2]);
	default:
		return call_failed("syscall", (int)number, ENOSYS);
	}
}
