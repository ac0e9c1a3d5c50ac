/* SPDX-License-Identifier: Apache-2.0 */
/* wherry topo: what the machine is made of, and how far its parts are from each other. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "output.h"
#include "progress.h"
#include "topo/topo.h"

static int show(const struct arguments *arguments, const struct wh_topology *topology,
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

/* At most one of these. */
static int check_forms(const struct arguments *arguments)
{
	static const char *const forms[] = { "json", "dot", "svg" };
	const char *first = NULL;

	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		if (!argument(arguments, forms[i]))
			continue;
		if (first)
			return usage_error("--%s and --%s: one at a time", first, forms[i]);
		first = forms[i];
	}
	return 0;
}

/* NVML wakes GPUs that sleep, which takes seconds. */
static int collect(const struct wh_tree *tree, bool cuda, struct wh_topology **out)
{
	struct progress progress;
	int code;

	progress_start_steps(&progress, "asking the GPUs", 0, false);
	progress_watch(&progress);
	code = topo_collect(tree, cuda, out);
	progress_end(&progress);
	return code;
}

static int run(const struct arguments *arguments)
{
	const char *load = argument(arguments, "load");
	struct wh_topology *topology;
	struct screen screen;
	struct wh_tree tree;
	int code = check_forms(arguments);

	if (!code)
		code = screen_open(arguments, &screen);
	if (!code && load && (argument(arguments, "root") || argument(arguments, "record")))
		code = usage_error("--load shows what was saved: without --root and --record");
	if (!code)
		code = topo_tree(arguments, &tree);
	if (!code)
		code = load ? topo_load(load, &topology) :
			      collect(&tree, argument(arguments, "cuda"), &topology);
	if (code)
		return code;
	code = show(arguments, topology, &screen);
	wh_topology_free(topology);
	return code;
}

static const struct command_option options[] = {
	{ .name = "json", .letter = 'j', .help = "as JSON, with all that is known" },
	{ .name = "dot", .help = "as a graph for Graphviz" },
	{ .name = "svg", .help = "as a drawing" },
	{ .name = "cuda", .help = "start CUDA as well, which knows the size of L2 caches" },
	{ .name = "load",
	  .argument = "FILE",
	  .complete = "file",
	  .help = "show what --json has saved, of any machine; - is standard input" },
	{ .name = "root",
	  .argument = "DIR",
	  .complete = "file",
	  .help = "read DIR/sys and DIR/proc instead of this machine's" },
	{ .name = "record",
	  .argument = "DIR",
	  .complete = "file",
	  .help = "copy what is read into DIR, for --root" },
	SCREEN_OPTIONS,
	{ 0 },
};

const struct command command_topo = {
	.name = "topo",
	.usage = "",
	.summary = "Show the GPUs, NICs and memories of a machine, and their distances",
	.details = "Distances are in the words of nvidia-smi topo -m. For each pair the route that "
		   "large transfers take is shown, and the speed that its links should allow.\n\n"
		   "What is absent or cannot be asked is '-', and the end says why.",
	.examples = "wherry topo\n"
		    "wherry topo --json > node7.json && wherry topo --load node7.json\n"
		    "wherry topo --svg > topology.svg\n"
		    "wherry topo --record node7      # a tree of files to attach to a report\n",
	.options = options,
	.least = 0,
	.most = 0,
	.run = run,
};
