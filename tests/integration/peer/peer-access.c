/* SPDX-License-Identifier: Apache-2.0 */
/* peer-access.c: access rights on one host: other users, read-only and unpublished memory */
#include <sys/wait.h>

#include "lib/fixture.h"
#include "lib/yama.h"

#define LENGTH (64 * KIB)
#define NOBODY 65534

/* This process owns the memory; a child that has changed its user asks for it. */
struct owner {
	struct wh_engine *engine;
	struct wh_region *region;
	void *memory;
	const struct route *route;
};

static void owner_open(struct owner *owner, const struct route *route, const char *setting)
{
	const char *const config[] = { setting, NULL };
	struct wh_memory_options kind = { .size = sizeof(kind), .kind = route->kind };
	struct wh_region_options named = { .size = sizeof(named),
					   .name = "target",
					   .access = ACCESS_BOTH };

	owner->route = route;
	owner->engine = engine_open(NULL, NULL, config);
	if (route->kind == CHILD_FOREIGN)
		owner->memory = pages_new(LENGTH);
	else
		want(0, wh_memory_alloc(owner->engine, LENGTH, &kind, &owner->memory));
	want(0, wh_region_register(owner->engine, owner->memory, LENGTH, &named, &owner->region));
}

static void owner_close(struct owner *owner)
{
	want(0, wh_region_unregister(owner->region));
	if (owner->route->kind == CHILD_FOREIGN)
		pages_free(owner->memory, LENGTH);
	else
		want(0, wh_memory_free(owner->engine, owner->memory));
	want(0, wh_engine_close(owner->engine));
}

/* The target holds the bytes that an initiator has written. */
static void want_written(const struct owner *owner)
{
	size_t bad;

	hidden_begin();
	bad = pattern_check(owner->memory, LENGTH, 0, 5);
	memset(owner->memory, 0, LENGTH);
	hidden_end();
	want_true(bad == PATTERN_GOOD, "byte %zu is wrong", bad);
}

static struct child *initiator_as(const struct child_options *options, const char *url,
				  struct child_transfer *transfer)
{
	struct child *child = child_start(options);
	int memory = child_memory(child, CHILD_FOREIGN, LENGTH);
	char text[256];

	child_fill(child, memory, 0, LENGTH, 0, 5);
	transfer->peer = child_peer(child, url, text);
	want_true(transfer->peer >= 0, "it cannot connect: %s", text);
	transfer->region = child_region(child, memory, 0, LENGTH, NULL, 0, NULL);
	transfer->remote = "target";
	transfer->length = LENGTH;
	return child;
}

static struct child *initiator_start(uid_t user, const char *setting, const char *url,
				     struct child_transfer *transfer)
{
	return initiator_as(&(struct child_options){ .user = user, .config = { setting } }, url,
			    transfer);
}

/* Another user's process cannot use shm. tcp serves it, and the explanation says why; if shm is
 * required, the error contains the same reason. */
static void another_user(const struct route *route)
{
	struct child_transfer transfer = { .op = WH_WRITE };
	struct child_result result;
	struct child *child;
	struct owner owner;
	char first;

	owner_open(&owner, route, SHARED_KEY);
	child = initiator_start(NOBODY, SHARED_KEY, wh_engine_url(owner.engine), &transfer);
	want_true(child_transfer(child, &transfer, &result) == 0, "%s", result.text);
	assert_string_equal(result.transport, "tcp");
	want_true(strstr(result.explain, "shm: refused: ") && strstr(result.explain, "user"),
		  "it says: %s", result.explain);
	want_written(&owner);
	transfer.require = "shm";
	want(-EOPNOTSUPP, child_transfer(child, &transfer, &result));
	want_true(strstr(result.text, "shm") && strstr(result.text, "user"), "it says: %s",
		  result.text);
	hidden_begin();
	first = ((char *)owner.memory)[0];
	hidden_end();
	want(0, first);
	child_exit(child);
	owner_close(&owner);
}

static void user__memfd(void **state)
{
	(void)state;
	another_user(&route_shm);
}

static void user__process_vm(void **state)
{
	(void)state;
	another_user(&route_vm);
}

