/* SPDX-License-Identifier: Apache-2.0 */
/* The store of wherry registry, and its recovery from the log. */
#include "../../tools/registry/list.c"
#include "../../tools/registry/log.c"
#include "../../tools/registry/store.c"

#include <setjmp.h>
#include <stdarg.h>
#include <time.h>

#include <cmocka.h>

#define LIMIT (16ULL << 20)

/* In memory: fdatasync() is called all the same, and nothing here waits for a disk. */
static char directory[] = "/dev/shm/wherry-registry-XXXXXX";
static char path[64];
static struct store store;
static const struct store_record *holder;

static void open_it(uint64_t lost_wanted)
{
	uint64_t lost = 99;

	assert_int_equal(store_open(&store, path, LIMIT, NULL, &lost), 0);
	assert_int_equal(lost, lost_wanted);
}

static int put(const char *key, const char *owner, uint32_t lease, const char *value)
{
	return store_put(&store, key, owner, lease, value, strlen(value), &holder);
}

static void assert_value(const char *key, const char *value)
{
	const struct store_record *record = store_get(&store, key);

	if (!value) {
		assert_null(record);
		return;
	}
	assert_non_null(record);
	assert_string_equal(record->value, value);
}

static void nap(int ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000L };

	nanosleep(&t, NULL);
}

/* As if its lease had been put down so long ago. */
static void ends_in(const char *key, int64_t ms)
{
	struct store_record *record = store_find(&store, key);

	assert_non_null(record);
	record->ends = wh_now() + ms * WH_MS;
	store.next_end = record->ends;
}

static off_t file_size(void)
{
	struct stat file;

	assert_int_equal(stat(path, &file), 0);
	return file.st_size;
}

static int begin(void **state)
{
	(void)state;
	unlink(path);
	return 0;
}

static void put__owners_and_leases(void **state)
{
	(void)state;
	open_it(0);
	assert_int_equal(put("a", "x", 60000, "1"), 0);
	assert_int_equal(put("a", "y", 60000, "2"), -EEXIST);
	assert_string_equal(holder->value, "1");
	assert_int_equal(put("a", "", 0, "2"), -EEXIST);
	assert_int_equal(put("a", "x", 60000, "3"), 0);
	assert_value("a", "3");
	assert_int_equal(store_delete(&store, "a", "y"), -EEXIST);
	assert_int_equal(store_delete(&store, "a", NULL), -EEXIST);
	assert_int_equal(store_delete(&store, "a", "x"), 0);
	assert_int_equal(store_delete(&store, "a", "x"), -ENOENT);
	/* Without a lease a key is anybody's. */
	assert_int_equal(put("b", "", 0, "1"), 0);
	assert_int_equal(put("b", "", 0, "2"), 0);
	assert_int_equal(put("b", "x", 0, ""), 0);
	assert_int_equal(put("b", "y", 0, "4"), 0);
	assert_value("b", "4");
	store_close(&store);
}

static void lease__runs_out(void **state)
{
	(void)state;
	open_it(0);
	assert_int_equal(put("a", "x", 60000, "1"), 0);
	assert_int_equal(put("b", "x", 60000, "1"), 0);
	ends_in("a", 10000);
	assert_int_equal(put("a", "x", 60000, "1"), 0);
	assert_true(store_find(&store, "a")->ends > wh_now() + 30 * WH_SECOND);
	ends_in("b", 0);
	assert_value("a", "1");
	assert_value("b", NULL);
	assert_int_equal(put("b", "y", 60000, "2"), 0);
	ends_in("a", 0);
	store_expire(&store);
	assert_int_equal(store.count, 1);
	store_close(&store);
	open_it(0);
	assert_int_equal(store.count, 1);
	assert_value("b", "2");
	/* By itself, and soon. */
	assert_int_equal(put("c", "x", 20, "3"), 0);
	nap(40);
	store_expire(&store);
	assert_int_equal(store.count, 1);
	store_close(&store);
}

/* Renewing what has not changed makes nothing longer. */
static void put__again_writes_nothing(void **state)
{
	off_t size;

	(void)state;
	open_it(0);
	assert_int_equal(put("a", "x", 60000, "1"), 0);
	size = file_size();
	for (int i = 0; i < 100; i++)
		assert_int_equal(put("a", "x", 60000, "1"), 0);
	assert_int_equal(file_size(), size);
	store_close(&store);
}

