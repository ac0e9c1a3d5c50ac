/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of docs/memory-model.md about GPUs, on a real driver: memory-model [DRIVER]. Batches of
 * another process write data and then a flag; a kernel that runs already, a later kernel and the
 * CPU look. Prints by which way the bytes went, for the record. The fake driver runs no such
 * kernel: 77.
 */
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <wherry/wherry.h>

#include "../self.h"
#include "gpu.h"

#define KIB ((size_t)1 << 10)
#define PAYLOAD (256 * KIB)
#define FLAG 256 /* bytes before the payload; the flag is the first of them */
#define LENGTH (FLAG + PAYLOAD)
#define ROUNDS 24
/* Loads of the flag, of less than 1 us each. Then the kernel gives up. */
#define TURNS UINT64_C(3000000)
#define PATIENCE INT64_C(5000000000) /* ns */

extern char **environ;

static const char *driver_path;

/* How much data a round has: all of it now and then, so that several CTAs move it. */
static size_t round_length(unsigned round)
{
	static const size_t lengths[] = { 8, 256, 4 * KIB, PAYLOAD };

	return lengths[round % (sizeof(lengths) / sizeof(*lengths))];
}

/* With TESTS_NO_THREADS, engines that do not listen have no threads. */
static struct wh_engine *engine_new(const char *listen, const char *require)
{
	const char *config[3] = { NULL };
	struct wh_engine_options options = { .size = sizeof(options),
					     .listen = listen,
					     .config = config };
	bool driven = getenv("TESTS_NO_THREADS") && listen && !strcmp(listen, "none");
	char cuda[300], transports[64];
	struct wh_engine *engine = NULL;
	int count = 0;

	if (driver_path) {
		snprintf(cuda, sizeof(cuda), "cuda=%s", driver_path);
		config[count++] = cuda;
	}
	if (require) {
		snprintf(transports, sizeof(transports), "require=%s", require);
		config[count++] = transports;
	}
	options.flags = driven ? WH_ENGINE_NO_THREADS : 0;
	CALL(wh_engine_open(&options, &engine));
	return engine;
}

static void *memory_new(struct wh_engine *engine, uint32_t kind)
{
	const struct wh_memory_options options = { .size = sizeof(options), .kind = kind };
	void *memory = NULL;

	CALL(wh_memory_alloc(engine, LENGTH, &options, &memory));
	return memory;
}

/* ---- the other process: writes when told to -------------------------------------------------- */

struct writer {
	struct wh_peer *peer;
	struct wh_region *region;
	struct wh_remote remote;
	unsigned char *memory;
	bool on_gpu;
};

static struct wh_batch *writer_batch(struct writer *writer, uint64_t offset, size_t length)
{
	struct wh_transfer transfer = { .local = writer->region,
					.local_offset = offset,
					.remote = writer->remote.id,
					.remote_offset = offset,
					.length = length,
					.op = WH_WRITE };
	struct wh_batch *batch = NULL;

	CALL(wh_batch_new(writer->peer, NULL, &batch));
	CALL(wh_batch_add(batch, &transfer, 1));
	return batch;
}

static void writer_fill(struct writer *writer, uint64_t offset, uint8_t byte, size_t length)
{
	if (!writer->on_gpu)
		memset(writer->memory + offset, byte, length);
	else
		INSIDE(CU(cuMemsetD8, (uintptr_t)writer->memory + offset, byte, length);
		       CU(cuCtxSynchronize));
}

static void writer_run(struct writer *writer, uint64_t offset, uint8_t byte, size_t length,
		       bool show)
{
	struct wh_batch *batch = writer_batch(writer, offset, length);
	char text[2000] = "";

	writer_fill(writer, offset, byte, length);
	CALL(wh_batch_submit(batch));
	CHECK(wh_batch_wait_for(batch, PATIENCE) == 0);
	CHECK(wh_batch_status(batch) == 0);
	wh_batch_explain(batch, text, sizeof(text));
	if (show)
		printf("  %zu bytes: %s\n", length, text);
	CALL(wh_batch_free(batch));
}

/* Do once what allocates, maps and measures, with a flag that no round has: it may have to wait for
 * a kernel that runs. Then report by descriptor 3. */
static void writer_warm_up(struct writer *writer)
{
	const uint8_t none = 0xff;

	for (unsigned round = 0; round < 4 && !gpu_failures; round++)
		writer_run(writer, FLAG, none, round_length(round), true);
	writer_run(writer, 0, none, 1, true);
	fflush(stdout);
	CHECK(write(3, &none, 1) == 1);
}

