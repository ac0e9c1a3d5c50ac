/* SPDX-License-Identifier: Apache-2.0 */
/* The limits of rows with GPU memory: the driver's own copy (cuMemcpyAsync) of the whole batch, and
 * for blocks the better of that and the bare kernel with its lists on the GPU already. Near
 * measures them, on the test's own memory where this process has it, otherwise on memory of the
 * same kind. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/kernel-images.h"
#include "kernels/blocks.h"

#include "bench/bench.h"
#include "gpu.h"

#define FLIGHTS 64 /* events */
#define SMALL (256u << 10) /* batches below that share events */
#define STREAM_NON_BLOCKING 1
#define EVENT_DISABLE_TIMING 2
#define ATTRIBUTE_PROCESSORS 16
#define ATTRIBUTE_MAJOR 75
#define ATTRIBUTE_MINOR 76
#define PEER_ACCESS_ALREADY_ENABLED 704

/* One direction of a row: 0 forward; 1 back, where both ways go at once. */
struct way {
	char *from, *to;
	/* on the GPU: the source offsets of all blocks, then the target offsets */
	uint64_t lists;
	void *list_memory;
	uint32_t ctas;
	void *stream;
};

struct bench_gpu_limit {
	struct gpu *gpu;
	struct wh_engine *engine;
	struct bench_row row;
	int ordinal; /* of the GPU that works */
	bool kernel, synchronous;
	bool contiguous; /* for the moment, instead of the kernel: the driver copies as many bytes
			  */
	struct way way[2];
	int ways;
	void *twin[4];
	struct memory twin_memory[4];
	uint64_t twin_length[4];
	void *event[FLIGHTS];
	void *module;
	void *function;
	uint64_t next; /* batch of the walk */
};

/* ---- memory ------------------------------------------------------------------------------- */

/* Memory of the same kind for a limit, such that any GPU can reach any other's. */
static struct memory twin_of(const struct memory *memory)
{
	struct memory twin = *memory;

	twin.kind = memory_on_gpu(memory->kind) ? WH_MEMORY_DEVICE : WH_MEMORY_PINNED;
	return twin;
}

static int twin_make(struct bench_gpu_limit *limit, int index, const struct memory *memory,
		     uint64_t length)
{
	struct memory twin = twin_of(memory);
	int error = 0;

	if (limit->twin[index] && limit->twin_length[index] >= length &&
	    limit->twin_memory[index].kind == twin.kind &&
	    !strcmp(limit->twin_memory[index].location, twin.location))
		return 0;
	if (limit->twin[index])
		wh_memory_free(limit->engine, limit->twin[index]);
	limit->twin[index] = NULL;
	error = memory_alloc(limit->engine, &twin, length, &limit->twin[index]);
	limit->twin_memory[index] = twin;
	limit->twin_length[index] = length;
	return error;
}

/* Can a kernel and a copy of this process use the memory as it is? A mapping of another GPU's
 * cuMemCreate memory exists in the engine's own context only once it has been used there. */
static bool memory_is_lendable(const struct memory *memory, bool local)
{
	return memory->kind == WH_MEMORY_DEVICE || memory->kind == WH_MEMORY_PINNED ||
	       memory->kind == WH_MEMORY_MAPPED || (local && memory->kind == WH_MEMORY_VMM);
}

static int limit_provide(struct bench_gpu_limit *limit, void *const lent[BENCH_SIDES],
			 char text[BENCH_TEXT])
{
	const struct bench_row *row = &limit->row;
	const struct memory *memory[4] = { &row->source, &row->target, &row->target, &row->source };
	static const int sides[4] = { BENCH_SOURCE, BENCH_TARGET, BENCH_BACK_SOURCE,
				      BENCH_BACK_TARGET };
	bool write = row->op == WH_WRITE;

	for (int i = 0; i < 2 * limit->ways; i++) {
		bool target = i & 1, local = (i == 0 || i == 3) == write;
		uint64_t length = target ? row->layout.target_length : row->layout.source_length;
		char *address = lent[sides[i]];
		int error = 0;

		if (!address || !memory_is_lendable(memory[i], local)) {
			error = twin_make(limit, i, memory[i], length);
			address = limit->twin[i];
		}
		if (error) {
			snprintf(text, BENCH_TEXT, "memory for the limit: %s", wh_error_text());
			return error;
		}
		*(target ? &limit->way[i / 2].to : &limit->way[i / 2].from) = address;
	}
	return 0;
}