static void log__brings_everything_back(void **state)
{
	char key[32], value[32];

	(void)state;
	open_it(0);
	for (int i = 0; i < 2000; i++) {
		snprintf(key, sizeof(key), "key/%d", i);
		snprintf(value, sizeof(value), "value %d", i);
		assert_int_equal(put(key, i % 2 ? "x" : "", i % 2 ? 60000 : 0, value), 0);
	}
	for (int i = 0; i < 2000; i += 3) {
		snprintf(key, sizeof(key), "key/%d", i);
		assert_int_equal(store_delete(&store, key, "x"), 0);
	}
	store_close(&store);
	open_it(0);
	for (int i = 0; i < 2000; i++) {
		snprintf(key, sizeof(key), "key/%d", i);
		snprintf(value, sizeof(value), "value %d", i);
		assert_value(key, i % 3 ? value : NULL);
	}
	assert_int_equal(put("key/1", "y", 60000, "2"), -EEXIST);
	store_close(&store);
}

/* Cut off anywhere, the log still has all entries before that. */
static void log__cut_off_anywhere(void **state)
{
	off_t ends[4], size;
	char damaged[80], whole[512];
	int known, fd;

	(void)state;
	snprintf(damaged, sizeof(damaged), "%s.damaged", path);
	open_it(0);
	ends[0] = file_size();
	assert_int_equal(put("a", "", 0, "1"), 0);
	ends[1] = file_size();
	assert_int_equal(put("b", "", 0, "22"), 0);
	ends[2] = file_size();
	assert_int_equal(store_delete(&store, "a", NULL), 0);
	ends[3] = file_size();
	assert_in_range(ends[3], 1, sizeof(whole));
	fd = store.log.fd;
	assert_int_equal(pread(fd, whole, sizeof(whole), 0), ends[3]);
	store_close(&store);
	for (off_t at = 0; at <= ends[3]; at++) {
		fd = open(path, O_WRONLY | O_TRUNC);
		assert_int_equal(write(fd, whole, (size_t)at), at);
		close(fd);
		for (known = 3; known >= 0 && ends[known] > at; known--)
			;
		open_it((uint64_t)(known < 0 ? at : at - ends[known]));
		assert_value("a", known == 1 || known == 2 ? "1" : NULL);
		assert_value("b", known >= 2 ? "22" : NULL);
		/* It goes on from there. */
		assert_int_equal(put("c", "", 0, "3"), 0);
		store_close(&store);
		size = file_size();
		open_it(0);
		assert_value("c", "3");
		store_close(&store);
		assert_int_equal(file_size(), size);
	}
	unlink(damaged);
}

static void log__a_bit_turned(void **state)
{
	char damaged[80], byte;
	uint64_t lost;
	off_t size;
	int fd;

	(void)state;
	snprintf(damaged, sizeof(damaged), "%s.damaged", path);
	open_it(0);
	assert_int_equal(put("a", "", 0, "1"), 0);
	size = file_size();
	assert_int_equal(put("b", "", 0, "2"), 0);
	store_close(&store);
	fd = open(path, O_RDWR);
	assert_int_equal(pread(fd, &byte, 1, size + 20), 1);
	byte ^= 4;
	assert_int_equal(pwrite(fd, &byte, 1, size + 20), 1);
	close(fd);
	assert_int_equal(store_open(&store, path, LIMIT, NULL, &lost), 0);
	assert_true(lost > 0);
	assert_value("a", "1");
	assert_value("b", NULL);
	store_close(&store);
	assert_int_equal(access(damaged, F_OK), 0);
	unlink(damaged);
}

static void log__not_ours(void **state)
{
	static const char other[] = "127.0.0.1 localhost\n";
	uint64_t lost;
	int fd = open(path, O_WRONLY | O_CREAT, 0600);

	(void)state;
	assert_int_equal(write(fd, other, sizeof(other)), sizeof(other));
	close(fd);
	assert_int_equal(store_open(&store, path, LIMIT, NULL, &lost), -EINVAL);
	assert_int_equal(file_size(), sizeof(other));
	assert_int_equal(store_open(&store, directory, LIMIT, NULL, &lost), -EISDIR);
	assert_int_equal(store_open(&store, "/nowhere/at/all", LIMIT, NULL, &lost), -ENOENT);
}

static void log__one_owner_at_a_time(void **state)
{
	struct store other;
	uint64_t lost;

	(void)state;
	open_it(0);
	assert_int_equal(store_open(&other, path, LIMIT, NULL, &lost), -EWOULDBLOCK);
	store_close(&store);
	open_it(0);
	store_close(&store);
}

/* Values that change again and again: the log does not grow with them, and it is still locked. */
static void log__is_made_smaller(void **state)
{
	char value[65536];
	struct store other;
	uint64_t lost;

	(void)state;
	open_it(0);
	memset(value, 'v', sizeof(value));
	assert_int_equal(put("stays", "x", 60000, "1"), 0);
	for (int i = 0; i < 200; i++) {
		value[0] = (char)i;
		assert_int_equal(store_put(&store, "k", "", 0, value, sizeof(value), &holder), 0);
	}
	assert_true(file_size() < 3 << 20);
	assert_int_equal(store_open(&other, path, LIMIT, NULL, &lost), -EWOULDBLOCK);
	store_close(&store);
	open_it(0);
	assert_int_equal(store.count, 2);
	assert_value("stays", "1");
	assert_int_equal(store_get(&store, "k")->value[0], (char)199);
	store_close(&store);
}

