/* SPDX-License-Identifier: Apache-2.0 */
/* The batches of a row, run by the process near: made once, walked through, and measured in slices
 * of bandwidth, latency and time to the first byte. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench/member.h"
#include "engine.h"

/* ---- batches ------------------------------------------------------------------------------ */

void row_end(struct member *m)
{
	for (size_t i = 0; m->batches && i < m->batch_count; i++) {
		if (m->failed && m->batches[i])
			wh_batch_cancel(m->batches[i]);
		wh_batch_free(m->batches[i]);
	}
	free(m->batches);
	bench_walk_free(&m->walk);
	m->batches = NULL;
	m->batch_count = 0;
	m->next = 0;
	m->failed = false;
}

static int batch_fill(const struct bench_row *row, struct maker *maker, struct wh_batch *batch,
		      uint64_t first)
{
	const struct bench_layout *layout = &row->layout;
	struct wh_base base = { .local = maker->local, .remote = maker->remote.id };
	struct wh_blocks_desc desc = {
		.size = sizeof(desc),
		.op = maker->op,
		.block_length = layout->size,
		.count = layout->blocks,
		.bases = &base,
		.base_count = 1,
		.local_offsets = maker->local_offsets + first,
		.remote_offsets = maker->remote_offsets + first,
	};
	struct wh_blocks *blocks;
	int error;

	if (row->form != BENCH_FORM_BLOCKS) {
		for (uint64_t i = 0; i < layout->blocks; i++)
			maker->list[i] = (struct wh_transfer){
				.local = maker->local,
				.local_offset = maker->local_offsets[first + i],
				.remote = maker->remote.id,
				.remote_offset = maker->remote_offsets[first + i],
				.length = layout->size,
				.op = maker->op,
			};
		return wh_batch_add(batch, maker->list, layout->blocks);
	}
	error = wh_blocks_new(maker->peer, &desc, &blocks);
	if (error)
		return error;
	error = wh_batch_add_blocks(batch, blocks);
	wh_blocks_free(blocks);
	return error;
}

/* How many ways the bytes go at once. Their batches alternate. */
static inline unsigned row_ways(const struct member *m)
{
	return m->row.both_ways ? 2 : 1;
}

static int batches_make(struct member *m, struct maker maker[2])
{
	const struct bench_layout *layout = &m->row.layout;
	struct wh_batch_options options = { .size = sizeof(options),
					    .require =
						    *m->row.transport ? m->row.transport : NULL };
	struct wh_transfer *list = calloc(layout->blocks, sizeof(*list));
	int error;

	m->batch_count = layout->batches < m->row.depth ? m->row.depth : layout->batches;
	m->batch_count *= row_ways(m);
	m->batches = calloc(m->batch_count, sizeof(*m->batches));
	error = m->batches && list ? 0 : -ENOMEM;
	maker[0].list = maker[1].list = list;
	for (size_t i = 0; !error && i < m->batch_count; i++) {
		error = wh_batch_new(maker[0].peer, &options, &m->batches[i]);
		if (!error)
			error = batch_fill(&m->row, &maker[i % row_ways(m)], m->batches[i],
					   i / row_ways(m) % layout->batches * layout->blocks);
	}
	free(list);
	return error;
}

static int wait_for(struct member *m, struct wh_batch *batch, struct bench_answer *answer)
{
	int error = engine_wait(batch);

	if (error) {
		m->failed = true;
		return answer_error(answer, error, "%s", engine_wait_text(batch));
	}
	return 0;
}

static inline void batch_step(const struct member *m, size_t *at)
{
	if (++*at == m->batch_count)
		*at = 0;
}

/* Keep row.depth batches in flight, at most `most` in all, until the pace says stop. *done: how
 * many were completed. */
static int run_batches(struct member *m, uint64_t most, struct bench_pace *pace, uint64_t *done,
		       struct bench_answer *answer)
{
	uint64_t submitted = 0, completed = 0, depth = m->row.depth * row_ways(m);
	size_t head = m->next, tail = m->next;
	bool more = true;
	int error = 0, late;

