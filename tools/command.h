/* SPDX-License-Identifier: Apache-2.0 */
/* The wherry command: one table of subcommands and options, from which parsing, help, man pages
 * and bash completion are made. */
#ifndef TOOLS_COMMAND_H
#define TOOLS_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exit codes. exit_meanings in command.c says what they mean, for man pages; exit_code_of() alone
 * decides which one an error gets. The README has the same table. */
enum {
	EXIT_PASS = 0,
	EXIT_WARNING = 1,
	EXIT_FAIL = 2,
	EXIT_USAGE = 64,
	EXIT_UNAVAILABLE = 69,
};

struct exit_meaning {
	int code;
	const char *meaning; /* NULL: the end */
};
extern const struct exit_meaning exit_meanings[];

/* The exit code for an errno of either sign. */
int exit_code_of(int error);

/* What an engine was not reached with, a negative errno: a name that nobody knows (-ENOENT) is no
 * more there than a host that is unknown, and gets the same exit code. */
int reach_error(int error);

#define COMMAND_OPTIONS_MAX 32

struct command_option {
	const char *name; /* "listen": --listen */
	char letter; /* 'l': -l; 0: none */
	const char *argument; /* "ADDR:PORT" in help; NULL: a flag */
	const char *help; /* one line, without a period */
	const char *complete; /* what completion offers: "file", "knob" or words "read write";
				 NULL: nothing */
	bool many; /* may be given several times */
	bool rare; /* help has its name only; the man page has it all */
};

struct arguments;

struct command {
	const char *name;
	const char *usage; /* its operands: "SRC DST"; "" if none */
	const char *complete; /* what completion offers for them: words; NULL: files */
	const char *summary; /* one line */
	const char *details; /* paragraphs for help and man page */
	const char *examples; /* lines of "command  # what it does" */
	const struct command_option *options; /* ended by a zero row */
	int least, most; /* how many operands */
	int (*run)(const struct arguments *arguments);
};

struct arguments {
	const struct command *command;
	/* by row; flags: "" when given; NULL: not given */
	const char *value[COMMAND_OPTIONS_MAX];
	const char **operands;
	int operand_count;
	const char **all; /* many-options: (row, value) pairs in order, see arguments_next() */
	int all_count;
};

/* The value of option `name`, or NULL if it was not given ("" for a flag that was). */
const char *argument(const struct arguments *arguments, const char *name);

/* The values of a `many` option one after the other: *cursor starts at 0; NULL at the end. */
const char *argument_next(const struct arguments *arguments, const char *name, int *cursor);

/* Is the value of option `name` one of the words that its row in the table completes with? 0 (also
 * if it was not given), or EXIT_USAGE after a usage error. */
int check_choice(const struct arguments *arguments, const char *name);

/* Parse "64KiB", "1MiB", "2GiB", "64K", "8": integers with or without a suffix, which is binary.
 * 0, or -1 after a usage error that names `what`. */
int parse_size(const char *text, const char *what, uint64_t *out);
int parse_count(const char *text, const char *what, uint64_t least, uint64_t most, uint64_t *out);

/* parse_size() without a word: is this a size? */
bool read_size(const char *text, uint64_t *out);

/* "65536" as "64 KiB"; exact multiples only, else bytes. */
void format_size(char *out, size_t size, uint64_t bytes);

/* A number in four significant digits or so, a share as a percentage; "-" for NAN. They return
 * `out`. */
const char *format_number(char *out, size_t size, double value);
const char *format_percent(char *out, size_t size, double value);

/* One line on stderr, "wherry COMMAND: ...", and the exit code that fits an errno of either sign
 * (or EXIT_USAGE from usage_error(), with a second line that shows the usage). */
int fail(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));
int usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The line alone, for what is worth telling without being an error. */
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));

extern const struct command command_serve, command_copy, command_bench, command_explain,
	command_config, command_registry, command_topo, command_doctor, command_top,
	command_exporter, command_window, command_key;

#endif
