/* SPDX-License-Identifier: Apache-2.0 */
/* gpu-small.c: transfers of a few bytes to and from GPU memory of another process
 *
 * The CPU moves them through a window onto the imported memory if one opens, else the copy engine.
 * Also: flags after data, and either side's end. Runs on the fake CUDA driver without windows, on
 * it with a stand-in for the NVIDIA kernel driver, or on the machine's own GPU. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "lib/gpu.h"
#include "lib/windows.h"
#include "platform/rm-abi.h"

#define LENGTH (2 * MIB)
#define AREA 24576 /* the part that is moved and checked */

/* ---- conditions -------------------------------------------------------- */

#pragma weak fake_nvidia_fail
#pragma weak fake_nvidia_version

/* Slow builds skip what a fast build covers without windows. */
static const char *missing_time(void)
{
	return HARNESS_SLOW && getenv("TEST_CUDA") && !has_stand_in() ?
		       "without windows it is for a build without a sanitizer" :
		       NULL;
}

static const struct route needs_time = { .name = "time", .missing = missing_time };

/* True if windows open onto memory of this process. */
static bool has_windows(struct wh_engine *engine)
{
	struct wh_memory_options options = { .size = sizeof(options), .kind = WH_MEMORY_VMM };
	struct wh_window *window;
	void *memory;
	bool opens;

	want(0, wh_memory_alloc(engine, LENGTH, &options, &memory));
	opens = !wh_window_open(engine, memory, LENGTH, NULL, &window);
	if (opens)
		want(0, wh_window_close(window));
	want(0, wh_memory_free(engine, memory));
	return opens;
}

/* ---- two processes, and images of the expected bytes ------------------- */

struct small {
	struct gpu_pair p;
	bool windows; /* this machine opens windows */
	unsigned char *ours, *theirs, *seen;
};

static void small_open_with(struct small *s, uint32_t here, uint32_t there, const char *elsewhere,
			    struct child *child)
{
	gpu_pair_open_with(&s->p, here, NULL, there, elsewhere, LENGTH, child);
	s->windows = has_windows(s->p.engine);
	s->ours = malloc(AREA);
	s->theirs = malloc(AREA);
	s->seen = malloc(AREA);
	assert_true(s->ours && s->theirs && s->seen);
	gpu_pair_fill(&s->p, 3);
	bytes_get(s->ours, s->p.local, AREA, here);
	child_fetch(s->p.child, s->p.memory, 0, AREA, s->theirs);
	use_default_costs();
}

static void small_open(struct small *s, uint32_t here, uint32_t there)
{
	small_open_with(s, here, there, NULL, child_start(NULL));
}

static void small_close(struct small *s)
{
	if (getenv("TEST_CUDA"))
		fake_heal();
	gpu_pair_close(&s->p);
	want_no_windows();
	free(s->ours);
	free(s->theirs);
	free(s->seen);
}

static struct wh_transfer one_of(const struct small *s, uint32_t op, uint64_t local,
				 uint64_t remote, uint64_t length)
{
	return (struct wh_transfer){ .local = s->p.region,
				     .local_offset = local,
				     .remote = s->p.remote.id,
				     .remote_offset = remote,
				     .length = length,
				     .op = op };
}

static struct wh_batch *batch_of(struct small *s, const struct wh_transfer *transfers, size_t count)
{
	struct wh_batch *batch;

	want(0, wh_batch_new(s->p.peer, NULL, &batch));
	want(0, wh_batch_add(batch, transfers, count));
	return batch;
}

static void in_images(struct small *s, const struct wh_transfer *t)
{
	if (t->op == WH_WRITE)
		memcpy(s->theirs + t->remote_offset, s->ours + t->local_offset, t->length);
	else
		memcpy(s->ours + t->local_offset, s->theirs + t->remote_offset, t->length);
}

/* True if the explanation says that a window is used. */
static bool by_window(struct wh_batch *batch)
{
	char text[1024];

	want_true(wh_batch_explain(batch, text, sizeof(text)) > 0, "no explanation");
	want_true(strstr(text, "cuda: "), "%s", text);
	return strstr(text, "(CPU window (");
}

