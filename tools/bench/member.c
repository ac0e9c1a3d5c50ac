/* SPDX-License-Identifier: Apache-2.0 */
/* The processes that hold Wherry's engines, near and far: engine, peers, memory, patterns, limits,
 * and the orders that the command gives them. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/member.h"
#include "engine.h"

/* ---- answers ------------------------------------------------------------------------------ */

int answer_error(struct bench_answer *answer, int error, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vsnprintf(answer->text, sizeof(answer->text), format, list);
	va_end(list);
	return answer->error = error;
}

int answer_library(struct bench_answer *answer, int error)
{
	return answer_error(answer, error, "%s", wh_error_text());
}

/* ---- engine, peers, memory ---------------------------------------------------------------- */

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
		return answer->error = bench_reported_error(code);
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
static int member_driver(struct member *m, struct bench_answer *answer)
{
	char text[GPU_TEXT];

	if (!m->gpu)
		m->gpu = gpu_open(bench_setting(m->setup->arguments, "cuda"), text);
	return m->gpu ? 0 : answer_error(answer, -ENODEV, "%s", text);
}

static int member_memory(struct member *m, const struct bench_order *order,
			 struct bench_answer *answer)
{
	struct held *memory = &m->memory[order->side];
	struct wh_region_options options = { .size = sizeof(options),
					     .name = answer->text,
					     .access = WH_ACCESS_READ | WH_ACCESS_WRITE };
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
static int find_longest(struct wh_peer *peer, struct wh_remote *longest)
{
	struct wh_remote page[32];
	uint64_t cursor = 0;
	size_t count;
	int error;

	do {
		count = sizeof(page) / sizeof(page[0]);
		error = wh_peer_list(peer, &cursor, page, &count, WH_ANSWER);
		for (size_t i = 0; !error && i < count; i++)
			if (page[i].length > longest->length)
				*longest = page[i];
	} while (!error && cursor);
	return error;
}

static int member_region(struct member *m, const struct bench_order *order,
			 struct bench_answer *answer)
{
	struct wh_remote longest = { 0 };
	int error;

	if (order->text[0]) {
		error = wh_peer_find(m->peer, order->text, BENCH_FIND_TIMEOUT, &longest);
		if (error)
			return answer_library(answer, error);
	} else {
		error = find_longest(m->peer, &longest);
		if (error)
			return answer_library(answer, error);
		if (!longest.length)
			return answer_error(answer, -ENOENT,
					    "the peer lists no region: it has none, or does not "
					    "grant their listing; name one");
	}
	m->remote = longest;
	answer->bytes = longest.length;
	answer->kind = longest.kind;
	answer->access = longest.access;
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
	int error = member_driver(m, answer);

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
	if (!name || m->extra_count == BENCH_EXTRA_PEERS)
		return answer_error(answer, -EINVAL, "cannot connect to another peer");
	*name++ = '\0';
	error = wh_peer_open(m->engine, url, NULL, &peer);
	if (error)
		return answer_library(answer, error);
	m->extra[m->extra_count++] = peer;
	error = wh_peer_find(peer, name, BENCH_FIND_TIMEOUT, &remote);
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
		int error = member_driver(m, answer);

		if (error)
			return error;
		gpu_memory(m, order);
		m->limit.gpu_setup = (struct bench_gpu_setup){
			.gpu = m->gpu,
			.engine = m->engine,
			.ctas = (uint32_t)strtoul(bench_setting(m->setup->arguments, "ctas"), NULL,
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
		answer->parts = m->limit.parts;
	}
	return error ? answer_error(answer, error, "%s: %s", m->limit.name,
				    m->gpu && m->gpu->text[0] ? m->gpu->text : strerror(-error)) :
		       0;
}

/* ---- orders ------------------------------------------------------------------------------- */

static int member_obey(struct member *m, const struct bench_order *order,
		       struct bench_answer *answer)
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
	case BENCH_BESIDE_START:
		return bench_load_start(&m->load, m->setup->arguments, order, answer);
	case BENCH_BESIDE_STOP:
		return bench_load_stop(m->load, answer);
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
		answer.error = member_obey(&m, &order, &answer);
		bench_reply(fd, &answer);
		if (order.what == BENCH_QUIT)
			return;
	}
	member_close(&m, &answer);
	bench_limit_close(&m.limit);
	bench_load_free(m.load);
	gpu_close(m.gpu);
}
