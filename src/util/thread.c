/* SPDX-License-Identifier: Apache-2.0 */
#include "util/thread.h"

#include <signal.h>
#include <stddef.h>

int wh_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *argument)
{
	static const int own[] = { SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP };
	sigset_t mask, before;
	int error;

	sigfillset(&mask);
	for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
		sigdelset(&mask, own[i]);
	pthread_sigmask(SIG_SETMASK, &mask, &before);
	error = pthread_create(thread, NULL, run, argument);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!error && name)
		pthread_setname_np(*thread, name);
	return error;
}
