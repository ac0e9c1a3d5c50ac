/* SPDX-License-Identifier: Apache-2.0 */
/* file-faults.c: files that become shorter, disks that are full, file systems that do not answer;
 * of this engine and of a peer. The owner is a second engine of this process, so that the test can
 * do to its file what it likes. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "lib/files.h"
#include "lib/fixture.h"

#define LENGTH (2 * MIB)

/* ---- a file system that does not answer --------------------------------------------------------
 */

static atomic_int hangs, hanging; /* calls wait; how many do */
static atomic_int cached; /* ... but not those that read what is in the page cache */
static atomic_int cuts; /* reads of the page cache before which the file is emptied */
static int hung_fd = -1; /* of the device and inode that this descriptor has */

static bool is_hung(int fd)
{
	struct stat ours, theirs;

	return hung_fd >= 0 && !fstat(fd, &ours) && !fstat(hung_fd, &theirs) &&
	       ours.st_ino == theirs.st_ino && ours.st_dev == theirs.st_dev;
}

static void hang(int fd)
{
	if (!atomic_load(&hangs) || !is_hung(fd))
		return;
	atomic_fetch_add(&hanging, 1);
	while (atomic_load(&hangs))
		sleep_ms(1);
	atomic_fetch_sub(&hanging, 1);
}

/* The library's calls come here. */
ssize_t preadv(int fd, const struct iovec *vector, int count, off_t offset)
{
	hang(fd);
	return syscall(SYS_preadv, fd, vector, count, offset, 0);
}

ssize_t preadv2(int fd, const struct iovec *vector, int count, off_t offset, int flags)
{
	if (flags & RWF_NOWAIT && is_hung(fd)) {
		if (atomic_load(&cuts) && atomic_fetch_sub(&cuts, 1) == 1)
			want(0, ftruncate(hung_fd, 0));
		if (atomic_load(&hangs) && !atomic_load(&cached)) {
			errno = EAGAIN;
			return -1;
		}
	}
	return syscall(SYS_preadv2, fd, vector, count, offset, 0, flags);
}

ssize_t pwritev(int fd, const struct iovec *vector, int count, off_t offset)
{
	hang(fd);
	return syscall(SYS_pwritev, fd, vector, count, offset, 0);
}

static void await_hanging(void)
{
	int64_t until = now() + PATIENCE;

	while (!atomic_load(&hanging)) {
		want_true(now() < until, "nobody reads the file");
		sleep_ms(1);
	}
}

/* ---- an owner with a file ----------------------------------------------------------------------
 */

struct pair {
	struct wh_engine *engine, *owner; /* the same if `self` */
	struct wh_peer *peer;
	struct wh_region *region, *file;
	unsigned char *local; /* 2 * LENGTH bytes */
	int fd;
	uint64_t start; /* of the region in the file */
};

/* How a peer's file is reached: by TCP, or with NULL through memory that is lent to the owner. */
static const char *way = "tcp";

static void pair_open_file(struct pair *pair, bool self, int fd, uint64_t start, uint32_t flags,
			   bool plain)
{
	struct wh_region_options access = { .size = sizeof(access),
					    .name = "file",
					    .access = ACCESS_BOTH };
	struct wh_file_options options = { .size = sizeof(options),
					   .offset = start,
					   .length = LENGTH,
					   .flags = WH_FILE_WRITE | flags,
					   .region = &access };
	/* Calls that hang are those of this file, and none of io_uring. */
	const char *config[] = { "file_cold=pread", NULL };

	*pair = (struct pair){ .fd = fd, .start = start };
	if (!plain)
		config[0] = NULL;
	pair->engine = engine_open(self ? "self" : way, "none", config);
	pair->owner = self ? pair->engine : engine_open(NULL, "127.0.0.1:0", config);
	want(0, wh_file_register_fd(pair->owner, fd, &options, &pair->file));
	want(0, wh_peer_open(pair->engine, self ? "self" : wh_engine_url(pair->owner), NULL,
			     &pair->peer));
	pair->local = pages_new(2 * LENGTH);
	want(0, wh_region_register(pair->engine, pair->local, 2 * LENGTH, NULL, &pair->region));
}

static void pair_open(struct pair *pair, bool self, bool plain)
{
	int fd = file_new(LENGTH + 1000);

	want_true(fd >= 0, "no file: %s", strerror(-fd));
	pair_open_file(pair, self, fd, 300, 0, plain);
}

