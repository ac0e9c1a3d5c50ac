/* SPDX-License-Identifier: Apache-2.0 */
/* The registry that engines find each other by: what libwherry-registry.so would answer, from a
 * table of the world. It does not answer some hosts for a while, loses its table, tells of changes
 * late, and may do what it was asked without the asker hearing of it. */
#include <errno.h>
#include <string.h>

#include "calls.h"
#include "rendezvous/registry.h"
#include "world.h"

#define ENTRIES 16
#define LOOK (20 * SIM_MS) /* between two looks of who waits for a change */
#define STEP (5 * SIM_MS) /* between two looks of who gets no answer whether it shall stop */

struct entry {
	struct wh_registry_record record;
	int node; /* whose record it is */
	int64_t until; /* its lease; 0: none has the name */
	int64_t changed; /* when those who wait hear of it */
};

struct backend {
	int64_t timeout; /* ns */
	const atomic_bool *stop;
	int64_t looked; /* when it began to wait last */
};

static struct entry entries[ENTRIES];
static int64_t down_until, cut_until[SIM_HOSTS];
static const char *text = "";

void sim_registry_cut(int host, int64_t ns)
{
	cut_until[host] = sim_time + ns;
}

void sim_registry_down(int64_t ns)
{
	down_until = sim_time + ns;
}

void sim_registry_forget(void)
{
	sim_trace("# the registry has lost its table");
	for (int i = 0; i < ENTRIES; i++)
		entries[i].until = 0;
}

void sim_registry_heal(void)
{
	memset(cut_until, 0, sizeof(cut_until));
	down_until = 0;
}

static int fails(int error, const char *why)
{
	text = why;
	return error;
}

/* ---- requests -------------------------------------------------------------------------------- */

static bool answers(void)
{
	const struct node *node = node_of(node_self());

	return node->alive && !node_is_down(node->host) && cut_until[node->host] <= sim_time;
}

/* The way to the registry, or back. */
static int travel(const struct backend *backend)
{
	int64_t end = sim_time + backend->timeout;

	sim_sleep(sim_options.latency_us * 1000LL + (int64_t)sim_draw_world(2 * SIM_MS));
	if (down_until > sim_time)
		return fails(-ECONNREFUSED, "the simulated registry is down");
	while (!answers()) {
		if (atomic_load(backend->stop))
			return fails(-ECANCELED, "the look-up was stopped");
		if (sim_time >= end)
			return fails(-ETIMEDOUT, "the simulated registry does not answer");
		sim_sleep(STEP);
	}
	return 0;
}

/* The entry of a name, from the first time that it is named. */
static struct entry *entry_find(const char *name)
{
	struct entry *entry = entries;

	while (entry->record.name[0] && strcmp(entry->record.name, name) != 0)
		if (++entry == entries + ENTRIES)
			sim_die("more than %d names", ENTRIES);
	snprintf(entry->record.name, sizeof(entry->record.name), "%s", name);
	return entry;
}

static bool entry_is_held(const struct entry *entry, const struct wh_registry_record *record)
{
	return entry->until > sim_time && entry->record.epoch != record->epoch;
}

static void entry_write(struct entry *entry, const struct wh_registry_record *record)
{
	if (entry->record.epoch != record->epoch || entry->until <= sim_time)
		entry->changed = sim_time + (int64_t)sim_draw_world(sim_chance(50) ? 10 * SIM_SEC :
										     10 * SIM_MS);
	entry->record = *record;
	entry->node = node_self();
	entry->until = sim_time + record->lease * SIM_MS;
}

/* ---- what the module has --------------------------------------------------------------------- */

static int backend_open(const struct wh_registry_setup *setup, void **out)
{
	struct backend *backend = calloc(1, sizeof(*backend));

	backend->timeout = setup->timeout * SIM_MS;
	backend->stop = setup->stop;
	*out = backend;
	return 0;
}

static void backend_close(void *backend)
{
	free(backend);
}

