/* SPDX-License-Identifier: Apache-2.0 */
/* gpu-share.c: small jobs that share turns of a GPU stream: how many driver calls they take, that
 * every byte arrives, and that each job has its own end */
#include <pthread.h>
#include <sched.h>

#include "fake-cuda.h"

#include "gpu/gpus.h"
#include "gpu/stream.h"
#include "util/clock.h"

#define JOBS 64
#define SLOT ((uint64_t)64 << 10) /* of source and target, for each job */
#define ROOM (JOBS * SLOT)
#define PATIENCE (60 * WH_SECOND)

struct job {
	struct wh_gpu_stream_job job;
	struct wh_pair pairs[16];
	_Atomic int done;
	int error;
};

struct bench {
	struct wh_engine *engine;
	struct wh_gpu_stream *stream;
	void *from, *to;
	uint8_t source[ROOM], expected[ROOM], seen[ROOM];
	struct job jobs[JOBS];
	uint64_t random;
};

/* Costs that make the kernel move everything, or nothing. */
static void set_costs(struct bench *b, bool kernel)
{
	const struct wh_gpu_stream_cost cost = { .launch = kernel ? 1 : 1e12,
						 .copy = kernel ? 1e6 : 1,
						 .next_copy = kernel ? 1e6 : 1,
						 .kernel_rate = 100,
						 .copy_rate = 100,
						 .measured = true };

	b->stream->guessed = b->stream->measured = cost;
	atomic_store(&b->stream->cost, &b->stream->measured);
	memset(b->stream->gpu->lessons, 0, sizeof(b->stream->gpu->lessons));
}

static struct bench *set_up(enum wh_blocks_way way, const char *setting)
{
	struct wh_memory_options options = { .size = sizeof(options),
					     .kind = WH_MEMORY_DEVICE,
					     .location = "cuda:0" };
	struct bench *b = calloc(1, sizeof(*b));

	assert_non_null(b);
	b->random = 5;
	b->engine = engine_with_settings(getenv("TEST_CUDA"), setting, NULL);
	assert_int_equal(wh_memory_alloc(b->engine, ROOM, &options, &b->from), 0);
	assert_int_equal(wh_memory_alloc(b->engine, ROOM, &options, &b->to), 0);
	for (uint64_t i = 0; i < ROOM; i++)
		b->source[i] = (uint8_t)next_random(&b->random);
	AS_APPLICATION(b->engine, 0,
		       CU(b->engine, cuMemcpyHtoD, (uintptr_t)b->from, b->source, ROOM);
		       CU(b->engine, cuMemcpyHtoD, (uintptr_t)b->to, b->expected, ROOM);
		       CU(b->engine, cuCtxSynchronize));
	assert_int_equal(wh_gpus_stream(b->engine->gpus, &b->engine->cuda->devices[0], NULL, way,
					false, &b->stream),
			 0);
	set_costs(b, true);
	return b;
}

static void tear_down(struct bench *b)
{
	assert_int_equal(wh_memory_free(b->engine, b->from), 0);
	assert_int_equal(wh_memory_free(b->engine, b->to), 0);
	assert_int_equal(wh_engine_close(b->engine), 0);
	free(b);
}

static void compare(struct bench *b)
{
	AS_APPLICATION(b->engine, 0, CU(b->engine, cuMemcpyDtoH, b->seen, (uintptr_t)b->to, ROOM));
	assert_true(!memcmp(b->seen, b->expected, ROOM));
}

/* ---- jobs --------------------------------------------------------------- */

static void ended(struct wh_gpu_stream_job *at, int error, const char *text)
{
	struct job *job = wh_container(at, struct job, job);

	(void)text;
	job->error = error;
	atomic_store(&job->done, 1);
}

/* Job `index` writes `count` pairs of `length` bytes into its slot, from that of `other`. */
static struct job *job_make(struct bench *b, unsigned index, unsigned other, uint64_t count,
			    uint64_t length)
{
	struct job *job = &b->jobs[index];

	*job = (struct job){ .job = { .done = ended, .owner = job, .count = count } };
	job->job.pairs = job->pairs;
	for (uint64_t i = 0; i < count; i++)
		job->pairs[i] =
			(struct wh_pair){ (uintptr_t)b->from + other * SLOT + i * length,
					  (uintptr_t)b->to + index * SLOT + i * length, length };
	return job;
}

static void job_expect(struct bench *b, unsigned index, unsigned other, uint64_t bytes)
{
	memcpy(b->expected + index * SLOT, b->source + other * SLOT, bytes);
}

