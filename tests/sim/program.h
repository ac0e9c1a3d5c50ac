/* SPDX-License-Identifier: Apache-2.0 */
/* The programs that run in the world: each has an engine, regions, peers and batches, and a model
 * of what these promise. A broken promise ends the run with sim_fail(). */
#ifndef SIM_PROGRAM_H
#define SIM_PROGRAM_H

#include <wherry/wherry.h>

#include "sim.h"

#define PROGRAM_PORT 7000 /* of the first program of a host; the next one has the next port */
#define PROGRAM_PLACES 16 /* programs at a time */
#define PROGRAM_BLOCKS 3 /* of each initiator in each region */
#define PROGRAM_GAP 24 /* bytes between blocks, which nobody writes */
#define PROGRAM_OPS 6 /* of a batch */
#define PROGRAM_TURNS 16 /* submissions of a batch whose callbacks are due */
#define PROGRAM_PEERS 5
#define PROGRAM_BATCHES 10
#define PROGRAM_TARGETS 3
#define PROGRAM_PLANNING (2 * SIM_SEC) /* what calls that wait for a plan wait at most */
#define PROGRAM_GPU_PATIENCE (2 * SIM_SEC) /* a plan waits for a GPU that it measures */
#define PROGRAM_DISK (60 * SIM_SEC) /* longer than any disk hangs, or GPU stands still */
#define PROGRAM_PAST 16 /* writes of a block that are remembered */

struct program;

/* ---- the model of a region: model.c ---------------------------------------------------------- */

/* A write of the past. */
struct past {
	uint64_t stamp;
	size_t offset, length;
	int64_t submitted, ended;
	int status, batch, node;
};

/* A block has one initiator, which has one transfer to it in flight. */
struct block {
	struct past past[PROGRAM_PAST];
	int past_count;
	bool busy;
	/* Bytes of a write may still arrive (rule 7 of transfer.h): nobody knows what it holds. */
	bool tainted;
	size_t offset, length; /* of the write that is in flight, in the block */
};

/* A published region of some host, with what it must hold. */
struct target {
	int node, generation;
	bool file; /* `memory` is what the disk has; nobody may write there but the disk */
	bool allocated; /* by wh_memory_alloc() */
	bool on_gpu; /* `memory` is where the world has its bytes */
	uint64_t address; /* of `memory`, as its program knows it */
	size_t rest_length; /* of the allocation, behind the region */
	struct wh_region *rest; /* NULL: not published */
	uint8_t *memory, *shadow, *base;
	size_t size, mapped;
	bool dead; /* its owner has crashed, or has freed it */
	int64_t died;
	char name[48];
	struct wh_region *region;
	uint64_t remote;
	struct block block[PROGRAM_PLACES * PROGRAM_BLOCKS];
};

/* One transfer of a batch. */
struct op {
	struct target *target;
	int block;
	size_t offset, length, local;
	uint32_t kind; /* enum wh_op */
	uint64_t stamp; /* of the bytes that it writes */
};

/* With memory of its own; target_open() registers it as well. */
struct target *target_new(struct program *program, int slot, int generation);
struct target *target_open(struct program *program, int slot, int generation);
/* It is not registered any more: who touches its memory from now on faults. */
void target_seal(struct program *program, struct target *target);
/* False: -EBUSY, and it is still there. */
bool target_close(struct program *program, int slot, bool must);
/* Publish the rest of its allocation, or withdraw it. */
void target_toggle_rest(struct program *program, struct target *target);
void target_check(const struct target *target);
size_t target_offset(const struct op *op);
struct block *target_block(const struct op *op);
/* Whose bytes are there? To stderr. */
void target_print(const struct op *op, const uint8_t *bytes);
void pattern_fill(uint8_t *out, uint64_t stamp, size_t length);
/* Where bytes differ first from a pattern; `length`: nowhere. */
size_t pattern_differs(const uint8_t *bytes, uint64_t stamp, size_t length);
/* A transfer has ended: `status` is its own, `batch` its batch's. */
void model_settle(const struct op *op, const uint8_t *local, int status, bool may_come_late,
		  const struct past *past);
void model_check_all(void);

/* ---- notifications: note.c ------------------------------------------------------------------- */

struct note {
	int from, to; /* nodes */
	int status; /* of its batch; 1: running */
	int received;
	int64_t submitted, completed;
	struct op ops[PROGRAM_OPS];
	int op_count;
	uint64_t tag;
	size_t length;
};

struct batch;
void note_attach(struct batch *batch);
bool note_take(struct program *program, int64_t timeout);
void note_check_received(const struct program *program);

