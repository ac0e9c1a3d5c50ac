/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NICs of the fake libibverbs, as tests make them slow, silent and wrong: what fake-verbs.h
 * declares, found in the library that the engine opens. NICs count from 0, over both sides of this
 * process.
 */
#ifndef TESTS_INTEGRATION_LIB_NICS_H
#define TESTS_INTEGRATION_LIB_NICS_H

#include "fixture.h"

/* The fake libibverbs is used; and any transport may be taken, by which explain says why not rdma.
 */
extern const struct route needs_nics;

/* Nothing is done, and nothing completes, until it is let go: by all, or by one. */
void nics_hold(bool yes);
void nic_hold(unsigned int nic, bool yes);
/* Let so many work requests pass, and end the next with this status (0: no more than that). */
void nics_fail(int status, unsigned int after);
void nic_fail(unsigned int nic, int status, unsigned int after);
/* The same, but the request that fails, and those behind it, never get to the other side. */
void nics_lose(int status, unsigned int after);
/* Writes with an immediate that found no receive. */
uint64_t nics_underruns(void);
struct ibv_qp;
/* Receives that wait at the other end of a queue pair. */
unsigned int nics_receives(const struct ibv_qp *qp);
/* Let so many registrations pass, and refuse the next with this errno. */
void nics_refuse(int error, unsigned int after);
/* Take it away. */
void nic_remove(unsigned int nic);
/* Take its port up or down. */
void nic_port(unsigned int nic, bool up);
/* Bytes a us; 0: as fast as it can. */
void nic_speed(unsigned int nic, uint64_t speed);
/* Bytes that it has moved. */
uint64_t nic_moved(unsigned int nic);

/* Queue pairs of this process; and all objects of libibverbs. */
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

/* The text of wh_batch_explain(), until the next call. */
const char *explained(struct wh_batch *batch);
/* How many of the batch's bytes went by a transport, and, unless NULL, why not more. */
uint64_t bytes_by(struct wh_batch *batch, const char *transport, char refused[192]);
/* So many of them must have; the explanation must have the word. */
void want_by(struct wh_batch *batch, const char *transport, uint64_t bytes);
void want_told(struct wh_batch *batch, const char *word);

#endif
