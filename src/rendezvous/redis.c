/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registry in redis: a string with an expiry for each engine. A script compares and sets the
 * record atomically. hiredis only formats commands and parses replies; connection.c moves their
 * bytes, because hiredis 0.14 has no TLS.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>

#include "rendezvous/module.h"
#include "util/clock.h"

#define REPLY_MAX (64 << 10) /* bytes; a record has 1 KiB */
/* bytes of a reply with a Mooncake segment, which has up to 1 MiB */
#define VALUE_MAX (2 << 20)
#define CHUNK (16 << 10) /* bytes received at a time */

/* Returns false if the name was free, ours, or the dead engine's, and the record is written; else
 * the other record. */
#define CLAIM                                                                                      \
	"local v = redis.call('GET', KEYS[1]) "                                                    \
	"if v and v ~= ARGV[1] and v ~= ARGV[3] then return v end "                                \
	"redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return false"
/* 1: renewed, 0: gone, -1: another engine's. */
#define KEEP                                                                                       \
	"local v = redis.call('GET', KEYS[1]) "                                                    \
	"if not v then return 0 end if v ~= ARGV[1] then return -1 end "                           \
	"return redis.call('PEXPIRE', KEYS[1], ARGV[2])"
#define RELEASE                                                                                    \
	"if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end "     \
	"return 0"

struct redis {
	const struct wh_registry_url *url;
	struct wh_connection connection;
	int64_t timeout; /* ns */
	char database[128];
	size_t reply_max; /* bytes of a reply */
	redisReader *reader; /* NULL: not connected */
	redisReplyObjectFunctions functions;
};

/* ---- replies --------------------------------------------------------------------------------- */

#if HIREDIS_MAJOR >= 1
typedef size_t array_length_t;
#else
typedef int array_length_t;
#endif

/* No command here is answered with a list, and a hostile server could announce one of any length.
 */
static void *redis_refuse_array(const redisReadTask *task, array_length_t count)
{
	(void)task, (void)count;
	return NULL;
}

static void redis_refuse_arrays(struct redis *redis, redisReader *reader)
{
	redis->functions = *reader->fn;
	redis->functions.createArray = redis_refuse_array;
	reader->fn = &redis->functions;
}

static void redis_disconnect(struct redis *redis)
{
	if (redis->reader)
		redisReaderFree(redis->reader);
	redis->reader = NULL;
	wh_connection_end(&redis->connection);
}

static int redis_broken(struct redis *redis, int error, const char *why)
{
	error = wh_fail(error, "registry %.80s: %.140s", redis->url->endpoint[0], why);
	redis_disconnect(redis);
	return error;
}

/* redis replied with an error. Behind its first word it may quote the command, which for AUTH has
 * the password. */
