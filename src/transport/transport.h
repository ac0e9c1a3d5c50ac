/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transport: one way for bytes to get from memory to memory. Each is a constant table of
 * functions; registration fills what a transport leaves out with defaults, so that the core never
 * tests for NULL.
 *
 * The core plans a batch into fragments, each for one transport, and submits them. A transport
 * moves a fragment's bytes whenever and on whichever thread it likes, and then says
 * wh_fragment_done() once.
 */
#ifndef WH_TRANSPORT_TRANSPORT_H
#define WH_TRANSPORT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
struct wh_remote_region;
struct wh_session;
struct wh_tls;

/* In this order they are opened, told of things and closed: cuda uses what shm maps. */
enum wh_transport_id {
	WH_TRANSPORT_SELF,
	WH_TRANSPORT_CUDA,
	WH_TRANSPORT_SHM,
	WH_TRANSPORT_RDMA,
	WH_TRANSPORT_TCP,
	WH_TRANSPORT_COUNT,
};
#define WH_TRANSPORT_NAMES "self, cuda, shm, rdma, tcp" /* for texts */

enum wh_transport_capability {
	WH_CAN_READ = 1,
	WH_CAN_WRITE = 2,
	WH_CAN_ACCEPT = 4, /* other engines open connections of its own role: session_accept */
	WH_CAN_PROGRESS = 8, /* a waiting thread can move the bytes itself: progress */
	WH_CAN_ABORT = 16, /* work in flight can be aborted: abort */
};

struct wh_transport {
	const char *name;
	uint32_t capabilities;
	uint16_t role; /* enum wh_role of the connections that session_accept takes; 0: none */

	/* Make the engine-wide state. 0, or a negative errno with a text; -ENODEV: there is no such
	 * device here, or it is switched off. */
	int (*engine_open)(struct wh_engine *engine, void **state);
	void (*engine_close)(struct wh_engine *engine, void *state);
	/* A region of ours goes; no batch uses it, and no peer. */
	void (*region_closed)(struct wh_engine *engine, void *state, struct wh_region *region);

	/* A peer has been reached (or reached again). 0, or a negative errno with the reason in
	 * `why`: the transport is then not used for this peer; -ENXIO: it is for no such peer. Runs
	 * on the engine's first loop; must not wait for anyone but that loop's own sockets; may not
	 * take longer than some ms. */
	int (*peer_open)(struct wh_peer *peer, void **state, char why[WH_REFUSAL]);
	/* The peer's handle goes, no batch is left. Called on the first loop. */
	void (*peer_close)(struct wh_peer *peer, void *state);
	/* The control connection broke: complete everything outstanding with `error`, soon, and
	 * touch no memory of ours after that. The state stays until peer_close; if the same epoch
	 * is reached again, peer_again is called. */
	void (*peer_lost)(struct wh_peer *peer, void *state, int error, const char *text);
	int (*peer_again)(struct wh_peer *peer, void *state, char why[WH_REFUSAL]);
	/* A region of the peer has come. On the first loop. */
	void (*region_came)(struct wh_peer *peer, void *state, struct wh_remote_region *region);
	/* A region of the peer is going: it is closed, and nobody is inside any more. End what
	 * shows its bytes on account of other regions. 0, or -EBUSY: not by `deadline`; it is
	 * called again. On the first loop. */
	int (*region_going)(struct wh_peer *peer, void *state, struct wh_remote_region *region,
			    int64_t deadline);
	/* After that: unmap it. */
	void (*region_gone)(struct wh_peer *peer, void *state, struct wh_remote_region *region);

	/* The owner has sent a frame of the transport's own, over the control connection. 0, or a
	 * negative errno, which breaks the connection. On the first loop. */
	int (*peer_frame)(struct wh_peer *peer, void *state, const struct wh_frame *frame,
			  const uint8_t *payload);

