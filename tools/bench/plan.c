/* SPDX-License-Identifier: Apache-2.0 */
/* From the command line to the rows of a benchmark. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"

#define LIST_MAX 32
#define WAYS 6 /* transports, in one process and in two */
#define DEPTH_MAX 1024
#define FLIGHT (UINT64_C(4) << 20) /* bytes in flight on a connection by default */

struct list {
	uint64_t value[LIST_MAX];
	size_t count;
};

struct memories {
	struct memory memory[LIST_MAX];
	size_t count;
};

/* What one batch moves. */
struct load {
	uint64_t size, blocks; /* blocks 0: one transfer */
};

/* The values whose combinations are the rows. */
struct choices {
	struct list working_sets, connections, ops, processes;
	struct memories sources, targets;
	struct load loads[LIST_MAX];
	size_t load_count;
	const char *transport; /* NULL: all that make sense */
	uint64_t depth; /* 0: the default */
	bool list, matrix, both_ways;
	bool guarded;
	const char *peer;
};

/* ---- lists -------------------------------------------------------------------------------- */

/* Copy the next word of a comma-separated list and advance *text. */
static bool next_word(const char **text, char *word, size_t size)
{
	size_t length = strcspn(*text, ",");

	if (!**text)
		return false;
	snprintf(word, size, "%.*s", (int)length, *text);
	*text += length + ((*text)[length] == ',');
	return true;
}

/* Give each word of option `name` (by default of `fallback`) to `parse`, which returns 0, or -1
 * after a usage error. */
static int parse_list(const struct arguments *arguments, const char *name, const char *fallback,
		      int (*parse)(const char *word, const char *what, uint64_t *out),
		      struct list *list)
{
	const char *text = argument(arguments, name);
	char what[32], word[64];

	snprintf(what, sizeof(what), "--%s", name);
	if (!text)
		text = fallback;
	else if (!*text || text[strlen(text) - 1] == ',')
		return usage_error("%s: a word of the list is empty", what);
	while (next_word(&text, word, sizeof(word))) {
		if (!word[0])
			return usage_error("%s: a word of the list is empty", what);
		if (list->count == LIST_MAX)
			return usage_error("%s: more than %d of them", what, LIST_MAX);
		if (parse(word, what, &list->value[list->count]))
			return EXIT_USAGE;
		list->count++;
	}
	return 0;
}

static int size_word(const char *word, const char *what, uint64_t *out)
{
	if (parse_size(word, what, out))
		return -1;
	if (*out >= 1 && *out <= UINT64_C(1) << 40)
		return 0;
	usage_error("%s: '%s' is not from 1 to 1 TiB", what, word);
	return -1;
}

static int connection_word(const char *word, const char *what, uint64_t *out)
{
	return parse_count(word, what, 1, BENCH_CONNECTIONS, out) ? -1 : 0;
}

static int process_word(const char *word, const char *what, uint64_t *out)
{
	return parse_count(word, what, 1, 2, out) ? -1 : 0;
}

static int op_word(const char *word, const char *what, uint64_t *out)
{
	if (!strcmp(word, "read") || !strcmp(word, "write")) {
		*out = word[0] == 'r' ? WH_READ : WH_WRITE;
		return 0;
	}
	usage_error("%s: no '%s'; write read, write or both", what, word);
	return -1;
}

int bench_parse_seconds(const char *text, int64_t *ns)
{
	char *end;
	double seconds;

	errno = 0;
	seconds = isdigit((unsigned char)text[0]) ? strtod(text, &end) : 0;
	/* strtod() would also accept hexadecimal numbers. */
	if (text[strspn(text, "0123456789.")] || errno || !(seconds >= 0.01 && seconds <= 3600) ||
	    *end)
		return usage_error("--seconds: '%s' is not a number from 0.01 to 3600", text);
	*ns = (int64_t)(seconds * 1e9);
	return 0;
}

/* ---- the command line --------------------------------------------------------------------- */

static int add_memory(struct memories *memories, const char *what, const char *word)
{
	const char *rest, *wrong;

	if (memories->count == LIST_MAX)
		return usage_error("%s: more than %d of them", what, LIST_MAX);
	wrong = memory_parse(word, &memories->memory[memories->count], &rest);
	if (!wrong && *rest)
		wrong = "has a size after the location: a benchmark takes none here";
	if (wrong)
		return usage_error("%s: '%s' %s", what, word, wrong);
	memories->count++;
	return 0;
}

static int parse_memories(const char *text, const char *what, struct memories *memories)
{
	char word[128];
	int error = 0;

	if (!*text || text[strlen(text) - 1] == ',')
		return usage_error("%s: a word of the list is empty", what);
	while (!error && next_word(&text, word, sizeof(word)))
		error = word[0] ? add_memory(memories, what, word) :
				  usage_error("%s: a word of the list is empty", what);
	return error;
}

