/* SPDX-License-Identifier: Apache-2.0 */
/* Remote regions: keeping what a peer publishes, and finding it by name, address or key. */
#include "core/remote.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/engine.h"
#include "core/peer.h"
#include "core/region.h"
#include "memory/region-table.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/config.h"
#include "util/error.h"
#include "util/list.h"
#include "wire/wire.h"

#define ACCESS_ALL (WH_ACCESS_READ | WH_ACCESS_WRITE)

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
	return wh_remote_remove(peer, wh_region_entry_id(entry));
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
		if (atomic_load(&region->entry.id) == record->id)
			return remote_is_same(&region->entry, record) ? 0 : -EPROTO;
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
		free(name);
		return -EPROTO;
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
	if (error)
		return error == -EEXIST ? -EPROTO : error;
	for (unsigned i = 0; i < WH_TRANSPORT_COUNT; i++) {
		if (peer->opened[i])
			wh_transport(i)->region_came(peer, peer->transport[i], region);
	}
	return 0;
}

int wh_remote_remove(struct wh_peer *peer, uint64_t id)
{
	int64_t patience = peer->engine->config.number[WH_SETTING_TIMEOUT] * WH_MS / 2;
	int64_t deadline = wh_deadline(patience);
	struct wh_remote_region *region = remote_at(peer, id);

	if (!region || !region->entry.used || wh_region_entry_id(&region->entry) != id)
		return 0;
	wh_region_table_close(&peer->regions, &region->entry, id);
	if (!wh_region_entry_left(&region->entry, deadline))
		return -EBUSY;
	for (unsigned i = 0; i < WH_TRANSPORT_COUNT; i++) {
		if (peer->opened[i] &&
		    wh_transport(i)->region_going(peer, peer->transport[i], region, deadline))
			return -EBUSY;
	}
	for (unsigned i = 0; i < WH_TRANSPORT_COUNT; i++) {
		if (peer->opened[i])
			wh_transport(i)->region_gone(peer, peer->transport[i], region);
	}
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
			wh_remote_remove(peer, wh_region_entry_id(entry));
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
}

/* ---- finding -------------------------------------------------------------------------------- */

