/* SPDX-License-Identifier: Apache-2.0 */
/* Progress: one line on stderr, redrawn up to ten times a second, with the activity, the share
 * done, the rate and the time left. Only on a terminal; elsewhere nothing is drawn. */
#ifndef TOOLS_PROGRESS_H
#define TOOLS_PROGRESS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct progress {
	const char *label;
	uint64_t total; /* bytes or steps; 0: unknown */
	bool steps;
	bool shown, color, watched;
	int64_t start, last, width; /* ns; columns */
	uint64_t last_done;
	double rate; /* bytes/s, smoothed */
	/* for a thread that draws while its caller is busy */
	_Atomic uint64_t done;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t end;
	bool ended;
};

/* Start a line that counts bytes. `label` must live as long as the line. */
void progress_start(struct progress *progress, const char *label, uint64_t total, bool quiet);

/* Start a line that counts steps of about equal length; 0: just an activity that takes time. */
void progress_start_steps(struct progress *progress, const char *label, uint64_t total, bool quiet);

/* From now on a thread draws, first after half a second: for calls that take long. Not in a process
 * that will fork. */
void progress_watch(struct progress *progress);

/* Set how many bytes or steps are done. Cheap until a redraw is due. Any thread may call it after
 * progress_watch(). */
void progress_move(struct progress *progress, uint64_t done);

/* Several lines at once, which progress_start() has started: set how many bytes of each are done.
 * Cheap until a redraw is due. If there are more than the terminal has rows, the last ones are
 * counted only. */
void progress_block(struct progress *const *lines, const uint64_t *done, size_t count);

/* Erase the line for good. May be called twice. */
void progress_end(struct progress *progress);

/* Erase the line, or the lines, if shown, to make room for a message. While stderr is locked
 * (flockfile) no new line is drawn. */
void progress_wipe(void);

/* The text of the line, without colour and cursor movement; for progress.c and its test. */
void progress_line(const struct progress *progress, uint64_t done, char *out, int columns);

#endif
