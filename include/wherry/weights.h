/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The weights of a model, from the engines that hold them to many others, in another shape
 * (docs/weights.md).
 *
 * Two layouts say which engine holds which part of each tensor, and which engine wants which.
 * Every member, an engine that one of the layouts names, opens the same two layouts, and computes
 * the same plan from them. A source publishes a version when its memory holds it. The targets then
 * read what they want, from the sources and from each other: who has a piece hands it on.
 *
 *   sources                                  targets
 *   wh_weights_open()                        wh_weights_open()
 *   ... fill the memory ...                  wh_weights_acquire(): waits for a version
 *   wh_weights_publish(weights, 1)           ... use it: no byte of it changes ...
 *   wh_weights_wait(weights, 1, timeout)     wh_weights_release()
 *   wh_weights_retract(weights)
 *   ... the memory may change again ...
 *
 * What a member can rely on:
 *   - A view has one version, whole. A target has two buffers: one with the version that readers
 *     get, one that receives the next. It changes from one to the other when all bytes have come,
 *     and are known to be of that version on the engines that they came from.
 *   - A version number is given to one content, by all sources, and grows. After a restart a source
 *     publishes a greater number than all before, unless its bytes are the same.
 *   - Nobody writes to a member's memory but that member. So a target that is slow, or dies, delays
 *     nobody. One that comes later, or comes back, receives the newest version that the others
 *     still hold. If an engine dies that a target reads from, the target takes the rest from
 *     another one that has it.
 *   - A member's memory can be read by the targets that the layouts name, and by no other engine.
 *     A target takes bytes only from the engines that its own layouts name. What a name is worth
 *     depends on how engines prove it (docs/security.md).
 */
#ifndef WHERRY_WEIGHTS_H
#define WHERRY_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct wh_engine;
struct wh_memory_options;
struct wh_weights;

/* ---- layouts ------------------------------------------------------------------------------ */

/* The most dimensions of a tensor. */
#define WH_WEIGHTS_DIMS 8

struct wh_weights_tensor {
	const char *name; /* 1 to 255 bytes of UTF-8 without control characters */
	/* "bf16", "f32", "u8", ... as in docs/weights.md, or another word of up to 15 bytes */
	const char *type;
	const uint64_t *shape; /* `dims` sizes, none of them 0 */
	uint32_t dims; /* 0: a scalar */
	uint32_t item_bytes; /* of an element; 0: those of `type` */
	uint64_t reserved[2]; /* 0 */
};

/* What the plan assumes of a host; 0: a typical value (docs/weights.md). Rates are GB/s (10^9) in
 * each direction, latencies us. */
struct wh_weights_host {
	const char *name; /* as in wh_weights_engine.host */
	uint32_t nics; /* at most 1,024; GPU n uses NIC n modulo that */
	uint32_t reserved0; /* 0 */
	double nic_rate, nic_latency; /* of one NIC */
	double uplink_rate; /* of its NICs together; 0: no limit */
	double gpu_rate, gpu_latency; /* of one GPU to others of the host */
	double copy_rate; /* within one GPU's memory */
	double memory_rate; /* of the host's memory: all copies within it together */
	double engine_rate; /* that one engine copies within it; 0: no limit but that */
	uint64_t reserved; /* 0 */
};

struct wh_weights_engine {
	const char *name; /* as wh_engine_name() */
	/* Engines with the same text are on one host: bytes enter it once. NULL: a host of its own
	 */
	const char *host;
	/* "cuda:0" or "cuda:0,...": the GPU whose memory its regions are. NULL or "host": the
	 * host's. For the plan only. */
	const char *location;
	/* Where it listens, as wh_engine_url(). NULL: the engines find it by its name in the
	 * registry; without a registry it must be the one that knows the others' URLs. */
	const char *url;
	uint64_t reserved[2]; /* 0 */
};

/* Memory of an engine. */
struct wh_weights_region {
	const char *name; /* unique in its engine */
	uint64_t bytes;
	uint32_t engine; /* an index of wh_weights_layout.engines */
	uint32_t reserved0; /* 0 */
	uint64_t reserved[2]; /* 0 */
};

