/* SPDX-License-Identifier: Apache-2.0 */
/* Where sessions come from, and what is held on their account: one guest for each address. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/engine.h"
#include "net/quota.h"
#include "util/config.h"
#include "util/list.h"

/* Engines of one address that are connected at a time. */
#define SESSIONS_PER_SOURCE 4096

/* An IPv4 address; the half of an IPv6 address that is a network's, for the rest is at its
 * disposal. */
uint64_t wh_quota_source(const struct sockaddr_storage *address)
{
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;
	uint32_t half;
	uint64_t network;

	if (address->ss_family == AF_INET)
		return v4->sin_addr.s_addr;
	if (address->ss_family != AF_INET6)
		return UINT64_MAX;
	memcpy(&network, &v6->sin6_addr, sizeof(network));
	memcpy(&half, v6->sin6_addr.s6_addr + 12, sizeof(half));
	return IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) ? half : network;
}

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
