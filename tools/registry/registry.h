/* SPDX-License-Identifier: Apache-2.0 */
/* What wherry registry keeps: values under keys, with leases, in memory and in a log on disk. */
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

/* One thing that happened to a key. The strings are not ended by a NUL. */
struct log_entry {
	bool put; /* else it was deleted, and has a key only */
	uint32_t lease; /* ms; 0: none */
	const char *key, *owner, *value;
	size_t key_length, owner_length, value_length;
};

/* Who looks on while a log is read: so many bytes of so many have been. NULL instead: nobody. */
struct log_watch {
	void (*moved)(void *arg, uint64_t bytes, uint64_t all);
	void *arg;
};

#define LOG_MAGIC "wherry registry 1\n"
#define LOG_HEADER 8 /* length and checksum */
#define LOG_FIXED 20 /* of the payload, before its strings */
#define LOG_PAYLOAD_MAX (LOG_FIXED + REGISTRY_KEY_MAX + REGISTRY_OWNER_MAX + REGISTRY_VALUE_MAX)

/* The bytes that it takes in the log. */
size_t log_entry_size(const struct log_entry *entry);
void log_entry_encode(const struct log_entry *entry, uint8_t *out);
/* The entry at the start of `bytes`: what it takes, or 0: it is cut off or damaged. It points into
 * the bytes. */
size_t log_entry_decode(const uint8_t *bytes, size_t length, struct log_entry *out);
uint32_t log_checksum(const uint8_t *bytes, size_t length);

struct log {
	int fd, directory; /* -1: nothing is kept */
	const char *path;
	uint64_t length;
	bool broken; /* the end of the file is not what it should be: it has to be written anew */
};

/* Open the log or make it, and tell `each` of what is in it. What is damaged, as after a power cut,
 * is cut off at the end and kept in PATH.damaged; *lost is how many bytes that are. Only one
 * process at a time has a log. 0 or a negative errno. */
int log_open(struct log *log, const char *path,
	     void (*each)(void *arg, const struct log_entry *entry), void *arg,
	     const struct log_watch *watch, uint64_t *lost);
void log_close(struct log *log);
/* Write it, and with `sync` do not return before it is on the disk. 0 or a negative errno: then it
 * is not in the log. */
int log_append(struct log *log, const struct log_entry *entry, bool sync);
/* Write a new log with what `next` yields (NULL: no more), and put it in the place of the old one.
 */
int log_rewrite(struct log *log, const struct log_entry *(*next)(void *arg), void *arg);

/* ---- the store ------------------------------------------------------------------------------- */

struct store_record {
	struct wh_list link; /* in a bucket */
	struct wh_list order; /* in store.order */
	uint64_t number; /* of all keys that there have been */
	char *key, *owner, *value; /* ended by a NUL; owner "": nobody's */
	size_t value_length;
	uint32_t lease; /* ms; 0: none */
	int64_t ends; /* ns; with a lease */
};

struct store {
	struct log log;
	struct wh_list *buckets;
	size_t bucket_count, count;
	/* records, by their numbers: a key that gets another value stays where it is */
	struct wh_list order;
	uint64_t numbers; /* given so far */
	struct wh_list walks; /* that have begun and not ended */
	uint64_t bytes, most; /* of keys and values; and the limit of that */
	uint64_t log_bytes; /* that a log of only what there is would take */
	int64_t next_end; /* not before then a lease runs out */
};

/* `path` NULL: nothing is kept on disk. Leases begin anew. 0 or a negative errno. */
int store_open(struct store *store, const char *path, uint64_t most, const struct log_watch *watch,
	       uint64_t *lost);
void store_close(struct store *store);

/* NULL: there is none. Good until the store is next asked for anything. */
const struct store_record *store_get(struct store *store, const char *key);
/* 0; -EEXIST: somebody else owns the key and its lease runs, *holder is it; -ENOSPC: the limit;
 * -EIO and the like: the log cannot be written. Renewing what is there as it is writes nothing. */
int store_put(struct store *store, const char *key, const char *owner, uint32_t lease,
	      const char *value, size_t length, const struct store_record **holder);
/* `owner` NULL: whoever it belongs to; but what has an owner and a running lease is only its
 * owner's. 0, -ENOENT, -EEXIST. */
int store_delete(struct store *store, const char *key, const char *owner);
/* A look at all records, in pieces, between which the store may change: a key that is there all the
 * while comes once, with the value that it has then; one that comes later does not come. */
struct store_walk {
	struct wh_list link; /* in store.walks; zero: it has ended, or never begun */
	struct wh_list *at; /* the next one, in store.order */
	uint64_t last; /* number */
};
void store_walk_begin(struct store *store, struct store_walk *walk);
/* NULL: there are no more. Good until the store is next asked for anything. One whose lease has run
 * out may still be among them. */
const struct store_record *store_walk_next(struct store *store, struct store_walk *walk);
void store_walk_end(struct store_walk *walk);
/* Let go of what has ended. To be called now and then. */
void store_expire(struct store *store);

/* ---- lists ----------------------------------------------------------------------------------- */

#define REGISTRY_LIST_MOST 10000 /* keys in a list */

/* A list of keys as JSON, which is made while it is read. */
struct registry_list;

/* Of the keys that begin with the prefix. NULL: no memory. */
struct registry_list *registry_list_new(struct store *store, const char *prefix);
/* The next bytes, at least one and at the most so many; 0: that was all; -ENOMEM. However large the
 * store is, it is not looked at for long. */
ssize_t registry_list_read(struct registry_list *list, char *out, size_t most);
void registry_list_free(struct registry_list *list);

#endif
