/* SPDX-License-Identifier: Apache-2.0 */
/* memory-gone.c: registered memory that has been unmapped, on either side, gives an errno and never
 * a signal */
#include "lib/files.h"
#include "lib/fixture.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
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
		/* The owner sends half of it before the kernel refuses the rest. */
		want_owner_fault(&owner, WH_READ, 0, LENGTH);
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
		want_owner_fault(&owner, WH_READ, 0, LENGTH);
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

/* ---- gone at the owner, of some of many transfers: both engines are here ------------------- */

#define REGIONS 6

struct sharers {
	struct wh_engine *owner, *engine;
	struct wh_peer *peer;
	unsigned char *pages[REGIONS], *target;
	struct wh_region *regions[REGIONS], *local;
	struct wh_remote remotes[REGIONS];
};

/* One data connection carries all. */
static void sharers_open(struct sharers *sharers)
{
	static const char *const one[] = { "connections=1", NULL };

	memset(sharers, 0, sizeof(*sharers));
	sharers->owner = engine_open(NULL, NULL, NULL);
	sharers->engine = engine_open("tcp", "none", one);
	want(0, wh_peer_open(sharers->engine, wh_engine_url(sharers->owner), NULL, &sharers->peer));
	sharers->target = pages_new(REGIONS * LENGTH);
	want(0, wh_region_register(sharers->engine, sharers->target, REGIONS * LENGTH, NULL,
				   &sharers->local));
	for (unsigned int i = 0; i < REGIONS; i++) {
		char name[16];
		struct wh_region_options options = { .size = sizeof(options),
						     .name = name,
						     .access = ACCESS_BOTH };

		snprintf(name, sizeof(name), "region%u", i);
		sharers->pages[i] = pages_new(LENGTH);
		memset(sharers->pages[i], (int)i + 1, LENGTH);
		want(0, wh_region_register(sharers->owner, sharers->pages[i], LENGTH, &options,
					   &sharers->regions[i]));
		want(0, wh_peer_find(sharers->peer, name, PATIENCE, &sharers->remotes[i]));
	}
}

static void sharers_close(struct sharers *sharers)
{
	want(0, wh_peer_close(sharers->peer));
	want(0, wh_region_unregister(sharers->local));
	want(0, wh_engine_close(sharers->engine));
	for (unsigned int i = 0; i < REGIONS; i++) {
		want(0, wh_region_unregister(sharers->regions[i]));
		pages_free(sharers->pages[i], LENGTH);
	}
	want(0, wh_engine_close(sharers->owner));
	pages_free(sharers->target, REGIONS * LENGTH);
}

/* A read of `length` bytes at `offset` of each region, to where nothing else arrives. */
static struct wh_transfer sharers_read(struct sharers *sharers, unsigned int i, uint64_t offset,
				       uint64_t length)
{
	return (struct wh_transfer){
		.op = WH_READ,
		.local = sharers->local,
		.local_offset = i * LENGTH,
		.remote = sharers->remotes[i].id,
		.remote_offset = offset,
		.length = length,
	};
}

static void want_arrived(struct sharers *sharers, unsigned int i, uint64_t length)
{
	for (uint64_t k = 0; k < length; k++)
		want_true(sharers->target[i * LENGTH + k] == i + 1,
			  "byte %llu of region %u is wrong", (unsigned long long)k, i);
}

/* Transfers that share a request: only those of the bad region fail. */
static void gone__some_of_a_request(void **state)
{
	struct wh_transfer transfers[REGIONS];
	struct wh_batch *batch;
	struct sharers sharers;

	(void)state;
	sharers_open(&sharers);
	want(0, mprotect(sharers.pages[2], LENGTH, PROT_NONE));
	for (unsigned int i = 0; i < REGIONS; i++)
		transfers[i] = sharers_read(&sharers, i, 3 * PAGE, 2 * PAGE);
	want(0, wh_batch_new(sharers.peer, NULL, &batch));
	want(0, wh_batch_add(batch, transfers, REGIONS));
	want(-EFAULT, batch_run(batch));
	for (unsigned int i = 0; i < REGIONS; i++) {
		want(i == 2 ? -EFAULT : 0, batch_item(batch, i));
		if (i != 2)
			want_arrived(&sharers, i, 2 * PAGE);
	}
	want(0, wh_batch_free(batch));
	want(0, mprotect(sharers.pages[2], LENGTH, PROT_READ | PROT_WRITE));
	sharers_close(&sharers);
}

