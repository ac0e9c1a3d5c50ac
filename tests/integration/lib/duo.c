/* SPDX-License-Identifier: Apache-2.0 */
/* duo.c: two engines in one process, over the fake CUDA driver and the fake NICs */
#include "duo.h"

#include <unistd.h>

#include "files.h"

void side_open(struct side *side, uint32_t kind, const char *name, const char *listen,
	       const char *const *config)
{
	struct wh_region_options named = { .size = sizeof(named),
					   .name = name,
					   .access = ACCESS_BOTH };
	struct wh_memory_options options = { .size = sizeof(options), .kind = kind };
	void *memory;

	side->kind = kind;
	side->engine = engine_open(NULL, listen, config);
	if (kind == WH_MEMORY_FILE) {
		side->fd = file_new(LENGTH + 2 * DUO_OFFSET);
		want(0, file_region(side->engine, side->fd, DUO_OFFSET, LENGTH, &named,
				    &side->region));
		return;
	}
	want(0, wh_memory_alloc(side->engine, LENGTH + 2 * DUO_OFFSET, &options, &memory));
	side->memory = memory;
	side->start = side->memory + DUO_OFFSET;
	want(0, wh_region_register(side->engine, side->start, LENGTH, &named, &side->region));
}

void side_close(struct side *side)
{
	want(0, wh_region_unregister(side->region));
	if (side->kind == WH_MEMORY_FILE)
		close(side->fd);
	else
		want(0, wh_memory_free(side->engine, side->memory));
	want(0, wh_engine_close(side->engine));
}

void duo_connect(struct duo *duo)
{
	want(0,
	     wh_peer_open(duo->ours.engine, wh_engine_url(duo->theirs.engine), NULL, &duo->peer));
	want(0, wh_peer_find(duo->peer, "target", PATIENCE, &duo->remote));
}

void duo_open_by(struct duo *duo, uint32_t here, uint32_t there, const char *ways,
		 const char *our_rails, const char *their_rails)
{
	char setting[64], mine[64], others[64];
	const char *ours[] = { "transports=rdma,tcp", mine, PATIENT, setting, NULL };
	const char *theirs[] = { "transports=rdma,tcp", others, PATIENT, setting, NULL };

	snprintf(setting, sizeof(setting), "rdma_gpu=%s", *ways ? ways : "dmabuf,peermem,staged");
	snprintf(mine, sizeof(mine), "rdma=%s", our_rails);
	snprintf(others, sizeof(others), "rdma=%s", their_rails);
	memset(duo, 0, sizeof(*duo));
	side_open(&duo->theirs, there, "target", "127.0.0.1:0", theirs);
	side_open(&duo->ours, here, "mine", "none", ours);
	duo_connect(duo);
}

void duo_open(struct duo *duo, uint32_t here, uint32_t there, const char *ways)
{
	duo_open_by(duo, here, there, ways, "fake0", "fake1");
}

void duo_close(struct duo *duo)
{
	want(0, wh_peer_close(duo->peer));
	side_close(&duo->ours);
	side_close(&duo->theirs);
}

void nics_four(void)
{
	setenv("FAKE_VERBS", "fake0,fake1,fake2,fake3", 1);
}

void rails_open(struct duo *duo, uint32_t here, uint32_t there, const char *ways)
{
	nics_four();
	duo_open_by(duo, here, there, ways, "fake0,fake2", "fake1,fake3");
}

void fill(const struct side *side, uint64_t seed)
{
	unsigned char *image = malloc(LENGTH);

	assert_non_null(image);
	pattern_fill(image, LENGTH, 0, seed);
	if (side->kind == WH_MEMORY_FILE)
		want((int)LENGTH, (int)pwrite(side->fd, image, LENGTH, DUO_OFFSET));
	else
		bytes_put(side->start, image, LENGTH, side->kind);
	free(image);
}

static void side_get(const struct side *side, unsigned char *image)
{
	if (side->kind == WH_MEMORY_FILE)
		want((int)LENGTH, (int)pread(side->fd, image, LENGTH, DUO_OFFSET));
	else
		bytes_get(image, side->start, LENGTH, side->kind);
}

bool holds(const struct side *side, uint64_t seed)
{
	unsigned char *image = malloc(LENGTH);
	bool good;

	assert_non_null(image);
	side_get(side, image);
	good = pattern_check(image, LENGTH, 0, seed) == PATTERN_GOOD;
	free(image);
	return good;
}

void duo_fill(const struct duo *duo, uint32_t op, uint64_t seed)
{
	fill(op == WH_WRITE ? &duo->ours : &duo->theirs, seed);
}

void want_same(const struct duo *duo, uint64_t seed)
{
	want_true(holds(&duo->ours, seed) && holds(&duo->theirs, seed), "the bytes are wrong");
}

struct wh_batch *whole(const struct duo *duo, uint32_t op)
{
	struct wh_transfer parts[] = {
		{ .local = duo->ours.region,
		  .remote = duo->remote.id,
		  .length = MIB + 1,
		  .op = op },
		{ .local = duo->ours.region,
		  .remote = duo->remote.id,
		  .local_offset = MIB + 1,
		  .remote_offset = MIB + 1,
		  .length = 3,
		  .op = op },
		{ .local = duo->ours.region,
		  .remote = duo->remote.id,
		  .local_offset = MIB + 4,
		  .remote_offset = MIB + 4,
		  .length = LENGTH - MIB - 4,
		  .op = op },
	};
	struct wh_batch *batch;

	want(0, wh_batch_new(duo->peer, NULL, &batch));
	want(0, wh_batch_add(batch, parts, 3));
	return batch;
}

