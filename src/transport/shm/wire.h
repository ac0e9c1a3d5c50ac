/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The answers to MAP, over the owner's unix socket: MAPPED for host memory, EXPORTED for each
 * segment of GPU memory. The codecs are pure: no sockets, no allocation.
 */
#ifndef WH_TRANSPORT_SHM_WIRE_H
#define WH_TRANSPORT_SHM_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "util/error.h"
#include "wire/wire.h"

/* ---- host memory --------------------------------------------------------------------------- */

/* Payload of MAPPED: u64 id, u32 errno (positive), u64 number of the allocation, u32 rights, u64
 * offset, u64 length, u64 length of the allocation, then the reason. */
struct wh_mapped {
	uint64_t id;
	/* 0: MAPPED carries a descriptor. Negative errno: refused; -EAGAIN: until another region is
	 * published, perhaps. */
	int error;
	uint64_t memory; /* number of the region's allocation; 0: none that could be mapped */
	uint32_t rights; /* enum wh_access, of the mapping */
	uint64_t offset, length; /* of the region, in the descriptor's file */
	uint64_t whole; /* bytes of the allocation */
	char text[WH_REFUSAL]; /* why it cannot be mapped, or not for writing */
};
#define WH_MAPPED_HEAD 48
#define WH_MAPPED_MAX (WH_MAPPED_HEAD + WH_REFUSAL)
/* Returns the bytes used, at most WH_MAPPED_MAX. */
size_t wh_mapped_encode(uint8_t *out, const struct wh_mapped *mapped);
/* 0 or -EPROTO. */
int wh_mapped_decode(const uint8_t *in, size_t length, struct wh_mapped *mapped);

/* ---- the alive page ------------------------------------------------------------------------- */

/* Payload of ALIVE: u32 index, u32 value: the word of the alive page that holds the value as long
 * as the session lasts. */
#define WH_ALIVE_SIZE 8
#define WH_ALIVE_WORDS 16384u /* of the page, in all; word 0 says whether the owner lives */
struct wh_alive_word {
	uint32_t index, value; /* neither is 0 */
};
void wh_alive_encode(uint8_t out[WH_ALIVE_SIZE], struct wh_alive_word word);
/* 0; -EPROTO: another length, or there is no such word. */
int wh_alive_decode(const uint8_t *in, size_t length, struct wh_alive_word *word);

/* ---- memory for the bytes of files: transport/lent.h ---------------------------------------- */

/* The types 42 and 43 of the frames that belong to transports; over the unix socket only. */
enum {
	WH_FRAME_LEND = 42, /* with the descriptor of the initiator's slots */
	WH_FRAME_LENT = 43, /* the answer */
};
/* Payload of LEND: u32 number of slots, of WH_SLOT bytes each, then u64 0: as long as a MAP. */
#define WH_LEND_SIZE WH_MAP_SIZE
void wh_lend_encode(uint8_t out[WH_LEND_SIZE], uint32_t count);
/* 0; -EPROTO: another length, no slots, or more than WH_REQUEST_SLOTS. */
int wh_lend_decode(const uint8_t *in, size_t length, uint32_t *count);
/* Payload of LENT: u32 errno (positive); 0: requests may name the slots. `error` is not positive.
 */
#define WH_LENT_SIZE 4
void wh_lent_encode(uint8_t out[WH_LENT_SIZE], int error);
/* 0 or -EPROTO. */
int wh_lent_decode(const uint8_t *in, size_t length, int *error);

/* ---- GPU memory ---------------------------------------------------------------------------- */

#define WH_EXPORTS                                                                                 \
	32 /* EXPORTED frames that answer one MAP, at most: further segments need another */
#define WH_EXPORTED_TEXT 192 /* bytes, with the NUL */

/* How the receiver opens the segment's memory. */
enum wh_handle_type {
	WH_HANDLE_FD = 1, /* a descriptor of cuMemCreate memory, sent along */
	WH_HANDLE_LEGACY = 2, /* bytes from cuIpcGetMemHandle */
	WH_HANDLE_OBJECT =
		3, /* an object of the NVIDIA kernel driver; its descriptor is sent along */
	/* 64 bytes of cuMemCreate memory that is shared over NVLink's fabric (IMEX); only to those
	 * that ask for it */
	WH_HANDLE_FABRIC = 4,
};

/* On the wire: u64 id, u32 errno; if that is 0: u32 segments, u32 index, u8 type, u8 device[16]
 * (UUID), u64 address, u64 length, u64 base, u64 size, and for LEGACY and FABRIC u8
 * handle[64]; else the reason as text. */
struct wh_exported {
	uint64_t id; /* the region */
	int error; /* 0, or a negative errno: only `text` is set */
	uint32_t segments, index; /* segments of the region; the number of this one */
	uint8_t type; /* enum wh_handle_type */
	uint8_t device[16];
	uint64_t address, length; /* the segment, in the owner's address space */
	/* The mapping or allocation that contains the segment. OBJECT: where the object would
	 * begin, and as much of it as ends with the segment. */
	uint64_t base, size;
	uint8_t handle[64];
	char text[WH_EXPORTED_TEXT];
};
#define WH_EXPORTED_HEAD 12 /* bytes of id and errno */
#define WH_EXPORTED_MAX (WH_EXPORTED_HEAD + WH_EXPORTED_TEXT)
/* Returns the bytes used, at most WH_EXPORTED_MAX. */
size_t wh_exported_encode(uint8_t *out, const struct wh_exported *exported);
/* 0, or -EPROTO: cut off, too long, or the segment does not lie within `base` and `size`. */
int wh_exported_decode(const uint8_t *in, size_t length, struct wh_exported *exported);

#endif