	do {
		while (more && submitted < most && submitted - completed < depth) {
			error = wh_batch_submit(m->batches[head]);
			if (error) {
				answer_library(answer, error);
				goto drain;
			}
			submitted++;
			batch_step(m, &head);
		}
		error = wait_for(m, m->batches[tail], answer);
		completed++;
		batch_step(m, &tail);
		if (error)
			goto drain;
		more = more && submitted < most && !bench_pace_over(pace);
	} while (more || completed < submitted);
	m->next = head;
	*done = completed;
	return 0;

drain:
	for (; completed < submitted; completed++) {
		if (error == -ETIMEDOUT)
			wh_batch_cancel(m->batches[tail]);
		late = engine_wait(m->batches[tail]);
		(void)late; /* report the first failure only */
		batch_step(m, &tail);
	}
	return error;
}

int member_walk(struct member *m, struct bench_answer *answer)
{
	struct bench_pace pace = { .deadline = INT64_MAX };
	uint64_t done;

	m->next = 0;
	return run_batches(m, m->row.layout.batches * row_ways(m), &pace, &done, answer);
}

/* The route of the first batch. */
void member_route(struct member *m, struct bench_answer *answer)
{
	struct wh_route routes[8];
	size_t count = sizeof(routes) / sizeof(*routes);

	if (wh_batch_routes(m->batches[0], routes, &count))
		return;
	for (size_t i = 0; i < count; i++)
		if (routes[i].bytes) {
			memcpy(answer->transport, routes[i].transport, sizeof(answer->transport));
			memcpy(answer->detail, routes[i].detail, sizeof(answer->detail));
			return;
		}
}

/* Make one way of the row: all of its batches' parameters but the list. */
static int maker_make(struct member *m, const struct bench_order *order, bool back,
		      struct maker *maker, struct bench_answer *answer)
{
	bool write = (m->row.op == WH_WRITE) != back;
	const char *name = back ? order->back : order->text;
	int source = back ? BENCH_BACK_SOURCE : BENCH_SOURCE;
	int target = back ? BENCH_BACK_TARGET : BENCH_TARGET, error;

	maker->op = write ? WH_WRITE : WH_READ;
	maker->peer = m->row.one_process ? m->self : m->peer;
	maker->local = m->memory[write ? source : target].region;
	maker->local_offsets = write ? m->walk.source : m->walk.target;
	maker->remote_offsets = write ? m->walk.target : m->walk.source;
	maker->remote = m->remote;
	error = name[0] ? wh_peer_find(maker->peer, name, BENCH_FIND_TIMEOUT, &maker->remote) : 0;
	return error ? answer_library(answer, error) : 0;
}

/* order->text names the remote region; empty: the one that BENCH_REGION found. */
int member_row(struct member *m, const struct bench_order *order, struct bench_answer *answer)
{
	struct maker maker[2] = { 0 };
	int error;

	row_end(m);
	m->row = order->row;
	if (bench_walk_new(&m->row.layout, &m->walk))
		return answer_error(answer, -ENOMEM, "no memory for the list of blocks");
	error = maker_make(m, order, false, &maker[0], answer);
	if (!error && m->row.both_ways)
		error = maker_make(m, order, true, &maker[1], answer);
	if (!error) {
		m->maker = maker[0];
		error = batches_make(m, maker);
		if (error)
			answer_library(answer, error);
	}
	if (!error)
		error = member_walk(m, answer);
	if (!error)
		member_route(m, answer);
	return error;
}

/* ---- slices ------------------------------------------------------------------------------- */

int member_bandwidth(struct member *m, const struct bench_order *order, struct bench_answer *answer)
{
	int64_t start = bench_now();
	struct bench_pace pace = { .deadline = start + order->duration, .last = start };
	uint64_t done;
	int error = run_batches(m, UINT64_MAX, &pace, &done, answer);

	answer->ns = bench_now() - start;
	if (!error)
		answer->bytes = done * bench_layout_bytes(&m->row.layout);
	return error;
}

