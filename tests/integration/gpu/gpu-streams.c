/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: gpu */
/* gpu-streams.c: batches ordered after a stream of the application, and streams ordered after a
 * batch */
#include "lib/gpu.h"

#include <pthread.h>
#include <stdatomic.h>

#define LENGTH (256 * KIB + 3)
#define A_WHILE (SCALE(30, 60) * MS)

static struct wh_stream stream_of(const struct gpu_block *block)
{
	return (struct wh_stream){ .size = sizeof(struct wh_stream), .stream = block->stream };
}

static void open_device(struct gpu_pair *p)
{
	gpu_pair_open(p, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_PINNED, NULL, LENGTH, false);
}

/* ---- a batch behind a stream ------------------------------------------- */

static void after__order_holds(void **state)
{
	static const bool apart[] = { false, true };

	(void)state;
	for (unsigned int i = 0; i < 2; i++) {
		struct wh_stream stream;
		struct gpu_block block;
		struct wh_batch *batch;
		struct gpu_pair p;

		gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_DEVICE, "cuda:0", LENGTH,
			      apart[i]);
		batch = gpu_pair_batch(&p, WH_WRITE);
		for (uint64_t seed = 1; seed < 4; seed++) {
			gpu_pair_fill(&p, seed);
			gpu_block(&block, 0);
			stream = stream_of(&block);
			want(0, wh_batch_submit_after(batch, &stream));
			want(-EBUSY, wh_batch_submit_after(batch, &stream));
			want(-EAGAIN, batch_end(batch, A_WHILE));
			want(-EAGAIN, batch_now(batch));
			want(-EBUSY, wh_batch_free(batch));
			want(-EBUSY, wh_region_unregister(p.region));
			want_true(gpu_pair_untouched(&p, seed), "it did not wait");
			atomic_store(&block.open, 1);
			want(0, batch_end(batch, PATIENCE));
			gpu_unblock(&block);
			want_true(gpu_pair_copied(&p, seed), "it is wrong");
		}
		/* And again without a stream. */
		gpu_pair_fill(&p, 9);
		want(0, gpu_run(batch));
		want_true(gpu_pair_copied(&p, 9), "it is wrong");
		want(0, wh_batch_free(batch));
		gpu_pair_close(&p);
	}
}

/* The region of the peer has to be asked for first. */
static void after__asks_for_regions(void **state)
{
	struct wh_transfer transfer = { .length = LENGTH, .op = WH_WRITE };
	struct wh_stream stream;
	struct gpu_block block;
	struct wh_batch *batch;
	struct gpu_pair p;

	(void)state;
	gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_DEVICE, "cuda:0", LENGTH, true);
	transfer.local = p.region;
	child_region(p.child, p.memory, 0, LENGTH, NULL, ACCESS_BOTH, &transfer.remote);
	want(0, wh_batch_new(p.peer, NULL, &batch));
	want(0, wh_batch_add(batch, &transfer, 1));
	gpu_pair_fill(&p, 4);
	gpu_block(&block, 0);
	stream = stream_of(&block);
	want(0, wh_batch_submit_after(batch, &stream));
	want(-EAGAIN, batch_end(batch, A_WHILE));
	want_true(gpu_pair_untouched(&p, 4), "it did not wait");
	atomic_store(&block.open, 1);
	want(0, batch_end(batch, PATIENCE));
	gpu_unblock(&block);
	want_true(gpu_pair_copied(&p, 4), "it is wrong");
	/* A region that the peer does not have; cancelled. */
	for (int i = 0; i < 2; i++) {
		want(0, wh_batch_clear(batch));
		transfer.remote ^= UINT64_C(1) << 50;
		want(0, wh_batch_add(batch, &transfer, 1));
		gpu_block(&block, 0);
		stream = stream_of(&block);
		want(0, wh_batch_submit_after(batch, &stream));
		if (i)
			want(0, wh_batch_cancel(batch));
		want(i ? -ECANCELED : -ENOENT, batch_end(batch, PATIENCE));
		atomic_store(&block.open, 1);
		gpu_unblock(&block);
	}
	want(0, wh_batch_free(batch));
	gpu_pair_close(&p);
}

