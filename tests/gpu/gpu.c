/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

struct wh_cuda *gpu;
unsigned gpu_failures;

static unsigned failed_cases;
static uint64_t state = UINT64_C(0x9e3779b97f4a7c15);

bool gpu_check(bool good, const char *file, int line, const char *what, const char *text)
{
	if (!good) {
		gpu_failures++;
		printf("%s:%d: %s%s%s\n", file, line, what, text ? ": " : "", text ? text : "");
		fflush(stdout);
	}
	return good;
}

void gpu_open(const char *path)
{
	if (wh_cuda_open(path, &gpu) || wh_cuda_ready(gpu)) {
		printf("skipped: %s\n", wh_error_text());
		wh_cuda_close(gpu);
		exit(77);
	}
}

void gpu_case(const char *name, void (*run)(void))
{
	printf("[ RUN      ] %s\n", name);
	fflush(stdout);
	gpu_failures = 0;
	run();
	printf("%s %s\n", gpu_failures ? "[  FAILED  ]" : "[       OK ]", name);
	fflush(stdout);
	failed_cases += gpu_failures != 0;
}

int gpu_close(void)
{
	wh_cuda_close(gpu);
	return failed_cases ? 1 : 0;
}

uint64_t gpu_random(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}
