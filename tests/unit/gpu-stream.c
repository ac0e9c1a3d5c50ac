/* SPDX-License-Identifier: Apache-2.0 */
/* gpu-stream.c: the copies of a GPU stream against a model: lists of pairs and of blocks of all
 * shapes, more than a ring holds, and the choice between kernel and copy engine */
#include <sched.h>

#include "fake-cuda.h"

#include "gpu/gpus.h"
#include "gpu/stream.h"
#include "util/clock.h"

/* Bytes on each side. Fewer under the thread sanitizer, which checks every 16 bytes that the fake
 * GPU moves. */
#ifdef __SANITIZE_THREAD__
#define ROOM ((uint64_t)10 << 20)
#else
#define ROOM ((uint64_t)24 << 20)
#endif
#define PAIRS 4096

struct bench {
	struct wh_engine *engine;
	struct wh_gpu_stream *stream;
	void *from, *to;
	uint8_t *source, *expected; /* bytes at `from`; bytes expected at `to` */
	uint8_t *seen; /* bytes read from `to` */
	struct wh_pair pairs[PAIRS];
};

static void set_up(struct bench *b, enum wh_blocks_way way)
{
	struct wh_memory_options options = { .size = sizeof(options),
					     .kind = WH_MEMORY_DEVICE,
					     .location = "cuda:0" };
	uint64_t state = 7;

	memset(b, 0, sizeof(*b));
	b->engine = engine_with(getenv("TEST_CUDA"));
	assert_int_equal(wh_memory_alloc(b->engine, ROOM, &options, &b->from), 0);
	assert_int_equal(wh_memory_alloc(b->engine, ROOM, &options, &b->to), 0);
	b->source = malloc(ROOM);
	b->expected = calloc(1, ROOM);
	b->seen = calloc(1, ROOM); /* calloc: valgrind does not see a GPU's writes */
	assert_true(b->source && b->expected && b->seen);
	for (uint64_t i = 0; i < ROOM; i += 8)
		memcpy(b->source + i, &(uint64_t){ next_random(&state) }, 8);
	AS_APPLICATION(b->engine, 0,
		       CU(b->engine, cuMemcpyHtoD, (uintptr_t)b->from, b->source, ROOM);
		       CU(b->engine, cuCtxSynchronize));
	assert_int_equal(wh_gpus_stream(b->engine->gpus, &b->engine->cuda->devices[0], NULL, way,
					false, &b->stream),
			 0);
}

static void tear_down(struct bench *b)
{
	assert_int_equal(wh_memory_free(b->engine, b->from), 0);
	assert_int_equal(wh_memory_free(b->engine, b->to), 0);
	assert_int_equal(wh_engine_close(b->engine), 0);
	free(b->source);
	free(b->expected);
	free(b->seen);
}

static void compare(struct bench *b)
{
	AS_APPLICATION(b->engine, 0, CU(b->engine, cuMemcpyDtoH, b->seen, (uintptr_t)b->to, ROOM));
	assert_true(!memcmp(b->seen, b->expected, ROOM));
}

struct turn {
	struct wh_gpu_stream_job job;
	_Atomic int done;
	int error;
};

static void ended(struct wh_gpu_stream_job *job, int error, const char *text)
{
	struct turn *turn = wh_container(job, struct turn, job);

	(void)text;
	turn->error = error;
	atomic_store(&turn->done, 1);
}

static void wait_for(struct bench *b, struct turn *turn)
{
	while (!atomic_load(&turn->done)) {
		wh_gpus_poll(b->engine->gpus);
		sched_yield(); /* valgrind runs one thread at a time */
	}
	assert_int_equal(turn->error, 0);
}

/* Costs that make the kernel move everything, nothing, or the shorter fragments. */
enum costs { ALL_KERNEL, ALL_COPIES, MIXED, COSTS };

static void set_costs(struct wh_gpu_stream *stream, enum costs costs)
{
	static const struct wh_gpu_stream_cost all[COSTS] = {
		[ALL_KERNEL] = { 1, 1e6, 1e6, 100, 100, true },
		[ALL_COPIES] = { 1e12, 1, 1, 100, 100, true },
		[MIXED] = { 10, 1000, 1000, 50, 100, true }, /* copy engine from 100,000 bytes on */
	};

	stream->measured = all[costs];
	atomic_store(&stream->cost, &stream->measured);
	memset(stream->gpu->lessons, 0, sizeof(stream->gpu->lessons));
}

/* ---- pairs ------------------------------------------------------------- */

static uint64_t random_length(uint64_t *state, int shape)
{
	static const uint64_t odd[] = { 1,     2,     15,    16,     17,    255,
					256,   257,   4095,  4096,   4097,  65535,
					65536, 65537, 70001, 131073, 99999, 100001 };

	switch (shape) {
	case 0:
		return 4096; /* all equal */
	case 1:
		return 1 + next_random(state) % 64;
	case 2:
		return odd[next_random(state) % (sizeof(odd) / sizeof(odd[0]))];
	case 3:
		return 16 * (1 + next_random(state) % 300);
	default: /* equal for a while, then another */
		return next_random(state) % 100 ? 1000 : 1 + next_random(state) % 5000;
	}
}

