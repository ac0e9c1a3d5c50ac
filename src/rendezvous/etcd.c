/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registry in etcd, through the JSON gateway of its API v3 (etcd 3.4 and later). An engine's
 * record is bound to a lease and disappears with it. etcd grants leases in whole seconds, maybe for
 * longer than requested; the record has the granted time.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/etcd.h"

#define KEY64 WH_BASE64_SIZE(WH_ETCD_KEY_MAX)
#define VALUE64 WH_BASE64_SIZE(WH_REGISTRY_RECORD_MAX)

struct etcd {
	struct wh_etcd client;
	struct wh_etcd_watch watch;
	int64_t lease; /* 0: none */
	/* The oldest revision that find() has seen since the last wait(): the watch starts behind
	 * it. */
	int64_t revision;
};

/* ---- asking ---------------------------------------------------------------------------------- */

static void etcd_key(const void *arg, const char *name, char *out)
{
	const struct etcd *etcd = arg;
	const char *path = etcd->client.curl.url->path;
	char key[WH_ETCD_KEY_MAX];
	int length = snprintf(key, sizeof(key), "%s%s" WH_REGISTRY_PREFIX "%s", path,
			      *path ? "/" : "", name);

	wh_base64_encode(key, (size_t)length, out);
}

static int etcd_ask(struct etcd *etcd, const char *path, const char *body,
		    struct wh_etcd_answer *out)
{
	int error = wh_etcd_request(&etcd->client, path, body, strlen(body));
	const struct wh_curl *curl = &etcd->client.curl;

	return error ? error : wh_etcd_parse(curl->body, curl->length, out);
}

/* ---- leases ---------------------------------------------------------------------------------- */

static void etcd_revoke(struct etcd *etcd)
{
	struct wh_etcd_answer answer;
	char body[64];

	if (!etcd->lease)
		return;
	snprintf(body, sizeof(body), "{\"ID\": \"%" PRId64 "\"}", etcd->lease);
	etcd_ask(etcd, "v3/lease/revoke", body, &answer);
	etcd->lease = 0;
}

/* Get a lease of `lease` ms, rounded up to seconds; *granted, in ms, may be more. */
static int etcd_grant(struct etcd *etcd, int64_t lease, int64_t *granted)
{
	struct wh_etcd_answer answer;
	char body[64];
	int error;

	snprintf(body, sizeof(body), "{\"TTL\": \"%" PRId64 "\"}", (lease + 999) / 1000);
	error = etcd_ask(etcd, "v3/lease/grant", body, &answer);
	if (error)
		return error;
	if (!answer.lease || answer.ttl < 1 || answer.ttl > 3600)
		return wh_fail(EPROTO, "registry: etcd has granted a lease of %" PRId64 " s",
			       answer.ttl);
	etcd->lease = answer.lease;
	*granted = answer.ttl * 1000;
	return 0;
}

/* ---- the backend ----------------------------------------------------------------------------- */

static int etcd_open(const struct wh_registry_setup *setup, void **out)
{
	struct etcd *etcd = calloc(1, sizeof(*etcd));
	int error;

	if (!etcd)
		return wh_fail(ENOMEM, "registry: no memory");
	error = wh_curl_open(&etcd->client.curl, setup);
	if (error) {
		free(etcd);
		return error;
	}
	etcd->watch.curl = &etcd->client.curl;
	*out = etcd;
	return 0;
}

static void etcd_close(void *backend)
{
	struct etcd *etcd = backend;

	wh_etcd_watch_close(&etcd->watch);
	wh_curl_close(&etcd->client.curl);
	free(etcd);
}

static int etcd_range(struct etcd *etcd, const char *name, struct wh_etcd_answer *out)
{
	char key[KEY64], body[KEY64 + 32];
	int error;

	etcd_key(etcd, name, key);
	snprintf(body, sizeof(body), "{\"key\": \"%s\"}", key);
	error = etcd_ask(etcd, "v3/kv/range", body, out);
	if (error)
		return error == -ENOENT ? -EPROTO : error;
	if (!out->has_record)
		return wh_fail(ENOENT, "registry: no engine has the name \"%s\"", name);
	if (strcmp(out->record.name, name) != 0)
		return wh_fail(EPROTO, "registry: the record under \"%s\" names another engine",
			       name);
	return 0;
}

static int etcd_find(void *backend, const char *name, struct wh_registry_record *out)
{
	struct etcd *etcd = backend;
	struct wh_etcd_answer answer;
	int error = etcd_range(etcd, name, &answer);

	if ((!error || error == -ENOENT) && (!etcd->revision || answer.revision < etcd->revision))
		etcd->revision = answer.revision;
	if (!error)
		*out = answer.record;
	return error;
}

