/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory model: what a program can rely on when batches and its own threads use the same bytes.
 * docs/memory-model.md has the reasons, examples and costs.
 *
 *  1. Until a batch has completed, its source must not change, and its target holds old bytes, new
 *     ones, or both. Exceptions: rules 4 and 5.
 *  2. A batch has completed when a wh_batch call, a queue or a callback says so. After success, all
 *     of its bytes are visible to
 *      - the initiator's threads, for reads; and the owner's threads, for writes, once they learn
 *        of the completion in a way that orders memory (a message, a lock, an atomic variable);
 *      - GPU work that is launched afterwards, and work behind wh_batch_make_stream_wait();
 *      - batches that are submitted afterwards, to any peer, by any transport.
 *     With rdma, a write has reached the owner's NIC, and a notification (rule 3) says that it has
 *     reached memory.
 *  3. A notification arrives after all bytes of its batch are visible to the owner's threads and to
 *     GPU work that these launch, whatever moved the bytes, in several parts or not. It is the one
 *     signal that holds for every transport. It says nothing of other batches that still run. With
 *     rdma it goes over TCP if several NICs carried the bytes or it has more than 4,096 bytes: no
 *     document of the hardware says that the bytes are first then (docs/memory-model.md).
 *  4. Atomic: a transfer or block of 1, 2, 4 or 8 bytes, aligned to its length on both sides, is
 *     seen as a whole where the table says so. Elsewhere single bytes are. Longer ones never are.
 *  5. A flag after data: write the data, wait until that batch has completed, then write the flag
 *     in a second batch. A thread that sees the new flag with an acquire load sees the data, where
 *     the table says so. The flag may be polled while the batch runs. Where only one byte is
 *     atomic, old and new value must differ in one byte only.
 *  6. Nothing orders the transfers of a batch, nor batches that run at the same time, whatever
 *     their size, priority and transport. There is no fence: the end of a batch is one.
 *  7. A fragment that changes its transport or connection starts again only when both ends have
 *     given up the former path. So old bytes do not overwrite newer ones after a success, nor after
 *     wh_batch_cancel() returned 0. If a batch has failed and its peer was lost while it ran, they
 *     may, while the owner keeps the old session; wh_batch_cancel() returns -ETIMEDOUT then.
 *  8. Transfers move bytes. There is no remote fetch-and-add, and no compare-and-swap.
 *
 *                               atomic (4)        flag after data (5), seen by
 *                               host    GPU       owner's thread    kernel that runs already
 *     self                      1 to 8  -         yes               in pinned memory
 *     shm, mapped               1 to 8  -         yes               in pinned memory
 *     shm, process_vm           1       -         yes               in pinned memory
 *     cuda, CPU window          1 to 8  1 to 8    yes               yes
 *     cuda, GPU                 1       1         yes               not promised by CUDA
 *     rdma                      1       1         no: rule 3        no: rule 3
 *     tcp                       1       1         yes               by a window (below)
 *     tcp with tls              1       1         no: rule 3        no: rule 3
 *     struct wh_window          -       1 to 8    -                 yes (window.h)
 *
 * wh_batch_routes() says which row moved a batch. The setting `require` and the option of the same
 * name keep it to one transport. A kernel that polls must load with acquire and system scope
 * (ld.acquire.sys, cuda::atomic_ref), must leave room on its GPU for the kernels and copies that
 * move the bytes, and must not depend on work that the program has not submitted. tcp to GPU memory
 * sets a flag by a window or by a GPU copy; for the latter the row "cuda, GPU" holds.
 *
 * Costs: a notification with its bytes takes one message more over the control connection, none
 * more with rdma where it follows the bytes. A second batch for a flag takes its own latency.
 * wh_window_flush() takes one read from the GPU, about 1 us.
 */
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
	uint64_t length; /* 0: nothing moves, and neither region is looked at */
	uint32_t op; /* enum wh_op */
	uint32_t reserved;
};

/* The same by addresses: the engine finds the regions. */
struct wh_address_transfer {
	void *local; /* any address in a region of this engine; GPU memory: its device address */
	/* remote_region is 0: an address in the peer's address space (as wh_remote.address); else
	 * an offset in that region */
	uint64_t remote;
	uint64_t remote_region; /* wh_remote.id, or 0 */
	uint64_t length; /* 0: as above, and neither address */
	uint32_t op; /* enum wh_op */
	uint32_t reserved; /* 0 */
};

