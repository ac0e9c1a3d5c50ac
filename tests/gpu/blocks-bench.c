/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast the gather-scatter kernel is, beside one large copy by the copy engine in the same run.
 * Random blocks on both sides. "gbps" is the kernel alone, its lists on the GPU; "gbps_all" has
 * copying the lists there, the launch and the wait for its flag in it. Medians of several runs.
 */
#include <time.h>

#include "blocks.h"

#define KIB ((uint64_t)1 << 10)
#define RUNS 7

struct bench {
	struct arena source, target, offsets, staged, counter, flag;
	struct wh_cuda_device *by;
	CUstream stream;
	CUevent start, end;
	const char *name;
	uint64_t bytes; /* of one run */
	uint32_t flag_value;
};

static bool first_row;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static double median(double *values)
{
	qsort(values, RUNS, sizeof(*values), compare);
	return values[RUNS / 2];
}

static double elapsed(const struct bench *b)
{
	float ms = 0;

	CU(cuEventSynchronize, b->end);
	CU(cuEventElapsedTime, &ms, b->start, b->end);
	return 1e-3 * (double)ms;
}

static void row(const struct bench *b, const char *how, uint64_t block, uint32_t ctas, double gbps,
		double gbps_all)
{
	printf("%s\n  {\"pair\": \"%s\", \"how\": \"%s\", \"block_bytes\": %llu, \"ctas\": %u, "
	       "\"gbps\": %.2f, "
	       "\"gbps_all\": %.2f}",
	       first_row ? "" : ",", b->name, how, (unsigned long long)block, ctas, gbps, gbps_all);
	first_row = false;
	fflush(stdout);
}

/* One copy of everything: the limit. */
static void copy_engine(struct bench *b)
{
	double seconds[RUNS], all[RUNS];

	for (int run = -2; run < RUNS; run++) {
		double begin = now();

		CU(cuEventRecord, b->start, b->stream);
		CU(cuMemcpyAsync, b->target.address, b->source.address, b->bytes, b->stream);
		CU(cuEventRecord, b->end, b->stream);
		if (run >= 0) {
			seconds[run] = elapsed(b);
			all[run] = now() - begin;
		}
	}
	row(b, "copy-engine", b->bytes, 0, (double)b->bytes / median(seconds) / 1e9,
	    (double)b->bytes / median(all) / 1e9);
}

/* Offsets of all blocks, in random order, for both sides. */
static void shuffle(struct bench *b, uint64_t block, uint64_t count, uint64_t skew)
{
	uint64_t *offset = b->staged.host;

	for (uint64_t i = 0; i < 2 * count; i++)
		offset[i] = i % count * block;
	for (int side = 0; side < 2; side++, offset += count)
		for (uint64_t i = count - 1; i > 0; i--) {
			uint64_t j = (gpu_random() >> 8) % (i + 1), t = offset[i];

			offset[i] = offset[j];
			offset[j] = t;
		}
	/* The target only: the sides then have different places within a word. */
	for (uint64_t i = 0; i < count && skew; i++)
		((uint64_t *)b->staged.host)[count + i] += skew;
}

static void kernel(struct bench *b, int variant, const char *how, uint64_t block, uint64_t count,
		   uint32_t ctas)
{
	volatile uint32_t *flag = b->flag.host;
	struct wh_blocks_job job = { .block_length = block,
				     .count = (uint32_t)count,
				     .base_count = 1,
				     .source_offsets = b->offsets.address,
				     .target_offsets = b->offsets.address + 8 * count,
				     .counter = b->counter.address };
	uint32_t grid = wh_blocks_shape(&job, variant, ctas);
	double seconds[RUNS], all[RUNS], begin;

	job.source_base[0] = b->source.address;
	job.target_base[0] = b->target.address;
	CU(cuMemcpyHtoDAsync, b->offsets.address, b->staged.host, 16 * count, b->stream);
	for (int run = -2; run < RUNS; run++) {
		job.flag = 0;
		CU(cuEventRecord, b->start, b->stream);
		CALL(wh_cuda_blocks_launch(gpu, &kernels[b->by->ordinal], variant, &job, grid,
					   false, b->stream));
		CU(cuEventRecord, b->end, b->stream);
		CU(cuEventSynchronize, b->end);
		if (run >= 0)
			seconds[run] = elapsed(b);
		job.flag = b->flag.address;
		job.flag_value = ++b->flag_value;
		begin = now();
		CU(cuMemcpyHtoDAsync, b->offsets.address, b->staged.host, 16 * count, b->stream);
		CALL(wh_cuda_blocks_launch(gpu, &kernels[b->by->ordinal], variant, &job, grid,
					   false, b->stream));
		while (*flag != job.flag_value) {
			if (now() - begin > 20) {
				CHECK(!"the flag does not come");
				return;
			}
		}
		if (run >= 0)
			all[run] = now() - begin;
	}
	row(b, how, block, ctas, (double)(block * count) / median(seconds) / 1e9,
	    (double)(block * count) / median(all) / 1e9);
}

