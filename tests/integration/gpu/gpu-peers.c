/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: gpu windows-too long */
/* gpu-peers.c: GPU memory of other processes
 *
 * Peers that are killed, restarted, stopped or cut off, and memory that this process cannot reach
 * by the transport cuda. */
#include "lib/container.h"
#include "lib/gpu.h"
#include "lib/proxy.h"

#include <limits.h>

#define LENGTH (1 * MIB)

/* ---- peer failures ----------------------------------------------------- */

static void peer__killed(void **state)
{
	static const uint32_t kinds[] = { WH_MEMORY_DEVICE, WH_MEMORY_VMM, WH_MEMORY_SHARED };

	(void)state;
	for (unsigned int i = 0; i < 6; i++) {
		size_t before[2] = { gpu_free_memory(0), gpu_free_memory(1) };
		struct wh_batch *batch;
		struct gpu_pair p;
		int64_t end = now() + PATIENCE;
		int status;

		gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", kinds[i % 3],
			      i % 3 == 2 ? NULL : "cuda:1", LENGTH, true);
		batch = gpu_pair_batch(&p, i % 2 ? WH_WRITE : WH_READ);
		want(0, gpu_run(batch));
		if (i < 3) {
			fake_delay(100000000);
			want(0, wh_batch_submit(batch));
		}
		child_kill(p.child);
		p.child = NULL;
		/* The copies that are under way end after the peer is known to be lost. */
		while (i < 3 && !wh_peer_status(p.peer) && now() < end)
			sleep_ms(1);
		fake_heal();
		if (i < 3)
			want(-ECONNRESET, batch_end(batch, PATIENCE));
		status = gpu_run(batch);
		want_true(status == -ECONNRESET, "%s: %s", strerrorname_np(-status),
			  wh_error_text());
		want(0, wh_batch_free(batch));
		gpu_pair_close(&p);
		want(before[0], gpu_free_memory(0));
		want(before[1], gpu_free_memory(1));
	}
}

/* Another process takes the same port, with memory at the dead one's addresses. */
static void peer__restarted(void **state)
{
	static const uint32_t kinds[] = { WH_MEMORY_DEVICE, WH_MEMORY_VMM };

	(void)state;
	for (unsigned int i = 0; i < 2; i++) {
		struct child_options options = { 0 };
		int64_t end = now() + PATIENCE;
		struct wh_batch *batch;
		struct wh_peer *old;
		struct gpu_pair p;
		char address[96];
		int status;

		gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", kinds[i], "cuda:1", LENGTH, true);
		snprintf(address, sizeof(address), "%s", p.child->url + strlen("wherry://"));
		batch = gpu_pair_batch(&p, WH_WRITE);
		want(0, gpu_run(batch));
		child_kill(p.child);
		options.listen = address;
		p.child = child_start(&options);
		p.memory = child_memory_at(p.child, kinds[i], LENGTH, "cuda:1");
		p.child_region =
			child_region(p.child, p.memory, 0, LENGTH, "target", ACCESS_BOTH, NULL);
		child_fill(p.child, p.memory, 0, LENGTH, 0, 99);
		while ((status = gpu_run(batch)) != -ESTALE && now() < end) {
			want_true(status < 0, "the batch for the dead one came to an end");
			sleep_ms(2);
		}
		want(-ESTALE, status);
		want(PATTERN_GOOD, child_check(p.child, p.memory, 0, LENGTH, 0, 99));
		want(0, wh_batch_free(batch));
		old = p.peer;
		want(0, wh_peer_open(p.engine, p.child->url, NULL, &p.peer));
		want(0, wh_peer_find(p.peer, "target", PATIENCE, &p.remote));
		gpu_pair_fill(&p, 5);
		batch = gpu_pair_batch(&p, WH_WRITE);
		want(0, gpu_run(batch));
		want_true(gpu_pair_copied(&p, 5), "it is wrong");
		want(0, wh_batch_free(batch));
		want(0, wh_peer_close(old));
		gpu_pair_close(&p);
	}
}

