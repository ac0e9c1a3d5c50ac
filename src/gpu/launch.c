/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch.c: submits work to a GPU stream: copies, blocks, and lists of pairs.
 *
 * Pairs of one length are blocks of that length whose offsets are addresses. Pairs of different
 * lengths are divided into blocks of CLASSES lengths, with one launch for each length: any list of
 * short pairs takes at most CLASSES launches.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "gpu/gpus.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/list.h"

/* The kernel reads lists of up to so many bytes from pinned memory: copying them to the GPU first
 * would cost more than it saves. */
#define READ_IN_PLACE 4096u

/* CTAs between two GPUs that both send: two H100s reached 622 GB/s with 64 each, 405 to 449 with
 * fewer, and 500 with 132. */
#define OPPOSED_CTAS 64u
/* Who submits both ways in turns finds the other one's last work done now and then: for so long it
 * still counts. */
#define OPPOSED_FOR (10 * WH_MS)

/* With so many turns of a stream in front, launches are in flight all the time: the next one begins
 * sooner. */
#define MANY_TURNS 2u

/* At most so many copies go to the driver in one call: its arguments are on the stack. */
#define CALL_COPIES 128u

/* Of so many jobs in flight one may be without a store of the semaphore: turn_store_later(). */
#define STORE_SHARE 8

#define CLASSES 5
static const uint64_t class_length[CLASSES] = { 65536, 4096, 256, 16, 1 };

/* ---- turns ----------------------------------------------------------------------------------- */

static void turn_fail(struct wh_gpu_stream_turn *turn, int error)
{
	if (turn->error || !error)
		return;
	turn->error = error;
	snprintf(turn->text, sizeof(turn->text), "%s", wh_error_text());
}

void wh_gpu_stream_open(struct wh_gpu_stream *stream, struct wh_gpu_stream_turn *turn)
{
	struct wh_cuda *cuda = wh_gpus_cuda(stream->gpu->gpus);

	turn->stream = stream;
	turn->error = 0;
	turn->grid = 0;
	turn->text[0] = 0;
	turn->scope = (struct wh_cuda_scope){ .cuda = cuda };
	turn->work = (struct wh_gpu_stream_work){ 0 };
	turn->by_copies = false;
	turn->begun = wh_now();
	if (stream->error) {
		turn->error = stream->error;
		memcpy(turn->text, stream->text, sizeof(turn->text));
		return;
	}
	turn_fail(turn, wh_cuda_enter_context(cuda, stream->gpu->device, stream->gpu->context,
					      &turn->scope));
}

void wh_gpu_stream_begin(struct wh_gpu_stream *stream, struct wh_gpu_stream_turn *turn)
{
	pthread_mutex_lock(&stream->lock);
	wh_gpu_stream_flush(stream); /* what came before goes before */
	wh_gpu_stream_open(stream, turn);
}

/* Submit the deferred launch. `flagged`: it is the last of the turn, and stores the semaphore. */
static void turn_launch(struct wh_gpu_stream_turn *turn, bool flagged)
{
	struct wh_gpu_stream *stream = turn->stream;
	struct wh_cuda *cuda = wh_gpus_cuda(stream->gpu->gpus);
	int error;

	if (!turn->grid || turn->error)
		return;
	if (flagged) {
		turn->job.flag = stream->semaphore->address;
		turn->job.flag_value = stream->number + 1;
		turn->job.counter = stream->counter;
	}
	turn->job.let_next =
		wh_blocks_let_next(turn->job.items, wh_gpu_stream_in_flight(stream) >= MANY_TURNS);
	/* Within a GPU a launch and its end are a tenth of what 64 MiB take. Over PCIe they are
	 * nothing, and CTAs of two launches would take twice as much from the model beside them. */
	error = wh_cuda_blocks_launch(cuda, &stream->gpu->kernels, turn->variant, &turn->job,
				      turn->grid, stream->way == WH_BLOCKS_WITHIN, stream->handle);
	if (error)
		wh_fail(-error, "%s: %s", stream->gpu->device->text, wh_error_text());
	turn_fail(turn, error);
	turn->grid = 0;
}

static void turn_count(struct wh_gpu_stream_turn *turn, enum wh_mover mover, uint64_t count,
		       uint64_t bytes)
{
	turn->work.count[mover] += count;
	turn->work.bytes[mover] += bytes;
}

