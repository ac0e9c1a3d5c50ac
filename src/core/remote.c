/* SPDX-License-Identifier: Apache-2.0 */
/* Remote regions: keeping what a peer has told of, and asking it for more: by name, address or key.
 */
#include "core/remote.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/engine.h"
#include "core/peer.h"
#include "core/progress.h"
#include "core/question.h"
#include "core/region.h"
#include "memory/region-table.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/config.h"
#include "util/error.h"
#include "util/list.h"
#include "util/turns.h"
#include "wire/wire.h"

/* ---- coming and going ----------------------------------------------------------------------- */

static struct wh_remote_region *remote_at(struct wh_peer *peer, uint64_t id)
{
	return (struct wh_remote_region *)wh_region_table_at(&peer->regions,
							     wh_region_table_index(id));
}

static bool remote_is_same(const struct wh_region_entry *entry,
			   const struct wh_region_record *record)
{
	return entry->address == record->address && entry->length == record->length &&
	       entry->access == record->access && entry->kind == record->kind &&
	       entry->flags == record->flags &&
	       !strcmp(entry->name ? entry->name : "", record->name);
}

/* Remove an older region that has the index or name of a new one: a peer does not send REMOVE for
 * regions that it unregistered while the connection was broken. */
static int remote_evict(struct wh_peer *peer, const struct wh_region_entry *entry)
{
	const struct wh_remote_region *region = (const struct wh_remote_region *)entry;

	if (atomic_load(&entry->id) && region->round == peer->list_round)
		return -EPROTO;
	return wh_remote_remove(peer, wh_region_entry_id(entry), entry->address, entry->length,
				wh_remote_patience(peer));
}

static int remote_evict_by_name(struct wh_peer *peer, const char *name)
{
	struct wh_region_entry copy;
	char text[WH_NAME_MAX];

	if (!*name || !wh_region_table_by_name(&peer->regions, name, &copy, text))
		return 0;
	return remote_evict(peer, wh_region_table_at(&peer->regions, copy.index));
}

int wh_remote_add(struct wh_peer *peer, const struct wh_region_record *record)
{
	struct wh_remote_region *region = remote_at(peer, record->id);
	char *name = NULL;
	int error;

	if (!record->access)
		return -EPROTO;
	if (region && region->entry.used) {
		if (atomic_load(&region->entry.id) == record->id) {
			region->round = peer->list_round;
			return remote_is_same(&region->entry, record) ? 0 : -EPROTO;
		}
		error = remote_evict(peer, &region->entry);
		if (error)
			return error;
	}
	error = remote_evict_by_name(peer, record->name);
	if (error)
		return error;
	if (*record->name) {
		name = strdup(record->name);
		if (!name)
			return -ENOMEM;
	}
	region = (struct wh_remote_region *)wh_region_table_claim(&peer->regions, record->id);
	if (!region) {
		error = -errno;
		free(name);
		return error;
	}
	region->entry.address = record->address;
	region->entry.length = record->length;
	region->entry.access = record->access;
	region->entry.kind = record->kind;
	region->entry.flags = record->flags;
	region->entry.name = name;
	for (unsigned i = 0; i < WH_TRANSPORT_COUNT; i++)
		atomic_store_explicit(&region->transport[i], NULL, memory_order_relaxed);
	region->round = peer->list_round;
	error = wh_region_table_publish(&peer->regions, &region->entry, record->id);
	return error == -EEXIST ? -EPROTO : error;
}

int64_t wh_remote_patience(const struct wh_peer *peer)
{
	/* Without threads, the one that has entered a region may be this thread, which gives a turn
	 * while it waits for the peer. */
	return peer->engine->turns ?
		       0 :
		       wh_deadline(peer->engine->config.number[WH_SETTING_TIMEOUT] * WH_MS / 2);
}