/* ---- blocks: very many transfers of one length, as one descriptor ---------------------------- */

/* A pair of addresses that the blocks' offsets are relative to, for example one layer of a model.
 */
struct wh_base {
	struct wh_region *local;
	uint64_t local_offset;
	uint64_t remote; /* wh_remote.id */
	uint64_t remote_offset;
	uint64_t reserved[2]; /* 0 */
};

/* `count` blocks of `block_length` bytes for each of `base_count` bases. Block i of base b is a
 * transfer between bases[b].local_offset + L bytes in bases[b].local and bases[b].remote_offset + R
 * bytes in bases[b].remote. Each side says in a form of its own where block i is, by one list of
 * `count` elements or by none:
 *  - no list: i * stride. A stride of 0 means block_length, which puts blocks side by side.
 *  - ..._offsets: offsets[i] bytes. The stride is ignored.
 *  - ..._indices, as in a page table: indices[i] * stride, 0 meaning block_length again. An index
 *    is not negative.
 *  - ..._addresses: at an address of this process (GPU memory: its device address), or of the
 *    peer's address space (as wh_remote.address). The stride is 0.
 *
 * A side with addresses has one base at most, whose offset on that side is 0, and all its blocks
 * are in one region: the base's, or if that is NULL (remote: 0) the smallest that holds them all,
 * found as by wh_batch_add_address(). If both sides have addresses, `bases` may be NULL and
 * base_count 0. The blocks keep to the regions that were found. */
struct wh_blocks_desc {
	size_t size;
	uint32_t op; /* enum wh_op */
	uint32_t reserved;
	/* Bytes, and blocks for each base. If one of these is 0, nothing moves, and neither lists
	 * nor regions are looked at. */
	uint64_t block_length;
	uint64_t count;
	const struct wh_base *bases;
	uint64_t base_count; /* at least 1 */
	const uint64_t *local_offsets; /* bytes */
	uint64_t local_stride; /* bytes */
	const uint64_t *remote_offsets;
	uint64_t remote_stride;
	const int32_t *local_indices; /* times local_stride */
	const int32_t *remote_indices; /* times remote_stride */
	const void *const *local_addresses;
	const uint64_t *remote_addresses;
};

/* Check a descriptor against both sides' regions and copy it. The result can be added to any number
 * of batches of that peer. The arrays are copied, too, and may be freed after the call. Lists are
 * converted to offsets of 64 bits here: submitting costs the same for every form.
 * 0, or -EINVAL (also: two lists for one side; a negative index, which the text names; a block of
 * GPU memory overlaps its own target, see struct wh_transfer), -E2BIG, -ERANGE (a block lies
 * outside its region; the text names it), -ENOENT (no known region holds the address of the block
 * that the text names: wh_peer_lookup() asks the peer), -EACCES (the remote region does not grant
 * it), -ECONNRESET (the peer has left or is lost), -ESTALE (it was restarted), -ENOMEM. */
int wh_blocks_new(struct wh_peer *peer, const struct wh_blocks_desc *desc, struct wh_blocks **out);

/* Free the descriptor. Batches to which it was added keep what they need. 0. */
int wh_blocks_free(struct wh_blocks *blocks);

/* ---- batches ------------------------------------------------------------------------------ */

enum wh_priority {
	WH_PRIORITY_BULK = 0,
	WH_PRIORITY_LATENCY = 1, /* does not wait behind bulk batches */
};

