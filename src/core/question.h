/* SPDX-License-Identifier: Apache-2.0 */
/* Questions: what this engine asks a peer about its regions. */
#ifndef WH_CORE_QUESTION_H
#define WH_CORE_QUESTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/memory.h>

#include "util/list.h"
#include "wire/wire.h"

struct wh_peer;

/* A question that is being asked. The asker keeps it, and what it points to, until it has ended or
 * was withdrawn. It is sent in parts of WH_QUESTION_MAX, each after the answer to the one before.
 * The regions of the answers are in peer.regions before it ends. */
struct wh_asked {
	/* Set by the asker: */
	uint8_t kind; /* enum wh_question_kind */
	const char *name; /* NAME */
	const uint64_t *ids; /* IDS */
	const struct wh_range *ranges; /* ADDRESSES */
	size_t count; /* of ids or ranges; LIST: room in `out` */
	struct wh_remote *out; /* LIST: receives the regions */
	uint64_t cursor; /* LIST: where it begins; then where it goes on, 0: nowhere */
	/* Called on loop 0 when it has ended, with 0, or a negative errno if the peer was lost.
	 * NULL: peer.changed is signalled. */
	void (*done)(struct wh_asked *asked, int error);
	/* Under peer.lock: */
	struct wh_list link; /* peer.questions, until it has ended */
	uint64_t token; /* of the part sent last */
	size_t sent; /* ids or ranges, with that part */
	uint32_t most, got; /* regions in the answer to that part */
	size_t found; /* LIST: regions in `out` */
	bool ended;
	int error;
};

/* Ask, without waiting. Any thread. 0; or -ECONNRESET (the peer is not connected) or -ENOMEM: the
 * question has ended, and `done` is not called. */
int wh_question_ask(struct wh_peer *peer, struct wh_asked *asked);
/* Withdraw a question that has not ended: it has ended then, and `done` is not called. Under
 * peer.lock. */
void wh_question_withdraw(struct wh_asked *asked);
/* The connection has begun: ask for the regions that were known before it; token 0. On loop 0.
 * wh_remote_add() is called with what there still is, and wh_question_answered() returns 1 at the
 * end. 0, or a negative errno. */
int wh_question_relearn(struct wh_peer *peer);
/* REGIONS: take the regions of an answer. On loop 0. 0; 1: the regions that were known before are
 * known again; or a negative errno. */
int wh_question_answered(struct wh_peer *peer, const struct wh_frame *frame,
			 const uint8_t *payload);
/* An owner answers in order: the PONG of a PING comes behind the answers to the questions that were
 * sent before that PING. On loop 0, all three. A PING is about to be sent, with `now`. */
void wh_question_pinged(struct wh_peer *peer, int64_t now);
/* Its PONG. 0, or -EPROTO: a question has no answer, and gets none any more. */
int wh_question_ponged(struct wh_peer *peer, uint64_t number);
/* Does a question wait behind which a PING was sent before `since`? */
bool wh_question_is_late(struct wh_peer *peer, int64_t since);
/* The peer is lost: end all questions. On loop 0. */
void wh_questions_fail(struct wh_peer *peer, int error);

#endif
