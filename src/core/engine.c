/* SPDX-License-Identifier: Apache-2.0 */
/* The engine: opening and closing it, with its threads, identity, transports and registry. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/batch.h"
#include "core/engine.h"
#include "core/file.h"
#include "core/notification.h"
#include "core/observer.h"
#include "core/peer.h"
#include "core/plan.h"
#include "core/progress.h"
#include "core/region.h"
#include "core/session.h"
#include "core/warning.h"
#include "gpu/staging.h"
#include "gpu/stream.h"
#include "memory/file.h"
#include "memory/region-table.h"
#include "net/acceptor.h"
#include "net/trust.h"
#include "platform/machine.h"
#include "rendezvous/registry.h"
#include "rendezvous/rendezvous.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/config.h"
#include "util/cpus.h"
#include "util/error.h"
#include "util/list.h"
#include "util/loop.h"
#include "util/options.h"
#include "util/text.h"
#include "util/thread.h"
#include "util/turns.h"
#include "window/view.h"
#include "wire/wire.h"

/* ---- guards --------------------------------------------------------------------------------- */

int wh_engine_guard(const struct wh_engine *engine, const char *call)
{
	if (!engine)
		return wh_fail(EINVAL, "%s: engine is NULL", call);
	if (*engine->ours != 1)
		return wh_fail(
			EPERM,
			"%s: the engine belongs to the process that opened it, this is a fork; "
			"open an engine of its own here",
			call);
	return 0;
}

bool wh_engine_inside(const struct wh_engine *engine)
{
	const struct wh_loop *loop = wh_loop_current();

	return wh_worker_here(&engine->callbacks) ||
	       (loop >= engine->loops && loop < engine->loops + engine->loop_count);
}

unsigned wh_engine_next_loop(struct wh_engine *engine)
{
	return atomic_fetch_add(&engine->next_loop, 1) % engine->loop_count;
}

struct wh_loop *wh_engine_loop(const struct wh_engine *engine, unsigned number)
{
	return &engine->loops[number % engine->loop_count];
}

void wh_engine_place_loop(struct wh_engine *engine, const struct wh_loop *loop, uint64_t bytes,
			  int fd, bool follow)
{
	if (!loop->spin && wh_loop_here(loop))
		wh_placement_moved(engine->places, engine->loop_count,
				   (unsigned)(loop - engine->loops), bytes, fd, follow);
}

unsigned wh_engine_loops(const struct wh_engine *engine)
{
	return engine->loop_count;
}

/* ---- identity ------------------------------------------------------------------------------- */

static int engine_random_bytes(void *out, size_t size)
{
	return getrandom(out, size, 0) == (ssize_t)size ?
		       0 :
		       wh_fail(EIO, "wh_engine_open: no random numbers from the kernel");
}

static int engine_learn_identity(struct wh_engine *engine, const char *name)
{
	char host[40] = "host";
	int error;

	do {
		error = engine_random_bytes(&engine->identity.epoch,
					    sizeof(engine->identity.epoch));
		if (error)
			return error;
	} while (!engine->identity.epoch);
	if (wh_machine_identify(engine->identity.host))
		wh_log_line(&engine->log, WH_LOG_WARN, "engine",
			    "/proc does not say which machine this is (boot_id, ns/net), so that "
			    "other engines of this machine are taken for remote ones: bytes go by "
			    "the network");
	if (name && strlen(name) >= WH_NAME_MAX)
		return wh_fail(EINVAL, "wh_engine_open: options.name has more than %d bytes",
			       WH_NAME_MAX - 1);
	if (name && !wh_text_is_clean(name, strlen(name)))
		return wh_fail(
			EINVAL,
			"wh_engine_open: options.name has control characters, or is not UTF-8");
	gethostname(host, sizeof(host) - 1);
	if (name && *name)
		snprintf(engine->identity.name, sizeof(engine->identity.name), "%s", name);
	else
		snprintf(engine->identity.name, sizeof(engine->identity.name), "%s.%d", host,
			 (int)getpid());
	return 0;
}

/* ---- open ----------------------------------------------------------------------------------- */