/* A part of a tensor in a region: begin <= x < end for each dimension. */
struct wh_weights_slice {
	uint32_t tensor; /* an index of wh_weights_layout.tensors */
	uint32_t region; /* an index of wh_weights_layout.regions */
	uint64_t offset; /* bytes, of its first element in the region */
	const uint64_t *begin, *end; /* NULL: all of the tensor */
	/* Bytes from one element to the next, for each dimension. NULL: the slice lies in one run,
	 * the last dimension fastest. */
	const uint64_t *stride;
	uint64_t reserved[2]; /* 0 */
};

struct wh_weights_layout {
	size_t size;
	const char *label; /* for errors: where it comes from. NULL: "sources", "targets" */
	const struct wh_weights_host *hosts; /* those that are not typical */
	const struct wh_weights_tensor *tensors;
	const struct wh_weights_engine *engines;
	const struct wh_weights_region *regions;
	const struct wh_weights_slice *slices;
	uint32_t host_count, tensor_count, engine_count, region_count, slice_count;
	uint32_t reserved; /* 0 */
};

/* ---- members ------------------------------------------------------------------------------ */

/* The memory behind a region that the layouts give to this engine. */
struct wh_weights_memory {
	const char *region; /* its name */
	/* A source's memory is the first. A target has two buffers; if both are the same address,
	 * it has one, and receives one version and no other. All NULL: the library allocates, with
	 * wh_weights_options.allocate. The caller keeps its own memory until wh_weights_close(). */
	void *address[2];
	uint64_t reserved[2]; /* 0 */
};

#define WH_WEIGHTS_TAG UINT64_C(0x5754475700000000)

struct wh_weights_options {
	size_t size;
	/* Who holds what before, and who wants what. Copied. An engine may be in both. */
	const struct wh_weights_layout *sources, *targets;
	/* Of this engine's regions; those that are not named are allocated. */
	const struct wh_weights_memory *memory;
	uint32_t memory_count;
	uint32_t reserved; /* 0 */
	/* How to allocate; NULL: shared memory of the host. */
	const struct wh_memory_options *allocate;
	/* Tells several sets of weights of one engine apart: 1 to 31 of the characters A-Z a-z 0-9
	 * . _ -. The members' regions have names that begin with it. NULL: "weights". */
	const char *name;
	/* Parts of tensors that may take different ways, and pieces that are handed on, in bytes.
	 * The same for all members. 0: 64 MiB; 4 MiB, or what the slowest NIC of several hosts
	 * moves in 5 ms. */
	uint64_t chunk, piece;
};

/* Become a member: compute the plan, register the memory, and start a thread, which connects to
 * the members that the plan names, and moves their bytes. Blocks while the plan is computed and
 * memory is allocated, not on other members: they may come and go at any time. If it fails, it
 * returns when no peer reads the memory any more: as wh_region_unregister(), called until it is 0.
 *
 * The members talk by notifications, with tags whose upper 32 bits are those of WH_WEIGHTS_TAG. A
 * program that takes notifications of the same engine uses a filter for its own.
 *
 * 0, or -EINVAL (options; a layout contradicts itself, or the other one: the text has both sides in
 * one line), -ENOENT (a target wants what no source holds; no layout names this engine; memory is
 * given for a region that it does not have), -EEXIST (two of one name, or this engine has such
 * weights already), -ERANGE, -E2BIG, -ENOMEM, -EOPNOTSUPP (the engine has no threads), -EDEADLK
 * (called from a callback), -EAGAIN (no thread), or an error of wh_memory_alloc() or
 * wh_region_register(). */
int wh_weights_open(struct wh_engine *engine, const struct wh_weights_options *options,
		    struct wh_weights **out);

/* Leave. Readers have released their views, and no thread uses the weights any more. Others that
 * read from this member take the rest from another one. Frees what was allocated. May block as
 * wh_region_unregister() and wh_batch_cancel() do. 0, or -EBUSY (a view is not released; or a peer
 * on this host has not let go of the memory: call again). */
int wh_weights_close(struct wh_weights *weights);

/* Of a source: its memory holds `version`, a number from 1 that is greater than the one before, and
 * does not change until wh_weights_retract(). Targets begin when all sources that they read from
 * have published it. Does not block. 0, or -EINVAL, -EACCES (no source), -EALREADY (a version
 * before it was not retracted). */
int wh_weights_publish(struct wh_weights *weights, uint64_t version);

/* Of a source: its memory may change again, at once. Targets that have not read all of the version
 * take the rest from others that have it, or wait for the next one; what they have read of it while
 * the memory changed is thrown away. Does not block. 0, or -EACCES (no source). */
