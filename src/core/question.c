/* SPDX-License-Identifier: Apache-2.0 */
/* Questions about a peer's regions: sending them in parts, and taking the answers. */
#include "core/question.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/peer.h"
#include "core/remote.h"
#include "memory/region-table.h"
#include "net/control.h"
#include "util/list.h"
#include "wire/bytes.h"

#define FEW 32 /* ids or ranges in a question that needs no memory */

/* ---- sending ------------------------------------------------------------------------------- */

/* What a part of a question has: entries [from, from + count). */
static void question_encode_entries(const struct wh_asked *asked, size_t from, uint32_t count,
				    uint8_t *at)
{
	for (size_t i = from; i < from + count; i++) {
		if (asked->kind == WH_ASK_IDS) {
			at = wh_put64(at, asked->ids[i]);
		} else {
			wh_range_encode(at, &asked->ranges[i]);
			at += WH_RANGE_SIZE;
		}
	}
}

static uint32_t question_part(size_t left)
{
	return left < WH_QUESTION_MAX ? (uint32_t)left : WH_QUESTION_MAX;
}

/* Send the part of a question that begins at entry `from`. 0 or -ENOMEM. If the connection does not
 * take it, it is about to break, which ends all questions. */
static int question_send(struct wh_peer *peer, const struct wh_asked *asked, uint64_t token,
			 size_t from)
{
	uint8_t few[WH_QUESTION_HEAD + WH_NAME_MAX + FEW * WH_RANGE_SIZE], *bytes = few;
	struct wh_question question = { .token = token, .kind = asked->kind };
	size_t entry = 0, length;

	if (asked->kind == WH_ASK_NAME) {
		memcpy(question.name, asked->name, strnlen(asked->name, WH_NAME_MAX - 1));
		question.count = (uint32_t)strlen(question.name);
	} else {
		question.count = question_part(asked->count - from);
		question.cursor = asked->cursor;
		entry = asked->kind == WH_ASK_IDS ? 8 : WH_RANGE_SIZE;
	}
	if (asked->kind == WH_ASK_LIST)
		entry = 0;
	if (question.count > FEW && entry) {
		bytes = malloc(WH_QUESTION_HEAD + question.count * entry);
		if (!bytes)
			return -ENOMEM;
	}
	length = wh_question_encode(bytes, &question);
	if (entry) {
		question_encode_entries(asked, from, question.count, bytes + length);
		length += question.count * entry;
	}
	wh_control_send(&peer->control, WH_FRAME_LOOKUP, 0, bytes, length);
	if (bytes != few)
		free(bytes);
	return 0;
}

/* The next part: its token, and where it begins. Under peer.lock. */
static size_t question_advance(struct wh_peer *peer, struct wh_asked *asked)
{
	size_t from = asked->sent;

	asked->token = ++peer->question_token;
	asked->most = asked->kind == WH_ASK_NAME ? 1 : question_part(asked->count - from);
	asked->got = 0;
	if (asked->kind == WH_ASK_IDS || asked->kind == WH_ASK_ADDRESSES)
		asked->sent += asked->most;
	return from;
}

int wh_question_ask(struct wh_peer *peer, struct wh_asked *asked)
{
	int error = 0;
	size_t from;

	asked->sent = asked->found = 0;
	pthread_mutex_lock(&peer->lock);
	if (atomic_load(&peer->state) != WH_PEER_CONNECTED)
		error = -ECONNRESET;
	if (!error) {
		from = question_advance(peer, asked);
		error = question_send(peer, asked, asked->token, from);
	}
	asked->error = error;
	asked->ended = error;
	/* Still under the lock, so that the answer finds it. */
	if (!error)
		wh_list_append(&peer->questions, &asked->link);
	pthread_mutex_unlock(&peer->lock);
	return error;
}

void wh_question_withdraw(struct wh_asked *asked)
{
	wh_list_remove(&asked->link);
	asked->ended = true;
	asked->error = -ECANCELED;
}

/* ---- answers; on loop 0 --------------------------------------------------------------------- */

/* End a question, which is off the list. Under peer.lock; returns what has to be called then. */
static void question_end(struct wh_peer *peer, struct wh_asked *asked, int error)
{
	asked->error = error;
	asked->ended = true;
	if (asked->done) {
		pthread_mutex_unlock(&peer->lock);
		asked->done(asked, error);
		pthread_mutex_lock(&peer->lock);
	} else {
		pthread_cond_broadcast(&peer->changed);
	}
}

/* The question that a part with this token belongs to; NULL: it was withdrawn. Under peer.lock. */
static struct wh_asked *question_find(struct wh_peer *peer, uint64_t token)
{
	for (struct wh_list *l = peer->questions.next; l != &peer->questions; l = l->next) {
		struct wh_asked *asked = wh_container(l, struct wh_asked, link);

		if (asked->token == token)
			return asked;
	}
	return NULL;
}

