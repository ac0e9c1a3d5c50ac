/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many work requests, doorbells, completions and events the transport rdma needs for a batch,
 * as counted by the fake libibverbs of the tests. Both engines are in this process. Run it under
 * callgrind to count CPU instructions as well (docs/rdma-speed.md, "On paper").
 *
 *   requests LIBIBVERBS SIZE BLOCKS TIMES [write|read [touching|polled]]
 *
 * SIZE is the length of a block in bytes, BLOCKS the number of blocks in a batch. The blocks have
 * gaps on both sides; with `touching` only in local memory. TIMES batches run one after the other;
 * each is waited for, or `polled`. Prints the numbers of batches, bytes, work requests, doorbells,
 * completions, and requests for an event.
 */
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <wherry/wherry.h>

#define SECOND INT64_C(1000000000)

struct ends {
	struct wh_engine *ours, *theirs;
	struct wh_region *here, *there;
	struct wh_peer *peer;
	struct wh_remote remote;
	void *source, *target;
	uint64_t length;
};

static void (*take_counts)(uint64_t counts[4]);

static _Noreturn void requests_die(const char *what, const char *text)
{
	fprintf(stderr, "requests: %s: %s\n", what, text);
	exit(1);
}

static struct wh_engine *engine_open_here(const char *verbs, const char *rail, const char *listen)
{
	char library[4096], nic[64];
	const char *const config[] = { library, nic, "transports=rdma", "timeout=60000", NULL };
	struct wh_engine_options options = { .size = sizeof(options),
					     .listen = listen,
					     .config = config };
	struct wh_engine *opened;

	snprintf(library, sizeof(library), "verbs=%s", verbs);
	snprintf(nic, sizeof(nic), "rdma=%s", rail);
	if (wh_engine_open(&options, &opened))
		requests_die("engine", wh_error_text());
	return opened;
}

static void ends_open(struct ends *ends, const char *verbs)
{
	struct wh_region_options named = { .size = sizeof(named),
					   .name = "target",
					   .access = WH_ACCESS_READ | WH_ACCESS_WRITE };

	ends->theirs = engine_open_here(verbs, "fake1", "127.0.0.1:0");
	ends->ours = engine_open_here(verbs, "fake0", "none");
	if (wh_memory_alloc(ends->theirs, ends->length, NULL, &ends->target) ||
	    wh_region_register(ends->theirs, ends->target, ends->length, &named, &ends->there) ||
	    wh_memory_alloc(ends->ours, ends->length, NULL, &ends->source) ||
	    wh_region_register(ends->ours, ends->source, ends->length, NULL, &ends->here) ||
	    wh_peer_open(ends->ours, wh_engine_url(ends->theirs), NULL, &ends->peer) ||
	    wh_peer_find(ends->peer, "target", 10 * SECOND, &ends->remote))
		requests_die("engines", wh_error_text());
}

static void ends_close(struct ends *ends)
{
	if (wh_peer_close(ends->peer) || wh_region_unregister(ends->here) ||
	    wh_region_unregister(ends->there) || wh_memory_free(ends->ours, ends->source) ||
	    wh_memory_free(ends->theirs, ends->target) || wh_engine_close(ends->ours) ||
	    wh_engine_close(ends->theirs))
		requests_die("close", wh_error_text());
}

/* Make a batch of blocks with a gap after each, so that no two can be merged; `touching`: without
 * gaps in remote memory. */
static struct wh_batch *batch_make(const struct ends *ends, uint32_t op, uint64_t size,
				   uint64_t blocks, bool touching)
{
	struct wh_base base = { .local = ends->here, .remote = ends->remote.id };
	struct wh_blocks_desc desc = {
		.size = sizeof(desc),
		.op = op,
		.block_length = size,
		.count = blocks,
		.bases = &base,
		.base_count = 1,
		.local_stride = 2 * size,
		.remote_stride = touching ? size : 2 * size,
	};
	struct wh_blocks *prepared;
	struct wh_batch *batch;

	if (wh_blocks_new(ends->peer, &desc, &prepared) || wh_batch_new(ends->peer, NULL, &batch) ||
	    wh_batch_add_blocks(batch, prepared))
		requests_die("blocks", wh_error_text());
	wh_blocks_free(prepared);
	return batch;
}

static void batch_run(struct wh_batch *batch, bool polled)
{
	int error = wh_batch_submit(batch);

	while (polled && !error && wh_batch_test(batch) == -EAGAIN)
		sched_yield();
	if (error || wh_batch_wait_for(batch, 60 * SECOND) || wh_batch_status(batch))
		requests_die("transfer", wh_error_text());
}

int main(int argc, char **argv)
{
	uint64_t size = argc > 2 ? strtoull(argv[2], NULL, 0) : 0;
	uint64_t blocks = argc > 3 ? strtoull(argv[3], NULL, 0) : 0;
	uint64_t times = argc > 4 ? strtoull(argv[4], NULL, 0) : 0;
	bool touching = argc > 6 && !strcmp(argv[6], "touching"), polled = argc > 6 && !touching;
	uint64_t before[4], after[4], bytes;
	struct ends ends = { 0 };
	struct wh_batch *batch;
	void *library, *found;

	if (argc < 5 || argc > 7 || (polled && strcmp(argv[6], "polled") != 0) || !size ||
	    !blocks || !times || size > UINT64_MAX / 4 / blocks) {
		fprintf(stderr, "usage: requests LIBIBVERBS SIZE BLOCKS TIMES [write|read "
				"[touching|polled]]\n");
		return 64;
	}
	setenv("FAKE_VERBS", "fake0,fake1", 1);
	library = dlopen(argv[1], RTLD_NOW);
	found = library ? dlsym(library, "fake_verbs_counts") : NULL;
	if (!found)
		requests_die(argv[1],
			     library ? "this is not the libibverbs of the tests" : dlerror());
	memcpy(&take_counts, &found, sizeof(take_counts));
	bytes = times * size * blocks;
	ends.length = 2 * size * blocks;
	ends_open(&ends, argv[1]);
	batch = batch_make(&ends, argc > 5 && !strcmp(argv[5], "read") ? WH_READ : WH_WRITE, size,
			   blocks, touching);
	batch_run(batch, polled); /* not counted: connects, and registers memory on both sides */
	take_counts(before);
	for (uint64_t i = 0; i < times; i++)
		batch_run(batch, polled);
	take_counts(after);
	printf("%llu batches, %llu bytes, %llu requests, %llu doorbells, %llu completions, %llu "
	       "events\n",
	       (unsigned long long)times, (unsigned long long)bytes,
	       (unsigned long long)(after[0] - before[0]),
	       (unsigned long long)(after[1] - before[1]),
	       (unsigned long long)(after[2] - before[2]),
	       (unsigned long long)(after[3] - before[3]));
	if (wh_batch_free(batch))
		requests_die("close", wh_error_text());
	ends_close(&ends);
	dlclose(library);
	return 0;
}
