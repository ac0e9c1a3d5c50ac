/* SPDX-License-Identifier: Apache-2.0 */
/* Engines of libtransfer_engine.so: creation, names, destruction, and received notifications. */
#include <errno.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "compat/mooncake/api.h"
#include "rendezvous/rendezvous.h"
#include "util/config.h"

#define NOTIFICATIONS_MAX 4096
#define NOTIFICATIONS_BYTES ((size_t)16 << 20)

/* ---- errors -------------------------------------------------------------------------------- */

int te_fail(enum te_error error, const char *format, ...)
{
	char line[WH_TEXT_MAX];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	wh_fail(EINVAL, "%s", line);
	return error;
}

bool te_forked(const struct te_engine *engine, const char *call)
{
	if (engine->owner == getpid())
		return false;
	te_fail(TE_ARGUMENT,
		"%s: the process has forked since it created the engine; create one in the child",
		call);
	return true;
}

static enum te_error errno_to_te(int error)
{
	switch (-error) {
	case ENOMEM:
		return TE_MEMORY;
	case EBUSY:
		return TE_BUSY;
	case ENODEV:
	case EIO:
		return TE_DEVICE;
	case EHOSTUNREACH:
		return TE_HOST;
	case ECONNABORTED:
	case ECONNREFUSED:
	case ECONNRESET:
	case ETIMEDOUT:
	case EADDRINUSE:
	case EADDRNOTAVAIL:
	case EMFILE:
	case EACCES:
		return TE_SOCKET;
	case EPROTO:
	case EPROTONOSUPPORT:
	case ESTALE:
		return TE_PEER;
	case ENOENT:
	case EEXIST:
	case ELIBACC:
		return TE_METADATA;
	default:
		return TE_ARGUMENT;
	}
}

int te_fail_wherry(int error, const char *what)
{
	return te_fail(errno_to_te(error), "%s: %s", what, wh_error_text());
}

int te_fail_mooncake(int error, const char *what)
{
	return te_fail(errno_to_te(error), "%s: %s", what, wh_fail_text());
}

const char *wherryErrorText(void)
{
	return wh_fail_text();
}

/* ---- names --------------------------------------------------------------------------------- */

/* HOST, HOST:PORT, [ADDRESS]:PORT or an IPv6 address alone. */
static int name_host(const char *name, char out[WH_MOONCAKE_NAME_MAX])
{
	struct wh_mooncake_endpoint endpoint;
	const char *colon = strchr(name, ':');
	char other[WH_MOONCAKE_NAME_MAX];
	size_t length = strlen(name);

	if (length && length < WH_MOONCAKE_NAME_MAX &&
	    (!colon || (*name != '[' && strchr(colon + 1, ':')))) {
		memcpy(out, name, length + 1);
		return 0;
	}
	/* Port 0 is any. */
	if (length > 2 && length < sizeof(other) && !strcmp(name + length - 2, ":0")) {
		snprintf(other, sizeof(other), "%.*s:1", (int)length - 2, name);
		name = other;
	}
	if (wh_mooncake_endpoint_read(name, &endpoint))
		return -EINVAL;
	memcpy(out, endpoint.host, sizeof(endpoint.host));
	return 0;
}

static void host_listen_text(const char *host, char *out, size_t size)
{
	struct wh_mooncake_endpoint endpoint = { .port = 0 };

	snprintf(endpoint.host, sizeof(endpoint.host), "%s", host);
	wh_mooncake_endpoint_text(&endpoint, out, size);
}

static bool address_is_loopback(const char *where)
{
	struct sockaddr_storage address[WH_RENDEZVOUS_MOST];
	unsigned count = 0;

	return !wh_rendezvous_resolve(where, WH_RESOLVE_LISTENING, address, &count) && count &&
	       wh_address_is_loopback(&address[0]);
}

/* ---- creating an engine -------------------------------------------------------------------- */

/* A Wherry engine listens beyond loopback only with a cluster key. Without one, Wherry's routes
 * reach it from its own host only, and Mooncake's TCP from others. A setting `listen` takes
 * precedence. */
