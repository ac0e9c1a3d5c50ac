/* SPDX-License-Identifier: Apache-2.0 */
/* Stores of metadata, by libcurl or hiredis: the keys of Mooncake's engines as they write them
 * themselves. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "compat/mooncake/store.h"
#include "rendezvous/etcd.h"

#define KEY_MAX 1024

struct store {
	struct wh_curl curl;
	struct wh_registry_url url;
	atomic_bool stop; /* never set: a call ends when its time has run out */
	bool etcd;
	bool known; /* etcd has given a token for the user */
	void *redis; /* NULL: by curl */
	char cluster[256]; /* "": none */
};

static int refuse(const struct wh_registry_url *url)
{
	bool etcd = !strcmp(url->scheme, "etcd"), redis = !strcmp(url->scheme, "redis");

	if (!etcd && !redis && url->count > 1)
		return wh_fail(EINVAL, "mooncake: http:// takes one host, %u are given",
			       url->count);
	if (etcd && *url->path)
		return wh_fail(EINVAL,
			       "mooncake: etcd:// takes no path: Mooncake's keys are mooncake/...");
	if (etcd && *url->password && !*url->user)
		return wh_fail(EINVAL, "mooncake: etcd:// has no password without a user: "
				       "etcd://USER:PASSWORD@HOST:PORT");
	return 0;
}

/* What the URL leaves open. */
static int take(char *out, size_t size, const char *text, const char *what)
{
	if (*out || !text)
		return 0;
	if (strlen(text) >= size)
		return wh_fail(EINVAL, "mooncake: the %s of the store has more than %zu bytes",
			       what, size - 1);
	memcpy(out, text, strlen(text) + 1);
	return 0;
}

static int open_redis(struct store *store, const struct wh_registry_setup *setup,
		      const struct wh_mooncake_store_setup *given)
{
#ifdef HAVE_HIREDIS
	int error = take(store->url.user, sizeof(store->url.user), given->user, "user");

	if (!error)
		error = take(store->url.password, sizeof(store->url.password), given->password,
			     "password");
	/* A user without a password is nobody. */
	if (!*store->url.password)
		store->url.user[0] = '\0';
	if (!error)
		error = take(store->url.path, sizeof(store->url.path), given->database, "database");
	return error ? error : wh_redis_open(setup, &store->redis);
#else
	(void)store, (void)setup, (void)given;
	return wh_fail(EINVAL, "mooncake: this was built without hiredis, which redis:// wants");
#endif
}

static int open_curl(struct store *store, const struct wh_registry_setup *setup)
{
	int error = wh_curl_open(&store->curl, setup);

	/* Of etcd they are for a token. */
	if (!error && !store->etcd && (*store->url.user || *store->url.password)) {
		curl_easy_setopt(store->curl.easy, CURLOPT_HTTPAUTH, CURLAUTH_BASIC);
		curl_easy_setopt(store->curl.easy, CURLOPT_USERNAME, store->url.user);
		curl_easy_setopt(store->curl.easy, CURLOPT_PASSWORD, store->url.password);
	}
	return error;
}

static void forget(struct store *store)
{
	/* The password was in it. */
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
		error = refuse(&store->url);
	if (!error)
		error = take(store->cluster, sizeof(store->cluster), given->cluster,
			     "cluster's name");
	store->etcd = !strcmp(store->url.scheme, "etcd");
	setup.url = &store->url;
	setup.stop = &store->stop;
	if (!error)
		error = strcmp(store->url.scheme, "redis") != 0 ? open_curl(store, &setup) :
								  open_redis(store, &setup, given);
	if (error)
		forget(store);
	else
		*out = store;
	return error;
}

static void store_close(void *argument)
{
	struct store *store = argument;

#ifdef HAVE_HIREDIS
	if (store->redis)
		wh_redis_close(store->redis);
#endif
	if (!store->redis)
		wh_curl_close(&store->curl);
	forget(store);
}

/* mooncake/KEY, or mooncake/CLUSTER/KEY. */
static int place_of(const struct store *store, const char *key, char out[KEY_MAX])
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

/* ---- HTTP ---------------------------------------------------------------------------------- */

static int ask_http(struct store *store, const char *verb, const char *key, const char *value)
{
	size_t length = value ? strlen(value) : 0;
	char *escaped = curl_easy_escape(store->curl.easy, key, 0);
	char path[1024];
	int used;

	if (!escaped)
		return wh_fail(ENOMEM, "mooncake: no memory");
	used = snprintf(path, sizeof(path), "%s?key=%s", store->url.path, escaped);
	curl_free(escaped);
	if (used >= (int)sizeof(path))
		return wh_fail(EINVAL, "mooncake: the name in the key %.60s... is too long", key);
	return wh_curl_request(&store->curl, verb, path, value, length);
}

/* ---- etcd ---------------------------------------------------------------------------------- */

static int set_token(struct store *store, const char *token)
{
	int error = wh_curl_set_token(&store->curl, token);

	if (!error)
		store->known = *token;
	return error;
}

/* What etcd has answered to a user and a password. */
static int take_token(struct store *store)
{
	json_t *answer = json_loadb(store->curl.body, store->curl.length, 0, NULL);
	const char *token = json_string_value(json_object_get(answer, "token"));
	const char *said = json_string_value(json_object_get(answer, "error"));
	int error;

	/* Who has no users asks for none. */
	if (said && strstr(said, "authentication is not enabled"))
		error = 0;
	else if (store->curl.status != 200)
		error = wh_fail(EACCES,
				"mooncake: etcd at %.80s does not take the user or the password "
				"(HTTP status %ld)",
				store->url.endpoint[store->curl.endpoint], store->curl.status);
	else if (!token)
		error = wh_fail(EPROTO, "mooncake: etcd has answered with no token");
	else
		error = set_token(store, token);
	json_decref(answer);
	return error;
}

