/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What engines say to each other. Everything is little-endian. Encoders and decoders are pure:
 * bytes in, structures out, no sockets, no allocation; decoders trust nothing.
 *
 * A connection starts with frames (HELLO, answered by WELCOME or REFUSED, and then PROVE). A
 * control connection goes on with frames; a data connection, after its PROVE, with requests and
 * responses.
 */
#ifndef WH_WIRE_WIRE_H
#define WH_WIRE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WH_WIRE_VERSION 4
#define WH_WIRE_MAGIC 0x59524857u /* "WHRY" */

/* ---- frames ------------------------------------------------------------------------------- */

#define WH_FRAME_HEADER 8
#define WH_FRAME_MAX (256u << 10) /* payload bytes */

enum wh_frame_type {
	WH_FRAME_HELLO = 1,
	WH_FRAME_WELCOME,
	WH_FRAME_REFUSED,
	WH_FRAME_REGIONS, /* regions published; flag LAST ends the first, full list */
	WH_FRAME_REMOVE, /* regions taken back: ids */
	WH_FRAME_REMOVED, /* the answer: the same ids, no longer mapped or touched */
	WH_FRAME_NOTIFY, /* u64 sequence, then the user's bytes */
	WH_FRAME_NOTIFIED, /* u64 sequence: it is in the queue */
	WH_FRAME_PING, /* u64 token */
	WH_FRAME_PONG, /* the same */
	WH_FRAME_ABORT, /* u64 number of one of this session's data connections: drop it */
	WH_FRAME_ABORTED, /* the same: dropped, nothing more comes from it or goes by it */
	WH_FRAME_MAP, /* u64 region id, u32 number of the first segment wanted, 0 for host memory
			 (unix socket): may I have its memory? With WH_MAP_OBJECTS in the number, by
			 what the GPU's kernel driver knows it as, for a CPU window. */
	WH_FRAME_MAPPED, /* the answer for host memory, with the memfd */
	/* the answers for a GPU's memory, one a segment, some with a descriptor */
	WH_FRAME_EXPORTED,
	WH_FRAME_PROVE, /* the initiator's proof, in answer to WELCOME */
	/* unix socket, in answer to PROVE: the owner's alive page comes along */
	WH_FRAME_ALIVE,
	/* Of the transport rdma; sent to engines alone that say WH_CAPABLE_RDMA. */
	WH_FRAME_RDMA_CONNECT, /* a queue pair of ours: connect one of yours to it */
	WH_FRAME_RDMA_CONNECTED, /* the answer */
	WH_FRAME_RDMA_KEYS, /* u32 NIC, u64 region id: how do I reach its memory? */
	WH_FRAME_RDMA_KEYED, /* the answer */
	/* u32 number, u64 region id: have its GPU see what NICs have written */
	WH_FRAME_RDMA_FLUSH,
	WH_FRAME_RDMA_FLUSHED, /* the answer */
	/* empty: pinned memory, for bytes of GPUs that your NICs do not reach? */
	WH_FRAME_RDMA_BOUNCE_OPEN,
	WH_FRAME_RDMA_BOUNCE_OPENED, /* the answer */
	WH_FRAME_RDMA_COPY, /* move bytes between a slot of it and regions */
	WH_FRAME_RDMA_COPIED, /* the answer, as FLUSHED; its number is the slot */
	/* u32 number of a queue pair: give it back, if you do not use it */
	WH_FRAME_RDMA_SPARE,
	/* Sent to engines alone that say WH_CAPABLE_RDMA_NOTIFY. */
	WH_FRAME_RDMA_RING_OPEN, /* empty: memory of yours that I may write notifications to? */
	WH_FRAME_RDMA_RING_OPENED, /* the answer */
	WH_FRAME_TYPE_END,
};
#define WH_FRAME_LAST 1 /* flag of REGIONS */
#define WH_MAP_SIZE 12 /* payload bytes of MAP */
#define WH_MAP_OBJECTS (UINT32_C(1) << 31)

/* Header on the wire: u32 length of the payload, u16 type, u16 flags. */
struct wh_frame {
	uint32_t length;
	uint16_t type;
	uint16_t flags;
};
void wh_frame_encode(uint8_t out[WH_FRAME_HEADER], const struct wh_frame *frame);
/* 0, or -EPROTO (unknown type, length over WH_FRAME_MAX). */
int wh_frame_decode(const uint8_t in[WH_FRAME_HEADER], struct wh_frame *frame);

/* ---- hello and welcome -------------------------------------------------------------------- */