/* ---- the kernel --------------------------------------------------------------------------- */

/* The machine code for the GPU's own major version, or else the PTX. */
static int kernel_load(struct bench_gpu_limit *limit)
{
	static const char *const names[] = WH_BLOCKS_NAMES;
	struct gpu *gpu = limit->gpu;
	int device, major, minor, error = gpu_call(gpu, cuDeviceGet, &device, limit->ordinal);

	if (!error)
		error = gpu_call(gpu, cuDeviceGetAttribute, &major, ATTRIBUTE_MAJOR, device);
	if (!error)
		error = gpu_call(gpu, cuDeviceGetAttribute, &minor, ATTRIBUTE_MINOR, device);
	for (int i = WH_CUDA_IMAGES - 2; !error && !limit->module && i >= 0; i--)
		if (wh_cuda_images[i].capability / 10 == major &&
		    wh_cuda_images[i].capability <= 10 * major + minor &&
		    gpu->cuModuleLoadData(&limit->module, wh_cuda_images[i].bytes))
			limit->module = NULL;
	if (!error && !limit->module)
		error = gpu_call(gpu, cuModuleLoadData, &limit->module,
				 wh_cuda_images[WH_CUDA_IMAGES - 1].bytes);
	if (!error)
		error = gpu_call(gpu, cuModuleGetFunction, &limit->function, limit->module,
				 names[wh_blocks_widest(limit->row.layout.size)]);
	return error;
}

/* The kernel's way for the row, with the usual number of CTAs. */
static enum wh_blocks_way way_of(const struct bench_gpu_limit *limit, bool back)
{
	const struct memory *source = back ? &limit->row.target : &limit->row.source;
	const struct memory *target = back ? &limit->row.source : &limit->row.target;

	if (!memory_on_gpu(source->kind))
		return WH_BLOCKS_FROM_HOST;
	if (!memory_on_gpu(target->kind))
		return WH_BLOCKS_TO_HOST;
	if (!strcmp(source->location, target->location))
		return WH_BLOCKS_WITHIN;
	return (limit->row.op == WH_WRITE) != back ? WH_BLOCKS_PUSH : WH_BLOCKS_PULL;
}

/* Copy the offsets of the whole walk to the GPU. */
static int lists_upload(struct bench_gpu_limit *limit, struct way *way)
{
	const struct bench_layout *layout = &limit->row.layout;
	uint64_t bytes = bench_layout_slots(layout) * sizeof(uint64_t);
	struct memory memory = { .kind = WH_MEMORY_DEVICE };
	struct bench_walk walk;
	int error;

	snprintf(memory.location, sizeof(memory.location), "cuda:%d", limit->ordinal);
	error = memory_alloc(limit->engine, &memory, 2 * bytes, &way->list_memory);
	if (error) {
		snprintf(limit->gpu->text, sizeof(limit->gpu->text), "the lists: %.140s",
			 wh_error_text());
		return error;
	}
	error = bench_walk_new(layout, &walk);
	if (error)
		return error;
	way->lists = (uint64_t)(uintptr_t)way->list_memory;
	error = gpu_copy(limit->gpu, way->list_memory, walk.source, bytes);
	if (!error)
		error = gpu_copy(limit->gpu, (char *)way->list_memory + bytes, walk.target, bytes);
	bench_walk_free(&walk);
	return error;
}

