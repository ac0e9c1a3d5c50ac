/* SPDX-License-Identifier: Apache-2.0 */
/* wherry bench: the command line, the order of the measurements, the files that are written. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench/bench.h"
#include "bench/report.h"
#include "engine.h"
#include "output.h"
#include "url.h"

#define SECONDS "0.5"
#define PROBE 5000000 /* ns for the cache line's travel time, before and after */

struct bench {
	const struct arguments *arguments;
	struct bench_plan plan;
	struct bench_session session;
	struct bench_member_setup near, far;
	struct bench_result *results;
	size_t result_count;
	struct bench_footprint footprint;
	struct bench_handshake handshake;
	bool rows, has_footprint, has_handshake; /* what is measured */
	bool unavailable; /* a transport named by the user is not available */
	struct output_file json, page; /* --json, --report */
	struct report report;
	FILE *table; /* stdout, or stderr if stdout has a document */
};

/* ---- the command line --------------------------------------------------------------------- */

static bool is_true(const char *text)
{
	return !strcmp(text, "1") || !strcasecmp(text, "true") || !strcasecmp(text, "yes") ||
	       !strcasecmp(text, "on");
}

static int parse_peer(struct bench *bench)
{
	const char *text = argument(bench->arguments, "peer"), *wrong;
	struct url url;

	if (!text)
		return 0;
	wrong = url_is(text) ? url_parse(text, &url) : "does not start with wherry://";
	if (wrong)
		return usage_error("--peer: '%s' %s", text, wrong);
	if (url.offset)
		return usage_error(
			"--peer: a benchmark uses the whole region; leave out the offset");
	if (strlen(url.engine) >= sizeof(bench->session.url))
		return usage_error("--peer: '%s' is too long", text);
	bench->session.peer = text;
	snprintf(bench->session.url, sizeof(bench->session.url), "%.127s", url.engine);
	snprintf(bench->session.remote_name, sizeof(bench->session.remote_name), "%s", url.region);
	return 0;
}

/* After the rows are planned. */
static int parse_beside(struct bench *bench)
{
	const char *text = argument(bench->arguments, "beside");
	struct bench_session *session = &bench->session;
	int error = text ? bench_beside_parse(text, session->loads, &session->load_count) : 0;

	for (unsigned i = 0; !error && i < session->load_count; i++)
		if (bench_load_on_gpu(session->loads[i]) && !bench->plan.gpus)
			error = usage_error(
				"--beside gemm: no row uses a GPU; add --source cuda:0");
	return error;
}

static int bench_parse(struct bench *bench)
{
	const struct arguments *arguments = bench->arguments;
	const char *seconds = argument(arguments, "seconds");
	struct bench_session *session = &bench->session;
	const char *setting;
	int cursor = 0, error = parse_peer(bench);

	if (!error)
		error = engine_parse_stall(arguments);
	if (error)
		return error;
	while ((setting = argument_next(arguments, "config", &cursor)))
		if (!strncmp(setting, "connections=", strlen("connections=")))
			return usage_error(
				"--config connections: use --connections for a benchmark");
	error = bench_parse_seconds(seconds ? seconds : SECONDS, &session->duration);
	if (!error)
		error = bench_plan_make(arguments, &bench->plan);
	if (error)
		return error;
	bench->has_footprint = argument(arguments, "footprint");
	bench->has_handshake = argument(arguments, "handshake");
	/* Only these were asked for, and nothing about speed: measure them alone. */
	bench->rows = (!bench->has_footprint && !bench->has_handshake) ||
		      argument(arguments, "size") || argument(arguments, "transport");
	session->limits = argument(arguments, "limits");
	session->verify = argument(arguments, "verify");
	error = parse_beside(bench);
	if (error)
		return error;
	session->pinned = argument(arguments, "pin");
	session->spinning =
		argument(arguments, "spin") || is_true(bench_setting(arguments, "spin"));
	session->limit.spin = session->spinning;
	session->limit.stream.tls = is_true(bench_setting(arguments, "tls"));
	read_size(bench_setting(arguments, "buffer"), &session->limit.stream.buffer);
	return 0;
}

/* ---- the files that are written ----------------------------------------------------------- */

