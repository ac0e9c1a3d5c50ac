/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding the allocations of a range, and turning them into spans of whole GPU pages.
 *
 * Allocations may share a page: CUDA places small ones in objects of 2 MiB, at multiples of 512
 * bytes. A page is the smallest unit that a driver maps, and belongs to one object; so allocations
 * that share a page form one span.
 */
#include <errno.h>
#include <stdlib.h>

#include <wherry/error.h>

#include "window/view.h"

typedef unsigned long long ull;

#define SPANS_MAX 65536 /* a range with more mappings is a mistake */
#define PAGE_MASK (WH_WINDOW_PAGE - 1)
/* CUDA guarantees this alignment of every allocation. */
#define ALIGNMENT 256
#define ATTEMPTS 8

static uint64_t page_of(uint64_t address)
{
	return address & ~PAGE_MASK;
}

/* The first page boundary at or behind `address`. */
static uint64_t page_end(uint64_t address)
{
	return page_of(address + PAGE_MASK);
}

static uint64_t range_min(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* ---- spans ----------------------------------------------------------------------------------- */

struct finding {
	struct wh_view *view;
	bool foreign;
	bool oldest; /* identify a page by its oldest allocation, not by the first that is found */
};

static int range_not_a_gpus(struct wh_cuda *cuda, uint64_t address)
{
	/* Without GPUs the missing driver is the reason. */
	int error = wh_cuda_ready(cuda);

	return error ? error :
		       wh_fail(EFAULT,
			       "address 0x%llx is not GPU memory: it is host memory, was freed, or "
			       "was never mapped; a window needs memory of cuMemAlloc or cuMemMap",
			       (ull)address);
}

static int range_check(const struct finding *finding, const struct wh_cuda_pointer *p,
		       uint64_t start)
{
	const struct wh_view *view = finding->view;

	if (p->memory == WH_CUDA_MANAGED)
		return wh_fail(EOPNOTSUPP,
			       "address 0x%llx is managed memory, which the CPU can access: it "
			       "needs no window",
			       (ull)start);
	if (p->memory != WH_CUDA_DEVICE)
		return range_not_a_gpus(view->windows->cuda, start);
	if (view->span_count && p->device != view->spans[0].pointer.device)
		return wh_fail(EOPNOTSUPP, "address 0x%llx is on %s, the memory before it on %s",
			       (ull)start, p->device->text, view->spans[0].pointer.device->text);
	if (p->imported && !finding->foreign)
		return wh_fail(EOPNOTSUPP,
			       "address 0x%llx is another process's memory (cuIpcOpenMemHandle): "
			       "open the window there",
			       (ull)start);
	return 0;
}

/* Make room for one more element. */
static int range_grow(void **array, unsigned count, size_t size)
{
	void *more;

	if (count == SPANS_MAX)
		return wh_fail(EFBIG, "over %d allocations in one window", SPANS_MAX);
	if (count & (count - 1)) /* not a power of two: there is room */
		return 0;
	more = realloc(*array, (count ? 2 * (size_t)count : 1) * size);
	if (!more)
		return wh_fail(ENOMEM, "no memory for a window");
	*array = more;
	return 0;
}

static int range_add_part(struct wh_view *view, const struct wh_cuda_pointer *p, uint64_t start)
{
	void *parts = view->parts;
	int error = range_grow(&parts, view->part_count, sizeof(*view->parts));

	if (error)
		return error;
	view->parts = parts;
	view->parts[view->part_count++] = (struct wh_view_part){ start, p->buffer_id };
	return 0;
}

/* Add the pages of [start, end), a part of one allocation. */
static int range_add_span(struct wh_view *view, const struct wh_cuda_pointer *p, uint64_t start,
			  uint64_t end, bool foreign)
{
	struct wh_span *last = view->span_count ? &view->spans[view->span_count - 1] : NULL;
	void *spans = view->spans;
	int error;

	if (last && page_of(p->base) < last->address + last->length) {
		last->length = page_end(end) - last->address;
		return 0;
	}
	error = range_grow(&spans, view->span_count, sizeof(*view->spans));
	if (error)
		return error;
	view->spans = spans;
	view->spans[view->span_count++] =
		(struct wh_span){ .address = page_of(start),
				  .length = page_end(end) - page_of(start),
				  .pointer = *p,
				  .foreign = foreign };
	return 0;
}

static int range_add(void *arg, const struct wh_cuda_pointer *p, uint64_t start, uint64_t count)
{
	const struct finding *finding = arg;
	int error = range_check(finding, p, start);

	if (!error)
		error = range_add_part(finding->view, p, start);
	return error ? error :
		       range_add_span(finding->view, p, start, start + count, finding->foreign);
}

/* ---- pages that are allocated in part ------------------------------------------------------- */

/* wh_cuda_query() for memory that other code may free between the query's calls to CUDA: the
 * caller's memory only shares a page with it. */
static int range_query(struct wh_cuda *cuda, uint64_t at, struct wh_cuda_pointer *p)
{
	for (int attempt = 1;; attempt++) {
		uint64_t id = 0;
		int error;

		*p = (struct wh_cuda_pointer){ .memory = WH_CUDA_PLAIN };
		error = wh_cuda_query(cuda, (const void *)(uintptr_t)at, p);
		if (attempt == ATTEMPTS || (!error && p->memory != WH_CUDA_DEVICE) ||
		    (!error && !cuda->cuPointerGetAttribute(&id, CUDA_POINTER_BUFFER_ID, at) &&
		     id == p->buffer_id))
			return error;
	}
}

/* What range_probe() has found. */
struct probe {
	bool oldest; /* look at all of the page, for the allocation that has been there longest */
	uint64_t at;
	struct wh_cuda_pointer p; /* plain: nothing yet */
	int error; /* of an address that could not be queried */
};

/* True: that was enough. */
static bool probe_look(struct probe *probe, struct wh_cuda *cuda, uint64_t at)
{
	struct wh_cuda_pointer p;
	int error = range_query(cuda, at, &p);

	if (error)
		probe->error = error;
	if (error || p.memory == WH_CUDA_PLAIN)
		return false;
	/* CUDA counts its allocations upward. */
	if (probe->p.memory == WH_CUDA_PLAIN || p.buffer_id < probe->p.buffer_id) {
		probe->p = p;
		probe->at = at;
	}
	return !probe->oldest;
}

/* Find an address of GPU memory in [from, to), a part of one page; probe->p is plain if there is
 * none. Starts with large steps, which find large allocations at once. */
static int range_probe(struct wh_cuda *cuda, uint64_t from, uint64_t to, struct probe *probe)
{
	bool enough = probe_look(probe, cuda, from);

	for (uint64_t step = WH_WINDOW_PAGE / 2; !enough && step >= ALIGNMENT; step /= 2) {
		/* Multiples of twice the step were queried before, except the page's start, which
		 * is at or before `from`. */
		for (uint64_t next = page_of(from) + step; !enough && next < to; next += 2 * step)
			enough = next > from && probe_look(probe, cuda, next);
	}
	return probe->p.memory == WH_CUDA_PLAIN ? probe->error : 0;
}

/* As wh_cuda_walk(), but each page of the range needs only one byte of the range that is allocated.
 */
static int range_walk_pages(struct finding *finding, uint64_t start, uint64_t end)
{
	struct wh_cuda *cuda = finding->view->windows->cuda;
	uint64_t allocated;

	while (start < end) {
		struct probe probe = { .oldest = finding->oldest,
				       .p = { .memory = WH_CUDA_PLAIN } };
		int error = range_probe(cuda, start, range_min(end, page_end(start + 1)), &probe);

		if (error)
			return error;
		if (probe.p.memory == WH_CUDA_PLAIN)
			return range_not_a_gpus(cuda, start);
		allocated = range_min(probe.p.base + probe.p.length, end);
		error = range_add(finding, &probe.p, probe.at, allocated - probe.at);
		if (error)
			return error;
		start = page_end(allocated);
	}
	return 0;
}

/* ---- finding --------------------------------------------------------------------------------- */

/* Assign the objects that the owner has sent to the spans: one for each part that CUDA knows. */
static void range_hand(struct wh_view *view, const struct wh_view_request *request)
{
	for (unsigned i = 0; i < view->span_count && view->span_count == request->object_count;
	     i++) {
		struct wh_span *span = &view->spans[i];
		uint64_t before = i ? 0 : view->wanted - span->address;

		span->object = request->objects[i];
		span->handed = span->object.offset >= before &&
			       (span->object.offset - before) % WH_WINDOW_PAGE == 0;
		span->object.offset -= before;
	}
}

int wh_view_find(struct wh_view *view, const struct wh_view_request *request, bool again)
{
	struct finding finding = { view, request->foreign, again };
	uint64_t end;
	int error;

	if (!request->length || __builtin_add_overflow(request->address, request->length, &end) ||
	    end > UINT64_MAX - WH_WINDOW_PAGE)
		return wh_fail(EINVAL, "a window on %llu bytes at 0x%llx: no range of memory",
			       (ull)request->length, (ull)request->address);
	if (request->pages)
		error = range_walk_pages(&finding, request->address, end);
	else
		error = wh_cuda_walk(view->windows->cuda, (const void *)(uintptr_t)request->address,
				     request->length, range_add, &finding);
	if (error)
		return error;
	view->device = view->spans[0].pointer.device;
	view->address = page_of(view->wanted);
	view->length = page_end(end) - view->address;
	range_hand(view, request);
	return 0;
}
