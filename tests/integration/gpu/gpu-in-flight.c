/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: gpu windows-too */
/* gpu-in-flight.c: many small batches in flight, which share turns of a GPU stream
 *
 * Every byte arrives, one of them can be cancelled while it waits, and an explanation says whether
 * a window or the GPU moved a batch. Runs on the fake CUDA driver with and without windows, or on
 * the machine's own GPU. */
#include "lib/gpu.h"

#include <stdlib.h>

#define BATCHES 48
#define SLOT ((uint64_t)32 * KIB) /* too much for a window */
#define LENGTH (BATCHES * SLOT)
#define PATIENT (60 * SECOND)
/* us; longer than any test: what is in flight stays so until fake_heal() */
#define FOR_EVER 1000000000

static void hold_gpus(void)
{
	fake_delay(FOR_EVER);
}

/* Write `length` bytes of slot `index`, in `parts` transfers. */
static struct wh_batch *slot_batch(struct gpu_pair *p, uint64_t index, uint64_t length,
				   unsigned parts)
{
	struct wh_batch *batch;

	want(0, wh_batch_new(p->peer, NULL, &batch));
	for (unsigned i = 0; i < parts; i++) {
		struct wh_transfer t = { .op = WH_WRITE,
					 .local = p->region,
					 .local_offset = index * SLOT + i * (length / parts),
					 .remote = p->remote.id,
					 .length = length / parts };

		t.remote_offset = t.local_offset;
		want(0, wh_batch_add(batch, &t, 1));
	}
	return batch;
}

static void batches_free(struct wh_batch *batch[BATCHES])
{
	for (unsigned i = 0; i < BATCHES; i++)
		want(0, wh_batch_free(batch[i]));
}

/* The oldest is waited for and submitted again, as programs do that keep many in flight. */
static void move_all(uint32_t here, uint32_t there, const char *where, bool apart)
{
	const unsigned parts[] = { 1, 1, 4, 2, 16 };
	struct wh_batch *batch[BATCHES];
	struct gpu_pair p;

	gpu_pair_open(&p, here, bytes_on_gpu(here) ? "cuda:0" : NULL, there, where, LENGTH, apart);
	for (unsigned i = 0; i < BATCHES; i++)
		batch[i] = slot_batch(&p, i, SLOT, parts[i % 5]);
	for (uint64_t seed = 1; seed <= 2; seed++) {
		gpu_pair_fill(&p, seed);
		for (unsigned i = 0; i < 4 * BATCHES; i++) {
			if (i >= BATCHES)
				want(0, batch_end(batch[i % BATCHES], PATIENT));
			want(0, wh_batch_submit(batch[i % BATCHES]));
		}
		for (unsigned i = 0; i < BATCHES; i++)
			want(0, batch_end(batch[i], PATIENT));
		want_true(gpu_pair_copied(&p, seed), "it is wrong");
	}
	batches_free(batch);
	gpu_pair_close(&p);
}

static void many__arrive(void **state)
{
	(void)state;
	move_all(WH_MEMORY_DEVICE, WH_MEMORY_DEVICE, "cuda:0", false);
	move_all(WH_MEMORY_DEVICE, WH_MEMORY_PINNED, NULL, false);
	move_all(WH_MEMORY_PINNED, WH_MEMORY_DEVICE, "cuda:0", false);
	move_all(WH_MEMORY_DEVICE, WH_MEMORY_VMM, "cuda:0", true);
}

/* Two turns are in flight and do not end. One that waits behind them is cancelled, and ends. */
static void cancel__one_that_waits(void **state)
{
	const unsigned one = 9, last = 20;
	struct wh_batch *batch[BATCHES];
	unsigned char before[SLOT];
	struct gpu_pair p;

	(void)state;
	gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_PINNED, NULL, LENGTH, false);
	for (unsigned i = 0; i < BATCHES; i++)
		batch[i] = slot_batch(&p, i, SLOT, 4);
	gpu_pair_fill(&p, 1);
	want(0, gpu_run(batch[0])); /* plans */
	memcpy(before, p.target + one * SLOT, SLOT);
	hold_gpus();
	for (unsigned i = 0; i < last; i++)
		want(0, wh_batch_submit(batch[i]));
	want(0, wh_batch_cancel(batch[one]));
	want(-ECANCELED, batch_now(batch[one]));
	for (unsigned i = 0; i < last; i++)
		want(i == one ? -ECANCELED : -EINPROGRESS, wh_batch_status(batch[i]));
	fake_heal();
	for (unsigned i = 0; i < last; i++)
		want(i == one ? -ECANCELED : 0, batch_end(batch[i], PATIENT));
	want_true(!memcmp(before, p.target + one * SLOT, SLOT), "it was moved");
	for (unsigned i = last; i < BATCHES; i++)
		want(0, gpu_run(batch[i]));
	want(0, gpu_run(batch[one]));
	want_true(gpu_pair_copied(&p, 1), "it is wrong");
	batches_free(batch);
	gpu_pair_close(&p);
}

static bool explained_by_window(struct wh_batch *batch)
{
	char text[1024];

	want_true(wh_batch_explain(batch, text, sizeof(text)) > 0, "no explanation");
	return strstr(text, "(CPU window (");
}

/* By a window a batch has ended when it has been submitted; by the GPU it has not, while that does
 * not get on. However many were in flight, the explanation says which. */
static void explain__as_it_was(void **state)
{
	struct wh_batch *batch[8];
	struct gpu_pair p;

	(void)state;
	gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_PINNED, NULL, LENGTH, false);
	for (unsigned parts = 1; parts <= 16; parts *= 4) {
		for (unsigned i = 0; i < 8; i++)
			batch[i] = slot_batch(&p, i, SLOT / 2, parts);
		want(0, gpu_run(batch[0]));
		explained_by_window(batch[0]); /* opens it */
		hold_gpus();
		for (unsigned i = 0; i < 8; i++)
			want(0, wh_batch_submit(batch[i]));
		for (unsigned i = 0; i < 8; i++) {
			want(explained_by_window(batch[i]) ? 0 : -EINPROGRESS,
			     wh_batch_status(batch[i]));
		}
		fake_heal();
		for (unsigned i = 0; i < 8; i++) {
			want(0, batch_end(batch[i], PATIENT));
			want(0, wh_batch_free(batch[i]));
		}
	}
	gpu_pair_close(&p);
}

static const struct CMUnitTest tests[] = {
	TEST(many__arrive),
	TEST_NEEDS(cancel__one_that_waits, needs_fake),
	TEST_NEEDS(explain__as_it_was, needs_fake),
};

HARNESS_MAIN("gpu-in-flight", tests)