/* Check before the work that its result can be written, and read the baseline. */
static int files_open(struct bench *bench)
{
	const struct arguments *arguments = bench->arguments;
	const char *json = argument(arguments, "json"), *page = argument(arguments, "report");
	const char *baseline = argument(arguments, "baseline");
	int code;

	if (baseline && !page)
		return usage_error("--baseline needs --report: add --report FILE.html");
	if (json && page && !strcmp(json, page))
		return usage_error("--json and --report: use two files, not %s for both", json);
	bench->table =
		(json && !strcmp(json, "-")) || (page && !strcmp(page, "-")) ? stderr : stdout;
	bench->report.has_baseline = baseline;
	code = baseline ? report_read(&bench->report.before, baseline) : 0;
	if (!code)
		code = output_open(&bench->json, json);
	return code ? code : output_open(&bench->page, page);
}

static void files_drop(struct bench *bench)
{
	output_close(&bench->json);
	output_close(&bench->page);
	report_free(&bench->report.now);
	report_free(&bench->report.before);
	free(bench->report.matches);
}

static json_t *json_make(const struct bench *bench, double before, double after)
{
	json_t *json = output_new(), *results = json_array(), *skipped = json_array();

	for (size_t i = 0; i < bench->result_count; i++) {
		const struct bench_result *result = &bench->results[i];

		if (result->skipped)
			json_array_append_new(skipped, bench_json_skipped(result));
		else
			json_array_append_new(results, bench_json_result(result));
	}
	json_object_set_new(
		json, "environment",
		bench_environment(bench->plan.gpus ? &bench->plan.seen : NULL, before, after));
	json_object_set_new(json, "results", results);
	json_object_set_new(json, "skipped", skipped);
	json_object_set_new(json, "footprint",
			    bench->has_footprint ? bench_json_footprint(&bench->footprint) :
						   json_null());
	json_object_set_new(json, "handshake",
			    bench->has_handshake ? bench_json_handshake(&bench->handshake) :
						   json_null());
	return json;
}

/* Write the page of bench->report. Its exit code depends on what the page shows: a row below its
 * limit is no failure, a row worse than the baseline is a warning. */
static int page_write(struct bench *bench)
{
	char *text = NULL;
	size_t length = 0;
	FILE *out = open_memstream(&text, &length);
	int error = out ? report_write(&bench->report, out) : -ENOMEM, code;

	if (out && (ferror(out) | fclose(out)))
		error = -ENOMEM;
	if (error)
		code = fail(ENOMEM, "out of memory");
	else
		code = output_write_text(&bench->page, text, length);
	free(text);
	return code ? code : report_verdict_line(&bench->report, bench->table);
}

/* Write the results into the files that were asked for. Returns the first exit code that is not
 * 0. */
static int files_write(struct bench *bench, double before, double after, int code)
{
	char why[REPORT_WHY];
	json_t *json;
	int wrote = 0;

	if (!bench->json.path && !bench->page.path)
		return code;
	json = json_make(bench, before, after);
	if (bench->json.path)
		wrote = output_write(&bench->json, json_incref(json));
	if (wrote || !bench->page.path) {
		json_decref(json);
		return code ? code : wrote;
	}
	if (report_add(&bench->report.now, "this run", json, why))
		wrote = fail(EINVAL, "%s", why);
	else
		wrote = page_write(bench);
	return code ? code : wrote;
}

/* ---- from: earlier results ------------------------------------------------------------------- */

/* With --from nothing is measured, so options about measuring are errors. */
static int check_from(const struct arguments *arguments)
{
	static const char *const fitting[] = { "from", "report", "baseline" };
	const struct command_option *option = arguments->command->options;

	if (!argument(arguments, "report"))
		return usage_error("--from needs --report: add --report FILE.html");
	for (; option->name; option++) {
		bool fits = false;

		for (size_t i = 0; i < sizeof(fitting) / sizeof(fitting[0]); i++)
			fits = fits || !strcmp(option->name, fitting[i]);
		if (!fits && argument(arguments, option->name))
			return usage_error("--from shows earlier results: leave out --%s",
					   option->name);
	}
	return 0;
}

static int show_saved(struct bench *bench)
{
	int code = check_from(bench->arguments);

	if (!code)
		code = report_read(&bench->report.now, argument(bench->arguments, "from"));
	if (!code)
		code = files_open(bench);
	return code ? code : page_write(bench);
}

/* ---- measuring ---------------------------------------------------------------------------- */

