/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU's memory and NICs: by dma-buf, by its address (peermem), staged, and what is told of each; what is
 * refused, in the middle as well; memory that is freed; and writes that have to be flushed. Two engines of
 * this process, on the fake CUDA driver and the fake libibverbs.
 */
#include <dlfcn.h>

#include "../fake/verbs/fake-verbs.h"
#include "fixture.h"
#include "gpu.h"

#define LENGTH (3 * MIB + 4097)
#define PATIENT "timeout=20000" /* nothing here waits for silence */
#define OFFSET 4099 /* of the regions in their memory: on no boundary */

static void *fake(const char *name)
{
	void *library = dlopen(getenv("TEST_VERBS"), RTLD_NOW | RTLD_NODELETE);
	void *found = library ? dlsym(library, name) : NULL;

	want_true(found, "the fake has no %s", name);
	dlclose(library);
	return found;
}

struct registered {
	uint64_t all, dma_bufs, relaxed;
};

static struct registered registered(void)
{
	struct registered now;

	((void (*)(uint64_t *, uint64_t *, uint64_t *))fake("fake_verbs_registrations"))(
		&now.all, &now.dma_bufs, &now.relaxed);
	return now;
}

static void refuse_next(int error, unsigned int after)
{
	((void (*)(int, unsigned int))fake("fake_verbs_refuse"))(error, after);
}

static void fail_next(int status, unsigned int after)
{
	((void (*)(int, unsigned int))fake("fake_verbs_fail"))(status, after);
}

static void hold(bool yes)
{
	((void (*)(bool))fake("fake_verbs_hold"))(yes);
}

static void fail_next_of(unsigned int nic, int status, unsigned int after)
{
	((void (*)(unsigned int, int, unsigned int))fake("fake_verbs_fail_nic"))(nic, status, after);
}

static void port(unsigned int nic, bool up)
{
	((void (*)(unsigned int, bool))fake("fake_verbs_port"))(nic, up);
}

static uint64_t moved(unsigned int nic)
{
	return ((uint64_t (*)(unsigned int))fake("fake_verbs_moved"))(nic);
}

static void set_speed(unsigned int nic, uint64_t speed)
{
	((void (*)(unsigned int, uint64_t))fake("fake_verbs_speed"))(nic, speed);
}

/* For tests of several rails; the fake library reads its list once. */
static void nics(void)
{
	setenv("FAKE_VERBS", "fake0,fake1,fake2,fake3", 1);
}

/* ---- two engines ----------------------------------------------------------------------------------- */

struct side {
	struct wh_engine *engine;
	uint32_t kind;
	unsigned char *memory, *start; /* start: of the region */
	struct wh_region *region;
};

struct duo {
	struct side ours, theirs;
	struct wh_peer *peer;
	struct wh_remote remote;
};

static void side_open(struct side *side, uint32_t kind, const char *name, const char *listen,
		      const char *const *config)
{
	struct wh_region_options named = { .size = sizeof(named), .name = name };
	struct wh_memory_options options = { .size = sizeof(options), .kind = kind };
	void *memory;

	side->kind = kind;
	side->engine = engine_open(NULL, listen, config);
	want(0, wh_memory_alloc(side->engine, LENGTH + 2 * OFFSET, &options, &memory));
	side->memory = memory;
	side->start = side->memory + OFFSET;
	want(0, wh_region_register(side->engine, side->start, LENGTH, &named, &side->region));
}

static void side_close(struct side *side)
{
	want(0, wh_region_unregister(side->region));
	want(0, wh_memory_free(side->engine, side->memory));
	want(0, wh_engine_close(side->engine));
}

/* `ways`: the knob rdma_gpu of both ("": as it is by itself). Rails: the knob rdma of each. */
static void duo_open_by(struct duo *duo, uint32_t here, uint32_t there, const char *ways,
			const char *our_rails, const char *their_rails)
{
	char knob[64], mine[64], others[64];
	const char *ours[] = { "transports=rdma,tcp", mine, PATIENT, knob, NULL };
	const char *theirs[] = { "transports=rdma,tcp", others, PATIENT, knob, NULL };

	snprintf(knob, sizeof(knob), "rdma_gpu=%s", *ways ? ways : "dmabuf,peermem,staged");
	snprintf(mine, sizeof(mine), "rdma=%s", our_rails);
	snprintf(others, sizeof(others), "rdma=%s", their_rails);
	memset(duo, 0, sizeof(*duo));
	side_open(&duo->theirs, there, "target", "127.0.0.1:0", theirs);
	side_open(&duo->ours, here, "mine", "none", ours);
	want(0, wh_peer_open(duo->ours.engine, wh_engine_url(duo->theirs.engine), NULL, &duo->peer));
	want(0, wh_peer_find(duo->peer, "target", PATIENCE, &duo->remote));
}

static void duo_open(struct duo *duo, uint32_t here, uint32_t there, const char *ways)
{
	duo_open_by(duo, here, there, ways, "fake0", "fake1");
}

static void duo_close(struct duo *duo)
{
	want(0, wh_peer_close(duo->peer));
	side_close(&duo->ours);
	side_close(&duo->theirs);
}

static void fill(const struct side *side, uint64_t seed)
{
	unsigned char *image = malloc(LENGTH);

	assert_non_null(image);
	pattern_fill(image, LENGTH, 0, seed);
	bytes_put(side->start, image, LENGTH, side->kind);
	free(image);
}

