/* SPDX-License-Identifier: Apache-2.0 */
/* Interfaces between main.c, command.c and generate.c; subcommands need command.h only. */
#ifndef TOOLS_PROGRAM_H
#define TOOLS_PROGRAM_H

#include <stdio.h>

#include "command.h"

/* Lines of the screen that help must fit. */
#define SCREEN_LINES 24
#define SCREEN_COLUMNS 80

/* Parse the words after the command's name into *out; free it with arguments_free() whatever is
 * returned. 0; PARSED_HELP if help was asked for; EXIT_USAGE after a line on stderr. */
#define PARSED_HELP 1
int arguments_parse(const struct command *command, int argc, char **argv, struct arguments *out);
void arguments_free(struct arguments *arguments);

/* Print a command's help: usage, summary, options, examples, and as many details as fit the
 * screen. */
void help_print(const struct command *command, FILE *out);

/* Print paragraphs ('\n' starts a line, "\n\n" a paragraph), wrapped at the screen's width, every
 * line indented by `indent`. The first line starts at `column`. */
void text_wrap(FILE *out, const char *text, int indent, int column);

/* As text_wrap(), for a screen of `width` columns. Breaks a word that is longer than a line. */
void text_fold(FILE *out, const char *text, int indent, int column, int columns);

/* Find the known word nearest to an unknown one. Start with { .word = word }. */
struct suggestion {
	const char *word;
	const char *best; /* NULL: no known word is close */
	size_t distance; /* of `best` */
};
void suggest(struct suggestion *suggestion, const char *candidate);

/* Write "man:wherry", "man:serve" ... or "completion" to stdout. Returns an exit code. */
int generate(const char *what, const struct command *const *commands);

#endif
