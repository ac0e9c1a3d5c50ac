/* SPDX-License-Identifier: Apache-2.0 */
/* rdma-files.c: files of this engine over NICs, which see slots of memory only */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/duo.h"

#define OURS "our file: staged (no NIC reads or writes a file)"

/* ---- ways ------------------------------------------------------------------------------------ */

static void way__host_memory(void **state)
{
	(void)state;
	expect(WH_MEMORY_FILE, WH_MEMORY_PAGEABLE, "", "rdma", OURS, NULL);
}

static void way__a_gpu(void **state)
{
	(void)state;
	expect(WH_MEMORY_FILE, WH_MEMORY_DEVICE, "", "rdma", OURS, "their GPU memory: dmabuf");
}

/* Through slots of ours and of theirs. */
static void way__a_staged_gpu(void **state)
{
	(void)state;
	expect(WH_MEMORY_FILE, WH_MEMORY_DEVICE, "staged", "rdma", OURS,
	       "their GPU memory: staged");
}

/* The owner's NIC would have to wait for a disk. */
static void way__their_file(void **state)
{
	(void)state;
	expect(WH_MEMORY_PAGEABLE, WH_MEMORY_FILE, "", "tcp",
	       "no NIC reads or writes a file of the peer", NULL);
}

static void way__two_rails(void **state)
{
	struct wh_batch *batch;
	struct duo duo;

	(void)state;
	rails_open(&duo, WH_MEMORY_FILE, WH_MEMORY_PAGEABLE, "");
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		batch = whole(&duo, op);
		duo_fill(&duo, op, op);
		want_rails(batch, true, true);
		want_same(&duo, op);
		want_way(batch, "rdma", "(2 rails, RoCE v2, staged)", OURS);
		want(0, wh_batch_free(batch));
	}
	duo_close(&duo);
}

/* A batch whose local side is a file, GPU memory and host memory: one slot takes all of them. */
static void way__mixed(void **state)
{
	struct wh_region *region[2];
	struct wh_transfer parts[3];
	struct wh_batch *batch;
	struct side memory[2];
	struct duo duo;
	void *bytes;

	(void)state;
	duo_open(&duo, WH_MEMORY_FILE, WH_MEMORY_PAGEABLE, "staged");
	settle(&duo, "rdma", OURS);
	for (unsigned i = 0; i < 2; i++) {
		struct wh_memory_options options = { .size = sizeof(options),
						     .kind = i ? WH_MEMORY_DEVICE :
								 WH_MEMORY_PAGEABLE };

		want(0, wh_memory_alloc(duo.ours.engine, LENGTH, &options, &bytes));
		memory[i] = (struct side){ .kind = options.kind, .start = bytes };
		want(0, wh_region_register(duo.ours.engine, bytes, LENGTH, NULL, &region[i]));
	}
	fill(&duo.theirs, 7);
	for (unsigned i = 0; i < 3; i++)
		parts[i] = (struct wh_transfer){ .local = i ? region[i - 1] : duo.ours.region,
						 .remote = duo.remote.id,
						 .length = LENGTH,
						 .op = WH_READ };
	want(0, wh_batch_new(duo.peer, NULL, &batch));
	want(0, wh_batch_add(batch, parts, 3));
	want(0, batch_run(batch));
	want_by(batch, "rdma", 3 * LENGTH);
	want_same(&duo, 7);
	want_true(holds(&memory[0], 7) && holds(&memory[1], 7), "the bytes are wrong");
	want(0, wh_batch_free(batch));
	for (unsigned i = 0; i < 2; i++) {
		want(0, wh_region_unregister(region[i]));
		want(0, wh_memory_free(duo.ours.engine, memory[i].start));
	}
	duo_close(&duo);
}

/* Blocks of odd lengths at odd places, into a file and out of one. */
static void way__blocks(void **state)
{
	(void)state;
	expect_blocks(WH_MEMORY_FILE, WH_MEMORY_PAGEABLE, "", WH_READ, 99, 1001, OURS);
	expect_blocks(WH_MEMORY_FILE, WH_MEMORY_DEVICE, "staged", WH_WRITE, 99, 1001, OURS);
}

/* ---- what goes wrong ------------------------------------------------------------------------- */

/* The file is too short: the batch has EIO, from this transport, and the file stays as it is. */
static void fault__truncated(void **state)
{
	struct wh_batch *batch;
	struct duo duo;
	struct stat stat;

	(void)state;
	duo_open(&duo, WH_MEMORY_FILE, WH_MEMORY_PAGEABLE, "");
	settle(&duo, "rdma", OURS);
	assert_int_equal(ftruncate(duo.ours.fd, DUO_OFFSET + 2 * MIB), 0);
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		batch = whole(&duo, op);
		want(-EIO, batch_run(batch));
		want_explained(batch, OURS);
		want_by(batch, "tcp", 0);
		want(0, wh_batch_free(batch));
	}
	assert_int_equal(fstat(duo.ours.fd, &stat), 0);
	assert_int_equal(stat.st_size, DUO_OFFSET + 2 * MIB);
	/* It goes on with what is there. */
	assert_int_equal(ftruncate(duo.ours.fd, DUO_OFFSET + LENGTH), 0);
	exchange(&duo, "rdma", OURS, NULL);
	duo_close(&duo);
}

static void fault__cancelled(void **state)
{
	(void)state;
	expect_cancelled(WH_MEMORY_FILE, WH_MEMORY_PAGEABLE, OURS);
}

static void fault__connection_breaks(void **state)
{
	struct duo duo;

	(void)state;
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		duo_open(&duo, WH_MEMORY_FILE, WH_MEMORY_PAGEABLE, "");
		settle(&duo, "rdma", OURS);
		expect_tcp_after_break(&duo, op, OURS, op);
		duo_close(&duo);
	}
}

static const struct CMUnitTest tests[] = {
	/* This test comes first: the fake library reads its list of NICs once. */
	ON_FAKES(way__two_rails),   ON_FAKES(way__host_memory),
	ON_FAKES(way__a_gpu),       ON_FAKES(way__a_staged_gpu),
	ON_FAKES(way__their_file),  ON_FAKES(way__mixed),
	ON_FAKES(way__blocks),      ON_FAKES(fault__truncated),
	ON_FAKES(fault__cancelled), ON_FAKES(fault__connection_breaks),
};

HARNESS_MAIN("rdma-files", tests)
