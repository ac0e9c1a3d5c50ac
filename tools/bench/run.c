/* SPDX-License-Identifier: Apache-2.0 */
/* The processes that hold Wherry's engines: near, which submits, and far. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"
#include "engine.h"

#define EXTRA_PEERS 8
#define FIND_TIMEOUT INT64_C(5000000000) /* ns */

struct held {
	void *address;
	uint64_t length;
	bool on_gpu;
	struct wh_region *region;
};

/* What the batches of one way of a row are made from. */
struct maker {
	uint32_t op;
	struct wh_peer *peer;
	struct wh_region *local;
	struct wh_remote remote;
	const uint64_t *local_offsets, *remote_offsets;
	struct wh_transfer *list;
};

struct member {
	const struct bench_member_setup *setup;
	struct wh_engine *engine;
	struct wh_peer *self, *peer, *extra[EXTRA_PEERS];
	unsigned extra_count;
	struct held memory[BENCH_SIDES];
	unsigned generation; /* number of the next region's name */
	struct wh_remote remote;
	/* The row: as many different batches as the walk has, and at least as many as are in
	 * flight. */
	struct bench_row row;
	struct wh_batch **batches;
	size_t batch_count, next;
	struct bench_walk walk;
	struct maker maker; /* of the way there, without the list */
	bool failed; /* a batch may still be in flight: leave it alone */
	struct bench_limit limit; /* by memcpy or a GPU's driver */
	/* for checking GPU memory and for its limits; NULL: not opened yet */
	struct gpu *gpu;
};

/* ---- answers ------------------------------------------------------------------------------ */