static int kernel_prepare(struct bench_gpu_limit *limit, uint32_t ctas)
{
	int device, processors, error = kernel_load(limit);

	if (!error)
		error = gpu_call(limit->gpu, cuDeviceGet, &device, limit->ordinal);
	if (!error)
		error = gpu_call(limit->gpu, cuDeviceGetAttribute, &processors,
				 ATTRIBUTE_PROCESSORS, device);
	for (int i = 0; !error && i < limit->ways; i++) {
		limit->way[i].ctas = ctas ? ctas :
					    wh_blocks_ctas(wh_blocks_widest(limit->row.layout.size),
							   way_of(limit, i), limit->row.layout.size,
							   (uint32_t)processors, false);
		error = lists_upload(limit, &limit->way[i]);
	}
	return error;
}

static int kernel_launch(struct bench_gpu_limit *limit, const struct way *way, uint64_t batch)
{
	const struct bench_layout *layout = &limit->row.layout;
	uint64_t slots = bench_layout_slots(layout), first = batch * layout->blocks;
	struct wh_blocks_job job = {
		.source_offsets = way->lists + 8 * first,
		.target_offsets = way->lists + 8 * (slots + first),
		.block_length = layout->size,
		.count = (uint32_t)layout->blocks,
		.base_count = 1,
		.source_base = { (uint64_t)(uintptr_t)way->from },
		.target_base = { (uint64_t)(uintptr_t)way->to },
	};
	void *parameters[] = { &job };
	uint32_t grid = wh_blocks_shape(&job, wh_blocks_widest(layout->size), way->ctas);

	if (!grid) {
		snprintf(limit->gpu->text, sizeof(limit->gpu->text),
			 "the batch is too much for one launch of the kernel");
		return -E2BIG;
	}
	return gpu_call(limit->gpu, cuLaunchKernel, limit->function, grid, 1, 1, WH_BLOCKS_THREADS,
			1, 1, 0, way->stream, parameters, NULL);
}

/* ---- batches ------------------------------------------------------------------------------ */

/* Start the next batch. Batches alternate between the two ways, if there are two. */
static struct way *batch_start(struct bench_gpu_limit *limit, int *error)
{
	const struct bench_layout *layout = &limit->row.layout;
	struct way *way = &limit->way[limit->next % (uint64_t)limit->ways];
	uint64_t batch = limit->next / (uint64_t)limit->ways % layout->batches;
	uint64_t bytes = bench_layout_bytes(layout);

	limit->next++;
	if (limit->contiguous)
		*error = gpu_call(
			limit->gpu, cuMemcpyAsync, (uint64_t)(uintptr_t)way->to + batch * bytes,
			(uint64_t)(uintptr_t)way->from + batch * bytes, bytes, way->stream);
	else if (limit->kernel)
		*error = kernel_launch(limit, way, batch);
	else
		*error = gpu_call(limit->gpu, cuMemcpyAsync,
				  (uint64_t)(uintptr_t)way->to + layout->guard +
					  batch * layout->target_stride,
				  (uint64_t)(uintptr_t)way->from + batch * layout->source_stride,
				  bytes, way->stream);
	return way;
}

static int batches_drain(struct bench_gpu_limit *limit)
{
	int error = 0;

	for (int i = 0; i < limit->ways; i++) {
		int end = gpu_call(limit->gpu, cuStreamSynchronize, limit->way[i].stream);

		error = error ? error : end;
	}
	return error;
}

/* As many batches in flight as the test has. Small ones share events, a quarter of them each, since
 * recording one costs as much as starting a copy; with two ways it is the last one's. */
