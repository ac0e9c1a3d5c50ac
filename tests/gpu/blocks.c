/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gather-scatter kernel on a real GPU: that every byte goes where it should and no other is
 * touched; and how fast it is. blocks [--bench[=MIB]] [--driver=PATH] [--rounds=N] [--fault=WHAT]
 *
 * WHAT is a fault of one launch that NVIDIA's compute-sanitizer has to find, to show that it looks:
 * "beyond", a source that is no memory, or "unset", a source that nobody has written.
 */
#include <stdatomic.h>
#include <time.h>

#include "blocks.h"

#define MIB ((uint64_t)1 << 20)
#define ARENA (6 * MIB)

struct wh_cuda_kernels kernels[WH_CUDA_DEVICES];

static unsigned rounds = 400;
static unsigned char *image, *expected; /* of the arenas, on the host; pinned */
static struct arena source, target, lists, counter, flag; /* of the case that runs */
static struct wh_cuda_device *runner; /* that runs the kernel */

/* ---- arenas ---------------------------------------------------------------------------------- */

bool arena_new(struct arena *arena, struct wh_cuda_device *device, uint64_t size)
{
	struct wh_cuda_scope scope;
	uint64_t address = 0;
	bool good;

	*arena = (struct arena){ .size = size, .device = device };
	if (!CALL(wh_cuda_enter(gpu, device ? device : &gpu->devices[0], &scope)))
		return false;
	if (device) {
		good = CU(cuMemAlloc, &arena->address, size);
	} else {
		good = CU(cuMemHostAlloc, &arena->host, size,
			  CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP) &&
		       CU(cuMemHostGetDevicePointer, &address, arena->host, 0);
		arena->address = address;
	}
	wh_cuda_leave(&scope);
	return good;
}

void arena_free(struct arena *arena)
{
	struct wh_cuda_scope scope;

	if (!arena->address ||
	    !CALL(wh_cuda_enter(gpu, arena->device ? arena->device : &gpu->devices[0], &scope)))
		return;
	if (arena->device)
		CU(cuMemFree, arena->address);
	else
		CU(cuMemFreeHost, arena->host);
	wh_cuda_leave(&scope);
	arena->address = 0;
}

static void put(const struct arena *arena, const void *bytes, uint64_t length)
{
	if (arena->host)
		memcpy(arena->host, bytes, length);
	else
		CU(cuMemcpyHtoD, arena->address, bytes, length);
}

/* ---- one launch, held against the CPU -------------------------------------------------------- */

/* What a launch is made of, with addresses as offsets into the arenas. */
struct plan {
	struct wh_blocks_job job;
	/* NULL: stride */
	uint64_t *source_bases, *target_bases, *source_offsets, *target_offsets;
	uint64_t bits;
};

static void expect(const struct plan *plan, uint64_t length)
{
	for (uint64_t b = 0; b < plan->job.base_count; b++)
		for (uint64_t i = 0; i < plan->job.count; i++) {
			uint64_t from = plan->source_bases[b] +
					(plan->source_offsets ? plan->source_offsets[i] :
								plan->job.source_stride * i);
			uint64_t to = plan->target_bases[b] + (plan->target_offsets ?
								       plan->target_offsets[i] :
								       plan->job.target_stride * i);

			if (from + length > ARENA || to + length > ARENA)
				abort();
			memcpy(expected + to, image + from, length);
		}
}

/* Put lists where the GPU reads them; bases inline if they fit and `inlined` says so. */
static void upload(struct plan *plan, bool inlined)
{
	struct wh_blocks_job *job = &plan->job;
	uint64_t *at = lists.host, *start = at;
	size_t bases = job->base_count, count = job->count;

#define LIST(field, values, number, add)                                                           \
	do {                                                                                       \
		job->field = lists.address + (uint64_t)(at - start) * 8;                           \
		for (size_t n_ = 0; n_ < (number); n_++)                                           \
			*at++ = (values)[n_] + (add);                                              \
	} while (0)
	job->source_bases = job->target_bases = job->source_offsets = job->target_offsets = 0;
	if (inlined && bases <= WH_BLOCKS_INLINE) {
		for (size_t b = 0; b < bases; b++) {
			job->source_base[b] = plan->source_bases[b] + source.address;
			job->target_base[b] = plan->target_bases[b] + target.address;
		}
	} else {
		LIST(source_bases, plan->source_bases, bases, source.address);
		LIST(target_bases, plan->target_bases, bases, target.address);
	}
	if (plan->source_offsets)
		LIST(source_offsets, plan->source_offsets, count, 0);
	if (plan->target_offsets)
		LIST(target_offsets, plan->target_offsets, count, 0);
#undef LIST
}

