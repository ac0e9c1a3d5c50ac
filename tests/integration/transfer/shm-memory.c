/* SPDX-License-Identifier: Apache-2.0 */
/* shm-memory.c: what shm maps and with which rights, what it does not map, and when it unmaps */
#include "lib/fixture.h"
#include "lib/proxy.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define LENGTH (1 * MIB)

/* A target in a process of its own, and one region of ours. */
struct shm {
	struct wh_engine *engine;
	struct child *child;
	struct wh_peer *peer;
	unsigned char *local;
	struct wh_region *region;
	struct wh_batch *batch;
};

static void shm_open_to(struct shm *shm, const char *url, const char *const *config)
{
	shm->engine = engine_open("shm", "none", config);
	shm->local = pages_new(LENGTH);
	want(0, wh_region_register(shm->engine, shm->local, LENGTH, NULL, &shm->region));
	want(0, wh_peer_open(shm->engine, url, NULL, &shm->peer));
}

static void shm_begin(struct shm *shm, const struct child_options *options,
		      const char *const *config)
{
	memset(shm, 0, sizeof(*shm));
	shm->child = child_start(options);
	shm_open_to(shm, shm->child->url, config);
}

static void shm_end(struct shm *shm)
{
	want(0, wh_peer_close(shm->peer));
	want(0, wh_region_unregister(shm->region));
	want(0, wh_engine_close(shm->engine));
	pages_free(shm->local, LENGTH);
	want(0, peer_mappings(NULL, NULL));
	if (shm->child)
		child_exit(shm->child);
}

/* One transfer of the whole region `name`. On success `detail` receives its route's detail. */
static int shm_transfer(struct shm *shm, const char *name, uint32_t op, uint64_t length,
			char detail[48])
{
	struct wh_transfer one = { .local = shm->region, .length = length, .op = op };
	struct wh_route routes[4];
	struct wh_remote remote;
	struct wh_batch *batch;
	size_t count = 4;
	int error;

	error = wh_peer_find(shm->peer, name, PATIENCE, &remote);
	if (error)
		return error;
	one.remote = remote.id;
	want(0, wh_batch_new(shm->peer, NULL, &batch));
	error = wh_batch_add(batch, &one, 1);
	if (!error)
		error = batch_run(batch);
	if (!error) {
		want(0, wh_batch_routes(batch, routes, &count));
		for (size_t i = 0; i < count; i++)
			if (routes[i].bytes && detail)
				memcpy(detail, routes[i].detail, sizeof(routes[i].detail));
	}
	wh_batch_free(batch);
	return error;
}

/* ---- what is mapped ---------------------------------------------------- */

static void map__whole_allocation(void **state)
{
	struct shm shm;
	char detail[48] = "", rights[5];
	int memory;

	(void)state;
	shm_begin(&shm, NULL, NULL);
	memory = child_memory(shm.child, WH_MEMORY_SHARED, LENGTH - 100);
	child_region(shm.child, memory, 0, LENGTH - 100, "all", ACCESS_BOTH, NULL);
	want(0, peer_mappings(NULL, NULL));
	pattern_fill(shm.local, LENGTH, 0, 7);
	want(0, shm_transfer(&shm, "all", WH_WRITE, LENGTH - 100, detail));
	assert_string_equal(detail, "mapped memfd");
	want(1, peer_mappings(NULL, rights));
	assert_string_equal(rights, "rw-s");
	want(PATTERN_GOOD, child_check(shm.child, memory, 0, LENGTH - 100, 0, 7));
	shm_end(&shm);
}

/* A process that maps a part of a memfd could map the rest, too: only a fully published allocation
 * is mapped (shm-arena.c). */
static void map__never_a_part(void **state)
{
	static const char *const no_cma[] = { "cma=0", NULL };
	static const struct {
		uint64_t offset, length;
	} parts[] = {
		{ 4096, LENGTH - 4096 }, { 0, LENGTH - 4096 }, { 0, LENGTH - 1 }, { 1, 4096 }
	};
	struct shm shm;
	char name[16];
	int memory, region;

	(void)state;
	shm_begin(&shm, NULL, no_cma);
	memory = child_memory(shm.child, WH_MEMORY_SHARED, LENGTH);
	for (unsigned int i = 0; i < 4; i++) {
		snprintf(name, sizeof(name), "part%u", i);
		region = child_region(shm.child, memory, parts[i].offset, parts[i].length, name,
				      ACCESS_BOTH, NULL);
		want_text(-EOPNOTSUPP, "a part of its allocation",
			  shm_transfer(&shm, name, WH_READ, 8, NULL));
		want_text(-EOPNOTSUPP, "setting cma", shm_transfer(&shm, name, WH_WRITE, 8, NULL));
		want(0, child_unregister(shm.child, region));
	}
	memory = child_memory(shm.child, WH_MEMORY_PAGEABLE, LENGTH);
	child_region(shm.child, memory, 0, LENGTH, "private", ACCESS_BOTH, NULL);
	want_text(-EOPNOTSUPP, "shared memory", shm_transfer(&shm, "private", WH_READ, 8, NULL));
	want(0, peer_mappings(NULL, NULL));
	shm_end(&shm);
}