/* The peer is stopped: mapped memory is still reached, and other memory is refused quickly. */
static void peer__stopped(void **state)
{
	struct wh_batch *batch, *second;
	struct wh_batch_options only = { .size = sizeof(only), .require = "cuda" };
	struct wh_transfer one = { .length = 4096, .op = WH_WRITE };
	struct wh_remote remote;
	struct gpu_pair p;
	int64_t before;
	int memory;

	(void)state;
	gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_VMM, "cuda:1", LENGTH, true);
	memory = child_memory_at(p.child, WH_MEMORY_DEVICE, LENGTH, "cuda:0");
	child_region(p.child, memory, 0, LENGTH, "second", ACCESS_BOTH, NULL);
	want(0, wh_peer_find(p.peer, "second", PATIENCE, &remote));
	batch = gpu_pair_batch(&p, WH_WRITE);
	gpu_pair_fill(&p, 8);
	want(0, gpu_run(batch));
	child_stop(p.child);
	want(0, gpu_run(batch));
	want(0, wh_batch_new(p.peer, &only, &second));
	one.local = p.region;
	one.remote = remote.id;
	want(0, wh_batch_add(second, &one, 1));
	before = quiet_now();
	want(-EOPNOTSUPP, gpu_run(second));
	want_true(strstr(wh_batch_error_text(second), "no answer within"), "%s",
		  wh_batch_error_text(second));
	want_true(quiet_now() - before < SCALE(4, 10) * SECOND, "it took %lld ms",
		  (long long)((quiet_now() - before) / MS));
	child_continue(p.child);
	want_true(gpu_pair_copied(&p, 8), "it is wrong");
	want(0, wh_batch_free(batch));
	want(0, wh_batch_free(second));
	gpu_pair_close(&p);
}

/* Unregistering waits until we have unmapped the memory; the owner may then free it. */
static void peer__takes_its_memory_back(void **state)
{
	static const uint32_t kinds[] = { WH_MEMORY_DEVICE, WH_MEMORY_VMM };

	(void)state;
	for (unsigned int i = 0; i < 4; i++) {
		struct wh_batch *batch;
		struct gpu_pair p;
		int64_t before;

		gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", kinds[i % 2], "cuda:1", LENGTH, true);
		batch = gpu_pair_batch(&p, WH_WRITE);
		want(0, gpu_run(batch));
		if (i >= 2) {
			fake_delay(100000);
			want(0, wh_batch_submit(batch));
		}
		before = now();
		want(0, child_unregister(p.child, p.child_region));
		want_true(i < 2 || batch_now(batch) == 0, "it did not wait (%lld ms): %s",
			  (long long)((now() - before) / MS), wh_error_text());
		fake_heal();
		want(0, child_free(p.child, p.memory));
		want(-ESTALE, gpu_run(batch));
		want(0, wh_batch_free(batch));
		gpu_pair_close(&p);
	}
}

/* The connection breaks and is restored. Mapped memory works meanwhile; unregistering still
 * waits. */
static void peer__reached_again(void **state)
{
	int64_t end = now() + PATIENCE;
	struct wh_batch *batch;
	struct proxy *proxy;
	struct gpu_pair p;
	int status;

	(void)state;
	gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_VMM, "cuda:1", LENGTH, true);
	proxy = proxy_start(p.child->url);
	want(0, wh_peer_close(p.peer));
	want(0, wh_peer_open(p.engine, proxy_url(proxy), NULL, &p.peer));
	want(0, wh_peer_find(p.peer, "target", PATIENCE, &p.remote));
	batch = gpu_pair_batch(&p, WH_WRITE);
	want(0, gpu_run(batch));
	for (unsigned int i = 0; i < 2; i++) {
		unsigned int accepted = proxy_accepted(proxy);

		want(1, proxy_cut(proxy, PROXY_CONTROL));
		while (proxy_accepted(proxy) == accepted && now() < end)
			sleep_ms(1);
		gpu_pair_fill(&p, i);
		while ((status = gpu_run(batch)) && now() < end)
			sleep_ms(5);
		want(0, status);
		want_true(gpu_pair_copied(&p, i), "it is wrong");
	}
	want(0, child_unregister(p.child, p.child_region));
	want(-ESTALE, gpu_run(batch));
	want(0, wh_batch_free(batch));
	gpu_pair_close(&p);
	proxy_stop(proxy);
}