static int engine_open_wherry(struct te_engine *engine, const struct wh_config *config,
			      const char *where)
{
	struct wh_engine_options options = { .size = sizeof(options) };
	int error = -EACCES;

	for (size_t i = 0; wh_config_row(i); i++)
		if (!strcmp(wh_config_row(i)->name, "listen") &&
		    !strcmp(wh_config_row(i)->fallback, config->text[WH_SETTING_LISTEN]) &&
		    !address_is_loopback(where))
			options.listen = where;
	if (options.listen)
		error = wh_engine_open(&options, &engine->wherry);
	options.listen = NULL;
	if (error == -EACCES)
		error = wh_engine_open(&options, &engine->wherry);
	return error ? te_fail_wherry(error, "createTransferEngine") : 0;
}

/* The URL that the segment publishes: if Wherry listens on all addresses, with the host that peers
 * know. */
static void engine_wherry_url(const struct te_engine *engine, const char *host,
			      char out[WH_MOONCAKE_URL_MAX])
{
	static const char scheme[] = "wherry://";
	const char *url = wh_engine_url(engine->wherry);
	struct wh_mooncake_endpoint endpoint;
	char text[WH_MOONCAKE_NAME_MAX + 10];

	*out = '\0';
	if (strncmp(url, scheme, strlen(scheme)) != 0 ||
	    wh_mooncake_endpoint_read(url + strlen(scheme), &endpoint))
		return;
	if (!strcmp(endpoint.host, "0.0.0.0") || !strcmp(endpoint.host, "::"))
		snprintf(endpoint.host, sizeof(endpoint.host), "%s", host);
	wh_mooncake_endpoint_text(&endpoint, text, sizeof(text));
	if (strlen(scheme) + strlen(text) < WH_MOONCAKE_URL_MAX)
		snprintf(out, WH_MOONCAKE_URL_MAX, "%s%.100s", scheme, text);
}

static int engine_open_store(struct te_engine *engine, const char *metadata)
{
	struct wh_config_mooncake config;
	char url[512];
	const struct wh_mooncake_store_setup setup = {
		.url = url,
		.timeout = engine->timeout / WH_MS,
		.user = config.user,
		.password = config.password,
		.database = config.database,
		.cluster = config.cluster,
	};
	int error;

	if (!strcmp(metadata, "P2PHANDSHAKE"))
		return 0;
	if ((size_t)snprintf(url, sizeof(url), "%s%s", strstr(metadata, "://") ? "" : "etcd://",
			     metadata) >= sizeof(url))
		return te_fail(TE_ARGUMENT,
			       "createTransferEngine: metadata_conn_string has more than %zu bytes",
			       sizeof(url) - 1);
	wh_config_mooncake(&config);
	error = wh_mooncake_store_load(&engine->store_ops);
	if (error)
		return te_fail_mooncake(error, "createTransferEngine");
	error = engine->store_ops->open(&setup, &engine->store);
	if (error) {
		error = te_fail(TE_METADATA, "createTransferEngine: %s", engine->store_ops->text());
		engine->store_ops = NULL;
	}
	explicit_bzero(url, sizeof(url));
	return error;
}

static int engine_open_server(struct te_engine *engine, const char *host, const char *where)
{
	char url[WH_MOONCAKE_URL_MAX];
	struct wh_mooncake_server_options options = {
		.listen = where,
		.name = engine->store_ops ? engine->name : NULL,
		.wherry = url,
		.epoch = wh_engine_epoch(engine->wherry),
		.staging_size = TE_STAGING,
		.copy = te_memory_copy,
		.notified = te_notified,
		.arg = engine,
	};
	int error;

	engine_wherry_url(engine, host, url);
	error = wh_mooncake_serve(&options, &engine->server);
	if (error)
		return te_fail_mooncake(
			error,
			"createTransferEngine: the host has to be an address of this machine");
	/* It was formatted by the server. */
	wh_mooncake_endpoint_read(wh_mooncake_control(engine->server), &engine->endpoint);
	snprintf(engine->endpoint.host, sizeof(engine->endpoint.host), "%s", host);
	if (!engine->store_ops)
		wh_mooncake_endpoint_text(&engine->endpoint, engine->name, sizeof(engine->name));
	return 0;
}

