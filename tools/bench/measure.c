/* SPDX-License-Identifier: Apache-2.0 */
/* Measure a row: Wherry's processes and the raw limit in turns, round by round. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"

#define ROUNDS_LEAST 3
#define SLICE_STOPPED 500000000 /* ns; the longest slice for which engines are stopped */

enum { NEAR, FAR };

/* The processes that hold the two sides of a row. */
struct row_processes {
	struct bench_process *source, *target; /* NULL: at the peer */
};

static struct row_processes row_processes_of(struct bench_session *session,
					     const struct bench_row *row)
{
	struct bench_process *other = row->one_process ? &session->near :
				      session->peer    ? NULL :
							 &session->far;

	if (row->op == WH_WRITE)
		return (struct row_processes){ &session->near, other };
	return (struct row_processes){ other, &session->near };
}

/* Give an order. Its error text becomes the row's. */
static int row_ask(struct bench_process *process, const struct bench_order *order,
		   struct bench_answer *answer, char text[BENCH_TEXT])
{
	int error = bench_ask(process, order, answer);

	if (error)
		memcpy(text, answer->text, BENCH_TEXT);
	return error;
}

/* ---- engine and peers --------------------------------------------------------------------- */

static int near_open(struct bench_session *session, uint32_t connections, char text[BENCH_TEXT])
{
	struct bench_order order = { .what = BENCH_CLOSE };
	struct bench_answer answer;
	int error = 0;

	if (session->connections) {
		error = row_ask(&session->near, &order, &answer, text);
		session->connections = 0;
		session->self = session->connected = false;
		memset(session->memory[NEAR], 0, sizeof(session->memory[NEAR]));
	}
	if (error)
		return error;
	order.what = BENCH_OPEN;
	order.connections = connections ? connections : 1;
	error = row_ask(&session->near, &order, &answer, text);
	if (!error)
		session->connections = order.connections;
	return error;
}

static int find_region(struct bench_session *session, char text[BENCH_TEXT])
{
	struct bench_order order = { .what = BENCH_REGION };
	struct bench_answer answer;
	int error;

	snprintf(order.text, sizeof(order.text), "%s", session->remote_name);
	error = row_ask(&session->near, &order, &answer, text);
	if (error)
		return error;
	session->remote_length = answer.bytes;
	session->remote_access = answer.access;
	session->remote_kind = answer.kind;
	return 0;
}

int bench_connect(struct bench_session *session, uint32_t connections, bool self,
		  char text[BENCH_TEXT])
{
	struct bench_order order = { .what = BENCH_CONNECT };
	struct bench_answer answer;
	bool *there = self ? &session->self : &session->connected;
	int error = 0;

	if (!session->connections || (connections && connections != session->connections))
		error = near_open(session, connections, text);
	if (error || *there)
		return error;
	snprintf(order.text, sizeof(order.text), "%s", self ? "self" : session->url);
	error = row_ask(&session->near, &order, &answer, text);
	if (error)
		return error;
	*there = true;
	return session->peer && !self ? find_region(session, text) : 0;
}

/* ---- memory ------------------------------------------------------------------------------- */

/* Make sure that a process has the row's memory on that side. */
static int memory_provide(struct bench_session *session, struct bench_process *process,
			  uint32_t side, const struct memory *memory, uint64_t length,
			  char text[BENCH_TEXT])
{
	int which = process == &session->near ? NEAR : FAR;
	struct bench_order *has = &session->memory[which][side];
	struct bench_order order = {
		.what = BENCH_MEMORY, .side = side, .memory = *memory, .length = length
	};
	struct bench_answer answer;
	char *name = session->memory_name[which][side];
	int error;

	if (!memcmp(&has->memory, memory, sizeof(*memory)) && has->length >= length)
		return 0;
	has->memory.kind = 0;
	error = row_ask(process, &order, &answer, text);
	if (error)
		return error;
	*has = order;
	has->address = answer.address;
	snprintf(name, sizeof(session->memory_name[which][side]), "%.63s", answer.text);
	return 0;
}

