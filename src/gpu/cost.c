/* SPDX-License-Identifier: Apache-2.0 */
/* cost.c: estimates what work on a GPU stream costs, by copy engine and by kernel, and measures it
 * on request. */
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "gpu/gpus.h"
#include "util/clock.h"
#include "util/list.h"

/* One H100, 64 KiB each: 0.4 us a copy to the host and 0.8 us to the GPU, where single calls
 * take 2. Within a GPU such a call is no faster than single ones. */
bool wh_gpu_stream_batches_copies(const struct wh_gpu_stream *stream)
{
	return stream->way != WH_BLOCKS_WITHIN &&
	       wh_gpus_cuda(stream->gpu->gpus)->cuMemcpyBatchAsync &&
	       !atomic_load_explicit(&stream->gpu->no_copy_call, memory_order_relaxed);
}

void wh_gpu_stream_guess_cost(struct wh_gpu_stream *stream)
{
	/* An H200 and its NVLinks on PCIe 5: bench/results/2026-11-20-h200x2-blocks-kernel.json. */
	static const struct wh_gpu_stream_cost typical[WH_BLOCKS_WAYS] = {
		[WH_BLOCKS_PUSH] = { 6000, 2500, 1000, 350, 390, false },
		[WH_BLOCKS_PULL] = { 6000, 2500, 1000, 360, 390, false },
		[WH_BLOCKS_TO_HOST] = { 6000, 2500, 400, 52, 55, false },
		[WH_BLOCKS_FROM_HOST] = { 6000, 2500, 800, 51, 55, false },
		[WH_BLOCKS_WITHIN] = { 6000, 2500, 2500, 1500, 2000, false },
	};

	stream->guessed = typical[stream->way];
	if (!wh_gpu_stream_batches_copies(stream))
		stream->guessed.next_copy = stream->guessed.copy;
	atomic_store(&stream->cost, &stream->guessed);
}

static double cost_by_kernel(const struct wh_gpu_stream_cost *cost, uint64_t count, uint64_t length)
{
	/* Two addresses of 8 bytes for each copy reach the GPU at about 25 GB/s. */
	return cost->launch + (double)count * ((double)length / cost->kernel_rate + 16 / 25.0);
}

static double cost_by_copies(const struct wh_gpu_stream_cost *cost, uint64_t count, uint64_t length)
{
	return count ? cost->copy + (double)(count - 1) * cost->next_copy +
			       (double)count * ((double)length / cost->copy_rate) :
		       0;
}

const char *wh_gpu_stream_no_kernels(const struct wh_gpu_stream *stream)
{
	return *stream->gpu->no_kernels ? stream->gpu->no_kernels : NULL;
}

/* ---- choosing -------------------------------------------------------------------------------- */

/* Shorter work that is not behind other work is not used to try a mover: somebody may count its
 * microseconds. */
#define TRY_BYTES ((uint64_t)64 << 10)

/* Beside a product of matrices on one H100, a kernel to the host kept 21 of 50 GB/s, or took a
 * quarter of the product; copies of 64 KiB kept 46 and took nothing. */
#define TO_HOST_BURDEN 0.15
/* A kernel beside another process's takes turns with it, and nearly half of its speed, while that
 * computes; it may be idle. */
#define SHARED_BURDEN 0.5
/* By the first look one mover may take so many times longer, compared with the other, than by
 * typical costs; what lies beyond is noise. */
#define BELIEVED 8

double wh_gpu_stream_burden(const struct wh_gpu_stream *stream)
{
	if (stream->urgent || stream->way == WH_BLOCKS_WITHIN || !wh_gpus_yield(stream->gpu->gpus))
		return 0;
	if (atomic_load_explicit(&stream->gpu->gpus->shared, memory_order_relaxed) >>
		    stream->gpu->device->ordinal &
	    1)
		return SHARED_BURDEN;
	return stream->way == WH_BLOCKS_TO_HOST ? TO_HOST_BURDEN : 0;
}

/* Believe the first look as far as it can be true: it takes some us, and another process that works
 * on the GPU just then makes one mover wait for ms. */
static void cost_believe(struct wh_lesson_times *times)
{
	double *first = times->first, *typical = times->typical;

	for (enum wh_mover m = 0; m < WH_MOVERS; m++) {
		double most = BELIEVED * typical[m] / typical[!m] * first[!m];

		if (typical[!m] > 0 && first[m] > most)
			first[m] = most;
	}
}

static void cost_times(const struct wh_gpu_stream *stream, uint64_t count, uint64_t length,
		       struct wh_lesson_times *out)
{
	const struct wh_gpu_stream_cost *cost = atomic_load(&stream->cost);

