/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: gpu windows */
/* gpu-window-tcp.c: how the transport tcp uses CPU windows
 *
 * Receiving straight into GPU memory, and windows that are switched off, refused, or lose their
 * memory. On the fake CUDA driver and a stand-in for the NVIDIA kernel driver. */
#include <pthread.h>

#include "lib/gpu.h"
#include "lib/proxy.h"
#include "lib/windows.h"
#include "platform/rm-abi.h"

#define GUARD 4099
#define LENGTH (4 * MIB)

/* ---- two engines of this process --------------------------------------- */

struct duo {
	struct wh_engine *initiator, *owner;
	struct wh_peer *peer; /* `owner`, as a peer of `initiator` */
	unsigned char *local, *target;
	struct wh_region *region, *target_region;
	uint32_t here, there;
	size_t length;
	struct wh_remote remote;
	struct proxy *proxy; /* between them; NULL: none */
	char logged[4096]; /* log of `owner` */
	unsigned warnings; /* in it */
	pthread_mutex_t lock;
};

static void duo_log(void *arg, const struct wh_log_record *record)
{
	struct duo *d = arg;
	size_t used;

	pthread_mutex_lock(&d->lock);
	used = strlen(d->logged);
	snprintf(d->logged + used, sizeof(d->logged) - used, "%s\n", record->text);
	d->warnings += record->level == WH_LOG_WARN;
	pthread_mutex_unlock(&d->lock);
}

static bool was_logged(struct duo *d, const char *text)
{
	bool found;

	pthread_mutex_lock(&d->lock);
	found = strstr(d->logged, text);
	pthread_mutex_unlock(&d->lock);
	return found;
}

static unsigned warnings_logged(struct duo *d)
{
	unsigned warnings;

	pthread_mutex_lock(&d->lock);
	warnings = d->warnings;
	pthread_mutex_unlock(&d->lock);
	return warnings;
}

static unsigned char *engine_allocate(struct wh_engine *engine, uint32_t kind, size_t length)
{
	struct wh_memory_options options = { .size = sizeof(options), .kind = kind };
	void *memory;

	want(0, wh_memory_alloc(engine, length, &options, &memory));
	return memory;
}

/* `window`: that setting of both engines ("window=rm"). Over TCP. */
static void duo_open(struct duo *d, uint32_t here, uint32_t there, const char *window, bool proxy)
{
	const char *settings[] = { "require=tcp", window, NULL };
	struct wh_engine_options options = { .size = sizeof(options), .config = settings };
	struct wh_region_options named = { .size = sizeof(named),
					   .name = "target",
					   .access = ACCESS_BOTH };
	const char *url;

	memset(d, 0, sizeof(*d));
	pthread_mutex_init(&d->lock, NULL);
	d->here = here;
	d->there = there;
	d->length = LENGTH;
	want(0, wh_engine_open(&options, &d->initiator));
	options.log = duo_log;
	options.log_level = WH_LOG_DEBUG;
	options.log_arg = d;
	want(0, wh_engine_open(&options, &d->owner));
	d->local = engine_allocate(d->initiator, here, LENGTH);
	d->target = engine_allocate(d->owner, there, LENGTH);
	/* Odd addresses. */
	want(0, wh_region_register(d->initiator, d->local + 1, LENGTH - 2, NULL, &d->region));
	want(0, wh_region_register(d->owner, d->target + 1, LENGTH - 2, &named, &d->target_region));
	url = wh_engine_url(d->owner);
	if (proxy) {
		d->proxy = proxy_start(url);
		assert_non_null(d->proxy);
		url = proxy_url(d->proxy);
	}
	want(0, wh_peer_open(d->initiator, url, NULL, &d->peer));
	want(0, wh_peer_find(d->peer, "target", PATIENCE, &d->remote));
	use_default_costs();
}

static void duo_close(struct duo *d)
{
	fake_heal();
	want(0, wh_peer_close(d->peer));
	if (d->proxy)
		proxy_stop(d->proxy);
	want(0, wh_region_unregister(d->region));
	if (d->target_region)
		want(0, wh_region_unregister(d->target_region));
	want_no_windows();
	want(0, wh_memory_free(d->initiator, d->local));
	if (d->target)
		want(0, wh_memory_free(d->owner, d->target));
	want(0, wh_engine_close(d->initiator));
	want(0, wh_engine_close(d->owner));
	pthread_mutex_destroy(&d->lock);
}

