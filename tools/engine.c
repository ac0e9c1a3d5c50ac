/* SPDX-License-Identifier: Apache-2.0 */
/* Engines and peers for all subcommands: settings from the command line, opening, connecting,
 * waiting with a stall limit, closing. */
#include "engine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program.h"
#include "progress.h"
#include "util/clock.h"

/* The "name=value" strings for wh_engine_options.config: those of the command line, then the
 * command's own for settings that the command line leaves alone. */
struct settings {
	const char **list;
	size_t count;
	char require[64];
};

static bool is_set(const struct settings *settings, const char *setting)
{
	size_t length = strcspn(setting, "=");

	for (size_t i = 0; i < settings->count; i++)
		if (strcspn(settings->list[i], "=") == length &&
		    memcmp(settings->list[i], setting, length) == 0)
			return true;
	return false;
}

static void settings_add(struct settings *settings, const char *setting)
{
	if (!is_set(settings, setting))
		settings->list[settings->count++] = setting;
}

static int check_setting(const char *setting)
{
	const struct wh_config_row *row;
	size_t length = strcspn(setting, "=");
	struct suggestion suggestion = { 0 };
	char name[64];

	if (!setting[length])
		return usage_error("--config: '%s' has no value; write NAME=VALUE", setting);
	for (size_t i = 0; (row = wh_config_row(i)); i++)
		if (strlen(row->name) == length && memcmp(row->name, setting, length) == 0)
			return 0;
	snprintf(name, sizeof(name), "%.*s", (int)length, setting);
	suggestion.word = name;
	for (size_t i = 0; (row = wh_config_row(i)); i++)
		suggest(&suggestion, row->name);
	if (suggestion.best)
		return usage_error("--config: no setting '%s'; did you mean '%s'?", name,
				   suggestion.best);
	return usage_error("--config: no setting '%s'; wherry config lists them", name);
}

static int settings_collect(const struct arguments *arguments, const struct engine_setup *setup,
			    struct settings *settings)
{
	const char *require = argument(arguments, "require"), *setting;
	size_t own = 0;
	int cursor = 0, error;

	while (setup->config && setup->config[own])
		own++;
	settings->list = calloc(own + (size_t)arguments->all_count + 3, sizeof(*settings->list));
	if (!settings->list)
		return fail(ENOMEM, "out of memory");
	while ((setting = argument_next(arguments, "config", &cursor))) {
		error = check_setting(setting);
		if (error)
			return error;
		if (is_set(settings, setting))
			return usage_error("--config: %.*s is given twice",
					   (int)strcspn(setting, "="), setting);
		settings_add(settings, setting);
	}
	error = check_choice(arguments, "require");
	if (error)
		return error;
	if (!require)
		require = setup->require;
	if (require) {
		snprintf(settings->require, sizeof(settings->require), "require=%s", require);
		settings_add(settings, settings->require);
	}
	if (argument(arguments, "spin"))
		settings_add(settings, "spin=1");
	for (size_t i = 0; i < own; i++)
		settings_add(settings, setup->config[i]);
	return 0;
}

static void print_log(void *arg, const struct wh_log_record *record)
{
	(void)arg;
	note("%s%s: %s", record->level == WH_LOG_WARN ? "warning: " : "", record->area,
	     record->text);
}

int engine_open(const struct arguments *arguments, const struct engine_setup *setup,
		struct wh_engine **out)
{
	static const struct engine_setup nothing;
	struct settings settings = { 0 };
	struct wh_engine_options options = { .size = sizeof(options) };
	int error;

	if (!setup)
		setup = &nothing;
	error = settings_collect(arguments, setup, &settings);
	if (error)
		goto end;
	options.name = setup->name;
	options.listen = setup->listen;
	options.config = settings.list;
	options.log = print_log;
	options.log_level = argument(arguments, "verbose") ? WH_LOG_DEBUG : WH_LOG_WARN;
	error = wh_engine_open(&options, out);
	/* The value came from the command line or the environment. */
	if (error == -EINVAL)
		error = usage_error("%s", wh_error_text());
	else if (error)
		error = engine_fail(error, "cannot open an engine");
end:
	free(settings.list);
	return error;
}

const char *engine_setting(const struct arguments *arguments, const char *variable,
			   const char *name)
{
	const char *value = secure_getenv(variable), *setting;
	size_t length = strlen(name);
	int cursor = 0;

	while ((setting = argument_next(arguments, "config", &cursor)))
		if (strncmp(setting, name, length) == 0 && setting[length] == '=')
			value = setting + length + 1;
	return value ? value : "";
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* A process runs one command. */
static int64_t stall = 30 * WH_SECOND;
static _Thread_local bool stalled;

int engine_parse_stall(const struct arguments *arguments)
{
	const char *text = argument(arguments, "stall-timeout");
	uint64_t seconds;

	if (!text)
		return 0;
	if (parse_count(text, "--stall-timeout", 0, 86400, &seconds))
		return EXIT_USAGE;
	stall = seconds ? (int64_t)seconds * WH_SECOND : INT64_MAX;
	return 0;
}

int64_t engine_stall(void)
{
	return stall;
}

int engine_wait(struct wh_batch *batch)
{
	uint64_t before, moved = 0;
	int error;

	stalled = false;
	do {
		before = moved;
		error = wh_batch_wait_for(batch, stall);
		if (!error)
			return wh_batch_status(batch);
		if (error != -EAGAIN)
			return error;
	} while (!wh_batch_progress(batch, &moved) && moved != before);
	stalled = true;
	wh_batch_cancel(batch);
	return -ETIMEDOUT;
}

const char *engine_wait_text(const struct wh_batch *batch)
{
	static _Thread_local char text[160];

	if (!stalled)
		return wh_batch_error_text(batch);
	snprintf(text, sizeof(text), STALL_TEXT, (double)stall / 1e9);
	return text;
}

int engine_connect(struct wh_engine *engine, const char *url, bool quiet, struct wh_peer **out)
{
	struct progress progress;
	char label[80];
	int error;

	snprintf(label, sizeof(label), "connecting to %s", url);
	progress_start_steps(&progress, label, 0, quiet);
	progress_watch(&progress);
	error = wh_peer_open(engine, url, NULL, out);
	progress_end(&progress);
	return reach_error(error);
}

int engine_undo(int code, int error, const char *what)
{
	if (code)
		return code;
	return error ? engine_fail(error, what) : EXIT_PASS;
}

int engine_close(struct wh_engine *engine, int code)
{
	return engine_undo(code, wh_engine_close(engine), "cannot close the engine");
}

int engine_fail(int error, const char *what)
{
	const char *text = wh_error_text();

	return fail(error, "%s: %s", what, *text ? text : strerror(-error));
}