static void pair_close(struct pair *pair)
{
	want(0, wh_peer_close(pair->peer));
	want(0, wh_region_unregister(pair->region));
	want(0, wh_region_unregister(pair->file));
	want(0, wh_engine_close(pair->engine));
	if (pair->owner != pair->engine)
		want(0, wh_engine_close(pair->owner));
	pages_free(pair->local, 2 * LENGTH);
	close(pair->fd);
}

static struct wh_batch *pair_batch(const struct pair *pair, uint32_t op, uint64_t offset,
				   uint64_t length)
{
	struct wh_transfer transfer = { .op = op,
					.local = pair->region,
					.local_offset = offset,
					.remote_offset = offset,
					.length = length };
	struct wh_batch *batch;
	struct wh_remote remote;

	want(0, wh_peer_find(pair->peer, "file", PATIENCE, &remote));
	transfer.remote = remote.id;
	want(0, wh_batch_new(pair->peer, NULL, &batch));
	want(0, wh_batch_add(batch, &transfer, 1));
	return batch;
}

static int pair_move(const struct pair *pair, uint32_t op, uint64_t offset, uint64_t length)
{
	struct wh_batch *batch = pair_batch(pair, op, offset, length);
	int status = batch_run(batch);

	want(0, wh_batch_free(batch));
	return status;
}

static uint64_t pair_size(const struct pair *pair)
{
	struct stat is;

	want(0, fstat(pair->fd, &is));
	return (uint64_t)is.st_size;
}

/* ---- files that become shorter -----------------------------------------------------------------
 */

/* What is still there can be read and written; the rest is an error, and nothing makes the file
 * longer again. */
static void cut_between_batches(bool self)
{
	const uint64_t left = MIB;
	struct wh_transfer transfers[3];
	struct wh_batch *batch;
	struct wh_remote remote;
	struct pair pair;
	int32_t status;

	pair_open(&pair, self, false);
	pattern_fill(pair.local, 2 * LENGTH, 0, 1);
	want(0, pair_move(&pair, WH_WRITE, 0, LENGTH));
	want(0, ftruncate(pair.fd, (off_t)(pair.start + left)));
	for (uint32_t op = WH_READ; op <= WH_WRITE; op++) {
		want(-EIO, pair_move(&pair, op, 0, LENGTH));
		want(-EIO, pair_move(&pair, op, left - 1, 2));
		want(-EIO, pair_move(&pair, op, left, 1));
		want(0, pair_move(&pair, op, left - 4096, 4096));
		want(pair.start + left, pair_size(&pair));
	}
	/* Of one batch, the transfers that can be are done. */
	want(0, wh_peer_find(pair.peer, "file", 0, &remote));
	for (uint64_t i = 0; i < 3; i++)
		transfers[i] = (struct wh_transfer){ .op = WH_READ,
						     .local = pair.region,
						     .local_offset = LENGTH + i * 4096,
						     .remote = remote.id,
						     .remote_offset = i == 1 ? left : i * MIB / 4,
						     .length = 4096 };
	memset(pair.local + LENGTH, 0, LENGTH);
	want(0, wh_batch_new(pair.peer, NULL, &batch));
	want(0, wh_batch_add(batch, transfers, 3));
	want(-EIO, batch_run(batch));
	want(0, wh_batch_transfer_status(batch, 1, &status));
	want(-EIO, status);
	for (uint64_t i = 0; i < 3; i += 2) {
		want(0, wh_batch_transfer_status(batch, i, &status));
		want_true(status || pattern_check(pair.local + LENGTH + i * 4096, 4096, i * MIB / 4,
						  1) == PATTERN_GOOD,
			  "transfer %d is reported as done, and is not", (int)i);
		want_true(!self || !status, "transfer %d: %d", (int)i, status);
	}
	want(0, wh_batch_free(batch));
	pair_close(&pair);
}

static void cut__between_batches(void **state)
{
	(void)state;
	cut_between_batches(true);
}

static void cut__between_batches_of_a_peer(void **state)
{
	(void)state;
	cut_between_batches(false);
}

static void *cut_and_mend(void *arg)
{
	const struct pair *pair = arg;

	for (int i = 0; i < SCALE(400, 60); i++) {
		ftruncate(pair->fd, (off_t)(pair->start + (uint64_t)(i % 7) * 100000));
		usleep(200);
		ftruncate(pair->fd, LENGTH + 1000);
		usleep(700);
	}
	return NULL;
}

/* The outcome is success or EIO, never a signal. Of a batch that succeeded, every byte was the
 * file's at some moment: those written before, or the zeroes of a file that was made longer again.
 */