static bool holds(const struct side *side, uint64_t seed)
{
	unsigned char *image = malloc(LENGTH);
	bool good;

	assert_non_null(image);
	bytes_get(image, side->start, LENGTH, side->kind);
	good = pattern_check(image, LENGTH, 0, seed) == PATTERN_GOOD;
	free(image);
	return good;
}

static struct wh_batch *whole(const struct duo *duo, uint32_t op)
{
	struct wh_transfer parts[] = {
		{ .local = duo->ours.region, .remote = duo->remote.id, .length = MIB + 1, .op = op },
		{ .local = duo->ours.region, .remote = duo->remote.id, .local_offset = MIB + 1,
		  .remote_offset = MIB + 1, .length = 3, .op = op },
		{ .local = duo->ours.region, .remote = duo->remote.id, .local_offset = MIB + 4,
		  .remote_offset = MIB + 4, .length = LENGTH - MIB - 4, .op = op },
	};
	struct wh_batch *batch;

	want(0, wh_batch_new(duo->peer, NULL, &batch));
	want(0, wh_batch_add(batch, parts, 3));
	return batch;
}

/* Has all of it gone by this transport? */
static bool told(struct wh_batch *batch, const char *transport, char text[2048])
{
	struct wh_route routes[8];
	size_t count = 8;
	bool found = false;

	want_true(wh_batch_explain(batch, text, 2048) > 0, "%s", wh_error_text());
	want(0, wh_batch_routes(batch, routes, &count));
	for (size_t i = 0; i < count; i++)
		found |= !strcmp(routes[i].transport, transport) && routes[i].bytes == LENGTH;
	return found;
}

/* All of it has, and explain has these words. */
static void want_told(struct wh_batch *batch, const char *transport, const char *first, const char *second)
{
	char text[2048];

	want_true(told(batch, transport, text), "not by %s:\n%s", transport, text);
	want_true(strstr(text, first), "it does not say \"%s\":\n%s", first, text);
	want_true(!second || strstr(text, second), "it does not say \"%s\":\n%s", second, text);
}

/* On a busy machine the first batches do not wait for a connection as long as it takes. */
static void settle(const struct duo *duo, const char *transport, const char *first)
{
	int64_t end = now() + PATIENCE;
	struct wh_batch *batch;
	char text[2048];
	bool good;

	do {
		batch = whole(duo, WH_WRITE);
		want(0, batch_run(batch));
		good = told(batch, transport, text) && strstr(text, first);
		want(0, wh_batch_free(batch));
	} while (!good && now() < end);
}

/* All of it there and back, twice. */
static void exchange(struct duo *duo, const char *transport, const char *first, const char *second)
{
	settle(duo, transport, first);
	for (uint64_t seed = 1; seed < 5; seed++) {
		uint32_t op = seed % 2 ? WH_WRITE : WH_READ;
		struct wh_batch *batch = whole(duo, op);

		fill(op == WH_WRITE ? &duo->ours : &duo->theirs, seed);
		want(0, batch_run(batch));
		want_true(holds(&duo->ours, seed) && holds(&duo->theirs, seed), "the bytes are wrong");
		want_told(batch, transport, first, second);
		want(0, wh_batch_free(batch));
	}
}

static void expect(uint32_t here, uint32_t there, const char *ways, const char *transport,
		   const char *first, const char *second)
{
	struct duo duo;

	duo_open(&duo, here, there, ways);
	exchange(&duo, transport, first, second);
	duo_close(&duo);
}

/* ---- ways ------------------------------------------------------------------------------------------ */

/* Like mlx5. */
static void way__dma_buf(void **state)
{
	struct registered before = registered(), after;

	(void)state;
	expect(WH_MEMORY_DEVICE, WH_MEMORY_DEVICE, "", "rdma", "our GPU memory: dmabuf, ordered",
	       "their GPU memory: dmabuf, ordered");
	after = registered();
	want_true(after.all - before.all == 2 && after.dma_bufs - before.dma_bufs == 2,
		  "%llu registrations, %llu of dma-bufs", (unsigned long long)(after.all - before.all),
		  (unsigned long long)(after.dma_bufs - before.dma_bufs));
}

/* A NIC that takes none, on a host with the module. */
static void way__peermem(void **state)
{
	(void)state;
	setenv("FAKE_VERBS_DMABUF", "95", 1);
	setenv("FAKE_VERBS_PEERMEM", "1", 1);
	expect(WH_MEMORY_DEVICE, WH_MEMORY_VMM, "", "rdma",
	       "our GPU memory: peermem, ordered (dmabuf: the NIC: Operation not supported)",
	       "their GPU memory: peermem");
}

/* The driver of the NIC has the call, and refuses this memory. */
static void way__peermem_instead(void **state)
{
	(void)state;
	setenv("FAKE_VERBS_REGISTER", "22", 1);
	setenv("FAKE_VERBS_PEERMEM", "1", 1);
	expect(WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "", "rdma",
	       "our GPU memory: peermem, ordered (dmabuf: Invalid argument)", NULL);
}

/* A host without the module, and a NIC without dma-buf. */
static void way__staged(void **state)
{
	(void)state;
	setenv("FAKE_VERBS_DMABUF", "95", 1);
	expect(WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "", "rdma", "our GPU memory: staged (dmabuf: ",
	       "peermem: Bad address (modprobe nvidia-peermem)");
}