static int answer_error(struct bench_answer *answer, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

static int answer_error(struct bench_answer *answer, int error, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vsnprintf(answer->text, sizeof(answer->text), format, list);
	va_end(list);
	return answer->error = error;
}

static int answer_library(struct bench_answer *answer, int error)
{
	return answer_error(answer, error, "%s", wh_error_text());
}

/* ---- engine, peers, memory ---------------------------------------------------------------- */

static void row_end(struct member *m)
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

static int memory_free(struct member *m, struct held *memory)
{
	int error = 0;

	if (memory->region)
		error = wh_region_unregister(memory->region);
	if (error)
		return error;
	memory->region = NULL;
	if (memory->address)
		error = wh_memory_free(m->engine, memory->address);
	if (!error)
		*memory = (struct held){ 0 };
	return error;
}

static int member_close(struct member *m, struct bench_answer *answer)
{
	int error;

	if (!m->engine)
		return 0;
	row_end(m);
	if (m->self)
		wh_peer_close(m->self);
	if (m->peer)
		wh_peer_close(m->peer);
	for (unsigned i = 0; i < m->extra_count; i++)
		wh_peer_close(m->extra[i]);
	m->self = m->peer = NULL;
	m->extra_count = 0;
	bench_gpu_close(m->limit.gpu);
	m->limit.gpu = NULL;
	for (int i = 0; i < BENCH_SIDES; i++)
		memory_free(m, &m->memory[i]);
	error = wh_engine_close(m->engine);
	m->engine = NULL;
	return error ? answer_library(answer, error) : 0;
}

static int member_open(struct member *m, const struct bench_order *order,
		       struct bench_answer *answer)
{
	char connections[32];
	const char *config[2] = { NULL };
	struct engine_setup setup = { .listen = m->setup->listen, .config = config };
	int code;

	snprintf(connections, sizeof(connections), "connections=%u", order->connections);
	if (order->connections)
		config[0] = connections;
	code = engine_open(m->setup->arguments, &setup, &m->engine);
	if (code) {
		/* The engine's error is on stderr already; the exit code is all that is left to
		 * report. */
		return answer->error = bench_said_error(code);
	}
	snprintf(answer->text, sizeof(answer->text), "%s", wh_engine_url(m->engine));
	return 0;
}

static int member_connect(struct member *m, const struct bench_order *order,
			  struct bench_answer *answer)
{
	bool self = !strcmp(order->text, "self");
	struct wh_peer **slot = self ? &m->self : &m->peer;
	int error = reach_error(wh_peer_open(m->engine, order->text, NULL, slot));

	return error ? answer_library(answer, error) : 0;
}

/* Open the driver itself, without the engine. */
static int driver(struct member *m, struct bench_answer *answer)
{
	char text[GPU_TEXT];

	if (!m->gpu)
		m->gpu = gpu_open(bench_knob(m->setup->arguments, "cuda"), text);
	return m->gpu ? 0 : answer_error(answer, -ENODEV, "%s", text);
}

static int member_memory(struct member *m, const struct bench_order *order,
			 struct bench_answer *answer)
{
	struct held *memory = &m->memory[order->side];
	struct wh_region_options options = { .size = sizeof(options), .name = answer->text };
	int error = memory_free(m, memory);

	if (!error)
		error = memory_alloc(m->engine, &order->memory, order->length, &memory->address);
	if (error)
		return answer_library(answer, error);
	/* Memory that is only read must have pages of its own too, not the kernel's page of
	 * zeros. */
	if (!memory_on_gpu(order->memory.kind))
		memset(memory->address, 0xa5, order->length);
	memory->on_gpu = memory_on_gpu(order->memory.kind);
	memory->length = order->length;
	/* Names are not reused: nobody can mistake an old region for the new one. */
	snprintf(answer->text, sizeof(answer->text), "bench.%u", ++m->generation);
	error = wh_region_register(m->engine, memory->address, order->length, &options,
				   &memory->region);
	if (error)
		return answer_library(answer, error);
	answer->address = (uintptr_t)memory->address;
	return 0;
}

/* Look up the peer's region that transfers use. */
static int member_region(struct member *m, const struct bench_order *order,
			 struct bench_answer *answer)
{
	struct wh_remote longest = { 0 }, remote;
	uint64_t cursor = 0;
	int error;

	if (order->text[0]) {
		error = wh_peer_find(m->peer, order->text, FIND_TIMEOUT, &longest);
		if (error)
			return answer_library(answer, error);
	} else {
		while (!wh_peer_next(m->peer, &cursor, &remote))
			if (remote.length > longest.length)
				longest = remote;
		if (!longest.length)
			return answer_error(answer, -ENOENT, "the peer publishes no region");
	}
	m->remote = longest;
	answer->bytes = longest.length;
	answer->kind = longest.kind;
	answer->access = longest.access;
	return 0;
}

/* ---- batches ------------------------------------------------------------------------------ */

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
	error = wh_blocks_prepare(maker->peer, &desc, &blocks);
	if (error)
		return error;
	error = wh_batch_add_blocks(batch, blocks);
	wh_blocks_free(blocks);
	return error;
}

/* How many ways the bytes go at once. Their batches alternate. */
static inline unsigned ways(const struct member *m)
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
	m->batch_count *= ways(m);
	m->batches = calloc(m->batch_count, sizeof(*m->batches));
	error = m->batches && list ? 0 : -ENOMEM;
	maker[0].list = maker[1].list = list;
	for (size_t i = 0; !error && i < m->batch_count; i++) {
		error = wh_batch_new(maker[0].peer, &options, &m->batches[i]);
		if (!error)
			error = batch_fill(&m->row, &maker[i % ways(m)], m->batches[i],
					   i / ways(m) % layout->batches * layout->blocks);
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

static inline void step(const struct member *m, size_t *at)
{
	if (++*at == m->batch_count)
		*at = 0;
}

/* Keep row.depth batches in flight, at most `most` in all, until the pace says stop. *done: how
 * many were completed. */
static int run_batches(struct member *m, uint64_t most, struct bench_pace *pace, uint64_t *done,
		       struct bench_answer *answer)
{
	uint64_t submitted = 0, completed = 0, depth = m->row.depth * ways(m);
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
			step(m, &head);
		}
		error = wait_for(m, m->batches[tail], answer);
		completed++;
		step(m, &tail);
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
		step(m, &tail);
	}
	return error;
}