	/* Can it move bytes between these regions? -ENXIO: does not apply to these kinds of memory;
	 * left out of explanations. `remote` is entered; it is the entry of a struct
	 * wh_remote_region or, where the peer is this engine itself, of a struct wh_region. 0, or
	 * a negative errno with the reason in `why`. Called while a batch is planned, on the
	 * submitter's thread; may ask the peer once. */
	int (*is_reachable)(struct wh_peer *peer, void *state, const struct wh_region *local,
			    struct wh_region_entry *remote, uint32_t op, char why[WH_REFUSAL]);
	/* Start a fragment. It cannot fail at once: failures come through wh_fragment_fail(). */
	void (*submit)(struct wh_peer *peer, void *state, struct wh_fragment *fragment);
	/* The caller has nothing better to do until the batch is done or `deadline`: move bytes,
	 * own the socket. May return early, and at once if there is nothing to help with. deadline
	 * 0: one look, do not sleep. */
	void (*progress)(struct wh_peer *peer, void *state, struct wh_batch *batch,
			 int64_t deadline);
	/* Start nothing more of this fragment; what is in flight ends by itself, then it is done.
	 */
	void (*cancel)(struct wh_peer *peer, void *state, struct wh_fragment *fragment);
	/* A cancelled batch's work in flight does not end by itself: cut it off. Returns when no
	 * memory of ours is touched; 0, or -ETIMEDOUT if the peer did not confirm by `deadline`. */
	int (*abort)(struct wh_peer *peer, void *state, struct wh_batch *batch, int64_t deadline);
	/* Send the notification of a batch whose bytes are where they belong, as number `sequence`,
	 * by a way of the transport's own. Under peer.notify_lock. 0: wh_notify_confirmed() or
	 * wh_notify_undelivered() follows; -EAGAIN: not before one of those that are on their way
	 * has been confirmed; or another negative errno: over the control connection, then. */
	int (*notify)(struct wh_peer *peer, void *state, struct wh_batch *batch, uint64_t sequence);
	/* One with this number has been confirmed, by whichever way it was sent. Under
	 * peer.notify_lock, on the first loop. */
	void (*notified)(struct wh_peer *peer, void *state, uint64_t sequence);
	/* How it moves, or would move, the batch's fragments that are its own, for explain: "2
	 * connections". */
	void (*detail)(struct wh_peer *peer, void *state, const struct wh_batch *batch, char *out,
		       size_t size);
	/* More of the same, lines of their own: "  mlx5_0:1 to mlx5_1:1: 4096 bytes\n"; "":
	 * nothing. */
	void (*story)(struct wh_peer *peer, void *state, const struct wh_batch *batch, char *out,
		      size_t size);
	/* One more line for explain, where there is something to tell of the batch's memory: how,
	 * and why not better. False: there is not. */
	bool (*tell)(struct wh_peer *peer, void *state, const struct wh_batch *batch, char *line,
		     size_t size);
	/* What its fragments of the batch would take, added to `out`. False: not known. By default
	 * from a probe, which reads from the peer. `id` is its own. */
	bool (*estimate)(struct wh_peer *peer, enum wh_transport_id id,
			 const struct wh_batch *batch, struct wh_estimate *out);

	/* The other side: a connection of our role has shaken hands; it belongs to the transport
	 * now (also on error). `fd` is blocking. On the first loop. */
	int (*session_accept)(struct wh_session *session, int fd, struct wh_tls *tls,
			      const struct wh_hello *hello);
	/* The session ends: drop its connections; when it returns none touches memory any more. On
	 * the first loop. */
	void (*session_close)(struct wh_session *session);
	/* The peer wants its data connection `number` dropped; same promise. */
	void (*session_abort)(struct wh_session *session, uint32_t number);
	/* The initiator has sent a frame of the transport's own; as peer_frame. */
	int (*session_frame)(struct wh_session *session, const struct wh_frame *frame,
			     const uint8_t *payload);
};

extern const struct wh_transport wh_transport_self, wh_transport_cuda, wh_transport_shm,
	wh_transport_rdma, wh_transport_tcp;

/* Transport number `id`, completed with the defaults. */
const struct wh_transport *wh_transport(enum wh_transport_id id);

/* Which one has this name; WH_TRANSPORT_COUNT: none. */
enum wh_transport_id wh_transport_by_name(const char *name);

/* Does every advertised capability have its functions? For the tests. */
bool wh_transport_is_valid(const struct wh_transport *transport);

#endif
