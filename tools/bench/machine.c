/* SPDX-License-Identifier: Apache-2.0 */
/* What every result depends on besides Wherry, as JSON: machine, kernel, memory, network settings.
 */
#include "bench/machine.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <wherry/wherry.h>

#include "revision.h"

/* ---- files of one value ------------------------------------------------------------------- */

static json_t *read_line(const char *path)
{
	FILE *file = fopen(path, "re");
	char line[256];
	json_t *value;

	if (!file)
		return json_null();
	if (!fgets(line, sizeof(line), file))
		line[0] = '\0';
	fclose(file);
	line[strcspn(line, "\n")] = '\0';
	value = json_string(line);
	return value ? value : json_null();
}

/* "4096\t16384\t4194304" as an array. */
static json_t *read_numbers(const char *path)
{
	FILE *file = fopen(path, "re");
	json_t *array;
	int64_t number;

	if (!file)
		return json_null();
	array = json_array();
	while (fscanf(file, "%" SCNd64, &number) == 1)
		json_array_append_new(array, json_integer(number));
	fclose(file);
	return array;
}

/* The value after "key:" in a file of such lines; with `kib` a number of bytes. */
static json_t *read_field(const char *path, const char *key, bool kib)
{
	FILE *file = fopen(path, "re");
	size_t length = strlen(key);
	json_t *value = NULL;
	char line[256], *at;

	if (!file)
		return json_null();
	while (!value && fgets(line, sizeof(line), file)) {
		if (strncmp(line, key, length) || !strchr(" \t:", line[length]))
			continue;
		at = strchr(line, ':');
		if (!at)
			continue;
		at += 1 + strspn(at + 1, " \t");
		at[strcspn(at, "\n")] = '\0';
		value = kib ? json_integer((json_int_t)(strtoull(at, NULL, 10) << 10)) :
			      json_string(at);
	}
	fclose(file);
	return value ? value : json_null();
}

/* "always [madvise] never": the word in brackets. */
static json_t *read_choice(const char *path)
{
	json_t *line = read_line(path), *value = NULL;
	const char *text = json_string_value(line), *open, *shut;

	open = text ? strchr(text, '[') : NULL;
	shut = open ? strchr(open, ']') : NULL;
	if (shut)
		value = json_stringn(open + 1, (size_t)(shut - open - 1));
	json_decref(line);
	return value ? value : json_null();
}

/* ---- the machine -------------------------------------------------------------------------- */

static void add_machine(json_t *environment)
{
	struct utsname name;

	if (!uname(&name)) {
		json_object_set_new(environment, "kernel", json_string(name.release));
		json_object_set_new(environment, "architecture", json_string(name.machine));
	}
	json_object_set_new(environment, "cpu", read_field("/proc/cpuinfo", "model name", false));
	json_object_set_new(environment, "cores", json_integer(sysconf(_SC_NPROCESSORS_ONLN)));
	json_object_set_new(environment, "clock_source",
			    read_line("/sys/devices/system/clocksource/clocksource0/"
				      "current_clocksource"));
}

static void add_network(json_t *environment)
{
	json_object_set_new(environment, "congestion_control",
			    read_line("/proc/sys/net/ipv4/tcp_congestion_control"));
	json_object_set_new(environment, "tcp_wmem_bytes",
			    read_numbers("/proc/sys/net/ipv4/tcp_wmem"));
	json_object_set_new(environment, "tcp_rmem_bytes",
			    read_numbers("/proc/sys/net/ipv4/tcp_rmem"));
}

static void add_memory(json_t *environment)
{
	static const char file[] = "/proc/meminfo";
	json_t *pages = read_field(file, "HugePages_Total", false);

	json_object_set_new(environment, "memory_bytes", read_field(file, "MemTotal", true));
	json_object_set_new(environment, "memory_available_bytes",
			    read_field(file, "MemAvailable", true));
	json_object_set_new(environment, "page_bytes", json_integer(sysconf(_SC_PAGESIZE)));
	json_object_set_new(environment, "huge_pages_reserved",
			    json_is_string(pages) ?
				    json_integer(strtoll(json_string_value(pages), NULL, 10)) :
				    json_null());
	json_decref(pages);
	json_object_set_new(environment, "huge_page_bytes", read_field(file, "Hugepagesize", true));
	json_object_set_new(environment, "transparent_huge_pages",
			    read_choice("/sys/kernel/mm/transparent_hugepage/enabled"));
	json_object_set_new(environment, "transparent_huge_pages_shared",
			    read_choice("/sys/kernel/mm/transparent_hugepage/shmem_enabled"));
}

static void add_wherry(json_t *environment)
{
	json_object_set_new(environment, "wherry", json_string(wh_version()));
	json_object_set_new(environment, "revision",
			    WHERRY_REVISION[0] ? json_string(WHERRY_REVISION) : json_null());
}

json_t *machine_describe(void)
{
	json_t *environment = json_object();
	time_t now = time(NULL);
	struct tm utc;
	char date[32];

	gmtime_r(&now, &utc);
	strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", &utc);
	json_object_set_new(environment, "date", json_string(date));
	add_wherry(environment);
	add_machine(environment);
	add_network(environment);
	add_memory(environment);
	return environment;
}

json_t *machine_describe_run(const char *registry, const char *const *config)
{
	const char *scheme = registry ? strstr(registry, "://") : NULL;
	json_t *environment = machine_describe(), *settings = json_array();
	struct rlimit files;

	json_object_set_new(environment, "load_average", read_line("/proc/loadavg"));
	if (!getrlimit(RLIMIT_NOFILE, &files))
		json_object_set_new(environment, "open_files_limit",
				    json_integer((json_int_t)files.rlim_cur));
	if (registry)
		json_object_set_new(
			environment, "registry",
			json_stringn(registry, scheme ? (size_t)(scheme - registry) : 0));
	for (size_t i = 0; config[i]; i++)
		if (strncmp(config[i], "key=", 4) && strncmp(config[i], "registry=", 9))
			json_array_append_new(settings, json_string(config[i]));
	json_object_set_new(environment, "config", settings);
	return environment;
}
