/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WHERRY_TRANSFER_H
#define WHERRY_TRANSFER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct wh_batch;
struct wh_blocks;
struct wh_peer;
struct wh_queue;
struct wh_region;

enum wh_op {
	WH_READ = 1, /* from the peer's region into ours */
	WH_WRITE = 2, /* from our region into the peer's */
};

/* One transfer of `length` bytes between a region of ours and a region of the peer.
 *
 * Source and target that share bytes, in one region or in several over the same memory, can only be
 * where both sides are of one process, or of memory that two processes share:
 *  - The peer is this engine itself ("self") and the memory is the host's: the target has in the
 * end what the source had before, as by memmove().
 *  - The same with a GPU's or managed memory: -EINVAL, unless source and target are the very same
 *    bytes, which stay.
 *  - Another engine (shm, cuda, rdma, tcp): nobody notices. The bytes that both have are undefined
 * in the target, and in what was the source; the others are as they should be. Of several transfers
 * of a batch, or of batches that run at the same time, none may write what another one reads or
 * writes: they run in any order and in parts, so such bytes are undefined. */
struct wh_transfer {
	struct wh_region *local;
	uint64_t local_offset;
	uint64_t remote; /* wh_remote.id */
	uint64_t remote_offset;
	uint64_t length; /* at least 1 */
	uint32_t op; /* enum wh_op */
	uint32_t reserved;
};

/* ---- blocks: very many pieces of one length, as one descriptor ----------------------------- */

/* A pair of places that the blocks' offsets start from: one layer of a model, say. */
struct wh_base {
	struct wh_region *local;
	uint64_t local_offset;
	uint64_t remote; /* wh_remote.id */
	uint64_t remote_offset;
};

/* `count` blocks of `block_length` bytes for each of `base_count` pairs of bases. Block i of base
 * b goes between bases[b].local_offset + local_offsets[i] in bases[b].local and
 * bases[b].remote_offset + remote_offsets[i] in bases[b].remote. Where a list of offsets is NULL,
 * offset i is i * stride (a stride of 0 means block_length: one block behind the other). */
struct wh_blocks_desc {
	size_t size;
	uint32_t op; /* enum wh_op */
	uint32_t reserved;
	uint64_t block_length; /* at least 1 */
	uint64_t count; /* blocks for each base, at least 1 */
	const struct wh_base *bases;
	uint64_t base_count; /* at least 1 */
	const uint64_t *local_offsets;
	uint64_t local_stride;
	const uint64_t *remote_offsets;
	uint64_t remote_stride;
};

/* Check a descriptor against both sides' regions and keep a copy of it, ready to be added to any
 * number of batches of that peer. The caller's arrays may go afterwards.
 * 0, or -EINVAL (also: a block of a GPU's memory overlaps its own target, see struct wh_transfer),
 * -E2BIG, -ERANGE (a block lies outside its region; the text names it), -ENOENT (no such remote
 * region), -EACCES (the remote region does not grant it), -ECONNRESET (the peer has left or is
 * lost), -ESTALE (it was restarted), -ENOMEM. */
int wh_blocks_prepare(struct wh_peer *peer, const struct wh_blocks_desc *desc,
		      struct wh_blocks **out);

/* Let go of it; batches it was added to keep what they need. NULL is allowed. */
void wh_blocks_free(struct wh_blocks *blocks);

/* ---- batches ------------------------------------------------------------------------------ */

enum wh_priority {
	WH_PRIORITY_BULK = 0,
	WH_PRIORITY_LATENCY = 1, /* does not queue behind bulk batches */
};

struct wh_batch_options {
	size_t size;
	/* Where the completion is reported, besides wh_batch_poll() and wh_batch_wait(); NULL:
	 * nowhere. */
	struct wh_queue *queue;
	/* Called once a submission has completed, on one of the engine's threads, never from inside
	 * wh_batch_submit(). It may submit batches (this one too) but must not wait, cancel or
	 * free. */
	void (*callback)(struct wh_batch *batch, int status, void *arg);
	void *callback_arg;
	uint64_t user; /* handed back in completions */
	uint32_t priority; /* enum wh_priority */
	uint32_t reserved;
	/* The only transport that this batch may take ("shm"): if it cannot, wh_batch_submit()
	 * fails instead of falling back. NULL: the knob `require`, by default any. */
	const char *require;
};