void want_way(struct wh_batch *batch, const char *transport, const char *first, const char *second)
{
	want_by(batch, transport, LENGTH);
	want_explained(batch, first);
	if (second)
		want_explained(batch, second);
}

void settle(const struct duo *duo, const char *transport, const char *first)
{
	int64_t end = now() + PATIENCE;
	struct wh_batch *batch;
	bool good;

	do {
		batch = whole(duo, WH_WRITE);
		want(0, batch_run(batch));
		good = bytes_by(batch, transport, NULL) == LENGTH &&
		       strstr(explained(batch), first);
		want(0, wh_batch_free(batch));
	} while (!good && now() < end);
}

void exchange(struct duo *duo, const char *transport, const char *first, const char *second)
{
	settle(duo, transport, first);
	for (uint64_t seed = 1; seed < 5; seed++) {
		uint32_t op = seed % 2 ? WH_WRITE : WH_READ;
		struct wh_batch *batch = whole(duo, op);

		duo_fill(duo, op, seed);
		want(0, batch_run(batch));
		want_same(duo, seed);
		want_way(batch, transport, first, second);
		want(0, wh_batch_free(batch));
	}
}

void expect_blocks(uint32_t here, uint32_t there, const char *ways, uint32_t op, size_t each,
		   size_t step, const char *way)
{
	enum { COUNT = 3000 };
	struct wh_base base = { 0 };
	struct wh_blocks_desc desc = { .size = sizeof(desc),
				       .op = op,
				       .block_length = each,
				       .count = COUNT,
				       .bases = &base,
				       .base_count = 1,
				       .local_stride = op == WH_READ ? step : 2 * each,
				       .remote_stride = op == WH_READ ? 2 * each : step };
	unsigned char *source = malloc(LENGTH), *target = malloc(LENGTH);
	struct wh_blocks *blocks;
	struct wh_batch *batch;
	struct duo duo;

	assert_true(source && target);
	duo_open(&duo, here, there, ways);
	settle(&duo, "rdma", way);
	base.local = duo.ours.region;
	base.remote = duo.remote.id;
	want(0, wh_blocks_new(duo.peer, &desc, &blocks));
	want(0, wh_batch_new(duo.peer, NULL, &batch));
	want(0, wh_batch_add_blocks(batch, blocks));
	wh_blocks_free(blocks);
	fill(&duo.ours, op == WH_READ ? 6 : 5);
	fill(&duo.theirs, op == WH_READ ? 5 : 6);
	want(0, batch_run(batch));
	want_by(batch, "rdma", COUNT * each);
	side_get(op == WH_READ ? &duo.theirs : &duo.ours, source);
	side_get(op == WH_READ ? &duo.ours : &duo.theirs, target);
	for (size_t i = 0; i < COUNT; i++) {
		want_true(!memcmp(source + i * 2 * each, target + i * step, each),
			  "block %zu is wrong", i);
		want_true(pattern_check(target + i * step + each, step - each, i * step + each,
					6) == PATTERN_GOOD,
			  "something is written behind block %zu", i);
	}
	want(0, wh_batch_free(batch));
	duo_close(&duo);
	free(source);
	free(target);
}

void expect(uint32_t here, uint32_t there, const char *ways, const char *transport,
	    const char *first, const char *second)
{
	struct duo duo;

	duo_open(&duo, here, there, ways);
	exchange(&duo, transport, first, second);
	duo_close(&duo);
}

void expect_cancelled(uint32_t here, uint32_t there, const char *way)
{
	struct wh_batch *batch;
	struct duo duo;

	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		duo_open(&duo, here, there, "staged");
		settle(&duo, "rdma", way);
		batch = whole(&duo, op);
		want(0, batch_run(batch));
		nics_hold(true);
		want(0, wh_batch_submit(batch));
		want(-EAGAIN, batch_end(batch, 50 * MS));
		want(0, wh_batch_cancel(batch));
		nics_hold(false);
		want(-ECANCELED, batch_now(batch));
		want(0, wh_batch_free(batch));
		exchange(&duo, "rdma", way, NULL);
		duo_close(&duo);
	}
}

void expect_tcp_after_break(struct duo *duo, uint32_t op, const char *way, uint64_t seed)
{
	struct wh_batch *batch = whole(duo, op);

	settle(duo, "rdma", way);
	duo_fill(duo, op, seed);
	nics_fail(12, 2);
	want(0, batch_run(batch));
	nics_fail(0, 0);
	want_same(duo, seed);
	want_way(batch, "tcp", "no acknowledgement", NULL);
	want(0, wh_batch_free(batch));
}

void want_rails(struct wh_batch *batch, bool first, bool second)
{
	int64_t end = now() + 3 * PATIENCE;
	uint64_t by[2];

	do {
		by[0] = nic_moved(0);
		by[1] = nic_moved(2);
		want(0, batch_run(batch));
		by[0] = nic_moved(0) - by[0];
		by[1] = nic_moved(2) - by[1];
		want_true(now() < end, "%llu and %llu bytes:\n%s", (unsigned long long)by[0],
			  (unsigned long long)by[1], explained(batch));
	} while (!by[0] == first || !by[1] == second || by[0] + by[1] != LENGTH);
}

int duo_end(void **state)
{
	static const char *const names[] = { "FAKE_VERBS_DMABUF",   "FAKE_VERBS_PEERMEM",
					     "FAKE_VERBS_REGISTER", "FAKE_VERBS_MR",
					     "WHERRY_TRANSPORTS",   "WHERRY_REQUIRE",
					     "FAKE_VERBS_NO_DMABUF" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		unsetenv(names[i]);
	return harness_end(state);
}
