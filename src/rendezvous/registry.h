/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registries: where engines write down under which name, epoch and address they can be reached,
 * with a lease, so that a dead one disappears. Which kind it is, the URL says.
 *
 * registry.c is the client: one thread for each engine that has a registry, nothing on the data
 * paths. The backends are in a module of their own, libwherry-registry.so, which is opened when the
 * first registry is: libcurl, hiredis and jansson are no needs of libwherry.so.
 */
#ifndef WH_RENDEZVOUS_REGISTRY_H
#define WH_RENDEZVOUS_REGISTRY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/error.h"
#include "util/list.h"

#define WH_REGISTRY_NAME_MAX 64 /* with the NUL, as WH_NAME_MAX */
#define WH_REGISTRY_ADDRESS_MAX 96 /* with the NUL: "[fe80::1%eth0]:40123" */
#define WH_REGISTRY_RECORD_MAX 1024 /* bytes of a record's JSON */
#define WH_REGISTRY_URL_MAX 1024 /* with the NUL */
#define WH_REGISTRY_ENDPOINTS 8

/* ---- records ------------------------------------------------------------------------------- */

/* What is known of an engine. As JSON: {"schema": 1, "name": "node7", "epoch": "0123456789abcdef",
 * "address": "10.0.0.7:7000", "lease_ms": 10000, "beat": 3}. */
struct wh_registry_record {
	char name[WH_REGISTRY_NAME_MAX];
	char address[WH_REGISTRY_ADDRESS_MAX]; /* HOST:PORT */
	uint64_t epoch;
	int64_t lease; /* ms */
	uint64_t beat; /* moves with each renewal where the server knows no leases */
};

/* In the module. The record must be that of the engine `wanted`, unless NULL. 0 or -EINVAL, the
 * text names the field. */
int wh_registry_record_parse(const char *json, size_t length, const char *wanted,
			     struct wh_registry_record *out);
/* The bytes written, without the NUL. */
size_t wh_registry_record_format(const struct wh_registry_record *record,
				 char out[WH_REGISTRY_RECORD_MAX]);

/* Can an engine of this name be found: 1 to 63 of A-Z a-z 0-9 . _ -, and not an IPv4 address that
 * has lost its port. */
bool wh_registry_name_valid(const char *name);

/* ---- URLs ---------------------------------------------------------------------------------- */

/* SCHEME://[USER[:PASSWORD]@]HOST:PORT[,HOST:PORT...][/PATH][?cacert=FILE&cert=FILE&key=FILE] */
struct wh_registry_url {
	char scheme[8]; /* without the s that stands for TLS: "http", "etcd", "redis" */
	bool tls;
	char user[64], password[128];
	char endpoint[WH_REGISTRY_ENDPOINTS][272]; /* "HOST:PORT" */
	unsigned count;
	char path[128]; /* without the slash before it */
	char cacert[256], cert[256], key[256];
};

/* 0 or -EINVAL: the text names the part that is wrong, and no secret. */
int wh_registry_url_parse(const char *text, struct wh_registry_url *out);

/* The URL without what is secret in it, and no longer than fits. */
void wh_registry_url_show(const char *text, char *out, size_t size);

/* ---- backends ------------------------------------------------------------------------------ */

struct wh_registry_setup {
	const struct wh_registry_url *url;
	int64_t timeout; /* ms: the most that one call may take */
	const atomic_bool *stop; /* once true, calls end as soon as they can with -ECANCELED */
};

/* Called on one thread. Errors are negative, with a text from wh_fail(). Beside those named here:
 * -ECONNREFUSED, -EHOSTUNREACH, -ETIMEDOUT, -ECONNRESET, -EACCES (user or password), -EPROTO. */
struct wh_registry_ops {
	const char *scheme;
	/* -EINVAL: something in the URL that this kind does not take. Does not touch the network.
	 */
	int (*open)(const struct wh_registry_setup *setup, void **out);
	void (*close)(void *backend);
	/* Write the record under its name, with its lease, unless a live engine of another epoch
	 * has the name: -EEXIST, with that engine's record in *holder. */
	int (*claim)(void *backend, const struct wh_registry_record *record,
		     struct wh_registry_record *holder);
	/* Renew the lease. -ENOENT: it has run out or the registry has forgotten it; -EEXIST. */
	int (*keep)(void *backend, const struct wh_registry_record *record);
	/* Take the record away, if it is this engine's. */
	int (*release)(void *backend, const struct wh_registry_record *record);
	/* -ENOENT: nobody has that name. */
	int (*find)(void *backend, const char *name, struct wh_registry_record *out);
	/* Sleep for `timeout` ns or until the descriptor `wake` is readable. 1: one of the names,
	 * if there are any, may have changed since it was last looked at; else 0. NULL: the client
	 * sleeps, and looks at names again every third of a lease, which it does in any case. */
	int (*wait)(void *backend, int wake, int64_t timeout,
		    const char (*names)[WH_REGISTRY_NAME_MAX], size_t count);
};

/* What the module's only function, wh_registry_module(), gives. */
#define WH_REGISTRY_MODULE 1
struct wh_registry_module {
	uint32_t version; /* WH_REGISTRY_MODULE */
	const struct wh_registry_ops *const *ops; /* ended by NULL */
	const char *(*text)(void); /* of this thread's last error */
};
typedef const struct wh_registry_module *wh_registry_module_fn(void);

/* Open the module and find its function `name`. The module lies beside the library that has the
 * function `beside` (of libwherry.so), else where the loader looks. 0 or -ELIBACC. */
int wh_registry_module_load(const void *beside, const char *name, void **out);

/* ---- the client ---------------------------------------------------------------------------- */

struct wh_registry;

struct wh_registry_options {
	const char *url;
	int64_t lease, timeout; /* ms */
	/* What is registered; the name is "" for an engine that does not listen. */
	struct wh_registry_record self;
	void (*log)(void *arg, const char *line);
	void *log_arg;
};

/* Connect and register. Blocks until the registry has answered; while the name belongs to another
 * epoch, until that one's lease must have run out.
 * 0, -EINVAL (the URL or the name), -EEXIST (the name is taken), -ELIBACC (the module cannot be
 * opened), -ENOMEM, or a backend's error. */
int wh_registry_open(const struct wh_registry_options *options, struct wh_registry **out);

/* Give the name back, which takes at most `timeout`, and end the thread. NULL is fine. */
void wh_registry_close(struct wh_registry *registry);

/* A question. The struct belongs to the caller. */
struct wh_registry_ask {
	struct wh_list link;
	char name[WH_REGISTRY_NAME_MAX];
	/* 0: answer at once, whatever the answer is. Else not before the name is an engine's with
	 * another epoch than this one. */
	uint64_t unlike;
	/* With 0, or an error and its text. On the registry's thread and under its lock: it must do
	 * no more than wake somebody. */
	void (*done)(struct wh_registry_ask *ask);
	struct wh_registry_record found;
	int error;
	char text[WH_TEXT_MAX];
};

/* Does not block. An ask that is under way is left as it is. */
void wh_registry_ask(struct wh_registry *registry, struct wh_registry_ask *ask);
/* Take it back: `done` is not called any more. Does not block on the network. */
void wh_registry_forget(struct wh_registry *registry, struct wh_registry_ask *ask);

/* Look a name up and wait for the answer, at most until the deadline. 0, -ENOENT, -ETIMEDOUT,
 * -EINVAL (no such name can be), or a backend's error. */
int wh_registry_find(struct wh_registry *registry, const char *name, int64_t deadline,
		     struct wh_registry_record *out);

#endif
