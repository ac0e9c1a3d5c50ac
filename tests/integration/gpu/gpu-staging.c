/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: gpu no-threads no-threads-sanitized */
/* gpu-staging.c: what the engine prepares to move GPU memory: kernels (or none), GPU streams and
 * pinned memory, created before the first request and bounded */
#include "lib/gpu.h"

#define LENGTH (2 * MIB)

/* ---- without kernels --------------------------------------------------- */

enum { COUNT = 300, BLOCK = 999 };

/* Move random blocks, and do the same on images of both sides. */
static void move_blocks(struct gpu_pair *p, const struct wh_batch_options *options, uint32_t op,
			unsigned char *ours, unsigned char *theirs)
{
	uint64_t from[COUNT], to[COUNT];
	struct wh_base base = { .local = p->region, .remote = p->remote.id };
	struct wh_blocks_desc desc = { .size = sizeof(desc),
				       .op = op,
				       .block_length = BLOCK,
				       .count = COUNT,
				       .bases = &base,
				       .base_count = 1,
				       .local_offsets = from,
				       .remote_offsets = to };
	struct wh_blocks *blocks;
	struct wh_batch *batch;

	pattern_shuffle(from, COUNT, BLOCK, 1);
	pattern_shuffle(to, COUNT, BLOCK, 2);
	for (unsigned int i = 0; i < COUNT; i++) {
		if (op == WH_WRITE)
			memcpy(theirs + to[i], ours + from[i], BLOCK);
		else
			memcpy(ours + from[i], theirs + to[i], BLOCK);
	}
	want(0, wh_blocks_new(p->peer, &desc, &blocks));
	want(0, wh_batch_new(p->peer, options, &batch));
	want(0, wh_batch_add_blocks(batch, blocks));
	/* Repeatedly: descriptor lists that are used again would be cached on the GPU. */
	for (unsigned int i = 0; i < 3; i++)
		want(0, gpu_run(batch));
	want(0, wh_batch_free(batch));
	wh_blocks_free(blocks);
}

/* Blocks and one long transfer, both directions, by `transport`. `text` receives the last
 * explanation. */
static void move_all(struct gpu_pair *p, const char *transport, char text[2048])
{
	struct wh_batch_options options = { .size = sizeof(options), .require = transport };
	unsigned char *ours = malloc(p->length), *theirs = malloc(p->length),
		      *seen = malloc(p->length);
	struct wh_transfer long_one = { .local = p->region,
					.local_offset = 3,
					.remote = p->remote.id,
					.remote_offset = 5,
					.length = p->length - 5,
					.op = WH_WRITE };

	assert_true(ours && theirs && seen);
	gpu_pair_fill(p, 1);
	pattern_fill(ours, p->length, 0, 1);
	pattern_fill(theirs, p->length, 0, 1001);
	for (unsigned int i = 0; i < 3; i++) {
		struct wh_batch *batch;

		if (i < 2) {
			move_blocks(p, &options, i ? WH_READ : WH_WRITE, ours, theirs);
			continue;
		}
		memcpy(theirs + 5, ours + 3, p->length - 5);
		want(0, wh_batch_new(p->peer, &options, &batch));
		want(0, wh_batch_add(batch, &long_one, 1));
		want(0, gpu_run(batch));
		want_true(wh_batch_explain(batch, text, 2048) > 0, "it explains nothing");
		want(0, wh_batch_free(batch));
	}
	if (p->child)
		child_fetch(p->child, p->memory, 0, p->length, seen);
	else
		bytes_get(seen, p->target, p->length, p->there);
	want_true(!memcmp(seen, theirs, p->length), "the target is wrong");
	bytes_get(seen, p->local, p->length, p->here);
	want_true(!memcmp(seen, ours, p->length), "our side is wrong");
	free(ours);
	free(theirs);
	free(seen);
}

static void want_word(const char *text, const char *word)
{
	want_true(strstr(text, word), "\"%s\" in %s", word, text);
}

