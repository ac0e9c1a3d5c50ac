/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public windows: views of GPU memory with their bounds checked, and copies by the CPU or by a
 * copy engine, whichever is faster.
 */
#include <wherry/window.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/counters.h"
#include "core/engine.h"
#include "util/config.h"
#include "util/error.h"
#include "util/options.h"
#include "window/view.h"

typedef unsigned long long ull;

/* Bytes. Below, a copy engine is never faster; above, wh_windows_threshold() decides. */
#define ENGINE_LEAST 2048

struct wh_window {
	struct wh_engine *engine;
	struct wh_view *view;
	uint64_t address, length;
	unsigned char *pointer; /* NULL: staged */
	_Atomic uint64_t
		engine_from; /* bytes from which a copy engine is faster; 0: not known yet */
};

_Static_assert((int)WH_WINDOW_WC == (int)WH_MAPPING_WC &&
		       (int)WH_WINDOW_CACHED == (int)WH_MAPPING_CACHED &&
		       (int)WH_WINDOW_DEVICE == (int)WH_MAPPING_DEVICE,
	       "the same numbers");
_Static_assert(sizeof(((struct wh_window_info *)0)->said) == WH_WINDOW_SAID, "as much room");

/* ---- opening -------------------------------------------------------------------------------- */

/* Count open windows: an engine that has some cannot be closed. */
static void window_count_add(struct wh_engine *engine, int by)
{
	pthread_mutex_lock(&engine->lock);
	engine->window_count += (unsigned)by;
	pthread_mutex_unlock(&engine->lock);
}

static int window_check_arguments(const void *address, size_t length,
				  const struct wh_window_options *options, const char *order)
{
	static const char call[] = "wh_window_open";

	if (!address || !length)
		return wh_fail(EINVAL, "%s: %s", call, address ? "length is 0" : "address is NULL");
	if (options->reserved)
		return wh_fail(EINVAL, "%s: options.reserved is not 0", call);
	if (options->mapping > WH_WINDOW_DEVICE)
		return wh_fail(EINVAL, "%s: options.mapping is %u; at most 3, device", call,
			       options->mapping);
	if (!strcmp(order, WH_WINDOW_OFF))
		return wh_fail(EOPNOTSUPP,
			       "%s: windows are switched off by the setting window (WHERRY_WINDOW)",
			       call);
	if (!wh_window_order_valid(order))
		return wh_fail(EINVAL,
			       "%s: backends \"%.64s\": wants driver, dmabuf, rm, rm-watch or "
			       "staged, or several with commas between",
			       call, order);
	return 0;
}

static int window_try_open(struct wh_engine *engine, const void *address, size_t length,
			   const struct wh_window_options *given, struct wh_window **out)
{
	struct wh_window_options options;
	struct wh_view_request request = { .address = (uintptr_t)address,
					   .length = length,
					   .map = true };
	struct wh_window *window;
	int error = wh_engine_guard(engine, "wh_window_open");

	if (!error)
		error = wh_options_copy(&options, sizeof(options), given, sizeof(size_t),
					"wh_window_open");
	if (error)
		return error;
	if (!out)
		return wh_fail(EINVAL, "wh_window_open: out is NULL");
	request.order =
		options.backends ? options.backends : engine->config.text[WH_SETTING_WINDOW];
	request.mapping = (enum wh_mapping)options.mapping;
	error = window_check_arguments(address, length, &options, request.order);
	if (error)
		return error;
	window = calloc(1, sizeof(*window));
	if (!window)
		return wh_fail(ENOMEM, "wh_window_open: no memory");
	*window = (struct wh_window){ .engine = engine,
				      .address = request.address,
				      .length = length };
	window_count_add(engine, 1);
	error = wh_view_open(engine->region_windows.windows, &request, &window->view);
	if (error) {
		window_count_add(engine, -1);
		free(window);
		return error;
	}
	wh_count_add(&engine->statistics.windows_opened, 1);
	if (window->view->base)
		window->pointer = wh_view_at(window->view, window->address);
	*out = window;
	return 0;
}

int wh_window_open(struct wh_engine *engine, const void *address, size_t length,
		   const struct wh_window_options *given, struct wh_window **out)
{
	wh_fail_begin();
	return wh_fail_end(window_try_open(engine, address, length, given, out));
}

