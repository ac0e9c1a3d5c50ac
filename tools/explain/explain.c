/* SPDX-License-Identifier: Apache-2.0 */
/* wherry explain: who a peer is, what it offers, and which routes lead there. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "explain/explain.h"
#include "explain/routes.h"
#include "memory.h"
#include "output.h"
#include "progress.h"
#include "url.h"

#define REGIONS_SHOWN 8
#define REASONS_MAX 16
#define REFUSED_COLUMN 14 /* "self[1] shm[2]" */
#define EXPECTED_COLUMN 24
#define SIZE_USUAL (UINT64_C(1) << 20)

/* Memory of one kind on this side. */
struct local {
	const char *name;
	uint32_t kind;
	void *address;
	struct wh_region *region;
};

/* How a transfer between two memories would be done. */
struct answer {
	struct explain_routes routes;
	int error; /* why there are no routes */
	char text[256];
	/* GPU memory: how NICs or the CPU reach it, and why not better; "": neither applies */
	char memory[1200];
};

struct explanation {
	struct wh_engine *engine;
	struct wh_peer *peer;
	struct wh_peer_info info;
	struct wh_remote remotes[REGIONS_SHOWN];
	bool more; /* regions than these */
	size_t remote_count;
	struct local locals[3];
	uint64_t size;
	/* Refusals listed so far, for the notes below the table. */
	char reasons[REASONS_MAX][sizeof(((struct answer *)0)->memory) + 24];
	size_t reason_count;
	struct explain_warnings warnings;
};

static const char *op_name(uint32_t op)
{
	return op == WH_READ ? "read" : "write";
}

static void remote_name(const struct wh_remote *remote, char *out, size_t size)
{
	if (remote->name[0])
		snprintf(out, size, "%s", remote->name);
	else
		snprintf(out, size, "0x%" PRIx64, remote->id);
}

/* Ids use all 64 bits, which a JSON number may not preserve. */
static json_t *json_id(uint64_t id)
{
	char text[24];

	snprintf(text, sizeof(text), "0x%" PRIx64, id);
	return json_string(text);
}

/* ---- asking ---------------------------------------------------------------------------------- */

static int find_regions(struct explanation *e, const struct url *url)
{
	uint64_t cursor = 0;
	size_t count;
	int error;

	if (url->region[0]) {
		error = wh_peer_find(e->peer, url->region, WH_ANSWER, &e->remotes[0]);
		if (error == -ENOENT)
			return fail(ENOENT, "%s: no region '%s'; without a region all are shown",
				    url->engine, url->region);
		if (error)
			return engine_fail(error, url->engine);
		e->remote_count = 1;
		return 0;
	}
	do {
		count = REGIONS_SHOWN - e->remote_count;
		error = wh_peer_list(e->peer, &cursor, e->remotes + e->remote_count, &count,
				     WH_ANSWER);
		if (error)
			return engine_fail(error, url->engine);
		e->remote_count += count;
	} while (cursor && e->remote_count < REGIONS_SHOWN);
	e->more = cursor;
	return 0;
}

static int make_locals(struct explanation *e)
{
	static const uint32_t kinds[] = { WH_MEMORY_SHARED, WH_MEMORY_PAGEABLE, WH_MEMORY_HUGE };

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		struct wh_memory_options options = { .size = sizeof(options), .kind = kinds[i] };
		struct local *local = &e->locals[i];
		int error;

		local->name = memory_kind_name(kinds[i]);
		local->kind = kinds[i];
		error = wh_memory_alloc(e->engine, e->size, &options, &local->address);
		if (!error)
			error = wh_region_register(e->engine, local->address, e->size, NULL,
						   &local->region);
		if (error)
			return engine_fail(error, "cannot allocate memory for the estimates");
	}
	return 0;
}

/* Find the line of the explanation about a GPU's memory. */
static void find_memory(struct wh_batch *batch, struct answer *out)
{
	char text[2048], *line, *rest = text;

	if (wh_batch_explain(batch, text, sizeof(text)) < 0)
		return;
	while ((line = strsep(&rest, "\n")))
		if (strncmp(line, "rdma, ", strlen("rdma, ")) == 0)
			snprintf(out->memory, sizeof(out->memory), "%s", line + strlen("rdma, "));
	if (!*out->memory)
		explain_window(batch, out->memory, sizeof(out->memory));
}

