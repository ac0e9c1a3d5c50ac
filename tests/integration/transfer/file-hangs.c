/* SPDX-License-Identifier: Apache-2.0 */
/* file-hangs.c: a real file system that stops answering: FUSE, whose server is a child of this
 * test. (file-faults.c has hanging calls for each way that bytes go.) */
#include <dirent.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/files.h"
#include "lib/fixture.h"

#define LENGTH (2 * MIB)
#define FILE_NODE 2

/* ---- the server ------------------------------------------------------------------------------ */

/* Shared with the child. */
struct orders {
	atomic_int hangs; /* requests for bytes are not answered ... */
	atomic_int hanging; /* ... and so many wait */
};

static struct orders *orders;

union request {
	struct {
		struct fuse_in_header in;
		char body[1];
	};
	char bytes[FUSE_MIN_READ_BUFFER + 256 * 1024];
};

static void answer(int device, uint64_t unique, int error, const void *body, size_t length)
{
	struct fuse_out_header out = { .len = (uint32_t)(sizeof(out) + length),
				       .error = error,
				       .unique = unique };
	struct iovec parts[] = { { &out, sizeof(out) }, { (void *)(uintptr_t)body, length } };

	if (writev(device, parts, length ? 2 : 1) < 0 && errno != ENOENT)
		_exit(1);
}

static struct fuse_attr attributes(uint64_t node)
{
	return (struct fuse_attr){ .ino = node,
				   .size = node == FILE_NODE ? LENGTH : 0,
				   .blocks = LENGTH / 512,
				   .mode = node == FILE_NODE ? S_IFREG | 0600 : S_IFDIR | 0700,
				   .nlink = 1,
				   .blksize = 4096 };
}

/* The file's bytes: nothing is kept of what is written. */
static void answer_read(int device, const union request *request)
{
	const struct fuse_read_in *in = (const void *)request->body;
	static unsigned char bytes[LENGTH];
	uint64_t left = in->offset < LENGTH ? LENGTH - in->offset : 0;

	pattern_fill(bytes, in->size < left ? in->size : left, in->offset, 1);
	answer(device, request->in.unique, 0, bytes, in->size < left ? in->size : left);
}

static void answer_request(int device, const union request *request)
{
	struct fuse_init_out init = { .major = FUSE_KERNEL_VERSION,
				      .minor = 31,
				      .max_write = 128 * 1024 };
	struct fuse_entry_out entry = { .nodeid = FILE_NODE, .attr = attributes(FILE_NODE) };
	struct fuse_attr_out attr = { .attr = attributes(request->in.nodeid) };
	/* Every read asks this server. */
	struct fuse_open_out open = { .open_flags = FOPEN_DIRECT_IO };
	struct fuse_write_out written = { 0 };

	switch (request->in.opcode) {
	case FUSE_INIT:
		answer(device, request->in.unique, 0, &init, sizeof(init));
		return;
	case FUSE_LOOKUP:
		answer(device, request->in.unique, 0, &entry, sizeof(entry));
		return;
	case FUSE_GETATTR:
		answer(device, request->in.unique, 0, &attr, sizeof(attr));
		return;
	case FUSE_OPEN:
		answer(device, request->in.unique, 0, &open, sizeof(open));
		return;
	case FUSE_READ:
		answer_read(device, request);
		return;
	case FUSE_WRITE:
		written.size = ((const struct fuse_write_in *)(const void *)request->body)->size;
		answer(device, request->in.unique, 0, &written, sizeof(written));
		return;
	case FUSE_RELEASE:
	case FUSE_FLUSH:
		answer(device, request->in.unique, 0, NULL, 0);
		return;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		return;
	default:
		answer(device, request->in.unique, -ENOSYS, NULL, 0);
	}
}

/* One request after the other, so all of the file system stands still. */
static void serve(int device)
{
	static union request request;

	while (read(device, request.bytes, sizeof(request.bytes)) > 0) {
		if (request.in.opcode == FUSE_READ || request.in.opcode == FUSE_WRITE) {
			atomic_fetch_add(&orders->hanging, 1);
			while (atomic_load(&orders->hangs))
				sleep_ms(1);
			atomic_fetch_sub(&orders->hanging, 1);
		}
		answer_request(device, &request);
	}
	_exit(0);
}

