/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: gpu windows */
/* gpu-window-cuda.c: how the transport cuda uses CPU windows
 *
 * Within this process the CPU moves a few bytes to and from GPU memory, without the GPU. On the
 * fake CUDA driver and a stand-in for the NVIDIA kernel driver. */
#include <sys/wait.h>
#include <unistd.h>

#include "../../wipe.h"
#include "lib/gpu.h"
#include "lib/windows.h"

#define FEW 8192

struct few {
	struct gpu_pair p;
	unsigned char *ours, *theirs, *seen; /* expected bytes */
};

static void few_open(struct few *f, uint32_t here, uint32_t there)
{
	setenv("WHERRY_WINDOW", "rm,rm-watch", 1); /* rm-watch finds pools, too */
	gpu_pair_open(&f->p, here, NULL, there, NULL, FEW, false);
	unsetenv("WHERRY_WINDOW");
	f->ours = malloc(FEW);
	f->theirs = malloc(FEW);
	f->seen = malloc(FEW);
	assert_true(f->ours && f->theirs && f->seen);
	gpu_pair_fill(&f->p, 3);
	use_default_costs();
	bytes_get(f->ours, f->p.local, FEW, here);
	bytes_get(f->theirs, f->p.target, FEW, there);
}

static void few_close(struct few *f)
{
	fake_heal();
	gpu_pair_close(&f->p);
	want_no_windows();
	free(f->ours);
	free(f->theirs);
	free(f->seen);
}

static void few_move(struct few *f, uint32_t op, uint64_t local, uint64_t remote, uint64_t length,
		     bool look)
{
	struct wh_transfer one = { .local = f->p.region,
				   .local_offset = local,
				   .remote = f->p.remote.id,
				   .remote_offset = remote,
				   .length = length,
				   .op = op };
	struct wh_batch *batch;
	char text[512];

	want(0, wh_batch_new(f->p.peer, NULL, &batch));
	want(0, wh_batch_add(batch, &one, 1));
	want(0, wh_batch_submit(batch));
	/* Complete as soon as it is submitted. */
	if (look)
		want(0, batch_now(batch));
	want(0, batch_end(batch, PATIENCE));
	want_true(wh_batch_explain(batch, text, sizeof(text)) > 0, "no explanation");
	if (look)
		want_true(strstr(text, "cuda: ") && strstr(text, "CPU window (rm"), "%s", text);
	want(0, wh_batch_free(batch));
	if (op == WH_WRITE)
		memcpy(f->theirs + remote, f->ours + local, length);
	else
		memcpy(f->ours + local, f->theirs + remote, length);
}

static void few_same(struct few *f, const char *what, uint64_t length)
{
	bytes_get(f->seen, f->p.local, FEW, f->p.here);
	want_true(!memcmp(f->seen, f->ours, FEW), "%s %llu: our side is wrong", what,
		  (unsigned long long)length);
	bytes_get(f->seen, f->p.target, FEW, f->p.there);
	want_true(!memcmp(f->seen, f->theirs, FEW), "%s %llu: the target is wrong", what,
		  (unsigned long long)length);
}

/* Every length, at odd offsets, in both directions, with the GPU on either side. */
static void few__every_length(void **state)
{
	static const uint32_t kinds[][2] = { { WH_MEMORY_PAGEABLE, WH_MEMORY_DEVICE },
					     { WH_MEMORY_DEVICE, WH_MEMORY_SHARED },
					     { WH_MEMORY_VMM, WH_MEMORY_PINNED },
					     { WH_MEMORY_MAPPED, WH_MEMORY_POOL } };

	(void)state;
	for (size_t k = 0; k < sizeof(kinds) / sizeof(*kinds); k++) {
		struct few f;

		few_open(&f, kinds[k][0], kinds[k][1]);
		for (uint64_t length = 1; length <= 4097; length += SCALE(1, 7)) {
			uint64_t local = 1 + length * 7 % 131, remote = 1 + length * 13 % 127;

			few_move(&f, WH_WRITE, local, remote, length, length == 8);
			few_move(&f, WH_READ, remote + 2, local + 4, length, length == 8);
			if (length < 300 || length % 64 < 2)
				few_same(&f, "length", length);
		}
		few_same(&f, "all lengths up to", 4097);
		few_close(&f);
	}
}

