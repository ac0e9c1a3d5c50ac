/* SPDX-License-Identifier: Apache-2.0 */
/* wherry explain MEM MEM: how bytes would get from one memory of this machine to another. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine.h"
#include "explain/explain.h"
#include "explain/routes.h"
#include "memory.h"
#include "output.h"
#include "progress.h"

#define MOST (UINT64_C(1) << 33) /* bytes of either side */
/* bytes of the target that an estimate reads, if it has as many */
#define WALKED (UINT64_C(64) << 20)

enum { SOURCE, TARGET };

struct question {
	const char *text[2]; /* as on the command line */
	struct memory memory[2];
	uint64_t size, blocks; /* blocks 0: one transfer */
	struct wh_engine *engine;
	struct wh_peer *self;
	void *address[2];
	struct wh_region *region[2];
	struct wh_memory_info info[2];
	struct wh_batch *batch;
	struct explain_routes routes; /* the answer */
	char window[320];
	struct explain_warnings warnings;
};

static uint64_t bytes_of(const struct question *q)
{
	return q->size * (q->blocks ? q->blocks : 1);
}

/* Long enough for the estimate, which walks through the target's memory as wherry bench does. */
static uint64_t length_of(const struct question *q, int side)
{
	uint64_t bytes = bytes_of(q);

	if (side == SOURCE || bytes >= WALKED || memory_on_gpu(q->memory[side].kind))
		return bytes;
	return WALKED;
}

static uint64_t host_bytes(const struct question *q)
{
	uint64_t bytes = WALKED; /* what the estimate reads */

	for (int side = SOURCE; side <= TARGET; side++)
		if (!memory_on_gpu(q->memory[side].kind))
			bytes += length_of(q, side);
	return bytes;
}

static int question_prepare(struct question *q)
{
	struct wh_region_options options = { .size = sizeof(options),
					     .name = "target",
					     .access = WH_ACCESS_READ | WH_ACCESS_WRITE };
	int error;

	for (int side = SOURCE; side <= TARGET; side++) {
		error = memory_alloc(q->engine, &q->memory[side], length_of(q, side),
				     &q->address[side]);
		if (error)
			return engine_fail(error, q->text[side]);
		q->info[side].size = sizeof(q->info[side]);
		error = wh_memory_query(q->engine, q->address[side], &q->info[side]);
		if (!error)
			error = wh_region_register(q->engine, q->address[side], length_of(q, side),
						   side == TARGET ? &options : NULL,
						   &q->region[side]);
		if (error)
			return engine_fail(error, q->text[side]);
		/* Pages never written are the kernel's one page of zeros, which is always in the
		 * cache. */
		if (side == TARGET && !memory_on_gpu(q->memory[side].kind))
			memset(q->address[side], 0xa5, WALKED);
	}
	error = wh_peer_open(q->engine, "self", NULL, &q->self);
	return error ? engine_fail(error, "cannot connect to this process itself") : 0;
}

/* The blocks are contiguous: their offsets make no difference to the route. */
static int question_fill(struct question *q, const struct wh_remote *remote)
{
	struct wh_base base = { .local = q->region[SOURCE], .remote = remote->id };
	struct wh_blocks_desc desc = {
		.size = sizeof(desc),
		.op = WH_WRITE,
		.block_length = q->size,
		.count = q->blocks,
		.bases = &base,
		.base_count = 1,
	};
	struct wh_transfer whole = {
		.local = q->region[SOURCE],
		.remote = remote->id,
		.length = q->size,
		.op = WH_WRITE,
	};
	struct wh_blocks *blocks;
	int error;

	if (!q->blocks)
		return wh_batch_add(q->batch, &whole, 1);
	error = wh_blocks_new(q->self, &desc, &blocks);
	if (error)
		return error;
	error = wh_batch_add_blocks(q->batch, blocks);
	wh_blocks_free(blocks);
	return error;
}

