/* SPDX-License-Identifier: Apache-2.0 */
/* region-window.c: opens and closes region windows, and decides up to how many bytes the CPU uses
 * them. */
#include "gpu/region-window.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <wherry/error.h>

#include "gpu/stream.h"
#include "memory/memory.h"
#include "util/error.h"
#include "util/log.h"

/* After a copy from a slot, a thread sees the stream's semaphore and wakes the receiving thread: at
 * least so many ns. */
#define HAND_OVER_NS 5000

_Static_assert(WH_SLOT >= WH_WINDOW_PROBE, "a slot holds the probe");

/* ---- limits ---------------------------------------------------------------------------------- */

/* Up to how many bytes is the first of two ways faster? Each costs `price` plus `byte` for each
 * byte. */
static uint64_t window_break_even(double price, double byte, double price2, double byte2)
{
	double bytes;

	if (price >= price2)
		return 0;
	if (byte <= byte2)
		return UINT64_MAX;
	bytes = (price2 - price) / (byte - byte2);
	return bytes < (double)INT64_MAX ? (uint64_t)bytes : UINT64_MAX;
}

static void window_choose_limits(struct wh_region_window *window, const struct wh_window_cost *cost)
{
	size_t engine = wh_windows_threshold(window->view);
	double ring = cost->engine + HAND_OVER_NS;

	window->receive_most = window_break_even(cost->window, cost->window_byte, ring,
						 cost->engine_byte + cost->host_byte);
	/* Beyond one slot, the copy engine empties a slot while the next one is received. */
	if (window->receive_most > WH_SLOT)
		window->receive_most = window_break_even(cost->window, cost->window_byte,
							 ring + cost->engine_byte * (double)WH_SLOT,
							 cost->host_byte);
	window->cost = *cost;
	window->measured = cost->measured;
	window->put_most =
		window_break_even(cost->window, cost->window_byte, cost->engine, cost->engine_byte);
	window->put_most =
		window->put_most < WH_REGION_WINDOW_FEW ? window->put_most : WH_REGION_WINDOW_FEW;
	window->get_most = engine < WH_REGION_WINDOW_FEW ? engine : WH_REGION_WINDOW_FEW;
}

/* ---- opening and closing --------------------------------------------------------------------- */

/* The memory for which a region window is opened. */
struct window_spec {
	struct wh_region_windows *windows;
	const struct wh_region_entry *entry;
	uint64_t address; /* by which CUDA knows it in this process */
	bool foreign; /* memory of another process */
	int (*ask)(void *arg, struct wh_window_objects *out);
	void *arg;
};

/* What the owner of foreign memory has answered. */
struct owner_answer {
	char why[WH_REFUSAL]; /* why no window opened without asking it */
	int error; /* 0: it has sent `objects` */
	char text[WH_REFUSAL];
	struct wh_window_objects sent;
	struct wh_view_object objects[WH_WINDOW_OBJECTS];
};

/* `answer`: NULL if the owner has not been asked. */
static int window_open(const struct window_spec *spec, const struct owner_answer *answer,
		       struct wh_region_window *window)
{
	struct wh_region_windows *windows = spec->windows;
	const char *order = windows->order;
	struct wh_view_request request = { .address = spec->address,
					   .length = spec->entry->length,
					   .order = order,
					   .foreign = spec->foreign,
					   .holds = true,
					   .map = true };
	struct wh_window_cost cost;
	struct wh_slot *slot;
	int error;

	if (!strcmp(order, WH_WINDOW_OFF))
		return wh_fail(EOPNOTSUPP, "windows are switched off by the setting window");
	if (answer && answer->error)
		return wh_fail(-answer->error, "%.90s; its owner: %.90s", answer->why,
			       answer->text);
	if (answer) {
		request.objects = answer->objects;
		request.object_count = answer->sent.count;
	}
	error = wh_view_open(windows->windows, &request, &window->view);
	if (error)
		return error;
	if (!window->view->base) {
		wh_view_close(window->view);
		window->view = NULL;
		return wh_fail(EOPNOTSUPP, "the setting window is %s, which has no mapping", order);
	}
	atomic_fetch_add_explicit(&windows->opened, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&windows->open, 1, memory_order_relaxed);
	window->address = spec->entry->address;
	window->base = wh_view_at(window->view, spec->address);
	slot = wh_slots_prepare(windows->gpus, WH_SLOT_OWNER) ?
		       NULL :
		       wh_slot_acquire(windows->gpus, WH_SLOT_OWNER, NULL);
	wh_windows_cost(windows->windows, window->view->device, order, slot ? slot->host : NULL,
			&cost);
	if (slot)
		wh_slot_release(windows->gpus, slot);
	window_choose_limits(window, &cost);
	if (spec->foreign) /* only the owner receives requests */
		window->receive_most = 0;
	return 0;
}