enum wh_role {
	WH_ROLE_CONTROL = 1,
	WH_ROLE_DATA = 2,
	WH_ROLE_SHM = 3, /* over the unix socket */
};

/* Of capabilities: the frames RDMA_* may be sent to it; its queue pairs have receives, for letters
 */
#define WH_CAPABLE_RDMA 1u
#define WH_CAPABLE_RDMA_NOTIFY 2u

#define WH_NAME_MAX 64 /* with the NUL */
#define WH_HELLO_MAX 1024
#define WH_NONCE_SIZE 32
#define WH_PROOF_SIZE 32 /* HMAC-SHA-256; wire/proof.h */
#define WH_PROVE_SIZE (WH_FRAME_HEADER + WH_PROOF_SIZE) /* a whole frame PROVE */

/* Both HELLO and WELCOME. On the wire: u32 magic, u16 version_min, u16 version_max, u16 role,
 * u16 length of auth, u32 capabilities, u32 connection, u64 epoch, u64 expected, u64 session,
 * host[16], name and socket (u8 length + bytes each), auth bytes. */
struct wh_hello {
	uint16_t version_min, version_max; /* in WELCOME: both the chosen one */
	uint16_t role;
	uint32_t capabilities;
	uint32_t connection; /* HELLO of data: the initiator's number for it, for ABORT */
	uint64_t epoch; /* the sender's */
	uint64_t expected; /* the epoch it wants to talk to; 0: any */
	uint64_t session; /* WELCOME of control: given; HELLO of data and shm: returned */
	uint8_t host[16]; /* same bytes: same host (and the same network namespace) */
	char name[WH_NAME_MAX];
	char socket[WH_NAME_MAX]; /* WELCOME: the abstract unix socket for shm; "": none */
	uint16_t auth_length; /* HELLO: a nonce; WELCOME: a nonce and the owner's proof */
	uint8_t auth[256];
};
/* Returns the bytes used, at most WH_HELLO_MAX. */
size_t wh_hello_encode(uint8_t *out, const struct wh_hello *hello);
/* 0, -EPROTO (not a hello), -EPROTONOSUPPORT (no common version; version_min/max are filled). */
int wh_hello_decode(const uint8_t *in, size_t length, struct wh_hello *hello);

/* REFUSED: i32 errno (positive), then a text. */
#define WH_REFUSAL_MAX 200
size_t wh_refusal_encode(uint8_t *out, int error, const char *text);
int wh_refusal_decode(const uint8_t *in, size_t length, int *error, char text[WH_REFUSAL_MAX]);

/* ---- regions ------------------------------------------------------------------------------ */

/* flag: it lies in a memfd, which a peer that sees all of it can map */
#define WH_REGION_MAPPABLE 1

/* On the wire: u64 id, u64 address, u64 length, u8 access, u8 kind, u8 flags, u8 name length,
 * name: 28 bytes and the name. */
struct wh_region_record {
	uint64_t id, address, length;
	uint8_t access, kind, flags;
	char name[WH_NAME_MAX];
};
#define WH_REGION_RECORD_MAX (28 + WH_NAME_MAX)
/* Returns the bytes used. */
size_t wh_region_encode(uint8_t *out, const struct wh_region_record *record);
/* Read one record from *in, moving it on. 1, 0 at the end, -EPROTO (cut off; length 0; address +
 * length wraps; no such access or kind; a name with bytes other than A-Z a-z 0-9 . _ -). */
int wh_region_decode(const uint8_t **in, const uint8_t *end, struct wh_region_record *record);

/* A region's exported key: u8 version, u8 reserved, u16 length of the whole, u64 epoch, a record.
 */
size_t wh_key_encode(uint8_t *out, uint64_t epoch, const struct wh_region_record *record);
/* 0, -EINVAL, -EPROTONOSUPPORT. */
int wh_key_decode(const uint8_t *in, size_t length, uint64_t *epoch,
		  struct wh_region_record *record);

/* ---- segments of a GPU's memory, over the unix socket --------------------------------------- */

#define WH_EXPORTED_TEXT 192 /* with the NUL */

enum wh_handle_type {
	WH_HANDLE_FD = 1, /* of cuMemCreate; the descriptor comes along */
	WH_HANDLE_LEGACY = 2, /* cuIpcGetMemHandle */
	WH_HANDLE_OBJECT = 3, /* of the NVIDIA kernel driver; the descriptor comes along */
};

/* Payload of EXPORTED: one segment of a region. On the wire: u64 id, u32 errno, then, without an
 * error, u32 segments, u32 index, u8 type, u8 device[16] (UUID), u64 address, u64 length, u64 base,
 * u64 size, and for LEGACY u8 handle[64]; with an error the reason. */
