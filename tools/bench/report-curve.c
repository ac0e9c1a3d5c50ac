/* SPDX-License-Identifier: Apache-2.0 */
/* Bandwidth and latency against the size of a block, as drawings (SVG) with a table below each. */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/report.h"
#include "command.h"

/* Small, so that letters stay large enough where a drawing is as wide as a phone. */
#define WIDTH 300
#define HEIGHT 230
#define LEFT 44
#define RIGHT 28
#define TOP 12
#define BOTTOM 40
#define POINTS 512 /* the most points of a line */
#define LABELS 5 /* the most sizes along the bottom */

enum measure { BANDWIDTH, LATENCY, MEASURES };

static const struct {
	const char *title, *unit;
} measures[] = {
	[BANDWIDTH] = { "Bandwidth", "GB/s" },
	[LATENCY] = { "Latency, median", "us" },
};

/* One line: a transport with a number of connections, in one process or two. Its rows are sorted by
 * size; for each size the largest working set comes first, and the line goes through it. */
struct series {
	const struct report_row *points[POINTS];
	size_t count;
};

/* All lines of one kind of measurement between the same two memories. */
struct panel {
	const struct report_row *first;
	struct series series[REPORT_SERIES];
	size_t count, left_out; /* rows without room */
	uint64_t size_least, size_most;
};

/* A drawing's scales: logarithms of base 2 and 10. */
struct scale {
	double x0, x1, y0, y1;
};

static double value_of(const struct report_row *row, enum measure measure, bool limit)
{
	double value;

	if (measure == BANDWIDTH)
		value = limit ? row->limit_bandwidth : row->bandwidth;
	else
		value = limit ? row->limit_latency : row->p50;
	return value > 0 ? value : NAN; /* a logarithm has no 0 */
}

/* ---- which rows are drawn -------------------------------------------------------------------- */

static bool same_panel(const struct report_row *a, const struct report_row *b)
{
	return report_same_kind(a, b) && a->blocks == b->blocks && !strcmp(a->source, b->source) &&
	       !strcmp(a->target, b->target);
}

static bool same_series(const struct report_row *a, const struct report_row *b)
{
	return !strcmp(a->transport, b->transport) && a->connections == b->connections &&
	       a->processes == b->processes;
}

static void add_point(struct panel *panel, const struct report_row *row)
{
	struct series *series = panel->series;

	while (series < panel->series + panel->count && !same_series(series->points[0], row))
		series++;
	if (series == panel->series + REPORT_SERIES || series->count == POINTS) {
		panel->left_out++;
		return;
	}
	if (series == panel->series + panel->count)
		panel->count++;
	series->points[series->count++] = row;
	if (row->size < panel->size_least)
		panel->size_least = row->size;
	if (row->size > panel->size_most)
		panel->size_most = row->size;
}

static int by_size(const void *a, const void *b)
{
	const struct report_row *x = *(const struct report_row *const *)a;
	const struct report_row *y = *(const struct report_row *const *)b;

	if (x->size != y->size)
		return (x->size > y->size) - (x->size < y->size);
	return (x->set < y->set) - (x->set > y->set);
}

static void panel_collect(const struct report_set *set, const struct report_row *first, bool *done,
			  struct panel *panel)
{
	*panel = (struct panel){ .first = first, .size_least = UINT64_MAX };
	for (const struct report_row *row = first; row < set->rows + set->row_count; row++) {
		if (row->skipped || done[row - set->rows] || !same_panel(row, first))
			continue;
		done[row - set->rows] = true;
		if (report_judge(row) < REPORT_FAILED)
			add_point(panel, row);
	}
	for (size_t i = 0; i < panel->count; i++)
		qsort((void *)panel->series[i].points, panel->series[i].count,
		      sizeof(panel->series[i].points[0]), by_size);
}

/* ---- drawing ------------------------------------------------------------------------------ */

static struct scale scale_of(const struct panel *panel, enum measure measure)
{
	struct scale scale = { .x0 = log2((double)panel->size_least),
			       .x1 = log2((double)panel->size_most),
			       .y0 = INFINITY,
			       .y1 = -INFINITY };

