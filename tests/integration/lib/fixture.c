/* SPDX-License-Identifier: Apache-2.0 */
/* fixture.c: an engine, a target over one of the routes, and transfers between them */
#include "fixture.h"

#include <string.h>
#include <sys/mman.h>

#include "driven.h"
#include "files.h"

static void log_line(void *arg, const struct wh_log_record *record)
{
	(void)arg;
	fprintf(stderr, "engine: %s\n", record->text);
}

static struct wh_engine *engine_open_with(const char *require, const char *listen,
					  const char *const *config, uint32_t flags)
{
	char setting[32];
	const char *all[10] = { NULL };
	struct wh_engine_options options = {
		.size = sizeof(options),
		.listen = listen,
		.config = all,
		.log = getenv("TESTS_LOG") ? log_line : NULL,
		.flags = flags,
	};
	struct wh_engine *engine;
	size_t n = 0;

	if (require) {
		snprintf(setting, sizeof(setting), "require=%s", require);
		all[n++] = setting;
	}
	for (; config && *config; config++)
		all[n++] = *config;
	want(0, wh_engine_open(&options, &engine));
	return engine;
}

struct wh_engine *engine_open(const char *require, const char *listen, const char *const *config)
{
	return engine_open_with(require, listen, config, 0);
}

void *pages_new(size_t length)
{
	void *pages =
		mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	want_true(pages != MAP_FAILED, "no memory for %zu bytes", length);
	return pages;
}

void pages_free(void *pages, size_t length)
{
	munmap(pages, length);
}

static void open_target(struct fixture *f)
{
	struct wh_memory_options kind = { .size = sizeof(kind), .kind = f->route->kind };
	struct wh_region_options named = { .size = sizeof(named),
					   .name = "target",
					   .access = ACCESS_BOTH };
	void *memory;

	if (f->route->kind == CHILD_FILE) {
		f->file = file_new(f->length + 2 * f->guard);
		want_true(f->file >= 0, "no file: %s", strerror(-f->file));
		f->target = file_map(f->file, f->length + 2 * f->guard);
		want_true(f->target, "mmap: %s", strerror(errno));
		want(0, file_region(f->engine, f->file, f->guard, f->length, &named,
				    &f->target_region));
		return;
	}
	want(0, wh_memory_alloc(f->engine, f->length + 2 * f->guard, &kind, &memory));
	f->target = memory;
	want(0, wh_region_register(f->engine, f->target + f->guard, f->length, &named,
				   &f->target_region));
}

void fixture_start_target(struct fixture *f, const struct child_options *options)
{
	struct child_options mine = { 0 };

	if (options)
		mine = *options;
	if (!mine.listen)
		mine.listen = f->route->listen;
	f->child = child_start(&mine);
	f->memory = child_memory(f->child, f->route->kind, f->length + 2 * f->guard);
	child_region(f->child, f->memory, f->guard, f->length, "target", ACCESS_BOTH, NULL);
}

void fixture_connect(struct fixture *f, const char *url)
{
	want(0, wh_peer_open(f->engine, url, NULL, &f->peer));
	want(0, wh_peer_find(f->peer, "target", PATIENCE, &f->remote));
	want_true(f->remote.length == f->length, "it is %llu",
		  (unsigned long long)f->remote.length);
}

void fixture_open_with(struct fixture *f, const struct route *route, uint64_t length,
		       const char *const *config, const struct child_options *options)
{
	memset(f, 0, sizeof(*f));
	f->route = route;
	f->length = length;
	f->guard = route == &route_shm || route == &route_shm_parts ? 0 : GUARD;
	f->engine = engine_open_with(route->require, "none", config, driven_flags("initiator"));
	driven_set(f->engine);
	if (route == &route_self || route == &route_file)
		open_target(f);
	else
		fixture_start_target(f, options);
	f->base = pages_new(2 * length + 2 * GUARD);
	f->local = f->base + GUARD;
	want(0, wh_region_register(f->engine, f->local, 2 * length, NULL, &f->region));
	fixture_connect(f, f->child ? f->child->url : "self");
}

void fixture_open(struct fixture *f, const struct route *route, uint64_t length)
{
	fixture_open_with(f, route, length, NULL, NULL);
}

