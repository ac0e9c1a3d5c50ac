/* SPDX-License-Identifier: Apache-2.0 */
/* What the backends share in the module libwherry-registry.so. */
#ifndef WH_RENDEZVOUS_MODULE_H
#define WH_RENDEZVOUS_MODULE_H

#include <curl/curl.h>
#include <sys/types.h>

#include "rendezvous/registry.h"

/* The key of an engine's record: this and its name. */
#define WH_REGISTRY_PREFIX "wherry/engine/"
#define WH_REGISTRY_KEY_MAX 256

extern const struct wh_registry_ops wh_registry_http, wh_registry_etcd, wh_registry_redis;

/* Can the file of key= be read, and without a password? OpenSSL would ask for one on the terminal.
 * 0, -EINVAL or an errno of the file. */
int wh_registry_key_check(const struct wh_registry_url *url);

/* ---- what is not HTTP ---------------------------------------------------------------------- */

/* To the first endpoint of a URL. */
struct wh_connection {
	const struct wh_registry_url *url;
	const atomic_bool *stop;
	int fd; /* -1: there is none now */
	struct ssl_ctx_st *context; /* NULL: plain */
	struct ssl_st *tls;
	char host[272], port[8];
};

/* Reads the certificates. Both are good as long as the connection. 0; -EINVAL or an errno of a
 * file, naming it. */
int wh_connection_init(struct wh_connection *connection, const struct wh_registry_setup *setup);
void wh_connection_destroy(struct wh_connection *connection);
/* These return a backend's error; after one there is nothing to do but wh_connection_end(). */
int wh_connection_begin(struct wh_connection *connection, int64_t deadline);
int wh_connection_send(struct wh_connection *connection, const char *bytes, size_t length,
		       int64_t deadline);
/* At least one byte. */
ssize_t wh_connection_receive(struct wh_connection *connection, char *bytes, size_t room,
			      int64_t deadline);
void wh_connection_end(struct wh_connection *connection);

/* ---- redis --------------------------------------------------------------------------------- */

/* A string for each key, for Mooncake's metadata; `setup` as for a registry. */
int wh_redis_open(const struct wh_registry_setup *setup, void **out);
void wh_redis_close(void *redis);
/* malloc()ed, and a NUL behind it; -ENOENT. */
int wh_redis_get(void *redis, const char *key, char **value, size_t *length);
int wh_redis_put(void *redis, const char *key, const char *value);
int wh_redis_remove(void *redis, const char *key);

/* ---- HTTP ---------------------------------------------------------------------------------- */

#define WH_CURL_BODY_MAX (1 << 20)

/* A connection that is kept, to the endpoint that answered last. */
struct wh_curl {
	CURL *easy;
	const struct wh_registry_url *url;
	int64_t timeout; /* ms */
	const atomic_bool *stop;
	unsigned endpoint;
	struct curl_slist *headers; /* for every request; owned */
	bool wherry; /* the answer was wherry registry's */
	long status; /* 0: there is no answer */
	char *body; /* of the answer, and a NUL behind it */
	size_t length, room;
	bool too_long;
	char why[CURL_ERROR_SIZE];
};

int wh_curl_open(struct wh_curl *curl, const struct wh_registry_setup *setup);
void wh_curl_close(struct wh_curl *curl);
/* Ask each endpoint in turn, the one that answered last first. `path` is what follows HOST:PORT/.
 * `body` may be NULL. 0: there is an answer, whatever its status; or a backend's error. */
int wh_curl_request(struct wh_curl *curl, const char *method, const char *path, const char *body,
		    size_t length);
/* Certificates, user and limits, for one more handle of the same registry. */
void wh_curl_prepare(const struct wh_curl *curl, CURL *easy);
#define WH_TOKEN_MAX 2048 /* with the NUL; etcd's that are signed have some 500 bytes */
/* Requests to etcd have this token in a header from now on; "": none. 0, -EPROTO (it is none),
 * -ENOMEM. */
int wh_curl_set_token(struct wh_curl *curl, const char *token);
/* -EPROTO, -EACCES, or -ETIMEDOUT (status 503: busy) for an answer that was not expected; the text
 * has what it says, if there is no password. */
int wh_curl_unexpected(const struct wh_curl *curl);

#endif