/* Under wh_region_windows.lock. */
static struct wh_region_window *window_new(const struct window_spec *spec,
					   const struct owner_answer *answer)
{
	struct wh_region_window *window = calloc(1, sizeof(*window));

	if (!window)
		return NULL;
	if (spec->entry->kind == WH_MEMORY_MANAGED)
		snprintf(window->refused, sizeof(window->refused),
			 "managed memory moves between host and GPU by itself");
	else if (window_open(spec, answer, window))
		snprintf(window->refused, sizeof(window->refused), "%.*s", WH_REFUSAL - 1,
			 wh_error_text());
	return window;
}

/* `mark` comes before what is a warning. */
static bool window_describe(const struct wh_region_window *window, const char *mark, char *line,
			    size_t size)
{
	char most[80] = "";

	if (!window)
		return false;
	if (!window->view) {
		snprintf(line, size, "%sno CPU window: %s%s", window->missed ? mark : "",
			 window->refused,
			 window->missed ? "; a few bytes to and from GPUs take many times as "
					  "long; see wherry doctor" :
					  "");
		return true;
	}
	if (window->receive_most == UINT64_MAX)
		snprintf(most, sizeof(most), "for received requests of any length; ");
	else if (window->receive_most)
		snprintf(most, sizeof(most), "for received requests of up to %llu bytes; ",
			 (unsigned long long)window->receive_most);
	snprintf(line, size,
		 "CPU window (%s): %sthe CPU itself writes up to %llu bytes and reads up to %llu%s",
		 window->view->backend->name, most, (unsigned long long)window->put_most,
		 (unsigned long long)window->get_most, window->measured ? "" : "; not measured");
	return true;
}

/* A setting that asks for none is no surprise. */
static bool window_is_missed(const struct wh_region_windows *windows,
			     const struct wh_region_window *window)
{
	return !window->view && strcmp(windows->order, WH_WINDOW_OFF) != 0 &&
	       strcmp(windows->order, "staged") != 0;
}

/* Could a window still open if the owner sent its file descriptors? */
static bool window_should_ask_owner(const struct window_spec *spec,
				    const struct wh_region_window *window)
{
	return window && !window->view && spec->ask &&
	       wh_windows_imports(spec->windows->windows, spec->windows->order);
}

/* That there is none costs a few bytes most: they take a copy by the GPU. It is said once. */
static void window_log(const struct window_spec *spec, const struct wh_region_window *window,
		       const char *line)
{
	struct wh_region_windows *windows = spec->windows;
	bool warn = window->missed && !atomic_exchange(&windows->warned, true);

	wh_log_line(windows->log, warn ? WH_LOG_WARN : WH_LOG_DEBUG, "window", "region %#llx%s: %s",
		    (unsigned long long)wh_region_entry_id(spec->entry),
		    spec->foreign ? " of a peer" : "", line);
}

/* Open the window, unless another thread has. NULL: no memory; or, if ask->why is set, the caller
 * should ask the owner and try again. */
static struct wh_region_window *window_install(struct wh_region_window *_Atomic *cached,
					       const struct window_spec *spec,
					       const struct owner_answer *answer,
					       struct owner_answer *ask)
{
	char line[WH_REFUSAL + 128];
	struct wh_region_window *window;
	bool made = false;

	pthread_mutex_lock(&spec->windows->lock);
	window = atomic_load(cached);
	if (!window) {
		window = window_new(spec, answer);
		made = window;
		if (window)
			window->missed = window_is_missed(spec->windows, window);
		if (ask && window_should_ask_owner(spec, window)) {
			memcpy(ask->why, window->refused, sizeof(ask->why));
			free(window);
			window = NULL;
			made = false;
		}
		atomic_store_explicit(cached, window, memory_order_release);
	}
	pthread_mutex_unlock(&spec->windows->lock);
	if (made && window_describe(window, "", line, sizeof(line)))
		window_log(spec, window, line);
	return window;
}