static int engine_start_loops(struct wh_engine *engine)
{
	int64_t wanted = engine->config.number[WH_SETTING_THREADS];
	bool spin = engine->config.number[WH_SETTING_SPIN] != 0;
	struct wh_turns *turns = engine->turns;
	char name[24];
	int error;

	if (turns)
		wanted = 1;
	if (!wanted)
		wanted = wh_cpus_threads(
			wh_cpus(), (unsigned)engine->config.number[WH_SETTING_CONNECTIONS], spin);
	engine->loops = calloc((size_t)wanted, sizeof(*engine->loops));
	engine->places = calloc((size_t)wanted, sizeof(*engine->places));
	if (!engine->loops || !engine->places)
		return wh_fail(ENOMEM, "wh_engine_open: no memory");
	while (engine->loop_count < (unsigned)wanted) {
		snprintf(name, sizeof(name), "wherry/%u", engine->loop_count);
		error = wh_loop_start(&engine->loops[engine->loop_count], name, spin, turns);
		if (error)
			return error;
		engine->loop_count++;
	}
	return 0;
}

static void engine_stop_loops(struct wh_engine *engine)
{
	while (engine->loop_count)
		wh_loop_stop(&engine->loops[--engine->loop_count]);
	free(engine->loops);
	free(engine->places);
}

/* Is `name` one of the comma-separated names in `list`? */
static bool list_contains(const char *list, const char *name)
{
	size_t length = strlen(name);

	while (*list) {
		size_t span = strcspn(list, ",");

		if (span == length && !memcmp(list, name, length))
			return true;
		list += span + (list[span] == ',');
	}
	return false;
}

static int engine_check_transports(const struct wh_config *config)
{
	const char *list = config->text[WH_SETTING_TRANSPORTS];
	const char *require = config->text[WH_SETTING_REQUIRE];
	char name[64];

	while (*list) {
		size_t span = strcspn(list, ",");

		snprintf(name, sizeof(name), "%.*s", (int)span, list);
		if (wh_transport_by_name(name) == WH_TRANSPORT_COUNT)
			return wh_fail(EINVAL,
				       "transports: there is no transport \"%s\"; known are %s",
				       name, wh_transport_names());
		list += span + (list[span] == ',');
	}
	if (!wh_require_is_known(require))
		return wh_fail(EINVAL,
			       "require: there is no transport \"%s\"; known are %s, and local for "
			       "those that need no network",
			       require, wh_transport_names());
	return 0;
}

static int engine_check_windows(const struct wh_config *config)
{
	const char *order = config->text[WH_SETTING_WINDOW];

	return !strcmp(order, WH_WINDOW_OFF) || wh_window_order_valid(order) ?
		       0 :
		       wh_fail(EINVAL, "window=%s: known are driver, dmabuf, rm and staged; or off",
			       order);
}

static void engine_open_transports(struct wh_engine *engine)
{
	const char *list = engine->config.text[WH_SETTING_TRANSPORTS];
	uint8_t rank = 0;

	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++) {
		const struct wh_transport *transport = wh_transport(id);
		char *off = engine->transport_off[id];
		int error = 0;

		engine->rank[id] = WH_TRANSPORT_COUNT;
		if (!list_contains(engine->config.text[WH_SETTING_TRANSPORTS], transport->name)) {
			snprintf(off, WH_REFUSAL, "switched off by the setting transports (%.60s)",
				 engine->config.text[WH_SETTING_TRANSPORTS]);
			error = -ENODEV;
		} else if (transport->capabilities & WH_IS_PLAINTEXT && engine->trust.tls) {
			snprintf(off, WH_REFUSAL, "the setting tls is on, and %s does not encrypt",
				 transport->name);
			wh_warning_plaintext(engine, id);
		} else {
			error = transport->engine_open(engine, &engine->transport[id]);
			if (error)
				snprintf(off, WH_REFUSAL, "%.*s", WH_REFUSAL - 1, wh_error_text());
			else
				engine->identity.capabilities |= transport->hello;
		}
		engine->not_here[id] = error == -ENODEV;
		if (*off)
			wh_log_line(&engine->log, WH_LOG_INFO, "engine", "%s is not used: %s",
				    transport->name, off);
	}
	for (; *list; list += strcspn(list, ","), list += *list == ',') {
		char name[64];
		enum wh_transport_id id;

		snprintf(name, sizeof(name), "%.*s", (int)strcspn(list, ","), list);
		id = wh_transport_by_name(name);
		if (engine->rank[id] != WH_TRANSPORT_COUNT)
			continue; /* named before */
		engine->rank[id] = rank++;
		if (!engine->transport_off[id][0])
			engine->order[engine->order_count++] = (uint8_t)id;
	}
}

static void engine_close_transports(struct wh_engine *engine)
{
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		if (!engine->transport_off[id][0])
			wh_transport(id)->engine_close(engine, engine->transport[id]);
}

