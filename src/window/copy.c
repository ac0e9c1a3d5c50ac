/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing how to copy, and the copies that need no special instructions. */
#include "window/copy.h"

#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

/* ---- natural widths -------------------------------------------------------------------------- */

/* One access to the window each. The other side may be unaligned, hence memcpy(). */
/* NOLINTBEGIN(bugprone-macro-parentheses): types */
#define STEP_PUT(type)                                                                             \
	do {                                                                                       \
		volatile type *at_ = (void *)to;                                                   \
		type value_;                                                                       \
		memcpy(&value_, from, sizeof(value_));                                             \
		*at_ = value_;                                                                     \
		to += sizeof(value_);                                                              \
		from += sizeof(value_);                                                            \
		length -= sizeof(value_);                                                          \
	} while (0)

#define STEP_GET(type)                                                                             \
	do {                                                                                       \
		const volatile type *at_ = (const void *)from;                                     \
		type value_ = *at_;                                                                \
		memcpy(to, &value_, sizeof(value_));                                               \
		to += sizeof(value_);                                                              \
		from += sizeof(value_);                                                            \
		length -= sizeof(value_);                                                          \
	} while (0)

/* NOLINTEND(bugprone-macro-parentheses) */

/* Copy up to a multiple of 8 on the window's side, then 8 bytes at a time, then the rest, in
 * descending widths, so that each access is aligned. */
#define NATURAL(step, window)                                                                      \
	do {                                                                                       \
		if ((uintptr_t)(window)&1 && length >= 1)                                          \
			step(uint8_t);                                                             \
		if ((uintptr_t)(window)&2 && length >= 2)                                          \
			step(uint16_t);                                                            \
		if ((uintptr_t)(window)&4 && length >= 4)                                          \
			step(uint32_t);                                                            \
		while (length >= 8)                                                                \
			step(uint64_t);                                                            \
		if (length & 4)                                                                    \
			step(uint32_t);                                                            \
		if (length & 2)                                                                    \
			step(uint16_t);                                                            \
		if (length & 1)                                                                    \
			step(uint8_t);                                                             \
	} while (0)

/* The program's threads may race on these bytes: a flag shared with a GPU is no C variable.
 */
#define RACES __attribute__((no_sanitize("thread")))

RACES void wh_copy_put_natural(void *window, const void *source, size_t length)
{
	const unsigned char *from = source;
	unsigned char *to = window;

	NATURAL(STEP_PUT, to);
}

RACES void wh_copy_get_natural(void *target, const void *window, size_t length)
{
	const unsigned char *from = window;
	unsigned char *to = target;

	NATURAL(STEP_GET, from);
}

/* ---- cached ---------------------------------------------------------------------------------- */

void wh_copy_put_cached(void *window, const void *from, size_t length)
{
	if (length <= 16)
		wh_copy_put_natural(window, from, length);
	else
		memcpy(window, from, length);
}

void wh_copy_get_cached(void *to, const void *window, size_t length)
{
	if (length <= 16)
		wh_copy_get_natural(to, window, length);
	else
		memcpy(to, window, length);
}

/* ---- lines ----------------------------------------------------------------------------------- */

void wh_copy_put_by(wh_copy_put_lines *lines, void *window, const void *source, size_t length)
{
	size_t head = -(uintptr_t)window % WH_COPY_LINE;
	const unsigned char *from = source;
	unsigned char *to = window;

	if (head > length)
		head = length;
	if (head) {
		wh_copy_put_natural(to, from, head);
		to += head;
		from += head;
		length -= head;
	}
	if (length >= WH_COPY_LINE) {
		size_t whole = length / WH_COPY_LINE * WH_COPY_LINE;

		lines(to, from, whole / WH_COPY_LINE);
		to += whole;
		from += whole;
		length -= whole;
	}
	if (length)
		wh_copy_put_natural(to, from, length);
}

static bool one_access(const void *window, size_t length)
{
	return length <= 8 && !(length & (length - 1)) && !((uintptr_t)window & (length - 1));
}

/* Copy `length` bytes of the line that contains `from`. */
static void get_part(wh_copy_get_lines *lines, unsigned char *to, const unsigned char *from,
		     size_t length)
{
	size_t skip = (uintptr_t)from % WH_COPY_LINE;
	unsigned char line[WH_COPY_LINE];

	lines(line, from - skip, 1);
	memcpy(to, line + skip, length);
}

void wh_copy_get_by(wh_copy_get_lines *lines, void *target, const void *window, size_t length)
{
	size_t head = -(uintptr_t)window % WH_COPY_LINE;
	const unsigned char *from = window;
	unsigned char *to = target;

	if (one_access(window, length)) {
		wh_copy_get_natural(to, from, length);
		return;
	}
	if (head > length)
		head = length;
	if (head) {
		get_part(lines, to, from, head);
		to += head;
		from += head;
		length -= head;
	}
	if (length >= WH_COPY_LINE) {
		size_t whole = length / WH_COPY_LINE * WH_COPY_LINE;

		lines(to, from, whole / WH_COPY_LINE);
		to += whole;
		from += whole;
		length -= whole;
	}
	if (length)
		get_part(lines, to, from, length);
}