static int question_ask(struct question *q)
{
	struct wh_remote remote;
	int error = wh_peer_find(q->self, "target", WH_ANSWER, &remote);

	if (!error)
		error = wh_batch_new(q->self, NULL, &q->batch);
	if (!error)
		error = question_fill(q, &remote);
	q->routes.count = EXPLAIN_ROUTES_MAX;
	if (!error)
		error = wh_batch_routes(q->batch, q->routes.list, &q->routes.count);
	if (error)
		return engine_fail(error, "cannot plan the transfer");
	/* Without it the duration is not known. */
	wh_peer_measure(q->self, q->region[SOURCE], remote.id);
	q->routes.estimate.size = sizeof(q->routes.estimate);
	error = wh_batch_estimate(q->batch, &q->routes.estimate);
	if (error && error != -EOPNOTSUPP)
		return engine_fail(error, "cannot estimate the time");
	explain_window(q->batch, q->window, sizeof(q->window));
	explain_collect_warnings(q->batch, &q->warnings);
	return 0;
}

static int question_undo(struct question *q, int code)
{
	int error = wh_batch_free(q->batch);

	for (int side = SOURCE; side <= TARGET; side++) {
		if (!error && q->region[side])
			error = wh_region_unregister(q->region[side]);
		if (!error && q->address[side])
			error = wh_memory_free(q->engine, q->address[side]);
	}
	code = engine_undo(code, error, "cannot free the memory");
	if (q->self)
		code = engine_undo(code, wh_peer_close(q->self), "cannot close the peer");
	return engine_close(q->engine, code);
}

/* ---- output ---------------------------------------------------------------------------------- */

static void print_memory(const struct question *q, int side)
{
	const struct wh_memory_info *info = &q->info[side];
	bool gpu = memory_on_gpu(info->kind);

	printf("%-8s %s", side == SOURCE ? "from" : "to", q->memory[side].name);
	if (gpu && info->uuid[0])
		printf(": %s memory of cuda:%d, %s at %s", memory_kind_name(info->kind),
		       info->device, info->uuid, info->pci);
	else if (info->numa_node >= 0)
		printf(": on NUMA node %d", info->numa_node);
	printf("\n");
}

static void print_engine(const struct question *q, const char *name, uint64_t ns, bool chosen)
{
	char with[40] = "";

	if (chosen && ns == q->routes.estimate.kernel)
		snprintf(with, sizeof(with), ", %u CTAs", q->routes.estimate.ctas);
	printf("  %-12s %10.1f us  %8.2f GB/s%s%s\n", name, (double)ns / 1e3,
	       (double)q->routes.estimate.bytes / (double)ns, with, chosen ? "  <- taken" : "");
}

static void print_text(const struct question *q)
{
	const struct wh_estimate *estimate = &q->routes.estimate;
	const struct wh_route *route = explain_route(&q->routes);
	char size[32], way[EXPLAIN_ROUTE_TEXT];

	format_size(size, sizeof(size), q->size);
	for (int side = SOURCE; side <= TARGET; side++)
		print_memory(q, side);
	if (q->blocks)
		printf("what     %" PRIu64 " blocks of %s in a batch, in one process\n", q->blocks,
		       size);
	else
		printf("what     %s in one piece, in one process\n", size);
	explain_route_text(route, way);
	printf("route    %s\n", way);
	if (estimate->duration) {
		bool kernel = estimate->kernel < estimate->copies;

		printf("expected from what %s%s\n",
		       estimate->measured ? "was measured here just now" :
					    "is usual: there was nothing to measure with",
		       explain_from_cache(estimate) ? ", from the CPU's cache" : "");
		if (estimate->kernel) {
			print_engine(q, "kernel", estimate->kernel, kernel);
			print_engine(q, "copy engine", estimate->copies, !kernel);
		} else {
			print_engine(q, "all of it", estimate->duration, false);
		}
	} else if (route) {
		printf("expected unknown: it could not be measured; wherry bench does it\n");
	}
	if (*q->window)
		printf("window   %s\n", q->window);
	for (size_t i = 0; i < q->routes.count; i++)
		if (q->routes.list[i].refused[0])
			printf("not by %s: %s\n", q->routes.list[i].transport,
			       q->routes.list[i].refused);
	explain_print_warnings(&q->warnings);
}

