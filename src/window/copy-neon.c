/* SPDX-License-Identifier: Apache-2.0 */
/* 64 bytes at a time, 64-bit Arm: four registers of NEON, or the single-copy atomic stores and
 * loads of FEAT_LS64. */
#include "window/copy.h"

#if defined(__aarch64__)

#include <arm_neon.h>
#include <string.h>

static void put_lines(unsigned char *window, const unsigned char *from, size_t lines)
{
	for (; lines; lines--, window += WH_COPY_LINE, from += WH_COPY_LINE) {
		uint8x16_t a = vld1q_u8(from), b = vld1q_u8(from + 16), c = vld1q_u8(from + 32),
			   d = vld1q_u8(from + 48);

		/* In assembler, so that the stores stay together and in order: a gap in a line
		 * would split it into two transactions. */
		__asm__ volatile("stp %q1, %q2, [%0]\n\tstp %q3, %q4, [%0, #32]"
				 :
				 : "r"(window), "w"(a), "w"(b), "w"(c), "w"(d)
				 : "memory");
	}
}

static void get_lines(unsigned char *to, const unsigned char *window, size_t lines)
{
	for (; lines; lines--, window += WH_COPY_LINE, to += WH_COPY_LINE) {
		uint8x16_t a, b, c, d;

		__asm__ volatile("ldp %q0, %q1, [%4]\n\tldp %q2, %q3, [%4, #32]"
				 : "=&w"(a), "=&w"(b), "=&w"(c), "=&w"(d)
				 : "r"(window)
				 : "memory");
		vst1q_u8(to, a);
		vst1q_u8(to + 16, b);
		vst1q_u8(to + 32, c);
		vst1q_u8(to + 48, d);
	}
}

void wh_copy_put_neon(void *window, const void *from, size_t length)
{
	wh_copy_put_by(put_lines, window, from, length);
}

void wh_copy_get_neon(void *to, const void *window, size_t length)
{
	wh_copy_get_by(get_lines, to, window, length);
}

/* Registers x0 to x7, and the window's address in x8. As numbers, because older assemblers do not
 * know the instructions. */
#define ST64B_X0_X8 ".inst 0xf83f9100"
#define LD64B_X0_X8 ".inst 0xf83fd100"

static void put_ls64(unsigned char *window, const unsigned char *from, size_t lines)
{
	for (; lines; lines--, window += WH_COPY_LINE, from += WH_COPY_LINE) {
		register unsigned char *at __asm__("x8") = window;

		__asm__ volatile("ldp x0, x1, [%1]\n\tldp x2, x3, [%1, #16]\n\t"
				 "ldp x4, x5, [%1, #32]\n\tldp x6, x7, [%1, #48]\n\t" ST64B_X0_X8
				 :
				 : "r"(at), "r"(from)
				 : "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "memory");
	}
}

static void get_ls64(unsigned char *to, const unsigned char *window, size_t lines)
{
	for (; lines; lines--, window += WH_COPY_LINE, to += WH_COPY_LINE) {
		register const unsigned char *at __asm__("x8") = window;

		__asm__ volatile(LD64B_X0_X8 "\n\tstp x0, x1, [%1]\n\tstp x2, x3, [%1, #16]\n\t"
					     "stp x4, x5, [%1, #32]\n\tstp x6, x7, [%1, #48]"
				 :
				 : "r"(at), "r"(to)
				 : "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "memory");
	}
}

void wh_copy_put_ls64(void *window, const void *from, size_t length)
{
	wh_copy_put_by(put_ls64, window, from, length);
}

void wh_copy_get_ls64(void *to, const void *window, size_t length)
{
	wh_copy_get_by(get_ls64, to, window, length);
}

#endif
