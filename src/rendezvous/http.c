/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registries over HTTP: GET, PUT and DELETE of URL?key=KEY. `wherry registry` keeps leases itself.
 * Of another server with these three verbs nothing but that is expected: there a record has a beat,
 * which its engine moves, and is dead when that has not moved for as long as its lease.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "rendezvous/module.h"
#include "util/clock.h"

/* For how long a server that is busy, and does not say for how long, is left alone. */
#define BUSY (200 * WH_MS)

struct http {
	struct wh_curl curl;
	/* On a server without leases: who has the name, and since when its beat has not moved. */
	uint64_t holder, beat;
	int64_t since;
};

static int http_open(const struct wh_registry_setup *setup, void **out)
{
	struct http *http = calloc(1, sizeof(*http));
	int error;

	if (!http)
		return wh_fail(ENOMEM, "registry: no memory");
	error = wh_curl_open(&http->curl, setup);
	if (error)
		free(http);
	else
		*out = http;
	return error;
}

static void http_close(void *backend)
{
	struct http *http = backend;

	wh_curl_close(&http->curl);
	free(http);
}

/* PATH?key=KEY; a name needs no escapes, and of the prefix only the slashes do. */
static void http_path(const struct http *http, const char *name, char *out, size_t size)
{
	snprintf(out, size, "%s?key=wherry%%2Fengine%%2F%s", http->curl.url->path, name);
}

/* For how long a busy server wants to be left alone, give or take a quarter: not all come back at
 * once. */
static int64_t http_busy_for(const struct http *http)
{
	uint32_t number = 1u << 31;
	curl_off_t seconds = 0;
	int64_t wait;

	curl_easy_getinfo(http->curl.easy, CURLINFO_RETRY_AFTER, &seconds);
	wait = seconds > 0 && seconds < 3600 ? seconds * WH_SECOND :
	       seconds                       ? 3600 * WH_SECOND :
					       BUSY;
	if (getrandom(&number, sizeof(number), GRND_NONBLOCK) < 0)
		number = 1u << 31;
	return wait - wait / 4 + (int64_t)((double)wait / 2 * number / UINT32_MAX);
}

/* A server that is busy (status 503) is asked again, as long as a call may take. */
static int http_request(struct http *http, const char *method, const char *path, const char *body,
			size_t length)
{
	int64_t end = wh_deadline(http->curl.timeout * WH_MS), again;
	int error;

	for (;;) {
		error = wh_curl_request(&http->curl, method, path, body, length);
		if (http->curl.status != 503)
			return error;
		again = wh_now() + http_busy_for(http);
		if (again >= end)
			return error;
		while (wh_now() < again && !atomic_load(http->curl.stop))
			nanosleep(&(struct timespec){ 0, 20 * WH_MS }, NULL);
		if (atomic_load(http->curl.stop))
			return wh_fail(ECANCELED, "registry: the engine is closed");
	}
}

static int http_get(struct http *http, const char *name, struct wh_registry_record *out)
{
	char path[WH_REGISTRY_KEY_MAX + 128];
	int error;

	http_path(http, name, path, sizeof(path));
	error = http_request(http, "GET", path, NULL, 0);
	if (error)
		return error;
	if (http->curl.status == 404)
		return wh_fail(ENOENT, "registry: no engine has the name \"%s\"", name);
	if (http->curl.status != 200)
		return wh_curl_unexpected(&http->curl);
	error = wh_registry_record_parse(http->curl.body, http->curl.length, name, out);
	/* What is under the name is not an engine's record. */
	return error ? -EPROTO : 0;
}

static int http_find(void *backend, const char *name, struct wh_registry_record *out)
{
	return http_get(backend, name, out);
}

static int http_put(struct http *http, const struct wh_registry_record *record, const char *more)
{
	char path[WH_REGISTRY_KEY_MAX + 192], json[WH_REGISTRY_RECORD_MAX];
	size_t length = wh_registry_record_format(record, json), used;

	http_path(http, record->name, path, sizeof(path));
	used = strlen(path);
	snprintf(path + used, sizeof(path) - used, "%s", more);
	return http_request(http, "PUT", path, json, length);
}

/* The server keeps the lease. The beat would only make its log longer. */
static int http_claim_leased(struct http *http, const struct wh_registry_record *record,
			     struct wh_registry_record *holder)
{
	struct wh_registry_record still = *record;
	char more[96];
	int error;

	still.beat = 0;
	snprintf(more, sizeof(more), "&lease=%" PRId64 "&owner=%016" PRIx64, record->lease,
		 record->epoch);
	error = http_put(http, &still, more);
	if (error)
		return error;
	if (http->curl.status == 200)
		return 0;
	if (http->curl.status != 409)
		return wh_curl_unexpected(&http->curl);
	error = wh_registry_record_parse(http->curl.body, http->curl.length, record->name, holder);
	return error ? -EPROTO : wh_fail(EEXIST, "registry: the name is taken");
}

/* Nobody but the engines themselves keeps order. */
static int http_claim_plain(struct http *http, const struct wh_registry_record *record,
			    struct wh_registry_record *holder)
{
	struct wh_registry_record found;
	int64_t now = wh_now();
	int error = http_get(http, record->name, &found);

	if (error && error != -ENOENT && error != -EPROTO)
		return error;
	if (error == -EPROTO && http->curl.status != 200)
		return error;
	if (!error && found.epoch != record->epoch) {
		if (found.epoch != http->holder || found.beat != http->beat) {
			http->holder = found.epoch;
			http->beat = found.beat;
			http->since = now;
		}
		if (now - http->since < found.lease * WH_MS) {
			*holder = found;
			return wh_fail(EEXIST, "registry: the name is taken");
		}
	}
	error = http_put(http, record, "");
	if (!error && http->curl.status != 200)
		error = wh_curl_unexpected(&http->curl);
	return error;
}

static int http_claim(void *backend, const struct wh_registry_record *record,
		      struct wh_registry_record *holder)
{
	struct http *http = backend;
	struct wh_registry_record found;
	/* Every answer of ours says so; which one it is may change when it is started again. */
	int error = http->curl.wherry ? 0 : http_get(http, record->name, &found);

	if (error && error != -ENOENT && error != -EPROTO)
		return error;
	return http->curl.wherry ? http_claim_leased(http, record, holder) :
				   http_claim_plain(http, record, holder);
}

static int http_keep(void *backend, const struct wh_registry_record *record)
{
	struct wh_registry_record holder;

	return http_claim(backend, record, &holder);
}

static int http_release(void *backend, const struct wh_registry_record *record)
{
	struct http *http = backend;
	char path[WH_REGISTRY_KEY_MAX + 192];
	struct wh_registry_record found;
	size_t used;
	int error = http_get(http, record->name, &found);

	if (error || found.epoch != record->epoch)
		return error;
	http_path(http, record->name, path, sizeof(path));
	used = strlen(path);
	if (http->curl.wherry)
		snprintf(path + used, sizeof(path) - used, "&owner=%016" PRIx64, record->epoch);
	return http_request(http, "DELETE", path, NULL, 0);
}

const struct wh_registry_ops wh_registry_http = {
	.scheme = "http",
	.open = http_open,
	.close = http_close,
	.claim = http_claim,
	.keep = http_keep,
	.release = http_release,
	.find = http_find,
};