int wh_remote_remove(struct wh_peer *peer, uint64_t id, uint64_t address, uint64_t length,
		     int64_t deadline)
{
	struct wh_remote_region *region = remote_at(peer, id);

	if (region && (!region->entry.used || wh_region_entry_id(&region->entry) != id))
		region = NULL;
	if (region) {
		address = region->entry.address;
		length = region->entry.length;
		wh_region_table_close(&peer->regions, &region->entry, id);
		if (!wh_region_entry_left(&region->entry, deadline))
			return -EBUSY;
	}
	for (unsigned i = 0; i < WH_TRANSPORT_COUNT; i++) {
		if (peer->opened[i] && wh_transport(i)->region_going(peer, peer->transport[i],
								     address, length, deadline))
			return -EBUSY;
	}
	for (unsigned i = 0; region && i < WH_TRANSPORT_COUNT; i++) {
		if (peer->opened[i])
			wh_transport(i)->region_gone(peer, peer->transport[i], region);
	}
	if (region)
		wh_region_table_free(&peer->regions, &region->entry);
	return 0;
}

void wh_remote_clear(struct wh_peer *peer)
{
	/* By index: wh_region_table_next() skips regions that were closed but still in use. With no
	 * batches left, nobody uses them now. */
	for (uint32_t index = 0; index < peer->regions.high; index++) {
		struct wh_region_entry *entry = wh_region_table_at(&peer->regions, index);

		if (!entry)
			index = wh_region_table_gap(index);
		else if (entry->used)
			wh_remote_remove(peer, wh_region_entry_id(entry), entry->address,
					 entry->length, wh_remote_patience(peer));
	}
}

void wh_remote_wake(struct wh_engine *engine)
{
	for (struct wh_list *l = engine->peers.next; l != &engine->peers; l = l->next) {
		struct wh_peer *peer = wh_container(l, struct wh_peer, link);

		if (!peer->self)
			continue;
		pthread_mutex_lock(&peer->lock);
		pthread_cond_broadcast(&peer->changed);
		pthread_mutex_unlock(&peer->lock);
	}
	wh_turns_wake(engine->turns);
}

/* ---- finding -------------------------------------------------------------------------------- */

uint8_t wh_remote_access(const struct wh_peer *peer, const struct wh_region_entry *entry)
{
	return peer->self ? WH_ACCESS_BYTES : entry->access;
}

/* A peer that is this engine itself has the local regions, published or not. */
static struct wh_region_table *remote_table(struct wh_peer *peer)
{
	return peer->self ? &peer->engine->regions : &peer->regions;
}

static void remote_describe(const struct wh_peer *peer, const struct wh_region_entry *copy,
			    const char name[WH_NAME_MAX], struct wh_remote *out)
{
	memset(out, 0, sizeof(*out));
	out->id = wh_region_entry_id(copy);
	out->address = copy->address;
	out->length = copy->length;
	out->access = wh_remote_access(peer, copy);
	out->kind = copy->kind;
	memcpy(out->name, name, WH_NAME_MAX);
}

void wh_remote_from_record(struct wh_remote *out, const struct wh_region_record *record)
{
	memset(out, 0, sizeof(*out));
	out->id = record->id;
	out->address = record->address;
	out->length = record->length;
	out->access = record->access;
	out->kind = record->kind;
	memcpy(out->name, record->name, WH_NAME_MAX);
}

/* What to find: a region by its name, its id, or addresses that it holds. */
struct wanted {
	uint8_t kind; /* enum wh_question_kind */
	const char *name;
	uint64_t id;
	struct wh_range range;
};

/* Copy a region that is known. `name` has room for WH_NAME_MAX bytes. */
static bool remote_find(struct wh_peer *peer, const struct wanted *wanted,
			struct wh_region_entry *copy, char *name)
{
	struct wh_region_table *table = remote_table(peer);

	if (wanted->kind == WH_ASK_NAME)
		return wh_region_table_by_name(table, wanted->name, copy, name);
	if (wanted->kind == WH_ASK_ADDRESSES)
		return wh_region_table_by_address(
			table, wanted->range.address, wanted->range.length,
			peer->self ? 0 : wanted->range.access, NULL, copy, name);
	return wh_region_table_by_id(table, wanted->id, copy, name);
}

static bool remote_look_up(struct wh_peer *peer, const struct wanted *wanted, struct wh_remote *out)
{
	struct wh_region_entry copy;
	char name[WH_NAME_MAX];

	if (!remote_find(peer, wanted, &copy, name) || !wh_remote_access(peer, &copy))
		return false;
	remote_describe(peer, &copy, name, out);
	return true;
}