static void way__staged_to_registered(void **state)
{
	const char *ours[] = { "transports=rdma,tcp", "rdma=fake0", "rdma_gpu=staged", PATIENT, NULL };
	struct duo duo = { 0 };

	(void)state;
	side_open(&duo.theirs, WH_MEMORY_DEVICE, "target", "127.0.0.1:0",
		  (const char *[]){ "rdma=fake1", PATIENT, NULL });
	side_open(&duo.ours, WH_MEMORY_MANAGED, "mine", "none", ours);
	want(0, wh_peer_open(duo.ours.engine, wh_engine_url(duo.theirs.engine), NULL, &duo.peer));
	want(0, wh_peer_find(duo.peer, "target", PATIENCE, &duo.remote));
	exchange(&duo, "rdma", "our GPU memory: staged", "their GPU memory: dmabuf");
	duo_close(&duo);
}

/* Its owner does not stage it for NICs: tcp does. */
static void way__owner_refuses(void **state)
{
	(void)state;
	setenv("FAKE_VERBS_DMABUF", "95", 1);
	expect(WH_MEMORY_PAGEABLE, WH_MEMORY_DEVICE, "", "tcp", "its GPU's memory is staged there",
	       "modprobe nvidia-peermem");
}

static void way__none_left(void **state)
{
	(void)state;
	expect(WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "peermem", "tcp", "does not reach memory of cuda:0",
	       "peermem: Bad address");
}

static void way__unknown(void **state)
{
	(void)state;
	expect(WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "dma-buf", "tcp",
	       "known are dmabuf, peermem and staged", NULL);
}

/* Many keys for one region. */
static void way__many_keys(void **state)
{
	(void)state;
	setenv("FAKE_VERBS_MR", "65536", 1);
	expect(WH_MEMORY_DEVICE, WH_MEMORY_POOL, "", "rdma", "our GPU memory: dmabuf",
	       "their GPU memory: dmabuf");
}

/* ---- what is shared -------------------------------------------------------------------------------- */

static void shared__by_rights(void **state)
{
	struct wh_region_options readable = { .size = sizeof(readable), .access = WH_ACCESS_READ };
	struct wh_region *second, *third;
	struct registered before, after;
	struct wh_transfer parts[2];
	struct wh_batch *batch;
	struct duo duo;

	(void)state;
	duo_open(&duo, WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "");
	want(0, wh_region_register(duo.ours.engine, duo.ours.start, LENGTH, NULL, &second));
	want(0, wh_region_register(duo.ours.engine, duo.ours.start, LENGTH, &readable, &third));
	exchange(&duo, "rdma", "dmabuf", NULL);
	before = registered();
	for (unsigned int i = 0; i < 2; i++)
		parts[i] = (struct wh_transfer){ .local = i ? third : second, .remote = duo.remote.id,
						 .length = 5000, .remote_offset = i * 5000,
						 .op = WH_WRITE };
	want(0, wh_batch_new(duo.peer, NULL, &batch));
	want(0, wh_batch_add(batch, parts, 2));
	want(0, batch_run(batch));
	after = registered();
	want_true(after.all - before.all == 1, "%llu registrations for one more set of rights",
		  (unsigned long long)(after.all - before.all));
	want(0, wh_batch_free(batch));
	want(0, wh_region_unregister(second));
	exchange(&duo, "rdma", "dmabuf", NULL);
	want(0, wh_region_unregister(third));
	duo_close(&duo);
}

/* One export of the GPU's memory does for both of our NICs. */
static void shared__export(void **state)
{
	const char *ours[] = { "transports=rdma,tcp", "rdma=fake0,fake2", PATIENT, NULL };
	int64_t end = now() + 3 * PATIENCE;
	uint64_t before, bytes = 0;
	struct wh_route routes[8];
	struct wh_batch *batch;
	struct duo duo = { 0 };

	(void)state;
	nics();
	side_open(&duo.theirs, WH_MEMORY_PAGEABLE, "target", "127.0.0.1:0",
		  (const char *[]){ "rdma=fake1", PATIENT, NULL });
	side_open(&duo.ours, WH_MEMORY_DEVICE, "mine", "none", ours);
	want(0, wh_peer_open(duo.ours.engine, wh_engine_url(duo.theirs.engine), NULL, &duo.peer));
	want(0, wh_peer_find(duo.peer, "target", PATIENCE, &duo.remote));
	before = fake_calls("cuMemGetHandleForAddressRange");
	exchange(&duo, "rdma", "dmabuf", NULL);
	port(0, false);
	batch = whole(&duo, WH_WRITE);
	while (!bytes && now() < end) {
		size_t count = 8;

		want(0, batch_run(batch));
		want(0, wh_batch_routes(batch, routes, &count));
		for (size_t i = 0; i < count; i++)
			if (!strcmp(routes[i].transport, "rdma") && strstr(routes[i].detail, "fake2"))
				bytes = routes[i].bytes;
	}
	port(0, true);
	want_true(bytes == LENGTH, "the other NIC is not taken");
	want_true(fake_calls("cuMemGetHandleForAddressRange") - before == 1, "%llu exports",
		  (unsigned long long)(fake_calls("cuMemGetHandleForAddressRange") - before));
	want(0, wh_batch_free(batch));
	duo_close(&duo);
}