/* Segment 0: the engine's own memory. */
static int engine_open_local(struct te_engine *engine)
{
	struct te_segment *segment = calloc(1, sizeof(*segment));
	struct te_link *link = calloc(1, sizeof(*link));
	int error;

	engine->segments = calloc(1, sizeof(struct te_segment *));
	if (!segment || !link || !engine->segments) {
		free(segment);
		free(link);
		return te_fail(TE_MEMORY, "createTransferEngine: no memory");
	}
	*link = (struct te_link){ .engine = engine, .references = 1 };
	snprintf(link->name, sizeof(link->name), "%s", engine->name);
	snprintf(segment->name, sizeof(segment->name), "%s", engine->name);
	wh_mooncake_endpoint_text(&engine->endpoint, link->control, sizeof(link->control));
	wh_list_init(&link->jobs);
	pthread_cond_init(&link->more, NULL);
	segment->link = link;
	engine->segments[0] = segment;
	engine->segment_count = 1;
	error = wh_peer_open(engine->wherry, "self", NULL, &link->peer);
	return error ? te_fail_wherry(error, "createTransferEngine") : 0;
}

static int engine_publish_again(void *arg)
{
	return te_memory_publish_again(arg);
}

static void engine_log(void *arg, const char *line)
{
	const struct te_engine *engine = arg;

	wh_log_line(&engine->log, WH_LOG_INFO, "mooncake", "%s", line);
}

static int engine_publish_name(struct te_engine *engine)
{
	const struct wh_mooncake_keeper_setup keeper = {
		.ops = engine->store_ops,
		.store = engine->store,
		.store_lock = &engine->store_lock,
		.name = engine->name,
		.endpoint = &engine->endpoint,
		.publish = engine_publish_again,
		.log = engine_log,
		.arg = engine,
	};
	char *segment;
	int error;

	if (!engine->store_ops)
		return 0;
	segment = wh_mooncake_describe(engine->server, engine->endpoint.host);
	if (!segment)
		return te_fail(TE_ARGUMENT,
			       "createTransferEngine: no memory, or a name that is not UTF-8");
	error = wh_mooncake_publish(engine->store_ops, engine->store, engine->name, segment,
				    &engine->endpoint);
	free(segment);
	engine->in_store = !error;
	if (error)
		return te_fail(TE_METADATA, "createTransferEngine: %s", wh_fail_text());
	error = wh_mooncake_keeper_start(&keeper, &engine->keeper);
	return error ? te_fail_mooncake(error, "createTransferEngine") : 0;
}

static int engine_open_all(struct te_engine *engine, const char *metadata, const char *name,
			   const char *ip)
{
	char host[WH_MOONCAKE_NAME_MAX], where[WH_MOONCAKE_NAME_MAX + 10];
	struct wh_config *config = calloc(1, sizeof(*config));
	bool by_ip;
	int error;

	if (!config)
		return te_fail(TE_MEMORY, "createTransferEngine: no memory");
	error = wh_config_load(config, NULL);
	engine->timeout = config->number[WH_SETTING_TIMEOUT] * WH_MS;
	engine->log = (struct wh_log){ wh_log_stderr, NULL,
				       wh_config_log_level(config->text[WH_SETTING_LOG]), NULL };
	engine->cpus = (unsigned)get_nprocs();
	if (error)
		error = te_fail_mooncake(error, "createTransferEngine");
	else
		error = engine_open_store(engine, metadata);
	by_ip = !error && engine->store_ops && ip && *ip;
	if (!error && name_host(by_ip ? ip : name, host))
		error = te_fail(TE_ARGUMENT,
				"createTransferEngine: %s \"%.80s\" is not HOST or HOST:PORT",
				by_ip ? "ip_or_host_name" : "local_server_name", by_ip ? ip : name);
	if (!error) {
		snprintf(engine->name, sizeof(engine->name), "%s", name);
		host_listen_text(host, where, sizeof(where));
		error = engine_open_wherry(engine, config, where);
	}
	if (!error)
		error = engine_open_server(engine, host, where);
	if (!error)
		error = engine_open_local(engine);
	if (!error)
		error = engine_publish_name(engine);
	free(config);
	return error;
}

