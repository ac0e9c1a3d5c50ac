/* SPDX-License-Identifier: Apache-2.0 */
/* lesson.c: learns from turns which mover of a GPU stream is faster; lesson.h says how. */
#include "gpu/lesson.h"

#include "util/clock.h"

#define FORGET_AFTER (60 * WH_SECOND)
#define PULL (1 / 256.0) /* of the difference, by which a slower turn raises a figure */
#define PULL_MOST 4 /* figures: of a turn that was slower than so many, the rest is noise */
#define TRIES 8u /* in short order; afterwards the figure is as good as the fastest of them */
#define TRY_EVERY 8u /* turns, for the first tries */
#define TRY_LATER 64u
#define TRY_MOST 3 /* a mover that takes more times as long as the other is not tried */
#define TRY_NO_MORE 8 /* nor again if the fastest of its first turns took more times as long */
#define TRY_AT_LEAST 3u /* turns: one of them may meet what else the machine does */

/* bytes; the last class takes what is longer. 48 MiB exceed the caches of the GPUs that we know. */
static const uint64_t longest[WH_LESSON_LENGTHS - 1] = {
	256, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 48 << 20,
};
static const uint64_t most[WH_LESSON_COUNTS - 1] = { 1, 16, 256 };

unsigned wh_lesson_class(uint64_t count, uint64_t length)
{
	unsigned i = 0, k = 0;

	while (i < WH_LESSON_LENGTHS - 1 && length > longest[i])
		i++;
	while (k < WH_LESSON_COUNTS - 1 && count > most[k])
		k++;
	return i * WH_LESSON_COUNTS + k;
}

void wh_lesson_learn(struct wh_lesson *lesson, enum wh_mover mover, double typical, double took,
		     int64_t now)
{
	struct wh_figure *figure = &lesson->by[mover];
	uint32_t turns = atomic_load_explicit(&figure->turns, memory_order_relaxed);
	double factor = atomic_load_explicit(&figure->factor, memory_order_relaxed), seen;

	if (!(typical > 0) || !(took > 0))
		return;
	seen = took / typical;
	if (now - atomic_load_explicit(&figure->at, memory_order_relaxed) > FORGET_AFTER)
		turns = 0;
	if (!turns || seen < factor)
		factor = seen;
	else
		factor += PULL * ((seen < PULL_MOST * factor ? seen : PULL_MOST * factor) - factor);
	atomic_store_explicit(&figure->factor, factor, memory_order_relaxed);
	atomic_store_explicit(&figure->at, now, memory_order_relaxed);
	atomic_store_explicit(&figure->turns, turns < UINT32_MAX ? turns + 1 : turns,
			      memory_order_relaxed);
}

/* From how many turns a figure was learned that still counts: it is no more than a minute older
 * than the other mover's, which is in use. */
static uint32_t figure_turns(const struct wh_lesson *lesson, enum wh_mover mover)
{
	const struct wh_figure *figure = &lesson->by[mover], *other = &lesson->by[!mover];

	return atomic_load_explicit(&other->at, memory_order_relaxed) -
				       atomic_load_explicit(&figure->at, memory_order_relaxed) >
			       FORGET_AFTER ?
		       0 :
		       atomic_load_explicit(&figure->turns, memory_order_relaxed);
}

void wh_lesson_look(const struct wh_lesson *lesson, const struct wh_lesson_times *times,
		    struct wh_lesson_view view[WH_MOVERS])
{
	for (enum wh_mover m = 0; m < WH_MOVERS; m++) {
		view[m].turns = figure_turns(lesson, m);
		view[m].time = view[m].turns ? times->typical[m] *
						       atomic_load_explicit(&lesson->by[m].factor,
									    memory_order_relaxed) :
					       times->first[m];
	}
	/* The first look does not know the load and the round trips that turns meet: where only one
	 * mover is known, they make the other slower by as much. */
	for (enum wh_mover m = 0; m < WH_MOVERS; m++) {
		if (!view[m].turns && view[!m].turns && times->first[!m] > 0)
			view[m].time *= view[!m].time / times->first[!m];
	}
}

static enum wh_mover view_faster(const struct wh_lesson_view view[WH_MOVERS], double burden)
{
	return view[WH_MOVER_KERNEL].time * (1 + burden) < view[WH_MOVER_COPIES].time ?
		       WH_MOVER_KERNEL :
		       WH_MOVER_COPIES;
}

enum wh_mover wh_lesson_faster(const struct wh_lesson *lesson, const struct wh_lesson_times *times)
{
	struct wh_lesson_view view[WH_MOVERS];

	wh_lesson_look(lesson, times, view);
	return view_faster(view, times->burden);
}

/* After how many turns is the other mover to be tried? 0: never. */
static uint32_t try_every(const struct wh_lesson_view view[WH_MOVERS],
			  const struct wh_lesson_times *times, enum wh_mover faster, uint32_t tries)
{
	enum wh_mover other = !faster;
	double slower = view[other].time / view[faster].time;

	if (view[faster].turns < TRIES)
		return 0;
	if (tries < TRIES) {
		/* One noisy look must not keep a mover from its first turn: the typical costs speak
		 * for it, too. */
		double ratio = times->typical[other] / times->typical[faster];

		if (!view[other].turns)
			return slower <= TRY_MOST || ratio <= TRY_MOST ? TRY_EVERY : 0;
		return view[other].turns < TRY_AT_LEAST || slower <= TRY_NO_MORE ? TRY_EVERY : 0;
	}
	if (!view[other].turns || slower > TRY_MOST)
		return 0;
	return (uint32_t)(TRY_LATER * (slower > 2 ? slower - 1 : 1));
}

enum wh_mover wh_lesson_choose(struct wh_lesson *lesson, const struct wh_lesson_times *times,
			       int64_t now)
{
	struct wh_lesson_view view[WH_MOVERS];
	uint32_t every, tries, since;
	enum wh_mover faster;

	wh_lesson_look(lesson, times, view);
	faster = view_faster(view, times->burden);
	since = atomic_fetch_add_explicit(&lesson->since, 1, memory_order_relaxed) + 1;
	tries = atomic_load_explicit(&lesson->tries, memory_order_relaxed);
	if (tries &&
	    now - atomic_load_explicit(&lesson->tried_at, memory_order_relaxed) > FORGET_AFTER)
		tries = 0;
	every = try_every(view, times, faster, tries);
	if (!every || since < every)
		return faster;
	atomic_store_explicit(&lesson->since, 0, memory_order_relaxed);
	atomic_store_explicit(&lesson->tries, tries + 1, memory_order_relaxed);
	atomic_store_explicit(&lesson->tried_at, now, memory_order_relaxed);
	return !faster;
}