/* All memories of this machine. */
static int usual_memories(const struct choices *choices, struct bench_plan *plan,
			  struct memories *memories)
{
	char word[32];
	int error;

	if (!choices->matrix)
		return add_memory(memories, "--memory", "host");
	error = add_memory(memories, "--memory", "pageable");
	if (!error && plan->seen.count)
		error = add_memory(memories, "--memory", "pinned");
	for (size_t i = 0; !error && i < plan->seen.count; i++) {
		snprintf(word, sizeof(word), "cuda:%zu", i);
		error = add_memory(memories, "--memory", word);
	}
	if (!plan->seen.count && memories == &choices->targets)
		note("no GPU: %s", plan->seen.text);
	return error;
}

static int parse_sides(const struct arguments *arguments, struct choices *choices,
		       struct bench_plan *plan)
{
	static const char *const names[] = { "source", "target" };
	struct memories *sides[] = { &choices->sources, &choices->targets };
	const char *both = argument(arguments, "memory");
	int error = 0;

	for (int i = 0; !error && i < 2; i++) {
		const char *text = argument(arguments, names[i]);

		if (text && both)
			return usage_error("--memory names both sides: use either that or --%s",
					   names[i]);
		if (text && choices->peer && i)
			return usage_error(
				"--target: the peer of --peer decides what memory it has");
		if (text)
			error = parse_memories(text, i ? "--target" : "--source", sides[i]);
		else if (both)
			error = parse_memories(both, "--memory", sides[i]);
		else
			error = usual_memories(choices, plan, sides[i]);
		for (size_t k = 0; k < sides[i]->count; k++)
			plan->gpus = plan->gpus || memory_needs_gpu(sides[i]->memory[k].kind);
	}
	return error;
}

static int parse_loads(const struct arguments *arguments, struct choices *choices)
{
	const char *blocks = argument(arguments, "blocks"), *size = argument(arguments, "size");
	struct list sizes = { .count = 0 };
	uint64_t count = 0;
	int error;

	if (blocks && parse_count(blocks, "--blocks", 1, 10000000, &count))
		return EXIT_USAGE;
	choices->list = argument(arguments, "list");
	if (choices->list && !blocks)
		return usage_error("--list needs --blocks N: how many transfers a batch has");
	if (choices->matrix && !size && !blocks) {
		/* One load for the copy engines, one for the kernel. */
		choices->loads[0] = (struct load){ UINT64_C(64) << 20, 0 };
		choices->loads[1] = (struct load){ UINT64_C(16) << 10, 1024 };
		choices->load_count = 2;
		return 0;
	}
	error = parse_list(arguments, "size", "8,64KiB,1MiB,64MiB", size_word, &sizes);
	for (size_t i = 0; !error && i < sizes.count; i++)
		choices->loads[choices->load_count++] = (struct load){ sizes.value[i], count };
	return error;
}

static int parse_ways(const struct arguments *arguments, struct choices *choices,
		      struct bench_plan *plan)
{
	const char *transport = argument(arguments, "transport");
	int error = check_choice(arguments, "transport");

	choices->both_ways = argument(arguments, "both-ways");
	plan->chosen = transport && strcmp(transport, "all") != 0;
	choices->transport = plan->chosen ? transport : NULL;
	if (!error)
		error = parse_list(arguments, "processes", "2,1", process_word,
				   &choices->processes);
	if (!error && choices->peer && plan->chosen && !strcmp(transport, "self"))
		return usage_error("--transport self stays in this process: leave out --peer");
	if (!error && choices->peer && choices->both_ways)
		return usage_error(
			"--both-ways needs memory of its own at both ends: leave out --peer");
	if (!error && choices->peer && choices->matrix)
		return usage_error(
			"--matrix measures the memories of this machine: leave out --peer");
	return error;
}

static int parse_ops(const struct arguments *arguments, struct choices *choices)
{
	const char *op = argument(arguments, "op");
	int error = check_choice(arguments, "op");

	if (error)
		return error;
	if (op && strcmp(op, "both") != 0)
		return op_word(op, "--op", &choices->ops.value[choices->ops.count++]) ? EXIT_USAGE :
											0;
	/* In a matrix each pair also appears reversed. */
	choices->ops = (struct list){ { WH_WRITE, WH_READ }, choices->matrix && !op ? 1 : 2 };
	return 0;
}

static int parse_choices(const struct arguments *arguments, struct choices *choices,
			 struct bench_plan *plan)
{
	const char *depth = argument(arguments, "depth");
	int error;

