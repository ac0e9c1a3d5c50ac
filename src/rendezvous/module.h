/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of libwherry-registry.so, and what its backends share: sockets with TLS, redis, HTTP.
 */
#ifndef WH_RENDEZVOUS_MODULE_H
#define WH_RENDEZVOUS_MODULE_H

#include <curl/curl.h>
#include <sys/types.h>

#include "rendezvous/registry.h"

/* An engine's record is stored under this prefix and the engine's name. */
#define WH_REGISTRY_PREFIX "wherry/engine/"
#define WH_REGISTRY_KEY_MAX 256

extern const struct wh_registry_ops wh_registry_http, wh_registry_etcd, wh_registry_redis;

/* Check that the file of key= can be read and is not encrypted: OpenSSL would ask for the password
 * on the terminal. 0, -EINVAL (encrypted), or a negative errno of the file. */
int wh_registry_key_check(const struct wh_registry_url *url);

/* ---- sockets, with TLS or without ---------------------------------------------------------- */

/* A connection to the first endpoint of a URL. */
struct wh_connection {
	const struct wh_registry_url *url;
	const atomic_bool *stop;
	int fd; /* -1: not connected */
	struct ssl_ctx_st *context; /* NULL: plain */
	struct ssl_st *tls;
	char host[272], port[8];
};

/* Prepare a connection; reads the certificates. `setup` and its URL must outlive it. 0, or -EINVAL
 * or a negative errno, whose text names the file. */
int wh_connection_init(struct wh_connection *connection, const struct wh_registry_setup *setup);
void wh_connection_destroy(struct wh_connection *connection);
/* These block until the deadline (wh_now()) at most and return a backend's error; after one, call
 * wh_connection_end(). */
int wh_connection_begin(struct wh_connection *connection, int64_t deadline);
int wh_connection_send(struct wh_connection *connection, const char *bytes, size_t length,
		       int64_t deadline);
/* Receive at least one byte; returns how many. */
ssize_t wh_connection_receive(struct wh_connection *connection, char *bytes, size_t room,
			      int64_t deadline);
void wh_connection_end(struct wh_connection *connection);

/* ---- redis --------------------------------------------------------------------------------- */

/* Redis as a store of strings, for Mooncake's metadata. `setup` as for a registry. */
int wh_redis_open(const struct wh_registry_setup *setup, void **out);
void wh_redis_close(void *redis);
/* *value: malloc()ed, and a NUL behind it. 0, -ENOENT, or a backend's error. */
int wh_redis_get(void *redis, const char *key, char **value, size_t *length);
int wh_redis_put(void *redis, const char *key, const char *value);
int wh_redis_remove(void *redis, const char *key);

/* ---- HTTP ---------------------------------------------------------------------------------- */

#define WH_CURL_BODY_MAX (1 << 20)

/* An HTTP client that keeps its connection to the endpoint that answered last. */
struct wh_curl {
	CURL *easy;
	const struct wh_registry_url *url;
	int64_t timeout; /* ms */
	const atomic_bool *stop;
	unsigned endpoint;
	struct curl_slist *headers; /* for every request; owned */
	bool wherry; /* the answer came from `wherry registry` */
	long status; /* HTTP status; 0: no answer */
	char *body; /* of the answer, with a NUL behind it; owned */
	size_t length, room;
	bool too_long;
	char why[CURL_ERROR_SIZE];
};

/* With http://, requests carry the URL's user and password; etcd wants a token instead. 0, -EINVAL,
 * -ENOMEM. */
int wh_curl_open(struct wh_curl *curl, const struct wh_registry_setup *setup);
void wh_curl_close(struct wh_curl *curl);
/* Send the request to the endpoint that answered last, then to each of the others until one answers
 * with a status below 500. `path`: what follows HOST:PORT/. `body`: may be NULL. 0: answered, with
 * any such status; else a backend's error. */
int wh_curl_request(struct wh_curl *curl, const char *method, const char *path, const char *body,
		    size_t length);
/* Set certificates and limits of another handle for the same registry. */
void wh_curl_prepare(const struct wh_curl *curl, CURL *easy);
#define WH_TOKEN_MAX 2048 /* with the NUL; etcd's signed tokens have some 500 bytes */
/* Send this token of etcd's with each request from now on; "": none. 0, -EPROTO (not a token),
 * -ENOMEM. */
int wh_curl_set_token(struct wh_curl *curl, const char *token);
/* The error for an answer with an unexpected status: -EACCES (401, 403), -ETIMEDOUT (503: busy),
 * else -EPROTO. The text quotes the answer's first line, unless the URL has a user or a password.
 */
int wh_curl_unexpected(const struct wh_curl *curl);

#endif