/* Two processes of one ordinary user reach each other: root is not needed. */
static void same_user(const struct route *route)
{
	struct child_options options = { .user = NOBODY, .listen = route->listen };
	struct child_transfer transfer = { .op = WH_WRITE, .require = route->require };
	struct child *target = child_start(&options), *initiator;
	struct child_result result;
	int memory = child_memory(target, route->kind, LENGTH);

	child_region(target, memory, 0, LENGTH, "target", ACCESS_BOTH, NULL);
	initiator = initiator_start(NOBODY, NULL, target->url, &transfer);
	want_true(child_transfer(initiator, &transfer, &result) == 0, "%s", result.text);
	assert_string_equal(result.transport, route->name);
	want_true(strstr(result.explain, route->detail), "it says: %s", result.explain);
	want_true(child_check(target, memory, 0, LENGTH, 0, 5) == PATTERN_GOOD, "wrong bytes");
	child_exit(initiator);
	child_exit(target);
}

static void nobody__memfd(void **state)
{
	(void)state;
	same_user(&route_shm);
}

static void nobody__tcp(void **state)
{
	(void)state;
	same_user(&route_tcp4);
}

/* What Yama refuses to processes of one user goes by tcp; the explanation names Yama and the
 * remedy, or without Yama what the kernel reports. Mappings still work. */
static void yama__named(void **state)
{
	struct child_options options = { .user = NOBODY, .yama = true };
	struct child *target = child_start(&options), *initiator;
	struct child_transfer transfer = { .op = WH_WRITE };
	struct child_result result;
	int scope = yama_scope(), memory = child_memory(target, CHILD_FOREIGN, LENGTH);
	int shared = child_memory(target, WH_MEMORY_SHARED, LENGTH);
	char says[96];

	(void)state;
	snprintf(says, sizeof(says),
		 "(Yama: kernel.yama.ptrace_scope is %d; set 0 or add CAP_SYS_PTRACE)",
		 scope ? scope : 1);
	child_region(target, memory, 0, LENGTH, "target", ACCESS_BOTH, NULL);
	child_region(target, shared, 0, LENGTH, "shared", ACCESS_BOTH, NULL);
	initiator = initiator_as(&options, target->url, &transfer);
	want_true(child_transfer(initiator, &transfer, &result) == 0, "%s", result.text);
	assert_string_equal(result.transport, "tcp");
	want_true(strstr(result.explain, "; process_vm on process ") &&
			  strstr(result.explain, says),
		  "it says: %s", result.explain);
	want_true(child_check(target, memory, 0, LENGTH, 0, 5) == PATTERN_GOOD, "wrong bytes");
	transfer.require = "shm";
	want(-EOPNOTSUPP, child_transfer(initiator, &transfer, &result));
	want_true(strstr(result.text, says), "it says: %s", result.text);
	transfer.remote = "shared";
	want_true(child_transfer(initiator, &transfer, &result) == 0, "%s", result.text);
	assert_string_equal(result.transport, "shm");
	want_true(child_check(target, shared, 0, LENGTH, 0, 5) == PATTERN_GOOD, "wrong bytes");
	child_exit(initiator);
	child_exit(target);
}

static const char *missing_yama(void)
{
	int status = 0;
	pid_t pid;

	if (geteuid() != 0)
		return "only root can become another user";
	if (yama_scope())
		return NULL;
	pid = fork();
	if (pid == 0)
		_exit(yama_pretend() ? 1 : 0);
	return pid > 0 && waitpid(pid, &status, 0) == pid && !status ?
		       NULL :
		       "there is no Yama, nor may it be made to look so";
}

static const struct route needs_yama = { .name = "yama", .missing = missing_yama };

/* Setting cma says that other processes' memory is not accessible: tcp serves, with that reason.
 * Mappings still work. */
