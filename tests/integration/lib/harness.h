/* SPDX-License-Identifier: Apache-2.0 */
/* harness.h: the main program and the child processes of the integration tests
 *
 * harness_main() gives each test a time limit and fails a test that leaks descriptors. A child is a
 * process with an engine of its own, which obeys commands sent over a socket. It is this program
 * executed again: after a plain fork, threads' locks could stay locked, and the thread sanitizer
 * forbids it. A child dies with its parent, and an alarm ends it at the latest.
 *
 * Functions fail the running test on an error, unless stated otherwise, and so may be called from
 * the test's thread only; now(), quiet_now() and sleep_ms() from any thread. Calls on a child block
 * until it answers. */
#ifndef TESTS_INTEGRATION_LIB_HARNESS_H
#define TESTS_INTEGRATION_LIB_HARNESS_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <wherry/wherry.h>

#include "note.h"
#include "outcome.h"
#include "pattern.h"

#ifdef HARNESS_SLOW /* -DHARNESS_SLOW=1: programs run under an emulator */
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HARNESS_SLOW 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HARNESS_SLOW 1
#endif
#endif
#ifndef HARNESS_SLOW
#define HARNESS_SLOW 0
#endif

/* The thread sanitizer rightly reports two transfers that write the same bytes at once, even if the
 * values are equal. Under it, tests that do so on purpose run the transfers in turn. */
#if defined(__SANITIZE_THREAD__)
#define HARNESS_TURNS 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HARNESS_TURNS 1
#endif
#endif
#ifndef HARNESS_TURNS
#define HARNESS_TURNS 0
#endif

/* Hide the accesses between these two calls from the thread sanitizer. Another process orders them:
 * the owner reads its memory after that process has reported completion, which the sanitizer cannot
 * see. */
void hidden_begin(void);
void hidden_end(void);

/* `normal` in a normal build, `slow` under a sanitizer or an emulator. */
#define SCALE(normal, slow) (HARNESS_SLOW ? (slow) : (normal))

#define MS 1000000LL
#define SECOND 1000000000LL
#define KIB 1024ULL
#define MIB (1024ULL * KIB)

/* ns: the time limit for any event that a test waits for. It ends tests that hang; it judges no
 * speed, for on a busy machine a process may get no CPU for many seconds. */
#define PATIENCE (60 * SECOND)

/* ---- the main program -------------------------------------------------- */

/* What a test needs. `missing` returns NULL, or the reason why this machine lacks it. */
struct route {
	const char *name;
	const char *require; /* the initiator's setting `require` */
	const char *listen; /* the target's; NULL: the default */
	const char *detail; /* expected in wh_route.detail */
	uint64_t few; /* bytes; a batch of fewer goes another way, without `detail` */
	uint32_t kind; /* the target's memory: enum wh_memory_kind or CHILD_FOREIGN */
	bool devices; /* the test sees the RDMA devices */
	const char *(*missing)(void);
};

extern const struct route route_self; /* within one engine */
extern const struct route route_shm; /* mapping of the target's memfd */
/* The same for a test with regions that are parts of an allocation: those are never mapped, but
 * copied by process_vm. */
extern const struct route route_shm_parts;
extern const struct route route_vm; /* process_vm_readv/writev: CHILD_FOREIGN memory */
extern const struct route route_tcp4;
extern const struct route route_tcp6;
extern const struct route route_rdma; /* real devices or the fake library's */
extern const struct route route_gpu_rdma; /* the same to GPU memory of the fake driver */
extern const struct route route_file; /* a file of this engine: CHILD_FILE */
extern const struct route route_file_tcp; /* a file of another process */
extern const struct route route_file_lent; /* the same, through memory that is lent to it */
extern const struct route needs_root; /* not a route: the test changes its user */
extern const struct route needs_root_and_nics;

/* Entries of a test array: a test, a test over one route, a test with a condition. The
 * `initial_state` is a struct route or NULL. */
#define TEST(function)                                                                             \
	{                                                                                          \
#function, function, harness_begin, harness_end, NULL                              \
	}
#define TEST_OVER(function, on)                                                                    \
	{                                                                                          \
#function "__" #on, function, harness_begin, harness_end, (void *)&route_##on      \
	}
#define TEST_NEEDS(function, what)                                                                 \
	{                                                                                          \
#function, function, harness_begin, harness_end, (void *)&(what)                   \
	}
#define TEST_HOST_ROUTES(function)                                                                 \
	TEST_OVER(function, self), TEST_OVER(function, shm), TEST_OVER(function, vm),              \
		TEST_OVER(function, tcp4), TEST_OVER(function, tcp6), TEST_OVER(function, rdma)
#define TEST_FILE_ROUTES(function) TEST_OVER(function, file), TEST_OVER(function, file_tcp)
#define TEST_EVERY_ROUTE(function)                                                                 \
	TEST_HOST_ROUTES(function), TEST_OVER(function, gpu_rdma), TEST_FILE_ROUTES(function)
