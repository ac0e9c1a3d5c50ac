/* SPDX-License-Identifier: Apache-2.0 */
#include "../../tools/command.c"
#include "../../tools/help.c"
#include "../../tools/progress.c"

#include <setjmp.h>

#include <cmocka.h>

static const struct command_option options[] = {
	{ .name = "memory",
	  .letter = 'm',
	  .argument = "KIND:SIZE",
	  .help = "memory",
	  .many = true },
	{ .name = "listen", .letter = 'l', .argument = "ADDR:PORT", .help = "where to listen" },
	{ .name = "op", .argument = "OP", .help = "what to do", .complete = "read write" },
	{ .name = "quiet", .letter = 'q', .help = "say nothing" },
	{ .name = "verify", .letter = 'v', .help = "look again" },
	{ 0 },
};

static const struct command command = {
	.name = "test",
	.usage = "SRC DST",
	.summary = "A test.",
	.details = "",
	.examples = "",
	.options = options,
	.least = 1,
	.most = 2,
};

/* What went to stderr. */
static char *said;

#define WORDS 12

/* Parse a line of words with single spaces; its copy lives until the next one. */
static int parse(const char *line, struct arguments *out)
{
	static char copy[256];
	char *words[WORDS], *next = copy;
	FILE *saved = stderr;
	size_t length;
	int count = 0, code;

	snprintf(copy, sizeof(copy), "%s", line);
	while (*line && next)
		words[count++] = strsep(&next, " ");
	free(said);
	stderr = open_memstream(&said, &length);
	code = arguments_parse(&command, count, words, out);
	fclose(stderr);
	stderr = saved;
	return code;
}

static void good(const char *line, struct arguments *out)
{
	int code = parse(line, out);

	if (code)
		fail_msg("%s: %d %s", line, code, said);
}

static void parse__any_order(void **state)
{
	static const char *const lines[] = {
		"a b -q --listen x", "-q a --listen=x b", "--listen x -q a b", "-ql x a b",
		"a -lx -q b",        "--quiet -l x a b",  "-qlx a b",
	};
	struct arguments arguments;

	(void)state;
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		good(lines[i], &arguments);
		assert_string_equal(argument(&arguments, "listen"), "x");
		assert_string_equal(argument(&arguments, "quiet"), "");
		assert_null(argument(&arguments, "verify"));
		assert_null(argument(&arguments, "nonsense"));
		assert_int_equal(arguments.operand_count, 2);
		assert_string_equal(arguments.operands[0], "a");
		assert_string_equal(arguments.operands[1], "b");
		arguments_free(&arguments);
	}
}

static void parse__many(void **state)
{
	struct arguments arguments;
	int cursor = 0;

	(void)state;
	good("-m host:1 a --memory=huge:2 --memory pageable:3=4", &arguments);
	assert_string_equal(argument_next(&arguments, "memory", &cursor), "host:1");
	assert_string_equal(argument_next(&arguments, "memory", &cursor), "huge:2");
	assert_string_equal(argument_next(&arguments, "memory", &cursor), "pageable:3=4");
	assert_null(argument_next(&arguments, "memory", &cursor));
	arguments_free(&arguments);
}

static void parse__end_of_options(void **state)
{
	struct arguments arguments;

	(void)state;
	good("-q -- --listen -v", &arguments);
	assert_null(argument(&arguments, "listen"));
	assert_int_equal(arguments.operand_count, 2);
	assert_string_equal(arguments.operands[0], "--listen");
	arguments_free(&arguments);
	good("- --listen=", &arguments);
	assert_string_equal(arguments.operands[0], "-");
	assert_string_equal(argument(&arguments, "listen"), "");
	arguments_free(&arguments);
	/* A dash alone is no option, and a value may start with one. */
	good("a --listen -q", &arguments);
	assert_string_equal(argument(&arguments, "listen"), "-q");
	arguments_free(&arguments);
}

static void parse__help(void **state)
{
	static const char *const lines[] = { "--help", "-h", "-qh", "a b c d --help",
					     "--nonsense --help" };
	struct arguments arguments;

	(void)state;
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		assert_int_equal(parse(lines[i], &arguments), PARSED_HELP);
		arguments_free(&arguments);
	}
}

static void parse__wrong(void **state)
{
	static const char *const rows[][2] = {
		{ "a --lisen x", "did you mean --listen?" },
		{ "a --ilsten x", "did you mean --listen?" },
		{ "a --lis x", "did you mean --listen?" },
		{ "a --verfy=3", "no option --verfy; did you mean --verify?" },
		{ "a --hlep", "did you mean --help?" },
		{ "a --xyzzy", "no option --xyzzy\n" },
		{ "a -x", "no option -x" },
		{ "a -qx", "no option -x" },
		{ "a --quiet=yes", "--quiet takes no value" },
		{ "a --listen", "--listen needs a value: --listen ADDR:PORT" },
		{ "a -l", "--listen needs a value: --listen ADDR:PORT" },
		{ "a --listen --quiet", "not another option" },
		{ "a --listen x --listen y", "--listen is given twice: x and y" },
		{ "", "operands are missing: write SRC DST (none is given)" },
		{ "a b c", "'c' is one operand too many: write SRC DST" },
	};
	struct arguments arguments;

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		int code = parse(rows[i][0], &arguments);

		arguments_free(&arguments);
		if (code != EXIT_USAGE || !strstr(said, rows[i][1]) ||
		    !strstr(said, "Usage: wherry test [options] SRC DST"))
			fail_msg("%s: %d %s", rows[i][0], code, said);
	}
}

