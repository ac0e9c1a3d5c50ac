/* SPDX-License-Identifier: Apache-2.0 */
/* etcd by the JSON gateway of its API v3: Base64, answers, requests, watches. */
#ifndef WH_RENDEZVOUS_ETCD_H
#define WH_RENDEZVOUS_ETCD_H

#include "rendezvous/module.h"

#define WH_ETCD_KEY_MAX 256 /* with the NUL */

/* Base64 with the NUL. */
#define WH_BASE64_SIZE(n) (((n) + 2) / 3 * 4 + 1)

void wh_base64_encode(const void *bytes, size_t length, char *out);
/* Returns the bytes decoded; -1: not Base64, or more than `room` bytes. */
long wh_base64_decode(const char *text, char *out, size_t room);

/* The error in an answer; the text is "" if there is none. */
struct wh_etcd_error {
	char text[128];
	int64_t code; /* gRPC's */
};

/* An answer. Fields that it leaves out are 0 or "". */
struct wh_etcd_answer {
	int64_t revision; /* of the whole store */
	int64_t lease, ttl; /* s */
	bool succeeded; /* a transaction: its comparison held */
	bool has_record; /* the key exists; its value is in `record` */
	int64_t record_lease, record_revision;
	struct wh_registry_record record;
	char token[WH_TOKEN_MAX]; /* secret; "": none, or a longer one */
	struct wh_etcd_error error;
};

/* Parse the answer to a range, a transaction, a lease or a login. -EPROTO: not such an answer, or a
 * value that is not an engine's record; *out then holds the fields parsed before it. */
int wh_etcd_parse(const char *json, size_t length, struct wh_etcd_answer *out);

/* Find the error in an answer. 0, or -EPROTO: not an answer of etcd's. */
int wh_etcd_parse_error(const char *json, size_t length, struct wh_etcd_error *out);

/* The value of the first key in the answer to a range, malloc()ed, and a NUL behind it. 0, -ENOENT
 * (no such key), -EPROTO, -ENOMEM. */
int wh_etcd_parse_value(const char *json, size_t length, char **value, size_t *value_length);

/* Parse one line of a watch. 1: a key has changed, or this watch has ended; 0: neither; -EPROTO. */
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

/* A stream from etcd that reports changes of some keys. */
struct wh_etcd_watch {
	struct wh_curl *curl; /* gives endpoint, headers and options */
	CURLM *multi;
	CURL *easy; /* NULL: no stream */
	unsigned endpoint; /* the one that the stream comes from */
	char *names; /* watched, each with a NUL behind it */
	size_t names_length;
	char *request; /* its body */
	char *line; /* the part received so far */
	size_t length, room;
	bool changed, ended;
	struct curl_slist *headers;
};

/* As wh_registry_ops.wait. `key` writes a name's key in Base64. */
int wh_etcd_watch_wait(struct wh_etcd_watch *watch, int wake, int64_t timeout, int64_t revision,
		       const char (*names)[WH_REGISTRY_NAME_MAX], size_t count,
		       void (*key)(const void *arg, const char *name, char *out), const void *arg);
void wh_etcd_watch_close(struct wh_etcd_watch *watch);

#endif