static void map__part_by_process_vm(void **state)
{
	struct shm shm;
	char detail[48] = "";
	int memory;

	(void)state;
	shm_begin(&shm, NULL, NULL);
	memory = child_memory(shm.child, WH_MEMORY_SHARED, LENGTH);
	child_region(shm.child, memory, 4096, LENGTH - 4096, "part", ACCESS_BOTH, NULL);
	child_fill(shm.child, memory, 0, LENGTH, 0, 3);
	want(0, shm_transfer(&shm, "part", WH_READ, LENGTH - 4096, detail));
	assert_string_equal(detail, "process_vm");
	want(PATTERN_GOOD, pattern_check(shm.local, LENGTH - 4096, 4096, 3));
	want(0, peer_mappings(NULL, NULL));
	shm_end(&shm);
}

/* ---- rights ------------------------------------------------------------ */

/* This process cannot make the mapping writable, not even by opening the file again. */
static void rights__read_only(void **state)
{
	char rights[5], path[64];
	struct shm shm;
	void *at;
	int memory, fd;

	(void)state;
	shm_begin(&shm, NULL, NULL);
	memory = child_memory(shm.child, WH_MEMORY_SHARED, LENGTH);
	child_region(shm.child, memory, 0, LENGTH, "ro", WH_ACCESS_READ, NULL);
	child_fill(shm.child, memory, 0, LENGTH, 0, 5);
	want(0, shm_transfer(&shm, "ro", WH_READ, LENGTH, NULL));
	want(PATTERN_GOOD, pattern_check(shm.local, LENGTH, 0, 5));
	want(-EACCES, shm_transfer(&shm, "ro", WH_WRITE, 8, NULL));
	want(1, peer_mappings(&at, rights));
	assert_string_equal(rights, "r--s");
	want(-1, mprotect(at, LENGTH, PROT_READ | PROT_WRITE));
	snprintf(path, sizeof(path), "/proc/self/map_files/%lx-%lx", (unsigned long)at,
		 (unsigned long)at + (unsigned long)LENGTH);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0) {
		char byte = 0;

		want_true(mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) ==
				  MAP_FAILED,
			  "mapped for writing");
		want(-1, pwrite(fd, &byte, 1, 0));
		want(-1, ftruncate(fd, 0));
		want(-1, fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096));
		close(fd);
	}
	want(PATTERN_GOOD, child_check(shm.child, memory, 0, LENGTH, 0, 5));
	shm_end(&shm);
}

/* Two regions cover all bytes of one allocation. A peer that may write them through one region gets
 * a writable mapping, whichever region is used first. */
static void rights__two_regions(void **state)
{
	char detail[48] = "";
	struct shm shm;
	int memory;

	(void)state;
	for (unsigned int i = 0; i < 2; i++) {
		shm_begin(&shm, NULL, NULL);
		memory = child_memory(shm.child, WH_MEMORY_SHARED, LENGTH);
		child_region(shm.child, memory, 0, LENGTH, "ro", WH_ACCESS_READ, NULL);
		child_region(shm.child, memory, 0, LENGTH, "rw", ACCESS_BOTH, NULL);
		pattern_fill(shm.local, LENGTH, 0, 11 + i);
		if (i)
			want(0, shm_transfer(&shm, "ro", WH_READ, 8, detail));
		pattern_fill(shm.local, LENGTH, 0, 11 + i);
		want(0, shm_transfer(&shm, "rw", WH_WRITE, LENGTH, detail));
		assert_string_equal(detail, "mapped memfd");
		want(PATTERN_GOOD, child_check(shm.child, memory, 0, LENGTH, 0, 11 + i));
		memset(shm.local, 0, LENGTH);
		want(0, shm_transfer(&shm, "ro", WH_READ, LENGTH, detail));
		assert_string_equal(detail, "mapped memfd");
		want(-EACCES, shm_transfer(&shm, "ro", WH_WRITE, 8, NULL));
		want(PATTERN_GOOD, pattern_check(shm.local, LENGTH, 0, 11 + i));
		want(1, peer_mappings(NULL, NULL));
		shm_end(&shm);
	}
}