/* Targets in ascending order with gaps; sources anywhere. */
static uint64_t make_pairs(struct bench *b, uint64_t *state, int shape)
{
	uint64_t at = next_random(state) % 64, n = 0;
	bool even = shape == 0 || shape == 3;

	for (; n < PAIRS; n++) {
		uint64_t length = random_length(state, shape), from;

		if (at + length > ROOM)
			break;
		from = next_random(state) % (ROOM - length);
		if (even) {
			from &= ~UINT64_C(15);
			at = (at + 15) & ~UINT64_C(15);
		}
		if (at + length > ROOM)
			break;
		b->pairs[n] = (struct wh_pair){ (uintptr_t)b->from + from, (uintptr_t)b->to + at,
						length };
		memcpy(b->expected + at, b->source + from, length);
		at += length + (even ? 0 : next_random(state) % 9);
	}
	return n;
}

/* In as many submissions as it takes, several in flight. */
static unsigned put_all(struct bench *b, uint64_t count)
{
	struct turn turns[4] = { 0 };
	unsigned n = 0;
	uint64_t put = 0;

	while (put < count) {
		struct turn *turn = &turns[n++ % 4];
		struct wh_gpu_stream_turn doing;
		uint64_t now;

		if (turn->job.done)
			wait_for(b, turn);
		*turn = (struct turn){ .job.done = ended };
		wh_gpu_stream_begin(b->stream, &doing);
		now = wh_gpu_stream_pairs(&doing, b->pairs + put, count - put);
		wh_gpu_stream_end(&doing, &turn->job);
		assert_true(now <= count - put);
		put += now;
		assert_true(n < 100000); /* no progress */
	}
	for (unsigned i = 0; i < 4; i++) {
		if (turns[i].job.done)
			wait_for(b, &turns[i]);
	}
	return n;
}

static void pairs__against_a_model(void **state)
{
	uint64_t random = 4711;
	struct bench *b = malloc(sizeof(*b));

	(void)state;
	assert_non_null(b);
	set_up(b, WH_BLOCKS_WITHIN);
	for (int shape = 0; shape < 5; shape++) {
		for (enum costs costs = 0; costs < COSTS; costs++) {
			set_costs(b->stream, costs);
			put_all(b, make_pairs(b, &random, shape));
			compare(b);
		}
	}
	tear_down(b);
	free(b);
}

/* A hundred thousand pairs of one byte exceed the ring. */
static void pairs__more_than_the_ring(void **state)
{
	enum { COUNT = 200000 };
	struct wh_pair *pairs = malloc(COUNT * sizeof(*pairs));
	struct bench *b = malloc(sizeof(*b));
	struct turn turn = { .job.done = ended };
	struct wh_gpu_stream_turn doing;
	uint64_t put = 0, now, submissions = 0;

	(void)state;
	assert_true(pairs && b);
	set_up(b, WH_BLOCKS_WITHIN);
	set_costs(b->stream, ALL_KERNEL);
	for (uint64_t i = 0; i < COUNT; i++) {
		uint64_t from = (i * 7919 * 64) % ROOM;

		pairs[i] = (struct wh_pair){ (uintptr_t)b->from + from, (uintptr_t)b->to + 3 * i,
					     1 + i % 2 };
		memcpy(b->expected + 3 * i, b->source + from, 1 + i % 2);
	}
	while (put < COUNT) {
		turn = (struct turn){ .job.done = ended };
		wh_gpu_stream_begin(b->stream, &doing);
		now = wh_gpu_stream_pairs(&doing, pairs + put, COUNT - put);
		assert_true(now > 0);
		/* What does not fit now does not fit a second time in the same submission. */
		if (now < COUNT - put)
			now += wh_gpu_stream_pairs(&doing, pairs + put + now, COUNT - put - now);
		wh_gpu_stream_end(&doing, &turn.job);
		put += now;
		submissions++;
		wait_for(b, &turn);
	}
	assert_true(submissions > 1);
	compare(b);
	tear_down(b);
	free(pairs);
	free(b);
}

/* One long pair, longer than a launch handles and than a list of all size classes holds. */
static void pairs__long_ones(void **state)
{
	struct bench *b = malloc(sizeof(*b));

	(void)state;
	assert_non_null(b);
	set_up(b, WH_BLOCKS_WITHIN);
	set_costs(b->stream, ALL_KERNEL);
	b->pairs[0] = (struct wh_pair){ (uintptr_t)b->from + 1, (uintptr_t)b->to, ROOM - 7000 };
	b->pairs[1] = (struct wh_pair){ (uintptr_t)b->from, (uintptr_t)b->to + ROOM - 7000, 6999 };
	memcpy(b->expected, b->source + 1, ROOM - 7000);
	memcpy(b->expected + ROOM - 7000, b->source, 6999);
	put_all(b, 2);
	compare(b);
	tear_down(b);
	free(b);
}

/* ---- blocks ------------------------------------------------------------ */