static int provide_all(struct bench_session *session, const struct bench_row *row,
		       char text[BENCH_TEXT])
{
	static const struct memory scratch = { .kind = WH_MEMORY_SHARED };
	struct row_processes at = row_processes_of(session, row);
	uint64_t source = row->layout.source_length, target = row->layout.target_length;
	int error = 0;

	if (at.source)
		error = memory_provide(session, at.source, BENCH_SOURCE, &row->source, source,
				       text);
	if (!error && at.target)
		error = memory_provide(session, at.target, BENCH_TARGET, &row->target, target,
				       text);
	if (!error && row->both_ways)
		error = memory_provide(session, at.target, BENCH_BACK_SOURCE, &row->target, source,
				       text);
	if (!error && row->both_ways)
		error = memory_provide(session, at.source, BENCH_BACK_TARGET, &row->source, target,
				       text);
	if (!error && session->verify && !(at.source && at.target))
		error = memory_provide(session, &session->near, BENCH_SCRATCH, &scratch,
				       at.source ? target : source, text);
	return error;
}

/* ---- verification ------------------------------------------------------------------------- */

/* Give one order about one side's pattern. Near's scratch memory stands in for a side at the
 * peer. */
static int pattern_order(struct bench_session *session, struct bench_process *process,
			 uint32_t what, uint32_t side, const struct bench_row *row,
			 uint64_t iteration, char text[BENCH_TEXT])
{
	struct bench_order order = {
		.what = what,
		.side = process ? side : BENCH_SCRATCH,
		.iteration = iteration,
		.length = side == BENCH_SOURCE || side == BENCH_BACK_SOURCE ?
				  row->layout.source_length :
				  row->layout.target_length,
		.row = *row,
	};
	struct bench_answer answer;
	int error = 0;

	if (!process && what == BENCH_CHECK) {
		order.what = BENCH_GET;
		error = row_ask(&session->near, &order, &answer, text);
		order.what = what;
	}
	if (!error)
		error = row_ask(process ? process : &session->near, &order, &answer, text);
	if (!error && !process && what != BENCH_CHECK) {
		order.what = BENCH_PUT;
		error = row_ask(&session->near, &order, &answer, text);
	}
	return error;
}

/* Fill the source, move everything once, check the target. */
static int row_verify(struct bench_session *session, const struct bench_row *row,
		      uint64_t iteration, struct bench_result *result)
{
	const uint32_t both = WH_ACCESS_READ | WH_ACCESS_WRITE;
	struct row_processes at = row_processes_of(session, row);
	struct bench_order order = { .what = BENCH_WALK };
	struct bench_answer answer;
	int error = 0;

	if (!(at.source && at.target) && (session->remote_access & both) != both)
		/* a peer's region that is not readable or not writable cannot be checked */
		return 0;
	for (int back = 0; !error && back <= row->both_ways; back++) {
		error = pattern_order(session, back ? at.target : at.source, BENCH_FILL,
				      back ? BENCH_BACK_SOURCE : BENCH_SOURCE, row,
				      2 * iteration + back, result->text);
		if (!error)
			error = pattern_order(session, back ? at.source : at.target, BENCH_GUARD,
					      back ? BENCH_BACK_TARGET : BENCH_TARGET, row, 0,
					      result->text);
	}
	if (!error)
		error = row_ask(&session->near, &order, &answer, result->text);
	for (int back = 0; !error && back <= row->both_ways; back++)
		error = pattern_order(session, back ? at.source : at.target, BENCH_CHECK,
				      back ? BENCH_BACK_TARGET : BENCH_TARGET, row,
				      2 * iteration + back, result->text);
	if (!error && result->verified)
		result->verified = 1;
	if (error == -EBADMSG)
		result->verified = 0;
	return error;
}

/* ---- rounds ------------------------------------------------------------------------------- */

