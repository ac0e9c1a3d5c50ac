/* SPDX-License-Identifier: Apache-2.0 */
/* A link to another member: its connection, what the other says of itself, and looking at its
 * control block. */
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/clock.h"
#include "weights/run/run.h"

#define AGAIN_FIRST (50 * WH_MS)
#define AGAIN_LAST (2 * WH_SECOND)
#define LOOK_PAUSE (20 * WH_MS) /* after a look that failed */
/* How long a member may take to say that it is still there. */
#define DOUBT_MOST (2 * WH_SECOND)
/* Until the next hello to one that has said none: weights that were closed may have taken the last.
 */
#define REMIND_FIRST WH_SECOND
#define REMIND_LAST (30 * WH_SECOND)

static const char *link_name(const struct wh_link_to *link)
{
	return link->weights->plan->cluster.nodes[link->node].name;
}

static bool link_is_self(const struct wh_link_to *link)
{
	return link->node == link->weights->me;
}

void wh_link_fail(struct wh_link_to *link, const char *text)
{
	snprintf(link->error, sizeof(link->error), "%s", text);
	/* Who waits may have to hear of it. */
	pthread_cond_broadcast(&link->weights->changed);
}

/* ---- batches
 * -------------------------------------------------------------------------------------
 */

int wh_link_job_batch(struct wh_link_job *job)
{
	struct wh_batch_options options = {
		.size = sizeof(options),
		.queue = job->link->weights->queue,
		.user = (uintptr_t)job,
		.priority = job->kind == WH_JOB_DATA ? WH_PRIORITY_BULK : WH_PRIORITY_LATENCY,
	};

	job->life = job->link->life;
	if (job->batch)
		return wh_batch_clear(job->batch);
	return wh_batch_new(job->link->peer, &options, &job->batch);
}

void wh_link_job_submit(struct wh_link_job *job)
{
	int error;

	job->running = true;
	job->link->running++;
	error = wh_batch_submit(job->batch);
	if (error)
		wh_link_job_done(job, error);
}

static void greeting_done(struct wh_link_to *link, int status)
{
	/* A lost peer is greeted when it is back. */
	if (!status)
		return;
	link->kick = true;
	link->ask = link->doubt != 0;
}

/* ---- looking
 * -------------------------------------------------------------------------------------
 */

static int look_add(struct wh_link_to *link, uint64_t remote, uint64_t offset, uint64_t length)
{
	struct wh_transfer transfer = {
		.local = link->weights->mirror_region,
		.local_offset = link->mirror_offset + offset,
		.remote = remote,
		.remote_offset = offset,
		.length = length,
		.op = WH_READ,
	};

	return wh_batch_add(link->looker.batch, &transfer, 1);
}

/* Before blocks of a region can be prepared, the engine must know the region. So a byte of each is
 * read, which also says whether this member may. */
static int know_add(struct wh_link_to *link)
{
	const struct wh_weights *weights = link->weights;
	uint64_t at = wh_weights_control_bytes(weights, link->node);
	uint32_t ids =
		weights->node_regions[0][link->node] + 2 * weights->node_regions[1][link->node];
	const uint64_t *id = (const void *)(link->mirror + WH_HEAD_BYTES);
	int error = 0;

	for (uint32_t i = 0; !error && i < ids; i++) {
		struct wh_transfer transfer = { .local = weights->mirror_region,
						.local_offset = link->mirror_offset + at + i,
						.remote = le64toh(id[i]),
						.length = 1,
						.op = WH_READ };

		error = wh_batch_add(link->looker.batch, &transfer, 1);
	}
	return error;
}

static int pieces_add(struct wh_link_to *link)
{
	const struct wh_weights *weights = link->weights;
	uint64_t steps = weights->node_steps[link->node];
	uint64_t end = wh_weights_control_bytes(weights, link->node);

	return look_add(link, link->hello.control,
			end - 4 * steps * (link->pieces_slot == WH_COPY_FIRST ? 2 : 1), 4 * steps);
}