/* A GPU without a kernel image, whose driver cannot compile one. Copy engines move everything:
 * between GPUs, to the host and back, through pinned memory and over TCP. The explanation contains
 * the compiler's reason. */
static void kernels__none_here(void **state)
{
	static const struct {
		uint32_t here, there;
		const char *where, *transport, *way;
		bool apart;
	} cases[] = {
		{ WH_MEMORY_DEVICE, WH_MEMORY_DEVICE, "cuda:1", "cuda",
		  "copy engine of cuda:0, push", false },
		{ WH_MEMORY_DEVICE, WH_MEMORY_VMM, "cuda:1", "cuda", "copy engine of cuda:0, push",
		  true },
		{ WH_MEMORY_PINNED, WH_MEMORY_DEVICE, "cuda:0", "cuda",
		  "copy engine of cuda:0, from host", false },
		{ WH_MEMORY_DEVICE, WH_MEMORY_SHARED, NULL, "cuda",
		  "copy engine of cuda:0, to host", true },
		{ WH_MEMORY_DEVICE, WH_MEMORY_MANAGED, "cuda:0", "cuda", "staged", false },
		{ WH_MEMORY_DEVICE, WH_MEMORY_DEVICE, "cuda:1", "tcp", "pinned memory", true },
	};
	char text[2048];

	(void)state;
	for (unsigned int i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int (*set)(int, int) = (int (*)(int, int))gpu_symbol("fake_cuda_attribute");
		uint64_t launches = fake_calls("cuLaunchKernel");
		struct wh_estimate estimate = { .size = sizeof(estimate) };
		struct wh_batch *batch;
		struct gpu_pair p;

		/* Compute capability 7.0. */
		want(0, set(75, 7));
		want(0, set(76, 0));
		gpu_pair_open(&p, cases[i].here, bytes_on_gpu(cases[i].here) ? "cuda:0" : NULL,
			      cases[i].there, cases[i].where, LENGTH, cases[i].apart);
		move_all(&p, cases[i].transport, text);
		want_word(text, cases[i].way);
		want_word(text, "no kernels, its copy engines do everything");
		want_word(text, ".target is higher");
		want_true(fake_calls("cuLaunchKernel") == launches, "something was launched");
		batch = gpu_pair_batch(&p, WH_WRITE);
		want(0, wh_batch_estimate(batch, &estimate));
		want_true(estimate.duration && !estimate.kernel && !estimate.ctas, "%llu, %llu",
			  (unsigned long long)estimate.duration,
			  (unsigned long long)estimate.kernel);
		want(0, wh_batch_free(batch));
		gpu_pair_close(&p);
		fake_heal();
	}
}

/* With kernels the explanation says by which figures one of the two was chosen: those of the first
 * use, and what batches took once there were any. */
static void kernels__chosen_by_time(void **state)
{
	char text[2048];
	struct gpu_pair p;

	(void)state;
	gpu_pair_open(&p, WH_MEMORY_PINNED, "cuda:0", WH_MEMORY_DEVICE, "cuda:0", LENGTH, false);
	move_all(&p, "cuda", text);
	want_word(text, "cuda:0: chosen by time: kernel ");
	want_word(text, "copy engine ");
	want_word(text, "(measured at first use)");
	move_all(&p, "cuda", text);
	want_word(text, "(fastest of ");
	gpu_pair_close(&p);
}

/* The same without kernels on the owner's side of writes and reads over TCP. */
static void kernels__none_there(void **state)
{
	struct child *owner;
	struct gpu_pair p;
	char text[2048];

	(void)state;
	setenv("FAKE_CUDA_FAIL", "cuModuleLoadDataEx:0:222", 1);
	owner = child_start(NULL);
	unsetenv("FAKE_CUDA_FAIL");
	gpu_pair_open_with(&p, WH_MEMORY_SHARED, NULL, WH_MEMORY_DEVICE, "cuda:1", LENGTH, owner);
	move_all(&p, "tcp", text);
	gpu_pair_close(&p);
}