static int batches_bandwidth(struct bench_gpu_limit *limit, int64_t duration, double *out)
{
	uint64_t most = limit->row.depth * (uint64_t)limit->ways, done = 0, groups = 0;
	uint64_t share = bench_layout_bytes(&limit->row.layout) < SMALL ? 4 : most;
	uint64_t group = most > share ? most / share : 1, depth = most / group;
	int64_t begin = bench_now();
	struct bench_pace pace = { .deadline = begin + duration, .last = begin };
	int error = gpu_enter(limit->gpu, limit->ordinal), end;

	if (error)
		return error;
	if (depth > FLIGHTS)
		depth = FLIGHTS;
	do {
		void *event = limit->event[groups % depth];
		struct way *way = NULL;

		if (groups >= depth)
			error = gpu_call(limit->gpu, cuEventSynchronize, event);
		for (uint64_t i = 0; !error && i < group; i++, done++)
			way = batch_start(limit, &error);
		if (!error && way)
			error = gpu_call(limit->gpu, cuEventRecord, event, way->stream);
		groups++;
	} while (!error && !bench_pace_over(&pace));
	end = batches_drain(limit);
	*out = (double)(done * bench_layout_bytes(&limit->row.layout)) /
	       (double)(bench_now() - begin);
	gpu_leave(limit->gpu);
	return error ? error : end;
}

int bench_gpu_bandwidth(struct bench_gpu_limit *limit, int64_t duration,
			struct bench_limit_parts *parts, double *out)
{
	int error;

	*parts = (struct bench_limit_parts){ NAN, NAN };
	if (!limit->kernel)
		return batches_bandwidth(limit, duration, out);
	error = batches_bandwidth(limit, duration / 2, &parts->kernel);
	limit->contiguous = true;
	if (!error)
		error = batches_bandwidth(limit, duration / 2, &parts->copy);
	limit->contiguous = false;
	*out = fmax(parts->kernel, parts->copy);
	return error;
}

/* Start one batch and wait for it. Between host and GPU the driver's synchronous copy is fastest;
 * between GPUs it does not wait. */
static int batch_run(struct bench_gpu_limit *limit)
{
	const struct bench_layout *layout = &limit->row.layout;
	struct way *way = &limit->way[limit->next % (uint64_t)limit->ways];
	uint64_t batch = limit->next / (uint64_t)limit->ways % layout->batches;
	int error;

	if (!limit->synchronous) {
		way = batch_start(limit, &error);
		return error ? error : gpu_call(limit->gpu, cuStreamSynchronize, way->stream);
	}
	limit->next++;
	return gpu_call(limit->gpu, cuMemcpy,
			(uint64_t)(uintptr_t)way->to + layout->guard +
				batch * layout->target_stride,
			(uint64_t)(uintptr_t)way->from + batch * layout->source_stride,
			bench_layout_bytes(layout));
}

int bench_gpu_latency(struct bench_gpu_limit *limit, int64_t duration, uint64_t *samples,
		      size_t *count)
{
	int error = gpu_enter(limit->gpu, limit->ordinal);
	int64_t deadline, begin, end;
	size_t n = 0;

	if (error)
		return error;
	/* The first batch after a pause measures waking up. */
	for (int i = 0; !error && i < 2; i++)
		error = batch_run(limit);
	deadline = bench_now() + duration;
	do {
		begin = bench_now();
		if (!error)
			error = batch_run(limit);
		end = bench_now();
		samples[n++] = (uint64_t)(end - begin);
	} while (!error && n < BENCH_SAMPLES && end < deadline);
	gpu_leave(limit->gpu);
	*count = n;
	return error;
}

/* ---- a row -------------------------------------------------------------------------------- */