static int text_add(struct wh_link_to *link)
{
	uint64_t length = link->hello.text_bytes;
	struct wh_transfer transfer = { .remote = link->hello.text,
					.length = length,
					.op = WH_READ };
	int error;

	if (!length || length > WH_TEXT_KEPT)
		return -EPROTO;
	link->text = malloc(length);
	if (!link->text)
		return -ENOMEM;
	error = wh_region_register(link->weights->engine, link->text, length, NULL,
				   &link->text_region);
	transfer.local = link->text_region;
	return error ? error : wh_batch_add(link->looker.batch, &transfer, 1);
}

static bool wants_pieces(const struct wh_link_to *link, enum wh_copy_slot *out)
{
	const struct wh_attempt *attempt = &link->weights->attempt;

	return attempt->version && !attempt->aborting && link->first != WH_NO_STEP &&
	       wh_link_slot(link, attempt->version, false, out) &&
	       link->head.slots[*out].state == WH_COPY_FILLING;
}

static void look_start(struct wh_link_to *link, enum wh_look what)
{
	const struct wh_weights *weights = link->weights;
	uint64_t ids = weights->node_regions[0][link->node] +
		       2 * (uint64_t)weights->node_regions[1][link->node];
	int error;

	link->looking = what;
	link->look_since = wh_now();
	link->pieces_too =
		what == WH_LOOK_HEAD && link->known && wants_pieces(link, &link->pieces_slot);
	if (link->pieces_too || what == WH_LOOK_PIECES)
		link->pieces_for = weights->attempt.version;
	link->pieces_version = 0;
	error = wh_link_job_batch(&link->looker);
	if (!error && what == WH_LOOK_HEAD)
		error = look_add(link, link->hello.control, 0,
				 WH_HEAD_BYTES + (link->known ? 0 : 8 * ids));
	if (!error && (link->pieces_too || what == WH_LOOK_PIECES))
		error = pieces_add(link);
	if (!error && what == WH_LOOK_KNOW)
		error = know_add(link);
	if (!error && what == WH_LOOK_TEXT)
		error = text_add(link);
	if (!error) {
		wh_link_job_submit(&link->looker);
		return;
	}
	link->looker.running = true;
	link->running++;
	wh_link_job_done(&link->looker, error);
}

static void text_drop(struct wh_link_to *link)
{
	/* Of this engine's own use: only a running batch could keep it. */
	wh_region_unregister(link->text_region);
	free(link->text);
	link->text_region = NULL;
	link->text = NULL;
}

/* What steps wait for may have gone, or somebody has what they can go to. */
static void link_strays(struct wh_link_to *link)
{
	struct wh_weights *weights = link->weights;

	if (weights->attempt.version && (weights->attempt.stuck || link->first != WH_NO_STEP))
		weights->stray = true;
}

static void link_known(struct wh_link_to *link)
{
	link->known = link->ever = link->met = true;
	link->error[0] = 0;
	link_strays(link);
}

/* Whether its weights may be open without knowing of this member. */
static bool link_is_silent(const struct wh_link_to *link)
{
	return link->connected && (!link->hello_epoch || link->gone) && !link_is_self(link);
}

static void link_remind(struct wh_link_to *link, int64_t now)
{
	if (!link_is_silent(link)) {
		link->remind = link->remind_pause = 0;
	} else if (!link->remind) {
		link->remind_pause = REMIND_FIRST;
		link->remind = now + REMIND_FIRST;
	} else if (now >= link->remind) {
		link->ask = link->kick = true;
		link->remind_pause =
			2 * link->remind_pause < REMIND_LAST ? 2 * link->remind_pause : REMIND_LAST;
		link->remind = now + link->remind_pause;
	}
}

/* It has no control block any more: until it says hello again, nobody waits for it. */
static void link_gone(struct wh_link_to *link)
{
	link->gone = true;
	link->ever = link->ever || !link->differs;
	link->known = false;
	link->doubt = 0;
	memset(&link->head, 0, sizeof(link->head));
	link->pieces_version = 0;
	link_strays(link);
	wh_link_fail(link, "it has left");
}

/* Whether both have the same versions. */
static bool head_is(const struct wh_weights_head *a, const struct wh_weights_head *b)
{
	for (int i = 0; i < WH_COPY_SLOTS; i++)
		if (a->slots[i].version != b->slots[i].version ||
		    a->slots[i].state != b->slots[i].state)
			return false;
	return a->published == b->published;
}