/* True: by a window; such a batch is complete when wh_batch_submit() returns. */
static bool small_move(struct small *s, uint32_t op, uint64_t local, uint64_t remote,
		       uint64_t length)
{
	struct wh_transfer one = one_of(s, op, local, remote, length);
	struct wh_batch *batch = batch_of(s, &one, 1);
	bool window;
	int status;

	want(0, wh_batch_submit(batch));
	status = wh_batch_poll(batch);
	want(0, wh_batch_wait(batch, PATIENCE));
	window = by_window(batch);
	if (window)
		want(0, status);
	want(0, wh_batch_free(batch));
	in_images(s, &one);
	return window;
}

static void small_same(struct small *s, const char *what)
{
	bytes_get(s->seen, s->p.local, AREA, s->p.here);
	want_true(!memcmp(s->seen, s->ours, AREA), "%s: our side is wrong", what);
	child_fetch(s->p.child, s->p.memory, 0, AREA, s->seen);
	want_true(!memcmp(s->seen, s->theirs, AREA), "%s: the other side is wrong", what);
}

/* Print the explanation of 8 bytes: it says why there is no window. */
static void tell_why(struct small *s)
{
	struct wh_transfer one = one_of(s, WH_WRITE, 0, 0, 8);
	struct wh_batch *batch = batch_of(s, &one, 1);
	char text[1024] = "";

	wh_batch_explain(batch, text, sizeof(text));
	print_message("%s", text);
	want(0, wh_batch_free(batch));
}

/* ---- lengths and kinds ------------------------------------------------- */

/* Both directions, odd offsets. `must`: through a window, if this machine opens any. */
static void move_lengths(uint32_t here, uint32_t there, const char *elsewhere, bool must)
{
	struct small s;
	bool window;

	small_open_with(&s, here, there, elsewhere, child_start(NULL));
	for (uint64_t length = 1; length <= 9000;
	     length += length < 70 ? SCALE(1, 5) : length / SCALE(3, 1)) {
		uint64_t local = 1 + length * 7 % 131, remote = 1 + length * 13 % 127;

		window = small_move(&s, WH_WRITE, local, remote, length);
		if (length == 1 && must && window != s.windows)
			tell_why(&s);
		if (length <= 64 && must)
			want(s.windows, window);
		window = small_move(&s, WH_READ, local + 10001, remote + 9001, length);
		if (length <= 64 && must)
			want(s.windows, window);
		if (length % 16 < 2)
			small_same(&s, "lengths");
	}
	small_same(&s, "all lengths");
	/* Aligned flags of 1 to 8 bytes. */
	for (uint64_t length = 1; length <= 8; length *= 2)
		small_move(&s, WH_WRITE, 64 * length, 4096 + 64 * length, length);
	small_same(&s, "flags");
	if (!must && s.windows)
		tell_why(&s);
	small_close(&s);
}

static void apart__from_host(void **state)
{
	(void)state;
	move_lengths(WH_MEMORY_PAGEABLE, WH_MEMORY_VMM, NULL, true);
}

static void apart__from_our_gpu(void **state)
{
	(void)state;
	move_lengths(WH_MEMORY_DEVICE, WH_MEMORY_SHARED, NULL, true);
}

static void apart__between_gpus_memories(void **state)
{
	(void)state;
	move_lengths(WH_MEMORY_VMM, WH_MEMORY_VMM, NULL, true);
}

/* Imported by a legacy handle: the driver decides whether a window opens onto that. */
static void apart__legacy(void **state)
{
	(void)state;
	move_lengths(WH_MEMORY_PAGEABLE, WH_MEMORY_DEVICE, NULL, has_stand_in());
}

/* CUDA opens a legacy handle for one GPU at a time; our side's is not the memory's own GPU. */
static void apart__on_another_gpu(void **state)
{
	(void)state;
	move_lengths(WH_MEMORY_DEVICE, WH_MEMORY_DEVICE, "cuda:1", has_stand_in());
	move_lengths(WH_MEMORY_VMM, WH_MEMORY_DEVICE, "cuda:1", has_stand_in());
	move_lengths(WH_MEMORY_VMM, WH_MEMORY_VMM, "cuda:1", true);
}