/* Only an unusable image makes the engine go on without kernels; other errors are reported. */
static void kernels__other_errors(void **state)
{
	struct wh_batch_options options = { .size = sizeof(options), .require = "cuda" };
	struct wh_transfer one = { .length = 100, .op = WH_WRITE };
	struct wh_batch *batch;
	struct gpu_pair p;

	(void)state;
	gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_DEVICE, "cuda:1", LENGTH, false);
	one.local = p.region;
	one.remote = p.remote.id;
	want(0, wh_batch_new(p.peer, &options, &batch));
	want(0, wh_batch_add(batch, &one, 1));
	fake_fail("cuModuleLoadDataEx", 0, 2);
	want_text(-EOPNOTSUPP, "OUT_OF_MEMORY", wh_batch_submit(batch));
	fake_heal();
	want(0, gpu_run(batch));
	want(0, wh_batch_free(batch));
	gpu_pair_close(&p);
}

/* ---- warm-up before the first request ---------------------------------- */

/* Two engines of this process with only TCP between them; driver calls count for both. */
struct pair {
	struct wh_engine *owner, *asker;
	struct wh_peer *peer;
	struct wh_region *theirs, *ours;
	unsigned char *target, *local;
	uint32_t here;
	uint64_t length; /* of both sides */
	struct wh_remote remote;
};

static struct wh_engine *engine_new(const char *listen, const char *transports)
{
	const char *config[] = { transports, NULL };
	struct wh_engine_options options = { .size = sizeof(options),
					     .listen = listen,
					     .config = config };
	struct wh_engine *out;

	want(0, wh_engine_open(&options, &out));
	return out;
}

static void pair_publish(struct pair *p)
{
	struct wh_region_options named = { .size = sizeof(named),
					   .name = "target",
					   .access = ACCESS_BOTH };
	struct wh_memory_options on = { .size = sizeof(on),
					.kind = WH_MEMORY_DEVICE,
					.location = "cuda:1" };

	want(0, wh_memory_alloc(p->owner, p->length, &on, (void **)&p->target));
	want(0, wh_region_register(p->owner, p->target, p->length, &named, &p->theirs));
}

static void connect_to(struct pair *p)
{
	want(0, wh_peer_open(p->asker, wh_engine_url(p->owner), NULL, &p->peer));
}

static void have_local(struct pair *p, uint32_t kind)
{
	struct wh_memory_options on = { .size = sizeof(on),
					.kind = kind,
					.location = bytes_on_gpu(kind) ? "cuda:0" : NULL };

	p->here = kind;
	want(0, wh_memory_alloc(p->asker, p->length, &on, (void **)&p->local));
	want(0, wh_region_register(p->asker, p->local, p->length, NULL, &p->ours));
}

static void pair_close(struct pair *p)
{
	want(0, wh_peer_close(p->peer));
	want(0, wh_region_unregister(p->ours));
	want(0, wh_memory_free(p->asker, p->local));
	want(0, wh_region_unregister(p->theirs));
	want(0, wh_memory_free(p->owner, p->target));
	want(0, wh_engine_close(p->asker));
	want(0, wh_engine_close(p->owner));
}

static struct wh_batch *pair_batch(struct pair *p, uint32_t op)
{
	struct wh_transfer whole = {
		.local = p->ours, .remote = p->remote.id, .length = p->length, .op = op
	};
	struct wh_batch *batch;

	want(0, wh_batch_new(p->peer, NULL, &batch));
	want(0, wh_batch_add(batch, &whole, 1));
	return batch;
}

static bool pair_same(struct pair *p, uint64_t seed)
{
	unsigned char *image = malloc(p->length);
	bool good;

	assert_non_null(image);
	bytes_get(image, p->target, p->length, WH_MEMORY_DEVICE);
	good = pattern_check(image, p->length, 0, seed) == PATTERN_GOOD;
	bytes_get(image, p->local, p->length, p->here);
	good = good && pattern_check(image, p->length, 0, seed) == PATTERN_GOOD;
	free(image);
	return good;
}

