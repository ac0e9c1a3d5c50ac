/* SPDX-License-Identifier: Apache-2.0 */
/* From the command line to the rows of a benchmark. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

#define LIST_MAX 32
#define DEPTH_MAX 1024
#define FLIGHT (UINT64_C(4) << 20) /* bytes in flight on a connection, if nobody says otherwise */

struct list {
	uint64_t value[LIST_MAX];
	size_t count;
};

/* What the rows are combined from. */
struct choices {
	struct list sizes, working_sets, connections, kinds, ops;
	const char *transports[3];
	size_t transport_count;
	uint64_t blocks, depth; /* depth 0: not said */
	uint32_t form;
	bool guarded;
	const char *peer;
};

/* ---- lists -------------------------------------------------------------------------------- */

/* Take the next word of a comma-separated list, moving *text on. */
static bool next_word(const char **text, char *word, size_t size)
{
	size_t length = strcspn(*text, ",");

	if (!**text)
		return false;
	snprintf(word, size, "%.*s", (int)length, *text);
	*text += length + ((*text)[length] == ',');
	return true;
}

/* Each word of option `name` (by default `fallback`) through `parse`, which says 0 or -1 after a
 * usage error. */
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

static int kind_word(const char *word, const char *what, uint64_t *out)
{
	for (uint32_t kind = WH_MEMORY_PAGEABLE; kind <= WH_MEMORY_SHARED; kind++)
		if (!strcmp(word, bench_kind_name(kind))) {
			*out = kind;
			return 0;
		}
	usage_error("%s: no kind '%s'; write host, pageable or huge", what, word);
	return -1;
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
	/* strtod() would also take hexadecimal numbers. */
	if (text[strspn(text, "0123456789.")] || errno || !(seconds >= 0.01 && seconds <= 3600) ||
	    *end)
		return usage_error("--seconds: '%s' is not a number from 0.01 to 3600", text);
	*ns = (int64_t)(seconds * 1e9);
	return 0;
}

/* ---- the command line --------------------------------------------------------------------- */

static int parse_transports(const struct arguments *arguments, struct choices *choices,
			    struct bench_plan *plan)
{
	static const char *const all[] = { "tcp", "shm", "self" };
	const char *text = argument(arguments, "transport");
	int error = check_choice(arguments, "transport");

	if (error)
		return error;
	plan->chosen = text && strcmp(text, "all") != 0;
	for (int i = 0; i < 3; i++) {
		if (plan->chosen ? strcmp(text, all[i]) != 0 : choices->peer && i == 2)
			continue;
		choices->transports[choices->transport_count++] = all[i];
	}
	if (choices->peer && plan->chosen && !strcmp(text, "self"))
		return usage_error("--transport self is this process alone: it has no --peer");
	return 0;
}

static int parse_numbers(const struct arguments *arguments, struct choices *choices)
{
	const char *blocks = argument(arguments, "blocks"), *depth = argument(arguments, "depth");

	choices->blocks = 1;
	if (blocks && parse_count(blocks, "--blocks", 1, 10000000, &choices->blocks))
		return EXIT_USAGE;
	if (depth && parse_count(depth, "--depth", 1, DEPTH_MAX, &choices->depth))
		return EXIT_USAGE;
	if (argument(arguments, "list") && !blocks)
		return usage_error("--list needs --blocks N: how many transfers a batch has");
	choices->form = !blocks			      ? BENCH_FORM_SINGLE :
			argument(arguments, "list") ? BENCH_FORM_LIST :
						      BENCH_FORM_BLOCKS;
	return 0;
}

static int parse_choices(const struct arguments *arguments, struct choices *choices,
			 struct bench_plan *plan)
{
	const char *op = argument(arguments, "op");
	int error = check_choice(arguments, "op");