static int start_processes(struct bench *bench)
{
	struct bench_session *session = &bench->session;
	enum bench_half near = session->pinned ? BENCH_NEAR_CPUS : BENCH_ANY_CPU;
	enum bench_half far = session->pinned ? BENCH_FAR_CPUS : BENCH_ANY_CPU;
	int error = 0;

	session->limit.near = &session->near;
	session->limit.near_samples = session->shared;
	bench->near = (struct bench_member_setup){ bench->arguments, session->shared, "none" };
	bench->far = bench->near;
	bench->far.listen = "127.0.0.1:0";
	if (!session->peer)
		error = bench_process_start(&session->far, "far", far, bench_member_serve,
					    &bench->far);
	if (!error)
		error = bench_process_start(&session->near, "near", near, bench_member_serve,
					    &bench->near);
	if (!error && session->load_count)
		error = bench_process_start(&session->beside, "beside", BENCH_ANY_CPU,
					    bench_beside_serve, &bench->near);
	if (!error && session->limits && !session->peer) {
		error = bench_process_start(&session->raw, "raw", far, bench_raw_serve, NULL);
		session->limit.process = &session->raw;
	}
	return error ? fail(error, "fork: %s", strerror(-error)) : 0;
}

/* An error without a text has been reported already. */
static int not_measured(int error, const char *text)
{
	if (!text[0])
		return bench_reported_code(error);
	return fail(error, "%s", text);
}

static int open_far(struct bench *bench)
{
	struct bench_order order = { .what = BENCH_OPEN };
	struct bench_answer answer;
	int error;

	if (bench->session.peer)
		return 0;
	error = bench_ask(&bench->session.far, &order, &answer);
	if (error)
		return not_measured(error, answer.text);
	snprintf(bench->session.url, sizeof(bench->session.url), "%.127s", answer.text);
	return 0;
}

static int bench_allocate(struct bench *bench)
{
	struct bench_session *session = &bench->session;
	size_t length = BENCH_SAMPLES * sizeof(*session->shared);

	/* Near writes them, this process reads them. */
	session->shared =
		mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (session->shared == MAP_FAILED) {
		session->shared = NULL;
		return fail(errno, "memory for the samples: %s", strerror(errno));
	}
	session->samples =
		calloc((BENCH_ROUNDS + 1) * (size_t)BENCH_SAMPLES, sizeof(*session->samples));
	bench->results = calloc(bench->plan.count + 1, sizeof(*bench->results));
	if (!session->samples || !bench->results)
		return fail(ENOMEM, "out of memory");
	return 0;
}

/* A route refused for one size is refused for all: report it once. */
static void report_skipped(const struct bench *bench, const struct bench_result *result)
{
	for (const struct bench_result *other = bench->results; other < result; other++)
		if (other->skipped && !strcmp(other->text, result->text))
			return;
	note("%s%s%s -> %s is not available: %s", result->row.transport,
	     result->row.transport[0] ? ", " : "", result->row.source.name, result->row.target.name,
	     result->text);
}

/* Returns 0 to go on with the next row. */
static int measure_row(struct bench *bench, const struct bench_row *row)
{
	struct bench_result *result = &bench->results[bench->result_count++];
	bool limits = bench->session.limits;
	int error = bench_measure(&bench->session, row, result);

	bench->session.rounds += BENCH_ROUNDS;
	progress_wipe();
	if (!error) {
		if (!bench->plan.matrix)
			bench_table_row(bench->table, result, limits);
		return 0;
	}
	if (!result->text[0])
		snprintf(result->text, sizeof(result->text), "%s", strerror(-error));
	result->skipped = error == -EOPNOTSUPP || (bench->session.peer && error == -EACCES);
	if (result->skipped) {
		bench->unavailable =
			bench->unavailable || bench->plan.chosen || bench->session.load_count;
		report_skipped(bench, result);
		return 0;
	}
	bench_table_row(bench->table, result, limits);
	fail(error, "%s %s: %s", row->transport, bench_op_name(row->op), result->text);
	return error == -EPIPE ? EXIT_FAIL : 0;
}