/* The head has come. */
static void head_done(struct wh_link_to *link)
{
	struct wh_weights *weights = link->weights;
	uint32_t ids =
		weights->node_regions[0][link->node] + 2 * weights->node_regions[1][link->node];
	struct wh_weights_head before = link->head;
	enum wh_copy_slot slot;
	bool read = wh_weights_head_decode((const void *)link->mirror, ids,
					   weights->node_steps[link->node], &link->head);

	if (!read) {
		memset(&link->head, 0, sizeof(link->head));
		wh_link_fail(link, "its control block is of another kind");
		link->refused = -EPROTO;
	}
	wh_link_checked(link, read);
	if (link->known && !head_is(&before, &link->head))
		link_strays(link);
	/* Who is no target reads nothing else, and may not. */
	if (read && !weights->is[1])
		link_known(link);
	else if (read && !link->known)
		look_start(link, WH_LOOK_KNOW);
	else if (read && wants_pieces(link, &slot)) {
		/* Read before or after the head, the list is of the version that both heads have,
		 * and no later one: counts that are too high could be of a former attempt. */
		if (link->pieces_too && before.begun == link->head.begun &&
		    slot == link->pieces_slot && link->pieces_for == weights->attempt.version) {
			link->pieces_version = link->pieces_for;
		} else {
			link->pieces_slot = slot;
			look_start(link, WH_LOOK_PIECES);
		}
	}
	pthread_cond_broadcast(&weights->changed);
}

/* A region of one that has just said hello cannot be read; `error` says what it means if it is
 * still there. */
static void link_doubt(struct wh_link_to *link, int refusal)
{
	link->doubt = wh_now();
	link->refusal = refusal;
	link->question = link->question == UINT16_MAX ? 1 : link->question + 1;
	link->ask = link->kick = true;
}

static void look_failed(struct wh_link_to *link, int status)
{
	char text[WH_TEXT_MAX];
	const char *why = wh_batch_error_text(link->looker.batch);

	memset(&link->head, 0, sizeof(link->head));
	link->known = false;
	link->pieces_version = 0;
	wh_link_checked(link, false);
	link_strays(link);
	/* It fails at once if there is no memory, and what strays looks again. */
	if (status != -ESTALE)
		link->look_pause = wh_now() + LOOK_PAUSE;
	if (status != -EACCES && status != -ENOENT)
		return;
	/* Later it means that its weights are closed, and that their last hello is lost. Now it may
	 * mean that, too; then no answer comes. */
	if (link->met) {
		link_gone(link);
		return;
	}
	snprintf(text, sizeof(text), "engine '%.40s' does not let '%.40s' read its %s: %.99s",
		 link_name(link), wh_engine_name(link->weights->engine),
		 link->looking == WH_LOOK_KNOW ? "weights" : "control block", why);
	wh_link_fail(link, text);
	link_doubt(link, -EACCES);
}

static void link_differs(struct wh_link_to *link, const char *text)
{
	link->refused = -EINVAL;
	wh_weights_differ(link, text, link->hello.text_bytes);
}

static void look_done(struct wh_link_to *link, int status)
{
	if (link->weights->attempt.version)
		wh_phases_looked(&link->weights->phases, wh_now() - link->look_since);
	if (link->looking == WH_LOOK_TEXT) {
		/* Weights that this engine has opened anew hear hellos to those before. */
		if (status == -EACCES || status == -ENOENT)
			link_doubt(link, -EINVAL);
		else if (status == -ECONNRESET || status == -ECANCELED || status == -ESTALE)
			link->compare = link->look = true;
		else
			link_differs(link, status ? NULL : link->text);
		text_drop(link);
	} else if (status) {
		link->look = link->look || status == -ESTALE;
		look_failed(link, status);
	} else if (link->looking == WH_LOOK_HEAD) {
		head_done(link);
	} else if (link->looking == WH_LOOK_KNOW) {
		link_known(link);
		link->look = true;
	} else {
		link->pieces_version = link->pieces_for;
	}
}

/* ---- what it has
 * ---------------------------------------------------------------------------------
 */

uint64_t wh_link_whole(const struct wh_link_to *link)
{
	uint64_t version = 0;

	for (int i = WH_COPY_FIRST; i < WH_COPY_SLOTS; i++)
		if (link->head.slots[i].state == WH_COPY_WHOLE &&
		    link->head.slots[i].version > version)
			version = link->head.slots[i].version;
	return version;
}