static void answer_ask(struct explanation *e, const struct local *local,
		       const struct wh_remote *remote, uint32_t op, struct answer *out)
{
	struct wh_transfer transfer = {
		.local = local->region,
		.remote = remote->id,
		.length = e->size < remote->length ? e->size : remote->length,
		.op = op,
	};
	struct wh_batch *batch = NULL;
	struct progress progress;

	*out = (struct answer){ .routes.count = EXPLAIN_ROUTES_MAX };
	out->error = wh_batch_new(e->peer, NULL, &batch);
	if (!out->error)
		out->error = wh_batch_add(batch, &transfer, 1);
	if (!out->error)
		out->routes.estimate.size = sizeof(out->routes.estimate);
	progress_start_steps(&progress, "measuring", 0, false);
	progress_watch(&progress);
	/* Measure first what is not known, because that may open the connections that the routes
	 * report. The routes report its failures. */
	if (!out->error && !wh_batch_estimate(batch, &out->routes.estimate) &&
	    !out->routes.estimate.duration)
		wh_peer_measure(e->peer, local->region, remote->id);
	if (!out->error && wh_batch_estimate(batch, &out->routes.estimate))
		out->routes.estimate.duration = 0;
	progress_end(&progress);
	if (!out->error)
		out->error = wh_batch_routes(batch, out->routes.list, &out->routes.count);
	if (out->error) {
		snprintf(out->text, sizeof(out->text), "%s", wh_error_text());
		out->routes.count = 0;
	} else {
		find_memory(batch, out);
		explain_collect_warnings(batch, &e->warnings);
	}
	wh_batch_free(batch);
}

static bool is_granted(const struct wh_remote *remote, uint32_t op)
{
	return remote->access & (op == WH_READ ? WH_ACCESS_READ : WH_ACCESS_WRITE);
}

/* ---- as text --------------------------------------------------------------------------------- */

static void print_peer(const struct explanation *e)
{
	printf("peer     %s at %s, epoch %016" PRIx64 "\n", e->info.name, e->info.address,
	       e->info.epoch);
	printf("regions  %zu%s\n", e->remote_count, e->more ? "+" : "");
	for (size_t i = 0; i < e->remote_count; i++) {
		const struct wh_remote *remote = &e->remotes[i];
		char name[64], size[32];

		remote_name(remote, name, sizeof(name));
		format_size(size, sizeof(size), remote->length);
		printf("  %-12s %-14s %-9s%s%s\n", name, size, memory_kind_name(remote->kind),
		       is_granted(remote, WH_READ) ? " read" : "",
		       is_granted(remote, WH_WRITE) ? " write" : "");
	}
	if (!e->remote_count)
		printf("  none: it has none, or does not grant their listing; name one as "
		       "wherry://HOST:PORT/REGION\n");
	if (e->more)
		printf("  ... and more: wherry ls lists them; name one as "
		       "wherry://HOST:PORT/REGION\n");
}

/* The number of a refusal in the notes; 0: no room. */
static size_t reason_number(struct explanation *e, const char *transport, const char *reason)
{
	char text[sizeof(e->reasons[0])];

	snprintf(text, sizeof(text), "%.15s: %.399s", transport, reason);
	for (size_t i = 0; i < e->reason_count; i++)
		if (strcmp(e->reasons[i], text) == 0)
			return i + 1;
	if (e->reason_count == REASONS_MAX)
		return 0;
	memcpy(e->reasons[e->reason_count], text, sizeof(text));
	return ++e->reason_count;
}

static void print_answer(struct explanation *e, const char *local, const char *remote,
			 const char *op, const struct answer *answer)
{
	const struct wh_estimate *estimate = &answer->routes.estimate;
	const struct wh_route *route = explain_route(&answer->routes);
	char way[EXPLAIN_ROUTE_TEXT], expected[48] = "-";
	int used = 0;

	explain_route_text(route, way);
	printf("  %-9s %-12s %-11s ", local, remote, op);
	for (size_t i = 0; i < answer->routes.count; i++) {
		const struct wh_route *other = &answer->routes.list[i];

		if (!other->refused[0])
			continue;
		used += printf("%s%s[%zu]", used ? " " : "", other->transport,
			       reason_number(e, other->transport, other->refused));
	}
	if (answer->error)
		used += printf("[%zu]", reason_number(e, "error", answer->text));
	if (estimate->duration)
		snprintf(expected, sizeof(expected), "%.1f us, %.2f GB/s",
			 (double)estimate->duration / 1e3, explain_speed(estimate));
	/* The route is the last column because it may be long. */
	printf("%*s %-*s %s", used < REFUSED_COLUMN ? REFUSED_COLUMN - used : 0, "",
	       EXPECTED_COLUMN, expected, way);
	if (route && *answer->memory)
		printf(" [%zu]", reason_number(e, route->transport, answer->memory));
	if (explain_from_cache(estimate)) {
		char note[128], size[32];

		format_size(size, sizeof(size), estimate->working_set);
		snprintf(note, sizeof(note),
			 "from the CPU's cache: the region has %s; larger ones take longer", size);
		printf(" [%zu]", reason_number(e, "expected", note));
	}
	printf("\n");
}