/* ---- the CPU --------------------------------------------------------------------------------- */

#if defined(__x86_64__)

/* Which registers the operating system saves: bits of XCR0. */
#define XCR0_AVX 0x06u /* XMM and the upper halves of YMM */
#define XCR0_AVX512 0xe6u /* those, the masks, the upper halves of ZMM, ZMM16 to 31 */

static uint32_t saved_registers(unsigned leaf1_ecx)
{
	uint32_t low, high;

	if (!(leaf1_ecx & bit_OSXSAVE))
		return 0;
	/* _xgetbv() would require compiling this whole file for XSAVE. */
	__asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	return low;
}

uint32_t wh_copy_cpu(void)
{
	unsigned a, b, c, d, saved;
	uint32_t cpu = 0;

	if (!__get_cpuid(1, &a, &b, &c, &d))
		return 0;
	if (c & bit_SSE4_1)
		cpu |= WH_COPY_CPU_SSE41;
	saved = saved_registers(c);
	if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
		return cpu;
	if (b & bit_AVX2 && (saved & XCR0_AVX) == XCR0_AVX)
		cpu |= WH_COPY_CPU_AVX2;
	if (b & bit_AVX512F && (saved & XCR0_AVX512) == XCR0_AVX512)
		cpu |= WH_COPY_CPU_AVX512;
	if (c & bit_MOVDIR64B)
		cpu |= WH_COPY_CPU_MOVDIR64B;
	return cpu;
}

#elif defined(__aarch64__)

#ifndef AT_HWCAP3
#define AT_HWCAP3 29
#endif
#define HWCAP3_LS64_BIT (1UL << 3)

uint32_t wh_copy_cpu(void)
{
	/* All 64-bit Arm processors have NEON. */
	return WH_COPY_CPU_NEON | (getauxval(AT_HWCAP3) & HWCAP3_LS64_BIT ? WH_COPY_CPU_LS64 : 0);
}

#else

uint32_t wh_copy_cpu(void)
{
	return 0;
}

#endif

/* ---- choosing -------------------------------------------------------------------------------- */

#define FOR(mapping) (1U << WH_MAPPING_##mapping)

const struct wh_copy_way wh_copy_puts[] = {
	{ "memcpy", 0, FOR(CACHED), wh_copy_put_cached, NULL },
#if defined(__x86_64__)
	{ "avx512", WH_COPY_CPU_AVX512, FOR(WC), wh_copy_put_avx512, NULL },
	{ "movdir64b", WH_COPY_CPU_MOVDIR64B, FOR(WC), wh_copy_put_movdir64b, NULL },
	{ "avx2", WH_COPY_CPU_AVX2, FOR(WC), wh_copy_put_avx2, NULL },
	{ "sse4.1", WH_COPY_CPU_SSE41, FOR(WC), wh_copy_put_sse41, NULL },
#elif defined(__aarch64__)
	{ "ls64", WH_COPY_CPU_LS64, FOR(WC) | FOR(DEVICE), wh_copy_put_ls64, NULL },
	{ "neon", WH_COPY_CPU_NEON, FOR(WC), wh_copy_put_neon, NULL },
#endif
	{ "natural", 0, FOR(WC) | FOR(CACHED) | FOR(DEVICE), wh_copy_put_natural, NULL },
	{ 0 },
};

const struct wh_copy_way wh_copy_gets[] = {
	{ "memcpy", 0, FOR(CACHED), NULL, wh_copy_get_cached },
#if defined(__x86_64__)
	{ "avx512", WH_COPY_CPU_AVX512, FOR(WC), NULL, wh_copy_get_avx512 },
	{ "avx2", WH_COPY_CPU_AVX2, FOR(WC), NULL, wh_copy_get_avx2 },
	{ "sse4.1", WH_COPY_CPU_SSE41, FOR(WC), NULL, wh_copy_get_sse41 },
#elif defined(__aarch64__)
	{ "ls64", WH_COPY_CPU_LS64, FOR(WC) | FOR(DEVICE), NULL, wh_copy_get_ls64 },
	{ "neon", WH_COPY_CPU_NEON, FOR(WC), NULL, wh_copy_get_neon },
#endif
	{ "natural", 0, FOR(WC) | FOR(CACHED) | FOR(DEVICE), NULL, wh_copy_get_natural },
	{ 0 },
};

static const struct wh_copy_way *way_choose(const struct wh_copy_way *ways, uint32_t cpu,
					    enum wh_mapping mapping)
{
	for (;; ways++) {
		if ((ways->needs & cpu) == ways->needs && ways->mappings >> mapping & 1)
			return ways;
		if (!ways[1].name) /* the last way works everywhere */
			return ways;
	}
}

struct wh_copy wh_copy_choose(uint32_t cpu, enum wh_mapping mapping)
{
	return (struct wh_copy){ way_choose(wh_copy_puts, cpu, mapping),
				 way_choose(wh_copy_gets, cpu, mapping) };
}
