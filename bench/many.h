/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many engines on one machine: what they cost, and what becomes of transfers while all of them are
 * restarted.
 *
 * many.c         what is done with them, in which order; the process that watches
 * many-worker.c  a process with some of the engines
 * many-check.c   what a transfer has to have done, looked at from outside
 * many-report.c  the figures, on the screen and as JSON
 *
 * Engine e opens one peer by its name for each of `degree` permutations of all engines, so that it
 * is opened by as many. What others write to is memory that all processes share, one part for each
 * of an engine's two lives: it outlives the engine, whose last state can be looked at when it has
 * been killed.
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
/* A batch has ended by then, well or not: the knob timeout is far less. */
#define MANY_PATIENCE (60 * MANY_SECOND)

struct many_options {
	uint32_t engines, processes, degree;
	uint32_t bytes; /* of a transfer */
	uint32_t rounds; /* each link writes and reads so often, before the restart */
	uint32_t rate; /* transfers a second, all together, during the restart */
	uint32_t peers; /* that one engine opens of another, to see what a peer costs */
	uint32_t idle; /* seconds */
	bool restart, verbose;
	const char *registry, *json;
	const char *config[MANY_CONFIG + 1];
};

/* What was asked of the link in one life of each side, and reported complete. */
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
	_Atomic uint64_t epoch; /* 0: it has not begun */
	_Atomic uint64_t open_us;
	_Atomic bool killed;
	/* Transfers: ended well, with an error, never; and those that were not what they said. */
	_Atomic uint64_t submitted, completed, failed, hung, wrong;
};

/* What all processes share. */
struct many {
	struct many_options options;
	struct many_life *lives; /* [engine][life] */
	struct many_link *links; /* [engine][degree] */
	_Atomic uint64_t *errors; /* [errno]: how transfers failed */
	/* [engine][life]: the badge, then [degree][life of the writer] */
	unsigned char *bytes;
	char *text; /* the first thing that was wrong */
	_Atomic bool told;
};

enum many_what {
	MANY_OPEN = 1, /* the engines */
	MANY_CONNECT, /* every link */
	MANY_MOVE, /* `count` rounds on each link, verified */
	/* engine `from` opens `count` peers of engine `to`; MANY_FEWER closes them */
	MANY_SEVERAL,
	MANY_FEWER,
	MANY_RUN, /* move without end */
	MANY_STOP, /* and end, with nothing in flight */
	MANY_CLOSE, /* everything; the process ends */
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

/* The badge, whose every word is the epoch. */
static inline unsigned char *many_badge(struct many *many, uint32_t engine, uint32_t life)
{
	return many->bytes + ((size_t)engine * MANY_LIVES + life) * many_region(&many->options);
}

/* Where a link's writer leaves its bytes, from the region's start. */
static inline size_t many_slot(const struct many *many, uint32_t k, uint32_t writer_life)
{
	return (size_t)many->options.bytes * (1 + MANY_LIVES * k + writer_life);
}

/* Something is not as it was said to be: it is counted, and the first is told. */
void many_wrong(struct many *many, struct many_life *life, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* ---- many-check.c: all words of a transfer are the same ----------------------------------------
 */

/* A write's number, and whose it is. */
uint64_t many_word(uint32_t engine, uint32_t k, uint32_t number);
void many_fill(unsigned char *at, uint32_t bytes, uint64_t word);
bool many_is(const unsigned char *at, uint32_t bytes, uint64_t word);
/* Nobody moves any more: does all memory hold what was reported complete, and nothing that was not
 * submitted? Is every transfer of those that were not killed accounted for? How many are not. */
uint64_t many_audit(struct many *many);

/* ---- many-worker.c ------------------------------------------------------------------------------
 */

/* Obey orders that come over the socket, to the end; the exit status. */
int many_worker(struct many *many, const struct many_worker *self);

/* ---- many-report.c ------------------------------------------------------------------------------
 */

struct many_series {
	double mean, p50, p99, most;
};

struct many_results {
	double process_before_bytes; /* of one worker before it had engines */
	double engine_bytes, engine_threads;
	double open_seconds; /* all engines, side by side */
	struct many_series alone_us; /* connecting while nothing else happens */
	double initiator_bytes, owner_bytes; /* a peer, on each side */
	double kernel_bytes; /* of a peer, both sides together */
	double mesh_seconds;
	struct many_series mesh_us;
	double mesh_peer_bytes; /* both sides together */
	double move_seconds, moved_transfers, moved_bytes;
	double active_peer_bytes; /* both sides, after data */
	double idle_cpus; /* that all engines keep busy when nobody moves anything */
	double restart_seconds, restarted, recover_most_ms;
	double submitted, completed, failed, unreported, hung, wrong;
};

int many_report(struct many *many, const struct many_results *results);

#endif
