/* SPDX-License-Identifier: Apache-2.0 */
/* Products of matrices by cuBLAS, which is opened at run time with declarations of our own: what a
 * model does on a GPU beside transfers. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/beside.h"
#include "gpu.h"

#define SIDE UINT64_C(8192) /* rows and columns of each matrix */
#define BYTES (SIDE * SIDE * 2) /* of bf16 */
#define STREAM_NON_BLOCKING 1
#define EVENT_DISABLE_TIMING 2
/* cudaDataType, cublasComputeType_t, cublasOperation_t, cublasGemmAlgo_t */
#define TYPE_BF16 14
#define COMPUTE_FLOAT 68
#define NOT_TRANSPOSED 0
#define ALGORITHM_DEFAULT (-1)

/* Names of cuBLAS, newest first. PyTorch's wheels have it where the loader does not look: --beside
 * gemm=FILE names it. */
static const char *const names[] = { "libcublas.so.13", "libcublas.so.12", "libcublas.so.11",
				     "libcublas.so" };

struct blas {
	int (*create)(void **out);
	int (*destroy)(void *handle);
	int (*set_stream)(void *handle, void *stream);
	int (*gemm)(void *handle, int transposed_a, int transposed_b, int m, int n, int k,
		    const void *alpha, const void *a, int type_a, int lda, const void *b,
		    int type_b, int ldb, const void *beta, void *c, int type_c, int ldc,
		    int compute, int algorithm);
};

struct bench_gemm {
	struct blas blas;
	struct gpu *gpu;
	int ordinal;
	void *handle, *stream, *event[2];
	uint64_t matrix[3];
	uint64_t steps;
};

static int blas_open(const char *library, struct blas *out, char *text, size_t size)
{
	static const struct {
		const char *name;
		size_t offset;
	} functions[] = {
		{ "cublasCreate_v2", offsetof(struct blas, create) },
		{ "cublasDestroy_v2", offsetof(struct blas, destroy) },
		{ "cublasSetStream_v2", offsetof(struct blas, set_stream) },
		{ "cublasGemmEx", offsetof(struct blas, gemm) },
	};
	void *handle = library ? dlopen(library, RTLD_NOW | RTLD_LOCAL) : NULL;

	for (size_t i = 0; !library && !handle && i < sizeof(names) / sizeof(names[0]); i++)
		handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
	if (!handle) {
		snprintf(text, size,
			 "no cuBLAS: %s; name its file: --beside gemm="
			 ".../nvidia/cublas/lib/libcublas.so.12",
			 library ? dlerror() : "the loader finds no libcublas.so");
		return -EOPNOTSUPP;
	}
	/* Stays loaded, as the driver does. */
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		void *symbol = dlsym(handle, functions[i].name);

		if (!symbol) {
			snprintf(text, size, "%s has no %s", library ? library : "libcublas.so",
				 functions[i].name);
			return -EOPNOTSUPP;
		}
		memcpy((char *)out + functions[i].offset, &symbol, sizeof(symbol));
	}
	return 0;
}

/* 0, or -EIO with a text. */
static int blas_check(int result, const char *call, char *text, size_t size)
{
	if (!result)
		return 0;
	snprintf(text, size, "%s: cublasStatus_t %d", call, result);
	return -EIO;
}

/* Numbers between -1 and 1 that do not repeat soon: a GPU multiplies zeros with less power, and so
 * with a higher clock. */
static int matrix_fill(struct bench_gemm *gemm, uint64_t address)
{
	uint16_t *numbers = malloc(BYTES);
	uint64_t state = address | 1;
	int error;

	if (!numbers)
		return -ENOMEM;
	for (uint64_t i = 0; i < SIDE * SIDE; i++) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		/* sign, an exponent of 2^-1 to 2^-4, 7 bits of fraction */
		numbers[i] = (uint16_t)((state >> 48 & 0x8000) | (126 - (state >> 60 & 3)) << 7 |
					(state >> 40 & 0x7f));
	}
	error = gpu_check(gemm->gpu,
			  gemm->gpu->cuMemcpy(address, (uint64_t)(uintptr_t)numbers, BYTES),
			  "cuMemcpy");
	free(numbers);
	return error;
}