/* Blocks of all bases, with offset lists on both sides, on one, or on none. */
static void blocks_once(struct bench *b, uint64_t *state, uint64_t length, uint64_t count,
			unsigned bases, unsigned lists)
{
	uint64_t *source = malloc(8 * count), *target = malloc(8 * count), put = 0, now;
	struct wh_gpu_stream_blocks work = { .job = { .block_length = length,
						      .base_count = bases,
						      .source_stride = length,
						      .target_stride = length } };
	uint64_t all = count * length;

	assert_true(source && target && bases * all <= ROOM);
	for (uint64_t i = 0; i < count; i++)
		source[i] = target[i] = i * length;
	for (uint64_t i = count - 1; i; i--) {
		uint64_t j = next_random(state) % (i + 1), kept = target[i];

		target[i] = target[j];
		target[j] = kept;
		source[i] = next_random(state) % count * length;
	}
	work.source_list = lists & 1 ? source : NULL;
	work.target_list = lists & 2 ? target : NULL;
	work.bits = length;
	for (unsigned k = 0; k < bases; k++) {
		work.job.source_base[k] = (uintptr_t)b->from + k * all;
		work.job.target_base[k] = (uintptr_t)b->to + k * all;
		work.bits |= work.job.source_base[k] | work.job.target_base[k];
		for (uint64_t i = 0; i < count; i++)
			memcpy(b->expected + k * all + (lists & 2 ? target[i] : i * length),
			       b->source + k * all + (lists & 1 ? source[i] : i * length), length);
	}
	while (put < count) {
		struct turn turn = { .job.done = ended };
		struct wh_gpu_stream_turn doing;

		wh_gpu_stream_begin(b->stream, &doing);
		now = wh_gpu_stream_blocks(&doing, &work, put, count - put);
		/* As many as fit, then as many again, possibly none. */
		if (now && now < count - put)
			now += wh_gpu_stream_blocks(&doing, &work, put + now, count - put - now);
		wh_gpu_stream_end(&doing, &turn.job);
		wait_for(b, &turn);
		assert_true(now);
		put += now;
	}
	compare(b);
	free(source);
	free(target);
}

static void blocks__against_a_model(void **state)
{
	static const uint64_t lengths[] = { 1, 3, 4, 8, 12, 16, 48, 1000, 4096, 4100, 70000 };
	struct bench *b = malloc(sizeof(*b));
	uint64_t random = 99;

	(void)state;
	assert_non_null(b);
	set_up(b, WH_BLOCKS_PUSH);
	for (unsigned i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		for (unsigned lists = 0; lists < 4; lists++) {
			unsigned bases = 1 + (unsigned)(next_random(&random) % WH_BLOCKS_INLINE);
			uint64_t most = ROOM / lengths[i] / bases;

			blocks_once(b, &random, lengths[i], most < 3000 ? most : 3000, bases,
				    lists);
		}
	}
	/* More than the ring holds. */
	blocks_once(b, &random, 16, 300000, 2, 3);
	blocks_once(b, &random, 4, 300000, 1, 2);
	tear_down(b);
	free(b);
}

/* ---- costs ------------------------------------------------------------- */

/* The estimate for the cheaper way. */
static double estimate(const struct wh_gpu_stream *stream, uint64_t count, uint64_t length)
{
	double kernel, copies;

	wh_gpu_stream_times(stream, count, length, &kernel, &copies);
	return kernel < copies ? kernel : copies;
}

static void costs__choice(void **state)
{
	struct bench *b = malloc(sizeof(*b));
	double kernel_takes, copies_take;
	struct wh_gpu_stream stream;

	(void)state;
	assert_non_null(b);
	set_up(b, WH_BLOCKS_PUSH);
	stream = *b->stream;
	wh_gpu_stream_guess_cost(&stream);
	/* One large fragment: the copy engine. Many small ones: the kernel. */
	assert_false(wh_gpu_stream_prefers_kernel(&stream, 1, UINT64_C(1) << 30));
	assert_true(wh_gpu_stream_prefers_kernel(&stream, 16384, 4096));
	/* More fragments of one length never turn the choice back to copies. */
	for (uint64_t length = 1; length <= 1 << 20; length *= 4) {
		bool kernel = false;

		for (uint64_t count = 1; count <= 1 << 20; count *= 2) {
			assert_true(!kernel ||
				    wh_gpu_stream_prefers_kernel(&stream, count, length));
			kernel = wh_gpu_stream_prefers_kernel(&stream, count, length);
			assert_true(estimate(&stream, count, length) > 0);
			assert_true(estimate(&stream, 2 * count, length) >=
				    estimate(&stream, count, length));
		}
	}
	set_costs(&stream, ALL_COPIES);
	assert_false(wh_gpu_stream_prefers_kernel(&stream, 10, 8));
	/* They would take 150 times as long, typically: no first look is believed that much. */
	assert_true(wh_gpu_stream_prefers_kernel(&stream, 1000, 8));
	set_costs(&stream, ALL_KERNEL);
	assert_true(wh_gpu_stream_prefers_kernel(&stream, 1, 8));
	/* No fragments and no bytes: no division by zero. */
	assert_true(estimate(&stream, 0, 0) >= 0);
	/* A missing kernel is never preferred. */
	strcpy(stream.gpu->no_kernels, "why");
	assert_false(wh_gpu_stream_prefers_kernel(&stream, 1, 8));
	wh_gpu_stream_times(&stream, 1000, 8, &kernel_takes, &copies_take);
	assert_true(kernel_takes < 1e-9 && copies_take > 0);
	assert_int_equal(wh_gpu_stream_ctas(&stream, 1000, 8), 0);
	stream.gpu->no_kernels[0] = 0;
	tear_down(b);
	free(b);
}

