/* SPDX-License-Identifier: Apache-2.0 */
/* The table of settings: defaults, environment, overrides, values that are refused and the errors,
 * and environment variables that no setting reads. */
#include "unit.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>

#include <wherry/engine.h>
#include <wherry/error.h>

#include "util/config.h"

static int environment_clear(void **state)
{
	const struct wh_config_row *row;

	(void)state;
	for (size_t i = 0; (row = wh_config_row(i)); i++)
		unsetenv(row->environment);
	return 0;
}

static int load(struct wh_config *config, const char *override)
{
	const char *const overrides[] = { override, NULL };

	return wh_config_load(config, overrides);
}

static void load__defaults(void **state)
{
	struct wh_config config;

	(void)state;
	memset(&config, 0xff, sizeof(config));
	assert_int_equal(wh_config_load(&config, NULL), 0);
	assert_string_equal(config.text[WH_SETTING_TRANSPORTS], "self,cuda,shm,rdma,tcp");
	assert_string_equal(config.text[WH_SETTING_REQUIRE], "");
	assert_string_equal(config.text[WH_SETTING_LISTEN], "127.0.0.1:0");
	assert_int_equal(config.number[WH_SETTING_CONNECTIONS], 4);
	assert_int_equal(config.number[WH_SETTING_THREADS], 0);
	assert_int_equal(config.number[WH_SETTING_SPIN], 0);
	assert_int_equal(config.number[WH_SETTING_TIMEOUT], 5000);
	assert_int_equal(config.number[WH_SETTING_IDLE], 30000);
	assert_int_equal(config.number[WH_SETTING_INLINE], 1 << 20);
	assert_int_equal(config.number[WH_SETTING_SLICE], 1 << 20);
	assert_int_equal(config.number[WH_SETTING_BUFFER], 0);
	assert_int_equal(config.number[WH_SETTING_CMA], 1);
	assert_int_equal(config.number[WH_SETTING_NOTIFICATIONS], 1024);
	assert_string_equal(config.text[WH_SETTING_CUDA], "");
	assert_string_equal(config.text[WH_SETTING_KEY], "");
	assert_string_equal(config.text[WH_SETTING_KEYFILE], "");
	assert_string_equal(config.text[WH_SETTING_OBSERVE], "");
}

/* Errors about a key do not show the key. */
static void load__key(void **state)
{
	static const char key[] =
		"00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF";
	char text[WH_CONFIG_TEXT + 16];
	struct wh_config config;

	(void)state;
	snprintf(text, sizeof(text), "key=%s", key);
	assert_int_equal(load(&config, text), 0);
	assert_string_equal(config.text[WH_SETTING_KEY], key);
	for (size_t cut = 1; cut < 64; cut++) {
		snprintf(text, sizeof(text), "key=%.*s", (int)cut, key);
		assert_int_equal(load(&config, text), -EINVAL);
		assert_null(strstr(wh_error_text(), "0011"));
	}
	snprintf(text, sizeof(text), "key=%s0", key);
	assert_int_equal(load(&config, text), -EINVAL);
	snprintf(text, sizeof(text), "key=%s", key);
	text[20] = 'g';
	assert_int_equal(load(&config, text), -EINVAL);
	assert_null(strstr(wh_error_text(), "0011"));
	memset(text + 4, '1', WH_CONFIG_TEXT + 4);
	text[WH_CONFIG_TEXT + 8] = '\0';
	assert_int_equal(load(&config, text), -EINVAL);
	assert_null(strstr(wh_error_text(), "1111"));
	assert_int_equal(load(&config, "keyfile=/etc/wherry/key"), 0);
	assert_int_equal(load(&config, "keyfile=a\nb"), -EINVAL);
	assert_int_equal(load(&config, "meet=/run/wherry,/dev/shm"), 0);
	assert_int_equal(load(&config, "meet=off"), 0);
	assert_int_equal(load(&config, "meet=/1,/2,/3,/4"), 0);
	assert_int_equal(load(&config, "meet=/1,/2,/3,/4,/5"), -EINVAL);
	assert_int_equal(load(&config, "meet=relative"), -EINVAL);
	assert_int_equal(load(&config, "meet=/a,"), -EINVAL);
	assert_int_equal(load(&config, "meet=/a,b"), -EINVAL);
	assert_int_equal(load(&config, "meet=/a\nb"), -EINVAL);
	assert_int_equal(load(&config, "require=local"), 0);
}