static void pair_fill_side(struct pair *p, bool there, uint64_t seed)
{
	unsigned char *image = malloc(p->length);

	assert_non_null(image);
	pattern_fill(image, p->length, 0, seed);
	if (there)
		bytes_put(p->target, image, p->length, WH_MEMORY_DEVICE);
	else
		bytes_put(p->local, image, p->length, p->here);
	free(image);
}

/* Calls that are slow or wait for the device. */
static const char *const makers[] = {
	"cuModuleLoadDataEx", "cuModuleLoadData",           "cuFuncLoad",
	"cuStreamCreate",     "cuStreamCreateWithPriority", "cuMemHostAlloc",
	"cuMemAlloc_v2",      "cuDevicePrimaryCtxRetain"
};
enum { MAKERS = sizeof(makers) / sizeof(makers[0]) };

static void count_all(uint64_t counts[MAKERS])
{
	for (unsigned int i = 0; i < MAKERS; i++)
		counts[i] = fake_calls(makers[i]);
}

/* The first write to and read from an owner's GPU. Once the peer is connected and the batch is
 * planned, neither engine loads a module, creates a stream or allocates. The region is registered
 * before or after the peer connects. */
static void first_request__makes_nothing(void **state)
{
	static const uint32_t kinds[] = { WH_MEMORY_SHARED, WH_MEMORY_DEVICE };

	(void)state;
	for (unsigned int i = 0; i < 8; i++) {
		uint32_t op = i & 1 ? WH_READ : WH_WRITE;
		uint64_t before[MAKERS], after[MAKERS];
		struct wh_route routes[5];
		struct wh_remote none;
		struct wh_batch *batch;
		size_t count = 5;
		struct pair p = { .length = LENGTH };

		p.owner = engine_new("127.0.0.1:0", "transports=tcp");
		p.asker = engine_new("none", "transports=tcp");
		have_local(&p, kinds[i / 2 & 1]);
		if (i & 4) {
			connect_to(&p);
			pair_publish(&p);
		} else {
			pair_publish(&p);
			connect_to(&p);
		}
		want(0, wh_peer_find(p.peer, "target", PATIENCE, &p.remote));
		pair_fill_side(&p, op == WH_READ, i);
		batch = pair_batch(&p, op);
		want(0, wh_batch_routes(batch, routes, &count)); /* plans the batch */
		/* What the plan has told the owner comes before this question. */
		want(-ENOENT, wh_peer_find(p.peer, "none", WH_ANSWER, &none));
		gpu_settled(0);
		count_all(before);
		want(0, gpu_run(batch));
		count_all(after);
		for (unsigned int k = 0; k < MAKERS; k++)
			want_true(before[k] == after[k], "case %u: %s is called %llu times", i,
				  makers[k], (unsigned long long)(after[k] - before[k]));
		want_true(pair_same(&p, i), "case %u: the bytes are wrong", i);
		want(0, wh_batch_free(batch));
		pair_close(&p);
	}
}

/* A region of GPU memory loads no kernels and pins no memory while no peer needs them: without
 * peers, or with a peer on this host whose GPUs reach the memory. An unpublished region never
 * does. */
