/* SPDX-License-Identifier: Apache-2.0 */
/* gpu.c: the CUDA driver, blocked streams, and pairs of regions for the GPU tests */
#include "gpu.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdatomic.h>

/* ---- the driver -------------------------------------------------------- */

void *gpu_symbol(const char *name)
{
	const char *path = getenv("TEST_CUDA");
	void *library = dlopen(path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	void *found = library ? dlsym(library, name) : NULL;

	if (!found) {
		fprintf(stderr, "the CUDA driver has no %s: %s\n", name, dlerror());
		abort();
	}
	dlclose(library); /* keep it open: the application or the engine uses it */
	return found;
}

static const char *missing_fake(void)
{
	return getenv("TEST_CUDA") ? NULL : "it takes the fake CUDA driver";
}

const struct route needs_fake = { .name = "fake", .missing = missing_fake };

static const char *missing_second(void)
{
	return bytes_gpus() > 1 ? NULL : "it takes two GPUs";
}

const struct route needs_two_gpus = { .name = "two GPUs", .missing = missing_second };

void fake_fail(const char *function, unsigned int nth, int error)
{
	want(0, CU(fake_cuda_fail, (const char *, unsigned int, int), function, nth, error));
}

void fake_heal(void)
{
	((void (*)(void))gpu_symbol("fake_cuda_heal"))();
}

void fake_delay(unsigned int microseconds)
{
	((void (*)(unsigned int))gpu_symbol("fake_cuda_delay"))(microseconds);
}

void fake_slow_locking(unsigned int microseconds)
{
	((void (*)(unsigned int))gpu_symbol("fake_cuda_slow_locking"))(microseconds);
}

uint64_t fake_calls(const char *function)
{
	return ((uint64_t(*)(const char *))gpu_symbol("fake_cuda_calls"))(function);
}

/* True if the process has a thread of that name. */
static bool is_running(pid_t process, const char *name)
{
	char path[320], comm[32];
	struct dirent *entry;
	bool found = false;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", process);
	tasks = opendir(path);
	assert_non_null(tasks);
	while (!found && (entry = readdir(tasks))) {
		FILE *file;

		snprintf(path, sizeof(path), "/proc/%d/task/%.20s/comm", process, entry->d_name);
		file = fopen(path, "re");
		if (!file)
			continue;
		found = fgets(comm, sizeof(comm), file) && !strncmp(comm, name, strlen(name));
		fclose(file);
	}
	closedir(tasks);
	return found;
}

void gpu_settled(pid_t process)
{
	int64_t end = now() + PATIENCE, since = now();
	unsigned int looks = 0;

	/* The target may start its warm-up after the initiator has finished: wait until neither has
	 * run for 100 ms. On a busy machine that may be the time between two looks. */
	while (now() - since < 100 * MS || looks < 50) {
		want_true(now() < end, "it does not get ready");
		looks++;
		if (is_running(process ? process : getpid(), "wherry/warm-up")) {
			since = now();
			looks = 0;
		}
		sleep_ms(1);
	}
}

void gpu_enter(int device)
{
	void *context;

	want(0, CU(cuInit, (unsigned int), 0));
	want(0, CU(cuDevicePrimaryCtxRetain, (void **, int), &context, device));
	want(0, CU(cuCtxPushCurrent_v2, (void *), context));
}

void gpu_leave(void)
{
	int device;
	void *context;

	want(0, CU(cuCtxGetDevice, (int *), &device));
	want(0, CU(cuCtxPopCurrent_v2, (void **), &context));
	want(0, CU(cuDevicePrimaryCtxRelease_v2, (int), device));
}

size_t gpu_free_memory(int device)
{
	size_t available, total;

	gpu_enter(device);
	want(0, CU(cuMemGetInfo_v2, (size_t *, size_t *), &available, &total));
	gpu_leave();
	return available;
}

/* ---- blocked streams --------------------------------------------------- */

static void block_until_open(void *arg)
{
	struct gpu_block *block = arg;

	while (!atomic_load(&block->open))
		sleep_ms(1);
	atomic_store(&block->passed, 1);
}

void gpu_block(struct gpu_block *block, int device)
{
	memset(block, 0, sizeof(*block));
	want(0, CU(cuInit, (unsigned int), 0));
	want(0, CU(cuCtxCreate_v2, (void **, unsigned int, int), &block->context, 0, device));
	want(0, CU(cuStreamCreate, (void **, unsigned int), &block->stream, 1));
	want(0, CU(cuCtxPopCurrent_v2, (void **), &(void *){ NULL }));
	gpu_block_again(block);
}

void gpu_block_again(struct gpu_block *block)
{
	want(0, CU(cuCtxPushCurrent_v2, (void *), block->context));
	atomic_store(&block->open, 1);
	want(0, CU(cuStreamSynchronize, (void *), block->stream));
	atomic_store(&block->open, 0);
	atomic_store(&block->passed, 0);
	want(0, CU(cuLaunchHostFunc, (void *, void (*)(void *), void *), block->stream,
		   block_until_open, block));
	want(0, CU(cuCtxPopCurrent_v2, (void **), &(void *){ NULL }));
}

void gpu_unblock(struct gpu_block *block)
{
	atomic_store(&block->open, 1);
	want(0, CU(cuCtxPushCurrent_v2, (void *), block->context));
	want(0, CU(cuStreamSynchronize, (void *), block->stream));
	want(0, CU(cuStreamDestroy_v2, (void *), block->stream));
	want(0, CU(cuCtxDestroy_v2, (void *), block->context));
}

static void flag_set(void *arg)
{
	atomic_store((_Atomic int *)arg, 1);
}

void gpu_flag(void *stream, _Atomic int *flag)
{
	atomic_store(flag, 0);
	want(0, CU(cuLaunchHostFunc, (void *, void (*)(void *), void *), stream, flag_set,
		   (void *)flag));
}

bool gpu_flagged(_Atomic int *flag, int64_t patience)
{
	int64_t end = now() + patience;

	while (!atomic_load(flag)) {
		if (now() > end)
			return false;
		sleep_ms(1);
	}
	return true;
}

/* ---- two regions ------------------------------------------------------- */

static unsigned char *pair_allocate(struct wh_engine *engine, uint32_t kind, const char *where,
				    size_t length)
{
	struct wh_memory_options options = { .size = sizeof(options),
					     .kind = kind,
					     .location = where };
	void *memory;

	want(0, wh_memory_alloc(engine, length, &options, &memory));
	return memory;
}

void gpu_pair_open(struct gpu_pair *p, uint32_t here, const char *where, uint32_t there,
		   const char *elsewhere, size_t length, bool apart)
{
	gpu_pair_open_with(p, here, where, there, elsewhere, length,
			   apart ? child_start(NULL) : NULL);
}

void gpu_pair_open_with(struct gpu_pair *p, uint32_t here, const char *where, uint32_t there,
			const char *elsewhere, size_t length, struct child *child)
{
	struct wh_region_options named = { .size = sizeof(named),
					   .name = "target",
					   .access = ACCESS_BOTH };
	struct wh_engine_options options = { .size = sizeof(options), .listen = "none" };

	*p = (struct gpu_pair){ .here = here, .there = there, .length = length };
	want(0, wh_engine_open(&options, &p->engine));
	p->local = pair_allocate(p->engine, here, where, length);
	want(0, wh_region_register(p->engine, p->local, length, NULL, &p->region));
	p->child = child;
	if (child) {
		p->memory = child_memory_at(p->child, there, length, elsewhere);
		p->child_region =
			child_region(p->child, p->memory, 0, length, "target", ACCESS_BOTH, NULL);
	} else {
		p->target = pair_allocate(p->engine, there, elsewhere, length);
		want(0,
		     wh_region_register(p->engine, p->target, length, &named, &p->target_region));
	}
	want(0, wh_peer_open(p->engine, child ? child->url : "self", NULL, &p->peer));
	want(0, wh_peer_find(p->peer, "target", PATIENCE, &p->remote));
}

void gpu_pair_close(struct gpu_pair *p)
{
	want(0, wh_peer_close(p->peer));
	want(0, wh_region_unregister(p->region));
	want(0, wh_memory_free(p->engine, p->local));
	if (p->target) {
		want(0, wh_region_unregister(p->target_region));
		want(0, wh_memory_free(p->engine, p->target));
	}
	want(0, wh_engine_close(p->engine));
	if (p->child)
		child_exit(p->child);
}

struct wh_batch *gpu_pair_batch(struct gpu_pair *p, uint32_t op)
{
	struct wh_transfer whole = {
		.local = p->region, .remote = p->remote.id, .length = p->length, .op = op
	};
	struct wh_batch *batch;

	want(0, wh_batch_new(p->peer, NULL, &batch));
	want(0, wh_batch_add(batch, &whole, 1));
	return batch;
}

int gpu_run(struct wh_batch *batch)
{
	int error = wh_batch_submit(batch);

	return error ? error : batch_end(batch, PATIENCE);
}

static void pair_fill_side(struct gpu_pair *p, bool there, uint64_t seed)
{
	unsigned char *image = malloc(p->length);

	assert_non_null(image);
	pattern_fill(image, p->length, 0, seed);
	if (there && p->child)
		child_fill(p->child, p->memory, 0, p->length, 0, seed);
	else
		bytes_put(there ? p->target : p->local, image, p->length,
			  there ? p->there : p->here);
	free(image);
}

static bool pair_holds(struct gpu_pair *p, uint64_t seed)
{
	unsigned char *image = malloc(p->length);
	bool good;

	assert_non_null(image);
	if (p->child)
		child_fetch(p->child, p->memory, 0, p->length, image);
	else
		bytes_get(image, p->target, p->length, p->there);
	good = pattern_check(image, p->length, 0, seed) == PATTERN_GOOD;
	free(image);
	return good;
}

void gpu_pair_fill(struct gpu_pair *p, uint64_t seed)
{
	pair_fill_side(p, false, seed);
	pair_fill_side(p, true, seed + 1000);
}

bool gpu_pair_copied(struct gpu_pair *p, uint64_t seed)
{
	return pair_holds(p, seed);
}

bool gpu_pair_untouched(struct gpu_pair *p, uint64_t seed)
{
	return pair_holds(p, seed + 1000);
}
