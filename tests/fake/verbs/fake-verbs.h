/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fake libibverbs over host memory. Queue pairs of one process, or of several, are connected
 * through a shared file, the world, which lists the queue pairs and memory regions. A NIC is a
 * thread that executes work requests: it checks keys, access rights and bounds like a NIC, and
 * moves the bytes with process_vm_writev() and process_vm_readv().
 *
 * Environment:
 *   FAKE_VERBS           the NICs, "a,b"; not set: none
 *   FAKE_VERBS_WORLD     the file; not set: the world is this process
 *   FAKE_VERBS_GIDS      GIDs of every port: "TYPE/ADDRESS,...", TYPE 1 or 2 for RoCE's version.
 *                        Default: NIC n has 2/::ffff:10.77.0.n at index 1, behind a link-local GID
 *   FAKE_VERBS_LINK      "infiniband": ports have LIDs and partition keys
 *   FAKE_VERBS_NETWORKS  the number of networks (1): NIC n has 10.(77 + n modulo that).0.n
 *   FAKE_VERBS_SGE       max_sge: scatter-gather elements of a work request (16)
 *   FAKE_VERBS_MR        max_mr_size
 *   FAKE_VERBS_MEMLOCK   bytes that a process may register
 *   FAKE_VERBS_DMABUF    errno of ibv_reg_dmabuf_mr() with fd -1; the default EBADF says that the
 *                        NIC supports dma-bufs, others that it does not
 *   FAKE_VERBS_REGISTER  errno of ibv_reg_dmabuf_mr() with a file descriptor (0: success)
 *   FAKE_VERBS_HANG      "CALL" or "CALL:NIC": a call that never returns: list, open or register
 *                        (a file descriptor); or move: work requests that never complete
 *   FAKE_VERBS_PEERMEM   1: addresses of the fake CUDA driver's memory can be registered
 *
 * GPU memory is the fake CUDA driver's. Its dma-buf is a memfd, and a registration of it reads and
 * writes that file, since no other process can access the addresses. As with a real NIC, the
 * registration stays valid when the addresses are freed.
 *
 * A write with an immediate consumes a receive of the remote queue pair, in whichever process.
 * Without a receive it fails at once with status 13 ("receiver not ready").
 *
 * Objects that are still open at process exit abort the process. So does a completion queue that
 * overruns, or that is destroyed with unacknowledged events: a real one would wait for them.
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
