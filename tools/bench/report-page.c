/* SPDX-License-Identifier: Apache-2.0 */
/* The page: one file that needs no other file, no network and no script, and forbids the browser to
 * load any. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>

#include "bench/bench.h"
#include "bench/report.h"
#include "command.h"
#include "util/text.h"

static const char *const verdict_class[] = {
	[REPORT_GOOD] = "good",    [REPORT_FAIR] = "fair",  [REPORT_POOR] = "poor",
	[REPORT_UNKNOWN] = "none", [REPORT_FAILED] = "bad", [REPORT_WRONG] = "bad",
};

static const char *const verdict_text[] = {
	[REPORT_GOOD] = "at the limit", [REPORT_FAIR] = "near it",  [REPORT_POOR] = "below it",
	[REPORT_UNKNOWN] = "no limit",  [REPORT_FAILED] = "failed", [REPORT_WRONG] = "wrong bytes",
};

/* ---- text --------------------------------------------------------------------------------- */

void report_text(FILE *out, const char *text)
{
	size_t left = strlen(text), length;

	for (; left; text += length, left -= length) {
		bool space = *text == '\n' || *text == '\t';

		length = space ? 1 : wh_text_character(text, left);
		if (!length)
			fputs("&#xfffd;", out); /* one for each byte */
		else if (strchr("&<>\"'`", *text))
			fprintf(out, "&#%d;", *text);
		else
			fwrite(text, 1, length, out);
		if (!length)
			length = wh_text_hidden(text, left);
	}
}

void report_load_text(const struct report_row *row, char *out, size_t size)
{
	char block[32];

	format_size(block, sizeof(block), row->size);
	if (row->blocks == 1)
		snprintf(out, size, "%s", block);
	else
		snprintf(out, size, "%" PRIu64 " × %s", row->blocks, block);
}

void report_route_text(const struct report_row *row, char *out, size_t size)
{
	int used = snprintf(out, size, "%.64s", row->transport[0] ? row->transport : "best route");

	if (row->connections && used >= 0 && (size_t)used < size)
		used += snprintf(out + used, size - (size_t)used, ", %" PRIu64 " connection%s",
				 row->connections, row->connections == 1 ? "" : "s");
	if (row->processes == 1 && used >= 0 && (size_t)used < size)
		snprintf(out + used, size - (size_t)used, ", one process");
}

void report_kind_text(const struct report_row *row, char *out, size_t size)
{
	snprintf(out, size, "%s%s%s%s", row->ways == 2 ? ", both ways at once" : "",
		 strcmp(row->form, "list") ? "" : ", as a list",
		 strcmp(row->mode, "spinning") ? "" : ", spinning", row->pinned ? ", pinned" : "");
}

/* "write host to host, 1 MiB", and below in small letters the route. */
static void write_what(const struct report_row *row, FILE *out)
{
	char load[64], kind[128], route[160], set[32];

	report_load_text(row, load, sizeof(load));
	report_kind_text(row, kind, sizeof(kind));
	report_route_text(row, route, sizeof(route));
	format_size(set, sizeof(set), row->set);
	fputs("<th scope=row>", out);
	report_text(out, row->op);
	fputs(" ", out);
	report_text(out, row->source);
	fputs(" to ", out);
	report_text(out, row->target);
	fprintf(out, ", %s%s<small>", load, kind);
	report_text(out, route);
	fprintf(out, "; working set %s</small></th>", set);
}

static void write_number(double value, FILE *out)
{
	char number[32];

	fprintf(out, "<td>%s</td>", format_number(number, sizeof(number), value));
}

/* ---- the head and the summary ---------------------------------------------------------------- */

/* What the browser may use: this style, and nothing else. */
static int write_policy(FILE *out)
{
	unsigned char digest[EVP_MAX_MD_SIZE], text[2 * EVP_MAX_MD_SIZE];
	unsigned length;

	if (!EVP_Digest(report_style, strlen(report_style), digest, &length, EVP_sha256(), NULL))
		return -ENOMEM;
	EVP_EncodeBlock(text, digest, (int)length);
	fprintf(out,
		"<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; "
		"style-src 'sha256-%s'; img-src data:; base-uri 'none'; form-action 'none'\">\n",
		(const char *)text);
	return 0;
}