#define TEST_REMOTE_ROUTES(function)                                                               \
	TEST_OVER(function, shm), TEST_OVER(function, vm), TEST_OVER(function, tcp4),              \
		TEST_OVER(function, rdma)
#define TEST_PARTS_ROUTES(function)                                                                \
	TEST_OVER(function, shm_parts), TEST_OVER(function, vm), TEST_OVER(function, tcp4),        \
		TEST_OVER(function, rdma)

int harness_begin(void **state);
int harness_end(void **state);

/* Run the tests whose names contain argv[1] (default: all), or be a child. Tests that this machine
 * cannot run are skipped, with the reason. Returns the exit status; 77 if no test is left. */
int harness_main(int argc, char **argv, const char *group, const struct CMUnitTest *tests,
		 size_t count);
#define HARNESS_MAIN(group, tests)                                                                 \
	int main(int argc, char **argv)                                                            \
	{                                                                                          \
		return harness_main(argc, argv, group, tests, sizeof(tests) / sizeof(*(tests)));   \
	}

/* Replace the time limit of the running test. */
void harness_limit(unsigned int seconds);

/* Fail the test unless `call` returns `value`; print both and wh_error_text(). */
#define want(value, call) want_at((long long)(value), (long long)(call), #call, __FILE__, __LINE__)
void want_at(long long value, long long got, const char *call, const char *file, int line);

/* The same; wh_error_text() must also contain `word`. */
#define want_text(value, word, call)                                                               \
	want_text_at((long long)(value), word, (long long)(call), #call, __FILE__, __LINE__)
void want_text_at(long long value, const char *word, long long got, const char *call,
		  const char *file, int line);

/* Print a line by which scripts/tally knows that a failure is no accident, so that ./check gives
 * the test no second chance: if what failed, as the source says it, is about bytes; if a process
 * ended with a waitpid() `status` of a crash. */
void tell_bytes(const char *said);
void tell_crash(const char *name, int status);

/* Fail the test with the formatted message unless the condition holds. */
#define want_true(condition, ...)                                                                  \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			print_error("%s:%d: not so: %s: ", __FILE__, __LINE__, #condition);        \
			print_error(__VA_ARGS__);                                                  \
			print_error("\n");                                                         \
			tell_bytes(#condition " " #__VA_ARGS__);                                   \
			_fail(__FILE__, __LINE__);                                                 \
		}                                                                                  \
	} while (0)

int64_t now(void);
/* ns, without the time in which any task of this machine waited for a CPU, if the kernel counts
 * that (/proc/pressure/cpu). For upper limits on durations: load on the machine does not count. */
int64_t quiet_now(void);
void sleep_ms(unsigned int ms);

/* Counts for this process. Thread stacks, the C library's arenas and what a sanitizer keeps are
 * mappings without a file; memfds and the rings of io_uring have one. */
enum harness_maps { MAPS_ALL, MAPS_OF_FILES };
unsigned int count_fds(void);
unsigned int count_maps(enum harness_maps which);
uint64_t resident(void); /* bytes */

/* Wait until at most `most` descriptors are open. False: `patience` (ns) has passed. */
bool fds_back_to(unsigned int most, int64_t patience);

/* Read or send all `length` bytes; from any thread. 0, or -1 if the other side is gone. */
int read_all(int fd, void *out, size_t length);
int send_all(int fd, const void *in, size_t length);

/* ---- child processes --------------------------------------------------- */

/* Memory kinds besides those of enum wh_memory_kind. */
#define CHILD_FOREIGN 0x100u /* mapped by the process with mmap, not by the engine */
/* GPU memory in mappings of 2 MiB, like PyTorch's expandable segments */
#define CHILD_SEGMENTED 0x101u
/* the same, to be shared over NVLink's fabric alone, not by descriptors */
#define CHILD_FABRIC 0x102u
/* a file without a name, which the process maps as well to look at its bytes */
#define CHILD_FILE 0x103u

/* A setting with a cluster key: by default the engines of two users refuse each other. */
#define SHARED_KEY "key=6b65792066726f6d2074686520746573747320206b65792066726f6d20746865"

struct container; /* container.h */

struct child_options {
	const struct container *container; /* run in it; NULL: in this process's namespaces */
	const char *listen; /* NULL: the default */
	const char *name;
	const char *config[6]; /* "name=value" */
	uid_t user; /* change to this user before the engine opens; 0: do not */
	/* Yama refuses other processes of the same user access to the child's memory, and the child
	 * access to theirs. This is the machine's Yama, or an imitation where it has none (root
	 * only). */
	bool yama;
};

struct child {
	pid_t pid;
	int fd;
	char url[96];
	char name[64];
	uint64_t epoch;
};

/* Start a process with an engine. `options` may be NULL. Fails the test unless the engine opens. */
struct child *child_start(const struct child_options *options);

/* End a child, wait until it is gone and free the struct. child_exit() closes the engine and fails
 * the test unless that returns 0 and the child exits with 0; child_kill() sends SIGKILL. Children
 * that a test leaves are killed after it. */
void child_exit(struct child *child);
void child_kill(struct child *child);
void children_kill(void); /* all of them */

