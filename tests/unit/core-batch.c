/* SPDX-License-Identifier: Apache-2.0 */
/* batch.c: filling a batch: bounds, arguments, addresses, room, and the end of its life */
#include "core-fake.h"

#include "allocation.h"
#include "core/queue.h"
#include "wire/wire.h"

#define SIZE sizeof(source)

static int add_one(struct wh_batch *batch, struct wh_transfer transfer)
{
	return wh_batch_add(batch, &transfer, 1);
}

/* ---- making -------------------------------------------------------------------------------- */

static int try_new(struct wh_batch_options options)
{
	struct wh_batch *batch = NULL;
	int error;

	options.size = sizeof(options);
	error = wh_batch_new(self, &options, &batch);
	assert_int_equal(!batch, !!error);
	wh_batch_free(batch);
	return error;
}

static void new__options(void **state)
{
	struct wh_batch *batch;

	(void)state;
	assert_int_equal(wh_batch_new(NULL, NULL, &batch), -EINVAL);
	said("peer is NULL");
	assert_int_equal(wh_batch_new(self, NULL, NULL), -EINVAL);
	said("out is NULL");
	assert_int_equal(try_new((struct wh_batch_options){ .priority = WH_PRIORITY_LATENCY }), 0);
	assert_int_equal(try_new((struct wh_batch_options){ .priority = WH_PRIORITY_LATENCY + 1 }),
			 -EINVAL);
	said("options.priority is");
	assert_int_equal(try_new((struct wh_batch_options){ .reserved = 7 }), -EINVAL);
	said("options.reserved is 7");
	assert_int_equal(try_new((struct wh_batch_options){ .require = "local" }), 0);
	assert_int_equal(try_new((struct wh_batch_options){ .require = "shm" }), 0);
	assert_int_equal(try_new((struct wh_batch_options){ .require = "sh" }), -EINVAL);
	said("\"sh\"");
	assert_int_equal(wh_peer_close(NULL), 0);
	assert_int_equal(WH_BATCHES(atomic_load(&self->batches)), 0);
}

static void new__no_memory(void **state)
{
	struct wh_batch *batch = NULL;

	(void)state;
	assert_int_equal(WITHOUT_MEMORY(1, wh_batch_new(self, NULL, &batch)), 0);
	assert_int_equal(WH_BATCHES(atomic_load(&self->batches)), 1);
	assert_int_equal(wh_peer_close(self), -EBUSY);
	said("1 batches");
	drop_batch(batch);
}

/* One new batch in WH_TIMED_EVERY is timed, whatever was freed meanwhile. */
static void new__one_in_many_is_timed(void **state)
{
	unsigned timed = 0;

	(void)state;
	for (unsigned i = 0; i < 3 * WH_TIMED_EVERY; i++) {
		struct wh_batch *batch = batch_new();

		timed += batch->timed_in == 1;
		drop_batch(batch);
	}
	assert_int_equal(timed, 3);
}

/* A queue keeps count of the batches that report to it. */
static void new__queue(void **state)
{
	struct wh_batch_options options = { .size = sizeof(options) };
	const char *const config[] = { "transports=self", "observe=off", NULL };
	const struct wh_engine_options quiet = { .size = sizeof(quiet),
						 .listen = "none",
						 .flags = WH_ENGINE_NO_THREADS,
						 .config = config };
	struct wh_engine *other;
	struct wh_batch *batch;

	(void)state;
	assert_int_equal(wh_engine_open(&quiet, &other), 0);
	assert_int_equal(wh_queue_new(other, &options.queue), 0);
	assert_int_equal(wh_batch_new(self, &options, &batch), -EINVAL);
	said("another engine");
	assert_int_equal(wh_queue_free(options.queue), 0);
	assert_int_equal(wh_engine_close(other), 0);
	assert_int_equal(wh_queue_new(engine, &options.queue), 0);
	assert_int_equal(wh_batch_new(self, &options, &batch), 0);
	assert_int_equal(wh_queue_free(options.queue), -EBUSY);
	drop_batch(batch);
	assert_int_equal(wh_queue_free(options.queue), 0);
}

