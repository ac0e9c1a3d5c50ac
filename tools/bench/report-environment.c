/* SPDX-License-Identifier: Apache-2.0 */
/* The page's routes and environment: which way the bytes took, and on what machine. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/report.h"
#include "command.h"

/* ---- routes ------------------------------------------------------------------------------- */

static bool same_route(const struct report_row *a, const struct report_row *b)
{
	return !strcmp(a->op, b->op) && !strcmp(a->source, b->source) &&
	       !strcmp(a->target, b->target) && !strcmp(a->transport, b->transport) &&
	       !strcmp(a->detail, b->detail) && a->processes == b->processes;
}

/* Write the route of the row `first`, with all rows that took it. */
static void write_route(const struct report_set *set, size_t first, bool *done, FILE *out)
{
	const struct report_row *route = &set->rows[first];
	double most = NAN;
	char number[32];
	size_t count = 0;

	for (size_t i = first; i < set->row_count; i++) {
		const struct report_row *row = &set->rows[i];

		if (row->skipped || done[i] || !same_route(row, route))
			continue;
		done[i] = true;
		count++;
		most = fmax(most, row->bandwidth);
	}
	fputs("<tr><th scope=row>", out);
	report_text(out, route->op);
	fputs(" ", out);
	report_text(out, route->source);
	fputs(" to ", out);
	report_text(out, route->target);
	fprintf(out, "%s</th><td class=text>", route->processes == 1 ? ", one process" : "");
	report_text(out, route->transport[0] ? route->transport : "-");
	if (route->detail[0]) {
		fputs(": ", out);
		report_text(out, route->detail);
	}
	fprintf(out, "</td><td>%zu</td>", count);
	fprintf(out, "<td>%s</td></tr>\n", format_number(number, sizeof(number), most));
}

/* Why routes are not available; each reason once. */
static void write_skipped(const struct report_set *set, FILE *out)
{
	bool begun = false;

	for (size_t i = 0; i < set->row_count; i++) {
		const struct report_row *row = &set->rows[i];
		size_t other = 0;

		while (other < i &&
		       !(set->rows[other].skipped && !strcmp(set->rows[other].error, row->error)))
			other++;
		if (!row->skipped || other < i)
			continue;
		fputs(begun ? "<li>" : "<h3>Not available</h3><ul><li>", out);
		begun = true;
		report_text(out, row->transport);
		fputs(row->transport[0] ? ", " : "", out);
		report_text(out, row->source);
		fputs(" to ", out);
		report_text(out, row->target);
		fputs(": ", out);
		report_text(out, row->error);
		fputs("</li>", out);
	}
	fputs(begun ? "</ul>\n" : "", out);
}

int report_routes(const struct report_set *set, FILE *out)
{
	bool *done = calloc(set->row_count + 1, sizeof(*done));

	if (!done)
		return -ENOMEM;
	fputs("<section aria-labelledby=routes><h2 id=routes>Routes</h2>\n"
	      "<p>Which route the bytes took.</p><div class=scroll tabindex=0 role=region "
	      "aria-label=Routes><table class=narrow><thead><tr><th scope=col>from, "
	      "to</th><th scope=col>route</th><th scope=col>rows</th><th scope=col>most "
	      "GB/s</th></tr></thead><tbody>\n",
	      out);
	for (size_t i = 0; i < set->row_count; i++)
		if (!set->rows[i].skipped && !done[i])
			write_route(set, i, done, out);
	fputs("</tbody></table></div>\n", out);
	write_skipped(set, out);
	fputs("</section>\n", out);
	free(done);
	return 0;
}

/* ---- environment -------------------------------------------------------------------------- */

/* Any JSON value in one line. */
static void write_json(const json_t *value, bool bytes, int depth, FILE *out)
{
	const char *key;
	const json_t *item;
	size_t index;
	char text[32];

	if (depth > 3) {
		fputs("…", out);
	} else if (json_is_string(value)) {
		report_text(out, json_string_value(value));
	} else if (json_is_integer(value) && bytes && json_integer_value(value) >= 0) {
		format_size(text, sizeof(text), (uint64_t)json_integer_value(value));
		/* "131981020 KiB" is hard to read. */
		if (strlen(text) > 9 && json_integer_value(value) > 1 << 20)
			snprintf(text, sizeof(text), "%.1f MiB", json_number_value(value) / 0x1p20);
		if (json_integer_value(value) > INT64_C(10) << 30)
			snprintf(text, sizeof(text), "%.1f GiB", json_number_value(value) / 0x1p30);
		fputs(text, out);
	} else if (json_is_integer(value)) {
		fprintf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
	} else if (json_is_real(value)) {
		fprintf(out, "%g", json_real_value(value));
	} else if (json_is_array(value)) {
		json_array_foreach(value, index, item)
		{
			fputs(index ? ", " : "", out);
			write_json(item, bytes, depth + 1, out);
		}
	} else if (json_is_object(value)) {
		index = 0;
		json_object_foreach((json_t *)value, key, item)
		{
			fputs(index++ ? " " : "", out);
			write_json(item, bytes, depth + 1, out);
		}
	} else {
		fputs(json_is_true(value) ? "yes" : json_is_false(value) ? "no" : "-", out);
	}
}

static const json_t *file_environment(const struct report_set *set, size_t file, const char *key)
{
	return json_object_get(json_object_get(set->files[file].root, "environment"), key);
}