static void load__cuda(void **state)
{
	char text[WH_CONFIG_TEXT + 16] = "cuda=";
	struct wh_config config;

	(void)state;
	assert_int_equal(load(&config, "cuda=/opt/my driver/libcuda.so.1"), 0);
	assert_string_equal(config.text[WH_SETTING_CUDA], "/opt/my driver/libcuda.so.1");
	assert_int_equal(load(&config, "cuda=off"), 0);
	assert_int_equal(load(&config, "cuda=a\nb"), -EINVAL);
	assert_non_null(strstr(wh_error_text(), "library"));
	/* The longest text, and one byte more. */
	memset(text + 5, 'x', WH_CONFIG_TEXT - 1);
	assert_int_equal(load(&config, text), 0);
	assert_string_equal(config.text[WH_SETTING_CUDA], text + 5);
	text[5 + WH_CONFIG_TEXT - 1] = 'x';
	assert_int_equal(load(&config, text), -EINVAL);
	assert_non_null(strstr(wh_error_text(), "at most 255"));
}

static void rows__are_complete(void **state)
{
	static const char *const types[] = { "count", "bytes", "ms", "bool", "text", "secret" };
	const struct wh_config_row *row;
	struct wh_config config;
	char text[128];
	size_t count = 0;

	(void)state;
	for (; (row = wh_config_row(count)); count++) {
		bool known = false;

		assert_true(strlen(row->name) > 0 && strlen(row->help) > 0);
		assert_null(strchr(row->help, '\n'));
		snprintf(text, sizeof(text), "WHERRY_%s", row->name);
		for (char *c = text; *c; c++)
			*c = *c >= 'a' && *c <= 'z' ? (char)(*c - 'a' + 'A') : *c;
		assert_string_equal(row->environment, text);
		for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
			known |= !strcmp(row->type, types[i]);
		assert_true(known);
		/* The setting accepts its default. */
		snprintf(text, sizeof(text), "%s=%s", row->name, row->fallback);
		assert_int_equal(load(&config, text), 0);
		assert_string_equal(config.text[count], row->fallback);
	}
	assert_int_equal(count, WH_SETTING_COUNT);
	assert_null(wh_config_row(WH_SETTING_COUNT));
	assert_null(wh_config_row(SIZE_MAX));
}

static void load__environment(void **state)
{
	struct wh_config config;

	(void)state;
	setenv("WHERRY_CONNECTIONS", "7", 1);
	setenv("WHERRY_SLICE", "64KiB", 1);
	setenv("WHERRY_REQUIRE", "shm", 1);
	setenv("WHERRY_TIMEOUT", "", 1); /* as if it were not set */
	assert_int_equal(wh_config_load(&config, NULL), 0);
	assert_int_equal(config.number[WH_SETTING_CONNECTIONS], 7);
	assert_int_equal(config.number[WH_SETTING_SLICE], 65536);
	assert_string_equal(config.text[WH_SETTING_REQUIRE], "shm");
	assert_int_equal(config.number[WH_SETTING_TIMEOUT], 5000);
	setenv("WHERRY_CONNECTIONS", "many", 1);
	assert_int_equal(wh_config_load(&config, NULL), -EINVAL);
	assert_non_null(strstr(wh_error_text(), "WHERRY_CONNECTIONS=many"));
	assert_int_equal(config.number[WH_SETTING_CONNECTIONS], 7);
}

static void load__overrides_go_first(void **state)
{
	const char *const overrides[] = { "connections=9", "require=", "connections=8", "spin=1",
					  NULL };
	struct wh_config config;

	(void)state;
	setenv("WHERRY_CONNECTIONS", "not even a number", 1);
	setenv("WHERRY_REQUIRE", "shm", 1);
	assert_int_equal(wh_config_load(&config, overrides), 0);
	assert_int_equal(config.number[WH_SETTING_CONNECTIONS], 8);
	assert_int_equal(config.number[WH_SETTING_SPIN], 1);
	assert_string_equal(config.text[WH_SETTING_REQUIRE], "");
}

static void load__unknown_overrides(void **state)
{
	static const char *const cases[] = {
		"",
		"=",
		"connections",
		"=4",
		"connection=4",
		"connectionss=4",
		"Connections=4",
		"WHERRY_CONNECTIONS=4",
		" connections=4",
		"connections =4",
	};
	struct wh_config config;
	char name[64];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(load(&config, cases[i]), -EINVAL);
		snprintf(name, sizeof(name), "\"%.*s\"", (int)strcspn(cases[i], "="), cases[i]);
		assert_non_null(strstr(wh_error_text(), name));
	}
}

/* A registry's URL can contain a password. */
static void load__no_secrets_in_errors(void **state)
{
	static const char *const cases[] = {
		"registry=redis://:secret@host:1\n",
		"regstry=redis://:secret@host:1",
		"registry=",
	};
	struct wh_config config;
	char text[WH_CONFIG_TEXT + 32] = "registry=http://u:secret@";

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(load(&config, cases[i]), -EINVAL);
		assert_null(strstr(wh_error_text(), "secret"));
	}
	memset(text + strlen(text), 'h', sizeof(text) - 1 - strlen(text));
	assert_int_equal(load(&config, text), -EINVAL);
	assert_null(strstr(wh_error_text(), "secret"));
}

