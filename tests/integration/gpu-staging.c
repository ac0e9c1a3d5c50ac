/* SPDX-License-Identifier: Apache-2.0 */
/* What moving a GPU's memory takes: kernels, which there may be none for, lanes and pinned memory, made before
 * the first request and bounded. */
#include "gpu.h"

#define LENGTH (2 * MIB)

/* ---- without kernels ----------------------------------------------------------------------------- */

enum { COUNT = 300, BLOCK = 999 };

/* Random blocks, and the same on images of both sides. */
static void move_blocks(struct gpu_pair *p, const struct wh_batch_options *options, uint32_t op,
			unsigned char *ours, unsigned char *theirs)
{
	uint64_t from[COUNT], to[COUNT];
	struct wh_base base = { .local = p->region, .remote = p->remote.id };
	struct wh_blocks_desc desc = { .size = sizeof(desc), .op = op, .block_length = BLOCK,
				       .count = COUNT, .bases = &base, .base_count = 1,
				       .local_offsets = from, .remote_offsets = to };
	struct wh_blocks *blocks;
	struct wh_batch *batch;

	pattern_shuffle(from, COUNT, BLOCK, 1);
	pattern_shuffle(to, COUNT, BLOCK, 2);
	for (unsigned int i = 0; i < COUNT; i++) {
		if (op == WH_WRITE)
			memcpy(theirs + to[i], ours + from[i], BLOCK);
		else
			memcpy(ours + from[i], theirs + to[i], BLOCK);
	}
	want(0, wh_blocks_prepare(p->peer, &desc, &blocks));
	want(0, wh_batch_new(p->peer, options, &batch));
	want(0, wh_batch_add_blocks(batch, blocks));
	/* More than once: lists that are used again would be kept on the GPU. */
	for (unsigned int i = 0; i < 3; i++)
		want(0, gpu_run(batch));
	want(0, wh_batch_free(batch));
	wh_blocks_free(blocks);
}

/* Blocks and one long piece, both ways, by `transport`; the explanation of the last goes to `text`. */
static void move_all(struct gpu_pair *p, const char *transport, char text[2048])
{
	struct wh_batch_options options = { .size = sizeof(options), .require = transport };
	unsigned char *ours = malloc(p->length), *theirs = malloc(p->length), *seen = malloc(p->length);
	struct wh_transfer long_one = { .local = p->region, .local_offset = 3, .remote = p->remote.id,
					.remote_offset = 5, .length = p->length - 5, .op = WH_WRITE };

	assert_true(ours && theirs && seen);
	gpu_pair_fill(p, 1);
	pattern_fill(ours, p->length, 0, 1);
	pattern_fill(theirs, p->length, 0, 1001);
	for (unsigned int i = 0; i < 3; i++) {
		struct wh_batch *batch;

		if (i < 2) {
			move_blocks(p, &options, i ? WH_READ : WH_WRITE, ours, theirs);
			continue;
		}
		memcpy(theirs + 5, ours + 3, p->length - 5);
		want(0, wh_batch_new(p->peer, &options, &batch));
		want(0, wh_batch_add(batch, &long_one, 1));
		want(0, gpu_run(batch));
		want_true(wh_batch_explain(batch, text, 2048) > 0, "it explains nothing");
		want(0, wh_batch_free(batch));
	}
	if (p->child)
		child_fetch(p->child, p->memory, 0, p->length, seen);
	else
		bytes_get(seen, p->target, p->length, p->there);
	want_true(!memcmp(seen, theirs, p->length), "the target is wrong");
	bytes_get(seen, p->local, p->length, p->here);
	want_true(!memcmp(seen, ours, p->length), "our side is wrong");
	free(ours);
	free(theirs);
	free(seen);
}

static void want_word(const char *text, const char *word)
{
	want_true(strstr(text, word), "\"%s\" in %s", word, text);
}

/* A GPU that there is no image for, and whose driver compiles none: copy engines do all of it, between GPUs, to
 * the host and back, through pinned memory and over TCP, and the explanation says why in the compiler's words. */