static void first_request__nothing_for_nobody(void **state)
{
	uint64_t (*host_bytes)(void) = (uint64_t(*)(void))gpu_symbol("fake_cuda_host_bytes");
	uint64_t loads = fake_calls("cuModuleLoadDataEx"), pinned = host_bytes();
	struct wh_memory_options on = { .size = sizeof(on),
					.kind = WH_MEMORY_DEVICE,
					.location = "cuda:0" };
	struct wh_region *region;
	struct wh_peer *far;
	struct pair p = { .length = LENGTH };
	void *memory;

	(void)state;
	p.owner = engine_new("127.0.0.1:0", NULL);
	p.asker = engine_new("none", NULL);
	pair_publish(&p);
	have_local(&p, WH_MEMORY_SHARED);
	connect_to(&p);
	want(0, wh_peer_find(p.peer, "target", PATIENCE, &p.remote));
	gpu_settled(0);
	want_true(fake_calls("cuModuleLoadDataEx") == loads, "for a peer of this host");
	pair_close(&p);
	p.owner = engine_new("127.0.0.1:0", "transports=tcp");
	p.asker = engine_new("none", "transports=tcp");
	want(0, wh_memory_alloc(p.owner, LENGTH, &on, &memory));
	want(0, wh_region_register(p.owner, memory, LENGTH, NULL, &region));
	want(0, wh_peer_open(p.asker, wh_engine_url(p.owner), NULL, &far));
	gpu_settled(0);
	want_true(fake_calls("cuModuleLoadDataEx") == loads, "for a region that is nobody's");
	want_true(host_bytes() == pinned, "pinned: %llu",
		  (unsigned long long)(host_bytes() - pinned));
	want(0, wh_peer_close(far));
	want(0, wh_region_unregister(region));
	want(0, wh_memory_free(p.owner, memory));
	want(0, wh_engine_close(p.asker));
	want(0, wh_engine_close(p.owner));
}

/* A failed warm-up is reported by the request; a later request repeats it. */
static void first_request__after_an_error(void **state)
{
	struct wh_batch *batch;
	struct pair p = { .length = LENGTH };

	(void)state;
	p.owner = engine_new("127.0.0.1:0", "transports=tcp");
	p.asker = engine_new("none", "transports=tcp");
	have_local(&p, WH_MEMORY_SHARED);
	pair_publish(&p);
	fake_fail("cuModuleLoadDataEx", 0, 2);
	connect_to(&p);
	want(0, wh_peer_find(p.peer, "target", PATIENCE, &p.remote));
	pair_fill_side(&p, false, 7);
	batch = pair_batch(&p, WH_WRITE);
	want(-ENOMEM, gpu_run(batch));
	gpu_settled(0);
	fake_heal();
	want(0, gpu_run(batch));
	want_true(pair_same(&p, 7), "the bytes are wrong");
	want(0, wh_batch_free(batch));
	pair_close(&p);
}

/* The engine closes, and the region is unregistered, during the warm-up. */
static void first_request__closed_meanwhile(void **state)
{
	(void)state;
	for (unsigned int i = 0; i < SCALE(20, 6); i++) {
		struct pair p = { .length = LENGTH };

		p.owner = engine_new("127.0.0.1:0", "transports=tcp");
		p.asker = engine_new("none", "transports=tcp");
		have_local(&p, WH_MEMORY_SHARED);
		pair_publish(&p);
		connect_to(&p);
		sleep_ms(i % 4);
		pair_close(&p);
	}
}

/* ---- bounds ------------------------------------------------------------ */

#define FOR_STAGING (64 * MIB)
#define FOR_A_STREAM (2 * MIB) /* a stream's descriptor lists */

/* More requests than slots, both directions, many connections: each engine pins at most 64 MiB for
 * staging, besides each stream's descriptor lists. No two batches share bytes. */
