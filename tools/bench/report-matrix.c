/* SPDX-License-Identifier: Apache-2.0 */
/* Every pair of memories: tables whose cells are coloured by speed. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/report.h"
#include "command.h"

#define HEATS 6 /* colours, from slow to fast */

/* The rows of one matrix, and the memories along its sides. */
struct matrix {
	const struct report_row **rows;
	size_t row_count;
	const char *source[REPORT_SIDE], *target[REPORT_SIDE];
	size_t sources, targets;
	double least, most; /* speeds */
	bool crowded; /* more memories than there is room for */
};

/* Small batches are graded by latency. More is faster; NAN: unknown. */
static double row_speed(const struct report_row *row)
{
	double value = report_is_latency(row) ? 1 / row->p50 : row->bandwidth;

	return value > 0 && isfinite(value) ? value : NAN;
}

/* "cuda:2" before "cuda:10"; the rows have the order of the columns. */
static int by_name(const void *a, const void *b)
{
	return strverscmp(*(const char *const *)a, *(const char *const *)b);
}

static void add_side(const char *names[REPORT_SIDE], size_t *count, const char *name, bool *crowded)
{
	for (size_t i = 0; i < *count; i++)
		if (!strcmp(names[i], name))
			return;
	if (*count == REPORT_SIDE)
		*crowded = true;
	else
		names[(*count)++] = name;
}

static void matrix_collect(const struct report_set *set, const struct report_row *first, bool *done,
			   struct matrix *matrix)
{
	matrix->row_count = matrix->sources = matrix->targets = 0;
	matrix->least = INFINITY;
	matrix->most = 0;
	matrix->crowded = false;
	for (const struct report_row *row = first; row < set->rows + set->row_count; row++) {
		if (row->skipped || done[row - set->rows] || !report_same(row, first))
			continue;
		done[row - set->rows] = true;
		matrix->rows[matrix->row_count++] = row;
		add_side(matrix->source, &matrix->sources, row->source, &matrix->crowded);
		add_side(matrix->target, &matrix->targets, row->target, &matrix->crowded);
		matrix->least = fmin(matrix->least, row_speed(row));
		matrix->most = fmax(matrix->most, row_speed(row));
	}
	qsort((void *)matrix->source, matrix->sources, sizeof(matrix->source[0]), by_name);
	qsort((void *)matrix->target, matrix->targets, sizeof(matrix->target[0]), by_name);
}

/* The fastest row of the pair, by whichever route; NULL: not measured. */
static const struct report_row *matrix_best(const struct matrix *matrix, const char *source,
					    const char *target)
{
	const struct report_row *found = NULL;

	for (size_t i = 0; i < matrix->row_count; i++) {
		const struct report_row *row = matrix->rows[i];

		if (strcmp(row->source, source) || strcmp(row->target, target))
			continue;
		if (!found || !(row_speed(found) >= row_speed(row)))
			found = row;
	}
	return found;
}

/* Even steps of the logarithm: twice as fast is always the same step. */
static int matrix_heat(const struct matrix *matrix, double value)
{
	double share;

	if (isnan(value))
		return 0;
	if (matrix->most < 1.05 * matrix->least)
		return HEATS / 2;
	share = log(value / matrix->least) / log(matrix->most / matrix->least);
	return share >= 1 ? HEATS - 1 : (int)(share * HEATS);
}

static void write_cell(const struct matrix *matrix, const struct report_row *row, FILE *out)
{
	char number[32];
	bool latency;

	if (!row) {
		fputs("<td class=none>not measured</td>", out);
		return;
	}
	if (report_judge(row) >= REPORT_FAILED) {
		fprintf(out, "<td class=bad>%s</td>",
			row->verified == 0 ? "wrong bytes" : "failed");
		return;
	}
	latency = report_is_latency(row);
	fprintf(out, "<td class=h%d><b>%s</b>", matrix_heat(matrix, row_speed(row)),
		format_number(number, sizeof(number), latency ? row->p50 : row->bandwidth));
	if (latency && !isnan(row->latency_ratio))
		fprintf(out, "<br>%s× the limit",
			format_number(number, sizeof(number), row->latency_ratio));
	else if (!latency && !isnan(row->ratio))
		fprintf(out, "<br>%s of limit", format_percent(number, sizeof(number), row->ratio));
	fputs("<br>", out);
	report_text(out, row->transport[0] ? row->transport : "route unknown");
	fputs("</td>", out);
}