static bool answer_same(const struct answer *a, const struct answer *b)
{
	if (a->error != b->error || a->routes.count != b->routes.count ||
	    strcmp(a->text, b->text) != 0 ||
	    a->routes.estimate.duration != b->routes.estimate.duration)
		return false;
	for (size_t i = 0; i < a->routes.count; i++) {
		const struct wh_route *x = &a->routes.list[i], *y = &b->routes.list[i];

		if (strcmp(x->transport, y->transport) != 0 || strcmp(x->detail, y->detail) != 0 ||
		    strcmp(x->refused, y->refused) != 0)
			return false;
	}
	return true;
}

static void print_pair(struct explanation *e, const struct local *local,
		       const struct wh_remote *remote)
{
	bool may_read = is_granted(remote, WH_READ), may_write = is_granted(remote, WH_WRITE);
	struct answer reading, writing;
	char name[64];

	remote_name(remote, name, sizeof(name));
	if (may_read)
		answer_ask(e, local, remote, WH_READ, &reading);
	if (may_write)
		answer_ask(e, local, remote, WH_WRITE, &writing);
	if (may_read && may_write && answer_same(&reading, &writing)) {
		print_answer(e, local->name, name, "read, write", &reading);
		return;
	}
	if (may_read)
		print_answer(e, local->name, name, "read", &reading);
	if (may_write)
		print_answer(e, local->name, name, "write", &writing);
}

static void print_text(struct explanation *e)
{
	char size[32];

	if (!e->remote_count)
		return;
	format_size(size, sizeof(size), e->size);
	printf("routes   for %s at a time\n", size);
	printf("  %-9s %-12s %-11s %-*s %-*s %s\n", "HERE", "THERE", "OP", REFUSED_COLUMN,
	       "REFUSED", EXPECTED_COLUMN, "EXPECTED", "ROUTE");
	for (size_t i = 0; i < e->remote_count; i++)
		for (size_t k = 0; k < sizeof(e->locals) / sizeof(e->locals[0]); k++)
			print_pair(e, &e->locals[k], &e->remotes[i]);
	for (size_t i = 0; i < e->reason_count; i++)
		printf("[%zu] %s\n", i + 1, e->reasons[i]);
	explain_print_warnings(&e->warnings);
}

/* ---- as JSON --------------------------------------------------------------------------------- */

static json_t *json_answer(const struct local *local, const struct wh_remote *remote, uint32_t op,
			   const struct answer *answer)
{
	json_t *object = json_pack("{s:s, s:o, s:o, s:s}", "local", local->name, "remote",
				   output_text(remote->name), "remote_id", json_id(remote->id),
				   "op", op_name(op));

	explain_route_json(object, &answer->routes);
	json_object_set_new(object, "error", output_text(answer->error ? answer->text : NULL));
	json_object_set_new(object, "memory", output_text(*answer->memory ? answer->memory : NULL));
	explain_refused_json(object, &answer->routes);
	explain_estimate_json(object, &answer->routes);
	return object;
}

static void json_pair(struct explanation *e, json_t *routes, const struct local *local,
		      const struct wh_remote *remote)
{
	static const uint32_t ops[] = { WH_READ, WH_WRITE };
	struct answer answer;

	for (size_t i = 0; i < 2; i++) {
		if (!is_granted(remote, ops[i]))
			continue;
		answer_ask(e, local, remote, ops[i], &answer);
		json_array_append_new(routes, json_answer(local, remote, ops[i], &answer));
	}
}

static int print_json(struct explanation *e)
{
	json_t *object = output_new(), *regions = json_array(), *routes = json_array();
	char epoch[24];

	snprintf(epoch, sizeof(epoch), "%016" PRIx64, e->info.epoch);
	for (size_t i = 0; i < e->remote_count; i++) {
		const struct wh_remote *remote = &e->remotes[i];

		json_array_append_new(regions, json_pack("{s:o, s:o, s:I, s:s, s:b, s:b}", "id",
							 json_id(remote->id), "name",
							 output_text(remote->name), "size_bytes",
							 (json_int_t)remote->length, "kind",
							 memory_kind_name(remote->kind), "read",
							 is_granted(remote, WH_READ), "write",
							 is_granted(remote, WH_WRITE)));
		for (size_t k = 0; k < sizeof(e->locals) / sizeof(e->locals[0]); k++)
			json_pair(e, routes, &e->locals[k], remote);
	}
	json_object_set_new(object, "peer",
			    json_pack("{s:s, s:s, s:s}", "name", e->info.name, "address",
				      e->info.address, "epoch", epoch));
	json_object_set_new(object, "region_count", json_integer((json_int_t)e->remote_count));
	json_object_set_new(object, "more_regions", json_boolean(e->more));
	json_object_set_new(object, "regions", regions);
	json_object_set_new(object, "size_bytes", json_integer((json_int_t)e->size));
	json_object_set_new(object, "routes", routes);
	json_object_set_new(object, "warnings", explain_warnings_json(&e->warnings));
	return output_print(object);
}