static void choice__words(void **state)
{
	struct arguments arguments;
	FILE *saved = stderr;
	size_t length;

	(void)state;
	good("a --op write", &arguments);
	assert_int_equal(check_choice(&arguments, "op"), 0);
	assert_int_equal(check_choice(&arguments, "quiet"), 0);
	arguments_free(&arguments);
	good("a --op wrte", &arguments);
	free(said);
	stderr = open_memstream(&said, &length);
	assert_int_equal(check_choice(&arguments, "op"), EXIT_USAGE);
	fclose(stderr);
	stderr = saved;
	assert_non_null(strstr(said, "no 'wrte'; did you mean 'write'?"));
	arguments_free(&arguments);
}

static void size__good(void **state)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} rows[] = {
		{ "0", 0 },
		{ "8", 8 },
		{ "64K", 65536 },
		{ "64k", 65536 },
		{ "64KiB", 65536 },
		{ "1M", 1 << 20 },
		{ "1MiB", 1 << 20 },
		{ "2GiB", UINT64_C(2) << 30 },
		{ "3T", UINT64_C(3) << 40 },
		{ "18446744073709551615", UINT64_MAX },
		{ "16777215T", UINT64_C(16777215) << 40 },
	};
	uint64_t bytes;

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_true(read_size(rows[i].text, &bytes));
		assert_int_equal(bytes, rows[i].bytes);
	}
}

static void size__wrong(void **state)
{
	static const char *const rows[] = {
		"",          "K",
		"-1",        "+1",
		" 1",        "1 ",
		"1KB",       "1B",
		"1.5M",      "1e6",
		"1KiBs",     "0x10",
		"1Ki",       "18446744073709551616",
		"16777216T", "99999999999999999999999",
		"1m",
	};
	uint64_t bytes = 42;

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (read_size(rows[i], &bytes))
			fail_msg("'%s' was taken", rows[i]);
	assert_int_equal(bytes, 42);
}

static void rate__good(void **state)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} rows[] = {
		{ "1Gbit", 125000000 },
		{ "8kbit", 1000 },
		{ "2.5Gbit/s", 312500000 },
		{ "0.1Mbit", 12500 },
		{ "400Gbit", 50000000000 },
		{ "1.25GB", 1250000000 },
		{ "100MB/s", 100000000 },
		{ "1Tbit", 125000000000 },
		{ "1000000GB", UINT64_C(1000000000000000) },
	};
	uint64_t bytes;

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_true(read_rate(rows[i].text, &bytes));
		assert_int_equal(bytes, rows[i].bytes);
	}
}

static void rate__wrong(void **state)
{
	static const char *const rows[] = {
		"",       "1",     "Gbit",    "-1Gbit",    "+1Gbit",  " 1Gbit",  "1 Gbit",
		"1Gb",    "1gbit", "1Gbit/",  "1Gbit/m",   "1e3Mbit", "0Gbit",   "7kbit",
		".1Gbit", "1GiB",  "1.1.1GB", "1000001GB", "nan",     "infGbit", "0x1Gbit",
	};
	uint64_t bytes = 42;

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (read_rate(rows[i], &bytes))
			fail_msg("'%s' was taken", rows[i]);
	assert_int_equal(bytes, 42);
}

static void size__format(void **state)
{
	static const struct {
		uint64_t bytes;
		const char *text;
	} rows[] = {
		{ 0, "0 bytes" },       { 1, "1 byte" },
		{ 1023, "1023 bytes" }, { 1024, "1 KiB" },
		{ 1025, "1025 bytes" }, { 1536 << 20, "1536 MiB" },
		{ 1 << 30, "1 GiB" },   { UINT64_C(5) << 50, "5120 TiB" },
	};
	char text[32];

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		format_size(text, sizeof(text), rows[i].bytes);
		assert_string_equal(text, rows[i].text);
	}
}

