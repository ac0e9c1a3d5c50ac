/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For programs that run on a machine with a GPU and nothing else: no test library, no toolkit. Each
 * case prints the lines that cmocka would; a program without a GPU exits 77.
 */
#ifndef TESTS_GPU_GPU_H
#define TESTS_GPU_GPU_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <wherry/error.h>

#include "platform/cuda.h"

extern struct wh_cuda *gpu;
extern unsigned gpu_failures; /* of the case that runs */

/* The case goes on after a failure. False: failed. */
#define CHECK(condition) gpu_check((condition), __FILE__, __LINE__, #condition, NULL)
/* 0 is good; else the library's text is shown. */
#define CALL(call) gpu_check((call) == 0, __FILE__, __LINE__, #call, wh_error_text())
/* A function of the driver. */
#define CU(name, ...) CALL(wh_cuda_call(gpu, name, __VA_ARGS__))
/* Calls of the application: with the first GPU's primary context. */
#define INSIDE(...)                                                                                \
	do {                                                                                       \
		struct wh_cuda_scope inside_;                                                      \
		if (CALL(wh_cuda_enter(gpu, &gpu->devices[0], &inside_))) {                        \
			__VA_ARGS__;                                                               \
			wh_cuda_leave(&inside_);                                                   \
		}                                                                                  \
	} while (0)

bool gpu_check(bool good, const char *file, int line, const char *what, const char *text);

/* Open the driver (at `path`, NULL: the usual one); exits 77 if there is no GPU. */
void gpu_open(const char *path);
/* Run one case under its name. */
void gpu_case(const char *name, void (*run)(void));
/* Close the driver. The exit status. */
int gpu_close(void);
/* Numbers that are the same in every run. */
uint64_t gpu_random(void);

#endif
