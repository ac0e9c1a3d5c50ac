/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registries in redis: a string that expires for each engine. What must not be torn apart, looking at who
 * has a name and taking it, is a script, which the server runs as a whole. The connection does not
 * block, so that a call can end when the engine closes.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>
#ifdef HAVE_HIREDIS_SSL
#include <hiredis/hiredis_ssl.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#endif

#include "rendezvous/module.h"
#include "util/clock.h"

#define REPLY_MAX (64 << 10) /* bytes; a record has 1 KiB */
#define VALUE_MAX (2 << 20)  /* bytes of a reply with one of Mooncake's segments, which have 1 MiB */
#define SLICE (50 * WH_MS)   /* between two looks at whether to stop */

/* Nobody or we ourselves have it: it is ours now. Else who has. */
#define CLAIM \
	"local v = redis.call('GET', KEYS[1]) " \
	"if v and v ~= ARGV[1] then return v end " \
	"redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return false"
/* 1: renewed, 0: gone, -1: another engine's. */
#define KEEP \
	"local v = redis.call('GET', KEYS[1]) " \
	"if not v then return 0 end if v ~= ARGV[1] then return -1 end " \
	"return redis.call('PEXPIRE', KEYS[1], ARGV[2])"
#define RELEASE \
	"if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"

struct redis {
	const struct wh_registry_url *url;
	const atomic_bool *stop;
	int64_t timeout; /* ns */
	char host[272];
	int port;
	char database[128];
	size_t most; /* bytes of a reply */
	redisContext *context; /* NULL: not connected */
	redisReplyObjectFunctions functions;
#ifdef HAVE_HIREDIS_SSL
	SSL_CTX *tls;
#endif
};

/* ---- replies --------------------------------------------------------------------------------- */

#if HIREDIS_MAJOR >= 1
typedef size_t elements_t;
#else
typedef int elements_t;
#endif

/* Nothing that is asked is answered with a list, and a list may be said to have any length. */
static void *refuse_array(const redisReadTask *task, elements_t count)
{
	(void)task, (void)count;
	return NULL;
}

static void take_no_lists(struct redis *redis, redisReader *reader)
{
	redis->functions = *reader->fn;
	redis->functions.createArray = refuse_array;
	reader->fn = &redis->functions;
}

static void disconnect(struct redis *redis)
{
	if (redis->context)
		redisFree(redis->context);
	redis->context = NULL;
}

static int broken(struct redis *redis, int error, const char *why)
{
	error = wh_fail(error, "registry %.80s: %.140s", redis->url->endpoint[0], why);
	disconnect(redis);
	return error;
}

/* What hiredis says; for some of it errno is the more exact word. */
static int context_failed(struct redis *redis, int saved)
{
	const redisContext *context = redis->context;
	bool io = context->err == REDIS_ERR_IO;
	int error = ECONNRESET;

	/* A name that is not known has no code but OTHER. */
	if ((io && (saved == EHOSTUNREACH || saved == ENETUNREACH)) ||
	    (context->err == REDIS_ERR_OTHER && !(context->flags & REDIS_CONNECTED)))
		error = EHOSTUNREACH;
	else if (context->err == REDIS_ERR_PROTOCOL || context->err == REDIS_ERR_OOM)
		error = EPROTO;
	else if (io && saved == ECONNREFUSED)
		error = ECONNREFUSED;
	return broken(redis, error, redis->context->errstr);
}

/* An error that redis replied with. What comes behind its first word may quote what it was asked,
 * which with AUTH is the password. */
