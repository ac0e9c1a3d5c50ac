/* SPDX-License-Identifier: Apache-2.0 */
/* The list of transports, and the defaults that complete their tables. */
#include "transport/transport.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "memory/region-table.h"
#include "net/handshake.h"
#include "transport/core.h"
#include "transport/fragment.h"
#include "wire/wire.h"

/* ---- defaults ----------------------------------------------------------------------------- */

static int no_engine_open(struct wh_engine *engine, void **state)
{
	(void)engine;
	*state = NULL;
	return 0;
}

static void no_engine_close(struct wh_engine *engine, void *state)
{
	(void)engine;
	(void)state;
}

static void no_region_coming(struct wh_engine *engine, void *state,
			     const struct wh_registration *registration)
{
	(void)engine;
	(void)state;
	(void)registration;
}

static void no_region_closed(struct wh_engine *engine, void *state, struct wh_region *region)
{
	(void)engine;
	(void)state;
	(void)region;
}

static int no_region_export(struct wh_region *region, uint32_t segment, int socket)
{
	(void)region;
	(void)segment;
	(void)socket;
	return -ENXIO;
}

static int no_peer_open(struct wh_peer *peer, void **state, char why[WH_REFUSAL])
{
	(void)peer;
	(void)why;
	*state = NULL;
	return 0;
}

static void no_peer_close(struct wh_peer *peer, void *state)
{
	(void)peer;
	(void)state;
}

static void no_peer_lost(struct wh_peer *peer, void *state, int error, const char *text)
{
	(void)peer;
	(void)state;
	(void)error;
	(void)text;
}

static int no_peer_again(struct wh_peer *peer, void *state, char why[WH_REFUSAL])
{
	(void)peer;
	(void)state;
	(void)why;
	return 0;
}

static void no_region_came(struct wh_peer *peer, void *state)
{
	(void)peer;
	(void)state;
}

static int no_region_going(struct wh_peer *peer, void *state, uint64_t address, uint64_t length,
			   int64_t deadline)
{
	(void)peer;
	(void)state;
	(void)address;
	(void)length;
	(void)deadline;
	return 0;
}

static void no_region_gone(struct wh_peer *peer, void *state, struct wh_remote_region *region)
{
	(void)peer;
	(void)state;
	(void)region;
}

static int no_peer_frame(struct wh_peer *peer, void *state, const struct wh_frame *frame,
			 const uint8_t *payload)
{
	(void)peer;
	(void)state;
	(void)frame;
	(void)payload;
	return -EPROTO;
}

static int no_reachability(struct wh_peer *peer, void *state, const struct wh_region *local,
			   struct wh_region_entry *remote, uint32_t op, char why[WH_REFUSAL])
{
	(void)peer;
	(void)state;
	(void)local;
	(void)remote;
	(void)op;
	(void)why;
	return 0;
}

static int no_preparation(struct wh_peer *peer, void *state, const struct wh_batch *batch,
			  int64_t deadline, char why[WH_REFUSAL])
{
	(void)peer;
	(void)state;
	(void)batch;
	(void)deadline;
	(void)why;
	return 0;
}

static void no_submit(struct wh_peer *peer, void *state, struct wh_fragment *fragment)
{
	(void)peer;
	(void)state;
	wh_fragment_reroute(fragment, -EOPNOTSUPP, "this transport moves nothing");
}

static void no_progress(struct wh_peer *peer, void *state, struct wh_batch *batch, int64_t deadline)
{
	(void)peer;
	(void)state;
	(void)batch;
	(void)deadline;
}

static void no_cancel(struct wh_peer *peer, void *state, struct wh_fragment *fragment)
{
	(void)peer;
	(void)state;
	(void)fragment;
}

static void no_batch(struct wh_batch *batch, void *state)
{
	(void)batch;
	(void)state;
}

static int no_notify(struct wh_peer *peer, void *state, struct wh_batch *batch, uint64_t sequence)
{
	(void)peer;
	(void)state;
	(void)batch;
	(void)sequence;
	return -EOPNOTSUPP;
}

static void no_notified(struct wh_peer *peer, void *state, uint64_t sequence)
{
	(void)peer;
	(void)state;
	(void)sequence;
}

/* Without WH_CAN_ABORT what is in flight always ends by itself, so that there is nothing to cut. */
static int no_abort(struct wh_peer *peer, void *state, struct wh_batch *batch, int64_t deadline)
{
	(void)peer;
	(void)state;
	(void)batch;
	(void)deadline;
	return 0;
}

static void no_description(struct wh_peer *peer, void *state, const struct wh_batch *batch,
			   struct wh_description *out)
{
	(void)peer;
	(void)state;
	(void)batch;
	(void)out;
}

static int no_session_accept(struct wh_session *session, int fd, struct wh_channel *channel,
			     const struct wh_hello *hello)
{
	(void)session;
	(void)hello;
	wh_refuse(fd, channel, EOPNOTSUPP, "no transport here takes connections of this role");
	return -EOPNOTSUPP;
}

static void no_session_close(struct wh_session *session)
{
	(void)session;
}

static int no_session_abort(struct wh_session *session, uint32_t number)
{
	(void)session;
	(void)number;
	return 0;
}

static bool no_session_reach(const struct wh_session *session)
{
	(void)session;
	return false;
}