transfer_engine_t createTransferEngine(const char *metadata_conn_string,
				       const char *local_server_name, const char *ip_or_host_name,
				       uint64_t rpc_port, int auto_discover)
{
	pthread_condattr_t monotonic;
	struct te_engine *engine;

	(void)rpc_port, (void)auto_discover;
	if (!metadata_conn_string || !*metadata_conn_string || !local_server_name ||
	    !*local_server_name || strlen(local_server_name) >= WH_MOONCAKE_NAME_MAX) {
		te_fail(TE_ARGUMENT,
			"createTransferEngine: %s is NULL, empty or of more than %d bytes",
			!metadata_conn_string || !*metadata_conn_string ? "metadata_conn_string" :
									  "local_server_name",
			WH_MOONCAKE_NAME_MAX - 1);
		return NULL;
	}
	engine = calloc(1, sizeof(*engine));
	if (!engine) {
		te_fail(TE_MEMORY, "createTransferEngine: no memory");
		return NULL;
	}
	engine->owner = getpid();
	pthread_mutex_init(&engine->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&engine->ended, &monotonic);
	pthread_condattr_destroy(&monotonic);
	pthread_mutex_init(&engine->publishing, NULL);
	pthread_mutex_init(&engine->store_lock, NULL);
	wh_list_init(&engine->notifications);
	if (engine_open_all(engine, metadata_conn_string, local_server_name, ip_or_host_name)) {
		char text[WH_TEXT_MAX];

		snprintf(text, sizeof(text), "%s", wh_fail_text());
		destroyTransferEngine(engine);
		te_fail(TE_ARGUMENT, "%s", text);
		return NULL;
	}
	return engine;
}

void destroyTransferEngine(transfer_engine_t handle)
{
	struct te_engine *engine = handle;

	/* A child's engine is its parent's, and has no threads here. */
	if (!engine || te_forked(engine, "destroyTransferEngine"))
		return;
	wh_fail_begin();
	wh_mooncake_keeper_stop(engine->keeper);
	if (engine->in_store)
		wh_mooncake_withdraw(engine->store_ops, engine->store, engine->name);
	wh_mooncake_stop(engine->server);
	te_batches_free(engine);
	te_segments_free(engine);
	te_memory_free(engine);
	te_notifications_free(engine);
	if (engine->wherry)
		wh_engine_close(engine->wherry);
	if (engine->store_ops)
		engine->store_ops->close(engine->store);
	pthread_mutex_destroy(&engine->lock);
	pthread_cond_destroy(&engine->ended);
	pthread_mutex_destroy(&engine->publishing);
	pthread_mutex_destroy(&engine->store_lock);
	free(engine);
	wh_fail_end(0);
}

/* ---- queries ------------------------------------------------------------------------------- */

int getLocalIpAndPort(transfer_engine_t handle, char *buf_out, size_t buf_len)
{
	const struct te_engine *engine = handle;

	if (!engine || !buf_out || !buf_len)
		return te_fail(TE_ARGUMENT, "getLocalIpAndPort: %s",
			       !engine  ? "engine is NULL" :
			       !buf_out ? "buf_out is NULL" :
					  "buf_len is 0");
	if (te_forked(engine, "getLocalIpAndPort"))
		return TE_ARGUMENT;
	wh_mooncake_endpoint_text(&engine->endpoint, buf_out, buf_len);
	return 0;
}

int discoverTopology(transfer_engine_t engine)
{
	if (!engine)
		return te_fail(TE_ARGUMENT, "discoverTopology: engine is NULL");
	return te_forked(engine, "discoverTopology") ? TE_ARGUMENT : 0;
}

void enableGracefulShutdown(transfer_engine_t engine)
{
	(void)engine;
}

static const char *const transports[] = { "tcp", "rdma", "shm", "nvlink", "nvlink_intra", "local" };

transport_t installTransport(transfer_engine_t engine, const char *proto, void **args)
{
	(void)args;
	if (engine && te_forked(engine, "installTransport"))
		return NULL;
	for (size_t i = 0; engine && proto && i < sizeof(transports) / sizeof(transports[0]); i++)
		if (!strcmp(proto, transports[i]))
			return (void *)(uintptr_t)transports[i];
	te_fail(TE_ARGUMENT, "installTransport: %s%.40s",
		!engine ? "engine is NULL" :
		!proto  ? "proto is NULL" :
			  "there are tcp, rdma, shm, nvlink, nvlink_intra and local, not ",
		engine && proto ? proto : "");
	return NULL;
}

