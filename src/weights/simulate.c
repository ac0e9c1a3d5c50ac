/* SPDX-License-Identifier: Apache-2.0 */
/* Events in order of time: a piece arrives at a link of its path. */
#include "weights/simulate.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/error.h"

#define NO_STEP UINT32_MAX

struct event {
	double time; /* when the piece arrives at the link */
	double left; /* when it has left the former link */
	uint32_t step, piece, hop;
};

struct run {
	const struct wh_plan *plan;
	struct wh_simulation *out;
	struct event *heap;
	size_t count, room;
	double *free; /* of each link: when it is idle again */
	uint32_t *first_child, *next_child; /* of each step */
	uint32_t
		*behind; /* of each step from a source: the next one from it to the same receiver */
};

static bool is_before(const struct event *a, const struct event *b)
{
	if (a->time != b->time)
		return a->time < b->time;
	if (a->step != b->step)
		return a->step < b->step;
	return a->piece != b->piece ? a->piece < b->piece : a->hop < b->hop;
}

static int event_put(struct run *run, struct event event)
{
	size_t at;

	if (run->count == run->room) {
		size_t room = 2 * run->room + 64;
		struct event *grown = realloc(run->heap, room * sizeof(*grown));

		if (!grown)
			return wh_fail(ENOMEM, "no memory to simulate the plan");
		run->heap = grown;
		run->room = room;
	}
	for (at = run->count++; at && is_before(&event, &run->heap[(at - 1) / 2]);
	     at = (at - 1) / 2)
		run->heap[at] = run->heap[(at - 1) / 2];
	run->heap[at] = event;
	return 0;
}

static struct event event_take(struct run *run)
{
	struct event first = run->heap[0], last = run->heap[--run->count];
	size_t at = 0;

	for (size_t child; (child = 2 * at + 1) < run->count; at = child) {
		if (child + 1 < run->count && is_before(&run->heap[child + 1], &run->heap[child]))
			child++;
		if (!is_before(&run->heap[child], &last))
			break;
		run->heap[at] = run->heap[child];
	}
	run->heap[at] = last;
	return first;
}

/* The bytes of a piece: boxes are cut into rows, so that pieces differ by one row at most. */
static uint64_t piece_bytes(const struct wh_plan *plan, const struct wh_cell *cell, uint32_t piece)
{
	uint32_t dims = plan->targets->tensors[cell->tensor].dims;
	uint64_t rows = wh_box_pieces_most(plan->numbers + cell->box, dims);
	uint64_t each = rows / cell->pieces, more = rows % cell->pieces;

	return cell->bytes / rows * (each + (piece < more));
}

/* The piece is there. */
static int piece_done(struct run *run, const struct event *event, double time)
{
	struct wh_simulation *out = run->out;
	int error = 0;

	if (time > out->step_done[event->step])
		out->step_done[event->step] = time;
	if (time > out->duration)
		out->duration = time;
	for (uint32_t child = run->first_child[event->step]; !error && child != NO_STEP;
	     child = run->next_child[child])
		error = event_put(run, (struct event){ time, time, child, event->piece, 0 });
	return error;
}

/* What the receiver reads next from the same source. */
static int source_next(struct run *run, const struct event *event, double time)
{
	const struct wh_plan *plan = run->plan;
	bool more = event->piece + 1 < plan->cells[plan->steps[event->step].cell].pieces;
	uint32_t step = more ? event->step : run->behind[event->step];

	if (step == NO_STEP)
		return 0;
	return event_put(run, (struct event){ time, time, step, more ? event->piece + 1 : 0, 0 });
}

static int piece_move(struct run *run, const struct event *event)
{
	const struct wh_plan *plan = run->plan;
	const struct wh_step *step = &plan->steps[event->step];
	const struct wh_cell *cell = &plan->cells[step->cell];
	uint64_t bytes = piece_bytes(plan, cell, event->piece);
	double begin = event->time, end, takes;
	struct wh_path path;
	uint32_t link;
	int error = 0;

	wh_cluster_path(&plan->cluster, wh_step_sender(plan, step), wh_step_receiver(plan, step),
			&path);
	link = path.links[event->hop];
	takes = (double)bytes / plan->cluster.links[link].rate;
	if (begin < run->free[link])
		begin = run->free[link];
	end = begin + takes > event->left ? begin + takes : event->left;
	run->free[link] = end;
	run->out->link_busy[link] += takes;
	run->out->link_bytes[link] += bytes;
	/* Whoever reads from a source has one piece in its queue. */
	if (!event->hop && step->before == WH_PLAN_FIRST)
		error = source_next(run, event, end);
	if (error)
		return error;
	if (event->hop + 1 < path.count)
		return event_put(run, (struct event){ begin, end, event->step, event->piece,
						      event->hop + 1 });
	return piece_done(run, event, end + path.latency);
}