static int no_session_frame(struct wh_session *session, const struct wh_frame *frame,
			    const uint8_t *payload)
{
	(void)session;
	(void)frame;
	(void)payload;
	return -EPROTO;
}

static const struct wh_transport defaults = {
	.engine_open = no_engine_open,
	.engine_close = no_engine_close,
	.region_coming = no_region_coming,
	.region_closed = no_region_closed,
	.region_export = no_region_export,
	.peer_open = no_peer_open,
	.peer_close = no_peer_close,
	.peer_lost = no_peer_lost,
	.peer_again = no_peer_again,
	.region_came = no_region_came,
	.region_going = no_region_going,
	.region_gone = no_region_gone,
	.peer_frame = no_peer_frame,
	.is_reachable = no_reachability,
	.prepare = no_preparation,
	.submit = no_submit,
	.progress = no_progress,
	.cancel = no_cancel,
	.abort = no_abort,
	.batch_again = no_batch,
	.batch_closed = no_batch,
	.notify = no_notify,
	.notified = no_notified,
	.describe = no_description,
	.estimate = wh_probe_estimate,
	.session_accept = no_session_accept,
	.session_ending = no_session_close,
	.session_close = no_session_close,
	.session_abort = no_session_abort,
	.session_frame = no_session_frame,
	.session_reaches_gpus = no_session_reach,
};

/* ---- the list ----------------------------------------------------------------------------- */

#define GIVEN(upper, name) [WH_TRANSPORT_##upper] = &wh_transport_##name,
static const struct wh_transport *const given[WH_TRANSPORT_COUNT] = { WH_TRANSPORTS(GIVEN) };

#define NAME(upper, name) ", " #name
const char *wh_transport_names(void)
{
	static const char names[] = WH_TRANSPORTS(NAME);

	return names + 2;
}

/* Written once, before anybody has read them. */
static struct wh_transport list[WH_TRANSPORT_COUNT];
static pthread_once_t listed = PTHREAD_ONCE_INIT;
static atomic_bool complete;

#define FILL(field)                                                                                \
	do {                                                                                       \
		if (!full->field)                                                                  \
			full->field = defaults.field;                                              \
	} while (0)

static void make_list(void)
{
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++) {
		struct wh_transport *full = &list[id];

		*full = *given[id];
		FILL(engine_open);
		FILL(engine_close);
		FILL(region_coming);
		FILL(region_closed);
		FILL(region_export);
		FILL(peer_open);
		FILL(peer_close);
		FILL(peer_lost);
		FILL(peer_again);
		FILL(region_came);
		FILL(region_going);
		FILL(region_gone);
		FILL(peer_frame);
		FILL(is_reachable);
		FILL(prepare);
		FILL(submit);
		FILL(progress);
		FILL(cancel);
		FILL(abort);
		FILL(batch_again);
		FILL(batch_closed);
		FILL(notify);
		FILL(notified);
		FILL(describe);
		FILL(estimate);
		FILL(session_accept);
		FILL(session_ending);
		FILL(session_close);
		FILL(session_abort);
		FILL(session_frame);
		FILL(session_reaches_gpus);
	}
	atomic_store_explicit(&complete, true, memory_order_release);
}

const struct wh_transport *wh_transport(enum wh_transport_id id)
{
	if (!atomic_load_explicit(&complete, memory_order_acquire))
		pthread_once(&listed, make_list);
	return &list[id];
}

enum wh_transport_id wh_transport_by_name(const char *name)
{
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		if (!strcmp(given[id]->name, name))
			return (enum wh_transport_id)id;
	return WH_TRANSPORT_COUNT;
}

enum wh_transport_id wh_transport_by_frame(uint16_t type)
{
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		if (type >= given[id]->frame_first && type < given[id]->frame_end)
			return (enum wh_transport_id)id;
	return WH_TRANSPORT_COUNT;
}

/* Is it the transport's own function, in a table completed or not? */
#define OWN(field) (transport->field && transport->field != defaults.field)

bool wh_transport_is_valid(const struct wh_transport *transport)
{
	const uint32_t can = transport->capabilities;
	const bool moves = can & (WH_CAN_READ | WH_CAN_WRITE);
	const bool accepts = can & WH_CAN_ACCEPT;
	const bool frames = transport->frame_end;

	if (!transport->name || !*transport->name ||
	    strlen(transport->name) >= sizeof(((struct wh_route *)NULL)->transport))
		return false;
	if (moves != OWN(submit) || (moves && !OWN(cancel)))
		return false;
	if (accepts != OWN(session_accept) || accepts != (transport->role != 0) ||
	    OWN(session_close) != (accepts || OWN(session_frame)) ||
	    OWN(session_frame) != OWN(peer_frame) || OWN(session_frame) != frames)
		return false;
	if (frames && (transport->frame_first < WH_FRAME_TRANSPORTS ||
		       transport->frame_first >= transport->frame_end ||
		       transport->frame_end > WH_FRAME_TYPE_END))
		return false;
	return (bool)(can & WH_CAN_NOTIFY) == OWN(notify) && OWN(notify) == OWN(notified) &&
	       (bool)(can & WH_CAN_PROGRESS) == OWN(progress) &&
	       (bool)(can & WH_CAN_ABORT) == OWN(abort);
}
