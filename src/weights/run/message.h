/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What members of one set of weights tell each other, as bytes.
 *
 * A hello is a notification: "I am a member, my control block is there; look at it". It is sent
 * when a connection is there, and again whenever the control block has changed in a way that may
 * concern the other. Hellos that are lost or come twice do no harm: what counts is in the control
 * block, which others read.
 *
 * A region that has gone and one that is not granted look the same to others. So who leaves says so
 * in a last hello, before its regions go; and who cannot read the control block of a member that it
 * has not met yet asks it for an answer, which only a member that is still there gives.
 *
 * The head of a control block says which version each buffer has. A buffer's version is cleared
 * before the first byte of the buffer changes, so who has read bytes, and then finds the version
 * unchanged, has read bytes of that version.
 */
#ifndef WH_WEIGHTS_RUN_MESSAGE_H
#define WH_WEIGHTS_RUN_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WH_HELLO_BYTES 176
#define WH_HELLO_URL 96

/* Flags of a hello. Who does not know them takes it for an ordinary one. */
#define WH_HELLO_ASKS 1u /* for an answer */
#define WH_HELLO_ANSWERS 2u /* the control block is still there */
#define WH_HELLO_LEAVES 4u /* the regions go now */
/* Above them: the number of the question that it asks, and of the one that it answers. */
#define WH_HELLO_QUESTION 32
#define WH_HELLO_ANSWER 48

struct wh_weights_hello {
	uint64_t digest[2]; /* of both layouts */
	uint64_t control, control_bytes; /* a region's id; its length */
	uint64_t text, text_bytes; /* the layouts as text: the same */
	char url[WH_HELLO_URL]; /* of the sender; "": it does not listen */
	uint64_t flags;
};

void wh_weights_hello_encode(const struct wh_weights_hello *hello, uint8_t out[WH_HELLO_BYTES]);

/* False: it is no hello, or of another format. The URL is text that may be shown. */
bool wh_weights_hello_decode(const void *bytes, size_t length, struct wh_weights_hello *out);

/* ---- the control block ------------------------------------------------------------------------
 */

/* A source's memory, and a target's two buffers. */
enum wh_copy_slot { WH_COPY_SOURCE, WH_COPY_FIRST, WH_COPY_SECOND, WH_COPY_SLOTS };

enum wh_copy_state {
	WH_COPY_EMPTY = 0,
	WH_COPY_FILLING = 1, /* its pieces come: the lists behind the head say which are there */
	WH_COPY_WHOLE = 2,
};

#define WH_HEAD_WORDS 16 /* of 64 bits */
#define WH_HEAD_BYTES (WH_HEAD_WORDS * 8)

struct wh_weights_head {
	uint64_t digest[2];
	uint64_t published; /* by the source: the last version, also if it was retracted */
	uint64_t received; /* bytes of the version that is being received */
	uint64_t begun; /* how often it has begun to receive a version */
	struct {
		uint64_t version; /* 0: none */
		enum wh_copy_state state;
	} slots[WH_COPY_SLOTS];
};

/* Prepare a head with no versions. `ids` and `steps`: the numbers of elements of the lists behind
 * it. */
void wh_weights_head_init(uint64_t *words, const uint64_t digest[2], uint32_t ids, uint32_t steps);

/* Say what a slot has. Clearing it is ordered before all stores of this thread that follow. */
void wh_weights_head_set(uint64_t *words, enum wh_copy_slot slot, uint64_t version,
			 enum wh_copy_state state);
void wh_weights_head_clear(uint64_t *words, enum wh_copy_slot slot);
void wh_weights_head_published(uint64_t *words, uint64_t version);
void wh_weights_head_received(uint64_t *words, uint64_t bytes);
void wh_weights_head_begin(uint64_t *words); /* before the slot is said to be filling */

/* How many pieces of a step there are, in a list behind the head. */
void wh_weights_pieces_set(uint32_t *pieces, size_t at, uint32_t count);

/* False: it is no head with such lists. A slot that was read while it changed is empty. */
bool wh_weights_head_decode(const uint64_t *words, uint32_t ids, uint32_t steps,
			    struct wh_weights_head *out);

#endif