/* One line for the top of the page. */
void report_where(const struct report_set *set, FILE *out)
{
	static const char *const keys[] = { "date", "cpu", "cores" };
	const json_t *gpus = file_environment(set, 0, "gpus");
	bool begun = false;

	fputs("<p class=faint>", out);
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		const json_t *value = file_environment(set, 0, keys[i]);

		if (!json_is_string(value) && !json_is_integer(value))
			continue;
		fputs(begun ? ", " : "", out);
		write_json(value, false, 0, out);
		fputs(json_is_integer(value) ? " CPUs" : "", out);
		begun = true;
	}
	if (json_array_size(gpus))
		fprintf(out, "%s%zu GPU%s", begun ? ", " : "", json_array_size(gpus),
			json_array_size(gpus) == 1 ? "" : "s");
	else if (!begun)
		fputs("On an unknown machine", out);
	if (set->file_count > 1)
		fprintf(out, ", and %zu other run%s", set->file_count - 1,
			set->file_count == 2 ? "" : "s");
	fputs(" (<a href=\"#environment\">environment</a>)</p>\n", out);
}

/* If all files have numbers for a key, more than two different ones: write the smallest and the
 * largest. */
static bool write_range(const struct report_set *set, const char *key, bool bytes, FILE *out)
{
	const json_t *least = NULL, *most = NULL, *value;
	bool between = false;

	for (size_t i = 0; i < set->file_count; i++) {
		value = file_environment(set, i, key);
		if (!json_is_number(value))
			return false;
		if (!least || json_number_value(value) < json_number_value(least))
			least = value;
		if (!most || json_number_value(value) > json_number_value(most))
			most = value;
	}
	for (size_t i = 0; i < set->file_count; i++) {
		value = file_environment(set, i, key);
		between = between || (json_number_value(value) > json_number_value(least) &&
				      json_number_value(value) < json_number_value(most));
	}
	if (!between)
		return false;
	write_json(least, bytes, 0, out);
	fputs(" to ", out);
	write_json(most, bytes, 0, out);
	return true;
}

/* Write the files' values for a key, each different value once. */
static void write_values(const struct report_set *set, const char *key, FILE *out)
{
	size_t length = strlen(key), written = 0;
	bool bytes = length > 6 && !strcmp(key + length - 6, "_bytes");

	if (write_range(set, key, bytes, out))
		return;
	for (size_t i = 0; i < set->file_count; i++) {
		const json_t *value = file_environment(set, i, key);
		size_t other = 0;

		while (other < i && !json_equal(file_environment(set, other, key), value))
			other++;
		if (!value || other < i)
			continue;
		fputs(written++ ? "<br>" : "", out);
		write_json(value, bytes, 0, out);
	}
	fputs(written ? "" : "-", out);
}

/* "tcp_wmem_bytes": "tcp wmem". */
static void write_key(const char *key, FILE *out)
{
	char text[64], *unit;

	snprintf(text, sizeof(text), "%s", key);
	unit = strstr(text, "_bytes");
	if (unit && !unit[6])
		*unit = '\0';
	for (char *c = text; *c; c++)
		if (*c == '_')
			*c = ' ';
	report_text(out, text);
}

/* An earlier file has the key as well. */
static bool key_seen(const struct report_set *set, size_t file, const char *key)
{
	while (file--)
		if (file_environment(set, file, key))
			return true;
	return false;
}

/* With the baseline's value where the two differ. */
static int write_entry(const struct report *report, const char *key, FILE *out)
{
	char *now = NULL, *before = NULL;
	size_t length;
	FILE *memory = open_memstream(&now, &length);

	if (memory) {
		write_values(&report->now, key, memory);
		fclose(memory);
	}
	memory = now && report->has_baseline ? open_memstream(&before, &length) : NULL;
	if (memory) {
		write_values(&report->before, key, memory);
		fclose(memory);
	}
	if (now) {
		fputs("<dt>", out);
		write_key(key, out);
		fprintf(out, "</dt><dd>%s", now);
		if (before && strcmp(now, before))
			fprintf(out, "<br><span class=faint>baseline: %s</span>", before);
		fputs("</dd>\n", out);
	}
	free(before);
	free(now);
	return now ? 0 : -ENOMEM;
}

/* What a file has besides its rows. */
static void write_beside(const struct report_set *set, const char *name, const char *title,
			 FILE *out)
{
	const char *key;
	json_t *value;

	for (size_t i = 0; i < set->file_count; i++) {
		json_t *object = json_object_get(set->files[i].root, name);

		if (!json_is_object(object))
			continue;
		fprintf(out, "<h3>%s</h3><dl>\n", title);
		json_object_foreach(object, key, value)
		{
			fputs("<dt>", out);
			write_key(key, out);
			fputs("</dt><dd>", out);
			write_json(value, strstr(key, "_bytes") != NULL, 0, out);
			fputs("</dd>\n", out);
		}
		fputs("</dl>\n", out);
	}
}

int report_environment(const struct report *report, FILE *out)
{
	const struct report_set *set = &report->now;
	const char *key;
	json_t *value;
	int error = 0;

	fputs("<section aria-labelledby=environment><h2 id=environment>Environment</h2>\n<p>From ",
	      out);
	for (size_t i = 0; i < set->file_count; i++) {
		fputs(i ? ", " : "", out);
		report_text(out, set->files[i].name);
	}
	fputs(".</p>\n<dl>\n", out);
	for (size_t i = 0; i < set->file_count; i++)
		json_object_foreach(json_object_get(set->files[i].root, "environment"), key,
				    value) if (!key_seen(set, i, key) && !error) error =
			write_entry(report, key, out);
	fputs("</dl>\n", out);
	write_beside(set, "footprint", "Footprint", out);
	write_beside(set, "handshake", "Connecting to a peer", out);
	fputs("</section>\n", out);
	return error;
}
