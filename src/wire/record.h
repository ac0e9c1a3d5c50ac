/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records: what a TCP connection consists of behind HELLO and WELCOME if the engines agree on it
 * (setting `integrity`). Each is u32 length, u32 CRC-32C, and `length` bytes. The checksum covers,
 * in this order, HELLO and WELCOME, the record's number in its direction, its length and its bytes.
 * So a record that was altered, dropped, repeated, or taken from another connection or from the
 * other direction is found. docs/wire-protocol.md.
 */
#ifndef WH_WIRE_RECORD_H
#define WH_WIRE_RECORD_H

#include <stddef.h>
#include <stdint.h>

#include "util/crc32c.h"

#define WH_RECORD_HEADER 8
/* bytes of a record, at most: on a data connection, on a control connection */
#define WH_RECORD_DATA_MAX (64u << 10)
#define WH_RECORD_CONTROL_MAX (4u << 10)

/* One direction of a connection. */
struct wh_record_way {
	wh_crc32c *sum;
	uint32_t first; /* checksum of HELLO and WELCOME */
	uint32_t most; /* bytes of a record */
	uint64_t number; /* of the next record; the highest bit: it goes from owner to initiator */
};

/* Start at the first record. `first`: the checksum of the payloads of HELLO and WELCOME. */
void wh_record_start(struct wh_record_way *way, wh_crc32c *sum, uint32_t first, uint32_t most,
		     bool from_owner);
/* Write the header of the next record, of 1 to way->most bytes. */
void wh_record_seal(struct wh_record_way *way, uint8_t header[WH_RECORD_HEADER], const void *bytes,
		    uint32_t length);
/* The length in a header; the bytes cannot be trusted yet. 0 or -EBADMSG: no valid length. */
int wh_record_length(const struct wh_record_way *way, const uint8_t header[WH_RECORD_HEADER],
		     uint32_t *length);
/* Check the next record, a header and all of its bytes. 0 or -EBADMSG; the connection is then of
 * no more use. */
int wh_record_check(struct wh_record_way *way, const uint8_t *record);

#endif
