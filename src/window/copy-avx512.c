/* SPDX-License-Identifier: Apache-2.0 */
/* 64 bytes at a time: x86-64 with AVX-512, and stores with MOVDIR64B. */
#include "window/copy.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET __attribute__((target("avx512f")))

TARGET static inline __m512i take(const unsigned char *from)
{
	return _mm512_loadu_si512(from);
}

TARGET static inline void stream(unsigned char *window, __m512i value)
{
	_mm512_stream_si512((void *)window, value);
}

/* Four at a time, so that loads which miss the caches overlap. */
TARGET static void put_lines(unsigned char *window, const unsigned char *from, size_t lines)
{
	for (; lines >= 4; lines -= 4, window += 256, from += 256) {
		__m512i a = take(from), b = take(from + 64), c = take(from + 128),
			d = take(from + 192);

		stream(window, a);
		stream(window + 64, b);
		stream(window + 128, c);
		stream(window + 192, d);
	}
	for (; lines; lines--, window += 64, from += 64)
		stream(window, take(from));
}

/* The instruction does not write to its source, but compilers declare it without const. */
TARGET static inline __m512i load(const unsigned char *window)
{
	return _mm512_stream_load_si512((void *)(uintptr_t)window);
}

TARGET static inline void store(unsigned char *to, __m512i value)
{
	_mm512_storeu_si512(to, value);
}

TARGET static void get_lines(unsigned char *to, const unsigned char *window, size_t lines)
{
	for (; lines >= 4; lines -= 4, window += 256, to += 256) {
		__m512i a = load(window), b = load(window + 64), c = load(window + 128),
			d = load(window + 192);

		store(to, a);
		store(to + 64, b);
		store(to + 128, c);
		store(to + 192, d);
	}
	for (; lines; lines--, window += 64, to += 64)
		store(to, load(window));
}

void wh_copy_put_avx512(void *window, const void *from, size_t length)
{
	wh_copy_put_by(put_lines, window, from, length);
}

void wh_copy_get_avx512(void *to, const void *window, size_t length)
{
	wh_copy_get_by(get_lines, to, window, length);
}

__attribute__((target("movdir64b"))) static void put_direct(unsigned char *window,
							    const unsigned char *from, size_t lines)
{
	for (; lines; lines--, window += 64, from += 64)
		_movdir64b(window, from);
}

void wh_copy_put_movdir64b(void *window, const void *from, size_t length)
{
	wh_copy_put_by(put_direct, window, from, length);
}

#endif
