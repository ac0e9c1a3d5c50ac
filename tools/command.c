/* SPDX-License-Identifier: Apache-2.0 */
/* The command line: parsing against a command's option table, usage errors with suggestions, exit
 * codes, sizes and numbers. */
#include "command.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <wherry/engine.h>
#include <wherry/error.h>

#include "program.h"
#include "progress.h"
#include "util/text.h"

/* The running command, for messages. A process runs one. */
static const struct command *current;

/* ---- messages -------------------------------------------------------------------------------- */

static void message_print(const char *format, va_list list)
{
	char line[1024];

	vsnprintf(line, sizeof(line), format, list);
	wh_text_clean(line);
	fflush(stdout);
	flockfile(stderr);
	progress_wipe();
	if (current)
		fprintf(stderr, "wherry %s: %s\n", current->name, line);
	else
		fprintf(stderr, "wherry: %s\n", line);
	funlockfile(stderr);
}

int exit_code_of(int error)
{
	switch (error < 0 ? -error : error) {
	case 0:
		return EXIT_PASS;
	/* Nobody answers there with our protocol, or the peer has gone. */
	case EADDRNOTAVAIL:
	case EAFNOSUPPORT:
	case ECONNABORTED:
	case ECONNREFUSED:
	case ECONNRESET:
	case EHOSTDOWN:
	case EHOSTUNREACH:
	case ENETDOWN:
	case ENETUNREACH:
	case EPROTO:
	case EPROTONOSUPPORT:
	case ESTALE:
	case ETIMEDOUT:
	/* This machine lacks a device, a library, a route or memory. */
	case ELIBACC:
	case ENODEV:
	case ENOMEM:
	case ENXIO:
	case EOPNOTSUPP:
		return EXIT_UNAVAILABLE;
	/* The other side refused, or something went wrong. */
	default:
		return EXIT_FAIL;
	}
}

const struct exit_meaning exit_meanings[] = {
	{ EXIT_PASS, "Done." },
	{ EXIT_WARNING, "Done, with a warning on standard error." },
	{ EXIT_FAIL, "Failed: the other side refused (another key or password, a right that is "
		     "not granted, no such region, a name that is taken), a file could not be "
		     "read or written, or bytes are wrong." },
	{ EXIT_USAGE, "The command line, a setting or a variable is wrong; nothing was done." },
	{ EXIT_UNAVAILABLE,
	  "Not available: nobody answers there (an unknown host or name, a refused "
	  "connection, no answer in time), the other side speaks another protocol (not "
	  "Wherry, another version, TLS on one side only) or has gone; or this machine "
	  "lacks the device, the library (OpenSSL), the route or the memory." },
	{ 0, NULL },
};

int reach_error(int error)
{
	return error == -ENOENT ? -EHOSTUNREACH : error;
}

int errno_parse(const char *text, const char **name)
{
	static const char unknown[] = "UNKNOWN";
	char *end;
	long number = strtol(text, &end, 10);

	for (int error = 1; error < 256; error++) {
		*name = wh_status_name(-error);
		if (strcmp(*name, unknown) != 0 &&
		    (end > text && !*end ? labs(number) == error : !strcasecmp(*name, text)))
			return error;
	}
	return 0;
}

int fail(int error, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	message_print(format, list);
	va_end(list);
	return exit_code_of(error);
}

void note(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	message_print(format, list);
	va_end(list);
}

int usage_error(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	message_print(format, list);
	va_end(list);
	if (current)
		fprintf(stderr, "Usage: wherry %s [options]%s%s   (wherry help %s shows more)\n",
			current->name, *current->usage ? " " : "", current->usage, current->name);
	else
		fprintf(stderr, "Usage: wherry COMMAND ...   (wherry --help lists the commands)\n");
	return EXIT_USAGE;
}

/* ---- the nearest known word ------------------------------------------------------------------ */

#define WORD_MAX 32

