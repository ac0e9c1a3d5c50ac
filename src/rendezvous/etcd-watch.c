/* SPDX-License-Identifier: Apache-2.0 */
/* Watching keys in etcd: one request, and a line of its answer for each change. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/etcd.h"
#include "util/clock.h"

#define LINE_MOST (1 << 20)
#define LINE_FIRST 4096
/* After the end of a stream: the server may be shutting down. */
#define AGAIN (500 * WH_MS)

static void watch_take_line(struct wh_etcd_watch *watch)
{
	int changed = watch->length ? wh_etcd_parse_watch(watch->line, watch->length) : 0;

	/* A line that cannot be parsed may be a change. */
	watch->changed |= changed != 0;
	watch->ended |= changed < 0;
	watch->length = 0;
}

static bool watch_grow(struct wh_etcd_watch *watch)
{
	size_t room = watch->room ? 2 * watch->room : LINE_FIRST;
	char *line = room <= LINE_MOST ? realloc(watch->line, room) : NULL;

	if (!line)
		return false;
	watch->line = line;
	watch->room = room;
	return true;
}

static size_t watch_take_bytes(char *data, size_t size, size_t count, void *argument)
{
	struct wh_etcd_watch *watch = argument;

	for (size_t i = 0; i < size * count; i++) {
		if (data[i] == '\n') {
			watch_take_line(watch);
			continue;
		}
		if (watch->length == watch->room && !watch_grow(watch))
			return 0;
		watch->line[watch->length++] = data[i];
	}
	return size * count;
}

/* ---- beginning and ending -------------------------------------------------------------------- */

static void watch_end(struct wh_etcd_watch *watch)
{
	if (watch->easy) {
		curl_multi_remove_handle(watch->multi, watch->easy);
		curl_easy_cleanup(watch->easy);
	}
	watch->easy = NULL;
	curl_slist_free_all(watch->headers);
	watch->headers = NULL;
	free(watch->request);
	free(watch->names);
	watch->request = watch->names = NULL;
	watch->names_length = watch->length = 0;
	watch->ended = false;
}

void wh_etcd_watch_close(struct wh_etcd_watch *watch)
{
	watch_end(watch);
	if (watch->multi)
		curl_multi_cleanup(watch->multi);
	free(watch->line);
	watch->multi = NULL;
	watch->line = NULL;
	watch->room = 0;
}

static bool watch_has_names(const struct wh_etcd_watch *watch,
			    const char (*names)[WH_REGISTRY_NAME_MAX], size_t count)
{
	const char *at = watch->names;

	for (size_t i = 0; i < count; i++) {
		size_t left = (size_t)(watch->names + watch->names_length - at);
		size_t length = strlen(names[i]) + 1;

		if (left < length || memcmp(at, names[i], length) != 0)
			return false;
		at += length;
	}
	return at == watch->names + watch->names_length;
}

/* One line for each key. */
static bool watch_make_request(struct wh_etcd_watch *watch, int64_t revision,
			       const char (*names)[WH_REGISTRY_NAME_MAX], size_t count,
			       void (*key)(const void *arg, const char *name, char *out),
			       const void *arg)
{
	const size_t line = WH_BASE64_SIZE(WH_ETCD_KEY_MAX) + 96;
	char key64[WH_BASE64_SIZE(WH_ETCD_KEY_MAX)], since[48] = "", *at;

	watch->names_length = 0;
	watch->names = calloc(count, WH_REGISTRY_NAME_MAX);
	watch->request = calloc(count, line);
	if (!watch->names || !watch->request)
		return false;
	if (revision)
		snprintf(since, sizeof(since), ", \"start_revision\": \"%" PRId64 "\"",
			 revision + 1);
	at = watch->request;
	for (size_t i = 0; i < count; i++) {
		key(arg, names[i], key64);
		at += snprintf(at, line, "{\"create_request\": {\"key\": \"%s\"%s}}\n", key64,
			       since);
		memcpy(watch->names + watch->names_length, names[i], strlen(names[i]) + 1);
		watch->names_length += strlen(names[i]) + 1;
	}
	return true;
}

