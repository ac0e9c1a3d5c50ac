/* SPDX-License-Identifier: Apache-2.0 */
/* The results as a table for people and as JSON. */
#include <inttypes.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/report.h"

const char *bench_op_name(uint32_t op)
{
	return op == WH_READ ? "read" : "write";
}

const char *bench_form_name(uint32_t form)
{
	return form == BENCH_FORM_BLOCKS ? "blocks" : form == BENCH_FORM_LIST ? "list" : "single";
}

/* ---- the table ---------------------------------------------------------------------------- */

void bench_table_start(FILE *out, bool limits)
{
	fprintf(out, "%-5s  %-20s  %-28s  %10s  %6s  %10s  %7s", "op", "memory", "route", "size",
		"blocks", "set", "GB/s");
	if (limits)
		fprintf(out, "  %7s  %6s", "limit", "of it");
	fprintf(out, "  %8s", "p50 us");
	if (limits)
		fprintf(out, "  %8s", "limit us");
	fprintf(out, "  %s\n", "verified");
	fflush(out);
}

/* "tcp, 4 connections": the end of a longer route is cut off. */
static void route_text(const struct bench_result *result, char *out, size_t size)
{
	snprintf(out, size, "%s%s%s", result->transport, result->detail[0] ? ", " : "",
		 result->detail);
}

/* The medians of the rounds' own shares. Batches below BENCH_LARGE are graded by latency: "1.05x"
 * is 1.05 times the limit's p50. */
static const char *share_text(const struct bench_result *result, char *out, size_t size)
{
	if (bench_layout_bytes(&result->row.layout) >= BENCH_LARGE)
		return format_percent(out, size, result->ratio);
	if (isnan(result->latency_ratio))
		snprintf(out, size, "-");
	else
		snprintf(out, size, "%.*fx", result->latency_ratio < 100 ? 2 : 0,
			 result->latency_ratio);
	return out;
}

/* Explain the column heads. */
static void print_legend(FILE *out)
{
	fputs("of it: %: the median of the rounds' own GB/s over limit, each taken in the "
	      "same moment, which need not be\n"
	      "       that of the two columns; x: below 1 MiB, times the limit's p50\n",
	      out);
}

/* A line for each load: what it and the transfer keep of their rates. */
static void print_beside(FILE *out, const struct bench_result *result)
{
	for (unsigned i = 0; i < result->beside_count; i++) {
		const struct bench_beside *beside = &result->beside[i];
		char alone[32], both[32], share[32], transfer[32], transfer_share[32];
		double work;

		fprintf(out,
			"       beside %s: it has %s of %s %s (%s), the transfer %s GB/s (%s)\n",
			bench_load_name(beside->kind),
			format_number(both, sizeof(both), beside->beside),
			format_number(alone, sizeof(alone), beside->alone),
			bench_load_unit(beside->kind, &work),
			format_percent(share, sizeof(share), beside->share),
			format_number(transfer, sizeof(transfer), beside->transfer_beside),
			format_percent(transfer_share, sizeof(transfer_share),
				       beside->transfer_share));
	}
}

void bench_table_row(FILE *out, const struct bench_result *result, bool limits)
{
	const struct bench_row *row = &result->row;
	char memory[170], route[80], size[32], set[32], number[32];

	snprintf(memory, sizeof(memory), "%s %s %s", row->source.name,
		 row->both_ways ? "<->" : "->", row->target.name);
	route_text(result, route, sizeof(route));
	format_size(size, sizeof(size), row->layout.size);
	format_size(set, sizeof(set), bench_layout_set(&row->layout));
	fprintf(out, "%-5s  %-20s  %-28.28s  %10s  %6" PRIu64 "  %10s", bench_op_name(row->op),
		memory, route, size, row->layout.blocks, set);
	fprintf(out, "  %7s", format_number(number, sizeof(number), result->bandwidth));
	if (limits) {
		fprintf(out, "  %7s",
			format_number(number, sizeof(number), result->limit_bandwidth));
		fprintf(out, "  %6s", share_text(result, number, sizeof(number)));
	}
	fprintf(out, "  %8s", format_number(number, sizeof(number), result->p50));
	if (limits)
		fprintf(out, "  %8s", format_number(number, sizeof(number), result->limit_latency));
	fprintf(out, "  %s\n", result->verified < 0 ? "-" : result->verified ? "yes" : "NO");
	print_beside(out, result);
	fflush(out);
}

/* ---- matrices ----------------------------------------------------------------------------- */