static void pinned__bounded(void **state)
{
	enum { BATCHES = 24, LANES = 2 /* GPUs */ * 2 /* directions */ * 2 /* priorities */ };
	uint64_t (*host_bytes)(void) = (uint64_t(*)(void))gpu_symbol("fake_cuda_host_bytes");
	struct wh_batch *batches[BATCHES];
	const unsigned int count = SCALE(BATCHES, 10);
	const uint64_t share = 4 * MIB;
	uint64_t most, before = host_bytes();
	struct pair p = { .length = count * share };

	(void)state;
	p.owner = engine_new("127.0.0.1:0", "transports=tcp");
	p.asker = engine_new("none", "transports=tcp");
	have_local(&p, WH_MEMORY_DEVICE);
	pair_publish(&p);
	connect_to(&p);
	want(0, wh_peer_find(p.peer, "target", PATIENCE, &p.remote));
	for (unsigned int i = 0; i < count; i++) {
		struct wh_transfer part = { .local = p.ours,
					    .local_offset = i * share,
					    .remote = p.remote.id,
					    .remote_offset = i * share,
					    .length = share,
					    .op = i % 2 ? WH_READ : WH_WRITE };
		struct wh_batch_options options = { .size = sizeof(options),
						    .priority = i % 3 == 0 };

		want(0, wh_batch_new(p.peer, &options, &batches[i]));
		want(0, wh_batch_add(batches[i], &part, 1));
	}
	fake_delay(2000);
	for (unsigned int i = 0; i < count; i++)
		want(0, wh_batch_submit(batches[i]));
	for (unsigned int i = 0; i < count; i++) {
		want(0, batch_end(batches[i], PATIENCE));
		want(0, wh_batch_free(batches[i]));
	}
	fake_heal();
	/* Slots stay allocated, so this is the maximum. In each case one engine asks and one
	 * serves. */
	most = host_bytes() - before;
	want_true(most <= FOR_STAGING + LANES * FOR_A_STREAM + MIB, "%llu MiB",
		  (unsigned long long)(most / MIB));
	want_true(most > 16 * MIB, "only %llu MiB: it was not put to use",
		  (unsigned long long)(most / MIB));
	pair_close(&p);
	want_true(host_bytes() == before, "%llu bytes stay",
		  (unsigned long long)(host_bytes() - before));
}

/* ---- captures ---------------------------------------------------------- */

static int gpu_run_once(struct gpu_pair *p, uint32_t op)
{
	struct wh_batch *batch = gpu_pair_batch(p, op);
	int error = gpu_run(batch);

	want(0, wh_batch_free(batch));
	return error;
}

/* Memory of another process, whose descriptors and handles are imported here; then our memory is
 * exported to an engine in that process. */
static void capture_between_processes(unsigned (*capture)(int))
{
	static const uint32_t kinds[] = { WH_MEMORY_VMM, WH_MEMORY_DEVICE };

	for (unsigned int i = 0; i < 2; i++) {
		struct child_transfer back = { .length = LENGTH, .op = WH_READ, .remote = "ours" };
		struct wh_region_options named = { .size = sizeof(named),
						   .name = "ours",
						   .access = ACCESS_BOTH };
		struct wh_engine *owner;
		struct wh_region *region;
		struct gpu_pair p;
		void *memory;

		capture(1);
		gpu_pair_open(&p, kinds[i], "cuda:0", kinds[i], "cuda:1", LENGTH, true);
		want(0, gpu_run_once(&p, WH_WRITE));
		want(0, gpu_run_once(&p, WH_READ));
		owner = engine_new("127.0.0.1:0", NULL);
		want(0, wh_memory_alloc(owner, LENGTH,
					&(struct wh_memory_options){
						.size = sizeof(struct wh_memory_options),
						.kind = kinds[i],
						.location = "cuda:0" },
					&memory));
		want(0, wh_region_register(owner, memory, LENGTH, &named, &region));
		back.peer = child_peer(p.child, wh_engine_url(owner), NULL);
		back.region = p.child_region;
		want(0, child_transfer(p.child, &back, NULL));
		want(0, child_peer_close(p.child, back.peer));
		want(0, wh_region_unregister(region));
		want(0, wh_memory_free(owner, memory));
		want(0, wh_engine_close(owner));
		gpu_pair_close(&p);
		want_true(!capture(0), "kind %u of another process: a call was refused", kinds[i]);
	}
}

/* Another thread of the application captures a stream in global mode, in which CUDA refuses unsafe
 * calls in all threads. Meanwhile engines, regions, windows, GPU streams and batches of all
 * transports come and go: none of their calls is refused, and the caller's own capture mode does
 * not change. */
