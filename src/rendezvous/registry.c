/* SPDX-License-Identifier: Apache-2.0 */
/* The client of registries: a thread that renews the engine's own record and looks names up. */
#include "rendezvous/registry.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/thread.h"

#define BACKOFF_FIRST (100 * WH_MS)
#define BACKOFF_MAX (5 * WH_SECOND)
/* Between two looks at another engine's lease. */
#define CONTEND_FIRST (50 * WH_MS)
#define CONTEND_MAX (500 * WH_MS)
/* Registries round leases up to seconds. */
#define CONTEND_SLACK (WH_SECOND)
#define CONTEND_LOG_EVERY                                                                          \
	(10 * WH_SECOND) /* between two log lines about the wait for another lease */
#define WATCHED_MAX 64 /* names looked up in one turn */

struct wh_registry {
	const struct wh_registry_ops *ops;
	const char *(*module_text)(void);
	void *backend;
	struct wh_registry_url url;
	char shown[96];
	int64_t lease; /* ns */
	struct wh_registry_record self;
	struct wh_log log;

	pthread_t thread;
	int wake;
	atomic_bool stop;

	pthread_mutex_t lock; /* below */
	pthread_cond_t changed;
	struct wh_list asks; /* to be answered at once */
	struct wh_list watched; /* to be answered when another engine has the name */
	bool fresh; /* `watched` has one that has not been looked up yet */
	bool settled; /* the first try to register has ended */
	int error; /* how */
	char text[WH_TEXT_MAX];

	/* The thread's only. */
	bool held; /* the name is this engine's */
	bool taken_logged; /* "the name is taken" has been logged */
	bool down; /* the registry did not answer the last request */
	int64_t failed_at; /* time of that request */
	int64_t renew_at, down_until, look_at, backoff;
	int64_t contend_until; /* 0: no other engine has the name */
	uint64_t contend_holder; /* epoch of the engine that has it */
	int64_t contend_logged; /* time of the last log line about it */
	char names[WATCHED_MAX][WH_REGISTRY_NAME_MAX];
};

/* ---- the module ---------------------------------------------------------------------------- */

static int registry_open_module(const char *shown, const struct wh_registry_module **out)
{
	wh_registry_module_fn *entry;
	void *symbol;

	if (wh_registry_module_load((const void *)wh_registry_open, "wh_registry_module", &symbol))
		return wh_fail(ELIBACC, "registry %.60s: %.180s", shown, wh_fail_text());
	/* ISO C does not convert data pointers to function pointers. */
	*(void **)&entry = symbol;
	*out = entry();
	if ((*out)->version != WH_REGISTRY_MODULE)
		return wh_fail(ELIBACC,
			       "registry %.60s: libwherry-registry.so.0 is from another version of "
			       "Wherry",
			       shown);
	return 0;
}

static const struct wh_registry_ops *registry_find_ops(const struct wh_registry_module *module,
						       const char *scheme)
{
	for (const struct wh_registry_ops *const *ops = module->ops; *ops; ops++)
		if (!strcmp((*ops)->scheme, scheme))
			return *ops;
	return NULL;
}

/* ---- logging ------------------------------------------------------------------------------- */

/* The backend's text names the registry. */
static void registry_log_failure(struct wh_registry *registry)
{
	wh_log_line(&registry->log, WH_LOG_INFO, "registry",
		    "%s; trying again, existing connections are not affected",
		    registry->module_text());
}

/* Between 3/4 and 5/4 of the duration: spreads engines that started together. */
static int64_t duration_jitter(int64_t duration)
{
	uint32_t number = 1u << 31;

	if (getrandom(&number, sizeof(number), GRND_NONBLOCK) < 0)
		number = 1u << 31;
	return duration - duration / 4 + (int64_t)((double)duration / 2 * number / UINT32_MAX);
}

/* Keep track of whether the registry answers, and of the back-off. */
static void registry_learn(struct wh_registry *registry, int error)
{
	bool answered = !error || error == -ENOENT || error == -EEXIST;

	if (error == -ECANCELED)
		return;
	if (answered) {
		if (registry->down) {
			wh_log_line(&registry->log, WH_LOG_INFO, "registry", "%s answers again",
				    registry->shown);
			/* The lease may have expired, and watched names may have changed. */
			registry->renew_at = registry->look_at = 0;
		}
		registry->down = false;
		registry->down_until = 0;
		registry->backoff = BACKOFF_FIRST;
		return;
	}
	if (!registry->down)
		registry_log_failure(registry);
	registry->down = true;
	registry->failed_at = wh_now();
	registry->down_until = registry->failed_at + duration_jitter(registry->backoff);
	registry->backoff =
		registry->backoff * 2 > BACKOFF_MAX ? BACKOFF_MAX : registry->backoff * 2;
}

