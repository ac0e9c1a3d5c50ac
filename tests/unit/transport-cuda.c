/* SPDX-License-Identifier: Apache-2.0 */
/* transport-cuda.c: explanations say who else computes on a GPU, as the fake NVML lists them */
#include "fake-cuda.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define SHARED "shared by time slices"
#define QUERY "nvmlDeviceGetComputeRunningProcesses"

struct bench {
	char answers[64]; /* the file that the fake NVML reads */
	struct wh_engine *engine;
	struct wh_peer *peer;
	struct wh_region *source, *target;
	struct wh_batch *batch;
	void *gpu;
	uint8_t *host;
};

/* NVML's answers: GPU 0 has these processes ("PID BYTES PID BYTES"), or the query's error. */
static void nvml_say(struct bench *b, const char *processes)
{
	char name[80];
	FILE *file;

	snprintf(name, sizeof(name), "%s.new", b->answers);
	file = fopen(name, "we");
	assert_non_null(file);
	fprintf(file, "nvmlDeviceGetCount : 0 %u\n", b->engine->cuda->device_count);
	for (unsigned i = 0; i < b->engine->cuda->device_count; i++)
		fprintf(file, "nvmlDeviceGetHandleByIndex %u : 0\nnvmlDeviceGetUUID %u : 0 %s\n", i,
			i, b->engine->cuda->devices[i].uuid);
	fprintf(file, QUERY " 0 : %s\n", processes);
	assert_int_equal(fclose(file), 0);
	assert_int_equal(rename(name, b->answers), 0);
	setenv("FAKE_NVML", b->answers, 1);
}

static unsigned nvml_calls(void)
{
	/* It stays, or it would count anew when the engine has closed it. */
	static void *library;
	unsigned (*calls)(const char *);

	if (!library)
		library = dlopen(getenv("TEST_NVML"), RTLD_NOW | RTLD_LOCAL);
	assert_non_null(library);
	calls = (unsigned (*)(const char *))dlsym(library, "fake_nvml_calls");
	assert_non_null(calls);
	return calls(QUERY);
}

static int set_up(void **state)
{
	struct wh_memory_options options = { .size = sizeof(options),
					     .kind = WH_MEMORY_DEVICE,
					     .location = "cuda:0" };
	struct wh_transfer transfer = { .op = WH_WRITE, .length = MIB };
	struct bench *b = calloc(1, sizeof(*b));
	int fd;

	assert_non_null(b);
	snprintf(b->answers, sizeof(b->answers), "/tmp/wherry-nvml-XXXXXX");
	fd = mkstemp(b->answers);
	assert_true(fd >= 0);
	close(fd);
	b->engine = engine_with(getenv("TEST_CUDA"));
	b->host = calloc(1, MIB);
	assert_non_null(b->host);
	assert_int_equal(wh_memory_alloc(b->engine, MIB, &options, &b->gpu), 0);
	assert_int_equal(wh_region_register(b->engine, b->host, MIB, NULL, &b->source), 0);
	assert_int_equal(wh_region_register(b->engine, b->gpu, MIB, NULL, &b->target), 0);
	assert_int_equal(wh_peer_open(b->engine, "self", NULL, &b->peer), 0);
	assert_int_equal(wh_batch_new(b->peer, NULL, &b->batch), 0);
	transfer.local = b->source;
	transfer.remote = wh_region_id(b->target);
	assert_int_equal(wh_batch_add(b->batch, &transfer, 1), 0);
	nvml_calls();
	*state = b;
	return 0;
}

static int tear_down(void **state)
{
	struct bench *b = *state;

	assert_int_equal(wh_batch_free(b->batch), 0);
	assert_int_equal(wh_peer_close(b->peer), 0);
	assert_int_equal(wh_region_unregister(b->source), 0);
	assert_int_equal(wh_region_unregister(b->target), 0);
	assert_int_equal(wh_memory_free(b->engine, b->gpu), 0);
	assert_int_equal(wh_engine_close(b->engine), 0);
	unlink(b->answers);
	free(b->host);
	free(b);
	return 0;
}

static void move(struct bench *b)
{
	assert_int_equal(wh_batch_submit(b->batch), 0);
	assert_int_equal(wh_batch_wait_for(b->batch, WH_FOREVER), 0);
	assert_int_equal(wh_batch_status(b->batch), 0);
}

