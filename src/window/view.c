/* SPDX-License-Identifier: Apache-2.0 */
/* Views: choosing a backend, pinning and mapping the spans of a range, sharing open views. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <wherry/error.h>

#include "window/view.h"

typedef unsigned long long ull;

static const struct wh_window_backend *const backends[] = {
	&wh_window_driver,
	&wh_window_dmabuf,
	&wh_window_rm,
	&wh_window_rm_watch,
};

#define BACKENDS (sizeof(backends) / sizeof(backends[0]))
#define STAGED "staged"
#define ATTEMPTS 8

/* ---- windows --------------------------------------------------------------------------------- */

int wh_windows_new(struct wh_cuda *cuda, struct wh_windows **out)
{
	struct wh_windows *windows = calloc(1, sizeof(*windows));

	if (!windows)
		return wh_fail(ENOMEM, "no memory for windows");
	windows->cuda = wh_cuda_hold(cuda);
	windows->cpu = wh_copy_cpu();
	windows->owner = getpid();
	windows->driver_fd = -1;
	pthread_mutex_init(&windows->lock, NULL);
	pthread_mutex_init(&windows->stream_lock, NULL);
	wh_list_init(&windows->views);
	*out = windows;
	return 0;
}

void wh_windows_free(struct wh_windows *windows)
{
	if (!windows)
		return;
	/* A forked child has only copies; the parent releases them. */
	if (windows->owner == getpid()) {
		for (size_t i = 0; i < BACKENDS; i++)
			backends[i]->stop(windows);
		wh_windows_streams_free(windows);
		wh_cuda_close(windows->cuda);
	}
	free(windows->gpus);
	pthread_mutex_destroy(&windows->stream_lock);
	pthread_mutex_destroy(&windows->lock);
	free(windows);
}

/* ---- names ----------------------------------------------------------------------------------- */

/* Read the next name of the list and move *order behind it and its comma. False: no name. */
static bool next_name(const char **order, char *name, size_t size)
{
	size_t length = strcspn(*order, ",");

	if (!length || length >= size)
		return false;
	memcpy(name, *order, length);
	name[length] = 0;
	*order += length;
	if (**order == ',' && (*order)[1])
		++*order;
	return true;
}

static const struct wh_window_backend *find_backend(const char *name)
{
	for (size_t i = 0; i < BACKENDS; i++) {
		if (!strcmp(backends[i]->name, name))
			return backends[i];
	}
	return NULL;
}

bool wh_window_order_valid(const char *order)
{
	char name[16];

	do {
		if (!next_name(&order, name, sizeof(name)) ||
		    (!find_backend(name) && strcmp(name, STAGED) != 0))
			return false;
	} while (*order && *order != ',');
	return !*order;
}

bool wh_window_order_has(const char *order, const char *name)
{
	char next[16];

	while (next_name(&order, next, sizeof(next))) {
		if (!strcmp(next, name))
			return true;
	}
	return false;
}

/* ---- pinning --------------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static void say(struct wh_view *view, const char *name,
						      const char *format, ...)
{
	size_t used = strlen(view->said);
	va_list arguments;

	if (used < sizeof(view->said))
		used += (size_t)snprintf(view->said + used, sizeof(view->said) - used,
					 "%s%s: ", used ? "; " : "", name);
	va_start(arguments, format);
	if (used < sizeof(view->said))
		vsnprintf(view->said + used, sizeof(view->said) - used, format, arguments);
	va_end(arguments);
}

static void view_unpin(struct wh_view *view, unsigned count)
{
	while (count--)
		view->backend->unpin(view->windows, &view->spans[count]);
}

static int view_pin(struct wh_view *view, uint32_t flags)
{
	int error = 0;

	if (flags && view->backend != &wh_window_driver && !WH_WINDOW_ALWAYS_PCIE)
		return wh_fail(
			EOPNOTSUPP,
			"only the kernel module can force PCIe; name driver in the setting window");
	for (unsigned i = 0; i < view->span_count; i++) {
		struct wh_span *span = &view->spans[i];

		/* Clear what a backend tried before has left. */
		*span = (struct wh_span){ .address = span->address,
					  .length = span->length,
					  .pointer = span->pointer,
					  .flags = flags,
					  .foreign = span->foreign,
					  .handed = span->handed,
					  .object = span->object };
		error = view->backend->pin(view->windows, span);
		if (error) {
			view_unpin(view, i);
			return error;
		}
	}
	return 0;
}