/* A batch for one peer: empty, to be filled, submitted, waited for, and submitted again as often
 * as wanted. Not thread-safe: one thread at a time fills, submits and frees it; polling, waiting
 * and cancelling are safe from several. options may be NULL. 0, -EINVAL, -E2BIG, -ENOMEM. */
int wh_batch_new(struct wh_peer *peer, const struct wh_batch_options *options,
		 struct wh_batch **out);

/* Add `count` transfers; the array is copied. Each is checked against both regions now; if one
 * is wrong none is added. Transfers of a batch run in no particular order.
 * 0, or -EINVAL (the text names the transfer and the field), -ERANGE (outside the region), -ENOENT
 * (the peer publishes no such region), -ECONNRESET (nor does it, for the peer has left or is lost),
 * -ESTALE (it was restarted), -EACCES (not granted), -EBUSY (the batch is running), -ENOMEM. */
int wh_batch_add(struct wh_batch *batch, const struct wh_transfer *transfers, size_t count);

/* Add prepared blocks. 0, or -EINVAL (prepared for another peer), -EBUSY, -ENOMEM. */
int wh_batch_add_blocks(struct wh_batch *batch, struct wh_blocks *blocks);

/* Send `length` bytes (1 to WH_NOTIFICATION_MAX) to the peer's wh_engine_notification() once, and
 * only once, all of the batch's bytes are visible there. One for each batch; a second call replaces
 * the first. The bytes are copied. A batch may consist of a notification alone. */
int wh_batch_notify(struct wh_batch *batch, const void *data, size_t length);

/* Empty the batch for another use. -EBUSY while it is running. */
int wh_batch_clear(struct wh_batch *batch);

/* Start it. The source bytes must stay unchanged, and the target is undefined, until it completes.
 * May copy or send some of the bytes before it returns (up to the knob `inline`), but never waits
 * for the peer, save to reach it the first time.
 * 0, or -EINVAL (empty), -EBUSY (running), -ECONNRESET (the peer is lost), -ESTALE (it restarted,
 * or a region is gone), -EOPNOTSUPP (no transport, or not the required one; the text says why). */
int wh_batch_submit(struct wh_batch *batch);

/* A CUDA stream of the application's. */
struct wh_stream {
	size_t size;
	void *stream; /* CUstream or cudaStream_t; NULL: the default stream */
	/* Where a default stream is ("cuda:0", "cuda:GPU-<uuid>"): its primary context. NULL: the
	 * context that is current in this thread. Other streams know it themselves. */
	const char *device;
};

/* Start the batch when everything has been done that is on the stream now, such as the kernel that
 * makes its source bytes; by whatever transports it goes. Does not wait for that: returns as
 * wh_batch_submit() does, and the batch can be waited for, polled and cancelled meanwhile. If the
 * work on the stream fails, so does the batch. The stream's context has to live until the batch has
 * started. As wh_batch_submit(), or -ENODEV and others of the driver, -EBUSY (the stream is being
 * captured). */
int wh_batch_submit_after(struct wh_batch *batch, const struct wh_stream *stream);

/* Make the stream wait for the submission of the batch that is running: what is put on the stream
 * after this call starts when the batch has completed, well or with an error or cancelled. Nothing
 * to wait for if it is not running. Does not block. 0, or -EINVAL, -ENODEV, -EOPNOTSUPP (the
 * driver), -EBUSY (the stream is being captured). */
int wh_batch_hold_stream(struct wh_batch *batch, const struct wh_stream *stream);

/* Has it completed? 0: completed well, every byte visible at its target; -EINPROGRESS; else the
 * errno of its first failure. A batch never submitted is -EINVAL. Does not block. */
int wh_batch_poll(struct wh_batch *batch);

/* How many bytes of its last submission are not awaited any more: they have been moved, or given
 * up. A peer that answers pings and moves nothing is not lost: who wants a deadline waits with a
 * timeout, looks here whether the number has changed, and cancels. It grows by parts, which are up
 * to the knob `slice` over a network and up to the whole batch where GPUs move it, and goes back
 * where a part is moved again by another transport. Does not block; thread-safe as wh_batch_poll().
 * 0, or -EINVAL (NULL, or a batch that was never submitted). */
int wh_batch_progress(struct wh_batch *batch, uint64_t *bytes);

/* Wait up to `timeout` ns for it; WH_FOREVER: without a limit. As wh_batch_poll(), with -ETIMEDOUT
 * for not yet (the batch goes on), -EINVAL for a negative timeout, whatever the batch's state,
 * -EDEADLK in a callback. */
int wh_batch_wait(struct wh_batch *batch, int64_t timeout);

