/* SPDX-License-Identifier: Apache-2.0 */
/* network.h: network namespaces as hosts, and a router between two of them
 *
 * Only the calling thread, and the threads and processes that it starts later, change the
 * namespace. */
#ifndef TESTS_INTEGRATION_LIB_NETWORK_H
#define TESTS_INTEGRATION_LIB_NETWORK_H

#include "harness.h"

extern const struct route needs_network; /* not a route: the test creates network namespaces */
/* the test disturbs traffic with netem */
extern const struct route needs_netem;

/* Create a network with only a loopback interface and move this thread into it. Returns its
 * descriptor, which the caller closes. */
int network_new(void);
void network_enter(int network);
/* Return this thread to the network in which the test program started. */
void network_leave(void);

/* Two hosts, 10.77.1.2 and 10.77.2.2, and a router between them. The hosts' links stay up during a
 * cut: packets go out and no answer arrives. */
struct network_pair {
	int left, right, router;
};
#define NETWORK_LEFT "10.77.1.2"
#define NETWORK_RIGHT "10.77.2.2"

void network_pair_open(struct network_pair *pair); /* moves this thread to `left` */
void network_pair_cut(const struct network_pair *pair, bool cut);
/* Disturb packets in both directions; `how` is in netem's words: "delay 10ms loss 1%". */
void network_pair_disturb(const struct network_pair *pair, const char *how);
void network_pair_close(struct network_pair *pair);

#endif