/* Wait for the flag rather than for the stream: what it promises is that the bytes are there. */
static void wait_flag(uint32_t value)
{
	_Atomic uint32_t *word = flag.host;
	struct timespec start, now;

	clock_gettime(CLOCK_MONOTONIC, &start);
	while (atomic_load_explicit(word, memory_order_acquire) != value) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec - start.tv_sec > 20) {
			CHECK(!"the flag does not come");
			return;
		}
	}
}

/* False: the bytes are wrong, which is told. */
static bool run_plan(struct plan *plan, int variant, uint32_t ctas, uint32_t value)
{
	const unsigned char *got = target.host;
	uint64_t bad = 0;
	uint32_t grid;

	memset(expected, 0xa5, ARENA);
	put(&target, expected, ARENA);
	expect(plan, plan->job.block_length);
	plan->job.flag = value ? flag.address : 0;
	plan->job.counter = counter.address;
	plan->job.flag_value = value;
	grid = wh_blocks_shape(&plan->job, variant, ctas);
	if (!CHECK(grid && grid <= ctas) ||
	    !CALL(wh_cuda_blocks_launch(gpu, &kernels[runner->ordinal], variant, &plan->job, grid,
					gpu_random() >> 8 & 1, NULL)))
		return false;
	if (value)
		wait_flag(value);
	else
		CU(cuCtxSynchronize);
	if (!target.host) {
		static unsigned char *back;

		back = back ? back : malloc(ARENA);
		CU(cuMemcpyDtoH, back, target.address, ARENA);
		got = back;
	}
	if (!memcmp(got, expected, ARENA))
		return CU(cuCtxSynchronize);
	while (got[bad] == expected[bad])
		bad++;
	printf("  variant %d, %u CTAs of %u, group 2^%u, chunks %u of %u: %u x %u blocks of %llu: "
	       "byte 0x%llx is "
	       "%02x, not %02x\n",
	       variant, grid, ctas, plan->job.group_shift, plan->job.chunks, plan->job.chunk_length,
	       plan->job.base_count, plan->job.count, (unsigned long long)plan->job.block_length,
	       (unsigned long long)bad, got[bad], expected[bad]);
	return CHECK(!"wrong bytes");
}

/* ---- random descriptors ---------------------------------------------------------------------- */

static uint64_t below(uint64_t limit)
{
	return (gpu_random() >> 8) % limit;
}

/* Places for `count` blocks that do not overlap, in any order, in slots of `slot` bytes; what is
 * left of a slot is where a block may start, in steps of `align`. */
static uint64_t *places(uint64_t count, uint64_t slot, uint64_t length, uint64_t align)
{
	uint64_t *out = malloc(count * sizeof(*out));

	for (uint64_t i = 0; i < count; i++)
		out[i] = i;
	for (uint64_t i = count - 1; i > 0; i--) {
		uint64_t j = below(i + 1), t = out[i];

		out[i] = out[j];
		out[j] = t;
	}
	for (uint64_t i = 0; i < count; i++)
		out[i] = out[i] * slot + below((slot - length) / align + 1) * align;
	return out;
}

static uint64_t or_all(const uint64_t *values, uint64_t count)
{
	uint64_t bits = 0;

	for (uint64_t i = 0; i < count; i++)
		bits |= values[i];
	return bits;
}

/* One side: bases `span` apart in an order of their own, offsets or a stride. */
static void random_side(struct plan *plan, uint64_t align, uint64_t slot, uint64_t **bases,
			uint64_t **offsets, uint64_t *stride)
{
	struct wh_blocks_job *job = &plan->job;
	uint64_t span = slot * job->count;

	*bases = places(job->base_count, span, span, align);
	*stride = slot;
	*offsets = below(4) ? places(job->count, slot, job->block_length, align) : NULL;
	plan->bits |=
		or_all(*bases, job->base_count) | (*offsets ? or_all(*offsets, job->count) : slot);
}