static int write_head(const struct report *report, FILE *out)
{
	fputs("<!DOCTYPE html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n", out);
	if (write_policy(out))
		return -ENOMEM;
	fputs("<meta name=viewport content=\"width=device-width, initial-scale=1\">\n"
	      "<meta name=color-scheme content=\"light dark\">\n"
	      "<meta name=referrer content=no-referrer>\n"
	      "<meta name=generator content=\"wherry bench\">\n"
	      "<link rel=icon href=\"data:,\">\n"
	      "<title>Wherry: how fast bytes moved</title>\n<style>",
	      out);
	fputs(report_style, out);
	fputs("</style>\n</head>\n<body>\n<a class=skip href=\"#summary\">To the summary</a>\n"
	      "<header><h1>How fast bytes moved</h1>\n",
	      out);
	report_where(&report->now, out);
	fputs("<nav aria-label=\"Parts of the page\"><ul>"
	      "<li><a href=\"#summary\">Summary</a></li>",
	      out);
	if (report->has_baseline)
		fputs("<li><a href=\"#baseline\">Baseline</a></li>", out);
	fputs("<li><a href=\"#matrix\">Matrix</a></li><li><a href=\"#curves\">Curves</a></li>"
	      "<li><a href=\"#verdicts\">Verdicts</a></li><li><a href=\"#routes\">Routes</a></li>"
	      "<li><a href=\"#environment\">Environment</a></li>"
	      "<li><a href=\"#figures\">All figures</a></li></ul></nav></header>\n<main>\n",
	      out);
	return 0;
}

static void write_tile(size_t count, const char *class, const char *text, FILE *out)
{
	if (count)
		fprintf(out, "<li class=%s><b>%zu</b> %s</li>", class, count, text);
}

/* The row farthest from its limit, among those about bandwidth. */
static const struct report_row *row_farthest(const struct report_set *set)
{
	const struct report_row *found = NULL;

	for (size_t i = 0; i < set->row_count; i++) {
		const struct report_row *row = &set->rows[i];

		if (!row->skipped && report_judge(row) < REPORT_UNKNOWN &&
		    !report_is_latency(row) && (!found || row->ratio < found->ratio))
			found = row;
	}
	return found;
}

static void write_farthest(const struct report *report, FILE *out)
{
	const struct report_row *row = row_farthest(&report->now);
	char load[64], number[32];

	if (!row)
		return;
	report_load_text(row, load, sizeof(load));
	fputs("<p>Farthest from its limit: ", out);
	report_text(out, row->op);
	fputs(" ", out);
	report_text(out, row->source);
	fputs(" to ", out);
	report_text(out, row->target);
	fprintf(out, ", %s, by ", load);
	report_text(out, row->transport[0] ? row->transport : "the best route");
	fprintf(out, ", with %s of what ", format_percent(number, sizeof(number), row->ratio));
	report_text(out, row->limit_name[0] ? row->limit_name : "the limit");
	fputs(" reached.</p>\n", out);
}

static void write_summary(const struct report *report, FILE *out)
{
	struct report_counts counts;
	size_t judged;

	report_count(report, &counts);
	judged = counts.verdict[REPORT_GOOD] + counts.verdict[REPORT_FAIR] +
		 counts.verdict[REPORT_POOR];
	fputs("<section aria-labelledby=summary><h2 id=summary>Summary</h2>\n<ul class=tiles>",
	      out);
	write_tile(counts.verdict[REPORT_WRONG], "bad", "WITH WRONG BYTES", out);
	write_tile(counts.verdict[REPORT_FAILED], "bad", "failed", out);
	write_tile(counts.change[REPORT_WORSE], "poor", "worse than the baseline", out);
	write_tile(counts.change[REPORT_BETTER], "good", "better than the baseline", out);
	write_tile(counts.change[REPORT_NOISE_ONLY], "none", "as the baseline", out);
	write_tile(counts.verdict[REPORT_GOOD], "good", "at the limit", out);
	write_tile(counts.verdict[REPORT_FAIR], "fair", "near the limit", out);
	write_tile(counts.verdict[REPORT_POOR], "poor", "below the limit", out);
	write_tile(counts.verdict[REPORT_UNKNOWN], "none", "without a limit", out);
	write_tile(counts.verified, "none", "verified, byte by byte", out);
	write_tile(counts.skipped, "none", "not available here", out);
	fputs("</ul>\n", out);
	if (!judged)
		fputs("<p>No raw limit was measured; <code>--limits</code> does.</p>\n", out);
	write_farthest(report, out);
	fprintf(out,
		"<p>The limit is what plain code reached with the same memory in the same run. At "
		"the limit: %.0f&nbsp;%% of its bandwidth, for batches of 1&nbsp;MiB and more; "
		"below that, at most %.1f times its latency, or %.1f&nbsp;us. Near it: "
		"80&nbsp;%%, or twice its latency. GB/s is 10<sup>9</sup> bytes a second.</p>\n"
		"</section>\n",
		BENCH_GOOD * 100, REPORT_LATENCY, REPORT_INSTANT);
}

