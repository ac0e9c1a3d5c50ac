/* SPDX-License-Identifier: Apache-2.0 */
/* Receiving a version: which one, into which buffer, piece by piece from whom the plan says, and
 * from another one if that one has it no more. */
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "util/clock.h"
#include "weights/run/run.h"

/* How long a live member that the plan names may take before its bytes are taken elsewhere. */
#define GRACE (500 * WH_MS)
#define SEEK_MOST (10 * WH_SECOND) /* until something is tried again that has failed so far */

/* ---- which steps a link has yet to request ------------------------------------------------------
 */

static void own_list(struct wh_weights *weights, uint32_t index)
{
	struct wh_own *own = &weights->own[index];
	struct wh_link_to *link = &weights->links[own->node];

	if (own->listed)
		return;
	own->listed = true;
	own->next = link->first;
	link->first = index;
}

static uint32_t own_pieces_there(const struct wh_link_to *link, const struct wh_own *own,
				 enum wh_copy_slot slot)
{
	const struct wh_weights *weights = link->weights;
	const uint32_t *pieces;
	uint32_t there;

	if (link->head.slots[slot].state == WH_COPY_WHOLE)
		return own->pieces;
	if (link->pieces_version != weights->attempt.version || link->pieces_slot != slot ||
	    link->looker.running)
		return 0;
	pieces = (const void *)(link->mirror + wh_weights_control_bytes(weights, link->node));
	pieces -= (size_t)weights->node_steps[link->node] * (slot == WH_COPY_FIRST ? 2 : 1);
	there = le32toh(pieces[weights->step_position[own->before]]);
	return there < own->pieces ? there : own->pieces;
}

/* Where the step's bytes are, or will be, on this link. */
static bool own_slot(const struct wh_link_to *link, const struct wh_own *own,
		     enum wh_copy_slot *slot)
{
	return wh_link_usable(link) && wh_link_slot(link, link->weights->attempt.version,
						    own->before == WH_PLAN_FIRST, slot);
}

static uint64_t own_piece_bytes(const struct wh_weights *weights, const struct wh_own *own)
{
	return weights->plan->cells[weights->plan->steps[own->step].cell].bytes / own->pieces;
}

/* ---- requests
 * ------------------------------------------------------------------------------------
 */

/* Take what is there from the link's list, in order. All of a request is from one slot. */
static void request_collect(struct wh_link_to *link, struct wh_fetch *request)
{
	struct wh_weights *weights = link->weights;

	request->count = 0;
	request->bytes = 0;
	for (uint32_t *at = &link->first; *at != WH_NO_STEP;) {
		struct wh_own *own = &weights->own[*at];
		uint64_t each = own_piece_bytes(weights, own);
		enum wh_copy_slot slot;
		uint32_t there, most;

		if (!own_slot(link, own, &slot) || (request->count && slot != request->slot) ||
		    (there = own_pieces_there(link, own, slot)) <= own->requested) {
			at = &own->next;
			continue;
		}
		most = each < link->request_bytes ?
			       (uint32_t)(link->request_bytes / (each + 1)) + 1 :
			       1;
		there = there - own->requested < most ? there : own->requested + most;
		request->slot = slot;
		request->ranges[request->count++] = (struct wh_pieces){
			.own = *at, .piece = own->requested, .count = there - own->requested
		};
		request->bytes += (there - own->requested) * each;
		own->requested = there;
		own->flying++;
		if (own->requested == own->pieces) {
			own->listed = false;
			*at = own->next;
		} else {
			at = &own->next;
		}
		if (request->count == WH_FETCH_RANGES || request->bytes >= link->request_bytes)
			return;
	}
}

static void request_start(struct wh_link_to *link, struct wh_fetch *request)
{
	int error = wh_link_job_batch(&request->job);

	if (!error)
		error = wh_weights_fill(link->weights, request);
	link->request_count++;
	link->weights->work++;
	link->weights->attempt.flying++;
	request->state = WH_FETCH_RUNNING;
	wh_phases_read(&link->weights->phases, request->bytes, wh_now());
	if (!error) {
		wh_link_job_submit(&request->job);
		return;
	}
	wh_link_fail(link, wh_error_text());
	request->job.running = true;
	link->running++;
	wh_link_job_done(&request->job, error);
}