	choices->guarded = argument(arguments, "verify");
	choices->peer = argument(arguments, "peer");
	choices->matrix = plan->matrix = argument(arguments, "matrix");
	if (depth && parse_count(depth, "--depth", 1, DEPTH_MAX, &choices->depth))
		return EXIT_USAGE;
	if (choices->matrix)
		bench_gpus_look(bench_setting(arguments, "cuda"), &plan->seen);
	error = parse_ways(arguments, choices, plan);
	if (!error)
		error = parse_ops(arguments, choices);
	if (!error)
		error = parse_loads(arguments, choices);
	if (!error)
		error = parse_list(arguments, "working-set", "64MiB", size_word,
				   &choices->working_sets);
	if (!error)
		error = parse_list(arguments, "connections", "1", connection_word,
				   &choices->connections);
	if (!error)
		error = parse_sides(arguments, choices, plan);
	if (!error && plan->gpus && !choices->matrix)
		bench_gpus_look(bench_setting(arguments, "cuda"), &plan->seen);
	return error;
}

/* ---- rows --------------------------------------------------------------------------------- */

/* Enough in flight that no connection waits for the next batch. */
static uint32_t usual_depth(const struct bench_row *row)
{
	uint64_t connections = row->connections ? row->connections : 1;
	uint64_t depth = FLIGHT * connections / bench_layout_bytes(&row->layout);

	if (depth < 2 * connections)
		depth = 2 * connections;
	return depth > 64 ? 64 : (uint32_t)depth;
}

static int add_row(struct bench_plan *plan, const struct choices *choices,
		   const struct bench_row *like, const struct load *load, uint64_t working_set)
{
	struct bench_row row = *like, *rows;

	row.form = !load->blocks ? BENCH_FORM_SINGLE :
		   choices->list ? BENCH_FORM_LIST :
				   BENCH_FORM_BLOCKS;
	if (bench_layout_plan(&row.layout, load->size, load->blocks ? load->blocks : 1, working_set,
			      choices->guarded))
		return usage_error("--size times --blocks is more than 16 TiB");
	row.depth = choices->depth ? (uint32_t)choices->depth : usual_depth(&row);
	if (plan->count == plan->room) {
		plan->room = plan->room ? 2 * plan->room : 16;
		rows = realloc(plan->rows, plan->room * sizeof(*rows));
		if (!rows)
			return fail(ENOMEM, "out of memory");
		plan->rows = rows;
	}
	plan->rows[plan->count++] = row;
	return 0;
}

/* Add the rows of all working sets and directions for one batch, transport, pair of memories and
 * number of connections. */
static int add_sets(struct bench_plan *plan, const struct choices *choices,
		    const struct bench_row *like, const struct load *load)
{
	int error = 0;

	for (size_t set = 0; !error && set < choices->working_sets.count; set++) {
		error = add_row(plan, choices, like, load, choices->working_sets.value[set]);
		/* A batch larger than the working set is a working set of its own: add it once. */
		if (!error && set &&
		    !memcmp(&plan->rows[plan->count - 1].layout,
			    &plan->rows[plan->count - 2].layout, sizeof(struct bench_layout)))
			plan->count--;
	}
	return error;
}

static int add_group(struct bench_plan *plan, const struct choices *choices,
		     const struct bench_row *like)
{
	struct bench_row row = *like;
	int error = 0;

	for (size_t op = 0; op < choices->ops.count; op++)
		for (size_t load = 0; !error && load < choices->load_count; load++) {
			row.op = (uint32_t)choices->ops.value[op];
			error = add_sets(plan, choices, &row, &choices->loads[load]);
		}
	return error;
}

/* Worth measuring; what the user names always is. */
static bool row_is_sensible(const struct choices *choices, const char *transport,
			    const struct memory *source, const struct memory *target)
{
	bool gpu = memory_on_gpu(source->kind) || memory_on_gpu(target->kind);

	return choices->transport || !strcmp(transport, "tcp") || gpu == !strcmp(transport, "cuda");
}

/* Add every pair of memories by one transport or, for "", by the best. */
static int add_pairs(struct bench_plan *plan, const struct choices *choices,
		     const struct bench_row *like, const struct load *load)
{
	size_t targets =
		choices->peer ? 1 : choices->targets.count; /* the peer has one kind of memory */
	struct bench_row row = *like;
	int error = 0;

	for (size_t s = 0; s < choices->sources.count; s++)
		for (size_t t = 0; !error && t < targets; t++) {
			row.source = choices->sources.memory[s];
			row.target = choices->peer ? row.source : choices->targets.memory[t];
			if (load) {
				row.op = (uint32_t)choices->ops.value[0];
				error = add_sets(plan, choices, &row, load);
			} else if (row_is_sensible(choices, row.transport, &row.source,
						   &row.target)) {
				error = add_group(plan, choices, &row);
			}
		}
	return error;
}