/* TLS has checksums of its own. */
static void engine_announce_records(struct wh_engine *engine)
{
	if (engine->trust.tls)
		return;
	engine->identity.capabilities |= WH_CAPABLE_RECORDS;
	if (strcmp(engine->config.text[WH_SETTING_INTEGRITY], "none") != 0)
		engine->identity.capabilities |= WH_WANTS_RECORDS;
}

/* ---- listening ------------------------------------------------------------------------------- */

/* The transport that serves connections of a role. NULL: none, or it is off. */
static const struct wh_transport *engine_transport_for(const struct wh_engine *engine,
						       uint16_t role)
{
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		if (wh_transport(id)->role == role && !engine->transport_off[id][0])
			return wh_transport(id);
	return NULL;
}

static bool engine_serves(void *engine, uint16_t role)
{
	return engine_transport_for(engine, role) != NULL;
}

static uint64_t engine_new_session(void *argument)
{
	struct wh_engine *engine = argument;

	return ++engine->next_session;
}

static const uint8_t *engine_session_key(void *engine, uint64_t id)
{
	const struct wh_session *session = wh_session_find(engine, id);

	return session ? session->key : NULL;
}

static void engine_accepted(void *engine, int fd, struct wh_channel *channel, uint64_t source,
			    const struct wh_hello *hello, uint64_t id,
			    const uint8_t key[WH_KEY_SIZE])
{
	struct wh_session *session;

	if (hello->role == WH_ROLE_CONTROL) {
		wh_session_new(engine, fd, channel, source, hello, id, key);
		return;
	}
	session = wh_session_find(engine, id);
	/* The session may have ended during the handshake. */
	if (session)
		engine_transport_for(engine, hello->role)
			->session_accept(session, fd, channel, hello);
	else
		wh_refuse(fd, channel, EACCES, "the session has ended");
}

static int engine_listen(struct wh_engine *engine, const char *listen)
{
	static const struct wh_acceptor_calls calls = {
		.serves = engine_serves,
		.session_new = engine_new_session,
		.session_key = engine_session_key,
		.accepted = engine_accepted,
	};
	const struct wh_acceptor_options options = {
		.calls = &calls,
		.engine = engine,
		.loop = &engine->loops[0],
		.config = &engine->config,
		.log = &engine->log,
		.self = &engine->identity,
		.url = engine->url,
		.listen = listen,
		.local = engine_serves(engine, WH_ROLE_LOCAL),
	};

	return wh_acceptor_open(&options, &engine->acceptor);
}

/* The setting can raise the level that the program asks for. */
static void engine_open_log(struct wh_engine *engine, const struct wh_engine_options *options)
{
	uint32_t level = options->log_level ? options->log_level : WH_LOG_INFO;
	uint32_t setting = wh_config_log_level(engine->config.text[WH_SETTING_LOG]);

	if (options->log)
		engine->log =
			(struct wh_log){ options->log, options->log_arg,
					 setting > level ? setting : level, &engine->log_limit };
	else if (setting)
		engine->log = (struct wh_log){ wh_log_stderr, NULL, setting, &engine->log_limit };
}

/* Otherwise a misspelt WHERRY_TLS would silently mean plaintext. */
static int engine_log_unknown_variables(struct wh_engine *engine)
{
	char name[WH_CONFIG_VARIABLE];
	size_t cursor = 0;
	int found;

	while ((found = wh_config_unknown(&cursor, name)) > 0)
		wh_log_line(&engine->log, WH_LOG_WARN, "engine",
			    "%s is in the environment, but no setting of this version "
			    "reads it; " WH_CONFIG_IGNORE "=1 silences this",
			    name);
	return found;
}

/* libcuda is loaded when a GPU is first needed. */
static int engine_open_cuda(struct wh_engine *engine)
{
	const char *path = engine->config.text[WH_SETTING_CUDA];
	bool off = !strcmp(path, "off") || !strcmp(path, "no");
	int error = wh_cuda_open(off ? NULL : path, &engine->cuda);

	engine->memory.cuda = engine->cuda;
	if (!error && off)
		wh_cuda_off(engine->cuda,
			    "GPUs are switched off by the setting cuda (WHERRY_CUDA)");
	return error;
}

/* ---- the registry --------------------------------------------------------------------------- */

static const char *engine_registry_url(const struct wh_engine *engine, const char *given)
{
	const char *url = given ? given : engine->config.text[WH_SETTING_REGISTRY];

	return *url && strcmp(url, "p2p") ? url : NULL;
}