/* ---- against the baseline -------------------------------------------------------------------- */

/* From half to twice the speed, the noise in the middle. */
static void write_bar(const struct report_match *match, FILE *out)
{
	static const char *const classes[] = { [REPORT_BETTER] = "better",
					       [REPORT_WORSE] = "worse",
					       [REPORT_NOISE_ONLY] = "same",
					       [REPORT_NOT_COMPARED] = "same" };
	double band = 50 * log2(REPORT_NOISE), end = 50 * log2(match->speed);

	if (isnan(match->speed))
		return;
	end = fmax(-50, fmin(50, end));
	fprintf(out,
		"<svg class=bar viewBox=\"0 0 100 14\" preserveAspectRatio=none "
		"aria-hidden=true><rect class=band x=%.1f y=0 width=%.1f height=14 />"
		"<rect class=%s x=%.1f y=3 width=%.1f height=8 />"
		"<path class=zero d=\"M50 0V14\"/></svg>",
		50 - band, 2 * band, classes[match->change], 50 + fmin(end, 0), fabs(end));
}

static void write_change(const struct report_match *match, FILE *out)
{
	static const char *const tags[] = { [REPORT_BETTER] = "good>better",
					    [REPORT_WORSE] = "poor>worse",
					    [REPORT_NOISE_ONLY] = "none>noise",
					    [REPORT_NOT_COMPARED] = "none>not compared" };
	const char *tag = tags[match->change];

	if (!match->now)
		tag = "none>only in the baseline";
	else if (match->limit_moved)
		tag = "none>as its limit";
	fprintf(out, "<td class=text><span class=\"tag %.4s\"%s</span>", tag, tag + 4);
	if (match->now && match->now->verified == 0)
		fputs("<small> wrong bytes</small>", out);
	else if (match->now && report_judge(match->now) == REPORT_FAILED)
		fputs("<small> it failed</small>", out);
	if (match->rerouted) {
		fputs("<small> the route was ", out);
		report_text(out,
			    match->before->transport[0] ? match->before->transport : "unknown");
		fputs("</small>", out);
	}
	fputs("</td>", out);
}

static void write_value(const struct report_row *row, FILE *out)
{
	bool latency = row && report_is_latency(row);
	double value = !row ? NAN : latency ? row->p50 : row->bandwidth;
	char number[32];

	fprintf(out, "<td>%s%s</td>", format_number(number, sizeof(number), value),
		isnan(value) ? "" :
		latency      ? " us" :
			       " GB/s");
}

static void write_match(const struct report_match *match, FILE *out)
{
	fputs("<tr>", out);
	write_what(match->now ? match->now : match->before, out);
	write_change(match, out);
	fputs("<td>", out);
	if (isnan(match->speed))
		fputs("-", out);
	else
		fprintf(out, "%+.0f&nbsp;%%", (match->speed - 1) * 100);
	write_bar(match, out);
	fputs("</td>", out);
	write_value(match->now, out);
	write_value(match->before, out);
	fputs("</tr>\n", out);
}

