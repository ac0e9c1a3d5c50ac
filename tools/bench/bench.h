/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wherry bench: what its parts share.
 *
 * Several processes, all forked before any of them has an engine or a thread:
 *
 *   the command itself  reads the options, measures the raw limits, prints
 *   near                Wherry's initiator: submits and waits
 *   far                 Wherry's other side (with --peer: the peer instead)
 *   raw                 the other end of the raw limits
 *
 * The engines have processes of their own so that they can be stopped while a limit is measured:
 * a spinning engine would take the CPU that the limit needs.
 */
#ifndef TOOLS_BENCH_BENCH_H
#define TOOLS_BENCH_BENCH_H

#include <jansson.h>
#include <math.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include <time.h>

#include <wherry/wherry.h>

#include "bench/beside.h"
#include "command.h"
#include "gpu.h"
#include "memory.h"
#include "progress.h"

#define BENCH_ROUNDS 9 /* at most; each has a limit slice and a test slice */
#define BENCH_SAMPLES 65536 /* the most latencies of one slice */
#define BENCH_CONNECTIONS 64 /* the most connections of a row */
/* Bytes of one raw send() or recv(): tried from LEAST, doubled up to MOST. */
#define BENCH_CALL_LEAST (256u << 10)
#define BENCH_CALL_MOST (1u << 20)
#define BENCH_ALIGN 64 /* blocks start on cache lines */
#define BENCH_TEXT 320
#define BENCH_GOOD 0.95 /* share of the raw limit that counts as reaching it */
#define BENCH_LARGE (1 << 20) /* smaller batches are graded by latency, not by bandwidth */

static inline int64_t bench_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* Is it time to stop? Reads the clock so seldom that reading costs nothing. */
struct bench_pace {
	int64_t deadline, last;
	uint32_t every, left;
};

static inline bool bench_pace_over(struct bench_pace *pace)
{
	int64_t now;

	if (pace->left > 1) {
		pace->left--;
		return false;
	}
	now = bench_now();
	if (now - pace->last < 20000 && pace->every < 1024)
		pace->every = pace->every ? 2 * pace->every : 1;
	pace->last = now;
	pace->left = pace->every;
	return now >= pace->deadline;
}

/* ---- statistics (statistics.c) ------------------------------------------------------ */

void bench_sort(uint64_t *samples, size_t count);

/* The smallest sample such that `fraction` of all are not above it; `sorted` is not empty. */
uint64_t bench_percentile(const uint64_t *sorted, size_t count, double fraction);

/* The median; of an even number the mean of the middle two; NAN of none. Sorts. */
double bench_median(double *values, size_t count);

/* The results of a row's rounds: one pair each, NAN where one was not measured. */
struct bench_pairs {
	double test[BENCH_ROUNDS], limit[BENCH_ROUNDS];
	size_t count;
};

void bench_pairs_add(struct bench_pairs *pairs, double test, double limit);

/* The medians over the rounds, and the median of the rounds' own ratios test / limit: both halves
 * of a round meet the same state of the machine, those of different rounds may not. NAN:
 * unknown. */
double bench_pairs_test(const struct bench_pairs *pairs);
double bench_pairs_limit(const struct bench_pairs *pairs);
double bench_pairs_ratio(const struct bench_pairs *pairs);

/* ---- layout of the bytes (layout.c) ---------------------------------------------------------- */

/* Source and target are divided into slots of one block each. A walk goes over all slots, batch by
 * batch, and starts over. Limit, test and both sides of a check use the same walk. */
struct bench_layout {
	uint64_t size; /* bytes of a block */
	uint64_t blocks; /* in a batch */
	uint64_t batches; /* until the walk starts over */
	uint64_t source_stride, target_stride;
	uint64_t guard; /* bytes before the first and after every target block; 0: none */
	uint64_t source_length, target_length;
};

/* `guarded`: leave room for guard bytes. -1: the size overflows. */
int bench_layout_plan(struct bench_layout *layout, uint64_t size, uint64_t blocks,
		      uint64_t working_set, bool guarded);

/* Shorten the walk so that the source, or the `target`, fits into `length` bytes. -1:
 * impossible. */
int bench_layout_shrink(struct bench_layout *layout, bool target, uint64_t length);

static inline uint64_t bench_layout_slots(const struct bench_layout *layout)
{
	return layout->batches * layout->blocks;
}

