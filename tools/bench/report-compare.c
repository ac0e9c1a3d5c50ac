/* SPDX-License-Identifier: Apache-2.0 */
/* Grade a row against its limit, and compare it with the same row of a baseline. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/report.h"

#define FAIR 0.8
#define FAIR_LATENCY 2.0

bool report_is_latency(const struct report_row *row)
{
	return (double)row->size * (double)row->blocks < BENCH_LARGE;
}

enum report_verdict report_grade(double bytes, double ratio, double latency_ratio, double p50)
{
	if (bytes >= BENCH_LARGE) {
		if (isnan(ratio))
			return REPORT_UNKNOWN;
		return ratio >= BENCH_GOOD ? REPORT_GOOD :
		       ratio >= FAIR       ? REPORT_FAIR :
					     REPORT_POOR;
	}
	if (isnan(latency_ratio))
		return REPORT_UNKNOWN;
	if (latency_ratio <= REPORT_LATENCY || p50 <= REPORT_INSTANT)
		return REPORT_GOOD;
	return latency_ratio <= FAIR_LATENCY ? REPORT_FAIR : REPORT_POOR;
}

enum report_verdict report_judge(const struct report_row *row)
{
	if (row->verified == 0)
		return REPORT_WRONG;
	if (row->error[0] || isnan(row->bandwidth))
		return REPORT_FAILED;
	return report_grade((double)row->size * (double)row->blocks, row->ratio, row->latency_ratio,
			    row->p50);
}

void report_rows(FILE *out, size_t rows, size_t judged, size_t good)
{
	if (judged && judged == rows)
		fprintf(out, "%zu of %zu row%s reached the limit", good, rows,
			rows == 1 ? "" : "s");
	else
		fprintf(out, "%zu row%s", rows, rows == 1 ? "" : "s");
	if (judged && judged != rows)
		fprintf(out, "; %zu of %zu with a limit reached it", good, judged);
}

static bool is_good(const struct report_row *row)
{
	return report_judge(row) < REPORT_FAILED;
}

/* ---- against a baseline ---------------------------------------------------------------------- */

/* How many times faster now. NAN: one of the values is unknown. */
static double ratio_of(double now, double before, bool less_is_better)
{
	double top = less_is_better ? before : now, bottom = less_is_better ? now : before;

	return bottom > 0 ? top / bottom : NAN;
}

static enum report_change change_of(double value)
{
	if (isnan(value))
		return REPORT_NOT_COMPARED;
	return value >= REPORT_NOISE     ? REPORT_BETTER :
	       value * REPORT_NOISE <= 1 ? REPORT_WORSE :
					   REPORT_NOISE_ONLY;
}

/* Machines differ from one run to the next, and limits change with them. A row is better or worse
 * only if its speed changed and, where both runs have a limit, its share of the limit changed as
 * well. */
static void match_compare(struct report_match *match)
{
	const struct report_row *now = match->now, *before = match->before;
	bool latency = report_is_latency(now);
	double share;

	match->rerouted = strcmp(now->transport, before->transport) != 0;
	match->speed = NAN;
	match->change = REPORT_NOT_COMPARED;
	if (!is_good(now) || !is_good(before)) {
		if (is_good(before))
			match->change = REPORT_WORSE;
		else if (is_good(now))
			match->change = REPORT_BETTER;
		return;
	}
	match->speed = latency ? ratio_of(now->p50, before->p50, true) :
				 ratio_of(now->bandwidth, before->bandwidth, false);
	share = latency ? ratio_of(now->latency_ratio, before->latency_ratio, true) :
			  ratio_of(now->ratio, before->ratio, false);
	match->change = change_of(match->speed);
	if (match->change > REPORT_WORSE || isnan(share) || change_of(share) == match->change)
		return;
	match->change = REPORT_NOISE_ONLY;
	match->limit_moved = true;
}

/* Find the row of `set` that measured the same: the first one not used yet, or else the last. A row
 * by another route matches only if there is no other. */
static size_t set_find(const struct report_set *set, const bool *used, const struct report_row *row)
{
	size_t exact = SIZE_MAX, other = SIZE_MAX, others = 0;

	for (size_t i = 0; i < set->row_count; i++) {
		const struct report_row *at = &set->rows[i];

		if (at->skipped || !report_same(at, row) || strcmp(at->source, row->source) ||
		    strcmp(at->target, row->target))
			continue;
		if (!strcmp(at->transport, row->transport)) {
			exact = i;
			if (!used[i])
				return i;
		}
		other = i;
		others++;
	}
	if (exact != SIZE_MAX)
		return exact;
	return others == 1 ? other : SIZE_MAX;
}

size_t report_compare(const struct report_set *now, const struct report_set *before,
		      struct report_match **out)
{
	size_t most = now->row_count + before->row_count + 1, count = 0, at;
	struct report_match *matches = calloc(most, sizeof(*matches));
	bool *used = calloc(before->row_count + 1, sizeof(*used));

	for (size_t i = 0; matches && used && i < now->row_count; i++) {
		struct report_match *match = &matches[count];

		if (now->rows[i].skipped)
			continue;
		*match = (struct report_match){ .now = &now->rows[i],
						.speed = NAN,
						.change = REPORT_NOT_COMPARED };
		count++;
		at = set_find(before, used, match->now);
		if (at == SIZE_MAX)
			continue;
		match->before = &before->rows[at];
		used[at] = true;
		match_compare(match);
	}
	for (size_t i = 0; matches && used && i < before->row_count; i++)
		if (!used[i] && !before->rows[i].skipped)
			matches[count++] = (struct report_match){ .before = &before->rows[i],
								  .speed = NAN,
								  .change = REPORT_NOT_COMPARED };
	if (!used) {
		free(matches);
		matches = NULL;
	}
	free(used);
	*out = matches;
	return count;
}

void report_count(const struct report *report, struct report_counts *out)
{
	*out = (struct report_counts){ 0 };
	for (size_t i = 0; i < report->now.row_count; i++) {
		const struct report_row *row = &report->now.rows[i];

		if (row->skipped) {
			out->skipped++;
			continue;
		}
		out->verdict[report_judge(row)]++;
		out->verified += row->verified == 1;
	}
	for (size_t i = 0; i < report->match_count; i++)
		out->change[report->matches[i].change]++;
}