void child_stop(struct child *child); /* SIGSTOP; returns when the child has stopped */
void child_continue(struct child *child); /* SIGCONT */
bool child_alive(struct child *child);

/* Allocate memory in the child. Returns the memory's number. */
int child_memory(struct child *child, uint32_t kind, size_t length);
/* The same at a location ("cuda:1"; NULL: any). */
int child_memory_at(struct child *child, uint32_t kind, size_t length, const char *location);
int child_free(struct child *child, int memory);
enum { ACCESS_BOTH = WH_ACCESS_READ | WH_ACCESS_WRITE | WH_ACCESS_LIST };
/* Register [offset, offset + length) of a memory. Returns the region's number; *id receives its id
 * unless `id` is NULL. */
int child_region(struct child *child, int memory, uint64_t offset, uint64_t length,
		 const char *name, uint32_t access, uint64_t *id);
/* Register `count` adjacent regions of `length` bytes from the start of `memory`, with ACCESS_BOTH,
 * unnamed but for the last. */
void child_regions(struct child *child, int memory, uint64_t length, uint64_t count,
		   const char *last);
int child_unregister(struct child *child, int region);
int child_key(struct child *child, int region, void *key, size_t *length);
uint64_t child_address(struct child *child, int memory);

/* Fill, check, sum and copy the child's bytes. Offsets count from the start of the memory. */
void child_fill(struct child *child, int memory, uint64_t offset, uint64_t length,
		uint64_t position, uint64_t seed);
size_t child_check(struct child *child, int memory, uint64_t offset, uint64_t length,
		   uint64_t position, uint64_t seed);
uint64_t child_sum(struct child *child, int memory, uint64_t offset, uint64_t length);
void child_fetch(struct child *child, int memory, uint64_t offset, uint64_t length, void *out);

int child_notification(struct child *child, int64_t timeout, struct note *out);
unsigned int child_fds(struct child *child);
uint64_t child_resident(struct child *child);

/* The child as the initiator. child_peer() returns the peer's number or an errno, with the child's
 * wh_error_text() in `text` (may be NULL). */
int child_peer(struct child *child, const char *url, char text[256]);
int child_peer_close(struct child *child, int peer);

struct child_transfer {
	int peer;
	int region; /* number of the local region */
	const char *remote;
	uint32_t op;
	uint64_t local_offset, remote_offset, length;
	uint64_t times; /* repeat the transfer within the batch; 0: once */
	bool go; /* do not wait for completion */
	const char *notify; /* or NULL */
	const char *require; /* or NULL */
};
struct child_result {
	int status;
	char text[256]; /* the error's */
	char transport[16]; /* the first route that moved bytes */
	char explain[1024];
};
/* Run a transfer and return its status. `result` may be NULL. */
int child_transfer(struct child *child, const struct child_transfer *transfer,
		   struct child_result *result);
/* The same in two halves, so that many children work at once. */
void child_transfer_send(struct child *child, const struct child_transfer *transfer);
int child_transfer_receive(struct child *child, struct child_result *result);

/* ---- bytes of any memory ----------------------------------------------- */

/* True for GPU memory and managed memory: bytes_get() and bytes_put() then copy with the driver. */
bool bytes_on_gpu(uint32_t kind);
/* Copy bytes out of, or into, memory of this kind. Aborts if the driver fails. */
void bytes_get(void *to, const void *from, size_t length, uint32_t kind);
void bytes_put(void *to, const void *from, size_t length, uint32_t kind);
/* Map GPU memory, one mapping per 2 MiB; `length` is a multiple of that. The memory stays mapped
 * until the process ends. NULL: none available. */
void *bytes_segmented(int device, size_t length, bool fabric);
/* The number of GPUs of the driver: the fake one in $TEST_CUDA, or the machine's. */
unsigned int bytes_gpus(void);

/* ---- protocol between children.c and child.c --------------------------- */

enum child_op {
	CHILD_START = 1,
	CHILD_MEMORY,
	CHILD_FREE,
	CHILD_REGION,
	CHILD_REGIONS,
	CHILD_UNREGISTER,
	CHILD_KEY,
	CHILD_ADDRESS,
	CHILD_FILL,
	CHILD_CHECK,
	CHILD_SUM,
	CHILD_FETCH,
	CHILD_NOTIFICATION,
	CHILD_FDS,
	CHILD_RESIDENT,
	CHILD_PEER,
	CHILD_PEER_CLOSE,
	CHILD_TRANSFER,
	CHILD_EXIT,
};

struct child_command {
	uint32_t op;
	uint32_t kind, access, user;
	int32_t index, peer;
	uint64_t offset, length, position, seed, remote_offset, count;
	int64_t timeout;
	uint32_t direction, go, yama;
	char text[96], other[96], require[16];
	char config[6][128];
};

struct child_answer {
	int32_t status;
	uint32_t reserved;
	uint64_t value, length; /* `length` bytes follow the struct */
	char text[256];
	char name[64], url[96], transport[16];
	char explain[1024];
};

int child_main(int fd);

#endif