/* What a kernel takes from a model counts, unless the work goes first. */
static void costs__burden(void **state)
{
	const struct wh_cuda_device *device;
	struct bench *b = malloc(sizeof(*b));
	struct wh_gpu_stream *from_host, *urgent;
	struct wh_gpus *gpus;

	(void)state;
	assert_non_null(b);
	set_up(b, WH_BLOCKS_TO_HOST);
	gpus = b->engine->gpus;
	device = b->stream->gpu->device;
	assert_int_equal(wh_gpus_stream(gpus, &b->engine->cuda->devices[0], NULL,
					WH_BLOCKS_FROM_HOST, false, &from_host),
			 0);
	assert_int_equal(wh_gpus_stream(gpus, &b->engine->cuda->devices[0], NULL, WH_BLOCKS_TO_HOST,
					true, &urgent),
			 0);
	assert_true(wh_gpu_stream_burden(b->stream) > 0.1);
	assert_true(wh_gpu_stream_burden(from_host) < 0.01);
	wh_gpus_share(gpus, device, true);
	assert_true(wh_gpu_stream_burden(b->stream) > 0.4);
	assert_true(wh_gpu_stream_burden(from_host) > 0.4);
	assert_true(wh_gpu_stream_burden(urgent) < 0.01);
	wh_gpus_share(gpus, device, false);
	assert_true(wh_gpu_stream_burden(from_host) < 0.01);
	tear_down(b);
	free(b);
}

/* Between two GPUs that both send a launch gets more CTAs. */
static void streams__opposed(void **state)
{
	struct bench *b = malloc(sizeof(*b));
	struct wh_gpu_stream *other[2];

	(void)state;
	assert_non_null(b);
	set_up(b, WH_BLOCKS_PUSH);
	for (int i = 0; i < 2; i++)
		assert_int_equal(wh_gpus_stream(b->engine->gpus, &b->engine->cuda->devices[i], NULL,
						i ? WH_BLOCKS_PUSH : WH_BLOCKS_PULL, false,
						&other[i]),
				 0);
	assert_false(wh_gpu_stream_is_opposed(b->stream));
	assert_int_equal(wh_gpu_stream_ctas(b->stream, 100000, 4096), 32);
	for (int i = 0; i < 2; i++) { /* into this GPU; out of the other */
		atomic_fetch_add(&other[i]->pending, 1);
		assert_true(wh_gpu_stream_is_opposed(b->stream));
		assert_int_equal(wh_gpu_stream_ctas(b->stream, 100000, 4096), 64);
		atomic_fetch_sub(&other[i]->pending, 1);
	}
	/* Who submits both ways in turns finds the other one idle now and then. */
	assert_true(atomic_load(&b->stream->opposed_at) && atomic_load(&other[1]->opposed_at));
	atomic_store(&b->stream->opposed_at, wh_now() + WH_SECOND);
	assert_true(wh_gpu_stream_is_opposed(b->stream));
	atomic_store(&b->stream->opposed_at, wh_now() - WH_SECOND);
	assert_false(wh_gpu_stream_is_opposed(b->stream));
	atomic_fetch_add(&b->stream->pending, 1); /* more of the same */
	assert_false(wh_gpu_stream_is_opposed(b->stream));
	atomic_fetch_sub(&b->stream->pending, 1);
	tear_down(b);
	free(b);
}

/* A turn of many copies takes its time to submit. Meanwhile nobody polls; what the turn before it
 * took is what the GPU needed for that all the same. */
static void lessons__behind_a_long_submission(void **state)
{
	struct turn first = { .job.done = ended }, second = { .job.done = ended };
	struct bench *b = malloc(sizeof(*b));
	const uint64_t pairs = 2048; /* several calls of the driver */
	struct wh_gpu_stream_turn doing;
	const struct wh_figure *figure;
	int64_t begun, seen;
	double took;

	(void)state;
	assert_non_null(b);
	set_up(b, WH_BLOCKS_FROM_HOST);
	set_costs(b->stream, ALL_KERNEL);
	for (uint64_t i = 0; i < pairs; i++)
		b->pairs[i] = (struct wh_pair){ (uintptr_t)b->from + 4096 * i,
						(uintptr_t)b->to + 4096 * i, 4096 };
	begun = wh_now();
	wh_gpu_stream_begin(b->stream, &doing);
	assert_int_equal(wh_gpu_stream_pairs(&doing, b->pairs, 8), 8);
	wh_gpu_stream_close(&doing);
	wh_gpu_stream_attach(&doing, &first.job, false);
	wh_gpus_job_added(b->engine->gpus);
	/* The lock stays, so no poll sees that it has ended. */
	while (wh_gpu_stream_in_flight(b->stream))
		sched_yield();
	wh_gpu_stream_open(b->stream, &doing);
	doing.by_copies = true;
	wh_gpu_stream_pairs(&doing, b->pairs, pairs / 2);
	seen = wh_now();
	while (wh_now() < seen + 20 * WH_MS)
		sched_yield();
	wh_gpu_stream_pairs(&doing, b->pairs + pairs / 2, pairs / 2);
	assert_int_equal(first.done, 0);
	wh_gpu_stream_end(&doing, &second.job);
	wait_for(b, &first);
	wait_for(b, &second);
	figure = &first.job.lesson.lesson->by[WH_MOVER_KERNEL];
	assert_int_equal(figure->turns, 1);
	took = figure->factor * first.job.lesson.typical;
	assert_true(took > 0 && took <= (double)(seen - begun));
	tear_down(b);
	free(b);
}

