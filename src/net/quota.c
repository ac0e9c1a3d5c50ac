/* SPDX-License-Identifier: Apache-2.0 */
/* Where sessions come from, and what is held on their account: one guest for each address. */
#include <errno.h>
#include <stdlib.h>

#include "core/engine.h"
#include "net/quota.h"
#include "util/config.h"
#include "util/list.h"

/* Engines of one address that are connected at a time. */
#define SESSIONS_PER_SOURCE 4096

struct wh_quota *wh_quota_acquire(struct wh_engine *engine, uint64_t source)
{
	struct wh_quota *quota = NULL;

	for (struct wh_list *l = engine->quotas.next; !quota && l != &engine->quotas; l = l->next) {
		quota = wh_container(l, struct wh_quota, link);
		if (quota->source != source)
			quota = NULL;
	}
	if (!quota) {
		quota = calloc(1, sizeof(*quota));
		if (!quota)
			return NULL;
		quota->source = source;
		quota->limit = engine->config.number[WH_SETTING_MAX_BUFFERED];
		wh_list_append(&engine->quotas, &quota->link);
	}
	if (quota->sessions == SESSIONS_PER_SOURCE)
		return NULL;
	quota->sessions++;
	return quota;
}

void wh_quota_release(struct wh_quota *quota)
{
	if (--quota->sessions)
		return;
	wh_list_remove(&quota->link);
	free(quota);
}