struct rounds {
	struct bench_session *session;
	struct bench_result *result;
	int64_t slice; /* ns */
	struct bench_pairs bandwidth, latency;
	double submit[BENCH_ROUNDS];
	double kernel[BENCH_ROUNDS], copy[BENCH_ROUNDS]; /* the limit's parts */
	size_t samples; /* collected in session->samples */
	double test, limit; /* of the current pair */
};

static double median_ns(uint64_t *samples, size_t count)
{
	if (!count)
		return NAN;
	bench_sort(samples, count);
	return (double)bench_percentile(samples, count, 0.5);
}

static int test_slice(struct rounds *rounds, size_t round, bool latency)
{
	struct bench_session *session = rounds->session;
	struct bench_order order = { .what = latency ? BENCH_LATENCY : BENCH_BANDWIDTH,
				     .duration = rounds->slice };
	struct bench_answer answer;
	uint64_t *samples = session->samples + rounds->samples;
	int error = row_ask(&session->near, &order, &answer, rounds->result->text);

	if (error)
		return error;
	if (!latency) {
		rounds->test = (double)answer.bytes / (double)answer.ns;
		return 0;
	}
	memcpy(samples, session->shared, answer.count * sizeof(*samples));
	rounds->samples += answer.count;
	rounds->test = median_ns(samples, answer.count);
	rounds->submit[round] = answer.submit;
	return 0;
}

static int limit_slice(struct rounds *rounds, bool latency)
{
	struct bench_session *session = rounds->session;
	uint64_t *samples = session->samples + BENCH_ROUNDS * BENCH_SAMPLES;
	cpu_set_t before;
	size_t count = 0;
	int error;

	rounds->limit = NAN;
	if (!session->limits || session->limit.kind == BENCH_LIMIT_NONE)
		return 0;
	if (session->spinning) {
		if (!bench_limit_by_near(&session->limit))
			bench_process_stop(&session->near);
		bench_process_stop(&session->far);
	}
	if (session->pinned)
		bench_pin(BENCH_NEAR_CPUS, &before);
	if (latency)
		error = bench_limit_latency(&session->limit, rounds->slice, samples, &count);
	else
		error = bench_limit_bandwidth(&session->limit, rounds->slice, &rounds->limit);
	if (session->pinned)
		bench_unpin(&before);
	bench_process_continue(&session->near);
	bench_process_continue(&session->far);
	if (error)
		snprintf(rounds->result->text, BENCH_TEXT, "the raw limit (%s): %s",
			 session->limit.name, strerror(-error));
	else if (latency)
		rounds->limit = median_ns(samples, count);
	return error;
}

/* Measure the limit and the test; they alternate in which is first. */
static int run_pair(struct rounds *rounds, size_t round, bool latency)
{
	const struct bench_session *session = rounds->session;
	int error = round % 2 ? test_slice(rounds, round, latency) : limit_slice(rounds, latency);

	if (!error)
		error = round % 2 ? limit_slice(rounds, latency) :
				    test_slice(rounds, round, latency);
	if (!error && !latency) {
		rounds->kernel[round] = session->limit.parts.kernel;
		rounds->copy[round] = session->limit.parts.copy;
	}
	if (!error)
		bench_pairs_add(latency ? &rounds->latency : &rounds->bandwidth, rounds->test,
				rounds->limit);
	return error;
}

static void say_progress(struct bench_session *session, const struct bench_row *row, size_t round,
			 double bandwidth)
{
	char size[32], number[32];
	int used;

	format_size(size, sizeof(size), row->layout.size);
	used = snprintf(session->label, sizeof(session->label), "%.48s -> %.48s %s %s",
			row->source.name, row->target.name, bench_op_name(row->op), size);
	if (round)
		snprintf(session->label + used, sizeof(session->label) - (size_t)used, "  %s GB/s",
			 format_number(number, sizeof(number), bandwidth));
	progress_move(&session->progress, session->rounds + round);
}

