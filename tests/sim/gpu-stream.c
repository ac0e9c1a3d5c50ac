/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of GPUs: copies, kernels, values and events, which end in their order. */
#include <string.h>

#include "calls.h"
#include "gpu.h"
#include "kernels/blocks.h"

#define STAGED ((size_t)64 << 10) /* pageable memory up to this is read by the call */
#define BYTES_PER_US 20000
#define VALUE_AGAIN 5000 /* ns, until a stream looks at a value again */

enum op_kind { OP_MOVE, OP_KERNEL, OP_FILL, OP_STORE, OP_AWAIT, OP_FOLLOW, OP_RECORD };

struct piece {
	uint64_t to, from;
	size_t length;
};

struct op {
	struct op *next;
	enum op_kind kind;
	/* OP_MOVE: in any order. OP_FILL, OP_STORE, OP_AWAIT: the address is the first one's `to`
	 */
	struct piece *pieces;
	size_t count;
	uint8_t *staged; /* what `from` of the only piece was when it was submitted */
	struct wh_blocks_job job; /* OP_KERNEL */
	bool early; /* OP_KERNEL: it may begin before the one in front of it has ended */
	uint32_t value, flags;
	const struct gpu_stream *other; /* OP_FOLLOW */
	uint64_t until;
	uint64_t bytes, moved; /* all, and those of its first step */
	uint64_t first; /* OP_KERNEL: the block that it begins with */
};

/* Never freed. */
struct gpu_stream {
	struct gpu_stream *next;
	struct gpu_context *context;
	struct op *head, **tail;
	uint64_t submitted, done;
	bool running; /* an event is on its way */
	bool destroyed;
};

struct event {
	struct gpu_context *context;
	const struct gpu_stream *stream; /* NULL: never recorded */
	uint64_t at;
};

/* ---- moving bytes ---------------------------------------------------------------------------- */

static uint8_t *reach(const struct gpu_context *context, const struct op *op, uint64_t address,
		      size_t *length)
{
	uint8_t *bytes = gpu_translate(context, address, length, op->kind == OP_KERNEL);

	if (!bytes)
		sim_fail("gpu", "%s on cuda:%d of node %d touches %#llx, which it does not reach",
			 op->kind == OP_KERNEL ? "a kernel" : "a copy", context->device,
			 context->node, (unsigned long long)address);
	return bytes;
}

/* `staged`: the bytes of `from`, or NULL. Pageable memory has no range. */
static void move(const struct gpu_context *context, const struct op *op, uint64_t to, uint64_t from,
		 size_t length)
{
	while (length) {
		size_t piece = length;
		const uint8_t *source;
		uint8_t *target;

		source = op->staged ? op->staged + (from - op->pieces->from) :
				      reach(context, op, from, &piece);
		target = op->flags ? (uint8_t *)(uintptr_t)to : reach(context, op, to, &piece);
		memmove(target, source, piece);
		to += piece;
		from += piece;
		length -= piece;
	}
}

static uint64_t load_word(const struct gpu_context *context, const struct op *op, uint64_t list,
			  uint64_t index)
{
	size_t length = sizeof(uint64_t);
	const uint8_t *at = reach(context, op, list + 8 * index, &length);
	uint64_t word;

	memcpy(&word, at, sizeof(word));
	return word;
}

/* Bytes [from, end) of all that the kernel moves, in the order that it takes the blocks in. */
static void kernel_move(const struct gpu_context *context, const struct op *op, uint64_t from,
			uint64_t end)
{
	const struct wh_blocks_job *job = &op->job;
	uint64_t length = job->block_length, blocks = (uint64_t)job->count * job->base_count;

	while (from < end) {
		uint64_t block = (from / length + op->first) % blocks, skip = from % length;
		uint64_t base = block / job->count, index = block % job->count;
		uint64_t piece = length - skip < end - from ? length - skip : end - from;
		uint64_t source = job->source_bases ?
					  load_word(context, op, job->source_bases, base) :
					  job->source_base[base];
		uint64_t target = job->target_bases ?
					  load_word(context, op, job->target_bases, base) :
					  job->target_base[base];

		source += job->source_offsets ? load_word(context, op, job->source_offsets, index) :
						job->source_stride * index;
		target += job->target_offsets ? load_word(context, op, job->target_offsets, index) :
						job->target_stride * index;
		move(context, op, target + skip, source + skip, piece);
		from += piece;
	}
}

