/* SPDX-License-Identifier: Apache-2.0 */
/* Help on the screen, made from the tables. */
#include <stdlib.h>
#include <string.h>

#include "program.h"

#define OPTION_COLUMN 28

void text_wrap(FILE *out, const char *text, int indent, int column)
{
	text_fold(out, text, indent, column, SCREEN_COLUMNS);
}

void text_fold(FILE *out, const char *text, int indent, int column, int columns)
{
	int most = columns - 1 - indent > 1 ? columns - 1 - indent : 1;

	while (*text) {
		int word = (int)strcspn(text, " \n");

		word = word < most ? word : most;
		while (word > 1 && ((unsigned char)text[word] & 0xc0) == 0x80)
			word--;
		if (column > indent && column + 1 + word > columns - 1) {
			fputc('\n', out);
			column = 0;
		}
		if (word) {
			int space = column > indent ? 1 : indent - column;

			fprintf(out, "%*s%.*s", space, "", word, text);
			column += space + word;
		}
		text += word;
		while (*text == ' ')
			text++;
		if (*text == '\n') {
			fputc('\n', out);
			column = 0;
			text++;
		}
	}
	fputc('\n', out);
}

static void print_option(FILE *out, const struct command_option *option)
{
	char left[80];
	int used;

	used = snprintf(left, sizeof(left), "  %c%c%s--%s%s%s", option->letter ? '-' : ' ',
			option->letter ? option->letter : ' ', option->letter ? ", " : "  ",
			option->name, option->argument ? " " : "",
			option->argument ? option->argument : "");
	fputs(left, out);
	if (used >= OPTION_COLUMN) {
		fputs("  ", out);
		used += 2;
	}
	text_wrap(out, option->help, OPTION_COLUMN, used);
}

/* Options without room on the screen: their names only. */
static void print_rare(FILE *out, const struct command *command)
{
	char text[512] = "man wherry-";
	size_t used;

	used = strlen(strncat(text, command->name, 64));
	for (const struct command_option *option = command->options; option->name; option++)
		if (option->rare && used < sizeof(text))
			used += (size_t)snprintf(
				text + used, sizeof(text) - used, "%s --%s",
				strchr(text, ':') ? "" : " has also:", option->name);
	if (!strchr(text, ':'))
		return;
	fputs("  ", out);
	text_wrap(out, text, 6, 2);
}

/* A command's whole help, with the first `paragraphs` of its details. */
static void help_print_paragraphs(FILE *out, const struct command *command, int paragraphs)
{
	const char *text = command->details, *end;

	fprintf(out, "Usage: wherry %s [options]%s%s\n", command->name, *command->usage ? " " : "",
		command->usage);
	text_wrap(out, command->summary, 0, 0);
	for (; paragraphs && *text; paragraphs--) {
		char *paragraph;

		end = strstr(text, "\n\n");
		paragraph = strndup(text, end ? (size_t)(end - text) : strlen(text));
		if (!paragraph)
			return;
		fputc('\n', out);
		text_wrap(out, paragraph, 0, 0);
		free(paragraph);
		text = end ? end + 2 : "";
	}
	fputs("\nOptions:\n", out);
	for (const struct command_option *option = command->options; option->name; option++)
		if (!option->rare)
			print_option(out, option);
	print_rare(out, command);
	if (!*command->examples)
		return;
	fputs("\nExamples:\n", out);
	for (text = command->examples; *text; text = *end ? end + 1 : end) {
		end = text + strcspn(text, "\n");
		if (end > text)
			fprintf(out, "  %.*s\n", (int)(end - text), text);
	}
}

static int count_lines(const struct command *command, int paragraphs)
{
	char *text = NULL;
	size_t length = 0;
	FILE *memory = open_memstream(&text, &length);
	int lines = 0;

	if (!memory)
		return SCREEN_LINES + 1;
	help_print_paragraphs(memory, command, paragraphs);
	fclose(memory);
	for (size_t i = 0; i < length; i++)
		lines += text[i] == '\n';
	free(text);
	return lines;
}

void help_print(const struct command *command, FILE *out)
{
	int paragraphs = 1;

	for (const char *at = command->details; (at = strstr(at, "\n\n")); at += 2)
		paragraphs++;
	/* One line of the screen is left for the prompt. */
	while (paragraphs && count_lines(command, paragraphs) > SCREEN_LINES - 1)
		paragraphs--;
	help_print_paragraphs(out, command, paragraphs);
}