static int first_byte(struct bench_session *session, struct bench_result *result)
{
	struct bench_order order = { .what = BENCH_FIRST };
	struct bench_answer answer;
	int error;

	if (strcmp(result->transport, "cuda"))
		return 0;
	error = row_ask(&session->near, &order, &answer, result->text);
	for (int i = 0; !error && i < 2; i++)
		result->first[i] = answer.first[i] / 1e3;
	return error;
}

/* Of blocks that a GPU moves the limit is the better one of two: say which it was. */
static void take_parts(struct rounds *rounds, size_t count)
{
	struct bench_result *result = rounds->result;

	if (!rounds->session->limits || rounds->session->limit.kind != BENCH_LIMIT_KERNEL)
		return;
	result->limit_parts.kernel = bench_median(rounds->kernel, count);
	result->limit_parts.copy = bench_median(rounds->copy, count);
	if (result->limit_parts.copy > result->limit_parts.kernel)
		snprintf(result->limit_name, sizeof(result->limit_name), "cuMemcpy, contiguous");
}

static int run_rounds(struct bench_session *session, const struct bench_row *row,
		      struct bench_result *result)
{
	struct rounds rounds = {
		.session = session,
		.result = result,
		.slice = session->duration / BENCH_ROUNDS / (session->limits ? 4 : 2),
	};
	int64_t start = bench_now();
	size_t round = 0;
	int error = 0;

	/* Peers would take an engine that is stopped for seconds for lost. */
	if (session->spinning && rounds.slice > SLICE_STOPPED)
		rounds.slice = SLICE_STOPPED;
	while (!error && round < BENCH_ROUNDS) {
		say_progress(session, row, round, bench_pairs_test(&rounds.bandwidth));
		error = run_pair(&rounds, round, false);
		if (!error)
			error = run_pair(&rounds, round, true);
		round++;
		/* A batch takes longer than a slice: fewer rounds, an odd number. */
		if (round >= ROUNDS_LEAST && round % 2 &&
		    bench_now() - start > 2 * session->duration)
			break;
	}
	if (error)
		return error;
	result->rounds = round;
	take_parts(&rounds, round);
	bench_sort(session->samples, rounds.samples);
	result->samples = rounds.samples;
	result->p50 = (double)bench_percentile(session->samples, rounds.samples, 0.5) / 1e3;
	result->p99 = (double)bench_percentile(session->samples, rounds.samples, 0.99) / 1e3;
	result->p999 = (double)bench_percentile(session->samples, rounds.samples, 0.999) / 1e3;
	result->submit = bench_median(rounds.submit, round);
	result->bandwidth = bench_pairs_test(&rounds.bandwidth);
	result->limit_bandwidth = bench_pairs_limit(&rounds.bandwidth);
	result->ratio = bench_pairs_ratio(&rounds.bandwidth);
	result->limit_latency = bench_pairs_limit(&rounds.latency) / 1e3;
	result->latency_ratio = bench_pairs_ratio(&rounds.latency);
	return 0;
}

/* ---- beside other work ----------------------------------------------------------------------- */

/* The GPU on which a row's bytes are. -1: none. */
static int row_gpu(const struct bench_row *row)
{
	const struct memory *memory = memory_on_gpu(row->source.kind) ? &row->source : &row->target;

	return memory_on_gpu(memory->kind) && !strncmp(memory->location, "cuda:", 5) ?
		       atoi(memory->location + 5) :
		       -1;
}

struct beside_round {
	double load, transfer; /* work or bytes a ns; NAN: did not run */
	uint32_t threads;
};

/* Run the load, the transfer, or both at once, for a slice. */
static int beside_slice(struct bench_session *session, struct bench_result *result,
			enum bench_load_kind kind, bool load, bool transfer,
			struct beside_round *out)
{
	struct bench_process *process = kind == BENCH_LOAD_GEMM ? &session->near : &session->beside;
	int64_t slice = session->duration / BENCH_BESIDE_ROUNDS / 2;
	struct bench_order start = { .what = BENCH_BESIDE_START,
				     .kind = kind,
				     .length = (uint64_t)row_gpu(&result->row) };
	struct bench_order stop = { .what = BENCH_BESIDE_STOP };
	struct bench_order run = { .what = BENCH_BANDWIDTH, .duration = slice };
	const struct timespec pause = { slice / 1000000000, slice % 1000000000 };
	struct bench_answer answer, ended;
	int error = load ? row_ask(process, &start, &answer, result->text) : 0, end = 0;

