/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.c: loads and launches the CUDA kernels that the library contains: machine code for some
 * architectures, and PTX, which the driver compiles for all other architectures and where it
 * refuses the machine code of a newer toolkit.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/kernel-images.h"
#include "kernels/blocks.h"
#include "platform/cuda.h"
#include "util/error.h"

#define LOG_SIZE 8192 /* bytes of the compiler's output */
/* From which machine code on a kernel waits for the one in front of it by itself: see blocks.cu. */
#define OVERLAP_CAPABILITY 90

_Static_assert(WH_BLOCKS_VARIANTS <=
		       sizeof(((struct wh_cuda_kernels *)0)->blocks) / sizeof(CUfunction),
	       "wh_cuda_kernels.blocks holds all variants");

/* The newest machine code that the device can run: its own major version, and not newer than it;
 * else the PTX. Returns an index into wh_cuda_images, whose last row is the PTX. */
static size_t kernels_choose_image(const struct wh_cuda_device *device)
{
	size_t best = WH_CUDA_IMAGES - 1;

	for (size_t i = 0; i < WH_CUDA_IMAGES - 1; i++) {
		int capability = wh_cuda_images[i].capability;

		if (capability / 10 == device->capability / 10 &&
		    capability <= device->capability &&
		    (best == WH_CUDA_IMAGES - 1 || capability > wh_cuda_images[best].capability))
			best = i;
	}
	return best;
}

/* Turn all white space and control characters into single spaces. */
static void kernels_log_one_line(char *log)
{
	char *to = log;

	for (const char *from = log; *from; from++) {
		if ((unsigned char)*from > ' ')
			*to++ = *from;
		else if (to != log && to[-1] != ' ')
			*to++ = ' ';
	}
	*to = 0;
}

int wh_cuda_image_load(struct wh_cuda *cuda, const void *image, const char *name, CUmodule *out)
{
	int options[] = { CUDA_JIT_ERROR_LOG, CUDA_JIT_ERROR_LOG_SIZE }, error;
	char *log = calloc(1, LOG_SIZE);
	void *values[] = { log, (void *)(uintptr_t)(LOG_SIZE - 1) };

	if (!log)
		return wh_fail(ENOMEM, "no memory for the output of the kernels' compiler");
	error = cuda->cuModuleLoadDataEx(out, image, 2, options, values);
	kernels_log_one_line(log);
	/* The compiler's output comes before the driver's error, which says less. */
	error = wh_cuda_check(cuda, error, "cuModuleLoadDataEx", "the kernels as %s%s%.110s", name,
			      *log ? ": " : "", log);
	free(log);
	return error;
}

/* Find the functions and load them now: with lazy loading, the default since CUDA 12, the first
 * launch would load them and wait for everything that runs on the device. */
static int kernels_find_functions(struct wh_cuda *cuda, struct wh_cuda_kernels *kernels)
{
	static const char *const names[] = WH_BLOCKS_NAMES;
	int error, version;

	for (int i = 0; i < WH_BLOCKS_VARIANTS; i++) {
		error = wh_cuda_check(
			cuda,
			cuda->cuModuleGetFunction(&kernels->blocks[i], kernels->module, names[i]),
			"cuModuleGetFunction", "%s", names[i]);
		if (error)
			return error;
		error = cuda->cuFuncLoad ?
				wh_cuda_check(cuda, cuda->cuFuncLoad(kernels->blocks[i]),
					      "cuFuncLoad", "%s", names[i]) :
				wh_cuda_check(cuda,
					      cuda->cuFuncGetAttribute(&version,
								       CUDA_FUNCTION_BINARY_VERSION,
								       kernels->blocks[i]),
					      "cuFuncGetAttribute", "%s", names[i]);
		if (error)
			return error;
	}
	return 0;
}

int wh_cuda_kernels_load(struct wh_cuda *cuda, struct wh_cuda_device *device,
			 struct wh_cuda_kernels *out)
{
	struct wh_cuda_kernels kernels = { 0 };
	size_t image = kernels_choose_image(device);
	int error;

	error = wh_cuda_image_load(cuda, wh_cuda_images[image].bytes, wh_cuda_images[image].name,
				   &kernels.module);
	/* A driver of an older major version refuses a newer toolkit's machine code, with different
	 * errors. */
	if (error && image != WH_CUDA_IMAGES - 1) {
		image = WH_CUDA_IMAGES - 1;
		error = wh_cuda_image_load(cuda, wh_cuda_images[image].bytes,
					   wh_cuda_images[image].name, &kernels.module);
	}
	if (!error) {
		kernels.image = wh_cuda_images[image].name;
		kernels.overlap = image != WH_CUDA_IMAGES - 1 && cuda->cuLaunchKernelEx &&
				  wh_cuda_images[image].capability >= OVERLAP_CAPABILITY;
		error = kernels_find_functions(cuda, &kernels);
		if (error)
			cuda->cuModuleUnload(kernels.module);
	}
	if (!error)
		*out = kernels;
	return error;
}

void wh_cuda_kernels_unload(struct wh_cuda *cuda, struct wh_cuda_kernels *kernels)
{
	if (kernels->module)
		cuda->cuModuleUnload(kernels->module);
	memset(kernels, 0, sizeof(*kernels));
}

int wh_cuda_blocks_launch(struct wh_cuda *cuda, const struct wh_cuda_kernels *kernels, int variant,
			  const struct wh_blocks_job *job, uint32_t ctas, bool overlap,
			  CUstream stream)
{
	struct wh_cuda_launch_attribute early = { .id = CUDA_LAUNCH_PROGRAMMATIC_SERIALIZATION,
						  .value.number = 1 };
	struct wh_cuda_launch launch = { .grid = { ctas, 1, 1 },
					 .block = { WH_BLOCKS_THREADS, 1, 1 },
					 .stream = stream,
					 .attributes = &early,
					 .count = 1 };
	void *parameters[] = { (void *)(uintptr_t)job };
	CUfunction function = kernels->blocks[variant];
	int result;

	overlap = overlap && kernels->overlap;
	result = overlap ? cuda->cuLaunchKernelEx(&launch, function, parameters, NULL) :
			   cuda->cuLaunchKernel(function, ctas, 1, 1, WH_BLOCKS_THREADS, 1, 1, 0,
						stream, parameters, NULL);
	return wh_cuda_check(cuda, result, overlap ? "cuLaunchKernelEx" : "cuLaunchKernel",
			     "%u blocks of %llu bytes, %u CTAs", job->count,
			     (unsigned long long)job->block_length, ctas);
}