static void pair(struct bench *b)
{
	static const uint32_t ctas[] = { 8, 16, 32, 64, 132, 264 };
	static const uint64_t blocks[] = { 1 * KIB, 4 * KIB, 16 * KIB, 64 * KIB };

	copy_engine(b);
	for (size_t i = 0; i < sizeof(blocks) / sizeof(blocks[0]); i++) {
		/* A KV cache's hand-over is some 10,000 blocks. */
		uint64_t count = b->bytes / blocks[i];

		count = count > 65536 ? 65536 : count;
		shuffle(b, blocks[i], count, 0);
		for (size_t c = 0; c < sizeof(ctas) / sizeof(ctas[0]); c++) {
			kernel(b, WH_BLOCKS_16, "16", blocks[i], count, ctas[c]);
			if (blocks[i] != 4 * KIB)
				continue;
			kernel(b, WH_BLOCKS_8, "8", blocks[i], count, ctas[c]);
			kernel(b, WH_BLOCKS_4, "4", blocks[i], count, ctas[c]);
			kernel(b, WH_BLOCKS_1, "any, even", blocks[i], count, ctas[c]);
		}
		if (blocks[i] != 4 * KIB)
			continue;
		shuffle(b, blocks[i], count, 1);
		for (size_t c = 0; c < sizeof(ctas) / sizeof(ctas[0]); c++)
			kernel(b, WH_BLOCKS_1, "any, odd", blocks[i], count, ctas[c]);
	}
	copy_engine(b);
}

static void between(const char *name, struct wh_cuda_device *from, struct wh_cuda_device *to,
		    struct wh_cuda_device *by, uint64_t bytes)
{
	static const uint32_t zero;
	struct bench b = { .name = name, .by = by, .bytes = bytes };
	struct wh_cuda_scope scope;

	if (arena_new(&b.source, from, bytes + 64) && arena_new(&b.target, to, bytes + 64) &&
	    arena_new(&b.offsets, by, 65536 * 16) && arena_new(&b.staged, NULL, 65536 * 16) &&
	    arena_new(&b.counter, by, 4) && arena_new(&b.flag, NULL, 64) &&
	    CALL(wh_cuda_enter(gpu, by, &scope))) {
		*(volatile uint32_t *)b.flag.host = 0;
		if (CU(cuMemcpyHtoD, b.counter.address, &zero, 4) &&
		    CU(cuStreamCreate, &b.stream, CUDA_STREAM_NON_BLOCKING) &&
		    CU(cuEventCreate, &b.start, 0) && CU(cuEventCreate, &b.end, 0)) {
			pair(&b);
			CU(cuEventDestroy, b.start);
			CU(cuEventDestroy, b.end);
			CU(cuStreamDestroy, b.stream);
		}
		wh_cuda_leave(&scope);
	}
	arena_free(&b.source);
	arena_free(&b.target);
	arena_free(&b.offsets);
	arena_free(&b.staged);
	arena_free(&b.counter);
	arena_free(&b.flag);
}

void bench(uint64_t bytes)
{
	struct wh_cuda_device *d = gpu->devices;

	first_row = true;
	printf("{\"schema\": 1, \"bytes\": %llu, \"device\": \"%s\", \"driver\": %d, \"kernels\": "
	       "\"%s\", \"results\": [",
	       (unsigned long long)bytes, d->name, gpu->version, kernels[0].image);
	if (gpu->device_count > 1 && wh_cuda_device_peers(&d[0], &d[1])) {
		between("gpu-to-peer, pushed", &d[0], &d[1], &d[0], bytes);
		between("gpu-to-peer, pulled", &d[0], &d[1], &d[1], bytes);
	}
	between("gpu-to-host", &d[0], NULL, &d[0], bytes / 2);
	between("host-to-gpu", NULL, &d[0], &d[0], bytes / 2);
	between("same-gpu", &d[0], &d[0], &d[0], bytes);
	printf("\n]}\n");
}