static inline uint64_t bench_layout_bytes(const struct bench_layout *layout)
{
	return layout->size * layout->blocks;
}

/* The walk: block i of batch b goes from source[b * blocks + i] to target[b * blocks + i]. One
 * block a batch: in order. Several: scattered, differently on either side. */
struct bench_walk {
	uint64_t *source, *target;
};

/* Bytes of the blocks of a whole walk. */
static inline uint64_t bench_layout_set(const struct bench_layout *layout)
{
	return bench_layout_slots(layout) * layout->size;
}

int bench_walk_new(const struct bench_layout *layout, struct bench_walk *walk);
void bench_walk_free(struct bench_walk *walk);

/* Fill the source with the pattern of `iteration`; fill a target with guard bytes; check that a
 * target has the walk's blocks, and guard bytes everywhere else. The check returns false with a
 * text. */
void bench_layout_fill(const struct bench_layout *layout, void *source, uint64_t iteration);
void bench_layout_guard(const struct bench_layout *layout, void *target);
bool bench_layout_check(const struct bench_layout *layout, const void *target, uint64_t iteration,
			char *text, size_t size);

/* ---- one row ------------------------------------------------------------------------------ */

/* What a limit of blocks that a GPU moves is the better one of, GB/s. NAN: not measured. */
struct bench_limit_parts {
	double kernel; /* the bare kernel, with the same blocks */
	double copy; /* the driver's contiguous copy of as many bytes */
};

enum bench_form {
	BENCH_FORM_SINGLE, /* one transfer a batch */
	BENCH_FORM_BLOCKS, /* one blocks descriptor a batch */
	BENCH_FORM_LIST, /* a list of transfers a batch */
};

/* What to measure. */
struct bench_row {
	uint32_t op; /* enum wh_op */
	uint32_t form;
	bool one_process; /* otherwise source and target are in two processes */
	bool both_ways; /* the same amount goes back at the same time, between memory of its own */
	struct memory source, target;
	uint32_t connections; /* 0: the transport has none */
	uint32_t depth; /* batches in flight for bandwidth */
	char transport[16]; /* "": the best one */
	struct bench_layout layout;
};

/* What was measured. NAN and empty: unknown. */
struct bench_result {
	struct bench_row row;
	bool spinning, pinned;
	char transport[16], detail[48]; /* the route it really took */
	double bandwidth; /* GB/s */
	double p50, p99, p999; /* us */
	double submit; /* ns a transfer */
	/* us from submission to the first byte: of a new list, of a prepared one */
	double first[2];
	uint64_t samples, rounds;
	int verified; /* 1, 0; -1: not checked */
	char limit_name[24];
	uint64_t limit_call; /* bytes; 0: unknown */
	uint32_t limit_threads; /* 0: no copies by the CPU */
	struct bench_limit_parts limit_parts;
	double limit_bandwidth, limit_latency, ratio, latency_ratio;
	double cache_line; /* ns to hand a cache line over, just before the row */
	struct bench_beside beside[BENCH_BESIDE_MOST];
	unsigned beside_count;
	bool skipped; /* the route is not available */
	char text[BENCH_TEXT]; /* why it failed or was skipped; "": neither */
};

const char *bench_op_name(uint32_t op);
const char *bench_form_name(uint32_t form);

/* The GPUs of this machine. */
struct bench_gpus {
	struct gpu_name name[GPU_MOST];
	size_t count;
	int driver; /* the CUDA version, 13000 */
	char text[GPU_TEXT]; /* why there are none */
};

/* Ask the driver at `path`, in a process of its own: a process that has used the driver cannot
 * fork. */
void bench_gpus_look(const char *path, struct bench_gpus *out);

/* The value of a setting as the engines will have it. */
const char *bench_setting(const struct arguments *arguments, const char *name);

/* ---- the rows that the command line asks for (plan.c) ---------------------------------------- */

struct bench_plan {
	struct bench_row *rows;
	size_t count, room;
	bool chosen; /* --transport names one: it is an error if that is not available */
	bool matrix; /* --matrix is given: one table of pairs for each run of rows that are alike
			otherwise */
	bool gpus; /* some memory needs a GPU's driver */
	struct bench_gpus seen; /* valid if `gpus` */
};

/* Make the rows, in the order in which they are measured. 0, or an exit code after a line on
 * stderr. */
