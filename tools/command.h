/* SPDX-License-Identifier: Apache-2.0 */
/* The wherry command: one table of subcommands and options. Parsing, help, man pages and bash
 * completion are made from it. */
#ifndef TOOLS_COMMAND_H
#define TOOLS_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exit codes. exit_meanings in command.c explains them for the man pages; exit_code_of() alone
 * decides which code an error gets. The README has the same table. */
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

/* The exit code's errno for a failed connection, negative. An unknown name (-ENOENT) becomes an
 * unknown host, so that both get the same exit code. */
int reach_error(int error);

/* The errno of "14", "-14" or "EFAULT", and its name; 0: it is none. */
int errno_parse(const char *text, const char **name);

#define COMMAND_OPTIONS_MAX 32

struct command_option {
	const char *name; /* "listen": --listen */
	char letter; /* 'l': -l; 0: none */
	const char *argument; /* "ADDR:PORT" in help; NULL: a flag */
	const char *help; /* one line, without a full stop */
	const char *complete; /* what completion offers: "file", "setting", or words such as "read
				 write"; NULL: nothing */
	bool many; /* may be given several times */
	bool rare; /* help shows its name only; the man page describes it */
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
	const char **all; /* (row, value) pairs of `many` options, in order; see argument_next() */
	int all_count;
};

/* The value of option `name`: "" for a flag that is given, NULL if the option is not given. */
const char *argument(const struct arguments *arguments, const char *name);

/* The values of a `many` option, one after the other: *cursor starts at 0; NULL at the end. */
const char *argument_next(const struct arguments *arguments, const char *name, int *cursor);

/* Check that the value of option `name` is one of the words that its table row completes with. 0
 * (also if the option is not given), or EXIT_USAGE after a usage error. */
int check_choice(const struct arguments *arguments, const char *name);

/* The same for the first operand of a command, whose words are in its `complete`. */
int check_subcommand(const struct arguments *arguments);

/* Parse "64KiB", "1MiB", "2GiB", "64K", "8": integers with an optional binary suffix. 0, or -1
 * after a usage error that names `what`. */
int parse_size(const char *text, const char *what, uint64_t *out);
int parse_count(const char *text, const char *what, uint64_t least, uint64_t most, uint64_t *out);

/* The same for the value of an option, which is not 0; *out stays as it is if the option is not
 * given. 0, or EXIT_USAGE after a usage error. */
int parse_size_option(const struct arguments *arguments, const char *name, uint64_t *out);

/* The value of an option, "10Gbit", "2.5Gbit/s", "1.25GB": decimal units, per second. *out is in
 * bytes per second, 1,000 to 10^15, and stays as it is if the option is not given. 0, or EXIT_USAGE
 * after a usage error. */
int parse_rate_option(const struct arguments *arguments, const char *name, uint64_t *out);

/* The same for a text, without a message. False: it is no such rate. */
bool read_rate(const char *text, uint64_t *out);

/* As parse_size(), without a message. False: `text` is not a size. */
bool read_size(const char *text, uint64_t *out);

/* Write 65536 as "64 KiB"; a number that is no exact multiple is written in bytes. */
void format_size(char *out, size_t size, uint64_t bytes);

/* Write a number with about four significant digits, or a share as a percentage; "-" for NAN. Both
 * return `out`. */
const char *format_number(char *out, size_t size, double value);
const char *format_percent(char *out, size_t size, double value);

/* Print one line on stderr, "wherry COMMAND: ...", and return the exit code for an errno of either
 * sign. usage_error() adds the usage in a second line and returns EXIT_USAGE. */
int fail(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));
int usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Print the line alone, for something that is not an error. */
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));

extern const struct command command_serve, command_copy, command_bench, command_explain, command_ls,
	command_config, command_registry, command_topo, command_doctor, command_top,
	command_exporter, command_window, command_key, command_nixl, command_plan, command_spread;

#endif
