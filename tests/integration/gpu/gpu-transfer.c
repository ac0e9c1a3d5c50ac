/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: gpu windows-too long short */
/* gpu-transfer.c: transfers and blocks between every pair of memory kinds with at least one GPU
 * side
 *
 * Within one process and between two. On the fake driver, or, without TEST_CUDA, the machine's
 * own. */
#include "lib/harness.h"

#define LENGTH (5 * MIB / 2) /* of each memory: two and a half staging slots */
#define GUARD 65539 /* bytes around the regions that must not change */

struct side {
	const char *name;
	uint32_t kind;
	const char *location;
};

static const struct side sides[] = {
	{ "pageable", WH_MEMORY_PAGEABLE, NULL }, { "shared", WH_MEMORY_SHARED, NULL },
	{ "pinned", WH_MEMORY_PINNED, NULL },     { "mapped", WH_MEMORY_MAPPED, NULL },
	{ "device", WH_MEMORY_DEVICE, "cuda:0" }, { "device1", WH_MEMORY_DEVICE, "cuda:1" },
	{ "vmm", WH_MEMORY_VMM, "cuda:0" },       { "vmm1", WH_MEMORY_VMM, "cuda:1" },
	{ "pool", WH_MEMORY_POOL, "cuda:0" },     { "managed", WH_MEMORY_MANAGED, "cuda:0" },
};
#define SIDES (sizeof(sides) / sizeof(sides[0]))

struct pair {
	const struct side *here, *there;
	struct child *child; /* NULL: in this process */
	struct wh_engine *engine;
	struct wh_peer *peer;
	size_t length;
	unsigned char *local, *target; /* target: in this process */
	int memory;
	struct wh_region *region, *target_region;
	struct wh_remote remote;
};

static unsigned char *side_allocate(struct wh_engine *engine, const struct side *side,
				    size_t length)
{
	struct wh_memory_options options = { .size = sizeof(options),
					     .kind = side->kind,
					     .location = side->location };
	void *memory;

	want(0, wh_memory_alloc(engine, length, &options, &memory));
	return memory;
}

static void pair_open(struct pair *p, const struct side *here, const struct side *there,
		      struct child *child, size_t length)
{
	struct wh_region_options named = { .size = sizeof(named),
					   .name = "target",
					   .access = ACCESS_BOTH };
	/* Nothing here is lost, however busy the machine is. */
	static const char *const patient[] = { "timeout=60000", NULL };
	struct wh_engine_options options = { .size = sizeof(options),
					     .listen = "none",
					     .config = patient };

	*p = (struct pair){ .here = here, .there = there, .child = child, .length = length };
	want(0, wh_engine_open(&options, &p->engine));
	p->local = side_allocate(p->engine, here, length);
	want(0, wh_region_register(p->engine, p->local, length, NULL, &p->region));
	if (child) {
		p->memory = child_memory_at(child, there->kind, length, there->location);
		child_region(child, p->memory, 0, length, "target", ACCESS_BOTH, NULL);
	} else {
		p->target = side_allocate(p->engine, there, length);
		want(0,
		     wh_region_register(p->engine, p->target, length, &named, &p->target_region));
	}
	want(0, wh_peer_open(p->engine, child ? child->url : "self", NULL, &p->peer));
	want(0, wh_peer_find(p->peer, "target", PATIENCE, &p->remote));
}

static void pair_close(struct pair *p)
{
	want(0, wh_peer_close(p->peer));
	want(0, wh_region_unregister(p->region));
	want(0, wh_memory_free(p->engine, p->local));
	if (p->target) {
		want(0, wh_region_unregister(p->target_region));
		want(0, wh_memory_free(p->engine, p->target));
	}
	want(0, wh_engine_close(p->engine));
}

static void target_set(struct pair *p, uint64_t seed, unsigned char *image)
{
	pattern_fill(image, p->length, 0, seed);
	if (p->child)
		child_fill(p->child, p->memory, 0, p->length, 0, seed);
	else
		bytes_put(p->target, image, p->length, p->there->kind);
}

static void target_get(struct pair *p, unsigned char *image)
{
	if (p->child)
		child_fetch(p->child, p->memory, 0, p->length, image);
	else
		bytes_get(image, p->target, p->length, p->there->kind);
}

static void local_set(struct pair *p, uint64_t seed, unsigned char *image)
{
	pattern_fill(image, p->length, 0, seed);
	bytes_put(p->local, image, p->length, p->here->kind);
}

/* Transfers or blocks that a test makes on both sides, and on their images. */
struct work {
	struct wh_transfer *transfers;
	size_t count;
	struct wh_blocks_desc *blocks; /* or NULL */
};

static void in_images(uint32_t op, unsigned char *ours, unsigned char *theirs, uint64_t length)
{
	if (op == WH_WRITE)
		memcpy(theirs, ours, length);
	else
		memcpy(ours, theirs, length);
}

static uint64_t offset_of(const uint64_t *offsets, uint64_t stride, uint64_t block, uint64_t i)
{
	return offsets ? offsets[i] : i * (stride ? stride : block);
}