	out->typical[WH_MOVER_KERNEL] = cost_by_kernel(&stream->guessed, count, length);
	out->typical[WH_MOVER_COPIES] = cost_by_copies(&stream->guessed, count, length);
	out->first[WH_MOVER_KERNEL] = cost_by_kernel(cost, count, length);
	out->first[WH_MOVER_COPIES] = cost_by_copies(cost, count, length);
	cost_believe(out);
	out->burden = wh_gpu_stream_burden(stream);
}

static struct wh_lesson *cost_lesson(const struct wh_gpu_stream *stream, uint64_t count,
				     uint64_t length)
{
	return &stream->gpu->lessons[stream->way][wh_lesson_class(count, length)];
}

bool wh_gpu_stream_prefers_kernel(const struct wh_gpu_stream *stream, uint64_t count,
				  uint64_t length)
{
	struct wh_lesson_times times;

	if (wh_gpu_stream_no_kernels(stream))
		return false;
	cost_times(stream, count, length, &times);
	return wh_lesson_faster(cost_lesson(stream, count, length), &times) == WH_MOVER_KERNEL;
}

enum wh_mover wh_gpu_stream_choose(struct wh_gpu_stream *stream, uint64_t count, uint64_t length)
{
	struct wh_lesson *lesson = cost_lesson(stream, count, length);
	struct wh_lesson_times times;

	if (wh_gpu_stream_no_kernels(stream))
		return WH_MOVER_COPIES;
	cost_times(stream, count, length, &times);
	if (stream->urgent || (count * length < TRY_BYTES &&
			       !atomic_load_explicit(&stream->pending, memory_order_relaxed)))
		return wh_lesson_faster(lesson, &times);
	return wh_lesson_choose(lesson, &times, wh_now());
}

void wh_gpu_stream_look(const struct wh_gpu_stream *stream, uint64_t count, uint64_t length,
			struct wh_lesson_view view[WH_MOVERS])
{
	struct wh_lesson_times times;

	cost_times(stream, count, length, &times);
	wh_lesson_look(cost_lesson(stream, count, length), &times, view);
	if (wh_gpu_stream_no_kernels(stream))
		view[WH_MOVER_KERNEL] = (struct wh_lesson_view){ 0 };
}

void wh_gpu_stream_teaches(struct wh_gpu_stream *stream, const struct wh_gpu_stream_work *work,
			   struct wh_gpu_stream_lesson *out)
{
	enum wh_mover mover = work->count[WH_MOVER_KERNEL] ? WH_MOVER_KERNEL : WH_MOVER_COPIES;
	uint64_t count = work->count[mover], length;

	out->lesson = NULL;
	if (work->other || !count || work->count[!mover] || wh_gpu_stream_no_kernels(stream))
		return;
	length = work->bytes[mover] / count;
	out->lesson = cost_lesson(stream, count, length);
	out->mover = mover;
	out->typical = (mover == WH_MOVER_KERNEL ? cost_by_kernel :
						   cost_by_copies)(&stream->guessed, count, length);
}

void wh_gpu_stream_times(const struct wh_gpu_stream *stream, uint64_t count, uint64_t length,
			 double *kernel, double *copies)
{
	struct wh_lesson_view view[WH_MOVERS];

	wh_gpu_stream_look(stream, count, length, view);
	*kernel = view[WH_MOVER_KERNEL].time;
	*copies = view[WH_MOVER_COPIES].time;
}

/* ---- measuring ------------------------------------------------------------------------------- */

#define PROBE_SHORT ((uint64_t)64 << 10)
#define PROBE_LONG ((uint64_t)32 << 20) /* enough to show the rate of a GPU's own memory */
#define PROBE_BLOCK ((uint64_t)4 << 10)
#define PROBE_COPIES 8
#define PROBE_TIMES 4 /* the shortest counts */
/* So long a probe polls without a pause, for an exact time. Work of others may be in front of it.
 */
#define PROBE_SPIN (100 * WH_MS / 1000)
#define PROBE_PAUSE 20000 /* ns */

struct probe {
	struct wh_gpu_stream_job job;
	struct wh_gpu_stream *stream;
	uint64_t from, to;
	uint64_t length; /* of the long copy; at most PROBE_LONG */
	uint64_t ring; /* bytes of the ring that each job reserves */
	bool from_ring, to_ring; /* the address above is in the ring: add the reserved offset */
	int64_t began; /* the patience is that for all of its jobs */
	_Atomic int state; /* 0: runs, 1: done, negative: failed */
	bool moves; /* a job has ended */
	bool late; /* a job has been given up, and still runs */
};

static void probe_done(struct wh_gpu_stream_job *job, int error, const char *text)
{
	struct probe *probe = wh_container(job, struct probe, job);

	(void)text;
	atomic_store(&probe->state, error ? error : 1);
}

