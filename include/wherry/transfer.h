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
	WH_READ = 1, /* from the peer's region into the local one */
	WH_WRITE = 2, /* from the local region into the peer's */
};

/* One transfer of `length` bytes between a local region and a region of the peer.
 *
 * Source and target may overlap if both are memory of one process, or memory that two processes
 * share:
 *  - The peer is "self" and the memory is the host's: the target ends up with the source's former
 *    bytes, as with memmove().
 *  - The peer is "self" and the memory is a GPU's, or managed: -EINVAL, unless source and target
 *    are exactly the same bytes, which stay unchanged.
 *  - The peer is another engine (shm, cuda, rdma, tcp): the overlap is not detected. The shared
 *    bytes are undefined afterwards; all other bytes are correct.
 *
 * Transfers of a batch, and batches that run at the same time, proceed in any order and in parts.
 * None may write bytes that another one reads or writes: such bytes are undefined. */
struct wh_transfer {
	struct wh_region *local;
	uint64_t local_offset;
	uint64_t remote; /* wh_remote.id */
	uint64_t remote_offset;
	uint64_t length; /* at least 1 */
	uint32_t op; /* enum wh_op */
	uint32_t reserved;
};

/* ---- blocks: very many transfers of one length, as one descriptor ---------------------------- */

/* A pair of addresses that the blocks' offsets are relative to, for example one layer of a model.
 */
struct wh_base {
	struct wh_region *local;
	uint64_t local_offset;
	uint64_t remote; /* wh_remote.id */
	uint64_t remote_offset;
};

/* `count` blocks of `block_length` bytes for each of `base_count` bases. Block i of base b is a
 * transfer between bases[b].local_offset + local_offsets[i] in bases[b].local and
 * bases[b].remote_offset + remote_offsets[i] in bases[b].remote. If a list of offsets is NULL,
 * offset i is i * stride; a stride of 0 means block_length, which puts blocks side by side. */
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

/* Check a descriptor against both sides' regions and copy it. The result can be added to any number
 * of batches of that peer. The arrays are copied, too.
 * 0, or -EINVAL (also: a block of GPU memory overlaps its own target, see struct wh_transfer),
 * -E2BIG, -ERANGE (a block lies outside its region; the text names it), -ENOENT (no such remote
 * region), -EACCES (the remote region does not grant it), -ECONNRESET (the peer has left or is
 * lost), -ESTALE (it was restarted), -ENOMEM. */
int wh_blocks_prepare(struct wh_peer *peer, const struct wh_blocks_desc *desc,
		      struct wh_blocks **out);

/* Free the descriptor. Batches to which it was added keep what they need. NULL is allowed. */
void wh_blocks_free(struct wh_blocks *blocks);

/* ---- batches ------------------------------------------------------------------------------ */

enum wh_priority {
	WH_PRIORITY_BULK = 0,
	WH_PRIORITY_LATENCY = 1, /* does not wait behind bulk batches */
};

struct wh_batch_options {
	size_t size;
	/* A queue that receives the completion as well; NULL: none. */
	struct wh_queue *queue;
	/* Called when a submission has completed, on one of the engine's threads, never within
	 * wh_batch_submit(). It may submit batches, including this one. It must not wait, cancel or
	 * free. */
	void (*callback)(struct wh_batch *batch, int status, void *arg);
	void *callback_arg;
	uint64_t user; /* returned in completions */
	uint32_t priority; /* enum wh_priority */
	uint32_t reserved;
	/* The only transport that this batch may use ("shm"). If that is impossible,
	 * wh_batch_submit() fails instead of falling back. NULL: the setting `require`, by default
	 * any. */
	const char *require;
};

/* Create an empty batch for one peer. It can be submitted any number of times. Only one thread at a
 * time may fill, submit or free it; several may poll, wait and cancel. options may be NULL.
 * 0, or -EINVAL, -E2BIG, -ENOMEM. */
int wh_batch_new(struct wh_peer *peer, const struct wh_batch_options *options,
		 struct wh_batch **out);

/* Add `count` transfers; the array is copied. Each is checked against both regions now. If one is
 * wrong, none is added. Transfers of a batch run in no particular order.
 * 0, or -EINVAL (the text names the transfer and the field), -ERANGE (outside the region), -ENOENT
 * (the peer publishes no such region), -ECONNRESET (no such region, and the peer has left or is
 * lost), -ESTALE (it was restarted), -EACCES (not granted), -EBUSY (the batch is running),
 * -ENOMEM. */