	if (error)
		return error;
	if (transfer)
		error = row_ask(&session->near, &run, &answer, result->text);
	else
		nanosleep(&pause, NULL);
	if (load)
		end = row_ask(process, &stop, &ended, result->text);
	if (error || end)
		return error ? error : end;
	if (transfer)
		out->transfer = (double)answer.bytes / (double)answer.ns;
	if (load) {
		out->load = (double)ended.bytes / (double)ended.ns;
		out->threads = (uint32_t)ended.count;
	}
	return 0;
}

/* Both alone and both at once, in turns; the order changes from round to round. */
static int beside_measure(struct bench_session *session, struct bench_result *result,
			  enum bench_load_kind kind)
{
	struct bench_beside *beside = &result->beside[result->beside_count];
	struct bench_pairs load = { .count = 0 }, transfer = { .count = 0 };
	double work;
	int error = 0;

	bench_load_unit(kind, &work);
	for (unsigned round = 0; !error && round < BENCH_BESIDE_ROUNDS; round++) {
		struct beside_round alone = { NAN, NAN, 0 }, both = alone;

		for (unsigned step = 0; !error && step < 3; step++) {
			unsigned what = (round + step) % 3;

			error = beside_slice(session, result, kind, what != 1, what != 0,
					     what == 2 ? &both : &alone);
		}
		bench_pairs_add(&load, both.load * 1e9 / work, alone.load * 1e9 / work);
		bench_pairs_add(&transfer, both.transfer, alone.transfer);
		beside->threads = bench_load_on_gpu(kind) ? 0 : both.threads;
	}
	if (error)
		return error;
	beside->kind = kind;
	beside->alone = bench_pairs_limit(&load);
	beside->beside = bench_pairs_test(&load);
	beside->share = bench_pairs_ratio(&load);
	beside->transfer_alone = bench_pairs_limit(&transfer);
	beside->transfer_beside = bench_pairs_test(&transfer);
	beside->transfer_share = bench_pairs_ratio(&transfer);
	result->beside_count++;
	return 0;
}

static int run_beside(struct bench_session *session, struct bench_result *result)
{
	int error = 0;

	for (unsigned i = 0; !error && i < session->load_count; i++) {
		if (bench_load_on_gpu(session->loads[i]) && row_gpu(&result->row) < 0)
			continue;
		error = beside_measure(session, result, session->loads[i]);
	}
	return error;
}

/* ---- a row -------------------------------------------------------------------------------- */

/* Fit the walk into the peer's region. */
static int fit_peer(struct bench_session *session, struct bench_row *row, char text[BENCH_TEXT])
{
	struct row_processes at = row_processes_of(session, row);
	struct memory *remote;

	if (at.source && at.target)
		return 0;
	remote = at.source ? &row->target : &row->source;
	*remote = (struct memory){ .kind = session->remote_kind };
	snprintf(remote->name, sizeof(remote->name), "%s", memory_kind_name(remote->kind));
	if (!bench_layout_shrink(&row->layout, at.source != NULL, session->remote_length))
		return 0;
	snprintf(text, BENCH_TEXT, "the peer's region has %" PRIu64 " bytes, which is too small",
		 session->remote_length);
	return -EOPNOTSUPP;
}

static void take_route(struct bench_result *result, const struct bench_answer *answer)
{
	memcpy(result->transport, answer->transport, sizeof(result->transport));
	memcpy(result->detail, answer->detail, sizeof(result->detail));
}

