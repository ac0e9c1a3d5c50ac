/* SPDX-License-Identifier: Apache-2.0 */
/* wherry exporter: serve metrics of GPUs, NICs and all engines of this user to Prometheus. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "command.h"
#include "exporter/metrics.h"
#include "service.h"
#include "topo/topo.h"

#define USUAL "127.0.0.1:9411"
#define FIRST_SECONDS 3.0 /* limit for the first sample; GPUs that wake up appear later */
#define ENGINE_SECONDS 0.5

struct exporter {
	const char *directory;
	struct top_sampler *sampler;
	struct top_sample sample; /* used by the thread that answers */
};

static void exporter_make(void *arg, struct metrics *metrics)
{
	struct exporter *exporter = arg;
	struct observed observed;

	if (observe_all(exporter->directory, ENGINE_SECONDS, &observed)) {
		metrics->failed = true;
		return;
	}
	for (size_t i = 0; i < observed.count; i++)
		observe_merge(&observed.engines[i]);
	metrics_observed(metrics, &observed);
	metrics_engines(metrics, observed.engines, observed.count);
	observe_free(&observed);
	if (top_take(exporter->sampler, 0, 0, &exporter->sample))
		metrics_machine(metrics, &exporter->sample);
}

static int exporter_print(struct exporter *exporter)
{
	struct metrics metrics = { 0 };

	exporter_make(exporter, &metrics);
	if (metrics.failed || !metrics.text) {
		free(metrics.text);
		return fail(ENOMEM, "out of memory");
	}
	fputs(metrics.text, stdout);
	free(metrics.text);
	return fflush(stdout) ?
		       fail(errno, "cannot write to standard output: %s", strerror(errno)) :
		       EXIT_PASS;
}

static int exporter_serve(struct exporter *exporter, const char *where, int signals)
{
	struct signalfd_siginfo signal;
	struct metrics_server *server;
	char address[160];
	int code = metrics_serve(where, exporter_make, exporter, address, sizeof(address), &server);

	if (code)
		return code;
	code = service_print(address);
	if (!code)
		code = service_ready(address);
	if (!code && read(signals, &signal, sizeof(signal)) != sizeof(signal))
		code = fail(errno, "signalfd: %s", strerror(errno));
	metrics_stop(server);
	return code;
}

static int exporter_run(const struct arguments *arguments)
{
	const char *where = argument(arguments, "metrics"),
		   *seconds = argument(arguments, "interval");
	struct exporter *exporter;
	struct wh_tree tree;
	double interval = 5;
	char *end;
	int signals, code = topo_tree(arguments, &tree);

	if (!code && seconds) {
		interval = strtod(seconds, &end);
		if (end == seconds || *end || !(interval >= 0.1 && interval <= 3600))
			code = usage_error("--interval: '%s' is not between 0.1 and 3600 seconds",
					   seconds);
	}
	if (code)
		return code;
	signals = service_signals(); /* before there are threads */
	if (signals < 0)
		return -signals;
	exporter = calloc(1, sizeof(*exporter));
	if (!exporter) {
		service_end(signals);
		return fail(ENOMEM, "out of memory");
	}
	exporter->directory = observe_directory(arguments);
	/* Engines ("off" here) are asked at each scrape instead. */
	exporter->sampler =
		top_start(&tree, interval, "off", TOP_EVERYTHING & ~(1U << TOP_PROCESS_LIST));
	if (!exporter->sampler) {
		service_end(signals);
		free(exporter);
		return fail(ENOMEM, "out of memory");
	}
	top_take(exporter->sampler, 1, FIRST_SECONDS, &exporter->sample);
	code = argument(arguments, "once") ?
		       exporter_print(exporter) :
		       exporter_serve(exporter, where ? where : USUAL, signals);
	service_end(signals);
	if (!top_stop(exporter->sampler)) {
		/* A thread that hangs in a driver would keep exit() from returning. */
		fflush(stdout);
		_exit(code);
	}
	free(exporter);
	return code;
}

static const struct command_option options[] = {
	{ .name = "metrics",
	  .letter = 'm',
	  .argument = "ADDR:PORT",
	  .help = "where to listen; default 127.0.0.1:9411" },
	{ .name = "interval",
	  .letter = 'i',
	  .argument = "SECONDS",
	  .help = "time between two samples of GPUs and NICs; default 5" },
	{ .name = "once", .help = "print the metrics instead of listening" },
	OBSERVE_OPTION,
	TOPO_ROOT_OPTION("DIR/sys and DIR/proc"),
	{ 0 },
};

const struct command command_exporter = {
	.name = "exporter",
	.usage = "",
	.summary = "Serve metrics of GPUs, NICs and engines to Prometheus",
	.details = "Prints one line, http://ADDR:PORT/metrics, when it is ready, and runs until "
		   "SIGINT or SIGTERM. Engines are those of this user on this machine; they are "
		   "asked at each scrape. Anybody who reaches the address can read the metrics: "
		   "let only Prometheus reach it.",
	.examples = "wherry exporter\n"
		    "wherry exporter --metrics 0.0.0.0:9411\n"
		    "wherry exporter --once | promtool check metrics\n",
	.options = options,
	.least = 0,
	.most = 0,
	.run = exporter_run,
};