int wh_batch_add(struct wh_batch *batch, const struct wh_transfer *transfers, size_t count);

/* Add prepared blocks. 0, or -EINVAL (prepared for another peer), -EBUSY, -ENOMEM. */
int wh_batch_add_blocks(struct wh_batch *batch, struct wh_blocks *blocks);

/* Attach a notification of `length` bytes (1 to WH_NOTIFICATION_MAX), which the peer receives with
 * wh_engine_notification(), exactly once, after all of the batch's bytes are visible there. A batch
 * has at most one: a second call replaces it. The bytes are copied. A batch may consist of a
 * notification alone. */
int wh_batch_notify(struct wh_batch *batch, const void *data, size_t length);

/* Empty the batch, so that it can be filled again. 0, or -EBUSY (it is running). */
int wh_batch_clear(struct wh_batch *batch);

/* Start the batch. Until it completes, the source must not change, and the target's bytes are
 * undefined. May copy or send up to the setting `inline` before it returns. Waits for the peer only
 * to connect to it the first time.
 * 0, or -EINVAL (empty), -EBUSY (running), -ECONNRESET (the peer is lost), -ESTALE (it restarted,
 * or a region is gone), -EOPNOTSUPP (no transport, or not the required one; the text says why). */
int wh_batch_submit(struct wh_batch *batch);

/* A CUDA stream of the application. */
struct wh_stream {
	size_t size;
	void *stream; /* CUstream or cudaStream_t; NULL: the default stream */
	/* For a default stream: the device ("cuda:0", "cuda:GPU-<uuid>") whose primary context it
	 * belongs to. NULL: the calling thread's current context. Other streams know their context.
	 */
	const char *device;
};

/* Start the batch after all work that is on the stream now, such as the kernel that produces its
 * source bytes. Works with every transport. Returns without waiting for the stream, as
 * wh_batch_submit() does; meanwhile the batch can be waited for, polled and cancelled. If the work
 * on the stream fails, the batch fails. The stream's context must live until the batch has started.
 * 0, or as wh_batch_submit(); -EBUSY also if the stream is being captured; -ENODEV and other errors
 * of the driver. */
int wh_batch_submit_after(struct wh_batch *batch, const struct wh_stream *stream);

/* Make the stream wait for the batch, as cudaStreamWaitEvent() does for an event: work that is put
 * on the stream after this call starts when the running submission has completed, with success,
 * with an error, or cancelled. If the batch is not running, the stream does not wait. Does not
 * block. 0, or -EINVAL, -ENODEV, -EOPNOTSUPP (the driver), -EBUSY (the stream is being captured).
 */
int wh_batch_hold_stream(struct wh_batch *batch, const struct wh_stream *stream);

/* Check whether the batch has completed. 0: with success, and every byte is visible at its target;
 * -EINPROGRESS: not yet; -EINVAL: it was never submitted; else the errno of its first failure. Does
 * not block. */
int wh_batch_poll(struct wh_batch *batch);

/* Get the number of bytes of the last submission that are settled: moved, or given up. A peer that
 * answers pings but moves nothing is not lost. To set a deadline, wait with a timeout, check
 * whether this number has changed, and cancel. The number grows in steps: up to the setting `slice`
 * over a network, up to the whole batch where GPUs move it. It decreases when another transport
 * moves some bytes again. Does not block. Several threads may call it. 0, or -EINVAL (NULL, or a
 * batch that was never submitted). */
int wh_batch_progress(struct wh_batch *batch, uint64_t *bytes);

/* Wait up to `timeout` ns until the batch completes; WH_FOREVER: without a limit. Returns what
 * wh_batch_poll() does, but -ETIMEDOUT for "not yet" (the batch continues), -EINVAL for a negative
 * timeout in every state of the batch, and -EDEADLK in a callback. */
int wh_batch_wait(struct wh_batch *batch, int64_t timeout);