static void add_transfers(const struct work *work, uint32_t op, struct wh_batch *batch,
			  unsigned char *ours, unsigned char *theirs)
{
	for (size_t i = 0; i < work->count; i++) {
		struct wh_transfer *t = &work->transfers[i];

		t->op = op;
		in_images(op, ours + t->local_offset, theirs + t->remote_offset, t->length);
	}
	if (work->count)
		want(0, wh_batch_add(batch, work->transfers, work->count));
}

static void add_blocks(struct pair *p, const struct work *work, uint32_t op, struct wh_batch *batch,
		       unsigned char *ours, unsigned char *theirs)
{
	struct wh_blocks_desc *d = work->blocks;
	struct wh_blocks *blocks;

	if (!d)
		return;
	d->op = op;
	want(0, wh_blocks_new(p->peer, d, &blocks));
	want(0, wh_batch_add_blocks(batch, blocks));
	wh_blocks_free(blocks);
	for (uint64_t b = 0; b < d->base_count; b++) {
		for (uint64_t i = 0; i < d->count; i++)
			in_images(op,
				  ours + d->bases[b].local_offset +
					  offset_of(d->local_offsets, d->local_stride,
						    d->block_length, i),
				  theirs + d->bases[b].remote_offset +
					  offset_of(d->remote_offsets, d->remote_stride,
						    d->block_length, i),
				  d->block_length);
	}
}

static void run_work(struct pair *p, const struct work *work, uint32_t op, const char *route)
{
	/* Static: a sanitizer would clear its shadow memory at each allocation. */
	static unsigned char ours[LENGTH], theirs[LENGTH], seen[LENGTH];
	const char *how = op == WH_WRITE ? "write" : "read";
	struct wh_route routes[8];
	struct wh_batch *batch;
	size_t count = 8;

	assert_true(p->length <= LENGTH);
	local_set(p, 100 + op, ours);
	target_set(p, 200 + op, theirs);
	want(0, wh_batch_new(p->peer, NULL, &batch));
	add_transfers(work, op, batch, ours, theirs);
	add_blocks(p, work, op, batch, ours, theirs);
	for (int again = 0; again < SCALE(3, 2); again++) {
		want(0, wh_batch_submit(batch));
		want(0, batch_end(batch, PATIENCE));
	}
	want(0, wh_batch_routes(batch, routes, &count));
	for (size_t i = 0; i < count; i++) {
		if (!routes[i].bytes)
			continue;
		want_true(!strcmp(routes[i].transport, route),
			  "%s and %s went by %s (%s), not by %s", p->here->name, p->there->name,
			  routes[i].transport, routes[i].detail, route);
		want_true(routes[i].detail[0], "no detail");
	}
	want(0, wh_batch_free(batch));
	target_get(p, seen);
	want_true(!memcmp(seen, theirs, p->length), "%s, %s, %s: the target is wrong",
		  p->here->name, p->there->name, how);
	bytes_get(seen, p->local, p->length, p->here->kind);
	want_true(!memcmp(seen, ours, p->length), "%s, %s, %s: our side is wrong", p->here->name,
		  p->there->name, how);
}

/* Transfers of all lengths at odd addresses, none adjacent to another. */
static size_t mixed_lengths(struct pair *p, struct wh_transfer *out, size_t room)
{
	static const uint64_t lengths[] = { 1,     2,      3,   7,    8,      15,   16,
					    17,    255,    256, 4095, 4096,   4097, 65536,
					    65537, 300001, 1,   64,   1048576 };
	uint64_t local = 1, remote = GUARD;
	size_t n = 0;

	for (; n < room; n++) {
		uint64_t length = lengths[n % (sizeof(lengths) / sizeof(lengths[0]))];

		if (local + length > p->length - GUARD || remote + length > p->length - GUARD)
			break;
		out[n] = (struct wh_transfer){ .local = p->region,
					       .local_offset = local,
					       .remote = p->remote.id,
					       .remote_offset = remote,
					       .length = length };
		local += length + n % 5;
		remote += length + n % 3;
	}
	return n;
}

static void pair_test(struct pair *p, const char *route)
{
	enum { COUNT = 700, BLOCK = 1000, BASES = 3 };
	struct wh_transfer transfers[80];
	struct wh_transfer whole = { .local = p->region,
				     .remote = p->remote.id,
				     .length = p->length };
	struct work one = { &whole, 1, NULL }, many = { transfers, 0, NULL }, paged = { 0 };
	uint64_t local[COUNT], remote[COUNT];
	struct wh_base bases[BASES];
	struct wh_blocks_desc desc = { .size = sizeof(desc),
				       .block_length = BLOCK,
				       .count = COUNT,
				       .bases = bases,
				       .base_count = BASES,
				       .local_offsets = local,
				       .remote_offsets = remote };

	many.count = mixed_lengths(p, transfers, 80);
	for (size_t b = 0; b < BASES; b++)
		bases[b] = (struct wh_base){ .local = p->region,
					     .local_offset = b * COUNT * BLOCK + 16 * b,
					     .remote = p->remote.id,
					     .remote_offset = b * COUNT * BLOCK + 32 };
	pattern_shuffle(local, COUNT, BLOCK, 5);
	pattern_shuffle(remote, COUNT, BLOCK, 6);
	paged.blocks = &desc;
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		run_work(p, &one, op, route);
		run_work(p, &many, op, route);
		run_work(p, &paged, op, route);
		/* One list; the other side is contiguous. */
		desc.remote_offsets = NULL;
		run_work(p, &paged, op, route);
		desc.remote_offsets = remote;
	}
}

