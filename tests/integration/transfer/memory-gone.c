/* SPDX-License-Identifier: Apache-2.0 */
/* memory-gone.c: registered memory that has been unmapped, on either side, gives an errno and never
 * a signal */
#include "lib/fixture.h"

#include <sys/mman.h>
#include <unistd.h>

#define LENGTH (1 * MIB)
#define PAGE (4 * KIB)

/* ---- registering ------------------------------------------------------- */

static void register__never_mapped(void **state)
{
	struct wh_engine *engine = engine_open(NULL, "none", NULL);
	struct wh_region *region;
	char *pages = pages_new(LENGTH), where[32];

	(void)state;
	want(0, munmap(pages + 16 * PAGE, PAGE));
	snprintf(where, sizeof(where), "no memory at %p", (void *)(pages + 16 * PAGE));
	want_text(-EFAULT, where, wh_region_register(engine, pages, LENGTH, NULL, &region));
	want_text(-EFAULT, where, wh_region_register(engine, pages + 5, 16 * PAGE, NULL, &region));
	want_text(-EFAULT, where, wh_region_register(engine, pages + 16 * PAGE, 1, NULL, &region));
	want_text(-EFAULT, "no memory", wh_region_register(engine, (void *)1, 1, NULL, &region));
	want(0, wh_region_register(engine, pages, 16 * PAGE, NULL, &region));
	want(0, wh_region_unregister(region));
	want(0, wh_region_register(engine, pages + 17 * PAGE + 1, PAGE, NULL, &region));
	want(0, wh_region_unregister(region));
	pages_free(pages, LENGTH);
	want(0, wh_engine_close(engine));
}

/* ---- gone at the initiator --------------------------------------------- */

/* Transfers of the fixture's region. The one `bad` pages in uses unmapped memory; the others are
 * valid. */
static void want_fault(struct fixture *f, uint32_t op, uint64_t length)
{
	struct wh_transfer transfers[3];
	struct wh_peer_info info = { .size = sizeof(info) };
	struct wh_batch *batch;

	for (unsigned int i = 0; i < 3; i++)
		transfers[i] =
			transfer_of(f, op, i * 64 * PAGE, i * 64 * PAGE, i == 1 ? length : 8);
	batch = batch_of(f, transfers, 3);
	for (unsigned int round = 0; round < 2; round++) {
		want(-EFAULT, batch_run(batch));
		want(-EFAULT, batch_item(batch, 1));
		want_true(strstr(wh_batch_error_text(batch), "Bad address"), "it says: %s",
			  wh_batch_error_text(batch));
	}
	want(0, wh_batch_free(batch));
	want(0, wh_peer_info(f->peer, &info));
	want(WH_PEER_CONNECTED, info.state);
	/* Transfers of mapped memory still work. */
	want(0, move(f, op, 0, 0, 4 * PAGE));
	want(0, move(f, op, 128 * PAGE, 128 * PAGE, 8));
}

static void gone__here(void **state)
{
	static const uint64_t lengths[] = { 8, PAGE, 64 * PAGE };
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	want(0, move(&f, WH_WRITE, 0, 0, LENGTH));
	/* A part of the second transfer, including its start. */
	want(0, munmap((void *)(((uintptr_t)f.local + 64 * PAGE) & ~(uintptr_t)(PAGE - 1)),
		       40 * PAGE));
	for (unsigned int i = 0; i < 3; i++) {
		want_fault(&f, WH_WRITE, lengths[i]);
		want_fault(&f, WH_READ, lengths[i]);
	}
	fixture_close(&f);
}

/* ---- gone at the owner: this process; the initiator is a child --------- */

struct owner {
	struct wh_engine *engine;
	struct wh_region *region;
	unsigned char *pages;
	struct child *child;
	struct child_transfer transfer;
	struct child_result result;
};

static void owner_open(struct owner *owner)
{
	struct wh_region_options options = { .size = sizeof(options),
					     .name = "target",
					     .access = ACCESS_BOTH };
	int memory;

	memset(owner, 0, sizeof(*owner));
	owner->engine = engine_open(NULL, NULL, NULL);
	owner->pages = pages_new(LENGTH);
	want(0, wh_region_register(owner->engine, owner->pages, LENGTH, &options, &owner->region));
	owner->child = child_start(NULL);
	memory = child_memory(owner->child, CHILD_FOREIGN, LENGTH);
	child_fill(owner->child, memory, 0, LENGTH, 0, 3);
	owner->transfer.region = child_region(owner->child, memory, 0, LENGTH, NULL, 0, NULL);
	owner->transfer.peer = child_peer(owner->child, wh_engine_url(owner->engine), NULL);
	want_true(owner->transfer.peer >= 0, "it cannot connect");
	owner->transfer.remote = "target";
	owner->transfer.require = "tcp";
}

static void owner_close(struct owner *owner)
{
	child_exit(owner->child);
	want(0, wh_region_unregister(owner->region));
	want(0, wh_engine_close(owner->engine));
	munmap(owner->pages, LENGTH);
}

static int owner_move(struct owner *owner, uint32_t op, uint64_t offset, uint64_t length)
{
	owner->transfer.op = op;
	owner->transfer.remote_offset = offset;
	owner->transfer.length = length;
	return child_transfer(owner->child, &owner->transfer, &owner->result);
}

static void want_owner_fault(struct owner *owner, uint32_t op, uint64_t offset, uint64_t length)
{
	want(-EFAULT, owner_move(owner, op, offset, length));
	want_true(strstr(owner->result.text, "refuses region") &&
			  strstr(owner->result.text, "Bad address"),
		  "it says: %s", owner->result.text);
}