static int refused(const struct redis *redis, const redisReply *reply, bool secret)
{
	size_t code = strspn(reply->str, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
	bool access = secret || !strncmp(reply->str, "NOAUTH", 6) || !strncmp(reply->str, "NOPERM", 6);

	if (access)
		return wh_fail(EACCES, "registry %.80s: the user or the password is not taken, or may "
			       "not do this: %.*s", redis->url->endpoint[0], code < 32 ? (int)code : 32,
			       reply->str);
	return wh_fail(EPROTO, "registry %.80s: redis says: %.120s", redis->url->endpoint[0], reply->str);
}

/* Let the connection go on, at most until the deadline. 0: there may be more to read or to write. */
static int turn(struct redis *redis, short events, int64_t deadline)
{
	struct pollfd fd = { .fd = redis->context->fd, .events = events };
	int64_t left = deadline - wh_now();

	if (atomic_load(redis->stop))
		return broken(redis, ECANCELED, "the engine closes");
	if (left <= 0)
		return broken(redis, ETIMEDOUT, "no answer in time");
	poll(&fd, 1, (int)((left < SLICE ? left : SLICE) / WH_MS + 1));
	return 0;
}

/* Send what has been appended, and wait for one reply. */
static int exchange(struct redis *redis, redisReply **out)
{
	int64_t deadline = wh_now() + redis->timeout;
	void *reply = NULL;
	int sent = 0, error;

	for (;;) {
		if (!sent && redisBufferWrite(redis->context, &sent) != REDIS_OK)
			return context_failed(redis, errno);
		if (sent && redisBufferRead(redis->context) != REDIS_OK)
			return context_failed(redis, errno);
		if (redis->context->reader->len > redis->most)
			return broken(redis, EPROTO, "its answer is too long");
		if (redisGetReplyFromReader(redis->context, &reply) != REDIS_OK)
			return context_failed(redis, errno);
		if (reply) {
			*out = reply;
			return 0;
		}
		error = turn(redis, sent ? POLLIN : POLLIN | POLLOUT, deadline);
		if (error)
			return error;
	}
}

/* One command; *out is to be freed. An error that redis replies with is one. */
static int command(struct redis *redis, int count, const char *const *words, redisReply **out)
{
	redisReply *reply = NULL;
	int error;

	if (redisAppendCommandArgv(redis->context, count, (const char **)words, NULL) != REDIS_OK)
		return broken(redis, ENOMEM, "no memory");
	error = exchange(redis, &reply);
	if (error)
		return error;
	if (reply->type == REDIS_REPLY_ERROR) {
		error = refused(redis, reply, !strcmp(words[0], "AUTH"));
		freeReplyObject(reply);
		return error;
	}
	*out = reply;
	return 0;
}

/* ---- connecting ------------------------------------------------------------------------------ */

/* hiredis has a context of its own for this, but that does not look at the name in the certificate. */
static int start_tls(struct redis *redis)
{
#ifdef HAVE_HIREDIS_SSL
	SSL *tls = SSL_new(redis->tls);
	bool named = tls && X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls), redis->host);

	/* No address, so a name. */
	if (tls && !named)
		named = SSL_set1_host(tls, redis->host) && SSL_set_tlsext_host_name(tls, redis->host);
	if (!named) {
		SSL_free(tls);
		return broken(redis, ENOMEM, "TLS cannot start");
	}
	if (redisInitiateSSL(redis->context, tls) != REDIS_OK) {
		SSL_free(tls);
		return broken(redis, EACCES, redis->context->errstr);
	}
#endif
	(void)redis;
	return 0;
}

/* A command whose reply says no more than that it was done. */
static int introduce(struct redis *redis, int count, const char *const *words)
{
	redisReply *reply = NULL;
	int error = command(redis, count, words, &reply);

	if (error) /* half introduced is not connected */
		disconnect(redis);
	else
		freeReplyObject(reply);
	return error;
}

static int connect_it(struct redis *redis)
{
	const struct wh_registry_url *url = redis->url;
	int error = 0;

	if (redis->context)
		return 0;
	redis->context = redisConnectNonBlock(redis->host, redis->port);
	if (!redis->context)
		return wh_fail(ENOMEM, "registry: no memory");
	if (redis->context->err)
		return context_failed(redis, errno);
	take_no_lists(redis, redis->context->reader);
	if (url->tls)
		error = start_tls(redis);
	if (!error && *url->user)
		error = introduce(redis, 3, (const char *[]){ "AUTH", url->user, url->password });
	else if (!error && *url->password)
		error = introduce(redis, 2, (const char *[]){ "AUTH", url->password });
	if (!error && strcmp(redis->database, "0") != 0)
		error = introduce(redis, 2, (const char *[]){ "SELECT", redis->database });
	return error;
}

/* A connection that was kept may have been closed meanwhile: then once more, with a new one. All that
 * is asked here may be done twice. */
static int ask(struct redis *redis, int count, const char *const *words, redisReply **out)
{
	bool kept = redis->context != NULL;
	int error = connect_it(redis);

	if (!error)
		error = command(redis, count, words, out);
	if (kept && (error == -ECONNRESET || error == -ECONNREFUSED)) {
		error = connect_it(redis);
		if (!error)
			error = command(redis, count, words, out);
	}
	return error;
}