static int window_guard(const struct wh_window *window, const char *call)
{
	if (!window)
		return wh_fail(EINVAL, "%s: window is NULL", call);
	return wh_engine_guard(window->engine, call);
}

int wh_window_close(struct wh_window *window)
{
	int error;

	if (!window)
		return 0;
	error = window_guard(window, "wh_window_close");
	if (error)
		return error;
	wh_view_close(window->view);
	window_count_add(window->engine, -1);
	free(window);
	return 0;
}

/* ---- copying -------------------------------------------------------------------------------- */

static int window_check_range(const struct wh_window *window, uint64_t offset, const void *host,
			      size_t length, const char *call)
{
	int error = window_guard(window, call);

	if (error)
		return error;
	if (offset > window->length || length > window->length - offset)
		return wh_fail(EINVAL, "%s: %zu bytes at offset %llu end behind the window's %llu",
			       call, length, (ull)offset, (ull)window->length);
	if (!host && length)
		return wh_fail(EINVAL, "%s: %zu bytes at NULL", call, length);
	return 0;
}

/* Copy engines use addresses, where there may be other memory by now. */
static int window_check_current(const struct wh_window *window, const char *call)
{
	return wh_view_current(window->view) ?
		       0 :
		       wh_fail(EFAULT,
			       "%s: the memory at 0x%llx was freed since the window was opened",
			       call, (ull)window->address);
}

int wh_window_copy_to(struct wh_window *window, uint64_t offset, const void *from, size_t length)
{
	static const char call[] = "wh_window_copy_to";
	int error = window_check_range(window, offset, from, length, call);

	if (error || !length)
		return error;
	if (window->pointer) {
		wh_copy_to(window->view->copy, window->pointer + offset, from, length);
		return 0;
	}
	error = window_check_current(window, call);
	return error ? error :
		       wh_windows_put(window->view->windows, window->view->device,
				      window->address + offset, from, length);
}

static bool window_uses_engine(struct wh_window *window, size_t length)
{
	if (length < ENGINE_LEAST || window->view->mapping == WH_MAPPING_CACHED)
		return false;
	if (!window->engine_from)
		window->engine_from = wh_windows_threshold(window->view);
	return length >= window->engine_from && wh_view_current(window->view);
}

int wh_window_copy_from(struct wh_window *window, uint64_t offset, void *to, size_t length)
{
	static const char call[] = "wh_window_copy_from";
	int error = window_check_range(window, offset, to, length, call);
	struct wh_view *view;

	if (error || !length)
		return error;
	view = window->view;
	if (!window->pointer) {
		error = window_check_current(window, call);
		return error ? error :
			       wh_windows_get(view->windows, view->device, to,
					      window->address + offset, length);
	}
	if (window_uses_engine(window, length)) {
		wh_window_flush(window); /* the copy engine does not see writes on their way */
		if (!wh_windows_get(view->windows, view->device, to, window->address + offset,
				    length))
			return 0;
	}
	wh_copy_from(view->copy, to, window->pointer + offset, length);
	return 0;
}

int wh_window_flush(struct wh_window *window)
{
	int error = window_guard(window, "wh_window_flush");
	unsigned char byte;

	/* On PCIe a read does not overtake earlier writes. */
	if (!error && window->pointer)
		wh_copy_from(window->view->copy, &byte, window->pointer, 1);
	return error;
}

/* ---- information ----------------------------------------------------------------------------- */

int wh_window_info(struct wh_window *window, struct wh_window_info *info)
{
	static const char call[] = "wh_window_info";
	struct wh_window_info out = { .size = sizeof(out) };
	int error = window_guard(window, call);

	if (error)
		return error;
	if (!info)
		return wh_fail(EINVAL, "%s: info is NULL", call);
	out.pointer = window->pointer;
	out.address = window->address;
	out.length = window->length;
	out.engine_from = window->engine_from;
	out.mapping = (uint32_t)window->view->mapping;
	snprintf(out.backend, sizeof(out.backend), "%s",
		 window->pointer ? window->view->backend->name : "staged");
	snprintf(out.writes, sizeof(out.writes), "%s",
		 window->pointer ? window->view->copy.put->name : "copy engine");
	snprintf(out.reads, sizeof(out.reads), "%s",
		 window->pointer ? window->view->copy.get->name : "copy engine");
	memcpy(out.said, window->view->said, sizeof(out.said));
	return wh_options_return(info, &out, sizeof(out), call);
}