static void probe_kernel(struct wh_gpu_stream_turn *turn, uint64_t to, uint64_t from,
			 uint64_t length)
{
	struct wh_gpu_stream_blocks blocks = {
		.job = { .block_length = PROBE_BLOCK,
			 .base_count = 1,
			 .source_stride = PROBE_BLOCK,
			 .target_stride = PROBE_BLOCK },
		.bits = from | to | PROBE_BLOCK,
	};

	blocks.job.source_base[0] = from;
	blocks.job.target_base[0] = to;
	wh_gpu_stream_blocks(turn, &blocks, 0, length / PROBE_BLOCK);
}

/* Submit one job: `copies` copies, or, for 0, one kernel. Each job reserves its part of the ring,
 * because others may use the stream meanwhile. False: the ring has no room. */
static bool probe_submit(struct probe *probe, unsigned copies, uint64_t length)
{
	struct wh_pair pairs[1 + PROBE_COPIES];
	struct wh_gpu_stream_turn turn;
	uint64_t from, to, at = 0;
	bool room;

	wh_gpu_stream_begin(probe->stream, &turn);
	room = !probe->ring || wh_gpu_stream_reserve(&turn, probe->ring, &at);
	from = probe->from + (probe->from_ring ? at : 0);
	to = probe->to + (probe->to_ring ? at : 0);
	for (unsigned c = 0; c < copies; c++)
		pairs[c] = (struct wh_pair){ from, to, length };
	turn.by_copies = turn.work.other = true; /* an idle stream teaches nothing */
	if (room && copies)
		wh_gpu_stream_pairs(&turn, pairs, copies);
	else if (room)
		probe_kernel(&turn, to, from, length);
	wh_gpu_stream_end(&turn, &probe->job);
	return room;
}

static void probe_wait(struct probe *probe, int64_t start)
{
	const struct timespec pause = { .tv_nsec = PROBE_PAUSE };
	int64_t patience = probe->stream->gpu->gpus->probe_patience / (probe->moves ? 1 : 2);
	int64_t now;

	while (!atomic_load(&probe->state) && !probe->late) {
		if (wh_gpus_poll(probe->stream->gpu->gpus))
			continue;
		now = wh_now();
		if (now - start < PROBE_SPIN)
			sched_yield();
		else if (now - probe->began < patience)
			nanosleep(&pause, NULL);
		else
			probe->late = true;
	}
	probe->moves = true;
}

/* The shortest time in ns of a job as in probe_submit(). 0: it failed, or one was given up. */
static double probe_time(struct probe *probe, unsigned copies, uint64_t length)
{
	double best = 0;

	for (int i = 0; i < PROBE_TIMES && !probe->late; i++) {
		int64_t start = wh_now();
		bool put;

		atomic_store(&probe->state, 0);
		probe->job = (struct wh_gpu_stream_job){ .done = probe_done };
		put = probe_submit(probe, copies, length);
		probe_wait(probe, start);
		if (!put || probe->late || atomic_load(&probe->state) < 0)
			return 0;
		start = wh_now() - start;
		if (!i || (double)start < best)
			best = (double)start;
	}
	return best;
}

/* The rate, from the times of a short and a long copy that differ by `bytes`. `before` if the times
 * do not differ by more than noise. */
static double probe_rate(double before, double at_short, double at_long, uint64_t bytes)
{
	return at_long - at_short > 200 ? (double)bytes / (at_long - at_short) : before;
}

static void probe_measure(struct probe *probe)
{
	double one = probe_time(probe, 1, PROBE_SHORT), many, large, kernel, kernel_large;
	struct wh_gpu_stream_cost cost = probe->stream->guessed;
	uint64_t length = probe->length;

	many = probe_time(probe, 1 + PROBE_COPIES, PROBE_SHORT);
	large = probe_time(probe, 1, length);
	if (!wh_gpu_stream_no_kernels(probe->stream)) {
		kernel = probe_time(probe, 0, PROBE_SHORT);
		kernel_large = probe_time(probe, 0, length);
	} else { /* unused */
		kernel = one;
		kernel_large = large;
	}
	if (one <= 0 || many <= 0 || large <= 0 || kernel <= 0 || kernel_large <= 0)
		return; /* the next job on the stream will report the error */
	if (length > PROBE_SHORT) {
		cost.copy_rate = probe_rate(cost.copy_rate, one, large, length - PROBE_SHORT);
		cost.kernel_rate =
			probe_rate(cost.kernel_rate, kernel, kernel_large, length - PROBE_SHORT);
	}
	/* The cost of one more copy, as that of the first where each takes a call of its own; and
	 * how much longer a kernel takes than a copy. The times of both include one round trip to
	 * the GPU. */
	cost.next_copy = (many - one) / PROBE_COPIES - (double)PROBE_SHORT / cost.copy_rate;
	cost.next_copy = cost.next_copy > 200 ? cost.next_copy : 200;
	if (!wh_gpu_stream_batches_copies(probe->stream) || cost.copy < cost.next_copy)
		cost.copy = cost.next_copy;
	cost.launch = kernel - one + cost.copy + (double)PROBE_SHORT / cost.copy_rate -
		      (double)PROBE_SHORT / cost.kernel_rate;
	cost.launch = cost.launch > 200 ? cost.launch : 200;
	cost.measured = true;
	probe->stream->measured = cost;
	atomic_store(&probe->stream->cost, &probe->stream->measured);
}