/* True if the local side equals the target's pattern. */
static bool read_back(struct gpu_pair *p, uint64_t seed)
{
	unsigned char *image = malloc(p->length);
	bool good;

	assert_non_null(image);
	bytes_get(image, p->local, p->length, p->here);
	good = pattern_check(image, p->length, 0, seed + 1000) == PATTERN_GOOD;
	if (!good)
		tell_bytes("wrong");
	free(image);
	return good;
}

/* A data connection breaks while a GPU's bytes are in its slots, in the socket, or at the owner
 * without an answer yet. They are gathered and sent again. */
static void peer__connection_cut(void **state)
{
	static const uint32_t ops[] = { WH_WRITE, WH_READ };
	struct wh_transfer whole = { .length = 16 * MIB };
	struct wh_batch_options tcp = { .size = sizeof(tcp), .require = "tcp" };
	struct proxy *proxy;
	struct gpu_pair p;

	(void)state;
	gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_PINNED, NULL, whole.length, true);
	proxy = proxy_start(p.child->url);
	want(0, wh_peer_close(p.peer));
	want(0, wh_peer_open(p.engine, proxy_url(proxy), NULL, &p.peer));
	want(0, wh_peer_find(p.peer, "target", PATIENCE, &p.remote));
	whole.local = p.region;
	whole.remote = p.remote.id;
	for (uint64_t round = 0; round < SCALE(6, 2); round++) {
		struct wh_batch *batch;
		uint64_t before;

		whole.op = ops[round % 2];
		want(0, wh_batch_new(p.peer, &tcp, &batch));
		want(0, wh_batch_add(batch, &whole, 1));
		gpu_pair_fill(&p, round);
		proxy_slow(proxy, 16 * MIB);
		before = proxy_bytes(proxy);
		want(0, wh_batch_submit(batch));
		/* Once when hardly anything has been sent, then midway. */
		want_true(proxy_await_bytes(proxy, before + (round < 2 ? 64 * KIB : 6 * MIB)),
			  "hardly a byte was sent");
		want_true(proxy_cut(proxy, PROXY_DATA) > 0, "there was nothing to cut");
		proxy_slow(proxy, 0);
		want(0, batch_end(batch, PATIENCE));
		want_true(whole.op == WH_WRITE ? gpu_pair_copied(&p, round) : read_back(&p, round),
			  "it is wrong in round %llu", (unsigned long long)round);
		want(0, wh_batch_free(batch));
	}
	gpu_pair_close(&p);
	proxy_stop(proxy);
}

/* ---- memory out of this process's reach -------------------------------- */

struct apart {
	struct child *owner, *other;
	int target, local;
	struct child_transfer move;
	struct child_result result;
};

/* Register the owner's cuMemCreate memory and the other's memory of `kind`, and prepare a write. */
static void apart_register(struct apart *a, uint32_t kind, const char *where, uint64_t length)
{
	a->target = child_memory_at(a->owner, WH_MEMORY_VMM, length, "cuda:0");
	child_region(a->owner, a->target, 0, length, "target", ACCESS_BOTH, NULL);
	a->local = child_memory_at(a->other, kind, length, where);
	a->move = (struct child_transfer){ .length = length, .op = WH_WRITE, .remote = "target" };
	a->move.region = child_region(a->other, a->local, 0, length, NULL, 0, NULL);
	a->move.peer = child_peer(a->other, a->owner->url, NULL);
	child_fill(a->other, a->local, 0, length, 0, 3);
}

/* Start two processes. The one that moves the bytes has `name=value` in its environment. */
static void apart_open(struct apart *a, const char *name, const char *value, const char *where,
		       uint64_t length)
{
	memset(a, 0, sizeof(*a));
	a->owner = child_start(NULL);
	setenv(name, value, 1);
	a->other = child_start(NULL);
	unsetenv(name);
	apart_register(a, where ? WH_MEMORY_DEVICE : WH_MEMORY_SHARED, where, length);
}

static void apart_close(struct apart *a)
{
	child_exit(a->other);
	child_exit(a->owner);
}