static void load__good_values(void **state)
{
	static const struct {
		const char *override;
		enum wh_setting setting;
		int64_t want;
	} cases[] = {
		{ "connections=1", WH_SETTING_CONNECTIONS, 1 },
		{ "connections=64", WH_SETTING_CONNECTIONS, 64 },
		{ "connections=007", WH_SETTING_CONNECTIONS, 7 },
		{ "slice=1024", WH_SETTING_SLICE, 1024 },
		{ "slice=1024B", WH_SETTING_SLICE, 1024 },
		{ "slice=2K", WH_SETTING_SLICE, 2048 },
		{ "slice=64KiB", WH_SETTING_SLICE, 65536 },
		{ "slice=3M", WH_SETTING_SLICE, 3 << 20 },
		{ "slice=16MiB", WH_SETTING_SLICE, 16 << 20 },
		{ "slice=1GiB", WH_SETTING_SLICE, 1 << 30 },
		{ "slice=1G", WH_SETTING_SLICE, 1 << 30 },
		{ "inline=0", WH_SETTING_INLINE, 0 },
		{ "timeout=250", WH_SETTING_TIMEOUT, 250 },
		{ "timeout=250ms", WH_SETTING_TIMEOUT, 250 },
		{ "timeout=3s", WH_SETTING_TIMEOUT, 3000 },
		{ "idle=2min", WH_SETTING_IDLE, 120000 },
		{ "spin=yes", WH_SETTING_SPIN, 1 },
		{ "spin=on", WH_SETTING_SPIN, 1 },
		{ "spin=true", WH_SETTING_SPIN, 1 },
		{ "cma=no", WH_SETTING_CMA, 0 },
		{ "cma=off", WH_SETTING_CMA, 0 },
		{ "cma=false", WH_SETTING_CMA, 0 },
	};
	struct wh_config config;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(load(&config, cases[i].override), 0);
		assert_int_equal(config.number[cases[i].setting], cases[i].want);
	}
}

static void load__good_texts(void **state)
{
	static const char *const cases[] = {
		"transports=shm",
		"transports=tcp,self",
		"require=",
		"require=tcp",
		"listen=none",
		"listen=[::1]:7000",
		"listen=0.0.0.0:7000",
		"listen=123456789012345678901234567890123456789012345678901234567890123",
	};
	struct wh_config config;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		bool found = false;

		assert_int_equal(load(&config, cases[i]), 0);
		for (size_t setting = 0; setting < WH_SETTING_COUNT; setting++)
			found |= !strcmp(config.text[setting], strchr(cases[i], '=') + 1);
		assert_true(found);
	}
}

static void load__bad_values(void **state)
{
	static const char *const cases[] = {
		"connections=",
		"connections=0",
		"connections=65",
		"connections=-1",
		"connections=+1",
		"connections= 1",
		"connections=1 ",
		"connections=0x10",
		"connections=1e1",
		"connections=4K",
		"connections=9223372036854775808",
		"connections=99999999999999999999999999",
		"threads=257",
		"slice=1023",
		"slice=0",
		"slice=KiB",
		"slice=1KB",
		"slice=1kib",
		"slice=1.5MiB",
		"slice=1 KiB",
		"slice=2GiB",
		"slice=9223372036854775807GiB",
		"slice=8589934592G",
		"slice=-1K",
		"slice=64KiBB",
		"buffer=1GiB",
		"inline=2G",
		"timeout=0",
		"timeout=9",
		"timeout=1h",
		"timeout=-5",
		"timeout=3600001",
		"timeout=9223372036854775807s",
		"idle=1.5s",
		"spin=",
		"spin=2",
		"spin=Yes",
		"spin=01",
		"cma=maybe",
		"cma=yesno",
		"notifications=0",
		"notifications=65537",
		"transports=",
		"transports=,",
		"transports=shm,",
		"transports=,shm",
		"transports=shm,,tcp",
		"transports=shm tcp",
		"transports=SHM",
		"require=shm,tcp",
		"require=s/m",
		"listen=",
		"listen=a b",
		"listen=a\nb",
		"listen=a\177",
	};
	struct wh_config config;

	(void)state;
	memset(&config, 0x5a, sizeof(config));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(load(&config, cases[i]), -EINVAL);
		/* The setting, the value as far as it fits, and what to give instead. */
		assert_memory_equal(wh_error_text(), cases[i], strcspn(cases[i], "=") + 1);
		assert_non_null(strchr(wh_error_text(), ':'));
	}
	assert_int_equal(config.number[0], INT64_C(0x5a5a5a5a5a5a5a5a));
}

