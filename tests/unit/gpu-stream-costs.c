/* SPDX-License-Identifier: Apache-2.0 */
/* gpu-stream-costs.c: the choice between kernel and copy engine: what a stream expects each to
 * take, what it learns from turns, and how it tries the other */
#include "gpu-stream.h"

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

#define SLOW 10000 /* us, of a copy */
#define STILL 3000000 /* us; long beside what the probe is told to wait */

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

/* A GPU that stands still does not hold up who probes it, and is not waited for again. */
static void costs__stands_still(void **state)
{
	void (*slow)(unsigned, unsigned, unsigned) = fake_symbol("fake_cuda_slow");
	struct bench *b = malloc(sizeof(*b));
	struct wh_gpu_stream *urgent;
	unsigned calls;

	(void)state;
	assert_non_null(b);
	set_up(b, WH_BLOCKS_TO_HOST);
	b->engine->gpus->probe_patience = WH_MS;
	slow(0, STILL, 0);
	wh_gpu_stream_probe(b->stream, (uintptr_t)b->from, ROOM);
	assert_false(atomic_load(&b->stream->cost)->measured);
	assert_int_equal(wh_gpus_stream(b->engine->gpus, b->stream->gpu->device, NULL,
					WH_BLOCKS_TO_HOST, true, &urgent),
			 0);
	calls = fake_calls("cuMemcpyAsync");
	wh_gpu_stream_probe(urgent, 0, 0);
	assert_int_equal(fake_calls("cuMemcpyAsync"), calls);
	assert_false(atomic_load(&urgent->cost)->measured);
	slow(0, 0, 0);
	tear_down(b); /* waits for the GPU */
	free(b);
}

/* The patience is that for all jobs of a probe together: here each of them keeps well within it. */
static void costs__patience_for_all(void **state)
{
	void (*slow)(unsigned, unsigned, unsigned) = fake_symbol("fake_cuda_slow");
	struct bench *b = malloc(sizeof(*b));

	(void)state;
	assert_non_null(b);
	set_up(b, WH_BLOCKS_TO_HOST);
	b->engine->gpus->probe_patience = 10 * SLOW * 1000;
	slow(0, SLOW, 0);
	wh_gpu_stream_probe(b->stream, (uintptr_t)b->from, ROOM);
	assert_false(atomic_load(&b->stream->cost)->measured);
	slow(0, 0, 0);
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
		cmocka_unit_test(costs__choice),
		cmocka_unit_test(costs__burden),
		cmocka_unit_test(streams__opposed),
		cmocka_unit_test(lessons__behind_a_long_submission),
		cmocka_unit_test(lessons__a_long_submission),
		cmocka_unit_test(costs__probe),
		cmocka_unit_test(costs__stands_still),
		cmocka_unit_test(costs__patience_for_all),
		cmocka_unit_test(lessons__pairs_after_a_noisy_look),
		cmocka_unit_test(lessons__blocks_after_a_noisy_look),
		cmocka_unit_test(lessons__never_at_the_cost_of_latency),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
