/* SPDX-License-Identifier: Apache-2.0 */
/* The results of bench/many as JSON. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "bench/machine.h"
#include "many.h"

static json_t *rounded(double value)
{
	return json_real(round(value * 1000) / 1000);
}

static void put(json_t *object, const char *name, double value)
{
	json_object_set_new(object, name, rounded(value));
}

static json_t *series(const struct many_series *series)
{
	return json_pack("{s:o, s:o, s:o, s:o}", "mean", rounded(series->mean), "p50",
			 rounded(series->p50), "p99", rounded(series->p99), "max",
			 rounded(series->most));
}

static json_t *errors(struct many *many)
{
	json_t *object = json_object();

	for (int i = 0; i < MANY_ERRNO; i++)
		if (atomic_load(&many->errors[i]))
			json_object_set_new(
				object, i ? strerrorname_np(i) : "other",
				json_integer((json_int_t)atomic_load(&many->errors[i])));
	return object;
}

static json_t *cost(const struct many_results *results, const struct many_options *options)
{
	json_t *object = json_object();

	put(object, "process_before_bytes", results->process_before_bytes);
	put(object, "engine_bytes", results->engine_bytes);
	put(object, "engine_threads", results->engine_threads);
	put(object, "open_all_seconds", results->open_seconds);
	if (options->peers) {
		json_object_set_new(object, "connect_alone_us", series(&results->alone_us));
		put(object, "connect_limit_us", 2000);
		put(object, "idle_peer_initiator_bytes", results->initiator_bytes);
		put(object, "idle_peer_owner_bytes", results->owner_bytes);
		put(object, "idle_peer_limit_bytes", 32768);
		put(object, "idle_peer_kernel_bytes", results->kernel_bytes);
	}
	put(object, "mesh_seconds", results->mesh_seconds);
	json_object_set_new(object, "connect_crowded_us", series(&results->mesh_us));
	put(object, "mesh_peer_bytes", results->mesh_peer_bytes);
	put(object, "data_connection_bytes", results->active_peer_bytes);
	if (options->idle)
		put(object, "idle_cpus", results->idle_cpus);
	return object;
}

static json_t *restart(struct many *many, const struct many_results *results)
{
	json_t *object = json_object();

	put(object, "seconds", results->restart_seconds);
	put(object, "engines", results->restarted);
	put(object, "recover_max_ms", results->recover_most_ms);
	put(object, "transfers_a_second", many->options.rate);
	return object;
}

int many_report(struct many *many, const struct many_results *results)
{
	const struct many_options *options = &many->options;
	json_t *all = json_object(), *transfers = json_object();
	int error;

	put(transfers, "submitted", results->submitted);
	put(transfers, "completed", results->completed);
	put(transfers, "failed", results->failed);
	put(transfers, "of_killed_engines", results->unreported);
	put(transfers, "without_end", results->hung);
	put(transfers, "wrong", results->wrong);
	json_object_set_new(transfers, "errors", errors(many));
	json_object_set_new(all, "schema", json_integer(1));
	json_object_set_new(all, "environment",
			    machine_describe_run(options->registry, options->config));
	json_object_set_new(all, "engines", json_integer(options->engines));
	json_object_set_new(all, "processes", json_integer(options->processes));
	json_object_set_new(all, "degree", json_integer(options->degree));
	json_object_set_new(all, "transfer_bytes", json_integer(options->bytes));
	json_object_set_new(all, "cost", cost(results, options));
	json_object_set_new(all, "data",
			    json_pack("{s:o, s:o, s:o}", "seconds", rounded(results->move_seconds),
				      "transfers", rounded(results->moved_transfers), "bytes",
				      rounded(results->moved_bytes)));
	if (options->restart)
		json_object_set_new(all, "restart", restart(many, results));
	json_object_set_new(all, "transfers", transfers);
	error = json_dump_file(all, options->json, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
	if (error)
		fprintf(stderr, "many: %s: %s\n", options->json, strerror(errno));
	json_decref(all);
	return error;
}
