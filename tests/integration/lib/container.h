/* SPDX-License-Identifier: Apache-2.0 */
/* container.h: child processes in namespaces of their own, as containers are
 *
 * Root only; needs_containers says why not. The network is that of the thread that starts the
 * child (network.h). */
#ifndef TESTS_INTEGRATION_LIB_CONTAINER_H
#define TESTS_INTEGRATION_LIB_CONTAINER_H

#include <sched.h>

#include "harness.h"

extern const struct route needs_containers; /* not a route: root, and namespaces of all kinds */

#define CONTAINER_ALL (CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNS | CLONE_NEWUTS)

struct container {
	/* CLONE_NEWPID ...; with CLONE_NEWUSER its users are those from CONTAINER_USERS on outside,
	 * and it is its own root. */
	int namespaces;
	/* With CLONE_NEWNS: /run is empty, /dev/shm a file system of its own, and /proc that of its
	 * PID namespace unless `old_proc`. */
	const char *volume; /* a directory that is mounted ... */
	const char *at; /* ... here, below /run; NULL: none */
	bool read_only;
	bool full; /* /dev/shm has no room for one more file */
	bool old_proc;
	/* With CLONE_NEWNS: a file with another boot id, so that it is another machine; NULL: it is
	 * this one. */
	const char *boot;
};
#define CONTAINER_BOOT "0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d\n" /* such a file's bytes */
#define CONTAINER_USERS 100000u

/* As fork(). The child must do nothing but exec(). Fails the test if there is no such process; one
 * whose file systems cannot be prepared exits with 126. */
pid_t container_fork(const struct container *container);

/* Two networks on one machine, joined by a cable: an engine listens in each with these addresses.
 */
#define CONTAINER_LEFT "10.78.0.1"
#define CONTAINER_RIGHT "10.78.0.2"
struct container_cable {
	int left, right; /* networks, as of network_new() */
};
/* Lay the cable; this thread is then on the left. network_enter() goes to the other side, and
 * container_cable_close() returns to the network in which the test program started. */
void container_cable_open(struct container_cable *cable);
void container_cable_close(struct container_cable *cable);

#endif
