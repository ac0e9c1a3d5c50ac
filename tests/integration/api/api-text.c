/* SPDX-License-Identifier: Apache-2.0 */
/* api-text.c: a successful call leaves wh_error_text() unchanged, whatever failed inside the
 * library */
#include "lib/fixture.h"

#include <pthread.h>

#define LENGTH (256 * KIB)

/* The text to expect after every call. */
static _Thread_local char expected[256];

static void leaves_at(long long wanted, long long got, const char *call, int line)
{
	want_at(wanted, got, call, __FILE__, line);
	if (strcmp(wh_error_text(), expected))
		fail_msg("%s:%d: %s succeeds and says \"%s\"; before: \"%s\"", __FILE__, line, call,
			 wh_error_text(), expected);
}

#define leaves(value, call) leaves_at((long long)(value), (long long)(call), #call, __LINE__)

static void memory(struct wh_engine *engine)
{
	static const uint32_t kinds[] = { WH_MEMORY_PAGEABLE, WH_MEMORY_HUGE, WH_MEMORY_SHARED };
	struct wh_memory_info info = { .size = sizeof(info) };
	struct wh_region_options open = { .size = sizeof(open), .access = ACCESS_BOTH };
	struct wh_region *region, *found;
	unsigned char key[WH_KEY_MAX];
	uint64_t offset;
	void *at;

	for (unsigned int i = 0; i < 3; i++) {
		struct wh_memory_options options = { .size = sizeof(options), .kind = kinds[i] };
		size_t length = sizeof(key);

		leaves(0, wh_memory_alloc(engine, LENGTH, &options, &at));
		leaves(0, wh_memory_query(engine, at, &info));
		leaves(0, wh_region_register(engine, at, LENGTH, &open, &region));
		leaves(0, wh_region_lookup(engine, at, 1, &found, &offset));
		leaves(0, wh_region_pack_key(region, key, &length));
		leaves(0, wh_region_unregister(region));
		leaves(0, wh_memory_free(engine, at));
	}
	at = pages_new(LENGTH);
	leaves(0, wh_memory_query(engine, at, &info));
	leaves(0, wh_region_register(engine, at, LENGTH, NULL, &region));
	leaves(0, wh_region_unregister(region));
	pages_free(at, LENGTH);
}

static void batches(struct wh_peer *peer, struct wh_region *region, uint64_t remote,
		    struct wh_queue *queue)
{
	struct wh_batch_options options = { .size = sizeof(options), .queue = queue };
	struct wh_transfer one = {
		.local = region, .remote = remote, .length = LENGTH / 2, .op = WH_WRITE
	};
	/* The other half of the region: transfers of one batch run in any order. */
	struct wh_base base = { .local = region,
				.local_offset = LENGTH / 2,
				.remote = remote,
				.remote_offset = LENGTH / 2 };
	struct wh_blocks_desc desc = { .size = sizeof(desc),
				       .op = WH_READ,
				       .block_length = 512,
				       .count = 32,
				       .bases = &base,
				       .base_count = 1 };
	struct wh_estimate estimate = { .size = sizeof(estimate) };
	struct wh_completion completion;
	struct wh_route routes[8];
	struct wh_blocks *blocks;
	struct wh_batch *batch;
	char text[4096];
	size_t count = 8;
	int status;

	leaves(0, wh_batch_new(peer, &options, &batch));
	leaves(0, wh_blocks_new(peer, &desc, &blocks));
	leaves(0, wh_batch_add(batch, &one, 1));
	leaves(0, wh_batch_add_blocks(batch, blocks));
	leaves(0, wh_batch_routes(batch, routes, &count));
	leaves(0, wh_batch_estimate(batch, &estimate));
	leaves(1, wh_batch_explain(batch, text, sizeof(text)) > 0);
	for (unsigned int i = 0; i < 3; i++) {
		leaves(0, wh_batch_notify(batch, 0, "done", 4));
		leaves(0, wh_batch_submit(batch));
		leaves(0, wh_batch_wait_for(batch, PATIENCE));
		leaves(0, wh_batch_test(batch));
		leaves(0, wh_batch_status(batch));
		leaves(0, wh_batch_transfer_status(batch, 0, &status));
		leaves(1, wh_queue_take(queue, &completion, 1, PATIENCE));
	}
	leaves(1, wh_batch_explain(batch, text, sizeof(text)) > 0);
	leaves(0, wh_batch_clear(batch));
	leaves(0, wh_batch_free(batch));
	wh_blocks_free(blocks);
}

/* Make every successful call, over all available transports. */
static void everything(void)
{
	static const char *const ways[] = { "self,shm,rdma,tcp,cuda", "tcp", "shm,tcp" };
	struct wh_peer_info info = { .size = sizeof(info) };

	for (unsigned int i = 0; i < 3; i++) {
		char transports[64];
		const char *const config[] = { transports, NULL };
		struct wh_engine_options options = { .size = sizeof(options), .config = config };
		struct child *child = i ? child_start(NULL) : NULL;
		struct note note;
		struct wh_engine *engine;
		struct wh_region *region;
		struct wh_remote remote;
		struct wh_queue *queue;
		struct wh_peer *peer;
		uint64_t cursor = 0;
		size_t count = 1;
		void *at;

		snprintf(transports, sizeof(transports), "transports=%s", ways[i]);
		if (child)
			child_region(child, child_memory(child, WH_MEMORY_SHARED, LENGTH), 0,
				     LENGTH, "target", ACCESS_BOTH, NULL);
		leaves(0, wh_engine_open(&options, &engine));
		memory(engine);
		leaves(0, wh_queue_new(engine, &queue));
		leaves(0, wh_memory_alloc(engine, LENGTH, NULL, &at));
		leaves(0, wh_region_register(engine, at, LENGTH,
					     &(struct wh_region_options){
						     .size = sizeof(struct wh_region_options),
						     .name = "target",
						     .access = ACCESS_BOTH },
					     &region));
		leaves(0, wh_peer_open(engine, child ? child->url : "self", NULL, &peer));
		leaves(0, wh_peer_info(peer, &info));
		leaves(0, wh_peer_find(peer, "target", PATIENCE, &remote));
		leaves(0, wh_peer_list(peer, &cursor, &remote, &count, WH_ANSWER));
		batches(peer, region, remote.id, queue);
		if (!child)
			leaves(0, note_take(engine, &note, PATIENCE));
		leaves(0, wh_peer_close(peer));
		leaves(0, wh_region_unregister(region));
		leaves(0, wh_memory_free(engine, at));
		leaves(0, wh_queue_free(queue));
		leaves(0, wh_engine_close(engine));
		if (child)
			child_exit(child);
	}
}

static void *on_a_new_thread(void *argument)
{
	(void)argument;
	everything();
	return NULL;
}

/* In a thread without any failure the text is "". */
static void text__stays_empty(void **state)
{
	pthread_t thread;

	(void)state;
	want(0, pthread_create(&thread, NULL, on_a_new_thread, NULL));
	want(0, pthread_join(thread, NULL));
}

static void text__stays_the_last_failure(void **state)
{
	(void)state;
	want(-EINVAL, wh_engine_open(NULL, NULL));
	snprintf(expected, sizeof(expected), "%s", wh_error_text());
	want_true(*expected, "it says nothing");
	everything();
}

static const struct CMUnitTest tests[] = {
	TEST(text__stays_empty),
	TEST(text__stays_the_last_failure),
};

HARNESS_MAIN("api-text", tests)