int wh_weights_retract(struct wh_weights *weights);

/* Wait until this member, if it is a target, and all targets, if it is a source, have `version`, or
 * a later one. Targets that were connected and are lost do not count. 0, or -EAGAIN (not in
 * `timeout` ns), -EINVAL (a member opened other layouts: the text says which line differs, and both
 * sides), -EACCES (a member refuses this one), -EDEADLK (called from a callback). */
int wh_weights_wait(struct wh_weights *weights, uint64_t version, int64_t timeout);

/* What a reader gets. */
struct wh_weights_view {
	size_t size; /* set by the caller */
	uint64_t version;
	/* Of each region that the targets' layout gives to this engine, in its order. The weights
	 * own the array. */
	void *const *addresses;
	uint32_t count; /* of them */
	uint32_t buffer; /* 0 or 1 */
};

/* Of a target: get the newest version that is there, if it is greater than `after`; wait up to
 * `timeout` ns for it. Its bytes do not change until wh_weights_release(). While a reader keeps the
 * version before the newest, the next one after that cannot be received. Several threads may have
 * views. 0, or -EAGAIN (none in that time), -EINVAL and -EACCES as for wh_weights_wait(), -EACCES
 * (no target), -E2BIG. */
int wh_weights_acquire(struct wh_weights *weights, uint64_t after, int64_t timeout,
		       struct wh_weights_view *out);

/* Give a view back. Work that reads it, on GPUs too, has ended. 0, or -EINVAL. */
int wh_weights_release(struct wh_weights *weights, const struct wh_weights_view *view);

/* Of a target: give up `version` and all before it. What is being received of them is thrown away,
 * and not begun again; a later version is received as usual, and the one that readers get stays.
 * Returns when nothing is written to the other buffer any more; that may take the setting `timeout`
 * of the engine if another member does not answer. 0, or -EACCES (no target), -EDEADLK (called from
 * a callback). */
int wh_weights_cancel(struct wh_weights *weights, uint64_t version);

/* ---- what it does ------------------------------------------------------------------------- */

struct wh_weights_info {
	size_t size; /* set by the caller */
	uint64_t published; /* as a source: the last version; 0: none */
	uint64_t current; /* as a target: the version that readers get; 0: none */
	uint64_t receiving; /* the version that is being received; 0: none */
	uint64_t bytes, received; /* of one version, and of `receiving` so far */
	uint64_t total; /* bytes that this member has received since it was opened */
	uint32_t steps; /* of the plan that bring bytes to this member */
	uint32_t members; /* that the layouts name */
};

/* Describe this member. Does not block. 0, or -EINVAL, -E2BIG. */
int wh_weights_info(struct wh_weights *weights, struct wh_weights_info *info);

enum wh_weights_state {
	WH_WEIGHTS_UNUSED = 0, /* this member has no reason to connect to it */
	WH_WEIGHTS_CONNECTING = 1, /* not reached yet */
	WH_WEIGHTS_CONNECTED = 2,
	WH_WEIGHTS_LOST = 3, /* was reached, and is not now */
	WH_WEIGHTS_REFUSED = 4, /* opened other layouts, or refuses this member: see `error` */
};

/* Another member, as this one knows it. */
struct wh_weights_member {
	size_t size; /* set by the caller */
	char name[64];
	uint32_t state; /* enum wh_weights_state */
	uint32_t roles; /* 1: a source, 2: a target, 3: both */
	uint64_t published; /* as a source */
	uint64_t current; /* as a target: the newest version that it has whole */
	uint64_t receiving, received; /* the version that it receives, and its bytes so far */
	uint64_t sent; /* bytes that this member has read from it */
	char error[256]; /* why it is not connected; "": no reason is known */
	char route[72]; /* by which those bytes came: "tcp, 4 connections"; "": none has come */
};

/* Describe member `index`, from 0; the sources come first. Does not block. 0, or -ENOENT (past the
 * last one), -EINVAL, -E2BIG. */
int wh_weights_member(struct wh_weights *weights, uint32_t index, struct wh_weights_member *out);

/* Write text for people to `text`: what this member has and receives, from whom, by which route,
 * what is missing, and where the time of the last version that came went; truncated to `length`
 * bytes with the NUL. Returns the length of the whole text without the NUL, or a negative errno. */
int wh_weights_explain(struct wh_weights *weights, char *text, size_t length);

#ifdef __cplusplus
}
#endif
#endif
