/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire protocol between engines; docs/wire-protocol.md describes it. All integers are
 * little-endian. Encoders and decoders only convert between bytes and structures: no sockets, no
 * allocation, no locks, safe on any thread. Encoders write without a bounds check unless they take
 * a size. Decoders accept any input and write *out only on success, except where a comment says
 * otherwise.
 *
 * Every connection starts with frames: HELLO, the answer WELCOME or REFUSED, then PROVE. A control
 * connection continues with frames. A data connection continues with requests and responses.
 */
#ifndef WH_WIRE_WIRE_H
#define WH_WIRE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WH_WIRE_VERSION 5
#define WH_WIRE_MAGIC 0x59524857u /* "WHRY" */

/* ---- frames ------------------------------------------------------------ */

#define WH_FRAME_HEADER 8
#define WH_FRAME_MAX (256u << 10) /* payload bytes */

enum wh_frame_type {
	WH_FRAME_HELLO = 1,
	WH_FRAME_WELCOME,
	WH_FRAME_REFUSED,
	WH_FRAME_REGIONS, /* the answer to LOOKUP: regions; flag LAST ends it */
	WH_FRAME_REMOVE, /* the owner unregisters a region: struct wh_removal */
	WH_FRAME_REMOVED, /* u64 number of the REMOVE: it is no longer mapped or accessed */
	WH_FRAME_NOTIFY, /* u64 sequence, u64 tag, then the user's bytes */
	WH_FRAME_NOTIFIED, /* u64 sequence: the notification is in the queue */
	WH_FRAME_PING, /* u64 token */
	WH_FRAME_PONG, /* the same */
	WH_FRAME_ABORT, /* u64 number of a data connection of this session: close it */
	WH_FRAME_ABORTED, /* the same number: closed; no more bytes are read or written for it */
	WH_FRAME_MAP, /* unix socket: request access to a region's memory. u64 region id, u32 number
			 of the first segment wanted (0 for host memory). With WH_MAP_OBJECTS in the
			 number, the answer names the GPU kernel driver's objects, for a CPU window.
			 */
	WH_FRAME_MAPPED, /* the answer for host memory, with the memfd */
	/* the answers for a GPU's memory, one per segment, some with a descriptor */
	WH_FRAME_EXPORTED,
	WH_FRAME_PROVE, /* the answer to WELCOME: the initiator's proof */
	/* unix socket, the answer to PROVE: carries the descriptor of the owner's alive page */
	WH_FRAME_ALIVE,
	WH_FRAME_LOOKUP, /* struct wh_question: which regions are there? */
	/* the owner has registered a region that answers a LOOKUP which found none; empty */
	WH_FRAME_REGISTERED,
	/* The frames of transports begin here: each names its types in its own wire.h, and their
	 * range in its table (transport/transport.h). rdma has 20 to 32, cuda 40 and 41; shm has 42
	 * and 43 over its own connection. */
	WH_FRAME_TRANSPORTS,
	WH_FRAME_TYPE_END = 64,
};
#define WH_FRAME_LAST 1 /* flag of REGIONS: the answer ends */
#define WH_MAP_SIZE 12 /* payload bytes of MAP */
#define WH_MAP_OBJECTS (UINT32_C(1) << 31)
#define WH_MAP_FABRIC (UINT32_C(1) << 30) /* fabric handles are taken, too */

/* A frame header. On the wire: u32 length of the payload, u16 type, u16 flags. */
struct wh_frame {
	uint32_t length;
	uint16_t type;
	uint16_t flags;
};
void wh_frame_encode(uint8_t out[WH_FRAME_HEADER], const struct wh_frame *frame);
/* 0, or -EPROTO: unknown type, or length over WH_FRAME_MAX. */
int wh_frame_decode(const uint8_t in[WH_FRAME_HEADER], struct wh_frame *frame);

/* ---- hello and welcome ------------------------------------------------- */

enum wh_role {
	WH_ROLE_CONTROL = 1,
	WH_ROLE_DATA = 2,
	WH_ROLE_LOCAL = 3, /* over the unix socket */
};

/* Bits of `capabilities`. RDMA: the engine accepts the frames RDMA_*. RDMA_NOTIFY: its queue pairs
 * post receives, for notifications with immediate. */
