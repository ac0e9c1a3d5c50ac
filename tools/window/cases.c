/* SPDX-License-Identifier: Apache-2.0 */
/* The tests of wherry window check within one process: data, bounds, several windows, closing,
 * freeing, and leaks. */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pattern.h"
#include "window/window.h"

#define KIB UINT64_C(1024)

typedef unsigned long long ull;

/* Fill the test's memory with a pattern. A copy of it, which the caller frees; NULL: the test
 * failed. */
static unsigned char *memory_fill(struct window_try *try, uint64_t number)
{
	unsigned char *host = calloc(1, try->fixture.length);

	if (!window_expect(try, host, "no memory"))
		return NULL;
	pattern_fill(host, try->fixture.length, 0, number);
	if (window_expect(
		    try,
		    !gpu_copy(try->fixture.gpu, try->fixture.address, host, try->fixture.length),
		    "%s", try->fixture.gpu->text))
		return host;
	free(host);
	return NULL;
}

/* Is the test's memory the same as `host`? */
static bool memory_same(struct window_try *try, const unsigned char *host, const char *after)
{
	unsigned char *got = calloc(1, try->fixture.length);
	uint64_t at = 0, length = try->fixture.length;
	bool good =
		window_expect(try, got, "no memory") &&
		window_expect(try, !gpu_copy(try->fixture.gpu, got, try->fixture.address, length),
			      "%s", try->fixture.gpu->text);

	while (good && at < length && got[at] == host[at])
		at++;
	good = good && window_expect(try, at == length, "byte %llu of the memory is wrong after %s",
				     (ull)at, after);
	free(got);
	return good;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static void case_basic(struct window_try *try)
{
	struct window_fixture *fixture = &try->fixture;
	struct wh_window_info info;
	struct wh_window *window;
	uint64_t value = UINT64_C(0x0123456789abcdef), got = 0;

	if (!window_open_in(try, 0, fixture->length, &window))
		return;
	info = window_info_of(try, window);
	window_expect(
		try, info.address == (uintptr_t)fixture->address && info.length == fixture->length,
		"the window reports %llu bytes at 0x%llx", (ull)info.length, (ull)info.address);
	window_expect(
		try, !fixture->choices->backend || !strcmp(info.backend, fixture->choices->backend),
		"opened by backend '%s'", info.backend);
	window_round_trip(try, window, 0, 0, fixture->length);
	if (info.pointer) {
		volatile uint64_t *at = (volatile uint64_t *)info.pointer + 100;

		*at = value;
		window_called(try, wh_window_flush(window), "wh_window_flush");
		window_expect(try, *at == value, "a load does not return what was stored");
		window_expect(try,
			      !gpu_copy(fixture->gpu, &got, fixture->address + 800, 8) &&
				      got == value,
			      "CUDA does not see a plain store");
	}
	window_close_in(try, window);
}

/* Windows at any address and of any length; bytes beside the window stay as they are. */
static void case_unaligned(struct window_try *try)
{
	static const uint64_t starts[] = { 1,    3,     8,     63,     100,   4095,
					   4097, 65535, 65537, 131071, 200001 };
	static const uint64_t lengths[] = { 1, 2, 7, 64, 129, 4097, 65537 };
	uint64_t number = window_fresh();
	unsigned char *host = memory_fill(try, number);
	struct wh_window *window;

	for (size_t i = 0; host && i < sizeof(starts) / sizeof(starts[0]); i++)
		for (size_t j = 0; j < sizeof(lengths) / sizeof(lengths[0]); j++) {
			uint64_t start = starts[i], length = lengths[j];

			if (!window_open_in(try, start, length, &window))
				goto end;
			number = window_fresh();
			pattern_fill(host + start, length, 0, number);
			window_called(try, wh_window_copy_to(window, 0, host + start, length),
				      "wh_window_copy_to");
			window_called(try, wh_window_flush(window), "wh_window_flush");
			if (!window_close_in(try, window) || try->outcome == WINDOW_FAILED)
				goto end;
		}
	memory_same(try, host, "writes through windows at odd addresses");
end:
	free(host);
}

#define SMALL 12

/* Small allocations, several of which share a page of the GPU. */
static void case_small(struct window_try *try)
{
	static const uint64_t sizes[SMALL] = {
		1, 4, 8, 16, 100, 256, 300, 1000, 4095, 4096, 5000, 9
	};
	struct wh_window_options options = { .size = sizeof(options),
					     .backends = try->fixture.choices->backend };
	struct wh_window *windows[SMALL] = { 0 };
	struct gpu *gpu = try->fixture.gpu;
	uint64_t at[SMALL] = { 0 };
	unsigned char bytes[5000];
	bool raw = try->fixture.memory->kind == WH_MEMORY_DEVICE;
	size_t i;

	window_expect(try, !gpu_enter(gpu, try->fixture.device), "%s", gpu->text);
	for (i = 0; i < SMALL && try->outcome == WINDOW_PASSED; i++) {
		/* Other kinds have no small allocations: use parts of the test's memory. */
		at[i] = (uintptr_t)try->fixture.address + i * 8 * KIB + i;
		if (raw)
			window_expect(try, !gpu_call(gpu, cuMemAlloc, &at[i], sizes[i]), "%s",
				      gpu->text);
		if (try->outcome == WINDOW_PASSED)
			window_called(try,
				      wh_window_open(try->fixture.engine, (void *)(uintptr_t)at[i],
						     sizes[i], &options, &windows[i]),
				      "a window on a small buffer");
		if (windows[i]) {
			pattern_fill(bytes, sizes[i], 0, i);
			window_called(try, wh_window_copy_to(windows[i], 0, bytes, sizes[i]),
				      "wh_window_copy_to");
			window_called(try, wh_window_flush(windows[i]), "wh_window_flush");
		}
	}
	for (i = 0; i < SMALL; i++) {
		if (windows[i] && try->outcome == WINDOW_PASSED) {
			bool good = !gpu_copy(gpu, bytes, (void *)(uintptr_t)at[i], sizes[i]);

			window_expect(try,
				      good && pattern_check(bytes, sizes[i], 0, i) == PATTERN_RIGHT,
				      "a buffer of %llu bytes has wrong data", (ull)sizes[i]);
		}
		if (windows[i])
			window_close_in(try, windows[i]);
		if (raw && at[i])
			gpu->cuMemFree(at[i]);
	}
	gpu_leave(gpu);
}

#define AREA 8192u /* bytes that are compared */

/* Copy one length from every offset of a cache line, in both directions; the host has other
 * offsets. */
static bool data_each_offset(struct window_try *try, struct wh_window *window, uint64_t length,
			     unsigned char *seen, unsigned char *mine)
{
	struct gpu *gpu = try->fixture.gpu;

	for (uint64_t at = 0; at <= 64; at++) {
		uint64_t number = window_fresh(), host = at * 7 % 64, start = 128 + at;

		pattern_fill(seen, AREA, 0, number);
		if (!window_expect(try, !gpu_copy(gpu, try->fixture.address, seen, AREA), "%s",
				   gpu->text))
			return false;
		memset(mine, 0, AREA);
		window_called(try, wh_window_copy_from(window, start, mine + host, length),
			      "wh_window_copy_from");
		window_expect(try,
			      !memcmp(mine + host, seen + start, length) && !mine[host + length] &&
				      (!host || !mine[host - 1]),
			      "%llu bytes read at offset %llu are wrong", (ull)length, (ull)start);
		pattern_fill(mine + host, length, 0, window_fresh());
		memcpy(seen + start, mine + host, length);
		window_called(try, wh_window_copy_to(window, start, mine + host, length),
			      "wh_window_copy_to");
		window_called(try, wh_window_flush(window), "wh_window_flush");
		if (!window_expect(try, !gpu_copy(gpu, mine, try->fixture.address, AREA), "%s",
				   gpu->text))
			return false;
		if (!window_expect(
			    try, !memcmp(mine, seen, AREA),
			    "%llu bytes written at offset %llu, or bytes beside them, are wrong",
			    (ull)length, (ull)start))
			return false;
	}
	return try->outcome == WINDOW_PASSED;
}

static void case_data(struct window_try *try)
{
	static const uint16_t lengths[] = {
		0,  1,  2,  3,  4,  5,  7,   8,   9,   15,   16,   17,
		31, 32, 33, 63, 64, 65, 127, 128, 129, 1023, 4096, 4097
	};
	unsigned char *both = calloc(2, AREA);
	struct wh_window *window;

	if (window_expect(try, both, "no memory") && window_open_in(try, 0, AREA, &window)) {
		for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
			if (!data_each_offset(try, window, lengths[i], both, both + AREA))
				break;
		window_close_in(try, window);
	}
	free(both);
}

/* The kernel writes into a window, as in recv(). */
static void case_system_call(struct window_try *try)
{
	unsigned char sent[4096], got[4096];
	struct wh_window_info info;
	struct wh_window *window;
	uint64_t number = window_fresh();
	int ends[2];

	if (!window_open_in(try, 4097, sizeof(sent), &window))
		return;
	info = window_info_of(try, window);
	if (!info.pointer) {
		window_waive(try, "staged: no pointer for a system call");
	} else if (window_expect(try, !pipe(ends), "pipe: %s", strerror(errno))) {
		pattern_fill(sent, sizeof(sent), 0, number);
		window_expect(try,
			      write(ends[1], sent, sizeof(sent)) == (ssize_t)sizeof(sent) &&
				      read(ends[0], info.pointer, sizeof(sent)) ==
					      (ssize_t)sizeof(sent),
			      "read() into the window: %s", strerror(errno));
		window_called(try, wh_window_flush(window), "wh_window_flush");
		window_expect(try,
			      !gpu_copy(try->fixture.gpu, got, try->fixture.address + 4097,
					sizeof(got)) &&
				      pattern_check(got, sizeof(got), 0, number) == PATTERN_RIGHT,
			      "CUDA does not see what read() has written into the window");
		close(ends[0]);
		close(ends[1]);
	}
	window_close_in(try, window);
}

/* ---- bounds and options ---------------------------------------------------------------------- */

static void bounds_refused(struct window_try *try, uint64_t address, uint64_t length,
			   const char *what)
{
	struct wh_window_options options = { .size = sizeof(options),
					     .backends = try->fixture.choices->backend };
	struct wh_window *window = NULL;
	int error = wh_window_open(try->fixture.engine, (void *)(uintptr_t)address, length,
				   &options, &window);

	if (!window_expect(try, error, "a window on %s was opened", what))
		wh_window_close(window);
	else
		window_expect(try, *wh_error_text(), "%s is refused without a reason", what);
}

static void case_bounds(struct window_try *try)
{
	uint64_t base = (uintptr_t)try->fixture.address, length = try->fixture.length;
	static char on_host[4096];
	struct wh_window *window;
	char bytes[16] = "";

	bounds_refused(try, base, 0, "no bytes");
	bounds_refused(try, base, UINT64_MAX - 4096, "a range that wraps around the address space");
	bounds_refused(try, base, UINT64_C(1) << 50, "more bytes than the memory has");
	bounds_refused(try, (uintptr_t)on_host, sizeof(on_host), "memory of the host");
	bounds_refused(try, 0, 4096, "NULL");
	if (!window_open_in(try, 0, length, &window))
		return;
	window_expect(try,
		      wh_window_copy_to(window, length, bytes, 1) == -EINVAL &&
			      wh_window_copy_to(window, length - 15, bytes, 16) == -EINVAL &&
			      wh_window_copy_to(window, UINT64_MAX, bytes, 16) == -EINVAL,
		      "a write past the window's end is not refused");
	window_expect(try,
		      wh_window_copy_from(window, length, bytes, 1) == -EINVAL &&
			      wh_window_copy_from(window, 8, bytes, length) == -EINVAL,
		      "a read past the window's end is not refused");
	window_expect(try,
		      !wh_window_copy_to(window, length, bytes, 0) &&
			      !wh_window_copy_from(window, length, bytes, 0),
		      "a copy of 0 bytes is refused");
	window_close_in(try, window);
}

static void case_attributes(struct window_try *try)
{
	struct wh_window_options options = { .size = sizeof(options),
					     .backends = try->fixture.choices->backend };
	struct wh_window_info info;
	struct wh_window *window;
	int error;

	/* Keep one open, so that mapping types that exclude each other meet on the same pages. */
	if (!window_open_in(try, 0, try->fixture.length, &window))
		return;
	info = window_info_of(try, window);
	window_expect(try, strstr(info.said, info.backend), "'%s' does not name the backend",
		      info.said);
	window_expect(try, !info.pointer == (info.mapping == WH_WINDOW_STAGED),
		      "a mapping of type %u at %p", info.mapping, info.pointer);
	for (uint32_t mapping = WH_WINDOW_WC; mapping <= WH_WINDOW_DEVICE + 1; mapping++) {
		struct wh_window *other = NULL;

		options.mapping = mapping;
		error = wh_window_open(try->fixture.engine, try->fixture.address, 4096, &options,
				       &other);
		if (mapping > WH_WINDOW_DEVICE)
			window_expect(try, error == -EINVAL, "a mapping of type %u gives %d",
				      mapping, error);
		else if (info.pointer)
			window_expect(
				try,
				error != -EINVAL &&
					(error || mapping == window_info_of(try, other).mapping),
				"a %s mapping was requested, another one was made",
				window_mapping_name(mapping));
		if (info.mapping == mapping)
			window_called(try, error, "requesting the type that it has");
		if (!error)
			window_close_in(try, other);
	}
	window_close_in(try, window);
}

/* ---- several windows ------------------------------------------------------------------------- */

static void case_two_windows(struct window_try *try)
{
	struct wh_window *a = NULL, *b = NULL, *c = NULL;
	unsigned char sent[3000], got[3000];

	if (!window_open_in(try, 0, 256 * KIB, &a) ||
	    !window_open_in(try, 100 * KIB, 400 * KIB, &b) ||
	    !window_open_in(try, 0, 256 * KIB, &c))
		return;
	pattern_fill(sent, sizeof(sent), 0, window_fresh());
	window_called(try, wh_window_copy_to(a, 101 * KIB + 5, sent, sizeof(sent)),
		      "wh_window_copy_to");
	window_called(try, wh_window_copy_from(b, KIB + 5, got, sizeof(got)),
		      "wh_window_copy_from");
	window_expect(try, !memcmp(sent, got, sizeof(got)),
		      "one window does not show what another one wrote");
	/* Close the first one first: windows that share its mapping keep it. */
	window_close_in(try, a);
	window_round_trip(try, c, 0, 777, 100001);
	window_round_trip(try, b, 100 * KIB, 777, 300001);
	window_close_in(try, c);
	window_round_trip(try, b, 100 * KIB, 3, 300001);
	window_close_in(try, b);
}

#define THREADS 4
#define ROUNDS 8

struct worker {
	struct window_try try; /* of this thread */
	pthread_t thread;
	uint64_t offset, length;
	struct wh_window *kept; /* opened here, closed by the main thread */
};

static void *worker_run(void *arg)
{
	struct worker *w = arg;
	struct wh_window *window;

	for (int i = 0; i < ROUNDS && w->try.outcome == WINDOW_PASSED; i++) {
		if (!window_open_in(&w->try, w->offset, w->length, &window))
			break;
		window_round_trip(&w->try, window, w->offset, (uint64_t)i * 100, w->length / 4);
		window_close_in(&w->try, window);
	}
	if (w->try.outcome == WINDOW_PASSED)
		window_open_in(&w->try, w->offset, w->length, &w->kept);
	return NULL;
}

/* Each thread opens, uses and closes windows; this thread uses and closes the last ones. */
static void case_child_threads(struct window_try *try)
{
	struct worker workers[THREADS];
	uint64_t length = try->fixture.length / THREADS;
	int started = 0;

	for (int i = 0; i < THREADS; i++) {
		struct worker *w = &workers[i];

		*w = (struct worker){ .try = *try,
				      .offset = (uint64_t)i * length,
				      .length = length };
		if (!window_expect(try, !pthread_create(&w->thread, NULL, worker_run, w),
				   "no thread"))
			break;
		started++;
	}
	for (int i = 0; i < started; i++) {
		struct worker *w = &workers[i];

		pthread_join(w->thread, NULL);
		window_expect(try, w->try.outcome == WINDOW_PASSED, "thread %d: %s", i,
			      w->try.text);
		if (w->kept) {
			window_round_trip(try, w->kept, w->offset, 0, w->length);
			window_close_in(try, w->kept);
		}
	}
}

/* ---- closed and freed ----------------------------------------------------------------------- */

static void case_after_close(struct window_try *try)
{
	struct wh_window_info info;
	struct wh_window *window;

	for (int i = 0; i < 3; i++) {
		if (!window_open_in(try, 0, try->fixture.length, &window))
			return;
		info = window_info_of(try, window);
		window_expect(try, !info.pointer || window_reachable(info.pointer),
			      "an open window cannot be read");
		window_close_in(try, window);
		if (!info.pointer)
			window_waive(try, "staged: no pointer that could stay mapped");
		else
			window_expect(
				try,
				!window_reachable(info.pointer) &&
					!window_reachable((char *)info.pointer + info.length - 1),
				"a closed window can still be read");
	}
}

/* Free the test's memory. */
static bool memory_free(struct window_try *try)
{
	int error = wh_memory_free(try->fixture.engine, try->fixture.address);

	try->fixture.address = NULL;
	return window_called(try, error, "freeing memory that has a window");
}

/* Use a window on freed memory: it shows the old bytes, and writes damage no other memory. CUDA may
 * also have given the same memory to a new allocation; then the window shows that one. */
static void freed_use(struct window_try *try, struct wh_window *window, uint64_t before,
		      uint64_t after)
{
	unsigned char bytes[64];

	window_called(try, wh_window_copy_from(window, 0, bytes, sizeof(bytes)),
		      "wh_window_copy_from");
	if (pattern_check(bytes, sizeof(bytes), 0, after) == PATTERN_RIGHT)
		return;
	window_expect(try, pattern_check(bytes, sizeof(bytes), 0, before) == PATTERN_RIGHT,
		      "a window on freed memory shows neither the old nor the new data");
	memset(bytes, 0x5a, sizeof(bytes));
	window_called(try, wh_window_copy_to(window, 0, bytes, sizeof(bytes)), "wh_window_copy_to");
	window_called(try, wh_window_flush(window), "wh_window_flush");
}

/* The window keeps the memory, or faults. */
static void case_after_free(struct window_try *try)
{
	struct window_fixture *fixture = &try->fixture;
	uint64_t before = window_fresh(), after = window_fresh();
	unsigned char *host = memory_fill(try, before), bytes[64] = "";
	uint64_t freed = (uintptr_t)fixture->address;
	struct wh_window_info info;
	struct wh_window *window;
	void *again = NULL;

	if (!host || !window_open_in(try, 0, fixture->length, &window))
		goto end;
	info = window_info_of(try, window);
	if (!memory_free(try))
		goto end;
	/* A pool may keep freed memory. */
	if (fixture->memory->kind != WH_MEMORY_POOL)
		bounds_refused(try, freed, 4096, "memory that was freed");
	if (!window_called(try,
			   memory_alloc(fixture->engine, fixture->memory, fixture->length, &again),
			   "allocating again"))
		goto end;
	fixture->address = again;
	pattern_fill(host, fixture->length, 0, after);
	window_expect(try, !gpu_copy(fixture->gpu, again, host, fixture->length), "%s",
		      fixture->gpu->text);
	if (!info.pointer) {
		window_expect(try,
			      wh_window_copy_from(window, 0, bytes, sizeof(bytes)) == -EFAULT &&
				      wh_window_copy_to(window, 0, host, 64) == -EFAULT,
			      "a staged window on freed memory still copies");
	} else if (window_reachable(info.pointer)) {
		freed_use(try, window, before, after);
	}
	memory_same(try, host, "a write through a window on freed memory");
	window_close_in(try, window);
	/* A new window shows the new memory. */
	if (window_open_in(try, 0, fixture->length, &window)) {
		window_round_trip(try, window, 0, 0, fixture->length);
		window_close_in(try, window);
	}
end:
	free(host);
}

/* ---- leaks ---------------------------------------------------------------------------- */

#define REFCOUNT "/proc/driver/gdrdrv/nv_get_pages_refcount"

struct held {
	unsigned descriptors, mappings;
	long pages; /* held by the kernel module; -1: unknown */
};

static struct held held_count(void)
{
	struct held held = { .pages = -1 };
	DIR *directory = opendir("/proc/self/fd");
	FILE *file = fopen("/proc/self/maps", "re");
	char line[512];

	while (directory && readdir(directory))
		held.descriptors++;
	if (directory)
		closedir(directory);
	while (file && fgets(line, sizeof(line), file))
		held.mappings++;
	if (file)
		fclose(file);
	file = fopen(REFCOUNT, "re");
	if (file && fgets(line, sizeof(line), file))
		held.pages = strtol(line, NULL, 10);
	if (file)
		fclose(file);
	return held;
}

#define REPEATS 50
/* Engine and driver may open some for themselves. */
#define SLACK 10

static void case_leakage(struct window_try *try)
{
	struct wh_window *window[3];
	struct held before = { 0 }, after;

	for (int i = 0; i <= REPEATS; i++) {
		if (i == 1)
			before = held_count();
		for (int j = 0; j < 3; j++)
			if (!window_open_in(try, (uint64_t)j * 100000 + (uint64_t)i, 200000,
					    &window[j]))
				return;
		for (int j = 0; j < 3; j++)
			window_close_in(try, window[(i + j) % 3]);
	}
	after = held_count();
	window_expect(try, after.descriptors <= before.descriptors + SLACK,
		      "%u descriptors, %d more windows later %u", before.descriptors, 3 * REPEATS,
		      after.descriptors);
	window_expect(try, after.mappings <= before.mappings + SLACK,
		      "%u mappings, %d more windows later %u", before.mappings, 3 * REPEATS,
		      after.mappings);
	/* Other processes may pin, too, but not that much. */
	window_expect(try, after.pages < before.pages + REPEATS,
		      "the kernel module held %ld ranges, %d more windows later %ld", before.pages,
		      3 * REPEATS, after.pages);
}

const struct window_case window_cases[] = {
	{ "basic", "copies and plain accesses, in both directions", case_basic },
	{ "unaligned", "windows at any address, of any length, change no other byte",
	  case_unaligned },
	{ "small", "buffers of a few bytes, several in one page", case_small },
	{ "data", "every offset in a cache line, many lengths, no other byte changed", case_data },
	{ "system-call", "the kernel reads a pipe into a window", case_system_call },
	{ "bounds", "other memory, and accesses past the end, are refused", case_bounds },
	{ "attributes", "a window reports the truth; types of mapping", case_attributes },
	{ "two-windows", "windows on the same memory, closed in any order", case_two_windows },
	{ "child-threads", "several threads open, use and close windows", case_child_threads },
	{ "after-close", "a closed window is no longer mapped", case_after_close },
	{ "after-free", "after a free the window keeps the memory or faults; no new window opens",
	  case_after_free },
	{ "leakage", "150 windows leave no descriptor, mapping or pinned page", case_leakage },
	{ 0 },
};