/* Several transfers in a batch, and blocks, some with more fragments than a window moves. */
static void apart__several(void **state)
{
	uint64_t offsets[24];
	struct wh_transfer t[5];
	struct wh_base base;
	struct wh_blocks_desc desc = { .size = sizeof(desc),
				       .block_length = 33,
				       .bases = &base,
				       .base_count = 1,
				       .remote_offsets = offsets };
	struct wh_blocks *blocks;
	struct wh_batch *batch;
	struct small s;

	(void)state;
	small_open(&s, WH_MEMORY_PAGEABLE, WH_MEMORY_VMM);
	base = (struct wh_base){ .local = s.p.region,
				 .remote = s.p.remote.id,
				 .local_offset = 4000 };
	for (unsigned int i = 0; i < 24; i++)
		offsets[i] = 64 * ((7 * i) % 24) + i;
	for (unsigned int i = 0; i < 5; i++)
		t[i] = one_of(&s, i & 1 ? WH_READ : WH_WRITE, 101 * i, 5000 + 97 * i, 8 + i);
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		for (desc.count = 3; desc.count <= 24; desc.count += 21) {
			desc.op = op;
			want(0, wh_blocks_prepare(s.p.peer, &desc, &blocks));
			batch = batch_of(&s, t, 5);
			want(0, wh_batch_add_blocks(batch, blocks));
			wh_blocks_free(blocks);
			want(0, gpu_run(batch));
			want(0, wh_batch_free(batch));
			for (unsigned int i = 0; i < 5; i++)
				in_images(&s, &t[i]);
			for (unsigned int i = 0; i < desc.count; i++) {
				if (op == WH_WRITE)
					memcpy(s.theirs + offsets[i], s.ours + 4000 + 33 * i, 33);
				else
					memcpy(s.ours + 4000 + 33 * i, s.theirs + offsets[i], 33);
			}
			small_same(&s, "several");
		}
	}
	small_close(&s);
}

/* ---- flags ------------------------------------------------------------- */

#define ROUNDS SCALE(60, 20)
#define SEMAPHORES 1024 /* of the data before the flag: 8 KiB */
#define FLAG 16384

struct signaller {
	struct small *s;
	uint64_t *semaphores, *flag; /* our side's */
	_Atomic bool done;
	int error;
};

static int signal_once(struct signaller *g, uint64_t round)
{
	struct wh_transfer bytes = one_of(g->s, WH_WRITE, 0, 0, SEMAPHORES * 8);
	struct wh_transfer flag = one_of(g->s, WH_WRITE, FLAG, FLAG, 8);
	struct wh_batch *batch = batch_of(g->s, &bytes, 1);
	int error;

	for (unsigned int i = 0; i < SEMAPHORES; i++)
		g->semaphores[i] = round;
	*g->flag = round;
	error = gpu_run(batch);
	want(0, wh_batch_free(batch));
	batch = batch_of(g->s, &flag, 1);
	error = error ? error : gpu_run(batch);
	want(0, wh_batch_free(batch));
	return error;
}

static void *signal_all(void *arg)
{
	struct signaller *g = arg;

	for (uint64_t round = 1; round <= ROUNDS && !g->error; round++)
		g->error = signal_once(g, round);
	atomic_store(&g->done, true);
	return NULL;
}

/* A thread that sees the flag also sees the data moved before it. */
static void flags__come_last(void **state)
{
	uint64_t *semaphores = calloc(SEMAPHORES, sizeof(*semaphores)), flag = 0, least;
	struct signaller g = { 0 };
	pthread_t thread;
	struct small s;
	bool done;

	(void)state;
	assert_non_null(semaphores);
	small_open(&s, WH_MEMORY_PAGEABLE, WH_MEMORY_VMM);
	memset(s.p.local, 0, AREA);
	small_move(&s, WH_WRITE, 0, 0, SEMAPHORES * 8);
	want(s.windows, small_move(&s, WH_WRITE, FLAG, FLAG, 8));
	child_fetch(s.p.child, s.p.memory, FLAG, 8, &flag);
	want(0, flag);
	g.s = &s;
	g.semaphores = (uint64_t *)(void *)s.p.local;
	g.flag = (uint64_t *)(void *)(s.p.local + FLAG);
	want(0, pthread_create(&thread, NULL, signal_all, &g));
	do {
		done = atomic_load(&g.done);
		child_fetch(s.p.child, s.p.memory, FLAG, 8, &flag);
		child_fetch(s.p.child, s.p.memory, 0, SEMAPHORES * 8, semaphores);
		least = UINT64_MAX;
		for (unsigned int i = 0; i < SEMAPHORES; i++)
			least = semaphores[i] < least ? semaphores[i] : least;
		want_true(flag <= least, "flag %llu, but bytes of round %llu",
			  (unsigned long long)flag, (unsigned long long)least);
	} while (!done);
	pthread_join(thread, NULL);
	want(0, g.error);
	want(ROUNDS, flag);
	small_close(&s);
	free(semaphores);
}