void wh_link_fetch(struct wh_link_to *link)
{
	const struct wh_attempt *attempt = &link->weights->attempt;

	if (!attempt->version || attempt->aborting || link->first == WH_NO_STEP ||
	    !wh_link_usable(link) || wh_now() < link->pause)
		return;
	while (link->request_count < link->window && wh_link_usable(link)) {
		struct wh_fetch *request =
			&link->requests[(link->head_request + link->request_count) % WH_FETCHES];

		request_collect(link, request);
		if (!request->count)
			return;
		request_start(link, request);
	}
}

static void request_route(struct wh_link_to *link, struct wh_batch *batch)
{
	struct wh_route routes[8];
	size_t count = 8;

	if (wh_batch_routes(batch, routes, &count))
		return;
	for (size_t i = 0; i < count; i++)
		if (routes[i].bytes)
			snprintf(link->route, sizeof(link->route), "%.15s, %.47s",
				 routes[i].transport, routes[i].detail);
}

void wh_fetch_landed(struct wh_fetch *request, int status)
{
	struct wh_link_to *link = request->job.link;

	wh_phases_landed(&link->weights->phases, wh_now());
	request->state = status ? WH_FETCH_FAILED : WH_FETCH_LANDED;
	link->look = true;
	if (!status) {
		if (!link->route[0])
			request_route(link, request->job.batch);
		return;
	}
	/* Maybe all is gone, maybe one region: look at it afresh, a little later. */
	link->pause = wh_now() + 20 * WH_MS;
	link->known = false;
	if (wh_batch_error_text(request->job.batch)[0])
		wh_link_fail(link, wh_batch_error_text(request->job.batch));
}

/* The followers of a step may look. */
static void own_announce(struct wh_weights *weights, uint32_t index)
{
	wh_weights_pieces_set(weights->control_pieces[weights->attempt.buffer], index,
			      weights->own[index].done);
	for (uint32_t i = weights->follower_first[index]; i < weights->follower_first[index + 1];
	     i++)
		weights->links[weights->followers[i]].kick = true;
}

uint64_t wh_weights_received(const struct wh_weights *weights)
{
	uint64_t bytes = weights->attempt.bytes;

	for (uint32_t i = 0; i < weights->plan->cluster.node_count; i++) {
		const struct wh_link_to *link = &weights->links[i];

		for (uint32_t j = 0; j < link->request_count; j++) {
			const struct wh_fetch *request =
				&link->requests[(link->head_request + j) % WH_FETCHES];
			uint64_t come = request->bytes;

			if (request->state == WH_FETCH_FAILED ||
			    (request->state == WH_FETCH_RUNNING &&
			     wh_batch_progress(request->job.batch, &come)))
				continue;
			bytes += come < request->bytes ? come : request->bytes;
		}
	}
	return bytes < weights->own_bytes ? bytes : weights->own_bytes;
}

/* Say how much has come, for who watches it. */
static void received_show(struct wh_weights *weights)
{
	wh_weights_head_received(weights->control, wh_weights_received(weights));
}

static void range_end(struct wh_weights *weights, struct wh_link_to *link,
		      const struct wh_pieces *range, bool good)
{
	struct wh_attempt *attempt = &weights->attempt;
	struct wh_own *own = &weights->own[range->own];
	uint64_t all = weights->plan->cells[weights->plan->steps[own->step].cell].bytes;
	uint64_t each = own_piece_bytes(weights, own), bytes = each * range->count;

	own->flying--;
	if (good && range->piece == own->done) {
		own->done += range->count;
		if (own->done == own->pieces)
			bytes += all - each * own->pieces;
		attempt->bytes += bytes;
		weights->total += bytes;
		link->bytes += bytes;
		attempt->came = wh_now();
		own_announce(weights, range->own);
		if (own->done == own->pieces)
			attempt->left--;
	}
	if (!own->flying && own->done < own->requested) {
		own->requested = own->done;
		own_list(weights, range->own);
		/* One that is connected, and not known, is being looked at afresh. */
		weights->stray = weights->stray || link->known || link->gone || !link->connected;
	}
}

/* End the requests whose turn it is, in the order in which they were made. */
static void requests_end(struct wh_link_to *link)
{
	struct wh_weights *weights = link->weights;

	while (link->request_count) {
		struct wh_fetch *request = &link->requests[link->head_request];
		bool good = request->state == WH_FETCH_GOOD;

		if (!good && request->state != WH_FETCH_FAILED)
			return;
		link->head_request = (link->head_request + 1) % WH_FETCHES;
		link->request_count--;
		weights->attempt.flying--;
		weights->ended = true;
		weights->work++;
		for (uint32_t i = 0; i < request->count; i++)
			range_end(weights, link, &request->ranges[i],
				  good && !weights->attempt.aborting);
	}
	received_show(weights);
}

