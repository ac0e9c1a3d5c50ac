/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments, which are other engines. The store, or the engine itself, says what an engine
 * publishes. If that includes the URL and epoch of a Wherry engine, and the engine at that URL has
 * this epoch and proves the key, transfers use Wherry's routes, else Mooncake's TCP.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "compat/mooncake/api.h"
#include "rendezvous/rendezvous.h"

#define SEGMENTS_MAX (1 << 20)

/* ---- fetching ------------------------------------------------------------------------------ */

static int link_fetch_from_store(struct te_link *link, struct wh_mooncake_segment *segment)
{
	struct te_engine *engine = link->engine;
	struct wh_mooncake_endpoint endpoint;
	int error;

	pthread_mutex_lock(&engine->store_lock);
	error = wh_mooncake_find(engine->store_ops, engine->store, link->name, segment);
	/* The control port may be missing: only notifications need it. */
	if (!error &&
	    !wh_mooncake_locate(engine->store_ops, engine->store, link->name, &endpoint)) {
		pthread_mutex_lock(&engine->lock);
		wh_mooncake_endpoint_text(&endpoint, link->control, sizeof(link->control));
		pthread_mutex_unlock(&engine->lock);
	}
	pthread_mutex_unlock(&engine->store_lock);
	return error;
}

int te_link_refresh(struct te_link *link)
{
	struct te_engine *engine = link->engine;
	struct wh_mooncake_segment segment, before;
	int error = engine->store_ops ? link_fetch_from_store(link, &segment) :
					wh_mooncake_fetch(link->name, engine->timeout, &segment);

	if (error)
		return te_fail_mooncake(error, "the segment cannot be reached");
	pthread_mutex_lock(&engine->lock);
	before = link->segment;
	link->segment = segment;
	pthread_mutex_unlock(&engine->lock);
	wh_mooncake_segment_free(&before);
	return 0;
}

/* ---- connecting ---------------------------------------------------------------------------- */

/* Does this machine have an address of `host`? */
static bool host_is_here(const char *host)
{
	struct wh_mooncake_endpoint endpoint = { .port = 0 };
	struct sockaddr_storage address[WH_RENDEZVOUS_MOST];
	char where[WH_MOONCAKE_NAME_MAX + 10];
	unsigned count = 0;
	bool here = false;

	snprintf(endpoint.host, sizeof(endpoint.host), "%s", host);
	wh_mooncake_endpoint_text(&endpoint, where, sizeof(where));
	if (wh_rendezvous_resolve(where, WH_RESOLVE_LISTENING, address, &count))
		return false;
	for (unsigned i = 0; !here && i < count; i++) {
		int fd = socket(address[i].ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);

		here = fd >= 0 &&
		       !bind(fd, (struct sockaddr *)&address[i],
			     address[i].ss_family == AF_INET ? sizeof(struct sockaddr_in) :
							       sizeof(struct sockaddr_in6));
		if (fd >= 0)
			close(fd);
	}
	return here;
}

static bool url_is_loopback(const char *url)
{
	struct sockaddr_storage address[WH_RENDEZVOUS_MOST];
	unsigned count = 0;

	return !wh_rendezvous_resolve(url, WH_RESOLVE_REMOTE, address, &count) && count &&
	       wh_address_is_loopback(&address[0]);
}

/* Connect by Wherry; if that fails, set link->why. */
static void link_connect_wherry(struct te_link *link)
{
	struct wh_peer_options options = { .size = sizeof(options),
					   .timeout = link->engine->timeout };
	struct wh_peer_info info = { .size = sizeof(info) };
	const char *url = link->segment.wherry;
	struct wh_peer *peer;

	if (!*url) {
		snprintf(link->why, sizeof(link->why), "it is not a Wherry engine");
		return;
	}
	/* A loopback URL of another machine would lead to a different engine on this one. */
	if (url_is_loopback(url) && !host_is_here(link->host)) {
		snprintf(link->why, sizeof(link->why),
			 "its Wherry engine listens on loopback only; give both hosts a "
			 "cluster key (WHERRY_KEYFILE)");
		return;
	}
	if (wh_peer_open(link->engine->wherry, url, &options, &peer)) {
		snprintf(link->why, sizeof(link->why), "%s", wh_error_text());
		return;
	}
	if (!wh_peer_info(peer, &info) && info.epoch == link->segment.epoch) {
		link->peer = peer;
		return;
	}
	wh_peer_close(peer);
	snprintf(link->why, sizeof(link->why), "a different engine answers at %.100s", url);
}