void fixture_close_initiator(struct fixture *f)
{
	want(0, wh_peer_close(f->peer));
	want(0, wh_region_unregister(f->region));
	if (f->target) {
		want(0, wh_region_unregister(f->target_region));
		if (f->route->kind == CHILD_FILE) {
			munmap(f->target, f->length + 2 * f->guard);
			close(f->file);
		} else {
			want(0, wh_memory_free(f->engine, f->target));
		}
	}
	driven_set(NULL);
	want(0, wh_engine_close(f->engine));
	pages_free(f->base, 2 * f->length + 2 * GUARD);
}

void fixture_close(struct fixture *f)
{
	fixture_close_initiator(f);
	if (f->child)
		child_exit(f->child);
}

void target_fill(struct fixture *f, int64_t offset, uint64_t length, uint64_t position,
		 uint64_t seed)
{
	uint64_t at = (uint64_t)offset + f->guard;

	if (f->child)
		child_fill(f->child, f->memory, at, length, position, seed);
	else
		pattern_fill(f->target + at, length, position, seed);
}

size_t target_check(struct fixture *f, int64_t offset, uint64_t length, uint64_t position,
		    uint64_t seed)
{
	uint64_t at = (uint64_t)offset + f->guard;

	if (f->child)
		return child_check(f->child, f->memory, at, length, position, seed);
	return pattern_check(f->target + at, length, position, seed);
}

void target_fetch(struct fixture *f, int64_t offset, uint64_t length, void *out)
{
	uint64_t at = (uint64_t)offset + f->guard;

	if (f->child)
		child_fetch(f->child, f->memory, at, length, out);
	else
		memcpy(out, f->target + at, length);
}

struct wh_transfer transfer_of(const struct fixture *f, uint32_t op, uint64_t local_offset,
			       uint64_t remote_offset, uint64_t length)
{
	return (struct wh_transfer){
		.local = f->region,
		.local_offset = local_offset,
		.remote = f->remote.id,
		.remote_offset = remote_offset,
		.length = length,
		.op = op,
	};
}

struct wh_batch *batch_of(const struct fixture *f, const struct wh_transfer *transfers,
			  size_t count)
{
	struct wh_batch *batch;

	want(0, wh_batch_new(f->peer, NULL, &batch));
	if (count)
		want(0, wh_batch_add(batch, transfers, count));
	return batch;
}

int batch_run(struct wh_batch *batch)
{
	int error = wh_batch_submit(batch);

	return error ? error : batch_end(batch, 2 * PATIENCE);
}

static void *wait_in_thread(void *arg)
{
	struct waiting *waiting = arg;

	waiting->status = batch_end(waiting->batch, PATIENCE);
	return NULL;
}

void wait_begin(struct waiting *waiting, struct wh_batch *batch)
{
	waiting->batch = batch;
	want(0, pthread_create(&waiting->thread, NULL, wait_in_thread, waiting));
}

int wait_end(struct waiting *waiting)
{
	want(0, pthread_join(waiting->thread, NULL));
	return waiting->status;
}

void want_route(const struct fixture *f, struct wh_batch *batch, uint64_t bytes)
{
	struct wh_route routes[8];
	size_t count = 8;

	want(0, wh_batch_routes(batch, routes, &count));
	for (size_t i = 0; i < count; i++) {
		if (!routes[i].bytes)
			continue;
		assert_string_equal(routes[i].transport, f->route->name);
		want_true(routes[i].bytes == bytes, "%llu of %llu bytes by %s",
			  (unsigned long long)routes[i].bytes, (unsigned long long)bytes,
			  routes[i].transport);
		want_true(!strstr(routes[i].detail, f->route->detail) == (bytes < f->route->few),
			  "%llu bytes by \"%s\"; \"%s\" is for %llu and more",
			  (unsigned long long)bytes, routes[i].detail, f->route->detail,
			  (unsigned long long)f->route->few);
		return;
	}
	fail_msg("no route has moved a byte");
}

