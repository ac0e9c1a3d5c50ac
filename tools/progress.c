/* SPDX-License-Identifier: Apache-2.0 */
/* The progress line on a terminal: label, bar, share, rate and time left, drawn by the caller or by
 * a thread. */
#include "progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define INTERVAL 100000000 /* ns between two drawings */
#define PATIENCE 500000000 /* ns before a thread draws for the first time */
#define BAR_MAX 40
#define LINE 256

/* How many lines are on the terminal. There is one terminal; the thread that holds stderr's lock
 * draws. */
static atomic_int drawn;

static int64_t progress_now(void)
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
	/* A dumb terminal cannot return to the start of a line and erase it. */
	progress->shown = !quiet && isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
	progress->color = !no_color || !*no_color;
	progress->width = 80;
	if (progress->shown && ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col)
		progress->width = window.ws_col;
	progress->start = progress->last = progress_now();
}

void progress_start_steps(struct progress *progress, const char *label, uint64_t total, bool quiet)
{
	progress_start(progress, label, total, quiet);
	progress->steps = true;
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

/* The text right of the bar. */
static void format_right(const struct progress *progress, uint64_t done, char *out, size_t size)
{
	double left = -1, elapsed = (double)(progress->last - progress->start) / 1e9;
	int used;

	/* Steps are few: assume that each takes as long as those before on average. */
	if (progress->steps && done)
		left = elapsed / (double)done * (double)(progress->total - done);
	else if (!progress->steps && progress->rate > 0)
		left = (double)(progress->total - done) / progress->rate;
	used = snprintf(out, size, "%3d%%  ", (int)((double)done / (double)progress->total * 100));
	if (progress->steps)
		used += snprintf(out + used, size - (size_t)used, "%llu of %llu",
				 (unsigned long long)done, (unsigned long long)progress->total);
	else
		used += snprintf(out + used, size - (size_t)used, "%.2f GB/s",
				 progress->rate / 1e9);
	if (left < 0)
		return;
	used += snprintf(out + used, size - (size_t)used, "  ");
	format_time(out + used, size - (size_t)used, left);
	used = (int)strlen(out);
	snprintf(out + used, size - (size_t)used, " left");
}

void progress_line(const struct progress *progress, uint64_t done, char *out, int columns)
{
	double elapsed = (double)(progress->last - progress->start) / 1e9;
	char right[128], bar[BAR_MAX + 1];
	int room, filled;

	if (!progress->total) {
		if (progress->steps)
			snprintf(out, (size_t)columns, "%s  %.0f s", progress->label, elapsed);
		else
			snprintf(out, (size_t)columns, "%s %.1f MiB  %.2f GB/s", progress->label,
				 (double)done / 0x1p20, progress->rate / 1e9);
		return;
	}
	if (done > progress->total)
		done = progress->total;
	format_right(progress, done, right, sizeof(right));
	room = columns - 1 - (int)strlen(progress->label) - (int)strlen(right) - 4;
	if (room > BAR_MAX)
		room = BAR_MAX;
	if (room < 5) {
		snprintf(out, (size_t)columns, "%s %s", progress->label, right);
		return;
	}
	filled = (int)((double)done / (double)progress->total * room);
	memset(bar, '=', (size_t)filled);
	memset(bar + filled, ' ', (size_t)(room - filled));
	if (filled < room)
		bar[filled] = '>';
	bar[room] = '\0';
	snprintf(out, (size_t)columns, "%s [%s] %s", progress->label, bar, right);
}

/* The line for `done` at this time. */
static void progress_text(struct progress *progress, int64_t time, uint64_t done, char *out,
			  size_t size)
{
	double rate;

	rate = (double)(done - progress->last_done) * 1e9 / (double)(time - progress->last);
	/* Smoothed over about a second, so that the time left does not jump. */
	progress->rate = progress->rate > 0 ? 0.9 * progress->rate + 0.1 * rate : rate;
	progress->last = time;
	progress->last_done = done;
	progress_line(progress, done, out,
		      progress->width < (int)size ? (int)progress->width : (int)size);
}

static void progress_print(const struct progress *progress, const char *line)
{
	fprintf(stderr, "\r%s%s%s\033[K", progress->color ? "\033[32m" : "", line,
		progress->color ? "\033[0m" : "");
}

static void progress_draw(struct progress *progress, int64_t time, uint64_t done)
{
	char line[LINE];

	progress_text(progress, time, done, line, sizeof(line));
	flockfile(stderr);
	progress_print(progress, line);
	fflush(stderr);
	drawn = 1;
	funlockfile(stderr);
}

void progress_block(struct progress *const *lines, const uint64_t *done, size_t count)
{
	int64_t time = progress_now();
	struct winsize window;
	size_t rows = 24, shown;
	char line[LINE];

	if (!count || !lines[0]->shown || time - lines[0]->last < INTERVAL)
		return;
	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_row)
		rows = window.ws_row;
	shown = count < rows || rows < 2 ? count : rows - 2;
	if (rows < 2)
		shown = 1;
	flockfile(stderr);
	progress_wipe();
	for (size_t i = 0; i < count; i++) {
		progress_text(lines[i], time, done[i], line, sizeof(line));
		if (i >= shown)
			continue;
		if (i)
			fputc('\n', stderr);
		progress_print(lines[i], line);
	}
	if (shown < count && rows >= 2)
		fprintf(stderr, "\n... and %zu more", count - shown);
	fflush(stderr);
	drawn = (int)shown + (shown < count && rows >= 2);
	funlockfile(stderr);
}

