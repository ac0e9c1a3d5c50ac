/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C interface of Mooncake's transfer engine on top of Wherry: libtransfer_engine.so, which is
 * separate from libwherry.so. Programs written or linked for Mooncake's own library run with it
 * unchanged, including those that include <transfer_engine_c.h>. Two engines of this library
 * exchange bytes by Wherry's routes (shared memory, GPUs, RDMA, TCP); with Mooncake's engines they
 * use Mooncake's TCP protocol. docs/mooncake.md lists the differences.
 *
 * Functions return 0 or one of Mooncake's errors, unless their comment says otherwise.
 * wherryErrorText() gives the error in words. Functions that set something up return negative
 * errors: -1 wrong argument, -3 address not registered, -4 in use, -6 device, -7 overlapping
 * memory, -101 host not found, -102 socket, -200 metadata, -201 peer, -302 no memory. Functions on
 * batches return positive errors: 1 wrong argument, 2 more requests than the batch has room for, 3
 * address not registered, 4 the batch is busy, 201 peer, 302 no memory.
 *
 * Any thread may call any function, also at the same time on one engine or batch. The library does
 * not use the caller's strings and arrays after the call returns. An engine belongs to the process
 * that created it.
 */
#ifndef TRANSFER_ENGINE_C_H
#define TRANSFER_ENGINE_C_H

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
	void *source; /* in memory that this engine has registered */
	segment_id_t target_id;
	/* an address in the target's process, in memory that the target has registered */
	uint64_t target_offset;
	uint64_t length; /* bytes, at least 1 */
};
typedef struct transfer_request transfer_request_t;

/* The status of a request. */
#define STATUS_WAITING (0) /* in progress */
#define STATUS_PENDING (1) /* not used here */
#define STATUS_INVALID (2) /* not used here */
#define STATUS_CANCELED (3)
#define STATUS_COMPLETED (4) /* every byte is visible at its target */
#define STATUS_TIMEOUT (5) /* failed: the peer was silent for too long */
#define STATUS_FAILED (6)

