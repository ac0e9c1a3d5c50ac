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
 *   FAKE_VERBS_MR        max_mr_size; a longer registration fails with EINVAL
 *   FAKE_VERBS_PKEY      the partition key at index 1 (0xffff)
 *   FAKE_VERBS_MEMLOCK   bytes that a process may register
 *   FAKE_VERBS_DMABUF    errno of ibv_reg_dmabuf_mr() with fd -1; the default EBADF says that the
 *                        NIC supports dma-bufs, others that it does not
 *   FAKE_VERBS_NO_DMABUF the name of a NIC that refuses dma-bufs
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

/* Set a port of this process up or down, with its event. Work requests that are in progress when
 * the port goes down never complete. */
void fake_verbs_port(unsigned nic, bool up);
/* Remove a NIC, with its event: it completes nothing any more, and its descriptors report the
 * removal from now on. */
void fake_verbs_remove(unsigned nic);
/* Stop all NICs (`hold`), or let them go on: a stopped NIC executes and completes nothing. */
void fake_verbs_hold(bool hold);
/* The same for one NIC. */
void fake_verbs_hold_nic(unsigned nic, bool hold);
/* Complete the next `after` work requests of a NIC that move bytes as usual, and the one after them
 * with `status`. */
void fake_verbs_fail_nic(unsigned nic, int status, unsigned after);
/* The same for NIC 0. */
void fake_verbs_fail(int status, unsigned after);
/* As fake_verbs_fail(), but the failed work request and all later ones of its queue pair never
 * reach the remote side; fake_verbs_fail() still moves the bytes of the failed one. */
void fake_verbs_lose(int status, unsigned after);
/* The number of writes with an immediate that found no receive. */
uint64_t fake_verbs_underruns(void);
struct ibv_qp;
/* The number of receives posted at the remote queue pair that no write has consumed yet; 0 if there
 * is no remote queue pair. */
unsigned fake_verbs_receives(const struct ibv_qp *qp);
/* Limit a NIC to `speed` bytes a microsecond; 0: no limit. */
void fake_verbs_speed(unsigned nic, uint64_t speed);
/* The number of bytes that a NIC of this process has moved. */
uint64_t fake_verbs_moved(unsigned nic);
/* The number of queue pairs that this process has open, and the highest number so far. */
void fake_verbs_pairs(unsigned *open, unsigned *most);
/* Let the next `after` registrations succeed, and refuse the one after them with this errno. */
void fake_verbs_refuse(int error, unsigned after);
/* The number of memory regions registered so far: all, by dma-buf, and with relaxed ordering. */
void fake_verbs_registrations(uint64_t *all, uint64_t *dma_bufs, uint64_t *relaxed);
/* The number of objects that this process has open. */
int fake_verbs_open(void);
/* The number of work requests posted, of doorbells rung for them, of completions, and of events
 * requested (ibv_req_notify_cq()). */
void fake_verbs_counts(uint64_t counts[4]);

#endif