static struct wh_batch *duo_batch(struct duo *d, uint32_t op, uint64_t local, uint64_t remote,
				  uint64_t length)
{
	struct wh_transfer one = { .local = d->region,
				   .local_offset = local,
				   .remote = d->remote.id,
				   .remote_offset = remote,
				   .length = length,
				   .op = op };
	struct wh_batch *batch;

	want(0, wh_batch_new(d->peer, NULL, &batch));
	want(0, wh_batch_add(batch, &one, 1));
	return batch;
}

static void fill_memory(unsigned char *at, size_t length, uint32_t kind, uint64_t seed)
{
	unsigned char *image = malloc(length);

	assert_non_null(image);
	pattern_fill(image, length, 0, seed);
	bytes_put(at, image, length, kind);
	free(image);
}

/* True if `there` has at [at, at + length) what `here` has at `from`, and the pattern of `seed`
 * elsewhere. */
static bool holds_copy(const unsigned char *there, uint32_t there_kind, uint64_t at, uint64_t seed,
		       const unsigned char *here, uint32_t here_kind, uint64_t from, size_t length)
{
	unsigned char *want_image = malloc(LENGTH), *seen = malloc(LENGTH);
	bool good;

	assert_true(want_image && seen);
	pattern_fill(want_image, LENGTH, 0, seed);
	bytes_get(want_image + at, here + from, length, here_kind);
	bytes_get(seen, there, LENGTH, there_kind);
	good = !memcmp(want_image, seen, LENGTH);
	if (!good)
		tell_bytes("wrong");
	free(want_image);
	free(seen);
	return good;
}

/* Run a transfer and check it with its surroundings. `expected`: a text in the explanation. */
static void duo_move(struct duo *d, uint32_t op, uint64_t local, uint64_t remote, size_t length,
		     const char *expected)
{
	struct wh_batch *batch = duo_batch(d, op, local, remote, length);
	char text[1024];

	fill_memory(d->local, LENGTH, d->here, length + 1);
	fill_memory(d->target, LENGTH, d->there, length + 2);
	want(0, gpu_run(batch));
	if (expected) {
		want_true(wh_batch_explain(batch, text, sizeof(text)) > 0, "no explanation");
		want_true(strstr(text, expected), "%zu bytes: no \"%s\" in \"%s\"", length,
			  expected, text);
	}
	want(0, wh_batch_free(batch));
	if (op == WH_WRITE)
		want_true(holds_copy(d->target, d->there, remote + 1, length + 2, d->local, d->here,
				     local + 1, length),
			  "%zu bytes written to %llu are wrong", length,
			  (unsigned long long)remote);
	else
		want_true(holds_copy(d->local, d->here, local + 1, length + 1, d->target, d->there,
				     remote + 1, length),
			  "%zu bytes read from %llu are wrong", length, (unsigned long long)remote);
}

static void duo_move_all(struct duo *d, const char *expected)
{
	static const size_t lengths[] = { 1, 8, 63, 4096, 4097, 65537, 300001, 3 * MIB };

	for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i += SCALE(1, 3)) {
		const char *say = lengths[i] <= 64 ? expected : NULL;

		duo_move(d, WH_WRITE, GUARD, 17, lengths[i], say);
		duo_move(d, WH_READ, 3 * i, GUARD + i, lengths[i], say);
	}
}

/* ---- on, off, refused -------------------------------------------------- */

static void tcp__by_window(void **state)
{
	struct duo d;

	(void)state;
	duo_open(&d, WH_MEMORY_DEVICE, WH_MEMORY_VMM, "window=rm", false);
	want(0, stand_in_state().mapped);
	duo_move_all(&d, "CPU window (rm)");
	want_true(was_logged(&d, "CPU window (rm): for received requests of "), "%s", d.logged);
	/* One window per region, however often it is used. */
	want(2, stand_in_state().mapped);
	duo_close(&d);
}

/* With measured costs, whatever they are, the bytes are right. */
static void tcp__measured(void **state)
{
	bool measured = false;
	struct duo d;

	(void)state;
	for (unsigned int i = 0; i < 20 && !measured; i++) {
		duo_open(&d, WH_MEMORY_PINNED, WH_MEMORY_DEVICE, "window=rm", false);
		fake_heal();
		duo_move_all(&d, NULL);
		measured = !was_logged(&d, "not measured");
		want(1, stand_in_state().mapped);
		duo_close(&d);
	}
	want_true(measured, "nothing has been measured");
}