static void load__says_what_it_wants(void **state)
{
	struct wh_config config;

	(void)state;
	load(&config, "connections=0");
	assert_string_equal(wh_error_text(), "connections=0: wants a number from 1 to 64");
	load(&config, "slice=5");
	assert_string_equal(wh_error_text(),
			    "slice=5: wants a size from 1KiB to 1GiB, such as 64KiB");
	load(&config, "timeout=x");
	assert_string_equal(wh_error_text(),
			    "timeout=x: wants milliseconds (or 5s) from 10 to 3600000");
	load(&config, "cma=x");
	assert_string_equal(wh_error_text(), "cma=x: wants 0 or 1");
}

/* Clear also the variables that the test suite sets for itself. */
static int environment_clear_all(void **state)
{
	char name[WH_CONFIG_VARIABLE];
	size_t cursor = 0;

	environment_clear(state);
	unsetenv(WH_CONFIG_IGNORE);
	while (wh_config_unknown(&cursor, name) > 0) {
		unsetenv(name);
		cursor = 0;
	}
	return 0;
}

static void unknown__variables(void **state)
{
	const struct wh_config_row *row;
	char name[WH_CONFIG_VARIABLE], longest[80] = "WHERRY_";
	size_t cursor = 0, found = 0;

	(void)state;
	for (size_t i = 0; (row = wh_config_row(i)); i++)
		setenv(row->environment, "x", 1);
	setenv("WHERRY_TEST_WHEELS", "/tmp", 1);
	assert_int_equal(wh_config_unknown(&cursor, name), 0);
	/* Empty variables and those of other programs do not count. */
	setenv("WHERRY_TSL", "", 1);
	setenv("WHERRYTLS", "1", 1);
	setenv("AWHERRY_TSL", "1", 1);
	cursor = 0;
	assert_int_equal(wh_config_unknown(&cursor, name), 0);
	/* A known name cut short, or with more behind it, is unknown. */
	memset(longest + 7, 'X', 70);
	setenv("WHERRY_TSL", "secret", 1);
	setenv("WHERRY_TL", "1", 1);
	setenv("WHERRY_TLS_", "1", 1);
	setenv(longest, "1", 1);
	cursor = 0;
	while (wh_config_unknown(&cursor, name) == 1) {
		assert_null(strstr(name, "secret"));
		assert_true(!strcmp(name, "WHERRY_TSL") || !strcmp(name, "WHERRY_TL") ||
			    !strcmp(name, "WHERRY_TLS_") ||
			    (strlen(name) == WH_CONFIG_VARIABLE - 1 &&
			     !strncmp(longest, name, strlen(name))));
		found++;
	}
	assert_int_equal(found, 4);
	unsetenv("WHERRYTLS");
	unsetenv("AWHERRY_TSL");
	unsetenv(longest);
}

static void unknown__ignored(void **state)
{
	char name[WH_CONFIG_VARIABLE];
	size_t cursor = 0;

	(void)state;
	setenv("WHERRY_TSL", "1", 1);
	setenv(WH_CONFIG_IGNORE, "yes", 1);
	assert_int_equal(wh_config_unknown(&cursor, name), 0);
	setenv(WH_CONFIG_IGNORE, "0", 1);
	assert_int_equal(wh_config_unknown(&cursor, name), 1);
	cursor = 0;
	setenv(WH_CONFIG_IGNORE, "perhaps", 1);
	assert_int_equal(wh_config_unknown(&cursor, name), -EINVAL);
	assert_string_equal(wh_error_text(), "WHERRY_IGNORE_UNKNOWN=perhaps: wants 0 or 1");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(load__defaults, environment_clear,
						environment_clear),
		cmocka_unit_test_setup_teardown(load__cuda, environment_clear, environment_clear),
		cmocka_unit_test_setup_teardown(load__key, environment_clear, environment_clear),
		cmocka_unit_test_setup_teardown(rows__are_complete, environment_clear,
						environment_clear),
		cmocka_unit_test_setup_teardown(load__environment, environment_clear,
						environment_clear),
		cmocka_unit_test_setup_teardown(load__overrides_go_first, environment_clear,
						environment_clear),
		cmocka_unit_test_setup_teardown(load__unknown_overrides, environment_clear,
						environment_clear),
		cmocka_unit_test_setup_teardown(load__no_secrets_in_errors, environment_clear,
						environment_clear),
		cmocka_unit_test_setup_teardown(load__good_values, environment_clear,
						environment_clear),
		cmocka_unit_test_setup_teardown(load__good_texts, environment_clear,
						environment_clear),
		cmocka_unit_test_setup_teardown(load__bad_values, environment_clear,
						environment_clear),
		cmocka_unit_test_setup_teardown(load__says_what_it_wants, environment_clear,
						environment_clear),
		cmocka_unit_test_setup_teardown(unknown__variables, environment_clear_all,
						environment_clear_all),
		cmocka_unit_test_setup_teardown(unknown__ignored, environment_clear_all,
						environment_clear_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
