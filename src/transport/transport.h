/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transport is one way to move bytes from memory to memory: a constant table of functions.
 * wh_transport() completes the table with defaults, so that the core never tests for NULL.
 *
 * The core plans a batch into fragments, each for one transport, and submits them. A transport
 * moves a fragment's bytes when it likes, on any thread, and then calls wh_fragment_done() exactly
 * once.
 *
 * Loop 0 is the engine's first progress loop: a function that runs there must not wait for anything
 * but that loop's own sockets, and returns within a few milliseconds.
 */
#ifndef WH_TRANSPORT_TRANSPORT_H
#define WH_TRANSPORT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "memory/region.h"
#include "transport/list.h"
#include "util/error.h"

struct wh_batch;
struct wh_engine;
struct wh_estimate;
struct wh_frame;
struct wh_hello;
struct wh_peer;
struct wh_fragment;
struct wh_region_entry;
struct wh_region;
struct wh_registration;
struct wh_remote_region;
struct wh_session;
struct wh_channel;

#define WH_TRANSPORT_ID(upper, name) WH_TRANSPORT_##upper,
enum wh_transport_id {
	WH_TRANSPORTS(WH_TRANSPORT_ID) WH_TRANSPORT_COUNT,
};
#undef WH_TRANSPORT_ID
_Static_assert(WH_TRANSPORT_COUNT <= WH_REGION_TRANSPORTS, "regions have a pointer for each");

/* Of is_reachable: it can, but whichever of the following transports can is better, for the reason
 * in `why`. */
#define WH_REACHED_LAST 1

enum wh_transport_capability {
	WH_CAN_READ = 1,
	WH_CAN_WRITE = 2,
	WH_CAN_ACCEPT = 4, /* other engines open connections of its own role: session_accept */
	WH_CAN_PROGRESS = 8, /* a waiting thread can move the bytes itself: progress */
	WH_CAN_ABORT = 16, /* work in flight can be aborted: abort */
	WH_CAN_NOTIFY = 32, /* it can send a batch's notification itself: notify, notified */
	WH_USES_STAGING = 64, /* sessions use staging buffers for our GPUs' memory from the start */
	/* its bytes leave the host unencrypted, so the setting `tls` switches it off */
	WH_IS_PLAINTEXT = 128,
	/* its bytes go by a network, also to an engine of this machine */
	WH_IS_NETWORKED = 256,
};

/* How a transport moves a batch. "" where there is nothing to say. */
struct wh_description {
	bool briefly; /* set by the core: nothing but `how` is wanted */
	char how[48]; /* in a few words, as wh_route.detail: "2 connections" */
	/* lines, each with two blanks in front and a newline: what each of several parts did, as "
	 * mlx5_0:1 to mlx5_1:1: 4096 bytes" */
	char parts[4096];
	char memory[1200]; /* a line: how the batch's memory is reached, and why not better */
	char sharing[400]; /* a warning: who else uses the device that moves the bytes */
};

struct wh_transport {
	const char *name;
	uint32_t capabilities;
	uint16_t role; /* enum wh_role of the connections that session_accept takes; 0: none */
	/* The transport's own frames over the control connection: the types [frame_first,
	 * frame_end), for peer_frame and session_frame. No two transports have the same. 0: none */
	uint16_t frame_first, frame_end;
	uint32_t hello; /* bits of wh_hello.capabilities while the transport is on */

	/* Make the engine-wide state. 0, or a negative errno with a text; -ENODEV: there is no such
	 * device here, or it is switched off. */
	int (*engine_open)(struct wh_engine *engine, void **state);
	/* Free it. No peer, session or region is left. */
	void (*engine_close)(struct wh_engine *engine, void *state);
	/* Memory of ours is being registered. On the thread that does so, which may wait. */
	void (*region_coming)(struct wh_engine *engine, void *state,
			      const struct wh_registration *registration);
	/* A region of ours is unregistered: neither a batch nor a peer uses it any more. Free what
	 * the transport keeps for it. */
	void (*region_closed)(struct wh_engine *engine, void *state, struct wh_region *region);