static int backend_claim(void *backend, const struct wh_registry_record *record,
			 const struct wh_registry_record *dead, struct wh_registry_record *holder)
{
	struct entry *entry = entry_find(record->name);
	int error = travel(backend);

	if (error)
		return error;
	if (entry_is_held(entry, record) && !(dead && entry->record.epoch == dead->epoch)) {
		*holder = entry->record;
		error = fails(-EEXIST, "the name is taken");
	} else {
		if (entry_is_held(entry, record) && process_runs(entry->node))
			sim_fail("name", "%s is taken from an engine that lives", record->name);
		entry_write(entry, record);
	}
	sim_trace("registry: claim %s: %d", record->name, error);
	return travel(backend) ? -ETIMEDOUT : error;
}

static int backend_keep(void *backend, const struct wh_registry_record *record)
{
	struct entry *entry = entry_find(record->name);
	int error = travel(backend);

	if (error)
		return error;
	if (entry_is_held(entry, record))
		error = fails(-EEXIST, "the name is taken");
	else if (entry->until <= sim_time)
		error = fails(-ENOENT, "the lease has expired");
	else
		entry_write(entry, record);
	sim_trace("registry: keep %s: %d", record->name, error);
	return travel(backend) ? -ETIMEDOUT : error;
}

static int backend_release(void *backend, const struct wh_registry_record *record)
{
	struct entry *entry = entry_find(record->name);
	int error = travel(backend);

	if (!error && !entry_is_held(entry, record))
		entry->until = 0;
	return error;
}

static int backend_find(void *backend, const char *name, struct wh_registry_record *out)
{
	const struct entry *entry = entry_find(name);
	int error = travel(backend);

	if (error)
		return error;
	if (entry->until <= sim_time)
		error = fails(-ENOENT, "no engine has the name");
	else
		*out = entry->record;
	sim_trace("registry: find %s: %d", name, error);
	return travel(backend) ? -ETIMEDOUT : error;
}

static bool has_news(const struct backend *backend, const char (*names)[WH_REGISTRY_NAME_MAX],
		     size_t count)
{
	for (size_t i = 0; i < count && answers(); i++) {
		const struct entry *entry = entry_find(names[i]);

		if (entry->changed > backend->looked && entry->changed <= sim_time)
			return true;
	}
	return false;
}

static int backend_wait(void *argument, int wake, int64_t timeout,
			const char (*names)[WH_REGISTRY_NAME_MAX], size_t count)
{
	struct backend *backend = argument;
	struct pollfd look = { .fd = wake, .events = POLLIN };
	int64_t end = timeout < INT64_MAX - sim_time ? sim_time + timeout : INT64_MAX;
	bool news;

	while (!(news = has_news(backend, names, count)) && sim_time < end) {
		int64_t left = end - sim_time < 60 * SIM_SEC ? end - sim_time : 60 * SIM_SEC;

		left = count && left > LOOK ? LOOK : left;
		if (sim_poll(&look, 1, (int)((left + SIM_MS - 1) / SIM_MS)) != 0)
			break;
	}
	backend->looked = sim_time;
	return news;
}

static const char *backend_text(void)
{
	return text;
}

/* One kind that says when something changes, and one that does not. */
static const struct wh_registry_ops asked = {
	.scheme = "http",
	.open = backend_open,
	.close = backend_close,
	.claim = backend_claim,
	.keep = backend_keep,
	.release = backend_release,
	.find = backend_find,
};
static const struct wh_registry_ops watching = {
	.scheme = "etcd",
	.open = backend_open,
	.close = backend_close,
	.claim = backend_claim,
	.keep = backend_keep,
	.release = backend_release,
	.find = backend_find,
	.wait = backend_wait,
};

static const struct wh_registry_module *module_get(void)
{
	static const struct wh_registry_ops *const ops[] = { &asked, &watching, NULL };
	static const struct wh_registry_module module = { WH_REGISTRY_MODULE, ops, backend_text };

	return &module;
}

/* ---- opening it ------------------------------------------------------------------------------ */

void *registry_library(const char *path)
{
	return strstr(path, "libwherry-registry.so") ? entries : NULL;
}

void *registry_function(const void *handle, const char *name)
{
	wh_registry_module_fn *entry = module_get;
	void *symbol;

	(void)name; /* the module has one */
	if (handle != entries)
		return NULL;
	/* ISO C does not convert function pointers to data pointers. */
	memcpy(&symbol, &entry, sizeof(symbol));
	return symbol;
}
