/* SPDX-License-Identifier: Apache-2.0 */
/* Other agents: finding them by NIXL's names, connecting to them, and letting go of them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compat/nixl/internal.h"

/* ---- references
 * ---------------------------------------------------------------------------------- */

void wh_nixl_peer_hold(struct wh_nixl_peer *peer)
{
	pthread_mutex_lock(&peer->agent->lock);
	peer->references++;
	pthread_mutex_unlock(&peer->agent->lock);
}

void wh_nixl_peer_put(struct wh_nixl_peer *peer)
{
	struct wh_nixl_agent *agent = peer->agent;
	bool last;
	int error;

	if (wh_nixl_agent_is_inherited(agent))
		return;
	pthread_mutex_lock(&agent->lock);
	last = !--peer->references;
	pthread_mutex_unlock(&agent->lock);
	if (!last)
		return;
	wh_nixl_notes_free(peer);
	error = wh_peer_close(peer->peer);
	if (error)
		wh_nixl_fail(agent, error, "cannot close the connection to an agent");
	pthread_mutex_destroy(&peer->lock);
	free(peer->name);
	free(peer->info);
	free(peer);
}

/* Under agent->lock. */
static struct wh_nixl_peer *peer_find(struct wh_nixl_agent *agent, const char *name, size_t length)
{
	for (struct wh_list *link = agent->peers.next; link != &agent->peers; link = link->next) {
		struct wh_nixl_peer *peer = wh_container(link, struct wh_nixl_peer, link);

		if (peer->name_length == length && !memcmp(peer->name, name, length))
			return peer;
	}
	return NULL;
}

static bool peer_is_own(const struct wh_nixl_agent *agent, const char *name, size_t length)
{
	return agent->name_length == length && !memcmp(agent->name, name, length);
}

/* ---- connecting
 * ---------------------------------------------------------------------------------- */

static char *copy_of(const char *bytes, size_t length)
{
	char *copy = malloc(length + 1);

	if (copy) {
		if (length)
			memcpy(copy, bytes, length);
		copy[length] = 0;
	}
	return copy;
}

/* Make the object of a connected peer, which it owns now, and let it be found. Another thread may
 * have made it at the same time: then that one is returned. With a reference. */
static struct wh_nixl_peer *peer_add(struct wh_nixl_agent *agent, struct wh_peer *connected,
				     const char *name, size_t name_length, const char *info,
				     size_t info_length)
{
	struct wh_nixl_peer *peer = calloc(1, sizeof(*peer)), *found, *former = NULL;

	if (peer) {
		peer->name = copy_of(name, name_length);
		peer->info = copy_of(info, info_length);
	}
	if (!peer || !peer->name || !peer->info) {
		if (peer) {
			free(peer->name);
			free(peer->info);
			free(peer);
		}
		wh_peer_close(connected);
		wh_nixl_say(agent, "not enough memory");
		return NULL;
	}
	peer->agent = agent;
	peer->peer = connected;
	peer->name_length = name_length;
	peer->info_length = info_length;
	peer->references = 2;
	pthread_mutex_init(&peer->lock, NULL);
	wh_list_init(&peer->notes);

	pthread_mutex_lock(&agent->lock);
	found = peer_find(agent, name, name_length);
	if (found && found->info_length == info_length && !memcmp(found->info, info, info_length)) {
		found->references++;
		peer->references = 1;
	} else {
		former = found;
		if (former)
			wh_list_remove(&former->link);
		wh_list_append(&agent->peers, &peer->link);
		found = NULL;
	}
	pthread_mutex_unlock(&agent->lock);
	if (former)
		wh_nixl_peer_put(former);
	if (!found)
		return peer;
	wh_nixl_peer_put(peer);
	return found;
}

/* Try the URLs until the engine with the info's epoch answers. Says why not. */
static int peer_open(struct wh_nixl_agent *agent, const struct wh_nixl_info *info,
		     struct wh_peer **out)
{
	int error = -EHOSTUNREACH;
	bool near = wh_nixl_info_is_near(info);
	char what[200];