/* Both rows belong to the same matrix. */
static bool same_matrix(const struct bench_row *a, const struct bench_row *b)
{
	return a->one_process == b->one_process && a->both_ways == b->both_ways && a->op == b->op &&
	       a->form == b->form && a->layout.size == b->layout.size &&
	       a->layout.blocks == b->layout.blocks && a->layout.batches == b->layout.batches;
}

/* What moved the bytes: c copy engine, k kernel, s staged through pinned memory, m the CPU, n
 * network. */
static char route_letter(const struct bench_result *result)
{
	if (!strcmp(result->transport, "cuda") && result->detail[0] != 'C') /* "CPU window" */
		return result->detail[0] == 'c' || result->detail[0] == 'k' ? result->detail[0] :
									      's';
	return !strcmp(result->transport, "tcp") ? 'n' : 'm';
}

static void matrix_cell(FILE *out, const struct bench_result *result, bool limits)
{
	char number[16], share[40];

	if (result->text[0] && result->verified != 0) {
		fprintf(out, "  %*s", limits ? 16 : 9, "-");
		return;
	}
	fprintf(out, "  %7s %c", format_number(number, sizeof(number), result->bandwidth),
		result->verified ? route_letter(result) : '!');
	if (limits)
		fprintf(out, " %6s", share_text(result, share, sizeof(share)));
}

static void matrix_print(FILE *out, const struct bench_result *results, size_t count, bool limits)
{
	const struct bench_row *row = &results->row;
	size_t columns = 0;
	char size[32];

	format_size(size, sizeof(size), row->layout.size);
	if (row->form == BENCH_FORM_SINGLE)
		fprintf(out, "%s contiguous", size);
	else
		fprintf(out, "%" PRIu64 " blocks of %s", row->layout.blocks, size);
	fprintf(out, ", %s, %s, by %s, GB/s\n", row->one_process ? "one process" : "two processes",
		row->both_ways ? "both ways at once (the sum)" : "one way", bench_op_name(row->op));
	fprintf(out, "%-16s", "from \\ to");
	while (columns < count && !strcmp(results[columns].row.source.name, row->source.name)) {
		fprintf(out, "  %*s", limits ? 16 : 9, results[columns].row.target.name);
		columns++;
	}
	for (size_t i = 0; i < count; i++) {
		if (i % columns == 0)
			fprintf(out, "\n%-16s", results[i].row.source.name);
		matrix_cell(out, &results[i], limits);
	}
	fprintf(out, "\n\n");
}

void bench_table_matrices(FILE *out, const struct bench_result *results, size_t count, bool limits)
{
	size_t first = 0;

	for (size_t i = 1; count && i <= count; i++) {
		if (i < count && same_matrix(&results[first].row, &results[i].row))
			continue;
		matrix_print(out, results + first, i - first, limits);
		first = i;
	}
	fprintf(out,
		"c copy engine, k kernel, s staged through pinned memory, m the CPU, n "
		"network, - not available%s, ! WRONG BYTES\n",
		limits ? "; %: of the limit, x: below 1 MiB, times its p50" : "");
	fflush(out);
}

/* ---- verdict ------------------------------------------------------------------------------ */

static void footprint_line(FILE *out, const char *what, uint64_t bytes, uint64_t most)
{
	fprintf(out, "%-44s  %9.2f MiB of %" PRIu64 " MiB  %s\n", what, (double)bytes / (1 << 20),
		most >> 20, bytes <= most ? "good" : "TOO MUCH");
}

void bench_table_footprint(FILE *out, const struct bench_footprint *footprint)
{
	footprint_line(out, "an idle engine, its whole process", footprint->idle, BENCH_IDLE_LIMIT);
	footprint_line(out, "one more TCP peer, at the initiator", footprint->near,
		       BENCH_PEER_LIMIT);
	footprint_line(out, "one more TCP peer, at the owner", footprint->far, BENCH_PEER_LIMIT);
	fflush(out);
}

/* Connections with TLS have no bound. */
static bool has_bound(const struct bench_handshake *handshake)
{
	return !strcmp(handshake->trust, "key");
}

bool bench_handshake_good(const struct bench_handshake *handshake)
{
	return !has_bound(handshake) || handshake->p50 <= BENCH_HANDSHAKE_LIMIT;
}

void bench_table_handshake(FILE *out, const struct bench_handshake *handshake)
{
	fprintf(out, "connecting to a peer (%s)%*s  %9.0f us", handshake->trust,
		(int)(20 - strlen(handshake->trust)), "", handshake->p50);
	if (has_bound(handshake))
		fprintf(out, " of %d us  %s", BENCH_HANDSHAKE_LIMIT,
			bench_handshake_good(handshake) ? "good" : "TOO LONG");
	fprintf(out, "; p99 %.0f us\n", handshake->p99);
	fflush(out);
}

