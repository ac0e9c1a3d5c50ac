/* SPDX-License-Identifier: Apache-2.0 */
/* Progress of an engine without threads. */
#include "core/progress.h"

#include <errno.h>

#include "core/engine.h"
#include "core/worker.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/turns.h"

int wh_engine_be_driven(struct wh_engine *engine)
{
	int error = wh_turns_open(&engine->turns);

	if (error)
		return error;
	wh_worker_init(&engine->callbacks, engine->turns);
	wh_worker_init(&engine->planner, engine->turns);
	return 0;
}

static bool engine_run_works(struct wh_engine *engine)
{
	bool worked = wh_worker_run(&engine->planner);

	return wh_worker_run(&engine->callbacks) || worked;
}

bool wh_engine_turn(struct wh_engine *engine, uint64_t seen, int64_t deadline)
{
	/* What is due already must not wait until the turn has slept. */
	bool worked = engine_run_works(engine);

	wh_turns_take(engine->turns, 1);
	if (worked || wh_worker_is_due(&engine->planner) || wh_worker_is_due(&engine->callbacks))
		deadline = 0;
	worked |= wh_turns_run(engine->turns, seen, deadline);
	wh_turns_take(engine->turns, -1);
	return engine_run_works(engine) || worked;
}

int wh_engine_cond_wait(struct wh_engine *engine, pthread_cond_t *cond, pthread_mutex_t *lock,
			int64_t deadline)
{
	uint64_t seen;

	if (!engine->turns)
		return wh_turns_cond_wait(NULL, cond, lock, deadline);
	seen = wh_turns_seen(engine->turns);
	pthread_mutex_unlock(lock);
	wh_engine_turn(engine, seen, deadline);
	pthread_mutex_lock(lock);
	return deadline != INT64_MAX && wh_now() >= deadline ? ETIMEDOUT : 0;
}

static int progress_guard(const struct wh_engine *engine, const char *call)
{
	int error = wh_engine_guard(engine, call);

	if (!error && !engine->turns)
		error = wh_fail(EOPNOTSUPP,
				"%s: the engine has threads of its own; open it with "
				"WH_ENGINE_NO_THREADS to drive it yourself",
				call);
	return error;
}

int wh_engine_progress(struct wh_engine *engine, int64_t timeout)
{
	int error = progress_guard(engine, "wh_engine_progress");
	int64_t deadline;
	uint64_t seen;
	bool worked;

	if (error)
		return error;
	if (timeout < 0)
		return wh_fail(EINVAL, "wh_engine_progress: timeout is negative; WH_FOREVER waits "
				       "without limit");
	if (wh_engine_inside(engine))
		return wh_fail(EDEADLK, "wh_engine_progress: called from a callback");
	wh_fail_begin();
	deadline = timeout ? wh_deadline(timeout) : 0;
	do {
		seen = wh_turns_seen(engine->turns);
		worked = wh_engine_turn(engine, seen, deadline);
	} while (!worked && deadline && (deadline == INT64_MAX || wh_now() < deadline));
	return wh_fail_end(worked);
}

int wh_engine_fd(const struct wh_engine *engine)
{
	int error = progress_guard(engine, "wh_engine_fd");

	return error ? error : wh_turns_fd(engine->turns);
}