static void tcp__by_module(void **state)
{
	struct duo d;

	(void)state;
	fake_nvidia_gdrdrv(1);
	duo_open(&d, WH_MEMORY_DEVICE, WH_MEMORY_DEVICE, "window=driver,rm", false);
	duo_move_all(&d, "CPU window (driver)");
	duo_close(&d);
	/* The engine must not use mappings that can be revoked: an access would raise SIGBUS. */
	fake_nvidia_gdrdrv(2);
	duo_open(&d, WH_MEMORY_DEVICE, WH_MEMORY_DEVICE, "window=driver,rm", false);
	duo_move_all(&d, "CPU window (rm)");
	duo_close(&d);
	duo_open(&d, WH_MEMORY_DEVICE, WH_MEMORY_DEVICE, "window=driver", false);
	duo_move_all(&d, "takes mappings away");
	want(1, warnings_logged(&d));
	duo_close(&d);
	fake_nvidia_gdrdrv(0);
}

/* That there is no window is a warning for the first region of an engine, and a detail for others.
 */
static void tcp__refused_is_a_warning_once(void **state)
{
	struct wh_region_options named = { .size = sizeof(named),
					   .name = "another",
					   .access = ACCESS_BOTH };
	struct wh_region *another;
	struct duo d;

	(void)state;
	duo_open(&d, WH_MEMORY_DEVICE, WH_MEMORY_DEVICE, "window=driver", false);
	want(0, wh_region_register(d.owner, d.target + 1, LENGTH - 2, &named, &another));
	duo_move_all(&d, "warning: no CPU window");
	want(1, warnings_logged(&d));
	want_true(was_logged(&d, "wherry doctor"), "%s", d.logged);
	want(0, wh_peer_find(d.peer, "another", PATIENCE, &d.remote));
	duo_move_all(&d, "warning: no CPU window");
	want(1, warnings_logged(&d));
	want(0, wh_region_unregister(another));
	duo_close(&d);
}

static void tcp__switched_off(void **state)
{
	struct wh_window *window;
	struct duo d;

	(void)state;
	duo_open(&d, WH_MEMORY_DEVICE, WH_MEMORY_DEVICE, "window=off", false);
	duo_move_all(&d, "no CPU window: windows are switched off by the setting window");
	want_true(was_logged(&d, "no CPU window"), "%s", d.logged);
	want_true(!was_logged(&d, "CPU window (rm)"), "%s", d.logged);
	want(0, warnings_logged(&d));
	want(0, stand_in_state().mapped);
	want_text(-EOPNOTSUPP, "setting window",
		  wh_window_open(d.initiator, d.local, 4096, NULL, &window));
	duo_close(&d);
	duo_open(&d, WH_MEMORY_DEVICE, WH_MEMORY_DEVICE, "window=staged", false);
	duo_move_all(&d, "no CPU window: the setting window is staged");
	want(0, warnings_logged(&d));
	duo_close(&d);
}

/* The number of jobs queued on GPUs so far. */
static uint64_t gpu_work(void)
{
	return fake_calls("cuMemcpyAsync") + fake_calls("cuLaunchKernel") +
	       fake_calls("cuStreamWriteValue32_v2") + fake_calls("cuStreamWriteValue32");
}

static void want_work(struct duo *d, uint32_t op, uint64_t length, bool works)
{
	struct wh_batch *batch = duo_batch(d, op, 3, 5, length);
	uint64_t before = gpu_work();

	want(0, gpu_run(batch));
	want_true((gpu_work() != before) == works, "%s of %llu bytes: a GPU %s to do",
		  op == WH_READ ? "read" : "write", (unsigned long long)length,
		  works ? "had nothing" : "had something");
	want(0, wh_batch_free(batch));
}

/* Wait for the GPUs' work of the warm-up: before the first request, and with the first
 * connection. */
static void duo_warm_up(struct duo *d)
{
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		struct wh_batch *batch = duo_batch(d, op, 3, 5, 8);

		want(0, gpu_run(batch));
		want(0, wh_batch_free(batch));
	}
	gpu_settled(0);
}

/* With the default costs, requests of up to 1.1 MiB are received through windows, and a few bytes
 * are sent through them. */
