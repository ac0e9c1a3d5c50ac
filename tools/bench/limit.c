/* SPDX-License-Identifier: Apache-2.0 */
/* The raw limit of a row: the same bytes, walked in the same way, by the plainest code possible. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>

#include "bench/bench.h"

#define VECTORS 512 /* blocks in one process_vm call */
#define UNIT ((uint64_t)256 << 10) /* bytes that a thread copies before it looks at the time */
#define COPIERS 256 /* threads, at most */

static int limit_fail(int error, const char *what, char text[BENCH_TEXT])
{
	snprintf(text, BENCH_TEXT, "%s for the raw limit: %s", what, strerror(-error));
	return error;
}

/* ---- getting ready ------------------------------------------------------------------------ */

static enum bench_limit_kind kind_for(const struct bench_limit *limit, const char *transport,
				      const char *detail)
{
	if (!strcmp(transport, "cuda"))
		return limit->row.form == BENCH_FORM_SINGLE ? BENCH_LIMIT_DRIVER :
							      BENCH_LIMIT_KERNEL;
	if (limit->row.both_ways)
		return BENCH_LIMIT_NONE;
	if (!strcmp(transport, "tcp"))
		return limit->process ? BENCH_LIMIT_STREAM : BENCH_LIMIT_NONE;
	if (!strcmp(transport, "shm") && strstr(detail, "process_vm"))
		return limit->process ? BENCH_LIMIT_PROCESS_VM : BENCH_LIMIT_NONE;
	if (!strcmp(transport, "shm") || !strcmp(transport, "self"))
		return BENCH_LIMIT_MEMCPY;
	return BENCH_LIMIT_NONE;
}

static const char *name_for(enum bench_limit_kind kind, uint32_t op, bool tls)
{
	switch (kind) {
	case BENCH_LIMIT_MEMCPY:
		return "memcpy";
	case BENCH_LIMIT_PROCESS_VM:
		return op == WH_WRITE ? "process_vm_writev" : "process_vm_readv";
	case BENCH_LIMIT_STREAM:
		return tls ? "SSL_write/SSL_read" : "send/recv";
	case BENCH_LIMIT_DRIVER:
		return "cuMemcpy";
	case BENCH_LIMIT_KERNEL:
		return "bare kernel";
	default:
		return "";
	}
}

/* The cipher that the route uses: the cipher list prefers AES. */
static uint32_t cipher_of(const char *detail)
{
	return strstr(detail, "CHACHA") ? BENCH_TLS_CHACHA20 : BENCH_TLS_AES128;
}

static void unmap_side(struct bench_limit *limit, int side)
{
	if (limit->mapped[side])
		bench_unmap(limit->map[side], limit->mapped[side]);
	limit->map[side] = NULL;
	limit->mapped[side] = 0; /* reset also if the memory is the test's own */
}

/* The kind of memory at a socket: host memory on both sides. */
static uint32_t host_kind(const struct memory *memory)
{
	return memory_needs_gpu(memory->kind) ? WH_MEMORY_SHARED : memory->kind;
}

/* Map this process's memory; keep it from row to row while it fits. */
static int map_side(struct bench_limit *limit, int side, uint32_t kind, uint64_t length,
		    char text[BENCH_TEXT])
{
	if (limit->lent[side]) {
		unmap_side(limit, side);
		limit->map[side] = limit->lent[side];
		return 0;
	}
	if (limit->map[side] && limit->map_kind[side] == kind && limit->mapped[side] >= length)
		return 0;
	unmap_side(limit, side);
	limit->map[side] = bench_map(kind, length);
	if (!limit->map[side])
		return limit_fail(-errno, "memory", text);
	limit->map_kind[side] = kind;
	limit->mapped[side] = length;
	return 0;
}

/* Let the raw process map its memory. */
static int map_far(struct bench_limit *limit, uint32_t kind, uint64_t length, char text[BENCH_TEXT])
{
	struct bench_order order = { .what = BENCH_RAW_MEMORY, .kind = kind, .length = length };
	struct bench_answer answer;
	int error;

	if (limit->far && limit->far_kind == kind && limit->far_length >= length)
		return 0;
	limit->far = 0;
	error = bench_ask(limit->process, &order, &answer);
	if (error) {
		memcpy(text, answer.text, BENCH_TEXT);
		return error;
	}
	limit->far = answer.address;
	limit->far_kind = kind;
	limit->far_length = length;
	return 0;
}

