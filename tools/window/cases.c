/* SPDX-License-Identifier: Apache-2.0 */
/* What wherry window check does within one process: bytes, bounds, several windows, what is closed
 * and what is freed, and that nothing is left behind. */
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

/* The memory of the whole test with a pattern in it; NULL: that failed. */
static unsigned char *fill_place(struct window_try *try, uint64_t number)
{
	unsigned char *host = calloc(1, try->place.length);

	if (!window_expect(try, host, "no memory"))
		return NULL;
	pattern_fill(host, try->place.length, 0, number);
	if (window_expect(try,
			  !gpu_copy(try->place.gpu, try->place.address, host, try->place.length),
			  "%s", try->place.gpu->text))
		return host;
	free(host);
	return NULL;
}

/* Does the memory have what `host` has? */
static bool same_place(struct window_try *try, const unsigned char *host, const char *after)
{
	unsigned char *got = calloc(1, try->place.length);
	uint64_t at = 0, length = try->place.length;
	bool good = window_expect(try, got, "no memory") &&
		    window_expect(try, !gpu_copy(try->place.gpu, got, try->place.address, length),
				  "%s", try->place.gpu->text);

	while (good && at < length && got[at] == host[at])
		at++;
	good = good && window_expect(try, at == length, "byte %llu of the memory is wrong after %s",
				     (ull)at, after);
	free(got);
	return good;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static void basic(struct window_try *try)
{
	struct window_place *place = &try->place;
	struct wh_window_info info;
	struct wh_window *window;
	uint64_t value = UINT64_C(0x0123456789abcdef), got = 0;

	if (!window_open_in(try, 0, place->length, &window))
		return;
	info = window_info_of(try, window);
	window_expect(try,
		      info.address == (uintptr_t)place->address && info.length == place->length,
		      "the window says that it is of %llu bytes at 0x%llx", (ull)info.length,
		      (ull)info.address);
	window_expect(try,
		      !place->choices->backend || !strcmp(info.backend, place->choices->backend),
		      "made by '%s'", info.backend);
	window_round_trip(try, window, 0, 0, place->length);
	if (info.pointer) {
		volatile uint64_t *at = (volatile uint64_t *)info.pointer + 100;

		*at = value;
		window_called(try, wh_window_flush(window), "wh_window_flush");
		window_expect(try, *at == value, "a load does not give what was stored");
		window_expect(try,
			      !gpu_copy(place->gpu, &got, place->address + 800, 8) && got == value,
			      "a plain store is not seen by CUDA");
	}
	window_close_in(try, window);
}

/* Windows that begin and end anywhere, and write nothing beside what they are told. */
static void unaligned(struct window_try *try)
{
	static const uint64_t starts[] = { 1,    3,     8,     63,     100,   4095,
					   4097, 65535, 65537, 131071, 200001 };
	static const uint64_t lengths[] = { 1, 2, 7, 64, 129, 4097, 65537 };
	uint64_t number = window_fresh();
	unsigned char *host = fill_place(try, number);
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
	same_place(try, host, "writes through windows at odd addresses");
end:
	free(host);
}

#define SMALL 12

/* Allocations of a few bytes, many of which lie in one page of the GPU. */
static void small(struct window_try *try)
{
	static const uint64_t sizes[SMALL] = {
		1, 4, 8, 16, 100, 256, 300, 1000, 4095, 4096, 5000, 9
	};
	struct wh_window_options options = { .size = sizeof(options),
					     .backends = try->place.choices->backend };
	struct wh_window *windows[SMALL] = { 0 };
	struct gpu *gpu = try->place.gpu;
	uint64_t at[SMALL] = { 0 };
	unsigned char bytes[5000];
	bool raw = try->place.memory->kind == WH_MEMORY_DEVICE;
	size_t i;

	window_expect(try, !gpu_enter(gpu, try->place.device), "%s", gpu->text);
	for (i = 0; i < SMALL && try->outcome == WINDOW_PASSED; i++) {
		/* Other kinds have no small ones: places of one block do. */
		at[i] = (uintptr_t)try->place.address + i * 8 * KIB + i;
		if (raw)
			window_expect(try, !gpu_call(gpu, cuMemAlloc, &at[i], sizes[i]), "%s",
				      gpu->text);
		if (try->outcome == WINDOW_PASSED)
			window_called(try,
				      wh_window_open(try->place.engine, (void *)(uintptr_t)at[i],
						     sizes[i], &options, &windows[i]),
				      "a window onto a small buffer");
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
				      "a buffer of %llu bytes has others", (ull)sizes[i]);
		}
		if (windows[i])
			window_close_in(try, windows[i]);
		if (raw && at[i])
			gpu->cuMemFree(at[i]);
	}
	gpu_leave(gpu);
}