	for (size_t i = 0; i < panel->count; i++)
		for (size_t k = 0; k < 2 * panel->series[i].count; k++) {
			double value = value_of(panel->series[i].points[k / 2], measure, k % 2);

			if (isnan(value))
				continue;
			scale.y0 = fmin(scale.y0, log10(value));
			scale.y1 = fmax(scale.y1, log10(value));
		}
	/* Room above and below; a single value in the middle. */
	scale.y0 -= fmax(0.05 * (scale.y1 - scale.y0), 0.05);
	scale.y1 += fmax(0.05 * (scale.y1 - scale.y0), 0.05);
	return scale;
}

static double x_of(const struct scale *scale, uint64_t size)
{
	return LEFT +
	       (WIDTH - LEFT - RIGHT) * (log2((double)size) - scale->x0) / (scale->x1 - scale->x0);
}

static double y_of(const struct scale *scale, double value)
{
	return HEIGHT - BOTTOM -
	       (HEIGHT - TOP - BOTTOM) * (log10(value) - scale->y0) / (scale->y1 - scale->y0);
}

static void draw_tick(const struct scale *scale, double value, double *last, FILE *out)
{
	double y = y_of(scale, value);

	if (y > HEIGHT - BOTTOM + 0.5 || y < TOP - 0.5 || *last - y < 16)
		return;
	fprintf(out, "<path class=grid d=\"M%d %.1fH%d\"/><text x=%d y=%.1f class=end>%g</text>\n",
		LEFT, y, WIDTH - RIGHT, LEFT - 5, y + 4, value);
	*last = y;
}

/* 1, 2, 5, 10, 20, 50 ...; over many decades some powers of ten only; between values close
 * together, even steps. */
static void draw_y_axis(const struct scale *scale, FILE *out)
{
	static const int steps[] = { 1, 2, 5 };
	double decades = scale->y1 - scale->y0, last = INFINITY;
	int every = decades > 6 ? (int)ceil(decades / 6) : 1;

	if (decades < 0.7) {
		double least = pow(10, scale->y0), most = pow(10, scale->y1);
		double unit = pow(10, floor(log10((most - least) / 4)));
		double step = unit * (most - least > 20 * unit ? 5 :
				      most - least > 8 * unit  ? 2 :
								 1);

		/* Between the least numbers that there are, a step may be none. */
		if (step < DBL_MIN)
			return;
		for (int n = (int)ceil(least / step); n * step <= most; n++)
			draw_tick(scale, n * step, &last, out);
		return;
	}
	for (int power = (int)floor(scale->y0); power <= (int)ceil(scale->y1); power++)
		for (int i = 0; i < (decades < 2 ? 3 : 1); i++)
			if (power % every == 0)
				draw_tick(scale, steps[i] * pow(10, power), &last, out);
}

static void draw_x_axis(const struct scale *scale, FILE *out)
{
	int least = (int)ceil(scale->x0), most = (int)floor(scale->x1);
	int every = (most - least) / LABELS + 1;
	char size[32];

	for (int power = least; power <= most; power += every) {
		double x = x_of(scale, UINT64_C(1) << power);

		format_size(size, sizeof(size), UINT64_C(1) << power);
		/* "8 B": "bytes" is too long here. */
		size[strcspn(size, "b")] = '\0';
		fprintf(out,
			"<path class=grid d=\"M%.1f %dV%d\"/><text x=%.1f y=%d "
			"class=middle>%s%s</text>\n",
			x, TOP, HEIGHT - BOTTOM, x, HEIGHT - BOTTOM + 18, size,
			power < 10 ? "B" : "");
	}
}

/* Each line has its own shape, so that colour is not the only difference. */
static void draw_mark(int shape, double x, double y, FILE *out)
{
	switch (shape % 4) {
	case 0:
		fprintf(out, "<circle class=mark cx=%.1f cy=%.1f r=4>", x, y);
		break;
	case 1:
		fprintf(out, "<rect class=mark x=%.1f y=%.1f width=7 height=7>", x - 3.5, y - 3.5);
		break;
	case 2:
		fprintf(out, "<path class=mark d=\"M%.1f %.1fl5 8h-10z\">", x, y - 5);
		break;
	default:
		fprintf(out, "<path class=mark d=\"M%.1f %.1fl5 5l-5 5l-5-5z\">", x, y - 5);
	}
}

