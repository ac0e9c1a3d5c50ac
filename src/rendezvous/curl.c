/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP requests by libcurl, one at a time, over the endpoints of a registry's URL. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/module.h"

#define FIRST_ROOM 4096

static size_t curl_take_body(char *data, size_t size, size_t count, void *argument)
{
	struct wh_curl *curl = argument;
	size_t length = size * count, room = curl->room;
	char *more;

	if (length > WH_CURL_BODY_MAX - curl->length) {
		curl->too_long = true;
		return 0;
	}
	while (curl->length + length + 1 > room)
		room = room ? 2 * room : FIRST_ROOM;
	if (room != curl->room) {
		more = realloc(curl->body, room);
		if (!more)
			return 0;
		curl->body = more;
		curl->room = room;
	}
	memcpy(curl->body + curl->length, data, length);
	curl->length += length;
	curl->body[curl->length] = '\0';
	return length;
}

static size_t curl_take_header(char *data, size_t size, size_t count, void *argument)
{
	static const char name[] = "wherry-registry:";
	struct wh_curl *curl = argument;

	if (size * count >= sizeof(name) - 1 && !strncasecmp(data, name, sizeof(name) - 1))
		curl->wherry = true;
	return size * count;
}

static int curl_stopped(void *argument, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
	const struct wh_curl *curl = argument;

	(void)a, (void)b, (void)c, (void)d;
	return atomic_load(curl->stop);
}

void wh_curl_prepare(const struct wh_curl *curl, CURL *easy)
{
	const struct wh_registry_url *url = curl->url;

	curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	/* libcurl would read the environment for it; only the table of settings does. */
	curl_easy_setopt(easy, CURLOPT_PROXY, "");
	curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, url->tls ? "https" : "http");
	curl_easy_setopt(easy, CURLOPT_TCP_NODELAY, 1L);
	curl_easy_setopt(easy, CURLOPT_USERAGENT, "wherry");
	if (url->tls)
		curl_easy_setopt(easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
	if (*url->cacert)
		curl_easy_setopt(easy, CURLOPT_CAINFO, url->cacert);
	if (*url->cert) {
		curl_easy_setopt(easy, CURLOPT_SSLCERT, url->cert);
		curl_easy_setopt(easy, CURLOPT_SSLKEY, url->key);
		curl_easy_setopt(easy, CURLOPT_KEYPASSWD, ""); /* else OpenSSL asks for one */
	}
}

int wh_curl_open(struct wh_curl *curl, const struct wh_registry_setup *setup)
{
	const struct wh_registry_url *url = setup->url;
	bool http = !strcmp(url->scheme, "http");
	int error = wh_registry_key_check(url);

	if (http && url->count > 1)
		return wh_fail(EINVAL, "registry: http:// takes one host, not %u", url->count);
	if (error)
		return error;
	*curl = (struct wh_curl){ .url = url, .timeout = setup->timeout, .stop = setup->stop };
	if (curl_global_init(CURL_GLOBAL_DEFAULT))
		return wh_fail(ENOMEM, "registry: libcurl cannot start");
	curl->easy = curl_easy_init();
	if (!curl->easy) {
		curl_global_cleanup();
		return wh_fail(ENOMEM, "registry: no memory");
	}
	curl->headers = curl_slist_append(NULL, "Content-Type: application/json");
	wh_curl_prepare(curl, curl->easy);
	/* etcd exchanges them for a token. */
	if (http && (*url->user || *url->password)) {
		curl_easy_setopt(curl->easy, CURLOPT_HTTPAUTH, CURLAUTH_BASIC);
		curl_easy_setopt(curl->easy, CURLOPT_USERNAME, url->user);
		curl_easy_setopt(curl->easy, CURLOPT_PASSWORD, url->password);
	}
	curl_easy_setopt(curl->easy, CURLOPT_ERRORBUFFER, curl->why);
	curl_easy_setopt(curl->easy, CURLOPT_WRITEFUNCTION, curl_take_body);
	curl_easy_setopt(curl->easy, CURLOPT_WRITEDATA, curl);
	curl_easy_setopt(curl->easy, CURLOPT_HEADERFUNCTION, curl_take_header);
	curl_easy_setopt(curl->easy, CURLOPT_HEADERDATA, curl);
	curl_easy_setopt(curl->easy, CURLOPT_XFERINFOFUNCTION, curl_stopped);
	curl_easy_setopt(curl->easy, CURLOPT_XFERINFODATA, curl);
	curl_easy_setopt(curl->easy, CURLOPT_NOPROGRESS, 0L);
	return 0;
}

void wh_curl_close(struct wh_curl *curl)
{
	curl_easy_cleanup(curl->easy);
	curl_slist_free_all(curl->headers);
	curl_global_cleanup();
	free(curl->body);
}