/* A job that starts at once is left to the GPU thread if that has the stream locked just then. It
 * no longer waits once that thread has taken it; its calls are made when the stream is unlocked. */
static void await_started(struct bench *b)
{
	int64_t until = wh_now() + PATIENCE;

	while (atomic_load(&b->stream->waiting_count)) {
		sched_yield();
		assert_true(wh_now() < until);
	}
	pthread_mutex_lock(&b->stream->lock);
	pthread_mutex_unlock(&b->stream->lock);
}

/* The first two have turns of their own, if nothing is in flight. */
static void jobs_put(struct bench *b, unsigned count, uint64_t length)
{
	for (unsigned i = 0; i < count; i++) {
		job_make(b, i, i, 1, length);
		wh_gpu_stream_put(b->stream, &b->jobs[i].job);
		if (i < 2)
			await_started(b);
	}
}

static void jobs_wait(struct bench *b, unsigned count)
{
	int64_t until = wh_now() + PATIENCE;

	for (unsigned i = 0; i < count; i++) {
		while (!atomic_load(&b->jobs[i].done)) {
			wh_gpus_poll(b->engine->gpus);
			sched_yield(); /* valgrind runs one thread at a time */
			assert_true(wh_now() < until);
		}
	}
}

/* In which turn a job was; 0: that of the first one. */
static uint32_t turn_of(const struct bench *b, unsigned index)
{
	return b->jobs[index].job.number - b->jobs[0].job.number;
}

/* ---- calls of the driver ------------------------------------------------ */

#define LAUNCH "cuLaunchKernel"
#define COPY "cuMemcpyAsync"
#define STORE "cuStreamWriteValue32_v2"
#define PUSH "cuCtxPushCurrent_v2"
#define POP "cuCtxPopCurrent_v2"
#define MODE "cuThreadExchangeStreamCaptureMode"
#define QUERY "cuStreamQuery"

static const char *const counted[] = { LAUNCH, COPY, STORE, PUSH, POP, MODE, QUERY };
#define COUNTED (sizeof(counted) / sizeof(counted[0]))

static void calls_now(uint64_t calls[COUNTED])
{
	for (unsigned i = 0; i < COUNTED; i++)
		calls[i] = fake_calls(counted[i]);
}

/* `count` jobs are put while the GPU does not get on with the first. They take `turns` turns. */
static void calls_check(bool kernel, unsigned count, unsigned turns)
{
	struct bench *b = set_up(WH_BLOCKS_WITHIN, NULL);
	uint64_t before[COUNTED], after[COUNTED], other;
	struct wh_semaphore *gate;

	set_costs(b, kernel);
	gate = stream_hold(b->engine, b->stream);
	calls_now(before);
	jobs_put(b, count, 16 << 10);
	calls_now(after);
	/* Two turns in flight, of one job each. */
	assert_int_equal(after[!kernel] - before[!kernel], count < 2 ? count : 2);
	stream_go_on(b->engine, gate);
	jobs_wait(b, count);
	calls_now(after);
	/* Only if this machine paused for long is the driver asked how the stream is. */
	other = after[6] - before[6];
	assert_int_equal(after[0] - before[0], kernel ? turns : 0);
	assert_int_equal(after[1] - before[1], kernel ? 0 : count);
	assert_int_equal(after[2] - before[2], kernel ? 0 : turns);
	assert_int_equal(after[3] - before[3], turns + other);
	assert_int_equal(after[4] - before[4], turns + other);
	assert_int_equal(after[5] - before[5], 2 * (turns + other));
	for (unsigned i = 0; i < count; i++) {
		assert_int_equal(b->jobs[i].error, 0);
		/* In the order of the jobs; two threads that poll may report them in another one.
		 */
		assert_in_range(turn_of(b, i) - (i ? turn_of(b, i - 1) : 0), 0, 1);
		job_expect(b, i, i, 16 << 10);
	}
	assert_int_equal(turn_of(b, count - 1), turns - 1);
	compare(b);
	tear_down(b);
}

static void calls__by_kernel(void **state)
{
	(void)state;
	calls_check(true, 1, 1);
	calls_check(true, 2, 2);
	/* 5 calls a turn: less than one for each of 16, a third of one for each of 64. */
	calls_check(true, 16, 3);
	calls_check(true, 64, 4); /* 1, 1, 32, 30 */
}

static void calls__by_copies(void **state)
{
	(void)state;
	calls_check(false, 16, 3);
	calls_check(false, 64, 4);
}