static void print_slowest(FILE *out, const struct bench_result *slowest)
{
	char size[32], share[32];

	format_size(size, sizeof(size), slowest->row.layout.size);
	fprintf(out, "; the slowest, %s %s of %s, has %s of %s", slowest->transport,
		bench_op_name(slowest->row.op), size,
		format_percent(share, sizeof(share), slowest->ratio), slowest->limit_name);
}

int bench_table_verdict(FILE *out, const struct bench_result *results, size_t count, bool matrix)
{
	size_t done = 0, good = 0, with_limit = 0, verified = 0, wrong = 0, failed = 0, skipped = 0;
	const struct bench_result *slowest = NULL;

	for (size_t i = 0; i < count; i++) {
		const struct bench_result *result = &results[i];
		enum report_verdict grade;

		wrong += result->verified == 0;
		if (result->text[0]) {
			skipped += result->skipped;
			failed += !result->skipped;
			continue;
		}
		done++;
		verified += result->verified == 1;
		grade = report_grade((double)bench_layout_bytes(&result->row.layout), result->ratio,
				     result->latency_ratio, result->p50);
		with_limit += grade != REPORT_UNKNOWN;
		good += grade == REPORT_GOOD;
		if (grade != REPORT_UNKNOWN &&
		    bench_layout_bytes(&result->row.layout) >= BENCH_LARGE &&
		    (!slowest || result->ratio < slowest->ratio))
			slowest = result;
	}
	if (with_limit && !matrix)
		print_legend(out);
	report_rows(out, done, with_limit, good);
	if (verified || wrong)
		fprintf(out, ", %zu verified", verified);
	if (skipped)
		fprintf(out, ", %zu not available here", skipped);
	if (failed)
		fprintf(out, ", %zu FAILED", failed);
	if (slowest)
		print_slowest(out, slowest);
	fprintf(out, "\n");
	fflush(out);
	return failed || wrong ? EXIT_FAIL : EXIT_PASS;
}

/* ---- JSON --------------------------------------------------------------------------------- */

/* Six significant digits: more would be noise. */
static json_t *json_rounded(double value)
{
	char text[40];
	double rounded;

	if (isnan(value))
		return json_null();
	snprintf(text, sizeof(text), "%.6g", value);
	return sscanf(text, "%lf", &rounded) == 1 ? json_real(rounded) : json_null();
}

static json_t *text_or_null(const char *text)
{
	return text[0] ? json_string(text) : json_null();
}

static json_t *start_result(const struct bench_result *result)
{
	const struct bench_row *row = &result->row;
	json_t *json = json_object();

	json_object_set_new(json, "op", json_string(bench_op_name(row->op)));
	json_object_set_new(json, "source", json_string(row->source.name));
	json_object_set_new(json, "target", json_string(row->target.name));
	json_object_set_new(json, "transport",
			    text_or_null(row->transport[0] ? row->transport : result->transport));
	json_object_set_new(json, "processes", json_integer(row->one_process ? 1 : 2));
	json_object_set_new(json, "ways", json_integer(row->both_ways ? 2 : 1));
	json_object_set_new(json, "size_bytes", json_integer((json_int_t)row->layout.size));
	json_object_set_new(json, "blocks", json_integer((json_int_t)row->layout.blocks));
	json_object_set_new(json, "form", json_string(bench_form_name(row->form)));
	json_object_set_new(json, "connections",
			    row->connections ? json_integer(row->connections) : json_null());
	return json;
}

static json_t *json_beside(const struct bench_result *result)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < result->beside_count; i++) {
		const struct bench_beside *beside = &result->beside[i];
		json_t *json = json_object();
		double work;

		json_object_set_new(json, "load", json_string(bench_load_name(beside->kind)));
		json_object_set_new(json, "unit",
				    json_string(bench_load_unit(beside->kind, &work)));
		json_object_set_new(json, "threads",
				    beside->threads ? json_integer(beside->threads) : json_null());
		json_object_set_new(json, "alone", json_rounded(beside->alone));
		json_object_set_new(json, "beside", json_rounded(beside->beside));
		json_object_set_new(json, "share", json_rounded(beside->share));
		json_object_set_new(json, "transfer_alone_GBps",
				    json_rounded(beside->transfer_alone));
		json_object_set_new(json, "transfer_beside_GBps",
				    json_rounded(beside->transfer_beside));
		json_object_set_new(json, "transfer_share", json_rounded(beside->transfer_share));
		json_array_append_new(list, json);
	}
	return list;
}