bool wh_link_slot(const struct wh_link_to *link, uint64_t version, bool source,
		  enum wh_copy_slot *out)
{
	for (int i = source ? WH_COPY_SOURCE : WH_COPY_FIRST; i < (source ? 1 : WH_COPY_SLOTS); i++)
		if (link->head.slots[i].state && link->head.slots[i].version == version) {
			*out = (enum wh_copy_slot)i;
			return true;
		}
	return false;
}

void wh_link_job_done(struct wh_link_job *job, int status)
{
	struct wh_link_to *link = job->link;

	job->running = false;
	link->running--;
	/* What was read there is not of the weights that said hello since. */
	if (job->life != link->life)
		status = -ESTALE;
	if (job->kind == WH_JOB_HELLO)
		greeting_done(link, status);
	else if (job->kind == WH_JOB_LOOK)
		look_done(link, status);
	else
		wh_fetch_landed((struct wh_fetch *)(void *)job, status);
}

/* ---- the connection
 * ------------------------------------------------------------------------------
 */

/* It has said hello, with the layouts that this member has. */
static bool link_is_ours(const struct wh_link_to *link)
{
	return link->hello_epoch && !link->refused && !link->differs;
}

static void link_later(struct wh_link_to *link, int64_t now)
{
	int64_t wait = AGAIN_FIRST << (link->failures < 6 ? link->failures : 6);

	link->failures++;
	link->again = now + (wait < AGAIN_LAST ? wait : AGAIN_LAST);
}

static void link_open(struct wh_link_to *link, int64_t now)
{
	struct wh_peer_options options = { .size = sizeof(options),
					   .queue = link->weights->queue,
					   .user = link->node };
	char url[16 + 64];

	link->weights->work++;
	snprintf(url, sizeof(url), "wherry://%.63s", link_name(link));
	if (!wh_peer_open(link->weights->engine,
			  link_is_self(link) ? "self" :
			  link->url[0]       ? link->url :
					       url,
			  &options, &link->peer)) {
		link->state = WH_LINK_OPENING;
		link->old_epoch = link->hello_epoch;
		return;
	}
	/* Without a registry a name is no URL: the other has to come. */
	wh_link_fail(link, wh_error_text());
	link_later(link, now);
}

static void link_forget(struct wh_link_to *link)
{
	/* Who said hello and is lost counts as one that was here, and nobody waits for it. */
	link->ever = link->ever || (link->connected && link_is_ours(link));
	if (link->connected) {
		link_strays(link);
		link->weights->work++;
		pthread_cond_broadcast(&link->weights->changed);
	}
	link->doubt = 0;
	link->connected = link->known = false;
	memset(&link->head, 0, sizeof(link->head));
	link->pieces_version = 0;
}

/* Nothing will be looked at: what has landed cannot be checked. */
static void link_flush(struct wh_link_to *link)
{
	if (link->request_count && !link->looker.running)
		wh_link_checked(link, false);
}

/* It was started anew, or its weights were. */
static void link_anew(struct wh_link_to *link, uint64_t epoch)
{
	link->life++;
	link_forget(link);
	link_flush(link);
	link->refused = 0;
	link->met = link->differs = link->compare = link->gone = false;
	link->error[0] = 0;
	link->hello_epoch = epoch;
	link->kick = true;
	link->again = link->look_pause = 0;
}

void wh_link_opened(struct wh_link_to *link, int status)
{
	struct wh_peer_info info = { .size = sizeof(info) };
	char text[WH_TEXT_MAX];

	if (!status)
		status = wh_peer_info(link->peer, &info);
	if (!status && !link_is_self(link) && strcmp(info.name, link_name(link)) != 0) {
		snprintf(text, sizeof(text), "engine '%.60s' answers at %.60s, not '%.60s'",
			 info.name, info.address, link_name(link));
		wh_link_fail(link, text);
		status = -ESTALE;
	} else if (status) {
		wh_peer_status(link->peer);
		wh_link_fail(link, wh_error_text());
	}
	if (status) {
		/* It said hello, and nobody listens there any more. */
		link->ever = link->ever || (status == -ECONNREFUSED && link_is_ours(link));
		wh_peer_close(link->peer);
		link->peer = NULL;
		link->state = WH_LINK_IDLE;
		link_later(link, wh_now());
		return;
	}
	/* It was started anew since it said hello, and need not know where this member is. */
	if (link->hello_epoch && link->hello_epoch == link->old_epoch &&
	    link->hello_epoch != info.epoch)
		link_anew(link, 0);
	link->state = WH_LINK_OPEN;
	link->epoch = info.epoch;
	link->failures = 0;
	link->kick = true;
	if (link_is_self(link)) {
		link->hello.control = wh_region_id(link->weights->control_region);
		link->hello_epoch = link->epoch;
		link->look = true;
	}
}