static int link_open(struct te_engine *engine, const char *name, struct te_link **out)
{
	struct wh_mooncake_endpoint endpoint;
	struct te_link *link = calloc(1, sizeof(*link));
	int error;

	if (!link)
		return te_fail(TE_MEMORY, "no memory");
	*link = (struct te_link){ .engine = engine, .references = 1 };
	snprintf(link->name, sizeof(link->name), "%s", name);
	wh_list_init(&link->jobs);
	pthread_cond_init(&link->more, NULL);
	if (!engine->store_ops)
		snprintf(link->control, sizeof(link->control), "%s", name);
	error = te_link_refresh(link);
	if (error) {
		te_link_put(link);
		return error;
	}
	if (*link->segment.host)
		memcpy(link->host, link->segment.host, sizeof(link->host));
	else if (!wh_mooncake_endpoint_read(link->control, &endpoint))
		memcpy(link->host, endpoint.host, sizeof(link->host));
	link_connect_wherry(link);
	*out = link;
	return 0;
}

void te_link_put(struct te_link *link)
{
	bool last;

	if (!link)
		return;
	pthread_mutex_lock(&link->engine->lock);
	last = !--link->references;
	pthread_mutex_unlock(&link->engine->lock);
	if (!last)
		return;
	te_link_stop(link);
	if (link->peer)
		wh_peer_close(link->peer);
	wh_mooncake_segment_free(&link->segment);
	pthread_cond_destroy(&link->more);
	free(link);
}

/* ---- the table ----------------------------------------------------------------------------- */

bool te_segment_known(const struct te_engine *engine, int64_t id)
{
	return id >= 0 && (uint64_t)id < engine->segment_count;
}

/* Give the segment another link, or NULL for none, and drop the old one. */
static void segment_replace_link(struct te_engine *engine, struct te_segment *segment,
				 struct te_link *link)
{
	struct te_link *before;

	pthread_mutex_lock(&engine->lock);
	before = segment->link;
	segment->link = link;
	pthread_mutex_unlock(&engine->lock);
	te_link_put(before);
}

/* False: the peer was lost or has restarted, so connect again. */
static bool link_is_good(const struct te_link *link)
{
	struct wh_peer_info info = { .size = sizeof(info) };

	return !link->peer || (!wh_peer_info(link->peer, &info) && info.state == WH_PEER_CONNECTED);
}

int te_link_get(struct te_engine *engine, segment_id_t id, struct te_link **out)
{
	struct te_segment *segment = NULL;
	struct te_link *link = NULL;
	int error;

	pthread_mutex_lock(&engine->lock);
	if (te_segment_known(engine, id)) {
		segment = engine->segments[id];
		link = segment->link;
		if (link)
			link->references++;
	}
	pthread_mutex_unlock(&engine->lock);
	if (!segment)
		return te_fail(TE_ARGUMENT, "segment %d has not been opened", id);
	if (link && link_is_good(link)) {
		*out = link;
		return 0;
	}
	te_link_put(link);
	error = link_open(engine, segment->name, &link);
	if (error)
		return error;
	link->references++; /* no lock: no other thread has the link yet */
	segment_replace_link(engine, segment, link);
	*out = link;
	return 0;
}

/* Find or add the segment of that name. */
static int segment_find_or_add(struct te_engine *engine, const char *name, segment_id_t *id)
{
	struct te_segment **more, *segment = NULL;
	int error = 0;
	size_t i;

	pthread_mutex_lock(&engine->lock);
	for (i = 0; i < engine->segment_count && strcmp(engine->segments[i]->name, name) != 0; i++)
		;
	*id = (segment_id_t)i;
	if (i < engine->segment_count)
		goto out;
	segment = i < SEGMENTS_MAX ? calloc(1, sizeof(*segment)) : NULL;
	more = segment ? realloc(engine->segments, (i + 1) * sizeof(struct te_segment *)) : NULL;
	if (!more) {
		free(segment);
		error = te_fail(TE_MEMORY, "openSegment: no memory, or %d segments are open",
				SEGMENTS_MAX);
		goto out;
	}
	engine->segments = more;
	snprintf(segment->name, sizeof(segment->name), "%s", name);
	more[i] = segment;
	engine->segment_count++;
out:
	pthread_mutex_unlock(&engine->lock);
	return error;
}

static segment_id_t segment_open(struct te_engine *engine, const char *name, bool fresh,
				 const char *call)
{
	struct te_link *link = NULL;
	segment_id_t id;
	int error;

	while (name && *name == '/')
		name++;
	if (!engine || !name || !*name || strlen(name) >= WH_MOONCAKE_NAME_MAX)
		return te_fail(TE_ARGUMENT, "%s: %s", call,
			       !engine ? "engine is NULL" :
					 "segment_name is NULL, empty or too long");
	if (te_forked(engine, call))
		return TE_ARGUMENT;
	error = segment_find_or_add(engine, name, &id);
	if (error)
		return error;
	if (fresh)
		closeSegment(engine, id);
	error = te_link_get(engine, id, &link);
	te_link_put(link);
	return error ? error : id;
}

