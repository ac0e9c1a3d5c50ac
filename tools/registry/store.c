/* SPDX-License-Identifier: Apache-2.0 */
/* The store of wherry registry: records in memory, by key and by age. Every change goes to the log
 * first. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "registry/registry.h"
#include "util/clock.h"

#define FIRST_BUCKETS 256
/* Rewrite the log once it exceeds this size and twice the size of the current records. */
#define REWRITE_LEAST (1 << 20)

/* FNV-1a without a secret: the limits protect against clients that provoke collisions. */
static size_t store_bucket(const struct store *store, const char *key)
{
	uint64_t hash = 0xcbf29ce484222325;

	for (const char *c = key; *c; c++)
		hash = (hash ^ (unsigned char)*c) * 0x100000001b3;
	return (hash ^ hash >> 32) & (store->bucket_count - 1);
}

static struct store_record *store_find(const struct store *store, const char *key)
{
	const struct wh_list *head = &store->buckets[store_bucket(store, key)];

	for (struct wh_list *l = head->next; l != head; l = l->next) {
		struct store_record *record = wh_container(l, struct store_record, link);

		if (!strcmp(record->key, key))
			return record;
	}
	return NULL;
}

static struct log_entry record_entry(const struct store_record *record)
{
	return (struct log_entry){
		.put = true,
		.lease = record->lease,
		.key = record->key,
		.key_length = strlen(record->key),
		.owner = record->owner,
		.owner_length = strlen(record->owner),
		.value = record->value,
		.value_length = record->value_length,
	};
}

static uint64_t record_size(const struct store_record *record)
{
	return strlen(record->key) + strlen(record->owner) + record->value_length + sizeof(*record);
}

static void store_record_free(struct store_record *record)
{
	free(record->key);
	free(record->owner);
	free(record->value);
	free(record);
}

static struct store_record *record_new(const char *key, size_t key_length, const char *owner,
				       size_t owner_length, const char *value, size_t length,
				       uint32_t lease)
{
	struct store_record *record = calloc(1, sizeof(*record));

	if (!record)
		return NULL;
	record->key = strndup(key, key_length);
	record->owner = strndup(owner, owner_length);
	record->value = malloc(length + 1);
	if (record->value) {
		if (length)
			memcpy(record->value, value, length);
		record->value[length] = '\0';
	}
	record->value_length = length;
	record->lease = lease;
	record->ends = lease ? wh_now() + lease * WH_MS : INT64_MAX;
	if (record->key && record->owner && record->value)
		return record;
	store_record_free(record);
	return NULL;
}

static void store_drop(struct store *store, struct store_record *record)
{
	const struct log_entry entry = record_entry(record);

	for (struct wh_list *l = store->walks.next; l != &store->walks; l = l->next) {
		struct store_walk *walk = wh_container(l, struct store_walk, link);

		if (walk->at == &record->order)
			walk->at = record->order.next;
	}
	store->bytes -= record_size(record);
	store->log_bytes -= log_entry_size(&entry);
	store->count--;
	wh_list_remove(&record->link);
	wh_list_remove(&record->order);
	store_record_free(record);
}

/* Double the buckets. Without memory they stay as they are, and look-ups get slower. */
static void store_grow(struct store *store)
{
	size_t count = store->bucket_count, before = count;
	struct wh_list *old = store->buckets, *link, *fresh = calloc(2 * count, sizeof(*fresh));

	if (!fresh)
		return;
	for (size_t i = 0; i < 2 * count; i++)
		wh_list_init(&fresh[i]);
	store->buckets = fresh;
	store->bucket_count = 2 * count;
	for (size_t i = 0; i < before; i++)
		while ((link = wh_list_take(&old[i])))
			wh_list_append(
				&fresh[store_bucket(
					store, wh_container(link, struct store_record, link)->key)],
				link);
	free(old);
}