/* ---- transfers ----------------------------------------------------------------------------- */

static void add__bounds(void **state)
{
	struct wh_batch *batch = batch_new();
	struct wh_transfer transfer;

	(void)state;
	/* The last byte on both sides, and the one behind it. */
	assert_int_equal(add_one(batch, transfer_of(WH_READ, SIZE - 1, 1)), 0);
	assert_int_equal(add_one(batch, transfer_of(WH_READ, 0, SIZE)), 0);
	assert_int_equal(add_one(batch, transfer_of(WH_READ, 0, SIZE + 1)), -ERANGE);
	for (int remote = 0; remote < 2; remote++) {
		static const uint64_t wrong[][2] = { { SIZE, 1 },       { SIZE - 1, 2 },
						     { UINT64_MAX, 1 }, { UINT64_MAX, 2 },
						     { 1, UINT64_MAX }, { 2, UINT64_MAX - 1 } };

		for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
			transfer = transfer_of(WH_WRITE, 0, wrong[i][1]);
			*(remote ? &transfer.remote_offset : &transfer.local_offset) = wrong[i][0];
			assert_int_equal(add_one(batch, transfer), -ERANGE);
			if (wrong[i][1] < SIZE)
				said(remote ? "remote offset" : "local offset");
		}
	}
	assert_int_equal(batch->item_count, 2);
	drop_batch(batch);
}

static void add__fields(void **state)
{
	struct wh_batch *batch = batch_new();
	struct wh_transfer transfer;

	(void)state;
#define WRONG(error, text, change)                                                                 \
	do {                                                                                       \
		transfer = transfer_of(WH_WRITE, 0, 8);                                            \
		change;                                                                            \
		assert_int_equal(add_one(batch, transfer), error);                                 \
		said(text);                                                                        \
	} while (0)
	WRONG(-EINVAL, "op is 0", transfer.op = 0);
	WRONG(-EINVAL, "op is 3", transfer.op = 3);
	WRONG(-EINVAL, "reserved", transfer.reserved = 1);
	WRONG(-EINVAL, "local is NULL", transfer.local = NULL);
	WRONG(-ENOENT, "publishes no region 0", transfer.remote = 0);
	WRONG(-ENOENT, "publishes no region", transfer.remote++);
#undef WRONG
	assert_int_equal(wh_batch_add(batch, NULL, 1), -EINVAL);
	said("transfers is NULL");
	assert_int_equal(wh_batch_add(NULL, &transfer, 1), -EINVAL);
	/* The engine knows all of its own regions: what is not there is not asked for. */
	assert_false(batch->unresolved);
	drop_batch(batch);
}

/* What has no bytes is in no region: nobody looks. */
static void add__nothing(void **state)
{
	struct wh_address_transfer address = { .op = WH_WRITE, .remote = UINT64_MAX };
	struct wh_transfer transfer = { .op = WH_READ, .remote_offset = UINT64_MAX };
	struct wh_batch *batch = batch_new();

	(void)state;
	assert_int_equal(wh_batch_add(batch, NULL, 0), 0);
	assert_int_equal(wh_batch_add_address(batch, NULL, 0), 0);
	assert_int_equal(batch->item_count, 0);
	for (int known = 0; known < 2; known++) {
		assert_int_equal(wh_batch_add(batch, &transfer, 1), 0);
		assert_int_equal(wh_batch_add_address(batch, &address, 1), 0);
		transfer = transfer_of(WH_READ, SIZE + 1, 0);
		address.local = source;
	}
	assert_int_equal(batch->item_count, 4);
	assert_false(batch->unresolved);
	transfer.op = 0;
	assert_int_equal(wh_batch_add(batch, &transfer, 1), -EINVAL);
	address.reserved = 1;
	assert_int_equal(wh_batch_add_address(batch, &address, 1), -EINVAL);
	drop_batch(batch);
}

