/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registry over HTTP: GET, PUT and DELETE of URL?key=KEY. `wherry registry` keeps leases
 * itself. Any other server needs these three methods only: there the engine advances the `beat` of
 * its record, and a record whose beat stands still for the time of its lease is dead.
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

/* Wait before the next request to a busy server without a Retry-After. */
#define BUSY (200 * WH_MS)

struct http {
	struct wh_curl curl;
	/* On a server without leases: the epoch that has the name, its beat, and since when that
	 * stands. */
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

/* PATH?key=KEY; in the key only the slashes of the prefix need escapes. */
static void http_path(const struct http *http, const char *name, char *out, size_t size)
{
	snprintf(out, size, "%s?key=wherry%%2Fengine%%2F%s", http->curl.url->path, name);
}

/* The time that a busy server asks clients to wait, give or take a quarter: spreads the clients. */
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

/* Repeat the request while the server is busy (status 503), until the timeout of a call. */
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
			return wh_fail(ECANCELED, "registry: the engine is closing");
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
	/* The value under the name is not an engine's record. */
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

/* Remove the record, if it is this engine's. */
static int http_remove(struct http *http, const struct wh_registry_record *record)
{
	char path[WH_REGISTRY_KEY_MAX + 192];
	size_t used;

	http_path(http, record->name, path, sizeof(path));
	used = strlen(path);
	if (http->curl.wherry)
		snprintf(path + used, sizeof(path) - used, "&owner=%016" PRIx64, record->epoch);
	return http_request(http, "DELETE", path, NULL, 0);
}

/* On `wherry registry`, which keeps the lease: no beat, so that its log stays short. */
static int http_claim_leased(struct http *http, const struct wh_registry_record *record,
			     const struct wh_registry_record *dead,
			     struct wh_registry_record *holder)
{
	struct wh_registry_record still = *record;
	char more[96];
	/* If it has another owner by now, nothing is removed, and the name is taken. */
	int error = dead ? http_remove(http, dead) : 0;

	if (error)
		return error;
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

/* On a server without leases, where the engines alone keep order. */
static int http_claim_plain(struct http *http, const struct wh_registry_record *record,
			    const struct wh_registry_record *dead,
			    struct wh_registry_record *holder)
{
	struct wh_registry_record found;
	int64_t now = wh_now();
	int error = http_get(http, record->name, &found);

	if (error && error != -ENOENT && error != -EPROTO)
		return error;
	if (error == -EPROTO && http->curl.status != 200)
		return error;
	if (!error && found.epoch != record->epoch && !(dead && found.epoch == dead->epoch)) {
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
		      const struct wh_registry_record *dead, struct wh_registry_record *holder)
{
	struct http *http = backend;
	struct wh_registry_record found;
	/* Each answer of `wherry registry` says so; after a restart it may be another server. */
	int error = http->curl.wherry ? 0 : http_get(http, record->name, &found);

	if (error && error != -ENOENT && error != -EPROTO)
		return error;
	return http->curl.wherry ? http_claim_leased(http, record, dead, holder) :
				   http_claim_plain(http, record, dead, holder);
}

static int http_keep(void *backend, const struct wh_registry_record *record)
{
	struct wh_registry_record holder;

	return http_claim(backend, record, NULL, &holder);
}

static int http_release(void *backend, const struct wh_registry_record *record)
{
	struct http *http = backend;
	struct wh_registry_record found;
	int error = http_get(http, record->name, &found);

	return error || found.epoch != record->epoch ? error : http_remove(http, record);
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
