/* SPDX-License-Identifier: Apache-2.0 */
/* rdma: the transport's table, incoming fragments, the explanation's lines, a peer's frames. */
#include "transport/rdma/rdma.h"
#include "transport/rdma/flow.h"
#include "transport/rdma/server.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/stream.h"
#include "util/clock.h"
#include "wire/bytes.h"

/* ---- fragments ------------------------------------------------------------------------------- */

static void fragment_queue(struct rdma_peer *rdma, struct wh_fragment *fragment,
			   struct wh_list *done, struct wh_list *reroute)
{
	/* A small fragment needs one endpoint only. */
	if (fragment->bytes > RDMA_SPLIT || !rdma_endpoints_ready(rdma))
		rdma_endpoints_connect(rdma);
	rdma_of(fragment)->in_flight = 0;
	rdma_striping_add(rdma, fragment);
	rdma_progress(rdma, done, reroute);
}

/* Enter with rdma_peer.lock and, if `notifies`, with wh_notify_lock(). Drops both. */
static void fragment_take(struct rdma_peer *rdma, struct wh_fragment *fragment, bool notifies)
{
	struct wh_list done, reroute;
	char why[WH_REFUSAL];
	bool takes = !atomic_load(&fragment->cancelled);

	wh_list_init(&done);
	wh_list_init(&reroute);
	if (notifies)
		rdma_notify_prepare(rdma, fragment);
	if (takes && (notifies || !rdma_post_single(rdma, fragment, &done, &reroute))) {
		takes = !rdma_endpoints_failed(rdma);
		if (takes)
			fragment_queue(rdma, fragment, &done, &reroute);
	}
	if (!takes)
		memcpy(why, rdma->why, sizeof(why));
	rdma->notify.early = NULL;
	pthread_mutex_unlock(&rdma->lock);
	if (notifies)
		wh_notify_unlock(rdma->peer);
	rdma_fragments_done(&done);
	rdma_fragments_reroute(rdma, &reroute);
	if (takes)
		return;
	if (wh_peer_check(rdma->peer)) {
		wh_fragment_fail(fragment, UINT64_MAX, -ECONNRESET, "%s", wh_error_text());
		wh_fragment_done(fragment);
	} else {
		wh_fragment_reroute(fragment, -EIO, why);
	}
}

void rdma_submit(struct rdma_peer *rdma, struct wh_fragment *fragment)
{
	pthread_mutex_lock(&rdma->lock);
	fragment_take(rdma, fragment, false);
}

/* Check that NICs have registered the memory that is there now: the plan may be older. */
static int fragment_check_memory(const struct wh_fragment *fragment)
{
	const struct wh_region *local, *before = NULL;
	int error = 0;

	for (uint64_t i = fragment->first; i < fragment->first + fragment->count && !error;
	     i++, before = local) {
		local = wh_fragment_local(fragment, i);
		if (local != before && !wh_kind_on_host(local->entry.kind))
			error = wh_registration_check(local->registration);
	}
	return error;
}

/* End a fragment that was not started, with the thread's error text. */
static void fragment_refuse(struct wh_fragment *fragment, int error)
{
	wh_fragment_fail(fragment, UINT64_MAX, error, "%s", wh_error_text());
	wh_fragment_done(fragment);
}

static void fragment_submit(struct wh_peer *peer, void *state, struct wh_fragment *fragment)
{
	struct rdma_peer *rdma = state;
	bool notifies = rdma_notify_can_follow(rdma, fragment);
	int error = fragment_check_memory(fragment);
	unsigned sides;

	if (error) {
		fragment_refuse(fragment, error);
		return;
	}
	if (notifies)
		wh_notify_lock(peer);
	pthread_mutex_lock(&rdma->lock);
	error = rdma_batch_prepare(fragment);
	sides = error ? 0 : rdma_stage_sides(rdma, fragment);
	if (!error && !sides) {
		fragment_take(rdma, fragment, notifies);
		return;
	}
	pthread_mutex_unlock(&rdma->lock);
	if (notifies)
		wh_notify_unlock(peer);
	if (error)
		fragment_refuse(fragment, error);
	else
		rdma_stage_start(rdma, fragment, sides);
}