	for (unsigned i = 0; i < info->url_count; i++) {
		/* The last one is loopback where there are several. */
		const char *url = info->url[near ? info->url_count - 1 - i : i];
		bool loopback =
			!strncmp(url, "wherry://127.", 13) || !strncmp(url, "wherry://[::1]", 14);
		struct wh_peer_info found = { .size = sizeof(found) };

		if (loopback && !near) {
			wh_nixl_say(
				agent,
				"agent %s is on another host and listens at %s, which only its own "
				"host reaches: set WHERRY_LISTEN=0.0.0.0:0 and a cluster key there "
				"(docs/nixl.md)",
				info->name, url);
			continue;
		}
		error = wh_peer_open(agent->engine, url, NULL, out);
		if (error) {
			snprintf(what, sizeof(what), "cannot connect to agent %s", info->name);
			wh_nixl_fail(agent, error, what);
			continue;
		}
		if (!wh_peer_info(*out, &found) && found.epoch == info->epoch)
			return 0;
		wh_nixl_say(agent, "agent %s has ended: another engine answers at %s", info->name,
			    url);
		wh_peer_close(*out);
		error = -ESTALE;
	}
	if (!info->url_count)
		wh_nixl_say(agent, "agent %s does not listen (WHERRY_LISTEN=none)", info->name);
	return error;
}

int wh_nixl_peer_load(struct wh_nixl_agent *agent, const char *name, size_t name_length,
		      const char *text, size_t length)
{
	struct wh_nixl_info info;
	struct wh_nixl_peer *peer;
	struct wh_peer *connected;
	int error = wh_nixl_info_decode(text, length, &info);
	bool known;

	if (error == -EPROTO) {
		wh_nixl_say(
			agent,
			"agent %.*s does not use Wherry: its connection info is of another backend "
			"with this name, such as NIXL's own UCX; install Wherry on both sides, or "
			"on "
			"none (wherry nixl status)",
			(int)name_length, name);
		return WH_NIXL_MISMATCH;
	}
	if (error) {
		wh_nixl_say(agent, "agent %.*s: its connection info %s", (int)name_length, name,
			    error == -EPROTONOSUPPORT ?
				    "is of a newer version of Wherry's plug-in; update this side" :
				    "is damaged");
		return WH_NIXL_MISMATCH;
	}
	pthread_mutex_lock(&agent->lock);
	peer = peer_find(agent, name, name_length);
	known = peer && peer->info_length == length && !memcmp(peer->info, text, length);
	pthread_mutex_unlock(&agent->lock);
	if (known)
		return WH_NIXL_OK;
	error = peer_open(agent, &info, &connected);
	if (error)
		return wh_nixl_status(error);
	peer = peer_add(agent, connected, name, name_length, text, length);
	if (!peer)
		return WH_NIXL_BACKEND;
	wh_nixl_peer_put(peer);
	return WH_NIXL_OK;
}

struct wh_nixl_peer *wh_nixl_peer_get(struct wh_nixl_agent *agent, const char *name, size_t length)
{
	struct wh_nixl_peer *peer;
	struct wh_peer *self;
	int error;

	pthread_mutex_lock(&agent->lock);
	peer = peer_find(agent, name, length);
	if (peer)
		peer->references++;
	pthread_mutex_unlock(&agent->lock);
	if (peer)
		return peer;
	if (!peer_is_own(agent, name, length)) {
		wh_nixl_say(agent,
			    "agent %.*s is not known: its metadata has not been loaded, or was "
			    "taken back",
			    (int)length, name);
		return NULL;
	}
	error = wh_peer_open(agent->engine, "self", NULL, &self);
	if (error) {
		wh_nixl_fail(agent, error, "cannot reach the agent itself");
		return NULL;
	}
	return peer_add(agent, self, name, length, NULL, 0);
}

int wh_nixl_peer_connect(struct wh_nixl_agent *agent, const char *name, size_t name_length)
{
	struct wh_nixl_peer *peer = wh_nixl_peer_get(agent, name, name_length);
	int error;

	if (!peer)
		return WH_NIXL_NOT_FOUND;
	error = wh_peer_status(peer->peer);
	if (error)
		wh_nixl_fail(agent, error, "connect");
	wh_nixl_peer_put(peer);
	return wh_nixl_status(error);
}

int wh_nixl_peer_disconnect(struct wh_nixl_agent *agent, const char *name, size_t name_length)
{
	struct wh_nixl_peer *peer;

	pthread_mutex_lock(&agent->lock);
	peer = peer_find(agent, name, name_length);
	if (peer)
		wh_list_remove(&peer->link);
	pthread_mutex_unlock(&agent->lock);
	if (!peer)
		return WH_NIXL_NOT_FOUND;
	wh_nixl_peer_put(peer);
	return WH_NIXL_OK;
}

void wh_nixl_peers_forget(struct wh_nixl_agent *agent)
{
	struct wh_list *link;

	while ((link = wh_list_take(&agent->peers)))
		wh_nixl_peer_put(wh_container(link, struct wh_nixl_peer, link));
}