uint8_t wh_remote_access(const struct wh_peer *peer, const struct wh_region_entry *entry)
{
	return peer->self ? ACCESS_ALL : entry->access;
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

/* What to wait for: a region by its name, or by its id if name is NULL. */
struct wanted {
	const char *name;
	uint64_t id;
};

static bool remote_look_up(struct wh_peer *peer, const struct wanted *wanted, struct wh_remote *out)
{
	struct wh_region_table *table = remote_table(peer);
	char name[WH_NAME_MAX] = "";
	struct wh_region_entry copy, *entry;
	bool found;

	if (wanted->name) {
		if (!wh_region_table_by_name(table, wanted->name, &copy, name) ||
		    !wh_remote_access(peer, &copy))
			return false;
		remote_describe(peer, &copy, name, out);
		return true;
	}
	entry = wh_region_entry_enter(table, wanted->id);
	if (!entry)
		return false;
	found = wh_remote_access(peer, entry);
	if (entry->name)
		memcpy(name, entry->name, strnlen(entry->name, WH_NAME_MAX - 1));
	if (found)
		remote_describe(peer, entry, name, out);
	wh_region_entry_leave(entry);
	return found;
}

/* Wait until the peer publishes a region. 0; -ENOENT, without a text; or wh_peer_check()'s error.
 */
static int remote_await(struct wh_peer *peer, const struct wanted *wanted, int64_t timeout,
			struct wh_remote *out)
{
	int64_t deadline = wh_deadline(timeout);
	struct timespec until = { deadline / WH_SECOND, deadline % WH_SECOND };
	bool late = !timeout;
	int error = 0;

	pthread_mutex_lock(&peer->lock);
	while (!error) {
		/* A lost peer may come back before the deadline. */
		if (atomic_load(&peer->state) != WH_PEER_CONNECTED &&
		    (late || atomic_load(&peer->state) >= WH_PEER_STALE)) {
			/* wh_peer_check() takes the lock; if the peer came back meanwhile, go on.
			 */
			pthread_mutex_unlock(&peer->lock);
			error = wh_peer_check(peer);
			pthread_mutex_lock(&peer->lock);
			continue;
		}
		if (atomic_load(&peer->state) == WH_PEER_CONNECTED &&
		    remote_look_up(peer, wanted, out))
			break;
		if (late)
			error = -ENOENT;
		else if (deadline == INT64_MAX)
			pthread_cond_wait(&peer->changed, &peer->lock);
		else
			late = pthread_cond_timedwait(&peer->changed, &peer->lock, &until);
	}
	pthread_mutex_unlock(&peer->lock);
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
	if (timeout < 0)
		return wh_fail(EINVAL, "%s: timeout is negative; WH_FOREVER waits for ever", call);
	if (timeout && wh_engine_inside(peer->engine))
		return wh_fail(EDEADLK, "%s: waiting in one of the engine's own threads", call);
	return 0;
}

int wh_peer_find(struct wh_peer *peer, const char *name, int64_t timeout, struct wh_remote *out)
{
	int error = remote_guard(peer, "wh_peer_find", timeout);
	struct wh_remote found;

	if (error)
		return error;
	if (!name || !out || !*name)
		return wh_fail(EINVAL, "wh_peer_find: %s",
			       !name ? "name is NULL" :
			       !out  ? "out is NULL" :
				       "name is empty");
	error = remote_await(peer, &(struct wanted){ .name = name }, timeout, &found);
	if (error == -ENOENT)
		return wh_fail(ENOENT, "wh_peer_find: %s publishes no region \"%.70s\"",
			       peer->welcome.name, name);
	if (!error)
		*out = found;
	return error;
}

int wh_peer_next(struct wh_peer *peer, uint64_t *cursor, struct wh_remote *out)
{
	int error = remote_guard(peer, "wh_peer_next", 0);
	struct wh_region_entry copy;
	char name[WH_NAME_MAX];

	if (error)
		return error;
	if (!cursor || !out)
		return wh_fail(EINVAL, "wh_peer_next: %s is NULL", cursor ? "out" : "cursor");
	while (wh_region_table_next(remote_table(peer), cursor, &copy, name)) {
		if (!wh_remote_access(peer, &copy))
			continue;
		remote_describe(peer, &copy, name, out);
		return 0;
	}
	return wh_fail(ENOENT, "wh_peer_next: %s publishes no more regions", peer->welcome.name);
}

int wh_peer_lookup(struct wh_peer *peer, uint64_t address, uint64_t length, struct wh_remote *out,
		   uint64_t *offset)
{
	int error = remote_guard(peer, "wh_peer_lookup", 0);
	struct wh_region_entry copy;
	char name[WH_NAME_MAX];

	if (error)
		return error;
	if (!out || !offset || !length)
		return wh_fail(EINVAL, "wh_peer_lookup: %s",
			       !length ? "length is 0" :
			       out     ? "offset is NULL" :
					 "out is NULL");
	if (!wh_region_table_by_address(remote_table(peer), address, length,
					peer->self ? 0 : ACCESS_ALL, &copy, name))
		return wh_fail(ENOENT,
			       "wh_peer_lookup: %s publishes no region that holds %#llx and %llu "
			       "bytes",
			       peer->welcome.name, (unsigned long long)address,
			       (unsigned long long)length);
	remote_describe(peer, &copy, name, out);
	*offset = address - copy.address;
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

int wh_peer_unpack_key(struct wh_peer *peer, const void *key, size_t length, int64_t timeout,
		       struct wh_remote *out)
{
	int error = remote_guard(peer, "wh_peer_unpack_key", timeout);
	struct wh_region_record record;
	struct wh_remote found;

	if (error)
		return error;
	if (!key || !out)
		return wh_fail(EINVAL, "wh_peer_unpack_key: %s is NULL", key ? "out" : "key");
	error = remote_decode_key(peer, key, length, &record);
	if (error)
		return error;
	error = remote_await(peer, &(struct wanted){ .id = record.id }, timeout, &found);
	if (error == -ENOENT)
		return wh_fail(ENOENT,
			       "wh_peer_unpack_key: %s does not publish region %#llx of this key",
			       peer->welcome.name, (unsigned long long)record.id);
	if (error)
		return error;
	/* A key that differs from what the peer publishes was tampered with. Its access is the
	 * union over all peers, so this peer may have less. */
	if (found.address != record.address || found.length != record.length ||
	    (found.access & ~record.access) || found.kind != record.kind ||
	    strcmp(found.name, record.name))
		return wh_fail(EINVAL,
			       "wh_peer_unpack_key: the key does not match region %#llx of %s",
			       (unsigned long long)record.id, peer->welcome.name);
	*out = found;
	return 0;
}