/* How long a thread waits for a region or an answer. */
struct patience {
	bool late; /* not any longer */
	bool answer_only; /* for the peer's answer, not until the region is registered */
	int64_t deadline;
};

/* Wait until something about the peer has changed. Under peer.lock. */
static void remote_wait_change(struct wh_peer *peer, struct patience *patience)
{
	patience->late =
		wh_engine_cond_wait(peer->engine, &peer->changed, &peer->lock, patience->deadline);
}

/* The region is not known, and the peer is connected: ask for it, or wait. Under peer.lock, which
 * it may release meanwhile. 0: look again; -ENOENT. */
static int remote_pursue(struct wh_peer *peer, const struct wanted *wanted, struct wh_asked *asked,
			 uint64_t *registered, struct patience *patience)
{
	bool asks = asked->token && !asked->ended;

	if (patience->late)
		return -ENOENT;
	if (!peer->self && !asks &&
	    (!asked->token || asked->error || peer->registered != *registered)) {
		*registered = peer->registered;
		pthread_mutex_unlock(&peer->lock);
		wh_question_ask(peer, asked);
		pthread_mutex_lock(&peer->lock);
		return 0;
	}
	/* A region with this id is registered already, or never will be. */
	if (!asks && (patience->answer_only || (wanted->kind == WH_ASK_IDS && !peer->self)))
		return -ENOENT;
	remote_wait_change(peer, patience);
	return 0;
}

/* Find a region that is known; ask the peer for one that is not; wait until it is registered. 0;
 * -ENOENT, without a text; or wh_peer_check()'s error. */
static int remote_await(struct wh_peer *peer, const struct wanted *wanted, int64_t timeout,
			struct wh_remote *out)
{
	struct patience patience = { !timeout, timeout == WH_ANSWER,
				     timeout == WH_ANSWER ? INT64_MAX : wh_deadline(timeout) };
	struct wh_asked asked = { .kind = wanted->kind,
				  .name = wanted->name,
				  .ids = &wanted->id,
				  .ranges = &wanted->range,
				  .count = wanted->kind == WH_ASK_NAME ? 0 : 1 };
	uint64_t registered = 0;
	int error = 0;

	pthread_mutex_lock(&peer->lock);
	while (!error) {
		uint32_t state = atomic_load(&peer->state);

		/* A lost peer may come back before the deadline. */
		if (state != WH_PEER_CONNECTED &&
		    (patience.late || patience.answer_only || state >= WH_PEER_STALE)) {
			/* wh_peer_check() takes the lock; if the peer came back meanwhile, go on.
			 */
			pthread_mutex_unlock(&peer->lock);
			error = wh_peer_check(peer);
			pthread_mutex_lock(&peer->lock);
		} else if (state != WH_PEER_CONNECTED) {
			remote_wait_change(peer, &patience);
		} else if (remote_look_up(peer, wanted, out)) {
			break;
		} else {
			error = remote_pursue(peer, wanted, &asked, &registered, &patience);
		}
	}
	if (asked.token && !asked.ended)
		wh_question_withdraw(&asked);
	pthread_mutex_unlock(&peer->lock);
	return error;
}

/* Ask, and wait for the answer: again if the connection breaks and comes back meanwhile. 0,
 * -ETIMEDOUT, -ENOMEM, or wh_peer_check()'s error. */
static int remote_ask(struct wh_peer *peer, struct wh_asked *asked, int64_t deadline,
		      const char *call)
{
	struct patience patience = { .deadline = deadline };
	bool late;
	int error;

	do {
		error = wh_question_ask(peer, asked);
		if (error == -ENOMEM)
			return wh_fail(ENOMEM, "%s: no memory", call);
		pthread_mutex_lock(&peer->lock);
		while (!asked->ended && !patience.late)
			remote_wait_change(peer, &patience);
		late = !asked->ended;
		if (late)
			wh_question_withdraw(asked);
		pthread_mutex_unlock(&peer->lock);
		if (late)
			return wh_fail(ETIMEDOUT, "%s: %s does not answer", call,
				       peer->welcome.name);
		error = asked->error ? wh_peer_check(peer) : 0;
	} while (!error && asked->error);
	return error;
}