#define AREA 8192u /* around what is copied */

/* One length from every offset of a line, in both directions, the host's side at another offset. */
static bool each_offset(struct window_try *try, struct wh_window *window, uint64_t length,
			unsigned char *seen, unsigned char *mine)
{
	struct gpu *gpu = try->place.gpu;

	for (uint64_t at = 0; at <= 64; at++) {
		uint64_t number = window_fresh(), host = at * 7 % 64, place = 128 + at;

		pattern_fill(seen, AREA, 0, number);
		if (!window_expect(try, !gpu_copy(gpu, try->place.address, seen, AREA), "%s",
				   gpu->text))
			return false;
		memset(mine, 0, AREA);
		window_called(try, wh_window_copy_from(window, place, mine + host, length),
			      "wh_window_copy_from");
		window_expect(try,
			      !memcmp(mine + host, seen + place, length) && !mine[host + length] &&
				      (!host || !mine[host - 1]),
			      "%llu bytes read at offset %llu are wrong", (ull)length, (ull)place);
		pattern_fill(mine + host, length, 0, window_fresh());
		memcpy(seen + place, mine + host, length);
		window_called(try, wh_window_copy_to(window, place, mine + host, length),
			      "wh_window_copy_to");
		window_called(try, wh_window_flush(window), "wh_window_flush");
		if (!window_expect(try, !gpu_copy(gpu, mine, try->place.address, AREA), "%s",
				   gpu->text))
			return false;
		if (!window_expect(
			    try, !memcmp(mine, seen, AREA),
			    "%llu bytes written at offset %llu, or what is beside them, are wrong",
			    (ull)length, (ull)place))
			return false;
	}
	return try->outcome == WINDOW_PASSED;
}

static void data(struct window_try *try)
{
	static const uint16_t lengths[] = {
		0,  1,  2,  3,  4,  5,  7,   8,   9,   15,   16,   17,
		31, 32, 33, 63, 64, 65, 127, 128, 129, 1023, 4096, 4097
	};
	unsigned char *both = calloc(2, AREA);
	struct wh_window *window;

	if (window_expect(try, both, "no memory") && window_open_in(try, 0, AREA, &window)) {
		for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
			if (!each_offset(try, window, lengths[i], both, both + AREA))
				break;
		window_close_in(try, window);
	}
	free(both);
}

/* As recv() does: the kernel copies, not this process. */
static void system_call(struct window_try *try)
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
		window_waive(try, "staged: there is no pointer for a system call");
	} else if (window_expect(try, !pipe(ends), "pipe: %s", strerror(errno))) {
		pattern_fill(sent, sizeof(sent), 0, number);
		window_expect(try,
			      write(ends[1], sent, sizeof(sent)) == (ssize_t)sizeof(sent) &&
				      read(ends[0], info.pointer, sizeof(sent)) ==
					      (ssize_t)sizeof(sent),
			      "read() into the window: %s", strerror(errno));
		window_called(try, wh_window_flush(window), "wh_window_flush");
		window_expect(
			try,
			!gpu_copy(try->place.gpu, got, try->place.address + 4097, sizeof(got)) &&
				pattern_check(got, sizeof(got), 0, number) == PATTERN_RIGHT,
			"what read() has put into the window, CUDA does not see");
		close(ends[0]);
		close(ends[1]);
	}
	window_close_in(try, window);
}

/* ---- bounds and options ---------------------------------------------------------------------- */

static void refused(struct window_try *try, uint64_t address, uint64_t length, const char *what)
{
	struct wh_window_options options = { .size = sizeof(options),
					     .backends = try->place.choices->backend };
	struct wh_window *window = NULL;
	int error = wh_window_open(try->place.engine, (void *)(uintptr_t)address, length, &options,
				   &window);

	if (!window_expect(try, error, "a window onto %s was opened", what))
		wh_window_close(window);
	else
		window_expect(try, *wh_error_text(), "%s is refused without a reason", what);
}