/* Copies are submitted while the GPU is busy with another turn, and end soon after that. They count
 * as what submitting them took: turns of their like, one after the other, are no faster. */
static void lessons__a_long_submission(void **state)
{
	struct turn first = { .job.done = ended }, second = { .job.done = ended };
	struct bench *b = malloc(sizeof(*b));
	struct wh_gpu_stream_turn doing;
	const struct wh_figure *figure;
	struct wh_semaphore *gate, *second_gate;
	int64_t until;

	(void)state;
	assert_non_null(b);
	set_up(b, WH_BLOCKS_FROM_HOST);
	set_costs(b->stream, ALL_KERNEL);
	for (uint64_t i = 0; i < 8; i++)
		b->pairs[i] = (struct wh_pair){ (uintptr_t)b->from + 4096 * i,
						(uintptr_t)b->to + 4096 * i, 4096 };
	gate = stream_hold(b->engine, b->stream);
	wh_gpu_stream_begin(b->stream, &doing);
	assert_int_equal(wh_gpu_stream_pairs(&doing, b->pairs, 8), 8);
	wh_gpu_stream_end(&doing, &first.job);
	second_gate = stream_hold(b->engine, b->stream); /* no poll sees both end */
	wh_gpu_stream_begin(b->stream, &doing);
	doing.by_copies = true;
	until = wh_now() + 50 * WH_MS;
	assert_int_equal(wh_gpu_stream_pairs(&doing, b->pairs, 8), 8);
	while (wh_now() < until)
		sched_yield();
	wh_gpu_stream_end(&doing, &second.job);
	stream_go_on(b->engine, gate);
	wait_for(b, &first);
	stream_go_on(b->engine, second_gate);
	wait_for(b, &second);
	figure = &second.job.lesson.lesson->by[WH_MOVER_COPIES];
	assert_int_equal(figure->turns, 1);
	assert_true(figure->factor * second.job.lesson.typical >= 50.0 * WH_MS);
	tear_down(b);
	free(b);
}

/* ---- many copies in one call ------------------------------------------------------------------
 */

#define COPY_CALL "cuMemcpyBatchAsync_v2"

/* `count` pairs of different lengths by copies; how many single copies and how many calls that
 * takes. */
static void copies_submit(struct bench *b, uint64_t count, uint64_t *single, uint64_t *calls)
{
	struct turn turn = { .job.done = ended };
	struct wh_gpu_stream_turn doing;
	uint8_t *before = malloc(ROOM);
	uint64_t random = 5;

	assert_non_null(before);
	memcpy(before, b->expected, ROOM);
	assert_true(make_pairs(b, &random, 2) >= count);
	memcpy(b->expected, before, ROOM);
	free(before);
	for (uint64_t i = 0; i < count; i++)
		memcpy(b->expected + (b->pairs[i].to - (uintptr_t)b->to),
		       b->source + (b->pairs[i].from - (uintptr_t)b->from), b->pairs[i].length);
	*single = fake_calls("cuMemcpyAsync");
	*calls = fake_calls(COPY_CALL);
	wh_gpu_stream_begin(b->stream, &doing);
	doing.by_copies = true;
	assert_int_equal(wh_gpu_stream_pairs(&doing, b->pairs, count), count);
	wh_gpu_stream_end(&doing, &turn.job);
	wait_for(b, &turn);
	*single = fake_calls("cuMemcpyAsync") - *single;
	*calls = fake_calls(COPY_CALL) - *calls;
	compare(b);
}

static void copies__many_in_one_call(void **state)
{
	static const enum wh_blocks_way ways[] = { WH_BLOCKS_TO_HOST, WH_BLOCKS_FROM_HOST,
						   WH_BLOCKS_PUSH };
	struct bench *b = malloc(sizeof(*b));
	uint64_t single, calls;

	(void)state;
	assert_non_null(b);
	for (unsigned i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		set_up(b, ways[i]);
		copies_submit(b, 60, &single, &calls);
		assert_int_equal(single, 0);
		assert_int_equal(calls, 1);
		copies_submit(b, 1, &single, &calls);
		assert_int_equal(single, 1);
		assert_int_equal(calls, 0);
		tear_down(b);
	}
	/* Within a GPU it would not be faster. */
	set_up(b, WH_BLOCKS_WITHIN);
	copies_submit(b, 60, &single, &calls);
	assert_int_equal(single, 60);
	assert_int_equal(calls, 0);
	tear_down(b);
	free(b);
}

/* A bad copy among many is not taken for a driver that refuses the call. */
static void copies__one_is_bad(void **state)
{
	struct bench *b = malloc(sizeof(*b));
	struct turn turn = { .job.done = ended };
	struct wh_gpu_stream_turn doing;
	uint64_t single, calls;

	(void)state;
	assert_non_null(b);
	set_up(b, WH_BLOCKS_TO_HOST);
	for (unsigned i = 0; i < 2; i++)
		b->pairs[i] = (struct wh_pair){ (uintptr_t)b->from, (uintptr_t)b->to, 64 };
	fake_fail(COPY_CALL, 1, 1);
	fake_fail("cuMemcpyAsync", 2, 1);
	wh_gpu_stream_begin(b->stream, &doing);
	doing.by_copies = true;
	wh_gpu_stream_pairs(&doing, b->pairs, 2);
	wh_gpu_stream_end(&doing, &turn.job);
	fake_heal();
	memcpy(b->expected, b->source, 64);
	while (!atomic_load(&turn.done)) {
		wh_gpus_poll(b->engine->gpus);
		sched_yield();
	}
	assert_int_not_equal(turn.error, 0);
	copies_submit(b, 60, &single, &calls);
	assert_int_equal(single, 0);
	assert_int_equal(calls, 1);
	tear_down(b);
	free(b);
}