/* ---- the backend ----------------------------------------------------------------------------- */

static void redis_close(void *backend)
{
	struct redis *redis = backend;

	disconnect(redis);
#ifdef HAVE_HIREDIS_SSL
	SSL_CTX_free(redis->tls);
#endif
	free(redis);
}

static int open_tls(struct redis *redis)
{
#ifdef HAVE_HIREDIS_SSL
	const struct wh_registry_url *url = redis->url;
	redis->tls = SSL_CTX_new(TLS_client_method());
	if (!redis->tls)
		return wh_fail(ENOMEM, "registry: TLS cannot start");
	SSL_CTX_set_min_proto_version(redis->tls, TLS1_2_VERSION);
	SSL_CTX_set_verify(redis->tls, SSL_VERIFY_PEER, NULL);
	if (!(*url->cacert ? SSL_CTX_load_verify_locations(redis->tls, url->cacert, NULL) :
			     SSL_CTX_set_default_verify_paths(redis->tls)))
		return wh_fail(EINVAL, "registry: cacert=%.120s: no certificates can be read from it",
			       url->cacert);
	if (*url->cert && SSL_CTX_use_certificate_chain_file(redis->tls, url->cert) != 1)
		return wh_fail(EINVAL, "registry: cert=%.120s: no certificate can be read from it",
			       url->cert);
	if (*url->cert && SSL_CTX_use_PrivateKey_file(redis->tls, url->key, SSL_FILETYPE_PEM) != 1)
		return wh_fail(EINVAL, "registry: key=%.120s: no key of that certificate can be read "
			       "from it", url->key);
	return 0;
#else
	(void)redis;
	return wh_fail(EINVAL, "registry: rediss:// wants hiredis 1.0 with its TLS, and this was built "
		       "with %d.%d without it", HIREDIS_MAJOR, HIREDIS_MINOR);
#endif
}

static int redis_open(const struct wh_registry_setup *setup, void **out)
{
	const struct wh_registry_url *url = setup->url;
	const char *host = url->endpoint[0], *port = strrchr(host, ':');
	size_t digits = strspn(url->path, "0123456789"), length = (size_t)(port - host);
	struct redis *redis;
	int error;

	if (url->count > 1)
		return wh_fail(EINVAL, "registry: redis:// takes one host, %u are given", url->count);
	if (url->path[digits] || digits > 7)
		return wh_fail(EINVAL, "registry: the path \"%.40s\" of a redis:// URL is the number of a "
			       "database, or nothing", url->path);
	redis = calloc(1, sizeof(*redis));
	if (!redis)
		return wh_fail(ENOMEM, "registry: no memory");
	redis->url = url;
	redis->stop = setup->stop;
	redis->timeout = setup->timeout * WH_MS;
	redis->most = REPLY_MAX;
	snprintf(redis->database, sizeof(redis->database), "%s", digits ? url->path : "0");
	/* An IPv6 address without its brackets. */
	if (*host == '[')
		snprintf(redis->host, sizeof(redis->host), "%.*s", (int)length - 2, host + 1);
	else
		snprintf(redis->host, sizeof(redis->host), "%.*s", (int)length, host);
	redis->port = (int)strtol(port + 1, NULL, 10);
	error = url->tls ? open_tls(redis) : 0;
	if (error)
		redis_close(redis);
	else
		*out = redis;
	return error;
}

static int parse(const struct redis *redis, const redisReply *reply, const char *name,
		 struct wh_registry_record *out)
{
	if (reply->type != REDIS_REPLY_STRING)
		return wh_fail(EPROTO, "registry %.80s: an answer of type %d that was not expected",
			       redis->url->endpoint[0], reply->type);
	return wh_registry_record_parse(reply->str, (size_t)reply->len, name, out) ? -EPROTO : 0;
}

/* The script on the record. The server keeps the lease, so the record has no beat and stays as it is. */
static int eval(struct redis *redis, const char *script, const struct wh_registry_record *record,
		redisReply **out)
{
	char key[WH_REGISTRY_KEY_MAX], json[WH_REGISTRY_RECORD_MAX], lease[24];
	struct wh_registry_record still = *record;

	still.beat = 0;
	snprintf(key, sizeof(key), WH_REGISTRY_PREFIX "%s", record->name);
	snprintf(lease, sizeof(lease), "%" PRId64, record->lease);
	wh_registry_record_format(&still, json);
	return ask(redis, 6, (const char *[]){ "EVAL", script, "1", key, json, lease }, out);
}