static void write_caption(const struct report_row *row, FILE *out)
{
	char load[64], kind[128], set[32];

	report_load_text(row, load, sizeof(load));
	format_size(set, sizeof(set), row->set);
	report_kind_text(row, kind, sizeof(kind));
	report_text(out, row->op);
	fprintf(out, ", %s%s, %s", load, row->blocks > 1 ? "" : " contiguous",
		row->processes == 1 ? "one process" : "two processes");
	if (row->connections)
		fprintf(out, ", %" PRIu64 " TCP connection%s", row->connections,
			row->connections == 1 ? "" : "s");
	fprintf(out, "%s, working set %s; %s", kind, set, report_is_latency(row) ? "us" : "GB/s");
}

static void write_matrix(const struct matrix *matrix, FILE *out)
{
	fputs("<div class=scroll tabindex=0 role=region aria-label=\"Matrix: ", out);
	write_caption(matrix->rows[0], out);
	fputs("\"><table class=matrix><caption>", out);
	write_caption(matrix->rows[0], out);
	fputs("</caption><thead><tr><th scope=col>from \\ to</th>", out);
	for (size_t i = 0; i < matrix->targets; i++) {
		fputs("<th scope=col>", out);
		report_text(out, matrix->target[i]);
		fputs("</th>", out);
	}
	fputs("</tr></thead><tbody>\n", out);
	for (size_t i = 0; i < matrix->sources; i++) {
		fputs("<tr><th scope=row>", out);
		report_text(out, matrix->source[i]);
		fputs("</th>", out);
		for (size_t k = 0; k < matrix->targets; k++)
			write_cell(matrix,
				   matrix_best(matrix, matrix->source[i], matrix->target[k]), out);
		fputs("</tr>\n", out);
	}
	fputs("</tbody></table></div>\n", out);
}

static void write_key(FILE *out)
{
	fputs("<p class=key><span>slower</span> ", out);
	for (int i = 0; i < HEATS; i++)
		fprintf(out, "<span class=\"h%d swatch\">%d</span>", i, i + 1);
	fputs(" <span>faster</span> <span>(each table has its own scale, from its slowest to its "
	      "fastest pair)</span></p>\n",
	      out);
}

void report_matrices(const struct report_set *set, FILE *out)
{
	struct matrix *matrix = calloc(1, sizeof(*matrix));
	const struct report_row **rows =
		calloc(set->row_count + 1, sizeof(const struct report_row *));
	bool *done = calloc(set->row_count + 1, sizeof(*done));
	size_t shown = 0, crowded = 0;

	for (size_t i = 0; matrix && rows && done && i < set->row_count; i++) {
		if (set->rows[i].skipped || done[i])
			continue;
		matrix->rows = rows;
		matrix_collect(set, &set->rows[i], done, matrix);
		crowded += matrix->crowded;
		if (matrix->crowded || matrix->sources * matrix->targets < 2)
			continue;
		if (!shown++) {
			write_key(out);
			fputs("<div class=matrices>\n", out);
		}
		write_matrix(matrix, out);
	}
	if (shown)
		fputs("</div>\n", out);
	if (crowded)
		fprintf(out,
			"<p>Not drawn: %zu of more than %d memories; see <a href=\"#figures\">All "
			"figures</a>.</p>\n",
			crowded, REPORT_SIDE);
	else if (!shown)
		fputs("<p>Only one pair of memories was measured; <code>wherry bench "
		      "--matrix</code> measures all.</p>\n",
		      out);
	free(done);
	free(rows);
	free(matrix);
}