static void cut_under_way(bool self)
{
	unsigned int good = 0, bad = 0;
	pthread_t thread;
	struct pair pair;

	pair_open(&pair, self, false);
	want(0, pthread_create(&thread, NULL, cut_and_mend, &pair));
	while (pthread_tryjoin_np(thread, NULL)) {
		int status = pair_move(&pair, (good + bad) % 2 ? WH_READ : WH_WRITE, 0, LENGTH);

		want_true(!status || status == -EIO, "a batch ended with %d", status);
		good += !status;
		bad += status == -EIO;
	}
	print_message("%u batches succeeded, %u failed\n", good, bad);
	want_true(bad, "the file was never too short");
	pattern_fill(pair.local, LENGTH, 0, 5);
	want(0, pair_move(&pair, WH_WRITE, 0, LENGTH));
	memset(pair.local, 0, LENGTH);
	want(0, pair_move(&pair, WH_READ, 0, LENGTH));
	want_true(pattern_check(pair.local, LENGTH, 0, 5) == PATTERN_GOOD, "the bytes");
	pair_close(&pair);
}

static void cut__under_way(void **state)
{
	(void)state;
	cut_under_way(true);
}

static void cut__under_way_of_a_peer(void **state)
{
	(void)state;
	cut_under_way(false);
}

/* ---- no room ------------------------------------------------------------------------------------
 */

/* Beyond its limit, the kernel would send the process a signal that ends it. */
static void room__limit_of_the_process(void **state)
{
	struct rlimit before, limit;
	struct pair pair;

	(void)state;
	pair_open_file(&pair, true, file_new(1000), 0, WH_FILE_GROW, false);
	want(0, getrlimit(RLIMIT_FSIZE, &before));
	limit = before;
	limit.rlim_cur = MIB;
	want(0, setrlimit(RLIMIT_FSIZE, &limit));
	want(-EFBIG, pair_move(&pair, WH_WRITE, 0, LENGTH));
	want(0, pair_move(&pair, WH_WRITE, 0, MIB));
	want(0, setrlimit(RLIMIT_FSIZE, &before));
	want(MIB, pair_size(&pair));
	pair_close(&pair);
}

/* Of a full disk, each batch that needs room fails, and those that need none do not. */
static void full_disk(bool self)
{
	char directory[] = "/tmp/wherry-full-XXXXXX", path[64];
	struct pair pair;
	int fd;

	assert_non_null(mkdtemp(directory));
	if (mount("wherry-full", directory, "tmpfs", 0, "size=1m")) {
		rmdir(directory);
		print_message("tmpfs cannot be mounted here: %s\n", strerror(errno));
		skip();
	}
	snprintf(path, sizeof(path), "%s/file", directory);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	umount2(directory, MNT_DETACH);
	rmdir(directory);
	want_true(fd >= 0, "no file");
	pair_open_file(&pair, self, fd, 0, WH_FILE_GROW, false);
	pattern_fill(pair.local, LENGTH, 0, 7);
	want(0, pair_move(&pair, WH_WRITE, 0, 64 * KIB));
	want(-ENOSPC, pair_move(&pair, WH_WRITE, 64 * KIB, LENGTH - 64 * KIB));
	want(0, pair_move(&pair, WH_WRITE, 0, 64 * KIB));
	memset(pair.local, 0, LENGTH);
	want(0, pair_move(&pair, WH_READ, 0, 64 * KIB));
	want_true(pattern_check(pair.local, 64 * KIB, 0, 7) == PATTERN_GOOD, "the first bytes");
	pair_close(&pair);
}

static void room__full_disk(void **state)
{
	(void)state;
	full_disk(true);
}

static void room__full_disk_of_a_peer(void **state)
{
	(void)state;
	full_disk(false);
}

/* ---- file systems that do not answer ------------------------------------------------------------
 */

