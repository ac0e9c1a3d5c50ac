/* SPDX-License-Identifier: Apache-2.0 */
/* 16 bytes at a time, x86-64 with SSE4.1. */
#include "window/copy.h"

#if defined(__x86_64__)

#include <smmintrin.h>

#define TARGET __attribute__((target("sse4.1")))

TARGET static void put_lines(unsigned char *window, const unsigned char *from, size_t lines)
{
	for (; lines; lines--, window += WH_COPY_LINE, from += WH_COPY_LINE) {
		__m128i a = _mm_loadu_si128((const __m128i *)(const void *)from),
			b = _mm_loadu_si128((const __m128i *)(const void *)(from + 16)),
			c = _mm_loadu_si128((const __m128i *)(const void *)(from + 32)),
			d = _mm_loadu_si128((const __m128i *)(const void *)(from + 48));

		_mm_stream_si128((__m128i *)(void *)window, a);
		_mm_stream_si128((__m128i *)(void *)(window + 16), b);
		_mm_stream_si128((__m128i *)(void *)(window + 32), c);
		_mm_stream_si128((__m128i *)(void *)(window + 48), d);
	}
}

/* The instruction does not write, but older compilers declare it without const. */
TARGET static inline __m128i load(const unsigned char *window)
{
	return _mm_stream_load_si128((__m128i *)(uintptr_t)window);
}

TARGET static void get_lines(unsigned char *to, const unsigned char *window, size_t lines)
{
	for (; lines; lines--, window += WH_COPY_LINE, to += WH_COPY_LINE) {
		__m128i a = load(window), b = load(window + 16), c = load(window + 32),
			d = load(window + 48);

		_mm_storeu_si128((__m128i *)(void *)to, a);
		_mm_storeu_si128((__m128i *)(void *)(to + 16), b);
		_mm_storeu_si128((__m128i *)(void *)(to + 32), c);
		_mm_storeu_si128((__m128i *)(void *)(to + 48), d);
	}
}

void wh_copy_put_sse41(void *window, const void *from, size_t length)
{
	wh_copy_put_by(put_lines, window, from, length);
}

void wh_copy_get_sse41(void *to, const void *window, size_t length)
{
	wh_copy_get_by(get_lines, to, window, length);
}

#endif
