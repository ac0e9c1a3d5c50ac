/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What sessions know of this engine's regions: answering their questions, and telling those that
 * are concerned when a region comes or goes.
 *
 * A session learns of a region by an answer, or by asking for its memory. It is told when that
 * region goes. A session that connects to memory directly may also map regions that it never asked
 * for, because a mapping shows a whole allocation: it is told of every region of shared memory that
 * goes.
 *
 * A question that finds nothing leaves a bit in wh_session.missed. A region that is registered
 * later and may answer it is hinted at (REGISTERED), once; the session asks again.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/engine.h"
#include "core/region.h"
#include "core/session.h"
#include "gpu/staging.h"
#include "memory/region-table.h"
#include "net/control.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/list.h"
#include "util/turns.h"
#include "wire/bytes.h"
#include "wire/wire.h"

#define HOLDERS 64 /* sessions waited for after one walk over all of them */
#define ANSWER_MAX (64u << 10) /* bytes of records in a frame */

/* ---- what a session knows ------------------------------------------------------------------- */

int wh_session_learn(struct wh_session *session, const struct wh_region_entry *entry)
{
	uint32_t word = entry->index / 64, words = session->learned_words;
	uint64_t *grown;

	if (word >= words) {
		words = word + 1 > 2 * words ? word + 1 : 2 * words;
		grown = realloc(session->learned, words * sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		memset(grown + session->learned_words, 0,
		       (words - session->learned_words) * sizeof(*grown));
		session->learned = grown;
		session->learned_words = words;
	}
	session->learned[word] |= UINT64_C(1) << entry->index % 64;
	if (session->stages && wh_kind_on_gpu(entry->kind))
		wh_warm_up_region(session->engine->early, wh_region_entry_id(entry));
	return 0;
}

bool wh_session_knows(const struct wh_session *session, const struct wh_region_entry *entry)
{
	uint32_t word = entry->index / 64;

	return word < session->learned_words &&
	       session->learned[word] & UINT64_C(1) << entry->index % 64;
}

/* ---- answering questions; under engine.lock -------------------------------------------------- */

/* An answer while it is written: it is sent in several frames if need be. */
struct answer {
	struct wh_session *session;
	uint8_t *bytes;
	size_t length;
	uint64_t token;
	int error; /* the first one, of memory or of sending */
};

static void answer_begin_frame(struct answer *answer)
{
	wh_put64(wh_put64(answer->bytes, answer->token), 0);
	answer->length = WH_REGIONS_HEAD;
}

static void answer_send(struct answer *answer, uint16_t flags)
{
	if (!answer->error)
		answer->error = wh_control_send(&answer->session->control, WH_FRAME_REGIONS, flags,
						answer->bytes, answer->length);
	answer_begin_frame(answer);
}

/* Add a region that the session may use, and which it knows from now on. */
static void answer_add(struct answer *answer, const struct wh_region *region, uint8_t access)
{
	struct wh_region_record record;

	if (answer->error)
		return;
	answer->error = wh_session_learn(answer->session, &region->entry);
	if (answer->error)
		return;
	wh_region_record(region, &record);
	record.access = access;
	answer->length += wh_region_encode(answer->bytes + answer->length, &record);
	if (answer->length + WH_REGION_RECORD_MAX > ANSWER_MAX)
		answer_send(answer, 0);
}

/* The region of an index in the engine's table, whose entry is in use under engine.lock. */
static const struct wh_region *region_at(struct wh_engine *engine, uint32_t index)
{
	return wh_container(wh_region_table_at(&engine->regions, index), struct wh_region, entry);
}

static void answer_ids(struct answer *answer, const struct wh_question *question)
{
	struct wh_engine *engine = answer->session->engine;

	for (uint32_t i = 0; i < question->count; i++) {
		struct wh_region_entry *entry =
			wh_region_entry_enter(&engine->regions, wh_question_id(question, i));
		uint8_t access = entry ? wh_session_access(answer->session, entry) : 0;

		if (access)
			answer_add(answer, wh_container(entry, struct wh_region, entry), access);
		if (entry)
			wh_region_entry_leave(entry);
	}
}

/* What a question leaves in wh_session.missed, and a region that may answer it has as well. Names
 * share the bits below. */
#define MISSED_ADDRESS (UINT64_C(1) << 63)
#define MISSED_MEMORY (UINT64_C(1) << 62)

static uint64_t missed_name(const char *name)
{
	uint32_t hash = 2166136261u; /* FNV-1a */

	for (; *name; name++)
		hash = (hash ^ (unsigned char)*name) * 16777619u;
	return UINT64_C(1) << hash % 62;
}

static void answer_name(struct answer *answer, const struct wh_question *question)
{
	struct wh_session *session = answer->session;
	struct wh_region_entry copy;
	char name[WH_NAME_MAX];
	uint8_t access = 0;

	if (wh_region_table_by_name(&session->engine->regions, question->name, &copy, name))
		access = wh_session_access(
			session, wh_region_table_at(&session->engine->regions, copy.index));
	if (access)
		answer_add(answer, region_at(session->engine, copy.index), access);
	else
		session->missed |= missed_name(question->name);
}

/* Lets regions pass that grant the session one of the rights. */
struct session_filter {
	struct wh_region_filter filter;
	const struct wh_session *session;
	uint8_t access;
};

static bool session_filter_passes(const struct wh_region_filter *filter,
				  const struct wh_region_entry *entry)
{
	const struct session_filter *of = wh_container(filter, struct session_filter, filter);

	return wh_session_access(of->session, entry) & of->access;
}

static int answer_addresses(struct answer *answer, const struct wh_question *question)
{
	struct wh_session *session = answer->session;
	struct session_filter of = { { session_filter_passes }, session, 0 };
	struct wh_region_entry copy;
	char name[WH_NAME_MAX];
	struct wh_range range;

	for (uint32_t i = 0; i < question->count; i++) {
		const struct wh_region *region;

		if (!wh_question_range(question, i, &range))
			return -EPROTO;
		of.access = range.access;
		if (!wh_region_table_by_address(&session->engine->regions, range.address,
						range.length, 0, &of.filter, &copy, name)) {
			session->missed |= MISSED_ADDRESS;
			continue;
		}
		region = region_at(session->engine, copy.index);
		answer_add(answer, region, wh_session_access(session, &region->entry));
	}
	return 0;
}

/* Returns where the next page begins; 0: there is none. */
static uint64_t answer_list(struct answer *answer, const struct wh_question *question)
{
	struct wh_session *session = answer->session;
	struct wh_region_entry copy;
	uint64_t cursor = question->cursor;
	char name[WH_NAME_MAX];
	uint32_t count = 0;

	while (count < question->count) {
		const struct wh_region *region;
		uint8_t access;

		if (!wh_region_table_next(&session->engine->regions, &cursor, &copy, name))
			return 0;
		region = region_at(session->engine, copy.index);
		access = wh_session_access(session, &region->entry);
		if (!access || !wh_region_is_listed(region, session->hello.name))
			continue;
		answer_add(answer, region, access);
		count++;
	}
	return cursor;
}

int wh_session_lookup(struct wh_session *session, const uint8_t *payload, size_t length)
{
	struct answer answer = { .session = session };
	struct wh_question question;
	uint64_t next = 0;
	int error = wh_question_decode(payload, length, &question);

	if (error)
		return error;
	answer.bytes = malloc(ANSWER_MAX);
	if (!answer.bytes)
		return -ENOMEM;
	answer.token = question.token;
	answer_begin_frame(&answer);
	pthread_mutex_lock(&session->engine->lock);
	if (question.kind == WH_ASK_IDS)
		answer_ids(&answer, &question);
	else if (question.kind == WH_ASK_NAME)
		answer_name(&answer, &question);
	else if (question.kind == WH_ASK_ADDRESSES)
		error = answer_addresses(&answer, &question);
	else
		next = answer_list(&answer, &question);
	/* Still under the lock: a REMOVE of what was found comes after it. */
	wh_put64(answer.bytes + 8, next);
	if (!error)
		answer_send(&answer, WH_FRAME_LAST);
	pthread_mutex_unlock(&session->engine->lock);
	free(answer.bytes);
	return error ? error : answer.error;
}

void wh_session_misses_memory(struct wh_session *session)
{
	session->missed |= MISSED_MEMORY;
}

/* ---- regions that come and go; under engine.lock --------------------------------------------- */

void wh_sessions_publish(struct wh_engine *engine, const struct wh_region *region)
{
	uint64_t mask = MISSED_ADDRESS;

	if (region->entry.name)
		mask |= missed_name(region->entry.name);
	if (region->memory)
		mask |= MISSED_MEMORY;
	/* Ignore errors of sending: a broken connection ends the session elsewhere. */
	for (struct wh_list *l = engine->sessions.next; l != &engine->sessions; l = l->next) {
		struct wh_session *session = wh_container(l, struct wh_session, link);

		if (!(session->missed & mask) || !wh_session_access(session, &region->entry))
			continue;
		/* It asks for all that it misses again. */
		session->missed = 0;
		wh_control_send(&session->control, WH_FRAME_REGISTERED, 0, NULL, 0);
	}
}

uint64_t wh_sessions_remove(struct wh_engine *engine, const struct wh_region *region)
{
	const struct wh_region_entry *entry = &region->entry;
	const struct wh_removal removal = {
		.number = ++engine->removes,
		.id = wh_region_entry_id(entry),
		.address = entry->address,
		.length = entry->length,
	};
	uint8_t bytes[WH_REMOVAL_SIZE];
	bool maps = entry->flags & WH_REGION_MAPPABLE;

	wh_removal_encode(bytes, &removal);
	for (struct wh_list *l = engine->sessions.next; l != &engine->sessions; l = l->next) {
		struct wh_session *session = wh_container(l, struct wh_session, link);
		bool knows = wh_session_knows(session, entry);

		if (!knows && !(maps && atomic_load(&session->touches)))
			continue;
		if (knows)
			session->learned[entry->index / 64] &= ~(UINT64_C(1) << entry->index % 64);
		if (atomic_load(&session->removed) == atomic_load(&session->removes)) {
			session->unconfirmed = session->due = removal.number;
			session->due_since = wh_now();
		}
		atomic_store(&session->removes, removal.number);
		wh_control_send(&session->control, WH_FRAME_REMOVE, 0, bytes, sizeof(bytes));
	}
	return removal.number;
}

int wh_session_removed(struct wh_session *session, const uint8_t *payload, size_t length)
{
	uint64_t number = length == 8 ? wh_get64(payload) : 0;
	int error = 0;

	pthread_mutex_lock(&session->engine->lock);
	if (number <= atomic_load(&session->removed) || number > atomic_load(&session->removes)) {
		error = -EPROTO;
	} else {
		atomic_store(&session->removed, number);
		session->unconfirmed = number + 1;
		if (number >= session->due) {
			session->due = atomic_load(&session->removes);
			session->due_since = wh_now();
		}
	}
	pthread_mutex_unlock(&session->engine->lock);
	return error;
}

int64_t wh_session_owes(struct wh_session *session)
{
	int64_t since = 0;

	pthread_mutex_lock(&session->engine->lock);
	if ((atomic_load(&session->touches) || atomic_load(&session->keyed)) &&
	    atomic_load(&session->removed) < atomic_load(&session->removes))
		since = session->due_since;
	pthread_mutex_unlock(&session->engine->lock);
	return since;
}

/* ---- waiting until they are released --------------------------------------------------------- */

/* May the session still touch a region of the first `removes` that were withdrawn? It confirms in
 * order, so it may if the first that it has not confirmed is one of them. That this need not be the
 * region in question costs at most the wait for that one. Under engine.lock. */
static bool session_holds(const struct wh_session *session, uint64_t removes, bool keyed)
{
	return (atomic_load(&session->touches) || (keyed && atomic_load(&session->keyed))) &&
	       atomic_load(&session->removed) < atomic_load(&session->removes) &&
	       session->unconfirmed <= removes;
}

/* The ids of the first sessions that hold a removed region; returns how many of at most `most`. */
static unsigned sessions_holding(struct wh_engine *engine, uint64_t removes, bool keyed,
				 uint64_t *ids, unsigned most)
{
	unsigned count = 0;

	pthread_mutex_lock(&engine->lock);
	for (struct wh_list *l = engine->sessions.next; l != &engine->sessions && count < most;
	     l = l->next) {
		const struct wh_session *session = wh_container(l, struct wh_session, link);

		if (session_holds(session, removes, keyed))
			ids[count++] = session->id;
	}
	pthread_mutex_unlock(&engine->lock);
	return count;
}

/* True: the session has ended or answered. Else `name` is its name. */
static bool session_released(struct wh_engine *engine, uint64_t id, uint64_t removes, bool keyed,
			     char name[WH_NAME_MAX])
{
	const struct wh_session *session;
	bool held;

	pthread_mutex_lock(&engine->lock);
	session = wh_session_find(engine, id);
	held = session && session_holds(session, removes, keyed);
	if (held)
		memcpy(name, session->hello.name, WH_NAME_MAX);
	pthread_mutex_unlock(&engine->lock);
	return !held;
}

/* All sessions are walked once for each HOLDERS of them that hold the region; each of these is then
 * polled by its id, so that waiting for one does not walk past thousands of others. */
int wh_sessions_released(struct wh_engine *engine, uint64_t id, uint64_t removes, int64_t courtesy,
			 int64_t deadline)
{
	int64_t pause = 20000; /* ns */
	uint64_t holders[HOLDERS];
	char name[WH_NAME_MAX];
	unsigned count;

	while ((count = sessions_holding(engine, removes, wh_now() < courtesy, holders, HOLDERS))) {
		for (unsigned i = 0; i < count;) {
			if (session_released(engine, holders[i], removes, wh_now() < courtesy,
					     name)) {
				i++;
				continue;
			}
			if (wh_now() > deadline)
				return wh_fail(EBUSY,
					       "region %#llx: %s can still access it; it is no "
					       "longer published, try again",
					       (unsigned long long)id, name);
			wh_turns_pause(engine->turns, pause);
			if (pause < WH_MS)
				pause *= 2;
		}
	}
	return 0;
}
