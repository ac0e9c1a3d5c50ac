/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every way of copying that this CPU has, on ordinary memory: every length from 0 to 4,097 at every
 * alignment of the window, every alignment of the other side, and nothing touched beside. Needs no
 * test library, so that it can be compiled for and run as another processor.
 *
 *   copy          each length and alignment of the window with some alignments of the other side,
 *                 and all of both with lengths up to two lines and a bit
 *   copy --all    each length with each alignment of both sides; takes minutes
 *   copy --quick  every ninth length only, of the longer ones; for instrumented builds
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "window/copy.h"

#define LONGEST 4097
#define PAGES 16384 /* bytes of each side: margins, alignment and length */
#define MARGIN 128
#define GUARD 0xa5

static unsigned char *window, *host;
static unsigned char pattern[LONGEST + 256];
static unsigned failures;
static bool all, quick;

static bool is_guard(const unsigned char *at, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		if (at[i] != GUARD)
			return false;
	}
	return true;
}

static void report_failure(const char *what, const char *name, size_t window_at, size_t host_at,
			   size_t length)
{
	if (failures++ < 10)
		printf("%s %s: %zu bytes, window at %zu, other side at %zu: wrong bytes\n", what,
		       name, length, window_at, host_at);
}

/* Check the bytes and the margins around them. The copy cannot have reached the rest of the guards.
 */
static bool copy_arrived(const unsigned char *at, const unsigned char *expected, size_t length)
{
	return !memcmp(at, expected, length) && is_guard(at - MARGIN, MARGIN) &&
	       is_guard(at + length, MARGIN);
}

static void put_one(const struct wh_copy_way *way, size_t window_at, size_t host_at, size_t length)
{
	const unsigned char *from = pattern + host_at;
	unsigned char *to = window + MARGIN + window_at;

	way->put(to, from, length);
	wh_copy_issued();
	if (!copy_arrived(to, from, length))
		report_failure("put", way->name, window_at, host_at, length);
	memset(to, GUARD, length);
}

static void get_one(const struct wh_copy_way *way, size_t window_at, size_t host_at, size_t length)
{
	unsigned char *to = host + MARGIN + host_at;

	wh_copy_before_get();
	way->get(to, window + window_at, length);
	wh_copy_after_get();
	if (!copy_arrived(to, pattern + window_at, length))
		report_failure("get", way->name, window_at, host_at, length);
	memset(to, GUARD, length);
}

typedef void one(const struct wh_copy_way *way, size_t window_at, size_t host_at, size_t length);

static void each_alignment(one *copy, const struct wh_copy_way *way)
{
	for (size_t length = 0; length <= LONGEST; length++) {
		if (quick && length > WH_COPY_LINE + 8 && length % 9)
			continue;
		for (size_t at = 0; at < WH_COPY_LINE; at++) {
			/* Short lengths: every alignment of the other side. Longer ones: one
			 * alignment, a different one each time. */
			bool full = all || (!quick && length <= 2 * WH_COPY_LINE + 8);
			size_t first = full ? 0 : (length + at) % WH_COPY_LINE;

			for (size_t other = first; other < (full ? WH_COPY_LINE : first + 1);
			     other++)
				copy(way, at, other, length);
		}
	}
}

/* True if this CPU has the instructions that `way` needs. */
static bool is_supported(const struct wh_copy_way *way)
{
	return (way->needs & wh_copy_cpu()) == way->needs;
}

static void print_verdict(const char *what, const char *name)
{
	printf("%s %s__%s\n", failures ? "[  FAILED  ]" : "[       OK ]", what, name);
	fflush(stdout);
}

static unsigned run_each(void)
{
	unsigned failed = 0;

	for (const struct wh_copy_way *way = wh_copy_puts; way->name; way++) {
		if (!is_supported(way)) {
			printf("put %s: this CPU has it not\n", way->name);
			continue;
		}
		failures = 0;
		memset(window, GUARD, PAGES);
		each_alignment(put_one, way);
		print_verdict("put", way->name);
		failed += failures;
	}
	for (const struct wh_copy_way *way = wh_copy_gets; way->name; way++) {
		if (!is_supported(way)) {
			printf("get %s: this CPU has it not\n", way->name);
			continue;
		}
		failures = 0;
		memset(host, GUARD, PAGES);
		memset(window, 0, PAGES);
		memcpy(window, pattern, sizeof(pattern));
		each_alignment(get_one, way);
		print_verdict("get", way->name);
		failed += failures;
	}
	return failed;
}

/* ---- small accesses are one access ----------------------------------------------------------- */

static _Atomic bool stop;

struct tearing {
	const struct wh_copy_way *way;
	size_t width;
};