segment_id_t openSegment(transfer_engine_t engine, const char *segment_name)
{
	wh_fail_begin();
	return wh_fail_end(segment_open(engine, segment_name, false, "openSegment"));
}

segment_id_t openSegmentNoCache(transfer_engine_t engine, const char *segment_name)
{
	wh_fail_begin();
	return wh_fail_end(segment_open(engine, segment_name, true, "openSegmentNoCache"));
}

int wherrySegmentIsReady(transfer_engine_t handle, const char *segment_name)
{
	struct te_engine *engine = handle;
	struct te_link *link = NULL;
	bool ready;

	while (segment_name && *segment_name == '/')
		segment_name++;
	if (!engine || !segment_name || te_forked(engine, "wherrySegmentIsReady"))
		return 0;
	pthread_mutex_lock(&engine->lock);
	for (size_t i = 0; i < engine->segment_count && !link; i++)
		if (!strcmp(engine->segments[i]->name, segment_name))
			link = engine->segments[i]->link;
	if (link)
		link->references++;
	pthread_mutex_unlock(&engine->lock);
	ready = link && link_is_good(link);
	te_link_put(link);
	return ready;
}

int closeSegment(transfer_engine_t handle, segment_id_t segment_id)
{
	struct te_engine *engine = handle;
	struct te_segment *segment = NULL;

	if (!engine)
		return te_fail(TE_ARGUMENT, "closeSegment: engine is NULL");
	if (te_forked(engine, "closeSegment"))
		return TE_ARGUMENT;
	pthread_mutex_lock(&engine->lock);
	if (te_segment_known(engine, segment_id))
		segment = engine->segments[segment_id];
	pthread_mutex_unlock(&engine->lock);
	if (!segment)
		return te_fail(TE_ARGUMENT, "closeSegment: segment %d has not been opened",
			       segment_id);
	if (segment_id != LOCAL_SEGMENT)
		segment_replace_link(engine, segment, NULL);
	return 0;
}

int removeLocalSegment(transfer_engine_t handle, const char *segment_name)
{
	struct te_engine *engine = handle;
	int error = 0;

	while (segment_name && *segment_name == '/')
		segment_name++;
	if (!engine || !segment_name || !*segment_name)
		return te_fail(TE_ARGUMENT, "removeLocalSegment: %s",
			       !engine ? "engine is NULL" : "segment_name is NULL or empty");
	if (te_forked(engine, "removeLocalSegment"))
		return TE_ARGUMENT;
	if (strcmp(segment_name, engine->name) != 0)
		return 0;
	pthread_mutex_lock(&engine->publishing);
	if (engine->in_store) {
		pthread_mutex_lock(&engine->store_lock);
		error = wh_mooncake_withdraw(engine->store_ops, engine->store, engine->name);
		pthread_mutex_unlock(&engine->store_lock);
	}
	engine->in_store = engine->in_store && error;
	pthread_mutex_unlock(&engine->publishing);
	return error ? te_fail(TE_METADATA, "removeLocalSegment: %s", wh_fail_text()) : 0;
}

int syncSegmentCache(transfer_engine_t handle)
{
	struct te_engine *engine = handle;
	int error = 0;
	size_t count;

	if (!engine)
		return te_fail(TE_ARGUMENT, "syncSegmentCache: engine is NULL");
	if (te_forked(engine, "syncSegmentCache"))
		return TE_ARGUMENT;
	pthread_mutex_lock(&engine->lock);
	count = engine->segment_count;
	pthread_mutex_unlock(&engine->lock);
	for (size_t i = 1; i < count; i++) {
		struct te_link *link;
		int each;

		pthread_mutex_lock(&engine->lock);
		link = engine->segments[i]->link;
		if (link)
			link->references++;
		pthread_mutex_unlock(&engine->lock);
		each = link ? te_link_refresh(link) : 0;
		te_link_put(link);
		error = error ? error : each;
	}
	return error;
}

int warmupEfaSegment(transfer_engine_t engine, const char *segment_name)
{
	if (!engine || !segment_name)
		return te_fail(TE_ARGUMENT, "warmupEfaSegment: %s is NULL",
			       engine ? "segment_name" : "engine");
	return te_forked(engine, "warmupEfaSegment") ? TE_ARGUMENT : 0;
}

void te_segments_free(struct te_engine *engine)
{
	for (size_t i = 0; i < engine->segment_count; i++) {
		te_link_put(engine->segments[i]->link);
		free(engine->segments[i]);
	}
	free(engine->segments);
}