/* Give it up. When this returns 0, neither side's memory is touched by the batch any more, and
 * the buffers may be used again; its status is then -ECANCELED, or what it was if it had completed.
 * What has been moved already stays. Blocks for a round trip at most as a rule; if the peer does
 * not answer within the knob `timeout`, the connection is cut: -ETIMEDOUT, our memory is free, the
 * peer's may see bytes that were on their way. -EINVAL if it was never submitted, -EDEADLK from a
 * callback. */
int wh_batch_cancel(struct wh_batch *batch);

/* Free it. -EBUSY while it is running. NULL is allowed. */
int wh_batch_free(struct wh_batch *batch);

/* ---- what became of it -------------------------------------------------------------------- */

/* How transfer number `index` (in the order they were added, over all wh_batch_add() calls) ended:
 * 0 or a negative errno; -EINPROGRESS before the batch has completed; -EINVAL for no such one. */
int wh_batch_result(struct wh_batch *batch, size_t index);

/* The text of the batch's first failure; "" if there was none. Good until the batch is submitted
 * again or freed. Call it after completion. */
const char *wh_batch_error_text(const struct wh_batch *batch);

/* One transport's part in a batch. */
struct wh_route {
	char transport[16]; /* "self", "cuda", "shm", "rdma", "tcp" */
	char detail[48]; /* how: "mapped memfd", "kernel of cuda:0, push" */
	uint64_t bytes; /* moved by it; 0: refused or not needed */
	uint64_t transfers; /* transfers and blocks that took it */
	char refused[192]; /* why it was not taken where it would have been better; "": it was not
			      refused */
	/* 1: the refusal follows from what was asked for (another transport is required, a
	 * setting), from what the peer is (`self` for another engine, `shm` for another host), or
	 * there is no such device here. It surprises nobody: wherry copy leaves it out, wherry
	 * explain does not. */
	uint32_t inapplicable;
	uint32_t reserved; /* 0 */
};

/* The routes of the last submission, best first. *count is the room in `out` on entry and the
 * number of routes on return. Before a submission: what would be taken and why not better.
 * 0, -ENOSPC (count says how many there are). */
int wh_batch_routes(struct wh_batch *batch, struct wh_route *out, size_t *count);

/* How long a batch takes of what moves it. */
struct wh_estimate {
	size_t size; /* set by the caller */
	uint64_t bytes; /* of the batch */
	uint64_t transfers; /* and blocks */
	/* ns, parts one after the other. What GPUs move, by the better of their engines, where
	 * batches follow each other: one that is alone takes the way to the GPU and back besides,
	 * some us. What is staged through pinned memory, by the slower of the two sides. What the
	 * CPU or a network moves, of a batch that is alone, from its submission to its completion.
	 * 0: not known. */
	uint64_t duration;
	uint64_t kernel; /* ns, if it all went by the gather-scatter kernel; 0: none of it can */
	uint64_t copies; /* ns, if it all went by the copy engines; 0: none of it can */
	uint32_t ctas; /* of the kernel, if all addresses are aligned as the lengths are */
	/* 1: from what was measured here when such a way was first used; 0: from what is usual. */
	uint32_t measured;
	/* Bytes that were walked through to measure what the CPU or a network moves: 64 MiB, or as
	 * much as the peer's region has. What fits into the CPU's caches came from there, several
	 * times as fast as from memory. 0: nothing was measured in this way. */
	uint64_t working_set;
};

/* What is to be expected of the batch, by the routes that it takes or would take. Moves nothing of
 * the batch's. The first time that it is asked about a way that the CPU or a network is, it
 * measures that one: up to 64 MiB are read a few times from a region of the peer's that may be read
 * and is 64 KiB long at least, into memory that is taken for it, which blocks for half a second or
 * less, and is counted as other transfers are; where there is none, the duration is not known.
 * Writes are taken to cost what reads do. In a callback nothing is measured. Thread-safe. 0, or
 * -EINVAL, -E2BIG, -EOPNOTSUPP (no transport takes it, or it is a notification alone), and what
 * wh_batch_routes() says. */
int wh_batch_estimate(struct wh_batch *batch, struct wh_estimate *out);

/* wh_batch_routes() as text for a person, one route a line, NUL-terminated, cut to `length` bytes.
 * Returns the length of the whole text without the NUL, or a negative errno. */
int wh_batch_explain(struct wh_batch *batch, char *text, size_t length);

#ifdef __cplusplus
}
#endif
#endif
