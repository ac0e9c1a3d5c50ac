/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA binding on a machine without CUDA, and dividing a blocks job among CTAs. */
#include "unit.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include <wherry/error.h>

#include "gpu/kernel-images.h"
#include "kernels/blocks.h"
#include "platform/cuda.h"

#define NOWHERE "/nonexistent/libcuda.so.1"

static struct wh_cuda *open_at(const char *path)
{
	struct wh_cuda *cuda;

	assert_int_equal(wh_cuda_open(path, &cuda), 0);
	return cuda;
}

/* ---- no library ------------------------------------------------------------------------------ */

static void ready__no_library(void **state)
{
	struct wh_cuda *cuda = open_at(NOWHERE);
	char first[256];

	(void)state;
	assert_int_equal(wh_cuda_ready(cuda), -ENODEV);
	assert_non_null(strstr(wh_error_text(), NOWHERE));
	assert_non_null(strstr(wh_error_text(), "install"));
	strcpy(first, wh_error_text());
	wh_cuda_errno(1);
	assert_int_equal(wh_cuda_ready(cuda), -ENODEV);
	assert_string_equal(wh_error_text(), first);
	wh_cuda_close(cuda);
}

static void every_call__no_library(void **state)
{
	struct wh_cuda *cuda = open_at(NOWHERE);
	struct wh_cuda_device *device;
	struct wh_cuda_scope scope;

	(void)state;
	assert_int_equal(wh_cuda_device_find(cuda, "cuda:0", &device), -ENODEV);
	assert_non_null(strstr(wh_error_text(), NOWHERE));
	assert_int_equal(wh_cuda_device_at(cuda, 0, &device), -ENODEV);
	assert_non_null(strstr(wh_error_text(), NOWHERE));
	assert_int_equal(wh_cuda_enter_owner(cuda, 4096, &scope), -ENODEV);
	assert_non_null(strstr(wh_error_text(), NOWHERE));
	assert_int_equal(wh_cuda_sync_memops(cuda, 4096), -ENODEV);
	assert_non_null(strstr(wh_error_text(), NOWHERE));
	assert_null(wh_cuda_symbol(cuda, "cuInit"));
	wh_cuda_close(cuda);
}

/* A library that is not CUDA. */
static void ready__not_cuda(void **state)
{
	struct wh_cuda *cuda = open_at("libm.so.6");

	(void)state;
	assert_int_equal(wh_cuda_ready(cuda), -EOPNOTSUPP);
	assert_non_null(strstr(wh_error_text(), "libm.so.6 has no cuInit"));
	assert_int_equal(wh_cuda_ready(cuda), -EOPNOTSUPP);
	wh_cuda_close(cuda);
}

static void *race(void *arg)
{
	struct wh_cuda_pointer p;
	struct wh_cuda *cuda = wh_cuda_hold(arg);

	assert_int_equal(wh_cuda_query(cuda, &p, &p), 0);
	assert_int_equal(wh_cuda_ready(cuda), -ENODEV);
	assert_int_equal(wh_cuda_query(cuda, &p, &p), 0);
	wh_cuda_close(cuda);
	return NULL;
}

static void ready__threads(void **state)
{
	struct wh_cuda *cuda = open_at(NOWHERE);
	pthread_t threads[4];

	(void)state;
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, race, cuda), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	wh_cuda_close(cuda);
}

static _Atomic unsigned loader_asked;

/* Replaces the loader's, and counts calls. */
void *dlopen(const char *file, int mode)
{
	void *(*real)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");

	atomic_fetch_add(&loader_asked, 1);
	return real(file, mode);
}

/* Every registration queries: without the memory of a failed search the loader would look into all
 * of its directories each time. */
static void attach__looks_once(void **state)
{
	struct wh_cuda *cuda = open_at(NOWHERE), *off = open_at(NULL);
	void *other = NULL;
	bool initialised;

	(void)state;
	wh_cuda_off(off, "off");
	for (unsigned opened = 1; opened <= 2; opened++) {
		atomic_store(&loader_asked, 0);
		for (int i = 0; i < 1000; i++) {
			assert_int_equal(wh_cuda_attach(cuda, &initialised), -ENOENT);
			assert_false(wh_cuda_present(cuda) || wh_cuda_present(off));
		}
		/* The path and the default one, and both again for the other binding. */
		assert_int_equal(atomic_load(&loader_asked), 3);
		if (opened == 1) {
			other = dlopen("libBrokenLocale.so.1", RTLD_NOW);
			assert_non_null(other);
		}
	}
	dlclose(other);
	wh_cuda_close(cuda);
	wh_cuda_close(off);
}

