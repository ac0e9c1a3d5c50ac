/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport/shm/lend.c: lending memory over the owner's unix socket: LEND with the descriptor of
 * the initiator's slots, answered by LENT
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gpu/pinned.h"
#include "transport/core.h"
#include "transport/lent.h"
#include "transport/shm/shm.h"
#include "wire/wire.h"

/* ---- the owner; on loop 0 -------------------------------------------------------------------- */

int wh_shm_lend_accept(struct wh_session *session, int socket, const uint8_t payload[WH_LEND_SIZE],
		       int fd)
{
	uint8_t bytes[WH_FRAME_HEADER + WH_LENT_SIZE];
	struct wh_lent *lent = NULL;
	uint32_t count;
	int error = wh_lend_decode(payload, WH_LEND_SIZE, &count);

	if (error)
		return error;
	error = fd < 0 ? -EBADF : wh_shm_check_file(fd, count * WH_SLOT);
	if (!error)
		error = wh_lent_map(fd, count, &lent);
	if (!error) {
		error = wh_session_lend(session, lent);
		if (error)
			wh_lent_release(lent);
	}
	wh_frame_encode(bytes, &(struct wh_frame){ WH_LENT_SIZE, WH_FRAME_LENT, 0 });
	wh_lent_encode(bytes + WH_FRAME_HEADER, error);
	return wh_shm_send(socket, bytes, sizeof(bytes), -1, MSG_DONTWAIT);
}

/* ---- the initiator --------------------------------------------------------------------------- */

/* Under shm.lock, connected. */
static int lend_ask(struct wh_shm_peer *shm, const struct wh_lender *lender, int *answer)
{
	uint8_t bytes[WH_FRAME_HEADER + WH_LEND_SIZE], in[WH_LENT_SIZE];
	struct wh_frame frame;
	int fd = -1, error;

	wh_frame_encode(bytes, &(struct wh_frame){ WH_LEND_SIZE, WH_FRAME_LEND, 0 });
	wh_lend_encode(bytes + WH_FRAME_HEADER, WH_LENT_SLOTS);
	error = wh_shm_ask(shm, WH_SHM_ASK_LEND, 0, bytes, sizeof(bytes), lender->fd);
	if (error)
		return error;
	error = wh_shm_receive_frame(shm, &frame, in, sizeof(in), &fd);
	if (fd >= 0)
		close(fd);
	if (!error && (frame.type != WH_FRAME_LENT || wh_lent_decode(in, frame.length, answer)))
		error = -EPROTO;
	return error ? wh_shm_fail_disconnect(shm, error, "lending memory to the peer") : 0;
}

bool wh_shm_may_lend(const struct wh_shm_peer *shm)
{
	return wh_peer_welcome(shm->peer)->capabilities & WH_CAPABLE_LEND;
}

int wh_shm_lend(struct wh_shm_peer *shm, const struct wh_lender *lender, char why[WH_REFUSAL])
{
	int error, answer = 0;

	if (!wh_shm_may_lend(shm)) {
		snprintf(why, WH_REFUSAL, "%s is of an older version", wh_peer_name(shm->peer));
		return -EOPNOTSUPP;
	}
	error = wh_shm_lock(shm, why);
	if (error)
		return error;
	error = wh_shm_connect(shm);
	if (!error)
		error = lend_ask(shm, lender, &answer);
	if (error)
		snprintf(why, WH_REFUSAL, "%s", shm->why);
	pthread_mutex_unlock(&shm->lock);
	/* -EALREADY: the answer to an earlier one was lost. It was the same memory. */
	if (error || !answer || answer == -EALREADY)
		return error;
	snprintf(why, WH_REFUSAL, "%s refuses: %s", wh_peer_name(shm->peer), strerror(-answer));
	return answer;
}
