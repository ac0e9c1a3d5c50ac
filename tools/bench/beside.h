/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a transfer costs the work beside it, and that work the transfer: a load that runs while the
 * test does (--beside). A load counts its work, in a process of its own or, of GPU loads, in
 * near's.
 */
#ifndef TOOLS_BENCH_BESIDE_H
#define TOOLS_BENCH_BESIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "command.h"

enum bench_load_kind {
	BENCH_LOAD_MEMORY, /* a[i] = b[i] + s * c[i] on a thread of each CPU, far beyond the caches
			    */
	BENCH_LOAD_COMPUTE, /* multiplications and additions in registers, the same */
	BENCH_LOAD_GEMM, /* cuBLAS: products of matrices of bf16, 8192 cubed, in near's process */
	BENCH_LOAD_GEMM_APART, /* the same in a process of its own */
	BENCH_LOADS,
};

#define BENCH_BESIDE_MOST 4 /* loads of a run */
#define BENCH_BESIDE_ROUNDS 5

/* A load that was measured beside a row. The rates are in `unit`; the others in GB/s. */
struct bench_beside {
	enum bench_load_kind kind;
	uint32_t threads; /* of the CPU's loads; 0: a GPU's */
	double alone, beside, share; /* the load's rate, and the median of the rounds' ratios */
	double transfer_alone, transfer_beside, transfer_share;
};

/* "memory", "GB/s"; and how many units of work a unit is. */
const char *bench_load_name(enum bench_load_kind kind);
const char *bench_load_unit(enum bench_load_kind kind, double *work);
static inline bool bench_load_on_gpu(enum bench_load_kind kind)
{
	return kind == BENCH_LOAD_GEMM || kind == BENCH_LOAD_GEMM_APART;
}

/* Read --beside: "cpu" (the first two), "gemm" (the last two) or names, separated by commas; behind
 * a GPU's "=FILE", the library. 0, or EXIT_USAGE after a usage error. */
int bench_beside_parse(const char *text, enum bench_load_kind kinds[BENCH_BESIDE_MOST],
		       unsigned *count);

/* ---- the process that has a load ------------------------------------------------------------- */

struct bench_load;
struct bench_order;
struct bench_answer;

/* Start the load order->kind; one that uses a GPU on GPU order->length, with the library that
 * --beside names and the driver of the setting cuda. Returns when it runs at speed. 0, or -errno
 * with a text in the answer: -EOPNOTSUPP if there is no cuBLAS. */
int bench_load_start(struct bench_load **at, const struct arguments *arguments,
		     const struct bench_order *order, struct bench_answer *answer);
/* End it: answers bytes, the work since it was started, ns, and count, its threads. What a GPU's
 * load has allocated stays for the next start. */
int bench_load_stop(struct bench_load *load, struct bench_answer *answer);
/* NULL is allowed. */
void bench_load_free(struct bench_load *load);

/* A process that does nothing else; `arg` is a struct bench_member_setup. */
void bench_beside_serve(int fd, void *arg);

/* ---- the GPU's load (gemm.c) ----------------------------------------------------------------- */

struct bench_gemm;

/* `library`: NULL: the usual names; `driver`: as for gpu_open(). */
int bench_gemm_open(const char *library, const char *driver, int ordinal, struct bench_gemm **out,
		    char *text, size_t size);
/* Submit one product and wait until the one before the last has ended. On one thread. 0 or -EIO
 * with a text. */
int bench_gemm_step(struct bench_gemm *gemm, char *text, size_t size);
/* Floating-point operations of one product. */
uint64_t bench_gemm_work(void);
/* NULL is allowed. */
void bench_gemm_close(struct bench_gemm *gemm);

#endif
