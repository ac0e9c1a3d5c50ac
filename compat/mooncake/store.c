/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mooncake's metadata stores: keys as Mooncake's engines write them, in a web server, etcd or
 * redis, through the clients that the registries use (rendezvous/module.h). Part of
 * libwherry-registry.so.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compat/mooncake/store.h"
#include "rendezvous/etcd.h"

#define KEY_MAX 1024

enum store_kind { STORE_HTTP, STORE_ETCD, STORE_REDIS };

struct store {
	enum store_kind kind;
	struct wh_etcd etcd; /* etcd, and its `curl` for HTTP, too */
	void *redis;
	struct wh_registry_url url;
	atomic_bool stop; /* never set: the timeout ends a call */
	char cluster[256]; /* "": none */
};

static int store_check_url(const struct wh_registry_url *url)
{
	if (strcmp(url->scheme, "etcd") != 0)
		return 0;
	if (*url->path)
		return wh_fail(EINVAL,
			       "mooncake: etcd:// takes no path: Mooncake's keys are mooncake/...");
	if (*url->password && !*url->user)
		return wh_fail(EINVAL, "mooncake: etcd:// has no password without a user: "
				       "etcd://USER:PASSWORD@HOST:PORT");
	return 0;
}

/* Set what the URL leaves open. */
static int store_default(char *out, size_t size, const char *text, const char *what)
{
	if (*out || !text)
		return 0;
	if (strlen(text) >= size)
		return wh_fail(EINVAL, "mooncake: the %s of the store has more than %zu bytes",
			       what, size - 1);
	memcpy(out, text, strlen(text) + 1);
	return 0;
}

static int store_open_redis(struct store *store, const struct wh_registry_setup *setup,
			    const struct wh_mooncake_store_setup *given)
{
#ifdef HAVE_HIREDIS
	struct wh_registry_url *url = &store->url;
	int error = store_default(url->user, sizeof(url->user), given->user, "user");

	if (!error)
		error = store_default(url->password, sizeof(url->password), given->password,
				      "password");
	/* Redis has no user without a password. */
	if (!*url->password)
		url->user[0] = '\0';
	if (!error)
		error = store_default(url->path, sizeof(url->path), given->database, "database");
	return error ? error : wh_redis_open(setup, &store->redis);
#else
	(void)store, (void)setup, (void)given;
	return wh_fail(EINVAL,
		       "mooncake: redis:// needs hiredis, and this build of Wherry is without it");
#endif
}

static void store_free(struct store *store)
{
	/* It holds the password. */
	explicit_bzero(&store->url, sizeof(store->url));
	free(store);
}

static int store_open(const struct wh_mooncake_store_setup *given, void **out)
{
	struct store *store = calloc(1, sizeof(*store));
	struct wh_registry_setup setup = { .timeout = given->timeout };
	int error;

	if (!store)
		return wh_fail(ENOMEM, "mooncake: no memory");
	error = wh_registry_url_parse(given->url, &store->url);
	if (!error)
		error = store_check_url(&store->url);
	if (!error)
		error = store_default(store->cluster, sizeof(store->cluster), given->cluster,
				      "cluster's name");
	store->kind = !strcmp(store->url.scheme, "etcd")  ? STORE_ETCD :
		      !strcmp(store->url.scheme, "redis") ? STORE_REDIS :
							    STORE_HTTP;
	setup.url = &store->url;
	setup.stop = &store->stop;
	if (!error)
		error = store->kind == STORE_REDIS ? store_open_redis(store, &setup, given) :
						     wh_curl_open(&store->etcd.curl, &setup);
	if (error)
		store_free(store);
	else
		*out = store;
	return error;
}

static void store_close(void *argument)
{
	struct store *store = argument;

#ifdef HAVE_HIREDIS
	if (store->kind == STORE_REDIS)
		wh_redis_close(store->redis);
#endif
	if (store->kind != STORE_REDIS)
		wh_curl_close(&store->etcd.curl);
	store_free(store);
}

/* "mooncake/KEY", or "mooncake/CLUSTER/KEY" with a cluster. */
static int store_key(const struct store *store, const char *key, char out[KEY_MAX])
{
	static const char prefix[] = "mooncake/";
	size_t length = strlen(store->cluster);
	int used;

	if (!length || strncmp(key, prefix, strlen(prefix)) != 0)
		used = snprintf(out, KEY_MAX, "%s", key);
	else
		used = snprintf(out, KEY_MAX, "%s%s%s%s", prefix, store->cluster,
				store->cluster[length - 1] == '/' ? "" : "/", key + strlen(prefix));
	return used < KEY_MAX ? 0 : wh_fail(EINVAL, "mooncake: the key %.60s... is too long", key);
}