static int member_walk(struct member *m, struct bench_answer *answer)
{
	struct bench_pace pace = { .deadline = INT64_MAX };
	uint64_t done;

	m->next = 0;
	return run_batches(m, m->row.layout.batches * ways(m), &pace, &done, answer);
}

/* The route of the first batch. */
static void member_route(struct member *m, struct bench_answer *answer)
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
	error = name[0] ? wh_peer_find(maker->peer, name, FIND_TIMEOUT, &maker->remote) : 0;
	return error ? answer_library(answer, error) : 0;
}

/* order->text names the remote region; empty: the one that BENCH_REGION found. */
static int member_row(struct member *m, const struct bench_order *order,
		      struct bench_answer *answer)
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

static int member_bandwidth(struct member *m, const struct bench_order *order,
			    struct bench_answer *answer)
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
	step(m, &m->next);
	return error;
}

/* Every eighth sample measures the submission, into the upper end of the samples' room. A third
 * reading of the clock would show in a latency below 10 us, so those samples are left out of it. */
static int member_latency(struct member *m, const struct bench_order *order,
			  struct bench_answer *answer)
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
static int member_first(struct member *m, struct bench_answer *answer)
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

/* ---- patterns ----------------------------------------------------------------------------- */

/* The CPU must not touch GPU memory: the bytes are made and compared in `here`, and the driver
 * alone copies them, because code under test must not check itself. */
static int pattern_on_gpu(struct member *m, const struct bench_order *order, void *memory,
			  struct bench_answer *answer)
{
	const struct bench_layout *layout = &order->row.layout;
	uint64_t length = order->what == BENCH_FILL ? layout->source_length : layout->target_length;
	void *here = malloc(length);
	int error = driver(m, answer);

	if (!here && !error)
		error = answer_error(answer, -ENOMEM, "no memory to check with");
	if (!error && order->what == BENCH_CHECK) {
		error = gpu_copy(m->gpu, here, memory, length);
		if (!error && !bench_layout_check(layout, here, order->iteration, answer->text,
						  sizeof(answer->text)))
			answer->error = -EBADMSG;
	} else if (!error) {
		if (order->what == BENCH_FILL)
			bench_layout_fill(layout, here, order->iteration);
		else
			bench_layout_guard(layout, here);
		error = gpu_copy(m->gpu, memory, here, length);
	}
	free(here);
	if (error && !answer->text[0])
		answer_error(answer, error, "%s", m->gpu->text);
	return error ? error : answer->error;
}

static int member_pattern(struct member *m, const struct bench_order *order,
			  struct bench_answer *answer)
{
	void *memory = m->memory[order->side].address;
	const struct bench_layout *layout = &order->row.layout;

	if (m->memory[order->side].on_gpu)
		return pattern_on_gpu(m, order, memory, answer);
	if (order->what == BENCH_FILL)
		bench_layout_fill(layout, memory, order->iteration);
	else if (order->what == BENCH_GUARD)
		bench_layout_guard(layout, memory);
	else if (!bench_layout_check(layout, memory, order->iteration, answer->text,
				     sizeof(answer->text)))
		answer->error = -EBADMSG;
	return answer->error;
}

/* Move everything as one batch of one transfer. */
static int copy_whole(struct wh_peer *peer, uint32_t op, struct wh_region *local,
		      const struct wh_remote *remote, uint64_t length, const char *require,
		      struct bench_answer *answer)
{
	struct wh_batch_options options = { .size = sizeof(options), .require = require };
	struct wh_transfer transfer = {
		.local = local, .remote = remote->id, .length = length, .op = op
	};
	struct wh_batch *batch;
	int error = wh_batch_new(peer, &options, &batch);