/* What the driver refuses to take together it gets one by one, and is not asked again. */
static void copies__refused_together(void **state)
{
	struct bench *b = malloc(sizeof(*b));
	uint64_t single, calls;

	(void)state;
	assert_non_null(b);
	set_up(b, WH_BLOCKS_TO_HOST);
	fake_fail(COPY_CALL, 1, 801);
	copies_submit(b, 60, &single, &calls);
	fake_heal();
	assert_int_equal(single, 60);
	assert_int_equal(calls, 1);
	copies_submit(b, 60, &single, &calls);
	assert_int_equal(single, 60);
	assert_int_equal(calls, 0);
	tear_down(b);
	free(b);
}

/* A stream's priority, and the CTAs of a launch of many blocks of 4 KiB. */
static void first_check(const char *first, const char *second, enum wh_blocks_way way, bool urgent,
			int priority, uint32_t ctas)
{
	int (*priority_of)(void *, int *) = fake_symbol("cuStreamGetPriority");
	struct wh_engine *engine = engine_with_settings(getenv("TEST_CUDA"), first, second);
	struct wh_gpu_stream *stream;
	int found = 1;

	AS_APPLICATION(engine, 0, (void)0);
	assert_int_equal(
		wh_gpus_stream(engine->gpus, &engine->cuda->devices[0], NULL, way, urgent, &stream),
		0);
	assert_int_equal(priority_of(stream->handle, &found), 0);
	assert_int_equal(found, priority);
	assert_int_equal(wh_gpu_stream_ctas(stream, 100000, 4096), ctas);
	assert_int_equal(wh_engine_close(engine), 0);
}

/* The fake driver's priorities are 0, the lowest, to -5. */
static void streams__who_goes_first(void **state)
{
	(void)state;
	/* By default the model. */
	first_check(NULL, NULL, WH_BLOCKS_TO_HOST, false, 0, 2);
	first_check(NULL, NULL, WH_BLOCKS_FROM_HOST, false, 0, 8);
	first_check("model_first=1", NULL, WH_BLOCKS_TO_HOST, false, 0, 2);
	first_check("model_first=0", NULL, WH_BLOCKS_TO_HOST, false, -5, 8);
	first_check("model_first=0", NULL, WH_BLOCKS_FROM_HOST, false, -5, 8);
	/* Batches of the priority `latency` never wait behind others. */
	first_check(NULL, NULL, WH_BLOCKS_TO_HOST, true, -5, 2);
	/* A number that is set holds for every way. */
	first_check("ctas=5", NULL, WH_BLOCKS_TO_HOST, false, 0, 5);
	first_check("ctas=5", "model_first=0", WH_BLOCKS_TO_HOST, false, -5, 5);
	first_check("ctas=5", NULL, WH_BLOCKS_FROM_HOST, false, 0, 5);
}

static void costs__probe(void **state)
{
	struct bench *b = malloc(sizeof(*b));

	(void)state;
	assert_non_null(b);
	for (enum wh_blocks_way way = 0; way < WH_BLOCKS_WAYS; way++) {
		const struct wh_gpu_stream_cost *cost;

		set_up(b, way);
		assert_false(atomic_load(&b->stream->cost)->measured);
		wh_gpu_stream_probe(b->stream, (uintptr_t)b->from, ROOM);
		cost = atomic_load(&b->stream->cost);
		assert_true(cost->measured && cost->launch > 0 && cost->copy > 0);
		assert_true(cost->kernel_rate > 0 && cost->copy_rate > 0);
		memset(b->expected, 0, ROOM);
		compare(b); /* the measurement writes only to memory of its own */
		tear_down(b);
	}
	free(b);
}

/* ---- storing the semaphore --------------------------------------------------------------------
 */

#define FLIGHT 64
#define PIECE ((uint64_t)4096)
#define STORE "cuStreamWriteValue32_v2"

static void piece_submit(struct bench *b, unsigned index, struct turn *turn)
{
	struct wh_pair pair = { (uintptr_t)b->from + index * PIECE,
				(uintptr_t)b->to + index * PIECE, PIECE };
	struct wh_gpu_stream_turn doing;

	*turn = (struct turn){ .job.done = ended };
	wh_gpu_stream_begin(b->stream, &doing);
	doing.by_copies = true; /* nor is the kernel tried, which stores by itself */
	assert_int_equal(wh_gpu_stream_pairs(&doing, &pair, 1), 1);
	wh_gpu_stream_end(&doing, &turn->job);
	memcpy(b->expected + index * PIECE, b->source + index * PIECE, PIECE);
}