static void turn_copy(struct wh_gpu_stream_turn *turn, uint64_t to, uint64_t from, uint64_t length)
{
	struct wh_cuda *cuda = wh_gpus_cuda(turn->stream->gpu->gpus);

	turn_launch(turn, false);
	if (turn->error)
		return;
	turn_fail(turn,
		  wh_cuda_check(cuda, cuda->cuMemcpyAsync(to, from, length, turn->stream->handle),
				"cuMemcpyAsync", "%llu bytes from 0x%llx to 0x%llx on %s",
				(unsigned long long)length, (unsigned long long)from,
				(unsigned long long)to, turn->stream->gpu->device->text));
}

/* Copies that wait for one call of the driver. */
struct copy_call {
	CUdeviceptr to[CALL_COPIES], from[CALL_COPIES];
	size_t length[CALL_COPIES];
	unsigned count;
};

/* Submit them, one by one where the driver has no such call or refuses it: a copy that it took
 * before it refused another is made twice, which does no harm before the turn has ended. */
static void turn_copies(struct wh_gpu_stream_turn *turn, struct copy_call *call)
{
	struct wh_cuda_copy_attributes attributes = { .order = CUDA_COPY_IN_STREAM_ORDER };
	struct wh_cuda *cuda = wh_gpus_cuda(turn->stream->gpu->gpus);
	unsigned count = call->count;
	bool refused = false;
	size_t first = 0;

	call->count = 0;
	wh_gpu_stream_glance(turn->stream);
	if (count > 1 && wh_gpu_stream_batches_copies(turn->stream)) {
		turn_launch(turn, false);
		if (turn->error ||
		    !cuda->cuMemcpyBatchAsync(call->to, call->from, call->length, count,
					      &attributes, &first, 1, turn->stream->handle))
			return;
		refused = true;
	}
	for (unsigned i = 0; i < count; i++)
		turn_copy(turn, call->to[i], call->from[i], call->length[i]);
	/* It was no copy's fault: the driver does not take them together. */
	if (refused && !turn->error)
		atomic_store_explicit(&turn->stream->gpu->no_copy_call, true, memory_order_relaxed);
}

void wh_gpu_stream_copy(struct wh_gpu_stream_turn *turn, uint64_t to, uint64_t from,
			uint64_t length)
{
	turn->work.other = true;
	turn_copy(turn, to, from, length);
}

void wh_gpu_stream_store(struct wh_gpu_stream *stream)
{
	struct wh_cuda *cuda = wh_gpus_cuda(stream->gpu->gpus);
	int error = wh_cuda_call_on(cuda, stream->gpu->device, cuStreamWriteValue32, stream->handle,
				    stream->semaphore->address, (uint32_t)stream->number, 0);

	stream->stored = stream->number;
	/* A stream that refuses even this store has failed for good. */
	if (error) {
		wh_gpu_stream_fail(stream, error, wh_error_text());
		cuda->cuStreamSynchronize(stream->handle);
	}
}

/* May the turn's job leave storing the semaphore to a later one? A store is a call of the driver
 * and work for the GPU, as a copy is. If many jobs are in flight, one store for several of them
 * keeps their ends from the program only while the GPU works on an eighth of what it has. */
static bool turn_store_later(const struct wh_gpu_stream_turn *turn)
{
	const struct wh_gpu_stream *stream = turn->stream;

	return !turn->error && !stream->urgent &&
	       stream->number - stream->stored <= wh_gpu_stream_in_flight(stream) / STORE_SHARE;
}

void wh_gpu_stream_close(struct wh_gpu_stream_turn *turn)
{
	struct wh_gpu_stream *stream = turn->stream;
	bool flagged = turn->grid && !turn->error;
	bool failed = stream->error;

	turn_launch(turn, true);
	atomic_fetch_add_explicit(&stream->number, 1, memory_order_relaxed);
	/* The stream stores the semaphore if no kernel does; after a failure as well, since the
	 * work submitted before it has to end first. */
	if (flagged && !turn->error)
		stream->stored = stream->number;
	else if (!stream->error && turn->scope.context && !turn_store_later(turn))
		wh_gpu_stream_store(stream);
	/* The context cannot be entered, or refuses even that store: the stream has failed for
	 * good, and the turn's error was the first sign of it. */
	if (turn->error && !failed && (stream->error || !turn->scope.context)) {
		wh_gpu_stream_fail(stream, turn->error, turn->text);
		memcpy(turn->text, stream->text, sizeof(turn->text));
	}
	wh_cuda_leave(&turn->scope);
}