static void write_baseline(const struct report *report, FILE *out)
{
	static const enum report_change order[] = { REPORT_WORSE, REPORT_BETTER, REPORT_NOISE_ONLY,
						    REPORT_NOT_COMPARED };
	size_t alone = 0;

	fputs("<section aria-labelledby=baseline><h2 id=baseline>Against the "
	      "baseline</h2>\n"
	      "<p>Baseline: ",
	      out);
	for (size_t i = 0; i < report->before.file_count; i++) {
		fputs(i ? ", " : "", out);
		report_text(out, report->before.files[i].name);
	}
	fprintf(out,
		". The change is one of speed: of bandwidth for batches of 1&nbsp;MiB and "
		"more, of median latency below. Up to %.0f&nbsp;%% either way is noise; a "
		"larger change is neither better nor worse if the raw limit, where both have "
		"one, changed as well.</p>\n"
		"<div class=scroll tabindex=0 role=region aria-label=\"Against the "
		"baseline\"><table class=narrow><thead><tr><th scope=col>measured</th><th "
		"scope=col>verdict</th><th scope=col>change</th><th scope=col>now</th><th "
		"scope=col>before</th></tr></thead><tbody>\n",
		(REPORT_NOISE - 1) * 100);
	for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++)
		for (size_t k = 0; k < report->match_count; k++)
			if (report->matches[k].change == order[i] && report->matches[k].before)
				write_match(&report->matches[k], out);
			else if (report->matches[k].change == order[i])
				alone++;
	fputs("</tbody></table></div>\n", out);
	if (alone)
		fprintf(out, "<p>Not in the baseline: %zu row%s.</p>\n", alone,
			alone == 1 ? "" : "s");
	fputs("</section>\n", out);
}

/* ---- verdicts and figures ----------------------------------------------------------------- */

static void write_verdict(const struct report_row *row, FILE *out)
{
	enum report_verdict verdict = report_judge(row);
	char number[32];

	fputs("<tr>", out);
	write_what(row, out);
	fprintf(out, "<td class=text><span class=\"tag %s\">%s</span>", verdict_class[verdict],
		verdict_text[verdict]);
	if (row->error[0]) {
		fputs("<small class=why>", out);
		report_text(out, row->error);
		fputs("</small>", out);
	}
	fputs("</td><td>", out);
	if (report_is_latency(row) && !isnan(row->latency_ratio))
		fprintf(out, "%s× its time",
			format_number(number, sizeof(number), row->latency_ratio));
	else
		fputs(report_is_latency(row) ? "-" :
					       format_percent(number, sizeof(number), row->ratio),
		      out);
	fputs("</td>", out);
	write_number(row->bandwidth, out);
	write_number(row->p50, out);
	fputs("</tr>\n", out);
}

static void write_verdicts(const struct report_set *set, FILE *out)
{
	fputs("<section aria-labelledby=verdicts><h2 id=verdicts>Verdicts</h2>\n<div class=scroll "
	      "tabindex=0 role=region aria-label=Verdicts><table class=narrow><thead><tr>"
	      "<th scope=col>measured</th><th scope=col>verdict</th>"
	      "<th scope=col>of the limit</th><th scope=col>GB/s</th><th scope=col>p50 us</th>"
	      "</tr></thead><tbody>\n",
	      out);
	for (size_t i = 0; i < set->row_count; i++)
		if (!set->rows[i].skipped)
			write_verdict(&set->rows[i], out);
	fputs("</tbody></table></div></section>\n", out);
}

/* The numbers of a row, in the order of their column heads. */
enum { FIRST_NEW = 7, NUMBERS = 9 };
static const char *const number_heads[NUMBERS] = {
	"GB/s",     "limit GB/s", "p50 us",      "p99 us",      "p99.9 us",
	"limit us", "submit ns",  "1st byte us", "prepared us",
};

static void write_figures_row(const struct report_row *row, size_t numbers, FILE *out)
{
	const double values[NUMBERS] = { row->bandwidth,     row->limit_bandwidth,
					 row->p50,           row->p99,
					 row->p999,          row->limit_latency,
					 row->submit,        row->first_new,
					 row->first_prepared };

	fputs("<tr>", out);
	write_what(row, out);
	fputs("<td class=text>", out);
	report_text(out, row->detail[0] ? row->detail : "-");
	fputs("</td>", out);
	for (size_t i = 0; i < numbers; i++)
		write_number(values[i], out);
	fputs("<td class=text>", out);
	report_text(out, row->limit_name[0] ? row->limit_name : "-");
	fprintf(out,
		"</td><td>%" PRIu64 "</td><td>%" PRIu64 "</td><td>%" PRIu64 "</td><td>%s</td>"
		"</tr>\n",
		row->in_flight, row->rounds, row->samples,
		row->verified < 0 ? "-" :
		row->verified     ? "yes" :
				    "NO");
}

