/* SPDX-License-Identifier: Apache-2.0 */
/* impostor.h: a thread that answers an engine in place of an owner, wrongly if asked to
 *
 * Start and stop fail the running test on an error. */
#ifndef TESTS_INTEGRATION_LIB_IMPOSTOR_H
#define TESTS_INTEGRATION_LIB_IMPOSTOR_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "harness.h"
#include "raw.h"

#define IMPOSTOR_REGION (UINT64_C(7) << 32 | 77) /* the id of its region "target" */
#define IMPOSTOR_LENGTH (64 * KIB)
#define IMPOSTOR_BYTE 0xbb /* of what reads return */
#define IMPOSTOR_CONNECTIONS 32

/* The response to a request. Number, operation, errors and bytes are those of its header. */
enum answer {
	ANSWER_WELL,
	ANSWER_MORE_BYTES,
	ANSWER_FEWER_BYTES,
	ANSWER_NO_BYTES,
	ANSWER_OTHER_ID,
	ANSWER_OTHER_OP,
	ANSWER_TWICE,
	ANSWER_UNASKED, /* to a request that was never sent */
	ANSWER_ERROR_OUTSIDE, /* of an extent that the request does not have */
	ANSWER_ERROR_TWICE, /* of the same extent */
	ANSWER_ERRORS_TOO_MANY,
	ANSWER_ERROR_AND_ALL_BYTES,
	ANSWER_HUGE,
	ANSWER_CUT_OFF, /* the connection closes before the last byte */
	ANSWER_GARBAGE,
	ANSWER_NEVER,
	ANSWER_END,
};

/* The answers to LOOKUP. */
enum looked_up {
	LOOKED_UP_NEVER,
	LOOKED_UP_EMPTY, /* pages of no region, each a step behind the one before */
};

struct impostor {
	char url[64]; /* set by impostor_start() */

	/* What it does wrong; set before impostor_start(). */
	enum answer answer; /* to requests */
	enum looked_up looked_up;
	/* Sent in place of the WELCOME and the region list; NULL: send those. */
	const void *greeting;
	size_t greeting_length;
	bool hangs_up; /* after the greeting */
	/* Sent after the WELCOME in place of the region list. */
	const void *list;
	size_t list_length;
	uint64_t length; /* of its region; 0: IMPOSTOR_LENGTH */
	unsigned int refusal; /* errno to send in place of the WELCOME; 0: none */
	bool echoes_epoch; /* claim to be the connecting engine */
	const uint8_t *key; /* NULL: this user's key */

	/* The thread's. */
	pthread_t thread;
	int listener;
	atomic_bool stop;
	struct pollfd fds[1 + IMPOSTOR_CONNECTIONS];
	uint16_t role[1 + IMPOSTOR_CONNECTIONS];
	bool proving[1 + IMPOSTOR_CONNECTIONS]; /* has sent WELCOME, expects PROVE */
	struct wh_proofs proofs[1 + IMPOSTOR_CONNECTIONS];
	nfds_t count; /* of `fds`; the first is the listener */
};

/* Listen on loopback and answer in a thread, until impostor_stop(). */
void impostor_start(struct impostor *me);
void impostor_stop(struct impostor *me);

#endif