/* The same with local memory: what succeeds is there. */
static void gone__some_here(void **state)
{
	struct wh_transfer transfers[REGIONS];
	struct wh_batch *batch;
	struct sharers sharers;

	(void)state;
	sharers_open(&sharers);
	want(0, munmap(sharers.target + 2 * LENGTH, PAGE));
	for (unsigned int op = WH_READ; op <= WH_WRITE; op++) {
		for (uint64_t length = 8; length <= 64 * PAGE; length *= 8) {
			for (unsigned int i = 0; i < REGIONS; i++) {
				transfers[i] = sharers_read(&sharers, i, 0, length);
				transfers[i].op = op;
				if (i != 2)
					memset(sharers.target + i * LENGTH, op == WH_READ ? 0 : 77,
					       length);
				memset(sharers.pages[i], (int)i + 1, length);
			}
			want(0, wh_batch_new(sharers.peer, NULL, &batch));
			want(0, wh_batch_add(batch, transfers, REGIONS));
			want(-EFAULT, batch_run(batch));
			want(-EFAULT, batch_item(batch, 2));
			for (unsigned int i = 0; i < REGIONS; i++) {
				if (batch_item(batch, i))
					continue;
				for (uint64_t k = 0; k < length; k++)
					want(op == WH_READ ? (int)i + 1 : 77,
					     op == WH_READ ? sharers.target[i * LENGTH + k] :
							     sharers.pages[i][k]);
			}
			want(0, wh_batch_free(batch));
		}
	}
	sharers_close(&sharers);
}

/* Batches that share a connection. More of them than a request has attempts break it, each behind
 * half of its bytes. */
static void gone__some_batches(void **state)
{
	struct wh_batch *batches[REGIONS];
	struct sharers sharers;

	(void)state;
	sharers_open(&sharers);
	for (unsigned int i = 0; i < REGIONS; i++)
		if (i % 5)
			want(0, mprotect(sharers.pages[i] + LENGTH / 2, PAGE, PROT_NONE));
	for (unsigned int i = 0; i < REGIONS; i++) {
		struct wh_transfer transfer = sharers_read(&sharers, i, 0, LENGTH);

		want(0, wh_batch_new(sharers.peer, NULL, &batches[i]));
		want(0, wh_batch_add(batches[i], &transfer, 1));
	}
	for (unsigned int i = 0; i < REGIONS; i++)
		want(0, wh_batch_submit(batches[i]));
	for (unsigned int i = 0; i < REGIONS; i++) {
		want(0, wh_batch_wait_for(batches[i], WH_FOREVER));
		want(i % 5 ? -EFAULT : 0, wh_batch_status(batches[i]));
		want_true(!(i % 5) || strstr(wh_batch_error_text(batches[i]), "refuses region"),
			  "it says: %s", wh_batch_error_text(batches[i]));
		if (i % 5 == 0)
			want_arrived(&sharers, i, LENGTH);
		want(0, wh_batch_free(batches[i]));
	}
	/* Memory that can be read again is read again. */
	for (unsigned int i = 0; i < REGIONS; i++) {
		struct wh_transfer transfer = sharers_read(&sharers, i, 0, LENGTH);

		want(0, mprotect(sharers.pages[i], LENGTH, PROT_READ | PROT_WRITE));
		want(0, wh_batch_new(sharers.peer, NULL, &batches[i]));
		want(0, wh_batch_add(batches[i], &transfer, 1));
		want(0, batch_run(batches[i]));
		want_arrived(&sharers, i, LENGTH);
		want(0, wh_batch_free(batches[i]));
	}
	sharers_close(&sharers);
}

/* A file among the targets of a request has all of it go through slots, from which the CPU copies
 * to memory. */
static void gone__beside_a_file(void **state)
{
	struct wh_region_options options = { .size = sizeof(options),
					     .name = "file",
					     .access = ACCESS_BOTH };
	struct wh_region *region;
	struct wh_remote file;
	struct sharers sharers;
	int fd = file_new(LENGTH);

	(void)state;
	want_true(fd >= 0, "no file");
	sharers_open(&sharers);
	want(0, file_region(sharers.owner, fd, 0, LENGTH, &options, &region));
	want(0, wh_peer_find(sharers.peer, "file", PATIENCE, &file));
	for (unsigned int bad = 0; bad < 4; bad++) {
		uint32_t op = bad & 1 ? WH_READ : WH_WRITE;
		void *page = bad & 2 ? sharers.target + LENGTH : sharers.pages[1];
		struct wh_transfer transfers[] = { sharers_read(&sharers, 0, 0, 2 * PAGE),
						   sharers_read(&sharers, 1, 0, PAGE),
						   sharers_read(&sharers, 2, 0, PAGE) };
		struct wh_batch *batch;

		transfers[0].remote = file.id;
		for (unsigned int i = 0; i < 3; i++)
			transfers[i].op = op;
		want(0, wh_batch_new(sharers.peer, NULL, &batch));
		want(0, wh_batch_add(batch, transfers, 3));
		want(0, batch_run(batch));
		/* At the owner or here; not to be written, or not to be read. */
		want(0,
		     mprotect(page, PAGE, (op == WH_READ) == !(bad & 2) ? PROT_NONE : PROT_READ));
		want(-EFAULT, batch_run(batch));
		want(0, mprotect(page, PAGE, PROT_READ | PROT_WRITE));
		want(0, batch_run(batch));
		want(0, wh_batch_free(batch));
	}
	want(0, wh_region_unregister(region));
	close(fd);
	sharers_close(&sharers);
}