static void put__is_bounded(void **state)
{
	static char value[REGISTRY_VALUE_MAX];
	char key[32];
	int i, error = 0;

	(void)state;
	open_it(0);
	memset(value, 'v', sizeof(value));
	for (i = 0; i < 100 && !error; i++) {
		snprintf(key, sizeof(key), "%d", i);
		error = store_put(&store, key, "", 0, value, sizeof(value), &holder);
	}
	assert_int_equal(error, -ENOSPC);
	assert_in_range(i, 15, 16);
	assert_int_equal(put("0", "", 0, "small"), 0);
	assert_int_equal(put("fits", "", 0, "now"), 0);
	store_close(&store);
}

/* ---- walks ----------------------------------------------------------------------------------- */

static void open_in_memory(void)
{
	uint64_t lost;

	assert_int_equal(store_open(&store, NULL, LIMIT, NULL, &lost), 0);
}

static void put_number(int i, const char *value)
{
	char key[32];

	snprintf(key, sizeof(key), "key/%d", i);
	assert_int_equal(put(key, "", 0, value), 0);
}

static void delete_number(int i)
{
	char key[32];

	snprintf(key, sizeof(key), "key/%d", i);
	assert_int_equal(store_delete(&store, key, NULL), 0);
}

/* Of 1,000 keys the first 10 have been seen. */
static void change_everything(void)
{
	for (int i = 1; i < 1000; i += 3)
		put_number(i, "another one, which is longer");
	for (int i = 2; i < 1000; i += 3)
		delete_number(i);
	for (int i = 1000; i < 3000; i++)
		put_number(i, "late");
}

/* Keys go, come and change between two steps: those that stay come once, and those that come later
 * do not. */