/* Reject an invalid URL before anything is opened. The registry's leases need a thread. */
static int engine_check_registry(struct wh_engine *engine, const char *given)
{
	struct wh_registry_url parsed;
	const char *url = engine_registry_url(engine, given);
	int error = url ? wh_registry_url_parse(url, &parsed) : 0;

	explicit_bzero(&parsed, sizeof(parsed));
	if (url && !error && engine->turns)
		error = wh_fail(EOPNOTSUPP,
				"wh_engine_open: an engine without threads cannot use a registry, "
				"whose leases are renewed by a thread; open its peers by address");
	return error;
}

/* The address to register. An engine that listens on all addresses registers the local address from
 * which it reaches the registry. */
static int engine_reachable_address(struct wh_engine *engine, const char *url, char *out,
				    size_t size)
{
	const char *listening = engine->url + strlen("wherry://");
	bool v4 = !strncmp(listening, "0.0.0.0:", 8), any = v4 || !strncmp(listening, "[::]:", 5);
	struct sockaddr_storage there[WH_PEER_ADDRESSES], here;
	unsigned count = WH_PEER_ADDRESSES, i;
	struct wh_registry_url parsed;
	socklen_t length = sizeof(here);
	char text[64] = "";
	int fd, error;

	snprintf(out, size, "%s", listening);
	if (!any)
		return 0;
	error = wh_registry_url_parse(url, &parsed);
	if (!error)
		error = wh_rendezvous_resolve(parsed.endpoint[0], WH_RESOLVE_REMOTE, there, &count);
	explicit_bzero(&parsed, sizeof(parsed));
	if (error)
		return error;
	for (i = 0; i < count && v4 && there[i].ss_family != AF_INET; i++)
		;
	if (i == count)
		return wh_fail(EADDRNOTAVAIL,
			       "registry: it has no IPv4 address, from which to learn that of "
			       "this host; listen on an address of this host, not on 0.0.0.0");
	/* Connecting a datagram socket sends nothing; it only chooses a route. */
	fd = socket(there[i].ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&there[i], sizeof(there[i])) ||
	    getsockname(fd, (struct sockaddr *)&here, &length))
		error = wh_fail(errno, "registry: no route to it: %s", strerror(errno));
	else
		wh_address_format(text, sizeof(text), &here);
	if (fd >= 0)
		close(fd);
	if (!error)
		snprintf(out, size, "%.*s%s", (int)(strrchr(text, ':') - text), text,
			 strrchr(listening, ':'));
	return error;
}

/* Register the engine only if it was given a name: nobody would look for a default one. */
static int engine_open_registry(struct wh_engine *engine, const char *given, bool named)
{
	struct wh_registry_options options = {
		.url = engine_registry_url(engine, given),
		.lease = engine->config.number[WH_SETTING_LEASE],
		.timeout = engine->config.number[WH_SETTING_TIMEOUT],
		.self.epoch = engine->identity.epoch,
		.log = engine->log,
	};
	int error;

	if (!options.url)
		return 0;
	if (*engine->url && named) {
		memcpy(options.self.name, engine->identity.name, sizeof(options.self.name));
		error = engine_reachable_address(engine, options.url, options.self.address,
						 sizeof(options.self.address));
		if (error)
			return error;
	}
	return wh_registry_open(&options, &engine->registry);
}

static void engine_end_sessions(void *argument)
{
	struct wh_engine *engine = argument;

	wh_deferred_end(engine);
	while (!wh_list_empty(&engine->sessions))
		wh_session_end(wh_container(engine->sessions.next, struct wh_session, link), 0,
			       "the engine closes");
}

/* Free what is left when the threads have ended and the transports are closed. */
static void engine_free(struct wh_engine *engine)
{
	wh_hash_free(&engine->sessions_by_id);
	pthread_mutex_destroy(&engine->files_lock);
	pthread_mutex_destroy(&engine->lock);
	wh_worker_close(&engine->planner);
	wh_deferred_destroy(engine);
	wh_worker_close(&engine->callbacks);
	wh_region_windows_close(&engine->region_windows);
	wh_warm_up_close(engine->early);
	/* Its rings have registered slots of the GPUs' pinned memory. */
	wh_memory_domain_destroy(&engine->memory);
	wh_gpus_close(engine->gpus);
	wh_quota_table_free(&engine->quotas);
	wh_cuda_close(engine->cuda);
	wh_trust_close(&engine->trust);
	wh_turns_close(engine->turns);
	free(engine);
}

