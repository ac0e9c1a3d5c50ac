/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registries: an engine registers its name, epoch and address there, with a lease that ends when
 * the engine dies. The scheme of the URL selects the kind: http, etcd or redis.
 *
 * registry.c is the client: one thread for each engine that uses a registry, and nothing on the
 * data paths. The backends are in libwherry-registry.so, which is opened with the first registry,
 * so that libwherry.so needs neither libcurl nor hiredis nor jansson.
 */
#ifndef WH_RENDEZVOUS_REGISTRY_H
#define WH_RENDEZVOUS_REGISTRY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/error.h"
#include "util/list.h"
#include "util/log.h"
#include "util/process.h"

#define WH_REGISTRY_NAME_MAX 64 /* with the NUL, as WH_NAME_MAX */
#define WH_REGISTRY_ADDRESS_MAX 96 /* with the NUL: "[fe80::1%eth0]:40123" */
#define WH_REGISTRY_RECORD_MAX 1024 /* bytes of a record's JSON */
#define WH_REGISTRY_URL_MAX 1024 /* with the NUL */
#define WH_REGISTRY_ENDPOINTS 8

/* ---- records ------------------------------------------------------------------------------- */

/* An engine's record. As JSON: {"schema": 1, "name": "node7", "epoch": "0123456789abcdef",
 * "address": "10.0.0.7:7000", "lease_ms": 10000, "beat": 3, "process": {"space":
 * "0123456789abcdef", "pid": 4711, "start": 81540}}. Without a process: it is not known, or the
 * engine is of an earlier version. */
struct wh_registry_record {
	char name[WH_REGISTRY_NAME_MAX];
	char address[WH_REGISTRY_ADDRESS_MAX]; /* HOST:PORT */
	uint64_t epoch;
	int64_t lease; /* ms */
	uint64_t beat; /* counts renewals, for servers without leases */
	struct wh_process process;
};

/* In the module. The record must name the engine `wanted`; NULL: any. 0, or -EINVAL, whose text
 * names the wrong field. */
int wh_registry_record_parse(const char *json, size_t length, const char *wanted,
			     struct wh_registry_record *out);
/* Returns the bytes written, without the NUL. */
size_t wh_registry_record_format(const struct wh_registry_record *record,
				 char out[WH_REGISTRY_RECORD_MAX]);

/* Can an engine register this name? 1 to 63 of A-Z a-z 0-9 . _ -, and not only digits and dots:
 * that would be an IPv4 address without its port. */
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

/* 0, or -EINVAL, whose text names the wrong part and never a secret. */
int wh_registry_url_parse(const char *text, struct wh_registry_url *out);

/* Write the URL without user and password, cut to `size`. */
void wh_registry_url_show(const char *text, char *out, size_t size);

/* ---- backends ------------------------------------------------------------------------------ */

struct wh_registry_setup {
	const struct wh_registry_url *url;
	int64_t timeout; /* ms, for each call */
	const atomic_bool *stop; /* once true, calls end soon, with -ECANCELED */
};

/* A backend. One thread calls it. Errors are negative, with a text from wh_fail(). Besides those
 * named below: -ECONNREFUSED, -EHOSTUNREACH, -ETIMEDOUT, -ECONNRESET, -EACCES (user or password),
 * -EPROTO. */
struct wh_registry_ops {
	const char *scheme;
	/* Does not touch the network. -EINVAL: the URL has a part that this kind does not support.
	 */
	int (*open)(const struct wh_registry_setup *setup, void **out);
	void (*close)(void *backend);
	/* Write the record under its name, with its lease, unless a live engine of another epoch
	 * has the name: -EEXIST, with that engine's record in *holder. `dead`: a record that has
	 * been found there before and may be replaced although its lease runs; NULL: none. */
	int (*claim)(void *backend, const struct wh_registry_record *record,
		     const struct wh_registry_record *dead, struct wh_registry_record *holder);
	/* Renew the lease. -ENOENT: it has expired, or the registry has lost it; -EEXIST: another
	 * engine has the name. */
	int (*keep)(void *backend, const struct wh_registry_record *record);
	/* Remove the record, if it is this engine's. */
	int (*release)(void *backend, const struct wh_registry_record *record);
	/* -ENOENT: no engine has the name. */
	int (*find)(void *backend, const char *name, struct wh_registry_record *out);
	/* Sleep for `timeout` ns, until the descriptor `wake` is readable, or until one of the
	 * names may have changed since its last find(): 1 then, else 0. NULL: the client sleeps by
	 * itself. In both cases it looks the names up again every third of a lease. */
	int (*wait)(void *backend, int wake, int64_t timeout,
		    const char (*names)[WH_REGISTRY_NAME_MAX], size_t count);
};

/* What the module's function wh_registry_module() returns. */
#define WH_REGISTRY_MODULE 2
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
	/* The record to register; its name is "" for an engine that does not listen. */
	struct wh_registry_record self;
	struct wh_log log;
};

/* Connect and register. Blocks until the registry has answered; if the name belongs to another
 * epoch, until that engine's lease has expired or it has renewed it. An engine whose process has
 * ended on this host is not waited for. 0, -EINVAL (the URL or the
 * name), -EEXIST (the name is taken), -ELIBACC (the module cannot be opened), -ENOMEM, or a
 * backend's error. */
int wh_registry_open(const struct wh_registry_options *options, struct wh_registry **out);

/* Release the name, within `timeout`, and end the thread. NULL is allowed. */
void wh_registry_close(struct wh_registry *registry);

/* A look-up of a name. The caller owns the struct. */
struct wh_registry_ask {
	struct wh_list link;
	char name[WH_REGISTRY_NAME_MAX];
	/* 0: answer at once. Else wait until an engine of another epoch than this one has the name.
	 */
	uint64_t unlike;
	/* Called with `error` 0 and `found` set, or with an error and its text. On the registry's
	 * thread and under its lock: it may only wake another thread. */
	void (*done)(struct wh_registry_ask *ask);
	struct wh_registry_record found;
	int error;
	char text[WH_TEXT_MAX];
};

/* Start the look-up. Does not block; one that has already started goes on. */
void wh_registry_ask(struct wh_registry *registry, struct wh_registry_ask *ask);
/* Cancel it: `done` is not called afterwards. Does not block on the network. */
void wh_registry_forget(struct wh_registry *registry, struct wh_registry_ask *ask);

/* Look a name up and wait for the answer, at most until the deadline. 0, -ENOENT, -ETIMEDOUT,
 * -EINVAL (not a valid name), or a backend's error. */
int wh_registry_find(struct wh_registry *registry, const char *name, int64_t deadline,
		     struct wh_registry_record *out);

#endif