/* ---- several rails --------------------------------------------------------------------------------- */

static void rails_open(struct duo *duo, uint32_t here, uint32_t there, const char *ways)
{
	nics();
	duo_open_by(duo, here, there, ways, "fake0,fake2", "fake1,fake3");
}

/* All of it, until these of our NICs have moved some, and nothing has by others. */
static void want_rails(struct wh_batch *batch, bool first, bool second)
{
	int64_t end = now() + 3 * PATIENCE;
	uint64_t by[2];
	char text[2048];

	do {
		by[0] = moved(0);
		by[1] = moved(2);
		want(0, batch_run(batch));
		by[0] = moved(0) - by[0];
		by[1] = moved(2) - by[1];
		want_true(wh_batch_explain(batch, text, sizeof(text)) > 0, "%s", wh_error_text());
		want_true(now() < end, "%llu and %llu bytes:\n%s", (unsigned long long)by[0],
			  (unsigned long long)by[1], text);
	} while (!by[0] == first || !by[1] == second || by[0] + by[1] != LENGTH);
}

/* With both rails, or one of them; then what is told of it. */
static void striped(uint32_t here, uint32_t there, const char *ways, bool second, const char *first_told,
		    const char *second_told)
{
	struct wh_batch *batch;
	struct duo duo;

	rails_open(&duo, here, there, ways);
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		batch = whole(&duo, op);
		want_rails(batch, true, second);
		fill(op == WH_WRITE ? &duo.ours : &duo.theirs, op + 20);
		want_rails(batch, true, second);
		want_true(holds(&duo.ours, op + 20) && holds(&duo.theirs, op + 20), "the bytes are wrong");
		want_told(batch, "rdma", first_told, second_told);
		want(0, wh_batch_free(batch));
	}
	duo_close(&duo);
}

static void rails__dma_buf(void **state)
{
	(void)state;
	striped(WH_MEMORY_DEVICE, WH_MEMORY_DEVICE, "", true, "(2 rails, RoCE v2, dmabuf)",
		"our GPU memory: dmabuf, ordered; their GPU memory: dmabuf, ordered\n");
	setenv("FAKE_VERBS_MR", "65536", 1); /* many keys */
	striped(WH_MEMORY_DEVICE, WH_MEMORY_POOL, "", true, "(2 rails, RoCE v2, dmabuf)", NULL);
}

static void rails__staged(void **state)
{
	(void)state;
	striped(WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "staged", true, "(2 rails, RoCE v2, staged)",
		"our GPU memory: staged");
}

/* A NIC of ours, or theirs, does not reach the memory: the other line carries all of it. */
static void rails__one_without(void **state)
{
	(void)state;
	setenv("FAKE_VERBS_NO_DMABUF", "fake2", 1);
	striped(WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "", false,
		"our GPU memory: dmabuf, ordered, fake2: not used", "(dmabuf: the NIC: Operation not supported");
	setenv("FAKE_VERBS_NO_DMABUF", "fake3", 1);
	striped(WH_MEMORY_PAGEABLE, WH_MEMORY_DEVICE, "", false,
		"their GPU memory: dmabuf, ordered, fake3: not used", "its GPU's memory is staged there");
}

/* The only one that reaches it goes: the other's slots have to do. */
static void rails__staged_instead(void **state)
{
	struct wh_batch *batch;
	struct duo duo;

	(void)state;
	setenv("FAKE_VERBS_NO_DMABUF", "fake2", 1);
	rails_open(&duo, WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "");
	batch = whole(&duo, WH_WRITE);
	want_rails(batch, true, false);
	port(0, false);
	fill(&duo.ours, 31);
	want_rails(batch, false, true);
	want_true(holds(&duo.theirs, 31), "the bytes are wrong");
	want_told(batch, "rdma", "our GPU memory: staged (dmabuf: the NIC: Operation not supported", NULL);
	port(0, true);
	fill(&duo.ours, 32);
	want_rails(batch, true, false);
	want_true(holds(&duo.theirs, 32), "the bytes are wrong");
	want_told(batch, "rdma", "our GPU memory: dmabuf, ordered, fake2: not used", NULL);
	want(0, wh_batch_free(batch));
	duo_close(&duo);
}

/* One of two breaks in mid-batch: the other takes what it had. */
static void broken(uint32_t op, const char *ways, uint32_t there)
{
	struct wh_batch *batch;
	struct duo duo;

	rails_open(&duo, WH_MEMORY_DEVICE, there, ways);
	batch = whole(&duo, op);
	want_rails(batch, true, true);
	fill(op == WH_WRITE ? &duo.ours : &duo.theirs, 40 + op);
	fail_next_of(2, 12, 0);
	want(0, batch_run(batch));
	fail_next_of(2, 0, 0);
	want_true(holds(&duo.ours, 40 + op) && holds(&duo.theirs, 40 + op), "the bytes are wrong");
	want_told(batch, "rdma", "it broke: ", NULL);
	want(0, wh_batch_free(batch));
	duo_close(&duo);
}

static void rails__break(void **state)
{
	(void)state;
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		broken(op, "", WH_MEMORY_DEVICE);
		broken(op, "staged", WH_MEMORY_PAGEABLE);
	}
}