/* GPU memory for the probe, from the device's pool, so that freeing it does not synchronise the
 * device. 0: no memory or no pool. */
static uint64_t probe_alloc(struct wh_gpu_stream *stream, uint64_t bytes)
{
	struct wh_cuda *cuda = wh_gpus_cuda(stream->gpu->gpus);
	struct wh_cuda_scope scope;
	uint64_t address = 0;

	if (!cuda->cuMemAllocAsync || !cuda->cuMemFreeAsync || !stream->gpu->device->pools ||
	    wh_cuda_enter_context(cuda, stream->gpu->device, stream->gpu->context, &scope))
		return 0;
	if (cuda->cuMemAllocAsync(&address, bytes, stream->handle))
		address = 0;
	wh_cuda_leave(&scope);
	return address;
}

static void probe_free(struct wh_gpu_stream *stream, uint64_t address)
{
	struct wh_cuda *cuda = wh_gpus_cuda(stream->gpu->gpus);
	struct wh_cuda_scope scope;

	if (!address ||
	    wh_cuda_enter_context(cuda, stream->gpu->device, stream->gpu->context, &scope))
		return;
	cuda->cuMemFreeAsync(address, stream->handle);
	wh_cuda_leave(&scope);
}

/* Choose source, target and length of the long copy. Without `allocated` memory the ring serves. */
static void probe_choose_ranges(struct probe *probe, uint64_t allocated, uint64_t from,
				uint64_t length)
{
	struct wh_gpu_stream *stream = probe->stream;

	probe->length = WH_GPU_STREAM_RING / 2;
	switch (stream->way) {
	case WH_BLOCKS_TO_HOST:
		probe->from = stream->ring_device;
		probe->to = stream->ring_host;
		probe->from_ring = probe->to_ring = true;
		break;
	case WH_BLOCKS_FROM_HOST:
		probe->from = stream->ring_host;
		probe->to = stream->ring_device;
		probe->from_ring = probe->to_ring = true;
		break;
	case WH_BLOCKS_WITHIN:
		probe->from = allocated ? allocated : stream->ring_device;
		probe->length = allocated ? PROBE_LONG : WH_GPU_STREAM_RING / 4;
		probe->to = probe->from + probe->length;
		probe->from_ring = probe->to_ring = !allocated;
		break;
	default:
		/* Between GPUs: only read from the other GPU, whose memory is the application's. */
		probe->from = from;
		probe->to = allocated ? allocated : stream->ring_device;
		probe->length = allocated ? PROBE_LONG : probe->length;
		probe->to_ring = !allocated;
		if (length < probe->length)
			probe->length = length / PROBE_BLOCK * PROBE_BLOCK;
		break;
	}
	if (probe->from_ring || probe->to_ring)
		probe->ring = stream->way == WH_BLOCKS_WITHIN ? 2 * probe->length : probe->length;
}

void wh_gpu_stream_probe(struct wh_gpu_stream *stream, uint64_t from, uint64_t length)
{
	bool between = stream->way == WH_BLOCKS_PUSH || stream->way == WH_BLOCKS_PULL;
	struct wh_gpu_context *gpu = stream->gpu;
	struct probe *probe;
	uint64_t allocated = 0;
	bool first;

	if ((between && (!from || length < PROBE_SHORT)) || atomic_load(&gpu->stands_still))
		return;
	probe = calloc(1, sizeof(*probe));
	if (!probe)
		return;
	probe->stream = stream;
	/* If the stream is in use, the times would include other jobs. */
	pthread_mutex_lock(&stream->lock);
	first = !stream->probed && !stream->head;
	stream->probed = true;
	pthread_mutex_unlock(&stream->lock);
	if (!first) {
		free(probe);
		return;
	}
	if (between || stream->way == WH_BLOCKS_WITHIN)
		allocated = probe_alloc(stream, 2 * PROBE_LONG);
	probe_choose_ranges(probe, allocated, from, length);
	probe->began = wh_now(); /* allocating may take long */
	probe_measure(probe);
	probe_free(stream, allocated); /* in the order of the stream */
	if (probe->late) {
		atomic_store(&gpu->stands_still, true);
		stream->late_probe = probe;
	} else {
		free(probe);
	}
}
