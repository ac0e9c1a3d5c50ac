/* SPDX-License-Identifier: Apache-2.0 */
/* The frames of the transport rdma, which travel over the control connection, and the layout of a
 * notification in the receive ring. Little-endian. The codecs are pure: no sockets, no allocation;
 * decoders return 0 or -EPROTO and set *out on success only.
 *
 * The initiator sends CONNECT, KEYS, FLUSH, BOUNCE_OPEN, COPY and RING_OPEN. The owner answers each
 * with CONNECTED, KEYED, FLUSHED, BOUNCE_OPENED, COPIED or RING_OPENED, and sends SPARE unasked. An
 * answer contains an errno and, if that is not 0, the reason as text. */
#ifndef WH_TRANSPORT_RDMA_WIRE_H
#define WH_TRANSPORT_RDMA_WIRE_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/wire.h"

/* Frames over the control connection. */
enum wh_rdma_frame {
	/* Sent only to engines with WH_CAPABLE_RDMA. */
	WH_FRAME_RDMA_CONNECT =
		WH_FRAME_TRANSPORTS, /* connect a queue pair to the sender's queue pair */
	WH_FRAME_RDMA_CONNECTED, /* the answer */
	WH_FRAME_RDMA_KEYS, /* u32 NIC, u64 region id: request the region's remote keys */
	WH_FRAME_RDMA_KEYED, /* the answer */
	/* u32 number, u64 region id: make NIC writes visible to the region's GPU */
	WH_FRAME_RDMA_FLUSH,
	WH_FRAME_RDMA_FLUSHED, /* the answer */
	/* empty: request bounce buffers for GPUs that the owner's NICs cannot reach */
	WH_FRAME_RDMA_BOUNCE_OPEN,
	WH_FRAME_RDMA_BOUNCE_OPENED, /* the answer */
	WH_FRAME_RDMA_COPY, /* copy bytes between a slot of the bounce buffers and regions */
	WH_FRAME_RDMA_COPIED, /* the answer, laid out as FLUSHED; its number is the slot */
	/* u32 number of a queue pair: give it back by ABORT, if it is idle */
	WH_FRAME_RDMA_SPARE,
	/* Sent only to engines with WH_CAPABLE_RDMA_NOTIFY. */
	WH_FRAME_RDMA_RING_OPEN, /* empty: request a receive ring for notifications */
	WH_FRAME_RDMA_RING_OPENED, /* the answer */
	WH_FRAME_RDMA_END,
};

/* ---- connecting: CONNECT, CONNECTED ---------------------------------------------------------- */

enum wh_rdma_link {
	WH_RDMA_INFINIBAND = 1,
	WH_RDMA_ETHERNET = 2,
};

/* One end of a connected pair of queue pairs. On the wire: u8 link, u8 GID type (0 InfiniBand, 1
 * RoCE v1, 2 RoCE v2), u8 MTU (1: 256 bytes to 5: 4096), u8 responder_resources, u8
 * initiator_depth, u8 0, u16 LID, u16 partition key, u32 number of the queue pair, u32 first packet
 * sequence number (24 bits each), gid[16], name of the device and port (u8 length + bytes). */
struct wh_rdma_end {
	uint8_t link, gid_type, mtu;
	uint8_t responder_resources; /* reads that it answers at a time */
	uint8_t initiator_depth; /* reads that it requests at a time */
	uint16_t lid, pkey;
	uint32_t qp, psn;
	uint8_t gid[16];
	char name[WH_NAME_MAX];
};
#define WH_RDMA_END_MAX (36 + WH_NAME_MAX)

/* On the wire: u32 number, u16 index, u16 turn, the end. */
struct wh_rdma_connect {
	uint32_t number; /* the initiator's number for the connection; ABORT and SPARE name it */
	uint16_t index; /* of the initiator's rail */
	uint16_t turn; /* failed attempts so far; the owner chooses another rail each turn */
	struct wh_rdma_end end;
};
#define WH_RDMA_CONNECT_MAX (8 + WH_RDMA_END_MAX)
/* All encoders return the bytes used. */
size_t wh_rdma_connect_encode(uint8_t *out, const struct wh_rdma_connect *connect);
int wh_rdma_connect_decode(const uint8_t *in, size_t length, struct wh_rdma_connect *connect);

