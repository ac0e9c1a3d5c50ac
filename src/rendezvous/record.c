/* SPDX-License-Identifier: Apache-2.0 */
/* An engine's record in a registry: to JSON and back. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "rendezvous/registry.h"

#define SCHEMA 1
#define ADDRESS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-:[]%"
#define LEASE_MOST 3600000 /* ms */

/* Not 0. */
static bool record_parse_number(const char *text, uint64_t *out)
{
	if (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
		return false;
	*out = strtoull(text, NULL, 16);
	return *out != 0;
}

/* HOST:PORT, roughly: the connecting side resolves it. */
static bool record_address_valid(const char *text)
{
	const char *colon = strrchr(text, ':');

	/* No character that JSON would have to escape. */
	if (strspn(text, ADDRESS) != strlen(text))
		return false;
	return colon && colon != text && colon[1] && strlen(text) < WH_REGISTRY_ADDRESS_MAX;
}

int wh_registry_record_parse(const char *json, size_t length, const char *wanted,
			     struct wh_registry_record *out)
{
	struct wh_registry_record record = { .lease = 0 };
	const char *name = "", *epoch = "", *address = "", *wrong = NULL;
	const char *space = NULL;
	json_int_t schema = 0, lease = 0, beat = 0, pid = 0, start = 0;
	json_error_t error;
	json_t *root;

	if (length > WH_REGISTRY_RECORD_MAX)
		return wh_fail(EINVAL,
			       "registry: a record of %zu bytes; an engine's has at most %d",
			       length, WH_REGISTRY_RECORD_MAX);
	root = json_loadb(json, length, JSON_REJECT_DUPLICATES, &error);
	if (!root)
		return wh_fail(EINVAL, "registry: a record is no JSON: %.100s (line %d, column %d)",
			       error.text, error.line, error.column);
	if (json_unpack_ex(root, &error, 0, "{s:I, s:s, s:s, s:s, s:I, s?I, s?{s:s, s:I, s:I}}",
			   "schema", &schema, "name", &name, "epoch", &epoch, "address", &address,
			   "lease_ms", &lease, "beat", &beat, "process", "space", &space, "pid",
			   &pid, "start", &start)) {
		wh_fail(EINVAL, "registry: a record is not an engine's: %.120s", error.text);
		json_decref(root);
		return -EINVAL;
	}
	if (schema != SCHEMA)
		wrong = "schema";
	else if (!wh_registry_name_valid(name) || (wanted && strcmp(name, wanted) != 0))
		wrong = "name";
	else if (!record_parse_number(epoch, &record.epoch))
		wrong = "epoch";
	else if (!record_address_valid(address))
		wrong = "address";
	else if (lease < 1 || lease > LEASE_MOST)
		wrong = "lease_ms";
	else if (beat < 0)
		wrong = "beat";
	else if (space && (!record_parse_number(space, &record.process.space) || pid < 1 ||
			   pid > INT32_MAX || start < 1))
		wrong = "process";
	if (wrong) {
		wh_fail(EINVAL, "registry: a record is not %s's: its \"%s\" is wrong",
			wanted ? wanted : "an engine", wrong);
	} else {
		snprintf(record.name, sizeof(record.name), "%s", name);
		snprintf(record.address, sizeof(record.address), "%s", address);
		record.lease = lease;
		record.beat = (uint64_t)beat;
		record.process.pid = pid;
		record.process.start = (uint64_t)start;
		*out = record;
	}
	json_decref(root);
	return wrong ? -EINVAL : 0;
}

/* Without Jansson: no field needs escapes. */
size_t wh_registry_record_format(const struct wh_registry_record *record,
				 char out[WH_REGISTRY_RECORD_MAX])
{
	char process[128] = "";

	if (record->process.pid)
		snprintf(process, sizeof(process),
			 ", \"process\": {\"space\": \"%016" PRIx64 "\", \"pid\": %" PRId64
			 ", \"start\": %" PRIu64 "}",
			 record->process.space, record->process.pid,
			 record->process.start & INT64_MAX);
	return (size_t)snprintf(out, WH_REGISTRY_RECORD_MAX,
				"{\"schema\": %d, \"name\": \"%s\", \"epoch\": \"%016" PRIx64
				"\", \"address\": \"%s\", \"lease_ms\": %" PRId64
				", \"beat\": %" PRIu64 "%s}",
				SCHEMA, record->name, record->epoch, record->address, record->lease,
				record->beat & INT64_MAX, process);
}