struct wh_exported {
	uint64_t id;
	int error; /* negative; 0: all below is there */
	uint32_t segments, index; /* of the region, and which this is */
	uint8_t type;
	uint8_t device[16];
	uint64_t address, length; /* of the segment in the owner's address space */
	uint64_t base, size; /* of the mapping or allocation that it lies in; OBJECT: where the
				object would begin, and as much of it as ends with the segment */
	uint8_t handle[64];
	char text[WH_EXPORTED_TEXT];
};
#define WH_EXPORTED_HEAD 12
#define WH_EXPORTED_MAX (WH_EXPORTED_HEAD + WH_EXPORTED_TEXT)
/* Returns the bytes used. */
size_t wh_exported_encode(uint8_t *out, const struct wh_exported *exported);
/* 0 or -EPROTO. */
int wh_exported_decode(const uint8_t *in, size_t length, struct wh_exported *exported);

/* ---- queue pairs and keys of the transport rdma, over the control connection ------------------
 */

enum wh_rdma_link {
	WH_RDMA_INFINIBAND = 1,
	WH_RDMA_ETHERNET = 2,
};

/* One end of a connection of two queue pairs. On the wire: u8 link, u8 type of the GID (0
 * InfiniBand, 1 RoCE v1, 2 RoCE v2), u8 MTU (1: 256 to 5: 4096), u8 reads it answers at a time, u8
 * reads it asks for at a time, u8 0, u16 LID, u16 partition key, u32 number of the queue pair, u32
 * first sequence number (24 bits each), gid[16], name of the device and port (u8 length + bytes).
 */
struct wh_rdma_end {
	uint8_t link, gid_type, mtu, answers, asks;
	uint16_t lid, pkey;
	uint32_t qp, psn;
	uint8_t gid[16];
	char name[WH_NAME_MAX];
};

/* Payload of CONNECT: u32 number, the initiator's for it, which ABORT names; u16 index of its rail;
 * u16 turn, how often that has failed already, so that another rail of the owner's has its turn; an
 * end. */
struct wh_rdma_connect {
	uint32_t number;
	uint16_t index, turn;
	struct wh_rdma_end end;
};

/* Payload of CONNECTED: u32 number, u32 errno, then, without an error, u32 the owner's number for
 * its NIC, which KEYS names, and an end; with an error the reason. */
struct wh_rdma_connected {
	uint32_t number;
	int error; /* negative; 0: the rest is there, but the text */
	uint32_t nic;
	struct wh_rdma_end end;
	char text[WH_REFUSAL_MAX];
};

/* How a NIC reaches memory. */
enum wh_rdma_way {
	WH_RDMA_HOST, /* it is host memory */
	WH_RDMA_DMA_BUF, /* a GPU's, as a dma-buf */
	WH_RDMA_PEERMEM, /* a GPU's, by its address, which a kernel module translates */
	WH_RDMA_STAGED, /* a GPU's, not at all: its bytes go through pinned memory */
};

/* Payload of KEYED: u64 id, u32 nic, u32 errno, then, without an error, u8 way, u8 1: what NICs
 * write has to be flushed before its GPU sees it, u8 how far the NIC is from the memory, u8 0, u32
 * count, and so many keys, each for the bytes of the region behind those of the one before: u64 how
 * many, u32 key. In both cases a text ends it: the reason; or why the way is not a better one. */
#define WH_RDMA_KEYS_MAX 16384
#define WH_RDMA_KEY_SIZE 12
struct wh_rdma_keyed {
	uint64_t id;
	uint32_t nic;
	int error; /* negative */
	uint8_t way, flush;
	uint8_t distance; /* of use in comparisons alone: the less, the nearer */
	uint32_t count;
	const uint8_t *keys; /* as they are on the wire */
	char text[WH_REFUSAL_MAX];
};

/* Payload of FLUSHED: u32 number, u32 errno, and with an errno the reason. */
struct wh_rdma_flushed {
	uint32_t number;
	int error; /* negative */
	char text[WH_REFUSAL_MAX];
};

/* In KEYED: no NIC reaches the memory, and its owner stages it, by DESK and COPY. */
#define WH_RDMA_STAGED_THERE EREMOTEIO

/* Memory of the owner's that is one session's alone: slots of so many bytes, one behind the other,
 * whose keys KEYS tells for the region 0. */
#define WH_RDMA_BOUNCE_SLOT (1u << 20)
#define WH_RDMA_BOUNCE_SLOTS 4u