#define WH_CAPABLE_RDMA 1u
#define WH_CAPABLE_RDMA_NOTIFY 2u
/* RECORDS: the engine can send and receive records (wire/record.h). WANTS_RECORDS: it asks for them
 * on its TCP connections (setting `integrity`). */
#define WH_CAPABLE_RECORDS 4u
#define WH_WANTS_RECORDS 8u
/* MEET: the unix socket that WELCOME names is in a folder, too, for the setting `meet` of others */
#define WH_CAPABLE_MEET 16u
/* FABRIC: a MAP with WH_MAP_FABRIC is understood */
#define WH_CAPABLE_FABRIC 32u
/* FABRIC_HOSTS: the frame FABRIC_ASK is understood, over the control connection */
#define WH_CAPABLE_FABRIC_HOSTS 64u
/* LEND: the frame LEND is understood over the unix socket, and then slots in requests */
#define WH_CAPABLE_LEND 128u

#define WH_NAME_MAX 64 /* with the NUL */
#define WH_HELLO_MAX 1024
#define WH_NONCE_SIZE 32
#define WH_PROOF_SIZE 32 /* HMAC-SHA-256; wire/proof.h */
#define WH_PROVE_SIZE (WH_FRAME_HEADER + WH_PROOF_SIZE) /* a whole frame PROVE */

/* The payload of HELLO and of WELCOME. On the wire: u32 magic, u16 version_min, u16 version_max,
 * u16 role, u16 length of auth, u32 capabilities, u32 connection, u64 epoch, u64 expected, u64
 * session, host[16], name and socket (u8 length + bytes each), auth bytes. */
struct wh_hello {
	uint16_t version_min, version_max; /* WELCOME: both are the chosen version */
	uint16_t role;
	uint32_t capabilities;
	uint32_t connection; /* HELLO of data: its number at the initiator, for ABORT */
	uint64_t epoch; /* of the sending engine */
	uint64_t expected; /* the epoch of the engine that it expects to reach; 0: any */
	uint64_t session; /* WELCOME of control: the assigned id; HELLO of data and shm: that id */
	uint8_t host[16]; /* equal: one network namespace of a machine; the last 8: one machine */
	char name[WH_NAME_MAX];
	char socket[WH_NAME_MAX]; /* WELCOME: name of the unix socket for shm; "": none */
	uint16_t auth_length; /* HELLO: nonce; WELCOME: nonce and owner's proof */
	uint8_t auth[256];
};
/* `out` has room for WH_HELLO_MAX bytes. Returns the bytes used. */
size_t wh_hello_encode(uint8_t *out, const struct wh_hello *hello);
/* 0; -EPROTO: not a valid payload; -EPROTONOSUPPORT: no common version, and only version_min and
 * version_max are filled in. */
int wh_hello_decode(const uint8_t *in, size_t length, struct wh_hello *hello);

/* REFUSED: i32 errno (positive), then a text for people, truncated to WH_REFUSAL_MAX - 1 bytes. The
 * decoder returns 0 or -EPROTO; the text is clean and ends in a NUL. */
#define WH_REFUSAL_MAX 200
size_t wh_refusal_encode(uint8_t *out, int error, const char *text);
int wh_refusal_decode(const uint8_t *in, size_t length, int *error, char text[WH_REFUSAL_MAX]);

/* ---- regions ----------------------------------------------------------- */

/* flag: the region lies in a memfd; a peer that may access all of it can map it */
#define WH_REGION_MAPPABLE 1

/* On the wire: u64 id, u64 address, u64 length, u8 access, u8 kind, u8 flags, u8 name length,
 * name: 28 bytes and the name. */
/* The rights that records have: enum wh_access, without LIST. */
#define WH_ACCESS_BYTES (WH_ACCESS_READ | WH_ACCESS_WRITE)
struct wh_region_record {
	uint64_t id, address, length;
	uint8_t access, kind, flags;
	char name[WH_NAME_MAX];
};
#define WH_REGION_RECORD_MAX (28 + WH_NAME_MAX)
/* `out` has room for WH_REGION_RECORD_MAX bytes. Returns the bytes used. */
size_t wh_region_encode(uint8_t *out, const struct wh_region_record *record);
/* Read one record and advance *in behind it. 1; 0 at the end; -EPROTO: truncated, length 0, address
 * + length wraps, unknown access or kind, or a name with bytes other than A-Z a-z 0-9 . _ -. */