/* Waits end in time, other transfers of the engine go on, and so does the batch later. */
static void hangs_and_comes_back(bool self, uint32_t op)
{
	struct wh_region_options access = { .size = sizeof(access),
					    .name = "memory",
					    .access = ACCESS_BOTH };
	struct wh_transfer beside = { .op = WH_WRITE, .length = 3 * MIB / 4 };
	struct wh_region *memory;
	struct wh_remote remote;
	struct wh_batch *batch, *other;
	unsigned char *there = pages_new(MIB);
	struct pair pair;
	int64_t begun;

	pair_open(&pair, self, true);
	hung_fd = pair.fd;
	want(0, wh_region_register(pair.owner, there, MIB, &access, &memory));
	want(0, wh_peer_find(pair.peer, "memory", PATIENCE, &remote));
	pattern_fill(pair.local, LENGTH, 0, 7);
	batch = pair_batch(&pair, op, 0, LENGTH);
	want(0, wh_batch_new(pair.peer, NULL, &other));
	beside.local = pair.region;
	beside.remote = remote.id;
	want(0, wh_batch_add(other, &beside, 1));
	atomic_store(&hangs, 1);
	begun = now();
	want(0, wh_batch_submit(batch));
	await_hanging();
	want(-EAGAIN, wh_batch_wait_for(batch, 20 * MS));
	want(0, batch_run(other));
	want_true(now() - begun < PATIENCE, "it waited for the file");
	want(-EBUSY, wh_batch_free(batch));
	atomic_store(&hangs, 0);
	want(0, batch_end(batch, PATIENCE));
	want(0, wh_batch_free(batch));
	want(0, wh_batch_free(other));
	want(0, wh_region_unregister(memory));
	pair_close(&pair);
	pages_free(there, MIB);
}

static void hang__read(void **state)
{
	(void)state;
	hangs_and_comes_back(true, WH_READ);
}

static void hang__write(void **state)
{
	(void)state;
	hangs_and_comes_back(true, WH_WRITE);
}

static void hang__read_of_a_peer(void **state)
{
	(void)state;
	hangs_and_comes_back(false, WH_READ);
}

static void hang__write_of_a_peer(void **state)
{
	(void)state;
	hangs_and_comes_back(false, WH_WRITE);
}

/* A read whose file hangs is cancelled, and freed. */
static void cancel_while_it_hangs(const struct pair *pair)
{
	struct wh_batch *batch = pair_batch(pair, WH_READ, 0, LENGTH);
	int64_t begun;

	atomic_store(&hangs, 1);
	want(0, wh_batch_submit(batch));
	await_hanging();
	begun = now();
	want(0, wh_batch_cancel(batch));
	want_true(now() - begun < PATIENCE, "it waited for the file");
	want(-ECANCELED, wh_batch_status(batch));
	want(0, wh_batch_free(batch));
}

/* A cancel does not wait for an owner that cannot read its file; the connection is cut. The file's
 * region cannot be unregistered meanwhile. */
static void hang__cancel(void **state)
{
	struct pair pair;

	(void)state;
	pair_open(&pair, false, true);
	hung_fd = pair.fd;
	cancel_while_it_hangs(&pair);
	atomic_store(&hangs, 0);
	want(0, pair_move(&pair, WH_READ, 0, LENGTH));
	pair_close(&pair);
}

/* ---- the same through memory that is lent to the owner ------------------------------------------
 */

static int lent_begin(void **state)
{
	way = NULL;
	return harness_begin(state);
}

static int way_end(void **state)
{
	way = "tcp";
	return harness_end(state);
}

static void way__cut(void **state)
{
	(void)state;
	cut_between_batches(false);
	cut_under_way(false);
}

static void way__full_disk(void **state)
{
	(void)state;
	full_disk(false);
}

static void way__hang(void **state)
{
	(void)state;
	hangs_and_comes_back(false, WH_READ);
	hangs_and_comes_back(false, WH_WRITE);
}

/* What the owner still reads after a cancel stays in the slot, which nobody uses again: neither the
 * cancelled batch's memory nor another batch's bytes change. */
static void lent__cancel(void **state)
{
	unsigned char *before = pages_new(LENGTH);
	struct wh_batch *batch;
	struct pair pair;
	char text[4096];

	(void)state;
	harness_limit(120);
	pair_open(&pair, false, true);
	hung_fd = pair.fd;
	pattern_fill(before, LENGTH, 0, 5);
	want(LENGTH, pwrite(pair.fd, before, LENGTH, (off_t)pair.start));
	cancel_while_it_hangs(&pair);
	memset(pair.local, 0xee, LENGTH);
	atomic_store(&hangs, 0);
	while (atomic_load(&hanging))
		sleep_ms(1);
	for (size_t i = 0; i < LENGTH; i++)
		want_true(pair.local[i] == 0xee, "byte %zu has changed after the cancel", i);
	batch = pair_batch(&pair, WH_READ, 0, LENGTH);
	want(0, batch_run(batch));
	want_true(wh_batch_explain(batch, text, sizeof(text)) > 0 && strstr(text, "shared memory"),
		  "it says: %s", text);
	want_true(pattern_check(pair.local, LENGTH, 0, 5) == PATTERN_GOOD, "wrong bytes");
	want(0, wh_batch_free(batch));
	pair_close(&pair);
	pages_free(before, LENGTH);
}

