/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the wherry command in the world: wherry serve --dir, and wherry copy --recursive. */
#ifndef SIM_TOOLS_H
#define SIM_TOOLS_H

#include "command.h"

/* The command line of a copy. */
struct tools_copy {
	struct arguments arguments; /* the operands */
	bool resume, verify;
	const char *const *config; /* rows of --config, ended by NULL */
};

/* What the running thread's command has said last. */
const char *tools_text(void);

struct progress;
struct suggestion;

int tool_fail(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));
int tool_usage_error(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void tool_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
int tool_reach_error(int error);
void tool_suggest(struct suggestion *suggestion, const char *candidate);
const char *tool_argument(const struct arguments *arguments, const char *name);
const char *tool_argument_next(const struct arguments *arguments, const char *name, int *cursor);
int tool_check_choice(const struct arguments *arguments, const char *name);
int tool_parse_count(const char *number, const char *what, uint64_t least, uint64_t most,
		     uint64_t *out) __attribute__((noreturn));
int tool_parse_size(const char *size, const char *what, uint64_t *out) __attribute__((noreturn));
bool tool_read_size(const char *size, uint64_t *out);
void tool_progress_start(struct progress *progress, const char *label, uint64_t total, bool quiet);
void tool_progress_start_steps(struct progress *progress, const char *label, uint64_t total,
			       bool quiet);
void tool_progress_watch(struct progress *progress);
void tool_progress_move(struct progress *progress, uint64_t done);
void tool_progress_end(struct progress *progress);
/* Calls that only a command with output makes. */
void tool_end_print_routes(void);
void tool_end_add_routes(void);
void tool_output_new(void);
void tool_output_text(void);
void tool_output_print(void);

#endif