static struct wh_engine *engine_new(void)
{
	struct wh_engine *engine = calloc(1, sizeof(*engine));

	if (!engine)
		return NULL;
	pthread_mutex_init(&engine->lock, NULL);
	pthread_mutex_init(&engine->files_lock, NULL);
	wh_worker_init(&engine->callbacks, NULL);
	wh_worker_init(&engine->planner, NULL);
	wh_deferred_init(engine);
	wh_list_init(&engine->peers);
	wh_list_init(&engine->sessions);
	wh_memory_domain_init(&engine->memory);
	engine->process = getpid();
	return engine;
}

/* What comes before threads and sockets: settings, keys, GPUs (not loaded yet) and identity. */
static int engine_configure(struct wh_engine *engine, const struct wh_engine_options *options)
{
	int error = wh_config_load(&engine->config, options->config);
	engine->quotas.limit = engine->config.number[WH_SETTING_MAX_BUFFERED];

	if (!error)
		engine_open_log(engine, options);
	if (!error)
		error = engine_log_unknown_variables(engine);
	if (!error)
		error = wh_trust_open(&engine->trust, &engine->config);
	engine->identity.trust = &engine->trust;
	if (!error)
		error = engine_check_transports(&engine->config);
	if (!error)
		error = engine_check_windows(&engine->config);
	if (!error)
		error = wh_engine_check_files(&engine->config);
	if (!error)
		error = engine_open_cuda(engine);
	if (!error)
		error = wh_gpus_open(engine->cuda, &engine->config, &engine->log, engine->turns,
				     &engine->gpus);
	if (!error)
		error = wh_region_windows_open(&engine->region_windows, engine->gpus,
					       engine->config.text[WH_SETTING_WINDOW],
					       &engine->log);
	/* Without threads, the first transfer prepares what it needs. */
	if (!error && !engine->turns)
		error = wh_warm_up_open(&engine->regions, engine->gpus, &engine->log,
					&engine->early);
	if (!error)
		error = engine_learn_identity(engine, options->name);
	if (!error)
		error = engine_check_registry(engine, options->registry);
	return error;
}

