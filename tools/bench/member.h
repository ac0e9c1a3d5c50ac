/* SPDX-License-Identifier: Apache-2.0 */
/* A process that holds one of Wherry's engines: what member.c (engine, memory, orders) and run.c
 * (the batches of a row) share. Functions return 0 or -errno, with a text in the answer. */
#ifndef TOOLS_BENCH_MEMBER_H
#define TOOLS_BENCH_MEMBER_H

#include "bench/bench.h"

#define BENCH_EXTRA_PEERS 8
#define BENCH_FIND_TIMEOUT INT64_C(5000000000) /* ns */

struct held {
	void *address;
	uint64_t length;
	bool on_gpu;
	struct wh_region *region;
};

/* What the batches of one way of a row are made from. */
struct maker {
	uint32_t op;
	struct wh_peer *peer;
	struct wh_region *local;
	struct wh_remote remote;
	const uint64_t *local_offsets, *remote_offsets;
	struct wh_transfer *list;
};

struct member {
	const struct bench_member_setup *setup;
	struct wh_engine *engine;
	struct wh_peer *self, *peer, *extra[BENCH_EXTRA_PEERS];
	unsigned extra_count;
	struct held memory[BENCH_SIDES];
	unsigned generation; /* number of the next region's name */
	struct wh_remote remote;
	/* The row: as many different batches as the walk has, and at least as many as are in
	 * flight. */
	struct bench_row row;
	struct wh_batch **batches;
	size_t batch_count, next;
	struct bench_walk walk;
	struct maker maker; /* of the way there, without the list */
	bool failed; /* a batch may still be in flight: leave it alone */
	struct bench_limit limit; /* by memcpy or a GPU's driver */
	/* for checking GPU memory and for its limits; NULL: not opened yet */
	struct gpu *gpu;
	struct bench_load *load; /* --beside; NULL: none was started */
};

/* Write an error and its text into the answer. Returns `error`. */
int answer_error(struct bench_answer *answer, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* As answer_error(), with wh_error_text(). */
int answer_library(struct bench_answer *answer, int error);

/* The row (run.c). Cancel what a failed row left in flight, and free the row. */
void row_end(struct member *m);
/* Prepare a row and walk once. order->text names the remote region; empty: m->remote. */
int member_row(struct member *m, const struct bench_order *order, struct bench_answer *answer);
/* The route of the first batch. */
void member_route(struct member *m, struct bench_answer *answer);
/* Run every batch of the walk once. */
int member_walk(struct member *m, struct bench_answer *answer);
/* Measure one slice: bytes and ns, samples, or the time to the first byte. */
int member_bandwidth(struct member *m, const struct bench_order *order,
		     struct bench_answer *answer);
int member_latency(struct member *m, const struct bench_order *order, struct bench_answer *answer);
int member_first(struct member *m, struct bench_answer *answer);

#endif