/* ---- the engine's own record --------------------------------------------------------------- */

static void registry_settle(struct wh_registry *registry, int error, const char *text)
{
	pthread_mutex_lock(&registry->lock);
	if (!registry->settled) {
		registry->settled = true;
		registry->error = error;
		snprintf(registry->text, sizeof(registry->text), "%s", text);
		pthread_cond_broadcast(&registry->changed);
	}
	pthread_mutex_unlock(&registry->lock);
}

/* wh_engine_open() is waiting: log what for. */
static void registry_log_waiting(struct wh_registry *registry,
				 const struct wh_registry_record *holder, int64_t now)
{
	int64_t left = (registry->contend_until - now + WH_SECOND - 1) / WH_SECOND;

	if (registry->contend_logged && now < registry->contend_logged + CONTEND_LOG_EVERY)
		return;
	registry->contend_logged = now;
	wh_log_line(&registry->log, WH_LOG_WARN, "registry",
		    "%s: %s is registered for an earlier engine, at %s: waiting for its lease to "
		    "end, at most %" PRId64 " s more",
		    registry->shown, registry->self.name, holder->address, left);
}

/* Another engine has the name. It may be dead, with a lease that has not expired yet: an engine
 * that renews its lease, or registers anew, is alive. */
static void registry_contend(struct wh_registry *registry, const struct wh_registry_record *holder)
{
	char text[WH_TEXT_MAX];
	int64_t now = wh_now(), step;

	registry->held = false;
	if (!registry->settled &&
	    (!registry->contend_until || holder->epoch == registry->contend_holder)) {
		if (!registry->contend_until) {
			registry->contend_holder = holder->epoch;
			registry->contend_until = now + holder->lease * WH_MS + CONTEND_SLACK;
		}
		if (now < registry->contend_until) {
			registry_log_waiting(registry, holder, now);
			step = holder->lease * WH_MS / 10;
			step = step < CONTEND_FIRST ? CONTEND_FIRST : step;
			registry->renew_at = now + (step > CONTEND_MAX ? CONTEND_MAX : step);
			return;
		}
	}
	snprintf(text, sizeof(text),
		 "registry %.50s: the name \"%s\" is taken by a live engine at %.60s; "
		 "choose another name",
		 registry->shown, registry->self.name, holder->address);
	registry_settle(registry, -EEXIST, text);
	if (!registry->taken_logged)
		wh_log_line(
			&registry->log, WH_LOG_WARN, "registry",
			"%s: the name %s is taken by an engine at %s; peers will not find this one",
			registry->shown, registry->self.name, holder->address);
	registry->taken_logged = true;
	registry->renew_at = now + registry->lease;
}

/* Claim the name, if need be from an engine whose process has ended: its lease proves nothing more.
 */
static int registry_claim(struct wh_registry *registry, struct wh_registry_record *holder)
{
	const struct wh_registry_ops *ops = registry->ops;
	struct wh_registry_record dead;
	int error = ops->claim(registry->backend, &registry->self, NULL, holder);

	if (error != -EEXIST || !wh_process_has_ended(&holder->process))
		return error;
	dead = *holder;
	wh_log_line(&registry->log, WH_LOG_INFO, "registry",
		    "%s: %s is registered for process %" PRId64
		    ", which has ended: taking the name over",
		    registry->shown, registry->self.name, dead.process.pid);
	return ops->claim(registry->backend, &registry->self, &dead, holder);
}