/* Let the raw process walk the same blocks. */
static int walk_far(struct bench_limit *limit, char text[BENCH_TEXT])
{
	struct bench_order order = { .what = BENCH_RAW_WALK, .row = limit->row };
	struct bench_answer answer;
	int error = bench_ask(limit->process, &order, &answer);

	if (error)
		memcpy(text, answer.text, BENCH_TEXT);
	return error;
}

static int map_all(struct bench_limit *limit, char text[BENCH_TEXT])
{
	const struct bench_row *row = &limit->row;
	bool write = row->op == WH_WRITE, copy = limit->kind == BENCH_LIMIT_MEMCPY;
	int error = 0;

	if (write || copy)
		error = map_side(limit, BENCH_SOURCE, host_kind(&row->source),
				 row->layout.source_length, text);
	if (!error && (!write || copy))
		error = map_side(limit, BENCH_TARGET, host_kind(&row->target),
				 row->layout.target_length, text);
	if (error || copy)
		return error;
	return map_far(limit, write ? host_kind(&row->target) : host_kind(&row->source),
		       write ? row->layout.target_length : row->layout.source_length, text);
}

/* ---- memcpy and process_vm ---------------------------------------------------------------- */

static void copy_batch(const struct bench_limit *limit, uint64_t batch)
{
	uint64_t size = limit->row.layout.size, blocks = limit->row.layout.blocks;
	const uint64_t *source = limit->walk.source + batch * blocks;
	const uint64_t *target = limit->walk.target + batch * blocks;
	const char *from = limit->map[BENCH_SOURCE];
	char *to = limit->map[BENCH_TARGET];

	for (uint64_t i = 0; i < blocks; i++)
		memcpy(to + target[i], from + source[i], size);
}

/* Move the bytes of `count` blocks; continue after a short call. */
static int vm_vectors(const struct bench_limit *limit, struct iovec *near, struct iovec *far,
		      uint64_t count, uint64_t bytes)
{
	bool write = limit->row.op == WH_WRITE;
	ssize_t n;

	while (bytes) {
		n = write ? process_vm_writev(limit->process->pid, near, count, far, count, 0) :
			    process_vm_readv(limit->process->pid, near, count, far, count, 0);
		if (n <= 0)
			return n ? -errno : -EFAULT;
		bytes -= (uint64_t)n;
		/* Both lists have the same lengths, so they are cut at the same offset. */
		for (; n && (size_t)n >= near->iov_len; near++, far++, count--)
			n -= (ssize_t)near->iov_len;
		if (!n)
			continue;
		near->iov_base = (char *)near->iov_base + n;
		far->iov_base = (char *)far->iov_base + n;
		near->iov_len -= (size_t)n;
		far->iov_len -= (size_t)n;
	}
	return 0;
}

static int vm_batch(const struct bench_limit *limit, uint64_t batch)
{
	uint64_t size = limit->row.layout.size, blocks = limit->row.layout.blocks;
	const uint64_t *source = limit->walk.source + batch * blocks;
	const uint64_t *target = limit->walk.target + batch * blocks;
	bool write = limit->row.op == WH_WRITE;
	char *memory = limit->map[write ? BENCH_SOURCE : BENCH_TARGET];
	struct iovec near[VECTORS], far[VECTORS];
	int error = 0;

	for (uint64_t first = 0; !error && first < blocks; first += VECTORS) {
		uint64_t count = blocks - first < VECTORS ? blocks - first : VECTORS;

		for (uint64_t i = 0; i < count; i++) {
			uint64_t from = source[first + i], to = target[first + i];

			near[i].iov_base = memory + (write ? from : to);
			far[i].iov_base = (void *)(uintptr_t)(limit->far + (write ? to : from));
			near[i].iov_len = far[i].iov_len = size;
		}
		error = vm_vectors(limit, near, far, count, count * size);
	}
	return error;
}

static int one_batch(struct bench_limit *limit)
{
	uint64_t batch = limit->next;

	limit->next = batch + 1 == limit->row.layout.batches ? 0 : batch + 1;
	if (limit->kind == BENCH_LIMIT_PROCESS_VM)
		return vm_batch(limit, batch);
	copy_batch(limit, batch);
	return 0;
}

static int vm_bandwidth(struct bench_limit *limit, int64_t duration, double *out)
{
	int64_t start = bench_now();
	struct bench_pace pace = { .deadline = start + duration, .last = start };
	uint64_t done = 0;
	int error;

	do {
		error = one_batch(limit);
		done++;
	} while (!error && !bench_pace_over(&pace));
	*out = (double)(done * bench_layout_bytes(&limit->row.layout)) /
	       (double)(bench_now() - start);
	return error;
}

