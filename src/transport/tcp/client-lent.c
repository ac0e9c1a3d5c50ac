/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peer's files, if it is on this host: it reads them into slots of memory that this engine
 * lends to it, or writes them out of these, and the sockets carry only requests and responses. A
 * slot belongs to one request until its response has come. One whose response never comes is not
 * used again, as a thread of the peer may still wait for a disk to fill it.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "gpu/pinned.h"
#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"
#include "util/clock.h"

/* Bytes: below, the socket takes as long. */
#define LENT_LEAST ((uint64_t)16 << 10)
/* How long to wait after the peer has refused. */
#define LEND_AGAIN (5 * WH_SECOND)

static bool lender_is_current(struct tcp_peer *tcp)
{
	return atomic_load(&tcp->lent) == atomic_load(&tcp->losses) + 1;
}

/* Under lend_lock. */
static int lend_try(struct tcp_peer *tcp)
{
	int error = 0;

	if (!tcp->lender.base)
		error = wh_lender_open(&tcp->lender);
	if (error) {
		snprintf(tcp->lend_refused, WH_REFUSAL, "memfd of %u MiB: %s",
			 (unsigned)(WH_LENT_SLOTS * WH_SLOT >> 20), strerror(-error));
		return error;
	}
	return wh_shm_lend(wh_peer_transport(tcp->peer, WH_TRANSPORT_SHM), &tcp->lender,
			   tcp->lend_refused);
}

/* Has a plan that must not wait to be made again? */
static bool lend_is_due(struct tcp_peer *tcp)
{
	bool due;

	if (wh_plan_how() == WH_PLAN_DECIDES)
		return false;
	if (pthread_mutex_trylock(&tcp->lend_lock))
		return true;
	due = wh_now() >= tcp->lend_at;
	pthread_mutex_unlock(&tcp->lend_lock);
	return due;
}

int tcp_lend(struct tcp_peer *tcp)
{
	int error = 0;

	if (lender_is_current(tcp) || !wh_peer_transport(tcp->peer, WH_TRANSPORT_SHM))
		return 0; /* it has them, or is on another host, or shm is not used */
	if (!wh_plan_may_linger())
		return lend_is_due(tcp) ? -EINPROGRESS : 0;
	pthread_mutex_lock(&tcp->lend_lock);
	/* Before asking: if the peer is lost meanwhile, its next session has no slots. */
	if (!tcp->lending)
		tcp->lend_losses = atomic_load(&tcp->losses);
	if (!lender_is_current(tcp) && wh_now() >= tcp->lend_at) {
		error = lend_try(tcp);
		tcp->lending = error == -EINPROGRESS;
		if (!error) {
			atomic_store(&tcp->lent, tcp->lend_losses + 1);
		} else if (error != -EINPROGRESS) {
			tcp->lend_at = wh_now() + LEND_AGAIN;
			wh_log_line(wh_engine_log(wh_peer_engine(tcp->peer)), WH_LOG_INFO, "tcp",
				    "the bytes of files of %s go by sockets: %s",
				    wh_peer_name(tcp->peer), tcp->lend_refused);
		}
	}
	pthread_mutex_unlock(&tcp->lend_lock);
	return error == -EINPROGRESS ? error : 0;
}

bool tcp_is_of_files(struct wh_peer *peer, const struct wh_fragment *fragment, bool all)
{
	uint64_t last = 0;

	for (uint64_t i = fragment->first; i < fragment->first + fragment->count; i++) {
		uint64_t id = wh_fragment_remote(fragment, i);
		struct wh_region_entry *entry;
		bool file;

		if (id == last)
			continue;
		last = id;
		entry = wh_region_entry_enter(wh_peer_regions(peer), id);
		file = entry && entry->kind == WH_MEMORY_FILE;
		if (entry)
			wh_region_entry_leave(entry);
		if (file != all)
			return !all;
	}
	return all;
}

bool tcp_lent_fits(struct tcp_peer *tcp, const struct wh_fragment *fragment)
{
	return lender_is_current(tcp) && tcp_is_of_files(tcp->peer, fragment, true);
}

bool tcp_lent_begin(struct tcp_peer *tcp, struct tcp_request *request)
{
	request->slot = 0;
	if (!tcp_of(request->fragment)->lent || request->start.left < LENT_LEAST ||
	    request->start.left > WH_SLOT || !lender_is_current(tcp))
		return true;
	request->slot = (uint8_t)wh_lender_take(&tcp->lender);
	return request->slot;
}

void tcp_lent_end(struct tcp_peer *tcp, struct tcp_request *request)
{
	if (request->slot)
		wh_lender_give(&tcp->lender, request->slot);
	request->slot = 0;
}

bool tcp_lent_describe(struct tcp_peer *tcp, const struct wh_batch *batch, bool *lent, char *line,
		       size_t size)
{
	const struct wh_fragment *fragment = NULL;
	bool files = false, current;

	while (!files && (fragment = wh_batch_fragment(batch, WH_TRANSPORT_TCP, fragment)))
		files = tcp_is_of_files(tcp->peer, fragment, true) &&
			wh_kind_on_host(wh_fragment_local(fragment, fragment->first)->entry.kind);
	if (!files || !wh_peer_transport(tcp->peer, WH_TRANSPORT_SHM))
		return false;
	current = lender_is_current(tcp);
	*lent = current && fragment->bytes >= LENT_LEAST;
	pthread_mutex_lock(&tcp->lend_lock);
	if (current)
		snprintf(line, size,
			 "tcp: %s moves its file through shared memory; sockets carry requests and "
			 "answers, and less than %u KiB",
			 wh_peer_name(tcp->peer), (unsigned)(LENT_LEAST >> 10));
	else
		snprintf(line, size,
			 "tcp: the bytes of the file of %s go by sockets, not by shared memory: %s",
			 wh_peer_name(tcp->peer),
			 *tcp->lend_refused ? tcp->lend_refused :
					      "it has not been lent any since it was lost");
	pthread_mutex_unlock(&tcp->lend_lock);
	return true;
}