static void registry_renew(struct wh_registry *registry)
{
	struct wh_registry_record holder = { .lease = 0 };
	int error = -ENOENT;

	if (registry->held) {
		registry->self.beat++;
		error = registry->ops->keep(registry->backend, &registry->self);
		if (error == -ENOENT)
			wh_log_line(&registry->log, WH_LOG_INFO, "registry",
				    "%s has lost the record of %s: registering again",
				    registry->shown, registry->self.name);
	}
	/* keep() does not return the record of the engine that has the name. */
	if (error == -ENOENT || error == -EEXIST)
		error = registry_claim(registry, &holder);
	registry_learn(registry, error);
	if (error == -EEXIST) {
		registry_contend(registry, &holder);
	} else if (error) {
		registry_settle(registry, error, registry->module_text());
		registry->renew_at = registry->down_until;
	} else {
		if (registry->taken_logged)
			wh_log_line(&registry->log, WH_LOG_INFO, "registry",
				    "%s: the name %s is this engine's again", registry->shown,
				    registry->self.name);
		registry->held = true;
		registry->taken_logged = false;
		registry->renew_at = wh_now() + duration_jitter(registry->lease / 3);
		registry_settle(registry, 0, "");
	}
}

/* ---- look-ups ------------------------------------------------------------------------------ */

static bool list_contains(const struct wh_list *head, const struct wh_list *link)
{
	for (const struct wh_list *l = head->next; l != head; l = l->next)
		if (l == link)
			return true;
	return false;
}

/* Look the name up, without the lock. -EHOSTDOWN: the registry has just failed to answer. */
static int registry_look_up(struct wh_registry *registry, const char *name, int64_t not_before,
			    struct wh_registry_record *found)
{
	int error;

	if (registry->down && wh_now() < not_before)
		return -EHOSTDOWN;
	error = registry->ops->find(registry->backend, name, found);
	registry_learn(registry, error);
	return error;
}

static void ask_finish(struct wh_registry *registry, struct wh_registry_ask *ask, int error,
		       const struct wh_registry_record *found)
{
	wh_list_remove(&ask->link);
	ask->error = error;
	if (!error)
		ask->found = *found;
	else if (error == -ENOENT)
		snprintf(ask->text, sizeof(ask->text), "registry %s: no engine has the name \"%s\"",
			 registry->shown, ask->name);
	else if (error == -EHOSTDOWN)
		snprintf(ask->text, sizeof(ask->text), "registry %s: it does not answer",
			 registry->shown);
	else
		snprintf(ask->text, sizeof(ask->text), "%s", registry->module_text());
	ask->done(ask);
}

static void registry_answer_asks(struct wh_registry *registry)
{
	struct wh_registry_record found;
	struct wh_registry_ask *ask;
	char name[WH_REGISTRY_NAME_MAX];
	int error;

	pthread_mutex_lock(&registry->lock);
	while (!wh_list_empty(&registry->asks) && !atomic_load(&registry->stop)) {
		ask = wh_container(registry->asks.next, struct wh_registry_ask, link);
		memcpy(name, ask->name, sizeof(name));
		pthread_mutex_unlock(&registry->lock);
		/* A thread waits for this one, so it does not wait for the whole back-off. */
		error = registry_look_up(registry, name, registry->failed_at + BACKOFF_FIRST,
					 &found);
		pthread_mutex_lock(&registry->lock);
		/* It may have been cancelled meanwhile, and its memory used for another one. */
		if (list_contains(&registry->asks, &ask->link) && !strcmp(ask->name, name))
			ask_finish(registry, ask, error, &found);
	}
	pthread_mutex_unlock(&registry->lock);
}

/* Collect the watched names, each once, WATCHED_MAX at most: the others follow when some of these
 * have been answered. */
static size_t registry_collect_watched(struct wh_registry *registry)
{
	size_t count = 0, i;

	pthread_mutex_lock(&registry->lock);
	if (registry->fresh)
		registry->look_at = 0;
	registry->fresh = false;
	for (struct wh_list *l = registry->watched.next;
	     l != &registry->watched && count < WATCHED_MAX; l = l->next) {
		const struct wh_registry_ask *ask = wh_container(l, struct wh_registry_ask, link);

		for (i = 0; i < count && strcmp(registry->names[i], ask->name); i++)
			;
		if (i == count)
			memcpy(registry->names[count++], ask->name, sizeof(ask->name));
	}
	pthread_mutex_unlock(&registry->lock);
	return count;
}

static void registry_answer_watched(struct wh_registry *registry, size_t count)
{
	struct wh_registry_record found;
	struct wh_list *next;

	for (size_t i = 0; i < count && !atomic_load(&registry->stop); i++) {
		if (registry_look_up(registry, registry->names[i], registry->down_until, &found))
			continue;
		pthread_mutex_lock(&registry->lock);
		for (struct wh_list *l = registry->watched.next; l != &registry->watched;
		     l = next) {
			struct wh_registry_ask *ask = wh_container(l, struct wh_registry_ask, link);

			next = l->next;
			if (!strcmp(ask->name, registry->names[i]) && ask->unlike != found.epoch)
				ask_finish(registry, ask, 0, &found);
		}
		pthread_mutex_unlock(&registry->lock);
	}
}

