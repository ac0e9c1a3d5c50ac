/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the integration tests share: a main that gives every test a time limit and looks for leaked
 * descriptors behind it, and child processes that run an engine of their own and obey commands.
 *
 * A child is this same program started again (fork alone would carry threads' locks along, and the
 * thread sanitizer forbids it). It cannot outlive the test: it dies with its parent, and an alarm
 * ends it at the latest.
 */
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

#include "pattern.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HARNESS_SLOW 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HARNESS_SLOW 1
#endif
#endif
#ifndef HARNESS_SLOW
#define HARNESS_SLOW 0
#endif

/* The thread sanitizer rightly reports two transfers that write the same bytes at the same time,
 * even where they write the same values. Tests that do so on purpose take turns then. */
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

/* The owner of memory looks at it when the other process says that it has finished, an order
 * that the thread sanitizer cannot see. What is between these two is hidden from it. */
void hidden_begin(void);
void hidden_end(void);

/* One number for a normal build, another one under a sanitizer. */
#define SCALE(normal, slow) (HARNESS_SLOW ? (slow) : (normal))

#define MS 1000000LL
#define SECOND 1000000000LL
#define KIB 1024ULL
#define MIB (1024ULL * KIB)

/* How long anything that must happen may take. */
#define PATIENCE (SCALE(10, 30) * SECOND)

/* ---- the main program ----------------------------------------------------------------------- */

/* Something a test needs; `missing` says why this machine does not have it, or NULL if it does. */
struct route {
	const char *name;
	const char *require; /* the setting `require` of the initiator */
	const char *listen; /* of the target; NULL: the default */
	const char *detail; /* must occur in wh_route.detail */
	uint32_t kind; /* of the target's memory: enum wh_memory_kind or CHILD_FOREIGN */
	bool devices; /* RDMA devices are there */
	const char *(*missing)(void);
};

extern const struct route route_self; /* to ourselves */
extern const struct route route_shm; /* a mapped memfd */
extern const struct route route_vm; /* process_vm_readv/writev on memory of the process */
extern const struct route route_tcp4;
extern const struct route route_tcp6;
extern const struct route route_rdma; /* over real devices, or the fake library's */
extern const struct route route_gpu_rdma; /* the same into a GPU's memory, of the fake driver */
extern const struct route needs_root; /* not a route: a test that changes its user */

/* A test, or one over a route; `initial_state` of every test is a struct route or NULL. */
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
#define TEST_EVERY_ROUTE(function) TEST_HOST_ROUTES(function), TEST_OVER(function, gpu_rdma)
#define TEST_REMOTE_ROUTES(function)                                                               \
	TEST_OVER(function, shm), TEST_OVER(function, vm), TEST_OVER(function, tcp4),              \
		TEST_OVER(function, rdma)

int harness_begin(void **state);
int harness_end(void **state);

/* Run the tests (argv[1] picks those whose name contains it), or be a child. Those that need what
 * this machine has not are skipped, with the reason; 77 if that leaves none. */
int harness_main(int argc, char **argv, const char *group, const struct CMUnitTest *tests,
		 size_t count);
#define HARNESS_MAIN(group, tests)                                                                 \
	int main(int argc, char **argv)                                                            \
	{                                                                                          \
		return harness_main(argc, argv, group, tests, sizeof(tests) / sizeof(*(tests)));   \
	}

/* Give the running test another limit than the usual one. */
void harness_limit(unsigned int seconds);

/* `call` must return `value`; else the test fails and tells both, and the library's text. */
#define want(value, call) want_at((long long)(value), (long long)(call), #call, __FILE__, __LINE__)
void want_at(long long value, long long got, const char *call, const char *file, int line);

/* The same, and wh_error_text() must contain `word`. */
#define want_text(value, word, call)                                                               \
	want_text_at((long long)(value), word, (long long)(call), #call, __FILE__, __LINE__)
void want_text_at(long long value, const char *word, long long got, const char *call,
		  const char *file, int line);

/* The condition must hold; else the message is told. */
#define want_true(condition, ...)                                                                  \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			print_error("%s:%d: not so: %s: ", __FILE__, __LINE__, #condition);        \
			print_error(__VA_ARGS__);                                                  \
			print_error("\n");                                                         \
			_fail(__FILE__, __LINE__);                                                 \
		}                                                                                  \
	} while (0)

int64_t now(void);
/* The same without the time in which anything on this machine waited for a processor, where the
 * kernel counts that (/proc/pressure/cpu): for what must not take long, which beside load takes as
 * long as the load likes. */
int64_t quiet_now(void);
void sleep_ms(unsigned int ms);

/* Of this process. */
unsigned int count_fds(void);
unsigned int count_maps(void);
uint64_t resident(void); /* bytes */

/* Wait until no more than `most` descriptors are open. */
bool fds_back_to(unsigned int most, int64_t patience);

/* ---- child processes ------------------------------------------------------------------------ */

#define CHILD_FOREIGN 0x100u /* a kind of memory: mmapped by the process, not by the engine */
/* of a GPU, in mappings of 2 MiB, as PyTorch's expandable segments are */
#define CHILD_SEGMENTED 0x101u

