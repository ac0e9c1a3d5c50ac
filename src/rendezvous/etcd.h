/* SPDX-License-Identifier: Apache-2.0 */
/* etcd's JSON: what is asked of it, what it answers. No network. */
#ifndef WH_RENDEZVOUS_ETCD_H
#define WH_RENDEZVOUS_ETCD_H

#include "rendezvous/module.h"

#define WH_ETCD_KEY_MAX 256 /* with the NUL */

/* Base64 with the NUL. */
#define WH_BASE64_SIZE(n) (((n) + 2) / 3 * 4 + 1)

void wh_base64_encode(const void *bytes, size_t length, char *out);
/* -1: not Base64, or more than `room` bytes; else how many. */
long wh_base64_decode(const char *text, char *out, size_t room);

/* The error in an answer; the text is "" if there is none. */
struct wh_etcd_error {
	char text[128];
	int64_t code; /* gRPC's */
};

/* What an answer says; what it does not say is 0 or "". */
struct wh_etcd_answer {
	int64_t revision; /* of the store */
	int64_t lease, ttl; /* s */
	bool succeeded; /* a transaction's comparison */
	bool has_record; /* there is a key, and its value follows */
	int64_t record_lease, record_revision;
	struct wh_registry_record record;
	char token[WH_TOKEN_MAX]; /* secret; "": none, or a longer one */
	struct wh_etcd_error error;
};

/* The answer to a range, a transaction, a lease or a login. -EPROTO: not such an answer, or a value
 * that is no engine's record. Then *out holds what was understood before. */
int wh_etcd_parse(const char *json, size_t length, struct wh_etcd_answer *out);

/* Find the error in an answer. 0, or -EPROTO: not an answer of etcd's. */
int wh_etcd_parse_error(const char *json, size_t length, struct wh_etcd_error *out);

/* The value of the first key in the answer to a range, malloc()ed, and a NUL behind it. 0, -ENOENT
 * (no such key), -EPROTO, -ENOMEM. */
int wh_etcd_parse_value(const char *json, size_t length, char **value, size_t *value_length);

/* One line of a watch. 1: something has changed, or this watch has ended; 0: nothing; -EPROTO. */
int wh_etcd_parse_watch(const char *json, size_t length);

/* ---- requests -------------------------------------------------------------------------------- */

struct wh_etcd {
	struct wh_curl curl; /* opened by the caller */
	bool has_token;
};

/* POST `body` to v3/...; logs in first if the URL has a user. 0: etcd has done it, and its answer
 * is in etcd->curl.body. Blocks. -ENOENT, without a text: no such key or lease; else a backend's
 * error. */
int wh_etcd_request(struct wh_etcd *etcd, const char *path, const char *body, size_t length);

/* ---- watching -------------------------------------------------------------------------------- */

/* A stream from etcd that says which of some keys change. */
struct wh_etcd_watch {
	struct wh_curl *curl; /* whose endpoint, headers and options are taken */
	CURLM *multi;
	CURL *easy; /* NULL: no stream */
	unsigned endpoint; /* where it is from */
	char *names; /* that are watched: each and a NUL */
	size_t names_length;
	char *ask; /* the body of the request */
	char *line; /* what has come of the line */
	size_t length, room;
	bool changed, ended;
	struct curl_slist *headers;
};

/* As the backend's wait(). `key` makes a key, in Base64, of a name. */
int wh_etcd_watch_wait(struct wh_etcd_watch *watch, int wake, int64_t timeout, int64_t revision,
		       const char (*names)[WH_REGISTRY_NAME_MAX], size_t count,
		       void (*key)(const void *arg, const char *name, char *out), const void *arg);
void wh_etcd_watch_close(struct wh_etcd_watch *watch);

#endif