	/* A peer on this host asks, over the unix socket `socket`, for a GPU's memory: send the
	 * answers for the region's segments from `segment` on, without waiting. The region is
	 * entered. On loop 0. 0; a negative errno, which closes the connection; -ENXIO: the
	 * transport does not export memory. */
	int (*region_export)(struct wh_region *region, uint32_t segment, int socket);

	/* A peer has been reached, and the transport has no state for it yet. On loop 0. 0,
	 * or a negative errno with the reason in `why`: the transport is not used for this peer;
	 * -ENXIO: it does not apply to such peers. */
	int (*peer_open)(struct wh_peer *peer, void **state, char why[WH_REFUSAL]);
	/* The peer's handle is closed, and no batch is left. On loop 0. */
	void (*peer_close)(struct wh_peer *peer, void *state);
	/* The control connection has broken: complete everything outstanding with `error`, soon,
	 * and touch no memory of ours after that. The state stays until peer_close. On the first
	 * loop. */
	void (*peer_lost)(struct wh_peer *peer, void *state, int error, const char *text);
	/* The same epoch of the peer has been reached again after peer_lost. As peer_open. */
	int (*peer_again)(struct wh_peer *peer, void *state, char why[WH_REFUSAL]);
	/* The peer has registered a region that may change what it refused for now. On loop 0. */
	void (*region_came)(struct wh_peer *peer, void *state);
	/* The peer takes back a region at these of its addresses. If we knew the region, its entry
	 * is closed, and nobody is inside it any more. End every mapping that shows the bytes,
	 * whichever region it was made for. 0; -EBUSY: not by `deadline`, and the core calls it
	 * again. On loop 0. */
	int (*region_going)(struct wh_peer *peer, void *state, uint64_t address, uint64_t length,
			    int64_t deadline);
	/* After region_going, if we knew the region: free what the transport keeps for the region.
	 * On loop 0. */
	void (*region_gone)(struct wh_peer *peer, void *state, struct wh_remote_region *region);

	/* The owner has sent a frame of the transport's own over the control connection. 0, or a
	 * negative errno, which breaks the connection. On loop 0. */
	int (*peer_frame)(struct wh_peer *peer, void *state, const struct wh_frame *frame,
			  const uint8_t *payload);

	/* Can the transport move bytes between these regions? The caller has entered `remote`: the
	 * entry of a struct wh_remote_region or, where the peer is this engine itself, of a struct
	 * wh_region. Any thread, while it plans a batch; wh_plan_how() says whether it may wait
	 * for the peer. 0; WH_REACHED_LAST; -EINPROGRESS: the peer has to be asked, or has been;
	 * the core calls it again after wh_peer_reach_again(), and now and then; or another
	 * negative errno with the reason in `why`; -ENXIO: does not apply to these kinds of memory;
	 * left out of explanations. */
	int (*is_reachable)(struct wh_peer *peer, void *state, const struct wh_region *local,
			    struct wh_region_entry *remote, uint32_t op, char why[WH_REFUSAL]);
	/* Do what the first submission of this batch would do otherwise for the transport's
	 * fragments, and wait for it until `deadline`. The batch is planned, and never submitted.
	 * On a thread that may wait. 0, -ETIMEDOUT, or another negative errno, with the reason in
	 * `why`. */
	int (*prepare)(struct wh_peer *peer, void *state, const struct wh_batch *batch,
		       int64_t deadline, char why[WH_REFUSAL]);
	/* Start a fragment. Any thread. Errors are reported by wh_fragment_fail(), before
	 * wh_fragment_done(). */
	void (*submit)(struct wh_peer *peer, void *state, struct wh_fragment *fragment);
	/* Move bytes on the caller's thread, which waits for the batch until `deadline`; 0: look
	 * once, without sleeping. May return early, and at once if there is nothing to do. */
	void (*progress)(struct wh_peer *peer, void *state, struct wh_batch *batch,
			 int64_t deadline);
	/* Start nothing more of this fragment. What is in flight ends by itself, and then the
	 * fragment is done. */
	void (*cancel)(struct wh_peer *peer, void *state, struct wh_fragment *fragment);
	/* Work of a cancelled batch does not end by itself: abort it. Returns when no memory of
	 * ours is touched any more: 0, or -ETIMEDOUT if the peer has not confirmed by `deadline`.
	 */
	int (*abort)(struct wh_peer *peer, void *state, struct wh_batch *batch, int64_t deadline);
	/* For a transport that keeps something for a batch (wh_batch_set_transport): the batch is
	 * submitted again, and none of its fragments has started; it is freed. On the thread that
	 * does so. */
	void (*batch_again)(struct wh_batch *batch, void *state);
	void (*batch_closed)(struct wh_batch *batch, void *state);
	/* Send the notification of a batch whose bytes have arrived, as number `sequence`, by the
	 * transport's own means. Under wh_notify_lock(). 0: notified() or
	 * wh_notify_undelivered() follows; -EAGAIN: again after one of those in flight has been
	 * confirmed; another negative errno: the core sends it over the control connection. */
	int (*notify)(struct wh_peer *peer, void *state, struct wh_batch *batch, uint64_t sequence);
	/* The peer has confirmed the notification `sequence`, whichever way it was sent. Under
	 * wh_notify_lock(), on loop 0. */
	void (*notified)(struct wh_peer *peer, void *state, uint64_t sequence);