static int measure_rows(struct bench *bench)
{
	struct bench_session *session = &bench->session;
	char text[BENCH_TEXT] = "";
	int code, error;

	code = open_far(bench);
	if (code)
		return code;
	/* A peer that does not answer is one error, not one for each row. */
	error = session->peer ? bench_connect(session, 0, false, text) : 0;
	if (error)
		return not_measured(error, text);
	if (session->limits && session->peer)
		note("with --peer there is no other end for a raw limit: only memcpy is measured, "
		     "for rows that use shared memory");
	if (!bench->plan.matrix)
		bench_table_start(bench->table, session->limits);
	progress_start_steps(&session->progress, session->label, bench->plan.count * BENCH_ROUNDS,
			     false);
	for (size_t i = 0; !code && i < bench->plan.count; i++)
		code = measure_row(bench, &bench->plan.rows[i]);
	progress_end(&session->progress);
	if (bench->plan.matrix)
		bench_table_matrices(bench->table, bench->results, bench->result_count,
				     session->limits);
	return code;
}

static int measure_handshake(struct bench *bench)
{
	char text[BENCH_TEXT];
	int error =
		bench_handshake(bench->arguments, bench->session.duration, &bench->handshake, text);

	if (error)
		return not_measured(error, text);
	bench_table_handshake(bench->table, &bench->handshake);
	return bench_handshake_good(&bench->handshake) ? EXIT_PASS : EXIT_FAIL;
}

static int measure_footprint(struct bench *bench)
{
	char text[BENCH_TEXT];
	int error = bench_footprint(bench->arguments, &bench->footprint, text);
	const struct bench_footprint *footprint = &bench->footprint;

	if (error)
		return not_measured(error, text);
	bench_table_footprint(bench->table, footprint);
	return footprint->idle <= BENCH_IDLE_LIMIT && footprint->near <= BENCH_PEER_LIMIT &&
			       footprint->far <= BENCH_PEER_LIMIT ?
		       EXIT_PASS :
		       EXIT_FAIL;
}

/* Fork everything before anything has threads. */
static int bench_measure_all(struct bench *bench)
{
	double before, after;
	int code = EXIT_PASS, rows = EXIT_PASS;

	if (bench->has_footprint)
		code = measure_footprint(bench);
	if (bench->has_handshake && (!code || code == EXIT_FAIL))
		rows = measure_handshake(bench);
	if (!code || (rows && rows != EXIT_FAIL))
		code = rows;
	rows = EXIT_PASS;
	if (code && code != EXIT_FAIL)
		return code;
	if (bench->rows)
		rows = start_processes(bench);
	before = bench_cache_line(PROBE);
	if (bench->rows && !rows) {
		rows = measure_rows(bench);
		if (rows && !bench->result_count)
			return rows;
		/* The engines must be gone, or their memory would be counted as well. */
		bench_process_end(&bench->session.near);
		bench_process_end(&bench->session.far);
		if (!rows)
			rows = bench_table_verdict(bench->table, bench->results,
						   bench->result_count, bench->plan.matrix);
		if (!rows && bench->unavailable)
			rows = EXIT_UNAVAILABLE;
	}
	after = bench_cache_line(PROBE);
	if (!code)
		code = rows;
	return files_write(bench, before, after, code);
}

static int measure_file(struct bench *bench)
{
	double before, after;
	int code = files_open(bench);

	if (code)
		return code;
	bench->results = calloc(2, sizeof(*bench->results));
	if (!bench->results)
		return fail(ENOMEM, "out of memory");
	before = bench_cache_line(PROBE);
	code = bench_file_measure(bench->arguments, bench->table, bench->results,
				  &bench->result_count);
	after = bench_cache_line(PROBE);
	return bench->result_count ? files_write(bench, before, after, code) : code;
}

static int bench_run(const struct arguments *arguments)
{
	struct bench bench = { .arguments = arguments, .json.fd = -1, .page.fd = -1 };
	int code;

	if (argument(arguments, "from")) {
		code = show_saved(&bench);
		files_drop(&bench);
		return code;
	}
	if (bench_file_wanted(arguments)) {
		code = measure_file(&bench);
		files_drop(&bench);
		free(bench.results);
		return code;
	}
	code = bench_parse(&bench);
	if (!code)
		code = bench_allocate(&bench);
	if (!code)
		code = files_open(&bench);
	if (!code)
		code = bench_measure_all(&bench);
	bench_process_end(&bench.session.near);
	bench_process_end(&bench.session.far);
	bench_process_end(&bench.session.beside);
	bench_limit_close(&bench.session.limit);
	bench_process_end(&bench.session.raw);
	files_drop(&bench);
	if (bench.session.shared)
		munmap(bench.session.shared, BENCH_SAMPLES * sizeof(*bench.session.shared));
	free(bench.session.samples);
	free(bench.results);
	bench_plan_free(&bench.plan);
	return code;
}

