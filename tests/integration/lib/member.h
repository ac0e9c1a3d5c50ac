/* SPDX-License-Identifier: Apache-2.0 */
/* member.h: processes that are members of one set of weights
 *
 * A model of two tensors: "w", bytes of rows by columns, and "bias", which all hold. Each source
 * holds some rows; a target wants all, the same columns of each row, or some rows. The byte at each
 * place is that of a pattern whose seed is the version, so a byte of another version, or in the
 * wrong place, is found.
 *
 * A member is this program executed again, with "--member FD": see MEMBER_MAIN. Functions fail the
 * running test on an error, unless stated otherwise. */
#ifndef TESTS_INTEGRATION_LIB_MEMBER_H
#define TESTS_INTEGRATION_LIB_MEMBER_H

#include "harness.h"

#define MEMBERS 12

enum member_wants { WANTS_ALL, WANTS_COLUMNS, WANTS_ROWS };

struct model {
	uint32_t sources, targets;
	uint32_t copies; /* sources that hold the same rows; 0: 1 */
	uint32_t wants; /* enum member_wants */
	uint64_t rows, columns, piece, chunk;
	uint32_t separate_hosts; /* of the plan */
	uint32_t kind; /* of the memory: enum wh_memory_kind; 0: WH_MEMORY_SHARED */
	uint32_t by_name; /* no member is told the others' URLs */
	const char *config[4]; /* settings of all engines */
};

struct member {
	pid_t pid;
	int fd;
	char name[32], url[96];
	bool running;
};

/* The members of a model: sources first. */
struct group {
	struct model model;
	struct member members[MEMBERS];
	uint32_t count;
};

/* Start all processes and their engines; with `open` the weights, too. The group outlives the test,
 * whose children it names. */
void group_start(struct group *group, const struct model *model, bool open);
void group_end(struct group *group); /* closes all that run */
void group_kill(void); /* after a test, whatever is left */

struct member *group_source(struct group *group, uint32_t index);
struct member *group_target(struct group *group, uint32_t index);

/* Start a member's process again, after a kill, and its weights. */
void member_again(struct group *group, struct member *member);
void member_kill(struct member *member);
void member_pause(struct member *member);
void member_continue(struct member *member);

/* What a member calls; the results are those of the calls, with the text in *text (may be NULL). */
enum member_op {
	MEMBER_ENGINE = 1,
	MEMBER_OPEN, /* value: 1: with another type of "bias", 2: without memory of its own */
	MEMBER_PUBLISH, /* fill the memory, and publish the version `value` */
	MEMBER_RETRACT, /* and fill the memory with other bytes */
	MEMBER_WAIT, /* for version `value` */
	MEMBER_CHECK, /* acquire a version after `value`, check every byte; value: the version */
	MEMBER_HOLD, /* acquire the newest version, and keep it; value: the version */
	MEMBER_DROP, /* check that it has not changed, and release it */
	MEMBER_READ, /* a thread acquires, checks and releases until MEMBER_READ_END */
	MEMBER_READ_END, /* value: how many different versions it saw, more: how many views */
	MEMBER_INFO, /* value: current, more: total bytes received */
	MEMBER_RECEIVED, /* value: of the version that comes, more: in total; a source's: of the
			    first target, 0 */
	MEMBER_LAUNCHES, /* value: kernels that this member has had the fake GPU run */
	MEMBER_CANCEL, /* versions up to `value` */
	MEMBER_EXPLAIN,
	MEMBER_CLOSE, /* the weights; then MEMBER_OPEN may follow */
	MEMBER_EXIT,
	MEMBER_BAD, /* value: wrong calls that do not fail as they should */
};

/* What the test sends: the pointers of `model` are of no use to the member. */
struct member_command {
	uint32_t op, index, reserved[2];
	uint64_t value;
	int64_t timeout;
	struct model model;
	char names[MEMBERS][32], urls[MEMBERS][96], config[4][128];
};

struct member_answer {
	int32_t status;
	uint32_t reserved;
	uint64_t value, more;
	char text[4096];
};

int member_call(struct member *member, uint32_t op, uint64_t value, int64_t timeout,
		struct member_answer *answer);
/* In two halves, so that several members work at once. */
void member_send(struct member *member, uint32_t op, uint64_t value, int64_t timeout);
int member_receive(struct member *member, struct member_answer *answer);

int member_open(struct group *group, struct member *member, uint64_t how,
		struct member_answer *answer);

/* All sources publish; all targets get exactly that; then all sources retract it. */
void group_pass(struct group *group, uint64_t version);
/* The same for four versions, in a group of its own. */
void group_versions(const struct model *model);

int member_main(int fd);
int member_end(void **state);

#define MEMBER_TEST(function)                                                                      \
	{                                                                                          \
#function, function, harness_begin, member_end, NULL                               \
	}
#define MEMBER_TEST_NEEDS(function, what)                                                          \
	{                                                                                          \
#function, function, harness_begin, member_end, (void *)&(what)                    \
	}
#define MEMBER_MAIN(group, tests)                                                                  \
	int main(int argc, char **argv)                                                            \
	{                                                                                          \
		if (argc == 3 && !strcmp(argv[1], "--member"))                                     \
			return member_main((int)strtol(argv[2], NULL, 10));                        \
		return harness_main(argc, argv, group, tests, sizeof(tests) / sizeof(*(tests)));   \
	}

#endif
