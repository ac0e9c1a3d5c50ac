/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory an engine takes, and how much each peer adds. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "bench/bench.h"
#include "progress.h"

#define PEERS 4
#define LENGTH (UINT64_C(64) << 20)

struct pair {
	struct bench_process near, far;
	char *text;
	struct progress progress;
};

static int footprint_ask(struct pair *pair, struct bench_process *process,
			 const struct bench_order *order, struct bench_answer *answer)
{
	int error = bench_ask(process, order, answer);

	if (error)
		memcpy(pair->text, answer->text, BENCH_TEXT);
	return error;
}

static int footprint_resident(struct pair *pair, struct bench_process *process, uint64_t *out)
{
	struct bench_order order = { .what = BENCH_RESIDENT };
	struct bench_answer answer;
	int error = footprint_ask(pair, process, &order, &answer);

	if (!error)
		*out = answer.bytes;
	return error;
}

/* Open an engine in either process; the larger of the two footprints counts. */
static int footprint_idle(struct pair *pair, struct bench_footprint *out, char url[BENCH_TEXT])
{
	struct bench_order order = { .what = BENCH_OPEN };
	struct bench_answer answer;
	uint64_t bytes;
	int error = footprint_resident(pair, &pair->far, &out->before);

	if (!error)
		error = footprint_ask(pair, &pair->far, &order, &answer);
	memcpy(url, answer.text, BENCH_TEXT);
	if (!error)
		error = footprint_ask(pair, &pair->near, &order, &answer);
	if (!error)
		error = footprint_resident(pair, &pair->far, &out->idle);
	if (!error)
		error = footprint_resident(pair, &pair->near, &bytes);
	if (!error && bytes > out->idle)
		out->idle = bytes;
	return error;
}

/* Add one peer after the other; on each side the largest addition counts. The regions' own pages
 * are touched before the first peer, so they are not counted. */
static int footprint_peers(struct pair *pair, struct bench_footprint *out, const char *where)
{
	struct bench_order order = { .what = BENCH_EXTRA, .length = LENGTH };
	struct bench_answer answer;
	uint64_t near, far, near_before, far_before;
	int error = footprint_resident(pair, &pair->near, &near_before);

	if (!error)
		error = footprint_resident(pair, &pair->far, &far_before);
	snprintf(order.text, sizeof(order.text), "%.127s", where);
	progress_move(&pair->progress, 1);
	while (!error && out->peers < PEERS) {
		error = footprint_ask(pair, &pair->near, &order, &answer);
		if (!error)
			error = footprint_resident(pair, &pair->near, &near);
		if (!error)
			error = footprint_resident(pair, &pair->far, &far);
		if (error)
			break;
		if (near > near_before && near - near_before > out->near)
			out->near = near - near_before;
		if (far > far_before && far - far_before > out->far)
			out->far = far - far_before;
		near_before = near;
		far_before = far;
		out->peers++;
		progress_move(&pair->progress, 1 + out->peers);
	}
	return error;
}

static int footprint_measure(struct pair *pair, struct bench_footprint *out)
{
	struct bench_order order = { .what = BENCH_MEMORY,
				     .side = BENCH_SOURCE,
				     .memory = { .kind = WH_MEMORY_SHARED },
				     .length = LENGTH };
	struct bench_answer answer;
	char url[BENCH_TEXT], where[2 * BENCH_TEXT];
	int error = footprint_idle(pair, out, url);

	out->length = LENGTH;
	if (!error)
		error = footprint_ask(pair, &pair->near, &order, &answer);
	if (!error)
		error = footprint_ask(pair, &pair->far, &order, &answer);
	if (error)
		return error;
	snprintf(where, sizeof(where), "%s %s", url, answer.text);
	return footprint_peers(pair, out, where);
}

int bench_footprint(const struct arguments *arguments, struct bench_footprint *out,
		    char text[BENCH_TEXT])
{
	struct bench_member_setup near = { .arguments = arguments, .listen = "none" };
	struct bench_member_setup far = { .arguments = arguments, .listen = "127.0.0.1:0" };
	struct pair pair = { .text = text };
	int error;

	*out = (struct bench_footprint){ 0 };
	text[0] = '\0';
	error = bench_process_start(&pair.near, "near", BENCH_ANY_CPU, bench_member_serve, &near);
	if (!error)
		error = bench_process_start(&pair.far, "far", BENCH_ANY_CPU, bench_member_serve,
					    &far);
	if (error) {
		snprintf(text, BENCH_TEXT, "fork: %s", strerror(-error));
	} else {
		/* An engine in either process, then the peers. From here on no process is
		 * forked. */
		progress_start_steps(&pair.progress,
				     "measuring the memory of an engine and its peers", 1 + PEERS,
				     false);
		progress_watch(&pair.progress);
		error = footprint_measure(&pair, out);
		progress_end(&pair.progress);
	}
	bench_process_end(&pair.near);
	bench_process_end(&pair.far);
	return error;
}