/* A failure belongs to the batch, not to the call that submits it. */
static void peer_submit(struct wh_peer *peer, void *state, struct wh_fragment *fragment)
{
	wh_fail_begin();
	fragment_submit(peer, state, fragment);
	wh_fail_end(0);
}

static void rdma_wait_progress(struct wh_peer *peer, void *state, struct wh_batch *batch,
			       int64_t deadline)
{
	struct rdma_peer *rdma = state;
	int64_t start = 0, now;
	bool stages = false;

	(void)peer;
	do {
		struct wh_list done, reroute;

		wh_list_init(&done);
		wh_list_init(&reroute);
		if (!pthread_mutex_trylock(&rdma->lock)) {
			stages = !wh_list_empty(&rdma->stages);
			rdma->polls++;
			rdma_progress(rdma, &done, &reroute);
			pthread_mutex_unlock(&rdma->lock);
			rdma_fragments_done(&done);
			rdma_fragments_reroute(rdma, &reroute);
		}
		if (stages)
			wh_gpus_poll(wh_engine_gpus(rdma->rdma->engine));
		if (!wh_batch_is_running(batch) || !deadline)
			return;
		now = wh_now();
		start = start ? start : now;
	} while (now < deadline && now - start < RDMA_SPIN);
	if (!wh_engine_config(rdma->rdma->engine)->number[WH_SETTING_SPIN])
		rdma_polling_sleep(rdma, batch);
}

void rdma_cancel(struct rdma_peer *rdma, struct wh_fragment *fragment, struct wh_list *done)
{
	uint64_t rest = fragment->cursor.left + rdma_resend_forget(rdma, fragment);

	/* A fragment in no list is not yet submitted, or has ended. One that is all in flight may
	 * be in the `done` list of a thread that is about to finish it. */
	if (!rest || !fragment->link.next)
		return;
	rdma->queued -= rest;
	wh_fragment_fail(fragment, UINT64_MAX, -ECANCELED, "cancelled");
	fragment->cursor.left = 0;
	if (atomic_fetch_sub(&fragment->left, rest) == rest) {
		rdma_striping_remove(rdma, fragment);
		wh_list_append(done, &fragment->link);
	} else {
		wh_list_remove(&fragment->link);
		wh_list_append(&rdma->sent, &fragment->link);
	}
}

static void peer_cancel(struct wh_peer *peer, void *state, struct wh_fragment *fragment)
{
	struct rdma_peer *rdma = state;
	struct wh_list done;

	(void)peer;
	wh_list_init(&done);
	pthread_mutex_lock(&rdma->lock);
	if (!rdma_stage_cancel(rdma, fragment, &done))
		rdma_cancel(rdma, fragment, &done);
	pthread_mutex_unlock(&rdma->lock);
	rdma_fragments_done(&done);
}

static bool endpoint_carries(const struct rdma_endpoint *endpoint, const struct wh_batch *batch)
{
	for (uint64_t i = endpoint->ring ? endpoint->ring->tail : 0;
	     endpoint->ring && i != endpoint->ring->head; i++) {
		const struct wh_fragment *fragment = endpoint->ring->works[i % RDMA_DEPTH].fragment;

		if (fragment && fragment->batch == batch)
			return true;
	}
	return false;
}

static int rdma_wait_abort(struct wh_peer *peer, void *state, struct wh_batch *batch,
			   int64_t deadline)
{
	struct rdma_peer *rdma = state;
	int error;

	(void)peer;
	(void)deadline;
	rdma_flush_abort(rdma, batch, -ECANCELED, "cancelled");
	pthread_mutex_lock(&rdma->lock);
	error = rdma_stage_abort(rdma, batch);
	for (unsigned i = 0; i < rdma->endpoint_count; i++)
		if (endpoint_carries(rdma->endpoints[i], batch))
			rdma_endpoint_break(rdma->endpoints[i], true, "cut off to cancel a batch");
	pthread_mutex_unlock(&rdma->lock);
	return error;
}

/* ---- the explanation ------------------------------------------------------------------------- */