static void store_add(struct store *store, struct store_record *record)
{
	const struct log_entry entry = record_entry(record);

	if (store->count >= 2 * store->bucket_count)
		store_grow(store);
	wh_list_append(&store->buckets[store_bucket(store, record->key)], &record->link);
	wh_list_append(&store->order, &record->order);
	record->number = ++store->numbers;
	store->bytes += record_size(record);
	store->log_bytes += log_entry_size(&entry);
	store->count++;
	if (record->ends < store->next_end)
		store->next_end = record->ends;
}

/* Give a record the value of `fresh`, and free `fresh` with the old value. */
static void store_replace(struct store *store, struct store_record *record,
			  struct store_record *fresh)
{
	const struct log_entry old_entry = record_entry(record), entry = record_entry(fresh);
	char *owner = record->owner, *value = record->value;

	store->bytes += record_size(fresh) - record_size(record);
	store->log_bytes += log_entry_size(&entry) - log_entry_size(&old_entry);
	record->owner = fresh->owner;
	record->value = fresh->value;
	record->value_length = fresh->value_length;
	record->lease = fresh->lease;
	record->ends = fresh->ends;
	if (record->ends < store->next_end)
		store->next_end = record->ends;
	fresh->owner = owner;
	fresh->value = value;
	store_record_free(fresh);
}

/* ---- the log --------------------------------------------------------------------------------- */

struct loading {
	struct store *store;
	bool failed;
};

static void store_load_entry(void *arg, const struct log_entry *entry)
{
	struct loading *loading = arg;
	struct store *store = loading->store;
	char key[REGISTRY_KEY_MAX + 1];
	struct store_record *old, *record;

	memcpy(key, entry->key, entry->key_length);
	key[entry->key_length] = '\0';
	old = store_find(store, key);
	if (old)
		store_drop(store, old);
	if (!entry->put)
		return;
	record = record_new(entry->key, entry->key_length, entry->owner, entry->owner_length,
			    entry->value, entry->value_length, entry->lease);
	if (record)
		store_add(store, record);
	else
		loading->failed = true;
}

struct log_walk {
	struct store *store;
	struct wh_list *at;
	struct log_entry entry;
};

static const struct log_entry *log_walk_next(void *arg)
{
	struct log_walk *walk = arg;

	walk->at = walk->at->next;
	if (walk->at == &walk->store->order)
		return NULL;
	walk->entry = record_entry(wh_container(walk->at, struct store_record, order));
	return &walk->entry;
}

/* Rewrite the log if it is broken or too large. On failure the old log stays, and the next change
 * tries again. */
static void store_tidy_log(struct store *store)
{
	struct log_walk walk = { .store = store, .at = &store->order };

	if (store->log.fd < 0)
		return;
	if (store->log.broken ||
	    (store->log.length > REWRITE_LEAST && store->log.length / 2 > store->log_bytes))
		log_rewrite(&store->log, log_walk_next, &walk);
}

static int store_log_delete(struct store *store, const struct store_record *record, bool sync)
{
	const struct log_entry entry = { .key = record->key, .key_length = strlen(record->key) };

	return log_append(&store->log, &entry, sync);
}

/* ---- the interface --------------------------------------------------------------------- */

int store_open(struct store *store, const char *path, uint64_t most, const struct log_watch *watch,
	       uint64_t *lost)
{
	struct loading loading = { .store = store };
	int error = 0;

	*store = (struct store){ .log = { .fd = -1, .directory = -1 },
				 .bucket_count = FIRST_BUCKETS,
				 .most = most,
				 .next_end = INT64_MAX };
	store->buckets = calloc(FIRST_BUCKETS, sizeof(*store->buckets));
	if (!store->buckets)
		return -ENOMEM;
	for (size_t i = 0; i < FIRST_BUCKETS; i++)
		wh_list_init(&store->buckets[i]);
	wh_list_init(&store->order);
	wh_list_init(&store->walks);
	*lost = 0;
	if (path)
		error = log_open(&store->log, path, store_load_entry, &loading, watch, lost);
	if (!error && loading.failed)
		error = -ENOMEM;
	if (error)
		store_close(store);
	return error;
}

