/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many engines on one machine: what they cost, and whether transfers survive while all of them are
 * restarted.
 *
 * many.c         the command line, the order of the measurements, the watching process
 * many-worker.c  a process with some of the engines
 * many-check.c   checks from outside that transfers did what was reported
 * many-report.c  the results as JSON
 *
 * For each of `degree` permutations of all engines, every engine opens one peer by name, and so
 * is opened `degree` times. Engines write into memory that all processes share, with one part for
 * each of an engine's two lives. It outlives a killed engine, so its last state can be checked.
 */
#ifndef BENCH_MANY_H
#define BENCH_MANY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include <wherry/wherry.h>

#define MANY_MS 1000000LL
#define MANY_SECOND 1000000000LL
#define MANY_LIVES 2 /* of an engine: before and after its restart */
#define MANY_CONFIG 8
#define MANY_ERRNO 134
#define MANY_TEXT 256
/* ns after which every batch has ended: the setting timeout is far less */
#define MANY_PATIENCE (60 * MANY_SECOND)

struct many_options {
	uint32_t engines, processes, degree;
	uint32_t bytes; /* of a transfer */
	uint32_t rounds; /* writes and reads of each link before the restart */
	uint32_t rate; /* transfers a second, all together, during the restart */
	uint32_t peers; /* that one engine opens of another, to measure the cost of a peer */
	uint32_t idle; /* seconds */
	bool restart, verbose;
	const char *registry, *json;
	const char *config[MANY_CONFIG + 1];
};

/* The writes submitted on the link in one life of each side, and those reported complete. */
struct many_ledger {
	_Atomic uint32_t submitted, completed;
};

struct many_link {
	uint32_t target; /* the engine */
	_Atomic uint32_t connect_us; /* the first time */
	struct many_ledger ledger[MANY_LIVES][MANY_LIVES]; /* the writer's life, the target's */
};

/* One engine, in one of its lives. */
struct many_life {
	_Atomic uint64_t epoch; /* 0: not started */
	_Atomic uint64_t open_us;
	_Atomic bool killed;
	/* Transfers: successful, failed, without an end; and those whose bytes were wrong. */
	_Atomic uint64_t submitted, completed, failed, hung, wrong;
};

/* What all processes share. */
struct many {
	struct many_options options;
	struct many_life *lives; /* [engine][life] */
	struct many_link *links; /* [engine][degree] */
	_Atomic uint64_t *errors; /* [errno]: how transfers failed */
	/* [engine][life]: a page with the engine's epoch (the badge), then the slots of its links:
	 * [degree][life of the writer] */
	unsigned char *bytes;
	char *text; /* of the first error */
	_Atomic bool has_text;
};

enum many_what {
	MANY_OPEN = 1, /* open the engines */
	MANY_CONNECT, /* connect every link */
	MANY_MOVE, /* `count` rounds on each link, verified */
	/* engine `from` opens `count` peers of engine `to`, and closes them */
	MANY_OPEN_PEERS,
	MANY_CLOSE_PEERS,
	MANY_RUN, /* move bytes until MANY_STOP */
	MANY_STOP, /* stop, with nothing in flight */
	MANY_CLOSE, /* close everything; the process ends */
};

struct many_order {
	uint32_t what, from, to, count;
};

struct many_answer {
	int32_t error;
	char text[MANY_TEXT];
	uint64_t value[4];
};

/* A process with engines [first, first + count), each in its life number `life`. */
struct many_worker {
	pid_t pid;
	int fd;
	uint32_t number, first, count, life;
};

static inline int64_t many_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * MANY_SECOND + t.tv_nsec;
}

static inline struct many_life *many_life(struct many *many, uint32_t engine, uint32_t life)
{
	return &many->lives[(size_t)engine * MANY_LIVES + life];
}

static inline struct many_link *many_link(struct many *many, uint32_t engine, uint32_t k)
{
	return &many->links[(size_t)engine * many->options.degree + k];
}

/* Bytes in an engine's region. */
static inline size_t many_region(const struct many_options *options)
{
	return (size_t)options->bytes * (1 + MANY_LIVES * options->degree);
}

/* The badge: every word of it is the epoch. */
static inline unsigned char *many_badge(struct many *many, uint32_t engine, uint32_t life)
{
	return many->bytes + ((size_t)engine * MANY_LIVES + life) * many_region(&many->options);
}

/* Offset from the region's start at which a link's writer writes. */
static inline size_t many_slot(const struct many *many, uint32_t k, uint32_t writer_life)
{
	return (size_t)many->options.bytes * (1 + MANY_LIVES * k + writer_life);
}

/* Count an error, and keep the text of the first. */
void many_wrong(struct many *many, struct many_life *life, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* ---- many-check.c: all words of a transfer are the same -------------------------------------- */

/* A word of a write: its number and its writer. */
uint64_t many_word(uint32_t engine, uint32_t k, uint32_t number);
void many_fill(unsigned char *at, uint32_t bytes, uint64_t word);
bool many_is(const unsigned char *at, uint32_t bytes, uint64_t word);
/* Call when nothing is in flight. Checks that all memory holds what was reported complete, and
 * nothing that was not submitted, and that every transfer of engines that were not killed is
 * accounted for. Returns the number of errors. */
uint64_t many_audit(struct many *many);

/* ---- many-worker.c --------------------------------------------------------------------------- */

/* Obey orders from the socket until the last one. Returns the exit status. */
int many_worker(struct many *many, const struct many_worker *self);

/* ---- many-report.c --------------------------------------------------------------------------- */

struct many_series {
	double mean, p50, p99, most;
};

struct many_results {
	double process_before_bytes; /* of one worker before it had engines */
	double engine_bytes, engine_threads;
	double open_seconds; /* all engines, opened in parallel */
	struct many_series alone_us; /* connecting while nothing else happens */
	double initiator_bytes, owner_bytes; /* a peer, on each side */
	double kernel_bytes; /* of a peer, both sides together */
	double mesh_seconds;
	struct many_series mesh_us;
	double mesh_peer_bytes; /* both sides together */
	double move_seconds, moved_transfers, moved_bytes;
	double active_peer_bytes; /* both sides, after data */
	double idle_cpus; /* that all engines keep busy while nothing moves */
	double restart_seconds, restarted, recover_most_ms;
	double submitted, completed, failed, unreported, hung, wrong;
};

int many_report(struct many *many, const struct many_results *results);

#endif
