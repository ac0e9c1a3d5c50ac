/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing who sends each cell to whom: cells from cut.c, one after the other, each to the hosts
 * that want it, and within each host. */
#include "weights/plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/error.h"
#include "weights/cut.h"
#include "weights/match.h"

#define CHUNK (UINT64_C(64) << 20)
#define PIECE (UINT64_C(4) << 20)
/* Chunks grow if there would be more than this: planning a chunk costs about 1 us. */
#define CHUNKS_USUAL (1 << 18)
#define CHUNKS_MOST (1 << 24)
#define PIECES_MOST 4096

/* A slice reference: the index, and whether it is of the targets. */
#define OF_TARGETS 0x80000000u

/* Who has the cell, or wants it. */
struct end {
	uint32_t slice, node, host;
};

/* Who has the cell by now. `cost`: when it would begin to send, in ns, as known when it was put
 * into the heap. Loads only grow, so a cost that has changed has grown. */
struct sender {
	double cost, ready;
	uint32_t slice, node, before;
};

struct heap {
	struct sender *rows;
	size_t count, room;
	bool near; /* sends within its host; false: to other hosts */
};

struct ends {
	struct end *rows;
	size_t count, room;
};

struct planner {
	struct wh_plan *plan;
	uint64_t chunk, piece;
	size_t *first; /* of each tensor of the targets, in `order` */
	uint32_t *order;
	double *load; /* of each link: ns that it takes for the steps so far */
	struct sender *by_device; /* who of a device has the cell, if stamps[device] is `stamp` */
	uint32_t *stamps, stamp;
	struct ends holders, wanters;
	struct heap far, near;
	uint32_t tensor; /* that is cut now */
	uint32_t counted; /* cells, before any is planned */
	size_t cell_room, step_room, number_room;
};

static int no_memory(void)
{
	return wh_fail(ENOMEM, "no memory for the plan");
}

/* Room for one more element. Returns where the list is now, or NULL. */
static void *list_room(void *rows, size_t count, size_t *room, size_t size)
{
	size_t more = *room ? 2 * *room : 64;
	void *grown;

	if (count < *room)
		return rows;
	grown = realloc(rows, more * size);
	if (grown)
		*room = more;
	return grown;
}

/* ---- senders --------------------------------------------------------------------------------- */

static double sender_cost(const struct planner *planner, const struct sender *sender, bool near)
{
	const struct wh_node *node = &planner->plan->cluster.nodes[sender->node];
	uint32_t uplink = planner->plan->cluster.uplinks[node->host];
	double load;

	if (near)
		return sender->ready + planner->load[3 * node->device + WH_LINK_DEVICE_OUT];
	load = planner->load[node->nic_out];
	if (uplink && planner->load[uplink] > load)
		load = planner->load[uplink];
	return sender->ready + load;
}

static void heap_sink(struct heap *heap, size_t at)
{
	struct sender kept = heap->rows[at];

	for (size_t child; (child = 2 * at + 1) < heap->count; at = child) {
		if (child + 1 < heap->count && heap->rows[child + 1].cost < heap->rows[child].cost)
			child++;
		if (kept.cost <= heap->rows[child].cost)
			break;
		heap->rows[at] = heap->rows[child];
	}
	heap->rows[at] = kept;
}

static int heap_put(struct planner *planner, struct heap *heap, struct sender sender)
{
	struct sender *rows = list_room(heap->rows, heap->count, &heap->room, sizeof(*rows));
	size_t at;

	if (!rows)
		return no_memory();
	heap->rows = rows;
	sender.cost = sender_cost(planner, &sender, heap->near);
	for (at = heap->count++; at && rows[(at - 1) / 2].cost > sender.cost; at = (at - 1) / 2)
		rows[at] = rows[(at - 1) / 2];
	rows[at] = sender;
	return 0;
}

/* Who sends first; it stays in the heap. */
static struct sender heap_best(struct planner *planner, struct heap *heap)
{
	for (;;) {
		double cost = sender_cost(planner, &heap->rows[0], heap->near);

		if (cost <= heap->rows[0].cost)
			return heap->rows[0];
		heap->rows[0].cost = cost;
		heap_sink(heap, 0);
	}
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Add a step; *out is its receiver as a sender. */
static int step_add(struct planner *planner, const struct sender *sender, const struct end *to,
		    struct sender *out)
{
	struct wh_plan *plan = planner->plan;
	const struct wh_cell *cell = &plan->cells[plan->cell_count - 1];
	struct wh_step *steps =
		list_room(plan->steps, plan->step_count, &planner->step_room, sizeof(*steps));
	double bytes = (double)cell->bytes, slowest = 0;
	struct wh_path path;