struct transfer_status {
	int status;
	uint64_t transferred_bytes; /* the request's length if it has completed, else 0 */
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

/* Declared for compatibility with Mooncake's header; no function uses it. */
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

/* Create an engine. Blocks on the metadata store. Returns NULL on errors: see wherryErrorText().
 *
 * metadata_conn_string  how engines find each other: "P2PHANDSHAKE" (they ask each other at
 *                       HOST:PORT), or a metadata store: "http://HOST:PORT/PATH",
 *                       "etcd://HOST:PORT[,HOST:PORT...]", or HOST:PORT, which means etcd
 * local_server_name     HOST or HOST:PORT; with a store: any name, which the segment gets
 * ip_or_host_name       with a store: where to listen, unless it is NULL or ""; otherwise the
 *                       engine listens at the host of local_server_name
 * rpc_port, auto_discover  ignored: every available route may be used from the start
 *
 * The engine listens at a free port. With P2PHANDSHAKE its name is the result of
 * getLocalIpAndPort(). Its settings are Wherry's environment variables (WHERRY_TRANSPORTS and
 * others: `wherry config`). */
transfer_engine_t createTransferEngine(const char *metadata_conn_string,
				       const char *local_server_name, const char *ip_or_host_name,
				       uint64_t rpc_port, int auto_discover);

/* Cancel all requests, close everything, and remove the engine's name from the store. No other call
 * on the engine may be running, and none may follow. NULL is allowed. */
void destroyTransferEngine(transfer_engine_t engine);

/* Does nothing: Wherry discovers the topology by itself. 0 or -1. */
int discoverTopology(transfer_engine_t engine);

/* Get the engine's address, "HOST:PORT", truncated to `buf_len` bytes with the NUL. 0 or -1. */
int getLocalIpAndPort(transfer_engine_t engine, char *buf_out, size_t buf_len);

/* Installs nothing: Wherry chooses the routes. Returns a pointer that is not NULL for "tcp",
 * "rdma", "shm", "nvlink", "nvlink_intra" and "local", and NULL for others. Ignores `args`. */
transport_t installTransport(transfer_engine_t engine, const char *proto, void **args);

/* Does nothing. 0, or -1 (not one of those transports). */
int uninstallTransport(transfer_engine_t engine, const char *proto);

/* Does nothing: the library handles no signals. An engine that is not destroyed leaves its name in
 * the store. */
void enableGracefulShutdown(transfer_engine_t engine);

/* Describe the open segments: their routes, the bytes moved, and why no better route is taken. Text
 * for people; one JSON object if `json` is not 0. Truncated to `buf_len` bytes with the NUL.
 * 0, -1, -302. */
int showLinks(transfer_engine_t engine, char *buf_out, size_t buf_len, int json);

/* ---- memory ------------------------------------------------------------------------------- */

/* Register host or GPU memory as a source of requests and, unless `remote_accessible` is 0, for
 * other engines to read and write. The caller keeps the memory until it is unregistered. It may not
 * overlap memory that is already registered; 0 bytes may be anywhere. `location` ("cpu:0",
 * "cuda:0", "*") is ignored: the driver says what the memory is. Blocks on the store. 0, -1, -6,
 * -7, -200 (the memory is not registered then), -302. */
int registerLocalMemory(transfer_engine_t engine, void *addr, size_t length, const char *location,
			int remote_accessible);

/* Unregister the memory that starts at `addr`. When this returns 0, no engine reads or writes it.
 * 0, -3, or -4 (requests of this engine use it, or a peer on this host has not let go of it: call
 * again). Other engines cannot start new requests to it in any case. */
int unregisterLocalMemory(transfer_engine_t engine, void *addr);

/* Register several buffers, which other engines may read and write. On an error none is
 * registered. */
int registerLocalMemoryBatch(transfer_engine_t engine, buffer_entry_t *buffer_list,
			     size_t buffer_len, const char *location);
/* Unregister several buffers, continuing after errors. 0, or the first error. */
int unregisterLocalMemoryBatch(transfer_engine_t engine, void **addr_list, size_t addr_len);

/* ---- segments ----------------------------------------------------------------------------- */

/* Connect to the engine with this name ("HOST:PORT" with P2PHANDSHAKE). Leading slashes are
 * ignored. Blocks until connected. Returns the number of the segment, always the same for one name;
 * 0: this engine itself; or a negative error: -1, -101, -102, -200, -201, -302. */
segment_id_t openSegment(transfer_engine_t engine, const char *segment_name);
/* The same, but without using cached metadata. */
segment_id_t openSegmentNoCache(transfer_engine_t engine, const char *segment_name);

/* Close the connections, once the last batch with requests to the segment has been freed. The
 * number stays valid: the next request connects again. 0, or -1 (no such segment). */
int closeSegment(transfer_engine_t engine, segment_id_t segment_id);

/* Remove this engine's own name from the store. Other names are not removed. 0, -1, -200. */
int removeLocalSegment(transfer_engine_t engine, const char *segment_name);

/* Refresh the metadata of every open segment. 0, or the first error. */
int syncSegmentCache(transfer_engine_t engine);

/* Does nothing: EFA is not supported. Returns 0. */
int warmupEfaSegment(transfer_engine_t engine, const char *segment_name);

/* ---- batches ------------------------------------------------------------------------------ */

/* Create a batch with room for `batch_size` requests. INVALID_BATCH on errors. */
batch_id_t allocateBatchID(transfer_engine_t engine, size_t batch_size);

/* Start `count` requests. The batch numbers its requests from 0 in the order of submission; they
 * run in any order. If one is wrong (opcode, length, segment, a source that is not registered),
 * none is started: 1, 2, 3. Errors that only the target finds, such as an address that is not
 * registered there, appear in the status of the request. Blocks while it connects to a target. 0,
 * 1, 2, 3, 302. */
int submitTransfer(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request *entries,
		   size_t count);

/* The same, with a notification to the target of the first request, sent when all requests have
 * succeeded. If one fails, no notification is sent. The requests end together: when the
 * notification is confirmed, or when one has failed and none moves any more. If the notification
 * cannot be sent, they fail. Without requests there is no target, and nobody is notified. */
int submitTransferWithNotify(transfer_engine_t engine, batch_id_t batch_id,
			     struct transfer_request *entries, size_t count,
			     notify_msg_t notify_msg);

/* Get the status of request `task_id` of the batch. Does not block. 0, or 1 (no such batch or
 * request). If the request has failed, wherryErrorText() says why. */
int getTransferStatus(transfer_engine_t engine, batch_id_t batch_id, size_t task_id,
		      struct transfer_status *status);

/* Free a batch. 0, 1 (no such batch), or 4 (some of its requests have not ended). */
int freeBatchID(transfer_engine_t engine, batch_id_t batch_id);

/* ---- notifications ------------------------------------------------------------------------ */

/* Take all notifications that have arrived: an array of *size entries, to be freed with
 * freeNotifsMsgBuf(); NULL and 0 if there are none. The engine keeps at most 4,096 notifications
 * and 16 MiB; it does not confirm further ones to their senders. */
notify_msg_t *getNotifsFromEngine(transfer_engine_t engine, int *size);
/* Free an array of getNotifsFromEngine(). NULL is allowed. Returns 0. */
int freeNotifsMsgBuf(notify_msg_t *msg, int size);

/* Send one notification, UTF-8, at most 1 MiB, and wait until it is confirmed. 0, -1, -101, -102,
 * -200, -201, -302. */
int genNotifyInEngine(transfer_engine_t engine, uint64_t target_id, notify_msg_t notify_msg);

/* ---- not in Mooncake ---------------------------------------------------------------------- */

/* The text of this thread's last failed call, in one line; "" if none has failed. Valid until this
 * thread's next failing call. */
const char *wherryErrorText(void);

/* 1: the segment has been opened and its engine is connected, so openSegment() does not wait; 0: it
 * may. Does not block. */
int wherrySegmentIsReady(transfer_engine_t engine, const char *segment_name);

/* Wait up to `timeout` ns until all requests of the batch have ended, well or not, and its
 * notification is confirmed. Uses no CPU meanwhile. 0, 1 (no such batch), or 4 (some of its
 * requests have not ended). The batch must not be freed meanwhile: freeBatchID() then returns 4. */
int wherryWaitBatch(transfer_engine_t engine, batch_id_t batch_id, int64_t timeout);

#ifdef __cplusplus
}
#endif
#endif