static void after__cancelled_before_it_started(void **state)
{
	struct wh_stream stream;
	struct gpu_block block;
	struct wh_batch *batch;
	struct gpu_pair p;
	int64_t before;

	(void)state;
	open_device(&p);
	batch = gpu_pair_batch(&p, WH_WRITE);
	gpu_pair_fill(&p, 1);
	for (unsigned int i = 0; i < 3; i++) {
		gpu_block(&block, 0);
		stream = stream_of(&block);
		want(0, wh_batch_submit_after(batch, &stream));
		before = quiet_now();
		want(0, wh_batch_cancel(batch));
		want_true(quiet_now() - before < SECOND, "it took %lld ms",
			  (long long)((quiet_now() - before) / MS));
		want(-ECANCELED, batch_now(batch));
		want(-ECANCELED, batch_item(batch, 0));
		gpu_unblock(&block);
	}
	sleep_ms(20);
	want_true(gpu_pair_untouched(&p, 1), "it was cancelled, and started all the same");
	want(0, gpu_run(batch));
	want_true(gpu_pair_copied(&p, 1), "it is wrong");
	want(0, wh_batch_free(batch));
	gpu_pair_close(&p);
}

/* Host memory, to another process. */
static void after__other_transports(void **state)
{
	static const char *const ways[] = { "shm", "tcp" };

	(void)state;
	for (unsigned int i = 0; i < 2; i++) {
		struct wh_batch_options options = { .size = sizeof(options), .require = ways[i] };
		struct wh_transfer whole = { .length = LENGTH, .op = WH_WRITE };
		struct wh_stream stream;
		struct gpu_block block;
		struct wh_batch *batch;
		struct gpu_pair p;

		gpu_pair_open(&p, WH_MEMORY_PAGEABLE, NULL, WH_MEMORY_SHARED, NULL, LENGTH, true);
		whole.local = p.region;
		whole.remote = p.remote.id;
		want(0, wh_batch_new(p.peer, &options, &batch));
		want(0, wh_batch_add(batch, &whole, 1));
		want(0, wh_batch_notify(batch, 0, "there", 5));
		gpu_pair_fill(&p, 5);
		gpu_block(&block, 0);
		stream = stream_of(&block);
		want(0, wh_batch_submit_after(batch, &stream));
		want(-EAGAIN, batch_end(batch, A_WHILE));
		want_true(gpu_pair_untouched(&p, 5), "it did not wait");
		atomic_store(&block.open, 1);
		want(0, batch_end(batch, PATIENCE));
		gpu_unblock(&block);
		want_true(gpu_pair_copied(&p, 5), "it is wrong");
		want(0, wh_batch_free(batch));
		gpu_pair_close(&p);
	}
}

static void after__default_streams(void **state)
{
	struct wh_stream stream = { .size = sizeof(stream) };
	struct wh_batch *batch;
	struct gpu_pair p;

	(void)state;
	open_device(&p);
	batch = gpu_pair_batch(&p, WH_WRITE);
	want_text(-EINVAL, "stream.device", wh_batch_submit_after(batch, &stream));
	want_text(-EINVAL, "stream is NULL", wh_batch_submit_after(batch, NULL));
	stream.device = "cuda:77";
	want_text(-ENODEV, "cuda:77", wh_batch_submit_after(batch, &stream));
	stream.device = "nothing";
	want(-EINVAL, wh_batch_submit_after(batch, &stream));
	for (uintptr_t number = 0; number < 3; number++) {
		stream.stream = (void *)number;
		stream.device = number == 1 && bytes_gpus() > 1 ? "cuda:1" : "cuda:0";
		gpu_pair_fill(&p, number);
		want(0, wh_batch_submit_after(batch, &stream));
		want(0, batch_end(batch, PATIENCE));
		want_true(gpu_pair_copied(&p, number), "it is wrong");
		/* The stream of the current device. */
		stream.device = NULL;
		gpu_enter(0);
		want(0, wh_batch_submit_after(batch, &stream));
		want(0, wh_batch_make_stream_wait(batch, &stream));
		want(0, batch_end(batch, PATIENCE));
		gpu_leave();
	}
	want(0, wh_batch_free(batch));
	gpu_pair_close(&p);
}