/* The only one that reaches it breaks in mid-batch: what is left of that one goes some other way. */
static void rails__break_the_only(void **state)
{
	struct wh_batch *batch;
	struct duo duo;
	uint64_t seed;

	(void)state;
	setenv("FAKE_VERBS_NO_DMABUF", "fake2", 1);
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		rails_open(&duo, WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "");
		batch = whole(&duo, op);
		want_rails(batch, true, false);
		fill(op == WH_WRITE ? &duo.ours : &duo.theirs, 60 + op);
		fail_next_of(0, 12, 1);
		want(0, batch_run(batch));
		fail_next_of(0, 0, 0);
		want_true(holds(&duo.ours, 60 + op) && holds(&duo.theirs, 60 + op), "the bytes are wrong");
		fill(&duo.ours, 70);
		want_rails(batch, true, false);
		seed = op == WH_WRITE ? 70 : 60 + op;
		want_true(holds(&duo.ours, seed) && holds(&duo.theirs, seed), "the bytes are wrong");
		want(0, wh_batch_free(batch));
		duo_close(&duo);
	}
}

/* A slow rail leaves the end to a fast one, but not what that one does not reach. */
static void rails__slow_alone(void **state)
{
	struct wh_transfer host = { .length = LENGTH, .op = WH_WRITE };
	unsigned char *pages = pages_new(LENGTH);
	struct wh_region *region;
	struct wh_batch *both, *one;
	struct duo duo;

	(void)state;
	setenv("FAKE_VERBS_NO_DMABUF", "fake2", 1);
	rails_open(&duo, WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "");
	want(0, wh_region_register(duo.ours.engine, pages, LENGTH, NULL, &region));
	host.local = region;
	host.remote = duo.remote.id;
	want(0, wh_batch_new(duo.peer, NULL, &both));
	want(0, wh_batch_add(both, &host, 1));
	one = whole(&duo, WH_WRITE);
	want_rails(one, true, false);
	fill(&duo.ours, 80);
	set_speed(0, 300);
	want_rails(both, true, true); /* how fast they are is known now */
	want(0, batch_run(one));
	set_speed(0, 0);
	want_true(holds(&duo.theirs, 80), "the bytes are wrong");
	want_told(one, "rdma", "our GPU memory: dmabuf", NULL);
	want(0, wh_batch_free(both));
	want(0, wh_batch_free(one));
	want(0, wh_region_unregister(region));
	pages_free(pages, LENGTH);
	duo_close(&duo);
}

/* What lies apart in our GPU's memory is gathered, over keys of it and of theirs, and scattered. */
static void rails__gathered(void **state)
{
	enum { COUNT = 4000, EACH = 300, STEP = 700 };
	static struct wh_transfer parts[COUNT];
	void (*count)(uint64_t *, uint64_t *, uint64_t *) =
		(void (*)(uint64_t *, uint64_t *, uint64_t *))fake("fake_verbs_counts");
	unsigned char *image = malloc(LENGTH), *packed = malloc(COUNT * EACH);
	uint64_t before, after, others[2];
	struct wh_batch *batch;
	struct duo duo;

	(void)state;
	assert_true(image && packed);
	setenv("FAKE_VERBS_MR", "65536", 1);
	rails_open(&duo, WH_MEMORY_DEVICE, WH_MEMORY_DEVICE, "");
	batch = whole(&duo, WH_WRITE);
	want_rails(batch, true, true);
	want(0, wh_batch_free(batch));
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		for (unsigned int i = 0; i < COUNT; i++)
			parts[i] = (struct wh_transfer){ .local = duo.ours.region, .remote = duo.remote.id,
							 .local_offset = (uint64_t)i * STEP,
							 .remote_offset = (uint64_t)i * EACH,
							 .length = EACH, .op = op };
		want(0, wh_batch_new(duo.peer, NULL, &batch));
		want(0, wh_batch_add(batch, parts, COUNT));
		fill(op == WH_WRITE ? &duo.ours : &duo.theirs, 50 + op);
		count(&before, &others[0], &others[1]);
		want(0, batch_run(batch));
		count(&after, &others[0], &others[1]);
		bytes_get(image, duo.ours.start, LENGTH, duo.ours.kind);
		bytes_get(packed, duo.theirs.start, COUNT * EACH, duo.theirs.kind);
		for (unsigned int i = 0; i < COUNT; i++)
			want_true(!memcmp(image + (size_t)i * STEP, packed + (size_t)i * EACH, EACH),
				  "block %u is wrong", i);
		want_true(after - before < COUNT / 3, "%llu requests for %u blocks",
			  (unsigned long long)(after - before), COUNT);
		want(0, wh_batch_free(batch));
	}
	duo_close(&duo);
	free(image);
	free(packed);
}

/* ---- relaxed ordering ------------------------------------------------------------------------------ */

static uint64_t relaxed(const char *value)
{
	struct registered before = registered(), after;

	setenv("WHERRY_RDMA_RELAXED", value, 1);
	expect(WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "", "rdma", "dmabuf", NULL);
	unsetenv("WHERRY_RDMA_RELAXED");
	after = registered();
	want_true(after.all - before.all == 2, "%llu registrations",
		  (unsigned long long)(after.all - before.all));
	return after.relaxed - before.relaxed;
}

static void relaxed__as_the_knob_says(void **state)
{
	(void)state;
	want(2, relaxed("1"));
	want(0, relaxed("0"));
}