/* ---- a seccomp filter, as of old containers ------------------------------------------------ */

static const char *missing_filters(void)
{
	/* A kernel that knows them wants an address. */
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL) && errno == EFAULT ?
		       NULL :
		       "the kernel has no seccomp filters";
}

static const struct route needs_filters = { .name = "filters", .missing = missing_filters };

static void refuse_process_vm(void)
{
	const struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog program = { sizeof(code) / sizeof(*code),
					    (struct sock_filter *)(uintptr_t)code };
	struct iovec here = { (void *)(uintptr_t)code, 1 };
	char byte;

	want(0, prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	want(0, prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
	want(-1, (int)process_vm_readv(getpid(), &(struct iovec){ &byte, 1 }, 1, &here, 1, 0));
}

static int sharers_move(struct sharers *sharers, uint32_t op, uint64_t local, uint64_t remote,
			uint64_t length)
{
	struct wh_transfer transfer = sharers_read(sharers, 0, remote, length);
	struct wh_batch *batch;
	int status;

	transfer.op = op;
	transfer.local_offset = local;
	want(0, wh_batch_new(sharers->peer, NULL, &batch));
	want(0, wh_batch_add(batch, &transfer, 1));
	status = batch_run(batch);
	want(0, wh_batch_free(batch));
	return status;
}

/* The CPU copies what comes with a header, after a look. The filter stays with this thread, and is
 * inherited by those of the engines, so this is the last test. */
static void gone__call_refused(void **state)
{
	static const uint64_t lengths[] = { 1, 8, PAGE - 1, PAGE, 3 * PAGE + 5, LENGTH };
	struct sharers sharers;

	(void)state;
	refuse_process_vm();
	sharers_open(&sharers);
	for (unsigned int i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		uint64_t length = lengths[i];

		memset(sharers.target, (int)i + 40, length);
		want(0, sharers_move(&sharers, WH_WRITE, 0, LENGTH - length, length));
		want(0, sharers_move(&sharers, WH_READ, LENGTH, LENGTH - length, length));
		want(0, memcmp(sharers.target, sharers.target + LENGTH, length));
		want(0, memcmp(sharers.target, sharers.pages[0] + LENGTH - length, length));
	}
	want(0, munmap(sharers.pages[0] + 8 * PAGE, PAGE));
	want(0, munmap(sharers.target + 8 * PAGE, PAGE));
	for (unsigned int op = WH_READ; op <= WH_WRITE; op++) {
		want(-EFAULT, sharers_move(&sharers, op, 0, 8 * PAGE, 8));
		want(-EFAULT, sharers_move(&sharers, op, 0, 8 * PAGE - 1, 2));
		want(-EFAULT, sharers_move(&sharers, op, 8 * PAGE, 0, 8));
		want(-EFAULT, sharers_move(&sharers, op, 8 * PAGE - 1, 0, 2));
		want(0, sharers_move(&sharers, op, 0, 0, 8 * PAGE));
	}
	/* What is only read is found as without the filter. */
	want(0, mprotect(sharers.pages[0] + 16 * PAGE, PAGE, PROT_NONE));
	want(0, mprotect(sharers.target + 16 * PAGE, PAGE, PROT_NONE));
	want(-EFAULT, sharers_move(&sharers, WH_READ, 0, 16 * PAGE, 8));
	want(-EFAULT, sharers_move(&sharers, WH_READ, 0, 9 * PAGE, 100 * PAGE));
	want(-EFAULT, sharers_move(&sharers, WH_WRITE, 16 * PAGE, 0, 8));
	sharers_close(&sharers);
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
	TEST(gone__some_of_a_request),
	TEST(gone__some_here),
	TEST(gone__some_batches),
	TEST(gone__beside_a_file),
	TEST_NEEDS(gone__call_refused, needs_filters),
};

HARNESS_MAIN("memory-gone", tests)
