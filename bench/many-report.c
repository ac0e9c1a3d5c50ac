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

static json_t *json_rounded(double value)
{
	return json_real(round(value * 1000) / 1000);
}

static void json_put(json_t *object, const char *name, double value)
{
	json_object_set_new(object, name, json_rounded(value));
}

static json_t *json_series(const struct many_series *series)
{
	return json_pack("{s:o, s:o, s:o, s:o}", "mean", json_rounded(series->mean), "p50",
			 json_rounded(series->p50), "p99", json_rounded(series->p99), "max",
			 json_rounded(series->most));
}

static json_t *json_errors(struct many *many)
{
	json_t *object = json_object();

	for (int i = 0; i < MANY_ERRNO; i++)
		if (atomic_load(&many->errors[i]))
			json_object_set_new(
				object, i ? strerrorname_np(i) : "other",
				json_integer((json_int_t)atomic_load(&many->errors[i])));
	return object;
}

static json_t *json_cost(const struct many_results *results, const struct many_options *options)
{
	json_t *object = json_object();

	json_put(object, "process_before_bytes", results->process_before_bytes);
	json_put(object, "engine_bytes", results->engine_bytes);
	json_put(object, "engine_threads", results->engine_threads);
	json_put(object, "open_all_seconds", results->open_seconds);
	if (options->peers) {
		json_object_set_new(object, "connect_alone_us", json_series(&results->alone_us));
		json_put(object, "connect_limit_us", 2000);
		json_put(object, "idle_peer_initiator_bytes", results->initiator_bytes);
		json_put(object, "idle_peer_owner_bytes", results->owner_bytes);
		json_put(object, "idle_peer_limit_bytes", 32768);
		json_put(object, "idle_peer_kernel_bytes", results->kernel_bytes);
	}
	json_put(object, "mesh_seconds", results->mesh_seconds);
	json_object_set_new(object, "connect_crowded_us", json_series(&results->mesh_us));
	json_put(object, "mesh_peer_bytes", results->mesh_peer_bytes);
	json_put(object, "data_connection_bytes", results->active_peer_bytes);
	if (options->idle)
		json_put(object, "idle_cpus", results->idle_cpus);
	return object;
}

static json_t *json_restart(struct many *many, const struct many_results *results)
{
	json_t *object = json_object();

	json_put(object, "seconds", results->restart_seconds);
	json_put(object, "engines", results->restarted);
	json_put(object, "recover_max_ms", results->recover_most_ms);
	json_put(object, "transfers_a_second", many->options.rate);
	return object;
}

int many_report(struct many *many, const struct many_results *results)
{
	const struct many_options *options = &many->options;
	json_t *all = json_object(), *transfers = json_object();
	int error;

	json_put(transfers, "submitted", results->submitted);
	json_put(transfers, "completed", results->completed);
	json_put(transfers, "failed", results->failed);
	json_put(transfers, "of_killed_engines", results->unreported);
	json_put(transfers, "without_end", results->hung);
	json_put(transfers, "wrong", results->wrong);
	json_object_set_new(transfers, "errors", json_errors(many));
	json_object_set_new(all, "schema", json_integer(1));
	json_object_set_new(all, "environment",
			    machine_describe_run(options->registry, options->config));
	json_object_set_new(all, "engines", json_integer(options->engines));
	json_object_set_new(all, "processes", json_integer(options->processes));
	json_object_set_new(all, "degree", json_integer(options->degree));
	json_object_set_new(all, "transfer_bytes", json_integer(options->bytes));
	json_object_set_new(all, "cost", json_cost(results, options));
	json_object_set_new(all, "data",
			    json_pack("{s:o, s:o, s:o}", "seconds",
				      json_rounded(results->move_seconds), "transfers",
				      json_rounded(results->moved_transfers), "bytes",
				      json_rounded(results->moved_bytes)));
	if (options->restart)
		json_object_set_new(all, "restart", json_restart(many, results));
	json_object_set_new(all, "transfers", transfers);
	error = json_dump_file(all, options->json, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
	if (error)
		fprintf(stderr, "many: %s: %s\n", options->json, strerror(errno));
	json_decref(all);
	return error;
}