int wh_remote_learn(struct wh_peer *peer, const uint64_t *ids, size_t count, int64_t deadline,
		    const char *call)
{
	struct wh_asked asked = { .kind = WH_ASK_IDS };
	uint64_t *unknown;
	int error = 0;

	if (peer->self || !count)
		return 0;
	unknown = malloc(count * sizeof(*unknown));
	if (!unknown)
		return wh_fail(ENOMEM, "%s: no memory", call);
	for (size_t i = 0; i < count; i++) {
		struct wh_region_entry *entry = wh_region_entry_enter(&peer->regions, ids[i]);

		if (entry)
			wh_region_entry_leave(entry);
		else
			unknown[asked.count++] = ids[i];
	}
	asked.ids = unknown;
	if (asked.count)
		error = remote_ask(peer, &asked, deadline, call);
	free(unknown);
	return error;
}

static int remote_guard(const struct wh_peer *peer, const char *call, int64_t timeout)
{
	int error;

	if (!peer)
		return wh_fail(EINVAL, "%s: peer is NULL", call);
	error = wh_engine_guard(peer->engine, call);
	if (error)
		return error;
	if (timeout < 0 && timeout != WH_ANSWER)
		return wh_fail(EINVAL, "%s: timeout is negative; WH_FOREVER waits for ever", call);
	if (timeout && wh_engine_inside(peer->engine))
		return wh_fail(EDEADLK, "%s: waiting in one of the engine's own threads", call);
	return 0;
}

int wh_peer_find(struct wh_peer *peer, const char *name, int64_t timeout, struct wh_remote *out)
{
	const struct wanted wanted = { .kind = WH_ASK_NAME, .name = name };
	int error = remote_guard(peer, "wh_peer_find", timeout);
	struct wh_remote found;

	if (error)
		return error;
	if (!name || !out || !*name)
		return wh_fail(EINVAL, "wh_peer_find: %s",
			       !name ? "name is NULL" :
			       !out  ? "out is NULL" :
				       "name is empty");
	/* What is not a name is the name of no region, and cannot be asked for. */
	error = wh_region_name_is_valid(name) ? remote_await(peer, &wanted, timeout, &found) :
						-ENOENT;
	if (error == -ENOENT)
		return wh_fail(ENOENT, "wh_peer_find: %s publishes no region \"%.70s\"",
			       peer->welcome.name, name);
	if (!error)
		*out = found;
	return error;
}

int wh_peer_lookup(struct wh_peer *peer, uint64_t address, uint64_t length, int64_t timeout,
		   struct wh_remote *out, uint64_t *offset)
{
	const struct wanted wanted = { .kind = WH_ASK_ADDRESSES,
				       .range = { address, length, WH_ACCESS_BYTES } };
	int error = remote_guard(peer, "wh_peer_lookup", timeout);
	struct wh_remote found;

	if (error)
		return error;
	if (!out || !offset || !length)
		return wh_fail(EINVAL, "wh_peer_lookup: %s",
			       !length ? "length is 0" :
			       out     ? "offset is NULL" :
					 "out is NULL");
	error = address <= UINT64_MAX - length ? remote_await(peer, &wanted, timeout, &found) :
						 -ENOENT;
	if (error == -ENOENT)
		return wh_fail(ENOENT,
			       "wh_peer_lookup: %s publishes no region that holds %#llx and %llu "
			       "bytes",
			       peer->welcome.name, (unsigned long long)address,
			       (unsigned long long)length);
	if (error)
		return error;
	*out = found;
	*offset = address - found.address;
	return 0;
}

/* ---- listing -------------------------------------------------------------------------------- */

/* The regions of this engine itself. Returns how many. */
static size_t remote_list_own(struct wh_peer *peer, uint64_t *cursor, struct wh_remote *out,
			      size_t room)
{
	struct wh_region_entry copy;
	char name[WH_NAME_MAX];
	size_t count = 0;

	while (count < room) {
		if (!wh_region_table_next(&peer->engine->regions, cursor, &copy, name)) {
			*cursor = 0;
			break;
		}
		remote_describe(peer, &copy, name, &out[count++]);
	}
	return count;
}

