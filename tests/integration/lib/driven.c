/* SPDX-License-Identifier: Apache-2.0 */
/* driven.c: makes progress for the tests' engines without threads */
#include "driven.h"

#include <poll.h>

static struct wh_engine *driven;

uint32_t driven_flags(const char *side)
{
	const char *which = getenv("TESTS_NO_THREADS");

	return which && (!strcmp(which, side) || !strcmp(which, "both")) ? WH_ENGINE_NO_THREADS : 0;
}

void driven_set(struct wh_engine *engine)
{
	driven = engine && wh_engine_fd(engine) >= 0 ? engine : NULL;
}

bool driven_is_set(void)
{
	return driven;
}

void driven_wait(int fd, int64_t timeout)
{
	int64_t end = timeout == WH_FOREVER ? INT64_MAX : now() + timeout, left;
	struct pollfd look[] = {
		{ .fd = fd, .events = POLLIN },
		{ .fd = driven ? wh_engine_fd(driven) : -1, .events = POLLIN },
	};
	struct timespec time;

	do {
		left = end == INT64_MAX ? SECOND : end - now();
		if (left < 0)
			left = 0;
		time = (struct timespec){ left / SECOND, left % SECOND };
		ppoll(look, 2, &time, NULL);
		if (driven && look[1].revents)
			want_true(wh_engine_progress(driven, 0) >= 0, "%s", wh_error_text());
	} while (!look[0].revents && now() < end);
}