/* Threads that share the walk: each has units of its own, so that no two write the same memory at
 * the same time. */
struct copiers {
	const struct bench_limit *limit;
	uint64_t units; /* of a batch */
	uint64_t first, every; /* unit `first` of the walk, and each `every`th from there on */
	int64_t start, duration;
	uint64_t done; /* units */
};

/* How many units a batch has: parts of long blocks, groups of short ones. */
static uint64_t batch_units(const struct bench_layout *layout)
{
	uint64_t group = layout->size < UNIT ? UNIT / layout->size : 1;

	return layout->size > UNIT ? layout->blocks * ((layout->size + UNIT - 1) / UNIT) :
				     (layout->blocks + group - 1) / group;
}

static void copy_unit(const struct bench_limit *limit, uint64_t batch, uint64_t unit)
{
	uint64_t size = limit->row.layout.size, blocks = limit->row.layout.blocks;
	uint64_t parts = size > UNIT ? (size + UNIT - 1) / UNIT : 1;
	uint64_t group = size < UNIT ? UNIT / size : 1;
	uint64_t block = unit / parts * group, offset = unit % parts * UNIT;
	uint64_t end = block + group < blocks ? block + group : blocks;
	uint64_t length = size - offset < UNIT ? size - offset : UNIT;
	const uint64_t *source = limit->walk.source + batch * blocks;
	const uint64_t *target = limit->walk.target + batch * blocks;
	const char *from = limit->map[BENCH_SOURCE];
	char *to = limit->map[BENCH_TARGET];

	for (; block < end; block++)
		memcpy(to + target[block] + offset, from + source[block] + offset, length);
}

static void *copiers_run(void *arg)
{
	struct copiers *copiers = arg;
	const struct bench_limit *limit = copiers->limit;
	uint64_t all = copiers->units * limit->row.layout.batches, at = copiers->first;
	struct bench_pace pace = { .deadline = copiers->start + copiers->duration,
				   .last = copiers->start };

	do {
		copy_unit(limit, at / copiers->units, at % copiers->units);
		copiers->done++;
		at = at + copiers->every < all ? at + copiers->every : copiers->first;
	} while (!bench_pace_over(&pace));
	return NULL;
}

uint32_t bench_limit_threads(const struct bench_limit *limit)
{
	cpu_set_t cpus;
	int count = sched_getaffinity(limit->near ? limit->near->pid : 0, sizeof(cpus), &cpus) ?
			    1 :
			    CPU_COUNT(&cpus);

	if (limit->kind != BENCH_LIMIT_MEMCPY)
		return 0;
	return count < 1 ? 1 : count > COPIERS ? COPIERS : (uint32_t)count;
}

/* By as many threads as there are CPUs: what the machine can do, not what one thread can. */
static int copy_bandwidth(struct bench_limit *limit, int64_t duration, double *out)
{
	const struct bench_layout *layout = &limit->row.layout;
	uint64_t units = batch_units(layout), all = units * layout->batches, done = 0;
	uint32_t threads = bench_limit_threads(limit), started = 0;
	struct copiers copiers[COPIERS];
	pthread_t thread[COPIERS];
	int64_t start = bench_now();
	int error = 0;

	threads = threads < all ? threads : (uint32_t)all;
	for (uint32_t i = 0; i < threads; i++)
		copiers[i] = (struct copiers){ .limit = limit,
					       .units = units,
					       .first = i,
					       .every = threads,
					       .start = start,
					       .duration = duration };
	while (!error && ++started < threads)
		error = -pthread_create(&thread[started], NULL, copiers_run, &copiers[started]);
	started -= error != 0;
	copiers_run(&copiers[0]);
	for (uint32_t i = 1; i < started; i++)
		pthread_join(thread[i], NULL);
	for (uint32_t i = 0; i < started; i++)
		done += copiers[i].done;
	*out = (double)done / (double)units * (double)bench_layout_bytes(layout) /
	       (double)(bench_now() - start);
	return error;
}

static int copy_latency(struct bench_limit *limit, int64_t duration, uint64_t *samples,
			size_t *count)
{
	int64_t deadline = bench_now() + duration, start, end;
	size_t n = 0;
	int error;

	do {
		start = bench_now();
		error = one_batch(limit);
		end = bench_now();
		samples[n++] = (uint64_t)(end - start);
	} while (!error && n < BENCH_SAMPLES && end < deadline);
	*count = n;
	return error;
}

/* ---- TCP, plain or by TLS ------------------------------------------------------------------- */