int bench_plan_make(const struct arguments *arguments, struct bench_plan *out);
void bench_plan_free(struct bench_plan *plan);

/* "0.5", "2": seconds as ns. 0, or EXIT_USAGE after a usage error. */
int bench_parse_seconds(const char *text, int64_t *ns);

/* ---- the other processes (process.c) ------------------------------------------------ */

enum bench_what {
	BENCH_QUIT = 1,
	/* For near and far (member.c). */
	BENCH_OPEN, /* connections: open an engine; the answer's text is its URL */
	BENCH_CLOSE,
	BENCH_CONNECT, /* text: a URL, or "self" */
	/* side, memory, length: allocate, touch and register; text: its name, address */
	BENCH_MEMORY,
	BENCH_REGION, /* text: the name of a region of the peer, or "": its longest */
	BENCH_ROW, /* row: prepare, walk once; answers transport and detail */
	BENCH_ROW_END, /* answers transport and detail again */
	BENCH_BANDWIDTH, /* duration: answers bytes and ns */
	BENCH_LATENCY, /* duration: answers count, and the samples in shared memory */
	BENCH_FIRST, /* answers first; NAN where it cannot be measured */
	BENCH_WALK, /* every batch of the walk once */
	BENCH_FILL, /* side, row, iteration */
	BENCH_GUARD, /* side, row */
	BENCH_CHECK, /* side, row, iteration: -EBADMSG with the wrong byte in text */
	BENCH_PUT, /* side, length: write to the peer's region, by any route */
	BENCH_GET, /* side, length: read back from there */
	BENCH_RESIDENT, /* answers bytes: resident memory */
	BENCH_EXTRA, /* one more TCP peer, `length` bytes there and back */
	BENCH_LIMIT, /* row, text: its transport; prepare a limit that near measures; pid and
			address: the other process's memory, if there is one */
	BENCH_LIMIT_BANDWIDTH, /* as BENCH_BANDWIDTH and BENCH_LATENCY, by memcpy or the driver */
	BENCH_LIMIT_LATENCY,
	/* For near and beside: a load (beside.h). */
	BENCH_BESIDE_START, /* kind: enum bench_load_kind, length: the GPU */
	BENCH_BESIDE_STOP, /* answers bytes, ns, count */
	/* For raw (raw.c). */
	BENCH_RAW_MEMORY, /* kind, length; answers address */
	BENCH_RAW_WALK, /* row */
	BENCH_RAW_LISTEN, /* length: socket buffers; answers count: the port */
	BENCH_RAW_ACCEPT, /* connections: accept as many more; kind: enum bench_tls */
};

enum bench_side {
	BENCH_SOURCE,
	BENCH_TARGET,
	BENCH_SCRATCH, /* for reading a peer's region back */
	BENCH_BACK_SOURCE, /* of the way back, where both go at once */
	BENCH_BACK_TARGET,
	BENCH_SIDES,
};

struct bench_order {
	uint32_t what;
	uint32_t side, kind, connections;
	uint64_t length, iteration;
	int64_t duration;
	uint64_t address; /* in process `pid` */
	int32_t pid;
	struct memory memory;
	struct bench_row row;
	char text[128];
	char back[64]; /* BENCH_ROW: the remote region of the way back */
};

struct bench_answer {
	/* negative errno, with a text; the text is "" if it has been reported already */
	int32_t error;
	uint32_t kind, access;
	uint64_t bytes, count, address;
	int64_t ns;
	double submit; /* ns a transfer */
	double first[2]; /* ns to the first byte: of a new list, of a prepared one */
	struct bench_limit_parts parts; /* BENCH_LIMIT_BANDWIDTH */
	char transport[16], detail[48];
	char text[BENCH_TEXT];
};

struct bench_process {
	pid_t pid; /* 0: no process */
	int fd;
	bool stopped;
	char name[8];
};

/* The CPUs that a side may use: with --pin, half of those that the command may use. */
enum bench_half {
	BENCH_ANY_CPU,
	BENCH_NEAR_CPUS,
	BENCH_FAR_CPUS,
};

/* Keep the calling thread, and those it starts, on that half. Does nothing on a single CPU. */
void bench_pin(enum bench_half half, cpu_set_t *before);
void bench_unpin(const cpu_set_t *before);