void wh_link_checked(struct wh_link_to *link, bool read)
{
	for (uint32_t i = 0; i < link->request_count; i++) {
		struct wh_fetch *request = &link->requests[(link->head_request + i) % WH_FETCHES];
		uint64_t version = link->head.slots[request->slot].version;

		/* A landed one was not there yet when the head was read. */
		if (request->state == WH_FETCH_CHECKING)
			request->state = read && version == link->weights->attempt.version ?
						 WH_FETCH_GOOD :
						 WH_FETCH_FAILED;
		else if (request->state == WH_FETCH_LANDED && !read)
			request->state = WH_FETCH_FAILED;
	}
	requests_end(link);
}

/* ---- which version
 * -------------------------------------------------------------------------------
 */

/* The newest version after `after` that can be received now; 0: none. One that some target has
 * whole can be; another one if all sources that this member reads from have published it. If one of
 * them has retracted it since, an older one that is whole somewhere is better. */
static uint64_t version_choose(const struct wh_weights *weights, uint64_t after)
{
	uint64_t whole = 0, offered = 0, published = UINT64_MAX, there = UINT64_MAX;

	for (uint32_t i = 0; i < weights->plan->cluster.node_count; i++) {
		const struct wh_link_to *link = &weights->links[i];

		if (!wh_link_usable(link))
			continue;
		if (wh_link_whole(link) > whole && i != weights->me)
			whole = wh_link_whole(link);
		for (int j = 0; j < WH_COPY_SLOTS; j++)
			if ((i != weights->me || j == WH_COPY_SOURCE) &&
			    link->head.slots[j].version > offered)
				offered = link->head.slots[j].version;
		if (!link->planned || !weights->node_regions[0][i])
			continue;
		if (link->head.published < published)
			published = link->head.published;
		if (link->head.slots[WH_COPY_SOURCE].version < there)
			there = link->head.slots[WH_COPY_SOURCE].version;
	}
	if (offered > whole && (published < offered || (there < offered && whole > after)))
		offered = whole;
	return offered > after ? offered : 0;
}

/* Somebody has a version that this member may want. */
static void version_hear(struct wh_weights *weights, uint64_t after, int64_t now)
{
	for (uint32_t i = 0; !weights->heard_at && i < weights->plan->cluster.node_count; i++)
		if (i != weights->me && wh_link_usable(&weights->links[i]) &&
		    weights->links[i].head.published > after)
			weights->heard_at = now;
}

static uint64_t versions_after(const struct wh_weights *weights)
{
	return weights->current > weights->cancelled ? weights->current : weights->cancelled;
}

/* What to begin instead of a version that is stuck, and would be chosen again; 0: nothing yet. One
 * that is whole somewhere may lack parts that this member wants, as one that a source has retracted
 * may: each has its turn, and longer ones the longer none is received. */
static uint64_t version_instead(struct wh_weights *weights, int64_t now)
{
	const struct wh_attempt *attempt = &weights->attempt;
	uint64_t best = version_choose(weights, versions_after(weights)), other;
	int64_t turn = weights->turn ? weights->turn : GRACE;

	if (best > attempt->version)
		return best;
	if (now - attempt->since < turn)
		return 0;
	other = best && best < attempt->version ? best : version_choose(weights, attempt->version);
	if (other)
		weights->turn = 2 * turn < SEEK_MOST ? 2 * turn : SEEK_MOST;
	return other;
}

