/* SPDX-License-Identifier: Apache-2.0 */
/* What figures depend on, as JSON. */
#include "environment.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <wherry/wherry.h>

#include "revision.h"

/* The value behind a word in a file of /proc; null if it is not there. */
static json_t *behind(const char *path, const char *word)
{
	FILE *file = fopen(path, "re");
	json_t *value = NULL;
	char line[256], *at;

	while (file && !value && fgets(line, sizeof(line), file))
		if (!strncmp(line, word, strlen(word)) &&
		    (at = strchr(line, *word ? ':' : *line))) {
			at += *word ? 1 + strspn(at + 1, " \t") : 0;
			at[strcspn(at, "\n")] = '\0';
			value = json_string(at);
		}
	if (file)
		fclose(file);
	return value ? value : json_null();
}

json_t *bench_environment(const char *registry, const char *const *config)
{
	json_t *object = json_object(), *knobs = json_array();
	const char *scheme = registry ? strstr(registry, "://") : NULL;
	struct utsname name;
	struct rlimit files;
	time_t now = time(NULL);
	struct tm utc;
	char date[32];

	gmtime_r(&now, &utc);
	strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", &utc);
	json_object_set_new(object, "date", json_string(date));
	json_object_set_new(object, "wherry", json_string(wh_version()));
	json_object_set_new(object, "revision",
			    WHERRY_REVISION[0] ? json_string(WHERRY_REVISION) : json_null());
	if (!uname(&name)) {
		json_object_set_new(object, "kernel", json_string(name.release));
		json_object_set_new(object, "architecture", json_string(name.machine));
	}
	json_object_set_new(object, "cpu", behind("/proc/cpuinfo", "model name"));
	json_object_set_new(object, "cores", json_integer(sysconf(_SC_NPROCESSORS_ONLN)));
	json_object_set_new(
		object, "memory_bytes",
		json_integer((json_int_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE)));
	json_object_set_new(object, "congestion_control",
			    behind("/proc/sys/net/ipv4/tcp_congestion_control", ""));
	json_object_set_new(object, "load_average", behind("/proc/loadavg", ""));
	if (!getrlimit(RLIMIT_NOFILE, &files))
		json_object_set_new(object, "open_files_limit",
				    json_integer((json_int_t)files.rlim_cur));
	/* A password may be in it. */
	if (registry)
		json_object_set_new(
			object, "registry",
			json_stringn(registry, scheme ? (size_t)(scheme - registry) : 0));
	for (size_t i = 0; config[i]; i++)
		if (strncmp(config[i], "key=", 4) && strncmp(config[i], "registry=", 9))
			json_array_append_new(knobs, json_string(config[i]));
	json_object_set_new(object, "config", knobs);
	return object;
}
