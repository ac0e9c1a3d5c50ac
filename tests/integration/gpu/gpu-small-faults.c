/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: gpu windows-too */
/* gpu-small-faults.c: small transfers to GPU memory whose windows do not open or go away
 *
 * Each step of opening a window fails; the owner unregisters its region or dies, also while threads
 * transfer. Runs where gpu-small runs. */
#include <pthread.h>
#include <sys/wait.h>

#include "../../wipe.h"
#include "lib/small.h"
#include "lib/windows.h"
#include "platform/rm-abi.h"

#pragma weak fake_nvidia_fail
#pragma weak fake_nvidia_version

/* ---- windows that do not open ------------------------------------------ */

#define NO_EXPORT "0x13d05:0:0x56" /* the owner's kernel driver exports no objects */

/* Whichever step fails, the bytes arrive, and the step is not tried again. */
static void refused__each_step(void **state)
{
	static const uint32_t steps[] = { FAKE_NVIDIA_MMAP, RM_ESCAPE_MAP_MEMORY,
					  FAKE_NVIDIA_CONTROL(RM_CONTROL_IMPORT_OBJECT) };

	(void)state;
	for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++) {
		struct small s;

		small_open(&s, WH_MEMORY_PAGEABLE, WH_MEMORY_VMM);
		fake_nvidia_fail(steps[i], 0, steps[i] == FAKE_NVIDIA_MMAP ? -ENOMEM : 0x1a);
		want(false, small_move(&s, WH_WRITE, 5, 6, 8));
		fake_nvidia_fail(steps[i], 0, 0);
		want(false, small_move(&s, WH_READ, 700, 6, 64));
		small_same(&s, "refused");
		small_close(&s);
	}
}

/* CUDA's import is not available as an object here, and the owner's handle is not read: the owner
 * sends a descriptor, for any kind of memory. */
static void refused__asks_the_owner(void **state)
{
	static const uint32_t kinds[] = { WH_MEMORY_VMM, WH_MEMORY_DEVICE };

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct fake_nvidia before;
		struct small s;

		small_open(&s, WH_MEMORY_PAGEABLE, kinds[i]);
		before = stand_in_state();
		want(true, small_move(&s, WH_WRITE, 5, 6, 8));
		want(true, small_move(&s, WH_READ, 700, 6, 100));
		want(before.imported + 1, stand_in_state().imported);
		want(before.asked, stand_in_state().asked);
		small_same(&s, "by the owner's object");
		want(0, child_unregister(s.p.child, s.p.child_region));
		want_no_windows();
		small_close(&s);
	}
}

