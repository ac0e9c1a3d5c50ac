/* SPDX-License-Identifier: Apache-2.0 */
/* What wherry registry keeps, and that its log brings it back. */
#include "../../tools/registry-log.c"
#include "../../tools/registry-store.c"

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
	struct store_record *record = find(&store, key);

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
	assert_true(find(&store, "a")->ends > wh_now() + 30 * WH_SECOND);
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

static void count_one(void *arg, const struct store_record *record)
{
	(void)record;
	++*(int *)arg;
}

static void each__by_prefix(void **state)
{
	int count = 0;
	uint64_t lost;

	(void)state;
	assert_int_equal(store_open(&store, NULL, LIMIT, NULL, &lost), 0);
	assert_int_equal(put("a/1", "", 0, ""), 0);
	assert_int_equal(put("a/2", "x", 60000, ""), 0);
	assert_int_equal(put("b/1", "", 0, ""), 0);
	store_each(&store, "a/", count_one, &count);
	assert_int_equal(count, 2);
	ends_in("a/2", 0);
	store_each(&store, "", count_one, &count);
	assert_int_equal(count, 4);
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
		cmocka_unit_test_setup_teardown(each__by_prefix, begin, begin),
	};
	int failed;

	if (!mkdtemp(directory))
		return 1;
	snprintf(path, sizeof(path), "%s/log", directory);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	rmdir(directory);
	return failed;
}