/* One after the other, each has a turn of its own at once, and no poll is needed for it to start.
 */
static void calls__one_in_flight(void **state)
{
	struct bench *b = set_up(WH_BLOCKS_WITHIN, NULL);
	uint64_t launches = fake_calls(LAUNCH);

	(void)state;
	for (unsigned i = 0; i < 20; i++) {
		job_make(b, 0, i, 1, 4096);
		wh_gpu_stream_put(b->stream, &b->jobs[0].job);
		await_started(b);
		assert_int_equal(fake_calls(LAUNCH) - launches, i + 1);
		jobs_wait(b, 1);
		job_expect(b, 0, i, 4096);
		compare(b);
	}
	tear_down(b);
}

/* Launches may begin before the last one has ended within a GPU, and nowhere else: elsewhere they
 * would take more from a model beside them. */
static void calls__overlap_within_a_gpu(void **state)
{
	static const enum wh_blocks_way ways[] = { WH_BLOCKS_WITHIN, WH_BLOCKS_TO_HOST,
						   WH_BLOCKS_FROM_HOST };

	(void)state;
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		struct bench *b = set_up(ways[i], NULL);
		uint64_t all = fake_calls(LAUNCH), overlap = fake_calls("cuLaunchKernelEx");

		job_make(b, 0, 0, 1, 4096);
		wh_gpu_stream_put(b->stream, &b->jobs[0].job);
		jobs_wait(b, 1);
		assert_int_equal(fake_calls(LAUNCH) - all, 1);
		assert_int_equal(fake_calls("cuLaunchKernelEx") - overlap,
				 ways[i] == WH_BLOCKS_WITHIN);
		tear_down(b);
	}
}

/* What shares nothing: urgent streams, long jobs, many pairs, the setting. */
static void calls__of_their_own(void **state)
{
	struct bench *b = set_up(WH_BLOCKS_TO_HOST, NULL);
	struct wh_gpu_stream *urgent;

	(void)state;
	assert_true(wh_gpu_stream_shares(b->stream, 1, MIB));
	assert_true(wh_gpu_stream_shares(b->stream, 16, 4096));
	assert_false(wh_gpu_stream_shares(b->stream, 1, MIB + 1));
	assert_false(wh_gpu_stream_shares(b->stream, 17, 4096));
	assert_int_equal(wh_gpus_stream(b->engine->gpus, &b->engine->cuda->devices[0], NULL,
					WH_BLOCKS_TO_HOST, true, &urgent),
			 0);
	assert_false(wh_gpu_stream_shares(urgent, 1, 4096));
	tear_down(b);
	b = set_up(WH_BLOCKS_TO_HOST, "gpu_turns=0");
	assert_false(wh_gpu_stream_shares(b->stream, 1, 4096));
	tear_down(b);
}

/* Another turn begins: what waits goes before it. */
static void order__before_the_next_turn(void **state)
{
	struct bench *b = set_up(WH_BLOCKS_WITHIN, NULL);
	struct wh_semaphore *gate = stream_hold(b->engine, b->stream);
	struct wh_gpu_stream_turn turn;
	struct job *last;

	(void)state;
	jobs_put(b, 5, 4096);
	assert_int_equal(atomic_load(&b->stream->waiting_count), 3);
	last = job_make(b, 5, 5, 1, SLOT);
	wh_gpu_stream_begin(b->stream, &turn);
	assert_int_equal(atomic_load(&b->stream->waiting_count), 0);
	assert_int_equal(wh_gpu_stream_pairs(&turn, last->pairs, 1), 1);
	wh_gpu_stream_end(&turn, &last->job);
	stream_go_on(b->engine, gate);
	jobs_wait(b, 6);
	for (unsigned i = 0; i < 6; i++) {
		assert_int_equal(turn_of(b, i), i < 2 ? i : i < 5 ? 2 : 3);
		job_expect(b, i, i, i == 5 ? SLOT : 4096);
	}
	compare(b);
	tear_down(b);
}

/* ---- every byte ---------------------------------------------------------- */

static uint64_t random_length(struct bench *b, uint64_t most)
{
	static const uint64_t lengths[] = {
		1, 15, 16, 17, 255, 257, 4000, 4096, 4097, 65535, SLOT
	};
	uint64_t length = lengths[next_random(&b->random) % (sizeof(lengths) / sizeof(lengths[0]))];

	return length < most ? length : most;
}