unsigned int peer_mappings(void **at, char rights[5])
{
	FILE *file = fopen("/proc/self/maps", "re");
	unsigned long start, end;
	unsigned int count = 0;
	char line[512], mode[5];

	want_true(file != NULL, "no /proc");
	while (fgets(line, sizeof(line), file)) {
		if (!strstr(line, "/memfd:wherry (") ||
		    sscanf(line, "%lx-%lx %4s", &start, &end, mode) != 3)
			continue;
		count++;
		if (at)
			*at = (void *)start;
		if (rights)
			memcpy(rights, mode, sizeof(mode));
	}
	fclose(file);
	return count;
}

int move(const struct fixture *f, uint32_t op, uint64_t local_offset, uint64_t remote_offset,
	 uint64_t length)
{
	struct wh_transfer transfer = transfer_of(f, op, local_offset, remote_offset, length);
	struct wh_batch *batch = batch_of(f, &transfer, 1);
	int status = batch_run(batch);
	uint64_t moved;

	if (!status) {
		want(0, wh_batch_progress(batch, &moved));
		want_true(moved == length, "%llu bytes are still to come",
			  (unsigned long long)(length - moved));
	}
	if (status)
		print_error("%s of %llu bytes: %s: %s\n", op == WH_READ ? "read" : "write",
			    (unsigned long long)length, strerrorname_np(-status),
			    wh_batch_error_text(batch));
	else
		want_route(f, batch, length);
	want(0, wh_batch_free(batch));
	return status;
}

/* Bytes around a target that round_trip() checks on each side, if the guard has as many. */
#define MARGIN 64

struct margins {
	uint64_t before, behind;
};

static struct margins margins_of(const struct fixture *f, uint64_t offset, uint64_t length)
{
	struct margins margins = {
		.before = f->guard + offset,
		.behind = f->guard + f->length - offset - length,
	};

	if (margins.before > MARGIN)
		margins.before = MARGIN;
	if (margins.behind > MARGIN)
		margins.behind = MARGIN;
	return margins;
}

static void round_trip_write(struct fixture *f, uint64_t local_offset, uint64_t remote_offset,
			     uint64_t length, uint64_t seed)
{
	struct margins around = margins_of(f, remote_offset, length);
	int64_t at = (int64_t)remote_offset, start = at - (int64_t)around.before;
	unsigned char *source = f->local + local_offset;
	size_t bad;

	target_fill(f, start, around.before + length + around.behind, 0, seed + 1);
	pattern_fill(source, length, seed, seed);
	want(0, move(f, WH_WRITE, local_offset, remote_offset, length));
	bad = target_check(f, at, length, seed, seed);
	want_true(bad == PATTERN_GOOD, "%llu bytes written, byte %zu is wrong",
		  (unsigned long long)length, bad);
	want_true(target_check(f, start, around.before, 0, seed + 1) == PATTERN_GOOD &&
			  target_check(f, at + (int64_t)length, around.behind,
				       around.before + length, seed + 1) == PATTERN_GOOD,
		  "bytes around the target changed, %llu bytes at %llu", (unsigned long long)length,
		  (unsigned long long)remote_offset);
	want_true(pattern_check(source, length, seed, seed) == PATTERN_GOOD,
		  "a write changed its source");
}

static void round_trip_read(struct fixture *f, uint64_t local_offset, uint64_t remote_offset,
			    uint64_t length, uint64_t seed)
{
	unsigned char *sink = f->local + f->length + local_offset;
	size_t bad;

	pattern_fill(sink - MARGIN, length + 2 * MARGIN, 0, seed + 1);
	target_fill(f, (int64_t)remote_offset, length, seed, seed);
	want(0, move(f, WH_READ, f->length + local_offset, remote_offset, length));
	bad = pattern_check(sink, length, seed, seed);
	want_true(bad == PATTERN_GOOD, "%llu bytes read, byte %zu is wrong",
		  (unsigned long long)length, bad);
	want_true(pattern_check(sink - MARGIN, MARGIN, 0, seed + 1) == PATTERN_GOOD &&
			  pattern_check(sink + length, MARGIN, MARGIN + length, seed + 1) ==
				  PATTERN_GOOD,
		  "a read changed bytes around its target");
}

void round_trip(struct fixture *f, uint64_t local_offset, uint64_t remote_offset, uint64_t length,
		uint64_t seed)
{
	round_trip_write(f, local_offset, remote_offset, length, 2 * seed);
	round_trip_read(f, local_offset, remote_offset, length, 2 * seed + 100);
}