/* ---- the command -------------------------------------------------------------------------- */

static const struct command_option options[] = {
	{ .name = "transport",
	  .letter = 't',
	  .argument = "NAME",
	  .complete = "self cuda shm rdma tcp all",
	  .help = "self, cuda, shm, rdma, tcp or all (default)" },
	{ .name = "op",
	  .letter = 'o',
	  .argument = "OP",
	  .complete = "read write both",
	  .help = "read, write or both (the default)" },
	{ .name = "size",
	  .letter = 's',
	  .argument = "SIZES",
	  .help = "bytes of a block; default 8,64KiB,1MiB,64MiB" },
	{ .name = "blocks",
	  .letter = 'b',
	  .argument = "N",
	  .help = "N blocks at random offsets in a batch" },
	{ .name = "list", .help = "as N transfers, not one blocks descriptor", .rare = true },
	{ .name = "connections",
	  .letter = 'n',
	  .argument = "COUNTS",
	  .help = "TCP connections; default 1",
	  .rare = true },
	{ .name = "source",
	  .argument = "MEMS",
	  .help = "from cuda:0,pinned ..., or file:PATH; default host" },
	{ .name = "target", .argument = "MEMS", .help = "to these memories" },
	{ .name = "memory",
	  .letter = 'm',
	  .argument = "MEMS",
	  .help = "all pairs of these memories",
	  .rare = true },
	{ .name = "matrix", .help = "a table of all pairs of memories, GPUs included" },
	{ .name = "both-ways", .help = "the same amount goes back at the same time", .rare = true },
	{ .name = "processes",
	  .argument = "N",
	  .help = "1, 2; default 2,1, where both make sense",
	  .rare = true },
	{ .name = "working-set",
	  .letter = 'w',
	  .argument = "SIZES",
	  .help = "bytes walked through; default 64MiB",
	  .rare = true },
	{ .name = "depth",
	  .letter = 'd',
	  .argument = "N",
	  .help = "batches in flight; default: about 4 MiB",
	  .rare = true },
	{ .name = "seconds",
	  .argument = "S",
	  .help = "for each row; default " SECONDS,
	  .rare = true },
	{ .name = "limits", .letter = 'l', .help = "measure the raw limit in the same run" },
	{ .name = "beside",
	  .argument = "LOADS",
	  .complete = "cpu gemm",
	  .help = "what other work costs the transfers, and they it: cpu, gemm",
	  .rare = true },
	{ .name = "verify", .help = "check every byte, and guard bytes around them" },
	{ .name = "footprint",
	  .letter = 'f',
	  .help = "measure the memory of an engine and of each peer",
	  .rare = true },
	{ .name = "handshake",
	  .help = "measure the time to connect to a peer and prove the key",
	  .rare = true },
	{ .name = "spin", .help = "spin instead of sleeping, on both sides", .rare = true },
	{ .name = "pin", .help = "keep each side on CPUs of its own", .rare = true },
	{ .name = "peer",
	  .letter = 'p',
	  .argument = "URL",
	  .help = "use another engine, not a process of our own" },
	{ .name = "config",
	  .letter = 'c',
	  .argument = "NAME=VALUE",
	  .complete = "setting",
	  .help = "change a setting, on both sides",
	  .many = true,
	  .rare = true },
	{ .name = "verbose",
	  .letter = 'v',
	  .help = "log what the engines do, on stderr",
	  .rare = true },
	{ .name = "json",
	  .letter = 'j',
	  .argument = "FILE",
	  .complete = "file",
	  .help = "write everything to FILE; - is stdout" },
	{ .name = "report",
	  .letter = 'r',
	  .argument = "FILE",
	  .complete = "file",
	  .help = "the same as a page (HTML)" },
	{ .name = "from",
	  .argument = "FILES",
	  .complete = "file",
	  .help = "measure nothing: a --report of what --json has written",
	  .rare = true },
	{ .name = "baseline",
	  .argument = "FILES",
	  .complete = "file",
	  .help = "compare the --report with what --json wrote earlier",
	  .rare = true },
	STALL_OPTION,
	{ 0 },
};