/* wh_peer_prepare() opens the window, which takes milliseconds, and not the first few bytes. */
static void few__prepared(void **state)
{
	struct few f;

	(void)state;
	few_open(&f, WH_MEMORY_PAGEABLE, WH_MEMORY_DEVICE);
	want(0, stand_in_state().mapped);
	want(0, wh_peer_prepare(f.p.peer, &f.p.region, 1, &f.p.remote.id, 1, PATIENCE));
	want(1, stand_in_state().mapped);
	few_move(&f, WH_WRITE, 3, 5, 8, true);
	want(1, stand_in_state().mapped);
	few_same(&f, "prepared", 8);
	few_close(&f);
}

static void few__empty_and_wrong(void **state)
{
	struct wh_transfer one = { .op = WH_WRITE };
	struct wh_batch *batch;
	struct few f;

	(void)state;
	few_open(&f, WH_MEMORY_PAGEABLE, WH_MEMORY_DEVICE);
	one.local = f.p.region;
	one.remote = f.p.remote.id;
	want(0, wh_batch_new(f.p.peer, NULL, &batch));
	want(0, wh_batch_add(batch, &one, 1));
	want(0, wh_batch_submit(batch));
	want(0, wh_batch_status(batch));
	one.length = 2;
	one.remote_offset = FEW - 1;
	want(-ERANGE, wh_batch_add(batch, &one, 1));
	want(0, wh_batch_free(batch));
	few_same(&f, "nothing", 0);
	few_close(&f);
}

/* Several transfers in a batch, and blocks. */
static void few__several(void **state)
{
	uint64_t offsets[4] = { 9, 1000, 501, 3001 };
	struct wh_transfer t[5];
	struct wh_base base;
	struct wh_blocks_desc desc = { .size = sizeof(desc),
				       .block_length = 33,
				       .count = 4,
				       .bases = &base,
				       .base_count = 1,
				       .remote_offsets = offsets };
	struct wh_blocks *blocks;
	struct wh_batch *batch;
	struct few f;

	(void)state;
	few_open(&f, WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE);
	for (unsigned int i = 0; i < 5; i++)
		t[i] = (struct wh_transfer){ .local = f.p.region,
					     .local_offset = 101 * i,
					     .remote = f.p.remote.id,
					     .remote_offset = 5000 + 97 * i,
					     .length = 8 + i,
					     .op = i & 1 ? WH_READ : WH_WRITE };
	base = (struct wh_base){ .local = f.p.region,
				 .remote = f.p.remote.id,
				 .local_offset = 4000 };
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		desc.op = op;
		want(0, wh_blocks_new(f.p.peer, &desc, &blocks));
		want(0, wh_batch_new(f.p.peer, NULL, &batch));
		want(0, wh_batch_add(batch, t, 5));
		want(0, wh_batch_add_blocks(batch, blocks));
		wh_blocks_free(blocks);
		want(0, gpu_run(batch));
		want(0, wh_batch_free(batch));
		for (unsigned int i = 0; i < 5; i++) {
			if (t[i].op == WH_WRITE)
				memcpy(f.theirs + t[i].remote_offset, f.ours + t[i].local_offset,
				       t[i].length);
			else
				memcpy(f.ours + t[i].local_offset, f.theirs + t[i].remote_offset,
				       t[i].length);
		}
		for (unsigned int i = 0; i < 4; i++) {
			if (op == WH_WRITE)
				memcpy(f.theirs + offsets[i], f.ours + 4000 + 33 * i, 33);
			else
				memcpy(f.ours + 4000 + 33 * i, f.theirs + offsets[i], 33);
		}
		few_same(&f, "several", op);
	}
	few_close(&f);
}

