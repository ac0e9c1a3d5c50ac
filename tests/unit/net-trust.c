/* SPDX-License-Identifier: Apache-2.0 */
/* net-trust.c: where an engine finds its key, which key files it refuses, and what needs a key */
#include "unit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <wherry/error.h>

#include "net/trust.h"

#define KEY "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF"

static char directory[] = "/tmp/wherry-trust-XXXXXX";
static char path[64], own[80];

static int begin(void **state)
{
	(void)state;
	strcpy(directory + sizeof(directory) - 7, "XXXXXX");
	if (!mkdtemp(directory))
		return -1;
	snprintf(path, sizeof(path), "%s/key", directory);
	snprintf(own, sizeof(own), "%s/wherry.key", directory);
	setenv("XDG_RUNTIME_DIR", directory, 1);
	setenv("XDG_CACHE_HOME", directory, 1);
	setenv("HOME", directory, 1);
	unsetenv("WHERRY_KEY");
	unsetenv("WHERRY_KEYFILE");
	return 0;
}

static int end(void **state)
{
	(void)state;
	unlink(path);
	rmdir(path);
	unlink(own);
	return rmdir(directory); /* fails if anything else is left */
}

static void put(const char *text, size_t length, mode_t mode)
{
	int fd;

	unlink(path);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_true(write(fd, text, length) == (ssize_t)length);
	assert_int_equal(fchmod(fd, mode), 0);
	close(fd);
}

/* Open with this setting. 0 and the key, or the error. */
static int open_with(const char *setting, struct wh_trust *trust)
{
	const char *const settings[] = { setting, NULL };
	struct wh_config config;
	int error;

	assert_int_equal(wh_config_load(&config, settings), 0);
	memset(trust, 0, sizeof(*trust));
	error = wh_trust_open(trust, &config);
	assert_string_equal(config.text[WH_SETTING_KEY], "");
	return error;
}

static int open_file(struct wh_trust *trust)
{
	char setting[80];

	snprintf(setting, sizeof(setting), "keyfile=%s", path);
	return open_with(setting, trust);
}

static void want_refused(int error, const char *word)
{
	struct wh_trust trust;

	assert_int_equal(open_file(&trust), error);
	assert_non_null(strstr(wh_error_text(), word));
	assert_non_null(strstr(wh_error_text(), "key"));
	assert_null(strstr(wh_error_text(), "0011"));
	wh_trust_close(&trust);
}

static void want_key(const struct wh_trust *trust)
{
	static const uint8_t key[] = {
		0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa,
		0xbb, 0xcc, 0xdd, 0xee, 0xff, 0x00, 0x11, 0x22, 0x33, 0x44, 0x55,
		0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff,
	};

	assert_int_equal(trust->error, 0);
	assert_memory_equal(trust->keys.key[0], key, sizeof(key));
	assert_true(trust->configured);
}

static void file__good(void **state)
{
	static const char *const good[] = { KEY, KEY "\n", KEY "\r\n", KEY " \t\n\n" };
	struct wh_trust trust;

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		put(good[i], strlen(good[i]), i % 2 ? 0600 : 0400);
		assert_int_equal(open_file(&trust), 0);
		want_key(&trust);
		assert_string_equal(trust.source, path);
		wh_trust_close(&trust);
		for (size_t j = 0; j < sizeof(trust.keys.key[0]); j++)
			assert_int_equal(trust.keys.key[0][j], 0);
	}
	assert_int_equal(open_with("key=" KEY, &trust), 0);
	want_key(&trust);
	assert_null(strstr(trust.source, "0011"));
	wh_trust_close(&trust);
}

static void file__several(void **state)
{
	static const char other[] =
		"ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
	char text[1024] = "", many[1024] = "";
	struct wh_trust trust;

	(void)state;
	snprintf(text, sizeof(text), "# one\n" KEY "\n\n \t\r\n#" KEY "\n%s\r\n", other);
	put(text, strlen(text), 0600);
	assert_int_equal(open_file(&trust), 0);
	want_key(&trust);
	assert_int_equal(trust.keys.count, 2);
	assert_int_equal(trust.keys.key[1][0], 0xff);
	wh_trust_close(&trust);
	for (int i = 0; i < WH_KEYS_MAX; i++)
		strcat(many, KEY "\n");
	put(many, strlen(many), 0600);
	assert_int_equal(open_file(&trust), 0);
	assert_int_equal(trust.keys.count, WH_KEYS_MAX);
	wh_trust_close(&trust);
	strcat(many, KEY "\n");
	put(many, strlen(many), 0600);
	want_refused(-EINVAL, "line 9");
	put(KEY "\nx" KEY, 130, 0600);
	want_refused(-EINVAL, "line 2");
}