static void end_mark(int shape, FILE *out)
{
	static const char *const names[] = { "circle", "rect", "path", "path" };

	fprintf(out, "</%s>", names[shape % 4]);
}

/* Through the points of the largest working sets. */
static void draw_line(const struct series *series, const struct scale *scale, enum measure measure,
		      bool limit, FILE *out)
{
	uint64_t last = 0;
	bool drawing = false;

	fprintf(out, "<path class=%s d=\"", limit ? "limit" : "line");
	for (size_t i = 0; i < series->count; i++) {
		double value = value_of(series->points[i], measure, limit);

		if (series->points[i]->size == last || isnan(value))
			continue;
		last = series->points[i]->size;
		fprintf(out, "%c%.1f %.1f", drawing ? 'L' : 'M', x_of(scale, last),
			y_of(scale, value));
		drawing = true;
	}
	fputs("\"/>\n", out);
}

static void draw_series(const struct series *series, int shape, const struct scale *scale,
			enum measure measure, FILE *out)
{
	char load[64], number[32], route[160];

	fprintf(out, "<g class=s%d>\n", shape);
	draw_line(series, scale, measure, true, out);
	draw_line(series, scale, measure, false, out);
	report_route_text(series->points[0], route, sizeof(route));
	for (size_t i = 0; i < series->count; i++) {
		const struct report_row *row = series->points[i];
		double value = value_of(row, measure, false), limit = value_of(row, measure, true);

		if (isnan(value))
			continue;
		draw_mark(shape, x_of(scale, row->size), y_of(scale, value), out);
		/* Shown when the pointer rests on the mark. */
		report_load_text(row, load, sizeof(load));
		fputs("<title>", out);
		report_text(out, route);
		fprintf(out, ", %s: %s %s", load, format_number(number, sizeof(number), value),
			measures[measure].unit);
		if (!isnan(limit))
			fprintf(out, ", limit %s", format_number(number, sizeof(number), limit));
		fputs("</title>", out);
		end_mark(shape, out);
		fputc('\n', out);
	}
	fputs("</g>\n", out);
}

