/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libibverbs over host memory. Queue pairs of one process, or of several, are connected through a
 * file that they share, the world: who has which queue pairs and memory regions. A NIC is a thread
 * that takes work requests, looks at keys, rights and bounds as a NIC does, and moves the bytes
 * with process_vm_writev() and process_vm_readv().
 *
 * Environment:
 *   FAKE_VERBS           the NICs, "a,b"; without it there is none
 *   FAKE_VERBS_WORLD     the file; without it the world is this process
 *   FAKE_VERBS_GIDS      of every port: "TYPE/ADDRESS,...", TYPE 1 or 2 for RoCE's version; else
 * NIC n has 2/::ffff:10.77.0.n at index 1, behind a link-local one FAKE_VERBS_LINK "infiniband":
 * ports have LIDs and partition keys FAKE_VERBS_NETWORKS  how many there are: NIC n has 10.(77 + n
 * modulo that).0.n; by default one FAKE_VERBS_SGE       max_sge: runs of memory in one work request
 * (by default 16) FAKE_VERBS_MR        max_mr_size; FAKE_VERBS_MEMLOCK: bytes that a process may
 * register FAKE_VERBS_DMABUF    errno of ibv_reg_dmabuf_mr() with fd -1 (by default EBADF: the NIC
 * can, else it cannot with any) FAKE_VERBS_REGISTER  errno of one with a file descriptor (0: it
 * succeeds) FAKE_VERBS_HANG      "CALL" or "CALL:NIC": what never comes back, of list, open and
 * register (of a file descriptor); or move: work requests that never complete FAKE_VERBS_PEERMEM 1:
 * addresses of the fake CUDA driver's memory can be registered
 *
 * A GPU's memory is the fake CUDA driver's, of whose memfds a dma-buf is one: what is registered so
 * is read and written as that file, for nobody else reaches the addresses. As with a real NIC it
 * stays what it was when its addresses are freed.
 *
 * A write with an immediate takes a receive of the queue pair at the other end, in whichever
 * process; without one it ends with status 13 ("receiver not ready"), at once.
 *
 * What is left open when the process ends aborts, as does a completion queue that overruns, or is
 * destroyed with events that have not been acknowledged: a real one would wait for that.
 */
#ifndef TESTS_FAKE_VERBS_FAKE_VERBS_H
#define TESTS_FAKE_VERBS_FAKE_VERBS_H

#include <stdbool.h>
#include <stdint.h>

/* For tests, which find these with dlsym(). `nic` counts from 0. */

/* Take a port of this process up or down, with its event. What is under way when it goes down never
 * completes. */
void fake_verbs_port(unsigned nic, bool up);
/* Take a NIC away, with its event: nothing comes from it any more, and its descriptors say so for
 * ever. */
void fake_verbs_remove(unsigned nic);
/* Nothing is done any more, and nothing completes, until it is let go. */
void fake_verbs_hold(bool hold);
/* The same of one NIC. */
void fake_verbs_hold_nic(unsigned nic, bool hold);
/* Of the work requests to come, let so many pass and end the next with this status. */
void fake_verbs_fail(int status, unsigned after);
/* The same of one NIC's. */
void fake_verbs_fail_nic(unsigned nic, int status, unsigned after);
/* Of the requests to come, let so many pass, and let the next and all behind it of that queue pair
 * never get to the other side (the one above has moved its bytes). */
void fake_verbs_lose(int status, unsigned after);
/* Writes with an immediate that found no receive. */
uint64_t fake_verbs_underruns(void);
struct ibv_qp;
/* Receives that wait at the other end of a queue pair; 0 if it is connected to none. */
unsigned fake_verbs_receives(const struct ibv_qp *qp);
/* How many bytes it moves in a us; 0: as many as it can. */
void fake_verbs_speed(unsigned nic, uint64_t speed);
/* Bytes that a NIC of this process has moved. */
uint64_t fake_verbs_moved(unsigned nic);
/* Queue pairs of this process that are open, and how many there have been at most. */
void fake_verbs_pairs(unsigned *open, unsigned *most);
/* Of the registrations to come, let so many succeed and refuse the next with this errno. */
void fake_verbs_refuse(int error, unsigned after);
/* Memory regions that have been registered, by dma-buf, and with relaxed ordering. */
void fake_verbs_registrations(uint64_t *all, uint64_t *dma_bufs, uint64_t *relaxed);
/* Objects of this process that are open. */
int fake_verbs_open(void);
/* Work requests that have been posted, how often a doorbell was rung for them, their completions,
 * and how often an event was asked for. */
void fake_verbs_counts(uint64_t counts[4]);

#endif
