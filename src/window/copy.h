/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between ordinary memory and a CPU mapping of GPU memory.
 *
 * Through such a mapping a load waits for the GPU (1 us) and a store is posted, so the speed
 * depends on the bytes that one instruction moves. The functions are chosen by the running CPU and
 * the type of the mapping. They work for any alignment and length, and guarantee:
 *
 * - an aligned access of 1, 2, 4 or 8 bytes is one instruction, so that the GPU never sees half of
 *   a flag;
 * - they write only the requested bytes; they may read the whole 64-byte line around a requested
 *   byte, which is in the same page.
 */
#ifndef WH_WINDOW_COPY_H
#define WH_WINDOW_COPY_H

#include <stddef.h>
#include <stdint.h>

#define WH_COPY_LINE 64

/* How the CPU sees the memory; the numbers are those of libgdrapi. */
enum wh_mapping {
	WH_MAPPING_NONE = 0,
	WH_MAPPING_WC = 1, /* write-combining (x86), normal non-cacheable (Arm) */
	WH_MAPPING_CACHED = 2, /* coherent with the GPU */
	WH_MAPPING_DEVICE = 3, /* accesses neither merged nor reordered; Arm: aligned only */
};

typedef void wh_copy_put(void *window, const void *from, size_t length);
typedef void wh_copy_get(void *to, const void *window, size_t length);

/* One way of copying in one direction. */
struct wh_copy_way {
	const char *name;
	uint32_t needs; /* enum wh_copy_cpu, or-ed */
	uint32_t mappings; /* a bit for each suitable enum wh_mapping */
	wh_copy_put *put; /* in the table of puts */
	wh_copy_get *get; /* in the table of gets */
};

enum wh_copy_cpu {
	WH_COPY_CPU_SSE41 = 1,
	WH_COPY_CPU_AVX2 = 2,
	WH_COPY_CPU_AVX512 = 4,
	WH_COPY_CPU_MOVDIR64B = 8,
	WH_COPY_CPU_NEON = 16,
	WH_COPY_CPU_LS64 = 32,
};

/* The instruction sets that the running CPU and its operating system support. Call it once: it uses
 * instructions that a hypervisor traps. */
uint32_t wh_copy_cpu(void);

/* All ways, best first; the last one needs no instruction set. */
extern const struct wh_copy_way wh_copy_puts[], wh_copy_gets[];

struct wh_copy {
	const struct wh_copy_way *put, *get;
};

/* The best ways for a CPU and a mapping. */
struct wh_copy wh_copy_choose(uint32_t cpu, enum wh_mapping mapping);

/* ---- order ---------------------------------------------------------------------------------- */

/* Stores into a window may be reordered with other stores. wh_copy_issued() orders all earlier
 * stores of this thread, to windows of any type and to ordinary memory, before all later ones. */
static inline void wh_copy_issued(void)
{
#if defined(__x86_64__)
	__asm__ volatile("sfence" ::: "memory");
#elif defined(__aarch64__)
	__asm__ volatile("dsb st" ::: "memory");
#else
	__sync_synchronize();
#endif
}

/* Before reading: streaming loads could return data that an earlier load has fetched, and could
 * overtake stores. */
static inline void wh_copy_before_get(void)
{
#if defined(__x86_64__)
	__asm__ volatile("mfence" ::: "memory");
#elif defined(__aarch64__)
	__asm__ volatile("dsb sy" ::: "memory");
#else
	__sync_synchronize();
#endif
}

/* After reading: orders these loads before all later ones. */
static inline void wh_copy_after_get(void)
{
#if defined(__x86_64__)
	__asm__ volatile("lfence" ::: "memory");
#elif defined(__aarch64__)
	__asm__ volatile("dmb oshld" ::: "memory");
#else
	__sync_synchronize();
#endif
}

/* Copy into the window: on return the stores are issued, but may not have arrived. */
static inline void wh_copy_to(struct wh_copy copy, void *window, const void *from, size_t length)
{
	copy.put->put(window, from, length);
	wh_copy_issued();
}

/* Copy out of the window: the GPU memory's contents during the call. */
static inline void wh_copy_from(struct wh_copy copy, void *to, const void *window, size_t length)
{
	wh_copy_before_get();
	copy.get->get(to, window, length);
	wh_copy_after_get();
}

/* ---- between the files of the copies --------------------------------------------------------- */

/* With accesses of 1, 2, 4 and 8 bytes, aligned on the window's side. */
wh_copy_put wh_copy_put_natural;
wh_copy_get wh_copy_get_natural;
/* For cached mappings: memcpy, except for small accesses. */
wh_copy_put wh_copy_put_cached;
wh_copy_get wh_copy_get_cached;

wh_copy_put wh_copy_put_sse41, wh_copy_put_avx2, wh_copy_put_avx512, wh_copy_put_movdir64b;
wh_copy_get wh_copy_get_sse41, wh_copy_get_avx2, wh_copy_get_avx512;
wh_copy_put wh_copy_put_neon, wh_copy_put_ls64;
wh_copy_get wh_copy_get_neon, wh_copy_get_ls64;

/* Whole lines: the window's address is a multiple of WH_COPY_LINE, the other one is arbitrary. */
typedef void wh_copy_put_lines(unsigned char *window, const unsigned char *from, size_t lines);
typedef void wh_copy_get_lines(unsigned char *to, const unsigned char *window, size_t lines);

/* The ends with natural widths, the middle in lines. */
void wh_copy_put_by(wh_copy_put_lines *lines, void *window, const void *from, size_t length);
/* The ends as parts of one line each: a load of 1 byte costs as much as one of 64 bytes. */
void wh_copy_get_by(wh_copy_get_lines *lines, void *to, const void *window, size_t length);

#endif