int wh_region_decode(const uint8_t **in, const uint8_t *end, struct wh_region_record *record);

/* What a LOOKUP asks for. */
enum wh_question_kind {
	WH_ASK_IDS = 1, /* the regions with these ids */
	WH_ASK_NAME, /* the region with this name */
	WH_ASK_ADDRESSES, /* for each range, the smallest region that holds it */
	WH_ASK_LIST, /* regions that grant WH_ACCESS_LIST, in the order of the owner's table */
};

#define WH_QUESTION_HEAD 16 /* bytes */
#define WH_QUESTION_MAX 1024 /* ids or ranges in one question, regions in one page of a list */
#define WH_RANGE_SIZE 24 /* bytes */

/* A range of the owner's addresses. On the wire: u64 address, u64 length, u64 access. */
struct wh_range {
	uint64_t address, length;
	uint8_t access; /* the region grants one of these, enum wh_access */
};

/* On the wire: u64 token, u8 kind, u8[3] 0, u32 count. Then come, by kind, u64 ids; the name; the
 * ranges; u64 cursor. */
struct wh_question {
	uint64_t token; /* the answer repeats it */
	uint8_t kind; /* enum wh_question_kind */
	uint32_t count; /* of ids or ranges, bytes of the name, most regions of a list */
	uint64_t cursor; /* LIST: 0, or `next` of the answer before */
	char name[WH_NAME_MAX]; /* NAME */
	const uint8_t *entries; /* IDS, ADDRESSES: `count` of them, in the payload */
};
/* Encode the head, and for NAME and LIST all. `out` has room for WH_QUESTION_HEAD + WH_NAME_MAX
 * bytes; ids and ranges follow. Returns the bytes used. */
size_t wh_question_encode(uint8_t *out, const struct wh_question *question);
void wh_range_encode(uint8_t out[WH_RANGE_SIZE], const struct wh_range *range);
/* 0, or -EPROTO: unknown kind, reserved bytes not 0, a count of 0 or above the limit, a length that
 * does not fit it, or a name with other bytes than a region's. `entries` points into `in`. */
int wh_question_decode(const uint8_t *in, size_t length, struct wh_question *question);
/* An entry of IDS, or of ADDRESSES. False: the range wraps, has length 0 or asks for no access. */
uint64_t wh_question_id(const struct wh_question *question, uint32_t index);
bool wh_question_range(const struct wh_question *question, uint32_t index, struct wh_range *range);

/* In front of the records of REGIONS: u64 token, u64 next. */
#define WH_REGIONS_HEAD 16

/* REMOVE. On the wire: u64 number, u64 id, u64 address, u64 length. Addresses come with it because
 * a mapping of the initiator's may show a region whose id it never learned. */
struct wh_removal {
	uint64_t number; /* greater than those before it; REMOVED repeats it */
	uint64_t id, address, length;
};
#define WH_REMOVAL_SIZE 32
void wh_removal_encode(uint8_t out[WH_REMOVAL_SIZE], const struct wh_removal *removal);
/* 0, or -EPROTO: a number or length of 0, or address + length wraps. */
int wh_removal_decode(const uint8_t *in, size_t length, struct wh_removal *removal);

/* A region's exported key: u8 version, u8 reserved, u16 length of the whole key, u64 epoch, a
 * record. `out` has room for WH_KEY_MAX bytes. Returns the bytes used. */
size_t wh_key_encode(uint8_t *out, uint64_t epoch, const struct wh_region_record *record);
/* 0; -EINVAL: not a valid key; -EPROTONOSUPPORT: a key of another version. */
int wh_key_decode(const uint8_t *in, size_t length, uint64_t *epoch,
		  struct wh_region_record *record);

/* ---- data: requests and responses -------------------------------------- */

