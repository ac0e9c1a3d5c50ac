/* SPDX-License-Identifier: Apache-2.0 */
/* wherry topo: show the GPUs, NICs and memories of a machine, and their distances. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "output.h"
#include "progress.h"
#include "topo/topo.h"

static int topo_show(const struct arguments *arguments, const struct wh_topology *topology,
		     const struct screen *screen)
{
	if (argument(arguments, "json"))
		return output_print(topo_to_json(topology));
	if (argument(arguments, "dot"))
		topo_dot(topology, stdout);
	else if (argument(arguments, "svg"))
		topo_svg(topology, stdout);
	else
		topo_print(topology, screen);
	return EXIT_PASS;
}

/* Refuse more than one output format. */
static int topo_check_forms(const struct arguments *arguments)
{
	static const char *const forms[] = { "json", "dot", "svg" };
	const char *first = NULL;

	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		if (!argument(arguments, forms[i]))
			continue;
		if (first)
			return usage_error("--%s and --%s: choose one", first, forms[i]);
		first = forms[i];
	}
	return 0;
}

/* Collect with progress: waking GPUs takes seconds. */
static int topo_collect_shown(const struct wh_tree *tree, bool cuda, struct wh_topology **out)
{
	struct progress progress;
	int code;

	progress_start_steps(&progress, "asking the GPUs", 0, false);
	progress_watch(&progress);
	code = topo_collect(tree, cuda, out);
	progress_end(&progress);
	return code;
}

static int topo_run(const struct arguments *arguments)
{
	const char *load = argument(arguments, "load");
	struct wh_topology *topology;
	struct screen screen;
	struct wh_tree tree;
	int code = topo_check_forms(arguments);

	if (!code)
		code = screen_open(arguments, &screen);
	if (!code && load && (argument(arguments, "root") || argument(arguments, "record")))
		code = usage_error("--load reads a saved file: use it without --root and --record");
	if (!code)
		code = topo_tree(arguments, &tree);
	if (!code)
		code = load ? topo_load(load, &topology) :
			      topo_collect_shown(&tree, argument(arguments, "cuda"), &topology);
	if (code)
		return code;
	code = topo_show(arguments, topology, &screen);
	wh_topology_free(topology);
	return code;
}

static const struct command_option options[] = {
	{ .name = "json", .letter = 'j', .help = "print everything as JSON" },
	{ .name = "dot", .help = "print a graph for Graphviz" },
	{ .name = "svg", .help = "print a drawing" },
	{ .name = "cuda", .help = "also start CUDA, for the sizes of L2 caches" },
	{ .name = "load",
	  .argument = "FILE",
	  .complete = "file",
	  .help = "show a file that --json has written, of any machine; - is stdin" },
	TOPO_ROOT_OPTION("DIR/sys and DIR/proc"),
	TOPO_RECORD_OPTION,
	SCREEN_OPTIONS,
	{ 0 },
};

const struct command command_topo = {
	.name = "topo",
	.usage = "",
	.summary = "Show the GPUs, NICs and memories of a machine, and their distances",
	.details =
		"Distances have the names of nvidia-smi topo -m. Each pair has the route of large "
		"transfers, and the speed that the links on it should allow.\n\n"
		"'-' stands for what is absent or unknown; the reasons are at the end.",
	.examples = "wherry topo\n"
		    "wherry topo --json > node7.json && wherry topo --load node7.json\n"
		    "wherry topo --svg > topology.svg\n"
		    "wherry topo --record node7      # a tree of files to attach to a report\n",
	.options = options,
	.least = 0,
	.most = 0,
	.run = topo_run,
};