static bool watch_begin(struct wh_etcd_watch *watch, int64_t revision,
			const char (*names)[WH_REGISTRY_NAME_MAX], size_t count,
			void (*key)(const void *arg, const char *name, char *out), const void *arg)
{
	const struct wh_registry_url *url = watch->curl->url;
	char address[320];

	if (!watch->multi)
		watch->multi = curl_multi_init();
	if (watch->multi)
		watch->easy = curl_easy_init();
	if (!watch->easy || !watch_make_request(watch, revision, names, count, key, arg)) {
		watch_end(watch);
		return false;
	}
	for (const struct curl_slist *h = watch->curl->headers; h; h = h->next) {
		struct curl_slist *more = curl_slist_append(watch->headers, h->data);

		if (more)
			watch->headers = more;
	}
	snprintf(address, sizeof(address), "http%s://%s/v3/watch", url->tls ? "s" : "",
		 url->endpoint[watch->curl->endpoint]);
	watch->endpoint = watch->curl->endpoint;
	wh_curl_prepare(watch->curl, watch->easy);
	curl_easy_setopt(watch->easy, CURLOPT_URL, address);
	curl_easy_setopt(watch->easy, CURLOPT_HTTPHEADER, watch->headers);
	curl_easy_setopt(watch->easy, CURLOPT_POSTFIELDS, watch->request);
	curl_easy_setopt(watch->easy, CURLOPT_WRITEFUNCTION, watch_take_bytes);
	curl_easy_setopt(watch->easy, CURLOPT_WRITEDATA, watch);
	curl_easy_setopt(watch->easy, CURLOPT_CONNECTTIMEOUT_MS, (long)watch->curl->timeout);
	/* Keepalive detects a dead server; a silent one is kept. */
	curl_easy_setopt(watch->easy, CURLOPT_TCP_KEEPALIVE, 1L);
	curl_easy_setopt(watch->easy, CURLOPT_TCP_KEEPIDLE, 10L);
	curl_easy_setopt(watch->easy, CURLOPT_TCP_KEEPINTVL, 5L);
	curl_multi_add_handle(watch->multi, watch->easy);
	return true;
}

/* ---- waiting --------------------------------------------------------------------------------- */

static void wake_sleep(int wake, int64_t timeout)
{
	struct pollfd fd = { .fd = wake, .events = POLLIN };
	const int64_t hour = 3600 * WH_SECOND;

	poll(&fd, 1, (int)((timeout < hour ? timeout + WH_MS - 1 : hour) / WH_MS));
}

/* False: the stream has ended. */
static bool watch_perform(struct wh_etcd_watch *watch)
{
	int running = 0;

	return !curl_multi_perform(watch->multi, &running) && running && !watch->ended;
}

static int watch_follow(struct wh_etcd_watch *watch, int wake, int64_t deadline)
{
	struct curl_waitfd fd = { .fd = wake, .events = CURL_WAIT_POLLIN };
	int64_t left;

	while (watch_perform(watch)) {
		if (watch->changed) {
			watch->changed = false;
			return 1;
		}
		left = deadline - wh_now();
		if (left <= 0 || fd.revents)
			return 0;
		left = left < WH_SECOND ? left : WH_SECOND;
		curl_multi_poll(watch->multi, &fd, 1, (int)((left + WH_MS - 1) / WH_MS), NULL);
	}
	watch_end(watch);
	watch->changed = false;
	left = deadline - wh_now();
	wake_sleep(wake, left < 0 ? 0 : left < AGAIN ? left : AGAIN);
	return 1;
}

int wh_etcd_watch_wait(struct wh_etcd_watch *watch, int wake, int64_t timeout, int64_t revision,
		       const char (*names)[WH_REGISTRY_NAME_MAX], size_t count,
		       void (*key)(const void *arg, const char *name, char *out), const void *arg)
{
	/* Requests have moved to another endpoint: the old one may hang, with its stream open. The
	 * names may have changed meanwhile. */
	if (watch->easy && watch->endpoint != watch->curl->endpoint) {
		watch_end(watch);
		return 1;
	}
	if (watch->easy && !watch_has_names(watch, names, count))
		watch_end(watch);
	/* Without memory for a watch, the client looks the names up every third of a lease. */
	if (!count || (!watch->easy && !watch_begin(watch, revision, names, count, key, arg))) {
		wake_sleep(wake, timeout);
		return 0;
	}
	return watch_follow(watch, wake, wh_deadline(timeout));
}