static void walk__store_changes(void **state)
{
	const struct store_record *record;
	int seen[3000] = { 0 }, number, step;
	struct store_walk walk, other;

	(void)state;
	open_in_memory();
	for (int i = 0; i < 1000; i++)
		put_number(i, "old");
	store_walk_begin(&store, &walk);
	store_walk_begin(&store, &other);
	for (step = 0; (record = store_walk_next(&store, &walk)); step++) {
		number = atoi(record->key + 4);
		seen[number]++;
		assert_string_equal(record->value, step < 10 || number % 3 != 1 ?
							   "old" :
							   "another one, which is longer");
		if (step == 9)
			change_everything();
		/* Of those that are left this is the next. */
		if (step > 9 && number % 30 == 28 && number + 2 < 1000)
			delete_number(number + 2);
	}
	for (int i = 0; i < 3000; i++)
		assert_int_equal(seen[i], i < 10 || (i < 1000 && i % 3 != 2 && i % 30 != 0));
	assert_null(store_walk_next(&store, &walk));
	store_walk_end(&walk);
	/* What a walk has not seen may all go. */
	store.next_end = 0;
	for (struct wh_list *l = store.order.next; l != &store.order; l = l->next)
		wh_container(l, struct store_record, order)->ends = 0;
	store_expire(&store);
	assert_int_equal(store.count, 0);
	assert_null(store_walk_next(&store, &other));
	store_walk_end(&other);
	store_close(&store);
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* All of a list, read in pieces of so many bytes. */
static json_t *read_list(const char *prefix, size_t piece)
{
	struct registry_list *list = registry_list_new(&store, prefix);
	size_t length = 0, room = 4 << 20;
	char *text = malloc(room);
	json_error_t error;
	ssize_t got;
	json_t *root;

	assert_non_null(list);
	assert_non_null(text);
	while ((got = registry_list_read(list, text + length, piece)) > 0) {
		assert_true((size_t)got <= piece);
		length += (size_t)got;
		assert_true(length + piece < room);
	}
	assert_int_equal(got, 0);
	assert_int_equal(registry_list_read(list, text + length, piece), 0);
	registry_list_free(list);
	root = json_loadb(text, length, 0, &error);
	if (!root)
		fail_msg("%s at byte %d", error.text, error.position);
	free(text);
	assert_int_equal(json_integer_value(json_object_get(root, "schema")), 1);
	return root;
}

static size_t list_count(json_t *root, bool more)
{
	size_t count = json_array_size(json_object_get(root, "keys"));

	assert_true(json_is_boolean(json_object_get(root, "more")));
	assert_int_equal(json_is_true(json_object_get(root, "more")), more);
	json_decref(root);
	return count;
}

static void list__by_prefix(void **state)
{
	const size_t pieces[] = { 1, 7, 100, 4096, 1 << 20 };
	json_t *root, *key;

	(void)state;
	open_in_memory();
	assert_int_equal(list_count(read_list("", 4096), false), 0);
	assert_int_equal(put("a/\"1\\\n", "", 0, "12345"), 0);
	assert_int_equal(put("b/1", "", 0, ""), 0);
	assert_int_equal(put("a/2", "x", 60000, ""), 0);
	assert_int_equal(put("a/\xff", "", 0, "no UTF-8"), 0);
	for (size_t i = 0; i < sizeof(pieces) / sizeof(*pieces); i++) {
		root = read_list("a/", pieces[i]);
		key = json_array_get(json_object_get(root, "keys"), 0);
		assert_string_equal(json_string_value(json_object_get(key, "key")), "a/\"1\\\n");
		assert_int_equal(json_integer_value(json_object_get(key, "bytes")), 5);
		key = json_array_get(json_object_get(root, "keys"), 1);
		assert_string_equal(json_string_value(json_object_get(key, "owner")), "x");
		assert_int_equal(json_integer_value(json_object_get(key, "lease_ms")), 60000);
		assert_int_equal(list_count(root, false), 2);
	}
	assert_int_equal(list_count(read_list("", 64), false), 3);
	ends_in("a/2", 0);
	assert_int_equal(list_count(read_list("a/", 64), false), 1);
	assert_int_equal(list_count(read_list("c", 64), false), 0);
	store_close(&store);
}

static void list__has_an_end(void **state)
{
	(void)state;
	open_in_memory();
	for (int i = 0; i < REGISTRY_LIST_MOST; i++)
		put_number(i, "");
	assert_int_equal(list_count(read_list("key/", 4096), false), REGISTRY_LIST_MOST);
	put_number(REGISTRY_LIST_MOST, "");
	assert_int_equal(list_count(read_list("key/", 4096), true), REGISTRY_LIST_MOST);
	store_close(&store);
}

/* However many keys there are that it is not about, a piece comes soon. */
static void list__of_few_among_many(void **state)
{
	struct registry_list *list;
	char piece[4096];
	int pieces = 0;
	ssize_t got;

	(void)state;
	open_in_memory();
	for (int i = 0; i < 20000; i++)
		put_number(i, "");
	assert_int_equal(put("other", "", 0, ""), 0);
	list = registry_list_new(&store, "other");
	assert_non_null(list);
	while ((got = registry_list_read(list, piece, sizeof(piece))) > 0)
		pieces++;
	assert_int_equal(got, 0);
	assert_in_range(pieces, 20, 40);
	registry_list_free(list);
	assert_int_equal(list_count(read_list("other", 4096), false), 1);
	store_close(&store);
}

/* One that nobody reads to its end does not keep what it has not come to. */
static void list__given_up(void **state)
{
	struct registry_list *list;
	char piece[64];

	(void)state;
	open_in_memory();
	for (int i = 0; i < 100; i++)
		put_number(i, "");
	list = registry_list_new(&store, "");
	assert_non_null(list);
	assert_int_equal(registry_list_read(list, piece, sizeof(piece)), sizeof(piece));
	for (int i = 0; i < 100; i++)
		delete_number(i);
	assert_int_equal(store.count, 0);
	assert_int_equal(store.bytes, 0);
	registry_list_free(list);
	store_close(&store);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(put__owners_and_leases, begin, begin),
		cmocka_unit_test_setup_teardown(lease__runs_out, begin, begin),
		cmocka_unit_test_setup_teardown(put__again_writes_nothing, begin, begin),
		cmocka_unit_test_setup_teardown(log__brings_everything_back, begin, begin),
		cmocka_unit_test_setup_teardown(log__cut_off_anywhere, begin, begin),
		cmocka_unit_test_setup_teardown(log__a_bit_turned, begin, begin),
		cmocka_unit_test_setup_teardown(log__not_ours, begin, begin),
		cmocka_unit_test_setup_teardown(log__one_owner_at_a_time, begin, begin),
		cmocka_unit_test_setup_teardown(log__is_made_smaller, begin, begin),
		cmocka_unit_test_setup_teardown(put__is_bounded, begin, begin),
		cmocka_unit_test_setup_teardown(walk__store_changes, begin, begin),
		cmocka_unit_test_setup_teardown(list__by_prefix, begin, begin),
		cmocka_unit_test_setup_teardown(list__has_an_end, begin, begin),
		cmocka_unit_test_setup_teardown(list__of_few_among_many, begin, begin),
		cmocka_unit_test_setup_teardown(list__given_up, begin, begin),
	};
	int failed;

	if (!mkdtemp(directory))
		return 1;
	snprintf(path, sizeof(path), "%s/log", directory);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	rmdir(directory);
	return failed;
}
