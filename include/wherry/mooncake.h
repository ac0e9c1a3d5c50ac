/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C interface of Mooncake's transfer engine, on top of Wherry: libtransfer_engine.so. Programs
 * written or linked for Mooncake's own run with it unchanged, also those that include
 * <transfer_engine_c.h>. With another engine of this library they exchange bytes by Wherry's own
 * routes (shared memory, GPUs, RDMA, TCP), with Mooncake's engines by Mooncake's TCP.
 * docs/mooncake.md says what differs. Not part of libwherry.so.
 *
 * What functions return, unless their comment says otherwise, is 0, or one of two kinds of error as
 * Mooncake has them: those that set something up return a negative number (-1 a wrong argument, -3
 * an address that is not registered, -4 it is in use, -7 memory that overlaps, -101 a host that is
 * not found, -102 a socket, -200 the metadata, -302 no memory, -6 a device, -201 a peer), those of
 * batches a positive one (1 a wrong argument, 2 more requests than the batch has room for, 3 an
 * address that is not registered, 4 the batch is busy, 201 a peer, 302 no memory).
 * wherryErrorText() says it in words.
 *
 * Every function may be called from any thread, also several at once on one engine or one batch.
 * Strings and arrays of the caller's are copied, or not used any more when the call returns. An
 * engine belongs to the process that made it.
 */
#ifndef WHERRY_MOONCAKE_H
#define WHERRY_MOONCAKE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void *transfer_engine_t;
typedef void *transport_t;

/* Macros, as in Mooncake's header. */
#define segment_handle_t int32_t
#define segment_id_t int32_t
#define batch_id_t uint64_t

#define LOCAL_SEGMENT (0) /* the engine's own memory */
#define INVALID_BATCH UINT64_MAX

#define OPCODE_READ (0) /* from the target to the source */
#define OPCODE_WRITE (1) /* from the source to the target */

struct transfer_request {
	int opcode;
	void *source; /* in memory that is registered here */
	segment_id_t target_id;
	/* an address of the target's, in memory that is registered there */
	uint64_t target_offset;
	uint64_t length; /* bytes, at least 1 */
};
typedef struct transfer_request transfer_request_t;

/* What has become of a request. */
#define STATUS_WAITING (0) /* not ended yet */
#define STATUS_PENDING (1) /* not used here */
#define STATUS_INVALID (2) /* not used here */
#define STATUS_CANCELED (3)
#define STATUS_COMPLETED (4) /* every byte is where it should be */
#define STATUS_TIMEOUT (5) /* ended: the peer has been silent for too long */
#define STATUS_FAILED (6)

struct transfer_status {
	int status;
	uint64_t transferred_bytes; /* the length when it has completed, else 0 */
};
typedef struct transfer_status transfer_status_t;

struct notify_msg {
	char *name;
	char *msg;
};
typedef struct notify_msg notify_msg_t;

struct buffer_entry {
	void *addr;
	size_t length;
};
typedef struct buffer_entry buffer_entry_t;

/* Of Mooncake's header; no function has to do with it. */
struct segment_desc {
	int type;
	union {
		struct {
			void *addr;
			uint64_t size;
			const char *location;
		} rdma;
		struct {
			const char *file_path;
			const char *subsystem_name;
			const char *proto;
			const char *ip;
			uint64_t port;
		} nvmeof;
	} desc_;
};
typedef struct segment_desc segment_desc_t;

/* ---- engine ------------------------------------------------------------------------------- */

/* Make an engine. `metadata_conn_string` says how engines find each other: "P2PHANDSHAKE": they are
 * asked at HOST:PORT; else a store of metadata: "http://HOST:PORT/PATH",
 * "etcd://HOST:PORT[,HOST:PORT...]" or HOST:PORT alone, which is etcd. `local_server_name` is HOST
 * or HOST:PORT; with a store the segment's name, whatever it is. The engine listens at that host,
 * or with a store at `ip_or_host_name` unless it is NULL or "", at a free port: with P2PHANDSHAKE
 * its name is what getLocalIpAndPort() says. `rpc_port` and `auto_discover` are for Mooncake's own:
 * all routes that there are may be taken from the start. Knobs of the environment are those of
 * Wherry (WHERRY_TRANSPORTS ...: wherry config). Blocks on the store. NULL: wherryErrorText() says
 * why. */
transfer_engine_t createTransferEngine(const char *metadata_conn_string,
				       const char *local_server_name, const char *ip_or_host_name,
				       uint64_t rpc_port, int auto_discover);

/* Cancel what is under way, close everything, take the name out of the store. No other call may be
 * in the middle of something, and none may follow. NULL is fine. */
void destroyTransferEngine(transfer_engine_t engine);

/* There is nothing to discover that Wherry has not. 0 or -1. */
int discoverTopology(transfer_engine_t engine);

/* The engine's address, "HOST:PORT", NUL-terminated and cut to `buf_len` bytes. 0 or -1. */
int getLocalIpAndPort(transfer_engine_t engine, char *buf_out, size_t buf_len);

/* Nothing is installed: the routes are Wherry's to choose. Not NULL for "tcp", "rdma", "shm",
 * "nvlink", "nvlink_intra" and "local"; NULL for others. `args` is not looked at. */
transport_t installTransport(transfer_engine_t engine, const char *proto, void **args);