/* Two keys have different names, which reveal nothing of them. */
static void file__made_and_named(void **state)
{
	char first[WH_FINGERPRINT], second[WH_FINGERPRINT], again[WH_FINGERPRINT];
	struct wh_keys keys[2];
	struct wh_crypto crypto;
	struct stat file;

	(void)state;
	assert_int_equal(wh_crypto_open(&crypto, NULL), 0);
	for (int i = 0; i < 2; i++) {
		umask(i ? 0777 : 0);
		assert_int_equal(wh_key_make(path), 0);
		umask(022);
		assert_int_equal(stat(path, &file), 0);
		assert_int_equal(file.st_mode & 07777, 0600);
		assert_int_equal(wh_key_make(path), -EEXIST);
		assert_int_equal(wh_keys_load(path, &keys[i]), 0);
		assert_int_equal(keys[i].count, 1);
		unlink(path);
	}
	assert_int_equal(wh_key_fingerprint(&crypto, keys[0].key[0], first), 0);
	assert_int_equal(wh_key_fingerprint(&crypto, keys[1].key[0], second), 0);
	assert_int_equal(wh_key_fingerprint(&crypto, keys[0].key[0], again), 0);
	assert_string_equal(first, again);
	assert_string_not_equal(first, second);
	assert_int_equal(strlen(first), 16);
	wh_crypto_close(&crypto);
	assert_int_equal(symlink("/nowhere/else", path), 0);
	assert_int_equal(wh_key_make(path), -EEXIST);
	assert_int_equal(wh_key_make("/nowhere/key"), -ENOENT);
}

static void file__no_key(void **state)
{
	static char longer[4096];
	static const struct {
		const char *text;
		size_t length;
	} bad[] = {
		{ "", 0 },
		{ "\n", 1 },
		{ KEY, 63 },
		{ KEY "0", 65 },
		{ KEY "\n" KEY "0", 130 },
		{ KEY KEY, 128 },
		{ "# none\n", 7 },
		{ KEY "\n# " KEY "\n#\nx", 135 },
		{ " " KEY, 65 },
		{ "0x" KEY, 66 },
		{ KEY "\0x", 66 },
		{ "g0112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF", 64 },
		{ longer, sizeof(longer) },
	};

	(void)state;
	memset(longer, ' ', sizeof(longer));
	for (size_t i = 0; i < 64; i++)
		longer[i] = KEY[i];
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		put(bad[i].text, bad[i].length, 0600);
		want_refused(-EINVAL, "64 hex digits");
	}
}

static void file__not_ours_alone(void **state)
{
	static const mode_t open_to[] = { 0640, 0604, 0620, 0602, 0644, 0610, 0777 };

	(void)state;
	for (size_t i = 0; i < sizeof(open_to) / sizeof(open_to[0]); i++) {
		put(KEY, 64, open_to[i]);
		want_refused(-EACCES, "chmod 600");
	}
	if (geteuid() == 0) {
		put(KEY, 64, 0600);
		assert_int_equal(chown(path, 65534, 65534), 0);
		want_refused(-EACCES, "65534");
	}
	unlink(path);
	want_refused(-ENOENT, "wherry key make");
	assert_int_equal(mkdir(path, 0700), 0);
	want_refused(-EINVAL, "regular");
	rmdir(path);
	/* Nobody writes to the FIFO, and opening it does not block. */
	assert_int_equal(mkfifo(path, 0600), 0);
	want_refused(-EINVAL, "regular");
}

static void knobs__both(void **state)
{
	const char *const settings[] = { "key=" KEY, "keyfile=/nowhere", NULL };
	struct wh_config config;
	struct wh_trust trust;

	(void)state;
	memset(&trust, 0, sizeof(trust));
	assert_int_equal(wh_config_load(&config, settings), 0);
	assert_int_equal(wh_trust_open(&trust, &config), -EINVAL);
	assert_non_null(strstr(wh_error_text(), "keyfile"));
	wh_trust_close(&trust);
}

/* ---- a user's own key -------------------------------------------------- */