static void gone__there(void **state)
{
	struct owner owner;

	(void)state;
	owner_open(&owner);
	want(0, owner_move(&owner, WH_WRITE, 0, LENGTH));
	want(0, munmap(owner.pages + 16 * PAGE, 16 * PAGE));
	for (unsigned int i = 0; i < 2; i++) {
		uint32_t op = i ? WH_READ : WH_WRITE;

		want_owner_fault(&owner, op, 16 * PAGE, 8);
		want_owner_fault(&owner, op, 20 * PAGE + 1, PAGE);
		want_owner_fault(&owner, op, 0, LENGTH);
		want_owner_fault(&owner, op, 32 * PAGE - 1, 2);
		want(0, owner_move(&owner, op, 0, 16 * PAGE));
		want(0, owner_move(&owner, op, 32 * PAGE, LENGTH - 32 * PAGE));
	}
	owner_close(&owner);
}

/* The memory is mapped, but the kernel cannot store the received bytes in it. */
static void gone__not_writable(void **state)
{
	struct owner owner;

	(void)state;
	owner_open(&owner);
	want(0, mprotect(owner.pages + 128 * PAGE, 32 * PAGE, PROT_READ));
	for (unsigned int i = 0; i < 3; i++) {
		/* Few bytes come with the header. */
		want_owner_fault(&owner, WH_WRITE, 128 * PAGE, 8);
		want_owner_fault(&owner, WH_WRITE, 128 * PAGE - 8, PAGE);
		want_owner_fault(&owner, WH_WRITE, 0, LENGTH);
		want(0, owner_move(&owner, WH_WRITE, 0, 128 * PAGE));
		want(0, owner_move(&owner, WH_READ, 0, LENGTH));
	}
	owner_close(&owner);
}

/* The memory is mapped, and nobody can read it. */
static void gone__not_readable(void **state)
{
	struct owner owner;

	(void)state;
	owner_open(&owner);
	want(0, mprotect(owner.pages + 128 * PAGE, 32 * PAGE, PROT_NONE));
	for (unsigned int i = 0; i < 3; i++) {
		want_owner_fault(&owner, WH_READ, 128 * PAGE, 8);
		want_owner_fault(&owner, WH_READ, 130 * PAGE, 2 * PAGE);
		want_owner_fault(&owner, WH_WRITE, 128 * PAGE, 8);
		want(0, owner_move(&owner, WH_READ, 0, 128 * PAGE));
	}
	owner_close(&owner);
}

/* The memory is mapped at the initiator, but it cannot be written. */
static void gone__not_writable_here(void **state)
{
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	want(0, move(&f, WH_WRITE, 0, 0, LENGTH));
	want(0, mprotect((void *)(((uintptr_t)f.local + 64 * PAGE) & ~(uintptr_t)(PAGE - 1)),
			 40 * PAGE, PROT_READ));
	want_fault(&f, WH_READ, 8);
	want_fault(&f, WH_READ, PAGE);
	want_fault(&f, WH_READ, 64 * PAGE);
	want(0, move(&f, WH_WRITE, 0, 0, LENGTH));
	fixture_close(&f);
}

/* Map a file over pages of a region, and truncate it: the pages stay mapped, and a load or store
 * gives SIGBUS. */
static void truncate_pages(void *pages, size_t length)
{
	int fd = memfd_create("truncated", MFD_CLOEXEC);

	want_true(fd >= 0, "no memfd");
	want(0, ftruncate(fd, (off_t)length));
	want_true(mmap(pages, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
			  pages,
		  "the file cannot be mapped");
	want(0, ftruncate(fd, 0));
	want(0, close(fd));
}

static void gone__truncated(void **state)
{
	struct owner owner;

	(void)state;
	owner_open(&owner);
	truncate_pages(owner.pages + 128 * PAGE, 32 * PAGE);
	for (unsigned int i = 0; i < 3; i++) {
		want_owner_fault(&owner, WH_READ, 128 * PAGE, 8);
		want_owner_fault(&owner, WH_READ, 130 * PAGE, 2 * PAGE);
		/* Few bytes come with the header. */
		want_owner_fault(&owner, WH_WRITE, 128 * PAGE, 8);
		want_owner_fault(&owner, WH_WRITE, 128 * PAGE - 8, PAGE);
		want_owner_fault(&owner, WH_WRITE, 0, LENGTH);
		want(0, owner_move(&owner, WH_WRITE, 0, 128 * PAGE));
		want(0, owner_move(&owner, WH_READ, 0, 128 * PAGE));
	}
	owner_close(&owner);
}

static void gone__truncated_here(void **state)
{
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	want(0, move(&f, WH_WRITE, 0, 0, LENGTH));
	truncate_pages((void *)(((uintptr_t)f.local + 64 * PAGE) & ~(uintptr_t)(PAGE - 1)),
		       40 * PAGE);
	want_fault(&f, WH_READ, 8);
	want_fault(&f, WH_READ, PAGE);
	want_fault(&f, WH_READ, 64 * PAGE);
	want_fault(&f, WH_WRITE, 8);
	want_fault(&f, WH_WRITE, PAGE);
	want_fault(&f, WH_WRITE, 64 * PAGE);
	fixture_close(&f);
}

static const struct CMUnitTest tests[] = {
	TEST(register__never_mapped),
	TEST_OVER(gone__here, tcp4),
	TEST_OVER(gone__here, vm),
	TEST(gone__there),
	TEST(gone__not_writable),
	TEST(gone__not_readable),
	TEST_OVER(gone__not_writable_here, tcp4),
	TEST(gone__truncated),
	TEST_OVER(gone__truncated_here, tcp4),
	TEST_OVER(gone__truncated_here, vm),
};

HARNESS_MAIN("memory-gone", tests)