void wh_link_heard(struct wh_link_to *link, const struct wh_weights_hello *hello, uint64_t epoch)
{
	const struct wh_weights *weights = link->weights;
	bool fits = hello->digest[0] == weights->digest[0] &&
		    hello->digest[1] == weights->digest[1] &&
		    hello->control_bytes == wh_weights_control_bytes(weights, link->node);
	bool same = epoch == link->hello_epoch && hello->control == link->hello.control;

	if (hello->flags & WH_HELLO_LEAVES) {
		if (same && !link->refused)
			link_gone(link);
		return;
	}
	/* Where it listens it knows best; who is there is checked when it answers. */
	if (hello->url[0])
		memcpy(link->url, hello->url, sizeof(link->url));
	if (!same)
		link_anew(link, epoch);
	link->gone = false;
	link->hello = *hello;
	link->wanted = true;
	link->look = true;
	if (!fits && !link->refused && !link->doubt)
		link->differs = link->compare = true;
	if (hello->flags & WH_HELLO_ASKS)
		link->answer = link->kick = true;
	if (hello->flags & WH_HELLO_ASKS)
		link->answering = (uint16_t)(hello->flags >> WH_HELLO_QUESTION);
	/* What answers an earlier question may have been sent before it left. */
	if (hello->flags & WH_HELLO_ANSWERS && link->doubt &&
	    (uint16_t)(hello->flags >> WH_HELLO_ANSWER) == link->question) {
		/* It was there before the look, and is there still: it does not grant it. */
		link->doubt = 0;
		link->refused = link->refusal;
		if (link->differs)
			link_differs(link, NULL);
		pthread_cond_broadcast(&link->weights->changed);
	}
}

static void link_leave(struct wh_link_to *link, int64_t now)
{
	struct wh_link_job *jobs[WH_FETCHES + 2] = { &link->greeting, &link->looker };

	link->leaving = true;
	link_forget(link);
	link_flush(link);
	if (link->running || link->request_count)
		return;
	for (int i = 0; i < WH_FETCHES; i++)
		jobs[i + 2] = &link->requests[i].job;
	for (int i = 0; i < WH_FETCHES + 2; i++) {
		wh_batch_free(jobs[i]->batch);
		jobs[i]->batch = NULL;
	}
	wh_peer_close(link->peer);
	link->peer = NULL;
	link->leaving = false;
	link->state = WH_LINK_IDLE;
	link_later(link, now);
}

/* Where others reach this member, as far as it knows: one that listens on all addresses has to be
 * found by the address that the others know. */
static const char *link_own_url(const struct wh_link_to *link)
{
	const char *url = wh_engine_url(link->weights->engine);
	bool any = !strncmp(url, "wherry://0.0.0.0:", 17) || !strncmp(url, "wherry://[::]:", 14);

	return any || strlen(url) >= WH_HELLO_URL ? "" : url;
}

static int greeting_start(struct wh_link_to *link, uint64_t flags)
{
	const struct wh_weights *weights = link->weights;
	struct wh_weights_hello hello = { .digest = { weights->digest[0], weights->digest[1] },
					  .control = wh_region_id(weights->control_region),
					  .control_bytes = weights->control_bytes,
					  .text = wh_region_id(weights->text_region),
					  .text_bytes = weights->text_bytes,
					  .flags = flags };
	uint8_t bytes[WH_HELLO_BYTES];
	int error = wh_link_job_batch(&link->greeting);

	snprintf(hello.url, sizeof(hello.url), "%s", link_own_url(link));
	wh_weights_hello_encode(&hello, bytes);
	return error ? error :
		       wh_batch_notify(link->greeting.batch, weights->tag, bytes, sizeof(bytes));
}

