/* SPDX-License-Identifier: Apache-2.0 */
/* What work on a lane costs: the copy engine or the kernel, for so many pieces of such a length? */
#include <sched.h>
#include <stdatomic.h>

#include "core/core.h"
#include "transport/lane.h"
#include "util/clock.h"

void wh_lane_guess(struct wh_lane *lane)
{
	/* An H200 and its NVLinks on PCIe 5: bench/results/2026-11-20-h200x2-blocks-kernel.json. */
	static const struct wh_lane_cost typical[WH_BLOCKS_WAYS] = {
		[WH_BLOCKS_PUSH] = { 6000, 2500, 350, 390, false },
		[WH_BLOCKS_PULL] = { 6000, 2500, 360, 390, false },
		[WH_BLOCKS_TO_HOST] = { 6000, 2500, 52, 55, false },
		[WH_BLOCKS_FROM_HOST] = { 6000, 2500, 51, 55, false },
		[WH_BLOCKS_WITHIN] = { 6000, 2500, 1500, 2000, false },
	};

	lane->cost = typical[lane->way];
}

static double by_kernel(const struct wh_lane_cost *cost, uint64_t count, uint64_t length)
{
	/* Two addresses a piece have to get to the GPU. */
	return cost->launch + (double)count * ((double)length / cost->kernel_rate + 16 / 25.0);
}

static double by_copies(const struct wh_lane_cost *cost, uint64_t count, uint64_t length)
{
	return (double)count * (cost->copy + (double)length / cost->copy_rate);
}

bool wh_lane_prefers_kernel(const struct wh_lane *lane, uint64_t count, uint64_t length)
{
	return by_kernel(&lane->cost, count, length) < by_copies(&lane->cost, count, length);
}

double wh_lane_estimate(const struct wh_lane *lane, uint64_t count, uint64_t length)
{
	double kernel = by_kernel(&lane->cost, count, length);
	double copies = by_copies(&lane->cost, count, length);

	return kernel < copies ? kernel : copies;
}

/* ---- measuring --------------------------------------------------------------------------------- */

#define PROBE_SHORT ((uint64_t)64 << 10)
#define PROBE_LONG ((uint64_t)32 << 20) /* long enough that a GPU's own memory shows its rate */
#define PROBE_BLOCK ((uint64_t)4 << 10)
#define PROBE_COPIES 8
#define PROBE_TIMES 4 /* the best of them counts */

struct probe {
	struct wh_lane_job job;
	struct wh_lane *lane;
	uint64_t from, to;
	uint64_t length; /* of the long piece; at most PROBE_LONG */
	_Atomic int state; /* 0: runs, 1: done, negative: failed */
};

static void probe_done(struct wh_lane_job *job, int error, const char *text)
{
	struct probe *probe = wh_container(job, struct probe, job);

	(void)text;
	atomic_store(&probe->state, error ? error : 1);
}

static void probe_kernel(struct wh_lane_turn *turn, const struct probe *probe, uint64_t length)
{
	struct wh_lane_blocks blocks = {
		.job = { .block_length = PROBE_BLOCK,
			 .base_count = 1,
			 .source_stride = PROBE_BLOCK,
			 .target_stride = PROBE_BLOCK },
		.bits = probe->from | probe->to | PROBE_BLOCK,
	};

	blocks.job.source_base[0] = probe->from;
	blocks.job.target_base[0] = probe->to;
	wh_lane_blocks(turn, &blocks, 0, length / PROBE_BLOCK);
}

/* The shortest time of a job of `copies` copies of the length, or, for 0, of a kernel; ns. 0: it
 * failed. */
static double time_of(struct probe *probe, unsigned copies, uint64_t length)
{
	double best = 0;

	for (int i = 0; i < PROBE_TIMES; i++) {
		struct wh_lane_turn turn;
		int64_t start = wh_now();

		atomic_store(&probe->state, 0);
		probe->job = (struct wh_lane_job){ .done = probe_done };
		wh_lane_begin(probe->lane, &turn);
		for (unsigned c = 0; c < copies; c++)
			wh_lane_copy(&turn, probe->to, probe->from, length);
		if (!copies)
			probe_kernel(&turn, probe, length);
		wh_lane_end(&turn, &probe->job);
		while (!atomic_load(&probe->state)) {
			if (!wh_gpus_poll(probe->lane->gpu->gpus))
				sched_yield();
		}
		if (atomic_load(&probe->state) < 0)
			return 0;
		start = wh_now() - start;
		if (!i || (double)start < best)
			best = (double)start;
	}
	return best;
}

/* From the times of a short and a long piece. Where they do not differ by more than noise the rate
 * stays what it is. */
static double rate_of(double before, double at_short, double at_long, uint64_t bytes)
{
	return at_long - at_short > 200 ? (double)bytes / (at_long - at_short) : before;
}

