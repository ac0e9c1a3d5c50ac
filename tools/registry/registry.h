/* SPDX-License-Identifier: Apache-2.0 */
/* The data of wherry registry: keys and values with leases, in memory and in a log on disk. */
#ifndef TOOLS_REGISTRY_REGISTRY_H
#define TOOLS_REGISTRY_REGISTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "util/list.h"

#define REGISTRY_KEY_MAX 512 /* bytes of a key */
#define REGISTRY_VALUE_MAX (1 << 20)
#define REGISTRY_OWNER_MAX 64 /* bytes of an owner's name */
#define REGISTRY_LEASE_MOST 3600000 /* ms */

/* ---- the log --------------------------------------------------------------------------------- */

/* One change of a key. The strings have no NUL at the end. */
struct log_entry {
	bool put; /* false: deleted; only the key is set */
	uint32_t lease; /* ms; 0: none */
	const char *key, *owner, *value;
	size_t key_length, owner_length, value_length;
};

/* Called while a log is read, with the bytes read so far. A NULL pointer to it: no calls. */
struct log_watch {
	void (*moved)(void *arg, uint64_t bytes, uint64_t all);
	void *arg;
};

#define LOG_MAGIC "wherry registry 1\n"
#define LOG_HEADER 8 /* length and checksum */
#define LOG_FIXED 20 /* bytes of the payload before its strings */
#define LOG_PAYLOAD_MAX (LOG_FIXED + REGISTRY_KEY_MAX + REGISTRY_OWNER_MAX + REGISTRY_VALUE_MAX)

/* Size in the log, in bytes. */
size_t log_entry_size(const struct log_entry *entry);
void log_entry_encode(const struct log_entry *entry, uint8_t *out);
/* Decode the entry at the start of `bytes`; *out points into them. Its size; 0: cut off or damaged.
 */
size_t log_entry_decode(const uint8_t *bytes, size_t length, struct log_entry *out);
uint32_t log_checksum(const uint8_t *bytes, size_t length);

struct log {
	int fd, directory; /* -1: no log */
	const char *path;
	uint64_t length;
	bool broken; /* the file may end in half an entry: append nothing before log_rewrite() */
};

/* Open or create the log, and call `each` for its entries. A damaged end, as after a power cut, is
 * cut off and kept in PATH.damaged; *lost is its size. Only one process at a time can open a log
 * (-EWOULDBLOCK). 0 or a negative errno. */
int log_open(struct log *log, const char *path,
	     void (*each)(void *arg, const struct log_entry *entry), void *arg,
	     const struct log_watch *watch, uint64_t *lost);
void log_close(struct log *log);
/* Append an entry; `sync`: return only once it is on disk. 0, or a negative errno: it is not in the
 * log. */
int log_append(struct log *log, const struct log_entry *entry, bool sync);
/* Replace the log by one of the entries that `next` returns (NULL: the end). 0 or a negative errno.
 */
int log_rewrite(struct log *log, const struct log_entry *(*next)(void *arg), void *arg);

/* ---- the store ------------------------------------------------------------------------------- */

struct store_record {
	struct wh_list link; /* in its bucket */
	struct wh_list order; /* in store.order */
	uint64_t number; /* serial number of the key */
	char *key, *owner, *value; /* with a NUL at the end; owner "": none */
	size_t value_length;
	uint32_t lease; /* ms; 0: none */
	int64_t ends; /* ns: when the lease expires; INT64_MAX: never */
};

struct store {
	struct log log;
	struct wh_list *buckets;
	size_t bucket_count, count;
	/* records by number; a key that gets a new value keeps its number */
	struct wh_list order;
	uint64_t numbers; /* given so far */
	struct wh_list walks; /* in progress */
	uint64_t bytes, most; /* of keys and values, and their limit */
	uint64_t log_bytes; /* size of a log of the current records only */
	int64_t next_end; /* no lease expires before, ns */
};

/* `path` NULL: no log. Leases in the log start again. 0 or a negative errno. */
int store_open(struct store *store, const char *path, uint64_t most, const struct log_watch *watch,
	       uint64_t *lost);
void store_close(struct store *store);

/* NULL: no such key. Valid until the next call on the store. */
const struct store_record *store_get(struct store *store, const char *key);
/* Set a key. 0; -EEXIST: another owner has the key under a running lease (*holder); -ENOSPC: over
 * the limit; -EIO and others: the log cannot be written. Renewing an unchanged value writes
 * nothing. */
int store_put(struct store *store, const char *key, const char *owner, uint32_t lease,
	      const char *value, size_t length, const struct store_record **holder);
/* Delete a key. `owner` may be NULL; a key with an owner and a running lease can be deleted by its
 * owner only. 0, -ENOENT, -EEXIST. */
int store_delete(struct store *store, const char *key, const char *owner);
/* A walk over all records. The store may change between its steps: a key that exists all the time
 * is visited once, with its value at that moment; a key added later is not visited. */
struct store_walk {
	struct wh_list link; /* in store.walks; zero: not in progress */
	struct wh_list *at; /* the next record, in store.order */
	uint64_t last; /* number of the last record to visit */
};
void store_walk_begin(struct store *store, struct store_walk *walk);
/* The next record; NULL: the end. Valid until the next call on the store. Its lease may have
 * expired. */
const struct store_record *store_walk_next(struct store *store, struct store_walk *walk);
void store_walk_end(struct store_walk *walk);
/* Drop expired records. Call it regularly. */
void store_expire(struct store *store);

/* ---- lists ----------------------------------------------------------------------------------- */

#define REGISTRY_LIST_MOST 10000 /* keys in a list */

/* A list of keys as JSON, made while it is sent. */
struct registry_list;

/* List the keys that start with a prefix. NULL: out of memory. */
struct registry_list *registry_list_new(struct store *store, const char *prefix);
/* The next 1 to `most` bytes; 0: the end; -ENOMEM. Each call visits a bounded number of records. */
ssize_t registry_list_read(struct registry_list *list, char *out, size_t most);
void registry_list_free(struct registry_list *list);

#endif