/* A cluster key: without one a user's engines are closed to another's. */
#define SHARED_KEY "key=6b65792066726f6d2074686520746573747320206b65792066726f6d20746865"

struct child_options {
	const char *listen; /* NULL: the default */
	const char *name;
	const char *config[6]; /* "name=value" */
	uid_t user; /* to become before the engine is opened; 0: stay */
	/* Yama keeps others of the same user from this one's memory, and this one from theirs: the
	 * machine's, or where it has none what it looks like (root only). */
	bool yama;
};

struct child {
	pid_t pid;
	int fd;
	char url[96];
	char name[64];
	uint64_t epoch;
};

/* Start a process with an engine. options may be NULL. Fails the test if it does not come up. */
struct child *child_start(const struct child_options *options);

/* End it: in order (its engine must close with 0 and it must exit with 0); or with SIGKILL. Both
 * return when it is gone and free the struct. What a test leaves is killed behind it. */
void child_exit(struct child *child);
void child_kill(struct child *child);

void child_stop(struct child *child); /* SIGSTOP; returns when it stands */
void child_continue(struct child *child); /* SIGCONT */
bool child_alive(struct child *child);

/* Memory of the child. Returns its number. */
int child_memory(struct child *child, uint32_t kind, size_t length);
/* The same at a location ("cuda:1"); NULL: anywhere. */
int child_memory_at(struct child *child, uint32_t kind, size_t length, const char *location);
int child_free(struct child *child, int memory);
/* A region over [offset, offset + length) of it. Returns its number; *id (or NULL) is its id. */
int child_region(struct child *child, int memory, uint64_t offset, uint64_t length,
		 const char *name, uint32_t access, uint64_t *id);
/* `count` unnamed regions of `length` bytes, one behind the other from the start of `memory`, the
 * last one with a name. */
void child_regions(struct child *child, int memory, uint64_t length, uint64_t count,
		   const char *last);
int child_unregister(struct child *child, int region);
int child_key(struct child *child, int region, void *key, size_t *length);
uint64_t child_address(struct child *child, int memory);

/* Its bytes. Offsets count from the start of the memory. */
void child_fill(struct child *child, int memory, uint64_t offset, uint64_t length,
		uint64_t position, uint64_t seed);
size_t child_check(struct child *child, int memory, uint64_t offset, uint64_t length,
		   uint64_t position, uint64_t seed);
uint64_t child_sum(struct child *child, int memory, uint64_t offset, uint64_t length);
void child_fetch(struct child *child, int memory, uint64_t offset, uint64_t length, void *out);

int child_notification(struct child *child, int64_t timeout, struct wh_notification *out);
unsigned int child_fds(struct child *child);
uint64_t child_resident(struct child *child);

/* The child as the initiator. child_peer() returns the peer's number or an errno (with the child's
 * wh_error_text() in `text`, unless NULL). */
int child_peer(struct child *child, const char *url, char text[256]);
int child_peer_close(struct child *child, int peer);

struct child_transfer {
	int peer;
	int region; /* local */
	const char *remote;
	uint32_t op;
	uint64_t local_offset, remote_offset, length;
	uint64_t times; /* so many equal transfers in the batch; 0: one */
	bool go; /* do not wait for it */
	const char *notify; /* or NULL */
	const char *require; /* or NULL */
};
struct child_result {
	int status;
	char text[256]; /* of the error */
	char transport[16]; /* of the first route that moved bytes */
	char explain[1024];
};
/* Moves bytes and returns the status; *result may be NULL. */
int child_transfer(struct child *child, const struct child_transfer *transfer,
		   struct child_result *result);
/* The same in two halves, for many children at once. */
void child_transfer_send(struct child *child, const struct child_transfer *transfer);
int child_transfer_receive(struct child *child, struct child_result *result);

/* ---- bytes of any memory --------------------------------------------------------------------- */

/* Is memory of this kind a GPU's (or managed), so that these two have to ask the driver? */
bool bytes_on_gpu(uint32_t kind);
/* Copy bytes out of, and into, memory of this kind. */
void bytes_get(void *to, const void *from, size_t length, uint32_t kind);
void bytes_put(void *to, const void *from, size_t length, uint32_t kind);
/* Memory of a GPU in mappings of 2 MiB each, of which `length` is a multiple. It is never unmapped:
 * the process is to end. 0: there is none. */
void *bytes_segmented(int device, size_t length);
/* How many GPUs that driver has: the fake one whose path is in TEST_CUDA, or the machine's own. */
unsigned int bytes_gpus(void);

/* ---- between harness.c and child.c ---------------------------------------------------------- */

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
	uint64_t value, length; /* `length` bytes follow */
	char text[256];
	char name[64], url[96], transport[16];
	char explain[1024];
};

/* Read or write all of it: 0, or -1 if the other side is gone. */
int harness_read(int fd, void *out, size_t length);
int harness_write(int fd, const void *in, size_t length);

int child_main(int fd);

#endif