	choices->guarded = argument(arguments, "verify");
	choices->peer = argument(arguments, "peer");
	if (op && !strcmp(op, "both"))
		op = NULL;
	if (!error)
		error = parse_transports(arguments, choices, plan);
	if (!error)
		error = parse_numbers(arguments, choices);
	if (!error && op)
		error = op_word(op, "--op", &choices->ops.value[choices->ops.count++]) ?
				EXIT_USAGE : 0;
	else if (!error)
		choices->ops = (struct list){ { WH_WRITE, WH_READ }, 2 };
	if (!error)
		error = parse_list(arguments, "size", "8,64KiB,1MiB,64MiB", size_word,
				   &choices->sizes);
	if (!error)
		error = parse_list(arguments, "working-set", "64MiB", size_word,
				   &choices->working_sets);
	if (!error)
		error = parse_list(arguments, "connections", "1", connection_word,
				   &choices->connections);
	if (!error)
		error = parse_list(arguments, "memory", "host", kind_word, &choices->kinds);
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
		   const struct bench_row *like, uint64_t size, uint64_t working_set)
{
	struct bench_row row = *like, *rows;
	const struct bench_row *last = plan->count ? &plan->rows[plan->count - 1] : NULL;

	if (bench_layout_plan(&row.layout, size, choices->blocks, working_set, choices->guarded))
		return usage_error("--size times --blocks is more than 16 TiB");
	row.depth = choices->depth ? (uint32_t)choices->depth : usual_depth(&row);
	/* A batch larger than the working set makes a working set of its own: once is enough. */
	if (last && !memcmp(last, &row, sizeof(row)))
		return 0;
	if (!(plan->count & (plan->count - 1))) {
		rows = realloc(plan->rows, (plan->count ? 2 * plan->count : 1) * sizeof(*rows));
		if (!rows)
			return fail(ENOMEM, "out of memory");
		plan->rows = rows;
	}
	plan->rows[plan->count++] = row;
	return 0;
}

/* All sizes, working sets and directions of one transport, pair of memories and connections. */
static int add_group(struct bench_plan *plan, const struct choices *choices,
		     const struct bench_row *like)
{
	struct bench_row row = *like;
	int error = 0;

	for (size_t op = 0; op < choices->ops.count; op++)
		for (size_t size = 0; size < choices->sizes.count; size++)
			for (size_t set = 0; !error && set < choices->working_sets.count; set++) {
				row.op = (uint32_t)choices->ops.value[op];
				error = add_row(plan, choices, &row, choices->sizes.value[size],
						choices->working_sets.value[set]);
			}
	return error;
}

static int add_transport(struct bench_plan *plan, const struct choices *choices,
			 const char *transport)
{
	bool tcp = !strcmp(transport, "tcp");
	const struct list *kinds = &choices->kinds;
	size_t pairs = kinds->count * kinds->count;
	int error = 0;

	for (size_t c = 0; c < (tcp ? choices->connections.count : 1); c++) {
		for (size_t pair = 0; !error && pair < pairs; pair++) {
			struct bench_row row;

			memset(&row, 0, sizeof(row)); /* padding too: rows are compared as bytes */
			row.form = choices->form;
			row.connections = tcp ? (uint32_t)choices->connections.value[c] : 0;
			row.source_kind = (uint32_t)kinds->value[pair / kinds->count];
			row.target_kind = (uint32_t)kinds->value[pair % kinds->count];
			snprintf(row.transport, sizeof(row.transport), "%s", transport);
			/* The peer's memory is what it is: pairs that differ in it alone are
			 * one. */
			if (choices->peer && pair % kinds->count)
				continue;
			if (choices->peer)
				row.target_kind = row.source_kind;
			error = add_group(plan, choices, &row);
		}
	}
	return error;
}

int bench_plan_make(const struct arguments *arguments, struct bench_plan *out)
{
	struct choices choices = { 0 };
	int error;

	*out = (struct bench_plan){ 0 };
	error = parse_choices(arguments, &choices, out);
	for (size_t i = 0; !error && i < choices.transport_count; i++)
		error = add_transport(out, &choices, choices.transports[i]);
	if (error)
		bench_plan_free(out);
	return error;
}

void bench_plan_free(struct bench_plan *plan)
{
	free(plan->rows);
	*plan = (struct bench_plan){ 0 };
}
