/* SPDX-License-Identifier: Apache-2.0 */
/* An agent: its engine, its settings, and what it says. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compat/nixl/internal.h"
#include "util/hash.h"
#include "util/log.h"
#include "util/text.h"

/* ---- what is said ------------------------------------------------------------------------------
 */

static void say(const char *name, size_t length, const char *format, va_list arguments)
{
	char line[1024];
	int begun = snprintf(line, sizeof(line), "agent %.*s: ", (int)(length < 63 ? length : 63),
			     name);
	struct wh_log_record record = {
		.size = sizeof(record), .level = WH_LOG_INFO, .area = "nixl", .text = line
	};

	vsnprintf(line + begun, sizeof(line) - (size_t)begun, format, arguments);
	wh_text_clean(line);
	wh_log_stderr(NULL, &record);
}

void wh_nixl_say(const struct wh_nixl_agent *agent, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	say(agent->name, agent->name_length, format, arguments);
	va_end(arguments);
}

int wh_nixl_status(int error)
{
	switch (error) {
	case 0:
		return WH_NIXL_OK;
	case -EINPROGRESS:
	case -EAGAIN:
		return WH_NIXL_IN_PROGRESS;
	case -ECONNABORTED:
	case -ECONNRESET:
	case -ECONNREFUSED:
	case -EHOSTUNREACH:
	case -ESTALE:
	case -ETIMEDOUT:
		return WH_NIXL_DISCONNECTED;
	case -ECANCELED:
		return WH_NIXL_CANCELLED;
	case -EINVAL:
	case -ERANGE:
	case -E2BIG:
	case -EXDEV:
	case -EFAULT:
		return WH_NIXL_INVALID;
	case -ENOENT:
		return WH_NIXL_NOT_FOUND;
	case -EACCES:
	case -EPERM:
		return WH_NIXL_NOT_ALLOWED;
	case -EOPNOTSUPP:
	case -ENODEV:
		return WH_NIXL_NOT_SUPPORTED;
	case -EBUSY:
		return WH_NIXL_REPOST_ACTIVE;
	default:
		return WH_NIXL_BACKEND;
	}
}

int wh_nixl_fail(const struct wh_nixl_agent *agent, int error, const char *what)
{
	wh_nixl_say(agent, "%s: %s (%s)", what, wh_error_text(), wh_status_name(error));
	return wh_nixl_status(error);
}

bool wh_nixl_agent_is_inherited(const struct wh_nixl_agent *agent)
{
	return agent->owner != getpid();
}

/* ---- opening and closing -----------------------------------------------------------------------
 */

/* NULL: it is none. */
static const struct wh_config_row *option_setting(const char *name)
{
	const struct wh_config_row *row;

	for (size_t i = 0; (row = wh_config_row(i)); i++)
		if (!strcmp(row->name, name))
			return row;
	return NULL;
}

static void say_of(const char *name, size_t length, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
static void say_of(const char *name, size_t length, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	say(name, length, format, arguments);
	va_end(arguments);
}

/* "name=value" for each setting. Those that have their default are left out: many programs ask NIXL
 * for a plug-in's defaults and give all of them back, and would override the environment. NULL: an
 * option is none, or there is no memory, which is said. */
static char **settings_new(const char *name, size_t name_length,
			   const struct wh_nixl_option *options, size_t count, bool foreign)
{
	char **settings = calloc(count + 1, sizeof(*settings));
	size_t used = 0;

	for (size_t i = 0; settings && i < count; i++) {
		const struct wh_config_row *row = option_setting(options[i].name);

		if (row) {
			if (!strcmp(options[i].value, row->fallback))
				continue;
			if (asprintf(&settings[used], "%s=%s", options[i].name, options[i].value) >=
			    0) {
				used++;
				continue;
			}
			settings[used] = NULL;
			say_of(name, name_length, "not enough memory");
		} else if (foreign) {
			say_of(name, name_length,
			       "the option %s is of another backend; Wherry has none of "
			       "this name and leaves it out",
			       options[i].name);
			continue;
		} else {
			say_of(name, name_length,
			       "the option %s is no setting of Wherry; `wherry config` "
			       "lists them",
			       options[i].name);
		}
		while (used)
			free(settings[--used]);
		free(settings);
		return NULL;
	}
	return settings;
}

static void settings_free(char **settings)
{
	for (char **setting = settings; *setting; setting++) {
		explicit_bzero(*setting, strlen(*setting)); /* it may be a key */
		free(*setting);
	}
	free(settings);
}

/* An agent's name is the engine's if it may be; else its beginning and a hash, so that two long
 * names differ. */
static void engine_name(const char *name, size_t length, char out[64])
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);
	size_t kept = length < 40 ? length : 40;

	if (length && length < 64 && wh_text_is_clean(name, length)) {
		memcpy(out, name, length);
		out[length] = 0;
		return;
	}
	for (size_t i = 0; i < length; i++)
		hash = (hash ^ (unsigned char)name[i]) * UINT64_C(0x100000001b3);
	while (kept && !wh_text_is_clean(name, kept))
		kept--;
	snprintf(out, 64, "%.*s-%016llx", (int)kept, name, (unsigned long long)hash);
}