static struct bench_flow flow_for(const struct bench_limit *limit)
{
	const struct bench_layout *layout = &limit->row.layout;
	bool push = limit->row.op == WH_WRITE;
	uint64_t bytes = bench_layout_bytes(layout), set = bench_layout_set(layout);
	bool blocks = limit->row.form != BENCH_FORM_SINGLE;

	return (struct bench_flow){
		.push = push,
		.spin = limit->spin,
		.connections = limit->row.connections ? limit->row.connections : 1,
		.bytes = bytes,
		.chunk = bytes < limit->call ? bytes : limit->call,
		.memory = limit->map[push ? BENCH_SOURCE : BENCH_TARGET],
		.near_length = blocks ? set :
			       push   ? layout->source_length :
					layout->target_length,
		.far_length = blocks ? set :
			      push   ? layout->target_length :
				       layout->source_length,
		.offsets = !blocks ? NULL :
			   push    ? limit->walk.source :
				     limit->walk.target,
		.size = layout->size,
	};
}

static int stream_bandwidth(struct bench_limit *limit, int64_t duration, double *out)
{
	struct bench_flow flow = flow_for(limit);
	uint64_t least = flow.bytes, unit = flow.chunk * flow.connections;
	int64_t ns;
	int error;

	/* As many bytes as take about `duration` at the rate known so far; at first a guess that is
	 * doubled until the time is long enough to measure. */
	flow.bytes = limit->rate > 0 ? (uint64_t)(limit->rate * (double)duration) : 64 * unit;
	for (;;) {
		if (flow.bytes < least)
			flow.bytes = least;
		flow.bytes = (flow.bytes + unit - 1) / unit * unit;
		error = bench_stream_flow(&limit->stream, &flow, &ns);
		if (error)
			return error;
		*out = (double)flow.bytes / (double)ns;
		if (limit->rate > 0 || 4 * ns >= duration)
			break;
		flow.bytes *= 2;
	}
	limit->rate = *out;
	return 0;
}

/* Both ends must know the number of pings, so they come in parts: if the machine slows down, the
 * slice still ends in time. */
static int stream_latency(struct bench_limit *limit, int64_t duration, uint64_t *samples,
			  size_t *count)
{
	struct bench_flow flow = flow_for(limit);
	int64_t deadline = bench_now() + duration, start, end;
	uint64_t part = 1, done = 0;
	int error;

	if (limit->ping > 0)
		part = (uint64_t)((double)duration / limit->ping / 8);
	if (part < 1)
		part = 1;
	/* The first ping after a pause measures waking up. */
	error = bench_stream_ping(&limit->stream, &flow, 1, samples);
	do {
		if (part > BENCH_SAMPLES - done)
			part = BENCH_SAMPLES - done;
		start = bench_now();
		if (!error)
			error = bench_stream_ping(&limit->stream, &flow, part, samples + done);
		end = bench_now();
		done += part;
		limit->ping = (double)(end - start) / (double)part;
	} while (!error && end < deadline && done < BENCH_SAMPLES);
	*count = done;
	return error;
}

/* ---- memcpy, by near ---------------------------------------------------------------------- */

static int near_row(struct bench_limit *limit, const char *transport, char text[BENCH_TEXT])
{
	struct bench_order order = {
		.what = BENCH_LIMIT,
		.row = limit->row,
		.pid = limit->other,
		.address = limit->other_address,
	};
	struct bench_answer answer;
	int error;

	snprintf(order.text, sizeof(order.text), "%s", transport);
	error = bench_ask(limit->near, &order, &answer);
	if (error)
		memcpy(text, answer.text, BENCH_TEXT);
	return error;
}

static int near_bandwidth(struct bench_limit *limit, int64_t duration, double *out)
{
	struct bench_order order = { .what = BENCH_LIMIT_BANDWIDTH, .duration = duration };
	struct bench_answer answer;
	int error = bench_ask(limit->near, &order, &answer);

	if (!error)
		*out = (double)answer.bytes / (double)answer.ns;
	limit->parts = answer.parts;
	return error;
}

static int near_latency(struct bench_limit *limit, int64_t duration, uint64_t *samples,
			size_t *count)
{
	struct bench_order order = { .what = BENCH_LIMIT_LATENCY, .duration = duration };
	struct bench_answer answer;
	int error = bench_ask(limit->near, &order, &answer);

	if (error)
		return error;
	*count = answer.count;
	memcpy(samples, limit->near_samples, *count * sizeof(*samples));
	return 0;
}

/* ---- all kinds ------------------------------------------------------------------------------- */