/* 0, or -1: not one of those. */
int uninstallTransport(transfer_engine_t engine, const char *proto);

/* Nothing: no signal is handled here. An engine that is not destroyed leaves its name in the store.
 */
void enableGracefulShutdown(transfer_engine_t engine);

/* By which routes the segments that are open are reached, how much went there, and why no better
 * one is taken: text for people, or, `json` not 0, one JSON object. Cut to `buf_len` bytes with a
 * NUL. 0, -1, -302. */
int showLinks(transfer_engine_t engine, char *buf_out, size_t buf_len, int json);

/* ---- memory ------------------------------------------------------------------------------- */

/* Register memory of the host or of a GPU: as a source of requests and, unless `remote_accessible`
 * is 0, for others to read and write. It may not overlap what is registered. `location` ("cpu:0",
 * "cuda:0", "*") is not looked at: what memory is, is asked of the driver. The caller keeps it
 * until it is unregistered. Blocks on the store. 0, -1, -6, -7, -200 (and it is not registered),
 * -302. */
int registerLocalMemory(transfer_engine_t engine, void *addr, size_t length, const char *location,
			int remote_accessible);

/* Take it back: `addr` is its start. When this returns 0 nobody reads or writes it any more. -3, or
 * -4: requests of this engine use it, or a peer on this host has not let go of it: call again.
 * Others cannot reach it in any case. */
int unregisterLocalMemory(transfer_engine_t engine, void *addr);

/* The same for several, which others may read and write; all or none. */
int registerLocalMemoryBatch(transfer_engine_t engine, buffer_entry_t *buffer_list,
			     size_t buffer_len, const char *location);
/* As many as can be; the first error. */
int unregisterLocalMemoryBatch(transfer_engine_t engine, void **addr_list, size_t addr_len);

/* ---- segments ----------------------------------------------------------------------------- */

/* Connect to the engine of that name: "HOST:PORT" with P2PHANDSHAKE. Slashes before it do not
 * count. The number of the segment, which is the same each time; 0: this engine itself. Blocks
 * until it is reached. Negative: -1, -101, -102, -200, -201, -302. */
segment_id_t openSegment(transfer_engine_t engine, const char *segment_name);
/* What was known of it is forgotten first. */
segment_id_t openSegmentNoCache(transfer_engine_t engine, const char *segment_name);

/* Let go of the connections, when the last batch that has requests to it has been freed. The number
 * stays good: the next request connects again. 0, or -1: no such segment. */
int closeSegment(transfer_engine_t engine, segment_id_t segment_id);

/* Take this engine's own name out of the store. Other names are left alone. 0, -1, -200. */
int removeLocalSegment(transfer_engine_t engine, const char *segment_name);

/* Ask again about every segment that is open. 0, or the first error. */
int syncSegmentCache(transfer_engine_t engine);

/* There is no EFA here: 0. */
int warmupEfaSegment(transfer_engine_t engine, const char *segment_name);

/* ---- batches ------------------------------------------------------------------------------ */

/* A batch with room for `batch_size` requests, or INVALID_BATCH. */
batch_id_t allocateBatchID(transfer_engine_t engine, size_t batch_size);

/* Start `count` requests. They are numbered from 0 in the order in which the batch got them, and
 * run in none. If one is wrong (no opcode, no length, no such segment, a source that is not
 * registered), none is started: 1, 2, 3. What is only found out at the target, such as an address
 * that is not registered there, is the status of the request alone. Blocks when a target has to be
 * reached first. 0, 1, 2, 3, 302. */
int submitTransfer(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request *entries,
		   size_t count);

/* And send a notification to the first one's target when all have completed; if one of them does
 * not, none is sent. Requests have completed when it has been confirmed; if it cannot be sent they
 * have failed. */
int submitTransferWithNotify(transfer_engine_t engine, batch_id_t batch_id,
			     struct transfer_request *entries, size_t count,
			     notify_msg_t notify_msg);

/* Request number `task_id` of the batch. Does not block. 0, or 1: no such batch or request. Where
 * the status is that it has failed, wherryErrorText() says why. */
int getTransferStatus(transfer_engine_t engine, batch_id_t batch_id, size_t task_id,
		      struct transfer_status *status);

/* 0, 1: no such batch, or 4: not all of its requests have ended. */
int freeBatchID(transfer_engine_t engine, batch_id_t batch_id);

/* ---- notifications ------------------------------------------------------------------------ */

/* Take the notifications that have come, an array of *size, for freeNotifsMsgBuf(). NULL and 0:
 * none. At most 4,096 and 16 MiB are kept; others are not confirmed to those that send them. */
notify_msg_t *getNotifsFromEngine(transfer_engine_t engine, int *size);
/* NULL is fine. 0. */
int freeNotifsMsgBuf(notify_msg_t *msg, int size);

/* Send one, UTF-8, at most 1 MiB, and wait until it is confirmed. 0, -1, -101, -102, -200, -201,
 * -302. */
int genNotifyInEngine(transfer_engine_t engine, uint64_t target_id, notify_msg_t notify_msg);

/* ---- not in Mooncake ---------------------------------------------------------------------- */

/* What this thread's last call that failed has to say, in one line; "" if none has. Good until the
 * next one that fails. */
const char *wherryErrorText(void);

#ifdef __cplusplus
}
#endif
#endif