/* One batch from submission to completion. With `submitted` the clock is also read in between. */
static int one_latency(struct member *m, int64_t *ns, int64_t *submitted,
		       struct bench_answer *answer)
{
	struct wh_batch *batch = m->batches[m->next];
	int64_t start = bench_now();
	int error = wh_batch_submit(batch);

	if (error)
		return answer_library(answer, error);
	if (submitted)
		*submitted = bench_now() - start;
	error = wait_for(m, batch, answer);
	*ns = bench_now() - start;
	batch_step(m, &m->next);
	return error;
}

/* Every eighth sample measures the submission, into the upper end of the samples' room. A third
 * reading of the clock would show in a latency below 10 us, so those samples are left out of it. */
int member_latency(struct member *m, const struct bench_order *order, struct bench_answer *answer)
{
	uint64_t *samples = m->setup->samples, *top = samples + BENCH_SAMPLES;
	uint64_t count = 0, splits = 0;
	int64_t deadline, ns, submitted;
	int error = 0;

	/* The first batch after a pause measures waking up. */
	for (int i = 0; !error && i < 2; i++)
		error = one_latency(m, &ns, NULL, answer);
	deadline = bench_now() + order->duration;
	for (uint64_t i = 0; !error && count + splits + 2 < BENCH_SAMPLES; i++) {
		bool split = i % 8 == 0;

		error = one_latency(m, &ns, split ? &submitted : NULL, answer);
		if (split)
			*(top - ++splits) = (uint64_t)submitted;
		if (!split || ns >= 10000)
			samples[count++] = (uint64_t)ns;
		if (bench_now() >= deadline && count)
			break;
	}
	if (error)
		return error;
	bench_sort(top - splits, splits);
	answer->submit =
		(double)bench_percentile(top - splits, splits, 0.5) / (double)m->row.layout.blocks;
	answer->count = count;
	return 0;
}

/* ---- the first byte ----------------------------------------------------------------------- */

#define FIRSTS 33 /* of each kind; an odd number */

/* A new list: measured from before its preparation. */
static int first_of_new(struct member *m, uint8_t *byte, uint64_t *ns)
{
	struct wh_batch_options options = { .size = sizeof(options),
					    .require =
						    *m->row.transport ? m->row.transport : NULL };
	int64_t start = bench_now();
	struct wh_batch *batch;
	int error = wh_batch_new(m->maker.peer, &options, &batch);

	if (error)
		return error;
	error = batch_fill(&m->row, &m->maker, batch, 0);
	if (!error)
		error = bench_first_byte(batch, byte, start, ns);
	wh_batch_free(batch);
	return error;
}

/* For blocks that a GPU writes into this process's own memory: the first byte of the first block.
 * It is not seen before any byte has arrived, so the time is not too short. */
int member_first(struct member *m, struct bench_answer *answer)
{
	struct held *target = &m->memory[BENCH_TARGET];
	uint64_t samples[2][FIRSTS];
	uint8_t *byte;
	int error = 0;

	answer->first[0] = answer->first[1] = NAN;
	if (m->row.form != BENCH_FORM_BLOCKS || m->row.op != WH_READ || m->row.both_ways ||
	    target->on_gpu || !target->address)
		return 0;
	byte = (uint8_t *)target->address + m->walk.target[0];
	for (int i = 0; !error && i < FIRSTS; i++) {
		error = first_of_new(m, byte, &samples[0][i]);
		if (!error)
			error = bench_first_byte(m->batches[0], byte, bench_now(), &samples[1][i]);
	}
	if (error == -ETIMEDOUT)
		return answer_error(answer, error, "the first byte was not seen within a second");
	if (error)
		return answer_library(answer, error);
	for (int i = 0; i < 2; i++) {
		const uint64_t *median = samples[i] + FIRSTS / 2;

		bench_sort(samples[i], FIRSTS);
		answer->first[i] = (double)*median;
	}
	return 0;
}
