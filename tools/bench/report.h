/* SPDX-License-Identifier: Apache-2.0 */
/* Results of wherry bench as one HTML page: what its parts share. */
#ifndef TOOLS_BENCH_REPORT_H
#define TOOLS_BENCH_REPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define REPORT_ROWS 4096 /* the most rows of all files */
#define REPORT_SIDE 64 /* the most memories of a matrix, on either side */
#define REPORT_SERIES 8 /* the most lines of a figure */
#define REPORT_NOISE 1.10 /* two runs of the same thing differ by less */
#define REPORT_LATENCY 1.3 /* times the limit's latency: as good as the limit */
#define REPORT_INSTANT 0.5 /* us: good, whatever the limit is */
#define REPORT_WHY 256

/* ---- results (report-load.c) -------------------------------------------------------------- */

/* A row of a file. Texts belong to the file, "" if absent; numbers are NAN or 0 if absent. */
struct report_row {
	const char *op, *source, *target, *transport, *detail, *form, *mode, *limit_name;
	const char *error; /* why it failed or was skipped; "": neither */
	uint64_t processes, ways, size, blocks, connections, set, in_flight, samples, rounds;
	double bandwidth, p50, p99, p999, submit, first_new, first_prepared, limit_bandwidth,
		limit_latency, ratio, latency_ratio;
	int verified; /* 1, 0; -1: not checked */
	bool pinned, skipped;
};

struct report_file {
	char *name; /* without its folders */
	json_t *root;
};

/* Rows shown together: this run's, or the baseline's. */
struct report_set {
	struct report_file *files;
	struct report_row
		*rows; /* measured or failed ones first, then skipped ones, file by file */
	size_t file_count, row_count;
};

/* Add a file's results; takes ownership of `root`. 0, or -1 with the error and its position in
 * `why`. */
int report_add(struct report_set *set, const char *name, json_t *root, char why[REPORT_WHY]);

/* Read files; `names` are separated by commas. 0, or an exit code after a line on stderr. */
int report_read(struct report_set *set, const char *names);
void report_free(struct report_set *set);

/* The rows measured the same kind of thing, of any size; or also with the same size and blocks. */
bool report_same_kind(const struct report_row *a, const struct report_row *b);
bool report_same(const struct report_row *a, const struct report_row *b);

/* ---- verdicts (report-compare.c) ---------------------------------------------------------- */

enum report_verdict {
	REPORT_GOOD, /* reaches the limit */
	REPORT_FAIR, /* 0.8 of it, or twice its latency */
	REPORT_POOR,
	REPORT_UNKNOWN, /* no limit */
	REPORT_FAILED,
	REPORT_WRONG, /* wrong bytes */
};

/* Batches of less than 1 MiB are graded by latency, others by bandwidth. */
bool report_is_latency(const struct report_row *row);
enum report_verdict report_judge(const struct report_row *row);

/* Grade by numbers: UNKNOWN, GOOD, FAIR or POOR. `bytes` of a batch; `ratio` of the bandwidths,
 * `latency_ratio` of the times, p50 in us; NAN: unknown. */
enum report_verdict report_grade(double bytes, double ratio, double latency_ratio, double p50);

/* "18 of 24 rows reached the limit", or a text for rows without a limit. */
void report_rows(FILE *out, size_t rows, size_t judged, size_t good);

enum report_change {
	REPORT_BETTER,
	REPORT_WORSE,
	REPORT_NOISE_ONLY, /* within the noise, or the limit changed as well */
	REPORT_NOT_COMPARED,
};

struct report_match {
	const struct report_row *now, *before; /* either may be NULL */
	enum report_change change;
	double speed; /* times the speed before; NAN: unknown */
	bool limit_moved; /* the speed changed, its share of the limit did not */
	bool rerouted;
};

/* Match every row of `now` with the row of `before` that measured the same (several in turn); after
 * them rows that only `before` has. Returns how many; NULL in *out: no memory. */
size_t report_compare(const struct report_set *now, const struct report_set *before,
		      struct report_match **out);

/* ---- the page (report-page.c) ------------------------------------------------------------- */

struct report {
	struct report_set now, before;
	bool has_baseline;
	struct report_match *matches;
	size_t match_count;
};

/* How many rows have each verdict and each change. */
struct report_counts {
	size_t verdict[REPORT_WRONG + 1], change[REPORT_NOT_COMPARED + 1], skipped, verified;
};
void report_count(const struct report *report, struct report_counts *out);

/* Compare, if there is a baseline, and write the whole page. 0 or -ENOMEM; the caller checks `out`
 * for write errors. */
int report_write(struct report *report, FILE *out);

/* Write a summary of the page in one line. Returns the matching exit code. */
int report_verdict_line(const struct report *report, FILE *out);

/* ---- parts of the page -------------------------------------------------------------------- */

extern const char report_style[]; /* report-style.c */

/* Write text with HTML's special characters replaced, and those that would reorder or hide
 * letters. */
void report_text(FILE *out, const char *text);

/* "1,024 x 4 KiB", "tcp, 4 connections, one process", "host to cuda:0". */
void report_load_text(const struct report_row *row, char *out, size_t size);
void report_route_text(const struct report_row *row, char *out, size_t size);

/* A heading for rows of a kind: what they share besides op, memories and size. */
void report_kind_text(const struct report_row *row, char *out, size_t size);

void report_matrices(const struct report_set *set, FILE *out); /* report-matrix.c */
void report_curves(const struct report_set *set, FILE *out); /* report-curve.c */

/* report-environment.c. 0 or -ENOMEM. */
void report_where(const struct report_set *set, FILE *out);
int report_routes(const struct report_set *set, FILE *out);
int report_environment(const struct report *report, FILE *out);

#endif