static void help__fits_and_wraps(void **state)
{
	static const struct command wordy = {
		.name = "wordy",
		.usage = "",
		.summary = "Says much.",
		.details = "First paragraph with words and words and words and words and words and "
			   "words, far beyond one line.\n\n"
			   "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13",
		.examples = "wherry wordy  # go\n",
		.options = options,
	};
	FILE *memory;
	char *text = NULL;
	size_t length;
	int lines = 0;

	(void)state;
	memory = open_memstream(&text, &length);
	help_print(&wordy, memory);
	fclose(memory);
	for (char *line = text, *end; *line; line = end + 1, lines++) {
		end = strchr(line, '\n');
		assert_true(end - line < SCREEN_COLUMNS);
	}
	assert_true(lines < SCREEN_LINES);
	assert_non_null(strstr(text, "First paragraph"));
	assert_null(strstr(text, "13"));
	assert_non_null(strstr(text, "-l, --listen ADDR:PORT"));
	free(text);
}

static void progress__line(void **state)
{
	struct progress progress = { .label = "copying", .total = 1000000000, .rate = 2e9 };
	char line[80];

	(void)state;
	progress_line(&progress, 500000000, line, sizeof(line));
	assert_non_null(strstr(line, "copying [===="));
	assert_non_null(strstr(line, " 50%  2.00 GB/s  0:00 left"));
	progress.rate = 1e6;
	progress_line(&progress, 0, line, sizeof(line));
	assert_non_null(strstr(line, "0.00 GB/s  16:40 left"));
	progress_line(&progress, 1000000000, line, sizeof(line));
	assert_non_null(strstr(line, "=] 100%"));
	progress_line(&progress, 0, line, 20);
	assert_true(strlen(line) < 20);
	progress.total = 0;
	progress_line(&progress, 3 << 20, line, sizeof(line));
	assert_string_equal(line, "copying 3.0 MiB  0.00 GB/s");
}

static void progress__steps(void **state)
{
	struct progress progress = {
		.label = "checking", .total = 8, .steps = true, .last = 6000000000
	};
	volatile int narrow = 5; /* gcc would warn of what is meant */
	char line[80];

	(void)state;
	progress_line(&progress, 2, line, sizeof(line));
	assert_non_null(strstr(line, "checking [====="));
	assert_non_null(strstr(line, "  25%  2 of 8  0:18 left"));
	progress_line(&progress, 0, line, sizeof(line));
	assert_non_null(strstr(line, "   0%  0 of 8"));
	assert_null(strstr(line, "left"));
	progress_line(&progress, 9, line, sizeof(line));
	assert_non_null(strstr(line, " 100%  8 of 8  0:00 left"));
	progress.total = 0;
	progress_line(&progress, 0, line, sizeof(line));
	assert_string_equal(line, "checking  6 s");
	progress_line(&progress, 0, line, narrow);
	assert_string_equal(line, "chec");
}

/* One function decides: what is not there is 69, what was reached and refuses is 2. */
static void exit_code__of_errno(void **state)
{
	static const int absent[] = { ECONNREFUSED,    EHOSTUNREACH,  ENETUNREACH, ETIMEDOUT,
				      EHOSTDOWN,       ECONNRESET,    ESTALE,      EPROTO,
				      EPROTONOSUPPORT, EADDRNOTAVAIL, ELIBACC,     ENODEV,
				      ENXIO,           ENOMEM,        EOPNOTSUPP };
	static const int refused[] = { EACCES, EPERM,      ENOENT, EEXIST,    ERANGE,  ENOSPC,
				       EIO,    EADDRINUSE, EFBIG,  ECANCELED, EBADMSG, EBUSY };

	(void)state;
	assert_int_equal(exit_code_of(0), EXIT_PASS);
	for (size_t i = 0; i < sizeof(absent) / sizeof(*absent); i++) {
		assert_int_equal(exit_code_of(absent[i]), EXIT_UNAVAILABLE);
		assert_int_equal(exit_code_of(-absent[i]), EXIT_UNAVAILABLE);
	}
	for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++)
		assert_int_equal(exit_code_of(-refused[i]), EXIT_FAIL);
	/* An engine that no registry knows is not there; a file that is not is a failure. */
	assert_int_equal(exit_code_of(reach_error(-ENOENT)), EXIT_UNAVAILABLE);
	assert_int_equal(exit_code_of(reach_error(-EACCES)), EXIT_FAIL);
	assert_int_equal(reach_error(0), 0);
}

static int free_said(void **state)
{
	(void)state;
	free(said);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parse__any_order),
		cmocka_unit_test(parse__many),
		cmocka_unit_test(parse__end_of_options),
		cmocka_unit_test(parse__help),
		cmocka_unit_test(parse__wrong),
		cmocka_unit_test(choice__words),
		cmocka_unit_test(size__good),
		cmocka_unit_test(size__wrong),
		cmocka_unit_test(rate__good),
		cmocka_unit_test(rate__wrong),
		cmocka_unit_test(size__format),
		cmocka_unit_test(help__fits_and_wraps),
		cmocka_unit_test(progress__line),
		cmocka_unit_test(progress__steps),
		cmocka_unit_test(exit_code__of_errno),
	};

	return cmocka_run_group_tests(tests, NULL, free_said);
}