static void pieces_move(const struct gpu_context *context, const struct op *op, uint64_t from,
			uint64_t end)
{
	uint64_t at = 0;

	for (size_t i = 0; i < op->count && at < end; at += op->pieces[i++].length) {
		const struct piece *piece = &op->pieces[i];
		uint64_t begin = from > at ? from - at : 0;
		uint64_t stop = end - at < piece->length ? end - at : piece->length;

		if (begin < stop)
			move(context, op, piece->to + begin, piece->from + begin, stop - begin);
	}
}

/* Bytes [from, end) of all that it moves. */
static void op_move(const struct gpu_context *context, const struct op *op, uint64_t from,
		    uint64_t end)
{
	if (op->kind == OP_KERNEL)
		kernel_move(context, op, from, end);
	else
		pieces_move(context, op, from, end);
	sim_counts.gpu_bytes += end - from;
}

static uint32_t *word_at(const struct gpu_context *context, const struct op *op, uint64_t address)
{
	size_t length = sizeof(uint32_t);

	return (uint32_t *)(void *)reach(context, op, address, &length);
}

static bool value_has_come(const struct gpu_context *context, const struct op *op)
{
	uint32_t is = *word_at(context, op, op->pieces->to);

	return op->flags == CUDA_STREAM_WAIT_EQ ? is == op->value : (int32_t)(is - op->value) >= 0;
}

/* What its end makes visible. */
static void op_end(const struct gpu_context *context, const struct op *op)
{
	size_t length;

	switch (op->kind) {
	case OP_FILL:
		length = op->pieces->length;
		memset(reach(context, op, op->pieces->to, &length), (int)op->value,
		       op->pieces->length);
		break;
	case OP_STORE:
		*word_at(context, op, op->pieces->to) = op->value;
		break;
	case OP_KERNEL:
		if (op->job.flag)
			*word_at(context, op, op->job.flag) = op->job.flag_value;
		break;
	default:
		break;
	}
}

/* ---- running --------------------------------------------------------------------------------- */

static void stream_step(void *arg);

static void stream_kick(struct gpu_stream *stream)
{
	const struct op *op = stream->head;
	int64_t ns;

	if (stream->running || !op || (op->kind == OP_FOLLOW && op->other->done < op->until))
		return;
	ns = 500 + (int64_t)sim_draw_world((uint64_t)sim_options.gpu_us * 2000);
	ns += (int64_t)(op->bytes * 500 / BYTES_PER_US); /* half of it: there are two steps */
	if (sim_chance(sim_options.gpu_late))
		ns += (int64_t)sim_draw_world(20 * SIM_MS);
	stream->running = true;
	event_at(sim_time + ns, stream_step, stream);
}

/* Streams of the process may have waited for that. */
static void process_kick(int node)
{
	for (int i = 0; i < GPUS; i++)
		for (struct gpu_stream *s = gpu_process(node)->contexts[i].streams; s; s = s->next)
			stream_kick(s);
}

static void op_free(struct op *op)
{
	free(op->pieces);
	free(op->staged);
	free(op);
}

static void stream_pop(struct gpu_stream *stream)
{
	struct op *op = stream->head;

	stream->head = op->next;
	if (!stream->head)
		stream->tail = &stream->head;
	stream->done++;
	op_free(op);
}

/* A part of what it moves, and maybe of the launch behind it. */
static void op_begin(const struct gpu_stream *stream, struct op *op)
{
	struct op *next = op->next;

	op->moved = 1 + sim_draw_world(op->bytes - 1);
	op_move(stream->context, op, 0, op->moved);
	if (next && next->early && op->kind == OP_KERNEL && !next->moved && next->bytes > 1 &&
	    sim_draw_world(2)) {
		next->moved = 1 + sim_draw_world(next->bytes - 1);
		op_move(stream->context, next, 0, next->moved);
	}
}