/* On the wire: u32 number, u32 errno; if that is 0: u32 nic, the end; else the text. */
struct wh_rdma_connected {
	uint32_t number;
	int error; /* 0, or a negative errno: only `text` is set */
	uint32_t nic; /* the owner's number for its NIC; KEYS names it */
	struct wh_rdma_end end;
	char text[WH_REFUSAL_MAX];
};
#define WH_RDMA_CONNECTED_MAX (12 + WH_REFUSAL_MAX)
size_t wh_rdma_connected_encode(uint8_t *out, const struct wh_rdma_connected *connected);
int wh_rdma_connected_decode(const uint8_t *in, size_t length, struct wh_rdma_connected *connected);

/* ---- keys: KEYS, KEYED ----------------------------------------------------------------------- */

/* How a NIC reaches memory. */
enum wh_rdma_method {
	WH_RDMA_HOST, /* host memory, registered by its address */
	WH_RDMA_DMA_BUF, /* GPU memory, registered as a dma-buf */
	WH_RDMA_PEERMEM, /* GPU memory, registered by its address; a kernel module translates */
	/* GPU memory that the NIC does not reach, or a file: copied through a bounce buffer */
	WH_RDMA_STAGED,
};

/* Bounce buffers of a session: number 0 for GPU memory, each other one for the files of one file
 * system. */
#define WH_RDMA_BOUNCES 8u

/* KEYS, on the wire: u32 nic, u64 region id; region 0 is bounce buffer 0. */
#define WH_RDMA_KEYS_SIZE 12

/* On the wire: u64 id, u32 nic, u32 errno; if that is 0: u8 method, u8 flush, u8 distance, u8
 * bounce, u32 count, `count` keys, each {u64 bytes, u32 key} for the bytes after those of the key
 * before, and for method STAGED u64 address; in both cases the text.
 *
 * Method STAGED says that the region is a file: the keys are those of bounce buffer `bounce`, which
 * begins at `address` and has whole slots. */
#define WH_RDMA_KEYS_MAX 16384
#define WH_RDMA_KEY_SIZE 12
struct wh_rdma_keyed {
	uint64_t id;
	uint32_t nic;
	int error; /* 0 or a negative errno */
	uint8_t method; /* enum wh_rdma_method */
	uint8_t flush; /* 1: the owner must flush what NICs write before the GPU sees it */
	uint8_t distance; /* from the NIC to the memory; only for comparing: smaller is nearer */
	uint8_t bounce; /* STAGED: 1 to WH_RDMA_BOUNCES - 1; else 0 */
	uint64_t address; /* STAGED: of that bounce buffer */
	uint32_t count;
	const uint8_t *keys; /* in wire format */
	char text[WH_REFUSAL_MAX]; /* the error's reason; or why no better method was used */
};
#define WH_RDMA_KEYED_HEAD 32 /* bytes besides the keys and the text, at most */
size_t wh_rdma_keyed_encode(uint8_t *out, const struct wh_rdma_keyed *keyed);
int wh_rdma_keyed_decode(const uint8_t *in, size_t length, struct wh_rdma_keyed *keyed);

/* The errno in KEYED if no NIC of the owner reaches the GPU memory and the owner stages it, by
 * BOUNCE_OPEN and COPY. */
#define WH_RDMA_STAGED_BY_OWNER EREMOTEIO

/* ---- flushing: FLUSH, FLUSHED ---------------------------------------------------------------- */

/* FLUSH, on the wire: u32 number, u64 region id. */
#define WH_RDMA_FLUSH_SIZE 12

/* FLUSHED and COPIED. On the wire: u32 number, u32 errno, and with an errno the text. */
struct wh_rdma_flushed {
	uint32_t number; /* from FLUSH; in COPIED the slot, as in COPY */
	int error; /* 0 or a negative errno */
	char text[WH_REFUSAL_MAX];
};
#define WH_RDMA_FLUSHED_MAX (8 + WH_REFUSAL_MAX)
size_t wh_rdma_flushed_encode(uint8_t *out, const struct wh_rdma_flushed *flushed);
int wh_rdma_flushed_decode(const uint8_t *in, size_t length, struct wh_rdma_flushed *flushed);

/* ---- bounce buffers: BOUNCE_OPEN, BOUNCE_OPENED, COPY, COPIED -------------------------------- */

/* The owner's memory that one session stages through: adjacent slots of this many bytes. KEYS for
 * region 0 returns the keys of bounce buffer 0, KEYS for a file those of the file system's. */
#define WH_RDMA_BOUNCE_SLOT (1u << 20)
#define WH_RDMA_BOUNCE_SLOTS 4u /* at most */

