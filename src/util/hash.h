/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash table whose nodes live inside its elements, keyed by 64-bit numbers.
 *
 * A zeroed table is empty and ready. It doubles when it holds as many elements as it has buckets
 * and never shrinks, so that finding, inserting and removing take constant time on average. Keys
 * are mixed, not secret: a peer that chooses its keys can make chains long, but never longer than
 * the number of elements, which callers bound. No locks: the caller serialises.
 */
#ifndef WH_UTIL_HASH_H
#define WH_UTIL_HASH_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

struct wh_hash_node {
	struct wh_hash_node *next; /* in the same bucket */
	uint64_t key;
};

struct wh_hash {
	struct wh_hash_node **buckets; /* 1 << bits of them; NULL until the first insertion */
	unsigned bits;
	size_t count; /* elements */
};

#define WH_HASH_BITS_FIRST 4

/* The bucket of `key`; only while there are buckets. */
static inline struct wh_hash_node **wh_hash_bucket(const struct wh_hash *hash, uint64_t key)
{
	/* 2^64 over the golden ratio: consecutive keys land far apart. */
	return &hash->buckets[(key * 0x9e3779b97f4a7c15u) >> (64 - hash->bits)];
}

/* The newest element inserted under `key`, or NULL. */
static inline struct wh_hash_node *wh_hash_find(const struct wh_hash *hash, uint64_t key)
{
	struct wh_hash_node *node = hash->buckets ? *wh_hash_bucket(hash, key) : NULL;

	while (node && node->key != key)
		node = node->next;
	return node;
}

/* Double the buckets. -ENOMEM leaves the table as it was. */
static inline int wh_hash_grow(struct wh_hash *hash)
{
	size_t count = hash->buckets ? (size_t)1 << hash->bits : 0;
	struct wh_hash grown;

	grown.bits = count ? hash->bits + 1 : WH_HASH_BITS_FIRST;
	grown.buckets =
		(struct wh_hash_node **)calloc((size_t)1 << grown.bits, sizeof(*grown.buckets));
	if (!grown.buckets)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++) {
		struct wh_hash_node *node = hash->buckets[i];

		while (node) {
			struct wh_hash_node *next = node->next;
			struct wh_hash_node **bucket = wh_hash_bucket(&grown, node->key);

			node->next = *bucket;
			*bucket = node;
			node = next;
		}
	}
	free(hash->buckets);
	hash->buckets = grown.buckets;
	hash->bits = grown.bits;
	return 0;
}

/* Insert `node`, which is in no table, under `key`. 0 or -ENOMEM; only the first insertion can
 * fail, since a table that cannot grow takes longer chains instead. */
static inline int wh_hash_insert(struct wh_hash *hash, uint64_t key, struct wh_hash_node *node)
{
	struct wh_hash_node **bucket;

	if ((!hash->buckets || hash->count >> hash->bits) && wh_hash_grow(hash) && !hash->buckets)
		return -ENOMEM;
	bucket = wh_hash_bucket(hash, key);
	node->key = key;
	node->next = *bucket;
	*bucket = node;
	hash->count++;
	return 0;
}

/* Remove `node`, which is in this table. */
static inline void wh_hash_remove(struct wh_hash *hash, struct wh_hash_node *node)
{
	struct wh_hash_node **at = wh_hash_bucket(hash, node->key);

	while (*at != node)
		at = &(*at)->next;
	*at = node->next;
	node->next = NULL;
	hash->count--;
}

/* Free the table, but none of its elements; it is empty and ready again. */
static inline void wh_hash_free(struct wh_hash *hash)
{
	free(hash->buckets);
	hash->buckets = NULL;
	hash->bits = 0;
	hash->count = 0;
}

#endif