static void cma__switched_off(void **state)
{
	struct child_transfer transfer = { .op = WH_WRITE };
	struct child_result result;
	struct child *child;
	struct owner owner;

	(void)state;
	owner_open(&owner, &route_vm, NULL);
	child = initiator_start(0, "cma=0", wh_engine_url(owner.engine), &transfer);
	want(0, child_transfer(child, &transfer, &result));
	assert_string_equal(result.transport, "tcp");
	want_true(strstr(result.explain, "shm: refused: ") && strstr(result.explain, "cma"),
		  "it says: %s", result.explain);
	want_written(&owner);
	transfer.require = "shm";
	want(-EOPNOTSUPP, child_transfer(child, &transfer, &result));
	want_true(strstr(result.text, "cma"), "it says: %s", result.text);
	child_exit(child);
	owner_close(&owner);
	owner_open(&owner, &route_shm, NULL);
	child = initiator_start(0, "cma=0", wh_engine_url(owner.engine), &transfer);
	want_true(child_transfer(child, &transfer, &result) == 0, "%s", result.text);
	assert_string_equal(result.transport, "shm");
	child_exit(child);
	owner_close(&owner);
}

/* ---- read-only --------------------------------------------------------- */

/* Count this process's mappings of others' shared memfds, and the writable ones among them. */
static void count_mappings(unsigned int *all, unsigned int *writable)
{
	FILE *file = fopen("/proc/self/maps", "re");
	char line[512];

	assert_non_null(file);
	*all = *writable = 0;
	while (fgets(line, sizeof(line), file)) {
		char rights[8] = "";

		/* The alive page is no region. */
		if (!strstr(line, "/memfd:") || strstr(line, "alive"))
			continue;
		if (sscanf(line, "%*s %7s", rights) == 1 && rights[3] == 's') {
			(*all)++;
			*writable += rights[1] == 'w';
		}
	}
	fclose(file);
}

/* The mapping of a read-only region cannot be written, not even by mistake. */
static void readonly__mapping(void **state)
{
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct wh_remote remote;
	unsigned int all, writable;
	struct fixture f;
	int memory;

	fixture_open(&f, *state, LENGTH);
	memory = child_memory(f.child, WH_MEMORY_SHARED, LENGTH);
	child_fill(f.child, memory, 0, LENGTH, 0, 8);
	child_region(f.child, memory, 0, LENGTH, "ro", WH_ACCESS_READ, NULL);
	want(0, wh_peer_find(f.peer, "ro", PATIENCE, &remote));
	transfer = transfer_of(&f, WH_READ, 0, 0, LENGTH);
	transfer.remote = remote.id;
	batch = batch_of(&f, &transfer, 1);
	want(0, batch_run(batch));
	want_route(&f, batch, LENGTH);
	want(0, wh_batch_free(batch));
	want_true(pattern_check(f.local, LENGTH, 0, 8) == PATTERN_GOOD, "wrong bytes");
	count_mappings(&all, &writable);
	want(1, all);
	want(0, writable);
	want(0, move(&f, WH_WRITE, 0, 0, LENGTH));
	count_mappings(&all, &writable);
	want(2, all);
	want(1, writable);
	fixture_close(&f);
}

/* The same memory as one read-write and one read-only region: a peer with read access alone gets no
 * writable mapping from the pair. */