/* Status 200 or `also`; any other is an error. */
static int store_ask_http(struct store *store, const char *verb, const char *key, const char *value,
			  long also)
{
	struct wh_curl *curl = &store->etcd.curl;
	char *escaped = curl_easy_escape(curl->easy, key, 0);
	char path[1024];
	int used, error;

	if (!escaped)
		return wh_fail(ENOMEM, "mooncake: no memory");
	used = snprintf(path, sizeof(path), "%s?key=%s", store->url.path, escaped);
	curl_free(escaped);
	if (used >= (int)sizeof(path))
		return wh_fail(EINVAL, "mooncake: the name in the key %.60s... is too long", key);
	error = wh_curl_request(curl, verb, path, value, value ? strlen(value) : 0);
	if (error || curl->status == 200 || curl->status == also)
		return error;
	return wh_curl_unexpected(curl);
}

static int store_ask_etcd(struct store *store, const char *path, const char *key, const char *value)
{
	size_t key_length = strlen(key), length = value ? strlen(value) : 0;
	char *body = malloc(WH_BASE64_SIZE(key_length) + WH_BASE64_SIZE(length) + 64), *at = body;
	int error;

	if (!body)
		return wh_fail(ENOMEM, "mooncake: no memory");
	at = stpcpy(at, "{\"key\": \"");
	wh_base64_encode(key, key_length, at);
	at += strlen(at);
	if (value) {
		at = stpcpy(at, "\", \"value\": \"");
		wh_base64_encode(value, length, at);
		at += strlen(at);
	}
	at = stpcpy(at, "\"}");
	error = wh_etcd_request(&store->etcd, path, body, (size_t)(at - body));
	free(body);
	return error == -ENOENT ? wh_fail(ENOENT, "mooncake: etcd has no such key") : error;
}

static int store_get_http(struct store *store, const char *key, char **value, size_t *length)
{
	const struct wh_curl *curl = &store->etcd.curl;
	int error = store_ask_http(store, "GET", key, NULL, 404);

	if (error)
		return error;
	if (curl->status == 404)
		return wh_fail(ENOENT, "mooncake: the store has no such key");
	*value = malloc(curl->length + 1);
	if (!*value)
		return wh_fail(ENOMEM, "mooncake: no memory");
	memcpy(*value, curl->body, curl->length);
	(*value)[curl->length] = '\0';
	*length = curl->length;
	return 0;
}

static int store_get(void *argument, const char *name, char **value, size_t *length)
{
	struct store *store = argument;
	char key[KEY_MAX];
	int error = store_key(store, name, key);

	if (error)
		return error;
#ifdef HAVE_HIREDIS
	if (store->kind == STORE_REDIS)
		return wh_redis_get(store->redis, key, value, length);
#endif
	if (store->kind == STORE_HTTP)
		return store_get_http(store, key, value, length);
	error = store_ask_etcd(store, "v3/kv/range", key, NULL);
	return error ? error :
		       wh_etcd_parse_value(store->etcd.curl.body, store->etcd.curl.length, value,
					   length);
}

static int store_put(void *argument, const char *name, const char *value)
{
	struct store *store = argument;
	char key[KEY_MAX];
	int error = store_key(store, name, key);

	if (error)
		return error;
#ifdef HAVE_HIREDIS
	if (store->kind == STORE_REDIS)
		return wh_redis_put(store->redis, key, value);
#endif
	return store->kind == STORE_ETCD ? store_ask_etcd(store, "v3/kv/put", key, value) :
					   store_ask_http(store, "PUT", key, value, 200);
}

static int store_remove(void *argument, const char *name)
{
	struct store *store = argument;
	char key[KEY_MAX];
	int error = store_key(store, name, key);

	if (error)
		return error;
#ifdef HAVE_HIREDIS
	if (store->kind == STORE_REDIS)
		return wh_redis_remove(store->redis, key);
#endif
	return store->kind == STORE_ETCD ? store_ask_etcd(store, "v3/kv/deleterange", key, NULL) :
					   store_ask_http(store, "DELETE", key, NULL, 404);
}

static const struct wh_mooncake_store_ops ops = {
	.version = WH_MOONCAKE_STORE,
	.open = store_open,
	.close = store_close,
	.get = store_get,
	.put = store_put,
	.remove = store_remove,
	.text = wh_fail_text,
};

__attribute__((visibility("default"))) const struct wh_mooncake_store_ops *wh_mooncake_store(void)
{
	return &ops;
}