/* All transfers of a call are taken, or none. */
static void add__all_or_none(void **state)
{
	struct wh_transfer transfers[20];
	struct wh_batch *batch = batch_new();

	(void)state;
	for (unsigned i = 0; i < 20; i++)
		transfers[i] = transfer_of(WH_WRITE, i, 1);
	assert_int_equal(wh_batch_add(batch, transfers, 20), 0);
	transfers[19].op = 0;
	assert_int_equal(wh_batch_add(batch, transfers, 20), -EINVAL);
	said("transfer 19");
	assert_int_equal(batch->item_count, 20);
	assert_int_equal(wh_batch_add(batch, transfers, 19), 0);
	assert_int_equal(batch->item_count, 39);
	for (unsigned i = 0; i < 39; i++) {
		assert_ptr_equal(batch->items[i].address, source + i % 20);
		assert_int_equal(batch->items[i].offset, i % 20);
		assert_int_equal(batch->items[i].local_id, wh_region_id(here));
	}
	drop_batch(batch);
}

static int add_many(struct wh_batch *batch, unsigned count)
{
	struct wh_transfer transfer = transfer_of(WH_READ, 0, 1);
	int error = 0;

	while (!error && batch->item_count < count)
		error = add_one(batch, transfer);
	return error;
}

/* The items stay as they were when there is no room for one more. */
static void add__no_memory(void **state)
{
	struct wh_batch *batch = batch_new();

	(void)state;
	assert_int_equal(WITHOUT_MEMORY(1, add_many(batch, 9)), 0);
	assert_int_equal(add_many(batch, 16), 0);
	allocation_fails = 1;
	assert_int_equal(add_many(batch, 17), -ENOMEM);
	said("no memory for 32");
	assert_int_equal(batch->item_count, 16);
	assert_int_equal(batch->item_room, 16);
	assert_int_equal(add_many(batch, 17), 0);
	/* More than can be counted in bytes. */
	assert_int_equal(wh_batch_add(batch, &(struct wh_transfer){ 0 }, SIZE_MAX), -ENOMEM);
	assert_int_equal(wh_batch_add(batch, &(struct wh_transfer){ 0 },
				      SIZE_MAX / sizeof(struct wh_item) / 4),
			 -ENOMEM);
	drop_batch(batch);
}

static void add__unregistered(void **state)
{
	struct wh_batch *batch = batch_new();
	struct wh_transfer transfer = transfer_of(WH_WRITE, 0, 8);
	struct wh_region *gone;

	(void)state;
	assert_int_equal(wh_region_register(engine, source, 64, NULL, &gone), 0);
	transfer.local = gone;
	assert_int_equal(add_one(batch, transfer), 0);
	assert_int_equal(wh_region_unregister(gone), 0);
	assert_int_equal(wh_batch_submit(batch), -ESTALE);
	said("transfer 0: its local region");
	assert_int_equal(RDMA->submitted, 0);
	drop_batch(batch);
}

/* ---- the range of a peer's region, for every right ------------------------------------------ */

static void check_remote__access(void **state)
{
	struct wh_peer *peer;
	struct wh_region_entry *entry;
	const uint64_t id = UINT64_C(5) << WH_REGION_TABLE_INDEX_BITS;

	(void)state;
	assert_int_equal(wh_peer_new(engine, "somebody", &peer), 0);
	entry = wh_region_table_claim(&peer->regions, id);
	entry->address = 4096;
	entry->length = 100;
	entry->access = WH_ACCESS_READ;
	assert_int_equal(wh_region_table_publish(&peer->regions, entry, id), 0);
	atomic_store(&peer->state, WH_PEER_CONNECTED);
#define CHECK(op, id, offset, length) wh_batch_check_remote(peer, "base", 3, op, id, offset, length)
	assert_int_equal(CHECK(WH_READ, id, 0, 100), 0);
	assert_int_equal(CHECK(WH_READ, id, 99, 1), 0);
	assert_int_equal(CHECK(WH_READ, id, 99, 2), -ERANGE);
	said("base 3: remote offset 99 + length 2");
	assert_int_equal(CHECK(WH_READ, id, UINT64_MAX, 2), -ERANGE);
	/* The right counts before the bounds. */
	assert_int_equal(CHECK(WH_WRITE, id, 0, 101), -EACCES);
	said("may not be written");
	entry->access = WH_ACCESS_WRITE;
	assert_int_equal(CHECK(WH_READ, id, 0, 1), -EACCES);
	said("may not be read");
	assert_int_equal(CHECK(WH_WRITE, id, 0, 1), 0);
	assert_int_equal(CHECK(WH_WRITE, id + 1, 0, 1), -ENOENT);
	/* A peer that is lost has no regions any more: the loss is what matters. */
	atomic_store(&peer->state, WH_PEER_LOST);
	assert_int_equal(CHECK(WH_WRITE, id + 1, 0, 1), -ECONNRESET);
	assert_int_equal(CHECK(WH_WRITE, id, 0, 1), 0);
	atomic_store(&peer->state, WH_PEER_STALE);
	assert_int_equal(CHECK(WH_WRITE, id + 1, 0, 1), -ESTALE);
#undef CHECK
	atomic_store(&peer->state, WH_PEER_CONNECTED);
	wh_peer_free(peer);
}