#define WH_REQUEST_SIZE 32
#define WH_RESPONSE_SIZE 32
#define WH_REQUEST_EXTENTS 1024 /* extents in one request, at most */
#define WH_REQUEST_META (32u << 10) /* bytes of encoded extents, at most */
#define WH_REQUEST_BYTES (UINT64_C(1) << 30) /* payload bytes, at most */

#define WH_REQUEST_SLOTS 64u /* the highest number of a slot */

/* On the wire: u8 op, u8[3] 0, u32 meta, u32 count, u32 slot, u64 id, u64 bytes. Then come `meta`
 * bytes of encoded extents and, for a write without a slot, `bytes` of payload. */
struct wh_request {
	uint8_t op; /* WH_READ, WH_WRITE */
	uint32_t meta; /* bytes of encoded extents */
	uint32_t count; /* extents */
	/* 0; or the payload, of a read or a write, lies in this slot of memory that the initiator
	 * has lent, from 1 on, and does not follow on the socket. Only to engines with
	 * WH_CAPABLE_LEND, and for files only. */
	uint32_t slot;
	uint64_t id; /* chosen by the initiator; the response repeats it */
	uint64_t bytes; /* the sum of the extents' lengths */
};
void wh_request_encode(uint8_t out[WH_REQUEST_SIZE], const struct wh_request *request);
/* 0, or -EPROTO: unknown op, reserved bytes not 0, meta or count 0, bytes below count, or a limit
 * above exceeded. */
int wh_request_decode(const uint8_t in[WH_REQUEST_SIZE], struct wh_request *request);

/* On the wire: u8 op, u8[3] 0, u32 errors, u64 id, u64 bytes, u64 0. Then come `errors` records
 * {u32 extent, i32 errno (positive)} in the order of the extents, and, for a read, `bytes` of
 * payload: the extents without an error, in their order. */
struct wh_response {
	uint8_t op; /* the request's */
	uint32_t errors;
	uint64_t id;
	uint64_t bytes; /* of payload; 0 for a write */
};
#define WH_RESPONSE_ERROR_SIZE 8
void wh_response_encode(uint8_t out[WH_RESPONSE_SIZE], const struct wh_response *response);
/* 0, or -EPROTO: unknown op, reserved bytes not 0, a limit above exceeded, payload for a write. */
int wh_response_decode(const uint8_t in[WH_RESPONSE_SIZE], struct wh_response *response);

/* ---- extents: which bytes of which regions ----------------------------- */

struct wh_extent {
	uint64_t region, offset, length;
};

/*
 * A list of extents is a sequence of varint tokens (LEB128, at most 10 bytes each). The low two
 * bits of a token are its kind, the rest its value:
 *   DELTA   one extent, same region and length as the one before; value = zigzag(offset - (offset
 *           before + step)); step becomes this offset - the offset before
 *   REPEAT  value extents (>= 1), each `step` behind the one before
 *   SET     one extent; value = 0; then zigzag(region - region before), offset, length as varints;
 *           step becomes length
 * Region, offset, length and step are 0 at the start, so the first token is a SET.
 */
struct wh_extent_writer {
	uint8_t *start, *at, *end;
	struct wh_extent last;
	uint64_t step, repeat;
};
/* Start a list in `buffer`, which the caller keeps until wh_extents_end(). */
void wh_extents_start(struct wh_extent_writer *writer, uint8_t *buffer, size_t size);
/* Append one extent. 0, or -ENOSPC: it does not fit; the list is unchanged and wh_extents_end()
 * still works. */
int wh_extents_put(struct wh_extent_writer *writer, const struct wh_extent *extent);
/* End the list. Returns the bytes used. */
size_t wh_extents_end(struct wh_extent_writer *writer);

struct wh_extent_reader {
	const uint8_t *at, *end;
	struct wh_extent last;
	uint64_t step, repeat;
};
/* Start reading a list from `in`, which the caller keeps as long as the reader is used. */
void wh_extents_open(struct wh_extent_reader *reader, const uint8_t *in, size_t length);
/* 1 and the next extent (length > 0; offset + length does not wrap); 0 at the end; -EPROTO. After
 * -EPROTO every call returns -EPROTO. */
int wh_extents_next(struct wh_extent_reader *reader, struct wh_extent *extent);

#endif