	if (!steps)
		return no_memory();
	plan->steps = steps;
	if (plan->step_count == WH_LAYOUT_MOST ||
	    __builtin_add_overflow(plan->bytes, cell->bytes, &plan->bytes))
		return wh_fail(E2BIG, "the plan has too many steps");
	steps[plan->step_count] =
		(struct wh_step){ plan->cell_count - 1, sender->slice, to->slice, sender->before };
	wh_cluster_path(&plan->cluster, sender->node, to->node, &path);
	for (uint32_t i = 0; i < path.count; i++) {
		double takes = bytes / plan->cluster.links[path.links[i]].rate;

		planner->load[path.links[i]] += takes;
		if (takes > slowest)
			slowest = takes;
	}
	*out = (struct sender){ .ready = sender->ready + slowest / cell->pieces + path.latency,
				.slice = to->slice,
				.node = to->node,
				.before = plan->step_count++ };
	return 0;
}

static struct sender sender_of(const struct end *holder)
{
	return (struct sender){ .slice = holder->slice,
				.node = holder->node,
				.before = WH_PLAN_FIRST };
}

/* The sender is one that others of its host may ask. */
static int sender_offer(struct planner *planner, const struct sender *sender)
{
	uint32_t device = planner->plan->cluster.nodes[sender->node].device;

	if (planner->stamps[device] != planner->stamp) {
		planner->stamps[device] = planner->stamp;
		planner->by_device[device] = *sender;
	}
	return heap_put(planner, &planner->near, *sender);
}

/* The wanter whose NIC has the least to receive. */
static size_t wanter_first(const struct planner *planner, size_t begin, size_t end)
{
	const struct wh_cluster *cluster = &planner->plan->cluster;
	const struct end *wanters = planner->wanters.rows;
	size_t best = begin;

	for (size_t i = begin + 1; i < end; i++)
		if (planner->load[cluster->nodes[wanters[i].node].nic_out + 1] <
		    planner->load[cluster->nodes[wanters[best].node].nic_out + 1])
			best = i;
	return best;
}

/* The first holder of the host, if it has one, among those that are sorted. */
static size_t holder_first(const struct planner *planner, uint32_t host)
{
	size_t low = 0, high = planner->holders.count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (planner->holders.rows[middle].host < host)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static bool is_holder_of(const struct planner *planner, size_t at, uint32_t host)
{
	return at < planner->holders.count && planner->holders.rows[at].host == host;
}

/* Bring the cell to the wanters [begin, end), which are one host's. */
static int serve_host(struct planner *planner, size_t begin, size_t end)
{
	const struct end *wanters = planner->wanters.rows;
	uint32_t host = wanters[begin].host;
	size_t entry = SIZE_MAX;
	struct sender sender, next;
	int error = 0;

	planner->near.count = 0;
	planner->stamp++;
	for (size_t i = holder_first(planner, host); !error && is_holder_of(planner, i, host);
	     i++) {
		sender = sender_of(&planner->holders.rows[i]);
		error = sender_offer(planner, &sender);
	}
	if (!error && !planner->near.count) {
		entry = wanter_first(planner, begin, end);
		sender = heap_best(planner, &planner->far);
		error = step_add(planner, &sender, &wanters[entry], &next);
		if (!error)
			error = heap_put(planner, &planner->far, next);
		if (!error)
			error = sender_offer(planner, &next);
	}
	for (size_t i = begin; !error && i < end; i++) {
		uint32_t device = planner->plan->cluster.nodes[wanters[i].node].device;

		if (i == entry)
			continue;
		sender = planner->stamps[device] == planner->stamp ?
				 planner->by_device[device] :
				 heap_best(planner, &planner->near);
		error = step_add(planner, &sender, &wanters[i], &next);
		if (!error)
			error = sender_offer(planner, &next);
		if (!error && planner->far.count)
			error = heap_put(planner, &planner->far, next);
	}
	return error;
}

/* ---- cells ----------------------------------------------------------------------------------- */

static int too_many_cells(void)
{
	return wh_fail(E2BIG, "the tensors are cut into more than %d parts", CHUNKS_MOST);
}

static int cell_add(struct planner *planner, const uint64_t *box, uint32_t dims, uint64_t bytes)
{
	struct wh_plan *plan = planner->plan;
	struct wh_cell *cells =
		list_room(plan->cells, plan->cell_count, &planner->cell_room, sizeof(*cells));
	uint64_t most = wh_box_pieces_most(box, dims), pieces;

	if (!cells)
		return no_memory();
	plan->cells = cells;
	while (plan->number_count + 2 * dims > planner->number_room) {
		uint64_t *numbers = list_room(plan->numbers, planner->number_room,
					      &planner->number_room, sizeof(*numbers));

		if (!numbers)
			return no_memory();
		plan->numbers = numbers;
	}
	if (plan->cell_count >= CHUNKS_MOST)
		return too_many_cells();
	pieces = bytes / planner->piece + (bytes % planner->piece != 0);
	pieces = pieces < most ? pieces : most;
	cells[plan->cell_count++] = (struct wh_cell){
		.bytes = bytes,
		.box = plan->number_count,
		.tensor = planner->tensor,
		.pieces = pieces < PIECES_MOST ? (uint32_t)pieces : PIECES_MOST,
	};
	memcpy(plan->numbers + plan->number_count, box, 2 * dims * sizeof(*box));
	plan->number_count += 2 * dims;
	return 0;
}

/* Whether some host has to receive the cell: then who holds it may send it there. */
static int offer_far(struct planner *planner)
{
	const struct ends *wanters = &planner->wanters;
	bool needed = false;
	int error = 0;

	planner->far.count = 0;
	for (size_t i = 0; i < wanters->count && !needed; i++) {
		uint32_t host = wanters->rows[i].host;

		if (!i || host != wanters->rows[i - 1].host)
			needed = !is_holder_of(planner, holder_first(planner, host), host);
	}
	for (size_t i = 0; needed && !error && i < planner->holders.count; i++)
		error = heap_put(planner, &planner->far, sender_of(&planner->holders.rows[i]));
	return error;
}

/* Bring one cell to all who want it. Each cell begins at another host, so that no host is the last
 * of every chain. */
static int serve_cell(struct planner *planner, const uint64_t *box, uint32_t dims, uint64_t bytes)
{
	const struct ends *wanters = &planner->wanters;
	int error = cell_add(planner, box, dims, bytes);
	size_t start, at, done = 0;

	if (!error)
		error = offer_far(planner);
	start = planner->plan->cell_count % wanters->count;
	while (start && wanters->rows[start].host == wanters->rows[start - 1].host)
		start--;
	for (at = start; !error && done < wanters->count;) {
		size_t end = at + 1;

		while (end < wanters->count && wanters->rows[end].host == wanters->rows[at].host)
			end++;
		error = serve_host(planner, at, end);
		done += end - at;
		at = end == wanters->count ? 0 : end;
	}
	return error;
}

/* Cut a large cell into chunks, which may take different ways. Each level leaves one dimension
 * fewer. */
/* NOLINTNEXTLINE(misc-no-recursion) */
static int serve_box(struct planner *planner, const uint64_t *box, uint32_t dims)
{
	uint64_t bytes = planner->plan->targets->tensors[planner->tensor].item, chunks, most;
	uint64_t part[2 * WH_LAYOUT_DIMS] = { 0 };
	int error = 0;

	for (uint32_t i = 0; i < dims; i++)
		bytes *= box[dims + i] - box[i];
	most = wh_box_pieces_most(box, dims);
	chunks = bytes / planner->chunk + (bytes % planner->chunk != 0);
	chunks = chunks < most ? chunks : most;
	if (chunks <= 1)
		return serve_cell(planner, box, dims, bytes);
	if (chunks > CHUNKS_MOST)
		return wh_fail(E2BIG, "tensor '%.99s' is cut into more than %d parts",
			       planner->plan->targets->tensors[planner->tensor].name.text,
			       CHUNKS_MOST);
	for (uint32_t i = 0; !error && i < chunks; i++) {
		wh_box_piece(box, dims, i, (uint32_t)chunks, part);
		error = serve_box(planner, part, dims);
	}
	return error;
}

static int end_order(const void *left, const void *right)
{
	const struct end *a = left, *b = right;

	if (a->host != b->host)
		return a->host < b->host ? -1 : 1;
	if (a->node != b->node)
		return a->node < b->node ? -1 : 1;
	return (a->slice > b->slice) - (a->slice < b->slice);
}

static int ends_add(struct planner *planner, struct ends *ends, const uint32_t *references,
		    uint32_t count)
{
	const struct wh_plan *plan = planner->plan;

	for (uint32_t i = 0; i < count; i++) {
		bool target = references[i] & OF_TARGETS;
		uint32_t slice = references[i] & ~OF_TARGETS;
		const struct wh_layout *layout = target ? plan->targets : plan->sources;
		uint32_t node = plan->cluster.of_engine[target][layout->slices[slice].engine];
		struct end *rows = list_room(ends->rows, ends->count, &ends->room, sizeof(*rows));

		if (!rows)
			return no_memory();
		ends->rows = rows;
		rows[ends->count++] = (struct end){ slice, node, plan->cluster.nodes[node].host };
	}
	return 0;
}

static void ends_sort(struct ends *ends)
{
	for (size_t i = 1; i < ends->count; i++)
		if (end_order(&ends->rows[i - 1], &ends->rows[i]) > 0) {
			qsort(ends->rows, ends->count, sizeof(*ends->rows), end_order);
			return;
		}
}

static int no_holder(const struct planner *planner, const uint64_t *box, uint32_t dims)
{
	const struct wh_plan *plan = planner->plan;
	char text[96];

	return wh_fail(ENOENT,
		       "tensor '%.50s' %s: engine '%.40s' of %.30s wants it, no engine of "
		       "%.30s holds it",
		       plan->targets->tensors[planner->tensor].name.text,
		       wh_box_text(box, dims, text, sizeof(text)),
		       plan->cluster.nodes[planner->wanters.rows[0].node].name,
		       plan->targets->label, plan->sources->label);
}

static int planner_cell(void *arg, const uint64_t *box, const struct wh_same_box *const *boxes,
			size_t count)
{
	struct planner *planner = arg;
	uint32_t dims = planner->plan->targets->tensors[planner->tensor].dims;
	int error = 0;

	planner->holders.count = planner->wanters.count = 0;
	for (size_t i = 0; !error && i < count; i++) {
		const uint32_t *members = planner->order + boxes[i]->first;

		error = ends_add(planner, &planner->holders, members, boxes[i]->sources);
		if (!error)
			error = ends_add(planner, &planner->wanters, members + boxes[i]->sources,
					 boxes[i]->targets);
	}
	if (error)
		return error;
	ends_sort(&planner->holders);
	ends_sort(&planner->wanters);
	if (!planner->holders.count)
		return no_holder(planner, box, dims);
	return serve_box(planner, box, dims);
}

static int count_cell(void *arg, const uint64_t *box, const struct wh_same_box *const *boxes,
		      size_t count)
{
	struct planner *planner = arg;

	(void)box;
	(void)boxes;
	(void)count;
	return ++planner->counted > CHUNKS_MOST ? too_many_cells() : 0;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static const uint64_t *reference_box(const struct wh_plan *plan, uint32_t reference)
{
	const struct wh_layout *layout = reference & OF_TARGETS ? plan->targets : plan->sources;

	return wh_slice_box(layout, &layout->slices[reference & ~OF_TARGETS]);
}

static int box_order(const uint64_t *a, const uint64_t *b, uint32_t dims)
{
	for (uint32_t i = 0; i < 2 * dims; i++)
		if (a[i] != b[i])
			return a[i] < b[i] ? -1 : 1;
	return 0;
}

/* By box; sources before targets, because of OF_TARGETS. */
static int reference_order(const void *left, const void *right, void *arg)
{
	const struct planner *planner = arg;
	const uint32_t *a = left, *b = right;
	int order = box_order(reference_box(planner->plan, *a), reference_box(planner->plan, *b),
			      planner->plan->targets->tensors[planner->tensor].dims);

	return order ? order : (*a > *b) - (*a < *b);
}

/* Call `cell` for each cell of the tensor. */
static int cut_tensor(struct planner *planner, struct wh_same_box *boxes,
		      int (*cell)(void *arg, const uint64_t *box,
				  const struct wh_same_box *const *boxes, size_t count))
{
	uint32_t dims = planner->plan->targets->tensors[planner->tensor].dims;
	size_t begin = planner->first[planner->tensor], end = planner->first[planner->tensor + 1];
	struct wh_cut cut = { .dims = dims, .cell = cell, .arg = planner };
	size_t count = 0;

	qsort_r(planner->order + begin, end - begin, sizeof(*planner->order), reference_order,
		planner);
	for (size_t i = begin; i < end; i++) {
		const uint64_t *box = reference_box(planner->plan, planner->order[i]);

		if (!count || box_order(boxes[count - 1].box, box, dims))
			boxes[count++] = (struct wh_same_box){ .box = box, .first = (uint32_t)i };
		if (planner->order[i] & OF_TARGETS)
			boxes[count - 1].targets++;
		else
			boxes[count - 1].sources++;
	}
	return wh_cut(&cut, boxes, count);
}

/* Sort the references of all slices by tensor: count, add up, put. Returns the most slices of one
 * tensor. */
static size_t references_sort(struct planner *planner, const uint32_t *of_source)
{
	const struct wh_layout *sources = planner->plan->sources, *targets = planner->plan->targets;
	size_t *first = planner->first, sum = 0, most = 0;

	for (int pass = 0; pass < 2; pass++) {
		for (uint32_t i = 0; i < sources->slice_count; i++) {
			uint32_t tensor = of_source[sources->slices[i].tensor];

			if (tensor == WH_MATCH_NONE)
				continue;
			if (pass)
				planner->order[first[tensor]] = i;
			first[tensor]++;
		}
		for (uint32_t i = 0; i < targets->slice_count; i++) {
			uint32_t tensor = targets->slices[i].tensor;

			if (pass)
				planner->order[first[tensor]] = i | OF_TARGETS;
			first[tensor]++;
		}
		for (uint32_t i = 0; !pass && i < targets->tensor_count; i++) {
			size_t count = first[i];

			most = count > most ? count : most;
			first[i] = sum;
			sum += count;
		}
	}
	/* Each is at the end of its tensor, which is the beginning of the next. */
	memmove(first + 1, first, targets->tensor_count * sizeof(*first));
	first[0] = 0;
	return most;
}

/* What the slowest NIC moves in a piece's time. */
static double slowest_piece(const struct wh_cluster *cluster)
{
	double slowest = 1e18;

	for (uint32_t i = 0; cluster->host_count > 1 && i < cluster->host_count; i++) {
		double bytes = cluster->hosts[i]->nic_rate * WH_PLAN_PIECE_NS;

		slowest = bytes < slowest ? bytes : slowest;
	}
	return slowest > (double)WH_PLAN_PIECE_LEAST ? slowest : (double)WH_PLAN_PIECE_LEAST;
}

static void planner_sizes(struct planner *planner, const struct wh_plan_options *options)
{
	double slowest = slowest_piece(&planner->plan->cluster);
	const struct wh_layout *targets = planner->plan->targets;
	double wanted = 0;

	for (uint32_t i = 0; i < targets->slice_count; i++) {
		const struct wh_tensor *tensor = &targets->tensors[targets->slices[i].tensor];
		const uint64_t *box = wh_slice_box(targets, &targets->slices[i]);
		double bytes = tensor->item;

		for (uint32_t j = 0; j < tensor->dims; j++)
			bytes *= (double)(box[tensor->dims + j] - box[j]);
		wanted += bytes;
	}
	planner->chunk = CHUNK;
	planner->piece = PIECE;
	if (wanted / CHUNKS_USUAL > CHUNK) {
		planner->chunk = wanted / CHUNKS_USUAL < 1e18 ? (uint64_t)(wanted / CHUNKS_USUAL) :
								UINT64_C(1) << 60;
		planner->piece = planner->chunk / (CHUNK / PIECE);
	} else if (slowest < PIECE) {
		planner->piece = (uint64_t)slowest;
	}
	if (options && options->chunk)
		planner->chunk = options->chunk;
	if (options && options->piece)
		planner->piece = options->piece;
}

/* Could there be too many cells? Of one tensor there are at most as many as pairs of its slices,
 * unless they are cut along several dimensions. */
static bool may_be_many(const struct planner *planner)
{
	double pairs = 0;

	for (uint32_t i = 0; i < planner->plan->targets->tensor_count; i++) {
		double slices = (double)(planner->first[i + 1] - planner->first[i]);

		pairs += slices * slices;
	}
	return pairs > CHUNKS_MOST;
}

static int plan_all(struct planner *planner, const struct wh_plan_options *options,
		    const uint32_t *of_source)
{
	struct wh_plan *plan = planner->plan;
	const struct wh_cluster *cluster = &plan->cluster;
	struct wh_same_box *boxes = NULL;
	size_t most;
	int error = 0;

	planner->near.near = true;
	planner->first = calloc((size_t)plan->targets->tensor_count + 2, sizeof(size_t));
	planner->order = calloc((size_t)plan->sources->slice_count + plan->targets->slice_count + 1,
				sizeof(uint32_t));
	planner->load = calloc((size_t)cluster->link_count + 1, sizeof(double));
	planner->by_device = calloc((size_t)cluster->device_count + 1, sizeof(struct sender));
	planner->stamps = calloc((size_t)cluster->device_count + 1, sizeof(uint32_t));
	plan->numbers = list_room(NULL, 0, &planner->number_room, sizeof(*plan->numbers));
	if (!planner->first || !planner->order || !planner->load || !planner->by_device ||
	    !planner->stamps || !plan->numbers)
		return no_memory();
	planner_sizes(planner, options);
	most = references_sort(planner, of_source);
	boxes = calloc(most + 1, sizeof(*boxes));
	if (!boxes)
		return no_memory();
	/* Counting takes a small part of the time and memory that planning does. */
	for (int pass = may_be_many(planner) ? 0 : 1; !error && pass < 2; pass++)
		for (uint32_t i = 0; !error && i < plan->targets->tensor_count; i++) {
			planner->tensor = i;
			error = cut_tensor(planner, boxes, pass ? planner_cell : count_cell);
		}
	free(boxes);
	return error;
}

/* ---- the plan -------------------------------------------------------------------------------- */

int wh_plan_new(const struct wh_layout *sources, const struct wh_layout *targets,
		const struct wh_plan_options *options, struct wh_plan **out)
{
	struct wh_plan *plan = calloc(1, sizeof(*plan));
	struct planner planner = { .plan = plan };
	uint32_t *of_source = NULL;
	int error;

	if (!plan)
		return no_memory();
	plan->sources = sources;
	plan->targets = targets;
	error = wh_match(sources, targets, &of_source);
	if (!error)
		error = wh_cluster_init(&plan->cluster, sources, targets);
	if (!error)
		error = plan_all(&planner, options, of_source);
	free(of_source);
	free(planner.first);
	free(planner.order);
	free(planner.load);
	free(planner.by_device);
	free(planner.stamps);
	free(planner.holders.rows);
	free(planner.wanters.rows);
	free(planner.far.rows);
	free(planner.near.rows);
	if (error)
		wh_plan_free(plan);
	else
		*out = plan;
	return error;
}

void wh_plan_free(struct wh_plan *plan)
{
	if (!plan)
		return;
	wh_cluster_free(&plan->cluster);
	free(plan->cells);
	free(plan->steps);
	free(plan->numbers);
	free(plan);
}

const struct wh_slice *wh_step_from(const struct wh_plan *plan, const struct wh_step *step,
				    const struct wh_layout **layout)
{
	*layout = step->before == WH_PLAN_FIRST ? plan->sources : plan->targets;
	return &(*layout)->slices[step->from];
}

uint32_t wh_step_sender(const struct wh_plan *plan, const struct wh_step *step)
{
	const struct wh_layout *layout;
	const struct wh_slice *slice = wh_step_from(plan, step, &layout);

	return plan->cluster.of_engine[step->before != WH_PLAN_FIRST][slice->engine];
}

uint32_t wh_step_receiver(const struct wh_plan *plan, const struct wh_step *step)
{
	return plan->cluster.of_engine[1][plan->targets->slices[step->to].engine];
}
