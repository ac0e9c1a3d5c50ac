/* SPDX-License-Identifier: Apache-2.0 */
/* A progress bar: one line on stderr, drawn anew up to ten times a second, with the rate and the
 * time left. Only on a terminal; elsewhere all of this does nothing. */
#ifndef TOOLS_PROGRESS_H
#define TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
	const char *label;
	uint64_t total; /* bytes; 0: unknown */
	bool shown, color;
	int64_t start, last, width; /* ns; columns */
	uint64_t last_done;
	double rate; /* bytes/s, smoothed */
};

/* `label` must live as long as the bar. */
void progress_start(struct progress *progress, const char *label, uint64_t total, bool quiet);

/* So many bytes are done now. Cheap when there is nothing to draw yet. */
void progress_move(struct progress *progress, uint64_t done);

/* The end: wipe the line. May be called twice. */
void progress_end(struct progress *progress);

/* Wipe the line of the bar that is shown, if one is, so that a message can stand in its place. */
void progress_wipe(void);

/* The line, without colour and without moving the cursor; for progress.c and its test. */
void progress_line(const struct progress *progress, uint64_t done, char *out, int columns);

#endif
