/* SPDX-License-Identifier: Apache-2.0 */
/* A libcublas.so.12 on the fake CUDA driver, with what wherry bench calls of it: a product of bf16
 * matrices reads one word of each of its matrices and takes FAKE_CUBLAS_US (1,000) us in its
 * stream. Its arguments are checked as a real one would. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fake.h"

enum { SUCCESS = 0, NOT_INITIALIZED = 1, ALLOC_FAILED = 3, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { TYPE_BF16 = 14, COMPUTE_FLOAT = 68 };

struct handle {
	void *stream;
	int (*launch)(void *stream, void (*function)(void *arg), void *arg);
	void *(*alias)(uint64_t address);
	unsigned microseconds;
};

static void take_time(void *arg)
{
	const struct handle *handle = arg;
	struct timespec t = { handle->microseconds / 1000000,
			      handle->microseconds % 1000000 * 1000L };

	nanosleep(&t, NULL);
}

/* A function of the driver that the process has loaded, by whatever path. */
static void *driver_function(const char *name)
{
	const char *path = getenv("TEST_CUDA");
	void *library = dlopen(path ? path : "libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	void *found = library ? dlsym(library, name) : NULL;

	if (library)
		dlclose(library);
	return found;
}

FAKE_API int cublasCreate_v2(struct handle **out)
{
	const char *time = getenv("FAKE_CUBLAS_US");
	int (*current)(void **) = NULL;
	struct handle *handle = calloc(1, sizeof(*handle));
	void *symbol = driver_function("cuCtxGetCurrent"), *context = NULL;

	if (!handle)
		return ALLOC_FAILED;
	memcpy(&current, &symbol, sizeof(symbol));
	symbol = driver_function("cuLaunchHostFunc");
	memcpy(&handle->launch, &symbol, sizeof(symbol));
	symbol = driver_function("fake_cuda_alias");
	memcpy(&handle->alias, &symbol, sizeof(symbol));
	handle->microseconds = time ? (unsigned)strtoul(time, NULL, 10) : 1000;
	if (!current || !handle->launch || !handle->alias || current(&context) || !context) {
		free(handle);
		return NOT_INITIALIZED;
	}
	*out = handle;
	return SUCCESS;
}

FAKE_API int cublasDestroy_v2(struct handle *handle)
{
	free(handle);
	return SUCCESS;
}

FAKE_API int cublasSetStream_v2(struct handle *handle, void *stream)
{
	handle->stream = stream;
	return SUCCESS;
}

FAKE_API int cublasGemmEx(struct handle *handle, int transposed_a, int transposed_b, int m, int n,
			  int k, const void *alpha, const void *a, int type_a, int lda,
			  const void *b, int type_b, int ldb, const void *beta, void *c, int type_c,
			  int ldc, int compute, int algorithm)
{
	const void *matrix[] = { a, b, c };
	const size_t last = 2 * ((size_t)m * (size_t)n - 1);

	(void)algorithm;
	if (transposed_a || transposed_b || m <= 0 || m != n || n != k || lda < m || ldb < m ||
	    ldc < m || !alpha || !beta)
		return INVALID_VALUE;
	if (type_a != TYPE_BF16 || type_b != TYPE_BF16 || type_c != TYPE_BF16 ||
	    compute != COMPUTE_FLOAT)
		return NOT_SUPPORTED;
	for (int i = 0; i < 3; i++)
		if (!handle->alias((uint64_t)(uintptr_t)matrix[i]) ||
		    !handle->alias((uint64_t)(uintptr_t)matrix[i] + last))
			return INVALID_VALUE;
	return handle->launch(handle->stream, take_time, handle) ? NOT_INITIALIZED : SUCCESS;
}