static bool attempt_begin(struct wh_weights *weights, int64_t now)
{
	struct wh_attempt *attempt = &weights->attempt;
	uint64_t after = versions_after(weights), version = 0;
	uint32_t buffer = weights->current ? 1 - weights->current_buffer : 0;

	if (weights->instead > after)
		version = version_choose(weights, weights->instead - 1);
	if (!version)
		version = version_choose(weights, after);
	version_hear(weights, after, now);
	if (!version || weights->pins[buffer] || (weights->single && weights->current))
		return false;
	wh_phases_begin(&weights->phases, version, weights->heard_at, now);
	weights->heard_at = 0;
	weights->instead = 0;
	weights->work++;
	*attempt = (struct wh_attempt){ .version = version,
					.buffer = buffer,
					.left = weights->own_count,
					.since = now,
					.came = now,
					.grace = now + GRACE };
	wh_weights_head_clear(weights->control, WH_COPY_FIRST + buffer);
	wh_weights_head_received(weights->control, 0);
	for (uint32_t i = 0; i < weights->plan->cluster.node_count; i++)
		weights->links[i].first = WH_NO_STEP;
	for (uint32_t i = weights->own_count; i-- > 0;) {
		struct wh_own *own = &weights->own[i];
		const struct wh_step *step = &weights->plan->steps[own->step];

		wh_weights_pieces_set(weights->control_pieces[buffer], i, 0);
		own->from = step->from;
		own->before = step->before;
		own->node = wh_step_sender(weights->plan, step);
		own->requested = own->done = own->flying = 0;
		own->listed = false;
		own_list(weights, i);
	}
	weights->stray = true;
	wh_weights_head_begin(weights->control);
	wh_weights_head_set(weights->control, WH_COPY_FIRST + buffer, version, WH_COPY_FILLING);
	wh_weights_tell(weights);
	return true;
}

static void attempt_commit(struct wh_weights *weights)
{
	struct wh_attempt *attempt = &weights->attempt;

	wh_weights_head_set(weights->control, WH_COPY_FIRST + attempt->buffer, attempt->version,
			    WH_COPY_WHOLE);
	wh_phases_whole(&weights->phases, wh_now());
	weights->work++;
	weights->current = attempt->version;
	weights->current_buffer = attempt->buffer;
	attempt->version = 0;
	weights->turn = 0;
	for (uint32_t i = 0; i < weights->plan->cluster.node_count; i++)
		weights->links[i].first = WH_NO_STEP;
	pthread_cond_broadcast(&weights->changed);
	wh_weights_tell(weights);
}

void wh_weights_abort(struct wh_weights *weights)
{
	weights->work++;
	weights->attempt.aborting = true;
	wh_weights_head_clear(weights->control, WH_COPY_FIRST + weights->attempt.buffer);
	wh_weights_tell(weights);
}

/* ---- whom else to ask
 * ----------------------------------------------------------------------------
 */

#define SEEK_STEPS 64 /* that are looked through at a time */
#define SEEK_OPENINGS 4

/* Whether there may be a version that no source has. *known: there is one. */
static bool sources_lack(const struct wh_weights *weights, bool *known)
{
	bool reached = false;

	*known = false;
	for (uint32_t i = 0; i < weights->plan->cluster.node_count; i++) {
		const struct wh_link_to *link = &weights->links[i];

		if (!weights->node_regions[0][i] || !wh_link_usable(link))
			continue;
		reached = true;
		*known = *known || (link->head.published > weights->current &&
				    link->head.published > weights->cancelled &&
				    !link->head.slots[WH_COPY_SOURCE].version);
	}
	return *known || !reached;
}

/* Connect to some targets that want the same parts as this one: they may have a version that the
 * sources have retracted or taken with them. More rarely the longer nobody has one. */
static void holders_seek(struct wh_weights *weights, int64_t now)
{
	uint32_t openings = SEEK_OPENINGS;
	bool known;

	if (!sources_lack(weights, &known)) {
		weights->seek_pause = 0;
		return;
	}
	if (!weights->seek_pause) {
		weights->seek_pause = GRACE;
		weights->seek_at = now + (known ? 0 : GRACE);
	}
	if (now < weights->seek_at)
		return;
	for (uint32_t i = 0; i < weights->own_count && i < SEEK_STEPS && openings; i++) {
		struct wh_candidate candidate = { 0 };

		weights->seek_own = (weights->seek_own + 1) % weights->own_count;
		while (openings && wh_weights_candidate(weights, &weights->own[weights->seek_own],
							&candidate)) {
			struct wh_link_to *link = &weights->links[candidate.node];

			if (candidate.before == WH_PLAN_FIRST || link->wanted)
				continue;
			link->wanted = true;
			openings--;
		}
	}
	weights->seek_at = now + weights->seek_pause;
	weights->seek_pause =
		2 * weights->seek_pause < SEEK_MOST ? 2 * weights->seek_pause : SEEK_MOST;
}