/* Reads a round's number from descriptor 0 and answers on descriptor 3. */
static void writer_main(const char *url, const char *require, uint32_t kind)
{
	struct wh_engine *engine = engine_new("none", require);
	struct writer writer = { .on_gpu = kind == WH_MEMORY_DEVICE };
	uint8_t round;

	writer.memory = memory_new(engine, kind);
	CALL(wh_region_register(engine, writer.memory, LENGTH, NULL, &writer.region));
	CALL(wh_peer_open(engine, url, NULL, &writer.peer));
	CALL(wh_peer_find(writer.peer, "target", PATIENCE, &writer.remote));
	writer_warm_up(&writer);
	while (!gpu_failures && read(0, &round, 1) == 1) {
		writer_run(&writer, FLAG, round, round_length(round), false);
		writer_run(&writer, 0, round, 1, false);
		CHECK(write(3, &round, 1) == 1);
	}
	CALL(wh_peer_close(writer.peer));
	CALL(wh_region_unregister(writer.region));
	CALL(wh_memory_free(engine, writer.memory));
	CALL(wh_engine_close(engine));
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* Waits until the byte at `flag` is `expected`, then compares `length` bytes (a multiple of 8) at
 * `payload` with it. *result: 1 they are equal, 2 they are not, 3 the flag did not come. */
static const char look_ptx[] =
	".version 7.0\n"
	".target sm_70\n"
	".address_size 64\n"
	".visible .entry look(\n"
	"  .param .u64 p_flag, .param .u64 p_payload, .param .u64 p_length,\n"
	"  .param .u64 p_expected, .param .u64 p_turns, .param .u64 p_result)\n"
	"{\n"
	"  .reg .pred %p;\n"
	"  .reg .u64 %flag, %at, %length, %expected, %turns, %result;\n"
	"  .reg .u64 %value, %end, %answer;\n"
	"  ld.param.u64 %flag, [p_flag];\n"
	"  ld.param.u64 %at, [p_payload];\n"
	"  ld.param.u64 %length, [p_length];\n"
	"  ld.param.u64 %expected, [p_expected];\n"
	"  ld.param.u64 %turns, [p_turns];\n"
	"  ld.param.u64 %result, [p_result];\n"
	"  mov.u64 %answer, 3;\n"
	"poll:\n"
	"  ld.acquire.sys.u8 %value, [%flag];\n"
	"  and.b64 %value, %value, 255;\n"
	"  setp.eq.u64 %p, %value, %expected;\n"
	"  @%p bra seen;\n"
	"  sub.u64 %turns, %turns, 1;\n"
	"  setp.ne.u64 %p, %turns, 0;\n"
	"  @%p bra poll;\n"
	"  bra done;\n"
	"seen:\n"
	"  mov.u64 %answer, 1;\n"
	"  mul.lo.u64 %expected, %expected, 72340172838076673;\n"
	"  add.u64 %end, %at, %length;\n"
	"compare:\n"
	"  ld.u64 %value, [%at];\n"
	"  setp.eq.u64 %p, %value, %expected;\n"
	"  @%p bra next;\n"
	"  mov.u64 %answer, 2;\n"
	"  bra done;\n"
	"next:\n"
	"  add.u64 %at, %at, 8;\n"
	"  setp.lt.u64 %p, %at, %end;\n"
	"  @%p bra compare;\n"
	"done:\n"
	"  st.release.sys.u64 [%result], %answer;\n"
	"  ret;\n"
	"}\n";

static struct {
	CUmodule module;
	CUfunction function;
	CUstream stream;
	uint64_t *result; /* in pinned memory */
} look;

static void look_open(void)
{
	void *result = NULL;

	INSIDE(if (CALL(wh_cuda_image_load(gpu, look_ptx, "the test's kernel", &look.module)))
		       CU(cuModuleGetFunction, &look.function, look.module, "look");
	       CU(cuStreamCreate, &look.stream, CUDA_STREAM_NON_BLOCKING);
	       CU(cuMemHostAlloc, &result, 8, CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP));
	look.result = result;
}

static void look_close(void)
{
	INSIDE(CU(cuMemFreeHost, look.result); CU(cuStreamDestroy, look.stream);
	       CU(cuModuleUnload, look.module));
}

static void look_launch(const unsigned char *target, unsigned round, uint64_t turns)
{
	uint64_t flag = (uintptr_t)target, payload = flag + FLAG, length = round_length(round);
	uint64_t expected = round, result = (uintptr_t)look.result;
	void *parameters[] = { &flag, &payload, &length, &expected, &turns, &result };

	*look.result = 0;
	INSIDE(CU(cuLaunchKernel, look.function, 1, 1, 1, 1, 1, 1, 0, look.stream, parameters,
		  NULL));
}

static void look_want(const char *who, unsigned round)
{
	INSIDE(CU(cuStreamSynchronize, look.stream));
	if (!CHECK(*look.result == 1))
		printf("  %s, round %u: %s\n", who, round,
		       *look.result == 2 ? "the flag came before the data" :
					   "the flag did not come");
}

/* ---- cases ----------------------------------------------------------------------------------- */

struct child {
	pid_t pid;
	int to, from;
};

static bool child_start(struct child *child, const char *url, const char *require, uint32_t kind)
{
	char number[12];
	char *const arguments[] = {
		(char *)self_path(), "write", (char *)url, (char *)require, number,
		(char *)driver_path, NULL
	};
	posix_spawn_file_actions_t actions;
	int to[2], from[2];
	bool good;

	snprintf(number, sizeof(number), "%u", kind);
	if (!CHECK(!pipe2(to, O_CLOEXEC) && !pipe2(from, O_CLOEXEC)))
		return false;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, to[0], 0);
	posix_spawn_file_actions_adddup2(&actions, from[1], 3);
	good = CHECK(!posix_spawn(&child->pid, arguments[0], &actions, NULL, arguments, environ));
	posix_spawn_file_actions_destroy(&actions);
	close(to[0]);
	close(from[1]);
	child->to = to[1];
	child->from = from[0];
	return good;
}