static void rights__write_only(void **state)
{
	struct shm shm;
	int memory;

	(void)state;
	shm_begin(&shm, NULL, NULL);
	memory = child_memory(shm.child, WH_MEMORY_SHARED, LENGTH);
	child_region(shm.child, memory, 0, LENGTH, "wo", WH_ACCESS_WRITE, NULL);
	pattern_fill(shm.local, LENGTH, 0, 6);
	want(0, shm_transfer(&shm, "wo", WH_WRITE, LENGTH, NULL));
	want(PATTERN_GOOD, child_check(shm.child, memory, 0, LENGTH, 0, 6));
	want(-EACCES, shm_transfer(&shm, "wo", WH_READ, 8, NULL));
	shm_end(&shm);
}

/* Another user's memory is not reachable, not even for root. */
static void rights__other_user(void **state)
{
	const struct child_options nobody = { .user = 65534, .config = { SHARED_KEY } };
	static const char *const config[] = { SHARED_KEY, NULL };
	struct shm shm;
	int memory;

	(void)state;
	shm_begin(&shm, &nobody, config);
	memory = child_memory(shm.child, WH_MEMORY_SHARED, LENGTH);
	child_region(shm.child, memory, 0, LENGTH, "theirs", ACCESS_BOTH, NULL);
	want_text(-EOPNOTSUPP, "user 65534", shm_transfer(&shm, "theirs", WH_READ, 8, NULL));
	shm_end(&shm);
}

/* Between two unprivileged processes of one user: mappings always work, process_vm where the kernel
 * permits it. Where it does not, the explanation says why. */
static void rights__as_nobody(void **state)
{
	const struct child_options nobody = { .user = 65534 };
	struct child *owner = child_start(&nobody), *other = child_start(&nobody);
	struct child_transfer move = { .length = LENGTH, .op = WH_WRITE, .require = "shm" };
	struct child_result result;
	int shared, private, local, status;

	(void)state;
	shared = child_memory(owner, WH_MEMORY_SHARED, LENGTH);
	child_region(owner, shared, 0, LENGTH, "shared", ACCESS_BOTH, NULL);
	private = child_memory(owner, WH_MEMORY_PAGEABLE, LENGTH);
	child_region(owner, private, 0, LENGTH, "private", ACCESS_BOTH, NULL);
	local = child_memory(other, WH_MEMORY_PAGEABLE, LENGTH);
	move.region = child_region(other, local, 0, LENGTH, NULL, 0, NULL);
	child_fill(other, local, 0, LENGTH, 0, 21);
	move.peer = child_peer(other, owner->url, NULL);
	move.remote = "shared";
	want(0, child_transfer(other, &move, &result));
	want(PATTERN_GOOD, child_check(owner, shared, 0, LENGTH, 0, 21));
	move.remote = "private";
	status = child_transfer(other, &move, &result);
	if (status) {
		want(-EOPNOTSUPP, status);
		want_true(strstr(result.text, "process_vm"), "%s", result.text);
	} else {
		want(PATTERN_GOOD, child_check(owner, private, 0, LENGTH, 0, 21));
	}
	child_exit(other);
	child_exit(owner);
}

/* ---- unmapping --------------------------------------------------------- */

static void gone__unregistered(void **state)
{
	struct shm shm;
	struct wh_remote remote;
	int memory, region;

	(void)state;
	shm_begin(&shm, NULL, NULL);
	memory = child_memory(shm.child, WH_MEMORY_SHARED, LENGTH);
	for (unsigned int i = 0; i < 5; i++) {
		region = child_region(shm.child, memory, 0, LENGTH, "here", ACCESS_BOTH, NULL);
		want(0, shm_transfer(&shm, "here", WH_WRITE, LENGTH, NULL));
		want(1, peer_mappings(NULL, NULL));
		/* Unregistering returns when this process has unmapped the memory, not before. */
		want(0, child_unregister(shm.child, region));
		want(0, peer_mappings(NULL, NULL));
		want(-ENOENT, wh_peer_find(shm.peer, "here", WH_ANSWER, &remote));
	}
	want(0, child_free(shm.child, memory));
	shm_end(&shm);
}

/* The control connection breaks and is restored. Mappings keep working, and unregistering still
 * waits for us. */
static void gone__after_a_reconnect(void **state)
{
	struct shm shm;
	struct proxy *proxy;
	int memory, region;

	(void)state;
	memset(&shm, 0, sizeof(shm));
	shm.child = child_start(NULL);
	memory = child_memory(shm.child, WH_MEMORY_SHARED, LENGTH);
	proxy = proxy_start(shm.child->url);
	shm_open_to(&shm, proxy_url(proxy), NULL);
	for (unsigned int i = 0; i < 3; i++) {
		unsigned int accepted = proxy_accepted(proxy);
		int64_t end = now() + PATIENCE;
		int error;

		region = child_region(shm.child, memory, 0, LENGTH, "here", ACCESS_BOTH, NULL);
		want(0, shm_transfer(&shm, "here", WH_WRITE, LENGTH, NULL));
		want(1, peer_mappings(NULL, NULL));
		want(1, proxy_cut(proxy, PROXY_CONTROL));
		while (proxy_accepted(proxy) == accepted && now() < end)
			sleep_ms(1);
		while ((error = shm_transfer(&shm, "here", WH_READ, LENGTH, NULL)) && now() < end)
			sleep_ms(5);
		want(0, error);
		want(1, peer_mappings(NULL, NULL));
		want(0, child_unregister(shm.child, region));
		want(0, peer_mappings(NULL, NULL));
	}
	shm_end(&shm);
	proxy_stop(proxy);
}

