/* SPDX-License-Identifier: Apache-2.0 */
/* Keeping an engine's entries in a metadata store, which may have been restarted empty. */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "compat/mooncake/mooncake.h"
#include "compat/mooncake/store.h"
#include "util/clock.h"
#include "util/thread.h"

/* Between two looks: each costs the store two reads. */
#define LOOK_EACH (2 * WH_SECOND)

struct wh_mooncake_keeper {
	struct wh_mooncake_keeper_setup setup;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool stop;
	int failed; /* the last error that was logged; 0: the last look succeeded */
};

static void keeper_log(const struct wh_mooncake_keeper *keeper, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
static void keeper_log(const struct wh_mooncake_keeper *keeper, const char *format, ...)
{
	char line[WH_TEXT_MAX + 128];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	keeper->setup.log(keeper->setup.arg, line);
}

static void keeper_look(struct wh_mooncake_keeper *keeper)
{
	const struct wh_mooncake_keeper_setup *setup = &keeper->setup;
	int error, before = keeper->failed;

	pthread_mutex_lock(setup->store_lock);
	error = wh_mooncake_is_published(setup->ops, setup->store, setup->name, setup->endpoint);
	pthread_mutex_unlock(setup->store_lock);
	if (error == -ENOENT) {
		error = setup->publish(setup->arg);
		if (!error)
			keeper_log(keeper,
				   "the store had lost the name %.60s, which is published again",
				   setup->name);
	} else if (!error && before) {
		keeper_log(keeper, "the store answers again, and has the name %.60s", setup->name);
	}
	keeper->failed = error;
	if (error && error != before)
		keeper_log(keeper, "the name %.60s may be missing in the store: %s; trying again",
			   setup->name, wh_fail_text());
}

static void *keeper_run(void *argument)
{
	struct wh_mooncake_keeper *keeper = argument;

	pthread_mutex_lock(&keeper->lock);
	while (!keeper->stop) {
		int64_t until = wh_deadline(LOOK_EACH);
		struct timespec at = { .tv_sec = until / WH_SECOND, .tv_nsec = until % WH_SECOND };

		while (!keeper->stop && wh_now() < until)
			pthread_cond_timedwait(&keeper->wake, &keeper->lock, &at);
		if (keeper->stop)
			break;
		pthread_mutex_unlock(&keeper->lock);
		keeper_look(keeper);
		pthread_mutex_lock(&keeper->lock);
	}
	pthread_mutex_unlock(&keeper->lock);
	return NULL;
}

int wh_mooncake_keeper_start(const struct wh_mooncake_keeper_setup *setup,
			     struct wh_mooncake_keeper **out)
{
	struct wh_mooncake_keeper *keeper = calloc(1, sizeof(*keeper));
	pthread_condattr_t monotonic;
	int error;

	if (!keeper)
		return wh_fail(ENOMEM, "mooncake: no memory");
	keeper->setup = *setup;
	pthread_mutex_init(&keeper->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&keeper->wake, &monotonic);
	pthread_condattr_destroy(&monotonic);
	error = wh_thread_start(&keeper->thread, "wherry-keeper", keeper_run, keeper);
	if (error) {
		pthread_cond_destroy(&keeper->wake);
		pthread_mutex_destroy(&keeper->lock);
		free(keeper);
		return wh_fail(error, "mooncake: cannot start a thread");
	}
	*out = keeper;
	return 0;
}

void wh_mooncake_keeper_stop(struct wh_mooncake_keeper *keeper)
{
	if (!keeper)
		return;
	pthread_mutex_lock(&keeper->lock);
	keeper->stop = true;
	pthread_cond_signal(&keeper->wake);
	pthread_mutex_unlock(&keeper->lock);
	pthread_join(keeper->thread, NULL);
	pthread_cond_destroy(&keeper->wake);
	pthread_mutex_destroy(&keeper->lock);
	free(keeper);
}
