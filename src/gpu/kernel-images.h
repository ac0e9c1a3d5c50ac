/* SPDX-License-Identifier: Apache-2.0 */
/* kernel-images.h: the compiled kernels that the library contains. kernels/embed generates the
 * table during the build. */
#ifndef WH_GPU_KERNEL_IMAGES_H
#define WH_GPU_KERNEL_IMAGES_H

#include <stddef.h>

struct wh_cuda_image {
	const char *name; /* "sm_90"; the last one: "ptx" */
	int capability; /* 90 for 9.0; of the PTX: the lowest that runs it */
	const void *bytes; /* the PTX ends with a 0 */
	size_t length;
};

/* sm_75, sm_80, sm_90, sm_100, sm_110, sm_120, ptx */
#define WH_CUDA_IMAGES 7

extern const struct wh_cuda_image wh_cuda_images[WH_CUDA_IMAGES];

#endif