static int engine_try_open(const struct wh_engine_options *given, struct wh_engine **out)
{
	struct wh_engine_options options;
	struct wh_engine *engine;
	const char *listen;
	int error;

	if (!out)
		return wh_fail(EINVAL, "wh_engine_open: out is NULL");
	error = wh_options_copy(&options, sizeof(options), given, sizeof(size_t), "wh_engine_open");
	if (error)
		return error;
	if (options.log_level > WH_LOG_DEBUG || options.flags & ~WH_ENGINE_NO_THREADS)
		return wh_fail(EINVAL, "wh_engine_open: options.%s is %u",
			       options.flags & ~WH_ENGINE_NO_THREADS ? "flags" : "log_level",
			       options.flags & ~WH_ENGINE_NO_THREADS ? options.flags :
								       options.log_level);
	engine = engine_new();
	if (!engine)
		return wh_fail(ENOMEM, "wh_engine_open: no memory");
	if (options.flags & WH_ENGINE_NO_THREADS)
		error = wh_engine_be_driven(engine);
	if (!error)
		error = engine_configure(engine, &options);
	if (error)
		goto err_free;
	engine->ours = mmap(NULL, (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (engine->ours == MAP_FAILED) {
		error = wh_fail(ENOMEM, "wh_engine_open: no memory");
		goto err_free;
	}
	madvise((void *)engine->ours, (size_t)sysconf(_SC_PAGESIZE), MADV_WIPEONFORK);
	*engine->ours = 1;
	error = wh_region_table_init(&engine->regions, sizeof(struct wh_region));
	if (error)
		goto err_unmap;
	error = engine_start_loops(engine);
	if (error)
		goto err_loops;
	error = wh_inbox_open(engine);
	if (error)
		goto err_loops;
	engine_open_transports(engine);
	engine_announce_records(engine);
	listen = options.listen ? options.listen : engine->config.text[WH_SETTING_LISTEN];
	error = engine_listen(engine, listen);
	if (error)
		goto err_transports;
	engine->statistics.opened = wh_now();
	error = wh_observer_open(engine);
	if (error)
		goto err_acceptor;
	error = engine_open_registry(engine, options.registry, options.name && *options.name);
	if (error)
		goto err_observer;
	*out = engine;
	return 0;

err_observer:
	wh_observer_close(engine);
err_acceptor:
	wh_acceptor_close(&engine->acceptor);
	wh_loop_call(&engine->loops[0], engine_end_sessions, engine);
err_transports:
	engine_close_transports(engine);
	wh_inbox_close(engine);
err_loops:
	engine_stop_loops(engine);
	wh_region_table_destroy(&engine->regions);
err_unmap:
	munmap((void *)engine->ours, (size_t)sysconf(_SC_PAGESIZE));
err_free:
	engine_free(engine);
	return error;
}

int wh_engine_open(const struct wh_engine_options *given, struct wh_engine **out)
{
	wh_fail_begin();
	return wh_fail_end(engine_try_open(given, out));
}

/* ---- close ---------------------------------------------------------------------------------- */

/* Regions of files that are leaving do not count: a file system may never let them go. */
static int engine_check_closed(struct wh_engine *engine)
{
	unsigned memory, peers = 0;
	uint32_t regions;
	int error = 0;

	pthread_mutex_lock(&engine->lock);
	regions = engine->regions.count - wh_regions_leaving(engine, NULL);
	memory = wh_memory_domain_count(&engine->memory);
	for (struct wh_list *l = engine->peers.next; l != &engine->peers; l = l->next)
		peers++;
	if (memory || peers || engine->queue_count || regions || engine->window_count)
		error = wh_fail(
			EBUSY,
			"wh_engine_close: still open are %u peers, %u queues, %u regions, %u "
			"windows and %u allocations of memory; close them first",
			peers, engine->queue_count, regions, engine->window_count, memory);
	pthread_mutex_unlock(&engine->lock);
	return error;
}

/* End the threads for files, which may wait for a file system, and those to which they post, and
 * free the engine. */
static void engine_end(struct wh_engine *engine)
{
	/* Before the loops: they may still wake the loop to which they posted last. */
	wh_file_threads_close(engine->memory.file_threads);
	wh_gpus_stop(engine->gpus);
	engine_stop_loops(engine);
	wh_regions_free_leaving(engine);
	wh_region_table_destroy(&engine->regions);
	munmap((void *)engine->ours, (size_t)sysconf(_SC_PAGESIZE));
	engine_free(engine);
}

static void *engine_end_late(void *engine)
{
	engine_end(engine);
	return NULL;
}

/* A file system does not answer: a thread waits for it and ends the engine. The program's log
 * belongs to the program from now on. False: there is no thread. */
static bool engine_leave(struct wh_engine *engine)
{
	const char *name = "a file";
	uint32_t count = wh_regions_leaving(engine, &name);
	pthread_t thread;

	wh_log_line(&engine->log, WH_LOG_WARN, "engine",
		    "wh_engine_close: the file system of %s does not answer; %u files stay open "
		    "until it does, and with them the engine's memory and threads",
		    name, count);
	engine->log.write = NULL;
	if (wh_thread_start(&thread, "wherry/close", engine_end_late, engine))
		return false;
	pthread_detach(thread);
	return true;
}

static int engine_try_close(struct wh_engine *engine)
{
	int error = wh_engine_guard(engine, "wh_engine_close");
	int64_t patience;

	if (error)
		return error;
	if (wh_engine_inside(engine))
		return wh_fail(EDEADLK,
			       "wh_engine_close: called from one of the engine's own threads");
	error = engine_check_closed(engine);
	if (error)
		return error;
	patience = engine->config.number[WH_SETTING_TIMEOUT] * WH_MS;
	wh_registry_close(engine->registry);
	wh_observer_close(engine);
	wh_acceptor_close(&engine->acceptor);
	wh_loop_call(&engine->loops[0], engine_end_sessions, engine);
	wh_regions_leave_transports(engine);
	engine_close_transports(engine);
	wh_inbox_close(engine);
	wh_warm_up_stop(engine->early);
	if (wh_file_threads_end(engine->memory.file_threads, wh_deadline(patience)) ||
	    !engine_leave(engine))
		engine_end(engine);
	return 0;
}

int wh_engine_close(struct wh_engine *engine)
{
	if (!engine)
		return 0;
	wh_fail_begin();
	return wh_fail_end(engine_try_close(engine));
}

const char *wh_engine_url(const struct wh_engine *engine)
{
	return engine ? engine->url : "";
}

const char *wh_engine_name(const struct wh_engine *engine)
{
	return engine ? engine->identity.name : "";
}

uint64_t wh_engine_epoch(const struct wh_engine *engine)
{
	return engine ? engine->identity.epoch : 0;
}
