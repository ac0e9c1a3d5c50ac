/* SPDX-License-Identifier: Apache-2.0 */
/* spread/message.h: what wherry spread and a server of weights tell each other
 *
 * Every message is a notification with the tag SPREAD_TAG, and has the token that the sender of the
 * file chose for this spread. The bytes of the file go another way: wherry/weights.h. Integers are
 * little-endian:
 *
 *   magic u32, version u16, op u16, token 16 bytes, size u64, chunk u64, piece u64, status u32,
 *   count u32
 *   count times: bytes u64, and 5 times: length u16, text (name, url, host, location, text) */
#ifndef TOOLS_SPREAD_MESSAGE_H
#define TOOLS_SPREAD_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

#define SPREAD_TAG UINT64_C(0x6461657270732d79) /* "y-spread" */
#define SPREAD_TOKEN 16

enum spread_op {
	/* From the sender: would you take a file of `size` bytes? Item: the sender's name and URL;
	 * text: the name of the weights, "" if there is only one. Nothing changes by it. */
	SPREAD_ASK = 1,
	/* `status`, and with an error item.text. Else the weights' name, location, and in `host`
	 * which machine it is; text: what people call the machine. `size`: at most. `bytes`: what
	 * it knows of this, bits of enum spread_knows; 0 from a receiver before those. */
	SPREAD_ANSWER,
	/* Take it: the sender, then all receivers, as the layouts name them; text: of each, the
	 * name of its weights. `bytes` of the first: bytes per second of each host's link, for the
	 * plan; 0: typical NICs. */
	SPREAD_OFFER,
	SPREAD_READY, /* `status`, and with an error item.text */
	/* The receiver has published all bytes; or `status`, with item.text. Items: the members
	 * that it has read from: name, bytes, and in `text` the route. */
	SPREAD_REPORT,
	/* From the sender: leave. With a status: throw away what is not complete. */
	SPREAD_END,
	/* From the sender: nothing. Its engine confirms that it has come, so it does not stand
	 * still. */
	SPREAD_PING,
	SPREAD_OP_END,
};

enum spread_knows { SPREAD_KNOWS_LINK = 1 }; /* the link of an offer */

struct spread_item {
	uint64_t bytes;
	char name[64], url[96], host[64], location[32], text[320];
};

struct spread_message {
	uint16_t op; /* enum spread_op */
	uint8_t token[SPREAD_TOKEN];
	uint64_t size, chunk, piece; /* bytes */
	uint32_t status; /* 0, or an errno */
	uint32_t count;
	struct spread_item *items; /* of a message that was decoded: free() them */
};

/* 0, -EPROTO (not such a message), -ENOMEM. Texts may be shown. */
int spread_message_decode(const uint8_t *data, size_t size, struct spread_message *out);

/* Parts of a file for all receivers together, and pieces of it, that a plan may have: more cost a
 * receiver seconds and gigabytes. Those of the default sizes are always fit. */
#define SPREAD_PARTS (UINT64_C(1) << 18)
#define SPREAD_PIECES (UINT64_C(1) << 20)

/* What is wrong with an offer's parts and pieces for so many receivers, or NULL. */
const char *spread_sizes_wrong(const struct spread_message *offer, uint64_t receivers);

/* Returns the number of bytes; 0: they do not fit. Characters that must not be shown become '?'. */
size_t spread_message_encode(const struct spread_message *message, uint8_t *out, size_t room);

#endif