/* The owner's engine closes; another one with the same file has a session, and slots, of its own.
 */
static void lent__owner_closes(void **state)
{
	struct pair pair, next;
	struct wh_batch *batch;

	(void)state;
	pair_open(&pair, false, false);
	want(0, pair_move(&pair, WH_WRITE, 0, LENGTH));
	batch = pair_batch(&pair, WH_READ, 0, LENGTH);
	pair_open(&next, false, false);
	want(0, pair_move(&next, WH_WRITE, 0, LENGTH));
	want(0, wh_region_unregister(pair.file));
	want(0, wh_engine_close(pair.owner));
	want_true(batch_run(batch) < 0, "it reads from a closed engine");
	want(0, wh_batch_free(batch));
	want(0, pair_move(&next, WH_READ, 0, LENGTH));
	pair_close(&next);
	want(0, wh_peer_close(pair.peer));
	want(0, wh_region_unregister(pair.region));
	want(0, wh_engine_close(pair.engine));
	pages_free(pair.local, 2 * LENGTH);
	close(pair.fd);
}

/* ---- the same through bounce buffers that NICs reach --------------------------------------------
 */

static int rdma_begin(void **state)
{
	way = "rdma";
	return harness_begin(state);
}

/* What the owner still reads after a cancel stays in its bounce buffer, and the slot is used again
 * when it has. */
static void rdma__cancel(void **state)
{
	struct pair pair;

	(void)state;
	pair_open(&pair, false, true);
	hung_fd = pair.fd;
	for (unsigned i = 0; i < 4; i++) {
		cancel_while_it_hangs(&pair);
		atomic_store(&hangs, 0);
		want(0, pair_move(&pair, WH_READ, 0, LENGTH));
	}
	pair_close(&pair);
}

/* ---- what is in the page cache ------------------------------------------------------------------
 */

/* A file of the initiator is written to the owner's memory, or one of the owner is read. */
struct cached {
	struct pair pair;
	bool own; /* the initiator's */
	struct wh_region *file, *memory; /* own: the file again, the owner's memory */
	unsigned char *there;
};

static bool kernel_knows_cache(int fd)
{
	uint64_t range[2] = { 0, 4096 }, found[5];

	return !syscall(451 /* cachestat */, fd, range, found, 0);
}

static void cached_open(struct cached *test, bool own)
{
	struct wh_region_options access = { .size = sizeof(access),
					    .name = "memory",
					    .access = ACCESS_BOTH };

	*test = (struct cached){ .own = own, .there = pages_new(LENGTH) };
	pair_open(&test->pair, false, true);
	if (!kernel_knows_cache(test->pair.fd)) {
		print_message("cachestat: %s\n", strerror(errno));
		skip();
	}
	pattern_fill(test->pair.local, LENGTH, 0, 3);
	want(LENGTH, pwrite(test->pair.fd, test->pair.local, LENGTH, (off_t)test->pair.start));
	memset(test->pair.local, 0, LENGTH);
	want(0, file_region(test->pair.engine, test->pair.fd, test->pair.start, LENGTH, NULL,
			    &test->file));
	want(0, wh_region_register(test->pair.owner, test->there, LENGTH, &access, &test->memory));
	hung_fd = test->pair.fd;
}

static struct wh_batch *cached_batch(struct cached *test, uint64_t length)
{
	struct wh_transfer transfer = { .op = WH_WRITE, .local = test->file, .length = length };
	struct wh_remote remote;
	struct wh_batch *batch;

	if (!test->own)
		return pair_batch(&test->pair, WH_READ, 0, length);
	want(0, wh_peer_find(test->pair.peer, "memory", PATIENCE, &remote));
	transfer.remote = remote.id;
	want(0, wh_batch_new(test->pair.peer, NULL, &batch));
	want(0, wh_batch_add(batch, &transfer, 1));
	return batch;
}

static int cached_move(struct cached *test, uint64_t length)
{
	struct wh_batch *batch = cached_batch(test, length);
	int status = batch_run(batch);

	want(0, wh_batch_free(batch));
	return status;
}

static void cached_check(struct cached *test, uint64_t length)
{
	unsigned char *to = test->own ? test->there : test->pair.local;

	want_true(pattern_check(to, length, 0, 3) == PATTERN_GOOD, "the bytes");
	memset(to, 0, length);
}

