/* SPDX-License-Identifier: Apache-2.0 */
/* This member's part of the plan: the steps that bring bytes here, who follows each of them, who
 * else has the same bytes, and the steps as blocks of a batch. */
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "weights/run/run.h"

static int no_memory(void)
{
	return wh_fail(ENOMEM, "wh_weights_open: no memory for this engine's part of the plan");
}

static int regions_count(struct wh_weights *weights, int side)
{
	const struct wh_layout *layout = weights->layouts[side];
	uint32_t *regions = calloc(weights->plan->cluster.node_count, sizeof(*regions));
	uint32_t *position = calloc(layout->region_count + 1, sizeof(*position));

	weights->node_regions[side] = regions;
	weights->region_position[side] = position;
	if (!regions || !position)
		return no_memory();
	for (uint32_t i = 0; i < layout->region_count; i++)
		position[i] = regions[weights->plan->cluster
					      .of_engine[side][layout->regions[i].name.owner]]++;
	return 0;
}

/* Number the steps of each node. */
static int steps_count(struct wh_weights *weights)
{
	const struct wh_plan *plan = weights->plan;

	weights->node_steps = calloc(plan->cluster.node_count, sizeof(uint32_t));
	weights->step_position = calloc((size_t)plan->step_count + 1, sizeof(uint32_t));
	if (!weights->node_steps || !weights->step_position)
		return no_memory();
	for (uint32_t i = 0; i < plan->step_count; i++)
		weights->step_position[i] =
			weights->node_steps[wh_step_receiver(plan, &plan->steps[i])]++;
	return 0;
}

static int own_list(struct wh_weights *weights)
{
	const struct wh_plan *plan = weights->plan;
	uint32_t count = 0;

	weights->own_count = weights->node_steps[weights->me];
	weights->own = calloc((size_t)weights->own_count + 1, sizeof(*weights->own));
	weights->follower_first = calloc((size_t)weights->own_count + 2, sizeof(uint32_t));
	if (!weights->own || !weights->follower_first)
		return no_memory();
	for (uint32_t i = 0; i < plan->step_count; i++) {
		const struct wh_step *step = &plan->steps[i];
		uint32_t sender = wh_step_sender(plan, step);

		if (wh_step_receiver(plan, step) == weights->me) {
			weights->own[weights->step_position[i]] =
				(struct wh_own){ .step = i,
						 .pieces = plan->cells[step->cell].pieces };
			weights->own_bytes += plan->cells[step->cell].bytes;
			weights->links[sender].planned = true;
		}
		if (step->before != WH_PLAN_FIRST && sender == weights->me) {
			weights->follower_first[weights->step_position[step->before] + 1]++;
			count++;
		}
	}
	weights->followers = calloc((size_t)count + 1, sizeof(uint32_t));
	return weights->followers ? 0 : no_memory();
}

static void followers_list(struct wh_weights *weights)
{
	const struct wh_plan *plan = weights->plan;
	uint32_t *first = weights->follower_first;

	for (uint32_t i = 0; i < weights->own_count; i++)
		first[i + 1] += first[i];
	for (uint32_t i = 0; i < plan->step_count; i++) {
		const struct wh_step *step = &plan->steps[i];

		if (step->before != WH_PLAN_FIRST && wh_step_sender(plan, step) == weights->me)
			weights->followers[first[weights->step_position[step->before]]++] =
				wh_step_receiver(plan, step);
	}
	/* Each is at the end of its list, which is the beginning of the next. */
	memmove(first + 1, first, weights->own_count * sizeof(*first));
	first[0] = 0;
}

/* Requests that wait in a sender's queue hold up what it says to others: looks, hellos, and the
 * first pieces of chains. So all that read from one NIC share a queue of a few pieces. Within a
 * host there is no such queue; but what moves 4 MiB in less time than a request costs gets larger
 * ones. */
#define QUEUE_NS (4 * WH_PLAN_PIECE_NS)
#define REQUEST_NS 2e5
#define REQUEST_MOST (UINT64_C(256) << 20)