/* ---- a stream behind a batch ------------------------------------------- */

enum end { END_WELL, END_CANCELLED, END_FAILED, ENDS };

/* The batch completes, fails or is cancelled; the stream that waits for it continues. */
static void hold_once(struct gpu_pair *p, struct wh_batch *batch, enum end end)
{
	struct wh_stream first, second;
	struct gpu_block block, held;
	_Atomic int flag;

	gpu_block(&block, 0);
	gpu_block(&held, bytes_gpus() > 1);
	first = stream_of(&block);
	second = stream_of(&held);
	gpu_pair_fill(p, end);
	want(0, wh_batch_submit_after(batch, &first));
	want(0, wh_batch_make_stream_wait(batch, &second));
	want(0, wh_batch_make_stream_wait(batch, &second));
	gpu_flag(held.stream, &flag);
	atomic_store(&held.open, 1);
	want_true(!gpu_flagged(&flag, A_WHILE), "the stream did not wait");
	if (end == END_CANCELLED)
		want(0, wh_batch_cancel(batch));
	if (end == END_FAILED)
		fake_fail("cuEventQuery", 1, 719);
	if (end == END_FAILED)
		want(-EIO, batch_end(batch, PATIENCE));
	atomic_store(&block.open, 1);
	want_true(gpu_flagged(&flag, PATIENCE), "the stream is not let go of");
	/* The flag was set after the end of the batch, never before. */
	want(end == END_WELL ? 0 : end == END_CANCELLED ? -ECANCELED : -EIO, batch_now(batch));
	if (end == END_WELL)
		want_true(gpu_pair_copied(p, end), "it is wrong");
	if (end == END_FAILED)
		want_true(strstr(wh_batch_error_text(batch), "cuEventQuery"), "%s",
			  wh_batch_error_text(batch));
	gpu_unblock(&block);
	gpu_unblock(&held);
}

static void hold__always_released(void **state)
{
	struct wh_batch *batch;
	struct gpu_pair p;

	(void)state;
	open_device(&p);
	batch = gpu_pair_batch(&p, WH_WRITE);
	for (unsigned int i = 0; i < 2 * ENDS; i++)
		hold_once(&p, batch, i % ENDS);
	want(0, wh_batch_free(batch));
	gpu_pair_close(&p);
}

static void hold__nothing_runs(void **state)
{
	struct wh_stream stream;
	struct gpu_block block;
	struct wh_batch *batch;
	struct gpu_pair p;
	_Atomic int flag;

	(void)state;
	open_device(&p);
	batch = gpu_pair_batch(&p, WH_WRITE);
	gpu_block(&block, 0);
	stream = stream_of(&block);
	want(0, wh_batch_make_stream_wait(batch, &stream));
	want(0, gpu_run(batch));
	want(0, wh_batch_make_stream_wait(batch, &stream));
	gpu_flag(block.stream, &flag);
	atomic_store(&block.open, 1);
	want_true(gpu_flagged(&flag, PATIENCE), "it waits for a batch that is done");
	/* A cancel after completion. */
	want(0, wh_batch_cancel(batch));
	gpu_unblock(&block);
	want(0, wh_batch_free(batch));
	gpu_pair_close(&p);
}