/* Under windows->lock. */
static int view_map(struct wh_view *view, enum wh_mapping mapping)
{
	/* Reserve addresses first, so that the spans are mapped side by side. */
	unsigned char *base = mmap(NULL, view->length, PROT_NONE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	enum wh_mapping got = mapping;
	int error = 0;

	if (base == MAP_FAILED)
		return wh_fail(errno, "mmap of %llu bytes of addresses: %s", (ull)view->length,
			       strerror(errno));
	for (unsigned i = 0; i < view->span_count && !error; i++) {
		struct wh_span *span = &view->spans[i];

		error = view->backend->map(view->windows, span,
					   base + (span->address - view->address), &got);
	}
	if (!error && mapping && got != mapping)
		error = wh_fail(EOPNOTSUPP,
				"%s: cannot map with type %d (1 write-combining, 2 cached, "
				"3 device): this memory gets type %d",
				view->backend->name, mapping, got);
	if (error) {
		munmap(base, view->length);
		return error;
	}
	view->base = base;
	view->mapping = got;
	view->copy = wh_copy_choose(view->windows->cpu, got);
	return 0;
}

static bool backend_holds(const struct wh_window_backend *backend, struct wh_windows *windows)
{
	return !backend->holds || backend->holds(windows);
}

static int view_open_with(struct wh_view *view, const struct wh_view_request *request)
{
	int error = view->backend->start(view->windows);

	if (!error && request->holds && !backend_holds(view->backend, view->windows))
		error = wh_fail(EOPNOTSUPP, "%s: takes mappings away when their memory is freed",
				view->backend->name);
	if (!error)
		error = view_pin(view, request->pin_flags);
	if (error)
		return error;
	if (request->map)
		error = view_map(view, request->mapping);
	if (error)
		view_unpin(view, view->span_count);
	return error;
}

/* Under windows->lock. Try the backends in order. */
static int view_open_any(struct wh_view *view, const struct wh_view_request *request)
{
	const char *order = request->order;
	size_t others = 0; /* length of the reports before the last one */
	char name[16];
	int error = 0;

	while (next_name(&order, name, sizeof(name))) {
		view->backend = find_backend(name);
		if (!view->backend) { /* staged */
			say(view, name, "by copy engine");
			return 0;
		}
		error = view_open_with(view, request);
		if (!error) {
			say(view, name, "chosen");
			return 0;
		}
		others = strlen(view->said);
		say(view, name, "%s", wh_error_text());
	}
	/* The last backend's errno and report first: the earlier ones exist on few machines. */
	return wh_fail(-error, "no window onto 0x%llx: %s%s%.*s", (ull)request->address,
		       view->said + (others ? others + strlen("; ") : 0), others ? "; " : "",
		       (int)others, view->said);
}

/* ---- sharing --------------------------------------------------------------------------------- */

bool wh_view_current(const struct wh_view *view)
{
	struct wh_cuda *cuda = view->windows->cuda;

	for (unsigned i = 0; i < view->part_count; i++) {
		const struct wh_view_part *part = &view->parts[i];
		uint64_t id = 0;

		if (cuda->cuPointerGetAttribute(&id, CUDA_POINTER_BUFFER_ID, part->address) ||
		    id != part->buffer_id)
			return false;
	}
	return true;
}

/* A mapped view that contains the request. Under windows->lock. */
static struct wh_view *find_view(struct wh_windows *windows, const struct wh_view_request *r)
{
	for (struct wh_list *l = windows->views.next; l != &windows->views; l = l->next) {
		struct wh_view *view = wh_container(l, struct wh_view, link);

		if (view->base && view->backend && r->address >= view->wanted &&
		    r->length <= view->wanted_length &&
		    r->address - view->wanted <= view->wanted_length - r->length &&
		    (!r->mapping || r->mapping == view->mapping) &&
		    (!r->holds || backend_holds(view->backend, windows)) &&
		    wh_window_order_has(r->order, view->backend->name) && wh_view_current(view))
			return view;
	}
	return NULL;
}

/* A partly allocated page may begin with other code's memory, which may be freed before the page is
 * pinned. Then try again: the oldest allocation of the page identifies it. */
static int view_fill(struct wh_view *view, const struct wh_view_request *request)
{
	for (int attempt = 1;; attempt++) {
		int error = wh_view_find(view, request, attempt > 1);

		if (!error)
			error = view_open_any(view, request);
		if (!error || !request->pages || attempt == ATTEMPTS || wh_view_current(view))
			return error;
		view->span_count = 0;
		view->part_count = 0;
		view->said[0] = 0;
	}
}

/* ---- views ----------------------------------------------------------------------------------- */

static int check_owner(const struct wh_windows *windows)
{
	return windows->owner == getpid() ?
		       0 :
		       wh_fail(EPERM, "this process was forked from the one that opened the "
				      "windows; open its own");
}

static void free_view(struct wh_view *view)
{
	free(view->parts);
	free(view->spans);
	free(view);
}

int wh_view_open(struct wh_windows *windows, const struct wh_view_request *request,
		 struct wh_view **out)
{
	struct wh_view *view;
	int error = check_owner(windows);

	if (error)
		return error;
	pthread_mutex_lock(&windows->lock);
	view = request->private || !request->length ? NULL : find_view(windows, request);
	if (view) {
		view->references++;
		goto done;
	}
	view = calloc(1, sizeof(*view));
	if (!view) {
		error = wh_fail(ENOMEM, "no memory for a window");
		goto err_unlock;
	}
	view->windows = windows;
	view->wanted = request->address;
	view->wanted_length = request->length;
	view->references = 1;
	error = view_fill(view, request);
	if (error)
		goto err_free;
	wh_list_append(&windows->views, &view->link);
done:
	pthread_mutex_unlock(&windows->lock);
	*out = view;
	return 0;

err_free:
	free_view(view);
err_unlock:
	pthread_mutex_unlock(&windows->lock);
	return error;
}

/* Under windows->lock. */
static void view_unmap(struct wh_view *view)
{
	if (view->base)
		munmap(view->base, view->length);
	view->base = NULL;
	view->mapping = WH_MAPPING_NONE;
}

void wh_view_close(struct wh_view *view)
{
	struct wh_windows *windows = view->windows;
	bool last;

	/* A forked child owns none of it, and a lock that is held now stays held for ever. */
	if (windows->owner != getpid())
		return;
	pthread_mutex_lock(&windows->lock);
	last = --view->references == 0;
	if (last) {
		wh_list_remove(&view->link);
		view_unmap(view);
		if (view->backend)
			view_unpin(view, view->span_count);
	}
	pthread_mutex_unlock(&windows->lock);
	if (last)
		free_view(view);
}

int wh_view_map(struct wh_view *view, enum wh_mapping mapping)
{
	int error = check_owner(view->windows);

	if (error)
		return error;
	pthread_mutex_lock(&view->windows->lock);
	error = view->base ? wh_fail(EBUSY, "0x%llx is mapped already", (ull)view->wanted) :
			     view_map(view, mapping);
	pthread_mutex_unlock(&view->windows->lock);
	return error;
}

void wh_view_unmap(struct wh_view *view)
{
	if (view->windows->owner != getpid())
		return;
	pthread_mutex_lock(&view->windows->lock);
	view_unmap(view);
	pthread_mutex_unlock(&view->windows->lock);
}