static int redis_refused(const struct redis *redis, const redisReply *reply, bool secret)
{
	size_t code = strspn(reply->str, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
	bool access =
		secret || !strncmp(reply->str, "NOAUTH", 6) || !strncmp(reply->str, "NOPERM", 6);

	if (access)
		return wh_fail(EACCES,
			       "registry %.80s: redis does not accept the user or the password, or "
			       "this user may not do this: %.*s",
			       redis->url->endpoint[0], code < 32 ? (int)code : 32, reply->str);
	return wh_fail(EPROTO, "registry %.80s: redis says: %.120s", redis->url->endpoint[0],
		       reply->str);
}

/* Send a command and wait for its reply. */
static int redis_exchange(struct redis *redis, const char *bytes, size_t length, redisReply **out)
{
	int64_t deadline = wh_now() + redis->timeout;
	char chunk[CHUNK];
	void *reply = NULL;
	ssize_t got = wh_connection_send(&redis->connection, bytes, length, deadline);

	while (got >= 0) {
		if (redis->reader->len > redis->reply_max)
			return redis_broken(redis, EPROTO, "the reply is too long");
		if (redisReaderGetReply(redis->reader, &reply) != REDIS_OK)
			return redis_broken(redis, EPROTO, redis->reader->errstr);
		if (reply) {
			*out = reply;
			return 0;
		}
		got = wh_connection_receive(&redis->connection, chunk, sizeof(chunk), deadline);
		if (got > 0 && redisReaderFeed(redis->reader, chunk, (size_t)got) != REDIS_OK)
			return redis_broken(redis, ENOMEM, "no memory");
	}
	redis_disconnect(redis);
	return (int)got;
}

/* Run one command; the caller frees *out. An error reply becomes a negative errno. */
static int redis_command(struct redis *redis, int count, const char *const *words, redisReply **out)
{
	redisReply *reply = NULL;
	char *bytes;
	int length = redisFormatCommandArgv(&bytes, count, (const char **)words, NULL), error;

	if (length < 0)
		return redis_broken(redis, ENOMEM, "no memory");
	error = redis_exchange(redis, bytes, (size_t)length, &reply);
	redisFreeCommand(bytes);
	if (error)
		return error;
	if (reply->type == REDIS_REPLY_ERROR) {
		error = redis_refused(redis, reply, !strcmp(words[0], "AUTH"));
		freeReplyObject(reply);
		return error;
	}
	*out = reply;
	return 0;
}

/* ---- connecting ------------------------------------------------------------------------------ */

/* A command of the connection's set-up, whose reply has no content. */
static int redis_introduce(struct redis *redis, int count, const char *const *words)
{
	redisReply *reply = NULL;
	int error = redis_command(redis, count, words, &reply);

	if (error) /* do not keep a connection that is set up in part */
		redis_disconnect(redis);
	else
		freeReplyObject(reply);
	return error;
}

static int redis_connect_once(struct redis *redis)
{
	const struct wh_registry_url *url = redis->url;
	int error = 0;

	if (redis->reader)
		return 0;
	error = wh_connection_begin(&redis->connection, wh_now() + redis->timeout);
	if (error)
		return error;
	redis->reader = redisReaderCreate();
	if (!redis->reader)
		return redis_broken(redis, ENOMEM, "no memory");
	redis_refuse_arrays(redis, redis->reader);
	if (*url->user)
		error = redis_introduce(redis, 3,
					(const char *[]){ "AUTH", url->user, url->password });
	else if (*url->password)
		error = redis_introduce(redis, 2, (const char *[]){ "AUTH", url->password });
	if (!error && strcmp(redis->database, "0") != 0)
		error = redis_introduce(redis, 2, (const char *[]){ "SELECT", redis->database });
	return error;
}

/* The server may have closed a reused connection: try once more over a new one. All commands here
 * may run twice. */
static int redis_ask(struct redis *redis, int count, const char *const *words, redisReply **out)
{
	bool reused = redis->reader != NULL;
	int error = redis_connect_once(redis);

	if (!error)
		error = redis_command(redis, count, words, out);
	if (reused && (error == -ECONNRESET || error == -ECONNREFUSED)) {
		error = redis_connect_once(redis);
		if (!error)
			error = redis_command(redis, count, words, out);
	}
	return error;
}

/* ---- the backend ----------------------------------------------------------------------------- */

static void redis_close(void *backend)
{
	struct redis *redis = backend;

	redis_disconnect(redis);
	wh_connection_destroy(&redis->connection);
	free(redis);
}

static int redis_open(const struct wh_registry_setup *setup, void **out)
{
	const struct wh_registry_url *url = setup->url;
	size_t digits = strspn(url->path, "0123456789");
	struct redis *redis;
	int error;

	if (url->count > 1)
		return wh_fail(EINVAL, "registry: redis:// takes one host, %u are given",
			       url->count);
	if (url->path[digits] || digits > 7)
		return wh_fail(EINVAL,
			       "registry: the path \"%.40s\" of a redis:// URL is the number of a "
			       "database, or nothing",
			       url->path);
	redis = calloc(1, sizeof(*redis));
	if (!redis)
		return wh_fail(ENOMEM, "registry: no memory");
	redis->url = url;
	redis->timeout = setup->timeout * WH_MS;
	redis->reply_max = REPLY_MAX;
	snprintf(redis->database, sizeof(redis->database), "%s", digits ? url->path : "0");
	error = wh_connection_init(&redis->connection, setup);
	if (error)
		redis_close(redis);
	else
		*out = redis;
	return error;
}

static int redis_parse(const struct redis *redis, const redisReply *reply, const char *name,
		       struct wh_registry_record *out)
{
	if (reply->type != REDIS_REPLY_STRING)
		return wh_fail(EPROTO, "registry %.80s: unexpected reply of type %d",
			       redis->url->endpoint[0], reply->type);
	return wh_registry_record_parse(reply->str, (size_t)reply->len, name, out) ? -EPROTO : 0;
}

/* Run the script on the record, and on a dead engine's or NULL. The key's expiry is the lease: the
 * record needs no beat. */
static int redis_eval(struct redis *redis, const char *script,
		      const struct wh_registry_record *record,
		      const struct wh_registry_record *dead, redisReply **out)
{
	char key[WH_REGISTRY_KEY_MAX], json[WH_REGISTRY_RECORD_MAX], lease[24];
	char old[WH_REGISTRY_RECORD_MAX] = "";
	struct wh_registry_record still = *record;

	still.beat = 0;
	if (dead)
		wh_registry_record_format(dead, old);
	snprintf(key, sizeof(key), WH_REGISTRY_PREFIX "%s", record->name);
	snprintf(lease, sizeof(lease), "%" PRId64, record->lease);
	wh_registry_record_format(&still, json);
	return redis_ask(redis, 7, (const char *[]){ "EVAL", script, "1", key, json, lease, old },
			 out);
}

static int redis_claim(void *backend, const struct wh_registry_record *record,
		       const struct wh_registry_record *dead, struct wh_registry_record *holder)
{
	struct redis *redis = backend;
	redisReply *reply = NULL;
	int error = redis_eval(redis, CLAIM, record, dead, &reply);

	if (error)
		return error;
	if (reply->type != REDIS_REPLY_NIL) {
		error = redis_parse(redis, reply, record->name, holder);
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
	int error = redis_eval(redis, KEEP, record, NULL, &reply);

	if (error)
		return error;
	if (reply->type != REDIS_REPLY_INTEGER)
		error = wh_fail(EPROTO, "registry %.80s: unexpected reply of type %d",
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
	int error = redis_eval(backend, RELEASE, record, NULL, &reply);

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
	error = redis_ask(redis, 2, (const char *[]){ "GET", key }, &reply);
	if (error)
		return error;
	if (reply->type == REDIS_REPLY_NIL)
		error = wh_fail(ENOENT, "registry: no engine has the name \"%s\"", name);
	else
		error = redis_parse(redis, reply, name, out);
	freeReplyObject(reply);
	return error;
}

/* ---- Mooncake's metadata --------------------------------------------------------------------- */

int wh_redis_open(const struct wh_registry_setup *setup, void **out)
{
	int error = redis_open(setup, out);

	if (!error)
		((struct redis *)*out)->reply_max = VALUE_MAX;
	return error;
}

void wh_redis_close(void *redis)
{
	redis_close(redis);
}

int wh_redis_get(void *redis, const char *key, char **value, size_t *length)
{
	redisReply *reply = NULL;
	int error = redis_ask(redis, 2, (const char *[]){ "GET", key }, &reply);

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
		error = wh_fail(ENOENT, "redis has no such key");
	} else {
		error = wh_fail(EPROTO, "redis: unexpected reply of type %d", reply->type);
	}
	freeReplyObject(reply);
	return error;
}

int wh_redis_put(void *redis, const char *key, const char *value)
{
	redisReply *reply = NULL;
	int error = redis_ask(redis, 3, (const char *[]){ "SET", key, value }, &reply);

	if (!error)
		freeReplyObject(reply);
	return error;
}

int wh_redis_remove(void *redis, const char *key)
{
	redisReply *reply = NULL;
	int error = redis_ask(redis, 2, (const char *[]){ "DEL", key }, &reply);

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