/* The peer dies while the batch waits for a stream, and another stream waits for the batch. */
static void hold__peer_dies(void **state)
{
	struct wh_stream first, second;
	struct gpu_block block, held;
	struct wh_batch *batch;
	struct gpu_pair p;
	_Atomic int flag;

	(void)state;
	gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_DEVICE, "cuda:0", LENGTH, true);
	batch = gpu_pair_batch(&p, WH_WRITE);
	want(0, gpu_run(batch));
	gpu_block(&block, 0);
	gpu_block(&held, 0);
	first = stream_of(&block);
	second = stream_of(&held);
	want(0, wh_batch_submit_after(batch, &first));
	want(0, wh_batch_make_stream_wait(batch, &second));
	gpu_flag(held.stream, &flag);
	atomic_store(&held.open, 1);
	child_kill(p.child);
	p.child = NULL;
	atomic_store(&block.open, 1);
	want(-ECONNRESET, batch_end(batch, PATIENCE));
	want_true(gpu_flagged(&flag, PATIENCE), "the stream is not let go of");
	gpu_unblock(&block);
	gpu_unblock(&held);
	want(0, wh_batch_free(batch));
	gpu_pair_close(&p);
}

/* ---- driver errors ----------------------------------------------------- */

static void faults__every_call(void **state)
{
	static const char *const calls[] = { "cuStreamGetCtx", "cuCtxPushCurrent_v2",
					     "cuEventCreate", "cuEventRecord" };
	static const char *const holds[] = { "cuStreamGetCtx", "cuMemHostAlloc",
					     "cuMemHostGetDevicePointer_v2",
					     "cuStreamWaitValue32_v2" };
	struct wh_stream stream, other;
	struct gpu_block block, held;
	struct wh_batch *batch;
	struct gpu_pair p;

	(void)state;
	open_device(&p);
	gpu_block(&block, 0);
	gpu_block(&held, 0);
	stream = stream_of(&block);
	other = stream_of(&held);
	for (unsigned int i = 0; i < 4; i++) {
		batch = gpu_pair_batch(&p, WH_WRITE);
		fake_fail(calls[i], 1, 999);
		want_true(wh_batch_submit_after(batch, &stream) < 0, "%s failed unseen", calls[i]);
		want_true(!strncmp(wh_error_text(), calls[i], 10) ||
				  strstr(wh_error_text(), "cuCtx"),
			  "%s: %s", calls[i], wh_error_text());
		want(-EINVAL, batch_now(batch));
		want(0, wh_batch_free(batch));
	}
	batch = gpu_pair_batch(&p, WH_WRITE);
	want(0, wh_batch_submit_after(batch, &stream));
	for (unsigned int i = 0; i < 4; i++) {
		fake_fail(holds[i], 1, 999);
		want_true(wh_batch_make_stream_wait(batch, &other) < 0 || i == 1 || i == 2,
			  "%s failed unseen", holds[i]);
		fake_heal();
	}
	want(0, wh_batch_make_stream_wait(batch, &other));
	atomic_store(&block.open, 1);
	want(0, batch_end(batch, PATIENCE));
	gpu_unblock(&block);
	gpu_unblock(&held);
	want(0, wh_batch_free(batch));
	gpu_pair_close(&p);
}

static void faults__captured(void **state)
{
	void (*capture)(void *) = (void (*)(void *))gpu_symbol("fake_cuda_capture");
	struct wh_stream stream;
	struct gpu_block block;
	struct wh_batch *batch;
	struct gpu_pair p;

	(void)state;
	open_device(&p);
	batch = gpu_pair_batch(&p, WH_WRITE);
	gpu_block(&block, 0);
	stream = stream_of(&block);
	capture(block.stream);
	want_text(-EBUSY, "captured", wh_batch_submit_after(batch, &stream));
	want_text(-EBUSY, "captured", wh_batch_make_stream_wait(batch, &stream));
	capture(NULL);
	/* A capture in global mode: only the refused call reveals it. */
	fake_fail("cuEventRecord", 1, 906);
	want(-EBUSY, wh_batch_submit_after(batch, &stream));
	gpu_unblock(&block);
	stream.stream = (void *)0x1234;
	want_true(wh_batch_submit_after(batch, &stream) < 0, "there is no such stream");
	want(0, wh_batch_free(batch));
	gpu_pair_close(&p);
}

