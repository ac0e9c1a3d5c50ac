/* SPDX-License-Identifier: Apache-2.0 */
/* wherry config: the table of settings, with the values in effect. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "output.h"
#include "program.h"
#include "rendezvous/registry.h"

#define NAME_COLUMN 16
#define ENVIRONMENT_COLUMN 23
#define TYPE_COLUMN 6

struct value {
	const char *text;
	const char *source; /* "default", "environment", "command line" */
};

/* The value that an engine opened now would read. */
static struct value read_value(const struct arguments *arguments, const struct wh_config_row *row)
{
	const char *environment = secure_getenv(row->environment), *setting;
	size_t length = strlen(row->name);
	int cursor = 0;

	while ((setting = argument_next(arguments, "config", &cursor)))
		if (strncmp(setting, row->name, length) == 0 && setting[length] == '=')
			return (struct value){ setting + length + 1, "command line" };
	if (environment && *environment)
		return (struct value){ environment, "environment" };
	return (struct value){ row->fallback, "default" };
}

/* A registry's URL can hold a password, and a key is always secret. */
static const char *value_shown(const struct wh_config_row *row, const char *value, char *room,
			       size_t size)
{
	if (strcmp(row->type, "secret") == 0)
		return *value ? "set" : value;
	if (strcmp(row->name, "registry") != 0)
		return value;
	wh_registry_url_show(value, room, size);
	return room;
}

/* A value too long for its column gets a line of its own. */
static void print_row(const struct wh_config_row *row, const struct value *value)
{
	bool fallback = strcmp(value->source, "default") == 0;
	char shown_value[WH_REGISTRY_URL_MAX + 32], help[320];
	int used;

	snprintf(shown_value, sizeof(shown_value), "%s%s%s%s", *value->text ? value->text : "-",
		 fallback ? "" : " (", fallback ? "" : value->source, fallback ? "" : ")");
	used = printf("%-*s %-*s %-*s", NAME_COLUMN, row->name, ENVIRONMENT_COLUMN,
		      row->environment, TYPE_COLUMN, row->type);
	if (used + 1 + strlen(shown_value) <= SCREEN_COLUMNS)
		printf(" %s\n", shown_value);
	else
		printf("\n    %s\n", shown_value);
	snprintf(help, sizeof(help), "%s%s%s", row->help, fallback ? "" : "; by default ",
		 fallback       ? "" :
		 *row->fallback ? row->fallback :
				  "empty");
	text_wrap(stdout, help, 4, 0);
}

static void print_table(const struct arguments *arguments)
{
	const struct wh_config_row *row;

	printf("%-*s %-*s %-*s VALUE\n", NAME_COLUMN, "KNOB", ENVIRONMENT_COLUMN, "ENVIRONMENT",
	       TYPE_COLUMN, "TYPE");
	for (size_t i = 0; (row = wh_config_row(i)); i++) {
		char room[WH_REGISTRY_URL_MAX];
		struct value value = read_value(arguments, row);

		value.text = value_shown(row, value.text, room, sizeof(room));
		print_row(row, &value);
	}
}

static int print_json(const struct arguments *arguments)
{
	json_t *object = output_new(), *settings = json_array();
	const struct wh_config_row *row;

	for (size_t i = 0; (row = wh_config_row(i)); i++) {
		char room[WH_REGISTRY_URL_MAX];
		struct value value = read_value(arguments, row);

		value.text = value_shown(row, value.text, room, sizeof(room));
		json_array_append_new(
			settings, json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "name",
					    row->name, "environment", row->environment, "type",
					    row->type, "default", row->fallback, "value",
					    value.text, "source", value.source, "help", row->help));
	}
	json_object_set_new(object, "knobs", settings);
	return output_print(object);
}

static int config_run(const struct arguments *arguments)
{
	static const struct engine_setup setup = { .listen = "none" };
	struct wh_engine *engine;
	int code;

	/* Opening an engine checks the values. */
	code = engine_open(arguments, &setup, &engine);
	if (!code)
		code = engine_close(engine, code);
	if (code)
		return code;
	if (argument(arguments, "json"))
		return print_json(arguments);
	print_table(arguments);
	return EXIT_PASS;
}

static const struct command_option options[] = {
	{ .name = "json", .letter = 'j', .help = "as JSON" },
	{ .name = "config",
	  .letter = 'c',
	  .argument = "NAME=VALUE",
	  .complete = "setting",
	  .help = "what if this were set",
	  .many = true },
	{ 0 },
};

const struct command command_config = {
	.name = "config",
	.usage = "",
	.summary = "Show the library's settings and the values in effect",
	.details = "Every setting has an environment variable. The library reads it once, when "
		   "an engine is opened. The option --config NAME=VALUE overrides the variable; "
		   "all commands that open an engine have it.\n"
		   "\n"
		   "If the library would refuse a value, an error names it instead of the "
		   "table. Every command refuses a variable WHERRY_... that no setting reads. "
		   "WHERRY_IGNORE_UNKNOWN=1 ignores such variables: for launchers that set "
		   "others, and for variables of newer versions.",
	.examples = "wherry config\n"
		    "WHERRY_CONNECTIONS=8 wherry config      # the values with this variable "
		    "set\n"
		    "wherry config --config slice=4MiB       # is this value valid?\n"
		    "wherry config --json | jq '.knobs[].name'\n",
	.options = options,
	.least = 0,
	.most = 0,
	.run = config_run,
};
