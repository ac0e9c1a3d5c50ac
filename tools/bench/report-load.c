/* SPDX-License-Identifier: Apache-2.0 */
/* Read files of wherry bench --json and check their values. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "bench/report.h"
#include "command.h"

#define SCHEMA 1
#define NUMBER_MOST 1e15

/* The row that a value comes from, named in the message if the value is not valid. */
struct origin {
	const char *list; /* "results" */
	size_t index;
	char *why;
};

static int value_wrong(char *why, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int value_wrong(char *why, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vsnprintf(why, REPORT_WHY, format, list);
	va_end(list);
	return -1;
}

static int wrong_value(const struct origin *origin, const char *key, const char *wanted)
{
	return value_wrong(origin->why, "%s[%zu]: \"%s\" is not %s", origin->list, origin->index,
			   key, wanted);
}

/* ---- values: absent and null mean unknown ---------------------------------------------------- */

static int read_text(const struct origin *origin, const json_t *row, const char *key,
		     const char **out)
{
	const json_t *value = json_object_get(row, key);

	*out = "";
	if (!value || json_is_null(value))
		return 0;
	if (!json_is_string(value))
		return wrong_value(origin, key, "a text");
	*out = json_string_value(value);
	return 0;
}

static int read_number(const struct origin *origin, const json_t *row, const char *key, double *out)
{
	const json_t *value = json_object_get(row, key);

	*out = NAN;
	if (!value || json_is_null(value))
		return 0;
	if (!json_is_number(value) || !(json_number_value(value) >= 0) ||
	    json_number_value(value) > NUMBER_MOST)
		return wrong_value(origin, key, "a number from 0 to 1e15");
	*out = json_number_value(value);
	return 0;
}

static int read_count(const struct origin *origin, const json_t *row, const char *key,
		      uint64_t absent, uint64_t *out)
{
	const json_t *value = json_object_get(row, key);

	*out = absent;
	if (!value || json_is_null(value))
		return 0;
	if (!json_is_integer(value) || json_integer_value(value) < 0 ||
	    json_integer_value(value) > (json_int_t)NUMBER_MOST)
		return wrong_value(origin, key, "a whole number from 0 to 1e15");
	*out = (uint64_t)json_integer_value(value);
	return 0;
}

static int read_flag(const struct origin *origin, const json_t *row, const char *key, int *out)
{
	const json_t *value = json_object_get(row, key);

	*out = -1;
	if (!value || json_is_null(value))
		return 0;
	if (!json_is_boolean(value))
		return wrong_value(origin, key, "true or false");
	*out = json_is_true(value);
	return 0;
}

/* ---- a row -------------------------------------------------------------------------------- */

static int read_texts(const struct origin *origin, const json_t *json, struct report_row *row)
{
	const struct {
		const char *key, **at;
		bool needed;
	} texts[] = {
		{ "op", &row->op, true },
		{ "source", &row->source, true },
		{ "target", &row->target, true },
		{ "form", &row->form, true },
		{ "transport", &row->transport, false },
		{ "route_detail", &row->detail, false },
		{ "mode", &row->mode, false },
		{ "limit_name", &row->limit_name, false },
		{ row->skipped ? "reason" : "error", &row->error, false },
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		if (read_text(origin, json, texts[i].key, texts[i].at))
			return -1;
		if (texts[i].needed && !**texts[i].at)
			return value_wrong(origin->why,
					   "%s[%zu]: no \"%s\"; wherry bench --json writes one",
					   origin->list, origin->index, texts[i].key);
	}
	return 0;
}

static int read_counts(const struct origin *origin, const json_t *json, struct report_row *row)
{
	const struct {
		const char *key;
		uint64_t *at, absent;
	} counts[] = {
		{ "size_bytes", &row->size, 0 },
		{ "blocks", &row->blocks, 1 },
		/* The first version of the format did not have these two. */
		{ "processes", &row->processes, strcmp(row->transport, "self") ? 2 : 1 },
		{ "ways", &row->ways, 1 },
		{ "connections", &row->connections, 0 },
		{ "working_set_bytes", &row->set, 0 },
		{ "in_flight", &row->in_flight, 0 },
		{ "samples", &row->samples, 0 },
		{ "rounds", &row->rounds, 0 },
	};

	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
		if (read_count(origin, json, counts[i].key, counts[i].absent, counts[i].at))
			return -1;
	return row->size && row->blocks ? 0 :
					  wrong_value(origin, row->size ? "blocks" : "size_bytes",
						      "a number from 1 up");
}

static int read_numbers(const struct origin *origin, const json_t *json, struct report_row *row)
{
	const json_t *latency = json_object_get(json, "latency_us");
	const json_t *first = json_object_get(json, "first_byte_us");
	const struct {
		const json_t *from;
		const char *key;
		double *at;
	} numbers[] = {
		{ json, "bandwidth_GBps", &row->bandwidth },
		{ latency, "p50", &row->p50 },
		{ latency, "p99", &row->p99 },
		{ latency, "p999", &row->p999 },
		{ json, "submit_ns_per_transfer", &row->submit },
		{ first, "new", &row->first_new },
		{ first, "prepared", &row->first_prepared },
		{ json, "limit_GBps", &row->limit_bandwidth },
		{ json, "limit_us", &row->limit_latency },
		{ json, "ratio", &row->ratio },
		{ json, "latency_ratio", &row->latency_ratio },
	};

	if (latency && !json_is_null(latency) && !json_is_object(latency))
		return wrong_value(origin, "latency_us", "an object");
	if (first && !json_is_null(first) && !json_is_object(first))
		return wrong_value(origin, "first_byte_us", "an object");
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (read_number(origin, numbers[i].from, numbers[i].key, numbers[i].at))
			return -1;
	return 0;
}

static int read_row(const struct origin *origin, const json_t *json, struct report_row *row)
{
	int pinned;

	if (!json_is_object(json))
		return value_wrong(origin->why, "%s[%zu] is not an object", origin->list,
				   origin->index);
	if (read_texts(origin, json, row) || read_counts(origin, json, row) ||
	    read_numbers(origin, json, row) ||
	    read_flag(origin, json, "verified", &row->verified) ||
	    read_flag(origin, json, "pinned", &pinned))
		return -1;
	row->pinned = pinned == 1;
	return 0;
}

/* ---- a file ------------------------------------------------------------------------------- */

static int read_list(struct report_set *set, const json_t *root, bool skipped, char *why)
{
	struct origin origin = { .list = skipped ? "skipped" : "results", .why = why };
	const json_t *list = json_object_get(root, origin.list);

	if (skipped && !list)
		return 0;
	if (!json_is_array(list))
		return value_wrong(why, "no list \"%s\": not a result of wherry bench",
				   origin.list);
	for (; origin.index < json_array_size(list); origin.index++) {
		if (set->row_count == REPORT_ROWS)
			return value_wrong(why, "%s[%zu]: more than %d rows on one page",
					   origin.list, origin.index, REPORT_ROWS);
		set->rows[set->row_count] = (struct report_row){ .skipped = skipped };
		if (read_row(&origin, json_array_get(list, origin.index),
			     &set->rows[set->row_count]))
			return -1;
		set->row_count++;
	}
	return 0;
}

static int read_root(struct report_set *set, const json_t *root, char *why)
{
	const json_t *schema = json_object_get(root, "schema"), *environment;

	if (!json_is_object(root))
		return value_wrong(why, "not an object: not a result of wherry bench");
	if (!json_is_integer(schema) || json_integer_value(schema) != SCHEMA)
		return value_wrong(why, "\"schema\" is not %d, the only known one", SCHEMA);
	environment = json_object_get(root, "environment");
	if (environment && !json_is_object(environment))
		return value_wrong(why, "\"environment\" is not an object");
	if (read_list(set, root, false, why))
		return -1;
	return read_list(set, root, true, why);
}

int report_add(struct report_set *set, const char *name, json_t *root, char why[REPORT_WHY])
{
	const char *slash = strrchr(name, '/');
	struct report_file *files;
	size_t before = set->row_count;

	if (!set->rows)
		set->rows = calloc(REPORT_ROWS, sizeof(*set->rows));
	files = realloc(set->files, (set->file_count + 1) * sizeof(*files));
	if (files)
		set->files = files;
	if (!files || !set->rows ||
	    !(files[set->file_count].name = strdup(slash ? slash + 1 : name))) {
		json_decref(root);
		return value_wrong(why, "out of memory");
	}
	files[set->file_count++].root = root;
	if (!read_root(set, root, why))
		return 0;
	set->row_count = before;
	return -1;
}

static int read_file(struct report_set *set, const char *name)
{
	char why[REPORT_WHY];
	json_error_t error;
	json_t *root;

	root = json_load_file(name, JSON_REJECT_DUPLICATES, &error);
	if (!root && error.line < 0)
		return fail(EIO, "%s: %s", name, strerror(errno));
	if (!root)
		return fail(EINVAL, "%s:%d:%d: no JSON: %s", name, error.line, error.column,
			    error.text);
	return report_add(set, name, root, why) ? fail(EINVAL, "%s: %s", name, why) : 0;
}

int report_read(struct report_set *set, const char *names)
{
	char *copy = strdup(names), *next = copy, *name;
	int code = copy ? 0 : fail(ENOMEM, "out of memory");

	while (!code && (name = strsep(&next, ",")))
		code = *name ? read_file(set, name) :
			       usage_error("a file's name is empty: FILE,FILE ...");
	free(copy);
	return code;
}

void report_free(struct report_set *set)
{
	for (size_t i = 0; i < set->file_count; i++) {
		json_decref(set->files[i].root);
		free(set->files[i].name);
	}
	free(set->files);
	free(set->rows);
	*set = (struct report_set){ 0 };
}

/* ---- rows of the same kind ------------------------------------------------------------------- */

bool report_same_kind(const struct report_row *a, const struct report_row *b)
{
	return !strcmp(a->op, b->op) && !strcmp(a->form, b->form) && !strcmp(a->mode, b->mode) &&
	       a->ways == b->ways && a->pinned == b->pinned;
}

bool report_same(const struct report_row *a, const struct report_row *b)
{
	return report_same_kind(a, b) && a->processes == b->processes &&
	       a->connections == b->connections && a->size == b->size && a->blocks == b->blocks &&
	       a->set == b->set;
}