/* Alone, each batch has its end stored at once. */
static void stores__alone(void **state)
{
	struct bench *b = malloc(sizeof(*b));
	uint64_t copies, stores;
	struct turn turn;

	(void)state;
	assert_non_null(b);
	set_up(b, WH_BLOCKS_WITHIN);
	copies = fake_calls("cuMemcpyAsync");
	stores = fake_calls(STORE);
	for (unsigned i = 0; i < FLIGHT; i++) {
		piece_submit(b, i, &turn);
		wait_for(b, &turn);
		assert_int_equal(fake_calls(STORE) - stores, i + 1);
	}
	assert_int_equal(fake_calls("cuMemcpyAsync") - copies, FLIGHT);
	compare(b);
	tear_down(b);
	free(b);
}

/* The more are in flight, the fewer have a store of their own. */
static void stores__many_in_flight(void **state)
{
	struct bench *b = malloc(sizeof(*b));
	struct turn turns[FLIGHT];
	struct wh_semaphore *gate;
	uint64_t copies, stores;

	(void)state;
	assert_non_null(b);
	set_up(b, WH_BLOCKS_WITHIN);
	for (unsigned round = 0; round < 20; round++) {
		gate = stream_hold(b->engine, b->stream);
		copies = fake_calls("cuMemcpyAsync");
		stores = fake_calls(STORE);
		for (unsigned i = 0; i < FLIGHT; i++)
			piece_submit(b, i, &turns[i]);
		stores = fake_calls(STORE) - stores;
		copies = fake_calls("cuMemcpyAsync") - copies;
		stream_go_on(b->engine, gate);
		/* Nothing follows: polls see to the last ones. */
		for (unsigned i = 0; i < FLIGHT; i++)
			wait_for(b, &turns[i]);
		/* Each of the first 7, then each second one, and so on to each ninth. Polls add
		 * none, as there is enough before the GPU. */
		assert_in_range(stores, FLIGHT / 9, 20);
		assert_int_equal(copies, FLIGHT);
	}
	compare(b);
	tear_down(b);
	free(b);
}

/* The driver refuses a store that a poll asks for: all that was in flight fails, nothing hangs. */
static void stores__refused_to_a_poll(void **state)
{
	struct bench *b = malloc(sizeof(*b));
	struct turn turns[FLIGHT];
	struct wh_semaphore *gate;
	unsigned failed = 0;

	(void)state;
	assert_non_null(b);
	set_up(b, WH_BLOCKS_WITHIN);
	gate = stream_hold(b->engine, b->stream);
	for (unsigned i = 0; i < FLIGHT; i++)
		piece_submit(b, i, &turns[i]);
	fake_fail(STORE, 1, 999); /* the last jobs have none yet */
	stream_go_on(b->engine, gate);
	for (unsigned i = 0; i < FLIGHT; i++) {
		while (!atomic_load(&turns[i].done)) {
			wh_gpus_poll(b->engine->gpus);
			sched_yield();
		}
		failed += turns[i].error != 0;
	}
	assert_in_range(failed, 1, FLIGHT);
	assert_int_not_equal(turns[FLIGHT - 1].error, 0);
	fake_heal();
	tear_down(b);
	free(b);
}

/* ---- lessons -----------------------------------------------------------------------------------
 */

/* Little, so that a busy machine and a sanitizer add little to the delays that a test sets. */
#define LESSON_BYTES ((uint64_t)64 << 10)

/* One pair, or as many strided blocks, as one turn. `by_copies`: whatever is faster. */
static void lesson_turn(struct bench *b, bool blocks, bool by_copies)
{
	struct wh_gpu_stream_blocks work = { .job = { .block_length = LESSON_BYTES / 4,
						      .base_count = 1,
						      .source_stride = LESSON_BYTES / 4,
						      .target_stride = LESSON_BYTES / 4 } };
	struct wh_pair pair = { (uintptr_t)b->from, (uintptr_t)b->to, LESSON_BYTES };
	struct wh_pair four[4];
	struct turn turn = { .job.done = ended };
	struct wh_gpu_stream_turn doing;
	bool kernel = blocks && !by_copies &&
		      wh_gpu_stream_choose(b->stream, 4, LESSON_BYTES / 4) == WH_MOVER_KERNEL;

	for (unsigned i = 0; i < 4; i++)
		four[i] = (struct wh_pair){ pair.from + i * LESSON_BYTES / 4,
					    pair.to + i * LESSON_BYTES / 4, LESSON_BYTES / 4 };
	work.job.source_base[0] = pair.from;
	work.job.target_base[0] = pair.to;
	work.bits = pair.from | pair.to | LESSON_BYTES / 4;
	wh_gpu_stream_begin(b->stream, &doing);
	doing.by_copies = blocks && !kernel;
	if (kernel)
		assert_int_equal(wh_gpu_stream_blocks(&doing, &work, 0, 4), 4);
	else if (blocks)
		assert_int_equal(wh_gpu_stream_pairs(&doing, four, 4), 4);
	else
		assert_int_equal(wh_gpu_stream_pairs(&doing, &pair, 1), 1);
	wh_gpu_stream_end(&doing, &turn.job);
	wait_for(b, &turn);
}

/* A delay, us, that is long beside what a turn takes here by itself: a busy machine, a sanitizer or
 * valgrind make milliseconds of it. */
