/* SPDX-License-Identifier: Apache-2.0 */
/* util-thread.c: the library's threads leave the program's signals alone */
#include "unit.h"
#include "util/thread.h"

#include <signal.h>
#include <string.h>

struct seen {
	sigset_t blocked;
	void *argument;
};

static void *look(void *argument)
{
	struct seen *seen = argument;

	seen->argument = argument;
	pthread_sigmask(SIG_SETMASK, NULL, &seen->blocked);
	return NULL;
}

static void start__signals(void **state)
{
	struct seen seen = { .argument = NULL };
	sigset_t before, after;
	pthread_t thread;

	(void)state;
	pthread_sigmask(SIG_SETMASK, NULL, &before);
	assert_int_equal(wh_thread_start(&thread, NULL, look, &seen), 0);
	pthread_sigmask(SIG_SETMASK, NULL, &after);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_ptr_equal(seen.argument, &seen);
	assert_true(sigismember(&seen.blocked, SIGTERM) && sigismember(&seen.blocked, SIGUSR1) &&
		    sigismember(&seen.blocked, SIGPIPE) && sigismember(&seen.blocked, SIGCHLD));
	assert_false(sigismember(&seen.blocked, SIGSEGV) || sigismember(&seen.blocked, SIGBUS));
	/* The caller's mask is as before. */
	for (int signal = 1; signal < 32; signal++)
		assert_int_equal(sigismember(&before, signal), sigismember(&after, signal));
}

static void *wait_for_end(void *argument)
{
	pthread_mutex_lock(argument);
	pthread_mutex_unlock(argument);
	return NULL;
}

static void start__name(void **state)
{
	pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
	char name[16] = "";
	pthread_t thread;

	(void)state;
	pthread_mutex_lock(&gate);
	assert_int_equal(wh_thread_start(&thread, "wherry/test", wait_for_end, &gate), 0);
	assert_int_equal(pthread_getname_np(thread, name, sizeof(name)), 0);
	assert_string_equal(name, "wherry/test");
	pthread_mutex_unlock(&gate);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(start__signals),
		cmocka_unit_test(start__name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
