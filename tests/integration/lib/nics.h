/* SPDX-License-Identifier: Apache-2.0 */
/* nics.h: control the NICs of the fake libibverbs
 *
 * NICs can be slow, silent, wrong or gone. The functions of fake-verbs.h are called in the library
 * that the engine opens. NICs count from 0, over both sides of this process. */
#ifndef TESTS_INTEGRATION_LIB_NICS_H
#define TESTS_INTEGRATION_LIB_NICS_H

#include "fixture.h"

/* Condition: the fake libibverbs is in use. Any transport may serve: the explanation then says why
 * rdma did not. */
extern const struct route needs_nics;

/* Hold all NICs, or one: no work is done and nothing completes until the release. */
void nics_hold(bool yes);
void nic_hold(unsigned int nic, bool yes);
/* Let `after` work requests pass and fail the next with this status; 0: no failure. */
void nics_fail(int status, unsigned int after);
void nic_fail(unsigned int nic, int status, unsigned int after);
/* The same, but the failed request and those behind it never reach the other side. */
void nics_lose(int status, unsigned int after);
/* The number of writes with immediate that found no receive posted. */
uint64_t nics_underruns(void);
struct ibv_qp;
/* The number of receives posted at the other end of the queue pair. */
unsigned int nics_receives(const struct ibv_qp *qp);
/* Let `after` memory registrations pass and fail the next with this errno. */
void nics_refuse(int error, unsigned int after);
/* Remove the device. */
void nic_remove(unsigned int nic);
/* Set the port up or down. */
void nic_port(unsigned int nic, bool up);
/* Limit the NIC to `speed` bytes per us; 0: no limit. */
void nic_speed(unsigned int nic, uint64_t speed);
/* The number of bytes that the NIC has moved. */
uint64_t nic_moved(unsigned int nic);

/* The number of queue pairs of this process; and of all libibverbs objects. */
unsigned int nics_pairs(void);
int nics_open(void);

struct nics_counts {
	uint64_t requests, doorbells, completions, events;
};
struct nics_counts nics_counts(void);

struct nics_registered {
	uint64_t all, dma_bufs, relaxed;
};
struct nics_registered nics_registered(void);

/* The text of wh_batch_explain(); valid until the next call. */
const char *explained(struct wh_batch *batch);
/* How many bytes of the batch went by a transport. `refused` (may be NULL) receives the reason why
 * not more. */
uint64_t bytes_by(struct wh_batch *batch, const char *transport, char refused[192]);
/* Exactly `bytes` must have gone by `transport`; the explanation must contain `word`. */
void want_by(struct wh_batch *batch, const char *transport, uint64_t bytes);
void want_explained(struct wh_batch *batch, const char *word);

#endif
