/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metadata stores, in which Mooncake's engines publish their segments unless they fetch them from
 * each other: a web server with GET, PUT and DELETE, etcd or redis. The key `mooncake/ram/NAME` has
 * the segment, `mooncake/rpc_meta/NAME` its control port.
 *
 * The stores need libcurl, or hiredis, and are in the module of the registries,
 * libwherry-registry.so.
 */
#ifndef WH_COMPAT_MOONCAKE_STORE_H
#define WH_COMPAT_MOONCAKE_STORE_H

#include <pthread.h>

#include "compat/mooncake/wire.h"

#define WH_MOONCAKE_STORE 2

struct wh_mooncake_store_setup {
	const char *url; /* http://HOST:PORT/PATH, etcd://HOST:PORT or redis://HOST:PORT */
	int64_t timeout; /* ms, for each call */
	/* For redis, unless its URL contains them; NULL or "": none. */
	const char *user, *password, *database;
	const char *cluster; /* keys are mooncake/CLUSTER/...; NULL or "": mooncake/... */
};

/* Calls block, on any thread, one at a time. Errors are negative, with a text: -ECONNREFUSED,
 * -EHOSTUNREACH, -ETIMEDOUT, -ECONNRESET, -EACCES (a certificate, a user), -EPROTO, -ENOMEM. */
struct wh_mooncake_store_ops {
	uint32_t version; /* WH_MOONCAKE_STORE */
	/* -EINVAL. Does not touch the network. */
	int (*open)(const struct wh_mooncake_store_setup *setup, void **out);
	void (*close)(void *store);
	/* Get a malloc()ed value, with a NUL after it. -ENOENT: there is no such key. */
	int (*get)(void *store, const char *key, char **value, size_t *length);
	int (*put)(void *store, const char *key, const char *value);
	/* 0 also if there is no such key. */
	int (*remove)(void *store, const char *key);
	const char *(*text)(void); /* of this thread's last error */
};

/* The module's function. */
typedef const struct wh_mooncake_store_ops *wh_mooncake_store_fn(void);
wh_mooncake_store_fn wh_mooncake_store;

/* Open the module, from beside libwherry.so. 0 or -ELIBACC. */
int wh_mooncake_store_load(const struct wh_mooncake_store_ops **out);

/* ---- engines in a store -------------------------------------------------------------------- */

/* Write a segment and its control port. If another engine has the name but its host refuses
 * connections to that port, the engine has died and its entries are replaced. 0, -EEXIST (another
 * engine has the name), or an error of the store's. */
int wh_mooncake_publish(const struct wh_mooncake_store_ops *ops, void *store, const char *name,
			const char *segment, const struct wh_mooncake_endpoint *endpoint);
/* Are both entries there, and the engine's own? 0, -ENOENT (one is not, or is another engine's), or
 * an error of the store's. */
int wh_mooncake_is_published(const struct wh_mooncake_store_ops *ops, void *store, const char *name,
			     const struct wh_mooncake_endpoint *endpoint);
/* Remove both entries of an engine. 0, or an error of the store's. */
int wh_mooncake_withdraw(const struct wh_mooncake_store_ops *ops, void *store, const char *name);

/* The control port of the engine of that name. 0, -ENOENT, -EPROTO, or an error of the store's. */
int wh_mooncake_locate(const struct wh_mooncake_store_ops *ops, void *store, const char *name,
		       struct wh_mooncake_endpoint *out);

/* Read a segment; `segment->host` is set in any case. 0, -ENOENT, -EPROTO, -EPROTONOSUPPORT,
 * -ENOMEM, or an error of the store's. */
int wh_mooncake_find(const struct wh_mooncake_store_ops *ops, void *store, const char *name,
		     struct wh_mooncake_segment *segment);

/* ---- keeping them there -------------------------------------------------------------------- */

struct wh_mooncake_keeper;

/* All that is pointed to outlives the keeper. */
struct wh_mooncake_keeper_setup {
	const struct wh_mooncake_store_ops *ops;
	void *store;
	pthread_mutex_t *store_lock; /* held while the keeper reads the store */
	const char *name;
	const struct wh_mooncake_endpoint *endpoint;
	/* Publish again, with the locks that this needs. 0, or a negative errno with a text. */
	int (*publish)(void *arg);
	void (*log)(void *arg, const char *line);
	void *arg;
};

/* Start a thread that looks every two seconds whether the store has the entries of an engine, which
 * it may have lost by a restart, and publishes them again; it logs that, and the store's errors
 * when they change. 0, -ENOMEM, -EAGAIN. */
int wh_mooncake_keeper_start(const struct wh_mooncake_keeper_setup *setup,
			     struct wh_mooncake_keeper **out);
/* Waits for a call of the store. NULL is allowed. */
void wh_mooncake_keeper_stop(struct wh_mooncake_keeper *keeper);

#endif