static void own__made_once(void **state)
{
	struct wh_trust first, second;
	struct stat file;

	(void)state;
	umask(0);
	assert_int_equal(open_with(NULL, &first), 0);
	umask(022);
	assert_int_equal(first.error, 0);
	assert_false(first.configured);
	assert_string_equal(first.source, own);
	assert_int_equal(stat(own, &file), 0);
	assert_int_equal(file.st_mode & 07777, 0600);
	assert_int_equal(file.st_nlink, 1);
	assert_int_equal(open_with(NULL, &second), 0);
	assert_memory_equal(first.keys.key[0], second.keys.key[0], sizeof(first.keys.key[0]));
	wh_trust_close(&second);
	/* After its removal another key is created. */
	unlink(own);
	assert_int_equal(open_with(NULL, &second), 0);
	assert_memory_not_equal(first.keys.key[0], second.keys.key[0], sizeof(first.keys.key[0]));
	wh_trust_close(&first);
	wh_trust_close(&second);
}

/* An existing key is used, in either location. */
static void own__found_before_made(void **state)
{
	struct wh_trust first, second;
	char cache[80];

	(void)state;
	snprintf(cache, sizeof(cache), "%s/cache", directory);
	assert_int_equal(mkdir(cache, 0700), 0);
	setenv("XDG_CACHE_HOME", cache, 1);
	unsetenv("XDG_RUNTIME_DIR");
	assert_int_equal(open_with(NULL, &first), 0);
	setenv("XDG_RUNTIME_DIR", directory, 1);
	assert_int_equal(open_with(NULL, &second), 0);
	assert_string_equal(first.source, second.source);
	assert_memory_equal(first.keys.key[0], second.keys.key[0], sizeof(first.keys.key[0]));
	if (!strncmp(first.source, cache, strlen(cache)))
		assert_int_equal(unlink(first.source), 0);
	wh_trust_close(&first);
	wh_trust_close(&second);
	rmdir(cache);
}

static void own__spoiled(void **state)
{
	struct wh_trust trust;
	struct sockaddr_storage address = { .ss_family = AF_INET };

	(void)state;
	((struct sockaddr_in *)&address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	put(KEY, 64, 0644);
	assert_int_equal(rename(path, own), 0);
	/* The engine opens; a call that needs the key reports what is wrong with it. */
	assert_int_equal(open_with(NULL, &trust), 0);
	assert_int_equal(wh_trust_allows(&trust, &address, true), -EACCES);
	assert_non_null(strstr(wh_error_text(), own));
	wh_trust_close(&trust);
	/* A link could point anywhere. */
	unlink(own);
	put(KEY, 64, 0600);
	assert_int_equal(symlink(path, own), 0);
	assert_int_equal(open_with(NULL, &trust), 0);
	assert_int_equal(wh_trust_allows(&trust, &address, false), -ELOOP);
	wh_trust_close(&trust);
}

/* A directory in which others may create files is refused. */
static void own__directory_of_others(void **state)
{
	struct wh_trust trust;
	char cache[80];

	(void)state;
	snprintf(cache, sizeof(cache), "%s/cache", directory);
	assert_int_equal(mkdir(cache, 0700), 0);
	setenv("XDG_CACHE_HOME", cache, 1);
	assert_int_equal(chmod(directory, 0777), 0);
	assert_int_equal(open_with(NULL, &trust), 0);
	assert_int_equal(trust.error, 0);
	assert_int_equal(access(own, F_OK), -1);
	if (!strncmp(trust.source, cache, strlen(cache)))
		assert_int_equal(unlink(trust.source), 0);
	wh_trust_close(&trust);
	rmdir(cache);
	assert_int_equal(chmod(directory, 0700), 0);
}

/* Processes that create the first key at the same time agree on one. */
static void own__race(void **state)
{
	enum { PROCESSES = 16 };
	uint8_t first[WH_KEY_SIZE], key[WH_KEY_SIZE];
	int go[2], keys[2], status;
	char byte;

	(void)state;
	for (int round = 0; round < 10; round++) {
		assert_int_equal(pipe(go), 0);
		assert_int_equal(pipe(keys), 0);
		for (int i = 0; i < PROCESSES; i++)
			if (fork() == 0) {
				struct wh_config config = { 0 };
				struct wh_trust trust = { 0 };

				close(go[1]);
				if (read(go[0], &byte, 1) || wh_trust_open(&trust, &config) ||
				    trust.error ||
				    write(keys[1], trust.keys.key[0], sizeof(key)) != sizeof(key))
					_exit(1);
				_exit(0);
			}
		close(go[1]);
		close(keys[1]);
		assert_int_equal(read(keys[0], first, sizeof(first)), sizeof(first));
		for (int i = 1; i < PROCESSES; i++) {
			assert_int_equal(read(keys[0], key, sizeof(key)), sizeof(key));
			assert_memory_equal(first, key, sizeof(key));
		}
		close(go[0]);
		close(keys[0]);
		for (int i = 0; i < PROCESSES; i++) {
			assert_true(wait(&status) > 0);
			assert_int_equal(status, 0);
		}
		assert_int_equal(unlink(own), 0);
	}
}

/* ---- addresses --------------------------------------------------------- */

static int allows(const struct wh_trust *trust, const char *host, bool listening)
{
	struct sockaddr_storage address = { 0 };
	struct sockaddr_in *v4 = (struct sockaddr_in *)&address;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&address;

	if (inet_pton(AF_INET, host, &v4->sin_addr) == 1)
		v4->sin_family = AF_INET;
	else if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1)
		v6->sin6_family = AF_INET6;
	return wh_trust_allows(trust, &address, listening);
}

