/* SPDX-License-Identifier: Apache-2.0 */
/* Parsing the URL of a registry. The part before the @ is secret and never appears in a text. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "rendezvous/registry.h"

#define GOOD "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"

bool wh_registry_name_valid(const char *name)
{
	size_t length = strspn(name, GOOD);

	return length && !name[length] && length < WH_REGISTRY_NAME_MAX &&
	       name[strspn(name, "0123456789.")];
}

/* The part behind SCHEME://; NULL: there is no scheme. */
static const char *url_authority(const char *text)
{
	size_t scheme =
		strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.");

	return strncmp(text + scheme, "://", 3) ? NULL : text + scheme + 3;
}

/* The end of user and password; NULL: there are none. The last @ counts, so that no part of a
 * password with an unescaped @ is shown. */
static const char *url_secret_end(const char *authority)
{
	return strrchr(authority, '@');
}

/* Without an @: the length of the leading HOST:PORT,HOST:PORT... The rest may be a password whose
 * host was forgotten, and is not shown. */
static size_t url_plain_length(const char *authority)
{
	size_t at = 0;

	for (;;) {
		size_t length = strcspn(authority + at, ",/?"), end = at + length;
		const char *port = memrchr(authority + at, ':', length);
		size_t digits = port ? strspn(port + 1, "0123456789") : 0;

		if (!port && !at && *authority != '[' && !authority[end]) /* a host alone */
			return end;
		if (!digits || digits > 5 || port + 1 + digits != authority + end ||
		    (authority[at] != '[' && memchr(authority + at, ':', length) != port))
			return at + (at ? 0 : strcspn(authority, ":,/?["));
		at = end + strspn(authority + end, GOOD "/"); /* behind the path */
		if (authority[end] != ',')
			return authority[at] && authority[at] != '?' ? end :
								       at + strlen(authority + at);
		at = end + 1;
	}
}

void wh_registry_url_show(const char *text, char *out, size_t size)
{
	const char *authority = url_authority(text), *end;
	size_t plain;

	if (!authority)
		authority = text;
	end = url_secret_end(authority);
	plain = end ? 0 : url_plain_length(authority);
	if (!end && authority[plain])
		end = "";
	snprintf(out, size, "%.*s%s%s", (int)((size_t)(authority - text) + plain), text,
		 end ? "***" : "", end ? end : "");
}

/* ---- parts --------------------------------------------------------------------------------- */

static int hex_digit(char c)
{
	const char *digits = "0123456789abcdef", *at = c ? strchr(digits, c | 0x20) : NULL;

	return at && (c | 0x20) == *at ? (int)(at - digits) : -1;
}

/* Undo %XX. False: a broken escape, a NUL, or too long. */
static bool url_unescape(const char *from, size_t length, char *out, size_t room)
{
	size_t used = 0;

	for (size_t i = 0; i < length; i++) {
		int high, low, c = (unsigned char)from[i];

		if (c == '%') {
			high = length - i > 2 ? hex_digit(from[i + 1]) : -1;
			low = length - i > 2 ? hex_digit(from[i + 2]) : -1;
			if (high < 0 || low < 0)
				return false;
			c = high << 4 | low;
			i += 2;
		}
		if (!c || used + 1 >= room)
			return false;
		out[used++] = (char)c;
	}
	out[used] = '\0';
	return true;
}

static int url_parse_scheme(const char *text, size_t length, struct wh_registry_url *url)
{
	static const struct {
		const char *name, *scheme;
		bool tls;
	} known[] = {
		{ "http", "http", false }, { "https", "http", true },   { "etcd", "etcd", false },
		{ "etcds", "etcd", true }, { "redis", "redis", false }, { "rediss", "redis", true },
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		if (strlen(known[i].name) != length || memcmp(known[i].name, text, length))
			continue;
		snprintf(url->scheme, sizeof(url->scheme), "%s", known[i].scheme);
		url->tls = known[i].tls;
		return 0;
	}
	return wh_fail(EINVAL,
		       "registry: there is no kind \"%.*s\"; known are http, etcd and redis, "
		       "https, etcds and rediss, and p2p for none",
		       length < 32 ? (int)length : 32, text);
}

static int url_parse_secret(const char *from, const char *end, struct wh_registry_url *url)
{
	const char *colon = memchr(from, ':', (size_t)(end - from));
	const char *user_end = colon ? colon : end;

	if (!url_unescape(from, (size_t)(user_end - from), url->user, sizeof(url->user)))
		return wh_fail(EINVAL,
			       "registry: the user before the @ has more than 63 bytes, or a "
			       "%% without two hexadecimal digits");
	if (colon && !url_unescape(colon + 1, (size_t)(end - colon - 1), url->password,
				   sizeof(url->password)))
		return wh_fail(EINVAL,
			       "registry: the password before the @ has more than 127 bytes, "
			       "or a %% without two hexadecimal digits");
	return 0;
}

/* Name a host in a text. Behind a colon or a comma may stand a password whose host was forgotten.
 */
static void url_name_host(const struct wh_registry_url *url, const char *text, size_t length,
			  char out[64])
{
	const char *colon = memchr(text, ':', length);
	size_t shown = colon ? (size_t)(colon - text) : length;

	if (url->count || !shown || *text == '[')
		snprintf(out, 64, "host %u", url->count + 1);
	else
		snprintf(out, 64, "\"%.*s\"", shown < 40 ? (int)shown : 40, text);
}