/* ---- the thread ---------------------------------------------------------------------------- */

static int registry_sleep(struct wh_registry *registry, int64_t until, size_t watched)
{
	struct pollfd wake = { .fd = registry->wake, .events = POLLIN };
	int64_t now = wh_now(), left = until - now > 0 ? until - now : 0;
	uint64_t count;
	ssize_t rc;
	int changed = 0;

	if (registry->ops->wait && !registry->down)
		changed = registry->ops->wait(registry->backend, registry->wake, left,
					      registry->names, watched);
	else
		poll(&wake, 1,
		     (int)((left + WH_MS - 1) / WH_MS < 3600000 ? (left + WH_MS - 1) / WH_MS :
								  3600000));
	rc = read(registry->wake, &count, sizeof(count));
	(void)rc;
	return changed > 0;
}

static void *registry_run(void *argument)
{
	struct wh_registry *registry = argument;
	int64_t until;
	size_t watched;

	while (!atomic_load(&registry->stop)) {
		if (*registry->self.name && wh_now() >= registry->renew_at)
			registry_renew(registry);
		registry_answer_asks(registry);
		watched = registry_collect_watched(registry);
		if (watched && wh_now() >= registry->look_at) {
			registry_answer_watched(registry, watched);
			registry->look_at = wh_now() + duration_jitter(registry->lease / 3);
			watched = registry_collect_watched(registry);
		}
		until = *registry->self.name ? registry->renew_at : INT64_MAX;
		if (watched && registry->look_at < until)
			until = registry->look_at;
		if (registry_sleep(registry, until, watched))
			registry->look_at = 0;
	}
	/* Release the name on this thread, which blocks all signals; `stop` would cancel the call.
	 */
	atomic_store(&registry->stop, false);
	if (registry->held && !registry->down)
		registry->ops->release(registry->backend, &registry->self);
	registry->ops->close(registry->backend);
	registry->backend = NULL;
	return NULL;
}

static void registry_wake(struct wh_registry *registry)
{
	uint64_t one = 1;
	ssize_t rc = write(registry->wake, &one, sizeof(one));

	(void)rc;
}

/* ---- look-ups by other threads ------------------------------------------------------------- */

void wh_registry_ask(struct wh_registry *registry, struct wh_registry_ask *ask)
{
	pthread_mutex_lock(&registry->lock);
	if (!ask->link.next) {
		wh_list_append(ask->unlike ? &registry->watched : &registry->asks, &ask->link);
		registry->fresh |= ask->unlike != 0;
	}
	pthread_mutex_unlock(&registry->lock);
	registry_wake(registry);
}

void wh_registry_forget(struct wh_registry *registry, struct wh_registry_ask *ask)
{
	pthread_mutex_lock(&registry->lock);
	wh_list_remove(&ask->link);
	pthread_mutex_unlock(&registry->lock);
}

/* Somebody who waits for the answer. */
struct waiter {
	struct wh_registry_ask ask;
	struct wh_registry *registry;
	bool done;
};

static void wake_waiter(struct wh_registry_ask *ask)
{
	struct waiter *waiter = wh_container(ask, struct waiter, ask);

	waiter->done = true;
	pthread_cond_broadcast(&waiter->registry->changed);
}

int wh_registry_find(struct wh_registry *registry, const char *name, int64_t deadline,
		     struct wh_registry_record *out)
{
	struct waiter waiter = { .ask.done = wake_waiter, .registry = registry };
	struct timespec until = { deadline / WH_SECOND, deadline % WH_SECOND };
	int late = 0;

	if (!wh_registry_name_valid(name))
		return wh_fail(EINVAL,
			       "\"%.80s\" can be no engine's name: wants 1 to 63 of A-Z a-z 0-9 "
			       ". _ -",
			       name);
	snprintf(waiter.ask.name, sizeof(waiter.ask.name), "%s", name);
	wh_registry_ask(registry, &waiter.ask);
	pthread_mutex_lock(&registry->lock);
	while (!waiter.done && !late)
		late = deadline == INT64_MAX ?
			       pthread_cond_wait(&registry->changed, &registry->lock) :
			       pthread_cond_timedwait(&registry->changed, &registry->lock, &until);
	wh_list_remove(&waiter.ask.link);
	pthread_mutex_unlock(&registry->lock);
	if (!waiter.done)
		return wh_fail(ETIMEDOUT, "registry %s does not answer", registry->shown);
	if (waiter.ask.error)
		return wh_fail(-waiter.ask.error, "%s", waiter.ask.text);
	*out = waiter.ask.found;
	return 0;
}