/* Memory of a GPU, and files, are not copied onto themselves. */
static void check_overlap__distance(void **state)
{
	uint8_t kind = here->entry.kind;
	struct wh_region *beside;

	(void)state;
#define OVERLAP(from, to, length)                                                                  \
	wh_batch_check_overlap(self, "transfer", 0, here, from, wh_region_id(here), to, length)
	assert_int_equal(OVERLAP(0, 1, 100), 0); /* on the host the direction is right */
	here->entry.kind = WH_MEMORY_DEVICE;
	assert_int_equal(OVERLAP(0, 0, 100), 0);
	assert_int_equal(OVERLAP(0, 1, 100), -EINVAL);
	said("GPU memory: 100 bytes move by only 1 bytes");
	assert_int_equal(OVERLAP(0, 99, 100), -EINVAL);
	assert_int_equal(OVERLAP(0, 100, 100), 0);
	assert_int_equal(OVERLAP(99, 0, 100), -EINVAL);
	said("by only 99 bytes");
	assert_int_equal(OVERLAP(100, 0, 100), 0);
	assert_int_equal(OVERLAP(1, 0, 1), 0);
	here->entry.kind = WH_MEMORY_FILE;
	assert_int_equal(OVERLAP(4, 0, 5), -EINVAL);
	said("a file");
	/* Two regions of one memory, 32 bytes apart. */
	assert_int_equal(wh_region_register(engine, source + 32, 64, NULL, &beside), 0);
#define BESIDE(from, to, length)                                                                   \
	wh_batch_check_overlap(self, "base", 0, here, from, wh_region_id(beside), to, length)
	assert_int_equal(BESIDE(0, 0, 32), 0);
	assert_int_equal(BESIDE(0, 0, 33), -EINVAL);
	assert_int_equal(BESIDE(32, 0, 64), 0);
	assert_int_equal(BESIDE(33, 0, 2), -EINVAL);
	assert_int_equal(wh_region_unregister(beside), 0);
#undef BESIDE
	here->entry.kind = kind;
#undef OVERLAP
}

/* ---- transfers by address ------------------------------------------------------------------ */

static int add_address(struct wh_batch *batch, void *local, uint64_t region, uint64_t remote,
		       uint64_t length)
{
	struct wh_address_transfer transfer = {
		.local = local,
		.remote_region = region,
		.remote = remote,
		.length = length,
		.op = WH_WRITE,
	};

	return wh_batch_add_address(batch, &transfer, 1);
}

