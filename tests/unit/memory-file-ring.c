/* SPDX-License-Identifier: Apache-2.0 */
/* memory-file-ring.c: requests of a ring use registered buffers where their bytes lie in one, and
 * move the same bytes where they do not */
#include "../../src/memory/file-ring.c"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#define PAGE ((size_t)4096)
#define PAGES WH_FILE_BUFFERS /* of memory, and of the file */

struct bench {
	struct wh_file_buffers buffers;
	struct wh_file_rings rings;
	struct wh_file_ring *ring;
	char *memory;
	int fd;
};

static bool ring_is_allowed(void)
{
	struct wh_file_rings rings;
	struct wh_file_buffers buffers = { .count = 0 };
	struct wh_file_ring *ring;

	wh_file_rings_init(&rings, &buffers);
	ring = wh_file_ring_take(&rings);
	if (ring)
		wh_file_ring_give(&rings, ring);
	else
		printf("no io_uring here: %s\n", strerror(-wh_file_rings_error(&rings)));
	wh_file_rings_destroy(&rings);
	return ring;
}

static int set_up(void **state)
{
	char path[] = "/tmp/wherry-ring-XXXXXX";
	struct bench *b = calloc(1, sizeof(*b));

	if (!b)
		return -1;
	b->memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			 -1, 0);
	b->fd = mkostemp(path, O_CLOEXEC);
	unlink(path);
	wh_file_rings_init(&b->rings, &b->buffers);
	b->ring = wh_file_ring_take(&b->rings);
	*state = b;
	return b->memory == MAP_FAILED || b->fd < 0 || !b->ring || ftruncate(b->fd, PAGES * PAGE);
}

static int tear_down(void **state)
{
	struct bench *b = *state;

	wh_file_ring_give(&b->rings, b->ring);
	wh_file_rings_destroy(&b->rings);
	munmap(b->memory, PAGES * PAGE);
	close(b->fd);
	free(b);
	return 0;
}

static struct wh_file_part part_of(const struct bench *b, size_t at, size_t length)
{
	return (struct wh_file_part){
		.fd = b->fd, .at = at, .memory = b->memory + at, .length = (uint32_t)length
	};
}

/* The request that has been put `back` requests ago; 0: the last one. */
static const struct io_uring_sqe *submitted(const struct bench *b, uint32_t back)
{
	return &b->ring->submissions[(*b->ring->submit_tail - 1 - back) & *b->ring->submit_mask];
}

/* Write the bytes, and read them back. Fails unless both requests are of these kinds. */
static void move(struct bench *b, size_t at, size_t length, uint8_t writes, uint8_t reads)
{
	struct wh_file_part part = part_of(b, at, length);

	memset(b->memory + at, (int)(at / PAGE + 1), length);
	wh_file_ring_move(b->ring, WH_WRITE, &part, 1);
	assert_int_equal(part.done, length);
	assert_int_equal(submitted(b, 0)->opcode, writes);
	memset(b->memory + at, 0xee, length);
	wh_file_ring_move(b->ring, WH_READ, &part, 1);
	assert_int_equal(part.done, length);
	assert_int_equal(submitted(b, 0)->opcode, reads);
	for (size_t i = 0; i < length; i++)
		assert_int_equal(b->memory[at + i], (char)(at / PAGE + 1));
}

static void move_fixed(struct bench *b, size_t at, size_t length, uint16_t buffer)
{
	move(b, at, length, IORING_OP_WRITE_FIXED, IORING_OP_READ_FIXED);
	assert_int_equal(submitted(b, 0)->buf_index, buffer);
}

static void move_plainly(struct bench *b, size_t at, size_t length)
{
	move(b, at, length, IORING_OP_WRITE, IORING_OP_READ);
}