json_t *bench_json_result(const struct bench_result *result)
{
	const struct bench_row *row = &result->row;
	json_t *json = start_result(result), *latency = json_object(), *first;

	json_object_set_new(json, "route_detail", text_or_null(result->detail));
	json_object_set_new(json, "mode", json_string(result->spinning ? "spinning" : "blocking"));
	json_object_set_new(json, "pinned", json_boolean(result->pinned));
	json_object_set_new(json, "in_flight", json_integer(row->depth));
	json_object_set_new(json, "working_set_bytes",
			    json_integer((json_int_t)bench_layout_set(&row->layout)));
	json_object_set_new(json, "bandwidth_GBps", json_rounded(result->bandwidth));
	json_object_set_new(latency, "p50", json_rounded(result->p50));
	json_object_set_new(latency, "p99", json_rounded(result->p99));
	json_object_set_new(latency, "p999", json_rounded(result->p999));
	json_object_set_new(json, "latency_us", latency);
	first = isnan(result->first[0]) ? json_null() : json_object();
	if (json_is_object(first)) {
		json_object_set_new(first, "new", json_rounded(result->first[0]));
		json_object_set_new(first, "prepared", json_rounded(result->first[1]));
	}
	json_object_set_new(json, "first_byte_us", first);
	json_object_set_new(json, "samples", json_integer((json_int_t)result->samples));
	json_object_set_new(json, "rounds", json_integer((json_int_t)result->rounds));
	json_object_set_new(json, "submit_ns_per_transfer", json_rounded(result->submit));
	json_object_set_new(json, "verified",
			    result->verified < 0 ? json_null() : json_boolean(result->verified));
	json_object_set_new(json, "limit_name", text_or_null(result->limit_name));
	json_object_set_new(json, "limit_call_bytes",
			    result->limit_call ? json_integer((json_int_t)result->limit_call) :
						 json_null());
	json_object_set_new(json, "limit_threads",
			    result->limit_threads ? json_integer(result->limit_threads) :
						    json_null());
	json_object_set_new(json, "limit_kernel_GBps", json_rounded(result->limit_parts.kernel));
	json_object_set_new(json, "limit_copy_GBps", json_rounded(result->limit_parts.copy));
	json_object_set_new(json, "limit_GBps", json_rounded(result->limit_bandwidth));
	json_object_set_new(json, "limit_us", json_rounded(result->limit_latency));
	json_object_set_new(json, "ratio", json_rounded(result->ratio));
	json_object_set_new(json, "latency_ratio", json_rounded(result->latency_ratio));
	json_object_set_new(json, "cache_line_ns", json_rounded(result->cache_line));
	json_object_set_new(json, "beside", json_beside(result));
	if (result->text[0])
		json_object_set_new(json, "error", json_string(result->text));
	return json;
}

json_t *bench_json_skipped(const struct bench_result *result)
{
	json_t *json = start_result(result);

	json_object_set_new(json, "reason", json_string(result->text));
	return json;
}

static json_t *json_count(uint64_t value)
{
	return json_integer((json_int_t)value);
}

json_t *bench_json_footprint(const struct bench_footprint *footprint)
{
	json_t *json = json_object();

	json_object_set_new(json, "process_before_bytes", json_count(footprint->before));
	json_object_set_new(json, "idle_engine_bytes", json_count(footprint->idle));
	json_object_set_new(json, "idle_engine_limit_bytes", json_integer(BENCH_IDLE_LIMIT));
	json_object_set_new(json, "peers", json_count(footprint->peers));
	json_object_set_new(json, "transfer_bytes", json_count(footprint->length));
	json_object_set_new(json, "peer_initiator_bytes", json_count(footprint->near));
	json_object_set_new(json, "peer_owner_bytes", json_count(footprint->far));
	json_object_set_new(json, "peer_limit_bytes", json_integer(BENCH_PEER_LIMIT));
	return json;
}

json_t *bench_json_handshake(const struct bench_handshake *handshake)
{
	json_t *json = json_object(), *us = json_object();

	json_object_set_new(us, "mean", json_rounded(handshake->mean));
	json_object_set_new(us, "p50", json_rounded(handshake->p50));
	json_object_set_new(us, "p99", json_rounded(handshake->p99));
	json_object_set_new(json, "trust", json_string(handshake->trust));
	json_object_set_new(json, "peers", json_count(handshake->count));
	json_object_set_new(json, "us", us);
	json_object_set_new(json, "limit_us",
			    has_bound(handshake) ? json_integer(BENCH_HANDSHAKE_LIMIT) :
						   json_null());
	return json;
}