static bool has_processes(const struct choices *choices, uint64_t processes)
{
	for (size_t i = 0; i < choices->processes.count; i++)
		if (choices->processes.value[i] == processes)
			return true;
	return false;
}

static int add_transports(struct bench_plan *plan, const struct choices *choices)
{
	static const struct {
		const char *name;
		bool one_process;
	} all[WAYS] = { { "tcp", false },  { "rdma", false }, { "shm", false },
			{ "cuda", false }, { "self", true },  { "cuda", true } };
	struct bench_row row = { .both_ways = choices->both_ways };
	int error = 0;

	for (int i = 0; i < WAYS; i++) {
		bool tcp = !strcmp(all[i].name, "tcp");

		/* Processes of one machine use rdma only if the user names it: it takes a NIC. */
		if (!choices->transport && !strcmp(all[i].name, "rdma"))
			continue;
		if ((choices->transport && strcmp(choices->transport, all[i].name) != 0) ||
		    !has_processes(choices, all[i].one_process ? 1 : 2) ||
		    (choices->peer && all[i].one_process))
			continue;
		row.one_process = all[i].one_process;
		memset(row.transport, 0, sizeof(row.transport));
		snprintf(row.transport, sizeof(row.transport), "%s", all[i].name);
		for (size_t c = 0; !error && c < (tcp ? choices->connections.count : 1); c++) {
			row.connections = tcp ? (uint32_t)choices->connections.value[c] : 0;
			error = add_pairs(plan, choices, &row, NULL);
		}
	}
	return error;
}

/* Add one matrix after the other: each batch, in one process and in two, one way and both. */
static int add_matrices(struct bench_plan *plan, const struct choices *choices)
{
	struct bench_row row = { 0 };
	int error = 0;

	if (choices->transport)
		snprintf(row.transport, sizeof(row.transport), "%s", choices->transport);
	for (size_t load = 0; load < choices->load_count; load++)
		for (size_t p = 0; p < choices->processes.count; p++)
			for (int ways = choices->both_ways ? 2 : 1; !error && ways <= 2; ways++) {
				row.one_process = choices->processes.value[p] == 1;
				row.both_ways = ways == 2;
				error = add_pairs(plan, choices, &row, &choices->loads[load]);
			}
	return error;
}

/* Bytes of host memory that a row takes, its limit's included. */
static uint64_t row_bytes(const struct bench_row *row, bool peer, bool limits)
{
	uint64_t source = memory_on_gpu(row->source.kind) ? 0 : row->layout.source_length;
	uint64_t target = memory_on_gpu(row->target.kind) ? 0 : row->layout.target_length;
	uint64_t bytes = !peer ? source + target : row->op == WH_WRITE ? source : target;

	/* At most 2^45 bytes each: bench_layout_plan(). */
	return bytes * (row->both_ways ? 2 : 1) * (limits ? 2 : 1);
}

/* Report what the machine lacks once, before the first row and before any memory is touched. */
static int check_machine(const struct arguments *arguments, const struct choices *choices,
			 const struct bench_plan *plan)
{
	bool peer = choices->peer, limits = argument(arguments, "limits") && !peer;
	uint64_t most = 0, bytes;
	char text[MEMORY_TEXT];
	bool locked = false;

	if (plan->gpus && !plan->seen.count)
		return fail(ENODEV, "no GPU: %s", plan->seen.text);
	for (size_t i = 0; i < plan->count; i++) {
		const struct bench_row *row = &plan->rows[i];

		bytes = row_bytes(row, peer, limits);
		if (bytes <= most)
			continue;
		most = bytes;
		locked = memory_needs_gpu(row->source.kind) || memory_needs_gpu(row->target.kind);
	}
	if (memory_fits("", most, locked, text))
		return 0;
	return fail(ENOMEM, "--size, --blocks or --working-set is too large: %s", text);
}

int bench_plan_make(const struct arguments *arguments, struct bench_plan *out)
{
	struct choices choices = { 0 };
	int error;

	*out = (struct bench_plan){ 0 };
	error = parse_choices(arguments, &choices, out);
	if (!error)
		error = choices.matrix ? add_matrices(out, &choices) :
					 add_transports(out, &choices);
	if (!error && !out->count)
		error = usage_error("nothing is left to measure: --transport and --processes "
				    "exclude each other");
	if (!error)
		error = check_machine(arguments, &choices, out);
	if (error)
		bench_plan_free(out);
	return error;
}

void bench_plan_free(struct bench_plan *plan)
{
	free(plan->rows);
	*plan = (struct bench_plan){ 0 };
}