static int log_in(struct store *store)
{
	json_t *object =
		json_pack("{s:s, s:s}", "name", store->url.user, "password", store->url.password);
	char *body = object ? json_dumps(object, JSON_COMPACT) : NULL;
	int error = body ? set_token(store, "") :
			   wh_fail(EINVAL, "mooncake: user and password are UTF-8");

	if (!error)
		error = wh_curl_request(&store->curl, "POST", "v3/auth/authenticate", body,
					strlen(body));
	if (!error)
		error = take_token(store);
	json_decref(object);
	if (body)
		explicit_bzero(body, strlen(body));
	free(body);
	return error;
}

/* A token is one server's, and ends some time: then there is another one. */
static int ask_known(struct store *store, const char *path, const char *body, size_t length)
{
	bool fresh = *store->url.user && !store->known;
	int error = fresh ? log_in(store) : 0;

	if (!error)
		error = wh_curl_request(&store->curl, "POST", path, body, length);
	if (error || store->curl.status != 401 || fresh || !*store->url.user)
		return error;
	error = log_in(store);
	return error ? error : wh_curl_request(&store->curl, "POST", path, body, length);
}

static int ask_etcd(struct store *store, const char *path, const char *key, const char *value)
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
	error = ask_known(store, path, body, (size_t)(at - body));
	free(body);
	if (!error && store->curl.status != 200)
		error = wh_curl_unexpected(&store->curl);
	return error;
}

static int take_value(const json_t *object, char **value, size_t *length)
{
	const json_t *pairs = json_object_get(object, "kvs");
	const char *text = json_string_value(json_object_get(json_array_get(pairs, 0), "value"));
	size_t room;
	long used;
	char *bytes;

	if (!json_is_object(object) || (pairs && !json_is_array(pairs)))
		return wh_fail(EPROTO, "mooncake: this is no answer of etcd's");
	if (!json_array_size(pairs))
		return wh_fail(ENOENT, "mooncake: there is no such key");
	/* One that is empty is left out. */
	if (!text)
		text = "";
	room = strlen(text) / 4 * 3;
	bytes = malloc(room + 1);
	if (!bytes)
		return wh_fail(ENOMEM, "mooncake: no memory");
	used = wh_base64_decode(text, bytes, room);
	if (used < 0) {
		free(bytes);
		return wh_fail(EPROTO, "mooncake: the value in etcd's answer is no Base64");
	}
	bytes[used] = '\0';
	*value = bytes;
	*length = (size_t)used;
	return 0;
}

int wh_mooncake_etcd_value(const char *json, size_t length, char **value, size_t *value_length)
{
	json_t *object = json_loadb(json, length, 0, NULL);
	int error = take_value(object, value, value_length);

	json_decref(object);
	return error;
}

/* ---- both ---------------------------------------------------------------------------------- */

static int get_http(struct store *store, const char *key, char **value, size_t *length)
{
	int error = ask_http(store, "GET", key, NULL);

	if (error)
		return error;
	if (store->curl.status == 404)
		return wh_fail(ENOENT, "mooncake: there is no such key");
	if (store->curl.status != 200)
		return wh_curl_unexpected(&store->curl);
	*value = malloc(store->curl.length + 1);
	if (!*value)
		return wh_fail(ENOMEM, "mooncake: no memory");
	memcpy(*value, store->curl.body, store->curl.length);
	(*value)[store->curl.length] = '\0';
	*length = store->curl.length;
	return 0;
}

static int store_get(void *argument, const char *name, char **value, size_t *length)
{
	struct store *store = argument;
	char key[KEY_MAX];
	int error = place_of(store, name, key);

	if (error)
		return error;
#ifdef HAVE_HIREDIS
	if (store->redis)
		return wh_redis_get(store->redis, key, value, length);
#endif
	if (!store->etcd)
		return get_http(store, key, value, length);
	error = ask_etcd(store, "v3/kv/range", key, NULL);
	return error ? error :
		       wh_mooncake_etcd_value(store->curl.body, store->curl.length, value, length);
}

static int store_put(void *argument, const char *name, const char *value)
{
	struct store *store = argument;
	char key[KEY_MAX];
	int error = place_of(store, name, key);

	if (error)
		return error;
#ifdef HAVE_HIREDIS
	if (store->redis)
		return wh_redis_put(store->redis, key, value);
#endif
	if (store->etcd)
		return ask_etcd(store, "v3/kv/put", key, value);
	error = ask_http(store, "PUT", key, value);
	if (!error && store->curl.status != 200)
		error = wh_curl_unexpected(&store->curl);
	return error;
}

static int store_remove(void *argument, const char *name)
{
	struct store *store = argument;
	char key[KEY_MAX];
	int error = place_of(store, name, key);

	if (error)
		return error;
#ifdef HAVE_HIREDIS
	if (store->redis)
		return wh_redis_remove(store->redis, key);
#endif
	if (store->etcd)
		return ask_etcd(store, "v3/kv/deleterange", key, NULL);
	error = ask_http(store, "DELETE", key, NULL);
	if (!error && store->curl.status != 200 && store->curl.status != 404)
		error = wh_curl_unexpected(&store->curl);
	return error;
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