static void kernels__none_here(void **state)
{
	static const struct {
		uint32_t here, there;
		const char *where, *transport, *way;
		bool apart;
	} cases[] = {
		{ WH_MEMORY_DEVICE, WH_MEMORY_DEVICE, "cuda:1", "cuda", "copy engine of cuda:0, push", false },
		{ WH_MEMORY_DEVICE, WH_MEMORY_VMM, "cuda:1", "cuda", "copy engine of cuda:0, push", true },
		{ WH_MEMORY_PINNED, WH_MEMORY_DEVICE, "cuda:0", "cuda", "copy engine of cuda:0, from host", false },
		{ WH_MEMORY_DEVICE, WH_MEMORY_SHARED, NULL, "cuda", "copy engine of cuda:0, to host", true },
		{ WH_MEMORY_DEVICE, WH_MEMORY_MANAGED, "cuda:0", "cuda", "staged", false },
		{ WH_MEMORY_DEVICE, WH_MEMORY_DEVICE, "cuda:1", "tcp", "pinned memory", true },
	};
	char text[2048];

	(void)state;
	for (unsigned int i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int (*set)(int, int) = (int (*)(int, int))gpu_symbol("fake_cuda_attribute");
		uint64_t launches = fake_calls("cuLaunchKernel");
		struct wh_estimate estimate = { .size = sizeof(estimate) };
		struct wh_batch *batch;
		struct gpu_pair p;

		/* As one of compute capability 7.0. */
		want(0, set(75, 7));
		want(0, set(76, 0));
		gpu_pair_open(&p, cases[i].here, bytes_on_gpu(cases[i].here) ? "cuda:0" : NULL, cases[i].there,
			      cases[i].where, LENGTH, cases[i].apart);
		move_all(&p, cases[i].transport, text);
		want_word(text, cases[i].way);
		want_word(text, "no kernels, its copy engines do everything");
		want_word(text, ".target is higher");
		want_true(fake_calls("cuLaunchKernel") == launches, "something was launched");
		batch = gpu_pair_batch(&p, WH_WRITE);
		want(0, wh_batch_estimate(batch, &estimate));
		want_true(estimate.duration && !estimate.kernel && !estimate.ctas, "%llu, %llu",
			  (unsigned long long)estimate.duration, (unsigned long long)estimate.kernel);
		want(0, wh_batch_free(batch));
		gpu_pair_close(&p);
		fake_heal();
	}
}

/* The same of the owner of what is written and read over TCP. */
static void kernels__none_there(void **state)
{
	struct child *owner;
	struct gpu_pair p;
	char text[2048];

	(void)state;
	setenv("FAKE_CUDA_FAIL", "cuModuleLoadDataEx:0:222", 1);
	owner = child_start(NULL);
	unsetenv("FAKE_CUDA_FAIL");
	gpu_pair_open_with(&p, WH_MEMORY_SHARED, NULL, WH_MEMORY_DEVICE, "cuda:1", LENGTH, owner);
	move_all(&p, "tcp", text);
	gpu_pair_close(&p);
}

/* Only an image that is no good is one to do without: other errors are what they were. */
static void kernels__other_errors(void **state)
{
	struct wh_batch_options options = { .size = sizeof(options), .require = "cuda" };
	struct wh_transfer one = { .length = 100, .op = WH_WRITE };
	struct wh_batch *batch;
	struct gpu_pair p;

	(void)state;
	gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_DEVICE, "cuda:1", LENGTH, false);
	one.local = p.region;
	one.remote = p.remote.id;
	want(0, wh_batch_new(p.peer, &options, &batch));
	want(0, wh_batch_add(batch, &one, 1));
	fake_fail("cuModuleLoadDataEx", 0, 2);
	want_text(-EOPNOTSUPP, "OUT_OF_MEMORY", wh_batch_submit(batch));
	fake_heal();
	want(0, gpu_run(batch));
	want(0, wh_batch_free(batch));
	gpu_pair_close(&p);
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(kernels__none_here, needs_fake),
	TEST_NEEDS(kernels__none_there, needs_fake),
	TEST_NEEDS(kernels__other_errors, needs_fake),
};

HARNESS_MAIN("gpu-staging", tests)
