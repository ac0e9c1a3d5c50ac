/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where Mooncake's engines keep what they publish, when they do not ask each other: a web server
 * with three verbs, etcd or redis. Under `mooncake/ram/NAME` is the segment, under
 * `mooncake/rpc_meta/NAME` its control port.
 *
 * The stores need libcurl, or hiredis, and are in the module of the registries,
 * libwherry-registry.so.
 */
#ifndef WH_COMPAT_MOONCAKE_STORE_H
#define WH_COMPAT_MOONCAKE_STORE_H

#include "compat/mooncake/wire.h"

#define WH_MOONCAKE_STORE 2

struct wh_mooncake_store_setup {
	/* http://HOST:PORT/PATH, etcd://HOST:PORT or redis://HOST:PORT, as registries are written
	 */
	const char *url;
	int64_t timeout; /* ms, for each call */
	/* Where redis' URL says nothing of it; NULL or "": nothing. */
	const char *user, *password, *database;
	const char *cluster; /* keys are mooncake/CLUSTER/...; NULL or "": not */
};

/* Calls block, on any thread, one at a time. Errors are negative, with a text: -ECONNREFUSED,
 * -EHOSTUNREACH, -ETIMEDOUT, -ECONNRESET, -EACCES (a certificate, a user), -EPROTO, -ENOMEM. */
struct wh_mooncake_store_ops {
	uint32_t version; /* WH_MOONCAKE_STORE */
	/* -EINVAL. Does not touch the network. */
	int (*open)(const struct wh_mooncake_store_setup *setup, void **out);
	void (*close)(void *store);
	/* The value, malloc()ed, and a NUL behind it; -ENOENT: there is no such key. */
	int (*get)(void *store, const char *key, char **value, size_t *length);
	int (*put)(void *store, const char *key, const char *value);
	/* Also if it is not there. */
	int (*remove)(void *store, const char *key);
	const char *(*text)(void); /* of this thread's last error */
};

/* The module's function. */
typedef const struct wh_mooncake_store_ops *wh_mooncake_store_fn(void);
wh_mooncake_store_fn wh_mooncake_store;

/* Open the module, from beside libwherry.so. 0 or -ELIBACC. */
int wh_mooncake_store_load(const struct wh_mooncake_store_ops **out);

/* ---- engines in a store -------------------------------------------------------------------- */

/* Write a segment and where it is asked. One that has the name and listens no more, as its host
 * says, has died, and loses it. 0, -EEXIST (another one has the name), or an error of the store's.
 */
int wh_mooncake_publish(const struct wh_mooncake_store_ops *ops, void *store, const char *name,
			const char *segment, const struct wh_mooncake_endpoint *endpoint);
/* Take both away. 0, or an error of the store's. */
int wh_mooncake_withdraw(const struct wh_mooncake_store_ops *ops, void *store, const char *name);

/* The control port of the engine of that name. 0, -ENOENT, -EPROTO, or an error of the store's. */
int wh_mooncake_locate(const struct wh_mooncake_store_ops *ops, void *store, const char *name,
		       struct wh_mooncake_endpoint *out);

/* Read a segment; `segment->host` is set in any case. 0, -ENOENT, -EPROTO, -EPROTONOSUPPORT,
 * -ENOMEM, or an error of the store's. */
int wh_mooncake_find(const struct wh_mooncake_store_ops *ops, void *store, const char *name,
		     struct wh_mooncake_segment *segment);

#endif