static void write_figures(const struct report_set *set, FILE *out)
{
	static const char *const heads[] = { "limit is", "in flight", "rounds", "samples",
					     "verified" };
	size_t numbers = FIRST_NEW;

	/* The time to the first byte is known for a few routes only. */
	for (size_t i = 0; i < set->row_count; i++)
		if (set->rows[i].first_new >= 0 || set->rows[i].first_prepared >= 0)
			numbers = NUMBERS;
	fputs("<section aria-labelledby=figures><h2 id=figures>All figures</h2>\n<div class=scroll "
	      "tabindex=0 role=region aria-label=\"All figures\"><table class=wide><thead><tr>"
	      "<th scope=col>measured</th><th scope=col>detail</th>",
	      out);
	for (size_t i = 0; i < numbers; i++)
		fprintf(out, "<th scope=col>%s</th>", number_heads[i]);
	for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++)
		fprintf(out, "<th scope=col>%s</th>", heads[i]);
	fputs("</tr></thead><tbody>\n", out);
	for (size_t i = 0; i < set->row_count; i++)
		if (!set->rows[i].skipped)
			write_figures_row(&set->rows[i], numbers, out);
	fputs("</tbody></table></div></section>\n", out);
}

/* ---- the page as a whole --------------------------------------------------------------------- */

int report_write(struct report *report, FILE *out)
{
	int error;

	if (report->has_baseline && !report->matches) {
		report->match_count =
			report_compare(&report->now, &report->before, &report->matches);
		if (!report->matches)
			return -ENOMEM;
	}
	error = write_head(report, out);
	if (error)
		return error;
	write_summary(report, out);
	if (report->has_baseline)
		write_baseline(report, out);
	fputs("<section aria-labelledby=matrix><h2 id=matrix>Matrix</h2>\n", out);
	report_matrices(&report->now, out);
	fputs("</section>\n<section aria-labelledby=curves><h2 id=curves>Curves</h2>\n", out);
	report_curves(&report->now, out);
	fputs("</section>\n", out);
	write_verdicts(&report->now, out);
	error = report_routes(&report->now, out);
	if (!error)
		error = report_environment(report, out);
	write_figures(&report->now, out);
	fputs("</main>\n</body>\n</html>\n", out);
	return error;
}

int report_verdict_line(const struct report *report, FILE *out)
{
	struct report_counts counts;
	size_t rows = 0, judged;

	report_count(report, &counts);
	for (size_t i = 0; i <= REPORT_WRONG; i++)
		rows += counts.verdict[i];
	judged = counts.verdict[REPORT_GOOD] + counts.verdict[REPORT_FAIR] +
		 counts.verdict[REPORT_POOR];
	report_rows(out, rows, judged, counts.verdict[REPORT_GOOD]);
	if (counts.verdict[REPORT_FAILED])
		fprintf(out, "; %zu FAILED", counts.verdict[REPORT_FAILED]);
	if (counts.verdict[REPORT_WRONG])
		fprintf(out, "; %zu WITH WRONG BYTES", counts.verdict[REPORT_WRONG]);
	if (report->has_baseline)
		fprintf(out,
			"; against the baseline %zu better, %zu worse, %zu as before, %zu not "
			"compared",
			counts.change[REPORT_BETTER], counts.change[REPORT_WORSE],
			counts.change[REPORT_NOISE_ONLY], counts.change[REPORT_NOT_COMPARED]);
	fputc('\n', out);
	if (counts.verdict[REPORT_FAILED] || counts.verdict[REPORT_WRONG])
		return EXIT_FAIL;
	return counts.change[REPORT_WORSE] ? EXIT_WARNING : EXIT_PASS;
}