static int url_parse_endpoint(const char *text, size_t length, struct wh_registry_url *url)
{
	const char *port = memrchr(text, ':', length);
	size_t host = port ? (size_t)(port - text) : length, digits;
	unsigned value = 0;
	char shown[64];

	if (!length)
		return wh_fail(EINVAL, "registry: the host is missing; write SCHEME://HOST:PORT");
	if (url->count == WH_REGISTRY_ENDPOINTS)
		return wh_fail(EINVAL, "registry: more than %d hosts", WH_REGISTRY_ENDPOINTS);
	url_name_host(url, text, length, shown);
	if (length >= sizeof(url->endpoint[0]))
		return wh_fail(EINVAL, "registry: %s is too long", shown);
	if (!port || (text[0] == '[' && text[host - (host > 0)] != ']'))
		return wh_fail(EINVAL, "registry: %s has no port; write HOST:PORT", shown);
	if (!host)
		return wh_fail(
			EINVAL,
			"registry: before the colon is no host; write HOST:PORT, and a password "
			"as :PASSWORD@HOST:PORT");
	if (text[0] != '[' && memchr(text, ':', host))
		return wh_fail(
			EINVAL,
			"registry: %s has several colons: put an IPv6 address into brackets, and "
			"write a user and a password as USER:PASSWORD@HOST:PORT",
			shown);
	for (size_t i = 0; i < host; i++)
		if (!strchr(GOOD "[]:%", text[i]) ||
		    ((text[i] == '[') != (i == 0 && text[0] == '[')) ||
		    (text[i] == ']' && i + 1 != host))
			return wh_fail(EINVAL, "registry: %s contains '%c'", shown, text[i]);
	digits = strspn(port + 1, "0123456789");
	for (size_t i = 0; i < digits && value <= UINT16_MAX; i++)
		value = value * 10 + (unsigned)(port[1 + i] - '0');
	if (!digits || port + 1 + digits != text + length || value < 1 || value > UINT16_MAX)
		return wh_fail(
			EINVAL,
			"registry: the port of %s is not a number from 1 to 65535; write a user "
			"and a password as USER:PASSWORD@HOST:PORT",
			shown);
	snprintf(url->endpoint[url->count++], sizeof(url->endpoint[0]), "%.*s:%u", (int)host, text,
		 value);
	return 0;
}

static int url_parse_query(const char *query, struct wh_registry_url *url)
{
	const struct {
		const char *name;
		char *into;
	} known[] = { { "cacert", url->cacert }, { "cert", url->cert }, { "key", url->key } };

	while (*query) {
		size_t length = strcspn(query, "&"), name = strcspn(query, "=&"), i;

		for (i = 0; i < sizeof(known) / sizeof(known[0]); i++)
			if (strlen(known[i].name) == name && !memcmp(known[i].name, query, name))
				break;
		if (i == sizeof(known) / sizeof(known[0]))
			return wh_fail(EINVAL,
				       "registry: \"%.*s\" behind the ? is not known; known "
				       "are cacert, cert and key",
				       (int)(name < 40 ? name : 40), query);
		if (name == length || name + 1 == length ||
		    !url_unescape(query + name + 1, length - name - 1, known[i].into,
				  sizeof(url->key)))
			return wh_fail(EINVAL,
				       "registry: %s= wants the path of a file, of at most 255 "
				       "bytes",
				       known[i].name);
		query += length + (query[length] == '&');
	}
	if (!url->tls && (*url->cacert || *url->cert || *url->key))
		return wh_fail(EINVAL,
			       "registry: a certificate is given, but %s:// has no TLS; write "
			       "%ss://",
			       url->scheme, url->scheme);
	if (!*url->cert != !*url->key)
		return wh_fail(EINVAL, "registry: cert= and key= go together");
	return 0;
}

int wh_registry_url_parse(const char *text, struct wh_registry_url *out)
{
	const char *at = url_authority(text), *end, *question;
	struct wh_registry_url url = { .count = 0 };
	char shown[80];
	int error;

	wh_registry_url_show(text, shown, sizeof(shown));
	if (!at)
		return wh_fail(EINVAL,
			       "registry: \"%s\" is no URL; write http://HOST:PORT, "
			       "etcd://HOST:PORT or redis://HOST:PORT",
			       shown);
	if (strlen(text) >= WH_REGISTRY_URL_MAX)
		return wh_fail(EINVAL, "registry: the URL has more than %d bytes",
			       WH_REGISTRY_URL_MAX - 1);
	for (const char *c = text; *c; c++)
		if (*c <= ' ' || *c >= 0x7f)
			return wh_fail(EINVAL,
				       "registry: the URL has a space or a character that is "
				       "not ASCII; write it as %%XX");
	error = url_parse_scheme(text, (size_t)(at - 3 - text), &url);
	if (error)
		return error;
	end = url_secret_end(at);
	if (end && at + strcspn(at, "/?") < end)
		return wh_fail(EINVAL,
			       "registry: what stands before the last @ has a / or a ?; write "
			       "%%2F and %%3F, and %%40 for an @");
	if (end) {
		error = url_parse_secret(at, end, &url);
		if (error)
			return error;
		at = end + 1;
	}
	end = at + strcspn(at, "/?");
	while (!error) {
		size_t length = strcspn(at, ",/?");

		error = url_parse_endpoint(at, length, &url);
		at += length;
		if (at == end)
			break;
		at++;
	}
	if (error)
		return error;
	if (*at == '/')
		at++;
	question = at + strcspn(at, "?");
	if ((size_t)(question - at) >= sizeof(url.path))
		return wh_fail(EINVAL, "registry: the path has more than %zu bytes",
			       sizeof(url.path) - 1);
	end = at + strspn(at, GOOD "/");
	if (end < question)
		return wh_fail(
			EINVAL,
			"registry: the path contains '%c', which is none of A-Z a-z 0-9 . _ - /",
			*end);
	memcpy(url.path, at, (size_t)(question - at));
	error = *question ? url_parse_query(question + 1, &url) : 0;
	if (!error)
		*out = url;
	return error;
}