static void describe_how(struct rdma_peer *rdma, const struct wh_batch *batch, char *out,
			 size_t size)
{
	static const char *const layers[] = { "InfiniBand", "RoCE v1", "RoCE v2" };
	const struct rdma_endpoint *endpoint = NULL;
	unsigned rails = 0;
	size_t used = 0;
	char memory[32];

	rdma_describe_methods(rdma, batch, memory, sizeof(memory));
	pthread_mutex_lock(&rdma->lock);
	for (unsigned i = 0; i < rdma->endpoint_count; i++)
		if (rdma_batch_bytes(batch, i) || (!endpoint && rdma->endpoints[i]->path[0])) {
			rails += rdma_batch_bytes(batch, i) > 0;
			endpoint = rdma->endpoints[i];
		}
	if (rails > 1)
		used = (size_t)snprintf(out, size, "%u rails, %s", rails,
					layers[endpoint->local_end.gid_type]);
	else if (endpoint)
		used = (size_t)snprintf(out, size, "%s, %s", endpoint->path,
					layers[endpoint->local_end.gid_type]);
	if (used && used < size)
		snprintf(out + used, size - used, "%s", memory);
	pthread_mutex_unlock(&rdma->lock);
}

/* One line for each rail, if there are several or one broke. */
static void describe_endpoints(struct rdma_peer *rdma, const struct wh_batch *batch, char *out,
			       size_t size)
{
	const struct rdma_batch *kept = rdma_batch_of(batch);
	uint32_t broken;
	size_t at = 0;

	if (!kept || !atomic_load(&kept->tried))
		return;
	broken = atomic_load(&kept->broken);
	pthread_mutex_lock(&rdma->lock);
	for (unsigned i = 0; i < rdma->endpoint_count && (rdma->endpoint_count > 1 || broken);
	     i++) {
		const struct rdma_endpoint *endpoint = rdma->endpoints[i];
		bool broke = broken & 1u << i;
		bool down = endpoint->state != RDMA_READY && endpoint->state != RDMA_IDLE &&
			    endpoint->why[0];

		if (at >= size)
			break;
		at += (size_t)snprintf(out + at, size - at, "  %s: %llu bytes%s%s%s%s\n",
				       endpoint->path[0] ? endpoint->path : endpoint->rail->name,
				       (unsigned long long)rdma_batch_bytes(batch, i),
				       broke ? "; it broke: " : "",
				       broke ? endpoint->why_broken : "",
				       down ? "; it is down: " : "", down ? endpoint->why : "");
	}
	pthread_mutex_unlock(&rdma->lock);
}

static void peer_describe(struct wh_peer *peer, void *state, const struct wh_batch *batch,
			  struct wh_description *out)
{
	struct rdma_peer *rdma = state;

	(void)peer;
	describe_how(rdma, batch, out->how, sizeof(out->how));
	describe_endpoints(rdma, batch, out->parts, sizeof(out->parts));
	rdma_describe_memory(rdma, batch, out->memory, sizeof(out->memory));
}

/* ---- peers ----------------------------------------------------------------------------------- */

static void peer_free(struct rdma_peer *rdma)
{
	rdma_polling_close(rdma);
	rdma_client_close(rdma);
	for (unsigned i = 0; i < WH_RDMA_BOUNCES; i++)
		rdma_region_gone(rdma->peer, rdma, &rdma->bounces[i].region);
	pthread_mutex_destroy(&rdma->lock);
	free(rdma);
}

static int peer_open(struct wh_peer *peer, void **state, char why[WH_REFUSAL])
{
	struct wh_engine *engine = wh_peer_engine(peer);
	struct rdma_peer *rdma;

	if (wh_peer_is_self(peer)) {
		snprintf(why, WH_REFUSAL, "%.63s is this engine itself", wh_engine_name(engine));
		return -EOPNOTSUPP;
	}
	if (!(wh_peer_welcome(peer)->capabilities & WH_CAPABLE_RDMA)) {
		snprintf(why, WH_REFUSAL,
			 "%.63s has no rdma: it is switched off there, or has no NIC",
			 wh_peer_name(peer));
		return -EOPNOTSUPP;
	}
	rdma = calloc(1, sizeof(*rdma));
	if (!rdma) {
		snprintf(why, WH_REFUSAL, "no memory");
		return -ENOMEM;
	}
	rdma->rdma = wh_engine_transport(engine, WH_TRANSPORT_RDMA);
	rdma->peer = peer;
	pthread_mutex_init(&rdma->lock, NULL);
	wh_list_init(&rdma->urgent);
	wh_list_init(&rdma->bulk);
	wh_list_init(&rdma->sent);
	wh_list_init(&rdma->resend);
	wh_list_init(&rdma->stages);
	wh_list_init(&rdma->flushes);
	rdma_bounces_init(rdma);
	rdma_polling_open(rdma);
	if (rdma_client_open(rdma)) {
		snprintf(why, WH_REFUSAL, "no memory");
		peer_free(rdma);
		return -ENOMEM;
	}
	wh_list_append(&rdma->rdma->peers, &rdma->link);
	*state = rdma;
	return 0;
}