static bool side_pair_usable(const struct side *a, const struct side *b)
{
	bool gpu = bytes_on_gpu(a->kind) || bytes_on_gpu(b->kind);
	bool second = (a->location && !strcmp(a->location, "cuda:1")) ||
		      (b->location && !strcmp(b->location, "cuda:1"));

	/* All pairs take a minute, and minutes under a sanitizer: run a subset with each kind on
	 * each side, and another subset where CPU windows open. */
	if ((HARNESS_SLOW || getenv("TESTS_SHORT")) &&
	    (a - sides + 7 * (b - sides)) % 10 != (getenv("FAKE_NVIDIA_CUDA") ? 5 : 0))
		return false;
	return gpu && (!second || bytes_gpus() > 1);
}

static void every_pair__one_process(void **state)
{
	(void)state;
	for (size_t a = 0; a < SIDES; a++) {
		for (size_t b = 0; b < SIDES; b++) {
			struct pair p;

			if (!side_pair_usable(&sides[a], &sides[b]))
				continue;
			pair_open(&p, &sides[a], &sides[b], NULL, LENGTH);
			pair_test(&p, "cuda");
			pair_close(&p);
		}
	}
}

/* True if another process can map this kind. */
static bool side_shareable(const struct side *side)
{
	return side->kind == WH_MEMORY_SHARED || side->kind == WH_MEMORY_PINNED ||
	       side->kind == WH_MEMORY_DEVICE || side->kind == WH_MEMORY_VMM;
}

static void every_pair__two_processes(void **state)
{
	(void)state;
	for (size_t b = 0; b < SIDES; b++) {
		for (size_t a = 0; a < SIDES; a++) {
			struct child *child;
			struct pair p;

			if (!side_pair_usable(&sides[a], &sides[b]) || !side_shareable(&sides[b]))
				continue;
			child = child_start(NULL);
			pair_open(&p, &sides[a], &sides[b], child, LENGTH);
			pair_test(&p, "cuda");
			pair_close(&p);
			child_exit(child);
		}
	}
}

/* Over sockets each side stages its own memory, of any kind. */
static void every_pair__tcp(void **state)
{
	static const size_t here[] = { 0, 2, 4, 5, 6, 9 };

	(void)state;
	for (size_t b = 0; b < SIDES; b++) {
		for (size_t a = 0; a < sizeof(here) / sizeof(here[0]); a++) {
			struct child *child;
			struct pair p;

			if (!side_pair_usable(&sides[here[a]], &sides[b]))
				continue;
			child = child_start(NULL);
			setenv("WHERRY_REQUIRE", "tcp", 1);
			pair_open(&p, &sides[here[a]], &sides[b], child, LENGTH);
			unsetenv("WHERRY_REQUIRE");
			pair_test(&p, "tcp");
			pair_close(&p);
			child_exit(child);
		}
	}
}

/* NICs reach either side's memory by dma-buf, or our side's is staged. */
static void every_pair_by_rdma(const char *ways)
{
	static const size_t here[] = { 0, 4, 6, 8, 9 };

	for (size_t b = 0; b < SIDES; b++) {
		for (size_t a = 0; a < sizeof(here) / sizeof(here[0]); a++) {
			struct child_options options = { .config = { "rdma=fake1" } };
			struct child *child;
			struct pair p;

			/* Memory that its owner would stage uses another transport. Of the rest, a
			 * third. */
			if (!side_pair_usable(&sides[here[a]], &sides[b]) || (a + b) % 3 ||
			    sides[b].kind == WH_MEMORY_MANAGED)
				continue;
			child = child_start(&options);
			setenv("WHERRY_REQUIRE", "rdma", 1);
			setenv("WHERRY_RDMA_GPU", ways, 1);
			pair_open(&p, &sides[here[a]], &sides[b], child, LENGTH);
			unsetenv("WHERRY_RDMA_GPU");
			unsetenv("WHERRY_REQUIRE");
			pair_test(&p, "rdma");
			pair_close(&p);
			child_exit(child);
		}
	}
}

static void every_pair__rdma(void **state)
{
	(void)state;
	every_pair_by_rdma("dmabuf,staged");
}

static void every_pair__rdma_staged(void **state)
{
	(void)state;
	every_pair_by_rdma("staged");
}

static const struct CMUnitTest tests[] = {
	TEST_OVER(every_pair__rdma, gpu_rdma),
	TEST_OVER(every_pair__rdma_staged, gpu_rdma),
	TEST(every_pair__tcp),
	TEST(every_pair__one_process),
	TEST(every_pair__two_processes),
};

HARNESS_MAIN("gpu-transfer", tests)
