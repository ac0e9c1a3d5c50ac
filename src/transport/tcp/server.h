/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's side of a data connection: what server.c (the connection), server-receive.c
 * (requests), server-send.c (responses), server-regions.c (the regions that requests name),
 * server-stage.c (GPU memory and files through slots) and window.c (GPU memory through
 * region windows) share. Each connection belongs to one loop. Every function here runs on that
 * loop, takes no lock and does not block, except where a comment says otherwise.
 */
#ifndef WH_TRANSPORT_TCP_SERVER_H
#define WH_TRANSPORT_TCP_SERVER_H

#include "gpu/region-window.h"
#include "gpu/staging.h"
#include "transport/tcp/tcp.h"

#define TCP_JOBS_MAX TCP_WINDOW /* unanswered reads, and staged writes, of one connection */
/* chunks that the staged reads of one connection use at a time ... */
#define TCP_CHUNKS 4
/* ... and with those of reads that overtake others, which are of other file systems */
#define TCP_CHUNKS_OVERTAKING (2 * TCP_CHUNKS)
/* bytes of unsent responses to writes; when full, receiving pauses */
#define TCP_SERVER_OUT (64u << 10)
#define TCP_SERVER_TRASH (64u << 10) /* bytes of the buffer for discarded payload */
#define TCP_ENTERED_MAX 64 /* regions in one system call, at most */

/* An extent of a request, and the result of checking it. */
struct tcp_extent {
	uint64_t region, offset, length;
	int error; /* positive errno; 0: good */
};

/* A read until its response is sent. The connection owns it. */
struct tcp_job {
	struct wh_list link; /* server.jobs */
	uint32_t size; /* bytes of this allocation, charged to the quota */
	uint32_t count, at; /* extents, and the next to send; staged: the next to gather */
	uint64_t skip, left; /* bytes of extent `at` that are done; payload bytes not yet sent */
	uint64_t ungathered; /* staged: bytes not yet assigned to a chunk */
	bool staged;
	/* staged: through these, unless the request has a slot of its own */
	enum wh_slot_use slots;
	struct wh_file_system *system; /* of its files; NULL: none */
	struct wh_request request; /* staged: to answer it anew if its bytes cannot be read */
	struct wh_list chunks; /* staged: struct tcp_chunk, in order */
	uint32_t head_length, head_sent;
	uint8_t *head; /* response and errors, behind the extents in this allocation */
	struct tcp_extent extents[]; /* those without an error */
};

/* A staged write, to GPU memory or a file. The response is sent when its last chunk has reached
 * these. */
struct tcp_write {
	struct wh_list link; /* server.arrived, when all chunks have arrived */
	struct wh_request request;
	enum wh_slot_use slots; /* it goes through these */
	struct wh_file_system *system; /* of its files; NULL: none */
	uint32_t chunks; /* chunks that have not arrived, plus one while receiving */
	struct tcp_extent extents[];
};

static inline int64_t tcp_write_size(const struct wh_request *request)
{
	return (int64_t)(sizeof(struct tcp_write) + request->count * sizeof(struct tcp_extent));
}

/* The regions entered for one system call. */
struct tcp_entered {
	struct wh_region_entry *entries[TCP_ENTERED_MAX];
	unsigned count;
	uint64_t last; /* id of the last region */
	const struct wh_region_window *window; /* of the last one; NULL: host memory */
	char *memory; /* of the last one, as the CPU reaches it */
	bool windowed; /* at least one of them is used through its window */
};

/* The region of the extent that was checked last, so that the next one need not look it up. */
struct tcp_checked {
	struct wh_region_entry *entry; /* entered; NULL: no such region */
	uint64_t id; /* of the last region looked up */
	bool looked_up; /* `id` is set */
	bool holes; /* some of its memory is no longer mapped, or could not be read */
	uint8_t access;
};

/* One data connection. Its loop owns it, except for the members that loop 0 owns. */
struct tcp_server {
	struct wh_source source;
	struct wh_spinner spinner;
	struct wh_loop *loop;
	struct wh_channel *channel; /* NULL: plain */
	struct wh_engine *engine;
	struct wh_session *session; /* NULL: closed; written on loop 0 */
	struct wh_quota *quota; /* the session's */
	int64_t charged; /* bytes, to `quota` */
	struct wh_list link; /* the session's list of connections; on loop 0 */
	struct wh_task free_task; /* server_free(); on loop 0 */
	bool dead; /* closed; chunks may still have to come back ... */
	int64_t patience; /* ... which should not take until then (ns) */
	struct wh_timer late; /* warns that it does; on loop 0 */
	uint32_t number; /* chosen by the initiator, for ABORT */
	bool near; /* the initiator is on this machine */
	uint32_t events; /* registered with epoll */
	uint64_t moved; /* bytes received and sent */