int wh_peer_list(struct wh_peer *peer, uint64_t *cursor, struct wh_remote *out, size_t *count,
		 int64_t timeout)
{
	int error = remote_guard(peer, "wh_peer_list", timeout);
	struct wh_asked asked = { .kind = WH_ASK_LIST, .out = out };

	if (error)
		return error;
	if (!cursor || !out || !count || !*count || !timeout)
		return wh_fail(EINVAL, "wh_peer_list: %s",
			       !cursor ? "cursor is NULL" :
			       !out    ? "out is NULL" :
			       !count  ? "count is NULL" :
			       !*count ? "count is 0" :
					 "timeout is 0; WH_ANSWER waits for the peer's answer");
	error = wh_peer_check(peer);
	if (error)
		return error;
	if (peer->self) {
		*count = remote_list_own(peer, cursor, out, *count);
		return 0;
	}
	asked.cursor = *cursor;
	asked.count = *count < WH_QUESTION_MAX ? *count : WH_QUESTION_MAX;
	error = remote_ask(peer, &asked, timeout == WH_ANSWER ? INT64_MAX : wh_deadline(timeout),
			   "wh_peer_list");
	if (error)
		return error;
	*cursor = asked.cursor;
	*count = asked.found;
	return 0;
}

/* ---- keys ----------------------------------------------------------------------------------- */

static int remote_decode_key(struct wh_peer *peer, const void *key, size_t length,
			     struct wh_region_record *record)
{
	uint64_t epoch, expected;
	int error = wh_key_decode(key, length, &epoch, record);

	if (error == -EPROTONOSUPPORT)
		return wh_fail(EPROTONOSUPPORT,
			       "wh_peer_unpack_key: the key was made by a newer version");
	if (error)
		return wh_fail(EINVAL, "wh_peer_unpack_key: these %zu bytes are not a key", length);
	pthread_mutex_lock(&peer->lock);
	expected = peer->welcome.epoch;
	pthread_mutex_unlock(&peer->lock);
	if (epoch != expected)
		return wh_fail(ESTALE,
			       "wh_peer_unpack_key: the key is not of %s as it runs now: another "
			       "engine made it, or %s was restarted since; export a new key",
			       peer->welcome.name, peer->welcome.name);
	return 0;
}

/* A key that differs from what the peer publishes was tampered with. Its access is the union over
 * all peers, so this peer may have less. */
static bool remote_has_key(const struct wh_remote *found, const struct wh_region_record *record)
{
	return found->address == record->address && found->length == record->length &&
	       !(found->access & ~record->access) && found->kind == record->kind &&
	       !strcmp(found->name, record->name);
}

int wh_peer_unpack_key(struct wh_peer *peer, const void *key, size_t length, int64_t timeout,
		       struct wh_remote *out)
{
	int error = remote_guard(peer, "wh_peer_unpack_key", timeout);
	struct wanted wanted = { .kind = WH_ASK_IDS };
	struct wh_region_record record;
	struct wh_remote found;

	if (error)
		return error;
	if (!key || !out)
		return wh_fail(EINVAL, "wh_peer_unpack_key: %s is NULL", key ? "out" : "key");
	error = remote_decode_key(peer, key, length, &record);
	if (error)
		return error;
	wanted.id = record.id;
	error = remote_await(peer, &wanted, timeout, &found);
	if (error == -ENOENT && !timeout && !peer->self) {
		wh_remote_from_record(out, &record); /* believed: submitting asks */
		return 0;
	}
	if (error == -ENOENT)
		return wh_fail(ENOENT,
			       "wh_peer_unpack_key: %s does not publish region %#llx of this key",
			       peer->welcome.name, (unsigned long long)record.id);
	if (error)
		return error;
	if (!remote_has_key(&found, &record))
		return wh_fail(EINVAL,
			       "wh_peer_unpack_key: the key does not match region %#llx of %s",
			       (unsigned long long)record.id, peer->welcome.name);
	*out = found;
	return 0;
}