	if (error)
		return answer_library(answer, error);
	error = wh_batch_add(batch, &transfer, 1);
	if (!error)
		error = wh_batch_submit(batch);
	if (error) {
		answer_library(answer, error);
	} else {
		error = engine_wait(batch);
		if (error)
			answer_error(answer, error, "%s", engine_wait_text(batch));
	}
	wh_batch_free(batch);
	return error;
}

static int member_copy(struct member *m, const struct bench_order *order,
		       struct bench_answer *answer)
{
	return copy_whole(m->peer, order->what == BENCH_PUT ? WH_WRITE : WH_READ,
			  m->memory[order->side].region, &m->remote, order->length, NULL, answer);
}

/* ---- footprint ---------------------------------------------------------------------------- */

/* The exact count; /proc/self/statm may lag behind by hundreds of KiB. */
static int member_resident(struct bench_answer *answer)
{
	FILE *file = fopen("/proc/self/smaps_rollup", "re");
	char line[128];
	unsigned long kib;

	if (!file)
		return answer_error(answer, -errno, "/proc/self/smaps_rollup: %s", strerror(errno));
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "Rss: %lu kB", &kib) == 1)
			answer->bytes = (uint64_t)kib << 10;
	fclose(file);
	if (!answer->bytes)
		return answer_error(answer, -EPROTO, "/proc/self/smaps_rollup has no Rss");
	return 0;
}

/* order->text: "URL NAME": connect to one more peer, move the whole region there and back. */
static int member_extra(struct member *m, const struct bench_order *order,
			struct bench_answer *answer)
{
	char url[sizeof(order->text)], *name;
	struct wh_remote remote;
	struct wh_peer *peer;
	int error;

	memcpy(url, order->text, sizeof(url));
	name = strchr(url, ' ');
	if (!name || m->extra_count == EXTRA_PEERS)
		return answer_error(answer, -EINVAL, "cannot connect to another peer");
	*name++ = '\0';
	error = wh_peer_open(m->engine, url, NULL, &peer);
	if (error)
		return answer_library(answer, error);
	m->extra[m->extra_count++] = peer;
	error = wh_peer_find(peer, name, FIND_TIMEOUT, &remote);
	if (error)
		return answer_library(answer, error);
	error = copy_whole(peer, WH_WRITE, m->memory[BENCH_SOURCE].region, &remote, order->length,
			   "tcp", answer);
	if (!error)
		error = copy_whole(peer, WH_READ, m->memory[BENCH_SOURCE].region, &remote,
				   order->length, "tcp", answer);
	return error;
}

/* ---- limits without another end -------------------------------------------------------------- */

/* Page placement affects the speed: the limit uses the test's own pages, and others only where the
 * other process's are not mapped here. */
static void memcpy_memory(struct member *m, const struct bench_order *order)
{
	const struct bench_layout *layout = &order->row.layout;
	uint32_t near = order->row.op == WH_WRITE ? BENCH_SOURCE : BENCH_TARGET;
	uint32_t far = near == BENCH_SOURCE ? BENCH_TARGET : BENCH_SOURCE;
	uint64_t length = far == BENCH_TARGET ? layout->target_length : layout->source_length;

	m->limit.lent[near] = m->memory[near].address;
	if (order->row.one_process)
		m->limit.lent[far] = m->memory[far].address;
	else
		m->limit.lent[far] =
			order->pid ? bench_find_mapping(order->pid, order->address, length) : NULL;
}

/* Lend near's own memory of both ways. */
static void gpu_memory(struct member *m, const struct bench_order *order)
{
	bool write = order->row.op == WH_WRITE;

	for (int side = 0; side < BENCH_SIDES; side++) {
		bool source = side == BENCH_SOURCE || side == BENCH_BACK_SOURCE;
		bool back = side == BENCH_BACK_SOURCE || side == BENCH_BACK_TARGET;
		bool ours = order->row.one_process || (source == write) != back;

		m->limit.lent[side] = ours ? m->memory[side].address : NULL;
	}
}