/* ---- refused, failed, freed ------------------------------------------------------------------------ */

/* The third of many keys is refused: nothing of the others stays, and the next way is taken. */
static void refused__in_the_middle(void **state)
{
	int (*open)(void) = (int (*)(void))fake("fake_verbs_open"), before = open();
	struct duo duo;

	(void)state;
	setenv("FAKE_VERBS_MR", "1048576", 1);
	duo_open(&duo, WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "dmabuf,staged");
	/* Ours are registered before the owner's, and ours are four. */
	refuse_next(ENOMEM, 2);
	exchange(&duo, "rdma", "our GPU memory: staged (dmabuf: Cannot allocate memory)", NULL);
	duo_close(&duo);
	want(before, open());
}

/* The connection breaks while a slot is on its way: all of it goes by tcp. */
static void staged__broken(void **state)
{
	struct wh_batch *batch;
	struct duo duo;

	(void)state;
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		duo_open(&duo, WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "staged");
		settle(&duo, "rdma", "staged");
		batch = whole(&duo, op);
		want(0, batch_run(batch));
		fill(op == WH_WRITE ? &duo.ours : &duo.theirs, 7);
		fail_next(12, 2);
		want(0, batch_run(batch));
		want_true(holds(&duo.ours, 7) && holds(&duo.theirs, 7), "the bytes are wrong");
		want_told(batch, "tcp", "no acknowledgement", NULL);
		want(0, wh_batch_free(batch));
		duo_close(&duo);
	}
}

static void staged__cancelled(void **state)
{
	struct wh_batch *batch;
	struct duo duo;

	(void)state;
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		duo_open(&duo, WH_MEMORY_DEVICE, WH_MEMORY_PAGEABLE, "staged");
		settle(&duo, "rdma", "staged");
		batch = whole(&duo, op);
		want(0, batch_run(batch));
		hold(true);
		want(0, wh_batch_submit(batch));
		want(-ETIMEDOUT, wh_batch_wait(batch, 100 * MS));
		want(0, wh_batch_cancel(batch));
		hold(false);
		want(-ECANCELED, wh_batch_poll(batch));
		want(0, wh_batch_free(batch));
		exchange(&duo, "rdma", "staged", NULL);
		duo_close(&duo);
	}
}

/* The owner is gone while slots are on their way. */
static void staged__peer_killed(void **state)
{
	static const struct route to = { .name = "rdma", .require = "rdma", .listen = "127.0.0.1:0",
					 .kind = WH_MEMORY_PAGEABLE };
	const char *const config[] = { "rdma_gpu=staged", PATIENT, NULL };
	struct wh_memory_options options = { .size = sizeof(options), .kind = WH_MEMORY_DEVICE };
	struct wh_region *region;
	struct wh_transfer all;
	struct wh_batch *batch;
	struct fixture f;
	void *memory;

	(void)state;
	fixture_open_with(&f, &to, LENGTH, config, NULL);
	want(0, wh_memory_alloc(f.engine, LENGTH, &options, &memory));
	want(0, wh_region_register(f.engine, memory, LENGTH, NULL, &region));
	all = (struct wh_transfer){ .local = region, .remote = f.remote.id, .length = LENGTH,
				    .op = WH_WRITE };
	batch = batch_of(&f, &all, 1);
	want(0, batch_run(batch));
	hold(true);
	want(0, wh_batch_submit(batch));
	child_kill(f.child);
	want_true(wh_batch_wait(batch, 2 * PATIENCE) < 0, "it was done without its owner");
	hold(false);
	want(0, wh_batch_free(batch));
	want(0, wh_region_unregister(region));
	want(0, wh_memory_free(f.engine, memory));
	fixture_close_initiator(&f);
}

/* Ours: seen before a byte moves, in a batch that is planned anew and in one that is not. */
static void freed__ours(void **state)
{
	static const char *const ways[] = { "dmabuf", "staged" };
	struct wh_transfer part;
	struct wh_region *region;
	struct wh_batch *batch;
	struct duo duo;
	uint64_t memory;

	(void)state;
	for (unsigned int i = 0; i < 2; i++) {
		duo_open(&duo, WH_MEMORY_PAGEABLE, WH_MEMORY_PAGEABLE, ways[i]);
		gpu_enter(0);
		want(0, CU(cuMemAlloc_v2, (uint64_t *, size_t), &memory, MIB));
		want(0, wh_region_register(duo.ours.engine, (void *)(uintptr_t)memory, MIB, NULL, &region));
		part = (struct wh_transfer){ .local = region, .remote = duo.remote.id, .length = MIB,
					     .op = WH_WRITE };
		want(0, wh_batch_new(duo.peer, NULL, &batch));
		want(0, wh_batch_add(batch, &part, 1));
		want(0, batch_run(batch));
		want(0, CU(cuMemFree_v2, (uint64_t), memory));
		want(-ESTALE, batch_run(batch));
		want_true(strstr(wh_batch_error_text(batch), "was freed"), "%s",
			  wh_batch_error_text(batch));
		want(0, wh_batch_free(batch));
		want(0, wh_batch_new(duo.peer, NULL, &batch));
		want(0, wh_batch_add(batch, &part, 1));
		want(-ESTALE, batch_run(batch));
		want(0, wh_batch_free(batch));
		want(0, wh_region_unregister(region));
		gpu_leave();
		duo_close(&duo);
	}
}

