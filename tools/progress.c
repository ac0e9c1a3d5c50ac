/* SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define INTERVAL 100000000 /* ns between two drawings */
#define BAR_MAX 40

/* Is there a line of a bar on the terminal? There is one terminal. */
static bool drawn;

static int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

void progress_start(struct progress *progress, const char *label, uint64_t total, bool quiet)
{
	const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
	struct winsize window;

	*progress = (struct progress){ .label = label, .total = total };
	/* A dumb terminal cannot go back to the start of a line and wipe it. */
	progress->shown = !quiet && isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
	progress->color = !no_color || !*no_color;
	progress->width = 80;
	if (progress->shown && ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col)
		progress->width = window.ws_col;
	progress->start = progress->last = now();
}

/* "1:05", "2:03:04". */
static void format_time(char *out, size_t size, double seconds)
{
	long left = (long)(seconds + 0.5);

	if (left >= 3600)
		snprintf(out, size, "%ld:%02ld:%02ld", left / 3600, left / 60 % 60, left % 60);
	else
		snprintf(out, size, "%ld:%02ld", left / 60, left % 60);
}

void progress_line(const struct progress *progress, uint64_t done, char *out, int columns)
{
	char right[96], left[32] = "", bar[BAR_MAX + 1];
	double share = progress->total ? (double)done / (double)progress->total : 0;
	int room, filled;

	if (!progress->total) {
		snprintf(out, (size_t)columns, "%s %.1f MiB  %.2f GB/s", progress->label,
			 (double)done / 0x1p20, progress->rate / 1e9);
		return;
	}
	if (progress->rate > 0 && progress->total >= done)
		format_time(left, sizeof(left), (double)(progress->total - done) / progress->rate);
	snprintf(right, sizeof(right), "%3d%%  %.2f GB/s%s%s%s", (int)(share * 100),
		 progress->rate / 1e9, *left ? "  " : "", left, *left ? " left" : "");
	room = columns - 1 - (int)strlen(progress->label) - (int)strlen(right) - 4;
	if (room > BAR_MAX)
		room = BAR_MAX;
	if (room < 5) {
		snprintf(out, (size_t)columns, "%s %s", progress->label, right);
		return;
	}
	filled = (int)(share * room);
	memset(bar, '=', (size_t)filled);
	memset(bar + filled, ' ', (size_t)(room - filled));
	if (filled < room)
		bar[filled] = '>';
	bar[room] = '\0';
	snprintf(out, (size_t)columns, "%s [%s] %s", progress->label, bar, right);
}

void progress_move(struct progress *progress, uint64_t done)
{
	char line[256];
	int64_t time;
	double rate;

	if (!progress->shown)
		return;
	time = now();
	if (time - progress->last < INTERVAL)
		return;
	rate = (double)(done - progress->last_done) * 1e9 / (double)(time - progress->last);
	/* Smoothed over about a second, or the time left would jump about. */
	progress->rate = progress->rate > 0 ? 0.9 * progress->rate + 0.1 * rate : rate;
	progress->last = time;
	progress->last_done = done;
	progress_line(progress, done, line,
		      progress->width < (int)sizeof(line) ? (int)progress->width :
							    (int)sizeof(line));
	fprintf(stderr, "\r%s%s%s\033[K", progress->color ? "\033[32m" : "", line,
		progress->color ? "\033[0m" : "");
	fflush(stderr);
	drawn = true;
}

void progress_end(struct progress *progress)
{
	progress_wipe();
	progress->shown = false;
}

void progress_wipe(void)
{
	if (drawn)
		fputs("\r\033[K", stderr);
	drawn = false;
}