static int agent_open_engine(struct wh_nixl_agent *agent, const char *const *settings)
{
	char name[64];
	struct wh_engine_options options = { .size = sizeof(options),
					     .name = name,
					     .config = settings,
					     .log = wh_log_stderr,
					     .log_level = WH_LOG_WARN };
	struct wh_nixl_info info;
	int error;

	engine_name(agent->name, agent->name_length, name);
	error = wh_engine_open(&options, &agent->engine);
	if (error)
		return wh_nixl_fail(agent, error, "cannot open an engine");
	error = wh_nixl_info_of(agent->engine, &info);
	if (error) {
		wh_nixl_say(agent, "cannot list this host's addresses: %s", strerror(-error));
		wh_engine_close(agent->engine);
		return WH_NIXL_BACKEND;
	}
	agent->info_length = wh_nixl_info_encode(&info, agent->info);
	return WH_NIXL_OK;
}

static void agent_free(struct wh_nixl_agent *agent)
{
	pthread_mutex_destroy(&agent->lock);
	pthread_mutex_destroy(&agent->taking);
	free(agent->name);
	free(agent);
}

int wh_nixl_agent_open(const char *name, size_t name_length, const struct wh_nixl_option *options,
		       size_t option_count, bool foreign, struct wh_nixl_agent **out)
{
	char **settings = settings_new(name, name_length, options, option_count, foreign);
	struct wh_nixl_agent *agent;
	int status;

	if (!settings)
		return WH_NIXL_INVALID;
	agent = calloc(1, sizeof(*agent));
	if (agent)
		agent->name = malloc(name_length + 1);
	if (!agent || !agent->name) {
		free(agent);
		settings_free(settings);
		return WH_NIXL_BACKEND;
	}
	memcpy(agent->name, name, name_length);
	agent->name[name_length] = 0;
	agent->name_length = name_length;
	agent->owner = getpid();
	pthread_mutex_init(&agent->lock, NULL);
	pthread_mutex_init(&agent->taking, NULL);
	wh_list_init(&agent->peers);
	wh_list_init(&agent->memories);
	wh_list_init(&agent->requests);
	status = agent_open_engine(agent, (const char *const *)settings);
	settings_free(settings);
	if (status) {
		agent_free(agent);
		return status;
	}
	*out = agent;
	return WH_NIXL_OK;
}

void wh_nixl_agent_close(struct wh_nixl_agent *agent)
{
	int error;

	if (wh_nixl_agent_is_inherited(agent))
		return;
	wh_nixl_requests_free(agent);
	wh_nixl_peers_forget(agent);
	wh_nixl_memories_free(agent);
	error = wh_engine_close(agent->engine);
	if (error) { /* a memory was not unloaded, or a peer holds on to memory of ours */
		wh_nixl_fail(agent, error, "the engine stays open");
		return;
	}
	agent_free(agent);
}

int wh_nixl_agent_info(struct wh_nixl_agent *agent, const char **text, size_t *length)
{
	*text = agent->info;
	*length = agent->info_length;
	return WH_NIXL_OK;
}
