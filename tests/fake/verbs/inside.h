/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that verbs.c, qp.c and rc.c share: the world, which all processes map, and the
 * objects of this process. */
#ifndef TESTS_FAKE_VERBS_INSIDE_H
#define TESTS_FAKE_VERBS_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "fake-verbs.h"
#include "platform/verbs-abi.h"

#define EXPORT __attribute__((visibility("default")))
#define NICS 8
#define WORLD_QPS 1024
#define WORLD_MRS 8192
#define QP_ROOM 4096
#define SGES 16
#define RECEIVES 64u
#define FIRST_QP 0x100u /* number of the first queue pair */

/* The part of a queue pair that other processes see. Its number is FIRST_QP + index. */
struct world_qp {
	_Atomic pid_t pid; /* 0: free */
	_Atomic int state;
	_Atomic uint32_t dest;
	int access;
	uint32_t mtu;
	uint8_t gid[16];
	uint16_t lid;
	/* Receives posted so far, and those that a write has consumed; what these writes brought.
	 */
	_Atomic uint32_t posted, taken;
	struct {
		uint32_t imm, length;
	} came[RECEIVES];
};

/* A memory region. Its key has the index below and a generation above. */
struct world_mr {
	_Atomic pid_t pid;
	_Atomic uint32_t key;
	uint32_t generation;
	uint64_t address, length;
	int access;
	int fd; /* a file of its process with the bytes; -1: they are at the addresses */
	uint64_t offset; /* of `address` in it */
};

struct world {
	_Atomic pid_t lock;
	/* a futex: counts consumed receives and failed queue pairs */
	_Atomic uint32_t arrivals;
	struct world_qp qps[WORLD_QPS];
	struct world_mr mrs[WORLD_MRS];
};

struct nic {
	char name[64];
	unsigned index;
	_Atomic bool up, held;
	_Atomic int fail_status;
	_Atomic bool lose; /* the failed request moves no bytes: fake_verbs_lose() */
	_Atomic unsigned fail_after;
	_Atomic uint64_t moved;
	_Atomic uint64_t speed; /* bytes a us; 0: no limit */
};

struct context {
	struct ibv_context ibv; /* first */
	struct context *next;
	struct nic *nic;
	int async_write;
	pthread_t thread, receiver;
	pthread_mutex_t lock; /* guards all below; held while a work request is executed */
	pthread_cond_t work;
	bool stop;
	struct qp *qps;
	struct channel *channels;
	/* Only for `thread`: the last opened file of another process's memory region. */
	uint32_t opened_key;
	int opened;
};

struct qp {
	struct ibv_qp ibv; /* first */
	struct qp *next;
	struct world_qp *out;
	struct ibv_qp_attr attr;
	struct ibv_qp_cap cap;
	uint64_t receives[RECEIVES]; /* their wr_id */
	uint32_t received; /* number of completed receives */
	uint32_t head, tail; /* of `requests` */
	struct request {
		struct ibv_send_wr wr;
		struct ibv_sge sges[SGES];
		uint8_t inlined[256];
	} requests[QP_ROOM];
};

struct cq {
	struct ibv_cq ibv; /* first */
	pthread_mutex_t lock;
	uint32_t head, tail, room;
	bool armed;
	uint32_t events, acked;
	struct ibv_wc *wcs;
};

struct channel {
	struct ibv_comp_channel ibv; /* first */
	struct channel *next;
	int write; /* -1: the NIC has been removed */
	pthread_mutex_t lock; /* guards `write`, and the events of a queue that is destroyed */
};

struct world *world_get(void);
void world_lock(struct world *world);
void world_unlock(struct world *world);
/* The memory region of a key of process `pid`. NULL: no such key, or it does not allow this access
 * to these bytes. */
struct world_mr *world_mr(pid_t pid, uint32_t key, uint64_t address, uint64_t length, int right);

struct nic *nic_of(unsigned index);
void count_open(int by);
bool call_hangs(const char *call, const struct nic *nic);
int setting(const char *name, int fallback);
void nic_gid(const struct nic *nic, unsigned index, struct ibv_gid_entry *out);
bool link_is_infiniband(void);

void *context_work(void *argument);
void *context_receive(void *argument);
void world_wake(struct world *world);
int rc_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *out);
int rc_arm(struct ibv_cq *cq, int solicited);
void rc_removed(struct context *context);
int rc_receive(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int rc_post(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);

#endif