/* Fork a process that runs serve(fd, arg), which answers orders until BENCH_QUIT. 0 or -errno. */
int bench_process_start(struct bench_process *process, const char *name, enum bench_half half,
			void (*serve)(int fd, void *arg), void *arg);
void bench_process_end(struct bench_process *process);

/* Give an order and wait for the answer. Returns the answer's error; -EPIPE if the process is gone,
 * -ETIMEDOUT if it does not answer. */
int bench_ask(struct bench_process *process, const struct bench_order *order,
	      struct bench_answer *answer);

/* Stop a process, and let it continue. */
void bench_process_stop(struct bench_process *process);
void bench_process_continue(struct bench_process *process);

/* An error that one of these processes has reported on stderr itself reaches the command as an
 * errno without a text: convert an exit code to it, and back. */
int bench_reported_error(int code);
int bench_reported_code(int error);

/* For serve(): read the next order, false at the end; send an answer. */
bool bench_next_order(int fd, struct bench_order *order);
void bench_reply(int fd, const struct bench_answer *answer);

/* ---- Wherry's processes (member.c, run.c, first.c) -------------------------------------- */

struct bench_member_setup {
	const struct arguments *arguments;
	uint64_t *samples; /* BENCH_SAMPLES of them, shared with the command */
	const char *listen; /* "none" for near */
};

/* Submit `batch` and watch `byte`, which an earlier completed submission has written already:
 * returns in `ns` the time from `start` until it is written again. Waits for the end. 0, or -errno
 * of the batch; -ETIMEDOUT: not seen. */
int bench_first_byte(struct wh_batch *batch, uint8_t *byte, int64_t start, uint64_t *ns);

/* `arg` is a struct bench_member_setup. */
void bench_member_serve(int fd, void *arg);

/* ---- GPU limits, measured by near (gpu.c) ---------------------------------------------------- */

struct bench_gpu_limit;

struct bench_gpu_setup {
	struct gpu *gpu;
	struct wh_engine *engine; /* allocates the memory */
	uint32_t ctas; /* 0: the usual number */
};

/* Prepare a row: *at is NULL the first time. `lent`: near's own memory, by side; NULL: not in this
 * process. Each returns 0 or -errno, the first with a text. */
int bench_gpu_row(struct bench_gpu_limit **at, const struct bench_gpu_setup *setup,
		  const struct bench_row *row, void *const lent[BENCH_SIDES],
		  char text[BENCH_TEXT]);
/* GB/s; for blocks the better of *parts. */
int bench_gpu_bandwidth(struct bench_gpu_limit *limit, int64_t duration,
			struct bench_limit_parts *parts, double *out);
int bench_gpu_latency(struct bench_gpu_limit *limit, int64_t duration, uint64_t *samples,
		      size_t *count);
void bench_gpu_close(struct bench_gpu_limit *limit);

/* ---- raw limits (limit.c, raw.c, tls.c) ---------------------------------- */

/* Allocate memory of that kind and touch it. NULL with errno set. */
void *bench_map(uint32_t kind, uint64_t length);
void bench_unmap(void *memory, uint64_t length);

/* The raw process; `arg` is ignored. */
void bench_raw_serve(int fd, void *arg);

/* One end of a connection. */
struct bench_pipe {
	int fd;
	struct ssl_st *ssl; /* NULL: plain TCP */
	bool spins; /* with `ssl`: the socket does not block */
};

enum bench_tls { BENCH_TLS_NONE, BENCH_TLS_AES128, BENCH_TLS_CHACHA20 };

/* (tls.c) Shake hands, waiting for the other end. 0 or -errno. */
int bench_tls_start(struct bench_pipe *pipe, uint32_t cipher, bool accepting);
void bench_tls_end(struct bench_pipe *pipe);
/* As send() and recv(); `spin`: as with MSG_DONTWAIT. */
ssize_t bench_tls_send(struct bench_pipe *pipe, const void *bytes, size_t length, bool spin);
ssize_t bench_tls_recv(struct bench_pipe *pipe, void *bytes, size_t length, bool spin);

/* The command's ends of the connections to the raw process. */
struct bench_stream {
	struct bench_process *process;
	uint64_t buffer; /* SO_SNDBUF and SO_RCVBUF; 0: as Wherry chooses on loopback */
	bool tls; /* the setting tls is on */
	uint32_t cipher; /* enum bench_tls: the cipher, chosen with the first connection */
	int port;
	struct bench_pipe pipe[BENCH_CONNECTIONS];
	unsigned count;
	uint64_t at; /* offset of the next ping's bytes */
};