void wh_weights_receive(struct wh_weights *weights, int64_t now)
{
	struct wh_attempt *attempt = &weights->attempt;

	if (!weights->is[1])
		return;
	weights->ended = false;
	if (attempt->version && attempt->grace && now >= attempt->grace) {
		attempt->grace = 0;
		weights->stray = true;
	}
	if (attempt->version && attempt->aborting && !attempt->flying) {
		attempt->version = 0;
		pthread_cond_broadcast(&weights->changed);
	}
	if (attempt->version && !attempt->aborting && !attempt->left && !attempt->flying)
		attempt_commit(weights);
	if (!attempt->version && !attempt_begin(weights, now))
		holders_seek(weights, now);
}

/* ---- elsewhere
 * -----------------------------------------------------------------------------------
 */

/* Move a step to another member that has what comes next. */
static bool own_move(struct wh_weights *weights, struct wh_own *own, uint32_t *openings)
{
	struct wh_candidate candidate = { 0 };

	while (wh_weights_candidate(weights, own, &candidate)) {
		struct wh_link_to *link = &weights->links[candidate.node];
		struct wh_own moved = *own;
		enum wh_copy_slot slot;

		moved.from = candidate.from;
		moved.before = candidate.before;
		moved.node = candidate.node;
		if (candidate.node == weights->me || candidate.node == own->node)
			continue;
		if (!link->wanted && *openings) {
			link->wanted = true;
			--*openings;
		}
		if (own_slot(link, &moved, &slot) &&
		    own_pieces_there(link, &moved, slot) > own->done) {
			*own = moved;
			return true;
		}
		/* It may be further next time. */
		link->look = link->look || link->connected;
	}
	return false;
}

/* The plan has no cycles, but steps that were moved may make one: nobody in it is ever further. */
static bool own_may_cycle(const struct wh_weights *weights, const struct wh_own *own,
			  enum wh_copy_slot slot, int64_t now)
{
	return own->node != wh_step_sender(weights->plan, &weights->plan->steps[own->step]) &&
	       own_pieces_there(&weights->links[own->node], own, slot) <= own->done &&
	       now - weights->attempt.came >= GRACE;
}

/* Steps whose member has not got the version, and maybe never will: look for another one? */
static bool own_waits(const struct wh_weights *weights, const struct wh_own *own, int64_t now)
{
	const struct wh_link_to *link = &weights->links[own->node];
	enum wh_copy_slot slot;

	if (own_slot(link, own, &slot))
		return own_may_cycle(weights, own, slot, now);
	/* It had the version, and has it no more; or it is not there. */
	return (own->before == WH_PLAN_FIRST ? link->head.published : wh_link_whole(link)) >=
		       weights->attempt.version ||
	       (!link->connected && link->ever) || link->gone || link->refused || link->differs ||
	       now - weights->attempt.since >= GRACE;
}

void wh_weights_elsewhere(struct wh_weights *weights, int64_t now)
{
	struct wh_attempt *attempt = &weights->attempt;
	uint32_t openings = 4; /* new connections at a time */
	bool stuck = false;

	weights->stray = false;
	if (!attempt->version || attempt->aborting)
		return;
	for (uint32_t i = 0; i < weights->own_count; i++) {
		struct wh_own *own = &weights->own[i];
		uint32_t node = own->node;

		if (own->done == own->pieces || own->flying || !own_waits(weights, own, now))
			continue;
		if (!own_move(weights, own, &openings)) {
			stuck = true;
			continue;
		}
		weights->work++;
		/* Out of the list that it was in, into the other's. */
		for (uint32_t *at = &weights->links[node].first; *at != WH_NO_STEP;
		     at = &weights->own[*at].next)
			if (*at == i) {
				*at = own->next;
				break;
			}
		own->listed = false;
		own->requested = own->done;
		own_list(weights, i);
	}
	attempt->stuck = stuck;
	if (stuck)
		weights->instead = version_instead(weights, now);
	if (stuck && weights->instead)
		wh_weights_abort(weights);
}

void wh_weights_tick(struct wh_weights *weights, int64_t now)
{
	wh_weights_elsewhere(weights, now);
	if (!weights->attempt.version || weights->attempt.aborting)
		return;
	received_show(weights);
	for (uint32_t i = 0; i < weights->plan->cluster.node_count; i++)
		if (weights->links[i].first != WH_NO_STEP)
			weights->links[i].look = true;
}

int64_t wh_weights_due(const struct wh_weights *weights, int64_t now)
{
	if (!weights->is[1])
		return INT64_MAX;
	if (weights->attempt.version)
		return wh_time_next(INT64_MAX, weights->attempt.grace, now);
	return weights->seek_pause ? wh_time_next(INT64_MAX, weights->seek_at, now) : INT64_MAX;
}
