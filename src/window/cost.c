/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of writing to a GPU, through a window and by the copy engine. It is measured once for
 * each device, on scratch memory, whose allocation and release do not wait for the application's
 * work.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/clock.h"
#include "window/view.h"

#define ROUNDS 5
#define SHORT ((size_t)4096)

/* An H200 on PCIe 5: bench/results/2026-11-21-h200-16cpu-windows-*.json. */
static const struct wh_window_cost usual = {
	.window = 1050,
	.window_byte = 1 / 20.0,
	.engine = 6000,
	.engine_byte = 1 / 54.0,
	.host_byte = 1 / 40.0,
};

struct trial {
	struct wh_windows *windows;
	struct wh_cuda_device *device;
	struct wh_view *view;
	uint64_t scratch;
	unsigned char *from, *pinned;
};

static void write_window(struct trial *t, size_t length)
{
	unsigned char byte, *at = wh_view_at(t->view, t->scratch);

	wh_copy_to(t->view->copy, at, t->from, length);
	wh_copy_from(t->view->copy, &byte, at, 1);
}

static int write_engine(struct trial *t, size_t length)
{
	return wh_windows_put(t->windows, t->device, t->scratch, t->pinned, length);
}

static int write_host(struct trial *t, size_t length)
{
	memcpy(t->pinned, t->from, length);
	return 0;
}

enum what { WINDOW, ENGINE, HOST };

/* ns of the fastest of several writes; < 0: it failed. */
static double time_of(struct trial *t, enum what what, size_t length)
{
	int64_t best = INT64_MAX, start, took;
	int error = 0;

	for (int i = 0; i < ROUNDS && !error; i++) {
		start = wh_now();
		if (what == WINDOW)
			write_window(t, length);
		else
			error = what == ENGINE ? write_engine(t, length) : write_host(t, length);
		took = wh_now() - start;
		best = took < best ? took : best;
	}
	return error ? -1 : (double)best;
}

/* The ns for each write and for each byte, from a short and a long write. False: no result. */
static bool cost_fit(struct trial *t, enum what what, double *price, double *byte)
{
	double few = time_of(t, what, SHORT), many = time_of(t, what, WH_WINDOW_PROBE);

	if (few <= 0 || many <= few)
		return false;
	*byte = (many - few) / (double)(WH_WINDOW_PROBE - SHORT);
	*price = few - *byte * (double)SHORT;
	*price = *price > 0 ? *price : 0;
	return true;
}

static void cost_measure(struct trial *t, struct wh_window_cost *cost)
{
	struct wh_window_cost got = usual;
	double none;

	memset(t->from, 1, WH_WINDOW_PROBE);
	/* A copy engine cannot be faster than a single store: another thread had the CPU meanwhile.
	 */
	if (cost_fit(t, WINDOW, &got.window, &got.window_byte) &&
	    cost_fit(t, ENGINE, &got.engine, &got.engine_byte) &&
	    cost_fit(t, HOST, &none, &got.host_byte) && got.engine > got.window) {
		got.measured = true;
		*cost = got;
	}
}

/* Open a window onto the scratch memory and measure. */
static void try_scratch(struct trial *t, const char *order, struct wh_window_cost *cost)
{
	struct wh_view_request request = { .address = t->scratch,
					   .length = WH_WINDOW_PROBE,
					   .order = order,
					   .private = true,
					   .holds = true,
					   .map = true };

	t->from = malloc(WH_WINDOW_PROBE);
	if (!t->from || wh_view_open(t->windows, &request, &t->view)) {
		free(t->from);
		return;
	}
	if (t->view->base)
		cost_measure(t, cost);
	wh_view_close(t->view);
	free(t->from);
}

static void try_measure(struct trial *t, const char *order, struct wh_window_cost *cost)
{
	struct wh_cuda *cuda = t->windows->cuda;
	struct wh_cuda_scope scope;
	struct wh_scratch scratch;

	if (!t->pinned || wh_cuda_enter(cuda, t->device, &scope))
		return;
	if (!wh_scratch_new(cuda, t->device, WH_WINDOW_PROBE, false, &scratch)) {
		t->scratch = scratch.address;
		try_scratch(t, order, cost);
		wh_scratch_free(cuda, &scratch);
	}
	wh_cuda_leave(&scope);
}

void wh_windows_cost(struct wh_windows *windows, struct wh_cuda_device *device, const char *order,
		     void *pinned, struct wh_window_cost *out)
{
	struct trial trial = { .windows = windows, .device = device, .pinned = pinned };
	struct wh_window_cost cost = usual;
	struct wh_window_cost *kept;

	pthread_mutex_lock(&windows->stream_lock);
	if (!windows->gpus)
		windows->gpus = calloc(windows->cuda->device_count, sizeof(*windows->gpus));
	kept = windows->gpus ? &windows->gpus[device->ordinal].cost : NULL;
	pthread_mutex_unlock(&windows->stream_lock);
	if (kept && kept->known) {
		*out = *kept;
		return;
	}
	try_measure(&trial, order, &cost);
	cost.known = true;
	if (kept)
		*kept = cost;
	*out = cost;
}