static int limit_prepare(struct member *m, const struct bench_order *order,
			 struct bench_answer *answer)
{
	if (!strcmp(order->text, "cuda")) {
		int error = driver(m, answer);

		if (error)
			return error;
		gpu_memory(m, order);
		m->limit.gpu_setup = (struct bench_gpu_setup){
			.gpu = m->gpu,
			.engine = m->engine,
			.ctas = (uint32_t)strtoul(bench_knob(m->setup->arguments, "ctas"), NULL,
						  10),
		};
	} else {
		memcpy_memory(m, order);
	}
	return bench_limit_row(&m->limit, &order->row, order->text, "memfd", answer->text);
}

static int member_limit(struct member *m, const struct bench_order *order,
			struct bench_answer *answer)
{
	int64_t start = bench_now();
	double bandwidth = 0;
	size_t count = 0;
	int error;

	if (order->what == BENCH_LIMIT)
		return limit_prepare(m, order, answer);
	if (order->what == BENCH_LIMIT_LATENCY) {
		error = bench_limit_latency(&m->limit, order->duration, m->setup->samples, &count);
		answer->count = count;
	} else {
		error = bench_limit_bandwidth(&m->limit, order->duration, &bandwidth);
		answer->ns = bench_now() - start;
		answer->bytes = (uint64_t)(bandwidth * (double)answer->ns);
	}
	return error ? answer_error(answer, error, "%s: %s", m->limit.name,
				    m->gpu && m->gpu->text[0] ? m->gpu->text : strerror(-error)) :
		       0;
}

/* ---- orders ------------------------------------------------------------------------------- */

static int obey(struct member *m, const struct bench_order *order, struct bench_answer *answer)
{
	switch (order->what) {
	case BENCH_OPEN:
		return member_open(m, order, answer);
	case BENCH_CLOSE:
	case BENCH_QUIT:
		return member_close(m, answer);
	case BENCH_CONNECT:
		return member_connect(m, order, answer);
	case BENCH_MEMORY:
		return member_memory(m, order, answer);
	case BENCH_REGION:
		return member_region(m, order, answer);
	case BENCH_ROW:
		return member_row(m, order, answer);
	case BENCH_ROW_END:
		/* Connections open on demand: by now all are open. */
		if (m->batches && !m->failed)
			member_route(m, answer);
		row_end(m);
		return 0;
	case BENCH_BANDWIDTH:
		return member_bandwidth(m, order, answer);
	case BENCH_LATENCY:
		return member_latency(m, order, answer);
	case BENCH_FIRST:
		return member_first(m, answer);
	case BENCH_WALK:
		return member_walk(m, answer);
	case BENCH_FILL:
	case BENCH_GUARD:
	case BENCH_CHECK:
		return member_pattern(m, order, answer);
	case BENCH_PUT:
	case BENCH_GET:
		return member_copy(m, order, answer);
	case BENCH_RESIDENT:
		return member_resident(answer);
	case BENCH_EXTRA:
		return member_extra(m, order, answer);
	case BENCH_LIMIT:
	case BENCH_LIMIT_BANDWIDTH:
	case BENCH_LIMIT_LATENCY:
		return member_limit(m, order, answer);
	default:
		return answer_error(answer, -EINVAL, "unknown order");
	}
}

void bench_member_serve(int fd, void *arg)
{
	struct member m = { .setup = arg };
	struct bench_order order;
	struct bench_answer answer;

	while (bench_next_order(fd, &order)) {
		memset(&answer, 0, sizeof(answer));
		answer.error = obey(&m, &order, &answer);
		bench_reply(fd, &answer);
		if (order.what == BENCH_QUIT)
			return;
	}
	member_close(&m, &answer);
	bench_limit_close(&m.limit);
	gpu_close(m.gpu);
}