/* ---- concurrency ------------------------------------------------------- */

struct worker {
	pthread_t thread;
	struct gpu_pair *pair;
	struct gpu_block block, held;
	unsigned int number, submissions;
	const char *wrong;
};

/* Each thread has its own streams and cancels one batch in four. */
static void *submit_in_thread(void *arg)
{
	struct worker *w = arg;
	struct gpu_pair *p = w->pair;
	uint64_t at = w->number * 8192;
	struct wh_transfer part = { .local = p->region,
				    .local_offset = at,
				    .remote = p->remote.id,
				    .remote_offset = at,
				    .length = 8192,
				    .op = WH_WRITE };
	struct gpu_block *block = &w->block, *held = &w->held;
	struct wh_stream first = stream_of(block), second = stream_of(held);
	struct wh_batch *batch;

	if (wh_batch_new(p->peer, NULL, &batch) || wh_batch_add(batch, &part, 1))
		w->wrong = "a batch";
	for (unsigned int i = 0; !w->wrong && i < w->submissions; i++) {
		_Atomic int flag;
		int status;

		gpu_block_again(block);
		gpu_block_again(held);
		if (i % 8)
			block->open = 1;
		if (wh_batch_submit_after(batch, &first) ||
		    wh_batch_make_stream_wait(batch, &second))
			w->wrong = "submitting";
		held->open = 1;
		gpu_flag(held->stream, &flag);
		if (i % 4 == 0 && wh_batch_cancel(batch))
			w->wrong = "cancelling";
		block->open = 1;
		status = batch_end(batch, PATIENCE);
		if (status && (i % 4 || status != -ECANCELED))
			w->wrong = "its end";
		if (!gpu_flagged(&flag, PATIENCE))
			w->wrong = "a stream that is not let go of";
	}
	if (wh_batch_free(batch))
		w->wrong = "freeing";
	return NULL;
}

static void many__threads(void **state)
{
	struct worker workers[8] = { 0 };
	struct gpu_pair p;

	(void)state;
	open_device(&p);
	gpu_pair_fill(&p, 1);
	for (unsigned int i = 0; i < 8; i++) {
		/* A real driver runs the host functions of all streams in one thread, one after
		 * another. */
		workers[i] =
			(struct worker){ .pair = &p,
					 .number = i,
					 .submissions = getenv("TEST_CUDA") ? SCALE(60, 15) : 15 };
		/* Create and destroy streams only while none is blocked: a real driver would wait
		 * for the blocked stream's host function, and make those wait who would unblock
		 * it. */
		gpu_block(&workers[i].block, 0);
		workers[i].block.open = 1;
		gpu_block(&workers[i].held, 0);
		workers[i].held.open = 1;
	}
	for (unsigned int i = 0; i < 8; i++)
		want(0, pthread_create(&workers[i].thread, NULL, submit_in_thread, &workers[i]));
	for (unsigned int i = 0; i < 8; i++)
		pthread_join(workers[i].thread, NULL);
	for (unsigned int i = 0; i < 8; i++) {
		gpu_unblock(&workers[i].block);
		gpu_unblock(&workers[i].held);
		want_true(!workers[i].wrong, "%s", workers[i].wrong);
	}
	gpu_pair_close(&p);
}

static const struct CMUnitTest tests[] = {
	TEST(after__order_holds),
	TEST(after__asks_for_regions),
	TEST(after__cancelled_before_it_started),
	TEST(after__other_transports),
	TEST(after__default_streams),
	TEST_NEEDS(hold__always_released, needs_fake),
	TEST(hold__nothing_runs),
	TEST(hold__peer_dies),
	TEST_NEEDS(faults__every_call, needs_fake),
	TEST_NEEDS(faults__captured, needs_fake),
	TEST(many__threads),
};

HARNESS_MAIN("gpu-streams", tests)