/* The owner's: no keys are given for it. */
static void freed__theirs(void **state)
{
	struct wh_region_options named = { .size = sizeof(named), .name = "short-lived" };
	struct wh_transfer part;
	struct wh_remote remote;
	struct wh_region *region;
	struct wh_batch *batch;
	struct duo duo;
	uint64_t memory;

	(void)state;
	duo_open(&duo, WH_MEMORY_PAGEABLE, WH_MEMORY_PAGEABLE, "");
	gpu_enter(0);
	want(0, CU(cuMemAlloc_v2, (uint64_t *, size_t), &memory, MIB));
	want(0, wh_region_register(duo.theirs.engine, (void *)(uintptr_t)memory, MIB, &named, &region));
	want(0, wh_peer_find(duo.peer, "short-lived", PATIENCE, &remote));
	want(0, CU(cuMemFree_v2, (uint64_t), memory));
	part = (struct wh_transfer){ .local = duo.ours.region, .remote = remote.id, .length = MIB,
				     .op = WH_WRITE };
	want(0, wh_batch_new(duo.peer, NULL, &batch));
	want(0, wh_batch_add(batch, &part, 1));
	want(-ESTALE, batch_run(batch));
	want(0, wh_batch_free(batch));
	want(0, wh_region_unregister(region));
	gpu_leave();
	duo_close(&duo);
}

/* ---- other GPUs: of a child, whose driver reads the environment itself ------------------------------- */

static const struct route into_gpu = { .name = "rdma", .listen = "127.0.0.1:0", .detail = "",
				       .kind = WH_MEMORY_DEVICE };

/* Write into the memory of a child with these settings of its driver. The status. */
static int write_to(const char *attributes, const char *failing, const char *word, char text[2048])
{
	const char *const config[] = { "transports=rdma,tcp", PATIENT, NULL };
	struct wh_transfer all;
	struct wh_batch *batch;
	struct fixture f;
	int status;

	setenv("FAKE_CUDA_ATTRIBUTES", attributes, 1);
	if (failing)
		setenv("FAKE_CUDA_FAIL", failing, 1);
	fixture_open_with(&f, &into_gpu, MIB, config, NULL);
	unsetenv("FAKE_CUDA_FAIL");
	unsetenv("FAKE_CUDA_ATTRIBUTES");
	pattern_fill(f.local, MIB, 0, 3);
	all = piece(&f, WH_WRITE, 0, 0, MIB);
	do {
		batch = batch_of(&f, &all, 1);
		status = batch_run(batch);
		wh_batch_explain(batch, text, 2048);
		if (strstr(text, "still being"))
			want(0, wh_batch_free(batch));
	} while (strstr(text, "still being"));
	want_true(status || target_check(&f, 0, MIB, 0, 3) == PATTERN_GOOD, "the bytes are wrong");
	want_true(strstr(status ? wh_batch_error_text(batch) : text, word), "no \"%s\": %s\n%s", word,
		  wh_batch_error_text(batch), text);
	want(0, wh_batch_free(batch));
	fixture_close(&f);
	return status;
}

/* The owner's flush is what ends a write: if it fails, so does the write. */
static void flush__theirs(void **state)
{
	char text[2048];

	(void)state;
	want(0, write_to("118=0", NULL, "their GPU memory: dmabuf, flushed", text));
	want(-EIO, write_to("118=0", "cuFlushGPUDirectRDMAWrites:1:999", "could not flush", text));
	/* A GPU that orders them itself is left alone. */
	want(0, write_to("118=100", "cuFlushGPUDirectRDMAWrites:1:999", "dmabuf, ordered", text));
}

static void flush__impossible(void **state)
{
	char text[2048];

	(void)state;
	want(0, write_to("118=0,117=0", NULL, "neither orders nor flushes", text));
}

static void driver__without_dma_buf(void **state)
{
	char text[2048];

	(void)state;
	want(0, write_to("124=0", NULL, "the GPU's driver has none", text));
}

/* The child reads into its own GPU's memory, and flushes that. */
static int read_by(const char *failing, struct child_result *result)
{
	const struct child_options options = { .config = { "transports=rdma,tcp", "rdma=fake1", PATIENT } };
	struct child_transfer read = { .remote = "target", .op = WH_READ, .length = LENGTH };
	struct side ours = { 0 };
	struct child *child;
	int memory, status;

	side_open(&ours, WH_MEMORY_PAGEABLE, "target", "127.0.0.1:0",
		  (const char *[]){ "transports=rdma,tcp", PATIENT, NULL });
	fill(&ours, 4);
	setenv("FAKE_CUDA_ATTRIBUTES", "118=0", 1);
	if (failing)
		setenv("FAKE_CUDA_FAIL", failing, 1);
	child = child_start(&options);
	unsetenv("FAKE_CUDA_FAIL");
	unsetenv("FAKE_CUDA_ATTRIBUTES");
	memory = child_memory(child, WH_MEMORY_DEVICE, LENGTH);
	read.region = child_region(child, memory, 0, LENGTH, NULL, 0, NULL);
	read.peer = child_peer(child, wh_engine_url(ours.engine), NULL);
	status = child_transfer(child, &read, result);
	want_true(status || child_check(child, memory, 0, LENGTH, 0, 4) == PATTERN_GOOD,
		  "the bytes are wrong");
	child_exit(child);
	side_close(&ours);
	return status;
}