struct wh_batch_options {
	size_t size;
	/* A queue that receives the completion as well; NULL: none. */
	struct wh_queue *queue;
	/* Called once for each submission that has completed, in the order of completion, on a
	 * thread that runs the engine's callbacks and nothing else, never within
	 * wh_batch_submit(). One that takes long delays other callbacks only: heartbeats, serving
	 * peers and other batches go on. It may submit batches, including this one. It must not
	 * wait, cancel or free. `status` is that of its submission, even if the batch was submitted
	 * again by another thread meanwhile. In an engine without threads it is called inside
	 * wh_engine_progress(), or another call that drives the engine, and delays what that call
	 * would serve. */
	void (*callback)(struct wh_batch *batch, int status, void *arg);
	void *callback_arg;
	uint64_t user; /* returned in completions */
	uint32_t priority; /* enum wh_priority */
	uint32_t reserved;
	/* The only transport that this batch may use ("shm"), or "local": between engines of one
	 * machine none that takes a network (tcp, rdma); peers elsewhere are not concerned. If that
	 * is impossible, wh_batch_submit() or the batch fails instead of falling back. NULL: the
	 * setting `require`, by default any. */
	const char *require;
};

/* Create an empty batch for one peer. It can be submitted any number of times. Only one thread at a
 * time may fill, submit or free it; several may poll, wait, cancel and explain, also meanwhile, but
 * for free. options may be NULL.
 * 0, or -EINVAL, -E2BIG, -ENOMEM, -EAGAIN (the thread for callbacks cannot be started). */
int wh_batch_new(struct wh_peer *peer, const struct wh_batch_options *options,
		 struct wh_batch **out);

/* Add `count` transfers, or none; the array is copied. Each is checked against both regions now;
 * one to a region of the peer that is not known here, when the batch is submitted. If one is wrong,
 * none is added. Transfers of a batch run in no particular order. Never waits for the network. 0,
 * or -EINVAL (the text names the transfer and the field), -ERANGE (outside the region), -ENOENT
 * (remote is 0, or no such region of this engine by its peer "self"), -ECONNRESET (the region is
 * not known, and the peer has left or is lost), -ESTALE (it was restarted), -EACCES (not granted),
 * -EBUSY (the batch is running), -ENOMEM. */
int wh_batch_add(struct wh_batch *batch, const struct wh_transfer *transfers, size_t count);

/* Add `count` transfers by their addresses; otherwise as wh_batch_add(), and both may fill one
 * batch. On each side the smallest region that holds the whole range is taken, as by
 * wh_region_lookup() and wh_peer_lookup(); of the peer's one that allows the direction. If none
 * that is known here does, submitting asks the peer. A transfer keeps to the regions that were
 * found. A range that spans two regions is in none. Costs little more than wh_batch_add() if the
 * regions have not changed lately, however many there are; after a region has been registered or
 * has become known, the next calls are slower. 0, or as wh_batch_add(); -ENOENT also if no region
 * of this engine holds a local range. */
int wh_batch_add_address(struct wh_batch *batch, const struct wh_address_transfer *transfers,
			 size_t count);

/* Add prepared blocks. 0, or -EINVAL (prepared for another peer), -EBUSY, -ENOMEM. */
int wh_batch_add_blocks(struct wh_batch *batch, struct wh_blocks *blocks);

/* Attach a notification: a tag, which is the program's to choose, and `length` bytes (0 to
 * WH_NOTIFICATION_MAX; `data` may be NULL for 0). The peer receives it with
 * wh_engine_notification(), exactly once, after all of the batch's bytes are visible there. A batch
 * has at most one: a second call replaces it. The bytes are copied. A batch may consist of a
 * notification alone, or beside transfers and blocks without bytes. 0, or -EINVAL (also: too long),
 * -EBUSY (the batch is running), -ENOMEM. */
int wh_batch_notify(struct wh_batch *batch, uint64_t tag, const void *data, size_t length);

/* Empty the batch, so that it can be filled again. 0, or -EBUSY (it is running). */
int wh_batch_clear(struct wh_batch *batch);

/* Start the batch. Until it completes, the source must not change, and the target's bytes are
 * undefined, save as rules 4 and 5 above say. May copy or send up to the setting `inline` before it
 * returns. Never waits for the peer. If the peer has to be asked first, for regions that are not
 * known here or for what a transport needs, the engine starts the batch when the answer has come,
 * or, after 2 s, without that transport. What the call itself refuses otherwise is the batch's
 * status then: -ENOENT, -EACCES, -ERANGE, or an error below. wh_peer_prepare() asks beforehand.
 * A batch without bytes, or without anything, has succeeded at once, behind its stream if it has
 * one. 0, or -EBUSY (running), -ECONNRESET (the peer is lost), -ESTALE (it restarted,
 * or a region is gone), -EOPNOTSUPP (no transport, or not the required one; the text says why),
 * -ENOMEM. */
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
int wh_batch_make_stream_wait(struct wh_batch *batch, const struct wh_stream *stream);