int bench_stream_connect(struct bench_stream *stream, unsigned connections, char text[BENCH_TEXT]);
void bench_stream_close(struct bench_stream *stream);

/* Move `bytes` between `memory` and the raw process, `push` or pull, on `connections` connections
 * at once, `chunk` bytes a call. 0 or -errno; *ns: from the start to the last byte's arrival. */
struct bench_flow {
	bool push, spin;
	unsigned connections;
	uint64_t bytes, chunk;
	char *memory;
	uint64_t near_length, far_length; /* of memory to walk through; of blocks: their bytes */
	const uint64_t *offsets; /* of the blocks in `memory`, in the order of the walk, which the
				    raw process knows as well; NULL: from start to end */
	uint64_t size; /* of a block */
};
int bench_stream_flow(struct bench_stream *stream, const struct bench_flow *flow, int64_t *ns);

/* Send `bytes` one way and one byte back, `count` times; the times go into `samples`. */
int bench_stream_ping(struct bench_stream *stream, const struct bench_flow *flow, uint64_t count,
		      uint64_t *samples);

enum bench_limit_kind {
	BENCH_LIMIT_NONE,
	BENCH_LIMIT_MEMCPY,
	BENCH_LIMIT_PROCESS_VM,
	BENCH_LIMIT_STREAM,
	BENCH_LIMIT_DRIVER,
	BENCH_LIMIT_KERNEL,
};

struct bench_limit {
	struct bench_process *process; /* NULL: no other end, so no limits that need one */
	/* Near copies for the limits that need no other end, on the thread and therefore the CPU
	 * and caches of the test; its samples. NULL: this is near. */
	struct bench_process *near;
	const uint64_t *near_samples;
	bool spin;
	struct bench_stream stream;
	void *map[2]; /* BENCH_SOURCE, BENCH_TARGET */
	uint64_t mapped[2];
	uint32_t map_kind[2];
	/* The test's own memory, used instead of a mapping of the limit's; NULL: not in this
	 * process. */
	void *lent[BENCH_SIDES];
	/* The other Wherry process and its memory of the row, for near; 0: unknown. */
	pid_t other;
	uint64_t other_address;
	struct bench_gpu_setup gpu_setup; /* near's */
	struct bench_gpu_limit *gpu;
	uint64_t far, far_length; /* address in the raw process */
	uint32_t far_kind;
	/* Of the current row. */
	enum bench_limit_kind kind;
	const char *name; /* "": no limit */
	struct bench_row row;
	struct bench_walk walk;
	uint64_t next; /* batch of the walk */
	uint64_t call; /* bytes of a send() and recv(), at most: the best for this row */
	struct bench_limit_parts parts; /* of the last bandwidth */
	double rate; /* bytes a ns, as far as known */
	double ping; /* ns, as far as known */
};

/* Prepare a row that takes the route `transport` (`detail`). 0, or -errno and a text. If there is
 * no limit for such a row: 0, with the name "". */
int bench_limit_row(struct bench_limit *limit, const struct bench_row *row, const char *transport,
		    const char *detail, char text[BENCH_TEXT]);
/* Threads that copy at once for the bandwidth of memcpy: one for each CPU that near may use. */
uint32_t bench_limit_threads(const struct bench_limit *limit);
/* Near does the copying, so it must not be stopped meanwhile. */
bool bench_limit_by_near(const struct bench_limit *limit);
/* GB/s, over about `duration` ns. */
int bench_limit_bandwidth(struct bench_limit *limit, int64_t duration, double *out);
int bench_limit_latency(struct bench_limit *limit, int64_t duration, uint64_t *samples,
			size_t *count);
void bench_limit_close(struct bench_limit *limit);

/* The address at which `length` bytes at `address` of process `pid` are mapped here, readable and
 * writable, as the same pages of the same file. NULL: none. (mapping.c) */
void *bench_find_mapping(pid_t pid, uint64_t address, uint64_t length);

/* ---- measuring (measure.c) ---------------------------------------------------------- */