static void flush__ours(void **state)
{
	struct child_result result;

	(void)state;
	want(0, read_by(NULL, &result));
	want_true(strstr(result.explain, "our GPU memory: dmabuf, flushed"), "%s", result.explain);
	want(-EIO, read_by("cuFlushGPUDirectRDMAWrites:1:999", &result));
	want_true(strstr(result.text, "cuFlushGPUDirectRDMAWrites"), "%s", result.text);
}

/* Memory of many mappings, of which the driver exports but one at a time; a region in the middle of them. */
static void segmented(const char *way)
{
	const struct child_options options = { .listen = "127.0.0.1:0", .config = { "rdma=fake1", PATIENT } };
	const uint64_t length = 5 * MIB + 1, offset = MIB + 4099;
	struct child *child = child_start(&options);
	int memory = child_memory(child, CHILD_SEGMENTED, 8 * MIB);
	struct side ours = { 0 };
	struct wh_transfer all;
	struct wh_remote remote;
	struct wh_batch *batch;
	struct wh_region *region;
	struct wh_peer *peer;
	unsigned char *pages = pages_new(length);
	char text[2048];

	child_region(child, memory, offset, length, "target", 0, NULL);
	side_open(&ours, WH_MEMORY_PAGEABLE, "mine", "none", (const char *[]){ PATIENT, NULL });
	want(0, wh_region_register(ours.engine, pages, length, NULL, &region));
	pattern_fill(pages, length, 0, 6);
	want(0, wh_peer_open(ours.engine, child->url, NULL, &peer));
	want(0, wh_peer_find(peer, "target", PATIENCE, &remote));
	all = (struct wh_transfer){ .local = region, .remote = remote.id, .length = length,
				    .op = WH_WRITE };
	want(0, wh_batch_new(peer, NULL, &batch));
	want(0, wh_batch_add(batch, &all, 1));
	setenv("WHERRY_REQUIRE", "rdma", 1);
	want(0, batch_run(batch));
	unsetenv("WHERRY_REQUIRE");
	wh_batch_explain(batch, text, sizeof(text));
	want_true(strstr(text, way), "not by %s:\n%s", way, text);
	want_true(child_check(child, memory, offset, length, 0, 6) == PATTERN_GOOD, "the bytes are wrong");
	want(0, wh_batch_free(batch));
	want(0, wh_peer_close(peer));
	want(0, wh_region_unregister(region));
	side_close(&ours);
	pages_free(pages, length);
	child_exit(child);
}

static void segments__dma_buf(void **state)
{
	(void)state;
	setenv("WHERRY_TRANSPORTS", "rdma,tcp", 1);
	segmented("their GPU memory: dmabuf");
}

static void segments__peermem(void **state)
{
	(void)state;
	setenv("WHERRY_TRANSPORTS", "rdma,tcp", 1);
	setenv("FAKE_VERBS_DMABUF", "95", 1);
	setenv("FAKE_VERBS_PEERMEM", "1", 1);
	segmented("their GPU memory: peermem");
}

/* What a test has set is gone for the next, also if it has failed. */
static int end(void **state)
{
	static const char *const names[] = { "FAKE_VERBS_DMABUF", "FAKE_VERBS_PEERMEM", "FAKE_VERBS_REGISTER",
					     "FAKE_VERBS_MR",     "WHERRY_TRANSPORTS",  "WHERRY_REQUIRE",
					     "FAKE_VERBS_NO_DMABUF" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		unsetenv(names[i]);
	return harness_end(state);
}

#define ON_FAKES(function) { #function, function, harness_begin, end, (void *)&route_gpu_rdma }

static const struct CMUnitTest tests[] = {
	/* First: a fake library reads its list of NICs once. */
	ON_FAKES(shared__export),
	ON_FAKES(rails__dma_buf),
	ON_FAKES(rails__staged),
	ON_FAKES(rails__one_without),
	ON_FAKES(rails__staged_instead),
	ON_FAKES(rails__break),
	ON_FAKES(rails__break_the_only),
	ON_FAKES(rails__slow_alone),
	ON_FAKES(rails__gathered),
	ON_FAKES(way__dma_buf),
	ON_FAKES(way__peermem),
	ON_FAKES(way__peermem_instead),
	ON_FAKES(way__staged),
	ON_FAKES(way__staged_to_registered),
	ON_FAKES(way__owner_refuses),
	ON_FAKES(way__none_left),
	ON_FAKES(way__unknown),
	ON_FAKES(way__many_keys),
	ON_FAKES(shared__by_rights),
	ON_FAKES(relaxed__as_the_knob_says),
	ON_FAKES(refused__in_the_middle),
	ON_FAKES(staged__broken),
	ON_FAKES(staged__cancelled),
	ON_FAKES(staged__peer_killed),
	ON_FAKES(freed__ours),
	ON_FAKES(freed__theirs),
	ON_FAKES(flush__theirs),
	ON_FAKES(flush__impossible),
	ON_FAKES(driver__without_dma_buf),
	ON_FAKES(flush__ours),
	ON_FAKES(segments__dma_buf),
	ON_FAKES(segments__peermem),
};

HARNESS_MAIN("rdma-gpu", tests)