static uint64_t bytes_within(double bytes, uint64_t least, uint64_t most)
{
	return bytes < (double)least ? least : bytes > (double)most ? most : (uint64_t)bytes;
}

/* `share`: the part of what the other sends that comes here. */
static void window_set(struct wh_link_to *link, double share)
{
	const struct wh_cluster *cluster = &link->weights->plan->cluster;
	uint32_t me = link->weights->me;
	double rate = 1e9, requests;
	struct wh_path path;

	wh_cluster_path(cluster, link->node, me, &path);
	for (uint32_t i = 0; i < path.count; i++)
		if (cluster->links[path.links[i]].rate < rate)
			rate = cluster->links[path.links[i]].rate;
	link->window = WH_FETCHES;
	if (cluster->nodes[link->node].host == cluster->nodes[me].host) {
		link->request_bytes = bytes_within(rate * REQUEST_NS, WH_FETCH_BYTES, REQUEST_MOST);
		return;
	}
	link->request_bytes =
		bytes_within(rate * WH_PLAN_PIECE_NS, WH_PLAN_PIECE_LEAST, WH_FETCH_BYTES);
	requests = rate * QUEUE_NS * share / (double)link->request_bytes;
	if (requests < WH_FETCHES)
		link->window = requests < 1 ? 1 : (uint32_t)requests;
}

static int windows_set(struct wh_weights *weights)
{
	const struct wh_plan *plan = weights->plan;
	uint32_t nodes = plan->cluster.node_count;
	double *sent = calloc(nodes, 2 * sizeof(*sent)), *here;

	if (!sent)
		return no_memory();
	here = sent + nodes;
	for (uint32_t i = 0; i < plan->step_count; i++) {
		const struct wh_step *step = &plan->steps[i];
		uint32_t sender = wh_step_sender(plan, step);
		double bytes = (double)plan->cells[step->cell].bytes;

		sent[sender] += bytes;
		if (wh_step_receiver(plan, step) == weights->me)
			here[sender] += bytes;
	}
	for (uint32_t i = 0; i < nodes; i++)
		window_set(&weights->links[i], here[i] > 0 ? here[i] / sent[i] : 0.5);
	free(sent);
	return 0;
}

/* The sources' slices by tensor of the targets: count, add up, put. */
static int holders_list(struct wh_weights *weights)
{
	const struct wh_layout *sources = weights->layouts[0], *targets = weights->layouts[1];
	uint32_t *first = calloc((size_t)targets->tensor_count + 2, sizeof(*first));
	uint32_t *tensors = calloc((size_t)sources->tensor_count + 1, sizeof(*tensors));

	weights->holder_first = first;
	weights->holders = calloc((size_t)sources->slice_count + 1, sizeof(uint32_t));
	if (!first || !tensors || !weights->holders) {
		free(tensors);
		return no_memory();
	}
	for (uint32_t i = 0; i < sources->tensor_count; i++)
		if (!wh_layout_find_tensor(targets, sources->tensors[i].name.text,
					   strlen(sources->tensors[i].name.text), &tensors[i]))
			tensors[i] = targets->tensor_count; /* behind all others */
	for (uint32_t i = 0; i < sources->slice_count; i++)
		first[tensors[sources->slices[i].tensor] + 1]++;
	for (uint32_t i = 0; i <= targets->tensor_count; i++)
		first[i + 1] += first[i];
	for (uint32_t i = 0; i < sources->slice_count; i++)
		weights->holders[first[tensors[sources->slices[i].tensor]]++] = i;
	memmove(first + 1, first, ((size_t)targets->tensor_count + 1) * sizeof(*first));
	first[0] = 0;
	free(tensors);
	return 0;
}