void store_close(struct store *store)
{
	while (store->bucket_count && !wh_list_empty(&store->order))
		store_drop(store, wh_container(store->order.next, struct store_record, order));
	free(store->buckets);
	store->buckets = NULL;
	store->bucket_count = 0;
	log_close(&store->log);
}

/* The record of a key; one whose lease has expired is dropped. If the log loses the deletion, the
 * lease starts again when the log is read, and expires again. */
static struct store_record *store_find_live(struct store *store, const char *key)
{
	struct store_record *record = store_find(store, key);

	if (!record || record->ends > wh_now())
		return record;
	store_log_delete(store, record, false);
	store_drop(store, record);
	return NULL;
}

const struct store_record *store_get(struct store *store, const char *key)
{
	return store_find_live(store, key);
}

static bool record_has_other_owner(const struct store_record *record, const char *owner)
{
	return *record->owner && record->lease && strcmp(record->owner, owner ? owner : "");
}

int store_put(struct store *store, const char *key, const char *owner, uint32_t lease,
	      const char *value, size_t length, const struct store_record **holder)
{
	struct store_record *old = store_find_live(store, key), *record;
	struct log_entry entry;
	int error;

	if (old && record_has_other_owner(old, owner)) {
		*holder = old;
		return -EEXIST;
	}
	if (old && !strcmp(old->owner, owner) && old->lease == lease &&
	    old->value_length == length && !memcmp(old->value, value, length)) {
		old->ends = lease ? wh_now() + lease * WH_MS : INT64_MAX;
		return 0;
	}
	record = record_new(key, strlen(key), owner, strlen(owner), value, length, lease);
	if (!record)
		return -ENOMEM;
	entry = record_entry(record);
	error = store->bytes - (old ? record_size(old) : 0) + record_size(record) > store->most ?
			-ENOSPC :
			0;
	if (!error) {
		store_tidy_log(store);
		error = log_append(&store->log, &entry, true);
	}
	if (error)
		store_record_free(record);
	else if (old)
		store_replace(store, old, record);
	else
		store_add(store, record);
	return error;
}

int store_delete(struct store *store, const char *key, const char *owner)
{
	struct store_record *record = store_find_live(store, key);
	int error;

	if (!record)
		return -ENOENT;
	if (record_has_other_owner(record, owner))
		return -EEXIST;
	store_tidy_log(store);
	error = store_log_delete(store, record, true);
	if (!error)
		store_drop(store, record);
	return error;
}

void store_walk_begin(struct store *store, struct store_walk *walk)
{
	walk->at = store->order.next;
	walk->last = store->numbers;
	wh_list_append(&store->walks, &walk->link);
}

const struct store_record *store_walk_next(struct store *store, struct store_walk *walk)
{
	const struct store_record *record = wh_container(walk->at, struct store_record, order);

	if (walk->at == &store->order || record->number > walk->last)
		return NULL;
	walk->at = walk->at->next;
	return record;
}

void store_walk_end(struct store_walk *walk)
{
	wh_list_remove(&walk->link);
}

void store_expire(struct store *store)
{
	int64_t now = wh_now(), next_end = INT64_MAX;
	struct wh_list *next;

	if (now < store->next_end)
		return;
	for (struct wh_list *l = store->order.next; l != &store->order; l = next) {
		struct store_record *record = wh_container(l, struct store_record, order);

		next = l->next;
		if (record->ends <= now) {
			store_log_delete(store, record, false);
			store_drop(store, record);
		} else if (record->ends < next_end) {
			next_end = record->ends;
		}
	}
	store->next_end = next_end;
	store_tidy_log(store);
}