/* From its first byte to its last one; not beside it, nor across its ends. */
static void buffers__edges(void **state)
{
	struct bench *b = *state;

	wh_file_buffers_add(&b->buffers, b->memory + 2 * PAGE, 3 * PAGE);
	move_plainly(b, 0, PAGE);
	assert_int_equal(b->ring->registered, 0); /* nothing has needed it yet */
	move_fixed(b, 2 * PAGE, 3 * PAGE, 0);
	move_fixed(b, 2 * PAGE + 1, 1, 0);
	move_fixed(b, 5 * PAGE - 1, 1, 0);
	move_plainly(b, 2 * PAGE - 1, 2);
	move_plainly(b, 5 * PAGE - 1, 2);
	move_plainly(b, 5 * PAGE, PAGE);
	move_plainly(b, PAGE, 6 * PAGE);
	assert_int_equal(wh_file_rings_buffers_error(&b->rings), 0);
}

/* A block that comes later is registered when it is needed, beside the others. */
static void buffers__more(void **state)
{
	struct bench *b = *state;

	wh_file_buffers_add(&b->buffers, b->memory, PAGE);
	move_fixed(b, 0, PAGE, 0);
	for (uint16_t i = 1; i < WH_FILE_BUFFERS; i++) {
		wh_file_buffers_add(&b->buffers, b->memory + i * PAGE, PAGE);
		move_fixed(b, i * PAGE, PAGE, i);
		move_fixed(b, 0, PAGE, 0);
	}
	/* The list is full. */
	wh_file_buffers_add(&b->buffers, b->memory, PAGES * PAGE);
	move_plainly(b, 0, 2 * PAGE);
}

/* Several in one call, those of a block beside those of none. */
static void buffers__mixed(void **state)
{
	struct bench *b = *state;
	struct wh_file_part parts[PAGES];

	wh_file_buffers_add(&b->buffers, b->memory, PAGES / 2 * PAGE);
	for (size_t i = 0; i < PAGES; i++) {
		parts[i] = part_of(b, i * PAGE, PAGE);
		memset(parts[i].memory, (int)i, PAGE);
	}
	wh_file_ring_move(b->ring, WH_WRITE, parts, PAGES);
	memset(b->memory, 0xee, PAGES * PAGE);
	wh_file_ring_move(b->ring, WH_READ, parts, PAGES);
	for (uint32_t i = 0; i < PAGES; i++) {
		assert_int_equal(parts[i].done, PAGE);
		assert_int_equal(parts[i].memory[PAGE - 1], i);
		assert_int_equal(submitted(b, PAGES - 1 - i)->opcode,
				 i < PAGES / 2 ? IORING_OP_READ_FIXED : IORING_OP_READ);
	}
}

/* A block that the kernel refuses, because some of it is not mapped: its bytes are moved all the
 * same, the ring keeps the others, and another ring does not ask again. */
static void buffers__refused(void **state)
{
	struct bench *b = *state;
	struct wh_file_ring *first = b->ring;

	wh_file_buffers_add(&b->buffers, b->memory, PAGE);
	move_fixed(b, 0, PAGE, 0);
	munmap(b->memory + 9 * PAGE, PAGE);
	wh_file_buffers_add(&b->buffers, b->memory + 8 * PAGE, 2 * PAGE);
	move_plainly(b, 8 * PAGE, PAGE);
	assert_int_equal(wh_file_rings_buffers_error(&b->rings), -EFAULT);
	move_fixed(b, 0, PAGE, 0);
	b->ring = wh_file_ring_take(&b->rings);
	assert_non_null(b->ring);
	move_plainly(b, 8 * PAGE, PAGE);
	move_plainly(b, 0, PAGE);
	assert_int_equal(b->ring->registered, 0);
	wh_file_ring_give(&b->rings, first);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(buffers__edges),
		CASE(buffers__more),
		CASE(buffers__mixed),
		CASE(buffers__refused),
	};

	if (!ring_is_allowed())
		return 77;
	return cmocka_run_group_tests_name("memory-file-ring", tests, NULL, NULL);
}