void progress_move(struct progress *progress, uint64_t done)
{
	int64_t time;

	if (!progress->shown)
		return;
	progress->done = done;
	if (progress->watched)
		return;
	time = progress_now();
	if (time - progress->last >= INTERVAL)
		progress_draw(progress, time, done);
}

static void *progress_thread(void *arg)
{
	struct progress *progress = arg;
	int64_t next = progress->start + PATIENCE;

	pthread_mutex_lock(&progress->lock);
	while (!progress->ended) {
		struct timespec until = { .tv_sec = next / 1000000000,
					  .tv_nsec = next % 1000000000 };

		pthread_cond_timedwait(&progress->end, &progress->lock, &until);
		if (progress->ended || progress_now() < next)
			continue;
		progress_draw(progress, progress_now(), progress->done);
		next = progress->last + INTERVAL;
	}
	pthread_mutex_unlock(&progress->lock);
	return NULL;
}

void progress_watch(struct progress *progress)
{
	pthread_condattr_t attributes;

	if (!progress->shown || pthread_condattr_init(&attributes))
		return;
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&progress->end, &attributes);
	pthread_condattr_destroy(&attributes);
	pthread_mutex_init(&progress->lock, NULL);
	progress->watched = true;
	if (!pthread_create(&progress->thread, NULL, progress_thread, progress))
		return;
	/* Without a thread there is no line. That is not an error. */
	progress->watched = progress->shown = false;
	pthread_mutex_destroy(&progress->lock);
	pthread_cond_destroy(&progress->end);
}

void progress_end(struct progress *progress)
{
	if (progress->watched) {
		pthread_mutex_lock(&progress->lock);
		progress->ended = true;
		pthread_cond_signal(&progress->end);
		pthread_mutex_unlock(&progress->lock);
		pthread_join(progress->thread, NULL);
		pthread_mutex_destroy(&progress->lock);
		pthread_cond_destroy(&progress->end);
		progress->watched = false;
	}
	progress_wipe();
	progress->shown = false;
}

void progress_wipe(void)
{
	int lines = atomic_exchange(&drawn, 0);

	if (!lines)
		return;
	if (lines > 1)
		fprintf(stderr, "\r\033[%dA\033[J", lines - 1);
	else
		fputs("\r\033[K", stderr);
	fflush(stderr);
}