static int redis_claim(void *backend, const struct wh_registry_record *record,
		       struct wh_registry_record *holder)
{
	struct redis *redis = backend;
	redisReply *reply = NULL;
	int error = eval(redis, CLAIM, record, &reply);

	if (error)
		return error;
	if (reply->type != REDIS_REPLY_NIL) {
		error = parse(redis, reply, record->name, holder);
		if (!error)
			error = wh_fail(EEXIST, "registry: the name is taken");
	}
	freeReplyObject(reply);
	return error;
}

static int redis_keep(void *backend, const struct wh_registry_record *record)
{
	struct redis *redis = backend;
	redisReply *reply = NULL;
	int error = eval(redis, KEEP, record, &reply);

	if (error)
		return error;
	if (reply->type != REDIS_REPLY_INTEGER)
		error = wh_fail(EPROTO, "registry %.80s: an answer of type %d that was not expected",
				redis->url->endpoint[0], reply->type);
	else if (reply->integer != 1)
		error = wh_fail(reply->integer < 0 ? EEXIST : ENOENT, "registry: the name is %s",
				reply->integer < 0 ? "taken" : "gone");
	freeReplyObject(reply);
	return error;
}

static int redis_release(void *backend, const struct wh_registry_record *record)
{
	redisReply *reply = NULL;
	int error = eval(backend, RELEASE, record, &reply);

	if (!error)
		freeReplyObject(reply);
	return error;
}

static int redis_find(void *backend, const char *name, struct wh_registry_record *out)
{
	struct redis *redis = backend;
	char key[WH_REGISTRY_KEY_MAX];
	redisReply *reply = NULL;
	int error;

	snprintf(key, sizeof(key), WH_REGISTRY_PREFIX "%s", name);
	error = ask(redis, 2, (const char *[]){ "GET", key }, &reply);
	if (error)
		return error;
	if (reply->type == REDIS_REPLY_NIL)
		error = wh_fail(ENOENT, "registry: no engine has the name \"%s\"", name);
	else
		error = parse(redis, reply, name, out);
	freeReplyObject(reply);
	return error;
}

/* ---- Mooncake's metadata --------------------------------------------------------------------- */

int wh_redis_open(const struct wh_registry_setup *setup, void **out)
{
	int error = redis_open(setup, out);

	if (!error)
		((struct redis *)*out)->most = VALUE_MAX;
	return error;
}

void wh_redis_close(void *redis)
{
	redis_close(redis);
}

int wh_redis_get(void *redis, const char *key, char **value, size_t *length)
{
	redisReply *reply = NULL;
	int error = ask(redis, 2, (const char *[]){ "GET", key }, &reply);

	if (error)
		return error;
	if (reply->type == REDIS_REPLY_STRING) {
		*value = malloc((size_t)reply->len + 1);
		if (*value) {
			memcpy(*value, reply->str, (size_t)reply->len);
			(*value)[reply->len] = '\0';
			*length = (size_t)reply->len;
		} else {
			error = wh_fail(ENOMEM, "redis: no memory");
		}
	} else if (reply->type == REDIS_REPLY_NIL) {
		error = wh_fail(ENOENT, "redis: there is no such key");
	} else {
		error = wh_fail(EPROTO, "redis: an answer of type %d that was not expected", reply->type);
	}
	freeReplyObject(reply);
	return error;
}

int wh_redis_put(void *redis, const char *key, const char *value)
{
	redisReply *reply = NULL;
	int error = ask(redis, 3, (const char *[]){ "SET", key, value }, &reply);

	if (!error)
		freeReplyObject(reply);
	return error;
}

int wh_redis_remove(void *redis, const char *key)
{
	redisReply *reply = NULL;
	int error = ask(redis, 2, (const char *[]){ "DEL", key }, &reply);

	if (!error)
		freeReplyObject(reply);
	return error;
}

const struct wh_registry_ops wh_registry_redis = {
	.scheme = "redis",
	.open = redis_open,
	.close = redis_close,
	.claim = redis_claim,
	.keep = redis_keep,
	.release = redis_release,
	.find = redis_find,
};