static void reach__no_peer_access(void **state)
{
	struct apart a;

	(void)state;
	apart_open(&a, "FAKE_CUDA_PEER", "0", "cuda:1", 21 * MIB + 5);
	want(0, child_transfer(a.other, &a.move, &a.result));
	assert_string_equal(a.result.transport, "cuda");
	want_true(strstr(a.result.explain, "staged"), "%s", a.result.explain);
	want(PATTERN_GOOD, child_check(a.owner, a.target, 0, a.move.length, 0, 3));
	child_fill(a.owner, a.target, 0, a.move.length, 0, 4);
	a.move.op = WH_READ;
	/* More fragments than slots. */
	a.move.times = SCALE(20, 4);
	want(0, child_transfer(a.other, &a.move, &a.result));
	want(PATTERN_GOOD, child_check(a.other, a.local, 0, a.move.length, 0, 4));
	apart_close(&a);
}

/* Another transport serves, and the explanation says why cuda does not. If cuda is required, that
 * is the error. */
static void want_refused(struct apart *a, const char *word)
{
	a->move.require = "cuda";
	want(-EOPNOTSUPP, child_transfer(a->other, &a->move, &a->result));
	want_true(strstr(a->result.text, word), "%s", a->result.text);
	a->move.require = NULL;
}

static void want_another_way(struct apart *a, const char *word)
{
	want(0, child_transfer(a->other, &a->move, &a->result));
	assert_string_equal(a->result.transport, "tcp");
	want_true(strstr(a->result.explain, word), "%s", a->result.explain);
	want(PATTERN_GOOD, child_check(a->owner, a->target, 0, a->move.length, 0, 3));
}

static void reach__device_not_visible(void **state)
{
	struct apart a;

	(void)state;
	apart_open(&a, "CUDA_VISIBLE_DEVICES", "1", "cuda:0", LENGTH);
	want_refused(&a, "CUDA_VISIBLE_DEVICES");
	want_another_way(&a, "CUDA_VISIBLE_DEVICES");
	apart_close(&a);
}

static void reach__compute_mode(void **state)
{
	static const char *const modes[] = { "20=2", "20=3" }, *const names[] = { "prohibited",
										  "exclusive" };

	(void)state;
	for (unsigned int i = 0; i < 2; i++) {
		struct apart a;

		apart_open(&a, "FAKE_CUDA_ATTRIBUTES", modes[i], NULL, LENGTH);
		want_refused(&a, names[i]);
		want_another_way(&a, names[i]);
		apart_close(&a);
	}
}

/* One side has a driver of CUDA 10.1, without cuMemCreate: it can neither import such memory nor
 * allocate it. */
static void reach__old_driver(void **state)
{
	const char *driver = getenv("TEST_CUDA");
	char old[PATH_MAX];
	struct apart a;
	int memory;

	(void)state;
	snprintf(old, sizeof(old), "%.*s/libcuda-old.so", (int)(strrchr(driver, '/') - driver),
		 driver);
	memset(&a, 0, sizeof(a));
	a.owner = child_start(NULL);
	setenv("FAKE_CUDA_DRIVER", "10010", 1);
	setenv("WHERRY_CUDA", old, 1);
	driver = strdup(driver);
	setenv("TEST_CUDA", old, 1);
	a.other = child_start(NULL);
	setenv("TEST_CUDA", driver, 1);
	setenv("WHERRY_CUDA", driver, 1);
	unsetenv("FAKE_CUDA_DRIVER");
	free((void *)driver);
	apart_register(&a, WH_MEMORY_DEVICE, "cuda:1", LENGTH);
	memory = child_memory_at(a.owner, WH_MEMORY_DEVICE, LENGTH, "cuda:0");
	child_region(a.owner, memory, 0, LENGTH, "legacy", ACCESS_BOTH, NULL);
	want_refused(&a, "update the driver");
	want_another_way(&a, "CUDA 10.1");
	a.target = memory;
	a.move.remote = "legacy";
	want(0, child_transfer(a.other, &a.move, &a.result));
	assert_string_equal(a.result.transport, "cuda");
	want(PATTERN_GOOD, child_check(a.owner, memory, 0, LENGTH, 0, 3));
	apart_close(&a);
}

static const char *missing_fake_in_container(void)
{
	return needs_fake.missing() ? needs_fake.missing() : needs_containers.missing();
}

static const struct route needs_fake_in_container = { .name = "fake in a container",
						      .missing = missing_fake_in_container };

/* The owner is in a PID namespace of its own. Descriptors of cuMemCreate memory work both ways;
 * legacy handles, whose process the fake driver does not find (without FAKE_CUDA_WORLD), do not,
 * and another way is taken. */