static void stream_step(void *arg)
{
	struct gpu_stream *stream = arg;
	struct gpu_context *context = stream->context;
	int64_t stalled = gpu_of(sim_node_host(context->node), context->device)->stalled_until;
	struct op *op = stream->head;

	stream->running = false;
	if (!op) /* its context has failed */
		return;
	if (stalled > sim_time || (op->kind == OP_AWAIT && !value_has_come(context, op))) {
		stream->running = true;
		event_at(stalled > sim_time ? stalled : sim_time + VALUE_AGAIN, stream_step,
			 stream);
		return;
	}
	if (op->bytes > 1 && !op->moved) {
		op_begin(stream, op);
		if ((int)sim_draw_world(100000) < sim_options.gpu_fails)
			gpu_context_fail(context, sim_draw_world(2) ? CUDA_LAUNCH_FAILED :
								      CUDA_ECC_UNCORRECTABLE);
		stream_kick(stream);
		return;
	}
	if (op->bytes)
		op_move(context, op, op->moved, op->bytes);
	op_end(context, op);
	sim_counts.gpu_operations++;
	stream_pop(stream);
	process_kick(context->node);
}

void gpu_streams_drop(struct gpu_context *context)
{
	for (struct gpu_stream *s = context->streams; s; s = s->next)
		while (s->head)
			stream_pop(s);
	process_kick(context->node);
}

/* ---- submitting ------------------------------------------------------------------------------ */

static struct op *op_new(enum op_kind kind, size_t pieces)
{
	struct op *op = calloc(1, sizeof(*op));

	op->kind = kind;
	op->pieces = pieces ? calloc(pieces, sizeof(*op->pieces)) : NULL;
	op->count = pieces;
	return op;
}

static void stream_submit(struct gpu_stream *stream, struct op *op)
{
	*stream->tail = op;
	stream->tail = &op->next;
	stream->submitted++;
	stream_kick(stream);
	/* Who waits for it polls anew. */
	sim_worked();
}

/* The stream of a handle, NULL for the current context's own; or NULL and the error. */
static struct gpu_stream *stream_enter(const char *call, CUstream handle, int *error)
{
	struct gpu_stream *stream = (struct gpu_stream *)handle;
	struct gpu_context *context = gpu_enter(call, error);

	if (!stream && context) {
		if (!context->null) {
			context->null = calloc(1, sizeof(*context->null));
			context->null->context = context;
			context->null->tail = &context->null->head;
			context->null->next = context->streams;
			context->streams = context->null;
		}
		return context->null;
	}
	if (stream && stream->destroyed)
		sim_fail("gpu", "%s with a stream that was destroyed", call);
	if (stream && !*error)
		*error = stream->context->error;
	return *error ? NULL : stream;
}

static bool stream_reached(const struct fiber *fiber)
{
	return ((const struct gpu_stream *)fiber->on)->done >= (uint64_t)fiber->value;
}

static int stream_wait(const struct gpu_stream *stream, uint64_t until)
{
	if (stream->done < until)
		fiber_block(stream_reached, stream, (int64_t)until, INT64_MAX, "a GPU");
	return stream->context->error;
}

void gpu_context_wait(struct gpu_context *context)
{
	for (const struct gpu_stream *s = context->streams; s; s = s->next)
		stream_wait(s, s->submitted);
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* One copy. The driver reads pageable memory at once, and waits until it has been written. */
static int copy(const char *call, uint64_t to, uint64_t from, size_t length, CUstream handle,
		bool wait)
{
	int error;
	struct gpu_stream *stream = stream_enter(call, handle, &error);
	struct op *op;

	if (!stream || !length)
		return error;
	op = op_new(OP_MOVE, 1);
	*op->pieces = (struct piece){ to, from, length };
	op->bytes = length;
	if (!gpu_range_find(stream->context->node, from)) {
		op->staged = malloc(length);
		memcpy(op->staged, (const void *)(uintptr_t)from, length);
		wait = wait || length > STAGED;
	}
	if (!gpu_range_find(stream->context->node, to))
		op->flags = wait = true; /* `to` is pageable */
	stream_submit(stream, op);
	return wait ? stream_wait(stream, stream->submitted) : 0;
}

int gpu_memcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	return copy("cuMemcpy", to, from, bytes, NULL, true);
}

int gpu_memcpy_to_device(CUdeviceptr to, const void *from, size_t bytes)
{
	return copy("cuMemcpyHtoD", to, (uintptr_t)from, bytes, NULL, true);
}

int gpu_memcpy_to_host(void *to, CUdeviceptr from, size_t bytes)
{
	return copy("cuMemcpyDtoH", (uintptr_t)to, from, bytes, NULL, true);
}

int gpu_memcpy_async(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	return copy("cuMemcpyAsync", to, from, bytes, stream, false);
}

int gpu_memcpy_to_device_async(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	return copy("cuMemcpyHtoDAsync", to, (uintptr_t)from, bytes, stream, false);
}