static int first_order(const void *left, const void *right, void *arg)
{
	const struct wh_plan *plan = arg;
	uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
	uint32_t from[2] = { wh_step_sender(plan, &plan->steps[a]),
			     wh_step_sender(plan, &plan->steps[b]) };
	uint32_t to[2] = { wh_step_receiver(plan, &plan->steps[a]),
			   wh_step_receiver(plan, &plan->steps[b]) };

	if (from[0] != from[1])
		return from[0] < from[1] ? -1 : 1;
	if (to[0] != to[1])
		return to[0] < to[1] ? -1 : 1;
	return (a > b) - (a < b);
}

static bool is_same_pair(const struct wh_plan *plan, uint32_t a, uint32_t b)
{
	return wh_step_sender(plan, &plan->steps[a]) == wh_step_sender(plan, &plan->steps[b]) &&
	       wh_step_receiver(plan, &plan->steps[a]) == wh_step_receiver(plan, &plan->steps[b]);
}

/* Each receiver reads from each source in the plan's order, and from all sources at once. */
static int sources_start(struct run *run)
{
	const struct wh_plan *plan = run->plan;
	uint32_t *first = calloc((size_t)plan->step_count + 1, sizeof(*first)), count = 0;
	int error = 0;

	if (!first)
		return wh_fail(ENOMEM, "no memory to simulate the plan");
	for (uint32_t i = 0; i < plan->step_count; i++)
		if (plan->steps[i].before == WH_PLAN_FIRST)
			first[count++] = i;
	qsort_r(first, count, sizeof(*first), first_order, (void *)plan);
	for (uint32_t i = 0; !error && i < count; i++) {
		run->behind[first[i]] =
			i + 1 < count && is_same_pair(plan, first[i], first[i + 1]) ? first[i + 1] :
										      NO_STEP;
		if (!i || !is_same_pair(plan, first[i - 1], first[i]))
			error = event_put(run, (struct event){ .step = first[i] });
	}
	free(first);
	return error;
}

/* Steps that wait for another are its children, in the plan's order; the others are sources'. */
static int run_start(struct run *run)
{
	const struct wh_plan *plan = run->plan;

	memset(run->first_child, 0xff, plan->step_count * sizeof(*run->first_child));
	for (uint32_t i = plan->step_count; i-- > 0;) {
		uint32_t before = plan->steps[i].before;

		if (before != WH_PLAN_FIRST) {
			run->next_child[i] = run->first_child[before];
			run->first_child[before] = i;
		}
	}
	return sources_start(run);
}

int wh_simulate(const struct wh_plan *plan, struct wh_simulation *out)
{
	size_t links = (size_t)plan->cluster.link_count + 1, steps = (size_t)plan->step_count + 1;
	struct run run = { .plan = plan, .out = out };
	int error = 0;

	memset(out, 0, sizeof(*out));
	out->link_busy = calloc(links, sizeof(double));
	out->link_bytes = calloc(links, sizeof(uint64_t));
	out->step_done = calloc(steps, sizeof(double));
	run.free = calloc(links, sizeof(double));
	run.first_child = calloc(steps, sizeof(uint32_t));
	run.next_child = calloc(steps, sizeof(uint32_t));
	run.behind = calloc(steps, sizeof(uint32_t));
	if (!out->link_busy || !out->link_bytes || !out->step_done || !run.free ||
	    !run.first_child || !run.next_child || !run.behind)
		error = wh_fail(ENOMEM, "no memory to simulate the plan");
	if (!error)
		error = run_start(&run);
	while (!error && run.count) {
		struct event event = event_take(&run);

		error = piece_move(&run, &event);
	}
	for (uint32_t i = 0; !error && i < plan->cluster.link_count; i++)
		if (out->link_busy[i] > out->busy) {
			out->busy = out->link_busy[i];
			out->busiest = i;
		}
	free(run.heap);
	free(run.free);
	free(run.first_child);
	free(run.next_child);
	free(run.behind);
	if (error)
		wh_simulation_free(out);
	return error;
}

void wh_simulation_free(struct wh_simulation *simulation)
{
	free(simulation->link_busy);
	free(simulation->link_bytes);
	free(simulation->step_done);
	memset(simulation, 0, sizeof(*simulation));
}