int uninstallTransport(transfer_engine_t engine, const char *proto)
{
	return installTransport(engine, proto, NULL) ? 0 : TE_ARGUMENT;
}

/* ---- notifications ------------------------------------------------------------------------- */

static void notification_free(struct te_notification *notification)
{
	free(notification->name);
	free(notification->message);
	free(notification);
}

/* On the server's thread. */
int te_notified(void *arg, const char *name, const char *message)
{
	struct te_engine *engine = arg;
	struct te_notification *notification = calloc(1, sizeof(*notification));
	bool room;

	if (!notification)
		return -ENOMEM;
	notification->size = sizeof(*notification) + strlen(name) + strlen(message) + 2;
	notification->name = strdup(name);
	notification->message = strdup(message);
	if (!notification->name || !notification->message) {
		notification_free(notification);
		return -ENOMEM;
	}
	pthread_mutex_lock(&engine->lock);
	room = engine->notification_count < NOTIFICATIONS_MAX &&
	       engine->notification_bytes + notification->size <= NOTIFICATIONS_BYTES;
	if (room) {
		wh_list_append(&engine->notifications, &notification->at);
		engine->notification_count++;
		engine->notification_bytes += notification->size;
	}
	pthread_mutex_unlock(&engine->lock);
	if (!room)
		notification_free(notification);
	return room ? 0 : -ENOBUFS;
}

void te_notifications_free(struct te_engine *engine)
{
	while (!wh_list_empty(&engine->notifications))
		notification_free(wh_container(wh_list_take(&engine->notifications),
					       struct te_notification, at));
}

notify_msg_t *getNotifsFromEngine(transfer_engine_t handle, int *size)
{
	struct te_engine *engine = handle;
	notify_msg_t *messages = NULL;
	int count = 0;

	if (!engine || !size) {
		te_fail(TE_ARGUMENT, "getNotifsFromEngine: %s is NULL", engine ? "size" : "engine");
		return NULL;
	}
	if (te_forked(engine, "getNotifsFromEngine"))
		return NULL;
	pthread_mutex_lock(&engine->lock);
	if (engine->notification_count)
		messages = calloc(engine->notification_count, sizeof(*messages));
	while (messages && !wh_list_empty(&engine->notifications)) {
		struct te_notification *notification = wh_container(
			wh_list_take(&engine->notifications), struct te_notification, at);

		messages[count++] =
			(notify_msg_t){ .name = notification->name, .msg = notification->message };
		free(notification);
	}
	if (messages)
		engine->notification_count = engine->notification_bytes = 0;
	pthread_mutex_unlock(&engine->lock);
	*size = count;
	return messages;
}

int freeNotifsMsgBuf(notify_msg_t *msg, int size)
{
	for (int i = 0; msg && i < size; i++) {
		free(msg[i].name);
		free(msg[i].msg);
	}
	free(msg);
	return 0;
}

int genNotifyInEngine(transfer_engine_t handle, uint64_t target_id, notify_msg_t notify_msg)
{
	struct te_engine *engine = handle;
	struct te_link *link;
	char control[sizeof(link->control)];
	int error;

	if (!engine || !notify_msg.name || !notify_msg.msg || target_id > INT32_MAX)
		return te_fail(TE_ARGUMENT, "genNotifyInEngine: %s",
			       !engine               ? "engine is NULL" :
			       target_id > INT32_MAX ? "target_id is no segment" :
						       "a notification without text");
	if (te_forked(engine, "genNotifyInEngine"))
		return TE_ARGUMENT;
	error = te_link_get(engine, (segment_id_t)target_id, &link);
	if (error)
		return error;
	pthread_mutex_lock(&engine->lock);
	memcpy(control, link->control, sizeof(control));
	pthread_mutex_unlock(&engine->lock);
	error = wh_mooncake_notify(control, notify_msg.name, notify_msg.msg, engine->timeout);
	if (error)
		error = te_fail_mooncake(error, "genNotifyInEngine");
	te_link_put(link);
	return error;
}