int wh_weights_part(struct wh_weights *weights)
{
	uint32_t nodes = weights->plan->cluster.node_count;
	int error = 0;

	weights->links = calloc(nodes, sizeof(*weights->links));
	if (!weights->links)
		return no_memory();
	for (uint32_t i = 0; i < nodes; i++) {
		struct wh_link_to *link = &weights->links[i];

		link->weights = weights;
		link->node = i;
		link->first = WH_NO_STEP;
		link->greeting = (struct wh_link_job){ .link = link, .kind = WH_JOB_HELLO };
		link->looker = (struct wh_link_job){ .link = link, .kind = WH_JOB_LOOK };
		for (int j = 0; j < WH_FETCHES; j++)
			link->requests[j].job =
				(struct wh_link_job){ .link = link, .kind = WH_JOB_DATA };
	}
	for (int side = 0; !error && side < 2; side++)
		error = regions_count(weights, side);
	if (!error)
		error = steps_count(weights);
	if (!error)
		error = own_list(weights);
	if (!error)
		followers_list(weights);
	if (!error)
		error = windows_set(weights);
	if (!error)
		error = holders_list(weights);
	return error;
}

void wh_weights_part_free(struct wh_weights *weights)
{
	for (int side = 0; side < 2; side++) {
		free(weights->node_regions[side]);
		free(weights->region_position[side]);
	}
	free(weights->node_steps);
	free(weights->step_position);
	free(weights->own);
	free(weights->followers);
	free(weights->follower_first);
	free(weights->holders);
	free(weights->holder_first);
	free(weights->links);
}

uint64_t wh_weights_control_bytes(const struct wh_weights *weights, uint32_t node)
{
	uint64_t ids =
		weights->node_regions[0][node] + 2 * (uint64_t)weights->node_regions[1][node];

	return WH_HEAD_BYTES + 8 * ids + 8 * (uint64_t)weights->node_steps[node];
}

/* ---- who else has it ----------------------------------------------------------------------------
 */

static bool slice_holds(const struct wh_layout *layout, const struct wh_slice *slice,
			const uint64_t *box, uint32_t dims)
{
	const uint64_t *has = wh_slice_box(layout, slice);

	for (uint32_t i = 0; i < dims; i++)
		if (box[i] < has[i] || box[dims + i] > has[dims + i])
			return false;
	return true;
}

bool wh_weights_candidate(const struct wh_weights *weights, const struct wh_own *own,
			  struct wh_candidate *out)
{
	const struct wh_plan *plan = weights->plan;
	const struct wh_cell *cell = &plan->cells[plan->steps[own->step].cell];
	uint32_t dims = plan->targets->tensors[cell->tensor].dims;
	const struct wh_layout *sources = plan->sources;

	/* Of the sources' slices, by tensor; then the steps of this cell, which are side by side.
	 */
	for (; out->source <
	       weights->holder_first[cell->tensor + 1] - weights->holder_first[cell->tensor];) {
		uint32_t slice =
			weights->holders[weights->holder_first[cell->tensor] + out->source++];

		if (!slice_holds(sources, &sources->slices[slice], plan->numbers + cell->box, dims))
			continue;
		out->from = slice;
		out->before = WH_PLAN_FIRST;
		out->node = plan->cluster.of_engine[0][sources->slices[slice].engine];
		return true;
	}
	if (!out->steps) {
		out->step = own->step;
		while (out->step && plan->steps[out->step - 1].cell == plan->steps[own->step].cell)
			out->step--;
		out->steps = true;
	}
	while (out->step < plan->step_count &&
	       plan->steps[out->step].cell == plan->steps[own->step].cell) {
		uint32_t step = out->step++;

		if (step == own->step)
			continue;
		out->from = plan->steps[step].to;
		out->before = step;
		out->node = wh_step_receiver(plan, &plan->steps[step]);
		return true;
	}
	return false;
}

/* ---- blocks -------------------------------------------------------------------------------------
 */

/* Pieces of a step that are side by side: in both regions, and as blocks. */
struct run {
	struct wh_base base;
	struct wh_strided blocks;
};

static bool blocks_alike(const struct wh_strided *a, const struct wh_strided *b)
{
	if (a->block_length != b->block_length || a->dims != b->dims)
		return false;
	for (uint32_t i = 0; i < a->dims; i++)
		if (a->count[i] != b->count[i] || a->from_stride[i] != b->from_stride[i] ||
		    a->to_stride[i] != b->to_stride[i])
			return false;
	return true;
}