void wh_gpu_stream_attach(struct wh_gpu_stream_turn *turn, struct wh_gpu_stream_job *job,
			  bool follows)
{
	struct wh_gpu_stream *stream = turn->stream;

	job->error = turn->error;
	if (turn->error)
		memcpy(job->text, turn->text, sizeof(job->text));
	job->number = stream->number;
	job->follows = follows;
	job->ring = stream->head;
	job->begun = turn->begun;
	job->lesson.lesson = NULL;
	job->lesson.submitted = wh_now() - turn->begun;
	if (!turn->error && !follows)
		wh_gpu_stream_teaches(stream, &turn->work, &job->lesson);
	if (wh_list_empty(&stream->jobs)) {
		stream->last_progress = wh_now();
		stream->oldest_since = turn->begun;
	}
	wh_list_append(&stream->jobs, &job->link);
	atomic_fetch_add_explicit(&stream->pending, 1, memory_order_relaxed);
}

void wh_gpu_stream_end(struct wh_gpu_stream_turn *turn, struct wh_gpu_stream_job *job)
{
	struct wh_gpu_stream *stream = turn->stream;

	wh_gpu_stream_close(turn);
	wh_gpu_stream_attach(turn, job, false);
	/* Before unlocking: until then no poll can collect the job and discount it. */
	wh_gpus_job_added(stream->gpu->gpus);
	pthread_mutex_unlock(&stream->lock);
}

/* ---- the ring -------------------------------------------------------------------------------- */

/* The largest contiguous free range, in bytes. */
static uint64_t ring_room(const struct wh_gpu_stream *stream)
{
	uint64_t at = stream->head % WH_GPU_STREAM_RING, used = stream->head - stream->tail;
	uint64_t free = WH_GPU_STREAM_RING - used, to_end = WH_GPU_STREAM_RING - at;

	if (!used)
		return WH_GPU_STREAM_RING;
	return free <= to_end ? free : to_end > free - to_end ? to_end : free - to_end;
}

/* Take contiguous bytes, at most ring_room(). Returns their offset in the ring. */
static uint64_t ring_take(struct wh_gpu_stream *stream, uint64_t bytes)
{
	uint64_t at = stream->head % WH_GPU_STREAM_RING;

	bool empty = stream->head == stream->tail;

	bytes = (bytes + 15) & ~(uint64_t)15;
	if (bytes > WH_GPU_STREAM_RING - at) { /* skip the end of the ring */
		stream->head += WH_GPU_STREAM_RING - at;
		at = 0;
		if (empty)
			stream->tail = stream->head;
	}
	stream->head += bytes;
	return at;
}

bool wh_gpu_stream_ring_has(const struct wh_gpu_stream *stream, uint64_t bytes)
{
	return ring_room(stream) >= bytes;
}

bool wh_gpu_stream_reserve(struct wh_gpu_stream_turn *turn, uint64_t bytes, uint64_t *at)
{
	if (turn->error || ring_room(turn->stream) < bytes)
		return false;
	*at = ring_take(turn->stream, bytes);
	return true;
}