static unsigned lesson_delay(enum wh_blocks_way way, bool blocks)
{
	struct bench *b = malloc(sizeof(*b));
	int64_t longest = 0;

	assert_non_null(b);
	set_up(b, way);
	for (unsigned i = 0; i < 8; i++) {
		int64_t since = wh_now();

		lesson_turn(b, blocks, true);
		longest = wh_now() - since > longest ? wh_now() - since : longest;
	}
	tear_down(b);
	free(b);
	return 10000 + (unsigned)(4 * longest / 1000);
}

/* The first look was beside other work: it shows the better mover as far slower. Half of the turns
 * afterwards take a quarter more of the slower one's delay, by chance. */
static void lesson_once(enum wh_blocks_way way, enum wh_mover better, bool blocks)
{
	void (*slow)(unsigned, unsigned, unsigned) = fake_symbol("fake_cuda_slow");
	uint64_t count = blocks ? 4 : 1, length = LESSON_BYTES / count, copies;
	unsigned delay = lesson_delay(way, blocks), first = 3 * delay;
	struct bench *b = malloc(sizeof(*b));
	const unsigned last = 40;
	bool kernel = better == WH_MOVER_KERNEL;

	assert_non_null(b);
	set_up(b, way);
	slow(kernel ? first : 0, kernel ? 0 : first, 0);
	wh_gpu_stream_probe(b->stream, (uintptr_t)b->from, ROOM);
	assert_true(atomic_load(&b->stream->cost)->measured);
	assert_int_equal(wh_gpu_stream_prefers_kernel(b->stream, count, length), !kernel);
	slow(kernel ? 0 : delay, kernel ? delay : 0, delay / 4);
	for (unsigned i = 0; i < 100; i++)
		lesson_turn(b, blocks, false);
	assert_int_equal(wh_gpu_stream_prefers_kernel(b->stream, count, length), kernel);
	/* The four go in one call. */
	copies = fake_calls(blocks ? COPY_CALL : "cuMemcpyAsync");
	for (unsigned i = 0; i < last; i++)
		lesson_turn(b, blocks, false);
	copies = fake_calls(blocks ? COPY_CALL : "cuMemcpyAsync") - copies;
	/* The others try the slower mover again. */
	assert_true(kernel ? copies <= 5 : copies >= last - 5);
	memcpy(b->expected, b->source, LESSON_BYTES);
	compare(b);
	slow(0, 0, 0);
	tear_down(b);
	free(b);
}

static void lessons__pairs_after_a_noisy_look(void **state)
{
	(void)state;
	lesson_once(WH_BLOCKS_WITHIN, WH_MOVER_COPIES, false);
	lesson_once(WH_BLOCKS_WITHIN, WH_MOVER_KERNEL, false);
}

static void lessons__blocks_after_a_noisy_look(void **state)
{
	(void)state;
	lesson_once(WH_BLOCKS_PUSH, WH_MOVER_COPIES, true);
	lesson_once(WH_BLOCKS_PUSH, WH_MOVER_KERNEL, true);
}

/* Urgent work never tries, nor does short work with nothing before it. */
static void lessons__never_at_the_cost_of_latency(void **state)
{
	struct bench *b = malloc(sizeof(*b));
	struct wh_lesson *lessons;

	(void)state;
	assert_non_null(b);
	set_up(b, WH_BLOCKS_WITHIN);
	lessons = b->stream->gpu->lessons[WH_BLOCKS_WITHIN];
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(wh_gpu_stream_choose(b->stream, 1, 4096),
				 wh_gpu_stream_prefers_kernel(b->stream, 1, 4096) ?
					 WH_MOVER_KERNEL :
					 WH_MOVER_COPIES);
	assert_int_equal(atomic_load(&lessons[wh_lesson_class(1, 4096)].since), 0);
	wh_gpu_stream_choose(b->stream, 1, LESSON_BYTES);
	assert_int_equal(atomic_load(&lessons[wh_lesson_class(1, LESSON_BYTES)].since), 1);
	assert_int_equal(wh_gpus_stream(b->engine->gpus, &b->engine->cuda->devices[0], NULL,
					WH_BLOCKS_WITHIN, true, &b->stream),
			 0);
	wh_gpu_stream_choose(b->stream, 1, LESSON_BYTES);
	assert_int_equal(atomic_load(&lessons[wh_lesson_class(1, LESSON_BYTES)].since), 1);
	tear_down(b);
	free(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pairs__against_a_model),
		cmocka_unit_test(pairs__more_than_the_ring),
		cmocka_unit_test(pairs__long_ones),
		cmocka_unit_test(blocks__against_a_model),
		cmocka_unit_test(costs__choice),
		cmocka_unit_test(costs__burden),
		cmocka_unit_test(streams__opposed),
		cmocka_unit_test(lessons__behind_a_long_submission),
		cmocka_unit_test(lessons__a_long_submission),
		cmocka_unit_test(copies__many_in_one_call),
		cmocka_unit_test(copies__one_is_bad),
		cmocka_unit_test(copies__refused_together),
		cmocka_unit_test(streams__who_goes_first),
		cmocka_unit_test(costs__probe),
		cmocka_unit_test(stores__alone),
		cmocka_unit_test(stores__many_in_flight),
		cmocka_unit_test(stores__refused_to_a_poll),
		cmocka_unit_test(lessons__pairs_after_a_noisy_look),
		cmocka_unit_test(lessons__blocks_after_a_noisy_look),
		cmocka_unit_test(lessons__never_at_the_cost_of_latency),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