static void bounds(struct window_try *try)
{
	uint64_t base = (uintptr_t)try->place.address, length = try->place.length;
	static char on_host[4096];
	struct wh_window *window;
	char bytes[16] = "";

	refused(try, base, 0, "no bytes");
	refused(try, base, UINT64_MAX - 4096, "what goes around the end of all addresses");
	refused(try, base, UINT64_C(1) << 50, "more than the memory has");
	refused(try, (uintptr_t)on_host, sizeof(on_host), "memory of the host");
	refused(try, 0, 4096, "NULL");
	if (!window_open_in(try, 0, length, &window))
		return;
	window_expect(try,
		      wh_window_copy_to(window, length, bytes, 1) == -EINVAL &&
			      wh_window_copy_to(window, length - 15, bytes, 16) == -EINVAL &&
			      wh_window_copy_to(window, UINT64_MAX, bytes, 16) == -EINVAL,
		      "a write over the window's end is not refused");
	window_expect(try,
		      wh_window_copy_from(window, length, bytes, 1) == -EINVAL &&
			      wh_window_copy_from(window, 8, bytes, length) == -EINVAL,
		      "a read over the window's end is not refused");
	window_expect(try,
		      !wh_window_copy_to(window, length, bytes, 0) &&
			      !wh_window_copy_from(window, length, bytes, 0),
		      "a copy of 0 bytes is refused");
	window_close_in(try, window);
}

static void attributes(struct window_try *try)
{
	struct wh_window_options options = { .size = sizeof(options),
					     .backends = try->place.choices->backend };
	struct wh_window_info info;
	struct wh_window *window;
	int error;

	/* One is open all the time, so that types that cannot be on one page at once meet. */
	if (!window_open_in(try, 0, try->place.length, &window))
		return;
	info = window_info_of(try, window);
	window_expect(try, strstr(info.said, info.backend), "'%s' does not say who made it",
		      info.said);
	window_expect(try, !info.pointer == (info.mapping == WH_WINDOW_STAGED),
		      "a mapping of type %u at %p", info.mapping, info.pointer);
	for (uint32_t mapping = WH_WINDOW_WC; mapping <= WH_WINDOW_DEVICE + 1; mapping++) {
		struct wh_window *other = NULL;

		options.mapping = mapping;
		error = wh_window_open(try->place.engine, try->place.address, 4096, &options,
				       &other);
		if (mapping > WH_WINDOW_DEVICE)
			window_expect(try, error == -EINVAL, "a mapping of type %u gives %d",
				      mapping, error);
		else if (info.pointer)
			window_expect(
				try,
				error != -EINVAL &&
					(error || mapping == window_info_of(try, other).mapping),
				"asked for a %s mapping, it is another one",
				window_mapping_name(mapping));
		if (info.mapping == mapping)
			window_called(try, error, "asking for the type that it has");
		if (!error)
			window_close_in(try, other);
	}
	window_close_in(try, window);
}

/* ---- several windows ------------------------------------------------------------------------- */

static void two_windows(struct window_try *try)
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
		      "what one window wrote, another one does not show");
	/* The first one first: whoever shares its mapping keeps it. */
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
	struct window_try try; /* its own */
	pthread_t thread;
	uint64_t offset, length;
	struct wh_window *kept; /* opened here, for the others to close */
};

static void *work(void *arg)
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