/* On the wire: u32 errno; if that is 0: u64 address, u32 slots; else the text. */
struct wh_rdma_bounce_opened {
	int error; /* 0 or a negative errno */
	uint64_t address;
	uint32_t slots;
	char text[WH_REFUSAL_MAX];
};
#define WH_RDMA_BOUNCE_OPENED_MAX (4 + WH_REFUSAL_MAX)
size_t wh_rdma_bounce_opened_encode(uint8_t *out, const struct wh_rdma_bounce_opened *opened);
int wh_rdma_bounce_opened_decode(const uint8_t *in, size_t length,
				 struct wh_rdma_bounce_opened *opened);

/* On the wire: u32 slot, u32 op, extents. The bytes of the extents are adjacent in the slot, from
 * its start. Slots of all bounce buffers are numbered through: number of the buffer *
 * WH_RDMA_BOUNCE_SLOTS + slot of the buffer. */
#define WH_RDMA_SLOTS (WH_RDMA_BOUNCES * WH_RDMA_BOUNCE_SLOTS)
struct wh_rdma_copy {
	uint32_t slot; /* less than WH_RDMA_SLOTS */
	uint32_t op; /* enum wh_op: WRITE copies out of the slot, READ into it */
	const uint8_t *extents; /* in wire format */
	size_t length; /* bytes of `extents` */
};
#define WH_RDMA_COPY_HEAD 8
#define WH_RDMA_COPY_EXTENTS 256u /* at most */
/* Encodes the head; returns where the extents begin. */
uint8_t *wh_rdma_copy_encode(uint8_t *out, uint32_t slot, uint32_t op);
int wh_rdma_copy_decode(const uint8_t *in, size_t length, struct wh_rdma_copy *copy);

/* ---- notifications: RING_OPEN, RING_OPENED, and the receive ring ----------------------------- */

/* A NIC writes a notification into a slot of the receive ring, which is memory of the owner for one
 * session, by an RDMA write with an immediate. In the slot: u64 sequence and u64 tag (as in
 * NOTIFY), u32 length, u32 0, the user's bytes. Longer ones go over the control connection. The
 * immediate: the slot's number in the lowest 8 bits, the lowest 24 bits of the sequence above. */
#define WH_RDMA_RING_SLOTS 16u /* also the most notifications that are sent and unconfirmed */
#define WH_RDMA_NOTIFICATION_HEAD 24
#define WH_RDMA_NOTIFICATION_MAX 4096 /* bytes of the user's */
#define WH_RDMA_RING_SLOT (WH_RDMA_NOTIFICATION_HEAD + WH_RDMA_NOTIFICATION_MAX) /* bytes */

struct wh_rdma_notification {
	uint64_t sequence, tag;
	uint32_t length; /* 0 to WH_RDMA_NOTIFICATION_MAX */
};
void wh_rdma_notification_encode(uint8_t out[WH_RDMA_NOTIFICATION_HEAD],
				 const struct wh_rdma_notification *notification);
/* -EPROTO also if the head and the immediate disagree. */
int wh_rdma_notification_decode(const uint8_t in[WH_RDMA_NOTIFICATION_HEAD], uint32_t imm,
				struct wh_rdma_notification *notification);
/* The immediate, in host byte order. */
uint32_t wh_rdma_imm(uint32_t slot, uint64_t sequence);
/* The slot that an immediate names, or -EPROTO. */
int wh_rdma_imm_slot(uint32_t imm);

/* On the wire: u32 errno; if that is 0: u64 address of the first of WH_RDMA_RING_SLOTS adjacent
 * slots, and {u32 nic, u32 key} for 1 to WH_RDMA_RING_KEYS NICs of the owner; else the text. */
#define WH_RDMA_RING_KEYS 16u
struct wh_rdma_ring_opened {
	int error; /* 0 or a negative errno */
	uint64_t address;
	uint32_t count; /* of keys */
	struct wh_rdma_ring_key {
		uint32_t nic, key;
	} keys[WH_RDMA_RING_KEYS];
	char text[WH_REFUSAL_MAX];
};
#define WH_RDMA_RING_OPENED_MAX (12 + 8 * WH_RDMA_RING_KEYS + WH_REFUSAL_MAX)
size_t wh_rdma_ring_opened_encode(uint8_t *out, const struct wh_rdma_ring_opened *opened);
int wh_rdma_ring_opened_decode(const uint8_t *in, size_t length,
			       struct wh_rdma_ring_opened *opened);

#endif