static size_t size_least(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* How many letters to insert, drop, change or swap to turn one word into the other. SIZE_MAX: a
 * word is too long to be a misspelling. */
static size_t word_distance(const char *a, const char *b)
{
	size_t rows[3][WORD_MAX + 1], m = strlen(a), n = strlen(b);

	if (m > WORD_MAX || n > WORD_MAX)
		return SIZE_MAX;
	for (size_t j = 0; j <= n; j++)
		rows[0][j] = j;
	for (size_t i = 1; i <= m; i++) {
		size_t *row = rows[i % 3], *up = rows[(i + 2) % 3], *swap = rows[(i + 1) % 3];

		row[0] = i;
		for (size_t j = 1; j <= n; j++) {
			row[j] = size_least(up[j - 1] + (a[i - 1] != b[j - 1]),
					    size_least(up[j], row[j - 1]) + 1);
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				row[j] = size_least(row[j], swap[j - 2] + 1);
		}
	}
	return rows[m % 3][n];
}

void suggest(struct suggestion *suggestion, const char *candidate)
{
	size_t length = strlen(suggestion->word), away = word_distance(suggestion->word, candidate);

	/* A prefix counts as one letter away: "conn" means "connections". */
	if (length >= 2 && strncmp(candidate, suggestion->word, length) == 0)
		away = 1;
	if (away > (length < 3 ? 1 : length / 3 + 1))
		return;
	if (!suggestion->best || away < suggestion->distance) {
		suggestion->best = candidate;
		suggestion->distance = away;
	}
}

/* ---- parsing --------------------------------------------------------------------------------- */

/* The parser's position in the command line. */
struct parser {
	struct arguments *out;
	int count, at;
	char **words;
};

static int row_by_name(const struct command *command, const char *name, size_t length)
{
	for (int row = 0; command->options[row].name; row++)
		if (strlen(command->options[row].name) == length &&
		    memcmp(command->options[row].name, name, length) == 0)
			return row;
	return -1;
}

static int row_by_letter(const struct command *command, char letter)
{
	for (int row = 0; command->options[row].name; row++)
		if (command->options[row].letter == letter)
			return row;
	return -1;
}

/* An option of the command is hardly meant as the value of the option before it. */
static bool is_option(const struct command *command, const char *word)
{
	return word[0] == '-' && word[1] == '-' && word[2] &&
	       row_by_name(command, word + 2, strcspn(word + 2, "=")) >= 0;
}

static int unknown_option(const struct command *command, const char *word)
{
	struct suggestion suggestion = { 0 };
	char name[WORD_MAX + 1];

	snprintf(name, sizeof(name), "%.*s", (int)strcspn(word + 2, "="), word + 2);
	suggestion.word = name;
	suggest(&suggestion, "help");
	for (const struct command_option *option = command->options; option->name; option++)
		suggest(&suggestion, option->name);
	if (suggestion.best)
		return usage_error("no option --%s; did you mean --%s?", name, suggestion.best);
	return usage_error("no option --%s", name);
}

/* Everybody who lists processes can read a command line: refuse a secret there. */
static int refuse_secret(const char *option, const char *value)
{
	size_t length = strcspn(value, "=");
	const struct wh_config_row *setting;

	if (strcmp(option, "mooncake-metadata") == 0 && value[0] != '@' && strchr(value, '@'))
		return usage_error(
			"--mooncake-metadata: the URL has a user and a password, which everybody "
			"who "
			"lists processes can read; write the URL into a file of mode 0600 and use "
			"--mooncake-metadata @FILE");
	if (strcmp(option, "config") != 0 || !value[length])
		return 0;
	for (size_t i = 0; (setting = wh_config_row(i)); i++)
		if (strlen(setting->name) == length && memcmp(setting->name, value, length) == 0)
			break;
	if (setting && strcmp(setting->type, "secret") == 0 && value[length + 1])
		return usage_error(
			"--config %s: everybody who lists processes can read the key on a command "
			"line; write it into a file of mode 0600 and use --config keyfile=FILE, or "
			"set %s",
			setting->name, setting->environment);
	if (setting && strcmp(setting->name, "registry") == 0 && strchr(value, '@'))
		return usage_error(
			"--config registry: the URL has a user and a password, which everybody who "
			"lists processes can read; set %s instead",
			setting->environment);
	return 0;
}

static int option_keep(struct parser *parser, int row, const char *value)
{
	const struct command_option *option = &parser->out->command->options[row];
	struct arguments *out = parser->out;
	int error = refuse_secret(option->name, value);

	if (error)
		return error;
	if (!option->many && option->argument && out->value[row])
		return usage_error("--%s is given twice: %s and %s", option->name, out->value[row],
				   value);
	out->value[row] = value;
	if (option->many) {
		const char **pair = out->all + (size_t)out->all_count++ * 2;

		pair[0] = option->name;
		pair[1] = value;
	}
	return 0;
}

/* The next word is the value of the option. */
static int option_keep_next(struct parser *parser, int row)
{
	const struct command_option *option = &parser->out->command->options[row];
	const char *value;

	if (parser->at == parser->count)
		return usage_error("--%s needs a value: --%s %s", option->name, option->name,
				   option->argument);
	value = parser->words[parser->at++];
	if (is_option(parser->out->command, value))
		return usage_error("--%s needs a value, not another option: --%s %s", option->name,
				   option->name, option->argument);
	return option_keep(parser, row, value);
}

static int parse_long(struct parser *parser, const char *word)
{
	const struct command *command = parser->out->command;
	size_t length = strcspn(word + 2, "=");
	int row = row_by_name(command, word + 2, length);
	const char *value = word[2 + length] ? word + 2 + length + 1 : NULL;

	if (row < 0 && strcmp(word, "--help") == 0)
		return PARSED_HELP;
	if (row < 0)
		return unknown_option(command, word);
	if (!command->options[row].argument) {
		if (value)
			return usage_error("--%s takes no value", command->options[row].name);
		return option_keep(parser, row, "");
	}
	return value ? option_keep(parser, row, value) : option_keep_next(parser, row);
}

/* "-q", "-qv", "-lVALUE", "-l VALUE". */
static int parse_letters(struct parser *parser, const char *word)
{
	const struct command *command = parser->out->command;
	int row, error;

	for (const char *at = word + 1; *at; at++) {
		row = row_by_letter(command, *at);
		if (row < 0 && *at == 'h')
			return PARSED_HELP;
		if (row < 0)
			return usage_error("no option -%c", *at);
		if (command->options[row].argument)
			return at[1] ? option_keep(parser, row, at + 1) :
				       option_keep_next(parser, row);
		error = option_keep(parser, row, "");
		if (error)
			return error;
	}
	return 0;
}

static int check_operands(const struct arguments *arguments)
{
	const struct command *command = arguments->command;

	if (arguments->operand_count > command->most) {
		const char *extra = arguments->operands[command->most];

		if (!*command->usage)
			return usage_error("takes no operands, but '%s' is given", extra);
		return usage_error("'%s' is one operand too many: write %s", extra, command->usage);
	}
	if (arguments->operand_count < command->least)
		return usage_error("operands are missing: write %s (%s given)", command->usage,
				   arguments->operand_count ? "only one is" : "none is");
	return 0;
}

int arguments_parse(const struct command *command, int argc, char **argv, struct arguments *out)
{
	struct parser parser = { .out = out, .count = argc, .words = argv };
	bool options = true;
	int error = 0;

	current = command;
	*out = (struct arguments){ .command = command };
	out->operands = calloc((size_t)argc + 1, sizeof(*out->operands));
	out->all = calloc(2 * ((size_t)argc + 1), sizeof(*out->all));
	if (!out->operands || !out->all)
		return fail(ENOMEM, "out of memory");
	/* Help wins over everything else that is wrong with the line. */
	for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
		if (strcmp(argv[i], "--help") == 0)
			return PARSED_HELP;
	while (parser.at < parser.count && !error) {
		const char *word = parser.words[parser.at++];

		if (!options || word[0] != '-' || !word[1])
			out->operands[out->operand_count++] = word;
		else if (strcmp(word, "--") == 0)
			options = false;
		else if (word[1] == '-')
			error = parse_long(&parser, word);
		else
			error = parse_letters(&parser, word);
	}
	return error ? error : check_operands(out);
}

void arguments_free(struct arguments *arguments)
{
	free(arguments->operands);
	free(arguments->all);
	arguments->operands = arguments->all = NULL;
}

const char *argument(const struct arguments *arguments, const char *name)
{
	int row = row_by_name(arguments->command, name, strlen(name));

	return row < 0 ? NULL : arguments->value[row];
}

const char *argument_next(const struct arguments *arguments, const char *name, int *cursor)
{
	while (*cursor < arguments->all_count) {
		const char **pair = arguments->all + (size_t)(*cursor)++ * 2;

		if (strcmp(pair[0], name) == 0)
			return pair[1];
	}
	return NULL;
}

/* Check that `value`, which stands behind `where` in messages, is one of some words. */
static int check_word(const char *where, const char *value, const char *words)
{
	struct suggestion suggestion = { .word = value };
	char word[WORD_MAX + 1] = "", best[WORD_MAX + 1] = "";

	for (const char *at = words; *at; at += strcspn(at, " "), at += strspn(at, " ")) {
		size_t before = suggestion.best ? suggestion.distance : SIZE_MAX;

		snprintf(word, sizeof(word), "%.*s", (int)strcspn(at, " "), at);
		if (strcmp(word, value) == 0)
			return 0;
		suggest(&suggestion, word);
		if (suggestion.best && suggestion.distance < before)
			memcpy(best, word, sizeof(best));
	}
	if (suggestion.best)
		return usage_error("%sno '%s'; did you mean '%s'?", where, value, best);
	return usage_error("%sno '%s'; write one of: %s", where, value, words);
}

int check_choice(const struct arguments *arguments, const char *name)
{
	int row = row_by_name(arguments->command, name, strlen(name));
	const char *value = row < 0 ? NULL : arguments->value[row];
	char where[80];

	if (!value)
		return 0;
	snprintf(where, sizeof(where), "--%s: ", name);
	return check_word(where, value, arguments->command->options[row].complete);
}

int check_subcommand(const struct arguments *arguments)
{
	return check_word("", arguments->operands[0], arguments->command->complete);
}

/* ---- sizes and counts ------------------------------------------------------------------------ */

/* Read digits at *text and advance it. False: there are none, or they exceed 64 bits. */
static bool read_digits(const char **text, uint64_t *out)
{
	const char *at = *text;
	uint64_t value = 0;

	for (; *at >= '0' && *at <= '9'; at++)
		if (__builtin_mul_overflow(value, 10, &value) ||
		    __builtin_add_overflow(value, (uint64_t)(*at - '0'), &value))
			return false;
	if (at == *text)
		return false;
	*text = at;
	*out = value;
	return true;
}

bool read_size(const char *text, uint64_t *out)
{
	static const char suffixes[] = "KMGT";
	const char *found;
	uint64_t value;
	int shift = 0;

	if (!read_digits(&text, &value))
		return false;
	if (*text) {
		found = strchr(suffixes, *text == 'k' ? 'K' : *text);
		/* "KB" is 1,000 to one reader and 1,024 to another, so it is refused. */
		if (!found || (text[1] && strcmp(text + 1, "iB") != 0))
			return false;
		shift = 10 * (int)(found - suffixes + 1);
	}
	if (value > UINT64_MAX >> shift)
		return false;
	*out = value << shift;
	return true;
}

int parse_size(const char *text, const char *what, uint64_t *out)
{
	if (read_size(text, out))
		return 0;
	usage_error(
		"%s: '%s' is not a size; write bytes, or a number with K, M, G, T (KiB, MiB ...)",
		what, text);
	return -1;
}

int parse_size_option(const struct arguments *arguments, const char *name, uint64_t *out)
{
	const char *text = argument(arguments, name);

	if (!text)
		return 0;
	if (parse_size(text, name, out))
		return EXIT_USAGE;
	return *out ? 0 : usage_error("--%s is 0", name);
}

bool read_rate(const char *text, uint64_t *out)
{
	static const struct {
		const char *name;
		double bytes;
	} units[] = { { "kbit", 125 },   { "Mbit", 125e3 }, { "Gbit", 125e6 },
		      { "Tbit", 125e9 }, { "MB", 1e6 },     { "GB", 1e9 } };
	uint64_t whole;
	double value, part = 1;

	if (!read_digits(&text, &whole))
		return false;
	value = (double)whole;
	if (*text == '.')
		for (text++; *text >= '0' && *text <= '9'; text++)
			value += (*text - '0') * (part /= 10);
	for (size_t i = 0; i < sizeof(units) / sizeof(*units); i++) {
		size_t length = strlen(units[i].name);

		if (strncmp(text, units[i].name, length) != 0 ||
		    (text[length] && strcmp(text + length, "/s") != 0))
			continue;
		value *= units[i].bytes;
		if (value < 1e3 || value > 1e15)
			return false;
		*out = (uint64_t)(value + 0.5);
		return true;
	}
	return false;
}

int parse_rate_option(const struct arguments *arguments, const char *name, uint64_t *out)
{
	const char *text = argument(arguments, name);

	if (!text || read_rate(text, out))
		return 0;
	return usage_error("--%s: '%s' is not a rate; write a number with kbit, Mbit, Gbit, Tbit, "
			   "MB or GB (per second)",
			   name, text);
}

int parse_count(const char *text, const char *what, uint64_t lowest, uint64_t most, uint64_t *out)
{
	const char *at = text;
	uint64_t value;

	if (!read_digits(&at, &value) || *at) {
		usage_error("%s: '%s' is not a number", what, text);
		return -1;
	}
	if (value < lowest || value > most) {
		usage_error("%s: %s is not between %llu and %llu", what, text,
			    (unsigned long long)lowest, (unsigned long long)most);
		return -1;
	}
	*out = value;
	return 0;
}

void format_size(char *out, size_t size, uint64_t bytes)
{
	static const char *const units[] = { "KiB", "MiB", "GiB", "TiB" };
	int unit = -1;
	uint64_t value = bytes;

	while (value && value % 1024 == 0 && unit < 3) {
		value /= 1024;
		unit++;
	}
	if (unit < 0)
		snprintf(out, size, "%llu byte%s", (unsigned long long)bytes,
			 bytes == 1 ? "" : "s");
	else
		snprintf(out, size, "%llu %s", (unsigned long long)value, units[unit]);
}

const char *format_number(char *out, size_t size, double value)
{
	if (isnan(value))
		snprintf(out, size, "-");
	else
		snprintf(out, size, "%.*f",
			 value < 0.01 ? 5 :
			 value < 0.1  ? 4 :
			 value < 10   ? 3 :
			 value < 100  ? 2 :
			 value < 1000 ? 1 :
					0,
			 value);
	return out;
}

const char *format_percent(char *out, size_t size, double value)
{
	if (isnan(value))
		snprintf(out, size, "-");
	else
		snprintf(out, size, "%.0f %%", value * 100);
	return out;
}