/* Write the record, if its key still has this revision (0: does not exist). */
static int etcd_put_if(struct etcd *etcd, const struct wh_registry_record *record, int64_t revision,
		       struct wh_etcd_answer *out)
{
	struct wh_registry_record still = *record;
	char key[KEY64], json[WH_REGISTRY_RECORD_MAX], value[VALUE64];
	char body[2 * KEY64 + KEY64 + VALUE64 + 512];
	int error = etcd_grant(etcd, record->lease, &still.lease);

	if (error)
		return error;
	still.beat = 0; /* the lease replaces it */
	etcd_key(etcd, record->name, key);
	wh_base64_encode(json, wh_registry_record_format(&still, json), value);
	snprintf(
		body, sizeof(body),
		"{\"compare\": [{\"key\": \"%s\", \"target\": \"MOD\", \"mod_revision\": \"%" PRId64
		"\"}], "
		"\"success\": [{\"request_put\": {\"key\": \"%s\", \"value\": \"%s\", \"lease\": "
		"\"%" PRId64 "\"}}], \"failure\": [{\"request_range\": {\"key\": \"%s\"}}]}",
		key, revision, key, value, etcd->lease, key);
	return etcd_ask(etcd, "v3/kv/txn", body, out);
}

/* Does another engine have the name, that is not the dead one? */
static bool etcd_is_taken(const struct wh_registry_record *record,
			  const struct wh_registry_record *dead,
			  const struct wh_registry_record *found)
{
	return found->epoch != record->epoch && !(dead && found->epoch == dead->epoch);
}

static int etcd_claim(void *backend, const struct wh_registry_record *record,
		      const struct wh_registry_record *dead, struct wh_registry_record *holder)
{
	struct etcd *etcd = backend;
	struct wh_etcd_answer answer;
	int error = etcd_range(etcd, record->name, &answer);

	if (error && error != -ENOENT)
		return error;
	if (!error && etcd_is_taken(record, dead, &answer.record)) {
		*holder = answer.record;
		return wh_fail(EEXIST, "registry: the name is taken");
	}
	/* Revoke an earlier lease, whose key may be gone. If the record is ours nevertheless (an
	 * answer was lost), it moves to the new lease. */
	etcd_revoke(etcd);
	if (!error) {
		error = etcd_range(etcd, record->name, &answer);
		if (error && error != -ENOENT)
			return error;
		/* Another successor of the dead one may have been faster. */
		if (!error && etcd_is_taken(record, dead, &answer.record)) {
			*holder = answer.record;
			return wh_fail(EEXIST, "registry: the name is taken");
		}
	}
	error = etcd_put_if(etcd, record, error ? 0 : answer.record_revision, &answer);
	if (!error && !answer.succeeded) {
		error = answer.has_record ? wh_fail(EEXIST, "registry: the name is taken") :
					    wh_fail(ECONNRESET, "registry: the name has just gone");
		*holder = answer.record;
	}
	if (error == -EEXIST || error == -ECONNRESET)
		etcd_revoke(etcd);
	return error == -ENOENT ? wh_fail(ECONNRESET, "registry: the lease has ended") : error;
}

static int etcd_keep(void *backend, const struct wh_registry_record *record)
{
	struct etcd *etcd = backend;
	struct wh_etcd_answer answer;
	char body[64];
	int error;

	snprintf(body, sizeof(body), "{\"ID\": \"%" PRId64 "\"}", etcd->lease);
	error = etcd_ask(etcd, "v3/lease/keepalive", body, &answer);
	if (error)
		return error;
	if (!answer.ttl)
		return wh_fail(ENOENT, "registry: the lease has ended");
	/* The key may have been deleted by hand. */
	error = etcd_range(etcd, record->name, &answer);
	if (!error && answer.record_lease != etcd->lease)
		error = answer.record.epoch == record->epoch ?
				wh_fail(ENOENT, "registry: the record has lost its lease") :
				wh_fail(EEXIST, "registry: the name is taken");
	return error;
}

/* The key goes with its lease. */
static int etcd_release(void *backend, const struct wh_registry_record *record)
{
	(void)record;
	etcd_revoke(backend);
	return 0;
}

static int etcd_wait(void *backend, int wake, int64_t timeout,
		     const char (*names)[WH_REGISTRY_NAME_MAX], size_t count)
{
	struct etcd *etcd = backend;
	int64_t revision = etcd->revision;

	etcd->revision = 0;
	return wh_etcd_watch_wait(&etcd->watch, wake, timeout, revision, names, count, etcd_key,
				  etcd);
}

const struct wh_registry_ops wh_registry_etcd = {
	.scheme = "etcd",
	.open = etcd_open,
	.close = etcd_close,
	.claim = etcd_claim,
	.keep = etcd_keep,
	.release = etcd_release,
	.find = etcd_find,
	.wait = etcd_wait,
};
