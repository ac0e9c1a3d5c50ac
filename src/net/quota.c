/* SPDX-License-Identifier: Apache-2.0 */
/* Quotas: one for each client address, found by a hash of its prefix. On loop 0. */
#include "net/quota.h"

#include <stdlib.h>

#include "util/list.h"

#define QUOTA_SESSIONS 4096 /* open at a time from one address */

static struct wh_quota *quota_new(struct wh_quota_table *table, uint64_t source)
{
	struct wh_quota *quota = calloc(1, sizeof(*quota));

	if (!quota)
		return NULL;
	quota->table = table;
	quota->limit = table->limit;
	if (!wh_hash_insert(&table->by_source, source, &quota->node))
		return quota;
	free(quota);
	return NULL;
}

struct wh_quota *wh_quota_acquire(struct wh_quota_table *table, uint64_t source)
{
	struct wh_hash_node *node = wh_hash_find(&table->by_source, source);
	struct wh_quota *quota =
		node ? wh_container(node, struct wh_quota, node) : quota_new(table, source);

	if (!quota || quota->sessions == QUOTA_SESSIONS)
		return NULL;
	quota->sessions++;
	return quota;
}

void wh_quota_release(struct wh_quota *quota)
{
	if (--quota->sessions)
		return;
	wh_hash_remove(&quota->table->by_source, &quota->node);
	free(quota);
}

void wh_quota_table_free(struct wh_quota_table *table)
{
	wh_hash_free(&table->by_source);
}
