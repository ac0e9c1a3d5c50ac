/* SPDX-License-Identifier: Apache-2.0 */
/* Engines in a metadata store: each has a key for its segment and one for its control port. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compat/mooncake/mooncake.h"
#include "compat/mooncake/store.h"
#include "util/clock.h"

#define KEY_MAX (WH_MOONCAKE_NAME_MAX + 32)
#define PROBE_TIMEOUT (2 * WH_SECOND) /* for the engine that already has the name */

static void segment_key(const char *name, char out[KEY_MAX])
{
	/* A name with a slash is a path already. */
	snprintf(out, KEY_MAX, "mooncake/%s%s", strchr(name, '/') ? "" : "ram/", name);
}

static void endpoint_key(const char *name, char out[KEY_MAX])
{
	snprintf(out, KEY_MAX, "mooncake/rpc_meta/%s", name);
}

/* Take over the error text: the module has a copy of wh_fail() of its own. */
static int store_failed(const struct wh_mooncake_store_ops *ops, int error)
{
	return error ? wh_fail(-error, "%s", ops->text()) : 0;
}

int wh_mooncake_locate(const struct wh_mooncake_store_ops *ops, void *store, const char *name,
		       struct wh_mooncake_endpoint *out)
{
	char key[KEY_MAX], *value;
	size_t length;
	int error;

	endpoint_key(name, key);
	error = store_failed(ops, ops->get(store, key, &value, &length));
	if (error)
		return error;
	error = wh_mooncake_endpoint_parse(value, length, out);
	free(value);
	return error;
}

static bool endpoint_is(const struct wh_mooncake_endpoint *one,
			const struct wh_mooncake_endpoint *other)
{
	return !strcmp(one->host, other->host) && one->port == other->port;
}

/* Check that no live engine has the name; *ours: this engine has it already. */
static int name_check_free(const struct wh_mooncake_store_ops *ops, void *store, const char *name,
			   const struct wh_mooncake_endpoint *endpoint, bool *ours)
{
	struct wh_mooncake_endpoint found;
	char address[WH_MOONCAKE_NAME_MAX + 10];
	int error = wh_mooncake_locate(ops, store, name, &found);

	*ours = !error && endpoint_is(&found, endpoint);
	if (error == -ENOENT || *ours)
		return 0;
	if (error)
		return error;
	/* If that engine's host answers and the port is closed, the engine has died. */
	wh_mooncake_endpoint_text(&found, address, sizeof(address));
	if (wh_mooncake_probe(address, PROBE_TIMEOUT) == -ECONNREFUSED)
		return wh_mooncake_withdraw(ops, store, name);
	return wh_fail(EEXIST,
		       "mooncake: the name %.60s is that of the engine at %.60s:%u; if it is gone, "
		       "delete the key mooncake/rpc_meta/%.60s",
		       name, found.host, found.port, name);
}

int wh_mooncake_publish(const struct wh_mooncake_store_ops *ops, void *store, const char *name,
			const char *segment, const struct wh_mooncake_endpoint *endpoint)
{
	char key[KEY_MAX], *text;
	bool ours;
	int error = name_check_free(ops, store, name, endpoint, &ours);

	if (error)
		return error;
	text = wh_mooncake_endpoint_format(endpoint);
	if (!text)
		return wh_fail(ENOMEM, "mooncake: no memory");
	/* Mooncake's own server does not let this key be written twice. */
	endpoint_key(name, key);
	if (!ours)
		error = store_failed(ops, ops->put(store, key, text));
	free(text);
	if (error)
		return error;
	segment_key(name, key);
	return store_failed(ops, ops->put(store, key, segment));
}

int wh_mooncake_is_published(const struct wh_mooncake_store_ops *ops, void *store, const char *name,
			     const struct wh_mooncake_endpoint *endpoint)
{
	struct wh_mooncake_endpoint found;
	char key[KEY_MAX], *value;
	size_t length;
	int error = wh_mooncake_locate(ops, store, name, &found);

	if (error)
		return error;
	if (!endpoint_is(&found, endpoint))
		return wh_fail(ENOENT, "mooncake: another engine has the name %.100s", name);
	segment_key(name, key);
	error = store_failed(ops, ops->get(store, key, &value, &length));
	if (!error)
		free(value);
	return error;
}

int wh_mooncake_withdraw(const struct wh_mooncake_store_ops *ops, void *store, const char *name)
{
	char key[KEY_MAX];
	int error, second;

	segment_key(name, key);
	error = store_failed(ops, ops->remove(store, key));
	endpoint_key(name, key);
	second = store_failed(ops, ops->remove(store, key));
	return error ? error : second;
}

int wh_mooncake_find(const struct wh_mooncake_store_ops *ops, void *store, const char *name,
		     struct wh_mooncake_segment *segment)
{
	struct wh_mooncake_endpoint endpoint;
	char key[KEY_MAX], *value;
	size_t length;
	int error;

	segment_key(name, key);
	error = store_failed(ops, ops->get(store, key, &value, &length));
	if (error == -ENOENT)
		return wh_fail(ENOENT, "mooncake: no engine has the name %.100s", name);
	if (error)
		return error;
	error = wh_mooncake_segment_parse(value, length, segment);
	free(value);
	if (error || *segment->host)
		return error;
	/* A segment without a data host uses that of the control port. */
	error = wh_mooncake_locate(ops, store, name, &endpoint);
	if (error)
		wh_mooncake_segment_free(segment);
	else
		memcpy(segment->host, endpoint.host, sizeof(segment->host));
	return error;
}