/* ---- the command ----------------------------------------------------------------------------- */

static int explain_peer(struct explanation *e, const struct url *url, bool json)
{
	int code, error;

	error = engine_connect(e->engine, url->engine, false, &e->peer);
	if (error)
		return fail(error, "%s", wh_error_text());
	e->info.size = sizeof(e->info);
	error = wh_peer_info(e->peer, &e->info);
	if (error)
		return engine_fail(error, url->engine);
	code = find_regions(e, url);
	if (!code)
		code = make_locals(e);
	if (code)
		return code;
	if (json)
		return print_json(e);
	print_peer(e);
	print_text(e);
	return EXIT_PASS;
}

static int explanation_undo(struct explanation *e, int code)
{
	for (size_t i = 0; i < sizeof(e->locals) / sizeof(e->locals[0]); i++) {
		struct local *local = &e->locals[i];
		int error = local->region ? wh_region_unregister(local->region) : 0;

		if (!error && local->address)
			error = wh_memory_free(e->engine, local->address);
		code = engine_undo(code, error, "cannot free memory");
	}
	if (e->peer)
		code = engine_undo(code, wh_peer_close(e->peer), "cannot close the connection");
	return engine_close(e->engine, code);
}

static int explain_run(const struct arguments *arguments)
{
	static const struct engine_setup setup = { .listen = "none" };
	const char *number = argument(arguments, "errno"), *size = argument(arguments, "size");
	bool json = argument(arguments, "json");
	struct explanation e = { .size = SIZE_USUAL };
	const char *wrong;
	struct url url;
	int code;

	if (number && arguments->operand_count)
		return usage_error("either --errno or an address, not both");
	if (number)
		return explain_errno(number, json);
	if (!arguments->operand_count)
		return usage_error("needs the address of a peer, two memories, or --errno N");
	if (arguments->operand_count == 2)
		return explain_memory(arguments);
	if (argument(arguments, "blocks"))
		return usage_error("--blocks is for two memories: wherry explain cuda:0 cuda:1");
	if (explain_is_memory(arguments->operands[0]))
		return usage_error("'%s' is a memory: name a second one, the target",
				   arguments->operands[0]);
	wrong = url_parse(arguments->operands[0], &url);
	if (wrong)
		return usage_error("'%s' %s", arguments->operands[0], wrong);
	if (url.offset)
		return usage_error("'%s': routes do not depend on the offset; leave it out",
				   arguments->operands[0]);
	if (size && parse_size(size, "--size", &e.size))
		return EXIT_USAGE;
	if (!e.size || e.size > UINT64_C(1) << 30)
		return usage_error("--size: %s is not between 1 and 1GiB", size);
	code = engine_open(arguments, &setup, &e.engine);
	if (code)
		return code;
	return explanation_undo(&e, explain_peer(&e, &url, json));
}

static const struct command_option options[] = {
	{ .name = "size", .argument = "SIZE", .help = "bytes of a transfer; by default 1MiB" },
	{ .name = "blocks", .argument = "N", .help = "N blocks of that size; two memories only" },
	{ .name = "errno", .argument = "N", .help = "explain what an errno means in Wherry" },
	{ .name = "json", .letter = 'j', .help = "as JSON" },
	ENGINE_OPTIONS,
	{ 0 },
};

const struct command command_explain = {
	.name = "explain",
	.usage = "[wherry://HOST:PORT[/REGION] | MEM MEM]",
	.summary = "Show which routes lead to a peer, and why not better ones",
	.details = "Connects, and prints who the peer is, which regions it offers, and for each "
		   "kind of memory here and each region there the route that a transfer of "
		   "--size would take, and how long. To measure a route, the command reads up "
		   "to 64 MiB a few times from each readable region of at least 64 KiB; it "
		   "writes nothing. It says so where a region is so short that the bytes come "
		   "from the CPU's cache.\n"
		   "\n"
		   "With two memories of this machine it shows by which route and engine --size "
		   "bytes, or --blocks of them, would go from the first to the second in one "
		   "process, and how long that would take. The engine measures a GPU's kernel "
		   "and copy engines, or the CPU's copies, when a route is first used.\n"
		   "\n" MEMORY_HELP,
	.examples = "wherry explain wherry://127.0.0.1:7000\n"
		    "wherry explain wherry://node7:7000/host --json | jq '.routes[].transport'\n"
		    "wherry explain cuda:0 cuda:1 --size 4KiB --blocks 16384\n"
		    "wherry explain --errno ESTALE\n",
	.options = options,
	.least = 0,
	.most = 2,
	.run = explain_run,
};