static void random_plan(struct plan *plan)
{
	static const uint64_t few[] = { 1, 1, 2, 3, 7, 20, WH_BLOCKS_INLINE, WH_BLOCKS_INLINE + 9 };
	uint64_t align = UINT64_C(1) << below(6), length = 1 + below(below(3) ? 4097 : 100000),
		 slot, room;
	struct wh_blocks_job *job = &plan->job;

	memset(plan, 0, sizeof(*plan));
	align = align > 16 ? 16 : align;
	length = (length + align - 1) / align * align;
	slot = length + below(64) * align;
	room = (ARENA - 64) / slot;
	job->block_length = length;
	job->base_count = (uint32_t)few[below(sizeof(few) / sizeof(few[0]))];
	if (job->base_count > room)
		job->base_count = 1;
	job->count = (uint32_t)(1 + below(below(2) ? room / job->base_count : 8));
	if ((uint64_t)job->count * job->base_count > room)
		job->count = (uint32_t)(room / job->base_count);
	if (job->count > 20000)
		job->count = 20000;
	plan->bits = length;
	random_side(plan, align, slot, &plan->source_bases, &plan->source_offsets,
		    &job->source_stride);
	random_side(plan, align, slot, &plan->target_bases, &plan->target_offsets,
		    &job->target_stride);
}

static void free_plan(struct plan *plan)
{
	free(plan->source_bases);
	free(plan->target_bases);
	free(plan->source_offsets);
	free(plan->target_offsets);
}

static void random_rounds(void)
{
	static const uint32_t ctas[] = { 1, 2, 8, 64, 132, 264 };

	for (unsigned round = 0; round < rounds; round++) {
		int variant = WH_BLOCKS_1;
		struct plan plan;
		bool good;

		random_plan(&plan);
		upload(&plan, below(2));
		/* The widest that fits, or any that does. */
		switch (wh_blocks_widest(plan.bits | source.address | target.address)) {
		case WH_BLOCKS_16:
			variant = (int)below(WH_BLOCKS_VARIANTS);
			break;
		case WH_BLOCKS_8:
			variant = WH_BLOCKS_8 + (int)below(3);
			break;
		case WH_BLOCKS_4:
			variant = WH_BLOCKS_4 + (int)below(2);
			break;
		default:
			break;
		}
		good = run_plan(&plan, variant, ctas[below(6)], below(2) ? round + 1 : 0);
		free_plan(&plan);
		if (!good)
			break;
	}
}

/* Every pair of places within 32 bytes, at one length, in one launch. */
static bool all_alignments(uint64_t length, uint32_t ctas)
{
	uint64_t slot = length + 64, room = ARENA / slot, count = room < 1024 ? room : 1024,
		 base = 0;
	uint64_t first = below(1024), *from = malloc(count * 8), *to = malloc(count * 8);
	struct plan plan = {
		.job = { .block_length = length, .base_count = 1, .count = (uint32_t)count },
		.source_bases = &base,
		.target_bases = &base,
		.source_offsets = from,
		.target_offsets = to
	};
	bool good;

	for (uint64_t i = 0; i < count; i++) {
		from[i] = i * slot + (first + i) % 32;
		to[i] = i * slot + (first + i) / 32 % 32;
	}
	upload(&plan, true);
	good = run_plan(&plan, WH_BLOCKS_1, ctas, 0);
	free(from);
	free(to);
	return good;
}

static void alignments(void)
{
	unsigned sampled = rounds / 4;

	for (uint64_t length = 1; length <= (rounds < 200 ? 20 : 130); length++)
		if (!all_alignments(length, 132))
			return;
	for (unsigned i = 0; i < sampled; i++)
		if (!all_alignments(1 + below(4097), 1 + (uint32_t)below(264)))
			return;
	all_alignments(4097, 64);
	all_alignments(65536 + 3, 64);
	all_alignments(MIB + 1, 132);
}

/* ---- places ---------------------------------------------------------------------------------- */

/* Run the cases with the source and the target where they are said to be; NULL: pinned host
 * memory. */
static void between(struct wh_cuda_device *from, struct wh_cuda_device *to,
		    struct wh_cuda_device *by, void (*cases)(void))
{
	static const uint32_t zero;
	struct wh_cuda_scope scope;

	runner = by;
	if (arena_new(&source, from, ARENA) && arena_new(&target, to, ARENA) &&
	    arena_new(&lists, NULL, 4 * MIB) && arena_new(&counter, by, 4) &&
	    arena_new(&flag, NULL, 64) && CALL(wh_cuda_enter(gpu, by, &scope))) {
		put(&source, image, ARENA);
		put(&counter, &zero, 4);
		memset(flag.host, 0, 64);
		cases();
		wh_cuda_leave(&scope);
	}
	arena_free(&source);
	arena_free(&target);
	arena_free(&lists);
	arena_free(&counter);
	arena_free(&flag);
}

static void both(void)
{
	alignments();
	random_rounds();
}

static void same_gpu(void)
{
	between(&gpu->devices[0], &gpu->devices[0], &gpu->devices[0], both);
}

static void to_host(void)
{
	between(&gpu->devices[0], NULL, &gpu->devices[0], both);
}