/* Write all ones and all zeroes in turn. */
static void *tearing_writer(void *arg)
{
	const struct tearing *t = arg;
	unsigned char values[2][8];

	memset(values[0], 0, 8);
	memset(values[1], 0xff, 8);
	for (unsigned i = 0; !stop; i++)
		t->way->put(window + 4096 - t->width, values[i & 1], t->width);
	return NULL;
}

static bool value_whole(const unsigned char *value, size_t width)
{
	for (size_t i = 1; i < width; i++) {
		if (value[i] != value[0])
			return false;
	}
	return true;
}

static void check_tearing(const struct wh_copy_way *put, const struct wh_copy_way *get,
			  size_t width)
{
	struct tearing t = { put, width };
	unsigned char value[8];
	pthread_t thread;

	memset(window, 0, PAGES);
	stop = false;
	if (pthread_create(&thread, NULL, tearing_writer, &t)) {
		failures++;
		return;
	}
	for (int i = 0; i < 20000; i++) {
		get->get(value, window + 4096 - width, width);
		if (!value_whole(value, width))
			report_failure("tear", get->name, 4096 - width, 0, width);
	}
	stop = true;
	pthread_join(thread, NULL);
}

static unsigned run_tearing(void)
{
	unsigned failed = 0;

	for (int mapping = WH_MAPPING_WC; mapping <= WH_MAPPING_DEVICE; mapping++) {
		struct wh_copy copy = wh_copy_choose(wh_copy_cpu(), (enum wh_mapping)mapping);
		char name[64];

		failures = 0;
		for (size_t width = 2; width <= 8; width *= 2)
			check_tearing(copy.put, copy.get, width);
		snprintf(name, sizeof(name), "%s_%s", copy.put->name, copy.get->name);
		print_verdict("one_access", name);
		failed += failures;
	}
	return failed;
}

/* ---- choosing -------------------------------------------------------------------------------- */

static void expect_choice(struct wh_copy copy, const char *put, const char *get)
{
	if (strcmp(copy.put->name, put) != 0 || strcmp(copy.get->name, get) != 0) {
		printf("chose %s and %s, not %s and %s\n", copy.put->name, copy.get->name, put,
		       get);
		failures++;
	}
}

static unsigned run_choose(void)
{
	failures = 0;
	expect_choice(wh_copy_choose(0, WH_MAPPING_WC), "natural", "natural");
	expect_choice(wh_copy_choose(0, WH_MAPPING_DEVICE), "natural", "natural");
	expect_choice(wh_copy_choose(0, WH_MAPPING_NONE), "natural", "natural");
	expect_choice(wh_copy_choose(UINT32_MAX, WH_MAPPING_CACHED), "memcpy", "memcpy");
#if defined(__x86_64__)
	expect_choice(wh_copy_choose(UINT32_MAX, WH_MAPPING_DEVICE), "natural", "natural");
	expect_choice(wh_copy_choose(WH_COPY_CPU_SSE41, WH_MAPPING_WC), "sse4.1", "sse4.1");
	expect_choice(wh_copy_choose(WH_COPY_CPU_SSE41 | WH_COPY_CPU_AVX2, WH_MAPPING_WC), "avx2",
		      "avx2");
	expect_choice(wh_copy_choose(WH_COPY_CPU_SSE41 | WH_COPY_CPU_MOVDIR64B, WH_MAPPING_WC),
		      "movdir64b", "sse4.1");
	expect_choice(wh_copy_choose(WH_COPY_CPU_AVX2 | WH_COPY_CPU_AVX512, WH_MAPPING_WC),
		      "avx512", "avx512");
#elif defined(__aarch64__)
	expect_choice(wh_copy_choose(WH_COPY_CPU_NEON, WH_MAPPING_WC), "neon", "neon");
	expect_choice(wh_copy_choose(WH_COPY_CPU_NEON, WH_MAPPING_DEVICE), "natural", "natural");
	expect_choice(wh_copy_choose(UINT32_MAX, WH_MAPPING_DEVICE), "ls64", "ls64");
#endif
	print_verdict("choose", "by_cpu");
	return failures;
}

static unsigned char *map_pages(void)
{
	void *at = mmap(NULL, PAGES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	return at;
}

int main(int argc, char **argv)
{
	unsigned failed;

	all = argc > 1 && !strcmp(argv[1], "--all");
	quick = argc > 1 && !strcmp(argv[1], "--quick");
	window = map_pages();
	host = map_pages();
	for (size_t i = 0; i < sizeof(pattern); i++)
		pattern[i] = (unsigned char)(i * 7 + i / 251);
	failed = run_choose() + run_each() + run_tearing();
	return failed ? 1 : 0;
}