	struct tcp_in in;
	struct wh_request request; /* the last one taken */
	bool receiving; /* the payload of `request` is being received ... */
	bool windowed; /* ... through region windows */
	bool singly; /* ... one extent at a time, to find the one that cannot be stored */
	struct tcp_extent *extents; /* of `request`: in `write`, or else in `own` */
	struct tcp_extent *own; /* WH_REQUEST_EXTENTS of them */
	uint32_t at; /* the extent being received */
	uint64_t skip, left; /* bytes of it that are done; payload bytes to come */
	uint8_t *trash; /* receives bytes to discard */

	uint8_t *out; /* responses to writes, to be sent */
	uint32_t out_start, out_length;
	/* struct tcp_job, in the order of the requests, except that one which has overtaken others
	 * is the first; the first one is being sent */
	struct wh_list jobs;
	uint32_t job_count;

	/* Staging. */
	struct tcp_write *write; /* being received; NULL: no staged write is */
	struct tcp_chunk *chunk; /* receives its next bytes; NULL: not allocated yet */
	struct wh_list arrived; /* struct tcp_write whose bytes are in place; to be answered */
	uint32_t write_count; /* staged writes without a response */
	uint32_t chunk_count; /* all chunks; the connection is freed after the last one */
	uint32_t read_chunks; /* those of reads */
	bool wants_slot; /* `chunk` waits for a slot; until then nothing is received */
	bool failed; /* out of memory: the connection must be closed */
	bool stalled; /* the next bytes to send are not in a slot yet */
	/* chunks that a GPU is copying, or that are being written to a file */
	_Atomic uint32_t in_flight;
};

/* ---- server.c ---------------------------------------------------------- */

/* Receive and send as far as possible, close the connection on an error, and set its epoll events.
 * `readable`: the socket may have bytes. */
void tcp_server_turn(struct tcp_server *server, bool readable);
/* Charge bytes to the quota of the peer's address; a negative amount is a refund. Only before the
 * connection has stopped, which refunds the rest. */
void tcp_server_charge(struct tcp_server *server, int64_t bytes);
/* Have loop 0 free a dead connection, when its last chunk has been freed. */
void tcp_server_post_free(struct tcp_server *server);

/* ---- server-receive.c -------------------------------------------------- */

/* Receive once. Returns the bytes, or a negative errno. Fewer than *expected bytes: the socket
 * is empty. */
ssize_t tcp_server_receive(struct tcp_server *server, size_t *expected);
/* Process the bytes in the buffer. -EAGAIN: more bytes are needed. -ENOBUFS: responses have to be
 * sent, or a slot has to become free, first. Other errors end the connection. */
int tcp_server_consume(struct tcp_server *server);
/* Are too many responses unsent? Then receiving pauses until the peer has taken some. */
bool tcp_server_full(const struct tcp_server *server);

/* ---- server-send.c ----------------------------------------------------- */

/* Queue a read, with the header of its response. 0 or -ENOMEM. */
int tcp_answer_read(struct tcp_server *server);
/* Instead of its bytes, send the initiator of a read the error (positive) for all extents. False: a
 * part of the response has been sent. */
bool tcp_answer_refuse_read(struct tcp_server *server, struct tcp_job *job, int error);
/* Append the response to a write, and count its bytes. */
void tcp_answer_write(struct tcp_server *server, const struct wh_request *request,
		      const struct tcp_extent *extents);
/* Is there too little room for the largest response to a write? */
bool tcp_answers_full(const struct tcp_server *server);
/* Send as much as possible. A read is never interrupted; between reads, responses to writes go
 * first. Reads are answered in the order of their requests, but one whose bytes are not there yet,
 * such as of a file system that does not answer, is overtaken by those that can be sent whole.
 * 0: all is sent; -EAGAIN; or the error that ends the connection. */
int tcp_server_flush(struct tcp_server *server);

