/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to etcd's JSON gateway: login, renewal of the token, and errors. The registry (etcd.c)
 * and Mooncake's metadata store use it.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "rendezvous/etcd.h"

#define GRPC_INVALID 3
#define GRPC_NOT_FOUND 5
#define GRPC_DENIED 7
#define GRPC_UNAUTHENTICATED 16

static int etcd_set_token(struct wh_etcd *etcd, const char *token)
{
	int error = wh_curl_set_token(&etcd->curl, token);

	if (!error)
		etcd->has_token = *token;
	return error;
}

/* The answer is an error. -ENOENT goes without a text: callers expect it. */
static int etcd_refused(const struct wh_etcd *etcd, const struct wh_etcd_error *answer)
{
	const char *host = etcd->curl.url->endpoint[etcd->curl.endpoint];
	bool access = answer->code == GRPC_UNAUTHENTICATED || answer->code == GRPC_DENIED ||
		      etcd->curl.status == 401 || etcd->curl.status == 403 ||
		      (answer->code == GRPC_INVALID && strstr(answer->text, "user name"));

	if (answer->code == GRPC_NOT_FOUND)
		return -ENOENT;
	if (access || strstr(answer->text, "authentication failed"))
		return wh_fail(EACCES,
			       "registry %.80s: etcd does not accept the user or the password, or "
			       "this user may not do this: %.80s",
			       host, answer->text);
	return wh_fail(EPROTO, "registry %.80s: etcd says: %.100s (HTTP status %ld)", host,
		       *answer->text ? answer->text : "nothing that can be understood",
		       etcd->curl.status);
}

static int etcd_post(struct wh_etcd *etcd, const char *path, const char *body, size_t length,
		     struct wh_etcd_error *refusal)
{
	int error = wh_curl_request(&etcd->curl, "POST", path, body, length);

	*refusal = (struct wh_etcd_error){ .code = 0 };
	if (error)
		return error;
	/* Not the gateway's: a proxy answers, or the server is not etcd. */
	if (etcd->curl.status != 200 && etcd->curl.length && etcd->curl.body[0] != '{')
		return wh_curl_unexpected(&etcd->curl);
	error = wh_etcd_parse_error(etcd->curl.body, etcd->curl.length, refusal);
	if (error)
		return error;
	return etcd->curl.status != 200 || *refusal->text ? etcd_refused(etcd, refusal) : 0;
}

/* Write the text as it stands between the quotes of a JSON string. */
static void json_escape(const char *text, char *out)
{
	for (; *text; text++) {
		if (*text == '"' || *text == '\\' || (unsigned char)*text < 0x20)
			out += sprintf(out, "\\u%04x", (unsigned char)*text);
		else
			*out++ = *text;
	}
	*out = '\0';
}

/* Keep the token of the answer to a login. */
static int etcd_take_token(struct wh_etcd *etcd)
{
	struct wh_etcd_answer answer;
	int error = wh_etcd_parse(etcd->curl.body, etcd->curl.length, &answer);

	if (!error)
		error = *answer.token ?
				etcd_set_token(etcd, answer.token) :
				wh_fail(EPROTO, "registry: etcd has answered without a token");
	explicit_bzero(&answer, sizeof(answer));
	return error;
}

static int etcd_log_in(struct wh_etcd *etcd)
{
	const struct wh_registry_url *url = etcd->curl.url;
	char user[6 * sizeof(url->user)], password[6 * sizeof(url->password)];
	char body[sizeof(user) + sizeof(password) + 64];
	struct wh_etcd_error refusal;
	int error;

	error = etcd_set_token(etcd, "");
	if (error)
		return error;
	json_escape(url->user, user);
	json_escape(url->password, password);
	snprintf(body, sizeof(body), "{\"name\": \"%s\", \"password\": \"%s\"}", user, password);
	error = etcd_post(etcd, "v3/auth/authenticate", body, strlen(body), &refusal);
	explicit_bzero(password, sizeof(password));
	explicit_bzero(body, sizeof(body));
	/* The URL has a user, but this etcd has no users. */
	if (error == -EPROTO && strstr(refusal.text, "authentication is not enabled"))
		return 0;
	if (!error)
		return etcd_take_token(etcd);
	/* The text leaves the answer out: it may repeat the password, or half a token. */
	if (etcd->curl.status)
		error = wh_fail(-error,
				"registry %.80s: etcd does not accept the user or the password, or "
				"the server is not etcd (HTTP status %ld)",
				url->endpoint[etcd->curl.endpoint], etcd->curl.status);
	return error;
}

int wh_etcd_request(struct wh_etcd *etcd, const char *path, const char *body, size_t length)
{
	bool fresh = *etcd->curl.url->user && !etcd->has_token;
	int error = fresh ? etcd_log_in(etcd) : 0;
	struct wh_etcd_error refusal;

	if (error)
		return error;
	error = etcd_post(etcd, path, body, length, &refusal);
	if (error != -EACCES || fresh || !*etcd->curl.url->user)
		return error;
	/* Each server has its own tokens, and they expire. */
	error = etcd_log_in(etcd);
	return error ? error : etcd_post(etcd, path, body, length, &refusal);
}