/* Payload of DESKED: u32 errno, then, without an error, u64 address, u32 slots, of which there are
 * up to WH_RDMA_BOUNCE_SLOTS; with an error the reason. */
struct wh_rdma_bounce_opened {
	int error; /* negative */
	uint64_t address;
	uint32_t slots;
	char text[WH_REFUSAL_MAX];
};

/* Payload of COPY: u32 slot, u32 op (enum wh_op: WRITE out of the slot, READ into it), and extents,
 * whose bytes lie one behind the other from the start of the slot on. */
struct wh_rdma_copy {
	uint32_t slot, op;
	const uint8_t *extents; /* as they are on the wire */
	size_t length; /* of them */
};
#define WH_RDMA_COPY_HEAD 8
#define WH_RDMA_COPY_RUNS 256u /* the most extents */

/* A letter: a notification that a NIC writes into a slot of a mailbox, the owner's memory that is
 * one session's alone, by a write with an immediate. In the slot: u64 sequence, as of NOTIFY, u32
 * length, u32 0, and so many bytes. The immediate: the number of the slot, and above the lowest 8
 * bits the lowest 24 of the sequence. */
#define WH_RDMA_RING_SLOTS 16u /* slots, and the most that are sent without being confirmed */
#define WH_RDMA_NOTIFICATION_HEAD 16
#define WH_RDMA_NOTIFICATION_MAX 4096 /* WH_NOTIFICATION_MAX */
#define WH_RDMA_RING_SLOT (WH_RDMA_NOTIFICATION_HEAD + WH_RDMA_NOTIFICATION_MAX)

struct wh_rdma_notification {
	uint64_t sequence;
	uint32_t length; /* 1 to WH_RDMA_NOTIFICATION_MAX */
};

/* Payload of MAILED: u32 errno, then, without an error, u64 address of the first of
 * WH_RDMA_RING_SLOTS slots, which lie one behind the other, and for 1 to WH_RDMA_RING_KEYS NICs of
 * the owner u32 number, u32 key; with an error the reason. */
#define WH_RDMA_RING_KEYS 16u
struct wh_rdma_ring_opened {
	int error; /* negative */
	uint64_t address;
	uint32_t count;
	struct wh_rdma_ring_key {
		uint32_t nic, key;
	} keys[WH_RDMA_RING_KEYS];
	char text[WH_REFUSAL_MAX];
};
#define WH_RDMA_RING_OPENED_MAX (12 + 8 * WH_RDMA_RING_KEYS + WH_REFUSAL_MAX)

#define WH_RDMA_KEYS_SIZE 12
#define WH_RDMA_END_MAX (36 + WH_NAME_MAX)
#define WH_RDMA_CONNECT_MAX (8 + WH_RDMA_END_MAX)
#define WH_RDMA_CONNECTED_MAX (12 + WH_REFUSAL_MAX)
#define WH_RDMA_KEYED_HEAD 24
#define WH_RDMA_FLUSH_SIZE 12
#define WH_RDMA_FLUSHED_MAX (8 + WH_REFUSAL_MAX)
#define WH_RDMA_BOUNCE_OPENED_MAX (4 + WH_REFUSAL_MAX)
/* These return the bytes used. */
size_t wh_rdma_connect_encode(uint8_t *out, const struct wh_rdma_connect *connect);
size_t wh_rdma_connected_encode(uint8_t *out, const struct wh_rdma_connected *connected);
/* `keys` are there, as they are on the wire, unless there is an error. */
size_t wh_rdma_keyed_encode(uint8_t *out, const struct wh_rdma_keyed *keyed);
size_t wh_rdma_flushed_encode(uint8_t *out, const struct wh_rdma_flushed *flushed);
size_t wh_rdma_bounce_opened_encode(uint8_t *out, const struct wh_rdma_bounce_opened *desked);
size_t wh_rdma_ring_opened_encode(uint8_t *out, const struct wh_rdma_ring_opened *mailed);
void wh_rdma_notification_encode(uint8_t out[WH_RDMA_NOTIFICATION_HEAD],
				 const struct wh_rdma_notification *letter);
/* As it is in the host's order. */
uint32_t wh_rdma_imm(uint32_t slot, uint64_t sequence);
/* The head alone; the extents come behind it. */
uint8_t *wh_rdma_copy_encode(uint8_t *out, uint32_t slot, uint32_t op);
/* 0 or -EPROTO. */
int wh_rdma_connect_decode(const uint8_t *in, size_t length, struct wh_rdma_connect *connect);
int wh_rdma_connected_decode(const uint8_t *in, size_t length, struct wh_rdma_connected *connected);
int wh_rdma_keyed_decode(const uint8_t *in, size_t length, struct wh_rdma_keyed *keyed);
int wh_rdma_flushed_decode(const uint8_t *in, size_t length, struct wh_rdma_flushed *flushed);
int wh_rdma_bounce_opened_decode(const uint8_t *in, size_t length,
				 struct wh_rdma_bounce_opened *desked);