/* Check whether the batch has completed, and make progress with it. 0: it has, well or not:
 * wh_batch_status() says which; -EAGAIN: not yet; -EINVAL: it was never submitted. Does not block.
 */
int wh_batch_test(struct wh_batch *batch);

/* Get the number of bytes of the last submission that are settled: moved, or given up. A peer that
 * answers pings but moves nothing is not lost. To set a deadline, wait with a timeout, check
 * whether this number has changed, and cancel. The number grows in steps: up to the setting `slice`
 * over a network, up to the whole batch where GPUs move it. It decreases when another transport
 * moves some bytes again, and is 0 while the batch waits for its plan. Does not block. Several
 * threads may call it. 0, or -EINVAL (NULL, or a batch that was never submitted). */
int wh_batch_progress(struct wh_batch *batch, uint64_t *bytes);

/* Wait up to `timeout` ns until the batch completes; WH_FOREVER: without a limit. 0: it has, well
 * or not: wh_batch_status() says which; -EAGAIN: not in that time, and it continues; -EINVAL: it
 * was never submitted, or the timeout is negative; -EDEADLK: called from a callback. */
int wh_batch_wait_for(struct wh_batch *batch, int64_t timeout);

/* Get the outcome of a completed batch. 0: success, and every byte is visible at its target; else
 * the negative errno of its first failure, with wh_error_text() as wh_batch_error_text();
 * -ECANCELED: cancelled. Never an error of this call, but -EINVAL for NULL, and -EINPROGRESS where
 * there is no outcome: the batch is running, or was never submitted. Does not block. */
int wh_batch_status(struct wh_batch *batch);

/* Cancel the batch. When this returns 0, the batch no longer touches the memory of either side, and
 * the buffers may be reused, whatever its status is. That is -ECANCELED, or unchanged if it had
 * completed; a batch that has failed can be cancelled to learn the same of it. Bytes that were
 * moved already stay moved. Usually blocks for at most a round trip.
 * 0, or -ETIMEDOUT (the batch has not succeeded, and the peer was lost while it ran, or did not
 * answer within the setting `timeout`, so the connection was cut: the local memory is free, but
 * bytes in flight may still arrive in the peer's; so it stays until the batch is submitted again),
 * -EINVAL (it was never submitted), -EDEADLK (called from a callback). */
int wh_batch_cancel(struct wh_batch *batch);

/* Free the batch. 0, or -EBUSY (it is running). */
int wh_batch_free(struct wh_batch *batch);

/* ---- preparing ------------------------------------------------------------------------------ */

/* Prepare for transfers between each of the local regions and each region of the peer in `remotes`
 * (wh_remote.id), in the directions that these allow, so that the first submission is as fast as
 * later ones: ask for regions that are not known here, choose the routes, map and pin what they
 * need, exchange keys, and open the data connections. Memory that is mapped gets its page table, at
 * some 0.1 ms per MiB; pages that the owner has never touched are allocated by that. Moves no
 * bytes. Blocks until that is done; `timeout` (ns, WH_FOREVER) limits the wait for data
 * connections. What was prepared lasts as long as the regions and the peer's connection; idle data
 * connections are closed after the setting `idle`. Without local regions the remote ones are asked
 * for, and nothing else. 0, or -EINVAL, -ENOENT (no such region of the peer), -EOPNOTSUPP (no
 * transport for a pair), -ETIMEDOUT, -EHOSTUNREACH (the peer takes no more data connections),
 * -ECONNRESET, -ESTALE, -EINPROGRESS (the peer is not connected yet), -EDEADLK (called from a
 * callback), -ENOMEM. */
int wh_peer_prepare(struct wh_peer *peer, struct wh_region *const *locals, size_t local_count,
		    const uint64_t *remotes, size_t remote_count, int64_t timeout);

/* ---- results -------------------------------------------------------------------------------- */

