/* SPDX-License-Identifier: Apache-2.0 */
/* The wherry command: finds the subcommand, checks the environment's variables, runs it. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <wherry/wherry.h>

#include "program.h"
#include "util/config.h"
#include "util/error.h"

static const struct command *const commands[] = {
	&command_serve,
	&command_copy,
	&command_spread,
	&command_ls,
	&command_bench,
	&command_explain,
	&command_registry,
	&command_topo,
	&command_doctor,
	&command_top,
	&command_exporter,
	&command_plan,
	&command_window,
	&command_nixl,
	&command_key,
	&command_config,
	NULL,
};

static void print_program(FILE *out)
{
	fputs("Usage: wherry COMMAND [options] ...\n"
	      "Moves bytes between any two memories over the fastest path, and says which "
	      "one.\n"
	      "Commands:\n",
	      out);
	for (size_t i = 0; commands[i]; i++)
		fprintf(out, "  %-9s %s\n", commands[i]->name, commands[i]->summary);
	fputs("\n"
	      "wherry help COMMAND explains a command; wherry --version shows the version.\n"
	      "Example: wherry serve --memory host:1GiB    # prints wherry://127.0.0.1:PORT\n"
	      "         wherry copy FILE wherry://127.0.0.1:7000/host # a file into its memory\n"
	      "Exit codes: 0 done; 1 a warning; 2 failed; 64 usage; 69 not available.\n",
	      out);
}

static const struct command *command_find(const char *name)
{
	for (size_t i = 0; commands[i]; i++)
		if (strcmp(commands[i]->name, name) == 0)
			return commands[i];
	return NULL;
}

static int no_command(const char *word)
{
	struct suggestion suggestion = { .word = word };
	bool option = word[0] == '-';

	if (option) {
		suggestion.word = word + strspn(word, "-");
		suggest(&suggestion, "help");
		suggest(&suggestion, "version");
	}
	for (size_t i = 0; commands[i] && !option; i++)
		suggest(&suggestion, commands[i]->name);
	if (!option)
		suggest(&suggestion, "help");
	if (suggestion.best)
		return usage_error("no %s '%s'; did you mean 'wherry %s%s'?",
				   option ? "option" : "command", word, option ? "--" : "",
				   suggestion.best);
	return usage_error("no %s '%s'", option ? "option" : "command", word);
}

static int command_help(const char *name)
{
	const struct command *command = command_find(name);

	if (!command)
		return no_command(name);
	help_print(command, stdout);
	return EXIT_PASS;
}

/* A misspelt variable must not be ignored: with WHERRY_TSL=1 the user would get plaintext. */
static int check_environment(void)
{
	const size_t prefix = strlen("WHERRY_");
	struct suggestion suggestion = { 0 };
	const struct wh_config_row *row;
	char name[WH_CONFIG_VARIABLE];
	size_t cursor = 0;
	int found = wh_config_unknown(&cursor, name);

	if (found < 0)
		return usage_error("%s", wh_fail_text());
	if (!found)
		return 0;
	for (char *c = name; *c; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
	suggestion.word = name + prefix;
	for (size_t i = 0; (row = wh_config_row(i)); i++)
		suggest(&suggestion, row->environment + prefix);
	if (suggestion.best)
		return usage_error("no variable %s; did you mean WHERRY_%s? " WH_CONFIG_IGNORE
				   "=1 ignores such",
				   name, suggestion.best);
	return usage_error("no variable %s; wherry config lists them, " WH_CONFIG_IGNORE
			   "=1 ignores such",
			   name);
}

static int command_run(const struct command *command, int argc, char **argv)
{
	struct arguments arguments;
	int code = arguments_parse(command, argc, argv, &arguments);

	if (code == PARSED_HELP) {
		help_print(command, stdout);
		code = EXIT_PASS;
	} else {
		if (!code)
			code = check_environment();
		if (!code)
			code = command->run(&arguments);
	}
	arguments_free(&arguments);
	return code;
}

static int command_dispatch(int argc, char **argv)
{
	const char *word = argc > 1 ? argv[1] : NULL;
	const struct command *command;

	if (!word) {
		print_program(stderr);
		return EXIT_USAGE;
	}
	command = command_find(word);
	if (command)
		return command_run(command, argc - 2, argv + 2);
	if (strcmp(word, "help") == 0 && argc == 3)
		return command_help(argv[2]);
	if (strcmp(word, "--generate") == 0 && argc == 3)
		return generate(argv[2], commands);
	if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
		if (argc > 2)
			return usage_error("'%s' is one operand too many after %s", argv[argc - 1],
					   word);
		print_program(stdout);
		return EXIT_PASS;
	}
	if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0) {
		if (argc > 2)
			return usage_error("'%s' is one operand too many after %s", argv[argc - 1],
					   word);
		printf("wherry %d.%d.%d (libwherry %s)\n", WH_VERSION_MAJOR, WH_VERSION_MINOR,
		       WH_VERSION_PATCH, wh_version());
		return EXIT_PASS;
	}
	return no_command(word);
}

int main(int argc, char **argv)
{
	int code;

	/* Writing past the file size limit must fail with an error, not end the process. */
	signal(SIGXFSZ, SIG_IGN);
	code = command_dispatch(argc, argv);
	if (fflush(stdout) || ferror(stdout)) {
		int error = errno;

		code = fail(error, "cannot write to standard output: %s", strerror(error));
	}
	return code;
}