static void tcp__who_moves(void **state)
{
	struct duo d;

	(void)state;
	setenv("WHERRY_SLICE", "8MiB", 1);
	duo_open(&d, WH_MEMORY_PINNED, WH_MEMORY_DEVICE, "window=rm", false);
	duo_warm_up(&d);
	want_work(&d, WH_WRITE, 1, false);
	want_work(&d, WH_WRITE, 1 * MIB, false);
	want_work(&d, WH_WRITE, 3 * MIB, true);
	want_work(&d, WH_READ, 8, false);
	want_work(&d, WH_READ, 1 * MIB, true);
	want_true(was_logged(&d, "requests of up to 1174"), "%s", d.logged);
	want_true(was_logged(&d, "; not measured"), "%s", d.logged);
	duo_close(&d);
	duo_open(&d, WH_MEMORY_DEVICE, WH_MEMORY_PINNED, "window=rm", false);
	duo_warm_up(&d);
	want_work(&d, WH_READ, 1, false);
	want_work(&d, WH_READ, 1 * MIB, false);
	want_work(&d, WH_READ, 3 * MIB, true);
	want_work(&d, WH_WRITE, 8, false);
	want_work(&d, WH_WRITE, 1 * MIB, true);
	duo_close(&d);
	unsetenv("WHERRY_SLICE");
	duo_open(&d, WH_MEMORY_DEVICE, WH_MEMORY_DEVICE, "window=off", false);
	duo_warm_up(&d);
	want_work(&d, WH_WRITE, 8, true);
	want_work(&d, WH_READ, 8, true);
	duo_close(&d);
}

/* Whichever step fails, for the first window or a later one: it is not tried again, and slots carry
 * the bytes. */
static void tcp__refused(void **state)
{
	static const uint32_t steps[] = { FAKE_NVIDIA_OPEN, FAKE_NVIDIA_MMAP, RM_ESCAPE_DUP_OBJECT,
					  RM_ESCAPE_MAP_MEMORY };

	(void)state;
	for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++) {
		for (unsigned int nth = 1; nth < SCALE(4, 3); nth++) {
			struct duo d;

			fake_nvidia_fail(steps[i], nth,
					 steps[i] <= FAKE_NVIDIA_MMAP ? -ENOMEM : 0x1a);
			duo_open(&d, WH_MEMORY_DEVICE, WH_MEMORY_DEVICE, "window=rm", false);
			duo_move(&d, WH_WRITE, 5, 6, 64, NULL);
			duo_move(&d, WH_READ, 5, 6, 64, NULL);
			fake_nvidia_fail(steps[i], 0, 0);
			/* Without the fault: the earlier decision stays. */
			duo_move(&d, WH_WRITE, 7, 8, 70001, NULL);
			duo_move(&d, WH_READ, 9, 10, 70001, NULL);
			duo_close(&d);
		}
	}
}

/* ---- two processes ----------------------------------------------------- */