static void peer_close(struct wh_peer *peer, void *state)
{
	struct rdma_peer *rdma = state;

	(void)peer;
	wh_list_remove(&rdma->link);
	peer_free(rdma);
}

static void peer_lost(struct wh_peer *peer, void *state, int error, const char *text)
{
	(void)peer;
	rdma_client_lost(state, error, text);
	rdma_bounce_peer_lost(state);
	rdma_flush_abort(state, NULL, error, text);
}

static int peer_again(struct wh_peer *peer, void *state, char why[WH_REFUSAL])
{
	struct rdma_peer *rdma = state;

	if (!(wh_peer_welcome(peer)->capabilities & WH_CAPABLE_RDMA)) {
		snprintf(why, WH_REFUSAL, "%.63s has no rdma any more", wh_peer_name(peer));
		return -EOPNOTSUPP;
	}
	rdma_client_again(rdma);
	return 0;
}

static int peer_keyed_frame(struct rdma_peer *rdma, const struct wh_frame *frame,
			    const uint8_t *payload)
{
	struct wh_peer *peer = rdma->peer;
	struct wh_rdma_keyed keyed;
	bool current = false;
	int error;

	if (wh_rdma_keyed_decode(payload, frame->length, &keyed))
		return -EPROTO;
	if (!keyed.error && keyed.flush) /* before any thread uses the keys */
		atomic_store(&rdma->flushing, true);
	pthread_mutex_lock(&rdma->lock);
	for (unsigned i = 0; i < rdma->endpoint_count; i++)
		current |=
			rdma->endpoints[i]->path[0] && keyed.nic == rdma->endpoints[i]->remote_nic;
	pthread_mutex_unlock(&rdma->lock);
	error = current ? rdma_keys_received(peer, &keyed) : 0;
	pthread_mutex_lock(&rdma->lock);
	rdma->version++;
	rdma_reach_answered(rdma, keyed.id, keyed.nic);
	pthread_mutex_unlock(&rdma->lock);
	/* Batches that did not wait this long are planned anew. */
	wh_peer_replan(peer);
	wh_peer_reach_again(peer);
	return error;
}

static int peer_frame(struct wh_peer *peer, void *state, const struct wh_frame *frame,
		      const uint8_t *payload)
{
	struct wh_rdma_connected connected;
	struct wh_rdma_flushed flushed;
	struct wh_rdma_bounce_opened bounce;
	struct wh_rdma_ring_opened ring;
	struct rdma_peer *rdma = state;
	int error;

	(void)peer;
	if (frame->type == WH_FRAME_RDMA_CONNECTED)
		return wh_rdma_connected_decode(payload, frame->length, &connected) ?
			       -EPROTO :
			       rdma_endpoint_connected(rdma, &connected);
	if (frame->type == WH_FRAME_RDMA_FLUSHED || frame->type == WH_FRAME_RDMA_COPIED) {
		error = wh_rdma_flushed_decode(payload, frame->length, &flushed);
		return error                                ? error :
		       frame->type == WH_FRAME_RDMA_FLUSHED ? rdma_flush_answered(rdma, &flushed) :
							      rdma_lease_copied(rdma, &flushed);
	}
	if (frame->type == WH_FRAME_RDMA_BOUNCE_OPENED) {
		error = wh_rdma_bounce_opened_decode(payload, frame->length, &bounce);
		if (!error)
			rdma_bounce_opened(rdma, &bounce);
		return error;
	}
	if (frame->type == WH_FRAME_RDMA_RING_OPENED)
		return wh_rdma_ring_opened_decode(payload, frame->length, &ring) ?
			       -EPROTO :
			       rdma_ring_opened(rdma, &ring);
	if (frame->type == WH_FRAME_RDMA_SPARE) {
		if (frame->length != 4)
			return -EPROTO;
		rdma_endpoint_spare(rdma, wh_get32(payload));
		return 0;
	}
	return peer_keyed_frame(rdma, frame, payload);
}