/* A job of random pairs within its slot, from a random one. Some are not aligned, some leave gaps.
 */
static void job_random(struct bench *b, unsigned index)
{
	struct job *job = job_make(b, index, 0, 0, 0);
	uint64_t from = next_random(&b->random) % JOBS * SLOT, at = next_random(&b->random) % 3;
	uint64_t wanted = 1 + next_random(&b->random) % 16;

	while (job->job.count < wanted && at < SLOT) {
		uint64_t length = random_length(b, SLOT - at);

		job->pairs[job->job.count++] =
			(struct wh_pair){ (uintptr_t)b->from + from + at,
					  (uintptr_t)b->to + index * SLOT + at, length };
		memcpy(b->expected + index * SLOT + at, b->source + from + at, length);
		at += length + next_random(&b->random) % 3;
	}
}

static void *poll_beside(void *arg)
{
	struct bench *b = arg;
	const struct job *last = &b->jobs[JOBS - 1];

	while (!atomic_load(&last->done)) {
		wh_gpus_poll(b->engine->gpus);
		sched_yield();
	}
	return NULL;
}

/* Put by this thread, or some in turns of their own, while two more poll. */
static void bytes__random_mixes(void **state)
{
	static const enum wh_blocks_way ways[] = { WH_BLOCKS_WITHIN, WH_BLOCKS_TO_HOST };

	(void)state;
	for (unsigned round = 0; round < 12; round++) {
		struct bench *b = set_up(ways[round % 2], round % 5 ? NULL : "gpu_turns=1");
		struct wh_gpu_stream_turn turn;
		pthread_t thread;

		set_costs(b, round % 3);
		for (unsigned i = 0; i < JOBS; i++)
			job_random(b, i);
		assert_int_equal(pthread_create(&thread, NULL, poll_beside, b), 0);
		for (unsigned i = 0; i < JOBS; i++) {
			struct job *job = &b->jobs[i];

			if (next_random(&b->random) % 8) {
				wh_gpu_stream_put(b->stream, &job->job);
				continue;
			}
			wh_gpu_stream_begin(b->stream, &turn);
			assert_int_equal(wh_gpu_stream_pairs(&turn, job->pairs, job->job.count),
					 job->job.count);
			wh_gpu_stream_end(&turn, &job->job);
		}
		jobs_wait(b, JOBS);
		pthread_join(thread, NULL);
		for (unsigned i = 0; i < JOBS; i++)
			assert_int_equal(b->jobs[i].error, 0);
		compare(b);
		tear_down(b);
	}
}

/* The most blocks that the pairs of a turn can have, while another turn has most of the ring. */
static void bytes__with_little_of_the_ring(void **state)
{
	const uint64_t left = (uint64_t)128 << 10, length = 65535;
	struct bench *b = set_up(WH_BLOCKS_WITHIN, NULL);
	struct wh_semaphore *gate = stream_hold(b->engine, b->stream);
	struct wh_gpu_stream_turn turn;
	uint64_t at;

	(void)state;
	for (unsigned round = 0; round < 2; round++) {
		job_make(b, 40, 0, 0, 0);
		wh_gpu_stream_begin(b->stream, &turn);
		/* The second time there is too little left, and the jobs wait for the ring. */
		assert_true(wh_gpu_stream_reserve(&turn, WH_GPU_STREAM_RING - left + 1024 * round,
						  &at));
		wh_gpu_stream_end(&turn, &b->jobs[40].job);
		for (unsigned i = 0; i < 34; i++) {
			job_make(b, i, i + round, 1, length - i);
			job_expect(b, i, i + round, length - i);
			wh_gpu_stream_put(b->stream, &b->jobs[i].job);
		}
		stream_go_on(b->engine, gate);
		jobs_wait(b, 34);
		while (!atomic_load(&b->jobs[40].done))
			wh_gpus_poll(b->engine->gpus);
		compare(b);
		gate = stream_hold(b->engine, b->stream);
	}
	stream_go_on(b->engine, gate);
	tear_down(b);
}

/* ---- ends ---------------------------------------------------------------- */