/* ---- window or copy engine --------------------------------------------- */

static uint64_t duration(struct small *s, uint32_t op, uint64_t length, bool *window)
{
	struct wh_transfer one = one_of(s, op, 0, 0, length);
	struct wh_batch *batch = batch_of(s, &one, 1);
	struct wh_estimate estimate = { .size = sizeof(estimate) };

	*window = by_window(batch); /* opens the window */
	want(0, wh_batch_estimate(batch, &estimate));
	want(0, wh_batch_free(batch));
	return estimate.duration;
}

/* The estimate: writes through a window cost what was measured, reads cost more per byte, and long
 * transfers use the copy engine. */
static void explain__by_size(void **state)
{
	uint64_t few, more, many, reads;
	bool window;
	struct small s;

	(void)state;
	small_open(&s, WH_MEMORY_PINNED, WH_MEMORY_VMM);
	few = duration(&s, WH_WRITE, 8, &window);
	want(s.windows, window);
	more = duration(&s, WH_WRITE, 4096, &window);
	want(s.windows, window);
	many = duration(&s, WH_WRITE, MIB, &window);
	want(false, window);
	want_true(few && few <= more && more < many, "%llu, %llu, %llu ns", (unsigned long long)few,
		  (unsigned long long)more, (unsigned long long)many);
	reads = duration(&s, WH_READ, 64, &window);
	want(s.windows, window);
	want_true(reads, "not known");
	duration(&s, WH_READ, 64 * KIB, &window);
	want(false, window);
	small_same(&s, "explained");
	small_close(&s);
}

static void explain__switched_off(void **state)
{
	char text[1024];
	struct wh_transfer one;
	struct wh_batch *batch;
	struct small s;

	(void)state;
	setenv("WHERRY_WINDOW", "off", 1);
	small_open(&s, WH_MEMORY_PAGEABLE, WH_MEMORY_VMM);
	unsetenv("WHERRY_WINDOW");
	want(false, small_move(&s, WH_WRITE, 3, 5, 8));
	one = one_of(&s, WH_WRITE, 3, 5, 8);
	batch = batch_of(&s, &one, 1);
	want_true(wh_batch_explain(batch, text, sizeof(text)) > 0, "no explanation");
	want_true(strstr(text, "no CPU window: windows are switched off"), "%s", text);
	want(0, wh_batch_free(batch));
	small_same(&s, "switched off");
	small_close(&s);
}

/* ---- windows that do not open ------------------------------------------ */

#define NO_EXPORT "0x13d05:0:0x56" /* the owner's kernel driver exports no objects */