/* ---- engine ---------------------------------------------------------------------------------- */

static void engine_free(struct rdma *rdma)
{
	if (rdma->looping)
		wh_loop_stop(&rdma->loop);
	rdma_rails_close(rdma);
	pthread_mutex_destroy(&rdma->lock);
	pthread_mutex_destroy(&rdma->register_lock);
	pthread_cond_destroy(&rdma->registered);
	pthread_mutex_destroy(&rdma->jobs_lock);
	pthread_cond_destroy(&rdma->jobs_come);
	free(rdma);
}

static int engine_open(struct wh_engine *engine, void **state)
{
	struct rdma *rdma = calloc(1, sizeof(*rdma));
	char text[WH_TEXT_MAX];
	int error;

	if (!rdma)
		return wh_fail(ENOMEM, "rdma: no memory");
	rdma->engine = engine;
	pthread_mutex_init(&rdma->lock, NULL);
	pthread_mutex_init(&rdma->register_lock, NULL);
	pthread_cond_init(&rdma->registered, NULL);
	pthread_mutex_init(&rdma->jobs_lock, NULL);
	pthread_cond_init(&rdma->jobs_come, NULL);
	wh_list_init(&rdma->peers);
	wh_list_init(&rdma->jobs);
	wh_list_init(&rdma->claims);
	wh_list_init(&rdma->bounces_free);
	wh_list_init(&rdma->file_bounces);
	wh_list_init(&rdma->responders);
	error = rdma_methods_parse(rdma);
	if (!error)
		error = rdma_rails_open(rdma);
	if (!error) {
		error = wh_loop_start(&rdma->loop, "wherry/rdma",
				      wh_engine_config(engine)->number[WH_SETTING_SPIN] != 0,
				      wh_engine_turns(engine));
		rdma->looping = !error;
	}
	if (error) {
		snprintf(text, sizeof(text), "%s", wh_error_text());
		engine_free(rdma);
		return wh_fail(-error, "%s", text);
	}
	*state = rdma;
	return 0;
}

static void engine_close(struct wh_engine *engine, void *state)
{
	(void)engine;
	rdma_bounces_close(state);
	rdma_worker_stop(state);
	rdma_stage_close(state);
	engine_free(state);
}

/* Whether both sides' NICs reach GPU memory shows when a batch is planned. */
static bool session_reaches_gpus(const struct wh_session *session)
{
	return wh_session_hello(session)->capabilities & WH_CAPABLE_RDMA;
}

const struct wh_transport wh_transport_rdma = {
	.name = "rdma",
	.capabilities = WH_CAN_READ | WH_CAN_WRITE | WH_CAN_PROGRESS | WH_CAN_ABORT |
			WH_CAN_NOTIFY | WH_IS_PLAINTEXT | WH_IS_NETWORKED,
	.frame_first = WH_FRAME_RDMA_CONNECT,
	.frame_end = WH_FRAME_RDMA_END,
	.hello = WH_CAPABLE_RDMA | WH_CAPABLE_RDMA_NOTIFY,
	.engine_open = engine_open,
	.engine_close = engine_close,
	.region_closed = rdma_region_closed,
	.peer_open = peer_open,
	.peer_close = peer_close,
	.peer_lost = peer_lost,
	.peer_again = peer_again,
	.region_gone = rdma_region_gone,
	.peer_frame = peer_frame,
	.is_reachable = rdma_is_reachable,
	.submit = peer_submit,
	.progress = rdma_wait_progress,
	.cancel = peer_cancel,
	.abort = rdma_wait_abort,
	.batch_again = rdma_batch_again,
	.batch_closed = rdma_batch_closed,
	.notify = rdma_notify_send,
	.notified = rdma_notify_confirmed,
	.describe = peer_describe,
	.session_frame = rdma_session_frame,
	.session_reaches_gpus = session_reaches_gpus,
	.session_close = rdma_session_close,
	.session_abort = rdma_session_abort,
};
