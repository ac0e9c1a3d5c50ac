/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of keys as JSON, made while they are sent: a list holds one record's line and its position
 * in the store. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "registry/registry.h"
#include "util/clock.h"

/* Records visited by one call, so that other requests are answered in between. */
#define VISITS_MOST 1000

struct registry_list {
	struct store *store;
	struct store_walk walk;
	char prefix[REGISTRY_KEY_MAX + 1];
	size_t count; /* keys listed so far */
	bool ended; /* `text` is the end of the list */
	const char *text; /* being sent, from `at` */
	char *line; /* owns `text`; NULL: `text` is a constant */
	size_t at;
};

struct registry_list *registry_list_new(struct store *store, const char *prefix)
{
	struct registry_list *list = calloc(1, sizeof(*list));

	if (!list)
		return NULL;
	list->store = store;
	snprintf(list->prefix, sizeof(list->prefix), "%s", prefix);
	list->text = "{\"schema\": 1, \"keys\": [";
	store_walk_begin(store, &list->walk);
	return list;
}

void registry_list_free(struct registry_list *list)
{
	if (!list)
		return;
	store_walk_end(&list->walk);
	free(list->line);
	free(list);
}

static void list_end(struct registry_list *list, bool more)
{
	list->ended = true;
	list->text = more ? "], \"more\": true}" : "], \"more\": false}";
}

/* Add the line of a record. A key that is not UTF-8 is left out. */
static int list_add(struct registry_list *list, const struct store_record *record)
{
	json_t *key = json_pack("{s:s, s:s, s:I, s:I}", "key", record->key, "owner", record->owner,
				"lease_ms", (json_int_t)record->lease, "bytes",
				(json_int_t)record->value_length);
	char *text;
	int length;

	if (!key)
		return 0;
	text = json_dumps(key, 0);
	json_decref(key);
	/* A separator goes before each key but the first. */
	length = text ? asprintf(&list->line, "%s%s", list->count ? ", " : "", text) : -1;
	free(text);
	if (length < 0) {
		list->line = NULL;
		return -ENOMEM;
	}
	list->text = list->line;
	list->count++;
	return 0;
}

/* Visit one more record. */
static int list_step(struct registry_list *list, int64_t now)
{
	const struct store_record *record = store_walk_next(list->store, &list->walk);

	free(list->line);
	list->line = NULL;
	list->text = "";
	list->at = 0;
	if (!record) {
		list_end(list, false);
		return 0;
	}
	if (record->ends <= now || strncmp(record->key, list->prefix, strlen(list->prefix)) != 0)
		return 0;
	if (list->count == REGISTRY_LIST_MOST) {
		list_end(list, true);
		return 0;
	}
	return list_add(list, record);
}

ssize_t registry_list_read(struct registry_list *list, char *out, size_t most)
{
	int64_t now = wh_now();
	size_t used = 0;
	int error = 0;

	for (unsigned visits = 0; used < most && !error;) {
		size_t left = strlen(list->text + list->at),
		       part = left < most - used ? left : most - used;

		memcpy(out + used, list->text + list->at, part);
		used += part;
		list->at += part;
		if (part < left || (list->ended && !list->text[list->at]) ||
		    visits++ == VISITS_MOST)
			break;
		error = list_step(list, now);
	}
	if (error)
		return error;
	/* No key yet: white space is valid JSON here and keeps the answer going. */
	if (!used && !list->ended && most)
		out[used++] = '\n';
	return (ssize_t)used;
}