static int row_start(struct bench_session *session, struct bench_result *result)
{
	struct bench_row *row = &result->row;
	struct bench_order order = { .what = BENCH_ROW };
	struct bench_answer answer;
	struct row_processes at;
	int error;

	error = bench_connect(session, row->connections, row->one_process, result->text);
	if (!error)
		error = fit_peer(session, row, result->text);
	if (!error)
		error = provide_all(session, row, result->text);
	if (error)
		return error;
	at = row_processes_of(session, row);
	if (at.source && at.target) {
		bool write = row->op == WH_WRITE;
		const char(*names)[64] = session->memory_name[row->one_process ? NEAR : FAR];

		snprintf(order.text, sizeof(order.text), "%s",
			 names[write ? BENCH_TARGET : BENCH_SOURCE]);
		if (row->both_ways)
			snprintf(order.back, sizeof(order.back), "%s",
				 names[write ? BENCH_BACK_SOURCE : BENCH_BACK_TARGET]);
	}
	order.row = *row;
	error = row_ask(&session->near, &order, &answer, result->text);
	if (!error)
		take_route(result, &answer);
	return error;
}

static void probe_cache_line(struct bench_session *session, struct bench_result *result)
{
	if (session->spinning) {
		bench_process_stop(&session->near);
		bench_process_stop(&session->far);
	}
	result->cache_line = bench_cache_line(1000000);
	bench_process_continue(&session->near);
	bench_process_continue(&session->far);
}

/* Tell the limit where far's memory is. */
static void limit_lend_far(struct bench_session *session, const struct bench_row *row)
{
	uint32_t side = row->op == WH_WRITE ? BENCH_TARGET : BENCH_SOURCE;

	session->limit.other = session->peer ? 0 : session->far.pid;
	session->limit.other_address = session->memory[FAR][side].address;
}

static int row_measure(struct bench_session *session, struct bench_result *result)
{
	const struct bench_row *row = &result->row;
	uint64_t iteration = 0;
	int error = row_start(session, result);

	while (!error && session->verify && iteration < 2)
		error = row_verify(session, row, ++iteration, result);
	if (!error && session->limits) {
		limit_lend_far(session, row);
		error = bench_limit_row(&session->limit, row, result->transport, result->detail,
					result->text);
		snprintf(result->limit_name, sizeof(result->limit_name), "%s", session->limit.name);
		if (session->limit.kind == BENCH_LIMIT_STREAM)
			result->limit_call = session->limit.call;
		result->limit_threads = bench_limit_threads(&session->limit);
	}
	if (error)
		return error;
	probe_cache_line(session, result);
	error = run_rounds(session, row, result);
	if (!error)
		error = first_byte(session, result);
	if (!error)
		error = run_beside(session, result);
	if (!error && session->verify)
		error = row_verify(session, row, ++iteration, result);
	return error;
}

int bench_measure(struct bench_session *session, const struct bench_row *row,
		  struct bench_result *result)
{
	struct bench_order order = { .what = BENCH_ROW_END };
	struct bench_answer answer;
	int error, end;

	*result = (struct bench_result){
		.row = *row,
		.spinning = session->spinning,
		.pinned = session->pinned,
		.verified = -1,
		.bandwidth = NAN,
		.p50 = NAN,
		.p99 = NAN,
		.p999 = NAN,
		.submit = NAN,
		.limit_parts = { NAN, NAN },
		.limit_bandwidth = NAN,
		.limit_latency = NAN,
		.ratio = NAN,
		.latency_ratio = NAN,
		.cache_line = NAN,
		.first = { NAN, NAN },
	};
	say_progress(session, row, 0, NAN);
	error = row_measure(session, result);
	if (error && result->verified)
		result->verified =
			-1; /* an earlier successful check says nothing about the row that failed */
	end = bench_ask(&session->near, &order, &answer);
	if (!error && !end && answer.transport[0])
		take_route(result, &answer);
	if (end && !result->text[0])
		memcpy(result->text, answer.text, BENCH_TEXT);
	if (session->near.pid <= 0 || (!session->peer && session->far.pid <= 0))
		return -EPIPE;
	/* A transfer's own EPIPE concerns that row alone. */
	return error == -EPIPE ? -EIO : error;
}