/* Each thread opens, uses and closes; what they leave open is used and closed here. */
static void child_threads(struct window_try *try)
{
	struct worker workers[THREADS];
	uint64_t length = try->place.length / THREADS;
	int started = 0;

	for (int i = 0; i < THREADS; i++) {
		struct worker *w = &workers[i];

		*w = (struct worker){ .try = *try,
				      .offset = (uint64_t)i * length,
				      .length = length };
		if (!window_expect(try, !pthread_create(&w->thread, NULL, work, w), "no thread"))
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

/* ---- what is gone ---------------------------------------------------------------------------- */

static void after_close(struct window_try *try)
{
	struct wh_window_info info;
	struct wh_window *window;

	for (int i = 0; i < 3; i++) {
		if (!window_open_in(try, 0, try->place.length, &window))
			return;
		info = window_info_of(try, window);
		window_expect(try, !info.pointer || window_reachable(info.pointer),
			      "an open window cannot be read");
		window_close_in(try, window);
		if (!info.pointer)
			window_waive(try, "staged: there is no pointer to be left behind");
		else
			window_expect(
				try,
				!window_reachable(info.pointer) &&
					!window_reachable((char *)info.pointer + info.length - 1),
				"a window that was closed can still be read");
	}
}

/* Free the place's memory. */
static bool free_memory(struct window_try *try)
{
	int error = wh_memory_free(try->place.engine, try->place.address);

	try->place.address = NULL;
	return window_called(try, error, "freeing memory that has a window");
}

/* The window shows the bytes from before, and writes where nobody else is. Or CUDA, which keeps
 * memory for itself that it is given back, has given the same out again. */
static void use_freed(struct window_try *try, struct wh_window *window, uint64_t before,
		      uint64_t after)
{
	unsigned char bytes[64];

	window_called(try, wh_window_copy_from(window, 0, bytes, sizeof(bytes)),
		      "wh_window_copy_from");
	if (pattern_check(bytes, sizeof(bytes), 0, after) == PATTERN_RIGHT)
		return;
	window_expect(
		try, pattern_check(bytes, sizeof(bytes), 0, before) == PATTERN_RIGHT,
		"a window onto freed memory shows neither what was there nor what is there now");
	memset(bytes, 0x5a, sizeof(bytes));
	window_called(try, wh_window_copy_to(window, 0, bytes, sizeof(bytes)), "wh_window_copy_to");
	window_called(try, wh_window_flush(window), "wh_window_flush");
}

/* It holds on to the memory, or faults. */
static void after_free(struct window_try *try)
{
	struct window_place *place = &try->place;
	uint64_t before = window_fresh(), after = window_fresh();
	unsigned char *host = fill_place(try, before), bytes[64] = "";
	uint64_t freed = (uintptr_t)place->address;
	struct wh_window_info info;
	struct wh_window *window;
	void *again = NULL;

	if (!host || !window_open_in(try, 0, place->length, &window))
		goto end;
	info = window_info_of(try, window);
	if (!free_memory(try))
		goto end;
	/* A pool may keep what it is given back. */
	if (place->memory->kind != WH_MEMORY_POOL)
		refused(try, freed, 4096, "memory that was freed");
	if (!window_called(try, memory_alloc(place->engine, place->memory, place->length, &again),
			   "allocating again"))
		goto end;
	place->address = again;
	pattern_fill(host, place->length, 0, after);
	window_expect(try, !gpu_copy(place->gpu, again, host, place->length), "%s",
		      place->gpu->text);
	if (!info.pointer) {
		window_expect(try,
			      wh_window_copy_from(window, 0, bytes, sizeof(bytes)) == -EFAULT &&
				      wh_window_copy_to(window, 0, host, 64) == -EFAULT,
			      "a staged window onto freed memory still copies");
	} else if (window_reachable(info.pointer)) {
		use_freed(try, window, before, after);
	}
	same_place(try, host, "a write through a window onto what was freed before");
	window_close_in(try, window);
	/* And a new one shows the new memory. */
	if (window_open_in(try, 0, place->length, &window)) {
		window_round_trip(try, window, 0, 0, place->length);
		window_close_in(try, window);
	}
end:
	free(host);
}

/* ---- what is left ---------------------------------------------------------------------------- */

#define REFCOUNT "/proc/driver/gdrdrv/nv_get_pages_refcount"

struct held {
	unsigned descriptors, mappings;
	long pages; /* that the kernel module holds; -1: not to be known */
};

static struct held count_held(void)
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
/* What an engine and a driver may take meanwhile, for themselves. */
#define SLACK 10

static void leakage(struct window_try *try)
{
	struct wh_window *window[3];
	struct held before = { 0 }, after;

	for (int i = 0; i <= REPEATS; i++) {
		if (i == 1)
			before = count_held();
		for (int j = 0; j < 3; j++)
			if (!window_open_in(try, (uint64_t)j * 100000 + (uint64_t)i, 200000,
					    &window[j]))
				return;
		for (int j = 0; j < 3; j++)
			window_close_in(try, window[(i + j) % 3]);
	}
	after = count_held();
	window_expect(try, after.descriptors <= before.descriptors + SLACK,
		      "%u descriptors, and after %d windows more %u", before.descriptors,
		      3 * REPEATS, after.descriptors);
	window_expect(try, after.mappings <= before.mappings + SLACK,
		      "%u mappings, and after %d windows more %u", before.mappings, 3 * REPEATS,
		      after.mappings);
	/* Others may pin as well, but not that much at just this time. */
	window_expect(try, after.pages < before.pages + REPEATS,
		      "the kernel module held %ld ranges, and after %d windows more %ld",
		      before.pages, 3 * REPEATS, after.pages);
}

const struct window_case window_cases[] = {
	{ "basic", "both directions, by copies and by plain accesses", basic },
	{ "unaligned", "windows at any address, of any length, touch nothing beside", unaligned },
	{ "small", "buffers of a few bytes, several in one page", small },
	{ "data", "every offset of a line and every kind of length, guards around", data },
	{ "system-call", "the kernel reads a pipe into a window", system_call },
	{ "bounds", "what is no GPU's memory is refused, and what is over the end", bounds },
	{ "attributes", "what it says of itself is true; types of mapping", attributes },
	{ "two-windows", "onto the same memory, closed in any order", two_windows },
	{ "child-threads", "opened, used and closed by several threads", child_threads },
	{ "after-close", "nothing is mapped any more", after_close },
	{ "after-free", "the window holds on to the memory, or faults; no new one opens",
	  after_free },
	{ "leakage", "150 windows leave no descriptor, mapping or pinned page", leakage },
	{ 0 },
};
