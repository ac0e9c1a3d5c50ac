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
