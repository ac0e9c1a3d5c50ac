/* SPDX-License-Identifier: Apache-2.0 */
/* 32 bytes at a time, x86-64 with AVX2. */
#include "window/copy.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET __attribute__((target("avx2")))

TARGET static void put_lines(unsigned char *window, const unsigned char *from, size_t lines)
{
	for (; lines; lines--, window += WH_COPY_LINE, from += WH_COPY_LINE) {
		__m256i a = _mm256_loadu_si256((const __m256i *)(const void *)from),
			b = _mm256_loadu_si256((const __m256i *)(const void *)(from + 32));

		_mm256_stream_si256((__m256i *)(void *)window, a);
		_mm256_stream_si256((__m256i *)(void *)(window + 32), b);
	}
}

TARGET static inline __m256i load(const unsigned char *window)
{
	return _mm256_stream_load_si256((const __m256i *)(const void *)window);
}

TARGET static void get_lines(unsigned char *to, const unsigned char *window, size_t lines)
{
	for (; lines; lines--, window += WH_COPY_LINE, to += WH_COPY_LINE) {
		__m256i a = load(window), b = load(window + 32);

		_mm256_storeu_si256((__m256i *)(void *)to, a);
		_mm256_storeu_si256((__m256i *)(void *)(to + 32), b);
	}
}

void wh_copy_put_avx2(void *window, const void *from, size_t length)
{
	wh_copy_put_by(put_lines, window, from, length);
}

void wh_copy_get_avx2(void *to, const void *window, size_t length)
{
	wh_copy_get_by(get_lines, to, window, length);
}

#endif
