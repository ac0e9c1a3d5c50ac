/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lesson.h: what batches teach about the two movers of a GPU stream, kernel and copy engine.
 *
 * The costs that are measured at a stream's first use come from one look, beside whatever runs
 * then. So every turn that one mover did alone, with copies of about one length, is timed, and the
 * fastest of them counts: load makes turns slower, never faster. Figures are kept for each way,
 * length and number of copies, as a factor on the typical cost, so that one figure serves all turns
 * of its class.
 *
 * Forgetting: a turn that was slower than the figure pulls it up by 1/256 of the difference, of
 * which no more than three times the figure counts. A figure of the mover that is not used is
 * forgotten a minute after its last turn.
 *
 * Trying: the mover that seems slower gets every 8th turn until it has had eight, and then every
 * 64th, or as much more rarely as keeps the loss below a 64th of the time. It gets none if both the
 * typical costs and those of the first look say that it takes over three times as long, if its
 * figure of eight turns says so, or if an earlier figure, of three turns or more, says over eight
 * times as long. What looked bad is tried again when its figure is forgotten, after a minute.
 *
 * Thread-safe without a lock: two threads that teach at the same time may lose one turn.
 */
#ifndef WH_GPU_LESSON_H
#define WH_GPU_LESSON_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum wh_mover { WH_MOVER_KERNEL, WH_MOVER_COPIES, WH_MOVERS };

#define WH_LESSON_LENGTHS 10u
#define WH_LESSON_COUNTS 4u
#define WH_LESSONS (WH_LESSON_LENGTHS * WH_LESSON_COUNTS)

struct wh_figure {
	double _Atomic factor; /* the time that it takes, in typical times */
	int64_t _Atomic at; /* ns; when the last turn ended */
	_Atomic uint32_t turns; /* that it is made from; 0: nothing is known */
};

/* For turns of one class. All zero: nothing has been learned. */
struct wh_lesson {
	struct wh_figure by[WH_MOVERS];
	int64_t _Atomic tried_at; /* ns; when the slower mover was last chosen in order to try it */
	_Atomic uint32_t since; /* turns since then */
	_Atomic uint32_t tries;
};

/* What one turn takes by each mover, ns. */
struct wh_lesson_times {
	double typical[WH_MOVERS]; /* by typical costs */
	double first[WH_MOVERS]; /* by the costs of the first look; typical ones if there was none
				  */
	/* What the kernel takes from other work on the GPU, as a share of its own time: the copy
	 * engine is chosen unless it is slower by more than this. */
	double burden;
};

/* What is known about one mover's time for a turn. */
struct wh_lesson_view {
	double time; /* ns */
	uint32_t turns; /* that it was learned from; 0: from the first look */
};

/* The class of turns of `count` copies of about `length` bytes: less than WH_LESSONS. */
unsigned wh_lesson_class(uint64_t count, uint64_t length);
/* A turn took `took` ns, which is at least what the mover needed for it. `now`: ns, as wh_now(). */
void wh_lesson_learn(struct wh_lesson *lesson, enum wh_mover mover, double typical, double took,
		     int64_t now);
/* The mover that should be faster, or whose burden on other work makes up for it. */
enum wh_mover wh_lesson_faster(const struct wh_lesson *lesson, const struct wh_lesson_times *times);
/* The mover for a turn that is about to be submitted: the faster one, or the other to try it. */
enum wh_mover wh_lesson_choose(struct wh_lesson *lesson, const struct wh_lesson_times *times,
			       int64_t now);
void wh_lesson_look(const struct wh_lesson *lesson, const struct wh_lesson_times *times,
		    struct wh_lesson_view view[WH_MOVERS]);

#endif