/* ---- names ----------------------------------------------------------------------------------- */

static void find__malformed(void **state)
{
	static const char *const names[] = {
		"",
		"cuda",
		"cuda:",
		"cuda:-1",
		"cuda:0x1",
		"cuda:12345",
		"cuda:0 ",
		"CUDA:0",
		"gpu:0",
		"cuda:65:00",
		"cuda:65:00.",
		"cuda:65:00.1",
		"cuda:0:0:0:0.0",
		"cuda::65:00.0",
		"cuda:000000001:65:00.0",
		"cuda:GPU",
		"cuda:65:00.0x",
	};
	struct wh_cuda *cuda = open_at(NOWHERE);
	struct wh_cuda_device *device;

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		assert_int_equal(wh_cuda_device_find(cuda, names[i], &device), -EINVAL);
		assert_non_null(strstr(wh_error_text(), "cuda:0000:65:00.0"));
	}
	assert_int_equal(wh_cuda_device_find(cuda, NULL, &device), -EINVAL);
	wh_cuda_close(cuda);
}

static void find__well_formed(void **state)
{
	static const char *const names[] = {
		"cuda:0",
		"cuda:17",
		"cuda:GPU-00",
		"cuda:mig-12345678-1234",
		"cuda:65:00.0",
		"cuda:0000:65:00.0",
		"cuda:00000000:C1:1F.0",
	};
	struct wh_cuda *cuda = open_at(NOWHERE);
	struct wh_cuda_device *device;

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		assert_int_equal(wh_cuda_device_find(cuda, names[i], &device), -ENODEV);
	wh_cuda_close(cuda);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void query__no_driver(void **state)
{
	struct wh_cuda *cuda = open_at(NOWHERE);
	struct wh_cuda_pointer p;
	char *heap = malloc(100);

	(void)state;
	/* Before and after the search for the library has failed. */
	for (int i = 0; i < 2; i++) {
		memset(&p, 0x55, sizeof(p));
		assert_int_equal(wh_cuda_query(cuda, heap, &p), 0);
		assert_int_equal(p.memory, WH_CUDA_PLAIN);
		assert_int_equal(p.length, 0);
		assert_null(p.device);
		assert_int_equal(wh_cuda_ready(cuda), -ENODEV);
	}
	free(heap);
	wh_cuda_close(cuda);
}

static int count_step(void *arg, const struct wh_cuda_pointer *p, uint64_t start, uint64_t count)
{
	uint64_t *bytes = arg;

	assert_int_equal(p->memory, WH_CUDA_PLAIN);
	assert_true(start != 0);
	*bytes += count;
	return 0;
}

static int refuse(void *arg, const struct wh_cuda_pointer *p, uint64_t start, uint64_t count)
{
	(void)arg, (void)p, (void)start, (void)count;
	return -ENOTTY;
}

static void walk__plain(void **state)
{
	struct wh_cuda *cuda = open_at(NOWHERE);
	uint64_t bytes = 0;

	(void)state;
	assert_int_equal(wh_cuda_walk(cuda, cuda, sizeof(*cuda), count_step, &bytes), 0);
	assert_int_equal(bytes, sizeof(*cuda));
	assert_int_equal(wh_cuda_walk(cuda, cuda, 0, count_step, &bytes), -EINVAL);
	assert_int_equal(wh_cuda_walk(cuda, cuda, SIZE_MAX, count_step, &bytes), -EINVAL);
	assert_int_equal(wh_cuda_walk(cuda, cuda, 1, refuse, NULL), -ENOTTY);
	wh_cuda_close(cuda);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void check__errnos(void **state)
{
	(void)state;
	assert_int_equal(wh_cuda_errno(0), 0);
	assert_int_equal(wh_cuda_errno(CUDA_OUT_OF_MEMORY), ENOMEM);
	assert_int_equal(wh_cuda_errno(CUDA_NOT_SUPPORTED), EOPNOTSUPP);
	assert_int_equal(wh_cuda_errno(CUDA_NOT_READY), EAGAIN);
	assert_int_equal(wh_cuda_errno(CUDA_ILLEGAL_ADDRESS), EFAULT);
	assert_int_equal(wh_cuda_errno(CUDA_INVALID_PTX), ENOEXEC);
	assert_int_equal(wh_cuda_errno(905), EBUSY);
	assert_int_equal(wh_cuda_errno(123456), EIO);
}

static void check__text(void **state)
{
	struct wh_cuda *cuda = open_at(NOWHERE);

	(void)state;
	assert_int_equal(wh_cuda_check(cuda, 0, "cuMemAlloc", NULL), 0);
	assert_int_equal(wh_cuda_check(cuda, CUDA_OUT_OF_MEMORY, "cuMemAlloc", "%d bytes on %s", 7,
				       "cuda:3"),
			 -ENOMEM);
	assert_non_null(strstr(wh_error_text(), "cuMemAlloc (7 bytes on cuda:3)"));
	assert_non_null(strstr(wh_error_text(), "(2, "));
	assert_int_equal(wh_cuda_call(cuda, cuFuncLoad, NULL), -EOPNOTSUPP);
	assert_non_null(strstr(wh_error_text(), "cuFuncLoad"));
	assert_non_null(strstr(wh_error_text(), "CUDA 12.4"));
	wh_cuda_close(cuda);
}

/* ---- kernels --------------------------------------------------------------------------------- */

static void images__embedded(void **state)
{
	const struct wh_cuda_image *ptx = &wh_cuda_images[WH_CUDA_IMAGES - 1];
	static const char *const names[] = WH_BLOCKS_NAMES;
	char entry[64];

	(void)state;
	for (size_t i = 0; i < WH_CUDA_IMAGES - 1; i++) {
		assert_true(wh_cuda_images[i].length > 4);
		assert_memory_equal(wh_cuda_images[i].bytes, "\177ELF", 4);
	}
	assert_string_equal(ptx->name, "ptx");
	assert_int_equal(ptx->capability, 80);
	assert_int_equal(strlen(ptx->bytes), ptx->length);
	assert_non_null(strstr(ptx->bytes, ".version 7.0\n"));
	for (int i = 0; i < WH_BLOCKS_VARIANTS; i++) {
		snprintf(entry, sizeof(entry), ".visible .entry %s(", names[i]);
		assert_non_null(strstr(ptx->bytes, entry));
	}
	snprintf(entry, sizeof(entry), "_param_0[%zu]", sizeof(struct wh_blocks_job));
	assert_non_null(strstr(ptx->bytes, entry));
}

static void shape__variants(void **state)
{
	(void)state;
	assert_int_equal(wh_blocks_widest(0x1230), WH_BLOCKS_16);
	assert_int_equal(wh_blocks_widest(0x1238), WH_BLOCKS_8);
	assert_int_equal(wh_blocks_widest(0x1234), WH_BLOCKS_4);
	assert_int_equal(wh_blocks_widest(0x1232), WH_BLOCKS_1);
}

static void ctas__defaults(void **state)
{
	(void)state;
	assert_int_equal(wh_blocks_ctas(WH_BLOCKS_16, WH_BLOCKS_PUSH, 4096, 132, false), 32);
	assert_int_equal(wh_blocks_ctas(WH_BLOCKS_16, WH_BLOCKS_PUSH, 65536, 132, false), 64);
	assert_int_equal(wh_blocks_ctas(WH_BLOCKS_4, WH_BLOCKS_PUSH, 65536, 132, false), 132);
	assert_int_equal(wh_blocks_ctas(WH_BLOCKS_16, WH_BLOCKS_PULL, 4096, 132, false), 16);
	assert_int_equal(wh_blocks_ctas(WH_BLOCKS_16, WH_BLOCKS_TO_HOST, 4096, 132, false), 8);
	assert_int_equal(wh_blocks_ctas(WH_BLOCKS_16, WH_BLOCKS_FROM_HOST, 4096, 132, false), 8);
	assert_int_equal(wh_blocks_ctas(WH_BLOCKS_16, WH_BLOCKS_WITHIN, 4096, 132, false), 132);
	/* Never more than one for each multiprocessor, and never none. */
	assert_int_equal(wh_blocks_ctas(WH_BLOCKS_16, WH_BLOCKS_PUSH, 4096, 14, false), 14);
	assert_int_equal(wh_blocks_ctas(WH_BLOCKS_16, WH_BLOCKS_WITHIN, 4096, 0, false), 1);
	for (int variant = WH_BLOCKS_8; variant < WH_BLOCKS_VARIANTS; variant++)
		assert_int_equal(wh_blocks_ctas((enum wh_blocks_variant)variant, WH_BLOCKS_TO_HOST,
						4096, 108, false),
				 108);
}

static void ctas__yield(void **state)
{
	(void)state;
	assert_int_equal(wh_blocks_ctas(WH_BLOCKS_16, WH_BLOCKS_TO_HOST, 4096, 132, true), 2);
	assert_int_equal(wh_blocks_ctas(WH_BLOCKS_16, WH_BLOCKS_TO_HOST, 1 << 20, 132, true), 2);
	assert_int_equal(wh_blocks_ctas(WH_BLOCKS_16, WH_BLOCKS_TO_HOST, 4096, 1, true), 1);
	/* What was not measured, or gains nothing, stays. */
	assert_int_equal(wh_blocks_ctas(WH_BLOCKS_16, WH_BLOCKS_TO_HOST, 4080, 132, true), 8);
	assert_int_equal(wh_blocks_ctas(WH_BLOCKS_8, WH_BLOCKS_TO_HOST, 4096, 132, true), 132);
	for (enum wh_blocks_way way = 0; way < WH_BLOCKS_WAYS; way++)
		if (way != WH_BLOCKS_TO_HOST)
			assert_int_equal(wh_blocks_ctas(WH_BLOCKS_16, way, 65536, 132, true),
					 wh_blocks_ctas(WH_BLOCKS_16, way, 65536, 132, false));
}

static void shape__covers(void **state)
{
	static const uint32_t ctas[] = { 1, 8, 132, 264, 65536 };
	uint64_t seed = 11;

	(void)state;
	for (int i = 0; i < 100000; i++) {
		struct wh_blocks_job job = { .count = 1 + (uint32_t)(next_random(&seed) % 100000),
					     .base_count =
						     1 + (uint32_t)(next_random(&seed) % 80) };
		int variant = (int)(next_random(&seed) % WH_BLOCKS_VARIANTS);
		uint32_t most = ctas[next_random(&seed) % 5], grid;

		job.block_length =
			1 + next_random(&seed) % (UINT64_C(1) << (next_random(&seed) % 40));
		grid = wh_blocks_shape(&job, (enum wh_blocks_variant)variant, most);
		if (!grid) /* only for very much */
			assert_true(job.block_length * job.count * job.base_count > UINT64_C(1)
											    << 33);
		if (!grid)
			continue;
		assert_true(grid <= most && job.group_shift <= 9 && job.items <= WH_BLOCKS_ITEMS);
		assert_int_equal(job.chunk_length % 16, 0);
		assert_true(job.chunks * (uint64_t)job.chunk_length >= job.block_length);
		assert_true((job.chunks - 1) * (uint64_t)job.chunk_length < job.block_length);
		assert_int_equal(job.items, (uint64_t)job.chunks * job.count * job.base_count);
		/* Counting past the end by one step of the whole grid does not wrap. */
		assert_true((uint64_t)job.items + ((uint64_t)grid << 9) <= UINT32_MAX);
	}
}

static void shape__too_much(void **state)
{
	struct wh_blocks_job job = { .block_length = 1, .count = UINT32_MAX, .base_count = 2 };

	(void)state;
	assert_int_equal(wh_blocks_shape(&job, WH_BLOCKS_1, 132), 0);
	job = (struct wh_blocks_job){ .block_length = UINT64_MAX, .count = 1, .base_count = 1 };
	assert_int_equal(wh_blocks_shape(&job, WH_BLOCKS_16, 132), 0);
	job = (struct wh_blocks_job){ .block_length = 64, .count = 1, .base_count = 1 };
	assert_int_equal(wh_blocks_shape(&job, WH_BLOCKS_16, 0), 0);
	assert_int_equal(wh_blocks_shape(&job, WH_BLOCKS_16, 132), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ready__no_library),  cmocka_unit_test(every_call__no_library),
		cmocka_unit_test(ready__not_cuda),    cmocka_unit_test(ready__threads),
		cmocka_unit_test(attach__looks_once), cmocka_unit_test(find__malformed),
		cmocka_unit_test(find__well_formed),  cmocka_unit_test(query__no_driver),
		cmocka_unit_test(walk__plain),        cmocka_unit_test(check__errnos),
		cmocka_unit_test(check__text),        cmocka_unit_test(images__embedded),
		cmocka_unit_test(shape__variants),    cmocka_unit_test(ctas__defaults),
		cmocka_unit_test(ctas__yield),        cmocka_unit_test(shape__covers),
		cmocka_unit_test(shape__too_much),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
