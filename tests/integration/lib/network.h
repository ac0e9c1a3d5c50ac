/* SPDX-License-Identifier: Apache-2.0 */
/* Networks of the test's own: hosts that are network namespaces, and a router between two of them.
 */
#ifndef TESTS_INTEGRATION_LIB_NETWORK_H
#define TESTS_INTEGRATION_LIB_NETWORK_H

#include "harness.h"

extern const struct route needs_network; /* not a route: a test that makes namespaces */
/* one that disturbs what goes between them; where it can, a cut is netem's */
extern const struct route needs_netem;

/* A network with nothing but its loopback, which this thread, and what it starts from now on, is
 * in. Its descriptor. */
int network_new(void);
void network_enter(int network);
/* The one that the test program was started in. */
void network_leave(void);

/* Two hosts, 10.77.1.2 and 10.77.2.2, and a router between them. A host sees nothing of what is cut
 * off behind it: packets go out, and no answer comes. */
struct network_pair {
	int left, right, router;
};
#define NETWORK_LEFT "10.77.1.2"
#define NETWORK_RIGHT "10.77.2.2"

void network_pair_open(struct network_pair *pair); /* this thread is in `left` then */
void network_pair_cut(const struct network_pair *pair, bool cut);
/* What netem is told to do to packets in both directions: "delay 10ms loss 1%". */
void network_pair_disturb(const struct network_pair *pair, const char *how);
void network_pair_close(struct network_pair *pair);

#endif