static void add_address__bounds(void **state)
{
	struct wh_batch *batch = batch_new();
	uint64_t to = (uintptr_t)target;

	(void)state;
	assert_int_equal(add_address(batch, source + 5, 0, to + 9, 8), 0);
	assert_int_equal(batch->items[0].remote, wh_region_id(there));
	assert_int_equal(batch->items[0].offset, 9);
	assert_ptr_equal(batch->items[0].local, here);
	assert_int_equal(batch->items[0].local_id, wh_region_id(here));
	assert_ptr_equal(batch->items[0].address, source + 5);
	assert_int_equal(add_address(batch, source + SIZE - 1, wh_region_id(there), SIZE - 1, 1),
			 0);
	assert_int_equal(batch->items[1].offset, SIZE - 1);
	assert_int_equal(add_address(batch, source + SIZE - 1, 0, to, 2 * SIZE), -ENOENT);
	said("transfer 0: local: no region holds");
	assert_int_equal(add_address(batch, source, 0, to + 1, SIZE), -ENOENT);
	said("remote: alone publishes no region that holds");
	assert_int_equal(add_address(batch, source, wh_region_id(there), 1, SIZE), -ERANGE);
	assert_int_equal(add_address(batch, source, 0, UINT64_MAX - 7, 8), -ENOENT);
	said("past the end of the address space");
	assert_int_equal(add_address(batch, source, 0, UINT64_MAX - 8, 8), -ENOENT);
	said("publishes no region that holds");
	assert_int_equal(batch->item_count, 2);
	drop_batch(batch);
}

/* ---- blocks, notification, clearing --------------------------------------------------------- */

static struct wh_blocks *blocks_of(uint64_t count)
{
	struct wh_base base = { .local = here, .remote = wh_region_id(there) };
	struct wh_blocks_desc desc = {
		.size = sizeof(desc),
		.op = WH_WRITE,
		.block_length = 16,
		.count = count,
		.bases = &base,
		.base_count = 1,
	};
	struct wh_blocks *blocks;

	assert_int_equal(wh_blocks_new(self, &desc, &blocks), 0);
	return blocks;
}

static void add_blocks__references(void **state)
{
	struct wh_blocks *blocks = blocks_of(4);
	struct wh_batch *batch = batch_new();

	(void)state;
	assert_int_equal(wh_batch_add_blocks(batch, NULL), -EINVAL);
	allocation_fails = 1;
	assert_int_equal(wh_batch_add_blocks(batch, blocks), -ENOMEM);
	assert_int_equal(atomic_load(&blocks->references), 1);
	assert_int_equal(wh_batch_add_blocks(batch, blocks), 0);
	assert_int_equal(wh_batch_add_blocks(batch, blocks), 0);
	assert_int_equal(atomic_load(&blocks->references), 3);
	assert_int_equal(wh_batch_clear(batch), 0);
	assert_int_equal(atomic_load(&blocks->references), 1);
	assert_int_equal(wh_batch_submit(batch), 0);
	assert_int_equal(wh_batch_status(batch), 0);
	/* The batch keeps them when their maker has let go. */
	assert_int_equal(wh_batch_add_blocks(batch, blocks), 0);
	assert_int_equal(wh_blocks_free(blocks), 0);
	assert_int_equal(atomic_load(&blocks->references), 1);
	RDMA->on_submit = FAKE_ENDS;
	assert_int_equal(wh_batch_submit(batch), 0);
	assert_int_equal(wh_batch_status(batch), 0);
	drop_batch(batch);
}

static void notify__lengths(void **state)
{
	static char bytes[WH_NOTIFICATION_MAX + 1];
	struct wh_batch *batch = batch_new();
	unsigned char *note;

	(void)state;
	memset(bytes, 'x', sizeof(bytes));
	assert_int_equal(wh_batch_notify(batch, 1, bytes, sizeof(bytes)), -EINVAL);
	said("wrong length");
	assert_int_equal(wh_batch_notify(batch, 1, NULL, 1), -EINVAL);
	said("data is NULL");
	assert_false(batch->notifies);
	allocation_fails = 1;
	assert_int_equal(wh_batch_notify(batch, 1, NULL, 0), -ENOMEM);
	assert_int_equal(wh_batch_notify(batch, 1, NULL, 0), 0);
	assert_true(batch->notifies);
	assert_int_equal(batch->note_length, 0);
	assert_int_equal(wh_batch_notify(batch, 2, bytes, WH_NOTIFICATION_MAX), 0);
	assert_int_equal(batch->note_length, WH_NOTIFICATION_MAX);
	assert_memory_equal(batch->note + WH_NOTIFY_HEAD, bytes, WH_NOTIFICATION_MAX);
	/* A shorter one takes the same room. */
	note = batch->note;
	allocation_fails = 1;
	assert_int_equal(wh_batch_notify(batch, 3, "ab", 2), 0);
	assert_int_equal(allocation_fails, 1);
	allocation_fails = 0;
	assert_ptr_equal(batch->note, note);
	assert_int_equal(batch->note_length, 2);
	assert_int_equal(batch->note_tag, 3);
	assert_memory_equal(batch->note + WH_NOTIFY_HEAD, "ab", 2);
	assert_int_equal(wh_batch_clear(batch), 0);
	assert_false(batch->notifies);
	drop_batch(batch);
}