static void move_between_processes(const char *fault, const char *window, size_t kind_count)
{
	struct child_options options = { .config = { window } };
	struct wh_engine_options mine = { .size = sizeof(mine), .listen = "none" };
	const char *settings[] = { "require=tcp", window, NULL };
	uint32_t kinds[] = { WH_MEMORY_DEVICE, WH_MEMORY_VMM, WH_MEMORY_POOL };

	mine.config = settings;
	if (fault)
		setenv("FAKE_NVIDIA_FAIL", fault, 1);
	for (size_t i = 0; i < kind_count; i++) {
		struct child *child = child_start(&options);
		int memory = child_memory(child, kinds[i], LENGTH);
		struct wh_transfer t[2] = { { .op = WH_WRITE,
					      .local_offset = 3,
					      .remote_offset = 5,
					      .length = 1 * MIB + 1 },
					    { .op = WH_WRITE,
					      .local_offset = 2 * MIB,
					      .remote_offset = 3 * MIB,
					      .length = 33 } };
		unsigned char *image = malloc(LENGTH), *seen = malloc(LENGTH), *local;
		struct wh_engine *engine;
		struct wh_region *region;
		struct wh_remote remote;
		struct wh_batch *batch;
		struct wh_peer *peer;

		assert_true(image && seen);
		child_region(child, memory, GUARD, LENGTH - 2 * GUARD, "target", ACCESS_BOTH, NULL);
		want(0, wh_engine_open(&mine, &engine));
		local = engine_allocate(engine, kinds[i], LENGTH);
		want(0, wh_region_register(engine, local, LENGTH, NULL, &region));
		want(0, wh_peer_open(engine, child->url, NULL, &peer));
		want(0, wh_peer_find(peer, "target", PATIENCE, &remote));
		fill_memory(local, LENGTH, kinds[i], 1);
		child_fill(child, memory, 0, LENGTH, 0, 2);
		t[0].local = t[1].local = region;
		t[0].remote = t[1].remote = remote.id;
		want(0, wh_batch_new(peer, NULL, &batch));
		want(0, wh_batch_add(batch, t, 2));
		for (int again = 0; again < 3; again++)
			want(0, gpu_run(batch));
		want(0, wh_batch_clear(batch));
		pattern_fill(image, LENGTH, 0, 2);
		bytes_get(image + GUARD + 5, local + 3, t[0].length, kinds[i]);
		bytes_get(image + GUARD + 3 * MIB, local + 2 * MIB, t[1].length, kinds[i]);
		child_fetch(child, memory, 0, LENGTH, seen);
		want_true(!memcmp(image, seen, LENGTH), "what the child got is wrong");
		/* Read back all of it. */
		t[0].op = WH_READ;
		t[0].local_offset = 1;
		t[0].remote_offset = 0;
		t[0].length = LENGTH - 2 * GUARD;
		want(0, wh_batch_add(batch, t, 1));
		want(0, gpu_run(batch));
		want(0, wh_batch_free(batch));
		bytes_get(seen, local + 1, t[0].length, kinds[i]);
		want_true(!memcmp(image + GUARD, seen, t[0].length), "what came back is wrong");
		want(0, wh_peer_close(peer));
		want(0, wh_region_unregister(region));
		want(0, wh_memory_free(engine, local));
		want(0, wh_engine_close(engine));
		child_exit(child);
		free(image);
		free(seen);
	}
	unsetenv("FAKE_NVIDIA_FAIL");
	want_no_windows();
}

static void processes__on_off_refused(void **state)
{
	char fault[64];

	(void)state;
	move_between_processes(NULL, "window=rm,rm-watch", 3); /* rm-watch finds pools, too */
	move_between_processes(NULL, "window=off", SCALE(3, 1));
	for (unsigned int nth = 1; nth < 3; nth++) {
		snprintf(fault, sizeof(fault), "%u:%u:%d", RM_ESCAPE_MAP_MEMORY, nth, 0x1a);
		move_between_processes(fault, "window=rm,rm-watch", SCALE(3, 1));
	}
}

/* ---- loss during a transfer -------------------------------------------- */

/* The owner unregisters the region while bytes arrive. */
static void going__withdrawn(void **state)
{
	struct wh_batch *batch;
	struct duo d;
	int error;

	(void)state;
	duo_open(&d, WH_MEMORY_PINNED, WH_MEMORY_DEVICE, "window=rm", true);
	duo_move(&d, WH_WRITE, 0, 0, 64, NULL);
	want(1, stand_in_state().mapped);
	proxy_slow(d.proxy, 4 * MIB);
	batch = duo_batch(&d, WH_WRITE, 0, 0, LENGTH - 2);
	want(0, wh_batch_submit(batch));
	sleep_ms(200);
	want(0, wh_region_unregister(d.target_region));
	d.target_region = NULL;
	/* The window is closed at once, so the memory can be freed. */
	want_no_windows();
	want(0, wh_memory_free(d.owner, d.target));
	d.target = NULL;
	proxy_slow(d.proxy, 0);
	error = batch_end(batch, PATIENCE);
	want_true(error == -ESTALE || error == -ECONNRESET, "%d", error);
	want(0, wh_batch_free(batch));
	duo_close(&d);
}