struct bench_session {
	struct bench_process near, far, raw, beside;
	enum bench_load_kind loads[BENCH_BESIDE_MOST]; /* --beside */
	unsigned load_count;
	bool limits, verify, spinning, pinned;
	const char *peer; /* URL; NULL: far */
	char url[128]; /* of far, or of the peer */
	uint32_t connections; /* of near's open engine; 0: not open */
	int64_t duration; /* ns, of a row */
	uint64_t *shared; /* samples of near's last slice */
	uint64_t *samples; /* room for those of all rounds */
	struct bench_limit limit;
	struct bench_order memory[2][BENCH_SIDES]; /* what near and far have now */
	char memory_name[2][BENCH_SIDES][64];
	bool self, connected; /* near has these peers */
	char remote_name[64]; /* --peer: the region asked for; "": the longest */
	uint64_t remote_length; /* --peer */
	uint32_t remote_access, remote_kind;
	struct progress progress;
	char label[192]; /* of the progress line */
	uint64_t rounds; /* of the rows before */
};

/* Make sure that near's engine is open and, unless `self`, connected. With --peer, look up its
 * region. 0, or -errno and a text. */
int bench_connect(struct bench_session *session, uint32_t connections, bool self,
		  char text[BENCH_TEXT]);

/* Measure one row. 0, or -errno and result->text: -EOPNOTSUPP if that route is not available,
 * -EPIPE if a process is gone and nothing more can be measured. */
int bench_measure(struct bench_session *session, const struct bench_row *row,
		  struct bench_result *result);

struct bench_footprint {
	uint64_t before, idle; /* resident bytes of a process: without, with an engine */
	uint64_t near, far; /* growth for a peer: at the initiator, at the owner */
	uint64_t peers, length; /* how many were tried, bytes moved each way with each */
};
#define BENCH_IDLE_LIMIT (8u << 20)
#define BENCH_PEER_LIMIT (16u << 20)

/* Measured with processes of their own. 0, or -errno and a text. */
int bench_footprint(const struct arguments *arguments, struct bench_footprint *out,
		    char text[BENCH_TEXT]);

struct bench_handshake {
	const char *trust; /* "key", "key, TLS 1.3", "certificates, TLS 1.3" */
	uint64_t count; /* peers that were connected to */
	double mean, p50, p99; /* us */
};
#define BENCH_HANDSHAKE_LIMIT                                                                      \
	1000 /* us; the bound for half of those with a key and without TLS                         \
	      */

/* Connect again and again for `duration` ns. (handshake.c) */
int bench_handshake(const struct arguments *arguments, int64_t duration,
		    struct bench_handshake *out, char text[BENCH_TEXT]);

/* ---- environment and report --------------------------------------------------------------- */

/* ns to hand a cache line to another CPU, one way; NAN if this process has only one. Takes about
 * `duration` ns. */
double bench_cache_line(int64_t duration);

/* What the results depend on. `gpus` NULL: none are used. */
json_t *bench_environment(const struct bench_gpus *gpus, double cache_line_before,
			  double cache_line_after);

void bench_table_start(FILE *out, bool limits);
void bench_table_row(FILE *out, const struct bench_result *result, bool limits);
/* Write the rows of --matrix as matrices: sources at the left, targets at the top. */
void bench_table_matrices(FILE *out, const struct bench_result *results, size_t count, bool limits);
void bench_table_footprint(FILE *out, const struct bench_footprint *footprint);
void bench_table_handshake(FILE *out, const struct bench_handshake *handshake);
bool bench_handshake_good(const struct bench_handshake *handshake);
/* Write one line of summary, after the legend unless it was a `matrix`, which has its own. Returns
 * the matching exit code. */
int bench_table_verdict(FILE *out, const struct bench_result *results, size_t count, bool matrix);

json_t *bench_json_result(const struct bench_result *result);
json_t *bench_json_skipped(const struct bench_result *result);
json_t *bench_json_footprint(const struct bench_footprint *footprint);
json_t *bench_json_handshake(const struct bench_handshake *handshake);

/* ---- a file as the source (file.c) ----------------------------------------------------------- */

/* Is --source a file? Then bench_file_measure() does it all. */
bool bench_file_wanted(const struct arguments *arguments);

/* Measure the file in the page cache, and when it is not there, into results[0] and [1]; *count of
 * them are set. 0, or an exit code. */
int bench_file_measure(const struct arguments *arguments, FILE *table, struct bench_result *results,
		       size_t *count);

#endif
