/* SPDX-License-Identifier: Apache-2.0 */
/* wherry top: watch GPUs, NICs, engines and processes, live or as text, CSV or JSON. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "output.h"
#include "progress.h"
#include "top/top.h"
#include "topo/topo.h"

#define FIRST_SECONDS 10.0 /* a driver that wakes its GPUs */

enum form { LIVE, TEXT_FORM, JSON_FORM, CSV_FORM };

static enum form form_choose(const struct arguments *arguments)
{
	if (argument(arguments, "json"))
		return JSON_FORM;
	if (argument(arguments, "csv") || argument(arguments, "query"))
		return CSV_FORM;
	return argument(arguments, "once") || argument(arguments, "count") ||
			       !isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO) ?
		       TEXT_FORM :
		       LIVE;
}

/* How samples are printed. */
struct sample_output {
	enum form form;
	const struct top_table *table; /* of CSV */
	const char *fields;
	const struct screen *screen;
	bool why;
};

static void print_text(const struct top_sample *sample, const struct sample_output *output)
{
	const struct screen *screen = output->screen;
	struct top_view view = { .ascii = screen->ascii, .why = output->why };
	struct top_line *lines = calloc(TOP_LINES, sizeof(*lines));
	size_t count = lines ? top_render(sample, &view, lines, TOP_LINES) : 0;

	for (size_t i = 0; i < count; i++)
		printf("%s%s%s\n", lines[i].plain ? "" : screen_tint(screen, lines[i].tint),
		       lines[i].text, lines[i].plain ? "" : screen_plain(screen));
	free(lines);
}

static int print_sample(const struct top_sample *sample, const struct sample_output *output,
			bool first)
{
	json_t *object;
	int error;

	switch (output->form) {
	case JSON_FORM:
		/* One line for each sample: programs can read them as they come. */
		object = top_to_json(sample, output->why);
		error = json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
		json_decref(object);
		putchar('\n');
		break;
	case CSV_FORM:
		error = 0;
		if (first)
			top_print_header(output->table, output->fields);
		top_print_rows(output->table, sample, output->fields, output->why);
		break;
	default:
		error = 0;
		print_text(sample, output);
	}
	if (fflush(stdout) || error)
		return fail(EIO, "cannot write to standard output: %s", strerror(errno));
	return 0;
}

/* The first sample is skipped: rates need two. */
static int print_samples(struct top_sampler *sampler, const struct sample_output *output,
			 uint64_t count, double interval)
{
	struct top_sample *sample = calloc(1, sizeof(*sample));
	int code = sample ? 0 : fail(ENOMEM, "out of memory");
	struct progress progress;
	bool taken;

	for (uint64_t i = 0; i < count && !code; i++) {
		/* Later samples show progress by themselves. */
		progress_start_steps(&progress, "taking a sample", 0, i > 0);
		progress_watch(&progress);
		/* Only the first sample waits for a slow driver. */
		taken = top_take(sampler, i + 2, interval + (i ? 1 : FIRST_SECONDS), sample);
		progress_end(&progress);
		if (!taken)
			code = fail(ETIMEDOUT, "reading /sys and /proc took too long");
		else
			code = print_sample(sample, output, i == 0);
	}
	free(sample);
	return code;
}

static int interval_parse(const char *text, double *out)
{
	char *end;

	if (!text)
		return 0;
	*out = strtod(text, &end);
	if (end == text || *end || !(*out >= 0.1 && *out <= 3600))
		return usage_error("--interval: '%s' is not between 0.1 and 3600 seconds", text);
	return 0;
}

static int top_run(const struct arguments *arguments)
{
	const char *query = argument(arguments, "query"), *of = argument(arguments, "of"),
		   *count_text = argument(arguments, "count");
	const struct top_table *table = top_table(of ? of : "gpus");
	struct sample_output output = { .table = table, .why = argument(arguments, "why") };
	struct top_sampler *sampler;
	char all[1024], word[WH_NAME] = "";
	struct screen screen;
	struct wh_tree tree;
	uint64_t count = 1;
	double interval = 1;
	int code;

	if (!table)
		return usage_error("--of: '%s' is none of gpus, engines, peers, routes", of);
	if (argument(arguments, "fields")) {
		top_describe_fields(table);
		return EXIT_PASS;
	}
	code = screen_open(arguments, &screen);
	if (!code)
		code = interval_parse(argument(arguments, "interval"), &interval);
	if (!code && count_text && parse_count(count_text, "--count", 1, UINT32_MAX, &count))
		code = EXIT_USAGE;
	if (!code && argument(arguments, "json") && (query || argument(arguments, "csv")))
		code = usage_error("--json prints everything: use it without --csv and --query");
	if (!code && of && !query && !argument(arguments, "csv"))
		code = usage_error("--of chooses the table of --csv, --query and --fields: use it "
				   "with one of them");
	if (!code && query && (!*query || top_unknown_field(table, query, word)))
		code = usage_error("--query: no field '%s'; --fields lists them", word);
	if (!code)
		code = topo_tree(arguments, &tree);
	if (code)
		return code;
	top_all_fields(table, all, sizeof(all));
	output.fields = query ? query : all;
	output.form = form_choose(arguments);
	output.screen = &screen;
	sampler = top_start(&tree, interval, observe_directory(arguments),
			    output.form == CSV_FORM ? top_needs(table, output.fields) :
						      TOP_EVERYTHING);
	if (!sampler)
		return fail(ENOMEM, "out of memory");
	code = output.form == LIVE ? top_interactive(sampler, &screen, interval, output.why) :
				     print_samples(sampler, &output, count, interval);
	if (!top_stop(sampler)) {
		/* A thread that hangs in a driver would keep exit() from returning. */
		fflush(stdout);
		_exit(code);
	}
	return code;
}

static const struct command_option options[] = {
	{ .name = "interval",
	  .letter = 'i',
	  .argument = "SECONDS",
	  .help = "time between two samples; default 1" },
	{ .name = "once", .help = "print one sample as text; also without a terminal" },
	{ .name = "count", .letter = 'n', .argument = "N", .help = "take N samples, then exit" },
	{ .name = "json", .letter = 'j', .help = "print each sample as one line of JSON" },
	{ .name = "csv", .help = "print all fields of GPUs, or of TABLE, as CSV" },
	{ .name = "query", .argument = "FIELD,...", .help = "print these fields as CSV" },
	{ .name = "fields", .help = "list the fields" },
	{ .name = "of",
	  .argument = "TABLE",
	  .complete = "gpus engines peers routes",
	  .help = "print gpus, engines, peers or routes as CSV" },
	{ .name = "why", .letter = 'w', .help = "explain unknown values" },
	OBSERVE_OPTION,
	TOPO_ROOT_OPTION("DIR/sys and DIR/proc"),
	SCREEN_OPTIONS,
	{ 0 },
};

const struct command command_top = {
	.name = "top",
	.usage = "",
	.summary = "Watch GPUs, NICs, engines and processes",
	.details =
		"Rates have their share of the link's capacity. The key h shows the keys. Engines "
		"are those of this user on this machine, with their peers and the transports "
		"that each peer uses.",
	.examples = "wherry top\n"
		    "wherry top --query index,utilization.gpu,nvlink.tx --count 10\n"
		    "wherry top --csv --of routes\n"
		    "wherry top --json --interval 5 --count 12 > minute.jsonl\n",
	.options = options,
	.least = 0,
	.most = 0,
	.run = top_run,
};