/* ---- open and close ------------------------------------------------------------------------ */

static void registry_free(struct wh_registry *registry)
{
	if (registry->backend)
		registry->ops->close(registry->backend);
	if (registry->wake >= 0)
		close(registry->wake);
	pthread_mutex_destroy(&registry->lock);
	pthread_cond_destroy(&registry->changed);
	/* It holds the password. */
	explicit_bzero(&registry->url, sizeof(registry->url));
	free(registry);
}

static int registry_new(const struct wh_registry_options *options, struct wh_registry **out)
{
	struct wh_registry *registry = calloc(1, sizeof(*registry));
	pthread_condattr_t clock;

	if (!registry)
		return wh_fail(ENOMEM, "registry: no memory");
	registry->lease = options->lease * WH_MS;
	registry->self = options->self;
	registry->self.lease = options->lease;
	wh_process_identify(&registry->self.process);
	registry->log = options->log;
	registry->backoff = BACKOFF_FIRST;
	registry->settled = !*options->self.name;
	wh_registry_url_show(options->url, registry->shown, sizeof(registry->shown));
	wh_list_init(&registry->asks);
	wh_list_init(&registry->watched);
	pthread_mutex_init(&registry->lock, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&registry->changed, &clock);
	pthread_condattr_destroy(&clock);
	registry->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (registry->wake < 0) {
		int error = errno;

		registry_free(registry);
		return wh_fail(error, "registry: eventfd: %s", strerror(error));
	}
	*out = registry;
	return 0;
}

static int registry_open_backend(struct wh_registry *registry,
				 const struct wh_registry_options *options)
{
	const struct wh_registry_setup setup = { &registry->url, options->timeout,
						 &registry->stop };
	const struct wh_registry_module *module = NULL;
	int error = wh_registry_url_parse(options->url, &registry->url);

	if (!error && *options->self.name && !wh_registry_name_valid(options->self.name))
		return wh_fail(EINVAL,
			       "registry: the engine's name \"%s\" cannot be registered: wants "
			       "1 to 63 of A-Z a-z 0-9 . _ -, and not an IPv4 address",
			       options->self.name);
	if (!error)
		error = registry_open_module(registry->shown, &module);
	if (error)
		return error;
	registry->module_text = module->text;
	registry->ops = registry_find_ops(module, registry->url.scheme);
	if (!registry->ops)
		return wh_fail(ELIBACC, "registry %s: libwherry-registry.so.0 was built without %s",
			       registry->shown, registry->url.scheme);
	error = registry->ops->open(&setup, &registry->backend);
	return error ? wh_fail(-error, "%s", registry->module_text()) : 0;
}

static int registry_start_thread(struct wh_registry *registry)
{
	int error = wh_thread_start(&registry->thread, "wherry/registry", registry_run, registry);

	return error ? wh_fail(error, "registry: no thread: %s", strerror(error)) : 0;
}

int wh_registry_open(const struct wh_registry_options *options, struct wh_registry **out)
{
	struct wh_registry *registry = NULL;
	char text[WH_TEXT_MAX];
	int error = registry_new(options, &registry);

	if (error)
		return error;
	error = registry_open_backend(registry, options);
	if (!error)
		error = registry_start_thread(registry);
	if (error) {
		registry_free(registry);
		return error;
	}
	pthread_mutex_lock(&registry->lock);
	while (!registry->settled)
		pthread_cond_wait(&registry->changed, &registry->lock);
	error = registry->error;
	memcpy(text, registry->text, sizeof(text));
	pthread_mutex_unlock(&registry->lock);
	if (error) {
		wh_registry_close(registry);
		return wh_fail(-error, "%s", text);
	}
	*out = registry;
	return 0;
}

void wh_registry_close(struct wh_registry *registry)
{
	if (!registry)
		return;
	atomic_store(&registry->stop, true);
	registry_wake(registry);
	pthread_join(registry->thread, NULL);
	registry_free(registry);
}