static void cached_close(struct cached *test)
{
	hung_fd = -1;
	want(0, wh_region_unregister(test->file));
	want(0, wh_region_unregister(test->memory));
	pair_close(&test->pair);
	pages_free(test->there, LENGTH);
}

/* Small reads wake no thread that could wait for the file system. */
static void cached_at_once(bool own)
{
	struct cached test;

	cached_open(&test, own);
	atomic_store(&cached, 1);
	atomic_store(&hangs, 1);
	want(0, cached_move(&test, 64 * KIB));
	cached_check(&test, 64 * KIB);
	want(0, cached_move(&test, 999));
	cached_check(&test, 999);
	want(0, atomic_load(&hanging));
	atomic_store(&hangs, 0);
	atomic_store(&cached, 0);
	/* Large ones do, if there are many CPUs. */
	want(0, cached_move(&test, LENGTH));
	cached_check(&test, LENGTH);
	cached_close(&test);
}

static void cached__file_written_at_once(void **state)
{
	(void)state;
	cached_at_once(true);
}

static void cached__file_of_a_peer_read_at_once(void **state)
{
	(void)state;
	cached_at_once(false);
}

/* Of what has left the page cache since, the file system is waited for as ever. */
static void cached_no_more(bool own)
{
	struct wh_batch *batch;
	struct cached test;

	cached_open(&test, own);
	atomic_store(&hangs, 1);
	batch = cached_batch(&test, LENGTH);
	want(0, wh_batch_submit(batch));
	await_hanging();
	want(-EAGAIN, wh_batch_wait_for(batch, 20 * MS));
	atomic_store(&hangs, 0);
	want(0, batch_end(batch, PATIENCE));
	want(0, wh_batch_free(batch));
	cached_check(&test, LENGTH);
	cached_close(&test);
}

static void cached__no_more(void **state)
{
	(void)state;
	cached_no_more(true);
}

static void cached__no_more_of_a_peer(void **state)
{
	(void)state;
	cached_no_more(false);
}

/* A file that is cut at the worst moment is an error, and no bytes that it does not have. */
static void cached_cut(bool own)
{
	struct cached test;

	cached_open(&test, own);
	atomic_store(&cuts, 1);
	want(-EIO, cached_move(&test, 64 * KIB));
	want(0, atomic_load(&cuts));
	want(0, pair_size(&test.pair));
	cached_close(&test);
}

static void cached__cut(void **state)
{
	(void)state;
	cached_cut(true);
}

static void cached__cut_of_a_peer(void **state)
{
	(void)state;
	cached_cut(false);
}

/* A test of one way to a peer's file. */
#define TEST_LENT(name, function, needs)                                                           \
	{                                                                                          \
#name, function, lent_begin, way_end, needs                                        \
	}
#define TEST_RDMA(name, function, needs)                                                           \
	{                                                                                          \
#name, function, rdma_begin, way_end, (void *)&(needs)                             \
	}

static const struct CMUnitTest tests[] = {
	TEST(cut__between_batches),
	TEST(cut__between_batches_of_a_peer),
	TEST(cut__under_way),
	TEST(cut__under_way_of_a_peer),
	TEST(room__limit_of_the_process),
	TEST_NEEDS(room__full_disk, needs_root),
	TEST_NEEDS(room__full_disk_of_a_peer, needs_root),
	TEST(hang__read),
	TEST(hang__write),
	TEST(hang__read_of_a_peer),
	TEST(hang__write_of_a_peer),
	TEST(hang__cancel),
	TEST_LENT(lent__cut, way__cut, NULL),
	TEST_LENT(lent__full_disk, way__full_disk, (void *)&needs_root),
	TEST_LENT(lent__hang, way__hang, NULL),
	TEST_LENT(lent__cancel, lent__cancel, NULL),
	TEST_LENT(lent__owner_closes, lent__owner_closes, NULL),
	TEST_RDMA(rdma__cut, way__cut, route_rdma),
	TEST_RDMA(rdma__full_disk, way__full_disk, needs_root_and_nics),
	TEST_RDMA(rdma__hang, way__hang, route_rdma),
	TEST_RDMA(rdma__cancel, rdma__cancel, route_rdma),
	TEST(cached__file_written_at_once),
	TEST(cached__file_of_a_peer_read_at_once),
	TEST(cached__no_more),
	TEST(cached__no_more_of_a_peer),
	TEST(cached__cut),
	TEST(cached__cut_of_a_peer),
};

HARNESS_MAIN("file-faults", tests)