/* ---- batches: batch.c ------------------------------------------------------------------------ */

struct peer;

/* A submission. */
struct turn {
	int64_t submitted, ended; /* 0: it runs */
	int status;
};

struct batch {
	struct wh_batch *batch;
	struct program *program;
	struct peer *peer;
	struct op ops[PROGRAM_OPS];
	int op_count;
	uint8_t *local;
	uint64_t address; /* of `local`, as the program knows it */
	bool on_gpu;
	size_t local_size;
	struct wh_region *region;
	bool running, queued, called, blocks, noted;
	bool cancel_late; /* a cancel was -ETIMEDOUT */
	int pins; /* other threads that use the batch */
	int waiters; /* threads in wh_batch_wait_for() */
	int64_t overdue; /* since when they should have returned; 0: they should not */
	int submissions, callbacks;
	struct turn turns[PROGRAM_TURNS]; /* of its last submissions */
	int64_t submitted, ended;
	struct note *note;
	uint8_t *after; /* of the local memory, when the batch had ended: must not change */
};

void batch_new(struct program *program, struct batch *batch, struct peer *peer);
void batch_submit(struct batch *batch);
void batch_test(struct batch *batch);
void batch_cancel(struct batch *batch);
void batch_free(struct batch *batch);
void batch_check(const struct batch *batch);
/* Wait for it; wh_batch_wait_for(). */
int batch_wait(struct batch *batch, int64_t timeout);
/* Whoever waits for a batch that has ended returns soon: to be called again and again. */
void batch_check_waiters(struct batch *batch);
void batch_settle(struct batch *batch, int status, const char *how);
int batch_number(const struct batch *batch);

/* ---- peers and queues: peer.c ---------------------------------------------------------------- */

struct peer {
	struct wh_peer *peer;
	struct program *program;
	int place, batches;
	bool opening;
	int64_t patience; /* until it is told that nobody answers */
	int64_t begun; /* opening it */
	uint64_t epoch;
};

void peer_open(struct program *program, struct peer *peer);
void peer_close(struct peer *peer);
void peer_ask(struct peer *peer);
/* All is healed: the registry finds the engine of this place in time. */
void peer_check_name(struct program *program, int place);
/* The program that is on the other side. NULL: it has ended. */
struct program *peer_program(const struct peer *peer);
void queue_take(struct program *program, int64_t timeout);
/* It is in use, and stays. */
void queue_check_busy(struct program *program);

/* ---- members of weights: member.c -------------------------------------------------------------
 */

/* In a world with weights every program is a member: the first ones publish, the others receive. */
int member_hosts(void);
/* One thing after the other, while faults go on. */
void member_work(struct program *program);
/* All is healed: the last version has to come. */
void member_drain(struct program *program);
/* Called again until the weights are closed. */
void member_leave(struct program *program);

/* ---- served directories: folder.c ------------------------------------------------------------ */

/* In a world with folders every program serves a directory, and copies files to and from those of
 * others, as the wherry command does. As with members: work, drain, leave. */
void folder_work(struct program *program);
void folder_drain(struct program *program);
void folder_leave(struct program *program);
/* Begin to serve, and copy nothing. */
void folder_open(struct program *program);
/* Answer what others ask, for a while. */
void folder_serve(struct program *program);
/* `wherry copy`. Its exit code. */
int folder_copy(struct program *program, const char *from, const char *to, bool resume);
/* The power of a host fails. */
void folder_lose_power(int host);

/* ---- Mooncake's interface: dropin.c ---------------------------------------------------------- */

/* In a world with mooncake every program has an engine of libtransfer_engine.so instead. */
bool dropin_open(struct program *program);
/* What the options say for a variable of the environment. NULL: nothing. */
const char *dropin_setting(const char *name);
void dropin_work(struct program *program);
/* All is healed: what runs ends, and everybody reaches everybody. */
void dropin_drain(struct program *program);
/* Take what comes, for a while. */
void dropin_serve(struct program *program);
/* When nobody sends any more. */
void dropin_check_received(const struct program *program);
void dropin_close(struct program *program);

/* ---- programs: program.c --------------------------------------------------------------------- */

struct folder;
struct member;
struct dropin;

/* Where programs run: some on each host. Where one has ended another one starts. */
int place_count(void);
int place_host(int place);