/* A child of fork() inherits no window, and the parent's still work. */
static void few__fork(void **state)
{
	struct wh_transfer one = { .length = 8, .op = WH_WRITE };
	struct wh_batch *batch;
	struct few f;
	int status;
	pid_t pid;

	(void)state;
	skip_without_wipe();
	few_open(&f, WH_MEMORY_PAGEABLE, WH_MEMORY_DEVICE);
	few_move(&f, WH_WRITE, 1, 2, 8, true);
	one.local = f.p.region;
	one.remote = f.p.remote.id;
	want(0, wh_batch_new(f.p.peer, NULL, &batch));
	want(0, wh_batch_add(batch, &one, 1));
	pid = fork();
	if (!pid)
		_exit(wh_batch_submit(batch) != -EPERM);
	want(pid, waitpid(pid, &status, 0));
	want(0, status);
	want(0, wh_batch_free(batch));
	few_same(&f, "after a fork", 8);
	few_move(&f, WH_READ, 100, 2, 8, true);
	few_same(&f, "after a fork", 8);
	few_close(&f);
}

static bool explained_by_window(struct wh_batch *batch)
{
	char text[1024];

	want_true(wh_batch_explain(batch, text, sizeof(text)) > 0, "no explanation");
	return strstr(text, "(CPU window (");
}

/* A window reads slowly: one of many in flight goes by the GPU, which has them in one turn. Writing
 * is quick. Nothing that is on the GPU ends meanwhile, and what went through a window has ended. */
static void few__many_in_flight(void **state)
{
	enum { MANY = 6 };
	static const uint32_t ops[] = { WH_READ, WH_WRITE };
	void (*delay)(unsigned int) = gpu_symbol("fake_cuda_delay");

	(void)state;
	for (unsigned int k = 0; k < 2; k++) {
		struct wh_transfer one = { .op = ops[k], .length = k ? 4096 : FEW };
		struct wh_batch *batch[MANY];
		struct few f;
		bool alone;

		few_open(&f, WH_MEMORY_PINNED, WH_MEMORY_DEVICE);
		one.local = f.p.region;
		one.remote = f.p.remote.id;
		for (unsigned int i = 0; i < MANY; i++) {
			want(0, wh_batch_new(f.p.peer, NULL, &batch[i]));
			want(0, wh_batch_add(batch[i], &one, 1));
		}
		want(0, gpu_run(batch[0]));
		alone = explained_by_window(batch[0]);
		want_true(alone || ops[k] == WH_READ, "a write did not use a window");
		delay(1000000000);
		/* All of them first: wh_batch_status() sees that one has ended. */
		for (unsigned int i = 0; i < MANY; i++)
			want(0, wh_batch_submit(batch[i]));
		for (unsigned int i = 0; i < MANY; i++) {
			bool window = explained_by_window(batch[i]);

			want(window ? 0 : -EINPROGRESS, wh_batch_status(batch[i]));
			if (ops[k] == WH_WRITE || i >= 2)
				want(ops[k] == WH_WRITE, window);
		}
		fake_heal();
		for (unsigned int i = 0; i < MANY; i++)
			want(0, batch_end(batch[i], 60 * SECOND));
		want(0, gpu_run(batch[1]));
		want(alone, explained_by_window(batch[1]));
		for (unsigned int i = 0; i < MANY; i++)
			want(0, wh_batch_free(batch[i]));
		memcpy(k ? f.theirs : f.ours, k ? f.ours : f.theirs, one.length);
		few_same(&f, "many", one.length);
		few_close(&f);
	}
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(few__every_length, needs_fake), TEST_NEEDS(few__empty_and_wrong, needs_fake),
	TEST_NEEDS(few__several, needs_fake),      TEST_NEEDS(few__prepared, needs_stand_in),
	TEST_NEEDS(few__fork, needs_fake),         TEST_NEEDS(few__many_in_flight, needs_fake),
};

HARNESS_MAIN("gpu-window-cuda", tests)