int wh_rdma_copy_decode(const uint8_t *in, size_t length, struct wh_rdma_copy *copy);
int wh_rdma_ring_opened_decode(const uint8_t *in, size_t length,
			       struct wh_rdma_ring_opened *mailed);
/* The number of the slot that an immediate names, or -EPROTO. */
int wh_rdma_imm_slot(uint32_t imm);
/* What is in that slot. */
int wh_rdma_notification_decode(const uint8_t in[WH_RDMA_NOTIFICATION_HEAD], uint32_t imm,
				struct wh_rdma_notification *letter);

/* ---- data: requests and responses ----------------------------------------------------------- */

#define WH_REQUEST_SIZE 32
#define WH_RESPONSE_SIZE 32
#define WH_REQUEST_EXTENTS 1024 /* the most extents in one request */
#define WH_REQUEST_META (32u << 10) /* the most bytes that describe them */
#define WH_REQUEST_BYTES (UINT64_C(1) << 30) /* the most payload bytes */

/* On the wire: u8 op, u8[3] 0, u32 meta, u32 count, u32 0, u64 id, u64 bytes. Then `meta` bytes of
 * extents, then, for a write, `bytes` of payload. */
struct wh_request {
	uint8_t op; /* WH_READ, WH_WRITE */
	uint32_t meta; /* bytes of encoded extents */
	uint32_t count; /* extents */
	uint64_t id; /* the initiator's; comes back in the response */
	uint64_t bytes; /* the sum of the extents' lengths */
};
void wh_request_encode(uint8_t out[WH_REQUEST_SIZE], const struct wh_request *request);
/* 0, or -EPROTO: unknown op, non-zero reserved bytes, a limit above exceeded, count or bytes 0. */
int wh_request_decode(const uint8_t in[WH_REQUEST_SIZE], struct wh_request *request);

/* On the wire: u8 op, u8[3] 0, u32 errors, u64 id, u64 bytes, u64 0. Then `errors` times {u32
 * extent, i32 errno (positive)}, then, for a read, `bytes` of payload: the extents without an error
 * in their order. */
struct wh_response {
	uint8_t op; /* of the request */
	uint32_t errors;
	uint64_t id;
	uint64_t bytes; /* payload that follows; 0 for a write */
};
#define WH_RESPONSE_ERROR_SIZE 8
void wh_response_encode(uint8_t out[WH_RESPONSE_SIZE], const struct wh_response *response);
int wh_response_decode(const uint8_t in[WH_RESPONSE_SIZE], struct wh_response *response);

/* ---- extents: which bytes of which regions --------------------------------------------------- */

struct wh_extent {
	uint64_t region, offset, length;
};

/*
 * A sequence of varint tokens (LEB128, at most 10 bytes). The low two bits of a token are its kind,
 * the rest its value:
 *   DELTA   one extent, same region and length as the one before; value = zigzag(offset - (offset
 *           before + step)); step becomes this offset - the offset before
 *   REPEAT  value extents (>= 1), each `step` further on
 *   SET     one extent; value = 0; then zigzag(region - region before), offset, length as varints;
 *           step becomes length
 * At the start region, offset, length and step are 0 (so the first token is a SET).
 */
struct wh_extent_writer {
	uint8_t *start, *at, *end;
	struct wh_extent last;
	uint64_t step, repeat;
};
void wh_extents_start(struct wh_extent_writer *writer, uint8_t *buffer, size_t size);
/* 0, or -ENOSPC: it does not fit; nothing has changed and wh_extents_end() still works. */
int wh_extents_put(struct wh_extent_writer *writer, const struct wh_extent *extent);
/* Returns the bytes used. */
size_t wh_extents_end(struct wh_extent_writer *writer);

struct wh_extent_reader {
	const uint8_t *at, *end;
	struct wh_extent last;
	uint64_t step, repeat;
};
void wh_extents_open(struct wh_extent_reader *reader, const uint8_t *in, size_t length);
/* 1 and the next extent (length > 0, offset + length does not wrap), 0 at the end, -EPROTO. */
int wh_extents_next(struct wh_extent_reader *reader, struct wh_extent *extent);

#endif
