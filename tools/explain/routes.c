/* SPDX-License-Identifier: Apache-2.0 */
/* The routes of a batch, its estimate and its refusals, as text and as JSON. */
#include "explain/routes.h"

#include <stdio.h>
#include <string.h>

#include "command.h"
#include "output.h"

#define CACHE_USUAL (UINT64_C(32) << 20)
#define CACHE_LEVELS 10

const struct wh_route *explain_route(const struct explain_routes *routes)
{
	for (size_t i = 0; i < routes->count; i++)
		if (routes->list[i].bytes)
			return &routes->list[i];
	return NULL;
}

void explain_route_text(const struct wh_route *route, char out[EXPLAIN_ROUTE_TEXT])
{
	if (!route)
		snprintf(out, EXPLAIN_ROUTE_TEXT, "none");
	else if (*route->detail)
		snprintf(out, EXPLAIN_ROUTE_TEXT, "%s (%s)", route->transport, route->detail);
	else
		snprintf(out, EXPLAIN_ROUTE_TEXT, "%s", route->transport);
}

void explain_route_json(json_t *object, const struct explain_routes *routes)
{
	const struct wh_route *route = explain_route(routes);

	json_object_set_new(object, "transport", output_text(route ? route->transport : NULL));
	json_object_set_new(object, "detail", output_text(route ? route->detail : NULL));
}

void explain_refused_json(json_t *object, const struct explain_routes *routes)
{
	json_t *refused = json_array();

	for (size_t i = 0; i < routes->count; i++)
		if (routes->list[i].refused[0])
			json_array_append_new(refused,
					      json_pack("{s:s, s:s}", "transport",
							routes->list[i].transport, "reason",
							routes->list[i].refused));
	json_object_set_new(object, "refused", refused);
}

double explain_speed(const struct wh_estimate *estimate)
{
	return estimate->duration ? (double)estimate->bytes / (double)estimate->duration : 0;
}

json_t *explain_us_json(uint64_t ns)
{
	return ns ? json_real((double)ns / 1e3) : json_null();
}

/* What the estimate is based on. */
static const char *estimate_source(const struct wh_estimate *estimate)
{
	return estimate->measured == WH_ESTIMATE_TRAFFIC  ? "traffic" :
	       estimate->measured == WH_ESTIMATE_MEASURED ? "measurement" :
							    "typical values";
}

void explain_estimate_json(json_t *object, const struct explain_routes *routes)
{
	const struct wh_estimate *estimate = &routes->estimate;
	bool known = estimate->duration;

	json_object_set_new(object, "expected_us", explain_us_json(estimate->duration));
	json_object_set_new(object, "expected_GBps",
			    known ? json_real(explain_speed(estimate)) : json_null());
	json_object_set_new(object, "measured",
			    known ? json_boolean(estimate->measured) : json_null());
	json_object_set_new(object, "source",
			    output_text(known ? estimate_source(estimate) : NULL));
	json_object_set_new(object, "working_set_bytes",
			    estimate->working_set ?
				    json_integer((json_int_t)estimate->working_set) :
				    json_null());
	json_object_set_new(object, "from_cache", json_boolean(explain_from_cache(estimate)));
}

/* Bytes of the last cache. sysconf(_SC_LEVEL3_CACHE_SIZE) adds up the caches of all cores. */
static uint64_t cache_bytes(void)
{
	uint64_t bytes = 0;
	char path[80], text[32];

	for (int level = CACHE_LEVELS - 1; !bytes && level >= 0; level--) {
		FILE *file;

		snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu0/cache/index%d/size",
			 level);
		file = fopen(path, "re");
		if (file && fgets(text, sizeof(text), file)) {
			text[strcspn(text, "\n")] = '\0';
			read_size(text, &bytes);
		}
		if (file)
			fclose(file);
	}
	return bytes ? bytes : CACHE_USUAL;
}

bool explain_from_cache(const struct wh_estimate *estimate)
{
	return estimate->working_set && 2 * estimate->working_set <= cache_bytes();
}

#define WARNING "warning: "

static void warnings_add(struct explain_warnings *warnings, const char *text)
{
	for (size_t i = 0; i < warnings->count; i++)
		if (!strcmp(warnings->list[i], text))
			return;
	if (warnings->count < sizeof(warnings->list) / sizeof(warnings->list[0]))
		snprintf(warnings->list[warnings->count++], sizeof(warnings->list[0]), "%s", text);
}

void explain_collect_warnings(struct wh_batch *batch, struct explain_warnings *out)
{
	char text[4096], *rest = text, *at;

	if (wh_batch_explain(batch, text, sizeof(text)) < 0)
		return;
	while ((at = strsep(&rest, "\n")))
		if (!strncmp(at, WARNING, strlen(WARNING)))
			warnings_add(out, at + strlen(WARNING));
}

void explain_print_warnings(const struct explain_warnings *warnings)
{
	for (size_t i = 0; i < warnings->count; i++)
		printf(WARNING "%s\n", warnings->list[i]);
}

json_t *explain_warnings_json(const struct explain_warnings *warnings)
{
	json_t *array = json_array();

	for (size_t i = 0; i < warnings->count; i++)
		json_array_append_new(array, json_string(warnings->list[i]));
	return array;
}

void explain_window(struct wh_batch *batch, char *line, size_t size)
{
	static const char *const begins[] = { "CPU window (", "no CPU window" };
	char text[4096], *rest = text, *at;

	*line = 0;
	if (wh_batch_explain(batch, text, sizeof(text)) < 0)
		return;
	while ((at = strsep(&rest, "\n"))) {
		if (!strncmp(at, WARNING, strlen(WARNING)))
			at += strlen(WARNING);
		for (size_t i = 0; i < 2; i++)
			if (!strncmp(at, begins[i], strlen(begins[i])))
				snprintf(line, size, "%s", at);
	}
}
