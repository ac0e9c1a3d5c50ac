/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of wherry window: what is checked and measured, and on what. */
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

/* What the command line says. */
struct window_choices {
	const struct arguments *arguments;
	const char *backend; /* NULL: the knob `window` */
	const char *only; /* check: this test alone; NULL: all */
	uint64_t size; /* bytes; 0: as each subcommand thinks best */
	unsigned rounds; /* 0: likewise */
	unsigned threads;
	bool memories_given; /* or else both kinds, of which one may not be there */
	struct memory memories[WINDOW_MEMORIES];
	size_t memory_count;
	FILE *table;
	json_t *results, *skipped;
};

/* ---- where it happens (memory.c) ------------------------------------------------------- */

/* An engine, memory of a GPU that it gave, and the driver to look at it by another way. */
struct window_place {
	const struct window_choices *choices;
	const struct memory *memory;
	struct wh_engine *engine;
	struct gpu *gpu;
	int device; /* the GPU's number */
	unsigned char *address; /* the CPU faults on it; NULL: it was freed */
	uint64_t length;
};

/* 0 or a negative errno with a text. What is there is closed in any case. */
int window_place_open(struct window_place *place, const struct window_choices *choices,
		      const struct memory *memory, uint64_t length, char text[WINDOW_TEXT]);
/* 0, or as above. */
int window_place_close(struct window_place *place, char text[WINDOW_TEXT]);

/* wh_window_open() of a part of the memory, by the backend that was chosen. */
int window_place_window(const struct window_place *place, uint64_t offset, uint64_t length,
			struct wh_window **out);

/* "rm, write-combining, avx512/avx512": by whom and how. */
void window_describe(const struct wh_window_info *info, char *out, size_t size);
const char *window_mapping_name(uint32_t mapping);

/* The exit code for what could not be opened: it is not there, or it failed. */
int window_fail(const struct memory *memory, int error, const char *text);

/* ---- check (check.c) ------------------------------------------------------------------ */

enum window_outcome { WINDOW_PASSED, WINDOW_FAILED, WINDOW_WAIVED };

/* A test that runs. It has failed from its first window_expect() on that did not hold. */
struct window_try {
	struct window_place place;
	enum window_outcome outcome;
	char text[WINDOW_TEXT]; /* why it failed or was waived */
};

/* Does it hold? The text says what does not. */
bool window_expect(struct window_try *try, bool good, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* The same of a call of the library that returned `error`; `what` names it. */
bool window_called(struct window_try *try, int error, const char *what);
/* The test cannot be done here, and why. */
void window_waive(struct window_try *try, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

struct window_case {
	const char *name;
	const char *what; /* is true when it has passed */
	void (*run)(struct window_try *try);
};

/* Tables, ended by a zero row (cases.c, process.c). */
extern const struct window_case window_cases[], window_process_cases[];

/* What more than one test does. */
bool window_open_in(struct window_try *try, uint64_t offset, uint64_t length,
		    struct wh_window **out);
bool window_close_in(struct window_try *try, struct wh_window *window);
struct wh_window_info window_info_of(struct window_try *try, struct wh_window *window);
/* Both directions through [at, at+length) of the window that starts at `offset` of the memory, seen
 * by the driver. */
bool window_round_trip(struct window_try *try, struct wh_window *window, uint64_t offset,
		       uint64_t at, uint64_t length);
/* Can the CPU load the byte? Asked of the kernel, which does it in our place: no fault. */
bool window_reachable(const void *address);
/* A number that no call before has given, for patterns. */
uint64_t window_fresh(void);

/* ---- measuring (measure.c) ------------------------------------------------------------ */

/* A place with a window onto all of it and pinned memory of the host, in the GPU's context. */
struct window_scene {
	struct window_place place;
	struct wh_window *window;
	struct wh_window_info info;
	uint64_t length;
	unsigned char *host; /* as many bytes as the subcommand wants */
	bool entered;
	struct progress progress; /* in rows */
	char label[96]; /* of it */
	uint64_t rows;
	char text[WINDOW_TEXT]; /* why run() failed, if it was not the library */
};

/* Do it with each memory: run() returns 0 or a negative errno. Memory that nobody asked for and
 * that is not to be had is skipped. An exit code. */
int window_each_memory(struct window_choices *choices, uint64_t length, uint64_t on_host,
		       int (*run)(struct window_scene *scene));
/* Show on the terminal how far it is, of so many rows. Tables are written a line at a time, after
 * the line's window_row(), which wipes the progress away. */
void window_begin(struct window_scene *scene, uint64_t rows);
/* What is being measured, before and while it is. */
void window_doing(struct window_scene *scene, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* A new row of the results, which stays theirs. */
json_t *window_row(struct window_scene *scene, const char *what);
/* null if it is not a number. */
void window_number(json_t *row, const char *key, double value);
/* A column of the table; "-" if it is not a number. */
void window_cell(FILE *table, double value, int width, int digits);
#define WINDOW_SHAPES 4
/* recv() into the window, beside recv() into the host's memory (receive.c). */
int window_receive(struct window_scene *scene);

/* ---- subcommands: exit codes ----------------------------------------------------------------- */

int window_check(struct window_choices *choices);
int window_bandwidth(struct window_choices *choices);
int window_latency(struct window_choices *choices);
int window_api(struct window_choices *choices);
int window_pingpong(struct window_choices *choices);

#endif