/* The driver refuses one of the jobs of a turn: it fails, all others arrive. */
static void errors__of_one(void **state)
{
	struct bench *b = set_up(WH_BLOCKS_WITHIN, NULL);
	struct wh_semaphore *gate;
	const unsigned bad = 7;
	uint64_t empty; /* addresses without memory: what follows `to` may be another allocation */

	(void)state;
	set_costs(b, false);
	AS_APPLICATION(b->engine, 0, CU(b->engine, cuMemAddressReserve, &empty, 2 << 20, 0, 0, 0));
	gate = stream_hold(b->engine, b->stream);
	for (unsigned i = 0; i < 20; i++) {
		job_make(b, i, i, 2, 4096);
		if (i == bad)
			b->jobs[i].pairs[1].to = empty;
		else
			job_expect(b, i, i, 8192);
		wh_gpu_stream_put(b->stream, &b->jobs[i].job);
	}
	job_expect(b, bad, bad, 4096);
	stream_go_on(b->engine, gate);
	jobs_wait(b, 20);
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(b->jobs[i].error != 0, i == bad);
	compare(b);
	/* The stream goes on. */
	jobs_put(b, 1, SLOT);
	jobs_wait(b, 1);
	assert_int_equal(b->jobs[0].error, 0);
	AS_APPLICATION(b->engine, 0, CU(b->engine, cuMemAddressFree, empty, 2 << 20));
	tear_down(b);
}

/* The launch for all is refused: each has one of its own. */
static void errors__of_the_launch(void **state)
{
	struct bench *b = set_up(WH_BLOCKS_WITHIN, NULL);
	struct wh_semaphore *gate = stream_hold(b->engine, b->stream);
	uint64_t launches;

	(void)state;
	jobs_put(b, 12, 4096);
	launches = fake_calls(LAUNCH);
	fake_fail(LAUNCH, 1, 701);
	stream_go_on(b->engine, gate);
	jobs_wait(b, 12);
	assert_int_equal(fake_calls(LAUNCH) - launches, 1 + 10);
	for (unsigned i = 0; i < 12; i++) {
		assert_int_equal(b->jobs[i].error, 0);
		job_expect(b, i, i, 4096);
	}
	compare(b);
	fake_heal();
	tear_down(b);
}

/* The device is lost while jobs wait: all end, none well that had not begun. */
static void errors__lost_device(void **state)
{
	void (*lose)(int, int, unsigned) = fake_symbol("fake_cuda_lose");
	struct bench *b = set_up(WH_BLOCKS_WITHIN, NULL);
	struct wh_semaphore *gate = stream_hold(b->engine, b->stream);

	(void)state;
	jobs_put(b, 40, 4096);
	lose(0, 719, 0);
	stream_go_on(b->engine, gate);
	jobs_wait(b, 40);
	for (unsigned i = 0; i < 40; i++)
		assert_int_not_equal(b->jobs[i].error, 0);
	job_make(b, 0, 0, 1, 4096);
	wh_gpu_stream_put(b->stream, &b->jobs[0].job);
	jobs_wait(b, 1);
	assert_int_not_equal(b->jobs[0].error, 0);
	fake_heal();
	tear_down(b);
}

/* One that waits is withdrawn and ends at once; one that is in flight is not. */
static void withdraw__one_of_many(void **state)
{
	struct bench *b = set_up(WH_BLOCKS_WITHIN, NULL);
	struct wh_semaphore *gate = stream_hold(b->engine, b->stream);

	(void)state;
	jobs_put(b, 10, 4096);
	wh_gpus_withdraw(b->engine->gpus, &b->jobs[0], -ECANCELED, "cancelled");
	wh_gpus_withdraw(b->engine->gpus, &b->jobs[6], -ECANCELED, "cancelled");
	for (unsigned i = 0; i < 10; i++)
		assert_int_equal(atomic_load(&b->jobs[i].done), i == 6);
	assert_int_equal(b->jobs[6].error, -ECANCELED);
	stream_go_on(b->engine, gate);
	jobs_wait(b, 10);
	for (unsigned i = 0; i < 10; i++) {
		assert_int_equal(b->jobs[i].error, i == 6 ? -ECANCELED : 0);
		if (i != 6)
			job_expect(b, i, i, 4096);
	}
	compare(b);
	tear_down(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(calls__by_kernel),
		cmocka_unit_test(calls__by_copies),
		cmocka_unit_test(calls__one_in_flight),
		cmocka_unit_test(calls__overlap_within_a_gpu),
		cmocka_unit_test(calls__of_their_own),
		cmocka_unit_test(order__before_the_next_turn),
		cmocka_unit_test(bytes__random_mixes),
		cmocka_unit_test(bytes__with_little_of_the_ring),
		cmocka_unit_test(errors__of_one),
		cmocka_unit_test(errors__of_the_launch),
		cmocka_unit_test(errors__lost_device),
		cmocka_unit_test(withdraw__one_of_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