/* No lock is held while the owner is asked, because it may be waiting for this engine. */
static struct wh_region_window *window_install_foreign(struct wh_region_window *_Atomic *cached,
						       const struct window_spec *spec)
{
	struct owner_answer *answer = calloc(1, sizeof(*answer));
	struct wh_region_window *window;

	if (!answer)
		return NULL;
	window = window_install(cached, spec, NULL, answer);
	if (!window && *answer->why) {
		answer->error = spec->ask(spec->arg, &answer->sent);
		if (answer->error)
			snprintf(answer->text, sizeof(answer->text), "%.*s", WH_REFUSAL - 1,
				 wh_error_text());
		for (unsigned i = 0; i < answer->sent.count; i++)
			answer->objects[i] = (struct wh_view_object){ answer->sent.fd[i],
								      answer->sent.offset[i] };
		window = window_install(cached, spec, answer, NULL);
		while (answer->sent.count)
			close(answer->sent.fd[--answer->sent.count]);
	}
	free(answer);
	return window;
}

static const struct wh_region_window *window_get(struct wh_region_window *_Atomic *cached,
						 const struct window_spec *spec)
{
	struct wh_region_window *window = atomic_load_explicit(cached, memory_order_acquire);

	if (!window)
		window = spec->foreign ? window_install_foreign(cached, spec) :
					 window_install(cached, spec, NULL, NULL);
	return window && window->view ? window : NULL;
}

static void window_close(struct wh_region_windows *windows,
			 struct wh_region_window *_Atomic *cached)
{
	struct wh_region_window *window;

	/* Another thread may be describing the window. */
	pthread_mutex_lock(&windows->lock);
	window = atomic_exchange(cached, NULL);
	pthread_mutex_unlock(&windows->lock);
	if (window && window->view) {
		/* Another thread may have written last: its writes must not arrive after this. */
		wh_region_window_flush(window);
		wh_view_close(window->view);
		atomic_fetch_sub_explicit(&windows->open, 1, memory_order_relaxed);
	}
	free(window);
}

/* ---- local regions --------------------------------------------------------------------------- */

const struct wh_region_window *wh_region_window_get(struct wh_region *region)
{
	if (region->entry.kind == WH_MEMORY_FILE)
		return NULL;
	return window_get(&region->window,
			  &(struct window_spec){ .windows = region->windows,
						 .entry = &region->entry,
						 .address = region->entry.address });
}

const struct wh_region_window *wh_region_window_peek(const struct wh_region *region)
{
	const struct wh_region_window *window =
		atomic_load_explicit(&region->window, memory_order_acquire);

	return window && window->view ? window : NULL;
}

bool wh_region_window_describe(const struct wh_region *region, char *line, size_t size)
{
	return window_describe(atomic_load_explicit(&region->window, memory_order_acquire),
			       "warning: ", line, size);
}

void wh_region_window_close(struct wh_region *region)
{
	window_close(region->windows, &region->window);
}

/* ---- remote regions -------------------------------------------------------------------------- */

const struct wh_region_window *
wh_region_window_get_remote(struct wh_region_windows *windows, struct wh_remote_region *region,
			    uint64_t address, int (*ask)(void *arg, struct wh_window_objects *out),
			    void *arg)
{
	return window_get(&region->window, &(struct window_spec){ .windows = windows,
								  .entry = &region->entry,
								  .address = address,
								  .foreign = true,
								  .ask = ask,
								  .arg = arg });
}

const struct wh_region_window *wh_region_window_peek_remote(const struct wh_remote_region *region)
{
	const struct wh_region_window *window =
		atomic_load_explicit(&region->window, memory_order_acquire);

	return window && window->view ? window : NULL;
}

bool wh_region_window_describe_remote(const struct wh_remote_region *region, char *line,
				      size_t size)
{
	return window_describe(atomic_load_explicit(&region->window, memory_order_acquire),
			       "warning: ", line, size);
}

void wh_region_window_close_remote(struct wh_region_windows *windows,
				   struct wh_remote_region *region)
{
	if (atomic_load(&region->window))
		window_close(windows, &region->window);
}

/* ---- an engine's windows --------------------------------------------------------------------- */

int wh_region_windows_open(struct wh_region_windows *windows, struct wh_gpus *gpus,
			   const char *order, const struct wh_log *log)
{
	pthread_mutex_init(&windows->lock, NULL);
	windows->gpus = gpus;
	windows->order = order;
	windows->log = log;
	return wh_windows_new(wh_gpus_cuda(gpus), &windows->windows);
}

void wh_region_windows_close(struct wh_region_windows *windows)
{
	if (!windows->order)
		return;
	wh_windows_free(windows->windows);
	pthread_mutex_destroy(&windows->lock);
}
