/* SPDX-License-Identifier: Apache-2.0 */
/* gpu-stream.c: the copies of a GPU stream against a model: lists of pairs and of blocks of all
 * shapes, more than a ring holds, and how turns are submitted and end */
#include "gpu-stream.h"

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

/* ---- many copies in one call ------------------------------------------------------------------
 */

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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pairs__against_a_model),
		cmocka_unit_test(pairs__more_than_the_ring),
		cmocka_unit_test(pairs__long_ones),
		cmocka_unit_test(blocks__against_a_model),
		cmocka_unit_test(copies__many_in_one_call),
		cmocka_unit_test(copies__one_is_bad),
		cmocka_unit_test(copies__refused_together),
		cmocka_unit_test(streams__who_goes_first),
		cmocka_unit_test(stores__alone),
		cmocka_unit_test(stores__many_in_flight),
		cmocka_unit_test(stores__refused_to_a_poll),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