/* ---- server-regions.c -------------------------------------------------- */

/* Enter an extent's region and return the extent's memory. NULL: *error is a positive errno, or 0
 * if there are too many regions for one call. */
char *tcp_region_enter(struct tcp_server *server, struct tcp_entered *entered,
		       const struct tcp_extent *extent, int *error);
/* Leave all regions. Bytes that the CPU has written through windows are ordered before. */
void tcp_regions_leave(struct tcp_entered *entered);
/* Check one extent of a read or write. 0, or a positive errno. A region's range never changes, so
 * one check is enough; each access checks again that the region is still registered. The caller
 * leaves last->entry after the last check. */
int tcp_extent_check(struct tcp_server *server, struct tcp_checked *last,
		     const struct tcp_extent *extent, uint8_t op);
/* Can the memory of an extent of host memory be read? If not, that of its region is looked at by
 * tcp_extent_check() from now on. 0; ESTALE; EFAULT. */
int tcp_extent_probe(struct tcp_server *server, const struct tcp_extent *extent);
/* Advance a position, extent *at and *skip bytes of it, by `bytes`. */
void tcp_extents_advance(const struct tcp_extent *extents, uint32_t *at, uint64_t *skip,
			 uint64_t bytes);
/* A request names a slot that the initiator has lent: extents that are no files of ours get an
 * error, since only system calls may touch the slot. False: there is no such slot, or it is too
 * small. */
bool tcp_lent_check(struct tcp_server *server);
/* Through which slots do the extents of the request without an error have to go? Those of a GPU if
 * any lies in its memory, else those for files if any lies in one, else none: WH_SLOT_USES. */
enum wh_slot_use tcp_request_slots(struct tcp_server *server, struct wh_file_system **system);

/* ---- window.c ---------------------------------------------------------- */

/* Can the payload of the current write be received through region windows? Opens the windows. */
bool tcp_window_can_receive(struct tcp_server *server);
/* End a write through region windows: on return all received bytes are visible in GPU memory, or
 * their extents have an error. */
void tcp_window_end(struct tcp_server *server);

/* ---- server-stage.c ---------------------------------------------------- */

/* Start receiving the payload of the current write through slots. 0 or -ENOMEM. */
int tcp_stage_write(struct tcp_server *server, enum wh_slot_use slots,
		    struct wh_file_system *system);
/* Set *vector to the room for the next payload bytes. Returns its length. 0: no slot is free, and
 * the connection continues when it gets one (`wants_slot`), or there is no memory (`failed`). */
size_t tcp_stage_into(struct tcp_server *server, struct iovec *vector);
/* Account for bytes received into that room; copy a full chunk to the GPU. */
void tcp_stage_received(struct tcp_server *server, size_t bytes);
/* Instead: the whole payload lies in the slot of the request. 0, or a negative errno. */
int tcp_stage_lent_write(struct tcp_server *server);
/* The whole payload has been received. The response follows when the GPU has it. */
void tcp_stage_end_write(struct tcp_server *server);

/* Start gathering the next bytes of the staged reads, as far as slots are free. `overtake`: the
 * first read does not get ahead, so also of reads behind those that may use no more chunks. 0, or a
 * negative errno that ends the connection: -ENOMEM, -ESTALE (a region was unregistered), or the
 * GPU's. */
int tcp_stage_read(struct tcp_server *server, bool overtake);
/* Can the whole read be sent without waiting for anything but the socket? */
bool tcp_stage_is_whole(const struct tcp_job *job);
/* Set *vector to the bytes of a read that can be sent now. Returns its length; 0: none yet. */
size_t tcp_stage_out_of(struct tcp_job *job, struct iovec *vector);
/* Of a read into a slot that the initiator has lent: are all bytes there? Then nothing of them is
 * left to send. */
bool tcp_stage_landed(struct tcp_server *server, struct tcp_job *job);
/* Account for sent bytes; free a chunk that has been sent whole. */
void tcp_stage_sent(struct tcp_server *server, struct tcp_job *job, size_t bytes);
/* Free the chunks of a read, or leave them to be freed when the GPU has finished with them. */
void tcp_stage_drop_read(struct tcp_server *server, struct tcp_job *job);

/* The connection ends: drop what is being received. What GPUs and file systems have begun goes on.
 */
void tcp_stage_stop(struct tcp_server *server);

#endif