static int curl_errno(CURLcode code)
{
	switch (code) {
	case CURLE_COULDNT_RESOLVE_HOST:
		return EHOSTUNREACH;
	case CURLE_COULDNT_CONNECT:
		return ECONNREFUSED;
	case CURLE_OPERATION_TIMEDOUT:
		return ETIMEDOUT;
	case CURLE_ABORTED_BY_CALLBACK:
		return ECANCELED;
	case CURLE_OUT_OF_MEMORY:
		return ENOMEM;
	case CURLE_PEER_FAILED_VERIFICATION:
	case CURLE_SSL_CERTPROBLEM:
	case CURLE_SSL_CACERT_BADFILE:
	case CURLE_SSL_CONNECT_ERROR:
	case CURLE_LOGIN_DENIED:
		return EACCES;
	case CURLE_UNSUPPORTED_PROTOCOL:
	case CURLE_WEIRD_SERVER_REPLY:
		return EPROTO;
	default:
		return ECONNRESET;
	}
}

static int curl_request_one(struct wh_curl *curl, const char *method, const char *path,
			    const char *body, size_t length)
{
	const char *host = curl->url->endpoint[curl->endpoint];
	char address[1024];
	CURLcode code;

	curl->status = 0;
	curl->length = 0;
	if (curl->body)
		curl->body[0] = '\0';
	curl->wherry = curl->too_long = false;
	curl->why[0] = '\0';
	snprintf(address, sizeof(address), "http%s://%s/%s", curl->url->tls ? "s" : "", host, path);
	curl_easy_setopt(curl->easy, CURLOPT_URL, address);
	curl_easy_setopt(curl->easy, CURLOPT_CUSTOMREQUEST, method);
	curl_easy_setopt(curl->easy, CURLOPT_HTTPHEADER, curl->headers);
	curl_easy_setopt(curl->easy, CURLOPT_TIMEOUT_MS,
			 (long)(curl->timeout / curl->url->count + 1));
	if (body) {
		curl_easy_setopt(curl->easy, CURLOPT_POSTFIELDSIZE, (long)length);
		curl_easy_setopt(curl->easy, CURLOPT_POSTFIELDS, body);
	} else {
		curl_easy_setopt(curl->easy, CURLOPT_HTTPGET, 1L);
	}
	code = curl_easy_perform(curl->easy);
	if (code)
		return wh_fail(curl_errno(code), "registry %.80s: %.150s", host,
			       curl->too_long ? "the answer has more than 1 MiB" :
			       *curl->why     ? curl->why :
						curl_easy_strerror(code));
	curl_easy_getinfo(curl->easy, CURLINFO_RESPONSE_CODE, &curl->status);
	/* Callers read the body, also if it is empty. */
	if (!curl->body)
		curl_take_body((char[]){ "" }, 1, 0, curl);
	return curl->body ? 0 : wh_fail(ENOMEM, "registry: no memory");
}

int wh_curl_request(struct wh_curl *curl, const char *method, const char *path, const char *body,
		    size_t length)
{
	int error = 0;

	for (unsigned i = 0; i < curl->url->count; i++) {
		error = curl_request_one(curl, method, path, body, length);
		/* A server in trouble (5xx, for example without a leader): try the next endpoint.
		 */
		if (error == -ECANCELED || (!error && curl->status < 500))
			return error;
		if (!error)
			error = wh_curl_unexpected(curl);
		curl->endpoint = (curl->endpoint + 1) % curl->url->count;
	}
	return error;
}

int wh_curl_set_token(struct wh_curl *curl, const char *token)
{
	struct curl_slist *headers, *more;
	char line[WH_TOKEN_MAX + 32];

	/* The token becomes a header line: nothing in it may end that line. */
	for (const char *c = token; *c; c++)
		if (*c <= ' ' || *c >= 0x7f || c - token >= WH_TOKEN_MAX - 1)
			return wh_fail(EPROTO, "registry: etcd has sent a token with characters "
					       "that a header cannot carry");
	headers = more = curl_slist_append(NULL, "Content-Type: application/json");
	if (headers && *token) {
		snprintf(line, sizeof(line), "Authorization: %s", token);
		more = curl_slist_append(headers, line);
		explicit_bzero(line, sizeof(line));
		if (!more)
			curl_slist_free_all(headers);
	}
	if (!more)
		return wh_fail(ENOMEM, "registry: no memory");
	curl_slist_free_all(curl->headers);
	curl->headers = more;
	return 0;
}

int wh_curl_unexpected(const struct wh_curl *curl)
{
	const char *host = curl->url->endpoint[curl->endpoint];
	int error = curl->status == 401 || curl->status == 403 ? EACCES :
		    curl->status == 503                        ? ETIMEDOUT :
								 EPROTO;
	/* Some servers repeat the request and its user in the answer. */
	bool secret = *curl->url->user || *curl->url->password;

	size_t line = strcspn(curl->body, "\r\n"); /* the first one */

	return wh_fail(error, "registry %.80s: %s (HTTP status %ld)%s%.*s", host,
		       error == EACCES ? "the server does not accept the user or the password" :
		       error == EPROTO ? "unexpected answer" :
					 "busy",
		       curl->status, secret || !line ? "" : ": ",
		       secret     ? 0 :
		       line < 100 ? (int)line :
				    100,
		       curl->body);
}
