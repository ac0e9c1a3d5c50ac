/* SPDX-License-Identifier: Apache-2.0 */
/* Progress: one line on stderr, drawn anew up to ten times a second, with what is being done, how
 * far it is, the rate and the time left. Only on a terminal; elsewhere all of this does nothing. */
#ifndef TOOLS_PROGRESS_H
#define TOOLS_PROGRESS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct progress {
	const char *label;
	uint64_t total; /* bytes or steps; 0: unknown */
	bool steps;
	bool shown, color, watched;
	int64_t start, last, width; /* ns; columns */
	uint64_t last_done;
	double rate; /* bytes/s, smoothed */
	/* A thread that draws while its caller cannot. */
	_Atomic uint64_t done;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t end;
	bool ended;
};

/* Of so many bytes. `label` must live as long as the line. */
void progress_start(struct progress *progress, const char *label, uint64_t total, bool quiet);

/* Of so many steps, of which each takes about as long; 0: of something that just takes time. */
void progress_start_steps(struct progress *progress, const char *label, uint64_t total, bool quiet);

/* Let a thread draw from now on, for calls that take long: the first time after half a second. Not
 * in a process that will fork. */
void progress_watch(struct progress *progress);

/* So many bytes or steps are done now. Cheap when there is nothing to draw yet. Any thread, if it
 * is watched. */
void progress_move(struct progress *progress, uint64_t done);

/* The end: wipe the line. May be called twice. */
void progress_end(struct progress *progress);

/* Wipe the line that is shown, if one is, so that a message can stand in its place. With stderr
 * locked (flockfile) it stays away until that is unlocked. */
void progress_wipe(void);

/* The line, without colour and without moving the cursor; for progress.c and its test. */
void progress_line(const struct progress *progress, uint64_t done, char *out, int columns);

#endif