static void measure(struct probe *probe)
{
	double one = time_of(probe, 1, PROBE_SHORT), many, large, kernel, kernel_large;
	struct wh_lane_cost cost = probe->lane->cost;
	uint64_t length = probe->length;

	many = time_of(probe, 1 + PROBE_COPIES, PROBE_SHORT);
	large = time_of(probe, 1, length);
	kernel = time_of(probe, 0, PROBE_SHORT);
	kernel_large = time_of(probe, 0, length);
	if (one <= 0 || many <= 0 || large <= 0 || kernel <= 0 || kernel_large <= 0)
		return; /* whoever uses the lane will learn why */
	if (length > PROBE_SHORT) {
		cost.copy_rate = rate_of(cost.copy_rate, one, large, length - PROBE_SHORT);
		cost.kernel_rate = rate_of(cost.kernel_rate, kernel, kernel_large,
					   length - PROBE_SHORT);
	}
	/* What a copy more takes; and what the kernel takes more than a copy, for both of them have the
	 * way to the GPU and back in their times. */
	cost.copy = (many - one) / PROBE_COPIES - (double)PROBE_SHORT / cost.copy_rate;
	cost.copy = cost.copy > 200 ? cost.copy : 200;
	cost.launch = kernel - one + cost.copy + (double)PROBE_SHORT / cost.copy_rate -
		      (double)PROBE_SHORT / cost.kernel_rate;
	cost.launch = cost.launch > 200 ? cost.launch : 200;
	cost.measured = true;
	pthread_mutex_lock(&probe->lane->lock);
	probe->lane->cost = cost;
	pthread_mutex_unlock(&probe->lane->lock);
}

/* Memory of the GPU for as long as the probe takes, from its pool: giving it back waits for nobody.
 * 0: there is none. */
static uint64_t borrow(struct wh_lane *lane, uint64_t bytes)
{
	struct wh_cuda *cuda = wh_gpus_cuda(lane->gpu->gpus);
	struct wh_cuda_scope scope;
	uint64_t address = 0;

	if (!cuda->cuMemAllocAsync || !cuda->cuMemFreeAsync || !lane->gpu->device->pools ||
	    wh_cuda_enter_context(cuda, lane->gpu->device, lane->gpu->context, &scope))
		return 0;
	if (cuda->cuMemAllocAsync(&address, bytes, lane->stream))
		address = 0;
	wh_cuda_leave(&scope);
	return address;
}

static void give_back(struct wh_lane *lane, uint64_t address)
{
	struct wh_cuda *cuda = wh_gpus_cuda(lane->gpu->gpus);
	struct wh_cuda_scope scope;

	if (!address ||
	    wh_cuda_enter_context(cuda, lane->gpu->device, lane->gpu->context, &scope))
		return;
	cuda->cuMemFreeAsync(address, lane->stream);
	wh_cuda_leave(&scope);
}

/* Which bytes are copied, and how many. Without borrowed memory the ring has to do. */
static void choose(struct probe *probe, uint64_t borrowed, uint64_t from, uint64_t length)
{
	struct wh_lane *lane = probe->lane;

	probe->length = WH_LANE_RING / 2;
	switch (lane->way) {
	case WH_BLOCKS_TO_HOST:
		probe->from = lane->ring_device;
		probe->to = lane->ring_host;
		break;
	case WH_BLOCKS_FROM_HOST:
		probe->from = lane->ring_host;
		probe->to = lane->ring_device;
		break;
	case WH_BLOCKS_WITHIN:
		probe->from = borrowed ? borrowed : lane->ring_device;
		probe->length = borrowed ? PROBE_LONG : probe->length;
		probe->to = probe->from + probe->length;
		break;
	default:
		/* Between GPUs, reading from the other: to write there would be to destroy. */
		probe->from = from;
		probe->to = borrowed ? borrowed : lane->ring_device;
		probe->length = borrowed ? PROBE_LONG : probe->length;
		if (length < probe->length)
			probe->length = length / PROBE_BLOCK * PROBE_BLOCK;
		break;
	}
}

void wh_lane_probe(struct wh_lane *lane, uint64_t from, uint64_t length)
{
	bool between = lane->way == WH_BLOCKS_PUSH || lane->way == WH_BLOCKS_PULL;
	struct probe probe = { .lane = lane };
	uint64_t borrowed = 0;
	bool mine;

	if (between && (!from || length < PROBE_SHORT))
		return;
	/* The ring is where the bytes go to, so that nobody else may use it: only before the first
	 * use of the lane. */
	pthread_mutex_lock(&lane->lock);
	mine = !lane->probed && !lane->head;
	lane->probed = true;
	pthread_mutex_unlock(&lane->lock);
	if (!mine)
		return;
	if (between || lane->way == WH_BLOCKS_WITHIN)
		borrowed = borrow(lane, 2 * PROBE_LONG);
	choose(&probe, borrowed, from, length);
	measure(&probe);
	give_back(lane, borrowed);
}