/* Choose the call size that moves the most; this also gives the first estimate of the rate. */
static int choose_call(struct bench_limit *limit)
{
	double best = 0, bandwidth;
	uint64_t call = BENCH_CALL_LEAST;
	int error = 0;

	for (int pass = 0; !error && pass < 2; pass++) {
		limit->call = BENCH_CALL_LEAST;
		for (; !error && limit->call <= BENCH_CALL_MOST; limit->call *= 2) {
			error = stream_bandwidth(limit, 4000000, &bandwidth);
			if (error || bandwidth <= best)
				continue;
			best = bandwidth;
			call = limit->call;
		}
	}
	limit->call = call;
	return error;
}

/* Warm up: touch every page, and learn the speed well enough to size a slice. */
static int warm_up(struct bench_limit *limit, char text[BENCH_TEXT])
{
	uint64_t samples[8] = { 0 };
	int error = 0;

	limit->rate = limit->ping = 0;
	limit->next = 0;
	if (limit->kind == BENCH_LIMIT_STREAM) {
		struct bench_flow flow;
		bool large;

		error = choose_call(limit);
		flow = flow_for(limit);
		large = flow.bytes > limit->call;
		if (!error)
			error = bench_stream_ping(&limit->stream, &flow, large ? 1 : 8, samples);
		bench_sort(samples, 8);
		limit->ping = (double)bench_percentile(samples, 8, large ? 1 : 0.5);
	} else {
		for (uint64_t i = 0; !error && i < limit->row.layout.batches; i++)
			error = one_batch(limit);
	}
	return error ? limit_fail(error, limit->name, text) : 0;
}

static bool by_driver(const struct bench_limit *limit)
{
	return limit->kind == BENCH_LIMIT_DRIVER || limit->kind == BENCH_LIMIT_KERNEL;
}

bool bench_limit_by_near(const struct bench_limit *limit)
{
	return (limit->kind == BENCH_LIMIT_MEMCPY || by_driver(limit)) && limit->near;
}

int bench_limit_row(struct bench_limit *limit, const struct bench_row *row, const char *transport,
		    const char *detail, char text[BENCH_TEXT])
{
	int error;

	bench_walk_free(&limit->walk);
	limit->row = *row;
	limit->kind = kind_for(limit, transport, detail);
	limit->name = name_for(limit->kind, row->op, limit->stream.tls);
	if (limit->kind == BENCH_LIMIT_NONE)
		return 0;
	if (bench_limit_by_near(limit))
		return near_row(limit, transport, text);
	if (by_driver(limit))
		return bench_gpu_row(&limit->gpu, &limit->gpu_setup, row, limit->lent, text);
	error = bench_walk_new(&row->layout, &limit->walk);
	if (error)
		return limit_fail(error, "a list of blocks", text);
	error = map_all(limit, text);
	if (!error && limit->kind == BENCH_LIMIT_STREAM) {
		limit->stream.process = limit->process;
		if (limit->stream.tls)
			limit->stream.cipher = cipher_of(detail);
		error = walk_far(limit, text);
		if (!error)
			error = bench_stream_connect(&limit->stream,
						     row->connections ? row->connections : 1, text);
	}
	return error ? error : warm_up(limit, text);
}

int bench_limit_bandwidth(struct bench_limit *limit, int64_t duration, double *out)
{
	if (bench_limit_by_near(limit))
		return near_bandwidth(limit, duration, out);
	if (by_driver(limit))
		return bench_gpu_bandwidth(limit->gpu, duration, &limit->parts, out);
	return limit->kind == BENCH_LIMIT_STREAM ? stream_bandwidth(limit, duration, out) :
	       limit->kind == BENCH_LIMIT_MEMCPY ? copy_bandwidth(limit, duration, out) :
						   vm_bandwidth(limit, duration, out);
}

int bench_limit_latency(struct bench_limit *limit, int64_t duration, uint64_t *samples,
			size_t *count)
{
	if (bench_limit_by_near(limit))
		return near_latency(limit, duration, samples, count);
	if (by_driver(limit))
		return bench_gpu_latency(limit->gpu, duration, samples, count);
	return limit->kind == BENCH_LIMIT_STREAM ? stream_latency(limit, duration, samples, count) :
						   copy_latency(limit, duration, samples, count);
}

void bench_limit_close(struct bench_limit *limit)
{
	bench_stream_close(&limit->stream);
	bench_gpu_close(limit->gpu);
	limit->gpu = NULL;
	for (int side = 0; side < 2; side++)
		unmap_side(limit, side);
	bench_walk_free(&limit->walk);
}
