/* SPDX-License-Identifier: Apache-2.0 */
/* redis:// URLs, and what is told of what redis replies. */
#include "../../src/rendezvous/redis.c"

#include "unit.h"

#include <wherry/error.h>

static atomic_bool stop;

static int open_url(const char *text)
{
	struct wh_registry_url url;
	const struct wh_registry_setup setup = { .url = &url, .timeout = 1000, .stop = &stop };
	void *backend;
	int error = wh_registry_url_parse(text, &url);

	if (!error)
		error = wh_registry_redis.open(&setup, &backend);
	if (!error)
		wh_registry_redis.close(backend);
	return error;
}

static void open__urls(void **state)
{
	(void)state;
	assert_int_equal(open_url("redis://h:6379"), 0);
	assert_int_equal(open_url("redis://[::1]:6379/15"), 0);
	assert_int_equal(open_url("redis://u:p@h:6379/"), 0);
	assert_int_equal(open_url("redis://h:6379,i:6379"), -EINVAL);
	assert_non_null(strstr(wh_error_text(), "one host"));
	assert_int_equal(open_url("redis://h:6379/1x"), -EINVAL);
	assert_non_null(strstr(wh_error_text(), "\"1x\""));
	assert_int_equal(open_url("redis://h:6379/12345678"), -EINVAL);
}

static void refused__with_a_text(char *text, bool secret, int error, const char *word,
				 const char *never)
{
	const struct wh_registry_url url = { .endpoint = { "h:6379" }, .count = 1 };
	const struct redis redis = { .url = &url };
	const redisReply reply = { .type = REDIS_REPLY_ERROR,
				   .str = text,
				   .len = (int)strlen(text) };

	assert_int_equal(redis_refused(&redis, &reply, secret), error);
	assert_non_null(strstr(wh_error_text(), "h:6379"));
	assert_non_null(strstr(wh_error_text(), word));
	assert_null(strstr(wh_error_text(), never));
}

/* A server that does not know AUTH, or knows it otherwise, quotes what it was asked. */
static void refused__does_not_quote(void **state)
{
	char unknown[] = "ERR unknown command `AUTH`, with args beginning with: `sesame`,";
	char wrong[] = "WRONGPASS invalid username-password pair",
	     missing[] = "NOAUTH Authentication required.";
	char loading[] = "LOADING Redis is loading\nthe dataset in memory", odd[] = "sesame";

	(void)state;
	refused__with_a_text(unknown, true, -EACCES, "ERR", "sesame");
	refused__with_a_text(wrong, true, -EACCES, "WRONGPASS", "pair");
	refused__with_a_text(odd, true, -EACCES, "password", "sesame");
	refused__with_a_text(missing, false, -EACCES, "NOAUTH", "\n");
	refused__with_a_text(loading, false, -EPROTO, "LOADING Redis is loading?the", "\n");
}

/* A list of two thousand million is not made room for. */
static void reply__no_lists(void **state)
{
	static const char list[] = "*2147483647\r\n$1\r\na\r\n";
	redisReader *reader = redisReaderCreate();
	struct redis redis = { .url = NULL };
	void *reply = NULL;

	(void)state;
	redis_refuse_arrays(&redis, reader);
	assert_int_equal(redisReaderFeed(reader, list, sizeof(list) - 1), REDIS_OK);
	assert_int_equal(redisReaderGetReply(reader, &reply), REDIS_ERR);
	assert_null(reply);
	redisReaderFree(reader);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(open__urls),
		cmocka_unit_test(refused__does_not_quote),
		cmocka_unit_test(reply__no_lists),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