/* Once wh_batch_cancel() returns, nothing arrives in our memory. */
static void going__cancelled(void **state)
{
	struct wh_batch *batch;
	unsigned char *before, *after;
	struct duo d;

	(void)state;
	before = malloc(LENGTH);
	after = malloc(LENGTH);
	assert_true(before && after);
	duo_open(&d, WH_MEMORY_DEVICE, WH_MEMORY_PINNED, "window=rm", true);
	duo_move(&d, WH_READ, 0, 0, 64, NULL);
	proxy_slow(d.proxy, 4 * MIB);
	batch = duo_batch(&d, WH_READ, 0, 0, LENGTH - 2);
	want(0, wh_batch_submit(batch));
	sleep_ms(200);
	wh_batch_cancel(batch);
	want(0, wh_batch_free(batch));
	bytes_get(before, d.local, LENGTH, d.here);
	proxy_slow(d.proxy, 0);
	sleep_ms(100);
	bytes_get(after, d.local, LENGTH, d.here);
	want_true(!memcmp(before, after, LENGTH), "bytes arrived after the batch was cancelled");
	duo_move(&d, WH_READ, 7, 0, 1 * MIB, NULL);
	duo_close(&d);
	free(before);
	free(after);
}

/* Memory freed under a region is refused, without a fault. */
static void going__freed(void **state)
{
	struct wh_region_options named = { .size = sizeof(named),
					   .name = "freed",
					   .access = ACCESS_BOTH };
	struct wh_region *region, *again;
	struct wh_transfer one;
	struct wh_remote remote;
	struct wh_batch *batch;
	uint64_t address;
	struct duo d;

	(void)state;
	for (unsigned int small = 0; small < 2; small++) {
		duo_open(&d, WH_MEMORY_PINNED, WH_MEMORY_PINNED, "window=rm", false);
		gpu_enter(0);
		want(0, CU(cuMemAlloc_v2, (uint64_t *, size_t), &address, LENGTH));
		want(0, wh_region_register(d.owner, (void *)(uintptr_t)address, LENGTH, &named,
					   &region));
		want(0, wh_peer_find(d.peer, "freed", PATIENCE, &remote));
		one = (struct wh_transfer){ .local = d.region,
					    .remote = remote.id,
					    .length = small ? 8 : 1 * MIB,
					    .op = WH_WRITE };
		want(0, wh_batch_new(d.peer, NULL, &batch));
		want(0, wh_batch_add(batch, &one, 1));
		want(0, gpu_run(batch));
		want(0, CU(cuMemFree_v2, (uint64_t), address));
		want(-ESTALE, gpu_run(batch));
		want(0, wh_batch_free(batch));
		want(0, wh_region_unregister(region));
		want_no_windows();
		/* New memory at that address gets a window of its own. */
		want(0, CU(cuMemAlloc_v2, (uint64_t *, size_t), &address, LENGTH));
		named.name = "again";
		want(0, wh_region_register(d.owner, (void *)(uintptr_t)address, LENGTH, &named,
					   &again));
		named.name = "freed";
		want(0, wh_peer_find(d.peer, "again", PATIENCE, &remote));
		one.remote = remote.id;
		want(0, wh_batch_new(d.peer, NULL, &batch));
		want(0, wh_batch_add(batch, &one, 1));
		want(0, gpu_run(batch));
		want(0, wh_batch_free(batch));
		want(0, wh_region_unregister(again));
		want(0, CU(cuMemFree_v2, (uint64_t), address));
		gpu_leave();
		duo_close(&d);
	}
}

/* The sender is killed. */
static void going__killed(void **state)
{
	struct wh_engine_options options = { .size = sizeof(options) };
	struct wh_region_options named = { .size = sizeof(named),
					   .name = "target",
					   .access = ACCESS_BOTH };
	struct child_transfer t = { .remote = "target",
				    .op = WH_WRITE,
				    .length = 3 * MIB,
				    .times = 64,
				    .go = true,
				    .require = "tcp" };
	/* One connection: several that write the same bytes are a race for the sanitizer. */
	static const struct child_options in_turn = { .config = { "connections=1" } };
	struct wh_engine *engine;
	struct wh_region *region;
	unsigned char *memory;
	struct child *child;
	int sent;

	(void)state;
	want(0, wh_engine_open(&options, &engine));
	memory = engine_allocate(engine, WH_MEMORY_DEVICE, LENGTH);
	want(0, wh_region_register(engine, memory, LENGTH, &named, &region));
	for (unsigned int i = 0; i < SCALE(6, 2); i++) {
		child = child_start(HARNESS_SLOW ? &in_turn : NULL);
		sent = child_memory(child, WH_MEMORY_SHARED, 3 * MIB);
		child_fill(child, sent, 0, 3 * MIB, 0, i);
		t.region = child_region(child, sent, 0, 3 * MIB, "sent", ACCESS_BOTH, NULL);
		t.peer = child_peer(child, wh_engine_url(engine), NULL);
		want_true(t.peer >= 0, "%d", t.peer);
		want(0, child_transfer(child, &t, NULL));
		sleep_ms(i * 3);
		child_kill(child);
	}
	/* One more transfer, undisturbed. */
	child = child_start(NULL);
	sent = child_memory(child, WH_MEMORY_SHARED, 3 * MIB);
	child_fill(child, sent, 0, 3 * MIB, 0, 99);
	t.region = child_region(child, sent, 0, 3 * MIB, "sent", ACCESS_BOTH, NULL);
	t.peer = child_peer(child, wh_engine_url(engine), NULL);
	t.go = false;
	t.times = 1;
	t.remote_offset = 77;
	want(0, child_transfer(child, &t, NULL));
	child_exit(child);
	want(0, wh_region_unregister(region));
	want_no_windows();
	unsigned char *seen = malloc(3 * MIB);

	assert_non_null(seen);
	bytes_get(seen, memory + 77, 3 * MIB, WH_MEMORY_DEVICE);
	want_true(pattern_check(seen, 3 * MIB, 0, 99) == PATTERN_GOOD, "the last one is wrong");
	free(seen);
	want(0, wh_memory_free(engine, memory));
	want(0, wh_engine_close(engine));
}