static void from_host(void)
{
	between(NULL, &gpu->devices[0], &gpu->devices[0], random_rounds);
}

static void to_peer(void)
{
	between(&gpu->devices[0], &gpu->devices[1], &gpu->devices[0], both);
}

static void from_peer(void)
{
	between(&gpu->devices[1], &gpu->devices[0], &gpu->devices[0], random_rounds);
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* One block of the target from the source, or from an address that nothing has. What becomes of it
 * is the caller's affair. */
static void fault(bool beyond)
{
	struct wh_cuda_scope scope;
	uint64_t zero = 0;
	struct plan plan = {
		.job = { .block_length = 4096, .base_count = 1, .count = 1 },
		.source_bases = &zero,
		.target_bases = &zero,
		.bits = 4096,
	};
	uint32_t grid;

	runner = &gpu->devices[0];
	if (arena_new(&source, runner, ARENA) && arena_new(&target, runner, ARENA) &&
	    arena_new(&lists, NULL, MIB) && CALL(wh_cuda_enter(gpu, runner, &scope))) {
		upload(&plan, true);
		if (beyond)
			plan.job.source_base[0] = MIB;
		grid = wh_blocks_shape(&plan.job, WH_BLOCKS_16, 8);
		CALL(wh_cuda_blocks_launch(gpu, &kernels[0], WH_BLOCKS_16, &plan.job, grid, false,
					   NULL));
		CU(cuCtxSynchronize);
		wh_cuda_leave(&scope);
	}
	if (beyond && gpu_failures)
		return; /* the context takes nothing any more */
	arena_free(&source);
	arena_free(&target);
	arena_free(&lists);
}

static bool prepare(void)
{
	struct wh_cuda_scope scope;

	image = malloc(ARENA);
	expected = malloc(ARENA);
	if (!image || !expected)
		return false;
	for (uint64_t i = 0; i < ARENA; i++)
		image[i] = (unsigned char)(gpu_random() >> 32);
	for (unsigned i = 0; i < gpu->device_count && i < 2; i++) {
		bool loaded;

		if (!CALL(wh_cuda_enter(gpu, &gpu->devices[i], &scope)))
			return false;
		loaded = CALL(wh_cuda_kernels_load(gpu, &gpu->devices[i], &kernels[i]));
		wh_cuda_leave(&scope);
		if (!loaded)
			return false;
	}
	return gpu->device_count < 2 || !wh_cuda_device_peers(&gpu->devices[0], &gpu->devices[1]) ||
	       (CALL(wh_cuda_peer_enable(gpu, &gpu->devices[0], &gpu->devices[1])) &&
		CALL(wh_cuda_peer_enable(gpu, &gpu->devices[1], &gpu->devices[0])));
}

int main(int count, char **arguments)
{
	const char *driver = NULL, *wrong = NULL;
	struct wh_cuda_scope scope;
	uint64_t measure = 0;

	for (int i = 1; i < count; i++) {
		if (!strcmp(arguments[i], "--bench"))
			measure = 512 * MIB;
		else if (!strncmp(arguments[i], "--bench=", 8))
			measure = strtoull(arguments[i] + 8, NULL, 10) * MIB;
		else if (!strncmp(arguments[i], "--driver=", 9))
			driver = arguments[i] + 9;
		else if (!strncmp(arguments[i], "--rounds=", 9))
			rounds = (unsigned)strtoul(arguments[i] + 9, NULL, 10);
		else if (!strcmp(arguments[i], "--fault=beyond") ||
			 !strcmp(arguments[i], "--fault=unset"))
			wrong = arguments[i] + 8;
		else
			return 64;
	}
	gpu_open(driver);
	if (!prepare())
		return 1;
	if (wrong) {
		fault(!strcmp(wrong, "beyond"));
		return gpu_failures ? 1 : gpu_close();
	}
	if (measure) {
		bench(measure);
		return gpu_close() || gpu_failures ? 1 : 0;
	}
	gpu_case("same_gpu", same_gpu);
	gpu_case("to_host", to_host);
	gpu_case("from_host", from_host);
	if (gpu->device_count > 1 && wh_cuda_device_peers(&gpu->devices[0], &gpu->devices[1])) {
		gpu_case("to_peer", to_peer);
		gpu_case("from_peer", from_peer);
	}
	for (unsigned i = 0; i < gpu->device_count && i < 2; i++) {
		if (!CALL(wh_cuda_enter(gpu, &gpu->devices[i], &scope)))
			continue;
		wh_cuda_kernels_unload(gpu, &kernels[i]);
		wh_cuda_leave(&scope);
	}
	free(image);
	free(expected);
	return gpu_close();
}