/* The owner cannot export it either: the explanation gives both reasons. */
static void refused__by_the_owner(void **state)
{
	static const char *const owners[][3] = {
		{ "FAKE_NVIDIA_FAIL", NO_EXPORT, "its owner: /dev/nvidiactl: EXPORT_OBJECT_TO_FD" },
		{ "FAKE_NVIDIA_VERSION", "999.1",
		  "its owner: NVIDIA driver 999.1 has not been seen" },
		{ "WHERRY_WINDOW", "driver", "its owner: its setting window is driver" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(owners) / sizeof(*owners); i++) {
		struct child *child;
		struct small s;

		setenv(owners[i][0], owners[i][1], 1);
		child = child_start(NULL);
		unsetenv(owners[i][0]);
		small_open_with(&s, WH_MEMORY_PAGEABLE, WH_MEMORY_DEVICE, NULL, child);
		want(false, small_move(&s, WH_WRITE, 5, 6, 8));
		want(false, small_move(&s, WH_READ, 700, 6, 100));
		small_want_explained(&s, "another process's memory");
		small_want_explained(&s, owners[i][2]);
		small_same(&s, "by nobody");
		small_close(&s);
	}
}

/* With an unknown driver version, the engine first tries an import on memory of this process. */
static void refused__unknown_driver(void **state)
{
	struct small s;

	(void)state;
	fake_nvidia_version("999.12");
	small_open(&s, WH_MEMORY_PAGEABLE, WH_MEMORY_VMM);
	want(true, s.windows); /* ran the trial */
	want(true, small_move(&s, WH_WRITE, 5, 6, 8));
	small_same(&s, "tried");
	small_close(&s);
	fake_nvidia_fail(FAKE_NVIDIA_WRONG, 0, 1);
	small_open(&s, WH_MEMORY_PAGEABLE, WH_MEMORY_VMM);
	want(false, s.windows);
	fake_heal(); /* the trial can allocate again */
	want(false, small_move(&s, WH_WRITE, 5, 6, 8));
	fake_nvidia_fail(FAKE_NVIDIA_WRONG, 0, 0);
	small_want_explained(&s, "failed a trial");
	small_same(&s, "not trusted");
	small_close(&s);
	fake_nvidia_version("");
}

/* ---- either side ends -------------------------------------------------- */

/* The owner unregisters its region: our release reaches it only after the window is closed. */
static void going__withdrawn(void **state)
{
	struct wh_transfer one;
	struct wh_batch *batch;
	struct small s;
	int error;

	(void)state;
	small_open(&s, WH_MEMORY_PAGEABLE, WH_MEMORY_VMM);
	want(s.windows, small_move(&s, WH_WRITE, 0, 0, 8));
	want(has_stand_in() ? 1 : 0, stand_in_state().mapped);
	one = small_transfer(&s, WH_WRITE, 0, 0, 8);
	batch = small_batch(&s, &one, 1);
	want(0, child_unregister(s.p.child, s.p.child_region));
	want_no_windows();
	error = gpu_run(batch);
	want_true(error == -ESTALE || error == -ENOENT, "%d", error);
	want(0, wh_batch_free(batch));
	/* The same memory in another region gets a window of its own. */
	s.p.child_region =
		child_region(s.p.child, s.p.memory, 0, LENGTH, "again", ACCESS_BOTH, NULL);
	want(0, wh_peer_find(s.p.peer, "again", PATIENCE, &s.p.remote));
	want(s.windows, small_move(&s, WH_WRITE, 9, 17, 8));
	small_same(&s, "again");
	small_close(&s);
}

static void going__killed(void **state)
{
	struct wh_transfer one;
	struct wh_batch *batch;
	struct small s;
	int error;

	(void)state;
	small_open(&s, WH_MEMORY_PAGEABLE, WH_MEMORY_VMM);
	want(s.windows, small_move(&s, WH_WRITE, 0, 0, 8));
	one = small_transfer(&s, WH_WRITE, 0, 0, 8);
	batch = small_batch(&s, &one, 1);
	child_kill(s.p.child);
	s.p.child = NULL;
	error = gpu_run(batch);
	want_true(error == -ECONNRESET || error == -ENOTCONN || error == -ESTALE, "%d: %s", error,
		  wh_error_text());
	want(0, wh_batch_free(batch));
	small_close(&s);
}

/* A child of fork() inherits no window, and the parent's still work. */
static void going__fork(void **state)
{
	struct wh_transfer one;
	struct wh_batch *batch;
	struct small s;
	int status;
	pid_t pid;

	(void)state;
	skip_without_wipe();
	small_open(&s, WH_MEMORY_PAGEABLE, WH_MEMORY_VMM);
	small_move(&s, WH_WRITE, 1, 2, 8);
	one = small_transfer(&s, WH_WRITE, 0, 0, 8);
	batch = small_batch(&s, &one, 1);
	pid = fork();
	if (!pid)
		_exit(wh_batch_submit(batch) != -EPERM);
	want(pid, waitpid(pid, &status, 0));
	want(0, status);
	want(0, wh_batch_free(batch));
	small_move(&s, WH_READ, 1000, 2, 8);
	small_same(&s, "after a fork");
	small_close(&s);
}

/* ---- concurrency ------------------------------------------------------- */

#define THREADS 3

struct mover {
	struct small *s;
	unsigned int number;
	bool going; /* the region may be unregistered during the test */
	int error;
};

static void *move_many(void *arg)
{
	struct mover *m = arg;
	uint64_t at = m->number * 8000;

	for (unsigned int i = 0; i < SCALE(300, 60) && !m->error; i++) {
		struct wh_transfer one =
			small_transfer(m->s, i & 1 ? WH_READ : WH_WRITE, at + i % 61, at + i % 61,
				       1 + i * 7919 % 3000);
		struct wh_batch *batch = NULL;

		m->error = wh_batch_new(m->s->p.peer, NULL, &batch);
		m->error = m->error ? m->error : wh_batch_add(batch, &one, 1);
		m->error = m->error ? m->error : gpu_run(batch);
		want(0, wh_batch_free(batch));
	}
	if (m->going && (m->error == -ESTALE || m->error == -ENOENT))
		m->error = 0;
	return NULL;
}

static void move_in_threads(bool going)
{
	struct mover movers[THREADS];
	pthread_t threads[THREADS];
	struct small s;

	small_open(&s, WH_MEMORY_PAGEABLE, WH_MEMORY_VMM);
	/* Both sides hold the same bytes, so that no transfer changes anything. */
	child_fill(s.p.child, s.p.memory, 0, LENGTH, 0, 3);
	child_fetch(s.p.child, s.p.memory, 0, AREA, s.theirs);
	for (unsigned int i = 0; i < THREADS; i++) {
		movers[i] = (struct mover){ &s, i, going, 0 };
		want(0, pthread_create(&threads[i], NULL, move_many, &movers[i]));
	}
	if (going)
		want(0, child_unregister(s.p.child, s.p.child_region));
	for (unsigned int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		want(0, movers[i].error);
	}
	if (going)
		want_no_windows();
	small_same(&s, "many");
	small_close(&s);
}

static void many__threads(void **state)
{
	(void)state;
	move_in_threads(false);
}

static void many__withdrawn(void **state)
{
	(void)state;
	move_in_threads(true);
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(refused__each_step, needs_stand_in),
	TEST_NEEDS(refused__asks_the_owner, needs_stand_in),
	TEST_NEEDS(refused__by_the_owner, needs_stand_in),
	TEST_NEEDS(refused__unknown_driver, needs_stand_in),
	TEST(going__withdrawn),
	TEST(going__killed),
	TEST_NEEDS(going__fork, needs_time),
	TEST_NEEDS(many__threads, needs_time),
	TEST_NEEDS(many__withdrawn, needs_time),
};

HARNESS_MAIN("gpu-small-faults", tests)