/* ---- while it runs ------------------------------------------------------------------------- */

static void running__keeps_everybody_out(void **state)
{
	struct wh_transfer transfer = transfer_of(WH_WRITE, 0, 8);
	struct wh_address_transfer address = { .local = source, .length = 1, .op = WH_READ };
	struct wh_blocks *blocks = blocks_of(1);
	struct wh_batch *batch = batch_of(8);
	int status = 1;

	(void)state;
	assert_int_equal(wh_batch_transfer_status(batch, 0, &status), -EAGAIN);
	assert_int_equal(wh_batch_submit(batch), 0);
	assert_int_equal(wh_batch_add(batch, &transfer, 1), -EBUSY);
	assert_int_equal(wh_batch_add_address(batch, &address, 1), -EBUSY);
	assert_int_equal(wh_batch_add_blocks(batch, blocks), -EBUSY);
	assert_int_equal(wh_batch_notify(batch, 0, "", 0), -EBUSY);
	assert_int_equal(wh_batch_clear(batch), -EBUSY);
	assert_int_equal(wh_batch_submit(batch), -EBUSY);
	assert_int_equal(wh_batch_free(batch), -EBUSY);
	assert_int_equal(wh_batch_transfer_status(batch, 0, &status), -EAGAIN);
	assert_int_equal(status, 1);
	assert_int_equal(wh_region_unregister(here), -EBUSY);
	fake_end(RDMA, 0);
	assert_int_equal(wh_batch_transfer_status(batch, 0, &status), 0);
	assert_int_equal(status, 0);
	assert_int_equal(wh_batch_transfer_status(batch, 1, &status), -EINVAL);
	assert_int_equal(wh_batch_transfer_status(batch, 0, NULL), -EINVAL);
	drop_batch(batch);
	drop_batch(NULL);
	assert_int_equal(wh_blocks_free(blocks), 0);
	assert_string_equal(wh_batch_error_text(NULL), "");
}

/* What transports keep for a batch: told at each further submission, and freed once. */
static void free__what_transports_keep(void **state)
{
	struct wh_batch *batch = batch_of(8);

	(void)state;
	RDMA->on_submit = FAKE_ENDS;
	assert_int_equal(wh_batch_submit(batch), 0);
	wh_batch_set_transport(batch, WH_TRANSPORT_SHM, SHM);
	assert_int_equal(SHM->again, 0);
	assert_int_equal(wh_batch_submit(batch), 0);
	assert_int_equal(wh_batch_submit(batch), 0);
	assert_int_equal(SHM->again, 2);
	assert_int_equal(RDMA->again, 0);
	assert_int_equal(wh_batch_clear(batch), 0);
	assert_int_equal(SHM->closed, 0);
	drop_batch(batch);
	assert_int_equal(SHM->closed, 1);
	assert_int_equal(RDMA->closed, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(new__options),
		TEST(new__no_memory),
		TEST(new__one_in_many_is_timed),
		TEST(new__queue),
		TEST(add__bounds),
		TEST(add__fields),
		TEST(add__nothing),
		TEST(add__all_or_none),
		TEST(add__no_memory),
		TEST(add__unregistered),
		TEST(check_remote__access),
		TEST(check_overlap__distance),
		TEST(add_address__bounds),
		TEST(add_blocks__references),
		TEST(notify__lengths),
		TEST(running__keeps_everybody_out),
		TEST(free__what_transports_keep),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