/* ---- a pair of engines ------------------------------------------------------------------------
 */

struct hung {
	pid_t server;
	struct wh_engine *engine, *owner; /* the same if the file is this engine's */
	struct wh_peer *peer;
	struct wh_region *region, *file, *other;
	unsigned char *local; /* 2 * LENGTH bytes */
	int fd, other_fd;
};

static void file_system_end(pid_t server, int fd)
{
	close(fd);
	kill(server, SIGKILL);
	waitpid(server, NULL, 0);
	munmap(orders, sizeof(*orders));
}

/* Mount it, and open its file. */
static void hung_mount(struct hung *hung)
{
	char directory[] = "/tmp/wherry-fuse-XXXXXX", options[128], path[64];
	int device = open("/dev/fuse", O_RDWR | O_CLOEXEC);

	if (device < 0) {
		print_message("no FUSE here: %s\n", strerror(errno));
		skip();
	}
	want_true(mkdtemp(directory), "no directory");
	orders = mmap(NULL, sizeof(*orders), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	want_true(orders != MAP_FAILED, "no memory");
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
	if (mount("wherry", directory, "fuse", MS_NOSUID | MS_NODEV, options)) {
		rmdir(directory);
		close(device);
		munmap(orders, sizeof(*orders));
		print_message("FUSE cannot be mounted here: %s\n", strerror(errno));
		skip();
	}
	hung->server = fork();
	want_true(hung->server >= 0, "fork: %s", strerror(errno));
	if (!hung->server)
		serve(device);
	close(device);
	snprintf(path, sizeof(path), "%s/file", directory);
	hung->fd = open(path, O_RDWR | O_CLOEXEC);
	want_true(hung->fd >= 0, "open: %s", strerror(errno));
	umount2(directory, MNT_DETACH);
	rmdir(directory);
}

static void hung_open_by(struct hung *hung, const char *way, const char *const *config)
{
	struct wh_region_options access = { .size = sizeof(access),
					    .name = "hung",
					    .access = ACCESS_BOTH };
	bool self = way && !strcmp(way, "self");

	harness_limit(SCALE(60, 300));
	*hung = (struct hung){ 0 };
	hung_mount(hung);
	hung->other_fd = file_new(LENGTH);
	hung->engine = engine_open(way, "none", config);
	hung->owner = self ? hung->engine : engine_open(NULL, "127.0.0.1:0", NULL);
	want(0, file_region(hung->owner, hung->fd, 0, LENGTH, &access, &hung->file));
	access.name = "other";
	want(0, file_region(hung->owner, hung->other_fd, 0, LENGTH, &access, &hung->other));
	want(0, wh_peer_open(hung->engine, self ? "self" : wh_engine_url(hung->owner), NULL,
			     &hung->peer));
	hung->local = pages_new(2 * LENGTH);
	want(0, wh_region_register(hung->engine, hung->local, 2 * LENGTH, NULL, &hung->region));
}

static void hung_open(struct hung *hung, const char *way)
{
	/* All by one connection, so that what can go by another one does not hide who waits. */
	const char *const config[] = { "connections=1", NULL };

	hung_open_by(hung, way, config);
}

static void hung_close(struct hung *hung)
{
	want(0, wh_peer_close(hung->peer));
	want(0, wh_region_unregister(hung->region));
	want(0, wh_region_unregister(hung->file));
	want(0, wh_region_unregister(hung->other));
	want(0, wh_engine_close(hung->engine));
	if (hung->owner != hung->engine)
		want(0, wh_engine_close(hung->owner));
	pages_free(hung->local, 2 * LENGTH);
	close(hung->other_fd);
	file_system_end(hung->server, hung->fd);
}

static struct wh_batch *hung_batch(const struct hung *hung, const char *name, uint32_t op,
				   uint64_t at)
{
	struct wh_transfer transfer = {
		.op = op, .local = hung->region, .local_offset = at, .length = LENGTH
	};
	struct wh_batch *batch;
	struct wh_remote remote;

	want(0, wh_peer_find(hung->peer, name, PATIENCE, &remote));
	transfer.remote = remote.id;
	want(0, wh_batch_new(hung->peer, NULL, &batch));
	want(0, wh_batch_add(batch, &transfer, 1));
	return batch;
}

static void await_hanging(void)
{
	int64_t until = now() + PATIENCE;

	while (!atomic_load(&orders->hanging)) {
		want_true(now() < until, "nobody asks the file system");
		sleep_ms(1);
	}
}

/* The batch waits, waits end in time, another file is read and written meanwhile, and the batch
 * goes on when the file system answers again. */
static void hangs(const char *way, uint32_t op)
{
	struct wh_batch *batch, *other, *read;
	struct hung hung;

	hung_open(&hung, way);
	batch = hung_batch(&hung, "hung", op, 0);
	other = hung_batch(&hung, "other", WH_WRITE, LENGTH);
	read = hung_batch(&hung, "other", WH_READ, LENGTH);
	pattern_fill(hung.local + LENGTH, LENGTH, 0, 2);
	atomic_store(&orders->hangs, 1);
	want(0, wh_batch_submit(batch));
	await_hanging();
	want(-EAGAIN, wh_batch_wait_for(batch, 20 * MS));
	want(0, batch_run(other));
	memset(hung.local + LENGTH, 0, LENGTH);
	want(0, batch_run(read));
	want_true(pattern_check(hung.local + LENGTH, LENGTH, 0, 2) == PATTERN_GOOD,
		  "wrong bytes of the other file");
	want(-EAGAIN, wh_batch_wait_for(batch, 0));
	atomic_store(&orders->hangs, 0);
	want(0, batch_end(batch, PATIENCE));
	if (op == WH_READ)
		want_true(pattern_check(hung.local, LENGTH, 0, 1) == PATTERN_GOOD, "wrong bytes");
	want(0, wh_batch_free(batch));
	want(0, wh_batch_free(other));
	want(0, wh_batch_free(read));
	hung_close(&hung);
}

static void self__read(void **state)
{
	(void)state;
	hangs("self", WH_READ);
}

static void self__write(void **state)
{
	(void)state;
	hangs("self", WH_WRITE);
}

static void tcp__read(void **state)
{
	(void)state;
	hangs("tcp", WH_READ);
}

static void tcp__write(void **state)
{
	(void)state;
	hangs("tcp", WH_WRITE);
}

static void lent__read(void **state)
{
	(void)state;
	hangs(NULL, WH_READ);
}

static void lent__write(void **state)
{
	(void)state;
	hangs(NULL, WH_WRITE);
}

static void rdma__read(void **state)
{
	(void)state;
	hangs("rdma", WH_READ);
}

static void rdma__write(void **state)
{
	(void)state;
	hangs("rdma", WH_WRITE);
}

/* A cancelled read of a peer's file does not wait for the file system, and neither does closing the
 * peer. */
static void cancel(const char *way)
{
	struct wh_batch *batch;
	struct hung hung;

	hung_open(&hung, way);
	batch = hung_batch(&hung, "hung", WH_READ, 0);
	atomic_store(&orders->hangs, 1);
	want(0, wh_batch_submit(batch));
	await_hanging();
	want(0, wh_batch_cancel(batch));
	want(-ECANCELED, wh_batch_status(batch));
	want(0, wh_batch_free(batch));
	memset(hung.local, 0xee, LENGTH);
	batch = hung_batch(&hung, "other", WH_WRITE, LENGTH);
	want(0, batch_run(batch));
	want(0, wh_batch_free(batch));
	atomic_store(&orders->hangs, 0);
	batch = hung_batch(&hung, "hung", WH_READ, LENGTH);
	want(0, batch_run(batch));
	want_true(pattern_check(hung.local + LENGTH, LENGTH, 0, 1) == PATTERN_GOOD, "wrong bytes");
	for (size_t i = 0; i < LENGTH; i++)
		want_true(hung.local[i] == 0xee, "byte %zu has changed after the cancel", i);
	want(0, wh_batch_free(batch));
	hung_close(&hung);
}

static void tcp__cancel(void **state)
{
	(void)state;
	cancel("tcp");
}

static void lent__cancel(void **state)
{
	(void)state;
	cancel(NULL);
}

static void rdma__cancel(void **state)
{
	(void)state;
	cancel("rdma");
}

/* The owner may still write what it has of a cancelled write, and the call says so in time. Another
 * file goes on, and the hung one when it answers. */
static void rdma__cancel_write(void **state)
{
	const char *const config[] = { "transports=rdma", "timeout=500", NULL };
	struct wh_batch *batch;
	struct hung hung;

	(void)state;
	hung_open_by(&hung, NULL, config);
	batch = hung_batch(&hung, "hung", WH_WRITE, 0);
	atomic_store(&orders->hangs, 1);
	want(0, wh_batch_submit(batch));
	await_hanging();
	want(-ETIMEDOUT, wh_batch_cancel(batch));
	want(-ECANCELED, wh_batch_status(batch));
	want(0, wh_batch_free(batch));
	batch = hung_batch(&hung, "other", WH_WRITE, LENGTH);
	want(0, batch_run(batch));
	want(0, wh_batch_free(batch));
	atomic_store(&orders->hangs, 0);
	batch = hung_batch(&hung, "hung", WH_WRITE, 0);
	want(0, batch_run(batch));
	want(0, wh_batch_free(batch));
	hung_close(&hung);
}

/* Of a file of this engine the memory is not free before the file system answers, and all calls say
 * so in time. */
static void self__cancel(void **state)
{
	const char *const config[] = { "timeout=500", NULL };
	struct wh_batch *batch;
	struct hung hung = { 0 };
	int error;

	(void)state;
	harness_limit(SCALE(60, 300));
	hung_mount(&hung);
	hung.engine = hung.owner = engine_open("self", "none", config);
	hung.other_fd = file_new(LENGTH);
	want(0, file_region(hung.engine, hung.fd, 0, LENGTH, NULL, &hung.file));
	want(0, file_region(hung.engine, hung.other_fd, 0, LENGTH, NULL, &hung.other));
	want(0, wh_peer_open(hung.engine, "self", NULL, &hung.peer));
	hung.local = pages_new(2 * LENGTH);
	want(0, wh_region_register(hung.engine, hung.local, 2 * LENGTH, NULL, &hung.region));
	want(0, wh_batch_new(hung.peer, NULL, &batch));
	want(0, wh_batch_add(batch,
			     &(struct wh_transfer){ .op = WH_READ,
						    .local = hung.region,
						    .remote = wh_region_id(hung.file),
						    .length = LENGTH },
			     1));
	atomic_store(&orders->hangs, 1);
	want(0, wh_batch_submit(batch));
	await_hanging();
	want(-ETIMEDOUT, wh_batch_cancel(batch));
	want(-EBUSY, wh_batch_free(batch));
	want(-EBUSY, wh_region_unregister(hung.file));
	want(-EBUSY, wh_peer_close(hung.peer));
	want(-EBUSY, wh_engine_close(hung.engine));
	atomic_store(&orders->hangs, 0);
	/* Usually all of it was in flight. */
	error = batch_end(batch, PATIENCE);
	want_true(!error || error == -ECANCELED, "the batch ended with %d", error);
	want(0, wh_batch_free(batch));
	hung_close(&hung);
}

/* ---- more of them than there are threads and slots ------------------------------------------- */

#define SOON SCALE(10000 * MS, 60000 * MS) /* before a connection that stands still is broken */
#define MANY 48 /* less than a connection has requests, more than WH_SLOTS and `file_threads` */
#define PIECE ((uint64_t)32 << 10)

/* Which engine has the files: the one that submits, or its peer. */
enum files_of { MINE, THEIRS };

/* Both files of one engine, and memory of the other. */
struct many {
	pid_t server;
	struct wh_engine *engine, *owner; /* the same by `self` */
	struct wh_peer *peer;
	struct wh_region *hung, *other, *memory;
	/* Of the memory: LENGTH of the file that hangs, of what is written to the other one, and of
	 * what is read from it. Another engine's threads use it, so it is touched only before the
	 * first batch and when it is unregistered. */
	unsigned char *bytes;
	enum files_of files;
	bool reads; /* the file that hangs */
	int fd, other_fd;
};

static void many_open(struct many *many, const char *way, enum files_of files)
{
	struct wh_region_options access = { .size = sizeof(access), .access = ACCESS_BOTH };
	const char *const config[] = { "connections=1", "file_threads=4", NULL };
	bool self = way && !strcmp(way, "self");
	struct wh_engine *theirs, *ours;
	struct hung hung = { 0 };
	void *bytes;

	harness_limit(SCALE(60, 300));
	*many = (struct many){ .files = files };
	hung_mount(&hung);
	many->server = hung.server;
	many->fd = hung.fd;
	many->other_fd = file_new(LENGTH);
	many->engine = engine_open(way, "none", config);
	many->owner = self ? many->engine : engine_open(NULL, "127.0.0.1:0", config);
	theirs = files == MINE ? many->owner : many->engine;
	ours = files == MINE ? many->engine : many->owner;
	access.name = "hung";
	want(0, file_region(ours, many->fd, 0, LENGTH, &access, &many->hung));
	access.name = "other";
	want(0, file_region(ours, many->other_fd, 0, LENGTH, &access, &many->other));
	access.name = "memory";
	want(0, wh_memory_alloc(theirs, 3 * LENGTH, NULL, &bytes));
	many->bytes = bytes;
	pattern_fill(many->bytes + LENGTH, LENGTH, 0, 2);
	want(0, wh_region_register(theirs, many->bytes, 3 * LENGTH, &access, &many->memory));
	want(0, wh_peer_open(many->engine, self ? "self" : wh_engine_url(many->owner), NULL,
			     &many->peer));
}

static void many_close(struct many *many)
{
	want(0, wh_peer_close(many->peer));
	want(0, wh_region_unregister(many->memory));
	want_true(pattern_check(many->bytes + 2 * LENGTH, LENGTH, 0, 2) == PATTERN_GOOD,
		  "wrong bytes of the other file");
	if (many->reads)
		want_true(pattern_check(many->bytes, MANY * PIECE, 0, 1) == PATTERN_GOOD,
			  "wrong bytes");
	want(0, wh_region_unregister(many->hung));
	want(0, wh_region_unregister(many->other));
	want(0, wh_memory_free(many->files == MINE ? many->owner : many->engine, many->bytes));
	want(0, wh_engine_close(many->engine));
	if (many->owner != many->engine)
		want(0, wh_engine_close(many->owner));
	close(many->other_fd);
	file_system_end(many->server, many->fd);
}

/* Between the file, from `at` on, and the same place of the memory, behind `behind`; into the file
 * if `store`. */
static struct wh_batch *many_batch(const struct many *many, const char *name, bool store,
				   uint64_t at, uint64_t behind, uint64_t length)
{
	bool mine = many->files == MINE, hung = !strcmp(name, "hung");
	struct wh_region *file = hung ? many->hung : many->other;
	struct wh_transfer transfer = { .op = store == mine ? WH_READ : WH_WRITE,
					.local = mine ? file : many->memory,
					.local_offset = mine ? at : behind + at,
					.remote_offset = mine ? behind + at : at,
					.length = length };
	struct wh_batch *batch;
	struct wh_remote remote;

	want(0, wh_peer_find(many->peer, mine ? "memory" : name, PATIENCE, &remote));
	transfer.remote = remote.id;
	want(0, wh_batch_new(many->peer, NULL, &batch));
	want(0, wh_batch_add(batch, &transfer, 1));
	return batch;
}

/* Write the other file and read it back. */
static void many_use_other(const struct many *many)
{
	struct wh_batch *write = many_batch(many, "other", true, 0, LENGTH, LENGTH);
	struct wh_batch *read = many_batch(many, "other", false, 0, 2 * LENGTH, LENGTH);

	want(0, wh_batch_submit(write));
	want(0, batch_end(write, SOON));
	want(0, wh_batch_submit(read));
	want(0, batch_end(read, SOON));
	want(0, wh_batch_free(write));
	want(0, wh_batch_free(read));
}

static void hang_many(const char *way, enum files_of files, bool store)
{
	struct wh_batch *batch[MANY];
	struct many many;

	many_open(&many, way, files);
	for (unsigned i = 0; i < MANY; i++)
		batch[i] = many_batch(&many, "hung", store, i * PIECE, 0, PIECE);
	atomic_store(&orders->hangs, 1);
	for (unsigned i = 0; i < MANY; i++)
		want(0, wh_batch_submit(batch[i]));
	await_hanging();
	many_use_other(&many);
	for (unsigned i = 0; i < MANY; i++)
		want(-EAGAIN, wh_batch_wait_for(batch[i], 0));
	atomic_store(&orders->hangs, 0);
	for (unsigned i = 0; i < MANY; i++) {
		want(0, batch_end(batch[i], PATIENCE));
		want(0, wh_batch_free(batch[i]));
	}
	many.reads = !store;
	many_close(&many);
}

/* What waits in a queue for the file system can be cancelled at once, and batches that mix file
 * systems hold up neither. */
static void self__many_mixed(void **state)
{
	struct wh_batch *batch[MANY], *queued;
	struct many many;

	(void)state;
	many_open(&many, "self", THEIRS);
	for (unsigned i = 0; i < MANY; i++) {
		struct wh_transfer transfer = { .op = WH_READ,
						.local = many.memory,
						.local_offset = (2 * i + 1) * PIECE / 2,
						.remote = wh_region_id(many.other),
						.length = PIECE / 2 };

		batch[i] = many_batch(&many, "hung", false, i * PIECE, 0, PIECE / 2);
		want(0, wh_batch_add(batch[i], &transfer, 1));
	}
	queued = many_batch(&many, "hung", false, MANY * PIECE, 0, PIECE);
	atomic_store(&orders->hangs, 1);
	for (unsigned i = 0; i < MANY; i++)
		want(0, wh_batch_submit(batch[i]));
	await_hanging();
	many_use_other(&many);
	want(0, wh_batch_cancel(batch[MANY - 1]));
	want(-ECANCELED, wh_batch_status(batch[MANY - 1]));
	want(0, wh_batch_submit(queued)); /* on the file system's own threads */
	want(-EAGAIN, wh_batch_wait_for(queued, 20 * MS));
	atomic_store(&orders->hangs, 0);
	want(0, batch_end(queued, PATIENCE));
	want(0, wh_batch_free(queued));
	for (unsigned i = 0; i < MANY; i++) {
		want(i < MANY - 1 ? 0 : -ECANCELED, batch_end(batch[i], PATIENCE));
		want(0, wh_batch_free(batch[i]));
	}
	many_close(&many);
}

#define MANY_TESTS(way, require, files)                                                            \
	static void way##__many_reads(void **state)                                                \
	{                                                                                          \
		(void)state;                                                                       \
		hang_many(require, files, false);                                                  \
	}                                                                                          \
	static void way##__many_writes(void **state)                                               \
	{                                                                                          \
		(void)state;                                                                       \
		hang_many(require, files, true);                                                   \
	}

MANY_TESTS(self, "self", THEIRS)
MANY_TESTS(shm, "shm", MINE)
MANY_TESTS(tcp_mine, "tcp", MINE)
MANY_TESTS(tcp_theirs, "tcp", THEIRS)
MANY_TESTS(lent, NULL, THEIRS)
MANY_TESTS(rdma_mine, "rdma", MINE)
MANY_TESTS(rdma_theirs, "rdma", THEIRS)

/* ---- closing --------------------------------------------------------------------------------- */

/* How many threads of this process have the name? */
static unsigned threads_named(const char *name)
{
	DIR *tasks = opendir("/proc/self/task");
	const struct dirent *task;
	unsigned count = 0;

	want_true(tasks, "no /proc/self/task");
	while ((task = readdir(tasks))) {
		char path[300], is[32] = "";
		FILE *file;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", task->d_name);
		file = fopen(path, "r");
		if (file && fgets(is, sizeof(is), file))
			count += !strncmp(is, name, strlen(name));
		if (file)
			fclose(file);
	}
	closedir(tasks);
	return count;
}

/* An owner that soon gives up waiting for its file, without another one. */
static void impatient_open(struct hung *hung, const char *way)
{
	const char *const config[] = { "timeout=1000", NULL };
	struct wh_region_options access = { .size = sizeof(access),
					    .name = "hung",
					    .access = ACCESS_BOTH };

	harness_limit(SCALE(60, 300));
	*hung = (struct hung){ 0 };
	hung_mount(hung);
	hung->engine = engine_open(way, "none", NULL);
	hung->owner = engine_open(NULL, "127.0.0.1:0", config);
	want(0, file_region(hung->owner, hung->fd, 0, LENGTH, &access, &hung->file));
	want(0, wh_peer_open(hung->engine, wh_engine_url(hung->owner), NULL, &hung->peer));
	hung->local = pages_new(2 * LENGTH);
	want(0, wh_region_register(hung->engine, hung->local, 2 * LENGTH, NULL, &hung->region));
}

static void impatient_close(const struct hung *hung)
{
	want(0, wh_peer_close(hung->peer));
	want(0, wh_region_unregister(hung->region));
	want(0, wh_region_unregister(hung->file));
	want(0, wh_engine_close(hung->engine));
	want(0, wh_engine_close(hung->owner));
	pages_free(hung->local, 2 * LENGTH);
	file_system_end(hung->server, hung->fd);
}

/* An owner that has waited for its file as long as its `timeout` says cannot promise that nothing
 * of a cancelled write will be written. It does not promise it, but ends the session. */
static void cancel_write(const char *way)
{
	struct wh_batch *batch;
	struct hung hung;

	impatient_open(&hung, way);
	batch = hung_batch(&hung, "hung", WH_WRITE, 0);
	atomic_store(&orders->hangs, 1);
	want(0, wh_batch_submit(batch));
	await_hanging();
	want(-ETIMEDOUT, wh_batch_cancel(batch));
	want_true(wh_batch_status(batch) < 0, "it has succeeded");
	want(0, wh_batch_free(batch));
	atomic_store(&orders->hangs, 0);
	impatient_close(&hung);
}

static void tcp__cancel_write(void **state)
{
	(void)state;
	cancel_write("tcp");
}

static void lent__cancel_write(void **state)
{
	(void)state;
	cancel_write(NULL);
}

/* The owner takes the file back while reads of it wait, and the first of them goes on: those behind
 * it end with an error, and nothing of them is left (the address sanitizer looks for that). */
static void taken_back(const char *way)
{
	struct wh_batch *batch[MANY];
	struct wh_transfer transfer = { .op = WH_READ, .length = PIECE };
	struct wh_remote remote;
	struct hung hung;
	int last = 0;

	impatient_open(&hung, way);
	want(0, wh_peer_find(hung.peer, "hung", PATIENCE, &remote));
	transfer.remote = remote.id;
	transfer.local = hung.region;
	atomic_store(&orders->hangs, 1);
	for (unsigned i = 0; i < MANY; i++) {
		transfer.local_offset = transfer.remote_offset = i * PIECE;
		want(0, wh_batch_new(hung.peer, NULL, &batch[i]));
		want(0, wh_batch_add(batch[i], &transfer, 1));
		want(0, wh_batch_submit(batch[i]));
	}
	await_hanging();
	want(-EBUSY, wh_region_unregister(hung.file));
	atomic_store(&orders->hangs, 0);
	for (unsigned i = 0; i < MANY; i++) {
		last = batch_end(batch[i], PATIENCE);
		want(0, wh_batch_free(batch[i]));
	}
	want(-ESTALE, last);
	impatient_close(&hung);
}

static void tcp__taken_back(void **state)
{
	(void)state;
	taken_back("tcp");
}

static void lent__taken_back(void **state)
{
	(void)state;
	taken_back(NULL);
}

static void rdma__taken_back(void **state)
{
	(void)state;
	taken_back("rdma");
}

/* The owner leaves while a peer's request waits for the file system: closing returns, and when the
 * file system answers, nothing is left. */
static void close_owner(const char *way, uint32_t op)
{
	int64_t until;
	struct wh_batch *batch;
	struct hung hung;

	impatient_open(&hung, way);
	batch = hung_batch(&hung, "hung", op, 0);
	atomic_store(&orders->hangs, 1);
	want(0, wh_batch_submit(batch));
	await_hanging();
	want(-EBUSY, wh_region_unregister(hung.file));
	want(0, wh_engine_close(hung.owner));
	want_true(atomic_load(&orders->hanging), "the file system has answered");
	want(1, (int)threads_named("wherry/close"));
	want(-ETIMEDOUT, wh_batch_cancel(batch)); /* the file may still get its bytes */
	want(0, wh_batch_free(batch));
	want(0, wh_peer_close(hung.peer));
	want(0, wh_region_unregister(hung.region));
	want(0, wh_engine_close(hung.engine));
	pages_free(hung.local, 2 * LENGTH);
	atomic_store(&orders->hangs, 0);
	for (until = now() + PATIENCE; threads_named("wherry/"); sleep_ms(1))
		want_true(now() < until, "the engine's threads have not ended");
	file_system_end(hung.server, hung.fd);
}

static void tcp__close_read(void **state)
{
	(void)state;
	close_owner("tcp", WH_READ);
}

static void tcp__close_write(void **state)
{
	(void)state;
	close_owner("tcp", WH_WRITE);
}

static void lent__close_read(void **state)
{
	(void)state;
	close_owner(NULL, WH_READ);
}

static void lent__close_write(void **state)
{
	(void)state;
	close_owner(NULL, WH_WRITE);
}

static void rdma__close_read(void **state)
{
	(void)state;
	close_owner("rdma", WH_READ);
}

static void rdma__close_write(void **state)
{
	(void)state;
	close_owner("rdma", WH_WRITE);
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(self__read, needs_root),
	TEST_NEEDS(self__write, needs_root),
	TEST_NEEDS(tcp__read, needs_root),
	TEST_NEEDS(tcp__write, needs_root),
	TEST_NEEDS(lent__read, needs_root),
	TEST_NEEDS(lent__write, needs_root),
	TEST_NEEDS(tcp__cancel, needs_root),
	TEST_NEEDS(lent__cancel, needs_root),
	TEST_NEEDS(tcp__cancel_write, needs_root),
	TEST_NEEDS(lent__cancel_write, needs_root),
	TEST_NEEDS(self__many_reads, needs_root),
	TEST_NEEDS(self__many_writes, needs_root),
	TEST_NEEDS(shm__many_reads, needs_root),
	TEST_NEEDS(shm__many_writes, needs_root),
	TEST_NEEDS(tcp_mine__many_reads, needs_root),
	TEST_NEEDS(tcp_mine__many_writes, needs_root),
	TEST_NEEDS(tcp_theirs__many_reads, needs_root),
	TEST_NEEDS(tcp_theirs__many_writes, needs_root),
	TEST_NEEDS(self__many_mixed, needs_root),
	TEST_NEEDS(self__cancel, needs_root),
	TEST_NEEDS(tcp__taken_back, needs_root),
	TEST_NEEDS(lent__taken_back, needs_root),
	TEST_NEEDS(rdma__taken_back, needs_root_and_nics),
	TEST_NEEDS(tcp__close_read, needs_root),
	TEST_NEEDS(tcp__close_write, needs_root),
	TEST_NEEDS(lent__close_read, needs_root),
	TEST_NEEDS(lent__close_write, needs_root),
	TEST_NEEDS(lent__many_reads, needs_root),
	TEST_NEEDS(lent__many_writes, needs_root),
	TEST_NEEDS(rdma_mine__many_reads, needs_root_and_nics),
	TEST_NEEDS(rdma_mine__many_writes, needs_root_and_nics),
	TEST_NEEDS(rdma__read, needs_root_and_nics),
	TEST_NEEDS(rdma__write, needs_root_and_nics),
	TEST_NEEDS(rdma__cancel, needs_root_and_nics),
	TEST_NEEDS(rdma__cancel_write, needs_root_and_nics),
	TEST_NEEDS(rdma_theirs__many_reads, needs_root_and_nics),
	TEST_NEEDS(rdma_theirs__many_writes, needs_root_and_nics),
	TEST_NEEDS(rdma__close_read, needs_root_and_nics),
	TEST_NEEDS(rdma__close_write, needs_root_and_nics),
};

HARNESS_MAIN("file-hangs", tests)