static void child_end(struct child *child)
{
	int status = -1;

	close(child->to);
	CHECK(waitpid(child->pid, &status, 0) == child->pid && status == 0);
	close(child->from);
}

/* The owner's CPU has the answer of the process that has written. */
static void cpu_want(const unsigned char *target, unsigned round)
{
	size_t wrong = 0;

	for (size_t i = 0; i < round_length(round); i++)
		wrong += target[FLAG + i] != (uint8_t)round;
	CHECK(*target == (uint8_t)round && wrong == 0);
}

static void rounds_run(struct child *child, const unsigned char *target, bool pinned)
{
	uint8_t number;

	CHECK(read(child->from, &number, 1) == 1);
	for (unsigned round = 1; round <= ROUNDS && !gpu_failures; round++) {
		number = (uint8_t)round;
		look_launch(target, round, TURNS);
		CHECK(write(child->to, &number, 1) == 1);
		CHECK(read(child->from, &number, 1) == 1);
		look_want("a kernel that ran already", round);
		look_launch(target, round, 1);
		look_want("a later kernel", round);
		if (pinned)
			cpu_want(target, round);
	}
}

/* Memory of `kind` in this process, written by another process from memory of `source`. */
static void written(const char *require, uint32_t kind, uint32_t source)
{
	struct wh_region_options named = { .size = sizeof(named),
					   .name = "target",
					   .access = WH_ACCESS_READ | WH_ACCESS_WRITE };
	struct wh_engine *engine = engine_new("127.0.0.1:0", NULL);
	unsigned char *target = engine ? memory_new(engine, kind) : NULL;
	struct wh_region *region = NULL;
	struct child child;

	if (!target)
		return;
	CALL(wh_region_register(engine, target, LENGTH, &named, &region));
	fflush(stdout);
	if (child_start(&child, wh_engine_url(engine), require, source)) {
		rounds_run(&child, target, kind == WH_MEMORY_PINNED);
		child_end(&child);
	}
	CALL(wh_region_unregister(region));
	CALL(wh_memory_free(engine, target));
	CALL(wh_engine_close(engine));
}

static void cuda_to_device(void)
{
	written("cuda", WH_MEMORY_DEVICE, WH_MEMORY_PINNED);
}

static void cuda_device_to_device(void)
{
	written("cuda", WH_MEMORY_DEVICE, WH_MEMORY_DEVICE);
}

static void cuda_to_pinned(void)
{
	written("cuda", WH_MEMORY_PINNED, WH_MEMORY_DEVICE);
}

static void shm_to_pinned(void)
{
	written("shm", WH_MEMORY_PINNED, WH_MEMORY_PINNED);
}

static void tcp_to_device(void)
{
	written("tcp", WH_MEMORY_DEVICE, WH_MEMORY_PINNED);
}

static void tcp_to_pinned(void)
{
	written("tcp", WH_MEMORY_PINNED, WH_MEMORY_DEVICE);
}

static void all_cases(void)
{
	gpu_case("kernel", look_open);
	gpu_case("cuda__to_device", cuda_to_device);
	gpu_case("cuda__device_to_device", cuda_device_to_device);
	gpu_case("cuda__to_pinned", cuda_to_pinned);
	gpu_case("shm__to_pinned", shm_to_pinned);
	gpu_case("tcp__to_device", tcp_to_device);
	gpu_case("tcp__to_pinned", tcp_to_pinned);
	gpu_case("close", look_close);
}

int main(int count, char **arguments)
{
	if (count > 4 && !strcmp(arguments[1], "write")) {
		driver_path = count > 5 ? arguments[5] : NULL;
		gpu_open(driver_path);
		writer_main(arguments[2], arguments[3], (uint32_t)atoi(arguments[4]));
		wh_cuda_close(gpu);
		return gpu_failures ? 1 : 0;
	}
	driver_path = count > 1 ? arguments[1] : NULL;
	gpu_open(driver_path);
	if (wh_cuda_symbol(gpu, "fake_cuda_fail")) {
		printf("skipped: the fake driver runs no kernels but the library's\n");
		wh_cuda_close(gpu);
		return 77;
	}
	all_cases();
	return gpu_close();
}
