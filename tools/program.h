/* SPDX-License-Identifier: Apache-2.0 */
/* What main.c, command.c and generate.c share; subcommands need command.h only. */
#ifndef TOOLS_PROGRAM_H
#define TOOLS_PROGRAM_H

#include <stdio.h>

#include "command.h"

/* The room that help is made for. */
#define SCREEN_LINES 24
#define SCREEN_COLUMNS 80

/* Parse the words behind the command's name. Fills *out; free it with arguments_free(), whatever
 * is returned. 0; PARSED_HELP if help was asked for; EXIT_USAGE after a line on stderr. */
#define PARSED_HELP 1
int arguments_parse(const struct command *command, int argc, char **argv, struct arguments *out);
void arguments_free(struct arguments *arguments);

/* A command's help: its usage, summary, options and examples, and of its details as much as fits
 * on the screen. */
void help_print(const struct command *command, FILE *out);

/* Text in paragraphs (a line of its own where the text has '\n', an empty line at "\n\n"), wrapped
 * at the screen's width, every line behind `indent` spaces. `column` says how far the first line
 * has got already. */
void text_wrap(FILE *out, const char *text, int indent, int column);

/* The same for a screen of so many columns. A word that is longer than a line is broken. */
void text_fold(FILE *out, const char *text, int indent, int column, int columns);

/* Which of several known words is most like one that is not known? Start with { .word = word }. */
struct suggestion {
	const char *word;
	const char *best; /* NULL: none is like it */
	size_t distance; /* of best */
};
void suggest(struct suggestion *suggestion, const char *candidate);

/* Write "man:wherry", "man:serve" ... or "completion" to stdout. An exit code. */
int generate(const char *what, const struct command *const *commands);

#endif
