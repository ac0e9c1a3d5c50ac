/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of wherry window share: the command line, the fixture of a test or measurement,
 * tests, and measuring. */
#ifndef TOOLS_WINDOW_WINDOW_H
#define TOOLS_WINDOW_WINDOW_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include <wherry/wherry.h>

#include "command.h"
#include "gpu.h"
#include "memory.h"
#include "progress.h"

#define WINDOW_MEMORIES 8
#define WINDOW_THREADS 64
#define WINDOW_TEXT 512

/* The command line. */
struct window_choices {
	const struct arguments *arguments;
	const char *backend; /* NULL: the setting `window` */
	const char *only; /* check: only this test; NULL: all */
	uint64_t size; /* bytes; 0: the default of the subcommand */
	unsigned rounds; /* 0: the default of the subcommand */
	unsigned threads;
	bool memories_given; /* else both kinds are tried, and one may be missing */
	struct memory memories[WINDOW_MEMORIES];
	size_t memory_count;
	FILE *table;
	json_t *results, *skipped;
};

/* ---- the fixture (memory.c) ------------------------------------------------------- */

/* An engine, GPU memory that it allocated, and the CUDA driver for a second view of that memory. */
struct window_fixture {
	const struct window_choices *choices;
	const struct memory *memory;
	struct wh_engine *engine;
	struct gpu *gpu;
	int device; /* the GPU's number */
	unsigned char *address; /* of the GPU: the CPU cannot use it; NULL: freed */
	uint64_t length;
};

/* 0, or a negative errno with a text. Call window_fixture_close() in any case. */
int window_fixture_open(struct window_fixture *fixture, const struct window_choices *choices,
			const struct memory *memory, uint64_t length, char text[WINDOW_TEXT]);
/* 0, or a negative errno with a text. */
int window_fixture_close(struct window_fixture *fixture, char text[WINDOW_TEXT]);

/* Open a window on part of the memory, by the chosen backend. */
int window_fixture_window(const struct window_fixture *fixture, uint64_t offset, uint64_t length,
			  struct wh_window **out);

/* "rm, write-combining, avx512/avx512": the backend, the mapping, how it writes and reads. */
void window_describe(const struct wh_window_info *info, char *out, size_t size);
const char *window_mapping_name(uint32_t mapping);

/* Report what could not be opened. An exit code: missing, or failed. */
int window_fail(const struct memory *memory, int error, const char *text);

/* ---- check (check.c) ------------------------------------------------------------------ */

enum window_outcome { WINDOW_PASSED, WINDOW_FAILED, WINDOW_WAIVED };

/* A running test. It fails with its first window_expect() that does not hold. */
struct window_try {
	struct window_fixture fixture;
	enum window_outcome outcome;
	char text[WINDOW_TEXT]; /* why it failed or was waived */
};

/* Fail the test with this text unless `good`. Returns `good`. */
bool window_expect(struct window_try *try, bool good, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* The same for a call of the library that returned `error`; `what` names the call. */
bool window_called(struct window_try *try, int error, const char *what);
/* The test does not apply here, and why. */
void window_waive(struct window_try *try, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

struct window_case {
	const char *name;
	const char *what; /* the statement that the test proves */
	void (*run)(struct window_try *try);
};

/* Each table ends with a zero row (cases.c, process.c). */
extern const struct window_case window_cases[], window_process_cases[];

/* Steps of several tests. */
bool window_open_in(struct window_try *try, uint64_t offset, uint64_t length,
		    struct wh_window **out);
bool window_close_in(struct window_try *try, struct wh_window *window);
struct wh_window_info window_info_of(struct window_try *try, struct wh_window *window);
/* Write and read [at, at+length) of a window that starts at `offset` of the memory, and compare
 * with what the driver sees. */
bool window_round_trip(struct window_try *try, struct wh_window *window, uint64_t offset,
		       uint64_t at, uint64_t length);
/* Can the CPU load the byte? The kernel tries it for us, so a fault is no crash. */
bool window_reachable(const void *address);
/* A new number for a pattern: never the same twice. */
uint64_t window_fresh(void);

/* ---- measuring (measure.c) ------------------------------------------------------------ */

/* A fixture with a window on all of its memory and pinned host memory, in the GPU's context. */
struct window_scene {
	struct window_fixture fixture;
	struct wh_window *window;
	struct wh_window_info info;
	uint64_t length;
	unsigned char *host; /* pinned; the subcommand chooses its size */
	bool entered;
	struct progress progress; /* in rows */
	char label[96]; /* of the progress */
	uint64_t rows;
	char text[WINDOW_TEXT]; /* why run() failed, unless the library has the text */
};

/* Call run() with a scene for each memory; it returns 0 or a negative errno. A kind of memory that
 * was not requested and cannot be allocated is skipped. An exit code. */
int window_each_memory(struct window_choices *choices, uint64_t length, uint64_t on_host,
		       int (*run)(struct window_scene *scene));
/* Show progress on the terminal, in rows. Write a table one line at a time, after the line's
 * window_row(), which wipes the progress. */
void window_begin(struct window_scene *scene, uint64_t rows);
/* Name what is being measured, in the progress. */
void window_doing(struct window_scene *scene, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* A new row of the results, which own it. */
json_t *window_row(struct window_scene *scene, const char *what);
/* Add a number to a row; NAN becomes null. */
void window_number(json_t *row, const char *key, double value);
/* Print a cell of the table; NAN becomes "-". */
void window_cell(FILE *table, double value, int width, int digits);
#define WINDOW_SHAPES 4
/* Measure recv() into the window and into pinned memory (receive.c). */
int window_receive(struct window_scene *scene);

/* ---- subcommands: exit codes ----------------------------------------------------------------- */

int window_check(struct window_choices *choices);
int window_bandwidth(struct window_choices *choices);
int window_latency(struct window_choices *choices);
int window_api(struct window_choices *choices);
int window_pingpong(struct window_choices *choices);

#endif
