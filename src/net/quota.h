/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits per client address.
 *
 * There is one quota per IPv4 address or IPv6 /64, so that one host cannot use up what all clients
 * share. A quota exists while at least one session from its address is open. Loop 0 owns it; the
 * byte counters are atomic because data loops charge them, too.
 */
#ifndef WH_NET_QUOTA_H
#define WH_NET_QUOTA_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "util/hash.h"

/* The quotas of an engine. On loop 0. Set `limit` before acquiring the first. */
struct wh_quota_table {
	struct wh_hash by_source;
	int64_t limit; /* bytes, for each counter of a quota; setting `max_buffered` */
};

struct wh_quota {
	struct wh_hash_node node; /* table.by_source; the key is wh_address_prefix() */
	struct wh_quota_table *table;
	unsigned sessions; /* open now */
	int64_t limit; /* the table's */
	_Atomic int64_t buffered; /* bytes: data connections and their requests */
	_Atomic int64_t queued; /* bytes: control connections, undelivered notifications */
};

/* Find or create the quota of `source` and count one session more. On loop 0.
 * NULL: too many sessions from that address, or no memory. */
struct wh_quota *wh_quota_acquire(struct wh_quota_table *table, uint64_t source);
/* Count one session less; the last one frees the quota. On loop 0. */
void wh_quota_release(struct wh_quota *quota);
/* Free the table. The caller has released every quota. */
void wh_quota_table_free(struct wh_quota_table *table);

/* Charge `bytes` to `buffered`; a negative amount is a refund. Always succeeds: callers check
 * wh_quota_is_full() before they accept more. On any thread. */
static inline void wh_quota_charge_buffered(struct wh_quota *quota, int64_t bytes)
{
	atomic_fetch_add_explicit(&quota->buffered, bytes, memory_order_relaxed);
}

/* Is the limit of `buffered` reached? Then a new request waits until a buffered one has ended. */
static inline bool wh_quota_is_full(const struct wh_quota *quota)
{
	return atomic_load_explicit(&quota->buffered, memory_order_relaxed) >= quota->limit;
}

/* Charge `bytes` to `queued`; a negative amount is a refund and always succeeds.
 * False: the limit would be exceeded; nothing is charged. On any thread. */
static inline bool wh_quota_charge_queued(struct wh_quota *quota, int64_t bytes)
{
	int64_t before = atomic_fetch_add_explicit(&quota->queued, bytes, memory_order_relaxed);

	if (bytes <= 0 || before + bytes <= quota->limit)
		return true;
	atomic_fetch_sub_explicit(&quota->queued, bytes, memory_order_relaxed);
	return false;
}

#endif