/* Does the explanation have this text? NULL: nothing about sharing. */
static void want_said(struct bench *b, const char *wanted)
{
	char text[4096];

	move(b);
	assert_true(wh_batch_explain(b->batch, text, sizeof(text)) > 0);
	if (wanted ? !strstr(text, wanted) : strstr(text, SHARED) != NULL)
		fail_msg("'%s' in: %s", wanted ? wanted : "nothing", text);
}

/* A process that has a name and does nothing until it is ended. */
static pid_t other_start(const char *name)
{
	int ready[2];
	char byte;
	pid_t pid;

	assert_int_equal(pipe(ready), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		prctl(PR_SET_NAME, name);
		if (write(ready[1], "", 1) == 1)
			pause();
		_exit(0);
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	close(ready[0]);
	close(ready[1]);
	return pid;
}

static void other_end(pid_t pid)
{
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* ---- who ------------------------------------------------------------------------------------- */

static void sharing__alone(void **state)
{
	struct bench *b = *state;
	char processes[128];

	snprintf(processes, sizeof(processes), "0 %d 1048576", getpid());
	nvml_say(b, processes);
	want_said(b, NULL);
}

static void sharing__another(void **state)
{
	struct bench *b = *state;
	pid_t other = other_start("trainer");
	char processes[128], wanted[128];

	snprintf(processes, sizeof(processes), "0 %d 1048576 %d 1048576", getpid(), other);
	nvml_say(b, processes);
	snprintf(wanted, sizeof(wanted),
		 "warning: cuda:0: " SHARED
		 " (no MPS): another process (pid %d) computes on it, too.",
		 other);
	want_said(b, wanted);
	want_said(b, "a kernel counts as 50 % slower (model_first)");
	other_end(other);
}

static void sharing__several(void **state)
{
	struct bench *b = *state;
	char processes[128];

	snprintf(processes, sizeof(processes), "0 4711001 1 %d 1 4711002 1", getpid());
	nvml_say(b, processes);
	want_said(b, "2 other processes compute on it");
}

/* In a PID namespace this process has another number there. */
static void sharing__numbers_of_another_namespace(void **state)
{
	struct bench *b = *state;

	nvml_say(b, "0 4711001 1");
	want_said(b, NULL);
}

static void sharing__another_of_another_namespace(void **state)
{
	struct bench *b = *state;

	nvml_say(b, "0 4711001 1 4711002 1");
	want_said(b, SHARED " (no MPS): another process computes on it");
}

/* Its clients run side by side. */
static void sharing__mps(void **state)
{
	struct bench *b = *state;
	pid_t server = other_start("nvidia-cuda-mps-server");
	char processes[128];

	snprintf(processes, sizeof(processes), "0 %d 1 4711001 1 %d 1", getpid(), server);
	nvml_say(b, processes);
	want_said(b, NULL);
	other_end(server);
}

static void sharing__not_known(void **state)
{
	struct bench *b = *state;

	nvml_say(b, "4"); /* no permission */
	want_said(b, NULL);
	unsetenv("FAKE_NVML");
	want_said(b, NULL);
}

/* The first plan asks, and explanations, rarely; batches and their routes do not. */
static void sharing__asked_rarely(void **state)
{
	struct bench *b = *state;
	unsigned before = nvml_calls(), first;
	struct wh_route routes[8];
	size_t count;

	nvml_say(b, "0 4711001 1 4711002 1");
	move(b);
	first = nvml_calls();
	for (unsigned i = 0; i < 20; i++) {
		move(b);
		count = 8;
		assert_int_equal(wh_batch_routes(b->batch, routes, &count), 0);
	}
	assert_int_equal(nvml_calls(), first);
	want_said(b, SHARED);
	assert_in_range(nvml_calls() - before, 1, b->engine->cuda->device_count);
}

/* ---- two GPUs, both ways at once --------------------------------------------------------------
 */

#define LONG ((size_t)4 << 20)
#define BOTH (2 * LONG) /* of a GPU's memory: its bytes, and behind them the other's */

struct two {
	struct wh_engine *engine;
	void *memory[2];
	struct wh_region *region[2];
	struct wh_peer *peer;
	struct wh_batch *batch[2]; /* [i] writes from GPU i to the other */
};

static void two_open(struct two *t)
{
	struct wh_memory_options options = { .size = sizeof(options), .kind = WH_MEMORY_DEVICE };
	struct wh_transfer transfer = { .op = WH_WRITE, .remote_offset = LONG, .length = LONG };
	char location[8];

	t->engine = engine_with(getenv("TEST_CUDA"));
	assert_int_equal(wh_peer_open(t->engine, "self", NULL, &t->peer), 0);
	for (int i = 0; i < 2; i++) {
		snprintf(location, sizeof(location), "cuda:%d", i);
		options.location = location;
		assert_int_equal(wh_memory_alloc(t->engine, BOTH, &options, &t->memory[i]), 0);
		assert_int_equal(
			wh_region_register(t->engine, t->memory[i], BOTH, NULL, &t->region[i]), 0);
	}
	for (int i = 0; i < 2; i++) {
		transfer.local = t->region[i];
		transfer.remote = wh_region_id(t->region[!i]);
		assert_int_equal(wh_batch_new(t->peer, NULL, &t->batch[i]), 0);
		assert_int_equal(wh_batch_add(t->batch[i], &transfer, 1), 0);
	}
}

static void two_close(struct two *t)
{
	for (int i = 0; i < 2; i++)
		assert_int_equal(wh_batch_free(t->batch[i]), 0);
	assert_int_equal(wh_peer_close(t->peer), 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(wh_region_unregister(t->region[i]), 0);
		assert_int_equal(wh_memory_free(t->engine, t->memory[i]), 0);
	}
	assert_int_equal(wh_engine_close(t->engine), 0);
}

static struct wh_gpu_stream *two_stream(struct two *t, int gpu, enum wh_blocks_way way)
{
	struct wh_gpu_stream *stream;

	assert_int_equal(wh_gpus_stream(t->engine->gpus, &t->engine->cuda->devices[gpu], NULL, way,
					false, &stream),
			 0);
	return stream;
}

static unsigned two_pending(struct two *t, int gpu, enum wh_blocks_way way)
{
	return atomic_load(&two_stream(t, gpu, way)->pending);
}

static void two_wait(struct two *t, int i)
{
	assert_int_equal(wh_batch_wait_for(t->batch[i], WH_FOREVER), 0);
	assert_int_equal(wh_batch_status(t->batch[i]), 0);
}

/* Alone, each GPU sends by its own copy engine. What meets the other way is pulled. */
static void both_ways__pulled(void **state)
{
	void (*delay)(unsigned) = fake_symbol("fake_cuda_delay");
	char text[4096];
	struct two t;

	(void)state;
	two_open(&t);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(wh_batch_submit(t.batch[i]), 0);
		two_wait(&t, i);
	}
	assert_true(wh_batch_explain(t.batch[0], text, sizeof(text)) > 0);
	if (!strstr(text, "of cuda:0, push; both ways: pull"))
		fail_msg("%s", text);
	delay(600000000); /* until it is set anew */
	assert_int_equal(wh_batch_submit(t.batch[0]), 0);
	assert_int_equal(two_pending(&t, 0, WH_BLOCKS_PUSH), 1);
	assert_int_equal(wh_batch_submit(t.batch[1]), 0);
	assert_int_equal(two_pending(&t, 1, WH_BLOCKS_PUSH), 0);
	assert_int_equal(two_pending(&t, 0, WH_BLOCKS_PULL), 1);
	delay(0);
	two_wait(&t, 0);
	two_wait(&t, 1);
	/* For some ms the other way still counts as busy. */
	assert_true(atomic_load(&two_stream(&t, 1, WH_BLOCKS_PUSH)->opposed_at));
	atomic_store(&two_stream(&t, 1, WH_BLOCKS_PUSH)->opposed_at, 0);
	delay(600000000);
	assert_int_equal(wh_batch_submit(t.batch[1]), 0);
	assert_int_equal(two_pending(&t, 1, WH_BLOCKS_PUSH), 1);
	delay(0);
	two_wait(&t, 1);
	two_close(&t);
}

#define ON_A_GPU(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_A_GPU(sharing__alone),
		ON_A_GPU(sharing__another),
		ON_A_GPU(sharing__several),
		ON_A_GPU(sharing__numbers_of_another_namespace),
		ON_A_GPU(sharing__another_of_another_namespace),
		ON_A_GPU(sharing__mps),
		ON_A_GPU(sharing__not_known),
		ON_A_GPU(sharing__asked_rarely),
		cmocka_unit_test(both_ways__pulled),
	};

	if (!getenv("TEST_CUDA") || !getenv("TEST_NVML")) {
		fprintf(stderr, "it takes the fake CUDA driver and the fake NVML\n");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
