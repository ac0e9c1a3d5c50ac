/* SPDX-License-Identifier: Apache-2.0 */
/* What redis replies: read by hiredis, as the backend has set it up, and then by the backend. */
#include "../../src/rendezvous/redis.c"

#include "fuzz.h"

#include <wherry/error.h>

static void try_reply(const struct redis *redis, const redisReply *reply)
{
	struct wh_registry_record record;
	int error;

	if (reply->type == REDIS_REPLY_ERROR)
		error = redis_refused(redis, reply, reply->len % 2);
	else
		error = redis_parse(redis, reply, NULL, &record);
	check(!error || error == -EPROTO || error == -EACCES);
	check(!error || (*wh_error_text() && !strchr(wh_error_text(), '\n')));
	check(error || wh_registry_name_valid(record.name));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct wh_registry_url url = { .endpoint = { "localhost:6379" }, .count = 1 };
	struct redis redis = { .url = &url };
	redisReader *reader = redisReaderCreate();
	void *reply = NULL;

	check(reader);
	redis_refuse_arrays(&redis, reader);
	/* In two pieces, as from a socket. */
	if (redisReaderFeed(reader, (const char *)data, size / 2) == REDIS_OK &&
	    redisReaderGetReply(reader, &reply) == REDIS_OK && !reply)
		redisReaderFeed(reader, (const char *)data + size / 2, size - size / 2);
	while (reply || (redisReaderGetReply(reader, &reply) == REDIS_OK && reply)) {
		try_reply(&redis, reply);
		freeReplyObject(reply);
		reply = NULL;
	}
	redisReaderFree(reader);
	return 0;
}
