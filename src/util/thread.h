/* SPDX-License-Identifier: Apache-2.0 */
/* Starting the library's threads. */
#ifndef WH_UTIL_THREAD_H
#define WH_UTIL_THREAD_H

#include <pthread.h>

/* Start a thread, which receives only the signals that its own faults raise: all others go to the
 * program's threads. `name`, as tools show it, has at most 15 bytes; NULL: the thread may have
 * ended and been joined before this call returns, and names itself. 0, or the positive errno of
 * pthread_create(), and *thread is undefined. */
int wh_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *argument);

#endif