/* Near's GPU works or, if near's side is host memory, the other side's. */
static int limit_choose_gpu(struct bench_gpu_limit *limit)
{
	const struct bench_row *row = &limit->row;
	bool write = row->op == WH_WRITE, source = memory_on_gpu(row->source.kind);
	bool target = memory_on_gpu(row->target.kind);
	bool at_source = source && (write || !target);
	struct gpu *gpu = limit->gpu;
	int other, error = gpu_of(gpu, at_source ? limit->way[0].from : limit->way[0].to,
				  &limit->ordinal);

	limit->kernel = row->form != BENCH_FORM_SINGLE;
	limit->synchronous = !limit->kernel && !(source && target);
	if (!error)
		error = gpu_enter(gpu, limit->ordinal);
	if (error || !source || !target)
		return error;
	error = gpu_of(gpu, at_source ? limit->way[0].to : limit->way[0].from, &other);
	if (!error && other != limit->ordinal) {
		/* Creates the context. */
		error = gpu_enter(gpu, other);
		if (!error)
			gpu_leave(gpu);
		/* Copies work without peer access, by way of the host. */
		if (!error && gpu->cuCtxEnablePeerAccess(gpu->context[other], 0) !=
				      PEER_ACCESS_ALREADY_ENABLED)
			gpu->text[0] = '\0';
	}
	if (error)
		gpu_leave(gpu);
	return error;
}

static int limit_prepare(struct bench_gpu_limit *limit, uint32_t ctas)
{
	struct gpu *gpu = limit->gpu;
	int error = 0;

	for (int i = 0; !error && i < limit->ways; i++)
		error = gpu_call(gpu, cuStreamCreate, &limit->way[i].stream, STREAM_NON_BLOCKING);
	for (int i = 0; !error && i < FLIGHTS; i++)
		error = gpu_call(gpu, cuEventCreate, &limit->event[i], EVENT_DISABLE_TIMING);
	if (!error && limit->kernel)
		error = kernel_prepare(limit, ctas);
	/* Touch every page and run the kernel once. */
	for (uint64_t i = 0; !error && i < limit->row.layout.batches * (uint64_t)limit->ways; i++)
		error = batch_run(limit);
	return error;
}

/* Release what a row has besides memory. */
static void row_end(struct bench_gpu_limit *limit)
{
	struct gpu *gpu = limit->gpu;
	bool entered = limit->way[0].stream && !gpu_enter(gpu, limit->ordinal);

	for (int i = 0; i < 2; i++) {
		struct way *way = &limit->way[i];

		if (way->stream)
			gpu->cuStreamSynchronize(way->stream);
		if (way->stream)
			gpu->cuStreamDestroy(way->stream);
		if (way->list_memory)
			wh_memory_free(limit->engine, way->list_memory);
		*way = (struct way){ 0 };
	}
	for (int i = 0; i < FLIGHTS; i++) {
		if (limit->event[i])
			gpu->cuEventDestroy(limit->event[i]);
		limit->event[i] = NULL;
	}
	if (limit->module)
		gpu->cuModuleUnload(limit->module);
	limit->module = limit->function = NULL;
	if (entered)
		gpu_leave(gpu);
}

int bench_gpu_row(struct bench_gpu_limit **at, const struct bench_gpu_setup *setup,
		  const struct bench_row *row, void *const lent[BENCH_SIDES], char text[BENCH_TEXT])
{
	struct bench_gpu_limit *limit = *at;
	int error;

	if (!limit)
		*at = limit = calloc(1, sizeof(*limit));
	if (!limit) {
		snprintf(text, BENCH_TEXT, "no memory for the limit");
		return -ENOMEM;
	}
	limit->gpu = setup->gpu;
	limit->engine = setup->engine;
	row_end(limit);
	limit->row = *row;
	limit->ways = row->both_ways ? 2 : 1;
	limit->next = 0;
	error = limit_provide(limit, lent, text);
	if (error)
		return error;
	error = limit_choose_gpu(limit);
	if (!error) {
		error = limit_prepare(limit, setup->ctas);
		gpu_leave(limit->gpu);
	}
	if (error)
		snprintf(text, BENCH_TEXT, "the limit: %s", limit->gpu->text);
	return error;
}

void bench_gpu_close(struct bench_gpu_limit *limit)
{
	if (!limit)
		return;
	row_end(limit);
	for (int i = 0; i < 4; i++)
		if (limit->twin[i])
			wh_memory_free(limit->engine, limit->twin[i]);
	free(limit);
}