static void readonly__beside_writable(void **state)
{
	struct wh_transfer transfer;
	struct wh_remote remote;
	struct wh_batch *batch;
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	child_region(f.child, f.memory, f.guard, LENGTH, "ro", WH_ACCESS_READ, NULL);
	want(0, wh_peer_find(f.peer, "ro", PATIENCE, &remote));
	target_fill(&f, 0, LENGTH, 0, 3);
	want(0, move(&f, WH_READ, 0, 0, LENGTH));
	transfer = transfer_of(&f, WH_READ, f.length, 0, LENGTH);
	transfer.remote = remote.id;
	batch = batch_of(&f, &transfer, 1);
	/* By a mapping or another way: the bytes are right. */
	want(0, batch_run(batch));
	want_true(pattern_check(f.local + f.length, LENGTH, 0, 3) == PATTERN_GOOD, "wrong bytes");
	want(0, wh_batch_clear(batch));
	transfer.op = WH_WRITE;
	want(-EACCES, wh_batch_add(batch, &transfer, 1));
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* ---- not published ----------------------------------------------------- */

static void unpublished__not_seen(void **state)
{
	struct wh_transfer transfer;
	struct wh_peer_info info = { .size = sizeof(info) };
	struct wh_remote remote;
	struct wh_batch *batch;
	struct fixture f;
	uint64_t id, cursor = 0, offset;
	struct wh_remote list[8];
	size_t seen = 8;
	int memory;

	fixture_open(&f, *state, LENGTH);
	memory = child_memory(f.child, WH_MEMORY_SHARED, LENGTH);
	child_fill(f.child, memory, 0, LENGTH, 0, 1);
	child_region(f.child, memory, 0, LENGTH, "hidden", 0, &id);
	/* A region published later has arrived, so the hidden one would have arrived, too. */
	child_region(f.child, f.memory, f.guard, 100, "later", ACCESS_BOTH, NULL);
	want(0, wh_peer_find(f.peer, "later", PATIENCE, &remote));
	want(-ENOENT, wh_peer_find(f.peer, "hidden", WH_ANSWER, &remote));
	want(0, wh_peer_list(f.peer, &cursor, list, &seen, WH_ANSWER));
	want(0, cursor);
	want(2, seen);
	for (size_t i = 0; i < seen; i++)
		want_true(list[i].id != id, "the hidden region is in the list");
	want(0, wh_peer_info(f.peer, &info));
	want(2, info.regions);
	want(-ENOENT, wh_peer_lookup(f.peer, child_address(f.child, memory), 1, WH_ANSWER, &remote,
				     &offset));
	transfer = transfer_of(&f, WH_WRITE, 0, 0, 100);
	transfer.remote = id;
	batch = batch_of(&f, NULL, 0);
	want(0, wh_batch_add(batch, &transfer, 1));
	want(-ENOENT, batch_run(batch));
	want(0, wh_batch_free(batch));
	want_true(child_check(f.child, memory, 0, LENGTH, 0, 1) == PATTERN_GOOD, "it has changed");
	fixture_close(&f);
}

/* A region over a part of an allocation: no mapping makes the rest reachable. */
static void unpublished__rest_of_the_allocation(void **state)
{
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct wh_remote remote;
	unsigned int before, after, writable;
	struct fixture f;
	int memory;

	fixture_open(&f, *state, LENGTH);
	want(0, move(&f, WH_WRITE, 0, 0, 100));
	count_mappings(&before, &writable);
	memory = child_memory(f.child, WH_MEMORY_SHARED, 2 * LENGTH);
	child_fill(f.child, memory, 0, 2 * LENGTH, 0, 1);
	child_region(f.child, memory, 0, LENGTH, "half", ACCESS_BOTH, NULL);
	want(0, wh_peer_find(f.peer, "half", PATIENCE, &remote));
	transfer = transfer_of(&f, WH_READ, 0, 0, LENGTH);
	transfer.remote = remote.id;
	batch = batch_of(&f, &transfer, 1);
	if (batch_run(batch) == 0)
		want_true(pattern_check(f.local, LENGTH, 0, 1) == PATTERN_GOOD, "wrong bytes");
	count_mappings(&after, &writable);
	want(before, after);
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* ---- listen addresses -------------------------------------------------- */

static void listen__loopback_only(void **state)
{
	static const char *const key[] = { SHARED_KEY, NULL };
	struct wh_engine *engine = engine_open(NULL, NULL, NULL);

	(void)state;
	want_true(strstr(wh_engine_url(engine), "127.0.0.1"), "it listens on %s",
		  wh_engine_url(engine));
	want(0, wh_engine_close(engine));
	engine = engine_open(NULL, "0.0.0.0:0", key);
	want_true(strstr(wh_engine_url(engine), "0.0.0.0"), "it listens on %s",
		  wh_engine_url(engine));
	want(0, wh_engine_close(engine));
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(user__memfd, needs_root),
	TEST_NEEDS(user__process_vm, needs_root),
	TEST_NEEDS(nobody__memfd, needs_root),
	TEST_NEEDS(nobody__tcp, needs_root),
	TEST_NEEDS(yama__named, needs_yama),
	TEST_NEEDS(cma__switched_off, route_vm),
	TEST_OVER(readonly__mapping, shm),
	TEST_OVER(readonly__beside_writable, shm),
	TEST_OVER(unpublished__not_seen, shm),
	TEST_OVER(unpublished__not_seen, tcp4),
	TEST_OVER(unpublished__rest_of_the_allocation, shm),
	TEST(listen__loopback_only),
};

HARNESS_MAIN("peer-access", tests)