static void reach__pid_namespace(void **state)
{
	static const struct container container = { .namespaces = CLONE_NEWPID | CLONE_NEWNS };
	const struct child_options inside = { .container = &container };
	struct apart a;
	int memory;

	(void)state;
	memset(&a, 0, sizeof(a));
	a.owner = child_start(&inside);
	a.other = child_start(NULL);
	apart_register(&a, WH_MEMORY_DEVICE, "cuda:0", LENGTH);
	memory = child_memory_at(a.owner, WH_MEMORY_DEVICE, LENGTH, "cuda:0");
	child_region(a.owner, memory, 0, LENGTH, "legacy", ACCESS_BOTH, NULL);
	want(0, child_transfer(a.other, &a.move, &a.result));
	assert_string_equal(a.result.transport, "cuda");
	want(PATTERN_GOOD, child_check(a.owner, a.target, 0, LENGTH, 0, 3));
	a.target = memory;
	a.move.remote = "legacy";
	want_refused(&a, "cuIpcOpenMemHandle");
	want_another_way(&a, "cuIpcOpenMemHandle");
	apart_close(&a);
}

/* Two regions inside one allocation of another process. */
static void reach__parts_of_an_allocation(void **state)
{
	static const uint32_t kinds[] = { WH_MEMORY_DEVICE, WH_MEMORY_VMM };
	struct apart a;

	(void)state;
	apart_open(&a, "FAKE_CUDA_PEER", "1", "cuda:1", 4 * MIB);
	for (unsigned int i = 0; i < 2; i++) {
		int memory = child_memory_at(a.owner, kinds[i], 4 * MIB, "cuda:0"), first, second;

		first = child_region(a.owner, memory, 4099, MIB, "first", ACCESS_BOTH, NULL);
		second = child_region(a.owner, memory, 2 * MIB + 1, MIB + 7, "second", ACCESS_BOTH,
				      NULL);
		child_fill(a.owner, memory, 0, 4 * MIB, 0, 9);
		a.move.remote = "first";
		a.move.length = MIB;
		want(0, child_transfer(a.other, &a.move, &a.result));
		a.move.remote = "second";
		a.move.length = MIB + 7;
		want(0, child_transfer(a.other, &a.move, &a.result));
		want(PATTERN_GOOD, child_check(a.owner, memory, 4099, MIB, 0, 3));
		want(PATTERN_GOOD, child_check(a.owner, memory, 2 * MIB + 1, MIB + 7, 0, 3));
		want(PATTERN_GOOD, child_check(a.owner, memory, 0, 4099, 0, 9));
		want(PATTERN_GOOD,
		     child_check(a.owner, memory, 4099 + MIB, MIB - 4098, 4099 + MIB, 9));
		want(PATTERN_GOOD,
		     child_check(a.owner, memory, 3 * MIB + 8, MIB - 8, 3 * MIB + 8, 9));
		/* One region is unregistered; the other stays mapped. */
		want(0, child_unregister(a.owner, first));
		want(0, child_transfer(a.other, &a.move, &a.result));
		want(0, child_unregister(a.owner, second));
		want(0, child_free(a.owner, memory));
	}
	apart_close(&a);
}
static const struct CMUnitTest tests[] = {
	TEST_NEEDS(peer__killed, needs_fake),
	TEST_NEEDS(peer__restarted, needs_fake),
	TEST_NEEDS(peer__stopped, needs_fake),
	TEST_NEEDS(peer__takes_its_memory_back, needs_fake),
	TEST_NEEDS(peer__reached_again, needs_fake),
	TEST_NEEDS(peer__connection_cut, needs_fake),
	TEST_NEEDS(reach__no_peer_access, needs_fake),
	TEST_NEEDS(reach__device_not_visible, needs_fake),
	TEST_NEEDS(reach__compute_mode, needs_fake),
	TEST_NEEDS(reach__old_driver, needs_fake),
	TEST_NEEDS(reach__pid_namespace, needs_fake_in_container),
	TEST_NEEDS(reach__parts_of_an_allocation, needs_fake),
};

int main(int argc, char **argv)
{
	setenv("FAKE_CUDA_REUSE", "1", 1); /* read at the first call */
	return harness_main(argc, argv, "gpu-peers", tests, sizeof(tests) / sizeof(*tests));
}
