/* SPDX-License-Identifier: Apache-2.0 */
/* Engines in a store of metadata, which is a list here. */
#include "unit.h"

#include <errno.h>
#include <stdbool.h>

#include <wherry/error.h>

#include "compat/mooncake/mooncake.h"
#include "compat/mooncake/store.h"

static struct {
	char key[300], value[300];
} rows[4];
static int broken; /* what the store fails with */

static int row_of(const char *key)
{
	for (int i = 0; i < 4; i++)
		if (!strcmp(rows[i].key, key))
			return i;
	return -1;
}

static int get(void *store, const char *key, char **value, size_t *length)
{
	int row = row_of(key);

	assert_ptr_equal(store, rows);
	if (broken || row < 0)
		return wh_fail(broken ? broken : ENOENT, "not there");
	*value = strdup(rows[row].value);
	*length = strlen(*value);
	return 0;
}

static int put(void *store, const char *key, const char *value)
{
	int row = row_of(key);

	assert_ptr_equal(store, rows);
	if (row < 0)
		row = row_of("");
	assert_true(row >= 0);
	strcpy(rows[row].key, key);
	strcpy(rows[row].value, value);
	return 0;
}

static int take(void *store, const char *key)
{
	int row = row_of(key);

	assert_ptr_equal(store, rows);
	if (row >= 0)
		rows[row].key[0] = '\0';
	return broken ? wh_fail(broken, "not there") : 0;
}

static const struct wh_mooncake_store_ops ops = {
	.get = get, .put = put, .remove = take, .text = wh_fail_text
};
static const struct wh_mooncake_endpoint here = { .host = "10.0.0.7", .port = 7 };
static const char segment_json[] =
	"{\"name\":\"a\",\"protocol\":\"tcp\",\"tcp_data_port\":9,\"buffers\":[]}";

static int clear(void **state)
{
	(void)state;
	memset(rows, 0, sizeof(rows));
	broken = 0;
	return 0;
}

static void publish__keys(void **state)
{
	struct wh_mooncake_segment segment;

	(void)state;
	assert_int_equal(wh_mooncake_publish(&ops, rows, "a", segment_json, &here), 0);
	assert_true(row_of("mooncake/ram/a") >= 0 && row_of("mooncake/rpc_meta/a") >= 0);
	assert_string_equal(rows[row_of("mooncake/rpc_meta/a")].value,
			    "{\"ip_or_host_name\":\"10.0.0.7\",\"rpc_port\":7}");
	/* The segment does not say where it is: where it is asked. */
	assert_int_equal(wh_mooncake_find(&ops, rows, "a", &segment), 0);
	assert_string_equal(segment.host, "10.0.0.7");
	assert_int_equal(segment.port, 9);
	wh_mooncake_segment_free(&segment);
	assert_int_equal(wh_mooncake_withdraw(&ops, rows, "a"), 0);
	assert_int_equal(row_of("mooncake/ram/a"), -1);
	assert_int_equal(row_of("mooncake/rpc_meta/a"), -1);
	assert_int_equal(wh_mooncake_find(&ops, rows, "a", &segment), -ENOENT);
}

static void publish__path(void **state)
{
	(void)state;
	assert_int_equal(wh_mooncake_publish(&ops, rows, "a/b", segment_json, &here), 0);
	assert_true(row_of("mooncake/a/b") >= 0 && row_of("mooncake/rpc_meta/a/b") >= 0);
}

static void publish__taken(void **state)
{
	struct wh_mooncake_server_options options = { .listen = "127.0.0.1:0" };
	struct wh_mooncake_endpoint alive;
	struct wh_mooncake_server *server;

	(void)state;
	assert_int_equal(wh_mooncake_serve(&options, &server), 0);
	assert_int_equal(wh_mooncake_endpoint_read(wh_mooncake_control(server), &alive), 0);
	assert_int_equal(wh_mooncake_publish(&ops, rows, "a", segment_json, &alive), 0);
	assert_int_equal(wh_mooncake_publish(&ops, rows, "a", segment_json, &here), -EEXIST);
	assert_non_null(strstr(wh_error_text(), wh_mooncake_control(server)));
	/* Our own, from before. */
	assert_int_equal(wh_mooncake_publish(&ops, rows, "a", "{}", &alive), 0);
	assert_string_equal(rows[row_of("mooncake/ram/a")].value, "{}");
	/* It dies. */
	wh_mooncake_stop(server);
	assert_int_equal(wh_mooncake_publish(&ops, rows, "a", segment_json, &here), 0);
	assert_int_equal(wh_mooncake_locate(&ops, rows, "a", &alive), 0);
	assert_string_equal(alive.host, here.host);
}

static void publish__lost(void **state)
{
	const struct wh_mooncake_endpoint other = { .host = "10.0.0.7", .port = 8 };

	(void)state;
	assert_int_equal(wh_mooncake_is_published(&ops, rows, "a", &here), -ENOENT);
	assert_int_equal(wh_mooncake_publish(&ops, rows, "a", segment_json, &here), 0);
	assert_int_equal(wh_mooncake_is_published(&ops, rows, "a", &here), 0);
	assert_int_equal(wh_mooncake_is_published(&ops, rows, "a", &other), -ENOENT);
	rows[row_of("mooncake/ram/a")].key[0] = '\0';
	assert_int_equal(wh_mooncake_is_published(&ops, rows, "a", &here), -ENOENT);
	broken = ETIMEDOUT;
	assert_int_equal(wh_mooncake_is_published(&ops, rows, "a", &here), -ETIMEDOUT);
}

static void store__broken(void **state)
{
	struct wh_mooncake_segment segment;

	(void)state;
	assert_int_equal(wh_mooncake_publish(&ops, rows, "a", "[]", &here), 0);
	assert_int_equal(wh_mooncake_find(&ops, rows, "a", &segment), -EPROTO);
	broken = ETIMEDOUT;
	assert_int_equal(wh_mooncake_find(&ops, rows, "a", &segment), -ETIMEDOUT);
	assert_int_equal(wh_mooncake_publish(&ops, rows, "b", "{}", &here), -ETIMEDOUT);
	assert_int_equal(row_of("mooncake/ram/b"), -1);
	assert_int_equal(wh_mooncake_withdraw(&ops, rows, "a"), -ETIMEDOUT);
}

static void store__wrong_endpoint(void **state)
{
	struct wh_mooncake_segment segment;

	(void)state;
	put(rows, "mooncake/ram/a", segment_json);
	assert_int_equal(wh_mooncake_find(&ops, rows, "a", &segment), -ENOENT);
	put(rows, "mooncake/rpc_meta/a", "{}");
	assert_int_equal(wh_mooncake_find(&ops, rows, "a", &segment), -EPROTO);
	assert_int_equal(wh_mooncake_publish(&ops, rows, "a", segment_json, &here), -EPROTO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(publish__keys, clear),
		cmocka_unit_test_setup(publish__path, clear),
		cmocka_unit_test_setup(publish__taken, clear),
		cmocka_unit_test_setup(publish__lost, clear),
		cmocka_unit_test_setup(store__broken, clear),
		cmocka_unit_test_setup(store__wrong_endpoint, clear),
	};

	return cmocka_run_group_tests_name("mooncake-metadata", tests, NULL, NULL);
}