static void panel_draw(const struct panel *panel, enum measure measure, FILE *out)
{
	struct scale scale = scale_of(panel, measure);

	if (!(scale.y0 < scale.y1)) {
		fprintf(out, "<p>%s was not measured.</p>\n", measures[measure].title);
		return;
	}
	fprintf(out,
		"<figure><figcaption>%s, %s</figcaption><svg viewBox=\"0 0 %d %d\" role=img "
		"aria-label=\"%s against the size of a block; its numbers are in the table "
		"below\">\n",
		measures[measure].title, measures[measure].unit, WIDTH, HEIGHT,
		measures[measure].title);
	draw_y_axis(&scale, out);
	draw_x_axis(&scale, out);
	for (size_t i = 0; i < panel->count; i++)
		draw_series(&panel->series[i], (int)i, &scale, measure, out);
	fprintf(out, "<text x=%d y=%d class=middle>size of a block</text></svg></figure>\n",
		(LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6);
}

/* ---- below the drawings ---------------------------------------------------------------------- */

/* The panel has points through which no line goes. */
static bool has_marks_beside(const struct panel *panel)
{
	for (size_t i = 0; i < panel->count; i++)
		for (size_t k = 1; k < panel->series[i].count; k++)
			if (panel->series[i].points[k]->size ==
			    panel->series[i].points[k - 1]->size)
				return true;
	return false;
}

static void write_key(const struct panel *panel, FILE *out)
{
	char route[160];

	fputs("<ul class=key>", out);
	for (size_t i = 0; i < panel->count; i++) {
		fprintf(out,
			"<li><svg viewBox=\"0 0 28 12\" aria-hidden=true class=\"sample s%zu\">"
			"<path class=line d=\"M0 6H28\"/>",
			i);
		draw_mark((int)i, 14, 6, out);
		end_mark((int)i, out);
		fputs("</svg> ", out);
		report_route_text(panel->series[i].points[0], route, sizeof(route));
		report_text(out, route);
		fputs("</li>", out);
	}
	fputs("<li><svg viewBox=\"0 0 28 12\" aria-hidden=true class=\"sample s0\">"
	      "<path class=limit d=\"M0 6H28\"/></svg> dashed: its limit</li>",
	      out);
	if (has_marks_beside(panel))
		fputs("<li>marks beside a line: smaller working sets</li>", out);
	fputs("</ul>\n", out);
}

static void write_numbers(const struct panel *panel, FILE *out)
{
	static const char *const heads[] = { "route",     "size",   "set",    "GB/s",
					     "its limit", "p50 us", "p99 us", "its limit" };
	char text[160], number[32];

	fputs("<details><summary>The numbers as a table</summary>"
	      "<div class=scroll tabindex=0 role=region aria-label=\"Numbers of the curves\">"
	      "<table><thead><tr>",
	      out);
	for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++)
		fprintf(out, "<th scope=col>%s</th>", heads[i]);
	fputs("</tr></thead><tbody>\n", out);
	for (size_t i = 0; i < panel->count; i++)
		for (size_t k = 0; k < panel->series[i].count; k++) {
			const struct report_row *row = panel->series[i].points[k];
			const double values[] = { row->bandwidth, row->limit_bandwidth, row->p50,
						  row->p99, row->limit_latency };

			report_route_text(row, text, sizeof(text));
			fputs("<tr><th scope=row>", out);
			report_text(out, text);
			format_size(text, sizeof(text), row->size);
			fprintf(out, "</th><td>%s</td>", text);
			format_size(text, sizeof(text), row->set);
			fprintf(out, "<td>%s</td>", text);
			for (size_t n = 0; n < sizeof(values) / sizeof(values[0]); n++)
				fprintf(out, "<td>%s</td>",
					format_number(number, sizeof(number), values[n]));
			fputs("</tr>\n", out);
		}
	fputs("</tbody></table></div></details>\n", out);
}

static void write_panel(const struct panel *panel, FILE *out)
{
	const struct report_row *row = panel->first;
	char kind[128];

	fputs("<h3>", out);
	report_text(out, row->op);
	fputs(", ", out);
	report_text(out, row->source);
	fputs(" to ", out);
	report_text(out, row->target);
	report_kind_text(row, kind, sizeof(kind));
	if (row->blocks > 1)
		fprintf(out, ", %" PRIu64 " blocks a batch", row->blocks);
	fprintf(out, "%s</h3>\n<div class=figures>\n", kind);
	for (int measure = 0; measure < MEASURES; measure++)
		panel_draw(panel, (enum measure)measure, out);
	fputs("</div>\n", out);
	write_key(panel, out);
	if (panel->left_out)
		fprintf(out,
			"<p>Not drawn: %zu further rows; there are more routes than colours. See "
			"<a "
			"href=\"#figures\">All figures</a>.</p>\n",
			panel->left_out);
	write_numbers(panel, out);
}

void report_curves(const struct report_set *set, FILE *out)
{
	bool *done = calloc(set->row_count + 1, sizeof(*done));
	struct panel *panel = calloc(1, sizeof(*panel));
	size_t shown = 0, single = 0;

	for (size_t i = 0; done && panel && i < set->row_count; i++) {
		if (set->rows[i].skipped || done[i])
			continue;
		panel_collect(set, &set->rows[i], done, panel);
		if (panel->count && panel->size_least < panel->size_most) {
			write_panel(panel, out);
			shown++;
		} else {
			single += panel->count > 0;
		}
	}
	if (single)
		fprintf(out,
			"<p>%zu kind%s of measurement %s one size only, so no curve: see <a "
			"href=\"#figures\">All figures</a>.</p>\n",
			single, single == 1 ? "" : "s", single == 1 ? "has" : "have");
	else if (!shown)
		fputs("<p>Nothing was measured.</p>\n", out);
	free(panel);
	free(done);
}
