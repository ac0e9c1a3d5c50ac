/* SPDX-License-Identifier: Apache-2.0 */
/* handles.h: the unix socket that carries handles of GPU memory, by hand
 *
 * Functions fail the running test on an error, unless stated otherwise. */
#ifndef TESTS_INTEGRATION_LIB_HANDLES_H
#define TESTS_INTEGRATION_LIB_HANDLES_H

#include "gpu.h"
#include "raw.h"
#include "transport/shm/wire.h"

/* Connect to the unix socket of an owner, for the session of `welcome`. Returns the socket. */
int handles_connect(const struct wh_hello *welcome);

/* Request one segment of a region, with WH_MAP_OBJECTS in `segment` as an object of the kernel
 * driver. 0, or -1 if the owner has hung up. */
int handles_ask(int fd, uint64_t id, uint32_t segment);

/* Receive the owner's answer for a segment; returns its error. */
int handles_answer(int fd, struct wh_exported *exported);

/* The owner lives and serves the well-behaved peer. */
void gpu_pair_want_well(struct gpu_pair *p);

#endif