/* ---- concurrency ------------------------------------------------------- */

#define THREADS 4

struct mover {
	struct duo *d;
	unsigned int number;
	int error;
};

static void *move_many(void *arg)
{
	struct mover *m = arg;
	const uint64_t part = LENGTH / THREADS - 2, at = m->number * (part + 1);

	for (unsigned int i = 0; i < SCALE(60, 15) && !m->error; i++) {
		uint64_t length = 1 + (i * 7919 + m->number * 104729) % (part / 2);
		uint64_t skip = i % 61;
		struct wh_transfer t = { .local = m->d->region,
					 .local_offset = at + skip,
					 .remote = m->d->remote.id,
					 .remote_offset = at + skip,
					 .length = length,
					 .op = i & 1 ? WH_READ : WH_WRITE };
		struct wh_batch *batch = NULL;

		m->error = wh_batch_new(m->d->peer, NULL, &batch);
		m->error = m->error ? m->error : wh_batch_add(batch, &t, 1);
		m->error = m->error ? m->error : gpu_run(batch);
		if (batch)
			wh_batch_free(batch);
	}
	return NULL;
}

/* Both sides hold the same bytes, so that no transfer changes anything. */
static void many__threads(void **state)
{
	struct mover movers[THREADS];
	pthread_t threads[THREADS];
	struct duo d;

	(void)state;
	duo_open(&d, WH_MEMORY_DEVICE, WH_MEMORY_DEVICE, "window=rm", false);
	fill_memory(d.local, LENGTH, d.here, 5);
	fill_memory(d.target, LENGTH, d.there, 5);
	for (unsigned int i = 0; i < THREADS; i++) {
		movers[i] = (struct mover){ &d, i, 0 };
		want(0, pthread_create(&threads[i], NULL, move_many, &movers[i]));
	}
	for (unsigned int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		want(0, movers[i].error);
	}
	want_true(holds_copy(d.target, d.there, 0, 5, d.local, d.here, 0, LENGTH), "not the same");
	want_true(holds_copy(d.target, d.there, 0, 5, d.target, d.there, 0, 0), "not as filled");
	duo_close(&d);
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(tcp__by_window, needs_fake),
	TEST_NEEDS(tcp__measured, needs_fake),
	TEST_NEEDS(tcp__by_module, needs_fake),
	TEST_NEEDS(tcp__refused_is_a_warning_once, needs_fake),
	TEST_NEEDS(tcp__switched_off, needs_fake),
	TEST_NEEDS(tcp__who_moves, needs_fake),
	TEST_NEEDS(tcp__refused, needs_fake),
	TEST_NEEDS(processes__on_off_refused, needs_fake),
	TEST_NEEDS(going__withdrawn, needs_fake),
	TEST_NEEDS(going__cancelled, needs_fake),
	TEST_NEEDS(going__freed, needs_fake),
	TEST_NEEDS(going__killed, needs_fake),
	TEST_NEEDS(many__threads, needs_fake),
};

HARNESS_MAIN("gpu-window-tcp", tests)