static json_t *json_memory(const struct question *q, int side)
{
	const struct wh_memory_info *info = &q->info[side];
	json_t *json = json_object();

	json_object_set_new(json, "memory", json_string(q->memory[side].name));
	json_object_set_new(json, "kind", json_string(memory_kind_name(info->kind)));
	json_object_set_new(json, "gpu_uuid", output_text(info->uuid));
	json_object_set_new(json, "gpu_pci", output_text(info->pci));
	json_object_set_new(json, "numa_node",
			    info->numa_node < 0 ? json_null() : json_integer(info->numa_node));
	return json;
}

static int print_json(const struct question *q)
{
	const struct wh_estimate *estimate = &q->routes.estimate;
	bool gpu = estimate->duration && estimate->kernel,
	     kernel = gpu && estimate->kernel < estimate->copies;
	json_t *object = output_new();

	json_object_set_new(object, "source", json_memory(q, SOURCE));
	json_object_set_new(object, "target", json_memory(q, TARGET));
	json_object_set_new(object, "size_bytes", json_integer((json_int_t)q->size));
	json_object_set_new(object, "blocks",
			    q->blocks ? json_integer((json_int_t)q->blocks) : json_null());
	explain_route_json(object, &q->routes);
	json_object_set_new(object, "engine",
			    output_text(!gpu   ? NULL :
					kernel ? "kernel" :
						 "copy engine"));
	json_object_set_new(object, "ctas", kernel ? json_integer(estimate->ctas) : json_null());
	explain_estimate_json(object, &q->routes);
	json_object_set_new(object, "kernel_us", explain_us_json(estimate->kernel));
	json_object_set_new(object, "copy_engine_us", explain_us_json(estimate->copies));
	json_object_set_new(object, "window", output_text(*q->window ? q->window : NULL));
	explain_refused_json(object, &q->routes);
	json_object_set_new(object, "warnings", explain_warnings_json(&q->warnings));
	return output_print(object);
}

/* ---- the command ----------------------------------------------------------------------------- */

bool explain_is_memory(const char *text)
{
	struct memory memory;
	const char *rest;

	return !memory_parse(text, &memory, &rest) && !*rest;
}

static int question_parse(const struct arguments *arguments, struct question *q)
{
	const char *size = argument(arguments, "size"), *blocks = argument(arguments, "blocks");
	const char *rest, *wrong;
	char text[MEMORY_TEXT];
	uint64_t most;

	for (int side = SOURCE; side <= TARGET; side++) {
		q->text[side] = arguments->operands[side];
		wrong = memory_parse(q->text[side], &q->memory[side], &rest);
		if (!wrong && *rest)
			wrong = "has a size after the location: use --size";
		if (wrong)
			return usage_error("'%s' %s", q->text[side], wrong);
	}
	if (size && parse_size(size, "--size", &q->size))
		return EXIT_USAGE;
	if (blocks && parse_count(blocks, "--blocks", 1, 10000000, &q->blocks))
		return EXIT_USAGE;
	most = MOST / (q->blocks ? q->blocks : 1);
	if (!q->size || q->size > most)
		return usage_error("--size times --blocks is not between 1 and 8GiB");
	if (!memory_fits("", host_bytes(q), false, text))
		return fail(ENOMEM, "cannot try it: %s", text);
	return 0;
}

/* The CUDA driver takes seconds to start, and measuring takes time as well. */
static int take_step(struct question *q, int (*step)(struct question *q), const char *label)
{
	struct progress progress;
	int code;

	progress_start_steps(&progress, label, 0, false);
	progress_watch(&progress);
	code = step(q);
	progress_end(&progress);
	return code;
}

int explain_memory(const struct arguments *arguments)
{
	static const struct engine_setup setup = { .listen = "none" };
	struct question q = { .size = UINT64_C(1) << 20 };
	int code = question_parse(arguments, &q);

	if (!code)
		code = engine_open(arguments, &setup, &q.engine);
	if (code)
		return code;
	code = take_step(&q, question_prepare, "allocating memory");
	if (!code)
		code = take_step(&q, question_ask, "measuring");
	if (!code && argument(arguments, "json"))
		code = print_json(&q);
	else if (!code)
		print_text(&q);
	return question_undo(&q, code                     ? code :
				 explain_route(&q.routes) ? EXIT_PASS :
							    EXIT_UNAVAILABLE);
}