int gpu_memcpy_to_host_async(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	return copy("cuMemcpyDtoHAsync", (uintptr_t)to, from, bytes, stream, false);
}

int gpu_memcpy_peer_async(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
			  CUcontext from_context, size_t bytes, CUstream stream)
{
	(void)to_context;
	(void)from_context;
	return copy("cuMemcpyPeerAsync", to, from, bytes, stream, false);
}

/* The copies of one call may run in any order. */
int gpu_memcpy_batch_async(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
			   struct wh_cuda_copy_attributes *attributes, size_t *first,
			   size_t attribute_count, CUstream handle)
{
	int error;
	struct gpu_stream *stream = stream_enter("cuMemcpyBatchAsync", handle, &error);
	struct op *op;

	(void)first;
	if (!stream)
		return error;
	if (sim_options.gpu_plain)
		return CUDA_NOT_SUPPORTED;
	if (!count || !attribute_count || attributes->order != CUDA_COPY_IN_STREAM_ORDER)
		return CUDA_INVALID_VALUE;
	op = op_new(OP_MOVE, count);
	for (size_t i = 0; i < count; i++) {
		size_t at = sim_draw_world(i + 1);

		op->pieces[i] = op->pieces[at];
		op->pieces[at] = (struct piece){ to[i], from[i], bytes[i] };
		op->bytes += bytes[i];
	}
	stream_submit(stream, op);
	return 0;
}

static int fill(const char *call, uint64_t to, unsigned char value, size_t count, CUstream handle,
		bool wait)
{
	int error;
	struct gpu_stream *stream = stream_enter(call, handle, &error);
	struct op *op;

	if (!stream || !count)
		return error;
	op = op_new(OP_FILL, 1);
	op->pieces->to = to;
	op->pieces->length = count;
	op->value = value;
	stream_submit(stream, op);
	return wait ? stream_wait(stream, stream->submitted) : 0;
}

int gpu_memset(CUdeviceptr to, unsigned char value, size_t count)
{
	return fill("cuMemsetD8", to, value, count, NULL, true);
}

int gpu_memset_async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream)
{
	return fill("cuMemsetD8Async", to, value, count, stream, false);
}

/* ---- kernels, values ------------------------------------------------------------------------- */

static int launch(const char *call, CUstream handle, void *const *parameters, bool early)
{
	int error;
	struct gpu_stream *stream = stream_enter(call, handle, &error);
	struct op *op;

	if (!stream)
		return error;
	op = op_new(OP_KERNEL, 0);
	memcpy(&op->job, parameters[0], sizeof(op->job));
	op->early = early;
	op->bytes = op->job.block_length * op->job.count * op->job.base_count;
	op->first = sim_draw_world((uint64_t)op->job.count * op->job.base_count);
	stream_submit(stream, op);
	return 0;
}

int gpu_launch_kernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
		      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
		      CUstream stream, void **parameters, void **extra)
{
	(void)function;
	(void)grid_x;
	(void)grid_y;
	(void)grid_z;
	(void)block_x;
	(void)block_y;
	(void)block_z;
	(void)shared;
	(void)extra;
	return launch("cuLaunchKernel", stream, parameters, false);
}

int gpu_launch_kernel_ex(const struct wh_cuda_launch *how, CUfunction function, void **parameters,
			 void **extra)
{
	(void)function;
	(void)extra;
	return launch("cuLaunchKernelEx", how->stream, parameters, true);
}

static int value(const char *call, enum op_kind kind, CUstream handle, uint64_t address,
		 uint32_t number, unsigned flags)
{
	int error;
	struct gpu_stream *stream = stream_enter(call, handle, &error);
	struct op *op;

	if (!stream)
		return error;
	op = op_new(kind, 1);
	op->pieces->to = address;
	op->value = number;
	op->flags = flags;
	stream_submit(stream, op);
	return 0;
}

int gpu_stream_write_value(CUstream stream, CUdeviceptr address, uint32_t number, unsigned flags)
{
	return value("cuStreamWriteValue32", OP_STORE, stream, address, number, flags);
}

int gpu_stream_wait_value(CUstream stream, CUdeviceptr address, uint32_t number, unsigned flags)
{
	return value("cuStreamWaitValue32", OP_AWAIT, stream, address, number, flags);
}

/* ---- streams --------------------------------------------------------------------------------- */