static int blocks_add(struct wh_fetch *request, const struct wh_strided *strided,
		      const struct wh_base *bases, uint64_t count)
{
	struct wh_blocks_desc desc = { .size = sizeof(desc),
				       .op = WH_READ,
				       .block_length = strided->block_length,
				       .count = wh_strided_blocks(strided),
				       .bases = bases,
				       .base_count = count };
	uint64_t *offsets = NULL;
	struct wh_blocks *blocks;
	int error;

	if (strided->dims == 1) {
		desc.local_stride = strided->to_stride[0];
		desc.remote_stride = strided->from_stride[0];
	} else {
		struct wh_strided relative = *strided;

		relative.from_offset = relative.to_offset = 0;
		offsets = calloc(2 * desc.count, sizeof(*offsets));
		if (!offsets)
			return wh_fail(ENOMEM, "no memory for the blocks of a step");
		for (uint64_t i = 0; i < desc.count; i++)
			wh_strided_block(&relative, i, &offsets[desc.count + i], &offsets[i]);
		desc.local_offsets = offsets;
		desc.remote_offsets = offsets + desc.count;
	}
	error = wh_blocks_new(request->job.link->peer, &desc, &blocks);
	free(offsets);
	if (error)
		return error;
	error = wh_batch_add_blocks(request->job.batch, blocks);
	wh_blocks_free(blocks);
	return error;
}

static void run_make(const struct wh_weights *weights, const struct wh_fetch *request,
		     const struct wh_pieces *range, struct run *out)
{
	const struct wh_own *own = &weights->own[range->own];
	struct wh_step step = weights->plan->steps[own->step];
	bool source = own->before == WH_PLAN_FIRST;
	uint32_t node = own->node, ids = weights->node_regions[0][node];
	const struct wh_slice *from = &weights->layouts[!source]->slices[own->from];
	const struct wh_slice *to = &weights->layouts[1]->slices[step.to];
	uint32_t position = weights->region_position[!source][from->region];
	const uint64_t *remotes = (const void *)(request->job.link->mirror + WH_HEAD_BYTES);

	if (!source)
		position += ids + (request->slot - WH_COPY_FIRST) * weights->node_regions[1][node];
	step.from = own->from;
	step.before = own->before;
	wh_step_blocks(weights->plan, &step, range->piece, range->count, &out->blocks);
	out->base = (struct wh_base){
		.local = weights->regions[1][weights->region_position[1][to->region]]
				 .region[weights->attempt.buffer],
		.local_offset = out->blocks.to_offset,
		.remote = le64toh(remotes[position]),
		.remote_offset = out->blocks.from_offset,
	};
}

static int transfer_add(struct wh_fetch *request, const struct run *run)
{
	struct wh_transfer transfer = { .local = run->base.local,
					.local_offset = run->base.local_offset,
					.remote = run->base.remote,
					.remote_offset = run->base.remote_offset,
					.length = run->blocks.block_length,
					.op = WH_READ };

	return wh_batch_add(request->job.batch, &transfer, 1);
}

/* A GPU needs a launch for each descriptor, and some microseconds for each launch. So what lies
 * side by side is one run, and runs of one shape, as the layers of a model have, are bases of one
 * descriptor. */
int wh_weights_fill(struct wh_weights *weights, struct wh_fetch *request)
{
	struct run runs[WH_FETCH_RANGES];
	bool added[WH_FETCH_RANGES] = { false };
	int error = 0;

	for (uint32_t i = 0; i < request->count; i++)
		run_make(weights, request, &request->ranges[i], &runs[i]);
	for (uint32_t i = 0; !error && i < request->count; i++) {
		struct wh_base bases[WH_FETCH_RANGES];
		uint64_t count = 0;

		if (added[i])
			continue;
		if (!runs[i].blocks.dims) {
			error = transfer_add(request, &runs[i]);
			continue;
		}
		for (uint32_t j = i; j < request->count; j++) {
			if (added[j] || !blocks_alike(&runs[i].blocks, &runs[j].blocks))
				continue;
			added[j] = true;
			bases[count++] = runs[j].base;
		}
		error = blocks_add(request, &runs[i].blocks, bases, count);
	}
	return error;
}