	/* For explanations: describe how the transport moves the batch's fragments. The texts are
	 * "" at first. Not on loop 0; may wait for locks. */
	void (*describe)(struct wh_peer *peer, void *state, const struct wh_batch *batch,
			 struct wh_description *out);
	/* Add to `out` what the transport's fragments of the batch take; `id` is the transport's
	 * own number. False: not known. By default from what wh_peer_measure() found, or what
	 * traffic took. */
	bool (*estimate)(struct wh_peer *peer, enum wh_transport_id id,
			 const struct wh_batch *batch, struct wh_estimate *out);

	/* An initiator has opened a connection of our role, and the handshake is complete. The
	 * transport owns `fd`, which blocks, and `channel` from now on, also on error. On the first
	 * loop. */
	int (*session_accept)(struct wh_session *session, int fd, struct wh_channel *channel,
			      const struct wh_hello *hello);
	/* The session is about to be forgotten: from then on regions are unregistered without
	 * asking its peer. What that still does in mapped memory must not succeed any more. On
	 * loop 0; session_close follows. */
	void (*session_ending)(struct wh_session *session);
	/* The session ends: close its connections, without waiting for anybody. When it returns,
	 * none touches memory any more, save what GPUs and file systems have been told to do, which
	 * keeps its regions entered. On loop 0. */
	void (*session_close)(struct wh_session *session);
	/* The initiator wants its data connection `number` closed; as session_close. 0; -EAGAIN:
	 * bytes that came by it are being written, call again; -EBUSY: a file system does not
	 * answer, and they may still be written. */
	int (*session_abort)(struct wh_session *session, uint32_t number);
	/* Will the transport probably reach our GPUs' memory for this session without staging
	 * buffers? If none does, the engine prepares such buffers when the session begins. On loop
	 * 0. */
	bool (*session_reaches_gpus)(const struct wh_session *session);
	/* The initiator has sent a frame of the transport's own over the control connection. As
	 * peer_frame. */
	int (*session_frame)(struct wh_session *session, const struct wh_frame *frame,
			     const uint8_t *payload);
};

#define WH_TRANSPORT_TABLE(upper, name) extern const struct wh_transport wh_transport_##name;
WH_TRANSPORTS(WH_TRANSPORT_TABLE)
#undef WH_TRANSPORT_TABLE

/* The names of all transports, for texts: "self, cuda, ...". */
const char *wh_transport_names(void);

/* Transport number `id`, completed with the defaults. */
const struct wh_transport *wh_transport(enum wh_transport_id id);

/* The transport of this name; WH_TRANSPORT_COUNT: none. */
enum wh_transport_id wh_transport_by_name(const char *name);

/* The transport that has this frame type; WH_TRANSPORT_COUNT: none. */
enum wh_transport_id wh_transport_by_frame(uint16_t type);

/* For the tests: does every advertised capability have its functions? */
bool wh_transport_is_valid(const struct wh_transport *transport);

#endif