static int gemm_prepare(struct bench_gemm *gemm, char *text, size_t size)
{
	struct gpu *gpu = gemm->gpu;
	int error = gpu_call(gpu, cuStreamCreate, &gemm->stream, STREAM_NON_BLOCKING);

	for (int i = 0; !error && i < 2; i++)
		error = gpu_call(gpu, cuEventCreate, &gemm->event[i], EVENT_DISABLE_TIMING);
	for (int i = 0; !error && i < 3; i++) {
		error = gpu_call(gpu, cuMemAlloc, &gemm->matrix[i], BYTES);
		if (!error && i < 2)
			error = matrix_fill(gemm, gemm->matrix[i]);
	}
	if (error) {
		snprintf(text, size, "%s", gpu->text[0] ? gpu->text : strerror(-error));
		return error;
	}
	error = blas_check(gemm->blas.create(&gemm->handle), "cublasCreate", text, size);
	return error ? error :
		       blas_check(gemm->blas.set_stream(gemm->handle, gemm->stream),
				  "cublasSetStream", text, size);
}

int bench_gemm_open(const char *library, const char *driver, int ordinal, struct bench_gemm **out,
		    char *text, size_t size)
{
	struct bench_gemm *gemm = calloc(1, sizeof(*gemm));
	char why[GPU_TEXT] = "";
	int error = gemm ? blas_open(library, &gemm->blas, text, size) : -ENOMEM;

	*out = gemm;
	if (error)
		return error;
	/* Its own: struct gpu is for one thread, and near's main thread has another. */
	gemm->gpu = gpu_open(driver, why);
	if (!gemm->gpu) {
		snprintf(text, size, "no CUDA driver: %s", why);
		return -EOPNOTSUPP;
	}
	gemm->ordinal = ordinal;
	error = gpu_enter(gemm->gpu, ordinal);
	if (error) {
		snprintf(text, size, "%s", gemm->gpu->text);
		return error;
	}
	error = gemm_prepare(gemm, text, size);
	gpu_leave(gemm->gpu);
	return error;
}

int bench_gemm_step(struct bench_gemm *gemm, char *text, size_t size)
{
	const float one = 1, zero = 0;
	void *event = gemm->event[gemm->steps % 2];
	int side = (int)SIDE, error = gpu_enter(gemm->gpu, gemm->ordinal);

	if (!error && gemm->steps >= 2)
		error = gpu_call(gemm->gpu, cuEventSynchronize, event);
	if (error) {
		snprintf(text, size, "%s", gemm->gpu->text);
		return error;
	}
	error = blas_check(gemm->blas.gemm(gemm->handle, NOT_TRANSPOSED, NOT_TRANSPOSED, side, side,
					   side, &one, (void *)(uintptr_t)gemm->matrix[0],
					   TYPE_BF16, side, (void *)(uintptr_t)gemm->matrix[1],
					   TYPE_BF16, side, &zero,
					   (void *)(uintptr_t)gemm->matrix[2], TYPE_BF16, side,
					   COMPUTE_FLOAT, ALGORITHM_DEFAULT),
			   "cublasGemmEx", text, size);
	if (!error && gpu_call(gemm->gpu, cuEventRecord, event, gemm->stream)) {
		snprintf(text, size, "%s", gemm->gpu->text);
		error = -EIO;
	}
	gemm->steps++;
	gpu_leave(gemm->gpu);
	return error;
}

uint64_t bench_gemm_work(void)
{
	return 2 * SIDE * SIDE * SIDE;
}

void bench_gemm_close(struct bench_gemm *gemm)
{
	if (!gemm)
		return;
	if (gemm->gpu && gemm->stream && !gpu_enter(gemm->gpu, gemm->ordinal)) {
		gemm->gpu->cuStreamSynchronize(gemm->stream);
		if (gemm->handle)
			gemm->blas.destroy(gemm->handle);
		for (int i = 0; i < 2; i++)
			if (gemm->event[i])
				gemm->gpu->cuEventDestroy(gemm->event[i]);
		gemm->gpu->cuStreamDestroy(gemm->stream);
		for (int i = 0; i < 3; i++)
			if (gemm->matrix[i])
				gemm->gpu->cuMemFree(gemm->matrix[i]);
		gpu_leave(gemm->gpu);
	}
	gpu_close(gemm->gpu);
	free(gemm);
}