static void allows__loopback_alone(void **state)
{
	static const char *const near[] = { "127.0.0.1", "127.9.8.7", "::1", "::ffff:127.0.0.1" };
	static const char *const far[] = { "128.0.0.1",   "126.255.255.255",
					   "192.168.0.1", "10.0.0.1",
					   "::2",         "::ffff:10.0.0.1",
					   "fe80::1",     "2001:db8::1" };
	static const char *const any[] = { "0.0.0.0", "::" };
	struct wh_trust mine, all;

	(void)state;
	assert_int_equal(open_with(NULL, &mine), 0);
	assert_int_equal(open_with("key=" KEY, &all), 0);
	for (int listening = 0; listening < 2; listening++) {
		for (size_t i = 0; i < sizeof(near) / sizeof(near[0]); i++)
			assert_int_equal(allows(&mine, near[i], listening), 0);
		for (size_t i = 0; i < sizeof(far) / sizeof(far[0]); i++) {
			assert_int_equal(allows(&mine, far[i], listening), -EACCES);
			assert_non_null(strstr(wh_error_text(), far[i]));
			assert_non_null(strstr(wh_error_text(), "wherry key make"));
			assert_non_null(strstr(wh_error_text(), "keyfile"));
			assert_int_equal(allows(&all, far[i], listening), 0);
		}
		for (size_t i = 0; i < 2; i++)
			assert_int_equal(allows(&mine, any[i], listening), listening ? -EACCES : 0);
	}
	wh_trust_close(&mine);
	wh_trust_close(&all);
}

/* A key does not widen the networks that are named. */
static void allows__networks(void **state)
{
	struct wh_trust trust;

	(void)state;
	setenv("WHERRY_CONNECT_TO", "10.0.0.0/8,fd00::/8", 1);
	assert_int_equal(open_with("key=" KEY, &trust), 0);
	assert_int_equal(allows(&trust, "10.1.2.3", false), 0);
	assert_int_equal(allows(&trust, "fd12::1", false), 0);
	assert_int_equal(allows(&trust, "11.1.2.3", false), -EACCES);
	assert_non_null(strstr(wh_error_text(), "11.1.2.3"));
	assert_non_null(strstr(wh_error_text(), "WHERRY_CONNECT_TO"));
	assert_int_equal(allows(&trust, "127.0.0.1", false), -EACCES);
	assert_int_equal(allows(&trust, "0.0.0.0", false), -EACCES);
	assert_int_equal(allows(&trust, "11.1.2.3", true), 0);
	wh_trust_close(&trust);
	unsetenv("WHERRY_CONNECT_TO");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(file__good, begin, end),
		cmocka_unit_test_setup_teardown(file__several, begin, end),
		cmocka_unit_test_setup_teardown(file__made_and_named, begin, end),
		cmocka_unit_test_setup_teardown(file__no_key, begin, end),
		cmocka_unit_test_setup_teardown(file__not_ours_alone, begin, end),
		cmocka_unit_test_setup_teardown(knobs__both, begin, end),
		cmocka_unit_test_setup_teardown(own__made_once, begin, end),
		cmocka_unit_test_setup_teardown(own__found_before_made, begin, end),
		cmocka_unit_test_setup_teardown(own__spoiled, begin, end),
		cmocka_unit_test_setup_teardown(own__directory_of_others, begin, end),
		cmocka_unit_test_setup_teardown(own__race, begin, end),
		cmocka_unit_test_setup_teardown(allows__loopback_alone, begin, end),
		cmocka_unit_test_setup_teardown(allows__networks, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