struct program {
	int place, node;
	struct member *member; /* NULL: it is none, or its weights are not open */
	struct folder *folder; /* NULL: it serves none */
	struct dropin *dropin; /* instead of an engine; NULL: it has one */
	bool crashed, leaving, drained, ended;
	bool helper_leaves, helper_runs;
	struct wh_engine *engine;
	struct wh_queue *queue;
	struct peer peers[PROGRAM_PEERS];
	struct batch batches[PROGRAM_BATCHES];
	struct target *targets[PROGRAM_TARGETS];
	uint64_t epoch;
	int64_t timeout; /* ns: the setting */
	uint64_t succeeded, failed, cancelled; /* batches */
	bool measured; /* the engine has made batches of its own */
	struct wh_engine_counters counters; /* as they were last */
	char name[32];
};

enum phase {
	PHASE_FAULTS, /* programs work, and faults happen */
	PHASE_DRAIN, /* all is healed: what runs has to end */
};

extern enum phase program_phase;
extern int64_t program_healed_at;

void program_new(int place);
int program_count(void);
struct program *program_at(int index);
/* The one that runs at a place and is neither leaving nor crashed. NULL: none. */
struct program *program_at_place(int place);
/* Silent: the power of its host fails, so all programs there crash. Sets a bit of the result for
 * each place whose program has crashed. */
unsigned program_crash(struct program *program, bool silent);
/* May bytes from one place to another go by this transport? */
bool program_may_use(const char *transport, int from, int to);
/* What a GPU that stands still may delay those who plan for it. */
int64_t program_probing(void);
/* Memory of one of its GPUs, and the address of its first byte. NULL: there is none. */
uint8_t *program_gpu_memory(const struct program *program, size_t size, uint64_t *address);
/* Hosts with programs: 0 to this, exclusive. */
int program_hosts(void);
bool program_has_threads(void);
/* As wherry://. */
void program_url(int place, char *out, size_t length);
/* What the options say, for an engine. */
struct program_settings {
	const char *rows[24]; /* "NAME=VALUE", ended by NULL */
	char numbers[10][48], transports[48];
};
void program_settings(struct program_settings *out);
bool program_engine_open(struct program *program);
void program_engine_close(struct program *program);
/* The world has ended: what disks kept after wh_engine_close() is free. */
void program_check_ended(void);
void program_progress(struct program *program, int64_t timeout);

/* The simulated time that a call takes, less what its host stands still. */
struct call {
	const struct program *program;
	int64_t start, stalled, stalled_gpus;
	char text[256]; /* of the last error before it */
};

struct call call_begin(const struct program *program);
/* Fails if the call took longer than `limit` and a little, or has left the text of an error
 * although it succeeded. */
void call_end(const struct call *call, const char *name, int rc, int64_t limit);
/* The same of a call that waits for GPUs. */
void call_end_with_gpus(const struct call *call, const char *name, int rc, int64_t limit);
/* How long one of the host's GPUs has stood still since the call began. */
int64_t call_stalled_gpus(const struct call *call);

/* What the run did, for its line at the end. */
struct program_counts {
	uint64_t batches, succeeded, failed, cancelled, cancelled_late, notes, crashes, restarts;
	uint64_t opened;
	uint64_t by_self, by_cuda, by_shm, by_rdma, by_tcp; /* bytes of batches that succeeded */
	uint64_t versions; /* that members of weights have seen */
	uint64_t copies; /* of folders, that succeeded */
};

extern struct program_counts program_counts;

/* ---- one run: chaos.c, swarm.c, worlds.c ----------------------------------------------------- */

/* A thread that makes the faults which the options name, heals all, and ends. */
void *chaos_main(void *arg);

#define SWARM_MOST 128 /* options at the most */

/* Let the seed choose the options of its world. Each is drawn by its name: a new one leaves the
 * others as they were. */
void swarm_choose(uint64_t seed, bool is_long);
/* Take out what does not go together. */
void swarm_agree(void);
/* Set one option: "NAME=VALUE". False: there is none of that name. */
bool swarm_set(const char *text);
void swarm_print(bool all);
/* The calmest world. */
void swarm_calm_all(void);
/* Option `index` as "NAME=VALUE". False: no more. */
bool swarm_get(int index, char *out, size_t length);
/* "NAME=VALUE" with the calm value. False: it has it already. */
bool swarm_calm_of(const char *text, char *out, size_t length);
/* End the faults of calls that must not go on for ever. */
void swarm_heal(void);

/* A world that is told what happens in it. */
struct world {
	const char *name, *what;
	void (*run)(void);
};

const struct world *worlds_find(const char *name);
void worlds_list(void);
const struct world *worlds_at(int index); /* NULL: no more */

#endif