const struct command command_bench = {
	.name = "bench",
	.usage = "",
	.summary = "Measure how fast bytes move, by which route, against what limit",
	.details =
		"Starts a second process and moves bytes between the two, or to and from the "
		"engine that --peer names (wherry://HOST:PORT[/REGION]; without REGION its "
		"longest one). The region's bytes are overwritten.\n"
		"\n" MEMORY_HELP " MEMS are several, separated by commas.\n"
		"\n"
		"The table has one row for each combination of the options' values (SIZES: "
		"8,64KiB,1MiB). GB/s is 10^9 bytes a second, with several batches in flight "
		"that walk through the working set (\"set\"). p50 is the median time from "
		"submission to completion of an isolated batch. With GPU memory the routes "
		"are cuda, in two processes and in one (--processes), and tcp. rdma is "
		"measured only if it is named: -t rdma.\n"
		"\n"
		"--source file:PATH reads all of a file, or --working-set of it, into one "
		"--target: once from the page cache (\"warm\"), once after its pages have been "
		"evicted (\"cold\"), which is checked; where they stay, the row is left out with "
		"the reason. The limit is preads of 4 MiB by as many threads as the setting "
		"file_threads allows, into the same memory, or of a GPU into host memory.\n"
		"\n"
		"--matrix measures every pair of pageable and pinned host memory and each "
		"GPU, or of what --memory lists: 64 MiB contiguous, moved by copy engines, "
		"and 1,024 blocks of 16 KiB, moved by the kernel (or what --size and "
		"--blocks say); in two processes and in one; one way, and both ways at "
		"once.\n"
		"\n"
		"--limits measures, in turns with Wherry, what plain code reaches with the "
		"same kind of memory, walked in the same way: memcpy, by a thread on each CPU, "
		"for shared memory; process_vm calls where the route uses them; otherwise "
		"blocking send and "
		"recv on as many TCP connections (SSL_write and SSL_read where the setting "
		"tls is on). The limit's latency is that of a ping-pong: the same bytes one "
		"way and one byte back. For GPUs the limit is the driver's own copy of the "
		"whole, and for blocks the better of that and the bare kernel. The share of the "
		"limit (\"of it\") "
		"is the median of the rounds' own shares. Both halves of a round meet the "
		"same state of the machine, so the share need not be GB/s over limit. "
		"Batches below 1 MiB are graded by latency: \"1.05x\" is 1.05 times the "
		"limit's p50. A row reaches the limit with 95 % of its bandwidth, or with a "
		"p50 of at most 1.3 times the limit's, or of 0.5 us.\n"
		"\n"
		"--beside measures each row again beside other work, and that work beside it, in "
		"turns with both alone. cpu: by a thread on each CPU in a process of its own, "
		"memory (a triad over arrays beyond the caches) and compute (arithmetic in "
		"registers). gemm: products of bf16 matrices, 8192 cubed, by cuBLAS on the row's "
		"GPU, in the process that submits (gemm-inside) and in another (gemm-apart). "
		"Where cuBLAS is missing the row is not available; gemm=FILE names its file.\n"
		"\n"
		"--verify fills the source with a pattern that differs at every position and "
		"in every round, moves everything, and lets the process that owns the target "
		"compare it, with guard bytes around every block, before and after the "
		"measurement. The CUDA driver alone copies a GPU's bytes to the host for "
		"that.\n"
		"\n"
		"The scheduler may or may not put both ends of a connection on one CPU, and "
		"may change that at any time: --pin gives each side, of Wherry and of the "
		"limit, one half of the CPUs.\n"
		"\n"
		"--report writes one page that needs no other file and no network: matrices, "
		"curves against size with the limit drawn in, verdicts, routes, environment. "
		"--from makes the page from files that --json has written, separated by "
		"commas, without measuring. --baseline compares with such files: a row is "
		"better or worse if its speed and, where both have a limit, its share of the "
		"limit differ by more than 10 %; the exit code is 1 if a row is worse.\n"
		"\n"
		"--footprint and --handshake alone measure no speeds. The exit code is 2 if "
		"bytes were wrong, a transfer failed, the footprint exceeds its bounds or "
		"half of the peers take more than 1 ms (without TLS), and 69 if a named "
		"--transport is not available.",
	.examples = "wherry bench --limits --verify --report bench.html\n"
		    "wherry bench -l --source cuda:0 --target cuda:1 -s 4KiB -b 16384\n",
	.options = options,
	.least = 0,
	.most = 0,
	.run = bench_run,
};