/* Cancel the batch. When this returns 0, the batch no longer touches the memory of either side, and
 * the buffers may be reused. The batch's status is then -ECANCELED, or unchanged if it had
 * completed. Bytes that were moved already stay moved. Usually blocks for at most a round trip.
 * 0, or -ETIMEDOUT (the peer did not answer within the setting `timeout`, so the connection was
 * cut: the local memory is free, but bytes in flight may still arrive in the peer's), -EINVAL (it
 * was never submitted), -EDEADLK (called from a callback). */
int wh_batch_cancel(struct wh_batch *batch);

/* Free the batch. 0, or -EBUSY (it is running). NULL is allowed. */
int wh_batch_free(struct wh_batch *batch);

/* ---- results -------------------------------------------------------------------------------- */

/* Get the result of transfer `index`, counted in the order of all wh_batch_add() calls. 0 or a
 * negative errno; -EINPROGRESS: the batch has not completed; -EINVAL: there is no such transfer. */
int wh_batch_result(struct wh_batch *batch, size_t index);

/* The text of the batch's first failure; "" if there was none. Call it after completion. Valid
 * until the batch is submitted again or freed. */
const char *wh_batch_error_text(const struct wh_batch *batch);

/* What one transport did for a batch. */
struct wh_route {
	char transport[16]; /* "self", "cuda", "shm", "rdma", "tcp" */
	char detail[48]; /* how: "mapped memfd", "kernel of cuda:0, push" */
	uint64_t bytes; /* moved by it; 0: refused or not needed */
	uint64_t transfers; /* transfers and blocks that it moved */
	char refused[192]; /* why it was not used where it would have been better; "": it was not
			      refused */
	/* 1: the refusal is expected: because of a setting or a required transport, because of what
	 * the peer is (`self` for another engine, `shm` for another host), or because this machine
	 * has no such device. `wherry explain` shows it, `wherry copy` does not. */
	uint32_t inapplicable;
	uint32_t reserved; /* 0 */
};

/* Get the routes of the last submission, best first; before a submission, the routes that it would
 * take. *count is the room in `out` on entry and the number of routes on return.
 * 0, or -ENOSPC (*count is the number of routes). */
int wh_batch_routes(struct wh_batch *batch, struct wh_route *out, size_t *count);

/* The expected duration of a batch. */
struct wh_estimate {
	size_t size; /* set by the caller */
	uint64_t bytes; /* of the batch */
	uint64_t transfers; /* and blocks */
	/* ns; the sum over the batch's fragments. 0: not known.
	 * GPU: by the faster of kernel and copy engine, in a sequence of batches; an isolated batch
	 * adds one GPU round trip (a few us). Staged through pinned memory: by the slower of the
	 * two sides. CPU or network: of an isolated batch, from submission to completion. */
	uint64_t duration;
	uint64_t kernel; /* ns, with the gather-scatter kernel alone; 0: not possible */
	uint64_t copies; /* ns, with the copy engines alone; 0: not possible */
	uint32_t ctas; /* of the kernel, if addresses are as aligned as the lengths */
	/* 1: based on a measurement here, at the route's first use; 0: on typical values */
	uint32_t measured;
	/* Bytes of the working set in which CPU or network routes were measured: 64 MiB, or the
	 * size of the peer's region. A working set that fits into the CPU's caches is several times
	 * as fast as memory. 0: nothing was measured in this way. */
	uint64_t working_set;
};

/* Estimate the batch's duration, by the routes that it takes or would take. Moves none of the
 * batch's bytes. The first estimate for a route by CPU or network measures it: it reads up to 64
 * MiB a few times from a readable region of the peer of at least 64 KiB into temporary memory. That
 * blocks for at most half a second, and appears in the counters like other transfers. If there is
 * no such region, the duration is not known. Writes are assumed to cost as much as reads. Nothing
 * is measured in a callback. Several threads may call it. 0, or -EINVAL, -E2BIG, -EOPNOTSUPP (no
 * transport can move the batch, or it is a notification alone), or as wh_batch_routes(). */
int wh_batch_estimate(struct wh_batch *batch, struct wh_estimate *out);

/* Write the routes as text for people to `text`, one per line, truncated to `length` bytes with the
 * NUL. Returns the length of the whole text without the NUL, or a negative errno. */
int wh_batch_explain(struct wh_batch *batch, char *text, size_t length);

#ifdef __cplusplus
}
#endif
#endif