/* The address at which the kernel reads the bytes written at offset `at`; uploads long ones. */
static uint64_t ring_upload(struct wh_gpu_stream_turn *turn, uint64_t at, uint64_t bytes)
{
	struct wh_gpu_stream *stream = turn->stream;
	struct wh_cuda *cuda = wh_gpus_cuda(stream->gpu->gpus);

	if (bytes <= READ_IN_PLACE)
		return stream->ring_host + at;
	turn_launch(turn, false);
	if (!turn->error)
		turn_fail(turn, wh_cuda_call_on(cuda, stream->gpu->device, cuMemcpyHtoDAsync,
						stream->ring_device + at, stream->ring + at, bytes,
						stream->handle));
	return stream->ring_device + at;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

bool wh_gpu_stream_is_opposed(struct wh_gpu_stream *stream)
{
	struct wh_gpu_stream *other =
		atomic_load_explicit(&stream->gpu->gpus->streams, memory_order_acquire);
	int64_t now;

	if (stream->way != WH_BLOCKS_PUSH && stream->way != WH_BLOCKS_PULL)
		return false;
	now = wh_now();
	for (; other; other = atomic_load_explicit(&other->next, memory_order_acquire)) {
		bool same_way = other->way == stream->way;
		bool same_gpu = other->gpu->device == stream->gpu->device;

		if ((other->way == WH_BLOCKS_PUSH || other->way == WH_BLOCKS_PULL) &&
		    same_way != same_gpu &&
		    atomic_load_explicit(&other->pending, memory_order_relaxed)) {
			atomic_store_explicit(&stream->opposed_at, now, memory_order_relaxed);
			atomic_store_explicit(&other->opposed_at, now, memory_order_relaxed);
			return true;
		}
	}
	return now - atomic_load_explicit(&stream->opposed_at, memory_order_relaxed) < OPPOSED_FOR;
}

static uint32_t stream_ctas(struct wh_gpu_stream *stream, int variant, uint64_t block_length)
{
	uint32_t processors = (uint32_t)stream->gpu->device->processors, ctas;
	int64_t wanted = wh_gpus_ctas(stream->gpu->gpus);

	if (wanted)
		return (uint32_t)wanted;
	ctas = wh_blocks_ctas((enum wh_blocks_variant)variant, stream->way, block_length,
			      processors, wh_gpus_yield(stream->gpu->gpus));
	if (ctas < OPPOSED_CTAS && wh_gpu_stream_is_opposed(stream))
		ctas = OPPOSED_CTAS < processors ? OPPOSED_CTAS : processors;
	return ctas;
}

uint32_t wh_gpu_stream_ctas(struct wh_gpu_stream *stream, uint64_t count, uint64_t length)
{
	enum wh_blocks_variant variant = wh_blocks_widest(length);
	struct wh_blocks_job job = { .block_length = length, .base_count = 1 };
	uint32_t ctas, grid = 0;

	if (wh_gpu_stream_no_kernels(stream))
		return 0;
	ctas = stream_ctas(stream, (int)variant, length);
	/* Longer lists take several launches of as many CTAs. */
	if (count > WH_BLOCKS_ITEMS)
		count = WH_BLOCKS_ITEMS;
	for (; !grid && count; count /= 2) {
		job.count = (uint32_t)count;
		grid = wh_blocks_shape(&job, variant, ctas);
	}
	return grid;
}

/* The address of a list for the kernel: its cached copy, or its part copied to the ring; 0: no
 * list. */
static uint64_t blocks_list(struct wh_gpu_stream_turn *turn, const uint64_t *list, uint64_t cached,
			    uint64_t first, uint64_t count)
{
	uint64_t at;

	if (cached)
		return cached + 8 * first;
	if (!list)
		return 0;
	at = ring_take(turn->stream, 8 * count);
	memcpy(turn->stream->ring + at, list + first, 8 * count);
	return ring_upload(turn, at, 8 * count);
}

uint64_t wh_gpu_stream_blocks(struct wh_gpu_stream_turn *turn,
			      const struct wh_gpu_stream_blocks *blocks, uint64_t first,
			      uint64_t count)
{
	unsigned lists = (blocks->source_list && !blocks->source_cached) +
			 (blocks->target_list && !blocks->target_cached);
	int variant = wh_blocks_widest(blocks->bits);
	struct wh_gpu_stream *stream = turn->stream;
	struct wh_blocks_job job = blocks->job;
	/* Offsets for which the ring has room; the lists share it equally. */
	uint64_t room = lists ? ring_room(stream) / lists / 8 & ~UINT64_C(3) : UINT64_MAX;
	uint64_t most = WH_BLOCKS_ITEMS / job.base_count;
	uint32_t grid;

	if (turn->error)
		return count;
	if (lists == 2) /* the second list may not fit behind the first */
		room /= 2;
	count = count < room ? count : room;
	count = count < most ? count : most;
	if (!count)
		return 0;
	turn_launch(turn, false);
	for (;;) {
		job.count = (uint32_t)count;
		grid = wh_blocks_shape(&job, (enum wh_blocks_variant)variant,
				       stream_ctas(stream, variant, job.block_length));
		if (grid || count == 1)
			break;
		count /= 2;
	}
	if (!grid) {
		turn_fail(turn, wh_fail(E2BIG,
					"%u bases with blocks of %llu bytes exceed one kernel "
					"launch: submit fewer bases or shorter blocks",
					job.base_count, (unsigned long long)job.block_length));
		return count;
	}
	if (first) {
		/* Lists are read from `first` on; bases with a stride move. */
		for (uint32_t b = 0; b < job.base_count; b++) {
			if (!blocks->source_list && !blocks->source_cached)
				job.source_base[b] += first * job.source_stride;
			if (!blocks->target_list && !blocks->target_cached)
				job.target_base[b] += first * job.target_stride;
		}
	}
	job.source_offsets =
		blocks_list(turn, blocks->source_list, blocks->source_cached, first, count);
	job.target_offsets =
		blocks_list(turn, blocks->target_list, blocks->target_cached, first, count);
	turn->job = job;
	turn->variant = variant;
	turn->grid = grid;
	turn_count(turn, WH_MOVER_KERNEL, count * job.base_count,
		   count * job.base_count * job.block_length);
	return count;
}

/* ---- pairs ----------------------------------------------------------------------------------- */

/* How many blocks of class_length[class] a pair of `length` bytes contains; class CLASSES: the pair
 * is one block. */
static inline uint64_t class_blocks(uint64_t length, unsigned class)
{
	if (class == CLASSES)
		return 1;
	return class ? length % class_length[class - 1] / class_length[class] :
		       length / class_length[0];
}

struct short_pairs {
	const struct wh_pair *pairs;
	uint64_t count; /* of all pairs, long ones included */
	/* the copy engine moves pairs of at least so many bytes; UINT64_MAX: none */
	uint64_t long_from;
};

/* Launch the blocks of one class, as two lists of addresses. */
static void pairs_launch_class(struct wh_gpu_stream_turn *turn,
			       const struct short_pairs *short_pairs, unsigned class,
			       uint64_t length, uint64_t blocks)
{
	struct wh_gpu_stream *stream = turn->stream;
	struct wh_blocks_job job = { .block_length = length,
				     .count = (uint32_t)blocks,
				     .base_count = 1 };
	/* A few addresses travel with the launch: the kernel need not fetch them from the host. */
	bool here = blocks <= WH_BLOCKS_INLINE;
	uint64_t at = here ? 0 : ring_take(stream, 16 * blocks), bits = length, n = 0, list;
	uint64_t *from = here ? job.source_base : (uint64_t *)(void *)(stream->ring + at);
	uint64_t *to = here ? job.target_base : from + blocks;
	int variant;

	for (uint64_t i = 0; i < short_pairs->count; i++) {
		const struct wh_pair *pair = &short_pairs->pairs[i];
		uint64_t parts, skip;

		if (pair->length >= short_pairs->long_from)
			continue;
		parts = class_blocks(pair->length, class);
		skip = !class || class == CLASSES ?
			       0 :
			       pair->length - pair->length % class_length[class - 1];
		for (; parts; parts--, skip += length, n++) {
			from[n] = pair->from + skip;
			to[n] = pair->to + skip;
			bits |= from[n] | to[n];
		}
	}
	turn_launch(turn, false);
	variant = wh_blocks_widest(bits);
	if (here) {
		job.base_count = (uint32_t)blocks;
		job.count = 1;
	} else {
		list = ring_upload(turn, at, 16 * blocks);
		job.source_offsets = list;
		job.target_offsets = list + 8 * blocks;
	}
	turn->grid = wh_blocks_shape(&job, (enum wh_blocks_variant)variant,
				     stream_ctas(stream, variant, length));
	turn->job = job;
	turn->variant = variant;
}

/* How many of the first pairs fit into the ring. blocks[]: how many blocks of each class these
 * have; *equal: the length of the short ones if they all have the same, else 0. */
static uint64_t pairs_fit(const struct wh_gpu_stream *stream, const struct short_pairs *short_pairs,
			  uint64_t blocks[CLASSES + 1], uint64_t *equal)
{
	/* Two addresses of 8 bytes for each block. Half of the room is spare: each class starts at
	 * a multiple of 16 bytes, and one of them may skip the end of the ring. */
	uint64_t room = ring_room(stream) / 32, length = 0, i;
	uint64_t most_equal = ring_room(stream) / 16;
	uint64_t all = 0;

	memset(blocks, 0, (CLASSES + 1) * sizeof(*blocks));
	for (i = 0; i < short_pairs->count; i++) {
		uint64_t each = short_pairs->pairs[i].length, parts[CLASSES], sum = 0;

		if (each >= short_pairs->long_from)
			continue;
		if (!blocks[CLASSES])
			length = each;
		for (unsigned class = 0; class < CLASSES; class ++)
			sum += parts[class] = class_blocks(each, class);
		/* While all have the same length, each pair is one block. */
		if (each == length && blocks[CLASSES] < most_equal) {
			all += sum;
		} else if (length == UINT64_MAX || each != length) {
			if (all + sum > room)
				break;
			all += sum;
			length = UINT64_MAX;
		} else {
			break;
		}
		for (unsigned class = 0; class < CLASSES; class ++)
			blocks[class] += parts[class];
		blocks[CLASSES]++;
	}
	*equal = length == UINT64_MAX ? 0 : length;
	return i;
}

static void pairs_launch(struct wh_gpu_stream_turn *turn, const struct short_pairs *short_pairs,
			 const uint64_t blocks[CLASSES + 1], uint64_t equal)
{
	if (equal) {
		pairs_launch_class(turn, short_pairs, CLASSES, equal, blocks[CLASSES]);
		return;
	}
	for (unsigned class = 0; class < CLASSES; class ++) {
		if (blocks[class])
			pairs_launch_class(turn, short_pairs, class, class_length[class],
					   blocks[class]);
	}
}

/* From which length on the copy engine moves pairs, where their lengths differ: where its higher
 * rate outweighs its cost for each copy. */
static uint64_t pairs_divide(const struct wh_gpu_stream *stream, const struct wh_pair *pairs,
			     uint64_t count)
{
	const struct wh_gpu_stream_cost *cost = atomic_load(&stream->cost);
	double gain = 1 / cost->kernel_rate - 1 / cost->copy_rate;
	double long_from = gain > 0 ? cost->next_copy / gain : 1e18;
	uint64_t from = long_from < 1e18 ? (uint64_t)long_from + 1 : UINT64_MAX;
	uint64_t short_count = 0, bytes = 0;

	for (uint64_t i = 0; i < count; i++) {
		if (pairs[i].length >= from)
			continue;
		short_count++;
		bytes += pairs[i].length;
	}
	if (short_count && !wh_gpu_stream_prefers_kernel(stream, short_count, bytes / short_count))
		return 0;
	return from;
}

/* The same for all pairs. Where their lengths are alike, one mover takes all, so that the turn's
 * time can be its lesson. */
static uint64_t pairs_long_from(struct wh_gpu_stream_turn *turn, const struct wh_pair *pairs,
				uint64_t count)
{
	uint64_t least = UINT64_MAX, most = 0, bytes = 0;
	struct wh_gpu_stream_work *work = &turn->work;
	unsigned class;

	if (turn->by_copies)
		return 0;
	for (uint64_t i = 0; i < count; i++) {
		least = pairs[i].length < least ? pairs[i].length : least;
		most = pairs[i].length > most ? pairs[i].length : most;
		bytes += pairs[i].length;
	}
	if (!count || wh_lesson_class(1, least) != wh_lesson_class(1, most)) {
		work->other = true;
		return pairs_divide(turn->stream, pairs, count);
	}
	class = wh_lesson_class(1, most) + 1;
	if (work->class != class) {
		work->other = work->other || work->class;
		work->class = class;
		work->mover = wh_gpu_stream_choose(turn->stream, count, bytes / count);
	}
	return work->mover == WH_MOVER_KERNEL ? UINT64_MAX : 0;
}

uint64_t wh_gpu_stream_pairs(struct wh_gpu_stream_turn *turn, const struct wh_pair *pairs,
			     uint64_t count)
{
	struct short_pairs short_pairs = { pairs, count, 0 };
	uint64_t blocks[CLASSES + 1], equal;
	struct copy_call call;

	if (turn->error)
		return count;
	call.count = 0;
	short_pairs.long_from = pairs_long_from(turn, pairs, count);
	if (short_pairs.long_from) {
		short_pairs.count = pairs_fit(turn->stream, &short_pairs, blocks, &equal);
		if (blocks[CLASSES])
			pairs_launch(turn, &short_pairs, blocks, equal);
	}
	for (uint64_t i = 0; i < short_pairs.count; i++) {
		bool long_one = pairs[i].length >= short_pairs.long_from;

		turn_count(turn, long_one ? WH_MOVER_COPIES : WH_MOVER_KERNEL, 1, pairs[i].length);
		if (!long_one || !pairs[i].length)
			continue;
		call.to[call.count] = pairs[i].to;
		call.from[call.count] = pairs[i].from;
		call.length[call.count++] = pairs[i].length;
		if (call.count == CALL_COPIES)
			turn_copies(turn, &call);
	}
	turn_copies(turn, &call);
	return short_pairs.count;
}
