/* SPDX-License-Identifier: Apache-2.0 */
/* Progress of an engine without threads, which the threads that call in make. */
#ifndef WH_CORE_PROGRESS_H
#define WH_CORE_PROGRESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct wh_engine;

/* Have callers run the engine, which has just been made. 0, -EMFILE or -ENOMEM. */
int wh_engine_be_driven(struct wh_engine *engine);

/* In an engine without threads: give a turn as wh_turns_run() does, and run the callbacks and plans
 * that are due. Not inside a turn, and without locks. True: there was something to do. */
bool wh_engine_turn(struct wh_engine *engine, uint64_t seen, int64_t deadline);
/* As wh_turns_cond_wait(), with wh_engine_turn(): for calls of the program that hold no other lock.
 */
int wh_engine_cond_wait(struct wh_engine *engine, pthread_cond_t *cond, pthread_mutex_t *lock,
			int64_t deadline);

#endif
