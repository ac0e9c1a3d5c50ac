/* SPDX-License-Identifier: Apache-2.0 */
/* Man pages and the bash completion, made from the command tables. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include <wherry/wherry.h>

#include "program.h"

/* A fixed date, so that the same sources make the same pages. */
#define MANUAL_DATE "2026-11-20"

/* ---- man pages ------------------------------------------------------------------------------- */

/* Text for roff, escaped so that no character acts as a request or an escape. */
static void roff_escape(const char *text, size_t length)
{
	bool line_start = true;

	for (size_t i = 0; i < length; i++) {
		if (line_start && (text[i] == '.' || text[i] == '\''))
			fputs("\\&", stdout);
		line_start = text[i] == '\n';
		if (text[i] == '\\')
			fputs("\\e", stdout);
		else if (text[i] == '-')
			fputs("\\-", stdout);
		else
			putchar(text[i]);
	}
}

static void roff_text(const char *text)
{
	roff_escape(text, strlen(text));
}

/* An empty line starts a new paragraph; a lone newline is kept. */
static void roff_paragraphs(const char *text)
{
	while (*text) {
		size_t length = strcspn(text, "\n");

		roff_escape(text, length);
		putchar('\n');
		text += length;
		if (text[0] == '\n' && text[1] == '\n') {
			puts(".PP");
			text += 2;
		} else if (text[0] == '\n') {
			puts(".br");
			text++;
		}
	}
}

static void page_header(const char *name, const char *summary)
{
	char title[64] = "";
	size_t i;

	for (i = 0; name[i] && i + 1 < sizeof(title); i++)
		title[i] = (char)toupper((unsigned char)name[i]);
	title[i] = '\0';
	printf(".\\\" Made by wherry --generate; do not edit.\n.TH \"");
	roff_text(title);
	printf("\" 1 " MANUAL_DATE " \"wherry %d.%d.%d\" \"Wherry\"\n.SH NAME\n", WH_VERSION_MAJOR,
	       WH_VERSION_MINOR, WH_VERSION_PATCH);
	roff_text(name);
	fputs(" \\- ", stdout);
	roff_text(summary);
	putchar('\n');
}

static void page_option(char letter, const char *name, const char *value, const char *help)
{
	puts(".TP");
	if (letter)
		printf("\\fB\\-%c\\fR, ", letter);
	fputs("\\fB\\-\\-", stdout);
	roff_text(name);
	fputs("\\fR", stdout);
	if (value) {
		fputs(" \\fI", stdout);
		roff_text(value);
		fputs("\\fR", stdout);
	}
	putchar('\n');
	roff_text(help);
	putchar('\n');
}

static void page_exit_status(void)
{
	puts(".SH EXIT STATUS");
	for (const struct exit_meaning *row = exit_meanings; row->meaning; row++)
		printf(".TP\n%d\n%s\n", row->code, row->meaning);
}

static void page_command(const struct command *command)
{
	char name[64];

	snprintf(name, sizeof(name), "wherry-%s", command->name);
	page_header(name, command->summary);
	printf(".SH SYNOPSIS\n\\fBwherry %s\\fR [\\fIoptions\\fR]", command->name);
	if (*command->usage) {
		fputs(" \\fI", stdout);
		roff_text(command->usage);
		fputs("\\fR", stdout);
	}
	puts("\n.SH DESCRIPTION");
	roff_paragraphs(*command->details ? command->details : command->summary);
	puts(".SH OPTIONS\n"
	     "Options may stand anywhere on the line. A value is the next word or follows "
	     "\"=\".\n"
	     "Sizes are bytes, or a number with K, M, G or T (KiB, MiB ...), powers of "
	     "1024.");
	for (const struct command_option *option = command->options; option->name; option++)
		page_option(option->letter, option->name, option->argument, option->help);
	page_option('h', "help", NULL, "show this command's help");
	if (*command->examples) {
		fputs(".SH EXAMPLES\n.nf\n", stdout);
		roff_text(command->examples);
		if (command->examples[strlen(command->examples) - 1] != '\n')
			putchar('\n');
		puts(".fi");
	}
	page_exit_status();
	puts(".SH SEE ALSO\n.BR wherry (1)");
}

static void page_program(const struct command *const *commands)
{
	const struct wh_config_row *row;

	page_header("wherry", "move bytes between any two memories over the fastest path");
	puts(".SH SYNOPSIS\n\\fBwherry\\fR \\fICOMMAND\\fR [\\fIoptions\\fR] ...\n.br\n"
	     "\\fBwherry\\fR \\fBhelp\\fR \\fICOMMAND\\fR\n.br\n"
	     "\\fBwherry\\fR \\fB\\-\\-version\\fR | \\fB\\-\\-help\\fR\n"
	     ".SH DESCRIPTION\n"
	     "Wherry moves bytes between any two memories, on any two machines, over the fastest\n"
	     "path there is, and tells you which path that was.\n"
	     ".PP\n"
	     "Memory of another process is named by an address,\n"
	     "\\fBwherry://\\fIHOST\\fB:\\fIPORT\\fB/\\fIREGION\\fR[\\fB+\\fIOFFSET\\fR]: the "
	     "engine\n"
	     "that owns it, a region that the engine publishes, and where in the region to start.\n"
	     "An IPv6 address stands in brackets.\n"
	     ".SH COMMANDS");
	for (size_t i = 0; commands[i]; i++) {
		printf(".TP\n.BR wherry\\-%s (1)\n", commands[i]->name);
		roff_text(commands[i]->summary);
		putchar('\n');
	}
	page_exit_status();
	puts(".SH ENVIRONMENT\n"
	     "Each setting of the library has a variable; \\fB\\-\\-config\\fR overrides "
	     "it.\n"
	     "\\fBwherry config\\fR shows the values in effect.");
	for (size_t i = 0; (row = wh_config_row(i)); i++) {
		puts(".TP");
		printf("\\fB%s\\fR (%s, by default ", row->environment, row->type);
		roff_text(*row->fallback ? row->fallback : "empty");
		puts(")");
		roff_text(row->help);
		putchar('\n');
	}
	puts(".TP\n"
	     "\\fBWHERRY_IGNORE_UNKNOWN\\fR (bool, by default 0)\n"
	     "If 1, other variables that start with WHERRY_ are ignored. Otherwise the "
	     "command refuses\n"
	     "them (64), so that a misspelt one is noticed, and the library logs them. "
	     "For launchers that\n"
	     "set other variables, and for variables of newer versions.\n"
	     ".TP\n"
	     "\\fBNO_COLOR\\fR\n"
	     "If set and not empty, output has no colours.\n"
	     ".SH SEE ALSO");
	for (size_t i = 0; commands[i]; i++)
		printf(".BR wherry\\-%s (1)%s\n", commands[i]->name, commands[i + 1] ? "," : "");
}