static void captures__are_left_alone(void **state)
{
	unsigned (*capture)(int) = (unsigned (*)(int))gpu_symbol("fake_cuda_capture_elsewhere");
	static const uint32_t kinds[] = { WH_MEMORY_DEVICE,  WH_MEMORY_VMM,      WH_MEMORY_PINNED,
					  WH_MEMORY_MANAGED, WH_MEMORY_PAGEABLE, WH_MEMORY_POOL };
	int mode;

	(void)state;
	for (unsigned int i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		struct wh_memory_options on = { .size = sizeof(on),
						.kind = kinds[i],
						.location =
							bytes_on_gpu(kinds[i]) ? "cuda:0" : NULL };
		struct wh_estimate estimate = { .size = sizeof(estimate) };
		struct wh_peer *self;
		struct wh_remote remote;
		struct wh_batch *batch;
		struct pair p = { .length = LENGTH };

		capture(1);
		p.owner = engine_new("127.0.0.1:0", NULL);
		p.asker = engine_new("none", "transports=tcp");
		pair_publish(&p);
		want(0, wh_memory_alloc(p.asker, LENGTH, &on, (void **)&p.local));
		want(0, wh_region_register(p.asker, p.local, LENGTH, NULL, &p.ours));
		connect_to(&p);
		want(0, wh_peer_find(p.peer, "target", PATIENCE, &p.remote));
		for (unsigned int op = WH_READ; op <= WH_WRITE; op++) {
			batch = pair_batch(&p, op);
			want(0, wh_batch_estimate(batch, &estimate));
			want(0, gpu_run(batch));
			want(0, wh_batch_free(batch));
		}
		want(0, wh_peer_close(p.peer));
		want(0, wh_region_unregister(p.ours));
		want(0, wh_memory_free(p.asker, p.local));
		/* Within one engine, by GPUs alone. */
		want(0, wh_memory_alloc(p.owner, LENGTH, &on, (void **)&p.local));
		want(0, wh_region_register(p.owner, p.local, LENGTH, NULL, &p.ours));
		want(0, wh_peer_open(p.owner, "self", NULL, &self));
		want(0, wh_peer_find(self, "target", PATIENCE, &remote));
		p.peer = self;
		p.remote = remote;
		for (unsigned int op = WH_READ; op <= WH_WRITE; op++) {
			batch = pair_batch(&p, op);
			want(0, wh_batch_estimate(batch, &estimate));
			want(0, gpu_run(batch));
			want(0, wh_batch_free(batch));
		}
		want(0, wh_peer_close(self));
		want(0, wh_region_unregister(p.ours));
		want(0, wh_memory_free(p.owner, p.local));
		want(0, wh_region_unregister(p.theirs));
		want(0, wh_memory_free(p.owner, p.target));
		want(0, wh_engine_close(p.asker));
		want(0, wh_engine_close(p.owner));
		want_true(!capture(0), "kind %u: a call was refused", kinds[i]);
	}
	capture_between_processes(capture);
	/* The counter-check: the same call without the engine's precaution is refused. */
	gpu_enter(0);
	capture(1);
	want(900, CU(cuMemAlloc_v2, (uint64_t *, size_t), &(uint64_t){ 0 }, 4096));
	want(1, capture(0));
	mode = 0;
	want(0, CU(cuThreadExchangeStreamCaptureMode, (int *), &mode));
	want_true(mode == 0, "the mode is %d", mode);
	gpu_leave();
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(kernels__chosen_by_time, needs_fake),
	TEST_NEEDS(kernels__none_here, needs_fake),
	TEST_NEEDS(kernels__none_there, needs_fake),
	TEST_NEEDS(kernels__other_errors, needs_fake),
	TEST_NEEDS(first_request__makes_nothing, needs_fake),
	TEST_NEEDS(first_request__nothing_for_nobody, needs_fake),
	TEST_NEEDS(first_request__after_an_error, needs_fake),
	TEST_NEEDS(first_request__closed_meanwhile, needs_two_gpus),
	TEST_NEEDS(pinned__bounded, needs_fake),
	TEST_NEEDS(captures__are_left_alone, needs_fake),
};

HARNESS_MAIN("gpu-staging", tests)