/* ---- death of the owner ------------------------------------------------ */

/* A write into the mapping of a dead process succeeds; its batch must not. The proxy hides the
 * broken control connection, so that only the alive page shows the death. */
static void death__seen_without_a_socket(void **state)
{
	static const char *const patient[] = { "timeout=60000", NULL };
	struct wh_transfer one = { .length = 8, .op = WH_WRITE };
	struct wh_remote remote;
	struct wh_batch *batch;
	struct proxy *proxy;
	struct shm shm;
	int memory;

	(void)state;
	for (unsigned int i = 0; i < 2; i++) {
		memset(&shm, 0, sizeof(shm));
		shm.child = child_start(NULL);
		memory = child_memory(shm.child, i ? WH_MEMORY_PAGEABLE : WH_MEMORY_SHARED, LENGTH);
		child_region(shm.child, memory, 0, LENGTH, "target", ACCESS_BOTH, NULL);
		proxy = proxy_start(shm.child->url);
		shm_open_to(&shm, proxy_url(proxy), patient);
		want(0, wh_peer_find(shm.peer, "target", PATIENCE, &remote));
		one.local = shm.region;
		one.remote = remote.id;
		want(0, wh_batch_new(shm.peer, NULL, &batch));
		want(0, wh_batch_add(batch, &one, 1));
		want(0, batch_run(batch));
		proxy_freeze(proxy, true);
		child_kill(shm.child);
		shm.child = NULL;
		want(-ECONNRESET, batch_run(batch));
		want(-ECONNRESET, batch_item(batch, 0));
		want_true(strstr(wh_batch_error_text(batch), "has died"), "%s",
			  wh_batch_error_text(batch));
		want(0, wh_batch_free(batch));
		shm_end(&shm);
		proxy_stop(proxy);
	}
}

/* From the moment of the death on, each batch fails; none succeeds. */
static void death__never_a_success(void **state)
{
	struct wh_transfer one = { .length = 4096, .op = WH_WRITE };
	struct wh_remote remote;
	struct wh_batch *batch;
	struct shm shm;
	int memory;

	(void)state;
	for (unsigned int i = 0; i < SCALE(10, 3); i++) {
		shm_begin(&shm, NULL, NULL);
		memory = child_memory(shm.child, WH_MEMORY_SHARED, LENGTH);
		child_region(shm.child, memory, 0, LENGTH, "target", ACCESS_BOTH, NULL);
		want(0, wh_peer_find(shm.peer, "target", PATIENCE, &remote));
		one.local = shm.region;
		one.remote = remote.id;
		want(0, wh_batch_new(shm.peer, NULL, &batch));
		want(0, wh_batch_add(batch, &one, 1));
		want(0, batch_run(batch));
		child_kill(shm.child);
		shm.child = NULL;
		for (unsigned int k = 0; k < 100; k++)
			want(-ECONNRESET, batch_run(batch));
		want(0, wh_batch_free(batch));
		shm_end(&shm);
	}
}

static const char *missing_filters(void)
{
	/* A kernel that knows them wants an address. */
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL) && errno == EFAULT ?
		       NULL :
		       "the kernel has no seccomp filters";
}

static const struct route needs_filters = { .name = "filters", .missing = missing_filters };

/* The same where a process cannot have robust futexes, as under qemu-user. The filter stays with
 * this thread, so this is the last test. */
static void death__without_robust_futexes(void **state)
{
	const struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_set_robust_list, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog program = { sizeof(code) / sizeof(*code),
					    (struct sock_filter *)(uintptr_t)code };

	want(0, prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	want(0, prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
	death__never_a_success(state);
}

static const struct CMUnitTest tests[] = {
	TEST(map__whole_allocation),
	TEST(map__never_a_part),
	TEST_NEEDS(map__part_by_process_vm, route_vm),
	TEST(rights__read_only),
	TEST(rights__two_regions),
	TEST(rights__write_only),
	TEST_NEEDS(rights__other_user, needs_root),
	TEST_NEEDS(rights__as_nobody, needs_root),
	TEST(gone__unregistered),
	TEST(gone__after_a_reconnect),
	TEST_NEEDS(death__seen_without_a_socket, route_vm),
	TEST(death__never_a_success),
	TEST_NEEDS(death__without_robust_futexes, needs_filters),
};

HARNESS_MAIN("shm-memory", tests)