/* Count a region of an answer, and keep it if that is a list. -EPROTO: it is one too many. */
static int question_count(struct wh_peer *peer, uint64_t token,
			  const struct wh_region_record *record)
{
	struct wh_asked *asked;
	int error = 0;

	pthread_mutex_lock(&peer->lock);
	asked = question_find(peer, token);
	if (asked && ++asked->got > asked->most)
		error = -EPROTO;
	else if (asked && asked->kind == WH_ASK_LIST)
		wh_remote_from_record(&asked->out[asked->found++], record);
	pthread_mutex_unlock(&peer->lock);
	return error;
}

/* Can a list go on at `next`? It has an end: the cursor counts the entries of the owner's table,
 * and a page before the last is full. */
static bool question_goes_on(const struct wh_asked *asked, uint64_t next)
{
	return next > asked->cursor && next - asked->cursor >= asked->got &&
	       !(next >> WH_REGION_TABLE_INDEX_BITS) && asked->got == asked->most;
}

/* An answer is complete: send the next part, or end the question. */
static int question_part_answered(struct wh_peer *peer, uint64_t token, uint64_t next)
{
	struct wh_asked *asked;
	int error = 0;
	size_t from;

	pthread_mutex_lock(&peer->lock);
	asked = question_find(peer, token);
	if (asked && asked->kind == WH_ASK_LIST && next && !question_goes_on(asked, next))
		error = -EPROTO;
	else if (asked && asked->sent < asked->count && asked->kind != WH_ASK_LIST) {
		from = question_advance(peer, asked);
		error = question_send(peer, asked, asked->token, from);
	} else if (asked) {
		asked->cursor = next;
		wh_list_remove(&asked->link);
		question_end(peer, asked, 0);
	}
	pthread_mutex_unlock(&peer->lock);
	return error;
}

int wh_question_relearn(struct wh_peer *peer)
{
	uint64_t ids[WH_QUESTION_MAX];
	struct wh_asked asked = { .kind = WH_ASK_IDS, .ids = ids };
	struct wh_region_entry copy;
	char name[WH_NAME_MAX];

	while (asked.count < WH_QUESTION_MAX &&
	       wh_region_table_next(&peer->regions, &peer->relearned, &copy, name))
		ids[asked.count++] = wh_region_entry_id(&copy);
	peer->relearns = asked.count == WH_QUESTION_MAX;
	return question_send(peer, &asked, 0, 0);
}

/* Was a question with this token sent, maybe on an earlier connection? */
static bool question_was_asked(struct wh_peer *peer, uint64_t token)
{
	bool asked;

	pthread_mutex_lock(&peer->lock);
	asked = token ? token <= peer->question_token : !peer->listed;
	pthread_mutex_unlock(&peer->lock);
	return asked;
}

int wh_question_answered(struct wh_peer *peer, const struct wh_frame *frame, const uint8_t *payload)
{
	const uint8_t *end = payload + frame->length, *at = payload + WH_REGIONS_HEAD;
	struct wh_region_record record;
	uint64_t token, next;
	int got, error;

	if (frame->length < WH_REGIONS_HEAD)
		return -EPROTO;
	token = wh_get64(payload);
	next = wh_get64(payload + 8);
	if (!question_was_asked(peer, token))
		return -EPROTO;
	while ((got = wh_region_decode(&at, end, &record)) == 1) {
		error = token ? question_count(peer, token, &record) : 0;
		if (!error)
			error = wh_remote_add(peer, &record);
		if (error)
			return error;
	}
	if (got < 0 || !(frame->flags & WH_FRAME_LAST))
		return got;
	if (token)
		return question_part_answered(peer, token, next);
	return peer->relearns ? wh_question_relearn(peer) : 1;
}

/* ---- answers that do not come; on loop 0 ----------------------------------------------------- */

/* Does a question wait that was sent before peer.ping? */
static bool question_waits(struct wh_peer *peer)
{
	bool waits = false;

	pthread_mutex_lock(&peer->lock);
	for (struct wh_list *l = peer->questions.next; l != &peer->questions; l = l->next)
		waits |= wh_container(l, struct wh_asked, link)->token <= peer->ping_behind;
	pthread_mutex_unlock(&peer->lock);
	return waits;
}

void wh_question_pinged(struct wh_peer *peer, int64_t now)
{
	if (peer->ping)
		return;
	peer->ping = now;
	pthread_mutex_lock(&peer->lock);
	peer->ping_behind = peer->question_token;
	pthread_mutex_unlock(&peer->lock);
}

int wh_question_ponged(struct wh_peer *peer, uint64_t number)
{
	if (!peer->ping || number != (uint64_t)peer->ping)
		return 0;
	peer->ping = 0;
	return question_waits(peer) ? -EPROTO : 0;
}

bool wh_question_is_late(struct wh_peer *peer, int64_t since)
{
	return peer->ping && peer->ping < since && question_waits(peer);
}

void wh_questions_fail(struct wh_peer *peer, int error)
{
	struct wh_list *link;

	pthread_mutex_lock(&peer->lock);
	while ((link = wh_list_take(&peer->questions)))
		question_end(peer, wh_container(link, struct wh_asked, link), error);
	pthread_mutex_unlock(&peer->lock);
}