int gpu_ctx_synchronize(void)
{
	int error;
	struct gpu_context *context = gpu_enter("cuCtxSynchronize", &error);

	if (!context)
		return error;
	gpu_context_wait(context);
	return context->error;
}

int gpu_stream_create(CUstream *out, unsigned flags)
{
	return gpu_stream_create_with_priority(out, flags, 0);
}

int gpu_stream_create_with_priority(CUstream *out, unsigned flags, int priority)
{
	int error;
	struct gpu_context *context = gpu_enter("cuStreamCreateWithPriority", &error);
	struct gpu_stream *stream;

	(void)priority;
	if (!context)
		return error;
	if (flags != CUDA_STREAM_NON_BLOCKING)
		sim_die("a stream that waits for the default stream");
	if (gpu_lacks_memory("cuStreamCreateWithPriority"))
		return CUDA_OUT_OF_MEMORY;
	stream = calloc(1, sizeof(*stream));
	stream->context = context;
	stream->tail = &stream->head;
	stream->next = context->streams;
	context->streams = stream;
	gpu_process(context->node)->objects++;
	*out = (CUstream)stream;
	return 0;
}

/* It still runs what it has. */
int gpu_stream_destroy(CUstream handle)
{
	int error;
	struct gpu_stream *stream = stream_enter("cuStreamDestroy", handle, &error);

	if (!stream)
		return error;
	stream->destroyed = true;
	gpu_process(stream->context->node)->objects--;
	return 0;
}

int gpu_stream_query(CUstream handle)
{
	int error;
	const struct gpu_stream *stream = stream_enter("cuStreamQuery", handle, &error);

	if (!stream)
		return error;
	return stream->done < stream->submitted ? CUDA_NOT_READY : 0;
}

int gpu_stream_synchronize(CUstream handle)
{
	int error;
	const struct gpu_stream *stream = stream_enter("cuStreamSynchronize", handle, &error);

	return stream ? stream_wait(stream, stream->submitted) : error;
}

int gpu_stream_get_ctx(CUstream handle, CUcontext *out)
{
	int error;
	const struct gpu_stream *stream = stream_enter("cuStreamGetCtx", handle, &error);

	if (stream)
		*out = (CUcontext)stream->context;
	return error;
}

/* ---- events ---------------------------------------------------------------------------------- */

int gpu_event_create(CUevent *out, unsigned flags)
{
	int error;
	struct gpu_context *context = gpu_enter("cuEventCreate", &error);
	struct event *event;

	(void)flags;
	if (!context)
		return error;
	if (gpu_lacks_memory("cuEventCreate"))
		return CUDA_OUT_OF_MEMORY;
	event = calloc(1, sizeof(*event));
	event->context = context;
	gpu_process(context->node)->objects++;
	*out = (CUevent)event;
	return 0;
}

int gpu_event_record(CUevent handle, CUstream to)
{
	int error;
	struct gpu_stream *stream = stream_enter("cuEventRecord", to, &error);
	struct event *event = (struct event *)handle;

	if (!stream)
		return error;
	stream_submit(stream, op_new(OP_RECORD, 0));
	event->stream = stream;
	event->at = stream->submitted;
	return 0;
}

int gpu_event_query(CUevent handle)
{
	const struct event *event = (struct event *)handle;
	int error;

	if (!gpu_enter("cuEventQuery", &error))
		return error;
	return event->stream && event->stream->done < event->at ? CUDA_NOT_READY : 0;
}

int gpu_event_synchronize(CUevent handle)
{
	const struct event *event = (struct event *)handle;
	int error;

	if (!gpu_enter("cuEventSynchronize", &error) || !event->stream)
		return error;
	return stream_wait(event->stream, event->at);
}

int gpu_event_destroy(CUevent handle)
{
	struct event *event = (struct event *)handle;
	int error;

	if (!gpu_enter("cuEventDestroy", &error))
		return error;
	gpu_process(event->context->node)->objects--;
	free(event);
	return 0;
}

int gpu_stream_wait_event(CUstream handle, CUevent waited, unsigned flags)
{
	int error;
	struct gpu_stream *stream = stream_enter("cuStreamWaitEvent", handle, &error);
	const struct event *event = (struct event *)waited;
	struct op *op;

	(void)flags;
	if (!stream || !event->stream)
		return error;
	op = op_new(OP_FOLLOW, 0);
	op->other = event->stream;
	op->until = event->at;
	stream_submit(stream, op);
	return 0;
}