/* Get the outcome of transfer `index`, counted in the order of all wh_batch_add() calls: 0 or a
 * negative errno in *status. 0, or -EAGAIN (the batch has not completed), -EINVAL (there is no such
 * transfer). Does not block. */
int wh_batch_transfer_status(struct wh_batch *batch, size_t index, int *status);

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
	uint32_t reserved[15]; /* 0 */
};

/* Get the routes of the last submission, best first; before a submission, the routes that it would
 * take. *count is the room in `out` on entry and the number of routes on return.
 * 0, or -ENOSPC (*count is the number of routes). */
int wh_batch_routes(struct wh_batch *batch, struct wh_route *out, size_t *count);

/* What an estimate is based on. */
enum wh_estimate_source {
	WH_ESTIMATE_TYPICAL = 0, /* typical values for a part of it at least; or it is not known */
	/* wh_peer_measure(), or what an engine measures when it first uses a GPU */
	WH_ESTIMATE_MEASURED = 1,
	WH_ESTIMATE_TRAFFIC = 2, /* for a part of it at least: what batches to the peer took */
};

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
	uint32_t measured; /* enum wh_estimate_source */
	/* Bytes of the working set in which wh_peer_measure() measured CPU or network routes: 64
	 * MiB, or the size of the peer's region. A working set that fits into the CPU's caches is
	 * several times as fast as memory. 0: the estimate uses no such measurement. */
	uint64_t working_set;
	/* ns since CPU or network routes were measured, or since the last batch that it learned
	 * from; of several the longest. 0: there are no such routes, or they are not known. */
	uint64_t age;
};

/* Estimate the batch's duration, by the routes that it takes or would take. Moves no bytes and
 * measures nothing. For a route by CPU or network, the more recent one of two counts:
 *  - What wh_peer_measure() has measured between these memories. Writes are assumed to cost as much
 *    as reads.
 *  - What batches to this peer took by the same transport, in the same direction, between the same
 *    kinds of memory, with transfers of about the same length: up to 256 bytes, 4 KiB, 64 KiB, or
 *    longer. A batch of more than 64 KiB is estimated from such ones only, a smaller one from
 *    smaller ones. The peer keeps weighted means in which a faster batch counts for more, because
 *    load makes batches slower, never faster. It learns from batches that are timed (struct
 *    wh_counters) and that move all bytes in one way, and from none that ran beside another one of
 *    more than 64 KiB to this peer. The first one of each way may have opened connections, and
 *    does not count. The peer does not see the load by other peers and processes. It knows eight
 *    ways, those that were used last.
 * If there is neither, the duration is not known. Does not block. Several threads may call it. 0,
 * or -EINVAL, -E2BIG, -EOPNOTSUPP (no transport can move the batch, or it is a notification alone),
 * or as wh_batch_routes(). */
int wh_batch_estimate(struct wh_batch *batch, struct wh_estimate *out);

/* Measure what transfers between a local region and the peer's region `remote` cost, by the route
 * that they would take, for wh_batch_estimate(), on a path that no traffic has shown yet. Nothing
 * to do where a GPU moves the bytes: its costs are measured when it is first used. Otherwise it
 * reads up to 64 MiB a few times from the region, or from another one of the same kind, into
 * temporary memory. That usually blocks for at most half a second, opens connections, and appears
 * in the counters like other transfers. The result is kept until the next measurement. Several
 * threads may call it; one measures at a time. 0, or -EINVAL, -EDEADLK (called from a callback),
 * -ENODATA (no region of that kind with at least 64 KiB may be read), -EOPNOTSUPP (no transport),
 * -ETIMEDOUT (an answer or a read took 2 s; the read is cancelled then, and if that fails because a
 * file system of this machine does not answer, waited for), -ENOMEM, or as wh_batch_add() and
 * wh_batch_submit(). */
int wh_peer_measure(struct wh_peer *peer, struct wh_region *local, uint64_t remote);

/* Write the routes as text for people to `text`, one per line, and what the batch should take if
 * that was measured, truncated to `length` bytes with the NUL. Returns the length of the whole text
 * without the NUL, or a negative errno. */
int wh_batch_explain(struct wh_batch *batch, char *text, size_t length);

#ifdef __cplusplus
}
#endif
#endif
