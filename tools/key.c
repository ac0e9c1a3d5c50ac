/* SPDX-License-Identifier: Apache-2.0 */
/* wherry key: files with cluster keys. A key itself is never printed. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "net/keyfile.h"
#include "output.h"
#include "program.h"
#include "util/error.h"

static int library_failed(int error)
{
	return fail(error, "%s", wh_fail_text());
}

static int key_make(const char *path, const struct arguments *arguments)
{
	int error = wh_key_make(path);

	(void)arguments;
	return error ? library_failed(error) : EXIT_PASS;
}

static int key_check(const char *path, const struct arguments *arguments)
{
	struct wh_keys keys;
	int error = wh_keys_load(path, &keys);

	(void)arguments;
	explicit_bzero(&keys.key, sizeof(keys.key));
	if (error)
		return library_failed(error);
	printf("%s: %u %s, readable by this user alone\n", path, keys.count,
	       keys.count == 1 ? "key" : "keys");
	return EXIT_PASS;
}

/* One line a key, or everything as JSON. */
static int key_print(const char *path, char (*names)[WH_FINGERPRINT], unsigned count, bool as_json)
{
	json_t *object, *list;

	if (!as_json) {
		for (unsigned i = 0; i < count; i++)
			printf("%s  %s\n", names[i], i ? "accepted" : "proved and accepted");
		return EXIT_PASS;
	}
	object = output_new();
	list = json_array();
	for (unsigned i = 0; i < count; i++)
		json_array_append_new(
			list, json_pack("{s:s, s:b}", "fingerprint", names[i], "proved", i == 0));
	json_object_set_new(object, "file", json_string(path));
	json_object_set_new(object, "keys", list);
	return output_print(object);
}

static int key_show(const char *path, const struct arguments *arguments)
{
	char names[WH_KEYS_MAX][WH_FINGERPRINT];
	struct wh_crypto crypto = { 0 };
	struct wh_keys keys;
	int error = wh_keys_load(path, &keys);

	if (!error)
		error = wh_crypto_open(&crypto, NULL);
	for (unsigned i = 0; !error && i < keys.count; i++)
		error = wh_key_fingerprint(&crypto, keys.key[i], names[i]);
	wh_crypto_close(&crypto);
	explicit_bzero(&keys.key, sizeof(keys.key));
	return error ? library_failed(error) :
		       key_print(path, names, keys.count, argument(arguments, "json") != NULL);
}

static const struct subcommand {
	const char *name;
	int (*run)(const char *path, const struct arguments *arguments);
} subcommands[] = { { "make", key_make }, { "show", key_show }, { "check", key_check } };

static int key_run(const struct arguments *arguments)
{
	const struct subcommand *subcommand = subcommands;
	int code = check_subcommand(arguments);

	if (code)
		return code;
	while (strcmp(subcommand->name, arguments->operands[0]) != 0)
		subcommand++;
	if (argument(arguments, "json") && subcommand->run != key_show)
		return usage_error("--json works with wherry key show only");
	return subcommand->run(arguments->operands[1], arguments);
}

static const struct command_option options[] = {
	{ .name = "json", .letter = 'j', .help = "show: as JSON" },
	{ 0 },
};

const struct command command_key = {
	.name = "key",
	.usage = "make|show|check FILE",
	.summary = "Make, show and check files with cluster keys",
	.details = "make writes a new key to a file that does not exist yet, readable by this "
		   "user alone (mode 0600). Copy the file to every host and put its name into "
		   "WHERRY_KEYFILE. show prints fingerprints: they tell keys apart and reveal "
		   "nothing of them. check says whether an engine would accept the file.\n"
		   "\n"
		   "A file may have several keys, one a line. An engine proves the first and "
		   "accepts all of them. To change a key, add the new one below the old one on "
		   "every host, then move it above, then remove the old one. Restart the "
		   "engines one after the other after each step.",
	.examples = "wherry key make wherry.key\n"
		    "wherry key show wherry.key    # the same on every host?\n"
		    "wherry key make new.key && cat new.key >>wherry.key    # accepts both\n",
	.options = options,
	.complete = "make show check",
	.least = 2,
	.most = 2,
	.run = key_run,
};