/* Tell the other that this member is there, or has something new. */
static void greeting_send(struct wh_link_to *link)
{
	uint64_t flags = 0;

	if (link->ask)
		flags |= WH_HELLO_ASKS | (uint64_t)link->question << WH_HELLO_QUESTION;
	if (link->answer)
		flags |= WH_HELLO_ANSWERS | (uint64_t)link->answering << WH_HELLO_ANSWER;

	link->kick = false;
	if (link_is_self(link)) {
		link->look = true;
	} else if (greeting_start(link, flags)) {
		link->kick = true;
	} else {
		link->ask = link->answer = false;
		wh_link_job_submit(&link->greeting);
	}
}

void wh_link_bye(struct wh_link_to *link, int64_t deadline)
{
	int64_t left = deadline - wh_now();

	if (link->state != WH_LINK_OPEN || !link->connected || link_is_self(link))
		return;
	if (link->greeting.running && (left <= 0 || wh_batch_wait_for(link->greeting.batch, left)))
		return;
	link->greeting.running =
		!greeting_start(link, WH_HELLO_LEAVES) && !wh_batch_submit(link->greeting.batch);
}

void wh_link_bye_wait(struct wh_link_to *link, int64_t deadline)
{
	int64_t left = deadline - wh_now();

	if (link->greeting.running)
		wh_batch_wait_for(link->greeting.batch, left > 0 ? left : 0);
}

void wh_link_drive(struct wh_link_to *link, int64_t now)
{
	int status;

	if (link->state == WH_LINK_IDLE && link->wanted && now >= link->again)
		link_open(link, now);
	if (link->state != WH_LINK_OPEN)
		return;
	status = wh_peer_status(link->peer);
	if (link->leaving || (status && status != -ECONNRESET) ||
	    (link->hello_epoch && link->hello_epoch != link->epoch)) {
		link_leave(link, now);
		return;
	}
	if (status) {
		/* The engine connects again. */
		if (link->connected)
			wh_link_fail(link, wh_error_text());
		link_forget(link);
		link_flush(link);
		return;
	}
	if (!link->connected) {
		link->weights->work++;
		link->connected = link->look = link->kick = true;
		link->known = false;
	}
	link_remind(link, now);
	if (link->kick && !link->greeting.running)
		greeting_send(link);
	if (link->doubt && now - link->doubt >= DOUBT_MOST)
		link_gone(link);
	if (link->refused || link->differs || link->gone)
		link_flush(link);
	if (!link->look || link->looker.running || !link->hello_epoch || link->gone ||
	    link->doubt || now < link->look_pause)
		return;
	link->look = false;
	if (!link->refused && !link->differs) {
		for (uint32_t i = 0; i < link->request_count; i++) {
			struct wh_fetch *request =
				&link->requests[(link->head_request + i) % WH_FETCHES];

			if (request->state == WH_FETCH_LANDED)
				request->state = WH_FETCH_CHECKING;
		}
		look_start(link, WH_LOOK_HEAD);
	} else if (link->compare) {
		link->compare = false;
		look_start(link, WH_LOOK_TEXT);
	}
}

int64_t wh_link_due(const struct wh_link_to *link, int64_t now)
{
	int64_t due = INT64_MAX;

	if (link->state == WH_LINK_IDLE && link->wanted)
		due = wh_time_next(due, link->again, now);
	if (link->doubt)
		due = wh_time_next(due, link->doubt + DOUBT_MOST, now);
	if (link->remind)
		due = wh_time_next(due, link->remind, now);
	if (link->look)
		due = wh_time_next(due, link->look_pause, now);
	if (link->first != WH_NO_STEP)
		due = wh_time_next(due, link->pause, now);
	return due;
}

void wh_link_close(struct wh_link_to *link)
{
	struct wh_link_job *jobs[WH_FETCHES + 2] = { &link->greeting, &link->looker };

	for (int i = 0; i < WH_FETCHES; i++)
		jobs[i + 2] = &link->requests[i].job;
	for (int i = 0; i < WH_FETCHES + 2; i++)
		if (jobs[i]->batch) {
			if (jobs[i]->running)
				wh_batch_cancel(jobs[i]->batch);
			wh_batch_free(jobs[i]->batch);
		}
	if (link->text)
		text_drop(link);
	if (link->peer)
		wh_peer_close(link->peer);
}
