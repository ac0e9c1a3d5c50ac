/* SPDX-License-Identifier: Apache-2.0 */
/* wherry plan: who sends which part of a model's weights to whom, and how long that takes. */
#include <stdlib.h>

#include "command.h"
#include "plan/plan.h"
#include "util/error.h"

#define PAIRS 20

static int plan_show(const struct arguments *arguments, const struct wh_plan *plan)
{
	struct wh_simulation simulation;
	struct plan_summary summary;
	struct plan_view view = {
		.plan = plan,
		.simulation = &simulation,
		.summary = &summary,
		.most = argument(arguments, "all") ? SIZE_MAX : PAIRS,
		.steps = argument(arguments, "steps"),
	};
	int code = EXIT_PASS, error = wh_simulate(plan, &simulation);

	if (error)
		return fail(error, "%s", wh_fail_text());
	error = plan_summarize(plan, &simulation, &summary);
	if (error) {
		code = fail(error, "%s", wh_fail_text());
	} else {
		if (argument(arguments, "json"))
			code = plan_print_json(&view);
		else
			plan_print_text(&view);
		free(summary.pairs);
	}
	wh_simulation_free(&simulation);
	return code;
}

static int plan_run(const struct arguments *arguments)
{
	struct wh_layout *layouts[2] = { NULL, NULL };
	struct wh_plan_options options = { 0 };
	struct wh_plan *plan;
	int error = 0, code = parse_size_option(arguments, "chunk", &options.chunk);

	if (!code)
		code = parse_size_option(arguments, "piece", &options.piece);
	if (code)
		return code;
	for (int side = 0; side < 2 && !error; side++)
		error = plan_layout_read(arguments->operands[side], &layouts[side]);
	if (!error)
		error = wh_plan_new(layouts[0], layouts[1], &options, &plan);
	if (error) {
		code = fail(error, "%s", wh_fail_text());
	} else {
		code = plan_show(arguments, plan);
		wh_plan_free(plan);
	}
	wh_layout_free(layouts[0]);
	wh_layout_free(layouts[1]);
	return code;
}

static const struct command_option options[] = {
	{ .name = "json", .letter = 'j', .help = "as JSON" },
	{ .name = "all", .letter = 'a', .help = "every pair of engines, not only the first 20" },
	{ .name = "steps", .letter = 's', .help = "each step; with --json its blocks as well" },
	{ .name = "chunk",
	  .argument = "SIZE",
	  .help = "cut parts that are larger, so that they take several ways (default 64MiB, more "
		  "for very many bytes)" },
	{ .name = "piece",
	  .argument = "SIZE",
	  .help = "forward parts in pieces of about SIZE (default: 4MiB, less over slow NICs)" },
	{ 0 },
};

const struct command command_plan = {
	.name = "plan",
	.usage = "SOURCES.json TARGETS.json",
	.summary = "Plan who sends which weights to whom",
	.details =
		"Each file is a layout: which engine holds which part of each tensor, and on which "
		"host and GPU it is (docs/weights.md has the format). Prints who sends how much to "
		"whom so that every target has its parts, with each byte sent once to a host, the "
		"expected time, and the link that limits it. The time is simulated from the rates "
		"in the files, or typical ones; nothing is measured, and nothing is moved.\n\n"
		"BY says how: copy (within a GPU or a host's memory), host (between GPUs of a "
		"host) or network. BLOCKS counts runs that are contiguous on both sides. DONE is "
		"when the last step of the pair is done.",
	.examples = "wherry plan trainers.json servers.json\n"
		    "wherry plan trainers.json servers.json --json | jq .expected_us\n",
	.options = options,
	.least = 2,
	.most = 2,
	.run = plan_run,
};