/* The explanation of 8 bytes must contain `what`. */
static void want_told(struct small *s, const char *what)
{
	struct wh_transfer one = one_of(s, WH_WRITE, 0, 0, 8);
	struct wh_batch *batch = batch_of(s, &one, 1);
	char text[1024] = "";

	want_true(wh_batch_explain(batch, text, sizeof(text)) > 0, "no explanation");
	want_true(strstr(text, what), "no \"%s\" in \"%s\"", what, text);
	want(0, wh_batch_free(batch));
}

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
		want_told(&s, "another process's memory");
		want_told(&s, owners[i][2]);
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
	want_told(&s, "failed a trial");
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
	one = one_of(&s, WH_WRITE, 0, 0, 8);
	batch = batch_of(&s, &one, 1);
	want(0, child_unregister(s.p.child, s.p.child_region));
	want_no_windows();
	error = gpu_run(batch);
	want_true(error == -ESTALE || error == -ENOENT, "%d", error);
	want(0, wh_batch_free(batch));
	/* The same memory in another region gets a window of its own. */
	s.p.child_region = child_region(s.p.child, s.p.memory, 0, LENGTH, "again", 0, NULL);
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
	one = one_of(&s, WH_WRITE, 0, 0, 8);
	batch = batch_of(&s, &one, 1);
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
	small_open(&s, WH_MEMORY_PAGEABLE, WH_MEMORY_VMM);
	small_move(&s, WH_WRITE, 1, 2, 8);
	one = one_of(&s, WH_WRITE, 0, 0, 8);
	batch = batch_of(&s, &one, 1);
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
		struct wh_transfer one = one_of(m->s, i & 1 ? WH_READ : WH_WRITE, at + i % 61,
						at + i % 61, 1 + i * 7919 % 3000);
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

static void many(bool going)
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
	many(false);
}

static void many__withdrawn(void **state)
{
	(void)state;
	many(true);
}

/* ---- both sides in the same memory ------------------------------------- */

/* Copy engines and kernels have no direction: a transfer onto overlapping memory is refused; one
 * onto itself, or onto adjacent memory, is not. */
static void self__overlap(void **state)
{
	static const struct {
		uint64_t local, remote, length;
		int error;
	} cases[] = {
		{ 0, 4096, 4096, 0 },       { 4096, 0, 4096, 0 },
		{ 0, 0, LENGTH, 0 },        { 0, 1, 2, -EINVAL },
		{ 1, 0, 2, -EINVAL },       { 0, 4095, 4096, -EINVAL },
		{ 4095, 0, 4096, -EINVAL }, { 0, LENGTH / 2 - 1, LENGTH / 2, -EINVAL },
	};
	struct wh_transfer transfer = { .op = WH_WRITE };
	const uint64_t offsets[] = { 0, 8192 }, shifted[] = { 64, 8192 };
	struct wh_base base = { 0 };
	struct wh_blocks_desc desc = { .size = sizeof(desc),
				       .op = WH_READ,
				       .block_length = 128,
				       .count = 2,
				       .bases = &base,
				       .base_count = 1,
				       .local_offsets = offsets,
				       .remote_offsets = shifted };
	struct wh_blocks *blocks;
	struct wh_batch *batch;
	struct gpu_pair p;

	(void)state;
	gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_DEVICE, "cuda:0", LENGTH, false);
	base.local = transfer.local = p.target_region;
	base.remote = transfer.remote = p.remote.id;
	want(0, wh_batch_new(p.peer, NULL, &batch));
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		transfer.local_offset = cases[i].local;
		transfer.remote_offset = cases[i].remote;
		transfer.length = cases[i].length;
		want(cases[i].error, wh_batch_add(batch, &transfer, 1));
		want_true(!cases[i].error || strstr(wh_error_text(), "overlap"), "%s",
			  wh_error_text());
	}
	want_text(-EINVAL, "block 0: source and target overlap",
		  wh_blocks_prepare(p.peer, &desc, &blocks));
	base.remote_offset = 256;
	want(0, wh_blocks_prepare(p.peer, &desc, &blocks));
	wh_blocks_free(blocks);
	/* Different memory at different addresses. */
	base.local = p.region;
	base.remote_offset = 0;
	want(0, wh_blocks_prepare(p.peer, &desc, &blocks));
	wh_blocks_free(blocks);
	want(0, wh_batch_free(batch));
	gpu_pair_close(&p);
}

static const struct CMUnitTest tests[] = {
	TEST(self__overlap),
	TEST(apart__from_host),
	TEST_NEEDS(apart__from_our_gpu, needs_time),
	TEST_NEEDS(apart__between_gpus_memories, needs_time),
	TEST_NEEDS(apart__legacy, needs_time),
	TEST_NEEDS(apart__on_another_gpu, needs_two_gpus),
	TEST(apart__several),
	TEST_NEEDS(flags__come_last, needs_time),
	TEST_NEEDS(explain__by_size, needs_time),
	TEST_NEEDS(explain__switched_off, needs_time),
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

HARNESS_MAIN("gpu-small", tests)