/* ---- completion ------------------------------------------------------------------------------ */

static void completion_words(const char *words)
{
	printf("\t\t\twords='%s'\n", words);
}

/* What may follow an option that takes a value. */
static void completion_value(const struct command_option *option)
{
	const struct wh_config_row *row;

	printf("\t\t--%s", option->name);
	if (option->letter)
		printf(" | -%c", option->letter);
	puts(")");
	if (!option->complete) {
		puts("\t\t\treturn");
	} else if (strcmp(option->complete, "file") == 0) {
		puts("\t\t\tkind=files");
	} else if (strcmp(option->complete, "setting") == 0) {
		fputs("\t\t\tkind=settings words='", stdout);
		for (size_t i = 0; (row = wh_config_row(i)); i++)
			printf("%s%s=", i ? " " : "", row->name);
		puts("'");
	} else {
		completion_words(option->complete);
	}
	puts("\t\t\t;;");
}

static void completion_command(const struct command *command)
{
	printf("\t%s)\n\t\tcase $before in\n", command->name);
	for (const struct command_option *option = command->options; option->name; option++)
		if (option->argument)
			completion_value(option);
	fputs("\t\t*)\n\t\t\toptions='", stdout);
	for (const struct command_option *option = command->options; option->name; option++)
		printf("--%s ", option->name);
	puts("--help'");
	if (command->complete)
		completion_words(command->complete);
	else if (*command->usage)
		puts("\t\t\tkind=files");
	puts("\t\t\t;;\n\t\tesac\n\t\t;;");
}

static void completion_names(const struct command *const *commands)
{
	for (size_t i = 0; commands[i]; i++)
		printf("%s%s", i ? " " : "", commands[i]->name);
}

static void completion_print(const struct command *const *commands)
{
	puts("# bash completion for wherry. Made by wherry --generate; do not edit.\n"
	     "# shellcheck shell=bash\n"
	     "_wherry()\n"
	     "{\n"
	     "\tlocal word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}\n"
	     "\tlocal words='' options='' kind=words\n"
	     "\n"
	     "\tCOMPREPLY=()\n"
	     "\t# \"--option=value\" comes as three words.\n"
	     "\tif [ \"$word\" = = ]; then\n"
	     "\t\tword=''\n"
	     "\telif [ \"$before\" = = ] && [ \"$COMP_CWORD\" -gt 2 ]; then\n"
	     "\t\tbefore=${COMP_WORDS[COMP_CWORD - 2]}\n"
	     "\tfi\n"
	     "\tcase $COMP_CWORD:${COMP_WORDS[1]} in\n"
	     "\t1:*)");
	fputs("\t\twords='", stdout);
	completion_names(commands);
	puts(" help --help --version'\n\t\t;;\n\t2:help)");
	fputs("\t\twords='", stdout);
	completion_names(commands);
	puts("'\n\t\t;;\n\tesac\n\t[ \"$COMP_CWORD\" = 1 ] || case ${COMP_WORDS[1]} in");
	for (size_t i = 0; commands[i]; i++)
		completion_command(commands[i]);
	puts("\tesac\n"
	     "\tif [ -n \"$options\" ] && [[ $word == -* ]]; then\n"
	     "\t\twords=$options kind=words\n"
	     "\tfi\n"
	     "\tcase $kind in\n"
	     "\tfiles)\n"
	     "\t\tcompopt -o filenames 2>/dev/null\n"
	     "\t\tmapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
	     "\t\t;;\n"
	     "\tsettings)\n"
	     "\t\tcompopt -o nospace 2>/dev/null\n"
	     "\t\tmapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
	     "\t\t;;\n"
	     "\t*)\n"
	     "\t\tmapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
	     "\t\t;;\n"
	     "\tesac\n"
	     "}\n"
	     "complete -F _wherry wherry");
}

int generate(const char *what, const struct command *const *commands)
{
	const char *name = strncmp(what, "man:", 4) == 0 ? what + 4 : "";

	if (strcmp(what, "completion") == 0) {
		completion_print(commands);
		return EXIT_PASS;
	}
	if (strcmp(name, "wherry") == 0) {
		page_program(commands);
		return EXIT_PASS;
	}
	for (size_t i = 0; commands[i]; i++) {
		if (strcmp(name, commands[i]->name) == 0) {
			page_command(commands[i]);
			return EXIT_PASS;
		}
	}
	return usage_error("cannot make '%s'; write man:wherry, man:COMMAND or completion", what);
}
