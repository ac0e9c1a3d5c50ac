/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transports. Each line adds one: the folder src/transport/NAME, whose meson.build adds to
 * `sources`, with a table wh_transport_NAME. docs/adding-a-transport.md tells the rest.
 *
 * The core opens, notifies and closes transports in this order: cuda uses what shm has mapped.
 */
#ifndef WH_TRANSPORT_LIST_H
#define WH_TRANSPORT_LIST_H

/* src/meson.build reads these lines. */
/* clang-format off */
#define WH_TRANSPORTS(DO) \
	DO(SELF, self) \
	DO(CUDA, cuda) \
	DO(SHM, shm) \
	DO(RDMA, rdma) \
	DO(TCP, tcp)
/* clang-format on */

#endif
